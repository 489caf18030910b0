#include "train/serve/engine.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct train_engine {
    train_engine_options options;
    train_generator *generator;
    pthread_t thread;
    int running;
    pthread_mutex_t lock; /* of what follows, up to the thread's own */
    pthread_cond_t work;
    train_job *first, *last; /* queue */
    train_job *news;
    int64_t waiting;
    int stop;
    ravel_error failure;
    train_engine_stats stats;
    /* the thread's own: what the generator has, in two arrays that take turns, because it borrows the requests */
    train_request *requests[2]; /* [room] */
    train_job **jobs;           /* [room] of each request; NULL: over */
    int64_t count, room[2], jobs_room;
    int turn;
    int pulls; /* new versions are looked for */
};

/* ---- jobs ----------------------------------------------------------------------------------------------- */

ravel_status train_job_create(const int32_t *prompt, int64_t count, train_job **job, ravel_error *err) {
    train_job *j = calloc(1, sizeof *j);
    size_t bytes = (size_t)count * sizeof *prompt;
    if (j) j->prompt = malloc(bytes + 1);
    if (!j || !j->prompt) {
        free(j);
        return ravel__no_memory(err, bytes, "a request");
    }
    if (count) memcpy(j->prompt, prompt, bytes);
    j->count = count;
    j->prompt_top = -1;
    train_sampling_default(&j->sampling);
    *job = j;
    return RAVEL_OK;
}

void train_job_free(train_job *j) {
    if (!j) return;
    for (int32_t i = 0; j->answers && i < j->samples; i++) {
        free(j->answers[i].tokens);
        free(j->answers[i].logprob);
        free(j->answers[i].versions);
        free(j->answers[i].top);
    }
    free(j->answers);
    free(j->prompt_logprob);
    free(j->prompt_best);
    free(j->prompt);
    free(j);
}

/* Room for whole answers and log-probs of the prompt; E_MEMORY. */
static ravel_status make_room(const train_engine *e, train_job *j, ravel_error *err) {
    int64_t room = e->options.slot_tokens - j->count;
    if (j->sampling.max_tokens) room = train__min(room, j->sampling.max_tokens);
    RAVEL_ASSERT(room > 0 && j->samples > 0 && !j->answers);
    j->room = room;
    j->answers = calloc((size_t)j->samples, sizeof *j->answers);
    int ok = j->answers != NULL;
    if (j->prompt_top >= 0) ok &= (j->prompt_logprob = malloc((size_t)j->count * sizeof(float))) != NULL;
    if (j->prompt_top > 0)
        ok &= (j->prompt_best = malloc((size_t)(j->count * j->prompt_top) * sizeof(train_top))) != NULL;
    for (int32_t i = 0; ok && i < j->samples; i++) {
        train_job_answer *a = &j->answers[i];
        a->tokens = malloc((size_t)room * sizeof *a->tokens);
        a->logprob = malloc((size_t)room * sizeof *a->logprob);
        a->versions = malloc((size_t)room * sizeof *a->versions);
        a->top = j->sampling.top ? malloc((size_t)(room * j->sampling.top) * sizeof *a->top) : NULL;
        ok = a->tokens && a->logprob && a->versions && (a->top || !j->sampling.top);
    }
    return ok ? RAVEL_OK : ravel__no_memory(err, (size_t)(room * j->samples) * 16, "the answers of a request");
}

/* ---- news ----------------------------------------------------------------------------------------------- */

/* With the lock held. */
static void tell(train_engine *e, train_job *j) {
    if (atomic_load(&j->news)) return;
    atomic_store(&j->news, 1);
    j->next = e->news;
    e->news = j;
}

static void finish(train_engine *e, train_job *j) {
    pthread_mutex_lock(&e->lock);
    atomic_store(&j->over, 1);
    e->stats.running = train_generator_busy(e->generator); /* before the front can submit another */
    tell(e, j);
    pthread_mutex_unlock(&e->lock);
}

train_job *train_engine_take(train_engine *e) {
    pthread_mutex_lock(&e->lock);
    train_job *list = e->news;
    for (train_job *j = list; j; j = j->next) {
        atomic_store(&j->news, 0);
        j->last_news = atomic_load(&j->over);
    }
    e->news = NULL;
    pthread_mutex_unlock(&e->lock);
    return list;
}

