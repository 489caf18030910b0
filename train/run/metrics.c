#include "train/run/metrics.h"

#include "base/assert.h"
#include "train/model/hf/lora.h"

#include <ravel/device.h>

#include <stdio.h>
#include <string.h>

static ravel_status reduce_over_comm(void *user, int64_t *values, int64_t count, ravel_metrics_op op,
                                     ravel_error *err) {
    return ravel_comm_allreduce(user, values, values, count, RAVEL_I64, op == RAVEL_METRICS_SUM ? RAVEL_SUM : RAVEL_MAX,
                                err);
}

static const ravel_metric extra_rows[] = {
#define X(ID, metric, units, sentence) \
    {.name = metric,                   \
     .doc = sentence,                  \
     .unit = units,                    \
     .kind = RAVEL_KIND_GAUGE,         \
     .rule = RAVEL_RULE_MEAN,          \
     .show = RAVEL_SHOW_ALL},
    TRAIN_METRIC_LIST(X)
#undef X
};

enum { ROWS = sizeof extra_rows / sizeof *extra_rows };
_Static_assert(TRAIN_METRIC_REWARD_PARTS == RAVEL_METRICS + ROWS, "rows of parts come last");

/* The rows of a run, with one for each part of the reward. */
typedef struct row_set {
    ravel_metric rows[ROWS + TRAIN_MIX_PARTS];
    char names[TRAIN_MIX_PARTS][TRAIN_MIX_NAME + 8];
    int64_t count;
} row_set;

static ravel_status list_rows(const train_config *config, train_kind kind, row_set *set, ravel_error *err) {
    train_mix mix = {.count = 0};
    ravel_status status = RAVEL_OK;
    memcpy(set->rows, extra_rows, sizeof extra_rows);
    set->rows[TRAIN_METRIC_TOKEN_STALENESS_MAX - RAVEL_METRICS].rule = RAVEL_RULE_MAX;
    set->count = ROWS;
    if (kind == TRAIN_GRPO && config->grpo.reward)
        status = train_mix_parse(config->grpo.reward, config->grpo.reward_command != NULL, &mix, err);
    for (int32_t i = 0; i < mix.count; i++) {
        ravel_metric *row = &set->rows[set->count++];
        *row = extra_rows[0];
        (void)snprintf(set->names[i], sizeof set->names[i], "reward/%s", mix.parts[i].name);
        row->name = set->names[i];
        row->doc = "mean of this part of --reward over scored answers, before its weight";
        row->unit = "";
    }
    return status;
}

/* The model of the GPU that a run is on, for MFU; "": none, or it cannot be queried, which the kernel set will report.
 * */
static void find_gpu(const train_config *config, char *model, size_t bytes) {
    ravel_device_info info = {.size = sizeof info};
    ravel_device *device = NULL;
    char name[32];
    model[0] = 0;
    if (strcmp(config->model.kernels, "cuda") != 0) return;
    (void)snprintf(name, sizeof name, "cuda:%d", config->model.gpu);
    if (ravel_device_open(name, &device, NULL)) return;
    if (!ravel_device_get_info(device, &info, NULL)) (void)snprintf(model, bytes, "%s", info.model);
    ravel_device_free(device);
}

ravel_status train_metrics_create(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  ravel_comm *comm, int32_t world, int64_t steps, const ravel_logger *logger,
                                  ravel_metrics **metrics, ravel_error *err) {
    ravel_metrics_reducer reducer = {ravel_comm_rank(comm), ravel_comm_size(comm), reduce_over_comm, comm};
    RAVEL_ASSERT(world >= ravel_comm_size(comm) && steps >= 0);
    ravel_metrics_options options;
    row_set set;
    char model[96];
    ravel_status status = list_rows(config, kind, &set, err);
    if (status) return status;
    ravel_metrics_options_default(&options);
    find_gpu(config, model, sizeof model);
    options.world = world;
    options.updates = steps;
    options.gpu = config->run.gpu ? config->run.gpu : model[0] ? model : NULL;
    options.rl = kind == TRAIN_GRPO;
    options.extra = set.rows;
    options.extra_count = set.count;
    options.recompute = config->model.recompute == TRAIN_RECOMPUTE_FULL ? RAVEL_RECOMPUTE_FULL : RAVEL_RECOMPUTE_NONE;
    options.shape = shape;
    if (config->model.lora.rank) options.adapter = train_trained_parameters(shape, &config->model.lora, 1);
    options.reducer = &reducer;
    options.logger = logger;
    options.update_peaks = 1;
    return ravel_metrics_create(&options, metrics, err);
}

