#include "train/run/timeline.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <stdio.h>

/* Seconds of one rank, gathered as doubles. */
typedef struct spans {
    train_parts_time time;
    double pp, finish; /* waits for other stages; the end of the update */
} spans;

enum { SPANS = sizeof(spans) / sizeof(double) };
_Static_assert(sizeof(spans) % sizeof(double) == 0, "doubles alone, sent as an array");

static void write_rank(FILE *f, const ravel_mesh_layout *layout, int32_t rank, const spans *s) {
    ravel_mesh_coord at = ravel_mesh_locate(layout, rank);
    RAVEL_ASSERT(rank >= 0 && rank < layout->ranks);
    (void)fprintf(f, "%s{\"tp\": %d, \"cp\": %d, \"dp\": %d, \"pp\": %d", rank ? ", " : "", at.tp, at.cp, at.dp, at.pp);
    (void)fprintf(f, ", \"forward\": %.6g, \"backward\": %.6g, \"tp_wait\": %.6g, \"cp_wait\": %.6g", s->time.forward,
                  s->time.backward, s->time.tp + s->time.ep, s->time.cp);
    (void)fprintf(f, ", \"pp_wait\": %.6g, \"finish\": %.6g, \"seconds\": %.6g, \"predicted\": %.6g}", s->pp, s->finish,
                  s->time.seconds, s->time.predicted);
}

/* Nothing depends on this file, so write errors are ignored; a full disk is reported by the next checkpoint. */
static void write_row(const train_run *run, const ravel_mesh_layout *layout, const spans *all) {
    char path[TRAIN_PATH];
    double seconds = 0, bubble = 0, exposed = 0, predicted = 0;
    RAVEL_ASSERT(run->rank == 0 && layout->ranks > 1);
    FILE *f = train_path_join(path, run->folder, "timeline.jsonl", NULL) ? NULL : fopen(path, "a");
    if (!f) return;
    for (int32_t r = 0; r < layout->ranks; r++) {
        seconds += all[r].time.seconds;
        bubble += all[r].pp;
        exposed += all[r].time.tp + all[r].time.cp + all[r].time.ep;
        predicted += all[r].time.predicted / layout->ranks;
    }
    if (!(seconds > 0)) seconds = 1;
    (void)fprintf(f, "{\"step\": %lld, \"bubble\": %.6g, \"bubble_predicted\": %.6g, \"exposed\": %.6g, \"ranks\": [",
                  (long long)run->state.step, bubble / seconds, predicted, exposed / seconds);
    for (int32_t r = 0; r < layout->ranks; r++) write_rank(f, layout, r, &all[r]);
    (void)fprintf(f, "]}\n");
    (void)fclose(f);
}

ravel_status train_timeline_add(const train_run *run, const ravel_mesh *mesh, const train_parts_time *time,
                                ravel_error *err) {
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(mesh);
    size_t bytes = (size_t)layout->ranks * sizeof(spans);
    spans mine = {.time = *time, .finish = run->finish_seconds};
    if (train_layout_pp(layout) > 1) mine.pp = time->seconds - time->busy;
    if (layout->ranks == 1) return RAVEL_OK;
    RAVEL_ASSERT(layout->ranks == ravel_comm_size(run->comm));
    spans *all = ravel__alloc(NULL, bytes);
    ravel_status status = all ? RAVEL_OK : ravel__no_memory(err, bytes, "the timeline");
    status = ravel_agree(run->comm, status, err);
    if (!status) status = ravel_comm_allgather(run->comm, &mine, all, SPANS, RAVEL_F64, err);
    if (!status && all && run->rank == 0) write_row(run, layout, all);
    ravel__release(NULL, all, bytes);
    return status;
}
