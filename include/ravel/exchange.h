/* ravel/exchange.h: the steps between a plan and packed batches, each usable by itself.
 *
 * Deciding is separate from moving. A plan is a pure function (ravel/plan.h); packing and sharding are pure functions
 * (ravel/batch.h). What is left, and lives here, is what needs a communicator:
 *
 *     gather     every rank learns all lengths          integers, ragged, one round
 *     compare    every rank has the same plan           8 bytes per rank; before any data moves
 *     exchange   every sample is where its bin is       all fields in one ragged all-to-all
 *     share      one rank's words or bytes to others    pipeline metadata, tensor-parallel arrays
 *
 * and `ravel_agree`, which returns an error of one rank on all of them, so that no rank waits for one that failed.
 * ravel/feed.h is the composition of all of it; a framework can take what it needs:
 *
 *     ravel_gather_counts(dp, mine.count, counts, &err);
 *     ravel_gather(dp, mine_lengths, counts, 1, lengths, &err);                   lengths[sum of counts]
 *     ravel_plan_create(&input, &options, &plan, &err);                           pure, the same on every rank
 *     ravel_compare(dp, plan->digest, &err);
 *     ravel_exchange_create(plan, counts, lengths, rank, NULL, &x, &err);         pure
 *     ravel_exchange_measure(x, &mine, &sizes);
 *     ... sizes.result_bytes, sizes.scratch_bytes: the caller allocates ...
 *     ravel_exchange_run(x, dp, &mine, result, scratch, &arrived, &err);          arrived: my bins' samples, in order
 *
 * Packing and cutting for cp are ravel_thd_pack (ravel/batch.h); ravel_share_bytes takes what was packed to the other
 * ranks. examples/09_steps.c runs every step one by one, and gets the feed's bytes.
 *
 * Errors of a communicator (ravel/comm.h) come back as they are.
 */
#ifndef RAVEL_EXCHANGE_H
#define RAVEL_EXCHANGE_H

#include <ravel/batch.h>
#include <ravel/comm.h>
#include <ravel/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gather --------------------------------------------------------------------------------------------- */

/* Collective. counts[size]: how many samples each rank has. 0 is a count like any other. */
RAVEL_API ravel_status ravel_gather_counts(ravel_comm *comm, int64_t mine, int64_t *counts, ravel_error *err);

/* Collective. `width` integers per sample (length, id, ...): mine[counts[rank] * width] of every rank, in rank order,
 * into all[sum of counts * width]. */
RAVEL_API ravel_status ravel_gather(ravel_comm *comm, const int64_t *mine, const int64_t *counts, int64_t width,
                                    int64_t *all, ravel_error *err);

/* ---- exchange ------------------------------------------------------------------------------------------- */

/* Which rank sends which sample to which rank: computed once from the plan, on every rank, without communication. */
typedef struct ravel_exchange ravel_exchange;

/* counts[plan->dp]: samples that each rank holds, numbered through in rank order as in the plan's input.
 * lengths[plan->count]. The plan may be freed afterwards. Of a hybrid plan every member of a group gets the group's
 * samples. Of a plan with shared prefixes only own tokens travel: what a sample shares with the one before it in its
 * bin is copied there from that one (fields of kind TOKEN; what arrives is whole). Sums of what was left out are
 * compared: E_DATA on a receiver whose copies are not what the sender has. */
RAVEL_API ravel_status ravel_exchange_create(const ravel_plan *plan, const int64_t *counts, const int64_t *lengths,
                                             int32_t rank, const ravel_allocator *allocator, ravel_exchange **exchange,
                                             ravel_error *err);
RAVEL_API void ravel_exchange_free(ravel_exchange *exchange);

/* Shard first: from now on only the elements that context-parallel rank `cp_rank` packs are sent, and one more after
 * each run of them for labels (zig-zag: two runs, contiguous: one; striped: no cut, everything is sent). Each cp rank
 * calls this on its own exchange over its own dp ranks, so that the bytes of all of them together do not grow with cp.
 * `align` is what packing will use; `lengths` as in create. What arrives has its whole length, 0 in elements that were
 * not sent. */
RAVEL_API ravel_status ravel_exchange_cut(ravel_exchange *exchange, const ravel_cp *cp, int32_t cp_rank, int32_t align,
                                          const int64_t *lengths, ravel_error *err);

/* The same for a hybrid plan, the one of create: each sample is cut for the width of its group, as packing with
 * ravel_thd_options_for_group will. `options` are the plan's; cp_kind: ravel_cp_kind, what cp_split stands for. */
RAVEL_API ravel_status ravel_exchange_cut_groups(ravel_exchange *exchange, const ravel_plan_options *options,
                                                 int32_t cp_kind, const int64_t *lengths, ravel_error *err);

typedef struct ravel_exchange_sizes {
    int64_t samples, tokens; /* that this rank will have */
    int64_t result_bytes;    /* their arrays, each aligned to 64 bytes, and one alignment more */
    int64_t scratch_bytes;   /* what is sent and received on the way, needed during the run only */
    int64_t sent_bytes;      /* that leave this rank */
    int64_t needed_bytes;    /* what had to: this cp rank's part of samples that leave, each counted once over cp */
    int64_t kept_bytes;      /* that stay, and are copied */
} ravel_exchange_sizes;

/* For samples with these fields; their data is not looked at. */
RAVEL_API void ravel_exchange_measure(const ravel_exchange *exchange, const ravel_ragged *mine,
                                      ravel_exchange_sizes *sizes);

/* Collective over the plan's dp ranks. mine: counts[rank] samples with their fields' data. *arrived: the samples of
 * this rank's bins, bin after bin and in the order of each bin, so that the k-th sample of all its bins is sample k. It
 * points into `result`, the fields' own list included. A rank with nothing to send or to receive is normal. */
RAVEL_API ravel_status ravel_exchange_run(const ravel_exchange *exchange, ravel_comm *comm, const ravel_ragged *mine,
                                          void *result, void *scratch, ravel_ragged *arrived, ravel_error *err);

/* The plan's number of each sample that arrives: [sizes.samples]; belongs to the exchange. */
RAVEL_API const int32_t *ravel_exchange_samples(const ravel_exchange *exchange);

/* ---- words ---------------------------------------------------------------------------------------------- */

/* A list of words that grows, in memory of the caller's allocator (all zero at first; release it with
 * ravel_words_free). */
typedef struct ravel_words {
    int64_t *at;
    int64_t count;
    size_t room;                      /* bytes */
    const ravel_allocator *allocator; /* NULL: malloc */
} ravel_words;
RAVEL_API ravel_status ravel_words_resize(ravel_words *words, int64_t count, ravel_error *err);
RAVEL_API void ravel_words_free(ravel_words *words);

/* ---- share ---------------------------------------------------------------------------------------------- */

/* Collective. The words of `root` on every rank; their number goes first. A rank without memory for them aborts comm,
 * since the others wait for it. Metadata (ravel/meta.h): from the stage that planned over pp, then over tp. */
RAVEL_API ravel_status ravel_share_words(ravel_comm *comm, ravel_words *words, int32_t root, ravel_error *err);

/* Collective over the ranks that take part. data[bytes] of `root`: to all ranks (wants NULL), or to those whose
 * wants[rank] is not 0 (others return at once); every rank gives the same `wants`, `bytes` and `root`. Arrays that one
 * rank packed: to stages that want them over pp, then over tp. Cut for cp first, so that less is sent. */
RAVEL_API ravel_status ravel_share_bytes(ravel_comm *comm, void *data, int64_t bytes, const int32_t *wants,
                                         int32_t root, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
