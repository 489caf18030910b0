/* Bytes that the ranks of a mesh send per update, against the count by formula (docs/train-internals.md): whole SFT
 * runs over a transport that counts every byte, cards and lengths of the feed included. A run of three updates less a
 * run of one is two updates. All samples have the same length, so that every update moves the same. */
#include "bench/bench.h"

#include "train/run/sft/sft.h"

#include <ravel/comm.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a transport that counts ---------------------------------------------------------------------------- */

typedef struct message {
    struct message *next;
    int32_t from, to, tag;
    int64_t bytes;
    char data[];
} message;

/* Messages between all ranks, in the order in which they were sent. */
typedef struct post {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    message *first, **last;
    int64_t bytes; /* sent in all */
} post;

typedef struct postbox {
    post *post;
    int32_t rank;
} postbox;

static ravel_status post_send(void *user, const void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                              ravel_error *err) {
    postbox *box = user;
    message *m = malloc(sizeof *m + (size_t)bytes);
    (void)timeout;
    if (!m) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for a message");
    *m = (message){.from = box->rank, .to = peer, .tag = tag, .bytes = bytes};
    if (bytes) memcpy(m->data, data, (size_t)bytes);
    pthread_mutex_lock(&box->post->lock);
    *box->post->last = m;
    box->post->last = &m->next;
    box->post->bytes += bytes;
    pthread_cond_broadcast(&box->post->arrived);
    pthread_mutex_unlock(&box->post->lock);
    return RAVEL_OK;
}

/* Takes the first message that fits out of the list. */
static message *take(post *p, int32_t from, int32_t to, int32_t tag) {
    for (message **at = &p->first; *at; at = &(*at)->next) {
        message *m = *at;
        if (m->from != from || m->to != to || m->tag != tag) continue;
        *at = m->next;
        if (p->last == &m->next) p->last = at;
        return m;
    }
    return NULL;
}

static ravel_status post_receive(void *user, void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                                 ravel_error *err) {
    postbox *box = user;
    message *m;
    (void)timeout;
    pthread_mutex_lock(&box->post->lock);
    while (!(m = take(box->post, peer, box->rank, tag))) pthread_cond_wait(&box->post->arrived, &box->post->lock);
    pthread_mutex_unlock(&box->post->lock);
    int fits = m->bytes == bytes;
    if (fits && bytes) memcpy(data, m->data, (size_t)bytes);
    free(m);
    return fits ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MISMATCH, "a message of another size");
}

/* ---- layouts -------------------------------------------------------------------------------------------- */

enum {
    LENGTH = 64,
    HIDDEN = 128,
    LAYERS = 6,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 32,
    FFN = 384,
    VOCAB = 512,
    KEPT = 3
};

/* micros: of each pipeline per update, of one sample each. */
typedef struct layout {
    const char *name;
    int32_t tp, cp, dp, pp, shard, micros;
} layout;

/* Parameters of one pipeline stage and tensor-parallel rank, the tied embedding apart. */
static double layer_elements(const layout *l) {
    double q = HEADS * HEAD_DIM, kv = KV_HEADS * HEAD_DIM;
    return HIDDEN * (2 * q + 2 * kv + 3.0 * FFN) / l->tp + 2.0 * HIDDEN + 2.0 * HEAD_DIM;
}

/* Elements that one group of dp x cp replicas sends for weights and gradients, summed over the stages of one
 * tensor-parallel rank. An all-gather or reduce-scatter of n elements over r ranks sends (r - 1) n, an all-reduce twice
 * that. */
static double replica_elements(const layout *l) {
    double r = l->dp * l->cp, layers = (double)LAYERS / l->pp, ends = (double)VOCAB * HIDDEN / l->tp;
    double stages = l->pp, copies = l->pp > 1 ? 2 : 1; /* of the embedding */
    double all = LAYERS * layer_elements(l) + copies * ends;
    if (l->shard != TRAIN_SHARD_PARAMS) return 2 * (r - 1) * all;
    /* Gradients of every micro-batch; weights of a layer twice per micro-batch unless they are still in one of its
     * buffers */
    double turns = 2.0 * l->micros - 1, again = layers > KEPT ? layers - KEPT : 0;
    double gathered = stages * (layers + turns * again) * layer_elements(l) + copies * ends;
    return (r - 1) * (gathered + l->micros * all);
}

