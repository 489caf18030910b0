/* Tokenizers: golden ids of the `tokenizers` package, streaming, offsets, bad files, memory, threads. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "text/decoder.h"
#include "text/normal.h"
#include "text/regex.h"
#include "text/unicode/unicode.h"

#include "base/json.h"
#include <ravel/tokenizer.h>

#include <pthread.h>
#include <stdlib.h>

#define GOLDEN "tests/golden/text/"

static char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    (void)fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*bytes + 1);
    *bytes = fread(text, 1, *bytes, f);
    text[*bytes] = '\0';
    (void)fclose(f);
    return text;
}

/* One of the golden tokenizers; NULL, and the test is skipped, where there is no PCRE2. */
static ravel_tokenizer *open_golden(const char *name) {
    char path[128];
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)snprintf(path, sizeof path, GOLDEN "%s", name);
    ravel_status status = ravel_tokenizer_open(path, NULL, &t, &err);
    if (status == RAVEL_E_UNSUPPORTED && strstr(err.message, "pcre2"))
        check_skip("PCRE2 is not installed (Debian: libpcre2-dev)");
    else if (status)
        check_fail(__FILE__, __LINE__, "%s", err.message);
    return t;
}

/* ---- golden ids ----------------------------------------------------------------------------------------- */

typedef struct golden {
    ravel__json *doc;
    ravel_tokenizer *tokenizer;
    ravel_encoder *encoder;
    char name[32];
} golden;

