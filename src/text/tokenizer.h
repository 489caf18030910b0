/* The parts of a tokenizer, and the files that fill and use them:
 *
 *     load.c            tokenizer.json          --> vocab, model, added tokens, normalizers, steps, template
 *     sentencepiece.c   tokenizer.model         --> likewise
 *     tiktoken.c        *.tiktoken, tekken.json --> likewise
 *     open.c            tokenizer_config.json   --> bos, eos, pad, the chat template
 *     encode.c    text --> added tokens (added.c) --> normalizers (normal.c, charsmap.c) --> pieces (words.c)
 *                      --> ids (word.c: bpe.c, unigram.c)
 *     decode.c    ids --> bytes --> text
 *
 * Everything lives in one arena and is read-only after loading. */
#ifndef RAVEL_TEXT_TOKENIZER_H
#define RAVEL_TEXT_TOKENIZER_H

#include <ravel/tokenizer.h>

#include "base/buffer.h"
#include "text/regex.h"
#include "text/unicode/unicode.h"

enum { RAVEL__NO_ID = -1, RAVEL__ID_LIMIT = 1 << 24 };
#define RAVEL__NO_RANK UINT32_MAX

/* ---- vocabulary (vocab.c) ------------------------------------------------------------------------------- */

typedef struct ravel__token {
    const char *text;  /* as in tokenizer.json; NULL: the id stands for nothing */
    const char *bytes; /* what it decodes to */
    uint32_t text_bytes, byte_count;
    uint32_t special;
} ravel__token;

/* Text to id by open addressing: slots hold id + 1, their number is a power of two. */
typedef struct ravel__vocab {
    ravel__token *tokens; /* [size] */
    int32_t size;
    uint32_t *slots;
    uint32_t mask;
    int spaced; /* tokens are of characters: "\u2581" stands for a space, "<0x0A>" for a byte */
    char *pool; /* texts with a NUL, and their bytes */
    size_t used, room;
} ravel__vocab;

/* For ids below `size`, and texts of `text_bytes` in all (NULs not counted). */
ravel_status ravel__vocab_init(ravel__vocab *vocab, ravel__arena *arena, int32_t size, size_t text_bytes, int64_t texts,
                               ravel_error *err);
/* Copies the text. E_DATA if the id or the text is taken. */
ravel_status ravel__vocab_add(ravel__vocab *vocab, const char *text, size_t bytes, int32_t id, ravel_error *err);
/* The bytes that a token's text stands for, at most text_bytes of them, into `out`; how many. */
size_t ravel__vocab_spell(const ravel__vocab *vocab, const char *text, size_t text_bytes, char *out);
int32_t ravel__vocab_find(const ravel__vocab *vocab, const char *text, size_t bytes);

/* ---- the byte-level alphabet (vocab.c) ------------------------------------------------------------------ */

/* Each byte is written as one character of at most two bytes: printable ones as themselves, others from U+0100 on. */
typedef struct ravel__alphabet {
    char text[256][2];
    uint8_t length[256];
    int16_t byte_of[324]; /* by character; -1: stands for no byte */
} ravel__alphabet;

const ravel__alphabet *ravel__byte_alphabet(void);
/* The bytes that a text of the alphabet stands for, into out[bytes]; how many, or SIZE_MAX if a character is not of
 * the alphabet. */
size_t ravel__alphabet_decode(const ravel__alphabet *alphabet, const char *text, size_t bytes, char *out);

/* ---- merges (bpe.c) ------------------------------------------------------------------------------------- */

typedef struct ravel__pair {
    uint64_t key;         /* left << 32 | right; all ones: empty */
    uint32_t rank, whole; /* lower ranks merge first */
} ravel__pair;

typedef struct ravel__bpe {
    ravel__pair *pairs; /* open addressing, `mask` + 1 slots */
    uint64_t mask;
    int by_character;      /* symbols are characters, not bytes */
    int32_t byte_ids[256]; /* RAVEL__NO_ID: the byte is in no token; by character: of the characters below 128 */
    int32_t fallback[256]; /* "<0x0A>": stands for a byte of a character in no token; RAVEL__NO_ID: there is none */
    int32_t unknown;       /* stands for bytes in no token; RAVEL__NO_ID: they are dropped */
    int fuse_unknown;      /* one for a run of them */
    int whole_words;       /* a word that is a token is that token, without merges ("ignore_merges") */
} ravel__bpe;

