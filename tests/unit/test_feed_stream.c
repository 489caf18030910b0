/* What a feed promises about its stream: the same samples and weights on any number of ranks, cursors, the end,
 * iterators for chunks, rows that stay whole, samples that are submitted, errors that everybody hears. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/feed.h>

#include <pthread.h>
#include <stdlib.h>

enum { MOST_UPDATES = 12, MOST_IDS = 4000 };

/* What all ranks of a run saw, added up. */
typedef struct record {
    int64_t updates;
    int64_t ids[MOST_UPDATES];    /* number of samples, and */
    uint64_t mixed[MOST_UPDATES]; /* a sum over samples of mix(id, tokens) that order cannot change */
    double weights[MOST_UPDATES];
    ravel_update_counts counts[MOST_UPDATES];
    char cursor[MOST_UPDATES][120];
} record;

typedef struct stream {
    int32_t dp, cp;
    int64_t samples, epochs, take;
    int32_t owners, prefetch;
    const char *resume; /* a cursor, or NULL */
    const ravel_source *source;
    record *out;
    pthread_mutex_t *lock;
} stream;

static void note_micro(const stream *s, const ravel_micro_batch *m, int64_t update) {
    record *out = s->out;
    double sum = 0;
    for (int64_t i = 0; i < m->thd->local_tokens; i++) sum += (double)m->weights[i];
    out->weights[update] += sum;
    if (s->cp > 1 && m->thd->samples_count) return; /* tokens are in shards */
    for (int64_t i = 0; i < m->thd->samples_count; i++) {
        uint64_t mixed = ravel__mix64((uint64_t)m->ids[i]);
        const int32_t *tokens = m->tokens + m->thd->cu_seqlens_padded[i];
        for (int64_t t = 0; t < m->lengths[i]; t++) mixed = ravel__mix64(mixed ^ (uint64_t)tokens[t]);
        out->ids[update]++;
        out->mixed[update] += mixed;
    }
}

static ravel_status note_update(const stream *s, ravel_feed *feed, const ravel_feed_update *u) {
    ravel_micro_batch m;
    (void)pthread_mutex_lock(s->lock);
    for (ravel_feed_iter it = ravel_feed_iterate(feed, 0); ravel_feed_iter_next(&it, &m);) note_micro(s, &m, u->number);
    s->out->counts[u->number] = u->counts;
    s->out->updates = u->number + 1;
    (void)ravel_cursor_format(ravel_feed_order(feed), ravel_feed_cursor(feed), s->out->cursor[u->number], 120);
    (void)pthread_mutex_unlock(s->lock);
    return RAVEL_OK;
}

static ravel_status stream_rank(ravel_comm *comm, void *user, ravel_error *err) {
    const stream *s = user;
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *update;
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    mesh_options.cp = s->cp;
    plan.budget = 300;
    options.plan = &plan;
    options.samples = s->samples;
    options.epochs = s->epochs;
    options.owners = s->owners;
    options.prefetch = s->prefetch;
    options.first_fields = "*";
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, s->source, &options, &feed, err);
    if (!status && s->resume) {
        ravel_cursor cursor;
        status = ravel_cursor_parse(ravel_feed_order(feed), s->resume, strlen(s->resume), &cursor, err);
        if (!status) status = ravel_feed_seek(feed, cursor, err);
    }
    for (int64_t i = 0; i < s->take && !status; i++) {
        status = ravel_feed_next(feed, &update, err);
        if (!status) status = note_update(s, feed, update);
    }
    if (status == RAVEL_E_END) EXPECT(ravel_feed_next(feed, &update, err) == RAVEL_E_END);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

static ravel_status run_stream(stream s, record *out, ravel_error *err) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    memset(out, 0, sizeof *out);
    s.out = out;
    s.lock = &lock;
    return ravel_threads_run(s.dp * s.cp, NULL, stream_rank, &s, err);
}

static ravel_source *some_source(int64_t count) {
    static char mock[200];
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_source_options_default(&options);
    (void)snprintf(mock, sizeof mock,
                   "{\"type\":\"uniform\",\"min_seq_len\":1,\"max_seq_len\":90,\"count\":%lld,\"prompt_share\":0.4}",
                   (long long)count);
    options.mock = mock;
    return ravel_source_open(&options, &source, NULL) ? NULL : source;
}

