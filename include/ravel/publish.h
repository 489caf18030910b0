/* ravel/publish.h: trainers publish versions of the weights; generators pull them at any time.
 *
 * Nouns
 *   publication  the last K versions of a trainer's weights, offered by all its ranks under one address.
 *   publisher    one trainer rank's part of it. It has a source (ravel/refit.h), keeps copies, and serves them from threads
 *                of its own.
 *   puller       one generator rank's part. It has a sink. All ranks of a generator (its tensor-parallel group, say) are one
 *                unit: they stage the same version and commit it together.
 *   identity     which weights: version, nonce and digest of the content (ravel/refit.h).
 *   address      "host:port", "[2001:db8::1]:port", ":port" (this machine only), "unix:/path", "unix:@name".
 *
 * Trainers and generators need not have been launched together. A generator may join late, be slow, stop in the middle
 * or be killed: the trainers do not wait for it, and other generators are not affected. A late generator gets the
 * newest version.
 *
 * The trainer's loop, on every trainer rank (`comm`: the trainers' communicator; one rank: ravel_comm_self):
 *
 *     ravel_publisher_create(comm, "0.0.0.0:7700", &source, NULL, &publisher, &err);
 *     for (int64_t version = 1; training; version++) {
 *         ... train ...
 *         ravel_publisher_publish(publisher, version, &err);        copies this rank's pieces, then returns
 *     }
 *     ravel_publisher_free(publisher);
 *
 * The generator's loop, on every rank of one generator (`comm`: that generator's ranks):
 *
 *     ravel_puller_create(comm, "trainer-0:7700", &sink, NULL, &puller, &err);
 *     while (generating) {
 *         ravel_puller_poll(puller, &state, &err);                  the same answer on every rank
 *         if (state == RAVEL_PULL_NEWER) ravel_puller_stage(puller, 0, &err);      begins, in the background
 *         if (state == RAVEL_PULL_READY) ravel_puller_commit(puller, &report, &err);   between two steps
 *         ... decode one step with ravel_puller_data(puller, tensor) ...
 *     }
 *     ravel_puller_free(puller);
 *
 * States:  IDLE -> (a newer version is published) NEWER -> stage -> STAGING -> READY -> commit -> IDLE
 * A stage that fails is reported by poll, once, on every rank; the live version was not touched, and the state is IDLE
 * or NEWER again: stage again.
 *   E_IO         the link to a trainer was lost or silent, also because the version is no longer kept
 *   E_STATE      the trainers do not keep the version any more, or were restarted
 *   E_CHECKSUM, E_DATA, E_MISMATCH, E_MEMORY, E_CALLBACK     as everywhere
 *   E_PEER_LOST, E_TIMEOUT, E_DEAD     the generator's own communicator is dead: free the puller, make a new one
 *
 * Costs: publish costs the trainer one pass over its pieces (copy and hash, on options.threads threads), never a
 * wait for a generator. Staging costs the generator memory bandwidth in the background. The pause is the commit alone:
 * an agreement of the generator's ranks and, by kind of stage, a swap of two pointers or a copy. Both are in the
 * report.
 *
 * All or nothing: until every rank of the generator has verified every byte, nothing is committed; a generator holds
 * one version, whole. Equal identities are equal bytes.
 *
 * Devices: tensors may be in device memory (ravel_refit_tensor.place). publish packs, casts and hashes there, after
 * what is in the tensors' streams; versions are kept on the device. A generator on the same device of the same machine
 * (and user) maps them and reads them where they lie, cast, scattered and verified by one kernel. For any other one
 * they come through page-locked memory, over the link. A source with iterate, and casts that no kernel makes, go
 * through host memory.
 *
 * Token: both ends of every link prove that they know the same secret. Without one, a publisher at an address of this
 * machine serves processes of its own user only: over Unix sockets the system says who connects; on loopback both ends
 * use a token that the first of them writes to ravel/token in the user's cache folder (XDG_CACHE_HOME, ~/.cache). Other
 * addresses need a token, or options.open. The word "none" on both sides: every process that reaches the address may
 * connect. With `tls` on both sides, what goes over TCP is encrypted, too (docs/comm.md).
 *
 * Threads: a publisher and a puller belong to one thread at a time. The set that ravel_puller_data names is not written
 * until the stage after the next commit begins (stage spare), or the next commit (stage copy): readers on other threads
 * are done with it by then. sink.load is called from threads of the puller, one call at a time.
 */
