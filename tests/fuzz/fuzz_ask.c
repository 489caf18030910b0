/* The body of a request to `ravel serve`, any bytes: what is accepted is within the limits, what is refused says why. */
#include "train/serve/ask.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int condition) {
    if (!condition) abort();
}

static void read_tokens(const ravel__json *doc, const ravel__json_node *list, int64_t vocab) {
    int32_t *ids = calloc((size_t)list->count + 1, sizeof *ids);
    must(ids != NULL);
    if (train_ask_tokens(doc, list, vocab, ids, NULL) == RAVEL_OK)
        for (int64_t i = 0; i < list->count; i++) must(ids[i] >= 0 && ids[i] < vocab);
    free(ids);
}

static void read_prompts(const ravel__json *doc, train_ask *ask, int64_t vocab) {
    int64_t count = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_ask_prompts(doc, ask, &count, &err) != RAVEL_OK) {
        must(err.message[0] && ask->field);
        return;
    }
    must(count > 0);
    const ravel__json_node *n = train_ask_first_prompt(doc, ask);
    for (int64_t i = 0; i < count; i++, n = ravel__json_next(doc, n)) {
        must(n && (n->kind == RAVEL__JSON_STRING || (n->kind == RAVEL__JSON_ARRAY && n->count > 0)));
        if (n->kind == RAVEL__JSON_ARRAY) read_tokens(doc, n, vocab);
    }
}

static void read(const ravel__json *doc, int chat) {
    const train_ask_limits limits = {8, 300, 5};
    train_ask ask;
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_ask_parse(doc, chat, &limits, &ask, &err) != RAVEL_OK) {
        must(err.message[0] != '\0');
        return;
    }
    must(ask.n >= 1 && ask.n <= limits.samples && ask.temperature >= 0 && ask.top_p > 0 && ask.top_p <= 1);
    must(ask.top_k >= 0 && ask.max_tokens >= -1 && ask.logprobs <= limits.top && ask.prompt_logprobs <= limits.top);
    must(ask.stop_count <= TRAIN_ASK_STOPS && ask.stop_id_count <= TRAIN_ASK_STOP_IDS);
    for (int32_t i = 0; i < ask.stop_count; i++) must(ask.stops[i][0] && strlen(ask.stops[i]) <= TRAIN_ASK_STOP_BYTES);
    for (int32_t i = 0; i < ask.stop_id_count; i++) must(ask.stop_ids[i] >= 0 && ask.stop_ids[i] < limits.vocab);
    must(!chat || (ask.messages && ask.messages->kind == RAVEL__JSON_ARRAY && ask.messages->count > 0));
    if (!chat) read_prompts(doc, &ask, limits.vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel__json *doc = NULL;
    if (ravel__json_parse((const char *)data, bytes, NULL, &doc, NULL) != RAVEL_OK) return 0;
    read(doc, 0);
    read(doc, 1);
    ravel__json_free(doc);
    return 0;
}
