/* Versions: failures that leave the old one, late joiners, the undo log, delta. */
#include "tests/unit/refit_case.h"

#include "refit/session/session.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* An iterate that fails where it is told to. */
typedef struct failing {
    const float *data;
    int64_t fail_at, calls;
} failing;

static ravel_status failing_iterate(void *user, int64_t index, const void **data, ravel_error *err) {
    failing *f = user;
    if (++f->calls == f->fail_at) return ravel_error_set(err, RAVEL_E_IO, "the disk is on fire");
    *data = f->data + index * FLOATS;
    return RAVEL_OK;
}

static ravel_status failing_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm), stage = s->options.stage;
    float *mine = calloc(3 * FLOATS, sizeof *mine);
    ravel_refit_tensor t[3] = {float_tensor("a", mine, FLOATS), float_tensor("b", mine + FLOATS, FLOATS),
                               float_tensor("c", mine + 2 * FLOATS, FLOATS)};
    failing f = {.data = mine};
    ravel_refit_source source = {
        .size = sizeof source, .tensors = t, .count = 3, .iterate = failing_iterate, .user = &f};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = t, .count = 3};
    ravel_refit *refit = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    ravel_status status =
        ravel_refit_create(comm, rank == 1 ? &source : NULL, rank != 1 ? &sink : NULL, &s->options, &refit, err);
    for (int i = 0; i < 3 && rank == 1; i++) fill_floats(mine + i * FLOATS, FLOATS, 10);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, err);
    for (int64_t at = 1; at <= 3 && status == RAVEL_OK; at++) {
        ravel_error own = RAVEL_ERROR_INIT;
        f.calls = 0;
        f.fail_at = at;
        for (int i = 0; i < 3 && rank == 1; i++) fill_floats(mine + i * FLOATS, FLOATS, 20);
        ravel_status failed = ravel_refit_update(refit, 2, NULL, &own);
        if (!EXPECT(failed == RAVEL_E_CALLBACK) || !EXPECT(strstr(own.message, "the disk is on fire") != NULL) ||
            !EXPECT(strncmp(own.message, "rank 1: ", 8) == 0) || !EXPECT(!ravel_refit_lost(refit)))
            printf("    stage %d, call %lld: %s: %s\n", stage, (long long)at, ravel_status_name(failed), own.message);
        for (int i = 0; i < 3 && rank != 1; i++) EXPECT(floats_are(ravel_refit_data(refit, i), FLOATS, 10));
        EXPECT(ravel_refit_version(refit) == 1);
    }
    f.fail_at = 0;
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 2, NULL, err);
    for (int i = 0; i < 3 && rank != 1 && status == RAVEL_OK; i++)
        EXPECT(floats_are(ravel_refit_data(refit, i), FLOATS, 20));
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_survives_a_failing_iterate) {
    for (int32_t stage = 0; stage < 3; stage++) {
        few_ranks s = {.body = failing_body};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_refit_options_default(&s.options);
        s.options.buffer_bytes = 4096;
        s.options.stage = stage;
        CHECK_OK(run_few(&s, 4, &err), &err);
    }
}

