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
    int64_t skipped;        /* rows */
    int64_t sent;           /* bytes, by all ranks */
} run;

/* Four answers to each prompt; the last one is the first again, or its beginning. Routes are equal where the tokens are, but for
 * every fifth prompt, of which nothing can be shared. */
static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[128], routes[128], prompt = (int32_t)(row / 4), count = 0, *groups = user;
    ravel__rng shared = ravel__rng_seed(check_seed() + (uint64_t)prompt),
               own = ravel__rng_seed(check_seed() + 1000 + (uint64_t)(row % 4 == 3 ? row - 3 : row));
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
static bool check_micros(const ravel_feed *feed, const ravel_feed_update *u, const run *r, int64_t *shared) {
    int64_t limit = r->feed.share_limit;
    bool ok = true;
    for (int64_t s = 0; s < u->mine.micro_steps; s++) {
        ravel_micro_batch m;
        int64_t unique = 0;
        ok &= EXPECT(ravel_feed_micro(feed, 0, s, &m, NULL) == RAVEL_OK);
        for (int64_t i = 0; ok && i < m.thd->samples_count; i++) {
            int32_t same = m.shared ? m.shared[i] : 0;
            const int32_t *cu = m.thd->cu_seqlens_padded;
            unique += m.lengths[i] - same;
            if (m.cp_first < 0 || m.cp_rank == 0) *shared += same; /* the first of a group counts */
            if (same && m.tokens)
                ok &= memcmp(m.tokens + cu[i], m.tokens + cu[i - 1], (size_t)same * sizeof *m.tokens) == 0;
        }
        ok &= EXPECT(unique <= (int64_t)r->plan.budget * m.cp && !(m.filler && m.shared));
        ok &= EXPECT(!m.shared || m.thd->local_tokens == m.thd->tokens); /* whole for context-parallel ranks too */
        for (int64_t i = 0; r->feed.keep_rows && i < m.thd->samples_count; i++)
            ok &= EXPECT(m.parts[i] == i % 2 && m.ids[i] == m.ids[i - i % 2]);
        ok &= EXPECT(!limit || m.thd->tokens <= limit);
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
        if (status || !check_micros(feed, u, r, &mine)) break;
        (void)EXPECT(mine == u->mine.shared_tokens);
        if (u->counts.micro_steps > steps) steps = u->counts.micro_steps;
        if (u->counts.samples > samples) samples = u->counts.samples;
        if (u->counts.tokens > tokens) tokens = u->counts.tokens;
        if (ravel_comm_rank(comm)) continue;
        r->tokens += u->counts.tokens;
        r->shared += u->counts.shared_tokens;
        r->skipped += u->counts.skipped;
    }
    ravel_feed_stats stats;
    if (feed) ravel_feed_read_stats(feed, &stats);
    if (feed) (void)EXPECT(stats.memory_bytes <= ravel_feed_bound(feed, steps, samples, tokens));
    if (status == RAVEL_E_END)
        status = ravel_comm_allreduce(comm, &stats.sent_bytes, &tokens, 1, RAVEL_I64, RAVEL_SUM, err);
    if (!ravel_comm_rank(comm)) r->sent = tokens;
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
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
            r.mesh.cp = dp == 4 ? 2 : owners == 1 ? 3 : 1;
            r.feed.owners = owners;
            r.feed.shuffle = dp % 2;
            r.feed.share_prefix = owners == 2 ? RAVEL_SHARE_AUTO : RAVEL_SHARE_ON;
            CHECK_OK(ravel_threads_run(r.mesh.dp * r.mesh.tp * r.mesh.pp * r.mesh.cp, NULL, run_rank, &r, &err), &err);
            CHECK(r.shared > 0 && r.shared < r.tokens);
            if (!r.feed.shuffle) CHECK(3 * r.shared > r.tokens); /* answers to a prompt are in one batch */
        }
    ravel_source_free(source);
}

/* Four answers of some 60 tokens to each prompt of some 240; with `user` one. */
static ravel_status read_long(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    ravel__rng shared = ravel__rng_seed((uint64_t)(user ? row : row / 4));
    ravel__rng own = ravel__rng_seed(1000 + (uint64_t)row); /* fixed: every reader of a row sees the same */
    int32_t tokens[400], count = 0, length = 200 + (int32_t)ravel__rng_below(&shared, 80);
    uint8_t mask[400];
    int32_t answer = 20 + (int32_t)ravel__rng_below(&own, 80);
    while (count < length) mask[count] = 0, tokens[count++] = (int32_t)ravel__rng_below(&shared, 500);
    while (count < length + answer) mask[count] = 1, tokens[count++] = (int32_t)ravel__rng_below(&own, 500);
    const void *data[] = {mask, tokens};
    return ravel_collector_add(collector, count, data, err);
}

