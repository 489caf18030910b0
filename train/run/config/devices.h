/* train/run/config/devices.h: which GPU each rank of a run works on, and over what trainers exchange arrays.
 *
 *     rank on its machine    0   1   2   3   4   5        trainers first, then GRPO's generators (here 4 and 5)
 *     --device auto          0   1   2   3   0   1        on a machine with 4 GPUs
 *     --device 2             2   2   2   2   2   2
 *     --device 4,5           4   5   4   5   4   5
 *     --generator-device 7                   7   7        a list of the generators' own
 *
 * GPUs are numbered as a process sees them (CUDA_VISIBLE_DEVICES). Whether two ranks share one is found by its UUID, so
 * processes that each see one GPU as number 0 are told apart. */
#ifndef TRAIN_DEVICES_H
#define TRAIN_DEVICES_H

#include "train/run/config/config.h"

typedef struct train_devices {
    int32_t gpus;                 /* that all ranks use; 0: the kernels need none */
    int32_t crowded;              /* the GPU with the most ranks, as its first rank numbers it, */
    int32_t trainers, generators; /* and the ranks on it */
    int64_t free_bytes;           /* of its memory, before the run takes any; INT64_MAX: not known */
    int32_t trainers_apart;       /* no two trainers share a GPU */
    char wire[256];               /* over what arrays travel, and why, in words; "": there is nothing to say */
} train_devices;

/* Sets config->model.gpu of this rank, and config->model.wire of all. Collective over all ranks of the run, of which
 * the first `trainers` train. E_ARGUMENT on every rank if a GPU that was asked for is not there, or NCCL was asked
 * for and cannot be had. */
ravel_status train_devices_assign(train_config *config, int32_t trainers, ravel_comm *comm, train_devices *devices,
                                  ravel_error *err);

#endif
