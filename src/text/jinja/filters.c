/* Filters and tests, a row each. What has a method of the same name calls it. */
#include "text/jinja/jinja.h"

#include "base/assert.h"
#include "base/number.h"
#include "text/unicode/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static jinja_value name(jinja_run *run, jinja_value v, const jinja_args *args)
/* One expression. */
#define FILTER_IS(name, what)                        \
    FILTER(name) {                                   \
        return (void)run, (void)args, (void)v, what; \
    }

static jinja_value call_method(jinja_run *run, jinja_value v, const char *name, const jinja_args *args) {
    v = ravel__jinja_str(run, v);
    const jinja_row *row = ravel__jinja_method(JINJA_STRING, name);
    RAVEL_ASSERT(row);
    return run->failed ? v : row->call(run, v, args);
}

static jinja_value as_list(jinja_run *run, const jinja_list *items, int kind) {
    jinja_value out = ravel__jinja_new_list(run, kind, items->count);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++)
        ravel__jinja_push(run, out, items->items[i]);
    return out;
}

/* ---- texts ---------------------------------------------------------------------------------------------- */

FILTER_IS(f_upper, call_method(run, v, "upper", args))
FILTER_IS(f_lower, call_method(run, v, "lower", args))
FILTER_IS(f_capitalize, call_method(run, v, "capitalize", args))
FILTER_IS(f_trim, call_method(run, v, "strip", args))
FILTER_IS(f_replace, call_method(run, v, "replace", args))
FILTER_IS(f_center, call_method(run, v, "center", args))
FILTER_IS(f_string, ravel__jinja_str(run, v))
FILTER(f_safe) {
    (void)args;
    v = ravel__jinja_str(run, v);
    v.lazy = 1;
    return v;
}

/* A capital after white space and -([{<, as Jinja has it. */
FILTER(f_title) {
    jinja_args none = {0};
    v = ravel__jinja_str(run, v);
    if (run->failed) return v;
    const jinja_string *s = v.as.string;
    jinja_builder b = {.run = run};
    size_t from = 0;
    (void)args;
    for (size_t at = 0; at <= s->bytes && ravel__jinja_step(run, 1); at++) {
        int cut = at == s->bytes || strchr("-([{< \t\n\r\f\v", s->at[at]) != NULL;
        if (!cut) continue;
        ravel__jinja_add_value(&b, call_method(run, ravel__jinja_part(run, v, from, at), "capitalize", &none));
        if (at < s->bytes) ravel__jinja_add_value(&b, ravel__jinja_part(run, v, at, at + 1));
        from = at + 1;
    }
    return ravel__jinja_built(&b);
}

FILTER(f_escape) {
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    jinja_builder b = {.run = run};
    (void)args;
    if (v.kind == JINJA_STRING && v.lazy) return v;
    v = ravel__jinja_str(run, v);
    for (size_t i = 0; !run->failed && i < v.as.string->bytes && ravel__jinja_step(run, 1); i++) {
        const char *found = strchr(from, v.as.string->at[i]);
        if (found && *found)
            ravel__jinja_add(&b, to[found - from], strlen(to[found - from]), v.owner);
        else
            ravel__jinja_add_value(&b, ravel__jinja_part(run, v, i, i + 1));
    }
    v = ravel__jinja_built(&b);
    v.lazy = 1;
    return v;
}