TEST(feed_stream_is_the_same_for_any_number_of_ranks) {
    ravel_source *source = some_source(100);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(source);
    record one, other;
    stream s = {.dp = 1, .cp = 1, .samples = 32, .epochs = 2, .take = MOST_UPDATES, .source = source};
    CHECK_OK(run_stream(s, &one, &err), &err);
    CHECK_EQ(one.updates, 7); /* 200 rows: six full batches, and 8 left */
    CHECK_EQ(one.ids[6], 8);
    static const int32_t shapes[][3] = {{2, 1, 0}, {4, 1, 1}, {7, 1, 2}, {2, 2, 0}, {1, 4, 1}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        s.dp = shapes[k][0], s.cp = shapes[k][1], s.owners = shapes[k][2], s.prefetch = (int32_t)k;
        CHECK_OK(run_stream(s, &other, &err), &err);
        CHECK_EQ(other.updates, one.updates);
        for (int64_t u = 0; u < one.updates; u++) {
            CHECK(s.cp > 1 || (other.ids[u] == one.ids[u] && other.mixed[u] == one.mixed[u]));
            CHECK(other.weights[u] > 0.99999 && other.weights[u] < 1.00001); /* token-mean sums to one */
            CHECK(other.counts[u].tokens == one.counts[u].tokens && other.counts[u].samples == one.counts[u].samples);
            CHECK(other.counts[u].loss_tokens == one.counts[u].loss_tokens);
            CHECK(other.counts[u].squares_low == one.counts[u].squares_low);
            CHECK_STR(other.cursor[u], one.cursor[u]);
        }
    }
    ravel_source_free(source);
}

TEST(feed_goes_on_from_a_cursor_in_the_middle_of_an_epoch) {
    ravel_source *source = some_source(100);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(source);
    record whole, rest;
    stream s = {.dp = 2, .cp = 1, .samples = 30, .epochs = 3, .take = MOST_UPDATES, .source = source, .prefetch = 1};
    CHECK_OK(run_stream(s, &whole, &err), &err);
    CHECK_EQ(whole.updates, 10);
    for (int64_t at = 0; at < 9; at++) { /* with prefetch, the cursor is that of what was used, not of what was read */
        s.resume = whole.cursor[at];
        s.dp = 1 + (int32_t)at % 3;
        s.prefetch = (int32_t)at;
        CHECK_OK(run_stream(s, &rest, &err), &err);
        CHECK_EQ(rest.updates, 9 - at);
        for (int64_t u = 0; u < rest.updates; u++) CHECK(rest.mixed[u] == whole.mixed[at + 1 + u]);
    }
    ravel_source_free(source);
}

/* ---- what a single rank can show ------------------------------------------------------------------------ */

typedef struct alone {
    ravel_comm *comm;
    ravel_mesh *mesh;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_feed *feed;
    ravel_error err;
} alone;

static bool alone_open(alone *a, int32_t vpp) {
    ravel_mesh_options mesh_options;
    memset(a, 0, sizeof *a);
    ravel_mesh_options_default(&mesh_options);
    mesh_options.vpp = vpp;
    ravel_feed_options_default(&a->options);
    ravel_plan_options_default(&a->plan);
    a->plan.budget = 300;
    a->options.plan = &a->plan;
    return ravel_comm_self(NULL, &a->comm, &a->err) == RAVEL_OK &&
           ravel_mesh_create(a->comm, &mesh_options, &a->mesh, &a->err) == RAVEL_OK;
}

static void alone_close(alone *a) {
    ravel_feed_free(a->feed);
    ravel_mesh_free(a->mesh);
    ravel_comm_free(a->comm);
}

