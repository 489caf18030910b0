/* tokenizer.json to the tokenizer of a GGUF file.
 *
 *     BPE of bytes        model "gpt2"     tokens, kinds, merges, and the name that llama.cpp has for its pattern
 *     BPE of characters   model "llama"    tokens, kinds, scores: what is merged earlier has a larger one */
#include "train/model/hf/gguf.h"

#include "train/model/hf/files.h"

#include <ravel/tokenizer.h>

#include <string.h>

typedef const ravel__json_node node;
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

typedef struct entry {
    const char *text;
    uint32_t bytes;
    int32_t kind;
    float score;
} entry;

typedef struct text {
    const ravel__json *doc;
    node *root, *model;
    entry *entries; /* [size] */
    int64_t size;
} text;

static node *member(const text *t, node *of, const char *key) {
    node *n = of ? ravel__json_get(t->doc, of, key) : NULL;
    return n && n->kind != RAVEL__JSON_NULL ? n : NULL;
}

/* ---- how text is cut ------------------------------------------------------------------------------------------- */

/* By what the first pattern of a Split holds, or lacks; NULL: not looked at. `whole`: ignore_merges, -1: either. */
static const struct {
    const char *name, *has, *has_too, *lacks;
    int whole;
} patterns[] = {
    {"gpt-4o", "\\p{Lu}", "'ll|'d)?", NULL, -1},          {"tekken", "\\p{Lu}", "\\p{N}|", "'ll", -1},
    {"llama-bpe", "(?i:'s", "\\p{N}{1,3}", "\\p{Lu}", 1}, {"dbrx", "(?i:'s", "\\p{N}{1,3}", "\\p{Lu}", 0},
    {"qwen2", "(?i:'s", "|\\p{N}|", "{1,3}", -1},
};

static int of_type(const text *t, node *part, const char *type) {
    node *n = member(t, part, "type");
    return n && ravel__json_is(n, type);
}

static node *first_of(const text *t, node *pre, const char *type) {
    if (of_type(t, pre, type)) return pre;
    node *list = member(t, pre, "pretokenizers");
    for (node *n = list ? ravel__json_first(t->doc, list) : NULL; n; n = ravel__json_next(t->doc, n))
        if (of_type(t, n, type)) return n;
    return NULL;
}

/* NULL: not known. */
static const char *find_pre(const text *t) {
    node *pre = member(t, t->root, "pre_tokenizer"), *split = first_of(t, pre, "Split");
    node *digits = first_of(t, pre, "Digits"), *bytes = first_of(t, pre, "ByteLevel");
    node *regex = member(t, member(t, split, "pattern"), "Regex");
    int use = 1, single = 0, whole = 0;
    (void)ravel__json_boolean(member(t, bytes, "use_regex"), &use);
    (void)ravel__json_boolean(member(t, digits, "individual_digits"), &single);
    (void)ravel__json_boolean(member(t, t->model, "ignore_merges"), &whole);
    if (!split && use) return digits ? (single ? "smollm" : NULL) : "gpt-2";
    if (!regex || regex->kind != RAVEL__JSON_STRING) return NULL;
    const char *p = regex->as.string;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (strstr(p, patterns[i].has) && strstr(p, patterns[i].has_too) &&
            !(patterns[i].lacks && strstr(p, patterns[i].lacks)) &&
            (patterns[i].whole < 0 || patterns[i].whole == whole))
            return patterns[i].name;
    return NULL;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

static ravel_status bad(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_DATA, "tokenizer.json: %s", what);
}

static int is_byte(node *n) {
    return strlen(n->key) == 6 && strncmp(n->key, "<0x", 3) == 0 && n->key[5] == '>';
}

static ravel_status read_entries(text *t, int spaced, ravel_error *err) {
    node *vocab = member(t, t->model, "vocab"), *added = member(t, t->root, "added_tokens");
    node *unknown = member(t, t->model, "unk_token");
    int64_t id = -1;
    if (!vocab || vocab->kind != RAVEL__JSON_OBJECT) return bad(err, "\"vocab\" must be an object of ids");
    for (node *n = ravel__json_first(t->doc, vocab); n; n = ravel__json_next(t->doc, n)) {
        if (!ravel__json_integer(n, &id) || id < 0 || id >= t->size)
            return bad(err, "it has a token whose id is not in the model's vocabulary");
        int kind = unknown && spaced && ravel__json_is(unknown, n->key) ? UNKNOWN
                   : spaced && is_byte(n)                               ? BYTE
                                                                        : NORMAL;
        t->entries[id] = (entry){n->key, (uint32_t)strlen(n->key), kind, 0};
    }
    for (node *n = added ? ravel__json_first(t->doc, added) : NULL; n; n = ravel__json_next(t->doc, n)) {
        node *content = member(t, n, "content");
        int special = 0;
        (void)ravel__json_boolean(member(t, n, "special"), &special);
        if (!ravel__json_integer(member(t, n, "id"), &id) || id < 0 || id >= t->size || !content ||
            content->kind != RAVEL__JSON_STRING)
            return bad(err, "it has an added token whose id is not in the model's vocabulary");
        int kind = t->entries[id].text && t->entries[id].kind == UNKNOWN ? UNKNOWN : special ? CONTROL : USER_DEFINED;
        t->entries[id] = (entry){content->as.string, content->bytes, kind, 0};
    }
    return RAVEL_OK;
}