FILTER(f_indent) {
    jinja_value width = ravel__jinja_arg(args, 0, "width");
    int first = ravel__jinja_arg_true(args, 1, "first", 0), blank = ravel__jinja_arg_true(args, 2, "blank", 0);
    jinja_builder b = {.run = run}, pad = {.run = run};
    v = ravel__jinja_str(run, v);
    int64_t n = width.kind == JINJA_INT ? width.as.integer : 4;
    if (width.kind == JINJA_STRING)
        ravel__jinja_add_value(&pad, width);
    else
        for (int64_t i = 0; i < n && i < 1000; i++) ravel__jinja_add(&pad, " ", 1, 0);
    jinja_value indent = ravel__jinja_built(&pad);
    if (run->failed) return v;
    const jinja_string *s = v.as.string;
    for (size_t from = 0, line = 0; from <= s->bytes && ravel__jinja_step(run, 1); line++) {
        const char *end = memchr(s->at + from, '\n', s->bytes - from);
        size_t to = end ? (size_t)(end - s->at) : s->bytes;
        if (line ? blank || to > from : first) ravel__jinja_add_value(&b, indent);
        ravel__jinja_add_value(&b, ravel__jinja_part(run, v, from, end ? to + 1 : to));
        from = to + 1;
    }
    return ravel__jinja_built(&b);
}

FILTER(f_truncate) {
    int64_t length = ravel__jinja_arg_int(run, args, 0, "length", 255);
    int64_t leeway = ravel__jinja_arg_int(run, args, 3, "leeway", 5);
    int kill = ravel__jinja_arg_true(args, 1, "killwords", 0);
    jinja_value end = ravel__jinja_arg(args, 2, "end");
    jinja_builder b = {.run = run};
    v = ravel__jinja_str(run, v);
    if (end.kind != JINJA_STRING) end = ravel__jinja_text(run, "...");
    if (run->failed || ravel__jinja_points(v.as.string) <= length + leeway) return v;
    int64_t keep = length - ravel__jinja_points(end.as.string);
    size_t at = ravel__jinja_offset(v.as.string, keep < 0 ? 0 : (int32_t)keep), cut = at;
    while (!kill && cut > 0 && v.as.string->at[cut - 1] != ' ') cut--;
    ravel__jinja_add_value(&b, ravel__jinja_part(run, v, 0, kill || cut == 0 ? at : cut - 1));
    ravel__jinja_add_value(&b, end);
    return ravel__jinja_built(&b);
}

FILTER(f_wordcount) {
    jinja_args none = {0};
    jinja_value words = call_method(run, v, "split", &none);
    (void)args;
    return run->failed ? words : ravel__jinja_int(words.as.list->count);
}

FILTER(f_urlencode) {
    jinja_builder b = {.run = run};
    char hex[8];
    (void)args;
    v = ravel__jinja_str(run, v);
    for (size_t i = 0; !run->failed && i < v.as.string->bytes && ravel__jinja_step(run, 1); i++) {
        unsigned char c = (unsigned char)v.as.string->at[i];
        int plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~/", c));
        (void)snprintf(hex, sizeof hex, plain ? "%c" : "%%%02X", c);
        ravel__jinja_add(&b, hex, strlen(hex), v.owner);
    }
    return ravel__jinja_built(&b);
}

/* "..."|format(values): the values by place as a tuple. */
FILTER(f_format) {
    jinja_value tuple = ravel__jinja_new_list(run, JINJA_TUPLE, 0);
    v = ravel__jinja_str(run, v);
    for (int32_t i = 0; i < args->count; i++) ravel__jinja_push(run, tuple, args->items[i]);
    return run->failed ? v : ravel__jinja_percent(run, v, tuple);
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

/* A text as a number; 0: it is none. */
static int read_number(jinja_run *run, jinja_value v, double *x) {
    char text[64], *end;
    v = ravel__jinja_strip(run, v, ravel__jinja_none(), 3);
    if (run->failed || v.as.string->bytes == 0 || v.as.string->bytes >= sizeof text) return 0;
    memcpy(text, v.as.string->at, v.as.string->bytes);
    text[v.as.string->bytes] = '\0';
    if (text[strspn(text, "+-0123456789.eE_")]) return 0;
    *x = ravel__number_read(text, &end);
    return *end == '\0';
}

FILTER(f_int) {
    jinja_value none = ravel__jinja_arg(args, 0, "default");
    int64_t base = ravel__jinja_arg_int(run, args, 1, "base", 10);
    double x = 0;
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) return ravel__jinja_int(v.as.integer);
    if (v.kind == JINJA_STRING && base != 10 && base >= 2 && base <= 36 && v.as.string->bytes < 64) {
        char text[64] = "", *end;
        memcpy(text, v.as.string->at, v.as.string->bytes);
        int64_t n = strtoll(text, &end, (int)base);
        if (*text && !*end) return ravel__jinja_int(n);
    }
    int good = v.kind == JINJA_REAL ? (x = v.as.real, 1) : v.kind == JINJA_STRING && read_number(run, v, &x);
    if (!good || fabs(x) >= 9.2e18 || isnan(x)) return ravel__jinja_given(none) ? none : ravel__jinja_int(0);
    return ravel__jinja_int((int64_t)x);
}

