/* Jinja as chat templates use it: a template's text is compiled once and rendered for each conversation.
 *
 *     lex.c       text          --> tokens, white space already trimmed as transformers asks
 *     parse.c     tokens        --> a tree of nodes, statements and expressions
 *     run.c       statements    --> text          (for, if, set, macro, call, filter, generation, ...)
 *     eval.c      expressions   --> values
 *     value.c     what values are, how Python would print, compare and order them
 *     filters.c   one row per filter and test       methods.c   one row per method of str, dict and list
 *     python.c    formats: repr, json.dumps, "%s" % x
 *
 * The environment is that of transformers: Jinja's sandbox that changes nothing (list.append and the like are errors),
 * loop controls, the generation block, tojson without HTML escapes, raise_exception, strftime_now. Templates are text
 * of strangers: nesting, steps and memory have limits, and no template reads or writes anything but its own values.
 *
 * Provenance. Every value knows the message that it came from (`owner`: 1 + the message's index; 0: the template or
 * elsewhere), and a string that is made of parts of several owners knows it per byte. So the rendered text says which
 * of its bytes are a message's own, however the template cut, joined or quoted them; ../chat.c finds answers by it. */
#ifndef RAVEL_TEXT_JINJA_JINJA_H
#define RAVEL_TEXT_JINJA_JINJA_H

#include "base/json.h"

#include "base/buffer.h"

enum {
    JINJA_NESTING = 120,        /* of blocks, expressions and calls */
    JINJA_STEPS = 20 * 1000000, /* per render: nodes evaluated, items compared, ... */
    JINJA_MEMORY = 512 << 20    /* bytes per render */
};

/* ---- values --------------------------------------------------------------------------------------------- */

typedef enum jinja_kind {
    JINJA_UNDEFINED, /* as.name: what was not found, for the sentence */
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_REAL,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE, /* as.dict, whose members a template may set */
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_METHOD,
    JINJA_GLOBAL
} jinja_kind;

typedef struct jinja_value jinja_value;
typedef struct jinja_node jinja_node;
typedef struct jinja_run jinja_run;

typedef struct jinja_string {
    const char *at;        /* UTF-8 */
    const int16_t *owners; /* [bytes]; NULL: all bytes are the value's owner's */
    uint32_t bytes;
    int32_t points; /* characters; -1: not counted yet */
} jinja_string;

typedef struct jinja_list {
    jinja_value *items;
    int32_t count, room;
} jinja_list;

typedef struct jinja_dict {
    jinja_value *keys, *values;
    int32_t count, room;
} jinja_dict;

struct jinja_value {
    uint8_t kind;
    uint8_t lazy; /* of a list: Jinja would compute it on demand, so it is true even if it is empty; of a string: it is
                     marked as safe, and what is joined to it is escaped */
    int16_t owner;
    union {
        int64_t integer; /* also of JINJA_BOOL */
        double real;
        jinja_string *string;
        jinja_list *list;
        jinja_dict *dict;
        const char *name;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        struct jinja_method *method;
        const struct jinja_row *global;
    } as;
};

/* Arguments of a call, filter or test. */
typedef struct jinja_args {
    jinja_value *items; /* [count] by position */
    const char **names; /* [named] */
    jinja_value *named_items;
    int32_t count, named;
} jinja_args;

/* A name of a scope; names are interned when a template is compiled, so they are compared as pointers. */
typedef struct jinja_variable {
    const char *name;
    jinja_value value;
} jinja_variable;

typedef struct jinja_scope {
    struct jinja_scope *parent;
    jinja_variable *variables;
    int32_t count, room;
} jinja_scope;

typedef struct jinja_loop {
    jinja_list *items;
    int32_t index, depth;
    const jinja_node *node; /* of a recursive loop */
    jinja_scope *scope;
    jinja_value changed;
    int32_t changed_set;
} jinja_loop;

typedef struct jinja_macro {
    const jinja_node *node;
    jinja_scope *scope; /* where it was defined */
} jinja_macro;

/* One row of a table of methods, filters, tests or globals. `self` is the value before the dot, bar or `is`. */
typedef jinja_value (*jinja_call)(jinja_run *run, jinja_value self, const jinja_args *args);
typedef struct jinja_row {
    const char *name;
    jinja_call call;
} jinja_row;

typedef struct jinja_method {
    jinja_value self;
    const jinja_row *row;
} jinja_method;

/* ---- templates ------------------------------------------------------------------------------------------ */

typedef enum jinja_token_kind {
    JINJA_T_END,
    JINJA_T_DATA,
    JINJA_T_OUTPUT,     /* {{ */
    JINJA_T_OUTPUT_END, /* }} */
    JINJA_T_BLOCK,      /* {% */
    JINJA_T_BLOCK_END,  /* %} */
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_INT,
    JINJA_T_REAL,
    JINJA_T_OPERATOR
} jinja_token_kind;

typedef struct jinja_token {
    int32_t kind, line;
    const char *text; /* data, string: [bytes]; name, operator: NUL-terminated and interned */
    size_t bytes;
    int64_t integer;
    double real;
} jinja_token;