/* Appends what a running or ended answer has more than its job knows. */
static void append(const train_engine *e, train_job *j, const train_answer *a) {
    train_job_answer *to = &j->answers[a->sample - j->first_sample];
    int64_t had = atomic_load(&to->count), more = a->count - had, top = j->sampling.top;
    RAVEL_ASSERT(more >= 0 && a->count <= j->room);
    if (more == 0) return;
    memcpy(to->tokens + had, a->tokens + had, (size_t)more * sizeof *to->tokens);
    memcpy(to->logprob + had, a->logprob + had, (size_t)more * sizeof *to->logprob);
    memcpy(to->versions + had, a->versions + had, (size_t)more * sizeof *to->versions);
    for (int64_t i = had; top && i < a->count; i++)
        memcpy(to->top + i * top, a->top + i * e->options.top, (size_t)top * sizeof *to->top);
    atomic_store(&to->count, a->count);
}

static ravel_status on_answer(void *user, const train_answer *a, ravel_error *err) {
    train_engine *e = user;
    train_job *j = e->jobs[a->request];
    (void)err;
    RAVEL_ASSERT(j && j->left > 0);
    train_job_answer *to = &j->answers[a->sample - j->first_sample];
    atomic_store(&to->by_token, a->ended == 1);
    append(e, j, a);
    atomic_store(&to->ended, a->ended ? a->ended : 3);
    if (--j->left > 0 && !j->streams) return RAVEL_OK;
    if (j->left == 0) {
        e->jobs[a->request] = NULL;
        finish(e, j);
    } else {
        pthread_mutex_lock(&e->lock);
        tell(e, j);
        pthread_mutex_unlock(&e->lock);
    }
    return RAVEL_OK;
}

/* After a step: the new tokens of what goes on. */
static void append_running(train_engine *e) {
    pthread_mutex_lock(&e->lock);
    for (int64_t slot = 0; slot < e->options.slots; slot++) {
        train_answer a;
        if (!train_generator_running(e->generator, slot, &a)) continue;
        train_job *j = e->jobs[a.request];
        if (!j || !j->streams) continue;
        append(e, j, &a);
        tell(e, j);
    }
    e->stats.running = train_generator_busy(e->generator);
    e->stats.generator = train_generator_counts(e->generator);
    e->stats.pulled = train_sampler_pulled(e->options.sampler);
    pthread_mutex_unlock(&e->lock);
}

/* ---- starting and cancelling ---------------------------------------------------------------------------- */

/* The job at the head of the queue, if there are slots for it; jobs that were cancelled leave. */
static train_job *next_job(train_engine *e, int64_t idle) {
    pthread_mutex_lock(&e->lock);
    train_job *j = e->first;
    while (j && atomic_load(&j->cancelled)) {
        e->first = j->next;
        e->waiting--;
        atomic_store(&j->over, 1);
        tell(e, j);
        j = e->first;
    }
    if (j && j->samples <= idle) {
        e->first = j->next;
        e->waiting--;
        e->stats.running += j->samples; /* until it is counted after the step */
    } else {
        j = NULL;
    }
    if (!e->first) e->last = NULL;
    e->stats.waiting = e->waiting;
    pthread_mutex_unlock(&e->lock);
    return j;
}

/* Room for one more in both arrays; 0 if memory is short. */
static int grow(train_engine *e, int64_t need) {
    int spare = !e->turn;
    train_request *r =
        train__grown(NULL, e->requests[spare], &e->room[spare], train__min(need - 1, e->room[spare]), need, sizeof *r);
    if (!r) return 0;
    e->requests[spare] = r;
    train_job **jobs = train__grown(NULL, e->jobs, &e->jobs_room, need - 1, need, sizeof(train_job *));
    if (!jobs) return 0;
    e->jobs = jobs;
    return 1;
}

