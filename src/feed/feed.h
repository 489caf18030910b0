/* The inside of a feed.
 *
 *   consumer's thread                      feed's own thread (prefetch), or the same
 *   ravel_feed_next --- asks for batches -> prepare: read, gather, plan, meta, room, agree | exchange, pack, share
 *        |                                      |
 *        |  <--- slots that are ready ----------+
 *   uses one slot while others are prepared
 *
 * Before `agree` a rank that fails still takes part in the collectives and reports its failure in each; the agreement
 * then returns the error on all ranks. After `agree` only the communicator can fail. Any other failure aborts the
 * communicator, so that no rank waits.
 *
 * A feed is five objects: `place` (this rank in the mesh), `work` (the batch that is being prepared), `slots` (prepared
 * batches), `consumer` (what next has handed out) and `queue` (the thread between them).
 *
 * One file per step:
 *   feed_options.c   options, their values on this mesh, their digest
 *   feed_fields.c    the fields, and which part of the model gets each
 *   feed_gather.c    read; columns of integers; gather
 *   feed_rows.c      the planner's input; rows that stay together
 *   feed_plan.c      plan, metadata of a dp rank
 *   feed_count.c     what bins and updates hold
 *   feed_meta.c      metadata to every rank
 *   feed_room.c      from metadata to the sizes and places of all arrays
 *   feed_pack.c      exchange, weights, packing
 *   feed_share.c     arrays over pp and tp, or from the root
 *   feed_prepare.c   the steps in their order
 *   feed_create.c    making a feed: checks that all ranks agree
 *   feed_queue.c     the thread, and the queue of prepared batches
 *   feed.c           next, submit, iterate
 *   feed_bound.c     upper bound on its memory
 *   feed_verify.c    an update computed again on one rank, and compared */
#ifndef RAVEL_FEED_FEED_H
#define RAVEL_FEED_FEED_H

#include <ravel/exchange.h>
#include <ravel/feed.h>

#include "feed/source/field.h"
#include "base/buffer.h"

#include <pthread.h>

/* ---- fields per part of the model ----
---------------------------------------------------------------------------------- */

enum { ROLE_FIRST = 1, ROLE_LAST = 2, ROLE_ASK = 4 };
enum { RAVEL__NAME_BYTES = 48 };

/* Labels and weights come behind the source's fields. */
typedef struct ravel__fields {
    ravel_field list[RAVEL__FIELDS_MAX + 2];
    char names[RAVEL__FIELDS_MAX][RAVEL__NAME_BYTES];
    uint8_t roles[RAVEL__FIELDS_MAX + 2]; /* ROLE_ bits: which parts of the model get it; a chunk that asks gets all */
    int64_t count;                        /* all of them */
    int64_t given;                        /* of the source */
    int64_t tokens, labels, weights;      /* indices */
    int64_t mask;                         /* -1: none, every token is learnt */
    int64_t sample_weight;                /* per-sample field "sample_weight", or -1 */
    int64_t group, update, cost;          /* per-sample integer fields "group", "update" and "cost", or -1 */
    int32_t prompts;                      /* prompts and responses are planned apart: padded-2d */
    int32_t fixed;                        /* samples have no tokens: tokens and labels are -1 */
} ravel__fields;

/* The source's fields, then labels (where the source has none) and weights. */
ravel_status ravel__fields_init(ravel__fields *fields, const ravel_field *given, int64_t count,
                                const ravel_feed_options *options, ravel_error *err);
/* Whether a part of the model with these roles gets field f. */
int ravel__fields_wanted(const ravel__fields *fields, int64_t f, int32_t roles);
/* Whether field f of the source must be there to make what these roles get. */
int ravel__fields_needed(const ravel__fields *fields, int64_t f, int32_t roles);
/* The samples as ravel/weights.h wants them: a feed has offsets also if samples have no tokens. */
ravel_ragged ravel__fields_to_weigh(const ravel__fields *fields, const ravel_ragged *store);

/* ---- the integers of a sample --------------------------------------------------------------------------- */

