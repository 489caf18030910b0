/* Statements to text. A scope is a list of variables; a loop's body, a macro and a with block have one of their own, so
 * what they set is gone after them, as in Jinja; an `if` has none. */
#include "text/jinja/jinja.h"

#include "base/assert.h"

#include <string.h>

enum { GO_ON, BREAK, CONTINUE };

/* ---- scopes --------------------------------------------------------------------------------------------- */

jinja_scope *ravel__jinja_new_scope(jinja_run *run, jinja_scope *parent) {
    jinja_scope *scope = ravel__jinja_take(run, 1, sizeof *scope);
    if (scope) scope->parent = parent;
    return scope;
}

/* In the innermost scope. */
void ravel__jinja_assign(jinja_run *run, const char *name, jinja_value value) {
    jinja_scope *s = run->scope;
    if (run->failed) return;
    for (int32_t i = 0; i < s->count; i++)
        if (s->variables[i].name == name) {
            s->variables[i].value = value;
            return;
        }
    if (s->count == s->room) {
        int32_t room = 2 * s->room + 4;
        jinja_variable *variables = ravel__jinja_take(run, (size_t)room, sizeof *variables);
        if (!variables) return;
        if (s->count) memcpy(variables, s->variables, (size_t)s->count * sizeof *variables);
        s->variables = variables;
        s->room = room;
    }
    s->variables[s->count++] = (jinja_variable){name, value};
}

static void assign_to(jinja_run *run, const jinja_node *target, jinja_value value) {
    if (run->failed) return;
    run->line = target->line;
    if (target->kind == JINJA_NAME) {
        ravel__jinja_assign(run, target->name, value);
    } else if (target->kind == JINJA_ATTRIBUTE) {
        jinja_value holder = ravel__jinja_eval(run, target->a);
        if (holder.kind != JINJA_NAMESPACE)
            (void)ravel__jinja_fail(run, RAVEL_E_DATA, "only members of a namespace can be set");
        else
            ravel__jinja_put(run, holder, ravel__jinja_text(run, target->name), value);
    } else {
        const jinja_list *items = ravel__jinja_items(run, value);
        int32_t i = 0, names = 0;
        for (const jinja_node *n = target->a; n; n = n->next) names++;
        if (names != items->count) {
            (void)ravel__jinja_fail(run, RAVEL_E_DATA, "%d names are given %d values", names, items->count);
            return;
        }
        for (const jinja_node *n = target->a; n; n = n->next) assign_to(run, n, items->items[i++]);
    }
}

/* ---- what is written ------------------------------------------------------------------------------------ */

static void note_owner(jinja_run *run, jinja_output *out, size_t end, int16_t owner) {
    jinja_owned *owned = out->owned.at;
    if (out->owned_count && owned[out->owned_count - 1].owner == owner) {
        owned[out->owned_count - 1].end = end;
        return;
    }
    if (!run->failed)
        run->failed = ravel__buffer_reserve(&out->owned, run->allocator, (int64_t)out->owned_count + 1, sizeof *owned,
                                            "a rendered chat template", run->err);
    if (!run->failed) ((jinja_owned *)out->owned.at)[out->owned_count++] = (jinja_owned){end, owner};
}

static void write(jinja_run *run, jinja_value v) {
    jinja_output *out = run->into;
    if (v.kind != JINJA_STRING) v = ravel__jinja_str(run, v);
    if (run->failed || v.as.string->bytes == 0) return;
    const jinja_string *s = v.as.string;
    if (out->bytes + s->bytes > run->memory_limit) {
        (void)ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "the template writes more than %zu MiB",
                                run->memory_limit >> 20);
        return;
    }
    run->failed = ravel__buffer_reserve(&out->text, run->allocator, (int64_t)(out->bytes + s->bytes + 1), 1,
                                        "a rendered chat template", run->err);
    if (run->failed) return;
    memcpy((char *)out->text.at + out->bytes, s->at, s->bytes);
    if (!s->owners) {
        note_owner(run, out, out->bytes + s->bytes, v.owner);
    } else {
        for (uint32_t i = 0; i < s->bytes; i++) note_owner(run, out, out->bytes + i + 1, s->owners[i]);
    }
    out->bytes += s->bytes;
    ((char *)out->text.at)[out->bytes] = '\0';
}

