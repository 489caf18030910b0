/* Attention over ragged queries and keys. Body: included once per instruction set (see simd.h, gemm.h).
 *
 * A task is one key head of a sample, or of a part of a long one; it serves the query heads of that group. Queries go
 * in tiles of BR rows, keys in chunks of KB; of the scores only one tile of BR x KB exists at a time. Within a tile, a
 * block of MR rows stops at its own diagonal, so little is computed above it:
 *
 *        keys ->
 *      q [######\        ]      scores   s  = q k'          k' in panels of NR keys, packed once per task
 *      u [#########\     ]      weights  p  = exp(scale s - max), 0 beyond the diagonal
 *      e [############\  ]      output   o += p v           v packed too: rows 2^n apart share cache sets
 *
 * `shift` moves the diagonal to the right (train_attention.shifts); a window cuts off what is far to its left.
 *
 * Forward is the online softmax: each row keeps its running maximum and sum, and the output is rescaled when the
 * maximum grows. Backward has the log-sum-exp and needs no maximum: p = exp(scale s - lse), then
 *
 *     d_p = d_o v'    d_s = p (d_p - d_o.o) scale    d_q += d_s k    d_k += d_s' q    d_v += p' d_o
 *
 * where d_k and d_v add up over the query heads of the group, always in the same order.
 *
 * A sample that is more than half of what a thread should do is cut into parts: of queries, which is all that forward
 * needs and gives d_q, and of keys, which give d_k and d_v. Scores are then made twice in backward. An element is the
 * sum of the same tiles in the same order with and without parts, so bits do not depend on the cut, nor on the number
 * of threads. */

enum { BR = 8 * MR, KB = 256, S_WIDTH = KB + NR + 16, PART = 5 * BR };

/* The private scratch of a task, cut into arrays. */
typedef struct attend_room {
    float *kt, *vt;           /* [panels][dim][NR] */
    float *k, *v, *d_k, *d_v; /* [length][wide] */
    float *s, *d_s;           /* [BR][S_WIDTH] */
    float *q, *d_o, *acc;     /* [BR][wide] */
    float *most, *sum;        /* [BR] */
} attend_room;

/* Which part of a sample a task does, and of what. */
enum { WHOLE, QUERIES, KEYS };
typedef struct attend_part {
    int64_t cost; /* the most expensive ones go first */
    int32_t sample, kind;
    int64_t first, end; /* queries, or keys */
} attend_part;

typedef struct attend_job {
    train_device *device;
    const train_attention *x;
    int64_t dim, wide; /* head_dim, and rounded up to whole vectors */
    attend_part *parts;
    int backward;
} attend_job;

/* A sample's place on both axes. */
typedef struct attend_span {
    int64_t query, queries; /* first row and number of rows */
    int64_t key, keys;
    int64_t shift, window;
    int64_t row0, row1; /* the queries of this task, counted from the sample's first */
    int64_t key0, key1; /* and its keys */
    int kind;
} attend_span;

INLINE float *room_cut(float *base, int64_t *used, int64_t elements) {
    int64_t at = *used;
    *used += train__round_up(elements, 16);
    return base ? base + at : NULL;
}

/* Returns the elements that it takes; with base NULL it only counts. */
static int64_t room_make(attend_room *r, float *base, int64_t length, int64_t dim, int backward) {
    int64_t used = 0, wide = train__round_up(dim, LANES), panels = train__round_up(length, NR) * dim;
    r->kt = room_cut(base, &used, panels);
    r->v = room_cut(base, &used, length * wide);
    r->s = room_cut(base, &used, BR * S_WIDTH);
    r->acc = room_cut(base, &used, BR * wide);
    r->most = room_cut(base, &used, BR);
    r->sum = room_cut(base, &used, BR);
    if (!backward) return used;
    r->vt = room_cut(base, &used, panels);
    r->k = room_cut(base, &used, length * wide);
    r->d_k = room_cut(base, &used, length * wide);
    r->d_v = room_cut(base, &used, length * wide);
    r->d_s = room_cut(base, &used, BR * S_WIDTH);
    r->q = room_cut(base, &used, BR * wide);
    r->d_o = room_cut(base, &used, BR * wide);
    return used;
}

