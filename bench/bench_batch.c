/* Packing and sharding against memcpy of the same bytes in the same run: the cost of ragged edges.
 *
 * The arrays are larger than any cache, and one bin holds a whole array, as the copy does. Each figure is the best of
 * several; the two sides take turns, so that a busy machine slows both. */
#include "bench/bench.h"

#include "base/options.h"
#include "io/mock.h"

#include <ravel/batch.h>
#include <ravel/mock.h>
#include <ravel/weights.h>

#include <stdlib.h>
#include <string.h>

enum { FIELDS = 3, REPEATS = 15 };

typedef struct job {
    int64_t count, tokens, room; /* room: of every packed array, slots included */
    int64_t *offsets;
    int32_t *ids, *order;
    float *mask;
    ravel_field fields[FIELDS];
    ravel_ragged ragged;
    ravel_bin bin;
    ravel_thd_options options;
    ravel_thd thd;
    char *block;
    size_t bytes;
    char *from, *to; /* for memcpy */
    size_t copy_bytes;
    ravel_cp cp;
    int32_t rank;
    float *weights;
    int failed;
} job;

/* Lengths of `spec`, as many as make about `tokens`. */
static int64_t make_lengths(const char *spec, int64_t tokens, int64_t **offsets) {
    ravel_mock *mock = NULL;
    int64_t count = 0, room = tokens / 8 + 2;
    if (ravel__mock_parse(spec, strlen(spec), NULL, &mock, NULL)) return 0;
    *offsets = malloc((size_t)room * sizeof **offsets);
    if (*offsets) {
        (*offsets)[0] = 0;
        while (count + 1 < room && (*offsets)[count] < tokens) {
            (*offsets)[count + 1] = (*offsets)[count] + ravel_mock_length(mock, count);
            count++;
        }
    }
    ravel_mock_free(mock);
    return *offsets ? count : 0;
}

/* Every sample once, scattered over the store as a planner scatters them. */
static void make_order(job *j) {
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < j->count; i++) j->order[i] = (int32_t)i;
    for (int64_t i = j->count - 1; i > 0; i--) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        int64_t k = (int64_t)(x % (uint64_t)(i + 1));
        int32_t swap = j->order[i];
        j->order[i] = j->order[k];
        j->order[k] = swap;
    }
}

static void close_job(job *j) {
    free(j->offsets);
    free(j->ids);
    free(j->mask);
    free(j->order);
    free(j->block);
    free(j->from);
    free(j->to);
    free(j->weights);
}

static int open_arrays(job *j) {
    j->tokens = j->offsets[j->count];
    j->ids = malloc((size_t)j->tokens * sizeof *j->ids);
    j->mask = malloc((size_t)j->tokens * sizeof *j->mask);
    j->order = malloc((size_t)j->count * sizeof *j->order);
    if (!j->ids || !j->mask || !j->order) return 0;
    for (int64_t i = 0; i < j->tokens; i++) {
        j->ids[i] = (int32_t)(i % 151936);
        j->mask[i] = (float)(i % 3 != 0);
    }
    make_order(j);
    const ravel_field fields[FIELDS] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = j->ids},
        {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = j->ids, .pad = -100},
        {.name = "mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = j->mask}};
    memcpy(j->fields, fields, sizeof fields);
    j->ragged = (ravel_ragged){
        .size = sizeof j->ragged, .count = j->count, .offsets = j->offsets, .fields = j->fields, .field_count = FIELDS};
    j->bin = (ravel_bin){j->order, j->count};
    return 1;
}

/* A store of about `tokens`, a block for its packed arrays, and two arrays of the same bytes for memcpy. */
static int open_job(job *j, const char *spec, int64_t tokens, int32_t align) {
    memset(j, 0, sizeof *j);
    j->count = make_lengths(spec, tokens, &j->offsets);
    if (!j->count || !open_arrays(j)) return 0;
    ravel_thd_options_default(&j->options);
    j->options.align = align;
    j->options.arrays = RAVEL_THD_POSITIONS;
    j->thd.size = sizeof j->thd;
    if (ravel_thd_measure(&j->ragged, &j->bin, &j->options, &j->thd, NULL)) return 0;
    j->bytes = ravel_thd_bytes(&j->ragged, &j->options, &j->thd);
    j->copy_bytes = 4 * (size_t)j->thd.tokens * sizeof(int32_t);
    j->block = malloc(j->bytes);
    j->from = malloc(j->copy_bytes);
    j->to = malloc(j->copy_bytes);
    if (!j->block || !j->from || !j->to) return 0;
    memset(j->from, 1, j->copy_bytes);
    memset(j->to, 2, j->copy_bytes);
    memset(j->block, 3, j->bytes);
    ravel_thd_place(&j->ragged, &j->options, j->block, &j->thd);
    return ravel_thd_pack(&j->ragged, &j->bin, &j->options, &j->thd, NULL) == RAVEL_OK;
}

static void run_copy(void *user) {
    job *j = user;
    memcpy(j->to, j->from, j->copy_bytes);
}

static void run_pack(void *user) {
    job *j = user;
    if (ravel_thd_pack(&j->ragged, &j->bin, &j->options, &j->thd, NULL)) j->failed = 1;
}

