/* train/model/generate/generator.h: answers to prompts, sampled token by token with a key-value cache and continuous
 * batching.
 *
 * Nouns
 *   request     a prompt, how many answers are wanted, and how to sample them.
 *   sequence    one answer in the making: (request, sample).
 *   slot        the place of a sequence in the batch: up to slot_tokens tokens of prompt and answer. A generator has a
 *               fixed number of slots; a sequence that ends gives its slot to the next one at once, so the batch stays
 *               full while any sequence waits.
 *   page        TRAIN_PAGE tokens of the key-value cache. A slot has a list of pages; sequences of one request share the
 *               full pages of its prompt.
 *   kept page   option `keep`: a full page stays when the last sequence that has it ends, until its memory is needed. A
 *               prompt that begins with the same tokens (the next turn of a conversation, the same system prompt) starts
 *               after its kept pages. Setting weights forgets them.
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
 * Several adapters may be there at once, by number: each sequence goes through the one that it began with, and the rows
 * of a step are in the order of their adapters, so that each adapter's products are of consecutive rows. A new version
 * of an adapter is set beside the one before, which is free again when train_generator_users of it is 0.
 *
 * A server begins with no requests, and starts and cancels them between steps:
 *
 *     train_generator_start(generator, requests, ended, more, &err);       while train_generator_idle_slots
 *     train_generator_cancel(generator, request);
 *     train_generator_running(generator, slot, &answer)                    what a sequence has so far
 *
 * Reproducible: an answer is a function of weights, prompt, sampling options, seed, prompt id and sample number alone.
 * Which other sequences ran beside it, how many slots there were, and how many threads, changes nothing, down to the
 * bits of the log-probs (on one set of kernels): random numbers are a function of the position, not a stream, and the
 * products, norms and attentions used here compute each row independently (train_matmul.batch_invariant). With `keep`
 * this holds up to rounding: whether the keys of a prompt were computed as a prompt or as an answer shows in the last
 * bits.
 *
 * Tensor parallel (`tp`): the ranks of a communicator each make a generator, with their part of the weights
 * (train_generator_params), and run the same calls with the same requests. Heads, feed-forward columns, the cache and
 * the vocabulary are shared out as in the model (net.h). The logits of a step are gathered, and every rank draws the
 * same tokens from them with the same random numbers. Answers are those of one rank up to the rounding of the logits. A
 * call fails if the communicator fails; the generator can then only be freed.
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
    size_t size;         /* sizeof(train_generator_options), set by train_generator_options_default */
    int64_t slots;       /* sequences at once; 0 means 16 */
    int64_t slot_tokens; /* the most tokens of a prompt and its answer; required */
    int64_t prefill;     /* the most prompt tokens run in one go; 0 means 512, and at least slot_tokens */
    int64_t
        prefill_rows; /* the most in a step, so that running answers wait for no more of them: longer prompts are run
                             in parts, with the same bits where attention has the same bits for any part of the
                             queries (CPU). At least 128; 0: no limit */
    int32_t graphs;   /* train_graphs: decode steps, one graph per bucket of batch sizes */
    int32_t padded;   /* rows are padded as for graphs even if there are none: for tests */
    int32_t tp_ranks; /* train_generator_memory: of the generator to be, if there is no `tp` yet */
    int32_t top;      /* likeliest tokens that a request may ask for (train_sampling.top, prompt_top), at most */
    int64_t keep;     /* tokens of kept pages, beside the pages that slots need; 0: none are kept */
    train_lora lora;  /* rank above 0: answers are made with an adapter beside the weights (lora.h) */
    int32_t adapters; /* further adapters that may be there at once; 0: none */
    int32_t adapter_rank;             /* the largest rank of these */
    int32_t routes;                   /* 1: answers have the experts' routes of their tokens (train_answer.routes) */
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

/* The layout of the weights: the same as a model's of this shape or, with `tp`, of this rank's part of it; with option
 * `lora`, the adapter's. */
const train_params *train_generator_params(const train_generator *generator);
/* The layout of the model's own weights, and these, borrowed: with option `lora` before weights are set; without it
 * instead of train_generator_set_weights. */
const train_params *train_generator_base_params(const train_generator *generator);
void train_generator_set_base(train_generator *generator, train_frozen weights);
/* Borrows a flat array on the device, [params->elements] of kernels->types.weight: a model's (an adapter's), or a copy
 * that refit loads into. It may be called between steps; sequences that are running go on with the new weights over
 * what the cache holds from the old ones; sequences that begin afterwards run their prompt with the new ones. */
void train_generator_set_weights(train_generator *generator, const void *weights, int64_t version);

/* With option `adapters`: adapter `index`, 1 to options.adapters, of any rank up to options.adapter_rank: its table (of
 * this rank's part) and its weights, as for set_weights; both are borrowed. Between steps; running sequences of it go
 * on with the new ones. */
void train_generator_set_adapter(train_generator *generator, int32_t index, const train_params *params,
                                 const void *weights, int64_t version);
