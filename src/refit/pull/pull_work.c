/* The threads of one stage. A worker takes a task (slices of one sender), requests it, and receives the slices in the
 * requested order. A cursor determines what every message must be; any other message, or a wrong hash, ends the stage.
 * */
#include "refit/pull/pull.h"
#include "refit/wire/frame.h"

#include "base/assert.h"
#include "base/clock.h"
#include "comm/machine.h"
#include "refit/model/bytes.h"
#include "base/xxh3.h"
#include "refit/pull/dial.h"
#include "refit/wire/team.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TASK_LEAST = 4 << 20 /* bytes of a task where there are many */, BLOCK_MOST = 64 << 20, HASHES_MOST = 64 << 20 };

/* ---- one worker ----------------------------------------------------------------------------------------- */

typedef struct worker {
    ravel_puller *puller;
    int32_t number;
    ravel__dial dial;
    int32_t sender; /* that the link goes to; -1: none */
    const ravel__pull_task *task;
    /* cursor */
    int64_t slice; /* of the task */
    int64_t first; /* element of it */
    uint64_t frames;
    int64_t block; /* of a slice that comes by blocks */
    ravel__hashes hashes;
    int32_t has_hashes;
    /* memory */
    unsigned char *hash_bytes, *scratch, *frame;
    size_t hash_room, scratch_room;
    unsigned char failed[RAVEL__FAILED_BYTES];
    int32_t ended;
    ravel_status status;
    ravel_error why;
} worker;

static ravel_status wrong(worker *w, const char *what) {
    return ravel_error_set(&w->why, RAVEL_E_DATA, "trainer rank %d %s", w->sender, what);
}

static const ravel__want *current_want(const worker *w) {
    RAVEL_ASSERT(w->slice >= 0 && w->slice < w->task->count);
    return &w->puller->plan.wants[w->task->first + w->slice];
}