/* Takes jobs that fit into `idle` slots from the queue, as requests spare[stay, ...); returns how many. */
static int64_t take_jobs(train_engine *e, int64_t stay, int64_t idle) {
    int64_t more = 0;
    for (train_job *j; (j = next_job(e, idle));) {
        ravel_error err = RAVEL_ERROR_INIT;
        if (!grow(e, e->count + more + 1) ? ravel__no_memory(&err, 1, "requests") : make_room(e, j, &err)) {
            j->error = err;
            finish(e, j);
            continue;
        }
        e->requests[!e->turn][stay + more] = (train_request){.prompt = j->prompt,
                                                             .count = j->count,
                                                             .id = j->id,
                                                             .samples = j->samples,
                                                             .first_sample = j->first_sample,
                                                             .adapter = j->adapter,
                                                             .prompt_logprob = j->prompt_logprob,
                                                             .prompt_top = j->prompt_best,
                                                             .prompt_top_count = train__max(j->prompt_top, 0),
                                                             .sampling = &j->sampling};
        e->jobs[e->count + more++] = j;
        j->left = j->samples;
        idle -= j->samples;
    }
    return more;
}

/* Hands jobs to the generator, and lets those at the front that are over go. */
static void start_jobs(train_engine *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t ended = 0, idle = train_generator_idle_slots(e->generator);
    while (ended < e->count && !e->jobs[ended]) ended++;
    int64_t stay = e->count - ended, more = take_jobs(e, stay, idle);
    if (more == 0) return;
    train_request *spare = e->requests[!e->turn];
    if (stay) memcpy(spare, e->requests[e->turn] + ended, (size_t)stay * sizeof *spare);
    if (train_generator_start(e->generator, spare, ended, more, &err)) { /* requests were checked: not expected */
        for (int64_t i = 0; i < more; i++) {
            e->jobs[e->count + i]->error = err;
            finish(e, e->jobs[e->count + i]);
        }
        return;
    }
    memmove(e->jobs, e->jobs + ended, (size_t)(stay + more) * sizeof(train_job *));
    e->count = stay + more;
    e->turn = !e->turn;
}

static void cancel_jobs(train_engine *e) {
    for (int64_t i = 0; i < e->count; i++) {
        train_job *j = e->jobs[i];
        if (!j || !atomic_load(&j->cancelled)) continue;
        train_generator_cancel(e->generator, i);
        e->jobs[i] = NULL;
        finish(e, j);
    }
}

/* ---- the thread ----------------------------------------------------------------------------------------- */

