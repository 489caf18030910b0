/* Finding and loading the MPI module. */
#include "comm/backend.h"

const char *ravel_comm_world_kind(void) {
    return "self";
}

ravel_status ravel_comm_mpi(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    (void)options, (void)comm;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "no MPI module was found");
}
