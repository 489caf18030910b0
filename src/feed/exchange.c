/* The exchange: every sample goes to the rank whose bin it is in.
 *
 *     mine (ragged)  --copy runs-->  [to rank 0][to rank 1] ...        --one all-to-all-->  [from 0][from 1] ...
 *                                     each piece: field after field,                         |
 *                                     each field: sample after sample                        v
 *     mine  ---------- samples that stay: straight copy ------------------------->  arrived, in bin order
 *
 * Both sides know all lengths and the plan, so each computes the same sizes and offsets: nothing but
 * elements of samples goes over the wire. The samples of a piece are in the order of the receiver's bins, so the
 * receiver takes each piece from its front.
 *
 * With a cut for context parallelism a sample's part of a piece is only what one cp rank packs: the positions of its
 * runs, and one element more, since labels are shifted by one to the left.
 *
 *     zig-zag, cp 2, rank 0      0 1 2 . . . 6 7       runs 0 1 and 6 7; element 2 is the label of position 1
 *
 * In a hybrid plan a sample goes to every member of its group, each of which packs another part of it.
 *
 * With shared prefixes only own tokens travel: elements of TOKEN fields that a sample has in common with the one before
 * it in its bin are copied from that one when it has arrived. A piece ends with 8 bytes per such sample, the XXH3 of
 * what was left out, and the receiver compares. */
#include <ravel/exchange.h>

#include "base/assert.h"
#include "base/memory.h"
#include "base/xxh3.h"
#include "batch/run.h"
#include "feed/source/field.h"

#include <inttypes.h>
#include <string.h>

/* How a sample is cut for one receiver. align 0: it travels whole, but for the first `skip` elements of TOKEN
 * fields. */
typedef struct cut {
    int32_t ranks, rank, align, skip;
} cut;

/* How much goes between this rank and another: samples, the elements of fields of each per-token kind, and sums of
 * elements that were left out. */
typedef struct traffic {
    int64_t samples, tokens, nexts, steps, sums;
} traffic;

struct ravel_exchange {
    const ravel_allocator *allocator;
    size_t bytes; /* of the whole object */
    int32_t rank, ranks;
    int64_t first, count;    /* this rank's samples in the plan's numbers */
    int64_t samples, tokens; /* that arrive, those that stay included */
    int32_t *arriving;       /* [samples] the plan's numbers, in bin order */
    int32_t *homes;          /* [samples] where each comes from */
    int64_t *lengths;        /* [samples] */
    cut *arriving_cuts;      /* [samples] */
    int64_t departures;      /* own samples, once for each receiver */
    int32_t *leaving;        /* [departures] own numbers, by receiver and then in its order */
    cut *leaving_cuts;       /* [departures] */
    int64_t *leave;          /* [ranks + 1] where each receiver's begin */
    traffic *sends, *takes;  /* [ranks] */
    traffic away;            /* what has to leave: a receiver's part of each sample */
    int32_t cp_kind, is_cut;
    int32_t shares; /* of a plan with shared prefixes */
};

/* ---- who sends what ------------------------------------------------------------------------------------- */

static ravel_status check_input(const ravel_plan *plan, const int64_t *counts, int32_t rank, ravel_error *err) {
    int64_t total = 0;
    if (rank < 0 || rank >= plan->dp)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "rank %d of a plan for %d ranks", rank, plan->dp);
    for (int32_t r = 0; r < plan->dp; r++) {
        if (counts[r] < 0 || counts[r] > plan->count - total)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "the ranks' samples do not add up to the plan's %" PRId64 ": rank %d says %" PRId64,
                                   plan->count, r, counts[r]);
        total += counts[r];
    }
    if (total != plan->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the ranks have %" PRId64 " samples, the plan has %" PRId64,
                               total, plan->count);
    return RAVEL_OK;
}

static int is_mine(const ravel_exchange *x, int32_t sample) {
    return sample >= x->first && sample < x->first + x->count;
}

static void add_whole(traffic *t, int64_t length, int64_t skip) {
    RAVEL_ASSERT(length >= 1 && skip >= 0 && skip <= length);
    t->samples++;
    t->sums += skip > 0;
    t->tokens += length - skip;
    t->nexts += length;
    t->steps += length - 1;
}

