#include "refit/model/directory.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/xxh3.h"

#include <stdio.h>
#include <string.h>

static const unsigned char magic[4] = {'R', 'V', 'L', 'D'};

enum { CHECKSUM_AT = 40 };

/* ---- nodes ---------------------------------------------------------------------------------------------- */

static int same_node(const ravel__cut_node *a, const ravel__cut_node *b) {
    RAVEL_ASSERT(a->ndim >= 0 && a->ndim <= RAVEL_REFIT_DIMS && b->ndim >= 0 && b->ndim <= RAVEL_REFIT_DIMS);
    return a->sender == b->sender && a->ndim == b->ndim &&
           memcmp(a->coords, b->coords, 2 * (size_t)a->ndim * sizeof *a->coords) == 0;
}

/* Makes room for one more of an array that grows by half. */
static int make_room(const ravel_allocator *allocator, void **array, int64_t count, int64_t *room, size_t each) {
    if (count < *room) return 1;
    int64_t more = *room + *room / 2 + 64;
    void *grown = ravel__resize(allocator, *array, (size_t)*room * each, (size_t)more * each);
    if (!grown) return 0;
    *array = grown;
    *room = more;
    return 1;
}

/* The number of the node, which is created if it does not exist; -1: out of memory. A node has few children: ways in
 * which the senders after its own have tensors that the senders before them have alike. */
static int32_t find_node(ravel__directory_builder *b, const ravel__cut_node *wanted) {
    int32_t parent = wanted->parent, first = parent < 0 ? b->first_root : b->nodes[parent].child;
    void *nodes = b->nodes;
    for (int32_t i = first; i >= 0; i = b->nodes[i].next)
        if (same_node(&b->nodes[i], wanted)) return i;
    if (b->node_count == INT32_MAX ||
        !make_room(b->arena.allocator, &nodes, b->node_count, &b->node_room, sizeof *b->nodes))
        return -1;
    int32_t made = (int32_t)b->node_count++;
    b->nodes = nodes;
    b->nodes[made] = *wanted;
    b->nodes[made].child = -1;
    b->nodes[made].next = first;
    *(parent < 0 ? &b->first_root : &b->nodes[parent].child) = made;
    return made;
}

/* ---- building ------------------------------------------------------------------------------------------- */

void ravel__directory_begin(ravel__directory_builder *b, const ravel_allocator *allocator) {
    memset(b, 0, sizeof *b);
    b->first_root = -1;
    ravel__arena_init(&b->arena, allocator, 65536);
    ravel__names_init(&b->names, allocator);
}

void ravel__directory_end(ravel__directory_builder *b) {
    const ravel_allocator *a = b->arena.allocator;
    ravel__names_free(&b->names);
    ravel__release(a, b->tensors, (size_t)b->room * sizeof *b->tensors);
    ravel__release(a, b->nodes, (size_t)b->node_room * sizeof *b->nodes);
    ravel__arena_free(&b->arena);
    memset(b, 0, sizeof *b);
}

/* A tensor as one sender has it. */
typedef struct entry {
    const char *name;
    int32_t dtype, ndim;
    const int64_t *dims;
    const ravel__box *box;
} entry;

static int64_t add_tensor(ravel__directory_builder *b, const entry *e) {
    ravel__cut_node root = {.parent = -1, .sender = -1, .ndim = e->ndim, .cut = -1};
    memcpy(root.coords, e->dims, (size_t)e->ndim * sizeof *e->dims);
    size_t bytes = strlen(e->name) + 1;
    char *name = ravel__arena_push(&b->arena, bytes, 1);
    int32_t node = find_node(b, &root);
    void *tensors = b->tensors;
    if (!name || node < 0 || !make_room(b->arena.allocator, &tensors, b->count, &b->room, sizeof *b->tensors))
        return -1;
    b->tensors = tensors;
    memcpy(name, e->name, bytes);
    if (!ravel__names_add(&b->names, name, b->count)) return -1;
    RAVEL_ASSERT(b->count < b->room && b->nodes[node].parent < 0);
    b->tensors[b->count] = (ravel__listed){.name = name, .dtype = e->dtype, .cut = node};
    return b->count++;
}

