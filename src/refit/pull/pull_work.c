/* The threads of one stage. A worker takes a task (slices of one sender), requests it, and receives the slices in the
 * requested order. A cursor determines what every message must be; any other message, or a wrong hash, ends the stage.
 * */
#include "refit/pull/pull.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "comm/machine.h"
#include "base/bytes.h"
#include "base/xxh3.h"
#include "refit/pull/dial.h"
#include "refit/wire/intake.h"
#include "base/system/team.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TASK_LEAST = 4 << 20 /* bytes of a task where there are many */, BLOCK_MOST = 64 << 20 };

/* ---- one worker ----------------------------------------------------------------------------------------- */

typedef struct worker {
    ravel_puller *puller;
    int32_t number;
    ravel__dial dial;
    const ravel__pull_task *task;
    ravel__intake in;       /* of the task; its sender is the one that the link goes to, -1: none */
    unsigned char *scratch; /* of blocks that are not received in their place */
    size_t scratch_room;
    unsigned char failed[RAVEL__FAILED_BYTES];
    int32_t ended;
    ravel_status status;
    ravel_error why;
} worker;

static ravel_status wrong(worker *w, const char *what) {
    return ravel_error_set(&w->why, RAVEL_E_DATA, "%s %d %s", w->in.role, w->in.sender, what);
}

