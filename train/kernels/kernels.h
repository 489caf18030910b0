/* train/kernels/kernels.h: the table of kernels that the model is written against.
 *
 * Nouns
 *   set      a const table of functions that do the arithmetic: "ref" (readable, in order, one thread), "cpu" (fast:
 *            vectors, tiles, threads), later one for a GPU. A set is chosen by name; the model is written once.
 *   device   what a set works on and with: threads and scratch on a CPU, a stream and its handles on a GPU. Made by
 *            `open`, and the first argument of everything.
 *   block    memory of the device, from `alloc`. Its address may not be readable here: only kernels look inside, and
 *            `upload` and `download` are the only ways in and out. Arguments called `host` are ordinary memory.
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
 *     k->sync(device, &err);                        waits, and says whether anything failed
 *
 * Rules for every kernel
 *   - Kernels of one device run in the order of the calls and may still be running when the call returns. They can't
 *     fail on the CPU; on a GPU a failure is kept and told by the next `sync`.
 *   - Kernels allocate nothing: what they need beside their arguments was set aside by `reserve`.
 *   - Matrices are row-major; [rows, width] is said at each pointer. Distances between rows are in elements. Blocks do
 *     not overlap unless a kernel says "may be".
 *   - "+=" means that the kernel adds to what is there (gradients add up over micro-batches); "=" that it overwrites.
 *   - The same call on the same data gives the same bits, however many threads there are: work is cut into pieces by
 *     size alone, and partial sums are added in the order of the pieces.
 *   - One device belongs to one thread at a time; different devices are independent.
 *
 * `train_real` is float. The reference set can also be compiled in double (TRAIN_DOUBLE, see tests/unit), which is how
 * every backward kernel is compared with finite differences of its forward.
 */
#ifndef TRAIN_KERNELS_H
#define TRAIN_KERNELS_H

#include <ravel/base.h>

#ifdef TRAIN_DOUBLE
typedef double train_real;
#else
typedef float train_real;
#endif

typedef struct train_device train_device; /* each set has its own */

/* Who multiplies matrices in a CPU set. */
typedef enum train_products {
    TRAIN_PRODUCTS_BEST,    /* its own where it has AVX2 or AVX-512, else OpenBLAS where the build has it */
    TRAIN_PRODUCTS_OWN,     /* its own */
    TRAIN_PRODUCTS_OPENBLAS /* OpenBLAS, held to one thread a call; E_UNSUPPORTED where the build has none */
} train_products;
#define TRAIN_PRODUCTS_CHOICES "best|own|openblas"

typedef struct train_device_options {
    int32_t threads;                  /* of a CPU set; 0 means 1 */
    int32_t products;                 /* train_products */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the device */
} train_device_options;

/* The largest call that a device will see. A field that plays no part may be 0. */
typedef struct train_limits {
    int64_t tokens;    /* rows of an activation matrix */
    int64_t longest;   /* tokens of one sample */
    int64_t samples;   /* in one batch */
    int64_t width;     /* the widest row of an activation: of rms-norm, gate-up, qkv */
    int64_t heads;     /* query heads */
    int64_t kv_heads;  /* key and value heads */
    int64_t head_dim;  /* elements of one head */
    int64_t vocab;     /* columns of the logits */
    int64_t cached;    /* tokens of one cache slot, in generation */
    int64_t inference; /* no backward kernel will be called */
} train_limits;

/* Samples side by side on one token axis. Sample i is rows starts[i] .. starts[i] + lengths[i] - 1; rows that belong to
 * no sample (alignment) are never read or written by the kernels that take a ragged. */
typedef struct train_ragged {
    int32_t tokens;           /* rows in all, alignment included */
    int32_t samples;          /* entries of starts and lengths */
    int32_t longest;          /* the largest length */
    int32_t reserved;         /* 0 */
    const int32_t *starts;    /* [samples] */
    const int32_t *lengths;   /* [samples] each at least 1 */
    const int32_t *positions; /* [tokens] place of a token in its own sample, from 0 */
} train_ragged;

/* c = a b or c += a b, where a is [m, k] and b is [k, n] after the transpositions that are asked for. */
typedef struct train_matmul {
    int64_t m, n, k;
    const train_real *a, *b; /* a: [m, k], or [k, m] with trans_a; b: [k, n], or [n, k] with trans_b */
    train_real *c;           /* [m, n] */
    int64_t lda, ldb, ldc;   /* distance of rows as stored; 0: none between them */
    int32_t trans_a, trans_b;
    int32_t add; /* c +=, else c = */
    int32_t
        exact; /* rows of c depend on their rows of a alone: the same bits whatever m. trans_b without trans_a only. */
} train_matmul;

/* to[to_ids[r]] = from[from_ids[r]] for r in 0 .. rows - 1: the embedding, picking rows, filling a cache. */
typedef struct train_rows {
    int64_t rows, width;
    train_real *to;          /* rows ld_to apart */
    const train_real *from;  /* rows ld_from apart */
    const int32_t *to_ids;   /* [rows] each at most once; NULL: r itself */
    const int32_t *from_ids; /* [rows]; NULL: r itself */
    int64_t ld_to, ld_from;  /* 0: width */
} train_rows;

