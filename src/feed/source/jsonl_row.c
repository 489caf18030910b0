/* A row of a JSON-lines file: {"input_ids": ...}, {"prompt": ..., "response": ...} or {"text": ...}.
 *
 *     line --JSON--> nodes --decode--> one array per field (scratch) --cut at cu_seqlens--> samples (collector)
 *
 * Rows are untrusted: every array's length and every number is checked against the number of tokens. */
#include "feed/source/jsonl_row.h"

#include "base/assert.h"
#include "base/json.h"

#include "text/chat.h"

#include <inttypes.h>
#include <string.h>

enum { IGNORED = -100 }; /* label of a token without loss, as in PyTorch */

typedef struct row {
    const ravel__json *doc;
    const ravel__json_node *root;
    const ravel__row_rules *rules;
    ravel__row_scratch *scratch;
    ravel_collector *collector;
    int64_t tokens; /* in the row */
    int64_t parts;  /* samples in the row; 0: it is one sample */
    ravel_error *err;
} row;

void ravel__row_scratch_free(const ravel_allocator *allocator, ravel__row_scratch *scratch) {
    ravel__buffer_free(&scratch->text, allocator);
    ravel__json_free(scratch->doc);
    for (int f = 0; f < RAVEL__FIELDS_MAX; f++) ravel__buffer_free(&scratch->data[f], allocator);
    ravel__buffer_free(&scratch->bounds, allocator);
    ravel__buffer_free(&scratch->starts, allocator);
    ravel_rows_free(scratch->rows);
}

static const ravel__json_node *member(const row *r, const char *key) {
    const ravel__json_node *node = ravel__json_get(r->doc, r->root, key);
    return node && node->kind == RAVEL__JSON_NULL ? NULL : node;
}

static ravel_status bad(const row *r, const char *key, const char *what) {
    return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" %s", key, what);
}

static ravel_status reserve(const row *r, ravel__buffer *buffer, int64_t count, size_t each) {
    return ravel__buffer_reserve(buffer, r->collector->allocator, count, each, "a row", r->err);
}

/* An array of whole numbers min .. max into out[node->count]. */
static ravel_status integers(const row *r, const char *key, const ravel__json_node *node, int64_t min, int64_t max,
                             ravel__buffer *out) {
    if (node->kind != RAVEL__JSON_ARRAY) return bad(r, key, "must be an array of whole numbers");
    ravel_status status = reserve(r, out, node->count, sizeof(int64_t));
    int64_t i = 0, value;
    if (status) return status;
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++) {
        if (!ravel__json_integer(n, &value) || value < min || value > max)
            return ravel_error_set(r->err, RAVEL_E_DATA,
                                   "\"%s\"[%" PRId64 "] must be a whole number from %" PRId64 " to %" PRId64, key, i,
                                   min, max);
        ((int64_t *)out->at)[i] = value;
    }
    return RAVEL_OK;
}

static ravel_status same_count(const row *r, const char *key, const ravel__json_node *node, int64_t want,
                               const char *of) {
    if (node->kind == RAVEL__JSON_ARRAY && node->count == want) return RAVEL_OK;
    if (node->kind != RAVEL__JSON_ARRAY) return bad(r, key, "must be an array");
    return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" has %d elements, there are %" PRId64 " %s", key, node->count,
                           want, of);
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

static ravel_status read_ids(row *r, const ravel__json_node *node) {
    ravel__buffer *buffer = &r->scratch->data[RAVEL__FIELD_TOKENS];
    int64_t vocab = r->rules->vocab ? r->rules->vocab : INT64_C(1) << 31, i = 0, value;
    if (node->kind != RAVEL__JSON_ARRAY) return bad(r, "input_ids", "must be an array of token ids");
    ravel_status status = reserve(r, buffer, node->count, sizeof(int32_t));
    if (status) return status;
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++) {
        if (!ravel__json_integer(n, &value) || value < 0 || value >= vocab)
            return ravel_error_set(r->err, RAVEL_E_DATA,
                                   "\"input_ids\"[%" PRId64 "] must be a token id from 0 to %" PRId64, i, vocab - 1);
        ((int32_t *)buffer->at)[i] = (int32_t)value;
    }
    RAVEL_ASSERT(i == node->count);
    r->tokens = i;
    return RAVEL_OK;
}

