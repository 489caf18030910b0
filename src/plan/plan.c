/* A plan as one block of memory, and as bytes.
 *
 * Both are a list of arrays: alloc gives each its place behind the struct, pack and unpack copy them one after another.
 *
 * The bytes are 64-bit words in the machine's order (the magic number tells orders apart):
 *
 *     0  magic "RAVELPLN"   1  format version   2  words in all
 *     3  count   4  updates   5  micro_steps   6  dp   7  samples   8  skipped   9  groups   10  flags: 1 ids, 2 hybrid, 4 trees
 *     11 digest, then the figures (RAVEL_PLAN_STATS_LIST, doubles as their bits) and the four bounds of a hybrid plan
 *     the arrays: 64-bit ones, then 32-bit ones, each rounded up to whole words
 *     last: a hash of all words before it */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/hash.h"

#include <string.h>

/* ---- arrays -------------------------------------------------------------------------------------------------- */

enum { WIDE = 9, NARROW = 5, ARRAYS = WIDE + NARROW };

typedef struct array {
    void **at;
    int64_t count;
} array;

/* 64-bit arrays first, so that each is aligned. */
static void list_arrays(ravel__plan *p, const ravel__plan_size *s, array *list) {
    RAVEL_ASSERT(s->micro_steps >= 0 && s->dp >= 1 && s->updates >= 1 && s->samples + s->skipped <= s->count);
    int64_t bins = s->micro_steps * s->dp, steps = s->hybrid ? s->micro_steps + 1 : 0,
            groups = s->hybrid ? s->groups : 0;
    const array rows[ARRAYS] = {
        {(void **)&p->update_offsets, s->updates + 1},
        {(void **)&p->bin_offsets, bins + 1},
        {(void **)&p->bin_tokens, bins},
        {(void **)&p->bin_slots, bins},
        {(void **)&p->bin_costs, bins},
        {(void **)&p->ids, s->has_ids ? s->count : 0},
        {(void **)&p->group_offsets, steps},
        {(void **)&p->group_sample_offsets, s->hybrid ? groups + 1 : 0},
        {(void **)&p->shared, s->trees ? s->samples : 0},
        {(void **)&p->samples, s->samples},
        {(void **)&p->skipped, s->skipped},
        {(void **)&p->group_first, groups},
        {(void **)&p->group_width, groups},
        {(void **)&p->rank_group, s->hybrid ? bins : 0},
    };
    memcpy(list, rows, sizeof rows);
}

static size_t array_bytes(const array *a, int which) {
    RAVEL_ASSERT(which >= 0 && which < ARRAYS && a->count >= 0);
    size_t each = which < WIDE ? sizeof(int64_t) : sizeof(int32_t);
    return ravel__round_up((size_t)a->count * each, sizeof(int64_t));
}

static void set_api(ravel__plan *p, const ravel__plan_size *s) {
    p->api = (ravel_plan){.count = s->count,
                          .updates = s->updates,
                          .micro_steps = s->micro_steps,
                          .bins = s->micro_steps * s->dp,
                          .dp = (int32_t)s->dp,
                          .update_offsets = p->update_offsets,
                          .bin_offsets = p->bin_offsets,
                          .samples = p->samples,
                          .bin_tokens = p->bin_tokens,
                          .bin_slots = p->bin_slots,
                          .bin_costs = p->bin_costs,
                          .skipped = p->skipped};
    if (!s->has_ids) p->ids = NULL;
    p->api.shared = p->shared = s->trees ? p->shared : NULL;
    if (!s->hybrid) return;
    RAVEL_ASSERT(s->groups >= 0 && s->groups <= s->samples);
    p->hybrid = (ravel_hybrid){.pool = (int32_t)s->dp,
                               .groups = s->groups,
                               .group_offsets = p->group_offsets,
                               .group_first = p->group_first,
                               .group_width = p->group_width,
                               .group_sample_offsets = p->group_sample_offsets,
                               .rank_group = p->rank_group};
    p->api.hybrid = &p->hybrid;
}

