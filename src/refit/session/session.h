/* The inside of a refit session.
 *
 *     refit.c      create, run, free, the small calls
 *     connect.c    hello, manifests, directory, plan, streams, buffers: one communicator
 *     update.c     one version: begin, stream, totals, vote, switch, report
 *     tree.c       which rank forwards a stream to which
 *     stream.c     the calling thread's loop: sends, receives, passes on
 *     delta.c      what each stream sent last, in tiles (tiles.h)
 *     packer.c     fills frames (helper thread of a sender, with its team)
 *     loader.c     verifies and loads frames (helper thread of a receiver, with its team)
 *     stage.c      versions
 *
 *     [packer] --slots--> [calling thread] -----> wire -----> [calling thread] --slots--> [loader]
 *
 * Over a communicator that lends (threads), frames are not copied on the way: the loader reads them in the sender's
 * buffer, and the receiver's slots have no memory of their own.
 *
 * Over NCCL the payloads of frames travel apart (frame.h): `data` moves them from device memory to device memory,
 * `comm`, NCCL's host communicator, moves all the rest. */
#ifndef RAVEL_REFIT_SESSION_H
#define RAVEL_REFIT_SESSION_H

#include "base/system/futex.h"
#include "refit/model/caller.h"
#include "refit/model/carrier.h"
#include "refit/model/tiles.h"
#include "refit/wire/frame.h"
#include "refit/wire/intake.h"
#include "refit/session/streams.h"
#include "refit/stage/stage.h"
#include "base/system/team.h"
#include "refit/session/trace.h"
#include "refit/session/transport.h"

enum {
    RAVEL__FANOUT_MOST = 4,
    RAVEL__SENDS = 2, /* to a child, per frame: head and payloads */
    RAVEL__SLOT_SENDS = RAVEL__SENDS * RAVEL__FANOUT_MOST,
    RAVEL__BATCH_MOST = 128,       /* entries that a team packs or loads in one run */
    RAVEL__SHARE_LEAST = 64 * 1024 /* bytes of a large tensor's entries, where a team shares them */
};

/* Wakes the calling thread: a helper finished something. */
typedef struct ravel__bell {
    _Atomic uint32_t word;
} ravel__bell;

typedef enum ravel__slot_state {
    RAVEL__SLOT_FREE,     /* a sender's: or with the packer */
    RAVEL__SLOT_PACKED,   /* it may be sent */
    RAVEL__SLOT_HEAD,     /* a receiver's: its frame's head is awaited */
    RAVEL__SLOT_PAYLOADS, /* and the payloads */
    RAVEL__SLOT_HELD      /* until it is sent, passed on and loaded */
} ravel__slot_state;

typedef enum ravel__load_state { RAVEL__LOAD_NONE, RAVEL__LOAD_DUE, RAVEL__LOAD_DONE } ravel__load_state;

/* A buffer and its state. */
typedef struct ravel__refit_buffer {
    ravel__frame *head;        /* of refit->head_bytes */
    unsigned char *buffer;     /* of the payloads, on the host or the device; NULL: they are borrowed */
    const unsigned char *data; /* the payloads: in buffer, or the sender's */
    ravel__loan loan;
    _Atomic int32_t state; /* FREE -> PACKED by the packer, all else by the calling thread */
    _Atomic int32_t load;  /* DUE -> DONE by the loader */
    int32_t stream;        /* index into streams.out or streams.in; local streams: of streams.out */
    int32_t torn;          /* the payloads did not arrive whole: not to be loaded */
    int32_t recv_bad;      /* the receive was waited for, and the message had another length */
    int64_t number;        /* of the frame on this rank */
    int64_t order;         /* in which frames are loaded */
    int64_t covered;       /* bytes of weights that the frame is about, with those that it keeps */
    int64_t began_ns;
    ravel_request *recv;                     /* head or payloads */
    ravel_request *sends[RAVEL__SLOT_SENDS]; /* RAVEL__SENDS to each child */
} ravel__refit_buffer;

typedef struct ravel__buffers {
    ravel__refit_buffer *slots;
    int32_t count;
    size_t bytes; /* of a slot in `block` */
    void *block;  /* what heads, and buffers on the host, lie in */
    size_t block_bytes;
    void *device_block; /* what buffers on the device lie in */
} ravel__buffers;

/* ---- the packer ---- */

typedef struct ravel__out_cursor {
    int64_t slice; /* of the stream: the next one */
    int64_t first; /* element of it */
    uint64_t sequence;
    int32_t active; /* takes part in this update */
    int32_t ended;
    int32_t comparing; /* delta: with what was sent last */
} ravel__out_cursor;

/* What a stream sent last; kept over updates and connections (delta.c). */
typedef struct ravel__delta {
    ravel__tiles tiles;        /* an item per slice; no items: no delta */
    ravel__packed sent, fresh; /* without bytes: changed elements are not looked for */
    uint64_t signature;        /* of the slices and the blocks */
    ravel_refit_identity base; /* of `sent`; version 0: none */
} ravel__delta;

