/* The reference set's device. */
#ifndef TRAIN_REF_DEVICE_H
#define TRAIN_REF_DEVICE_H

#include "train/kernels/host_device.h"

/* A token and its weight, for sorting. */
typedef struct train__ranked {
    double weight;
    int32_t token;
} train__ranked;

struct train_device {
    train__host_device host; /* first */
    train__ranked *ranked;   /* [vocab] for `sample` */
    int64_t vocab;
};

#endif