static void mark(jinja_run *run, size_t at) {
    jinja_output *out = run->out;
    if (run->into != out || run->failed) return; /* inside a macro or set block places are not known */
    run->failed = ravel__buffer_reserve(&out->marks, run->allocator, (int64_t)out->mark_count + 1, sizeof at,
                                        "a rendered chat template", run->err);
    if (!run->failed) ((size_t *)out->marks.at)[out->mark_count++] = at;
}

static void run_body(jinja_run *run, const jinja_node *body);

/* A body's text as a string. */
static jinja_value collect(jinja_run *run, const jinja_node *body) {
    jinja_output own = {{0}, {0}, {0}, 0, 0, 0}, *into = run->into;
    jinja_builder b = {.run = run};
    size_t from = 0;
    run->into = &own;
    run_body(run, body);
    run->into = into;
    for (size_t i = 0; i < own.owned_count && !run->failed; i++) {
        const jinja_owned *part = (jinja_owned *)own.owned.at + i;
        ravel__jinja_add(&b, (char *)own.text.at + from, part->end - from, part->owner);
        from = part->end;
    }
    ravel__buffer_free(&own.text, run->allocator);
    ravel__buffer_free(&own.owned, run->allocator);
    return ravel__jinja_built(&b);
}

/* ---- macros --------------------------------------------------------------------------------------------- */

static void bind(jinja_run *run, const jinja_node *parameters, const jinja_args *args) {
    int32_t place = 0;
    for (const jinja_node *p = parameters; p && !run->failed; p = p->next) {
        jinja_value v = ravel__jinja_arg(args, place++, p->name);
        if (!ravel__jinja_given(v)) v = p->a ? ravel__jinja_eval(run, p->a) : ravel__jinja_undefined(p->name);
        ravel__jinja_assign(run, p->name, v);
    }
}

jinja_value ravel__jinja_call_macro(jinja_run *run, const jinja_macro *macro, const jinja_args *args) {
    jinja_scope *outer = run->scope;
    if (run->depth >= JINJA_NESTING)
        return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "macros call each other too deeply");
    run->scope = ravel__jinja_new_scope(run, macro->scope);
    if (run->failed) return run->scope = outer, ravel__jinja_undefined("");
    run->depth += 8; /* a call takes more of the stack than an expression */
    jinja_value caller = ravel__jinja_arg(args, -1, "caller");
    if (ravel__jinja_given(caller)) ravel__jinja_assign(run, run->t->caller, caller);
    bind(run, macro->node->a, args);
    jinja_value text = collect(run, macro->node->b);
    run->depth -= 8;
    run->scope = outer;
    run->flow = GO_ON;
    return text;
}

static jinja_value make_macro(jinja_run *run, const jinja_node *node) {
    jinja_macro *macro = ravel__jinja_take(run, 1, sizeof *macro);
    if (!macro) return ravel__jinja_undefined("");
    *macro = (jinja_macro){node, run->scope};
    return (jinja_value){.kind = JINJA_MACRO, .as.macro = macro};
}

static void run_call_block(jinja_run *run, const jinja_node *node) {
    jinja_node call = *node->b, argument = {.kind = JINJA_ARGUMENT, .line = node->line, .name = "caller"};
    jinja_node value = {.kind = JINJA_CONST, .line = node->line, .constant = make_macro(run, node->a)};
    argument.a = &value;
    argument.next = call.b;
    call.b = &argument;
    write(run, ravel__jinja_eval(run, &call));
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

/* The items that meet the loop's condition. */
static jinja_list *chosen(jinja_run *run, const jinja_node *node, jinja_list *items) {
    if (!node->c) return items;
    jinja_value kept = ravel__jinja_new_list(run, JINJA_LIST, 0);
    jinja_scope *outer = run->scope;
    run->scope = ravel__jinja_new_scope(run, outer);
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        assign_to(run, node->a, items->items[i]);
        if (ravel__jinja_true(ravel__jinja_eval(run, node->c))) ravel__jinja_push(run, kept, items->items[i]);
    }
    run->scope = outer;
    return run->failed ? NULL : kept.as.list;
}

