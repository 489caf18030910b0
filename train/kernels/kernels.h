/* train/kernels/kernels.h: the table of kernels that the model is written against.
 *
 * Nouns
 *   set      a const table of functions that do the arithmetic: "ref" (readable, in order, one thread), "cpu" (fast:
 *            vectors, tiles, threads), "cuda" (one GPU). A set is chosen by name; the model is written once.
 *   device   threads and scratch on a CPU, a stream and its handles on a GPU. Made by
 *            `open`, and the first argument of everything.
 *   block    memory of the device, from `alloc`. Its address may not be readable here: only kernels look inside, and
 *            `upload`, `stage` and `download` are the only ways in and out. Arguments called `host` are ordinary memory.
 *   types    the element types of a set: of weights [W], activations [A], gradients [G], master weights and moments.
 *            CPU sets: f32 for all, and of sets called -bf16 bf16 for weights. CUDA: bf16 weights and activations, f32 for the rest. Arrays of these types are
 *            `void *`; the letter at a pointer says which. Numbers of rows (log-probs, log-sum-exps, coefficients, rope
 *            tables) are `train_real` in every set.
 *
 * The calling order:
 *
 *     const train_kernels *k;
 *     train_kernels_find("cpu", &k, &err);
 *     k->open(&(train_device_options){.threads = 1}, &device, &err);
 *     k->reserve(device, &limits, &err);            scratch for the largest call to come
 *     k->alloc(device, bytes, &block, &err);
 *     k->upload(device, block, host, bytes);
 *     k->matmul(device, &product);                  ... any kernels, in any order
 *     k->download(device, host, block, bytes);      waits
 *     k->sync(device, &err);                        waits, and returns the first failure
 *
 * Rules for every kernel
 *   - Kernels of one device run in the order of the calls and may still be running when the call returns. They can't
 *     fail on the CPU; on a GPU a failure is kept and reported by the next `sync`. Only `download`, `sync`,
 *     `stage_wait`, `fetch_wait` and `phase_seconds` wait.
 *   - The struct of arguments and what it points to on the host are read during the call only.
 *   - Kernels allocate nothing: what they need beside their arguments was set aside by `reserve`.
 *   - Matrices are row-major; the comment at each pointer has [rows, width]. Distances between rows (ld) are in
 * elements; 0: no
 *     gap. Blocks do not overlap unless a kernel says "may be". Blocks and row widths of activations are aligned to 16
 *     bytes; a set may be faster where they are aligned to 64.
 *   - "+=" means that the kernel adds to what is there (gradients add up over micro-batches); "=" that it overwrites.
 *   - The same call on the same data gives the same bits, however many threads there are: work is cut into pieces by
 *     size alone, and partial sums are added in the order of the pieces. (A device opened with `any_order` may differ.)
 *   - Sums inside a kernel are in f32 or better, for all types.
 *   - One device belongs to one thread at a time; different devices are independent.
 *   - Slots marked "optional" may be NULL.
 *
 * The reference set can also be compiled in double (TRAIN_DOUBLE, see tests/unit), which is how every backward kernel
 * is compared with finite differences of its forward; all its types are then f64, and train_real is double.
 */
#ifndef TRAIN_KERNELS_H
#define TRAIN_KERNELS_H

#include <ravel/dtype.h>

#include "train/kernels/loss.h"

typedef struct train_device train_device; /* each set has its own */

/* ravel_dtype of each kind of array. */
typedef struct train_types {
    int32_t weight, activation, grad;
    int32_t master; /* where it equals `weight`, master weights are the weights themselves */
    int32_t moment; /* of the optimiser, unless train_adamw says otherwise */
} train_types;

/* Element `index` of an array of `dtype`. */
static inline void *train__at(const void *block, int32_t dtype, int64_t index) {
    union { /* the caller says whether it may be written */
        const void *given;
        char *at;
    } u = {block};
    return block ? u.at + index * ravel_dtype_bytes(dtype) : NULL;
}

/* Which code multiplies matrices in a CPU set. */
typedef enum train_products {
    TRAIN_PRODUCTS_BEST,    /* its own where it has AVX2 or AVX-512, else OpenBLAS where the build has it */
    TRAIN_PRODUCTS_OWN,     /* its own */
    TRAIN_PRODUCTS_OPENBLAS /* OpenBLAS, held to one thread per call; E_UNSUPPORTED if the build has none */
} train_products;
#define TRAIN_PRODUCTS_CHOICES "best|own|openblas"

/* Whether kernels that come again with the same sizes and addresses are recorded, and launched as graphs. Results have
 * the same bits. */
