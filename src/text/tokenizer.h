/* The parts of a tokenizer, and the files that fill and use them:
 *
 *     load.c      tokenizer.json      --> vocab, bpe, added tokens, steps, template
 *     open.c tokenizer_config.json --> bos, eos, pad, the chat template
 *     encode.c    text --> added tokens (added.c) --> NFC (unicode.c) --> words (words.c) --> ids (bpe.c)
 *     decode.c    ids --> bytes --> text
 *
 * Everything lives in one arena and is read-only after loading. */
#ifndef RAVEL_TEXT_TOKENIZER_H
#define RAVEL_TEXT_TOKENIZER_H

#include <ravel/tokenizer.h>

#include "base/buffer.h"
#include "text/regex.h"

enum { RAVEL__NO_ID = -1, RAVEL__ID_LIMIT = 1 << 24 };

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
/* Copies the text. E_DATA where the id or the text is taken. */
ravel_status ravel__vocab_add(ravel__vocab *vocab, const char *text, size_t bytes, int32_t id, ravel_error *err);
int32_t ravel__vocab_find(const ravel__vocab *vocab, const char *text, size_t bytes);

/* ---- the byte-level alphabet (vocab.c) ------------------------------------------------------------------ */

/* Each byte is written as one character of at most two bytes: printable ones as themselves, others from U+0100 on. */
typedef struct ravel__alphabet {
    char text[256][2];
    uint8_t length[256];
    int16_t byte_of[324]; /* by character; -1: stands for no byte */
} ravel__alphabet;

const ravel__alphabet *ravel__byte_alphabet(void);
/* The bytes that a text of the alphabet stands for, into out[bytes]; how many, or SIZE_MAX where a character is not of
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
ravel_status ravel__bpe_word(const ravel__bpe *bpe, const ravel__vocab *vocab, ravel__bpe_scratch *scratch,
                             const char *word, size_t bytes, const int32_t **ids, size_t *count, ravel_error *err);

/* ---- added tokens (added.c) ----------------------------------------------------------------------------- */

enum { RAVEL__ADDED_LEFT = 1, RAVEL__ADDED_RIGHT = 2 }; /* white space before, after it belongs to it */

typedef struct ravel__added_node {
    int32_t child, sibling; /* -1: none */
    int32_t id;             /* RAVEL__NO_ID: no token ends here */
    uint8_t byte, flags;
} ravel__added_node;

/* A trie of the tokens' texts. */
typedef struct ravel__added {
    ravel__added_node *nodes;
    int32_t count;
    int32_t roots[256]; /* node of a first byte, -1: none */
} ravel__added;

ravel_status ravel__added_init(ravel__added *added, ravel__arena *arena, size_t text_bytes, ravel_error *err);
void ravel__added_add(ravel__added *added, const char *text, size_t bytes, int32_t id, int flags);
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
/* The bytes of the first word of text[bytes]: up to the next "\u2581". `runs`: one that follows another does not begin a
 * word. */
size_t ravel__spaces_word(const char *text, size_t bytes, int runs);
/* Whether a token has "\u2581" after another character: then words cannot be cut before it. */
int ravel__spaces_inside(const ravel__vocab *vocab);
void ravel__rewritten_free(ravel__rewritten *out, const ravel_allocator *allocator);

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
    int nfc;
    int prefix_space;                 /* a space goes before a text that does not begin with one */
    ravel__spacing normal, metaspace; /* by the normalizer, by the pre-tokenizer */
    int split_spaces; /* of character tokenizers, where words begin: 0 nowhere, 1 at each \u2581, 2 at each run of it */
    int strip;        /* ravel__strip */
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

/* Fills a zeroed tokenizer whose arena is there. */
ravel_status ravel__tokenizer_load(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err);

#endif
