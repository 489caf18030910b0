/* Products and attention for generation, where a row's result must not depend on what else is in the batch. Body:
 * included once per instruction set.
 *
 * y = x w' as plain dot products: both rows are contiguous, so nothing is packed and weights are read once, in place.
 * LANES dot products (DM rows of x, DN of w) run side by side, each in a vector of its own; at the end the LANES
 * vectors are turned and added into one vector of LANES results:
 *
 *     | a a a a |            | a b c d |
 *     | b b b b |   fold     each result is the sum over its own vector, in a fixed order
 *     | c c c c |  ------>
 *     | d d d d | */

enum { DM = 4, DN = LANES / DM, W_ROWS = 64 };
_Static_assert(TRAIN_PAGE % LANES == 0, "scores of a page are whole vectors");

/* Lane i of the result is the sum of the lanes of v[i]. */
INLINE vf fold(vf *v) {
    UNROLL
    for (int count = LANES; count > 1; count /= 2) {
        UNROLL
        for (int i = 0; i < count / 2; i++)
            v[i] = LOW_HALVES(v[i], v[i + count / 2]) + HIGH_HALVES(v[i], v[i + count / 2]);
    }
    return v[0];
}

/* sum[i * DN + j] += a[i] . b[j] over the elements from e on: a whole vector of each, or the `rest` at the end. b is in
 * bf16 where `narrow` is set. */
INLINE void dots_step(vf *sum, const float *const *a, const void *const *b, int64_t e, int64_t rest, int narrow) {
    vf x[DM], w[DN];
    UNROLL
    for (int i = 0; i < DM; i++) x[i] = rest ? load_first(a[i] + e, rest) : load(a[i] + e);
    UNROLL
    for (int j = 0; j < DN; j++) w[j] = weight_at(b[j], e, rest ? e + rest : e + LANES, narrow);
    UNROLL
    for (int i = 0; i < DM; i++) {
        UNROLL
        for (int j = 0; j < DN; j++) sum[i * DN + j] += x[i] * w[j];
    }
}

/* Lane i * DN + j is a[i] . b[j] over k elements. */
INLINE vf dots(const float *const *a, const void *const *b, int64_t k, int narrow) {
    vf sum[LANES];
    int64_t e = 0;
    UNROLL
    for (int i = 0; i < LANES; i++) sum[i] = (vf){0};
    for (; e + LANES <= k; e += LANES) dots_step(sum, a, b, e, 0, narrow);
    if (e < k) dots_step(sum, a, b, e, k - e, narrow);
    return fold(sum);
}

/* Rows past the end are the last row again, and their results are dropped. */
INLINE void dots_block(const train_matmul *x, int64_t task, int narrow) {
    const float *rows = x->a;
    float *out = x->c;
    int64_t n0 = task * W_ROWS, n1 = train__min(x->n, n0 + W_ROWS);
    for (int64_t i = 0; i < x->m; i += DM) {
        const float *a[DM];
        const void *b[DN];
        for (int64_t r = 0; r < DM; r++) a[r] = rows + train__min(i + r, x->m - 1) * x->lda;
        for (int64_t c = n0; c < n1; c += DN) {
            for (int64_t r = 0; r < DN; r++) b[r] = train__at(x->b, x->b_type, train__min(c + r, n1 - 1) * x->ldb);
            vf y = dots(a, b, x->k, narrow);
            for (int64_t r = 0; r < train__min(DM, x->m - i); r++)
                for (int64_t e = 0; e < train__min(DN, n1 - c); e++) {
                    float *to = out + (i + r) * x->ldc + c + e;
                    *to = x->add ? *to + y[r * DN + e] : y[r * DN + e];
                }
        }
    }
}

static void dots_task(const void *user, int64_t task, int32_t thread) {
    (void)thread;
    dots_block(user, task, 0);
}

static void narrow_dots_task(const void *user, int64_t task, int32_t thread) {
    (void)thread;
    dots_block(user, task, 1);
}

static void batch_invariant_run(train_device *d, const train_matmul *x) {
    RAVEL_ASSERT(x->trans_b && !x->trans_a && x->lda >= x->k && x->ldb >= x->k && x->ldc >= x->n);
    train__cpu_run(d, (x->n + W_ROWS - 1) / W_ROWS, x->b_type == RAVEL_BF16 ? narrow_dots_task : dots_task, x);
}

/* ---- the cache: a page is [kv_heads][TRAIN_PAGE][head_dim] ------------------------------------------------ */

/* Where a key head of a token's page begins. */
INLINE int64_t page_head(const train_cache *c, int64_t slot, int64_t token, int64_t head) {
    int64_t page = c->table[slot * c->pages_per_slot + token / TRAIN_PAGE];
    RAVEL_ASSERT(page >= 0 && head < c->kv_heads);
    return (page * c->kv_heads + head) * TRAIN_PAGE * c->head_dim;
}

static void cache_write_task(const void *user, int64_t r, int32_t thread) {
    const train_cache_write *x = user;
    const train_cache *c = &x->cache;
    int64_t row = x->from ? x->from[r] : r, dim = c->head_dim, token = x->back ? r : x->positions[r];
    int64_t slot = x->back ? 0 : x->slots[r];
    (void)thread;
    if (slot < 0) return;
    RAVEL_ASSERT(token >= 0 && token < c->pages_per_slot * TRAIN_PAGE);
    for (int64_t h = 0; h < c->kv_heads; h++) {
        int64_t at = page_head(c, slot, token, h) + token % TRAIN_PAGE * dim;
        float *k = (float *)x->k + row * x->ld_k + h * dim, *v = (float *)x->v + row * x->ld_v + h * dim;
        float *k_there = (float *)c->k + at, *v_there = (float *)c->v + at;
        memcpy(x->back ? k : k_there, x->back ? k_there : k, (size_t)dim * sizeof *k);
        memcpy(x->back ? v : v_there, x->back ? v_there : v, (size_t)dim * sizeof *v);
    }
}

