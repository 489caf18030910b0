#include "tests/unit/fake_wire.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct fake_frame {
    struct fake_frame *next;
    int32_t from, bytes;
    char data[];
} fake_frame;

struct fake_net {
    fake_world *world;
    int32_t rank, reported;
    ravel__wire_events events;
    fake_frame *first, **last;
    ravel__transfer *sends, *receives; /* linked through inside */
    ravel__transfer *taken;            /* sends whose bytes their receivers have; the owner's next poll ends them */
    int64_t frames;
    char *gone; /* [size] why a rank is lost, by the first letter: l(ost), r(eported) */
    uint64_t state;
};

void fake_world_init(fake_world *w, int32_t size) {
    memset(w, 0, sizeof *w);
    w->size = size;
    w->nets = calloc((size_t)size, sizeof *w->nets);
    pthread_mutex_init(&w->lock, NULL);
}

void fake_world_free(fake_world *w) {
    pthread_mutex_destroy(&w->lock);
    free(w->nets);
}

static fake_net *net_of(ravel__net *net) {
    return (fake_net *)(void *)net;
}

static void fake_sleep(ravel__net *net, int32_t aimed, int64_t ns) {
    struct timespec nap = {0, ns < 300000 ? ns : 300000};
    (void)net, (void)aimed;
    (void)nanosleep(&nap, NULL);
}

static int fake_wire_open(ravel__wire_open *how, ravel__net **out, int32_t *rank, int32_t *size) {
    const ravel_comm_options *o = how->options;
    fake_world *w = (fake_world *)(uintptr_t)o->module;
    if (w->open_code) {
        (void)snprintf(how->why, sizeof how->why, "the cable is out (%d)", w->open_code);
        return w->open_code;
    }
    fake_net *n = calloc(1, sizeof *n);
    n->world = w, n->rank = o->rank, n->events = how->events, n->last = &n->first;
    n->gone = calloc((size_t)w->size, 1);
    n->state = (uint64_t)o->rank * 77 + 1;
    pthread_mutex_lock(&w->lock);
    w->nets[o->rank] = n;
    w->nets_open++;
    __atomic_add_fetch(&w->joined, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&w->lock);
    while (!w->apart && __atomic_load_n(&w->joined, __ATOMIC_ACQUIRE) < w->size)
        fake_sleep(NULL, 0, 300000); /* the first meeting */
    *out = (ravel__net *)(void *)n, *rank = o->rank, *size = w->size;
    return 0;
}

static void fake_close(ravel__net *net, int32_t broken) {
    fake_net *n = net_of(net);
    fake_world *w = n->world;
    (void)broken;
    pthread_mutex_lock(&w->lock);
    w->nets[n->rank] = NULL;
    w->nets_open--;
    if (n->frames > w->most_frames) w->most_frames = n->frames;
    while (n->first) {
        fake_frame *f = n->first;
        n->first = f->next;
        free(f);
    }
    pthread_mutex_unlock(&w->lock);
    free(n->gone);
    free(n);
}

