/* The feed: bytes that move against bytes that have to, exchange and packing against memcpy, how much of it a consumer
 * waits for, and the time per sample on 8 and on 64 ranks. All ranks are threads of this process. */
#include "bench/bench.h"

#include <ravel/feed.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MOST = 64, WARM_UP = 2 };

typedef struct run {
    int32_t ranks, cp;        /* cp 0: 1 */
    int32_t hybrid;           /* all ranks are one pool, of groups of different widths */
    int32_t share;            /* ravel_share_prefix; file order */
    int64_t samples, updates; /* after the warm-up */
    int32_t prefetch, copies; /* copies: measure memcpy too */
    int32_t consumes;         /* every update is used for as long as it took to prepare */
    const ravel_source *source;
    /* results, by rank */
    double cpu[RANKS_MOST]; /* of this thread, in ravel_feed_next */
    double exposed[RANKS_MOST], prepare[RANKS_MOST];
    double moving[RANKS_MOST];  /* exchange and pack, per token, in the fastest update */
    double copying[RANKS_MOST]; /* memcpy likewise */
    int64_t sent[RANKS_MOST], needed[RANKS_MOST], tokens[RANKS_MOST];
    int64_t total_samples;
} run;

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A device would compute meanwhile; the processor is free. */
static void consume(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    if (seconds > 0) (void)nanosleep(&t, NULL);
}

/* Bytes that an update writes per token: its sample's fields (tokens of 4 bytes, a mask of 1) where they arrive, and
 * packed
 * tokens, labels, mask, weights and positions (4, 4, 1, 4, 4). */
enum { BYTES_PER_TOKEN = 5 + 17 };

/* A memcpy of as many bytes as the update wrote, by the same thread, right after it; seconds per token. */
static double copy(int64_t tokens) {
    size_t bytes = (size_t)(BYTES_PER_TOKEN * tokens);
    char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
    double best = 1e9;
    if (from && to) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        for (int repeat = 0; repeat < 3; repeat++) {
            double began = bench_seconds();
            memcpy(to, from, bytes);
            double took = (bench_seconds() - began) / (double)tokens;
            if (took < best) best = took;
        }
    }
    free(from);
    free(to);
    return best;
}

static void note(run *r, int32_t rank, const ravel_feed_update *u, double cpu) {
    r->cpu[rank] += cpu;
    r->exposed[rank] += u->exposed_sec;
    r->prepare[rank] += u->prepare_sec;
    double moving = (u->phase_sec[RAVEL_FEED_EXCHANGE] + u->phase_sec[RAVEL_FEED_PACK]) / (double)u->mine.tokens;
    if (r->moving[rank] == 0 || moving < r->moving[rank]) r->moving[rank] = moving;
    double copying = r->copies ? copy(u->mine.tokens) : 0;
    if (r->copying[rank] == 0 || copying < r->copying[rank]) r->copying[rank] = copying;
    r->sent[rank] += u->sent_bytes;
    r->needed[rank] += u->needed_bytes;
    r->tokens[rank] += u->mine.tokens;
    if (rank == 0) r->total_samples += u->counts.samples;
}

static ravel_status use(run *r, ravel_comm *comm, ravel_feed *feed, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < r->updates + WARM_UP && !status; i++) {
        const ravel_feed_update *u;
        if (i == WARM_UP && !r->prefetch) status = ravel_comm_barrier(comm, err);
        double cpu = thread_seconds();
        if (!status) status = ravel_feed_next(feed, &u, err);
        cpu = thread_seconds() - cpu;
        if (!status && i >= WARM_UP) note(r, ravel_comm_rank(comm), u, cpu);
        if (!status && r->consumes) consume(u->prepare_sec);
    }
    return status;
}