/* Integers per sample that every rank needs for planning. Those from COLUMN_WEIGHT on exist only if the source has the
 * field, the last one only for padded-2d. */
enum {
    COLUMN_LENGTH,
    COLUMN_ID,
    COLUMN_PART,
    COLUMN_LOSS,
    COLUMN_WEIGHT,
    COLUMN_GROUP,
    COLUMN_UPDATE,
    COLUMN_COST,
    COLUMN_PROMPT,
    COLUMNS
};
#define RAVEL__NO_ID INT64_MIN /* takes the sample's number over all ranks */

typedef struct ravel__columns {
    int64_t count;         /* samples on all ranks */
    int64_t *at[COLUMNS];  /* [count] each; NULL: not there */
    int64_t column_count;  /* that are there, one after the other in `columns` */
    int64_t *counts;       /* [dp] samples of each rank */
    int has_parts;         /* some row has several samples */
    const int64_t *shared; /* [count] per place of the tree order, as the planner takes it; NULL: not looked for */
    const int32_t *order;  /* [count] */
    ravel__buffer tree;
    ravel__buffer mine, all, columns, ranks;
} ravel__columns;

/* Input of the planner, arrays of samples or of rows that stay together (feed_rows.c). */
typedef struct ravel__given {
    int64_t rows;  /* -1: samples */
    int32_t trees; /* what samples share counts once, also inside a row */
    int64_t *lengths, *groups, *costs, *responses, *shared;
    int64_t *row_starts; /* [rows + 1] first sample of each */
    int32_t *homes, *updates, *order;
    int32_t *places, *row_of; /* by sample: its place in the tree order; the row that it begins, or -1 */
} ravel__given;

/* Memory of planning. */
typedef struct ravel__plan_scratch {
    ravel__buffer input, expanded;
    ravel__given given;
    ravel_hybrid hybrid; /* of the plan over samples */
} ravel__plan_scratch;

/* ---- a prepared batch ----------------------------------------------------------------------------------- */

enum { RAVEL__PREFETCH_MOST = 8, RAVEL__SLOTS = RAVEL__PREFETCH_MOST + 1 };

/* One micro-batch of this rank. */
typedef struct ravel__micro {
    int64_t first;          /* its first sample in the batch */
    int64_t token;          /* tokens before it */
    int32_t cp_first, cp;   /* its group: first rank in the pool (-1: not hybrid) and width */
    const int64_t *offsets; /* [samples + 1] from 0 */
    ravel_thd thd;          /* all that the stage has */
} ravel__micro;

typedef struct ravel__prepared {
    ravel_words words;   /* the message, and */
    ravel_meta meta;     /* decoded */
    ravel__buffer index; /* everything below except the arrays */
    ravel__buffer block; /* the arrays */
    size_t block_bytes;
    int64_t *offsets;
    int32_t *prefixes;     /* [samples] meta.shared, NULL: nothing is shared */
    int32_t *iota;         /* 0, 1, 2, ..., one per sample of the largest bin */
    int64_t *update_steps; /* [updates + 1] */
    ravel__micro *micros;  /* [micro_steps] */
    ravel_thd *views;      /* [chunk][micro_step], with the fields that the chunk gets */
    void **tables;         /* [1 + chunks][micro_step][field] */
    char *shared;          /* the fields' arrays, which are broadcast as they are */
    size_t shared_bytes;
    int64_t element_bytes;  /* of those, what is not alignment */
    ravel_plan_stats stats; /* of the plan */
    int planned;
    ravel_cursor begin;  /* where its rows begin in the stream */
    int ready;           /* holds a batch */
    ravel_status status; /* of preparing it */
    ravel_error err;
    int64_t memory_bytes; /* that the feed held */
    ravel_reader_stats reader;
    ravel_feed_update update; /* what is the same for all its updates */
} ravel__prepared;

/* ---- the feed ------------------------------------------------------------------------------------------- */