static void *room_for(worker *w, unsigned char **bytes, size_t *room, size_t need) {
    if (need <= *room) return *bytes;
    ravel__release(&w->puller->memory.allocator, *bytes, *room);
    *bytes = ravel__alloc(&w->puller->memory.allocator, need);
    *room = *bytes ? need : 0;
    return *bytes;
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

/* Blocks go straight to where they are staged, if they lie there as they travel. */
static void *block_place(worker *w, const ravel__message *head) {
    int64_t count = w->status == RAVEL_OK ? ravel__intake_elements(&w->in, head->bytes) : 0;
    if (count == 0) return NULL;
    ravel__refit_span span = ravel__intake_span(&w->in, count);
    void *direct = ravel__stage_address(&w->puller->stage, &span, ravel__intake_dtype(&w->in));
    return direct ? direct : room_for(w, &w->scratch, &w->scratch_room, (size_t)head->bytes);
}

static ravel_status take_block(worker *w, const ravel__message *head, const void *body, int kind) {
    ravel__refit_block block;
    size_t changed = 0, bytes = (size_t)head->bytes;
    if (kind == RAVEL__BLOCK_SPARSE && !body) return ravel__no_memory(&w->why, bytes, "a block");
    uint64_t count = kind == RAVEL__BLOCK_SPARSE ? ravel__sparse_count(body, bytes, &changed) : head->id;
    ravel_status status = ravel__intake_next(&w->in, kind, count, bytes, head->id, &block, &w->why);
    if (status != RAVEL_OK) return status;
    if (kind == RAVEL__BLOCK_DATA && !body) return ravel__no_memory(&w->why, bytes, "a block");
    block.bytes = body;
    status = ravel__block_decode(&w->puller->stage, &block, &w->why);
    if (status == RAVEL_OK)
        ravel__tally_add(&w->puller->tally, kind, block.span.count, ravel_dtype_bytes(block.dtype), head->bytes,
                         kind == RAVEL__BLOCK_DATA ? -1 : (int64_t)changed);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static void *place(void *user, const ravel__message *head) {
    worker *w = user;
    if (head->kind == RAVEL__PULL_BLOCK) return block_place(w, head);
    if (head->kind == RAVEL__PULL_SPARSE) return room_for(w, &w->scratch, &w->scratch_room, (size_t)head->bytes);
    if (head->kind == RAVEL__PULL_FAILED && head->bytes == sizeof w->failed) return w->failed;
    return NULL;
}

static ravel_status take(worker *w, const ravel__message *head, const void *body) {
    int is_block = head->kind == RAVEL__PULL_BLOCK || head->kind == RAVEL__PULL_SPARSE;
    if (head->bytes > 0 && !body && !is_block) return wrong(w, "sent a message that is too long");
    switch (head->kind) {
    case RAVEL__PULL_BLOCK: return take_block(w, head, body, RAVEL__BLOCK_DATA);
    case RAVEL__PULL_KEEP: return take_block(w, head, body, RAVEL__BLOCK_KEEP);
    case RAVEL__PULL_SPARSE: return take_block(w, head, body, RAVEL__BLOCK_SPARSE);
    case RAVEL__PULL_FAILED: return ravel__failed_decode(body, head->bytes, &w->why);
    case RAVEL__PULL_END:
        w->ended = 1;
        return ravel__intake_is_over(&w->in) ? RAVEL_OK : wrong(w, "ended before everything was sent");
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
    if (w->in.sender == sender && w->dial.link) return RAVEL_OK;
    ravel__dial_close(&w->dial);
    w->in.sender = sender;
    lane_address(w->puller->directory.addresses[sender], w->number, address, sizeof address);
    return ravel__dial_open(&w->dial, address, w->puller->options.timeout, &w->why);
}

static ravel_status ask(worker *w) {
    const ravel_puller *p = w->puller;
    const ravel__pull_task *t = w->task;
    const ravel__pull_ask head = {.session = p->session, .identity = p->next, .base = p->base, .count = t->count};
    size_t bytes = sizeof head + (size_t)ravel__ask_wants_bytes(&p->plan, t->first, t->count);
    unsigned char *body = ravel__alloc(&w->puller->memory.allocator, bytes);
    if (!body) return ravel__no_memory(&w->why, bytes, "a request");
    memcpy(body, &head, sizeof head);
    ravel__ask_put_wants(body + sizeof head, &p->plan, &p->holding, t->first, t->count,
                         ravel__stage_patches(&p->stage));
    ravel_status status =
        ravel__dial_send(&w->dial, RAVEL__PULL_PULL, (uint64_t)t->first, body, (int64_t)bytes, &w->why);
    ravel__release(&w->puller->memory.allocator, body, bytes);
    return status;
}

static ravel_status run_task(worker *w, const ravel__pull_task *task) {
    RAVEL_ASSERT(w->status == RAVEL_OK && task->count > 0);
    w->task = task;
    w->in.plan = &w->puller->plan;
    w->in.first = task->first, w->in.count = task->count;
    w->in.at = w->in.element = w->ended = 0;
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

static void work(void *user, int64_t number, int32_t thread) {
    ravel_puller *p = user;
    (void)thread;
    if (number == p->threads) return ravel__stage_prepare(&p->stage, &p->stop);
    worker w = {.puller = p, .number = (int32_t)number};
    w.in = (ravel__intake){.based = p->base.version > 0, .sender = -1, .role = "trainer rank"};
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
    ravel__release(&p->memory.allocator, w.scratch, w.scratch_room);
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
    const ravel__refit_plan *plan = &p->plan;
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

static void forget_trainers(ravel_puller *p) {
    ravel__pull_unmap(p);
    if (p->session) ravel__refit_plan_free(&p->plan);
    if (p->session) ravel__directory_free(&p->directory);
    p->session = 0;
}

static ravel_status plan(ravel_puller *p, const ravel__directory *d, ravel__refit_plan *made, ravel_error *err) {
    ravel__refit_plan_place place_of = {.machine = ravel__machine_number(), .cast = p->options.cast, .self = -1};
    ravel__differences list;
    char who[40];
    (void)snprintf(who, sizeof who, "rank %d (generator)", p->rank);
    place_of.turn = p->generator + (uint64_t)p->rank;
    place_of.who = who;
    ravel__differences_init(&list, p->options.logger);
    ravel_status status = ravel__refit_plan_make(d, &p->holding, &place_of, &p->memory.allocator, made, &list, err);
    if (status != RAVEL_OK) return status;
    status = ravel__differences_end(&list, err);
    if (status != RAVEL_OK) ravel__refit_plan_free(made);
    return status;
}

ravel_status ravel__pull_directory(ravel_puller *p, ravel__directory *directory, ravel_error *err) {
    ravel__dial dial = {.token = p->token, .tls = p->options.tls, .allocator = &p->memory.allocator, .stop = &p->stop};
    dial.max_body = (int64_t)RAVEL__DIRECTORY_MOST;
    ravel_status status = ravel__dial_open(&dial, p->address, p->options.timeout, err);
    if (status == RAVEL_OK)
        status = ravel__dial_ask(&dial, RAVEL__PULL_DIRECTORY, NULL, 0, RAVEL__PULL_DIRECTORY, p->options.timeout, err);
    if (status == RAVEL_OK)
        status = ravel__directory_decode(dial.reply.body, dial.reply.bytes, &p->memory.allocator, directory, err);
    ravel__dial_close(&dial);
    return status;
}

ravel_status ravel__pull_meet(ravel_puller *p, ravel_error *err) {
    ravel__directory d;
    ravel__refit_plan made;
    ravel_status status = ravel__pull_directory(p, &d, err);
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
        int32_t all = p->threads + (p->stage.held.version == 0); /* one prepares for the next version */
        ravel__team_once(all, all, work, p);
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
    ravel__tally_clear(&p->tally);
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
