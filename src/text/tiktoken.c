/* Tokens of bytes with ranks: *.tiktoken files (lines of base64 and a rank) and Mistral's tekken.json.
 *
 *     IQ== 0          the byte "!"
 *     ...             two neighbours become one token where their bytes together are a token, of the lowest rank first;
 *     IGhlbGxv 24748  so the merges are every way to cut a token in two tokens
 *
 * A *.tiktoken file holds neither the pattern nor the special tokens. Both are known by the number of ranks, from the
 * table below; `added_tokens_decoder` of tokenizer_config.json adds tokens, or names them otherwise. */
#include "text/load.h"
#include "text/normal.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef const ravel__json_node node;

/* ---- what files of these many ranks leave out ----------------------------------------------------------------- */

/* One token; or `count` of them, numbered from `first` on; or no name for that many ids. */
typedef struct special {
    const char *name;
    int first, count;
} special;

/* clang-format off */ /* versions differ on the braces of a macro */
#define TOKEN(name) {name, 0, 0}
/* clang-format on */

static const special gpt2[] = {TOKEN("<|endoftext|>")};
static const special cl100k[] = {
    {NULL, 0, 1},  TOKEN("<|endoftext|>"),  TOKEN("<|fim_prefix|>"), TOKEN("<|fim_middle|>"), TOKEN("<|fim_suffix|>"),
    {NULL, 0, 15}, TOKEN("<|endofprompt|>")};
static const special o200k[] = {{NULL, 0, 1}, TOKEN("<|endoftext|>"), {NULL, 0, 18}, TOKEN("<|endofprompt|>")};
static const special qwen[] = {
    TOKEN("<|endoftext|>"), TOKEN("<|im_start|>"), TOKEN("<|im_end|>"), {"<|extra_", 0, 205}};
static const special llama3[] = {TOKEN("<|begin_of_text|>"),
                                 TOKEN("<|end_of_text|>"),
                                 {"<|reserved_special_token_", 0, 2},
                                 TOKEN("<|finetune_right_pad_id|>"),
                                 TOKEN("<|step_id|>"),
                                 TOKEN("<|start_header_id|>"),
                                 TOKEN("<|end_header_id|>"),
                                 TOKEN("<|eom_id|>"),
                                 TOKEN("<|eot_id|>"),
                                 TOKEN("<|python_tag|>"),
                                 TOKEN("<|image|>"),
                                 {"<|reserved_special_token_", 2, 244}};
static const special llama4[] = {TOKEN("<|begin_of_text|>"),
                                 TOKEN("<|end_of_text|>"),
                                 TOKEN("<|fim_prefix|>"),
                                 TOKEN("<|fim_middle|>"),
                                 TOKEN("<|fim_suffix|>"),
                                 TOKEN("<|header_start|>"),
                                 TOKEN("<|header_end|>"),
                                 TOKEN("<|eom|>"),
                                 TOKEN("<|eot|>"),
                                 TOKEN("<|step|>"),
                                 {"<|text_post_train_reserved_special_token_", 0, 6},
                                 TOKEN("<|python_start|>"),
                                 TOKEN("<|python_end|>"),
                                 TOKEN("<|finetune_right_pad|>"),
                                 {"<|text_post_train_reserved_special_token_", 8, 61},
                                 TOKEN("<|image_start|>"),
                                 TOKEN("<|image_end|>"),
                                 {"<|vision_reserved_special_token_", 0, 2},
                                 TOKEN("<|tile_x_separator|>"),
                                 TOKEN("<|tile_y_separator|>"),
                                 {"<|vision_reserved_special_token_", 2, 4},
                                 TOKEN("<|image|>"),
                                 {"<|vision_reserved_special_token_", 6, 1},
                                 TOKEN("<|patch|>"),
                                 {"<|vision_reserved_special_token_", 7, 1041},
                                 {"<|reasoning_reserved_special_token_", 0, 8},
                                 TOKEN("<|reasoning_thinking_start|>"),
                                 TOKEN("<|reasoning_thinking_end|>"),
                                 {"<|reserved_special_token_", 0, 905}};

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES   "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LARGE   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define OTHER   "[^\\r\\n\\p{L}\\p{N}]?"
#define NO_HAN  "(?!\\p{Han})"