ravel__plan *ravel__plan_alloc(const ravel__plan_size *size, const ravel_allocator *allocator, ravel_error *err) {
    ravel__plan none = {0};
    array list[ARRAYS];
    size_t head = ravel__round_up(sizeof(ravel__plan), sizeof(int64_t)), bytes = head;
    list_arrays(&none, size, list);
    for (int i = 0; i < ARRAYS; i++) bytes += array_bytes(&list[i], i);
    ravel__plan *plan = ravel__alloc(allocator, bytes);
    if (!plan) {
        ravel__no_memory(err, bytes, "a plan");
        return NULL;
    }
    memset(plan, 0, head);
    list_arrays(plan, size, list);
    char *at = (char *)plan + head;
    for (int i = 0; i < ARRAYS; i++) {
        *list[i].at = at;
        at += array_bytes(&list[i], i);
    }
    RAVEL_ASSERT(at == (char *)plan + bytes);
    plan->allocator = allocator;
    plan->bytes = bytes;
    set_api(plan, size);
    return plan;
}

/* ---- workspace ----------------------------------------------------------------------------------------------- */

/* Bytes per sample: pool, candidates, the lists and trades of one start, differencing; per bin: the plan's own five
 * words, and a struct ravel__bin in each of three lists. The index of open bins has a word per room (pack/fit.h). */
enum { PER_SAMPLE = 400, PER_BIN = 320, PER_RANK = 256, PER_PAIR_OF_RANKS = 8, PER_ROOM = 6, FIXED_BYTES = 65536 };

static double most_bins(double count, const ravel_plan_options *o) {
    double ranks = o->cp_pool > 0 ? o->cp_pool : o->dp, multiple = o->multiple, updates = o->updates;
    double least = o->min_micro_steps > 1 ? (double)o->min_micro_steps : 1;
    if (o->samples_per_update > 0) updates = 2 * count / (double)o->samples_per_update + 2;
    if (o->group_rule == RAVEL_GROUPS_RANK || o->cp_pool > 0) count *= ranks;
    return count + updates * (least + 6 * multiple) * ranks;
}

size_t ravel_plan_workspace(int64_t count, const ravel_plan_options *o) {
    double n = (double)count, ranks = o->cp_pool > 0 ? o->cp_pool : o->dp, room = (double)o->cp * (double)o->budget;
    double index = 2 * n > 65536 ? 2 * n : 65536;
    double bytes = FIXED_BYTES + n * PER_SAMPLE + most_bins(n, o) * PER_BIN + ranks * PER_RANK +
                   (ranks <= 128 ? ranks * ranks * PER_PAIR_OF_RANKS : 0) + (room < index ? room : index) * PER_ROOM;
    return bytes < (double)(SIZE_MAX / 2) ? (size_t)bytes : SIZE_MAX / 2;
}

void ravel_plan_free(ravel_plan *plan) {
    ravel__plan *own = (ravel__plan *)(void *)plan;
    if (own) ravel__release(own->allocator, own, own->bytes);
}

const int64_t *ravel_planner_ids(const ravel_plan *plan) {
    return ((const ravel__plan *)(const void *)plan)->ids;
}

/* ---- words --------------------------------------------------------------------------------------------------- */

#define MAGIC INT64_C(0x4e4c504c45564152) /* "RAVELPLN" */

#define X(type, name, doc) +1
enum { STATS = 0 RAVEL_PLAN_STATS_LIST(X), BOUNDS = 4, HEAD = 12, FIXED = HEAD + STATS + BOUNDS };
#undef X

static ravel__plan_size size_of(const ravel_plan *p) {
    ravel__plan_size s = {.count = p->count,
                          .updates = p->updates,
                          .micro_steps = p->micro_steps,
                          .dp = p->dp,
                          .samples = p->stats.samples,
                          .skipped = p->stats.skipped,
                          .has_ids = ravel_planner_ids(p) != NULL,
                          .hybrid = p->hybrid != NULL,
                          .trees = p->shared != NULL};
    if (p->hybrid) s.groups = p->hybrid->groups;
    return s;
}

static size_t words_for(const ravel__plan_size *size) {
    ravel__plan none = {0};
    array list[ARRAYS];
    size_t words = FIXED + 1;
    list_arrays(&none, size, list);
    for (int i = 0; i < ARRAYS; i++) words += array_bytes(&list[i], i) / sizeof(int64_t);
    return words;
}

