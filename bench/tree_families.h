/* Families of batches with prefix trees, drawn here: sizes as in RL, no data of others. Of the bench, and of the test
 * of how good plans are. */
#ifndef BENCH_TREE_FAMILIES_H
#define BENCH_TREE_FAMILIES_H

#include <math.h>
#include <stdint.h>

enum { MOST = 4096 };

typedef struct batch {
    int64_t count;
    int64_t lengths[MOST], shared[MOST];
} batch;

/* ---- random numbers: fixed here, so that figures stay comparable ------------------------------------------------ */

static uint64_t state;

static double uniform(void) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) / 9007199254740992.0;
}

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)(uniform() * (double)(high - low + 1));
}

/* About lognormal: a sum of uniforms in the exponent. */
static int64_t lognormal(double median, double sigma, int64_t low, int64_t high) {
    double z = 0;
    for (int i = 0; i < 12; i++) z += uniform();
    double x = median * exp(sigma * (z - 6));
    return (int64_t)fmin(fmax(x, (double)low), (double)high);
}

static void add(batch *b, int64_t length, int64_t shared) {
    if (b->count == MOST) return;
    b->lengths[b->count] = length;
    b->shared[b->count] = b->count ? shared : 0;
    b->count++;
}

/* ---- families --------------------------------------------------------------------------------------------------- */

static void answers(batch *b, int64_t count, int64_t group, double prompt, double answer, int64_t longest) {
    for (int64_t i = 0, head = 0; i < count; i++) {
        if (i % group == 0) head = lognormal(prompt, .8, 32, longest / 2);
        add(b, head + lognormal(answer, .7, 8, longest / 2), i % group ? head : 0);
    }
}

static void grpo(batch *b) {
    answers(b, 1024, 8, 600, 1200, 16000);
}
static void grpo_many(batch *b) {
    answers(b, MOST, 16, 500, 2000, 16000);
}
static void grpo_long(batch *b) {
    answers(b, 256, 8, 9000, 500, 16000);
}

/* Rollouts of one task, each leaving the one before at some turn, or beginning anew; one system prompt for all. */
static void agents(batch *b) {
    for (int task = 0; task < 64; task++) {
        int64_t system = 800, head = system + lognormal(600, .6, 50, 4000), before = head;
        for (int k = 0; k < 8; k++) {
            int64_t keep = !k ? system : uniform() < .6 ? between(head, before) : head;
            int64_t length = keep + lognormal(4000, .9, 300, 13000);
            if (length <= head) length = head + 50;
            add(b, length, keep < before ? keep : before);
            before = length;
        }
    }
}

static void branch(batch *b, int64_t depth, int64_t level, int64_t *shared) {
    int64_t end = depth + lognormal(350, .6, 20, 2000);
    if (level == 0) {
        add(b, end, *shared);
        return;
    }
    for (int k = 0; k < 3; k++) {
        branch(b, end, level - 1, shared);
        *shared = end;
    }
    *shared = depth; /* of what comes next under the parent */
}

static void search(batch *b) {
    for (int tree = 0; tree < 8; tree++) {
        int64_t shared = 0;
        branch(b, 0, 4, &shared);
    }
}

/* Calls of an agent: each sends the history of the one before and some more. */
static void calls(batch *b) {
    for (int64_t i = 0, length = 0; i < 2048; i++) {
        int64_t before = length;
        length = i % 32 ? before + lognormal(500, .8, 20, 3000) : 1000 + lognormal(500, .8, 20, 3000);
        add(b, length, i % 32 ? before : 1000);
    }
}

/* One prompt, and samples that share nothing. */
static void one_root(batch *b) {
    for (int64_t i = 0; i < 512; i++) add(b, 12000 + lognormal(120, .8, 8, 1500), 12000);
}
static void flat(batch *b) {
    for (int64_t i = 0; i < 1024; i++) add(b, lognormal(2000, 1, 20, 16000), 0);
}

enum { GRPO, GRPO_N4096, GRPO_LONG, AGENTS, SEARCH, CALLS, ONE_ROOT, FLAT, FAMILIES };
static const struct {
    const char *name;
    void (*draw)(batch *b);
    int64_t budget;
} families[FAMILIES] = {[GRPO] = {"grpo", grpo, 16384},
                        [GRPO_N4096] = {"grpo_n4096", grpo_many, 16384},
                        [GRPO_LONG] = {"grpo_long", grpo_long, 32768},
                        [AGENTS] = {"agents", agents, 32768},
                        [SEARCH] = {"search", search, 16384},
                        [CALLS] = {"calls", calls, 32768},
                        [ONE_ROOT] = {"one_root", one_root, 16384},
                        [FLAT] = {"flat", flat, 32768}};

/* Always the same batch. */
static void draw_family(batch *b, int of) {
    state = 1;
    b->count = 0;
    families[of].draw(b);
}

#endif
