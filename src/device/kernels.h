/* Jobs that a device runs for the floors above: plain structs that C, nvcc and the host's reference share.
 *
 *   rows        one launch for a micro-batch: every array of it is gathered (pack, cp gather), scattered (unpack, cp
 *               scatter) or computed (positions, masks, weights)
 *   count_mask  loss tokens of each sample
 *   hash        XXH3-64 of each block of an array, the same value as on the host
 *   cast        refit's pack and unpack: tensors to or from a packed buffer, converted on the way, with the XXH3-64 of
 *               each packed block
 *   compare     what changed between two packed buffers, block by block, in the bytes of base/sparse.h
 *
 * Rows. The packed side is an axis of positions, cut into runs; a run is a piece of one slot (a whole slot, a chunk of
 * a zig-zag shard, every cp-th position):
 *
 *     positions   |  run 0      |  run 1  |  run 2       |          run: sample, where it begins in the store,
 *     track 0     | - - - - - - - - - - - - - - - - - - -|               which of its tokens stand here
 *     track 1     | - - - - - - - - - - - - - - - - - - -|          track: one array, what its elements belong to
 *                   tile      tile      tile                        tile: a fixed number of units of a track, one CTA
 *
 * The host writes runs and tracks into one block of bytes. Host and device find an element by the same inline functions
 * below, so they cannot differ. */
#ifndef RAVEL_DEVICE_KERNELS_H
#define RAVEL_DEVICE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RAVEL__BOTH __host__ __device__
#else
#define RAVEL__BOTH
#endif

/* ---- rows ----------------------------------------------------------------------------------------------- */

enum {
    RAVEL__ROW_THREADS = 256,
    RAVEL__ROW_ITEMS = 8,      /* units per thread, at most; fewer if there is little to do, ... */
    RAVEL__ROW_FEW = 2,        /* ... but not fewer than these, */
    RAVEL__ROW_ONE_WAVE = 396, /* ... as long as the device can hold all tiles at once (132 processors, 3 each) */
};

typedef enum ravel__row_kind {
    /* elements of the store; in the order of ravel_field_kind */
    RAVEL__ROW_TOKEN,
    RAVEL__ROW_NEXT,
    RAVEL__ROW_STEP,
    RAVEL__ROW_SAMPLE, /* positions are sequences; the sample of each is in `samples` */
    RAVEL__ROW_SPREAD,
    /* worked out */
    RAVEL__ROW_POSITIONS, /* int32_t */
    RAVEL__ROW_SEGMENTS,  /* int32_t */
    RAVEL__ROW_HIDDEN,    /* uint8_t 1 in padding */
    RAVEL__ROW_SHOWN,     /* uint8_t 1 at tokens */
    RAVEL__ROW_LOSS,      /* float 1 if a token of the response is predicted */
    /* others */
    RAVEL__ROW_COPY,  /* the source is `offset` bytes into the block */
    RAVEL__ROW_WEIGHT /* values[run] at the loss tokens of a run's sample, 0 at its others; goes to the store */
} ravel__row_kind;

typedef struct ravel__row_run {
    int64_t offset;      /* the sample's first token in the store */
    int64_t at;          /* the run's first position */
    int32_t count;       /* positions */
    int32_t first, step; /* the k-th is position first + k * step of the slot */
    int32_t lead;        /* position of the sample's first token in the slot */
    int32_t index;       /* of the sample; -1: none */
    int32_t length, prompt;
    int32_t segment;
} ravel__row_run;

typedef struct ravel__row_track {
    const void *source; /* ROW_WEIGHT: the mask, NULL: the prompts decide */
    void *target;
    int64_t positions;     /* of the packed side */
    int64_t offset;        /* ROW_COPY */
    unsigned char pad[16]; /* padding, repeated; ROW_WEIGHT: the bits of a mask's 1 in the first 8. Aligned to 16 */
    int32_t first_tile;    /* of the launch */
    int32_t kind;          /* ravel__row_kind */
    int32_t unit;          /* bytes that are moved at once: 1, 2, 4, 8 or 16 */
    int32_t units;         /* of one position */
    int32_t mask_kind;     /* ROW_WEIGHT: ravel_field_kind and element size of the mask */
    int32_t mask_bytes;
    int32_t items;    /* units per thread: a tile is RAVEL__ROW_THREADS times that */
    int32_t reserved; /* so that the size is a multiple of 16 */
} ravel__row_track;

