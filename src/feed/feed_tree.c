/* Finding what samples share before they are planned, although each rank has read its own samples only.
 *
 *     begins    a 64-bit hash per sample, of its first tokens, to all ranks. Where all differ that was it.
 *     search    samples that begin alike are a record: they agree on `lo` blocks of tokens, and no two on `hi`. Each
 *               sends 32 bits of the hash of its first `at` blocks; those that are equal are a record from `at` on, and
 *               one of each kind a record up to there:
 *
 *                   lo |========| at ======| hi
 *                       a a a a   b | c             [a a b c] below `at`; those with equal hashes above
 *
 *               `at` is first where a sample begins to be learnt, as answers to one prompt part there; then a little
 *               above `lo`, and more from round to round; then the middle.
 *     confirm   the other 32 bits of the hash of what is shared in the end
 *     join      from the largest to the smallest number of shared tokens, lists of samples are joined end to end
 *
 * Every rank does the same with the same numbers, so only hashes travel, 4 bytes per sample and round. Blocks are 1
 * token where samples are short, and MOST_BLOCK at the most; samples that share less than the begins share nothing.
 * Every field of kind TOKEN is hashed, as the hidden state may depend on each of them. That hashes are equal is not
 * taken for equal tokens: the rank that packs compares them (ravel__tree_compare). */
#include "feed/pack.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/sort.h"
#include "base/xxh3.h"

#include <inttypes.h>
#include <string.h>

enum { PER_BEGIN = 32, MOST_BEGIN = 1 << 20, PER_BLOCK = 512, MOST_BLOCK = 4 }; /* of the mean length */

/* Samples that agree on their first `lo` blocks, and no two of which agree on `hi`. */
typedef struct record {
    int64_t lo, hi, at, step;
    int32_t first, count; /* of the members */
    int32_t guessed;      /* `at` is where samples begin to be learnt */
} record;

typedef struct records {
    record *at;      /* [count of samples] */
    int32_t *member; /* [twice as many] */
    int32_t count, members;
} records;

/* What two samples share. */
typedef struct edges {
    uint64_t *key; /* ~tokens, to be sorted by */
    int32_t *number, *a, *b;
    int32_t count;
} edges;

typedef struct finder {
    const ravel_feed *feed;
    const ravel__columns *c;
    const ravel_samples *samples;
    ravel_comm *comm;     /* NULL: `samples` are those of all ranks */
    int64_t *sent;        /* bytes */
    int64_t begin, block; /* tokens */
    int64_t base;         /* the first sample of this rank */
    int64_t *counts;      /* [dp] of a gather */
    int32_t *rank;        /* [count] of each sample */
    records now, next, done;
    uint64_t *key, *spare; /* [2 count] by member */
    int32_t *spare_member; /* [2 count] */
    edges edges;
    ravel__arena arena;
    ravel_error *err;
} finder;

/* ---- memory --------------------------------------------------------------------------------------------- */

static void make_records(finder *f, records *r) {
    size_t n = (size_t)f->c->count;
    RAVEL__PUSH(&f->arena, r->at, n);
    RAVEL__PUSH(&f->arena, r->member, 2 * n);
}

static ravel_status make(finder *f) {
    size_t n = (size_t)f->c->count;
    RAVEL__PUSH(&f->arena, f->counts, (size_t)f->feed->plan.dp);
    RAVEL__PUSH(&f->arena, f->rank, n);
    RAVEL__PUSH(&f->arena, f->key, 2 * n);
    RAVEL__PUSH(&f->arena, f->spare, 2 * n);
    RAVEL__PUSH(&f->arena, f->spare_member, 2 * n);
    RAVEL__PUSH(&f->arena, f->edges.key, 2 * n);
    RAVEL__PUSH(&f->arena, f->edges.number, 2 * n);
    RAVEL__PUSH(&f->arena, f->edges.a, 2 * n);
    RAVEL__PUSH(&f->arena, f->edges.b, 2 * n);
    make_records(f, &f->now);
    make_records(f, &f->next);
    make_records(f, &f->done);
    ravel_status status = ravel__arena_status(&f->arena, "trees of samples", f->err);
    if (status) return status;
    for (int32_t r = 0, i = 0; r < f->feed->plan.dp; r++)
        for (int64_t k = 0; k < f->c->counts[r]; k++) f->rank[i++] = r;
    for (int32_t r = 0; f->comm && r < f->feed->place.at.dp; r++) f->base += f->c->counts[r];
    return RAVEL_OK;
}

/* ---- hashes --------------------------------------------------------------------------------------------- */

static int64_t length_of(const finder *f, int32_t sample) {
    return f->c->at[COLUMN_LENGTH][sample];
}

