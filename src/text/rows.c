/* JSON rows to tokens and a loss mask.
 *
 *     row --kinds table--> messages --chat.c--> text with answers --encoder--> tokens, 1 if an answer's token begins
 *                      \-> texts ------------------------------/
 *
 * Rows are untrusted: every member's kind is looked at before it is used. */
#include "text/chat.h"

#include "text/tokenizer.h"

#include "base/assert.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef const ravel__json_node node;

struct ravel_rows {
    const ravel_tokenizer *tokenizer;
    const ravel_chat_format *format;
    const ravel_allocator *allocator;
    ravel_encoder *encoder;
    int32_t train_on;
    int64_t now;
    ravel__json *variables; /* NULL: none */
    ravel__json *parsed;    /* a row that was given as text */
    ravel__chat_writer writer;
    ravel__buffer messages; /* ravel__message */
    size_t message_count;
    ravel__script script;
    ravel__buffer tokens[2], masks[2];
    ravel__buffer joined; /* instruction and input */
    ravel_row row;
    char inserted[64];
    /* the row that is being read */
    const ravel__json *doc;
    node *object;
    ravel_error *err;
};

/* ---- members -------------------------------------------------------------------------------------------- */

static node *member_of(const ravel_rows *r, node *object, const char *key) {
    node *n = ravel__json_get(r->doc, object, key);
    return n && n->kind == RAVEL__JSON_NULL ? NULL : n;
}

static node *member(const ravel_rows *r, const char *key) {
    return member_of(r, r->object, key);
}

static int is_text(node *n) {
    return n && n->kind == RAVEL__JSON_STRING;
}

static int is_list(node *n) {
    return n && n->kind == RAVEL__JSON_ARRAY;
}

static ravel_status fits_nothing(const ravel_rows *r) {
    char keys[300] = "";
    size_t used = 0;
    for (node *n = ravel__json_first(r->doc, r->object); n && used + 1 < sizeof keys; n = ravel__json_next(r->doc, n)) {
        int length = snprintf(keys + used, sizeof keys - used, "%s\"%.40s\"", used ? ", " : "", n->key);
        used += length > 0 ? (size_t)length : 0;
    }
    return ravel_error_set(
        r->err, RAVEL_E_DATA,
        "a row needs \"messages\", \"conversations\", \"prompt\" and \"completion\", \"instruction\" "
        "and \"output\", \"text\", \"input_ids\", or \"chosen\" and \"rejected\"; this one has %s",
        used ? keys : "no keys");
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* Other names of roles, as in rows of "conversations". */
static const char *role_named(const char *name) {
    static const char *const names[][2] = {{"human", "user"}, {"gpt", "assistant"}};
    for (int i = 0; i < 2; i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return name;
}

static ravel_status put_message(ravel_rows *r, ravel__message message) {
    ravel_status status = ravel__buffer_reserve(&r->messages, r->allocator, (int64_t)r->message_count + 1,
                                                sizeof(ravel__message), "a text", r->err);
    if (status) return status;
    message.is_answer = message.role && strcmp(message.role, "assistant") == 0;
    if (message.object && !message.content) message.role = NULL; /* the object says it itself */
    ((ravel__message *)r->messages.at)[r->message_count++] = message;
    return RAVEL_OK;
}

/* A message that is no object of the row. */
static ravel_status add_message(ravel_rows *r, const char *role, node *content) {
    RAVEL_ASSERT(is_text(content));
    return put_message(r, (ravel__message){NULL, role, content->as.string, content->bytes, 0});
}

static ravel_status read_message(ravel_rows *r, const char *key, node *n, int64_t number) {
    if (n->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] must be an object with role and content", key,
                               number);
    node *role = member_of(r, n, "role"), *from = role ? NULL : member_of(r, n, "from");
    node *content = member_of(r, n, "content"), *value = content ? NULL : member_of(r, n, "value");
    node *who = role ? role : from;
    if (!is_text(who))
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] has no role that is a text", key, number);
    const char *name = role_named(who->as.string);
    if (is_text(value) || (is_text(content) && from) || (is_text(content) && name != who->as.string)) {
        node *text = content ? content : value;
        return put_message(r, (ravel__message){n, name, text->as.string, text->bytes, 0});
    }
    if (!is_text(content) && !is_list(content) && !is_list(member_of(r, n, "tool_calls")))
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] has no content that is a text", key, number);
    return put_message(r, (ravel__message){n, name, NULL, 0, 0});
}

