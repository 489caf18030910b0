/* ravel/tree_batch.h (experimental): a bin whose samples share prefixes, laid out so that every shared token is
 * there once.
 *
 * Nouns
 *   bin        lengths of samples (cu_seqlens), and shared[i]: the leading tokens that sample i has in common with sample
 *              i - 1. The samples are in tree order (ravel/tree.h); a plan gives both (plan->samples, plan->shared).
 *   own        the tokens of a sample that the samples before it do not have: its last length - shared[i].
 *   place      where a token stands on the token axis: own tokens of all samples one after the other.
 *   path       the places of a sample's tokens, from its first to its last.
 *   run        the own tokens of one sample, if there are any: queries of attention. Their keys are the sample's path.
 *   node       consecutive places that the same samples pass through. Its subtree is one range of places.
 *   level      nodes with the same number of nodes above them; no two of them share queries or keys.
 *
 *     samples    a b c d e     a b c f     a b        shared 0, 3, 2     (the last one adds nothing)
 *
 *     tokens     a b c d e f                          places 0 .. 5
 *     positions  0 1 2 3 4 3                          place in the sample: what rotary embeddings see
 *     limits     6 6 6 5 5 6                          key k is visible to query q if k <= q < limits[k]
 *     parents   -1 0 1 2 3 2                          the place that predicts it; -1: the first token of a sample
 *     path       0 1 2 3 4 | 0 1 2 5 | 0 1            per sample; its boundaries are the bin's cu_seqlens
 *     nodes      0..2 (ends 6) | 3..4 (ends 5) | 5..5 (ends 6)       levels 0, 1, 1
 *
 * Two exact ways of attention from these arrays, for kernels that take ragged sequences:
 *
 *   gathered   one call. Queries: the runs (cu_seqlens_q). Keys: their paths, copied by `gather` (cu_seqlens_k); causal with the
 *              mask at the bottom right. Gradients of keys are added up over the copies of a place.
 *   levels     one call per level. Queries: first .. end - 1 of each node; keys: first .. last - 1; causal with the mask at
 *              the top left. Outputs are merged by log-sum-exp. No copies, and every key is in one call only.
 *
 * The loss. A token has one predecessor, so a prediction is named by the place of the token that it predicts: the head
 * runs for row parents[p] with label tokens[p], once, and prediction t of sample s (of its token t + 1) reads place
 * path[s][t + 1]. Weights, old log-probs and the like stay per (sample, token), as ravel_thd_pack lays them out with
 * align 1; the loss is worked out per (sample, token), with that sample's advantage, and derivatives are added up per
 * place.
 *
 * All arrays are the caller's and int32. Functions are pure over the memory that they are given, and allocate
 * nothing. */
#ifndef RAVEL_TREE_BATCH_H
#define RAVEL_TREE_BATCH_H

#include <ravel/batch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_tree_bin {
    const int32_t *cu_seqlens; /* [count + 1] from 0: running sum of lengths, each at least 1 */
    const int32_t *shared; /* [count] 0 .. the shorter of the sample and the one before it; shared[0] is 0. NULL: 0 */
    int64_t count;
} ravel_tree_bin;

typedef struct ravel_tree_batch {
    size_t size; /* sizeof(ravel_tree_batch) */
    /* sizes, from ravel_tree_measure */
    int64_t samples;     /* of the bin */
    int64_t unique;      /* tokens, each shared one counted once */
    int64_t tokens;      /* the same rounded up to align: length of the token arrays */
    int64_t path_tokens; /* sum of lengths */
    int64_t runs;        /* samples with tokens of their own */
    int64_t keys;        /* sum of their lengths: what `gather` copies */
    int64_t longest;     /* sample */
    int64_t longest_own; /* run */
    int64_t nodes_most;  /* upper bound of nodes and of levels */
    /* from ravel_tree_pack */
    int64_t nodes, levels;
    /* arrays; those that are NULL are left out, except that each needs the ones named in brackets */
    int32_t *starts;       /* [samples + 1] place of each sample's first own token */
    int32_t *positions;    /* [tokens] 0 in the padding */
    int32_t *path;         /* [path_tokens] */
    int32_t *limits;       /* [tokens] (path); a padding token sees itself */
    int32_t *parents;      /* [tokens] (path); -1 in the padding */
    int32_t *cu_seqlens_q; /* [runs + 1] running sum of own tokens */
    int32_t *cu_seqlens_k; /* [runs + 1] running sum of lengths */
    int32_t *gather;       /* [keys] (path) places of the keys of all runs */
    int32_t *node_of;     /* [tokens] (limits, parents) number of the node, in the order of places; -1 in the padding */
    int32_t *node_first;  /* [nodes_most] (node_of) own places of a node are first .. last - 1, */
    int32_t *node_last;   /* [nodes_most] */
    int32_t *node_end;    /* [nodes_most] those of its subtree first .. end - 1 */
    int32_t *node_parent; /* [nodes_most] -1: none */
    int32_t *node_level;  /* [nodes_most] */
    int32_t *level_nodes; /* [nodes_most] (node_level) the nodes of level 0, then those of level 1, ... */
    int32_t *level_offsets; /* [nodes_most + 1] where each level begins in it; [levels + 1] are set */
} ravel_tree_batch;

