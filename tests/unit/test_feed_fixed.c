/* Samples of a fixed shape (images, latents): no tokens, a cost each, micro-batches by count, one weight per sample. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/feed.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { MOST = 120, WIDTH = 12 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the job, which all ranks write */

/* One batch, of which each rank submits a part, and where its samples came out. */
typedef struct job {
    int32_t ranks, budget, owners, weighted, batches;
    int64_t count, seed;
    float latents[MOST][WIDTH];
    int64_t cost[MOST];
    double weight[MOST];
    float result[MOST][2]; /* written by the rank that has the sample */
    int32_t seen[MOST];
    double weights; /* sum over all ranks */
    int64_t most, least_steps, most_steps;
    double idle;
} job;

static void fill(job *j, ravel__rng *g) {
    memset(j->seen, 0, sizeof j->seen);
    j->weights = 0;
    j->most = j->most_steps = 0;
    j->least_steps = INT64_MAX;
    for (int64_t i = 0; i < j->count; i++) {
        for (int k = 0; k < WIDTH; k++) j->latents[i][k] = (float)ravel__rng_below(g, 1000) / 8;
        j->cost[i] = 1 + (int64_t)ravel__rng_below(g, 2) * (int64_t)ravel__rng_below(g, 500);
        j->weight[i] = j->weighted ? (double)ravel__rng_below(g, 5) / 4 : 1;
    }
    if (j->weighted && j->count) j->weight[0] = 1; /* not all 0 */
}

static double total_weight(const job *j) {
    double sum = 0;
    for (int64_t i = 0; i < j->count; i++) sum += j->weight[i];
    return sum;
}

/* A model's answer to each sample goes back to its place in the micro-batch's store, and from there to its id. */
static ravel_status scatter(job *j, const ravel_micro_batch *m, const float *latents, ravel_error *err) {
    float answers[2 * (MOST + 1)], back[2 * MOST];
    ravel_ragged store = {.size = sizeof store, .count = m->thd->samples_count};
    ravel_field field = {.name = "answer", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32, .width = 2};
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    for (int64_t i = 0; i < m->thd->sequences; i++) {
        answers[2 * i] = latents[i * WIDTH] + 1;
        answers[2 * i + 1] = latents[i * WIDTH + WIDTH - 1];
    }
    ravel_status status = ravel_thd_unpack(&store, &options, m->thd, &field, answers, back, err);
    for (int64_t i = 0; !status && i < m->thd->samples_count; i++)
        memcpy(j->result[m->ids[i]], back + 2 * i, sizeof j->result[0]);
    return status;
}