/* The id of what a merge makes, by the texts' own ids. */
static const char *merge_parts(const text *t, node *n, size_t bytes[2], const char **second) {
    if (n->kind == RAVEL__JSON_STRING) {
        const char *space = strchr(n->as.string, ' ');
        if (!space) return NULL;
        bytes[0] = (size_t)(space - n->as.string);
        bytes[1] = n->bytes - bytes[0] - 1;
        return *second = space + 1, n->as.string;
    }
    node *a = n->kind == RAVEL__JSON_ARRAY && n->count == 2 ? ravel__json_first(t->doc, n) : NULL;
    node *b = a ? ravel__json_next(t->doc, a) : NULL;
    if (!b || a->kind != RAVEL__JSON_STRING || b->kind != RAVEL__JSON_STRING) return NULL;
    bytes[0] = a->bytes;
    bytes[1] = b->bytes;
    return *second = b->as.string, a->as.string;
}

/* "a b" for each merge. */
static void put_merges(train_gguf_head *head, const text *t, node *merges) {
    train_gguf_list(head, "tokenizer.ggml.merges", 8, merges->count);
    for (node *n = ravel__json_first(t->doc, merges); n && !head->status; n = ravel__json_next(t->doc, n)) {
        size_t bytes[2];
        const char *second, *first = merge_parts(t, n, bytes, &second);
        if (!first) {
            head->status = bad(head->err, "a merge must be two texts");
            return;
        }
        uint64_t whole = bytes[0] + bytes[1] + 1;
        train_gguf_put(head, &whole, sizeof whole);
        train_gguf_put(head, first, bytes[0]);
        train_gguf_put(head, " ", 1);
        train_gguf_put(head, second, bytes[1]);
    }
}

/* -1, -2, ... in the order of the merges; characters come after all of them. */
static ravel_status set_scores(text *t, const ravel_tokenizer *tokenizer, node *merges, ravel_error *err) {
    int64_t rank = 0;
    char whole[1024];
    for (int64_t i = 0; i < t->size; i++)
        if (t->entries[i].kind == NORMAL) t->entries[i].score = -(float)(merges->count + i);
    for (node *n = ravel__json_first(t->doc, merges); n; n = ravel__json_next(t->doc, n), rank++) {
        size_t bytes[2];
        const char *second, *first = merge_parts(t, n, bytes, &second);
        if (!first || bytes[0] + bytes[1] > sizeof whole) return bad(err, "a merge must be two texts");
        memcpy(whole, first, bytes[0]);
        memcpy(whole + bytes[0], second, bytes[1]);
        int32_t id = ravel_tokenizer_id(tokenizer, whole, bytes[0] + bytes[1]);
        if (id >= 0 && id < t->size && t->entries[id].score <= -(float)merges->count)
            t->entries[id].score = -(float)rank;
    }
    return RAVEL_OK;
}

static void put_entries(train_gguf_head *head, const text *t, int scores) {
    char name[32];
    train_gguf_list(head, "tokenizer.ggml.tokens", 8, (uint64_t)t->size);
    for (int64_t i = 0; i < t->size; i++) {
        const entry *e = &t->entries[i];
        (void)snprintf(name, sizeof name, "[PAD%lld]", (long long)i);
        train_gguf_put_text(head, e->text ? e->text : name, e->text ? e->bytes : strlen(name));
    }
    train_gguf_list(head, "tokenizer.ggml.token_type", 5, (uint64_t)t->size);
    for (int64_t i = 0; i < t->size; i++) {
        int32_t kind = t->entries[i].text ? t->entries[i].kind : UNUSED;
        train_gguf_put(head, &kind, sizeof kind);
    }
    if (scores) train_gguf_list(head, "tokenizer.ggml.scores", 6, (uint64_t)t->size);
    for (int64_t i = 0; scores && i < t->size; i++) train_gguf_put(head, &t->entries[i].score, sizeof(float));
}