/* [rows][dim], ld apart, to [rows][wide] with 0 behind. */
static void pack_wide(float *to, const float *from, int64_t rows, int64_t ld, int64_t dim, int64_t wide) {
    for (int64_t r = 0; r < rows; r++, to += wide, from += ld) {
        memcpy(to, from, (size_t)dim * sizeof *to);
        if (wide > dim) memset(to + dim, 0, (size_t)(wide - dim) * sizeof *to);
    }
}

/* Rows as columns, in panels of NR. */
static void pack_keys(float *panels, const float *from, int64_t length, int64_t ld, int64_t dim) {
    for (int64_t j = 0; j < length; j += NR, panels += dim * NR)
        pack_columns(panels, from + j * ld, dim, train__min(NR, length - j), NR, 1, ld);
}

/* ---- blocks of a tile ----------------------------------------------------------------------------------- */

/* Keys that the block of rows i .. i+rows-1 reaches in the chunk from c0 on: up to its last row's own place. */
INLINE int64_t reach(const attend_span *a, int64_t i, int64_t rows, int64_t c0) {
    return train__min(KB, train__min(a->keys, i + rows + a->shift) - c0);
}

/* The first key of the chunk that row i sees. */
INLINE int64_t first_seen(const attend_span *a, int64_t i, int64_t c0) {
    return a->window ? train__max(0, i + a->shift - a->window + 1 - c0) : 0;
}

/* The chunks that a tile of rows i0 .. i0+rows-1 goes through: from *c0, below the result. */
INLINE int64_t chunks_of(const attend_span *a, int64_t i0, int64_t rows, int64_t *c0) {
    *c0 = train__max(a->key0, first_seen(a, i0, 0) / KB * KB);
    return train__min(a->key1, i0 + rows + a->shift);
}

/* out [rows][S_WIDTH] = a [rows][dim] times the panels of the chunk, as far as the block reaches. */
INLINE void scores(float *out, const float *a, int64_t lda, const float *panels, int64_t rows, int64_t count,
                   int64_t dim) {
    for (int64_t j = 0; j < count; j += NR) {
        int vectors = (int)((train__min(NR, count - j) + LANES - 1) / LANES);
        tile_rows(rows, vectors, dim, a, lda, 1, panels + j * dim, NR, out + j, S_WIDTH, 0);
    }
}

/* c [rows][wide] += a [rows][count] b [count][wide], with any strides of a. */
INLINE void gather_rows(float *c, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t rows,
                        int64_t count, int64_t wide) {
    for (int64_t j = 0; j < wide; j += NR) {
        int vectors = (int)(train__min(NR, wide - j) / LANES);
        tile_rows(rows, vectors, count, a, a_row, a_col, b + j, wide, c + j, wide, 1);
    }
}

/* Whole vectors of 0 from `first` to at least `end`. Rows have room for them: S_WIDTH. */
INLINE void clear(float *row, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += LANES) store(row + i, (vf){0});
}

/* 0 from n to beyond whatever a product may read of the row. */
INLINE void clear_tail(float *row, int64_t n, int64_t count) {
    clear(row, n, train__round_up(count, LANES) + MR);
}

/* ---- forward -------------------------------------------------------------------------------------------- */

/* One row of scores, of which first .. n-1 are seen, to weights; the running maximum and sum; the output so far
 * rescaled.
 */
