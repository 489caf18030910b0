/* Copies of rows, biases, and kernels over flat arrays. Body: included once for each instruction set. */

/* ---- rows ----------------------------------------------------------------------------------------------- */

static void copy_rows_task(void *user, int64_t run, int32_t thread) {
    const train_rows *x = user;
    int64_t ld_to = x->ld_to ? x->ld_to : x->width, ld_from = x->ld_from ? x->ld_from : x->width;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(x->rows, (run + 1) * RUN); r++) {
        int64_t to = x->to_ids ? x->to_ids[r] : r, from = x->from_ids ? x->from_ids[r] : r;
        memcpy(x->to + to * ld_to, x->from + from * ld_from, (size_t)x->width * sizeof *x->to);
    }
}

static void cpu_copy_rows(train_device *d, const train_rows *x) {
    train_rows copy = *x;
    train__cpu_run(d, runs_of(x->rows), copy_rows_task, &copy);
}

typedef struct scatter_job {
    float *table;
    const float *x;
    const int32_t *ids;
    int64_t rows, width, columns; /* columns of one task */
} scatter_job;

/* Tasks are columns, so that ids may repeat; an element's sum is in the order of rows whatever the cut. */
static void scatter_task(void *user, int64_t task, int32_t thread) {
    const scatter_job *j = user;
    int64_t first = task * j->columns, count = train__min(j->columns, j->width - first);
    (void)thread;
    for (int64_t r = 0; r < j->rows; r++) {
        float *to = j->table + j->ids[r] * j->width + first;
        const float *from = j->x + r * j->width + first;
        for (int64_t i = 0; i < count; i += LANES)
            store_at(to, load_at(to, i, count) + load_at(from, i, count), i, count);
    }
}

static void cpu_scatter_add(train_device *d, float *table, const float *x, const int32_t *ids, int64_t rows,
                            int64_t width) {
    int64_t columns = d->threads > 1 ? train__round_up((width + d->threads - 1) / d->threads, LANES) : width;
    scatter_job j = {.x = x, .ids = ids, .rows = rows, .width = width, .columns = columns};
    j.table = table;
    train__cpu_run(d, (width + columns - 1) / columns, scatter_task, &j);
}

typedef struct bias_job {
    train_device *device;
    float *x;
    const float *bias, *d_x;
    int64_t rows, width, ld;
} bias_job;

static void bias_task(void *user, int64_t run, int32_t thread) {
    const bias_job *j = user;
    (void)thread;
    for (int64_t r = run * RUN; r < train__min(j->rows, (run + 1) * RUN); r++) {
        float *row = j->x + r * j->ld;
        for (int64_t i = 0; i < j->width; i += LANES)
            store_at(row, load_at(row, i, j->width) + load_at(j->bias, i, j->width), i, j->width);
    }
}

static void cpu_bias(train_device *d, float *x, const float *bias, int64_t rows, int64_t width, int64_t ld) {
    bias_job j = {.device = d, .bias = bias, .rows = rows, .width = width, .ld = ld};
    j.x = x;
    train__cpu_run(d, runs_of(rows), bias_task, &j);
}

static void bias_back_task(void *user, int64_t run, int32_t thread) {
    const bias_job *j = user;
    float *partial = j->device->shared + run * j->width;
    (void)thread;
    memset(partial, 0, (size_t)j->width * sizeof *partial);
    for (int64_t r = run * RUN; r < train__min(j->rows, (run + 1) * RUN); r++)
        for (int64_t i = 0; i < j->width; i += LANES)
            store_at(partial, load_at(partial, i, j->width) + load_at(j->d_x + r * j->ld, i, j->width), i, j->width);
}

static void cpu_bias_backward(train_device *d, float *d_bias, const float *d_x, int64_t rows, int64_t width,
                              int64_t ld) {
    bias_job j = {.device = d, .d_x = d_x, .rows = rows, .width = width, .ld = ld};
    train__cpu_run(d, runs_of(rows), bias_back_task, &j);
    add_partials(d_bias, d->shared, runs_of(rows), width);
}

/* ---- flat arrays ---------------------------------------------------------------------------------------- */

enum { SPAN = 1 << 14 }; /* elements of one task */

static void adamw_task(void *user, int64_t span, int32_t thread) {
    const train_adamw *x = user;
    double fix1 = 1 - pow(x->beta1, (double)x->step), fix2 = 1 - pow(x->beta2, (double)x->step);
    vf scale = splat((float)x->grad_scale), b1 = splat((float)x->beta1), b2 = splat((float)x->beta2);
    vf c1 = splat((float)(1 - x->beta1)), c2 = splat((float)(1 - x->beta2)), eps = splat((float)x->eps);
    vf rate = splat((float)(x->lr / fix1)), root = splat((float)(1 / sqrt(fix2)));
    vf keep = splat((float)(1 - x->lr * x->decay));
    int64_t n = train__min(x->n, (span + 1) * SPAN);
    (void)thread;
    for (int64_t i = span * SPAN; i < n; i += LANES) {
        vf g = scale * load_at(x->grad, i, n), m = b1 * load_at(x->m, i, n) + c1 * g;
        vf v = b2 * load_at(x->v, i, n) + c2 * g * g;
        store_at(x->m, m, i, n);
        store_at(x->v, v, i, n);
        store_at(x->w, keep * load_at(x->w, i, n) - rate * m / (root_of(v) * root + eps), i, n);
    }
}

static void cpu_adamw(train_device *d, const train_adamw *x) {
    train_adamw copy = *x;
    train__cpu_run(d, (x->n + SPAN - 1) / SPAN, adamw_task, &copy);
}

enum { PARTS = 1024 };

typedef struct squares_job {
    const float *x;
    double *sums;
    int64_t n, each;
} squares_job;

static void squares_task(void *user, int64_t part, int32_t thread) {
    const squares_job *j = user;
    int64_t first = part * j->each, n = train__min(j->each, j->n - first);
    double sum = 0;
    (void)thread;
    for (int64_t i = 0; i < n; i += 256) sum += squares(j->x + first + i, train__min(256, n - i));
    j->sums[part] = sum;
}

/* At most PARTS partial sums in double, each over runs of 256 in float. */
static void cpu_sum_squares(train_device *d, const float *x, int64_t n, double *host) {
    void *sums = d->shared;
    squares_job j = {.x = x, .sums = sums, .n = n};
    j.each = train__round_up(train__max((n + PARTS - 1) / PARTS, SPAN), 256);
    int64_t parts = (n + j.each - 1) / j.each;
    train__cpu_run(d, parts, squares_task, &j);
    double sum = 0;
    for (int64_t i = 0; i < parts; i++) sum += j.sums[i];
    *host = sum;
}
