/* train/model/model.h: a dense transformer (Llama and Qwen shaped) on ragged batches, forward and backward.
 *
 * Nouns
 *   model    weights and gradients (one flat array each, see params.h) and room for the activations of one micro-batch,
 *            or of several (`in_flight`). It borrows a device (kernels.h); its arrays are blocks of that device, of the
 *            types that the kernels work with.
 *   batch    one micro-batch in the THD layout: samples side by side on one token axis, in host memory.
 *   scored   a token whose log-probability is asked for: p(token | the tokens before it in its sample). The first
 *            token of a sample never is. Whatever belongs to a token (weight, log-prob, coefficient) stands at that
 *            token's own place, not at its predecessor's.
 *
 * Ways to run a batch:
 *
 *     train_model_score      forward only: log-probs (and entropy). For evaluation, old and reference policies. Waits.
 *     train_model_learn      forward, loss and backward in one go, without waiting: the batch is staged and the kernels
 *                            are called. Logits are made a chunk of rows at a time and become gradients in place. The
 *                            loss is sum(-weight * logprob), or a policy loss (train/kernels/loss.h).
 *                            A loss that couples samples is the caller's (train_loss.couple): from all log-probs to
 *                            d(loss)/d(logprob); it waits, and logits are made again.
 *     train_model_stage_*    the same for a part of the layers, with several batches in flight
 *
 * Gradients, and the sums that the losses report, add up until train_model_clear_grads, so micro-batches of an update
 * are run one after the other, and the figures are read back once:
 *
 *     train_model_clear_grads(model);
 *     for each micro-batch: train_model_learn(model, &batch, NULL, NULL, &err);
 *     ... all-reduce train_model_grads(model), clip, optimiser step (train/learn/optimizer.h)
 *     train_model_read(model, &update, &err);                   waits: loss, tokens, gradient norm
 *
 * Exactness: samples never see one another, weights are the caller's, and gradients are sums; so how samples are cut
 * into batches changes the result by rounding alone. Repeating the same batches repeats every bit, for any number of
 * threads. A batch without scored tokens (a filler) costs nothing and changes nothing.
 *
 * All memory is allocated in train_model_create; train_model_memory returns the sizes beforehand. It grows with the
 * budget, never with the square of a length: attention keeps one number per row and head, and only the logits of one
 * chunk of rows exist at a time.
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "train/model/ranks/link.h"
#include "train/model/params.h"

typedef struct train_model train_model;

/* What forward keeps of a layer for backward. */
typedef enum train_recompute {
    TRAIN_RECOMPUTE_NONE,  /* everything that backward reads */
    TRAIN_RECOMPUTE_LIGHT, /* what products and attention made; norms, rotation and swiglu are made again: about a third
                              less memory, a few per cent more time on a GPU, none on a CPU. The default. */
    TRAIN_RECOMPUTE_FULL   /* the input alone: the layer's forward runs again */
} train_recompute;
#define TRAIN_RECOMPUTE_CHOICES "none|light|full"

enum { TRAIN_FLIGHTS = 16 }; /* the most micro-batches in flight */

/* How attention over shared prefixes is worked out; results are equal up to rounding. Context-parallel ranks gather
 * keys. */
typedef enum train_tree_attention {
    TRAIN_TREE_AUTO,   /* whichever moves fewer bytes */
    TRAIN_TREE_LEVELS, /* a call per level of the tree, outputs merged */
    TRAIN_TREE_KEYS    /* one call over copies of each sample's keys */
} train_tree_attention;
#define TRAIN_TREE_CHOICES "auto|levels|keys"

