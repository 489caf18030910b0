/* Whole refits over threads: everything that a caller can see. */
#include "tests/unit/refit_case.h"

#include "refit/session/session.h"

#include "base/json.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- random cases --------------------------------------------------------------------------------------- */

typedef struct job {
    refit_case c;
    int64_t versions;
    int spare;   /* receivers bring a second set */
    int iterate; /* senders hand out tensors one by one */
    int load;    /* receivers take pieces by callback */
    int far;     /* receivers write past the cache, as where the model is large */
    atomic_int wrong;
    ravel_refit_report report[CASE_RANKS];
} job;

/* A source that copies a tensor into one scratch when it is its turn, so that keeping an old pointer shows. */
typedef struct hander {
    case_side *side;
    char scratch[1 << 17];
    int64_t last, calls, back;
} hander;

static ravel_status hand_out(void *user, int64_t index, const void **data, ravel_error *err) {
    hander *h = user;
    const ravel_refit_tensor *t = &h->side->tensors[index];
    size_t bytes = (size_t)h->side->elements[index] * (size_t)ravel_dtype_bytes(t->dtype);
    if (bytes > sizeof h->scratch) return ravel_error_set(err, RAVEL_E_MEMORY, "the scratch is too small");
    memset(h->scratch, 0xff, sizeof h->scratch);
    memcpy(h->scratch, t->data, bytes);
    h->back += index < h->last;
    h->last = index;
    h->calls++;
    *data = h->scratch;
    return RAVEL_OK;
}

/* A sink that stages by itself, into the second set. */
typedef struct taker {
    case_side *side;
    int64_t begun, committed, aborted, elements;
    int live;
} taker;

static void *set_of(const taker *k, int64_t i, int set) {
    return set ? k->side->tensors[i].spare : k->side->tensors[i].data;
}

static ravel_status taker_begin(void *user, int64_t version, ravel_error *err) {
    taker *k = user;
    (void)version;
    (void)err;
    k->begun++;
    k->elements = 0;
    return RAVEL_OK;
}

static ravel_status taker_load(void *user, const ravel_refit_piece *p, ravel_error *err) {
    taker *k = user;
    const ravel_refit_tensor *t = &k->side->tensors[p->tensor];
    size_t each = (size_t)ravel_dtype_bytes(t->dtype);
    char *to = (char *)set_of(k, p->tensor, !k->live) + (size_t)p->first * each;
    const char *old = (const char *)set_of(k, p->tensor, k->live) + (size_t)p->first * each;
    k->elements += p->count;
    if (p->first < 0 || p->first + p->count > k->side->elements[p->tensor])
        return ravel_error_set(err, RAVEL_E_INTERNAL, "a piece lies outside of the tensor");
    if (p->data) return ravel_dtype_convert(p->dtype, p->data, t->dtype, to, p->count, err);
    memcpy(to, old, (size_t)p->count * each);
    return RAVEL_OK;
}

static void taker_commit(void *user, int64_t version) {
    taker *k = user;
    (void)version;
    k->committed++;
    k->live = !k->live;
}

static void taker_abort(void *user, int64_t version) {
    (void)version;
    ((taker *)user)->aborted++;
}

/* One rank's ends of a case. */
typedef struct ends {
    case_side from, to;
    ravel_refit_source source;
    ravel_refit_sink sink;
    hander hands;
    taker takes;
    int has_source, has_sink;
} ends;

static ends *make_ends(job *j, int32_t rank) {
    ends *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->has_source = case_side_rank(&j->c, 0, rank) >= 0;
    e->has_sink = case_side_rank(&j->c, 1, rank) >= 0;
    if (e->has_source && !EXPECT(case_side_make(&j->c, 0, rank, 0, &e->from))) return NULL;
    if (e->has_sink && !EXPECT(case_side_make(&j->c, 1, rank, j->spare || j->load, &e->to))) return NULL;
    e->source = (ravel_refit_source){.size = sizeof e->source, .tensors = e->from.tensors, .count = e->from.count};
    e->sink = (ravel_refit_sink){.size = sizeof e->sink, .tensors = e->to.tensors, .count = e->to.count};
    if (j->iterate) {
        e->hands.side = &e->from;
        e->source.iterate = hand_out;
        e->source.user = &e->hands;
    }
    if (j->load) {
        e->takes.side = &e->to;
        e->sink.begin = taker_begin;
        e->sink.load = taker_load;
        e->sink.commit = taker_commit;
        e->sink.abort = taker_abort;
        e->sink.user = &e->takes;
    }
    return e;
}