TEST(feed_chunks_get_what_their_part_of_the_model_needs) {
    ravel_source *source = some_source(40);
    alone a;
    CHECK(source && alone_open(&a, 3));
    a.options.samples = 20;
    a.options.ask = 0;
    CHECK_OK(ravel_feed_create(a.mesh, source, &a.options, &a.feed, &a.err), &a.err);
    const ravel_feed_update *u;
    CHECK_OK(ravel_feed_next(a.feed, &u, &a.err), &a.err);
    CHECK(u->counts.micro_steps > 1);
    for (int32_t chunk = 0; chunk < 3; chunk++) {
        ravel_feed_iter it = ravel_feed_iterate(a.feed, chunk);
        ravel_micro_batch m;
        int64_t steps = 0;
        for (; ravel_feed_iter_next(&it, &m); steps++) {
            CHECK(m.first == (chunk == 0) && m.last == (chunk == 2) && m.chunk == chunk && m.step == steps);
            CHECK(!m.tokens == (chunk != 0) && !m.labels == (chunk != 2) && !m.weights == (chunk != 2));
            CHECK(m.thd->positions && m.thd->cu_seqlens && m.ids && m.thd->local_tokens > 0);
            int64_t mask = ravel_feed_find(a.feed, "loss_mask");
            CHECK(mask >= 0 && !m.thd->fields[mask] == (chunk != 2));
        }
        CHECK_EQ(steps, u->counts.micro_steps);
    }
    ravel_micro_batch m;
    CHECK_EQ(ravel_feed_micro(a.feed, 3, 0, &m, &a.err), RAVEL_E_ARGUMENT);
    CHECK_HAS(a.err.message, "3 chunks");
    CHECK_EQ(ravel_feed_micro(a.feed, 0, u->counts.micro_steps, &m, NULL), RAVEL_E_ARGUMENT);
    CHECK_EQ(ravel_feed_find(a.feed, "nothing"), -1);
    alone_close(&a);
    ravel_source_free(source);
}

/* Row r has r % 4 + 1 parts of 10 + part tokens. */
static ravel_status read_rows(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[64];
    int64_t bounds[5] = {0};
    (void)user;
    for (int64_t i = 0; i < row % 4 + 1; i++) bounds[i + 1] = bounds[i] + 10 + i;
    for (int i = 0; i < 64; i++) tokens[i] = (int32_t)(row * 100 + i);
    const void *data[] = {tokens};
    return ravel_collector_add_packed(collector, row % 4 + 1, bounds, NULL, data, err);
}

TEST(feed_keeps_packed_rows_whole_as_is_and_replans_them_otherwise) {
    static const ravel_field fields[] = {{.name = "tokens", .dtype = RAVEL_I32}};
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .count = 16, .fields = fields, .field_count = 1, .read = read_rows};
    ravel_source *source = NULL;
    CHECK(ravel_source_callbacks(&hooks, &source, NULL) == RAVEL_OK);
    for (int as_is = 0; as_is < 2; as_is++) {
        alone a;
        const ravel_feed_update *u;
        CHECK(alone_open(&a, 1));
        a.options.samples = 8;
        a.options.shuffle = 0;
        a.plan.budget = 80;
        if (as_is) a.plan.method = RAVEL_METHOD_AS_IS;
        CHECK_OK(ravel_feed_create(a.mesh, source, &a.options, &a.feed, &a.err), &a.err);
        CHECK_OK(ravel_feed_next(a.feed, &u, &a.err), &a.err);
        CHECK_EQ(u->counts.samples, 20);
        CHECK_EQ(u->counts.loss_tokens, u->counts.tokens - 20); /* no mask: all but each first token */
        CHECK(as_is ? u->counts.micro_steps == 8 : u->counts.micro_steps <= 4);
        for (int64_t step = 0; as_is && step < 8; step++) {
            ravel_micro_batch m;
            CHECK_OK(ravel_feed_micro(a.feed, 0, step, &m, &a.err), &a.err);
            CHECK_EQ(m.thd->samples_count, step % 4 + 1);
            for (int64_t i = 0; i < m.thd->samples_count; i++)
                CHECK(m.ids[i] == step && m.parts[i] == i && m.lengths[i] == 10 + i);
            for (int64_t t = 0; t < m.thd->local_tokens; t++) CHECK_EQ(m.tokens[t], step * 100 + t);
        }
        CHECK_OK(ravel_feed_verify(a.feed, source, &a.err), &a.err);
        alone_close(&a);
    }
    ravel_source_free(source);
}