/* One field's shard of each rank in turn: together as many bytes as the field has. */
static void run_gather(void *user) {
    job *j = user;
    size_t shard = (size_t)(j->thd.tokens / j->cp.ranks) * sizeof(int32_t);
    for (int32_t rank = 0; rank < j->cp.ranks; rank++)
        for (int f = 0; f < FIELDS; f++)
            if (ravel_cp_gather(&j->cp, rank, j->thd.cu_seqlens_padded, j->thd.sequences, j->thd.fields[f],
                                sizeof(int32_t), j->to + (size_t)(rank * FIELDS + f) * shard, NULL, NULL))
                j->failed = 1;
}

static void run_weights(void *user) {
    job *j = user;
    ravel_counts counts;
    ravel_weights_options options;
    ravel_weights_options_default(&options);
    memset(&counts, 0, sizeof counts);
    if (ravel_counts_add(&j->ragged, NULL, &j->fields[2], NULL, &counts, NULL) ||
        ravel_weights_fill(&j->ragged, NULL, &j->fields[2], NULL, &counts, &options, RAVEL_F32, j->weights, NULL))
        j->failed = 1;
}

/* memcpy's time over the body's; best of several turns each. */
static double ratio(job *j, void (*body)(void *user)) {
    double copy = 1e300, own = 1e300;
    for (int i = 0; i < REPEATS; i++) {
        double a = bench_best(1, run_copy, j), b = bench_best(1, body, j);
        if (a < copy) copy = a;
        if (b < own) own = b;
    }
    return j->failed ? 0 : copy / own;
}

static const char lognormal[] = "{\"mode\": \"distribution\", \"type\": \"lognormal\", \"min_seq_len\": 16, "
                                "\"max_seq_len\": 16384, \"mean_seq_len\": 1024, \"lognormal_sigma\": 1.1}";
static const char short_ones[] = "{\"mode\": \"distribution\", \"type\": \"lognormal\", \"min_seq_len\": 8, "
                                 "\"max_seq_len\": 1024, \"mean_seq_len\": 100, \"lognormal_sigma\": 1.1}";

/* Lengths of Megatron's mock data set, whose users shard over cp. */
static const char long_ones[] = "{\"mode\": \"distribution\", \"type\": \"lognormal\", \"min_seq_len\": 1024, "
                                "\"max_seq_len\": 8192, \"mean_seq_len\": 4096, \"lognormal_sigma\": 1.1}";

BENCH(batch_pack) {
    job j;
    if (open_job(&j, lognormal, 24 << 20, 1)) {
        double r = ratio(&j, run_pack);
        bench_report("batch.pack_vs_memcpy", r, "ratio", HIGHER,
                     "tokens, labels, positions, mask of %lld lognormal samples, mean %lld, %lld MiB out",
                     (long long)j.count, (long long)(j.tokens / j.count), (long long)(j.copy_bytes >> 20));
    }
    close_job(&j);
    if (open_job(&j, short_ones, 24 << 20, 8)) {
        double r = ratio(&j, run_pack);
        bench_report("batch.pack_short_vs_memcpy", r, "ratio", HIGHER, "the same, %lld samples, mean %lld, align 8",
                     (long long)j.count, (long long)(j.tokens / j.count));
    }
    close_job(&j);
}

static void report_cp(const char *name, const char *spec, int32_t kind, int32_t ranks) {
    job j;
    if (open_job(&j, spec, 24 << 20, 2 * ranks)) {
        char word[32] = "";
        j.cp = (ravel_cp){ranks, kind};
        j.copy_bytes = FIELDS * (size_t)j.thd.tokens * sizeof(int32_t);
        ravel__choice_word(RAVEL_CP_CHOICES, kind, word, sizeof word);
        bench_report(name, ratio(&j, run_gather), "ratio", HIGHER,
                     "%s shards of every rank of cp %d, three 4-byte fields, lognormal, mean %lld, %lld MiB out", word,
                     ranks, (long long)(j.tokens / j.count), (long long)(j.copy_bytes >> 20));
    }
    close_job(&j);
}

BENCH(batch_cp) {
    report_cp("batch.cp_vs_memcpy", long_ones, RAVEL_CP_ZIGZAG, 4);
    report_cp("batch.cp8_vs_memcpy", long_ones, RAVEL_CP_ZIGZAG, 8);
    report_cp("batch.cp_short_vs_memcpy", lognormal, RAVEL_CP_ZIGZAG, 4);
    report_cp("batch.cp_striped_vs_memcpy", long_ones, RAVEL_CP_STRIPED, 4);
}

BENCH(batch_weights) {
    job j;
    if (open_job(&j, lognormal, 24 << 20, 1)) {
        j.weights = malloc((size_t)j.tokens * sizeof *j.weights);
        if (j.weights) {
            memset(j.weights, 0, (size_t)j.tokens * sizeof *j.weights);
            double best = bench_best(REPEATS, run_weights, &j);
            bench_report("batch.weights_ns_per_token", j.failed ? 0 : best * 1e9 / (double)j.tokens, "ns", LOWER,
                         "count and fill, f32 mask, %lld M tokens", (long long)(j.tokens >> 20));
        }
    }
    close_job(&j);
}