typedef struct train_model_options {
    size_t size;         /* sizeof(train_model_options), set by train_model_options_default */
    int64_t budget;      /* the most tokens of a batch, alignment included; required */
    int64_t longest;     /* the most tokens of a sample; 0: the budget */
    int32_t recompute;   /* train_recompute */
    int32_t inference;   /* no gradients: only train_model_score */
    int64_t logits_rows; /* rows of logits made at a time; 0: what the kernels choose */
    train_lora lora;     /* rank above 0: weights are frozen, and an adapter beside them is trained (lora.h) */
    int32_t mapped; /* with lora or inference: no memory for the model's weights: train_model_set_frozen gives them */
    int64_t first_layer, last_layer; /* of this pipeline stage: first .. last - 1; last 0: to the end */
    int32_t in_flight; /* micro-batches between their forward and their backward (train_model_stage_*); 0 means 1 */
    int32_t graphs;    /* train_graphs: a micro-batch like an earlier one: as many tokens, samples and scored tokens,
                        * attention cut in the same way. Not with ranks that share layers, samples or weights */
    int32_t tp_ranks, tp_rank; /* train_model_memory: of the model to be, if there are no communicators yet */
    int32_t cp_ranks;          /* the same; and, where batches bring their own ring (train_batch.cp), its most ranks */
    int64_t flat_tokens;       /* batches may have `shared`: the most tokens of a batch's samples, those that are shared
                                  counted for each sample (budget: counted once); 0: they have not. Not with a sliding
                                  window */
    int32_t tree_attention;    /* train_tree_attention, of batches that have */
    int32_t sequence; /* sequence parallel, if there are several tensor-parallel ranks: between the products of a
                                  layer each of them has a share of the rows */
    ravel_comm *cp;   /* ranks that share samples (context parallel): each runs its zig-zag shard of every batch, see
                       train_batch.targets; `longest` is of whole samples. Gradients and sums are each rank's own, to be
                       added over these ranks as over data-parallel ones. NULL: one. */
    ravel_comm *tp; /* ranks that share every layer (tensor parallel), which all make a model and run the same batches;
                       NULL: one. It must outlive the model. */
    /* ranks that have the same parameters and share out weights and gradients (FSDP, ZeRO-3): each holds its share
     * (shares.h), and a unit is gathered while it is used. They all run the same number of batches, in the same way.
     * NULL: this rank holds everything. It must outlive the model. */
    ravel_comm *shard;
    int32_t shard_ranks; /* train_model_memory: of the model to be */
    int32_t ep_ranks;    /* the same */
    /* ranks that share out the experts of every layer (expert parallel); NULL: one. They all run the same number of
     * batches, in the same way, each its own. */
    ravel_comm *ep;
    ravel_comm *expert_shard; /* of `shard`, the ranks that have the same experts, in its order; NULL: no others */
    int32_t peers;            /* the most ranks of a communicator that its arrays are given to (link.h), beside
                                         those above */
    int32_t top;              /* likeliest tokens per scored one: train_result.top_ids, train_loss.top_ids; 0: none */
    int32_t replay;           /* batches may have `routes` */
    int32_t load_loss;        /* train_model_set_balance may be called: batches without scored tokens are run too */
    train__wires *wires;      /* not NULL: all communicators are NCCL's, joined to these (wires.h) */
    void (*progress)(void *user); /* called several times per layer: moves messages along that transfer only inside */
    void *progress_user;          /* calls, and does not wait; NULL: nothing */
    const ravel_allocator *allocator; /* for host memory; NULL: malloc; it must outlive the model */
} train_model_options;

void train_model_options_default(train_model_options *options);

/* What was recorded so far (train_model_options.graphs). A micro-batch has three runs: the layers forward, the head,
 * the layers backward. */
typedef struct train_graph_figures {
    int64_t called;   /* runs without a graph */
    int64_t recorded; /* graphs made */
    int64_t launched; /* runs by a graph */
    int64_t dropped;  /* graphs freed: there were too many, or the device's memory moved */
} train_graph_figures;
train_graph_figures train_model_graphs(const train_model *model);

/* Bytes, exactly as train_model_create will allocate them (plus at most 72 per block for alignment). */
typedef struct train_memory {
    int64_t weights;     /* with `shard`: the largest share, and the buffers for gathered units */
    int64_t grads;       /* the same */
    int64_t activations; /* kept from forward to backward: proportional to the budget */
    int64_t working;     /* working arrays within a layer: proportional to the budget */
    int64_t logits;      /* one chunk */
    int64_t scratch;     /* of the kernels, see train_limits */
    int64_t tables;      /* rope, staged batches on both sides, host memory for exchanges */
    int64_t total;       /* of the above; the optimiser adds train_optimizer_bytes */
} train_memory;