typedef enum train_graphs {
    TRAIN_GRAPHS_AUTO, /* where the kernel set and the layout can */
    TRAIN_GRAPHS_ON,   /* the same; E_UNSUPPORTED if they cannot */
    TRAIN_GRAPHS_OFF
} train_graphs;
#define TRAIN_GRAPHS_CHOICES "auto|on|off"

typedef struct train_device_options {
    int32_t threads;                  /* of a CPU set; 0 means 1 */
    int32_t products;                 /* train_products */
    int32_t gpu;                      /* of a GPU set: which one, from 0 */
    int32_t any_order;                /* sums in any order where that is faster: bits may differ from run to run */
    const char *cache;                /* folder for plans and timed choices; "": none is kept; NULL: RAVEL_CACHE_DIR,
                                         else the user's cache folder */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the device */
} train_device_options;

/* The largest call that a device will see. A field that plays no part may be 0. */
typedef struct train_limits {
    int64_t tokens;    /* rows of an activation matrix */
    int64_t longest;   /* tokens of one sample */
    int64_t keys;      /* rows of keys of one attention, where they may be more than tokens */
    int64_t samples;   /* in one batch */
    int64_t width;     /* the widest row of an activation: of rms-norm, gate-up, qkv */
    int64_t hidden;    /* width of the residual stream */
    int64_t heads;     /* query heads */
    int64_t kv_heads;  /* key and value heads */
    int64_t head_dim;  /* elements of one head, */
    int64_t rotated;   /* and how many of them turn */
    int64_t vocab;     /* columns of the logits on this device */
    int64_t cached;    /* tokens of one cache slot, in generation */
    int64_t inference; /* no backward kernel will be called */
    /* rows of the products of experts, if there are some: a token's row counts for each of its experts */
    int64_t pairs;
} train_limits;

/* ---- arguments ------------------------------------------------------------------------------------------ */

/* Whether a row of c depends on its row of a alone: the same bits for any m. The two kinds may differ in their bits: a
 * set may choose an algorithm for each. */
typedef enum train_invariant {
    TRAIN_INVARIANT_NOT,
    TRAIN_INVARIANT_MANY, /* prompts: usually thousands of rows */
    TRAIN_INVARIANT_FEW,  /* steps of a generator: usually up to some hundreds */
} train_invariant;

/* c = a b or c += a b, where a is [m, k] and b is [k, n] after the transpositions that are asked for. The model's
 * products: y [A] = x [A] w' [W];  d_x [A] = d_y [A] w [W];  d_w [G] += d_y' [A] x [A]. */
typedef struct train_matmul {
    int64_t m, n, k;
    const void *a, *b;              /* a: [m, k], or [k, m] with trans_a; b: [k, n], or [n, k] with trans_b */
    void *c;                        /* [m, n] */
    int64_t lda, ldb, ldc;          /* distance of rows as stored; 0: no gap */
    int32_t a_type, b_type, c_type; /* ravel_dtype */
    int32_t trans_a, trans_b;
    int32_t add;             /* c +=, else c = */
    double scale;            /* c = scale * a b; 0: 1. Not with `add`. */
    int32_t batch_invariant; /* train_invariant. trans_b without trans_a only. */
} train_matmul;
/* The same with lda, ldb and ldc filled in. */
static inline train_matmul train__matmul_filled(const train_matmul *x) {
    train_matmul y = *x;
    if (!y.lda) y.lda = y.trans_a ? y.m : y.k;
    if (!y.ldb) y.ldb = y.trans_b ? y.k : y.n;
    if (!y.ldc) y.ldc = y.n;
    return y;
}

/* to[to_ids[r]] = from[from_ids[r]] for r in 0 .. rows - 1. With `first`: the sum, in f32, of the rows
 * from_ids[first[r]] .. from_ids[first[r + 1] - 1], in this order. */
typedef struct train_rows {
    int64_t rows, width;
    void *to;                /* [A] rows ld_to apart */
    const void *from;        /* [A] rows ld_from apart */
    const int32_t *to_ids;   /* [rows] each at most once; NULL: r itself */
    const int32_t *from_ids; /* [rows]; NULL: r itself */
    int64_t ld_to, ld_from;
    const int32_t *first; /* [rows + 1] or NULL; needs from_ids, and `from` apart from `to` */
} train_rows;

/* h = a(gate) * up, where a is silu, or gelu in its tanh form. Backward: d_gate_up =, and h = once more, with the bits that the
 * forward call gave it. */
