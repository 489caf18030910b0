/* Gather, agree, compare, exchange and the metadata message, each by itself. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/exchange.h>
#include <ravel/meta.h>

#include <stdlib.h>

/* ---- agreement ------------------------------------------------------------------------------------------ */

typedef struct vote {
    int64_t failing; /* bits: ranks that fail */
    int64_t odd;     /* bits: ranks with another digest */
} vote;

static ravel_status agree_rank(ravel_comm *comm, void *user, ravel_error *err) {
    const vote *v = user;
    int32_t rank = ravel_comm_rank(comm), first = 0;
    ravel_error own = RAVEL_ERROR_INIT;
    (void)err;
    for (int round = 0; round < 3; round++) { /* it can be used again after a failure */
        ravel_status mine = RAVEL_OK;
        ravel_error_clear(&own);
        if (v->failing >> rank & 1) mine = ravel_error_set(&own, RAVEL_E_DATA, "round %d, I am %d", round, rank);
        ravel_status status = ravel_agree(comm, mine, &own);
        while (v->failing && !(v->failing >> first & 1)) first++;
        char want[100];
        (void)snprintf(want, sizeof want, "rank %d: round %d, I am %d", first, round, first);
        EXPECT(status == (v->failing ? RAVEL_E_DATA : RAVEL_OK));
        EXPECT(!v->failing || strcmp(own.message, want) == 0);
        ravel_error_clear(&own);
        status = ravel_compare(comm, v->odd >> rank & 1 ? 77 : UINT64_MAX, &own);
        EXPECT(status == (v->odd ? RAVEL_E_MISMATCH : RAVEL_OK));
        EXPECT(status == RAVEL_OK || strstr(own.message, v->odd == 2 ? "rank 1 has" : "ranks 0, 2 have"));
    }
    return RAVEL_OK;
}

TEST(agree_carries_the_first_failure_to_all_and_names_odd_digests) {
    ravel_error err = RAVEL_ERROR_INIT;
    static const vote votes[] = {{0, 0}, {4, 2}, {26, 5}, {31, 0}};
    for (size_t i = 0; i < sizeof votes / sizeof *votes; i++) {
        vote v = votes[i];
        CHECK_OK(ravel_threads_run(5, NULL, agree_rank, &v, &err), &err);
    }
}

static ravel_status neighbours_rank(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t count = 0, local = -1;
    (void)user;
    ravel_status status = ravel_comm_neighbours(comm, &count, err);
    if (!status) status = ravel_comm_local_rank(comm, &local, err);
    EXPECT(status || (count == ravel_comm_size(comm) && local == ravel_comm_rank(comm)));
    return status;
}

TEST(agree_ranks_of_one_process_are_neighbours) {
    ravel_error err = RAVEL_ERROR_INIT;
    for (int32_t ranks = 1; ranks <= 5; ranks += 2)
        CHECK_OK(ravel_threads_run(ranks, NULL, neighbours_rank, NULL, &err), &err);
}

/* ---- gather ----------------------------------------------------------------------------------- */

static ravel_status gather_rank(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t counts[8], mine[16], all[64], at = 0;
    int32_t rank = ravel_comm_rank(comm), size = ravel_comm_size(comm);
    (void)user;
    for (int i = 0; i < 16; i++) mine[i] = rank * 100 + i;
    ravel_status status = ravel_gather_counts(comm, rank % 3, counts, err); /* 0, 1, 2, 0, 1 samples of 2 numbers */
    if (!status) status = ravel_gather(comm, mine, counts, 2, all, err);
    for (int32_t r = 0; r < size && !status; r++)
        for (int k = 0; k < 2 * (r % 3); k++) EXPECT(all[at++] == r * 100 + k);
    return status;
}

TEST(gather_brings_every_ranks_integers_to_all) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(5, NULL, gather_rank, NULL, &err), &err);
    CHECK_EQ(ravel_gather_counts(NULL, -1, NULL, &err), RAVEL_E_ARGUMENT);
}

