/* Refit of tensors in device memory, for every device: the unit tests run it on the host and on the stub, `make test-gpu` on
 * CUDA. Each reports by EXPECT and returns. */
#ifndef TESTS_REFIT_DEVICE_BODY_H
#define TESTS_REFIT_DEVICE_BODY_H

#include <ravel/comm.h>
#include <ravel/device.h>

/* Publish and pull of random models: trainers on the device, generators on it or on the host, and the other way round. */
void refit_device_body_pull(ravel_device *device, int64_t rounds);
/* A trainer ends and another one begins at the same address: the generator reads the new one's memory. */
/* maps: 1 where the trainer's memory can be mapped. */
void refit_device_body_restart(ravel_device *device, int32_t maps);
/* Trainers on the device, generators on the host: where some elements change, changes travel, and come from the device. */
void refit_device_body_changes(ravel_device *device, int64_t rounds);
/* The collective form. */
void refit_device_body_collective(ravel_device *device, int64_t rounds);
/* The same over communicators that `make` makes of host ones (ravel_comm_nccl, or a mock of it): cases of up to `most`
 * ranks, everything on the device. */
typedef ravel_status (*nccl_maker)(ravel_comm *host, ravel_stream *stream, const ravel_comm_options *options,
                                   ravel_comm **comm, ravel_error *err);
void refit_device_body_nccl(ravel_device *device, nccl_maker make, int32_t most, int64_t rounds);
/* Places that cannot be used are refused with a sentence. */
void refit_device_body_refusals(ravel_device *device);

#endif