/* Whether "row N (...): sample I has ..." names the first sample of the stream that is longer. */
static int is_first_over(const ravel_source *source, const ravel_order *order, const char *message, int64_t most) {
    int64_t row = -1, length = 0, i = -1;
    long long said_row = -1, said_sample = -1;
    ravel_reader *reader = NULL;
    if (ravel_reader_create(source, NULL, NULL, &reader, NULL)) return 0;
    while (length <= most) {
        const ravel_samples *samples;
        ravel_order_rows(order, (ravel_cursor){0, 0}, ++i, 1, &row);
        if (ravel_reader_read(reader, &row, 1, &samples, NULL)) break;
        length = samples->ragged.offsets[1];
    }
    ravel_reader_free(reader);
    const char *sample = strstr(message, "): sample ");
    return sample && sscanf(message, "row %lld", &said_row) == 1 && said_row == row &&
           sscanf(sample, "): sample %lld", &said_sample) == 1 && said_sample == i;
}

TEST(feed_says_what_is_wrong_with_options_and_data) {
    ravel_source *source = some_source(40);
    static const ravel_field clash[] = {{.name = "tokens", .dtype = RAVEL_I32},
                                        {.name = "weights", .dtype = RAVEL_F32}};
    const ravel_feed_update *u;
    CHECK(source);
    static const struct {
        const char *says;
        int what;
    } bad[] = {
        {"plan options", 0}, {"padded layouts have none", 1},    {"max-samples", 2}, {"\"nothing\"", 3}, {"samples", 4},
        {"no source", 5},    {"which the feed makes itself", 6}, {"epochs", 7},      {"as-is", 8}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        alone a;
        CHECK(alone_open(&a, 1));
        if (bad[i].what == 0) a.options.plan = NULL;
        if (bad[i].what == 1) a.plan.layout = RAVEL_LAYOUT_PADDED_2D, a.plan.method = RAVEL_METHOD_AS_IS;
        if (bad[i].what == 2) a.options.fixed_shape = 1;
        if (bad[i].what == 3) a.options.last_fields = "labels,nothing";
        if (bad[i].what == 4) a.options.samples = 0;
        if (bad[i].what == 6) a.options.fields = clash, a.options.field_count = 2;
        if (bad[i].what == 7) a.options.epochs = -1;
        if (bad[i].what == 8) a.plan.layout = RAVEL_LAYOUT_PADDED, a.plan.method = RAVEL_METHOD_AS_IS;
        ravel_status status = ravel_feed_create(a.mesh, bad[i].what == 5 || bad[i].what == 6 ? NULL : source,
                                                &a.options, &a.feed, &a.err);
        CHECK(status == RAVEL_E_ARGUMENT || status == RAVEL_E_UNSUPPORTED);
        CHECK_HAS(a.err.message, bad[i].says);
        alone_close(&a);
    }
    alone a;
    CHECK(alone_open(&a, 1));
    a.plan.budget = 20;
    CHECK_OK(ravel_feed_create(a.mesh, source, &a.options, &a.feed, &a.err), &a.err);
    CHECK_EQ(ravel_feed_verify(a.feed, source, NULL), RAVEL_E_STATE);
    CHECK_EQ(ravel_feed_next(a.feed, &u, &a.err), RAVEL_E_OVERSIZE);
    CHECK(is_first_over(source, ravel_feed_order(a.feed), a.err.message, 20));
    CHECK_EQ(ravel_feed_next(a.feed, &u, NULL), RAVEL_E_OVERSIZE); /* it stands where it was */
    CHECK_EQ(ravel_feed_seek(a.feed, (ravel_cursor){0, 1}, NULL), RAVEL_E_STATE);
    CHECK_EQ(ravel_feed_submit(a.feed, NULL, NULL), RAVEL_E_STATE);
    alone_close(&a);
    ravel_source_free(source);
}

typedef struct heard {
    int warnings;
    char text[200];
} heard;

static void hear(void *user, ravel_log_level level, const char *text) {
    heard *h = user;
    h->warnings += level == RAVEL_LOG_WARN;
    (void)snprintf(h->text, sizeof h->text, "%.190s", text);
}

