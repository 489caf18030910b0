/* The slice planner: every receiver gets every element exactly once, from somebody who has it, and both ends of a
 * stream agree on what is in it. */
#include "tests/unit/refit_case.h"

#include "refit/plan.h"

#include <stdlib.h>

/* All ranks' plans of a case, made in one place. */
typedef struct world {
    int32_t ranks;
    case_side sides[CASE_RANKS][2];
    ravel__arena arena;
    ravel__holding holdings[CASE_RANKS][2];
    ravel__hello hellos[CASE_RANKS];
    unsigned char *manifests[CASE_RANKS][2];
    ravel__refit_plan plans[CASE_RANKS];
    ravel__differences list;
} world;

static ravel_status describe(world *w, const refit_case *c, int32_t rank, int side, ravel_error *err) {
    case_side *mine = &w->sides[rank][side];
    ravel__holding *h = &w->holdings[rank][side];
    if (!case_side_make(c, side, rank, 0, mine)) return RAVEL_E_MEMORY;
    ravel_status status = ravel__holding_make(mine->tensors, mine->count, NULL, 0, 0, "source", &w->arena, h, err);
    if (status) return status;
    size_t bytes = ravel__manifest_bytes(h);
    w->manifests[rank][side] = malloc(bytes);
    ravel__manifest_encode(h, side ? RAVEL__SINK : RAVEL__SOURCE, w->manifests[rank][side]);
    w->hellos[rank].roles |= side ? RAVEL__SINK : RAVEL__SOURCE;
    w->hellos[rank].manifest_bytes[side] = (int64_t)bytes;
    return RAVEL_OK;
}

static uint64_t simple_digest(const unsigned char *p, int64_t n) {
    uint64_t x = 1;
    for (int64_t i = 0; i < n; i++) x = ravel__mix64(x ^ p[i]);
    return x;
}

static ravel_status make_world(world *w, const refit_case *c, ravel_error *err) {
    memset(w, 0, sizeof *w);
    w->ranks = case_ranks(c);
    ravel__arena_init(&w->arena, NULL, 4096);
    ravel__differences_init(&w->list, NULL);
    for (int32_t r = 0; r < w->ranks; r++) {
        w->hellos[r].cast = c->options.cast;
        w->hellos[r].host = (uint64_t)r / 3;
        for (int side = 0; side < 2; side++) {
            if (case_side_rank(c, side, r) < 0) continue;
            ravel_status status = describe(w, c, r, side, err);
            if (status) return status;
            w->hellos[r].digest[side] = simple_digest(w->manifests[r][side], w->hellos[r].manifest_bytes[side]);
        }
    }
    for (int32_t r = 0; r < w->ranks; r++) {
        ravel__catalog catalog;
        ravel_status status = ravel__catalog_init(&catalog, w->hellos, w->ranks, NULL, err);
        if (status) return status;
        for (int32_t p = 0; p < catalog.party_count && !status; p++) {
            int32_t from = catalog.parties[p].ranks[0], side = catalog.parties[p].side;
            status = ravel__catalog_add(&catalog, p, w->manifests[from][side],
                                        (size_t)w->hellos[from].manifest_bytes[side], &w->list, err);
        }
        if (!status) ravel__catalog_check(&catalog, &w->list);
        int source = case_side_rank(c, 0, r) >= 0, sink = case_side_rank(c, 1, r) >= 0;
        if (!status)
            status = ravel__refit_plan_make(&catalog, r, source ? &w->holdings[r][0] : NULL,
                                            sink ? &w->holdings[r][1] : NULL, c->options.buffer_bytes, NULL,
                                            &w->plans[r], &w->list, err);
        ravel__catalog_free(&catalog);
        if (status) return status;
    }
    return RAVEL_OK;
}

