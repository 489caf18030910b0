/* What one rank has, on others: the metadata of an update, and arrays that one rank packed for its peers.
 *
 *     words    their number goes first, so that receivers can make room
 *     bytes    both sides know the size; to all (a broadcast), or only to ranks that want them (messages)
 */
#include <ravel/exchange.h>

#include "base/assert.h"

enum { TAG_SHARE = 1 };

ravel_status ravel_share_words(ravel_comm *comm, ravel_words *words, int32_t root, ravel_error *err) {
    int64_t count = words->count;
    ravel_status status = ravel_comm_broadcast(comm, &count, 1, RAVEL_I64, root, err);
    if (status) return status;
    if (ravel_comm_rank(comm) != root) status = ravel_words_resize(words, count, err);
    if (status) { /* the others are already in the second broadcast */
        ravel_comm_abort(comm, err);
        return status;
    }
    return ravel_comm_broadcast(comm, words->at, count, RAVEL_I64, root, err);
}

ravel_status ravel_share_bytes(ravel_comm *comm, void *data, int64_t bytes, const int32_t *wants, int32_t root,
                               ravel_error *err) {
    int32_t size = ravel_comm_size(comm), rank = ravel_comm_rank(comm);
    ravel_status status = RAVEL_OK;
    if (bytes < 0 || root < 0 || root >= size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%lld bytes of rank %d, of %d ranks, cannot be shared",
                               (long long)bytes, root, size);
    if (!wants)
        return size == 1 || bytes == 0 ? RAVEL_OK : ravel_comm_broadcast(comm, data, bytes, RAVEL_U8, root, err);
    if (rank != root)
        return wants[rank] ? ravel_comm_recv(comm, data, bytes, RAVEL_U8, root, TAG_SHARE, err) : RAVEL_OK;
    for (int32_t r = 0; r < size && !status; r++)
        if (r != root && wants[r]) status = ravel_comm_send(comm, data, bytes, RAVEL_U8, r, TAG_SHARE, err);
    return status;
}