/* A receiver's part of a sample: over all members of its group the sample once. */
static void add_part(traffic *t, const cut *c, int64_t length) {
    int64_t tokens = (length + c->ranks - 1 - c->rank) / c->ranks, first = c->rank == 0;
    RAVEL_ASSERT(length >= 1 && c->rank >= 0 && c->rank < c->ranks && tokens >= first);
    t->samples += first;
    t->sums += c->skip > 0;
    t->tokens += tokens - c->skip;
    t->nexts += tokens;
    t->steps += tokens - first;
}

/* Elements of TOKEN fields that the sample before has already: not for those that stay on their rank. */
static int32_t skip_of(const ravel_plan *plan, const ravel_group *group, int64_t i, int stays) {
    return plan->shared && !stays ? (int32_t)plan->shared[group->samples - plan->samples + i] : 0;
}

/* What member `rank` of the group gets of its sample i; with shared prefixes all members get it whole. */
static cut cut_of(const ravel_plan *plan, const ravel_group *group, int32_t rank, int64_t i, int stays) {
    if (!plan->shared) return (cut){group->width, rank - group->first, 0, 0};
    return (cut){1, 0, 0, skip_of(plan, group, i, stays)};
}

/* One pass over the plan in bin order: the samples
 * of each receiver come in its own order. */
static void count_traffic(ravel_exchange *x, const ravel_plan *plan, const int64_t *lengths) {
    for (int64_t step = 0; step < plan->micro_steps; step++)
        for (int32_t to = 0; to < plan->dp; to++) {
            ravel_group group = ravel_plan_group(plan, step, to);
            for (int64_t i = 0; i < group.count; i++)
                if (is_mine(x, group.samples[i]))
                    add_whole(&x->sends[to], lengths[group.samples[i]], skip_of(plan, &group, i, to == x->rank));
        }
}

