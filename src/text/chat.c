/* Messages to text by a chat template, and the answers in it.
 *
 * If the template marks answers itself ({% generation %}), its marks count. Else answers are found by provenance: each
 * byte of the rendered text knows the message that it came from, or that it is the template's own.
 *
 *     ...  where?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nThere.<|im_end|>\n<|im_start|>user\n ...
 *     user's     \_______ header ________________/\____ of the answer ____/answer's\_end__/
 *
 *   begin   What the template writes between the message before and the answer's first own byte begins as the text that
 *           asks for an answer does (the same messages without the answer, add_generation_prompt). Up to where the two
 *           part, it is header; what follows is the model's to write.
 *   end     After the answer's last own byte comes what the template writes alike whether or not more messages follow;
 *           up to the last special token in it, it ends the turn, and is the model's to write as well.
 *
 * Both need the conversation rendered up to this message. They depend on the kind of turn alone, so they are rendered
 * once per kind (the roles of the message and of the one before), not once per answer. */
#include "text/chat.h"

#include "base/assert.h"
#include "text/decoder.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/unicode/unicode.h"

#include <string.h>
#include <time.h>

/* What was found once for a kind of turn: the template's own text before an answer that is asked for, and after one
 * that is the last message. */
typedef struct header {
    const char *role;       /* of the message before; NULL: there is none */
    int follows_calls;      /* the message before calls tools */
    size_t open_at, open;   /* in header_text: bytes before an answer */
    size_t close_at, close; /* bytes after it */
    int has_open, has_close;
} header;

typedef struct writing {
    ravel__chat_writer *w;
    const ravel__chat *chat;
    ravel__script *script;
    const ravel_allocator *allocator;
    ravel_error *err;
    jinja_value messages;
} writing;

/* ---- formats -------------------------------------------------------------------------------------------- */

ravel_status ravel__chat_format_create(const char *name, const char *text, size_t bytes, const char *tool_text,
                                       size_t tool_bytes, const ravel_allocator *allocator, ravel_chat_format **format,
                                       ravel_error *err) {
    ravel_chat_format *f = ravel__calloc(allocator, 1, sizeof *f);
    if (!f) return ravel__no_memory(err, sizeof *f, "a chat format");
    f->allocator = allocator;
    strncpy(f->name, name, sizeof f->name - 1);
    ravel_status status = ravel__jinja_compile(text, bytes, allocator, &f->plain, err);
    if (!status && tool_text) status = ravel__jinja_compile(tool_text, tool_bytes, allocator, &f->tools, err);
    if (status)
        ravel_chat_format_free(f);
    else
        *format = f;
    return status;
}

void ravel_chat_format_free(ravel_chat_format *f) {
    if (!f) return;
    ravel__jinja_free(f->plain);
    ravel__jinja_free(f->tools);
    ravel__release(f->allocator, f, sizeof *f);
}

const char *ravel_chat_format_name(const ravel_chat_format *format) {
    return format->name;
}

ravel_status ravel_chat_format_of(const ravel_tokenizer *tokenizer, const ravel_chat_format **format,
                                  ravel_error *err) {
    *format = tokenizer->format;
    if (tokenizer->format) return RAVEL_OK;
    if (tokenizer->format_error.message[0])
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s", tokenizer->format_error.message);
    return ravel_error_set(
        err, RAVEL_E_UNSUPPORTED,
        "the model folder has no chat template (\"chat_template\" in tokenizer_config.json, or "
        "chat_template.jinja), so conversations cannot be written; name a format (chatml, llama3, ...) "
        "or a file of a template");
}

/* ---- variables ------------------------------------------------------------------------------------------ */

void ravel__chat_writer_init(ravel__chat_writer *w, const ravel_allocator *allocator) {
    memset(w, 0, sizeof *w);
    ravel__jinja_run_init(&w->run, allocator);
}

void ravel__chat_writer_free(ravel__chat_writer *w) {
    const ravel_allocator *allocator = w->run.allocator;
    ravel__jinja_run_free(&w->run);
    ravel__buffer_free(&w->owned, allocator);
    ravel__buffer_free(&w->headers, allocator);
    ravel__buffer_free(&w->header_text, allocator);
}

ravel_status ravel__script_put(ravel__script *script, const char *text, size_t bytes, const ravel_allocator *allocator,
                               ravel_error *err) {
    ravel_status status =
        ravel__buffer_reserve(&script->text, allocator, (int64_t)(script->bytes + bytes + 1), 1, "a text", err);
    if (status) return status;
    if (bytes) memcpy((char *)script->text.at + script->bytes, text, bytes);
    RAVEL_ASSERT(script->bytes + bytes < script->text.room);
    script->bytes += bytes;
    ((char *)script->text.at)[script->bytes] = '\0';
    return RAVEL_OK;
}

