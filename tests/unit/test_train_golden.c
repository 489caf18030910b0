/* The whole path of an update against Hugging Face's Qwen3: samples through the feed (planned, exchanged, packed, weighted
 * on 1, 2 and 4 ranks), forward and backward, gradients summed over ranks; loss and every gradient tensor against the
 * golden vectors, in all three aggregation modes. */
#include "tests/unit/check.h"

#include "train/model/hf/hf.h"
#include "train/run/config/config.h"

#include "base/json.h"

#include <ravel/comm.h>
#include <ravel/exchange.h>
#include <ravel/safetensors.h>

#include <math.h>
#include <stdlib.h>

#define GOLDEN "tests/golden/qwen3-tiny/"
enum { SAMPLES = 7 };

typedef struct job {
    int64_t budget;
    int32_t mode, single, zero;
    const char *kernels;
    double loss;  /* out: summed over ranks */
    double worst; /* out: worst relative difference of a gradient tensor */
    char where[128];
} job;

typedef struct rows {
    const ravel_safetensors *file;
} rows;

static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    const rows *r = user;
    char ids_name[32], mask_name[32];
    const ravel_safetensor *ids, *mask;
    (void)snprintf(ids_name, sizeof ids_name, "ids/%lld", (long long)row);
    (void)snprintf(mask_name, sizeof mask_name, "mask/%lld", (long long)row);
    ravel_status status = ravel_safetensors_get(r->file, ids_name, -1, NULL, &ids, err);
    if (!status) status = ravel_safetensors_get(r->file, mask_name, -1, NULL, &mask, err);
    if (status) return status;
    uint8_t bits[256];
    for (int64_t i = 0; i < mask->count; i++) {
        double value = 0;
        ravel_dtype_load(mask->dtype, (const char *)mask->data + i * ravel_dtype_bytes(mask->dtype), &value);
        bits[i] = value != 0;
    }
    const void *data[] = {ids->data, bits};
    return ravel_collector_add(collector, ids->count, data, err);
}

static ravel_status open_rows(const ravel_safetensors *file, rows *r, ravel_source **source, ravel_error *err) {
    static const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
                                         {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8}};
    r->file = file;
    ravel_source_hooks hooks = {
        .size = sizeof hooks, .user = r, .count = SAMPLES, .fields = fields, .field_count = 2, .read = read_row};
    return ravel_source_callbacks(&hooks, source, err);
}

