/* Shared memory for long bodies between two processes of one machine.
 *
 * Over a Unix socket, a body of RAVEL__SHARED_LEAST bytes or more goes through a ring of shared memory: one copy in,
 * one copy out. The socket still carries heads, order and checksums, and detects lost peers.
 *
 *     sender                                            receiver
 *     RING frame with two descriptors         -->       checks and maps the ring, sets `ready`
 *     SHARED frame: a head as of any body     -->       asks where the body goes
 *       copies a piece into the ring
 *       record: bytes of the piece, check     -->       copies it out, adds to `consumed`, writes to the eventfd
 *       ... until the body is whole
 *     checksum of the body                    -->       compares it with the sum of what it has copied
 *
 *   ring   a memfd: a page with two words that the receiver writes (ready, consumed), then RAVEL__RING_BYTES of bodies. One
 *          per link and direction, made when the first long body is sent
 *
 * The first bodies go through the socket, until `ready` is seen. It stays 0 if anything is missing (no memfd, no
 * descriptor left, the option off on either side), so a link without shared memory is slower and otherwise the same.
 *
 * Nothing in the ring is trusted. The sender checks `consumed` (ravel__ring_room); the receiver checks every record,
 * and sums its own copy. The memfd is sealed, and the receiver checks seals and size before it maps, so that no access
 * can fault. The memory is allocated when the ring is made, not when it is first written. */
#include "comm/link/link_state.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 512 << 10, MAP_BYTES = PAGE + RAVEL__RING_BYTES, SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

_Static_assert((int)PIECE <= (int)RAVEL__RING_BYTES, "a piece fits into the ring");

static uint64_t *ready_of(const link_ring *r) {
    return (uint64_t *)(void *)r->map;
}
static uint64_t *consumed_of(const link_ring *r) {
    return (uint64_t *)(void *)(r->map + 64);
}

/* ---- create and free --------------------------------------------------------------------------------------------- */

void ravel__rings_init(ravel__link *link) {
    for (int i = 0; i < 2; i++)
        link->rings[i] = (link_ring){.source = SOURCE_RING, .link = link, .memory = -1, .event = -1};
    link->given[0] = link->given[1] = -1;
}

static void close_fd(int *fd) {
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}

void ravel__rings_free(ravel__link *link) {
    for (int i = 0; i < 2; i++) {
        link_ring *r = &link->rings[i];
        if (r->watched) (void)epoll_ctl(link->hub->epoll, EPOLL_CTL_DEL, r->event, NULL); /* the peer keeps it open */
        if (r->map) (void)munmap(r->map, MAP_BYTES);
        r->map = NULL;
        r->watched = 0;
        close_fd(&r->memory);
        close_fd(&r->event);
        close_fd(&link->given[i]);
    }
}

