/* ravel/feed.h: from a source of samples to packed micro-batches on every rank of a mesh.
 *
 * Nouns
 *   feed     one rank's part of the data path; created by all ranks together.
 *   owners   the ranks that read samples. They plan, exchange and pack, and send the other ranks what they need.
 *   batch    the samples that are read and planned at once: one update, or several (plan options `updates`).
 *   update   one optimiser step: the same number of micro-steps on every rank.
 *   chunk    the part of a pipeline stage that an iterator feeds; 0 .. vpp-1.
 *
 *     read -> gather -> plan -> metadata -> agree -> exchange -> weights -> pack, cut for cp -> pp, tp
 *      |        |        |        |          |          |                      |                |
 *      owners   dp       pure     pp, tp     all        dp: cp's shards        pure             shards only
 *
 * Each step is a public call by itself (ravel/source.h, order.h, exchange.h, plan.h, meta.h, weights.h, batch.h;
 * examples/09_steps.c runs them one by one); the feed is their composition, on a communicator of its own and, with
 * prefetch, in a thread of its own: while an update is used, the next ones are prepared.
 *
 *     ravel_feed_options options;
 *     ravel_feed_options_default(&options);
 *     options.plan = &plan_options;                              budget and the rest; dp and cp are the mesh's
 *     options.samples = 512;                                     a batch, on all ranks together
 *     if (ravel_feed_create(mesh, source, &options, &feed, &err)) ...
 *     while (ravel_feed_next(feed, &update, &err) == RAVEL_OK)
 *         for (int32_t chunk = 0; chunk < vpp; chunk++) {        in whatever order the pipeline wants them
 *             ravel_feed_iter iter = ravel_feed_iterate(feed, chunk);
 *             while (ravel_feed_iter_next(&iter, &micro)) run(&micro);
 *         }
 *     ravel_feed_free(feed);
 *
 * Who gets what. The first part of the model gets the tokens, the last one labels, weights and all other fields; a
 * chunk that asks (options.ask: multi-token prediction) gets everything; all others get the shape of the micro-batch
 * (cu_seqlens, positions, sample ids) and no tokens. tp ranks of a stage get the same; cp ranks get their shards.
 *
 *     owners            reads                                     then
 *     tp0-first-last    tp rank 0 of first and last stage         metadata over pp, arrays over tp (Megatron)
 *     every-rank        every rank, the same samples in a dp rank   nothing is sent within a dp rank (NeMo-RL, verl)
 *     root-only         rank 0, all samples                       rank 0 sends each stage its shards, then tp
 *
 * Shared prefixes (options.share_prefix). Ranks gather hashes of their samples' tokens, block by block, find the trees,
 * and plan with them: a bin's budget then counts a token that samples share once, and micro.shared says what each
 * sample has in common with the one before it in the bin. Shared tokens travel once and are compared. Arrays of a
 * micro-batch hold whole samples, with cp too, since labels, weights and log-probs differ; ravel/tree_batch.h makes the
 * layout in which every token is there once.
 *
 * Hybrid context parallelism. With plan.cp_pool = dp * cp the mesh's dp and cp ranks are one pool (see ravel/plan.h):
 * each rank of it reads its own share of a batch, for any cp of the mesh, and in every micro-step belongs to a group
 * with its own width. Samples are exchanged within the pool, each member gets its shard of the group's samples, and the
 * micro-batch says which group that is (cp, cp_rank, cp_first). Ranks of the pool are in the order of the mesh's dp-cp
 * communicator; no other axis may lie between dp and cp. Each token is counted once: counts are over the pool, and so
 * is dp_reduce.
 *
 * Same samples, same update. Which rows an update holds depends on the order (seed, epoch) and on `samples` alone, not
 * on the number of ranks; weights come from counts over the whole update. So the loss curve is the same on any mesh.
 *
 * Errors. An error on one rank (a bad row, a sample over the budget, no memory, other options) is returned by the same
 * call on every rank with that rank's sentence, "rank 3: train.jsonl:17: ...", before any data moves. After an error of
 * the data the feed has not moved: the next call tries again. After an error of the communicator every call fails.
 *
 * Threads: a feed belongs to one thread. `source`, allocator and logger are used from the feed's own thread too.
 */
#ifndef RAVEL_FEED_H
#define RAVEL_FEED_H

#include <ravel/mesh.h>
#include <ravel/meta.h>
#include <ravel/metrics.h>
#include <ravel/order.h>
#include <ravel/plan.h>
#include <ravel/source.h>
#include <ravel/weights.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_feed ravel_feed;

/* ---- options -------------------------------------------------------------------------------------------- */

typedef enum ravel_owners { RAVEL_OWNERS_TP0_FIRST_LAST, RAVEL_OWNERS_EVERY_RANK, RAVEL_OWNERS_ROOT_ONLY } ravel_owners;
#define RAVEL_OWNERS_CHOICES "tp0-first-last|every-rank|root-only"

