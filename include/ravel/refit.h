/* ravel/refit.h: weights from the ranks that train to the ranks that generate, all or nothing.
 *
 * Nouns
 *   source    the tensors of a sending rank: name, how each is cut over the senders, where its bytes are.
 *   sink      the tensors of a receiving rank, in the same form. A rank may have a source, a sink, both or neither.
 *   rule      how names map: a fused tensor (qkv, gate_up, stacked experts) to the tensors that it is made of.
 *   refit     a session: source and sink have been compared over all ranks, the slices are planned, the buffers are
 *             allocated. It is made once and used for every update.
 *   frame     one message of slices, at most a buffer long, with a checksum (docs/refit-wire.md).
 *   version   a positive number that the senders give to a set of weights; 0: nothing whole yet.
 *
 *     sender     [iterate + pack] -> buffer i+1        N buffers of B bytes on each rank, and no more,
 *     wire            [send, receive] -> buffer i      whatever the largest tensor is
 *     receiver             [verify + load] <- buffer i-1
 *
 * Three rungs
 *
 * 1. One call. Every rank calls it, with a source or a sink:
 *
 *     ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_BF16, .ndim = 2, .dims = {4096, 4096}, .data = w};
 *     ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
 *     ravel_refit_run(comm, &source, NULL, NULL, 1, NULL, &err);                       on the senders
 *     ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
 *     ravel_refit_run(comm, NULL, &sink, NULL, 1, &report, &err);                      on the receivers
 *
 * 2. A session, for a training loop. Receivers keep two sets of weights: generate from one, receive into the other.
 *
 *     ravel_refit_create(comm, &source, &sink, &options, &refit, &err);
 *     for (int64_t version = 1; training; version++) {
 *         ... train ...
 *         ravel_refit_update(refit, version, &report, &err);      all ranks hold `version`, or all the one before
 *         weights = ravel_refit_data(refit, tensor);              receivers: where the live version is now
 *     }
 *     ravel_refit_free(refit);
 *
 * 3. Streaming: source.iterate makes each tensor when it is its turn (gather it, dequantise it, read it from a file),
 *    sink.load takes each verified piece (copy it to a device). See the two structs.
 *
 * All or nothing: receivers stage a version beside the live one (or in place with an undo log), verify every byte,
 * vote, and only then switch, together. When anything fails on any rank (a callback, a checksum, memory, a deadline, a
 * lost rank) every remaining rank still has the old version, whole, and ravel_refit_update returns the reason:
 *   other statuses                      the communicator is fine: call ravel_refit_update again.
 *   E_PEER_LOST, E_TIMEOUT, E_DEAD      the communicator is dead: make a new one and call ravel_refit_connect.
 * docs/refit.md describes the limits of this promise when a rank is lost during the vote itself.
 *
 * Every call that takes a comm or a refit and an err is collective: all ranks of the communicator call it in the same
 * order. An argument that is wrong on one rank fails the call on all, with the same sentence.
 *
 * Threads: a refit belongs to one thread at a time. It runs one helper thread for iterate and pack and one for verify
 * and load, only inside ravel_refit_update; the callbacks are called from these, one call at a time. Each of the two
 * has options.threads - 1 further threads beside it for large updates.
 */
#ifndef RAVEL_REFIT_H
#define RAVEL_REFIT_H

#include <ravel/comm.h>
#include <ravel/metrics.h>
#include <ravel/shape.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVEL_REFIT_DIMS  6 /* the most dimensions of a tensor */
#define RAVEL_REFIT_PARTS 8 /* the most tensors that one rule joins */

typedef struct ravel_refit ravel_refit;

/* Which weights. Two identities are equal only if the bytes are: a version that was trained again after a rollback
 * has the same number and another nonce. */
typedef struct ravel_refit_identity {
    int64_t version; /* given by the trainers, above 0; 0: no weights yet */
    uint64_t nonce;  /* random, drawn once per publication */
    /* publications: hash of the hashes of all blocks of all trainer ranks (docs/refit-wire.md); else 0 */
    uint64_t digest;
} ravel_refit_identity;

/* ---- tensors, rules, sources, sinks --------------------------------------------------------------------- */

