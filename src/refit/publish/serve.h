/* The server: sends a store's versions to generators, on its own threads.
 *
 * A lane is one thread with one hub (comm/link/link.h): it listens, and serves the links that came to it. A lane never
 * waits for a peer: it gives a link a few messages at a time and continues when the kernel has taken them. Blocks that
 * lie in the store as they travel are sent from there, with the hashes that publishing made; those of slices that are
 * cast or lie scattered are gathered into a buffer.
 *
 *     per link   PULL -> [slice 0: BLOCK, KEEP, BLOCK ...] [slice 1: BLOCK] ... -> END
 *
 * Where the version that a generator holds is kept, too, blocks are compared with it, and what changed is sent (SPARSE)
 * if that is less; where its bytes have gone, the lists of changes since then say where to look (store.h). A version
 * that is only compared with can be replaced at any time.
 *
 * A link that reads a version which the trainer wants to replace is closed with a sentence; the generator stages
 * again. */
#ifndef RAVEL_REFIT_SERVE_H
#define RAVEL_REFIT_SERVE_H

#include "comm/link/link.h"
#include "refit/model/directory.h"
#include "refit/publish/store.h"
#include "refit/wire/block.h"

#include <stdatomic.h>

enum { RAVEL__LANES_MOST = 64, RAVEL__REPORTS_MOST = 4096, RAVEL__LANE_SCRATCH = (512 + 32) * 1024 };

typedef struct ravel__client ravel__client;

typedef struct ravel__lane_options {
    const char *token, *allow;
    int32_t open, max_links, tls, sparse;
} ravel__lane_options;

typedef struct ravel__serve_lane {
    struct ravel__server *server;
    ravel__hub *hub;
    pthread_t thread;
    int32_t running;
    ravel__client *clients;
    unsigned char *scratch;    /* [RAVEL__LANE_SCRATCH] two blocks and a bit per element; NULL: not needed yet */
    _Atomic int32_t attention; /* a version was shown, a slot revoked, or the server stops */
} ravel__serve_lane;

/* A generator's last report. */
typedef struct ravel__reported {
    ravel__pull_report report;
    int64_t at_ns;
    const ravel__client *from; /* NULL: its link is closed */
} ravel__reported;

typedef struct ravel__server {
    const ravel_allocator *allocator;
    ravel__store *store;
    int32_t lanes;
    int32_t sparse;     /* changed elements may be sent instead of blocks */
    ravel__tally tally; /* of what was sent */
    ravel__serve_lane lane[RAVEL__LANES_MOST];
    /* set by ravel__server_start, and then only read */
    const unsigned char *directory; /* encoded */
    size_t directory_bytes;
    uint64_t session;
    int32_t *item_of;               /* [tensors] of the directory; -1: not here */
    struct ravel__handout *handout; /* of a store on a device; NULL: it is not shared */
    int64_t tensors;
    _Atomic int32_t stop;
    pthread_mutex_t report_lock;
    ravel__reported *reports; /* [room] */
    int64_t report_count, report_room;
} ravel__server;

/* Opens the lanes' hubs. `address` is the first one's; the others listen beside it (a free port, or a longer path). */
ravel_status ravel__server_open(ravel__server *server, ravel__store *store, const char *address, int32_t lanes,
                                const ravel__lane_options *options, const ravel_allocator *allocator, ravel_error *err);
/* All lanes' addresses, comma-separated, as generators reach them: `host` takes the place of one that means "any". */
ravel_status ravel__server_addresses(const ravel__server *server, const char *host, char *text, size_t bytes,
                                     ravel_error *err);
/* Begins to serve. The directory's bytes stay the caller's and must outlive the server. */
ravel_status ravel__server_start(ravel__server *server, const unsigned char *bytes, size_t size,
                                 const ravel__directory *directory, ravel_error *err);
/* Stops the threads, closes the links; safe in every state after open, also a failed one. */
void ravel__server_close(ravel__server *server);

#endif
