/* From metadata to the places of all arrays.
 *
 *     index   offsets, micro-batches, views of them for each chunk, tables of pointers
 *     block   | cu_seqlens, samples, positions, ... of every micro-batch |  fields of every micro-batch  |
 *               made by every rank for itself                               shared: packed by one rank, and
 *                                                                           broadcast to its tp peers as it is
 *
 * All ranks of a stage with the same dp and cp coordinates have the same shared part, byte for byte. Memory is used
 * again from batch to batch and grows only if a batch needs more than any before. */
#include "feed/pack.h"

#include "base/assert.h"

#include <string.h>

/* ---- the index ------------------------------------------------------------------------------------------ */

static void *take(char *base, size_t *at, int64_t count, size_t each) {
    RAVEL_ASSERT(count >= 0 && *at % 16 == 0);
    void *place = base ? base + *at : NULL;
    *at += ravel__round_up((size_t)count * each, 16);
    return place;
}

static size_t lay_index(const ravel_feed *feed, ravel__prepared *slot, char *base) {
    const ravel_meta *m = &slot->meta;
    int64_t chunks = feed->place.layout.vpp, largest = 0;
    size_t at = 0;
    for (int64_t s = 0; s < m->micro_steps; s++)
        if (m->bin_samples[s] > largest) largest = m->bin_samples[s];
    slot->offsets = take(base, &at, m->samples + m->micro_steps, sizeof *slot->offsets);
    int32_t *shared = take(base, &at, m->shared ? m->samples : 0, sizeof *slot->prefixes);
    slot->prefixes = m->shared ? shared : NULL;
    slot->iota = take(base, &at, largest, sizeof *slot->iota);
    slot->update_steps = take(base, &at, m->updates + 1, sizeof *slot->update_steps);
    slot->micros = take(base, &at, m->micro_steps, sizeof *slot->micros);
    slot->views = take(base, &at, chunks * m->micro_steps, sizeof *slot->views);
    slot->tables = take(base, &at, (1 + chunks) * m->micro_steps * feed->fields.count, sizeof *slot->tables);
    RAVEL_ASSERT(largest <= INT32_MAX && largest <= m->samples);
    for (int64_t i = 0; base && i < largest; i++) slot->iota[i] = (int32_t)i;
    return at;
}

static void fill_index(const ravel_feed *feed, ravel__prepared *slot) {
    const ravel_meta *m = &slot->meta;
    int64_t *at = slot->offsets, sample = 0, token = 0;
    slot->update_steps[0] = 0;
    for (int64_t u = 0; u < m->updates; u++)
        slot->update_steps[u + 1] = slot->update_steps[u] + m->counts[u].micro_steps;
    for (int64_t s = 0; s < m->micro_steps; s++) {
        int64_t here = 0;
        slot->micros[s] = (ravel__micro){.first = sample,
                                         .token = token,
                                         .cp_first = m->group_first ? (int32_t)m->group_first[s] : -1,
                                         .cp = m->group_width ? (int32_t)m->group_width[s] : feed->plan.cp,
                                         .offsets = at,
                                         .thd = {.size = sizeof(ravel_thd)}};
        *at++ = 0;
        for (int64_t i = 0; i < m->bin_samples[s]; i++) *at++ = here += m->lengths[sample++];
        token += here;
    }
    for (int64_t i = 0; m->shared && i < m->samples; i++) slot->prefixes[i] = (int32_t)m->shared[i];
    RAVEL_ASSERT(sample == m->samples && slot->update_steps[m->updates] == m->micro_steps);
}

ravel_thd_options ravel__micro_thd(const ravel_feed *feed, const ravel__prepared *slot, int64_t s) {
    RAVEL_ASSERT(s >= 0 && s < slot->meta.micro_steps && slot->micros[s].cp >= 1);
    const ravel__micro *micro = &slot->micros[s];
    return ravel__bin_thd(feed, slot->meta.shared && slot->meta.bin_samples[s], micro->cp,
                          micro->cp_first < 0 ? feed->place.at.cp : feed->place.at.dp - micro->cp_first);
}

ravel_ragged ravel__micro_ragged(const ravel__micro *micro, int64_t samples, const ravel_field *fields,
                                 int64_t field_count, ravel_field *shifted) {
    RAVEL_ASSERT(samples >= 0 && field_count >= 0 && field_count <= RAVEL__FIELDS_MAX + 2);
    for (int64_t f = 0; f < field_count; f++) {
        shifted[f] = fields[f];
        if (fields[f].data)
            shifted[f].data = (const char *)fields[f].data + ravel__field_bytes(&fields[f], micro->first, micro->token);
    }
    return (ravel_ragged){.size = sizeof(ravel_ragged),
                          .count = samples,
                          .offsets = micro->offsets,
                          .fields = shifted,
                          .field_count = field_count};
}

/* ---- sizes and places ----------------------------------------------------------------------------------- */

