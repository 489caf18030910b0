/* The feed over `threads` meshes: every rank holds what a single rank works out, for every owner and layout. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/feed.h>

#include <stdlib.h>

/* One run of a feed on a mesh; every rank works on it. */
typedef struct run {
    ravel_mesh_options mesh;
    ravel_feed_options feed;
    ravel_plan_options plan;
    ravel_weights_options weights;
    const ravel_source *source;
    int64_t updates;     /* to take */
    uint64_t ask_middle; /* bits of chunks that the middle stages ask for */
    int64_t seen;        /* updates that rank 0 took */
    int64_t samples;     /* of them */
} run;

static void run_default(run *r) {
    memset(r, 0, sizeof *r);
    ravel_mesh_options_default(&r->mesh);
    ravel_feed_options_default(&r->feed);
    ravel_plan_options_default(&r->plan);
    ravel_weights_options_default(&r->weights);
    r->plan.budget = 256;
    r->feed.samples = 24;
    r->updates = 3;
}

/* The largest batch so far, and the one that is being used. */
typedef struct sizes {
    int64_t steps, samples, tokens;
} sizes;

static void check_memory_bound(const ravel_feed *feed, const ravel_feed_update *u, sizes *now, sizes *most) {
    ravel_feed_stats stats;
    if (u->update_in_batch == 0) memset(now, 0, sizeof *now);
    now->steps += u->counts.micro_steps;
    now->samples += u->counts.samples;
    now->tokens += u->counts.tokens;
    if (now->steps > most->steps) most->steps = now->steps;
    if (now->samples > most->samples) most->samples = now->samples;
    if (now->tokens > most->tokens) most->tokens = now->tokens;
    if (!u->last_in_batch) return;
    ravel_feed_read_stats(feed, &stats);
    int64_t bound = ravel_feed_bound(feed, most->steps, most->samples, most->tokens);
    if (!EXPECT(stats.memory_bytes <= bound))
        printf("    %lld bytes, the bound was %lld\n", (long long)stats.memory_bytes, (long long)bound);
}

static ravel_status use_feed(run *r, ravel_feed *feed, ravel_error *err) {
    const ravel_feed_update *update = NULL;
    sizes now = {0}, most = {0};
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < r->updates && !status; i++) {
        status = ravel_feed_next(feed, &update, err);
        if (!status) status = ravel_feed_verify(feed, r->source, err);
        if (status) break;
        check_memory_bound(feed, update, &now, &most);
        if (ravel_feed_is_owner(feed) && update->number == i) __atomic_fetch_add(&r->seen, 1, __ATOMIC_RELAXED);
    }
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

static ravel_status run_rank(ravel_comm *comm, void *user, ravel_error *err) {
    run *r = user;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_feed_options options = r->feed;
    ravel_status status = ravel_mesh_create(comm, &r->mesh, &mesh, err);
    if (status) return status;
    options.plan = &r->plan;
    options.weights = &r->weights;
    int32_t pp = ravel_mesh_coords(mesh).pp;
    if (pp > 0 && pp < r->mesh.pp - 1) options.ask = r->ask_middle;
    status = ravel_feed_create(mesh, r->source, &options, &feed, err);
    if (!status) status = use_feed(r, feed, err);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
}

static ravel_source *mock_source(const char *mock, const char *fields) {
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options_default(&options);
    options.mock = mock;
    options.fields = fields;
    options.vocab = 1000;
    if (ravel_source_open(&options, &source, &err)) printf("    %s\n", err.message);
    return source;
}

static const char *const small_mock =
    "{\"type\":\"lognormal\",\"max_seq_len\":200,\"min_seq_len\":1,\"mean_seq_len\":40,\"count\":500,"
    "\"prompt_share\":0.3,\"seed\":3}";

TEST(feed_mesh_of_24_gives_every_rank_its_batches) {
    ravel_source *source = mock_source(small_mock, "adv:f32:next,reward:f64:sample,logp:f32:step");
    CHECK(source);
    for (int32_t owners = 0; owners < 3; owners++)
        for (int32_t vpp = 1; vpp <= 2; vpp++) {
            run r;
            ravel_error err = RAVEL_ERROR_INIT;
            run_default(&r);
            r.mesh.tp = 2, r.mesh.cp = 2, r.mesh.dp = 2, r.mesh.pp = 3, r.mesh.vpp = vpp;
            r.feed.owners = owners;
            r.source = source;
            r.updates = check_scale(3, 40);
            CHECK_OK(ravel_threads_run(24, NULL, run_rank, &r, &err), &err);
            CHECK(r.seen >= r.updates);
        }
    ravel_source_free(source);
}

/* ---- random meshes and options -------------------------------------------------------------------------- */

