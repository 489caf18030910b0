/* Tokens to a tree: statements by a table of words, expressions by one function per level of binding, weakest first.
 *
 *     choose   a if b else c          compare  == != < <= > >= in, not in      product  * / // %
 *     or, and, not                    sum      + -                             power    **
 *                                     join     ~                               unary    - +, then .name [item] (call) |filter, is
 * test */
#include "text/jinja/jinja.h"

#include "base/assert.h"

#include <string.h>

typedef struct parser {
    jinja_template *t;
    const jinja_token *at;
    int depth;
    ravel_status failed;
    ravel_error *err;
} parser;

/* ---- tokens --------------------------------------------------------------------------------------------- */

static jinja_node *fail(parser *p, ravel_status status, const char *what, const char *name) {
    if (!p->failed)
        p->failed = ravel_error_set(p->err, status, "chat template, line %d: %s%.60s", p->at->line, what, name);
    return NULL;
}

static int is_operator(const parser *p, const char *text) {
    return p->at->kind == JINJA_T_OPERATOR && strcmp(p->at->text, text) == 0;
}

static int is_word(const parser *p, const char *text) {
    return p->at->kind == JINJA_T_NAME && strcmp(p->at->text, text) == 0;
}

static int take_operator(parser *p, const char *text) {
    return is_operator(p, text) ? p->at++, 1 : 0;
}

static int take_word(parser *p, const char *text) {
    return is_word(p, text) ? p->at++, 1 : 0;
}

static void need_operator(parser *p, const char *text) {
    if (!take_operator(p, text)) (void)fail(p, RAVEL_E_DATA, "expected ", text);
}

static void need_word(parser *p, const char *text) {
    if (!take_word(p, text)) (void)fail(p, RAVEL_E_DATA, "expected ", text);
}

static const char *need_name(parser *p) {
    if (p->at->kind == JINJA_T_NAME) return (p->at++)->text;
    (void)fail(p, RAVEL_E_DATA, "expected a name", "");
    return "";
}

static void need_end(parser *p) {
    if (p->at->kind == JINJA_T_BLOCK_END)
        p->at++;
    else
        (void)fail(p, RAVEL_E_DATA, "expected the end of the tag", "");
}

static jinja_node *make(parser *p, int kind, jinja_node *a, jinja_node *b) {
    jinja_node *node = p->failed ? NULL : ravel__arena_push(&p->t->arena, 1, sizeof *node);
    if (!node) {
        if (!p->failed) p->failed = ravel__no_memory(p->err, sizeof *node, "a chat template");
        return NULL;
    }
    memset(node, 0, sizeof *node);
    node->kind = kind;
    node->line = p->at->line;
    node->a = a;
    node->b = b;
    return node;
}

static jinja_node *make_constant(parser *p, jinja_value value) {
    jinja_node *node = make(p, JINJA_CONST, NULL, NULL);
    if (node) node->constant = value;
    return node;
}

/* Every recursion passes here, so that a hostile template cannot use up the stack. */
static int deeper(parser *p) {
    if (++p->depth <= JINJA_NESTING) return !p->failed;
    (void)fail(p, RAVEL_E_UNSUPPORTED, "nested too deeply", "");
    return 0;
}

/* ---- primary expressions -------------------------------------------------------------------------------- */

static jinja_node *parse_expression(parser *p);
static jinja_node *parse_unary(parser *p, int with_filters);

/* Items with commas between, up to `end`. */
static jinja_node *parse_chain(parser *p, const char *end, jinja_node *(*parse_item)(parser *p)) {
    jinja_node *first = NULL, **next = &first;
    while (!p->failed && !is_operator(p, end)) {
        *next = parse_item(p);
        if (!*next) return NULL;
        next = &(*next)->next;
        if (!take_operator(p, ",")) break;
    }
    need_operator(p, end);
    return first;
}

static jinja_node *parse_parentheses(parser *p) {
    if (take_operator(p, ")")) return make(p, JINJA_MAKE_TUPLE, NULL, NULL);
    jinja_node *first = parse_expression(p);
    if (!first || !take_operator(p, ",")) {
        need_operator(p, ")");
        return first;
    }
    first->next = parse_chain(p, ")", parse_expression);
    return make(p, JINJA_MAKE_TUPLE, first, NULL);
}

static jinja_node *parse_pair(parser *p) {
    jinja_node *key = parse_expression(p);
    need_operator(p, ":");
    return make(p, JINJA_ARGUMENT, key, parse_expression(p));
}

