/* Experts' routes through everything that moves tokens: ragged, THD, padded rows, trees, context-parallel shards, exchange and back;
 * and what a slip of them looks like. */
#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/exchange.h>
#include <ravel/routes.h>
#include <ravel/tree_batch.h>

#include <stdlib.h>

enum { MOST = 12, LONGEST = 40, TOKENS = MOST * LONGEST, WIDTH = 24 };

typedef struct routed {
    ravel_routes shape;
    int64_t width, count;
    int64_t offsets[MOST + 1], lengths[MOST], ids[MOST];
    int32_t everyone[MOST], tokens[TOKENS];
    int32_t plain[TOKENS * WIDTH];          /* rows as they were drawn */
    unsigned char rows[TOKENS * WIDTH * 8]; /* in the dtype of the shape */
    ravel_field fields[3];
    ravel_ragged ragged;
} routed;

static void put(int32_t dtype, void *rows, int64_t at, int32_t value) {
    if (dtype == RAVEL_I8) ((int8_t *)rows)[at] = (int8_t)value;
    if (dtype == RAVEL_I16) ((int16_t *)rows)[at] = (int16_t)value;
    if (dtype == RAVEL_I32) ((int32_t *)rows)[at] = value;
    if (dtype == RAVEL_I64) ((int64_t *)rows)[at] = value;
}

static void draw_row(const ravel_routes *s, ravel__rng *r, int32_t *row, int known) {
    for (int l = 0; l < s->layers; l++) {
        int none = !known || ravel__rng_below(r, 10) == 0;
        int32_t first = (int32_t)ravel__rng_below(r, (uint64_t)s->experts), step = 1;
        for (int k = 0; k < s->topk; k++) row[l * s->topk + k] = none ? -1 : (first + k * step) % s->experts;
    }
}

static void make(routed *d, ravel__rng *r, int shared) {
    static const int32_t dtypes[] = {RAVEL_I8, RAVEL_I16, RAVEL_I32, RAVEL_I64};
    memset(d, 0, sizeof *d);
    d->shape =
        (ravel_routes){.layers = 1 + (int32_t)ravel__rng_below(r, 4), .topk = 1 + (int32_t)ravel__rng_below(r, 6)};
    d->shape.experts = d->shape.topk + (int32_t)ravel__rng_below(r, 100);
    d->shape.dtype = dtypes[ravel__rng_below(r, 4)];
    d->width = (int64_t)d->shape.layers * d->shape.topk;
    d->count = 1 + (int64_t)ravel__rng_below(r, MOST);
    for (int64_t s = 0; s < d->count; s++) {
        d->lengths[s] = 2 + (int64_t)ravel__rng_below(r, LONGEST - 1);
        d->offsets[s + 1] = d->offsets[s] + d->lengths[s];
        d->everyone[s] = (int32_t)s;
        for (int64_t t = 0; t < d->lengths[s]; t++) {
            int64_t at = d->offsets[s] + t, other = shared && s ? d->offsets[s - 1] + t : -1;
            int same = other >= 0 && t < d->lengths[s - 1] - 1 && t < d->lengths[s] - 1 && t < shared;
            d->tokens[at] = same ? d->tokens[other] : (int32_t)ravel__rng_below(r, 1000);
            if (same)
                memcpy(d->plain + at * d->width, d->plain + other * d->width, (size_t)d->width * sizeof *d->plain);
            else
                draw_row(&d->shape, r, d->plain + at * d->width, t < d->lengths[s] - 1);
        }
    }
    for (int64_t i = 0; i < d->offsets[d->count] * d->width; i++) put(d->shape.dtype, d->rows, i, d->plain[i]);
    d->fields[0] = (ravel_field){.name = "tokens", .dtype = RAVEL_I32, .data = d->tokens};
    d->fields[1] = (ravel_field){.name = RAVEL_ROUTES_FIELD,
                                 .kind = RAVEL_FIELD_TOKEN,
                                 .dtype = d->shape.dtype,
                                 .width = d->width,
                                 .data = d->rows,
                                 .pad = -1};
    d->fields[2] =
        (ravel_field){.name = RAVEL_ROUTES_ID, .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_I64, .data = d->ids};
    d->ragged = (ravel_ragged){
        .size = sizeof d->ragged, .count = d->count, .offsets = d->offsets, .fields = d->fields, .field_count = 3};
}

static ravel_status identify(routed *d, ravel_error *err) {
    return ravel_routes_ids(&d->shape, d->count, d->offsets, d->tokens, d->rows, d->ids, err);
}