typedef struct train_gated {
    int64_t rows, ffn;
    int32_t gelu;
    const void *gate_up; /* [A] [rows, 2 * ffn], gate first */
    void *h;             /* [A] [rows, ffn]; NULL in the backward call: not wanted */
    const void *d_h;     /* [A] [rows, ffn]; this and the next for the backward call only */
    void *d_gate_up;     /* [A] may be gate_up */
} train_gated;

/* Which experts a token goes to: p = softmax(logits) over all experts, the `active` largest of them (the first of equal
 * ones), and as their weights their p, divided by the sum of these p where `normalise` is set. An id that is given (not
 * below 0) is taken instead of the largest; a row has all of its ids given, or none.
 *
 * Backward: the gradient of the logits from that of the weights and from `balance`, a gradient of p that is the same in
 * every row, counted[r] times; row_loss[r] += counted[r] * sum of balance * p of the row. */
typedef struct train_route {
    int64_t rows;
    int32_t experts, active;
    int32_t normalise;
    int32_t given;               /* ids are read first; else all are chosen */
    const void *logits;          /* [A] [rows, experts] */
    int32_t *ids;                /* [rows, active] = */
    train_real *weights;         /* [rows, active] = */
    const train_real *d_weights; /* [rows, active]; this and the rest for the backward call only, which reads ids */
    void *d_logits;              /* [A] [rows, experts] = */
    const train_real *balance;   /* [experts]; NULL: 0 */
    const int32_t *counted;      /* [rows] NULL: 1 for all */
    train_real *row_loss;        /* [rows] += with `balance` */
} train_route;

/* Rows of experts times their weights: x[r] *= weights[places[r]]. Backward: d_weights[places[r]] = the dot product of
 * x[r], before it is multiplied, and d_y[r]; then d_y[r] *= the weight too. */
typedef struct train_weigh {
    int64_t rows, width;
    void *x; /* [A] [rows, width] */
    const train_real *weights;
    const int32_t *places; /* [rows] each at most once; NULL: r itself */
    void *d_y;             /* [A] [rows, width]; this and the next for the backward call only */
    train_real *d_weights;
} train_weigh;

/* Rows of a table by token. The device holds rows first .. first + count - 1 of the whole table (vocabulary-parallel:
 * a part); an id outside them gives a row of zeros, and no gradient. */
typedef struct train_embedding {
    int64_t rows, width;
    int64_t first, count;
    const int32_t *ids;   /* [rows] */
    const int32_t *picks; /* [rows] or NULL; row r then has id ids[picks[r]]. Forward only. */
    const void *table;    /* [W] [count, width] */
    void *y;              /* [A] [rows, width] */
    const void *d_y;      /* [A] [rows, width]; this and the rest for the backward call only */
    void *d_table;        /* [G] [count, width] += */
    const int32_t *order; /* [ordered] rows, sorted by id and, of one id, ascending; rows that are left out (alignment)
                             get no gradient. Rows of one id are added in this order. */
    int64_t ordered;
} train_embedding;

/* y = x / sqrt(mean(x^2) + eps) * (weight + shift), all [rows, width]. With `add`: sum = x + add first, and y is of the
 * sum, as it was rounded to [A]. */
typedef struct train_norm {
    int64_t rows, width;
    train_real eps, shift; /* shift: 0, or 1 if weights are kept as what they differ from 1 (Gemma) */
    const void *x;         /* [A] */
    const void *add;       /* [A] or NULL */
    void *sum;             /* [A] = with `add`; may be x or add */
    const void *weight;    /* [W] [width] */
    void *y;               /* [A] =, may be x; NULL in the backward call, or where only the sum is wanted */
    int64_t ld_x, ld_y; /* distance of rows of x, and of y or d_y; 0: no gap, as in all other arrays. Not with `add`. */
    const void *d_y;    /* [A] this and the rest for the backward call only; x is what was normalised */
    void *d_x;          /* [A] += : holds the gradient that comes past the norm (the residual stream's) */
    void *d_weight;     /* [G] += [width] */
} train_norm;

/* From raw q, k, v of a token to rotated q and k: RMSNorm over each head (where q_weight is given; eps and shift as in
 * train_norm), then rotation in the half layout of Hugging Face: elements i and i + rotated / 2 are a pair. What is
 * after them is in pairs too, i and i + (head_dim - rotated) / 2, whose cosines in the tables are 1 and sines 0. */
