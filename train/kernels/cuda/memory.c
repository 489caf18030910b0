/* Memory of the CUDA set's device: blocks, copies, staging beside the kernels, time per phase, recorded graphs. */
#include "train/kernels/cuda/device.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- waiting --------------------------------------------------------------------------------------------- */

void cuda_watch(train_device *d, ravel_status (*look)(void *user, double waited, ravel_error *err), void *user) {
    d->look = look;
    d->look_user = user;
}

void *cuda_stream(train_device *d) {
    return d->stream;
}

static double seconds_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Whoever looks ends what the kernels wait for, so the stream goes on after a failure too; not for ever, though. */
void cuda_wait(train_device *d, cudaEvent_t event, const char *what) {
    static const double patience = 30, between = 1e-3, spin = 1e-4;
    const struct timespec pause = {0, 20 * 1000};
    if (!d->look) {
        cuda_ok(d, event ? cudaEventSynchronize(event) : cudaStreamSynchronize(d->stream), what);
        return;
    }
    double begun = seconds_now(), looked = begun, now = begun;
    for (;;) {
        cudaError_t code = event ? cudaEventQuery(event) : cudaStreamQuery(d->stream);
        if (code != cudaErrorNotReady) {
            cuda_ok(d, code, what);
            return;
        }
        now = seconds_now();
        if (d->failed && now - looked > patience) return;
        if (!d->failed && now - looked > between) {
            ravel_error why = RAVEL_ERROR_INIT;
            ravel_status status = d->look(d->look_user, now - begun, &why);
            looked = now;
            if (status) cuda_fail(d, status, "%s", why.message);
        }
        if (now - begun > spin) (void)nanosleep(&pause, NULL);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

ravel_status cuda_alloc(train_device *d, size_t bytes, void **block, ravel_error *err) {
    void *p;
    cudaError_t code = cudaMalloc(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {
        size_t unused = 0, all = 0;
        cudaGetLastError(); /* not sticky */
        cudaMemGetInfo(&unused, &all);
        return ravel_error_set(err, RAVEL_E_MEMORY, "GPU %d has no room for %zu bytes more: %zu of %zu are free",
                               d->index, bytes, unused, all);
    }
    if (!cuda_ok(d, code, "allocating memory")) return ravel_error_set(err, d->failed, "%s", d->error.message);
    *block = p;
    d->block_bytes += (int64_t)bytes;
    if (d->block_bytes > d->peak_bytes) d->peak_bytes = d->block_bytes;
    if (d->block_bytes > d->recent_bytes) d->recent_bytes = d->block_bytes;
    return RAVEL_OK;
}

void cuda_release(train_device *d, void *block, size_t bytes) {
    if (!block) return;
    cuda_ok(d, cudaFree(block), "releasing memory");
    d->block_bytes -= (int64_t)bytes;
}

void cuda_gpu_state(train_device *d, train_gpu_state *state) {
    struct cudaDeviceProp properties;
    size_t unused = 0, all = 0;
    memset(state, 0, sizeof *state);
    if (d->failed) return;
    if (cuda_ok(d, cudaGetDeviceProperties(&properties, d->index), "asking what it is"))
        (void)snprintf(state->model, sizeof state->model, "%.95s", properties.name);
    if (cuda_ok(d, cudaMemGetInfo(&unused, &all), "asking for its memory")) {
        state->total_bytes = (int64_t)all;
        state->used_bytes = (int64_t)(all - unused);
    }
    state->block_bytes = d->block_bytes;
    state->peak_bytes = d->peak_bytes;
    state->scratch_bytes = (int64_t)d->scratch_bytes;
    state->graph_bytes = d->graph_bytes;
    state->recent_bytes = d->recent_bytes;
    d->recent_bytes = d->block_bytes;
}

void cuda_upload(train_device *d, void *block, const void *host, size_t bytes) {
    if (d->failed || !bytes) return;
    if (cuda_ok(d, cudaMemcpyAsync(block, host, bytes, cudaMemcpyHostToDevice, d->stream), "uploading"))
        cuda_wait(d, NULL, "uploading"); /* the host may change its memory after this */
}

void cuda_download(train_device *d, void *host, const void *block, size_t bytes) {
    if (d->failed || !bytes) {
        memset(host, 0, bytes);
        return;
    }
    if (cuda_ok(d, cudaMemcpyAsync(host, block, bytes, cudaMemcpyDeviceToHost, d->stream), "downloading"))
        cuda_wait(d, NULL, "downloading");
}

void cuda_copy(train_device *d, void *to, const void *from, size_t bytes) {
    if (!d->failed && bytes)
        cuda_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copying");
}

void cuda_zero(train_device *d, void *block, size_t bytes) {
    if (!d->failed && bytes) cuda_ok(d, cudaMemsetAsync(block, 0, bytes, d->stream), "clearing");
}

void cuda_convert(train_device *d, void *to, int32_t to_type, const void *from, int32_t from_type, int64_t n) {
    if (d->failed) return;
    if (to_type == from_type)
        cuda_copy(d, to, from, (size_t)n * (size_t)ravel_dtype_bytes(to_type));
    else if (to_type == RAVEL_BF16)
        cuda_cast_to_bf16(d->stream, to, from, n);
    else
        cuda_cast_to_f32(d->stream, to, from, n);
}

/* ---- staging --------------------------------------------------------------------------------------------- */

ravel_status cuda_alloc_host(train_device *d, size_t bytes, void **host, ravel_error *err) {
    void *p;
    cudaError_t code = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        cudaGetLastError();
        return ravel_error_set(err, RAVEL_E_MEMORY, "GPU %d: no page-locked memory for %zu bytes: %s", d->index, bytes,
                               cudaGetErrorString(code));
    }
    *host = p;
    return RAVEL_OK;
}

void cuda_release_host(train_device *d, void *host, size_t bytes) {
    (void)bytes;
    if (host) cuda_ok(d, cudaFreeHost(host), "releasing page-locked memory");
}

static int is_stage(int32_t slot) {
    return slot >= 0 && slot < TRAIN_STAGES;
}

/* uploads:  wait for the readers of the last content | copy | staged
 * stream:                                                      wait for staged | kernels ... | released */
void cuda_stage(train_device *d, int32_t slot, void *block, const void *host, size_t bytes) {
    RAVEL_ASSERT(is_stage(slot));
    if (d->failed || !bytes) return;
    cuda_ok(d, cudaStreamWaitEvent(d->uploads, d->released[slot], 0), "staging");
    cuda_ok(d, cudaMemcpyAsync(block, host, bytes, cudaMemcpyHostToDevice, d->uploads), "staging");
    cuda_ok(d, cudaEventRecord(d->staged[slot], d->uploads), "staging");
    cuda_ok(d, cudaStreamWaitEvent(d->stream, d->staged[slot], 0), "staging");
}

void cuda_stage_wait(train_device *d, int32_t slot) {
    RAVEL_ASSERT(is_stage(slot));
    if (!d->failed) cuda_wait(d, d->staged[slot], "staging");
}

void cuda_stage_release(train_device *d, int32_t slot) {
    RAVEL_ASSERT(is_stage(slot));
    if (!d->failed) cuda_ok(d, cudaEventRecord(d->released[slot], d->stream), "staging");
}

void cuda_fetch(train_device *d, int32_t slot, void *host, const void *block, size_t bytes) {
    RAVEL_ASSERT(is_stage(slot) && !d->capturing);
    if (d->failed || !bytes) return;
    cuda_ok(d, cudaEventRecord(d->made, d->stream), "fetching");
    cuda_ok(d, cudaStreamWaitEvent(d->downloads, d->made, 0), "fetching");
    cuda_ok(d, cudaMemcpyAsync(host, block, bytes, cudaMemcpyDeviceToHost, d->downloads), "fetching");
    cuda_ok(d, cudaEventRecord(d->fetched[slot], d->downloads), "fetching");
}

void cuda_fetch_wait(train_device *d, int32_t slot) {
    RAVEL_ASSERT(is_stage(slot));
    if (!d->failed) cuda_wait(d, d->fetched[slot], "fetching");
}

/* ---- phases ---------------------------------------------------------------------------------------------- */

/* Adds up the time between marks and keeps the last one. */
static void settle_marks(train_device *d) {
    float ms;
    if (d->mark_count < 2 || d->failed) return;
    cuda_wait(d, d->marks[d->mark_count - 1], "reading time");
    if (d->failed) return;
    for (int32_t i = 0; i + 1 < d->mark_count; i++)
        if (cuda_ok(d, cudaEventElapsedTime(&ms, d->marks[i], d->marks[i + 1]), "reading time"))
            d->seconds[d->mark_phase[i]] += ms * 1e-3;
    cudaEvent_t last = d->marks[d->mark_count - 1];
    d->marks[d->mark_count - 1] = d->marks[0];
    d->marks[0] = last;
    d->mark_phase[0] = d->mark_phase[d->mark_count - 1];
    d->mark_count = 1;
}

void cuda_phase(train_device *d, int32_t phase) {
    RAVEL_ASSERT(phase >= 0 && phase < TRAIN_PHASES && d->mark_count <= CUDA_MARKS);
    if (d->failed || d->capturing) return;
    if (d->mark_count == CUDA_MARKS) settle_marks(d);
    if (!cuda_ok(d, cudaEventRecord(d->marks[d->mark_count], d->stream), "marking time")) return;
    d->mark_phase[d->mark_count++] = phase;
}

void cuda_phase_seconds(train_device *d, double *seconds) {
    cuda_phase(d, d->mark_count > 0 ? d->mark_phase[d->mark_count - 1] : TRAIN_PHASE_OTHER);
    settle_marks(d);
    memcpy(seconds, d->seconds, sizeof d->seconds);
    memset(d->seconds, 0, sizeof d->seconds);
}

/* ---- graphs ---------------------------------------------------------------------------------------------- */

static ravel_status told(train_device *d, ravel_error *err) {
    return ravel_error_set(err, d->failed, "%s", d->error.message);
}

ravel_status cuda_capture_begin(train_device *d, ravel_error *err) {
    RAVEL_ASSERT(!d->capturing);
    if (d->failed ||
        !cuda_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "recording a graph"))
        return told(d, err);
    d->capturing = 1;
    return RAVEL_OK;
}

struct train_graph {
    cudaGraphExec_t ready;
    const char *scratch; /* of the device when it was recorded */
    int64_t bytes;       /* of the card's memory */
};

static int64_t unused_bytes(void) {
    size_t unused = 0, all = 0;
    return cudaMemGetInfo(&unused, &all) == cudaSuccess ? (int64_t)unused : 0;
}

/* Also puts it on the card, which its first launch would do. */
static void make_ready(train_device *d, train_graph *g, cudaGraph_t recorded) {
    int64_t before = unused_bytes();
    cuda_ok(d, cudaGraphInstantiate(&g->ready, recorded, 0), "making a graph ready");
    if (!d->failed) cuda_ok(d, cudaGraphUpload(g->ready, d->stream), "making a graph ready");
    g->bytes = before - unused_bytes();
    if (g->bytes < 0) g->bytes = 0; /* others of the card released some */
    d->graph_bytes += g->bytes;
}

ravel_status cuda_capture_end(train_device *d, train_graph **graph, ravel_error *err) {
    cudaGraph_t recorded = NULL;
    train_graph *g = calloc(1, sizeof *g);
    RAVEL_ASSERT(d->capturing);
    d->capturing = 0;
    cuda_ok(d, cudaStreamEndCapture(d->stream, &recorded), "recording a graph");
    if (!g) cuda_fail(d, RAVEL_E_MEMORY, "no memory for a graph");
    if (!d->failed) make_ready(d, g, recorded);
    if (recorded) cudaGraphDestroy(recorded);
    if (d->failed) {
        free(g);
        return told(d, err);
    }
    g->scratch = d->scratch;
    *graph = g;
    return RAVEL_OK;
}

void cuda_graph_run(train_device *d, train_graph *graph) {
    RAVEL_ASSERT(!d->capturing && cuda_graph_valid(d, graph));
    if (!d->failed) cuda_ok(d, cudaGraphLaunch(graph->ready, d->stream), "running a graph");
}

int cuda_graph_valid(const train_device *d, const train_graph *graph) {
    return graph->scratch == d->scratch;
}

void cuda_graph_free(train_device *d, train_graph *graph) {
    if (!graph) return;
    cuda_ok(d, cudaStreamSynchronize(d->stream), "ending a graph");
    cudaGraphExecDestroy(graph->ready);
    d->graph_bytes -= graph->bytes;
    free(graph);
}
