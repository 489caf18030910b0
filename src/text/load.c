/* tokenizer.json to a tokenizer. The file is untrusted: every kind and every id is checked, and an unsupported part is
 * refused with its name. */
#include "text/load.h"

#include "text/unicode/unicode.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef ravel__loading loading;
typedef const ravel__json_node node;

const ravel__json_node *ravel__load_member(const loading *l, node *of, const char *key) {
    node *n = of ? ravel__json_get(l->doc, of, key) : NULL;
    return n && n->kind == RAVEL__JSON_NULL ? NULL : n;
}

int ravel__load_true(const loading *l, node *of, const char *key) {
    int value = 0;
    return ravel__json_boolean(ravel__load_member(l, of, key), &value) && value;
}

const char *ravel__load_text(node *n) {
    return n && n->kind == RAVEL__JSON_STRING ? n->as.string : "";
}

const char *ravel__load_type(const loading *l, node *part) {
    return ravel__load_text(ravel__load_member(l, part, "type"));
}

ravel_status ravel__load_wrong(const loading *l, const char *what) {
    return ravel_error_set(l->err, RAVEL_E_DATA, "%s", what);
}

ravel_status ravel__load_refuse(const loading *l, const char *part, const char *name, const char *known) {
    return ravel_error_set(l->err, RAVEL_E_UNSUPPORTED, "the %s \"%.60s\" is not supported; supported: %s", part, name,
                           known);
}

#define member  ravel__load_member
#define is_true ravel__load_true
#define text_of ravel__load_text
#define type_of ravel__load_type
#define wrong   ravel__load_wrong
#define refuse  ravel__load_refuse

/* ---- vocabulary and merges ------------------------------------------------------------------------------- */

static ravel_status check_id(const loading *l, const char *text, node *n, int64_t *id) {
    if (ravel__json_integer(n, id) && *id >= 0 && *id < RAVEL__ID_LIMIT) return RAVEL_OK;
    return ravel_error_set(l->err, RAVEL_E_DATA, "the id of the token \"%.60s\" must be a whole number from 0 to %d",
                           text, RAVEL__ID_LIMIT - 1);
}

typedef struct sizes {
    int64_t ids, texts; /* ids: one more than the largest */
    size_t bytes;       /* of all texts */
} sizes;

static ravel_status count_token(const loading *l, const char *text, size_t bytes, node *number, sizes *all) {
    int64_t id;
    ravel_status status = check_id(l, text, number, &id);
    if (!status && id >= all->ids) all->ids = id + 1;
    RAVEL_ASSERT(all->ids >= 1 && all->ids <= RAVEL__ID_LIMIT);
    all->texts++;
    all->bytes += bytes;
    return status;
}

static ravel_status count_tokens(const loading *l, node *vocab, node *added, sizes *all) {
    ravel_status status = RAVEL_OK;
    for (node *n = vocab ? ravel__json_first(l->doc, vocab) : NULL; n && !status; n = ravel__json_next(l->doc, n))
        status = count_token(l, n->key, strlen(n->key), n, all);
    for (node *n = added ? ravel__json_first(l->doc, added) : NULL; n && !status; n = ravel__json_next(l->doc, n)) {
        node *content = member(l, n, "content");
        if (!content || content->kind != RAVEL__JSON_STRING || content->bytes == 0)
            return wrong(l, "an added token must have a \"content\" that is a text");
        status = count_token(l, content->as.string, content->bytes, member(l, n, "id"), all);
    }
    return status;
}

static ravel_status read_vocab(const loading *l, node *vocab, node *added) {
    sizes all = {1, 0, 0};
    int64_t id;
    if (!vocab || vocab->kind != RAVEL__JSON_OBJECT) return wrong(l, "\"model\".\"vocab\" must be an object of ids");
    ravel_status status = count_tokens(l, vocab, added, &all);
    if (!status) status = ravel__vocab_init(&l->t->vocab, &l->t->arena, (int32_t)all.ids, all.bytes, all.texts, l->err);
    for (node *n = ravel__json_first(l->doc, vocab); n && !status; n = ravel__json_next(l->doc, n)) {
        (void)ravel__json_integer(n, &id);
        RAVEL_ASSERT(id >= 0 && id < all.ids); /* counted above */
        status = ravel__vocab_add(&l->t->vocab, n->key, strlen(n->key), (int32_t)id, l->err);
    }
    return status;
}

