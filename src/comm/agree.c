/* Agreement. When all is well it costs one all-reduce (minimum) of three words:
 *
 *     first failed rank (or none)  |  digest  |  ~digest        min(digest) == ~min(~digest): all are the same
 *
 * Every rank sees the same three words, so every rank takes the same branch: no rank waits in a collective that another
 * has left. The rare branches then name the rank and carry its sentence. */
#include "comm/agree.h"

#include "base/assert.h"
#include "comm/backend.h"
#include "base/memory.h"
#include "comm/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NONE UINT64_MAX

/* The record of `rank` becomes that of all ranks, with the rank's number in front. */
static ravel_status adopt_error(ravel_comm *comm, int32_t rank, ravel_status mine, ravel_error *lost,
                                ravel_error *err) {
    RAVEL_ASSERT(rank >= 0 && rank < ravel_comm_size(comm));
    ravel_error theirs = RAVEL_ERROR_INIT;
    if (ravel_comm_rank(comm) == rank) {
        if (err) theirs = *err;
        theirs.status = (int32_t)mine;
        if (!theirs.message[0]) (void)snprintf(theirs.message, sizeof theirs.message, "%s", ravel_status_text(mine));
    }
    ravel_status status = ravel_comm_broadcast(comm, &theirs, sizeof theirs, RAVEL_U8, rank, lost);
    if (status) return ravel_error_set(err, status, "%s", lost->message);
    theirs.message[sizeof theirs.message - 1] = '\0';
    ravel_error_clear(err);
    if (ravel_comm_size(comm) == 1 || strncmp(theirs.message, "rank ", 5) == 0) /* agreed on before, in a call below */
        return ravel_error_set(err, (ravel_status)theirs.status, "%s", theirs.message);
    return ravel_error_set(err, (ravel_status)theirs.status, "rank %d: %s", ravel__comm_world_rank(comm, rank),
                           theirs.message);
}

/* The digest that most ranks have; the lowest rank's where two are equally common. */
static uint64_t most_common(const uint64_t *pairs, int32_t ranks) {
    uint64_t best = 0;
    int32_t best_count = 0;
    for (int32_t i = 0; i < ranks; i++) {
        int32_t count = 0;
        if (!pairs[2 * i]) continue;
        for (int32_t j = 0; j < ranks; j++) count += pairs[2 * j] && pairs[2 * j + 1] == pairs[2 * i + 1];
        if (count > best_count) best = pairs[2 * i + 1], best_count = count;
    }
    return best;
}

/* "ranks 1, 3, 8 and 12 more have", for those whose digest is not `common`. */
static void name_ranks(const ravel_comm *comm, const uint64_t *pairs, uint64_t common, char *text, size_t bytes) {
    enum { SHOWN = 16 };
    int32_t odd = 0, size = ravel_comm_size(comm);
    for (int32_t i = 0; i < size; i++) odd += pairs[2 * i] && pairs[2 * i + 1] != common;
    size_t used = (size_t)snprintf(text, bytes, odd == 1 ? "rank" : "ranks");
    for (int32_t i = 0, shown = 0; i < size && shown < SHOWN; i++) {
        if (!pairs[2 * i] || pairs[2 * i + 1] == common) continue;
        used += (size_t)snprintf(text + used, bytes - used, shown++ ? ", %d" : " %d", ravel__comm_world_rank(comm, i));
    }
    if (odd > SHOWN) used += (size_t)snprintf(text + used, bytes - used, " and %d more", odd - SHOWN);
    RAVEL_ASSERT(used < bytes);
    (void)snprintf(text + used, bytes - used, odd == 1 ? " has" : " have");
}

