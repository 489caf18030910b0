/* Values: how they are made, and what Python says of them: true or false, equal, before or after, in. */
#include "text/jinja/jinja.h"

#include "base/assert.h"
#include "base/json.h"
#include "text/unicode/unicode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 16 };

/* ---- memory and errors ---------------------------------------------------------------------------------- */

jinja_value ravel__jinja_fail(jinja_run *run, ravel_status status, const char *format, ...) {
    char sentence[400];
    va_list args;
    if (run->failed) return ravel__jinja_undefined("");
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    run->failed = ravel_error_set(run->err, status, "chat template, line %d: %s", run->line, sentence);
    return ravel__jinja_undefined("");
}

int ravel__jinja_step(jinja_run *run, size_t steps) {
    if (run->failed) return 0;
    run->steps += steps;
    if (run->steps <= run->step_limit) return 1;
    (void)ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "the template takes more than %zu steps", run->step_limit);
    return 0;
}

void *ravel__jinja_take(jinja_run *run, size_t count, size_t each) {
    size_t bytes;
    if (run->failed) return NULL;
    if (!ravel__size_mul(count, each, &bytes) || bytes + 16 > run->memory_limit - run->used) {
        (void)ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "the template needs more than %zu MiB",
                                run->memory_limit >> 20);
        return NULL;
    }
    bytes = ravel__round_up(bytes + !bytes, 16);
    run->used += bytes;
    if (bytes > run->chunk_left) {
        size_t size = bytes > CHUNK / 4 ? bytes : CHUNK;
        char *chunk = ravel__arena_push(&run->arena, size, 1);
        if (!chunk) {
            if (!run->failed) run->failed = ravel__no_memory(run->err, size, "a rendered chat template");
            return NULL;
        }
        if (size != CHUNK) return memset(chunk, 0, bytes);
        run->chunk = chunk;
        run->chunk_left = CHUNK;
    }
    char *at = run->chunk;
    run->chunk += bytes;
    run->chunk_left -= bytes;
    return memset(at, 0, bytes);
}

/* ---- making values -------------------------------------------------------------------------------------- */

jinja_value ravel__jinja_none(void) {
    return (jinja_value){.kind = JINJA_NONE};
}
jinja_value ravel__jinja_bool(int x) {
    return (jinja_value){.kind = JINJA_BOOL, .as.integer = x != 0};
}
jinja_value ravel__jinja_int(int64_t x) {
    return (jinja_value){.kind = JINJA_INT, .as.integer = x};
}
jinja_value ravel__jinja_real(double x) {
    return (jinja_value){.kind = JINJA_REAL, .as.real = x};
}
jinja_value ravel__jinja_undefined(const char *name) {
    return (jinja_value){.kind = JINJA_UNDEFINED, .as.name = name};
}

static jinja_value string_of(jinja_run *run, const char *at, const int16_t *owners, size_t bytes, int16_t owner) {
    jinja_string *s = ravel__jinja_take(run, 1, sizeof *s);
    if (!s) return ravel__jinja_undefined("");
    *s = (jinja_string){at, owners, (uint32_t)bytes, -1};
    return (jinja_value){.kind = JINJA_STRING, .owner = owner, .as.string = s};
}

jinja_value ravel__jinja_view(jinja_run *run, const char *at, size_t bytes, int16_t owner) {
    return string_of(run, at, NULL, bytes, owner);
}

jinja_value ravel__jinja_text(jinja_run *run, const char *text) {
    return string_of(run, text, NULL, strlen(text), 0);
}

jinja_value ravel__jinja_part(jinja_run *run, jinja_value whole, size_t begin, size_t end) {
    RAVEL_ASSERT(whole.kind == JINJA_STRING && begin <= end && end <= whole.as.string->bytes);
    const jinja_string *s = whole.as.string;
    return string_of(run, s->at + begin, s->owners ? s->owners + begin : NULL, end - begin, whole.owner);
}

/* Makes room for one more element in an array. */
static void *grow(jinja_run *run, void *at, int32_t count, int32_t *room, size_t each) {
    if (count < *room) return at;
    int32_t more = *room < 4 ? 8 : 2 * *room;
    void *bigger = ravel__jinja_take(run, (size_t)more, each);
    if (!bigger) return NULL;
    if (count) memcpy(bigger, at, (size_t)count * each);
    *room = more;
    return bigger;
}