#ifndef RAVEL_PUBLISH_H
#define RAVEL_PUBLISH_H

#include <ravel/refit.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_publisher ravel_publisher;
typedef struct ravel_puller ravel_puller;

/* ---- trainers ------------------------------------------------------------------------------------------- */

typedef struct ravel_publish_options {
    size_t size;         /* sizeof(ravel_publish_options), set by ravel_publish_options_default */
    int32_t keep;        /* versions that are kept, 1 to 64; a generator that still pulls an older one starts again */
    int32_t threads;     /* threads that copy and that serve; 0: by cores, at most 8 */
    int64_t block_bytes; /* of a hashed block, a multiple of 8 from 4k; the same on every trainer rank */
    int32_t dtype;       /* floats wider than this are kept as this (RAVEL_BF16, ...); -1: as they are */
    int32_t open;        /* 1: listen beyond this machine without a token */
    const char *token;   /* shared secret that generators must know; NULL: RAVEL_TOKEN, RAVEL_TOKEN_FILE; see below */
    const char *allow;   /* networks that may connect, like 10.0.0.0/8,fd00::/8; NULL: any */
    const char *host;  /* name under which generators reach this rank; NULL: the address's, else this machine's name */
    int32_t max_links; /* connections per serving thread */
    int32_t tls;       /* 1: connections over TCP are encrypted; also if RAVEL_TLS is 1 */
    double timeout;    /* seconds for the trainers' agreements; 0: the communicator's */
    /* 1: of blocks that a generator holds in a kept version, only changed elements are sent if that is less */
    int32_t sparse;
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the publisher */
    const ravel_logger *logger;       /* NULL: silent */
} ravel_publish_options;

RAVEL_API void ravel_publish_options_default(ravel_publish_options *options);
RAVEL_API ravel_option_table ravel_publish_option_table(void);

/* Collective over the trainers' communicator, which is duplicated. `address`: where this rank listens. Generators are
 * told rank 0's; other ranks may pass NULL: a free port, or a path beside rank 0's. The source must outlive the
 * publisher, its data only each publish. Memory: keep * ravel_publisher_version_bytes, and hashes of the last 64
 * versions. */
RAVEL_API ravel_status ravel_publisher_create(ravel_comm *comm, const char *address, const ravel_refit_source *source,
                                              const ravel_publish_options *options, ravel_publisher **publisher,
                                              ravel_error *err);

/* Collective. The source's weights become `version`, which must be above the last one; when it returns, the source may
 * be changed. All trainer ranks have it then, or none shows it. Generators that pull the version which this one
 * replaces (the oldest kept) are cut off; publish waits for no generator. */
RAVEL_API ravel_status ravel_publisher_publish(ravel_publisher *publisher, int64_t version, ravel_error *err);

/* Not collective, as everything below. Ends all connections; generators keep what they have committed. */
RAVEL_API void ravel_publisher_free(ravel_publisher *publisher);

/* Where generators find the publication: rank 0's address, with the real port. */
RAVEL_API const char *ravel_publisher_address(const ravel_publisher *publisher);
/* The newest version; version 0: none yet. */
RAVEL_API ravel_refit_identity ravel_publisher_newest(ravel_publisher *publisher);
/* Bytes of one kept version on this rank. */
RAVEL_API int64_t ravel_publisher_version_bytes(const ravel_publisher *publisher);
/* Seconds that the last publish took on this rank: all of it, and the copy alone. */
RAVEL_API void ravel_publisher_seconds(const ravel_publisher *publisher, double *total, double *copy);