static ravel_status read_messages(ravel_rows *r, const char *key, node *list) {
    ravel_status status = RAVEL_OK;
    int64_t number = 0;
    if (!is_list(list) || list->count == 0)
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" must be a list of at least one message", key);
    for (node *n = ravel__json_first(r->doc, list); n && !status; n = ravel__json_next(r->doc, n))
        status = read_message(r, key, n, number++);
    return status;
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

static ravel_status reserve_part(ravel_rows *r, int part, int64_t count) {
    RAVEL_ASSERT((part == 0 || part == 1) && count >= 0);
    ravel_status status =
        ravel__buffer_reserve(&r->tokens[part], r->allocator, (size_t)count + 1, sizeof(int32_t), "a text", r->err);
    if (!status) status = ravel__buffer_reserve(&r->masks[part], r->allocator, (size_t)count + 1, 1, "a text", r->err);
    if (!status) r->row.parts[part] = (ravel_row_part){count, r->tokens[part].at, r->masks[part].at};
    return status;
}

/* 1 for tokens that begin inside answers[count]. */
static void mask_answers(const ravel_encoding *e, const ravel__answer *answers, size_t count, uint8_t *mask) {
    RAVEL_ASSERT(answers || !count);
    size_t next = 0;
    for (int64_t i = 0; i < e->count; i++) {
        while (next < count && answers[next].end <= e->begins[i]) next++;
        mask[i] = next < count && e->begins[i] >= answers[next].begin;
    }
}

/* The conversation that was read as text. */
static ravel_status write_messages(ravel_rows *r, int open, int find) {
    if (!r->format)
        return ravel_error_set(
            r->err, RAVEL_E_UNSUPPORTED,
            "the row is a conversation, and the model folder has no chat template that can be used; name "
            "a chat format (chatml, llama3, ...) or a file of a template");
    const ravel__chat chat = {r->format,    r->tokenizer,   r->doc,           r->object,
                              r->variables, r->messages.at, r->message_count, r->now};
    return ravel__chat_write(&r->writer, &chat, open, find, &r->script, r->allocator, r->err);
}

/* Answers that begin with what no message has, more than white space. */
static void note_inserted(ravel_rows *r, const ravel__answer *answers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *text = (const char *)r->script.text.at + answers[i].begin;
        size_t end = answers[i].own < answers[i].end ? answers[i].own : answers[i].end;
        size_t bytes = end > answers[i].begin ? end - answers[i].begin : 0;
        if (bytes == ravel__spaces_before(text, bytes)) continue;
        if (r->row.inserted++) continue;
        if (bytes > sizeof r->inserted - 1) bytes = sizeof r->inserted - 1;
        memcpy(r->inserted, text, bytes);
        r->inserted[bytes] = '\0';
    }
}

