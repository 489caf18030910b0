/* Methods of texts, dicts, lists and loops, a row each, and the functions that a template can call by name. What would
 * change a value is an error, as in transformers' sandbox. */
#include "text/jinja/jinja.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define METHOD(name) static jinja_value name(jinja_run *run, jinja_value self, const jinja_args *args)
/* One expression. */
#define METHOD_IS(name, what)                           \
    METHOD(name) {                                      \
        return (void)run, (void)args, (void)self, what; \
    }

/* ---- arguments ------------------------------------------------------------------------------------------ */

int ravel__jinja_given(jinja_value v) {
    return v.kind != JINJA_UNDEFINED || v.as.name != NULL;
}

jinja_value ravel__jinja_arg(const jinja_args *args, int32_t place, const char *name) {
    if (place >= 0 && place < args->count) return args->items[place];
    for (int32_t i = 0; name && i < args->named; i++)
        if (strcmp(args->names[i], name) == 0) return args->named_items[i];
    return ravel__jinja_undefined(NULL);
}

int64_t ravel__jinja_arg_int(jinja_run *run, const jinja_args *args, int32_t place, const char *name, int64_t none) {
    jinja_value v = ravel__jinja_arg(args, place, name);
    if (!ravel__jinja_given(v) || v.kind == JINJA_NONE) return none;
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) return v.as.integer;
    (void)ravel__jinja_fail(run, RAVEL_E_DATA, "%s must be a whole number, not a %s", name, ravel__jinja_type(v));
    return none;
}

int ravel__jinja_arg_true(const jinja_args *args, int32_t place, const char *name, int none) {
    jinja_value v = ravel__jinja_arg(args, place, name);
    return ravel__jinja_given(v) ? ravel__jinja_true(v) : none;
}

/* A text that must be there; NULL: failed. */
static const jinja_string *text_arg(jinja_run *run, const jinja_args *args, int32_t place, const char *name) {
    jinja_value v = ravel__jinja_arg(args, place, name);
    if (v.kind == JINJA_STRING) return v.as.string;
    (void)ravel__jinja_fail(run, RAVEL_E_DATA, "%s must be a text, not a %s", name, ravel__jinja_type(v));
    return NULL;
}

/* ---- texts: case ---------------------------------------------------------------------------------------- */

/* Letters of ASCII, Latin, Greek and Cyrillic whose other case is one character. */
static uint32_t to_upper(uint32_t p) {
    if (p < 0x80) return p >= 'a' && p <= 'z' ? p - 32 : p;
    if ((p >= 0xe0 && p <= 0xfe && p != 0xf7) || (p >= 0x3b1 && p <= 0x3c9 && p != 0x3c2) || (p >= 0x430 && p <= 0x44f))
        return p - 32;
    if (p == 0xff) return 0x178;
    if (p == 0xb5) return 0x39c;
    if (p >= 0x450 && p <= 0x45f) return p - 80;
    int even_upper =
        (p >= 0x100 && p <= 0x137 && p != 0x131) || (p >= 0x14a && p <= 0x177) || (p >= 0x460 && p <= 0x481);
    int odd_upper = (p >= 0x139 && p <= 0x148) || (p >= 0x179 && p <= 0x17e);
    if (p == 0x131) return 'I';
    return even_upper && p % 2 ? p - 1 : odd_upper && p % 2 == 0 ? p - 1 : p;
}

static uint32_t to_lower(uint32_t p) {
    if (p < 0x80) return p >= 'A' && p <= 'Z' ? p + 32 : p;
    if ((p >= 0xc0 && p <= 0xde && p != 0xd7) || (p >= 0x391 && p <= 0x3a9 && p != 0x3a2) || (p >= 0x410 && p <= 0x42f))
        return p + 32;
    if (p == 0x178) return 0xff;
    if (p >= 0x400 && p <= 0x40f) return p + 80;
    int even_upper =
        (p >= 0x100 && p <= 0x137 && p != 0x130) || (p >= 0x14a && p <= 0x177) || (p >= 0x460 && p <= 0x481);
    int odd_upper = (p >= 0x139 && p <= 0x148) || (p >= 0x179 && p <= 0x17e);
    return even_upper && p % 2 == 0 ? p + 1 : odd_upper && p % 2 ? p + 1 : p;
}

