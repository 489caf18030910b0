/* The output of ravel feed. */
#include "cli/feed.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static double share(int64_t part, int64_t whole) {
    return whole > 0 ? (double)part / (double)whole : 0;
}

static const char *bytes_text(int64_t bytes, char *out, size_t room) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) value /= 1024, unit++;
    (void)snprintf(out, room, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

/* ---- the live line: metrics of one rank, over which all have been summed already ---- */

ravel_metrics *feed_live_open(int64_t updates) {
    ravel_metrics *live = NULL;
    ravel_metrics_options options;
    ravel_metrics_options_default(&options);
    options.updates = updates;
    if (!cli_live_terminal() || ravel_metrics_create(&options, &live, NULL)) return NULL;
    if (!ravel_metrics_sink(live, "progress", NULL)) return live;
    ravel_metrics_free(live);
    return NULL;
}

void feed_live_update(ravel_metrics *live, const feed_line *line) {
    ravel_lengths_sum sum;
    ravel_metrics_batch batch;
    ravel_feed_batch(&line->update->counts, &sum, &batch);
    ravel_metrics_add_batch(live, &batch);
    (void)ravel_metrics_update(live, line->update->number + 1, NULL);
}

/* ---- lines ---- */

void feed_print_line(const feed_line *line) {
    const ravel_feed_update *u = line->update;
    const ravel_update_counts *c = &u->counts;
    char number[32], sent[32], shared[48] = "";
    int64_t computed = c->tokens - c->shared_tokens;
    if (c->shared_tokens)
        (void)snprintf(shared, sizeof shared, " (%.1f%% shared)", 100 * share(c->shared_tokens, c->tokens));
    (void)snprintf(number, sizeof number, line->total ? "%" PRId64 "/%" PRId64 : "%" PRId64, u->number + 1,
                   line->total);
    printf(" update %s | samples %" PRId64 " | tokens %s%s | micro-steps %" PRId64 " | fill %.1f%% | padding %.1f%% | "
           "fillers %" PRId64 " | feed %.2f ms | exposed %.2f ms | sent %s%s\n",
           number, c->samples, ravel__thousands(c->tokens).text, shared, c->micro_steps,
           100 * share(computed, c->capacity_tokens), 100 * (1 - share(computed, c->padded_tokens)), c->fillers,
           1e3 * line->prepare, 1e3 * line->exposed, bytes_text(line->sent, sent, sizeof sent),
           line->verified ? " | verified" : "");
    (void)fflush(stdout);
}

/* The sum of squares has up to 128 bits; as decimal digits. */
static const char *wide_text(uint64_t low, int64_t high, char out[48]) {
    __extension__ unsigned __int128 value = (unsigned __int128)(uint64_t)high << 64 | low;
    char *at = out + 47;
    RAVEL_ASSERT(high >= 0);
    *at = '\0';
    do *--at = (char)('0' + (int)(value % 10));
    while (value /= 10);
    return at;
}

static void print_counts(FILE *out, const ravel_update_counts *c) {
    char squares[48];
    (void)fprintf(out,
                  "\"micro_steps\":%" PRId64 ",\"samples\":%" PRId64 ",\"tokens\":%" PRId64 ",\"squares\":%s,"
                  "\"loss_tokens\":%" PRId64 ",\"loss_samples\":%" PRId64 ",\"padded_tokens\":%" PRId64
                  ",\"capacity_tokens\":%" PRId64 ",\"bins\":%" PRId64 ",\"fillers\":%" PRId64 ",\"shortest\":%" PRId64
                  ",\"longest\":%" PRId64 ",\"skipped\":%" PRId64 ",\"shared_tokens\":%" PRId64,
                  c->micro_steps, c->samples, c->tokens, wide_text(c->squares_low, c->squares_high, squares),
                  c->loss_tokens, c->loss_samples, c->padded_tokens, c->capacity_tokens, c->bins, c->fillers,
                  c->shortest, c->longest, c->skipped, c->shared_tokens);
}

void feed_print_json(FILE *out, const feed_line *line, const char *cursor) {
    const ravel_feed_update *u = line->update;
    (void)fprintf(out, "{\"update\":%" PRId64 ",\"batch\":%" PRId64 ",\"update_in_batch\":%" PRId64 ",\"cursor\":%s,",
                  u->number, u->batch, u->update_in_batch, cursor);
    print_counts(out, &u->counts);
    (void)fprintf(out, ",\"sent_bytes\":%" PRId64 ",\"needed_bytes\":%" PRId64 ",\"kept_bytes\":%" PRId64, line->sent,
                  line->needed, line->kept);
    (void)fprintf(out, ",\"prepare_sec\":%.6f,\"exposed_sec\":%.6f,\"phases\":{", line->prepare, line->exposed);
    for (int32_t p = 0; ravel_feed_phase_name(p); p++)
        (void)fprintf(out, "%s\"%s\":%.6f", p ? "," : "", ravel_feed_phase_name(p), u->phase_sec[p]);
    (void)fprintf(out, "}");
    if (u->plan)
        (void)fprintf(out, ",\"plan\":{\"idle_micro_step\":%.6f,\"idle_update\":%.6f,\"slowdown\":%.6f}",
                      u->plan->idle_micro_step, u->plan->idle_update, u->plan->slowdown);
    (void)fprintf(out, "%s}\n", line->verified ? ",\"verified\":true" : "");
}

void feed_add(feed_totals *t, const feed_line *line) {
    const ravel_update_counts *c = &line->update->counts;
    RAVEL_ASSERT(c->shared_tokens >= 0 && c->tokens - c->shared_tokens <= c->padded_tokens);
    RAVEL_ASSERT(line->wall >= 0 && line->sent >= 0);
    t->updates++;
    t->samples += c->samples;
    t->tokens += c->tokens;
    t->shared += c->shared_tokens;
    t->padded += c->padded_tokens;
    t->capacity += c->capacity_tokens;
    t->loss_tokens += c->loss_tokens;
    t->fillers += c->fillers;
    t->bins += c->bins;
    t->skipped += c->skipped;
    t->wall += line->wall;
    t->exposed += line->exposed;
    if (line->update->update_in_batch) return; /* the rest is of the whole batch */
    t->sent += line->sent;
    t->needed += line->needed;
    t->kept += line->kept;
    t->prepare += line->prepare;
}

static const char *s_of(int64_t count) {
    return count == 1 ? "" : "s";
}

void feed_print_totals(const feed_totals *t, const ravel_feed_stats *stats, int32_t ranks, const char *kind) {
    int processes = strcmp(kind, "mpi") == 0 || strcmp(kind, "tcp") == 0;
    char a[32], b[32];
    int64_t computed = t->tokens - t->shared;
    RAVEL_ASSERT(ranks > 0 && t->loss_tokens <= t->tokens && computed <= t->padded);
    printf("\n%" PRId64 " update%s, %s sample%s, %s tokens (%s with loss) on %d rank%s %s%s\n", t->updates,
           s_of(t->updates), ravel__thousands(t->samples).text, s_of(t->samples), ravel__thousands(t->tokens).text,
           ravel__thousands(t->loss_tokens).text, ranks, s_of(ranks), processes ? "over " : "in one process",
           processes ? kind : "");
    printf("  fill      %.2f %% of capacity, padding %.2f %%, %" PRId64 " bin%s and %" PRId64 " filler%s\n",
           100 * share(computed, t->capacity), t->padded ? 100 * (1 - share(computed, t->padded)) : 0.0, t->bins,
           s_of(t->bins), t->fillers, s_of(t->fillers));
    if (t->shared)
        printf("  shared    %s tokens (%.1f %%) are computed once for several samples\n",
               ravel__thousands(t->shared).text, 100 * share(t->shared, t->tokens));
    if (t->skipped) printf("  skipped   %" PRId64 " samples that fit no bin\n", t->skipped);
    printf(
        "  time      %.3f s, of which the consumer waited %.3f s (%.1f %%); preparing took %.3f s on the slowest rank\n",
        t->wall, t->exposed, t->wall > 0 ? 100 * t->exposed / t->wall : 0, t->prepare);
    printf("  phases   ");
    for (int32_t p = 0; ravel_feed_phase_name(p); p++)
        printf(" %s %.1f%s", ravel_feed_phase_name(p), 1e3 * stats->phase_sec[p],
               p < RAVEL_FEED_PHASES - 1 ? "," : " ms on rank 0\n");
    printf("  bytes     %s sent (%.3f of what had to move), %s stayed on their rank\n",
           bytes_text(t->sent, a, sizeof a), t->needed ? (double)t->sent / (double)t->needed : 1.0,
           bytes_text(t->kept, b, sizeof b));
    printf("  memory    %s on rank 0\n", bytes_text(stats->memory_bytes, a, sizeof a));
    if (stats->reader.skipped || stats->reader.truncated)
        printf("  rows      %" PRId64 " bad ones skipped, %" PRId64 " samples cut, on rank 0\n", stats->reader.skipped,
               stats->reader.truncated);
}