typedef struct train_rope {
    int64_t tokens;
    int32_t heads, kv_heads, head_dim;
    int32_t rotated; /* elements of a head, 0: all */
    train_real eps, shift;
    const void *qkv;                 /* [A] [tokens, (heads + 2 * kv_heads) * head_dim], q first */
    const void *q_weight, *k_weight; /* [W] [head_dim], or both NULL: no norm */
    const train_real *cosine, *sine; /* [positions, head_dim / 2] scaling included */
    const int32_t *positions;        /* [tokens] rows of the tables */
    void *q;                         /* [A] = [tokens, heads * head_dim] */
    void *k;                         /* [A] = [tokens, kv_heads * head_dim] */
    const void *d_q, *d_k;           /* [A] as q and k; this and the rest for the backward call only */
    void *d_qkv;                     /* [A] = the q and k part of its rows; the v part is left alone */
    void *d_q_weight, *d_k_weight;   /* [G] += [head_dim]; NULL without norm */
} train_rope;

/* Samples side by side on one token axis. Sample i is rows starts[i] .. starts[i] + lengths[i] - 1; rows that belong to
 * no sample (alignment) are never read or written by the kernels that take a ragged. */
typedef struct train_ragged {
    int32_t tokens;              /* rows in all, alignment included */
    int32_t longest;             /* at least the largest length */
    const int32_t *starts;       /* [samples] on the device, as are lengths */
    const int32_t *lengths;      /* [samples] */
    const int32_t *host_lengths; /* [samples] the same in host memory, for sets that plan a call by them; or NULL */
} train_ragged;

/* Causal attention of query rows over key rows, sample by sample. Query row r of sample i sees key row j where
 *     j <= r + shift   and, with a window,   j > r + shift - window          shift = shifts[i]
 * so shift is the position of the sample's first query row minus that of its first key row: 0 if both are the whole
 * sample; at least the number of keys where all of them are seen (a block of an earlier context-parallel shard):
 * `shifts` is then the array keys.lengths itself, by which a set can tell. With `at_end` the queries are the last of
 * each sample's keys, so shift is keys - queries. A query row that sees no key gets o = 0 and lse = -infinity. A query
 * head h reads key head h / (heads / kv_heads).
 *
 * Ring attention calls this once per block of keys, into a second (o, lse), and merges. Backward over a block of keys
 * takes o and lse over ALL keys of the row (after the last merge): then the blocks' d_q add up to the whole. */
typedef struct train_attention {
    int32_t samples;
    int32_t heads, kv_heads, head_dim;
    train_real scale;      /* of the scores: 1 / sqrt(head_dim) */
    int32_t window;        /* keys that a query sees, itself included; 0: all */
    train_ragged queries;  /* each length at least 1 */
    train_ragged keys;     /* a length may be 0 */
    const int32_t *shifts; /* [samples] on the device; NULL: 0 for all */
    int32_t at_end;        /* shifts[i] is keys.lengths[i] - queries.lengths[i], which is at least 0 */
    const void *q;         /* [A] [query tokens, heads * head_dim], rows ld_q apart */
    const void *k, *v;     /* [A] [key tokens, kv_heads * head_dim], rows ld_k and ld_v apart */
    void *o;               /* [A] [query tokens, heads * head_dim], no gap between rows */
    train_real *lse;       /* [query tokens, heads] log-sum-exp of a row of scores, natural */
    int64_t ld_q, ld_k, ld_v;
    const void *d_o;       /* [A] as o; this and the rest for the backward call only */
    void *d_q, *d_k, *d_v; /* [A] as q, k, v */
    int64_t ld_dq, ld_dk, ld_dv;
    int32_t add; /* d_q +=, else =; d_k and d_v are always = */
} train_attention;

/* (o, lse) = what attention over both sets of keys would give, for the rows of `queries`; a row that saw no key has lse
 * -infinity. */
typedef struct train_merge {
    int32_t samples, heads, head_dim;
    train_ragged queries;
    void *o;             /* [A] [query tokens, heads * head_dim] */
    train_real *lse;     /* [query tokens, heads] */
    const void *other_o; /* as o */
    const train_real *other_lse;
} train_merge;

/* Keys and values of generation: pages of TRAIN_PAGE tokens. `k` and `v` are [pages, TRAIN_PAGE, kv_heads * head_dim]
 * elements [A] of one layer; how a page is laid out inside is the set's own, but a page is contiguous and whole pages
 * may be copied. Token t of slot s is in page table[s * pages_per_slot + t / TRAIN_PAGE], place t % TRAIN_PAGE; slots
 * may share pages (a prompt in common). */
enum { TRAIN_PAGE = 64 };
typedef struct train_cache {
    void *k, *v;
    const int32_t *table; /* [slots, pages_per_slot] on the device */
    int64_t pages_per_slot;
    int32_t kv_heads, head_dim;
} train_cache;

