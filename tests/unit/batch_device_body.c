#include "tests/unit/batch_device_body.h"

#include "tests/unit/store.h"

#include <ravel/tree_batch.h>
#include <ravel/weights.h>

#include <stdlib.h>

enum { SECONDS = 60, BIN_MOST = 700, SLACK = 64 };

/* A store whose data is on the device as well, and what else a round needs. */
typedef struct rig {
    ravel_device *device;
    ravel_stream *stream, *upload;
    ravel__rng rng;
    store s;
    ravel_ragged there; /* the store, its fields in device memory */
    ravel_field fields[STORE_FIELDS];
    void *arrays[STORE_FIELDS]; /* what those were allocated as */
    int32_t samples[BIN_MOST];
    ravel_bin bin;
    ravel_error err;
} rig;

static int64_t below(rig *g, int64_t most) {
    return (int64_t)ravel__rng_below(&g->rng, (uint64_t)most);
}

/* The bytes on the device, at an address that is aligned to the element and no more. */
static void *upload(rig *g, const void *data, size_t bytes, int32_t element, void **array) {
    size_t shift = (size_t)below(g, 4) * (size_t)element;
    if (!EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, bytes + SLACK, g->upload, array, &g->err) == RAVEL_OK))
        return NULL;
    if (bytes)
        EXPECT(ravel_device_copy(g->device, (char *)*array + shift, data, bytes, g->upload, &g->err) == RAVEL_OK);
    return (char *)*array + shift;
}

static bool rig_open(rig *g, ravel_device *device, uint64_t seed) {
    memset(g, 0, sizeof *g);
    g->device = device;
    g->rng = ravel__rng_seed(seed);
    return EXPECT(ravel_stream_create(device, &g->stream, &g->err) == RAVEL_OK) &&
           EXPECT(ravel_stream_create(device, &g->upload, &g->err) == RAVEL_OK);
}

static void rig_close(rig *g) {
    EXPECT(g->err.status == 0);
    if (g->err.status) fprintf(stderr, "    %s\n", g->err.message);
    ravel_stream_free(g->stream);
    ravel_stream_free(g->upload);
}

/* Fields are uploaded in a stream of their own, so packing must wait for it. */
static void round_begin(rig *g) {
    store_make(&g->s, &g->rng, 1 + below(g, below(g, 4) ? 30 : STORE_SAMPLES), below(g, 3) ? 40 : 3000);
    g->there = g->s.ragged;
    g->there.fields = g->fields;
    for (int64_t f = 0; f < g->there.field_count; f++) {
        g->fields[f] = g->s.fields[f];
        g->fields[f].data = upload(g, g->s.data[f], (size_t)ravel_field_bytes(&g->s.ragged, &g->s.fields[f]),
                                   ravel_dtype_bytes(g->s.fields[f].dtype), &g->arrays[f]);
        g->fields[f].place = (ravel_place){RAVEL_DEVICE, 0, g->upload};
    }
    /* often every sample once; sometimes many more, with repeats, or none */
    int64_t many = below(g, 6);
    g->bin.count = many == 0 ? 0 : many == 1 ? BIN_MOST : 1 + below(g, g->s.ragged.count);
    for (int64_t i = 0; i < g->bin.count; i++) g->samples[i] = (int32_t)below(g, g->s.ragged.count);
    g->bin.samples = g->samples;
}

static void round_end(rig *g) {
    EXPECT(ravel_stream_wait(g->stream, SECONDS, &g->err) == RAVEL_OK);
    for (int64_t f = 0; f < g->there.field_count; f++) ravel_device_release(g->device, g->arrays[f], g->stream);
    store_free(&g->s);
}

/* Whether `bytes` at a device's address are those at the host's. */
static bool same_there(rig *g, const void *there, const void *here, size_t bytes) {
    if (!here || bytes == 0) return true;
    char *back = malloc(bytes);
    bool good = EXPECT(ravel_device_copy(g->device, back, there, bytes, g->stream, &g->err) == RAVEL_OK) &&
                EXPECT(ravel_stream_wait(g->stream, SECONDS, &g->err) == RAVEL_OK) &&
                EXPECT(memcmp(back, here, bytes) == 0);
    free(back);
    return good;
}

/* Unpacks a field on both sides into arrays that begin with the same bytes. */
typedef ravel_status unpack_fn(rig *g, const void *layout, const ravel_field *field, const void *packed, void *out);