/* A pure function; `threads` as the device will have. */
ravel_status train_model_memory(const train_kernels *kernels, int32_t threads, const ravel_shape *shape,
                                const train_model_options *options, train_memory *memory, ravel_error *err);

/* Weights are not set: load or init them. `kernels` and `device` must outlive the model. */
ravel_status train_model_create(const train_kernels *kernels, train_device *device, const ravel_shape *shape,
                                const train_model_options *options, train_model **model, ravel_error *err);
void train_model_free(train_model *model);

/* What is trained: the model's parameters or, with option `lora`, the adapter's. Weights, gradients and shares below
 * are arrays of this table; an adapter's are never sharded. */
const train_params *train_model_params(const train_model *model);
/* The model's own, and their array to load: with an adapter they are frozen. With option `mapped` there is none. */
const train_params *train_model_base_params(const train_model *model);
train_array train_model_base_array(train_model *model);
/* Option `mapped`: where the frozen weights are, borrowed. */
void train_model_set_frozen(train_model *model, train_frozen weights);
/* With an adapter: where the frozen weights are. */
train_frozen train_model_frozen(const train_model *model);
/* Whether the adapter is applied (as it is at first): without it the model is the one that training began with.
 * Collective over the model's ranks. Nothing without an adapter. */
void train_model_set_adapter(train_model *model, int on);
const train_kernels *train_model_kernels(const train_model *model);
train_device *train_model_device(const train_model *model);
/* The flat arrays, [params->elements] (with `shard`: this rank's share) of kernels->types.weight and .grad on the
 * device. Gradients are NULL with `inference`. */
void *train_model_weights(train_model *model);
void *train_model_grads(train_model *model);
/* Weights and gradients with what reads and writes them. Get the array again before writing weights: with `shard` the
 * call drops gathered copies of the old weights. */
train_array train_model_array(train_model *model);
train_array train_model_grad_array(train_model *model);
/* How those arrays, and all others of the device, are given to communicators. */
/* What is under way for sharded parameters ends. */
void train_model_wait(train_model *model);
const train__port *train_model_port(const train_model *model);

/* Normal weights of deviation `deviation` (0: 0.02), norms 1, biases 0. Of an adapter A has uniform numbers within
 * 1 / sqrt(in) and B zeros, so that it changes nothing yet. A pure function of the seed and the table. */
ravel_status train_params_init(const train_params *params, const train_array *to, uint64_t seed, double deviation,
                               ravel_error *err);
/* The same of a model, and of its adapter. */
ravel_status train_model_init(train_model *model, uint64_t seed, double deviation, ravel_error *err);

/* Experts of this part: load[layers, experts] = tokens that went to each since train_model_clear_grads, over the
 * learning and the counting calls, without tokens that do not count. NULL: there are no experts. */
const int64_t *train_model_load(const train_model *model);
/* The load loss until train_model_clear_grads: balance[layers, experts] = its derivative by a probability of the
 * router, the same for every token. Copied. Of ranks that share layers (tp) one adds it. Learning calls no longer add
 * to the load. */
void train_model_set_balance(train_model *model, const float *balance);
/* Sum of balance times probability over all tokens and layers of learning calls since train_model_clear_grads.
 * Waits. */
ravel_status train_model_balance_sum(train_model *model, double *sum, ravel_error *err);

/* Figures of an update on the device, read once. */
typedef struct train_update {
    train_loss_sums sums; /* of train_model_learn since train_model_clear_grads */
    train_clip clip;      /* written by the optimiser */
} train_update;
/* Gradients and sums to 0. */
void train_model_clear_grads(train_model *model);
/* With `shard`, before gradients are used: waits until those of all batches have been added to the shares.
 * Collective. */
ravel_status train_model_finish_grads(train_model *model, ravel_error *err);
/* Seconds that this rank has waited for sharded weights and gradients: exposed communication. */
double train_model_waited(const train_model *model);
/* How the model's arrays are shared out; NULL: this rank has all elements. */
const struct train_shares *train_model_shares(const train_model *model);
/* Tensor parallel, before gradients are used: sums those of weights that several ranks have and each saw a part of
 * (norms of q and k; key heads where there are fewer than ranks). Of `shares` (NULL: everything) only this rank's,
 * which must be the same elements on those ranks. Collective. */