static void free_ends(ends *e) {
    case_side_free(&e->from);
    case_side_free(&e->to);
    free(e);
}

static int64_t wrong_here(job *j, const ends *e, const ravel_refit *refit, int64_t version) {
    if (!j->load) return case_wrong_live(&j->c, &e->to, refit, version);
    int64_t wrong = 0;
    for (int32_t i = 0; i < j->c.count; i++)
        wrong += case_wrong(&e->to, i, set_of(&e->takes, i, e->takes.live), version);
    return wrong;
}

static ravel_status rank_body(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    int32_t rank = ravel_comm_rank(comm);
    ends *e = make_ends(j, rank);
    ravel_refit *refit = NULL;
    ravel_refit_options o = j->c.options;
    if (!e) return RAVEL_E_MEMORY;
    if (j->load) o.audit = 0;
    ravel_status status =
        ravel_refit_create(comm, e->has_source ? &e->source : NULL, e->has_sink ? &e->sink : NULL, &o, &refit, err);
    if (status == RAVEL_OK) refit->stage.far |= j->far;
    for (int64_t v = 1; v <= j->versions && status == RAVEL_OK; v++) {
        ravel_refit_report *report = &j->report[rank];
        memset(report, 0, sizeof *report);
        report->size = sizeof *report;
        if (e->has_source) case_fill(&j->c, &e->from, v);
        e->hands.last = -1;
        status = ravel_refit_update(refit, e->has_source || v % 2 ? v : 0, report, err);
        if (status != RAVEL_OK) break;
        int64_t wrong = e->has_sink ? wrong_here(j, e, refit, v) : 0;
        if (wrong > 0 || !EXPECT(ravel_refit_version(refit) == v)) atomic_fetch_add(&j->wrong, 1);
        if (e->has_sink && o.audit) status = ravel_refit_audit(refit, err);
        /* With one receiver, tensors are asked for once and in their order. */
        if (j->c.receivers == 1 && e->hands.back > 0) atomic_fetch_add(&j->wrong, 1);
    }
    ravel_refit_free(refit);
    if (status == RAVEL_OK && e->has_sink && !j->load && !j->spare) /* everything is back in the caller's own memory */
        for (int32_t i = 0; i < j->c.count; i++)
            if (case_wrong(&e->to, i, e->to.tensors[i].data, j->versions)) atomic_fetch_add(&j->wrong, 1);
    free_ends(e);
    return status;
}

static bool run_job(job *j) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.timeout = 20;
    ravel_status status = ravel_threads_run(case_ranks(&j->c), &o, rank_body, j, &err);
    if (status != RAVEL_OK) printf("    %s: %s\n", ravel_status_name(status), err.message);
    return EXPECT(status == RAVEL_OK) && EXPECT(atomic_load(&j->wrong) == 0);
}

/* Any cut, any dtypes, any options, N = 1 too: every receiver ends up with every version. */
TEST(refit_moves_any_case) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(60, 3000); round++) {
        job *j = calloc(1, sizeof *j);
        CHECK(j);
        case_random(&j->c, &rng);
        j->versions = 4;
        j->spare = (int)ravel__rng_below(&rng, 2);
        j->iterate = ravel__rng_below(&rng, 3) == 0;
        j->load = ravel__rng_below(&rng, 4) == 0;
        j->far = (int)ravel__rng_below(&rng, 2);
        if (!run_job(j)) {
            printf("    round %lld: %d senders (tp %d), %d receivers (tp %d), both %d, N %d, B %lld, "
                   "delta %d, stage %d, iterate %d, load %d\n",
                   (long long)round, j->c.senders, j->c.tp[0], j->c.receivers, j->c.tp[1], j->c.both,
                   j->c.options.num_buffers, (long long)j->c.options.buffer_bytes, j->c.options.delta,
                   j->c.options.stage, j->iterate, j->load);
            free(j);
            return;
        }
        for (int32_t r = 0; r < case_ranks(&j->c); r++) {
            const ravel_refit_report *p = &j->report[r];
            CHECK_EQ(p->num_buffers, j->c.options.num_buffers);
            CHECK_EQ(p->buffer_bytes, j->c.options.buffer_bytes);
            CHECK_EQ(p->bytes_needed, j->report[0].bytes_needed);
            CHECK(p->overlap >= 0 && p->overlap <= 1);
            CHECK_EQ(p->senders, j->c.senders);
            CHECK_EQ(p->served, j->c.receivers);
        }
        free(j);
    }
}