/* An entry that is being packed. */
typedef struct ravel__packing {
    const ravel__asked *slice;
    const ravel__item *item;
    int64_t number;             /* of the slice */
    int64_t first, count, each; /* elements, and their bytes on the wire */
    const void *data;           /* of the tensor */
    unsigned char *place;       /* in the buffer */
    ravel__delta *delta;
    int64_t block, at; /* with delta: of its tiles, and the block's first byte */
    int32_t comparing;
    /* as they go into the frame */
    int32_t kind;
    size_t size;
    uint64_t hash;
} ravel__packing;

typedef struct ravel__packer {
    struct ravel_refit *refit;
    ravel__out_cursor *cursors; /* [streams.out_count] */
    ravel__delta *deltas;       /* [streams.out_count] */
    ravel__packing *cuts;       /* [RAVEL__BATCH_MOST] */
    ravel__team team;
    _Atomic int32_t failed; /* status of the first cut that failed; the thread that set it writes `why` */
    ravel__casts *casts;    /* of payloads on the device; NULL: they are on the host */
    uint32_t settled;       /* entries of the frame whose hash is known */
    size_t end;             /* of the frame's payloads so far */
    int32_t window, turn;   /* of the stream that packs next */
    int64_t tensor;         /* whose data is current; -1: none */
    const void *data;
    ravel_refit_identity next;
    ravel_status status; /* of the first failure; the calling thread reads it after the thread has ended */
    ravel_error why;
    int64_t iterate_ns, pack_ns;
    int64_t frames;
    _Atomic int32_t ended;
    ravel__bell bell; /* a buffer is free */
} ravel__packer;

/* delta.c. Bytes of payloads that a frame has room for. */
size_t ravel__frame_capacity(const struct ravel_refit *refit);
/* Those of all streams of the plan, into zeroed memory: kept ones where the slices are the same. The others are
 * freed. */
ravel_status ravel__deltas_make(struct ravel_refit *refit, ravel__delta *deltas, ravel_error *err);
/* Keeps them, the array too, for the next connection. */
void ravel__deltas_keep(struct ravel_refit *refit, ravel__delta *deltas, int32_t count);
void ravel__deltas_forget(struct ravel_refit *refit);

ravel_status ravel__packer_init(ravel__packer *packer, struct ravel_refit *refit, ravel_error *err);
void ravel__packer_free(ravel__packer *packer);
/* Before an update; `has_base[i]`: all members of stream i hold the version that its delta is based on. */
void ravel__packer_begin(ravel__packer *packer, ravel_refit_identity next, const char *active, const char *has_base);
/* Fills the slot with the next frame; 0: there is none. Failures become ABORT frames. */
int ravel__packer_next(ravel__packer *packer, ravel__refit_buffer *slot, int32_t index);
/* After the vote. */
void ravel__packer_end(ravel__packer *packer, int committed);

/* ---- the loader ---- */

typedef struct ravel__loader {
    struct ravel_refit *refit;
    ravel__intake *intakes;     /* [streams.in_count] of streams that do not take part: over */
    ravel__refit_block *blocks; /* [RAVEL__BATCH_MOST] */
    int32_t waiting;            /* of them, for the team */
    ravel__team team;
    _Atomic int32_t failed; /* as the packer's */
    int64_t version;
    ravel_status status;
    ravel_error why;
    int64_t verify_ns, load_ns, kept_bytes, sparse_bytes;
    ravel__casts *casts; /* as the packer's */
    uint32_t settled;    /* entries of the frame that are in their place */
    ravel__bell bell;    /* a frame has arrived */
} ravel__loader;

ravel_status ravel__loader_init(ravel__loader *loader, struct ravel_refit *refit, ravel_error *err);
void ravel__loader_free(ravel__loader *loader);
void ravel__loader_begin(ravel__loader *loader, int64_t version, const char *active);
/* Verifies and loads the slot's frame, which belongs to streams.in[stream]. After the first failure it does nothing. */
void ravel__loader_take(ravel__loader *loader, ravel__refit_buffer *slot, int32_t stream, int32_t index);
/* Whether every stream came to its end. */
ravel_status ravel__loader_end(ravel__loader *loader);

/* ---- the session ---- */

/* A receiver's state per stream, for taking frames in turn. */
typedef struct ravel__in_state {
    int32_t active, ended, window_ended, awaiting;
    int64_t want;      /* of the stream: the first one of the current window */
    uint64_t sequence; /* of the head that comes next */
    uint64_t arrived;  /* of the frame that comes next */
    int64_t frame;     /* of the head that comes next: its number in the window */
    int32_t parent;
    int32_t children[RAVEL__FANOUT_MOST];
    int32_t child_count;
} ravel__in_state;

typedef struct ravel__out_state {
    int32_t children[RAVEL__FANOUT_MOST];
    int32_t child_count;
    int32_t local_in; /* local streams: the index in streams.in */
    int64_t frame;    /* number in the window of the frame that is sent next */
} ravel__out_state;

