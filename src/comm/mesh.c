/* The mesh: rank = sum over axes of coordinate * stride, strides being the running product of sizes in the order that
 * was asked for. Everything else (coordinates, groups, places in groups) follows from sizes and strides, so no formula
 * here holds for one order only.
 *
 *     order tp-dp-pp, sizes 2 x 3 x 2:    stride of tp 1, dp 2, pp 6
 *         pp 0:   dp 0: 0 1   dp 1: 2 3   dp 2: 4 5           the dp group of rank 1 is {1, 3, 5}
 *         pp 1:         6 7         8 9        10 11
 */
#include <ravel/mesh.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/options.h"
#include "comm/agree.h"
#include "comm/backend.h" /* the communicator's allocator */

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { AXES = 4, ALL_AXES = 15, SETS = 16 };

static const char axis_names[AXES][3] = {"tp", "cp", "dp", "pp"};

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_mesh_options, __VA_ARGS__)

static const ravel_option option_table[] = {
    ROW("tp", I32, tp, "1", 1, 1 << 20, NULL, "tensor-parallel ranks"),
    ROW("cp", I32, cp, "1", 1, 1 << 20, NULL, "context-parallel ranks"),
    ROW("dp", I32, dp, "0", 0, 1 << 20, NULL, "data-parallel ranks; 0: as many as are left"),
    ROW("pp", I32, pp, "1", 1, 1 << 20, NULL, "pipeline stages"),
    ROW("vpp", I32, vpp, "1", 1, 1 << 20, NULL, "chunks of a pipeline stage (interleaved)"),
    ROW("order", STRING, order, "tp-cp-dp-pp", 0, 0, NULL,
        "which axis varies fastest from rank to rank, like tp-cp-dp-pp"),
    {NULL, 0, 0, NULL, 0, 0, NULL, NULL},
};

ravel_option_table ravel_mesh_option_table(void) {
    return option_table;
}

void ravel_mesh_options_default(ravel_mesh_options *options) {
    ravel__options_preset(option_table, options, sizeof *options);
}

/* ---- axes in words -------------------------------------------------------------------------------------- */

/* The axis that a two-letter word names: 0 .. 3, 4 for ep, -1 for none. */
static int axis_of(const char *word, size_t length) {
    char low[2];
    if (length != 2) return -1;
    for (int i = 0; i < 2; i++) low[i] = (char)tolower((unsigned char)word[i]);
    for (int a = 0; a < AXES; a++)
        if (memcmp(low, axis_names[a], 2) == 0) return a;
    return memcmp(low, "ep", 2) == 0 ? AXES : -1;
}

/* The axes of "a-b-c" into list; returns how many, or -1 with a sentence. */
static int parse_axes(const char *text, int *list, const char *what, ravel_error *err) {
    int count = 0, seen = 0;
    for (const char *word = text;;) {
        size_t length = strcspn(word, "-");
        int axis = axis_of(word, length);
        if (axis < 0 || seen >> axis & 1) {
            ravel_error_set(err, RAVEL_E_ARGUMENT,
                            "%s \"%.40s\": \"%.*s\" %s; write tp, cp, dp and pp joined by '-', like tp-cp-dp-pp", what,
                            text, (int)(length < 20 ? length : 20), word,
                            axis < 0 ? "is not an axis" : "is given twice");
            return -1;
        }
        seen |= 1 << axis;
        if (axis < AXES) list[count++] = axis;
        if (!word[length]) return count;
        word += length + 1;
    }
}

ravel_status ravel_mesh_axes_parse(const char *text, int32_t *axes, ravel_error *err) {
    int list[AXES], count = parse_axes(text, list, "axes", err);
    if (count < 0) return RAVEL_E_ARGUMENT;
    int32_t bits = 0;
    for (int i = 0; i < count; i++) bits |= 1 << list[i];
    *axes = bits;
    return RAVEL_OK;
}

static void name_axes(int32_t axes, char *text, size_t bytes) {
    RAVEL_ASSERT(axes > 0 && axes <= ALL_AXES);
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? "-" : "", axis_names[a]);
}

