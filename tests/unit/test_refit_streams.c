/* The streams of a collective refit: every receiver gets every element exactly once, from a sender that has it, and both ends
 * of a stream agree on what is in it. */
#include "tests/unit/refit_case.h"

#include "refit/session/session.h"

#include <stdlib.h>

/* All ranks' sessions of a case, connected, which the first rank looks at while the others wait. */
typedef struct world {
    const refit_case *c;
    void (*look)(const struct world *w);
    case_side sides[CASE_RANKS][2];
    ravel_refit *refits[CASE_RANKS];
} world;

static ravel_status connect_rank(ravel_comm *comm, void *user, ravel_error *err) {
    world *w = user;
    int32_t r = ravel_comm_rank(comm);
    int has[2];
    for (int side = 0; side < 2; side++) {
        has[side] = case_side_rank(w->c, side, r) >= 0;
        if (has[side] && !case_side_make(w->c, side, r, 0, &w->sides[r][side])) return RAVEL_E_MEMORY;
    }
    const case_side *from = &w->sides[r][0], *to = &w->sides[r][1];
    ravel_refit_source source = {.size = sizeof source, .tensors = from->tensors, .count = from->count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to->tensors, .count = to->count};
    ravel_status status =
        ravel_refit_create(comm, has[0] ? &source : NULL, has[1] ? &sink : NULL, &w->c->options, &w->refits[r], err);
    if (!status) status = ravel_comm_barrier(comm, err);
    if (!status && r == 0) w->look(w);
    if (!status) status = ravel_comm_barrier(comm, err);
    ravel_refit_free(w->refits[r]);
    for (int side = 0; side < 2; side++)
        if (has[side]) case_side_free(&w->sides[r][side]);
    return status;
}

static void look_at(const refit_case *c, void (*look)(const world *w)) {
    world *w = calloc(1, sizeof *w);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(w);
    w->c = c;
    w->look = look;
    ravel_status status = ravel_threads_run(case_ranks(c), NULL, connect_rank, w, &err);
    free(w);
    CHECK_OK(status, &err);
}

/* The stream of `rank` that `receiver` takes from `sender`. */
static const ravel__stream *find_stream(const ravel__stream *list, int32_t count, int32_t sender, int32_t receiver,
                                        int local) {
    for (int32_t i = 0; i < count; i++) {
        if (list[i].sender != sender || list[i].local != local) continue;
        for (int32_t m = 0; m < list[i].member_count; m++)
            if (list[i].members[m] == receiver) return &list[i];
    }
    return NULL;
}

/* Both ends list the same slices, and the sender holds them. */
static bool check_ends(const world *w, int32_t receiver, const ravel__stream *in) {
    const ravel__streams *there = &w->refits[in->sender]->streams;
    const ravel__refit_plan *plan = &w->refits[receiver]->plan;
    const ravel__stream *out = find_stream(there->out, there->out_count, in->sender, receiver, in->local);
    if (!EXPECT(out != NULL)) return false;
    bool fine = EXPECT(out->count == in->count && out->bytes == in->bytes && out->member_count == in->member_count &&
                       out->turn == in->turn && out->tag == in->tag);
    for (int64_t i = 0; fine && i < in->count; i++) {
        const ravel__asked *a = &out->asked[i];
        const ravel__want *b = &plan->wants[in->first + i];
        const ravel__item *from = &w->refits[in->sender]->source_holding.items[a->item];
        const ravel__item *to = &w->refits[receiver]->sink_holding.items[b->item];
        ravel__box x = a->box, y = b->piece->box, meet;
        fine = EXPECT(ravel__box_equal(&x, &y) && a->tensor == b->tensor && a->count == b->piece->count &&
                      a->dtype == plan->dtypes[b->item] && strcmp(from->name, to->name) == 0);
        fine = fine && EXPECT(ravel__box_meet(&x, &from->view.box, &meet) && ravel__box_equal(&meet, &x));
        fine = fine && EXPECT(ravel__box_meet(&y, &to->view.box, &meet) && ravel__box_equal(&meet, &y));
    }
    return fine;
}

static ravel_status count_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    unsigned char *seen = user;
    (void)err;
    for (int64_t i = 0; i < count; i++) seen[at + i * stride]++;
    return RAVEL_OK;
}

/* Every element of every piece of the receiver, once. */
static bool check_cover(const world *w, int32_t r, const refit_case *c) {
    const ravel__refit_plan *plan = &w->refits[r]->plan;
    bool fine = true;
    for (int32_t t = 0; t < c->count && fine; t++) {
        int64_t elements = w->sides[r][1].elements[t];
        unsigned char *seen = calloc(1, (size_t)elements + 1);
        for (int64_t i = 0; i < plan->want_count; i++) {
            const ravel__want *want = &plan->wants[i];
            if (want->item != t) continue;
            const ravel__view *view = &w->refits[r]->sink_holding.items[t].view;
            (void)ravel__view_walk(view, &want->piece->box, 0, want->piece->count, count_run, seen, NULL);
        }
        for (int64_t e = 0; e < elements && fine; e++) fine = EXPECT(seen[e] == 1);
        free(seen);
    }
    return fine;
}