/* Samples that begin alike compute what they share once, if the bin has them side by side: see ravel/tree.h. */
typedef enum ravel_share_prefix { RAVEL_SHARE_OFF, RAVEL_SHARE_AUTO, RAVEL_SHARE_ON } ravel_share_prefix;
#define RAVEL_SHARE_CHOICES "off|auto|on"

typedef struct ravel_feed_options {
    size_t size;              /* sizeof(ravel_feed_options), set by ravel_feed_options_default */
    int32_t owners;           /* ravel_owners */
    int32_t prefetch;         /* batches that are prepared ahead, in the background; 0: each when it is taken */
    int64_t samples;          /* rows in a batch, on all dp ranks together */
    int64_t updates;          /* stop after this many, and prepare no more; 0: when the source is over */
    int64_t epochs;           /* over the source; 0: without end */
    uint64_t shuffle_seed;    /* of the reading order */
    int32_t shuffle;          /* read in an order shuffled by (seed, epoch), else in file order */
    int32_t drop_last;        /* leave out a last batch that is not full */
    int32_t cp_kind;          /* ravel_cp_kind */
    int32_t segments;         /* segment ids, besides positions */
    int32_t padding;          /* a padding mask too */
    int32_t fixed_shape;      /* every micro-batch padded to cp * budget tokens and max_samples samples */
    int64_t total_multiple;   /* else to a multiple of this; 0: not at all */
    int32_t pad_token;        /* what stands in the padding of tokens */
    int32_t reserved;         /* 0 */
    const char *first_fields; /* what the first part of the model gets, separated by commas; "*": everything */
    const char *last_fields;  /* what the last part gets; "*": everything but tokens */
    uint64_t ask;             /* bit c: this rank's chunk c wants everything; the same on all ranks of a stage */
    /* required; copied. dp and cp are the mesh's (cp_pool, if it is set, is dp * cp); align is raised to what cp
     * needs; multiple to pp if there is vpp. layout: packed, or padded or padded-2d (cp 1), which is how bins are
     * planned: slots have no padding then, so that a micro-batch is a store for ravel_padded_pack. padded-2d takes
     * prompts from the samples, else what stands before the first token with loss */
    const ravel_plan_options *plan;
    /* NULL: token-mean, everything summed; copied. dp, cp and micro_steps are set */
    const ravel_weights_options *weights;
    const ravel_field *fields; /* without a source: the fields of what is submitted; copied */
    int64_t field_count;
    const ravel_logger *logger;       /* NULL: nowhere */
    const ravel_allocator *allocator; /* NULL: malloc; called from two threads with prefetch */
    int32_t share_prefix; /* ravel_share_prefix. auto: for each batch, if its plan is then at least 2 % faster. Budgets
                           * then cap tokens that are computed, and with cp and cp_pool samples are whole, as below. Not
                           * with padded layouts, fixed shapes, method as-is, oversize alone */
    int32_t keep_rows;    /* samples of a row stay in one bin, side by side in their order: pairs of answers. They are
                           * planned as one sample, which max_samples counts once. Not with padded layouts, fixed shapes */
    int64_t share_limit;  /* the most tokens of a bin's samples, shared ones counted for each: arrays per sample have
                           * this many. auto: else nothing is shared; on: else it is an error. 0: no limit */
} ravel_feed_options;

RAVEL_API void ravel_feed_options_default(ravel_feed_options *options);
RAVEL_API ravel_option_table ravel_feed_option_table(void);

/* ---- create and free ------------------------------------------------------------------------------------- */

/* Collective over the mesh, which must outlive the feed and whose communicators it leaves alone: it makes its own.
 * `source` is needed on owners, and may be NULL elsewhere, or everywhere with options.fields and ravel_feed_submit.
 * E_MISMATCH on every rank if options or sources differ. */
RAVEL_API ravel_status ravel_feed_create(ravel_mesh *mesh, const ravel_source *source,
                                         const ravel_feed_options *options, ravel_feed **feed, ravel_error *err);
/* Not collective, but it waits for batches that were begun: for the peers to prepare them too, to leave, or for the
 * deadline. If options.updates is set, no batch after the last update is begun. */
RAVEL_API void ravel_feed_free(ravel_feed *feed);

/* Whether this rank reads samples. */
RAVEL_API int32_t ravel_feed_is_owner(const ravel_feed *feed);

/* ---- updates -------------------------------------------------------------------------------------------- */