/* Bytes of one update, all ranks. */
static double textbook(const layout *l) {
    double tokens = (double)l->micros * l->dp * LENGTH, rows = tokens * HIDDEN; /* of all ranks but tp and pp */
    double kv = 2.0 * KV_HEADS * HEAD_DIM / l->tp;
    /* sequence parallel: two gathers and two scatters forward, four and two back; embedding and head */
    double activations = (l->tp - 1) * rows * (10 * LAYERS + 4);
    double norms = 2.0 * (l->tp - 1) * (2 * LAYERS + 1) * HIDDEN;
    double softmax = (double)l->tp * (l->tp - 1) * 4 * tokens;      /* max, sum, target, entropy of each token */
    double ring = l->tp * LAYERS * (3.0 * l->cp - 2) * tokens * kv; /* kv; kv again; the gradient, back to its owner */
    double pipeline = 2.0 * (l->pp - 1) * rows;
    double tied = l->pp > 1 ? 2.0 * VOCAB * HIDDEN : 0;
    if (l->pp > 1) tied *= l->shard == TRAIN_SHARD_NONE ? l->dp * l->cp : 1;
    if (l->cp == 1) ring = 0;
    if (l->shard == TRAIN_SHARD_NONE) norms *= l->dp * l->cp;
    return 4 * (activations + norms + softmax + ring + pipeline + tied + l->tp * replica_elements(l));
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

typedef struct job {
    train_config config;
    post post;
} job;

static ravel_status run_rank(ravel_comm *inner, void *user, ravel_error *err) {
    job *j = user;
    postbox box = {&j->post, ravel_comm_rank(inner)};
    ravel_comm_hooks hooks = {.size = sizeof hooks,
                              .user = &box,
                              .rank = box.rank,
                              .ranks = ravel_comm_size(inner),
                              .send = post_send,
                              .recv = post_receive};
    train_summary summary;
    train_hooks quiet = {.config_text = "{}"};
    ravel_comm *comm = NULL;
    ravel_status status = ravel_comm_callbacks(&hooks, NULL, &comm, err);
    if (!status) status = train_tune(TRAIN_SFT, &j->config, comm, &quiet, &summary, err);
    if (comm) ravel_comm_free(comm);
    return status;
}

static void configure(train_config *c, const layout *l, const char *folder, int64_t steps) {
    static const char mock[] = "{\"mode\": \"distribution\", \"type\": \"uniform\", \"min_seq_len\": 64, "
                               "\"max_seq_len\": 64, \"count\": 256, \"seed\": 5, \"prompt_share\": 0}";
    train_config_default(c);
    c->run.run = folder;
    c->run.quiet = 1;
    c->run.sinks = "jsonl";
    c->run.steps = steps;
    c->run.checkpoint_every = "0";
    c->run.checkpoint_end = 0;
    c->model.kernels = "cpu";
    c->model.threads = 1;
    c->model.hidden = HIDDEN;
    c->model.layers = LAYERS;
    c->model.heads = HEADS;
    c->model.kv_heads = KV_HEADS;
    c->model.head_dim = HEAD_DIM;
    c->model.ffn = FFN;
    c->model.vocab = VOCAB;
    c->source.mock = mock;
    c->sft.task = NULL;
    c->sft.batch = (int64_t)l->micros * l->dp;
    c->plan.budget = LENGTH;
    c->plan.min_micro_steps = l->micros;
    c->learn.shard = l->shard;
    c->mesh.tp = l->tp, c->mesh.cp = l->cp, c->mesh.dp = l->dp, c->mesh.pp = l->pp;
}

/* Bytes of a run of this number of updates; -1 where it failed. */
static double bytes_of(const layout *l, int64_t steps) {
    char folder[] = "/tmp/ravel-bench-XXXXXX", command[64];
    job *j = calloc(1, sizeof *j);
    ravel_error err = RAVEL_ERROR_INIT;
    double bytes = -1;
    if (!j || !mkdtemp(folder)) return free(j), bytes;
    pthread_mutex_init(&j->post.lock, NULL);
    pthread_cond_init(&j->post.arrived, NULL);
    j->post.last = &j->post.first;
    configure(&j->config, l, folder, steps);
    if (ravel_threads_run(l->tp * l->cp * l->dp * l->pp, NULL, run_rank, j, &err))
        bench_note("%s failed: %s", l->name, err.message);
    else
        bytes = (double)j->post.bytes;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) bench_note("%s is left", folder);
    free(j);
    return bytes;
}

BENCH(parallel) {
    static const layout layouts[] = {
        {"dp 4", 1, 1, 4, 1, TRAIN_SHARD_NONE, 2},
        {"dp 4, states", 1, 1, 4, 1, TRAIN_SHARD_STATES, 2},
        {"dp 4, params", 1, 1, 4, 1, TRAIN_SHARD_PARAMS, 1},
        {"dp 4, params, 3 micro-batches", 1, 1, 4, 1, TRAIN_SHARD_PARAMS, 3},
        {"tp 2", 2, 1, 1, 1, TRAIN_SHARD_NONE, 2},
        {"cp 2", 1, 2, 1, 1, TRAIN_SHARD_NONE, 2},
        {"pp 2", 1, 1, 1, 2, TRAIN_SHARD_NONE, 4},
        {"tp 2 x cp 2 x dp 2, states", 2, 2, 2, 1, TRAIN_SHARD_STATES, 2},
        {"tp 2 x dp 2 x pp 2, params", 2, 1, 2, 2, TRAIN_SHARD_PARAMS, 4},
        {"cp 2 x dp 2 x pp 2, params", 1, 2, 2, 2, TRAIN_SHARD_PARAMS, 4},
    };
    double worst = 0;
    const char *where = "";
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        double one = bytes_of(l, 1), three = one < 0 ? -1 : bytes_of(l, 3);
        if (three < 0) return;
        double sent = (three - one) / 2, ratio = sent / textbook(l);
        bench_note("%s: %.2f MB per update, %.4f of the textbook's", l->name, sent / 1e6, ratio);
        if (ratio > worst) worst = ratio, where = l->name;
    }
    bench_report("parallel.bytes_ratio", worst, "ratio", LOWER,
                 "bytes sent per update / textbook count, the largest of %zu layouts: %s",
                 sizeof layouts / sizeof *layouts, where);
}