/* starts[ranks]: where each rank's samples begin in the plan's numbers. */
static int32_t home_of(const int64_t *starts, int32_t ranks, int32_t sample) {
    int32_t low = 0, high = ranks - 1;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (starts[middle] <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    RAVEL_ASSERT(starts[low] <= sample && (low == ranks - 1 || sample < starts[low + 1]));
    return low;
}

static void list_arriving(ravel_exchange *x, const ravel_plan *plan, const int64_t *lengths, const int64_t *starts) {
    int64_t k = 0;
    for (int64_t step = 0; step < plan->micro_steps; step++) {
        ravel_group group = ravel_plan_group(plan, step, x->rank);
        for (int64_t i = 0; i < group.count; i++, k++) {
            int32_t sample = group.samples[i], home = home_of(starts, x->ranks, sample);
            x->arriving[k] = sample;
            x->arriving_cuts[k] = cut_of(plan, &group, x->rank, i, home == x->rank);
            x->homes[k] = home;
            x->lengths[k] = lengths[sample];
            x->tokens += lengths[sample];
            add_whole(&x->takes[home], lengths[sample], x->arriving_cuts[k].skip);
        }
    }
    RAVEL_ASSERT(k == x->samples);
}

/* `next` [ranks] is scratch. */
static void list_leaving(ravel_exchange *x, const ravel_plan *plan, int64_t *next) {
    x->leave[0] = 0;
    for (int32_t r = 0; r < x->ranks; r++) {
        next[r] = x->leave[r];
        x->leave[r + 1] = x->leave[r] + x->sends[r].samples;
    }
    for (int64_t step = 0; step < plan->micro_steps; step++)
        for (int32_t to = 0; to < plan->dp; to++) {
            ravel_group group = ravel_plan_group(plan, step, to);
            for (int64_t i = 0; i < group.count; i++) {
                if (!is_mine(x, group.samples[i])) continue;
                x->leaving[next[to]] = (int32_t)(group.samples[i] - x->first);
                x->leaving_cuts[next[to]++] = cut_of(plan, &group, to, i, to == x->rank);
            }
        }
    RAVEL_ASSERT(x->leave[x->ranks] == x->departures);
    for (int32_t r = 0; r < x->ranks; r++) RAVEL_ASSERT(next[r] == x->leave[r + 1]);
}

/* Counts the elements that leave this rank, cut as `leaving_cuts` gives them. */
static void count_away(ravel_exchange *x, const int64_t *lengths) {
    memset(&x->away, 0, sizeof x->away);
    for (int32_t r = 0; r < x->ranks; r++)
        for (int64_t i = x->leave[r]; i < x->leave[r + 1] && r != x->rank; i++)
            add_part(&x->away, &x->leaving_cuts[i], lengths[x->first + x->leaving[i]]);
}

/* Where an array of `count` elements goes in a block; *at moves on. */
static void *carve(char *block, size_t *at, int64_t count, size_t each) {
    RAVEL_ASSERT(count >= 0 && *at % sizeof(int64_t) == 0);
    void *place = block ? block + *at : NULL;
    *at += ravel__round_up((size_t)count * each, sizeof(int64_t));
    return place;
}

static size_t lay_out(ravel_exchange *x, char *block) {
    size_t at = ravel__round_up(sizeof *x, sizeof(int64_t));
    x->sends = carve(block, &at, x->ranks, sizeof *x->sends);
    x->takes = carve(block, &at, x->ranks, sizeof *x->takes);
    x->leave = carve(block, &at, x->ranks + 1, sizeof *x->leave);
    x->leaving = carve(block, &at, x->departures, sizeof *x->leaving);
    x->leaving_cuts = carve(block, &at, x->departures, sizeof *x->leaving_cuts);
    x->lengths = carve(block, &at, x->samples, sizeof *x->lengths);
    x->arriving = carve(block, &at, x->samples, sizeof *x->arriving);
    x->homes = carve(block, &at, x->samples, sizeof *x->homes);
    x->arriving_cuts = carve(block, &at, x->samples, sizeof *x->arriving_cuts);
    return at;
}

/* Samples that this rank's bins hold, and its own samples, once for each receiver. */
static void count_samples(ravel_exchange *x, const ravel_plan *plan) {
    for (int64_t step = 0; step < plan->micro_steps; step++)
        for (int32_t to = 0; to < plan->dp; to++) {
            ravel_group group = ravel_plan_group(plan, step, to);
            if (to == x->rank) x->samples += group.count;
            for (int64_t i = 0; i < group.count; i++) x->departures += is_mine(x, group.samples[i]);
        }
}

static void fill(ravel_exchange *x, const ravel_plan *plan, const int64_t *lengths, int64_t *starts,
                 const int64_t *counts) {
    int64_t begin = 0;
    for (int32_t r = 0; r < x->ranks; begin += counts[r++]) starts[r] = begin;
    count_traffic(x, plan, lengths);
    RAVEL_ASSERT(begin == plan->count);
    list_arriving(x, plan, lengths, starts);
    list_leaving(x, plan, starts);
    count_away(x, lengths);
}

ravel_status ravel_exchange_create(const ravel_plan *plan, const int64_t *counts, const int64_t *lengths, int32_t rank,
                                   const ravel_allocator *allocator, ravel_exchange **exchange, ravel_error *err) {
    ravel_status status = check_input(plan, counts, rank, err);
    if (status) return status;
    ravel_exchange head = {
        .allocator = allocator, .rank = rank, .ranks = plan->dp, .count = counts[rank], .shares = plan->shared != NULL};
    for (int32_t r = 0; r < rank; r++) head.first += counts[r];
    count_samples(&head, plan);
    RAVEL_ASSERT(head.first + head.count <= plan->count && head.samples >= 0 && head.departures >= 0);
    head.bytes = lay_out(&head, NULL);
    size_t scratch = (size_t)plan->dp * sizeof(int64_t);
    char *block = ravel__calloc(allocator, 1, head.bytes);
    int64_t *starts = ravel__alloc(allocator, scratch);
    if (!block || !starts) {
        ravel__release(allocator, block, head.bytes);
        ravel__release(allocator, starts, scratch);
        return ravel__no_memory(err, head.bytes, "the routes of an exchange");
    }
    size_t placed = lay_out(&head, block);
    RAVEL_ASSERT(placed == head.bytes);
    (void)placed;
    fill(&head, plan, lengths, starts, counts);
    ravel__release(allocator, starts, scratch);
    *(ravel_exchange *)block = head;
    *exchange = (ravel_exchange *)block;
    return RAVEL_OK;
}

void ravel_exchange_free(ravel_exchange *exchange) {
    if (exchange) ravel__release(exchange->allocator, exchange, exchange->bytes);
}

const int32_t *ravel_exchange_samples(const ravel_exchange *exchange) {
    return exchange->arriving;
}

/* ---- the cut -------------------------------------------------------------------------------------------- */

/* Elements [from, to) of a sample's field of this kind that run r of its slot packs; 0 after the last run. A field of
 * tokens gets one more, the label of the run's last position; one that is shifted to the left begins one later. */
static int span_of(const ravel_exchange *x, const cut *c, int32_t kind, int64_t length, int r, int64_t *from,
                   int64_t *to) {
    ravel__run runs[2];
    const ravel_cp cp = {c->ranks, x->cp_kind};
    RAVEL_ASSERT(c->align >= 1 && length >= 1); /* a sample that is sent whole has no span */
    int64_t slot = (length + c->align - 1) / c->align * c->align;
    if (r >= ravel__slot_runs(&cp, c->rank, slot, runs)) return 0;
    RAVEL_ASSERT(runs[r].step == 1);
    int64_t elements = kind == RAVEL_FIELD_STEP ? length - 1 : length;
    int64_t begin = runs[r].first + (kind == RAVEL_FIELD_NEXT);
    int64_t end = runs[r].first + runs[r].count + (kind != RAVEL_FIELD_STEP);
    *from = begin < elements ? begin : elements;
    *to = end < elements ? end : elements;
    RAVEL_ASSERT(0 <= *from && *from <= *to && *to <= elements);
    return 1;
}

static int64_t cut_elements(const ravel_exchange *x, const cut *c, int32_t kind, int64_t length) {
    int64_t sum = 0, from, to;
    for (int r = 0; span_of(x, c, kind, length, r, &from, &to); r++) sum += to - from;
    RAVEL_ASSERT(sum >= 0);
    return sum;
}

static void add_cut(const ravel_exchange *x, const cut *c, traffic *t, int64_t length) {
    if (c->ranks == 1) {
        add_whole(t, length, 0);
        return;
    }
    t->samples++;
    t->tokens += cut_elements(x, c, RAVEL_FIELD_TOKEN, length);
    t->nexts += cut_elements(x, c, RAVEL_FIELD_NEXT, length);
    t->steps += cut_elements(x, c, RAVEL_FIELD_STEP, length);
}

/* All traffic again, after the cuts have been set. */
static void cut_traffic(ravel_exchange *x, int32_t kind, const int64_t *lengths) {
    x->cp_kind = kind;
    x->is_cut = kind != RAVEL_CP_STRIPED; /* else every element is some rank's neighbour */
    count_away(x, lengths);
    if (!x->is_cut) return;
    memset(x->sends, 0, (size_t)x->ranks * sizeof *x->sends);
    memset(x->takes, 0, (size_t)x->ranks * sizeof *x->takes);
    for (int32_t r = 0; r < x->ranks; r++)
        for (int64_t i = x->leave[r]; i < x->leave[r + 1]; i++)
            add_cut(x, &x->leaving_cuts[i], &x->sends[r], lengths[x->first + x->leaving[i]]);
    for (int64_t k = 0; k < x->samples; k++) add_cut(x, &x->arriving_cuts[k], &x->takes[x->homes[k]], x->lengths[k]);
    for (int32_t r = 0; r < x->ranks; r++) RAVEL_ASSERT(x->sends[r].samples == x->leave[r + 1] - x->leave[r]);
}

/* Places of a tree are dealt to cp ranks after packing, so each needs whole samples. */
static ravel_status check_cut(const ravel_exchange *x, ravel_error *err) {
    if (!x->shares) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "samples that share prefixes are not cut: every context-parallel rank gets them whole");
}

