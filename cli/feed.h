/* ravel feed, in parts:
 *
 *   feed.c          the command: options, ranks, the loop over updates
 *   feed_report.c   its output: a live line on a terminal, else a line per update; JSON lines; the summary */
#ifndef CLI_FEED_H
#define CLI_FEED_H

#include "cli/cli.h"

#include <ravel/feed.h>

#include <stdio.h>

/* The command's own flags. */
typedef struct feed_flags {
    int32_t ranks, verify, quiet, mtp_stage;
    double consume_ms;
    const char *json, *cost, *resume, *save;
} feed_flags;

/* An update over all ranks. */
typedef struct feed_line {
    const ravel_feed_update *update; /* of rank 0 */
    int64_t total;                   /* updates that are to come, 0: not known */
    int64_t sent, needed, kept;      /* bytes, summed over ranks */
    double prepare, exposed;         /* seconds, of the slowest rank */
    double wall;                     /* since the last update */
    int verified;
} feed_line;

typedef struct feed_totals {
    int64_t updates, samples, tokens, shared, padded, capacity, loss_tokens, fillers, bins, skipped;
    int64_t sent, needed, kept;
    double prepare, exposed, wall;
} feed_totals;

/* The live line on standard error; NULL if that is no terminal. Freed with ravel_metrics_free. */
ravel_metrics *feed_live_open(int64_t updates);
void feed_live_update(ravel_metrics *live, const feed_line *line);
void feed_print_line(const feed_line *line);
void feed_print_json(FILE *out, const feed_line *line, const char *cursor);
void feed_add(feed_totals *totals, const feed_line *line);
/* `kind`: of the communicator, as ravel_comm_kind has it. */
void feed_print_totals(const feed_totals *totals, const ravel_feed_stats *stats, int32_t ranks, const char *kind);

#endif