/* "a b" or ["a", "b"] as two texts. */
static int merge_parts(const loading *l, node *n, const char *parts[2], size_t bytes[2]) {
    if (n->kind == RAVEL__JSON_STRING) {
        const char *space = strchr(n->as.string, ' ');
        if (!space || strchr(space + 1, ' ')) return 0;
        parts[0] = n->as.string;
        bytes[0] = (size_t)(space - n->as.string);
        parts[1] = space + 1;
        bytes[1] = n->bytes - bytes[0] - 1;
        return 1;
    }
    if (n->kind != RAVEL__JSON_ARRAY || n->count != 2) return 0;
    node *part = ravel__json_first(l->doc, n);
    for (int i = 0; i < 2; i++, part = ravel__json_next(l->doc, part)) {
        if (part->kind != RAVEL__JSON_STRING) return 0;
        parts[i] = part->as.string;
        bytes[i] = part->bytes;
    }
    return 1;
}

static ravel_status read_merge(const loading *l, node *n, int64_t rank) {
    const ravel__vocab *vocab = &l->t->vocab;
    const char *parts[2];
    size_t bytes[2];
    char whole[1024];
    if (!merge_parts(l, n, parts, bytes))
        return ravel_error_set(l->err, RAVEL_E_DATA, "merge %" PRId64 " must be two texts: \"a b\" or [\"a\", \"b\"]",
                               rank);
    int32_t left = ravel__vocab_find(vocab, parts[0], bytes[0]), right = ravel__vocab_find(vocab, parts[1], bytes[1]);
    int32_t id = RAVEL__NO_ID;
    if (bytes[0] + bytes[1] <= sizeof whole) {
        memcpy(whole, parts[0], bytes[0]);
        memcpy(whole + bytes[0], parts[1], bytes[1]);
        id = ravel__vocab_find(vocab, whole, bytes[0] + bytes[1]);
    }
    if (left < 0 || right < 0 || id < 0)
        return ravel_error_set(l->err, RAVEL_E_DATA,
                               "merge %" PRId64 " (\"%.60s\" and \"%.60s\") is of texts that are not in the vocabulary",
                               rank, parts[0], parts[1]);
    RAVEL_ASSERT(rank >= 0 && rank < UINT32_MAX);
    ravel__bpe_add(&l->t->bpe, left, right, (uint32_t)rank, id);
    return RAVEL_OK;
}

static ravel_status read_merges(const loading *l, node *merges) {
    int64_t rank = 0;
    if (!merges || merges->kind != RAVEL__JSON_ARRAY) return wrong(l, "\"model\".\"merges\" must be an array");
    ravel_status status = ravel__bpe_init(&l->t->bpe, &l->t->arena, merges->count, l->err);
    for (node *n = ravel__json_first(l->doc, merges); n && !status; n = ravel__json_next(l->doc, n))
        status = read_merge(l, n, rank++);
    return status;
}

/* What would change the ids and is not done here. */
static ravel_status check_model(const loading *l, node *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = type_of(l, model);
    double dropout;
    if (strcmp(type, "BPE") != 0 && (*type || !member(l, model, "merges")))
        return refuse(l, "model", *type ? type : "without a type", "BPE, Unigram");
    for (int i = 0; i < 2; i++)
        if (*text_of(member(l, model, affixes[i]))) return refuse(l, "model option", affixes[i], "none of it");
    if (is_true(l, model, "byte_fallback") && !l->t->vocab.spaced)
        return refuse(l, "model option", "byte_fallback", "byte-level BPE without it");
    if (ravel__json_real(member(l, model, "dropout"), &dropout) && dropout != 0)
        return refuse(l, "model option", "dropout", "no dropout");
    return RAVEL_OK;
}

