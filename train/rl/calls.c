#include "train/rl/calls.h"

#include "base/assert.h"
#include "base/memory.h"
#include "train/kernels/host.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";
static const char function_tag[] = "<function=", parameter_tag[] = "<parameter=", parameter_end[] = "</parameter>";

void train_calls_free(train_calls *c) {
    train_out_free(&c->text);
    train_out_free(&c->parts);
    ravel__release(NULL, c->all, (size_t)c->room * sizeof *c->all);
    *c = (train_calls){0};
}

train_calls_form train_calls_form_of(train_text *text) {
    static const char talk[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"tool_calls\": [{\"id\": \"ravel0001\", \"type\": \"function\", \"function\": {\"name\": "
        "\"ravelled\", \"arguments\": {\"a\": 1}}}]}, {\"role\": \"tool\", \"tool_call_id\": "
        "\"ravel0001\", \"name\": \"ravelled\", \"content\": \"1\"}]}";
    const char *out = NULL;
    size_t bytes = 0;
    if (!train_text_has_format(text) || train_text_render(text, talk, sizeof talk - 1, &out, &bytes, NULL))
        return TRAIN_CALLS_NONE;
    const char *name = strstr(out, "ravelled"), *tag = strstr(out, open_tag), *member = strstr(out, "\"name\"");
    if (!name) return TRAIN_CALLS_NONE;
    return tag && tag < name ? TRAIN_CALLS_TAGGED : member && member < name ? TRAIN_CALLS_BARE : TRAIN_CALLS_NONE;
}

int train_calls_flat(train_text *text) {
    static const char talk[2][100] = {"{\"messages\": [{\"role\": \"user\", \"content\": \"ravelled\"}]}",
                                      "{\"messages\": [{\"role\": \"user\", \"content\": "
                                      "[{\"type\": \"text\", \"text\": \"ravelled\"}]}]}"};
    const char *out;
    size_t bytes;
    train_out plain = {0};
    if (!train_text_has_format(text) || train_text_render(text, talk[0], strlen(talk[0]), &out, &bytes, NULL)) return 0;
    train_out_put(&plain, out, bytes);
    int same = !plain.failed && !train_text_render(text, talk[1], strlen(talk[1]), &out, &bytes, NULL) &&
               bytes == plain.used && memcmp(out, plain.data, bytes) == 0;
    train_out_free(&plain);
    return !same;
}

/* ---- spans of text -------------------------------------------------------------------------------------- */

typedef struct span {
    const char *at;
    size_t bytes;
} span;

static span trimmed(span x) {
    while (x.bytes && isspace((unsigned char)x.at[x.bytes - 1])) x.bytes--;
    while (x.bytes && isspace((unsigned char)*x.at)) x.at++, x.bytes--;
    return x;
}

static const char *find(span x, const char *word) {
    return x.bytes ? memmem(x.at, x.bytes, word, strlen(word)) : NULL;
}

/* What is before `word`; *x begins after it then. 0: it is not there. */
static int take_until(span *x, const char *word, span *before) {
    const char *found = find(*x, word), *end = x->at + x->bytes;
    if (!found) return 0;
    *before = (span){x->at, (size_t)(found - x->at)};
    x->at = found + strlen(word);
    x->bytes = (size_t)(end - x->at);
    return 1;
}

/* The object or list that x begins with; 0: it is not whole. */
static size_t value_bytes(span x) {
    int64_t depth = 0;
    int quoted = 0;
    for (size_t i = 0; i < x.bytes; i++) {
        char c = x.at[i];
        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\') i++;
        if (quoted) continue;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth <= 0) return c == '}' || c == ']' ? i + 1 : 0;
    }
    return 0;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static train_call *begin_call(train_calls *c, const char *name, size_t bytes) {
    train_call *all = train__grown(NULL, c->all, &c->room, c->count, c->count + 1, sizeof *all);
    c->text.failed |= !all;
    if (!all) return NULL;
    c->all = all;
    all[c->count] = (train_call){.name = c->parts.used, .name_bytes = bytes};
    train_out_put(&c->parts, name, bytes);
    all[c->count].arguments = c->parts.used;
    return &all[c->count];
}

static void end_call(train_calls *c) {
    train_call *call = &c->all[c->count];
    call->arguments_bytes = c->parts.used - call->arguments;
    c->text.failed |= c->parts.failed;
    c->count++;
}

/* {"name", "arguments" or "parameters"}; 0: it is something else. */
static int add_object(train_calls *c, const ravel__json *doc, const ravel__json_node *n) {
    const ravel__json_node *name = ravel__json_get(doc, n, "name"), *arguments = ravel__json_get(doc, n, "arguments");
    if (!arguments) arguments = ravel__json_get(doc, n, "parameters");
    if (!name || name->kind != RAVEL__JSON_STRING || name->bytes == 0) return 0;
    if (!arguments || arguments->kind != RAVEL__JSON_OBJECT) return 0;
    if (!begin_call(c, name->as.string, name->bytes)) return 1;
    train_out_json(&c->parts, doc, arguments);
    end_call(c);
    return 1;
}

/* JSON values with blanks, commas or semicolons between them, all of them calls or lists of calls. */
static int take_values(train_calls *c, span x) {
    ravel__json *doc = NULL;
    size_t bytes;
    int good = 1, any = 0;
    while (good && (x = trimmed(x)).bytes) {
        if (any && (*x.at == ';' || *x.at == ',')) {
            x.at++, x.bytes--;
            continue;
        }
        bytes = value_bytes(x);
        good = bytes && ravel__json_parse(x.at, bytes, NULL, &doc, NULL) == RAVEL_OK;
        if (!good) break;
        const ravel__json_node *root = ravel__json_root(doc), *n = root;
        int list = root->kind == RAVEL__JSON_ARRAY;
        if (list) n = ravel__json_first(doc, root);
        for (good = n != NULL; good && n; n = list ? ravel__json_next(doc, n) : NULL) good = add_object(c, doc, n);
        x.at += bytes, x.bytes -= bytes;
        any = 1;
    }
    ravel__json_free(doc);
    return good && any;
}

/* The type that the tool's schema gives the parameter; NULL: none. */
static const ravel__json_node *type_of(const train_calls_options *o, span function, span parameter) {
    for (const ravel__json_node *n = o->tools ? ravel__json_first(o->doc, o->tools) : NULL; n;
         n = ravel__json_next(o->doc, n)) {
        const ravel__json_node *f = ravel__json_get(o->doc, n, "function"), *name = ravel__json_get(o->doc, f, "name");
        if (!name || name->kind != RAVEL__JSON_STRING || name->bytes != function.bytes ||
            memcmp(name->as.string, function.at, function.bytes) != 0)
            continue;
        const ravel__json_node *all = ravel__json_path(o->doc, f, "parameters.properties");
        for (const ravel__json_node *p = all ? ravel__json_first(o->doc, all) : NULL; p;
             p = ravel__json_next(o->doc, p))
            if (p->key && strlen(p->key) == parameter.bytes && memcmp(p->key, parameter.at, parameter.bytes) == 0)
                return ravel__json_get(o->doc, p, "type");
    }
    return NULL;
}

/* A value that is written without quotes: JSON if the schema says so, and it is; else text. */
static void put_value(train_out *out, span value, const ravel__json_node *type) {
    ravel__json *doc = NULL;
    if (value.bytes && *value.at == '\n') value.at++, value.bytes--;
    if (value.bytes && value.at[value.bytes - 1] == '\n') value.bytes--;
    if (type && !ravel__json_is(type, "string") &&
        ravel__json_parse(value.at, value.bytes, NULL, &doc, NULL) == RAVEL_OK)
        train_out_json(out, doc, ravel__json_root(doc));
    else
        train_out_quote(out, value.at, value.bytes);
    ravel__json_free(doc);
}

/* <function=NAME> <parameter=KEY> value </parameter> ... </function> */
static int take_function(train_calls *c, const train_calls_options *o, span x) {
    span name, key, value, blank;
    x.at += sizeof function_tag - 1, x.bytes -= sizeof function_tag - 1;
    if (!take_until(&x, ">", &name) || !name.bytes || !begin_call(c, name.at, name.bytes)) return 0;
    train_out_puts(&c->parts, "{");
    for (int i = 0; take_until(&x, parameter_tag, &blank); i++) {
        if (!take_until(&x, ">", &key) || !take_until(&x, parameter_end, &value)) return 0;
        if (i) train_out_puts(&c->parts, ", ");
        train_out_quote(&c->parts, key.at, key.bytes);
        train_out_puts(&c->parts, ": ");
        put_value(&c->parts, value, type_of(o, name, key));
    }
    train_out_puts(&c->parts, "}");
    ravel__json *doc = NULL; /* values may be too deep together */
    size_t from = c->all[c->count].arguments;
    int good = !c->parts.failed && !ravel__json_parse(c->parts.data + from, c->parts.used - from, NULL, &doc, NULL);
    ravel__json_free(doc);
    if (good) end_call(c);
    return good;
}

/* 0: it is no call, and nothing was added. */
static int take_calls(train_calls *c, const train_calls_options *o, span x) {
    int64_t count = c->count;
    size_t used = c->parts.used;
    x = trimmed(x);
    int function = x.bytes >= sizeof function_tag - 1 && memcmp(x.at, function_tag, sizeof function_tag - 1) == 0;
    int good = function ? take_function(c, o, x) : take_values(c, x);
    if (!good) c->parts.used = used;
    c->count = good ? c->count < o->most ? c->count : o->most : count;
    return good;
}

/* ---- as it grows ---------------------------------------------------------------------------------------- */

static void show(train_calls *c, const char *text, size_t bytes) {
    train_out_put(&c->text, text, bytes);
    c->at += bytes;
}

/* Bytes that can be shown: without the beginning of a tag at the end, and blanks before it. */
static size_t safe_bytes(span x, int tags) {
    size_t n = x.bytes;
    for (size_t k = sizeof open_tag - 2; tags && k; k--)
        if (k <= n && memcmp(x.at + n - k, open_tag, k) == 0) {
            n -= k;
            break;
        }
    while (n && isspace((unsigned char)x.at[n - 1])) n--;
    return n;
}

static void read_tagged(train_calls *c, const train_calls_options *o, const char *text, size_t bytes, int ended) {
    while (c->at < bytes) {
        span all = {text + c->at, bytes - c->at}, rest = all, before, inner;
        if (!take_until(&rest, open_tag, &before)) {
            show(c, all.at, ended && !c->count ? all.bytes : safe_bytes(all, !ended));
            if (ended) c->at = bytes;
            return;
        }
        show(c, before.at, safe_bytes(before, 0));
        if (!take_until(&rest, close_tag, &inner)) {
            if (!ended) return;
            inner = rest;
            rest.at += rest.bytes;
        }
        if (take_calls(c, o, inner))
            c->at = (size_t)(rest.at - text);
        else
            show(c, text + c->at, (size_t)(rest.at - text) - c->at);
    }
}

static void read_bare(train_calls *c, const train_calls_options *o, const char *text, size_t bytes, int ended) {
    span x = trimmed((span){text, bytes});
    int waits = c->at == 0 && (!x.bytes || *x.at == '{' || *x.at == '[');
    if (waits && !ended) return;
    if (waits && x.bytes && take_calls(c, o, x))
        c->at = bytes;
    else
        show(c, text + c->at, bytes - c->at);
}

void train_calls_read(train_calls *c, const train_calls_options *o, const char *text, size_t bytes, int ended) {
    RAVEL_ASSERT(c->at <= bytes);
    if (o->form == TRAIN_CALLS_TAGGED)
        read_tagged(c, o, text, bytes, ended);
    else
        read_bare(c, o, text, bytes, ended);
}

/* ---- conversations -------------------------------------------------------------------------------------- */

/* The text of parts that are all texts, by lines; 0: they are not. */
static int put_flat(train_out *o, const ravel__json *doc, const ravel__json_node *list) {
    train_out text = {0};
    int good = 1;
    for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n)) {
        const ravel__json_node *part = n->kind == RAVEL__JSON_STRING ? n : ravel__json_get(doc, n, "text");
        good = part && part->kind == RAVEL__JSON_STRING;
        if (!good) break;
        if (text.used) train_out_puts(&text, "\n");
        train_out_put(&text, part->as.string, part->bytes);
    }
    if (good) train_out_quote(o, text.data ? text.data : "", text.used);
    o->failed |= text.failed;
    train_out_free(&text);
    return good;
}