static void wait_for_work(train_engine *e) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&e->lock);
    if (!e->first && !e->stop) {
        if (e->pulls)
            pthread_cond_timedwait(&e->work, &e->lock, &until);
        else
            pthread_cond_wait(&e->work, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

/* A publication that is lost for good: what is there is served on. */
static void pull(train_engine *e, int idle) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (!e->pulls || train_sampler_pull(e->options.sampler, idle, &err) == RAVEL_OK) return;
    e->pulls = 0;
    ravel__log(e->options.logger, RAVEL_LOG_WARN, "%s; serving version %lld from now on", err.message,
               (long long)train_sampler_pulled(e->options.sampler).version);
}

/* Every job gets the error. */
static void fail(train_engine *e, const ravel_error *err) {
    for (int64_t i = 0; i < e->count; i++) {
        if (!e->jobs[i]) continue;
        e->jobs[i]->error = *err;
        finish(e, e->jobs[i]);
        e->jobs[i] = NULL;
    }
    pthread_mutex_lock(&e->lock);
    e->failure = *err;
    for (train_job *j = e->first; j;) {
        train_job *next = j->next;
        j->error = *err;
        atomic_store(&j->over, 1);
        tell(e, j);
        j = next;
    }
    e->first = e->last = NULL;
    e->waiting = 0;
    pthread_mutex_unlock(&e->lock);
}

static int asked_to_stop(train_engine *e) {
    pthread_mutex_lock(&e->lock);
    int stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop;
}

static void wake_front(train_engine *e) {
    pthread_mutex_lock(&e->lock);
    int news = e->news != NULL;
    pthread_mutex_unlock(&e->lock);
    if (news) e->options.wake(e->options.user);
}

static void *run(void *user) {
    train_engine *e = user;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = train_generator_begin(e->generator, NULL, 0, &err);
    while (!status && !asked_to_stop(e)) {
        cancel_jobs(e);
        start_jobs(e);
        int busy = train_generator_busy(e->generator) > 0;
        if (busy) status = train_generator_step(e->generator, on_answer, e, &err);
        append_running(e);
        pull(e, !busy);
        if (status) fail(e, &err);
        wake_front(e);
        if (!busy && !status) wait_for_work(e);
    }
    if (status) e->options.wake(e->options.user);
    return NULL;
}

/* ---- the front's side ----------------------------------------------------------------------------------- */

ravel_status train_engine_open(const train_engine_options *options, train_engine **engine, ravel_error *err) {
    train_engine *e = ravel__calloc(NULL, 1, sizeof *e);
    if (!e) return ravel__no_memory(err, sizeof *e, "an engine");
    e->options = *options;
    e->generator = train_sampler_generator(options->sampler);
    e->pulls = train_sampler_pulled(options->sampler).commits > 0;
    e->stats.pulled = train_sampler_pulled(options->sampler);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    e->running = pthread_create(&e->thread, NULL, run, e) == 0;
    if (!e->running) {
        train_engine_close(e);
        return ravel_error_set(err, RAVEL_E_IO, "cannot start the thread that generates");
    }
    *engine = e;
    return RAVEL_OK;
}

void train_engine_close(train_engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->stop = 1;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    if (e->running) (void)pthread_join(e->thread, NULL);
    for (int i = 0; i < 2; i++) ravel__release(NULL, e->requests[i], (size_t)e->room[i] * sizeof *e->requests[i]);
    ravel__release(NULL, e->jobs, (size_t)e->jobs_room * sizeof(train_job *));
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    ravel__release(NULL, e, sizeof *e);
}

/* Takes what begins in `idle` slots, in turn, off *idle; returns whether the job does. The first that does not fit holds
 * up the others. */
static int begins_at_once(const train_job *j, int64_t *idle) {
    int fits = j->samples <= *idle;
    *idle = fits ? *idle - j->samples : 0;
    return fits;
}

ravel_status train_engine_fits(const train_engine *e, int64_t count, int64_t samples, ravel_error *err) {
    int64_t at_once = e->options.slots / samples;
    if (count <= at_once || count - at_once <= e->options.queue) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "%lld prompts are more than this server takes at once: %lld answers run (--slots) and %lld prompts "
        "wait (--queue)",
        (long long)count, (long long)e->options.slots, (long long)e->options.queue);
}

/* Whether the queue has room for what the slots do not take at once. With the lock held. */
static ravel_status check_room(const train_engine *e, train_job *const *jobs, int64_t count, ravel_error *err) {
    int64_t idle = e->options.slots - e->stats.running, waiting = 0;
    for (const train_job *j = e->first; j; j = j->next) waiting += !begins_at_once(j, &idle);
    for (int64_t i = 0; i < count; i++) waiting += !begins_at_once(jobs[i], &idle);
    if (waiting <= e->options.queue) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_OVERSIZE, "%lld requests wait; the queue has room for %lld",
                           (long long)e->waiting, (long long)e->options.queue);
}

ravel_status train_engine_submit(train_engine *e, train_job *const *jobs, int64_t count, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    pthread_mutex_lock(&e->lock);
    if (e->failure.status)
        status = ravel_error_set(err, RAVEL_E_STATE, "%s", e->failure.message);
    else
        status = check_room(e, jobs, count, err);
    for (int64_t i = 0; i < count && !status; i++) {
        train_job *j = jobs[i];
        RAVEL_ASSERT(j->samples >= 1 && j->samples <= e->options.slots && j->count < e->options.slot_tokens);
        j->next = NULL;
        if (e->last)
            e->last->next = j;
        else
            e->first = j;
        e->last = j;
        e->waiting++;
    }
    e->stats.waiting = e->waiting;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    return status;
}

void train_engine_cancel(train_engine *e, train_job *j) {
    atomic_store(&j->cancelled, 1);
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

train_engine_stats train_engine_counts(train_engine *e) {
    pthread_mutex_lock(&e->lock);
    train_engine_stats stats = e->stats;
    pthread_mutex_unlock(&e->lock);
    return stats;
}

ravel_status train_engine_status(train_engine *e, ravel_error *err) {
    pthread_mutex_lock(&e->lock);
    if (e->failure.status && err) *err = e->failure;
    ravel_status status = e->failure.status;
    pthread_mutex_unlock(&e->lock);
    return status;
}