ravel_status train_model_sum_grads(train_model *model, const struct train_shares *shares, ravel_error *err);
/* Where the figures of the update are on the device, for the optimiser's clip. */
train_update *train_model_update(train_model *model);
/* Copies them to the host; waits, and reports what failed on the device. */
ravel_status train_model_read(train_model *model, train_update *update, ravel_error *err);

/* ---- batches -------------------------------------------------------------------------------------------- */

/* All arrays are the caller's, in host memory, and read during the call (`weights` of a stage until
 * its backward). With cu_seqlens_padded, sample i begins at cu_seqlens_padded[i] and has cu_seqlens[i + 1] -
 * cu_seqlens[i] tokens; without it samples are back to back. Places between samples hold anything. */
typedef struct train_batch {
    int32_t samples;
    int32_t filler;                   /* 1: its tokens are no load of experts */
    const int32_t *tokens;            /* [padded tokens]; NULL on a stage that has no embedding */
    const int32_t *cu_seqlens;        /* [samples + 1] from 0 */
    const int32_t *cu_seqlens_padded; /* [samples + 1] or NULL */
    const float *weights; /* [padded tokens] tokens with a weight other than 0 are scored; NULL: all, with 1 */
    double temperature;   /* log-probs are of softmax(logits / temperature); 0 means 1 */
    /* With targets, weights, old log-probs, results and the like stand at the token that predicts, as in a packed batch
     * of the feed. Context parallel needs them: sample i has 2 c tokens here, chunks r and 2R-1-r of its 2R chunks of c
     * tokens, alignment of the whole sample included, and what a token predicts may be on another rank. */
    const int32_t *positions; /* [padded tokens] place of a token in its whole sample; NULL: 0, 1, 2, ... */
    const int32_t *targets;   /* [padded tokens] the token after it; anything where the weight is 0 */
    /* [samples] tokens of the whole sample, without alignment; NULL: those here. Models of which long sequences have
     * other rotary frequencies (RAVEL_ROPE_LONG) need them with context parallelism. */
    const int64_t *wholes;
    /* Samples that share prefixes, in tree order: shared[i] is the number of leading tokens that sample i has in common
     * with sample i - 1 (ravel/tree_batch.h). Each is computed once, and counts once towards the budget; losses,
     * weights and results stay per sample, and equal those without `shared` up to rounding. NULL: nothing is shared.
     * Needs option flat_tokens. A scored token that is shared must have the same target in all its samples. Context
     * parallel: all ranks give the same whole samples, and each works on its own part of their tree (ravel_tree_deal);
     * a token is scored where the one before it is, and other ranks report 0. */
    const int32_t *shared;
    ravel_comm *cp; /* ranks that share the samples of this batch, at most option cp_ranks; NULL: those of option cp. It
                       must outlive the model. */
    /* Experts. How often a token counts in their load (train_model_load): a sample's alignment does not. */
    const int32_t *counted; /* [padded tokens]; NULL: once, with `shared` once for each sample that has it */
    /* Routes to take, as ravel/routes.h has them: the experts of a row's layers, from layer routes_layer on. -1: the
     * model chooses. Rows are this rank's: with `shared`, those that train_result.routes were of. Needs option
     * `replay`. */
    const int16_t *routes; /* [rows, ...] rows routes_stride elements apart; NULL: the model chooses all */
    int64_t routes_stride, routes_layer;
} train_batch;

/* A policy loss: its terms and, at each token's own place, what it compares with. */
typedef struct train_loss {
    train_policy_terms policy;
    const float *old;        /* [padded tokens]; NULL: the log-probs of this pass, so that the ratio is exactly 1 */
    const float *generator;  /* [padded tokens], or NULL if neither a correction nor the gap is wanted */
    const float *reference;  /* [padded tokens], or NULL if kl is 0 */
    const float *advantages; /* [samples] */
    int32_t entropy;         /* sum up entropies too, also without a bonus */
    int32_t reserved;        /* 0 */
    /* A loss of another kind, that couples samples: from the log-probs of the whole batch to d(loss)/d(logprob), both
     * [padded tokens] in host memory; coef is 0 on entry. Called in the backward of the last stage. NULL: the policy
     * loss. */
    ravel_status (*couple)(void *user, int64_t tag, const float *logprob, float *coef, ravel_error *err);
    void *user;
    int64_t tag; /* the caller's own name of the batch */
    /* A teacher's likeliest tokens [padded tokens, options.top], as train_result gave them: each row's loss also has
     * weight * top_weight * its divergence from these (train_top_rows). NULL: none. They must live until the backward;
     * not with terms that couple tokens. */
    int32_t *top_ids;
    float *top_logprob;
    double top_weight;
} train_loss;

