/* Softmax over the vocabulary, its gradient, and drawing tokens. Body: included once per instruction set. */

/* The vector at i, with `fill` behind the row's end. */
INLINE vf load_filled(const float *row, int64_t i, int64_t n, float fill) {
    if (n - i >= LANES) return load(row + i);
    vf v = splat(fill);
    for (int64_t e = 0; e < n - i; e++) v[e] = row[i + e];
    return v;
}

INLINE float row_largest(const float *row, int64_t n) {
    vf top = splat(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) top = larger(top, load_filled(row, i, n, -INFINITY));
    return largest_of(top);
}

static void parts_task(const void *user, int64_t r, int32_t thread) {
    const train_softmax *x = user;
    const float *row = (const float *)x->logits + r * x->columns;
    int64_t n = x->columns, whole = n / LANES * LANES, here = x->targets[r] - x->first;
    float most = x->scale * row_largest(row, n);
    vf by = splat(x->scale), shift = splat(most), total = {0}, mean = {0};
    (void)thread;
    for (int64_t i = 0; i < whole; i += LANES) {
        vf z = load(row + i) * by - shift, e = exp_of(z);
        total += e;
        mean += e * z;
    }
    double sum = sum_of(total), first = sum_of(mean);
    for (int64_t i = whole; i < n; i++) {
        double z = x->scale * row[i] - most, e = exp(z);
        sum += e;
        first += e * z;
    }
    x->parts[r] = most;
    x->parts[x->rows + r] = (float)sum;
    x->parts[2 * x->rows + r] = (float)first;
    x->parts[3 * x->rows + r] = here >= 0 && here < n ? x->scale * row[here] - most : -INFINITY;
}

static void cpu_softmax_parts(train_device *d, const train_softmax *x) {
    RAVEL_ASSERT(train__softmax_ok(x) && x->parts);
    train__cpu_run(d, x->rows, parts_task, x);
}

static void softmax_back_task(const void *user, int64_t r, int32_t thread) {
    const train_softmax *x = user;
    float *row = (float *)x->logits + r * x->columns;
    int64_t n = x->columns, here = x->targets[r] - x->first;
    float bonus = x->entropy_coef ? x->entropy_coef[r] : 0, coef = x->coef[r] * x->scale;
    vf by = splat(x->scale), shift = splat(x->lse[r]), weight = splat(-coef), extra = splat(-bonus * x->scale);
    vf entropy = splat(x->entropy_coef ? x->entropy[r] : 0);
    (void)thread;
    for (int64_t i = 0; i < n; i += LANES) {
        vf log_p = load_at(row, i, n) * by - shift, p = exp_of(log_p), g = weight * p;
        if (x->entropy_coef) g += extra * p * (log_p + entropy);
        store_at(row, g, i, n);
    }
    if (here >= 0 && here < n) row[here] += coef;
}

static void cpu_softmax_backward(train_device *d, const train_softmax *x) {
    RAVEL_ASSERT(train__softmax_ok(x) && x->lse && x->coef);
    RAVEL_ASSERT(!x->entropy_coef || x->entropy);
    train__cpu_run(d, x->rows, softmax_back_task, x);
}

/* ---- sampling ------------------------------------------------------------------------------------------- */

/* Positive floats sort like their bits, so the tokens to keep are found without sorting: the bits are read from the top
 * in digits, and at each digit only the bucket in which the limit is crossed is looked at further. */
enum { DIGITS = 3, BUCKETS = 1 << 11 };
static const int digit_shift[DIGITS] = {21, 10, 0}, digit_size[DIGITS] = {1 << 11, 1 << 11, 1 << 10};

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Keeps the fewest largest weights whose mass (their number, or their sum) is at least `limit`, and sets the others to
 * 0. Of equal weights the first stay. At least one stays. */