void ravel__tokenizer_find_bytes(ravel_tokenizer *t, int fallback) {
    const ravel__alphabet *alphabet = ravel__byte_alphabet();
    const ravel__vocab *vocab = &t->vocab;
    t->bpe.by_character = vocab->spaced;
    for (int b = 0; b < 256; b++) {
        char name[8], byte = (char)b;
        (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        t->bpe.byte_ids[b] = vocab->spaced ? (b < 128 ? ravel__vocab_find(vocab, &byte, 1) : RAVEL__NO_ID)
                                           : ravel__vocab_find(vocab, alphabet->text[b], alphabet->length[b]);
        t->bpe.fallback[b] = fallback ? ravel__vocab_find(vocab, name, 6) : RAVEL__NO_ID;
    }
}

/* ---- Unigram --------------------------------------------------------------------------------------------- */

/* ["text", score] */
static int scored(const loading *l, node *n, node **text, double *score) {
    *text = n->kind == RAVEL__JSON_ARRAY && n->count == 2 ? ravel__json_first(l->doc, n) : NULL;
    return *text && (*text)->kind == RAVEL__JSON_STRING && ravel__json_real(ravel__json_next(l->doc, *text), score);
}

static ravel_status count_pieces(const loading *l, node *list, sizes *all) {
    node *text;
    double score;
    if (!list || list->kind != RAVEL__JSON_ARRAY || list->count >= RAVEL__ID_LIMIT)
        return wrong(l, "\"model\".\"vocab\" of Unigram must be a list of pieces with scores");
    for (node *n = ravel__json_first(l->doc, list); n; n = ravel__json_next(l->doc, n)) {
        if (!scored(l, n, &text, &score)) return wrong(l, "a piece of Unigram must be [text, score]");
        all->bytes += text->bytes;
    }
    all->ids = list->count > all->ids ? list->count : all->ids;
    all->texts += list->count;
    return RAVEL_OK;
}

static ravel_status add_pieces(const loading *l, node *list) {
    ravel__unigram *u = &l->t->unigram;
    double score = 0, least = 0;
    int64_t id = 0;
    node *text;
    ravel_status status = RAVEL_OK;
    for (node *n = ravel__json_first(l->doc, list); n && !status; n = ravel__json_next(l->doc, n), id++) {
        (void)scored(l, n, &text, &score);
        u->scores[id] = score;
        least = id == 0 || score < least ? score : least;
        status = ravel__vocab_add(&l->t->vocab, text->as.string, text->bytes, (int32_t)id, l->err);
        if (!status) status = ravel__unigram_add(u, text->as.string, text->bytes, (int32_t)id, l->t->allocator, l->err);
    }
    u->unknown_score = least - 10;
    return status;
}

static ravel_status read_unigram(const loading *l, node *model, node *added) {
    ravel__unigram *u = &l->t->unigram;
    node *list = member(l, model, "vocab");
    sizes all = {1, 0, 0};
    int64_t unknown = 0;
    ravel_status status = count_pieces(l, list, &all);
    if (!status) status = count_tokens(l, NULL, added, &all);
    if (status) return status;
    if (!ravel__json_integer(member(l, model, "unk_id"), &unknown) || unknown < 0 || unknown >= list->count)
        return wrong(l, "\"unk_id\" of Unigram must be the number of a piece");
    status = ravel__vocab_init(&l->t->vocab, &l->t->arena, (int32_t)all.ids, all.bytes, all.texts, l->err);
    u->scores = status ? NULL : ravel__arena_push(&l->t->arena, (size_t)all.ids, sizeof *u->scores);
    if (!status && !u->scores) return ravel__no_memory(l->err, (size_t)all.ids * sizeof *u->scores, "scores");
    if (!status) status = add_pieces(l, list);
    if (status) return status;
    if (!u->edges) return wrong(l, "\"model\".\"vocab\" of Unigram has no text");
    u->unknown = l->t->bpe.unknown = (int32_t)unknown;
    ravel__tokenizer_find_bytes(l->t, is_true(l, model, "byte_fallback"));
    memcpy(u->fallback, l->t->bpe.fallback, sizeof u->fallback);
    return RAVEL_OK;
}

static ravel_status read_model(const loading *l, node *model, node *added) {
    ravel__bpe *bpe = &l->t->bpe;
    if (strcmp(type_of(l, model), "Unigram") == 0) return read_unigram(l, model, added);
    ravel_status status = model ? check_model(l, model) : wrong(l, "there is no \"model\"");
    if (!status) status = read_vocab(l, member(l, model, "vocab"), added);
    if (!status) status = read_merges(l, member(l, model, "merges"));
    if (status) return status;
    ravel__tokenizer_find_bytes(l->t, is_true(l, model, "byte_fallback"));
    node *unknown = member(l, model, "unk_token");
    bpe->unknown = unknown ? ravel__vocab_find(&l->t->vocab, text_of(unknown), unknown->bytes) : RAVEL__NO_ID;
    if (unknown && bpe->unknown == RAVEL__NO_ID) return wrong(l, "\"unk_token\" is not in the vocabulary");
    bpe->fuse_unknown = is_true(l, model, "fuse_unk");
    bpe->whole_words = is_true(l, model, "ignore_merges");
    return RAVEL_OK;
}

/* ---- added tokens --------------------------------------------------------------------------------------- */

/* Memory for the normalized texts of added tokens. */
typedef struct normalizing {
    ravel__rewritten out[2];
    ravel__nfc nfc;
    ravel__regex_state *state;
} normalizing;

/* The package decodes an added token to what the normalizers made of it. */
static ravel_status respell(const loading *l, ravel__token *token, const char *text, size_t text_bytes) {
    RAVEL_ASSERT(text_bytes > 0);
    char *bytes = ravel__arena_push(&l->t->arena, text_bytes, 1);
    if (!bytes) return ravel__no_memory(l->err, text_bytes, "an added token");
    token->bytes = bytes;
    token->byte_count = (uint32_t)ravel__vocab_spell(&l->t->vocab, text, text_bytes, bytes);
    return RAVEL_OK;
}

static ravel_status read_added_token(const loading *l, node *n, normalizing *memory) {
    ravel__vocab *vocab = &l->t->vocab;
    node *content = member(l, n, "content");
    int64_t id;
    const char *text = content->as.string; /* checked when the tokens were counted */
    (void)ravel__json_integer(member(l, n, "id"), &id);
    if (is_true(l, n, "single_word")) return refuse(l, "option \"single_word\" of the added token", text, "false");
    int32_t known = ravel__vocab_find(vocab, text, content->bytes);
    ravel_status status = RAVEL_OK;
    if (known != (int32_t)id) status = ravel__vocab_add(vocab, text, content->bytes, (int32_t)id, l->err);
    if (status) return status;
    RAVEL_ASSERT(id >= 0 && id < vocab->size);
    vocab->tokens[id].special = (uint32_t)is_true(l, n, "special");
    int normalized = is_true(l, n, "normalized"), flags = 0, seen;
    if (is_true(l, n, "lstrip")) flags |= RAVEL__ADDED_LEFT;
    if (is_true(l, n, "rstrip")) flags |= RAVEL__ADDED_RIGHT;
    size_t bytes = content->bytes;
    const uint32_t *origins = NULL;
    if (normalized) {
        (void)ravel__utf8_scan(text, bytes, &seen);
        status = ravel__normalize(l->t, memory->out, &memory->nfc, memory->state, seen, 1, &text, &bytes, &origins,
                                  l->t->allocator, l->err);
        if (!status && origins && bytes) status = respell(l, &vocab->tokens[id], text, bytes);
    }
    if (!status && bytes) status = ravel__added_add(&l->t->added[normalized], text, bytes, (int32_t)id, flags, l->err);
    return status;
}

static ravel_status read_added(const loading *l, node *added) {
    normalizing memory = {0};
    ravel_status status = RAVEL_OK;
    if (l->t->patterns) status = ravel__regex_state_create(l->t->allocator, &memory.state, l->err);
    for (int i = 0; i < 2; i++) ravel__added_init(&l->t->added[i], &l->t->arena);
    for (node *n = added && !status ? ravel__json_first(l->doc, added) : NULL; n && !status;
         n = ravel__json_next(l->doc, n))
        status = read_added_token(l, n, &memory);
    ravel__nfc_free(&memory.nfc, l->t->allocator);
    ravel__regex_state_free(memory.state);
    for (int i = 0; i < 2; i++) ravel__rewritten_free(&memory.out[i], l->t->allocator);
    return status;
}

/* ---- pre-tokenizer --------------------------------------------------------------------------------------- */

static int is_text(node *n, const char *text) {
    return n && ravel__json_is(n, text);
}

ravel_status ravel__tokenizer_add_step(ravel_tokenizer *t, const char *pattern, int behavior, int invert,
                                       ravel_error *err) {
    RAVEL_ASSERT(behavior >= 0 && behavior < 5 && (invert == 0 || invert == 1));
    if (t->step_count == RAVEL__STEPS)
        return ravel_error_set(err, RAVEL_E_DATA, "there are more than %d pre-tokenizers", RAVEL__STEPS);
    RAVEL_ASSERT(t->step_count >= 0 && t->step_count < RAVEL__STEPS);
    ravel_status status = ravel__regex_compile(pattern, t->allocator, &t->steps[t->step_count].regex, err);
    if (status) return status;
    t->patterns = 1;
    t->steps[t->step_count].behavior = behavior;
    t->steps[t->step_count++].invert = invert;
    return RAVEL_OK;
}

static ravel_status add_step(const loading *l, const char *pattern, int behavior, int invert) {
    return ravel__tokenizer_add_step(l->t, pattern, behavior, invert, l->err);
}

ravel_status ravel__load_literal(const loading *l, node *text, char *pattern, size_t room) {
    size_t used = 0;
    if (text->bytes > room / 2 - 1) return refuse(l, "pattern", text->as.string, "at most 255 bytes");
    for (uint32_t i = 0; i < text->bytes; i++) {
        if (strchr("\\^$.|?*+()[]{}&-", text->as.string[i])) pattern[used++] = '\\';
        pattern[used++] = text->as.string[i];
    }
    RAVEL_ASSERT(used < room);
    pattern[used] = '\0';
    return RAVEL_OK;
}

#define BEHAVIORS "Isolated|Removed|MergedWithPrevious|MergedWithNext|Contiguous"

static ravel_status read_split(const loading *l, node *n) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = text_of(member(l, n, "behavior"));
    node *pattern = member(l, n, "pattern"), *regex = member(l, pattern, "Regex"), *text = member(l, pattern, "String");
    int behavior = 0, invert = is_true(l, n, "invert");
    while (behavior < 5 && strcmp(names[behavior], name) != 0) behavior++;
    if (behavior == 5) return refuse(l, "Split behavior", name, BEHAVIORS);
    if (regex && regex->kind == RAVEL__JSON_STRING && strlen(regex->as.string) == regex->bytes)
        return add_step(l, regex->as.string, behavior, invert);
    if (text && text->kind == RAVEL__JSON_STRING) {
        char literal[512];
        ravel_status status = ravel__load_literal(l, text, literal, sizeof literal);
        return status ? status : add_step(l, literal, behavior, invert);
    }
    return wrong(l, "a Split pre-tokenizer must have a \"pattern\" with \"Regex\" or \"String\"");
}

