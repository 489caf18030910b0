/* Memory between processes: descriptors over a Unix socket. */
#include "device/handle.h"

#include "base/assert.h"
#include "device/shared.h"
#include "base/system/clock.h"
#include "base/memory.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ravel__shared {
    ravel_device *device;
    void *data;
    size_t bytes;
    void *handle; /* the driver's */
    int fd;
};

/* ---- memory --------------------------------------------------------------------------------------------- */

static ravel_status begin(ravel_device *device, size_t bytes, ravel__shared **shared, ravel_error *err) {
    ravel_status status = ravel__device_usable(device, err);
    if (status) return status;
    if (bytes == 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "shared memory of 0 bytes");
    ravel__shared *s = ravel__calloc(NULL, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "shared memory");
    *s = (ravel__shared){.device = device, .bytes = bytes, .fd = -1};
    *shared = s;
    return RAVEL_OK;
}

static ravel_status end(ravel__shared *s, int code, const char *what, ravel__shared **shared, ravel_error *err) {
    ravel_status status = ravel__device_check(s->device, code, what, err);
    RAVEL_ASSERT(status || (s->data && s->bytes > 0));
    RAVEL_ASSERT(s->device && (status || s->fd >= -1));
    if (status)
        ravel__release(NULL, s, sizeof *s);
    else
        *shared = s;
    return status;
}

ravel_status ravel__shared_create(ravel_device *device, size_t bytes, ravel__shared **shared, ravel_error *err) {
    ravel__shared *s = NULL;
    ravel_status status = begin(device, bytes, &s, err);
    if (status) return status;
    RAVEL_ASSERT(s);
    int code = device->driver->share(device->inside, &s->bytes, &s->fd, &s->data, &s->handle);
    RAVEL_ASSERT(code || (s->bytes >= bytes && s->fd >= 0));
    return end(s, code, "making shared memory", shared, err);
}

ravel_status ravel__shared_import(ravel_device *device, int fd, size_t bytes, int32_t writable, ravel__shared **shared,
                                  ravel_error *err) {
    ravel__shared *s = NULL;
    ravel_status status = begin(device, bytes, &s, err);
    if (status) return status;
    RAVEL_ASSERT(s);
    int code = device->driver->import(device->inside, fd, &s->bytes, writable, &s->data, &s->handle);
    RAVEL_ASSERT(code || (s->bytes >= bytes && s->fd == -1)); /* the descriptor stays the caller's */
    return end(s, code, "mapping shared memory", shared, err);
}

void ravel__shared_free(ravel__shared *shared) {
    if (!shared) return;
    RAVEL_ASSERT(shared->device && shared->data && shared->bytes > 0);
    shared->device->driver->unshare(shared->device->inside, shared->data, shared->bytes, shared->handle);
    if (shared->fd >= 0) (void)close(shared->fd);
    ravel__release(NULL, shared, sizeof *shared);
}

void *ravel__shared_data(const ravel__shared *shared) {
    return shared->data;
}

size_t ravel__shared_bytes(const ravel__shared *shared) {
    return shared->bytes;
}

int ravel__shared_fd(const ravel__shared *shared) {
    return shared->fd;
}

/* ---- descriptors over a socket -------------------------------------------------------------------------- */

enum { NOTE_BYTES = 256 };

static ravel_status ready(int socket, short events, int64_t deadline, ravel_error *err) {
    for (;;) {
        int64_t left = (deadline - ravel__clock_ns()) / 1000000;
        struct pollfd one = {.fd = socket, .events = events};
        int n = poll(&one, 1, left > 0 ? (int)(left < 100000 ? left : 100000) : 0);
        if (n > 0) return RAVEL_OK;
        if (n < 0 && errno != EINTR) return ravel_error_set(err, RAVEL_E_IO, "a descriptor: %s", strerror(errno));
        if (left <= 0) return ravel_error_set(err, RAVEL_E_TIMEOUT, "no descriptor could be passed in time");
    }
}

