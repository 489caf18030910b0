/* Shared prefixes in the feed: over meshes and owners, what a single rank works out; budgets count a shared token once. */
#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/feed.h>

#include <stdlib.h>

enum { ROWS = 96, BUDGET = 256 };

typedef struct run {
    ravel_mesh_options mesh;
    ravel_feed_options feed;
    ravel_plan_options plan;
    const ravel_source *source;
    int64_t tokens, shared; /* of all updates, as rank 0 sees them */
} run;

/* Four answers to each prompt; the last one is the first again, or its beginning. Routes are equal where the tokens are, but for
 * every fifth prompt, of which nothing can be shared. */
static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[128], routes[128], prompt = (int32_t)(row / 4), count = 0, *groups = user;
    ravel__rng shared = ravel__rng_seed((uint64_t)prompt),
               own = ravel__rng_seed(1000 + (uint64_t)(row % 4 == 3 ? row - 3 : row));
    uint8_t mask[128];
    int32_t length = 8 + (int32_t)ravel__rng_below(&shared, 60), answer = 1 + (int32_t)ravel__rng_below(&own, 30);
    while (count < length) tokens[count++] = (int32_t)ravel__rng_below(&shared, 500);
    if (row % 8 == 7) answer = (answer + 1) / 2;
    while (count < length + answer) tokens[count++] = (int32_t)ravel__rng_below(&own, 500);
    for (int32_t i = 0; i < count; i++) mask[i] = i >= length, routes[i] = prompt % 5 == 4 && groups ? (int32_t)row : i;
    const void *data[] = {mask, tokens, routes};
    return ravel_collector_add(collector, count, data, err);
}

static ravel_source *tree_source(void) {
    static const ravel_field fields[] = {
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "routes", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
    };
    static int32_t groups = 1;
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .count = ROWS, .fields = fields, .field_count = 3, .read = read_row, .user = &groups};
    ravel_source *source = NULL;
    return ravel_source_callbacks(&hooks, &source, NULL) ? NULL : source;
}

/* Every micro-batch is within its budget, and shares what its samples have in common. */
static bool check_micros(const ravel_feed *feed, const ravel_feed_update *u, int64_t *shared) {
    bool ok = true;
    for (int64_t s = 0; s < u->mine.micro_steps; s++) {
        ravel_micro_batch m;
        int64_t unique = 0;
        ok &= EXPECT(ravel_feed_micro(feed, 0, s, &m, NULL) == RAVEL_OK);
        for (int64_t i = 0; ok && i < m.thd->samples_count; i++) {
            int32_t same = m.shared ? m.shared[i] : 0;
            const int32_t *cu = m.thd->cu_seqlens_padded;
            unique += m.lengths[i] - same;
            *shared += same;
            if (same && m.tokens)
                ok &= memcmp(m.tokens + cu[i], m.tokens + cu[i - 1], (size_t)same * sizeof *m.tokens) == 0;
        }
        ok &= EXPECT(unique <= (int64_t)BUDGET * m.cp && !(m.filler && m.shared));
    }
    return EXPECT(ok);
}

static ravel_status run_rank(ravel_comm *comm, void *user, ravel_error *err) {
    run *r = user;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *u;
    ravel_feed_options options = r->feed;
    int64_t steps = 0, samples = 0, tokens = 0;
    ravel_status status = ravel_mesh_create(comm, &r->mesh, &mesh, err);
    if (status) return status;
    options.plan = &r->plan;
    status = ravel_feed_create(mesh, r->source, &options, &feed, err);
    while (!status && (status = ravel_feed_next(feed, &u, err)) == RAVEL_OK) {
        int64_t mine = 0;
        status = ravel_feed_verify(feed, r->source, err);
        if (status || !check_micros(feed, u, &mine)) break;
        (void)EXPECT(mine == u->mine.shared_tokens);
        if (u->counts.micro_steps > steps) steps = u->counts.micro_steps;
        if (u->counts.samples > samples) samples = u->counts.samples;
        if (u->counts.tokens > tokens) tokens = u->counts.tokens;
        if (ravel_comm_rank(comm)) continue;
        r->tokens += u->counts.tokens;
        r->shared += u->counts.shared_tokens;
    }
    ravel_feed_stats stats;
    if (feed) ravel_feed_read_stats(feed, &stats);
    if (feed) (void)EXPECT(stats.memory_bytes <= ravel_feed_bound(feed, steps, samples, tokens));
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

static void run_default(run *r, const ravel_source *source) {
    *r = (run){.source = source};
    ravel_mesh_options_default(&r->mesh);
    ravel_feed_options_default(&r->feed);
    ravel_plan_options_default(&r->plan);
    r->plan.budget = BUDGET;
    r->plan.cost = (ravel_cost){1000, 1, 0};
    r->feed.samples = 32;
    r->feed.epochs = 1;
    r->feed.share_prefix = RAVEL_SHARE_ON;
}

TEST(feed_tree_meshes_share_what_a_single_rank_does) {
    ravel_source *source = tree_source();
    CHECK(source);
    for (int32_t owners = 0; owners < 3; owners++)
        for (int32_t dp = 1; dp <= 4; dp++) {
            run r;
            ravel_error err = RAVEL_ERROR_INIT;
            run_default(&r, source);
            r.mesh.dp = dp, r.mesh.tp = dp == 2 ? 2 : 1, r.mesh.pp = dp == 3 ? 2 : 1;
            r.feed.owners = owners;
            r.feed.shuffle = dp % 2;
            r.feed.share_prefix = owners == 2 ? RAVEL_SHARE_AUTO : RAVEL_SHARE_ON;
            CHECK_OK(ravel_threads_run(r.mesh.dp * r.mesh.tp * r.mesh.pp, NULL, run_rank, &r, &err), &err);
            CHECK(r.shared > 0 && r.shared < r.tokens);
            if (!r.feed.shuffle) CHECK(3 * r.shared > r.tokens); /* answers to a prompt are in one batch */
        }
    ravel_source_free(source);
}

TEST(feed_tree_says_when_nothing_can_be_shared) {
    ravel_source *source = tree_source();
    run r;
    ravel_error err = RAVEL_ERROR_INIT;
    run_default(&r, source);
    r.mesh.cp = 2;
    CHECK_EQ(ravel_threads_run(2, NULL, run_rank, &r, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "share-prefix on is not possible with context parallelism");
    r.feed.share_prefix = RAVEL_SHARE_AUTO;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, run_rank, &r, &err), &err);
    CHECK(r.shared == 0 && r.tokens > 0);
    run_default(&r, source);
    r.feed.share_limit = BUDGET; /* of whole samples: bins of trees hold more */
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_threads_run(1, NULL, run_rank, &r, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "over share-limit, 256");
    ravel_source_free(source);
}