/* Queries, keys and values of a batch, one row a token. A query head h reads key head h / (heads / kv_heads). */
typedef struct train_attention {
    train_ragged batch;
    int32_t heads, kv_heads, head_dim;
    train_real scale;            /* of the scores: 1 / sqrt(head_dim) */
    const train_real *q;         /* [tokens, heads * head_dim], rows ld_q apart */
    const train_real *k, *v;     /* [tokens, kv_heads * head_dim], rows ld_k and ld_v apart */
    train_real *o;               /* [tokens, heads * head_dim], no gap between rows */
    train_real *lse;             /* [tokens, heads] log-sum-exp of a row of scores */
    int64_t ld_q, ld_k, ld_v;    /* in elements */
    const train_real *d_o;       /* [tokens, heads * head_dim]; this and the rest for the backward call only */
    train_real *d_q, *d_k, *d_v; /* as q, k, v */
    int64_t ld_dq, ld_dk, ld_dv;
} train_attention;

/* Attention of single rows over a cache. Row r sees keys 0 .. lengths[r] - 1 of slot slots[r]. */
typedef struct train_cached {
    int32_t rows;
    int32_t heads, kv_heads, head_dim;
    train_real scale;
    int64_t slot_tokens; /* capacity of a slot */
    int64_t longest;     /* the largest of lengths; at most slot_tokens */
    const train_real *q; /* [rows, heads * head_dim], rows ld_q apart */
    int64_t ld_q;
    const train_real *k_cache, *v_cache; /* [slots * slot_tokens, kv_heads * head_dim] */
    const int32_t *slots, *lengths;      /* [rows] */
    train_real *o;                       /* [rows, heads * head_dim] */
} train_cached;

/* From raw q, k, v of a token to rotated q and k: RMSNorm over each head (where q_weight is given), then rotation in
 * the half layout of Hugging Face: elements i and i + head_dim/2 are a pair. */
typedef struct train_rope {
    int64_t tokens;
    int32_t heads, kv_heads, head_dim;
    train_real eps;
    const train_real *qkv;                 /* [tokens, (heads + 2 * kv_heads) * head_dim], q first */
    const train_real *q_weight, *k_weight; /* [head_dim], or both NULL: no norm */
    const train_real *cosine, *sine;       /* [positions, head_dim / 2] */
    const int32_t *positions;              /* [tokens] */
    train_real *q;                         /* = [tokens, heads * head_dim] */
    train_real *k;                         /* = [tokens, kv_heads * head_dim] */
    const train_real *d_q, *d_k;           /* as q and k; this and the rest for the backward call only */
    train_real *d_qkv;                     /* = the q and k part of its rows; the v part is left alone */
    train_real *d_q_weight, *d_k_weight;   /* += [head_dim]; NULL without norm */
} train_rope;

/* The softmax at the end of the model, over a chunk of rows. With s = scale (1 / temperature), for row r:
 *     logprob = s * x[target] - lse,   lse = log sum exp(s * x),   entropy = lse - sum p * s * x
 * and backward, in place: x = d(coef * logprob + entropy_coef * entropy) / dx. */
typedef struct train_softmax {
    int64_t rows, vocab;
    train_real *logits; /* [rows, vocab] read by softmax, overwritten by its gradient in softmax_backward */
    train_real scale;
    const int32_t *targets;         /* [rows] */
    train_real *logprob, *lse;      /* [rows] = in softmax; lse is read by softmax_backward */
    train_real *entropy;            /* [rows] or NULL; needed by softmax_backward where entropy_coef is given */
    const train_real *coef;         /* [rows] softmax_backward only */
    const train_real *entropy_coef; /* [rows] or NULL */
} train_softmax;

/* How a token is chosen from a row of logits; one for each row. */
typedef struct train_choice {
    train_real temperature; /* 0: the largest logit (the lowest token where equal) */
    train_real top_p;       /* keep the likeliest tokens until they hold this much; 1: all */
    int32_t top_k;          /* keep this many of the likeliest; 0: all */
    train_real uniform;     /* [0, 1) the random number that decides */
} train_choice;

typedef struct train_sample {
    int64_t rows, vocab;
    const train_real *logits;    /* [rows, vocab] */
    const train_choice *choices; /* [rows] */
    int32_t *tokens;             /* [rows] = the token chosen */
    train_real *logprob;         /* [rows] = of the token under softmax(logits / temperature), nothing cut off; at
                                    temperature 0 under softmax(logits) */
    train_real *kept_logprob;    /* [rows] = of the token among those that top-k and top-p kept; 0 at temperature 0 */
} train_sample;

/* AdamW with bias correction and decoupled decay, on n elements:
 *     g = grad_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     w -= lr * (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + decay * w) */
typedef struct train_adamw {
    int64_t n;
    train_real *w, *m, *v;
    const train_real *grad;
    double lr, beta1, beta2, eps, decay, grad_scale;
    int64_t step; /* from 1 */
} train_adamw;