static void free_world(world *w) {
    for (int32_t r = 0; r < w->ranks; r++) {
        ravel__refit_plan_free(&w->plans[r]);
        for (int side = 0; side < 2; side++) {
            ravel__holding_free(&w->holdings[r][side], NULL);
            case_side_free(&w->sides[r][side]);
            free(w->manifests[r][side]);
        }
    }
    ravel__arena_free(&w->arena);
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
    const ravel__refit_plan *there = &w->plans[in->sender], *here = &w->plans[receiver];
    const ravel__stream *out = find_stream(there->out, there->out_count, in->sender, receiver, in->local);
    if (!EXPECT(out != NULL)) return false;
    bool fine = EXPECT(out->slices == in->slices && out->bytes == in->bytes && out->member_count == in->member_count &&
                       out->turn == in->turn && out->tag == in->tag);
    for (int64_t i = 0; fine && i < in->slices; i++) {
        const ravel__slice *a = &there->slices[out->first + i], *b = &here->slices[in->first + i];
        const ravel__item *from = &w->holdings[in->sender][0].items[a->item];
        const ravel__item *to = &w->holdings[receiver][1].items[b->item];
        ravel__box x = ravel__slice_box(there, a, from->ndim), y = ravel__slice_box(here, b, to->ndim), meet;
        fine = EXPECT(ravel__box_equal(&x, &y) && a->tensor == b->tensor && a->count == b->count &&
                      a->dtype == b->dtype && strcmp(from->name, to->name) == 0);
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
    const ravel__refit_plan *plan = &w->plans[r];
    bool fine = true;
    for (int32_t t = 0; t < c->count && fine; t++) {
        int64_t elements = w->sides[r][1].elements[t];
        unsigned char *seen = calloc(1, (size_t)elements + 1);
        for (int64_t s = 0; s < plan->slice_count; s++) {
            int in = 0;
            for (int32_t i = 0; i < plan->in_count; i++)
                in |= s >= plan->in[i].first && s < plan->in[i].first + plan->in[i].slices;
            if (!in || plan->slices[s].item != t) continue;
            const ravel__view *view = &w->holdings[r][1].items[t].view;
            ravel__box box = ravel__slice_box(plan, &plan->slices[s], view->box.ndim);
            (void)ravel__view_walk(view, &box, 0, plan->slices[s].count, count_run, seen, NULL);
        }
        for (int64_t e = 0; e < elements && fine; e++) fine = EXPECT(seen[e] == 1);
        free(seen);
    }
    return fine;
}

TEST(refit_plan_gives_everybody_everything_once) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(150, 5000); round++) {
        refit_case c;
        world *w = malloc(sizeof *w);
        ravel_error err = RAVEL_ERROR_INIT;
        int64_t needed = 0, planned = 0;
        CHECK(w);
        case_random(&c, &rng);
        CHECK_OK(make_world(w, &c, &err), &err);
        CHECK_EQ(w->list.count, 0);
        for (int32_t r = 0; r < w->ranks; r++) {
            CHECK(w->plans[r].digest == w->plans[0].digest);
            CHECK_EQ(w->plans[r].bytes_needed, w->plans[0].bytes_needed);
            for (int32_t i = 0; i < w->plans[r].in_count; i++) {
                const ravel__stream *in = &w->plans[r].in[i];
                CHECK(check_ends(w, r, in));
                planned += in->bytes;
                if (i > 0) CHECK(in[-1].turn < in->turn || (in[-1].turn == in->turn && in[-1].sender < in->sender));
            }
            if (case_side_rank(&c, 1, r) >= 0) CHECK(check_cover(w, r, &c));
            for (int64_t t = 0; case_side_rank(&c, 1, r) >= 0 && t < c.count; t++) {
                int32_t a = ravel_dtype_bytes(c.tensors[t].dtype[0]), b = ravel_dtype_bytes(c.tensors[t].dtype[1]);
                needed += w->sides[r][1].elements[t] * (a < b ? a : b);
            }
        }
        CHECK_EQ(planned, needed);
        CHECK_EQ(w->plans[0].bytes_needed, needed);
        free_world(w);
        free(w);
    }
}

