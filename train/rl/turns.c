#include "train/rl/turns.h"

#include "base/assert.h"
#include "text/decoder.h"
#include "base/json.h"
#include "train/kernels/host.h"

#include <ravel/tokenizer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_turns_free(train_turns *t) {
    train_out_free(&t->messages);
    train_out_free(&t->more);
    *t = (train_turns){0};
}

static ravel_status check_memory(const train_out *out, ravel_error *err) {
    return out->failed ? ravel__no_memory(err, out->used, "a conversation") : RAVEL_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static void add_text(train_turns *t, const char *role, const char *content, size_t bytes) {
    train_out *o = &t->messages;
    train_out_puts(o, t->count++ ? ",{\"role\":" : "[{\"role\":");
    train_out_quote(o, role, strlen(role));
    train_out_puts(o, ",\"content\":");
    train_out_quote(o, content, bytes);
    train_out_puts(o, "}");
}

static void add_node(train_turns *t, const ravel__json *doc, const ravel__json_node *node) {
    train_out_puts(&t->messages, t->count++ ? "," : "[");
    train_out_json(&t->messages, doc, node);
}

/* The messages of a list; without a format their contents alone, as text. */
static ravel_status add_list(train_turns *t, const char *json, size_t bytes, int format, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(json, bytes, NULL, &doc, err);
    const ravel__json_node *list = status ? NULL : ravel__json_root(doc);
    for (const ravel__json_node *x = list ? ravel__json_first(doc, list) : NULL; x && !status;
         x = ravel__json_next(doc, x)) {
        const ravel__json_node *content = ravel__json_get(doc, x, "content");
        if (x->kind != RAVEL__JSON_OBJECT || (!format && (!content || content->kind != RAVEL__JSON_STRING)))
            status = ravel_error_set(err, RAVEL_E_DATA, "environment: a message has no \"content\" that is a text");
        else if (format)
            add_node(t, doc, x);
        else
            train_out_put(&t->messages, content->as.string, content->bytes);
    }
    ravel__json_free(doc);
    return status;
}

static ravel_status add_said(train_turns *t, const train_said *said, int format, ravel_error *err) {
    if (said->listed) return add_list(t, said->text, said->bytes, format, err);
    if (format)
        add_text(t, said->role, said->text, said->bytes);
    else
        train_out_put(&t->messages, said->text, said->bytes);
    return RAVEL_OK;
}

/* Variables of the template that a row has beside its messages. */
static void keep_more(train_turns *t, const ravel__json *doc) {
    static const char *const names[] = {"tools", "documents", "chat_template_kwargs"};
    for (int i = 0; i < 3; i++) {
        const ravel__json_node *x = ravel__json_get(doc, ravel__json_root(doc), names[i]);
        if (!x) continue;
        train_out_print(&t->more, ",\"%s\":", names[i]);
        train_out_json(&t->more, doc, x);
    }
}

/* The messages of a row up to the answer that is wanted, as ravel_rows_prompt reads them. */
static ravel_status read_row(train_turns *t, const char *line, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(line, strlen(line), NULL, &doc, err);
    const ravel__json_node *root = status ? NULL : ravel__json_root(doc);
    const ravel__json_node *prompt = ravel__json_get(doc, root, "prompt"), *list = prompt, *last = NULL;
    if (!status) keep_more(t, doc);
    if (prompt && prompt->kind == RAVEL__JSON_STRING) add_text(t, "user", prompt->as.string, prompt->bytes);
    if (!list || list->kind != RAVEL__JSON_ARRAY) list = ravel__json_get(doc, root, "messages");
    if (t->count || (list && list->kind != RAVEL__JSON_ARRAY)) list = NULL;
    for (const ravel__json_node *x = ravel__json_first(doc, list); x; x = ravel__json_next(doc, x))
        if (!ravel__json_is(ravel__json_get(doc, x, "role"), "assistant")) last = x;
    for (const ravel__json_node *x = last ? ravel__json_first(doc, list) : NULL; x;
         x = x == last ? NULL : ravel__json_next(doc, x))
        add_node(t, doc, x);
    t->unknown = t->count == 0 || ravel__json_get(doc, root, "input_ids") != NULL;
    ravel__json_free(doc);
    return status ? status : check_memory(&t->messages, err);
}

/* ---- rendering ------------------------------------------------------------------------------------------ */

/* The conversation as the format writes it. */
static ravel_status render(train_text *text, const train_turns *t, const char **out, size_t *bytes, ravel_error *err) {
    train_out json = {0};
    ravel_error why = RAVEL_ERROR_INIT;
    *out = "";
    *bytes = 0;
    train_out_puts(&json, "{\"messages\":");
    train_out_put(&json, t->messages.data, t->messages.used);
    train_out_puts(&json, "]");
    train_out_put(&json, t->more.data, t->more.used);
    train_out_puts(&json, "}");
    json.failed |= t->messages.failed | t->more.failed;
    ravel_status status = check_memory(&json, &why);
    if (!status) status = train_text_render(text, json.data, json.used, out, bytes, &why);
    train_out_free(&json);
    if (status == RAVEL_E_MEMORY || !status) return status ? ravel_error_set(err, status, "%s", why.message) : status;
    return ravel_error_set(err, RAVEL_E_DATA, "the chat template refuses the conversation: %.300s", why.message);
}

/* What the format writes after an answer of one word. */
static ravel_status after_a_word(train_text *text, const train_said *said, char **out, ravel_error *err) {
    static const char word[] = "Ravelled";
    train_turns t = {0};
    const char *rendered = "", *at = NULL;
    size_t bytes = 0;
    add_text(&t, "user", "x", 1);
    add_text(&t, "assistant", word, sizeof word - 1);
    ravel_status status = add_said(&t, said, 1, err);
    if (!status) status = render(text, &t, &rendered, &bytes, err);
    train_turns_free(&t);
    if (!status) at = strstr(rendered, word);
    if (!status && !at)
        return ravel_error_set(err, RAVEL_E_DATA, "the chat template does not write the answers of earlier turns");
    if (!status && !(*out = strndup(at + sizeof word - 1, bytes))) status = ravel__no_memory(err, bytes, "a turn");
    return status;
}

/* The text of held[count], special tokens too; free it. */
static char *text_of(train_text *text, const int32_t *held, int64_t count, size_t *bytes) {
    const ravel_tokenizer *tokenizer = train_text_tokenizer(text);
    *bytes = ravel_tokenizer_decode(tokenizer, held, count, 0, NULL, 0);
    char *out = malloc(*bytes + 1);
    if (out) (void)ravel_tokenizer_decode(tokenizer, held, count, 0, out, *bytes + 1);
    return out;
}

/* Whether text[bytes] in one piece has other tokens than held[count]. */
static int retokenised(train_text *text, const char *piece, size_t bytes, const int32_t *held, int64_t count) {
    const int32_t *tokens;
    int64_t n;
    if (train_text_fragment(text, piece, bytes, &tokens, &n, NULL) || n != count) return 1;
    return n && memcmp(tokens, held, (size_t)n * sizeof *held) != 0;
}

/* A piece of text behind the held tokens. After a special token it is tokenised together with that: some tokenizers put
 * a space where a text begins. */
static ravel_status tokens_after(train_text *text, int32_t last, const char *piece, const int32_t **tokens, int64_t *n,
                                 ravel_error *err) {
    const ravel_tokenizer *tokenizer = train_text_tokenizer(text);
    size_t bytes = 0, more = strlen(piece);
    const char *special =
        ravel__tokenizer_is_special(tokenizer, last) ? ravel_tokenizer_bytes(tokenizer, last, &bytes) : NULL;
    char *both = special ? malloc(bytes + more + 1) : NULL;
    if (!both) return train_text_fragment(text, piece, more, tokens, n, err);
    memcpy(both, special, bytes);
    memcpy(both + bytes, piece, more + 1);
    ravel_status status = train_text_fragment(text, both, bytes + more, tokens, n, err);
    free(both);
    if (status || *n == 0 || **tokens != last)
        return status ? status : train_text_fragment(text, piece, more, tokens, n, err);
    ++*tokens;
    --*n;
    return RAVEL_OK;
}

/* ---- public functions ------------------------------------------------------------------------------------ */

static ravel_status encode_rendered(train_text *text, const train_turns *t, const int32_t **tokens, int64_t *n,
                                    ravel_error *err) {
    const char *rendered;
    size_t bytes;
    ravel_status status = render(text, t, &rendered, &bytes, err);
    return status ? status : train_text_fragment(text, rendered, bytes, tokens, n, err);
}

/* What is said, without a format: `begins` a sample, or goes on. */
static ravel_status encode_plain(train_text *text, train_turns *t, const train_said *said, int begins,
                                 const int32_t **tokens, int64_t *n, ravel_error *err) {
    t->messages.used = 0; /* without a format it is free for this */
    ravel_status status = add_said(t, said, 0, err);
    const char *piece = t->messages.used ? t->messages.data : "";
    if (!status) status = check_memory(&t->messages, err);
    if (status) return status;
    return begins ? train_text_encode(text, piece, t->messages.used, tokens, n, err)
                  : train_text_fragment(text, piece, t->messages.used, tokens, n, err);
}

ravel_status train_turns_begin(train_text *text, train_turns *t, const char *line, const int32_t *prompt, int64_t count,
                               const train_said *said, const int32_t **tokens, int64_t *n, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int format = train_text_has_format(text);
    *tokens = prompt;
    *n = count;
    if (format && line) status = read_row(t, line, err);
    if (status || !said) return status;
    if (format && t->unknown)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the row has no messages or prompt, so that nothing can be said after it");
    if (format) {
        status = add_said(t, said, 1, err);
        return status ? status : encode_rendered(text, t, tokens, n, err);
    }
    const int32_t *more;
    int64_t extra;
    status = encode_plain(text, t, said, !line, &more, &extra, err);
    if (status) return status;
    t->messages.used = 0;
    if (line) train_out_put(&t->messages, (const char *)prompt, (size_t)count * sizeof *prompt);
    train_out_put(&t->messages, (const char *)more, (size_t)extra * sizeof *more);
    *tokens = (const int32_t *)(const void *)t->messages.data;
    *n = (line ? count : 0) + extra;
    return check_memory(&t->messages, err);
}

ravel_status train_turns_replace(train_text *text, train_turns *t, const char *context, size_t bytes,
                                 const train_said *said, const int32_t **tokens, int64_t *n, ravel_error *err) {
    int format = train_text_has_format(text);
    t->messages.used = 0;
    t->count = t->unknown = 0;
    ravel_status status = add_list(t, context, bytes, format, err);
    if (!status && said) status = add_said(t, said, format, err);
    if (!status) status = check_memory(&t->messages, err);
    if (status) return status;
    return format ? encode_rendered(text, t, tokens, n, err)
                  : train_text_encode(text, t->messages.data, t->messages.used, tokens, n, err);
}

/* What the format writes behind the held text; *out NULL: it does not begin with that. */
static ravel_status difference(train_text *text, train_turns *t, const int32_t *held, int64_t count, char **out,
                               int *differs, ravel_error *err) {
    const char *rendered;
    size_t bytes, have;
    char *own = text_of(text, held, count, &have);
    if (!own) return ravel__no_memory(err, 1, "a conversation");
    ravel_status status = render(text, t, &rendered, &bytes, err);
    int same = !status && bytes >= have && memcmp(rendered, own, have) == 0;
    if (same && !(*out = strndup(rendered + have, bytes - have))) status = ravel__no_memory(err, bytes, "a turn");
    *differs = !same || retokenised(text, own, have, held, count);
    free(own);
    return status;
}

ravel_status train_turns_answer(train_text *text, train_turns *t, const int32_t *held, int64_t count, int64_t drawn,
                                int ended, const train_said *said, const int32_t **tokens, int64_t *n, int *differs,
                                ravel_error *err) {
    char *piece = NULL;
    size_t bytes;
    RAVEL_ASSERT(drawn >= 1 && drawn <= count);
    *differs = 0;
    if (!train_text_has_format(text)) return encode_plain(text, t, said, 0, tokens, n, err);
    char *answer = text_of(text, held + count - drawn, drawn - (ended != 0), &bytes);
    if (!answer) return ravel__no_memory(err, 1, "an answer");
    add_text(t, "assistant", answer, bytes);
    free(answer);
    ravel_status status = add_said(t, said, 1, err);
    if (!status && !t->unknown) status = difference(text, t, held, count, &piece, differs, err);
    int by_word = !status && !piece;
    if (by_word) status = after_a_word(text, said, &piece, err);
    RAVEL_ASSERT(status || piece);
    if (!status) status = tokens_after(text, held[count - 1], piece, tokens, n, err);
    free(piece);
    if (!status && by_word && ended && *n && **tokens == held[count - 1]) ++*tokens, --*n; /* the answer's own end */
    return status;
}
