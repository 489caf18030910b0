/* Thousands of ranks over a made-up wire, which one thread drives: messages and bytes of each rank, by operation. */
#include "tests/unit/check.h"
#include "tests/unit/fake_wire.h"

#include <stdlib.h>

/* ---- many ranks ----------------------------------------------------------------------------------------- */

typedef struct counted {
    int64_t frames, bytes, most; /* of one rank, by the operation */
} counted;

static int32_t log2_up(int32_t n) {
    int32_t log = 0;
    while (1 << log < n) log++;
    return log;
}

enum { MANY_BARRIER, MANY_BROADCAST, MANY_GATHER, MANY_LONG, MANY_SUM, MANY_FLOATS, LONG_WORDS = 4096, FEW = 16 };

/* All ranks of a world, in this thread. */
typedef struct many {
    fake_world world;
    int32_t n;
    ravel_comm **comms;
    ravel_request **requests;
    int64_t *words;  /* [n] */
    int64_t *counts; /* [n] of 1 */
    int64_t *fews;   /* [n] of FEW */
    double few[FEW];
    int64_t *all; /* [n * n] or [n * LONG_WORDS], by the operation */
} many;

static ravel_status start_one(const many *m, int32_t r, int kind, ravel_error *err) {
    ravel_request **request = &m->requests[r];
    if (kind == MANY_BARRIER) return ravel_comm_ibarrier(m->comms[r], request, err);
    if (kind == MANY_BROADCAST) return ravel_comm_ibroadcast(m->comms[r], &m->words[r], 1, RAVEL_I64, 3, request, err);
    if (kind == MANY_LONG)
        return ravel_comm_ibroadcast(m->comms[r], m->all + (size_t)r * LONG_WORDS, LONG_WORDS, RAVEL_I64, 3, request,
                                     err);
    if (kind == MANY_SUM) { /* of integers */
        ravel__call call = {.kind = RAVEL__ALLREDUCE, .dtype = RAVEL_I64, .count = 1, .send = &m->words[r]};
        call.recv = &m->words[r];
        return ravel__comm_launch(m->comms[r], &call, request, err);
    }
    if (kind ==
        MANY_FLOATS) /* what moves in a short reduction of floats; all ranks receive the same, here at one place */
        return ravel_comm_iallgatherv(m->comms[r], m->few, m->all, m->fews, NULL, RAVEL_F64, request, err);
    return ravel_comm_iallgatherv(m->comms[r], &m->words[r], m->all + (size_t)r * (size_t)m->n, m->counts, NULL,
                                  RAVEL_I64, request, err);
}

static int is_right(const many *m, int32_t r, int kind) {
    if (kind == MANY_BROADCAST) return m->words[r] == 3;
    if (kind == MANY_SUM) return m->words[r] == (int64_t)m->n * (m->n - 1) / 2;
    if (kind == MANY_LONG) return m->all[(size_t)(r + 1) * LONG_WORDS - 1] == 3;
    for (int32_t k = 0; kind == MANY_GATHER && k < m->n; k += 97)
        if (m->all[(size_t)r * (size_t)m->n + (size_t)k] != k) return 0;
    return 1;
}

static void add_counts(const many *m, int sign, counted *c) {
    for (int32_t r = 0; r < m->n; r++) {
        c->frames += sign * ravel__remote_world(m->comms[r])->frames;
        c->bytes += sign * ravel__remote_world(m->comms[r])->bytes;
    }
}

/* Tests all requests until they are done. */
static ravel_status finish_all(many *m, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t left = m->n; left > 0 && !status;)
        for (int32_t r = 0; r < m->n && !status; r++) {
            int32_t done = 0;
            if (!m->requests[r]) continue;
            status = ravel_request_test(m->requests[r], &done, err);
            if (done) m->requests[r] = NULL, left--;
        }
    return status;
}