/* ---- the one call, traces, strides ---------------------------------------------------------------------- */

static ravel_status once_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float mine[100];
    uint16_t half[100];
    fill_floats(mine, 100, rank ? -5 : 7);
    memset(half, 0, sizeof half);
    /* A transposed source: [10, 10] given column by column, and every other column of a wider target. */
    ravel_refit_tensor from = {.name = "m", .dtype = RAVEL_F32, .ndim = 2, .dims = {10, 5}, .strides = {1, 10}};
    ravel_refit_tensor to = {.name = "m", .dtype = RAVEL_BF16, .ndim = 2, .dims = {10, 5}, .strides = {10, 2}};
    from.data = mine;
    to.data = half;
    ravel_refit_source source = {.size = sizeof source, .tensors = &from, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &to, .count = 1, .version = 1};
    ravel_refit_report report = {.size = sizeof report};
    ravel_status status =
        ravel_refit_run(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, 2, &report, err);
    for (int i = 0; i < 10 && rank && status == RAVEL_OK; i++)
        for (int k = 0; k < 5; k++) {
            double value = 0;
            (void)ravel_dtype_load(RAVEL_BF16, &half[10 * i + 2 * k], &value);
            EXPECT(value == 7 + (10 * k + i) % 7);
            EXPECT(half[10 * i + 2 * k + 1] == 0);
        }
    EXPECT(report.bytes_needed == 2 * 50 * 2); /* bf16 travels */
    return status;
}

TEST(refit_in_one_call_with_strides_and_casts) {
    few_ranks s = {.body = once_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.cast = RAVEL_REFIT_NARROW;
    CHECK_OK(run_few(&s, 3, &err), &err);
}

typedef struct text {
    char bytes[1 << 16];
    size_t used;
} text;

static ravel_status keep_text(void *user, const char *piece, size_t bytes, ravel_error *err) {
    text *t = user;
    (void)err;
    if (t->used + bytes >= sizeof t->bytes) return RAVEL_E_MEMORY;
    memcpy(t->bytes + t->used, piece, bytes);
    t->used += bytes;
    return RAVEL_OK;
}

static ravel_status trace_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float *mine = calloc(FLOATS, sizeof *mine);
    text *t = calloc(1, sizeof *t);
    ravel_refit_tensor x = float_tensor("a", mine, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &x, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &x, .count = 1};
    ravel_refit *refit = NULL;
    if (!mine || !t) return RAVEL_E_MEMORY;
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, err);
    if (status == RAVEL_OK) status = ravel_refit_trace(refit, 1, 1, keep_text, t, err);
    ravel__json *doc = NULL;
    if (status == RAVEL_OK) status = ravel__json_parse(t->bytes, t->used, NULL, &doc, err);
    if (status == RAVEL_OK) {
        int events = 0, begins = 0;
        const ravel__json_node *list = ravel__json_get(doc, ravel__json_root(doc), "traceEvents");
        for (const ravel__json_node *e = ravel__json_first(doc, list); e; e = ravel__json_next(doc, e)) {
            events++;
            begins += ravel__json_is(ravel__json_get(doc, e, "ph"), "b");
        }
        EXPECT(begins >= 8 && events == 2 * begins + 1);
        EXPECT(strstr(t->bytes, rank ? "\"load\"" : "\"pack\"") != NULL);
    }
    ravel__json_free(doc);
    ravel_refit_free(refit);
    free(mine);
    free(t);
    return status;
}

