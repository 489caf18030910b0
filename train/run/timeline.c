#include "train/run/timeline.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <stdio.h>

/* X(field, JSON key): seconds of one rank, in the order in which they are gathered. */
#define SPAN_LIST(X)        \
    X(forward, "forward")   \
    X(backward, "backward") \
    X(tp, "tp_wait")        \
    X(cp, "cp_wait")        \
    X(pp, "pp_wait")        \
    X(finish, "finish")     \
    X(seconds, "seconds")   \
    X(predicted, "predicted")

typedef struct spans {
#define X(field, key) double field;
    SPAN_LIST(X)
#undef X
} spans;

enum { SPANS = sizeof(spans) / sizeof(double) };
_Static_assert(sizeof(spans) % sizeof(double) == 0, "doubles alone, sent as an array");

static void write_rank(FILE *f, const ravel_mesh_layout *layout, int32_t rank, const spans *s) {
    ravel_mesh_coord at = ravel_mesh_locate(layout, rank);
    TRAIN_ASSERT(rank >= 0 && rank < layout->ranks);
    (void)fprintf(f, "%s{\"tp\": %d, \"cp\": %d, \"dp\": %d, \"pp\": %d", rank ? ", " : "", at.tp, at.cp, at.dp, at.pp);
#define X(field, key) (void)fprintf(f, ", \"" key "\": %.6g", s->field);
    SPAN_LIST(X)
#undef X
    (void)fprintf(f, "}");
}

/* Nothing depends on this file, so write errors are ignored; a full disk is reported by the next checkpoint. */
static void write_row(const train_run *run, const ravel_mesh_layout *layout, const spans *all) {
    char path[TRAIN_PATH];
    double seconds = 0, bubble = 0, exposed = 0, predicted = 0;
    TRAIN_ASSERT(run->rank == 0 && layout->ranks > 1);
    FILE *f = train_path_join(path, run->folder, "timeline.jsonl", NULL) ? NULL : fopen(path, "a");
    if (!f) return;
    for (int32_t r = 0; r < layout->ranks; r++) {
        seconds += all[r].seconds;
        bubble += all[r].pp;
        exposed += all[r].tp + all[r].cp;
        predicted += all[r].predicted / layout->ranks;
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
    spans mine = {.forward = time->forward,
                  .backward = time->backward,
                  .tp = time->tp,
                  .cp = time->cp,
                  .pp = train_layout_pp(layout) > 1 ? time->seconds - time->busy : 0,
                  .finish = run->finish_seconds,
                  .seconds = time->seconds,
                  .predicted = time->predicted};
    if (layout->ranks == 1) return RAVEL_OK;
    TRAIN_ASSERT(layout->ranks == ravel_comm_size(run->comm));
    spans *all = train__alloc(NULL, bytes);
    ravel_status status = all ? RAVEL_OK : train__no_memory(err, bytes, "the timeline");
    status = ravel_agree(run->comm, status, err);
    if (!status) status = ravel_comm_allgather(run->comm, &mine, all, SPANS, RAVEL_F64, err);
    if (!status && all && run->rank == 0) write_row(run, layout, all);
    train__release(NULL, all, bytes);
    return status;
}