ravel_status ravel_exchange_cut(ravel_exchange *x, const ravel_cp *cp, int32_t cp_rank, int32_t align,
                                const int64_t *lengths, ravel_error *err) {
    ravel_status status = ravel__cp_valid(cp, cp_rank, 0, err);
    if (!status && cp->ranks > 1) status = check_cut(x, err);
    if (status) return status;
    if (align < 1 || align % ravel__cp_multiple(cp))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "align is %d; to cut for cp %d it must be a multiple of %" PRId64,
                               align, cp->ranks, ravel__cp_multiple(cp));
    if (cp->ranks <= 1) return RAVEL_OK;
    const cut all = {cp->ranks, cp_rank, align, 0};
    for (int64_t i = 0; i < x->departures; i++) x->leaving_cuts[i] = all;
    for (int64_t k = 0; k < x->samples; k++) x->arriving_cuts[k] = all;
    cut_traffic(x, cp->kind, lengths);
    return RAVEL_OK;
}

static ravel_status set_align(const ravel_plan_options *options, int32_t kind, cut *cuts, int64_t count,
                              ravel_error *err) {
    for (int64_t i = 0; i < count; i++) {
        if (cuts[i].ranks == 1) continue;
        int64_t align =
            i && cuts[i].ranks == cuts[i - 1].ranks ? cuts[i - 1].align : ravel_plan_slot(options, 1, cuts[i].ranks);
        const ravel_cp cp = {cuts[i].ranks, kind};
        if (align < 1 || align > 1 << 30 || align % ravel__cp_multiple(&cp))
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "slots on %d ranks are multiples of %" PRId64 ", which cannot be cut that way; "
                                   "set cp-split of the plan to the same kind as cp_kind",
                                   cuts[i].ranks, align);
        cuts[i].align = (int32_t)align;
    }
    return RAVEL_OK;
}