TEST(refit_trace_is_json) {
    few_ranks s = {.body = trace_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.trace = 1;
    s.options.buffer_bytes = 4096;
    CHECK_OK(run_few(&s, 2, &err), &err);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

typedef struct counting {
    ravel_allocator allocator;
    _Atomic int64_t live, peak;
} counting;

static void *count_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    counting *c = user;
    int64_t live =
        atomic_fetch_add(&c->live, (int64_t)new_bytes - (int64_t)old_bytes) + (int64_t)new_bytes - (int64_t)old_bytes;
    int64_t peak = atomic_load(&c->peak);
    while (live > peak && !atomic_compare_exchange_weak(&c->peak, &peak, live)) {}
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

/* A tensor ten times the buffer, and thousands of tiny ones: N * B and less than 1 MiB more. */
static ravel_status bound_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    enum { BIG = 10 << 16, TINY = 1000 };
    int32_t rank = ravel_comm_rank(comm);
    counting c = {.live = 0};
    ravel_refit_tensor *t = calloc(TINY + 1, sizeof *t);
    char(*names)[48] = calloc(TINY + 1, sizeof *names);
    float *mine = calloc(BIG + TINY * 4, sizeof *mine), *spare = calloc(BIG + TINY * 4, sizeof *spare);
    ravel_refit_options o = s->options;
    ravel_refit_report report = {.size = sizeof report};
    ravel_refit *refit = NULL;
    if (!t || !names || !mine || !spare) return RAVEL_E_MEMORY;
    c.allocator = (ravel_allocator){count_resize, &c};
    o.allocator = &c.allocator;
    for (int i = 0; i <= TINY; i++) {
        (void)snprintf(names[i], sizeof names[i], "layers.%d.tiny.weight", i);
        int64_t at = i == 0 ? 0 : BIG + (i - 1) * 4;
        t[i] = float_tensor(names[i], mine + at, i == 0 ? BIG : 4);
        if (rank) t[i].spare = spare + at;
    }
    ravel_refit_source source = {.size = sizeof source, .tensors = t, .count = TINY + 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = t, .count = TINY + 1};
    ravel_status status = ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &o, &refit, err);
    for (int v = 1; v <= 3 && status == RAVEL_OK; v++) {
        if (rank == 0) fill_floats(mine, BIG + TINY * 4, (float)v);
        status = ravel_refit_update(refit, v, &report, err);
        if (rank) EXPECT(floats_are(ravel_refit_data(refit, 0), BIG, (float)v));
    }
    int64_t bound = (int64_t)o.num_buffers * o.buffer_bytes + (1 << 20);
    EXPECT(atomic_load(&c.peak) < bound);
    EXPECT(report.peak_bytes <= atomic_load(&c.peak) && report.peak_bytes > 0);
    EXPECT(rank > 0 || report.peak_bytes > o.num_buffers * o.buffer_bytes); /* receivers over threads borrow */
    EXPECT(report.frames < 40);                                             /* the tiny ones share frames */
    ravel_refit_free(refit);
    EXPECT(atomic_load(&c.live) == 0);
    free(t);
    free(names);
    free(mine);
    free(spare);
    return status;
}

TEST(refit_memory_is_the_buffers) {
    for (int32_t n = 1; n <= 3; n++) {
        few_ranks s = {.body = bound_body};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_refit_options_default(&s.options);
        s.options.num_buffers = n;
        s.options.buffer_bytes = 4 << 16;
        CHECK_OK(run_few(&s, 3, &err), &err);
    }
}

/* Over `self`, one rank sends to itself: every allocation fails in turn, and nothing leaks or changes. */
static ravel_status alloc_body(const ravel_allocator *allocator, void *user) {
    float from[64], to[64] = {0}, spare[64] = {0};
    ravel_comm *comm = user;
    ravel_refit_options o;
    ravel_refit *refit = NULL;
    const ravel__transport alone = {.no_helpers = 1}; /* the counting allocator is not for threads */
    ravel_refit_tensor t = float_tensor("a", from, 64), u = float_tensor("a", to, 64);
    ravel_refit_options_default(&o);
    o.allocator = allocator;
    o.buffer_bytes = 4096;
    o.delta = o.sparse = o.trace = o.audit = 1;
    u.spare = spare;
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &u, .count = 1};
    fill_floats(from, 64, 1);
    ravel_status status = ravel_comm_self(NULL, &comm, NULL);
    if (status == RAVEL_OK) status = ravel__refit_create_over(comm, &source, &sink, &o, &alone, &refit, NULL);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, NULL);
    if (status == RAVEL_OK) EXPECT(floats_are(to, 64, 1));
    fill_floats(from, 64, 2);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 2, NULL, NULL);
    if (status == RAVEL_OK) EXPECT(floats_are(ravel_refit_data(refit, 0), 64, 2));
    ravel_refit_free(refit);
    ravel_comm_free(comm);
    return status;
}

TEST(refit_fails_on_every_allocation) {
    CHECK(check_every_allocation(alloc_body, NULL) > 10);
}