size_t ravel_plan_packed_bytes(const ravel_plan *plan) {
    ravel__plan_size size = size_of(plan);
    return words_for(&size) * sizeof(int64_t);
}

static int64_t hash_words(const int64_t *words, size_t count) {
    ravel__hash h = ravel__hash_begin((uint64_t)MAGIC);
    ravel__hash_i64s(&h, words, count);
    return (int64_t)ravel__hash_end(h);
}

/* Every figure and bound is one word. */
static void put_figures(const ravel_plan *p, int64_t *word) {
#define X(type, name, doc) memcpy(word++, &p->stats.name, sizeof(int64_t));
    RAVEL_PLAN_STATS_LIST(X)
#undef X
    const ravel_hybrid none = {0}, *h = p->hybrid ? p->hybrid : &none;
    word[0] = h->bound_micro_steps;
    word[1] = h->bound_area;
    word[2] = h->bound_longest;
    word[3] = h->bound_canonical;
}

static void take_figures(const int64_t *word, ravel__plan *plan) {
#define X(type, name, doc) memcpy(&plan->api.stats.name, word++, sizeof(int64_t));
    RAVEL_PLAN_STATS_LIST(X)
#undef X
    plan->hybrid.bound_micro_steps = word[0];
    plan->hybrid.bound_area = word[1];
    plan->hybrid.bound_longest = word[2];
    plan->hybrid.bound_canonical = word[3];
}

ravel_status ravel_plan_pack(const ravel_plan *plan, void *bytes, size_t size, ravel_error *err) {
    ravel__plan own = *(const ravel__plan *)(const void *)plan;
    ravel__plan_size s = size_of(plan);
    size_t words = words_for(&s);
    array list[ARRAYS];
    if (size != words * sizeof(int64_t))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the plan packs into %zu bytes; %zu were given",
                               words * sizeof(int64_t), size);
    int64_t *word = bytes, flags = s.has_ids + 2 * s.hybrid + 4 * s.trees;
    const int64_t head[HEAD] = {MAGIC, 2,         (int64_t)words, s.count,  s.updates, s.micro_steps,
                                s.dp,  s.samples, s.skipped,      s.groups, flags,     (int64_t)plan->digest};
    memset(word, 0, size);
    memcpy(word, head, sizeof head);
    put_figures(plan, word + HEAD);
    char *at = (char *)(word + FIXED);
    list_arrays(&own, &s, list);
    for (int i = 0; i < ARRAYS; i++) {
        size_t each = i < WIDE ? sizeof(int64_t) : sizeof(int32_t);
        if (list[i].count) memcpy(at, *list[i].at, (size_t)list[i].count * each);
        at += array_bytes(&list[i], i);
    }
    RAVEL_ASSERT(at == (char *)(word + words - 1));
    word[words - 1] = hash_words(word, words - 1);
    return RAVEL_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

static ravel_status bad(ravel_error *err, const char *why) {
    return ravel_error_set(err, RAVEL_E_DATA, "these bytes are not a packed plan: %s", why);
}

static ravel_status read_size(const int64_t *word, size_t words, ravel__plan_size *s, ravel_error *err) {
    if (words <= FIXED || word[0] != MAGIC) return bad(err, "they do not begin like one");
    if (word[1] != 2)
        return ravel_error_set(err, RAVEL_E_DATA, "the packed plan has version %lld; this reads version 2",
                               (long long)word[1]);
    if ((uint64_t)word[2] != words) return bad(err, "their number is not the size in their header");
    if (hash_words(word, words - 1) != word[words - 1]) return bad(err, "their hash is wrong");
    *s = (ravel__plan_size){.count = word[3],
                            .updates = word[4],
                            .micro_steps = word[5],
                            .dp = word[6],
                            .samples = word[7],
                            .skipped = word[8],
                            .groups = word[9],
                            .has_ids = (int32_t)(word[10] & 1),
                            .hybrid = (int32_t)(word[10] >> 1 & 1),
                            .trees = (int32_t)(word[10] >> 2 & 1)};
    if (s->count < 0 || s->count > RAVEL__MOST_SAMPLES || s->updates < 1 || s->updates > RAVEL__MOST_BINS ||
        s->micro_steps < 0 || s->dp < 1 || s->dp > RAVEL__MOST_BINS || s->micro_steps > RAVEL__MOST_BINS / s->dp ||
        s->samples < 0 || s->samples > s->count || s->skipped != s->count - s->samples || s->groups < 0 ||
        s->groups > s->samples || word[10] < 0 || word[10] > 7 || (!s->hybrid && s->groups))
        return bad(err, "their sizes do not agree");
    return words_for(s) == words ? RAVEL_OK : bad(err, "their sizes do not agree");
}