FILTER(f_float) {
    jinja_value none = ravel__jinja_arg(args, 0, "default");
    double x = 0;
    if (ravel__jinja_is_number(v)) return ravel__jinja_real(ravel__jinja_as_real(v));
    if (v.kind == JINJA_STRING && read_number(run, v, &x)) return ravel__jinja_real(x);
    return ravel__jinja_given(none) ? none : ravel__jinja_real(0);
}

FILTER(f_abs) {
    (void)args;
    if (!ravel__jinja_is_number(v)) return ravel__jinja_fail(run, RAVEL_E_DATA, "abs needs a number");
    if (v.kind == JINJA_REAL) return ravel__jinja_real(fabs(v.as.real));
    return ravel__jinja_int(v.as.integer < 0 && v.as.integer != INT64_MIN ? -v.as.integer : v.as.integer);
}

FILTER(f_round) {
    int64_t precision = ravel__jinja_arg_int(run, args, 0, "precision", 0);
    jinja_value method = ravel__jinja_arg(args, 1, "method");
    char text[400];
    if (!ravel__jinja_is_number(v)) return ravel__jinja_fail(run, RAVEL_E_DATA, "round needs a number");
    if (precision < -15 || precision > 15) return v;
    double x = ravel__jinja_as_real(v), scale = pow(10, (double)precision);
    const jinja_string *m = method.kind == JINJA_STRING ? method.as.string : NULL;
    if (m && m->bytes == 4 && memcmp(m->at, "ceil", 4) == 0) return ravel__jinja_real(ceil(x * scale) / scale);
    if (m && m->bytes == 5 && memcmp(m->at, "floor", 5) == 0) return ravel__jinja_real(floor(x * scale) / scale);
    if (precision < 0) return ravel__jinja_real(nearbyint(x * scale) / scale);
    ravel__number_print(text, sizeof text, "%.*f", (int)precision, x);
    return ravel__jinja_real(ravel__number_read(text, NULL));
}

/* ---- items ---------------------------------------------------------------------------------------------- */

FILTER(f_length) {
    (void)args;
    switch (v.kind) {
    case JINJA_UNDEFINED: return ravel__jinja_int(0);
    case JINJA_STRING: return ravel__jinja_int(ravel__jinja_points(v.as.string));
    case JINJA_LIST:
    case JINJA_TUPLE: return ravel__jinja_int(v.as.list->count);
    case JINJA_DICT: return ravel__jinja_int(v.as.dict->count);
    default: return ravel__jinja_fail(run, RAVEL_E_DATA, "a %s has no length", ravel__jinja_type(v));
    }
}

FILTER(f_first) {
    const jinja_list *items = ravel__jinja_items(run, v);
    (void)args;
    return items->count ? items->items[0] : ravel__jinja_undefined("the first of nothing");
}

FILTER(f_last) {
    const jinja_list *items = ravel__jinja_items(run, v);
    (void)args;
    return items->count ? items->items[items->count - 1] : ravel__jinja_undefined("the last of nothing");
}

FILTER_IS(f_list, as_list(run, ravel__jinja_items(run, v), JINJA_LIST))

