/* ravel/tree.h (experimental): samples that begin alike: in which order they form trees, and how many tokens
 * neighbours share.
 *
 * Nouns
 *   tree order  an order of the samples in which every subtree of the prefix tree is one run: samples that begin alike
 *               stand side by side.
 *   shared      per place of that order, the tokens that its sample has in common with the sample of the place before.
 *   own tokens  the tokens of a sample after the shared ones: length - shared.
 *
 *     order   sample     tokens                              shared   own
 *     0       2          [system ........][task A][answer]        0    16   all of it
 *     1       5          [system ........][task A][other ]       12     4
 *     2       0          [system ........][task B]                9     3
 *     3       4          [system ........]                        9     0   a prefix of the others: costs nothing
 *     4       1          [another ...]                            0     8
 *
 * Nothing else describes the trees. What the places i < j share is the least `shared` of i + 1 .. j, and a set of
 * samples in this order has sum(length - shared with the one before it in the set) different tokens. `ravel_plan_input`
 * takes both arrays (ravel/plan.h), and each bin of the plan then computes a shared token once.
 *
 * Two samples share a token only if all that its hidden state depends on is equal: the ids up to it, and also
 * images, adapter or replayed routes. Give those as 64-bit keys; keys are compared along with the ids.
 *
 *     ravel_tree_input trees = {.size = sizeof trees, .count = n, .offsets = offsets, .ids = ids};
 *     ravel_tree_order(&trees, order, shared, &err);
 *     ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = lengths, .shared = shared,
 *                               .order = order};
 */
#ifndef RAVEL_TREE_H
#define RAVEL_TREE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ragged ids, borrowed for the call. */
typedef struct ravel_tree_input {
    size_t size;                      /* sizeof(ravel_tree_input) */
    int64_t count;                    /* samples, at most 2^29 */
    const int64_t *offsets;           /* [count + 1] sample i is ids[offsets[i]] .. ids[offsets[i + 1] - 1] */
    const int32_t *ids;               /* [offsets[count]] */
    const uint64_t *sample_keys;      /* [count] samples of different keys share nothing; NULL: all equal */
    const uint64_t *token_keys;       /* [offsets[count]] compared like the ids; NULL: all equal */
    const ravel_allocator *allocator; /* for scratch, 200 bytes per sample; NULL: malloc */
} ravel_tree_input;

/* The tree order: order[count] are samples, shared[count] goes with its places, shared[0] is 0. Trees, and the branches
 * of each fork, are in the order of their first sample; a sample comes after the longer ones that it is a prefix of,
 * equal samples by index. A pure function of the input. Tokens are found equal by comparing them, never by a hash
 * alone. Each sample is compared with one other sample per shared token, so it takes about as long as reading the
 * shared tokens twice. E_DATA if the offsets fall. */
RAVEL_API ravel_status ravel_tree_order(const ravel_tree_input *input, int32_t *order, int64_t *shared,
                                        ravel_error *err);

/* The same where it is known without reading tokens: the samples of a group have the same prompt and nothing else in
 * common. lengths[count] are whole samples, prompts[count] the tokens of their prompts. Groups are in the order of
 * their first sample. E_DATA if two samples of a group have prompts of different lengths, or a prompt is longer than
 * its sample. */
RAVEL_API ravel_status ravel_tree_from_groups(int64_t count, const int64_t *lengths, const int64_t *prompts,
                                              const int64_t *groups, const ravel_allocator *allocator, int32_t *order,
                                              int64_t *shared, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
