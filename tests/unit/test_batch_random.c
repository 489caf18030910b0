/* Packing over random stores, plans, shapes and cp: every position of every array against a plain reading of the
 * header; pack, shard, un-shard and unpack give back every field bit for bit. */
#include "tests/unit/store.h"

#include <ravel/feed.h>
#include <ravel/plan.h>

#include <stddef.h>
#include <stdlib.h>

/* ---- one bin, packed whole ------------------------------------------------------------------------------ */

typedef struct job {
    store *s;
    ravel_thd_options options; /* whole: cp_rank -1 */
    ravel_bin bin;
    ravel_thd thd;
    void *block;
    unsigned char *back[STORE_FIELDS];    /* collected over all bins, from the whole arrays */
    unsigned char *back_cp[STORE_FIELDS]; /* ... and from the shards */
} job;

static bool pack_whole(job *j) {
    ravel_error err = RAVEL_ERROR_INIT;
    j->thd = (ravel_thd){.size = sizeof j->thd};
    if (ravel_thd_measure(&j->s->ragged, &j->bin, &j->options, &j->thd, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    size_t bytes = ravel_thd_bytes(&j->s->ragged, &j->options, &j->thd);
    j->block = malloc(bytes + 1);
    memset(j->block, 0xee, bytes + 1);
    ravel_thd_place(&j->s->ragged, &j->options, j->block, &j->thd);
    if (ravel_thd_pack(&j->s->ragged, &j->bin, &j->options, &j->thd, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    return EXPECT(((unsigned char *)j->block)[bytes] == 0xee);
}

/* The sample of sequence i of a bin, and its slot. */
static int64_t expect_sequence(const job *j, int64_t i, int64_t begin, int64_t *slot, int64_t *length) {
    int64_t filled = j->bin.count ? j->bin.count : 1, sample = i < j->bin.count ? j->bin.samples[i] : -1;
    int64_t align = j->options.align;
    *length = sample >= 0 ? j->s->lengths[sample] : i == 0 && j->bin.count == 0;
    *slot = i < filled ? (*length + align - 1) / align * align : i == filled ? j->thd.tokens - begin : 0;
    return sample;
}

static bool position_is_right(const job *j, int64_t i, int64_t sample, int64_t length, int64_t t, int64_t at) {
    const ravel_thd *thd = &j->thd;
    bool real = t < length;
    int64_t prompt = sample >= 0 ? j->s->prompts[sample] : 1;
    if (!EXPECT(thd->positions[at] == (real ? t : 0))) return false;
    if (!EXPECT(thd->segments[at] == (real ? i + 1 : 0))) return false;
    if (!EXPECT(thd->padding[at] == !real)) return false;
    if (!EXPECT(thd->loss_mask[at] == (float)(sample >= 0 && t + 1 < length && t + 1 >= prompt))) return false;
    for (int64_t f = 0; f < j->s->ragged.field_count; f++) {
        unsigned char pad[64];
        const ravel_field *field = &j->s->fields[f];
        size_t each = store_each(field);
        if (field->kind == RAVEL_FIELD_SAMPLE) continue;
        const unsigned char *want = store_expect(j->s, f, sample, t, pad), *have = thd->fields[f];
        if (!EXPECT(memcmp(have + (size_t)at * each, want, each) == 0)) return false;
    }
    return true;
}

static bool whole_is_right(const job *j) {
    const ravel_thd *thd = &j->thd;
    int64_t begin = 0, real = 0, slot, length;
    bool fixed = j->options.fixed_tokens > 0;
    if (fixed && !EXPECT(thd->sequences == j->options.max_samples + 1 && thd->tokens == j->options.fixed_tokens))
        return false;
    if (!EXPECT(thd->tokens % j->options.total_multiple == 0)) return false;
    for (int64_t i = 0; i < thd->sequences; i++) {
        int64_t sample = expect_sequence(j, i, begin, &slot, &length);
        if (!EXPECT(thd->samples[i] == sample && thd->cu_seqlens_padded[i] == begin && thd->cu_seqlens[i] == real))
            return false;
        if (!EXPECT(slot <= thd->max_seqlen && length <= thd->max_length)) return false;
        for (int64_t t = 0; t < slot; t++)
            if (!position_is_right(j, i, sample, length, t, begin + t)) return false;
        for (int64_t f = 0; f < j->s->ragged.field_count; f++) {
            unsigned char pad[64];
            size_t each = store_each(&j->s->fields[f]);
            if (j->s->fields[f].kind != RAVEL_FIELD_SAMPLE) continue;
            const unsigned char *want = store_expect(j->s, f, sample, 0, pad), *have = thd->fields[f];
            if (!EXPECT(memcmp(have + (size_t)i * each, want, each) == 0)) return false;
        }
        begin += slot;
        real += length;
    }
    return EXPECT(begin == thd->tokens && thd->cu_seqlens_padded[thd->sequences] == begin &&
                  thd->cu_seqlens[thd->sequences] == real);
}

/* ---- its shards ----------------------------------------------------------------------------------------- */

/* A field's shard three ways: packed directly, gathered from the whole, by the index list; then put together again. */
static bool shard_is_right(job *j, const ravel_thd *direct, const ravel_cp *cp, int32_t rank, const int32_t *index,
                           int64_t f, unsigned char *whole) {
    const ravel_thd *thd = &j->thd;
    const ravel_field *field = &j->s->fields[f];
    size_t each = store_each(field);
    int64_t n = thd->tokens / cp->ranks;
    unsigned char *gathered = malloc((size_t)n * each + 1);
    bool good = EXPECT(ravel_cp_gather(cp, rank, thd->cu_seqlens_padded, thd->sequences, thd->fields[f], each, gathered,
                                       NULL, NULL) == RAVEL_OK);
    good = good && EXPECT(memcmp(gathered, direct->fields[f], (size_t)n * each) == 0);
    const unsigned char *packed = thd->fields[f];
    for (int64_t k = 0; good && k < n; k++)
        good = EXPECT(memcmp(gathered + (size_t)k * each, packed + (size_t)index[k] * each, each) == 0);
    good = good && EXPECT(ravel_cp_scatter(cp, rank, thd->cu_seqlens_padded, thd->sequences, gathered, each, whole,
                                           NULL, NULL) == RAVEL_OK);
    free(gathered);
    return good;
}

/* Real pairs of causal attention in a rank's share, padding not counted. */
static int64_t real_work(const job *j, const int32_t *index, int64_t n) {
    int64_t pairs = 0;
    for (int64_t k = 0; k < n; k++)
        if (!j->thd.padding[index[k]]) pairs += j->thd.positions[index[k]] + 1;
    return pairs;
}

/* The most work that one chunk of each slot can hold: what zig-zag may be off by. */
static int64_t chunk_work(const job *j, int32_t ranks) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < j->thd.sequences; i++) {
        int64_t slot = j->thd.cu_seqlens_padded[i + 1] - j->thd.cu_seqlens_padded[i];
        pairs += slot / (2 * ranks) * slot;
    }
    return pairs;
}

static bool rank_is_right(job *j, const ravel_cp *cp, int32_t rank, unsigned char **whole, uint8_t *seen, int64_t *real,
                          int64_t *slots) {
    const ravel_ragged *ragged = &j->s->ragged;
    ravel_thd_options options = j->options;
    options.cp_rank = rank;
    ravel_thd direct = {.size = sizeof direct};
    int64_t n = j->thd.tokens / cp->ranks;
    if (!EXPECT(ravel_thd_measure(ragged, &j->bin, &options, &direct, NULL) == RAVEL_OK)) return false;
    if (!EXPECT(direct.local_tokens == n && direct.tokens == j->thd.tokens)) return false;
    void *block = malloc(ravel_thd_bytes(ragged, &options, &direct));
    ravel_thd_place(ragged, &options, block, &direct);
    int32_t *index = malloc((size_t)n * sizeof *index + 1),
            *whole_index = malloc((size_t)j->thd.tokens * sizeof *index + 1);
    for (int64_t k = 0; k < j->thd.tokens; k++) whole_index[k] = (int32_t)k;
    bool good = EXPECT(ravel_thd_pack(ragged, &j->bin, &options, &direct, NULL) == RAVEL_OK) &&
                EXPECT(ravel_cp_gather(cp, rank, j->thd.cu_seqlens_padded, j->thd.sequences, whole_index, sizeof *index,
                                       index, NULL, NULL) == RAVEL_OK);
    free(whole_index);
    int64_t pairs = 0, slot = 0;
    for (int64_t k = 0; good && k < n; k++) {
        good = EXPECT(index[k] >= 0 && index[k] < j->thd.tokens && !seen[index[k]]);
        if (!good) break;
        seen[index[k]] = 1;
        while (index[k] >= j->thd.cu_seqlens_padded[slot + 1]) slot++;
        pairs += index[k] - j->thd.cu_seqlens_padded[slot] + 1;
        good = EXPECT(
            direct.positions[k] == j->thd.positions[index[k]] && direct.segments[k] == j->thd.segments[index[k]] &&
            direct.padding[k] == j->thd.padding[index[k]] && direct.loss_mask[k] == j->thd.loss_mask[index[k]]);
    }
    for (int64_t f = 0; good && f < ragged->field_count; f++) {
        const ravel_field *field = &j->s->fields[f];
        if (field->kind != RAVEL_FIELD_SAMPLE) good = shard_is_right(j, &direct, cp, rank, index, f, whole[f]);
        if (good && field->kind != RAVEL_FIELD_SPREAD)
            good = EXPECT(ravel_thd_unpack(ragged, &options, &direct, field, direct.fields[f], j->back_cp[f], NULL) ==
                          RAVEL_OK);
    }
    *slots = pairs;
    if (good) *real = real_work(j, index, n);
    free(index);
    free(block);
    return good;
}

static bool shards_are_right(job *j) {
    const ravel_ragged *ragged = &j->s->ragged;
    const ravel_cp cp = {j->options.cp, j->options.cp_kind};
    unsigned char *whole[STORE_FIELDS] = {NULL};
    uint8_t *seen = calloc(1, (size_t)j->thd.tokens + 1);
    int64_t least = INT64_MAX, most = 0, slot_least = INT64_MAX, slot_most = 0;
    for (int64_t f = 0; f < ragged->field_count; f++)
        whole[f] = calloc(1, ravel_thd_field_bytes(&j->thd, &j->s->fields[f]) + 1);
    bool good = true;
    for (int32_t rank = 0; good && rank < cp.ranks; rank++) {
        int64_t real = 0, slots = 0;
        good = rank_is_right(j, &cp, rank, whole, seen, &real, &slots);
        if (real < least) least = real;
        if (real > most) most = real;
        if (slots < slot_least) slot_least = slots;
        if (slots > slot_most) slot_most = slots;
    }
    if (good && cp.kind == RAVEL_CP_ZIGZAG) {
        good = EXPECT(slot_least == slot_most); /* the slots' work is dealt out evenly to the pair */
        good = good && EXPECT(most - least <= chunk_work(j, cp.ranks));
    }
    for (int64_t f = 0; good && f < ragged->field_count; f++)
        if (j->s->fields[f].kind != RAVEL_FIELD_SAMPLE)
            good = EXPECT(memcmp(whole[f], j->thd.fields[f], ravel_thd_field_bytes(&j->thd, &j->s->fields[f])) == 0);
    for (int64_t f = 0; f < ragged->field_count; f++) free(whole[f]);
    free(seen);
    return good;
}

/* ---- whole plans ---------------------------------------------------------------------------------------- */

static bool bin_is_right(job *j) {
    bool good = pack_whole(j) && whole_is_right(j) && shards_are_right(j);
    for (int64_t f = 0; good && f < j->s->ragged.field_count; f++)
        if (j->s->fields[f].kind != RAVEL_FIELD_SPREAD)
            good = EXPECT(ravel_thd_unpack(&j->s->ragged, &j->options, &j->thd, &j->s->fields[f], j->thd.fields[f],
                                           j->back[f], NULL) == RAVEL_OK);
    free(j->block);
    return good;
}

static void random_options(ravel__rng *r, ravel_thd_options *o) {
    ravel_thd_options_default(o);
    o->cp = 1 + (int32_t)ravel__rng_below(r, 16);
    o->cp_kind = (int32_t)ravel__rng_below(r, 3);
    int32_t need = o->cp > 1 ? o->cp * (o->cp_kind == RAVEL_CP_ZIGZAG ? 2 : 1) : 1;
    o->align = need * (1 + (int32_t)ravel__rng_below(r, 3));
    if (ravel__rng_below(r, 2)) o->total_multiple = o->align * (1 + (int64_t)ravel__rng_below(r, 5));
}

/* A plan for the store under these options; the budget is such that several bins come out. */
static ravel_plan *random_plan(const store *s, ravel__rng *r, ravel_thd_options *o) {
    ravel_plan_options po;
    ravel_plan_options_default(&po);
    int64_t longest = 1;
    for (int64_t i = 0; i < s->ragged.count; i++)
        if (s->lengths[i] > longest) longest = s->lengths[i];
    int64_t slot = (longest + o->align - 1) / o->align * o->align, cap = slot * (1 + (int64_t)ravel__rng_below(r, 6));
    po.cp = o->cp;
    po.align = o->align;
    po.cp_split = o->cp_kind == RAVEL_CP_ZIGZAG ? RAVEL_CP_SPLIT_ZIGZAG : RAVEL_CP_SPLIT_CONTIGUOUS;
    po.budget = (cap + o->cp - 1) / o->cp;
    po.dp = 1 + (int32_t)ravel__rng_below(r, 5);
    po.max_samples = ravel__rng_below(r, 2) ? 1 + (int64_t)ravel__rng_below(r, 9) : 0;
    if (ravel__rng_below(r, 2)) { /* a fixed shape that every bin of the plan fits */
        int64_t multiple = o->total_multiple > o->align ? o->total_multiple : o->align;
        o->fixed_tokens = (po.budget * o->cp + multiple - 1) / multiple * multiple;
        o->max_samples = po.max_samples ? po.max_samples : s->ragged.count;
    }
    const ravel_plan_input input = {.size = sizeof input, .count = s->ragged.count, .lengths = s->lengths};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(&input, &po, &plan, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return plan;
}

static bool plan_is_right(job *j, const ravel_plan *plan) {
    store *s = j->s;
    for (int64_t f = 0; f < s->ragged.field_count; f++) {
        j->back[f] = calloc(1, (size_t)ravel_field_bytes(&s->ragged, &s->fields[f]) + 1);
        j->back_cp[f] = calloc(1, (size_t)ravel_field_bytes(&s->ragged, &s->fields[f]) + 1);
    }
    bool good = true;
    for (int64_t b = 0; good && b < plan->bins; b++) {
        j->bin = (ravel_bin){plan->samples + plan->bin_offsets[b], plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
        good = bin_is_right(j);
    }
    for (int64_t f = 0; f < s->ragged.field_count; f++) {
        if (good && s->fields[f].kind != RAVEL_FIELD_SPREAD)
            good =
                EXPECT(store_same(s, f, s->data[f], j->back[f])) && EXPECT(store_same(s, f, s->data[f], j->back_cp[f]));
        free(j->back[f]);
        free(j->back_cp[f]);
    }
    return good;
}

/* The planner's cap is the packer's: whatever align the plan was asked for, every bin of it packs, within the budget. */
TEST(batch_options_for_a_plan_fit_every_bin) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int round = 0; round < 200; round++) {
        store s;
        store_make(&s, &r, 1 + (int64_t)ravel__rng_below(&r, 40), 1 + (int64_t)ravel__rng_below(&r, 150));
        ravel_plan_options po;
        ravel_plan_options_default(&po);
        po.cp = 1 + (int32_t)ravel__rng_below(&r, 9);
        po.align = 1 + (int32_t)ravel__rng_below(&r, 5);
        po.cp_split = (int32_t)ravel__rng_below(&r, 2);
        po.budget = 256 + (int64_t)ravel__rng_below(&r, 500);
        po.max_samples = ravel__rng_below(&r, 2) ? 7 : 0;
        int fixed = po.max_samples && ravel__rng_below(&r, 2);
        const ravel_plan_input input = {.size = sizeof input, .count = s.ragged.count, .lengths = s.lengths};
        ravel_plan *plan = NULL;
        ravel_thd_options o;
        CHECK_EQ(ravel_plan_create(&input, &po, &plan, NULL), RAVEL_OK);
        CHECK_EQ(ravel_thd_options_for_plan(&po, fixed, &o, NULL), RAVEL_OK);
        for (int64_t b = 0; plan && b < plan->bins; b++) {
            const ravel_bin bin = {plan->samples + plan->bin_offsets[b],
                                   plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
            ravel_thd thd = {.size = sizeof thd};
            CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, &thd, NULL), RAVEL_OK);
            CHECK(thd.tokens <= po.cp * po.budget);
        }
        ravel_plan_free(plan);
        store_free(&s);
    }
    ravel_plan_options po;
    ravel_thd_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options_default(&po);
    CHECK_EQ(ravel_thd_options_for_plan(&po, 1, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "max-samples");
}

/* Marks the tokens of the store that this rank's share of its group holds. */
static bool mark_share(const store *s, const ravel_plan *plan, const ravel_plan_options *po, int64_t step, int32_t rank,
                       int fixed, uint8_t *seen) {
    ravel_group group = ravel_plan_group(plan, step, rank);
    const ravel_bin bin = {group.samples, group.count};
    if (group.count == 0) return true;
    int64_t *iota = malloc((size_t)s->offsets[s->ragged.count] * sizeof *iota + 1);
    for (int64_t t = 0; t < s->offsets[s->ragged.count]; t++) iota[t] = t;
    const ravel_field tokens = {.name = "t", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I64, .data = iota, .pad = -1};
    ravel_ragged ragged = s->ragged;
    ragged.fields = &tokens;
    ragged.field_count = 1;
    ravel_thd_options o;
    ravel_thd thd = {.size = sizeof thd};
    ravel_error err = RAVEL_ERROR_INIT;
    if (!EXPECT(ravel_thd_options_for_group(po, group.width, rank - group.first, fixed, &o, &err) == RAVEL_OK) ||
        !EXPECT(ravel_thd_measure(&ragged, &bin, &o, &thd, &err) == RAVEL_OK))
        return free(iota), false;
    void *block = malloc(ravel_thd_bytes(&ragged, &o, &thd));
    ravel_thd_place(&ragged, &o, block, &thd);
    bool good = EXPECT(thd.tokens <= group.width * po->budget && thd.local_tokens * group.width == thd.tokens) &&
                EXPECT(ravel_thd_pack(&ragged, &bin, &o, &thd, &err) == RAVEL_OK);
    const int64_t *index = thd.fields[0];
    for (int64_t k = 0; good && k < thd.local_tokens; k++)
        if (index[k] >= 0) seen[index[k]]++;
    free(iota);
    free(block);
    return good;
}

TEST(batch_options_for_groups_give_each_token_to_one_rank) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int round = 0; round < 100; round++) {
        store s;
        store_make(&s, &r, 1 + (int64_t)ravel__rng_below(&r, 40), 1 + (int64_t)ravel__rng_below(&r, 600));
        ravel_plan_options po;
        ravel_plan_options_default(&po);
        po.cp_pool = 1 << ravel__rng_below(&r, 4);
        po.align = 1 + (int32_t)ravel__rng_below(&r, 3);
        po.cp_split = (int32_t)ravel__rng_below(&r, 2);
        po.budget = 640;
        po.max_samples = ravel__rng_below(&r, 2) ? 7 : 0;
        int fixed = po.max_samples && ravel__rng_below(&r, 2);
        const ravel_plan_input input = {.size = sizeof input, .count = s.ragged.count, .lengths = s.lengths};
        int64_t tokens = s.offsets[s.ragged.count];
        uint8_t *seen = calloc((size_t)tokens + 1, 1);
        ravel_plan *plan = NULL;
        CHECK_EQ(ravel_plan_create(&input, &po, &plan, NULL), RAVEL_OK);
        for (int64_t step = 0; step < plan->micro_steps; step++)
            for (int32_t rank = 0; rank < po.cp_pool; rank++) CHECK(mark_share(&s, plan, &po, step, rank, fixed, seen));
        for (int64_t t = 0; t < tokens; t++) CHECK_EQ(seen[t], 1);
        ravel_plan_free(plan);
        free(seen);
        store_free(&s);
    }
    ravel_plan_options po;
    ravel_thd_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options_default(&po);
    CHECK_EQ(ravel_thd_options_for_group(&po, 2, 2, 0, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "from 0 to width - 1");
}

/* One record and a new block for every bin, also of a caller whose record ends where an older library's did. */
TEST(batch_records_are_used_again_in_other_blocks) {
    ravel__rng r = ravel__rng_seed(check_seed());
    store s;
    store_make(&s, &r, 12, 90);
    ravel_thd_options o;
    ravel_padded_options po;
    ravel_thd_options_default(&o);
    ravel_padded_options_default(&po);
    ravel_thd thd = {.size = sizeof thd};
    ravel_padded padded = {.size = sizeof padded};
    for (int32_t i = 0; i < 12; i++) {
        const int32_t samples[] = {i, 11 - i};
        const ravel_bin bin = {samples, i == 11 - i ? 1 : 2};
        CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, &thd, NULL), RAVEL_OK);
        CHECK_EQ(ravel_padded_measure(&s.ragged, &bin, &po, &padded, NULL), RAVEL_OK);
        size_t bytes = ravel_thd_bytes(&s.ragged, &o, &thd), padded_bytes = ravel_padded_bytes(&s.ragged, &padded);
        char *block = malloc(bytes), *padded_block = malloc(padded_bytes);
        ravel_thd_place(&s.ragged, &o, block, &thd);
        ravel_padded_place(&s.ragged, padded_block, &padded);
        CHECK((char *)thd.fields >= block && (char *)thd.fields < block + bytes);
        CHECK((char *)padded.fields >= padded_block && (char *)padded.fields < padded_block + padded_bytes);
        CHECK_EQ(ravel_thd_pack(&s.ragged, &bin, &o, &thd, NULL), RAVEL_OK);
        CHECK_EQ(ravel_padded_pack(&s.ragged, &bin, &po, &padded, NULL), RAVEL_OK);
        free(block);
        free(padded_block);
    }
    const int32_t one[] = {3};
    const ravel_bin bin = {one, 1};
    struct {
        char record[offsetof(ravel_thd, place)], behind[64];
    } old;
    memset(&old, 0x5a, sizeof old);
    ravel_thd *older = (ravel_thd *)(void *)&old;
    memset(older, 0, sizeof old.record);
    older->size = sizeof old.record;
    CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, older, NULL), RAVEL_OK);
    char *block = malloc(ravel_thd_bytes(&s.ragged, &o, older));
    ravel_thd_place(&s.ragged, &o, block, older);
    CHECK_EQ(ravel_thd_pack(&s.ragged, &bin, &o, older, NULL), RAVEL_OK);
    for (size_t i = 0; i < sizeof old.behind; i++) CHECK(old.behind[i] == 0x5a);
    free(block);
    older->size = sizeof old.record - 8;
    CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, older, NULL), RAVEL_E_ARGUMENT);
    store_free(&s);
}

