/* The CUDA set's device: one GPU, one stream for kernels, one for uploads, and the handles of the libraries. Internal
 * to the set: its C files see CUDA's types here, the rest of the trainer an opaque train_device.
 *
 * The first failure is kept and every later call does nothing, so kernels need no status: `sync` reports it. A sticky
 * CUDA error therefore ends the device, not the process. */
#ifndef TRAIN_CUDA_DEVICE_H
#define TRAIN_CUDA_DEVICE_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "train/kernels/cuda/launch.h"
#include "train/kernels/kernels.h"

typedef struct cuda_products cuda_products;   /* products.c: algorithms per shape */
typedef struct cuda_attention cuda_attention; /* attention.c: cuDNN's plans per shape */

enum { CUDA_MARKS = 512 }; /* beginnings of phases between two readings */

struct train_device {
    const ravel_allocator *allocator;
    const char *cache; /* folder, or NULL */
    int32_t index;     /* of the GPU */
    int32_t multiprocessors;
    int32_t deterministic;              /* the same bits on every run */
    int32_t capturing;                  /* kernels are recorded: nothing may wait or allocate */
    cudaStream_t stream;                /* kernels, in the order of the calls */
    cudaStream_t uploads;               /* staging, beside them */
    cudaEvent_t staged[TRAIN_STAGES];   /* the slot's last copy */
    cudaEvent_t released[TRAIN_STAGES]; /* the kernels that read the slot */
    cudaStream_t downloads;
    cudaEvent_t made; /* what a fetch copies */
    cudaEvent_t fetched[TRAIN_STAGES];
    cudaEvent_t marks[CUDA_MARKS];
    int32_t mark_phase[CUDA_MARKS];
    int32_t mark_count;
    double seconds[TRAIN_PHASES];
    cuda_products *products;
    cuda_attention *attention;
    train_limits limits; /* of the last reserve */
    char *scratch; /* one block of scratch, reused by every call in turn; at its end the tickets of decode.cu, which
                            no other kernel touches */
    size_t scratch_bytes;
    int64_t block_bytes, peak_bytes, recent_bytes; /* in blocks: now, the most so far, and since the last gpu_state */
    ravel_status (*look)(void *user, double waited, ravel_error *err); /* while a call waits; NULL: nobody asked */
    void *look_user;
    int64_t graph_bytes; /* in recorded graphs now */
    ravel_status failed;
    ravel_error error;
};

/* Whether `code` is a success; else it is kept as the device's failure: "what: CUDA's text". */
int cuda_ok(train_device *device, cudaError_t code, const char *what);
/* Keeps the first failure. */
void cuda_fail(train_device *device, ravel_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- products.c ---- */
ravel_status cuda_products_open(train_device *device, ravel_error *err);
void cuda_products_close(train_device *device);
size_t cuda_products_scratch(void);
void cuda_matmul(train_device *device, const train_matmul *product);

/* ---- attention.c ---- */
ravel_status cuda_attention_open(train_device *device, ravel_error *err);
void cuda_attention_close(train_device *device);
size_t cuda_attention_scratch(const train_limits *limits);
void cuda_attention_forward(train_device *device, const train_attention *attention);
void cuda_attention_backward(train_device *device, const train_attention *attention);
uint64_t cuda_attention_shape(const train_device *device, const train_attention *attention);

/* ---- memory.c: the slots of memory, staging, phases and graphs ---- */
/* Until `event` has happened, or the kernels' stream is empty where it is NULL. */
void cuda_wait(train_device *device, cudaEvent_t event, const char *what);
void cuda_watch(train_device *device, ravel_status (*look)(void *user, double waited, ravel_error *err), void *user);
void *cuda_stream(train_device *device);
ravel_status cuda_alloc(train_device *device, size_t bytes, void **block, ravel_error *err);
void cuda_release(train_device *device, void *block, size_t bytes);
void cuda_upload(train_device *device, void *block, const void *host, size_t bytes);
void cuda_download(train_device *device, void *host, const void *block, size_t bytes);
void cuda_copy(train_device *device, void *to, const void *from, size_t bytes);
void cuda_zero(train_device *device, void *block, size_t bytes);
void cuda_convert(train_device *device, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n);
ravel_status cuda_alloc_host(train_device *device, size_t bytes, void **host, ravel_error *err);
void cuda_release_host(train_device *device, void *host, size_t bytes);
void cuda_stage(train_device *device, int32_t slot, void *block, const void *host, size_t bytes);
void cuda_stage_wait(train_device *device, int32_t slot);
void cuda_stage_release(train_device *device, int32_t slot);
void cuda_fetch(train_device *device, int32_t slot, void *host, const void *block, size_t bytes);
void cuda_fetch_wait(train_device *device, int32_t slot);
void cuda_gpu_state(train_device *device, train_gpu_state *state);
void cuda_phase(train_device *device, int32_t phase);
void cuda_phase_seconds(train_device *device, double *seconds);
ravel_status cuda_capture_begin(train_device *device, ravel_error *err);
ravel_status cuda_capture_end(train_device *device, train_graph **graph, ravel_error *err);
void cuda_graph_run(train_device *device, train_graph *graph);
int cuda_graph_valid(const train_device *device, const train_graph *graph);
void cuda_graph_free(train_device *device, train_graph *graph);

#endif