static bool unpacks_the_same(rig *g, unpack_fn *unpack, const void *host, const void *there, int64_t f,
                             const void *host_packed, const void *device_packed) {
    size_t bytes = (size_t)ravel_field_bytes(&g->s.ragged, &g->s.fields[f]);
    void *array = NULL, *out = malloc(bytes + 1);
    memset(out, 0xee, bytes + 1);
    void *device_out = upload(g, out, bytes, ravel_dtype_bytes(g->s.fields[f].dtype), &array);
    bool good = EXPECT(ravel_stream_follow(g->stream, g->upload, &g->err) == RAVEL_OK) &&
                EXPECT(unpack(g, host, &g->s.fields[f], host_packed, out) == RAVEL_OK) &&
                EXPECT(unpack(g, there, &g->fields[f], device_packed, device_out) == RAVEL_OK) &&
                same_there(g, device_out, out, bytes);
    ravel_device_release(g->device, array, g->stream);
    free(out);
    return good;
}

/* ---- THD ------------------------------------------------------------------------------------------------ */

static ravel_thd_options thd_options;

static void random_thd_options(rig *g, ravel_thd_options *o) {
    ravel_thd_options_default(o);
    o->cp = 1 + (int32_t)below(g, 8);
    o->cp_kind = (int32_t)below(g, 3);
    o->cp_rank = (int32_t)below(g, o->cp + 1) - 1;
    int32_t need = o->cp > 1 ? o->cp * (o->cp_kind == RAVEL_CP_ZIGZAG ? 2 : 1) : 1;
    o->align = need * (1 + (int32_t)below(g, 3));
    if (below(g, 2)) o->total_multiple = o->align * (1 + below(g, 5));
    if (below(g, 3) == 0) o->arrays = (int32_t)below(g, RAVEL_THD_ALL + 1);
    if (below(g, 4) == 0) { /* a fixed shape */
        int64_t slots = 0;
        for (int64_t i = 0; i < g->bin.count; i++) slots += g->s.lengths[g->samples[i]] + o->align;
        o->max_samples = g->bin.count + 1 + below(g, 9);
        o->fixed_tokens = (slots / o->total_multiple + 2) * o->total_multiple * o->align;
    }
}

static ravel_status unpack_thd(rig *g, const void *layout, const ravel_field *field, const void *packed, void *out) {
    return ravel_thd_unpack(&g->s.ragged, &thd_options, layout, field, packed, out, &g->err);
}

static bool same_arrays(rig *g, const ravel_thd *h, const ravel_thd *d) {
    size_t n = (size_t)h->local_tokens, sequences = (size_t)h->sequences;
    bool good = same_there(g, d->cu_seqlens, h->cu_seqlens, (sequences + 1) * 4) &&
                same_there(g, d->cu_seqlens_padded, h->cu_seqlens_padded, (sequences + 1) * 4) &&
                same_there(g, d->samples, h->samples, sequences * 4) &&
                same_there(g, d->positions, h->positions, n * 4) && same_there(g, d->segments, h->segments, n * 4) &&
                same_there(g, d->padding, h->padding, n) && same_there(g, d->loss_mask, h->loss_mask, n * 4) &&
                EXPECT(memcmp(d->host_samples, h->samples, sequences * 4) == 0) &&
                EXPECT(memcmp(d->host_slots, h->cu_seqlens_padded, (sequences + 1) * 4) == 0);
    for (int64_t f = 0; good && f < g->there.field_count; f++)
        good = same_there(g, d->fields[f], h->fields[f], ravel_thd_field_bytes(h, &g->s.fields[f]));
    return good;
}

