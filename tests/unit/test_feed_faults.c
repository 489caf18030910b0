/* A deadlock hunt: ranks that fail in every phase, leave, run out of memory, have other options or other data, have no
 * samples or one giant. Nobody may hang (a deadline turns that into E_TIMEOUT, which fails the test), every survivor
 * gets an error, and errors that can be carried are the same sentence everywhere. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "feed/feed.h"

#include <stdlib.h>

enum { RANKS = 12, ROUNDS = 6, GIANT = 250 };

typedef enum blow {
    BLOW_NONE,
    BLOW_PHASE,   /* the hook fails once, in one phase of one batch */
    BLOW_LEAVE,   /* the rank frees its feed and goes */
    BLOW_ROW,     /* its source fails at a row */
    BLOW_MEMORY,  /* its allocator fails from some call on, for a few calls */
    BLOW_OPTIONS, /* its options differ */
    BLOW_SOURCE,  /* its source has another number of rows */
    BLOW_DATA,    /* its source has other samples */
    BLOW_GIANT,   /* some rows are giants, over the budget or just under it; all know of them, one holds them */
    BLOWS
} blow;

typedef struct hunt {
    ravel_mesh_options mesh;
    ravel_feed_options feed;
    ravel_plan_options plan;
    blow kind;
    int32_t victim, phase;
    int64_t batch; /* when */
    int64_t fail_at;
    ravel_status create[RANKS], seen[RANKS][ROUNDS]; /* what each rank got */
    char said[RANKS][200];                           /* and the first sentence */
    int owner[RANKS];
    int fired;
} hunt;

/* ---- a source that fails, an allocator that fails ------------------------------------------------------- */

typedef struct shelf {
    const hunt *h;
    int32_t rank;
} shelf;

static ravel_status read_shelf(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    const shelf *s = user;
    int32_t tokens[300];
    int64_t length = 1 + (int64_t)(ravel__mix64((uint64_t)row) % 90);
    if (s->rank == s->h->victim && s->h->kind == BLOW_DATA && row % 7 == 3) length++;
    if (s->h->kind == BLOW_GIANT && row % 50 == 13) length = GIANT;
    for (int64_t i = 0; i < length; i++) tokens[i] = (int32_t)(row + i);
    if (s->rank == s->h->victim && s->h->kind == BLOW_ROW && row % 20 == 7) {
        __atomic_store_n((int *)&s->h->fired, 1, __ATOMIC_SEQ_CST);
        return ravel_error_set(err, RAVEL_E_CALLBACK, "the disk is on fire");
    }
    const void *data[] = {tokens};
    return ravel_collector_add(collector, length, data, err);
}

typedef struct bank {
    ravel_allocator allocator;
    int64_t calls, fail_at;
    int64_t live;
} bank;

/* Two threads of a rank use it. */
static void *bank_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    bank *b = user;
    if (new_bytes > old_bytes) {
        int64_t call = __atomic_add_fetch(&b->calls, 1, __ATOMIC_SEQ_CST);
        if (b->fail_at && call >= b->fail_at && call < b->fail_at + 3) return NULL;
    }
    if (new_bytes == 0) {
        free(ptr);
    } else {
        void *grown = realloc(ptr, new_bytes);
        if (!grown) return NULL;
        ptr = grown;
    }
    __atomic_fetch_add(&b->live, (int64_t)new_bytes - (int64_t)old_bytes, __ATOMIC_SEQ_CST);
    return new_bytes ? ptr : NULL;
}

typedef struct trap {
    hunt *h;
    const ravel_feed *feed;
    int sprung;
} trap;