/* A byte that is the note's size, with the descriptor; then the note. */
typedef struct envelope {
    unsigned char note[1 + NOTE_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct iovec part;
    struct msghdr message;
} envelope;

static void open_envelope(envelope *e, size_t bytes) {
    RAVEL_ASSERT(bytes >= 1 && bytes <= sizeof e->note);
    memset(e, 0, sizeof *e);
    e->part = (struct iovec){e->note, bytes};
    e->message.msg_iov = &e->part;
    e->message.msg_iovlen = 1;
    e->message.msg_control = e->control;
    e->message.msg_controllen = sizeof e->control;
}

ravel_status ravel__fd_send(int socket, int fd, const void *note, size_t bytes, double seconds, ravel_error *err) {
    envelope e;
    if (bytes >= NOTE_BYTES)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a note of %zu bytes; %d fit", bytes, NOTE_BYTES - 1);
    open_envelope(&e, 1 + bytes);
    e.note[0] = (unsigned char)bytes;
    RAVEL_ASSERT(e.note[0] == bytes && e.part.iov_len == 1 + bytes);
    if (bytes) memcpy(e.note + 1, note, bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(&e.message);
    RAVEL_ASSERT(header && CMSG_LEN(sizeof fd) <= sizeof e.control);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ravel_status status = ready(socket, POLLOUT, ravel__clock_ns() + ravel__wait_ns(seconds), err);
    if (status) return status;
    ssize_t n = sendmsg(socket, &e.message, MSG_NOSIGNAL);
    if (n == (ssize_t)(1 + bytes)) return RAVEL_OK;
    return ravel_error_set(err, n < 0 && errno == EPIPE ? RAVEL_E_PEER_LOST : RAVEL_E_IO, "sending a descriptor: %s",
                           n < 0 ? strerror(errno) : "the message was cut");
}

/* The first byte, and the descriptor that came with it. */
static ravel_status receive(int socket, envelope *e, int *fd, ravel_error *err) {
    RAVEL_ASSERT(*fd == -1 && e->message.msg_controllen == sizeof e->control);
    ssize_t n = recvmsg(socket, &e->message, MSG_CMSG_CLOEXEC);
    if (n < 0) return ravel_error_set(err, RAVEL_E_IO, "receiving a descriptor: %s", strerror(errno));
    if (n == 0) return ravel_error_set(err, RAVEL_E_PEER_LOST, "the peer closed the socket");
    struct cmsghdr *header = CMSG_FIRSTHDR(&e->message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return RAVEL_OK;
}

ravel_status ravel__fd_recv(int socket, int *fd, void *note, size_t *bytes, double seconds, ravel_error *err) {
    envelope first;
    int found = -1;
    int64_t deadline = ravel__clock_ns() + ravel__wait_ns(seconds);
    open_envelope(&first, 1); /* its size, and the descriptor */
    ravel_status status = ready(socket, POLLIN, deadline, err);
    if (!status) status = receive(socket, &first, &found, err);
    size_t size = first.note[0], have = 0;
    if (!status && found < 0) status = ravel_error_set(err, RAVEL_E_DATA, "a message without a descriptor");
    if (!status && size > *bytes)
        status = ravel_error_set(err, RAVEL_E_DATA, "a note of %zu bytes; there is room for %zu", size, *bytes);
    while (!status && have < size) {
        status = ready(socket, POLLIN, deadline, err);
        ssize_t n = status ? 0 : recv(socket, (char *)note + have, size - have, 0);
        if (!status && n <= 0)
            status = ravel_error_set(err, RAVEL_E_PEER_LOST, "the peer closed the socket in the middle of a note");
        have += n > 0 ? (size_t)n : 0;
        RAVEL_ASSERT(have <= size && size < NOTE_BYTES);
    }
    if (status) {
        if (found >= 0) (void)close(found);
        return status;
    }
    RAVEL_ASSERT(found >= 0 && have == size && size <= *bytes);
    *fd = found;
    *bytes = size;
    return RAVEL_OK;
}