TEST(feed_skips_what_fits_no_bin_loudly_when_told_to) {
    ravel_source *source = some_source(40);
    alone a;
    heard h = {0, ""};
    ravel_logger logger = {hear, &h};
    const ravel_feed_update *u;
    CHECK(source && alone_open(&a, 1));
    a.plan.budget = 45;
    a.plan.oversize = RAVEL_OVERSIZE_SKIP;
    a.options.samples = 40;
    a.options.updates = 1;
    a.options.logger = &logger;
    CHECK_OK(ravel_feed_create(a.mesh, source, &a.options, &a.feed, &a.err), &a.err);
    CHECK_OK(ravel_feed_next(a.feed, &u, &a.err), &a.err);
    CHECK(u->counts.skipped > 5 && u->counts.samples + u->counts.skipped == 40);
    CHECK(u->counts.longest <= 45 && u->plan && u->plan->skipped == u->counts.skipped);
    CHECK_EQ(h.warnings, u->counts.skipped);
    CHECK_HAS(h.text, "fits no bin and is skipped");
    CHECK_OK(ravel_feed_verify(a.feed, source, &a.err), &a.err);
    CHECK_EQ(ravel_feed_next(a.feed, &u, &a.err), RAVEL_E_END); /* updates = 1 */
    ravel_feed_stats stats;
    ravel_feed_read_stats(a.feed, &stats);
    CHECK(stats.updates == 1 && stats.batches == 1 && stats.memory_bytes > 0 && stats.reader.rows == 40);
    alone_close(&a);
    ravel_source_free(source);
}

/* ---- submitted samples ---------------------------------------------------------------------------------- */

enum { LOCAL = 40 };

typedef struct rollouts {
    int64_t offsets[LOCAL + 1], rows[LOCAL], prompts[LOCAL];
    int32_t tokens[LOCAL * 130];
    float reward[LOCAL];
    ravel_field fields[2];
    ravel_samples samples;
} rollouts;

/* Rank r of batch b: none, some, or one giant. */
static void roll(rollouts *r, int32_t rank, int64_t batch) {
    ravel__rng g = ravel__rng_seed(check_seed() + (uint64_t)(rank * 100 + batch));
    int64_t kind = (rank + batch) % 3, count = kind == 0   ? 0
                                               : kind == 1 ? 1 + (int64_t)ravel__rng_below(&g, LOCAL - 1)
                                                           : 1;
    r->offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = kind == 2 ? 290 : 1 + (int64_t)ravel__rng_below(&g, 120);
        r->offsets[i + 1] = r->offsets[i] + length;
        r->rows[i] = rank * 1000 + i;
        r->prompts[i] = r->rows[i] % (length + 1);
        r->reward[i] = (float)(rank * 1000 + i) / 8;
        for (int64_t t = 0; t < length; t++) r->tokens[r->offsets[i] + t] = (int32_t)(r->rows[i] * 7 + t);
    }
    r->fields[0] = (ravel_field){.name = "tokens", .dtype = RAVEL_I32, .data = r->tokens};
    r->fields[1] = (ravel_field){.name = "reward", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32, .data = r->reward};
    r->samples = (ravel_samples){{.size = sizeof(ravel_ragged),
                                  .count = count,
                                  .offsets = r->offsets,
                                  .prompts = r->prompts,
                                  .fields = r->fields,
                                  .field_count = 2},
                                 r->rows,
                                 NULL,
                                 0,
                                 NULL};
}

static void check_rollouts(ravel_feed *feed, const ravel_feed_update *u, int64_t *samples) {
    ravel_micro_batch m;
    int64_t reward = ravel_feed_find(feed, "reward");
    for (ravel_feed_iter it = ravel_feed_iterate(feed, 0); ravel_feed_iter_next(&it, &m);)
        for (int64_t i = 0; i < m.thd->samples_count; i++) {
            const int32_t *tokens = m.tokens + m.thd->cu_seqlens_padded[i];
            for (int64_t t = 0; t < m.lengths[i]; t++) EXPECT(tokens[t] == m.ids[i] * 7 + t);
            const float *weights = m.weights + m.thd->cu_seqlens_padded[i];
            int64_t prompt = m.ids[i] % (m.lengths[i] + 1); /* tokens after it are learnt, and never the first */
            for (int64_t t = 0; t < m.lengths[i]; t++)
                EXPECT((weights[t] > 0) == (t + 1 < m.lengths[i] && t + 1 >= prompt));
            EXPECT(m.loss_tokens[i] == m.lengths[i] - (prompt > 1 ? prompt : 1));
            EXPECT(((const float *)m.thd->fields[reward])[i] == (float)m.ids[i] / 8);
            ++*samples;
        }
    EXPECT(u->mine.samples >= 0);
}