static void run_for(jinja_run *run, const jinja_node *node, jinja_value over, int32_t depth, jinja_scope *outer) {
    jinja_loop *loop = ravel__jinja_take(run, 1, sizeof *loop);
    jinja_list *items = chosen(run, node, ravel__jinja_items(run, over));
    jinja_scope *before = run->scope;
    if (run->failed || !loop || !items) return;
    *loop = (jinja_loop){.items = items, .depth = depth, .node = node->flag ? node : NULL, .scope = outer};
    for (int32_t i = 0; i < items->count && ravel__jinja_step(run, 1); i++) {
        loop->index = i;
        run->scope = ravel__jinja_new_scope(run, outer);
        if (run->failed) break;
        ravel__jinja_assign(run, run->t->loop, (jinja_value){.kind = JINJA_LOOP, .as.loop = loop});
        assign_to(run, node->a, items->items[i]);
        run_body(run, node->d->a);
        int flow = run->flow;
        run->flow = GO_ON;
        if (flow == BREAK) break;
    }
    run->scope = before;
    if (items->count == 0) run_body(run, node->d->b);
}

/* loop(items) inside a recursive loop. */
jinja_value ravel__jinja_call_loop(jinja_run *run, jinja_loop *loop, jinja_value items) {
    if (!loop->node) return ravel__jinja_fail(run, RAVEL_E_DATA, "a loop that calls itself must say recursive");
    if (run->depth >= JINJA_NESTING)
        return ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "a loop calls itself too deeply");
    jinja_node body = {.kind = JINJA_FOR, .line = loop->node->line};
    jinja_value holder = {.kind = JINJA_LOOP, .as.loop = loop};
    body.a = (jinja_node *)loop->node;
    body.constant = items;
    body.flag = loop->depth + 1;
    body.b = NULL; /* b NULL: a loop that goes on, see run_statement */
    body.c = &(jinja_node){.kind = JINJA_CONST, .constant = holder};
    run->depth += 8;
    jinja_value text = collect(run, &body);
    run->depth -= 8;
    return text;
}

/* ---- all statements ------------------------------------------------------------------------------------- */

/* A body through filters whose innermost value was left open. */
static jinja_value filtered(jinja_run *run, const jinja_node *filters, const jinja_node *body) {
    jinja_value text = collect(run, body);
    if (!filters || run->failed) return text;
    jinja_scope *outer = run->scope;
    run->scope = ravel__jinja_new_scope(run, outer);
    if (run->failed) return text;
    ravel__jinja_assign(run, NULL, text);
    text = ravel__jinja_eval(run, filters);
    run->scope = outer;
    return text;
}

static void run_with(jinja_run *run, const jinja_node *node) {
    jinja_scope *outer = run->scope, *inner = ravel__jinja_new_scope(run, outer);
    for (const jinja_node *n = node->a; n && !run->failed; n = n->next) {
        jinja_value v = ravel__jinja_eval(run, n->a);
        run->scope = inner;
        ravel__jinja_assign(run, n->name, v);
        run->scope = outer;
    }
    if (run->failed) return;
    run->scope = inner;
    run_body(run, node->b);
    run->scope = outer;
}

static void run_generation(jinja_run *run, const jinja_node *node) {
    mark(run, run->out->bytes);
    run_body(run, node->b);
    mark(run, run->out->bytes);
}