/* The bytes of up to two texts, with bos before and eos after them, behind the row's tokens so far; learnt from the
 * second on (from the first if there is one text). */
static ravel_status add_texts(row *r, const ravel__json_node *first, const ravel__json_node *second) {
    int64_t bos = r->rules->bos >= 0, eos = r->rules->eos >= 0, begin = r->tokens, at = begin;
    int64_t end = begin + bos + eos + (int64_t)first->bytes + (second ? (int64_t)second->bytes : 0);
    ravel_status status = reserve(r, &r->scratch->data[RAVEL__FIELD_TOKENS], end, sizeof(int32_t));
    if (!status) status = reserve(r, &r->scratch->data[RAVEL__FIELD_MASK], end, 1);
    r->tokens = end;
    if (status || end == begin) return status; /* an empty row has no arrays */
    int32_t *ids = r->scratch->data[RAVEL__FIELD_TOKENS].at;
    char *mask = r->scratch->data[RAVEL__FIELD_MASK].at;
    if (bos) ids[at++] = r->rules->bos;
    for (uint32_t i = 0; i < first->bytes; i++) ids[at++] = (unsigned char)first->as.string[i];
    int64_t learnt = second ? at : begin + bos;
    for (uint32_t i = 0; second && i < second->bytes; i++) ids[at++] = (unsigned char)second->as.string[i];
    if (eos) ids[at++] = r->rules->eos;
    RAVEL_ASSERT(at == end && begin <= learnt && learnt <= end);
    memset(mask + begin, 0, (size_t)(learnt - begin));
    memset(mask + learnt, 1, (size_t)(at - learnt));
    return RAVEL_OK;
}

/* Behind the row's tokens so far. */
static ravel_status add_ids(row *r, const char *key, const ravel__json_node *node, int learnt) {
    int64_t vocab = r->rules->vocab ? r->rules->vocab : INT64_C(1) << 31, i = r->tokens, value;
    int64_t end = i + node->count;
    ravel_status status = reserve(r, &r->scratch->data[RAVEL__FIELD_TOKENS], end, sizeof(int32_t));
    if (!status) status = reserve(r, &r->scratch->data[RAVEL__FIELD_MASK], end, 1);
    if (status) return status;
    int32_t *ids = r->scratch->data[RAVEL__FIELD_TOKENS].at;
    memset((char *)r->scratch->data[RAVEL__FIELD_MASK].at + i, learnt, (size_t)node->count);
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++) {
        if (!ravel__json_integer(n, &value) || value < 0 || value >= vocab)
            return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] must be a token id from 0 to %" PRId64,
                                   key, i - r->tokens, vocab - 1);
        ids[i] = (int32_t)value;
    }
    RAVEL_ASSERT(i == end);
    r->tokens = end;
    return RAVEL_OK;
}

/* ---- text by a tokenizer -------------------------------------------------------------------------------- */

static ravel_status need_rows(const row *r) {
    if (r->scratch->rows) return RAVEL_OK;
    ravel_rows_options options;
    ravel_rows_options_default(&options);
    options.tokenizer = r->rules->tokenizer;
    options.format = r->rules->format;
    options.train_on = r->rules->train_on;
    options.variables = r->rules->variables;
    options.now = r->rules->now;
    options.allocator = r->collector->allocator;
    return ravel_rows_create(&options, &r->scratch->rows, r->err);
}

