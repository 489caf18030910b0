/* ravel/batch.h: ragged samples in, the arrays of a training step out, and back.
 *
 * Nouns
 *   ragged   samples as parallel arrays: offsets, and one flat array per field. All of it is the caller's. Without
 *            offsets samples have a fixed shape and no tokens (images, latents, clips): a sample is one position, and its
 *            fields are RAVEL_FIELD_SAMPLE with a width.
 *   field    a name, a dtype, what its elements belong to (a token, a prediction, a sample) and a pad value.
 *   bin      the samples of one micro-batch in their order: a list of indices, as a plan gives them.
 *   slot     the place of a sample in a bin: its length rounded up to `align`.
 *   THD      the packed layout: one token axis, slots back to back, `cu_seqlens` to tell them apart.
 *   padded   the [rows, columns] layouts, for frameworks without ragged attention.
 *   filler   a bin without samples: packs as one token without weight, so that collectives match.
 *   padding sequence   has no real tokens: the tail that pads a bin to its total, and empty ones for a fixed shape.
 *
 *     samples   |0 1 2|0 1 2 3 4|          align 4, total multiple 16      (t: tokens, -: padding)
 *
 *     tokens     t t t - t t t t t - - - - - - -
 *     labels     t t x - t t t t x - - - - - - -      the next token; x and - are the field's pad, -100
 *     positions  0 1 2 0 0 1 2 3 4 0 0 0 0 0 0 0
 *     segments   1 1 1 0 2 2 2 2 2 0 0 0 0 0 0 0
 *     padding    0 0 0 1 0 0 0 0 0 1 1 1 1 1 1 1
 *     samples             0, 1, -1
 *     cu_seqlens          0, 3, 8, 8                  real lengths; the padding sequence is empty
 *     cu_seqlens_padded   0, 4, 12, 16                where the slots begin; the padding sequence is the tail
 *
 * Which position carries a prediction. Position t of a sample predicts token t + 1, so everything that belongs to the
 * predicted token (its label, its loss mask, its loss weight, its log-prob) stands at position t, and the last
 * position of a sample predicts nothing. A loss mask that is given per token (mask[t] says whether token t counts) is
 * therefore declared as RAVEL_FIELD_NEXT, like labels are.
 *
 * Sizes first: measure fills in the sizes, the caller allocates (anywhere), pack writes. A packer never allocates,
 * keeps nothing, and touches only the samples of its bin.
 *
 *     const ravel_field fields[] = {
 *         {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = ids, .pad = pad_id},
 *         {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = ids, .pad = -100},
 *         {.name = "weights", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = weights},
 *     };
 *     ravel_ragged ragged = {.size = sizeof ragged, .count = n, .offsets = offsets};
 *     ragged.fields = fields;
 *     ragged.field_count = 3;
 *     ravel_thd_options options;
 *     ravel_thd_options_default(&options);
 *     int64_t first = plan->bin_offsets[b];
 *     ravel_bin bin = {plan->samples + first, plan->bin_offsets[b + 1] - first};
 *     ravel_thd thd = {.size = sizeof thd};
 *     if (ravel_thd_measure(&ragged, &bin, &options, &thd, &err)) ...
 *     size_t bytes = ravel_thd_bytes(&ragged, &options, &thd);
 *     ... block = memory of at least that, used again for the next bin ...
 *     ravel_thd_place(&ragged, &options, block, &thd);              or set the pointers yourself
 *     ravel_thd_pack(&ragged, &bin, &options, &thd, &err);
 *     ... run; then per-token results go back to their samples:
 *     ravel_thd_unpack(&ragged, &options, &thd, &field, packed, ragged_result, &err);
 *
 * On a device. If thd.place (padded.place) says RAVEL_DEVICE, all packed arrays are in device memory, and so are the
 * fields (or pinned): pack, unpack, gather and scatter are then one launch in place.stream each, give the same bytes
 * as on the host, and return before the bytes are there. The description of the micro-batch is made on the host; it is
 * the only thing that is allocated, and freed again before the call returns.
 *
 *     ravel_thd thd = {.size = sizeof thd, .place = {RAVEL_DEVICE, 0, stream}};
 *     thd.fields = table;                                       host memory: [field_count] device pointers
 *     thd.host_samples = ..., thd.host_slots = ...;             host memory, where unpack will be called
 *
 * Threads: every function is pure over the memory that it is given; many bins may be packed at once.
 */
#ifndef RAVEL_BATCH_H
#define RAVEL_BATCH_H

#include <ravel/device.h>
#include <ravel/dtype.h>
#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the ragged store ----------------------------------------------------------------------------------- */

