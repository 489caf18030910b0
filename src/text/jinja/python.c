/* Values as text, as Python writes them: str, repr, json.dumps, "%s" % x and "{}".format(x). */
#include "text/jinja/jinja.h"

#include "base/assert.h"
#include "base/number.h"
#include "text/unicode/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_text(jinja_builder *b, const char *text) {
    ravel__jinja_add(b, text, strlen(text), b->bytes ? b->owner : 0);
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

/* The shortest digits that read back as x, as d.ddde+XX; how many digits. */
static int shortest(double x, char text[40]) {
    for (int digits = 1; digits <= 17; digits++) {
        ravel__number_print(text, 40, "%.*e", digits - 1, x);
        if (ravel__number_read(text, NULL) == x) return digits;
    }
    return 17;
}

/* Digits before and after a point, or a power of ten below -4 and from 16 on. */
void ravel__jinja_real_text(double x, char text[40]) {
    if (isnan(x) || isinf(x)) {
        (void)snprintf(text, 40, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    char raw[40];
    int digits = shortest(x, raw);
    char *e = strchr(raw, 'e');
    RAVEL_ASSERT(e);
    int power = atoi(e + 1);
    if (power >= -4 && power < 16) {
        int decimals = digits - 1 - power;
        ravel__number_print(text, 40, "%.*f", decimals > 0 ? decimals : 1, x);
        return;
    }
    size_t mantissa = (size_t)(e - raw);
    memcpy(text, raw, mantissa);
    (void)snprintf(text + mantissa, 8, "e%c%02d", power < 0 ? '-' : '+', abs(power) % 1000);
}

/* ---- str and repr --------------------------------------------------------------------------------------- */

static void add_number(jinja_builder *b, jinja_value v) {
    char text[48];
    if (v.kind == JINJA_REAL)
        ravel__jinja_real_text(v.as.real, text);
    else
        (void)snprintf(text, sizeof text, "%" PRId64, v.as.integer);
    ravel__jinja_add(b, text, strlen(text), v.owner);
}

/* Characters that repr writes as escapes: what is not printable. */
static int is_unprintable(uint32_t p) {
    static const uint32_t ranges[][2] = {{0, 0x1f},        {0x7f, 0xa0},       {0xad, 0xad},       {0x600, 0x605},
                                         {0x61c, 0x61c},   {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x1680, 0x1680},
                                         {0x180e, 0x180e}, {0x2000, 0x200f},   {0x2028, 0x202f},   {0x205f, 0x206f},
                                         {0x3000, 0x3000}, {0xd800, 0xf8ff},   {0xfeff, 0xfeff},   {0xfff0, 0xfffb},
                                         {0xfffe, 0xffff}, {0xe0000, 0xe00ff}, {0xf0000, 0x10ffff}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (p >= ranges[i][0] && p <= ranges[i][1]) return 1;
    return 0;
}

static void repr_text(jinja_builder *b, jinja_value v) {
    const jinja_string *s = v.as.string;
    int single = memchr(s->at, '\'', s->bytes) != NULL, twice = memchr(s->at, '"', s->bytes) != NULL;
    char quote = single && !twice ? '"' : '\'', escape[16];
    ravel__jinja_add(b, &quote, 1, v.owner);
    for (size_t at = 0; at < s->bytes && ravel__jinja_step(b->run, 1);) {
        uint32_t p;
        size_t n = ravel__utf8_get(s->at + at, &p);
        const char *known = p == '\n' ? "\\n" : p == '\r' ? "\\r" : p == '\t' ? "\\t" : p == '\\' ? "\\\\" : NULL;
        if (p == (uint32_t)quote)
            (void)snprintf(escape, sizeof escape, "\\%c", quote);
        else if (!known && is_unprintable(p))
            (void)snprintf(escape, sizeof escape, p < 0x100 ? "\\x%02x" : p < 0x10000 ? "\\u%04x" : "\\U%08x", p);
        else if (!known)
            *escape = '\0';
        if (known || *escape) {
            const char *text = known ? known : escape;
            ravel__jinja_add(b, text, strlen(text), v.owner);
        } else {
            ravel__jinja_add(b, s->at + at, n, v.owner);
        }
        at += n;
    }
    ravel__jinja_add(b, &quote, 1, v.owner);
}

static void repr_list(jinja_builder *b, jinja_value v) {
    const jinja_list *list = v.as.list;
    int tuple = v.kind == JINJA_TUPLE;
    ravel__jinja_add(b, tuple ? "(" : "[", 1, v.owner);
    for (int32_t i = 0; i < list->count && ravel__jinja_step(b->run, 1); i++) {
        if (i) ravel__jinja_add(b, ", ", 2, v.owner);
        ravel__jinja_repr(b, list->items[i]);
    }
    if (tuple && list->count == 1) ravel__jinja_add(b, ",", 1, v.owner);
    ravel__jinja_add(b, tuple ? ")" : "]", 1, v.owner);
}

static void repr_dict(jinja_builder *b, jinja_value v) {
    const jinja_dict *dict = v.as.dict;
    ravel__jinja_add(b, "{", 1, v.owner);
    for (int32_t i = 0; i < dict->count && ravel__jinja_step(b->run, 1); i++) {
        if (i) ravel__jinja_add(b, ", ", 2, v.owner);
        ravel__jinja_repr(b, dict->keys[i]);
        ravel__jinja_add(b, ": ", 2, v.owner);
        ravel__jinja_repr(b, dict->values[i]);
    }
    ravel__jinja_add(b, "}", 1, v.owner);
}

void ravel__jinja_repr(jinja_builder *b, jinja_value v) {
    if (b->run->depth >= JINJA_NESTING) {
        (void)ravel__jinja_fail(b->run, RAVEL_E_UNSUPPORTED, "values nested too deeply");
        return;
    }
    b->run->depth++;
    switch (v.kind) {
    case JINJA_UNDEFINED: add_text(b, "Undefined"); break;
    case JINJA_NONE: add_text(b, "None"); break;
    case JINJA_BOOL: add_text(b, v.as.integer ? "True" : "False"); break;
    case JINJA_INT:
    case JINJA_REAL: add_number(b, v); break;
    case JINJA_STRING: repr_text(b, v); break;
    case JINJA_LIST:
    case JINJA_TUPLE: repr_list(b, v); break;
    case JINJA_DICT: repr_dict(b, v); break;
    default: add_text(b, "<"), add_text(b, ravel__jinja_type(v)), add_text(b, ">"); break;
    }
    b->run->depth--;
}

jinja_value ravel__jinja_str(jinja_run *run, jinja_value v) {
    jinja_builder b = {.run = run};
    if (v.kind == JINJA_STRING) return v;
    if (v.kind != JINJA_UNDEFINED) ravel__jinja_repr(&b, v);
    return ravel__jinja_built(&b);
}

/* ---- json.dumps ----------------------------------------------------------------------------------------- */

typedef struct json_style {
    const char *item, *member, *indent; /* separators; indent NULL: on one line */
    size_t item_bytes, member_bytes, indent_bytes;
    int sorted, ascii;
} json_style;

static void json_text(jinja_builder *b, const json_style *style, jinja_value v) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const jinja_string *s = v.as.string;
    char escape[16];
    ravel__jinja_add(b, "\"", 1, v.owner);
    for (size_t at = 0; at < s->bytes && ravel__jinja_step(b->run, 1);) {
        uint32_t p;
        size_t n = ravel__utf8_get(s->at + at, &p);
        const char *found = p && p < 0x80 ? strchr(from, (int)p) : NULL;
        if (found)
            (void)snprintf(escape, sizeof escape, "\\%c", to[found - from]);
        else if (p < 0x20 || (style->ascii && p >= 0x7f && p < 0x10000 && p != 0x7f))
            (void)snprintf(escape, sizeof escape, "\\u%04x", p);
        else if (style->ascii && p >= 0x10000)
            (void)snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((p - 0x10000) >> 10),
                           0xdc00 + (p & 0x3ff));
        else
            *escape = '\0';
        if (*escape)
            ravel__jinja_add(b, escape, strlen(escape), v.owner);
        else
            ravel__jinja_add(b, s->at + at, n, v.owner);
        at += n;
    }
    ravel__jinja_add(b, "\"", 1, v.owner);
}

static void new_line(jinja_builder *b, const json_style *style, int depth, int16_t owner) {
    if (!style->indent) return;
    ravel__jinja_add(b, "\n", 1, owner);
    for (int i = 0; i < depth; i++) ravel__jinja_add(b, style->indent, style->indent_bytes, owner);
}

static void json_value(jinja_builder *b, const json_style *style, jinja_value v, int depth);

static void json_list(jinja_builder *b, const json_style *style, jinja_value v, int depth) {
    const jinja_list *list = v.as.list;
    ravel__jinja_add(b, "[", 1, v.owner);
    for (int32_t i = 0; i < list->count && ravel__jinja_step(b->run, 1); i++) {
        if (i) ravel__jinja_add(b, style->item, style->item_bytes, v.owner);
        new_line(b, style, depth + 1, v.owner);
        json_value(b, style, list->items[i], depth + 1);
    }
    if (list->count) new_line(b, style, depth, v.owner);
    ravel__jinja_add(b, "]", 1, v.owner);
}

/* A key that is no text becomes one, as json.dumps does. */
static void json_key(jinja_builder *b, const json_style *style, jinja_value key) {
    jinja_builder text = {.run = b->run};
    if (key.kind != JINJA_STRING && key.kind != JINJA_NONE && !ravel__jinja_is_number(key))
        (void)ravel__jinja_fail(b->run, RAVEL_E_DATA, "a key of JSON cannot be a %s", ravel__jinja_type(key));
    if (key.kind != JINJA_STRING && !b->run->failed) {
        json_value(&text, style, key, 0);
        key = ravel__jinja_built(&text);
    }
    if (!b->run->failed) json_text(b, style, key);
}

/* The members' places by key; keys are texts then. */
static int32_t *sorted_places(jinja_run *run, const jinja_dict *dict) {
    int32_t *places = ravel__jinja_take(run, (size_t)dict->count + 1, sizeof *places);
    for (int32_t i = 0; places && i < dict->count; i++) {
        int32_t at = i;
        for (; at > 0 && ravel__jinja_step(run, 1); at--) {
            if (ravel__jinja_order(run, dict->keys[places[at - 1]], dict->keys[i]) <= 0) break;
            places[at] = places[at - 1];
        }
        places[at] = i;
    }
    return places;
}

static void json_dict(jinja_builder *b, const json_style *style, jinja_value v, int depth) {
    const jinja_dict *dict = v.as.dict;
    const int32_t *places = style->sorted ? sorted_places(b->run, dict) : NULL;
    ravel__jinja_add(b, "{", 1, v.owner);
    for (int32_t i = 0; i < dict->count && ravel__jinja_step(b->run, 1); i++) {
        int32_t at = places ? places[i] : i;
        if (i) ravel__jinja_add(b, style->item, style->item_bytes, v.owner);
        new_line(b, style, depth + 1, v.owner);
        json_key(b, style, dict->keys[at]);
        ravel__jinja_add(b, style->member, style->member_bytes, v.owner);
        json_value(b, style, dict->values[at], depth + 1);
    }
    if (dict->count) new_line(b, style, depth, v.owner);
    ravel__jinja_add(b, "}", 1, v.owner);
}

static void json_value(jinja_builder *b, const json_style *style, jinja_value v, int depth) {
    if (depth >= JINJA_NESTING) {
        (void)ravel__jinja_fail(b->run, RAVEL_E_UNSUPPORTED, "values nested too deeply");
        return;
    }
    if (v.lazy && v.kind == JINJA_LIST) {
        (void)ravel__jinja_fail(b->run, RAVEL_E_DATA, "a generator is no JSON; make a list of it");
        return;
    }
    switch (v.kind) {
    case JINJA_NONE: ravel__jinja_add(b, "null", 4, v.owner); break;
    case JINJA_BOOL: ravel__jinja_add(b, v.as.integer ? "true" : "false", v.as.integer ? 4 : 5, v.owner); break;
    case JINJA_REAL:
        if (isnan(v.as.real) || isinf(v.as.real)) {
            const char *text = isnan(v.as.real) ? "NaN" : v.as.real > 0 ? "Infinity" : "-Infinity";
            ravel__jinja_add(b, text, strlen(text), v.owner);
            break;
        } /* fall through */
    case JINJA_INT: add_number(b, v); break;
    case JINJA_STRING: json_text(b, style, v); break;
    case JINJA_LIST:
    case JINJA_TUPLE: json_list(b, style, v, depth); break;
    case JINJA_DICT: json_dict(b, style, v, depth); break;
    default: (void)ravel__jinja_fail(b->run, RAVEL_E_DATA, "a %s is no JSON", ravel__jinja_type(v)); break;
    }
}

static void set_indent(jinja_run *run, json_style *style, jinja_value indent) {
    if (indent.kind == JINJA_INT) {
        int64_t n = indent.as.integer < 0 ? 0 : indent.as.integer > 64 ? 64 : indent.as.integer;
        char *spaces = ravel__jinja_take(run, (size_t)n + 1, 1);
        if (!spaces) return;
        style->indent = memset(spaces, ' ', (size_t)n);
        style->indent_bytes = (size_t)n;
    } else if (indent.kind == JINJA_STRING) {
        style->indent = indent.as.string->at;
        style->indent_bytes = indent.as.string->bytes;
    }
    if (style->indent) style->item_bytes = 1; /* "," before a line end */
}

jinja_value ravel__jinja_tojson(jinja_run *run, jinja_value v, const jinja_args *args) {
    json_style style = {.item = ", ", .item_bytes = 2, .member = ": ", .member_bytes = 2};
    jinja_value separators = ravel__jinja_arg(args, 2, "separators");
    jinja_builder b = {.run = run};
    style.ascii = ravel__jinja_arg_true(args, 0, "ensure_ascii", 0);
    set_indent(run, &style, ravel__jinja_arg(args, 1, "indent"));
    if ((separators.kind == JINJA_LIST || separators.kind == JINJA_TUPLE) && separators.as.list->count == 2) {
        const jinja_value *s = separators.as.list->items;
        if (s[0].kind != JINJA_STRING || s[1].kind != JINJA_STRING)
            return ravel__jinja_fail(run, RAVEL_E_DATA, "the separators of tojson are two texts");
        style.item = s[0].as.string->at, style.item_bytes = s[0].as.string->bytes;
        style.member = s[1].as.string->at, style.member_bytes = s[1].as.string->bytes;
    }
    style.sorted = ravel__jinja_arg_true(args, 3, "sort_keys", 0);
    json_value(&b, &style, v, 0);
    return ravel__jinja_built(&b);
}

/* ---- formats -------------------------------------------------------------------------------------------- */

/* One conversion: its text between % (or :) and its letter in `spec`, as for C's printf. */
static void add_converted(jinja_builder *b, const char *spec, char letter, jinja_value v) {
    char format[48], text[400];
    if (letter == 's' || letter == 'r') {
        jinja_builder one = {.run = b->run};
        if (letter == 's')
            ravel__jinja_add_value(&one, v);
        else
            ravel__jinja_repr(&one, v);
        jinja_value s = ravel__jinja_built(&one);
        if (b->run->failed) return;
        int left = *spec == '-';
        int64_t width = atoi(spec + left), pad = width > 4096 ? 0 : width - ravel__jinja_points(s.as.string);
        for (int64_t i = 0; i < pad && !left; i++) ravel__jinja_add(b, " ", 1, 0);
        ravel__jinja_add_value(b, s);
        for (int64_t i = 0; i < pad && left; i++) ravel__jinja_add(b, " ", 1, 0);
        return;
    }
    if (!ravel__jinja_is_number(v)) {
        (void)ravel__jinja_fail(b->run, RAVEL_E_DATA, "%%%c needs a number, not a %s", letter, ravel__jinja_type(v));
        return;
    }
    int whole = strchr("dixXo", letter) != NULL;
    (void)snprintf(format, sizeof format, "%%%.20s%s%c", spec, whole ? PRId64 : "", letter);
    if (whole) { /* "ld" and the letter's own */
        (void)snprintf(format, sizeof format, "%%%.20sll%c", spec, letter);
        long long x = v.kind == JINJA_REAL ? (long long)v.as.real : (long long)v.as.integer;
        (void)snprintf(text, sizeof text, format, x);
    } else {
        ravel__number_print(text, sizeof text, format, ravel__jinja_as_real(v));
    }
    ravel__jinja_add(b, text, strlen(text), v.owner);
}

/* The flags, width and precision of a conversion; 0: it is none that is known. */
static size_t read_spec(const char *at, size_t bytes, char spec[24]) {
    size_t n = 0;
    while (n < bytes && n < 20 && strchr("-+ #0123456789.", at[n]) && at[n]) n++;
    memcpy(spec, at, n);
    spec[n] = '\0';
    int width = atoi(spec + strspn(spec, "-+ #0"));
    const char *point = strchr(spec, '.');
    return n < bytes && width < 300 && (!point || atoi(point + 1) < 100) ? n : SIZE_MAX;
}

jinja_value ravel__jinja_percent(jinja_run *run, jinja_value format, jinja_value args) {
    const jinja_string *f = format.as.string;
    jinja_builder b = {.run = run};
    int32_t next = 0;
    for (size_t at = 0; at < f->bytes && ravel__jinja_step(run, 1); at++) {
        char spec[24];
        if (f->at[at] != '%') {
            ravel__jinja_add_value(&b, ravel__jinja_part(run, format, at, at + 1));
            continue;
        }
        size_t n = read_spec(f->at + at + 1, f->bytes - at - 1, spec);
        if (n == SIZE_MAX || !strchr("sdifgeGErxXo%", f->at[at + 1 + n]) || !f->at[at + 1 + n])
            return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a conversion after %% is not known");
        at += 1 + n;
        if (f->at[at] == '%') {
            ravel__jinja_add(&b, "%", 1, 0);
            continue;
        }
        int tuple = args.kind == JINJA_TUPLE;
        if (tuple ? next >= args.as.list->count : next > 0)
            return ravel__jinja_fail(run, RAVEL_E_DATA, "a format has more conversions than values");
        add_converted(&b, spec, f->at[at], tuple ? args.as.list->items[next] : args);
        next++;
    }
    if (!run->failed && args.kind == JINJA_TUPLE && next < args.as.list->count)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "a format has fewer conversions than values");
    return ravel__jinja_built(&b);
}

