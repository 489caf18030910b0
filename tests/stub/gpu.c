#include "tests/stub/gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int stub_plant(const char *fault) {
    const char *text = getenv("RAVEL_STUB_PLANT");
    return text && strcmp(text, fault) == 0;
}

void stub_dawdle(const char *what) {
    static _Thread_local uint32_t random = 1;
    const char *text = getenv("RAVEL_STUB_SLOW");
    if (!text || strcmp(text, what) != 0) return;
    random = random * 1664525 + 1013904223;
    (void)nanosleep(&(struct timespec){0, (long)(random >> 13)}, NULL);
}

int32_t stub_gpus(void) {
    const char *text = getenv("RAVEL_STUB_GPUS");
    return text ? (int32_t)strtol(text, NULL, 10) : 1;
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

enum { PAGE = 4096 };
static const size_t region_bytes = (size_t)1 << 34; /* of addresses; pages come when they are touched */

static struct {
    pthread_mutex_t lock;
    int file;
    char *closed, *open;
    size_t used, live, peak;
} region = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *map(int protection) {
    void *base = mmap(NULL, region_bytes, protection, MAP_SHARED | MAP_NORESERVE, region.file, 0);
    return base == MAP_FAILED ? NULL : base;
}

static int make_region(void) {
    region.file = memfd_create("stub", MFD_CLOEXEC);
    if (region.file < 0 || ftruncate(region.file, (off_t)region_bytes)) return 0;
    region.open = map(PROT_READ | PROT_WRITE);
    region.closed = map(PROT_NONE);
    return region.open && region.closed;
}

/* Addresses are used once, so that a block is closed to later blocks' users after its release too, until nothing is live. */
static void *take(size_t bytes) {
    if (!region.closed && !make_region()) return NULL;
    if (bytes > region_bytes - region.used) return NULL;
    char *block = region.closed + region.used;
    region.used += bytes;
    region.live += bytes;
    if (region.live > region.peak) region.peak = region.live;
    return block;
}

void *stub_inside(const void *address) {
    union { /* the caller says whether it is written */
        const void *given;
        char *at;
    } u = {address};
    return u.at >= region.closed && u.at < region.closed + region_bytes ? u.at - region.closed + region.open : u.at;
}

void *stub_block(size_t bytes) {
    (void)pthread_mutex_lock(&region.lock);
    void *block = take(pages(bytes));
    (void)pthread_mutex_unlock(&region.lock);
    if (block) memset(stub_inside(block), 0xff, bytes);
    return block;
}

void stub_block_free(void *block, size_t bytes) {
    if (!block) return;
    (void)pthread_mutex_lock(&region.lock);
    (void)fallocate(region.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (char *)block - region.closed,
                    (off_t)pages(bytes));
    region.live -= pages(bytes);
    if (!region.live) region.used = 0;
    (void)pthread_mutex_unlock(&region.lock);
}

void stub_block_bytes(int64_t *total, int64_t *live, int64_t *peak) {
    (void)pthread_mutex_lock(&region.lock);
    *total = (int64_t)region_bytes;
    *live = (int64_t)region.live;
    *peak = (int64_t)region.peak;
    (void)pthread_mutex_unlock(&region.lock);
}

/* ---- streams --------------------------------------------------------------------------------------------- */

typedef struct operation {
    struct operation *next;
    void (*work)(void *arguments);
    max_align_t arguments[];
} operation;

struct stub_stream {
    pthread_mutex_t lock;
    pthread_cond_t pushed_one, did_one;
    pthread_t thread;
    operation *head, **tail;
    int64_t pushed, done;
    int ending;
    stub_stream *next; /* all that ever were: an event may name one that was closed */
};

static stub_stream *streams;
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

static void *run_stream(void *user) {
    stub_stream *s = user;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->head && !s->ending) (void)pthread_cond_wait(&s->pushed_one, &s->lock);
        operation *o = s->head;
        if (!o) break;
        s->head = o->next;
        if (!s->head) s->tail = &s->head;
        (void)pthread_mutex_unlock(&s->lock);
        o->work(o->arguments);
        free(o);
        (void)pthread_mutex_lock(&s->lock);
        s->done++;
        (void)pthread_cond_broadcast(&s->did_one);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

stub_stream *stub_stream_open(void) {
    stub_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->tail = &s->head;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->pushed_one, NULL);
    (void)pthread_cond_init(&s->did_one, NULL);
    if (pthread_create(&s->thread, NULL, run_stream, s)) {
        free(s);
        return NULL;
    }
    (void)pthread_mutex_lock(&streams_lock);
    s->next = streams;
    streams = s;
    (void)pthread_mutex_unlock(&streams_lock);
    return s;
}

void stub_stream_close(stub_stream *s) {
    (void)pthread_mutex_lock(&s->lock);
    s->ending = 1;
    (void)pthread_cond_broadcast(&s->pushed_one);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
}

void stub_push(stub_stream *s, void (*work)(void *arguments), const void *arguments, size_t bytes) {
    operation *o = malloc(sizeof *o + bytes);
    if (!o) abort();
    *o = (operation){.work = work};
    if (bytes) memcpy(o->arguments, arguments, bytes);
    (void)pthread_mutex_lock(&s->lock);
    *s->tail = o;
    s->tail = &o->next;
    s->pushed++;
    (void)pthread_cond_signal(&s->pushed_one);
    (void)pthread_mutex_unlock(&s->lock);
}