static void *room_for(worker *w, unsigned char **bytes, size_t *room, size_t need) {
    if (need <= *room) return *bytes;
    ravel__release(&w->puller->memory.allocator, *bytes, *room);
    *bytes = ravel__alloc(&w->puller->memory.allocator, need);
    *room = *bytes ? need : 0;
    return *bytes;
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

static int64_t block_count(const worker *w) {
    int64_t left = ravel__want_piece(&w->puller->plan, current_want(w))->count - w->first;
    int64_t most = w->block == 0 ? w->hashes.first : w->hashes.per_block;
    RAVEL_ASSERT(left > 0 && most > 0 && w->block < w->hashes.blocks);
    return left < most ? left : most;
}

static ravel__span current_span(const worker *w, int64_t count) {
    const ravel__want *want = current_want(w);
    return (ravel__span){want->item, &ravel__want_piece(&w->puller->plan, want)->box, w->first, count};
}

/* Whether the message is the block that must come now. */
static int is_next_block(const worker *w, const ravel__message *head) {
    if (w->status != RAVEL_OK || w->slice >= w->task->count || !w->has_hashes) return 0;
    int64_t each = ravel_dtype_bytes(w->puller->plan.dtypes[current_want(w)->item]);
    return head->id == ((uint64_t)w->slice << 32 | (uint64_t)w->block) &&
           (head->bytes == 0 || head->bytes == block_count(w) * each);
}

/* Blocks go straight to where they are staged, if they lie there as they travel. */
static void *block_place(worker *w, const ravel__message *head) {
    if (!is_next_block(w, head)) return NULL;
    ravel__span span = current_span(w, block_count(w));
    void *direct = ravel__stage_address(&w->puller->stage, &span, w->puller->plan.dtypes[span.item]);
    return direct ? direct : room_for(w, &w->scratch, &w->scratch_room, (size_t)head->bytes);
}

static ravel_status write_span(worker *w, const ravel__span *span, int32_t dtype, const void *data) {
    ravel_puller *p = w->puller;
    int calls = p->stage.now == &ravel__stage_callbacks;
    if (calls) pthread_mutex_lock(&p->lock);
    ravel_status status =
        data ? ravel__stage_write(&p->stage, span, dtype, data, &w->why) : ravel__stage_keep(&p->stage, span, &w->why);
    if (calls) pthread_mutex_unlock(&p->lock);
    return status;
}

static ravel_status changed(worker *w, const ravel__span *span) {
    return ravel_error_set(&w->why, RAVEL_E_CHECKSUM,
                           "\"%s\": elements %lld to %lld of its slice from trainer rank %d arrived changed",
                           w->puller->holding.items[span->item].name, (long long)span->first,
                           (long long)(span->first + span->count - 1), w->sender);
}

static void advance(worker *w, int64_t count) {
    w->first += count;
    RAVEL_ASSERT(count > 0 && w->first <= ravel__want_piece(&w->puller->plan, current_want(w))->count);
    if (w->first < ravel__want_piece(&w->puller->plan, current_want(w))->count) return;
    w->slice++;
    w->first = w->block = 0;
    w->has_hashes = 0;
}

/* A block without bytes did not change since the base. */
static ravel_status keep(worker *w, const ravel__span *span, int32_t dtype) {
    if (w->puller->base.version == 0) return wrong(w, "keeps blocks of a version that is not held here");
    atomic_fetch_add(&w->puller->kept, span->count * ravel_dtype_bytes(dtype));
    return write_span(w, span, dtype, NULL);
}

static ravel_status take_block(worker *w, const ravel__message *head, const unsigned char *body) {
    if (!is_next_block(w, head)) return wrong(w, "sent a block that does not continue the one before");
    if (head->bytes > 0 && !body) return ravel__no_memory(&w->why, (size_t)head->bytes, "a block");
    int64_t count = block_count(w);
    ravel__span span = current_span(w, count);
    int32_t dtype = w->puller->plan.dtypes[span.item];
    ravel_status status;
    if (head->bytes == 0) {
        status = keep(w, &span, dtype);
    } else {
        uint64_t hash = ravel__get64(w->hash_bytes + RAVEL__HASHES_HEADER + 8 * w->block);
        RAVEL_ASSERT(w->hash_room >= RAVEL__HASHES_HEADER + 8 * ((size_t)w->block + 1));
        if (ravel__xxh3_of(body, (size_t)head->bytes) != hash) return changed(w, &span);
        status = body == w->scratch ? write_span(w, &span, dtype, body) : RAVEL_OK;
        atomic_fetch_add(&w->puller->pulled, head->bytes);
    }
    w->block++;
    advance(w, count);
    return status;
}

static ravel_status take_hashes(worker *w, const ravel__message *head) {
    if (w->slice >= w->task->count || w->has_hashes || w->first > 0 || head->id != (uint64_t)w->slice)
        return wrong(w, "sent hashes of another slice");
    const ravel__want *want = current_want(w);
    int64_t each = ravel_dtype_bytes(w->puller->plan.dtypes[want->item]);
    w->has_hashes = 1;
    return ravel__hashes_decode(w->hash_bytes, head->bytes, ravel__want_piece(&w->puller->plan, want)->count, each,
                                BLOCK_MOST, &w->hashes, &w->why);
}

/* ---- frames --------------------------------------------------------------------------------------------- */

static ravel_status take_entry(worker *w, const ravel__frame_entry *e) {
    if (w->slice >= w->task->count || w->has_hashes || e->slice != (uint64_t)w->slice || e->first != (uint64_t)w->first)
        return wrong(w, "sent a frame that does not continue the one before");
    const ravel__want *want = current_want(w);
    int32_t dtype = w->puller->plan.dtypes[want->item];
    int64_t left = ravel__want_piece(&w->puller->plan, want)->count - w->first;
    if (e->tensor != (uint32_t)want->tensor || e->dtype != dtype || e->count < 1 || e->count > (uint64_t)left)
        return wrong(w, "sent another slice than was asked for");
    ravel__span span = current_span(w, (int64_t)e->count);
    const unsigned char *payload = w->frame + e->offset;
    size_t bytes = (size_t)e->count * (size_t)ravel_dtype_bytes(dtype);
    ravel_status status;
    if (e->kind == RAVEL__ENTRY_KEEP) {
        status = keep(w, &span, dtype);
    } else {
        if (ravel__xxh3_of(payload, bytes) != e->checksum) return changed(w, &span);
        status = write_span(w, &span, dtype, payload);
        atomic_fetch_add(&w->puller->pulled, (int64_t)bytes);
    }
    advance(w, (int64_t)e->count);
    return status;
}

static ravel_status take_frame(worker *w, const ravel__message *head) {
    ravel__frame_head frame = {0};
    ravel__frame_entry entry;
    ravel_status status = ravel__frame_open(w->frame, (size_t)head->bytes, &frame, &w->why);
    if (status == RAVEL_OK &&
        (head->id != w->frames++ || frame.sequence != head->id || frame.version != (uint64_t)w->puller->next.version))
        status = wrong(w, "sent a frame of another version or out of turn");
    for (uint32_t i = 0; i < frame.entries && status == RAVEL_OK; i++) {
        status = ravel__frame_entry_at(w->frame, &frame, i, &entry, &w->why);
        if (status == RAVEL_OK) status = take_entry(w, &entry);
    }
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static void *place(void *user, const ravel__message *head) {
    worker *w = user;
    size_t bytes = (size_t)head->bytes, frame_room = w->frame ? RAVEL__PULL_FRAME_BYTES : 0;
    if (head->kind == RAVEL__PULL_BLOCK) return block_place(w, head);
    if (head->kind == RAVEL__PULL_HASHES && head->bytes <= HASHES_MOST)
        return room_for(w, &w->hash_bytes, &w->hash_room, bytes);
    if (head->kind == RAVEL__PULL_FRAME && head->bytes <= RAVEL__PULL_FRAME_BYTES)
        return room_for(w, &w->frame, &frame_room, RAVEL__PULL_FRAME_BYTES);
    if (head->kind == RAVEL__PULL_FAILED && head->bytes == sizeof w->failed) return w->failed;
    return NULL;
}

static ravel_status take(worker *w, const ravel__message *head, const void *body) {
    if (head->bytes > 0 && !body && head->kind != RAVEL__PULL_BLOCK) return wrong(w, "sent a message that is too long");
    switch (head->kind) {
    case RAVEL__PULL_BLOCK: return take_block(w, head, body);
    case RAVEL__PULL_HASHES: return take_hashes(w, head);
    case RAVEL__PULL_FRAME: return take_frame(w, head);
    case RAVEL__PULL_FAILED: return ravel__failed_decode(body, head->bytes, &w->why);
    case RAVEL__PULL_END:
        w->ended = 1;
        return w->slice == w->task->count ? RAVEL_OK : wrong(w, "ended before everything was sent");
    default: return wrong(w, "sent a message of an unknown kind");
    }
}

static void message(void *user, const ravel__message *head, void *body) {
    worker *w = user;
    if (w->status != RAVEL_OK || w->ended) return;
    w->status = take(w, head, body);
    if (w->status != RAVEL_OK) w->ended = 1;
}

/* ---- tasks ---------------------------------------------------------------------------------------------- */

/* The k-th of a sender's addresses, one per serving thread: workers spread over them. */
static void lane_address(const char *list, int32_t number, char *text, size_t bytes) {
    RAVEL_ASSERT(number >= 0 && bytes > 0);
    int32_t count = 1;
    for (const char *p = list; *p; p++) count += *p == ',';
    for (int32_t skip = number % count; skip > 0; skip--) list = strchr(list, ',') + 1;
    size_t length = strcspn(list, ",");
    if (length >= bytes) length = bytes - 1;
    memcpy(text, list, length);
    text[length] = '\0';
}

static ravel_status connect(worker *w, int32_t sender) {
    RAVEL_ASSERT(sender >= 0 && sender < w->puller->directory.senders);
    char address[512];
    if (w->sender == sender && w->dial.link) return RAVEL_OK;
    ravel__dial_close(&w->dial);
    w->sender = sender;
    lane_address(w->puller->directory.addresses[sender], w->number, address, sizeof address);
    return ravel__dial_open(&w->dial, address, w->puller->options.timeout, &w->why);
}

static ravel_status ask(worker *w) {
    RAVEL_ASSERT(w->task->count > 0 && w->task->first + w->task->count <= w->puller->plan.want_count);
    const ravel_puller *p = w->puller;
    const ravel__want *wants = p->plan.wants + w->task->first;
    size_t bytes = RAVEL__ASK_HEADER;
    for (int64_t i = 0; i < w->task->count; i++)
        bytes += ravel__ask_slice_bytes(ravel__want_piece(&p->plan, &wants[i])->box.ndim);
    unsigned char *body = ravel__alloc(&w->puller->memory.allocator, bytes), *at;
    if (!body) return ravel__no_memory(&w->why, bytes, "a request");
    ravel__ask head = {.session = p->session, .identity = p->next, .base = p->base, .count = w->task->count};
    ravel__ask_put_header(body, &head);
    at = body + RAVEL__ASK_HEADER;
    for (int64_t i = 0; i < w->task->count; i++)
        at = ravel__ask_put_slice(at, wants[i].tensor, p->plan.dtypes[wants[i].item],
                                  &ravel__want_piece(&p->plan, &wants[i])->box);
    RAVEL_ASSERT(at == body + bytes);
    ravel_status status =
        ravel__dial_send(&w->dial, RAVEL__PULL_PULL, (uint64_t)w->task->first, body, (int64_t)bytes, &w->why);
    ravel__release(&w->puller->memory.allocator, body, bytes);
    return status;
}

static ravel_status run_task(worker *w, const ravel__pull_task *task) {
    RAVEL_ASSERT(w->status == RAVEL_OK && task->count > 0);
    w->task = task;
    w->slice = w->first = w->block = 0;
    w->frames = 0;
    w->has_hashes = w->ended = 0;
    ravel_status status = RAVEL_OK;
    if (ravel__pull_may_map(w->puller, task->sender)) {
        char address[512];
        int done = 0;
        lane_address(w->puller->directory.addresses[task->sender], w->number, address, sizeof address);
        status = ravel__pull_map(w->puller, task, address, &done, &w->why);
        if (status != RAVEL_OK || done) return status;
    }
    status = connect(w, task->sender);
    if (status == RAVEL_OK) status = ask(w);
    if (status == RAVEL_OK) status = ravel__dial_run(&w->dial, &w->ended, w->puller->options.timeout, &w->why);
    return status == RAVEL_OK ? w->status : status;
}

static void fail(ravel_puller *p, ravel_status status, const ravel_error *why) {
    RAVEL_ASSERT(status != RAVEL_OK);
    pthread_mutex_lock(&p->lock);
    if (p->status == RAVEL_OK || p->status == RAVEL_E_END) {
        p->status = status;
        p->why = *why;
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->stop, 1);
}

static void work(void *user, int64_t number) {
    ravel_puller *p = user;
    worker w = {.puller = p, .number = (int32_t)number, .sender = -1};
    w.dial = (ravel__dial){.token = p->token,
                           .tls = p->options.tls,
                           .allocator = &p->memory.allocator,
                           .max_body = BLOCK_MOST,
                           .user = &w};
    w.dial.place = place;
    w.dial.message = message;
    w.dial.stop = &p->stop;
    for (int64_t t; w.status == RAVEL_OK && (t = atomic_fetch_add(&p->next_task, 1)) < p->task_count;)
        w.status = run_task(&w, &p->tasks[t]);
    if (w.status != RAVEL_OK) fail(p, w.status, &w.why);
    ravel__dial_close(&w.dial);
    ravel__release(&p->memory.allocator, w.hash_bytes, w.hash_room);
    ravel__release(&p->memory.allocator, w.scratch, w.scratch_room);
    ravel__release(&p->memory.allocator, w.frame, w.frame ? RAVEL__PULL_FRAME_BYTES : 0);
}

/* The tasks hold every want once. */
static bool tasks_ok(const ravel_puller *p) {
    int64_t wants = 0;
    for (int64_t t = 0; t < p->task_count; t++) {
        const ravel__pull_task *task = &p->tasks[t];
        if (task->count < 1 || task->first < p->plan.first_want[task->sender] ||
            task->first + task->count > p->plan.first_want[task->sender + 1])
            return false;
        wants += task->count;
    }
    return p->task_count <= p->task_room && wants == p->plan.want_count;
}

/* Cuts every sender's wants so that all threads have work; each rank starts with another sender. */
static ravel_status make_tasks(ravel_puller *p, ravel_error *err) {
    RAVEL_ASSERT(p->threads > 0);
    const ravel__plan *plan = &p->plan;
    int64_t share = plan->bytes / p->threads + 1, room = plan->senders + 2 * (int64_t)p->threads;
    if (share < TASK_LEAST) share = TASK_LEAST;
    size_t each = sizeof *p->tasks;
    if (room > p->task_room) {
        ravel__pull_task *tasks =
            ravel__resize(&p->memory.allocator, p->tasks, (size_t)p->task_room * each, (size_t)room * each);
        if (!tasks) return ravel__no_memory(err, (size_t)room * each, "the tasks of a pull");
        p->tasks = tasks;
        p->task_room = room;
    }
    p->task_count = 0;
    p->senders = 0;
    for (int32_t k = 0; k < plan->senders; k++) {
        int32_t sender = (int32_t)(((uint64_t)k + p->generator + (uint64_t)p->rank) % (uint64_t)plan->senders);
        int64_t bytes = 0, begin = plan->first_want[sender], end = plan->first_want[sender + 1];
        int whole = ravel__pull_may_map(p, sender);
        p->senders += end > begin;
        for (int64_t i = begin; i < end; i++) {
            bytes += ravel__want_bytes(plan, &plan->wants[i]);
            if ((bytes < share || whole) && i + 1 < end) continue;
            RAVEL_ASSERT(p->task_count < p->task_room);
            p->tasks[p->task_count++] = (ravel__pull_task){sender, begin, i + 1 - begin};
            begin = i + 1;
            bytes = 0;
        }
    }
    RAVEL_ASSERT(tasks_ok(p));
    return RAVEL_OK;
}

/* ---- the directory -------------------------------------------------------------------------------------- */

typedef struct fetching {
    ravel_puller *puller;
    unsigned char *bytes;
    size_t size;
    int32_t done;
    ravel_status status;
    ravel_error *err;
} fetching;

static void *place_directory(void *user, const ravel__message *head) {
    fetching *f = user;
    if (head->kind != RAVEL__PULL_DIRECTORY || f->bytes || head->bytes < 1) return NULL;
    f->size = (size_t)head->bytes;
    f->bytes = ravel__alloc(&f->puller->memory.allocator, f->size);
    return f->bytes;
}

static void directory_came(void *user, const ravel__message *head, void *body) {
    fetching *f = user;
    f->done = 1;
    if (head->kind != RAVEL__PULL_DIRECTORY || !body)
        f->status = ravel_error_set(f->err, RAVEL_E_DATA, "the trainer did not answer with its directory");
}

static ravel_status fetch(ravel_puller *p, fetching *f, ravel_error *err) {
    ravel__dial dial = {.token = p->token, .tls = p->options.tls, .allocator = &p->memory.allocator, .user = f};
    dial.max_body = (int64_t)RAVEL__DIRECTORY_MOST;
    dial.place = place_directory;
    dial.message = directory_came;
    dial.stop = &p->stop;
    ravel_status status = ravel__dial_open(&dial, p->address, p->options.timeout, err);
    if (status == RAVEL_OK) status = ravel__dial_send(&dial, RAVEL__PULL_DIRECTORY, 0, NULL, 0, err);
    if (status == RAVEL_OK) status = ravel__dial_run(&dial, &f->done, p->options.timeout, err);
    ravel__dial_close(&dial);
    return status == RAVEL_OK ? f->status : status;
}

static void forget_trainers(ravel_puller *p) {
    ravel__pull_unmap(p);
    if (p->session) ravel__plan_free(&p->plan);
    if (p->session) ravel__directory_free(&p->directory);
    p->session = 0;
}

static ravel_status plan(ravel_puller *p, const ravel__directory *d, ravel__plan *made, ravel_error *err) {
    ravel__plan_place place_of = {.machine = ravel__machine_number(), .cast = p->options.cast, .self = -1};
    ravel__differences list;
    char who[40];
    (void)snprintf(who, sizeof who, "rank %d (generator)", p->rank);
    place_of.turn = p->generator + (uint64_t)p->rank;
    place_of.who = who;
    ravel__differences_init(&list, p->options.logger);
    ravel_status status = ravel__plan_make(d, &p->holding, &place_of, &p->memory.allocator, made, &list, err);
    if (status != RAVEL_OK) return status;
    status = ravel__differences_end(&list, err);
    if (status != RAVEL_OK) ravel__plan_free(made);
    return status;
}

ravel_status ravel__pull_meet(ravel_puller *p, ravel_error *err) {
    fetching f = {.puller = p, .err = err};
    ravel__directory d;
    ravel__plan made;
    ravel_status status = fetch(p, &f, err);
    if (status == RAVEL_OK) status = ravel__directory_decode(f.bytes, f.size, &p->memory.allocator, &d, err);
    ravel__release(&p->memory.allocator, f.bytes, f.bytes ? f.size : 0);
    if (status != RAVEL_OK) return status;
    status = plan(p, &d, &made, err);
    if (status != RAVEL_OK) {
        ravel__directory_free(&d);
        return status;
    }
    forget_trainers(p);
    p->directory = d;
    p->plan = made;
    p->session = d.digest;
    RAVEL_ASSERT(made.senders == d.senders);
    return RAVEL_OK;
}

/* ---- the coordinator ------------------------------------------------------------------------------------ */

static void *coordinate(void *argument) {
    RAVEL_ASSERT(((ravel_puller *)argument)->stage.active);
    ravel_puller *p = argument;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = p->session == p->next_session ? RAVEL_OK : ravel__pull_meet(p, &err);
    if (status == RAVEL_OK && p->session != p->next_session)
        status = ravel_error_set(&err, RAVEL_E_STATE, "the trainers were restarted meanwhile; stage again");
    if (status == RAVEL_OK) status = make_tasks(p, &err);
    if (status != RAVEL_OK) {
        fail(p, status, &err);
    } else {
        ravel__team_once(p->threads, p->threads, work, p);
        if (p->status == RAVEL_OK) ravel__stage_seal(&p->stage);
    }
    p->done_ns = ravel__clock_ns();
    atomic_store(&p->progress, p->status == RAVEL_OK ? RAVEL__PULL_DONE : RAVEL__PULL_BROKEN);
    return NULL;
}

ravel_status ravel__pull_start(ravel_puller *p, ravel_error *err) {
    RAVEL_ASSERT(atomic_load(&p->progress) == RAVEL__PULL_NONE && p->next.version > 0);
    RAVEL_ASSERT(!p->coordinating && p->stage.active);
    atomic_store(&p->stop, 0);
    atomic_store(&p->next_task, 0);
    atomic_store(&p->pulled, 0);
    atomic_store(&p->kept, 0);
    atomic_store(&p->mapped, 0);
    p->status = RAVEL_OK;
    ravel_error_clear(&p->why);
    p->began_ns = ravel__clock_ns();
    atomic_store(&p->progress, RAVEL__PULL_RUNNING);
    p->coordinating = pthread_create(&p->coordinator, NULL, coordinate, p) == 0;
    if (p->coordinating) return RAVEL_OK;
    atomic_store(&p->progress, RAVEL__PULL_NONE);
    return ravel_error_set(err, RAVEL_E_MEMORY, "no thread could be made to pull");
}

void ravel__pull_stop(ravel_puller *p) {
    atomic_store(&p->stop, 1);
    if (p->coordinating) (void)pthread_join(p->coordinator, NULL);
    p->coordinating = 0;
    atomic_store(&p->stop, 0);
    atomic_store(&p->progress, RAVEL__PULL_NONE);
}