/* Shards of a packed field, out and back in. */
static bool gathers_the_same(rig *g, const ravel_thd *h, const ravel_thd *d, int64_t f) {
    const ravel_cp cp = {thd_options.cp, thd_options.cp_kind};
    const ravel_place place = {RAVEL_DEVICE, 0, g->stream};
    size_t each = store_each(&g->s.fields[f]), bytes = (size_t)(h->tokens / cp.ranks) * each;
    int32_t rank = (int32_t)below(g, cp.ranks);
    char *shard = malloc(bytes + 1), *whole = calloc(1, (size_t)h->tokens * each + 1);
    void *there = NULL, *back = NULL;
    void *device_whole = upload(g, whole, (size_t)h->tokens * each, 1, &back);
    bool good = EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, bytes, g->stream, &there, &g->err) == RAVEL_OK) &&
                EXPECT(ravel_stream_follow(g->stream, g->upload, &g->err) == RAVEL_OK) &&
                EXPECT(ravel_cp_gather(&cp, rank, h->cu_seqlens_padded, h->sequences, h->fields[f], each, shard, NULL,
                                       &g->err) == RAVEL_OK) &&
                EXPECT(ravel_cp_gather(&cp, rank, d->host_slots, d->sequences, d->fields[f], each, there, &place,
                                       &g->err) == RAVEL_OK) &&
                same_there(g, there, shard, bytes) &&
                EXPECT(ravel_cp_scatter(&cp, rank, h->cu_seqlens_padded, h->sequences, shard, each, whole, NULL,
                                        &g->err) == RAVEL_OK) &&
                EXPECT(ravel_cp_scatter(&cp, rank, d->host_slots, d->sequences, there, each, device_whole, &place,
                                        &g->err) == RAVEL_OK) &&
                same_there(g, device_whole, whole, (size_t)h->tokens * each);
    ravel_device_release(g->device, there, g->stream);
    ravel_device_release(g->device, back, g->stream);
    free(shard);
    free(whole);
    return good;
}

static bool thd_is_the_same(rig *g) {
    void *tables[2][STORE_FIELDS];
    ravel_thd h = {.size = sizeof h, .fields = tables[0]}, d = {.size = sizeof d, .fields = tables[1]};
    random_thd_options(g, &thd_options);
    d.place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
    if (!EXPECT(ravel_thd_measure(&g->s.ragged, &g->bin, &thd_options, &h, &g->err) == RAVEL_OK)) return false;
    if (!EXPECT(ravel_thd_measure(&g->there, &g->bin, &thd_options, &d, &g->err) == RAVEL_OK)) return false;
    size_t bytes = ravel_thd_bytes(&g->s.ragged, &thd_options, &h);
    void *block = malloc(bytes), *there = NULL;
    d.host_samples = malloc((size_t)d.sequences * 4);
    d.host_slots = malloc((size_t)(d.sequences + 1) * 4);
    bool good = EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, bytes, g->stream, &there, &g->err) == RAVEL_OK);
    ravel_thd_place(&g->s.ragged, &thd_options, block, &h);
    ravel_thd_place(&g->there, &thd_options, there, &d);
    good = good && EXPECT(ravel_thd_pack(&g->s.ragged, &g->bin, &thd_options, &h, &g->err) == RAVEL_OK) &&
           EXPECT(ravel_thd_pack(&g->there, &g->bin, &thd_options, &d, &g->err) == RAVEL_OK) && same_arrays(g, &h, &d);
    for (int64_t f = 0; good && f < g->there.field_count; f++) {
        int32_t kind = g->s.fields[f].kind;
        if (kind != RAVEL_FIELD_SPREAD) good = unpacks_the_same(g, unpack_thd, &h, &d, f, h.fields[f], d.fields[f]);
        if (good && kind != RAVEL_FIELD_SAMPLE && thd_options.cp_rank < 0) good = gathers_the_same(g, &h, &d, f);
    }
    ravel_device_release(g->device, there, g->stream);
    free(d.host_samples);
    free(d.host_slots);
    free(block);
    return good;
}

void batch_device_body_thd(ravel_device *device, int64_t rounds) {
    rig *g = malloc(sizeof *g);
    bool good = rig_open(g, device, check_seed());
    for (int64_t i = 0; good && i < rounds; i++) {
        round_begin(g);
        good = thd_is_the_same(g);
        round_end(g);
    }
    rig_close(g);
    free(g);
}

/* ---- padded --------------------------------------------------------------------------------------------- */

static ravel_status unpack_padded(rig *g, const void *layout, const ravel_field *field, const void *packed, void *out) {
    return ravel_padded_unpack(&g->s.ragged, layout, field, packed, out, &g->err);
}