static int is_cased(uint32_t p) {
    return to_upper(p) != p || to_lower(p) != p;
}

typedef enum case_kind { UPPER, LOWER, TITLE, CAPITAL, SWAP } case_kind;

static jinja_value change_case(jinja_run *run, jinja_value self, case_kind kind) {
    const jinja_string *s = self.as.string;
    jinja_builder b = {.run = run};
    int after_letter = 0;
    for (size_t at = 0; at < s->bytes && ravel__jinja_step(run, 1);) {
        uint32_t p;
        char text[4];
        size_t n = ravel__utf8_get(s->at + at, &p);
        int up = kind == UPPER || (kind == TITLE && !after_letter) || (kind == CAPITAL && at == 0) ||
                 (kind == SWAP && to_lower(p) == p);
        after_letter = is_cased(p);
        if (p == 0xdf && up) {
            ravel__jinja_add(&b, kind == UPPER ? "SS" : "Ss", 2, s->owners ? s->owners[at] : self.owner);
        } else {
            size_t bytes = ravel__utf8_put(text, up ? to_upper(p) : to_lower(p));
            ravel__jinja_add(&b, text, bytes, s->owners ? s->owners[at] : self.owner);
        }
        at += n;
    }
    return ravel__jinja_built(&b);
}

METHOD_IS(text_upper, change_case(run, self, UPPER))
METHOD_IS(text_lower, change_case(run, self, LOWER))
METHOD_IS(text_title, change_case(run, self, TITLE))
METHOD_IS(text_capitalize, change_case(run, self, CAPITAL))
METHOD_IS(text_swapcase, change_case(run, self, SWAP))

/* ---- texts: what they are made of ----------------------------------------------------------------------- */

static int is_letter(uint32_t p) {
    return is_cased(p) || p == 0xaa || p == 0xba || p == 0xdf || (p >= 0x250 && p < 0x300) ||
           (p >= 0x370 && p < 0x2000) || (p >= 0x2c00 && p < 0x2e00) || (p >= 0x3040 && p < 0xd7a4) ||
           (p >= 0xf900 && p < 0xfe00) || p >= 0x20000;
}
static int is_digit(uint32_t p) {
    return p >= '0' && p <= '9';
}

typedef enum made_of { DIGITS, LETTERS, EITHER, SPACES } made_of;

static jinja_value all_are(jinja_value self, made_of kind) {
    const jinja_string *s = self.as.string;
    for (size_t at = 0; at < s->bytes;) {
        uint32_t p;
        at += ravel__utf8_get(s->at + at, &p);
        int good = kind == DIGITS    ? is_digit(p)
                   : kind == LETTERS ? is_letter(p)
                   : kind == EITHER  ? is_letter(p) || is_digit(p)
                                     : ravel__is_space(p) || (p >= 0x1c && p <= 0x1f);
        if (!good) return ravel__jinja_bool(0);
    }
    return ravel__jinja_bool(s->bytes > 0);
}

static jinja_value all_cased(jinja_value self, int upper) {
    const jinja_string *s = self.as.string;
    int cased = 0;
    for (size_t at = 0; at < s->bytes;) {
        uint32_t p;
        at += ravel__utf8_get(s->at + at, &p);
        if ((upper ? to_upper(p) : to_lower(p)) != p) return ravel__jinja_bool(0);
        cased |= is_cased(p);
    }
    return ravel__jinja_bool(cased);
}

METHOD_IS(text_isdigit, all_are(self, DIGITS))
METHOD_IS(text_isalpha, all_are(self, LETTERS))
METHOD_IS(text_isalnum, all_are(self, EITHER))
METHOD_IS(text_isspace, all_are(self, SPACES))
METHOD_IS(text_isupper, all_cased(self, 1))
METHOD_IS(text_islower, all_cased(self, 0))

/* ---- texts: ends ---------------------------------------------------------------------------------------- */

METHOD_IS(text_strip, ravel__jinja_strip(run, self, ravel__jinja_arg(args, 0, "chars"), 3))
METHOD_IS(text_lstrip, ravel__jinja_strip(run, self, ravel__jinja_arg(args, 0, "chars"), 1))
METHOD_IS(text_rstrip, ravel__jinja_strip(run, self, ravel__jinja_arg(args, 0, "chars"), 2))