/* A message as the template sees it: its own members, with "from" and "value" under the names that templates know. */
static jinja_value message_value(jinja_run *run, const ravel__chat *chat, size_t index) {
    const ravel__message *m = &chat->messages[index];
    int16_t owner = index < INT16_MAX - 1 ? (int16_t)(index + 1) : INT16_MAX;
    jinja_value role = ravel__jinja_text(run, "role"), content = ravel__jinja_text(run, "content");
    jinja_value v = m->object ? ravel__jinja_from_json(run, chat->doc, m->object, owner) : ravel__jinja_new_dict(run);
    if (!m->role || run->failed) return v;
    jinja_value name = ravel__jinja_text(run, m->role);
    ravel__jinja_put(run, v, role, name);
    ravel__jinja_put(run, v, content, ravel__jinja_view(run, m->content, m->bytes, owner));
    return v;
}

/* Thoughts have several names; a template finds them under the two that templates use, as in transformers. */
static jinja_value with_thoughts(jinja_run *run, jinja_value message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const jinja_value *found = NULL;
    for (int i = 0; i < 3 && !found && message.kind == JINJA_DICT; i++) {
        found = ravel__jinja_find_text(message.as.dict, names[i]);
        if (found && found->kind == JINJA_NONE) found = NULL;
    }
    if (!found) return message;
    jinja_value more = ravel__jinja_new_dict(run);
    more.owner = message.owner;
    ravel__jinja_put(run, more, ravel__jinja_text(run, "thinking"), *found);
    for (int32_t i = 0; i < message.as.dict->count && !run->failed; i++)
        ravel__jinja_put(run, more, message.as.dict->keys[i], message.as.dict->values[i]);
    ravel__jinja_put(run, more, ravel__jinja_text(run, "reasoning_content"), *found);
    return more;
}

/* A role is the template's word, not the message's: "assistant" before an answer is header. */
static void disown_roles(jinja_value message) {
    if (message.kind != JINJA_DICT) return;
    jinja_value *role = (jinja_value *)ravel__jinja_find_text(message.as.dict, "role");
    if (role) role->owner = 0;
}

static void set_members(jinja_run *run, const ravel__json *doc, const ravel__json_node *object) {
    if (!object || object->kind != RAVEL__JSON_OBJECT) return;
    for (const ravel__json_node *n = ravel__json_first(doc, object); n; n = ravel__json_next(doc, n))
        ravel__jinja_set(run, n->key, ravel__jinja_from_json(run, doc, n, 0));
}

static const ravel__json_node *row_member(const ravel__chat *chat, const char *key) {
    const ravel__json_node *n = chat->row ? ravel__json_get(chat->doc, chat->row, key) : NULL;
    return n && n->kind != RAVEL__JSON_NULL && !(n->kind == RAVEL__JSON_ARRAY && n->count == 0) ? n : NULL;
}

static void set_variables(writing *g) {
    jinja_run *run = &g->w->run;
    const ravel__chat *chat = g->chat;
    for (int i = 0; i < RAVEL__SPECIALS; i++)
        if (chat->tokenizer->special_texts[i])
            ravel__jinja_set(run, ravel__special_names[i], ravel__jinja_text(run, chat->tokenizer->special_texts[i]));
    static const char *const lists[] = {"tools", "documents"};
    for (int i = 0; i < 2; i++) {
        const ravel__json_node *n = row_member(chat, lists[i]);
        ravel__jinja_set(run, lists[i], n ? ravel__jinja_from_json(run, chat->doc, n, 0) : ravel__jinja_none());
    }
    if (chat->variables) set_members(run, chat->variables, ravel__json_root(chat->variables));
    set_members(run, chat->doc, row_member(chat, "chat_template_kwargs"));
    g->messages = ravel__jinja_new_list(run, JINJA_LIST, (int32_t)chat->count);
    for (size_t i = 0; i < chat->count && !run->failed; i++) {
        jinja_value message = with_thoughts(run, message_value(run, chat, i));
        disown_roles(message);
        ravel__jinja_push(run, g->messages, message);
    }
}

/* The first `count` messages. */
static ravel_status render(const writing *g, size_t count, int open) {
    jinja_run *run = &g->w->run;
    jinja_value list = ravel__jinja_new_list(run, JINJA_LIST, 0);
    if (!run->failed) *list.as.list = (jinja_list){g->messages.as.list->items, (int32_t)count, (int32_t)count};
    ravel__jinja_set(run, "messages", list);
    ravel__jinja_set(run, "add_generation_prompt", ravel__jinja_bool(open));
    return ravel__jinja_render(run);
}

/* ---- runs of owners ------------------------------------------------------------------------------------- */

