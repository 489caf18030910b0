/* Refit over the caller's own transport, whose send waits for its receive: nothing is buffered, so any two ranks that wait
 * for each other show at once. Random layouts, buffers, and ranks that send and receive. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/refit.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MOST = 7, TENSORS_MOST = 8, VERSIONS = 2 };
static const double deadline = 60;

/* ---- a transport without buffers ------------------------------------------------------------------------ */

typedef struct letter {
    struct letter *next;
    int32_t from, to, tag, taken;
    const void *data;
    int64_t bytes;
} letter;

typedef struct hall {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    letter *first;
} hall;

typedef struct seat {
    hall *hall;
    int32_t rank;
} seat;

static struct timespec until(double seconds) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static ravel_status send_and_wait(void *user, const void *data, int64_t bytes, int32_t peer, int32_t tag,
                                  double timeout, ravel_error *err) {
    seat *s = user;
    hall *h = s->hall;
    letter mine = {NULL, s->rank, peer, tag, 0, data, bytes};
    struct timespec end = until(timeout);
    int code = 0;
    pthread_mutex_lock(&h->lock);
    letter **link = &h->first;
    while (*link) link = &(*link)->next;
    *link = &mine;
    (void)pthread_cond_broadcast(&h->bell);
    while (!mine.taken && code == 0) code = pthread_cond_timedwait(&h->bell, &h->lock, &end);
    for (link = &h->first; *link != &mine;) link = &(*link)->next;
    *link = mine.next;
    pthread_mutex_unlock(&h->lock);
    return mine.taken ? RAVEL_OK : ravel_error_set(err, RAVEL_E_TIMEOUT, "nobody received tag %d", tag);
}

static letter *find(const hall *h, const seat *s, int32_t peer, int32_t tag) {
    letter *l = h->first;
    while (l && (l->taken || l->from != peer || l->to != s->rank || l->tag != tag)) l = l->next;
    return l;
}

static ravel_status receive(void *user, void *data, int64_t bytes, int32_t peer, int32_t tag, double timeout,
                            ravel_error *err) {
    seat *s = user;
    hall *h = s->hall;
    struct timespec end = until(timeout);
    letter *l;
    int code = 0;
    pthread_mutex_lock(&h->lock);
    while (!(l = find(h, s, peer, tag)) && code == 0) code = pthread_cond_timedwait(&h->bell, &h->lock, &end);
    if (l && bytes > 0) memcpy(data, l->data, (size_t)(bytes < l->bytes ? bytes : l->bytes));
    if (l) l->taken = 1;
    (void)pthread_cond_broadcast(&h->bell);
    pthread_mutex_unlock(&h->lock);
    return l ? RAVEL_OK : ravel_error_set(err, RAVEL_E_TIMEOUT, "nothing came with tag %d", tag);
}

/* ---- a random refit ------------------------------------------------------------------------------------- */

typedef struct layout {
    int32_t ranks, senders, receivers; /* ranks 0 .. senders-1 send, the last `receivers` receive; they may overlap */
    int32_t send_tp, receive_tp, tensors, buffers, both;
    int64_t rows;
} layout;

typedef struct run {
    hall hall;
    layout layout;
    ravel_status status[RANKS_MOST];
    ravel_error why[RANKS_MOST];
    int32_t wrong[RANKS_MOST];
} run;

typedef struct member {
    run *run;
    int32_t rank;
} member;

typedef struct side {
    ravel_refit_tensor tensors[TENSORS_MOST];
    char names[TENSORS_MOST][16];
    int32_t count;
} side;

static int make_side(side *s, const layout *l, int32_t tp, int32_t index) {
    *s = (side){.count = l->tensors};
    for (int i = 0; i < l->tensors; i++) {
        ravel_refit_tensor *t = &s->tensors[i];
        (void)snprintf(s->names[i], sizeof s->names[i], "w%d", i);
        *t = (ravel_refit_tensor){.name = s->names[i], .dtype = RAVEL_F32, .ndim = 2, .dims = {l->rows + i * 7, 24}};
        t->parts[i % 2] = tp;
        t->index[i % 2] = index;
        t->data = calloc((size_t)ravel_refit_tensor_elements(t) + 1, 4);
        if (!t->data) return 0;
    }
    return 1;
}