static ravel_status use(job *j, const ravel_feed *feed, const ravel_feed_update *u, ravel_error *err) {
    int64_t at = ravel_feed_find(feed, "latents");
    ravel_status status = RAVEL_OK;
    (void)pthread_mutex_lock(&lock);
    j->least_steps = u->mine.micro_steps < j->least_steps ? u->mine.micro_steps : j->least_steps;
    j->most_steps = u->mine.micro_steps > j->most_steps ? u->mine.micro_steps : j->most_steps;
    for (int64_t s = 0; s < u->mine.micro_steps && !status; s++) {
        ravel_micro_batch m;
        status = ravel_feed_micro(feed, 0, s, &m, err);
        if (status) break;
        const float *latents = m.thd->fields[at];
        EXPECT(!m.tokens && !m.labels && m.weights && m.thd->local_tokens == m.thd->sequences);
        if (m.filler) EXPECT(m.weights[0] == 0);
        j->most = m.thd->samples_count > j->most ? m.thd->samples_count : j->most;
        for (int64_t i = 0; i < m.thd->samples_count; i++) {
            int64_t id = m.ids[i];
            double want = j->weight[id] / total_weight(j);
            j->seen[id]++;
            EXPECT(memcmp(latents + i * WIDTH, j->latents[id], sizeof j->latents[0]) == 0);
            EXPECT(fabs(m.weights[i] - want) <= 1e-7 * want && m.lengths[i] == 1 && m.loss_tokens[i] == 1);
            j->weights += m.weights[i];
        }
        status = scatter(j, &m, latents, err);
    }
    if (u->plan) j->idle = u->plan->idle_micro_step;
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static ravel_status run_rank(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    int32_t rank = ravel_comm_rank(comm);
    int root = j->owners == RAVEL_OWNERS_ROOT_ONLY;
    int64_t begin = root ? 0 : j->count * rank / j->ranks, end = root ? j->count : j->count * (rank + 1) / j->ranks,
            ids[MOST];
    ravel_field fields[] = {
        {.name = "latents", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32, .width = WIDTH, .data = j->latents[begin]},
        {.name = "cost", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_I64, .data = j->cost + begin},
        {.name = "sample_weight", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F64, .data = j->weight + begin}};
    ravel_samples mine = {
        .ragged = {.size = sizeof(ravel_ragged), .count = end - begin, .fields = fields, .field_count = 3},
        .rows = ids};
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *u;
    ravel_mesh_options layout;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_mesh_options_default(&layout);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    layout.dp = j->ranks;
    plan.budget = j->budget;
    options.plan = &plan;
    options.fields = fields, options.field_count = 3;
    options.owners = j->owners;
    for (int64_t i = begin; i < end; i++) ids[i - begin] = i;
    ravel_status status = ravel_mesh_create(comm, &layout, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, NULL, &options, &feed, err);
    if (!status) status = ravel_feed_submit(feed, ravel_feed_is_owner(feed) ? &mine : NULL, err);
    if (!status) status = ravel_feed_next(feed, &u, err);
    if (!status) status = use(j, feed, u, err);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
}

TEST(feed_fixed_shapes_come_once_in_even_micro_batches_with_exact_weights) {
    ravel__rng g = ravel__rng_seed(check_seed());
    static job j;
    for (int64_t trial = 0; trial < check_rounds(60, 3000); trial++) {
        ravel_error err = RAVEL_ERROR_INIT;
        j.ranks = 1 + (int32_t)ravel__rng_below(&g, 5);
        j.count = 1 + (int64_t)ravel__rng_below(&g, MOST);
        j.budget = 1 + (int32_t)ravel__rng_below(&g, 16);
        j.weighted = (int32_t)ravel__rng_below(&g, 2);
        j.owners = ravel__rng_below(&g, 3) ? RAVEL_OWNERS_EVERY_RANK : RAVEL_OWNERS_ROOT_ONLY;
        fill(&j, &g);
        CHECK_OK(ravel_threads_run(j.ranks, NULL, run_rank, &j, &err), &err);
        for (int64_t i = 0; i < j.count; i++) {
            CHECK_EQ(j.seen[i], 1);
            CHECK(j.result[i][0] == j.latents[i][0] + 1 && j.result[i][1] == j.latents[i][WIDTH - 1]);
        }
        CHECK(fabs(j.weights - 1) < 1e-5 && j.most <= j.budget && j.least_steps == j.most_steps);
    }
}

/* By the caller's cost, not by count: one sample costs as much as the others together. */
TEST(feed_fixed_shapes_are_balanced_by_their_costs) {
    static job j;
    ravel__rng g = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    j = (job){.ranks = 4, .budget = 64, .count = 100};
    fill(&j, &g);
    for (int64_t i = 0; i < j.count; i++) j.cost[i] = i % 10 ? 10 : 300;
    CHECK_OK(ravel_threads_run(j.ranks, NULL, run_rank, &j, &err), &err);
    CHECK(j.idle < 0.03); /* by count alone, 25 samples each, it can be .3 */
}

TEST(feed_fixed_shapes_say_what_they_cannot) {
    const ravel_field latents = {.name = "latents", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32, .width = 4};
    ravel_comm *self = NULL;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_mesh_options layout;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_error err = RAVEL_ERROR_INIT;
    const ravel_feed_update *u;
    float data[8] = {0};
    const int64_t lengths[] = {0, 3, 5};
    ravel_field given = latents;
    ravel_mesh_options_default(&layout);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    plan.budget = 4;
    options.plan = &plan;
    options.fields = &latents, options.field_count = 1;
    CHECK_OK(ravel_comm_self(NULL, &self, &err), &err);
    CHECK_OK(ravel_mesh_create(self, &layout, &mesh, &err), &err);
    plan.align = 2;
    CHECK_EQ(ravel_feed_create(mesh, NULL, &options, &feed, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "samples without tokens cannot be cut, aligned or padded");
    plan.align = 1, options.share_prefix = RAVEL_SHARE_ON, err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_feed_create(mesh, NULL, &options, &feed, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "share-prefix on");
    options.share_prefix = RAVEL_SHARE_AUTO, err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_OK(ravel_feed_create(mesh, NULL, &options, &feed, &err), &err);
    given.data = data;
    ravel_samples samples = {
        .ragged = {.size = sizeof(ravel_ragged), .count = 2, .offsets = lengths, .fields = &given, .field_count = 1}};
    CHECK_OK(ravel_feed_submit(feed, &samples, &err), &err);
    CHECK_EQ(ravel_feed_next(feed, &u, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "cost:i64:sample");
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    ravel_comm_free(self);
}