static int has_end(const jinja_string *s, const jinja_string *part, int at_end) {
    return part->bytes <= s->bytes && memcmp(s->at + (at_end ? s->bytes - part->bytes : 0), part->at, part->bytes) == 0;
}

static jinja_value test_end(jinja_run *run, jinja_value self, const jinja_args *args, int at_end) {
    jinja_value v = ravel__jinja_arg(args, 0, "prefix");
    if (v.kind == JINJA_TUPLE) {
        for (int32_t i = 0; i < v.as.list->count; i++) {
            jinja_value one = v.as.list->items[i];
            if (one.kind == JINJA_STRING && has_end(self.as.string, one.as.string, at_end)) return ravel__jinja_bool(1);
        }
        return ravel__jinja_bool(0);
    }
    const jinja_string *part = text_arg(run, args, 0, "what a text begins or ends with");
    return ravel__jinja_bool(part && has_end(self.as.string, part, at_end));
}

METHOD_IS(text_startswith, test_end(run, self, args, 0))
METHOD_IS(text_endswith, test_end(run, self, args, 1))

METHOD(text_removeprefix) {
    const jinja_string *part = text_arg(run, args, 0, "a prefix");
    if (!part || !has_end(self.as.string, part, 0)) return self;
    return ravel__jinja_part(run, self, part->bytes, self.as.string->bytes);
}

METHOD(text_removesuffix) {
    const jinja_string *part = text_arg(run, args, 0, "a suffix");
    if (!part || !has_end(self.as.string, part, 1)) return self;
    return ravel__jinja_part(run, self, 0, self.as.string->bytes - part->bytes);
}

/* ---- texts: search -------------------------------------------------------------------------------------- */

/* The place of `part` at or after `from`, or with `last` the last one; SIZE_MAX: none. */
static size_t find(jinja_run *run, const jinja_string *s, size_t from, size_t to, const jinja_string *part, int last) {
    size_t found = SIZE_MAX;
    if (!ravel__jinja_step(run, (to - from) / 16 + 1)) return found;
    while (from + part->bytes <= to) {
        const char *at = part->bytes ? memmem(s->at + from, to - from, part->at, part->bytes) : s->at + from;
        if (!at) break;
        found = (size_t)(at - s->at);
        if (!last) break;
        from = found + 1;
    }
    return found;
}

static int32_t points_before(const jinja_string *s, size_t at) {
    int32_t n = 0;
    for (size_t i = 0; i < at; i++) n += ((unsigned char)s->at[i] & 0xc0) != 0x80;
    return n;
}

static jinja_value search(jinja_run *run, jinja_value self, const jinja_args *args, int last, int must) {
    const jinja_string *part = text_arg(run, args, 0, "what is looked for"), *s = self.as.string;
    if (!part) return self;
    size_t from = ravel__jinja_offset(s, (int32_t)ravel__jinja_arg_int(run, args, 1, "start", 0));
    size_t found = find(run, s, from, s->bytes, part, last);
    if (found == SIZE_MAX && must) return ravel__jinja_fail(run, RAVEL_E_DATA, "a text has no such part");
    return ravel__jinja_int(found == SIZE_MAX ? -1 : points_before(s, found));
}

METHOD_IS(text_find, search(run, self, args, 0, 0))
METHOD_IS(text_rfind, search(run, self, args, 1, 0))
METHOD_IS(text_index, search(run, self, args, 0, 1))

METHOD(text_count) {
    const jinja_string *part = text_arg(run, args, 0, "what is counted"), *s = self.as.string;
    int64_t n = 0;
    if (!part) return ravel__jinja_int(0);
    if (part->bytes == 0) return ravel__jinja_int(ravel__jinja_points(s) + 1);
    for (size_t at = 0; (at = find(run, s, at, s->bytes, part, 0)) != SIZE_MAX; at += part->bytes) n++;
    return ravel__jinja_int(n);
}