/* Part `part` of the encoded row goes behind `at` tokens. */
static ravel_status put_part(row *r, const ravel_row_part *part, int64_t at) {
    ravel__buffer *ids = &r->scratch->data[RAVEL__FIELD_TOKENS], *mask = &r->scratch->data[RAVEL__FIELD_MASK];
    ravel_status status = reserve(r, ids, at + part->count, sizeof(int32_t));
    if (!status) status = reserve(r, mask, at + part->count, 1);
    if (status || part->count == 0) return status;
    memcpy((int32_t *)ids->at + at, part->tokens, (size_t)part->count * sizeof *part->tokens);
    memcpy((char *)mask->at + at, part->loss_mask, (size_t)part->count);
    for (int64_t i = 0; r->rules->vocab && i < part->count; i++)
        if (part->tokens[i] >= r->rules->vocab)
            return ravel_error_set(r->err, RAVEL_E_DATA,
                                   "the tokenizer gives token %d, and the model has only %" PRId64, part->tokens[i],
                                   r->rules->vocab);
    return RAVEL_OK;
}

/* Chosen and rejected are two samples of the row. */
static ravel_status set_pair(row *r, int64_t first, int64_t both) {
    const int64_t bounds[] = {0, first, both};
    RAVEL_ASSERT(first >= 0 && first <= both && both == r->tokens);
    if (r->rules->no_pairs)
        return ravel_error_set(r->err, RAVEL_E_DATA,
                               "\"chosen\" and \"rejected\" are a pair for preference training (dpo); one answer is "
                               "wanted here");
    ravel_status status = reserve(r, &r->scratch->bounds, 3, sizeof *bounds);
    if (!status) status = reserve(r, &r->scratch->starts, 3, sizeof *bounds);
    if (status) return status;
    memcpy(r->scratch->bounds.at, bounds, sizeof bounds);
    memcpy(r->scratch->starts.at, bounds, sizeof bounds);
    r->parts = 2;
    return RAVEL_OK;
}

/* prompt NULL: the row has only answers. */
static ravel_status read_pair(row *r, const ravel__json_node *prompt, const ravel__json_node *chosen,
                              const ravel__json_node *rejected) {
    ravel_status status = add_texts(r, prompt ? prompt : chosen, prompt ? chosen : NULL);
    int64_t first = r->tokens;
    if (!status) status = add_texts(r, prompt ? prompt : rejected, prompt ? rejected : NULL);
    return status ? status : set_pair(r, first, r->tokens);
}

static int is_ids(const ravel__json *doc, const ravel__json_node *node) {
    int64_t value;
    return node && node->kind == RAVEL__JSON_ARRAY && ravel__json_integer(ravel__json_first(doc, node), &value);
}

/* The same of token ids; prompt NULL: both lists hold it, and all of them is learnt. */
static ravel_status read_id_pair(row *r, const ravel__json_node *prompt, const ravel__json_node *chosen,
                                 const ravel__json_node *rejected) {
    if (prompt && !is_ids(r->doc, prompt)) return bad(r, "prompt", "must be a list of token ids, as \"chosen\" is");
    ravel_status status = prompt ? add_ids(r, "prompt", prompt, 0) : RAVEL_OK;
    if (!status) status = add_ids(r, "chosen", chosen, 1);
    int64_t first = r->tokens;
    if (!status && prompt) status = add_ids(r, "prompt", prompt, 0);
    if (!status) status = add_ids(r, "rejected", rejected, 1);
    return status ? status : set_pair(r, first, r->tokens);
}

