/* Kernels that go row by row: norms, rotation, gated units. Body: included once per instruction set (see simd.h).
 *
 * Rows are dealt to threads in runs of RUN. A sum over rows (the gradient of a norm's weight) is made in two steps that
 * do not depend on the threads: each run of SUM_RUN adds up its own rows into its own partial row, then partial rows
 * are added in order:
 *
 *     rows 0..31 -> partial 0     rows 32..63 -> partial 1   ...      weight += partial 0 + partial 1 + ... */

enum { RUN = 16, SUM_RUN = 32 };

static int64_t runs_of(int64_t rows) {
    return (rows + RUN - 1) / RUN;
}

static int64_t sum_runs_of(int64_t rows) {
    return (rows + SUM_RUN - 1) / SUM_RUN;
}

/* Loops over large arrays ask for what they read in some steps: the processor's own look-ahead stops at each page. */
enum { AHEAD = 512 };

INLINE void ask_ahead(const float *p) {
    __builtin_prefetch(p + AHEAD);
}

typedef struct partials_job {
    float *to;
    const float *partials;
    int64_t count, width;
} partials_job;

enum { PARTIAL_COLUMNS = 128 }; /* of a task */

static void partials_task(const void *user, int64_t task, int32_t thread) {
    const partials_job *j = user;
    int64_t first = task * PARTIAL_COLUMNS, end = train__min(j->width, first + PARTIAL_COLUMNS);
    (void)thread;
    for (int64_t i = first; i < end; i += LANES) {
        vf sum = {0};
        for (int64_t p = 0; p < j->count; p++) sum += load_at(j->partials + p * j->width, i, j->width);
        store_at(j->to, load_at(j->to, i, j->width) + sum, i, j->width);
    }
}

/* to += the partial rows in the shared scratch */
static void add_partials(train_device *d, void *to, int64_t count, int64_t width) {
    partials_job j = {.partials = d->shared, .count = count, .width = width};
    j.to = to;
    train__cpu_run(d, (width + PARTIAL_COLUMNS - 1) / PARTIAL_COLUMNS, partials_task, &j);
}

/* ---- rms-norm ------------------------------------------------------------------------------------------- */

typedef struct norm_job {
    const train_device *device;
    const train_norm *n;
} norm_job;

/* Sum of x * x, two chains. */
INLINE float squares(const float *x, int64_t n) {
    vf even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf a = load(x + i), b = load(x + i + LANES);
        even += a * a;
        odd += b * b;
    }
    for (; i < n; i += LANES) {
        vf a = load_at(x, i, n);
        even += a * a;
    }
    return sum_of(even + odd);
}

INLINE float inverse_rms(const float *x, int64_t n, float eps) {
    return 1 / sqrtf(squares(x, n) / (float)n + eps);
}

static void norm_task(const void *user, int64_t run, int32_t thread) {
    const norm_job *j = user;
    const train_norm *n = j->n;
    const int narrow = j->device->narrow;
    const float *x = n->x, *add = n->add;
    float *y = n->y, *sum = n->sum;
    int64_t width = n->width, ld_x = n->ld_x ? n->ld_x : width, ld_y = n->ld_y ? n->ld_y : width;
    vf shift = splat(n->shift);
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(n->rows, (run + 1) * RUN); r++) {
        int64_t at = r * width;
        const float *row = x + r * ld_x;
        if (add) {
            for (int64_t i = 0; i < width; i += LANES) {
                ask_ahead(row + i);
                ask_ahead(add + at + i);
                store_at(sum + at, load_at(row, i, width) + load_at(add + at, i, width), i, width);
            }
            row = sum + at;
        }
        if (!y) continue;
        vf inverse = splat(inverse_rms(row, width, n->eps));
        for (int64_t i = 0; i < width; i += LANES)
            store_at(y + r * ld_y, load_at(row, i, width) * inverse * (weight_at(n->weight, i, width, narrow) + shift),
                     i, width);
    }
}

static void cpu_rmsnorm(train_device *d, const train_norm *n) {
    const norm_job j = {d, n};
    RAVEL_ASSERT(train__norm_ok(n));
    train__cpu_run(d, runs_of(n->rows), norm_task, &j);
}