/* Finding what is shared sends less than sharing saves, wherever the rows of a prompt are; and a number per sample and
 * rank where nothing is shared. */
TEST(feed_tree_sends_less) {
    static const ravel_field fields[] = {{.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
                                         {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32}};
    static int32_t alone;
    for (int32_t i = 0; i < 16; i++) {
        ravel_source_hooks hooks = {
            .size = sizeof hooks, .count = ROWS, .fields = fields, .field_count = 2, .read = read_long};
        ravel_source *source = NULL;
        run off, on;
        ravel_error err = RAVEL_ERROR_INIT;
        hooks.user = i / 8 ? &alone : NULL;
        CHECK(ravel_source_callbacks(&hooks, &source, NULL) == RAVEL_OK);
        run_default(&off, source);
        off.plan.budget = 1024;
        off.mesh.dp = 2 + i % 4;
        off.feed.samples = ROWS;
        off.feed.shuffle = i / 4 % 2;
        on = off;
        off.feed.share_prefix = RAVEL_SHARE_OFF;
        CHECK_OK(ravel_threads_run(off.mesh.dp, NULL, run_rank, &off, &err), &err);
        CHECK_OK(ravel_threads_run(on.mesh.dp, NULL, run_rank, &on, &err), &err);
        CHECK(hooks.user ? on.shared == 0 : 3 * on.shared > on.tokens);
        CHECK(on.sent < (hooks.user ? off.sent + 8 * ROWS * (on.mesh.dp - 1) + 1 : off.sent));
        ravel_source_free(source);
    }
}

TEST(feed_tree_groups_have_widths) {
    ravel_source *source = tree_source();
    CHECK(source);
    for (int32_t owners = 0; owners < 3; owners++)
        for (int32_t i = 0; i < 4; i++) {
            run r;
            ravel_error err = RAVEL_ERROR_INIT;
            run_default(&r, source);
            r.mesh.dp = 1 + i, r.mesh.cp = i % 2 + 1, r.mesh.pp = i == 1 ? 2 : 1;
            r.plan.cp_pool = r.mesh.dp * r.mesh.cp;
            r.plan.cp_empty = i / 2;
            r.plan.cost = (ravel_cost){10, 1, 0};
            r.feed.owners = owners;
            r.feed.share_prefix = i == 3 ? RAVEL_SHARE_AUTO : RAVEL_SHARE_ON;
            CHECK_OK(ravel_threads_run(r.plan.cp_pool * r.mesh.pp, NULL, run_rank, &r, &err), &err);
            CHECK(r.shared > 0 && r.shared < r.tokens);
        }
    ravel_source_free(source);
}

/* A row is two answers to a prompt; every second row has the prompt of the row before, or (`user`) each has its own. */
static ravel_status read_pair(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    ravel__rng shared = ravel__rng_seed((uint64_t)(user ? row : row / 2));
    ravel__rng own = ravel__rng_seed(500 + (uint64_t)row); /* fixed: every reader of a row sees the same */
    int32_t tokens[96], length = 4 + (int32_t)ravel__rng_below(&shared, 50);
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < length; i++) tokens[i] = (int32_t)ravel__rng_below(&shared, 500);
    for (int k = 0; k < 2 && !status; k++) {
        int32_t count = length + 1 + (int32_t)ravel__rng_below(&own, 40);
        for (int32_t i = length; i < count; i++) tokens[i] = (int32_t)ravel__rng_below(&own, 500);
        const void *data[] = {tokens};
        status = ravel_collector_add(collector, count, data, err);
    }
    return status;
}

/* Both samples of a row are in one bin, side by side; with shared prefixes a budget holds more of them. */
TEST(feed_keeps_rows) {
    static const ravel_field field = {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32};
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .count = ROWS, .fields = &field, .field_count = 1, .read = read_pair};
    ravel_source *source = NULL;
    int64_t shared[3] = {0};
    for (int32_t i = 0; i < 54; i++) {
        run r;
        ravel_error err = RAVEL_ERROR_INIT;
        hooks.user = i % 2 ? &hooks : NULL;
        CHECK(ravel_source_callbacks(&hooks, &source, NULL) == RAVEL_OK);
        run_default(&r, source);
        r.feed.keep_rows = 1;
        r.feed.owners = i % 3;
        r.feed.share_prefix = i / 6 % 3;
        r.mesh.dp = 1 + i % 4, r.mesh.cp = i < 18 ? 1 : 2, r.mesh.pp = i % 3 == 1 ? 2 : 1;
        r.plan.cp_pool = i < 36 ? 0 : r.mesh.dp * r.mesh.cp;
        if (r.plan.cp_pool) r.plan.budget = 160; /* less than some rows */
        CHECK_OK(ravel_threads_run(r.mesh.dp * r.mesh.cp * r.mesh.pp, NULL, run_rank, &r, &err), &err);
        CHECK(r.tokens > 0 && (r.shared > 0 || r.feed.share_prefix != RAVEL_SHARE_ON));
        shared[r.feed.share_prefix] += r.shared;
        ravel_source_free(source);
    }
    CHECK(shared[RAVEL_SHARE_OFF] == 0 && shared[RAVEL_SHARE_AUTO] > 0 && shared[RAVEL_SHARE_ON] > 0);
}