METHOD(text_replace) {
    const jinja_string *old = text_arg(run, args, 0, "old"), *s = self.as.string;
    jinja_value new = ravel__jinja_arg(args, 1, "new");
    int64_t most = ravel__jinja_arg_int(run, args, 2, "count", -1);
    jinja_builder b = {.run = run};
    size_t from = 0;
    if (!old || new.kind != JINJA_STRING) return ravel__jinja_fail(run, RAVEL_E_DATA, "replace needs two texts");
    for (int64_t n = 0; (most < 0 || n < most) && ravel__jinja_step(run, 1); n++) {
        size_t at = find(run, s, from, s->bytes, old, 0);
        if (at == SIZE_MAX) break;
        uint32_t point;
        size_t next = old->bytes ? at + old->bytes : at < s->bytes ? at + ravel__utf8_get(s->at + at, &point) : at + 1;
        ravel__jinja_add_value(&b, ravel__jinja_part(run, self, from, at));
        ravel__jinja_add_value(&b, new);
        if (!old->bytes && at < s->bytes) ravel__jinja_add_value(&b, ravel__jinja_part(run, self, at, next));
        from = next;
        if (from > s->bytes) return ravel__jinja_built(&b); /* an empty text is found once more at the end */
    }
    if (from <= s->bytes) ravel__jinja_add_value(&b, ravel__jinja_part(run, self, from, s->bytes));
    return ravel__jinja_built(&b);
}

/* ---- texts: apart and together --------------------------------------------------------------------------- */

static jinja_value split_spaces(jinja_run *run, jinja_value self, int64_t most) {
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    jinja_value rest = ravel__jinja_strip(run, self, ravel__jinja_none(), 1);
    while (!run->failed && rest.as.string->bytes) {
        const jinja_string *s = rest.as.string;
        size_t end = 0;
        while (end < s->bytes && ravel__spaces_after(s->at + end, s->bytes - end) == 0) {
            uint32_t point;
            end += ravel__utf8_get(s->at + end, &point);
        }
        if (most == 0) {
            ravel__jinja_push(run, list, ravel__jinja_strip(run, rest, ravel__jinja_none(), 2));
            break;
        }
        most--;
        ravel__jinja_push(run, list, ravel__jinja_part(run, rest, 0, end));
        if (!ravel__jinja_step(run, end / 16 + 1)) break;
        rest = ravel__jinja_strip(run, ravel__jinja_part(run, rest, end, s->bytes), ravel__jinja_none(), 1);
    }
    return list;
}

METHOD(text_split) {
    jinja_value sep = ravel__jinja_arg(args, 0, "sep");
    int64_t most = ravel__jinja_arg_int(run, args, 1, "maxsplit", -1);
    if (!ravel__jinja_given(sep) || sep.kind == JINJA_NONE) return split_spaces(run, self, most);
    const jinja_string *part = text_arg(run, args, 0, "sep"), *s = self.as.string;
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    size_t from = 0;
    if (part && !part->bytes) return ravel__jinja_fail(run, RAVEL_E_DATA, "split needs a separator that is not empty");
    while (part && most != 0) {
        size_t at = find(run, s, from, s->bytes, part, 0);
        if (at == SIZE_MAX) break;
        ravel__jinja_push(run, list, ravel__jinja_part(run, self, from, at));
        from = at + part->bytes;
        most--;
    }
    ravel__jinja_push(run, list, ravel__jinja_part(run, self, from, s->bytes));
    return list;
}

static void reverse(jinja_list *list) {
    for (int32_t i = 0; i < list->count / 2; i++) {
        jinja_value v = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = v;
    }
}

METHOD(text_rsplit) {
    int64_t most = ravel__jinja_arg_int(run, args, 1, "maxsplit", -1);
    jinja_value sep = ravel__jinja_arg(args, 0, "sep");
    if (most < 0 || !ravel__jinja_given(sep) || sep.kind == JINJA_NONE) return text_split(run, self, args);
    const jinja_string *part = text_arg(run, args, 0, "sep"), *s = self.as.string;
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    size_t end = s->bytes;
    while (part && part->bytes && most-- > 0) {
        size_t at = find(run, s, 0, end, part, 1);
        if (at == SIZE_MAX) break;
        ravel__jinja_push(run, list, ravel__jinja_part(run, self, at + part->bytes, end));
        end = at;
    }
    ravel__jinja_push(run, list, ravel__jinja_part(run, self, 0, end));
    if (!run->failed) reverse(list.as.list);
    return list;
}

METHOD(text_splitlines) {
    const jinja_string *s = self.as.string;
    int keep = ravel__jinja_arg_true(args, 0, "keepends", 0);
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    for (size_t from = 0, at = 0; at < s->bytes && ravel__jinja_step(run, 1); from = at) {
        while (at < s->bytes && s->at[at] != '\n' && s->at[at] != '\r') at++;
        size_t end = at;
        if (at < s->bytes) at += s->at[at] == '\r' && at + 1 < s->bytes && s->at[at + 1] == '\n' ? 2 : 1;
        ravel__jinja_push(run, list, ravel__jinja_part(run, self, from, keep ? at : end));
    }
    return list;
}

