#include "train/learn/layout.h"

#include "base/assert.h"
#include "train/learn/pipeline.h"
#include "train/model/model.h"

#include <math.h>
#include <stdio.h>

/* ---- parts ---------------------------------------------------------------------------------------------- */

int32_t train_layout_parts(const ravel_mesh_layout *layout) {
    RAVEL_ASSERT(layout->vpp >= 1 && train_layout_pp(layout) >= 1);
    return train_layout_pp(layout) * layout->vpp;
}

train_slice train_layout_slice(const ravel_mesh_layout *layout, const ravel_shape *shape, int32_t part,
                               int32_t tp_rank) {
    int64_t parts = train_layout_parts(layout);
    RAVEL_ASSERT(part >= 0 && part < parts && tp_rank >= 0 && tp_rank < train_layout_tp(layout));
    RAVEL_ASSERT(shape->layers >= parts);
    return (train_slice){.first_layer = shape->layers * part / parts,
                         .last_layer = shape->layers * (part + 1) / parts,
                         .tp = train_layout_tp(layout),
                         .tp_rank = tp_rank};
}

void train_layout_text(const ravel_mesh_layout *layout, char *text, size_t bytes) {
    const int32_t *s = layout->sizes;
    RAVEL_ASSERT(bytes > 0 && s[0] > 0 && s[1] > 0 && s[2] > 0 && s[3] > 0);
    int used = snprintf(text, bytes, "tp %d x cp %d x dp %d x pp %d", s[0], s[1], s[2], s[3]);
    if (layout->vpp > 1 && used > 0 && (size_t)used < bytes)
        (void)snprintf(text + used, bytes - (size_t)used, " with vpp %d", layout->vpp);
}

/* ---- possible meshes ----------------------------------------------------------------------------------- */

/* Whether the model can be cut for the mesh. */
static ravel_status check_model(const ravel_mesh_layout *layout, const ravel_shape *shape, ravel_error *err) {
    ravel_shape local;
    int32_t pp = train_layout_pp(layout), vpp = layout->vpp;
    train_slice part = {.tp = train_layout_tp(layout)};
    ravel_status status = train_pipeline_check(&(train_pipeline){pp, vpp, 0}, err);
    if (!status) status = train_slice_shape(shape, &part, &local, err);
    if (status) return status;
    if (vpp > TRAIN_CHUNKS || train_pipeline_flights(pp, vpp, 0, 0) > TRAIN_FLIGHTS)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "pp %d with vpp %d holds %d micro-batches on the first stage; the trainer holds up to %d", pp, vpp,
            train_pipeline_flights(pp, vpp, 0, 0), TRAIN_FLIGHTS);
    if (shape->layers < (int64_t)pp * vpp)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "pp %d x vpp %d cuts the model into %d parts; it has %lld layers",
                               pp, vpp, pp * vpp, (long long)shape->layers);
    return RAVEL_OK;
}

static double far(int32_t a, int32_t b) {
    return fabs(log2((double)(a > 0 ? a : 1)) - log2((double)(b > 0 ? b : 1)));
}

static double distance(const ravel_mesh_options *wanted, const ravel_mesh_options *m) {
    double d = far(wanted->tp, m->tp) + far(wanted->cp, m->cp) + far(wanted->pp, m->pp) + far(wanted->vpp, m->vpp);
    return wanted->dp > 0 ? d + far(wanted->dp, m->dp) : d;
}

/* Every mesh of `ranks` ranks up to vpp 4 that the model allows, and the nearest of them. Where the number of ranks is
 * not given, dp is kept. */
static int find_nearest(const ravel_mesh_options *wanted, int32_t ranks, const ravel_shape *shape,
                        ravel_mesh_options *nearest) {
    int32_t most = ranks ? ranks : 64;
    RAVEL_ASSERT(ranks >= 0);
    double least = HUGE_VAL;
    ravel_mesh_options m = *wanted;
    ravel_mesh_layout layout;
    for (m.tp = 1; m.tp <= most; m.tp++)
        for (m.cp = 1; m.cp <= most / m.tp; m.cp++)
            for (m.pp = 1; m.pp <= most / m.tp / m.cp; m.pp++)
                for (m.vpp = 1; m.vpp <= 4; m.vpp++) {
                    m.dp = ranks ? ranks / (m.tp * m.cp * m.pp) : wanted->dp > 0 ? wanted->dp : 1;
                    if (distance(wanted, &m) >= least || ravel_mesh_plan(&m, ranks, &layout, NULL) ||
                        check_model(&layout, shape, NULL))
                        continue;
                    least = distance(wanted, &m);
                    *nearest = m;
                }
    return least < HUGE_VAL;
}

ravel_status train_layout_plan(const ravel_mesh_options *mesh, int32_t ranks, const ravel_shape *shape,
                               ravel_mesh_layout *layout, ravel_error *err) {
    ravel_mesh_options wanted = *mesh, near = *mesh;
    ravel_error why = RAVEL_ERROR_INIT;
    if (!ranks && wanted.dp == 0) wanted.dp = 1;
    ravel_status status = ravel_mesh_plan(&wanted, ranks, layout, &why);
    if (!status) status = check_model(layout, shape, &why);
    if (!status) return RAVEL_OK;
    if (!find_nearest(&wanted, ranks, shape, &near)) return ravel_error_set(err, status, "%s", why.message);
    return ravel_error_set(err, status,
                           "%s; the nearest mesh that is possible: --tp %d --cp %d --dp %d --pp %d --vpp %d",
                           why.message, near.tp, near.cp, near.dp, near.pp, near.vpp);
}

ravel_status train_layout_check_ep(const ravel_mesh_layout *layout, const ravel_shape *shape, int32_t ep,
                                   ravel_error *err) {
    int32_t ranks = ravel_mesh_group_size(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP), near = ep;
    if (ep <= 1) return RAVEL_OK;
    if (!shape->experts) return ravel_error_set(err, RAVEL_E_ARGUMENT, "--ep %d: the model has no experts", ep);
    if (ranks % ep == 0 && shape->experts % ep == 0) return RAVEL_OK;
    while (ranks % near || shape->experts % near) near--;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "--ep %d does not divide %d ranks of dp x cp and %lld experts; --ep %d does", ep, ranks,
                           (long long)shape->experts, near);
}