/* With oversize skip no way of sharing leaves out a row that another one holds, unless it was asked for. */
TEST(feed_tree_auto_leaves_out_no_row_that_fits) {
    static const ravel_field field = {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32};
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .count = ROWS, .fields = &field, .field_count = 1, .read = read_pair};
    ravel_source *source = NULL;
    int64_t helped = 0, harmed = 0;
    CHECK(ravel_source_callbacks(&hooks, &source, NULL) == RAVEL_OK);
    for (int32_t i = 0; i < 48; i++) {
        int64_t skipped[3], tokens[3];
        for (int32_t share = 0; share < 3; share++) {
            run r;
            ravel_error err = RAVEL_ERROR_INIT;
            run_default(&r, source);
            r.plan.oversize = RAVEL_OVERSIZE_SKIP;
            r.feed.share_prefix = share;
            r.feed.keep_rows = i % 2;
            r.mesh.cp = 1 + i / 2 % 2;
            r.plan.budget = (i % 2 ? 94 : 60) / r.mesh.cp + i / 4;
            if (i % 3 == 2 && share == RAVEL_SHARE_AUTO) r.feed.share_limit = 2 * r.plan.budget * r.mesh.cp;
            CHECK_OK(ravel_threads_run(r.mesh.cp, NULL, run_rank, &r, &err), &err);
            skipped[share] = r.skipped;
            tokens[share] = r.tokens;
        }
        int64_t least =
            skipped[RAVEL_SHARE_ON] < skipped[RAVEL_SHARE_OFF] ? skipped[RAVEL_SHARE_ON] : skipped[RAVEL_SHARE_OFF];
        CHECK(skipped[RAVEL_SHARE_AUTO] <= (i % 3 == 2 ? skipped[RAVEL_SHARE_OFF] : least));
        CHECK(tokens[RAVEL_SHARE_AUTO] >= tokens[RAVEL_SHARE_OFF]);
        helped += skipped[RAVEL_SHARE_ON] < skipped[RAVEL_SHARE_OFF];
        harmed += skipped[RAVEL_SHARE_ON] > skipped[RAVEL_SHARE_OFF];
    }
    CHECK(helped > 0 && harmed > 0);
    run r;
    ravel_error err = RAVEL_ERROR_INIT;
    run_default(&r, source);
    r.plan.oversize = RAVEL_OVERSIZE_SKIP;
    r.plan.budget = r.feed.share_limit = 100; /* a lower budget would be within the limit without the longest rows */
    r.feed.share_prefix = RAVEL_SHARE_AUTO;
    CHECK_OK(ravel_threads_run(1, NULL, run_rank, &r, &err), &err);
    CHECK(r.skipped == 0 && r.tokens > 0);
    ravel_source_free(source);
}

TEST(feed_tree_says_when_nothing_can_be_shared) {
    ravel_source *source = tree_source();
    run r;
    ravel_error err = RAVEL_ERROR_INIT;
    run_default(&r, source);
    r.mesh.dp = 2;
    r.plan.layout = RAVEL_LAYOUT_PADDED;
    CHECK_EQ(ravel_threads_run(2, NULL, run_rank, &r, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "share-prefix on is not possible with a padded layout");
    r.feed.share_prefix = RAVEL_SHARE_AUTO;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, run_rank, &r, &err), &err);
    CHECK(r.shared == 0 && r.tokens > 0);
    run_default(&r, source);
    r.feed.share_limit = BUDGET; /* of whole samples: bins of trees hold more, so they become smaller */
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(1, NULL, run_rank, &r, &err), &err);
    CHECK(r.shared > 0);
    r.feed.share_limit = 64; /* less than a sample */
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_threads_run(1, NULL, run_rank, &r, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "over share-limit, 64");
    ravel_source_free(source);
}
