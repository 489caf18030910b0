/* Shared by the files of the generator. Internal to train/.
 *
 *   generator.c          creation, memory, requests
 *   generator_slots.c    sequences, slots, pages of the cache
 *   generator_kept.c     pages that are kept for prompts to come
 *   generator_step.c     prompts into the cache, one token for every running sequence
 *   generator_top.c      the likeliest tokens beside the drawn one
 *   generator_score.c    log-probs of prompts
 *   generator_graph.c    the kernels of a step as a graph */
#ifndef TRAIN_GENERATOR_INTERNAL_H
#define TRAIN_GENERATOR_INTERNAL_H

#include "train/model/generate/generator.h"
#include "train/model/net/graphs.h"
#include "train/model/net/net.h"
#include "train/model/net/staging.h"

/* A slot's sequence; request < 0: free. */
typedef struct train__sequence {
    int64_t request;
    int64_t version;
    int32_t adapter; /* of g->sets */
    uint64_t root;   /* of its pages that are kept: that of the set when it began */
    int64_t cached;  /* tokens whose keys and values are, or will be after the calls so far, in the cache */
    int64_t begun;   /* tokens of the answer that the device was asked for */
    int64_t drawn;   /* tokens of the answer that the host has seen */
    uint64_t stream; /* of random numbers */
    int32_t sample;
    int32_t serial; /* counts the sequences of this slot, so that late tokens of an ended one are recognised */
} train__sequence;

/* A prompt in the cache, all but its last token; request < 0: none. It holds a reference to each of its pages. */
typedef struct train__prefix {
    int64_t request;
    int64_t tokens;
    int64_t known;  /* of these, in the cache, or will be after the calls so far */
    int parts;      /* it is run in parts */
    uint64_t id;    /* of the last full page of the known ones, with option `keep` */
    int32_t *pages; /* [pages_per_slot] */
} train__prefix;

/* Option `keep`: pages whose tokens are known. A page is found by the tokens in it and the page before it. Arrays are
 * [pages], or of no elements without the option. */
typedef struct train__kept_pages {
    int64_t pages;          /* more than slots need; 0: none are kept */
    uint64_t last;          /* the id given last */
    int64_t buckets;        /* a power of 2 */
    int32_t *heads;         /* [buckets] first page; -1: none */
    int32_t *next;          /* in the bucket; -1: none */
    uint64_t *ids;          /* of what is in a page; 0: not known */
    uint64_t *parents;      /* id of the page before it, or the root of its set */
    int32_t *tokens;        /* [pages, TRAIN_PAGE] */
    int32_t *older, *newer; /* [pages + 1] ring of those that nobody holds, the last element being its begin and end */
} train__kept_pages;

/* What a sequence goes through beside the model: adapter 0 is what train_generator_set_weights sets (nothing without
 * option `lora`), then options.adapters of them, and the last one is none. */
typedef struct train__set {
    const train_params *params;
    const void *weights; /* NULL: no adapter, or not set yet */
    int64_t version;
    int64_t users; /* running sequences */
    uint64_t root; /* stands for the page before the first one, so that pages of other weights are not found */
} train__set;

/* Device memory: [rows] of a pass and [slots], see train__acts. */
typedef struct train__pass {
    train_real *cosine, *sine; /* [slot_tokens, head_dim / 2] */
    char *k_pages, *v_pages;   /* [layers][pages, TRAIN_PAGE, kv_width] */
    void *k_whole, *v_whole;   /* [slot_tokens, kv_width] of one layer of a prompt that is run in parts */
    train__acts acts;
    void *logits;                 /* [slots, vocab] of the whole vocabulary */
    void *part, *parts;           /* tensor parallel: of this rank's, and of all ranks one after the other */
    int32_t *last;                /* [slots + 1] token drawn last */
    int32_t *targets;             /* [slots] prompt tokens whose log-probs are worked out */
    train_real *parts_of_rows;    /* [4, slots] as train_softmax.parts */
    train_real *scores;           /* [2, slots] their log-probs and log-sum-exps */
    char *results[TRAIN__STAGES]; /* [slots] tokens, log-probs, kept log-probs */
} train__pass;