/* A third rank joins after the second version: it alone is served, and is on the same version. */
static ravel_status late_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float *mine = calloc(FLOATS, sizeof *mine);
    ravel_refit_tensor t = float_tensor("a", mine, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit *refit = NULL;
    ravel_comm *first = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    if (rank == 0) fill_floats(mine, FLOATS, 3);
    ravel_status status = ravel_comm_split(comm, rank < 2 ? 0 : -1, rank, &first, err);
    if (status == RAVEL_OK && first) {
        status = ravel_refit_create(first, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
        for (int64_t v = 1; v <= 2 && status == RAVEL_OK; v++) status = ravel_refit_update(refit, v, NULL, err);
        if (status == RAVEL_OK) status = ravel_refit_connect(refit, comm, err);
    } else if (status == RAVEL_OK) {
        status = ravel_refit_create(comm, NULL, &sink, &s->options, &refit, err);
    }
    if (status == RAVEL_OK) status = ravel_refit_update(refit, rank ? 0 : 2, &report, err);
    if (status == RAVEL_OK) {
        EXPECT(report.served == 1 && report.receivers == 2);
        EXPECT(report.bytes_needed == FLOATS * 4);
        EXPECT(ravel_refit_version(refit) == 2);
        EXPECT(rank == 0 || floats_are(ravel_refit_data(refit, 0), FLOATS, 3));
        if (rank == 0) fill_floats(mine, FLOATS, 4);
        status = ravel_refit_update(refit, 3, &report, err);
        EXPECT(report.served == 2);
        EXPECT(rank == 0 || floats_are(ravel_refit_data(refit, 0), FLOATS, 4));
    }
    ravel_refit_free(refit);
    ravel_comm_free(first);
    free(mine);
    return status;
}

TEST(refit_brings_up_who_joins_late) {
    few_ranks s = {.body = late_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    CHECK_OK(run_few(&s, 3, &err), &err);
}

static ravel_status version_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float mine[8] = {0};
    ravel_refit_tensor t = float_tensor("a", mine, 8);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit *refit = NULL;
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    if (status != RAVEL_OK) return status;
    EXPECT(ravel_refit_update(refit, rank ? 4 : 3, NULL, &own) == RAVEL_E_MISMATCH);
    EXPECT(strstr(own.message, "version 3 on rank 0 (sender), 4 on rank 1 (receiver)") != NULL);
    ravel_error_clear(&own);
    EXPECT(ravel_refit_update(refit, 0, NULL, &own) == RAVEL_E_ARGUMENT);
    EXPECT(strstr(own.message, "senders give one above 0") != NULL);
    EXPECT(ravel_refit_audit(refit, NULL) == RAVEL_E_STATE);
    EXPECT(ravel_refit_trace(refit, 1, 1, NULL, NULL, NULL) == RAVEL_E_STATE);
    EXPECT(ravel_refit_data(refit, 1) == NULL && ravel_refit_data(refit, -1) == NULL);
    status = ravel_refit_update(refit, rank ? 0 : 3, NULL, err);
    EXPECT(ravel_refit_version(refit) == 3);
    ravel_refit_free(refit);
    return status;
}

TEST(refit_versions_must_agree) {
    few_ranks s = {.body = version_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    CHECK_OK(run_few(&s, 3, &err), &err);
}

/* ---- undo, audit -------------------------------------------------------------------------------------- */

static ravel_status undo_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    enum { MANY = 60000 };
    float *mine = calloc(MANY, sizeof *mine);
    ravel_refit_tensor t[2] = {float_tensor("a", mine, MANY / 2), float_tensor("b", mine + MANY / 2, MANY / 2)};
    ravel_refit_source source = {.size = sizeof source, .tensors = t, .count = 2};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = t, .count = 2};
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit *refit = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    if (rank == 0) fill_floats(mine, MANY, 1);
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, err);
    if (rank == 0) fill_floats(mine, MANY, 2);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 2, &report, err);
    if (rank > 0 && status == RAVEL_OK) {
        EXPECT(floats_are(mine, MANY, 2)); /* in place */
        EXPECT(ravel_refit_data(refit, 0) == mine);
        EXPECT(report.stage_bytes > MANY * 4);
        EXPECT(ravel_refit_audit(refit, err) == RAVEL_OK);
        mine[MANY - 1] += 1;
        ravel_error own = RAVEL_ERROR_INIT;
        EXPECT(ravel_refit_audit(refit, &own) == RAVEL_E_CHECKSUM);
        EXPECT(strstr(own.message, "\"b\" is not what version 2 had") != NULL);
    }
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_undo_log_and_audit) {
    few_ranks s = {.body = undo_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.stage = RAVEL_REFIT_UNDO;
    s.options.audit = 1;
    s.options.buffer_bytes = 16384;
    CHECK_OK(run_few(&s, 3, &err), &err);
}

/* ---- delta ---------------------------------------------------------------------------------------------- */

typedef struct delta_result {
    ravel_refit_report report[4];
} delta_result;

static ravel_status delta_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    enum { MANY = 1 << 16 };
    int32_t rank = ravel_comm_rank(comm);
    delta_result *result = s->extra;
    float *mine = calloc(MANY, sizeof *mine);
    ravel_refit_tensor t = float_tensor("a", mine, MANY);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit *refit = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    for (int v = 0; v < 4 && status == RAVEL_OK; v++) {
        /* all; three elements; nothing; all again */
        if (rank == 0 && (v == 0 || v == 3)) fill_floats(mine, MANY, (float)v + 1);
        if (rank == 0 && v == 1) mine[5] = mine[6] = mine[40000] = -1;
        if (rank == 0) result->report[v].size = sizeof result->report[v];
        status = ravel_refit_update(refit, rank ? 0 : v + 1, rank ? NULL : &result->report[v], err);
        const float *live = ravel_refit_data(refit, 0);
        if (rank && status == RAVEL_OK && v < 3) {
            EXPECT(live[0] == 1 && live[4] == 5 && live[7] == 1 && live[MANY - 1] == 1 + (float)((MANY - 1) % 7));
            EXPECT((live[5] == -1) == (v > 0) && (live[40000] == -1) == (v > 0));
        }
        if (rank && v == 3) EXPECT(floats_are(live, MANY, 4));
    }
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_delta_sends_what_changed) {
    for (int32_t i = 0; i < 6; i++) {
        int32_t sparse = i / 3;
        delta_result r;
        few_ranks s = {.body = delta_body, .extra = &r};
        ravel_error err = RAVEL_ERROR_INIT;
        memset(&r, 0, sizeof r);
        ravel_refit_options_default(&s.options);
        s.options.delta = 1;
        s.options.delta_block = 4096;
        s.options.stage = i % 3;
        s.options.sparse = sparse;
        CHECK_OK(run_few(&s, 3, &err), &err);
        int64_t all = 2 * (4 << 16);
        for (int v = 0; v < 4; v++) CHECK_EQ(r.report[v].bytes_needed, all);
        CHECK_EQ(r.report[0].delta, 0); /* there was nothing to compare with */
        CHECK_EQ(r.report[0].bytes_kept, 0);
        CHECK_EQ(r.report[1].delta, 1);
        CHECK_EQ(r.report[1].bytes_kept, all - 2 * 2 * 4096);
        CHECK_EQ(r.report[1].bytes_sparse, sparse ? 2 * 2 * 4096 : 0);
        CHECK_EQ(r.report[1].bytes_moved, 2 * (2 * (sparse ? 256 : 4096) + 4096)); /* two blocks and a head, to each */
        CHECK_EQ(r.report[2].bytes_kept, all);
        CHECK_EQ(r.report[2].bytes_moved, 2 * 4096);
        CHECK_EQ(r.report[3].delta, 1); /* everything changed */
        CHECK(r.report[3].bytes_kept == 0 && r.report[3].bytes_sparse == 0);
    }
}