FILTER(f_reverse) {
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_value out = ravel__jinja_new_list(run, JINJA_LIST, items->count);
    (void)args;
    for (int32_t i = items->count; i-- > 0 && ravel__jinja_step(run, 1);) ravel__jinja_push(run, out, items->items[i]);
    if (v.kind != JINJA_STRING || run->failed) return out;
    jinja_builder b = {.run = run};
    for (int32_t i = 0; i < out.as.list->count; i++) ravel__jinja_add_value(&b, out.as.list->items[i]);
    return ravel__jinja_built(&b);
}

/* v.a.b or v.0, by an attribute's text or number. */
static jinja_value attribute_of(jinja_run *run, jinja_value v, jinja_value path) {
    if (path.kind == JINJA_INT) return ravel__jinja_get_item(run, v, path);
    if (path.kind != JINJA_STRING) return ravel__jinja_fail(run, RAVEL_E_DATA, "an attribute is a text or a number");
    const jinja_string *s = path.as.string;
    for (size_t from = 0; from <= s->bytes && !run->failed;) {
        const char *dot = memchr(s->at + from, '.', s->bytes - from);
        size_t to = dot ? (size_t)(dot - s->at) : s->bytes;
        jinja_value key = ravel__jinja_part(run, path, from, to);
        double number = 0;
        if (to > from && s->at[from] >= '0' && s->at[from] <= '9' && read_number(run, key, &number))
            key = ravel__jinja_int((int64_t)number);
        v = ravel__jinja_get_item(run, v, key);
        from = to + 1;
    }
    return v;
}

FILTER(f_attr) {
    jinja_value name = ravel__jinja_arg(args, 0, "name");
    if (name.kind != JINJA_STRING) return ravel__jinja_fail(run, RAVEL_E_DATA, "attr needs a text");
    char *text = ravel__jinja_take(run, (size_t)name.as.string->bytes + 1, 1);
    if (!text) return v;
    memcpy(text, name.as.string->at, name.as.string->bytes);
    return ravel__jinja_get_attribute(run, v, text);
}

FILTER(f_join) {
    jinja_value between = ravel__jinja_arg(args, 0, "d"), attribute = ravel__jinja_arg(args, 1, "attribute");
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_builder b = {.run = run};
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        if (i && ravel__jinja_given(between)) ravel__jinja_add_value(&b, between);
        int by = ravel__jinja_given(attribute) && attribute.kind != JINJA_NONE;
        ravel__jinja_add_value(&b, by ? attribute_of(run, items->items[i], attribute) : items->items[i]);
    }
    return ravel__jinja_built(&b);
}

FILTER(f_items) {
    if (v.kind == JINJA_UNDEFINED) return ravel__jinja_new_list(run, JINJA_LIST, 0);
    if (v.kind != JINJA_DICT)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "items needs a dict, not a %s", ravel__jinja_type(v));
    return ravel__jinja_method(JINJA_DICT, "items")->call(run, v, args);
}

/* ---- order ---------------------------------------------------------------------------------------------- */

/* What an item is sorted by: texts without their case, unless asked. */
static jinja_value sort_key(jinja_run *run, jinja_value item, jinja_value attribute, int cased) {
    if (ravel__jinja_given(attribute) && attribute.kind != JINJA_NONE) item = attribute_of(run, item, attribute);
    return item.kind == JINJA_STRING && !cased && !run->failed ? call_method(run, item, "lower", &(jinja_args){0})
                                                               : item;
}

/* Stable, by merging runs of twice the length each time. */
static void merge_sort(jinja_run *run, jinja_value *items, jinja_value *keys, int32_t n, int down) {
    jinja_value *more = ravel__jinja_take(run, 2 * (size_t)n + 1, sizeof *more), *to = more,
                *to_keys = more ? more + n : NULL;
    for (int32_t width = 1; more && width < n; width *= 2) {
        for (int32_t left = 0; left < n && ravel__jinja_step(run, 1); left += 2 * width) {
            int32_t middle = left + width < n ? left + width : n, right = middle + width < n ? middle + width : n;
            int32_t a = left, b = middle;
            for (int32_t k = left; k < right && ravel__jinja_step(run, 1); k++) {
                int order = a < middle && b < right ? ravel__jinja_order(run, keys[a], keys[b]) : 0;
                int from_left = b >= right || (a < middle && (down ? order >= 0 : order <= 0));
                int32_t from = from_left ? a++ : b++;
                to[k] = items[from];
                to_keys[k] = keys[from];
            }
        }
        if (run->failed) return;
        memcpy(items, to, (size_t)n * sizeof *items);
        memcpy(keys, to_keys, (size_t)n * sizeof *keys);
    }
}

