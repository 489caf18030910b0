#include "refit/catalog.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

static const int32_t role_of[2] = {RAVEL__SOURCE, RAVEL__SINK};
static const char *const side_name[2] = {"sender", "receiver"};

/* ---- parties -------------------------------------------------------------------------------------------- */

/* Ranks of one side with the same digest and size become a party, in the order of their lowest ranks. */
static ravel_status make_parties(ravel__catalog *c, int32_t side, ravel_error *err) {
    for (int32_t r = 0; r < c->ranks; r++) {
        const ravel__hello *h = &c->hellos[r];
        c->party_of[side][r] = -1;
        if (!(h->roles & role_of[side])) continue;
        int32_t twin = -1;
        for (int32_t p = 0; p < c->party_count && twin < 0; p++) {
            const ravel__hello *other = &c->hellos[c->parties[p].ranks[0]];
            if (c->parties[p].side == side && other->digest[side] == h->digest[side] &&
                other->manifest_bytes[side] == h->manifest_bytes[side])
                twin = p;
        }
        if (twin < 0) {
            twin = c->party_count++;
            RAVEL_ASSERT(twin < 2 * c->ranks);
            c->parties[twin] = (ravel__party){.side = side};
            c->parties[twin].ranks = ravel__arena_push(&c->arena, (size_t)(c->ranks - r), sizeof(int32_t));
            if (!c->parties[twin].ranks) return ravel__no_memory(err, (size_t)c->ranks * 4, "the list of ranks");
        }
        c->parties[twin].ranks[c->parties[twin].count++] = r;
        RAVEL_ASSERT(c->parties[twin].side == side && c->parties[twin].count <= c->ranks);
        c->party_of[side][r] = twin;
    }
    return RAVEL_OK;
}

ravel_status ravel__catalog_init(ravel__catalog *catalog, const ravel__hello *hellos, int32_t ranks,
                                 const ravel_allocator *allocator, ravel_error *err) {
    RAVEL_ASSERT(ranks > 0);
    ravel__catalog c = {.hellos = hellos, .ranks = ranks};
    ravel__arena_init(&c.arena, allocator, 16384);
    ravel__names_init(&c.names, allocator);
    c.parties = ravel__arena_push(&c.arena, 2 * (size_t)ranks, sizeof *c.parties);
    for (int side = 0; side < 2; side++) c.party_of[side] = ravel__arena_push(&c.arena, (size_t)ranks, sizeof(int32_t));
    ravel_status status = RAVEL_E_MEMORY;
    if (c.parties && c.party_of[0] && c.party_of[1])
        status = make_parties(&c, RAVEL__OF_SOURCE, err);
    else
        ravel__no_memory(err, 2 * (size_t)ranks * sizeof *c.parties, "the list of ranks");
    if (status == RAVEL_OK) status = make_parties(&c, RAVEL__OF_SINK, err);
    if (status != RAVEL_OK) {
        ravel__arena_free(&c.arena);
        return status;
    }
    *catalog = c;
    return RAVEL_OK;
}

