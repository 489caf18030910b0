/* Streams and events. Waiting is polling: a device that hangs must not hang the caller past the deadline. */
#include "device/handle.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/memory.h"

#include <sched.h>
#include <time.h>

/* ---- waiting -------------------------------------------------------------------------------------------- */

typedef int test_fn(void *inside, void *object);

/* Spins for the first 50 us, since kernels are short; then sleeps for growing times. */
static void pause_after(int64_t waited_ns) {
    RAVEL_ASSERT(waited_ns >= 0);
    if (waited_ns < 50 * 1000) return;
    if (waited_ns < 500 * 1000) {
        (void)sched_yield();
        return;
    }
    struct timespec pause = {0, waited_ns < 20 * 1000 * 1000 ? 20 * 1000 : 200 * 1000};
    (void)nanosleep(&pause, NULL);
}

static ravel_status poll_until(ravel_device *d, test_fn *test, void *object, double seconds, const char *what,
                               ravel_error *err) {
    RAVEL_ASSERT(d && test);
    ravel_status status = ravel__device_usable(d, err);
    int64_t start = ravel__clock_ns(), most = ravel__wait_ns(seconds);
    while (!status) {
        int code = test(d->inside, object);
        if (code != RAVEL__DRIVER_PENDING) return ravel__device_check(d, code, what, err);
        int64_t waited = ravel__clock_ns() - start;
        RAVEL_ASSERT(waited >= 0 && code == RAVEL__DRIVER_PENDING);
        if (waited >= most)
            return ravel_error_set(err, RAVEL_E_TIMEOUT, "%s: %s took longer than %g s", d->info.name, what, seconds);
        pause_after(waited);
    }
    return status;
}

/* ---- streams -------------------------------------------------------------------------------------------- */

static ravel_status make_stream(ravel_device *device, void *native, int owned, ravel_stream **stream,
                                ravel_error *err) {
    RAVEL_ASSERT(device && (owned == 0 || owned == 1));
    ravel_stream *s = ravel__calloc(NULL, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "a stream");
    *s = (ravel_stream){device, native, owned};
    *stream = s;
    return RAVEL_OK;
}

ravel_status ravel_stream_create(ravel_device *device, ravel_stream **stream, ravel_error *err) {
    void *native = NULL;
    ravel_status status = ravel__device_usable(device, err);
    if (!status)
        status = ravel__device_check(device, device->driver->stream_create(device->inside, &native),
                                     "creating a stream", err);
    if (status) return status;
    status = make_stream(device, native, 1, stream, err);
    if (status) device->driver->stream_free(device->inside, native);
    return status;
}

ravel_status ravel_stream_adopt(ravel_device *device, void *native, ravel_stream **stream, ravel_error *err) {
    return make_stream(device, native, 0, stream, err);
}

void ravel_stream_free(ravel_stream *stream) {
    if (!stream) return;
    RAVEL_ASSERT(stream->device);
    if (stream->owned) stream->device->driver->stream_free(stream->device->inside, stream->native);
    ravel__release(NULL, stream, sizeof *stream);
}

ravel_device *ravel_stream_device(const ravel_stream *stream) {
    return stream->device;
}

ravel_status ravel_stream_wait(ravel_stream *stream, double seconds, ravel_error *err) {
    return poll_until(stream->device, stream->device->driver->stream_test, stream->native, seconds,
                      "waiting for a stream", err);
}

ravel_status ravel_stream_follow(ravel_stream *stream, ravel_stream *other, ravel_error *err) {
    ravel_event *event = NULL;
    ravel_status status = ravel_event_create(other->device, &event, err);
    if (!status) status = ravel_event_record(event, other, err);
    if (!status) status = ravel_event_order(event, stream, err);
    ravel_event_free(event); /* the driver keeps what a stream still waits for */
    return status;
}

/* ---- events --------------------------------------------------------------------------------------------- */

ravel_status ravel_event_create(ravel_device *device, ravel_event **event, ravel_error *err) {
    ravel_status status = ravel__device_usable(device, err);
    ravel_event *e = status ? NULL : ravel__calloc(NULL, 1, sizeof *e);
    if (status) return status;
    if (!e) return ravel__no_memory(err, sizeof *e, "an event");
    e->device = device;
    status =
        ravel__device_check(device, device->driver->event_create(device->inside, &e->native), "creating an event", err);
    RAVEL_ASSERT(status || e->native);
    if (status)
        ravel__release(NULL, e, sizeof *e);
    else
        *event = e;
    return status;
}

void ravel_event_free(ravel_event *event) {
    if (!event) return;
    RAVEL_ASSERT(event->device && event->native);
    event->device->driver->event_free(event->device->inside, event->native);
    ravel__release(NULL, event, sizeof *event);
}

ravel_status ravel_event_record(ravel_event *event, ravel_stream *stream, ravel_error *err) {
    RAVEL_ASSERT(event->native);
    ravel_device *d = event->device;
    ravel_status status = ravel__device_usable(d, err);
    if (status) return status;
    return ravel__device_check(d, d->driver->event_record(d->inside, event->native, ravel__native(stream)),
                               "recording an event", err);
}

ravel_status ravel_event_order(ravel_event *event, ravel_stream *stream, ravel_error *err) {
    RAVEL_ASSERT(event->native);
    ravel_device *d = event->device;
    ravel_status status = ravel__device_usable(d, err);
    if (status) return status;
    return ravel__device_check(d, d->driver->event_order(d->inside, event->native, ravel__native(stream)),
                               "ordering a stream after an event", err);
}

ravel_status ravel_event_test(ravel_event *event, int32_t *done, ravel_error *err) {
    ravel_device *d = event->device;
    ravel_status status = ravel__device_usable(d, err);
    if (status) return status;
    int code = d->driver->event_test(d->inside, event->native);
    status = code == RAVEL__DRIVER_PENDING ? RAVEL_OK : ravel__device_check(d, code, "an event", err);
    if (!status) *done = code == 0;
    return status;
}

ravel_status ravel_event_wait(ravel_event *event, double seconds, ravel_error *err) {
    RAVEL_ASSERT(event->native);
    return poll_until(event->device, event->device->driver->event_test, event->native, seconds, "waiting for an event",
                      err);
}

ravel_status ravel_event_elapsed(ravel_event *from, ravel_event *to, double *seconds, ravel_error *err) {
    ravel_device *d = from->device;
    double value = 0;
    ravel_status status = ravel__device_usable(d, err);
    if (!status)
        status = ravel__device_check(d, d->driver->event_elapsed(d->inside, from->native, to->native, &value),
                                     "timing two events", err);
    if (!status) *seconds = value;
    return status;
}
