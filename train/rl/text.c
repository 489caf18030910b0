#include "train/rl/text.h"

#include "base/assert.h"
#include "text/decoder.h"
#include "train/kernels/host.h"
#include "train/learn/choice.h"
#include "train/model/hf/files.h"

#include <ravel/tokenizer.h>

#include <stdio.h>

struct train_text {
    ravel_tokenizer *tokenizer; /* NULL: bytes */
    ravel_encoder *encoder;
    ravel_chat_format *format; /* named by the options; NULL: the tokenizer's, or none */
    ravel_rows *rows;          /* conversations */
    int has_format;
    int64_t vocab;
    int32_t *tokens; /* of bytes */
    int64_t room;
    ravel_error missing;   /* why there is no text */
    ravel_error no_format; /* why conversations cannot be written */
};

static const char bridge[] =
    "give tokens as input_ids: python -m ravel.prepare --prompts --model FOLDER questions.jsonl out.jsonl";

/* Without a known format, texts can be read; a row that is a conversation is an error. */
static ravel_status open_rows(train_text *t, const char *chat_format, const char *chat_args, ravel_error *err) {
    ravel_rows_options options;
    ravel_rows_options_default(&options);
    options.tokenizer = t->tokenizer;
    RAVEL_ASSERT(t->tokenizer && !t->rows);
    options.variables = chat_args;
    ravel_status status = RAVEL_OK;
    if (chat_format)
        status = ravel_chat_format_open(chat_format, NULL, &t->format, err);
    else
        (void)ravel_chat_format_of(t->tokenizer, &options.format, &t->no_format);
    if (status) return status;
    if (t->format) options.format = t->format;
    t->has_format = options.format != NULL;
    return ravel_rows_create(&options, &t->rows, err);
}

/* A tokenizer that is not supported is left out; what is wrong with a supported one is an error. */
static ravel_status open_tokenizer(train_text *t, const char *folder, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel_tokenizer_open(folder, NULL, &t->tokenizer, &why);
    if (status == RAVEL_E_UNSUPPORTED) {
        (void)ravel_error_set(&t->missing, status, "%.300s; %s", why.message, bridge);
        return RAVEL_OK;
    }
    if (status) return ravel_error_set(err, status, "%s", why.message);
    return ravel_encoder_create(t->tokenizer, NULL, &t->encoder, err);
}

ravel_status train_text_open(const char *folder, int64_t vocab, const char *chat_format, const char *chat_args,
                             train_text **text, ravel_error *err) {
    char path[TRAIN_PATH];
    train_text *t = ravel__calloc(NULL, 1, sizeof *t);
    if (!t) return ravel__no_memory(err, sizeof *t, "a text");
    ravel_status status = RAVEL_OK;
    t->vocab = vocab;
    if (folder && ravel_tokenizer_file(folder, path, sizeof path))
        status = open_tokenizer(t, folder, err);
    else if (folder && vocab > TRAIN_BYTE_VOCAB)
        (void)ravel_error_set(
            &t->missing, RAVEL_E_UNSUPPORTED,
            "the model has a vocabulary of %lld and no tokenizer (tokenizer.json, tokenizer.model, ...); %s",
            (long long)vocab, bridge);
    if (!status && t->tokenizer) status = open_rows(t, chat_format, chat_args, err);
    if (!status && !t->tokenizer && (chat_format || chat_args))
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "a chat format needs a model with a tokenizer");
    if (!status && t->tokenizer && ravel_tokenizer_size(t->tokenizer) > vocab)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s has %d tokens, but the model's vocabulary is %lld", path,
                                 ravel_tokenizer_size(t->tokenizer), (long long)vocab);
    if (status) {
        train_text_free(t);
        return status;
    }
    RAVEL_ASSERT(!t->tokenizer == !t->encoder);
    *text = t;
    return RAVEL_OK;
}