static int32_t pick(ravel__rng *r, int32_t most) {
    return 1 + (int32_t)ravel__rng_below(r, (uint64_t)most);
}

/* Rows that are packed already, rows with nothing in them, one-token samples. */
static ravel_status read_odd_rows(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[600];
    unsigned char mask[600];
    float weight[8];
    int64_t group[8], bounds[8] = {0}, starts[8], count = row % 5, at = 0;
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = ravel__mix64((uint64_t)(row * 8 + i));
        int64_t length = x % 7 == 0 ? 0 : x % 5 == 0 ? 1 : 1 + (int64_t)(x % 60);
        starts[i] = at;
        at += length + (int64_t)(x >> 20) % 3;
        bounds[i + 1] = bounds[i] + length;
        weight[i] = (float)(x % 9) / 4;
        group[i] = row / 4;
    }
    for (int64_t i = 0; i < at; i++) {
        tokens[i] = (int32_t)(ravel__mix64((uint64_t)(row * 1000 + i)) % 5000);
        mask[i] = tokens[i] % 3 != 0;
    }
    const void *data[] = {mask, tokens, weight, group};
    return ravel_collector_add_packed(collector, count, bounds, starts, data, err);
}

static ravel_source *odd_source(int64_t rows) {
    static const ravel_field fields[] = {
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "sample_weight", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32},
        {.name = "group", .kind = RAVEL_FIELD_SPREAD, .dtype = RAVEL_I64},
    };
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .count = rows, .fields = fields, .field_count = 4, .read = read_odd_rows};
    ravel_source *source = NULL;
    return ravel_source_callbacks(&hooks, &source, NULL) ? NULL : source;
}

static void random_mesh(ravel__rng *g, run *r, int32_t most) {
    static const char *const orders[] = {"tp-cp-dp-pp", "pp-dp-cp-tp", "cp-tp-pp-dp", "dp-pp-tp-cp"};
    do {
        r->mesh.tp = pick(g, 3), r->mesh.cp = pick(g, 3), r->mesh.dp = pick(g, 4), r->mesh.pp = pick(g, 4);
    } while (r->mesh.tp * r->mesh.cp * r->mesh.dp * r->mesh.pp > most);
    r->mesh.vpp = pick(g, 3);
    r->mesh.order = orders[ravel__rng_below(g, 4)];
}

static void random_options(ravel__rng *g, run *r) {
    static const int32_t methods[] = {RAVEL_METHOD_RAVEL, RAVEL_METHOD_NEXT_FIT, RAVEL_METHOD_FFD, RAVEL_METHOD_KK,
                                      RAVEL_METHOD_AS_IS};
    r->feed.owners = (int32_t)ravel__rng_below(g, 3);
    r->feed.prefetch = (int32_t)ravel__rng_below(g, 4);
    r->feed.samples = pick(g, ravel__rng_below(g, 2) ? 4 : 40); /* often fewer than ranks */
    r->feed.epochs = (int64_t)ravel__rng_below(g, 3);
    r->feed.shuffle = (int32_t)ravel__rng_below(g, 2);
    r->feed.drop_last = (int32_t)ravel__rng_below(g, 2);
    r->feed.cp_kind = (int32_t)ravel__rng_below(g, 3);
    r->feed.segments = (int32_t)ravel__rng_below(g, 2);
    r->feed.padding = (int32_t)ravel__rng_below(g, 2);
    r->feed.fixed_shape = ravel__rng_below(g, 4) == 0;
    r->feed.pad_token = (int32_t)ravel__rng_below(g, 9);
    if (ravel__rng_below(g, 3) == 0) r->feed.first_fields = "*";
    if (ravel__rng_below(g, 4) == 0) r->feed.last_fields = "labels,weights";
    if (ravel__rng_below(g, 3) == 0) r->ask_middle = ravel__rng_below(g, 8);
    r->plan.budget = 250 + pick(g, 300);
    r->plan.align = pick(g, 5);
    r->plan.max_samples = r->feed.fixed_shape ? 300 : ravel__rng_below(g, 2) ? 0 : 20;
    r->plan.method = methods[ravel__rng_below(g, 5)];
    r->plan.sync = (int32_t)ravel__rng_below(g, 3);
    r->plan.samples_per_update = ravel__rng_below(g, 3) ? 0 : pick(g, 10);
    if (r->mesh.cp == 1 && r->plan.method != RAVEL_METHOD_AS_IS && ravel__rng_below(g, 3) == 0)
        r->plan.layout = ravel__rng_below(g, 2) ? RAVEL_LAYOUT_PADDED : RAVEL_LAYOUT_PADDED_2D;
    r->plan.min_micro_steps = ravel__rng_below(g, 3) ? 0 : pick(g, 3);
    r->weights.mode = (int32_t)ravel__rng_below(g, 3);
    r->weights.dp_reduce = (int32_t)ravel__rng_below(g, 2);
    r->weights.step_reduce = (int32_t)ravel__rng_below(g, 2);
}