/* A tensor as one rank has it. Zero what you do not use: `= {0}` and designated initialisers do that.
 *
 *     dims {6, 4}, parts {3, 0}, index {1, 0}         start {1, 0}, extent {2, 3}
 *
 *     . . . .                                          . . . .
 *     . . . .                                          x x x .      x: what this rank has
 *     x x x x                                          x x x .
 *     x x x x                                          . . . .
 *     . . . .
 *
 * Part i of n of a dimension of d is [d*i/n, d*(i+1)/n), so uneven cuts are fine. Ranks with the same piece are
 * replicas (data parallelism): any of them may send it, all of them receive it. */
typedef struct ravel_refit_tensor {
    const char *name;
    int32_t dtype;                     /* of the memory here; see options.cast */
    int32_t ndim;                      /* 0: a scalar */
    int64_t dims[RAVEL_REFIT_DIMS];    /* of the whole tensor, all ranks together */
    int32_t parts[RAVEL_REFIT_DIMS];   /* number of parts of each dimension (0: 1) ... */
    int32_t index[RAVEL_REFIT_DIMS];   /* ... of which this rank has this one */
    int64_t start[RAVEL_REFIT_DIMS];   /* or, if extent[0] > 0: exactly the box start .. start+extent */
    int64_t extent[RAVEL_REFIT_DIMS];  /* (padded vocabularies, odd cuts) */
    int64_t strides[RAVEL_REFIT_DIMS]; /* of the piece in memory, in elements; all 0: row-major without holes */
    void *data;                        /* the piece; a source is only read. NULL if a callback provides or takes it */
    void *spare;                       /* sinks: the second set, of the same strides; NULL: the session allocates it */
    /* Where data and spare are, and what iterate returns; all zero: host memory. All tensors of a source, or of a sink,
     * are in host memory or on one device. A device's stream orders: the tensors are read and written after what is in
     * it when ravel_refit_update, ravel_publisher_publish, ravel_puller_stage or _commit is called, and everything is
     * done when the version is sent or committed. Over an NCCL communicator (ravel_comm_nccl) weights go from device to
     * device; all tensors are on its device then. */
    ravel_place place;
} ravel_refit_tensor;

/* How a rule's tensor is made of its parts, and how it is then cut over ranks. */
typedef enum ravel_refit_join {
    RAVEL_REFIT_CONCAT, /* the parts one after the other along `dim`, in proportion to `shares`; each is cut on its own:
                           rank i has [part 0's i-th piece, part 1's i-th piece, ...] (gate_up everywhere) */
    RAVEL_REFIT_QKV,    /* the same for q, k, v of `heads` and `kv_heads`, cut between heads; with more ranks than
                           kv_heads, k and v are repeated (vLLM, SGLang) */
    RAVEL_REFIT_QKV_GROUPED /* per key-value head: its query heads, its key, its value (Megatron's linear_qkv) */
} ravel_refit_join;

/* `name` is a pattern: each '*' stands for one piece of a name between dots, and for the same piece in `parts`.
 *
 *     {.name = "model.layers.*.self_attn.qkv_proj.weight", .join = RAVEL_REFIT_QKV, .heads = 32, .kv_heads = 8,
 *      .parts = "model.layers.*.self_attn.q_proj.weight,model.layers.*.self_attn.k_proj.weight,"
 *               "model.layers.*.self_attn.v_proj.weight"}
 *
 * One part is a new name. The first rule that fits a tensor counts; a tensor without a rule keeps its name. */
typedef struct ravel_refit_rule {
    const char *name;
    const char *parts; /* separated by commas */
    int32_t join;      /* ravel_refit_join */
    int32_t dim;       /* along which they are joined, counted without the stack's dimension */
    int64_t heads, kv_heads;
    int64_t shares[RAVEL_REFIT_PARTS]; /* CONCAT: relative sizes; all 0: equal */
    int64_t stack;                     /* > 0: the tensor has one more dimension in front, of this size; '#' in the
                                          parts is the position in it (experts) */
    const int32_t *map; /* [stack] what '#' is at each position, -1: nothing there (expert placement); NULL: the
                           position. It must outlive the call that takes the rules */
} ravel_refit_rule;

/* Rules of well-known frameworks for a model, to Hugging Face names: "vllm", "sglang", "megatron", "fsdp2", "hf" (the
 * last two keep Hugging Face's names and only drop wrappers' prefixes). fp8 block scales (weight_scale_inv) are fused
 * like their weights. With "+tied" after the name ("megatron+tied") an output layer is the embedding: if a rank lists
 * both, a source sends one of them, and a sink gets it once and loads it into both. Writes at most `most` rules and
 * returns how many there are; 0: no such set. `heads` and `kv_heads` of the model, `experts` 0 for dense ones. The
 * strings are static. */