static const char words[] = ENDINGS "|" OTHER "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES;
static const char single_digits[] = ENDINGS "|" OTHER "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES;
static const char old_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char cased[] = OTHER LARGE "*" SMALL "+" ENDINGS "?|" OTHER LARGE "+" SMALL "*" ENDINGS
                                        "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES;
static const char cased_without_han[] =
    "\\p{Han}+|" OTHER "(?:" NO_HAN LARGE ")*(?:" NO_HAN SMALL ")+" ENDINGS "?|" OTHER "(?:" NO_HAN LARGE
    ")+(?:" NO_HAN SMALL ")*" ENDINGS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES;

#define SPECIALS(list) list, sizeof(list) / sizeof *(list)

static const struct family {
    int32_t ranks;
    const char *name, *pattern;
    const special *specials; /* from id `ranks` on */
    size_t special_count;
    int nfc, bos; /* bos: the first special token goes before a text */
} families[] = {
    {50256, "GPT-2", old_words, SPECIALS(gpt2), 0, 0},     {100256, "cl100k_base", words, SPECIALS(cl100k), 0, 0},
    {128000, "Llama 3", words, SPECIALS(llama3), 0, 1},    {151643, "Qwen", single_digits, SPECIALS(qwen), 1, 0},
    {163584, "Kimi K2", cased_without_han, NULL, 0, 0, 0}, {199998, "o200k_base", cased, SPECIALS(o200k), 0, 0},
    {200000, "Llama 4", cased, SPECIALS(llama4), 0, 1},
};

/* ---- building -------------------------------------------------------------------------------------------------- */

typedef struct building {
    ravel_tokenizer *t;
    ravel__buffer bytes, text, ranks; /* of one token; of all ids */
    ravel_error *err;
} building;

/* Memory for `size` ids, and for texts of that many bytes in all. */
static ravel_status begin(building *b, int64_t size, size_t text_bytes, int64_t texts) {
    ravel_tokenizer *t = b->t;
    if (size < 1 || size >= RAVEL__ID_LIMIT)
        return ravel_error_set(b->err, RAVEL_E_DATA, "the vocabulary must have from 1 to %d ids, not %" PRId64,
                               RAVEL__ID_LIMIT - 1, size);
    for (int i = 0; i < 2; i++) ravel__added_init(&t->added[i], &t->arena);
    ravel_status status =
        ravel__buffer_reserve(&b->ranks, t->allocator, size, sizeof(uint32_t), "the ranks of tokens", b->err);
    if (status) return status;
    RAVEL_ASSERT(b->ranks.at);
    memset(b->ranks.at, 0xff, (size_t)size * sizeof(uint32_t));
    return ravel__vocab_init(&t->vocab, &t->arena, (int32_t)size, text_bytes, texts, b->err);
}

static ravel_status add_token(building *b, const char *base64, size_t length, int64_t id, uint32_t rank) {
    const ravel__alphabet *alphabet = ravel__byte_alphabet();
    const ravel_allocator *allocator = b->t->allocator;
    ravel_status status = ravel__buffer_reserve(&b->bytes, allocator, (int64_t)length + 1, 1, "a token", b->err);
    if (!status) status = ravel__buffer_reserve(&b->text, allocator, (int64_t)length + 1, 2, "a token", b->err);
    if (status) return status;
    RAVEL_ASSERT(b->bytes.at && b->text.at && b->ranks.at);
    size_t bytes = ravel__base64_decode(base64, length, b->bytes.at);
    if (bytes == SIZE_MAX || bytes == 0 || id < 0 || id >= b->t->vocab.size || b->t->vocab.tokens[id].text)
        return ravel_error_set(b->err, RAVEL_E_DATA,
                               "token %" PRId64 " must be base64 with a rank of its own, not \"%.*s\"", id,
                               (int)(length < 60 ? length : 60), base64);
    char *out = b->text.at;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = ((unsigned char *)b->bytes.at)[i];
        memcpy(out, alphabet->text[byte], alphabet->length[byte]);
        out += alphabet->length[byte];
    }
    ((uint32_t *)b->ranks.at)[id] = rank;
    return ravel__vocab_add(&b->t->vocab, b->text.at, (size_t)(out - (char *)b->text.at), (int32_t)id, b->err);
}

