/* Finding the launcher, and the MPI module that fits it.
 *
 * A launcher leaves its mark in the environment of every rank; each row below is such a mark. The first row that is
 * there says which module to try first. A module is looked for at options.module, else RAVEL_MPI_MODULE, else by name
 * beside libravel, beside the program and around it, and in the folder that libravel was installed into. */
#include "comm/remote.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef RAVEL_LIBDIR
#define RAVEL_LIBDIR "/usr/local/lib"
#endif

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

const char *ravel_comm_world_kind(void) {
    return find_launcher() ? "mpi" : "self";
}

static int32_t promised_ranks(const struct launcher *launcher) {
    const char *text = launcher && launcher->size ? getenv(launcher->size) : NULL;
    return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

/* ---- where modules may be ------------------------------------------------------------------------------- */

enum { PATH_BYTES = 4096 };

/* What was tried so far, for the sentence. */
typedef struct search {
    void *handle;
    char seen[640];
    size_t used;
} search;

static void note(search *s, const char *path, const char *why) {
    if (s->used >= sizeof s->seen) return;
    int n = snprintf(s->seen + s->used, sizeof s->seen - s->used, "%s%s (%s)", s->used ? "; " : "", path, why);
    s->used += n > 0 ? (size_t)n : 0;
}

/* RTLD_GLOBAL: Open MPI loads its parts with dlopen, and they expect to find libmpi's symbols. RTLD_NODELETE: MPI cannot
 * be unloaded and started again. */
static int try_file(search *s, const char *path) {
    if (access(path, R_OK) != 0) return 0;
    s->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!s->handle) {
        const char *why = dlerror();
        note(s, path, why ? why : "it cannot be loaded");
    }
    return s->handle != NULL;
}

static int try_beside(search *s, const char *file, const char *folder, const char *name) {
    char path[PATH_BYTES];
    const char *slash = strrchr(file, '/');
    int length = slash ? (int)(slash - file) : 0;
    if (snprintf(path, sizeof path, "%.*s/%s%s", length, file, folder, name) >= (int)sizeof path) return 0;
    return try_file(s, path);
}

static int look_around(search *s, const char *name) {
    char program[PATH_BYTES];
    Dl_info info;
    if (dladdr((const void *)module_names, &info) && info.dli_fname &&
        (try_beside(s, info.dli_fname, "", name) || try_beside(s, info.dli_fname, "../", name)))
        return 1;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
        if (try_beside(s, program, "", name) || try_beside(s, program, "../lib/", name) ||
            try_beside(s, program, "../", name))
            return 1;
    }
    return try_beside(s, RAVEL_LIBDIR "/", "", name);
}

static ravel_status load(const ravel_comm_options *o, const struct launcher *launcher, search *s, ravel_error *err) {
    const char *file = o->module && *o->module ? o->module : getenv("RAVEL_MPI_MODULE");
    if (file && *file) {
        if (try_file(s, file)) return RAVEL_OK;
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the MPI module \"%.300s\" cannot be loaded: %s", file,
                               s->used ? s->seen : "there is no such file");
    }
    int first = launcher ? launcher->first : OPENMPI;
    for (int i = 0; i < 2; i++)
        if (look_around(s, module_names[(first + i) % 2])) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_UNSUPPORTED,
        "no MPI module (%s or %s) was found beside libravel, beside the program or in %s; build with "
        "libopenmpi-dev or libmpich-dev installed, or set RAVEL_MPI_MODULE%s%s",
        module_names[first], module_names[1 - first], RAVEL_LIBDIR, s->used ? "; tried: " : "", s->seen);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

/* The module's table, if it is of this build. */
static ravel_status find_wire(void *handle, const ravel__wire **wire, ravel_error *err) {
    ravel__wire_fn get;
    void *symbol = dlsym(handle, "ravel_wire");
    memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from an object to a function pointer */
    if (!symbol)
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
    search s = {.used = 0};
    const ravel__wire *wire = NULL;
    const struct launcher *launcher = find_launcher();
    ravel_status status = ravel__comm_options_take(options, &o, err);
    if (!status) status = load(&o, launcher, &s, err);
    if (!status) status = find_wire(s.handle, &wire, err);
    return status ? status : ravel__remote_open(wire, &o, promised_ranks(launcher), comm, err);
}
