/* The last guards: messages that were changed or forged so well that nothing else would notice, and what the progress
 * callback may count on. */
#include "tests/unit/refit_case.h"

#include "refit/wire/block.h"
#include "refit/session/session.h"

#include <stddef.h>
#include <stdlib.h>
#include <time.h>

/* One sender, then receivers; a transport that changes what rank `rank` says in version 2. */
typedef struct forger {
    int32_t rank, me;
    int32_t step; /* where the protocol is */
    int32_t armed;
    int32_t byte;                      /* of the opening; -1: none */
    void (*forge)(ravel__frame *head); /* of the frames; NULL: not these */
    ravel__frame *copy;                /* of a forged one */
} forger;

static ravel_status note_step(void *user, ravel_comm *comm, int32_t step, ravel_error *err) {
    (void)comm;
    (void)err;
    ((forger *)user)->step = step;
    return RAVEL_OK;
}

static ravel_status change_opening(void *user, ravel_comm *comm, const void *send, void *recv, int64_t bytes,
                                   ravel_error *err) {
    forger *f = user;
    unsigned char copy[1024];
    if (!f->armed || f->me != f->rank || f->step != RAVEL__REFIT_STEP_BEGIN || f->byte < 0 || f->byte >= bytes)
        return ravel_comm_allgather(comm, send, recv, bytes, RAVEL_U8, err);
    memcpy(copy, send, (size_t)bytes);
    copy[f->byte] ^= 2;
    return ravel_comm_allgather(comm, copy, recv, bytes, RAVEL_U8, err);
}

/* A frame with another head, and checksums that fit it. */
static ravel_status forge_frame(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer,
                                int32_t tag, ravel_request **request, ravel_error *err) {
    forger *f = user;
    if (f->armed && f->me == f->rank && f->forge && tag % 2 == 0 /* a head */ && !f->copy) {
        f->copy = malloc((size_t)bytes);
        if (!f->copy) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory");
        memcpy(f->copy, data, (size_t)bytes);
        f->forge(f->copy);
        ravel__frame_seal(f->copy, (size_t)bytes);
        data = f->copy;
    }
    return ravel_comm_isend(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

static void forge_version(ravel__frame *f) {
    f->version--;
}
static void forge_slice(ravel__frame *f) {
    f->entry[0].slice++;
}
static void forge_count(ravel__frame *f) {
    f->entry[0].count--;
}
static void forge_hash(ravel__frame *f) {
    f->entry[0].hash ^= 1;
}
static void forge_keep(ravel__frame *f) {
    f->entry[0].kind = RAVEL__BLOCK_KEEP;
    f->entry[0].size = 0;
}
static void forge_changes(ravel__frame *f) {
    f->entry[0].kind = RAVEL__BLOCK_SPARSE;
}
static void forge_sequence(ravel__frame *f) {
    f->sequence++;
}
static void forge_sender(ravel__frame *f) {
    f->sender++;
}
static void forge_window(ravel__frame *f) {
    f->window++;
}

typedef struct forgery {
    int32_t rank, byte;
    void (*forge)(ravel__frame *head);
    ravel_status status;
    const char *words;
} forgery;

/* Version 1; version 2, which must fail on all ranks alike and leave version 1; version 2 again. */
static ravel_status forged_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    const forgery *what = s->extra;
    int32_t rank = ravel_comm_rank(comm);
    forger f = {.rank = what->rank, .me = rank, .byte = what->byte, .forge = what->forge};
    ravel__transport transport = {0};
    float mine[FLOATS] = {0};
    ravel_refit_tensor t = float_tensor("a", mine, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit *refit = NULL;
    ravel_error own = RAVEL_ERROR_INIT;
    transport.user = &f;
    transport.step = note_step;
    transport.allgather = change_opening;
    transport.isend = forge_frame;
    ravel_status status = ravel__refit_create_over(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options,
                                                   &transport, &refit, err);
    if (rank == 0) fill_floats(mine, FLOATS, 1);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, err);
    if (rank == 0) fill_floats(mine, FLOATS, 2);
    f.armed = 1;
    if (status == RAVEL_OK) {
        ravel_status failed = ravel_refit_update(refit, 2, NULL, &own);
        if (!EXPECT(failed == what->status) || !EXPECT(strstr(own.message, what->words) != NULL))
            printf("    rank %d, byte %d: %s: %s\n", rank, what->byte, ravel_status_name(failed), own.message);
        EXPECT(ravel_refit_version(refit) == 1 && ravel_refit_lost(refit) == (what->status == RAVEL_E_PEER_LOST));
        EXPECT(rank == 0 || floats_are(ravel_refit_data(refit, 0), FLOATS, 1));
    }
    f.armed = 0;
    if (status == RAVEL_OK && ravel_refit_lost(refit)) {
        ravel_refit_free(refit);
        free(f.copy);
        return RAVEL_OK;
    }
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 2, NULL, err);
    EXPECT(rank == 0 || status != RAVEL_OK || floats_are(ravel_refit_data(refit, 0), FLOATS, 2));
    ravel_refit_free(refit);
    free(f.copy);
    return status;
}