static void run_statement(jinja_run *run, const jinja_node *n) {
    run->line = n->line;
    switch (n->kind) {
    case JINJA_DATA: write(run, n->constant); break;
    case JINJA_OUTPUT: write(run, ravel__jinja_eval(run, n->a)); break;
    case JINJA_IF: run_body(run, ravel__jinja_true(ravel__jinja_eval(run, n->a)) ? n->b : n->c); break;
    case JINJA_FOR:
        if (n->b)
            run_for(run, n, ravel__jinja_eval(run, n->b), 0, run->scope);
        else
            run_for(run, n->a, n->constant, n->flag, n->c->constant.as.loop->scope);
        break;
    case JINJA_SET: assign_to(run, n->a, ravel__jinja_eval(run, n->b)); break;
    case JINJA_SET_BLOCK: assign_to(run, n->a, filtered(run, n->b, n->c)); break;
    case JINJA_DEFINE: ravel__jinja_assign(run, n->name, make_macro(run, n)); break;
    case JINJA_CALL_BLOCK: run_call_block(run, n); break;
    case JINJA_FILTER_BLOCK: write(run, filtered(run, n->b, n->c)); break;
    case JINJA_GENERATION: run_generation(run, n); break;
    case JINJA_WITH: run_with(run, n); break;
    case JINJA_BREAK: run->flow = BREAK; break;
    case JINJA_CONTINUE: run->flow = CONTINUE; break;
    default: (void)ravel__jinja_fail(run, RAVEL_E_INTERNAL, "a statement of an unknown kind"); break;
    }
}

static void run_body(jinja_run *run, const jinja_node *body) {
    if (run->depth >= JINJA_NESTING * 4) {
        (void)ravel__jinja_fail(run, RAVEL_E_UNSUPPORTED, "blocks are nested too deeply");
        return;
    }
    run->depth++;
    for (; body && !run->flow && ravel__jinja_step(run, 1); body = body->next) run_statement(run, body);
    run->depth--;
}

/* ---- a run ---------------------------------------------------------------------------------------------- */

void ravel__jinja_run_init(jinja_run *run, const ravel_allocator *allocator) {
    memset(run, 0, sizeof *run);
    run->allocator = allocator;
    run->step_limit = JINJA_STEPS;
    run->memory_limit = JINJA_MEMORY;
    ravel__arena_init(&run->arena, allocator, 1 << 16);
}

void ravel__jinja_run_free(jinja_run *run) {
    ravel__arena_free(&run->arena);
    ravel__buffer_free(&run->out->text, run->allocator);
    ravel__buffer_free(&run->out->owned, run->allocator);
    ravel__buffer_free(&run->out->marks, run->allocator);
}

ravel_status ravel__jinja_begin(jinja_run *run, const jinja_template *t, int64_t now, ravel_error *err) {
    ravel__arena_free(&run->arena);
    ravel__arena_init(&run->arena, run->allocator, 1 << 16);
    run->t = t;
    run->chunk = NULL;
    run->chunk_left = run->used = run->steps = 0;
    run->now = now;
    run->line = 1;
    run->failed = RAVEL_OK;
    run->err = err;
    run->top = run->scope = ravel__jinja_new_scope(run, NULL);
    return run->failed;
}

void ravel__jinja_set(jinja_run *run, const char *name, jinja_value value) {
    for (size_t i = 0; i < run->t->name_count; i++) /* a name that the template does not have is never looked up */
        if (strcmp(run->t->names[i], name) == 0) ravel__jinja_assign(run, run->t->names[i], value);
}

ravel_status ravel__jinja_render(jinja_run *run) {
    run->out->bytes = run->out->owned_count = run->out->mark_count = 0;
    run->into = run->out;
    run->depth = 0;
    run->flow = GO_ON;
    run->scope = ravel__jinja_new_scope(run, run->top);
    if (!run->failed)
        run->failed =
            ravel__buffer_reserve(&run->out->text, run->allocator, 1, 1, "a rendered chat template", run->err);
    if (!run->failed) *(char *)run->out->text.at = '\0';
    run_body(run, run->t->body);
    run->scope = run->top;
    return run->failed;
}