/* ---- layout --------------------------------------------------------------------------------------------- */

/* sizes[] with dp worked out; the product must be `ranks` (0: anything). */
static ravel_status take_sizes(const ravel_mesh_options *o, int32_t ranks, ravel_mesh_layout *layout,
                               ravel_error *err) {
    int64_t others = (int64_t)o->tp * o->cp, dp = o->dp;
    if (others <= INT32_MAX) others *= o->pp;
    if (dp == 0 && ranks == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "dp is 0, and there is not a number of ranks to work it out from");
    if (dp == 0 && (others > ranks || ranks % others != 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "tp %d x cp %d x pp %d is %lld, which does not divide %d ranks; change a size or start "
                               "a multiple of %lld",
                               o->tp, o->cp, o->pp, (long long)others, ranks, (long long)others);
    if (dp == 0) dp = ranks / others;
    int64_t product = others <= INT32_MAX ? others * dp : others;
    if (product > INT32_MAX || (ranks && product != ranks))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "tp %d x cp %d x dp %lld x pp %d is %lld, but there are %d ranks; they must be equal",
                               o->tp, o->cp, (long long)dp, o->pp, (long long)product, ranks);
    RAVEL_ASSERT(dp > 0 && product > 0 && others * dp == product);
    int32_t sizes[AXES] = {o->tp, o->cp, (int32_t)dp, o->pp};
    memcpy(layout->sizes, sizes, sizeof sizes);
    layout->ranks = (int32_t)product;
    return RAVEL_OK;
}

/* order[] and strides[]; an axis that the text leaves out comes last, and must be of size 1. */
static ravel_status take_order(const char *text, ravel_mesh_layout *layout, ravel_error *err) {
    int list[AXES], count = parse_axes(text, list, "order", err), stride = 1, seen = 0;
    if (count < 0) return RAVEL_E_ARGUMENT;
    for (int i = 0; i < count; i++) seen |= 1 << list[i];
    for (int a = 0; a < AXES; a++) {
        if (seen >> a & 1) continue;
        if (layout->sizes[a] != 1)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "order \"%.40s\" leaves out %s, which has size %d", text,
                                   axis_names[a], layout->sizes[a]);
        list[count++] = a;
    }
    for (int i = 0; i < AXES; i++) {
        layout->order[i] = list[i];
        layout->strides[list[i]] = stride;
        stride *= layout->sizes[list[i]];
    }
    return RAVEL_OK;
}

/* Every axis is once in the order, and its stride is the product of the sizes before it. */
static bool layout_ok(const ravel_mesh_layout *l) {
    int seen = 0, stride = 1;
    for (int i = 0; i < AXES; i++) {
        int axis = l->order[i];
        if (axis < 0 || axis >= AXES || seen >> axis & 1 || l->sizes[axis] < 1 || l->strides[axis] != stride)
            return false;
        seen |= 1 << axis;
        stride *= l->sizes[axis];
    }
    return stride == l->ranks;
}

ravel_status ravel_mesh_plan(const ravel_mesh_options *options, int32_t ranks, ravel_mesh_layout *layout,
                             ravel_error *err) {
    ravel_mesh_options o;
    ravel_mesh_layout made = {.vpp = 1};
    ravel_mesh_options_default(&o);
    if (options && (options->size < offsetof(ravel_mesh_options, order) || options->size > 4096))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "ravel_mesh_options.size is %zu; fill the struct with ravel_mesh_options_default",
                               options->size);
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    ravel_status status = ravel__check_options(option_table, &o, err);
    if (!status && ranks < 0) status = ravel_error_set(err, RAVEL_E_ARGUMENT, "%d is not a number of ranks", ranks);
    if (!status) status = take_sizes(&o, ranks, &made, err);
    if (!status) status = take_order(o.order ? o.order : "tp-cp-dp-pp", &made, err);
    if (status) return status;
    RAVEL_ASSERT(layout_ok(&made));
    made.vpp = o.vpp;
    *layout = made;
    return RAVEL_OK;
}