/* The conversation that was read, as text; what is learnt are the answers from `first_answer` on. */
static ravel_status encode_messages(ravel_rows *r, int part, size_t first_answer, int train_on) {
    RAVEL_ASSERT(r->message_count > 0);
    const ravel_encoding *e = NULL;
    ravel__script *s = &r->script;
    ravel_status status = write_messages(r, 0, train_on != RAVEL_TRAIN_ON_ALL);
    if (!status) status = ravel_encoder_encode(r->encoder, s->text.at, s->bytes, 0, &e, r->err);
    if (status) return status;
    RAVEL_ASSERT(e);
    status = reserve_part(r, part, e->count);
    if (status) return status;
    if (s->answer_count <= first_answer && train_on != RAVEL_TRAIN_ON_ALL)
        return ravel_error_set(r->err, RAVEL_E_DATA, "the conversation has no answer (role assistant) to learn from");
    RAVEL_ASSERT(train_on == RAVEL_TRAIN_ON_ALL || s->answer_count >= 1);
    if (train_on == RAVEL_TRAIN_ON_LAST) first_answer = s->answer_count - 1;
    memcpy(r->tokens[part].at, e->ids, (size_t)e->count * sizeof *e->ids);
    if (train_on == RAVEL_TRAIN_ON_ALL) {
        memset(r->masks[part].at, 1, (size_t)e->count);
        return RAVEL_OK;
    }
    const ravel__answer *learnt = (ravel__answer *)s->answers.at + first_answer;
    mask_answers(e, learnt, s->answer_count - first_answer, r->masks[part].at);
    note_inserted(r, learnt, s->answer_count - first_answer);
    return RAVEL_OK;
}

/* Up to two texts, one after the other, with what the tokenizer puts around a text, and eos. The second is learnt, or
 * all of it if there is one. */
static ravel_status encode_texts(ravel_rows *r, int part, node *first, node *second, int end) {
    const ravel_tokenizer *t = r->tokenizer;
    const ravel_encoding *e = NULL;
    r->script.bytes = 0;
    ravel_status status =
        ravel__script_put(&r->script, first ? first->as.string : "", first ? first->bytes : 0, r->allocator, r->err);
    if (!status && second)
        status = ravel__script_put(&r->script, second->as.string, second->bytes, r->allocator, r->err);
    if (!status) status = ravel_encoder_encode(r->encoder, r->script.text.at, r->script.bytes, 0, &e, r->err);
    if (status) return status;
    int32_t suffix = end ? t->suffix_count : 0;
    int eos = end && suffix == 0 && t->eos >= 0 && !(e->count && e->ids[e->count - 1] == t->eos);
    int64_t count = t->prefix_count + e->count + suffix + eos;
    status = reserve_part(r, part, count);
    if (status) return status;
    RAVEL_ASSERT(count >= e->count && r->row.parts[part].count == count);
    int32_t *ids = r->tokens[part].at;
    uint8_t *mask = r->masks[part].at;
    size_t learnt = second && first ? first->bytes : 0;
    if (t->prefix_count) memcpy(ids, t->prefix, (size_t)t->prefix_count * sizeof *ids);
    memset(mask, 0, (size_t)t->prefix_count);
    for (int64_t i = 0; i < e->count; i++) {
        ids[t->prefix_count + i] = e->ids[i];
        mask[t->prefix_count + i] = e->begins[i] >= learnt;
    }
    if (suffix) memcpy(ids + t->prefix_count + e->count, t->suffix, (size_t)suffix * sizeof *ids);
    if (eos) ids[count - 1] = t->eos;
    memset(mask + t->prefix_count + e->count, 1, (size_t)suffix + (size_t)eos);
    if (r->train_on == RAVEL_TRAIN_ON_ALL) memset(mask, 1, (size_t)count);
    return RAVEL_OK;
}

/* ---- kinds ---------------------------------------------------------------------------------------------- */

static ravel_status read_mask(ravel_rows *r, node *list, const char *key, int labels) {
    const int32_t *ids = r->tokens[0].at;
    uint8_t *mask = r->masks[0].at;
    int64_t i = 0, value;
    int flag;
    if (!is_list(list) || list->count != r->row.parts[0].count)
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" must be a list as long as \"input_ids\"", key);
    for (node *n = ravel__json_first(r->doc, list); n; n = ravel__json_next(r->doc, n), i++) {
        int good = ravel__json_integer(n, &value) || (ravel__json_boolean(n, &flag) && (value = flag, 1));
        good = good && (labels ? value == -100 || value == ids[i] : value == 0 || value == 1);
        if (!good)
            return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] must be %s", key, i,
                                   labels ? "the token itself or -100; labels are not shifted here" : "0 or 1");
        RAVEL_ASSERT(i < r->row.parts[0].count);
        mask[i] = labels ? value != -100 : (uint8_t)value;
    }
    return RAVEL_OK;
}