static void expect_found(const forgery *what, int32_t ranks) {
    few_ranks s = {.body = forged_body};
    ravel_error err = RAVEL_ERROR_INIT;
    forgery copy = *what;
    s.extra = &copy;
    ravel_refit_options_default(&s.options);
    s.options.buffer_bytes = 4096;
    CHECK_OK(run_few(&s, ranks, &err), &err);
}

/* Every byte of what a rank says at the beginning, a sender's and a receiver's. */
TEST(refit_openings_refuse_what_was_changed) {
    for (int32_t byte = 0; byte < 64; byte++) {
        char words[64];
        forgery what = {.rank = byte % 2, .byte = byte, .status = RAVEL_E_CHECKSUM, .words = words};
        (void)snprintf(words, sizeof words, "the opening message of rank %d arrived changed", byte % 2);
        expect_found(&what, 3);
    }
}

/* A frame that belongs elsewhere, though every checksum is right. If it is not the one that comes next, the stream is lost. */
TEST(refit_frames_must_be_the_ones_that_come_next) {
    static const forgery table[] = {
        {0, -1, forge_version, RAVEL_E_DATA, "a frame from rank 0 is of version 1, not 2"},
        {0, -1, forge_slice, RAVEL_E_DATA, "a frame from rank 0 does not continue the one before"},
        {0, -1, forge_count, RAVEL_E_DATA, "a frame from rank 0 has another slice than was planned"},
        {0, -1, forge_hash, RAVEL_E_CHECKSUM, "of its slice from rank 0 arrived changed"},
        {0, -1, forge_keep, RAVEL_E_DATA, "its payloads are not as long as its header says"},
        {0, -1, forge_changes, RAVEL_E_DATA, "a sparse block is broken: it is of another block"},
        {0, -1, forge_sequence, RAVEL_E_PEER_LOST, ""},
        {0, -1, forge_sender, RAVEL_E_PEER_LOST, ""},
        {0, -1, forge_window, RAVEL_E_PEER_LOST, ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) expect_found(&table[i], 2);
}

/* ---- progress ------------------------------------------------------------------------------------------- */

typedef struct told {
    int64_t calls, done, total, wrong;
} told;

static void tell(void *user, int64_t done, int64_t total) {
    told *t = user;
    t->wrong += done < t->done || done > total || (t->calls > 0 && total != t->total);
    t->calls++;
    t->done = done;
    t->total = total;
}

/* Sender, a receiver that passes on and one that does not: weights count once each, whatever travels. */
static ravel_status progress_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    float *mine = calloc(FLOATS, sizeof *mine);
    ravel_refit_tensor t = float_tensor("a", mine, FLOATS);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_options o = s->options;
    ravel_refit *refit = NULL;
    told heard = {0};
    if (!mine) return RAVEL_E_MEMORY;
    o.progress = tell;
    o.progress_user = &heard;
    ravel_status status = ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &o, &refit, err);
    for (int64_t v = 1; v <= 3 && status == RAVEL_OK; v++) {
        if (rank == 0) mine[v * 1000] = (float)v;
        heard = (told){0};
        status = ravel_refit_update(refit, v, NULL, err);
        EXPECT(heard.wrong == 0 && heard.calls > 0);
        EXPECT(heard.total == FLOATS * 4 && heard.done == heard.total);
    }
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_progress_ends_at_its_total) {
    for (int32_t how = 0; how < 2; how++) {
        few_ranks s = {.body = progress_body};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_refit_options_default(&s.options);
        s.options.buffer_bytes = 4096;
        s.options.delta = how;
        s.options.delta_block = 1024;
        CHECK_OK(run_few(&s, 4, &err), &err);
    }
}

