/* The metadata message: encoding, and a decoder that checks everything. The format is described in ravel/meta.h. */
#include "feed/feed.h"

#include "base/assert.h"
#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* The counts of an update are words in the message and a struct in memory. */
_Static_assert(sizeof(ravel_update_counts) == RAVEL_UPDATE_WORDS * sizeof(int64_t), "one word a count");
_Static_assert(sizeof(ravel_counts) == RAVEL_COUNTS_WORDS * sizeof(int64_t), "one word a count");

enum { MAGIC, VERSION, WORDS, FLAGS, UPDATES, STEPS, SAMPLES, EPOCH, POSITION, BATCH };
enum { PER_SAMPLE = 4 /* lengths, ids, parts, loss tokens */, EACH = RAVEL_UPDATE_WORDS + RAVEL_COUNTS_WORDS };
#define MOST_WORDS (INT64_C(1) << 40)
#define MOST_WIDTH (INT64_C(1) << 20)

static int64_t checksum(const int64_t *words, int64_t count) {
    ravel__hash h = ravel__hash_begin(RAVEL_META_MAGIC);
    ravel__hash_i64s(&h, words, (size_t)count);
    return (int64_t)ravel__hash_end(h);
}

static int64_t total_words(int64_t flags, int64_t updates, int64_t steps, int64_t samples) {
    if (updates < 0 || steps < 0 || samples < 0) return -1;
    if (updates > MOST_WORDS || steps > MOST_WORDS || samples > MOST_WORDS) return -1;
    int64_t per_step = flags & RAVEL_META_HYBRID ? 3 : 1; /* samples, and its group's first rank and width */
    return RAVEL_META_HEAD + updates * EACH + per_step * steps +
           (PER_SAMPLE + ((flags & RAVEL_META_SHARED) != 0) + ((flags & RAVEL_META_PROMPTS) != 0)) * samples + 1;
}

int64_t ravel_meta_words(const ravel_meta *meta) {
    return total_words(meta->flags, meta->updates, meta->micro_steps, meta->samples);
}

static int64_t *put(int64_t *at, const void *from, int64_t words) {
    RAVEL_ASSERT(words >= 0 && (words == 0 || from));
    if (words) memcpy(at, from, (size_t)words * sizeof *at);
    return at + words;
}

ravel_status ravel_meta_encode(const ravel_meta *meta, int64_t *words, int64_t count, ravel_error *err) {
    int64_t need = ravel_meta_words(meta);
    if (need < 0 || count != need)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the message takes %" PRId64 " words, there is room for %" PRId64,
                               need, count);
    const int64_t head[RAVEL_META_HEAD] = {RAVEL_META_MAGIC, RAVEL_META_VERSION, need,          meta->flags,
                                           meta->updates,    meta->micro_steps,  meta->samples, meta->epoch,
                                           meta->position,   meta->batch};
    int64_t *at = put(words, head, RAVEL_META_HEAD);
    at = put(at, meta->counts, meta->updates * RAVEL_UPDATE_WORDS);
    at = put(at, meta->loss_counts, meta->updates * RAVEL_COUNTS_WORDS);
    at = put(at, meta->bin_samples, meta->micro_steps);
    if (meta->flags & RAVEL_META_HYBRID) {
        at = put(at, meta->group_first, meta->micro_steps);
        at = put(at, meta->group_width, meta->micro_steps);
    }
    at = put(at, meta->lengths, meta->samples);
    at = put(at, meta->ids, meta->samples);
    at = put(at, meta->parts, meta->samples);
    at = put(at, meta->loss_tokens, meta->samples);
    if (meta->flags & RAVEL_META_SHARED) at = put(at, meta->shared, meta->samples);
    if (meta->flags & RAVEL_META_PROMPTS) at = put(at, meta->prompts, meta->samples);
    RAVEL_ASSERT(at == words + need - 1); /* only the checksum is missing */
    *at = checksum(words, need - 1);
    return RAVEL_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------- */

static ravel_status check_head(const int64_t *words, int64_t count, ravel_error *err) {
    if (count < RAVEL_META_HEAD + 1 || words[MAGIC] != RAVEL_META_MAGIC)
        return ravel_error_set(err, RAVEL_E_DATA, "%" PRId64 " words that are no metadata message", count);
    if (words[VERSION] != RAVEL_META_VERSION)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "a metadata message of version %" PRId64 "; this library reads version %d",
                               words[VERSION], RAVEL_META_VERSION);
    if (words[WORDS] != count || total_words(words[FLAGS], words[UPDATES], words[STEPS], words[SAMPLES]) != count)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "a metadata message of %" PRId64 " words says that it has %" PRId64 ", for %" PRId64
                               " updates, %" PRId64 " micro-steps and %" PRId64 " samples",
                               count, words[WORDS], words[UPDATES], words[STEPS], words[SAMPLES]);
    if (words[count - 1] != checksum(words, count - 1))
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "a metadata message arrived changed: its checksum is wrong");
    return RAVEL_OK;
}

