/* ravel/routes.h (experimental): experts' routes beside the tokens that took them (router replay).
 *
 * A mixture-of-experts model that is trained on answers of another engine learns more stably if it sends every token to
 * the experts that the engine sent it to. The routes then travel with the samples, through everything that moves
 * tokens, and must never slip against them: a row that stands one position late is a valid row, and nothing fails.
 *
 * Nouns
 *   row    the experts of one token: [layers, topk] integers, 0 .. experts - 1; -1 throughout a layer: it has no experts, or the
 *          route is not known.
 *   field  RAVEL_ROUTES_FIELD, of kind TOKEN and width layers * topk, pad -1: row t is of the forward pass that read token t. So the
 *          last token of an answer, which no pass has read, has a row of -1, and so has padding. Engines that return one
 *          row less than tokens mean just this.
 *   id     a hash of a sample's tokens, positions and rows together, made where the rows come from: field RAVEL_ROUTES_ID, one
 *          int64 per sample. It is a sum over positions, so parts of a sample (context-parallel shards) have partial sums, which
 *          add up to the id.
 *
 * Made once per sample, carried like any field, checked where the rows are used:
 *
 *     ravel_routes shape = {.layers = 48, .topk = 8, .experts = 128, .dtype = RAVEL_I16};
 *     ravel_routes_ids(&shape, count, offsets, tokens, rows, ids, &err);   E_DATA: no expert, or one twice
 *     const ravel_field routes = {.name = RAVEL_ROUTES_FIELD, .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I16, .width = 48 * 8,
 *                                 .data = rows, .pad = -1};
 *     const ravel_field hashes = {.name = RAVEL_ROUTES_ID, .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_I64, .data = ids};
 *     ... plan, exchange, pack with positions and segments ...
 *     memset(sums, 0, sequences * sizeof *sums);
 *     ravel_routes_add(&shape, thd.local_tokens, packed_tokens, thd.positions, thd.segments, packed_rows, sequences, sums, &err);
 *     ... with context parallel: the sum over those ranks (ravel_comm_allreduce, RAVEL_SUM of RAVEL_I64) ...
 *     ravel_routes_compare(sequences, thd.samples, packed_ids, sums, &err);   E_DATA names the sample
 *
 * Ids do not depend on the dtype of rows or on the machine. Samples that share a prefix (ravel/tree.h) share its rows.
 * Pure functions on the caller's memory, host only.
 */
#ifndef RAVEL_ROUTES_H
#define RAVEL_ROUTES_H

#include <ravel/batch.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVEL_ROUTES_FIELD "routed_experts"
#define RAVEL_ROUTES_ID    "routed_experts_id"

typedef struct ravel_routes {
    int32_t layers, topk; /* layers * topk: elements of a row, at most 65,536 */
    int32_t experts;      /* at most 32,767 */
    int32_t dtype;        /* of rows: RAVEL_I8, RAVEL_I16, RAVEL_I32 or RAVEL_I64 */
} ravel_routes;

/* ids[count] of whole samples; offsets[count + 1] into tokens and rows. E_ARGUMENT for a shape that cannot be, E_DATA
 * names sample, token and layer of an expert that is not there, is given twice, or stands beside a -1. */
RAVEL_API ravel_status ravel_routes_ids(const ravel_routes *routes, int64_t count, const int64_t *offsets,
                                        const int32_t *tokens, const void *rows, int64_t *ids, ravel_error *err);

/* Adds the partial sums of `tokens[count]` at positions[count] of their samples to sums[sequences]; segments[count] is
 * the number of the sample's sequence, from 1, and 0 in padding (as packing writes them). E_DATA names a place of
 * padding that has a route: what was there before was not overwritten. */
RAVEL_API ravel_status ravel_routes_add(const ravel_routes *routes, int64_t count, const int32_t *tokens,
                                        const int32_t *positions, const int32_t *segments, const void *rows,
                                        int64_t sequences, int64_t *sums, ravel_error *err);

/* E_DATA if a sequence's rows are not those that its tokens had, and which sample it is. samples[sequences] as
 * packing writes them: -1 is not looked at. */
RAVEL_API ravel_status ravel_routes_compare(int64_t sequences, const int32_t *samples, const int64_t *ids,
                                            const int64_t *sums, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
