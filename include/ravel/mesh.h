/* ravel/mesh.h: the rank layout. tp x cp x dp x pp, in any order, and the groups that it is made of.
 *
 * Nouns
 *   axis    tp (tensor), cp (context), dp (data), pp (pipeline). A set of axes is their bits or-ed together.
 *   order   which axis varies fastest from rank to rank: "tp-cp-dp-pp" numbers tp first. Any permutation; the same
 *           strings mean the same as in Megatron (an "ep" in it is passed over; an axis of size 1 may be left out).
 *   group   the ranks that differ in a set of axes only and agree in all others. "The tp group" of a rank is its group
 *           of the axis tp; {dp, cp} is what gradients are summed over.
 *   chunk   pp stages are cut into `vpp` chunks (interleaved pipeline); chunk c of stage p is model part c * pp + p.
 *
 * Two rungs
 *   pure functions      rank to coordinates and back, and the list of groups: for planners and tests, no communicator.
 *   ravel_mesh_create   the same with communicators; each rank's coordinates are its ranks in them.
 *
 *     ravel_mesh_options options;
 *     ravel_mesh_options_default(&options);
 *     options.tp = 2, options.pp = 3;                               dp = 0: whatever is left
 *     ravel_mesh *mesh;
 *     if (ravel_mesh_create(comm, &options, &mesh, &err)) ...
 *     ravel_comm *tp = ravel_mesh_comm(mesh, RAVEL_AXIS_TP);        belongs to the mesh
 *     int32_t stage = ravel_mesh_coords(mesh).pp;
 *     ravel_mesh_free(mesh);                                        comm is still the caller's
 */
#ifndef RAVEL_MESH_H
#define RAVEL_MESH_H

#include <ravel/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ravel_axis { RAVEL_AXIS_TP = 1, RAVEL_AXIS_CP = 2, RAVEL_AXIS_DP = 4, RAVEL_AXIS_PP = 8 } ravel_axis;

typedef struct ravel_mesh_options {
    size_t size;       /* sizeof(ravel_mesh_options), set by ravel_mesh_options_default */
    int32_t tp, cp;    /* 1 */
    int32_t dp;        /* 0: the number of ranks / (tp * cp * pp) */
    int32_t pp, vpp;   /* 1 */
    int32_t reserved;  /* 0 */
    const char *order; /* "tp-cp-dp-pp" */
} ravel_mesh_options;

RAVEL_API void ravel_mesh_options_default(ravel_mesh_options *options);
RAVEL_API ravel_option_table ravel_mesh_option_table(void);

typedef struct ravel_mesh_coord {
    int32_t tp, cp, dp, pp;
} ravel_mesh_coord;

/* ---- pure ----------------------------------------------------------------------------------------------- */

/* A checked shape: sizes by axis (tp, cp, dp, pp), and the distance between ranks that differ by one in that axis. */
typedef struct ravel_mesh_layout {
    int32_t sizes[4];
    int32_t strides[4];
    int32_t ranks; /* the product of the sizes */
    int32_t vpp;
    int32_t order[4]; /* order[0] is the index of the fastest axis: 0 tp, 1 cp, 2 dp, 3 pp */
} ravel_mesh_layout;

/* E_ARGUMENT says what is wrong: a size below 1, a product that is not `ranks`, an order that is no permutation. With
 * ranks = 0 any product is allowed, and dp must be given. */
RAVEL_API ravel_status ravel_mesh_plan(const ravel_mesh_options *options, int32_t ranks, ravel_mesh_layout *layout,
                                       ravel_error *err);
/* rank must be in 0 .. ranks-1, coordinates below the sizes; -1 and all -1 otherwise. */
RAVEL_API ravel_mesh_coord ravel_mesh_locate(const ravel_mesh_layout *layout, int32_t rank);
RAVEL_API int32_t ravel_mesh_rank_at(const ravel_mesh_layout *layout, ravel_mesh_coord coord);

/* Ranks in one group of these axes, and how many such groups there are; 0 for bits that are no axes. */
RAVEL_API int32_t ravel_mesh_group_size(const ravel_mesh_layout *layout, int32_t axes);
/* The group of `rank`, and its place in it: groups are numbered, and members ordered, by their coordinates in the
 * mesh's order, fastest axis first (as Megatron does). */
RAVEL_API int32_t ravel_mesh_group_of(const ravel_mesh_layout *layout, int32_t axes, int32_t rank);
RAVEL_API int32_t ravel_mesh_index_in(const ravel_mesh_layout *layout, int32_t axes, int32_t rank);
/* All groups one after the other: members[ranks], group g is members[g * group_size ...]. */
RAVEL_API void ravel_mesh_groups(const ravel_mesh_layout *layout, int32_t axes, int32_t *members);

/* "tp-dp" to RAVEL_AXIS_TP | RAVEL_AXIS_DP. */
RAVEL_API ravel_status ravel_mesh_axes_parse(const char *text, int32_t *axes, ravel_error *err);

/* ---- with communicators --------------------------------------------------------------------------------- */

typedef struct ravel_mesh ravel_mesh;

/* Collective. Makes the communicators tp, cp, dp, pp, dp-cp and tp-cp; fails on every rank if the ranks' options
 * differ (E_MISMATCH names them). comm stays the caller's and must outlive the mesh. */
RAVEL_API ravel_status ravel_mesh_create(ravel_comm *comm, const ravel_mesh_options *options, ravel_mesh **mesh,
                                         ravel_error *err);
RAVEL_API void ravel_mesh_free(ravel_mesh *mesh);

RAVEL_API const ravel_mesh_layout *ravel_mesh_get_layout(const ravel_mesh *mesh);
RAVEL_API ravel_mesh_coord ravel_mesh_coords(const ravel_mesh *mesh);
/* The communicator that the mesh was made of. */
RAVEL_API ravel_comm *ravel_mesh_world(const ravel_mesh *mesh);
/* This rank's group of these axes, owned by the mesh; NULL if it was not made. All four axes: the world. */
RAVEL_API ravel_comm *ravel_mesh_comm(const ravel_mesh *mesh, int32_t axes);
/* Collective. Makes a further one, e.g. tp-pp (the model); nothing to do if it is there already. */
RAVEL_API ravel_status ravel_mesh_add(ravel_mesh *mesh, int32_t axes, ravel_error *err);

/* Whether chunk c (0 .. vpp-1) of this rank's stage is the first, the last part of the model. */
RAVEL_API int32_t ravel_mesh_is_first(const ravel_mesh *mesh, int32_t chunk);
RAVEL_API int32_t ravel_mesh_is_last(const ravel_mesh *mesh, int32_t chunk);

#ifdef __cplusplus
}
#endif
#endif