/* A receiver that does not hold what the sender sent last (another number, or the same number of other senders) must get
 * everything, whatever the sender's hashes say. */
static ravel_status base_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float *mine = calloc(FLOATS, sizeof *mine);
    ravel_refit_tensor t = float_tensor("a", mine, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit *refit = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    if (rank == 0) fill_floats(mine, FLOATS, 3);
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    for (int64_t v = 1; v <= 6 && status == RAVEL_OK; v++) {
        int forgets = v == 3 || v == 5;
        if (rank == 1 && forgets) {
            if (v == 3) refit->stage.held.version = 77;
            if (v == 5) refit->stage.held.nonce ^= 1;
            fill_floats(ravel_refit_data(refit, 0), FLOATS, -9); /* so that anything it keeps shows */
        }
        status = ravel_refit_update(refit, rank ? 0 : v, &report, err);
        if (status != RAVEL_OK) break;
        EXPECT(rank == 0 || floats_are(ravel_refit_data(refit, 0), FLOATS, 3));
        /* nothing changed, so all keep everything, unless one of them has another base */
        EXPECT(report.bytes_kept == (v == 1 || forgets ? 0 : 2 * FLOATS * 4));
    }
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_delta_is_for_who_holds_the_base) {
    few_ranks s = {.body = base_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.delta = 1;
    s.options.delta_block = 4096;
    CHECK_OK(run_few(&s, 3, &err), &err);
}

/* ---- a version is its content ---------------------------------------------------------------------------- */

/* Contents that differ in few elements, from one another. */
static void fill_edition(float *w, int64_t edition) {
    for (int64_t i = 0; i < FLOATS; i++) w[i] = (float)(i % 100 == edition % 100 ? -edition : i);
}

static bool is_edition(const float *w, int64_t edition) {
    float want[FLOATS];
    fill_edition(want, edition);
    return memcmp(w, want, sizeof want) == 0;
}

/* Rank 2 misses version 2 and a second version 1, trained anew after a rollback, which come to rank 1 as changes. When all meet again,
 * nobody may take its version 1 for the other one: it gets all of it. */
static ravel_status rollback_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float w[FLOATS] = {0};
    if (rank == 0) fill_edition(w, 1);
    ravel_refit_tensor t = float_tensor("w", w, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit *refit = NULL;
    ravel_comm *without = NULL;
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, rank ? 0 : 1, NULL, err);
    if (status == RAVEL_OK) status = ravel_comm_split(comm, rank < 2 ? 0 : -1, rank, &without, err);
    if (status == RAVEL_OK && without) {
        status = ravel_refit_connect(refit, without, err);
        for (int64_t version = 2; version > 0 && status == RAVEL_OK; version--) {
            if (rank == 0) fill_edition(w, version == 2 ? 2 : 9);
            status = ravel_refit_update(refit, rank ? 0 : version, &report, err);
            EXPECT(report.bytes_sparse == FLOATS * 4);
        }
    }
    if (status == RAVEL_OK) status = ravel_refit_connect(refit, comm, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, rank ? 0 : 1, &report, err);
    EXPECT(report.bytes_needed == FLOATS * 4 && report.bytes_sparse == 0 && report.bytes_kept == 0);
    if (rank && status == RAVEL_OK) {
        EXPECT(ravel_refit_version(refit) == 1);
        EXPECT(is_edition(ravel_refit_data(refit, 0), 9));
    }
    ravel_refit_free(refit);
    ravel_comm_free(without);
    return status;
}