void train_text_free(train_text *t) {
    if (!t) return;
    ravel_rows_free(t->rows);
    ravel_chat_format_free(t->format);
    ravel_encoder_free(t->encoder);
    ravel_tokenizer_free(t->tokenizer);
    ravel__release(NULL, t->tokens, (size_t)t->room * sizeof *t->tokens);
    ravel__release(NULL, t, sizeof *t);
}

const ravel_tokenizer *train_text_tokenizer(const train_text *t) {
    return t->tokenizer;
}

const char *train_text_missing(const train_text *t) {
    return t->missing.message[0] ? t->missing.message : NULL;
}

/* ---- to tokens ------------------------------------------------------------------------------------------ */

static ravel_status encode_bytes(train_text *t, const char *prompt, size_t bytes, ravel_error *err) {
    int64_t need = (int64_t)bytes + 1;
    if (train_text_missing(t)) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s", t->missing.message);
    if (t->vocab > TRAIN_BYTE_VOCAB)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "a vocabulary of %lld is not of bytes: give tokens as input_ids", (long long)t->vocab);
    int32_t *tokens = train__grown(NULL, t->tokens, &t->room, 0, need, sizeof *tokens);
    if (!tokens) return ravel__no_memory(err, (size_t)need * sizeof *tokens, "a prompt");
    t->tokens = tokens;
    t->tokens[0] = TRAIN_TOKEN_BOS;
    for (size_t i = 0; i < bytes; i++) t->tokens[i + 1] = (unsigned char)prompt[i];
    return RAVEL_OK;
}

ravel_status train_text_encode(train_text *t, const char *prompt, size_t bytes, const int32_t **tokens, int64_t *count,
                               ravel_error *err) {
    const ravel_encoding *e;
    if (!t->tokenizer) {
        ravel_status status = encode_bytes(t, prompt, bytes, err);
        *tokens = t->tokens;
        *count = (int64_t)bytes + 1;
        return status;
    }
    ravel_status status = ravel_encoder_encode(t->encoder, prompt, bytes, RAVEL_ENCODE_TEMPLATE, &e, err);
    if (status) return status;
    *tokens = e->ids;
    RAVEL_ASSERT(e->count >= 0);
    *count = e->count;
    return RAVEL_OK;
}

ravel_status train_text_fragment(train_text *t, const char *piece, size_t bytes, const int32_t **tokens, int64_t *count,
                                 ravel_error *err) {
    const ravel_encoding *e;
    ravel_status status;
    if (!t->tokenizer) {
        status = encode_bytes(t, piece, bytes, err);
        *tokens = status ? NULL : t->tokens + 1;
        *count = (int64_t)bytes;
        return status;
    }
    status = ravel_encoder_encode(t->encoder, piece, bytes, 0, &e, err);
    if (status) return status;
    *tokens = e->ids;
    *count = e->count;
    return RAVEL_OK;
}

int train_text_has_format(const train_text *t) {
    return t->has_format;
}

ravel_status train_text_render(train_text *t, const char *json, size_t bytes, const char **out, size_t *out_bytes,
                               ravel_error *err) {
    RAVEL_ASSERT(t->has_format && t->rows);
    return ravel_rows_render(t->rows, json, bytes, 1, out, out_bytes, err);
}

ravel_status train_text_prompt(train_text *t, const char *json, size_t bytes, const char *prompt, size_t prompt_bytes,
                               const int32_t **tokens, int64_t *count, ravel_error *err) {
    const ravel_row *row;
    if (train_text_missing(t)) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s", t->missing.message);
    if (!t->tokenizer) {
        if (prompt) return train_text_encode(t, prompt, prompt_bytes, tokens, count, err);
        return ravel_error_set(err, RAVEL_E_DATA, "expected {\"prompt\": text} or {\"input_ids\": [tokens below %lld]}",
                               (long long)t->vocab);
    }
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel_rows_prompt(t->rows, json, bytes, &row, &why);
    if (status == RAVEL_E_UNSUPPORTED && !t->has_format)
        return ravel_error_set(err, status, "%s", t->no_format.message);
    if (status == RAVEL_E_UNSUPPORTED) status = RAVEL_E_DATA; /* of this row alone */
    if (status) return ravel_error_set(err, status, "%s", why.message);
    *tokens = row->parts[0].tokens;
    RAVEL_ASSERT(row->parts[0].count >= 0);
    *count = row->parts[0].count;
    return RAVEL_OK;
}

