/* Every rank's arrays against the samples themselves, by definition and not by another run of the same code: each element
 * is looked up in the source, by the position that a naive formula gives it, and marked. At the end of the epoch every
 * token of every row has been marked exactly once for each stage that gets it and each of its tp ranks. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/feed.h>

#include <stdlib.h>

enum { ROWS = 150, UPDATES_MOST = 64, PAD_TOKEN = 3 };

typedef struct lesson {
    ravel_mesh_options mesh;
    ravel_feed_options feed;
    ravel_plan_options plan;
    const ravel_source *source;
    const ravel_samples *all; /* every row, one sample each */
    int32_t *seen[2];         /* of the first and the last stage: [tp][tokens] */
    int64_t tokens;           /* of all rows */
    int64_t learnt[UPDATES_MOST], steps[UPDATES_MOST];
} lesson;

/* ---- the reference -------------------------------------------------------------------------------------- */

/* The position in a slot of `length` that rank r of c has as its k-th. */
static int64_t dealt(int32_t kind, int64_t length, int32_t c, int32_t r, int64_t k) {
    int64_t half = length / (2 * c);
    if (c == 1) return k;
    if (kind == RAVEL_CP_CONTIGUOUS) return r * (length / c) + k;
    if (kind == RAVEL_CP_STRIPED) return k * c + r;
    return k < half ? r * half + k : (2 * c - 1 - r) * half + (k - half);
}

static const int32_t *tokens_of(const lesson *l, int64_t row) {
    return (const int32_t *)l->all->ragged.fields[0].data + l->all->ragged.offsets[row];
}

static int is_learnt(const lesson *l, int64_t row, int64_t t, int64_t length) {
    const unsigned char *mask = (const unsigned char *)l->all->ragged.fields[1].data + l->all->ragged.offsets[row];
    return t < length && mask[t] != 0;
}

/* ---- one element, one micro-batch, one rank -------------------------------------------------------------- */

static bool check_first(const lesson *l, const ravel_micro_batch *m, int64_t at, int64_t row, int64_t t,
                        int64_t length) {
    return EXPECT(m->tokens[at] == (t < length ? tokens_of(l, row)[t] : PAD_TOKEN));
}

static bool check_last(lesson *l, const ravel_micro_batch *m, const ravel_feed_update *u, int64_t at, int64_t row,
                       int64_t t, int64_t length) {
    int32_t label = t + 1 < length ? tokens_of(l, row)[t + 1] : -100;
    int learnt = is_learnt(l, row, t + 1, length);
    double weight = learnt ? 1.0 / (double)u->counts.loss_tokens : 0, off = (double)m->weights[at] - weight;
    if (learnt) __atomic_fetch_add(&l->learnt[u->number], 1, __ATOMIC_RELAXED);
    return EXPECT(m->labels[at] == label) && EXPECT(off <= 1e-7 * weight && off >= -1e-7 * weight);
}