RAVEL_API int64_t ravel_refit_rules_named(const char *set, int64_t heads, int64_t kv_heads, int64_t experts,
                                          ravel_refit_rule *rules, int64_t most);

#define RAVEL_REFIT_NAME_BYTES 96 /* of a name that ravel_refit_shape_tensors writes */

/* The tensors of a model, by Hugging Face's names, as rank `index` of `tp` holds them where vLLM, SGLang and Megatron
 * cut: queries, keys, values, gate, up and vocabulary along the first dimension, attention output and down along the
 * second, norms and router not at all; with more ranks than kv_heads, keys and values are repeated. At most `most` are
 * written, with names into names[most][RAVEL_REFIT_NAME_BYTES], which the tensors point to; data is NULL. Returns how
 * many there are. For benches and tests, and if a framework has just these tensors. */
RAVEL_API int64_t ravel_refit_shape_tensors(const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index,
                                            ravel_refit_tensor *tensors, char *names, int64_t most);
/* Elements of the piece that the rank has. */
RAVEL_API int64_t ravel_refit_tensor_elements(const ravel_refit_tensor *tensor);

typedef struct ravel_refit_source {
    size_t size; /* sizeof(ravel_refit_source) */
    const ravel_refit_tensor *tensors;
    int64_t count;
    const ravel_refit_rule *rules;
    int64_t rule_count;
    /* Where the bytes of tensors[index] are now. NULL: in tensors[index].data, from create to free. Tensors are asked
     * for in their order; what is returned must stay until the next call or the end of the update. iterate may
     * be called again for a small tensor, once per receiver group. */
    ravel_status (*iterate)(void *user, int64_t index, const void **data, ravel_error *err);
    void *user;
} ravel_refit_source;

/* A verified run of elements of one of the sink's tensors. */
typedef struct ravel_refit_piece {
    int64_t tensor;    /* index into sink.tensors */
    int64_t first;     /* element of this rank's piece, counted row-major as if without holes */
    int64_t count;     /* elements */
    int32_t dtype;     /* of data: what travelled, the sink's dtype or a narrower one */
    int32_t reserved;  /* 0 */
    const void *data;  /* [count], valid during the call, any alignment; NULL: unchanged since the version before */
    ravel_place place; /* of data: always host memory today */
} ravel_refit_piece;

typedef struct ravel_refit_sink {
    size_t size; /* sizeof(ravel_refit_sink) */
    const ravel_refit_tensor *tensors;
    int64_t count;
    const ravel_refit_rule *rules;
    int64_t rule_count;
    int64_t version; /* that the tensors' data holds at first; 0: nothing that would have to be kept */
    /* All NULL: the session copies into data and spare. Otherwise load and abort are required, and staging is the
     * caller's: begin, load ..., then exactly one of commit and abort. commit cannot fail: it is the switch. */
    ravel_status (*begin)(void *user, int64_t version, ravel_error *err);
    ravel_status (*load)(void *user, const ravel_refit_piece *piece, ravel_error *err);
    void (*commit)(void *user, int64_t version);
    void (*abort)(void *user, int64_t version);
    void *user;
} ravel_refit_sink;

/* ---- options -------------------------------------------------------------------------------------------- */

typedef enum ravel_refit_cast {
    RAVEL_REFIT_EXACT, /* a tensor has the same dtype on both sides, or that is a difference */
    RAVEL_REFIT_NARROW /* f64, f32, bf16, f16 may differ; the narrower of the two travels */
} ravel_refit_cast;
#define RAVEL_REFIT_CAST_CHOICES "exact|narrow"

typedef enum ravel_refit_stage {
    RAVEL_REFIT_SPARE, /* into the set that is not live; the commit swaps the two */
    RAVEL_REFIT_UNDO,  /* in place, what was there goes to a log first; no reader may use the weights meanwhile */
    RAVEL_REFIT_COPY /* into a staging set; the commit copies it to `data`, whose addresses never change (CUDA graphs) */
} ravel_refit_stage;
#define RAVEL_REFIT_STAGE_CHOICES "spare|undo|copy"