static jinja_value sorted(jinja_run *run, jinja_value list, jinja_value attribute, int cased, int down) {
    jinja_list *l = list.as.list;
    jinja_value *keys = run->failed ? NULL : ravel__jinja_take(run, (size_t)l->count + 1, sizeof *keys);
    for (int32_t i = 0; keys && i < l->count && ravel__jinja_step(run, 1); i++)
        keys[i] = sort_key(run, l->items[i], attribute, cased);
    if (keys && !run->failed) merge_sort(run, l->items, keys, l->count, down);
    return list;
}

FILTER(f_sort) {
    jinja_value list = as_list(run, ravel__jinja_items(run, v), JINJA_LIST);
    return sorted(run, list, ravel__jinja_arg(args, 2, "attribute"),
                  ravel__jinja_arg_true(args, 1, "case_sensitive", 0), ravel__jinja_arg_true(args, 0, "reverse", 0));
}

FILTER(f_dictsort) {
    jinja_value list = f_items(run, v, args), by = ravel__jinja_arg(args, 1, "by");
    int value = by.kind == JINJA_STRING && by.as.string->bytes == 5 && memcmp(by.as.string->at, "value", 5) == 0;
    return sorted(run, list, ravel__jinja_int(value), ravel__jinja_arg_true(args, 0, "case_sensitive", 0),
                  ravel__jinja_arg_true(args, 2, "reverse", 0));
}

static jinja_value extreme(jinja_run *run, jinja_value v, const jinja_args *args, int sign) {
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_value attribute = ravel__jinja_arg(args, 1, "attribute"),
                best = ravel__jinja_undefined("the extreme of nothing"), key = best;
    int cased = ravel__jinja_arg_true(args, 0, "case_sensitive", 0);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        jinja_value k = sort_key(run, items->items[i], attribute, cased);
        if (i && sign * ravel__jinja_order(run, k, key) <= 0) continue;
        best = items->items[i];
        key = k;
    }
    return best;
}
FILTER_IS(f_min, extreme(run, v, args, -1))
FILTER_IS(f_max, extreme(run, v, args, 1))

FILTER(f_unique) {
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_value attribute = ravel__jinja_arg(args, 1, "attribute"), out = ravel__jinja_new_list(run, JINJA_LIST, 0);
    jinja_value seen = ravel__jinja_new_list(run, JINJA_LIST, 0);
    int cased = ravel__jinja_arg_true(args, 0, "case_sensitive", 0);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        jinja_value key = sort_key(run, items->items[i], attribute, cased);
        if (run->failed || ravel__jinja_contains(run, seen, key)) continue;
        ravel__jinja_push(run, seen, key);
        ravel__jinja_push(run, out, items->items[i]);
    }
    return out;
}

/* (value, items with it) for each value in order. */
FILTER(f_groupby) {
    jinja_value attribute = ravel__jinja_arg(args, 0, "attribute"), out = ravel__jinja_new_list(run, JINJA_LIST, 0);
    jinja_value list = sorted(run, as_list(run, ravel__jinja_items(run, v), JINJA_LIST), attribute, 0, 0), last = out;
    jinja_value group = out;
    for (int32_t i = 0; !run->failed && i < list.as.list->count && ravel__jinja_step(run, 1); i++) {
        jinja_value key = attribute_of(run, list.as.list->items[i], attribute);
        if (i == 0 || !ravel__jinja_equal(run, key, last)) {
            jinja_value pair = ravel__jinja_new_list(run, JINJA_TUPLE, 2);
            group = ravel__jinja_new_list(run, JINJA_LIST, 0);
            ravel__jinja_push(run, pair, key);
            ravel__jinja_push(run, pair, group);
            ravel__jinja_push(run, out, pair);
        }
        ravel__jinja_push(run, group, list.as.list->items[i]);
        last = key;
    }
    return out;
}

