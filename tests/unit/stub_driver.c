#include "stub_driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

stub_state stub = {.fail_after = -1};

void stub_reset(void) {
    memset(&stub, 0, sizeof stub);
    stub.fail_after = -1;
}

void stub_fail(stub_call call, int32_t after, int32_t code) {
    stub.fail_call = (int32_t)call;
    stub.fail_after = after;
    stub.fail_code = code;
}

/* Every call of the driver holds it: several threads use a device at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void unlock(const int *unused) {
    (void)unused;
    (void)pthread_mutex_unlock(&lock);
}
#define LOCKED int held __attribute__((cleanup(unlock), unused)) = pthread_mutex_lock(&lock)

static int gate(stub_call call) {
    stub.calls[call]++;
    if (stub.fail_after < 0 || stub.fail_call != (int32_t)call) return 0;
    return stub.fail_after-- == 0 ? stub.fail_code : 0;
}

/* ---- queues --------------------------------------------------------------------------------------------- */

typedef struct queue queue;
typedef struct event {
    queue *where; /* NULL: not recorded */
    int64_t seq;  /* of the operation there */
    int freed;
} event;

typedef struct operation {
    struct operation *next;
    enum { COPY, FILL, WAIT, MARK, ROWS, COUNT, CAST, COMPARE } kind;
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
    queue *other; /* WAIT */
    int64_t seq;  /* WAIT: in `other` */
    union {
        ravel__mask_job count;
        ravel__cast_job cast;
        ravel__compare_job compare;
    } job;
    unsigned char kept[]; /* bytes that were plain host memory */
} operation;

struct queue {
    operation *head, **tail;
    int64_t queued, done;
    queue *next; /* all that ever were: events may name one that was freed */
};
static queue *queues;

/* What the driver handed out; copies from anywhere else read their source at once, as CUDA does. */
enum { KNOWN = 4096 };
static struct known {
    const char *from;
    size_t bytes;
} known[KNOWN];

static void know(const void *array, size_t bytes) {
    for (int i = 0; i < KNOWN; i++)
        if (!known[i].from) {
            known[i] = (struct known){array, bytes};
            return;
        }
    abort();
}

static void forget(const void *array) {
    for (int i = 0; i < KNOWN; i++)
        if (known[i].from == array) known[i].from = NULL;
}

static int is_known(const void *array) {
    for (int i = 0; i < KNOWN; i++)
        if (known[i].from && (const char *)array >= known[i].from &&
            (const char *)array < known[i].from + known[i].bytes)
            return 1;
    return 0;
}

static queue fallback, per_thread; /* the default streams: CUDA's handles 0 and 1, and 2 */

static queue *queue_of(void *stream) {
    uintptr_t handle = (uintptr_t)stream;
    queue *q = handle > 2 ? stream : handle == 2 ? &per_thread : &fallback;
    if (!q->tail) q->tail = &q->head;
    return q;
}

static operation *push(void *stream, int kind, size_t kept) {
    queue *q = queue_of(stream);
    operation *o = calloc(1, sizeof *o + kept);
    if (!o) abort();
    o->kind = kind;
    *q->tail = o;
    q->tail = &o->next;
    q->queued++;
    return o;
}

static int run_until(queue *q, int64_t seq);

static int run_one(operation *o) {
    ravel__rows rows = {(const void *)o->kept, NULL};
    switch (o->kind) {
    case COPY: memcpy(o->to, o->from ? o->from : o->kept, o->bytes); break;
    case FILL: memset(o->to, o->value, o->bytes); break;
    case WAIT: return run_until(o->other, o->seq);
    case ROWS: return ravel__host_driver.rows(NULL, &rows, NULL);
    case COUNT: return ravel__host_driver.count_mask(NULL, &o->job.count, NULL);
    case CAST: return ravel__host_driver.cast(NULL, &o->job.cast, NULL);
    case COMPARE: return ravel__host_driver.compare(NULL, &o->job.compare, NULL);
    case MARK: break;
    }
    return 0;
}

static int run_until(queue *q, int64_t seq) {
    while (q->done < seq && q->head) {
        operation *o = q->head;
        (void)run_one(o);
        q->head = o->next;
        if (!q->head) q->tail = &q->head;
        q->done++;
        free(o);
    }
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static int stub_open(int32_t index, void **inside, ravel_device_info *info) {
    LOCKED;
    if (index > 1) return STUB_REFUSED;
    *inside = &stub;
    (void)snprintf(info->model, sizeof info->model, "stub");
    info->total_bytes = 1 << 20;
    return gate(STUB_OPEN);
}

static void stub_close(void *inside) {
    LOCKED;
    (void)inside;
    run_until(queue_of(NULL), INT64_MAX);
}

static int stub_free_bytes(void *inside, int64_t *bytes) {
    LOCKED;
    (void)inside;
    *bytes = 1 << 19;
    return 0;
}

static ravel_status stub_describe(int code, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "stub code %d", code);
    return code == STUB_FULL ? RAVEL_E_MEMORY : code == STUB_FATAL ? RAVEL_E_DEAD : RAVEL_E_DEVICE;
}

static int stub_alloc(void *inside, int32_t kind, size_t bytes, void **array) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_ALLOC);
    if (code) return code;
    stub.live++;
    code = ravel__host_driver.alloc(NULL, kind, bytes, array);
    if (!code && kind != RAVEL_HOST) know(*array, bytes);
    return code;
}

static int stub_release(void *inside, int32_t kind, void *array) {
    LOCKED;
    (void)inside;
    stub.live--;
    forget(array);
    (void)gate(STUB_RELEASE);
    return ravel__host_driver.release(NULL, kind, array);
}