static ravel_status spring(void *user, int32_t phase, ravel_error *err) {
    trap *t = user;
    if (t->sprung || phase != t->h->phase || t->feed->work.batch != t->h->batch) return RAVEL_OK;
    t->sprung = 1;
    __atomic_store_n(&t->h->fired, 1, __ATOMIC_SEQ_CST);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the trap in %s", ravel_feed_phase_name(phase));
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

static void use(hunt *h, int32_t rank, ravel_feed *feed) {
    for (int i = 0; i < ROUNDS; i++) {
        const ravel_feed_update *update;
        ravel_error err = RAVEL_ERROR_INIT;
        if (h->kind == BLOW_LEAVE && rank == h->victim && i == h->batch) {
            __atomic_store_n(&h->fired, 1, __ATOMIC_SEQ_CST);
            h->seen[rank][i] = RAVEL_E_END;
            return;
        }
        h->seen[rank][i] = ravel_feed_next(feed, &update, &err);
        if (h->seen[rank][i] && !h->said[rank][0])
            (void)snprintf(h->said[rank], sizeof h->said[rank], "%.190s", err.message);
        if (h->seen[rank][i] && h->seen[rank][i] != RAVEL_E_END) EXPECT(err.message[0]);
    }
}

static ravel_status hunt_rank(ravel_comm *comm, void *user, ravel_error *err) {
    hunt *h = user;
    int32_t rank = ravel_comm_rank(comm);
    int struck = rank == h->victim;
    static const ravel_field fields[] = {{.name = "tokens", .dtype = RAVEL_I32}};
    shelf s = {h, rank};
    bank b = {.allocator = {bank_resize, NULL}, .fail_at = struck && h->kind == BLOW_MEMORY ? h->fail_at : 0};
    b.allocator.user = &b;
    ravel_source_hooks hooks = {.size = sizeof hooks,
                                .user = &s,
                                .count = struck && h->kind == BLOW_SOURCE ? 399 : 400,
                                .fields = fields,
                                .field_count = 1,
                                .read = read_shelf};
    ravel_source *source = NULL;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_feed_options options = h->feed;
    ravel_plan_options plan = h->plan;
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_status status = ravel_source_callbacks(&hooks, &source, err);
    if (!status) status = ravel_mesh_create(comm, &h->mesh, &mesh, err);
    if (status) return status;
    options.plan = &plan;
    options.allocator = &b.allocator;
    if (struck && h->kind == BLOW_OPTIONS) plan.budget++;
    h->create[rank] = ravel_feed_create(mesh, source, &options, &feed, &own);
    (void)snprintf(h->said[rank], sizeof h->said[rank], "%.190s", own.message);
    trap t = {h, feed, 0};
    if (feed && struck && h->kind == BLOW_PHASE) feed->fault = (ravel__fault){spring, &t};
    if (feed) h->owner[rank] = ravel_feed_is_owner(feed);
    if (feed) use(h, rank, feed);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    ravel_source_free(source);
    EXPECT(b.live == 0);
    return RAVEL_OK;
}

/* ---- what must be true ---------------------------------------------------------------------------------- */

static ravel_status first_error(const hunt *h, int32_t rank) {
    for (int i = 0; i < ROUNDS; i++)
        if (h->seen[rank][i]) return h->seen[rank][i];
    return RAVEL_OK;
}

static bool nobody_hung(const hunt *h, int32_t ranks) {
    for (int32_t r = 0; r < ranks; r++) {
        if (!EXPECT(h->create[r] != RAVEL_E_TIMEOUT)) return false;
        for (int i = 0; i < ROUNDS; i++)
            if (!EXPECT(h->seen[r][i] != RAVEL_E_TIMEOUT && h->seen[r][i] != RAVEL_E_INTERNAL)) return false;
    }
    return true;
}

/* The same status and sentence on every rank. */
static bool all_say(const hunt *h, int32_t ranks, ravel_status status, const char *words) {
    for (int32_t r = 0; r < ranks; r++)
        if (!EXPECT(first_error(h, r) == status) || !EXPECT(strstr(h->said[r], words)) ||
            !EXPECT(strcmp(h->said[r], h->said[0]) == 0))
            return false;
    return true;
}

static bool all_hear(const hunt *h, int32_t ranks) {
    for (int32_t r = 0; r < ranks; r++)
        if (!EXPECT(h->create[r] != RAVEL_OK || first_error(h, r) != RAVEL_OK)) return false;
    return true;
}

static bool all_go_on(const hunt *h, int32_t ranks) {
    for (int32_t r = 0; r < ranks; r++)
        if (!EXPECT(h->create[r] == RAVEL_OK && first_error(h, r) == RAVEL_OK)) return false;
    return true;
}

static int owners(const hunt *h, int32_t ranks) {
    int count = 0;
    for (int32_t r = 0; r < ranks; r++) count += h->owner[r];
    return count;
}

static bool outcome(const hunt *h, int32_t ranks) {
    char words[80];
    if (!nobody_hung(h, ranks)) return false;
    switch (h->kind) {
    case BLOW_NONE: return all_go_on(h, ranks);
    case BLOW_PHASE:
        if (h->phase == RAVEL_FEED_PLAN && !h->owner[h->victim]) return EXPECT(!h->fired); /* it does not plan */
        if (!EXPECT(h->fired)) return false;
        (void)snprintf(words, sizeof words, "rank %d: the trap in", h->victim);
        if (h->phase > RAVEL_FEED_AGREE) return all_hear(h, ranks);
        for (int32_t r = 0; r < ranks; r++) /* it was one batch: the next try works */
            if (!EXPECT(h->seen[r][h->batch] == RAVEL_E_UNSUPPORTED && h->seen[r][ROUNDS - 1] == RAVEL_OK))
                return false;
        return all_say(h, ranks, RAVEL_E_UNSUPPORTED, ranks > 1 ? words : "the trap in"); /* one names no rank */
    case BLOW_LEAVE: return all_hear(h, ranks);
    case BLOW_ROW:
        if (first_error(h, 0) == RAVEL_OK) return all_go_on(h, ranks); /* fetched ahead, and never used */
        return all_say(h, ranks, RAVEL_E_CALLBACK, "the disk is on fire");
    case BLOW_GIANT:
        if (h->plan.budget * h->mesh.cp > GIANT || first_error(h, 0) == RAVEL_OK) return all_go_on(h, ranks);
        return all_say(h, ranks, RAVEL_E_OVERSIZE, "has 250 tokens");
    case BLOW_MEMORY: return true; /* whatever it was, nobody hung and nothing leaked */
    case BLOW_OPTIONS:
    case BLOW_SOURCE:
        if (h->kind == BLOW_SOURCE && h->create[0] == RAVEL_OK) /* it does not read, or it alone does */
            return EXPECT(!h->owner[h->victim] || owners(h, ranks) == 1);
        for (int32_t r = 0; r < ranks && ranks > 1; r++)
            if (!EXPECT(h->create[r] == RAVEL_E_MISMATCH && strstr(h->said[r], "rank"))) return false;
        return true;
    case BLOW_DATA: return true; /* seen below where another owner reads the same share */
    default: return EXPECT(!"a kind of blow");
    }
}

static void draw(ravel__rng *g, hunt *h, int64_t trial) {
    memset(h, 0, sizeof *h);
    ravel_mesh_options_default(&h->mesh);
    ravel_feed_options_default(&h->feed);
    ravel_plan_options_default(&h->plan);
    do {
        h->mesh.tp = 1 + (int32_t)ravel__rng_below(g, 2), h->mesh.cp = 1 + (int32_t)ravel__rng_below(g, 2);
        h->mesh.dp = 1 + (int32_t)ravel__rng_below(g, 4), h->mesh.pp = 1 + (int32_t)ravel__rng_below(g, 3);
    } while (h->mesh.tp * h->mesh.cp * h->mesh.dp * h->mesh.pp > RANKS);
    h->mesh.vpp = 1 + (int32_t)ravel__rng_below(g, 2);
    h->feed.owners = (int32_t)ravel__rng_below(g, 3);
    h->feed.prefetch = (int32_t)ravel__rng_below(g, 4);
    h->feed.samples = 1 + (int64_t)ravel__rng_below(g, 30);
    h->kind = (blow)(trial % BLOWS);
    h->plan.budget = h->kind == BLOW_GIANT && ravel__rng_below(g, 2) ? 256 : 100;
    h->phase = (int32_t)(trial / BLOWS % RAVEL_FEED_PHASES);
    h->victim = (int32_t)ravel__rng_below(g, (uint64_t)(h->mesh.tp * h->mesh.cp * h->mesh.dp * h->mesh.pp));
    h->batch = (int64_t)ravel__rng_below(g, 3);
    h->fail_at = 1 + (int64_t)ravel__rng_below(g, 60);
}

TEST(feed_never_hangs_whatever_a_rank_does) {
    ravel__rng g = ravel__rng_seed(check_seed());
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    for (int64_t trial = 0; trial < check_rounds(500, 5000); trial++) {
        hunt h;
        ravel_error err = RAVEL_ERROR_INIT;
        draw(&g, &h, trial);
        int32_t ranks = h.mesh.tp * h.mesh.cp * h.mesh.dp * h.mesh.pp;
        CHECK_OK(ravel_threads_run(ranks, &options, hunt_rank, &h, &err), &err);
        bool good = outcome(&h, ranks);
        if (!good)
            printf("    trial %lld: blow %d phase %s victim %d of %d (tp %d cp %d dp %d pp %d) owners %d prefetch %d "
                   "batch %lld; rank 0 says %s: %s\n",
                   (long long)trial, (int)h.kind, ravel_feed_phase_name(h.phase), h.victim, ranks, h.mesh.tp, h.mesh.cp,
                   h.mesh.dp, h.mesh.pp, h.feed.owners, h.feed.prefetch, (long long)h.batch,
                   ravel_status_name(first_error(&h, 0)), h.said[0]);
        CHECK(good);
    }
}

/* First and last stage read different samples: their plans differ, and everyone hears of it before data moves. */
TEST(feed_owners_that_read_different_data_are_named) {
    for (int32_t prefetch = 0; prefetch < 2; prefetch++) {
        hunt h;
        ravel__rng g = ravel__rng_seed(check_seed());
        ravel_error err = RAVEL_ERROR_INIT;
        draw(&g, &h, 0);
        h.mesh.tp = 2, h.mesh.cp = 1, h.mesh.dp = 2, h.mesh.pp = 3, h.mesh.vpp = 1;
        h.feed.owners = RAVEL_OWNERS_TP0_FIRST_LAST;
        h.feed.prefetch = prefetch;
        h.feed.samples = 64;
        h.kind = BLOW_DATA;
        h.victim = 10; /* tp 0, dp 1, the last stage: its whole dp group plans with its lengths */
        CHECK_OK(ravel_threads_run(12, NULL, hunt_rank, &h, &err), &err);
        CHECK(nobody_hung(&h, 12));
        CHECK(all_say(&h, 12, RAVEL_E_MISMATCH, "ranks 8, 10 have another plan"));
    }
}