/* Rises from 0 to `last`. */
static int is_cumulative(const int64_t *x, int64_t count, int64_t last) {
    RAVEL_ASSERT(count >= 1);
    if (x[0] != 0 || x[count - 1] != last) return 0;
    for (int64_t i = 1; i < count; i++)
        if (x[i] < x[i - 1]) return 0;
    return 1;
}

static int is_within(const int32_t *x, int64_t count, int64_t low, int64_t high) {
    RAVEL_ASSERT(low <= high);
    for (int64_t i = 0; i < count; i++)
        if (x[i] < low || x[i] >= high) return 0;
    return 1;
}

/* Every index can be followed without leaving an array; ravel_plan_check says whether it is a good plan. */
static ravel_status check_arrays(const ravel__plan *plan, ravel_error *err) {
    const ravel_plan *p = &plan->api;
    const ravel_hybrid *h = p->hybrid;
    if (!is_cumulative(p->update_offsets, p->updates + 1, p->micro_steps) ||
        !is_cumulative(p->bin_offsets, p->bins + 1, p->stats.samples))
        return bad(err, "their offsets do not rise");
    if (!is_within(p->samples, p->stats.samples, 0, p->count) || !is_within(p->skipped, p->stats.skipped, 0, p->count))
        return bad(err, "a sample is out of range");
    for (int64_t i = 0; p->shared && i < p->stats.samples; i++)
        if (p->shared[i] < 0 || p->shared[i] > RAVEL__LONGEST) return bad(err, "a shared prefix is out of range");
    if (!h) return RAVEL_OK;
    if (!is_cumulative(h->group_offsets, p->micro_steps + 1, h->groups) ||
        !is_cumulative(h->group_sample_offsets, h->groups + 1, p->stats.samples))
        return bad(err, "their groups' offsets do not rise");
    if (!is_within(h->rank_group, p->bins, -1, h->groups) || !is_within(h->group_first, h->groups, 0, h->pool) ||
        !is_within(h->group_width, h->groups, 1, (int64_t)h->pool + 1))
        return bad(err, "a group is out of range");
    for (int64_t g = 0; g < h->groups; g++)
        if (h->group_first[g] + h->group_width[g] > h->pool) return bad(err, "a group is out of range");
    return RAVEL_OK;
}

ravel_status ravel_plan_unpack(const void *bytes, size_t size, const ravel_allocator *allocator, ravel_plan **out,
                               ravel_error *err) {
    ravel__plan_size s = {0};
    array list[ARRAYS];
    const int64_t *word = bytes;
    if (size % sizeof(int64_t)) return bad(err, "they are not a whole number of words");
    ravel_status status = read_size(word, size / sizeof(int64_t), &s, err);
    if (status) return status;
    ravel__plan *plan = ravel__plan_alloc(&s, allocator, err);
    if (!plan) return RAVEL_E_MEMORY;
    take_figures(word + HEAD, plan);
    plan->api.digest = (uint64_t)word[11];
    const char *at = (const char *)(word + FIXED);
    list_arrays(plan, &s, list);
    for (int i = 0; i < ARRAYS; i++) {
        if (list[i].count)
            memcpy(*list[i].at, at, (size_t)list[i].count * (i < WIDE ? sizeof(int64_t) : sizeof(int32_t)));
        at += array_bytes(&list[i], i);
    }
    RAVEL_ASSERT(at == (const char *)(word + size / sizeof(int64_t) - 1));
    status = plan->api.stats.samples == s.samples && plan->api.stats.skipped == s.skipped
                 ? check_arrays(plan, err)
                 : bad(err, "their figures do not agree");
    if (status) {
        ravel_plan_free(&plan->api);
        return status;
    }
    *out = &plan->api;
    return RAVEL_OK;
}