/* A step fails when the hook returns an error; for tests. Called at the beginning of each phase. */
typedef struct ravel__fault {
    ravel_status (*at)(void *user, int32_t phase, ravel_error *err);
    void *user;
} ravel__fault;

/* This rank's place in the mesh, and what follows from it. */
typedef struct ravel__mesh_position {
    ravel_comm *world; /* the feed's own, and all below split from it; with hybrid widths dp is the whole pool */
    ravel_mesh *mesh;
    ravel_comm *tp, *dp, *pp;
    ravel_mesh_layout layout;
    ravel_mesh_coord at;
    int32_t owner;           /* this rank reads */
    int32_t weighs;          /* this rank makes loss weights */
    int32_t have;            /* ROLE_ bits that decide which fields this stage's arrays hold */
    int32_t chunk_roles[64]; /* ROLE_ bits of this rank's chunks */
    int32_t *stage_roles;    /* [pp] of all chunks of a stage */
    int32_t *stage_asks;     /* [pp] a middle stage that gets arrays from the last one; in the same allocation */
} ravel__mesh_position;

/* The batch that is being prepared: from rows to arrived samples. Only the preparing thread looks here. */
typedef struct ravel__work {
    ravel_cursor cursor, next; /* where the batch begins, and where the one behind it does */
    int64_t batch;
    const ravel_samples *mine; /* NULL: not an owner, or nothing */
    ravel_samples empty;
    ravel__columns columns;
    ravel__plan_scratch planning;
    ravel_plan *plan_made;
    ravel_plan routed; /* the plan over samples: plan_made, or its rows taken apart */
    ravel_exchange *exchange;
    ravel_exchange_sizes sizes;
    int64_t gathered_bytes; /* that the gather sent */
    ravel_ragged sendable;  /* mine, with the fields that this stage needs */
    ravel_field sendable_fields[RAVEL__FIELDS_MAX];
    int64_t sendable_of[RAVEL__FIELDS_MAX]; /* field -> index in sendable, or -1 */
    ravel_ragged arrived;
    uint64_t digest;
    ravel__buffer rows, result, scratch, weight_values, staging;
    ravel__buffer places; /* 0, 1, 2, ...: offsets of submitted samples without tokens */
    int has_prompts;      /* samples of the dp group come with prompts */
    int end;              /* there are no more rows */
} ravel__work;

/* The state of ravel_feed_next. Used by the consumer's thread only. */
typedef struct ravel__consumer {
    int64_t update;         /* of the current batch */
    int64_t handed_out;     /* updates so far */
    ravel_cursor reached;   /* behind the current batch */
    ravel_feed_update view; /* what ravel_feed_next gave */
    ravel_feed_stats stats;
    int32_t current; /* prepared batch in use; -1: none */
    int started;     /* the first preparation was asked for */
    int over;        /* the stream ended */
} ravel__consumer;

/* Samples of the next batch, if there is no source. */
typedef struct ravel__submission {
    ravel_samples samples;
    int64_t no_offsets[1];
    int pending;
} ravel__submission;

/* The preparing thread and the ring of prepared batches; `lock` guards everything except `thread`. */
typedef struct ravel__queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int running, stop;        /* the thread exists, it is to end */
    int64_t prepared_updates; /* in all */
    int32_t depth;            /* batches that may be ready or on their way */
    int32_t head, tail;       /* of the ring: the next to take, the next to prepare */
    int32_t wanted, ready;    /* batches asked for and not begun; prepared and not taken */
    int busy, halted;         /* one is being prepared; the last one failed or was the end */
} ravel__queue;

struct ravel_feed {
    const ravel_allocator *allocator;
    const ravel_logger *logger;
    ravel_feed_options options; /* plan, weights and fields in it are not used */
    ravel_plan_options plan;
    ravel_weights_options weights;
    ravel_thd_options thd; /* of bins; of groups of hybrid width: ravel__group_thd */
    ravel_order order;
    ravel__fields fields;
    const ravel_source *source; /* NULL if this rank does not read */
    ravel_reader *reader;
    int32_t by_rows; /* samples come from sources, else they are submitted */
    int32_t dead;    /* the communicator failed; written by preparing, read when that is over */
    ravel__mesh_position place;
    ravel__work work;
    ravel__submission submission;
    ravel__prepared slots[RAVEL__SLOTS];
    ravel__consumer consumer;
    ravel__queue queue;
    ravel__fault fault;
};

