/* Carriers: how tensors in device memory are read and written.
 *
 * The views of such tensors have a carrier (view.h), and gather, scatter and copy of view.c go through it. A call takes
 * a lane: a list of casts, a buffer on the device and one in page-locked memory. It moves a chunk at a time:
 *
 *     gather    tensor --[kernel: runs, cast]--> buffer on the device --> page-locked buffer --> the caller's bytes
 *     scatter   the way back
 *     copy      tensor --> buffer on the device --> the other tensor
 *
 * A run that fills a chunk and needs no cast is copied without a kernel. A call returns when its copies are complete.
 * The host makes casts for which the device has no kernel.
 *
 * Threads: gather, scatter and copy may be called from several threads at once. */
#ifndef RAVEL_REFIT_CARRIER_H
#define RAVEL_REFIT_CARRIER_H

#include "refit/model/casts.h"
#include "refit/model/holding.h"

/* Checks the places of the tensors. Where they are on a device, opens a carrier and gives it to the holding and its
 * views. E_ARGUMENT: they are not all on one device. `what` is "source" or "sink". */
ravel_status ravel__carrier_open(const ravel_refit_tensor *tensors, int64_t count, const char *what,
                                 ravel__holding *holding, ravel_error *err);
/* NULL: nothing. */
void ravel__carrier_free(ravel__carrier *carrier);

/* Later work of the carrier waits for the work that is now in the tensors' streams. NULL: does nothing. */
ravel_status ravel__carrier_follow(ravel__carrier *carrier, ravel_error *err);
/* The stream waits for what ravel__carrier_follow saw last. */
ravel_status ravel__carrier_order(ravel__carrier *carrier, ravel_stream *stream, ravel_error *err);
ravel_device *ravel__carrier_device(const ravel__carrier *carrier);

/* Arrays of the device, for what comes after the next ravel__carrier_follow. NULL: the memory is short. By the thread
 * that calls ravel__carrier_follow. */
void *ravel__carrier_alloc(ravel__carrier *carrier, size_t bytes);
void ravel__carrier_release(ravel__carrier *carrier, void *array);

/* As ravel__view_gather, _scatter and _copy. */
ravel_status ravel__carrier_gather(ravel__carrier *carrier, const ravel__view *view, const void *data,
                                   const ravel__box *piece, int64_t first, int64_t count, int32_t dtype, void *out,
                                   ravel_error *err);
ravel_status ravel__carrier_scatter(ravel__carrier *carrier, const ravel__view *view, void *data,
                                    const ravel__box *piece, int64_t first, int64_t count, int32_t dtype,
                                    const void *in, ravel_error *err);
ravel_status ravel__carrier_copy(ravel__carrier *carrier, const ravel__view *view, const void *from, void *to,
                                 const ravel__box *piece, int64_t first, int64_t count, ravel_error *err);

#endif