static void keep_most(float *w, int64_t n, double limit, int by_count) {
    RAVEL_ASSERT(n > 0 && limit >= 0);
    uint32_t prefix = 0, mask = 0;
    double taken = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        double mass[BUCKETS] = {0};
        int bucket = digit_size[digit] - 1, last = -1;
        for (int64_t i = 0; i < n; i++)
            if ((bits_of(w[i]) & mask) == prefix)
                mass[(bits_of(w[i]) >> digit_shift[digit]) & (uint32_t)(digit_size[digit] - 1)] += by_count ? 1 : w[i];
        for (; bucket >= 0; bucket--) {
            if (mass[bucket] == 0) continue;
            last = bucket;
            if (taken + mass[bucket] >= limit) break;
            taken += mass[bucket];
        }
        if (bucket < 0) { /* rounding: all of it is just short of the limit */
            bucket = last < 0 ? 0 : last;
            taken -= last < 0 ? 0 : mass[last];
        }
        RAVEL_ASSERT(bucket >= 0 && bucket < digit_size[digit]);
        prefix |= (uint32_t)bucket << digit_shift[digit];
        mask |= (uint32_t)(digit_size[digit] - 1) << digit_shift[digit];
    }
    float edge;
    memcpy(&edge, &prefix, sizeof edge);
    double equals = by_count ? limit - taken : edge > 0 ? ceil((limit - taken) / edge) : 1;
    if (taken == 0 && equals < 1) equals = 1;
    for (int64_t i = 0; i < n; i++)
        if (w[i] < edge || (w[i] == edge && equals-- < 1)) w[i] = 0;
}

static double sum_weights(const float *w, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += w[i];
    return sum;
}

/* w = exp(scale x - max); returns their sum. */
static double weigh(float *w, const float *row, int64_t n, float scale, float most) {
    vf by = splat(scale), shift = splat(most);
    for (int64_t i = 0; i < n; i += LANES) store_at(w, exp_of(load_at(row, i, n) * by - shift), i, n);
    return sum_weights(w, n);
}

/* The token at which the sum of weights, in the order of ids, passes `goal`; the last one with any where it never does.
 */
static int64_t walk(const float *w, int64_t n, double goal) {
    double sum = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        if (w[i] == 0) continue;
        last = i;
        sum += w[i];
        if (sum > goal) break;
    }
    return last;
}

static void draw(const train_sample *x, int64_t r, float *w) {
    const float *row = (const float *)x->logits + r * x->vocab;
    const train_choice *c = x->choices + r;
    float scale = 1 / c->temperature, most = scale * row_largest(row, x->vocab);
    double all = weigh(w, row, x->vocab, scale, most), kept = all;
    if (c->top_k > 0 && c->top_k < x->vocab) {
        keep_most(w, x->vocab, c->top_k, 1);
        kept = sum_weights(w, x->vocab);
    }
    if (c->top_p < 1) {
        keep_most(w, x->vocab, c->top_p * kept, 0);
        kept = sum_weights(w, x->vocab);
    }
    if (c->min_p > 0) {
        for (int64_t i = 0; i < x->vocab; i++) w[i] = w[i] < c->min_p ? 0 : w[i]; /* the likeliest has weight 1 */
        kept = sum_weights(w, x->vocab);
    }
    int64_t token = walk(w, x->vocab, c->uniform * kept);
    RAVEL_ASSERT(token >= 0 && token < x->vocab);
    double log_weight = (double)scale * row[token] - most;
    x->tokens[r] = (int32_t)token;
    x->logprob[r] = (float)(log_weight - log(all));
    x->kept_logprob[r] = (float)(log_weight - log(kept));
}

static void take_largest(const train_sample *x, int64_t r, float *w) {
    const float *row = (const float *)x->logits + r * x->vocab;
    float most = row_largest(row, x->vocab);
    int64_t best = 0;
    while (best < x->vocab - 1 && row[best] != most) best++;
    x->tokens[r] = (int32_t)best;
    x->logprob[r] = (float)(-log(weigh(w, row, x->vocab, 1, most)));
    x->kept_logprob[r] = 0;
}

typedef struct sample_job {
    train_device *device;
    const train_sample *x;
} sample_job;

static void sample_task(const void *user, int64_t r, int32_t thread) {
    const sample_job *j = user;
    float *w = train__cpu_private(j->device, thread);
    if (j->x->choices[r].temperature > 0)
        draw(j->x, r, w);
    else
        take_largest(j->x, r, w);
}

static void cpu_sample(train_device *d, const train_sample *x) {
    sample_job j = {d, x};
    RAVEL_ASSERT(train__sample_ok(x));
    RAVEL_ASSERT(d->private_elements >= (size_t)x->vocab);
    train__cpu_run(d, x->rows, sample_task, &j);
    for (int64_t r = 0; r < x->rows && x->last; r++) x->last[x->places[r]] = x->tokens[r];
}