ravel_status ravel__bpe_init(ravel__bpe *bpe, ravel__arena *arena, int64_t merges, ravel_error *err);
void ravel__bpe_add(ravel__bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t whole);

/* One thread's memory for merging. */
typedef struct ravel__bpe_scratch ravel__bpe_scratch;
ravel_status ravel__bpe_scratch_create(const ravel_allocator *allocator, ravel__bpe_scratch **scratch,
                                       ravel_error *err);
void ravel__bpe_scratch_free(ravel__bpe_scratch *scratch);
/* The ids of one word, *ids[*count], valid until the next call. */
ravel_status ravel__bpe_encode(const ravel__bpe *bpe, const ravel__vocab *vocab, ravel__bpe_scratch *scratch,
                               const char *word, size_t bytes, const int32_t **ids, size_t *count, ravel_error *err);
/* The merges of tokens that have ranks alone: a token comes of every two tokens that make it up. ranks[vocab->size];
 * RAVEL__NO_RANK: neither made nor part of others. */
ravel_status ravel__bpe_derive(ravel__bpe *bpe, const ravel__vocab *vocab, const uint32_t *ranks, ravel__arena *arena,
                               const ravel_allocator *allocator, ravel_error *err);

/* ---- pieces with scores (unigram.c) ----------------------------------------------------------------------- */

typedef struct ravel__unigram {
    /* of a trie: key from << 8 | byte, rank the id + 1 of the token that ends here or 0, whole the node */
    ravel__pair *edges;
    uint64_t mask;
    uint32_t nodes; /* besides the root, which is node 0 */
    double *scores; /* [size] */
    double unknown_score;
    int32_t unknown;
    int single;            /* sums are of single precision, as sentencepiece's are */
    int32_t fallback[256]; /* as in ravel__bpe */
} ravel__unigram;

/* One thread's memory for it. */
typedef struct ravel__paths {
    ravel__buffer places, ids;
} ravel__paths;

ravel_status ravel__unigram_add(ravel__unigram *u, const char *text, size_t bytes, int32_t id,
                                const ravel_allocator *allocator, ravel_error *err);
void ravel__unigram_free(ravel__unigram *u, const ravel_allocator *allocator);
ravel_status ravel__unigram_encode(const ravel__unigram *u, const ravel__vocab *vocab, ravel__paths *paths,
                                   const char *word, size_t bytes, const ravel_allocator *allocator,
                                   const int32_t **ids, size_t *count, ravel_error *err);
void ravel__paths_free(ravel__paths *paths, const ravel_allocator *allocator);

/* ---- one word (word.c) ------------------------------------------------------------------------------------ */

/* One thread's memory for words: the model's, and a cache. */
typedef struct ravel__words ravel__words;
ravel_status ravel__words_create(const ravel_allocator *allocator, ravel__words **words, ravel_error *err);
void ravel__words_free(ravel__words *words);
/* The ids of one word, *ids[*count], valid until the next call. */
ravel_status ravel__words_encode(ravel__words *words, const ravel_tokenizer *tokenizer, const char *word, size_t bytes,
                                 const int32_t **ids, size_t *count, ravel_error *err);

/* ---- added tokens (added.c) ----------------------------------------------------------------------------- */

enum { RAVEL__ADDED_LEFT = 1, RAVEL__ADDED_RIGHT = 2 }; /* white space before, after it belongs to it */

typedef struct ravel__added_node {
    int32_t child, sibling; /* -1: none */
    int32_t id;             /* RAVEL__NO_ID: no token ends here */
    uint8_t byte, flags;
} ravel__added_node;

/* A trie of the tokens' texts. */
typedef struct ravel__added {
    ravel__arena *arena;
    ravel__added_node *nodes;
    int32_t count, room;
    int32_t roots[256]; /* node of a first byte, -1: none */
} ravel__added;