static bool padded_is_the_same(rig *g) {
    void *tables[2][STORE_FIELDS];
    ravel_padded h = {.size = sizeof h, .fields = tables[0]}, d = {.size = sizeof d, .fields = tables[1]};
    ravel_padded_options o;
    ravel_padded_options_default(&o);
    o.side = (int32_t)below(g, 3);
    o.align = 1 + (int32_t)below(g, 9);
    if (below(g, 3) == 0) o.rows = g->bin.count + 1 + below(g, 5);
    d.place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
    if (!EXPECT(ravel_padded_measure(&g->s.ragged, &g->bin, &o, &h, &g->err) == RAVEL_OK)) return false;
    if (!EXPECT(ravel_padded_measure(&g->there, &g->bin, &o, &d, &g->err) == RAVEL_OK)) return false;
    size_t bytes = ravel_padded_bytes(&g->s.ragged, &h), n = (size_t)(h.rows * h.columns), rows = (size_t)h.rows;
    void *block = malloc(bytes), *there = NULL;
    d.host_samples = malloc(rows * 4);
    d.host_starts = malloc(rows * 4);
    bool good = EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, bytes, g->stream, &there, &g->err) == RAVEL_OK);
    ravel_padded_place(&g->s.ragged, block, &h);
    ravel_padded_place(&g->there, there, &d);
    good = good && EXPECT(ravel_padded_pack(&g->s.ragged, &g->bin, &o, &h, &g->err) == RAVEL_OK) &&
           EXPECT(ravel_padded_pack(&g->there, &g->bin, &o, &d, &g->err) == RAVEL_OK) &&
           same_there(g, d.samples, h.samples, rows * 4) && same_there(g, d.starts, h.starts, rows * 4) &&
           same_there(g, d.positions, h.positions, n * 4) && same_there(g, d.attention_mask, h.attention_mask, n) &&
           same_there(g, d.loss_mask, h.loss_mask, n * 4) && EXPECT(memcmp(d.host_samples, h.samples, rows * 4) == 0) &&
           EXPECT(memcmp(d.host_starts, h.starts, rows * 4) == 0);
    for (int64_t f = 0; good && f < g->there.field_count; f++) {
        good = same_there(g, d.fields[f], h.fields[f], ravel_padded_field_bytes(&h, &g->s.fields[f]));
        if (good && g->s.fields[f].kind != RAVEL_FIELD_SPREAD)
            good = unpacks_the_same(g, unpack_padded, &h, &d, f, h.fields[f], d.fields[f]);
    }
    ravel_device_release(g->device, there, g->stream);
    free(d.host_samples);
    free(d.host_starts);
    free(block);
    return good;
}