/* ---- who waits for whom --------------------------------------------------------------------------------- */

static ravel_status slow_iborrow(void *user, ravel_comm *comm, ravel__loan *loan, int64_t bytes, int32_t peer,
                                 int32_t tag, ravel_request **request, ravel_error *err) {
    struct timespec t = {0, 2000000};
    (void)user;
    (void)nanosleep(&t, NULL);
    return ravel__comm_iborrow(comm, loan, bytes, peer, tag, request, err);
}

/* Two groups of two receivers, and two buffers: while the last of each group is slow, both of the sender's buffers are
 * with those in between, who wait for their next frame. They must give back what they hold all the same. */
static ravel_status relay_body(ravel_comm *comm, few_ranks *s, ravel_error *err) {
    enum { MANY = 40000 };
    int32_t rank = ravel_comm_rank(comm), last = rank > 0 && rank % 2 == 0;
    float *mine = calloc(MANY, sizeof *mine);
    ravel_refit_tensor t = float_tensor("a", mine, MANY);
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel__transport transport = {0};
    ravel_refit *refit = NULL;
    if (!mine) return RAVEL_E_MEMORY;
    if (rank == 0) fill_floats(mine, MANY, 1);
    if (rank > 0) t.parts[0] = 2, t.index[0] = (rank - 1) / 2;
    if (last) transport.iborrow = slow_iborrow;
    ravel_status status = ravel__refit_create_over(comm, rank ? NULL : &source, rank ? &sink : NULL, &s->options,
                                                   &transport, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, 1, NULL, err);
    int64_t half = MANY / 2, shift = rank > 2 ? half % 7 : 0;
    for (int64_t i = 0; i < half && rank && status == RAVEL_OK; i++)
        if (!EXPECT(mine[i] == 1 + (float)((i + shift) % 7))) break;
    ravel_refit_free(refit);
    free(mine);
    return status;
}

TEST(refit_relays_give_back_while_they_wait) {
    few_ranks s = {.body = relay_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&s.options);
    s.options.buffer_bytes = 8192;
    s.options.num_buffers = 2;
    CHECK_OK(run_few(&s, 5, &err), &err);
}

/* ---- other sizes of structs ----------------------------------------------------------------------------- */

/* Options of an older library keep the defaults of what it did not know; those of a newer one are taken as far as known. */
TEST(refit_options_of_other_sizes) {
    struct {
        ravel_refit_options known;
        char unknown[64];
    } given;
    ravel_refit_options o;
    ravel_allocator allocator = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    memset(&given, 0x55, sizeof given);
    ravel_refit_options_default(&given.known);
    given.known.size = offsetof(ravel_refit_options, audit);
    memset(&given.known.audit, 0x55, sizeof given.known - offsetof(ravel_refit_options, audit));
    given.known.num_buffers = 3;
    CHECK_OK(ravel__options_take(&given.known, &o, &err), &err);
    CHECK(o.num_buffers == 3 && o.audit == 0 && !o.allocator && o.size == sizeof o);
    ravel_refit_options_default(&given.known);
    given.known.size = sizeof given;
    given.known.allocator = &allocator;
    CHECK_OK(ravel__options_take(&given.known, &o, &err), &err);
    CHECK(o.allocator == &allocator && o.size == sizeof o);
    given.known.size = 3;
    CHECK_EQ(ravel__options_take(&given.known, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "refit options: size is 3; fill them with ravel_refit_options_default");
}