static void check_all(const world *w) {
    const refit_case *c = w->c;
    int64_t needed = 0, planned = 0;
    for (int32_t r = 0; r < case_ranks(c); r++) {
        const ravel__streams *s = &w->refits[r]->streams;
        for (int32_t i = 0; i < s->in_count; i++) {
            const ravel__stream *in = &s->in[i];
            (void)check_ends(w, r, in);
            planned += in->bytes;
            if (i > 0) (void)EXPECT(in[-1].turn < in->turn || (in[-1].turn == in->turn && in[-1].sender < in->sender));
        }
        if (case_side_rank(c, 1, r) < 0) continue;
        (void)check_cover(w, r, c);
        for (int64_t t = 0; t < c->count; t++) {
            int32_t a = ravel_dtype_bytes(c->tensors[t].dtype[0]), b = ravel_dtype_bytes(c->tensors[t].dtype[1]);
            needed += w->sides[r][1].elements[t] * (a < b ? a : b);
        }
    }
    (void)EXPECT(planned == needed);
}

TEST(refit_streams_give_everybody_everything_once) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(100, 5000); round++) {
        refit_case c;
        case_random(&c, &rng);
        look_at(&c, check_all);
    }
}

/* tp 4 to 2, 2 to 4 and 3 to 2 of one matrix: who sends how many rows to whom. */
static const struct {
    int32_t from, to;
    int64_t rows[4][4]; /* [sender][receiver] */
} reshards[] = {
    {4, 2, {{3, 0}, {3, 0}, {0, 3}, {0, 3}}},
    {2, 4, {{3, 3, 0, 0}, {0, 0, 3, 3}}},
    {3, 2, {{4, 0}, {2, 2}, {0, 4}}},
};

static void check_rows(const world *w) {
    for (size_t k = 0; k < sizeof reshards / sizeof *reshards; k++)
        for (int32_t s = 0; s < reshards[k].from && reshards[k].from == w->c->senders; s++)
            for (int32_t r = 0; r < reshards[k].to; r++) {
                const ravel__streams *p = &w->refits[s]->streams;
                const ravel__stream *out = find_stream(p->out, p->out_count, s, reshards[k].from + r, 0);
                (void)EXPECT((out ? out->bytes : 0) == reshards[k].rows[s][r] * 5 * 4);
            }
}

TEST(refit_streams_reshard) {
    for (size_t k = 0; k < sizeof reshards / sizeof *reshards; k++) {
        refit_case c = {.senders = reshards[k].from, .receivers = reshards[k].to, .count = 1};
        c.tp[0] = reshards[k].from;
        c.tp[1] = reshards[k].to;
        ravel_refit_options_default(&c.options);
        c.tensors[0] =
            (case_tensor){.name = "w", .ndim = 2, .dims = {12, 5}, .dtype = {RAVEL_F32, RAVEL_F32}, .dim = {0, 0}};
        look_at(&c, check_rows);
    }
}

/* Four receivers of four replicas: each gets everything, and no replica sends more than its part. Five receivers of them are
 * more than the replicas: one stream per sender, which they pass on. */
static void check_replicas(const world *w) {
    for (int32_t s = 0; s < 4; s++) {
        const ravel__streams *p = &w->refits[s]->streams;
        int64_t bytes = 0;
        for (int32_t i = 0; i < p->out_count; i++) bytes += p->out[i].bytes;
        (void)EXPECT(bytes == (w->c->receivers == 4 ? 24 * 400 : 6 * 400));
        (void)EXPECT(p->out_count == (w->c->receivers == 4 ? 4 : 1));
        (void)EXPECT(p->out[0].member_count == (w->c->receivers == 4 ? 1 : 5));
    }
}

TEST(refit_streams_share_the_work_among_replicas) {
    for (int32_t receivers = 4; receivers <= 5; receivers++) {
        refit_case c = {.senders = 4, .receivers = receivers, .tp = {1, 1}, .count = 24};
        ravel_refit_options_default(&c.options);
        for (int32_t i = 0; i < c.count; i++) {
            c.tensors[i] = (case_tensor){.ndim = 1, .dims = {100}, .dtype = {RAVEL_F32, RAVEL_F32}, .dim = {-1, -1}};
            (void)snprintf(c.tensors[i].name, sizeof c.tensors[i].name, "t%d", i);
        }
        look_at(&c, check_replicas);
    }
}
