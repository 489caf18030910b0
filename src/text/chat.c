/* Messages to text, as a format's row says. */
#include "text/chat.h"

#include "base/assert.h"
#include "text/unicode.h"

#include <string.h>

typedef struct writing {
    const ravel_chat_format *format;
    const ravel_tokenizer *tokenizer;
    const ravel__message *messages;
    size_t count;
    ravel__script *script;
    const ravel_allocator *allocator;
    ravel_error *err;
} writing;

/* A view of part of a content. */
typedef struct view {
    const char *at;
    size_t bytes;
} view;

/* ---- views ---------------------------------------------------------------------------------------------- */

/* Python's str.strip() also takes the four separators of ASCII. */
static int is_stripped(uint32_t point) {
    return ravel__is_space(point) || (point >= 0x1c && point <= 0x1f);
}

static view trim(view v) {
    uint32_t point;
    while (v.bytes) {
        size_t n = ravel__utf8_get(v.at, &point);
        if (!is_stripped(point)) break;
        v.at += n;
        v.bytes -= n;
    }
    while (v.bytes) {
        size_t n = 1;
        while (n < v.bytes && ((unsigned char)v.at[v.bytes - n] & 0xc0) == 0x80) n++;
        (void)ravel__utf8_get(v.at + v.bytes - n, &point);
        if (!is_stripped(point)) break;
        v.bytes -= n;
    }
    return v;
}

static view skip_lines(view v) {
    while (v.bytes && *v.at == '\n') v.at++, v.bytes--;
    return v;
}

static view cut_lines(view v) {
    while (v.bytes && v.at[v.bytes - 1] == '\n') v.bytes--;
    return v;
}

/* The first or the last place of a word in a view; SIZE_MAX: none. */
static size_t find(view v, const char *word, int last) {
    RAVEL_ASSERT(*word);
    size_t n = strlen(word), found = SIZE_MAX;
    for (size_t i = 0; i + n <= v.bytes; i++)
        if (memcmp(v.at + i, word, n) == 0) {
            found = i;
            if (!last) break;
        }
    return found;
}

static view after(view v, size_t at) {
    RAVEL_ASSERT(at <= v.bytes);
    return (view){v.at + at, v.bytes - at};
}

/* ---- writing -------------------------------------------------------------------------------------------- */

ravel_status ravel__script_put(ravel__script *script, const char *text, size_t bytes, const ravel_allocator *allocator,
                               ravel_error *err) {
    ravel_status status = ravel__buffer_reserve(&script->text, allocator, script->bytes + bytes + 1, 1, "a text", err);
    if (status) return status;
    if (bytes) memcpy((char *)script->text.at + script->bytes, text, bytes);
    RAVEL_ASSERT(script->bytes + bytes < script->text.room);
    script->bytes += bytes;
    ((char *)script->text.at)[script->bytes] = '\0';
    return RAVEL_OK;
}

static ravel_status put(const writing *w, view v) {
    return ravel__script_put(w->script, v.at, v.bytes, w->allocator, w->err);
}

static ravel_status put_text(const writing *w, const char *text) {
    return put(w, (view){text, strlen(text)});
}

static ravel_status put_token(const writing *w, int32_t id, const char *name) {
    view v;
    v.at = ravel_tokenizer_bytes(w->tokenizer, id, &v.bytes);
    if (v.at) return put(w, v);
    return ravel_error_set(w->err, RAVEL_E_DATA,
                           "the chat format %s needs the %s token, and tokenizer_config.json names none",
                           w->format->name, name);
}

static ravel_status put_marker(const writing *w, const char *marker) {
    return *marker == '\1' ? put_token(w, ravel_tokenizer_eos(w->tokenizer), "eos") : put_text(w, marker);
}

static ravel_status note_answer(const writing *w, size_t begin) {
    RAVEL_ASSERT(begin <= w->script->bytes);
    ravel__script *s = w->script;
    ravel_status status =
        ravel__buffer_reserve(&s->answers, w->allocator, s->answer_count + 1, sizeof(ravel__answer), "a text", w->err);
    if (!status) ((ravel__answer *)s->answers.at)[s->answer_count++] = (ravel__answer){begin, s->bytes};
    return status;
}

/* Whether the turn before message `index` is the user's; system messages are no turns. */
static int follows_user(const writing *w, size_t index) {
    RAVEL_ASSERT(index <= w->count);
    while (index-- > 0)
        if (w->messages[index].role != RAVEL__SYSTEM) return w->messages[index].role == RAVEL__USER;
    return 0;
}