/* Text that is JSON becomes that. */
static void put_inner(train_out *o, const ravel__json *doc, const ravel__json_node *n) {
    ravel__json *inner = NULL;
    int good = n->kind == RAVEL__JSON_STRING && !ravel__json_parse(n->as.string, n->bytes, NULL, &inner, NULL);
    train_out_json(o, good ? inner : doc, good ? ravel__json_root(inner) : n);
    ravel__json_free(inner);
}

/* A node on the way to the arguments of calls; `path` is what is left of it. */
static int put_parsed(train_out *o, const ravel__json *doc, const ravel__json_node *n, const char *const *path,
                      int flat) {
    int list = n->kind == RAVEL__JSON_ARRAY, good = 1;
    if (!*path || n->kind < RAVEL__JSON_ARRAY) {
        if (*path)
            train_out_json(o, doc, n);
        else
            put_inner(o, doc, n);
        return 1;
    }
    int message = flat && !list && strcmp(*path, "tool_calls") == 0;
    const ravel__json_node *first = ravel__json_first(doc, n);
    train_out_puts(o, list ? "[" : "{");
    for (const ravel__json_node *x = first; x; x = ravel__json_next(doc, x)) {
        if (x != first) train_out_puts(o, ",");
        if (!list) train_out_quote(o, x->key, strlen(x->key));
        if (!list) train_out_puts(o, ":");
        if (list || strcmp(x->key, *path) == 0)
            good &= put_parsed(o, doc, x, list ? path : path + 1, flat);
        else if (message && x->kind == RAVEL__JSON_ARRAY && strcmp(x->key, "content") == 0)
            good &= put_flat(o, doc, x);
        else
            train_out_json(o, doc, x);
    }
    train_out_puts(o, list ? "]" : "}");
    return good;
}

int train_calls_conversation(train_out *o, const ravel__json *doc, const ravel__json_node *root, int flat) {
    static const char *const path[] = {"messages", "tool_calls", "function", "arguments", NULL};
    return put_parsed(o, doc, root, path, flat);
}