/* What goes before and after a text, as the tokenizer does it. */
static ravel_status put_specials(train_gguf_head *head, const ravel_tokenizer *t, ravel_error *err) {
    static const char *const names[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.padding_token_id"};
    const int32_t ids[] = {ravel_tokenizer_bos(t), ravel_tokenizer_eos(t), ravel_tokenizer_pad(t)};
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e = NULL;
    for (int i = 0; i < 3; i++)
        if (ids[i] >= 0) train_gguf_u32(head, names[i], ids[i]);
    ravel_status status = ravel_encoder_create(t, NULL, &encoder, err);
    if (!status) status = ravel_encoder_encode(encoder, "", 0, RAVEL_ENCODE_TEMPLATE, &e, err);
    if (!status) {
        const int bos = e->count > 0 && e->ids[0] == ids[0];
        train_gguf_bool(head, "tokenizer.ggml.add_bos_token", bos); /* which may be the same token as eos */
        train_gguf_bool(head, "tokenizer.ggml.add_eos_token", e->count > bos && e->ids[e->count - 1] == ids[1]);
    }
    ravel_encoder_free(encoder);
    const char *template = ravel_tokenizer_chat_template(t);
    if (template) train_gguf_text(head, "tokenizer.chat_template", template, strlen(template));
    return status;
}

static int has_normal(const text *t, node *n, const char *type) {
    node *list = member(t, n, "normalizers");
    if (of_type(t, n, type)) return 1;
    for (node *each = list ? ravel__json_first(t->doc, list) : NULL; each; each = ravel__json_next(t->doc, each))
        if (of_type(t, each, type)) return 1;
    return 0;
}

static ravel_status write_all(train_gguf_head *head, text *t, const ravel_tokenizer *tokenizer, const char *pre,
                              ravel_error *err) {
    node *merges = member(t, t->model, "merges"), *cut = member(t, t->root, "pre_tokenizer");
    int bytes = first_of(t, cut, "ByteLevel") != NULL;
    if (!merges || merges->kind != RAVEL__JSON_ARRAY)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "only tokenizers of merges (BPE) are written to GGUF");
    if (bytes && !pre) pre = find_pre(t);
    if (bytes && !pre)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the tokenizer cuts text into words in a way that has no known name in llama.cpp: give "
                               "that name with --pre (its llama-vocab.cpp lists them)");
    int space = 0;
    (void)ravel__json_boolean(member(t, first_of(t, cut, "ByteLevel"), "add_prefix_space"), &space);
    if (space)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "llama.cpp puts no space before a text (add_prefix_space of a tokenizer of bytes)");
    if (!bytes && ravel_tokenizer_id(tokenizer, "<0x0A>", 6) < 0)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "llama.cpp has no tokenizers of characters without tokens for bytes (<0x00> to <0xFF>)");
    ravel_status status = read_entries(t, !bytes, err);
    if (!status && !bytes) status = set_scores(t, tokenizer, merges, err);
    if (status) return status;
    const char *kind = bytes ? "gpt2" : "llama";
    train_gguf_text(head, "tokenizer.ggml.model", kind, strlen(kind));
    if (bytes) train_gguf_text(head, "tokenizer.ggml.pre", pre, strlen(pre));
    put_entries(head, t, !bytes);
    node *unknown = member(t, t->model, "unk_token");
    if (unknown && unknown->kind == RAVEL__JSON_STRING)
        train_gguf_u32(head, "tokenizer.ggml.unknown_token_id",
                       ravel_tokenizer_id(tokenizer, unknown->as.string, unknown->bytes));
    if (bytes) put_merges(head, t, merges);
    if (!bytes) {
        node *scheme = member(t, first_of(t, cut, "Metaspace"), "prepend_scheme");
        int prefix =
            has_normal(t, member(t, t->root, "normalizer"), "Prepend") || (scheme && !ravel__json_is(scheme, "never"));
        train_gguf_bool(head, "tokenizer.ggml.add_space_prefix", prefix);
        train_gguf_bool(head, "tokenizer.ggml.remove_extra_whitespaces", 0);
    }
    return put_specials(head, tokenizer, err);
}

ravel_status train_gguf_tokenizer(train_gguf_head *head, const char *model, int64_t vocab, const char *pre,
                                  ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_tokenizer *tokenizer = NULL;
    ravel__json *doc = NULL;
    ravel__map map;
    if (!ravel_tokenizer_file(model, path, sizeof path)) { /* ids alone */
        train_gguf_text(head, "tokenizer.ggml.model", "no_vocab", 8);
        return RAVEL_OK;
    }
    size_t bytes = strlen(path), end = strlen("tokenizer.json");
    if (bytes < end || strcmp(path + bytes - end, "tokenizer.json") != 0)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s: only a tokenizer.json is written to GGUF", path);
    ravel_status status = ravel_tokenizer_open(model, NULL, &tokenizer, err);
    if (!status) status = ravel__map_open(path, &map, err);
    if (status) {
        ravel_tokenizer_free(tokenizer);
        return status;
    }
    status = ravel__json_parse(map.data, map.bytes, NULL, &doc, err);
    text t = {.doc = doc, .size = vocab};
    if (!status) t.root = ravel__json_root(doc);
    if (!status) t.model = member(&t, t.root, "model");
    t.entries = ravel__calloc(NULL, (size_t)vocab, sizeof *t.entries);
    if (!status && !t.entries) status = ravel__no_memory(err, (size_t)vocab * sizeof *t.entries, "a vocabulary");
    if (!status) status = write_all(head, &t, tokenizer, pre, err);
    ravel__release(NULL, t.entries, (size_t)vocab * sizeof *t.entries);
    ravel__json_free(doc);
    ravel__map_close(&map);
    ravel_tokenizer_free(tokenizer);
    return status;
}