static const ravel__cut_node *root_of(const ravel__directory_builder *b, int32_t node) {
    RAVEL_ASSERT(node >= 0 && node < b->node_count);
    const ravel__cut_node *n = &b->nodes[node];
    RAVEL_ASSERT(n->parent < node); /* parents come first, so walks upwards end */
    return n->parent < 0 ? n : &b->nodes[n->root];
}

/* The lowest sender that has the tensor, for sentences. */
static int32_t first_sender(const ravel__directory_builder *b, int32_t node) {
    int32_t sender = -1;
    for (const ravel__cut_node *n = &b->nodes[node]; n->parent >= 0; n = &b->nodes[n->parent]) sender = n->sender;
    return sender;
}

/* 1 where the entry contradicts what lower senders say. */
static int contradicts(const ravel__directory_builder *b, const ravel__listed *t, const entry *e, int32_t sender,
                       ravel__differences *list) {
    const ravel__cut_node *root = root_of(b, t->cut);
    if (root->ndim != e->ndim || memcmp(root->coords, e->dims, (size_t)e->ndim * sizeof *e->dims) != 0)
        ravel__differences_add(list, "\"%s\": rank %d has another shape than rank %d, both senders", t->name, sender,
                               first_sender(b, t->cut));
    else if (t->dtype != e->dtype)
        ravel__differences_add(list, "\"%s\": %s on rank %d, %s on rank %d, both senders", t->name,
                               ravel_dtype_name(e->dtype), sender, ravel_dtype_name(t->dtype), first_sender(b, t->cut));
    else
        return 0;
    return 1;
}

/* Manifests mostly list the same tensors in the same order: *guess is where the next one may be. */
static ravel_status add_entry(ravel__directory_builder *b, int32_t sender, const entry *e, int64_t *guess,
                              ravel__differences *list, ravel_error *err) {
    int64_t at = *guess < b->count && strcmp(b->tensors[*guess].name, e->name) == 0
                     ? *guess
                     : ravel__names_find(&b->names, e->name);
    if (at < 0) at = add_tensor(b, e);
    if (at < 0) return ravel__no_memory(err, sizeof(ravel__listed), "the directory");
    ravel__listed *t = &b->tensors[at];
    *guess = at + 1;
    if (contradicts(b, t, e, sender, list)) return RAVEL_OK;
    const ravel__cut_node *before = &b->nodes[t->cut];
    RAVEL_ASSERT(before->ndim == e->ndim && before->holders >= 0 && (before->holders == 0 || before->sender < sender));
    ravel__cut_node n = {.parent = t->cut, .sender = sender, .ndim = e->ndim, .cut = -1};
    n.root = before->parent < 0 ? t->cut : before->root;
    n.holders = before->holders + 1;
    memcpy(n.coords, e->box->start, (size_t)e->ndim * sizeof *n.coords);
    memcpy(n.coords + e->ndim, e->box->extent, (size_t)e->ndim * sizeof *n.coords);
    int32_t node = find_node(b, &n);
    if (node < 0) return ravel__no_memory(err, sizeof n, "the directory");
    b->tensors[at].cut = node;
    return RAVEL_OK;
}

ravel_status ravel__directory_add(ravel__directory_builder *b, int32_t sender, const void *manifest, size_t size,
                                  ravel__differences *list, ravel_error *err) {
    ravel__directory d;
    int64_t guess = 0;
    ravel_status status = ravel__directory_decode(manifest, size, b->arena.allocator, &d, err);
    if (status != RAVEL_OK) return status;
    if (d.senders != 1) status = ravel_error_set(err, RAVEL_E_DATA, "a manifest is of %d ranks, not of one", d.senders);
    for (int64_t i = 0; i < d.count && status == RAVEL_OK; i++) {
        const ravel__cut *cut = &d.cuts[d.tensors[i].cut];
        ravel__box box = ravel__cut_box(cut, 0);
        const entry e = {d.tensors[i].name, d.tensors[i].dtype, cut->ndim, cut->dims, &box};
        status = add_entry(b, sender, &e, &guess, list, err);
    }
    ravel__directory_free(&d);
    return status;
}