static bool same_ids(const golden *g, const ravel__json_node *text, const char *key, int32_t flags) {
    const ravel__json_node *want = ravel__json_get(g->doc, ravel__json_root(g->doc), key);
    const ravel_encoding *e = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_encoder_encode(g->encoder, text->as.string, text->bytes, flags, &e, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    int64_t i = 0, id = -1;
    const ravel__json_node *n = ravel__json_first(g->doc, want);
    for (; n && i < e->count; n = ravel__json_next(g->doc, n), i++)
        if (!ravel__json_integer(n, &id) || id != e->ids[i]) break;
    if (!n && i == e->count && e->count == want->count) return true;
    check_fail(__FILE__, __LINE__, "%s, \"%s\": %s: id %lld is %d instead of %lld", g->name, text->as.string, key,
               (long long)i, i < e->count ? e->ids[i] : -1, (long long)id);
    return false;
}

/* One shot and by a stream, both against the golden text. */
static bool same_text(const golden *g, const ravel__json_node *text, const char *key, int32_t flags) {
    const ravel__json_node *want = ravel__json_get(g->doc, ravel__json_root(g->doc), key);
    const ravel_encoding *e = NULL;
    char out[4096], streamed[4096];
    size_t used = 0, bytes;
    const char *part;
    ravel__decoder *d = NULL;
    if (ravel_encoder_encode(g->encoder, text->as.string, text->bytes, 0, &e, NULL)) return false;
    size_t need = ravel_tokenizer_decode(g->tokenizer, e->ids, e->count, flags, out, sizeof out);
    if (!EXPECT(need == want->bytes && memcmp(out, want->as.string, need) == 0)) return false;
    if (ravel__decoder_create(g->tokenizer, flags, NULL, &d, NULL)) return false;
    for (int64_t i = 0; i <= e->count; i++) {
        if (i < e->count)
            ravel__decoder_push(d, e->ids[i], &part, &bytes);
        else
            ravel__decoder_flush(d, &part, &bytes);
        memcpy(streamed + used, part, bytes);
        used += bytes;
        int seen;
        if (!EXPECT(ravel__utf8_scan(streamed, used, &seen) == used)) break; /* whole characters, always */
    }
    ravel__decoder_free(d);
    return EXPECT(used == need && memcmp(streamed, out, used) == 0);
}

static bool check_case(golden *g, const char *line, size_t bytes) {
    if (ravel__json_parse(line, bytes, NULL, &g->doc, NULL)) return check_fail(__FILE__, __LINE__, "bad case"), false;
    const ravel__json_node *root = ravel__json_root(g->doc), *text = ravel__json_get(g->doc, root, "text");
    const char *name = ravel__json_get(g->doc, root, "tokenizer")->as.string;
    if (strcmp(name, g->name) != 0) {
        ravel_encoder_free(g->encoder);
        ravel_tokenizer_free(g->tokenizer);
        g->encoder = NULL;
        g->tokenizer = open_golden(name);
        (void)snprintf(g->name, sizeof g->name, "%s", name);
        if (!g->tokenizer || ravel_encoder_create(g->tokenizer, NULL, &g->encoder, NULL)) return false;
    }
    return same_ids(g, text, "ids", 0) && same_ids(g, text, "with_template", RAVEL_ENCODE_TEMPLATE) &&
           same_text(g, text, "decoded", 0) && same_text(g, text, "decoded_skipping", RAVEL_DECODE_SKIP_SPECIAL);
}

static void check_cases(const char *path, int least) {
    size_t bytes = 0;
    char *file = read_file(path, &bytes);
    golden g = {0};
    int cases = 0;
    CHECK(file);
    for (char *line = file, *end; line < file + bytes; line = end + 1, cases++) {
        end = memchr(line, '\n', (size_t)(file + bytes - line));
        if (!check_case(&g, line, (size_t)(end - line))) break;
    }
    ravel_encoder_free(g.encoder);
    ravel_tokenizer_free(g.tokenizer);
    ravel__json_free(g.doc);
    free(file);
    if (cases) CHECK(cases > least);
}

TEST(text_golden_ids_and_texts) {
    check_cases(GOLDEN "cases.jsonl", 300);
}

/* Unigram, models of sentencepiece, ranks. */
TEST(text_golden_ids_of_pieces) {
    check_cases(GOLDEN "pieces.jsonl", 250);
}

TEST(text_config_names_special_tokens) {
    ravel_tokenizer *t = open_golden("qwen");
    if (!t) return;
    size_t bytes;
    CHECK_EQ(ravel_tokenizer_eos(t), ravel_tokenizer_id(t, "<|im_end|>", 10));
    CHECK_EQ(ravel_tokenizer_pad(t), ravel_tokenizer_id(t, "<|endoftext|>", 13));
    CHECK_EQ(ravel_tokenizer_bos(t), -1);
    CHECK_EQ(ravel__tokenizer_is_special(t, ravel_tokenizer_eos(t)), 1);
    CHECK_EQ(ravel__tokenizer_is_special(t, ravel_tokenizer_id(t, "<think>", 7)), 0);
    CHECK(ravel_tokenizer_bytes(t, ravel_tokenizer_eos(t), &bytes) && bytes == 10);
    CHECK(!ravel_tokenizer_bytes(t, ravel_tokenizer_size(t), &bytes));
    CHECK_HAS(ravel_tokenizer_chat_template(t), "<|im_start|>");
    ravel_tokenizer_free(t);
}

/* ---- properties ----------------------------------------------------------------------------------------- */

static size_t random_text(ravel__rng *rng, char *out, size_t most) {
    static const char *const words[] = {"the",
                                        " a",
                                        "  ",
                                        "\n",
                                        "12345",
                                        "'ll",
                                        "é",
                                        "e\xcc\x81",
                                        "漢",
                                        "<|im_end|>",
                                        "\xf0\x9f\x8e\x89",
                                        "\xf0\xb1\x8d\x90",
                                        "xyzzy",
                                        "ZZ",
                                        "...",
                                        "\t\r\n",
                                        "\xed\x95\x9c"};
    size_t used = 0;
    for (int n = (int)(ravel__rng_next(rng) % 40); n > 0; n--) {
        const char *word = words[ravel__rng_next(rng) % (sizeof words / sizeof *words)];
        size_t bytes = strlen(word);
        if (used + bytes > most) break;
        memcpy(out + used, word, bytes);
        used += bytes;
    }
    return used;
}

/* Without a normalizer the tokens' bytes are the text, and each begins where the one before ended. */
TEST(text_tokens_spell_the_text_and_say_where) {
    ravel_tokenizer *t = open_golden("smol");
    ravel_encoder *encoder = NULL;
    ravel__rng rng = ravel__rng_seed(check_seed());
    if (!t) return;
    CHECK(ravel_encoder_create(t, NULL, &encoder, NULL) == RAVEL_OK);
    for (int64_t round = 0; round < check_rounds(500, 20000); round++) {
        char text[512];
        size_t bytes = random_text(&rng, text, sizeof text), at = 0, length;
        const ravel_encoding *e;
        CHECK(ravel_encoder_encode(encoder, text, bytes, 0, &e, NULL) == RAVEL_OK);
        for (int64_t i = 0; i < e->count; i++) {
            const char *token = ravel_tokenizer_bytes(t, e->ids[i], &length);
            CHECK_EQ(e->begins[i], at);
            CHECK(at + length <= bytes && memcmp(token, text + at, length) == 0);
            at += length;
        }
        CHECK_EQ(at, bytes);
    }
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
}

/* The cache of words and the two ways to merge change nothing: a fresh encoder gives the same ids, and a word that is
 * too long for the short way gives those of its definition. */
TEST(text_a_used_encoder_gives_the_ids_of_a_fresh_one) {
    ravel_tokenizer *t = open_golden("llama3");
    ravel_encoder *used = NULL, *fresh = NULL;
    ravel__rng rng = ravel__rng_seed(check_seed());
    if (!t) return;
    CHECK(ravel_encoder_create(t, NULL, &used, NULL) == RAVEL_OK);
    for (int64_t round = 0; round < check_rounds(60, 2000); round++) {
        char text[512];
        size_t bytes = random_text(&rng, text, sizeof text);
        const ravel_encoding *a, *b;
        CHECK(ravel_encoder_create(t, NULL, &fresh, NULL) == RAVEL_OK);
        CHECK(ravel_encoder_encode(used, text, bytes, 0, &a, NULL) == RAVEL_OK);
        CHECK(ravel_encoder_encode(fresh, text, bytes, 0, &b, NULL) == RAVEL_OK);
        CHECK_EQ(a->count, b->count);
        CHECK(a->count == 0 || memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) == 0);
        ravel_encoder_free(fresh);
    }
    ravel_encoder_free(used);
    ravel_tokenizer_free(t);
}