/* Every tensor: |difference| / |golden|, as vectors. */
static ravel_status compare(const job *j, train_model *model, double *worst, char *where, size_t room,
                            ravel_error *err) {
    static const char *const files[] = {GOLDEN "grads-token-mean.safetensors",
                                        GOLDEN "grads-seq-mean-token-mean.safetensors",
                                        GOLDEN "grads-seq-mean-token-sum.safetensors"};
    static const char *const modes[] = {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"};
    const train_params *params = train_model_params(model);
    ravel_safetensors *file = NULL;
    ravel_status status = ravel_safetensors_open(files[j->mode], NULL, &file, err);
    for (int64_t t = 0; t < params->count && !status; t++) {
        char name[256];
        const ravel_safetensor *golden = NULL;
        (void)snprintf(name, sizeof name, "%s/%s", modes[j->mode], params->tensors[t].name);
        status = ravel_safetensors_get(file, name, params->tensors[t].rank, params->tensors[t].dims, &golden, err);
        double off = 0, size = 0;
        const float *mine = (const float *)train_model_grads(model) + params->tensors[t].offset;
        for (int64_t i = 0; !status && i < golden->count; i++) {
            float want;
            memcpy(&want, (const char *)golden->data + i * 4, 4);
            off += ((double)mine[i] - (double)want) * ((double)mine[i] - (double)want);
            size += (double)want * (double)want;
        }
        double relative = sqrt(off / (size + 1e-30));
        if (!status && relative > *worst) {
            *worst = relative;
            (void)snprintf(where, room, "%s", params->tensors[t].name);
        }
    }
    ravel_safetensors_free(file);
    return status;
}

static ravel_status run_update(job *j, const train_config *c, ravel_comm *comm, ravel_feed *feed, train_learner *l,
                               ravel_error *err) {
    const ravel_feed_update *update;
    train_work work = {0};
    double loss = 0, norm;
    int32_t skipped;
    ravel_status status = ravel_feed_next(feed, &update, err);
    if (status) return status;
    train_learner_begin(l);
    status = train_parts_learn(train_learner_parts(l), feed, update->mine.micro_steps, &work, NULL, NULL, err);
    if (!status) status = train_learner_reduce(l, NULL, err);
    if (!status) status = train_learner_step(l, 0, NULL, &norm, &skipped, err);
    loss = train_learner_sums(l)->loss;
    if (!status) status = ravel_comm_allreduce(comm, &loss, &loss, 1, RAVEL_F64, RAVEL_SUM, err);
    if (status || ravel_comm_rank(comm) != 0) return status;
    j->loss = loss;
    (void)c;
    return j->zero
               ? RAVEL_OK
               : compare(j, train_parts_model(train_learner_parts(l), 0), &j->worst, j->where, sizeof j->where, err);
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    train_config c;
    train_config_default(&c);
    c.model.model = "tests/golden/qwen3-tiny";
    c.model.kernels = j->kernels;
    c.plan.budget = j->budget;
    c.learn.shard = j->zero;
    c.plan.method = j->single ? RAVEL_METHOD_AS_IS : RAVEL_METHOD_RAVEL;
    ravel_shape shape;
    ravel_safetensors *file = NULL;
    ravel_source *source = NULL;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    train_learner *learner = NULL;
    rows r;
    ravel_mesh_options mesh_options;
    ravel_feed_options options;
    ravel_weights_options weights;
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    ravel_weights_options_default(&weights);
    weights.mode = j->mode;
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.plan = &c.plan;
    options.weights = &weights;
    options.samples = SAMPLES;
    train_learner_options learn;
    ravel_status status = train_shape(&c.model, &shape, err);
    learn = train_config_learner(&c, TRAIN_SFT);
    if (!status) status = ravel_safetensors_open(GOLDEN "batch.safetensors", NULL, &file, err);
    if (!status) status = open_rows(file, &r, &source, err);
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, source, &options, &feed, err);
    if (!status) status = train_learner_create(&learn, &shape, mesh, &learner, err);
    if (!status) status = run_update(j, &c, comm, feed, learner, err);
    ravel_feed_free(feed);
    train_learner_free(learner);
    ravel_mesh_free(mesh);
    ravel_source_free(source);
    ravel_safetensors_free(file);
    return status;
}

static double expected_loss(const char *mode) {
    char text[4096];
    FILE *f = fopen(GOLDEN "expected.json", "r");
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

TEST(train_update_agrees_with_the_golden_vectors_on_any_ranks) {
    static const char *const modes[] = {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"};
    for (int32_t mode = 0; mode < 3; mode++) {
        double want = expected_loss(modes[mode]);
        CHECK(isfinite(want));
        for (int32_t ranks = 1; ranks <= 4; ranks *= 2)
            for (int32_t k = 0; k < check_rounds(3, 3); k++) { /* sanitizers: one cut each, another in turn */
                int32_t cut = (k + mode + ranks / 2) % 3;
                job j = {.budget = cut == 0   ? 512
                                   : cut == 1 ? 130
                                              : 128,
                         .mode = mode,
                         .single = cut == 2,
                         .kernels = cut == 1 ? "ref" : "cpu"};
                ravel_error err = RAVEL_ERROR_INIT;
                CHECK_OK(ravel_threads_run(ranks, NULL, work, &j, &err), &err);
                if (!EXPECT(fabs(j.loss - want) < 1e-5 * want) || !EXPECT(j.worst > 0 && j.worst < 1e-4))
                    printf("    %s, %d ranks, cut %d: loss %.9g (want %.9g), worst gradient %s %.3g\n", modes[mode],
                           ranks, cut, j.loss, want, j.where, j.worst);
            }
    }
}