static ravel_status mask_prompt(ravel_rows *r, node *length) {
    int64_t prompt;
    if (!ravel__json_integer(length, &prompt) || prompt < 0 || prompt > r->row.parts[0].count)
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"prompt_length\" must be a whole number from 0 to %" PRId64,
                               r->row.parts[0].count);
    memset(r->masks[0].at, 0, (size_t)prompt);
    return RAVEL_OK;
}

static ravel_status take_ids(ravel_rows *r) {
    node *list = member(r, "input_ids"), *mask = member(r, "loss_mask"), *labels = member(r, "labels");
    node *prompt = member(r, "prompt_length");
    int64_t i = 0, value;
    if (member(r, "cu_seqlens"))
        return ravel_error_set(r->err, RAVEL_E_UNSUPPORTED,
                               "the row is several samples (\"cu_seqlens\"), which only a source takes apart "
                               "(ravel feed, ravel train)");
    if (!!mask + !!labels + !!prompt > 1)
        return ravel_error_set(r->err, RAVEL_E_DATA,
                               "a row has one of \"labels\", \"loss_mask\" and \"prompt_length\", not several");
    if (!is_list(list)) return ravel_error_set(r->err, RAVEL_E_DATA, "\"input_ids\" must be a list of token ids");
    ravel_status status = reserve_part(r, 0, list->count);
    for (node *n = status ? NULL : ravel__json_first(r->doc, list); n; n = ravel__json_next(r->doc, n), i++) {
        if (!ravel__json_integer(n, &value) || value < 0 || value > INT32_MAX)
            return ravel_error_set(r->err, RAVEL_E_DATA, "\"input_ids\"[%" PRId64 "] must be a token id", i);
        ((int32_t *)r->tokens[0].at)[i] = (int32_t)value;
    }
    if (status) return status;
    memset(r->masks[0].at, 1, (size_t)list->count);
    if (mask) return read_mask(r, mask, "loss_mask", 0);
    if (prompt) return mask_prompt(r, prompt);
    return labels ? read_mask(r, labels, "labels", 1) : RAVEL_OK;
}

static size_t count_answers(const ravel_rows *r) {
    const ravel__message *messages = r->messages.at;
    size_t answers = 0;
    for (size_t i = 0; i < r->message_count; i++) answers += (size_t)messages[i].is_answer;
    return answers;
}

/* A prompt, as a list or as one user turn, and what follows it; only answers of what follows are learnt. */
static ravel_status encode_after_prompt(ravel_rows *r, int part, node *prompt, const char *key, node *list,
                                        int train_on) {
    ravel_status status = RAVEL_OK;
    r->message_count = 0;
    if (is_list(prompt)) status = read_messages(r, "prompt", prompt);
    if (is_text(prompt)) status = add_message(r, "user", prompt);
    size_t before = count_answers(r);
    if (!status) status = read_messages(r, key, list);
    return status ? status : encode_messages(r, part, before, train_on);
}

static int begins_with_answer(const ravel_rows *r, node *list) {
    node *first = ravel__json_first(r->doc, list), *role = first ? member_of(r, first, "role") : NULL;
    if (first && !role) role = member_of(r, first, "from");
    return is_text(role) && strcmp(role_named(role->as.string), "assistant") == 0;
}