jinja_value ravel__jinja_new_list(jinja_run *run, int kind, int32_t room) {
    jinja_list *list = ravel__jinja_take(run, 1, sizeof *list);
    if (list && room) list->items = ravel__jinja_take(run, (size_t)room, sizeof *list->items);
    if (run->failed || !list) return ravel__jinja_undefined("");
    list->room = room;
    return (jinja_value){.kind = (uint8_t)kind, .as.list = list};
}

void ravel__jinja_push(jinja_run *run, jinja_value list, jinja_value item) {
    if (run->failed) return;
    jinja_list *l = list.as.list;
    jinja_value *items = grow(run, l->items, l->count, &l->room, sizeof *items);
    if (!items) return;
    l->items = items;
    l->items[l->count++] = item;
}

jinja_value ravel__jinja_new_dict(jinja_run *run) {
    jinja_dict *dict = ravel__jinja_take(run, 1, sizeof *dict);
    return dict ? (jinja_value){.kind = JINJA_DICT, .as.dict = dict} : ravel__jinja_undefined("");
}

const jinja_value *ravel__jinja_find(jinja_run *run, const jinja_dict *dict, jinja_value key) {
    if (!ravel__jinja_step(run, (size_t)dict->count / 8)) return NULL;
    for (int32_t i = 0; i < dict->count; i++)
        if (ravel__jinja_equal(run, dict->keys[i], key)) return &dict->values[i];
    return NULL;
}

const jinja_value *ravel__jinja_find_text(const jinja_dict *dict, const char *key) {
    size_t bytes = strlen(key);
    for (int32_t i = 0; i < dict->count; i++) {
        const jinja_value *k = &dict->keys[i];
        if (k->kind == JINJA_STRING && k->as.string->bytes == bytes && memcmp(k->as.string->at, key, bytes) == 0)
            return &dict->values[i];
    }
    return NULL;
}

void ravel__jinja_put(jinja_run *run, jinja_value dict, jinja_value key, jinja_value value) {
    if (run->failed) return;
    jinja_dict *d = dict.as.dict;
    const jinja_value *there = ravel__jinja_find(run, d, key);
    if (there) {
        d->values[there - d->values] = value;
        return;
    }
    int32_t room = d->room;
    jinja_value *keys = grow(run, d->keys, d->count, &room, sizeof *keys);
    jinja_value *values = grow(run, d->values, d->count, &d->room, sizeof *values);
    if (run->failed || !keys || !values) return;
    d->keys = keys;
    d->values = values;
    d->keys[d->count] = key;
    d->values[d->count++] = value;
}

jinja_value ravel__jinja_from_json(jinja_run *run, const ravel__json *doc, const ravel__json_node *node,
                                   int16_t owner) {
    jinja_value v;
    int16_t index = 1;
    switch (node->kind) {
    case RAVEL__JSON_FALSE: v = ravel__jinja_bool(0); break;
    case RAVEL__JSON_TRUE: v = ravel__jinja_bool(1); break;
    case RAVEL__JSON_INTEGER: v = ravel__jinja_int(node->as.integer); break;
    case RAVEL__JSON_REAL: v = ravel__jinja_real(node->as.real); break;
    case RAVEL__JSON_STRING: v = ravel__jinja_view(run, node->as.string, node->bytes, owner); break;
    case RAVEL__JSON_ARRAY:
        v = ravel__jinja_new_list(run, JINJA_LIST, node->count);
        for (const ravel__json_node *n = ravel__json_first(doc, node); n && !run->failed; n = ravel__json_next(doc, n))
            ravel__jinja_push(run, v, ravel__jinja_from_json(run, doc, n, owner < 0 ? index : owner)),
                index += index < INT16_MAX;
        break;
    case RAVEL__JSON_OBJECT:
        v = ravel__jinja_new_dict(run);
        for (const ravel__json_node *n = ravel__json_first(doc, node); n && !run->failed; n = ravel__json_next(doc, n))
            ravel__jinja_put(run, v, ravel__jinja_view(run, n->key, strlen(n->key), owner),
                             ravel__jinja_from_json(run, doc, n, owner));
        break;
    default: v = ravel__jinja_none(); break;
    }
    v.owner = owner < 0 ? 0 : owner;
    return v;
}

/* ---- what Python says of them --------------------------------------------------------------------------- */

