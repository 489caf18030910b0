/* Loss weights from integer counts.
 *
 * Sums of the caller's sample weights are integers too: a weight is a number of 2^-40ths (at most 2^52 of them, so it
 * is exact in a double), times up to 2^31 loss tokens; 83 bits, added up in three words of 32:
 *
 *     weight * tokens = [ word 2 | word 1 | word 0 ] * 2^-40         each word sums on its own in 64 bits
 *
 * Words are added without carry, on any rank, in any order, and read together once. Without weights every weight is 1,
 * and the sums are just the counts. */
#include "batch/weights.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/options.h"
#include "batch/weights_device.h"
#include "device/handle.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static_assert(sizeof(ravel_counts) == RAVEL_COUNTS_WORDS * sizeof(int64_t), "counts are summed as an array of words");

__extension__ typedef unsigned __int128 wide;

enum { FRACTION_BITS = 40 };
static const double weight_most = 4096;

#define ROW(...) RAVEL__ROW(ravel_weights_options, __VA_ARGS__)

ravel_option_table ravel_weights_option_table(void) {
    static const ravel_option table[] = {
        ROW("loss", ENUM, mode, "token-mean", 0, 0, RAVEL_LOSS_CHOICES, "how token losses make the update's loss"),
        ROW("empty", ENUM, empty, "count", 0, 0, RAVEL_EMPTY_CHOICES, "samples without loss tokens, in seq-mean modes"),
        ROW("divisor", I64, divisor, "0", 0, 0x1p40, NULL, "the constant of seq-mean-token-sum-norm"),
        ROW("dp", I32, dp, "1", 1, 1 << 24, NULL, "data-parallel ranks"),
        ROW("dp-reduce", ENUM, dp_reduce, "sum", 0, 0, RAVEL_FRAMEWORK_CHOICES, "gradients over data-parallel ranks"),
        ROW("micro-steps", I64, micro_steps, "1", 1, 1 << 30, NULL, "micro-steps of the update"),
        ROW("cp", I32, cp, "1", 1, 1 << 20, NULL, "context-parallel ranks"),
        ROW("cp-reduce", ENUM, cp_reduce, "sum", 0, 0, RAVEL_FRAMEWORK_CHOICES,
            "gradients over context-parallel ranks"),
        ROW("step-reduce", ENUM, step_reduce, "sum", 0, 0, RAVEL_FRAMEWORK_CHOICES, "losses over micro-steps"),
        {NULL, 0, 0, NULL, 0, 0, NULL, NULL}};
    return table;
}

void ravel_weights_options_default(ravel_weights_options *options) {
    ravel__options_preset(ravel_weights_option_table(), options, sizeof *options);
}

/* The caller's options, checked, with defaults where an older caller has no field. */
static ravel_status read_options(const ravel_weights_options *options, ravel_weights_options *o, ravel_error *err) {
    ravel_weights_options_default(o);
    ravel_status status = ravel__take_options(ravel_weights_option_table(), "weights", options, o, sizeof *o, err);
    if (status) return status;
    if (o->mode == RAVEL_SEQ_MEAN_TOKEN_SUM_NORM && o->divisor < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "seq-mean-token-sum-norm needs a divisor of at least 1");
    return RAVEL_OK;
}

/* ---- counts --------------------------------------------------------------------------------------------- */

static void add_words(int64_t words[3], wide value) {
    RAVEL_ASSERT(value >> 96 == 0);
    for (int i = 0; i < 3; i++) words[i] += (int64_t)(uint32_t)(value >> (32 * i));
}

/* The sum that the words make, as the nearest double. */
static double read_words(const int64_t words[3]) {
    wide sum = 0;
    for (int i = 2; i >= 0; i--) sum = (sum << 32) + (wide)(uint64_t)words[i];
    return ldexp((double)sum, -FRACTION_BITS);
}