FILTER(f_sum) {
    const jinja_list *items = ravel__jinja_items(run, v);
    jinja_value attribute = ravel__jinja_arg(args, 0, "attribute"), start = ravel__jinja_arg(args, 1, "start");
    int64_t whole = ravel__jinja_given(start) && start.kind == JINJA_INT ? start.as.integer : 0;
    double real = start.kind == JINJA_REAL ? start.as.real : 0;
    int is_real = start.kind == JINJA_REAL;
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        jinja_value x = items->items[i];
        if (ravel__jinja_given(attribute) && attribute.kind != JINJA_NONE) x = attribute_of(run, x, attribute);
        if (!ravel__jinja_is_number(x)) return ravel__jinja_fail(run, RAVEL_E_DATA, "sum needs numbers");
        if (x.kind == JINJA_REAL)
            is_real = 1, real += x.as.real;
        else if (__builtin_add_overflow(whole, x.as.integer, &whole))
            return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a sum is beyond 2^63");
    }
    return is_real ? ravel__jinja_real(real + (double)whole) : ravel__jinja_int(whole);
}

/* Lists of n items, the last one filled up. */
FILTER(f_batch) {
    int64_t n = ravel__jinja_arg_int(run, args, 0, "linecount", 0);
    jinja_value with = ravel__jinja_arg(args, 1, "fill_with"), out = ravel__jinja_new_list(run, JINJA_LIST, 0),
                one = out;
    const jinja_list *items = ravel__jinja_items(run, v);
    if (n < 1 || n > 100000) return ravel__jinja_fail(run, RAVEL_E_DATA, "batch needs a number of items");
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        if (i % n == 0) ravel__jinja_push(run, out, one = ravel__jinja_new_list(run, JINJA_LIST, 0));
        ravel__jinja_push(run, one, items->items[i]);
    }
    for (int64_t k = items->count % n; k && k < n && ravel__jinja_given(with) && with.kind != JINJA_NONE; k++)
        ravel__jinja_push(run, one, with);
    return out;
}

/* ---- filters that take filters and tests ----------------------------------------------------------------- */

static const jinja_row *row_named(jinja_run *run, jinja_value name, const jinja_row *(*find)(const char *),
                                  const char *what) {
    char text[40] = "";
    if (name.kind == JINJA_STRING && name.as.string->bytes < sizeof text)
        memcpy(text, name.as.string->at, name.as.string->bytes);
    const jinja_row *row = find(text);
    if (!row) (void)ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "there is no %s %s", what, text);
    return row;
}

/* What is false has no items here, none included. */
static const jinja_list *items_if_true(jinja_run *run, jinja_value v) {
    static const jinja_list none;
    return ravel__jinja_true(v) ? ravel__jinja_items(run, v) : &none;
}

static jinja_args without(const jinja_args *args, int32_t n) {
    jinja_args rest = *args;
    if (n > rest.count) n = rest.count;
    if (n) rest.items += n;
    rest.count -= n;
    return rest;
}

FILTER(f_map) {
    const jinja_list *items = items_if_true(run, v);
    jinja_value attribute = ravel__jinja_arg(args, -1, "attribute"), none = ravel__jinja_arg(args, -1, "default");
    jinja_value out = ravel__jinja_new_list(run, JINJA_LIST, items->count);
    int by = ravel__jinja_given(attribute);
    const jinja_row *row = by ? NULL : row_named(run, ravel__jinja_arg(args, 0, NULL), ravel__jinja_filter, "filter");
    jinja_args rest = without(args, 1);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        jinja_value x = by ? attribute_of(run, items->items[i], attribute) : row->call(run, items->items[i], &rest);
        if (by && x.kind == JINJA_UNDEFINED && ravel__jinja_given(none)) x = none;
        ravel__jinja_push(run, out, x);
    }
    out.lazy = 1;
    return out;
}