ravel_status ravel_exchange_cut_groups(ravel_exchange *x, const ravel_plan_options *options, int32_t cp_kind,
                                       const int64_t *lengths, ravel_error *err) {
    ravel_status status = check_cut(x, err);
    if (!status) status = set_align(options, cp_kind, x->leaving_cuts, x->departures, err);
    if (!status) status = set_align(options, cp_kind, x->arriving_cuts, x->samples, err);
    if (!status) cut_traffic(x, cp_kind, lengths);
    return status;
}

/* Whether only parts of this field's elements travel in such a sample. */
static int is_cut(const ravel_exchange *x, const cut *c, const ravel_field *field) {
    return x->is_cut && c->ranks > 1 && !ravel__field_per_sample(field);
}

/* Elements of this field that such a sample leaves out. */
static int64_t skip_in(const cut *c, const ravel_field *field) {
    return field->kind == RAVEL_FIELD_TOKEN ? c->skip : 0;
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

/* The fields that travel: those of the samples, and their prompts as one more. */
typedef struct payload {
    ravel_field fields[RAVEL__FIELDS_MAX + 1];
    int64_t count;
    int has_prompts;
} payload;

static void list_fields(payload *c, const ravel_ragged *mine) {
    RAVEL_ASSERT(mine->field_count >= 0);
    c->count = mine->field_count < RAVEL__FIELDS_MAX ? mine->field_count : RAVEL__FIELDS_MAX;
    for (int64_t f = 0; f < c->count; f++) c->fields[f] = mine->fields[f];
    c->has_prompts = mine->prompts != NULL;
    if (c->has_prompts)
        c->fields[c->count++] = (ravel_field){
            .name = "prompts", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_I64, .width = 1, .data = mine->prompts};
    RAVEL_ASSERT(c->count <= RAVEL__FIELDS_MAX + 1);
}

static int64_t piece_bytes(const payload *c, traffic t) {
    int64_t bytes = 0;
    for (int64_t f = 0; f < c->count; f++) {
        const ravel_field *field = &c->fields[f];
        int64_t elements = ravel__field_per_sample(field)    ? t.samples
                           : field->kind == RAVEL_FIELD_STEP ? t.steps
                           : field->kind == RAVEL_FIELD_NEXT ? t.nexts
                                                             : t.tokens;
        RAVEL_ASSERT(elements >= 0);
        bytes += elements * ravel__field_each(field);
    }
    return bytes + t.sums * (int64_t)sizeof(uint64_t);
}

static int64_t aligned(int64_t bytes) {
    return (bytes + RAVEL__ALIGN - 1) / RAVEL__ALIGN * RAVEL__ALIGN;
}

static int64_t result_bytes(const payload *c, int64_t samples, int64_t tokens) {
    int64_t bytes = RAVEL__ALIGN + aligned(c->count * (int64_t)sizeof(ravel_field));
    bytes += aligned((samples + 1) * (int64_t)sizeof(int64_t));
    for (int64_t f = 0; f < c->count; f++) bytes += aligned(ravel__field_bytes(&c->fields[f], samples, tokens));
    return bytes;
}

/* Bytes that leave, or come in from others. */
static int64_t away_bytes(const ravel_exchange *x, const payload *c, const traffic *t) {
    int64_t bytes = 0;
    for (int32_t r = 0; r < x->ranks; r++)
        if (r != x->rank) bytes += piece_bytes(c, t[r]);
    return bytes;
}

void ravel_exchange_measure(const ravel_exchange *exchange, const ravel_ragged *mine, ravel_exchange_sizes *sizes) {
    payload c;
    list_fields(&c, mine);
    sizes->samples = exchange->samples;
    sizes->tokens = exchange->tokens;
    sizes->result_bytes = result_bytes(&c, exchange->samples, exchange->tokens);
    sizes->sent_bytes = away_bytes(exchange, &c, exchange->sends);
    sizes->needed_bytes = piece_bytes(&c, exchange->away);
    sizes->kept_bytes = piece_bytes(&c, exchange->sends[exchange->rank]);
    sizes->scratch_bytes = RAVEL__ALIGN + aligned(5 * exchange->ranks * (int64_t)sizeof(int64_t)) +
                           aligned(sizes->sent_bytes) + aligned(away_bytes(exchange, &c, exchange->takes));
}

/* ---- moving --------------------------------------------------------------------------------------------- */

static char *align_up(void *block) {
    return (char *)block + (RAVEL__ALIGN - (uintptr_t)block % RAVEL__ALIGN) % RAVEL__ALIGN;
}

static char *take_room(char **block, int64_t bytes) {
    char *at = *block;
    RAVEL_ASSERT(bytes >= 0 && (uintptr_t)at % RAVEL__ALIGN == 0);
    *block += aligned(bytes);
    return at;
}

/* One sample of a field that is cut. Returns where it ends. */
static char *copy_cut(const ravel_exchange *x, const ravel_ragged *mine, const ravel_field *field, int64_t i,
                      char *at) {
    RAVEL_ASSERT(i >= 0 && i < x->departures && x->leaving[i] < mine->count);
    int64_t each = ravel__field_each(field), from, to;
    int64_t own = x->leaving[i], length = mine->offsets[own + 1] - mine->offsets[own];
    const char *data = (const char *)field->data + ravel__field_bytes(field, own, mine->offsets[own]);
    for (int r = 0; span_of(x, &x->leaving_cuts[i], field->kind, length, r, &from, &to); r++) {
        if (to > from) memcpy(at, data + from * each, (size_t)((to - from) * each));
        at += (to - from) * each;
    }
    return at;
}

/* Samples leaving[begin .. end) of one field, to `at`; neighbours in one copy. Returns where it ends. */
static char *copy_out(const ravel_exchange *x, const ravel_ragged *mine, const ravel_field *field, int64_t begin,
                      int64_t end, char *at) {
    const char *data = field->data;
    for (int64_t i = begin, j; i < end; i = j) {
        int64_t from = x->leaving[i], left = skip_in(&x->leaving_cuts[i], field) * ravel__field_each(field);
        RAVEL_ASSERT(from >= 0 && from < mine->count);
        j = i + 1;
        if (is_cut(x, &x->leaving_cuts[i], field)) {
            at = copy_cut(x, mine, field, i, at);
            continue;
        }
        while (j < end && x->leaving[j] == x->leaving[j - 1] + 1 && !is_cut(x, &x->leaving_cuts[j], field) &&
               !skip_in(&x->leaving_cuts[j], field))
            j++;
        int64_t to = from + (j - i), skip = ravel__field_bytes(field, from, mine->offsets[from]) + left;
        int64_t bytes = ravel__field_bytes(field, to, mine->offsets[to]) - skip;
        if (bytes) memcpy(at, data + skip, (size_t)bytes);
        at += bytes;
    }
    return at;
}

/* The sum of the elements that sample i of these leaves out. */
static uint64_t sum_skipped(const payload *c, const ravel_ragged *samples, int64_t i, int64_t skip) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    for (int64_t f = 0; f < c->count; f++) {
        if (c->fields[f].kind != RAVEL_FIELD_TOKEN) continue;
        const ravel_field *field = &samples->fields[f];
        ravel__xxh3_add(&state, (const char *)field->data + ravel__field_bytes(field, i, samples->offsets[i]),
                        (size_t)(skip * ravel__field_each(field)));
    }
    return ravel__xxh3_end(&state);
}