/* ---- share ------------------------------------------------------------------------------------------------ */

static ravel_status share_rank(ravel_comm *comm, void *user, ravel_error *err) {
    static const int32_t wants[5] = {1, 0, 1, 0, 1};
    int32_t rank = ravel_comm_rank(comm);
    ravel_words words = {0};
    char data[300];
    (void)user;
    for (int64_t count = 0; count < 200; count += 67) { /* none, and more than there was room for */
        ravel_status status = rank == 3 ? ravel_words_resize(&words, count, err) : RAVEL_OK;
        for (int64_t i = 0; rank == 3 && i < count; i++) words.at[i] = i * i - count;
        if (!status) status = ravel_share_words(comm, &words, 3, err);
        if (status) return status;
        EXPECT(words.count == count);
        for (int64_t i = 0; i < words.count; i++) EXPECT(words.at[i] == i * i - count);
    }
    ravel_words_free(&words);
    memset(data, 'a' + rank, sizeof data);
    ravel_status status = ravel_share_bytes(comm, data, sizeof data, wants, 3, err);
    EXPECT(data[0] == (wants[rank] ? 'd' : 'a' + rank) && data[299] == data[0]);
    if (!status) status = ravel_share_bytes(comm, data, sizeof data, NULL, 1, err);
    EXPECT(data[0] == 'b' && data[299] == 'b');
    ravel_error own = RAVEL_ERROR_INIT;
    EXPECT(ravel_share_bytes(comm, data, -1, NULL, 1, &own) == RAVEL_E_ARGUMENT);
    EXPECT(ravel_share_bytes(comm, data, 1, NULL, 5, &own) == RAVEL_E_ARGUMENT);
    return status;
}

TEST(share_brings_what_one_rank_has_to_those_that_want_it) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(5, NULL, share_rank, NULL, &err), &err);
}

/* ---- exchange ------------------------------------------------------------------------------------------- */

enum { MOST = 400, FIELDS = 5 };

/* One exchange with everything that a rank needs to check it. */
typedef struct trial {
    uint64_t seed;
    int32_t dp;
    int64_t count, counts[16], starts[17];
    int64_t lengths[MOST], prompts[MOST],
        shared[MOST];                   /* shared: tokens that a sample begins with like the one before */
    int with_prompts, with_trees, lies; /* lies: tokens are not what is said to be shared */
    ravel_plan *plan;
} trial;

static const struct {
    const char *name;
    int32_t kind, dtype;
    int64_t width;
} shapes[FIELDS] = {{"tokens", RAVEL_FIELD_TOKEN, RAVEL_I32, 1},
                    {"mask", RAVEL_FIELD_NEXT, RAVEL_U8, 1},
                    {"logprobs", RAVEL_FIELD_STEP, RAVEL_F32, 3},
                    {"reward", RAVEL_FIELD_SAMPLE, RAVEL_F64, 1},
                    {"group", RAVEL_FIELD_SPREAD, RAVEL_I64, 2}};

static int64_t elements(int f, int64_t length) {
    return (f < 2 ? length : f == 2 ? length - 1 : 1) * shapes[f].width;
}

/* Byte b of field f of sample s. */
static unsigned char byte_of(const trial *t, int64_t s, int f, int64_t b) {
    while (f == 0 && !t->lies && b / 4 < t->shared[s]) s--;
    return (unsigned char)(ravel__mix64(t->seed + (uint64_t)(s * FIELDS + f)) >> (b % 8 * 7)) ^ (unsigned char)(b / 3);
}

