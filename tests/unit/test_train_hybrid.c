/* Hybrid context parallelism end to end against Hugging Face's Qwen3: a pool of ranks (threads) is fed groups of widths 1, 2
 * and 4 in one update; each rank runs its zig-zag shards by ring attention within its group. Loss and every gradient tensor,
 * summed over the pool, against the golden vectors of unpacked samples, in all three aggregation modes. */
#include "tests/unit/check.h"

#include "train/model/hf/hf.h"
#include "train/model/model.h"

#include <ravel/comm.h>
#include <ravel/exchange.h>
#include <ravel/feed.h>
#include "base/json.h"
#include <ravel/safetensors.h>

#include <math.h>
#include <stdlib.h>

#define GOLDEN "tests/golden/qwen3-tiny"
enum { SAMPLES = 7, LONGEST = 256, MOST_TOKENS = 512, WIDTHS = 3 };

static const char *const modes[] = {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"};

/* One update of a pool, and what came of it: written by rank 0, but `seen` by all. */
typedef struct lesson {
    int32_t pool, mode;
    int64_t budget;
    int32_t empty, kind_of_owner;
    int64_t seen[WIDTHS]; /* shards that were run, by width */
    int64_t steps;
    double loss, worst;
    char where[128];
} lesson;

/* A rank's models: one for each width, since a model's ring is fixed. */
typedef struct seat {
    lesson *l;
    const train_kernels *k;
    train_device *device;
    ravel_comm *rings[WIDTHS];
    train_model *models[WIDTHS];
} seat;

/* ---- samples -------------------------------------------------------------------------------------------- */

static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    char name[32];
    const ravel_safetensor *ids, *mask;
    uint8_t bits[LONGEST];
    (void)snprintf(name, sizeof name, "ids/%lld", (long long)row);
    ravel_status status = ravel_safetensors_get(user, name, -1, NULL, &ids, err);
    (void)snprintf(name, sizeof name, "mask/%lld", (long long)row);
    if (!status) status = ravel_safetensors_get(user, name, -1, NULL, &mask, err);
    if (status) return status;
    for (int64_t i = 0; i < mask->count && i < LONGEST; i++) {
        double value = 0;
        (void)ravel_dtype_load(mask->dtype, (const char *)mask->data + i * ravel_dtype_bytes(mask->dtype), &value);
        bits[i] = value != 0;
    }
    const void *data[] = {ids->data, bits};
    return ravel_collector_add(collector, ids->count, data, err);
}

static ravel_status open_rows(ravel_safetensors *file, ravel_source **source, ravel_error *err) {
    static const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
                                         {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8}};
    const ravel_source_hooks hooks = {
        .size = sizeof hooks, .user = file, .count = SAMPLES, .fields = fields, .field_count = 2, .read = read_row};
    return ravel_source_callbacks(&hooks, source, err);
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

static ravel_status open_seat(seat *s, ravel_comm *comm, ravel_error *err) {
    ravel_shape shape;
    ravel_status status = train_config_read(GOLDEN, &shape, err);
    if (!status) status = train_kernels_find("ref", &s->k, err);
    if (!status) status = s->k->open(&(train_device_options){.threads = 1}, &s->device, err);
    for (int32_t w = 0; w < WIDTHS && !status; w++) {
        int32_t width = 1 << w;
        train_model_options o;
        if (width > s->l->pool) break;
        train_model_options_default(&o);
        o.budget = s->l->budget;
        o.longest = LONGEST;
        if (w) status = ravel_comm_split(comm, ravel_comm_rank(comm) / width, ravel_comm_rank(comm), &s->rings[w], err);
        o.cp = s->rings[w];
        if (!status) status = train_model_create(s->k, s->device, &shape, &o, &s->models[w], err);
        if (status) break;
        train_array to = train_model_array(s->models[w]);
        status = train_tensors_load(train_model_params(s->models[w]), &to, GOLDEN, err);
        train_model_clear_grads(s->models[w]);
    }
    return status;
}