static int32_t coordinate(const ravel_mesh_layout *l, int axis, int32_t rank) {
    RAVEL_ASSERT(rank >= 0 && rank < l->ranks && l->strides[axis] > 0 && l->sizes[axis] > 0);
    return rank / l->strides[axis] % l->sizes[axis];
}

ravel_mesh_coord ravel_mesh_locate(const ravel_mesh_layout *layout, int32_t rank) {
    ravel_mesh_coord none = {-1, -1, -1, -1};
    if (rank < 0 || rank >= layout->ranks) return none;
    ravel_mesh_coord c = {coordinate(layout, 0, rank), coordinate(layout, 1, rank), coordinate(layout, 2, rank),
                          coordinate(layout, 3, rank)};
    return c;
}

int32_t ravel_mesh_rank_at(const ravel_mesh_layout *layout, ravel_mesh_coord coord) {
    int32_t at[AXES] = {coord.tp, coord.cp, coord.dp, coord.pp}, rank = 0;
    for (int a = 0; a < AXES; a++) {
        if (at[a] < 0 || at[a] >= layout->sizes[a]) return -1;
        rank += at[a] * layout->strides[a];
    }
    return rank;
}

/* ---- groups --------------------------------------------------------------------------------------------- */

int32_t ravel_mesh_group_size(const ravel_mesh_layout *layout, int32_t axes) {
    int32_t size = 1;
    if (axes & ~ALL_AXES) return 0;
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) size *= layout->sizes[a];
    return size;
}

/* The rank's coordinates in some of the axes as one number, fastest axis of the mesh first. */
static int32_t index_of(const ravel_mesh_layout *l, int32_t axes, int32_t rank) {
    int32_t index = 0, stride = 1;
    if (rank < 0 || rank >= l->ranks || axes & ~ALL_AXES) return -1;
    for (int i = 0; i < AXES; i++) {
        int axis = l->order[i];
        if (!(axes >> axis & 1)) continue;
        index += coordinate(l, axis, rank) * stride;
        stride *= l->sizes[axis];
    }
    RAVEL_ASSERT(index >= 0 && index < stride);
    return index;
}

int32_t ravel_mesh_group_of(const ravel_mesh_layout *layout, int32_t axes, int32_t rank) {
    return axes & ~ALL_AXES ? -1 : index_of(layout, ALL_AXES & ~axes, rank);
}

int32_t ravel_mesh_index_in(const ravel_mesh_layout *layout, int32_t axes, int32_t rank) {
    return index_of(layout, axes, rank);
}

void ravel_mesh_groups(const ravel_mesh_layout *layout, int32_t axes, int32_t *members) {
    int32_t size = ravel_mesh_group_size(layout, axes);
    for (int32_t rank = 0; size && rank < layout->ranks; rank++)
        members[ravel_mesh_group_of(layout, axes, rank) * size + ravel_mesh_index_in(layout, axes, rank)] = rank;
}

/* ---- with communicators --------------------------------------------------------------------------------- */

struct ravel_mesh {
    ravel_comm *world;
    ravel_mesh_layout layout;
    ravel_mesh_coord coords;
    ravel_comm *comms[SETS]; /* by set of axes */
    const ravel_allocator *allocator;
};

static const int32_t made_at_once[] = {RAVEL_AXIS_TP,
                                       RAVEL_AXIS_CP,
                                       RAVEL_AXIS_DP,
                                       RAVEL_AXIS_PP,
                                       RAVEL_AXIS_DP | RAVEL_AXIS_CP,
                                       RAVEL_AXIS_TP | RAVEL_AXIS_CP};

