#include "train/run/metrics.h"

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

ravel_status train_metrics_create(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  ravel_comm *comm, int32_t world, int64_t steps, const ravel_logger *logger,
                                  ravel_metrics **metrics, ravel_error *err) {
    ravel_metrics_reducer reducer = {ravel_comm_rank(comm), ravel_comm_size(comm), reduce_over_comm, comm};
    ravel_metrics_options options;
    ravel_metrics_options_default(&options);
    options.world = world;
    options.updates = steps;
    options.gpu = config->run.gpu;
    options.rl = kind == TRAIN_GRPO;
    options.extra = extra_rows;
    options.extra_count = (int64_t)(sizeof extra_rows / sizeof *extra_rows);
    options.recompute = config->model.recompute == TRAIN_RECOMPUTE_FULL ? RAVEL_RECOMPUTE_FULL : RAVEL_RECOMPUTE_NONE;
    options.shape = shape;
    options.reducer = &reducer;
    options.logger = logger;
    return ravel_metrics_create(&options, metrics, err);
}

void train_metrics_add_update(ravel_metrics *metrics, const ravel_mesh *mesh, const ravel_feed_update *update) {
    ravel_lengths_sum sum;
    ravel_metrics_batch batch;
    ravel_mesh_coord at = ravel_mesh_coords(mesh);
    if (at.tp || at.cp || at.pp) return;
    ravel_feed_batch(&update->mine, &sum, &batch);
    batch.head = batch.loss > 0 ? batch.loss : -1; /* only tokens with a loss go through the head */
    ravel_metrics_add_batch(metrics, &batch);
    if (update->plan) {
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IDLE_SHARE, update->plan->idle_update, 1);
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IMBALANCE, update->plan->imbalance, 1);
    }
}

void train_metrics_add_time(ravel_metrics *metrics, const ravel_mesh *mesh, const train_parts_time *time) {
    if (train_layout_pp(ravel_mesh_get_layout(mesh)) == 1 || !(time->seconds > 0)) return;
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_BUBBLE, 1 - time->busy / time->seconds, time->seconds);
    (void)ravel_metrics_add(metrics, TRAIN_METRIC_BUBBLE_PREDICTED, time->predicted, time->seconds);
}