TEST(refit_a_version_after_a_rollback_is_another_one) {
    few_ranks s = {.body = rollback_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.delta = s.options.sparse = 1;
    CHECK_OK(run_few(&s, 3, &err), &err);
}

/* ---- deadlines count progress ---------------------------------------------------------------------------- */

static ravel_status slow_load(void *user, const ravel_refit_piece *piece, ravel_error *err) {
    struct timespec t = {0, 120 * 1000 * 1000};
    (void)user, (void)piece, (void)err;
    (void)nanosleep(&t, NULL);
    return RAVEL_OK;
}

static void no_version(void *user, int64_t version) {
    (void)user, (void)version;
}

/* Two senders; the second is done at once and waits while the receiver loads for several deadlines, frame by frame. */
static ravel_status slow_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    enum { MANY_FLOATS = 20000 };
    int32_t rank = ravel_comm_rank(comm);
    float *w = calloc(MANY_FLOATS, sizeof *w);
    ravel_refit_tensor t = float_tensor("w", w, MANY_FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    sink.load = slow_load;
    sink.commit = sink.abort = no_version;
    ravel_refit *refit = NULL;
    ravel_status status =
        ravel_refit_create(comm, rank < 2 ? &source : NULL, rank < 2 ? NULL : &sink, &s->options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, rank < 2 ? 1 : 0, NULL, err);
    ravel_refit_free(refit);
    free(w);
    return status;
}

TEST(refit_waits_for_slow_ranks_that_make_progress) {
    few_ranks s = {.body = slow_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.timeout = 1;
    s.options.buffer_bytes = 4096;
    for (int i = 0; i < 8; i++) { /* a machine that stops a rank for a second may pass the deadline by itself */
        ravel_error_clear(&err);
        if (run_few(&s, 3, &err) == RAVEL_OK) break;
    }
    CHECK_OK((ravel_status)err.status, &err);
}
