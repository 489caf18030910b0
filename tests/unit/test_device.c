/* The device floor: on the host, and on a stub whose streams are lazy and whose calls fail on demand. */
#include "check.h"

#include "device/shared.h"
#include "device_body.h"
#include "stub_driver.h"

#include "device/handle.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static ravel_device *open_stub(void) {
    ravel_device *device = NULL;
    stub_reset();
    return ravel__device_make(&stub_driver, 0, &device, NULL) == RAVEL_OK ? device : NULL;
}

TEST(device_host_moves) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    device_body_moves(device);
    device_body_cache(device);
    ravel_device_free(device);
}

TEST(device_stub_moves) {
    ravel_device *device = open_stub();
    CHECK(device);
    device_body_moves(device);
    device_body_cache(device);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

TEST(device_host_compares) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    device_body_compare(device, check_scale(20, 2000));
    ravel_device_free(device);
}

TEST(device_stub_compares) {
    ravel_device *device = open_stub();
    CHECK(device);
    device_body_compare(device, check_scale(10, 500));
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

TEST(device_host_share) {
    device_body_share("host");
}

TEST(device_names) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    const char *bad[] = {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "hostess", "cuda:99999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error_clear(&err);
        CHECK_EQ(ravel_device_open(bad[i], &device, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, "auto, host, cuda and cuda:N");
    }
    ravel_error_clear(&err);
    CHECK_EQ(ravel_device_open("host:1", &device, &err), RAVEL_E_UNSUPPORTED);
    CHECK_OK(ravel_device_open("auto", &device, NULL), &err);
    ravel_device_info info = {.size = 0};
    ravel_error_clear(&err);
    CHECK_EQ(ravel_device_get_info(device, &info, &err), RAVEL_E_ARGUMENT);
    info.size = sizeof info;
    ravel_error_clear(&err);
    CHECK_OK(ravel_device_get_info(device, &info, &err), &err);
    CHECK(info.total_bytes > 0 && info.processors > 0 && info.model[0]);
    ravel_device_free(device);
}

/* Without a GPU the module, or CUDA itself, says why; with one it opens. */
TEST(device_cuda_says_why) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_status status = ravel_device_open("cuda:0", &device, &err);
    if (status == RAVEL_OK) {
        ravel_device_free(device);
        return;
    }
    CHECK_EQ(status, RAVEL_E_UNSUPPORTED);
    CHECK(strstr(err.message, "libravel_cuda.so") || strstr(err.message, "cudaError"));
    CHECK(setenv("RAVEL_CUDA_MODULE", "/nonexistent/x.so", 1) == 0);
    ravel_error_clear(&err);
    CHECK_EQ(ravel_device_open("cuda", &device, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "there is no such file");
    CHECK(unsetenv("RAVEL_CUDA_MODULE") == 0);
}

/* ---- the cache ------------------------------------------------------------------------------------------ */

TEST(device_cache_orders_streams) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = open_stub();
    ravel_stream *one = NULL, *two = NULL;
    void *a = NULL, *b = NULL;
    CHECK_OK(ravel_stream_create(device, &one, &err), &err);
    CHECK_OK(ravel_stream_create(device, &two, &err), &err);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 5000, one, &a, &err), &err);
    ravel_device_release(device, a, one);
    /* the same stream takes it at once; another one is made to wait */
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 4900, one, &b, &err), &err);
    CHECK(a == b);
    CHECK_EQ(stub.calls[STUB_ORDER], 0);
    ravel_device_release(device, b, one);
    stub.stuck = 1; /* or its event would be found done */
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 5000, two, &b, &err), &err);
    stub.stuck = 0;
    CHECK(a == b);
    CHECK_EQ(stub.calls[STUB_ORDER], 1);
    ravel_device_release(device, b, two);
    /* other kinds and sizes are other blocks */
    CHECK_OK(ravel_device_alloc(device, RAVEL_PINNED, 5000, two, &b, &err), &err);
    CHECK(a != b);
    ravel_device_release(device, b, two);
    CHECK_EQ(stub.calls[STUB_ALLOC], 2);
    ravel_stream_free(one);
    ravel_stream_free(two);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

/* Without an event nothing says when the stream is done with the block: no other stream gets it. */
TEST(device_cache_keeps_a_block_without_an_event_for_its_stream) {
    static const stub_call calls[] = {STUB_EVENT, STUB_RECORD};
    for (int i = 0; i < 2; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_device *device = open_stub();
        ravel_stream *one = NULL, *two = NULL;
        void *a = NULL, *b = NULL, *c = NULL;
        CHECK_OK(ravel_stream_create(device, &one, &err), &err);
        CHECK_OK(ravel_stream_create(device, &two, &err), &err);
        CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 5000, one, &a, &err), &err);
        stub_fail(calls[i], 0, STUB_REFUSED);
        ravel_device_release(device, a, one);
        CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 5000, two, &b, &err), &err);
        CHECK(a != b);
        CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 5000, one, &c, &err), &err);
        CHECK(a == c);
        ravel_device_release(device, b, two);
        ravel_device_release(device, c, one);
        ravel_stream_free(one);
        ravel_stream_free(two);
        ravel_device_free(device);
        CHECK_EQ(stub.live, 0);
    }
}