static ravel_status measure(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    ravel_field shifted[RAVEL__FIELDS_MAX + 2];
    for (int64_t s = 0; s < slot->meta.micro_steps; s++) {
        ravel__micro *micro = &slot->micros[s];
        int64_t samples = slot->meta.bin_samples[s];
        ravel_ragged ragged = ravel__micro_ragged(micro, samples, feed->fields.list, feed->fields.count, shifted);
        ravel_bin bin = {slot->iota, samples};
        ravel_thd_options options = ravel__micro_thd(feed, slot, s);
        ravel_status status = ravel_thd_measure(&ragged, &bin, &options, &micro->thd, err);
        if (status) return status;
        micro->thd.fields = slot->tables + s * feed->fields.count;
    }
    return RAVEL_OK;
}

/* Arrays that every rank computes itself. */
static void place_own(const ravel_feed *feed, ravel_thd *t, ravel__cutter *c) {
    RAVEL_ASSERT(t->sequences >= 0 && t->local_tokens >= 0 && t->local_tokens <= t->tokens);
    t->cu_seqlens = ravel__cutter_take(c, t->sequences + 1, sizeof *t->cu_seqlens);
    t->cu_seqlens_padded = ravel__cutter_take(c, t->sequences + 1, sizeof *t->cu_seqlens_padded);
    t->samples = ravel__cutter_take(c, t->sequences, sizeof *t->samples);
    t->positions = ravel__cutter_take(c, t->local_tokens, sizeof *t->positions);
    if (feed->options.segments) t->segments = ravel__cutter_take(c, t->local_tokens, sizeof *t->segments);
    if (feed->options.padding) t->padding = ravel__cutter_take(c, t->local_tokens, sizeof *t->padding);
}

int64_t ravel__element_bytes(const ravel__fields *fields, int32_t roles, const ravel_thd *t) {
    int64_t bytes = 0;
    for (int64_t f = 0; f < fields->count; f++)
        if (ravel__fields_wanted(fields, f, roles)) bytes += (int64_t)ravel_thd_field_bytes(t, &fields->list[f]);
    return bytes;
}

void ravel__place_fields(const ravel__fields *fields, int32_t roles, ravel_thd *t, ravel__cutter *cutter) {
    for (int64_t f = 0; f < fields->count; f++) {
        int there = ravel__fields_wanted(fields, f, roles);
        size_t bytes = there ? ravel_thd_field_bytes(t, &fields->list[f]) : 0;
        t->fields[f] = there ? ravel__cutter_take(cutter, (int64_t)bytes, 1) : NULL;
    }
}

/* Counts where base is NULL, else sets every pointer. *shared_at: where the shared part begins. */
static size_t place(const ravel_feed *feed, ravel__prepared *slot, void *base, size_t *shared_at) {
    ravel__cutter cutter = ravel__cutter_begin(base);
    for (int64_t s = 0; s < slot->meta.micro_steps; s++) place_own(feed, &slot->micros[s].thd, &cutter);
    *shared_at = cutter.used;
    for (int64_t s = 0; s < slot->meta.micro_steps; s++)
        ravel__place_fields(&feed->fields, feed->place.have, &slot->micros[s].thd, &cutter);
    return cutter.used;
}

/* Each chunk sees what its roles get. */
static void make_views(const ravel_feed *feed, ravel__prepared *slot) {
    int64_t steps = slot->meta.micro_steps, fields = feed->fields.count;
    for (int64_t c = 0; c < feed->place.layout.vpp; c++)
        for (int64_t s = 0; s < steps; s++) {
            ravel_thd *view = &slot->views[c * steps + s];
            *view = slot->micros[s].thd;
            view->fields = slot->tables + ((1 + c) * steps + s) * fields;
            for (int64_t f = 0; f < fields; f++) {
                int wanted = ravel__fields_wanted(&feed->fields, f, feed->place.chunk_roles[c]);
                view->fields[f] = wanted ? slot->micros[s].thd.fields[f] : NULL;
            }
        }
}

ravel_status ravel__feed_room(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    size_t bytes = lay_index(feed, slot, NULL), shared_at;
    ravel_status status =
        ravel__buffer_reserve(&slot->index, feed->allocator, (int64_t)bytes + 16, 1, "an update", err);
    if (status) return status;
    (void)lay_index(feed, slot, slot->index.at);
    RAVEL_ASSERT(slot->index.room >= bytes && (uintptr_t)slot->index.at % 16 == 0);
    fill_index(feed, slot);
    status = measure(feed, slot, err);
    if (status) return status;
    bytes = place(feed, slot, NULL, &shared_at);
    if (bytes == SIZE_MAX) return ravel__no_memory(err, bytes, "the arrays of an update");
    status = ravel__buffer_reserve(&slot->block, feed->allocator, (int64_t)bytes, 1, "the arrays of an update", err);
    if (status) return status;
    slot->block_bytes = bytes;
    bytes = place(feed, slot, slot->block.at, &shared_at);
    RAVEL_ASSERT(shared_at <= bytes && bytes <= slot->block_bytes); /* what was counted before */
    slot->shared = (char *)slot->block.at + shared_at;
    slot->shared_bytes = bytes - shared_at;
    RAVEL_ASSERT(slot->shared + slot->shared_bytes <= (char *)slot->block.at + slot->block.room);
    for (int64_t s = 0; s < slot->meta.micro_steps; s++)
        slot->element_bytes += ravel__element_bytes(&feed->fields, feed->place.have, &slot->micros[s].thd);
    make_views(feed, slot);
    return RAVEL_OK;
}