const char *ravel__jinja_type(jinja_value v) {
    static const char *const names[] = {"undefined", "NoneType", "bool",      "int",  "float", "str",    "list",
                                        "tuple",     "dict",     "Namespace", "loop", "macro", "method", "function"};
    RAVEL_ASSERT(v.kind < sizeof names / sizeof *names);
    return names[v.kind];
}

int ravel__jinja_is_number(jinja_value v) {
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_REAL;
}

double ravel__jinja_as_real(jinja_value v) {
    return v.kind == JINJA_REAL ? v.as.real : (double)v.as.integer;
}

int ravel__jinja_true(jinja_value v) {
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return 0;
    case JINJA_BOOL:
    case JINJA_INT: return v.as.integer != 0;
    case JINJA_REAL: return v.as.real != 0;
    case JINJA_STRING: return v.as.string->bytes > 0;
    case JINJA_LIST:
    case JINJA_TUPLE: return v.lazy || v.as.list->count > 0;
    case JINJA_DICT: return v.as.dict->count > 0;
    default: return 1;
    }
}

static int same_text(const jinja_string *a, const jinja_string *b) {
    return a->bytes == b->bytes && memcmp(a->at, b->at, a->bytes) == 0;
}

static int equal_lists(jinja_run *run, const jinja_list *a, const jinja_list *b) {
    if (a->count != b->count || !ravel__jinja_step(run, (size_t)a->count)) return 0;
    for (int32_t i = 0; i < a->count; i++)
        if (!ravel__jinja_equal(run, a->items[i], b->items[i])) return 0;
    return 1;
}

static int equal_dicts(jinja_run *run, const jinja_dict *a, const jinja_dict *b) {
    if (a->count != b->count || !ravel__jinja_step(run, (size_t)a->count)) return 0;
    for (int32_t i = 0; i < a->count; i++) {
        const jinja_value *other = ravel__jinja_find(run, b, a->keys[i]);
        if (!other || !ravel__jinja_equal(run, a->values[i], *other)) return 0;
    }
    return 1;
}

/* Whole numbers that doubles cannot hold are compared as whole numbers. */
static int order_numbers(jinja_value a, jinja_value b) {
    if (a.kind != JINJA_REAL && b.kind != JINJA_REAL)
        return (a.as.integer > b.as.integer) - (a.as.integer < b.as.integer);
    double x = ravel__jinja_as_real(a), y = ravel__jinja_as_real(b);
    return (x > y) - (x < y);
}

int ravel__jinja_equal(jinja_run *run, jinja_value a, jinja_value b) {
    if (ravel__jinja_is_number(a) && ravel__jinja_is_number(b)) {
        int unordered = isnan(ravel__jinja_as_real(a)) || isnan(ravel__jinja_as_real(b));
        return !unordered && order_numbers(a, b) == 0;
    }
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return 1;
    case JINJA_STRING: return same_text(a.as.string, b.as.string);
    case JINJA_LIST:
    case JINJA_TUPLE: return a.as.list == b.as.list || equal_lists(run, a.as.list, b.as.list);
    case JINJA_DICT: return a.as.dict == b.as.dict || equal_dicts(run, a.as.dict, b.as.dict);
    default: return a.as.name == b.as.name;
    }
}

static int order_text(const jinja_string *a, const jinja_string *b) {
    uint32_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = memcmp(a->at, b->at, n);
    return order ? (order > 0) - (order < 0) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

int ravel__jinja_order(jinja_run *run, jinja_value a, jinja_value b) {
    if (ravel__jinja_is_number(a) && ravel__jinja_is_number(b)) return order_numbers(a, b);
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) return order_text(a.as.string, b.as.string);
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        const jinja_list *x = a.as.list, *y = b.as.list;
        for (int32_t i = 0; i < x->count && i < y->count && ravel__jinja_step(run, 1); i++)
            if (!ravel__jinja_equal(run, x->items[i], y->items[i]))
                return ravel__jinja_order(run, x->items[i], y->items[i]);
        return (x->count > y->count) - (x->count < y->count);
    }
    (void)ravel__jinja_fail(run, RAVEL_E_DATA, "%s and %s have no order", ravel__jinja_type(a), ravel__jinja_type(b));
    return 0;
}