typedef struct ravel_refit_options {
    size_t size;          /* sizeof(ravel_refit_options), set by ravel_refit_options_default */
    int32_t num_buffers;  /* N, 1 .. 16; 0: RAVEL_REFIT_NUM_BUFFERS, else 2 */
    int32_t cast;         /* ravel_refit_cast */
    int64_t buffer_bytes; /* B, from 4 KiB; 0: RAVEL_REFIT_BUFFER_BYTES, else from memory_ratio */
    /* share that the N buffers take together of the memory that they are in (this machine's, or the GPU's over
     * NCCL); 0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else at most 0.02, and what is best for the transport: 1 to 4 MiB
     * per buffer, over TCP 1 MiB, over NCCL up to 64 MiB */
    double memory_ratio;
    int32_t stage;        /* ravel_refit_stage, of sinks without callbacks; each rank its own */
    int32_t delta;        /* send only blocks that changed since the version before */
    int64_t delta_block;  /* bytes of a block; 0: 256 KiB, more for models beyond 8 GiB per stream */
    double timeout;       /* seconds without progress; 0: the communicator's */
    int32_t ignore_extra; /* tensors of senders that no receiver wants are left out instead of being a difference */
    int32_t trace;        /* keep events of the last update for ravel_refit_trace */
    int32_t audit;        /* hash every tensor when it is complete, for ravel_refit_audit */
    int32_t threads;      /* that pack, and as many that load, to 64; 0: by cores, ranks of the machine and link */
    /* Called on the calling thread now and then, and at the end of a stream: weights of this rank that are sent or
     * loaded (with those that delta kept), of all that it sends and receives. It must return soon: peers wait. */
    void (*progress)(void *user, int64_t done_bytes, int64_t total_bytes);
    void *progress_user;
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the refit */
    const ravel_logger *logger;       /* NULL: silent; gets every difference, one per line */
    /* with delta, of a sender: of blocks that changed, only changed elements are sent if that is less. The rank
     * keeps what it sent last and what it sends, so it takes twice its streams of memory */
    int32_t sparse;
} ravel_refit_options;

RAVEL_API void ravel_refit_options_default(ravel_refit_options *options);
RAVEL_API ravel_option_table ravel_refit_option_table(void);

/* ---- report ---------------------------------------------------------------------------------------------- */

/* Seconds of work, each phase on its own; where they overlap they add up to more than `seconds`. */
typedef enum ravel_refit_phase {
    RAVEL_REFIT_ITERATE, /* source.iterate */
    RAVEL_REFIT_PACK,    /* gather, cast, checksum */
    RAVEL_REFIT_SEND,    /* at least one frame of this rank is being sent */
    RAVEL_REFIT_RECEIVE, /* from a frame's head to its last byte */
    RAVEL_REFIT_VERIFY,  /* checksums, if they are not computed on the way into place */
    RAVEL_REFIT_LOAD,    /* cast, scatter (hashed on the way where the model is large), sink.load, undo log */
    RAVEL_REFIT_VOTE,    /* agreement at both ends, and the switch */
    RAVEL_REFIT_PHASES
} ravel_refit_phase;
#define RAVEL_REFIT_PHASE_NAMES "iterate|pack|send|receive|verify|load|vote"

typedef struct ravel_refit_report {
    size_t size;          /* sizeof(ravel_refit_report); set it before the call */
    int64_t version;      /* that this rank's sink holds now; on a sender, that was sent */
    int64_t bytes_needed; /* all ranks: what the receivers' pieces take in the dtype that travels */
    int64_t bytes_moved;  /* all ranks: what went over the wire, with headers and padding, each hop counted */
    int64_t bytes_kept;   /* all ranks: of bytes_needed, what delta left out */
    int64_t frames;       /* this rank: sent or received */
    int64_t tensors;      /* this rank's */
    int64_t my_bytes;     /* this rank: bytes sent or received */
    int64_t buffer_bytes; /* B */
    int32_t num_buffers;  /* N */
    int32_t live;         /* this rank's sink: 0 if tensors[].data is live, 1 if spare is */
    int32_t senders;      /* ranks with a source */
    int32_t receivers;    /* ranks with a sink; those that had the version already are not served again */
    int32_t served;       /* receivers that got something */
    int32_t delta;        /* 1: blocks were compared with the version before */
    double seconds;       /* the whole call */
    double phase[RAVEL_REFIT_PHASES];      /* this rank */
    double phase_most[RAVEL_REFIT_PHASES]; /* the slowest rank */
    double overlap;       /* of iterate+pack, wire and verify+load: the share of the smaller two that was hidden */
    double gb_per_second; /* bytes_needed / seconds / 1e9 */
    int64_t peak_bytes;   /* this rank: the most memory that the session held, without spare sets and undo log */
    int64_t stage_bytes;  /* this rank: spare sets that the session allocated, and the undo log in memory */
    int64_t peak_most;    /* the largest peak_bytes of all ranks */
    int64_t bytes_sparse; /* all ranks: of bytes_needed, what came as changed elements */
} ravel_refit_report;