static bool check_micro(lesson *l, const ravel_micro_batch *m, const ravel_feed_update *u, ravel_mesh_coord me) {
    const ravel_thd *thd = m->thd;
    int32_t cp = m->cp, part[2] = {m->first, m->last};
    if (l->plan.cp_pool) {
        if (!EXPECT(m->cp_first % cp == 0 && m->cp_first + cp <= l->plan.cp_pool && m->cp_rank < cp)) return false;
        if (!EXPECT(m->cp_first + m->cp_rank == me.dp * l->mesh.cp + me.cp)) return false; /* order tp-cp-dp-pp */
    } else if (!EXPECT(cp == l->mesh.cp && m->cp_rank == me.cp && m->cp_first == -1)) {
        return false;
    }
    if (!EXPECT(!m->tokens == !m->first && !m->labels == !m->last && !m->weights == !m->last)) return false;
    if (!EXPECT(thd->tokens <= cp * l->plan.budget)) return false;
    for (int64_t i = 0; i < thd->samples_count; i++) {
        int64_t row = m->ids[i], begin = thd->cu_seqlens_padded[i], slot = thd->cu_seqlens_padded[i + 1] - begin;
        int64_t first = l->all->ragged.offsets[row], length = l->all->ragged.offsets[row + 1] - first;
        if (!EXPECT(m->lengths[i] == length && slot >= length && slot - length < l->plan.align * 2 * cp)) return false;
        for (int64_t k = 0; k < slot / cp; k++) {
            int64_t at = begin / cp + k, t = dealt(l->feed.cp_kind, slot, cp, m->cp_rank, k);
            if (!EXPECT(thd->positions[at] == (t < length ? t : 0))) return false;
            if (m->first && !check_first(l, m, at, row, t, length)) return false;
            if (m->last && !check_last(l, m, u, at, row, t, length)) return false;
            for (int p = 0; p < 2; p++)
                if (part[p] && t < length)
                    __atomic_fetch_add(&l->seen[p][me.tp * l->tokens + first + t], 1, __ATOMIC_RELAXED);
        }
    }
    return true;
}