/* Strings one after the other are one. */
static jinja_node *parse_string(parser *p) {
    size_t bytes = 0, used = 0;
    const jinja_token *first = p->at;
    for (; p->at->kind == JINJA_T_STRING; p->at++) bytes += p->at->bytes;
    char *text = ravel__arena_push(&p->t->arena, bytes + 1, 1);
    jinja_string *s = ravel__arena_push(&p->t->arena, 1, sizeof *s);
    if (!text || !s) return p->failed = ravel__no_memory(p->err, bytes, "a chat template"), NULL;
    for (const jinja_token *token = first; token < p->at; token++) {
        memcpy(text + used, token->text, token->bytes);
        used += token->bytes;
    }
    RAVEL_ASSERT(used == bytes);
    *s = (jinja_string){text, NULL, (uint32_t)bytes, -1};
    s->points = ravel__jinja_points(s); /* now, as threads share it */
    return make_constant(p, (jinja_value){.kind = JINJA_STRING, .as.string = s});
}

static jinja_node *parse_name(parser *p) {
    static const struct {
        const char *word;
        uint8_t kind;
        int64_t value;
    } constants[] = {{"true", JINJA_BOOL, 1},  {"True", JINJA_BOOL, 1}, {"false", JINJA_BOOL, 0},
                     {"False", JINJA_BOOL, 0}, {"none", JINJA_NONE, 0}, {"None", JINJA_NONE, 0}};
    const char *name = (p->at++)->text;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (strcmp(constants[i].word, name) == 0)
            return make_constant(p, (jinja_value){.kind = constants[i].kind, .as.integer = constants[i].value});
    jinja_node *node = make(p, JINJA_NAME, NULL, NULL);
    if (node) node->name = name;
    return node;
}

static jinja_node *parse_primary(parser *p) {
    switch (p->at->kind) {
    case JINJA_T_NAME: return parse_name(p);
    case JINJA_T_STRING: return parse_string(p);
    case JINJA_T_INT: return make_constant(p, ravel__jinja_int((p->at++)->integer));
    case JINJA_T_REAL: return make_constant(p, ravel__jinja_real((p->at++)->real));
    default: break;
    }
    if (take_operator(p, "(")) return parse_parentheses(p);
    if (take_operator(p, "[")) return make(p, JINJA_MAKE_LIST, parse_chain(p, "]", parse_expression), NULL);
    if (take_operator(p, "{")) return make(p, JINJA_MAKE_DICT, parse_chain(p, "}", parse_pair), NULL);
    return fail(p, RAVEL_E_DATA, "expected an expression", p->at->kind == JINJA_T_OPERATOR ? p->at->text : "");
}

/* ---- what follows a primary expression ------------------------------------------------------------------ */

/* `name` of a keyword, flag 1 of *items, 2 of **members. */
static jinja_node *parse_argument(parser *p) {
    int flag = take_operator(p, "**") ? 2 : take_operator(p, "*") ? 1 : 0;
    const char *name = NULL;
    if (p->at->kind == JINJA_T_NAME && p->at[1].kind == JINJA_T_OPERATOR && strcmp(p->at[1].text, "=") == 0) {
        name = p->at->text;
        p->at += 2;
    }
    jinja_node *node = make(p, JINJA_ARGUMENT, parse_expression(p), NULL);
    if (node) node->name = name, node->flag = flag;
    return node;
}

/* a: the object; b: the key, or b, c, d: the slice's bounds and step, NULL if left out. */
static jinja_node *parse_subscript(parser *p, jinja_node *object) {
    jinja_node *bounds[3] = {NULL, NULL, NULL};
    int colons = 0;
    while (!p->failed && !is_operator(p, "]")) {
        if (take_operator(p, ":")) {
            if (++colons > 2) return fail(p, RAVEL_E_DATA, "a slice has at most two colons", "");
        } else {
            if (bounds[colons]) return fail(p, RAVEL_E_DATA, "expected ]", "");
            bounds[colons] = parse_expression(p);
        }
    }
    need_operator(p, "]");
    if (!colons && !bounds[0]) return fail(p, RAVEL_E_DATA, "expected a key between [ and ]", "");
    jinja_node *node = make(p, colons ? JINJA_SLICE : JINJA_ITEM, object, bounds[0]);
    if (node) node->c = bounds[1], node->d = bounds[2];
    return node;
}

