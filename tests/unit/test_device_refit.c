/* Refit of device memory, and a feed that uploads, on the host's device and on the stub, whose streams do nothing before
 * somebody looks. */
#include "comm/nccl_comm.h"
#include "device/handle.h"
#include "tests/unit/check.h"
#include "tests/unit/mock_nccl.h"
#include "tests/unit/refit_case.h"
#include "tests/unit/refit_device_body.h"
#include "tests/unit/stub_driver.h"

#include <ravel/publish.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

TEST(device_refit_on_the_host) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    refit_device_body_pull(device, check_scale(12, 200));
    refit_device_body_collective(device, check_scale(12, 200));
    refit_device_body_restart(device, 1);
    refit_device_body_refusals(device);
    ravel_device_free(device);
}

TEST(device_refit_on_the_stub) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    refit_device_body_pull(device, check_scale(9, 100));
    refit_device_body_collective(device, check_scale(9, 100));
    refit_device_body_restart(device, 1);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

static int refuse_compare(void *inside, const ravel__compare_job *job, void *stream) {
    (void)inside, (void)job, (void)stream;
    return STUB_REFUSED;
}

/* Bytes that were copied from and to a stub while versions changed. */
static int64_t copied_for_changes(int (*compare)(void *, const ravel__compare_job *, void *)) {
    ravel_device *device = NULL;
    ravel__driver driver = stub_driver;
    driver.compare = compare;
    stub_reset();
    if (!EXPECT(ravel__device_make(&driver, 0, &device, NULL) == RAVEL_OK)) return 0;
    refit_device_body_changes(device, check_scale(2, 50));
    ravel_device_free(device);
    EXPECT(stub.live == 0);
    return stub.copied;
}

/* The device finds what changed, and less is copied than where it cannot: then versions are compared on the host. */
TEST(device_refit_finds_changes_where_they_are) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    refit_device_body_changes(device, check_scale(3, 100));
    ravel_device_free(device);
    int64_t there = copied_for_changes(stub_driver.compare);
    CHECK(stub.calls[STUB_COMPARE] > 0);
    CHECK(there < copied_for_changes(NULL));
    CHECK(there < copied_for_changes(refuse_compare));
}

static int refuse_import(void *inside, int fd, size_t *bytes, int32_t writable, void **array, void **handle) {
    (void)inside, (void)fd, (void)bytes, (void)writable, (void)array, (void)handle;
    return STUB_REFUSED;
}

/* The same device of the same machine, but the trainer's memory is not to be had: another user's, another container's. */
TEST(device_refit_pulls_over_the_link_what_it_cannot_map) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__driver driver = stub_driver;
    stub_reset();
    driver.import = refuse_import;
    CHECK_OK(ravel__device_make(&driver, 0, &device, &err), &err);
    refit_device_body_restart(device, 0);
    refit_device_body_changes(device, check_scale(5, 60)); /* in both kinds of stage */
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

/* ---- a device that fails while a version is served ------------------------------------------------------- */

enum { SERVED_TENSORS = 48, SERVED_ELEMENTS = 15000 /* each travels in frames, all need three of them */ };

static _Atomic int32_t events_left; /* events that come to pass before one fails; below 0: none fails */

static int failing_event_test(void *inside, void *event) {
    int code = stub_driver.event_test(inside, event);
    return code == 0 && atomic_load(&events_left) >= 0 && atomic_fetch_sub(&events_left, 1) == 0 ? STUB_REFUSED : code;
}

/* Two frames are on their way when the third cannot be had: they arrive, and then the trainer's sentence does. */
TEST(device_fails_while_frames_are_sent) {
    static char names[SERVED_TENSORS][8];
    ravel__driver driver = stub_driver;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_comm *self = NULL;
    ravel_publisher *publisher = NULL;
    ravel_puller *puller = NULL;
    ravel_refit_tensor from[SERVED_TENSORS], to[SERVED_TENSORS];
    ravel_error err = RAVEL_ERROR_INIT;
    char address[64];
    float *host = calloc(SERVED_TENSORS * SERVED_ELEMENTS, sizeof *host);
    void *there = NULL;
    stub_reset();
    atomic_store(&events_left, -1);
    driver.event_test = failing_event_test;
    CHECK_OK(ravel__device_make(&driver, 0, &device, &err), &err);
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    size_t bytes = SERVED_TENSORS * SERVED_ELEMENTS * sizeof *host;
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, bytes, stream, &there, &err), &err);
    CHECK_OK(ravel_device_copy(device, there, host, bytes, stream, &err), &err);
    for (int32_t i = 0; i < SERVED_TENSORS; i++) {
        (void)snprintf(names[i], sizeof names[i], "w%d", i);
        from[i] = float_tensor(names[i], (float *)there + (size_t)i * SERVED_ELEMENTS, SERVED_ELEMENTS);
        from[i].place = (ravel_place){.kind = RAVEL_DEVICE, .stream = stream};
        to[i] = float_tensor(names[i], host + (size_t)i * SERVED_ELEMENTS, SERVED_ELEMENTS);
    }
    (void)snprintf(address, sizeof address, "unix:@ravel-served-%d", (int)getpid());
    ravel_refit_source source = {.size = sizeof source, .tensors = from, .count = SERVED_TENSORS};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to, .count = SERVED_TENSORS};
    ravel_pull_options options;
    ravel_pull_options_default(&options);
    options.threads = 1;
    options.timeout = 60;
    CHECK_OK(ravel_comm_self(NULL, &self, &err), &err);
    CHECK_OK(ravel_publisher_create(self, address, &source, NULL, &publisher, &err), &err);
    CHECK_OK(ravel_publisher_publish(publisher, 1, &err), &err);
    CHECK_OK(ravel_puller_create(self, address, &sink, &options, &puller, &err), &err);
    atomic_store(&events_left, 2);
    CHECK_EQ(ravel_puller_wait(puller, 60, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "waiting for an event");
    CHECK_OK(ravel_puller_wait(puller, 60, &err), &err); /* the device is well again */
    CHECK_OK(ravel_puller_commit(puller, NULL, &err), &err);
    ravel_puller_free(puller);
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
    ravel_device_release(device, there, stream);
    ravel_stream_free(stream);
    ravel_device_free(device);
    free(host);
    CHECK_EQ(stub.live, 0);
}