static int is_here(const finder *f, int32_t sample) {
    return !f->comm || f->rank[sample] == f->feed->place.at.dp;
}

/* Of a sample's first tokens. */
static uint64_t hash_of(const finder *f, int64_t sample, int64_t tokens) {
    const ravel_ragged *r = &f->samples->ragged;
    ravel__hash h = ravel__hash_begin(4);
    sample -= f->base;
    for (int64_t k = 0; k < f->feed->fields.given; k++) {
        const ravel_field *field = &f->feed->fields.list[k];
        size_t each = (size_t)ravel__field_each(field);
        if (field->kind != RAVEL_FIELD_TOKEN) continue;
        const char *at = (const char *)r->fields[k].data + (size_t)r->offsets[sample] * each;
        ravel__hash_u64(&h, ravel__xxh3_of(at, (size_t)tokens * each));
    }
    return ravel__hash_end(h);
}

/* This rank's words, which stand first in `spare`, to all ranks, and those of all ranks into `key`, rank by rank. */
static ravel_status gather(finder *f, int32_t dtype) {
    int64_t each = ravel_dtype_bytes(dtype);
    if (!f->comm) {
        memcpy(f->key, f->spare, (size_t)f->counts[0] * (size_t)each);
        return RAVEL_OK;
    }
    *f->sent += f->counts[f->feed->place.at.dp] * each * (f->feed->plan.dp - 1);
    return ravel_comm_allgatherv(f->comm, f->spare, f->key, f->counts, NULL, dtype, f->err);
}

enum { NONE = 1 }; /* above the 32 bits of a hash: the sample is not that long; no other one has this key */

/* key[k] = 32 bits of the hash of member k's first `tokens_of` tokens, low ones or (`half` 1) high ones. */
static ravel_status ask(finder *f, const records *r, int64_t (*tokens_of)(const finder *, const record *), int half) {
    int32_t dp = f->comm ? f->feed->plan.dp : 1;
    uint32_t *own = (uint32_t *)(void *)f->spare;
    const uint32_t *all = (const uint32_t *)(const void *)f->key;
    int64_t mine = 0;
    memset(f->counts, 0, (size_t)f->feed->plan.dp * sizeof *f->counts);
    for (const record *x = r->at; x < r->at + r->count; x++)
        for (int32_t k = x->first; k < x->first + x->count; k++) {
            int32_t i = r->member[k];
            if (length_of(f, i) < tokens_of(f, x)) continue;
            f->counts[f->comm ? f->rank[i] : 0]++;
            if (is_here(f, i)) own[mine++] = (uint32_t)(hash_of(f, i, tokens_of(f, x)) >> 32 * half);
        }
    ravel_status status = gather(f, RAVEL_I32);
    if (status) return status;
    for (int64_t rank = 0, at = 0; rank < dp; rank++) { /* from counts to places */
        int64_t count = f->counts[rank];
        f->counts[rank] = at;
        at += count;
    }
    for (const record *x = r->at; x < r->at + r->count; x++)
        for (int32_t k = x->first; k < x->first + x->count; k++) {
            int32_t i = r->member[k];
            f->spare[k] = length_of(f, i) < tokens_of(f, x) ? (uint64_t)NONE << 32 | (uint32_t)k
                                                            : all[f->counts[f->comm ? f->rank[i] : 0]++];
        }
    memcpy(f->key, f->spare, (size_t)r->members * sizeof *f->key);
    return RAVEL_OK;
}

/* ---- searching ------------------------------------------------------------------------------------------ */

/* Where the first of the members begins to be learnt, in blocks. */
static int64_t guess(const finder *f, const int32_t *member, int32_t count) {
    int64_t least = INT64_MAX;
    for (int32_t k = 0; k < count; k++) {
        int64_t prompt = length_of(f, member[k]) - f->c->at[COLUMN_LOSS][member[k]];
        if (prompt < least) least = prompt;
    }
    return least / f->block;
}

/* Some members of a new record; it is done where no block is between. */
static void put(finder *f, record r, const int32_t *member, int32_t count) {
    records *to = r.hi - r.lo > 1 ? &f->next : &f->done;
    int64_t middle = (r.lo + r.hi) / 2;
    if (count < 2) return;
    RAVEL_ASSERT(to->count < f->c->count && to->members + count <= 2 * f->c->count);
    r.at = guess(f, member, count);
    r.guessed = r.lo < r.at && r.at < r.hi;
    if (!r.guessed) r.at = r.step < middle - r.lo ? r.lo + r.step : middle;
    r.first = to->members;
    r.count = count;
    to->at[to->count++] = r;
    memcpy(to->member + to->members, member, (size_t)count * sizeof *member);
    to->members += count;
}