static void norm_back_task(const void *user, int64_t run, int32_t thread) {
    const norm_job *j = user;
    const void *weight = j->n->weight;
    const int narrow = j->device->narrow;
    int64_t n = j->n->width, ld_x = j->n->ld_x ? j->n->ld_x : n, ld_y = j->n->ld_y ? j->n->ld_y : n;
    float *partial = j->device->shared + run * n;
    vf shift = splat(j->n->shift);
    (void)thread;
    memset(partial, 0, (size_t)n * sizeof *partial);
    for (int64_t r = run * SUM_RUN; r < train__min(j->n->rows, (run + 1) * SUM_RUN); r++) {
        const float *x = (const float *)j->n->x + r * ld_x, *d_y = (const float *)j->n->d_y + r * ld_y;
        float *d_x = (float *)j->n->d_x + r * n, inverse = inverse_rms(x, n, j->n->eps);
        vf dot = {0}, by = splat(inverse);
        for (int64_t i = 0; i < n; i += LANES) {
            ask_ahead(d_y + i);
            ask_ahead(x + i);
            ask_ahead(d_x + i);
            dot += load_at(d_y, i, n) * (weight_at(weight, i, n, narrow) + shift) * load_at(x, i, n);
        }
        vf pull = splat(sum_of(dot) * inverse * inverse / (float)n);
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = load_at(x, i, n), g = load_at(d_y, i, n);
            store_at(partial, load_at(partial, i, n) + g * value * by, i, n);
            store_at(d_x, load_at(d_x, i, n) + by * (g * (weight_at(weight, i, n, narrow) + shift) - value * pull), i,
                     n);
        }
    }
}

static void cpu_rmsnorm_backward(train_device *d, const train_norm *n) {
    norm_job j = {d, n};
    RAVEL_ASSERT(train__norm_backward_ok(n));
    RAVEL_ASSERT(sum_runs_of(n->rows) * n->width <= train__cpu_shared_elements(d));
    train__cpu_run(d, sum_runs_of(n->rows), norm_back_task, &j);
    add_partials(d, n->d_weight, sum_runs_of(n->rows), n->width);
}

/* ---- rotation ------------------------------------------------------------------------------------------- */

typedef struct rope_job {
    const train_device *device;
    const train_rope *x;
} rope_job;

/* Elements i .. of a part of a norm's weight. */
INLINE vf part_at(const void *weight, int64_t first, int64_t i, int64_t count, int narrow) {
    return weight_at(train__at(weight, narrow ? RAVEL_BF16 : RAVEL_F32, first), i, count, narrow);
}

/* The pairs of a head that turn, and those after them, which only pass through the norm: elements first .. and first +
 * count .. are `count` pairs, rows of the tables from `table` on. */
typedef struct rope_pairs {
    int64_t first, count, table;
} rope_pairs;

INLINE rope_pairs rope_pairs_of(const train_rope *x, int rest) {
    int64_t turns = (x->rotated ? x->rotated : x->head_dim) / 2;
    return rest ? (rope_pairs){2 * turns, x->head_dim / 2 - turns, turns} : (rope_pairs){0, turns, 0};
}

INLINE void rope_head(float *y, const float *head, const void *weight, const float *cosine, const float *sine,
                      const train_rope *x, int narrow) {
    vf by = splat(weight ? inverse_rms(head, x->head_dim, x->eps) : 1), shift = splat(x->shift);
    for (int rest = 0; rest < 2; rest++) {
        const rope_pairs p = rope_pairs_of(x, rest);
        int64_t n = p.count, low = p.first, high = p.first + n;
        for (int64_t i = 0; i < n; i += LANES) {
            vf a = load_at(head + low, i, n) * by, b = load_at(head + high, i, n) * by;
            vf c = load_at(cosine + p.table, i, n), s = load_at(sine + p.table, i, n);
            if (weight)
                a *= part_at(weight, low, i, n, narrow) + shift, b *= part_at(weight, high, i, n, narrow) + shift;
            store_at(y + low, a * c - b * s, i, n);
            store_at(y + high, b * c + a * s, i, n);
        }
    }
}