TEST(batch_a_tail_over_max_seqlen_is_an_error) {
    ravel__rng r = ravel__rng_seed(check_seed());
    store s;
    store_make(&s, &r, 1, 5);
    const int32_t one[] = {0};
    const ravel_bin bin = {one, 1};
    ravel_thd_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd thd = {.size = sizeof thd};
    ravel_thd_options_default(&o);
    o.max_seqlen = 8;
    o.total_multiple = 64;
    CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, &thd, &err), RAVEL_E_OVERSIZE);
    CHECK_HAS(err.message, "the tail that pads the bin");
    o.max_seqlen = 64;
    CHECK_EQ(ravel_thd_measure(&s.ragged, &bin, &o, &thd, NULL), RAVEL_OK);
    CHECK_EQ(thd.max_seqlen, 64);
    store_free(&s);
}

TEST(batch_random_plans_come_back_bit_for_bit) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(400, 20000); round++) {
        store s;
        job j = {.s = &s};
        store_make(&s, &r, 1 + (int64_t)ravel__rng_below(&r, 40), 1 + (int64_t)ravel__rng_below(&r, 150));
        random_options(&r, &j.options);
        ravel_plan *plan = random_plan(&s, &r, &j.options);
        bool good = plan && plan_is_right(&j, plan);
        ravel_plan_free(plan);
        store_free(&s);
        if (!good) {
            check_fail(__FILE__, __LINE__, "round %lld", (long long)round);
            return;
        }
    }
}

