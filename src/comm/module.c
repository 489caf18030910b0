/* Finding the launcher, and the MPI module that fits it.
 *
 * A launcher leaves its mark in the environment of every rank; each row below is such a mark. The first row that is
 * there says which module to try first. Where modules are looked for: ravel/module.h. */
#include "comm/launch.h"
#include "comm/remote/remote.h"

#include "base/system/module.h"

#include <stdlib.h>

enum { OPENMPI, MPICH };
static const char *const module_names[] = {"libravel_openmpi.so", "libravel_mpich.so"};

static const struct launcher {
    const char *mark; /* is set in every rank's environment */
    const char *size; /* says the number of ranks, NULL: nothing does */
    int first;        /* the module to try first */
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", OPENMPI}, /* Open MPI's mpirun */
    {"PMI_SIZE", "PMI_SIZE", MPICH},                           /* Hydra, srun --mpi=pmi2 */
    {"PMI_RANK", "SLURM_STEP_NUM_TASKS", MPICH},               /* srun */
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", OPENMPI},            /* srun --mpi=pmix, prterun */
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const struct launcher *find_launcher(void) {
    for (int i = 0; i < LAUNCHERS; i++)
        if (getenv(launchers[i].mark)) return &launchers[i];
    return NULL;
}

int ravel__launch_has_mpi(void) {
    return find_launcher() != NULL;
}

static int32_t promised_ranks(const struct launcher *launcher) {
    const char *text = launcher && launcher->size ? getenv(launcher->size) : NULL;
    return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

static ravel_status load(const ravel_comm_options *o, const struct launcher *launcher, void **handle,
                         ravel_error *err) {
    int first = launcher ? launcher->first : OPENMPI;
    const ravel__module module = {.what = "MPI",
                                  .file = o->module,
                                  .variable = "RAVEL_MPI_MODULE",
                                  .advice = "build with libopenmpi-dev or libmpich-dev installed",
                                  .names = {module_names[first], module_names[1 - first]},
                                  .global = 1};
    return ravel__module_load(&module, handle, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

/* The module's table, if it is of this build. */
static ravel_status find_wire(void *handle, const ravel__wire **wire, ravel_error *err) {
    ravel__wire_fn get = (ravel__wire_fn)ravel__module_find(handle, "ravel_wire");
    if (!get)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the MPI module exports no ravel_wire; is it Ravel's, and of this version?");
    *wire = get();
    if ((*wire)->version != RAVEL__WIRE_VERSION || (*wire)->bytes != (int32_t)sizeof **wire)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the MPI module and libravel are of different builds; install both again");
    return RAVEL_OK;
}

ravel_status ravel_comm_mpi(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    ravel_comm_options o;
    void *handle = NULL;
    const ravel__wire *wire = NULL;
    const struct launcher *launcher = find_launcher();
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (!status) status = load(&o, launcher, &handle, err);
    if (!status) status = find_wire(handle, &wire, err);
    return status ? status : ravel__remote_open(wire, &o, promised_ranks(launcher), comm, err);
}
