/* The directory of a publication: which trainer rank ("sender") has which box of which tensor, and where it listens.
 * The lowest trainer rank makes it from all manifests; trainers and generators read it (docs/refit-wire.md,
 * "Directory").
 *
 * Thousands of tensors are cut in few ways, so a tensor names a cut, and cuts are stored once:
 *
 *     cut 7   dims {4096, 4096}:  sender 0 has [0:512, 0:4096], sender 1 has [512:1024, 0:4096], ...
 *     tensor  "layers.0.q", bf16, cut 7        "layers.1.q", bf16, cut 7 ...
 *
 * A manifest, what one rank sends or wants, is a directory of one sender without an address. The builder finds equal
 * cuts while it reads manifest after manifest: a trie whose node is "the same as its parent, and sender s has box b as
 * well". A tensor moves from node to node; at the end, tensors at one node have one cut. Its memory grows with the
 * number of different cuts, not with tensors times senders. */
#ifndef RAVEL_REFIT_DIRECTORY_H
#define RAVEL_REFIT_DIRECTORY_H

#include "refit/model/differences.h"
#include "refit/model/holding.h"
#include "refit/model/names.h"

enum { RAVEL__DIRECTORY_FORMAT = 3, RAVEL__DIRECTORY_HEADER = 48, RAVEL__ADDRESS_BYTES = 4096 };

#define RAVEL__DIRECTORY_MOST ((size_t)1 << 31) /* bytes */

typedef struct ravel__cut {
    int32_t ndim;
    int32_t holders;
    int64_t dims[RAVEL_REFIT_DIMS];
    const int32_t *senders; /* [holders] */
    const int64_t *coords;  /* [holders][2 * ndim]: start, extent */
} ravel__cut;

typedef struct ravel__listed {
    const char *name;
    int32_t dtype; /* as it is stored */
    int32_t cut;
} ravel__listed;

typedef struct ravel__directory {
    ravel__arena arena;
    int32_t senders;
    const char **addresses; /* [senders]: a sender's addresses, comma-separated, one per server thread */
    uint64_t *machines;     /* [senders]: equal numbers are on one machine */
    int64_t count, cut_count;
    ravel__listed *tensors; /* [count] */
    ravel__cut *cuts;       /* [cut_count] */
    ravel__names names;     /* of tensors */
    uint64_t digest;        /* of the encoded bytes */
} ravel__directory;

/* ---- making one ---- */

typedef struct ravel__cut_node {
    int32_t parent; /* -1: a root, whose coords are the dims */
    int32_t root;
    int32_t holders; /* nodes from here up to the root, without it */
    int32_t sender;
    int32_t ndim;
    int32_t cut;         /* at the end: its number, -1: no tensor stayed here */
    int32_t child, next; /* the first of its children, and the next of its siblings; -1: none */
    int64_t coords[2 * RAVEL_REFIT_DIMS];
} ravel__cut_node;

typedef struct ravel__directory_builder {
    ravel__arena arena; /* names */
    ravel__names names;
    ravel__listed *tensors; /* cut: the node */
    int64_t count, room;
    ravel__cut_node *nodes;
    int64_t node_count, node_room;
    int32_t first_root;
} ravel__directory_builder;

void ravel__directory_begin(ravel__directory_builder *builder, const ravel_allocator *allocator);
/* Reads the manifest of the next sender; senders in order. Shapes and dtypes that contradict are differences. */
ravel_status ravel__directory_add(ravel__directory_builder *builder, int32_t sender, const void *manifest, size_t size,
                                  ravel__differences *list, ravel_error *err);
void ravel__directory_end(ravel__directory_builder *builder);

/* A rank, as every other knows it before the directory is made: gathered, or from what was. */
typedef struct ravel__sender {
    uint64_t machine, digest; /* digest of its manifest */
    int64_t manifest_bytes;   /* 0: it sends nothing */
    int64_t block_bytes;      /* of a publication */
    char addresses[RAVEL__ADDRESS_BYTES];
} ravel__sender;

/* The manifest of a holding, in memory of the allocator; floats wider than `dtype` (-1: none) are listed as it. */
ravel_status ravel__manifest_make(const ravel__holding *holding, int32_t dtype, const ravel_allocator *allocator,
                                  unsigned char **bytes, size_t *size, ravel_error *err);
/* The encoded directory, in memory of the builder's allocator. */
ravel_status ravel__directory_encode(ravel__directory_builder *builder, const ravel__sender *senders, int32_t count,
                                     unsigned char **bytes, size_t *size, ravel_error *err);
/* directory_share.c. Collective: the directory of all ranks' manifests, encoded, on every rank, in memory of the
 * allocator. `own`: this rank's manifest. Every rank's list becomes rank 0's, with the senders' contradictions. */
ravel_status ravel__directory_share(ravel_comm *comm, const ravel__sender *senders, const unsigned char *own,
                                    const ravel_allocator *allocator, ravel__differences *list, unsigned char **bytes,
                                    size_t *size, ravel_error *err);

/* ---- reading one ---- */

/* Every count, name, number and box is checked. The caller may free `bytes` afterwards. */
ravel_status ravel__directory_decode(const void *bytes, size_t size, const ravel_allocator *allocator,
                                     ravel__directory *directory, ravel_error *err);
void ravel__directory_free(ravel__directory *directory);
/* item_of[directory->count]: the holding's item of each tensor, -1: it has none. Returns how many it has. */
int64_t ravel__directory_index(const ravel__directory *directory, const ravel__holding *holding, int32_t *item_of);
ravel__box ravel__cut_box(const ravel__cut *cut, int32_t holder);
/* The lowest sender, for sentences: holders are listed from the last to the first. */
static inline int32_t ravel__cut_first(const ravel__cut *cut) {
    return cut->senders[cut->holders - 1];
}

#endif