static ravel_status read_byte_level(const loading *l, node *n) {
    int value = 1;
    if (is_true(l, n, "add_prefix_space")) {
        if (l->t->step_count)
            return refuse(l, "option \"add_prefix_space\" of a ByteLevel", "after another pre-tokenizer", "false");
        l->t->prefix_space = 1;
    }
    if (ravel__json_boolean(member(l, n, "use_regex"), &value) && !value) return RAVEL_OK;
    return add_step(l, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                    RAVEL__ISOLATED, 0);
}

static ravel_status read_digits(const loading *l, node *n) {
    return add_step(l, is_true(l, n, "individual_digits") ? "\\p{N}" : "\\p{N}+", RAVEL__ISOLATED, 0);
}

static ravel_status read_pre_tokenizer(const loading *l, node *n, int *byte_level);

static ravel_status read_sequence(const loading *l, node *n, int *byte_level) {
    node *list = member(l, n, "pretokenizers");
    ravel_status status = RAVEL_OK;
    for (node *each = list ? ravel__json_first(l->doc, list) : NULL; each && !status;
         each = ravel__json_next(l->doc, each))
        status = *byte_level ? refuse(l, "pre-tokenizer", type_of(l, each), "none after ByteLevel")
                             : read_pre_tokenizer(l, each, byte_level);
    return status;
}