ravel_status ravel__manifest_make(const ravel__holding *holding, int32_t dtype, const ravel_allocator *allocator,
                                  unsigned char **bytes, size_t *size, ravel_error *err) {
    static const ravel__sender nobody;
    ravel__directory_builder b;
    ravel__differences none = {0}; /* a holding has each name once */
    ravel_status status = RAVEL_OK;
    int64_t guess = 0;
    ravel__directory_begin(&b, allocator);
    for (int64_t i = 0; i < holding->count && status == RAVEL_OK; i++) {
        const ravel__item *item = &holding->items[i];
        const entry e = {item->name, ravel__narrowed(item->dtype, dtype), item->ndim, item->dims, &item->view.box};
        status = add_entry(&b, 0, &e, &guess, &none, err);
    }
    if (status == RAVEL_OK) status = ravel__directory_encode(&b, &nobody, 1, bytes, size, err);
    ravel__directory_end(&b);
    return status;
}

/* ---- encoding ------------------------------------------------------------------------------------------- */

static size_t cut_bytes(int32_t ndim, int32_t holders) {
    return 8 + 8 * (size_t)ndim + (size_t)holders * (4 + 16 * (size_t)ndim);
}

/* Holders are written from the last to the first: the trie is walked upwards. */
static unsigned char *put_cut(unsigned char *p, const ravel__directory_builder *b, int32_t node) {
    const ravel__cut_node *n = &b->nodes[node], *root = root_of(b, node);
    ravel__put32(p, (uint32_t)root->ndim);
    ravel__put32(p + 4, (uint32_t)n->holders);
    p += 8;
    for (int32_t d = 0; d < root->ndim; d++, p += 8) ravel__put64(p, (uint64_t)root->coords[d]);
    for (; n->parent >= 0; n = &b->nodes[n->parent]) {
        ravel__put32(p, (uint32_t)n->sender);
        p += 4;
        for (int32_t c = 0; c < 2 * n->ndim; c++, p += 8) ravel__put64(p, (uint64_t)n->coords[c]);
    }
    RAVEL_ASSERT(n == root);
    return p;
}

/* Numbers the nodes at which tensors ended, which are the cuts; returns their number, and adds up the bytes. */
static int64_t number_cuts(ravel__directory_builder *b, size_t *bytes) {
    int64_t count = 0;
    for (int64_t i = 0; i < b->node_count; i++) b->nodes[i].cut = -1;
    for (int64_t i = 0; i < b->count; i++) {
        ravel__cut_node *n = &b->nodes[b->tensors[i].cut];
        *bytes += 8 + strlen(b->tensors[i].name);
        if (n->cut >= 0) continue;
        n->cut = (int32_t)count++;
        *bytes += cut_bytes(n->ndim, n->holders);
    }
    RAVEL_ASSERT(count <= b->count && count <= b->node_count);
    return count;
}

static uint64_t sum_of(const unsigned char *bytes, size_t size) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, CHECKSUM_AT);
    ravel__xxh3_add(&state, bytes + RAVEL__DIRECTORY_HEADER, size - RAVEL__DIRECTORY_HEADER);
    return ravel__xxh3_end(&state);
}

