/* The NCCL back end over any table of NCCL's calls: the tests have a mock. */
#ifndef RAVEL_COMM_NCCL_COMM_H
#define RAVEL_COMM_NCCL_COMM_H

#include <ravel/comm.h>

#include "comm/nccl.h"

ravel_status ravel__comm_nccl_with(const ravel__nccl *nccl, ravel_comm *host, ravel_stream *stream,
                                   const ravel_comm_options *options, ravel_comm **comm, ravel_error *err);
/* The stream of an NCCL communicator; NULL: it is another one. */
ravel_stream *ravel__comm_nccl_stream(const ravel_comm *comm);

#endif