static ravel_status add_special(building *b, const char *text, size_t bytes, int64_t id, int is_special) {
    ravel__vocab *vocab = &b->t->vocab;
    if (id < 0 || id >= vocab->size || bytes == 0)
        return ravel_error_set(b->err, RAVEL_E_DATA,
                               "the special token \"%.60s\" has the id %" PRId64 ", which is not in the vocabulary",
                               text, id);
    ravel_status status = vocab->tokens[id].text ? RAVEL_OK : ravel__vocab_add(vocab, text, bytes, (int32_t)id, b->err);
    vocab->tokens[id].special = (uint32_t)is_special;
    return status ? status : ravel__added_add(&b->t->added[0], text, bytes, (int32_t)id, 0, b->err);
}

static ravel_status finish(building *b, const char *pattern) {
    ravel_tokenizer *t = b->t;
    ravel_status status = ravel__tokenizer_add_step(t, pattern, RAVEL__ISOLATED, 0, b->err);
    ravel__tokenizer_find_bytes(t, 0);
    for (int byte = 0; byte < 256 && !status; byte++)
        if (t->bpe.byte_ids[byte] == RAVEL__NO_ID)
            status = ravel_error_set(b->err, RAVEL_E_DATA, "there is no token for the byte 0x%02x", (unsigned)byte);
    t->bpe.whole_words = 1;
    t->bpe.unknown = RAVEL__NO_ID;
    return status ? status : ravel__bpe_derive(&t->bpe, &t->vocab, b->ranks.at, &t->arena, t->allocator, b->err);
}

static void free_building(building *b) {
    ravel__buffer_free(&b->bytes, b->t->allocator);
    ravel__buffer_free(&b->text, b->t->allocator);
    ravel__buffer_free(&b->ranks, b->t->allocator);
}

/* ---- *.tiktoken ------------------------------------------------------------------------------------------------ */

typedef struct line {
    const char *text;
    size_t bytes;
    int64_t rank;
} line;

/* 1: a line; 0: the end; -1: no such line. */
static int next_line(const char **at, const char *end, line *out) {
    while (*at < end && (**at == '\n' || **at == '\r')) ++*at;
    if (*at == end) return 0;
    const char *space = memchr(*at, ' ', (size_t)(end - *at));
    if (!space) return -1;
    *out = (line){*at, (size_t)(space - *at), 0};
    for (*at = space + 1; *at < end && **at >= '0' && **at <= '9' && out->rank < RAVEL__ID_LIMIT; ++*at)
        out->rank = 10 * out->rank + (**at - '0');
    return *at > space + 1 && (*at == end || **at == '\n' || **at == '\r') ? 1 : -1;
}

static ravel_status find_family(const char *text, size_t bytes, const struct family **family, ravel_error *err) {
    const char *at = text;
    line l;
    int32_t count = 0;
    int more;
    char known[256] = "";
    while ((more = next_line(&at, text + bytes, &l)) == 1 && count < RAVEL__ID_LIMIT) count++;
    if (more < 0)
        return ravel_error_set(err, RAVEL_E_DATA, "line %d must be a token in base64 and its rank", count + 1);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (families[i].ranks == count) return *family = &families[i], RAVEL_OK;
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%d (%s)", i ? ", " : "", (int)families[i].ranks,
                       families[i].name);
    }
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "the file has %d ranks, which is no family whose pattern is known: %s", (int)count, known);
}

static int32_t count_specials(const struct family *f) {
    int32_t count = 0;
    for (size_t i = 0; i < f->special_count; i++) count += f->specials[i].count ? f->specials[i].count : 1;
    return count;
}

static ravel_status add_family(building *b, const struct family *f) {
    ravel_status status = RAVEL_OK;
    int64_t id = f->ranks;
    char name[80];
    for (size_t i = 0; i < f->special_count && !status; i++) {
        const special *s = &f->specials[i];
        if (!s->name) id += s->count;
        if (s->name && !s->count) status = add_special(b, s->name, strlen(s->name), id++, 1);
        for (int k = 0; s->name && k < s->count && !status; k++) {
            (void)snprintf(name, sizeof name, "%s%d|>", s->name, s->first + k);
            if (!b->t->vocab.tokens[id].text) status = add_special(b, name, strlen(name), id, 1);
            id++;
        }
    }
    return status;
}