/* A step whose tokens the host has not read yet. */
typedef struct train__step {
    int64_t rows;      /* 0: none */
    int64_t *versions; /* [slots] of each row's weights */
    void *logits;      /* [slots, vocab] of the rows that ask for the likeliest tokens; NULL without options.top */
    int32_t *slots, *serials; /* [slots] of each row */
    void *host;               /* results, as on the device */
} train__step;

/* A prompt of the pass at hand whose log-probs are wanted: its tokens from .. from + count - 1 are rows first and
 * after. */
typedef struct train__scored {
    int64_t request, first, from, count;
} train__scored;

struct train_generator {
    train__arena arena;
    train_generator_options options; /* with defaults filled in */
    train_params *params, *adapter;  /* adapter NULL: none */
    train__net net;
    train__port port;
    train__link tp;    /* ranks that share the layers */
    ravel_shape whole; /* the model's shape; net.shape is of this rank's part */
    int64_t rows;      /* the most of one pass */
    int64_t pages_per_slot;
    int64_t pages;                   /* the last one belongs to the rows that pad a step */
    size_t page_bytes, result_bytes; /* of one layer's keys; of one step */
    void *device_block;
    size_t device_bytes;
    train__pass pass;
    train__staging staging; /* of prompts */
    train__staging rows_of_steps;
    train__graphs graphs; /* of steps */
    train__step steps[TRAIN__STAGES];
    int32_t turn; /* the step to be begun next */
    int32_t used; /* adapter of sequences that name none */

    /* host arrays */
    train__sequence *sequences;    /* [slots] */
    int32_t *answer;               /* [slots, slot_tokens] */
    float *logprob, *kept_logprob; /* [slots, slot_tokens] */
    int64_t *versions;             /* [slots, slot_tokens] */
    train_top *top;                /* [slots, slot_tokens, options.top] */
    int32_t *table;                /* [slots, pages_per_slot] */
    int32_t *references;           /* [pages] slots and prefixes that hold it */
    int32_t *free_pages;           /* [pages] a stack */
    int32_t *retired;              /* [pages] dropped by prefixes whose copies have yet to be called */
    int32_t *copies;               /* [slots, 2] pages to copy: from, to */
    int64_t free_count, retired_count, copy_count;
    train_real *row;          /* [head_dim] */
    train__set *sets;         /* [2 + options.adapters] */
    train__adapter_run *runs; /* [slots + 1] of the pass at hand */
    train__router router;     /* of experts */
    int16_t *routes;          /* [pages, TRAIN_PAGE, layers, active] of what is in the pages, beside keys and values */
    int16_t *answer_routes;   /* [slot_tokens, layers, active] of the answer that is given out */
    int32_t *route_rows;      /* [rows] where the rows of a pass are in `routes` */
    int64_t route_width;      /* layers * active; 0: routes are not recorded */
    train__prefix prefix;
    train__kept_pages kept;
    train__scored *scored; /* [slots] */
    int64_t scored_count;
    train_real *scores; /* [2, slots] as pass.scores */

    const train_request *requests;
    int64_t request_count;
    int64_t next_request; /* the next waiting sequence */
    int32_t next_sample;
    int64_t *cancelled; /* [slots] requests that wait no more, of which there are */
    int64_t cancelled_count;
    int64_t waiting, running;
    train_generator_stats stats;
};

/* ---- generator_step.c ----------------------------------------------------------------------------------- */

/* The most tokens of the vocabulary that a tensor-parallel rank has. */
int64_t train__generator_vocab_share(const train_generator *g);

/* Logits of rows of g->pass.acts.xn, from `first` on, to g->pass.logits; `count` is at most slots. */
void train__generator_logits(train_generator *g, int64_t first, int64_t count);

/* ---- generator_score.c ---------------------------------------------------------------------------------- */

/* After the last layer of a pass over prompts, and its norm, `rows` in all: sets what g->scored asks for, and
 * empties it. */
void train__generator_score(train_generator *g, int64_t rows);

/* ---- generator_top.c ------------------------------------------------------------------------------------ */