/* What an element belongs to, which decides its packed position. L is a sample's length. */
typedef enum ravel_field_kind {
    RAVEL_FIELD_TOKEN,  /* data has L elements per sample; element t stands at position t */
    RAVEL_FIELD_NEXT,   /* data has L elements per sample; element t + 1 stands at position t, the last position holds
                           the pad value. Labels, loss masks, loss weights, anything given per predicted token */
    RAVEL_FIELD_STEP,   /* data has L - 1 elements per sample, back to back: one per prediction, at position t; the
                           last position holds the pad value. Next-token log-probs as generators return them */
    RAVEL_FIELD_SAMPLE, /* data has 1 element per sample, of any width (the product of a shape); packed: [sequences] */
    RAVEL_FIELD_SPREAD  /* data has 1 element per sample; it stands at every position but the padding */
} ravel_field_kind;

typedef struct ravel_field {
    const char *name;
    int32_t kind;      /* ravel_field_kind */
    int32_t dtype;     /* ravel_dtype */
    int64_t width;     /* elements that belong together (top-k log-probs, router choices); 0 means 1 */
    const void *data;  /* flat, in sample order */
    double pad;        /* value of padding positions; the dtype must be able to hold it */
    ravel_place place; /* where data is; all zero: host memory */
} ravel_field;

typedef struct ravel_ragged {
    size_t size; /* sizeof(ravel_ragged) */
    int64_t count;
    /* [count + 1] from 0; sample i has offsets[i + 1] - offsets[i] >= 1 tokens. NULL: samples of a fixed shape, of
     * one position each */
    const int64_t *offsets;
    const int64_t *prompts;    /* [count] tokens of the prompt, 0 .. L; NULL: unknown. For loss_mask and padded-2d */
    const ravel_field *fields; /* [field_count] */
    int64_t field_count;
} ravel_ragged;

/* Checks the whole store in one pass: for untrusted stores. Packing checks only the samples that it packs. */
RAVEL_API ravel_status ravel_ragged_check(const ravel_ragged *ragged, ravel_error *err);

/* The index of a field by name, or -1. */
RAVEL_API int64_t ravel_ragged_find(const ravel_ragged *ragged, const char *name);

/* Bytes that the field's data has over the whole store; -1 when that overflows or the field is wrong. */
RAVEL_API int64_t ravel_field_bytes(const ravel_ragged *ragged, const ravel_field *field);

/* Sample indices in the order of the bin; count 0 is a filler. */
typedef struct ravel_bin {
    const int32_t *samples;
    int64_t count;
} ravel_bin;

/* ---- context parallel ----------------------------------------------------------------------------------- */

/* How the positions of each slot are dealt to cp ranks:
 *
 *     cp 2   zig-zag      0 1 | 1 0      2 * cp chunks, rank r takes r and 2*cp-1-r: equal causal work
 *            contiguous   0 0 | 1 1      cp chunks
 *            striped      0 1 0 1 ...    position t goes to rank t % cp
 *
 * A slot must be a multiple of 2 * cp (zig-zag) or cp. A rank's tokens keep the order of the slots, and within a slot
 * the order of positions. */
typedef enum ravel_cp_kind { RAVEL_CP_ZIGZAG, RAVEL_CP_CONTIGUOUS, RAVEL_CP_STRIPED } ravel_cp_kind;
#define RAVEL_CP_CHOICES "zig-zag|contiguous|striped"

typedef struct ravel_cp {
    int32_t ranks; /* 0 and 1 mean no sharding */
    int32_t kind;  /* ravel_cp_kind */
} ravel_cp;

/* The slots below are [slots + 1] boundaries from 0: cu_seqlens_padded, or {0, total} to treat a bin as one.
 * `samples` may be NULL; it is only there to name the sample in an error. */

/* whole -> shard without an index: `each` is the bytes of one position. `place` says where both arrays are; NULL: host
 * memory. cu_slots is always host memory. */
RAVEL_API ravel_status ravel_cp_gather(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                                       const void *whole, size_t each, void *shard, const ravel_place *place,
                                       ravel_error *err);
/* shard -> whole: writes this rank's positions and leaves the others as they are. After one call for every rank the
 * array is whole again. */
RAVEL_API ravel_status ravel_cp_scatter(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                                        const void *shard, size_t each, void *whole, const ravel_place *place,
                                        ravel_error *err);

/* ---- THD ------------------------------------------------------------------------------------------------ */

/* Which arrays, besides the fields and cu_seqlens, ravel_thd_place makes room for. */
typedef enum ravel_thd_arrays {
    RAVEL_THD_POSITIONS = 1,
    RAVEL_THD_SEGMENTS = 2,
    RAVEL_THD_PADDING = 4,
    RAVEL_THD_LOSS_MASK = 8,
    RAVEL_THD_ALL = 15
} ravel_thd_arrays;