static ravel_status read_metaspace(const loading *l, node *n) {
    static const struct {
        const char *name;
        int prepend;
    } schemes[] = {
        {"always", RAVEL__PREPEND_MISSING}, {"first", RAVEL__PREPEND_FIRST}, {"never", RAVEL__PREPEND_NEVER}};
    node *scheme = member(l, n, "prepend_scheme");
    int split = 1, add = 1;
    if (!is_text(member(l, n, "replacement"), RAVEL__SPACE))
        return refuse(l, "Metaspace replacement", text_of(member(l, n, "replacement")), "U+2581");
    (void)ravel__json_boolean(member(l, n, "split"), &split);
    (void)ravel__json_boolean(member(l, n, "add_prefix_space"), &add); /* of older files */
    int words = l->t->metaspace.words;
    l->t->metaspace = (ravel__spacing){add ? RAVEL__PREPEND_MISSING : RAVEL__PREPEND_NEVER, 1, words};
    l->t->split_spaces = split;
    for (size_t i = 0; scheme && i < sizeof schemes / sizeof *schemes; i++)
        if (is_text(scheme, schemes[i].name)) l->t->metaspace.prepend = schemes[i].prepend;
    if (words && !(split && l->t->metaspace.prepend == RAVEL__PREPEND_MISSING))
        return refuse(l, "Metaspace after a WhitespaceSplit", text_of(scheme), "\"always\", with \"split\"");
    return RAVEL_OK;
}