static int stub_copy(void *inside, void *to, const void *from, size_t bytes, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_COPY);
    if (code) return code;
    stub.copied += (int64_t)bytes;
    operation *o = push(stream, COPY, is_known(from) ? 0 : bytes);
    o->to = to;
    o->from = is_known(from) ? from : NULL;
    o->bytes = bytes;
    if (!o->from) memcpy(o->kept, from, bytes);
    return 0;
}

static int stub_fill(void *inside, void *to, uint8_t value, size_t bytes, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_FILL);
    if (code) return code;
    operation *o = push(stream, FILL, 0);
    o->to = to;
    o->value = value;
    o->bytes = bytes;
    return 0;
}

static int stub_stream_create(void *inside, void **stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_STREAM);
    if (code) return code;
    queue *q = calloc(1, sizeof *q);
    if (!q) abort();
    q->next = queues;
    queues = q;
    *stream = q;
    return 0;
}

static void stub_stream_free(void *inside, void *stream) {
    LOCKED;
    (void)inside;
    run_until(queue_of(stream), INT64_MAX);
}

static int stub_stream_test(void *inside, void *stream) {
    LOCKED;
    (void)inside;
    if (stub.stuck) return RAVEL__DRIVER_PENDING;
    queue *q = queue_of(stream);
    if (q->done == q->queued) return 0;
    run_until(q, INT64_MAX);
    return RAVEL__DRIVER_PENDING;
}

static int stub_event_create(void *inside, void **out) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_EVENT);
    if (!code) *out = calloc(1, sizeof(event));
    return code;
}

static void stub_event_free(void *inside, void *out) {
    LOCKED;
    (void)inside;
    free(out);
}

static int stub_event_record(void *inside, void *out, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_RECORD);
    if (code) return code;
    event *e = out;
    (void)push(stream, MARK, 0);
    e->where = queue_of(stream);
    e->seq = e->where->queued;
    return 0;
}

static int stub_event_order(void *inside, void *in, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_ORDER);
    if (code) return code;
    event *e = in;
    if (!e->where || e->where == queue_of(stream)) return 0;
    operation *o = push(stream, WAIT, 0);
    o->other = e->where;
    o->seq = e->seq;
    return 0;
}

static int stub_event_test(void *inside, void *in) {
    LOCKED;
    (void)inside;
    event *e = in;
    if (stub.stuck) return RAVEL__DRIVER_PENDING;
    if (!e->where || e->where->done >= e->seq) return 0;
    run_until(e->where, e->seq);
    return RAVEL__DRIVER_PENDING;
}

static int stub_event_elapsed(void *inside, void *from, void *to, double *seconds) {
    LOCKED;
    (void)inside, (void)from, (void)to;
    *seconds = 1;
    return 0;
}

static int stub_share(void *inside, size_t *bytes, int *fd, void **array, void **handle) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_SHARE);
    if (!code) code = ravel__host_driver.share(NULL, bytes, fd, array, handle);
    if (!code) know(*array, *bytes);
    return code;
}

static int stub_import(void *inside, int fd, size_t *bytes, int32_t writable, void **array, void **handle) {
    LOCKED;
    (void)inside;
    int code = ravel__host_driver.import(NULL, fd, bytes, writable, array, handle);
    if (!code) know(*array, *bytes);
    return code;
}

static void stub_unshare(void *inside, void *array, size_t bytes, void *handle) {
    LOCKED;
    forget(array);
    ravel__host_driver.unshare(inside, array, bytes, handle);
}

static int stub_rows(void *inside, const ravel__rows *rows, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_ROWS);
    if (code) return code;
    if ((rows->device_side == NULL) != (rows->block->bytes <= RAVEL__ROWS_IN_LAUNCH)) return STUB_REFUSED;
    operation *o = push(stream, ROWS, (size_t)rows->block->bytes);
    memcpy(o->kept, rows->block, (size_t)rows->block->bytes);
    return 0;
}

static int stub_count_mask(void *inside, const ravel__mask_job *job, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_COUNT);
    if (!code) push(stream, COUNT, 0)->job.count = *job;
    return code;
}

static int stub_cast(void *inside, const ravel__cast_job *job, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_CAST);
    if (!code) push(stream, CAST, 0)->job.cast = *job;
    return code;
}

static int stub_compare(void *inside, const ravel__compare_job *job, void *stream) {
    LOCKED;
    (void)inside;
    int code = gate(STUB_COMPARE);
    if (!code) push(stream, COMPARE, 0)->job.compare = *job;
    return code;
}

const ravel__driver stub_driver = {
    .version = RAVEL__DRIVER_VERSION,
    .bytes = sizeof(ravel__driver),
    .kind = "stub",
    .open = stub_open,
    .close = stub_close,
    .free_bytes = stub_free_bytes,
    .describe = stub_describe,
    .alloc = stub_alloc,
    .release = stub_release,
    .copy = stub_copy,
    .fill = stub_fill,
    .stream_create = stub_stream_create,
    .stream_free = stub_stream_free,
    .stream_test = stub_stream_test,
    .event_create = stub_event_create,
    .event_free = stub_event_free,
    .event_record = stub_event_record,
    .event_order = stub_event_order,
    .event_test = stub_event_test,
    .event_elapsed = stub_event_elapsed,
    .share = stub_share,
    .import = stub_import,
    .unshare = stub_unshare,
    .rows = stub_rows,
    .count_mask = stub_count_mask,
    .cast = stub_cast,
    .compare = stub_compare,
};
