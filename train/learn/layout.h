/* train/learn/layout.h: which part of a model each rank of a mesh has, and which meshes a model can be cut for. Pure.
 *
 * The layers are cut into pp * vpp parts, as evenly as possible; part c * pp + p is chunk c of stage p. The first part
 * has the embedding, the last one the last norm and the head. Within a part, tensor-parallel ranks share every matrix
 * (train/model/params.h); context-parallel and data-parallel ranks hold the same parameters. */
#ifndef TRAIN_LAYOUT_H
#define TRAIN_LAYOUT_H

#include <ravel/mesh.h>
#include <ravel/shape.h>

#include "train/model/params.h"

enum { TRAIN_CHUNKS = 16 }; /* the most chunks of a stage */

/* The mesh of `ranks` ranks (0: as many as the mesh has; dp 0 is then 1). E_ARGUMENT says why the model or the ranks do
 * not allow it, and names the nearest mesh that they do. */
ravel_status train_layout_plan(const ravel_mesh_options *mesh, int32_t ranks, const ravel_shape *shape,
                               ravel_mesh_layout *layout, ravel_error *err);

/* Parts of the model, and what one of them holds on one tensor-parallel rank. */
int32_t train_layout_parts(const ravel_mesh_layout *layout);
train_slice train_layout_slice(const ravel_mesh_layout *layout, const ravel_shape *shape, int32_t part,
                               int32_t tp_rank);
/* Whether `ep` ranks can share out the experts: it divides dp * cp and the experts. E_ARGUMENT says what would. */
ravel_status train_layout_check_ep(const ravel_mesh_layout *layout, const ravel_shape *shape, int32_t ep,
                                   ravel_error *err);
/* Sizes by axis. */
static inline int32_t train_layout_tp(const ravel_mesh_layout *layout) {
    return layout->sizes[0];
}
static inline int32_t train_layout_cp(const ravel_mesh_layout *layout) {
    return layout->sizes[1];
}
static inline int32_t train_layout_pp(const ravel_mesh_layout *layout) {
    return layout->sizes[3];
}
/* "tp 2 x cp 1 x dp 4 x pp 2"; vpp where it is not 1. */
void train_layout_text(const ravel_mesh_layout *layout, char *text, size_t bytes);

#endif
