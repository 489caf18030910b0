/* ravel/module.h: shared objects that are loaded when they are needed (MPI, CUDA, NCCL, the trainer's CUDA kernels), so
 * that neither libravel nor the command links what they link.
 *
 * A module is the file that the caller or the environment names; else it is looked for by name beside libravel, beside
 * the program and around it, and in the folder that libravel was installed into. */
#ifndef RAVEL_MODULE_H
#define RAVEL_MODULE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_module {
    const char *what;     /* "MPI", for sentences */
    const char *file;     /* the caller's choice; NULL or "": the variable's */
    const char *variable; /* "RAVEL_MPI_MODULE" */
    const char *advice;   /* how to get one: "build with libopenmpi-dev installed" */
    const char *names[2]; /* tried in this order; the second may be NULL */
    int global;           /* its symbols are seen by what it loads in turn, and it is never unloaded */
} ravel_module;

/* The handle of dlopen. E_UNSUPPORTED lists the files that were tried, and why an existing file did not load. */
RAVEL_API ravel_status ravel_module_load(const ravel_module *module, void **handle, ravel_error *err);
/* A function of it; NULL where there is none. */
typedef void (*ravel_module_fn)(void);
RAVEL_API ravel_module_fn ravel_module_find(void *handle, const char *name);

#ifdef __cplusplus
}
#endif

#endif