void batch_device_body_padded(ravel_device *device, int64_t rounds) {
    rig *g = malloc(sizeof *g);
    bool good = rig_open(g, device, check_seed() + 1);
    for (int64_t i = 0; good && i < rounds; i++) {
        round_begin(g);
        if (g->bin.count > 50) g->bin.count = 50;
        good = padded_is_the_same(g);
        round_end(g);
    }
    rig_close(g);
    free(g);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

static unsigned char *make_mask(rig *g, ravel_field *mask, int spoil) {
    static const int32_t dtypes[] = {RAVEL_U8, RAVEL_BOOL, RAVEL_I64, RAVEL_BF16, RAVEL_F32, RAVEL_F64};
    *mask = (ravel_field){.name = "mask", .kind = (int32_t)below(g, 3), .dtype = dtypes[below(g, 6)]};
    int64_t tokens = g->s.offsets[g->s.ragged.count];
    int32_t each = ravel_dtype_bytes(mask->dtype);
    unsigned char *data = calloc((size_t)tokens + 1, (size_t)each);
    int64_t elements = ravel_field_bytes(&g->s.ragged, mask) / each;
    for (int64_t i = 0; i < elements; i++) {
        ravel_dtype_store(mask->dtype, data + i * each, below(g, 3) == 0);
        if (ravel_dtype_kind(mask->dtype) == 'f' && below(g, 9) == 0)
            ravel_dtype_store(mask->dtype, data + i * each, -0.0);
    }
    for (int i = 0; spoil && i < 3 && elements > 0; i++) data[below(g, elements) * each] = 3;
    mask->data = data;
    return data;
}

static bool weights_are_the_same(rig *g, int spoil) {
    ravel_field mask, there;
    unsigned char *data = make_mask(g, &mask, spoil);
    const ravel_bin *bin = below(g, 3) ? &g->bin : NULL;
    const ravel_field *m = &mask, *t = &there;
    ravel_counts here_counts = {0}, there_counts = {0};
    ravel_error here_err = RAVEL_ERROR_INIT, there_err = RAVEL_ERROR_INIT;
    ravel_weights_options o;
    int32_t dtype = below(g, 2) ? RAVEL_F32 : RAVEL_F64;
    size_t bytes = (size_t)g->s.offsets[g->s.ragged.count] * (size_t)ravel_dtype_bytes(dtype);
    void *array = NULL, *out_array = NULL, *out = malloc(bytes);
    there = mask;
    there.data = upload(g, data, (size_t)ravel_field_bytes(&g->s.ragged, &mask), ravel_dtype_bytes(mask.dtype), &array);
    there.place = (ravel_place){RAVEL_DEVICE, 0, g->upload};
    if (!spoil && below(g, 4) == 0) m = t = NULL; /* the prompts decide */
    ravel_status status = ravel_counts_add(&g->s.ragged, bin, m, NULL, &here_counts, &here_err);
    bool good = EXPECT(ravel_counts_add(&g->s.ragged, bin, t, NULL, &there_counts, &there_err) == status) &&
                EXPECT(memcmp(&here_counts, &there_counts, sizeof here_counts) == 0) &&
                EXPECT(strcmp(here_err.message, there_err.message) == 0);
    ravel_weights_options_default(&o);
    o.mode = (int32_t)below(g, 3);
    memset(out, 0xee, bytes);
    void *device_out = upload(g, out, bytes, ravel_dtype_bytes(dtype), &out_array);
    good = good && EXPECT(ravel_stream_follow(g->stream, g->upload, &g->err) == RAVEL_OK);
    if (good && !status) {
        good =
            EXPECT(ravel_weights_fill(&g->s.ragged, bin, m, NULL, &here_counts, &o, dtype, out, &g->err) == RAVEL_OK);
        o.place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
        good = good &&
               EXPECT(ravel_weights_fill(&g->s.ragged, bin, t, NULL, &here_counts, &o, dtype, device_out, &g->err) ==
                      RAVEL_OK) &&
               same_there(g, device_out, out, bytes);
    }
    ravel_device_release(g->device, array, g->stream);
    ravel_device_release(g->device, out_array, g->stream);
    free(out);
    free(data);
    return good;
}

void batch_device_body_weights(ravel_device *device, int64_t rounds) {
    rig *g = malloc(sizeof *g);
    bool good = rig_open(g, device, check_seed() + 2);
    for (int64_t i = 0; good && i < rounds; i++) {
        round_begin(g);
        good = weights_are_the_same(g, i % 4 == 3);
        round_end(g);
    }
    rig_close(g);
    free(g);
}

/* ---- trees ---------------------------------------------------------------------------------------------- */

typedef struct tree {
    int32_t cu[STORE_SAMPLES + 1], shared[STORE_SAMPLES], samples[STORE_SAMPLES];
    int64_t offsets[2 * STORE_SAMPLES + 1], own;
    ravel_tree_bin bin;
    ravel_tree_batch batch;
    ravel_thd_options options;
} tree;

/* The whole store as a bin; what samples share is any number, since own tokens alone are packed. */
static bool draw_tree(rig *g, tree *t) {
    int64_t count = g->s.ragged.count;
    ravel_thd_options_default(&t->options);
    t->options.total_multiple = 1 + below(g, 70);
    for (int64_t i = 0; i < count; i++) {
        int64_t most = i && g->s.lengths[i - 1] < g->s.lengths[i] ? g->s.lengths[i - 1] : g->s.lengths[i];
        t->shared[i] = i ? (int32_t)below(g, most + 1) : 0;
        t->cu[i + 1] = (int32_t)g->s.offsets[i + 1];
    }
    t->cu[0] = 0;
    t->bin = (ravel_tree_bin){t->cu, t->shared, count};
    t->batch = (ravel_tree_batch){.size = sizeof t->batch};
    return EXPECT(ravel_tree_measure(&t->bin, t->options.total_multiple, &t->batch, &g->err) == RAVEL_OK) &&
           EXPECT(ravel_tree_own(&t->bin, t->offsets, t->samples, &t->own, &g->err) == RAVEL_OK);
}

/* A field of kind TOKEN by the store of own tokens on the device, against ravel_tree_pack_field. */
static bool tree_field_is_the_same(rig *g, const tree *t, int64_t f) {
    void *table[1], *there = NULL;
    size_t each = store_each(&g->s.fields[f]), bytes = (size_t)t->batch.tokens * each;
    unsigned char pad[256], *here = malloc(bytes + 1);
    ravel_ragged own = {.size = sizeof own, .count = 2 * t->bin.count, .offsets = t->offsets, .fields = &g->fields[f]};
    ravel_bin bin = {t->samples, t->own};
    ravel_thd d = {.size = sizeof d, .fields = table, .place = {RAVEL_DEVICE, 0, g->stream}};
    own.field_count = 1;
    bool good =
        EXPECT(each <= sizeof pad) && EXPECT(ravel_thd_measure(&own, &bin, &t->options, &d, &g->err) == RAVEL_OK);
    size_t room = good ? ravel_thd_bytes(&own, &t->options, &d) : 0;
    good = good && EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, room, g->stream, &there, &g->err) == RAVEL_OK);
    if (good) {
        const unsigned char *nobody = store_expect(&g->s, f, -1, 0, pad);
        ravel_thd_place(&own, &t->options, there, &d);
        good =
            EXPECT(ravel_thd_pack(&own, &bin, &t->options, &d, &g->err) == RAVEL_OK) &&
            EXPECT(d.tokens == t->batch.tokens && d.actual_tokens == t->batch.unique) &&
            EXPECT(ravel_tree_pack_field(&t->bin, &t->batch, g->s.data[f], each, nobody, here, &g->err) == RAVEL_OK) &&
            same_there(g, table[0], here, bytes);
    }
    ravel_device_release(g->device, there, g->stream);
    free(here);
    return good;
}