/* One operation on every rank: each is started, then all are tested until done. */
static ravel_status count_operation(many *m, int kind, counted *c, ravel_error *err) {
    int32_t n = m->n;
    ravel_status status = RAVEL_OK;
    *c = (counted){0};
    add_counts(m, -1, c);
    for (int32_t r = 0; r < n; r++) {
        m->words[r] = r;
        if (kind == MANY_LONG) m->all[(size_t)(r + 1) * LONG_WORDS - 1] = r;
    }
    for (int32_t r = 0; r < n && !status; r++) status = start_one(m, r, kind, err);
    if (!status) status = finish_all(m, err);
    add_counts(m, 1, c);
    for (int32_t r = 0; r < n && !status; r++)
        if (!is_right(m, r, kind)) status = ravel_error_set(err, RAVEL_E_INTERNAL, "rank %d has something else", r);
    c->frames = (c->frames + n - 1) / n, c->bytes /= n;
    return status;
}

static ravel_status open_many(many *m, int32_t n, ravel_error *err) {
    size_t most = (size_t)(n > LONG_WORDS ? n : LONG_WORDS);
    ravel_status status = RAVEL_OK;
    *m = (many){.n = n};
    fake_world_init(&m->world, n);
    m->world.apart = 1;
    m->comms = calloc((size_t)n, sizeof(void *));
    m->requests = calloc((size_t)n, sizeof(void *));
    m->words = calloc((size_t)n, sizeof *m->words);
    m->counts = calloc((size_t)n, sizeof *m->counts);
    m->fews = calloc((size_t)n, sizeof *m->fews);
    m->all = calloc((size_t)n * most, sizeof *m->all);
    if (!m->comms || !m->requests || !m->words || !m->counts || !m->fews || !m->all) return RAVEL_E_MEMORY;
    for (int32_t r = 0; r < n; r++) m->counts[r] = 1, m->fews[r] = FEW;
    for (int32_t r = 0; r < n && !status; r++) status = fake_open(&m->world, r, 600, &m->comms[r], err);
    return status;
}

static void free_many(many *m) {
    free(m->comms), free(m->requests), free(m->words), free(m->counts), free(m->fews), free(m->all);
    fake_world_free(&m->world);
}