static ravel_status take_answer_of_pair(ravel_rows *r, int part, const char *key) {
    node *prompt = member(r, "prompt"), *answer = member(r, key);
    if (is_list(answer)) { /* a prompt that is a text is usually in the list too */
        int missing = is_list(prompt) || begins_with_answer(r, answer);
        return encode_after_prompt(r, part, missing ? prompt : NULL, key, answer, RAVEL_TRAIN_ON_LAST);
    }
    if (!is_text(answer))
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" must be a text or a list of messages", key);
    if (prompt && !is_text(prompt))
        return ravel_error_set(r->err, RAVEL_E_DATA,
                               "\"%s\" is a text, so \"prompt\" must be one too; or write it as a list of messages",
                               key);
    if (is_text(prompt)) return encode_texts(r, part, prompt, answer, 1);
    return encode_texts(r, part, answer, NULL, 1);
}

static ravel_status take_pair(ravel_rows *r) {
    ravel_status status = take_answer_of_pair(r, 0, "chosen");
    if (!status) status = take_answer_of_pair(r, 1, "rejected");
    r->row.pair = 1;
    return status;
}

static ravel_status take_messages(ravel_rows *r) {
    return encode_after_prompt(r, 0, NULL, "messages", member(r, "messages"), r->train_on);
}

static ravel_status take_conversations(ravel_rows *r) {
    return encode_after_prompt(r, 0, NULL, "conversations", member(r, "conversations"), r->train_on);
}

static ravel_status take_completion(ravel_rows *r) {
    node *prompt = member(r, "prompt"), *completion = member(r, "completion");
    const char *key = completion ? "completion" : "response";
    if (!completion) completion = member(r, "response");
    if (is_text(prompt) && is_text(completion)) return encode_texts(r, 0, prompt, completion, 1);
    if (is_list(completion) && (is_list(prompt) || is_text(prompt)))
        return encode_after_prompt(r, 0, prompt, key, completion, r->train_on);
    return ravel_error_set(r->err, RAVEL_E_DATA, "\"prompt\" and \"%s\" must be two texts or two lists of messages",
                           key);
}

/* The instruction, and below it the input if there is one, as a user turn. */
static ravel_status add_instruction(ravel_rows *r) {
    node *instruction = member(r, "instruction"), *input = member(r, "input");
    r->message_count = 0;
    if (!is_text(instruction)) return ravel_error_set(r->err, RAVEL_E_DATA, "\"instruction\" must be a text");
    ravel_status status = add_message(r, "user", instruction);
    if (status || !is_text(input) || input->bytes == 0) return status;
    size_t bytes = (size_t)instruction->bytes + 2 + input->bytes;
    status = ravel__buffer_reserve(&r->joined, r->allocator, bytes, 1, "a text", r->err);
    if (status) return status;
    char *text = r->joined.at;
    memcpy(text, instruction->as.string, instruction->bytes);
    text[instruction->bytes] = text[instruction->bytes + 1] = '\n';
    memcpy(text + instruction->bytes + 2, input->as.string, input->bytes);
    RAVEL_ASSERT(r->message_count == 1);
    ravel__message *m = r->messages.at;
    m->content = text;
    m->bytes = bytes;
    return RAVEL_OK;
}

static ravel_status take_instruction(ravel_rows *r) {
    node *output = member(r, "output");
    ravel_status status = add_instruction(r);
    if (!status && !is_text(output)) status = ravel_error_set(r->err, RAVEL_E_DATA, "\"output\" must be a text");
    if (!status) status = add_message(r, "assistant", output);
    return status ? status : encode_messages(r, 0, 0, r->train_on);
}

static ravel_status take_text(ravel_rows *r) {
    node *text = member(r, "text");
    if (!is_text(text)) return ravel_error_set(r->err, RAVEL_E_DATA, "\"text\" must be a text");
    return encode_texts(r, 0, text, NULL, 1);
}