static ravel_status read_by_tokenizer(row *r) {
    const ravel_row *encoded;
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = need_rows(r);
    if (status) return status;
    status = ravel__rows_encode(r->scratch->rows, r->doc, r->root, &encoded, &inner);
    if (status == RAVEL_E_UNSUPPORTED && !r->rules->format && r->rules->no_format)
        return ravel_error_set(r->err, status, "%s", r->rules->no_format);
    if (status == RAVEL_E_UNSUPPORTED)
        status = RAVEL_E_DATA; /* tools, images: of this row alone, so it can be skipped */
    if (status) return ravel_error_set(r->err, status, "%s", inner.message);
    const ravel_row_part *parts = encoded->parts;
    ravel_collector_inserted(r->collector, encoded->inserted, encoded->inserted_text);
    status = put_part(r, &parts[0], 0);
    r->tokens = parts[0].count;
    if (status || !encoded->pair) return status;
    status = put_part(r, &parts[1], r->tokens);
    r->tokens += parts[1].count;
    return status ? status : set_pair(r, parts[0].count, r->tokens);
}

/* ---- loss mask ------------------------------------------------------------------------------------------- */

static ravel_status mask_from_labels(const row *r, const ravel__json_node *node, unsigned char *mask) {
    const int32_t *ids = r->scratch->data[RAVEL__FIELD_TOKENS].at;
    int64_t i = 0, value;
    ravel_status status = same_count(r, "labels", node, r->tokens, "tokens");
    if (status) return status;
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++) {
        if (!ravel__json_integer(n, &value) || (value != IGNORED && value != ids[i]))
            return ravel_error_set(r->err, RAVEL_E_DATA,
                                   "\"labels\"[%" PRId64 "] must be the token itself (%d) or %d; labels are not "
                                   "shifted here",
                                   i, ids[i], IGNORED);
        mask[i] = value != IGNORED;
    }
    return RAVEL_OK;
}

static ravel_status mask_from_flags(const row *r, const ravel__json_node *node, unsigned char *mask) {
    int64_t i = 0, value;
    int flag;
    ravel_status status = same_count(r, "loss_mask", node, r->tokens, "tokens");
    if (status) return status;
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++) {
        if (ravel__json_integer(n, &value) && (value == 0 || value == 1))
            mask[i] = (unsigned char)value;
        else if (ravel__json_boolean(n, &flag))
            mask[i] = (unsigned char)flag;
        else
            return ravel_error_set(r->err, RAVEL_E_DATA, "\"loss_mask\"[%" PRId64 "] must be 0 or 1", i);
    }
    return RAVEL_OK;
}

/* Zeros for `length` tokens from `begin` on, as far as the sample reaches. */
static ravel_status mask_prompt(const row *r, const ravel__json_node *node, int64_t begin, int64_t length,
                                unsigned char *mask) {
    int64_t prompt;
    if (!ravel__json_integer(node, &prompt) || prompt < 0 || prompt > length)
        return ravel_error_set(r->err, RAVEL_E_DATA, "\"prompt_length\" must be a whole number from 0 to %" PRId64,
                               length);
    RAVEL_ASSERT(begin >= 0 && begin + prompt <= r->tokens);
    memset(mask + begin, 0, (size_t)prompt);
    return RAVEL_OK;
}

static ravel_status mask_from_prompts(const row *r, const ravel__json_node *node, unsigned char *mask) {
    memset(mask, 1, (size_t)r->tokens);
    if (r->parts == 0) return mask_prompt(r, node, 0, r->tokens, mask);
    const int64_t *bounds = r->scratch->bounds.at, *starts = r->scratch->starts.at;
    ravel_status status = same_count(r, "prompt_length", node, r->parts, "samples in the row");
    const ravel__json_node *n = status ? NULL : ravel__json_first(r->doc, node);
    for (int64_t i = 0; i < r->parts && !status; i++, n = ravel__json_next(r->doc, n))
        status = mask_prompt(r, n, starts[i], bounds[i + 1] - bounds[i], mask);
    return status;
}