TEST(text_plain_encoding_sees_no_special_tokens) {
    ravel_tokenizer *t = open_golden("qwen");
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e;
    const char *text = "a<|im_end|>b<think>";
    if (!t) return;
    CHECK(ravel_encoder_create(t, NULL, &encoder, NULL) == RAVEL_OK);
    CHECK(ravel_encoder_encode(encoder, text, strlen(text), RAVEL_ENCODE_PLAIN, &e, NULL) == RAVEL_OK);
    for (int64_t i = 0; i < e->count; i++) CHECK(!ravel__tokenizer_is_special(t, e->ids[i]));
    CHECK_EQ(e->ids[e->count - 1], ravel_tokenizer_id(t, "<think>", 7)); /* added, but not special */
    char out[64];
    (void)ravel_tokenizer_decode(t, e->ids, e->count, 0, out, sizeof out);
    CHECK_STR(out, text);
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
}

TEST(text_hostile_texts_take_their_time_but_not_more) {
    enum { BYTES = 400000 };
    ravel_tokenizer *t = open_golden("llama3");
    ravel_encoder *encoder = NULL;
    char *text = malloc(BYTES);
    if (!t) return free(text);
    CHECK(ravel_encoder_create(t, NULL, &encoder, NULL) == RAVEL_OK);
    for (const char *c = "a .\n9"; *c; c++) {
        const ravel_encoding *e;
        memset(text, *c, BYTES);
        CHECK(ravel_encoder_encode(encoder, text, BYTES, 0, &e, NULL) == RAVEL_OK);
        size_t need = ravel_tokenizer_decode(t, e->ids, e->count, 0, NULL, 0);
        CHECK_EQ(need, BYTES);
    }
    for (int i = 0; i + 1 < BYTES; i += 2) memcpy(text + i, i % 4 ? "\xcc\x81" : "\xcc\xa3", 2); /* marks only */
    ravel__nfc nfc = {0};
    CHECK(ravel__nfc_apply(&nfc, text, BYTES, NULL, NULL) == RAVEL_OK);
    CHECK_EQ(nfc.bytes, BYTES);
    ravel__nfc_free(&nfc, NULL);
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
    free(text);
}

/* ---- character maps of strangers -------------------------------------------------------------------------- */