/* The forms of a row: it fits where both members are there. */
static const struct {
    const char *key, *other;
    ravel_status (*take)(ravel_rows *r);
} kinds[] = {
    {"input_ids", NULL, take_ids},
    {"chosen", "rejected", take_pair},
    {"messages", NULL, take_messages},
    {"conversations", NULL, take_conversations},
    {"prompt", "completion", take_completion},
    {"prompt", "response", take_completion},
    {"instruction", "output", take_instruction},
    {"text", NULL, take_text},
};

static ravel_status begin(ravel_rows *r, const ravel__json *doc, node *object, ravel_error *err) {
    r->doc = doc;
    r->object = object;
    r->err = err;
    r->message_count = 0;
    r->row = (ravel_row){.inserted_text = r->inserted};
    r->inserted[0] = '\0';
    if (object->kind != RAVEL__JSON_OBJECT) return ravel_error_set(err, RAVEL_E_DATA, "a row must be a JSON object");
    node *tools = member(r, "tools");
    if (tools && !is_list(tools))
        return ravel_error_set(err, RAVEL_E_DATA, "\"tools\" must be a list of functions' schemas");
    return RAVEL_OK;
}

ravel_status ravel__rows_encode(ravel_rows *r, const ravel__json *doc, const ravel__json_node *object,
                                const ravel_row **row, ravel_error *err) {
    ravel_status status = begin(r, doc, object, err);
    if (status) return status;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!member(r, kinds[i].key) || (kinds[i].other && !member(r, kinds[i].other))) continue;
        status = kinds[i].take(r);
        if (!status) *row = &r->row;
        return status;
    }
    return fits_nothing(r);
}

/* ---- prompts -------------------------------------------------------------------------------------------- */

static ravel_status read_prompt(ravel_rows *r) {
    node *prompt = member(r, "prompt");
    if (is_list(prompt)) return read_messages(r, "prompt", prompt);
    if (is_text(prompt)) return add_message(r, "user", prompt);
    if (member(r, "messages")) return read_messages(r, "messages", member(r, "messages"));
    if (member(r, "conversations")) return read_messages(r, "conversations", member(r, "conversations"));
    if (member(r, "instruction")) return add_instruction(r);
    return ravel_error_set(r->err, RAVEL_E_DATA,
                           "a row needs \"prompt\", \"messages\", \"conversations\" or \"instruction\"");
}

ravel_status ravel__rows_prompt(ravel_rows *r, const ravel__json *doc, const ravel__json_node *object,
                                const ravel_row **row, ravel_error *err) {
    const ravel_encoding *e = NULL;
    ravel_status status = begin(r, doc, object, err);
    if (!status && !r->format && is_text(member(r, "prompt"))) {
        status = encode_texts(r, 0, member(r, "prompt"), NULL, 0);
        if (!status) memset(r->masks[0].at, 0, (size_t)r->row.parts[0].count);
        if (!status) *row = &r->row;
        return status;
    }
    if (!status) status = read_prompt(r);
    if (status) return status;
    const ravel__message *messages = r->messages.at;
    while (r->message_count && messages[r->message_count - 1].is_answer) r->message_count--;
    if (r->message_count == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "the conversation has no message before its answer");
    status = write_messages(r, 1, 0);
    if (!status) status = ravel_encoder_encode(r->encoder, r->script.text.at, r->script.bytes, 0, &e, err);
    if (status) return status;
    RAVEL_ASSERT(e);
    status = reserve_part(r, 0, e->count);
    if (status) return status;
    memcpy(r->tokens[0].at, e->ids, (size_t)e->count * sizeof *e->ids);
    memset(r->masks[0].at, 0, (size_t)e->count);
    *row = &r->row;
    return RAVEL_OK;
}