/* The caller's weight of a sample in 2^-40ths. */
static ravel_status fixed_weight(const double *sample_weights, int64_t sample, int64_t *fixed, ravel_error *err) {
    double w = sample_weights ? sample_weights[sample] : 1;
    if (!(w >= 0 && w <= weight_most)) /* also when it is not a number */
        return ravel_error_set(err, RAVEL_E_DATA, "the weight of sample %lld is %g; it must be from 0 to %g",
                               (long long)sample, w, weight_most);
    *fixed = llround(ldexp(w, FRACTION_BITS));
    RAVEL_ASSERT(*fixed >= 0);
    return RAVEL_OK;
}

/* One sample on its way through counting, filling or checking. */
typedef struct weighed {
    ravel__sequence seq;
    int64_t loss_tokens, fixed;
} weighed;

typedef struct weighing {
    const ravel_ragged *ragged;
    const ravel_bin *bin;
    const double *sample_weights;
    ravel__mask mask;
    int64_t count;
    int64_t *counted;           /* [count] loss tokens, where the mask is on a device; else NULL */
    const int64_t *loss_tokens; /* [count] of whole samples, where only parts of them are here; else NULL */
} weighing;

static ravel_status weigh_begin(weighing *w, const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                const double *sample_weights, ravel_error *err) {
    const ravel_bin all = {NULL, 0};
    ravel_status status = ravel__bin_valid(ragged, bin ? bin : &all, err);
    if (!status && !ragged->offsets && mask)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                 "samples without tokens have no loss mask; a sample weight of 0 leaves one out");
    if (!status) status = ravel__mask_init(mask, &w->mask, err);
    w->ragged = ragged;
    w->bin = bin;
    w->sample_weights = sample_weights;
    w->count = bin ? bin->count : ragged->count;
    if (!status && mask && mask->place.kind == RAVEL_DEVICE) {
        status = ravel__place_check(&mask->place, 1u << RAVEL_DEVICE, w->mask.name, err);
        if (!status) status = ravel__count_on_device(ragged, bin, mask, &w->mask, &w->counted, err);
    }
    return status;
}

static void weigh_end(weighing *w) {
    ravel__release(NULL, w->counted, (size_t)w->count * sizeof *w->counted);
}

static ravel_status weigh(const weighing *w, int64_t i, weighed *out, ravel_error *err) {
    RAVEL_ASSERT(i >= 0 && i < w->count);
    ravel_status status = ravel__sequence_get(w->ragged, w->bin ? w->bin->samples[i] : i, &out->seq, err);
    if (!status && !w->ragged->offsets)
        out->loss_tokens = 1; /* the sample itself */
    else if (!status && w->loss_tokens)
        out->loss_tokens = w->loss_tokens[i];
    else if (!status && w->counted)
        out->loss_tokens = w->counted[i];
    else if (!status)
        status = ravel__mask_count(&w->mask, &out->seq, &out->loss_tokens, err);
    if (!status) status = fixed_weight(w->sample_weights, out->seq.index, &out->fixed, err);
    RAVEL_ASSERT(status || (out->loss_tokens >= 0 &&
                            (w->loss_tokens || !w->ragged->offsets || out->loss_tokens < out->seq.length)));
    return status;
}

static void count_one(ravel_counts *c, const weighed *w) {
    int has = w->loss_tokens > 0;
    RAVEL_ASSERT(w->loss_tokens >= 0 && w->loss_tokens <= w->seq.length && w->fixed >= 0);
    c->samples++;
    c->samples_with_loss += has;
    c->tokens += w->seq.length;
    c->loss_tokens += w->loss_tokens;
    add_words(c->weight, (wide)(uint64_t)w->fixed);
    if (has) add_words(c->weight_with_loss, (wide)(uint64_t)w->fixed);
    add_words(c->weighted_tokens, (wide)(uint64_t)w->fixed * (wide)(uint64_t)w->loss_tokens);
}

ravel_status ravel_counts_add(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                              const double *sample_weights, ravel_counts *counts, ravel_error *err) {
    weighing w = {0};
    weighed one = {0};
    ravel_counts sum = *counts;
    ravel_status status = weigh_begin(&w, ragged, bin, mask, sample_weights, err);
    for (int64_t i = 0; !status && i < w.count; i++) {
        status = weigh(&w, i, &one, err);
        if (!status) count_one(&sum, &one);
    }
    weigh_end(&w);
    if (status) return status;
    *counts = sum;
    return RAVEL_OK;
}