/* The block: this, then tracks, runs, samples [sequences], values [runs], and what ROW_COPY needs. */
typedef struct ravel__rows_head {
    int32_t tracks, runs, tiles;
    int32_t scatter;                                   /* 1: from the packed side to the store */
    int64_t tracks_at, runs_at, samples_at, values_at; /* multiples of 16 */
    int64_t bytes;                                     /* of the block */
} ravel__rows_head;

typedef struct ravel__rows {
    const ravel__rows_head *block;       /* in host memory */
    const ravel__rows_head *device_side; /* the same on the device; NULL if it fits into a launch's parameters */
} ravel__rows;

/* Blocks up to this size travel with the launch. */
enum { RAVEL__ROWS_IN_LAUNCH = 31 * 1024 };

static inline int64_t ravel__row_tiles(const ravel__row_track *t) {
    int64_t tile = (int64_t)RAVEL__ROW_THREADS * t->items;
    return (t->positions * t->units + tile - 1) / tile;
}

RAVEL__BOTH static inline int64_t ravel__row_token(const ravel__row_run *r, int64_t k) {
    return r->first + k * r->step - r->lead;
}

/* Which element of the data stands at the k-th position of a run; -1: the pad. */
RAVEL__BOTH static inline int64_t ravel__row_element(int32_t kind, const ravel__row_run *r, int64_t k) {
    int64_t t = ravel__row_token(r, k);
    int64_t held = kind == RAVEL__ROW_NEXT || kind == RAVEL__ROW_STEP ? r->length - 1 : r->length;
    if (r->index < 0 || t < 0 || t >= held) return -1;
    if (kind == RAVEL__ROW_NEXT) return r->offset + t + 1;
    if (kind == RAVEL__ROW_STEP) return r->offset - r->index + t;
    return kind == RAVEL__ROW_SPREAD ? r->index : r->offset + t;
}

/* The bits of a worked-out value. */
RAVEL__BOTH static inline uint32_t ravel__row_derived(int32_t kind, const ravel__row_run *r, int64_t k) {
    int64_t t = ravel__row_token(r, k);
    int inside = t >= 0 && t < r->length;
    switch (kind) {
    case RAVEL__ROW_POSITIONS: return inside ? (uint32_t)t : 0;
    case RAVEL__ROW_SEGMENTS: return inside ? (uint32_t)r->segment : 0;
    case RAVEL__ROW_HIDDEN: return !inside;
    case RAVEL__ROW_SHOWN: return (uint32_t)inside;
    default: return t >= (r->prompt > 0 ? r->prompt - 1 : 0) && t < r->length - 1 ? 0x3f800000u : 0;
    }
}

/* The element of a mask that says whether token t >= 1 counts. */
RAVEL__BOTH static inline int64_t ravel__mask_element(int32_t mask_kind, const ravel__row_run *r, int64_t t) {
    return mask_kind == RAVEL__ROW_STEP ? r->offset - r->index + t - 1 : r->offset + t;
}

RAVEL__BOTH static inline int64_t ravel__first_response(const ravel__row_run *r) {
    return r->prompt > 1 ? r->prompt : 1;
}

