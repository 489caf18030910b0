/* The directory of all ranks of a communicator: rank 0 makes it from the senders' manifests, of which equal ones (those
 * of replicas) are sent once, and every rank gets it. */
#include "refit/model/directory.h"

#include "base/assert.h"

/* The lowest rank with the same manifest. */
static int32_t twin_of(const ravel__sender *senders, int32_t rank) {
    int32_t r = 0;
    while (senders[r].manifest_bytes != senders[rank].manifest_bytes || senders[r].digest != senders[rank].digest) r++;
    RAVEL_ASSERT(r <= rank);
    return r;
}

typedef struct sharing {
    ravel_comm *comm;
    const ravel__sender *senders; /* [ranks] */
    const unsigned char *own;
    const ravel_allocator *allocator;
    ravel__differences *list;
    unsigned char **manifests; /* [ranks] those that were received */
    int32_t ranks;
} sharing;

static ravel_status receive(const sharing *s, int32_t from, ravel_error *err) {
    size_t size = (size_t)s->senders[from].manifest_bytes;
    s->manifests[from] = ravel__alloc(s->allocator, size);
    if (!s->manifests[from]) { /* the sender waits */
        ravel__no_memory(err, size, "a manifest");
        ravel_comm_abort(s->comm, err);
        return RAVEL_E_MEMORY;
    }
    return ravel_comm_recv(s->comm, s->manifests[from], (int64_t)size, RAVEL_U8, from, 0, err);
}

/* All are received, also after a failure, which is then in *bad: the senders wait for it. */
static ravel_status read_all(const sharing *s, ravel__directory_builder *b, ravel_status *bad, ravel_error *err) {
    ravel_error first = RAVEL_ERROR_INIT;
    *bad = RAVEL_OK;
    for (int32_t r = 0; r < s->ranks; r++) {
        if (s->senders[r].manifest_bytes == 0) continue;
        int32_t twin = twin_of(s->senders, r);
        ravel_status status = twin == r && r > 0 ? receive(s, r, err) : RAVEL_OK;
        if (status != RAVEL_OK) return status;
        const unsigned char *bytes = twin == 0 ? s->own : s->manifests[twin];
        if (*bad == RAVEL_OK)
            *bad = ravel__directory_add(b, r, bytes, (size_t)s->senders[r].manifest_bytes, s->list, &first);
    }
    return *bad == RAVEL_OK ? RAVEL_OK : ravel_error_set(err, *bad, "%s", first.message);
}

/* Rank 0. */
static ravel_status make(sharing *s, unsigned char **bytes, size_t *size, ravel_error *err) {
    size_t ranks = (size_t)s->ranks;
    ravel__directory_builder b;
    ravel_status bad = RAVEL_OK;
    s->manifests = ravel__calloc(s->allocator, ranks, sizeof *s->manifests);
    if (!s->manifests) {
        ravel__no_memory(err, ranks * sizeof *s->manifests, "the manifests");
        ravel_comm_abort(s->comm, err);
        return RAVEL_E_MEMORY;
    }
    ravel__directory_begin(&b, s->allocator);
    ravel_status status = read_all(s, &b, &bad, err);
    for (size_t r = 0; r < ranks; r++)
        ravel__release(s->allocator, s->manifests[r], s->manifests[r] ? (size_t)s->senders[r].manifest_bytes : 0);
    ravel__release(s->allocator, s->manifests, ranks * sizeof *s->manifests);
    if (status == RAVEL_OK) status = ravel__directory_encode(&b, s->senders, s->ranks, bytes, size, err);
    ravel__directory_end(&b);
    return status;
}

static ravel_status spread(const sharing *s, unsigned char **bytes, size_t *size, ravel_error *err) {
    int64_t count = (int64_t)*size;
    ravel_status status = ravel_comm_broadcast(s->comm, &count, 1, RAVEL_I64, 0, err);
    if (status != RAVEL_OK) return status;
    *size = (size_t)count;
    if (!*bytes) *bytes = ravel__alloc(s->allocator, *size);
    if (!*bytes) {
        ravel__no_memory(err, *size, "the directory");
        ravel_comm_abort(s->comm, err);
        return RAVEL_E_MEMORY;
    }
    const ravel_logger *logger = s->list->logger;
    status = ravel_comm_broadcast(s->comm, *bytes, count, RAVEL_U8, 0, err);
    if (status == RAVEL_OK) status = ravel_comm_broadcast(s->comm, s->list, sizeof *s->list, RAVEL_U8, 0, err);
    s->list->logger = logger;
    return status;
}

ravel_status ravel__directory_share(ravel_comm *comm, const ravel__sender *senders, const unsigned char *own,
                                    const ravel_allocator *allocator, ravel__differences *list, unsigned char **bytes,
                                    size_t *size, ravel_error *err) {
    sharing s = {.comm = comm, .senders = senders, .own = own, .allocator = allocator, .list = list};
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t rank = ravel_comm_rank(comm);
    s.ranks = ravel_comm_size(comm);
    *bytes = NULL;
    *size = 0;
    ravel_status status = RAVEL_OK;
    if (rank == 0)
        status = make(&s, bytes, size, &why);
    else if (senders[rank].manifest_bytes > 0 && twin_of(senders, rank) == rank)
        status = ravel_comm_send(comm, own, senders[rank].manifest_bytes, RAVEL_U8, 0, 0, &why);
    status = ravel_agree(comm, status, &why);
    if (status == RAVEL_OK) status = spread(&s, bytes, size, &why);
    if (status == RAVEL_OK) return RAVEL_OK;
    ravel__release(allocator, *bytes, *bytes ? *size : 0);
    *bytes = NULL;
    return ravel_error_set(err, status, "%s", why.message);
}