static ravel_status read_mask(const row *r) {
    const ravel__json_node *labels = member(r, "labels"), *flags = member(r, "loss_mask");
    const ravel__json_node *prompt = member(r, "prompt_length");
    ravel_status status = reserve(r, &r->scratch->data[RAVEL__FIELD_MASK], r->tokens, 1);
    if (status || r->tokens == 0) return status;
    unsigned char *mask = r->scratch->data[RAVEL__FIELD_MASK].at;
    if (!!labels + !!flags + !!prompt > 1)
        return ravel_error_set(r->err, RAVEL_E_DATA,
                               "a row has one of \"labels\", \"loss_mask\" and \"prompt_length\", not several");
    if (labels) return mask_from_labels(r, labels, mask);
    if (flags) return mask_from_flags(r, flags, mask);
    if (prompt) return mask_from_prompts(r, prompt, mask);
    memset(mask, 1, (size_t)r->tokens);
    return RAVEL_OK;
}

/* ---- packed rows ---------------------------------------------------------------------------------------- */

static ravel_status read_starts(const row *r, const ravel__json_node *node) {
    const int64_t *bounds = r->scratch->bounds.at;
    if (node) {
        ravel_status status = same_count(r, "cu_seqlens_padded", node, r->parts + 1, "boundaries in \"cu_seqlens\"");
        if (status) return status;
        return integers(r, "cu_seqlens_padded", node, 0, r->tokens, &r->scratch->starts);
    }
    ravel_status status = reserve(r, &r->scratch->starts, r->parts + 1, sizeof(int64_t));
    if (!status) memcpy(r->scratch->starts.at, bounds, (size_t)(r->parts + 1) * sizeof *bounds);
    return status;
}

/* Samples that are inside the row and do not overlap. */
static ravel_status check_parts(const row *r) {
    const int64_t *bounds = r->scratch->bounds.at, *starts = r->scratch->starts.at;
    if (bounds[0] != 0) return bad(r, "cu_seqlens", "must begin with 0");
    for (int64_t i = 0; i < r->parts; i++) {
        int64_t length = bounds[i + 1] - bounds[i], next = i + 1 < r->parts ? starts[i + 1] : r->tokens;
        if (length < 0) return bad(r, "cu_seqlens", "must not go down");
        if (starts[i] + length > next) return bad(r, "cu_seqlens_padded", "leaves too little room for a sample");
    }
    return RAVEL_OK;
}

static ravel_status read_parts(row *r) {
    const ravel__json_node *node = member(r, "cu_seqlens");
    if (!node) return RAVEL_OK;
    ravel_status status = integers(r, "cu_seqlens", node, 0, r->tokens, &r->scratch->bounds);
    if (status) return status;
    if (node->count < 2) return bad(r, "cu_seqlens", "must hold 0 and at least one boundary more");
    r->parts = node->count - 1;
    status = read_starts(r, member(r, "cu_seqlens_padded"));
    return status ? status : check_parts(r);
}

/* ---- more fields ---------------------------------------------------------------------------------------- */

/* Whole numbers are not converted to double, which has only 53 bits. */
static int store(int32_t dtype, char *place, const ravel__json_node *node) {
    int64_t whole;
    double real;
    int flag;
    if (dtype == RAVEL_I64 && ravel__json_integer(node, &whole)) return memcpy(place, &whole, sizeof whole) != NULL;
    if (ravel__json_boolean(node, &flag)) return ravel_dtype_store(dtype, place, flag);
    return ravel__json_real(node, &real) && ravel_dtype_store(dtype, place, real);
}

static ravel_status store_all(const row *r, const ravel_field *field, const ravel__json_node *node, char *at) {
    int32_t each = ravel_dtype_bytes(field->dtype);
    int64_t i = 0;
    for (const ravel__json_node *n = ravel__json_first(r->doc, node); n; n = ravel__json_next(r->doc, n), i++)
        if (!store(field->dtype, at + i * each, n))
            return ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\"[%" PRId64 "] does not fit %s", field->name, i,
                                   ravel_dtype_name(field->dtype));
    return RAVEL_OK;
}

static const char *const elements_of[] = {"tokens", "tokens", "tokens after the first", "samples in the row",
                                          "samples in the row"};

/* An array with `width` numbers for each token, step or sample, one flat list; or one number for all samples of the
 * row. */
