/* Shared objects that are loaded when they are needed (MPI, CUDA, NCCL, the trainer's CUDA kernels), so
 * that neither libravel nor the command links what they link.
 *
 * A module is the file that the caller or the environment names; else it is looked for by name beside libravel, beside
 * the program and around it, and in the folder that libravel was installed into. */
#ifndef RAVEL_BASE_MODULE_H
#define RAVEL_BASE_MODULE_H

#include <ravel/base.h>

typedef struct ravel__module {
    const char *what;     /* "MPI", for sentences */
    const char *file;     /* the caller's choice; NULL or "": the variable's */
    const char *variable; /* "RAVEL_MPI_MODULE" */
    const char *advice;   /* how to get one: "build with libopenmpi-dev installed" */
    const char *names[2]; /* tried in this order; the second may be NULL */
    int global;           /* its symbols are seen by what it loads in turn, and it is never unloaded */
} ravel__module;

/* The handle of dlopen. E_UNSUPPORTED lists the files that were tried, and why an existing file did not load. */
ravel_status ravel__module_load(const ravel__module *module, void **handle, ravel_error *err);
/* A function of it; NULL if there is none. */
typedef void (*ravel__module_fn)(void);
ravel__module_fn ravel__module_find(void *handle, const char *name);

#endif