/* Of a rendered text: where owned bytes end and the template's own text at its end begins. */
static size_t own_tail(const jinja_output *out) {
    const jinja_owned *owned = out->owned.at;
    size_t n = out->owned_count;
    while (n && owned[n - 1].owner == 0) n--;
    return n ? owned[n - 1].end : 0;
}

typedef struct place {
    size_t before, begin, end, after; /* the last owned byte before, the message's own, the next owned byte after */
} place;

/* Where the bytes of message `index` stand; 0: none is in the text. */
static int find_message(const jinja_owned *owned, size_t count, size_t bytes, size_t index, place *p) {
    int16_t owner = (int16_t)(index + 1);
    size_t from = 0, found = 0;
    *p = (place){0, 0, 0, bytes};
    for (size_t i = 0; i < count; from = owned[i++].end) {
        if (owned[i].owner == owner) {
            if (!found++) p->begin = from;
            p->end = owned[i].end;
            p->after = bytes;
        } else if (owned[i].owner && !found) {
            p->before = owned[i].end;
        } else if (owned[i].owner && p->after == bytes) {
            p->after = from;
        }
    }
    return found > 0;
}

static size_t common(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    size_t n = 0;
    while (n < a_bytes && n < b_bytes && a[n] == b[n]) n++;
    while (n && n < a_bytes && ((unsigned char)a[n] & 0xc0) == 0x80) n--; /* whole characters */
    return n;
}

/* ---- headers -------------------------------------------------------------------------------------------- */

static ravel_status keep_tail(const writing *g, size_t *at, size_t *bytes) {
    const jinja_output *out = g->w->run.out;
    size_t from = own_tail(out);
    *at = g->w->header_bytes;
    *bytes = out->bytes - from;
    ravel_status status = ravel__buffer_reserve(&g->w->header_text, g->w->run.allocator, (int64_t)(*at + *bytes + 1), 1,
                                                "a chat template's turns", g->err);
    if (status) return status;
    memcpy((char *)g->w->header_text.at + *at, (char *)out->text.at + from, *bytes);
    g->w->header_bytes += *bytes;
    return RAVEL_OK;
}

/* Renders for a header; a template that refuses so few messages leaves it unknown. */
static ravel_status keep_rendered(const writing *g, size_t count, int open, size_t *at, size_t *bytes, int *has) {
    jinja_run *run = &g->w->run;
    ravel_error *err = run->err, quiet = RAVEL_ERROR_INIT;
    run->err = &quiet;
    ravel_status status = render(g, count, open);
    run->err = err;
    *has = status == RAVEL_OK;
    run->failed = status == RAVEL_E_MEMORY ? status : RAVEL_OK;
    if (status == RAVEL_E_MEMORY) return ravel_error_set(g->err, status, "%s", quiet.message);
    return *has ? keep_tail(g, at, bytes) : RAVEL_OK;
}

static const char *role_before(const writing *g, size_t index, int *calls) {
    *calls = 0;
    if (!index) return NULL;
    const jinja_value message = g->messages.as.list->items[index - 1];
    const jinja_value *role = message.kind == JINJA_DICT ? ravel__jinja_find_text(message.as.dict, "role") : NULL;
    const jinja_value *tools =
        message.kind == JINJA_DICT ? ravel__jinja_find_text(message.as.dict, "tool_calls") : NULL;
    *calls = tools && ravel__jinja_true(*tools);
    if (!role || role->kind != JINJA_STRING) return "";
    for (size_t i = 0; i < index; i++) { /* the first message with this role stands for the word */
        const jinja_value *other = ravel__jinja_find_text(g->messages.as.list->items[i].as.dict, "role");
        if (other && ravel__jinja_equal(&g->w->run, *other, *role)) return other->as.string->at;
    }
    return role->as.string->at;
}