/* "added_tokens_decoder": {"163584": {"content": "[BOS]", "special": true}, ...}. With b NULL: their sizes alone. */
static ravel_status read_decoder(const ravel__loading *l, building *b, int64_t *size, size_t *bytes) {
    const ravel__json_node *list = ravel__load_member(l, ravel__json_root(l->doc), "added_tokens_decoder");
    ravel_status status = RAVEL_OK;
    for (node *n = list && list->kind == RAVEL__JSON_OBJECT ? ravel__json_first(l->doc, list) : NULL; n && !status;
         n = ravel__json_next(l->doc, n)) {
        const ravel__json_node *content = ravel__load_member(l, n, "content");
        int64_t id = 0;
        for (const char *c = n->key; *c >= '0' && *c <= '9' && id < RAVEL__ID_LIMIT; c++) id = 10 * id + (*c - '0');
        if (!content || content->kind != RAVEL__JSON_STRING) continue;
        if (id >= *size) *size = id + 1;
        *bytes += content->bytes;
        if (b) status = add_special(b, content->as.string, content->bytes, id, ravel__load_true(l, n, "special"));
    }
    return status;
}

static ravel_status read_ranks(building *b, const char *text, size_t bytes) {
    const char *at = text;
    line l;
    ravel_status status = RAVEL_OK;
    while (!status && next_line(&at, text + bytes, &l) == 1)
        status = add_token(b, l.text, l.bytes, l.rank, (uint32_t)l.rank);
    return status;
}

static ravel_status load_tiktoken(building *b, const ravel__loading *l, const char *text, size_t bytes) {
    const struct family *f = NULL;
    ravel_status status = find_family(text, bytes, &f, b->err);
    if (status) return status;
    RAVEL_ASSERT(f);
    int64_t size = f->ranks + count_specials(f);
    size_t more = (size_t)count_specials(f) * 80;
    if (l->doc) (void)read_decoder(l, NULL, &size, &more);
    status = begin(b, size, 2 * bytes + more, size + 1);
    if (!status) status = read_ranks(b, text, bytes);
    if (!status && l->doc) status = read_decoder(l, b, &size, &more);
    if (!status) status = add_family(b, f);
    if (!status) status = finish(b, f->pattern);
    if (status) return status;
    if (f->nfc) b->t->normals[b->t->normal_count++] = (ravel__normal){ravel__normal_nfc, .needs = RAVEL__TEXT_SUSPECT};
    b->t->bos = f->bos ? f->ranks : RAVEL__NO_ID;
    return f->bos ? ravel__tokenizer_surround(b->t, f->ranks, RAVEL__NO_ID, b->err) : RAVEL_OK;
}

ravel_status ravel__tiktoken_load(ravel_tokenizer *t, const char *text, size_t bytes, const char *config,
                                  size_t config_bytes, ravel_error *err) {
    building b = {.t = t, .err = err};
    ravel__json *doc = NULL;
    ravel_status status = config ? ravel__json_parse(config, config_bytes, t->allocator, &doc, err) : RAVEL_OK;
    const ravel__loading l = {t, doc, err};
    if (!status) status = load_tiktoken(&b, &l, text, bytes);
    ravel__json_free(doc);
    free_building(&b);
    return status;
}

/* ---- tekken.json ----------------------------------------------------------------------------------------------- */

/* Special tokens come first; files that do not list them have these. */
static const char *const tekken_specials[] = {"<unk>",
                                              "<s>",
                                              "</s>",
                                              "[INST]",
                                              "[/INST]",
                                              "[AVAILABLE_TOOLS]",
                                              "[/AVAILABLE_TOOLS]",
                                              "[TOOL_RESULTS]",
                                              "[/TOOL_RESULTS]",
                                              "[TOOL_CALLS]",
                                              "[IMG]",
                                              "<pad>",
                                              "[IMG_BREAK]",
                                              "[IMG_END]",
                                              "[PREFIX]",
                                              "[MIDDLE]",
                                              "[SUFFIX]",
                                              "[SYSTEM_PROMPT]",
                                              "[/SYSTEM_PROMPT]",
                                              "[TOOL_CONTENT]"};