static ravel_status submit_rank(ravel_comm *comm, void *user, ravel_error *err) {
    const int *prefetch = user;
    rollouts *r = calloc(2, sizeof *r);
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *u;
    int32_t rank = ravel_comm_rank(comm);
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    plan.budget = 300;
    plan.updates = 2; /* two updates from each batch of rollouts */
    roll(r, rank, 0);
    options.plan = &plan;
    options.first_fields = "*";
    options.prefetch = *prefetch;
    options.fields = r->fields;
    options.field_count = 2;
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, NULL, &options, &feed, err);
    for (int64_t batch = 0; batch < 6 && !status; batch++) {
        rollouts *mine = &r[batch % 2];
        int64_t samples = 0, all = 0;
        roll(mine, rank, batch);
        status = ravel_feed_submit(feed, mine->samples.ragged.count || batch % 2 ? &mine->samples : NULL, err);
        EXPECT(ravel_feed_submit(feed, NULL, NULL) == RAVEL_E_STATE);
        for (int k = 0; k < 2 && !status; k++) {
            status = ravel_feed_next(feed, &u, err);
            if (status) break;
            EXPECT(u->update_in_batch == k && u->last_in_batch == k && u->number == batch * 2 + k);
            check_rollouts(feed, u, &samples);
            all += u->counts.samples;
        }
        int64_t held = mine->samples.ragged.count, sums[2] = {samples, held};
        if (!status) status = ravel_comm_allreduce(comm, sums, sums, 2, RAVEL_I64, RAVEL_SUM, err);
        EXPECT(status || (sums[0] == sums[1] && sums[1] == all));
    }
    if (!status) EXPECT(ravel_feed_next(feed, &u, NULL) == RAVEL_E_STATE); /* nothing was submitted */
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    free(r);
    return status;
}

TEST(feed_takes_submitted_samples_from_every_rank) {
    for (int prefetch = 0; prefetch < 2; prefetch++)
        for (int32_t ranks = 1; ranks <= 5; ranks += 2) {
            ravel_error err = RAVEL_ERROR_INIT;
            CHECK_OK(ravel_threads_run(ranks, NULL, submit_rank, &prefetch, &err), &err);
        }
}

/* Rank 1's samples come without prompts, then rank 0's have another field; then both are right. */
static ravel_status disagree_rank(ravel_comm *comm, void *user, ravel_error *err) {
    rollouts *r = calloc(1, sizeof *r);
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *u;
    int32_t rank = ravel_comm_rank(comm);
    (void)user;
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    plan.budget = 300;
    roll(r, rank, 1 - rank); /* some samples on both */
    options.plan = &plan;
    options.fields = r->fields;
    options.field_count = 2;
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, NULL, &options, &feed, err);
    for (int turn = 0; turn < 3 && !status; turn++) {
        ravel_error own = RAVEL_ERROR_INIT;
        ravel_samples samples = r->samples;
        if (turn == 0 && rank == 1) samples.ragged.prompts = NULL;
        r->fields[1].dtype = turn == 1 && rank == 0 ? RAVEL_I32 : RAVEL_F32;
        status = ravel_feed_submit(feed, &samples, err);
        ravel_status got = ravel_feed_next(feed, &u, &own);
        EXPECT(got == (turn < 2 ? RAVEL_E_ARGUMENT : RAVEL_OK));
        EXPECT(turn != 0 || strstr(own.message, "dp rank 0 come with prompts, those of 1 without"));
        EXPECT(turn != 1 || strstr(own.message, "rank 0: field 1 of the samples, \"reward\""));
    }
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    free(r);
    return status;
}

