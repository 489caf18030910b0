#include "refit/publish/handout.h"

#include "base/assert.h"
#include "device/shared.h"
#include "base/memory.h"
#include "refit/model/caller.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LOOK_MS = 100, WAITING_MOST = 64 };
static const double send_seconds = 5;

struct ravel__handout {
    const ravel__store *store;
    char name[RAVEL__SHARE_NAME];
    int listener;
    pthread_t thread;
    int32_t running;
    _Atomic int32_t stop;
};

/* Message that carries a descriptor. */
typedef struct note {
    int32_t slot, slots;
    int64_t bytes;
} note;

/* An abstract name: it begins with a zero byte and leaves no file behind. */
static socklen_t name_address(const char *name, struct sockaddr_un *address) {
    size_t bytes = strnlen(name, RAVEL__SHARE_NAME);
    RAVEL_ASSERT(bytes + 1 <= sizeof address->sun_path);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, bytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

/* ---- the trainer ---------------------------------------------------------------------------------------- */

static int is_same_user(int socket) {
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static void hand_out(const ravel__handout *s, int socket) {
    const ravel__device_store *store = s->store->on_device;
    for (int32_t k = 0; k < s->store->keep && is_same_user(socket); k++) {
        const ravel__shared *slot = ravel__device_store_slot(store, k);
        RAVEL_ASSERT(ravel__shared_fd(slot) >= 0 && ravel__shared_bytes(slot) >= (size_t)s->store->tiles.bytes);
        note n = {k, s->store->keep, (int64_t)ravel__shared_bytes(slot)};
        if (ravel__fd_send(socket, ravel__shared_fd(slot), &n, sizeof n, send_seconds, NULL) != RAVEL_OK) break;
    }
    (void)close(socket);
}

static void *serve(void *argument) {
    ravel__handout *s = argument;
    while (!atomic_load(&s->stop)) {
        struct pollfd one = {.fd = s->listener, .events = POLLIN};
        if (poll(&one, 1, LOOK_MS) <= 0) continue;
        int socket = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0) hand_out(s, socket);
    }
    return NULL;
}

static ravel_status listen_at(ravel__handout *s, ravel_error *err) {
    struct sockaddr_un address;
    (void)snprintf(s->name, sizeof s->name, "ravel-share-%d-%016llx", (int)getpid(),
                   (unsigned long long)ravel__fresh_nonce());
    socklen_t bytes = name_address(s->name, &address);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (const struct sockaddr *)&address, bytes) != 0 ||
        listen(s->listener, WAITING_MOST) != 0)
        return ravel_error_set(err, RAVEL_E_IO, "no socket could be opened to share versions on the device: %s",
                               strerror(errno));
    return RAVEL_OK;
}

ravel_status ravel__handout_open(const ravel__store *store, ravel__handout **handout, ravel_error *err) {
    RAVEL_ASSERT(store->on_device && store->keep > 0);
    ravel__handout *s = ravel__calloc(store->allocator, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "sharing on a device");
    s->store = store;
    ravel_status status = listen_at(s, err);
    if (status == RAVEL_OK) {
        s->running = pthread_create(&s->thread, NULL, serve, s) == 0;
        if (!s->running) status = ravel_error_set(err, RAVEL_E_MEMORY, "no thread could be made to share versions");
    }
    if (status == RAVEL_OK)
        *handout = s;
    else
        ravel__handout_close(s);
    return status;
}

void ravel__handout_close(ravel__handout *s) {
    if (!s) return;
    atomic_store(&s->stop, 1);
    if (s->running) (void)pthread_join(s->thread, NULL);
    if (s->listener >= 0) (void)close(s->listener);
    ravel__release(s->store->allocator, s, sizeof *s);
}

void ravel__handout_describe(const ravel__handout *s, const ravel__store *store, const ravel__kept *kept,
                             const int32_t *item_of, int64_t tensors, unsigned char *out) {
    ravel_device_info info = {.size = sizeof info};
    RAVEL_ASSERT(kept >= store->kept && kept < store->kept + store->keep && kept->users > 0);
    ravel__mapped m = {.slot = (int32_t)(kept - store->kept),
                       .slots = store->keep,
                       .items = (int32_t)store->holding->count,
                       .bytes = store->tiles.bytes,
                       .blocks = store->tiles.blocks};
    (void)ravel_device_get_info(ravel__device_store_device(store->on_device), &info, NULL);
    memcpy(m.uuid, info.uuid, sizeof m.uuid);
    memcpy(m.name, s->name, sizeof m.name);
    memcpy(out, &m, sizeof m);
    for (int64_t t = 0; t < tensors; t++) {
        if (item_of[t] < 0) continue;
        RAVEL_ASSERT(item_of[t] < store->holding->count);
        const ravel__tile_item *from = &store->tiles.items[item_of[t]];
        ravel__mapped_item item = {(int32_t)t, from->view.dtype, from->at, from->first_block, from->per_block};
        memcpy(out + sizeof m + (size_t)item_of[t] * sizeof item, &item, sizeof item);
    }
    memcpy(out + sizeof m + (size_t)m.items * sizeof(ravel__mapped_item), kept->packed.hashes, (size_t)m.blocks * 8);
}

/* ---- the generator -------------------------------------------------------------------------------------- */

static ravel_status fetch_one(int socket, const ravel__mapped *m, ravel_device *device, double seconds,
                              ravel__shared **slots, ravel_error *err) {
    note n = {0};
    size_t bytes = sizeof n;
    int fd = -1;
    ravel_status status = ravel__fd_recv(socket, &fd, &n, &bytes, seconds, err);
    if (status != RAVEL_OK) return status;
    if (bytes != sizeof n || n.slot < 0 || n.slot >= m->slots || n.slots != m->slots || n.bytes < m->bytes ||
        slots[n.slot])
        status = ravel_error_set(err, RAVEL_E_DATA, "a trainer handed out another slot than it announced");
    if (status == RAVEL_OK) status = ravel__shared_import(device, fd, (size_t)n.bytes, 0, &slots[n.slot], err);
    (void)close(fd);
    return status;
}

ravel_status ravel__handout_fetch(const ravel__mapped *m, ravel_device *device, double seconds, ravel__shared **slots,
                                  ravel_error *err) {
    struct sockaddr_un address;
    socklen_t bytes = name_address(m->name, &address);
    ravel_status status = RAVEL_OK;
    int socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset((void *)slots, 0, (size_t)m->slots * sizeof(void *));
    if (socket_ < 0 || connect(socket_, (const struct sockaddr *)&address, bytes) != 0)
        status = ravel_error_set(err, RAVEL_E_IO, "the trainer's memory cannot be mapped: %s", strerror(errno));
    for (int32_t k = 0; k < m->slots && status == RAVEL_OK; k++)
        status = fetch_one(socket_, m, device, seconds, slots, err);
    if (socket_ >= 0) (void)close(socket_);
    for (int32_t k = 0; k < m->slots && status != RAVEL_OK; k++) {
        ravel__shared_free(slots[k]);
        slots[k] = NULL;
    }
    /* A trainer that ended does not break the generator's own communicator. */
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT
               ? ravel_error_set(err, RAVEL_E_IO, "the trainer ended while it handed out its memory")
               : status;
}