static ravel_status add_tekken_specials(building *b, const ravel__loading *l, node *list, int64_t count) {
    ravel_status status = RAVEL_OK;
    char name[32];
    for (node *n = list ? ravel__json_first(l->doc, list) : NULL; n && !status; n = ravel__json_next(l->doc, n)) {
        int64_t id = -1;
        const ravel__json_node *text = ravel__load_member(l, n, "token_str");
        if (!ravel__json_integer(ravel__load_member(l, n, "rank"), &id) || id < 0 || id >= count || !text ||
            text->kind != RAVEL__JSON_STRING)
            return ravel__load_wrong(l, "a special token must have a \"rank\" and a \"token_str\"");
        status = add_special(b, text->as.string, text->bytes, id, 1);
    }
    int64_t known = list ? 0 : (int64_t)(sizeof tekken_specials / sizeof *tekken_specials);
    for (int64_t id = 0; id < count && !status; id++) {
        if (b->t->vocab.tokens[id].text) continue;
        (void)snprintf(name, sizeof name, "<SPECIAL_%d>", (int)id);
        const char *text = id < known ? tekken_specials[id] : name;
        status = add_special(b, text, strlen(text), id, 1);
    }
    return status;
}

static ravel_status load_tekken(building *b, const ravel__loading *l, size_t file_bytes) {
    const ravel__json_node *root = ravel__json_root(l->doc), *config = ravel__load_member(l, root, "config");
    const ravel__json_node *vocab = ravel__load_member(l, root, "vocab");
    const ravel__json_node *pattern = ravel__load_member(l, config, "pattern");
    int64_t size = 0, specials = -1, rank = 0;
    (void)ravel__json_integer(ravel__load_member(l, config, "default_vocab_size"), &size);
    (void)ravel__json_integer(ravel__load_member(l, config, "default_num_special_tokens"), &specials);
    if (!vocab || vocab->kind != RAVEL__JSON_ARRAY || !pattern || pattern->kind != RAVEL__JSON_STRING || specials < 0 ||
        specials > size || size - specials > vocab->count)
        return ravel__load_wrong(l,
                                 "this is no tekken.json: \"config\" must have \"pattern\", \"default_vocab_size\" and "
                                 "\"default_num_special_tokens\", and \"vocab\" as many tokens");
    ravel_status status = begin(b, size, 2 * file_bytes + 32 * (size_t)specials, size + 1);
    if (!status) status = add_tekken_specials(b, l, ravel__load_member(l, root, "special_tokens"), specials);
    for (node *n = ravel__json_first(l->doc, vocab); n && rank < size - specials && !status;
         n = ravel__json_next(l->doc, n), rank++) {
        const ravel__json_node *bytes = ravel__load_member(l, n, "token_bytes");
        if (!bytes || bytes->kind != RAVEL__JSON_STRING)
            return ravel__load_wrong(l, "a token must have \"token_bytes\" in base64");
        status = add_token(b, bytes->as.string, bytes->bytes, rank + specials, (uint32_t)rank);
    }
    if (!status) status = finish(b, pattern->as.string);
    if (status) return status;
    int32_t *const ids[] = {&b->t->bos, &b->t->eos, &b->t->pad};
    static const char *const names[] = {"<s>", "</s>", "<pad>"};
    for (int i = 0; i < 3; i++) *ids[i] = ravel__vocab_find(&b->t->vocab, names[i], strlen(names[i]));
    return ravel__tokenizer_surround(b->t, b->t->bos, RAVEL__NO_ID, b->err);
}

ravel_status ravel__tekken_load(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err) {
    building b = {.t = t, .err = err};
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(json, bytes, t->allocator, &doc, err);
    const ravel__loading l = {t, doc, err};
    if (!status) status = load_tekken(&b, &l, bytes);
    ravel__json_free(doc);
    free_building(&b);
    return status;
}