typedef struct ravel_thd_options {
    size_t size;    /* sizeof(ravel_thd_options) */
    int32_t align;  /* a slot is a multiple of this: 2*cp, times tp with sequence parallelism, 16 or 128 for fp8 */
    int32_t arrays; /* RAVEL_THD_* bits, for ravel_thd_place */
    int64_t total_multiple; /* the bin is padded to a multiple of this; itself a multiple of align */
    int64_t fixed_tokens;   /* fixed shape: the bin is padded to exactly this (cp * budget); 0: no fixed shape */
    int64_t max_samples;    /* fixed shape: cu_seqlens has max_samples + 2 entries for every bin; required then */
    int64_t max_seqlen;     /* value of thd.max_seqlen, an error if a slot is longer; 0: the longest slot, and the
                               whole bin if the shape is fixed */
    int32_t cp;             /* context-parallel ranks */
    int32_t cp_rank;        /* -1: token arrays hold the whole bin; else only this rank's positions */
    int32_t cp_kind;        /* ravel_cp_kind */
    int32_t reserved;       /* 0 */
} ravel_thd_options;

RAVEL_API void ravel_thd_options_default(ravel_thd_options *options);
RAVEL_API ravel_option_table ravel_thd_option_table(void);

typedef struct ravel_thd {
    size_t size; /* sizeof(ravel_thd) */
    /* sizes, from ravel_thd_measure */
    int64_t samples_count; /* samples of the bin, 0 for a filler */
    int64_t sequences;     /* samples (or the filler's one) and padding sequences */
    int64_t tokens;        /* slot tokens of the whole bin, the tail included: cu_seqlens_padded[sequences] */
    int64_t local_tokens;  /* length of the token arrays below: tokens, or tokens / cp for one cp rank */
    int64_t actual_tokens; /* sum of real lengths: 0 for a filler */
    int64_t max_seqlen;    /* goes with cu_seqlens_padded */
    int64_t max_length;    /* longest real length; goes with cu_seqlens */
    /* arrays, the caller's; those that are NULL are left out */
    int32_t *cu_seqlens;        /* [sequences + 1] running sum of real lengths */
    int32_t *cu_seqlens_padded; /* [sequences + 1] running sum of slots: entry i is where slot i begins */
    int32_t *samples;           /* [sequences] index into the store; -1: a filler or padding */
    int32_t *positions;         /* [local_tokens] 0, 1, 2, ... in each sample; 0 in padding */
    int32_t *segments;          /* [local_tokens] 1 for the first sample's tokens, 2, 3, ...; 0 in padding */
    uint8_t *padding;           /* [local_tokens] 1 in padding */
    float *loss_mask;           /* [local_tokens] 1 if the predicted token belongs to a response (ragged.prompts; to
                                   anything, if those are NULL), else 0 */
    void **fields;              /* [field_count] one array per field of the store, each may be NULL:
                                   [local_tokens * width], or [sequences * width] for RAVEL_FIELD_SAMPLE. The table
                                   itself is host memory, also if the arrays are on a device */
    ravel_place place;          /* where the arrays are; all zero: host memory */
    int32_t *host_samples; /* [sequences] and [sequences + 1]: samples and cu_seqlens_padded in host memory. Written */
    int32_t *host_slots;   /* by pack unless NULL; a device's arrays need them for unpack and index */
    void **placed;         /* private: the table of `fields` that ravel_thd_place made in the block */
} ravel_thd;

/* Fills in the sizes. E_ARGUMENT for a bad index or option, E_OVERSIZE for a bin that its fixed shape cannot hold,
 * E_OVERFLOW from 2^31 tokens up (cu_seqlens are 32-bit, as kernels want them). */
RAVEL_API ravel_status ravel_thd_measure(const ravel_ragged *ragged, const ravel_bin *bin,
                                         const ravel_thd_options *options, ravel_thd *thd, ravel_error *err);
/* Bytes of one field's packed array. */
RAVEL_API size_t ravel_thd_field_bytes(const ravel_thd *thd, const ravel_field *field);
/* Bytes of one block for everything, each array aligned to 256 bytes, and one more alignment for a block that is not.
 * SIZE_MAX if that overflows. */
RAVEL_API size_t ravel_thd_bytes(const ravel_ragged *ragged, const ravel_thd_options *options, const ravel_thd *thd);
/* Points every array (those of options->arrays, and every field) into the block. A record and a block may be used again
 * for the next bin. If thd->fields is NULL, or the table of an earlier call, the table of pointers is in the block
 * too, unless that is device memory: then give a table, or there are no fields. */