static jinja_value partition(jinja_run *run, jinja_value self, const jinja_args *args, int last) {
    const jinja_string *part = text_arg(run, args, 0, "sep"), *s = self.as.string;
    jinja_value tuple = ravel__jinja_new_list(run, JINJA_TUPLE, 3), empty = ravel__jinja_part(run, self, 0, 0);
    if (!part || run->failed) return self;
    size_t at = find(run, s, 0, s->bytes, part, last);
    int found = at != SIZE_MAX;
    ravel__jinja_push(run, tuple, found ? ravel__jinja_part(run, self, 0, at) : last ? empty : self);
    ravel__jinja_push(run, tuple, found ? ravel__jinja_part(run, self, at, at + part->bytes) : empty);
    ravel__jinja_push(run, tuple,
                      found  ? ravel__jinja_part(run, self, at + part->bytes, s->bytes)
                      : last ? self
                             : empty);
    return tuple;
}

METHOD_IS(text_partition, partition(run, self, args, 0))
METHOD_IS(text_rpartition, partition(run, self, args, 1))

METHOD(text_join) {
    jinja_builder b = {.run = run};
    const jinja_list *items = ravel__jinja_items(run, ravel__jinja_arg(args, 0, "iterable"));
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        if (items->items[i].kind != JINJA_STRING)
            return ravel__jinja_fail(run, RAVEL_E_DATA, "join needs texts, not a %s",
                                     ravel__jinja_type(items->items[i]));
        if (i) ravel__jinja_add_value(&b, self);
        ravel__jinja_add_value(&b, items->items[i]);
    }
    return ravel__jinja_built(&b);
}

METHOD_IS(text_format, ravel__jinja_str_format(run, self, args))

/* Filled up to a width: `left` and `right` say how many of the missing characters go where. */
static jinja_value fill(jinja_run *run, jinja_value self, const jinja_args *args, int side) {
    int64_t width = ravel__jinja_arg_int(run, args, 0, "width", 0),
            missing = width - ravel__jinja_points(self.as.string);
    jinja_value with = ravel__jinja_arg(args, 1, "fillchar");
    jinja_builder b = {.run = run};
    if (with.kind != JINJA_STRING) with = ravel__jinja_text(run, " ");
    if (missing > 1 << 20) return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a width is above a million");
    if (missing < 0) missing = 0;
    int64_t left = side == 0 ? missing / 2 + (missing & width & 1) : side > 0 ? missing : 0;
    for (int64_t i = 0; i < left; i++) ravel__jinja_add_value(&b, with);
    ravel__jinja_add_value(&b, self);
    for (int64_t i = left; i < missing; i++) ravel__jinja_add_value(&b, with);
    return ravel__jinja_built(&b);
}

METHOD_IS(text_center, fill(run, self, args, 0))
METHOD_IS(text_rjust, fill(run, self, args, 1))
METHOD_IS(text_ljust, fill(run, self, args, -1))

METHOD(text_zfill) {
    jinja_value zero = ravel__jinja_text(run, "0"), items[2] = {ravel__jinja_arg(args, 0, "width"), zero};
    return fill(run, self, &(jinja_args){.items = items, .count = 2}, 1);
}

/* ---- dicts and lists ------------------------------------------------------------------------------------ */

METHOD(dict_items) {
    const jinja_dict *d = self.as.dict;
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, d->count);
    (void)args;
    for (int32_t i = 0; i < d->count && ravel__jinja_step(run, 1); i++) {
        jinja_value pair = ravel__jinja_new_list(run, JINJA_TUPLE, 2);
        ravel__jinja_push(run, pair, d->keys[i]);
        ravel__jinja_push(run, pair, d->values[i]);
        pair.owner = self.owner;
        ravel__jinja_push(run, list, pair);
    }
    return list;
}

static jinja_value half(jinja_run *run, const jinja_dict *d, const jinja_value *items) {
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    if (!run->failed) *list.as.list = (jinja_list){(jinja_value *)items, d->count, d->count};
    return list;
}
METHOD_IS(dict_keys, half(run, self.as.dict, self.as.dict->keys))
METHOD_IS(dict_values, half(run, self.as.dict, self.as.dict->values))
METHOD_IS(copy, self)