static jinja_node *parse_attribute(parser *p, jinja_node *object) {
    if (p->at->kind == JINJA_T_INT)
        return make(p, JINJA_ITEM, object, make_constant(p, ravel__jinja_int((p->at++)->integer)));
    jinja_node *node = make(p, JINJA_ATTRIBUTE, object, NULL);
    const char *name = need_name(p);
    if (node) node->name = name;
    return node;
}

static jinja_node *parse_filter(parser *p, jinja_node *value) {
    jinja_node *node = make(p, JINJA_FILTER, value, NULL);
    const char *name = need_name(p);
    if (!node || p->failed) return NULL;
    node->name = name;
    node->row = ravel__jinja_filter(name); /* NULL: an error if it is reached, as in Jinja */
    if (take_operator(p, "(")) node->b = parse_chain(p, ")", parse_argument);
    return node;
}

static int begins_argument(const parser *p) {
    static const char *const no[] = {"else", "or", "and", "if", "is", "in", "not"};
    if (p->at->kind == JINJA_T_NAME) {
        for (size_t i = 0; i < sizeof no / sizeof *no; i++)
            if (is_word(p, no[i])) return 0;
        return 1;
    }
    return p->at->kind == JINJA_T_STRING || p->at->kind == JINJA_T_INT || p->at->kind == JINJA_T_REAL ||
           is_operator(p, "[") || is_operator(p, "{");
}

static jinja_node *parse_postfix(parser *p, jinja_node *node);

/* a: the value; b: arguments; flag: `is not`. */
static jinja_node *parse_test(parser *p, jinja_node *value) {
    int negated = take_word(p, "not");
    jinja_node *node = make(p, JINJA_TEST, value, NULL);
    const char *name = need_name(p);
    if (!node || p->failed) return NULL;
    node->name = name;
    node->flag = negated;
    node->row = ravel__jinja_test(name);
    if (take_operator(p, "("))
        node->b = parse_chain(p, ")", parse_argument);
    else if (begins_argument(p))
        node->b = make(p, JINJA_ARGUMENT, parse_postfix(p, parse_primary(p)), NULL);
    return node;
}

static jinja_node *parse_call(parser *p, jinja_node *callee) {
    jinja_node *node = make(p, JINJA_CALL, callee, NULL);
    if (node) node->b = parse_chain(p, ")", parse_argument);
    return node;
}

