/* train/rl/routes_read.h: experts' routes in the answers of servers (docs/routes.md).
 *
 *     train_routes routes = {.layers = 48, .topk = 8, .experts = 128};
 *     train_routes_read(&routes, text, bytes, tokens, &err);       base64, of vLLM an array of numpy, else int32
 *     use(routes.rows, routes.count);
 *     train_routes_free(&routes);
 */
#ifndef TRAIN_ROUTES_READ_H
#define TRAIN_ROUTES_READ_H

#include <ravel/base.h>

typedef struct train_routes {
    int64_t layers, topk, experts; /* of the model; topk 0: routes are not wanted */
    int16_t *rows;                 /* [count, layers, topk] as ravel/routes.h has them, until the next call */
    int64_t count;                 /* tokens that were read: all but the last */
    uint8_t *raw;
    int64_t row_room, raw_room;
} train_routes;

/* Of a sequence of `tokens`, prompt and answer. Where an engine has only zeros for a token in a layer, nothing is known
 * (-1), unless there is one expert per token. E_MISMATCH says what is wrong. */
ravel_status train_routes_read(train_routes *routes, const char *text, size_t bytes, int64_t tokens, ravel_error *err);
void train_routes_free(train_routes *routes);

#endif
