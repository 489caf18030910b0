/* Schedules of the pipeline and layouts of a mesh: pure functions. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "train/learn/layout.h"
#include "train/learn/pipeline.h"
#include "train/model/model.h"

#include <ravel/plan.h>

#include <math.h>
#include <stdlib.h>

/* ---- a simulation of all stages ------------------------------------------------------------------------- */

enum { PARTS = 32, MICROS = 32 };

/* The tables of all stages, run against one another. Costs are of a micro-batch in all parts, forward and backward. */
typedef struct simulation {
    train_pipeline p;
    const int64_t *costs;
    int64_t next[PARTS];            /* operation that a stage runs next */
    double clock[PARTS];            /* when it ended the one before */
    double ends[2][PARTS * MICROS]; /* when forward and backward ended; -1: not yet */
    int32_t flights[PARTS];         /* of each part, now and */
    int32_t most[PARTS];
} simulation;

/* When the inputs of the operation are available; -1: not yet. */
static double ready(const simulation *s, int32_t stage, train_op op) {
    const train_pipeline *p = &s->p;
    int32_t parts = p->pp * p->vpp, part = op.chunk * p->pp + stage;
    int64_t at = part * MICROS + op.micro;
    if (op.backward && part + 1 == parts) return s->ends[0][at];
    if (op.backward) return s->ends[0][at] < 0 ? -1 : s->ends[1][at + MICROS];
    double input = part ? s->ends[0][at - MICROS] : 0;
    int64_t held = op.micro - train_pipeline_flights(p->pp, p->vpp, stage, op.chunk);
    if (input < 0 || held < 0 || part == 0) return input;
    /* the place's last gradient must have been taken by the stage before, when that began its own backward */
    int32_t before = (stage + p->pp - 1) % p->pp;
    if (s->ends[1][(part - 1) * MICROS + held] >= 0) return input;
    if (s->next[before] == train_pipeline_ops(p)) return -1;
    train_op taking = train_pipeline_op(p, before, s->next[before]);
    return taking.backward && taking.micro == held && taking.chunk == (part - 1) / p->pp ? input : -1;
}

static bool advance(simulation *s, int32_t stage) {
    if (s->next[stage] == train_pipeline_ops(&s->p)) return false;
    train_op op = train_pipeline_op(&s->p, stage, s->next[stage]);
    int32_t part = op.chunk * s->p.pp + stage;
    double from = ready(s, stage, op);
    if (from < 0) return false;
    double cost = (double)s->costs[op.micro] / (s->p.pp * s->p.vpp) * (op.backward ? 2 : 1) / 3;
    s->clock[stage] = fmax(from, s->clock[stage]) + cost;
    s->ends[op.backward][part * MICROS + op.micro] = s->clock[stage];
    s->flights[part] += op.backward ? -1 : 1;
    if (s->flights[part] > s->most[part]) s->most[part] = s->flights[part];
    s->next[stage]++;
    return true;
}

/* The time of all operations; -1 after a deadlock. */
static double simulate(simulation *s, train_pipeline p, const int64_t *costs) {
    double time = 0;
    *s = (simulation){.p = p, .costs = costs};
    for (int i = 0; i < PARTS * MICROS; i++) s->ends[0][i] = s->ends[1][i] = -1;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t stage = 0; stage < p.pp; stage++)
            while (advance(s, stage)) moved = true;
    }
    for (int32_t stage = 0; stage < p.pp; stage++) {
        if (s->next[stage] < train_pipeline_ops(&p)) return -1;
        time = fmax(time, s->clock[stage]);
    }
    return time;
}

/* Every micro-batch goes once forward and once back through every chunk of the stage, in order. */
static void check_table(const train_pipeline *p, int32_t stage) {
    int64_t forward[4] = {0}, backward[4] = {0};
    for (int64_t i = 0; i < train_pipeline_ops(p); i++) {
        train_op op = train_pipeline_op(p, stage, i);
        CHECK(op.chunk >= 0 && op.chunk < p->vpp);
        CHECK_EQ(op.micro, op.backward ? backward[op.chunk]++ : forward[op.chunk]++);
        CHECK(backward[op.chunk] <= forward[op.chunk]);
    }
    for (int32_t c = 0; c < p->vpp; c++) CHECK(forward[c] == p->micros && backward[c] == p->micros);
}