/* The run that holds a position: runs are in order and without gaps. */
RAVEL__BOTH static inline int32_t ravel__row_find(const ravel__row_run *runs, int32_t low, int32_t high, int64_t at) {
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (runs[middle].at <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- loss tokens ---------------------------------------------------------------------------------------- */

typedef struct ravel__mask_job {
    const ravel__row_run *runs; /* [count] a sample each; where the driver reads it */
    int32_t count;
    int32_t mask_kind, mask_bytes;
    const void *mask;
    uint64_t one, minus; /* the bits of 1 and of -0 */
    int64_t *counts;     /* [count] loss tokens; or -t: token t is the first that is neither 0 nor 1 */
} ravel__mask_job;

/* ---- refit ---------------------------------------------------------------------------------------------- */

typedef enum ravel__cast_kind {
    RAVEL__CAST_COPY,     /* the same bytes */
    RAVEL__CAST_F32_BF16, /* tensor f32, packed bf16 */
    RAVEL__CAST_F32_F16,  /* tensor f32, packed f16 */
    RAVEL__CAST_KINDS
} ravel__cast_kind;

/* A piece of a tensor in the packed buffer. Pieces are in order of `at` and do not overlap; between two there may be
 * padding, which is packed as zeros. The hash is always that of the packed bytes. */
typedef struct ravel__cast_piece {
    int64_t at;     /* its first byte in the packed buffer, a multiple of the packed element's size */
    int64_t bytes;  /* in the packed buffer */
    void *tensor;   /* its first element in the tensor; aligned to the element */
    int32_t kind;   /* ravel__cast_kind */
    int32_t unused; /* 0 */
} ravel__cast_piece;

/* What one block covers of the packed buffer. */
typedef struct ravel__cast_span {
    int64_t at;    /* a multiple of 16 */
    int64_t bytes; /* any number from 1; up to the next multiple of 16 the buffer may be written */
} ravel__cast_span;

typedef struct ravel__cast_job {
    const ravel__cast_piece *pieces; /* [count]; all lists are where the device can read and write them */
    const int32_t *first;            /* [blocks] the first piece that ends behind the block's begin; count: none */
    const ravel__cast_span *spans; /* [blocks], in order; every piece lies in them. NULL: block b begins at b * block */
    int64_t count, blocks;
    void *packed;     /* aligned to 16 */
    int64_t bytes;    /* of the packed buffer, a multiple of 16 */
    int64_t block;    /* a multiple of 1024; not used with spans */
    int32_t unpack;   /* 0: tensors to packed; 1: packed to tensors (COPY and BF16, F16 to f32) */
    int32_t reserved; /* 0 */
    uint64_t *hashes; /* [blocks]; NULL: none are wanted */
} ravel__cast_job;

RAVEL__BOTH static inline ravel__cast_span ravel__cast_block(const ravel__cast_job *job, int64_t b) {
    int64_t at = b * job->block, left = job->bytes - at;
    if (job->spans) return job->spans[b];
    const ravel__cast_span span = {at, left < job->block ? left : job->block};
    return span;
}

/* A block that is compared. */
typedef struct ravel__compare_span {
    int64_t at;      /* in both buffers, a multiple of 16 */
    int32_t bytes;   /* from 1 to RAVEL__COMPARE_MOST; up to the next multiple of 16 both buffers may be read */
    int32_t each;    /* bytes of an element: 1, 2, 4 or 8 */
    int64_t found;   /* out: where its bytes begin in `out`, a multiple of 16 */
    int32_t size;    /* out: how many they are; less than `bytes`: changes (base/sparse.h), else the block as it is */
    int32_t changed; /* out: elements that differ */
} ravel__compare_span;

enum { RAVEL__COMPARE_MOST = 1 << 26 };

/* The bytes of every block, as ravel__sparse_encode writes them, or whole where it writes none. They lie one behind the
 * other in `out`, in any order: what is copied to the host is what changed. */
typedef struct ravel__compare_job {
    const void *fresh, *base;   /* aligned to 16, and never the same */
    ravel__compare_span *spans; /* [blocks]; all lists are where the device can read and write them */
    int64_t blocks;
    unsigned char *out; /* aligned to 16, with room for every span's bytes rounded up to 16 */
    uint64_t *used;     /* bytes of `out`, 0 before */
} ravel__compare_job;

#endif