/* For r in 0 .. rows - 1: row from[r] of k and v becomes token positions[r] of slot slots[r]. With `back` the other
 * way: row r of k and v becomes token r of slot 0, as it was written. */
typedef struct train_cache_write {
    train_cache cache;
    int64_t rows;
    const void *k, *v; /* [A] rows ld_k and ld_v apart */
    int64_t ld_k, ld_v;
    const int32_t *from;              /* [rows]; NULL: r itself */
    const int32_t *slots, *positions; /* [rows]; a slot below 0: nothing is written */
    int32_t back;                     /* 1: from the cache; `from`, `slots` and `positions` are NULL */
} train_cache_write;

/* Attention of single rows over the cache. Row r sees keys 0 .. lengths[r] - 1 of slot slots[r], with a window only the
 * last `window` of them. Its bits depend on its own keys alone, not on the other rows. lengths[r] 0: o = 0. */
typedef struct train_cached {
    train_cache cache;
    int32_t rows, heads;
    train_real scale;
    int32_t window;  /* 0: all */
    int64_t longest; /* at least the largest of lengths */
    const void *q;   /* [A] [rows, heads * head_dim], rows ld_q apart */
    int64_t ld_q;
    const int32_t *slots, *lengths; /* [rows] */
    void *o;                        /* [A] [rows, heads * head_dim] */
} train_cached;

/* The softmax at the end of the model, over a chunk of rows. The device holds the logits of tokens first ..
 * first + columns - 1 (vocabulary-parallel: a part). With s = scale (1 / temperature):
 *
 *   softmax_parts     per row, over these columns: most = max(s x), sum = sum exp(s x - most),
 *                     mean = sum exp(s x - most) (s x - most), target = s x[target] - most, or -infinity where the
 *                     target is not among these columns
 *   softmax_combine   parts of one or several ranks ->  lse = log sum exp(s x),  logprob = s x[target] - lse,
 *                     entropy = lse - sum p s x, right = 1 if no logit is larger than the target's (to rounding),
 *                     over the whole vocabulary
 *   softmax_backward  in place: x = d(coef * logprob + entropy_coef * entropy) / dx */
typedef struct train_softmax {
    int64_t rows, columns, first;
    void *logits; /* [A] [rows, columns] read by softmax_parts, overwritten by its gradient in softmax_backward */
    train_real scale;
    const int32_t *targets;         /* [rows] */
    train_real *parts;              /* [4, rows] most, sum, mean, target: = in softmax_parts; [ranks, 4, rows] in
                               softmax_combine */
    int64_t ranks;                  /* of softmax_combine */
    train_real *logprob;            /* [rows] = in softmax_combine */
    train_real *lse;                /* [rows] = in softmax_combine; read by softmax_backward */
    train_real *entropy;            /* [rows] or NULL; needed by softmax_backward where entropy_coef is given */
    train_real *right;              /* [rows] or NULL; = in softmax_combine */
    const train_real *coef;         /* [rows] softmax_backward only */
    const train_real *entropy_coef; /* [rows] or NULL */
} train_softmax;

/* A teacher's likeliest tokens, `count` (K) per row, and the divergence of a model from them: with P the teacher's
 * probabilities of its K tokens and q the model's, all other tokens being one more,
 *
 *     D = sum over the K tokens of P log(P / q)  +  (1 - sum P) log((1 - sum P) / (1 - sum q))
 *
 *   top_parts      the largest s x of these columns, best first, and their tokens: parts [2, rows, K]
 *   top_combine    parts of one or several ranks -> ids, logprob (s x - lse), of the teacher
 *   top_gather     parts [rows, K] = s x[id] - lse of the model, or 0 where the token is not among these columns
 *   top_loss       sums += weights * weight * D and its kl; parts = the gradient's share at the K tokens; coef -= rest
 *   top_backward   after softmax_backward: the gradient at the K tokens and the target */
typedef struct train_top_rows {
    int64_t rows, columns, first;
    void *logits; /* [A] [rows, columns] */
    train_real scale;
    int32_t count;
    int64_t ranks;          /* of top_combine */
    train_real *parts;      /* see above; [ranks, 2, rows, K] in top_combine */
    const train_real *lse;  /* [rows] */
    const int32_t *targets; /* [rows] */
    const int32_t *places;  /* [rows] of ids and logprob: row places[r] */
    int32_t *ids;           /* [places, K] */
    float *logprob;         /* [places, K] of the teacher */
    const float *weights;   /* [rows] */
    double weight;
    train_real *coef, *rest; /* [rows] */
    train_loss_sums *sums;
} train_top_rows;