TEST(feed_refuses_submitted_samples_that_differ_in_kind) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, disagree_rank, NULL, &err), &err);
}

/* ---- fields with a meaning ------------------------------------------------------------------------------ */

/* A field that the feed would use, in a form that it cannot: refused, not left out. */
TEST(feed_refuses_fields_that_it_cannot_use) {
    static const struct {
        const char *name;
        int32_t kind, dtype;
        int64_t width;
        const char *words; /* NULL: it is right */
    } rows[] = {{"sample_weight", RAVEL_FIELD_TOKEN, RAVEL_F32, 1, "sample_weight:f32:sample"},
                {"sample_weight", RAVEL_FIELD_SAMPLE, RAVEL_I64, 1, "sample_weight:f32:sample"},
                {"sample_weight", RAVEL_FIELD_SAMPLE, RAVEL_F32, 2, "sample_weight:f32:sample"},
                {"sample_weight", RAVEL_FIELD_SAMPLE, RAVEL_F64, 0, NULL},
                {"group", RAVEL_FIELD_SAMPLE, RAVEL_F32, 1, "group:i64:sample"},
                {"group", RAVEL_FIELD_SPREAD, RAVEL_I32, 1, NULL},
                {"update", RAVEL_FIELD_NEXT, RAVEL_I32, 1, "update:i32:sample"},
                {"update", RAVEL_FIELD_SAMPLE, RAVEL_U16, 1, NULL},
                {"labels", RAVEL_FIELD_NEXT, RAVEL_I64, 1, "of dtype i32"},
                {"labels", RAVEL_FIELD_SAMPLE, RAVEL_I32, 1, "of dtype i32"},
                {"labels", RAVEL_FIELD_NEXT, RAVEL_I32, 1, NULL}};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_mesh *mesh = NULL;
    ravel_plan_options plan;
    ravel_plan_options_default(&plan);
    plan.budget = 64;
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK_OK(ravel_mesh_create(comm, NULL, &mesh, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ravel_field fields[] = {
            {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .width = 1},
            {.name = rows[i].name, .kind = rows[i].kind, .dtype = rows[i].dtype, .width = rows[i].width}};
        ravel_feed_options options;
        ravel_feed *feed = NULL;
        ravel_feed_options_default(&options);
        options.plan = &plan;
        options.fields = fields;
        options.field_count = 2;
        ravel_error_clear(&err);
        CHECK_EQ(ravel_feed_create(mesh, NULL, &options, &feed, &err), rows[i].words ? RAVEL_E_ARGUMENT : RAVEL_OK);
        if (rows[i].words) CHECK_HAS(err.message, rows[i].words);
        ravel_feed_free(feed);
    }
    ravel_mesh_free(mesh);
    ravel_comm_free(comm);
}

/* Samples whose size field was forgotten are an error; nothing submitted is no samples. */
TEST(feed_refuses_samples_without_their_size) {
    static const int32_t tokens[] = {1, 2, 3};
    static const int64_t offsets[] = {0, 3};
    const ravel_field field = {
        .name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .width = 1, .data = tokens};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_plan_options plan;
    ravel_feed_options options;
    const ravel_feed_update *u = NULL;
    ravel_samples samples = {.ragged = {.count = 1, .offsets = offsets, .fields = &field, .field_count = 1}};
    ravel_plan_options_default(&plan);
    ravel_feed_options_default(&options);
    plan.budget = 64;
    options.plan = &plan;
    options.fields = &field;
    options.field_count = 1;
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK_OK(ravel_mesh_create(comm, NULL, &mesh, &err), &err);
    CHECK_OK(ravel_feed_create(mesh, NULL, &options, &feed, &err), &err);
    CHECK_OK(ravel_feed_submit(feed, &samples, &err), &err);
    CHECK_EQ(ravel_feed_next(feed, &u, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "size");
    samples.ragged.size = sizeof samples.ragged;
    ravel_error_clear(&err);
    CHECK_OK(ravel_feed_submit(feed, &samples, &err), &err);
    CHECK_OK(ravel_feed_next(feed, &u, &err), &err);
    CHECK(u && u->counts.samples == 1);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    ravel_comm_free(comm);
}