static void rope_task(const void *user, int64_t run, int32_t thread) {
    const rope_job *j = user;
    const train_rope *x = j->x;
    const int narrow = j->device->narrow;
    int64_t dim = x->head_dim, half = dim / 2, width = (x->heads + 2 * x->kv_heads) * dim;
    (void)thread;
    for (int64_t t = run * RUN; t < train__min(x->tokens, (run + 1) * RUN); t++) {
        const float *row = (const float *)x->qkv + t * width;
        const float *cosine = x->cosine + x->positions[t] * half, *sine = x->sine + x->positions[t] * half;
        for (int64_t h = 0; h < x->heads; h++)
            rope_head((float *)x->q + (t * x->heads + h) * dim, row + h * dim, x->q_weight, cosine, sine, x, narrow);
        for (int64_t h = 0; h < x->kv_heads; h++)
            rope_head((float *)x->k + (t * x->kv_heads + h) * dim, row + (x->heads + h) * dim, x->k_weight, cosine,
                      sine, x, narrow);
    }
}

static void cpu_rope(train_device *d, const train_rope *x) {
    const rope_job j = {d, x};
    RAVEL_ASSERT(train__rope_ok(x) && (x->tokens == 0 || (x->q && x->k)));
    train__cpu_run(d, runs_of(x->tokens), rope_task, &j);
}

/* d_head first holds the gradient after the norm, then before it. */
INLINE void rope_head_backward(float *d_head, float *d_weight, const float *d_y, const float *head, const void *weight,
                               const float *cosine, const float *sine, const train_rope *x, int narrow) {
    int64_t dim = x->head_dim;
    vf dot = {0}, shift = splat(x->shift);
    for (int rest = 0; rest < 2; rest++) {
        const rope_pairs p = rope_pairs_of(x, rest);
        int64_t n = p.count, low = p.first, high = p.first + n;
        for (int64_t i = 0; i < n; i += LANES) {
            vf a = load_at(d_y + low, i, n), b = load_at(d_y + high, i, n);
            vf c = load_at(cosine + p.table, i, n), s = load_at(sine + p.table, i, n);
            vf down = a * c + b * s, up = b * c - a * s;
            if (weight)
                dot += down * (part_at(weight, low, i, n, narrow) + shift) * load_at(head + low, i, n) +
                       up * (part_at(weight, high, i, n, narrow) + shift) * load_at(head + high, i, n);
            store_at(d_head + low, down, i, n);
            store_at(d_head + high, up, i, n);
        }
    }
    if (!weight) return;
    float inverse = inverse_rms(head, dim, x->eps);
    vf by = splat(inverse), pull = splat(sum_of(dot) * inverse * inverse / (float)dim);
    for (int64_t i = 0; i < dim; i += LANES) {
        vf g = load_at(d_head, i, dim), value = load_at(head, i, dim);
        store_at(d_weight, load_at(d_weight, i, dim) + g * value * by, i, dim);
        store_at(d_head, by * (g * (weight_at(weight, i, dim, narrow) + shift) - value * pull), i, dim);
    }
}

/* A partial row is the gradient of q_weight, then of k_weight. */
static void rope_back_task(const void *user, int64_t run, int32_t thread) {
    const rope_job *j = user;
    const train_rope *x = j->x;
    const int narrow = j->device->narrow;
    int64_t dim = x->head_dim, half = dim / 2, width = (x->heads + 2 * x->kv_heads) * dim;
    float *partial = j->device->shared + run * 2 * dim;
    (void)thread;
    memset(partial, 0, (size_t)(2 * dim) * sizeof *partial);
    for (int64_t t = run * SUM_RUN; t < train__min(x->tokens, (run + 1) * SUM_RUN); t++) {
        const float *row = (const float *)x->qkv + t * width;
        const float *cosine = x->cosine + x->positions[t] * half, *sine = x->sine + x->positions[t] * half;
        float *d_row = (float *)x->d_qkv + t * width;
        for (int64_t h = 0; h < x->heads; h++)
            rope_head_backward(d_row + h * dim, partial, (const float *)x->d_q + (t * x->heads + h) * dim,
                               row + h * dim, x->q_weight, cosine, sine, x, narrow);
        for (int64_t h = 0; h < x->kv_heads; h++) {
            int64_t at = (x->heads + h) * dim;
            rope_head_backward(d_row + at, partial + dim, (const float *)x->d_k + (t * x->kv_heads + h) * dim, row + at,
                               x->k_weight, cosine, sine, x, narrow);
        }
    }
}

