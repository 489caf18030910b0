/* Copies of rows, embeddings, biases, and kernels over flat arrays. Body: included once per instruction set. */

/* ---- rows ----------------------------------------------------------------------------------------------- */

static void sum_row(const train_rows *x, int64_t r, int64_t ld_to, int64_t ld_from) {
    float *to = (float *)x->to + (x->to_ids ? x->to_ids[r] : r) * ld_to;
    memset(to, 0, (size_t)x->width * sizeof(float));
    for (int64_t k = x->first[r]; k < x->first[r + 1]; k++) {
        const float *from = (const float *)x->from + x->from_ids[k] * ld_from;
        for (int64_t i = 0; i < x->width; i++) to[i] += from[i];
    }
}

static void copy_rows_task(const void *user, int64_t run, int32_t thread) {
    const train_rows *x = user;
    int64_t ld_to = x->ld_to ? x->ld_to : x->width, ld_from = x->ld_from ? x->ld_from : x->width;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(x->rows, (run + 1) * RUN); r++) {
        if (x->first) {
            sum_row(x, r, ld_to, ld_from);
            continue;
        }
        int64_t to = x->to_ids ? x->to_ids[r] : r, from = x->from_ids ? x->from_ids[r] : r;
        memcpy((float *)x->to + to * ld_to, (const float *)x->from + from * ld_from, (size_t)x->width * sizeof(float));
    }
}

static void cpu_copy_rows(train_device *d, const train_rows *x) {
    RAVEL_ASSERT(train__rows_ok(x));
    train__cpu_run(d, runs_of(x->rows), copy_rows_task, x);
}

typedef struct table_job {
    const train_device *device;
    const train_embedding *x;
} table_job;

static void embed_task(const void *user, int64_t run, int32_t thread) {
    const table_job *j = user;
    const train_embedding *x = j->x;
    size_t bytes = (size_t)x->width * sizeof(float);
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(x->rows, (run + 1) * RUN); r++) {
        int64_t id = x->ids[x->picks ? x->picks[r] : r] - x->first;
        float *y = (float *)x->y + r * x->width;
        if (id < 0 || id >= x->count)
            memset(y, 0, bytes);
        else if (!j->device->narrow)
            memcpy(y, (const float *)x->table + id * x->width, bytes);
        else
            for (int64_t i = 0; i < x->width; i += LANES)
                store_at(y, widen_at((const uint16_t *)x->table + id * x->width, i, x->width), i, x->width);
    }
}

static void cpu_embed(train_device *d, const train_embedding *x) {
    const table_job j = {d, x};
    RAVEL_ASSERT(train__embedding_ok(x));
    train__cpu_run(d, runs_of(x->rows), embed_task, &j);
}

typedef struct embed_job {
    const train_embedding *x;
    int64_t columns; /* of one task */
} embed_job;

/* Tasks are columns, so that ids may repeat; an element's sum is in the order of rows whatever the cut. */
static void embed_back_task(const void *user, int64_t task, int32_t thread) {
    const embed_job *j = user;
    const train_embedding *x = j->x;
    int64_t first = task * j->columns, count = train__min(j->columns, x->width - first);
    (void)thread;
    for (int64_t n = 0; n < x->ordered; n++) {
        int64_t r = x->order[n], id = x->ids[r] - x->first;
        if (id < 0 || id >= x->count) continue;
        float *to = (float *)x->d_table + id * x->width + first;
        const float *from = (const float *)x->d_y + r * x->width + first;
        for (int64_t i = 0; i < count; i += LANES)
            store_at(to, load_at(to, i, count) + load_at(from, i, count), i, count);
    }
}

static void cpu_embed_backward(train_device *d, const train_embedding *x) {
    int64_t each = d->threads > 1 ? train__round_up((x->width + d->threads - 1) / d->threads, LANES) : x->width;
    RAVEL_ASSERT(train__embedding_backward_ok(x));
    RAVEL_ASSERT(each > 0);
    embed_job j = {x, each};
    train__cpu_run(d, (x->width + each - 1) / each, embed_back_task, &j);
}