ravel_status ravel_mesh_add(ravel_mesh *mesh, int32_t axes, ravel_error *err) {
    ravel_comm *made = NULL;
    int32_t rank = ravel_comm_rank(mesh->world);
    char name[16];
    if (axes < 1 || axes > ALL_AXES)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%d is not a set of axes; or together some of RAVEL_AXIS_TP, CP, DP, PP", axes);
    if (axes == ALL_AXES || mesh->comms[axes]) return RAVEL_OK;
    ravel_status status = ravel_comm_split(mesh->world, ravel_mesh_group_of(&mesh->layout, axes, rank),
                                           ravel_mesh_index_in(&mesh->layout, axes, rank), &made, err);
    if (status) return status;
    name_axes(axes, name, sizeof name);
    ravel_comm_set_name(made, name);
    RAVEL_ASSERT(ravel_comm_size(made) == ravel_mesh_group_size(&mesh->layout, axes));
    mesh->comms[axes] = made;
    return RAVEL_OK;
}

static uint64_t digest_of(const ravel_mesh_layout *l) {
    ravel__hash h = ravel__hash_begin(0x6d657368);
    ravel__hash_i32s(&h, l->sizes, AXES);
    ravel__hash_i32s(&h, l->strides, AXES);
    ravel__hash_u64(&h, (uint64_t)l->vpp);
    return ravel__hash_end(h);
}

static ravel_mesh_coord by_membership(const ravel_mesh *m) {
    ravel_mesh_coord c = {ravel_comm_rank(m->comms[RAVEL_AXIS_TP]), ravel_comm_rank(m->comms[RAVEL_AXIS_CP]),
                          ravel_comm_rank(m->comms[RAVEL_AXIS_DP]), ravel_comm_rank(m->comms[RAVEL_AXIS_PP])};
    return c;
}

ravel_status ravel_mesh_create(ravel_comm *comm, const ravel_mesh_options *options, ravel_mesh **mesh,
                               ravel_error *err) {
    ravel_mesh *m = ravel__calloc(comm->allocator, 1, sizeof *m);
    if (!m) return ravel__no_memory(err, sizeof *m, "a mesh");
    m->world = comm;
    m->allocator = comm->allocator;
    /* A rank with bad options still takes part, so that all ranks get its error. */
    ravel_status status = ravel_mesh_plan(options, ravel_comm_size(comm), &m->layout, err);
    uint64_t digest = status ? 0 : digest_of(&m->layout);
    status =
        ravel__agree(comm, status, status ? NULL : &digest, "another mesh (sizes, order or vpp)", m->allocator, err);
    for (size_t i = 0; i < sizeof made_at_once / sizeof *made_at_once && !status; i++)
        status = ravel_mesh_add(m, made_at_once[i], err);
    if (status) {
        ravel_mesh_free(m);
        return status;
    }
    m->coords = by_membership(m);
    RAVEL_ASSERT(ravel_mesh_rank_at(&m->layout, m->coords) == ravel_comm_rank(comm)); /* members and layout agree */
    *mesh = m;
    return RAVEL_OK;
}

void ravel_mesh_free(ravel_mesh *mesh) {
    if (!mesh) return;
    for (int i = 0; i < SETS; i++) ravel_comm_free(mesh->comms[i]);
    ravel__release(mesh->allocator, mesh, sizeof *mesh);
}

const ravel_mesh_layout *ravel_mesh_get_layout(const ravel_mesh *mesh) {
    return &mesh->layout;
}

ravel_mesh_coord ravel_mesh_coords(const ravel_mesh *mesh) {
    return mesh->coords;
}

ravel_comm *ravel_mesh_world(const ravel_mesh *mesh) {
    return mesh->world;
}

ravel_comm *ravel_mesh_comm(const ravel_mesh *mesh, int32_t axes) {
    if (axes < 0 || axes > ALL_AXES) return NULL;
    return axes == ALL_AXES ? mesh->world : mesh->comms[axes];
}

int32_t ravel_mesh_is_first(const ravel_mesh *mesh, int32_t chunk) {
    return mesh->coords.pp == 0 && chunk == 0;
}

int32_t ravel_mesh_is_last(const ravel_mesh *mesh, int32_t chunk) {
    return mesh->coords.pp == mesh->layout.sizes[3] - 1 && chunk == mesh->layout.vpp - 1;
}