static jinja_node *parse_postfix(parser *p, jinja_node *node) {
    while (node && !p->failed) {
        if (take_operator(p, "."))
            node = parse_attribute(p, node);
        else if (take_operator(p, "["))
            node = parse_subscript(p, node);
        else if (take_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static jinja_node *parse_filters(parser *p, jinja_node *node) {
    while (node && !p->failed) {
        if (take_operator(p, "|"))
            node = parse_filter(p, node);
        else if (take_word(p, "is"))
            node = parse_test(p, node);
        else if (take_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* ---- operators ------------------------------------------------------------------------------------------ */

static jinja_node *parse_unary(parser *p, int with_filters) {
    jinja_node *node = NULL;
    if (!deeper(p)) return NULL;
    if (is_operator(p, "-") || is_operator(p, "+")) {
        const char *sign = (p->at++)->text;
        node = make(p, JINJA_UNARY, parse_unary(p, 0), NULL);
        if (node) node->name = sign;
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filters) node = parse_filters(p, node);
    p->depth--;
    return node;
}

/* Operators of a level and of those that bind more, from left to right. */
static jinja_node *parse_level(parser *p, int level) {
    static const char *const levels[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == sizeof levels / sizeof *levels) return parse_unary(p, 1);
    jinja_node *left = parse_level(p, level + 1);
    while (left && !p->failed) {
        const char *const *o = levels[level];
        while (*o && !is_operator(p, *o)) o++;
        if (!*o) break;
        p->at++;
        left = make(p, JINJA_BINARY, left, parse_level(p, level + 1));
        if (left) left->name = *o;
    }
    return left;
}

/* The comparison at hand, or NULL. */
static const char *take_comparison(parser *p) {
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (take_operator(p, operators[i])) return operators[i];
    if (take_word(p, "in")) return "in";
    if (is_word(p, "not") && p->at[1].kind == JINJA_T_NAME && strcmp(p->at[1].text, "in") == 0)
        return p->at += 2, "not in";
    return NULL;
}

/* a: the first value; b: a chain of operands, each with its comparison's name. */
static jinja_node *parse_compare(parser *p) {
    jinja_node *first = parse_level(p, 0), *node = NULL, **next = NULL;
    for (const char *name; first && !p->failed && (name = take_comparison(p));) {
        if (!node) {
            node = make(p, JINJA_COMPARE, first, NULL);
            if (!node) return NULL;
            next = &node->b;
        }
        *next = make(p, JINJA_OPERAND, parse_level(p, 0), NULL);
        if (!*next) return NULL;
        (*next)->name = name;
        next = &(*next)->next;
    }
    return node ? node : first;
}

static jinja_node *parse_not(parser *p) {
    if (!take_word(p, "not")) return parse_compare(p);
    if (!deeper(p)) return NULL;
    jinja_node *node = make(p, JINJA_NOT, parse_not(p), NULL);
    p->depth--;
    return node;
}

static jinja_node *parse_and(parser *p) {
    jinja_node *left = parse_not(p);
    while (left && take_word(p, "and")) left = make(p, JINJA_AND, left, parse_not(p));
    return left;
}

static jinja_node *parse_or(parser *p) {
    jinja_node *left = parse_and(p);
    while (left && take_word(p, "or")) left = make(p, JINJA_OR, left, parse_and(p));
    return left;
}

/* a: the condition; b: the value if it holds; c: else, or NULL. */
static jinja_node *parse_expression(parser *p) {
    if (!deeper(p)) return NULL;
    jinja_node *value = parse_or(p);
    while (value && take_word(p, "if")) {
        jinja_node *node = make(p, JINJA_CHOOSE, parse_or(p), value);
        if (node && take_word(p, "else")) node->c = parse_expression(p);
        value = node;
    }
    p->depth--;
    return value;
}

/* An expression, or several with commas, which are a tuple. */
static jinja_node *parse_tuple(parser *p) {
    jinja_node *first = parse_expression(p), **next;
    if (!first || !is_operator(p, ",")) return first;
    for (next = &first->next; !p->failed && take_operator(p, ",");) {
        if (p->at->kind == JINJA_T_BLOCK_END || p->at->kind == JINJA_T_OUTPUT_END || is_operator(p, "=")) break;
        *next = parse_expression(p);
        if (!*next) return NULL;
        next = &(*next)->next;
    }
    return make(p, JINJA_MAKE_TUPLE, first, NULL);
}

/* ---- statements ----------------------------------------------------------------------------------------- */

static jinja_node *parse_body(parser *p, const char *const *ends);

/* The rest of the tag, statements, and the word that ends them. */
static jinja_node *parse_block(parser *p, const char *end) {
    need_end(p);
    jinja_node *body = parse_body(p, (const char *const[]){end, NULL});
    need_word(p, end);
    return body;
}

/* What a value is given to: a name, a namespace's member (flag 1), or a tuple of these. */
static jinja_node *parse_target_item(parser *p) {
    if (take_operator(p, "(")) return make(p, JINJA_MAKE_TUPLE, parse_chain(p, ")", parse_expression), NULL);
    jinja_node *node = make(p, JINJA_NAME, NULL, NULL);
    const char *name = need_name(p);
    if (!node) return NULL;
    node->name = name;
    if (!take_operator(p, ".")) return node;
    node = make(p, JINJA_ATTRIBUTE, node, NULL);
    name = need_name(p);
    if (node) node->name = name;
    return node;
}

static jinja_node *parse_target(parser *p) {
    jinja_node *first = parse_target_item(p), **next;
    if (!first || !is_operator(p, ",")) return first;
    for (next = &first->next;
         take_operator(p, ",") && (is_operator(p, "(") || (p->at->kind == JINJA_T_NAME && !is_word(p, "in")));) {
        *next = parse_target_item(p);
        if (!*next) return NULL;
        next = &(*next)->next;
    }
    return make(p, JINJA_MAKE_TUPLE, first, NULL);
}

/* a: target; b: what is gone through; c: condition; d: a pair, d->a the body, d->b what is done if there was no item.
 * flag: recursive. */
static jinja_node *parse_for(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    jinja_node *node = make(p, JINJA_FOR, parse_target(p), NULL);
    need_word(p, "in");
    jinja_node *items = parse_or(p), *body = make(p, JINJA_ARGUMENT, NULL, NULL);
    if (!node || !items || !body) return NULL;
    if (is_operator(p, ",")) {
        (void)take_operator(p, ",");
        jinja_node *more = parse_tuple(p);
        items->next = more && more->kind == JINJA_MAKE_TUPLE ? more->a : more;
        items = make(p, JINJA_MAKE_TUPLE, items, NULL);
    }
    node->b = items;
    if (take_word(p, "if")) node->c = parse_expression(p);
    node->flag = take_word(p, "recursive");
    need_end(p);
    node->d = body;
    body->a = parse_body(p, ends);
    if (take_word(p, "else"))
        body->b = parse_block(p, "endfor");
    else
        need_word(p, "endfor");
    return node;
}

/* a: condition; b: body; c: what follows if it does not hold: another JINJA_IF alone, or a body. */
static jinja_node *parse_if(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    if (!deeper(p)) return NULL;
    jinja_node *node = make(p, JINJA_IF, parse_expression(p), NULL);
    need_end(p);
    jinja_node *body = parse_body(p, ends);
    if (!node || p->failed) return NULL;
    node->b = body;
    if (take_word(p, "elif"))
        node->c = parse_if(p); /* it takes the endif */
    else if (take_word(p, "else"))
        node->c = parse_block(p, "endif");
    else
        need_word(p, "endif");
    p->depth--;
    return node;
}

/* Filters that are applied to a body: their value is left open (NULL at the innermost). */
static jinja_node *parse_open_filters(parser *p, int first_is_named) {
    jinja_node *node = NULL;
    if (first_is_named) node = parse_filter(p, NULL);
    while (!p->failed && take_operator(p, "|")) node = parse_filter(p, node);
    return node;
}

/* a: target; b: value, or open filters of a body c. */
static jinja_node *parse_set(parser *p) {
    jinja_node *target = parse_target(p), *node;
    if (take_operator(p, "=")) return make(p, JINJA_SET, target, parse_tuple(p));
    node = make(p, JINJA_SET_BLOCK, target, parse_open_filters(p, 0));
    jinja_node *body = parse_block(p, "endset");
    if (node) node->c = body;
    return node;
}

/* name, and a: default or NULL. */
static jinja_node *parse_parameter(parser *p) {
    const char *name = need_name(p);
    jinja_node *node = make(p, JINJA_ARGUMENT, take_operator(p, "=") ? parse_expression(p) : NULL, NULL);
    if (node) node->name = name;
    return node;
}

/* name; a: parameters; b: body. */
static jinja_node *parse_macro(parser *p) {
    jinja_node *node = make(p, JINJA_DEFINE, NULL, NULL);
    const char *name = need_name(p);
    need_operator(p, "(");
    if (!node || p->failed) return NULL;
    node->name = name;
    node->a = parse_chain(p, ")", parse_parameter);
    node->b = parse_block(p, "endmacro");
    (void)take_word(p, name);
    return node;
}

/* a: a JINJA_DEFINE of the body, which is what `caller` calls; b: the call. */
static jinja_node *parse_call_block(parser *p) {
    jinja_node *caller = make(p, JINJA_DEFINE, NULL, NULL), *node = make(p, JINJA_CALL_BLOCK, caller, NULL);
    if (!node) return NULL;
    caller->name = p->t->caller;
    if (take_operator(p, "(")) caller->a = parse_chain(p, ")", parse_parameter);
    node->b = parse_expression(p);
    if (node->b && node->b->kind != JINJA_CALL) return fail(p, RAVEL_E_DATA, "expected a call", "");
    caller->b = parse_block(p, "endcall");
    return node;
}

static jinja_node *parse_filter_block(parser *p) {
    jinja_node *node = make(p, JINJA_FILTER_BLOCK, NULL, parse_open_filters(p, 1));
    jinja_node *body = parse_block(p, "endfilter");
    if (node) node->c = body;
    return node;
}

static jinja_node *parse_generation(parser *p) {
    jinja_node *node = make(p, JINJA_GENERATION, NULL, NULL), *body = parse_block(p, "endgeneration");
    p->t->marks_answers = 1;
    if (node) node->b = body;
    return node;
}

/* a: a chain of JINJA_ARGUMENT, name and value; b: body. */
static jinja_node *parse_with(parser *p) {
    jinja_node *node = make(p, JINJA_WITH, NULL, NULL), **next = node ? &node->a : NULL;
    while (node && !p->failed && p->at->kind == JINJA_T_NAME) {
        const char *name = need_name(p);
        need_operator(p, "=");
        *next = make(p, JINJA_ARGUMENT, parse_expression(p), NULL);
        if (!*next) return NULL;
        (*next)->name = name;
        next = &(*next)->next;
        if (!take_operator(p, ",")) break;
    }
    jinja_node *body = parse_block(p, "endwith");
    if (node) node->b = body;
    return node;
}

static jinja_node *parse_break(parser *p) {
    return make(p, JINJA_BREAK, NULL, NULL);
}
static jinja_node *parse_continue(parser *p) {
    return make(p, JINJA_CONTINUE, NULL, NULL);
}

static jinja_node *parse_statement(parser *p) {
    static const struct {
        const char *word;
        jinja_node *(*parse)(parser *p);
    } statements[] = {{"for", parse_for},         {"if", parse_if},
                      {"set", parse_set},         {"macro", parse_macro},
                      {"call", parse_call_block}, {"filter", parse_filter_block},
                      {"with", parse_with},       {"generation", parse_generation},
                      {"break", parse_break},     {"continue", parse_continue}};
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (take_word(p, statements[i].word)) return statements[i].parse(p);
    return fail(p, RAVEL_E_UNSUPPORTED, "there is no statement ", p->at->kind == JINJA_T_NAME ? p->at->text : "here");
}

static jinja_node *parse_output(parser *p) {
    p->at++;
    jinja_node *node = make(p, JINJA_OUTPUT, parse_tuple(p), NULL);
    if (p->at->kind != JINJA_T_OUTPUT_END) return fail(p, RAVEL_E_DATA, "expected }}", "");
    p->at++;
    return node;
}

static jinja_node *parse_data(parser *p) {
    jinja_node *node = make(p, JINJA_DATA, NULL, NULL);
    jinja_string *s = ravel__arena_push(&p->t->arena, 1, sizeof *s);
    if (!s) return p->failed = ravel__no_memory(p->err, sizeof *s, "a chat template"), NULL;
    *s = (jinja_string){p->at->text, NULL, (uint32_t)p->at->bytes, 0};
    if (node) node->constant = (jinja_value){.kind = JINJA_STRING, .as.string = s};
    p->at++;
    return node;
}

static int ends_here(const parser *p, const char *const *ends) {
    for (const char *const *e = ends; e && *e; e++)
        if (p->at[1].kind == JINJA_T_NAME && strcmp(p->at[1].text, *e) == 0) return 1;
    return 0;
}

/* Statements up to a tag that begins with one of `ends`, whose word is the next token then; NULL: up to the text's
 * end. */
static jinja_node *parse_body(parser *p, const char *const *ends) {
    jinja_node *first = NULL, **next = &first;
    if (!deeper(p)) return NULL;
    while (!p->failed && p->at->kind != JINJA_T_END) {
        if (p->at->kind == JINJA_T_BLOCK && ends_here(p, ends)) {
            p->at++;
            p->depth--;
            return first;
        }
        if (p->at->kind == JINJA_T_DATA)
            *next = parse_data(p);
        else if (p->at->kind == JINJA_T_OUTPUT)
            *next = parse_output(p);
        else {
            p->at++;
            *next = parse_statement(p);
            if (*next) need_end(p);
        }
        if (*next) next = &(*next)->next;
    }
    p->depth--;
    if (ends && !p->failed) (void)fail(p, RAVEL_E_DATA, "the template ends before ", ends[ends[1] ? 1 : 0]);
    return first;
}

ravel_status ravel__jinja_parse(jinja_template *t, ravel_error *err) {
    RAVEL_ASSERT(t->token_count && t->tokens[t->token_count - 1].kind == JINJA_T_END);
    parser p = {.t = t, .at = t->tokens, .err = err};
    t->body = parse_body(&p, NULL);
    return p.failed;
}

ravel_status ravel__jinja_compile(const char *text, size_t bytes, const ravel_allocator *allocator,
                                  jinja_template **compiled, ravel_error *err) {
    jinja_template *t = ravel__calloc(allocator, 1, sizeof *t);
    if (!t) return ravel__no_memory(err, sizeof *t, "a chat template");
    t->allocator = allocator;
    ravel__arena_init(&t->arena, allocator, 1 << 14);
    t->loop = ravel__jinja_intern(t, "loop", 4);
    t->caller = ravel__jinja_intern(t, "caller", 6);
    ravel_status status = t->loop && t->caller ? RAVEL_OK : ravel__no_memory(err, bytes, "a chat template");
    if (!status) status = ravel__jinja_lex(t, text, bytes, err);
    if (!status) status = ravel__jinja_parse(t, err);
    if (status)
        ravel__jinja_free(t);
    else
        *compiled = t;
    return status;
}

void ravel__jinja_free(jinja_template *t) {
    if (!t) return;
    ravel__arena_free(&t->arena);
    ravel__release(t->allocator, t, sizeof *t);
}