/* A map whose trie has one entry, the bytes of `key`, with this value; the texts follow it. */
static size_t make_map(char *blob, const char *key, uint32_t value, const char *texts, size_t text_bytes) {
    enum { UNITS = 512, LEAF = 1 << 8, JUMP = 256 };
    uint32_t units[UNITS] = {(uint32_t)JUMP << 10}, at = JUMP, trie = sizeof units;
    for (; *key; key++, at ^= JUMP)
        units[at ^= (unsigned char)*key] = (unsigned char)*key | (key[1] ? 0 : LEAF) | (uint32_t)JUMP << 10;
    units[at] = value | 1u << 31;
    memcpy(blob, &trie, 4);
    memcpy(blob + 4, units, sizeof units);
    memcpy(blob + 4 + sizeof units, texts, text_bytes);
    return 4 + sizeof units + text_bytes;
}

TEST(text_character_maps_give_whole_characters_or_are_refused) {
    static const char good[] = "x\0\xc3\xa9", broken[] = "x\0\xa9"; /* texts, each with its NUL */
    static const struct {
        uint32_t value;
        const char *texts, *why;
    } row[] = {
        {0, good, NULL}, {2, good, NULL}, {3, good, "first byte"}, {5, good, "first byte"}, {0, broken, "UTF-8"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char blob[4096];
        ravel__charsmap map;
        ravel_error err = RAVEL_ERROR_INIT;
        size_t bytes = make_map(blob, "a", row[i].value, row[i].texts, row[i].texts == good ? 5 : 4), used;
        ravel_status status = ravel__charsmap_open(blob, bytes, &map, &err);
        CHECK_EQ(status, row[i].why ? RAVEL_E_DATA : RAVEL_OK);
        if (row[i].why)
            CHECK_HAS(err.message, row[i].why);
        else
            CHECK_STR(ravel__charsmap_find(&map, "ab", 2, 1, &used), row[i].texts + row[i].value);
    }
}

TEST(text_character_maps_match_no_half_characters) {
    char blob[4096];
    ravel__charsmap map;
    size_t used, bytes = make_map(blob, "\xc3", 0, "x", 2);
    CHECK(ravel__charsmap_open(blob, bytes, &map, NULL) == RAVEL_OK);
    CHECK(!ravel__charsmap_find(&map, "\xc3\xa9", 2, 0, &used));
    CHECK(!ravel__charsmap_find(&map, "\xc3\xa9", 2, 1, &used));
}

/* ---- threads and memory --------------------------------------------------------------------------------- */

static void *encode_much(void *user) {
    ravel_tokenizer *t = user;
    ravel_encoder *encoder = NULL;
    ravel__rng rng = ravel__rng_seed(check_seed());
    uint64_t sum = 0; /* a hash: it wraps */
    if (ravel_encoder_create(t, NULL, &encoder, NULL)) return NULL;
    for (int round = 0; round < 300; round++) {
        char text[512];
        const ravel_encoding *e;
        size_t bytes = random_text(&rng, text, sizeof text);
        if (ravel_encoder_encode(encoder, text, bytes, 0, &e, NULL)) break;
        for (int64_t i = 0; i < e->count; i++) sum = sum * 31 + (uint32_t)e->ids[i];
    }
    ravel_encoder_free(encoder);
    return (void *)(uintptr_t)sum;
}

TEST(text_one_tokenizer_serves_many_threads) {
    ravel_tokenizer *t = open_golden("qwen");
    pthread_t threads[4];
    void *alone, *got;
    if (!t) return;
    alone = encode_much(t);
    CHECK(alone);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, encode_much, t) == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], &got) == 0);
        CHECK(got == alone);
    }
    ravel_tokenizer_free(t);
}

static ravel_status open_and_encode(const ravel_allocator *allocator, void *user) {
    ravel_tokenizer *t = NULL;
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e;
    (void)user;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<e\\u0301>\",\"normalized\":true}],\"normalizer\":{\"type\":\"NFC\"},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":true}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
        "\"merges\":[\"a b\"]}}";
    ravel_status status = ravel__tokenizer_parse(json, sizeof json - 1, NULL, 0, allocator, &t, NULL);
    if (!status) status = ravel_encoder_create(t, allocator, &encoder, NULL);
    if (!status) {
        static char text[200];
        memset(text, 'a', sizeof text);
        memcpy(text + 50, "e\xcc\x81\xf0\xb1\x8d\x90", 7);
        status = ravel_encoder_encode(encoder, text, sizeof text, 0, &e, NULL);
    }
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
    return status;
}

TEST(text_every_allocation_may_fail) {
    ravel_tokenizer *t = open_golden("smol");
    if (!t) return;
    ravel_tokenizer_free(t);
    CHECK(check_every_allocation(open_and_encode, NULL) > 10);
}