ravel_status ravel__directory_encode(ravel__directory_builder *b, const ravel__sender *senders, int32_t count,
                                     unsigned char **bytes, size_t *size, ravel_error *err) {
    RAVEL_ASSERT(count > 0);
    size_t need = RAVEL__DIRECTORY_HEADER;
    for (int32_t s = 0; s < count; s++) need += 10 + strlen(senders[s].addresses);
    int64_t cuts = number_cuts(b, &need), next = 0;
    if (need > RAVEL__DIRECTORY_MOST)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the directory of the trainers' tensors has more than 2 GiB");
    unsigned char *out = ravel__alloc(b->arena.allocator, need), *p = out;
    if (!out) return ravel__no_memory(err, need, "the directory");
    memset(p, 0, RAVEL__DIRECTORY_HEADER);
    memcpy(p, magic, 4);
    ravel__put16(p + 4, RAVEL__DIRECTORY_FORMAT);
    ravel__put32(p + 8, (uint32_t)count);
    ravel__put64(p + 16, (uint64_t)cuts);
    ravel__put64(p + 24, (uint64_t)b->count);
    ravel__put64(p + 32, (uint64_t)need);
    p += RAVEL__DIRECTORY_HEADER;
    for (int32_t s = 0; s < count; s++) {
        size_t length = strlen(senders[s].addresses);
        ravel__put64(p, senders[s].machine);
        ravel__put16(p + 8, (uint16_t)length);
        memcpy(p + 10, senders[s].addresses, length);
        p += 10 + length;
    }
    for (int64_t i = 0; i < b->count; i++) {
        const ravel__cut_node *n = &b->nodes[b->tensors[i].cut];
        if (n->cut != next) continue; /* numbered in the order of their first tensors */
        p = put_cut(p, b, b->tensors[i].cut);
        next++;
    }
    for (int64_t i = 0; i < b->count; i++) {
        size_t length = strlen(b->tensors[i].name);
        ravel__put32(p, (uint32_t)b->nodes[b->tensors[i].cut].cut);
        ravel__put16(p + 4, (uint16_t)b->tensors[i].dtype);
        ravel__put16(p + 6, (uint16_t)length);
        memcpy(p + 8, b->tensors[i].name, length);
        p += 8 + length;
    }
    RAVEL_ASSERT(p == out + need);
    ravel__put64(out + CHECKSUM_AT, sum_of(out, need));
    *bytes = out;
    *size = need;
    return RAVEL_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------- */

typedef struct reader {
    const unsigned char *at, *end;
    ravel__directory *d;
    ravel_error *err;
} reader;

static ravel_status broken(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_DATA, "a refit directory is broken: %s", what);
}

/* The next `bytes` bytes, or NULL. */
static const unsigned char *take(reader *r, size_t bytes) {
    if ((size_t)(r->end - r->at) < bytes) return NULL;
    const unsigned char *p = r->at;
    r->at += bytes;
    return p;
}

static char *take_text(reader *r, size_t length) {
    const unsigned char *p = take(r, length);
    char *text = p ? ravel__arena_push(&r->d->arena, length + 1, 1) : NULL;
    if (!text || memchr(p, 0, length)) return NULL;
    memcpy(text, p, length);
    text[length] = '\0';
    return text;
}

static ravel_status read_senders(reader *r) {
    for (int32_t s = 0; s < r->d->senders; s++) {
        const unsigned char *p = take(r, 10);
        size_t length = p ? ravel__get16(p + 8) : 0;
        char *text = p && length < RAVEL__ADDRESS_BYTES ? take_text(r, length) : NULL;
        if (!text) return broken(r->err, "an address is cut off, too long or has a NUL");
        r->d->machines[s] = ravel__get64(p);
        r->d->addresses[s] = text;
    }
    return RAVEL_OK;
}

static ravel_status read_holder(const ravel__cut *c, const unsigned char *p, int32_t senders, int32_t *sender,
                                int64_t *coords, ravel_error *err) {
    uint32_t who = ravel__get32(p);
    if (who >= (uint32_t)senders) return broken(err, "a cut names a sender that does not exist");
    *sender = (int32_t)who;
    for (int32_t d = 0; d < c->ndim; d++) {
        uint64_t start = ravel__get64(p + 4 + 8 * (size_t)d), extent = ravel__get64(p + 4 + 8 * (size_t)(c->ndim + d));
        if (extent > (uint64_t)c->dims[d] || start > (uint64_t)c->dims[d] - extent)
            return broken(err, "a piece lies outside its tensor");
        coords[d] = (int64_t)start;
        coords[c->ndim + d] = (int64_t)extent;
    }
    return RAVEL_OK;
}