static void cpu_rope_backward(train_device *d, const train_rope *x) {
    rope_job j = {d, x};
    int64_t runs = sum_runs_of(x->tokens), dim = x->head_dim;
    RAVEL_ASSERT(train__rope_backward_ok(x));
    RAVEL_ASSERT(runs * 2 * dim <= train__cpu_shared_elements(d));
    train__cpu_run(d, runs, rope_back_task, &j);
    if (!x->q_weight) return;
    for (int64_t r = 1; r < runs; r++) /* all partials into the first, in order */
        for (int64_t i = 0; i < 2 * dim; i++) d->shared[i] += d->shared[r * 2 * dim + i];
    for (int64_t i = 0; i < dim && runs; i++) {
        ((float *)x->d_q_weight)[i] += d->shared[i];
        ((float *)x->d_k_weight)[i] += d->shared[dim + i];
    }
}

/* ---- feed-forward --------------------------------------------------------------------------------------- */

/* The sigmoid of both activations, gate * sigmoid(s): s is the gate, or twice the argument of gelu's tanh. */
static const float gelu_a = 1.5957691216057308f, gelu_b = .0713548162726009f;
INLINE vf gate_sigmoid(vf gate, int gelu) {
    vf s = gelu ? gate * (splat(gelu_a) + splat(gelu_b) * gate * gate) : gate;
    return splat(1) / (splat(1) + exp_of(-s));
}

static void gated_task(const void *user, int64_t run, int32_t thread) {
    const train_gated *j = user;
    int64_t n = j->ffn;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(j->rows, (run + 1) * RUN); r++) {
        const float *gate = (const float *)j->gate_up + r * 2 * n, *up = gate + n;
        float *h = (float *)j->h + r * n;
        for (int64_t i = 0; i < n; i += LANES) {
            ask_ahead(gate + i);
            ask_ahead(up + i);
            vf g = load_at(gate, i, n);
            store_at(h, g * gate_sigmoid(g, j->gelu) * load_at(up, i, n), i, n);
        }
    }
}

static void cpu_gated(train_device *d, const train_gated *x) {
    RAVEL_ASSERT(train__gated_ok(x));
    train__cpu_run(d, runs_of(x->rows), gated_task, x);
}

static void gated_back_task(const void *user, int64_t run, int32_t thread) {
    const train_gated *j = user;
    int64_t n = j->ffn;
    vf one = splat(1);
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(j->rows, (run + 1) * RUN); r++) {
        const float *gate = (const float *)j->gate_up + r * 2 * n, *up = gate + n, *d_h = (const float *)j->d_h + r * n;
        float *d_gate = (float *)j->d_gate_up + r * 2 * n, *d_up = d_gate + n, *h = j->h;
        for (int64_t i = 0; i < n; i += LANES) {
            ask_ahead(gate + i);
            ask_ahead(up + i);
            ask_ahead(d_h + i);
            vf g = load_at(gate, i, n), u = load_at(up, i, n), d = load_at(d_h, i, n);
            vf sigmoid = gate_sigmoid(g, j->gelu), out = g * sigmoid, turn = out * (one - sigmoid);
            if (j->gelu) turn *= splat(gelu_a) + splat(3 * gelu_b) * g * g;
            if (h) store_at(h + r * n, out * u, i, n);
            store_at(d_gate, d * u * (sigmoid + turn), i, n);
            store_at(d_up, d * out, i, n);
        }
    }
}

static void cpu_gated_backward(train_device *d, const train_gated *x) {
    RAVEL_ASSERT(train__gated_ok(x));
    train__cpu_run(d, runs_of(x->rows), gated_back_task, x);
}