/* tp 4 to 2, 2 to 4 and 3 to 2 of one matrix: who sends how many rows to whom. */
TEST(refit_plan_reshards) {
    static const struct {
        int32_t from, to;
        int64_t rows[4][4]; /* [sender][receiver] */
    } table[] = {
        {4, 2, {{3, 0}, {3, 0}, {0, 3}, {0, 3}}},
        {2, 4, {{3, 3, 0, 0}, {0, 0, 3, 3}}},
        {3, 2, {{4, 0}, {2, 2}, {0, 4}}},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        refit_case c = {.senders = table[k].from, .receivers = table[k].to, .tp = {table[k].from, table[k].to}};
        world *w = malloc(sizeof *w);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(w);
        ravel_refit_options_default(&c.options);
        c.count = 1;
        c.tensors[0] =
            (case_tensor){.name = "w", .ndim = 2, .dims = {12, 5}, .dtype = {RAVEL_F32, RAVEL_F32}, .dim = {0, 0}};
        CHECK_OK(make_world(w, &c, &err), &err);
        for (int32_t s = 0; s < table[k].from; s++)
            for (int32_t r = 0; r < table[k].to; r++) {
                const ravel__refit_plan *p = &w->plans[s];
                const ravel__stream *out = find_stream(p->out, p->out_count, s, table[k].from + r, 0);
                CHECK_EQ(out ? out->bytes : 0, table[k].rows[s][r] * 5 * 4);
            }
        free_world(w);
        free(w);
    }
}

static int64_t out_bytes(const ravel__refit_plan *p) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->out_count; i++) bytes += p->out[i].bytes * p->out[i].member_count;
    return bytes;
}

/* A replica on the receiver's machine sends; without one they share the work. */
TEST(refit_plan_chooses_among_replicas) {
    refit_case c = {.senders = 4, .receivers = 4, .tp = {1, 1}, .count = 24};
    for (int32_t i = 0; i < c.count; i++) {
        c.tensors[i] = (case_tensor){.ndim = 1, .dims = {100}, .dtype = {RAVEL_F32, RAVEL_F32}, .dim = {-1, -1}};
        (void)snprintf(c.tensors[i].name, sizeof c.tensors[i].name, "t%d", i);
    }
    world *w = malloc(sizeof *w);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(w);
    ravel_refit_options_default(&c.options);
    CHECK_OK(make_world(w, &c, &err), &err); /* hosts: ranks 0-2, 3-5, 6-7 */
    /* Receivers 4 and 5 share a host with sender 3; 6 and 7 with nobody. */
    CHECK_EQ(out_bytes(&w->plans[3]), 2 * 24 * 400);
    free_world(w);
    free(w);
}

TEST(refit_plan_fails_on_every_allocation) {
    ravel__rng rng = ravel__rng_seed(5);
    refit_case c;
    world *w = malloc(sizeof *w);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(w);
    case_random(&c, &rng);
    CHECK_OK(make_world(w, &c, &err), &err);
    for (int64_t fail = 1;; fail++) {
        check_memory memory;
        ravel__catalog catalog;
        ravel__refit_plan plan = {0};
        check_memory_init(&memory);
        memory.fail_at = fail;
        ravel_status status = ravel__catalog_init(&catalog, w->hellos, w->ranks, &memory.allocator, NULL);
        if (status == RAVEL_OK) {
            for (int32_t p = 0; p < catalog.party_count && !status; p++) {
                int32_t from = catalog.parties[p].ranks[0], side = catalog.parties[p].side;
                status = ravel__catalog_add(&catalog, p, w->manifests[from][side],
                                            (size_t)w->hellos[from].manifest_bytes[side], &w->list, NULL);
            }
            if (!status) ravel__catalog_check(&catalog, &w->list);
            if (!status)
                status = ravel__refit_plan_make(&catalog, 0, &w->holdings[0][0], NULL, 4096, &memory.allocator, &plan,
                                                &w->list, NULL);
            ravel__catalog_free(&catalog);
        }
        if (status == RAVEL_OK) ravel__refit_plan_free(&plan);
        CHECK_EQ(memory.live, 0);
        if (status == RAVEL_OK && memory.calls < fail) break;
        CHECK_EQ(status, RAVEL_E_MEMORY);
    }
    free_world(w);
    free(w);
}