/* Arrays are the caller's, in host memory, [padded tokens] or NULL if not wanted; 0 at tokens that are not scored.
 */
typedef struct train_result {
    float *logprob;
    float *entropy;
    float *right;       /* 1: no token is likelier than the target. Scoring only, and not together with entropy */
    int32_t *top_ids;   /* [padded tokens, options.top] the likeliest tokens beside each scored one, best first, and */
    float *top_logprob; /* their log-probs; only those of scored tokens are set. Scoring only; NULL: not wanted */
    int64_t scored;     /* = how many tokens were scored */
    double loss;        /* = sum of -weight * logprob over them, in double */
    /* train_model_stage_score, on every stage: [rows of the batch, layers of this part, active experts] = the experts
     * that each row went to, -1 in layers without; NULL: not wanted. */
    int16_t *routes;
} train_result;

ravel_status train_model_score(train_model *model, const train_batch *batch, train_result *result, ravel_error *err);
/* `loss` NULL: the loss is sum(-weight * logprob). With a `result` (NULL: none) it waits and fills it. */
ravel_status train_model_learn(train_model *model, const train_batch *batch, const train_loss *loss,
                               train_result *result, ravel_error *err);

/* A pipeline stage's share of train_model_learn, for micro-batch `flight` of those in flight (0 .. in_flight - 1).
 * Every stage is given the same batch and loss; only the first reads tokens, only the last reads targets, weights and
 * the loss, which must live until its backward. Hidden rows go from stage to stage through two places per flight,
 * blocks of the device, [train_model_stage_elements] of kernels->types.activation:
 *
 *     forward     reads `input` (not on the first stage), leaves the rows for the next stage in `output`
 *     backward    reads the gradient of `output` there (not on the last stage), leaves that of the input in `input`
 *
 * A place may be sent from until the flight's next call. The last stage makes log-probs, loss and the first gradient in
 * its backward. Nothing waits. A model that has all layers is one stage. */
ravel_status train_model_stage_forward(train_model *model, int32_t flight, const train_batch *batch,
                                       const train_loss *loss, ravel_error *err);
ravel_status train_model_stage_backward(train_model *model, int32_t flight, ravel_error *err);
/* Forward only: the last stage fills the result and waits for it. */
ravel_status train_model_stage_score(train_model *model, int32_t flight, const train_batch *batch, train_result *result,
                                     ravel_error *err);
/* Forward of the layers only, to add up train_model_load. */
ravel_status train_model_stage_count(train_model *model, int32_t flight, const train_batch *batch, ravel_error *err);
void *train_model_stage_input(const train_model *model, int32_t flight);
void *train_model_stage_output(const train_model *model, int32_t flight);
/* Elements of those rows for a batch of `tokens` tokens; with sequence parallelism, of this rank's share. */
int64_t train_model_stage_elements(const train_model *model, int64_t tokens);
/* Those rows as a message, without peer and tag. `place` 0 .. 2 * in_flight: the caller gives each message that is
 * under way a place of its own. */
train__parcel train_model_stage_parcel(const train_model *model, int64_t tokens, int32_t place);

/* Seconds that this model's calls have waited for its tensor-parallel, context-parallel and expert-parallel ranks,
 * since it was made. */
typedef struct train_waits {
    double tp, cp, ep;
} train_waits;
train_waits train_model_waits(const train_model *model);

/* Model FLOPs of forward and backward for samples of these lengths (ravel_flops_adapted); what recomputing adds is not
 * counted. `scored` tokens go through the head; `adapter`: its weights, 0: none. */
double train_model_flops(const ravel_shape *shape, int64_t adapter, int64_t samples, const int64_t *lengths,
                         int64_t scored);

#endif