/* The value that a field "{name}" or "{0}" or "{}" names; members after dots are not known. */
static jinja_value field(jinja_run *run, const char *name, size_t bytes, int32_t *next, const jinja_args *args) {
    if (bytes == 0 || (*name >= '0' && *name <= '9')) {
        int32_t place = bytes ? (int32_t)strtol(name, NULL, 10) : (*next)++;
        if (place >= 0 && place < args->count) return args->items[place];
    }
    for (int32_t i = 0; i < args->named; i++)
        if (strlen(args->names[i]) == bytes && memcmp(args->names[i], name, bytes) == 0) return args->named_items[i];
    return ravel__jinja_fail(run, RAVEL_E_DATA, "format has no value for the field {%.*s}",
                             (int)(bytes < 40 ? bytes : 40), name);
}

jinja_value ravel__jinja_str_format(jinja_run *run, jinja_value format, const jinja_args *args) {
    const jinja_string *f = format.as.string;
    jinja_builder b = {.run = run};
    int32_t next = 0;
    for (size_t at = 0; at < f->bytes && ravel__jinja_step(run, 1); at++) {
        char c = f->at[at], spec[24] = "";
        if ((c == '{' || c == '}') && at + 1 < f->bytes && f->at[at + 1] == c)
            at++;
        else if (c == '{') {
            const char *end = memchr(f->at + at, '}', f->bytes - at);
            if (!end) return ravel__jinja_fail(run, RAVEL_E_DATA, "a format's { has no }");
            size_t from = at + 1, to = (size_t)(end - f->at);
            const char *colon = memchr(f->at + from, ':', to - from);
            size_t name_end = colon ? (size_t)(colon - f->at) : to;
            jinja_value v = field(run, f->at + from, name_end - from, &next, args);
            char letter = v.kind == JINJA_STRING || !colon ? 's' : f->at[to - 1];
            if (colon && read_spec(colon + 1, to - name_end, spec) == SIZE_MAX)
                return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a format's field is not known");
            if (colon && letter >= '0' && letter <= '9') letter = v.kind == JINJA_REAL ? 'g' : 'd';
            if (!strchr("sdfgexX", letter))
                return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a format's field is not known");
            add_converted(&b, spec, letter, v);
            at = to;
            continue;
        }
        ravel__jinja_add_value(&b, ravel__jinja_part(run, format, at, at + 1));
    }
    return ravel__jinja_built(&b);
}