void ravel__added_init(ravel__added *added, ravel__arena *arena);
ravel_status ravel__added_add(ravel__added *added, const char *text, size_t bytes, int32_t id, int flags,
                              ravel_error *err);
/* The longest token at the leftmost place at or after `from`: 1, its bounds, id and flags; or 0. */
int ravel__added_find(const ravel__added *added, const char *text, size_t bytes, size_t from, size_t *begin,
                      size_t *end, int32_t *id, int *flags);

/* ---- words (words.c) ------------------------------------------------------------------------------------ */

typedef enum ravel__behavior {
    RAVEL__ISOLATED,
    RAVEL__REMOVED,
    RAVEL__WITH_PREVIOUS,
    RAVEL__WITH_NEXT,
    RAVEL__CONTIGUOUS
} ravel__behavior;

/* One pre-tokenizer: every piece is cut again by the next step, and what the last one leaves are the words. */
typedef struct ravel__step {
    ravel__regex *regex;
    int behavior, invert;
} ravel__step;

enum { RAVEL__STEPS = 16 };

/* Takes a word; words come from left to right. */
typedef ravel_status (*ravel__take_word)(void *user, const char *word, size_t bytes, ravel_error *err);

typedef struct ravel__cutter {
    const struct ravel_tokenizer *tokenizer;
    ravel__regex_state *state;
    ravel__take_word take;
    void *user;
} ravel__cutter;

/* Cuts text[bytes] into words by the steps from `step` on. `searched` is what is searched, `text` what the words are
 * taken from; they have the same length. */
ravel_status ravel__cut_words(const ravel__cutter *cutter, int step, const char *text, const char *searched,
                              size_t bytes, ravel_error *err);

enum { RAVEL__SPECIALS = 7 };

/* ---- spaces as characters (spaces.c) --------------------------------------------------------------------- */

/* What goes before a piece of text. */
typedef enum ravel__prepend {
    RAVEL__PREPEND_NEVER,
    RAVEL__PREPEND_ALWAYS,  /* "\u2581", as a normalizer's Prepend */
    RAVEL__PREPEND_MISSING, /* if the piece does not begin with one */
    RAVEL__PREPEND_FIRST    /* likewise, at the start of the whole text alone */
} ravel__prepend;

/* One rewriting: spaces become "\u2581". */
typedef struct ravel__spacing {
    int prepend, replace; /* ravel__prepend; 0: spaces stay */
    int words;            /* white space goes, and before each word comes one "\u2581" */
} ravel__spacing;

#define RAVEL__SPACE "\xe2\x96\x81"

/* A text that was rewritten, and where each of its bytes comes from. */
typedef struct ravel__rewritten {
    ravel__buffer text, origins; /* char, uint32_t */
    size_t bytes;
} ravel__rewritten;

/* origins: of the bytes of `text`, NULL: their own; `is_start`: the piece begins the whole text. */
ravel_status ravel__spaces_write(ravel__rewritten *out, const ravel__spacing *spacing, const char *text, size_t bytes,
                                 const uint32_t *origins, int is_start, const ravel_allocator *allocator,
                                 ravel_error *err);
/* The bytes of the first word of text[bytes]: up to the next "\u2581". `runs`: one that follows another does not begin
 * a word. */
size_t ravel__spaces_word(const char *text, size_t bytes, int runs);
/* Whether words may be cut before each run of "\u2581": it is a token, and none has it after another character. */
int ravel__spaces_may_split(const struct ravel_tokenizer *t);
void ravel__rewritten_free(ravel__rewritten *out, const ravel_allocator *allocator);

/* ---- normalizers (normal.h) ------------------------------------------------------------------------------- */

typedef struct ravel__charsmap {
    const char *units, *texts; /* the trie, the replacements */
    size_t unit_count, text_bytes;
} ravel__charsmap;

typedef struct ravel__rewriting ravel__rewriting;
typedef struct ravel__normal ravel__normal;