/* Of the largest logit, relative: what is closer to it counts as equal. */
#define TRAIN_RIGHT_GAP 1e-6F

/* How a token is chosen from a row of logits; one per row. */
typedef struct train_choice {
    float temperature; /* 0: the largest logit (the lowest token where equal) */
    float top_p;       /* keep the likeliest tokens until they hold this much; 1: all */
    int32_t top_k;     /* keep this many of the likeliest; 0: all */
    float min_p;       /* drop tokens less likely than this times the likeliest; 0: none */
    float uniform;     /* [0, 1) the random number that decides */
} train_choice;

/* A row's token depends on its own logits and choice alone. top_k first, then top_p of what is left, then min_p; at
 * least one token stays. Tokens that stay are walked in the order of their ids until the sum of their weights passes
 * uniform * total. */
typedef struct train_sample {
    int64_t rows, vocab;
    const void *logits;          /* [A] [rows, vocab] */
    const train_choice *choices; /* [rows] */
    int32_t *tokens;             /* [rows] = the token chosen */
    int32_t *last;               /* or NULL: last[places[r]] = the token too, so that the next step can read it */
    const int32_t *places;       /* [rows] */
    train_real *logprob;         /* [rows] = of the token under softmax(logits / temperature), nothing cut off; at
                                    temperature 0 under softmax(logits) */
    train_real *kept_logprob;    /* [rows] = of the token among those that were kept; 0 at temperature 0 */
} train_sample;

/* The result of `clip`, on the device. */
typedef struct train_clip {
    double norm;   /* of the gradients, before clipping */
    double scale;  /* what gradients are multiplied with: 1, or most / (norm + 1e-6) where the norm is above `most` */
    double finite; /* 1; 0 if the norm is not finite: adamw then changes nothing */
} train_clip;

/* AdamW with bias correction and decoupled decay, on n elements:
 *     g = clip->scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     w -= lr * (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + decay * w)
 * where w is the master weight. Nothing changes where clip->finite is 0. */
typedef struct train_adamw {
    int64_t n;
    void *master;           /* [master] */
    void *weight;           /* [W] = master, rounded; the same pointer where the types are equal */
    void *m, *v;            /* [moment_type] */
    const void *grad;       /* [G] */
    const train_clip *clip; /* on the device */
    double lr, beta1, beta2, eps, decay;
    int64_t step;        /* from 1 */
    int32_t moment_type; /* RAVEL_BF16: rounded to nearest even when stored; else types.moment */
} train_adamw;

/* Elements of gradients whose squares are summed into one number, about: whole rows of a tensor (train_tensor_span). */
enum { TRAIN_SPAN = 4096 };

/* Where device time goes; `phase` says which one begins. */
typedef enum train_phase {
    TRAIN_PHASE_OTHER,
    TRAIN_PHASE_FORWARD,
    TRAIN_PHASE_HEAD, /* logits, loss and the gradient of the last hidden rows */
    TRAIN_PHASE_BACKWARD,
    TRAIN_PHASE_OPTIMIZER,
    TRAIN_PHASES
} train_phase;

typedef struct train_graph train_graph; /* each set has its own */

/* A GPU's name and memory. */
typedef struct train_gpu_state {
    char model[96];        /* "NVIDIA H200" */
    int64_t total_bytes;   /* of its memory */
    int64_t used_bytes;    /* of it in use, also by libraries, graphs and other processes */
    int64_t block_bytes;   /* in blocks of this device now */
    int64_t peak_bytes;    /* the most that was in blocks since open */
    int64_t scratch_bytes; /* of the blocks: what `reserve` holds */
    int64_t graph_bytes;   /* in recorded graphs now, beside the blocks */
    int64_t recent_bytes;  /* the most that was in blocks since gpu_state was called before */
} train_gpu_state;

/* ---- the table ------------------------------------------------------------------------------------------ */