INLINE void softmax_row(float *row, int64_t first, int64_t n, int64_t count, float scale, float *most, float *sum,
                        float *acc, int64_t wide) {
    int64_t begin = first / LANES * LANES, end = train__round_up(n, LANES);
    vf top = splat(-INFINITY), by = splat(scale), total = {0};
    for (int64_t i = begin; i < end; i += LANES) top = larger(top, within(load(row + i), first - i, n - i, -INFINITY));
    float here = scale * largest_of(top), now = here > *most ? here : *most, shrink = exp_of(splat(*most - now))[0];
    clear(row, 0, begin);
    for (int64_t i = begin; i < end; i += LANES) {
        vf weight = within(exp_of(load(row + i) * by - splat(now)), first - i, n - i, 0);
        store(row + i, weight);
        total += weight;
    }
    clear_tail(row, end, count);
    *sum = *sum * shrink + sum_of(total);
    *most = now;
    if (shrink == 1) return;
    for (int64_t i = 0; i < wide; i += LANES) store(acc + i, load(acc + i) * splat(shrink));
}

/* Rows i0 .. i0+rows-1 of one head over all the keys they see. */
static void forward_tile(const attend_job *j, const attend_room *r, const attend_span *a, const float *q, int64_t i0,
                         int64_t rows) {
    const train_attention *x = j->x;
    int64_t c0, end = chunks_of(a, i0, rows, &c0);
    memset(r->acc, 0, (size_t)(rows * j->wide) * sizeof *r->acc);
    for (int64_t i = 0; i < rows; i++) r->most[i] = -INFINITY, r->sum[i] = 0;
    for (; c0 < end; c0 += KB)
        for (int64_t b = 0; b < rows; b += MR) {
            int64_t height = train__min(MR, rows - b), count = reach(a, i0 + b, height, c0);
            float *s = r->s + b * S_WIDTH, *acc = r->acc + b * j->wide;
            if (count <= 0) continue;
            scores(s, q + b * x->ld_q, x->ld_q, r->kt + c0 * j->dim, height, count, j->dim);
            for (int64_t i = 0; i < height; i++) {
                int64_t n = reach(a, i0 + b + i, 1, c0), first = first_seen(a, i0 + b + i, c0);
                if (n <= first)
                    clear_tail(s + i * S_WIDTH, 0, count);
                else
                    softmax_row(s + i * S_WIDTH, first, n, count, x->scale, r->most + b + i, r->sum + b + i,
                                acc + i * j->wide, j->wide);
            }
            gather_rows(acc, s, S_WIDTH, 1, r->v + c0 * j->wide, height, count, j->wide);
        }
}