/* A generator as it last reported itself. */
typedef struct ravel_generator_report {
    uint64_t generator;        /* a number that identifies the generator */
    ravel_refit_identity held; /* version 0: none yet */
    int64_t lag;               /* versions published since the one that it holds, at most 64 */
    int32_t ranks;
    int32_t connected;        /* 0: not connected any more */
    double prepare_seconds;   /* of its last commit: staging, while it went on generating */
    double pause_seconds;     /* of its last commit: what it waited */
    double tokens_per_second; /* from ravel_puller_note; 0: not given */
    int64_t bytes;            /* pulled for its last commit */
    int64_t commits;
    double age_seconds;   /* since the report */
    int64_t bytes_needed; /* rank 0 of the generator: its pieces at its last commit */
    double changed_share; /* rank 0 of the generator: changed / compared of its last commit */
} ravel_generator_report;

/* Generators that reported to this rank (they report to rank 0): at most `most` are written, the newest reports first.
 * Returns how many there are. */
RAVEL_API int64_t ravel_publisher_generators(ravel_publisher *publisher, ravel_generator_report *reports, int64_t most);
/* Counts the last publish and the connected generators in metrics: the rows refit/publish_sec, prepare_sec, pause_sec,
 * version_lag, generators and generator_tokens_per_sec; and what this rank has sent since the last call: sent_bytes,
 * changed_share, compared_share, blocks_whole, blocks_sparse and blocks_kept. The lag is that just before the last
 * publish, since no generator can have pulled a version that was published just now. Not collective, but call it on
 * every rank: publish_sec is the slowest rank's. */
RAVEL_API void ravel_publisher_count(ravel_publisher *publisher, ravel_metrics *metrics);

/* ---- generators ----------------------------------------------------------------------------------------- */

typedef struct ravel_pull_options {
    size_t size;       /* sizeof(ravel_pull_options), set by ravel_pull_options_default */
    int32_t threads;   /* connections, each with a thread that receives, verifies and loads; 0: by cores, at most 8 */
    int32_t stage;     /* ravel_refit_stage */
    int32_t cast;      /* ravel_refit_cast */
    int32_t delta;     /* only what changed since the live version is sent: blocks, and elements of them */
    int32_t audit;     /* hash every tensor when it is complete, for ravel_puller_audit */
    int32_t tls;       /* as the trainers' */
    double timeout;    /* seconds without progress after which a stage fails; also for the first connection */
    const char *token; /* as the trainers'; NULL: RAVEL_TOKEN, RAVEL_TOKEN_FILE; see below */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the puller */
    const ravel_logger *logger;       /* NULL: silent; gets every difference, one per line */
} ravel_pull_options;

RAVEL_API void ravel_pull_options_default(ravel_pull_options *options);
RAVEL_API ravel_option_table ravel_pull_option_table(void);

typedef enum ravel_pull_state {
    RAVEL_PULL_IDLE,    /* the newest version is live, or none is known */
    RAVEL_PULL_NEWER,   /* a newer one is published; nothing is staged */
    RAVEL_PULL_STAGING, /* it is being pulled */
    RAVEL_PULL_READY    /* it is complete and verified on every rank */
} ravel_pull_state;
#define RAVEL_PULL_STATE_NAMES "idle|newer|staging|ready"

/* What is published at `address`, for a generator that does not know yet what its sink must be: `each` is called with
 * every tensor, whole (name, dtype, dims; no data); a status that it returns ends the call. Not collective; of options,
 * those of the connection count. */
RAVEL_API ravel_status ravel_publication_list(const char *address, const ravel_pull_options *options,
                                              ravel_status (*each)(void *user, const ravel_refit_tensor *tensor,
                                                                   ravel_error *err),
                                              void *user, ravel_error *err);

/* Collective over the generator's communicator, which is duplicated. Connects, compares names, shapes and dtypes with
 * the trainers', and plans; nothing is pulled yet. The sink must outlive the puller. E_MISMATCH lists all
 * differences. */