static jinja_value choose(jinja_run *run, jinja_value v, const jinja_args *args, int by, int want) {
    const jinja_list *items = items_if_true(run, v);
    jinja_value out = ravel__jinja_new_list(run, JINJA_LIST, 0), attribute = ravel__jinja_arg(args, 0, NULL);
    jinja_value name = ravel__jinja_arg(args, by, NULL);
    const jinja_row *row = ravel__jinja_given(name) ? row_named(run, name, ravel__jinja_test, "test") : NULL;
    jinja_args rest = without(args, by + 1);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        jinja_value x = by ? attribute_of(run, items->items[i], attribute) : items->items[i];
        if (run->failed) break;
        if (row) x = row->call(run, x, &rest);
        if (ravel__jinja_true(x) == want) ravel__jinja_push(run, out, items->items[i]);
    }
    out.lazy = 1;
    return out;
}
FILTER_IS(f_select, choose(run, v, args, 0, 1))
FILTER_IS(f_reject, choose(run, v, args, 0, 0))
FILTER_IS(f_selectattr, choose(run, v, args, 1, 1))
FILTER_IS(f_rejectattr, choose(run, v, args, 1, 0))

FILTER(f_default) {
    jinja_value otherwise = ravel__jinja_arg(args, 0, "default_value");
    int falsy = ravel__jinja_arg_true(args, 1, "boolean", 0) && !ravel__jinja_true(v);
    if (v.kind != JINJA_UNDEFINED && !falsy) return v;
    return ravel__jinja_given(otherwise) ? otherwise : ravel__jinja_text(run, "");
}

FILTER_IS(f_tojson, ravel__jinja_tojson(run, v, args))