/* Sequences that begin from now on, of requests that name no adapter, go through adapter `index`; 0: as at first. */
void train_generator_use_adapter(train_generator *generator, int32_t index);
/* Sequences of adapter `index` that are running. */
int64_t train_generator_users(const train_generator *generator, int32_t index);

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
    int32_t top; /* likeliest tokens to report for every token: train_answer.top */
    /* Asked after every token but a stop token: whether the answer tokens[count] ends with it. NULL: it does not. */
    int (*ends)(void *user, const int32_t *tokens, int64_t count);
    void *user;
} train_sampling;

/* temperature 1, nothing cut off, no stop token. */
void train_sampling_default(train_sampling *sampling);

enum { TRAIN_NO_ADAPTER = -1 };

typedef struct train_top {
    int32_t token;
    float logprob; /* as train_answer.logprob */
} train_top;

/* Arrays are borrowed until train_generator_busy is 0, or the next begin. */
typedef struct train_request {
    const int32_t *prompt; /* [count] at least one token */
    int64_t count;
    int64_t id;      /* part of the seed; requests with the same id and sampling give the same answers */
    int32_t samples; /* answers wanted, numbered from first_sample */
    int32_t first_sample;
    const train_sampling *sampling;
    /* 0: what train_generator_use_adapter says; else an adapter that was set; TRAIN_NO_ADAPTER: none */
    int32_t adapter;
    /* tokens at the end of the prompt that are the answer's own, drawn before (by other weights): random numbers and
     * max_tokens go on after them */
    int64_t earlier;
    /* log-probs of the prompt's tokens under softmax(logits), set before the first answer is given out: kept pages have
     * none, so such a prompt is run whole */
    float *prompt_logprob; /* [count] = the first is 0; NULL: not wanted */
    train_top *prompt_top; /* [count, prompt_top_count] = best first; those of the first token are not set */
    int32_t prompt_top_count;
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
    const int64_t *versions;   /* [count] of the weights that each token was drawn with */
    const train_top *top;      /* [count, options.top] the likeliest tokens, best first: the first train_sampling.top
                                  of each token are set; NULL if options.top is 0 */
    /* [route_count, layers, active experts] of prompt and answer, as ravel/routes.h has them: -1 in layers without
     * experts. The last token has been read by no pass. NULL without the option */
    const int16_t *routes;
    int64_t route_count;
} train_answer;

/* Called once per answer, as they end. A status other than RAVEL_OK ends the step with it; the generator must then
 * begin anew. */
typedef ravel_status (*train_answer_fn)(void *user, const train_answer *answer, ravel_error *err);

/* Checks every request before anything runs: E_DATA and E_OVERSIZE name it. What ran before is dropped. */
ravel_status train_generator_begin(train_generator *generator, const train_request *requests, int64_t count,
                                   ravel_error *err);
/* Gives free slots to waiting sequences (their prompts are run), begins to draw one token for every running sequence,
 * and appends the tokens of the step before to their answers. */
ravel_status train_generator_step(train_generator *generator, train_answer_fn answer, void *user, ravel_error *err);
/* The tokens that a running sequence has so far, or NULL if it waits or has ended; valid until the next step. */
const int32_t *train_generator_partial(const train_generator *generator, int64_t request, int32_t sample,
                                       int64_t *count);
/* A running sequence as an answer so far (ended 0), by slot; 0 if the slot is free or has no token yet. */
int train_generator_running(const train_generator *generator, int64_t slot, train_answer *answer);
/* Between steps: the first `ended` of the requests have no sequence any more and are no longer in the array; `more` new
 * ones, which may want as many answers together as there are idle slots, follow the others. Indices of the requests
 * that go on become smaller by `ended`. On an error, which is as for begin, nothing changes. */
ravel_status train_generator_start(train_generator *generator, const train_request *requests, int64_t ended,
                                   int64_t more, ravel_error *err);
/* Slots that neither a running sequence nor a waiting one needs. */
int64_t train_generator_idle_slots(const train_generator *generator);
/* Between steps: ends the sequences of a request, running or waiting; they give no answer. */
void train_generator_cancel(train_generator *generator, int64_t request);
/* Sequences running or waiting. */
int64_t train_generator_busy(const train_generator *generator);
/* begin, and steps until nothing is left. */
ravel_status train_generator_run(train_generator *generator, const train_request *requests, int64_t count,
                                 train_answer_fn answer, void *user, ravel_error *err);

/* Counted since creation. */
typedef struct train_generator_stats {
    int64_t steps;         /* that drew tokens for running sequences */
    int64_t prompt_tokens; /* run through the network; shared prompts count once */
    int64_t kept_tokens;   /* of prompts, that were not run because their pages were kept */
    int64_t tokens;        /* drawn */
    int64_t answers;
    int64_t slot_steps; /* slots in use, summed over steps: / (steps * slots) is how full the batch was */
} train_generator_stats;
train_generator_stats train_generator_counts(const train_generator *generator);

#endif