typedef struct bias_job {
    train_device *device;
    float *x;
    const void *bias;
    const float *d_x;
    int64_t rows, width, ld;
} bias_job;

static void bias_task(const void *user, int64_t run, int32_t thread) {
    const bias_job *j = user;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(j->rows, (run + 1) * RUN); r++) {
        float *row = j->x + r * j->ld;
        for (int64_t i = 0; i < j->width; i += LANES)
            store_at(row, load_at(row, i, j->width) + weight_at(j->bias, i, j->width, j->device->narrow), i, j->width);
    }
}

static void cpu_bias(train_device *d, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld) {
    bias_job j = {.device = d, .bias = bias, .rows = rows, .width = width, .ld = ld};
    RAVEL_ASSERT(train__bias_ok(x, bias, rows, width, ld));
    j.x = x;
    train__cpu_run(d, runs_of(rows), bias_task, &j);
}

static void bias_back_task(const void *user, int64_t run, int32_t thread) {
    const bias_job *j = user;
    float *partial = j->device->shared + run * j->width;
    (void)thread;
    memset(partial, 0, (size_t)j->width * sizeof *partial);
    for (int64_t r = run * SUM_RUN; r < train__min(j->rows, (run + 1) * SUM_RUN); r++)
        for (int64_t i = 0; i < j->width; i += LANES)
            store_at(partial, load_at(partial, i, j->width) + load_at(j->d_x + r * j->ld, i, j->width), i, j->width);
}

static void cpu_bias_backward(train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width, int64_t ld) {
    bias_job j = {.device = d, .d_x = d_x, .rows = rows, .width = width, .ld = ld};
    RAVEL_ASSERT(sum_runs_of(rows) * width <= train__cpu_shared_elements(d));
    RAVEL_ASSERT(train__bias_ok(d_x, d_bias, rows, width, ld));
    train__cpu_run(d, sum_runs_of(rows), bias_back_task, &j);
    add_partials(d, d_bias, sum_runs_of(rows), width);
}

/* ---- flat arrays ---------------------------------------------------------------------------------------- */

enum { SPAN = 1 << 14 }; /* elements of one task */

/* Elements 0 .. n - 1 of these arrays. */
static void adamw_some(const train_adamw *x, float *w, const float *grad, float *first, float *second, int64_t n) {
    double fix1 = 1 - pow(x->beta1, (double)x->step), fix2 = 1 - pow(x->beta2, (double)x->step);
    vf scale = splat((float)x->clip->scale), b1 = splat((float)x->beta1), b2 = splat((float)x->beta2);
    vf c1 = splat((float)(1 - x->beta1)), c2 = splat((float)(1 - x->beta2)), eps = splat((float)x->eps);
    vf rate = splat((float)(x->lr / fix1)), root = splat((float)(1 / sqrt(fix2)));
    vf keep = splat((float)(1 - x->lr * x->decay));
    for (int64_t i = 0; i < n; i += LANES) {
        vf g = scale * load_at(grad, i, n), m = b1 * load_at(first, i, n) + c1 * g;
        vf v = b2 * load_at(second, i, n) + c2 * g * g;
        store_at(first, m, i, n);
        store_at(second, v, i, n);
        store_at(w, keep * load_at(w, i, n) - rate * m / (root_of(v) * root + eps), i, n);
    }
}

/* Elements i .. i + n - 1 of the weights, by n elements of the moments. */
static void adamw_run(const train_adamw *x, int64_t i, float *first, float *second, int64_t n) {
    float *master = (float *)x->master + i;
    adamw_some(x, master, (const float *)x->grad + i, first, second, n);
    if (x->weight != x->master) /* just written: the master is in a near cache */
        (void)ravel_dtype_convert(RAVEL_F32, master, RAVEL_BF16, (uint16_t *)x->weight + i, n, NULL);
}