typedef struct train_kernels {
    const char *name;
    const char *doc; /* one line */

    /* ---- the device ---- */
    ravel_status (*open)(const train_device_options *options, train_device **device, ravel_error *err);
    void (*close)(train_device *device); /* NULL does nothing; blocks must be released before */
    /* Bytes that `reserve` will hold for these limits, beside what `open` took. A pure function. */
    size_t (*scratch_bytes)(const train_limits *limits, int32_t threads);
    /* Makes room for calls within the limits; again with larger limits to grow. E_MEMORY leaves the device as it was.
     */
    ravel_status (*reserve)(train_device *device, const train_limits *limits, ravel_error *err);
    /* Waits for everything called so far. */
    ravel_status (*sync)(train_device *device, ravel_error *err);

    /* ---- memory ---- */
    /* Aligned to 64 bytes, not zeroed; bytes > 0. */
    ravel_status (*alloc)(train_device *device, size_t bytes, void **block, ravel_error *err);
    void (*release)(train_device *device, void *block, size_t bytes);                    /* NULL does nothing */
    void (*upload)(train_device *device, void *block, const void *host, size_t bytes);   /* host may be changed after */
    void (*download)(train_device *device, void *host, const void *block, size_t bytes); /* waits */
    void (*copy)(train_device *device, void *to, const void *from, size_t bytes);
    void (*zero)(train_device *device, void *block, size_t bytes);

    /* ---- products ---- */
    void (*matmul)(train_device *device, const train_matmul *product);

    /* ---- rows ---- */
    void (*copy_rows)(train_device *device, const train_rows *rows);
    /* table[ids[r]] += x[r]; ids may repeat, and then add up in the order of r. */
    void (*scatter_add)(train_device *device, train_real *table, const train_real *x, const int32_t *ids, int64_t rows,
                        int64_t width);
    /* x[r] += bias; x: [rows, width] rows ld apart. */
    void (*bias)(train_device *device, train_real *x, const train_real *bias, int64_t rows, int64_t width, int64_t ld);
    /* d_bias += sum of the rows of d_x. */
    void (*bias_backward)(train_device *device, train_real *d_bias, const train_real *d_x, int64_t rows, int64_t width,
                          int64_t ld);

    /* ---- rms-norm: y = x / sqrt(mean(x^2) + eps) * weight, all [rows, width] ---- */
    /* With `add`: sum = x + add first, and y is of the sum. Else `sum` is not touched and may be NULL. `sum` may be x.
     */
    void (*rmsnorm)(train_device *device, train_real *y, train_real *sum, const train_real *x, const train_real *add,
                    const train_real *weight, train_real eps, int64_t rows, int64_t width);
    /* d_x += and d_weight +=, given d_y and the x that was normalised. */
    void (*rmsnorm_backward)(train_device *device, train_real *d_x, train_real *d_weight, const train_real *d_y,
                             const train_real *x, const train_real *weight, train_real eps, int64_t rows,
                             int64_t width);

    /* ---- attention ---- */
    void (*rope)(train_device *device, const train_rope *rope);
    void (*rope_backward)(train_device *device, const train_rope *rope);
    /* Causal, within each sample. No n x n matrix: scores live in tiles. Reads q, k, v; o =, lse =. */
    void (*attention)(train_device *device, const train_attention *attention);
    /* Reads q, k, v, o, lse, d_o; d_q =, d_k =, d_v = (rows outside every sample are not touched). */
    void (*attention_backward)(train_device *device, const train_attention *attention);
    void (*attention_cached)(train_device *device, const train_cached *cached);

    /* ---- feed-forward: h = silu(gate) * up; gate_up: [rows, 2 * ffn], gate first ---- */
    void (*swiglu)(train_device *device, train_real *h, const train_real *gate_up, int64_t rows, int64_t ffn);
    /* d_gate_up = (it may be gate_up), and h = once more, which the caller needs for the next product. */
    void (*swiglu_backward)(train_device *device, train_real *d_gate_up, train_real *h, const train_real *d_h,
                            const train_real *gate_up, int64_t rows, int64_t ffn);

    /* ---- the head ---- */
    void (*softmax)(train_device *device, const train_softmax *softmax);
    void (*softmax_backward)(train_device *device, const train_softmax *softmax);
    void (*sample)(train_device *device, const train_sample *sample);

    /* ---- flat arrays ---- */
    void (*adamw)(train_device *device, const train_adamw *adamw);
    /* Sum of squares in double, in a fixed order; waits. */
    void (*sum_squares)(train_device *device, const train_real *x, int64_t n, double *host);
} train_kernels;

#ifndef TRAIN_DOUBLE
/* The set called `name`: "ref", "cpu", or "cpu-avx512", "cpu-avx2", "cpu-base" for one instruction set ("cpu" is the
 * best that this machine has). E_ARGUMENT lists the names, E_UNSUPPORTED says what the machine lacks. */
ravel_status train_kernels_find(const char *name, const train_kernels **kernels, ravel_error *err);
/* The i-th name, or NULL after the last. */
const char *train_kernels_name(int32_t index);
#endif

#endif