static char *add_sums(const ravel_exchange *x, const ravel_ragged *mine, const payload *c, int32_t to, char *at) {
    for (int64_t i = x->leave[to]; i < x->leave[to + 1]; i++) {
        if (!x->leaving_cuts[i].skip) continue;
        uint64_t sum = sum_skipped(c, mine, x->leaving[i], x->leaving_cuts[i].skip);
        memcpy(at, &sum, sizeof sum);
        at += sizeof sum;
    }
    return at;
}

/* Whether every sample arrived with the elements that its sender left out. fronts[ranks]: where the sums of each
 * begin. */
static ravel_status check_sums(const ravel_exchange *x, const payload *c, const ravel_ragged *arrived,
                               const char *received, int64_t *fronts, ravel_error *err) {
    for (int64_t k = 0; k < x->samples; k++) {
        int32_t skip = x->arriving_cuts[k].skip;
        uint64_t sum;
        if (!skip) continue;
        memcpy(&sum, received + fronts[x->homes[k]], sizeof sum);
        fronts[x->homes[k]] += (int64_t)sizeof sum;
        if (sum != sum_skipped(c, arrived, k, skip))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "sample %d does not begin with the same %d tokens as the sample before it in its "
                                   "bin, which the plan says it shares",
                                   x->arriving[k], skip);
    }
    return RAVEL_OK;
}

