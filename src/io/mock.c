/* Mock data sets: one row per distribution, each a pure function of the settings and a random stream that belongs to
 * the sample. See ravel/mock.h. */
#include <ravel/mock.h>

#include "base/assert.h"
#include "io/mock.h"
#include "base/memory.h"
#include "base/real.h"
#include "base/rng.h"
#include "io/holder.h"

#include "base/system/file.h"
#include "base/options.h"
#include "base/json.h"

#include <math.h>
#include <string.h>

enum { LARGEST_SPEC = 1 << 20 };

struct ravel_mock {
    ravel_mock_options options; /* settled */
    const ravel_allocator *allocator;
    char *path, *field; /* own copies */
    ravel_lengths *file;
};

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_mock_options, __VA_ARGS__)
static const ravel_option mock_table[] = {
    ROW("mode", ENUM, mode, "distribution", 0, 0, RAVEL_MOCK_MODE_CHOICES, "where lengths come from"),
    ROW("type", ENUM, type, "lognormal", 0, 0, RAVEL_MOCK_TYPE_CHOICES, "the distribution of lengths"),
    ROW("min-seq-len", I64, min_seq_len, "0", 0, 0x1p31, NULL, "the shortest sample; 0: max / 8"),
    ROW("max-seq-len", I64, max_seq_len, "0", 0, 0x1p31, NULL, "the longest sample; 0: 8192"),
    ROW("mean-seq-len", F64, mean_seq_len, "0", 0, 0x1p31, NULL, "the mean before clipping; 0: max / 2"),
    ROW("lognormal-sigma", F64, lognormal_sigma, "-1", -1, 20, NULL, "width of the lognormal; -1: 1.1"),
    ROW("zipf-exponent", F64, zipf_exponent, "0", 0, 20, NULL, "P(length) ~ length^-this; 0: 1.2"),
    ROW("long-seq-len", F64, long_seq_len, "0", 0, 0x1p31, NULL, "mean of the long samples of bimodal; 0: 3/4 max"),
    ROW("long-share", F64, long_share, "-1", -1, 1, NULL, "how many samples are long; -1: 0.2"),
    ROW("prompt-share", F64, prompt_share, "0", 0, 1, NULL,
        "mean share of a sample that is prompt; 0: lengths without prompts"),
    ROW("count", I64, count, "0", 0, 0x1p40, NULL, "samples; 0: 4096, or the rows of the file"),
    ROW("seed", U64, seed, "0", 0, 0, NULL, "another seed, other samples"),
    ROW("path", STRING, path, NULL, 0, 0, NULL, "file of lengths for mode file"),
    ROW("field", STRING, field, NULL, 0, 0, NULL, "what to read in it: a column, or two with a comma"),
    {0}};

void ravel__mock_options_default(ravel_mock_options *options) {
    ravel__options_preset(mock_table, options, sizeof *options);
}

/* Fills in defaults. */
static void settle(ravel_mock_options *o) {
    int bimodal = o->type == RAVEL_MOCK_BIMODAL, constant = o->type == RAVEL_MOCK_CONSTANT;
    if (!o->max_seq_len && o->mean_seq_len > 0)
        o->max_seq_len = constant ? INT64_C(1) << 31 : (int64_t)(o->mean_seq_len * (bimodal ? 8 : 2));
    if (!o->max_seq_len) o->max_seq_len = o->min_seq_len > 8192 ? o->min_seq_len : 8192;
    if (!o->min_seq_len) o->min_seq_len = o->max_seq_len >= 8 && !constant ? o->max_seq_len / 8 : 1;
    if (o->mean_seq_len == 0) o->mean_seq_len = (double)o->max_seq_len / (bimodal ? 8 : 2);
    if (o->lognormal_sigma < 0) o->lognormal_sigma = bimodal ? 0.25 : 1.1;
    if (o->zipf_exponent == 0) o->zipf_exponent = 1.2;
    if (o->long_seq_len == 0) o->long_seq_len = 0.75 * (double)o->max_seq_len;
    if (o->long_share < 0) o->long_share = 0.2;
}