/* Checks the bin and fills in the sizes. `align`: the bin's tokens are rounded up to a multiple of it, once. E_ARGUMENT
 * names the sample that is wrong; E_OVERFLOW from 2^31 tokens up. */
RAVEL_API ravel_status ravel_tree_measure(const ravel_tree_bin *bin, int64_t align, ravel_tree_batch *batch,
                                          ravel_error *err);
/* Bytes of one block for all arrays; SIZE_MAX if that overflows. Then points every array into such a block. */
RAVEL_API size_t ravel_tree_bytes(const ravel_tree_batch *batch);
RAVEL_API void ravel_tree_place(void *block, ravel_tree_batch *batch);
/* Writes every array that is not NULL. The record must have been measured with the same bin. */
RAVEL_API ravel_status ravel_tree_pack(const ravel_tree_bin *bin, ravel_tree_batch *batch, ravel_error *err);

/* ---- fields --------------------------------------------------------------------------------------------- */

/* Per-token data of whole samples, [path_tokens] elements of `each` bytes in the order of cu_seqlens, to packed places:
 * out [tokens] holds each sample's own elements, and `pad` (`each` bytes; NULL: zeros) in the padding. Needs starts.
 * For fields that are equal wherever tokens are shared: token ids, positions, routes. */
RAVEL_API ravel_status ravel_tree_pack_field(const ravel_tree_bin *bin, const ravel_tree_batch *batch, const void *data,
                                             size_t each, const void *pad, void *out, ravel_error *err);
/* The same for arrays on a device, by ravel_thd_pack: the bin's store with each sample in two, 2 i what it shares and 2
 * i + 1 what it owns. offsets[2 * count + 1] of that store; samples[count] the numbers to pack, *own of them (samples
 * without own tokens are left out). With align 1, and total_multiple for the bin's align, fields of kind TOKEN come out
 * as above. */
RAVEL_API ravel_status ravel_tree_own(const ravel_tree_bin *bin, int64_t *offsets, int32_t *samples, int64_t *own,
                                      ravel_error *err);
/* Back to samples: out[path_tokens] gets the element of each token's place (kind RAVEL_FIELD_TOKEN). RAVEL_FIELD_STEP:
 * out has length - 1 elements per sample, prediction t is the element at the place of token t + 1: for log-probs that
 * are kept at the place of the predicted token. Needs path. */
RAVEL_API ravel_status ravel_tree_unpack(const ravel_tree_bin *bin, const ravel_tree_batch *batch, int32_t kind,
                                         const void *packed, size_t each, void *out, ravel_error *err);

/* ---- context parallel ------------------------------------------------------------------------------------- */

/* A bin is cut into chunks of equal numbers of places, RAVEL_TREE_CHUNKS per rank, which are dealt so that ranks have
 * equal pairs of (query, key) too. Keys and values of all ranks are gathered; queries stay where they are. */
typedef enum ravel_tree_constants { RAVEL_TREE_CHUNKS = 8 } ravel_tree_constants;

/* owners[RAVEL_TREE_CHUNKS * ranks]: the rank of each chunk. tokens must be a multiple of the number of chunks (align).
 * Needs positions. `pairs` (NULL, or [ranks]): the pairs of each rank. */
RAVEL_API ravel_status ravel_tree_deal(const ravel_tree_batch *batch, int32_t ranks, int32_t *owners, int64_t *pairs,
                                       ravel_error *err);

/* One rank's share of a bin: its places ascending, and attention with gathered keys for them. */
typedef struct ravel_tree_piece {
    size_t size; /* sizeof(ravel_tree_piece) */
    /* sizes, from ravel_tree_piece_measure */
    int64_t tokens; /* places of this rank, padding included */
    int64_t runs;   /* parts of runs within one chunk */
    int64_t keys;   /* sum of their paths, up to the last query */
    /* arrays; NULL: left out */
    int32_t *places;       /* [tokens] */
    int32_t *query_starts; /* [runs] local row of the first query */
    int32_t *cu_seqlens_q; /* [runs + 1] */
    int32_t *cu_seqlens_k; /* [runs + 1] */
    int32_t *gather;       /* [keys] places of the whole bin */
} ravel_tree_piece;

/* Both need starts, pack also path. ranks 1, rank 0 and owners NULL give the whole bin. */
RAVEL_API ravel_status ravel_tree_piece_measure(const ravel_tree_bin *bin, const ravel_tree_batch *batch,
                                                const int32_t *owners, int32_t ranks, int32_t rank,
                                                ravel_tree_piece *piece, ravel_error *err);
RAVEL_API ravel_status ravel_tree_piece_pack(const ravel_tree_bin *bin, const ravel_tree_batch *batch,
                                             const int32_t *owners, int32_t ranks, int32_t rank,
                                             const ravel_tree_piece *piece, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