const char *train_text_no_chat(train_text *t) {
    static const char trial[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}";
    const int32_t *tokens;
    int64_t count;
    if (train_text_missing(t)) return train_text_missing(t);
    if (!t->tokenizer) return "its tokens are bytes, without a chat template";
    if (t->has_format && !train_text_prompt(t, trial, sizeof trial - 1, NULL, 0, &tokens, &count, &t->no_format))
        return NULL;
    return t->no_format.message;
}

/* ---- and back ------------------------------------------------------------------------------------------- */

static int is_byte(int32_t token) {
    return token >= 0 && token < 256;
}

enum { ID = 16 }; /* bytes of an id as text, and more */

/* Ids with blanks between them, like snprintf. */
static size_t write_ids(const int32_t *tokens, int64_t count, char *out, size_t room) {
    size_t used = 0;
    if (room > 0) *out = '\0';
    for (int64_t i = 0; i < count; i++)
        used += (size_t)snprintf(used < room ? out + used : NULL,
                                 used < room ? (room - used < ID ? room - used : ID) : 0, i ? " %d" : "%d", tokens[i]);
    return used;
}

size_t train_text_decode(const train_text *t, const int32_t *tokens, int64_t count, char *out, size_t room) {
    size_t used = 0;
    if (t->tokenizer) return ravel_tokenizer_decode(t->tokenizer, tokens, count, RAVEL_DECODE_SKIP_SPECIAL, out, room);
    if (train_text_missing(t)) return write_ids(tokens, count, out, room);
    for (int64_t i = 0; i < count; i++) {
        if (!is_byte(tokens[i])) continue;
        if (used + 1 < room) out[used] = (char)tokens[i];
        used++;
    }
    if (room > 0) out[used < room ? used : room - 1] = '\0';
    return used;
}

ravel_status train_text_stream_open(const train_text *t, train_text_stream *s, ravel_error *err) {
    *s = (train_text_stream){.text = t};
    if (!t->tokenizer) return RAVEL_OK;
    return ravel__decoder_create(t->tokenizer, RAVEL_DECODE_SKIP_SPECIAL, NULL, &s->decoder, err);
}

void train_text_stream_close(train_text_stream *s) {
    ravel__decoder_free(s->decoder);
    *s = (train_text_stream){0};
}

/* Whether more bytes can make a character of held[0, bytes). */
static int is_beginning(const char *held, size_t bytes) {
    unsigned char first = (unsigned char)held[0];
    size_t whole = first >= 0xf0 && first < 0xf5 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
    int more = first < 0xf5 && bytes < whole;
    for (size_t i = 1; i < bytes; i++) more &= ((unsigned char)held[i] & 0xc0) == 0x80;
    return more;
}

static void push_byte(train_text_stream *s, int32_t token, const char **piece, size_t *bytes) {
    *piece = s->held;
    *bytes = 0;
    if (!is_byte(token)) return;
    s->held[s->bytes++] = (char)token;
    RAVEL_ASSERT(s->bytes <= 4);
    if (is_beginning(s->held, s->bytes)) return;
    *bytes = s->bytes;
    s->bytes = 0;
}

void train_text_stream_push(train_text_stream *s, int32_t token, const char **piece, size_t *bytes) {
    if (s->decoder) {
        ravel__decoder_push(s->decoder, token, piece, bytes);
    } else if (train_text_missing(s->text)) {
        *bytes = (size_t)snprintf(s->held, sizeof s->held, "%d ", token);
        *piece = s->held;
    } else {
        push_byte(s, token, piece, bytes);
    }
}

void train_text_stream_flush(train_text_stream *s, const char **piece, size_t *bytes) {
    *piece = s->held;
    *bytes = s->bytes;
    s->bytes = 0;
    if (s->decoder) ravel__decoder_flush(s->decoder, piece, bytes);
}
