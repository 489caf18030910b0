/* Packing and loading on several threads, and hashes of deltas that outlive a connection. */
#include "tests/unit/refit_case.h"

#include "base/system/team.h"

#include <stdlib.h>
#include <string.h>

/* ---- the team --------------------------------------------------------------------------------------------- */

enum { TASKS_MOST = 300 };

typedef struct counted {
    _Atomic int32_t calls[TASKS_MOST];
    _Atomic int32_t inside[5]; /* each thread does one task at a time */
    int64_t count;
    int32_t threads;
} counted;

static void count_call(void *user, int64_t index, int32_t thread) {
    counted *c = user;
    EXPECT(thread >= 0 && thread < c->threads && atomic_fetch_add(&c->inside[thread], 1) == 0);
    atomic_fetch_add(&c->calls[index], 1);
    atomic_fetch_sub(&c->inside[thread], 1);
}

TEST(refit_team_does_every_task_once) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int32_t threads = 1; threads <= 5; threads++) {
        ravel__team team;
        ravel__team_start(&team, threads);
        for (int64_t round = 0; round < check_scale(300, 20000); round++) {
            counted c = {.count = (int64_t)ravel__rng_below(&rng, TASKS_MOST), .threads = threads};
            ravel__team_run(&team, c.count, count_call, &c);
            for (int64_t i = 0; i < TASKS_MOST; i++) CHECK_EQ(atomic_load(&c.calls[i]), i < c.count);
        }
        ravel__team_stop(&team);
    }
}

/* ---- frames that a team shares ----------------------------------------------------------------------------- */

enum { LARGE = 700000, SMALL = 37, ROWS = 500, COLUMNS = 333, TENSORS = 4 };

/* A tensor of many entries per frame, one of few bytes, a transposed one, one that is cast. */
typedef struct model {
    float large[LARGE], small[SMALL], turned[ROWS * COLUMNS];
    double wide[LARGE / 4];
    float narrow[LARGE / 4]; /* receivers: of `wide` */
    ravel_refit_tensor tensors[TENSORS];
} model;

static void describe(model *m, int receives) {
    m->tensors[0] = float_tensor("large", m->large, LARGE);
    m->tensors[1] = float_tensor("small", m->small, SMALL);
    m->tensors[2] = (ravel_refit_tensor){
        .name = "turned", .dtype = RAVEL_F32, .ndim = 2, .dims = {ROWS, COLUMNS}, .data = m->turned};
    if (receives) m->tensors[2].strides[0] = 1, m->tensors[2].strides[1] = ROWS;
    m->tensors[3] = float_tensor("cast", m->narrow, LARGE / 4);
    if (!receives) m->tensors[3].dtype = RAVEL_F64, m->tensors[3].data = m->wide;
}

static float value_of(int64_t version, int64_t tensor, int64_t i) {
    int64_t changed = i % 9000 < 900 * version ? version : 1; /* a later version changes a part */
    return (float)(i % 1000) + 1000 * (float)changed + 100 * (float)tensor;
}

static void fill(model *m, int64_t version) {
    for (int64_t i = 0; i < LARGE; i++) m->large[i] = value_of(version, 0, i);
    for (int64_t i = 0; i < SMALL; i++) m->small[i] = value_of(version, 1, i);
    for (int64_t i = 0; i < (int64_t)ROWS * COLUMNS; i++) m->turned[i] = value_of(version, 2, i);
    for (int64_t i = 0; i < LARGE / 4; i++) m->wide[i] = value_of(version, 3, i);
}

static int64_t wrong_in(const ravel_refit *refit, int64_t version) {
    const float *p[TENSORS];
    int64_t wrong = 0;
    for (int64_t t = 0; t < TENSORS; t++) p[t] = ravel_refit_data(refit, t);
    for (int64_t i = 0; i < LARGE; i++) wrong += p[0][i] != value_of(version, 0, i);
    for (int64_t i = 0; i < SMALL; i++) wrong += p[1][i] != value_of(version, 1, i);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < COLUMNS; c++) wrong += p[2][c * ROWS + r] != value_of(version, 2, r * COLUMNS + c);
    for (int64_t i = 0; i < LARGE / 4; i++) wrong += p[3][i] != value_of(version, 3, i);
    return wrong;
}