static void close_seat(seat *s) {
    for (int32_t w = 0; w < WIDTHS; w++) {
        train_model_free(s->models[w]);
        ravel_comm_free(s->rings[w]);
    }
    if (s->device) s->k->close(s->device);
}

/* A shard is cu_seqlens_padded / width; labels and weights stand at the tokens that predict. */
static ravel_status run_micro(seat *s, const ravel_micro_batch *m, ravel_error *err) {
    int32_t cu[SAMPLES + 1], targets[MOST_TOKENS], w = 0;
    if (m->filler) return RAVEL_OK;
    while (1 << w < m->cp) w++;
    if (m->thd->local_tokens > MOST_TOKENS || !EXPECT(m->thd->local_tokens <= s->l->budget))
        return ravel_error_set(err, RAVEL_E_INTERNAL, "a shard of %lld tokens", (long long)m->thd->local_tokens);
    for (int64_t i = 0; i <= m->thd->samples_count; i++) cu[i] = m->thd->cu_seqlens_padded[i] / m->cp;
    for (int64_t t = 0; t < m->thd->local_tokens; t++) targets[t] = m->labels[t] < 0 ? 0 : m->labels[t];
    const train_batch b = {.samples = (int32_t)m->thd->samples_count,
                           .tokens = m->tokens,
                           .cu_seqlens = cu,
                           .positions = m->thd->positions,
                           .targets = targets,
                           .weights = m->weights};
    __atomic_fetch_add(&s->l->seen[w], 1, __ATOMIC_RELAXED);
    return train_model_learn(s->models[w], &b, NULL, NULL, err);
}

/* |difference| / |golden| of each tensor. */
static ravel_status compare(lesson *l, const train_params *params, const float *grads, ravel_error *err) {
    char path[128];
    ravel_safetensors *file = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "/grads-%s.safetensors", modes[l->mode]);
    ravel_status status = ravel_safetensors_open(path, NULL, &file, err);
    for (int64_t t = 0; t < params->count && !status; t++) {
        const train_tensor *p = &params->tensors[t];
        const ravel_safetensor *golden = NULL;
        char name[256];
        double off = 0, size = 1e-30;
        (void)snprintf(name, sizeof name, "%s/%s", modes[l->mode], p->name);
        status = ravel_safetensors_get(file, name, p->rank, p->dims, &golden, err);
        for (int64_t i = 0; !status && i < golden->count; i++) {
            float want;
            memcpy(&want, (const char *)golden->data + i * 4, sizeof want);
            double difference = (double)grads[p->offset + i] - (double)want;
            off += difference * difference;
            size += (double)want * (double)want;
        }
        if (status || sqrt(off / size) <= l->worst) continue;
        l->worst = sqrt(off / size);
        (void)snprintf(l->where, sizeof l->where, "%s", p->name);
    }
    ravel_safetensors_free(file);
    return status;
}

/* The models of all widths on all ranks have a part of the gradient each. */
static ravel_status add_up(const seat *s, ravel_comm *comm, ravel_error *err) {
    lesson *l = s->l;
    double loss = 0;
    int64_t n = train_model_params(s->models[0])->elements;
    float *sum = train_model_grads(s->models[0]);
    for (int32_t w = 0; w < WIDTHS && s->models[w]; w++) {
        const float *grads = train_model_grads(s->models[w]);
        train_update update;
        ravel_status status = train_model_read(s->models[w], &update, err);
        if (status) return status;
        loss += update.sums.loss;
        for (int64_t i = 0; w && i < n; i++) sum[i] += grads[i];
    }
    ravel_status status = ravel_comm_allreduce(comm, sum, sum, n, RAVEL_F32, RAVEL_SUM, err);
    if (!status) status = ravel_comm_allreduce(comm, &loss, &loss, 1, RAVEL_F64, RAVEL_SUM, err);
    if (status || ravel_comm_rank(comm) != 0) return status;
    l->loss = loss;
    return compare(l, train_model_params(s->models[0]), sum, err);
}