/* Known before a Metaspace alone: the two are one pass over the text. */
static ravel_status read_whitespace_split(const loading *l, node *n) {
    (void)n;
    if (l->t->step_count || l->t->metaspace.replace)
        return refuse(l, "pre-tokenizer", "WhitespaceSplit", "first, and before Metaspace");
    l->t->metaspace.words = 1;
    return RAVEL_OK;
}

static ravel_status read_pre_tokenizer(const loading *l, node *n, int *byte_level) {
    const char *type = n ? type_of(l, n) : "none";
    if (strcmp(type, "Sequence") == 0) return read_sequence(l, n, byte_level);
    if (strcmp(type, "Split") == 0) return read_split(l, n);
    if (strcmp(type, "Digits") == 0) return read_digits(l, n);
    if (strcmp(type, "Metaspace") == 0 && l->t->vocab.spaced) return read_metaspace(l, n);
    if (strcmp(type, "WhitespaceSplit") == 0 && l->t->vocab.spaced) return read_whitespace_split(l, n);
    if (!n && l->t->vocab.spaced) return RAVEL_OK;
    if (strcmp(type, "ByteLevel") != 0 || l->t->vocab.spaced)
        return refuse(l, "pre-tokenizer", type,
                      "ByteLevel, Metaspace, WhitespaceSplit before it, Split, Digits and a Sequence of them");
    *byte_level = 1;
    return read_byte_level(l, n);
}

/* ---- decoder and post-processor -------------------------------------------------------------------------- */