void train_metrics_add_update(ravel_metrics *metrics, const ravel_mesh *mesh, const ravel_feed_update *update,
                              ravel_sync sync) {
    ravel_lengths_sum sum;
    ravel_metrics_batch batch;
    ravel_mesh_coord at = ravel_mesh_coords(mesh);
    if (at.tp || at.cp || at.pp) return;
    ravel_feed_batch(&update->mine, &sum, &batch);
    batch.head = batch.loss > 0 ? batch.loss : -1; /* only tokens with a loss go through the head */
    ravel_metrics_add_batch(metrics, &batch);
    if (update->plan) {
        double idle = sync == RAVEL_SYNC_MICRO_STEP ? update->plan->idle_micro_step : update->plan->idle_update;
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IDLE_SHARE, idle, 1);
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IMBALANCE, update->plan->imbalance, 1);
    }
}

double train_metrics_add_gpu(ravel_metrics *metrics, const train_kernels *kernels, train_device *device) {
    static const int32_t rows[] = {[TRAIN_PHASE_OTHER] = TRAIN_METRIC_GPU_OTHER,
                                   [TRAIN_PHASE_FORWARD] = TRAIN_METRIC_GPU_FORWARD,
                                   [TRAIN_PHASE_HEAD] = TRAIN_METRIC_GPU_HEAD,
                                   [TRAIN_PHASE_BACKWARD] = TRAIN_METRIC_GPU_BACKWARD,
                                   [TRAIN_PHASE_OPTIMIZER] = TRAIN_METRIC_GPU_OPTIMIZER};
    _Static_assert(sizeof rows / sizeof *rows == TRAIN_PHASES, "a row for each phase");
    double seconds[TRAIN_PHASES];
    train_gpu_state state;
    if (!kernels->gpu_state) return 0;
    RAVEL_ASSERT(kernels->phase_seconds);
    kernels->phase_seconds(device, seconds);
    for (int32_t i = 0; i < TRAIN_PHASES; i++) (void)ravel_metrics_add(metrics, rows[i], seconds[i], 1);
    kernels->gpu_state(device, &state);
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_MEMORY_DEVICE, state.block_bytes);
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_MEMORY_DEVICE_PEAK, state.peak_bytes);
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_MEMORY_DEVICE_UPDATE_PEAK, state.recent_bytes);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_GPU_USED, (double)state.used_bytes, 1);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_GPU_SCRATCH, (double)state.scratch_bytes, 1);
    return seconds[TRAIN_PHASE_FORWARD] + seconds[TRAIN_PHASE_HEAD] + seconds[TRAIN_PHASE_BACKWARD];
}

void train_metrics_add_time(ravel_metrics *metrics, const ravel_mesh *mesh, const train_parts_time *time) {
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(mesh);
    double all = time->seconds;
    RAVEL_ASSERT(!(time->busy < 0) && !(time->exposed < 0));
    if (!(all > 0)) return;
    if (time->exposed > 0) (void)ravel_metrics_add(metrics, TRAIN_METRIC_SHARD_EXPOSED, time->exposed / all, all);
    if (train_layout_tp(layout) > 1) (void)ravel_metrics_add(metrics, TRAIN_METRIC_TP_EXPOSED, time->tp / all, all);
    if (time->ep > 0) (void)ravel_metrics_add(metrics, TRAIN_METRIC_EP_EXPOSED, time->ep / all, all);
    if (time->cp > 0) (void)ravel_metrics_add(metrics, TRAIN_METRIC_CP_EXPOSED, time->cp / all, all);
    if (train_layout_pp(layout) == 1) return;
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_BUBBLE, 1 - time->busy / all, all);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_BUBBLE_PREDICTED, time->predicted, all);
}

void train_metrics_add_router(ravel_metrics *metrics, const train_parts *parts) {
    const train_router_figures *f = train_parts_router(parts);
    if (f->layers == 0) return;
    RAVEL_ASSERT(f->load_mean <= f->load_worst * (1 + 1e-9) && f->unused <= 1);
    if (f->loss > 0) (void)ravel_metrics_add(metrics, TRAIN_METRIC_ROUTER_LOSS, f->loss, 1);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_ROUTER_MEAN, f->load_mean, 1);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_ROUTER_WORST, f->load_worst, 1);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_ROUTER_UNUSED, f->unused, 1);
}