static int fake_frame_send(ravel__net *net, int32_t peer, const void *head, int32_t head_bytes, const void *body,
                           int32_t body_bytes) {
    fake_net *n = net_of(net);
    fake_world *w = n->world;
    if (w->frame_code) return w->frame_code;
    fake_frame *f = malloc(sizeof *f + (size_t)(head_bytes + body_bytes));
    f->next = NULL, f->from = n->rank, f->bytes = head_bytes + body_bytes;
    memcpy(f->data, head, (size_t)head_bytes);
    if (body_bytes) memcpy(f->data + head_bytes, body, (size_t)body_bytes);
    pthread_mutex_lock(&w->lock);
    w->frames++;
    w->frame_bytes += f->bytes;
    n->frames++;
    fake_net *to = w->cut_from != w->cut_to && n->rank == w->cut_from && peer == w->cut_to ? NULL : w->nets[peer];
    if (to)
        *to->last = f, to->last = &f->next;
    else
        free(f);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static int64_t fake_given(const ravel__net *net, int32_t peer) {
    (void)net, (void)peer;
    return 0;
}

static int begin_transfer(ravel__transfer **list, ravel__transfer *t) {
    t->state = RAVEL__TRANSFER_RUNS;
    t->inside = *list;
    *list = t;
    return 0;
}

static int fake_send(ravel__net *net, ravel__transfer *t) {
    fake_net *n = net_of(net);
    pthread_mutex_lock(&n->world->lock);
    (void)begin_transfer(&n->sends, t);
    pthread_mutex_unlock(&n->world->lock);
    return 0;
}

static int fake_recv(ravel__net *net, ravel__transfer *t) {
    fake_net *n = net_of(net);
    pthread_mutex_lock(&n->world->lock);
    (void)begin_transfer(&n->receives, t);
    pthread_mutex_unlock(&n->world->lock);
    return 0;
}

static void take_out(ravel__transfer **list, ravel__transfer *t) {
    while (*list && *list != t) list = (ravel__transfer **)(void *)&(*list)->inside;
    if (*list) *list = t->inside;
}

static int fake_cancel(ravel__net *net, ravel__transfer *t) {
    fake_net *n = net_of(net);
    if (n->world->stuck) return 0;
    pthread_mutex_lock(&n->world->lock);
    take_out(&n->sends, t);
    take_out(&n->receives, t);
    take_out(&n->taken, t);
    *t = (ravel__transfer){0};
    pthread_mutex_unlock(&n->world->lock);
    return 1;
}

/* The receiver copies, under the lock: nothing moves before both ends are there. A transfer's state is its owner's, as
 * on a real wire: it changes in the owner's poll. */
static void move_transfers(fake_net *n) {
    fake_world *w = n->world;
    for (ravel__transfer *s = n->taken, *next; s; s = next) {
        next = s->inside;
        s->state = RAVEL__TRANSFER_DONE;
    }
    n->taken = NULL;
    for (ravel__transfer *r = n->receives, *next; r && !w->stuck; r = next) {
        next = r->inside;
        fake_net *from = w->nets[r->peer];
        ravel__transfer *s = from ? from->sends : NULL;
        while (s && (s->peer != n->rank || s->token != r->token)) s = s->inside;
        if (!s) continue;
        memcpy(r->data, s->data, (size_t)r->bytes);
        w->transfers++;
        w->transfer_bytes += r->bytes;
        take_out(&from->sends, s);
        take_out(&n->receives, r);
        r->state = RAVEL__TRANSFER_DONE;
        s->inside = from->taken;
        from->taken = s;
    }
}

/* The next frame; where the world reorders, of a random peer, each peer's in order. */
static fake_frame *next_frame(fake_net *n) {
    fake_frame **link = &n->first;
    if (!*link) return NULL;
    if (n->world->reorder) {
        int32_t from = -1, skip = (int32_t)(ravel__mix64(n->state++) % 3);
        for (fake_frame *f = n->first; f && skip >= 0; f = f->next) from = f->from, skip--;
        while ((*link)->from != from) link = &(*link)->next;
    }
    fake_frame *f = *link;
    *link = f->next;
    if (n->last == &f->next) n->last = link;
    return f;
}

static int fake_poll(ravel__net *net, char *why) {
    fake_net *n = net_of(net);
    fake_world *w = n->world;
    (void)snprintf(why, 480, "the cable is out (%d)", w->poll_code);
    if (w->poll_code) return w->poll_code;
    pthread_mutex_lock(&w->lock);
    move_transfers(n);
    for (fake_frame *f = next_frame(n); f; f = next_frame(n)) {
        pthread_mutex_unlock(&w->lock);
        n->events.frame(n->events.user, f->from, f->data, f->bytes);
        free(f);
        pthread_mutex_lock(&w->lock);
    }
    for (int32_t r = 0; r < w->size && w->any_gone; r++) {
        if (n->gone[r] != 'l') continue;
        n->gone[r] = 'r';
        pthread_mutex_unlock(&w->lock);
        n->events.lost(n->events.user, r, "the cable is out");
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return 0;
}

void fake_lose(fake_world *w, int32_t rank, const char *why) {
    (void)why;
    pthread_mutex_lock(&w->lock);
    w->any_gone = 1;
    for (int32_t r = 0; r < w->size; r++)
        if (w->nets[r] && r != rank) w->nets[r]->gone[rank] = 'l';
    pthread_mutex_unlock(&w->lock);
}

/* clang-format off */
#define WIRE(tells)                                                                                           \
    {                                                                                                         \
        .version = RAVEL__WIRE_VERSION, .bytes = sizeof(ravel__wire), .name = "wire", .frame_most = 8192,     \
        .tells_lost = (tells), .open = fake_wire_open, .close = fake_close, .frame = fake_frame_send,         \
        .given = fake_given, .gone = fake_given, .send = fake_send, .recv = fake_recv, .cancel = fake_cancel, \
        .poll = fake_poll, .sleep = fake_sleep                                                                \
    }
/* clang-format on */
const ravel__wire fake_wire = WIRE(1);
static const ravel__wire quiet_wire = WIRE(0);

ravel_status fake_open(fake_world *w, int32_t rank, double timeout, ravel_comm **comm, ravel_error *err) {
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.timeout = timeout;
    o.rank = rank;
    o.module = (const char *)(uintptr_t)w;
    return ravel__remote_open(w->quiet ? &quiet_wire : &fake_wire, &o, w->apart ? -1 : 0, comm, err);
}