/* ---- the calls ------------------------------------------------------------------------------------------ */

/* Collective. Compares sources, sinks and settings of all ranks, plans the slices, allocates the buffers. The structs,
 * arrays, names and callbacks of source and sink must outlive the refit; either may be NULL. The communicator is
 * duplicated and remains the caller's.
 *
 * E_MISMATCH lists all differences, on every rank: names that only one side has, shapes, dtypes, pieces that no
 * rank sends, buffers of different number or size with the rank of each value. */
RAVEL_API ravel_status ravel_refit_create(ravel_comm *comm, const ravel_refit_source *source,
                                          const ravel_refit_sink *sink, const ravel_refit_options *options,
                                          ravel_refit **refit, ravel_error *err);

/* Collective. The same session over another communicator: after a failure, or when ranks have joined (they call
 * ravel_refit_create at the same time) or left. Versions and weights stay. A receiver that had everything of the
 * last version and missed only the result of the vote switches now, if another one did. */
RAVEL_API ravel_status ravel_refit_connect(ravel_refit *refit, ravel_comm *comm, ravel_error *err);

/* Collective. Brings every receiver to `version`, which the senders give; receivers pass the same or 0. Receivers that
 * have it already (from these senders) get nothing, so a rank that joined late is brought up alone. report may be
 * NULL; it is also filled, as far as known, when the call fails. */
RAVEL_API ravel_status ravel_refit_update(ravel_refit *refit, int64_t version, ravel_refit_report *report,
                                          ravel_error *err);

/* create, update, free. Sinks without callbacks end up in data: stage is UNDO where sink.version > 0. */
RAVEL_API ravel_status ravel_refit_run(ravel_comm *comm, const ravel_refit_source *source, const ravel_refit_sink *sink,
                                       const ravel_refit_options *options, int64_t version, ravel_refit_report *report,
                                       ravel_error *err);

/* Not collective, as everything below. The caller's data and spare stay the caller's; with an allocated spare set that
 * is live, its content is first copied to data. */
RAVEL_API void ravel_refit_free(ravel_refit *refit);

/* The version that the sink holds, or that the source sent last; 0: none. */
RAVEL_API int64_t ravel_refit_version(const ravel_refit *refit);
/* Where the live version of sink.tensors[index] is; NULL with callbacks or a wrong index. */
RAVEL_API void *ravel_refit_data(const ravel_refit *refit, int64_t index);
/* 1 after E_PEER_LOST, E_TIMEOUT or E_DEAD, until ravel_refit_connect. */
RAVEL_API int ravel_refit_lost(const ravel_refit *refit);

/* Hashes the live tensors again and compares with the hashes of the commit: E_CHECKSUM names the first that changed.
 * E_STATE without options.audit or before the first version. */
RAVEL_API ravel_status ravel_refit_audit(const ravel_refit *refit, ravel_error *err);

/* The last update's events as JSON for chrome://tracing and Perfetto: one asynchronous track per buffer, one
 * process per rank; args.events_left_out counts the events after the first 4096. `write` gets the text in pieces; a
 * status that it returns ends the call. Events of several ranks can be joined: first and last say whether to open and
 * close the list. */
RAVEL_API ravel_status ravel_refit_trace(const ravel_refit *refit, int32_t first, int32_t last,
                                         ravel_status (*write)(void *user, const char *text, size_t bytes,
                                                               ravel_error *err),
                                         void *user, ravel_error *err);

/* Counts an update in metrics, as the rows refit/...; any rank's report will do, and all of them together. */
RAVEL_API void ravel_refit_count(const ravel_refit_report *report, ravel_metrics *metrics);

#ifdef __cplusplus
}
#endif
#endif