/* Samples begin .. end of the trial as a store. */
static void build(const trial *t, int64_t begin, int64_t end, ravel_field *fields, int64_t *offsets,
                  ravel_ragged *ragged) {
    offsets[0] = 0;
    for (int64_t s = begin; s < end; s++) offsets[s - begin + 1] = offsets[s - begin] + t->lengths[s];
    for (int f = 0; f < FIELDS; f++) {
        int64_t each = ravel_dtype_bytes(shapes[f].dtype), at = 0;
        unsigned char *data = malloc((size_t)(offsets[end - begin] + end - begin) * 32 + 1);
        for (int64_t s = begin; s < end; s++)
            for (int64_t b = 0; b < elements(f, t->lengths[s]) * each; b++) data[at++] = byte_of(t, s, f, b);
        fields[f] =
            (ravel_field){shapes[f].name, shapes[f].kind, shapes[f].dtype, shapes[f].width, data, 0, {0, 0, NULL}};
    }
    *ragged = (ravel_ragged){.size = sizeof *ragged,
                             .count = end - begin,
                             .offsets = offsets,
                             .fields = fields,
                             .field_count = FIELDS,
                             .prompts = t->with_prompts ? t->prompts + begin : NULL};
}

static bool arrived_right(const trial *t, int32_t rank, const ravel_exchange *x, const ravel_ragged *got) {
    const unsigned char *at[FIELDS];
    int64_t k = 0;
    for (int f = 0; f < FIELDS; f++) at[f] = got->fields[f].data;
    for (int64_t bin = rank; bin < t->plan->bins; bin += t->dp)
        for (int64_t i = t->plan->bin_offsets[bin]; i < t->plan->bin_offsets[bin + 1]; i++, k++) {
            int64_t s = t->plan->samples[i];
            if (!EXPECT(k < got->count && got->offsets[k + 1] - got->offsets[k] == t->lengths[s])) return false;
            if (!EXPECT(ravel_exchange_samples(x)[k] == s)) return false;
            if (!EXPECT(!t->with_prompts || got->prompts[k] == t->prompts[s])) return false;
            for (int f = 0; f < FIELDS; f++)
                for (int64_t b = 0; b < elements(f, t->lengths[s]) * ravel_dtype_bytes(shapes[f].dtype); b++)
                    if (*at[f]++ != byte_of(t, s, f, b)) return EXPECT(!"a byte arrived changed");
        }
    return EXPECT(k == got->count && got->field_count == FIELDS && !got->prompts == !t->with_prompts);
}

static ravel_status exchange_rank(ravel_comm *comm, void *user, ravel_error *err) {
    const trial *t = user;
    int32_t rank = ravel_comm_rank(comm);
    ravel_field fields[FIELDS];
    int64_t offsets[MOST + 1];
    ravel_ragged mine, got;
    ravel_exchange *x = NULL;
    ravel_exchange_sizes sizes;
    build(t, t->starts[rank], t->starts[rank + 1], fields, offsets, &mine);
    ravel_status status = ravel_exchange_create(t->plan, t->counts, t->lengths, rank, NULL, &x, err);
    if (!status) {
        ravel_exchange_measure(x, &mine, &sizes);
        void *result = malloc((size_t)sizes.result_bytes), *scratch = malloc((size_t)sizes.scratch_bytes);
        status = ravel_exchange_run(x, comm, &mine, result, scratch, &got, err);
        if (!status) {
            if (!t->lies) (void)arrived_right(t, rank, x, &got);
            EXPECT(sizes.samples == got.count && sizes.tokens == got.offsets[got.count]);
            EXPECT(sizes.sent_bytes == sizes.needed_bytes);
        }
        free(result);
        free(scratch);
    }
    ravel_exchange_free(x);
    for (int f = 0; f < FIELDS; f++) free((void *)(uintptr_t)fields[f].data);
    return status;
}

