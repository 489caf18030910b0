/* ravel/meta.h: the metadata of an update, everything except its tokens, as one message of integers.
 *
 * A pipeline stage that holds no tokens still needs the shape of every micro-batch: how many samples, how long each,
 * which. So does a tensor-parallel rank that is about to receive arrays. The message says all of it for one
 * data-parallel rank; cu_seqlens, positions, array sizes and everything else follow from it by pure functions.
 *
 *   word   0        magic, "RavelFd" and a zero byte, read as a little-endian number
 *          1        version, RAVEL_META_VERSION
 *          2        words in the whole message, the checksum included
 *          3        flags: 1 the stream is over, 2 the sender failed; no samples follow. 4 hybrid widths,
 *                   8 shared prefixes, 16 prompts
 *          4        updates, U
 *          5        micro-steps of all updates, S
 *          6        samples of this data-parallel rank, N
 *          7, 8     the cursor after these updates: epoch, position
 *          9        number of the batch since the stream began
 *         10, 11    0
 *         12 ...    U x RAVEL_UPDATE_WORDS: the counts of each update over all ranks, in the order of
 *                   RAVEL_UPDATE_COUNTS_LIST
 *         ...       U x RAVEL_COUNTS_WORDS: ravel_counts of each update over all ranks (ravel/weights.h)
 *         ...       S: samples in the bin of each micro-step; they add up to N
 *         ...       with hybrid widths: S first ranks, then S widths (Megatron's local_cp_size), of the context-parallel
 *                   group that this rank is in in each micro-step: ranks first .. first + width - 1 of the dp-cp order
 *         ...       N lengths, N ids, N parts, N loss tokens, in bin order; the same on all members of a group; then N
 *                   shared tokens and N prompts, if the flags say so
 *         last      checksum of all words before it
 *
 * Every word is an int64_t. There are no floats, no zero-terminated lists and nothing that has to be guessed. The
 * decoder accepts untrusted words: it is fuzzed, and uses nothing that it has not checked.
 */
#ifndef RAVEL_META_H
#define RAVEL_META_H

#include <ravel/weights.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVEL_META_MAGIC   INT64_C(0x0064466c65766152)
#define RAVEL_META_VERSION 4
#define RAVEL_META_HEAD    12
#define RAVEL_META_END     1  /* flags: the stream is over */
#define RAVEL_META_FAILED  2  /* the sender failed; the following agreement carries its error */
#define RAVEL_META_SHARED  8  /* samples share prefixes */
#define RAVEL_META_PROMPTS 16 /* of padded-2d */
#define RAVEL_META_HYBRID  4  /* each micro-step has a context-parallel group of its own width */

/* X(type, name, sentence): the counts of an update, the same on every rank of the mesh. */
#define RAVEL_UPDATE_COUNTS_LIST(X)                                                               \
    X(int64_t, micro_steps, "micro-steps, the same on every data-parallel rank")                  \
    X(int64_t, samples, "samples on all data-parallel ranks")                                     \
    X(int64_t, tokens, "sum of their lengths")                                                    \
    X(uint64_t, squares_low, "sum of their squared lengths, the low 64 bits")                     \
    X(int64_t, squares_high, "and the high 64 bits")                                              \
    X(int64_t, loss_tokens, "tokens with loss")                                                   \
    X(int64_t, loss_samples, "samples with at least one of them")                                 \
    X(int64_t, padded_tokens, "sum of slots, a filler's own included")                            \
    X(int64_t, capacity_tokens, "bins and fillers times cp times budget")                         \
    X(int64_t, bins, "bins with samples")                                                         \
    X(int64_t, fillers, "bins without")                                                           \
    X(int64_t, shortest, "the shortest sample; 0 if there is none")                               \
    X(int64_t, longest, "the longest sample")                                                     \
    X(int64_t, shared_tokens, "tokens of samples that another sample computes (shared prefixes)") \
    X(int64_t, skipped, "samples of the batch that fit no bin and were left out; 0 but in its first update")

typedef struct ravel_update_counts {
#define X(type, name, doc) type name;
    RAVEL_UPDATE_COUNTS_LIST(X)
#undef X
} ravel_update_counts;
#define RAVEL_UPDATE_WORDS 15

/* The arrays belong to the encoder's caller, or point into the decoded words. */
typedef struct ravel_meta {
    size_t size; /* sizeof(ravel_meta) */
    int64_t flags;
    int64_t updates, micro_steps, samples;
    int64_t epoch, position;
    int64_t batch;
    const ravel_update_counts *counts; /* [updates] */
    const ravel_counts *loss_counts;   /* [updates] */
    const int64_t *bin_samples;        /* [micro_steps] */
    const int64_t *group_first;        /* [micro_steps] with RAVEL_META_HYBRID, else NULL: a multiple of the width */
    const int64_t *group_width;        /* [micro_steps] 1 .. 2^20 */
    const int64_t *lengths;            /* [samples] 1 .. 2^31 */
    const int64_t *ids;                /* [samples] */
    const int64_t *parts;              /* [samples] */
    const int64_t *loss_tokens;        /* [samples] 0 .. length */
    const int64_t *shared;             /* [samples] with RAVEL_META_SHARED, else NULL: tokens in common with the sample
                                          before it in the bin */
    const int64_t *prompts;            /* [samples] with RAVEL_META_PROMPTS, else NULL: 0 .. length */
} ravel_meta;

/* Words that the message takes; -1 if a count is negative or the sum overflows. */
RAVEL_API int64_t ravel_meta_words(const ravel_meta *meta);
/* Writes the message into words[ravel_meta_words(meta)]. */
RAVEL_API ravel_status ravel_meta_encode(const ravel_meta *meta, int64_t *words, int64_t count, ravel_error *err);
/* Checks the message and makes *meta point into it. E_DATA (no such message, or one that contradicts itself),
 * E_UNSUPPORTED (another version), E_CHECKSUM. */
RAVEL_API ravel_status ravel_meta_decode(const int64_t *words, int64_t count, ravel_meta *meta, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
