/* The file of a communicator:
 *
 *     slot of each rank        what it asks for, one chunk of its array, and how many steps of a collective it has made
 *     box of each two ranks    one chunk of a message, and how many bytes were written and read
 *
 * A collective is: everybody puts what it asks for into its slot; step; all compare. For every chunk: everybody puts it into
 * its slot; step; everybody adds the chunks; step. A step waits until all ranks have made it. */
#include "tests/stub/nccl.h"
#include "tests/stub/gpu.h"

#include "comm/backend.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, CHUNK = 1 << 16, ITEMS = 64, MISMATCH = 5, HANGS_FROM = 40 };

typedef enum kind { SEND, RECV, BROADCAST, ALLREDUCE, REDUCE, ALLGATHER, REDUCE_SCATTER } kind;

typedef struct item {
    int32_t kind, peer, dtype, reduce;
    int64_t count; /* bytes of messages and of a broadcast, else elements */
    const char *from;
    char *to;
    int64_t moved; /* bytes of a message */
} item;

typedef struct slot {
    atomic_llong steps;
    item asked;
    char chunk[CHUNK];
} slot;

typedef struct box {
    atomic_llong written, read;
    int64_t total; /* of the message that the chunk is of */
    char chunk[CHUNK];
} box;

typedef struct file {
    atomic_int joined;
    slot slots[RANKS];
    box boxes[RANKS][RANKS]; /* [from][to] */
} file;

typedef struct group {
    struct comm *comm;
    int32_t count, number;
    item items[];
} group;

typedef struct comm {
    file *shared;
    int32_t size, me;
    atomic_int users, aborted, failed;
    int32_t grouping, count, number;
    item items[ITEMS];
    void *stream; /* of the items */
    group *held;  /* RAVEL_STUB_PLANT=order: pushed after the next one */
} comm;

static void pause_briefly(void) {
    (void)nanosleep(&(struct timespec){0, 20 * 1000}, NULL);
}

/* ---- life ------------------------------------------------------------------------------------------------ */

static int new_id(unsigned char *id) {
    memset(id, 0, RAVEL__NCCL_ID);
    return getrandom(id, 16, 0) == 16 ? 0 : MISMATCH;
}

static void name_of(const unsigned char *id, char *name, size_t bytes) {
    int used = snprintf(name, bytes, "/dev/shm/ravel-stub-");
    for (int i = 0; i < 16; i++) used += snprintf(name + used, bytes - (size_t)used, "%02x", id[i]);
}

static void let_go(comm *c) {
    if (atomic_fetch_sub(&c->users, 1) > 1) return;
    (void)munmap(c->shared, sizeof *c->shared);
    free(c->held);
    free(c);
}