static ravel_status plan_trial(trial *t, ravel__rng *r, ravel_error *err) {
    ravel_plan_options options;
    ravel_plan_options_default(&options);
    t->seed = ravel__rng_next(r);
    t->dp = 1 + (int32_t)ravel__rng_below(r, 8);
    t->with_prompts = (int)ravel__rng_below(r, 2);
    t->count = 0;
    for (int32_t rank = 0; rank < t->dp; rank++) { /* many ranks have nothing; some have one giant */
        t->starts[rank] = t->count;
        t->counts[rank] = ravel__rng_below(r, 3) == 0 ? 0 : (int64_t)ravel__rng_below(r, 12);
        t->count += t->counts[rank];
    }
    t->starts[t->dp] = t->count;
    for (int64_t s = 0; s < t->count; s++) {
        t->lengths[s] = ravel__rng_below(r, 10) == 0 ? 1 + (int64_t)ravel__rng_below(r, 1000)
                                                     : 1 + (int64_t)ravel__rng_below(r, 40);
        t->prompts[s] = (int64_t)ravel__rng_below(r, (uint64_t)t->lengths[s] + 1);
    }
    options.budget = 1000 + (int64_t)ravel__rng_below(r, 500);
    options.dp = t->dp;
    options.updates = 1 + (int32_t)ravel__rng_below(r, 3);
    options.method = (int32_t)ravel__rng_below(r, 9);
    options.count = 1;
    if (options.method == RAVEL_METHOD_FIXED_COUNT) options.method = RAVEL_METHOD_AS_IS;
    for (int64_t s = 1; s < t->count && t->with_trees; s++) {
        int64_t most = t->lengths[s] < t->lengths[s - 1] ? t->lengths[s] : t->lengths[s - 1];
        t->shared[s] = ravel__rng_below(r, 3) ? (int64_t)ravel__rng_below(r, (uint64_t)most + 1) : 0;
    }
    ravel_plan_input input = {.size = sizeof input, .count = t->count, .lengths = t->lengths};
    if (t->with_trees) {
        options.method = RAVEL_METHOD_RAVEL;
        input.shared = t->shared;
    }
    return ravel_plan_create(&input, &options, &t->plan, err);
}

TEST(exchange_sends_shared_tokens_once_and_finds_those_that_are_not) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t saved = 0, found = 0;
    for (int64_t i = 0; i < check_rounds(100, 2000); i++) {
        trial t = {.with_trees = 1, .lies = i % 4 == 3};
        CHECK_OK(plan_trial(&t, &r, &err), &err);
        for (int64_t k = 0; t.plan->shared && k < t.count; k++) saved += t.plan->shared[k];
        ravel_status status = ravel_threads_run(t.dp, NULL, exchange_rank, &t, &err);
        ravel_plan_free(t.plan);
        found += status == RAVEL_E_DATA;
        if (status && t.lies) CHECK_HAS(err.message, "which the plan says it shares");
        if (status && t.lies)
            ravel_error_clear(&err);
        else
            CHECK_OK(status, &err);
    }
    CHECK(saved > 0 && found > 0);
}

TEST(exchange_brings_every_sample_to_its_bin_bit_for_bit) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t i = 0; i < check_rounds(150, 3000); i++) {
        trial t = {0};
        CHECK_OK(plan_trial(&t, &r, &err), &err);
        ravel_status status = ravel_threads_run(t.dp, NULL, exchange_rank, &t, &err);
        ravel_plan_free(t.plan);
        CHECK_OK(status, &err);
    }
}

static ravel_status create_exchange(const ravel_allocator *allocator, void *user) {
    const trial *t = user;
    ravel_exchange *x = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_exchange_create(t->plan, t->counts, t->lengths, 0, allocator, &x, &err);
    ravel_exchange_free(x);
    return status;
}

TEST(exchange_refuses_counts_that_do_not_fit_the_plan) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    trial t = {0};
    while (t.count == 0) {
        ravel_plan_free(t.plan);
        t.plan = NULL;
        CHECK_OK(plan_trial(&t, &r, &err), &err);
    }
    CHECK(check_every_allocation(create_exchange, &t) >= 2);
    ravel_exchange *x = NULL;
    t.counts[0]++;
    CHECK_EQ(ravel_exchange_create(t.plan, t.counts, t.lengths, 0, NULL, &x, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "the plan");
    t.counts[0] = -1;
    CHECK_EQ(ravel_exchange_create(t.plan, t.counts, t.lengths, 0, NULL, &x, NULL), RAVEL_E_ARGUMENT);
    CHECK_EQ(ravel_exchange_create(t.plan, t.counts, t.lengths, t.dp, NULL, &x, NULL), RAVEL_E_ARGUMENT);
    ravel_plan_free(t.plan);
}