typedef enum jinja_node_kind {
    /* statements */
    JINJA_DATA,
    JINJA_OUTPUT,
    JINJA_FOR,
    JINJA_IF,
    JINJA_SET,
    JINJA_SET_BLOCK,
    JINJA_DEFINE,
    JINJA_CALL_BLOCK,
    JINJA_FILTER_BLOCK,
    JINJA_GENERATION,
    JINJA_WITH,
    JINJA_BREAK,
    JINJA_CONTINUE,
    /* expressions */
    JINJA_CONST,
    JINJA_NAME,
    JINJA_MAKE_LIST,
    JINJA_MAKE_TUPLE,
    JINJA_MAKE_DICT,
    JINJA_UNARY,
    JINJA_BINARY,
    JINJA_COMPARE,
    JINJA_AND,
    JINJA_OR,
    JINJA_NOT,
    JINJA_CHOOSE,
    JINJA_ATTRIBUTE,
    JINJA_ITEM,
    JINJA_SLICE,
    JINJA_CALL,
    JINJA_FILTER,
    JINJA_TEST,
    JINJA_ARGUMENT,
    JINJA_OPERAND /* of a chain of comparisons */
} jinja_node_kind;

/* What a, b, c, d are is said where a kind is parsed. */
struct jinja_node {
    int32_t kind, line;
    const char *name; /* interned: of a name, attribute, filter, argument, operator */
    const jinja_row *row;
    jinja_node *a, *b, *c, *d, *next;
    jinja_value constant;
    int32_t flag;
};

typedef struct jinja_template {
    const ravel_allocator *allocator;
    ravel__arena arena;
    const char **names; /* interned */
    size_t name_count, name_room;
    jinja_token *tokens;
    size_t token_count, token_room;
    const jinja_node *body;
    const char *loop, *caller; /* these words, interned */
    int marks_answers;         /* it has generation blocks */
} jinja_template;

/* text[bytes] may be freed afterwards. E_UNSUPPORTED: a statement, filter or test that is not known, by name and line;
 * E_DATA: the text is no template. */
ravel_status ravel__jinja_compile(const char *text, size_t bytes, const ravel_allocator *allocator,
                                  jinja_template **compiled, ravel_error *err);
void ravel__jinja_free(jinja_template *compiled);

/* The steps of compiling. */
ravel_status ravel__jinja_lex(jinja_template *t, const char *text, size_t bytes, ravel_error *err);
ravel_status ravel__jinja_parse(jinja_template *t, ravel_error *err);
const char *ravel__jinja_intern(jinja_template *t, const char *text, size_t bytes); /* NULL: no memory */

/* ---- rendering ------------------------------------------------------------------------------------------ */

/* Bytes that are written, with a run of owners: bytes up to `end` are owner's. */
typedef struct jinja_owned {
    size_t end;
    int16_t owner;
} jinja_owned;

typedef struct jinja_output {
    ravel__buffer text, owned, marks;
    size_t bytes, owned_count, mark_count; /* marks: of generation blocks, begin and end: size_t */
} jinja_output;

struct jinja_run {
    const jinja_template *t;
    const ravel_allocator *allocator;
    ravel__arena arena;
    char *chunk;
    size_t chunk_left, used, steps;
    size_t step_limit, memory_limit; /* JINJA_STEPS and JINJA_MEMORY; less in tests */
    jinja_output out[1];             /* what the template writes */
    jinja_output *into;              /* out, or what a macro or set block collects */
    jinja_scope *scope, *top;
    int32_t depth, line, flow; /* flow: a break or continue is on its way to its loop */
    int64_t now;               /* seconds since 1970, for strftime_now */
    ravel_status failed;
    ravel_error *err;
};

void ravel__jinja_run_init(jinja_run *run, const ravel_allocator *allocator);
void ravel__jinja_run_free(jinja_run *run);
/* Forgets all values and begins with a top scope; values for ravel__jinja_set are made after this. */
ravel_status ravel__jinja_begin(jinja_run *run, const jinja_template *t, int64_t now, ravel_error *err);
void ravel__jinja_set(jinja_run *run, const char *name, jinja_value value);
/* Renders into run->out. May be called again with other values for some names; earlier values stay. */
ravel_status ravel__jinja_render(jinja_run *run);
/* The value of a JSON node, whose strings must outlive the run; `owner`, or with `owner` -1: of each item its own. */
jinja_value ravel__jinja_from_json(jinja_run *run, const ravel__json *doc, const ravel__json_node *node, int16_t owner);

/* ---- shared by the files of this folder ------------------------------------------------------------------ */

/* The first error wins; returns undefined, so that `return ravel__jinja_fail(...)` ends any function. */
jinja_value ravel__jinja_fail(jinja_run *run, ravel_status status, const char *format, ...) RAVEL_PRINTF(3, 4);
void *ravel__jinja_take(jinja_run *run, size_t count, size_t each); /* NULL: failed; zeroed */
int ravel__jinja_step(jinja_run *run, size_t steps);                /* 0: failed */

