/* Schedules of the pipeline and layouts of a mesh: pure functions. */
#include "tests/unit/check.h"

#include "train/learn/layout.h"
#include "train/learn/pipeline.h"
#include "train/model/model.h"

#include <math.h>
#include <stdlib.h>

/* Every table runs to its end, every micro-batch goes once forward and once back through every chunk in order, and no chunk
 * holds more micro-batches than train_pipeline_flights says. */
TEST(train_pipeline_tables_run_and_keep_to_their_places) {
    for (int32_t pp = 1; pp <= 8; pp++)
        for (int32_t vpp = 1; vpp <= (pp > 1 ? 4 : 1); vpp++)
            for (int64_t m = 1; m <= 24; m++) {
                train_pipeline p = {pp, vpp, m};
                int32_t flights[32];
                double time, bubble;
                ravel_error err = RAVEL_ERROR_INIT;
                if (vpp > 1 && m % pp) {
                    CHECK_EQ(train_pipeline_run(&p, NULL, NULL, flights, &time, &bubble, &err), RAVEL_E_ARGUMENT);
                    continue;
                }
                CHECK_OK(train_pipeline_run(&p, NULL, NULL, flights, &time, &bubble, &err), &err);
                CHECK(bubble > -1e-9 && bubble < 1);
                for (int32_t stage = 0; stage < pp; stage++) {
                    int64_t forward[4] = {0}, backward[4] = {0};
                    for (int64_t i = 0; i < train_pipeline_ops(&p); i++) {
                        train_op op = train_pipeline_op(&p, stage, i);
                        CHECK(op.chunk >= 0 && op.chunk < vpp);
                        CHECK_EQ(op.micro, op.backward ? backward[op.chunk]++ : forward[op.chunk]++);
                        CHECK(backward[op.chunk] <= forward[op.chunk]);
                    }
                    for (int32_t c = 0; c < vpp; c++) {
                        CHECK(forward[c] == m && backward[c] == m);
                        CHECK(flights[c * pp + stage] <= train_pipeline_flights(pp, vpp, stage, c));
                    }
                }
            }
}

/* 1F1B: a stage holds pp - p micro-batches, and the bubble is (pp - 1) / (m + pp - 1); interleaved, it is smaller by vpp. */
TEST(train_pipeline_bubbles_are_the_textbook_ones) {
    for (int32_t pp = 2; pp <= 8; pp++)
        for (int32_t vpp = 1; vpp <= 4; vpp++) {
            int64_t m = 4 * (int64_t)pp;
            double time, bubble, ideal = (double)(pp - 1) / (double)(vpp * m + pp - 1);
            train_pipeline p = {pp, vpp, m};
            CHECK(train_pipeline_run(&p, NULL, NULL, NULL, &time, &bubble, NULL) == RAVEL_OK);
            if (!EXPECT(fabs(bubble - ideal) < 1e-9)) printf("    pp %d vpp %d: %g, not %g\n", pp, vpp, bubble, ideal);
            for (int32_t stage = 0; stage < pp && vpp == 1; stage++)
                CHECK_EQ(train_pipeline_flights(pp, 1, stage, 0), pp - stage);
        }
}

/* A micro-batch that costs more than others stretches the schedule, and the time is never below what one stage works. */
TEST(train_pipeline_costs_of_micro_batches_count) {
    double forward[8], backward[8], even, uneven, bubble;
    train_pipeline p = {4, 1, 8};
    for (int i = 0; i < 8; i++) forward[i] = 1, backward[i] = 2;
    CHECK(train_pipeline_run(&p, forward, backward, NULL, &even, &bubble, NULL) == RAVEL_OK);
    CHECK(fabs(even - 3 * (8 + 3)) < 1e-9);
    forward[3] = 5, backward[3] = 10;
    CHECK(train_pipeline_run(&p, forward, backward, NULL, &uneven, &bubble, NULL) == RAVEL_OK);
    CHECK(uneven >= 3 * 7 + 15 && uneven > even && bubble > 0);
}

/* ---- layouts -------------------------------------------------------------------------------------------- */

static ravel_shape shape_of(int64_t heads, int64_t kv_heads, int64_t layers) {
    return (ravel_shape){.hidden = 48,
                         .layers = layers,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = 8,
                         .ffn = 36,
                         .vocab = 67,
                         .gated = 1};
}

/* Parts cover the layers once, in order, and differ by at most one layer. */
TEST(train_layout_parts_cover_the_layers) {
    for (int64_t layers = 1; layers <= 13; layers++)
        for (int32_t pp = 1; pp <= 4; pp++)
            for (int32_t vpp = 1; vpp <= (pp > 1 ? 3 : 1); vpp++) {
                ravel_shape shape = shape_of(6, 2, layers);
                ravel_mesh_options o;
                ravel_mesh_layout layout;
                ravel_mesh_options_default(&o);
                o.pp = pp, o.vpp = vpp;
                ravel_status status = train_layout_plan(&o, pp, &shape, &layout, NULL);
                CHECK_EQ(status, layers < (int64_t)pp * vpp ? RAVEL_E_ARGUMENT : RAVEL_OK);
                int64_t next = 0;
                for (int32_t part = 0; part < train_layout_parts(&layout) && !status; part++) {
                    train_slice s = train_layout_slice(&layout, &shape, part, 0);
                    CHECK_EQ(s.first_layer, next);
                    CHECK(s.last_layer - s.first_layer >= layers / (pp * vpp));
                    CHECK(s.last_layer - s.first_layer <= layers / (pp * vpp) + 1);
                    next = s.last_layer;
                }
                if (!status) CHECK_EQ(next, layers);
            }
}

TEST(train_layout_names_the_nearest_mesh) {
    static const struct {
        int32_t tp, cp, dp, pp, vpp, ranks;
        const char *near;
    } cases[] = {
        {4, 1, 0, 1, 1, 4, "--tp 2 --cp 1 --dp 2 --pp 1 --vpp 1"}, /* 6 heads */
        {4, 1, 0, 1, 1, 0, "--tp 3 --cp 1 --dp 1 --pp 1 --vpp 1"},
        {1, 1, 0, 5, 1, 5, "--tp 1 --cp 1 --dp 5 --pp 1 --vpp 1"}, /* 4 layers */
        {1, 1, 0, 2, 3, 4, "--tp 1 --cp 1 --dp 2 --pp 2 --vpp 2"},
        {2, 1, 3, 1, 1, 8, "--tp 2 --cp 1 --dp 4 --pp 1 --vpp 1"}, /* 6 is not 8 */
        {1, 1, 0, 1, 2, 1, "--tp 1 --cp 1 --dp 1 --pp 1 --vpp 1"},
    };
    ravel_shape shape = shape_of(6, 6, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_mesh_options o;
        ravel_mesh_layout layout;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_mesh_options_default(&o);
        o.tp = cases[i].tp, o.cp = cases[i].cp, o.dp = cases[i].dp, o.pp = cases[i].pp, o.vpp = cases[i].vpp;
        CHECK_EQ(train_layout_plan(&o, cases[i].ranks, &shape, &layout, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, cases[i].near);
    }
}