static ravel_status make_mock(ravel_comm *host, ravel_stream *stream, const ravel_comm_options *options,
                              ravel_comm **comm, ravel_error *err) {
    return ravel__comm_nccl_with(&mock_nccl_table, host, stream, options, comm, err);
}

TEST(device_refit_over_nccl) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    mock_nccl_reset();
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    refit_device_body_nccl(device, make_mock, 9, check_scale(20, 400));
    ravel_device_free(device);
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    refit_device_body_nccl(device, make_mock, 9, check_scale(12, 200));
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
    CHECK_EQ(mock_nccl.violations, 0);
    CHECK_EQ(mock_nccl.live, 0);
    CHECK(mock_nccl.messages > 100);
}

/* What cannot travel that way is refused on all ranks. */
typedef struct refusal {
    int32_t kind; /* 0: host memory, 1: delta, 2: a cast, 3: undo, at the second version */
    float data[64];
    double wide[64];
} refusal;

static ravel_status be_refused(ravel_comm *host, void *user, ravel_error *err) {
    static const char *const words[] = {"cannot travel over nccl", "delta", "no kernel casts between f64 and f32",
                                        "spare or copy"};
    refusal r = *(const refusal *)user;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_comm *comm = NULL;
    ravel_refit *refit = NULL;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_refit_options options;
    ravel_refit_options_default(&options);
    options.delta = r.kind == 1;
    options.cast = RAVEL_REFIT_NARROW;
    options.stage = r.kind == 3 ? RAVEL_REFIT_UNDO : RAVEL_REFIT_SPARE;
    ravel_status status = ravel_device_open("host", &device, err);
    if (!status) status = ravel_stream_create(device, &stream, err);
    if (!status) status = make_mock(host, stream, NULL, &comm, err);
    ravel_refit_tensor t = float_tensor("w", r.data, 64);
    if (r.kind != 0) t.place = (ravel_place){.kind = RAVEL_DEVICE, .stream = stream};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    int sends = ravel_comm_rank(host) == 0;
    if (sends && r.kind == 2) t.dtype = RAVEL_F64, t.data = r.wide;
    if (!status) {
        ravel_status seen =
            ravel_refit_create(comm, sends ? &source : NULL, sends ? NULL : &sink, &options, &refit, &why);
        if (!seen) seen = ravel_refit_update(refit, 1, NULL, &why);
        if (!seen) seen = ravel_refit_update(refit, 2, NULL, &why);
        if (seen != RAVEL_E_UNSUPPORTED || !strstr(why.message, words[r.kind]))
            status = ravel_error_set(err, RAVEL_E_INTERNAL, "refusal %d: %s: %s", r.kind, ravel_status_name(seen),
                                     why.message);
    }
    ravel_refit_free(refit);
    ravel_comm_free(comm);
    ravel_stream_free(stream);
    ravel_device_free(device);
    return status;
}

TEST(device_refit_over_nccl_refuses) {
    for (int32_t kind = 0; kind < 4; kind++) {
        ravel_error err = RAVEL_ERROR_INIT;
        refusal r = {.kind = kind};
        mock_nccl_reset();
        CHECK_OK(ravel_threads_run(2, NULL, be_refused, &r, &err), &err);
        CHECK_EQ(mock_nccl.live, 0);
    }
}

/* The ratio is of the GPU's memory (the stub has 1 MiB) where the buffers are on it. */
static ravel_status measure_buffers(ravel_comm *host, void *user, ravel_error *err) {
    ravel_device *device = user;
    ravel_stream *stream = NULL;
    ravel_comm *comm = NULL;
    ravel_refit *refit = NULL;
    void *data = NULL;
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit_options options;
    int sends = ravel_comm_rank(host) == 0;
    ravel_refit_options_default(&options);
    options.memory_ratio = 0.25;
    ravel_status status = ravel_stream_create(device, &stream, err);
    if (!status) status = make_mock(host, stream, NULL, &comm, err);
    if (!status) status = ravel_device_alloc(device, RAVEL_DEVICE, 256, stream, &data, err);
    ravel_refit_tensor t = float_tensor("w", data, 64);
    t.place = (ravel_place){.kind = RAVEL_DEVICE, .stream = stream};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    if (!status) status = ravel_refit_create(comm, sends ? &source : NULL, sends ? NULL : &sink, &options, &refit, err);
    if (!status) status = ravel_refit_update(refit, 1, &report, err);
    if (!status) EXPECT(report.num_buffers == 2 && report.buffer_bytes == (1 << 20) / 4 / 2);
    ravel_refit_free(refit);
    ravel_device_release(device, data, stream);
    ravel_comm_free(comm);
    ravel_stream_free(stream);
    return status;
}

TEST(device_refit_buffers_take_a_share_of_the_device) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    mock_nccl_reset();
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    CHECK_OK(ravel_threads_run(2, NULL, measure_buffers, device, &err), &err);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
    CHECK_EQ(mock_nccl.live, 0);
}
