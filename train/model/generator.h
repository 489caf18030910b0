/* train/model/generator.h: answers to prompts, sampled token by token with a key-value cache and continuous batching.
 *
 * Nouns
 *   request     a prompt, how many answers are wanted, and how to sample them.
 *   sequence    one answer in the making: (request, sample).
 *   slot        the place of a sequence in the batch: up to slot_tokens tokens of prompt and answer. A generator has a
 *               fixed number of slots; a sequence that ends gives its slot to the next one at once, so the batch stays
 *               full while any sequence waits.
 *   page        TRAIN_PAGE tokens of the key-value cache. A slot has a list of pages; sequences of one request share the
 *               full pages of its prompt.
 *
 *     step   slot 0      slot 1      slot 2
 *      1     a0 ......   a1 ....     b0 .......       the prompt of a is run once, for all of its answers
 *      5     a0 ......   b1 .        b0 .......       a1 has ended: b1 takes its slot
 *
 * The prompt without its last token is run through the layers in one pass (prefill); from there on each step runs one
 * token per sequence (decode): the prompt's last token, then the token that the device drew in the step before. The
 * host is one step behind: while the device works on a step, the host reads the tokens of the one before, ends the
 * sequences that drew a stop token (the token that the running step draws for them is dropped) and admits others.
 *
 * The calling loop:
 *
 *     train_generator_create(kernels, device, &shape, &options, &generator, &err);
 *     train_generator_set_weights(generator, weights, version);
 *     train_generator_run(generator, requests, count, on_answer, user, &err);          all of it, or
 *
 *     train_generator_begin(generator, requests, count, &err);
 *     while (train_generator_busy(generator))
 *         train_generator_step(generator, on_answer, user, &err);      one token for every running sequence
 *
 * Reproducible: an answer is a function of weights, prompt, sampling options, seed, prompt id and sample number alone.
 * Which other sequences ran beside it, how many slots there were, and how many threads, changes nothing, down to the bits
 * of the log-probs (on one set of kernels): random numbers are a function of the position, not a stream, and the
 * products, norms and attentions used here compute each row independently (train_matmul.batch_invariant).
 *
 * Tensor parallel (`tp`): the ranks of a communicator each make a generator, with their part of the weights
 * (train_generator_params), and run the same calls with the same requests. Heads, feed-forward columns, the cache and the
 * vocabulary are shared out as in the model (parallel.h). The logits of a step are gathered, and every rank draws the same
 * tokens from them with the same random numbers. Answers are those of one rank up to the rounding of the logits. A call
 * fails if the communicator fails; the generator can then only be freed.
 *
 * Two log-probs are recorded for every token:
 *   logprob       under softmax(logits / temperature) over the whole vocabulary: what a trainer that runs the same tokens
 *                 with batch.temperature gets, up to rounding. At temperature 0: under softmax(logits).
 *   kept_logprob  under the distribution that was sampled from: after top-k, top-p and min-p, renormalised. At temperature 0: 0 (it is certain). With nothing cut off the two are equal.
 */
#ifndef TRAIN_GENERATOR_H
#define TRAIN_GENERATOR_H

#include <ravel/comm.h>

#include "train/kernels/kernels.h"
#include "train/model/params.h"

typedef struct train_generator train_generator;

typedef struct train_generator_options {
    size_t size;                      /* sizeof(train_generator_options), set by train_generator_options_default */
    int64_t slots;                    /* sequences at once; 0 means 16 */
    int64_t slot_tokens;              /* the most tokens of a prompt and its answer; required */
    int64_t prefill;                  /* the most prompt tokens run in one go; 0 means 512, and at least slot_tokens */
    int32_t graphs;                   /* train_graphs: decode steps, one graph per bucket of batch sizes */
    int32_t padded;                   /* rows are padded as for graphs even where there are none: for tests */
    int32_t tp_ranks;                 /* train_generator_memory: of the generator to be, where there is no `tp` yet */
    ravel_comm *tp;                   /* ranks that share every layer (tensor parallel); NULL: one, see above */
    const ravel_allocator *allocator; /* for host memory; NULL: malloc; it must outlive the generator */
} train_generator_options;

void train_generator_options_default(train_generator_options *options);

/* Bytes that train_generator_create will take, scratch of the kernels included and weights not. A pure function. */
ravel_status train_generator_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                    const train_generator_options *options, int64_t *bytes, ravel_error *err);