/* The header of message `index`, rendered if its kind is new. */
static ravel_status header_of(const writing *g, size_t index, header *found) {
    ravel__chat_writer *w = g->w;
    header h = {.role = NULL};
    h.role = role_before(g, index, &h.follows_calls);
    const header *known = w->headers.at;
    for (size_t i = 0; i < w->header_count; i++)
        if (known[i].role == h.role && known[i].follows_calls == h.follows_calls) return *found = known[i], RAVEL_OK;
    ravel_status status = keep_rendered(g, index, 1, &h.open_at, &h.open, &h.has_open);
    if (!status) status = keep_rendered(g, index + 1, 0, &h.close_at, &h.close, &h.has_close);
    if (!status)
        status = ravel__buffer_reserve(&w->headers, w->run.allocator, (int64_t)w->header_count + 1, sizeof h,
                                       "a chat template's turns", g->err);
    if (status) return status;
    ((header *)w->headers.at)[w->header_count++] = h;
    *found = h;
    return RAVEL_OK;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static int is_special(const ravel_tokenizer *t, int32_t id) {
    return id == t->eos || ravel__tokenizer_is_special(t, id);
}

/* The bytes of text[bytes] up to the end of its last special token; if there is none, without white space at the
 * end. */
static size_t turn_end(const ravel_tokenizer *t, const char *text, size_t bytes) {
    size_t end = 0;
    for (int kind = 0; kind < 2; kind++) {
        size_t begin, stop, from = 0;
        int32_t id;
        int flags;
        while (from < bytes && ravel__added_find(&t->added[kind], text, bytes, from, &begin, &stop, &id, &flags)) {
            if (is_special(t, id) && stop > end) end = stop;
            from = stop > from ? stop : from + 1;
        }
    }
    return end ? end : bytes - ravel__spaces_before(text, bytes);
}

static ravel_status note_answer(const writing *g, size_t begin, size_t own, size_t end) {
    ravel__script *s = g->script;
    const ravel__answer *last = s->answers.at;
    if (s->answer_count && begin < last[s->answer_count - 1].end) begin = last[s->answer_count - 1].end;
    if (begin >= end) return RAVEL_OK;
    ravel_status status = ravel__buffer_reserve(&s->answers, g->allocator, (int64_t)s->answer_count + 1,
                                                sizeof(ravel__answer), "a text", g->err);
    if (!status) ((ravel__answer *)s->answers.at)[s->answer_count++] = (ravel__answer){begin, end, own};
    return status;
}

static ravel_status find_answer(const writing *g, const jinja_owned *owned, size_t owned_count, size_t index) {
    const char *text = g->script->text.at;
    place p;
    header h;
    if (!find_message(owned, owned_count, g->script->bytes, index, &p)) return RAVEL_OK; /* an empty answer */
    ravel_status status = header_of(g, index, &h);
    if (status) return status;
    const char *tails = g->w->header_text.at;
    size_t begin = p.begin, end = p.end;
    if (h.has_open) begin = p.before + common(text + p.before, p.begin - p.before, tails + h.open_at, h.open);
    size_t alike = p.after - p.end;
    if (h.has_close && p.after < g->script->bytes) alike = common(text + p.end, alike, tails + h.close_at, h.close);
    end += turn_end(g->chat->tokenizer, text + p.end, alike);
    return note_answer(g, begin, p.begin, end);
}

/* The first byte from `begin` on that comes from a message. */
static size_t first_owned(const jinja_output *out, size_t begin) {
    const jinja_owned *owned = out->owned.at;
    for (size_t i = 0, from = 0; i < out->owned_count; from = owned[i++].end)
        if (owned[i].owner && owned[i].end > begin) return from > begin ? from : begin;
    return out->bytes;
}

/* By the template's own marks: pairs of begin and end. */
static ravel_status take_marks(const writing *g, const size_t *marks, size_t count) {
    ravel_status status = RAVEL_OK;
    for (size_t i = 0; i + 1 < count && !status; i += 2)
        status = note_answer(g, marks[i], first_owned(g->w->run.out, marks[i]), marks[i + 1]);
    return status;
}

static ravel_status find_answers(const writing *g) {
    jinja_output *out = g->w->run.out;
    if (out->mark_count) return take_marks(g, out->marks.at, out->mark_count);
    size_t count = out->owned_count;
    ravel_status status = ravel__buffer_reserve(&g->w->owned, g->w->run.allocator, (int64_t)count + 1,
                                                sizeof(jinja_owned), "a text", g->err);
    if (status) return status;
    if (count) memcpy(g->w->owned.at, out->owned.at, count * sizeof(jinja_owned)); /* headers are rendered next */
    g->w->header_count = g->w->header_bytes = 0;
    for (size_t i = 0; i < g->chat->count && !status; i++)
        if (g->chat->messages[i].is_answer) status = find_answer(g, g->w->owned.at, count, i);
    return status;
}

ravel_status ravel__chat_write(ravel__chat_writer *w, const ravel__chat *chat, int open, int find,
                               ravel__script *script, const ravel_allocator *allocator, ravel_error *err) {
    writing g = {.w = w, .chat = chat, .script = script, .allocator = allocator, .err = err};
    const jinja_template *t =
        chat->format->tools && row_member(chat, "tools") ? chat->format->tools : chat->format->plain;
    RAVEL_ASSERT(t && chat->tokenizer);
    script->bytes = script->answer_count = 0;
    ravel_status status = ravel__jinja_begin(&w->run, t, chat->now ? chat->now : (int64_t)time(NULL), err);
    if (!status) set_variables(&g);
    if (!status) status = w->run.failed;
    if (!status) status = render(&g, chat->count, open);
    if (!status) status = ravel__script_put(script, w->run.out->text.at, w->run.out->bytes, allocator, err);
    return status || !find ? status : find_answers(&g);
}
