/* Rows of a run on a GPU, from a kernel set that only tells figures; and none of them on a CPU. */
#include "tests/unit/check.h"

#include "train/run/metrics.h"

static void tell_seconds(train_device *device, double *seconds) {
    (void)device;
    for (int32_t i = 0; i < TRAIN_PHASES; i++) seconds[i] = 0.25 * (i + 1);
}

static void tell_state(train_device *device, train_gpu_state *state) {
    (void)device;
    *state = (train_gpu_state){"NVIDIA H200", 1 << 30, 700, 500, 600, 50, 0, 550};
}

static ravel_metrics *make_metrics(ravel_comm *self) {
    ravel_shape shape;
    ravel_metrics *metrics = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config config;
    train_config_default(&config);
    if (ravel_shape_named("qwen3-0.6b", &shape, &err) ||
        train_metrics_create(&config, TRAIN_SFT, &shape, self, 1, 1, NULL, &metrics, &err))
        check_fail(__FILE__, __LINE__, "%s", err.message);
    return metrics;
}

static double value_of(ravel_metrics *metrics, const char *name) {
    double value = -1;
    return ravel_metrics_get(metrics, name, &value) ? value : -1;
}

static void run_update(ravel_metrics *metrics, const train_kernels *kernels) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_begin(metrics);
    train_metrics_add_gpu(metrics, kernels, NULL);
    CHECK_OK(ravel_metrics_update(metrics, 1, &err), &err);
}

TEST(train_gpu_metrics) {
    static const struct row {
        const char *name;
        double value;
    } rows[] = {{"gpu/other_sec", 0.25},
                {"gpu/forward_sec", 0.5},
                {"gpu/head_sec", 0.75},
                {"gpu/backward_sec", 1},
                {"gpu/optimizer_sec", 1.25},
                {"gpu/used_bytes", 700},
                {"gpu/scratch_bytes", 50},
                {"memory/device_bytes", 500},
                {"memory/device_peak_bytes", 600},
                {"memory/device_update_peak_bytes", 550}};
    const train_kernels gpu = {.phase_seconds = tell_seconds, .gpu_state = tell_state};
    const train_kernels cpu = {.phase_seconds = tell_seconds};
    ravel_comm *self = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_comm_self(NULL, &self, &err), &err);
    ravel_metrics *metrics = make_metrics(self);
    CHECK(metrics);
    run_update(metrics, &cpu);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK(value_of(metrics, rows[i].name) < 0);
    run_update(metrics, &gpu);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value_of(metrics, rows[i].name) != rows[i].value)
            check_fail(__FILE__, __LINE__, "%s is %g, not %g", rows[i].name, value_of(metrics, rows[i].name),
                       rows[i].value);
    ravel_metrics_free(metrics);
    ravel_comm_free(self);
}