/* Moments in bf16 are widened and rounded again, a piece at a time. */
static void adamw_bf16(const train_adamw *x, int64_t begin, int64_t end) {
    float first[256], second[256];
    for (int64_t i = begin, n; i < end; i += n) {
        uint16_t *m = (uint16_t *)x->m + i, *v = (uint16_t *)x->v + i;
        n = train__min(256, end - i);
        (void)ravel_dtype_convert(RAVEL_BF16, m, RAVEL_F32, first, n, NULL);
        (void)ravel_dtype_convert(RAVEL_BF16, v, RAVEL_F32, second, n, NULL);
        adamw_run(x, i, first, second, n);
        (void)ravel_dtype_convert(RAVEL_F32, first, RAVEL_BF16, m, n, NULL);
        (void)ravel_dtype_convert(RAVEL_F32, second, RAVEL_BF16, v, n, NULL);
    }
}

static void adamw_task(const void *user, int64_t span, int32_t thread) {
    const train_adamw *x = user;
    int64_t begin = span * SPAN, end = train__min(x->n, begin + SPAN);
    (void)thread;
    if (x->moment_type == RAVEL_BF16)
        adamw_bf16(x, begin, end);
    else
        adamw_run(x, begin, (float *)x->m + begin, (float *)x->v + begin, end - begin);
}

static void cpu_adamw(train_device *d, const train_adamw *x) {
    RAVEL_ASSERT(train__adamw_ok(x) && (d->narrow ? x->weight != x->master : x->weight == x->master));
    RAVEL_ASSERT(x->moment_type == RAVEL_F32 || x->moment_type == RAVEL_BF16);
    if (!(x->clip->finite > 0)) return;
    train__cpu_run(d, (x->n + SPAN - 1) / SPAN, adamw_task, x);
}

typedef struct add_job {
    float *to;
    const float *from;
    int64_t n;
} add_job;

static void add_task(const void *user, int64_t span, int32_t thread) {
    const add_job *j = user;
    int64_t n = train__min(j->n, (span + 1) * SPAN);
    (void)thread;
    for (int64_t i = span * SPAN; i < n; i += LANES)
        store_at(j->to, load_at(j->to, i, n) + load_at(j->from, i, n), i, n);
}

static void cpu_add(train_device *d, void *to, const void *from, int64_t n) {
    add_job j = {.to = to, .from = from, .n = n};
    RAVEL_ASSERT(n == 0 || (to && from && to != from));
    train__cpu_run(d, (n + SPAN - 1) / SPAN, add_task, &j);
}

typedef struct scale_job {
    float *y;
    const float *x;
    float by;
    int64_t n;
} scale_job;

static void scale_task(const void *user, int64_t span, int32_t thread) {
    const scale_job *j = user;
    int64_t n = train__min(j->n, (span + 1) * SPAN);
    (void)thread;
    for (int64_t i = span * SPAN; i < n; i += LANES) store_at(j->y, splat(j->by) * load_at(j->x, i, n), i, n);
}

static void cpu_scale(train_device *d, void *y, const void *x, double by, int64_t n) {
    scale_job j = {.y = y, .x = x, .by = (float)by, .n = n};
    RAVEL_ASSERT(n == 0 || (y && x));
    train__cpu_run(d, (n + SPAN - 1) / SPAN, scale_task, &j);
}

typedef struct squares_job {
    const float *x;
    double *sums;
    int64_t n, span;
} squares_job;

/* A span in double, over runs of 256 in float. */
static void squares_task(const void *user, int64_t index, int32_t thread) {
    const squares_job *j = user;
    int64_t first = index * j->span, n = train__min(j->span, j->n - first);
    double sum = 0;
    (void)thread;
    for (int64_t i = 0; i < n; i += 256) sum += squares(j->x + first + i, train__min(256, n - i));
    j->sums[index] = sum;
}

static void cpu_sum_squares(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    squares_job j = {.x = grads, .sums = sums, .n = n, .span = span};
    RAVEL_ASSERT(n >= 0 && span > 0 && (n == 0 || (grads && sums)));
    train__cpu_run(d, (n + span - 1) / span, squares_task, &j);
}