typedef struct train_kernels {
    const char *name;
    const char *doc; /* one line */
    train_types types;
    /* blocks are ordinary memory, which communicators and the host may read and write after sync */
    int32_t host_memory;

    /* ---- the device ---- */
    ravel_status (*open)(const train_device_options *options, train_device **device, ravel_error *err);
    void (*close)(train_device *device); /* NULL does nothing; blocks must be released before */
    /* Bytes that `reserve` will hold for these limits, beside what `open` took. A pure function. */
    size_t (*scratch_bytes)(const train_limits *limits, int32_t threads);
    /* Makes room for calls within the limits; again with larger limits to grow. E_MEMORY leaves the device as it was.
     */
    ravel_status (*reserve)(train_device *device, const train_limits *limits, ravel_error *err);
    /* Rows of logits that the head should make at a time, at most limits->tokens. A pure function. */
    int64_t (*head_rows)(const train_limits *limits);
    /* Waits for everything called so far; the first failure since the last sync. */
    ravel_status (*sync)(train_device *device, ravel_error *err);
    /* Kernels called from here on belong to `phase` (train_phase). */
    void (*phase)(train_device *device, int32_t phase);
    /* seconds[TRAIN_PHASES] = time of each phase since the last call; waits. */
    void (*phase_seconds)(train_device *device, double *seconds);
    /* Optional, of GPU sets. Does not wait. */
    void (*gpu_state)(train_device *device, train_gpu_state *state);
    /* Optional, of GPU sets: how many GPUs this process sees, and the 16 bytes that name each of the first `most` in
     * every process. E_UNSUPPORTED says why there is none. */
    ravel_status (*gpus)(int32_t most, uint8_t (*uuids)[16], int32_t *count, ravel_error *err);

    /* Optional, of GPU sets: the native stream that kernels run in, for NCCL. */
    void *(*stream)(train_device *device);
    /* Optional, of GPU sets. While a call waits for kernels, it calls look(user, seconds waited so far) about every
     * millisecond; a status other than RAVEL_OK becomes the device's failure. `look` ends what kernels wait for (it
     * aborts NCCL). */
    void (*watch)(train_device *device, ravel_status (*look)(void *user, double waited, ravel_error *err), void *user);

    /* ---- memory ---- */
    /* Aligned to 64 bytes (256 on a GPU), not zeroed; bytes > 0. */
    ravel_status (*alloc)(train_device *device, size_t bytes, void **block, ravel_error *err);
    void (*release)(train_device *device, void *block, size_t bytes);                    /* NULL does nothing */
    void (*upload)(train_device *device, void *block, const void *host, size_t bytes);   /* host may be changed after */
    void (*download)(train_device *device, void *host, const void *block, size_t bytes); /* waits */
    void (*copy)(train_device *device, void *to, const void *from, size_t bytes);
    void (*zero)(train_device *device, void *block, size_t bytes);
    /* to = from, n elements of the two dtypes, rounded to nearest even: between the types of the set. */
    void (*convert)(train_device *device, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n);

    /* to += from, n elements [G]. */
    void (*add)(train_device *device, void *to, const void *from, int64_t n);

    /* ---- staging: what the host prepares for a micro-batch, uploaded while the one before computes ---- */
    /* Host memory that `stage` can read while kernels run (page-locked on a GPU). */
    ravel_status (*alloc_host)(train_device *device, size_t bytes, void **host, ravel_error *err);
    void (*release_host)(train_device *device, void *host, size_t bytes); /* NULL does nothing */
    /* Begins to copy host (from alloc_host) to block, beside the kernels that run; kernels called after this see it.
     * `slot`, 0 .. TRAIN_STAGES - 1, names the pair of host and block. */
    void (*stage)(train_device *device, int32_t slot, void *block, const void *host, size_t bytes);
    /* Waits until the slot's last copy is done: then the host may write its memory again. */
    void (*stage_wait)(train_device *device, int32_t slot);
    /* All kernels that read the slot's block have been called: the next `stage` may overwrite it when they are done. */
    void (*stage_release)(train_device *device, int32_t slot);
    /* Begins to copy block to host (from alloc_host), after the kernels called so far and beside later ones, which must
     * not write the block before fetch_wait. */
    void (*fetch)(train_device *device, int32_t slot, void *host, const void *block, size_t bytes);
    /* Waits until the slot's last fetch is done. */
    void (*fetch_wait)(train_device *device, int32_t slot);

    /* ---- products ---- */
    void (*matmul)(train_device *device, const train_matmul *product);

    /* ---- rows ---- */
    void (*copy_rows)(train_device *device, const train_rows *rows);
    void (*embed)(train_device *device, const train_embedding *embedding);
    void (*embed_backward)(train_device *device, const train_embedding *embedding);
    /* x[r] += bias; x: [A] [rows, width] rows ld apart, bias [W]. */
    void (*bias)(train_device *device, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld);
    /* d_bias [G] += sum of the rows of d_x [A]. */
    void (*bias_backward)(train_device *device, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld);
    /* y = by * x, n elements [A]; y may be x. */
    void (*scale)(train_device *device, void *y, const void *x, double by, int64_t n);
    void (*rmsnorm)(train_device *device, const train_norm *norm);
    void (*rmsnorm_backward)(train_device *device, const train_norm *norm);

    /* ---- attention ---- */
    void (*rope)(train_device *device, const train_rope *rope);
    void (*rope_backward)(train_device *device, const train_rope *rope);
    /* No n x n matrix: scores live in tiles. Reads q, k, v; o =, lse =. */
    void (*attention)(train_device *device, const train_attention *attention);
    /* Reads q, k, v, o, lse, d_o; d_q = or +=, d_k and d_v = (rows outside every sample are not touched). Samples have
     * keys of their own: no key row belongs to two. */
    void (*attention_backward)(train_device *device, const train_attention *attention);
    void (*attention_merge)(train_device *device, const train_merge *merge);
    void (*cache_write)(train_device *device, const train_cache_write *write);
    void (*attention_cached)(train_device *device, const train_cached *cached);

    void (*gated)(train_device *device, const train_gated *gated);
    void (*gated_backward)(train_device *device, const train_gated *gated);

    /* ---- experts: their products are `matmul` over rows that `copy_rows` has put in the order of experts ---- */
    void (*route)(train_device *device, const train_route *route);
    void (*route_backward)(train_device *device, const train_route *route);
    void (*weigh)(train_device *device, const train_weigh *weigh);
    void (*weigh_backward)(train_device *device, const train_weigh *weigh);

    /* ---- the head ---- */
    void (*softmax_parts)(train_device *device, const train_softmax *softmax);
    void (*softmax_combine)(train_device *device, const train_softmax *softmax);
    void (*softmax_backward)(train_device *device, const train_softmax *softmax);
    /* Optional: the three above in one, where one device holds the whole vocabulary and coef is known beforehand
     * (logprob and lse =, logits = their gradient; no entropy). */
    void (*softmax_fused)(train_device *device, const train_softmax *softmax);
    void (*loss)(train_device *device, const train_loss_rows *loss);
    /* sequences[s] += over the rows of each sample; the caller sets them to 0 first. */
    void (*sequence_sums)(train_device *device, const train_loss_rows *loss, train_sequence_sums *sequences);
    void (*sample)(train_device *device, const train_sample *sample);
    /* Optional, and all or none of them. Places, ids and logprob are in host memory. */
    void (*top_parts)(train_device *device, const train_top_rows *top);
    void (*top_combine)(train_device *device, const train_top_rows *top);
    void (*top_gather)(train_device *device, const train_top_rows *top);
    void (*top_loss)(train_device *device, const train_top_rows *top);
    void (*top_backward)(train_device *device, const train_top_rows *top);

    /* ---- an update ---- */
    /* sums[i] = sum of squares of elements i * span .. of grads [G], in double, on the device; the last span may be
     * short. So shares that begin at multiples of the span give the numbers that the whole array would. */
    void (*sum_squares)(train_device *device, const void *grads, int64_t n, int64_t span, double *sums);
    /* *clip = from sums[0 .. count-1] (added in a fixed order) and the largest norm allowed (0: no limit). */
    void (*clip)(train_device *device, const double *sums, int64_t count, double most, train_clip *clip);
    void (*adamw)(train_device *device, const train_adamw *adamw);

    /* ---- graphs, optional (all or none): the calls between capture_begin and capture_end, which must be kernels
     * alone, are recorded instead of run, and run by graph_run with the same pointers and sizes ---- */
    ravel_status (*capture_begin)(train_device *device, ravel_error *err);
    ravel_status (*capture_end)(train_device *device, train_graph **graph, ravel_error *err);
    void (*graph_run)(train_device *device, train_graph *graph);
    /* 0: memory of the device that its kernels use has moved (reserve): record it again. */
    int (*graph_valid)(const train_device *device, const train_graph *graph);
    void (*graph_free)(train_device *device, train_graph *graph); /* NULL does nothing */
    /* With graphs: a number that says how attention over these samples is cut into kernels. Calls that differ in
     * host_lengths and longest alone, with equal numbers, can be recorded as one. */
    uint64_t (*attention_shape)(const train_device *device, const train_attention *attention);
} train_kernels;

enum { TRAIN_STAGES = 64 };

#ifndef TRAIN_DOUBLE
/* The set called `name`: "ref", "cpu", "cuda", or "cpu-avx512", "cpu-avx2", "cpu-base" for one instruction set ("cpu"
 * is the best that this machine has); each of the CPU's with "-bf16" behind it has its weights in bf16.
 * "cpu-avx512bf16" has them too, and multiplies by them in bf16 with f32 sums. E_ARGUMENT lists the names,
 * E_UNSUPPORTED says what the machine lacks. */
ravel_status train_kernels_find(const char *name, const train_kernels **kernels, ravel_error *err);
#endif

#endif
