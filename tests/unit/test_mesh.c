/* The mesh: the pure functions against a slow definition and Megatron's published examples, the communicators against
 * the pure functions. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/mesh.h>

#include <stdlib.h>

static ravel_mesh_layout layout_of(int32_t tp, int32_t cp, int32_t dp, int32_t pp, const char *order) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_mesh_layout layout = {{0}, {0}, 0, 0, {0}};
    ravel_mesh_options o;
    ravel_mesh_options_default(&o);
    o.tp = tp, o.cp = cp, o.dp = dp, o.pp = pp, o.order = order;
    if (ravel_mesh_plan(&o, 0, &layout, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return layout;
}

static void expect_groups(const ravel_mesh_layout *l, int32_t axes, const int32_t *want) {
    int32_t *got = calloc((size_t)l->ranks, sizeof *got);
    ravel_mesh_groups(l, axes, got);
    for (int32_t i = 0; i < l->ranks; i++)
        if (got[i] != want[i]) check_fail(__FILE__, __LINE__, "member %d is %d, not %d", i, got[i], want[i]);
    free(got);
}

/* From the documentation of Megatron's rank generator, and of what initializes its groups. */
TEST(mesh_groups_are_megatrons) {
    ravel_mesh_layout a = layout_of(2, 1, 2, 2, "tp-pp-dp");
    expect_groups(&a, RAVEL_AXIS_DP, (int32_t[]){0, 4, 1, 5, 2, 6, 3, 7});
    ravel_mesh_layout b = layout_of(2, 1, 3, 4, "tp-dp-pp");
    expect_groups(&b, RAVEL_AXIS_DP,
                  (int32_t[]){0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 14, 16, 13, 15, 17, 18, 20, 22, 19, 21, 23});
    /* 16 ranks, tp 2, pp 4: the model-parallel and data-parallel groups of the well-known example */
    ravel_mesh_layout c = layout_of(2, 1, 2, 4, "tp-cp-ep-dp-pp");
    expect_groups(&c, RAVEL_AXIS_TP, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    expect_groups(&c, RAVEL_AXIS_DP, (int32_t[]){0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
    expect_groups(&c, RAVEL_AXIS_PP, (int32_t[]){0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
    /* two axes: members in the mesh's order, whatever the order of the bits */
    ravel_mesh_layout d = layout_of(2, 2, 2, 1, "tp-dp-cp");
    expect_groups(&d, RAVEL_AXIS_DP | RAVEL_AXIS_CP, (int32_t[]){0, 2, 4, 6, 1, 3, 5, 7});
    ravel_mesh_layout e = layout_of(2, 2, 2, 1, "tp-cp-dp-pp");
    expect_groups(&e, RAVEL_AXIS_DP, (int32_t[]){0, 4, 1, 5, 2, 6, 3, 7});
}

/* Ranks of a group differ in its axes only; groups are disjoint and cover everything; numbers go round. */
TEST(mesh_every_order_partitions_the_ranks) {
    static const char *const names[] = {"tp", "cp", "dp", "pp"};
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int trial = 0; trial < 200; trial++) {
        int p[4] = {0, 1, 2, 3};
        for (int i = 3; i > 0; i--) {
            int j = (int)ravel__rng_below(&rng, (uint64_t)i + 1), t = p[i];
            p[i] = p[j], p[j] = t;
        }
        char order[16];
        snprintf(order, sizeof order, "%s-%s-%s-%s", names[p[0]], names[p[1]], names[p[2]], names[p[3]]);
        int32_t sizes[4];
        for (int i = 0; i < 4; i++) sizes[i] = 1 + (int32_t)ravel__rng_below(&rng, 4);
        ravel_mesh_layout l = layout_of(sizes[0], sizes[1], sizes[2], sizes[3], order);
        CHECK_EQ(l.ranks, sizes[0] * sizes[1] * sizes[2] * sizes[3]);
        CHECK_EQ(l.strides[p[0]], 1);
        int32_t *members = calloc((size_t)l.ranks, sizeof *members);
        for (int32_t axes = 0; axes < 16; axes++) {
            int32_t size = ravel_mesh_group_size(&l, axes), *count = calloc((size_t)l.ranks, sizeof *count);
            ravel_mesh_groups(&l, axes, members);
            for (int32_t i = 0; i < l.ranks; i++) {
                ravel_mesh_coord a = ravel_mesh_locate(&l, members[i]),
                                 b = ravel_mesh_locate(&l, members[i / size * size]);
                count[members[i]]++;
                CHECK(axes & RAVEL_AXIS_TP || a.tp == b.tp);
                CHECK(axes & RAVEL_AXIS_CP || a.cp == b.cp);
                CHECK(axes & RAVEL_AXIS_DP || a.dp == b.dp);
                CHECK(axes & RAVEL_AXIS_PP || a.pp == b.pp);
                CHECK_EQ(ravel_mesh_rank_at(&l, a), members[i]);
                CHECK_EQ(ravel_mesh_group_of(&l, axes, members[i]), i / size);
                CHECK_EQ(ravel_mesh_index_in(&l, axes, members[i]), i % size);
                CHECK(i % size == 0 || members[i] > members[i - 1]); /* the mesh's order is the order of ranks */
            }
            for (int32_t i = 0; i < l.ranks; i++) CHECK_EQ(count[i], 1);
            free(count);
        }
        free(members);
    }
}

TEST(mesh_bad_options_get_a_sentence) {
    ravel_mesh_options o;
    ravel_mesh_layout l;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_mesh_options_default(&o);
    o.tp = 2, o.pp = 3;
    CHECK_OK(ravel_mesh_plan(&o, 24, &l, &err), &err);
    CHECK_EQ(l.sizes[2], 4);
    CHECK_EQ(ravel_mesh_plan(&o, 8, &l, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "does not divide 8 ranks");
    ravel_error_clear(&err);
    o.dp = 3;
    CHECK_EQ(ravel_mesh_plan(&o, 24, &l, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "tp 2 x cp 1 x dp 3 x pp 3 is 18, but there are 24 ranks");
    static const struct {
        const char *order, *words;
    } bad[] = {{"tp-cp-dp-xx", "\"xx\" is not an axis"},
               {"tp-tp-dp-pp", "is given twice"},
               {"tp-cp-dp", "leaves out pp"},
               {"", "is not an axis"},
               {"tp-cp-dp-pp-", "is not an axis"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error_clear(&err);
        o.order = bad[i].order;
        CHECK_EQ(ravel_mesh_plan(&o, 18, &l, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, bad[i].words);
    }
    ravel_error_clear(&err);
    ravel_mesh_options_default(&o);
    o.tp = 1 << 20, o.cp = 1 << 20, o.dp = 1 << 20;
    CHECK_EQ(ravel_mesh_plan(&o, 8, &l, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    ravel_mesh_options_default(&o);
    CHECK_EQ(ravel_mesh_plan(&o, 0, &l, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "dp is 0");
    ravel_error_clear(&err);
    o.tp = 0;
    CHECK_EQ(ravel_mesh_plan(&o, 8, &l, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "tp is 0");
    ravel_mesh_layout one = layout_of(2, 1, 2, 1, "tp-dp");
    CHECK_EQ(ravel_mesh_locate(&one, 4).tp, -1);
    CHECK_EQ(ravel_mesh_rank_at(&one, (ravel_mesh_coord){2, 0, 0, 0}), -1);
    CHECK_EQ(ravel_mesh_group_size(&one, 16), 0);
    int32_t axes = 0;
    ravel_error_clear(&err);
    CHECK_OK(ravel_mesh_axes_parse("DP-cp", &axes, &err), &err);
    CHECK_EQ(axes, RAVEL_AXIS_DP | RAVEL_AXIS_CP);
}

/* ---- with communicators ---- */

#define RETURN_IF(call)                      \
    do {                                     \
        ravel_status status_here = (call);   \
        if (status_here) return status_here; \
    } while (0)

static ravel_status check_mesh(ravel_comm *comm, const ravel_mesh *mesh, ravel_error *err) {
    const ravel_mesh_layout *l = ravel_mesh_get_layout(mesh);
    int32_t rank = ravel_comm_rank(comm), members[64], seen[64];
    ravel_mesh_coord mine = ravel_mesh_coords(mesh), want = ravel_mesh_locate(l, rank);
    if (memcmp(&mine, &want, sizeof mine) != 0) return ravel_error_set(err, RAVEL_E_INTERNAL, "wrong coordinates");
    for (int32_t chunk = 0; chunk < l->vpp; chunk++) {
        int32_t part = chunk * l->sizes[3] + mine.pp, parts = l->vpp * l->sizes[3];
        if (ravel_mesh_is_first(mesh, chunk) != (part == 0) || ravel_mesh_is_last(mesh, chunk) != (part == parts - 1))
            return ravel_error_set(err, RAVEL_E_INTERNAL, "chunk %d: wrong first or last part of the model", chunk);
    }
    for (int32_t axes = 1; axes < 16; axes++) {
        ravel_comm *group = ravel_mesh_comm(mesh, axes);
        if (!group) continue;
        int32_t size = ravel_mesh_group_size(l, axes), first = ravel_mesh_group_of(l, axes, rank) * size;
        if (ravel_comm_size(group) != size || ravel_comm_rank(group) != ravel_mesh_index_in(l, axes, rank))
            return ravel_error_set(err, RAVEL_E_INTERNAL, "group %d has the wrong size or place", axes);
        ravel_mesh_groups(l, axes, members);
        RETURN_IF(ravel_comm_allgather(group, &rank, seen, 1, RAVEL_I32, err));
        for (int32_t i = 0; i < size; i++)
            if (seen[i] != members[first + i]) return ravel_error_set(err, RAVEL_E_INTERNAL, "wrong member");
    }
    return RAVEL_OK;
}

static ravel_status run_mesh(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_mesh *mesh = NULL;
    RETURN_IF(ravel_mesh_create(comm, user, &mesh, err));
    ravel_status status = check_mesh(comm, mesh, err);
    if (!status) status = ravel_mesh_add(mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP, err);
    if (!status) status = check_mesh(comm, mesh, err);
    if (!status && (!ravel_mesh_comm(mesh, RAVEL_AXIS_TP | RAVEL_AXIS_PP) || ravel_mesh_comm(mesh, 15) != comm))
        status = ravel_error_set(err, RAVEL_E_INTERNAL, "a communicator is missing");
    ravel_mesh_free(mesh);
    return status;
}

TEST(mesh_of_threads_is_the_layout) {
    static const struct {
        int32_t ranks, tp, cp, pp;
        const char *order;
    } cases[] = {{1, 1, 1, 1, "tp-cp-dp-pp"},  {8, 2, 2, 1, "tp-cp-dp-pp"},  {8, 2, 1, 2, "pp-dp-cp-tp"},
                 {24, 2, 2, 3, "tp-cp-dp-pp"}, {24, 2, 2, 3, "tp-cp-pp-dp"}, {12, 3, 2, 2, "dp-tp-pp-cp"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_mesh_options o;
        ravel_mesh_options_default(&o);
        o.tp = cases[i].tp, o.cp = cases[i].cp, o.pp = cases[i].pp, o.order = cases[i].order;
        o.vpp = 1 + (int32_t)i % 3;
        CHECK_OK(ravel_threads_run(cases[i].ranks, NULL, run_mesh, &o, &err), &err);
    }
}

static ravel_status run_different(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_mesh_options o;
    ravel_mesh *mesh = NULL;
    ravel_error seen = RAVEL_ERROR_INIT;
    int32_t how = *(const int32_t *)user, odd = ravel_comm_rank(comm) == 2;
    ravel_mesh_options_default(&o);
    o.tp = 2;
    if (odd && how == 0) o.order = "dp-tp";
    if (odd && how == 1) o.vpp = 2;
    if (odd && how == 2) o.tp = 3;
    ravel_status status = ravel_mesh_create(comm, &o, &mesh, &seen),
                 want = how == 2 ? RAVEL_E_ARGUMENT : RAVEL_E_MISMATCH;
    const char *words = how == 2 ? "rank 2: tp 3" : "rank 2 has another mesh";
    if (status == want && strstr(seen.message, words)) return RAVEL_OK;
    ravel_mesh_free(mesh);
    return ravel_error_set(err, RAVEL_E_INTERNAL, "%s: %s", ravel_status_name(status), seen.message);
}

TEST(mesh_that_differs_on_one_rank_fails_on_all) {
    for (int32_t how = 0; how < 3; how++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_threads_run(4, NULL, run_different, &how, &err), &err);
    }
}