ravel_status ravel__rows_render(ravel_rows *r, const ravel__json *doc, const ravel__json_node *row, int32_t answer,
                                const char **text, size_t *bytes, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    r->doc = doc;
    r->err = err;
    r->message_count = 0;
    r->object = row->kind == RAVEL__JSON_OBJECT ? row : NULL;
    node *messages = r->object ? member(r, "messages") : row;
    if (!messages || !is_list(messages))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "a conversation is a list of messages, or an object with \"messages\"");
    if (messages->count) status = read_messages(r, "messages", messages);
    if (!status) status = write_messages(r, answer != 0, 0);
    if (status) return status;
    *text = r->script.text.at;
    *bytes = r->script.bytes;
    return RAVEL_OK;
}

/* ---- from text ------------------------------------------------------------------------------------------ */

ravel_status ravel_rows_encode(ravel_rows *r, const char *json, size_t bytes, const ravel_row **row, ravel_error *err) {
    ravel_status status = ravel__json_parse(json, bytes, r->allocator, &r->parsed, err);
    return status ? status : ravel__rows_encode(r, r->parsed, ravel__json_root(r->parsed), row, err);
}

ravel_status ravel_rows_prompt(ravel_rows *r, const char *json, size_t bytes, const ravel_row **row, ravel_error *err) {
    ravel_status status = ravel__json_parse(json, bytes, r->allocator, &r->parsed, err);
    return status ? status : ravel__rows_prompt(r, r->parsed, ravel__json_root(r->parsed), row, err);
}

ravel_status ravel_rows_render(ravel_rows *r, const char *json, size_t bytes, int32_t answer, const char **text,
                               size_t *text_bytes, ravel_error *err) {
    ravel_status status = ravel__json_parse(json, bytes, r->allocator, &r->parsed, err);
    return status ? status
                  : ravel__rows_render(r, r->parsed, ravel__json_root(r->parsed), answer, text, text_bytes, err);
}

/* ---- the object ----------------------------------------------------------------------------------------- */

void ravel_rows_options_default(ravel_rows_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

static ravel_status read_variables(ravel_rows *r, const char *text, ravel_error *err) {
    ravel_status status = ravel__json_parse(text, strlen(text), r->allocator, &r->variables, err);
    if (!status && ravel__json_root(r->variables)->kind != RAVEL__JSON_OBJECT)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "must be a JSON object");
    if (status) ravel_error_prefix(err, "the chat template's variables");
    return status;
}

ravel_status ravel_rows_create(const ravel_rows_options *options, ravel_rows **rows, ravel_error *err) {
    if (!options || options->size < sizeof *options || !options->tokenizer)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "fill the options with ravel_rows_options_default first, and give a tokenizer");
    if (options->train_on < RAVEL_TRAIN_ON_ASSISTANT || options->train_on > RAVEL_TRAIN_ON_ALL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "train_on is %d, which is none of %s", options->train_on,
                               RAVEL_TRAIN_ON_CHOICES);
    ravel_rows *r = ravel__calloc(options->allocator, 1, sizeof *r);
    if (!r) return ravel__no_memory(err, sizeof *r, "rows of text");
    r->tokenizer = options->tokenizer;
    r->format = options->format;
    r->allocator = options->allocator;
    r->train_on = options->train_on;
    r->now = options->now;
    ravel__chat_writer_init(&r->writer, r->allocator);
    ravel_status status = options->variables ? read_variables(r, options->variables, err) : RAVEL_OK;
    if (!status) status = ravel_encoder_create(r->tokenizer, r->allocator, &r->encoder, err);
    if (status)
        ravel_rows_free(r);
    else
        *rows = r;
    return status;
}

void ravel_rows_free(ravel_rows *r) {
    if (!r) return;
    ravel__buffer *each[] = {&r->messages,  &r->script.text, &r->script.answers, &r->tokens[0],
                             &r->tokens[1], &r->masks[0],    &r->masks[1],       &r->joined};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) ravel__buffer_free(each[i], r->allocator);
    ravel__chat_writer_free(&r->writer);
    ravel__json_free(r->variables);
    ravel__json_free(r->parsed);
    ravel_encoder_free(r->encoder);
    ravel__release(r->allocator, r, sizeof *r);
}
