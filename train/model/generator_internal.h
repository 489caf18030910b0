/* What the files of the generator share. Internal to train/.
 *
 *   generator.c        creation, memory, requests, slots
 *   generator_step.c   prompts into the cache, one token for every running sequence */
#ifndef TRAIN_GENERATOR_INTERNAL_H
#define TRAIN_GENERATOR_INTERNAL_H

#include "train/model/generator.h"
#include "train/model/net.h"

/* A slot's sequence; request < 0: free. */
typedef struct train__sequence {
    int64_t request;
    int32_t sample;
    int32_t last;   /* token drawn last, not in the cache yet */
    int64_t cached; /* tokens in the cache */
    int64_t drawn;  /* tokens of the answer so far */
    int64_t version;
    uint64_t stream; /* of random numbers */
} train__sequence;

/* Rows of one pass, on the device: [rows] and as said. */
typedef struct train__pass {
    train_real *cosine, *sine;         /* [slot_tokens, head_dim / 2] */
    train_real *k_cache, *v_cache;     /* [layers][slots * slot_tokens, kv_width] */
    train_real *x, *x_mid, *xn, *y;    /* [rows, hidden] */
    train_real *qkv, *q, *k, *o, *lse; /* [rows, ...] */
    train_real *gate_up, *h;
    train_real *head;                   /* [slots, hidden] rows whose next token is drawn */
    train_real *logits;                 /* [slots, vocab] */
    train_real *logprob, *kept_logprob; /* [slots] */
    train_choice *choices;              /* [slots] */
    int32_t *drawn;                     /* [slots] */
    int32_t *tokens, *positions;        /* [rows] */
    int32_t *starts, *lengths, *slots;  /* [rows] of a prompt, or of a decoded row */
    int32_t *head_rows;                 /* [slots] */
    int32_t *from, *to;                 /* [slots * slot_tokens] rows to write into the cache */
} train__pass;

/* The same on the host where the host fills or reads it. */
typedef struct train__host {
    train__sequence *sequences;    /* [slots] */
    int32_t *answer;               /* [slots, slot_tokens] */
    float *logprob, *kept_logprob; /* [slots, slot_tokens] */
    train_choice *choices;         /* [slots] */
    int32_t *drawn;
    float *drawn_logprob, *drawn_kept;
    int32_t *order; /* [slots] slots in the order of a pass's head rows */
    int32_t *tokens, *positions, *starts, *lengths, *slots, *head_rows, *from, *to;
    train_real *row; /* [head_dim] */
} train__host;

struct train_generator {
    const ravel_allocator *allocator;
    train_generator_options options; /* with defaults filled in */
    train_params *params;
    train__net net;
    int64_t rows; /* the most of one pass */
    char *device_block, *host_block;
    size_t device_bytes, host_bytes;
    train__pass pass;
    train__host host;
    int64_t version;

    const train_request *requests;
    int64_t request_count;
    int64_t next_request; /* the next waiting sequence */
    int32_t next_sample;
    int64_t waiting, running;
    train_generator_stats stats;
};

/* Takes the next waiting sequence into a free slot; 0 when there is none or no slot. */
int train__generator_admit(train_generator *g, int32_t *slot);
/* What the next waiting sequence's prompt is; NULL when nothing waits. */
const train_request *train__generator_next(const train_generator *g);
/* Appends a token to a slot's answer and, where that ends it, reports it and frees the slot. */
ravel_status train__generator_append(train_generator *g, int32_t slot, int32_t token, float logprob, float kept,
                                     train_answer_fn answer, void *user, ravel_error *err);

#endif