const jinja_row *ravel__jinja_filter(const char *name) {
    /* clang-format off */
    static const jinja_row rows[] = {
        {"abs", f_abs}, {"attr", f_attr}, {"batch", f_batch}, {"capitalize", f_capitalize}, {"center", f_center},
        {"count", f_length}, {"d", f_default}, {"default", f_default}, {"dictsort", f_dictsort}, {"e", f_escape},
        {"escape", f_escape}, {"first", f_first}, {"float", f_float}, {"forceescape", f_escape},
        {"format", f_format}, {"groupby", f_groupby}, {"indent", f_indent}, {"int", f_int}, {"items", f_items},
        {"join", f_join}, {"last", f_last}, {"length", f_length}, {"list", f_list}, {"lower", f_lower},
        {"map", f_map}, {"max", f_max}, {"min", f_min}, {"reject", f_reject}, {"rejectattr", f_rejectattr},
        {"replace", f_replace}, {"reverse", f_reverse}, {"round", f_round}, {"safe", f_safe}, {"select", f_select},
        {"selectattr", f_selectattr}, {"sort", f_sort}, {"string", f_string}, {"sum", f_sum}, {"title", f_title},
        {"tojson", f_tojson}, {"trim", f_trim}, {"truncate", f_truncate}, {"unique", f_unique}, {"upper", f_upper},
        {"urlencode", f_urlencode}, {"wordcount", f_wordcount}, {NULL, NULL}};
    /* clang-format on */
    return ravel__jinja_find_row(rows, name);
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

#define TEST_IS(name, what) FILTER_IS(name, ravel__jinja_bool(what))
#define OTHER               ravel__jinja_arg(args, 0, "other")
TEST_IS(is_defined, v.kind != JINJA_UNDEFINED)
TEST_IS(is_undefined, v.kind == JINJA_UNDEFINED)
TEST_IS(is_none, v.kind == JINJA_NONE)
TEST_IS(is_string, v.kind == JINJA_STRING)
TEST_IS(is_mapping, v.kind == JINJA_DICT)
TEST_IS(is_sequence, v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_DICT ||
                         v.kind == JINJA_UNDEFINED)
TEST_IS(is_iterable, v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_DICT ||
                         v.kind == JINJA_UNDEFINED)
TEST_IS(is_number, ravel__jinja_is_number(v))
TEST_IS(is_integer, v.kind == JINJA_INT)
TEST_IS(is_float, v.kind == JINJA_REAL)
TEST_IS(is_boolean, v.kind == JINJA_BOOL)
TEST_IS(is_true, v.kind == JINJA_BOOL && v.as.integer)
TEST_IS(is_false, v.kind == JINJA_BOOL && !v.as.integer)
TEST_IS(is_callable, v.kind == JINJA_MACRO || v.kind == JINJA_METHOD || v.kind == JINJA_GLOBAL)
TEST_IS(is_escaped, 0)
TEST_IS(is_even, v.kind == JINJA_INT && v.as.integer % 2 == 0)
TEST_IS(is_odd, v.kind == JINJA_INT && v.as.integer % 2 != 0)
TEST_IS(is_filter,
        v.kind == JINJA_STRING && v.as.string->bytes < 40 && row_named(run, v, ravel__jinja_filter, "filter") != NULL)

TEST_IS(is_equal, ravel__jinja_equal(run, v, OTHER))
TEST_IS(is_unequal, !ravel__jinja_equal(run, v, OTHER))
TEST_IS(is_less, ravel__jinja_order(run, v, OTHER) < 0)
TEST_IS(is_at_most, ravel__jinja_order(run, v, OTHER) <= 0)
TEST_IS(is_more, ravel__jinja_order(run, v, OTHER) > 0)
TEST_IS(is_at_least, ravel__jinja_order(run, v, OTHER) >= 0)
TEST_IS(is_in, ravel__jinja_contains(run, ravel__jinja_arg(args, 0, "seq"), v))
TEST_IS(is_same, v.kind == OTHER.kind && ravel__jinja_equal(run, v, OTHER))
FILTER(is_divisible) {
    int64_t n = ravel__jinja_arg_int(run, args, 0, "num", 0);
    if (v.kind != JINJA_INT || n == 0) return ravel__jinja_fail(run, RAVEL_E_DATA, "divisibleby needs whole numbers");
    return ravel__jinja_bool(n == -1 || v.as.integer % n == 0);
}
FILTER_IS(is_upper, call_method(run, v, "isupper", &(jinja_args){0}))
FILTER_IS(is_lower, call_method(run, v, "islower", &(jinja_args){0}))

const jinja_row *ravel__jinja_test(const char *name) {
    /* clang-format off */
    static const jinja_row rows[] = {
        {"defined", is_defined}, {"undefined", is_undefined}, {"none", is_none}, {"string", is_string},
        {"mapping", is_mapping}, {"sequence", is_sequence}, {"iterable", is_iterable}, {"number", is_number},
        {"integer", is_integer}, {"float", is_float}, {"boolean", is_boolean}, {"true", is_true},
        {"false", is_false}, {"callable", is_callable}, {"escaped", is_escaped}, {"even", is_even}, {"odd", is_odd},
        {"filter", is_filter}, {"eq", is_equal}, {"equalto", is_equal}, {"==", is_equal}, {"ne", is_unequal},
        {"!=", is_unequal}, {"lt", is_less}, {"lessthan", is_less}, {"<", is_less}, {"le", is_at_most},
        {"<=", is_at_most}, {"gt", is_more}, {"greaterthan", is_more}, {">", is_more}, {"ge", is_at_least},
        {">=", is_at_least}, {"in", is_in}, {"sameas", is_same}, {"divisibleby", is_divisible}, {"upper", is_upper},
        {"lower", is_lower}, {NULL, NULL}};
    /* clang-format on */
    return ravel__jinja_find_row(rows, name);
}
