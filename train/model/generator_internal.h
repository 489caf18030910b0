/* Shared by the files of the generator. Internal to train/.
 *
 *   generator.c          creation, memory, requests
 *   generator_slots.c    sequences, slots, pages of the cache
 *   generator_step.c     prompts into the cache, one token for every running sequence
 *   generator_graph.c    the kernels of a step as a graph */
#ifndef TRAIN_GENERATOR_INTERNAL_H
#define TRAIN_GENERATOR_INTERNAL_H

#include "train/model/generator.h"
#include "train/model/graphs.h"
#include "train/model/net.h"
#include "train/model/staging.h"

/* A slot's sequence; request < 0: free. */
typedef struct train__sequence {
    int64_t request;
    int64_t version;
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
    int32_t *pages; /* [pages_per_slot] */
} train__prefix;

/* Device memory: [rows] of a pass and [slots], see train__acts. */
typedef struct train__pass {
    train_real *cosine, *sine; /* [slot_tokens, head_dim / 2] */
    char *k_pages, *v_pages;   /* [layers][pages, TRAIN_PAGE, kv_width] */
    train__acts acts;
    void *logits;                 /* [slots, vocab] of the whole vocabulary */
    void *part, *parts;           /* tensor parallel: of this rank's, and of all ranks one after the other */
    int32_t *last;                /* [slots + 1] token drawn last */
    char *results[TRAIN__STAGES]; /* [slots] tokens, log-probs, kept log-probs */
} train__pass;

/* A step whose tokens the host has not read yet. */
typedef struct train__step {
    int64_t rows;             /* 0: none */
    int32_t *slots, *serials; /* [slots] of each row */
    void *host;               /* results, as on the device */
} train__step;

struct train_generator {
    train__arena arena;
    train_generator_options options; /* with defaults filled in */
    train_params *params;
    train__net net;
    train__exchange exchange;
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
    int64_t version;

    /* host arrays */
    train__sequence *sequences;    /* [slots] */
    int32_t *answer;               /* [slots, slot_tokens] */
    float *logprob, *kept_logprob; /* [slots, slot_tokens] */
    int32_t *table;                /* [slots, pages_per_slot] */
    int32_t *references;           /* [pages] slots and prefixes that hold it */
    int32_t *free_pages;           /* [pages] a stack */
    int32_t *retired;              /* [pages] dropped by prefixes whose copies have yet to be called */
    int32_t *copies;               /* [slots, 2] pages to copy: from, to */
    int64_t free_count, retired_count, copy_count;
    train_real *row; /* [head_dim] */
    train__prefix prefix;

    const train_request *requests;
    int64_t request_count;
    int64_t next_request; /* the next waiting sequence */
    int32_t next_sample;
    int64_t waiting, running;
    train_generator_stats stats;
};

/* ---- generator_step.c ----------------------------------------------------------------------------------- */

/* The most tokens of the vocabulary that a tensor-parallel rank has. */
int64_t train__generator_vocab_share(const train_generator *g);

/* ---- generator_graph.c ---------------------------------------------------------------------------------- */

/* Rows and longest cache of a step, rounded up to a bucket where graphs are not off. */
int64_t train__generator_bucket(const train_generator *g, int64_t rows);
int32_t train__generator_longest(const train_generator *g, int32_t longest);
/* Calls the kernels of a step, or runs the graph of its bucket. */
void train__generator_replay(train_generator *g, int64_t rows, int32_t longest, void (*kernels)(void *user),
                             void *user);

/* ---- generator_slots.c ---------------------------------------------------------------------------------- */

/* Whether pages, slots and counts agree; it looks at counts alone. */
int train__generator_ok(const train_generator *g);
/* Forgets all sequences and gives back all pages. */
void train__generator_reset(train_generator *g);
/* The next waiting sequence's request; NULL when nothing waits. */
const train_request *train__generator_next(const train_generator *g);
/* Makes the next request's prompt the prefix: takes pages for it. The caller runs it. */
void train__generator_new_prefix(train_generator *g);
/* Drops the prefix; train__generator_free_retired frees its pages. */
void train__generator_drop_prefix(train_generator *g);
void train__generator_free_retired(train_generator *g);
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