static ravel_status run_update(seat *s, ravel_feed *feed, const ravel_source *source, ravel_error *err) {
    const ravel_feed_update *u;
    ravel_micro_batch m;
    ravel_status status = ravel_feed_next(feed, &u, err);
    if (!status) status = ravel_feed_verify(feed, source, err);
    if (status) return status;
    __atomic_store_n(&s->l->steps, u->counts.micro_steps, __ATOMIC_RELAXED);
    for (ravel_feed_iter it = ravel_feed_iterate(feed, 0); !status && ravel_feed_iter_next(&it, &m);)
        status = run_micro(s, &m, err);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    lesson *l = user;
    seat s = {.l = l};
    ravel_safetensors *file = NULL;
    ravel_source *source = NULL;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_plan_options plan;
    ravel_weights_options weights;
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    ravel_plan_options_default(&plan);
    ravel_weights_options_default(&weights);
    mesh_options.cp = l->pool > 2 ? 2 : 1; /* the mesh's own cp makes no difference */
    plan.budget = l->budget;
    plan.cp_pool = l->pool;
    plan.cp_empty = l->empty;
    weights.mode = l->mode;
    options.plan = &plan;
    options.weights = &weights;
    options.owners = l->kind_of_owner;
    options.samples = SAMPLES;
    options.first_fields = options.last_fields = "*";
    ravel_status status = ravel_safetensors_open(GOLDEN "/batch.safetensors", NULL, &file, err);
    if (!status) status = open_rows(file, &source, err);
    if (!status) status = open_seat(&s, comm, err);
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, source, &options, &feed, err);
    if (!status) status = run_update(&s, feed, source, err);
    if (!status) status = add_up(&s, comm, err);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    ravel_source_free(source);
    ravel_safetensors_free(file);
    close_seat(&s);
    return status;
}

/* ---- the test ------------------------------------------------------------------------------------------- */

static double expected_loss(const char *mode) {
    char text[4096];
    FILE *f = fopen(GOLDEN "/expected.json", "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) (void)fclose(f);
    ravel__json *doc = NULL;
    double value = NAN;
    if (ravel__json_parse(text, n, NULL, &doc, NULL) == RAVEL_OK) {
        const ravel__json_node *root = ravel__json_root(doc), *losses = ravel__json_get(doc, root, "loss");
        if (!ravel__json_real(ravel__json_get(doc, losses ? losses : root, mode), &value)) value = NAN;
    }
    ravel__json_free(doc);
    return value;
}

TEST(train_hybrid_groups_have_the_loss_of_unpacked_samples) {
    int64_t seen[WIDTHS] = {0};
    for (int32_t mode = 0; mode < check_rounds(3, 3); mode++) { /* sanitizers: the first */
        double want = expected_loss(modes[mode]);
        CHECK(isfinite(want));
        for (int32_t i = 0; i < 6; i++) {
            static const int64_t budgets[] = {34, 48, 80};
            ravel_error err = RAVEL_ERROR_INIT;
            lesson l = {.pool = i < 3 ? 4 : 2, .mode = mode, .budget = budgets[i % 3] * (i < 3 ? 1 : 2)};
            l.empty = i == 1 ? RAVEL_CP_EMPTY_WIDEN : RAVEL_CP_EMPTY_FILLER;
            l.kind_of_owner = i % 3;
            CHECK_OK(ravel_threads_run(l.pool, NULL, work, &l, &err), &err);
            for (int w = 0; w < WIDTHS; w++) seen[w] += l.seen[w];
            if (!EXPECT(fabs(l.loss - want) < 1e-5 * want) || !EXPECT(l.worst > 0 && l.worst < 1e-4))
                printf("    %s, pool %d, budget %lld: loss %.9g (want %.9g), worst gradient %s %.3g\n", modes[mode],
                       l.pool, (long long)l.budget, l.loss, want, l.where, l.worst);
        }
    }
    CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0); /* every width was run */
}