static ravel_status read_cut(reader *r, ravel__cut *c) {
    const unsigned char *p = take(r, 8);
    if (!p || ravel__get32(p) > RAVEL_REFIT_DIMS) return broken(r->err, "a cut has too many dimensions");
    *c = (ravel__cut){.ndim = (int32_t)ravel__get32(p)};
    uint32_t holders = ravel__get32(p + 4);
    int64_t count = 16; /* of the widest dtype, with room to spare */
    if (holders < 1 || holders > (uint32_t)r->d->senders) return broken(r->err, "a cut has no holders or too many");
    c->holders = (int32_t)holders;
    p = take(r, 8 * (size_t)c->ndim);
    for (int32_t d = 0; p && d < c->ndim; d++, p += 8) {
        uint64_t dim = ravel__get64(p);
        if (dim > INT64_MAX || __builtin_mul_overflow(count, dim > 0 ? (int64_t)dim : 1, &count))
            return broken(r->err, "a tensor is too large");
        c->dims[d] = (int64_t)dim;
    }
    size_t each = 4 + 16 * (size_t)c->ndim;
    p = p ? take(r, each * holders) : NULL;
    if (!p) return broken(r->err, "a cut is cut off");
    int32_t *senders = ravel__arena_push(&r->d->arena, holders, sizeof *senders);
    int64_t *coords = ravel__arena_push(&r->d->arena, 2 * (size_t)holders * (size_t)c->ndim + 1, sizeof *coords);
    if (!senders || !coords) return ravel__no_memory(r->err, each * holders, "the directory");
    for (uint32_t h = 0; h < holders; h++, p += each) {
        ravel_status status =
            read_holder(c, p, r->d->senders, &senders[h], coords + 2 * (size_t)h * (size_t)c->ndim, r->err);
        if (status != RAVEL_OK) return status;
    }
    c->senders = senders;
    c->coords = coords;
    return RAVEL_OK;
}

static ravel_status read_tensor(reader *r, int64_t index) {
    const unsigned char *p = take(r, 8);
    uint32_t cut = p ? ravel__get32(p) : 0;
    int32_t dtype = p ? ravel__get16(p + 4) : 0;
    size_t length = p ? ravel__get16(p + 6) : 0;
    if (!p || length < 1 || length > 1023) return broken(r->err, "a name is cut off or too long");
    if (cut >= (uint64_t)r->d->cut_count) return broken(r->err, "a tensor names a cut that does not exist");
    if (ravel_dtype_bytes(dtype) <= 0) return broken(r->err, "a tensor has an unknown dtype");
    char *name = take_text(r, length);
    if (!name) return broken(r->err, "a name is cut off or has a NUL");
    if (ravel__names_find(&r->d->names, name) >= 0) return broken(r->err, "it has a name twice");
    if (!ravel__names_add(&r->d->names, name, index)) return ravel__no_memory(r->err, length, "the directory's names");
    r->d->tensors[index] = (ravel__listed){.name = name, .dtype = dtype, .cut = (int32_t)cut};
    return RAVEL_OK;
}