static void cpu_cache_write(train_device *d, const train_cache_write *x) {
    RAVEL_ASSERT(train__cache_write_ok(x));
    train__cpu_run(d, x->rows, cache_write_task, x);
}

typedef struct cached_job {
    train_device *device;
    const train_cached *x;
} cached_job;

/* Scores of one query over `count` keys of a page, LANES keys at a time; room for whole vectors. */
INLINE void cached_scores(float *s, const float *q, const float *k, int64_t count, int64_t dim) {
    for (int64_t j = 0; j < count; j += LANES) {
        vf sum[LANES];
        UNROLL
        for (int i = 0; i < LANES; i++) sum[i] = (vf){0};
        for (int64_t e = 0; e < dim; e += LANES) {
            vf x = load_at(q, e, dim);
            UNROLL
            for (int i = 0; i < LANES; i++) sum[i] += x * load_at(k + train__min(j + i, count - 1) * dim, e, dim);
        }
        store(s + j, fold(sum));
    }
}

/* s = exp(scale s - max) over first .. count-1, 0 before; returns their sum. */
INLINE float cached_weights(float *s, int64_t first, int64_t count, float scale) {
    int64_t end = train__round_up(count, LANES);
    for (int64_t i = 0; i < first; i++) s[i] = -INFINITY;
    for (int64_t i = count; i < end; i++) s[i] = -INFINITY;
    vf top = splat(-INFINITY), total = {0};
    for (int64_t i = 0; i < end; i += LANES) top = larger(top, load(s + i));
    vf shift = splat(scale * largest_of(top)), by = splat(scale);
    for (int64_t i = 0; i < end; i += LANES) store(s + i, exp_of(load(s + i) * by - shift));
    for (int64_t i = 0; i < first; i++) s[i] = 0;
    for (int64_t i = count; i < end; i++) s[i] = 0;
    for (int64_t i = 0; i < end; i += LANES) total += load(s + i);
    return sum_of(total);
}

/* Elements e .. of the output, `wide` vectors of them in registers while the page's values go by. */
INLINE void cached_columns(float *o, const float *s, const float *v, int64_t count, int64_t e, int64_t dim, int wide) {
    vf acc[4];
    UNROLL
    for (int i = 0; i < wide; i++) acc[i] = load_at(o, e + i * LANES, dim);
    for (int64_t j = 0; j < count; j++) {
        vf weight = splat(s[j]);
        UNROLL
        for (int i = 0; i < wide; i++) acc[i] += weight * load_at(v + j * dim, e + i * LANES, dim);
    }
    UNROLL
    for (int i = 0; i < wide; i++) store_at(o, acc[i], e + i * LANES, dim);
}

/* o += the page's values, weighed. */
static void cached_output(float *o, const float *s, const float *v, int64_t count, int64_t dim) {
    int64_t e = 0;
    for (; e + 4 * LANES <= dim; e += 4 * LANES) cached_columns(o, s, v, count, e, dim, 4);
    for (; e < dim; e += LANES) cached_columns(o, s, v, count, e, dim, 1);
}

static void cached_task(const void *user, int64_t task, int32_t thread) {
    const cached_job *j = user;
    const train_cached *x = j->x;
    const train_cache *c = &x->cache;
    int64_t r = task / x->heads, h = task % x->heads, dim = c->head_dim, kv = h / (x->heads / c->kv_heads);
    int64_t slot = x->slots[r], length = x->lengths[r];
    int64_t first = x->window ? train__max(0, length - x->window) : 0, page0 = first / TRAIN_PAGE * TRAIN_PAGE;
    const float *q = (const float *)x->q + r * x->ld_q + h * dim;
    float *o = (float *)x->o + (r * x->heads + h) * dim, *s = train__cpu_private(j->device, thread);
    memset(o, 0, (size_t)dim * sizeof *o);
    if (length == 0) return;
    RAVEL_ASSERT(length > 0 && first < length);
    RAVEL_ASSERT((size_t)train__round_up(length - page0, LANES) <= j->device->private_elements);
    for (int64_t t = page0; t < length; t += TRAIN_PAGE)
        cached_scores(s + t - page0, q, (const float *)c->k + page_head(c, slot, t, kv),
                      train__min(TRAIN_PAGE, length - t), dim);
    vf by = splat(1 / cached_weights(s, first - page0, length - page0, x->scale));
    for (int64_t t = page0; t < length; t += TRAIN_PAGE)
        cached_output(o, s + t - page0, (const float *)c->v + page_head(c, slot, t, kv),
                      train__min(TRAIN_PAGE, length - t), dim);
    for (int64_t e = 0; e < dim; e += LANES) store_at(o, load_at(o, e, dim) * by, e, dim);
}

static void cpu_attention_cached(train_device *d, const train_cached *x) {
    cached_job j = {d, x};
    RAVEL_ASSERT(train__cached_ok(x));
    train__cpu_run(d, (int64_t)x->rows * x->heads, cached_task, &j);
}