static int64_t asked(const finder *f, const record *r) {
    return r->at * f->block;
}

static int64_t agreed(const finder *f, const record *r) {
    return r->lo * f->block;
}

/* Samples that begin alike. */
static void first_records(finder *f) {
    int32_t n = (int32_t)f->c->count;
    for (int32_t i = 0; i < n; i++) f->now.member[i] = i;
    ravel__sort_u64(f->key, f->now.member, f->spare, f->spare_member, (size_t)n);
    for (int32_t i = 0, end; i < n; i = end) {
        int64_t longest = 0;
        for (end = i; end < n && f->key[end] == f->key[i]; end++)
            if (length_of(f, f->now.member[end]) > longest) longest = length_of(f, f->now.member[end]);
        int64_t lo = f->begin / f->block;
        put(f, (record){.lo = lo, .hi = longest / f->block + 1, .step = lo}, f->now.member + i, end - i);
    }
}

/* Members of a record with equal hashes agree so far; one of each kind goes on below. */
static void divide(finder *f, const record *r) {
    const record above = {.lo = r->at, .hi = r->hi, .step = r->guessed ? 1 : 4 * r->step};
    const record below = {.lo = r->lo, .hi = r->at, .step = r->guessed ? r->lo : r->hi};
    int32_t *member = f->now.member + r->first, kinds = 0;
    uint64_t *key = f->key + r->first;
    ravel__sort_u64(key, member, f->spare, f->spare_member, (size_t)r->count);
    for (int32_t i = 0, end; i < r->count; i = end) {
        for (end = i + 1; end < r->count && key[end] == key[i];) end++;
        put(f, above, member + i, end - i);
        member[kinds++] = member[i];
    }
    put(f, below, member, kinds);
}

static ravel_status search(finder *f) {
    ravel_status status = RAVEL_OK;
    while (!status && f->next.count) {
        records swap = f->now;
        f->now = f->next;
        f->next = swap;
        f->next.count = f->next.members = 0;
        status = ask(f, &f->now, asked, 0);
        for (int32_t i = 0; !status && i < f->now.count; i++) divide(f, &f->now.at[i]);
    }
    return status;
}

/* ---- joining -------------------------------------------------------------------------------------------- */

/* Members of the records that are done: what they agree on, if all of the hash says so, else what the begins do. */
static void list_edges(finder *f) {
    edges *e = &f->edges;
    for (const record *r = f->done.at; r < f->done.at + f->done.count; r++)
        for (int32_t k = r->first + 1; k < r->first + r->count; k++) {
            RAVEL_ASSERT(e->count < 2 * f->c->count);
            e->key[e->count] = ~(uint64_t)(f->key[k] == f->key[r->first] ? agreed(f, r) : f->begin);
            e->number[e->count] = e->count;
            e->a[e->count] = f->done.member[r->first];
            e->b[e->count++] = f->done.member[k];
        }
    ravel__sort_u64(e->key, e->number, f->spare, f->spare_member, (size_t)e->count);
}