/* X(ID, name, sentence): the phases of preparing a batch, in order. */
#define RAVEL_FEED_PHASE_LIST(X)                                            \
    X(READ, "read", "reading samples from the source")                      \
    X(GATHER, "gather", "gathering lengths over dp")                        \
    X(PLAN, "plan", "planning, and the routes of the exchange")             \
    X(META, "meta", "sending metadata over pp and tp")                      \
    X(AGREE, "agree", "making room, and agreeing that all ranks can go on") \
    X(EXCHANGE, "exchange", "exchanging samples over dp")                   \
    X(PACK, "pack", "weights, packing and cutting for cp")                  \
    X(SHARE, "share", "sending arrays over pp and tp")

typedef enum ravel_feed_phase {
#define X(id, name, sentence) RAVEL_FEED_##id,
    RAVEL_FEED_PHASE_LIST(X)
#undef X
        RAVEL_FEED_PHASES
} ravel_feed_phase;

/* Read-only; valid until the next ravel_feed_next. */
typedef struct ravel_feed_update {
    int64_t number;          /* since the feed was made, from 0 */
    int64_t batch;           /* that it is from, and */
    int64_t update_in_batch; /* which of its updates it is */
    ravel_cursor cursor;     /* what to go on from after this batch */
    int32_t last_in_batch;   /* 1: after this update the cursor is the place to save */
    int32_t reserved;
    ravel_update_counts counts;          /* over all ranks */
    ravel_counts loss_counts;            /* the same as ravel/weights.h wants them */
    ravel_update_counts mine;            /* of this dp rank alone; the same on its tp, cp and pp ranks. With hybrid
                                            widths a group's samples are counted by its first rank */
    ravel_weights_options weights;       /* as they were used, micro_steps filled in */
    const ravel_plan_stats *plan;        /* of the batch's plan; NULL on ranks that did not plan */
    double phase_sec[RAVEL_FEED_PHASES]; /* of the batch on this rank */
    double prepare_sec;                  /* their sum, and what lies between them */
    double exposed_sec;                  /* how long ravel_feed_next waited for this update */
    int64_t sent_bytes;   /* of the batch, by this rank, once for each receiver: samples, arrays, lengths, metadata */
    int64_t needed_bytes; /* bytes that had to move: each sample that changes its dp rank, once; shared arrays */
    int64_t kept_bytes;   /* samples that stayed on this rank */
} ravel_feed_update;

/* Collective. The next update; E_END, with nothing in err, when there are no more. Invalidates the one before. */
RAVEL_API ravel_status ravel_feed_next(ravel_feed *feed, const ravel_feed_update **update, ravel_error *err);

/* Without a source: this rank's samples of the next batch, borrowed until the first ravel_feed_next of that batch has
 * returned; the preparation begins. Owners of one dp rank submit the same; other ranks submit NULL. Ids are
 * samples->rows, or running numbers over all ranks. Call it on every rank before ravel_feed_next; E_STATE if a batch
 * was submitted already. A batch may be submitted while the one before it is still used. */
RAVEL_API ravel_status ravel_feed_submit(ravel_feed *feed, const ravel_samples *samples, ravel_error *err);

/* ---- micro-batches -------------------------------------------------------------------------------------- */

/* Read-only; valid as long as the update. */
typedef struct ravel_micro_batch {
    int64_t step; /* 0 .. micro_steps-1 */
    int32_t chunk;
    int32_t filler;       /* 1: no samples; one token without weight, so that all ranks stay in step */
    int32_t first, last;  /* this chunk is the first, the last part of the model */
    const ravel_thd *thd; /* cu_seqlens, positions, ...; thd->samples are numbers into the four arrays below; what
                             this chunk does not get is NULL */
    /* [field_count] what thd->fields[i] is: the source's fields, then labels, then weights */
    const ravel_field *fields;
    int64_t field_count;
    const int32_t *tokens;  /* [thd->local_tokens] of thd->fields, or NULL */
    const int32_t *labels;  /* the next token, -100 if there is none */
    const float *weights;   /* loss weights: loss = sum of weights * token losses */
    const int64_t *offsets; /* [thd->samples_count + 1] of the samples as a store of their own, for ravel_thd_unpack */
    const int64_t *lengths; /* [thd->samples_count] */
    const int32_t *shared;  /* [thd->samples_count] tokens that each sample has in common with the one before it, as
                               ravel/tree_batch.h takes them; NULL: nothing is shared. Samples are whole all the same */
    const int64_t *prompts; /* [thd->samples_count] tokens of the prompts, with layout padded-2d; else NULL */
    const int64_t *ids;     /* [thd->samples_count] row numbers */
    const int64_t *parts;   /* [thd->samples_count] places in their rows */
    const int64_t *loss_tokens; /* [thd->samples_count] */
    int32_t cp;                 /* ranks that the samples are cut for: the mesh's cp, or the width of the group */
    int32_t cp_rank;            /* this rank among them; 0 if cp is 1 */
    int32_t cp_first;           /* hybrid: the group is ranks cp_first .. cp_first + cp - 1 of the pool; else -1 */
    int32_t reserved;           /* 0 */
} ravel_micro_batch;

