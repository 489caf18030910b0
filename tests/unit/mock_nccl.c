#include "tests/unit/mock_nccl.h"

#include "comm/backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 64 };

mock_nccl_state mock_nccl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef enum item_kind { SEND, RECV, BROADCAST, ALLREDUCE, REDUCE, ALLGATHER, REDUCE_SCATTER } item_kind;

/* Something that a rank has asked for and that is not done. */
typedef struct item {
    struct item *next;
    item_kind kind;
    int32_t peer; /* or root */
    const char *from;
    char *to;
    int64_t bytes; /* of a reduction: elements; of pieces: of one */
    int32_t dtype, reduce;
    int64_t number; /* of a collective: which of the communicator's */
    int done;
} item;

typedef struct world world;
typedef struct rank {
    world *in;
    int32_t me;
    item *items; /* in order */
    int grouping;
    void *stream;
    int has_stream;
    int64_t collectives;
} rank;

struct world {
    world *next;
    unsigned char id[RAVEL__NCCL_ID];
    int32_t size, joined, left;
    rank ranks[RANKS_MOST];
};

static world *worlds;
static int64_t ids;

void mock_nccl_reset(void) {
    memset(&mock_nccl, 0, sizeof mock_nccl);
}

void mock_nccl_break(int32_t stuck, int32_t broken) {
    pthread_mutex_lock(&lock);
    mock_nccl.stuck = stuck;
    mock_nccl.broken = broken;
    pthread_mutex_unlock(&lock);
}