static uint8_t *map_ring(int fd) {
    void *map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* ---- the sender ----------------------------------------------------------------------------------------- */

static int make_ring(link_ring *r) {
    RAVEL_ASSERT(r->memory < 0 && r->event < 0 && !r->map && !r->watched);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = r};
    r->memory = memfd_create("ravel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->memory < 0 || r->event < 0 || ftruncate(r->memory, MAP_BYTES) < 0 ||
        fallocate(r->memory, 0, 0, MAP_BYTES) < 0 || fcntl(r->memory, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0)
        return 0;
    r->map = map_ring(r->memory);
    r->watched = r->map && epoll_ctl(r->link->hub->epoll, EPOLL_CTL_ADD, r->event, &event) == 0;
    return r->watched;
}

int ravel__ring_offers(ravel__link *link, int64_t bytes) {
    link_ring *r = &link->rings[RING_OUT];
    if (!link->hub->options.shared || link->is_tcp || bytes < RAVEL__SHARED_LEAST || r->tried) return 0;
    r->tried = 1;
    if (make_ring(r)) return 1;
    close_fd(&r->memory);
    return 0;
}

int ravel__ring_is_ready(const ravel__link *link) {
    const link_ring *r = &link->rings[RING_OUT];
    return r->watched && r->memory < 0 && __atomic_load_n(ready_of(r), __ATOMIC_ACQUIRE) == RAVEL__RING_READY;
}

void ravel__ring_attach(ravel__link *link, struct msghdr *message, ring_control *control) {
    RAVEL_ASSERT(link->rings[RING_OUT].memory >= 0 && link->rings[RING_OUT].event >= 0 && !link->is_tcp);
    const link_ring *r = &link->rings[RING_OUT];
    int fds[2] = {r->memory, r->event};
    memset(control, 0, sizeof *control);
    message->msg_control = control->bytes;
    message->msg_controllen = sizeof control->bytes;
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
}

void ravel__ring_attached(ravel__link *link) {
    RAVEL_ASSERT(link->rings[RING_OUT].memory >= 0 && link->rings[RING_OUT].map);
    close_fd(&link->rings[RING_OUT].memory); /* the map stays */
}

/* Where this side is in the ring, and how much of `bytes` lies before the ring's end; the rest is at its beginning. */
static uint8_t *place_in(const link_ring *r, uint64_t bytes, size_t *first) {
    uint64_t at = r->at % RAVEL__RING_BYTES, before = RAVEL__RING_BYTES - at;
    *first = (size_t)(before < bytes ? before : bytes);
    RAVEL_ASSERT(at + *first <= RAVEL__RING_BYTES && bytes - *first <= at); /* the two parts do not meet */
    return r->map + PAGE + at;
}

int64_t ravel__ring_put(ravel__link *link, const uint8_t *from, int64_t bytes) {
    RAVEL_ASSERT(bytes > 0 && link->rings[RING_OUT].watched && link->rings[RING_OUT].memory < 0);
    link_ring *r = &link->rings[RING_OUT];
    uint64_t room = 0;
    r->waits = 0;
    if (!ravel__ring_room(r->at, r->freed, __atomic_load_n(consumed_of(r), __ATOMIC_ACQUIRE), &room)) return -1;
    r->freed = r->at + room - RAVEL__RING_BYTES;
    RAVEL_ASSERT(r->freed <= r->at && r->at - r->freed <= RAVEL__RING_BYTES);
    if (bytes > PIECE) bytes = PIECE;
    if ((uint64_t)bytes > room) bytes = (int64_t)room;
    r->waits = bytes == 0;
    if (bytes == 0) return 0;
    size_t first;
    uint8_t *at = place_in(r, (uint64_t)bytes, &first);
    memcpy(at, from, first);
    memcpy(r->map + PAGE, from + first, (size_t)bytes - first);
    r->at += (uint64_t)bytes;
    RAVEL_ASSERT(r->at - r->freed <= RAVEL__RING_BYTES);
    return bytes;
}

void ravel__ring_room_came(link_ring *r) {
    RAVEL_ASSERT(r == &r->link->rings[RING_OUT]);
    uint64_t count;
    ssize_t ignored = read(r->event, &count, sizeof count);
    (void)ignored;
    if (r->link->state != LINK_UP || !r->waits) return;
    r->waits = 0;
    ravel__link_write(r->link);
}

/* ---- the receiver --------------------------------------------------------------------------------------- */

ssize_t ravel__link_recv(int fd, struct iovec *list, int count, int flags, int takes, int given[2]) {
    ring_control control;
    struct msghdr message = {.msg_iov = list, .msg_iovlen = (size_t)count};
    if (takes) message.msg_control = control.bytes, message.msg_controllen = sizeof control.bytes;
    ssize_t got = recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC);
    if (got < 0 || !takes) return got;
    int error = errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        int fds[2] = {-1, -1};
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(fds, CMSG_DATA(c), bytes < sizeof fds ? bytes : sizeof fds);
        for (int i = 0; i < 2; i++) {
            close_fd(&given[i]);
            given[i] = fds[i];
        }
    }
    errno = error;
    return got;
}

static int is_ring(int fd) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 && st.st_size == MAP_BYTES;
}

/* No pipe, socket or file: a write to it neither waits nor raises a signal. */
static int is_event(int fd) {
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0 &&
           fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

void ravel__ring_take(ravel__link *link) {
    link_ring *r = &link->rings[RING_IN];
    int *given = link->given;
    if (link->hub->options.shared && !r->map && given[0] >= 0 && given[1] >= 0 && is_ring(given[0]) &&
        is_event(given[1])) {
        r->map = map_ring(given[0]);
        r->event = given[1];
        given[1] = -1;
    }
    close_fd(&given[0]);
    close_fd(&given[1]);
    if (r->map) __atomic_store_n(ready_of(r), (uint64_t)RAVEL__RING_READY, __ATOMIC_RELEASE);
    RAVEL_ASSERT(given[0] < 0 && given[1] < 0);
}

int ravel__ring_is_mapped(const ravel__link *link) {
    return link->rings[RING_IN].map != NULL;
}

void ravel__ring_get(ravel__link *link, uint8_t *to, uint64_t bytes) {
    link_ring *r = &link->rings[RING_IN];
    uint64_t one = 1;
    RAVEL_ASSERT(r->map && bytes <= RAVEL__RING_BYTES);
    RAVEL_ASSERT(bytes > 0 && r->event >= 0);
    size_t first;
    const uint8_t *at = place_in(r, bytes, &first);
    if (to) memcpy(to, at, first);
    if (to) memcpy(to + first, r->map + PAGE, (size_t)bytes - first);
    r->at += bytes;
    __atomic_store_n(consumed_of(r), r->at, __ATOMIC_RELEASE);
    ssize_t ignored = write(r->event, &one, sizeof one);
    (void)ignored;
}