/* Derives the options for this mesh. With hybrid widths, dp of place.layout and place.at is the pool. */
ravel_status ravel__feed_resolve(ravel_feed *feed, const ravel_feed_options *options, ravel_error *err);
/* How a group of this width is packed for its member `cp_rank`; where the plan is not hybrid, how every bin is. */
ravel_thd_options ravel__group_thd(const ravel_feed *feed, int32_t width, int32_t cp_rank);
/* The same; `whole`: a bin whose samples share prefixes is not cut, every context-parallel rank has whole samples. */
ravel_thd_options ravel__bin_thd(const ravel_feed *feed, int whole, int32_t width, int32_t cp_rank);
int64_t ravel__common_multiple(int64_t a, int64_t b);
/* Digest of everything that must be the same on all ranks. */
uint64_t ravel__feed_digest(const ravel_feed *feed);

/* Steps, in their order. */
ravel_status ravel__feed_read(ravel_feed *feed, ravel_error *err);
/* Collective over dp. `mine` is the status so far; a failed rank takes part and reports it. *failed: some rank failed.
 * */
ravel_status ravel__feed_gather(ravel_feed *feed, ravel_status mine, int *failed, ravel_error *err);
/* With share_prefix: what samples share, into the columns. Collective over dp. */
ravel_status ravel__feed_tree(ravel_feed *feed, ravel_error *err);
ravel_status ravel__feed_plan(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);
/* Collective over pp and tp, or the world. */
/* A message that this rank made, without the checks of ravel_meta_decode: the arrays are in `words`. */
ravel_meta ravel__meta_view(const int64_t *words);
ravel_status ravel__feed_meta(ravel_feed *feed, ravel__prepared *slot, ravel_status mine, ravel_error *err);
ravel_status ravel__feed_room(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);
ravel_status ravel__feed_exchange(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);
ravel_status ravel__feed_pack(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);
ravel_status ravel__feed_share(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);
/* All of them. The status is in the slot. */
void ravel__feed_prepare(ravel_feed *feed, ravel__prepared *slot);

/* Whether a cursor is a place in the stream (order.c). */
int ravel__cursor_is_in(const ravel_order *order, ravel_cursor cursor);

/* ---- the queue (feed_queue.c) --------------------------------------------------------------------------- */

void ravel__queue_start(ravel_feed *feed);
void ravel__queue_stop(ravel_feed *feed);
/* Asks for this many more batches. */
void ravel__queue_ask(ravel_feed *feed, int32_t batches);
int ravel__queue_is_empty(ravel_feed *feed);
/* The next slot, prepared or failed. */
int32_t ravel__queue_take(ravel_feed *feed);

/* ---- shared prefixes (feed_tree.c) ----------------------------------------------------------------------- */

/* What samples share, into c->shared and c->order: `samples` are this rank's of the ranks of comm (collective; bytes
 * are added to *sent), or with comm NULL those of all ranks. */
ravel_status ravel__tree_find(const ravel_feed *feed, ravel__columns *columns, const ravel_samples *samples,
                              ravel_comm *comm, int64_t *sent, ravel_error *err);
/* Shared lengths are multiples of `block` from `begin` on. */
void ravel__tree_blocks(const ravel__columns *columns, int64_t *begin, int64_t *block);
/* Whether samples that arrived have the tokens in common that the metadata says. */
ravel_status ravel__tree_compare(const ravel__prepared *slot, const ravel_ragged *arrived, ravel_error *err);

/* ---- pieces that verifying uses too --------------------------------------------------------------------- */