/* Any micro-batch of the current update, in any order, as often as wanted (PPO epochs: ravel_plan_replay's order is
 * made of these steps). E_ARGUMENT outside of it. */
RAVEL_API ravel_status ravel_feed_micro(const ravel_feed *feed, int32_t chunk, int64_t step, ravel_micro_batch *micro,
                                        ravel_error *err);

/* The same, one after the other: one iterator for each chunk, independent of the others. */
typedef struct ravel_feed_iter {
    const ravel_feed *feed;
    int64_t step;
    int32_t chunk;
    int32_t reserved;
} ravel_feed_iter;
RAVEL_API ravel_feed_iter ravel_feed_iterate(const ravel_feed *feed, int32_t chunk);
/* 1 and the next micro-batch, or 0 after the last. */
RAVEL_API int ravel_feed_iter_next(ravel_feed_iter *iter, ravel_micro_batch *micro);

/* The index of a field by name in micro.fields, or -1. */
RAVEL_API int64_t ravel_feed_find(const ravel_feed *feed, const char *name);

/* ---- packing what was planned --------------------------------------------------------------------------- */

/* For those who plan and pack by themselves: the options with which every bin of a plan made with `plan` fits its
 * budget. align is ravel_plan_align(plan); cp and cp_kind are the plan's; `fixed`: fixed_tokens is the bin's whole
 * capacity (cp * budget, down to a multiple of align) and max_samples the plan's (it must have one). The rest are
 * defaults. */
RAVEL_API ravel_status ravel_thd_options_for_plan(const ravel_plan_options *plan, int32_t fixed,
                                                  ravel_thd_options *options, ravel_error *err);

/* The same for a group of a hybrid plan: `width` and `first` from ravel_plan_group, cp_rank = rank - first (-1: the
 * whole bin). align is ravel_plan_slot(plan, 1, width); fixed: width * budget tokens, down to a multiple of align, and
 * at least one multiple.
 *
 *     ravel_group group = ravel_plan_group(plan, micro_step, rank);
 *     ravel_bin bin = {group.samples, group.count};
 *     ravel_thd_options_for_group(&plan_options, group.width, rank - group.first, 0, &options, &err);
 *     ravel_thd_measure(&ragged, &bin, &options, &thd, &err);
 */
RAVEL_API ravel_status ravel_thd_options_for_group(const ravel_plan_options *plan, int32_t width, int32_t cp_rank,
                                                   int32_t fixed, ravel_thd_options *options, ravel_error *err);

/* ---- cursor and figures ---------------------------------------------------------------------------------------- */

/* The reading order, with the count filled in: for ravel_cursor_format and ravel_cursor_parse. */
RAVEL_API const ravel_order *ravel_feed_order(const ravel_feed *feed);
/* Where the stream goes on after the batch of the current update: what a checkpoint keeps. */
RAVEL_API ravel_cursor ravel_feed_cursor(const ravel_feed *feed);
/* Goes on from there, on every rank, before the first ravel_feed_next. E_STATE later. */
RAVEL_API ravel_status ravel_feed_seek(ravel_feed *feed, ravel_cursor cursor, ravel_error *err);

/* Over the life of the feed, on this rank. */
typedef struct ravel_feed_stats {
    int64_t batches, updates;
    double phase_sec[RAVEL_FEED_PHASES];
    double prepare_sec, exposed_sec;
    int64_t sent_bytes, needed_bytes, kept_bytes;
    int64_t memory_bytes; /* held now: blocks of updates, scratch, messages */
    ravel_reader_stats reader;
} ravel_feed_stats;
RAVEL_API void ravel_feed_read_stats(const ravel_feed *feed, ravel_feed_stats *stats);
/* An upper bound of stats.memory_bytes, for batches of up to this many micro-steps, and samples and tokens on
 * all ranks together; the reader's own memory and the plan's come on top. Known before anything is read. */
RAVEL_API int64_t ravel_feed_bound(const ravel_feed *feed, int64_t micro_steps, int64_t samples, int64_t tokens);
/* "read", "gather", ... */
RAVEL_API const char *ravel_feed_phase_name(int32_t phase);
/* Counts (update->mine on each rank, or update->counts on one) as ravel_metrics_add_batch takes them; batch->sum points
 * at `sum`. */
RAVEL_API void ravel_feed_batch(const ravel_update_counts *counts, ravel_lengths_sum *sum, ravel_metrics_batch *batch);

/* Recomputes the current update on this rank alone, from the source (all rows of the batch) with the pure functions
 * only, and compares every array of every micro-batch bit for bit: E_INTERNAL says what differs. Not collective. The
 * source must be the owners'. For tests and `ravel feed --verify`. */
RAVEL_API ravel_status ravel_feed_verify(const ravel_feed *feed, const ravel_source *source, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