static ravel_status read_header(reader *r, const unsigned char *p, size_t size) {
    if (size < RAVEL__DIRECTORY_HEADER || size > RAVEL__DIRECTORY_MOST)
        return broken(r->err, "it is shorter than its header, or larger than 2 GiB");
    if (memcmp(p, magic, 4) != 0) return broken(r->err, "it does not begin with RVLD");
    if (ravel__get16(p + 4) != RAVEL__DIRECTORY_FORMAT)
        return ravel_error_set(r->err, RAVEL_E_MISMATCH, "a refit directory has format %u, this library knows %d",
                               (unsigned)ravel__get16(p + 4), RAVEL__DIRECTORY_FORMAT);
    uint64_t senders = ravel__get32(p + 8), cuts = ravel__get64(p + 16), tensors = ravel__get64(p + 24);
    size_t body = size - RAVEL__DIRECTORY_HEADER;
    if (ravel__get64(p + 32) != size) return broken(r->err, "its size is not what its header says");
    if (senders < 1 || senders > body / 10 || cuts > body / 12 || tensors > body / 9)
        return broken(r->err, "it cannot hold as many entries as it says");
    if (ravel__get64(p + CHECKSUM_AT) != sum_of(p, size))
        return ravel_error_set(r->err, RAVEL_E_CHECKSUM, "a refit directory arrived changed: its checksum is wrong");
    r->d->senders = (int32_t)senders;
    r->d->cut_count = (int64_t)cuts;
    r->d->count = (int64_t)tensors;
    r->d->digest = ravel__get64(p + CHECKSUM_AT);
    r->at = p + RAVEL__DIRECTORY_HEADER;
    r->end = p + size;
    return RAVEL_OK;
}

static ravel_status read_all(reader *r, const void *bytes, size_t size) {
    ravel__directory *d = r->d;
    ravel_status status = read_header(r, bytes, size);
    if (status != RAVEL_OK) return status;
    d->addresses = ravel__arena_push(&d->arena, (size_t)d->senders, sizeof *d->addresses);
    d->machines = ravel__arena_push(&d->arena, (size_t)d->senders, sizeof *d->machines);
    d->cuts = ravel__arena_push(&d->arena, (size_t)d->cut_count, sizeof *d->cuts);
    d->tensors = ravel__arena_push(&d->arena, (size_t)d->count, sizeof *d->tensors);
    if (!d->addresses || !d->machines || !d->cuts || !d->tensors)
        return ravel__no_memory(r->err, size, "the directory");
    status = read_senders(r);
    for (int64_t i = 0; i < d->cut_count && status == RAVEL_OK; i++) status = read_cut(r, &d->cuts[i]);
    for (int64_t i = 0; i < d->count && status == RAVEL_OK; i++) status = read_tensor(r, i);
    if (status == RAVEL_OK && r->at != r->end) status = broken(r->err, "bytes are left over");
    return status;
}

ravel_status ravel__directory_decode(const void *bytes, size_t size, const ravel_allocator *allocator,
                                     ravel__directory *directory, ravel_error *err) {
    ravel__directory d = {0};
    reader r = {.d = &d, .err = err};
    ravel__arena_init(&d.arena, allocator, 65536);
    ravel__names_init(&d.names, allocator);
    ravel_status status = read_all(&r, bytes, size);
    if (status == RAVEL_OK)
        *directory = d;
    else
        ravel__directory_free(&d);
    return status;
}

void ravel__directory_free(ravel__directory *d) {
    ravel__names_free(&d->names);
    ravel__arena_free(&d->arena);
    memset(d, 0, sizeof *d);
}

int64_t ravel__directory_index(const ravel__directory *d, const ravel__holding *holding, int32_t *item_of) {
    int64_t found = 0;
    for (int64_t i = 0; i < d->count; i++) item_of[i] = -1;
    for (int64_t i = 0; i < holding->count; i++) {
        int64_t tensor = ravel__names_find(&d->names, holding->items[i].name);
        if (tensor >= 0) item_of[tensor] = (int32_t)i;
        found += tensor >= 0;
    }
    return found;
}

ravel__box ravel__cut_box(const ravel__cut *cut, int32_t holder) {
    RAVEL_ASSERT(holder >= 0 && holder < cut->holders && cut->ndim <= RAVEL_REFIT_DIMS);
    ravel__box box = {.ndim = cut->ndim};
    const int64_t *coords = cut->coords + 2 * (int64_t)holder * cut->ndim;
    memcpy(box.start, coords, (size_t)cut->ndim * sizeof *coords);
    memcpy(box.extent, coords + cut->ndim, (size_t)cut->ndim * sizeof *coords);
    return box;
}