/* Whether some row of the samples has several. */
int ravel__columns_have_parts(const ravel_samples *samples);
/* Words of a row, and the rows of `samples`. */
int64_t ravel__columns_width(const ravel__fields *fields, int has_parts);
ravel_status ravel__columns_fill(const ravel__fields *fields, const ravel_samples *samples, int has_parts, int64_t *out,
                                 ravel_error *err);
/* The rows in columns.all, has_parts and count being set, to columns; ids that were not given become numbers. */
ravel_status ravel__columns_split(ravel__columns *columns, const ravel__fields *fields,
                                  const ravel_allocator *allocator, ravel_error *err);
void ravel__columns_free(ravel__columns *columns, const ravel_allocator *allocator);
/* Plans the columns: *made is the planner's, *routed the same over samples (other arrays where rows that are packed
 * already were kept whole; those live in the scratch). */
ravel_status ravel__plan_columns(const ravel_feed *feed, const ravel__columns *columns, ravel__plan_scratch *scratch,
                                 ravel_plan **made, ravel_plan *routed, ravel_error *err);
/* Room in the scratch; the planner's input, with shared prefixes or without; the first sample of what the planner calls
 * a sample; the plan over samples from the plan over rows. */
ravel_status ravel__rows_room(const ravel_feed *feed, int64_t count, ravel__plan_scratch *scratch, ravel_error *err);
void ravel__rows_input(const ravel_feed *feed, const ravel__columns *columns, int trees, ravel__given *given,
                       ravel_plan_input *input);
int64_t ravel__rows_sample(const ravel__given *given, int64_t row);
/* Whether samples of a row share tokens; the planner sees only what rows share with one another. */
int ravel__rows_share(const ravel__columns *columns, const ravel__given *given);
ravel_status ravel__rows_unfold(const ravel_feed *feed, const ravel__columns *columns, ravel__plan_scratch *scratch,
                                ravel_plan *plan, ravel_error *err);
/* Whether the samples of a row are planned as one. */
int ravel__rows_stay(const ravel_feed *feed, const ravel__columns *columns);
/* The slot of a sample on the widest group: no group needs more for it. */
int64_t ravel__rows_slot(const ravel_feed *feed, int64_t length);

/* The samples of a bin: columns, and which of their numbers. */
typedef struct ravel__bin_view {
    const int64_t *lengths, *loss, *prompts; /* prompts: NULL unless the layout is padded-2d */
    const int64_t *shared;                   /* [count] with the sample before it in the bin; NULL: nothing */
    const int32_t *samples;                  /* [count] NULL: 0, 1, 2, ... */
    int64_t count;                           /* 0: a filler */
    int32_t width;
} ravel__bin_view;
/* Tokens of the budget that a bin uses: slots (on a group of its width), a rectangle, or one slot of a tree. */
int64_t ravel__bin_tokens(const ravel_feed *feed, const ravel__bin_view *bin);
/* Counts of an update over all ranks, or of dp rank `dp` alone where that is not -1; of this rank by the metadata. The
 * samples of a group of hybrid width are counted on its first rank. */
void ravel__count_update(const ravel_feed *feed, const ravel__columns *columns, const ravel_plan *plan, int64_t update,
                         int32_t dp, ravel_update_counts *counts, ravel_counts *loss);
void ravel__count_mine(const ravel_feed *feed, const ravel__prepared *slot, int64_t update,
                       ravel_update_counts *counts);
/* The plan's options where samples share prefixes: bins are dealt to context-parallel ranks by chunks. */
ravel_plan_options ravel__tree_options(const ravel_feed *feed);
/* How micro-step s is packed on this rank. */
ravel_thd_options ravel__micro_thd(const ravel_feed *feed, const ravel__prepared *slot, int64_t s);
/* A ragged store of micro-batch m alone: offsets from 0, fields' data moved to its first sample. fields[] is scratch.
 */
ravel_ragged ravel__micro_ragged(const ravel__micro *micro, int64_t samples, const ravel_field *fields,
                                 int64_t field_count, ravel_field *shifted);

#endif
