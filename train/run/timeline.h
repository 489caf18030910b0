/* train/run/timeline.h: where the time of each rank goes, as rows of timeline.jsonl in the run folder; ravel report
 * draws it.
 *
 *     {"step": 3, "bubble": 0.31, "bubble_predicted": 0.27, "exposed": 0.12,
 *      "ranks": [{"tp": 0, "cp": 0, "dp": 0, "pp": 0,
 *                 "forward": 0.11, "backward": 0.23, "tp_wait": 0.02, "cp_wait": 0, "pp_wait": 0.1, "finish": 0.03}, ...]}
 *
 * Seconds of the update: computation, waits for ranks of each axis, and `finish`, from the last backward to the end of
 * the optimiser's step (sums of gradients, clip, AdamW). "bubble" is the share of forward and backward that ranks
 * waited for other stages, "exposed" the share that they waited for tensor- and context-parallel ranks. */
#ifndef TRAIN_TIMELINE_H
#define TRAIN_TIMELINE_H

#include "train/run/run.h"

/* Collective over the trainers, after train_run_apply. One row per update, written by rank 0; nothing with one rank. */
ravel_status train_timeline_add(const train_run *run, const ravel_mesh *mesh, const train_parts_time *time,
                                ravel_error *err);

#endif