static void fill_sends(const ravel_exchange *x, const ravel_ragged *mine, const payload *c, char *at) {
    for (int32_t r = 0; r < x->ranks; r++) {
        const char *piece = at;
        for (int64_t f = 0; f < c->count && r != x->rank; f++)
            at = copy_out(x, mine, &c->fields[f], x->leave[r], x->leave[r + 1], at);
        if (r != x->rank) at = add_sums(x, mine, c, r, at);
        RAVEL_ASSERT(at - piece == (r == x->rank ? 0 : piece_bytes(c, x->sends[r])));
        (void)piece;
    }
}

/* Counts and offsets in bytes; nothing to oneself. */
static void set_counts(const ravel_exchange *x, const payload *c, const traffic *t, int64_t *counts, int64_t *offsets) {
    int64_t at = 0;
    for (int32_t r = 0; r < x->ranks; r++) {
        counts[r] = r == x->rank ? 0 : piece_bytes(c, t[r]);
        offsets[r] = at;
        at += counts[r];
        RAVEL_ASSERT(counts[r] >= 0 && at >= offsets[r]);
    }
}

/* One sample of a field that is cut, to where its elements belong; returns the bytes that it took. */
static int64_t place_cut(const ravel_exchange *x, const ravel_field *field, int64_t k, const char *received,
                         char *out) {
    int64_t length = x->lengths[k];
    int64_t each = ravel__field_each(field), elements = ravel__field_elements(field, 1, length), taken = 0, from, to;
    memset(out, 0, (size_t)(elements * each));
    for (int r = 0; span_of(x, &x->arriving_cuts[k], field->kind, length, r, &from, &to); r++) {
        if (to > from) memcpy(out + from * each, received + taken, (size_t)((to - from) * each));
        taken += (to - from) * each;
    }
    RAVEL_ASSERT(taken <= elements * each);
    return taken;
}

/* One field of everything that arrived, in bin order. fronts[ranks]: where the field begins in each rank's piece; moved
 * along as samples are taken. */