/* One bin of all samples, whole or in shards whose sums are added; `slip`: rows are moved by so many positions after packing. */
static ravel_status through_thd(const routed *d, ravel__rng *r, int32_t cp, int32_t kind, int slip, ravel_error *err) {
    ravel_thd_options o;
    ravel_thd_options_default(&o);
    o.cp = cp;
    o.cp_kind = kind;
    o.align = 2 * cp * (1 + (int32_t)ravel__rng_below(r, 3));
    ravel_bin bin = {d->everyone, d->count};
    int64_t sums[MOST + 2] = {0}, ids[MOST + 2] = {0}, sequences = 0;
    int32_t samples[MOST + 2];
    ravel_status status = RAVEL_OK;
    for (o.cp_rank = cp > 1 ? 0 : -1; o.cp_rank < cp && !status; o.cp_rank++) {
        ravel_thd thd = {.size = sizeof thd};
        status = ravel_thd_measure(&d->ragged, &bin, &o, &thd, err);
        if (status) return status;
        size_t bytes = ravel_thd_bytes(&d->ragged, &o, &thd);
        void *block = malloc(bytes);
        ravel_thd_place(&d->ragged, &o, block, &thd);
        status = ravel_thd_pack(&d->ragged, &bin, &o, &thd, err);
        size_t each = ravel_thd_field_bytes(&thd, &d->fields[1]) / (size_t)thd.local_tokens;
        char *rows = thd.fields[1];
        if (slip > 0) memmove(rows + each, rows, each * (size_t)(thd.local_tokens - 1));
        if (slip < 0) memmove(rows, rows + each, each * (size_t)(thd.local_tokens - 1));
        sequences = thd.sequences;
        memcpy(samples, thd.samples, (size_t)sequences * sizeof *samples);
        memcpy(ids, thd.fields[2], (size_t)sequences * sizeof *ids);
        if (!status)
            status = ravel_routes_add(&d->shape, thd.local_tokens, thd.fields[0], thd.positions, thd.segments, rows,
                                      sequences, sums, err);
        unsigned char *back = calloc(TOKENS * WIDTH, 8);
        if (!status && cp == 1 && !slip) { /* scatter */
            status = ravel_thd_unpack(&d->ragged, &o, &thd, &d->fields[1], rows, back, err);
            EXPECT(memcmp(back, d->rows, (size_t)ravel_field_bytes(&d->ragged, &d->fields[1])) == 0);
        }
        free(back);
        free(block);
        if (cp == 1) break;
    }
    return status ? status : ravel_routes_compare(sequences, samples, ids, sums, err);
}

TEST(routes_pack_and_shard_with_their_tokens) {
    static routed d;
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int i = 0; i < check_rounds(60, 2000); i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        make(&d, &r, 0);
        CHECK_OK(identify(&d, &err), &err);
        int32_t cp = 1 << ravel__rng_below(&r, 3), kind = (int32_t)ravel__rng_below(&r, 3);
        CHECK_OK(through_thd(&d, &r, cp, kind, 0, &err), &err);
        /* Rows that are one place late or early; a shift that changes nothing would need rows that are all alike. */
        int known = 0;
        for (int64_t k = 0; k < d.offsets[d.count] * d.width; k++) known += d.plain[k] >= 0;
        if (known < 30 || d.shape.experts < 20) continue;
        for (int slip = -1; slip <= 1; slip += 2) {
            ravel_error_clear(&err);
            EXPECT(through_thd(&d, &r, cp, kind, slip, &err) == RAVEL_E_DATA);
            EXPECT(strstr(err.message, "routes") || strstr(err.message, "route"));
        }
        if (d.count > 1 && d.tokens[0] != d.tokens[d.offsets[1]]) { /* ids of other samples */
            int64_t first = d.ids[0];
            d.ids[0] = d.ids[1], d.ids[1] = first;
            EXPECT(through_thd(&d, &r, cp, kind, 0, &err) == RAVEL_E_DATA);
        }
    }
}

/* An id is of the numbers, not of the bytes. */
TEST(routes_ids_do_not_depend_on_the_dtype) {
    static routed d;
    ravel_error err = RAVEL_ERROR_INIT;
    static const int32_t dtypes[] = {RAVEL_I8, RAVEL_I16, RAVEL_I32, RAVEL_I64};
    ravel__rng r = ravel__rng_seed(check_seed());
    make(&d, &r, 0);
    int64_t ids[MOST];
    CHECK_OK(identify(&d, &err), &err);
    memcpy(ids, d.ids, sizeof ids);
    for (int k = 0; k < 4; k++) {
        d.shape.dtype = dtypes[k];
        for (int64_t i = 0; i < d.offsets[d.count] * d.width; i++) put(d.shape.dtype, d.rows, i, d.plain[i]);
        CHECK_OK(identify(&d, &err), &err);
        EXPECT(memcmp(ids, d.ids, (size_t)d.count * sizeof *ids) == 0);
    }
    static const int64_t offsets[] = {0, 2};
    static const int32_t tokens[] = {5, 6};
    static const int16_t rows[] = {3, 1, -1, -1};
    int64_t id;
    CHECK_OK(ravel_routes_ids(&(ravel_routes){1, 2, 8, RAVEL_I16}, 1, offsets, tokens, rows, &id, &err), &err);
    CHECK_EQ(id, -INT64_C(5431291678232534344)); /* the same on every machine */
}