static void fill_side(const side *s, float value) {
    for (int i = 0; i < s->count; i++)
        for (int64_t k = 0; k < ravel_refit_tensor_elements(&s->tensors[i]); k++)
            ((float *)s->tensors[i].data)[k] = value + (float)i;
}

static int32_t count_wrong(const side *s, const ravel_refit *refit, float value) {
    int32_t wrong = 0;
    for (int i = 0; i < s->count; i++) {
        const float *data = ravel_refit_data(refit, i);
        for (int64_t k = 0; k < ravel_refit_tensor_elements(&s->tensors[i]); k++) wrong += data[k] != value + (float)i;
    }
    return wrong;
}

static ravel_status move_versions(member *m, ravel_comm *comm, side *from, side *to, ravel_error *err) {
    const layout *l = &m->run->layout;
    ravel_refit_source source = {.size = sizeof source, .tensors = from->tensors, .count = from->count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to->tensors, .count = to->count};
    ravel_refit_options o;
    ravel_refit *refit = NULL;
    ravel_refit_options_default(&o);
    o.buffer_bytes = 4096;
    o.num_buffers = l->buffers;
    int sends = from->count > 0, receives = to->count > 0;
    ravel_status status = ravel_refit_create(comm, sends ? &source : NULL, receives ? &sink : NULL, &o, &refit, err);
    for (int v = 1; v <= VERSIONS && status == RAVEL_OK; v++) {
        if (sends) fill_side(from, (float)(100 * v));
        status = ravel_refit_update(refit, sends ? v : 0, NULL, err);
        if (status == RAVEL_OK && receives) m->run->wrong[m->rank] += count_wrong(to, refit, (float)(100 * v));
    }
    ravel_refit_free(refit);
    return status;
}

static void *run_rank(void *argument) {
    member *m = argument;
    run *r = m->run;
    const layout *l = &r->layout;
    seat mine_seat = {&r->hall, m->rank};
    ravel_comm_hooks h = {.size = sizeof h, .user = &mine_seat, .rank = m->rank, .ranks = l->ranks};
    side from = {.count = 0}, to = {.count = 0};
    ravel_comm_options o;
    ravel_comm *comm = NULL;
    h.send = send_and_wait, h.recv = receive;
    ravel_comm_options_default(&o);
    o.timeout = deadline;
    ravel_status status = ravel_comm_callbacks(&h, &o, &comm, &r->why[m->rank]);
    int32_t first = l->ranks - l->receivers;
    if (m->rank < l->senders && !make_side(&from, l, l->send_tp, m->rank % l->send_tp)) status = RAVEL_E_MEMORY;
    if (m->rank >= first && !make_side(&to, l, l->receive_tp, (m->rank - first) % l->receive_tp))
        status = RAVEL_E_MEMORY;
    if (status == RAVEL_OK) status = move_versions(m, comm, &from, &to, &r->why[m->rank]);
    r->status[m->rank] = status;
    ravel_comm_free(comm);
    for (int i = 0; i < TENSORS_MOST; i++) free(from.tensors[i].data), free(to.tensors[i].data);
    return NULL;
}

static layout random_layout(ravel__rng *rng) {
    layout l = {.senders = 1 + (int32_t)ravel__rng_below(rng, 3), .receivers = 1 + (int32_t)ravel__rng_below(rng, 4)};
    int32_t both = (int32_t)ravel__rng_below(rng, 3) == 0 ? 1 : 0; /* the last sender is the first receiver */
    l.ranks = l.senders + l.receivers - both;
    l.send_tp = ravel__rng_below(rng, 2) ? l.senders : 1;
    l.receive_tp = ravel__rng_below(rng, 2) ? l.receivers : 1;
    l.buffers = 1 + (int32_t)ravel__rng_below(rng, 3);
    l.tensors = 2 + (int32_t)ravel__rng_below(rng, TENSORS_MOST - 2);
    l.rows = 24 + (int64_t)ravel__rng_below(rng, 300);
    l.both = both;
    return l;
}