/* Hybrid widths: dp and cp are one pool, in any order that has no other axis between them. */
static void make_hybrid(ravel__rng *g, run *r) {
    static const char *const orders[] = {"tp-cp-dp-pp", "pp-dp-cp-tp", "cp-dp-tp-pp", "tp-pp-dp-cp"};
    r->mesh.order = orders[ravel__rng_below(g, 4)];
    r->plan.cp_pool = r->mesh.dp * r->mesh.cp;
    r->plan.cp_empty = (int32_t)ravel__rng_below(g, 2);
    r->plan.cp_tp = pick(g, 2);
    r->plan.budget = 200 / r->plan.cp_pool + 60 + pick(g, 100);
    r->plan.method = RAVEL_METHOD_RAVEL;
    r->plan.sync = RAVEL_SYNC_MICRO_STEP;
    r->plan.layout = RAVEL_LAYOUT_PACKED;
    if (!r->feed.fixed_shape && ravel__rng_below(g, 3) == 0) r->feed.total_multiple = pick(g, 30);
    r->plan.cost = (ravel_cost){pick(g, 1000), pick(g, 10), ravel__rng_below(g, 2) ? 0 : pick(g, 100000)};
}

TEST(feed_random_meshes_and_options_agree_with_a_single_rank) {
    ravel__rng g = ravel__rng_seed(check_seed());
    ravel_source *mock = mock_source(small_mock, "adv:f32:next,reward:f64:sample"), *odd = odd_source(60);
    CHECK(mock && odd);
    for (int64_t i = 0; i < check_rounds(120, 3000); i++) {
        run r;
        ravel_error err = RAVEL_ERROR_INIT;
        run_default(&r);
        random_mesh(&g, &r, 24);
        random_options(&g, &r);
        if (i % 3 == 0) make_hybrid(&g, &r);
        r.source = ravel__rng_below(&g, 2) ? mock : odd;
        int32_t ranks = r.mesh.tp * r.mesh.cp * r.mesh.dp * r.mesh.pp;
        ravel_status status = ravel_threads_run(ranks, NULL, run_rank, &r, &err);
        if (status)
            printf("    trial %lld: tp %d cp %d dp %d pp %d vpp %d %s owners %d method %d pool %d\n", (long long)i,
                   r.mesh.tp, r.mesh.cp, r.mesh.dp, r.mesh.pp, r.mesh.vpp, r.mesh.order, r.feed.owners, r.plan.method,
                   r.plan.cp_pool);
        CHECK_OK(status, &err);
    }
    ravel_source_free(mock);
    ravel_source_free(odd);
}

/* ---- rows instead of one token axis --------------------------------------------------------------------- */

enum { ROWS_BUDGET = 600, ROWS_ALIGN = 8 };

static int64_t columns(int64_t longest) {
    return (longest + ROWS_ALIGN - 1) / ROWS_ALIGN * ROWS_ALIGN;
}

/* Tokens before the first one that is learnt. */
static int64_t prompt_of(const ravel_ragged *row) {
    const uint8_t *mask = row->fields[ravel_ragged_find(row, "loss_mask")].data;
    int64_t t = 1;
    while (t < row->offsets[1] && !mask[t]) t++;
    return t < row->offsets[1] ? t : row->offsets[1];
}

/* The micro-batch is a store, which packs as rows whose responses begin in one column. */
static void check_rectangle(const ravel_micro_batch *m, int64_t prompt, int64_t response) {
    ravel_field tokens = {.name = "tokens", .dtype = RAVEL_I32, .data = m->tokens, .pad = -1};
    ravel_ragged store = {.size = sizeof store,
                          .count = m->thd->samples_count,
                          .offsets = m->offsets,
                          .prompts = m->prompts,
                          .fields = &tokens,
                          .field_count = 1};
    int32_t samples[64], rows[ROWS_BUDGET];
    void *table[] = {rows};
    ravel_padded_options options;
    ravel_padded padded = {.size = sizeof padded, .fields = table};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(store.count <= 64);
    for (int32_t i = 0; i < store.count; i++) samples[i] = i;
    const ravel_bin bin = {samples, store.count};
    ravel_padded_options_default(&options);
    options.side = RAVEL_PAD_2D, options.align = ROWS_ALIGN;
    CHECK_OK(ravel_padded_measure(&store, &bin, &options, &padded, &err), &err);
    CHECK(padded.prompt_columns == columns(prompt) && padded.columns == columns(prompt) + columns(response));
    CHECK_OK(ravel_padded_pack(&store, &bin, &options, &padded, &err), &err);
    for (int64_t i = 0; i < store.count; i++)
        CHECK(memcmp(rows + i * padded.columns + padded.prompt_columns - m->prompts[i], m->tokens + m->offsets[i],
                     (size_t)m->lengths[i] * sizeof *rows) == 0);
}