static ravel_status run_rank(ravel_comm *comm, void *user, ravel_error *err) {
    run *r = user;
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_mesh_options_default(&mesh_options);
    if (r->cp) mesh_options.cp = r->cp;
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    plan.budget = 16384;
    plan.cost = (ravel_cost){24576, 1, 0};
    if (r->hybrid) {
        plan.cp_pool = r->ranks;
        plan.budget = 2048;
    }
    options.plan = &plan;
    options.share_prefix = r->share;
    options.shuffle = !r->source || ravel_source_count(r->source) > 10000;
    options.samples = r->samples;
    options.prefetch = r->prefetch;
    options.updates = r->updates + WARM_UP;
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, r->source, &options, &feed, err);
    if (!status) status = use(r, comm, feed, err);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status;
}

static int go(run *r) {
    ravel_error err = RAVEL_ERROR_INIT;
    memset(r->cpu, 0, sizeof *r - offsetof(run, cpu));
    if (ravel_threads_run(r->ranks, NULL, run_rank, r, &err) == RAVEL_OK) return 1;
    bench_note("feed: %s", err.message);
    return 0;
}

static ravel_source *open_source(void) {
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_source_options_default(&options);
    options.mock = "{\"type\":\"lognormal\",\"min_seq_len\":1024,\"max_seq_len\":8192,\"mean_seq_len\":4096,"
                   "\"count\":100000,\"prompt_share\":0.3}";
    return ravel_source_open(&options, &source, NULL) ? NULL : source;
}

static double sum(const double *x, int32_t count) {
    double total = 0;
    for (int32_t i = 0; i < count; i++) total += x[i];
    return total;
}

static double most(const double *x, int32_t count) {
    double result = 0;
    for (int32_t i = 0; i < count; i++)
        if (x[i] > result) result = x[i];
    return result;
}

static void report_bytes(const char *name, run *r, const char *conditions) {
    int64_t sent = 0, needed = 0;
    if (!r->source || !go(r)) return;
    for (int32_t i = 0; i < r->ranks; i++) sent += r->sent[i], needed += r->needed[i];
    bench_report(name, (double)sent / (double)needed, "", LOWER,
                 "all bytes that ranks send (samples, lengths) / bytes of samples that leave their home, each once "
                 "whatever cp; %s",
                 conditions);
}

BENCH(feed_moves) {
    ravel_source *source = open_source();
    run r = {.ranks = 2, .samples = 512, .updates = 30, .source = source, .copies = 1};
    if (source && go(&r))
        bench_report(
            "feed.vs_memcpy", most(r.copying, r.ranks) / most(r.moving, r.ranks), "of memcpy", HIGHER,
            "exchange, weights and packing (tokens, labels, mask, weights, positions) of 512 lognormal samples "
            "on 2 ranks, against memcpy of as many bytes as that writes (22 per token) by the same two threads");
    r = (run){.ranks = 8, .samples = 1024, .updates = 4, .source = source};
    report_bytes("feed.bytes_ratio", &r, "dp 8, 1024 samples");
    r = (run){.ranks = 8, .cp = 4, .samples = 1024, .updates = 4, .source = source};
    report_bytes("feed.bytes_ratio_cp4", &r, "dp 2, cp 4, 1024 samples");
    r = (run){.ranks = 8, .hybrid = 1, .samples = 1024, .updates = 4, .source = source};
    report_bytes("feed.bytes_ratio_hybrid", &r,
                 "a pool of 8 ranks, budget 2048, 1024 samples in groups of 1 to 8 ranks");
    ravel_source_free(source);
}

/* Eight answers to each prompt, of which the first `user` tokens are those of all prompts. Rows of one prompt do not
 * stand together. */
enum { PROMPTS = 128, PROMPT = 1000 };

static ravel_status read_answer(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[PROMPT + 1000], *same = user;
    uint8_t mask[PROMPT + 1000];
    uint32_t group = (uint32_t)(row % PROMPTS), own = (uint32_t)row + 1000,
             length = PROMPT + 100 + own * 2654435761u % 900;
    for (uint32_t t = 0; t < length; t++) {
        uint32_t of = t < (uint32_t)*same ? 7 : t < PROMPT ? group : own;
        tokens[t] = (int32_t)((of * 40503 + t * 2654435761u) >> 16);
        mask[t] = t >= PROMPT;
    }
    const void *data[] = {tokens, mask};
    return ravel_collector_add(collector, length, data, err);
}