RAVEL_API void ravel_thd_place(const ravel_ragged *ragged, const ravel_thd_options *options, void *block,
                               ravel_thd *thd);
/* Writes every array that is not NULL, from its first to its last element. `thd` must have been measured with the
 * same store, bin and options. */
RAVEL_API ravel_status ravel_thd_pack(const ravel_ragged *ragged, const ravel_bin *bin,
                                      const ravel_thd_options *options, const ravel_thd *thd, ravel_error *err);
/* From packed (and, with cp_rank >= 0, sharded) order back to sample order: writes the elements of the bin's samples
 * into `out`, an array of the field's kind over the whole store (ravel_field_bytes), and nothing else. `field->data` is
 * not read. Elements that packing never carried stay untouched: the first of a sample's RAVEL_FIELD_NEXT. Needs
 * thd->samples and thd->cu_seqlens_padded; call it once per cp rank's shard. */
RAVEL_API ravel_status ravel_thd_unpack(const ravel_ragged *ragged, const ravel_thd_options *options,
                                        const ravel_thd *thd, const ravel_field *field, const void *packed, void *out,
                                        ravel_error *err);

/* ---- padded layouts ------------------------------------------------------------------------------------- */

/*     right      t t t - -        left      - - t t t        2d      - p p | r r r -     prompts left,
 *                t t t t t                  t t t t t                p p p | r - - -     responses right padded
 */
typedef enum ravel_pad_side { RAVEL_PAD_RIGHT, RAVEL_PAD_LEFT, RAVEL_PAD_2D } ravel_pad_side;
#define RAVEL_PAD_CHOICES "right|left|2d"

typedef struct ravel_padded_options {
    size_t size;       /* sizeof(ravel_padded_options) */
    int32_t side;      /* ravel_pad_side */
    int32_t align;     /* columns are a multiple of this; in 2d both parts are */
    int64_t rows;      /* fixed number of rows: empty ones are added; 0: one per sample */
    int64_t columns;   /* fixed number of columns; 0: the longest. In 2d: of the prompt part */
    int64_t responses; /* 2d: fixed number of columns of the response part; 0: the longest */
} ravel_padded_options;

RAVEL_API void ravel_padded_options_default(ravel_padded_options *options);
RAVEL_API ravel_option_table ravel_padded_option_table(void);

typedef struct ravel_padded {
    size_t size; /* sizeof(ravel_padded) */
    /* sizes, from ravel_padded_measure */
    int64_t samples_count;
    int64_t rows;           /* samples, or a filler's one, and empty rows */
    int64_t columns;        /* of a whole row */
    int64_t prompt_columns; /* 2d: columns of the prompts; else 0 */
    int64_t actual_tokens;
    int64_t max_length;
    /* arrays, the caller's; those that are NULL are left out */
    int32_t *samples;        /* [rows] index into the store; -1: a filler or an empty row */
    int32_t *starts;         /* [rows] column of the first real token */
    int32_t *positions;      /* [rows * columns] 0, 1, 2, ...; 0 in padding */
    uint8_t *attention_mask; /* [rows * columns] 1 at real tokens, and at one token of an empty row: a softmax over no
                              * tokens is NaN */
    float *loss_mask;        /* [rows * columns] as in THD */
    void **fields;           /* [field_count] [rows * columns * width], or [rows * width] for RAVEL_FIELD_SAMPLE; the
                                table itself is host memory */
    ravel_place place;       /* where the arrays are; all zero: host memory */
    int32_t *host_samples;   /* [rows] both: samples and starts in host memory, as in THD */
    int32_t *host_starts;
    void **placed; /* private, as in THD */
} ravel_padded;

/* The same calls as for THD, with the same rules. */
RAVEL_API ravel_status ravel_padded_measure(const ravel_ragged *ragged, const ravel_bin *bin,
                                            const ravel_padded_options *options, ravel_padded *padded,
                                            ravel_error *err);
RAVEL_API size_t ravel_padded_field_bytes(const ravel_padded *padded, const ravel_field *field);
RAVEL_API size_t ravel_padded_bytes(const ravel_ragged *ragged, const ravel_padded *padded);
RAVEL_API void ravel_padded_place(const ravel_ragged *ragged, void *block, ravel_padded *padded);
RAVEL_API ravel_status ravel_padded_pack(const ravel_ragged *ragged, const ravel_bin *bin,
                                         const ravel_padded_options *options, const ravel_padded *padded,
                                         ravel_error *err);
/* Needs padded->samples and padded->starts. */
RAVEL_API ravel_status ravel_padded_unpack(const ravel_ragged *ragged, const ravel_padded *padded,
                                           const ravel_field *field, const void *packed, void *out, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