/* ---- padded layouts ------------------------------------------------------------------------------------- */

static bool cell_is_right(const store *s, const ravel_padded *p, int64_t row, int64_t column) {
    int64_t sample = p->samples[row], at = row * p->columns + column, t = column - p->starts[row];
    int64_t length = sample >= 0 ? s->lengths[sample] : 1;
    bool real = t >= 0 && t < length;
    if (!EXPECT(p->attention_mask[at] == real && p->positions[at] == (real ? t : 0))) return false;
    bool counts = sample >= 0 && real && t + 1 < length && t + 1 >= s->prompts[sample];
    if (!EXPECT(p->loss_mask[at] == (float)counts)) return false;
    for (int64_t f = 0; f < s->ragged.field_count; f++) {
        unsigned char pad[64];
        size_t each = store_each(&s->fields[f]);
        if (s->fields[f].kind == RAVEL_FIELD_SAMPLE) continue;
        const unsigned char *want = store_expect(s, f, sample, t, pad), *have = p->fields[f];
        if (!EXPECT(memcmp(have + (size_t)at * each, want, each) == 0)) return false;
    }
    return true;
}

static bool padded_is_right(const store *s, const ravel_padded_options *o, const ravel_bin *bin) {
    ravel_padded p = {.size = sizeof p};
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_padded_measure(&s->ragged, bin, o, &p, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    size_t bytes = ravel_padded_bytes(&s->ragged, &p);
    void *block = malloc(bytes);
    memset(block, 0xee, bytes);
    ravel_padded_place(&s->ragged, block, &p);
    bool good = EXPECT(ravel_padded_pack(&s->ragged, bin, o, &p, &err) == RAVEL_OK);
    for (int64_t row = 0; good && row < p.rows; row++) {
        good = EXPECT(p.samples[row] == (row < bin->count ? bin->samples[row] : -1));
        int64_t sample = p.samples[row];
        if (o->side == RAVEL_PAD_RIGHT) good = good && EXPECT(p.starts[row] == 0);
        if (o->side == RAVEL_PAD_2D && sample >= 0)
            good = good && EXPECT(p.starts[row] + s->prompts[sample] == p.prompt_columns);
        if (o->side == RAVEL_PAD_LEFT && sample >= 0)
            good = good && EXPECT(p.starts[row] + s->lengths[sample] == p.columns);
        for (int64_t c = 0; good && c < p.columns; c++) good = cell_is_right(s, &p, row, c);
    }
    for (int64_t f = 0; good && f < s->ragged.field_count; f++) {
        if (s->fields[f].kind == RAVEL_FIELD_SPREAD || bin->count != s->ragged.count) continue;
        unsigned char *back = calloc(1, (size_t)ravel_field_bytes(&s->ragged, &s->fields[f]) + 1);
        good = EXPECT(ravel_padded_unpack(&s->ragged, &p, &s->fields[f], p.fields[f], back, &err) == RAVEL_OK) &&
               EXPECT(store_same(s, f, s->data[f], back));
        free(back);
    }
    free(block);
    return good;
}

TEST(batch_random_rectangles_come_back_bit_for_bit) {
    ravel__rng r = ravel__rng_seed(check_seed() + 1);
    for (int64_t round = 0; round < check_rounds(400, 20000); round++) {
        store s;
        store_make(&s, &r, 1 + (int64_t)ravel__rng_below(&r, 20), 1 + (int64_t)ravel__rng_below(&r, 60));
        ravel_padded_options o;
        ravel_padded_options_default(&o);
        o.side = (int32_t)ravel__rng_below(&r, 3);
        o.align = 1 + (int32_t)ravel__rng_below(&r, 9);
        o.rows = ravel__rng_below(&r, 2) ? s.ragged.count + (int64_t)ravel__rng_below(&r, 3) : 0;
        if (ravel__rng_below(&r, 2)) o.columns = o.align * 60;
        if (ravel__rng_below(&r, 2)) o.responses = o.align * 60;
        const ravel_bin all = {s.everyone, s.ragged.count}, none = {NULL, 0};
        bool good = padded_is_right(&s, &o, &all) && padded_is_right(&s, &o, &none);
        store_free(&s);
        if (!good) {
            check_fail(__FILE__, __LINE__, "round %lld", (long long)round);
            return;
        }
    }
}

/* ---- many --------------------------------------------------------------------------------------------- */

/* 100,000 samples in one bin, and in bins of one: an accidental square would take minutes. */
TEST(batch_a_hundred_thousand_samples) {
    enum { N = 100000 };
    int64_t *offsets = malloc((N + 1) * sizeof *offsets);
    int32_t *order = malloc(N * sizeof *order), *ids = malloc(3 * N * sizeof *ids),
            *back = malloc(3 * N * sizeof *back);
    for (int i = 0; i <= N; i++) offsets[i] = 2 * (int64_t)i + i / 2;
    for (int i = 0; i < N; i++) order[i] = (int32_t)((int64_t)i * 7919 % N);
    for (int i = 0; i < 3 * N; i++) ids[i] = i;
    memset(back, 0, 3 * N * sizeof *back);
    const ravel_field field = {.name = "ids", .dtype = RAVEL_I32, .data = ids};
    const ravel_ragged ragged = {
        .size = sizeof ragged, .count = N, .offsets = offsets, .fields = &field, .field_count = 1};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 8;
    options.cp = 4;
    for (int64_t each = 1; each <= N; each += N - 1)
        for (int64_t first = 0; first < N; first += each) {
            const ravel_bin bin = {order + first, each};
            ravel_thd t = {.size = sizeof t};
            CHECK_OK(ravel_thd_measure(&ragged, &bin, &options, &t, &err), &err);
            void *block = malloc(ravel_thd_bytes(&ragged, &options, &t));
            ravel_thd_place(&ragged, &options, block, &t);
            CHECK_OK(ravel_thd_pack(&ragged, &bin, &options, &t, &err), &err);
            CHECK_OK(ravel_thd_unpack(&ragged, &options, &t, &field, t.fields[0], back, &err), &err);
            free(block);
        }
    CHECK(memcmp(back, ids, (size_t)offsets[N] * sizeof *back) == 0);
    free(offsets);
    free(order);
    free(ids);
    free(back);
}