METHOD(dict_get) {
    const jinja_value *found = ravel__jinja_find(run, self.as.dict, ravel__jinja_arg(args, 0, "key"));
    jinja_value otherwise = ravel__jinja_arg(args, 1, "default");
    return found ? *found : ravel__jinja_given(otherwise) ? otherwise : ravel__jinja_none();
}

METHOD(list_index) {
    for (int32_t i = 0; i < self.as.list->count && ravel__jinja_step(run, 1); i++)
        if (ravel__jinja_equal(run, self.as.list->items[i], ravel__jinja_arg(args, 0, "value")))
            return ravel__jinja_int(i);
    return ravel__jinja_fail(run, RAVEL_E_DATA, "a list has no such item");
}

METHOD(list_count) {
    int64_t n = 0;
    for (int32_t i = 0; i < self.as.list->count && ravel__jinja_step(run, 1); i++)
        n += ravel__jinja_equal(run, self.as.list->items[i], ravel__jinja_arg(args, 0, "value"));
    return ravel__jinja_int(n);
}

METHOD(changes) {
    (void)args;
    return ravel__jinja_fail(run, RAVEL_E_DATA, "a template must not change a %s (transformers refuses it, too)",
                             ravel__jinja_type(self));
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

METHOD(loop_cycle) {
    if (!args->count) return ravel__jinja_fail(run, RAVEL_E_DATA, "loop.cycle needs values");
    return args->items[self.as.loop->index % args->count];
}

METHOD(loop_changed) {
    jinja_loop *l = self.as.loop;
    jinja_value v = ravel__jinja_new_list(run, JINJA_TUPLE, 0);
    for (int32_t i = 0; i < args->count; i++) ravel__jinja_push(run, v, args->items[i]);
    if (run->failed) return v;
    int changed = !l->changed_set || !ravel__jinja_equal(run, l->changed, v);
    l->changed = v;
    l->changed_set = 1;
    return ravel__jinja_bool(changed);
}

/* ---- the tables of methods ------------------------------------------------------------------------------ */

/* clang-format off */
static const jinja_row text_rows[] = {
    {"upper", text_upper}, {"lower", text_lower}, {"title", text_title}, {"capitalize", text_capitalize},
    {"swapcase", text_swapcase}, {"casefold", text_lower}, {"isdigit", text_isdigit}, {"isnumeric", text_isdigit},
    {"isdecimal", text_isdigit}, {"isalpha", text_isalpha}, {"isalnum", text_isalnum}, {"isspace", text_isspace},
    {"isupper", text_isupper}, {"islower", text_islower}, {"strip", text_strip}, {"lstrip", text_lstrip},
    {"rstrip", text_rstrip}, {"startswith", text_startswith}, {"endswith", text_endswith}, {"find", text_find},
    {"rfind", text_rfind}, {"index", text_index}, {"count", text_count}, {"replace", text_replace},
    {"split", text_split}, {"rsplit", text_rsplit}, {"splitlines", text_splitlines}, {"partition", text_partition},
    {"join", text_join}, {"rpartition", text_rpartition}, {"format", text_format}, {"center", text_center},
    {"removeprefix", text_removeprefix}, {"rjust", text_rjust}, {"ljust", text_ljust},
    {"removesuffix", text_removesuffix}, {"zfill", text_zfill}, {NULL, NULL}};
static const jinja_row dict_rows[] = {
    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", copy},
    {"pop", changes}, {"update", changes}, {"setdefault", changes}, {"clear", changes}, {"popitem", changes},
    {NULL, NULL}};
static const jinja_row list_rows[] = {
    {"index", list_index}, {"count", list_count}, {"copy", copy}, {"append", changes}, {"extend", changes},
    {"insert", changes}, {"pop", changes}, {"remove", changes}, {"sort", changes}, {"reverse", changes},
    {"clear", changes}, {NULL, NULL}};
static const jinja_row tuple_rows[] = {{"index", list_index}, {"count", list_count}, {NULL, NULL}};
static const jinja_row loop_rows[] = {{"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};
/* clang-format on */

const jinja_row *ravel__jinja_find_row(const jinja_row *rows, const char *name) {
    for (; rows->name; rows++)
        if (strcmp(rows->name, name) == 0) return rows;
    return NULL;
}

const jinja_row *ravel__jinja_method(int kind, const char *name) {
    static const jinja_row *const tables[] = {
        [JINJA_STRING] = text_rows, [JINJA_DICT] = dict_rows, [JINJA_LIST] = list_rows,
        [JINJA_TUPLE] = tuple_rows, [JINJA_LOOP] = loop_rows, [JINJA_GLOBAL] = NULL};
    RAVEL_ASSERT(kind >= 0 && (size_t)kind < sizeof tables / sizeof tables[0]);
    return tables[kind] ? ravel__jinja_find_row(tables[kind], name) : NULL;
}

/* ---- functions by name ---------------------------------------------------------------------------------- */

METHOD(make_range) {
    int64_t n = args->count, first = ravel__jinja_arg_int(run, args, 0, "start", 0);
    int64_t begin = n > 1 ? first : 0, end = n > 1 ? ravel__jinja_arg_int(run, args, 1, "stop", 0) : first;
    int64_t step = ravel__jinja_arg_int(run, args, 2, "step", 1);
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    (void)self;
    if (step == 0 || n == 0)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "range needs an end, and a step that is not 0");
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && ravel__jinja_step(run, 1);) {
        if (list.as.list->count >= 100000)
            return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a range is above 100,000");
        ravel__jinja_push(run, list, ravel__jinja_int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return list;
}

static void put_named(jinja_run *run, jinja_value dict, const jinja_args *args) {
    for (int32_t i = 0; i < args->named && !run->failed; i++)
        ravel__jinja_put(run, dict, ravel__jinja_text(run, args->names[i]), args->named_items[i]);
}

METHOD(make_dict) {
    jinja_value dict = ravel__jinja_new_dict(run), from = ravel__jinja_arg(args, 0, NULL);
    (void)self;
    if (from.kind == JINJA_DICT)
        for (int32_t i = 0; i < from.as.dict->count; i++)
            ravel__jinja_put(run, dict, from.as.dict->keys[i], from.as.dict->values[i]);
    else if (ravel__jinja_given(from)) {
        const jinja_list *pairs = ravel__jinja_items(run, from);
        for (int32_t i = 0; i < pairs->count && !run->failed; i++) {
            const jinja_list *pair = ravel__jinja_items(run, pairs->items[i]);
            if (pair->count != 2) return ravel__jinja_fail(run, RAVEL_E_DATA, "dict needs pairs");
            ravel__jinja_put(run, dict, pair->items[0], pair->items[1]);
        }
    }
    put_named(run, dict, args);
    return dict;
}

METHOD(make_namespace) {
    jinja_value dict = make_dict(run, self, args);
    if (!run->failed) dict.kind = JINJA_NAMESPACE;
    return dict;
}

METHOD(raise_exception) {
    jinja_value text = ravel__jinja_str(run, ravel__jinja_arg(args, 0, "message"));
    (void)self;
    if (run->failed) return text;
    int bytes = text.as.string->bytes > 300 ? 300 : (int)text.as.string->bytes;
    return ravel__jinja_fail(run, RAVEL_E_DATA, "the template refuses the conversation: %.*s", bytes,
                             text.as.string->at);
}

METHOD(strftime_now) {
    const jinja_string *format = text_arg(run, args, 0, "format");
    struct tm parts;
    time_t now = (time_t)run->now;
    char *text = ravel__jinja_take(run, 512, 1), *zero = ravel__jinja_take(run, format ? format->bytes + 1 : 1, 1);
    (void)self;
    if (!format || !text || !zero || !localtime_r(&now, &parts)) return ravel__jinja_undefined("");
    if (format->bytes > 200)
        return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a format of dates is above 200 characters");
    memcpy(zero, format->at, format->bytes);
    size_t bytes = strftime(text, 512, zero, &parts);
    return ravel__jinja_view(run, text, bytes, 0);
}

const jinja_row *ravel__jinja_global(const char *name) {
    static const jinja_row rows[] = {{"range", make_range},          {"dict", make_dict},
                                     {"namespace", make_namespace},  {"raise_exception", raise_exception},
                                     {"strftime_now", strftime_now}, {NULL, NULL}};
    return ravel__jinja_find_row(rows, name);
}