TEST(routes_in_padded_rows_and_trees) {
    static routed d;
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int i = 0; i < check_rounds(40, 1000); i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        make(&d, &r, 1 + (int)ravel__rng_below(&r, 10));
        CHECK_OK(identify(&d, &err), &err);
        ravel_padded_options o;
        ravel_padded_options_default(&o);
        o.side = (int32_t)ravel__rng_below(&r, 2);
        ravel_padded p = {.size = sizeof p};
        ravel_bin bin = {d.everyone, d.count};
        CHECK_OK(ravel_padded_measure(&d.ragged, &bin, &o, &p, &err), &err);
        void *block = malloc(ravel_padded_bytes(&d.ragged, &p));
        ravel_padded_place(&d.ragged, block, &p);
        CHECK_OK(ravel_padded_pack(&d.ragged, &bin, &o, &p, &err), &err);
        static int32_t segments[MOST * LONGEST];
        int64_t sums[MOST] = {0}, places = p.rows * p.columns;
        for (int64_t k = 0; k < places; k++) segments[k] = p.attention_mask[k] ? (int32_t)(k / p.columns) + 1 : 0;
        CHECK_OK(
            ravel_routes_add(&d.shape, places, p.fields[0], p.positions, segments, p.fields[1], p.rows, sums, &err),
            &err);
        CHECK_OK(ravel_routes_compare(p.rows, p.samples, p.fields[2], sums, &err), &err);
        free(block);

        /* A tree: each token once, read back through `path`. */
        int32_t shared[MOST] = {0};
        for (int64_t s = 1; s < d.count; s++)
            while (shared[s] < d.lengths[s] - 1 && shared[s] < d.lengths[s - 1] &&
                   d.tokens[d.offsets[s] + shared[s]] == d.tokens[d.offsets[s - 1] + shared[s]] &&
                   memcmp(d.plain + (d.offsets[s] + shared[s]) * d.width,
                          d.plain + (d.offsets[s - 1] + shared[s]) * d.width, (size_t)d.width * sizeof *d.plain) == 0)
                shared[s]++;
        int32_t ends[MOST + 1];
        for (int64_t s = 0; s <= d.count; s++) ends[s] = (int32_t)d.offsets[s];
        ravel_tree_bin tree = {.cu_seqlens = ends, .shared = shared, .count = d.count};
        ravel_tree_batch b = {.size = sizeof b};
        CHECK_OK(ravel_tree_measure(&tree, 8, &b, &err), &err);
        block = malloc(ravel_tree_bytes(&b));
        ravel_tree_place(block, &b);
        CHECK_OK(ravel_tree_pack(&tree, &b, &err), &err);
        size_t each = (size_t)(d.width * ravel_dtype_bytes(d.shape.dtype));
        char *rows = malloc((size_t)b.tokens * each), *back = malloc((size_t)d.offsets[d.count] * each);
        CHECK_OK(ravel_tree_pack_field(&tree, &b, d.rows, each, NULL, rows, &err), &err);
        CHECK_OK(ravel_tree_unpack(&tree, &b, RAVEL_FIELD_TOKEN, rows, each, back, &err), &err);
        int64_t again[MOST];
        CHECK_OK(ravel_routes_ids(&d.shape, d.count, d.offsets, d.tokens, back, again, &err), &err);
        EXPECT(memcmp(again, d.ids, (size_t)d.count * sizeof *again) == 0);
        free(back);
        free(rows);
        free(block);
    }
}

typedef struct journey {
    const ravel_plan *plan;
    const int64_t *counts, *lengths;
    routed *parts; /* [ranks] */
} journey;