static ravel_status put_special(const loading *l, node *name, node *specials, int after) {
    RAVEL_ASSERT(l->t->prefix && l->t->suffix);
    ravel_tokenizer *t = l->t;
    node *ids = member(l, member(l, specials, text_of(name)), "ids");
    for (node *n = ids ? ravel__json_first(l->doc, ids) : NULL; n; n = ravel__json_next(l->doc, n)) {
        int64_t id;
        if (!ravel__json_integer(n, &id) || id < 0 || id >= t->vocab.size)
            return wrong(l, "the post-processor's template has an id that is not in the vocabulary");
        if (after)
            t->suffix[t->suffix_count++] = (int32_t)id;
        else
            t->prefix[t->prefix_count++] = (int32_t)id;
    }
    return ids ? RAVEL_OK : wrong(l, "the post-processor's template names a special token that it does not define");
}

/* How many ids the template can hold at most: every special token at every place. */
static size_t template_room(const loading *l, node *single, node *specials) {
    RAVEL_ASSERT(single->kind == RAVEL__JSON_ARRAY);
    size_t most = 1;
    for (node *n = specials ? ravel__json_first(l->doc, specials) : NULL; n; n = ravel__json_next(l->doc, n)) {
        node *ids = member(l, n, "ids");
        if (ids && (size_t)ids->count > most) most = (size_t)ids->count;
    }
    return most * ((size_t)single->count + 1);
}

static ravel_status read_template(const loading *l, node *n) {
    ravel_tokenizer *t = l->t;
    node *single = member(l, n, "single"), *specials = member(l, n, "special_tokens");
    int after = 0;
    ravel_status status = RAVEL_OK;
    if (!single || single->kind != RAVEL__JSON_ARRAY || t->prefix)
        return wrong(l, "a TemplateProcessing post-processor must be the only one and have a \"single\" list");
    size_t room = template_room(l, single, specials);
    t->prefix = ravel__arena_push(&t->arena, room, sizeof *t->prefix);
    t->suffix = t->prefix ? ravel__arena_push(&t->arena, room, sizeof *t->suffix) : NULL;
    if (!t->suffix) return ravel__no_memory(l->err, room * sizeof *t->prefix, "a template");
    for (node *each = ravel__json_first(l->doc, single); each && !status; each = ravel__json_next(l->doc, each)) {
        node *special = member(l, each, "SpecialToken");
        if (special)
            status = put_special(l, member(l, special, "id"), specials, after);
        else if (!member(l, each, "Sequence") || after++)
            status = wrong(l, "the post-processor's template must hold special tokens and one sequence");
    }
    return status;
}

static ravel_status read_post_processor(const loading *l, node *n) {
    const char *type = type_of(l, n);
    ravel_status status = RAVEL_OK;
    if (!n || strcmp(type, "ByteLevel") == 0) return RAVEL_OK; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(l, n);
    if (strcmp(type, "Sequence") != 0)
        return refuse(l, "post-processor", type, "ByteLevel, TemplateProcessing and a Sequence of them");
    node *list = member(l, n, "processors");
    for (node *each = list ? ravel__json_first(l->doc, list) : NULL; each && !status;
         each = ravel__json_next(l->doc, each))
        status = read_post_processor(l, each);
    return status;
}

/* Of tokenizers of characters: what their decoders do to the text's beginning; the rest is in the tokens' bytes. */
static int read_spaced_decoder(const loading *l, node *n, const char *type) {
    int64_t start = 0, stop = 0;
    if (strcmp(type, "ByteFallback") == 0) l->t->fallback = 1;
    if (strcmp(type, "Fuse") == 0 || strcmp(type, "ByteFallback") == 0) return 1;
    if (strcmp(type, "Replace") == 0)
        return is_text(member(l, member(l, n, "pattern"), "String"), RAVEL__SPACE) &&
               is_text(member(l, n, "content"), " ");
    if (strcmp(type, "Metaspace") == 0) {
        int add = 1;
        (void)ravel__json_boolean(member(l, n, "add_prefix_space"), &add);
        if (add && !is_text(member(l, n, "prepend_scheme"), "never")) l->t->strip = RAVEL__STRIP_TOKEN;
        return 1;
    }
    (void)ravel__json_integer(member(l, n, "start"), &start);
    (void)ravel__json_integer(member(l, n, "stop"), &stop);
    if (strcmp(type, "Strip") != 0 || !is_text(member(l, n, "content"), " ") || start > 1 || stop) return 0;
    if (start) l->t->strip = RAVEL__STRIP_SPACE;
    return 1;
}