static int64_t bytes_of(run *r) {
    int64_t sent = 0;
    if (!go(r)) return 0;
    for (int32_t i = 0; i < r->ranks; i++) sent += r->sent[i];
    return sent;
}

BENCH(feed_tree) {
    static const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
                                         {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8}};
    static int32_t same[] = {0, 24};
    static const int32_t ranks[] = {8, 64};
    for (int k = 0; k < 4; k++) {
        ravel_source_hooks hooks = {.size = sizeof hooks, .fields = fields, .field_count = 2, .read = read_answer};
        ravel_source *source = NULL;
        char name[48];
        hooks.user = &same[k / 2];
        hooks.count = k < 2 ? 8 * PROMPTS : PROMPTS; /* one answer each: the template of the chat is all they share */
        if (ravel_source_callbacks(&hooks, &source, NULL)) return;
        run off = {.ranks = ranks[k % 2], .samples = hooks.count, .updates = 1, .source = source}, on = off;
        on.share = k < 2 ? RAVEL_SHARE_ON : RAVEL_SHARE_AUTO;
        int64_t plain = bytes_of(&off), shared = bytes_of(&on);
        (void)snprintf(name, sizeof name, "feed.tree_bytes_%s_dp%d", k < 2 ? "grpo" : "template", ranks[k % 2]);
        if (plain && shared)
            bench_report(
                name, (double)shared / (double)plain, "", LOWER,
                "bytes that ranks send with shared prefixes / without: %s; dp %d, the rows of a prompt on different ranks",
                k < 2 ? "8 answers of 550 tokens to each of 128 prompts of 1,000"
                      : "128 rows that share 24 tokens of 1,550",
                ranks[k % 2]);
        ravel_source_free(source);
    }
}

BENCH(feed_overlap) {
    ravel_source *source = open_source();
    run r = {.ranks = 2, .samples = 256, .updates = 30, .source = source, .prefetch = 4, .consumes = 1};
    double best = 1e9;
    for (int repeat = 0; source && repeat < 5; repeat++) {
        if (!go(&r)) break;
        double share = most(r.exposed, r.ranks) / most(r.prepare, r.ranks);
        if (share < best) best = share;
    }
    if (source && best < 1e9)
        bench_report(
            "feed.exposed_share", best, "", LOWER,
            "time that the consumer waits / time that the feed takes, prefetch 4 (the default), the consumer being idle with "
            "every update for as long as it took to prepare; 2 ranks, 256 samples, without the first two "
            "updates");
    ravel_source_free(source);
}

BENCH(feed_ranks) {
    static const int32_t ranks[] = {8, 64};
    ravel_source *source = open_source();
    for (int k = 0; source && k < 2; k++) {
        char name[40], all[40];
        double best = 1e9;
        for (int repeat = 0; repeat < 3; repeat++) {
            run r = {.ranks = ranks[k], .samples = 2048, .updates = 3, .source = source};
            if (!go(&r)) break;
            double total = sum(r.cpu, r.ranks) / (double)r.total_samples;
            if (total < best) best = total;
        }
        (void)snprintf(name, sizeof name, "feed.us_per_sample_%d", ranks[k]);
        (void)snprintf(all, sizeof all, "feed.cpu_us_per_sample_%d", ranks[k]);
        bench_report(name, 1e6 * best / ranks[k], "us", LOWER,
                     "processor time of one rank (mean of %d) over the samples of the update (2048, of 3256 tokens on "
                     "average): what a sample takes where every rank has a core",
                     ranks[k]);
        bench_report(all, 1e6 * best, "us", LOWER,
                     "processor time of all %d ranks together: reading, moving and packing the sample once, and its "
                     "share of %d times the same plan",
                     ranks[k], ranks[k]);
    }
    ravel_source_free(source);
}