struct ravel__normal {
    ravel_status (*apply)(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
    int needs;              /* RAVEL__TEXT_SUSPECT: only of texts where that was seen; 0: of all */
    ravel__spacing spacing; /* spaces */
    ravel__regex *regex;    /* replace; precompiled: graphemes */
    const char *text;       /* replace, prepend */
    size_t text_bytes;
    int left, right;             /* strip */
    ravel__charsmap map;         /* precompiled, sentencepiece */
    int dummy, tidy;             /* sentencepiece: a space before the text; single spaces between words */
    const ravel__added *symbols; /* sentencepiece: stay as they are */
};

enum { RAVEL__NORMALS = 12 };

/* The text after the normalizers, or as it was; valid until the next call. out[2] are two of the caller's buffers. */
ravel_status ravel__normalize(const struct ravel_tokenizer *t, ravel__rewritten out[2], ravel__nfc *nfc,
                              ravel__regex_state *state, int seen, int is_start, const char **text, size_t *bytes,
                              const uint32_t **origins, const ravel_allocator *allocator, ravel_error *err);

/* How a text of tokens begins when it is decoded. */
typedef enum ravel__strip {
    RAVEL__STRIP_NOTHING,
    RAVEL__STRIP_SPACE, /* one space goes */
    RAVEL__STRIP_TOKEN  /* all spaces of the first token go */
} ravel__strip;

/* ---- all of it ------------------------------------------------------------------------------------------ */

struct ravel_tokenizer {
    ravel__arena arena;
    const ravel_allocator *allocator;
    ravel__vocab vocab;
    ravel__bpe bpe;
    ravel__added added[2]; /* found before and after the normalizer */
    ravel__step steps[RAVEL__STEPS];
    int step_count;
    ravel__unigram unigram; /* edges NULL: the model is bpe */
    ravel__normal normals[RAVEL__NORMALS];
    int normal_count;
    int prefix_space;         /* a space goes before a text that does not begin with one */
    ravel__spacing metaspace; /* by the pre-tokenizer */
    int patterns;             /* a normalizer or a step searches */
    int split_spaces; /* of character tokenizers, where words begin: 0 nowhere, 1 at each \u2581, 2 at each run of it */
    int strip;        /* ravel__strip */
    int fallback;     /* tokens of bytes are decoded together: a run that is not UTF-8 is one U+FFFD per byte */
    int32_t *prefix, *suffix; /* the template's tokens */
    int32_t prefix_count, suffix_count;
    int32_t bos, eos, pad;
    char *chat_template;                        /* NULL: none */
    const char *special_texts[RAVEL__SPECIALS]; /* by ravel__special_names; NULL: none */
    struct ravel_chat_format *format; /* the chat template, compiled; NULL: there is none, or it is refused: */
    ravel_error format_error;
};

/* Names of special tokens in tokenizer_config.json, and of the variables of a chat template. */
extern const char *const ravel__special_names[RAVEL__SPECIALS];

/* Fill a zeroed tokenizer whose arena is there. */
ravel_status ravel__tokenizer_load(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err);
ravel_status ravel__sentencepiece_load(ravel_tokenizer *t, const char *bytes, size_t count, ravel_error *err);
/* config: tokenizer_config.json, or NULL. */
ravel_status ravel__tiktoken_load(ravel_tokenizer *t, const char *text, size_t bytes, const char *config,
                                  size_t config_bytes, ravel_error *err);
ravel_status ravel__tekken_load(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err);

/* The ids of "<0x0A>" and of the characters below 128 or of single bytes, for a model (load.c). */
void ravel__tokenizer_find_bytes(ravel_tokenizer *t, int fallback);
/* One pre-tokenizer that searches; E_DATA after RAVEL__STEPS of them. */
ravel_status ravel__tokenizer_add_step(ravel_tokenizer *t, const char *pattern, int behavior, int invert,
                                       ravel_error *err);
/* Tokens that go before a text (NULL: none), and after it. */
ravel_status ravel__tokenizer_surround(ravel_tokenizer *t, int32_t before, int32_t after, ravel_error *err);

#endif