static ravel_status check_decoder(const loading *l, node *n) {
    const char *type = type_of(l, n);
    ravel_status status = RAVEL_OK;
    if (!n || strcmp(type, "ByteLevel") == 0) return RAVEL_OK;
    if (l->t->vocab.spaced && strcmp(type, "Sequence") != 0)
        return read_spaced_decoder(l, n, type)
                   ? RAVEL_OK
                   : refuse(l, "decoder", type, "Replace, ByteFallback, Fuse, Strip, Metaspace");
    if (strcmp(type, "Sequence") != 0) return refuse(l, "decoder", type, "ByteLevel");
    node *list = member(l, n, "decoders");
    for (node *each = list ? ravel__json_first(l->doc, list) : NULL; each && !status;
         each = ravel__json_next(l->doc, each))
        status = check_decoder(l, each);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------------- */

static int has_type(const loading *l, node *n, const char *list, const char *type) {
    if (n && strcmp(type_of(l, n), type) == 0) return 1;
    node *parts = n ? member(l, n, list) : NULL;
    for (node *each = parts ? ravel__json_first(l->doc, parts) : NULL; each; each = ravel__json_next(l->doc, each))
        if (has_type(l, each, list, type)) return 1;
    return 0;
}

/* Whether tokens are of characters, with U+2581 for spaces. */
static int is_spaced(const loading *l, node *root) {
    node *normalizer = member(l, root, "normalizer"), *pre = member(l, root, "pre_tokenizer");
    if (is_text(member(l, member(l, root, "model"), "type"), "Unigram")) return 1;
    if (has_type(l, pre, "pretokenizers", "ByteLevel")) return 0;
    return has_type(l, pre, "pretokenizers", "Metaspace") || has_type(l, normalizer, "normalizers", "Prepend") ||
           has_type(l, normalizer, "normalizers", "Replace");
}

static ravel_status load(const loading *l) {
    node *root = ravel__json_root(l->doc), *added = member(l, root, "added_tokens");
    int byte_level = 0;
    if (root->kind != RAVEL__JSON_OBJECT || !member(l, root, "model"))
        return wrong(l, "this is no tokenizer.json: there is no \"model\" in it");
    l->t->vocab.spaced = is_spaced(l, root);
    ravel_status status = read_model(l, member(l, root, "model"), added);
    if (!status) status = ravel__load_normalizer(l, member(l, root, "normalizer"));
    if (!status) status = read_added(l, added);
    if (!status) status = read_pre_tokenizer(l, member(l, root, "pre_tokenizer"), &byte_level);
    if (!status && l->t->metaspace.words && !l->t->metaspace.replace)
        status = refuse(l, "pre-tokenizer", "WhitespaceSplit", "before Metaspace");
    if (!status && l->t->vocab.spaced && !l->t->split_spaces && ravel__spaces_may_split(l->t)) l->t->split_spaces = 2;
    if (!status && !byte_level && !l->t->vocab.spaced)
        status = refuse(l, "pre-tokenizer", "without ByteLevel", "byte-level BPE");
    if (!status) status = read_post_processor(l, member(l, root, "post_processor"));
    return status ? status : check_decoder(l, member(l, root, "decoder"));
}

ravel_status ravel__tokenizer_load(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(json, bytes, t->allocator, &doc, err);
    loading l = {t, doc, err};
    if (!status) status = load(&l);
    ravel__json_free(doc);
    return status;
}
