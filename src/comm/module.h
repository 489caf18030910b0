/* Between libravel and a module that it loads (libravel_openmpi.so, libravel_mpich.so).
 *
 * libravel links no MPI. A module is mpi.c compiled against one MPI; it exports one function, ravel_comm_module, and
 * links no libravel: everything that it needs from the library it is handed in a table, so it does not matter whether
 * the program has libravel static, shared, or loaded by Python into a scope of its own. Library and module come from the
 * same build: a number and the sizes of the shared structs are compared before anything else. */
#ifndef RAVEL_COMM_MODULE_H
#define RAVEL_COMM_MODULE_H

#include "comm/backend.h"

enum { RAVEL__MODULE_VERSION = 1 };

typedef struct ravel__services {
    int32_t version, services_bytes, comm_bytes, request_bytes;
    ravel_status (*comm_new)(const ravel__backend *, int32_t, int32_t, const ravel_comm_options *, ravel_comm **,
                             ravel_error *);
    void (*comm_discard)(ravel_comm *);
    void *(*calloc)(const ravel_allocator *, size_t, size_t);
    void *(*resize)(const ravel_allocator *, void *, size_t, size_t);
    void (*release)(const ravel_allocator *, void *, size_t);
    ravel_status (*no_memory)(ravel_error *, size_t, const char *);
    ravel_status (*error_set)(ravel_error *, ravel_status, const char *, ...);
    int64_t (*clock_ns)(void);
    void (*op_describe)(const ravel__op *, char *, size_t);
    void (*card_fill)(const ravel_comm *, const ravel__op *, ravel__card *);
    int (*cards_agree)(const ravel_comm *, const ravel__card *, ravel_error *);
    void (*card_complain)(const ravel_comm *, const ravel__op *, const int64_t *, ravel__card *);
    void (*cards_complaint)(const ravel_comm *, const ravel__card *, ravel_error *);
} ravel__services;

/* What a module exports. `expected`: the number of ranks that the launcher's environment promises, 0: it says none. */
typedef ravel_status (*ravel__module_fn)(const ravel__services *services, const ravel_comm_options *options,
                                         int32_t expected, ravel_comm **comm, ravel_error *err);

#endif