static ravel_status team_body(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    model *m = calloc(1, sizeof *m);
    ravel_refit *refit = NULL;
    if (!m) return RAVEL_E_MEMORY;
    describe(m, rank > 0);
    ravel_refit_source source = {.size = sizeof source, .tensors = m->tensors, .count = TENSORS};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = m->tensors, .count = TENSORS};
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &f->options, &refit, err);
    for (int64_t version = 1; version <= 4 && status == RAVEL_OK; version++) {
        ravel_refit_report report = {.size = sizeof report};
        if (rank == 0) fill(m, version);
        status = ravel_refit_update(refit, rank ? 0 : version, &report, err);
        if (rank && status == RAVEL_OK) EXPECT(wrong_in(refit, version) == 0);
        if (f->options.delta && version > 1 && status == RAVEL_OK)
            EXPECT(report.bytes_kept > 0 && report.bytes_kept < report.bytes_needed);
    }
    ravel_refit_free(refit);
    free(m);
    return status;
}

TEST(refit_threads_share_frames) {
    for (int32_t i = 0; i < 12; i++) {
        few_ranks f = {.body = team_body};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_refit_options_default(&f.options);
        f.options.threads = 1 + 2 * (i % 3);
        f.options.delta = i % 2;
        f.options.sparse = i / 2 % 2;
        f.options.delta_block = 8192;
        f.options.stage = i % 3;
        f.options.cast = RAVEL_REFIT_NARROW;
        f.options.buffer_bytes = i < 6 ? 1 << 20 : 100000;
        f.options.audit = 1;
        CHECK_OK(run_few(&f, 2, &err), &err);
    }
}

/* ---- joining and leaving ------------------------------------------------------------------------------------- */

/* Rank 2 joins after version 1 and leaves after version 3. One stream serves both receivers: while one of them has no base,
 * both get everything; when rank 2 has left, rank 1 gets only what changed. */
static ravel_status join_body(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float w[FLOATS];
    fill_floats(w, FLOATS, rank ? 0 : 1);
    ravel_refit_tensor t = float_tensor("w", w, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit *refit = NULL;
    ravel_comm *first = NULL;
    ravel_status status = ravel_comm_split(comm, rank < 2 ? 0 : -1, rank, &first, err);
    for (int64_t version = 1; version <= 4 && status == RAVEL_OK; version++) {
        ravel_refit_report report = {.size = sizeof report};
        if (rank == 2 && (version == 1 || version == 4)) continue;
        ravel_comm *now = version == 1 || version == 4 ? first : comm;
        if (!refit)
            status = ravel_refit_create(now, rank ? NULL : &source, rank ? &sink : NULL, &f->options, &refit, err);
        else if (version != 3)
            status = ravel_refit_connect(refit, now, err);
        if (rank == 0) w[2000] = (float)version; /* one block of 4096 bytes changes */
        if (status == RAVEL_OK) status = ravel_refit_update(refit, rank ? 0 : version, &report, err);
        if (status != RAVEL_OK) break;
        int64_t all = FLOATS * (int64_t)sizeof *w, kept = all - 4096;
        static const int64_t times[] = {0, 0, 0, 2,
                                        1}; /* receivers that kept blocks: in 2 one of the two had no base */
        EXPECT(report.bytes_kept == times[version] * kept);
        if (rank) EXPECT(((const float *)ravel_refit_data(refit, 0))[2000] == (float)version);
    }
    ravel_refit_free(refit);
    ravel_comm_free(first);
    return status;
}

TEST(refit_delta_bases_survive_who_joins_and_who_leaves) {
    few_ranks f = {.body = join_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&f.options);
    f.options.delta = 1;
    f.options.delta_block = 4096;
    CHECK_OK(run_few(&f, 3, &err), &err);
}

/* Receivers over threads need no buffers. */
static ravel_status borrow_body(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    float data[FLOATS];
    int32_t rank = ravel_comm_rank(comm);
    ravel_refit_tensor t = float_tensor("w", data, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit *refit = NULL;
    ravel_refit_report report = {.size = sizeof report};
    fill_floats(data, FLOATS, rank ? 0.0F : 3.0F);
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &f->options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, &report, err);
    ravel_refit_free(refit);
    if (status == RAVEL_OK) EXPECT((report.peak_bytes < report.buffer_bytes) == (rank > 0));
    if (status == RAVEL_OK) EXPECT(floats_are(data, FLOATS, 3.0F));
    return status;
}

TEST(refit_over_threads_borrows) {
    few_ranks f = {.body = borrow_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&f.options);
    f.options.buffer_bytes = 4 << 20;
    CHECK_OK(run_few(&f, 2, &err), &err);
}