static ravel_status open_file_and_encode(const ravel_allocator *allocator, void *path) {
    static const char text[] = "\xef\xac\x81ne e\xcc\x81 \xf0\x9f\x8e\x89  ab<sep>";
    ravel_tokenizer *t = NULL;
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e;
    ravel_status status = ravel_tokenizer_open(path, allocator, &t, NULL);
    if (!status) status = ravel_encoder_create(t, allocator, &encoder, NULL);
    if (!status) status = ravel_encoder_encode(encoder, text, sizeof text - 1, RAVEL_ENCODE_TEMPLATE, &e, NULL);
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
    return status;
}

TEST(text_every_allocation_of_the_other_files_may_fail) {
    static char paths[][32] = {GOLDEN "unigram", GOLDEN "pieces", GOLDEN "symbols", GOLDEN "tekken"};
    ravel_tokenizer *t = open_golden("unigram");
    if (!t) return;
    ravel_tokenizer_free(t);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        CHECK(check_every_allocation(open_file_and_encode, paths[i]) > 10);
}

/* A file of ranks has neither pattern nor special tokens: both are known by the number of ranks. */
TEST(text_ranks_are_of_a_family_by_their_number) {
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char config[] = "{\"added_tokens_decoder\":{\"50257\":{\"content\":\"<more>\",\"special\":true}}}";
    enum { RANKS = 50256 };
    size_t used = 0, room = (size_t)RANKS * 16;
    char *file = malloc(room);
    CHECK(file);
    for (int i = 0; i < RANKS; i++) { /* all bytes, then pairs of them */
        unsigned bits = i < 256 ? (unsigned)i << 16 : (unsigned)(i - 256) << 8;
        used += (size_t)snprintf(file + used, room - used, "%c%c%c= %d\n", base64[bits >> 18], base64[bits >> 12 & 63],
                                 i < 256 ? '=' : base64[bits >> 6 & 63], i);
    }
    ravel_tokenizer *t = NULL;
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel__tokenizer_parse(file, used, config, sizeof config - 1, NULL, &t, &err);
    free(file);
    if (status == RAVEL_E_UNSUPPORTED && strstr(err.message, "pcre2")) return;
    CHECK_OK(status, &err);
    CHECK_EQ(ravel_tokenizer_size(t), RANKS + 2);
    CHECK_EQ(ravel_tokenizer_id(t, "<|endoftext|>", 13), RANKS);
    CHECK_OK(ravel_encoder_create(t, NULL, &encoder, &err), &err);
    CHECK_OK(ravel_encoder_encode(encoder, "abab<more>", 10, RAVEL_ENCODE_TEMPLATE, &e, &err), &err);
    CHECK_EQ(e->count, 3);
    CHECK_EQ(e->ids[0], 256 + ('a' << 8) + 'b');
    CHECK_EQ(e->ids[2], RANKS + 1);
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
}

/* The ways to cut a token in two are tried with all of its bytes: a file with one of a megabyte would take minutes. */
TEST(text_tokens_that_are_too_long) {
    static const char begin[] = "\n\x09\n\x05<unk>\x18\x02\n\x84\x80\x01\n\x80\x80\x01"; /* <unk>, 2^14 bytes */
    static const char end[] = "\x12\x02\x18\x02";                                        /* merges */
    enum { BYTES = 1 << 14, MOST = BYTES + 64 };
    char *file = calloc(1, MOST);
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(file);
    memcpy(file, begin, sizeof begin - 1);
    memset(file + sizeof begin - 1, 'a', BYTES);
    memcpy(file + sizeof begin - 1 + BYTES, end, sizeof end - 1);
    CHECK_OK(ravel__tokenizer_parse(file, sizeof begin - 1 + BYTES + sizeof end - 1, NULL, 0, NULL, &t, &err), &err);
    ravel_tokenizer_free(t);
    file[12]++, file[16]++; /* one byte more */
    memset(file + sizeof begin - 1, 'a', BYTES + 1);
    memcpy(file + sizeof begin + BYTES, end, sizeof end - 1);
    CHECK_EQ(ravel__tokenizer_parse(file, sizeof begin + BYTES + sizeof end - 1, NULL, 0, NULL, &t, &err),
             RAVEL_E_DATA);
    CHECK_HAS(err.message, "token 1 has 16385 bytes, over the limit of 16384");
    free(file);
}