static void violate(const char *what) {
    mock_nccl.violations++;
    fprintf(stderr, "    mock NCCL: %s\n", what);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static int mock_id(unsigned char *id) {
    pthread_mutex_lock(&lock);
    int64_t number = ++ids;
    pthread_mutex_unlock(&lock);
    memset(id, 0x5a, RAVEL__NCCL_ID);
    memcpy(id, &number, sizeof number);
    return 0;
}

static world *find_world(const unsigned char *id, int32_t size) {
    for (world *w = worlds; w; w = w->next)
        if (memcmp(w->id, id, sizeof w->id) == 0) return w;
    world *w = calloc(1, sizeof *w);
    memcpy(w->id, id, sizeof w->id);
    w->size = size;
    w->next = worlds;
    worlds = w;
    return w;
}

static int mock_begin(int32_t device, int32_t ranks, int32_t me, const unsigned char *id, void **comm) {
    (void)device;
    pthread_mutex_lock(&lock);
    world *w = find_world(id, ranks);
    if (w->size != ranks || w->ranks[me].in) violate("two ranks with one number, or another number of ranks");
    w->ranks[me].in = w;
    w->ranks[me].me = me;
    w->joined++;
    mock_nccl.live++;
    *comm = &w->ranks[me];
    pthread_mutex_unlock(&lock);
    return RAVEL__NCCL_PENDING;
}

static void free_items(rank *r) {
    while (r->items) {
        item *i = r->items;
        r->items = i->next;
        free(i);
    }
}

static void mock_abort(void *comm) {
    rank *r = comm;
    pthread_mutex_lock(&lock);
    world *w = r->in;
    if (r->grouping) violate("a group that never ends"); /* it would take in what the thread asks for later */
    free_items(r);
    mock_nccl.live--;
    if (++w->left == w->joined && w->joined == w->size) {
        world **link = &worlds;
        while (*link != w) link = &(*link)->next;
        *link = w->next;
        free(w);
    }
    pthread_mutex_unlock(&lock);
}

static void mock_describe(int code, char *text, size_t bytes) {
    snprintf(text, bytes, "mock code %d", code);
}

/* ---- doing it ------------------------------------------------------------------------------------------- */

/* The oldest open message of `from` to `to`. */
static item *first_of(rank *r, item_kind kind, int32_t peer) {
    for (item *i = r->items; i; i = i->next)
        if (i->kind == kind && i->peer == peer && !i->done) return i;
    return NULL;
}

static void match_messages(world *w) {
    for (int32_t a = 0; a < w->size; a++)
        for (int32_t b = 0; b < w->size; b++)
            for (;;) {
                item *send = first_of(&w->ranks[a], SEND, b), *recv = first_of(&w->ranks[b], RECV, a);
                if (!send || !recv) break;
                if (send->bytes != recv->bytes) violate("a send and a receive of different sizes");
                memcpy(recv->to, send->from, (size_t)(send->bytes < recv->bytes ? send->bytes : recv->bytes));
                send->done = recv->done = 1;
            }
}

static item *collective_of(rank *r, int64_t number) {
    for (item *i = r->items; i; i = i->next)
        if (i->kind >= BROADCAST && i->number == number && !i->done) return i;
    return NULL;
}

static void reduce_all(world *w, item **all) {
    const char *sources[RANKS_MOST];
    int64_t bytes = all[0]->bytes * ravel_dtype_bytes(all[0]->dtype);
    char *result = malloc((size_t)bytes + 1);
    for (int32_t i = 0; i < w->size; i++) sources[i] = all[i]->from;
    ravel__reduce(all[0]->dtype, all[0]->reduce, sources, w->size, 0, bytes, result);
    for (int32_t i = 0; i < w->size; i++)
        if (all[i]->kind == ALLREDUCE || all[i]->peer == i) memcpy(all[i]->to, result, (size_t)bytes);
    free(result);
}

static void gather_all(const world *w, item **all) {
    for (int32_t r = 0; r < w->size; r++)
        for (int32_t piece = 0; piece < w->size; piece++)
            memmove(all[r]->to + piece * all[0]->bytes, all[piece]->from, (size_t)all[0]->bytes);
}

static void scatter_all(const world *w, item **all) {
    const char *sources[RANKS_MOST];
    int64_t bytes = all[0]->bytes * ravel_dtype_bytes(all[0]->dtype);
    char *result = malloc((size_t)bytes + 1);
    for (int32_t r = 0; r < w->size; r++) {
        for (int32_t i = 0; i < w->size; i++) sources[i] = all[i]->from + r * bytes;
        ravel__reduce(all[0]->dtype, all[0]->reduce, sources, w->size, 0, bytes, result);
        memcpy(all[r]->to, result, (size_t)bytes);
    }
    free(result);
}

/* The next collective of every rank, where all have come. */
static int run_collective(world *w) {
    item *all[RANKS_MOST] = {NULL};
    int64_t number = INT64_MAX;
    for (item *i = w->ranks[0].items; i; i = i->next)
        if (i->kind >= BROADCAST && !i->done && i->number < number) number = i->number;
    for (int32_t r = 0; r < w->size; r++)
        if (!(all[r] = collective_of(&w->ranks[r], number))) return 0;
    for (int32_t r = 1; r < w->size; r++)
        if (all[r]->kind != all[0]->kind || all[r]->bytes != all[0]->bytes || all[r]->dtype != all[0]->dtype ||
            all[r]->reduce != all[0]->reduce || all[r]->peer != all[0]->peer)
            violate("ranks whose collectives differ");
    if (all[0]->kind == BROADCAST) {
        const char *data = all[all[0]->peer]->from;
        for (int32_t r = 0; r < w->size; r++)
            if (r != all[0]->peer) memcpy(all[r]->to, data, (size_t)all[0]->bytes);
    } else if (all[0]->kind == ALLGATHER) {
        gather_all(w, all);
    } else if (all[0]->kind == REDUCE_SCATTER) {
        scatter_all(w, all);
    } else {
        reduce_all(w, all);
    }
    for (int32_t r = 0; r < w->size; r++) all[r]->done = 1;
    return 1;
}

static void sweep(rank *r) {
    for (item **link = &r->items; *link;) {
        item *i = *link;
        if (!i->done) {
            link = &i->next;
            continue;
        }
        *link = i->next;
        free(i);
    }
}

/* Busy while anything that this rank asked for is open, or a group is being described by nobody. */
static int progress(rank *r) {
    world *w = r->in;
    if (mock_nccl.broken) return mock_nccl.broken;
    if (mock_nccl.stuck || w->joined < w->size) return RAVEL__NCCL_PENDING;
    match_messages(w);
    while (run_collective(w)) {}
    sweep(r);
    return r->items ? RAVEL__NCCL_PENDING : 0;
}

static int mock_state(void *comm) {
    pthread_mutex_lock(&lock);
    int code = progress(comm);
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- asking for it -------------------------------------------------------------------------------------- */

static item *push(rank *r, item_kind kind, void *stream) {
    item *i = calloc(1, sizeof *i), **link = &r->items;
    if (!r->grouping && r->items) violate("a call while the last one is pending");
    if (r->has_stream && r->stream != stream) violate("another stream than before");
    r->stream = stream;
    r->has_stream = 1;
    i->kind = kind;
    if (kind >= BROADCAST) {
        i->number = r->collectives++;
        mock_nccl.collectives++;
        mock_nccl.gathers += kind == ALLGATHER;
        mock_nccl.scatters += kind == REDUCE_SCATTER;
    } else {
        mock_nccl.messages++;
        if (!r->grouping) violate("a message outside a group");
    }
    while (*link) link = &(*link)->next;
    *link = i;
    return i;
}

static int mock_group_begin(void *comm) {
    rank *r = comm;
    pthread_mutex_lock(&lock);
    if (r->items) violate("a group while the last call is pending");
    if (r->grouping) violate("a group within a group");
    r->grouping = 1;
    mock_nccl.groups++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int mock_group_end(void *comm) {
    rank *r = comm;
    pthread_mutex_lock(&lock);
    if (!r->grouping) violate("the end of no group");
    r->grouping = 0;
    pthread_mutex_unlock(&lock);
    return RAVEL__NCCL_PENDING;
}

static int mock_send(void *comm, const void *data, int64_t bytes, int32_t peer, void *stream) {
    pthread_mutex_lock(&lock);
    item *i = push(comm, SEND, stream);
    i->from = data;
    i->bytes = bytes;
    i->peer = peer;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int mock_recv(void *comm, void *data, int64_t bytes, int32_t peer, void *stream) {
    pthread_mutex_lock(&lock);
    item *i = push(comm, RECV, stream);
    i->to = data;
    i->bytes = bytes;
    i->peer = peer;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int mock_broadcast(void *comm, void *data, int64_t bytes, int32_t root, void *stream) {
    pthread_mutex_lock(&lock);
    item *i = push(comm, BROADCAST, stream);
    i->from = i->to = data;
    i->bytes = bytes;
    i->peer = root;
    pthread_mutex_unlock(&lock);
    return RAVEL__NCCL_PENDING;
}

static int push_reduction(rank *r, item_kind kind, const void *send, void *recv, int64_t count, int32_t dtype,
                          int32_t reduce, int32_t root, void *stream) {
    pthread_mutex_lock(&lock);
    item *i = push(r, kind, stream);
    i->from = send;
    i->to = recv;
    i->bytes = count;
    i->dtype = dtype;
    i->reduce = reduce;
    i->peer = root;
    int code = r->grouping ? 0 : RAVEL__NCCL_PENDING;
    pthread_mutex_unlock(&lock);
    return code;
}

static int mock_allreduce(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                          void *stream) {
    return push_reduction(comm, ALLREDUCE, send, recv, count, dtype, reduce, -1, stream);
}

static int mock_reduce(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                       int32_t root, void *stream) {
    return push_reduction(comm, REDUCE, send, recv, count, dtype, reduce, root, stream);
}

static int mock_allgather(void *comm, const void *send, void *recv, int64_t bytes, void *stream) {
    return push_reduction(comm, ALLGATHER, send, recv, bytes, RAVEL_U8, -1, -1, stream);
}

static int mock_reduce_scatter(void *comm, const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce,
                               void *stream) {
    return push_reduction(comm, REDUCE_SCATTER, send, recv, count, dtype, reduce, -1, stream);
}

const ravel__nccl mock_nccl_table = {.version = RAVEL__NCCL_VERSION,
                                     .bytes = sizeof(ravel__nccl),
                                     .id = mock_id,
                                     .begin = mock_begin,
                                     .state = mock_state,
                                     .abort = mock_abort,
                                     .describe = mock_describe,
                                     .group_begin = mock_group_begin,
                                     .group_end = mock_group_end,
                                     .send = mock_send,
                                     .recv = mock_recv,
                                     .broadcast = mock_broadcast,
                                     .allreduce = mock_allreduce,
                                     .reduce = mock_reduce,
                                     .allgather = mock_allgather,
                                     .reduce_scatter = mock_reduce_scatter};