static int32_t root_of(int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

/* Lists of samples, each by its first one; all that a list shares with another is at its end. */
static void join(finder *f, int64_t *shared, int32_t *order) {
    int32_t n = (int32_t)f->c->count, *next = f->now.member, *last = next + n, *parent = f->next.member,
            *head = parent + n;
    for (int32_t i = 0; i < n; i++) {
        next[i] = -1;
        last[i] = parent[i] = head[i] = i;
    }
    int64_t *with = (int64_t *)(void *)f->key; /* the one before, by sample */
    memset(with, 0, (size_t)n * sizeof *with);
    for (int32_t k = 0; k < f->edges.count; k++) {
        int64_t same = (int64_t)~f->edges.key[k];
        int32_t a = root_of(parent, f->edges.a[f->edges.number[k]]);
        int32_t b = root_of(parent, f->edges.b[f->edges.number[k]]);
        if (a == b) continue;
        int a_ends = length_of(f, head[a]) == same, b_ends = length_of(f, head[b]) == same;
        if (a_ends != b_ends ? a_ends : head[b] < head[a]) { /* a prefix comes after what it is a prefix of */
            int32_t swap = a;
            a = b;
            b = swap;
        }
        next[last[a]] = head[b];
        with[head[b]] = same;
        last[a] = last[b];
        parent[b] = a;
    }
    int32_t place = 0;
    for (int32_t i = 0; i < n; i++) { /* trees in the order of their first sample; last[] says that one is listed */
        int32_t root = root_of(parent, i);
        for (int32_t s = last[root] < 0 ? -1 : head[root]; s >= 0; s = next[s], place++) {
            order[place] = s;
            shared[place] = with[s];
        }
        last[root] = -1;
    }
    RAVEL_ASSERT(place == n);
}

/* ---- front ---------------------------------------------------------------------------------------------- */

static int64_t part_of(int64_t length, int64_t parts, int64_t most) {
    int64_t size = 1;
    while (2 * size <= most && 2 * size * parts <= length) size *= 2;
    return size;
}

void ravel__tree_blocks(const ravel__columns *c, int64_t *begin, int64_t *block) {
    int64_t sum = 0;
    for (int64_t i = 0; i < c->count; i++) sum += c->at[COLUMN_LENGTH][i];
    *begin = part_of(sum / (c->count ? c->count : 1), PER_BEGIN, MOST_BEGIN);
    *block = part_of(sum / (c->count ? c->count : 1), PER_BLOCK, MOST_BLOCK);
}

/* The begins, of shorter samples a number that no other one has. */
static ravel_status gather_begins(finder *f) {
    int64_t mine = 0;
    for (int32_t i = 0; i < f->c->count; i++)
        if (is_here(f, i))
            f->spare[mine++] = length_of(f, i) < f->begin ? (uint64_t)i : hash_of(f, i, f->begin) | UINT64_C(1) << 63;
    memcpy(f->counts, f->c->counts, (size_t)f->feed->plan.dp * sizeof *f->counts);
    if (!f->comm) f->counts[0] = f->c->count;
    return gather(f, RAVEL_I64);
}

static ravel_status find(finder *f, int64_t *shared, int32_t *order) {
    ravel__tree_blocks(f->c, &f->begin, &f->block);
    ravel_status status = make(f);
    if (status) { /* the others are on their way into a gather */
        if (f->comm) ravel_comm_abort(f->feed->place.world, f->err);
        return status;
    }
    status = gather_begins(f);
    if (!status) first_records(f);
    if (!status) status = search(f);
    if (!status && f->done.count) status = ask(f, &f->done, agreed, 1);
    if (status) return status;
    list_edges(f);
    join(f, shared, order);
    return RAVEL_OK;
}

ravel_status ravel__tree_find(const ravel_feed *feed, ravel__columns *c, const ravel_samples *samples, ravel_comm *comm,
                              int64_t *sent, ravel_error *err) {
    ravel_status status = ravel__buffer_reserve(&c->tree, feed->allocator, c->count + (c->count + 1) / 2,
                                                sizeof(int64_t), "trees of samples", err);
    if (status) {
        if (comm) ravel_comm_abort(feed->place.world, err);
        return status;
    }
    if (!c->count) return RAVEL_OK;
    int64_t *shared = c->tree.at;
    int32_t *order = (int32_t *)(void *)(shared + c->count);
    finder f = {.feed = feed, .c = c, .samples = samples, .comm = comm, .sent = sent, .err = err};
    ravel__arena_init(&f.arena, feed->allocator, 0);
    status = find(&f, shared, order);
    ravel__arena_free(&f.arena);
    c->shared = status ? NULL : shared;
    c->order = order;
    return status;
}

ravel_status ravel__feed_tree(ravel_feed *feed, ravel_error *err) {
    int together = feed->options.owners != RAVEL_OWNERS_ROOT_ONLY && feed->plan.dp > 1;
    return ravel__tree_find(feed, &feed->work.columns, feed->work.mine, together ? feed->place.dp : NULL,
                            &feed->work.gathered_bytes, err);
}
/* ---- packing -------------------------------------------------------------------------------------------- */

/* Whether every TOKEN field of sample i of the store begins as that of the sample before it. */
static int begins_alike(const ravel_ragged *store, int64_t i, int64_t shared) {
    for (int64_t f = 0; f < store->field_count; f++) {
        const ravel_field *field = &store->fields[f];
        size_t each = (size_t)ravel__field_each(field);
        if (field->kind != RAVEL_FIELD_TOKEN || !field->data) continue;
        if (memcmp((const char *)field->data + (size_t)store->offsets[i] * each,
                   (const char *)field->data + (size_t)store->offsets[i - 1] * each, (size_t)shared * each) != 0)
            return 0;
    }
    return 1;
}

ravel_status ravel__tree_compare(const ravel__prepared *slot, const ravel_ragged *arrived, ravel_error *err) {
    const ravel_meta *m = &slot->meta;
    for (int64_t i = 1; m->shared && i < m->samples; i++)
        if (m->shared[i] && !begins_alike(arrived, i, m->shared[i]))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "rows %" PRId64 " and %" PRId64 " have equal hashes of their first %" PRId64
                                   " tokens, and other tokens: read this batch with share-prefix off",
                                   m->ids[i - 1], m->ids[i], m->shared[i]);
    return RAVEL_OK;
}