int ravel__jinja_contains(jinja_run *run, jinja_value holder, jinja_value item) {
    switch (holder.kind) {
    case JINJA_STRING:
        if (item.kind != JINJA_STRING) break;
        if (!ravel__jinja_step(run, holder.as.string->bytes / 16)) return 0;
        return item.as.string->bytes == 0 ||
               memmem(holder.as.string->at, holder.as.string->bytes, item.as.string->at, item.as.string->bytes) != NULL;
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (int32_t i = 0; i < holder.as.list->count && ravel__jinja_step(run, 1); i++)
            if (ravel__jinja_equal(run, holder.as.list->items[i], item)) return 1;
        return 0;
    case JINJA_DICT: return ravel__jinja_find(run, holder.as.dict, item) != NULL;
    case JINJA_UNDEFINED: return 0;
    default: break;
    }
    (void)ravel__jinja_fail(run, RAVEL_E_DATA, "`in` needs a text, list or dict that can hold a %s, not a %s",
                            ravel__jinja_type(item), ravel__jinja_type(holder));
    return 0;
}

/* ---- characters ----------------------------------------------------------------------------------------- */

int32_t ravel__jinja_points(const jinja_string *s) {
    if (s->points >= 0) return s->points;
    int32_t points = 0;
    for (uint32_t i = 0; i < s->bytes; i++) points += ((unsigned char)s->at[i] & 0xc0) != 0x80;
    return points;
}

size_t ravel__jinja_offset(const jinja_string *s, int32_t point) {
    if (point < 0) return 0;
    if (ravel__jinja_points(s) == (int32_t)s->bytes) return point < (int32_t)s->bytes ? (size_t)point : s->bytes;
    size_t at = 0;
    for (; at < s->bytes; at++) {
        if (((unsigned char)s->at[at] & 0xc0) == 0x80) continue;
        if (point-- == 0) break;
    }
    return at;
}

static jinja_list *characters(jinja_run *run, jinja_value v) {
    const jinja_string *s = v.as.string;
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, ravel__jinja_points(s));
    for (size_t at = 0; at < s->bytes && ravel__jinja_step(run, 1);) {
        uint32_t point;
        size_t n = ravel__utf8_get(s->at + at, &point);
        ravel__jinja_push(run, list, ravel__jinja_part(run, v, at, at + n));
        at += n;
    }
    return run->failed ? NULL : list.as.list;
}

jinja_list *ravel__jinja_items(jinja_run *run, jinja_value v) {
    static jinja_list none;
    if (run->failed) return &none;
    jinja_list *list = NULL;
    switch (v.kind) {
    case JINJA_UNDEFINED: return &none;
    case JINJA_LIST:
    case JINJA_TUPLE: return v.as.list;
    case JINJA_STRING: list = characters(run, v); break;
    case JINJA_DICT:
        list = ravel__jinja_take(run, 1, sizeof *list);
        if (list) *list = (jinja_list){v.as.dict->keys, v.as.dict->count, v.as.dict->count};
        break;
    default: (void)ravel__jinja_fail(run, RAVEL_E_DATA, "a %s has no items to go through", ravel__jinja_type(v)); break;
    }
    return list ? list : &none;
}

/* The bounds of a slice of n items with this step, as Python's slice.indices. */
static int32_t bound(jinja_run *run, jinja_value v, int32_t n, int64_t step, int32_t none) {
    if (v.kind == JINJA_UNDEFINED || v.kind == JINJA_NONE) return none;
    if (v.kind != JINJA_INT && v.kind != JINJA_BOOL)
        return (void)ravel__jinja_fail(run, RAVEL_E_DATA, "a slice's bounds are whole numbers"), 0;
    int64_t at = v.as.integer < 0 ? v.as.integer + n : v.as.integer;
    int32_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    return at < low ? low : at > high ? high : (int32_t)at;
}