static ravel_status travel(ravel_comm *comm, void *user, ravel_error *err) {
    const journey *j = user;
    int32_t rank = ravel_comm_rank(comm);
    ravel_exchange *x = NULL;
    ravel_exchange_sizes sizes;
    ravel_ragged arrived = {0};
    ravel_status status = ravel_exchange_create(j->plan, j->counts, j->lengths, rank, NULL, &x, err);
    if (status) return status;
    ravel_exchange_measure(x, &j->parts[rank].ragged, &sizes);
    void *result = malloc((size_t)sizes.result_bytes), *scratch = malloc((size_t)sizes.scratch_bytes + 1);
    status = ravel_exchange_run(x, comm, &j->parts[rank].ragged, result, scratch, &arrived, err);
    int64_t ids[2 * MOST];
    if (!status)
        status = ravel_routes_ids(&j->parts[0].shape, arrived.count, arrived.offsets, arrived.fields[0].data,
                                  arrived.fields[1].data, ids, err);
    EXPECT(status || memcmp(ids, arrived.fields[2].data, (size_t)arrived.count * sizeof *ids) == 0);
    free(scratch);
    free(result);
    ravel_exchange_free(x);
    return status;
}

TEST(routes_travel_to_the_ranks_of_their_bins) {
    static routed parts[2];
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int i = 0; i < check_rounds(10, 300); i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        make(&parts[0], &r, 0);
        do make(&parts[1], &r, 0);
        while (parts[1].width > WIDTH);
        parts[1].shape = parts[0].shape; /* one shape everywhere: the other rank's samples again, under other tokens */
        memcpy(&parts[1], &parts[0], sizeof parts[1]);
        for (int64_t t = 0; t < parts[1].offsets[parts[1].count]; t++) parts[1].tokens[t] += 7;
        parts[1].fields[0].data = parts[1].tokens;
        parts[1].fields[1].data = parts[1].rows;
        parts[1].fields[2].data = parts[1].ids;
        parts[1].ragged.fields = parts[1].fields;
        parts[1].ragged.offsets = parts[1].offsets;
        CHECK_OK(identify(&parts[0], &err), &err);
        CHECK_OK(identify(&parts[1], &err), &err);
        int64_t counts[2] = {parts[0].count, parts[1].count}, lengths[2 * MOST];
        for (int64_t s = 0; s < counts[0] + counts[1]; s++)
            lengths[s] = s < counts[0] ? parts[0].lengths[s] : parts[1].lengths[s - counts[0]];
        ravel_plan_options o;
        ravel_plan_options_default(&o);
        o.budget = LONGEST + (int32_t)ravel__rng_below(&r, 100);
        o.dp = 2;
        ravel_plan_input input = {.size = sizeof input, .count = counts[0] + counts[1], .lengths = lengths};
        ravel_plan *plan = NULL;
        CHECK_OK(ravel_plan_create(&input, &o, &plan, &err), &err);
        journey j = {plan, counts, lengths, parts};
        CHECK_OK(ravel_threads_run(2, NULL, travel, &j, &err), &err);
        ravel_plan_free(plan);
    }
}

TEST(routes_that_cannot_be_are_refused) {
    ravel_error err = RAVEL_ERROR_INIT;
    static const int64_t offsets[] = {0, 2};
    static const int32_t tokens[] = {5, 6}, positions[] = {0, 1};
    const struct {
        ravel_routes shape;
        int16_t rows[4];
        ravel_status status;
        const char *says;
    } cases[] = {{{1, 2, 4, RAVEL_I16}, {0, 4, -1, -1}, RAVEL_E_DATA, "sample 0, token 0, layer 0"},
                 {{1, 2, 4, RAVEL_I16}, {0, 1, 3, 3}, RAVEL_E_DATA, "token 1"},
                 {{1, 2, 4, RAVEL_I16}, {0, -1, 1, 2}, RAVEL_E_DATA, "-1 throughout"},
                 {{2, 1, 4, RAVEL_I16}, {0, -7, 1, 2}, RAVEL_E_DATA, "layer 1"},
                 {{0, 2, 4, RAVEL_I16}, {0}, RAVEL_E_ARGUMENT, "0 layers"},
                 {{1, 2, 1, RAVEL_I16}, {0}, RAVEL_E_ARGUMENT, "top-k"},
                 {{1, 2, 4, RAVEL_F32}, {0}, RAVEL_E_ARGUMENT, "dtype f32"},
                 {{1, 2, 40000, RAVEL_I16}, {0}, RAVEL_E_ARGUMENT, "32767"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t id;
        ravel_error_clear(&err);
        CHECK_EQ(ravel_routes_ids(&cases[i].shape, 1, offsets, tokens, cases[i].rows, &id, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
    }
    static const int32_t segments[] = {1, 0}, beyond[] = {1, 3};
    static const int16_t stale[] = {0, 1, 2, 3};
    int64_t sums[1] = {0};
    ravel_error_clear(&err);
    const ravel_routes shape = {1, 2, 4, RAVEL_I16};
    CHECK_EQ(ravel_routes_add(&shape, 2, tokens, positions, segments, stale, 1, sums, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "place 1 is padding");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_routes_add(&shape, 2, tokens, positions, beyond, stale, 1, sums, &err), RAVEL_E_ARGUMENT);
}