typedef struct ravel__wire_state {
    int64_t now_ns, progress_ns; /* the last one */
    int32_t sending, receiving;  /* slots */
    int64_t send_since, receive_since;
    int64_t send_ns, receive_ns;
    int64_t frames, bytes_sent, bytes_received;
    int32_t window, next; /* of the receiver's turn */
    int32_t coming;       /* the stream whose turn it is; below 0: not known */
    int64_t to_send;      /* number of the packed frame whose turn it is */
    int64_t to_load;      /* frames that were given to the loader */
    int32_t open_requests;
    int32_t packed_all, wanted;      /* the packer has ended; streams that have yet to end */
    int64_t done_bytes, total_bytes; /* weights that this rank sends and receives, for the progress callback */
    int64_t told_ns;
} ravel__wire_state;

struct ravel_refit {
    ravel_refit_options options;
    ravel_refit_source source_copy;
    ravel_refit_sink sink_copy;
    const ravel_refit_source *source; /* NULL or &source_copy */
    const ravel_refit_sink *sink;
    const ravel__transport *transport;
    ravel__counted memory, stage_memory;
    ravel__arena arena; /* names of the holdings */
    ravel__holding source_holding, sink_holding;
    ravel__stage stage;
    ravel__settings settings;
    uint64_t host;
    ravel_refit_identity sent; /* by the last update; version 0: none */
    ravel__delta *kept_deltas; /* [kept_count] of the connection before */
    int32_t kept_count;

    /* of one communicator */
    ravel_comm *comm; /* NULL: lost */
    ravel_comm *data; /* of payloads in device memory (NCCL); NULL: all goes over comm */
    int32_t rank, ranks;
    int32_t root; /* the lowest sender */
    int32_t senders, receivers;
    char *roles; /* [ranks] */
    ravel__terms terms;
    ravel__refit_plan plan; /* of a receiver */
    ravel__streams streams;
    ravel__buffers out_pool, in_pool;
    size_t head_bytes; /* of every frame */
    int32_t in_order;  /* one frame at a time */
    int32_t borrows;   /* payloads are read in the sender's buffers */
    int32_t threads;   /* that pack, and that load */
    ravel__packer packer;
    ravel__loader loader;
    ravel__in_state *in_states;   /* [streams.in_count] */
    ravel__out_state *out_states; /* [streams.out_count] */
    ravel__wire_state wire;
    ravel__bell bell;
    ravel__trace trace;
    int64_t began_ns, vote_ns, stream_ns; /* of the last update */
};

/* refit.c; tests put their own transport in. */
ravel_status ravel__refit_create_over(ravel_comm *comm, const ravel_refit_source *source, const ravel_refit_sink *sink,
                                      const ravel_refit_options *options, const ravel__transport *transport,
                                      ravel_refit **refit, ravel_error *err);
/* The communicator has failed: leaves it. `tell`: the others do not know yet. */
void ravel__refit_leave(ravel_refit *refit, const ravel_error *why, int tell);

/* connect.c. `status` and `err`: result of this rank's own preparations, which is sent to the others. On failure the
 * refit is left without a communicator. */
ravel_status ravel__refit_connect(ravel_refit *refit, ravel_comm *comm, ravel_status status, ravel_error *err);
void ravel__refit_disconnect(ravel_refit *refit);
/* Buffers stay over connections. */
void ravel__refit_free_buffers(ravel_refit *refit);
/* Collective: RAVEL_OK if `status` is RAVEL_OK on every rank, else the lowest failing rank's status and sentence on
 * all of them. A status of E_END only follows from another rank's failure and gives way to it. A loss of the
 * communicator comes back as such. */
ravel_status ravel__refit_agree(ravel_refit *refit, ravel_status status, ravel_error *err);

/* Collective, a step of the protocol: every rank's message, which begins with a place for its sum (hello.h), to
 * all[ranks]. E_CHECKSUM, on all ranks alike: one arrived changed; another failure is the loss of the communicator. */
ravel_status ravel__refit_gather(ravel_refit *refit, int32_t step, void *mine, void *all, size_t bytes,
                                 const char *what, ravel_error *err);

/* tree.c: sets parents and children from the members that take part; skip: [ranks], 1 for receivers that do not. Marks
 * in active_out [streams.out_count] and active_in [streams.in_count] which streams there are. nodes: room for [ranks +
 * 1]. */
void ravel__refit_trees(ravel_refit *refit, const char *skip, int32_t *nodes, char *active_out, char *active_in);

/* stream.c: moves everything. A failure that leaves the communicator usable is in packer.status or loader.status; the
 * result is only about the communicator. After ravel__refit_trees, ravel__packer_begin and ravel__loader_begin. */
ravel_status ravel__refit_stream(ravel_refit *refit, ravel_error *err);
/* After a failure that the others know of: takes frames back that were passed on, and gives them back to their lenders.
 * A lender may write its buffer only when nobody that it was passed on to reads it; all ranks wait in one order of
 * frames, so not in a ring. */
void ravel__refit_give_all_back(ravel_refit *refit);

static inline void ravel__bell_ring(ravel__bell *bell) {
    atomic_fetch_add(&bell->word, 1);
    ravel__futex_wake(&bell->word);
}

#endif