jinja_value ravel__jinja_slice(jinja_run *run, jinja_value v, jinja_value from, jinja_value to, jinja_value by) {
    int is_text = v.kind == JINJA_STRING;
    if (!is_text && v.kind != JINJA_LIST && v.kind != JINJA_TUPLE)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "a %s cannot be sliced", ravel__jinja_type(v));
    int64_t step = by.kind == JINJA_INT ? by.as.integer : 1;
    if (step == 0) return ravel__jinja_fail(run, RAVEL_E_DATA, "a slice's step is 0");
    int32_t n = is_text ? ravel__jinja_points(v.as.string) : v.as.list->count;
    int32_t begin = bound(run, from, n, step, step < 0 ? n - 1 : 0), end = bound(run, to, n, step, step < 0 ? -1 : n);
    if (run->failed) return ravel__jinja_undefined("");
    if (is_text && step == 1) {
        size_t first = ravel__jinja_offset(v.as.string, begin), last = ravel__jinja_offset(v.as.string, end);
        return ravel__jinja_part(run, v, first, last > first ? last : first);
    }
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_value out = ravel__jinja_new_list(run, is_text ? JINJA_LIST : v.kind, 0);
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && ravel__jinja_step(run, 1); i += step)
        ravel__jinja_push(run, out, items->items[i]);
    if (!is_text || run->failed) return out;
    jinja_builder b = {.run = run};
    for (int32_t i = 0; i < out.as.list->count; i++) ravel__jinja_add_value(&b, out.as.list->items[i]);
    return ravel__jinja_built(&b);
}

/* ---- members -------------------------------------------------------------------------------------------- */

static jinja_value method_of(jinja_run *run, jinja_value v, const char *name) {
    const jinja_row *row = ravel__jinja_method(v.kind, name);
    jinja_method *method = row ? ravel__jinja_take(run, 1, sizeof *method) : NULL;
    if (!method) return ravel__jinja_undefined(name);
    *method = (jinja_method){v, row};
    return (jinja_value){.kind = JINJA_METHOD, .owner = v.owner, .as.method = method};
}

static jinja_value loop_member(jinja_run *run, const jinja_loop *l, const char *name) {
    int32_t n = l->items->count, i = l->index;
    if (strcmp(name, "index") == 0) return ravel__jinja_int(i + 1);
    if (strcmp(name, "index0") == 0) return ravel__jinja_int(i);
    if (strcmp(name, "first") == 0) return ravel__jinja_bool(i == 0);
    if (strcmp(name, "last") == 0) return ravel__jinja_bool(i + 1 == n);
    if (strcmp(name, "length") == 0) return ravel__jinja_int(n);
    if (strcmp(name, "revindex") == 0) return ravel__jinja_int(n - i);
    if (strcmp(name, "revindex0") == 0) return ravel__jinja_int(n - i - 1);
    if (strcmp(name, "depth") == 0) return ravel__jinja_int(l->depth + 1);
    if (strcmp(name, "depth0") == 0) return ravel__jinja_int(l->depth);
    if (strcmp(name, "previtem") == 0 && i > 0) return l->items->items[i - 1];
    if (strcmp(name, "nextitem") == 0 && i + 1 < n) return l->items->items[i + 1];
    return method_of(run, (jinja_value){.kind = JINJA_LOOP, .as.loop = (jinja_loop *)l}, name);
}

jinja_value ravel__jinja_get_attribute(jinja_run *run, jinja_value v, const char *name) {
    const jinja_value *member = NULL;
    if (v.kind == JINJA_UNDEFINED)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "'%.60s' is undefined, and has no member '%.60s'", v.as.name, name);
    if (strncmp(name, "__", 2) == 0) return ravel__jinja_undefined(name);
    if (v.kind == JINJA_LOOP) return loop_member(run, v.as.loop, name);
    jinja_value method = method_of(run, v, name);
    if (method.kind == JINJA_METHOD) return method;
    if (v.kind == JINJA_DICT || v.kind == JINJA_NAMESPACE) member = ravel__jinja_find_text(v.as.dict, name);
    if (v.kind == JINJA_MACRO && strcmp(name, "name") == 0) return ravel__jinja_text(run, v.as.macro->node->name);
    return member ? *member : ravel__jinja_undefined(name);
}

static jinja_value item_at(jinja_run *run, jinja_value v, int64_t index) {
    int64_t n = v.kind == JINJA_STRING ? ravel__jinja_points(v.as.string) : v.as.list->count;
    if (index < 0) index += n;
    if (index < 0 || index >= n) return ravel__jinja_undefined("an item beyond the last");
    if (v.kind != JINJA_STRING) return v.as.list->items[index];
    size_t begin = ravel__jinja_offset(v.as.string, (int32_t)index);
    return ravel__jinja_part(run, v, begin, ravel__jinja_offset(v.as.string, (int32_t)index + 1));
}

static const char *c_text(jinja_run *run, const jinja_string *s) {
    char *text = ravel__jinja_take(run, (size_t)s->bytes + 1, 1);
    return text ? memcpy(text, s->at, s->bytes) : "";
}