static ravel_status read_field(const row *r, int32_t f) {
    const ravel_field *field = &r->collector->fields[f];
    const ravel__json_node *node = member(r, field->name);
    int64_t want = ravel__field_elements(field, r->parts ? r->parts : 1, r->tokens) * field->width;
    if (!node) return bad(r, field->name, "is missing from the row");
    int32_t each = ravel_dtype_bytes(field->dtype);
    ravel_status status = reserve(r, &r->scratch->data[f], want, (size_t)each);
    if (status || want <= 0) return status;
    char *at = r->scratch->data[f].at;
    if (!ravel__field_per_sample(field) || field->width > 1 || node->kind == RAVEL__JSON_ARRAY) {
        status = same_count(r, field->name, node, want, elements_of[field->kind]);
        return status ? status : store_all(r, field, node, at);
    }
    if (!store(field->dtype, at, node)) return bad(r, field->name, "does not fit its dtype");
    for (int64_t i = 1; i < want; i++) memcpy(at + i * each, at, (size_t)each);
    return RAVEL_OK;
}

/* ---- the row -------------------------------------------------------------------------------------------- */

static int is_text(const ravel__json_node *node) {
    return node && node->kind == RAVEL__JSON_STRING;
}

static ravel_status read_tokens(row *r) {
    const ravel__json_node *ids = member(r, "input_ids"), *text = member(r, "text"), *prompt = member(r, "prompt");
    const ravel__json_node *response = member(r, "response"), *chosen = member(r, "chosen");
    const ravel__json_node *rejected = member(r, "rejected");
    if (!response) response = member(r, "completion");
    if (ids) {
        ravel_status status = read_ids(r, ids);
        if (!status) status = read_parts(r);
        return status ? status : read_mask(r);
    }
    if (is_ids(r->doc, chosen) && is_ids(r->doc, rejected)) return read_id_pair(r, prompt, chosen, rejected);
    if (r->rules->no_text) return ravel_error_set(r->err, RAVEL_E_UNSUPPORTED, "%s", r->rules->no_text);
    if (r->rules->tokenizer) return read_by_tokenizer(r);
    if (is_text(chosen) && is_text(rejected) && (!prompt || is_text(prompt)))
        return read_pair(r, prompt, chosen, rejected);
    if (is_text(prompt) && is_text(response)) return add_texts(r, prompt, response);
    if (is_text(text)) return add_texts(r, text, NULL);
    return ravel_error_set(r->err, RAVEL_E_DATA,
                           "a row needs \"input_ids\", \"text\", \"prompt\" and \"response\", or \"chosen\" and "
                           "\"rejected\"; conversations need a tokenizer");
}

static ravel_status put(const row *r) {
    const void *data[RAVEL__FIELDS_MAX];
    for (int32_t f = 0; f < r->collector->field_count; f++) data[f] = r->scratch->data[f].at;
    if (r->parts == 0) return ravel_collector_add(r->collector, r->tokens, data, r->err);
    return ravel_collector_add_packed(r->collector, r->parts, r->scratch->bounds.at, r->scratch->starts.at, data,
                                      r->err);
}

ravel_status ravel__row_read(const char *text, size_t bytes, const ravel__row_rules *rules, ravel__row_scratch *scratch,
                             ravel_collector *collector, ravel_error *err) {
    ravel_status status = ravel__json_parse(text, bytes, collector->allocator, &scratch->doc, err);
    if (status) return status;
    row r = {scratch->doc, ravel__json_root(scratch->doc), rules, scratch, collector, 0, 0, err};
    if (r.root->kind != RAVEL__JSON_OBJECT) return ravel_error_set(err, RAVEL_E_DATA, "a row must be a JSON object");
    status = read_tokens(&r);
    for (int32_t f = RAVEL__FIELDS_BUILT_IN; f < collector->field_count && !status; f++) status = read_field(&r, f);
    return status ? status : put(&r);
}
