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

static ravel_status use_feed(run *r, ravel_feed *feed, ravel_error *err) {
    const ravel_feed_update *update = NULL;
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < r->updates && !status; i++) {
        status = ravel_feed_next(feed, &update, err);
        if (!status) status = ravel_feed_verify(feed, r->source, err);
        if (status) break;
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