/* One turn whose content is up to four views, one after the other. */
static ravel_status put_marked(const writing *w, const char *before, int role, const view *parts, int count) {
    RAVEL_ASSERT(role >= 0 && role < RAVEL__ROLES && count >= 0 && count <= 4);
    ravel_status status = put_marker(w, before);
    size_t begin = w->script->bytes;
    for (int i = 0; i < count && !status; i++) status = put(w, parts[i]);
    if (!status) status = put_marker(w, w->format->after[role]);
    if (!status && role == RAVEL__ASSISTANT) status = note_answer(w, begin);
    return status ? status : put_text(w, w->format->tail);
}

static ravel_status put_turn(const writing *w, int role, const view *parts, int count) {
    return put_marked(w, w->format->before[role], role, parts, count);
}

static view content_of(const writing *w, const ravel__message *m) {
    view v = {m->content, m->bytes};
    return w->format->flags & RAVEL__CHAT_TRIM ? trim(v) : v;
}

static view text_view(const char *text) {
    return (view){text, strlen(text)};
}

/* ---- thoughts ------------------------------------------------------------------------------------------- */

/* The user's last message that is not the wrapped result of a tool; the last message where there is none. */
static size_t last_question(const writing *w) {
    RAVEL_ASSERT(w->count > 0);
    for (size_t i = w->count; i-- > 0;) {
        view v = {w->messages[i].content, w->messages[i].bytes};
        static const char begin[] = "<tool_response>", end[] = "</tool_response>";
        size_t b = sizeof begin - 1, e = sizeof end - 1;
        int wrapped = v.bytes >= e && memcmp(v.at, begin, b) == 0 && memcmp(v.at + v.bytes - e, end, e) == 0;
        if (w->messages[i].role == RAVEL__USER && !wrapped) return i;
    }
    return w->count - 1;
}

/* Qwen 3: an answer is thoughts and content. Before the last question thoughts go; after it they are written in a fixed
 * form, in the last message even where there are none. */
static ravel_status put_qwen3_answer(const writing *w, size_t index) {
    RAVEL_ASSERT(index < w->count && w->messages[index].role == RAVEL__ASSISTANT);
    const ravel__message *m = &w->messages[index];
    view content = {m->content, m->bytes}, thoughts = {m->reasoning, m->reasoning_bytes};
    if (!m->reasoning) {
        size_t close = find(content, "</think>", 1), first = find(content, "</think>", 0);
        thoughts = (view){"", 0};
        if (close != SIZE_MAX) {
            RAVEL_ASSERT(first <= close);
            thoughts = cut_lines((view){content.at, first});
            size_t open = find(thoughts, "<think>", 1);
            if (open != SIZE_MAX) thoughts = after(thoughts, open + strlen("<think>"));
            thoughts = skip_lines(thoughts);
            content = skip_lines(after(content, close + strlen("</think>")));
        }
    }
    if (index <= last_question(w) || (index + 1 < w->count && thoughts.bytes == 0))
        return put_turn(w, RAVEL__ASSISTANT, &content, 1);
    view parts[] = {text_view("<think>\n"), cut_lines(skip_lines(thoughts)), text_view("\n</think>\n\n"),
                    skip_lines(content)};
    return put_turn(w, RAVEL__ASSISTANT, parts, 4);
}

static ravel_status put_answer(const writing *w, size_t index) {
    RAVEL_ASSERT(index < w->count && w->messages[index].role == RAVEL__ASSISTANT);
    const ravel_chat_format *f = w->format;
    view content = content_of(w, &w->messages[index]);
    if (f->think_rule == RAVEL__THINK_QWEN3) return put_qwen3_answer(w, index);
    size_t close =
        f->think_rule == RAVEL__THINK_KEEP ? SIZE_MAX : find(content, "</think>", f->think_rule == RAVEL__THINK_DROP);
    if (close != SIZE_MAX) content = after(content, close + strlen("</think>"));
    int begins = !(f->flags & RAVEL__CHAT_AFTER_USER) || follows_user(w, index);
    return put_marked(w, begins ? f->before[RAVEL__ASSISTANT] : "", RAVEL__ASSISTANT, &content, 1);
}

/* ---- the conversation ----------------------------------------------------------------------------------- */

static ravel_status put_all_systems(const writing *w) {
    ravel_status status = RAVEL_OK;
    int more = 0;
    for (size_t i = 0; i < w->count && !status; i++) {
        if (w->messages[i].role != RAVEL__SYSTEM) continue;
        if (more++) status = put_text(w, "\n\n");
        if (!status) status = put(w, content_of(w, &w->messages[i]));
    }
    return status;
}

