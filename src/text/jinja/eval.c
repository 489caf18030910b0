/* Expressions to values. */
#include "text/jinja/jinja.h"

#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- names ---------------------------------------------------------------------------------------------- */

static const jinja_value *look_up(const jinja_scope *scope, const char *name) {
    for (; scope; scope = scope->parent)
        for (int32_t i = scope->count; i-- > 0;)
            if (scope->variables[i].name == name) return &scope->variables[i].value;
    return NULL;
}

static jinja_value eval_name(jinja_run *run, const jinja_node *node) {
    const jinja_value *found = look_up(run->scope, node->name);
    if (found) return *found;
    const jinja_row *global = ravel__jinja_global(node->name);
    return global ? (jinja_value){.kind = JINJA_GLOBAL, .as.global = global} : ravel__jinja_undefined(node->name);
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

static jinja_value too_large(jinja_run *run) {
    return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a whole number is beyond 2^63");
}

static jinja_value no_operator(jinja_run *run, const char *name, jinja_value a, jinja_value b) {
    return ravel__jinja_fail(run, RAVEL_E_DATA, "there is no %s %s %s", ravel__jinja_type(a), name,
                             ravel__jinja_type(b));
}

static jinja_value power(jinja_run *run, jinja_value a, jinja_value b) {
    if (a.kind == JINJA_REAL || b.kind == JINJA_REAL || b.as.integer < 0)
        return ravel__jinja_real(pow(ravel__jinja_as_real(a), ravel__jinja_as_real(b)));
    int64_t x = 1;
    for (int64_t i = 0; i < b.as.integer; i++) {
        if (i > 64 && a.as.integer >= -1 && a.as.integer <= 1) break; /* 0, 1 and -1 repeat */
        if (__builtin_mul_overflow(x, a.as.integer, &x)) return too_large(run);
    }
    return ravel__jinja_int(a.as.integer == -1 ? (b.as.integer % 2 ? -1 : 1) : x);
}

/* Python rounds quotients down, so that the rest has the divisor's sign. */
static jinja_value divide(jinja_run *run, const char *name, jinja_value a, jinja_value b) {
    double x = ravel__jinja_as_real(a), y = ravel__jinja_as_real(b);
    if (y == 0) return ravel__jinja_fail(run, RAVEL_E_DATA, "a division by zero");
    if (strcmp(name, "/") == 0) return ravel__jinja_real(x / y);
    int rest = *name == '%';
    if (a.kind == JINJA_REAL || b.kind == JINJA_REAL)
        return ravel__jinja_real(rest ? x - floor(x / y) * y : floor(x / y));
    int64_t n = a.as.integer, d = b.as.integer;
    if (d == -1) return n == INT64_MIN && !rest ? too_large(run) : ravel__jinja_int(rest ? 0 : -n);
    int64_t q = n / d, r = n % d;
    if (r && (r < 0) != (d < 0)) q--, r += d;
    return ravel__jinja_int(rest ? r : q);
}

static jinja_value add_numbers(jinja_run *run, char name, jinja_value a, jinja_value b) {
    int64_t x;
    if (a.kind == JINJA_REAL || b.kind == JINJA_REAL) {
        double p = ravel__jinja_as_real(a), q = ravel__jinja_as_real(b);
        return ravel__jinja_real(name == '+' ? p + q : name == '-' ? p - q : p * q);
    }
    int over = name == '+'   ? __builtin_add_overflow(a.as.integer, b.as.integer, &x)
               : name == '-' ? __builtin_sub_overflow(a.as.integer, b.as.integer, &x)
                             : __builtin_mul_overflow(a.as.integer, b.as.integer, &x);
    return over ? too_large(run) : ravel__jinja_int(x);
}

/* ---- texts and lists ------------------------------------------------------------------------------------ */

/* `escapes`: + escapes what is joined to a text that is marked as safe, ~ does not. */
static jinja_value join_two(jinja_run *run, jinja_value a, jinja_value b, int escapes) {
    jinja_builder text = {.run = run};
    int markup = escapes && ((a.kind == JINJA_STRING && a.lazy) || (b.kind == JINJA_STRING && b.lazy));
    const jinja_row *escape = markup ? ravel__jinja_filter("escape") : NULL; /* what is not marked as safe */
    ravel__jinja_add_value(&text, escape ? escape->call(run, a, &(jinja_args){0}) : a);
    ravel__jinja_add_value(&text, escape ? escape->call(run, b, &(jinja_args){0}) : b);
    jinja_value joined = ravel__jinja_built(&text);
    joined.lazy = (uint8_t)markup;
    return joined;
}

static jinja_value join_lists(jinja_run *run, jinja_value a, jinja_value b) {
    jinja_value out = ravel__jinja_new_list(run, a.kind, 0);
    for (int32_t i = 0; i < a.as.list->count && ravel__jinja_step(run, 1); i++)
        ravel__jinja_push(run, out, a.as.list->items[i]);
    for (int32_t i = 0; i < b.as.list->count && ravel__jinja_step(run, 1); i++)
        ravel__jinja_push(run, out, b.as.list->items[i]);
    return out;
}

static jinja_value repeat(jinja_run *run, jinja_value v, int64_t times) {
    jinja_builder text = {.run = run};
    jinja_value list = v.kind == JINJA_STRING ? v : ravel__jinja_new_list(run, v.kind, 0);
    for (int64_t i = 0; i < times && ravel__jinja_step(run, 1); i++) {
        if (v.kind == JINJA_STRING)
            ravel__jinja_add_value(&text, v);
        else
            for (int32_t k = 0; k < v.as.list->count && ravel__jinja_step(run, 1); k++)
                ravel__jinja_push(run, list, v.as.list->items[k]);
    }
    return v.kind == JINJA_STRING ? ravel__jinja_built(&text) : list;
}

static int is_sequence(jinja_value v) {
    return v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static jinja_value binary(jinja_run *run, const char *name, jinja_value a, jinja_value b) {
    if (*name == '~') return join_two(run, a, b, 0);
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED)
        return ravel__jinja_fail(run, RAVEL_E_DATA, "'%.60s' is undefined, and has no %s",
                                 a.kind == JINJA_UNDEFINED ? a.as.name : b.as.name, name);
    if (*name == '%' && a.kind == JINJA_STRING) return ravel__jinja_percent(run, a, b);
    if (ravel__jinja_is_number(a) && ravel__jinja_is_number(b)) {
        if (strcmp(name, "**") == 0) return power(run, a, b);
        return *name == '/' || *name == '%' ? divide(run, name, a, b) : add_numbers(run, *name, a, b);
    }
    if (*name == '+' && a.kind == b.kind && a.kind == JINJA_STRING) return join_two(run, a, b, 1);
    if (*name == '+' && a.kind == b.kind && is_sequence(a)) return join_lists(run, a, b);
    if (strcmp(name, "*") == 0 && is_sequence(a) && b.kind == JINJA_INT) return repeat(run, a, b.as.integer);
    if (strcmp(name, "*") == 0 && is_sequence(b) && a.kind == JINJA_INT) return repeat(run, b, a.as.integer);
    return no_operator(run, name, a, b);
}

static jinja_value eval_unary(jinja_run *run, const jinja_node *node) {
    jinja_value v = ravel__jinja_eval(run, node->a);
    if (run->failed) return v;
    if (!ravel__jinja_is_number(v))
        return ravel__jinja_fail(run, RAVEL_E_DATA, "%s needs a number, not a %s", node->name, ravel__jinja_type(v));
    if (*node->name == '+') return v;
    return v.kind == JINJA_REAL ? ravel__jinja_real(-v.as.real) : add_numbers(run, '-', ravel__jinja_int(0), v);
}

/* ---- comparisons ---------------------------------------------------------------------------------------- */

static int holds(jinja_run *run, const char *name, jinja_value a, jinja_value b) {
    if (strcmp(name, "in") == 0) return ravel__jinja_contains(run, b, a);
    if (*name == 'n') return !ravel__jinja_contains(run, b, a);
    if (strcmp(name, "==") == 0) return ravel__jinja_equal(run, a, b);
    if (*name == '!') return !ravel__jinja_equal(run, a, b);
    if (ravel__jinja_is_number(a) && ravel__jinja_is_number(b) &&
        (isnan(ravel__jinja_as_real(a)) || isnan(ravel__jinja_as_real(b))))
        return 0;
    int order = ravel__jinja_order(run, a, b);
    int equal = name[1] == '=' && order == 0;
    return equal || (*name == '<' ? order < 0 : order > 0);
}

static jinja_value eval_compare(jinja_run *run, const jinja_node *node) {
    jinja_value left = ravel__jinja_eval(run, node->a);
    for (const jinja_node *o = node->b; o; o = o->next) {
        jinja_value right = ravel__jinja_eval(run, o->a);
        if (run->failed || !holds(run, o->name, left, right)) return ravel__jinja_bool(0);
        left = right;
    }
    return ravel__jinja_bool(1);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static void push_named(jinja_run *run, jinja_args *args, const char *name, jinja_value value, int32_t *room) {
    if (args->named == *room) {
        int32_t more = 2 * *room + 4;
        const char **names = ravel__jinja_take(run, (size_t)more, sizeof *names);
        jinja_value *items = ravel__jinja_take(run, (size_t)more, sizeof *items);
        if (!names || !items) return;
        for (int32_t i = 0; i < args->named; i++) names[i] = args->names[i], items[i] = args->named_items[i];
        args->names = names;
        args->named_items = items;
        *room = more;
    }
    args->names[args->named] = name;
    args->named_items[args->named++] = value;
}

static const char *name_of(jinja_run *run, jinja_value key) {
    if (key.kind != JINJA_STRING) return (void)ravel__jinja_fail(run, RAVEL_E_DATA, "arguments' names are texts"), "";
    char *name = ravel__jinja_take(run, (size_t)key.as.string->bytes + 1, 1);
    return name ? memcpy(name, key.as.string->at, key.as.string->bytes) : "";
}

static void eval_arguments(jinja_run *run, const jinja_node *node, jinja_args *args) {
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    int32_t room = 0;
    memset(args, 0, sizeof *args);
    for (; node && !run->failed; node = node->next) {
        jinja_value v = ravel__jinja_eval(run, node->a);
        if (run->failed) break;
        if (node->flag == 2 && v.kind == JINJA_DICT) {
            for (int32_t i = 0; i < v.as.dict->count && !run->failed; i++)
                push_named(run, args, name_of(run, v.as.dict->keys[i]), v.as.dict->values[i], &room);
        } else if (node->flag == 1) {
            const jinja_list *items = ravel__jinja_items(run, v);
            for (int32_t i = 0; i < items->count && !run->failed; i++) ravel__jinja_push(run, list, items->items[i]);
        } else if (node->name) {
            push_named(run, args, node->name, v, &room);
        } else {
            ravel__jinja_push(run, list, v);
        }
    }
    if (run->failed) return;
    args->items = list.as.list->items;
    args->count = list.as.list->count;
}

jinja_value ravel__jinja_invoke(jinja_run *run, jinja_value callee, const jinja_args *args) {
    switch (callee.kind) {
    case JINJA_MACRO: return ravel__jinja_call_macro(run, callee.as.macro, args);
    case JINJA_METHOD: return callee.as.method->row->call(run, callee.as.method->self, args);
    case JINJA_GLOBAL: return callee.as.global->call(run, ravel__jinja_none(), args);
    case JINJA_LOOP: return ravel__jinja_call_loop(run, callee.as.loop, ravel__jinja_arg(args, 0, "iterable"));
    case JINJA_UNDEFINED:
        return ravel__jinja_fail(run, RAVEL_E_DATA, "'%.60s' is undefined, and cannot be called", callee.as.name);
    default: return ravel__jinja_fail(run, RAVEL_E_DATA, "a %s cannot be called", ravel__jinja_type(callee));
    }
}

static jinja_value eval_call(jinja_run *run, const jinja_node *node) {
    jinja_args args;
    jinja_value callee = ravel__jinja_eval(run, node->a);
    eval_arguments(run, node->b, &args);
    return run->failed ? ravel__jinja_undefined("") : ravel__jinja_invoke(run, callee, &args);
}

static jinja_value eval_filter(jinja_run *run, const jinja_node *node) {
    jinja_args args;
    if (!node->row)
        return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "there is no %s %.60s",
                                 node->kind == JINJA_TEST ? "test" : "filter", node->name);
    jinja_value v = ravel__jinja_eval(run, node->a);
    eval_arguments(run, node->b, &args);
    return run->failed ? v : node->row->call(run, v, &args);
}

static jinja_value eval_test(jinja_run *run, const jinja_node *node) {
    jinja_value v = eval_filter(run, node); /* a test is called as a filter is */
    return run->failed ? v : ravel__jinja_bool(ravel__jinja_true(v) != (node->flag != 0));
}

/* ---- all of them ---------------------------------------------------------------------------------------- */

static jinja_value eval_list(jinja_run *run, const jinja_node *node) {
    jinja_value list = ravel__jinja_new_list(run, node->kind == JINJA_MAKE_LIST ? JINJA_LIST : JINJA_TUPLE, 0);
    for (const jinja_node *n = node->a; n && !run->failed; n = n->next)
        ravel__jinja_push(run, list, ravel__jinja_eval(run, n));
    return list;
}

static jinja_value eval_dict(jinja_run *run, const jinja_node *node) {
    jinja_value dict = ravel__jinja_new_dict(run);
    for (const jinja_node *n = node->a; n && !run->failed; n = n->next) {
        jinja_value key = ravel__jinja_eval(run, n->a);
        ravel__jinja_put(run, dict, key, ravel__jinja_eval(run, n->b));
    }
    return dict;
}

static jinja_value eval_slice(jinja_run *run, const jinja_node *node) {
    const jinja_node *bounds[3] = {node->b, node->c, node->d};
    jinja_value v = ravel__jinja_eval(run, node->a), at[3];
    for (int i = 0; i < 3; i++) at[i] = bounds[i] ? ravel__jinja_eval(run, bounds[i]) : ravel__jinja_none();
    return run->failed ? v : ravel__jinja_slice(run, v, at[0], at[1], at[2]);
}

static jinja_value eval_item(jinja_run *run, const jinja_node *node) {
    jinja_value v = ravel__jinja_eval(run, node->a), key = ravel__jinja_eval(run, node->b);
    return run->failed ? v : ravel__jinja_get_item(run, v, key);
}

static jinja_value eval_attribute(jinja_run *run, const jinja_node *node) {
    jinja_value v = ravel__jinja_eval(run, node->a);
    return run->failed ? v : ravel__jinja_get_attribute(run, v, node->name);
}

static jinja_value eval_binary(jinja_run *run, const jinja_node *node) {
    jinja_value a = ravel__jinja_eval(run, node->a), b = ravel__jinja_eval(run, node->b);
    return run->failed ? a : binary(run, node->name, a, b);
}

static jinja_value eval_here(jinja_run *run, const jinja_node *node) {
    jinja_value v;
    switch (node->kind) {
    case JINJA_CONST: return node->constant;
    case JINJA_NAME: return eval_name(run, node);
    case JINJA_MAKE_LIST:
    case JINJA_MAKE_TUPLE: return eval_list(run, node);
    case JINJA_MAKE_DICT: return eval_dict(run, node);
    case JINJA_UNARY: return eval_unary(run, node);
    case JINJA_BINARY: return eval_binary(run, node);
    case JINJA_COMPARE: return eval_compare(run, node);
    case JINJA_AND:
        v = ravel__jinja_eval(run, node->a);
        return ravel__jinja_true(v) ? ravel__jinja_eval(run, node->b) : v;
    case JINJA_OR:
        v = ravel__jinja_eval(run, node->a);
        return ravel__jinja_true(v) ? v : ravel__jinja_eval(run, node->b);
    case JINJA_NOT: return ravel__jinja_bool(!ravel__jinja_true(ravel__jinja_eval(run, node->a)));
    case JINJA_CHOOSE:
        if (ravel__jinja_true(ravel__jinja_eval(run, node->a))) return ravel__jinja_eval(run, node->b);
        return node->c ? ravel__jinja_eval(run, node->c) : ravel__jinja_undefined("a choice without else");
    case JINJA_ATTRIBUTE: return eval_attribute(run, node);
    case JINJA_ITEM: return eval_item(run, node);
    case JINJA_SLICE: return eval_slice(run, node);
    case JINJA_CALL: return eval_call(run, node);
    case JINJA_FILTER: return eval_filter(run, node);
    case JINJA_TEST: return eval_test(run, node);
    default: return ravel__jinja_fail(run, RAVEL_E_INTERNAL, "an expression of an unknown kind");
    }
}

jinja_value ravel__jinja_eval(jinja_run *run, const jinja_node *node) {
    if (!node) { /* what an open filter is applied to: set by the statement */
        const jinja_value *open = look_up(run->scope, NULL);
        return open ? *open : ravel__jinja_undefined("");
    }
    if (!ravel__jinja_step(run, 1)) return ravel__jinja_undefined("");
    if (run->depth >= JINJA_NESTING * 4)
        return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "macros or expressions are nested too deeply");
    run->line = node->line;
    run->depth++;
    jinja_value v = eval_here(run, node);
    run->depth--;
    return v;
}