static bool tree_is_the_same(rig *g) {
    tree *t = malloc(sizeof *t);
    bool good = draw_tree(g, t);
    int32_t *starts = malloc((size_t)(g->s.ragged.count + 1) * sizeof *starts);
    t->batch.starts = starts;
    good = good && EXPECT(ravel_tree_pack(&t->bin, &t->batch, &g->err) == RAVEL_OK);
    for (int64_t f = 0; good && f < g->there.field_count; f++)
        if (g->s.fields[f].kind == RAVEL_FIELD_TOKEN) good = tree_field_is_the_same(g, t, f);
    free(starts);
    free(t);
    return good;
}

void batch_device_body_tree(ravel_device *device, int64_t rounds) {
    rig *g = malloc(sizeof *g);
    bool good = rig_open(g, device, check_seed() + 3);
    for (int64_t i = 0; good && i < rounds; i++) {
        round_begin(g);
        good = tree_is_the_same(g);
        round_end(g);
    }
    rig_close(g);
    free(g);
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

void batch_device_body_refusals(ravel_device *device) {
    rig *g = malloc(sizeof *g);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options o;
    void *table[STORE_FIELDS], *there = NULL;
    ravel_thd d = {.size = sizeof d};
    CHECK(rig_open(g, device, check_seed() + 3));
    round_begin(g);
    g->bin.count = 1;
    ravel_thd_options_default(&o);
    d.place = (ravel_place){RAVEL_DEVICE, 0, g->stream};
    CHECK_OK(ravel_thd_measure(&g->there, &g->bin, &o, &d, &err), &err);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, ravel_thd_bytes(&g->there, &o, &d), g->stream, &there, &err),
             &err);
    /* a table of pointers cannot be in device memory */
    ravel_thd_place(&g->there, &o, there, &d);
    CHECK_EQ(ravel_thd_pack(&g->there, &g->bin, &o, &d, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "table of");
    d.fields = table;
    ravel_thd_place(&g->there, &o, there, &d);
    /* a host's field into a device's arrays, and the other way round */
    ravel_error_clear(&err);
    CHECK_EQ(ravel_thd_pack(&g->s.ragged, &g->bin, &o, &d, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "in host memory, which a device cannot read");
    ravel_thd h = {.size = sizeof h};
    ravel_error_clear(&err);
    CHECK_OK(ravel_thd_measure(&g->there, &g->bin, &o, &h, &err), &err);
    void *block = malloc(ravel_thd_bytes(&g->there, &o, &h));
    ravel_thd_place(&g->there, &o, block, &h);
    CHECK_EQ(ravel_thd_pack(&g->there, &g->bin, &o, &h, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "in device memory and the other side in host memory");
    /* no stream, no host lists, no such kind */
    ravel_error_clear(&err);
    d.place.stream = NULL;
    CHECK_EQ(ravel_thd_pack(&g->there, &g->bin, &o, &d, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "place.stream");
    d.place.stream = g->stream;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_thd_unpack(&g->there, &o, &d, &g->fields[0], there, there, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "host_samples");
    ravel_error_clear(&err);
    d.place.kind = 9;
    CHECK_EQ(ravel_thd_pack(&g->there, &g->bin, &o, &d, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "host|pinned|device");
    free(block);
    ravel_device_release(device, there, g->stream);
    round_end(g);
    rig_close(g);
    free(g);
}