/* ---- the metadata message ------------------------------------------------------------------------------- */

static void make_meta(ravel__rng *r, ravel_meta *meta, ravel_update_counts *counts, ravel_counts *loss,
                      int64_t *arrays) {
    int64_t updates = 1 + (int64_t)ravel__rng_below(r, 3), steps = 0, samples = 0;
    memset(counts, 0, 3 * sizeof *counts);
    memset(loss, 0, 3 * sizeof *loss);
    for (int64_t u = 0; u < updates; u++) {
        counts[u].micro_steps = (int64_t)ravel__rng_below(r, 5);
        counts[u].squares_low = ravel__rng_next(r);
        loss[u].weight[2] = (int64_t)ravel__rng_next(r);
        steps += counts[u].micro_steps;
    }
    for (int64_t s = 0; s < steps; s++) samples += arrays[s] = (int64_t)ravel__rng_below(r, 6);
    *meta = (ravel_meta){.size = sizeof *meta,
                         .updates = updates,
                         .micro_steps = steps,
                         .samples = samples,
                         .epoch = 3,
                         .position = 9,
                         .batch = 4,
                         .counts = counts,
                         .loss_counts = loss,
                         .bin_samples = arrays,
                         .lengths = arrays + 100,
                         .ids = arrays + 200,
                         .parts = arrays + 300,
                         .loss_tokens = arrays + 400};
    for (int64_t i = 0; i < samples; i++) {
        arrays[100 + i] = 1 + (int64_t)ravel__rng_below(r, INT64_C(1) << 31);
        arrays[200 + i] = (int64_t)ravel__rng_next(r);
        arrays[300 + i] = (int64_t)ravel__rng_below(r, 9);
        arrays[400 + i] = (int64_t)ravel__rng_below(r, (uint64_t)arrays[100 + i] + 1);
    }
}

TEST(meta_goes_over_the_wire_and_every_changed_word_is_found) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    for (int trial_number = 0; trial_number < 60; trial_number++) {
        ravel_update_counts counts[3];
        ravel_counts loss[3];
        int64_t arrays[500], words[700];
        ravel_meta meta, got = {0};
        make_meta(&r, &meta, counts, loss, arrays);
        int64_t n = ravel_meta_words(&meta);
        CHECK(n > 0 && n < 700);
        CHECK_OK(ravel_meta_encode(&meta, words, n, &err), &err);
        CHECK_OK(ravel_meta_decode(words, n, &got, &err), &err);
        CHECK(got.samples == meta.samples && got.epoch == 3 && got.position == 9 && got.batch == 4);
        CHECK(memcmp(got.counts, counts, (size_t)meta.updates * sizeof *counts) == 0);
        CHECK(memcmp(got.loss_counts, loss, (size_t)meta.updates * sizeof *loss) == 0);
        CHECK(memcmp(got.bin_samples, arrays, (size_t)meta.micro_steps * sizeof *arrays) == 0);
        for (int64_t i = 0; i < meta.samples; i++)
            CHECK(got.lengths[i] == meta.lengths[i] && got.ids[i] == meta.ids[i] && got.parts[i] == meta.parts[i] &&
                  got.loss_tokens[i] == meta.loss_tokens[i]);
        for (int64_t i = 0; i < n; i++) { /* one bit anywhere */
            int64_t kept = words[i];
            words[i] ^= INT64_C(1) << ravel__rng_below(&r, 63);
            CHECK(ravel_meta_decode(words, n, &got, NULL) != RAVEL_OK);
            words[i] = kept;
        }
        for (int64_t i = 0; i < n; i++) CHECK(ravel_meta_decode(words, i, &got, NULL) != RAVEL_OK);
    }
}