ravel_status ravel_counts_sum(ravel_counts *counts, const ravel_sum_hook *hook, ravel_error *err) {
    int64_t words[RAVEL_COUNTS_WORDS];
    memcpy(words, counts, sizeof words);
    ravel_status status = hook && hook->sum ? hook->sum(hook->user, words, RAVEL_COUNTS_WORDS, err) : RAVEL_OK;
    if (status) return status;
    for (int i = 0; i < RAVEL_COUNTS_WORDS; i++)
        if (words[i] < 0) return ravel_error_set(err, RAVEL_E_OVERFLOW, "the counts of all ranks overflow 64 bits");
    memcpy(counts, words, sizeof words);
    return RAVEL_OK;
}

ravel_status ravel_counts_sample(const ravel_ragged *ragged, int64_t sample, const ravel_field *mask,
                                 int64_t *loss_tokens, ravel_error *err) {
    ravel__mask m;
    ravel__sequence seq;
    ravel_status status = ravel__mask_init(mask, &m, err);
    if (!status && mask) status = ravel__host_source(mask, err);
    if (!status) status = ravel__sequence_get(ragged, sample, &seq, err);
    if (!status && !ragged->offsets)
        *loss_tokens = 1;
    else if (!status)
        status = ravel__mask_count(&m, &seq, loss_tokens, err);
    return status;
}

/* ---- weights -------------------------------------------------------------------------------------------- */

/* The divisor that the framework applies later. */
static double factor_of(const ravel_weights_options *o) {
    double factor = 1;
    if (o->dp_reduce == RAVEL_FRAMEWORK_MEAN) factor *= o->dp;
    if (o->cp_reduce == RAVEL_FRAMEWORK_MEAN) factor *= o->cp;
    if (o->step_reduce == RAVEL_FRAMEWORK_MEAN) factor *= (double)o->micro_steps;
    RAVEL_ASSERT(factor >= 1);
    return factor;
}

/* The denominator of a weight, but for the loss tokens of the sample itself. */
static double shared_denominator(const ravel_counts *c, const ravel_weights_options *o) {
    double samples = read_words(o->empty == RAVEL_EMPTY_SKIP ? c->weight_with_loss : c->weight);
    switch ((ravel_loss_mode)o->mode) {
    case RAVEL_TOKEN_MEAN: return read_words(c->weighted_tokens);
    case RAVEL_SEQ_MEAN_TOKEN_SUM_NORM: return samples * (double)o->divisor;
    default: return samples;
    }
}

typedef struct recipe {
    double factor, denominator;
    int per_sample; /* the denominator is also multiplied by the sample's loss tokens */
} recipe;

static ravel_status make_recipe(const ravel_counts *counts, const ravel_weights_options *options, recipe *r,
                                ravel_error *err) {
    ravel_weights_options own;
    ravel_status status = read_options(options, &own, err);
    if (status) return status;
    r->factor = factor_of(&own);
    r->denominator = shared_denominator(counts, &own);
    r->per_sample = own.mode == RAVEL_SEQ_MEAN_TOKEN_MEAN;
    RAVEL_ASSERT(r->factor >= 1 && r->denominator >= 0);
    return RAVEL_OK;
}

static ravel_status weight_of(const recipe *r, int64_t loss_tokens, int64_t fixed, double *weight, ravel_error *err) {
    if (loss_tokens == 0 || fixed == 0) {
        *weight = 0;
        return RAVEL_OK;
    }
    double denominator = r->per_sample ? r->denominator * (double)loss_tokens : r->denominator;
    if (!(denominator > 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the counts have no loss token, and a sample has %lld: they must be those of the whole "
                               "update, over all ranks",
                               (long long)loss_tokens);
    RAVEL_ASSERT(loss_tokens > 0 && fixed > 0 && r->factor >= 1);
    *weight = r->factor * ldexp((double)fixed, -FRACTION_BITS) / denominator;
    RAVEL_ASSERT(*weight >= 0 && isfinite(*weight));
    return RAVEL_OK;
}

static ravel_status check_dtype(int32_t dtype, ravel_error *err) {
    if (dtype == RAVEL_F32 || dtype == RAVEL_F64) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "weights are f32 or f64, not dtype %d", dtype);
}