RAVEL_API ravel_status ravel_puller_create(ravel_comm *comm, const char *address, const ravel_refit_sink *sink,
                                           const ravel_pull_options *options, ravel_puller **puller, ravel_error *err);

/* Collective and cheap (an all-reduce of a few words; for one rank a few loads): the same state on every rank. A stage
 * that failed is returned once, as its status, on every rank; then the state goes on from IDLE or NEWER. Losing the
 * trainers is not an error: the state stays IDLE until they are back. */
RAVEL_API ravel_status ravel_puller_poll(ravel_puller *puller, int32_t *state, ravel_error *err);
/* Collective. Begins to pull `version`, or the newest if it is 0, in the background. E_STATE: something is being
 * staged, nothing newer is published, or the version is not kept. */
RAVEL_API ravel_status ravel_puller_stage(ravel_puller *puller, int64_t version, ravel_error *err);
/* Collective. Polls until READY, or `seconds` have passed (E_TIMEOUT; staging goes on); INFINITY: until READY. Stages
 * the newest if nothing is staged. */
RAVEL_API ravel_status ravel_puller_wait(ravel_puller *puller, double seconds, ravel_error *err);

/* The report of a commit. */
typedef struct ravel_pull_report {
    size_t size;                   /* sizeof(ravel_pull_report); set it before the call */
    ravel_refit_identity identity; /* live now */
    int64_t bytes_needed;          /* this rank's pieces in the dtype that travels */
    int64_t bytes_pulled;          /* this rank: that arrived */
    int64_t bytes_kept;            /* this rank: that did not change and were not sent */
    int32_t live;                  /* 0 if tensors[].data is live, 1 if spare is */
    int32_t senders;               /* trainer ranks that this rank pulled from */
    double prepare_seconds;        /* from stage to complete on this rank, in the background */
    double pause_seconds;          /* of the commit call */
    int64_t lag;                   /* newer versions that the trainers keep, as far as known */
    int32_t mapped;                /* of the senders, those on the same device, whose memory was read where it lies */
    int32_t reserved;              /* 0 */
    int64_t bytes_sparse;          /* this rank: of bytes_needed, what came as changes of the version before */
    int64_t bytes_changes;         /* this rank: of bytes_pulled, these changes */
    int64_t elements, changed;     /* this rank: elements of its pieces; of the compared ones, those that changed */
    int64_t compared;              /* this rank: elements of the blocks that came as changes, or not at all */
} ravel_pull_report;

/* Collective. Makes the staged version live on every rank, or on none. report may be NULL. E_STATE: it is not
 * READY. */
RAVEL_API ravel_status ravel_puller_commit(ravel_puller *puller, ravel_pull_report *report, ravel_error *err);
/* Collective. Drops the version that is staged or being staged. */
RAVEL_API ravel_status ravel_puller_drop(ravel_puller *puller, ravel_error *err);
/* Not collective, as everything below. The caller's data and spare stay the caller's; an allocated spare set that is
 * live is first copied to data. */
RAVEL_API void ravel_puller_free(ravel_puller *puller);

/* The live version; version 0: none yet. */
RAVEL_API ravel_refit_identity ravel_puller_identity(const ravel_puller *puller);
/* The newest published version that is known here; version 0: none. Only on the generator's rank 0. */
RAVEL_API ravel_refit_identity ravel_puller_newest(ravel_puller *puller);
/* Where the live version of sink.tensors[index] is; NULL with callbacks or a wrong index. */
RAVEL_API void *ravel_puller_data(const ravel_puller *puller, int64_t index);
/* Reports this generator's tokens per second to the trainers, within a few seconds; rank 0 of the generator reports for
 * all its ranks. */
RAVEL_API void ravel_puller_note(ravel_puller *puller, double tokens_per_second);
/* As ravel_refit_audit. */
RAVEL_API ravel_status ravel_puller_audit(const ravel_puller *puller, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