jinja_value ravel__jinja_none(void);
jinja_value ravel__jinja_bool(int x);
jinja_value ravel__jinja_int(int64_t x);
jinja_value ravel__jinja_real(double x);
jinja_value ravel__jinja_undefined(const char *name);
/* A string of these bytes, which are not copied. */
jinja_value ravel__jinja_view(jinja_run *run, const char *at, size_t bytes, int16_t owner);
jinja_value ravel__jinja_text(jinja_run *run, const char *text);
/* Bytes begin .. end of a string. */
jinja_value ravel__jinja_part(jinja_run *run, jinja_value whole, size_t begin, size_t end);
jinja_value ravel__jinja_new_list(jinja_run *run, int kind, int32_t room);
void ravel__jinja_push(jinja_run *run, jinja_value list, jinja_value item);
jinja_value ravel__jinja_new_dict(jinja_run *run);
void ravel__jinja_put(jinja_run *run, jinja_value dict, jinja_value key, jinja_value value);
const jinja_value *ravel__jinja_find(jinja_run *run, const jinja_dict *dict, jinja_value key);
const jinja_value *ravel__jinja_find_text(const jinja_dict *dict, const char *key);

int ravel__jinja_true(jinja_value v);
int ravel__jinja_equal(jinja_run *run, jinja_value a, jinja_value b);
int ravel__jinja_order(jinja_run *run, jinja_value a, jinja_value b); /* -1, 0, 1 */
int ravel__jinja_contains(jinja_run *run, jinja_value holder, jinja_value item);
const char *ravel__jinja_type(jinja_value v); /* as Python calls it */
int ravel__jinja_is_number(jinja_value v);
double ravel__jinja_as_real(jinja_value v);
int32_t ravel__jinja_points(const jinja_string *s);
size_t ravel__jinja_offset(const jinja_string *s, int32_t point); /* of a character, in bytes */
/* The items that a loop or filter goes through: of a list itself, of a dict its keys, of a string its characters. */
jinja_list *ravel__jinja_items(jinja_run *run, jinja_value v);
jinja_value ravel__jinja_slice(jinja_run *run, jinja_value v, jinja_value from, jinja_value to, jinja_value step);
jinja_value ravel__jinja_get_attribute(jinja_run *run, jinja_value v, const char *name);
jinja_value ravel__jinja_get_item(jinja_run *run, jinja_value v, jinja_value key);
jinja_value ravel__jinja_strip(jinja_run *run, jinja_value s, jinja_value chars, int sides); /* 1 left, 2 right */

/* Pieces put together into one string. */
typedef struct jinja_builder {
    jinja_run *run;
    char *at;
    int16_t *owners; /* NULL while all bytes have the owner `owner` */
    size_t bytes, room, owners_room;
    int16_t owner;
} jinja_builder;
void ravel__jinja_add(jinja_builder *b, const char *at, size_t bytes, int16_t owner);
void ravel__jinja_add_value(jinja_builder *b, jinja_value v); /* as str(v) */
jinja_value ravel__jinja_built(jinja_builder *b);

jinja_value ravel__jinja_str(jinja_run *run, jinja_value v); /* str(v) */
void ravel__jinja_repr(jinja_builder *b, jinja_value v);     /* repr(v) */
void ravel__jinja_real_text(double x, char text[40]);        /* repr(x) */
jinja_value ravel__jinja_tojson(jinja_run *run, jinja_value v, const jinja_args *args);
jinja_value ravel__jinja_percent(jinja_run *run, jinja_value format, jinja_value args); /* format % args */
jinja_value ravel__jinja_str_format(jinja_run *run, jinja_value format, const jinja_args *args);

/* An argument by place or by name; undefined: not given. `place` -1: by name alone. */
jinja_value ravel__jinja_arg(const jinja_args *args, int32_t place, const char *name);
int ravel__jinja_given(jinja_value v);
/* With arguments, an integer and a boolean of these or what is the default. */
int64_t ravel__jinja_arg_int(jinja_run *run, const jinja_args *args, int32_t place, const char *name, int64_t none);
int ravel__jinja_arg_true(const jinja_args *args, int32_t place, const char *name, int none);

/* A row of a table that ends with a row without a name; NULL: there is none. */
const jinja_row *ravel__jinja_find_row(const jinja_row *rows, const char *name);
const jinja_row *ravel__jinja_filter(const char *name);
const jinja_row *ravel__jinja_test(const char *name);
const jinja_row *ravel__jinja_method(int kind, const char *name);
const jinja_row *ravel__jinja_global(const char *name);

jinja_value ravel__jinja_eval(jinja_run *run, const jinja_node *node);
jinja_value ravel__jinja_invoke(jinja_run *run, jinja_value callee, const jinja_args *args);
jinja_value ravel__jinja_call_macro(jinja_run *run, const jinja_macro *macro, const jinja_args *args);
jinja_value ravel__jinja_call_loop(jinja_run *run, jinja_loop *loop, jinja_value items);
void ravel__jinja_assign(jinja_run *run, const char *name, jinja_value value);
jinja_scope *ravel__jinja_new_scope(jinja_run *run, jinja_scope *parent);

#endif