static ravel_status check(const ravel_mock_options *o, ravel_error *err) {
    ravel_status status = ravel__check_options(mock_table, o, err);
    if (status) return status;
    if (o->mode == RAVEL_MOCK_FILE)
        return o->path ? RAVEL_OK : ravel_error_set(err, RAVEL_E_ARGUMENT, "mode \"file\" needs a \"path\"");
    if (o->min_seq_len > o->max_seq_len)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "min_seq_len is %lld, over max_seq_len, which is %lld",
                               (long long)o->min_seq_len, (long long)o->max_seq_len);
    if (o->mean_seq_len < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "mean_seq_len is %g; it must be at least 1", o->mean_seq_len);
    return RAVEL_OK;
}

/* ---- distributions -------------------------------------------------------------------------------------- */

/* Marsaglia's polar method, on our own logarithm. */
static double normal(ravel__rng *r) {
    double u, v, s;
    do {
        u = 2 * ravel__rng_unit(r) - 1;
        v = 2 * ravel__rng_unit(r) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    RAVEL_ASSERT(s > 0 && s < 1);
    return u * sqrt(-2 * ravel__real_log(s) / s);
}

static double lognormal_around(const ravel_mock_options *o, double mean, ravel__rng *r) {
    double sigma = o->lognormal_sigma;
    RAVEL_ASSERT(mean > 0 && sigma >= 0);
    return ravel__real_exp(ravel__real_log(mean) - sigma * sigma / 2 + sigma * normal(r));
}

static double draw_lognormal(const ravel_mock_options *o, ravel__rng *r) {
    return lognormal_around(o, o->mean_seq_len, r);
}

static double draw_uniform(const ravel_mock_options *o, ravel__rng *r) {
    RAVEL_ASSERT(o->min_seq_len <= o->max_seq_len);
    return (double)(o->min_seq_len + (int64_t)ravel__rng_below(r, (uint64_t)(o->max_seq_len - o->min_seq_len) + 1));
}

/* By inverting the integral of x^-s from min to max + 1; s = 1 is the logarithm's case. */
static double draw_zipf(const ravel_mock_options *o, ravel__rng *r) {
    double a = ravel__real_log((double)o->min_seq_len), b = ravel__real_log((double)o->max_seq_len + 1);
    double t = 1 - o->zipf_exponent, u = ravel__rng_unit(r);
    RAVEL_ASSERT(o->min_seq_len >= 1 && a <= b && u >= 0 && u < 1);
    if (t < 1e-9 && t > -1e-9) return ravel__real_exp(a + u * (b - a));
    /* (a^t + u (b^t - a^t))^(1/t), with a^t taken out so that nothing overflows */
    return ravel__real_exp(a + ravel__real_log(1 + u * (ravel__real_exp(t * (b - a)) - 1)) / t);
}

static double draw_constant(const ravel_mock_options *o, ravel__rng *r) {
    (void)r;
    return o->mean_seq_len;
}

static double draw_bimodal(const ravel_mock_options *o, ravel__rng *r) {
    double mean = ravel__rng_unit(r) < o->long_share ? o->long_seq_len : o->mean_seq_len;
    return lognormal_around(o, mean, r);
}

static double (*const draws[])(const ravel_mock_options *, ravel__rng *) = {
    [RAVEL_MOCK_LOGNORMAL] = draw_lognormal, [RAVEL_MOCK_UNIFORM] = draw_uniform, [RAVEL_MOCK_ZIPF] = draw_zipf,
    [RAVEL_MOCK_CONSTANT] = draw_constant,   [RAVEL_MOCK_BIMODAL] = draw_bimodal,
};

/* ---- samples -------------------------------------------------------------------------------------------- */

/* The stream of one sample; `what` keeps lengths, prompts and tokens apart. */
static ravel__rng stream(const ravel_mock *mock, int64_t index, uint64_t what) {
    RAVEL_ASSERT(what >= 1 && what <= 3);
    return ravel__rng_seed(ravel__mix64(mock->options.seed ^ ravel__mix64((uint64_t)index ^ what << 60)));
}

static int64_t file_row(const ravel_mock *mock, int64_t index) {
    RAVEL_ASSERT(mock->file && mock->file->count >= 1);
    return index % mock->file->count;
}

int64_t ravel_mock_length(const ravel_mock *mock, int64_t index) {
    const ravel_mock_options *o = &mock->options;
    if (mock->file) {
        int64_t row = file_row(mock, index);
        const ravel_lengths *l = mock->file;
        return l->prompts ? l->prompts[row] + l->responses[row] : l->lengths[row];
    }
    ravel__rng r = stream(mock, index, 1);
    RAVEL_ASSERT(o->type >= 0 && o->type < (int32_t)(sizeof draws / sizeof *draws) && draws[o->type]);
    double length = draws[o->type](o, &r);
    if (length < (double)o->min_seq_len) return o->min_seq_len;
    return length > (double)o->max_seq_len ? o->max_seq_len : (int64_t)length;
}

int64_t ravel_mock_prompt(const ravel_mock *mock, int64_t index) {
    if (mock->file && mock->file->prompts) return mock->file->prompts[file_row(mock, index)];
    double share = mock->options.prompt_share;
    if (share == 0) return 0;
    ravel__rng r = stream(mock, index, 2);
    double spread = share < 0.5 ? share : 1 - share; /* uniform around the mean, within 0 .. 1 */
    int64_t length = ravel_mock_length(mock, index);
    RAVEL_ASSERT(length >= 1 && spread >= 0 && spread <= 0.5);
    int64_t prompt = (int64_t)((double)length * (share - spread + 2 * spread * ravel__rng_unit(&r)));
    return prompt < 1 && length > 1 ? 1 : prompt;
}

void ravel_mock_tokens(const ravel_mock *mock, int64_t index, int32_t vocab, int64_t count, int32_t *tokens) {
    ravel__rng r = stream(mock, index, 3);
    for (int64_t i = 0; i < count; i++) tokens[i] = (int32_t)ravel__rng_below(&r, (uint64_t)vocab);
}

ravel_status ravel_mock_lengths(const ravel_mock *mock, ravel_lengths **lengths, ravel_error *err) {
    int64_t count = mock->options.count;
    int pairs = mock->options.prompt_share > 0 || (mock->file && mock->file->prompts);
    RAVEL_ASSERT(count >= 1);
    ravel__holder *h = ravel__calloc(mock->allocator, 1, sizeof *h);
    if (!h) return ravel__no_memory(err, sizeof *h, "mock lengths");
    h->allocator = mock->allocator;
    h->as.lengths.count = count;
    for (int i = 0; i < 1 + pairs; i++) {
        h->columns[i] = ravel__alloc(mock->allocator, (size_t)count * sizeof(int64_t));
        if (!h->columns[i]) {
            ravel__holder_free(h);
            return ravel__no_memory(err, (size_t)count * sizeof(int64_t), "mock lengths");
        }
        h->rooms[i] = count;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t length = ravel_mock_length(mock, i), prompt = pairs ? ravel_mock_prompt(mock, i) : 0;
        RAVEL_ASSERT(prompt >= 0 && prompt <= length);
        h->columns[0][i] = pairs ? prompt : length;
        if (pairs) h->columns[1][i] = length - prompt;
    }
    ravel__holder_lengths(h);
    memcpy(h->as.lengths.columns, pairs ? "prompt + response" : "length", pairs ? 18 : 7);
    *lengths = &h->as.lengths;
    return RAVEL_OK;
}

/* ---- making one ----------------------------------------------------------------------------------------- */

static ravel_status copy_text(const char *text, const ravel_allocator *allocator, char **copy, ravel_error *err) {
    if (!text) return RAVEL_OK;
    size_t bytes = strlen(text) + 1;
    *copy = ravel__alloc(allocator, bytes);
    if (!*copy) return ravel__no_memory(err, bytes, "a mock data set");
    memcpy(*copy, text, bytes);
    return RAVEL_OK;
}

static ravel_status read_file(ravel_mock *mock, ravel_error *err) {
    ravel_read_options read;
    ravel_read_options_default(&read);
    read.field = mock->options.field;
    read.allocator = mock->allocator;
    return ravel_lengths_read(mock->options.path, &read, &mock->file, err);
}

static ravel_status fill(ravel_mock *mock, ravel_error *err) {
    ravel_mock_options *o = &mock->options;
    ravel_status status = copy_text(o->path, mock->allocator, &mock->path, err);
    if (!status) status = copy_text(o->field, mock->allocator, &mock->field, err);
    o->path = mock->path;
    o->field = mock->field;
    if (!status && o->mode == RAVEL_MOCK_FILE) status = read_file(mock, err);
    if (!o->count) o->count = mock->file ? mock->file->count : 4096;
    RAVEL_ASSERT(status || o->count >= 1);
    return status;
}

ravel_status ravel__mock_create(const ravel_mock_options *options, ravel_mock **mock, ravel_error *err) {
    ravel_mock_options o;
    ravel__mock_options_default(&o);
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    settle(&o);
    ravel_status status = check(&o, err);
    if (status) return status;
    ravel_mock *fresh = ravel__calloc(o.allocator, 1, sizeof *fresh);
    if (!fresh) return ravel__no_memory(err, sizeof *fresh, "a mock data set");
    fresh->options = o;
    fresh->allocator = o.allocator;
    status = fill(fresh, err);
    if (status) {
        ravel_mock_free(fresh);
        return status;
    }
    *mock = fresh;
    return RAVEL_OK;
}

ravel_status ravel__mock_parse(const char *json_text, size_t bytes, const ravel_allocator *allocator, ravel_mock **mock,
                               ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_mock_options o;
    ravel__mock_options_default(&o);
    o.allocator = allocator;
    ravel_status status = ravel__json_parse(json_text, bytes, allocator, &doc, err);
    if (status) return status;
    status = ravel__options_from_json(mock_table, &o, doc, ravel__json_root(doc), err);
    if (!status) status = ravel__mock_create(&o, mock, err);
    ravel__json_free(doc);
    return status;
}

/* Invalid JSON is E_ARGUMENT on a command line and E_DATA in a file. */
static ravel_status open_inline(const char *text, const ravel_allocator *allocator, ravel_mock **mock,
                                ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = ravel__json_parse(text, strlen(text), allocator, &doc, &inner);
    ravel__json_free(doc);
    if (status)
        return ravel_error_set(err, status == RAVEL_E_DATA ? RAVEL_E_ARGUMENT : status, "mock: %s", inner.message);
    status = ravel__mock_parse(text, strlen(text), allocator, mock, &inner);
    return status ? ravel_error_set(err, status, "mock: %s", inner.message) : RAVEL_OK;
}

ravel_status ravel_mock_open(const char *text, const ravel_allocator *allocator, ravel_mock **mock, ravel_error *err) {
    char *data = NULL;
    size_t bytes;
    ravel_error inner = RAVEL_ERROR_INIT;
    if (*text != '@') return open_inline(text, allocator, mock, err);
    ravel_status status = ravel__file_read(text + 1, LARGEST_SPEC, allocator, &data, &bytes, err);
    if (status) return status;
    status = ravel__mock_parse(data, bytes, allocator, mock, &inner);
    ravel__release(allocator, data, bytes + 1);
    return status ? ravel_error_set(err, status, "%s: %s", text + 1, inner.message) : RAVEL_OK;
}

void ravel_mock_free(ravel_mock *mock) {
    if (!mock) return;
    ravel_lengths_free(mock->file);
    if (mock->path) ravel__release(mock->allocator, mock->path, strlen(mock->path) + 1);
    if (mock->field) ravel__release(mock->allocator, mock->field, strlen(mock->field) + 1);
    ravel__release(mock->allocator, mock, sizeof *mock);
}

const ravel_mock_options *ravel_mock_described(const ravel_mock *mock) {
    return &mock->options;
}

void ravel__mock_reseed(ravel_mock *mock, uint64_t seed) {
    mock->options.seed = seed;
}

void ravel__mock_recount(ravel_mock *mock, int64_t count) {
    if (count > 0) mock->options.count = count;
}