static void place_field(const ravel_exchange *x, const ravel_ragged *mine, const ravel_field *field,
                        const char *received, int64_t *fronts, char *out) {
    const char *data = field->data;
    for (int64_t k = 0; k < x->samples; k++) {
        int64_t bytes = ravel__field_bytes(field, 1, x->lengths[k]);
        int64_t left = skip_in(&x->arriving_cuts[k], field) * ravel__field_each(field);
        int32_t home = x->homes[k];
        RAVEL_ASSERT(home >= 0 && home < x->ranks && fronts[home] >= 0);
        const char *from = received + fronts[home];
        if (home != x->rank && is_cut(x, &x->arriving_cuts[k], field)) {
            fronts[home] += place_cut(x, field, k, from, out);
            out += bytes;
            continue;
        }
        if (home == x->rank) {
            int64_t own = x->arriving[k] - x->first;
            RAVEL_ASSERT(own >= 0 && own < x->count && mine->offsets[own + 1] - mine->offsets[own] == x->lengths[k]);
            from = data + ravel__field_bytes(field, own, mine->offsets[own]);
        }
        if (left) memcpy(out, out - ravel__field_bytes(field, 1, x->lengths[k - 1]), (size_t)left);
        if (bytes > left) memcpy(out + left, from, (size_t)(bytes - left));
        out += bytes;
        fronts[home] += bytes - left;
    }
}

/* fronts[] come in as the offsets of the pieces. After a field has been placed, each front is at the next field. */
static void place_all(const ravel_exchange *x, const ravel_ragged *mine, const payload *c, const char *received,
                      int64_t *fronts, char *block, ravel_ragged *arrived) {
    ravel_field *fields = (ravel_field *)(void *)take_room(&block, c->count * (int64_t)sizeof *fields);
    int64_t *offsets = (int64_t *)(void *)take_room(&block, (x->samples + 1) * (int64_t)sizeof *offsets);
    offsets[0] = 0;
    for (int64_t k = 0; k < x->samples; k++) offsets[k + 1] = offsets[k] + x->lengths[k];
    RAVEL_ASSERT(offsets[x->samples] == x->tokens);
    for (int64_t f = 0; f < c->count; f++) {
        char *out = take_room(&block, ravel__field_bytes(&c->fields[f], x->samples, x->tokens));
        place_field(x, mine, &c->fields[f], received, fronts, out);
        fields[f] = c->fields[f];
        fields[f].data = out;
    }
    int64_t own = c->count - c->has_prompts;
    *arrived = (ravel_ragged){.size = sizeof *arrived,
                              .count = x->samples,
                              .offsets = offsets,
                              .prompts = c->has_prompts ? fields[own].data : NULL,
                              .fields = fields,
                              .field_count = own};
}

ravel_status ravel_exchange_run(const ravel_exchange *exchange, ravel_comm *comm, const ravel_ragged *mine,
                                void *result, void *scratch, ravel_ragged *arrived, ravel_error *err) {
    payload c;
    list_fields(&c, mine);
    if (ravel_comm_size(comm) != exchange->ranks || ravel_comm_rank(comm) != exchange->rank)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the exchange is of rank %d of %d, the communicator of %d of %d",
                               exchange->rank, exchange->ranks, ravel_comm_rank(comm), ravel_comm_size(comm));
    if (mine->count != exchange->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "rank %d said %" PRId64 " samples and brings %" PRId64,
                               exchange->rank, exchange->count, mine->count);
    char *block = align_up(scratch);
    int32_t ranks = exchange->ranks;
    int64_t *numbers = (int64_t *)(void *)take_room(&block, 5 * ranks * (int64_t)sizeof *numbers);
    int64_t *send_counts = numbers, *send_offsets = numbers + ranks, *take_counts = numbers + 2 * ranks;
    int64_t *take_offsets = numbers + 3 * ranks, *fronts = numbers + 4 * ranks;
    set_counts(exchange, &c, exchange->sends, send_counts, send_offsets);
    set_counts(exchange, &c, exchange->takes, take_counts, take_offsets);
    char *sent = take_room(&block, send_offsets[ranks - 1] + send_counts[ranks - 1]), *received = block;
    fill_sends(exchange, mine, &c, sent);
    ravel_status status =
        ravel_comm_alltoallv(comm, sent, send_counts, send_offsets, received, take_counts, take_offsets, RAVEL_U8, err);
    if (status) return status;
    memcpy(fronts, take_offsets, (size_t)ranks * sizeof *fronts);
    place_all(exchange, mine, &c, received, fronts, align_up(result), arrived);
    status = check_sums(exchange, &c, arrived, received, fronts, err);
    if (status) return status;
    for (int32_t r = 0; r < ranks; r++) /* every byte that came in was used once */
        RAVEL_ASSERT(r == exchange->rank || fronts[r] == take_offsets[r] + take_counts[r]);
    return RAVEL_OK;
}