static ravel_status fill_host(const weighing *w, const recipe *r, int32_t dtype, void *weights, ravel_error *err) {
    RAVEL_ASSERT(dtype == RAVEL_F32 || dtype == RAVEL_F64);
    weighed one = {0};
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; !status && i < w->count; i++) {
        double value = 0;
        status = weigh(w, i, &one, err);
        if (!status) status = weight_of(r, one.loss_tokens, one.fixed, &value, err);
        if (status) break;
        if (!w->ragged->offsets)
            (void)ravel_dtype_store(dtype, (char *)weights + one.seq.index * ravel_dtype_bytes(dtype), value);
        else if (dtype == RAVEL_F32)
            ravel__mask_spread_f32(&w->mask, &one.seq, (float)value, (float *)weights + one.seq.offset);
        else
            ravel__mask_spread_f64(&w->mask, &one.seq, value, (double *)weights + one.seq.offset);
    }
    return status;
}

/* One launch: a run per sample, with its value. */
static ravel_status fill_device(const weighing *w, const recipe *r, int32_t dtype, void *weights,
                                const ravel_place *place, ravel_error *err) {
    RAVEL_ASSERT(dtype == RAVEL_F32 || dtype == RAVEL_F64);
    const ravel__book_room room = {.tracks = 1, .runs = w->count, .values = w->count};
    weighed one = {0};
    ravel__book book;
    if (!w->ragged->offsets)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "weights of samples without tokens are made in host memory");
    ravel_status status = ravel__book_open(&book, &room, err);
    if (status) return status;
    for (int64_t i = 0; !status && i < w->count; i++) {
        status = weigh(w, i, &one, err);
        if (!status) status = weight_of(r, one.loss_tokens, one.fixed, &book.values[i], err);
        const ravel__run run = {0, one.seq.length, 1};
        if (!status) ravel__book_run(&book, &one.seq, &run, 0);
    }
    if (!status) {
        ravel__book_weights(&book, &w->mask, weights, ravel_dtype_bytes(dtype));
        status = ravel__book_launch(&book, place->stream, err);
    }
    ravel__book_close(&book);
    return status;
}

ravel_status ravel_weights_fill(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                const double *sample_weights, const ravel_counts *counts,
                                const ravel_weights_options *options, int32_t dtype, void *weights, ravel_error *err) {
    return ravel__weights_fill(ragged, bin, mask, sample_weights, NULL, counts, options, dtype, weights, err);
}

ravel_status ravel__weights_fill(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                 const double *sample_weights, const int64_t *loss_tokens, const ravel_counts *counts,
                                 const ravel_weights_options *options, int32_t dtype, void *weights, ravel_error *err) {
    weighing w = {.loss_tokens = loss_tokens};
    recipe r = {0};
    ravel_weights_options own;
    ravel_status status = check_dtype(dtype, err);
    if (!status) status = read_options(options, &own, err);
    if (!status) status = ravel__place_check(&own.place, RAVEL__ALL_KINDS, "weights", err);
    if (status) return status;
    int there = own.place.kind == RAVEL_DEVICE;
    if (mask) status = there ? ravel__book_source(mask, own.place.stream, err) : ravel__host_source(mask, err);
    if (!status) status = weigh_begin(&w, ragged, bin, mask, sample_weights, err);
    if (!status) status = make_recipe(counts, options, &r, err);
    if (!status)
        status = there ? fill_device(&w, &r, dtype, weights, &own.place, err) : fill_host(&w, &r, dtype, weights, err);
    weigh_end(&w);
    return status;
}

ravel_status ravel_weights_total(const ravel_counts *counts, const ravel_weights_options *options, double *total,
                                 ravel_error *err) {
    recipe r = {0};
    ravel_status status = make_recipe(counts, options, &r, err);
    if (status) return status;
    double above = read_words(r.per_sample ? counts->weight_with_loss : counts->weighted_tokens);
    *total = above > 0 ? r.factor * above / r.denominator : 0;
    return RAVEL_OK;
}