/* What comes before the first turn. */
static ravel_status put_front(const writing *w) {
    const ravel_chat_format *f = w->format;
    int first_is_system = w->count && w->messages[0].role == RAVEL__SYSTEM;
    ravel_status status =
        f->flags & RAVEL__CHAT_BOS ? put_token(w, ravel_tokenizer_bos(w->tokenizer), "bos") : RAVEL_OK;
    if (status) return status;
    if (f->system_rule == RAVEL__SYSTEM_TURN && f->system_default && !first_is_system) {
        view text = text_view(f->system_default);
        return put_turn(w, RAVEL__SYSTEM, &text, 1);
    }
    if (f->system_rule == RAVEL__SYSTEM_PREAMBLE) {
        view parts[] = {text_view(f->system_default), first_is_system ? content_of(w, &w->messages[0]) : (view){"", 0}};
        return put_turn(w, RAVEL__SYSTEM, parts, 2);
    }
    if (f->system_rule == RAVEL__SYSTEM_FRONT)
        for (size_t i = w->count; i-- > 0;)
            if (w->messages[i].role == RAVEL__SYSTEM) return put(w, content_of(w, &w->messages[i]));
    return f->system_rule == RAVEL__SYSTEM_JOINED ? put_all_systems(w) : RAVEL_OK;
}

static ravel_status put_system(const writing *w, size_t index) {
    RAVEL_ASSERT(index < w->count && w->messages[index].role == RAVEL__SYSTEM);
    int rule = w->format->system_rule;
    if (rule == RAVEL__SYSTEM_FRONT || rule == RAVEL__SYSTEM_JOINED ||
        (index == 0 && (rule == RAVEL__SYSTEM_PREAMBLE || rule == RAVEL__SYSTEM_LAST_USER)))
        return RAVEL_OK;
    if (rule == RAVEL__SYSTEM_NONE || rule == RAVEL__SYSTEM_LAST_USER)
        return ravel_error_set(w->err, RAVEL_E_DATA, "message %zu: the chat format %s has no system messages%s",
                               index + 1, w->format->name, rule == RAVEL__SYSTEM_NONE ? "" : " but the first");
    view content = content_of(w, &w->messages[index]);
    return put_turn(w, RAVEL__SYSTEM, &content, 1);
}

static ravel_status put_user(const writing *w, size_t index) {
    RAVEL_ASSERT(index < w->count && w->messages[index].role == RAVEL__USER);
    view content = content_of(w, &w->messages[index]);
    const ravel__message *first = &w->messages[0];
    if (w->format->system_rule == RAVEL__SYSTEM_LAST_USER && index + 1 == w->count && first->role == RAVEL__SYSTEM) {
        view parts[] = {content_of(w, first), text_view("\n\n"), content};
        return put_turn(w, RAVEL__USER, parts, 3);
    }
    return put_turn(w, RAVEL__USER, &content, 1);
}

static ravel_status check_order(const writing *w) {
    size_t turn = 0;
    if (!(w->format->flags & RAVEL__CHAT_ALTERNATE)) return RAVEL_OK;
    for (size_t i = 0; i < w->count; i++) {
        if (w->messages[i].role == RAVEL__SYSTEM) continue; /* refused elsewhere, where it is */
        if ((w->messages[i].role == RAVEL__USER) != (turn++ % 2 == 0))
            return ravel_error_set(w->err, RAVEL_E_DATA,
                                   "message %zu: in the chat format %s user and assistant must alternate, the user "
                                   "first",
                                   i + 1, w->format->name);
    }
    return RAVEL_OK;
}

/* The beginning of an answer that is to come. */
static ravel_status put_open(const writing *w) {
    int flags = w->format->flags, user = follows_user(w, w->count);
    if ((flags & RAVEL__CHAT_AFTER_USER && !user) || (flags & RAVEL__CHAT_OPENED && user)) return RAVEL_OK;
    return put_text(w, w->format->answer);
}

ravel_status ravel__chat_write(const ravel_chat_format *format, const ravel_tokenizer *tokenizer,
                               const ravel__message *messages, size_t count, int open, ravel__script *script,
                               const ravel_allocator *allocator, ravel_error *err) {
    static ravel_status (*const put_role[RAVEL__ROLES])(const writing *, size_t) = {put_system, put_user, put_answer};
    const writing w = {format, tokenizer, messages, count, script, allocator, err};
    script->bytes = script->answer_count = 0;
    RAVEL_ASSERT(format->tail && format->answer);
    ravel_status status = check_order(&w);
    if (!status) status = put_front(&w);
    for (size_t i = 0; i < count && !status; i++) status = put_role[messages[i].role](&w, i);
    return status || !open ? status : put_open(&w);
}