/* What a small agreement, a broadcast, an all-gather of a word and the end cost each rank, in frames and bytes. */
TEST(comm_wire_costs_grow_with_the_logarithm_of_the_ranks) {
    int32_t n = (int32_t)check_scale(1024, 4096), log = log2_up(n);
    ravel_error err = RAVEL_ERROR_INIT;
    counted barrier, broadcast, gather, lengthy, sum, floats;
    many m;
    CHECK_OK(open_many(&m, n, &err), &err);
    CHECK_OK(count_operation(&m, MANY_BARRIER, &barrier, &err), &err);
    CHECK_OK(count_operation(&m, MANY_BROADCAST, &broadcast, &err), &err);
    CHECK_OK(count_operation(&m, MANY_GATHER, &gather, &err), &err);
    CHECK_OK(count_operation(&m, MANY_LONG, &lengthy, &err), &err);
    CHECK_OK(count_operation(&m, MANY_SUM, &sum, &err), &err);
    CHECK_OK(count_operation(&m, MANY_FLOATS, &floats, &err), &err);
    int64_t before = m.world.frames;
    for (int32_t r = 0; r < n; r++) ravel_comm_free(m.comms[r]);
    int64_t freed = (m.world.frames - before) / n;
    printf("    %d ranks, per rank: barrier %lld frames, %lld bytes; broadcast %lld, %lld; all-gather of a word %lld, "
           "%lld; broadcast of 32 KiB %lld, %lld; free %lld frames\n",
           n, (long long)barrier.frames, (long long)barrier.bytes, (long long)broadcast.frames,
           (long long)broadcast.bytes, (long long)gather.frames, (long long)gather.bytes, (long long)lengthy.frames,
           (long long)lengthy.bytes, (long long)freed);
    printf("    sum of a word %lld, %lld; of 16 doubles %lld, %lld\n", (long long)sum.frames, (long long)sum.bytes,
           (long long)floats.frames, (long long)floats.bytes);
    CHECK(sum.frames <= 3 * log + 4 && sum.bytes <= 100 * (3 * log + 4));
    CHECK(floats.frames <= 4 * log + 4 && floats.bytes <= (int64_t)FEW * 8 * n + 100 * (4 * log + 4));
    CHECK(barrier.frames <= log + 2 && barrier.bytes <= 100 * (log + 2));
    CHECK(broadcast.frames <= log + 4);
    CHECK(gather.frames <= 3 * log + 4 && gather.bytes <= 8 * n + 100 * (3 * log + 4)); /* long rounds are offered */
    CHECK(lengthy.frames <= 3 * log + 4 && lengthy.bytes <= 2 * 8 * LONG_WORDS + 100 * (3 * log + 4));
    CHECK(freed <= 4 * log + 4);
    free_many(&m);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* A gradient's reduction is rounds of an all-to-all and an all-gather of pieces. With 4,096 ranks a piece of a gradient of
 * 256 MB still has 16 KiB. */
TEST(comm_wire_reduces_gradients_in_messages_of_useful_size) {
    static const int64_t chunk = 1 << 30, gradient = 64 << 20;
    for (int32_t n = 8; n <= 4096; n *= 2) {
        int64_t longest = (gradient + n - 1) / n, piece = ravel__reduce_piece(n, chunk, 4, longest);
        CHECK(piece <= longest && 4 * piece >= 16 << 10 && 4 * piece * n <= 64 << 20);
    }
}

enum { PIECE_BYTES = 16 << 10 };

typedef struct gradient_part {
    char *send, *recv;
    int64_t *counts, *offsets;
} gradient_part;

/* One round, all ranks at once; they share the arrays, since only messages are counted. */
static ravel_status count_round(many *m, const gradient_part *g, int gathers, counted *c, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *c = (counted){0};
    add_counts(m, -1, c);
    for (int32_t r = 0; r < m->n && !status; r++)
        status = gathers ? ravel_comm_iallgatherv(m->comms[r], g->send, g->recv, g->counts, g->offsets, RAVEL_U8,
                                                  &m->requests[r], err)
                         : ravel_comm_ialltoallv(m->comms[r], g->send, g->counts, g->offsets, g->recv, g->counts,
                                                 g->offsets, RAVEL_U8, &m->requests[r], err);
    status = status ? status : finish_all(m, err);
    add_counts(m, 1, c);
    c->frames = (c->frames + m->n - 1) / m->n, c->bytes /= m->n;
    return status;
}

TEST(comm_wire_counts_a_round_of_a_gradient) {
    int32_t n = (int32_t)check_scale(96, 512);
    ravel_error err = RAVEL_ERROR_INIT;
    many m;
    counted exchange, gather;
    gradient_part g = {calloc((size_t)n, PIECE_BYTES), calloc((size_t)n, PIECE_BYTES), NULL, NULL};
    g.counts = calloc((size_t)n, sizeof *g.counts), g.offsets = calloc((size_t)n, sizeof *g.offsets);
    CHECK(g.send && g.recv && g.counts && g.offsets);
    for (int32_t r = 0; r < n; r++) g.counts[r] = PIECE_BYTES, g.offsets[r] = (int64_t)r * PIECE_BYTES;
    CHECK_OK(open_many(&m, n, &err), &err);
    CHECK_OK(count_round(&m, &g, 0, &exchange, &err), &err);
    CHECK_OK(count_round(&m, &g, 1, &gather, &err), &err);
    for (int32_t r = 0; r < n; r++) ravel_comm_free(m.comms[r]);
    printf("    %d ranks, per rank: all-to-all of 16 KiB pieces %lld frames, %lld bytes; all-gather %lld, %lld\n", n,
           (long long)exchange.frames, (long long)exchange.bytes, (long long)gather.frames, (long long)gather.bytes);
    int64_t pieces = (int64_t)(n - 1) * PIECE_BYTES, heads = 150;
    CHECK(exchange.bytes <= pieces + heads * 3 * n && exchange.frames <= 3 * (int64_t)n);
    CHECK(gather.bytes <= pieces + heads * 3 * n && gather.frames <= 3 * (int64_t)n);
    free(g.send), free(g.recv), free(g.counts), free(g.offsets);
    free_many(&m);
}
