/* Cards: how ranks that share no memory find out that they disagree, before any data moves.
 *
 * A card is a 64-bit hash of everything that must be equal on all ranks. For all-to-alls it also holds a weighted sum
 * over this rank's row and column of the matrix of sizes: sent sizes are added, expected sizes subtracted, each times a
 * weight of its entry. Over all ranks the sum is 0 if every sent size equals the expected one, and nonzero otherwise,
 * up to a chance of 2^-64. So one reduction of two words checks n^2 sizes. */
#include "comm/backend.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/rng.h"

#include <string.h>

static uint64_t weight(int32_t from, int32_t to) {
    return ravel__mix64((uint64_t)from << 32 | (uint32_t)to) | 1;
}

static uint64_t weigh_pairs(const ravel_comm *comm, const ravel__op *op) {
    RAVEL_ASSERT(op->send_sizes && op->recv_sizes);
    uint64_t sum = 0;
    for (int32_t r = 0; r < comm->size; r++) {
        sum += weight(comm->rank, r) * (uint64_t)op->send_sizes[r];
        sum -= weight(r, comm->rank) * (uint64_t)op->recv_sizes[r];
    }
    return sum;
}

void ravel__card_fill(const ravel_comm *comm, const ravel__op *op, ravel__card *card) {
    RAVEL_ASSERT(op->kind >= 0 && op->kind < RAVEL__OP_KINDS && op->label >= 0 && op->label < RAVEL__OP_KINDS);
    RAVEL_ASSERT(comm->rank >= 0 && comm->rank < comm->size);
    ravel__hash h = ravel__hash_begin((uint64_t)op->kind << 8 | (uint64_t)op->label);
    memset(card, 0, sizeof *card);
    ravel__hash_u64(&h, (uint64_t)op->dtype);
    ravel__hash_u64(&h, (uint64_t)op->reduce);
    ravel__hash_u64(&h, (uint64_t)op->root);
    if (op->kind == RAVEL__ALLTOALL)
        card->pairs = weigh_pairs(comm, op);
    else if (op->kind == RAVEL__ALLGATHER || op->kind == RAVEL__REDUCE_SCATTER)
        ravel__hash_i64s(&h, op->recv_sizes, (size_t)comm->size);
    else
        ravel__hash_u64(&h, (uint64_t)op->bytes);
    if (op->label != RAVEL__ALLTOALL) ravel__hash_u64(&h, (uint64_t)op->total);
    card->signature = ravel__hash_end(h);
    ravel__op_describe(op, card->text, sizeof card->text);
}

int ravel__cards_agree(const ravel_comm *comm, const ravel__card *cards, ravel_error *why) {
    char a[96], b[96];
    for (int32_t r = 1; r < comm->size; r++) {
        if (cards[r].signature == cards[0].signature) continue;
        ravel__rank_describe(comm, 0, a, sizeof a);
        ravel__rank_describe(comm, r, b, sizeof b);
        ravel_error_set(why, RAVEL_E_MISMATCH,
                        "the ranks disagree: %s calls %.150s, %s calls %.150s%s; nothing was moved", a, cards[0].text,
                        b, cards[r].text, strcmp(cards[0].text, cards[r].text) == 0 ? " with other counts" : "");
        return 0;
    }
    return 1;
}

void ravel__card_complain(const ravel_comm *comm, const ravel__op *op, const int64_t *arriving, ravel__card *card) {
    RAVEL_ASSERT(op->kind == RAVEL__ALLTOALL);
    card->text[0] = '\0';
    for (int32_t r = 0; r < comm->size; r++) {
        if (arriving[r] == op->recv_sizes[r]) continue;
        ravel_error text = RAVEL_ERROR_INIT;
        ravel_error_set(&text, RAVEL_E_MISMATCH, "rank %d sends %lld bytes to rank %d, which expects %lld", r,
                        (long long)arriving[r], comm->rank, (long long)op->recv_sizes[r]);
        memcpy(card->text, text.message, sizeof card->text - 1);
        card->text[sizeof card->text - 1] = '\0';
        return;
    }
}

void ravel__cards_complaint(const ravel_comm *comm, const ravel__card *cards, ravel_error *why) {
    int32_t r = 0;
    while (r < comm->size - 1 && !cards[r].text[0]) r++;
    RAVEL_ASSERT(r >= 0 && r < comm->size);
    ravel_error_set(why, RAVEL_E_MISMATCH, "the ranks disagree: %s; nothing was moved", cards[r].text);
}

/* Which ranks send another size than expected: every rank learns the sizes, those for a few receivers at a time, and
 * reports what does not fit its own. */
static ravel_status find_pair(ravel_comm *comm, ravel_request *r, ravel__card_gather gather, ravel__card *cards,
                              ravel__card *mine) {
    enum { RECEIVERS = 64 };
    int32_t n = comm->size, most = n < RECEIVERS ? n : RECEIVERS;
    size_t bytes = (size_t)n * (size_t)(most + 1) * sizeof(int64_t);
    int64_t *arriving = ravel__alloc(comm->allocator, bytes);
    if (!arriving) return ravel__no_memory(&r->why, bytes, "a comparison");
    int64_t *sizes = arriving + n;
    ravel_status status = RAVEL_OK;
    for (int32_t at = 0, m; !status && at < n; at += m) {
        m = n - at < most ? n - at : most;
        status = gather(comm, r, r->op.send_sizes + at, sizes, m * (int64_t)sizeof *sizes);
        for (int32_t i = 0; comm->rank >= at && comm->rank < at + m && i < n; i++)
            arriving[i] = sizes[i * m + comm->rank - at];
    }
    if (!status) ravel__card_complain(comm, &r->op, arriving, mine);
    if (!status) status = gather(comm, r, mine, cards, sizeof *mine);
    ravel__release(comm->allocator, arriving, bytes);
    if (status) return status;
    ravel__cards_complaint(comm, cards, &r->why);
    return RAVEL_E_MISMATCH;
}

ravel_status ravel__cards_compare(ravel_comm *comm, ravel_request *r, ravel__card_gather gather) {
    ravel__card mine, *cards = ravel__calloc(comm->allocator, (size_t)comm->size, sizeof *cards);
    size_t bytes = (size_t)comm->size * sizeof *cards;
    uint64_t pairs = 0;
    if (!cards) return ravel__no_memory(&r->why, bytes, "a comparison");
    ravel__card_fill(comm, &r->op, &mine);
    ravel_status status = gather(comm, r, &mine, cards, sizeof mine);
    for (int32_t i = 0; i < comm->size; i++) pairs += cards[i].pairs;
    if (!status && !ravel__cards_agree(comm, cards, &r->why)) status = RAVEL_E_MISMATCH;
    if (!status && pairs) status = find_pair(comm, r, gather, cards, &mine);
    ravel__release(comm->allocator, cards, bytes);
    return status;
}