/* The samples of a bin that was planned as a rectangle lie one after the other, whole, and its rectangle fits. */
static void check_rows(const ravel_micro_batch *m, ravel_reader *reader) {
    int64_t longest = 0, prompt = 0, response = 0;
    for (int64_t i = 0; i < m->thd->samples_count; i++) {
        const ravel_samples *row;
        CHECK(ravel_reader_read(reader, &m->ids[i], 1, &row, NULL) == RAVEL_OK);
        const int32_t *want = row->ragged.fields[ravel_ragged_find(&row->ragged, "tokens")].data;
        int64_t length = row->ragged.offsets[1];
        CHECK(length == m->lengths[i] && m->thd->cu_seqlens[i + 1] - m->thd->cu_seqlens[i] == length);
        CHECK(memcmp(m->tokens + m->offsets[i], want, (size_t)length * sizeof *want) == 0);
        longest = length > longest ? length : longest;
        if (!m->prompts) continue;
        CHECK_EQ(m->prompts[i], prompt_of(&row->ragged));
        prompt = m->prompts[i] > prompt ? m->prompts[i] : prompt;
        response = length - m->prompts[i] > response ? length - m->prompts[i] : response;
    }
    int64_t wide = m->prompts ? columns(prompt) + columns(response) : columns(longest);
    CHECK(m->thd->samples_count * wide <= ROWS_BUDGET);
    if (m->prompts && m->thd->samples_count) check_rectangle(m, prompt, response);
}

static ravel_status pad_rank(ravel_comm *comm, void *user, ravel_error *err) {
    run *r = user;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_reader *reader = NULL;
    const ravel_feed_update *u;
    ravel_feed_options options = r->feed;
    options.plan = &r->plan;
    ravel_status status = ravel_mesh_create(comm, &r->mesh, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, r->source, &options, &feed, err);
    if (!status) status = ravel_reader_create(r->source, NULL, NULL, &reader, err);
    for (int64_t i = 0; i < r->updates && !status; i++) {
        ravel_micro_batch m;
        status = ravel_feed_next(feed, &u, err);
        if (!status) status = ravel_feed_verify(feed, r->source, err);
        if (status) break;
        for (ravel_feed_iter iter = ravel_feed_iterate(feed, 0); !status && ravel_feed_iter_next(&iter, &m);)
            check_rows(&m, reader);
    }
    ravel_reader_free(reader);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
}

TEST(feed_micro_batches_can_be_padded_rows) {
    ravel_source *source = mock_source(small_mock, "adv:f32:next,reward:f64:sample");
    ravel_error err = RAVEL_ERROR_INIT;
    run r;
    CHECK(source);
    run_default(&r);
    r.mesh.dp = 3;
    r.feed.first_fields = "*", r.feed.pad_token = 7, r.feed.samples = 50;
    r.plan.budget = ROWS_BUDGET, r.plan.align = ROWS_ALIGN, r.plan.layout = RAVEL_LAYOUT_PADDED;
    r.source = source;
    CHECK_OK(ravel_threads_run(3, NULL, pad_rank, &r, &err), &err);
    r.plan.layout = RAVEL_LAYOUT_PADDED_2D, err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(3, NULL, pad_rank, &r, &err), &err);
    r.plan.layout = RAVEL_LAYOUT_PADDED, r.mesh.dp = 1, r.mesh.cp = 3, err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK(ravel_threads_run(3, NULL, pad_rank, &r, &err) == RAVEL_E_UNSUPPORTED);
    ravel_source_free(source);
}

TEST(feed_pools_that_the_mesh_does_not_have_are_refused) {
    ravel_source *source = mock_source(small_mock, NULL);
    ravel_error err = RAVEL_ERROR_INIT;
    run r;
    CHECK(source);
    run_default(&r);
    r.mesh.tp = 2, r.mesh.cp = 2, r.mesh.dp = 2;
    r.source = source;
    r.plan.cp_pool = 8;
    CHECK_EQ(ravel_threads_run(8, NULL, run_rank, &r, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "the mesh has dp 2 x cp 2 ranks");
    r.plan.cp_pool = 4, r.mesh.order = "cp-tp-dp-pp", err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_threads_run(8, NULL, run_rank, &r, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "another axis lies between them");
    r.plan.method = RAVEL_METHOD_AS_IS, r.mesh.order = "tp-cp-dp-pp", err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_threads_run(8, NULL, run_rank, &r, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "method must then be ravel");
    ravel_source_free(source);
}