TEST(device_cache_empties_when_full) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = open_stub();
    ravel_stream *stream = NULL;
    void *a = NULL, *b = NULL;
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 1 << 20, stream, &a, &err), &err);
    ravel_device_release(device, a, stream);
    CHECK_OK(ravel_stream_wait(stream, 1, &err), &err);
    stub_fail(STUB_ALLOC, 0, STUB_FULL);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 1 << 21, stream, &b, &err), &err);
    CHECK_EQ(stub.calls[STUB_RELEASE], 1);
    CHECK_EQ(stub.live, 1);
    ravel_device_release(device, b, stream);
    /* a refusal that is no lack of memory is not tried again */
    stub_fail(STUB_ALLOC, 0, STUB_REFUSED);
    CHECK_EQ(ravel_device_alloc(device, RAVEL_DEVICE, 1 << 22, stream, &b, &err), RAVEL_E_DEVICE);
    CHECK_HAS(err.message, "stub code 7");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_device_alloc(device, 3, 1, stream, &b, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    CHECK_EQ(ravel_device_alloc(device, RAVEL_DEVICE, SIZE_MAX / 2, stream, &b, &err), RAVEL_E_OVERFLOW);
    ravel_error_clear(&err);
    b = &err;
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, 0, stream, &b, &err), &err);
    CHECK(b == NULL);
    ravel_stream_free(stream);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

/* ---- failures ------------------------------------------------------------------------------------------- */

/* One of everything; the first failure ends it. */
static ravel_status use_all(ravel_device *device, ravel_error *err) {
    ravel_stream *stream = NULL, *other = NULL;
    ravel__shared *shared = NULL;
    void *a = NULL, *b = NULL;
    ravel_status status = ravel_stream_create(device, &stream, err);
    if (!status) status = ravel_stream_create(device, &other, err);
    if (!status) status = ravel_device_alloc(device, RAVEL_DEVICE, 1000, stream, &a, err);
    if (!status) status = ravel_device_alloc(device, RAVEL_PINNED, 1000, stream, &b, err);
    if (!status) status = ravel_device_fill(device, a, 1, 1000, stream, err);
    if (!status) status = ravel_device_copy(device, b, a, 1000, stream, err);
    if (!status) status = ravel_stream_follow(other, stream, err);
    if (!status) status = ravel__shared_create(device, 4096, &shared, err);
    if (!status) status = ravel_stream_wait(other, 1, err);
    ravel__shared_free(shared);
    ravel_device_release(device, a, stream);
    ravel_device_release(device, b, stream);
    ravel_stream_free(stream);
    ravel_stream_free(other);
    return status;
}

TEST(device_every_call_is_checked) {
    static const stub_call calls[] = {STUB_ALLOC, STUB_COPY,   STUB_FILL,  STUB_STREAM,
                                      STUB_EVENT, STUB_RECORD, STUB_ORDER, STUB_SHARE};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (int after = 0; after < 2; after++) {
            ravel_error err = RAVEL_ERROR_INIT;
            ravel_device *device = open_stub();
            stub_fail(calls[c], after, STUB_REFUSED);
            ravel_status status = use_all(device, &err);
            if (after == 0) CHECK_EQ(status, RAVEL_E_DEVICE);
            if (status) CHECK_HAS(err.message, "stub code 7");
            /* a refusal is this call's alone */
            ravel_error_clear(&err);
            stub.fail_after = -1;
            CHECK_OK(use_all(device, &err), &err);
            ravel_device_free(device);
            CHECK_EQ(stub.live, 0);
        }
    }
}

TEST(device_fatal_error_is_remembered) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = open_stub();
    stub_fail(STUB_COPY, 0, STUB_FATAL);
    CHECK_EQ(use_all(device, &err), RAVEL_E_DEVICE);
    CHECK_HAS(err.message, "copying: stub code 9");
    ravel_error_clear(&err);
    CHECK_EQ(use_all(device, &err), RAVEL_E_DEAD);
    CHECK_HAS(err.message, "copying: stub code 9");
    ravel_error_clear(&err);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
    /* a new handle begins anew */
    device = open_stub();
    ravel_error_clear(&err);
    CHECK_OK(use_all(device, &err), &err);
    ravel_device_free(device);
}