static void try_layout(const layout *l, int number) {
    run r = {.layout = *l};
    member members[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    pthread_mutex_init(&r.hall.lock, NULL);
    pthread_cond_init(&r.hall.bell, NULL);
    for (int i = 0; i < l->ranks; i++) {
        members[i] = (member){&r, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, run_rank, &members[i]), 0);
    }
    for (int i = 0; i < l->ranks; i++) (void)pthread_join(threads[i], NULL);
    for (int i = 0; i < l->ranks; i++)
        if (r.status[i] != RAVEL_OK || r.wrong[i] > 0)
            check_fail(__FILE__, __LINE__,
                       "trial %d, %d senders (tp %d), %d receivers (tp %d), both %d, %d buffers: "
                       "rank %d: %s, %d wrong",
                       number, l->senders, l->send_tp, l->receivers, l->receive_tp, l->both, l->buffers, i,
                       r.why[i].message, r.wrong[i]);
    pthread_cond_destroy(&r.hall.bell);
    pthread_mutex_destroy(&r.hall.lock);
}

TEST(refit_over_a_transport_whose_send_waits_for_its_receive) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int i = 0; i < (int)check_scale(40, 400); i++) {
        layout l = random_layout(&rng);
        try_layout(&l, i);
    }
}

/* ---- test never waits ----------------------------------------------------------------------------------- */

typedef struct pair_end {
    hall *hall;
    int32_t rank;
    ravel_status status;
    ravel_error why;
    int32_t early; /* tests that said done before the peer was there */
} pair_end;

/* Both begin a send and a receive, test, and only then wait. */
static void *run_end(void *argument) {
    pair_end *e = argument;
    seat mine_seat = {e->hall, e->rank};
    ravel_comm_hooks h = {.size = sizeof h, .user = &mine_seat, .rank = e->rank, .ranks = 2, .send = send_and_wait};
    int32_t mine[3] = {e->rank + 1, e->rank + 2, e->rank + 3}, other[3] = {0}, done = 0;
    ravel_comm *comm = NULL;
    ravel_request *requests[4] = {NULL};
    h.recv = receive;
    e->status = ravel_comm_callbacks(&h, NULL, &comm, &e->why);
    for (int i = 0; i < 2 && !e->status; i++) {
        e->status = ravel_comm_isend(comm, &mine[i], 1, RAVEL_I32, 1 - e->rank, i, &requests[2 * i], &e->why);
        if (!e->status)
            e->status = ravel_comm_irecv(comm, &other[i], 1, RAVEL_I32, 1 - e->rank, i, &requests[2 * i + 1], &e->why);
    }
    for (int i = 0; i < 100 && !e->status; i++) {
        e->status = ravel_request_test(requests[i % 4], &done, &e->why);
        e->early += done;
    }
    if (!e->status) e->status = ravel_request_wait_all(requests, 4, &e->why);
    if (!e->status && (other[0] != 2 - e->rank || other[1] != 3 - e->rank)) e->status = RAVEL_E_CHECKSUM;
    ravel_comm_free(comm);
    return NULL;
}

TEST(comm_callbacks_test_never_waits) {
    hall h = {.first = NULL};
    pair_end ends[2] = {{.hall = &h}, {.hall = &h, .rank = 1}};
    pthread_t threads[2];
    pthread_mutex_init(&h.lock, NULL);
    pthread_cond_init(&h.bell, NULL);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_create(&threads[i], NULL, run_end, &ends[i]), 0);
    for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ends[i].status, &ends[i].why);
        CHECK_EQ(ends[i].early, 0);
    }
    pthread_cond_destroy(&h.bell);
    pthread_mutex_destroy(&h.lock);
}