static bool check_update(lesson *l, ravel_feed *feed, const ravel_feed_update *u, ravel_mesh_coord me) {
    int64_t steps = 0, none = 0;
    for (int32_t chunk = 0; chunk < l->mesh.vpp; chunk++) {
        ravel_micro_batch m;
        steps = 0;
        for (ravel_feed_iter it = ravel_feed_iterate(feed, chunk); ravel_feed_iter_next(&it, &m); steps++)
            if (!check_micro(l, &m, u, me)) return false;
    }
    (void)__atomic_compare_exchange_n(&l->steps[u->number], &none, steps, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return EXPECT(__atomic_load_n(&l->steps[u->number], __ATOMIC_SEQ_CST) == steps); /* the same on every rank */
}

static ravel_status learn(ravel_comm *comm, void *user, ravel_error *err) {
    lesson *l = user;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    const ravel_feed_update *u = NULL;
    ravel_feed_options options = l->feed;
    int64_t learnt[UPDATES_MOST] = {0}, count = 0;
    options.plan = &l->plan;
    ravel_status status = ravel_mesh_create(comm, &l->mesh, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, l->source, &options, &feed, err);
    while (!status && !(status = ravel_feed_next(feed, &u, err))) {
        learnt[count++] = u->counts.loss_tokens;
        if (!check_update(l, feed, u, ravel_mesh_coords(mesh))) status = RAVEL_E_INTERNAL;
    }
    if (status == RAVEL_E_END) status = ravel_comm_barrier(comm, err);
    for (int64_t i = 0; i < count && !status; i++) /* every tp rank of the last stage has counted */
        EXPECT(l->learnt[i] == learnt[i] * l->mesh.tp);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
}

/* ---- the tests ------------------------------------------------------------------------------------------ */

static bool everything_once(const lesson *l) {
    for (int p = 0; p < 2; p++)
        for (int64_t i = 0; i < l->mesh.tp * l->tokens; i++)
            if (!EXPECT(l->seen[p][i] == 1)) return false;
    return true;
}

static bool run_lesson(lesson *l, ravel_reader *reader) {
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t rows[ROWS];
    for (int64_t i = 0; i < ROWS; i++) rows[i] = i;
    if (!EXPECT(ravel_reader_read(reader, rows, ROWS, &l->all, &err) == RAVEL_OK)) return false;
    l->tokens = l->all->ragged.offsets[ROWS];
    size_t words = (size_t)(l->mesh.tp * l->tokens);
    for (int p = 0; p < 2; p++) l->seen[p] = calloc(words, sizeof *l->seen[p]);
    int32_t ranks = l->mesh.tp * l->mesh.cp * l->mesh.dp * l->mesh.pp;
    ravel_status status = ravel_threads_run(ranks, NULL, learn, l, &err);
    bool good = EXPECT(status == RAVEL_OK) && everything_once(l);
    if (!good)
        printf("    tp %d cp %d dp %d pp %d vpp %d owners %d kind %d align %d: %s\n", l->mesh.tp, l->mesh.cp,
               l->mesh.dp, l->mesh.pp, l->mesh.vpp, l->feed.owners, l->feed.cp_kind, l->plan.align, err.message);
    for (int p = 0; p < 2; p++) free(l->seen[p]);
    return good;
}

static void lesson_default(lesson *l, const ravel_source *source) {
    memset(l, 0, sizeof *l);
    ravel_mesh_options_default(&l->mesh);
    ravel_feed_options_default(&l->feed);
    ravel_plan_options_default(&l->plan);
    l->source = source;
    l->plan.budget = 256;
    l->feed.samples = 40;
    l->feed.epochs = 1;
    l->feed.pad_token = PAD_TOKEN;
}

static ravel_source *rows_source(void) {
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_source_options_default(&options);
    options.mock = "{\"type\":\"lognormal\",\"max_seq_len\":200,\"min_seq_len\":1,\"mean_seq_len\":40,\"count\":150,"
                   "\"prompt_share\":0.3,\"seed\":5}";
    return ravel_source_open(&options, &source, NULL) ? NULL : source;
}

/* One pool of the mesh's dp and cp ranks, of groups of different widths. */
static void make_hybrid(lesson *l, ravel__rng *g) {
    int32_t pool = l->mesh.dp * l->mesh.cp;
    l->plan.cp_pool = pool;
    l->plan.cp_empty = (int32_t)ravel__rng_below(g, 2);
    l->plan.budget = 200 / pool + 24 + (int64_t)ravel__rng_below(g, 60); /* the pool holds the longest sample */
    if (pool % 2 == 0 && ravel__rng_below(g, 4) == 0) l->plan.min_cp = 2;
}

TEST(feed_arrays_are_the_samples_on_every_rank) {
    ravel_source *source = rows_source();
    ravel_reader *reader = NULL;
    ravel__rng g = ravel__rng_seed(check_seed());
    CHECK(source && ravel_reader_create(source, NULL, NULL, &reader, NULL) == RAVEL_OK);
    for (int32_t owners = 0; owners < 3; owners++)
        for (int32_t vpp = 1; vpp <= 2; vpp++) {
            lesson l;
            lesson_default(&l, source);
            l.mesh.tp = 2, l.mesh.cp = 2, l.mesh.dp = 2, l.mesh.pp = 3, l.mesh.vpp = vpp;
            l.feed.owners = owners;
            CHECK(run_lesson(&l, reader));
        }
    for (int64_t trial = 0; trial < check_rounds(60, 2000); trial++) {
        lesson l;
        lesson_default(&l, source);
        do {
            l.mesh.tp = 1 + (int32_t)ravel__rng_below(&g, 2), l.mesh.cp = 1 + (int32_t)ravel__rng_below(&g, 4);
            l.mesh.dp = 1 + (int32_t)ravel__rng_below(&g, 5), l.mesh.pp = 1 + (int32_t)ravel__rng_below(&g, 3);
        } while (l.mesh.tp * l.mesh.cp * l.mesh.dp * l.mesh.pp > 16);
        l.mesh.vpp = 1 + (int32_t)ravel__rng_below(&g, 3);
        l.feed.owners = (int32_t)ravel__rng_below(&g, 3);
        l.feed.cp_kind = (int32_t)ravel__rng_below(&g, 3);
        l.feed.samples = 3 + (int64_t)ravel__rng_below(&g, 60);
        l.feed.fixed_shape = (int32_t)ravel__rng_below(&g, 2);
        l.plan.max_samples = 50;
        l.plan.align = 1 + (int32_t)ravel__rng_below(&g, 4);
        if (trial % 2) make_hybrid(&l, &g);
        CHECK(run_lesson(&l, reader));
    }
    ravel_reader_free(reader);
    ravel_source_free(source);
}