/* ---- cut for context parallelism ------------------------------------------------------------------------ */

/* Bytes do not grow with cp: over all cp ranks each element leaves once, and one more behind each run of tokens. What had
 * to move adds up to the whole samples exactly. */
TEST(exchange_cut_keeps_bytes_flat_in_cp) {
    enum { N = 200, DP = 3 };
    ravel__rng r = ravel__rng_seed(check_seed());
    int64_t lengths[N], offsets[N + 1] = {0}, counts[DP] = {80, 70, 50};
    for (int i = 0; i < N; i++) {
        lengths[i] = 1 + (int64_t)ravel__rng_below(&r, 900);
        offsets[i + 1] = offsets[i] + lengths[i];
    }
    const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
                                  {.name = "mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
                                  {.name = "logp", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32},
                                  {.name = "reward", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32}};
    for (int32_t ranks = 2; ranks <= 8; ranks++)
        for (int32_t kind = RAVEL_CP_ZIGZAG; kind <= RAVEL_CP_CONTIGUOUS; kind++) {
            const ravel_cp cp = {ranks, kind};
            ravel_plan_options options;
            ravel_plan *plan = NULL;
            ravel_plan_options_default(&options);
            options.budget = 1024, options.dp = DP, options.cp = ranks;
            const ravel_plan_input input = {.size = sizeof input, .count = N, .lengths = lengths};
            CHECK_EQ(ravel_plan_create(&input, &options, &plan, NULL), RAVEL_OK);
            for (int32_t d = 0; d < DP; d++) {
                const ravel_ragged mine = {
                    .size = sizeof mine, .count = counts[d], .offsets = offsets, .fields = fields, .field_count = 4};
                ravel_exchange *x = NULL;
                ravel_exchange_sizes whole, part;
                int64_t sent = 0, needed = 0;
                CHECK_EQ(ravel_exchange_create(plan, counts, lengths, d, NULL, &x, NULL), RAVEL_OK);
                ravel_exchange_measure(x, &mine, &whole);
                for (int32_t c = 0; c < ranks; c++) {
                    CHECK_EQ(ravel_exchange_cut(x, &cp, c, 2 * ranks, lengths, NULL), RAVEL_OK);
                    ravel_exchange_measure(x, &mine, &part);
                    sent += part.sent_bytes;
                    needed += part.needed_bytes;
                }
                CHECK_EQ(needed, whole.sent_bytes);
                /* a label more for each of two runs, and the sample's one value, for each cp rank; the first mask not */
                CHECK(sent >= whole.sent_bytes - counts[d] &&
                      sent <= whole.sent_bytes + counts[d] * ranks * (2 * 4 + 4));
                ravel_exchange_free(x);
            }
            ravel_plan_free(plan);
        }
}

TEST(exchange_cut_refuses_an_align_that_cannot_be_dealt) {
    int64_t lengths[] = {5, 6}, counts[] = {2};
    ravel_plan_options options;
    ravel_plan *plan = NULL;
    ravel_exchange *x = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    const ravel_cp cp = {4, RAVEL_CP_ZIGZAG};
    ravel_plan_options_default(&options);
    options.budget = 64;
    const ravel_plan_input input = {.size = sizeof input, .count = 2, .lengths = lengths};
    CHECK_EQ(ravel_plan_create(&input, &options, &plan, NULL), RAVEL_OK);
    CHECK_EQ(ravel_exchange_create(plan, counts, lengths, 0, NULL, &x, NULL), RAVEL_OK);
    CHECK_EQ(ravel_exchange_cut(x, &cp, 0, 4, lengths, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "a multiple of 8");
    ravel_exchange_free(x);
    ravel_plan_free(plan);
}