/* Every table runs to its end, no chunk holds more micro-batches than train_pipeline_flights says, and the time is what the
 * planner predicts for micro-batches of random costs. */
TEST(train_pipeline_tables_run_in_their_places_and_in_the_predicted_time) {
    static simulation s;
    uint64_t seed = check_seed();
    for (int32_t pp = 1; pp <= 8; pp++)
        for (int32_t vpp = 1; vpp <= (pp > 1 ? 4 : 1); vpp++)
            for (int64_t m = 1; m <= 24; m++) {
                train_pipeline p = {pp, vpp, m};
                int64_t costs[MICROS];
                ravel_bubble bubble;
                ravel_error err = RAVEL_ERROR_INIT;
                for (int64_t i = 0; i < m; i++) costs[i] = (int64_t)(ravel__mix64(seed++) % 1000000);
                if (vpp > 1 && m % pp) {
                    CHECK_EQ(train_pipeline_check(&p, &err), RAVEL_E_ARGUMENT);
                    continue;
                }
                CHECK_OK(train_pipeline_check(&p, &err), &err);
                CHECK_OK(ravel_pipeline_bubble(costs, m, pp, vpp, &bubble, &err), &err);
                double time = simulate(&s, p, costs);
                if (!EXPECT(fabs(time - bubble.time) <= 1e-9 * bubble.time))
                    printf("    pp %d vpp %d, %d micro-batches: %g, predicted %g\n", pp, vpp, (int)m, time,
                           bubble.time);
                for (int32_t stage = 0; stage < pp; stage++) {
                    check_table(&p, stage);
                    for (int32_t c = 0; c < vpp; c++)
                        CHECK(s.most[c * pp + stage] <= train_pipeline_flights(pp, vpp, stage, c));
                }
            }
}

/* 1F1B: a stage holds pp - p micro-batches. */
TEST(train_pipeline_stages_hold_the_textbook_number) {
    for (int32_t pp = 2; pp <= 8; pp++)
        for (int32_t stage = 0; stage < pp; stage++) CHECK_EQ(train_pipeline_flights(pp, 1, stage, 0), pp - stage);
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

/* ---- messages between two stages ------------------------------------------------------------------------ */

/* What stage `stage` sends (or receives) along one direction: number `index`, as micro-batch * PARTS + the part that needs the rows; -1:
 * there are no more. Rows go from part n to part n + 1, gradients back. */
static int64_t message_of(const train_pipeline *p, int32_t stage, int backward, int receives, int64_t index) {
    for (int64_t i = 0; i < train_pipeline_ops(p); i++) {
        train_op op = train_pipeline_op(p, stage, i);
        int32_t part = op.chunk * p->pp + stage, to = backward ? part - 1 : part + 1;
        if (receives) to = part;
        if (op.backward != backward || to < 0 || to >= p->pp * p->vpp) continue;
        if (receives && (backward ? part + 1 == p->pp * p->vpp : part == 0)) continue;
        if (index-- == 0) return op.micro * PARTS + to;
    }
    return -1;
}

/* NCCL matches messages by their order alone. */
TEST(train_pipeline_neighbours_send_and_receive_in_one_order) {
    for (int32_t pp = 2; pp <= 5; pp++)
        for (int32_t vpp = 1; vpp <= 3; vpp++)
            for (int32_t backward = 0; backward < 2; backward++) {
                const train_pipeline p = {pp, vpp, 2 * pp};
                for (int32_t stage = 0; stage < pp; stage++) {
                    int32_t next = backward ? (stage + pp - 1) % pp : (stage + 1) % pp;
                    for (int64_t i = 0, sent = 0; sent >= 0; i++) {
                        sent = message_of(&p, stage, backward, 0, i);
                        CHECK_EQ(sent, message_of(&p, next, backward, 1, i));
                    }
                }
            }
}