TEST(device_waits_have_deadlines) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = open_stub();
    ravel_stream *stream = NULL;
    ravel_event *event = NULL;
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    CHECK_OK(ravel_event_create(device, &event, &err), &err);
    CHECK_OK(ravel_event_record(event, stream, &err), &err);
    stub.stuck = 1;
    CHECK_EQ(ravel_stream_wait(stream, 0.01, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "0.01 s");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_event_wait(event, 0, &err), RAVEL_E_TIMEOUT);
    CHECK_EQ(ravel_event_wait(event, NAN, NULL), RAVEL_E_TIMEOUT);
    CHECK_EQ(ravel_event_wait(event, -1e300, NULL), RAVEL_E_TIMEOUT);
    stub.stuck = 0;
    ravel_error_clear(&err);
    CHECK_OK(ravel_event_wait(event, INFINITY, &err), &err);
    ravel_event_free(event);
    ravel_stream_free(stream);
    ravel_device_free(device);
}

/* ---- between processes ---------------------------------------------------------------------------------- */

static void *send_later(void *argument) {
    const int *ends = argument;
    struct timespec pause = {0, 30 * 1000 * 1000};
    (void)nanosleep(&pause, NULL);
    (void)ravel__fd_send(ends[0], ends[1], NULL, 0, INFINITY, NULL);
    return NULL;
}

TEST(device_descriptors_are_waited_for_without_a_limit) {
    ravel_error err = RAVEL_ERROR_INIT;
    int pair[2], got = -1;
    size_t bytes = 0;
    pthread_t thread;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int ends[2] = {pair[1], pair[0]};
    CHECK_EQ(pthread_create(&thread, NULL, send_later, ends), 0);
    ravel_status status = ravel__fd_recv(pair[0], &got, NULL, &bytes, INFINITY, &err);
    (void)pthread_join(thread, NULL);
    (void)close(pair[0]);
    (void)close(pair[1]);
    CHECK_OK(status, &err);
    CHECK(close(got) == 0);
}

TEST(device_descriptors_travel) {
    ravel_error err = RAVEL_ERROR_INIT;
    int pair[2], pipe_ends[2], got = -1;
    char note[300] = "", big[256] = "x";
    size_t bytes = sizeof note;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(pipe(pipe_ends) == 0);
    CHECK_EQ(ravel__fd_recv(pair[0], &got, note, &bytes, 0.01, &err), RAVEL_E_TIMEOUT);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__fd_send(pair[1], pipe_ends[1], big, sizeof big, 1, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    CHECK_OK(ravel__fd_send(pair[1], pipe_ends[1], "slab 3", 7, 1, &err), &err);
    CHECK_OK(ravel__fd_send(pair[1], pipe_ends[1], NULL, 0, 1, &err), &err);
    CHECK_OK(ravel__fd_recv(pair[0], &got, note, &bytes, 1, &err), &err);
    CHECK_EQ(bytes, 7);
    CHECK_STR(note, "slab 3");
    CHECK(write(got, "!", 1) == 1);
    char c = 0;
    CHECK(read(pipe_ends[0], &c, 1) == 1 && c == '!');
    CHECK(close(got) == 0);
    bytes = 0;
    CHECK_OK(ravel__fd_recv(pair[0], &got, NULL, &bytes, 1, &err), &err);
    CHECK(close(got) == 0);
    /* a byte without a descriptor, a note that is too long for the room, a peer that has gone */
    CHECK(write(pair[1], "", 1) == 1);
    CHECK_EQ(ravel__fd_recv(pair[0], &got, note, &bytes, 1, &err), RAVEL_E_DATA);
    ravel_error_clear(&err);
    CHECK_OK(ravel__fd_send(pair[1], pipe_ends[1], "12345", 5, 1, &err), &err);
    bytes = 4;
    CHECK_EQ(ravel__fd_recv(pair[0], &got, note, &bytes, 1, &err), RAVEL_E_DATA);
    CHECK(close(pair[1]) == 0);
    (void)read(pair[0], note, 5);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__fd_recv(pair[0], &got, note, &bytes, 1, &err), RAVEL_E_PEER_LOST);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__fd_send(pair[0], pipe_ends[1], NULL, 0, 1, &err), RAVEL_E_PEER_LOST);
    (void)close(pair[0]);
    (void)close(pipe_ends[0]);
    (void)close(pipe_ends[1]);
}

TEST(device_import_checks_the_size) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel__shared *shared = NULL, *view = NULL;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    CHECK_EQ(ravel__shared_create(device, 0, &shared, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    CHECK_OK(ravel__shared_create(device, 100, &shared, &err), &err);
    CHECK_EQ(ravel__shared_import(device, ravel__shared_fd(shared), 1 << 20, 0, &view, &err), RAVEL_E_DEVICE);
    ravel_error_clear(&err);
    CHECK_OK(ravel__shared_import(device, ravel__shared_fd(shared), 100, 1, &view, &err), &err);
    strcpy(ravel__shared_data(view), "through another mapping");
    CHECK_STR((char *)ravel__shared_data(shared), "through another mapping");
    CHECK_EQ(ravel__shared_fd(view), -1);
    ravel__shared_free(view);
    ravel__shared_free(shared);
    ravel_device_free(device);
}