/* `kernels` and `device` must outlive the generator. */
ravel_status train_generator_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                    const train_generator_options *options, train_generator **generator,
                                    ravel_error *err);
void train_generator_free(train_generator *generator);

/* The layout of the weights: the same as a model's of this shape or, with `tp`, of this rank's part of it. */
const train_params *train_generator_params(const train_generator *generator);
/* Borrows a flat array on the device, [params->elements] of kernels->types.weight: a model's, or a copy that refit loads
 * into. It may be called between steps; sequences that are running go on with the new weights over what the cache holds
 * from the old ones; sequences that begin afterwards run their prompt with the new ones. */
void train_generator_set_weights(train_generator *generator, const void *weights, int64_t version);

/* ---- requests ------------------------------------------------------------------------------------------- */

typedef struct train_sampling {
    double temperature;  /* 0: always the likeliest token */
    double top_p;        /* (0, 1]; 1: off */
    double min_p;        /* [0, 1) drop tokens less likely than this times the likeliest; 0: off */
    int32_t top_k;       /* 0: off */
    int32_t stops;       /* entries of `stop` */
    const int32_t *stop; /* tokens that end an answer; the token itself is the answer's last */
    int64_t max_tokens;  /* of an answer; 0: what the slot holds */
    uint64_t seed;
    /* Asked after every token but a stop token: whether the answer tokens[count] ends with it. NULL: it does not. */
    int (*ends)(void *user, const int32_t *tokens, int64_t count);
    void *user;
} train_sampling;

/* temperature 1, nothing cut off, no stop token. */
void train_sampling_default(train_sampling *sampling);

/* Arrays are borrowed until train_generator_busy is 0, or the next begin. */
typedef struct train_request {
    const int32_t *prompt; /* [count] at least one token */
    int64_t count;
    int64_t id;      /* part of the seed; requests with the same id and sampling give the same answers */
    int32_t samples; /* answers wanted, numbered from first_sample */
    int32_t first_sample;
    const train_sampling *sampling;
} train_request;

/* Lives during the call only. */
typedef struct train_answer {
    int64_t request;           /* index into the requests */
    int64_t id;                /* of the request */
    int32_t sample;            /* which answer */
    int32_t ended;             /* 1: by a stop token, 2: by `ends`, 0: cut off at max_tokens or the slot's end */
    int64_t count;             /* tokens, a stop token included; at least 1 */
    const int32_t *tokens;     /* [count] */
    const float *logprob;      /* [count] */
    const float *kept_logprob; /* [count] */
    int64_t version;           /* of the weights that it was begun with */
} train_answer;

/* Called once per answer, as they end. A status other than RAVEL_OK ends the step with it; the generator must then
 * begin anew. */
typedef ravel_status (*train_answer_fn)(void *user, const train_answer *answer, ravel_error *err);

/* Checks every request before anything runs: E_DATA and E_OVERSIZE name it. What ran before is dropped. */
ravel_status train_generator_begin(train_generator *generator, const train_request *requests, int64_t count,
                                   ravel_error *err);
/* Gives free slots to waiting sequences (their prompts are run), begins to draw one token for every running sequence, and
 * appends the tokens of the step before to their answers. */
ravel_status train_generator_step(train_generator *generator, train_answer_fn answer, void *user, ravel_error *err);
/* The tokens that a running sequence has so far, or NULL where it waits or has ended; valid until the next step. */
const int32_t *train_generator_partial(const train_generator *generator, int64_t request, int32_t sample,
                                       int64_t *count);
/* Sequences running or waiting. */
int64_t train_generator_busy(const train_generator *generator);
/* begin, and steps until nothing is left. */
ravel_status train_generator_run(train_generator *generator, const train_request *requests, int64_t count,
                                 train_answer_fn answer, void *user, ravel_error *err);

/* Counted since creation. */
typedef struct train_generator_stats {
    int64_t steps;         /* that drew tokens for running sequences */
    int64_t prompt_tokens; /* run through the network; shared prompts count once */
    int64_t tokens;        /* drawn */
    int64_t answers;
    int64_t slot_steps; /* slots in use, summed over steps: / (steps * slots) is how full the batch was */
} train_generator_stats;
train_generator_stats train_generator_counts(const train_generator *generator);

#endif