int64_t stub_pushed(stub_stream *s) {
    (void)pthread_mutex_lock(&s->lock);
    int64_t pushed = s->pushed;
    (void)pthread_mutex_unlock(&s->lock);
    return pushed;
}

int stub_reached(stub_stream *s, int64_t seq, int milliseconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&s->lock);
    int code = 0;
    while (s->done < seq && milliseconds && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&s->did_one, &s->lock, &until);
    int reached = s->done >= seq;
    (void)pthread_mutex_unlock(&s->lock);
    return reached;
}

/* ---- the driver: what the trainer's communicators need --------------------------------------------------- */

typedef struct mark {
    stub_stream *stream; /* NULL: not recorded */
    int64_t seq;
} mark;

static void wait_for_mark(void *user) {
    mark *m = user;
    while (!stub_reached(m->stream, m->seq, 1000)) {}
}

typedef struct move {
    void *to;
    const void *from;
    size_t bytes;
} move;

static void run_move(void *user) {
    move *m = user;
    memcpy(stub_inside(m->to), stub_inside(m->from), m->bytes);
}

static int gpu_open(int32_t index, void **inside, ravel_device_info *info) {
    if (index >= stub_gpus()) return 1;
    *inside = &region;
    (void)snprintf(info->model, sizeof info->model, "stub");
    info->total_bytes = (int64_t)region_bytes;
    return 0;
}

static void gpu_close(void *inside) {
    (void)inside;
}

static int gpu_free_bytes(void *inside, int64_t *bytes) {
    (void)inside;
    *bytes = (int64_t)region_bytes;
    return 0;
}

static ravel_status gpu_describe(int code, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "stub code %d", code);
    return RAVEL_E_DEVICE;
}

static int gpu_copy(void *inside, void *to, const void *from, size_t bytes, void *stream) {
    (void)inside;
    stub_push(stream, run_move, &(move){to, from, bytes}, sizeof(move));
    return 0;
}

static int gpu_stream_create(void *inside, void **stream) {
    (void)inside;
    *stream = stub_stream_open();
    return *stream ? 0 : 1;
}

static void gpu_stream_free(void *inside, void *stream) {
    (void)inside;
    stub_stream_close(stream);
}

static int gpu_stream_test(void *inside, void *stream) {
    (void)inside;
    return stub_reached(stream, stub_pushed(stream), 0) ? 0 : RAVEL__DRIVER_PENDING;
}

/* A mark, and when it was reached. The stream's thread may write it after the event was freed: the last of both frees it. */
typedef struct stub_event {
    mark at; /* first: it is copied by itself */
    atomic_int users;
    double when;
} stub_event;

static void let_go(stub_event *e) {
    if (atomic_fetch_sub(&e->users, 1) == 1) free(e);
}

typedef struct reach {
    stub_event *event;
} reach;

static void run_reach(void *arguments) {
    stub_event *e = ((reach *)arguments)->event;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    e->when = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    let_go(e);
}

static int gpu_event_create(void *inside, void **out) {
    (void)inside;
    stub_event *e = calloc(1, sizeof *e);
    if (e) atomic_init(&e->users, 1);
    *out = e;
    return e ? 0 : 1;
}

static void gpu_event_free(void *inside, void *e) {
    (void)inside;
    if (e) let_go(e);
}

static int gpu_event_record(void *inside, void *recorded, void *stream) {
    stub_event *e = recorded;
    (void)inside;
    atomic_fetch_add(&e->users, 1);
    stub_push(stream, run_reach, &(reach){e}, sizeof(reach));
    e->at = (mark){stream, stub_pushed(stream)};
    return 0;
}

static int gpu_event_elapsed(void *inside, void *from, void *to, double *seconds) {
    (void)inside;
    *seconds = ((stub_event *)to)->when - ((stub_event *)from)->when;
    return 0;
}

static int gpu_event_order(void *inside, void *event, void *stream) {
    (void)inside;
    const mark *m = event;
    if (m->stream && m->stream != stream && !stub_plant("events")) stub_push(stream, wait_for_mark, m, sizeof *m);
    return 0;
}

static int gpu_event_test(void *inside, void *event) {
    (void)inside;
    const mark *m = event;
    return !m->stream || stub_reached(m->stream, m->seq, 0) ? 0 : RAVEL__DRIVER_PENDING;
}

const ravel__driver stub_gpu_driver = {.version = RAVEL__DRIVER_VERSION,
                                       .bytes = sizeof(ravel__driver),
                                       .kind = "cuda",
                                       .open = gpu_open,
                                       .close = gpu_close,
                                       .free_bytes = gpu_free_bytes,
                                       .describe = gpu_describe,
                                       .copy = gpu_copy,
                                       .stream_create = gpu_stream_create,
                                       .stream_free = gpu_stream_free,
                                       .stream_test = gpu_stream_test,
                                       .event_create = gpu_event_create,
                                       .event_free = gpu_event_free,
                                       .event_record = gpu_event_record,
                                       .event_order = gpu_event_order,
                                       .event_test = gpu_event_test,
                                       .event_elapsed = gpu_event_elapsed};