/* Adds up what must not go below zero; -1 where it does, or where it passes `total`. */
static int64_t sum_up_to(const int64_t *values, int64_t count, int64_t total) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < 0 || values[i] > total - sum) return -1;
        sum += values[i];
    }
    RAVEL_ASSERT(sum <= total);
    return sum;
}

static ravel_status check_updates(const ravel_meta *meta, ravel_error *err) {
    int64_t steps = 0;
    for (int64_t u = 0; u < meta->updates; u++) {
        int64_t here = meta->counts[u].micro_steps;
        if (here < 0 || here > meta->micro_steps - steps) steps = -1;
        if (steps < 0) break;
        steps += here;
    }
    if (steps != meta->micro_steps)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "a metadata message has %" PRId64 " micro-steps, its updates have not",
                               meta->micro_steps);
    return RAVEL_OK;
}

static ravel_status check_samples(const ravel_meta *meta, ravel_error *err) {
    if (sum_up_to(meta->bin_samples, meta->micro_steps, meta->samples) != meta->samples)
        return ravel_error_set(err, RAVEL_E_DATA, "a metadata message has %" PRId64 " samples, its bins have not",
                               meta->samples);
    for (int64_t i = 0; i < meta->samples; i++) {
        if (meta->lengths[i] < 1 || meta->lengths[i] > INT64_C(1) << 31)
            return ravel_error_set(err, RAVEL_E_DATA, "a metadata message has a sample of %" PRId64 " tokens",
                                   meta->lengths[i]);
        if (meta->loss_tokens[i] < 0 || meta->loss_tokens[i] > meta->lengths[i] || meta->parts[i] < 0)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a metadata message has a sample with %" PRId64 " loss tokens of %" PRId64
                                   " and part number %" PRId64,
                                   meta->loss_tokens[i], meta->lengths[i], meta->parts[i]);
        if (meta->prompts && (meta->prompts[i] < 0 || meta->prompts[i] > meta->lengths[i]))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a metadata message has a sample with a prompt of %" PRId64 " tokens of %" PRId64,
                                   meta->prompts[i], meta->lengths[i]);
    }
    return RAVEL_OK;
}

/* What a sample shares with the one before it in its bin. */
static ravel_status check_shared(const ravel_meta *meta, ravel_error *err) {
    for (int64_t s = 0, i = 0; meta->shared && s < meta->micro_steps; s++)
        for (int64_t k = 0; k < meta->bin_samples[s]; k++, i++) {
            int64_t most = k && meta->lengths[i - 1] < meta->lengths[i] ? meta->lengths[i - 1] : meta->lengths[i];
            if (meta->shared[i] < 0 || meta->shared[i] > (k ? most : 0))
                return ravel_error_set(err, RAVEL_E_DATA,
                                       "a metadata message has a sample that shares %" PRId64
                                       " tokens with the one before it, of %" PRId64,
                                       meta->shared[i], k ? most : 0);
        }
    return RAVEL_OK;
}

static ravel_status check_groups(const ravel_meta *meta, ravel_error *err) {
    for (int64_t s = 0; meta->group_width && s < meta->micro_steps; s++) {
        int64_t first = meta->group_first[s], width = meta->group_width[s];
        if (width < 1 || width > MOST_WIDTH || first < 0 || first > MOST_WIDTH || first % width)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a metadata message has a group of %" PRId64 " ranks that begins at rank %" PRId64,
                                   width, first);
    }
    return RAVEL_OK;
}

ravel_meta ravel__meta_view(const int64_t *words) {
    ravel_meta m = {.size = sizeof m,
                    .flags = words[FLAGS],
                    .updates = words[UPDATES],
                    .micro_steps = words[STEPS],
                    .samples = words[SAMPLES],
                    .epoch = words[EPOCH],
                    .position = words[POSITION],
                    .batch = words[BATCH]};
    const int64_t *at = words + RAVEL_META_HEAD;
    m.counts = (const ravel_update_counts *)at;
    m.loss_counts = (const ravel_counts *)(at += m.updates * RAVEL_UPDATE_WORDS);
    m.bin_samples = at += m.updates * RAVEL_COUNTS_WORDS;
    if (m.flags & RAVEL_META_HYBRID) {
        m.group_first = at += m.micro_steps;
        m.group_width = at += m.micro_steps;
    }
    m.lengths = at += m.micro_steps;
    m.ids = at += m.samples;
    m.parts = at += m.samples;
    m.loss_tokens = at += m.samples;
    if (m.flags & RAVEL_META_SHARED) m.shared = at += m.samples;
    if (m.flags & RAVEL_META_PROMPTS) m.prompts = at += m.samples;
    RAVEL_ASSERT(at + m.samples == words + words[WORDS] - 1); /* every word has its place */
    return m;
}

ravel_status ravel_meta_decode(const int64_t *words, int64_t count, ravel_meta *meta, ravel_error *err) {
    ravel_status status = check_head(words, count, err);
    if (status) return status;
    ravel_meta m = ravel__meta_view(words);
    status = check_updates(&m, err);
    if (!status) status = check_samples(&m, err);
    if (!status) status = check_groups(&m, err);
    if (!status) status = check_shared(&m, err);
    if (!status) *meta = m;
    return status;
}