static int begin(int32_t device, int32_t ranks, int32_t rank, const unsigned char *id, void **out) {
    char name[96];
    (void)device;
    name_of(id, name, sizeof name);
    int fd = ranks <= RANKS ? open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(file))) return MISMATCH;
    comm *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->shared = mmap(NULL, sizeof(file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (c->shared == MAP_FAILED) abort();
    c->size = ranks;
    c->me = rank;
    atomic_init(&c->users, 1);
    if (atomic_fetch_add(&c->shared->joined, 1) + 1 == ranks) (void)unlink(name);
    *out = c;
    return RAVEL__NCCL_PENDING;
}

static int state(void *user) {
    comm *c = user;
    if (atomic_load(&c->failed)) return atomic_load(&c->failed);
    return atomic_load(&c->shared->joined) < c->size ? RAVEL__NCCL_PENDING : 0;
}

static void give_up(void *user) {
    comm *c = user;
    atomic_store(&c->aborted, 1);
    let_go(c);
}

static void describe(int code, char *text, size_t bytes) {
    (void)snprintf(text, bytes, code == MISMATCH ? "ranks ask for different operations" : "stub code %d", code);
}

/* ---- in the stream's thread ------------------------------------------------------------------------------ */

/* All ranks have made as many steps; 0: aborted. */
static int step(comm *c) {
    long long mine = atomic_fetch_add(&c->shared->slots[c->me].steps, 1) + 1;
    for (int32_t r = 0; r < c->size; r++)
        while (atomic_load(&c->shared->slots[r].steps) < mine) {
            if (atomic_load(&c->aborted)) return 0;
            pause_briefly();
        }
    return 1;
}

static int agrees(const item *a, const item *b) {
    return a->kind == b->kind && a->peer == b->peer && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->count == b->count;
}

static int compare(comm *c, const item *mine) {
    c->shared->slots[c->me].asked = *mine;
    if (!step(c)) return 0;
    int same = 1;
    for (int32_t r = 0; r < c->size; r++) same &= agrees(mine, &c->shared->slots[r].asked);
    if (!same) atomic_store(&c->failed, MISMATCH);
    return step(c) && same;
}

static void combine(comm *c, const item *i, char *to, int64_t bytes) {
    const char *chunks[RANKS];
    for (int32_t r = 0; r < c->size; r++) chunks[r] = c->shared->slots[r].chunk;
    if (i->kind == BROADCAST)
        memcpy(to, chunks[i->peer], (size_t)bytes);
    else if (i->kind == ALLREDUCE || i->peer == c->me)
        ravel__reduce(i->dtype, i->reduce, chunks, c->size, 0, bytes, to);
}

static int64_t bytes_of(const item *i) {
    int elements = i->kind == ALLREDUCE || i->kind == REDUCE || i->kind == REDUCE_SCATTER;
    return elements ? i->count * ravel_dtype_bytes(i->dtype) : i->count;
}

static int run_chunks(comm *c, const item *i) {
    int64_t bytes = bytes_of(i);
    for (int64_t first = 0; first < bytes; first += CHUNK) {
        int64_t n = bytes - first < CHUNK ? bytes - first : CHUNK;
        memcpy(c->shared->slots[c->me].chunk, i->from + first, (size_t)n);
        if (!step(c)) return 0;
        combine(c, i, i->to ? i->to + first : NULL, n);
        if (!step(c)) return 0;
    }
    return 1;
}

/* Pieces are broadcast, or reduced, one rank after the other. */
static int run_collective(comm *c, const item *i) {
    if (!compare(c, i)) return 0;
    if (i->kind < ALLGATHER) return run_chunks(c, i);
    for (int32_t r = 0; r < c->size; r++) {
        item piece = *i;
        piece.peer = r;
        piece.kind = i->kind == ALLGATHER ? BROADCAST : REDUCE;
        if (i->kind == ALLGATHER)
            piece.to += r * bytes_of(i);
        else
            piece.from += r * bytes_of(i);
        if (!run_chunks(c, &piece)) return 0;
    }
    return 1;
}

/* A chunk of a message, where the box allows it. */
static void move(comm *c, item *i) {
    box *b = i->kind == SEND ? &c->shared->boxes[c->me][i->peer] : &c->shared->boxes[i->peer][c->me];
    int64_t n = i->count - i->moved < CHUNK ? i->count - i->moved : CHUNK;
    int empty = atomic_load(&b->written) == atomic_load(&b->read);
    if (empty != (i->kind == SEND)) return;
    if (i->kind == SEND) {
        b->total = i->count;
        memcpy(b->chunk, i->from + i->moved, (size_t)n);
        atomic_fetch_add(&b->written, n);
    } else {
        if (b->total != i->count) atomic_store(&c->failed, MISMATCH);
        memcpy(i->to + i->moved, b->chunk, (size_t)n);
        atomic_store(&b->read, atomic_load(&b->written));
    }
    i->moved += n;
}

/* Messages of a group travel together, those of one kind and peer in order. */
static int run_messages(group *g) {
    comm *c = g->comm;
    for (int open = 1; open;) {
        open = 0;
        if (atomic_load(&c->aborted) || atomic_load(&c->failed)) return 0;
        for (int32_t k = 0; k < g->count; k++) {
            item *i = &g->items[k];
            int first = 1;
            for (int32_t j = 0; j < k; j++)
                first &= g->items[j].kind != i->kind || g->items[j].peer != i->peer ||
                         g->items[j].moved == g->items[j].count;
            if (i->moved == i->count) continue;
            open = 1;
            if (first) move(c, i);
        }
        if (open) pause_briefly();
    }
    return 1;
}

typedef struct launched {
    group *group;
} launched;

static void run_group(void *user) {
    group *g = ((launched *)user)->group;
    comm *c = g->comm;
    stub_dawdle("nccl");
    while (stub_plant("hang") && g->number >= HANGS_FROM && !atomic_load(&c->aborted)) pause_briefly();
    int going = !atomic_load(&c->aborted) && !atomic_load(&c->failed);
    int messages = g->count && g->items[0].kind <= RECV;
    if (going && messages) going = run_messages(g);
    for (int32_t k = 0; k < g->count && going && !messages; k++) going = run_collective(c, &g->items[k]);
    /* a failed communicator's operations do not end, as NCCL's do not, until it is aborted */
    while (!going && !atomic_load(&c->aborted)) pause_briefly();
    free(g);
    let_go(c);
}

/* ---- asking for it --------------------------------------------------------------------------------------- */

static void push(comm *c, group *g, void *stream) {
    atomic_fetch_add(&c->users, 1);
    launched l = {g};
    stub_push(stream, run_group, &l, sizeof l);
}

/* RAVEL_STUB_PLANT=order: the first rank's third and fourth operation change places. */
static void push_in_order(comm *c, group *g, void *stream) {
    if (c->me == 0 && c->size > 1 && stub_plant("order") && g->number == 2) {
        c->held = g;
        return;
    }
    push(c, g, stream);
    if (c->held) push(c, c->held, stream);
    c->held = NULL;
}

static void launch(comm *c, void *stream) {
    group *g = malloc(sizeof *g + (size_t)c->count * sizeof(item));
    if (!g) abort();
    *g = (group){.comm = c, .count = c->count, .number = c->number++};
    memcpy(g->items, c->items, (size_t)c->count * sizeof(item));
    c->count = 0;
    if (g->count)
        push_in_order(c, g, stream);
    else
        free(g);
}

static int ask(comm *c, item i, void *stream) {
    if (c->count == ITEMS) return MISMATCH;
    i.from = i.from ? stub_inside(i.from) : NULL;
    i.to = i.to ? stub_inside(i.to) : NULL;
    c->items[c->count++] = i;
    c->stream = stream;
    if (!c->grouping) launch(c, stream);
    return 0;
}

static int group_begin(void *user) {
    ((comm *)user)->grouping = 1;
    return 0;
}

static int group_end(void *user) {
    comm *c = user;
    c->grouping = 0;
    if (c->count) launch(c, c->stream);
    return 0;
}

static int do_send(void *user, const void *data, int64_t bytes, int32_t peer, void *stream) {
    return ask(user, (item){.kind = SEND, .peer = peer, .count = bytes, .from = data}, stream);
}

static int do_recv(void *user, void *data, int64_t bytes, int32_t peer, void *stream) {
    return ask(user, (item){.kind = RECV, .peer = peer, .count = bytes, .to = data}, stream);
}

static int broadcast(void *user, void *data, int64_t bytes, int32_t root, void *stream) {
    return ask(user, (item){.kind = BROADCAST, .peer = root, .count = bytes, .from = data, .to = data}, stream);
}

static int allreduce(void *user, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                     void *stream) {
    item i = {
        .kind = ALLREDUCE, .peer = -1, .dtype = dtype, .reduce = reduce, .count = count, .from = send, .to = recv};
    return ask(user, i, stream);
}

static int reduce(void *user, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce_by,
                  int32_t root, void *stream) {
    item i = {
        .kind = REDUCE, .peer = root, .dtype = dtype, .reduce = reduce_by, .count = count, .from = send, .to = recv};
    return ask(user, i, stream);
}

static int allgather(void *user, const void *send, void *recv, int64_t bytes, void *stream) {
    return ask(user, (item){.kind = ALLGATHER, .peer = -1, .count = bytes, .from = send, .to = recv}, stream);
}

static int reduce_scatter(void *user, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce_by,
                          void *stream) {
    item i = {.kind = REDUCE_SCATTER,
              .peer = -1,
              .dtype = dtype,
              .reduce = reduce_by,
              .count = count,
              .from = send,
              .to = recv};
    return ask(user, i, stream);
}

const ravel__nccl stub_nccl = {.version = RAVEL__NCCL_VERSION,
                               .bytes = sizeof(ravel__nccl),
                               .id = new_id,
                               .begin = begin,
                               .state = state,
                               .abort = give_up,
                               .describe = describe,
                               .group_begin = group_begin,
                               .group_end = group_end,
                               .send = do_send,
                               .recv = do_recv,
                               .broadcast = broadcast,
                               .allreduce = allreduce,
                               .reduce = reduce,
                               .allgather = allgather,
                               .reduce_scatter = reduce_scatter};