jinja_value ravel__jinja_get_item(jinja_run *run, jinja_value v, jinja_value key) {
    if (v.kind == JINJA_UNDEFINED)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "'%.60s' is undefined, and has no items", v.as.name);
    int counted = v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
    if (counted && (key.kind == JINJA_INT || key.kind == JINJA_BOOL)) return item_at(run, v, key.as.integer);
    if (v.kind == JINJA_DICT) {
        const jinja_value *found = ravel__jinja_find(run, v.as.dict, key);
        if (found) return *found;
    }
    if (key.kind != JINJA_STRING) return ravel__jinja_undefined("an item");
    const char *name = c_text(run, key.as.string);
    if (v.kind != JINJA_DICT) return ravel__jinja_get_attribute(run, v, name);
    return method_of(run, v, name);
}

/* ---- strings in pieces ---------------------------------------------------------------------------------- */

static int make_room(jinja_builder *b, size_t bytes) {
    if (b->bytes + bytes <= b->room) return !b->run->failed;
    size_t room = 2 * b->room + bytes + 32;
    char *at = ravel__jinja_take(b->run, room, 1);
    if (!at) return 0;
    if (b->bytes) memcpy(at, b->at, b->bytes);
    b->at = at;
    b->room = room;
    return 1;
}

/* From here on each byte has an owner of its own. */
static int make_owners(jinja_builder *b) {
    if (b->owners && b->owners_room >= b->room) return 1;
    int16_t *owners = ravel__jinja_take(b->run, b->room, sizeof *owners);
    if (!owners) return 0;
    for (size_t i = 0; i < b->bytes; i++) owners[i] = b->owners ? b->owners[i] : b->owner;
    b->owners = owners;
    b->owners_room = b->room;
    return 1;
}

static void add_owned(jinja_builder *b, const char *at, size_t bytes, int16_t owner, const int16_t *owners) {
    if (!bytes || !make_room(b, bytes)) return;
    if (!b->bytes && !owners) b->owner = owner;
    int mixed = owners || b->owners || owner != b->owner;
    if (mixed && !make_owners(b)) return;
    memcpy(b->at + b->bytes, at, bytes);
    for (size_t i = 0; mixed && i < bytes; i++) b->owners[b->bytes + i] = owners ? owners[i] : owner;
    b->bytes += bytes;
}

void ravel__jinja_add(jinja_builder *b, const char *at, size_t bytes, int16_t owner) {
    add_owned(b, at, bytes, owner, NULL);
}

void ravel__jinja_add_value(jinja_builder *b, jinja_value v) {
    if (v.kind != JINJA_STRING) v = ravel__jinja_str(b->run, v);
    if (v.kind == JINJA_STRING) add_owned(b, v.as.string->at, v.as.string->bytes, v.owner, v.as.string->owners);
}

jinja_value ravel__jinja_built(jinja_builder *b) {
    return string_of(b->run, b->at ? b->at : "", b->owners, b->bytes, b->owners ? 0 : b->owner);
}

/* ---- white space, or other characters, at a string's ends ------------------------------------------------ */

/* Python's white space also has the four separators of ASCII. */
static int is_stripped(uint32_t point, const jinja_string *chars) {
    if (!chars) return ravel__is_space(point) || (point >= 0x1c && point <= 0x1f);
    for (size_t at = 0; at < chars->bytes;) {
        uint32_t one;
        at += ravel__utf8_get(chars->at + at, &one);
        if (one == point) return 1;
    }
    return 0;
}

jinja_value ravel__jinja_strip(jinja_run *run, jinja_value v, jinja_value chars, int sides) {
    const jinja_string *s = v.as.string, *set = chars.kind == JINJA_STRING ? chars.as.string : NULL;
    size_t begin = 0, end = s->bytes;
    uint32_t point;
    while (sides & 1 && begin < end) {
        size_t n = ravel__utf8_get(s->at + begin, &point);
        if (!is_stripped(point, set)) break;
        begin += n;
    }
    while (sides & 2 && end > begin) {
        size_t n = 1;
        while (n < end - begin && ((unsigned char)s->at[end - n] & 0xc0) == 0x80) n++;
        (void)ravel__utf8_get(s->at + end - n, &point);
        if (!is_stripped(point, set)) break;
        end -= n;
    }
    return ravel__jinja_part(run, v, begin, end);
}