/* A run of tokens of bytes that is not UTF-8 as a whole is one U+FFFD per byte; a stream shows what it can. */
TEST(text_broken_runs_of_bytes) {
    ravel_tokenizer *t = open_golden("pieces");
    if (!t) return;
    const int32_t e9[] = {ravel_tokenizer_id(t, "<0xC3>", 6), ravel_tokenizer_id(t, "<0xA9>", 6),
                          ravel_tokenizer_id(t, "<0xC3>", 6)};
    char text[32];
    (void)ravel_tokenizer_decode(t, e9, 2, 0, text, sizeof text);
    CHECK_STR(text, "\xc3\xa9");
    (void)ravel_tokenizer_decode(t, e9, 3, 0, text, sizeof text);
    CHECK_STR(text, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    ravel_tokenizer_free(t);
}

TEST(text_a_warm_encoder_does_not_allocate) {
    check_memory memory;
    ravel_tokenizer *t = open_golden("qwen");
    ravel_encoder *encoder = NULL;
    ravel__rng rng = ravel__rng_seed(check_seed());
    char text[512];
    const ravel_encoding *e;
    if (!t) return;
    check_memory_init(&memory);
    CHECK(ravel_encoder_create(t, &memory.allocator, &encoder, NULL) == RAVEL_OK);
    for (int i = 0; i < 300; i++)
        CHECK(ravel_encoder_encode(encoder, text, random_text(&rng, text, sizeof text), 0, &e, NULL) == RAVEL_OK);
    rng = ravel__rng_seed(check_seed());
    int64_t calls = memory.calls;
    for (int i = 0; i < 300; i++)
        CHECK(ravel_encoder_encode(encoder, text, random_text(&rng, text, sizeof text), 0, &e, NULL) == RAVEL_OK);
    CHECK_EQ(memory.calls, calls);
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
    CHECK_EQ(memory.live, 0);
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

TEST(text_what_is_not_supported_is_refused_by_name) {
    static const struct {
        const char *json, *says;
        int status;
    } cases[] = {
        {"{" MODEL "," BYTES "}", "", RAVEL_OK},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "unk_id", RAVEL_E_DATA},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}}", "[text, score]", RAVEL_E_DATA},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", "unk_id", RAVEL_E_DATA},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",0]]},\"normalizer\":{\"type\":"
         "\"Precompiled\",\"precompiled_charsmap\":\"AAAAAAAA\"}}",
         "character map", RAVEL_E_DATA},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",0]]},\"pre_tokenizer\":{\"type\":"
         "\"WhitespaceSplit\"}}",
         "before Metaspace", RAVEL_E_UNSUPPORTED},
        {"\n\x03\n\x01x\x12\x02\x18\x03", "words or characters", RAVEL_E_UNSUPPORTED},
        {"\n\x7f\n", "fields", RAVEL_E_DATA},
        {"IQ== 0\nIg== 1\n", "2 ranks", RAVEL_E_UNSUPPORTED},
        {"IQ== x", "line 1", RAVEL_E_DATA},
        {"{\"config\":{}}", "tekken.json", RAVEL_E_DATA},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "WordPiece", RAVEL_E_UNSUPPORTED},
        {"{" MODEL ",\"normalizer\":{\"type\":\"NFKC\"}," BYTES "}", "NFKC", RAVEL_E_UNSUPPORTED},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}}", "Metaspace", RAVEL_E_UNSUPPORTED},
        {"{" MODEL "}", "pre-tokenizer", RAVEL_E_UNSUPPORTED},
        {"{" MODEL "," BYTES ",\"post_processor\":{\"type\":\"BertProcessing\"}}", "BertProcessing",
         RAVEL_E_UNSUPPORTED},
        {"{" MODEL "," BYTES ",\"decoder\":{\"type\":\"WordPiece\"}}", "WordPiece", RAVEL_E_UNSUPPORTED},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{},\"merges\":[]}}", "byte_fallback",
         RAVEL_E_UNSUPPORTED},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "dropout",
         RAVEL_E_UNSUPPORTED},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens",
         RAVEL_E_DATA},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "whole number", RAVEL_E_DATA},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", "whole number",
         RAVEL_E_DATA},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 0", RAVEL_E_DATA},
        {"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}", "merge 0", RAVEL_E_DATA},
        {"{" MODEL "," BYTES ",\"added_tokens\":[{\"id\":5}]}", "content", RAVEL_E_DATA},
        {"{" MODEL "," BYTES ",\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"single_word\":true}]}", "single_word",
         RAVEL_E_UNSUPPORTED},
        {"{" MODEL "," BYTES ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", "two tokens", RAVEL_E_DATA},
        {"[1]", "no tokenizer.json", RAVEL_E_DATA},
        {"{\"model\":", "JSON", RAVEL_E_DATA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_tokenizer *t = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_EQ(ravel__tokenizer_parse(cases[i].json, strlen(cases[i].json), NULL, 0, NULL, &t, &err),
                 cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        ravel_tokenizer_free(t);
    }
}

TEST(text_patterns_are_translated_or_refused) {
    static const struct {
        const char *pattern, *gives; /* gives NULL: refused */
    } cases[] = {{"a|\\p{L}+", "(*LF)a|\\p{L}+"},
                 {"[\\d]\\d", "(*LF)[\\p{Nd}][\\p{Nd}]"},
                 {"\\u0041\\.", "(*LF)\\x{0041}\\."},
                 {"\\w+", NULL},
                 {"[a&&b]", NULL},
                 {"[a[b]]", NULL},
                 {"\\p{N}{1,3}+", NULL},
                 {"(?<x>a)", NULL},
                 {"(?m)a", NULL},
                 {"[\\S]", NULL},
                 {"[^", NULL},
                 {"a\\", NULL},
                 {"(*UTF)a", NULL},
                 {"\\b", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[256];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = ravel__regex_translate(cases[i].pattern, out, sizeof out, &err);
        CHECK_EQ(status, cases[i].gives ? RAVEL_OK : RAVEL_E_UNSUPPORTED);
        if (cases[i].gives) CHECK_STR(out, cases[i].gives);
        if (!cases[i].gives) CHECK_HAS(err.message, "pattern");
    }
}

TEST(text_invalid_utf8_is_an_error_that_says_where) {
    ravel_tokenizer *t = open_golden("smol");
    ravel_encoder *encoder = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    const ravel_encoding *e;
    if (!t) return;
    CHECK(ravel_encoder_create(t, NULL, &encoder, NULL) == RAVEL_OK);
    CHECK_EQ(ravel_encoder_encode(encoder, "abc\xff", 4, 0, &e, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "0xff at 3");
    ravel_encoder_free(encoder);
    ravel_tokenizer_free(t);
}

TEST(text_a_missing_folder_is_an_io_error) {
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_tokenizer_open("no/such/folder", NULL, &t, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "no/such/folder");
}

/* ---- tokenizers of characters --------------------------------------------------------------------------- */

#define SPACE "\342\226\201" /* U+2581 */

TEST(text_characters_with_byte_fallback) {
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE "\"},"
        "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
        "\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,"
        "\"<0xC3>\":1,\"<0xA9>\":2,\"" SPACE "\":3,\"a\":4,\"b\":5,\"ab\":6,\"" SPACE "a\":7},"
        "\"merges\":[\"" SPACE " a\",\"a b\"]}}";
    static const int32_t want[] = {7, 7, 5, 3, 1, 2, 0, 6};
    static const uint32_t begins[] = {0, 1, 3, 4, 5, 6, 7, 10};
    ravel_tokenizer *t = NULL;
    ravel_encoder *e = NULL;
    const ravel_encoding *got;
    ravel_error err = RAVEL_ERROR_INIT;
    char text[64];
    CHECK_OK(ravel__tokenizer_parse(json, sizeof json - 1, NULL, 0, NULL, &t, &err), &err);
    CHECK_OK(ravel_encoder_create(t, NULL, &e, &err), &err);
    CHECK_OK(ravel_encoder_encode(e, "a ab \303\251\342\202\254ab", 12, 0, &got, &err), &err);
    CHECK_EQ(got->count, 8);
    for (int64_t i = 0; i < got->count && i < 8; i++) {
        CHECK_EQ(got->ids[i], want[i]);
        CHECK_EQ(got->begins[i], begins[i]);
    }
    CHECK_EQ(ravel_tokenizer_decode(t, want, 6, 0, text, sizeof text), 7);
    CHECK_STR(text, "a ab \303\251");
    ravel_encoder_free(e);
    ravel_tokenizer_free(t);
}