static ravel_status name_mismatch(ravel_comm *comm, const uint64_t *digest, const char *what,
                                  const ravel_allocator *allocator, ravel_error *err) {
    uint64_t mine[2] = {digest != NULL, digest ? *digest : 0};
    size_t bytes = 2 * sizeof *mine * (size_t)ravel_comm_size(comm);
    uint64_t *pairs = ravel__alloc(allocator, bytes);
    if (!pairs) {
        (void)ravel__no_memory(err, bytes, "the ranks' digests");
        ravel_comm_abort(comm, err); /* the others wait in the gather */
        return RAVEL_E_MEMORY;
    }
    ravel_status status = ravel_comm_allgather(comm, mine, pairs, 2, RAVEL_U64, err);
    if (!status) {
        char who[320];
        name_ranks(comm, pairs, most_common(pairs, ravel_comm_size(comm)), who, sizeof who);
        status = ravel_error_set(err, RAVEL_E_MISMATCH, "%s %s than the other ranks; nothing was moved", who, what);
    }
    ravel__release(allocator, pairs, bytes);
    return status;
}

/* The lowest one is reported: by rank, and a failure that only follows from another rank's after all others. */
static uint64_t failure_key(const ravel_comm *comm, ravel_status mine) {
    if (!mine) return NONE;
    return (uint64_t)ravel_comm_rank(comm) + (mine == RAVEL_E_END ? (uint64_t)ravel_comm_size(comm) : 0);
}

static ravel_status agree(ravel_comm *comm, ravel_status mine, const uint64_t *digest, const char *what,
                          const ravel_allocator *allocator, ravel_error *lost, ravel_error *err) {
    uint64_t words[3] = {failure_key(comm, mine), digest ? *digest : NONE, digest ? ~*digest : NONE};
    ravel_status status = ravel_comm_allreduce(comm, words, words, 3, RAVEL_U64, RAVEL_MIN, lost);
    if (status) return mine ? mine : ravel_error_set(err, status, "%s", lost->message);
    if (words[0] != NONE)
        return adopt_error(comm, (int32_t)(words[0] % (uint64_t)ravel_comm_size(comm)), mine, lost, err);
    int compared = words[1] != NONE || words[2] != NONE;
    if (compared && words[1] != ~words[2]) return name_mismatch(comm, digest, what, allocator, err);
    return RAVEL_OK;
}

ravel_status ravel__agree(ravel_comm *comm, ravel_status mine, const uint64_t *digest, const char *what,
                          const ravel_allocator *allocator, ravel_error *err) {
    ravel_error lost = RAVEL_ERROR_INIT;
    return agree(comm, mine, digest, what, allocator, &lost, err);
}

ravel_status ravel__agree_or_lost(ravel_comm *comm, ravel_status mine, ravel_error *loss, ravel_error *err) {
    return agree(comm, mine, NULL, "", NULL, loss, err);
}

ravel_status ravel_agree(ravel_comm *comm, ravel_status mine, ravel_error *err) {
    return ravel__agree(comm, mine, NULL, "", NULL, err);
}

ravel_status ravel_compare(ravel_comm *comm, uint64_t digest, ravel_error *err) {
    return ravel__agree(comm, RAVEL_OK, &digest, "another digest", NULL, err);
}

/* The ranks below `end` that run on this rank's machine; where that is not known, this rank alone. Collective. */
static ravel_status count_neighbours(ravel_comm *comm, int32_t end, int32_t *count, ravel_error *err) {
    int32_t ranks = ravel_comm_size(comm);
    size_t bytes = (size_t)ranks * sizeof(uint64_t);
    uint64_t mine = ravel__machine_number(), *all = ravel__alloc(NULL, bytes);
    ravel_status status = ravel_agree(comm, all ? RAVEL_OK : ravel__no_memory(err, bytes, "the ranks' machines"), err);
    if (!status && all) status = ravel_comm_allgather(comm, &mine, all, 1, RAVEL_I64, err);
    if (!status && all) {
        *count = mine == 0 && ravel_comm_rank(comm) < end;
        for (int32_t r = 0; r < end && mine; r++) *count += all[r] == mine;
    }
    RAVEL_ASSERT(status || (*count >= (ravel_comm_rank(comm) < end) && *count <= end));
    ravel__release(NULL, all, bytes);
    return status;
}

ravel_status ravel_comm_neighbours(ravel_comm *comm, int32_t *count, ravel_error *err) {
    return count_neighbours(comm, ravel_comm_size(comm), count, err);
}

ravel_status ravel_comm_local_rank(ravel_comm *comm, int32_t *rank, ravel_error *err) {
    return count_neighbours(comm, ravel_comm_rank(comm), rank, err);
}