static void forward_head(const attend_job *j, const attend_room *r, const attend_span *a, int64_t head) {
    const train_attention *x = j->x;
    const float *q = x->q;
    float *o = x->o;
    for (int64_t i0 = a->row0; i0 < a->row1; i0 += BR) {
        int64_t rows = train__min(BR, a->row1 - i0);
        forward_tile(j, r, a, q + (a->query + i0) * x->ld_q + head * j->dim, i0, rows);
        for (int64_t i = 0; i < rows; i++) {
            int64_t at = (a->query + i0 + i) * x->heads + head;
            vf by = splat(r->sum[i] > 0 ? 1 / r->sum[i] : 0); /* 0: no key was seen, and lse is -infinity */
            for (int64_t e = 0; e < j->dim; e += LANES)
                store_at(o + at * j->dim, load(r->acc + i * j->wide + e) * by, e, j->dim);
            x->lse[at] = r->most[i] + logf(r->sum[i]);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* Scores and d_p of a row to p and d_s, both 0 outside first .. n-1. */
INLINE void softmax_row_backward(float *p, float *d_s, int64_t first, int64_t n, int64_t count, float scale, float lse,
                                 float delta) {
    int64_t begin = first / LANES * LANES, end = train__round_up(n, LANES);
    vf by = splat(scale), shift = splat(lse), off = splat(delta);
    clear(p, 0, begin);
    clear(d_s, 0, begin);
    for (int64_t i = begin; i < end; i += LANES) {
        vf weight = exp_of(load(p + i) * by - shift), d_score = weight * (load(d_s + i) - off) * by;
        store(p + i, within(weight, first - i, n - i, 0));
        store(d_s + i, within(d_score, first - i, n - i, 0));
    }
    clear_tail(p, end, count);
    clear_tail(d_s, end, count);
}

/* d_k and d_v of the chunk's keys, from the rows of the tile at or below each block's diagonal. */
static void backward_keys(const attend_job *j, const attend_room *r, int64_t i0, int64_t rows, int64_t c0,
                          int64_t keys) {
    for (int64_t b = 0; b < keys; b += MR) { /* i0: the diagonal's place */
        int64_t height = train__min(MR, keys - b), first = train__max(0, c0 + b - i0), at = (c0 + b) * j->wide;
        if (first >= rows) break;
        const float *p = r->s + first * S_WIDTH + b, *d_s = r->d_s + first * S_WIDTH + b;
        gather_rows(r->d_v + at, p, 1, S_WIDTH, r->d_o + first * j->wide, height, rows - first, j->wide);
        gather_rows(r->d_k + at, d_s, 1, S_WIDTH, r->q + first * j->wide, height, rows - first, j->wide);
    }
}

static void backward_tile(const attend_job *j, const attend_room *r, const attend_span *a, int64_t i0, int64_t rows) {
    int64_t c0, end = chunks_of(a, i0, rows, &c0);
    memset(r->acc, 0, (size_t)(rows * j->wide) * sizeof *r->acc);
    for (; c0 < end; c0 += KB) {
        for (int64_t b = 0; b < rows; b += MR) {
            int64_t height = train__min(MR, rows - b), count = reach(a, i0 + b, height, c0);
            float *s = r->s + b * S_WIDTH, *d_s = r->d_s + b * S_WIDTH;
            if (count <= 0) continue;
            scores(s, r->q + b * j->wide, j->wide, r->kt + c0 * j->dim, height, count, j->dim);
            scores(d_s, r->d_o + b * j->wide, j->wide, r->vt + c0 * j->dim, height, count, j->dim);
            for (int64_t i = 0; i < height; i++) {
                int64_t n = train__max(0, reach(a, i0 + b + i, 1, c0)), first = first_seen(a, i0 + b + i, c0);
                if (first >= n) first = n = 0;
                softmax_row_backward(s + i * S_WIDTH, d_s + i * S_WIDTH, first, n, count, j->x->scale, r->most[b + i],
                                     r->sum[b + i]);
            }
            if (a->kind != KEYS)
                gather_rows(r->acc + b * j->wide, d_s, S_WIDTH, 1, r->k + c0 * j->wide, height, count, j->wide);
        }
        if (a->kind != QUERIES) backward_keys(j, r, i0 + a->shift, rows, c0, train__min(KB, end - c0));
    }
}

/* to [rows], ld apart, = or += from [rows], wide apart. */
static void put_rows(float *to, int64_t ld, const float *from, const attend_job *j, int64_t rows, int add) {
    for (int64_t i = 0; i < rows; i++, to += ld, from += j->wide)
        for (int64_t e = 0; e < j->dim; e += LANES)
            store_at(to, add ? load_at(to, e, j->dim) + load(from + e) : load(from + e), e, j->dim);
}

/* `most` holds the rows' log-sum-exps, `sum` their d_o . o */
static void backward_head(const attend_job *j, const attend_room *r, const attend_span *a, int64_t head) {
    const train_attention *x = j->x;
    int64_t ld = x->heads * j->dim, at = head * j->dim;
    for (int64_t i0 = a->row0; i0 < a->row1; i0 += BR) {
        int64_t rows = train__min(BR, a->row1 - i0), t = a->query + i0;
        if (a->kind == KEYS && i0 + rows + a->shift <= a->key0) continue; /* sees none of them */
        const float *o = (const float *)x->o + t * ld + at;
        pack_wide(r->q, (const float *)x->q + t * x->ld_q + at, rows, x->ld_q, j->dim, j->wide);
        pack_wide(r->d_o, (const float *)x->d_o + t * ld + at, rows, ld, j->dim, j->wide);
        for (int64_t i = 0; i < rows; i++) {
            vf dot = {0};
            for (int64_t e = 0; e < j->dim; e += LANES)
                dot += load(r->d_o + i * j->wide + e) * load_at(o + i * ld, e, j->dim);
            r->sum[i] = sum_of(dot);
            r->most[i] = x->lse[(t + i) * x->heads + head];
        }
        backward_tile(j, r, a, i0, rows);
        if (a->kind != KEYS) put_rows((float *)x->d_q + t * x->ld_dq + at, x->ld_dq, r->acc, j, rows, x->add);
    }
}

/* ---- tasks ---------------------------------------------------------------------------------------------- */

static attend_span span_of(const train_attention *x, const attend_part *part) {
    int64_t s = part->sample;
    attend_span a = {.query = x->queries.starts[s],
                     .queries = x->queries.lengths[s],
                     .key = x->keys.starts[s],
                     .keys = x->keys.lengths[s],
                     .shift = x->shifts ? x->shifts[s] : 0,
                     .window = x->window,
                     .row1 = x->queries.lengths[s],
                     .key1 = x->keys.lengths[s],
                     .kind = part->kind};
    if (part->kind == QUERIES) a.row0 = part->first, a.row1 = part->end;
    if (part->kind == QUERIES) a.key1 = train__min(a.keys, train__max(0, part->end + a.shift));
    if (part->kind == KEYS) a.key0 = part->first, a.key1 = part->end;
    RAVEL_ASSERT(a.row0 >= 0 && a.row0 <= a.row1 && a.row1 <= a.queries);
    RAVEL_ASSERT(a.key0 >= 0 && a.key0 <= a.key1 && a.key1 <= a.keys);
    return a;
}

static void forward_task(const attend_job *j, const attend_room *r, const attend_span *a, int64_t kv) {
    const train_attention *x = j->x;
    int64_t group = x->heads / x->kv_heads, at = kv * j->dim;
    pack_keys(r->kt, (const float *)x->k + a->key * x->ld_k + at, a->key1, x->ld_k, j->dim);
    pack_wide(r->v, (const float *)x->v + a->key * x->ld_v + at, a->key1, x->ld_v, j->dim, j->wide);
    for (int64_t h = 0; h < group; h++) forward_head(j, r, a, kv * group + h);
}

/* Keys are packed from the first on, and those that are not of the task are not looked at. */
static void backward_task(const attend_job *j, const attend_room *r, const attend_span *a, int64_t kv) {
    const train_attention *x = j->x;
    int64_t group = x->heads / x->kv_heads, at = kv * j->dim, first = a->key0, count = a->key1 - a->key0;
    const float *k = (const float *)x->k + (a->key + first) * x->ld_k + at;
    const float *v = (const float *)x->v + (a->key + first) * x->ld_v + at;
    pack_keys(r->kt + first * j->dim, k, count, x->ld_k, j->dim);
    pack_keys(r->vt + first * j->dim, v, count, x->ld_v, j->dim);
    pack_wide(r->k + first * j->wide, k, count, x->ld_k, j->dim, j->wide);
    memset(r->d_k + first * j->wide, 0, (size_t)(count * j->wide) * sizeof(float));
    memset(r->d_v + first * j->wide, 0, (size_t)(count * j->wide) * sizeof(float));
    for (int64_t h = 0; h < group; h++) backward_head(j, r, a, kv * group + h);
    if (a->kind == QUERIES) return;
    int64_t key = a->key + first;
    put_rows((float *)x->d_k + key * x->ld_dk + at, x->ld_dk, r->d_k + first * j->wide, j, count, 0);
    put_rows((float *)x->d_v + key * x->ld_dv + at, x->ld_dv, r->d_v + first * j->wide, j, count, 0);
}

static void attend_task(const void *user, int64_t task, int32_t thread) {
    const attend_job *j = user;
    attend_span a = span_of(j->x, &j->parts[task / j->x->kv_heads]);
    attend_room r;
    int64_t used = room_make(&r, train__cpu_private(j->device, thread), a.keys, j->dim, j->backward);
    RAVEL_ASSERT((size_t)used <= j->device->private_elements);
    (void)used;
    (j->backward ? backward_task : forward_task)(j, &r, &a, task % j->x->kv_heads);
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

static int by_cost(const void *a, const void *b) {
    const attend_part *x = a, *y = b;
    if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
    return x->sample != y->sample ? (x->sample > y->sample) - (x->sample < y->sample)
                                  : (x->first > y->first) - (x->first < y->first);
}

static int64_t cost_of(const train_attention *x, int64_t sample) {
    return x->queries.lengths[sample] * (x->keys.lengths[sample] + 1);
}

/* A sample as parts of `each` queries or keys; the cost of one is what a causal mask leaves of it. */
static int64_t cut_sample(attend_part *parts, int32_t sample, int kind, int64_t length, int64_t each) {
    int64_t n = 0;
    for (int64_t first = 0; first < length; first += each) {
        int64_t end = train__min(length, first + each), seen = kind == QUERIES ? end : 2 * (length - first);
        RAVEL_ASSERT(first < end);
        parts[n++] = (attend_part){(end - first) * seen, sample, kind, first, end};
    }
    return n;
}

/* Elements of the list: a sample is one part, or at most one per token of either axis. */
static int64_t parts_elements(const train_limits *l) {
    return (2 * l->tokens + l->longest) * (int64_t)(sizeof(attend_part) / sizeof(float));
}

/* The list is in the shared scratch. */
static int64_t make_parts(attend_job *j) {
    const train_attention *x = j->x;
    attend_part *parts = (attend_part *)(void *)j->device->shared;
    int64_t total = 0, n = 0, threads = j->device->threads;
    for (int64_t s = 0; s < x->samples; s++) total += cost_of(x, s) * x->kv_heads;
    for (int32_t s = 0; s < x->samples; s++) {
        int64_t cost = cost_of(x, s), queries = x->queries.lengths[s], keys = x->keys.lengths[s];
        if (threads == 1 || queries <= PART || cost * 2 * threads <= total) {
            parts[n++] = (attend_part){.cost = cost, .sample = s, .kind = WHOLE};
            continue;
        }
        n += cut_sample(parts + n, s, QUERIES, queries, PART);
        if (j->backward) n += cut_sample(parts + n, s, KEYS, keys, KB);
    }
    RAVEL_ASSERT(n >= x->samples);
    RAVEL_ASSERT(n * (int64_t)(sizeof *parts / sizeof(float)) <= train__cpu_shared_elements(j->device));
    if (threads > 1) qsort(parts, (size_t)n, sizeof *parts, by_cost);
    j->parts = parts;
    return n;
}

static void attend_run(train_device *d, const train_attention *x, int backward) {
    attend_job j = {.device = d, .x = x, .dim = x->head_dim, .wide = train__round_up(x->head_dim, LANES)};
    j.backward = backward;
    RAVEL_ASSERT(backward ? train__attention_backward_ok(x) : train__attention_ok(x));
    RAVEL_ASSERT(j.wide >= j.dim && j.wide % LANES == 0);
    train__cpu_run(d, make_parts(&j) * x->kv_heads, attend_task, &j);
}

static void cpu_attention(train_device *d, const train_attention *x) {
    attend_run(d, x, 0);
}

static void cpu_attention_backward(train_device *d, const train_attention *x) {
    attend_run(d, x, 1);
}