void ravel__catalog_free(ravel__catalog *catalog) {
    const ravel_allocator *allocator = catalog->arena.allocator;
    ravel__names_free(&catalog->names);
    ravel__release(allocator, catalog->tensors, (size_t)catalog->room * sizeof *catalog->tensors);
    ravel__arena_free(&catalog->arena);
    memset(catalog, 0, sizeof *catalog);
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

static void describe_dims(int32_t ndim, const int64_t *dims, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int32_t d = 0; d < ndim && used < bytes; d++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", d ? ", " : "", (long long)dims[d]);
    if (used < bytes) (void)snprintf(text + used, bytes - used, "]");
}

/* Lists of shares are threaded through the tensors, whose ends point into them: growing must move the ends too. */
static int grow(ravel__catalog *c) {
    int64_t room = c->room + c->room / 2 + 64;
    size_t each = sizeof *c->tensors;
    ravel__tensor *tensors = ravel__alloc(c->arena.allocator, (size_t)room * each);
    if (!tensors) return 0;
    for (int64_t i = 0; i < c->count; i++) {
        tensors[i] = c->tensors[i];
        for (int side = 0; side < 2; side++)
            if (!tensors[i].shares[side]) tensors[i].end[side] = &tensors[i].shares[side];
    }
    ravel__release(c->arena.allocator, c->tensors, (size_t)c->room * each);
    c->tensors = tensors;
    c->room = room;
    RAVEL_ASSERT(c->count < c->room);
    return 1;
}

static ravel__tensor *new_tensor(ravel__catalog *c, const ravel__entry *entry) {
    if (c->count == c->room && !grow(c)) return NULL;
    size_t bytes = strlen(entry->name) + 1;
    char *name = ravel__arena_push(&c->arena, bytes, 1);
    if (!name) return NULL;
    memcpy(name, entry->name, bytes);
    if (!ravel__names_add(&c->names, name, c->count)) return NULL;
    RAVEL_ASSERT(c->count < c->room && entry->ndim <= RAVEL_REFIT_DIMS);
    ravel__tensor *t = &c->tensors[c->count++];
    *t = (ravel__tensor){
        .name = name, .ndim = entry->ndim, .dtype = entry->dtype, .side_dtype = {-1, -1}, .last_party = {-1, -1}};
    memcpy(t->dims, entry->dims, (size_t)entry->ndim * sizeof(int64_t));
    for (int side = 0; side < 2; side++) t->end[side] = &t->shares[side];
    return t;
}

/* The lowest rank that has the tensor on any side, for a sentence. */
static void who(const ravel__tensor *t, int32_t *rank, const char **side) {
    int known = t->side_dtype[RAVEL__OF_SOURCE] >= 0 ? RAVEL__OF_SOURCE : RAVEL__OF_SINK;
    *rank = t->first_rank[known];
    *side = side_name[known];
}

/* 1 when the entry contradicts what is known of the tensor. */
static int contradicts(ravel__tensor *t, const ravel__entry *e, int32_t side, int32_t rank, ravel__differences *list) {
    RAVEL_ASSERT(t->side_dtype[RAVEL__OF_SOURCE] >= 0 || t->side_dtype[RAVEL__OF_SINK] >= 0); /* somebody has it */
    char here[96], there[96];
    const char *other;
    int32_t other_rank;
    who(t, &other_rank, &other);
    if (t->ndim != e->ndim || memcmp(t->dims, e->dims, (size_t)e->ndim * sizeof(int64_t)) != 0) {
        if (t->reported++) return 1;
        describe_dims(t->ndim, t->dims, there, sizeof there);
        describe_dims(e->ndim, e->dims, here, sizeof here);
        ravel__differences_add(list, "\"%s\": shape %s on rank %d (%s), %s on rank %d (%s)", t->name, there, other_rank,
                               other, here, rank, side_name[side]);
        return 1;
    }
    if (t->side_dtype[side] >= 0 && t->side_dtype[side] != e->dtype && !t->reported++)
        ravel__differences_add(list, "\"%s\": %s on rank %d, %s on rank %d, both %ss", t->name,
                               ravel_dtype_name(t->side_dtype[side]), t->first_rank[side], ravel_dtype_name(e->dtype),
                               rank, side_name[side]);
    return 0;
}

/* Sums over tensors and ranks must fit for any manifests. */
static ravel_status weigh(ravel__catalog *c, const ravel__entry *e, int32_t ranks, ravel_error *err) {
    ravel__box whole = ravel__box_whole(e->ndim, e->dims);
    int64_t bytes = ravel__box_count(&whole) * ravel_dtype_bytes(e->dtype);
    if (__builtin_mul_overflow(bytes, ranks, &bytes) || __builtin_add_overflow(c->total, bytes, &c->total) ||
        c->total > INT64_MAX / 4)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the tensors of all ranks have more than 2^61 bytes");
    return RAVEL_OK;
}

static size_t share_bytes(int32_t ndim) {
    return sizeof(ravel__share) + 2 * (size_t)ndim * sizeof(int64_t);
}

static void add_share(ravel__tensor *t, ravel__share *share, int32_t side, int32_t party, const ravel__box *box) {
    RAVEL_ASSERT(side >= 0 && side < 2 && box->ndim == t->ndim);
    *share = (ravel__share){.party = party};
    memcpy(share->coords, box->start, (size_t)t->ndim * sizeof(int64_t));
    memcpy(share->coords + t->ndim, box->extent, (size_t)t->ndim * sizeof(int64_t));
    *t->end[side] = share;
    RAVEL_ASSERT(party >= 0 && (uintptr_t)share % _Alignof(ravel__share) == 0);
    t->end[side] = &share->next;
}

ravel_status ravel__catalog_add(ravel__catalog *c, int32_t party, const void *bytes, size_t size,
                                ravel__differences *list, ravel_error *err) {
    ravel__manifest_reader reader;
    ravel__entry entry;
    RAVEL_ASSERT(party >= 0 && party < c->party_count && c->parties[party].count > 0);
    int32_t side = c->parties[party].side, rank = c->parties[party].ranks[0];
    ravel_status status = ravel__manifest_open(bytes, size, &reader, err);
    if (status == RAVEL_OK && reader.side != role_of[side])
        status = ravel_error_set(err, RAVEL_E_DATA, "a refit manifest is of the wrong side");
    if (status != RAVEL_OK) return status;
    /* One piece of memory for all shares of the manifest: an entry takes at least as many bytes as its share but for
     * the share's fixed part. */
    char *room = ravel__arena_push(&c->arena, size + (size_t)reader.count * sizeof(ravel__share), 1);
    if (!room) return ravel__no_memory(err, size, "the catalog of tensors");
    const char *end = room + size + (size_t)reader.count * sizeof(ravel__share);
    while ((status = ravel__manifest_next(&reader, &entry, err)) == RAVEL_OK) {
        int64_t index = ravel__names_find(&c->names, entry.name);
        status = weigh(c, &entry, c->parties[party].count, err);
        if (status != RAVEL_OK) return status;
        ravel__tensor *t = index >= 0 ? &c->tensors[index] : new_tensor(c, &entry);
        if (!t) return ravel__no_memory(err, sizeof *t, "the catalog of tensors");
        if (t->last_party[side] == party)
            return ravel_error_set(err, RAVEL_E_DATA, "a refit manifest has \"%s\" twice", t->name);
        t->last_party[side] = party;
        if (index >= 0 && contradicts(t, &entry, side, rank, list)) continue;
        if (t->side_dtype[side] < 0) {
            t->side_dtype[side] = entry.dtype;
            t->first_rank[side] = rank;
        }
        add_share(t, (ravel__share *)(void *)room, side, party, &entry.box);
        room += share_bytes(t->ndim);
        RAVEL_ASSERT(room <= end);
    }
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

/* ---- both sides ----------------------------------------------------------------------------------------- */

static int castable(int32_t dtype) {
    return ravel_dtype_kind(dtype) == 'f' && ravel_dtype_bytes(dtype) >= 2;
}

int32_t ravel__travel_dtype(int32_t source, int32_t sink, int32_t cast) {
    if (source == sink) return source;
    if (cast != RAVEL_REFIT_NARROW || !castable(source) || !castable(sink)) return -1;
    return ravel_dtype_bytes(sink) < ravel_dtype_bytes(source) ? sink : source;
}

static void check_dtypes(ravel__tensor *t, int32_t cast, ravel__differences *list) {
    int32_t source = t->side_dtype[RAVEL__OF_SOURCE], sink = t->side_dtype[RAVEL__OF_SINK];
    t->dtype = ravel__travel_dtype(source, sink, cast);
    if (t->dtype >= 0 || t->reported++) return;
    ravel__differences_add(
        list, "\"%s\": %s on rank %d (sender), %s on rank %d (receiver)%s", t->name, ravel_dtype_name(source),
        t->first_rank[RAVEL__OF_SOURCE], ravel_dtype_name(sink), t->first_rank[RAVEL__OF_SINK],
        cast == RAVEL_REFIT_EXACT && castable(source) && castable(sink) ? " (cast narrow would convert it)" : "");
}

static void add_bytes(ravel__catalog *c, const ravel__tensor *t) {
    for (const ravel__share *s = t->shares[RAVEL__OF_SINK]; s; s = s->next) {
        ravel__box box = ravel__share_box(t, s);
        RAVEL_ASSERT(c->parties[s->party].side == RAVEL__OF_SINK);
        c->parties[s->party].bytes += ravel__box_count(&box) * ravel_dtype_bytes(t->dtype);
    }
}

void ravel__catalog_check(ravel__catalog *c, ravel__differences *list) {
    int32_t cast = c->hellos[0].cast, ignore_extra = c->hellos[0].ignore_extra;
    for (int64_t i = 0; i < c->count; i++) {
        ravel__tensor *t = &c->tensors[i];
        int has_source = t->side_dtype[RAVEL__OF_SOURCE] >= 0, has_sink = t->side_dtype[RAVEL__OF_SINK] >= 0;
        if (has_source && has_sink) {
            check_dtypes(t, cast, list);
            add_bytes(c, t);
        } else if (!has_source && !t->reported++) {
            ravel__differences_add(list, "\"%s\": rank %d (receiver) wants it, no sender has it", t->name,
                                   t->first_rank[RAVEL__OF_SINK]);
        } else if (!has_sink && !ignore_extra && !t->reported++) {
            ravel__differences_add(list, "\"%s\": rank %d (sender) has it, no receiver wants it", t->name,
                                   t->first_rank[RAVEL__OF_SOURCE]);
        }
    }
}

ravel__box ravel__share_box(const ravel__tensor *tensor, const ravel__share *share) {
    RAVEL_ASSERT(tensor->ndim >= 0 && tensor->ndim <= RAVEL_REFIT_DIMS);
    ravel__box box = {.ndim = tensor->ndim};
    memcpy(box.start, share->coords, (size_t)tensor->ndim * sizeof(int64_t));
    memcpy(box.extent, share->coords + tensor->ndim, (size_t)tensor->ndim * sizeof(int64_t));
    return box;
}

int64_t ravel__catalog_stream_bytes(const ravel__catalog *c) {
    int64_t most = 0;
    for (int32_t p = 0; p < c->party_count; p++)
        if (c->parties[p].side == RAVEL__OF_SINK && c->parties[p].bytes > most) most = c->parties[p].bytes;
    return most;
}