/* Bytes of a step's logits on the host; 0 without options.top. */
size_t train__generator_logit_bytes(const train_generator *g);
/* After the kernels of a step: fetches the rows of logits that are asked for, before the step's results are fetched. */
void train__generator_fetch_logits(train_generator *g, const train__step *step);
/* The likeliest tokens of a row of logits, best first, with their logits; their number, at most `most`. */
int32_t train__generator_top(const train_generator *g, const void *logits, int32_t most, train_top *best);
/* A logit of such a row. */
float train__generator_logit(const train_generator *g, const void *row, int64_t i);
/* After that fetch is complete: sets the likeliest tokens of row `row`, which the slot's next token was drawn from. */
void train__generator_set_top(train_generator *g, const train__step *step, int64_t row);

/* ---- generator_graph.c ---------------------------------------------------------------------------------- */

/* Rows and longest cache of a step, rounded up to a bucket where graphs are not off. */
int64_t train__generator_bucket(const train_generator *g, int64_t rows);
int32_t train__generator_longest(const train_generator *g, int32_t longest);
/* Calls the kernels of a step, or runs the graph of its bucket. */
void train__generator_replay(train_generator *g, int64_t rows, int32_t longest, void (*kernels)(void *user),
                             void *user);

/* ---- generator_kept.c ----------------------------------------------------------------------------------- */

/* Forgets every page; `pages` of them are free. */
void train__kept_reset(train_generator *g);
/* The page of these TRAIN_PAGE tokens after the page with id `parent` (the root of a set: none); -1: it is not kept. */
int32_t train__kept_find(const train_generator *g, uint64_t parent, const int32_t *tokens);
/* Notes what is in `page`; returns the id, or that of a page with the same tokens which is known already. */
uint64_t train__kept_note(train_generator *g, int32_t page, uint64_t parent, const int32_t *tokens);
/* Nobody holds the page any more; 0: what is in it is not known. */
int train__kept_rest(train_generator *g, int32_t page);
/* Somebody holds it again. */
void train__kept_wake(train_generator *g, int32_t page);
/* Forgets the page that nobody has held for the longest time, and returns it; -1: there is none. */
int32_t train__kept_oldest(train_generator *g);
/* Leading tokens of the request's prompt that are in kept pages and worth taking from there. */
int64_t train__kept_known(const train_generator *g, const train_request *r);

/* ---- generator_slots.c ---------------------------------------------------------------------------------- */

/* Whether pages, slots and counts agree; it looks at counts alone. */
int train__generator_ok(const train_generator *g);
/* Forgets all sequences and gives back all pages. */
void train__generator_reset(train_generator *g);
/* The set of a request's sequences, if they began now. */
int32_t train__generator_set_of(const train_generator *g, const train_request *r);
/* `rows` more rows of the pass at hand go through a set. */
void train__generator_add_rows(train_generator *g, int32_t set, int64_t rows);
/* The next waiting sequence's request; NULL when nothing waits. */
const train_request *train__generator_next(const train_generator *g);
/* Makes the next request's prompt the prefix: takes pages for it. The caller runs it. */
void train__generator_new_prefix(train_generator *g);
/* `count` more of its tokens will be in the cache after the next pass. */
void train__generator_extend_prefix(train_generator *g, int64_t count);
/* Drops the prefix; train__generator_free_retired frees its pages. */
void train__generator_drop_prefix(train_generator *g);
void train__generator_free_retired(train_generator *g);
/* From request `i` on, the next one that wants answers. */
void train__generator_wait_for(train_generator *g, int64_t i);
/* Takes the next waiting sequence into a free slot, on top of the prefix; returns the slot, -1 when all are taken. */
int32_t train__generator_admit(train_generator *g);
/* Makes sure that the slot has a page for its next token. */
void train__generator_grow(train_generator *g, int32_t slot);
/* Tokens that a request's answers may have. */
int64_t train__generator_room(const train_generator *g, const train_request *r);
/* Appends a token to a slot's answer and, where that ends it, reports it and frees the slot. */
ravel_status train__generator_append(train_generator *g, int32_t slot, int32_t token, float logprob, float kept,
                                     train_answer_fn answer, void *user, ravel_error *err);

#endif
