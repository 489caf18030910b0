/* CUDA as a device: the table of driver.h over the runtime, with the driver API for memory that processes share. The
 * kernels are in cuda_rows.cu and cuda_refit.cu.
 *
 * This file is the module libravel_cuda.so and needs nothing of libravel. The runtime is linked statically and the
 * driver's functions are asked for by name, so the module loads on a machine without a GPU, and opening a device
 * reports why there is none.
 *
 * Codes: a cudaError_t; a CUresult of the driver API is the number plus DRIVER_CODE. A failed call clears the runtime's
 * last error (cudaGetLastError), except errors that CUDA cannot clear. */
#include "device/cuda.h"

#include "base/assert.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRIVER_CODE = 1 << 20 };

/* The driver API, by name and the version whose signature this is. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuGetErrorString, 6000, (CUresult, const char **))                                                               \
    X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)) \
    X(cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))   \
    X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                             \
    X(cuMemAddressReserve, 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                    \
    X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))                                                                  \
    X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                \
    X(cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                                        \
    X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                   \
    X(cuMemExportToShareableHandle, 10020,                                                                             \
      (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                           \
    X(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))      \
    X(cuMemGetAddressRange, 3020, (CUdeviceptr *, size_t *, CUdeviceptr))

typedef struct cuda_device {
    int32_t index;
#define X(name, version, arguments) CUresult(*name) arguments;
    DRIVER_FUNCTIONS(X)
#undef X
} cuda_device;

/* cuGetErrorString of the device that was opened last: texts do not depend on the device. */
static CUresult (*error_string)(CUresult, const char **);

/* ---- errors --------------------------------------------------------------------------------------------- */

/* After these every call of the process on the device fails. */
static int is_sticky(cudaError_t code) {
    switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorExternalDevice:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak: return 1;
    default: return 0;
    }
}

static int is_missing(cudaError_t code) {
    return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorInvalidDevice ||
           code == cudaErrorSystemDriverMismatch || code == cudaErrorNotSupported ||
           code == cudaErrorNoKernelImageForDevice;
}

static ravel_status cuda_describe(int code, char *text, size_t bytes) {
    const char *words = NULL;
    if (code >= DRIVER_CODE) {
        CUresult result = (CUresult)(code - DRIVER_CODE);
        if (!error_string || error_string(result, &words) != CUDA_SUCCESS) words = "an unknown error of the driver";
        (void)snprintf(text, bytes, "%s (CUresult %d)", words, (int)result);
        code = (int)result; /* the two lists have the same numbers for what is asked below */
    } else {
        (void)snprintf(text, bytes, "%s (%s)", cudaGetErrorString((cudaError_t)code),
                       cudaGetErrorName((cudaError_t)code));
    }
    if (code == cudaErrorMemoryAllocation) return RAVEL_E_MEMORY;
    if (is_sticky((cudaError_t)code)) return RAVEL_E_DEAD;
    return is_missing((cudaError_t)code) ? RAVEL_E_UNSUPPORTED : RAVEL_E_DEVICE;
}

/* Clears the runtime's last error. */
static int clear(cudaError_t code) {
    if (code != cudaSuccess) (void)cudaGetLastError();
    return (int)code;
}

static int of_driver(CUresult result) {
    RAVEL_ASSERT((int)result >= 0 && (int)result < DRIVER_CODE);
    return result == CUDA_SUCCESS ? 0 : DRIVER_CODE + (int)result;
}

/* ---- the current device --------------------------------------------------------------------------------- */

int ravel__cuda_enter(void *inside, int *before) {
    RAVEL_ASSERT(((cuda_device *)inside)->index >= 0);
    int wanted = ((cuda_device *)inside)->index;
    *before = wanted;
    cudaError_t code = cudaGetDevice(before);
    if (code == cudaSuccess && *before != wanted) code = cudaSetDevice(wanted);
    return clear(code);
}

int ravel__cuda_leave(void *inside, int before, int code) {
    code = clear((cudaError_t)code);
    if (before != ((cuda_device *)inside)->index) (void)clear(cudaSetDevice(before));
    return code;
}

/* Evaluates a call of the runtime with the device current, and returns its code. */
#define ON_DEVICE(inside, call)                                \
    do {                                                       \
        int before, code = ravel__cuda_enter(inside, &before); \
        if (code) return code;                                 \
        return ravel__cuda_leave(inside, before, (int)(call)); \
    } while (0)

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static int find_functions(cuda_device *d) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    void *address = NULL;
    cudaError_t code = cudaSuccess;
#define X(name, version, arguments)                                                                      \
    if (code == cudaSuccess)                                                                             \
        code = cudaGetDriverEntryPointByVersion(#name, &address, version, cudaEnableDefault, &found);    \
    if (code == cudaSuccess && found != cudaDriverEntryPointSuccess) code = cudaErrorInsufficientDriver; \
    memcpy(&d->name, &address, sizeof address);
    DRIVER_FUNCTIONS(X)
#undef X
    if (code == cudaSuccess) error_string = d->cuGetErrorString;
    return clear(code);
}

static int read_properties(cuda_device *d, ravel_device_info *info) {
    struct cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, d->index);
    if (code != cudaSuccess) return clear(code);
    (void)snprintf(info->model, sizeof info->model, "%.95s", p.name);
    info->processors = p.multiProcessorCount;
    info->total_bytes = (int64_t)p.totalGlobalMem;
    memcpy(info->uuid, p.uuid.bytes, sizeof info->uuid);
    return 0;
}

/* Makes the context, so that later calls find it. */
static int start(cuda_device *d) {
    ON_DEVICE(d, cudaFree(NULL));
}

static int cuda_open(int32_t index, void **inside, ravel_device_info *info) {
    RAVEL_ASSERT(index >= 0);
    int devices = 0;
    int code = clear(cudaGetDeviceCount(&devices));
    if (code) return code;
    if (index >= devices) return devices ? (int)cudaErrorInvalidDevice : (int)cudaErrorNoDevice;
    cuda_device *d = calloc(1, sizeof *d);
    if (!d) return (int)cudaErrorMemoryAllocation;
    d->index = index;
    code = start(d);
    if (!code) code = read_properties(d, info);
    if (!code) code = find_functions(d);
    if (code)
        free(d);
    else
        *inside = d;
    return code;
}

static void cuda_close(void *inside) {
    free(inside); /* the context is the process's, and others use it */
}

static int cuda_free_bytes(void *inside, int64_t *bytes) {
    size_t unused = 0, total = 0;
    int before, code = ravel__cuda_enter(inside, &before);
    if (code) return code;
    code = ravel__cuda_leave(inside, before, (int)cudaMemGetInfo(&unused, &total));
    if (!code) *bytes = (int64_t)unused;
    return code;
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static int cuda_alloc(void *inside, int32_t kind, size_t bytes, void **array) {
    RAVEL_ASSERT(bytes > 0 && kind >= RAVEL_HOST && kind <= RAVEL_DEVICE);
    if (kind == RAVEL_HOST) return posix_memalign(array, 256, bytes) ? (int)cudaErrorMemoryAllocation : 0;
    ON_DEVICE(inside,
              kind == RAVEL_PINNED ? cudaHostAlloc(array, bytes, cudaHostAllocPortable) : cudaMalloc(array, bytes));
}

static int cuda_release(void *inside, int32_t kind, void *array) {
    RAVEL_ASSERT(array && kind >= RAVEL_HOST && kind <= RAVEL_DEVICE);
    if (kind == RAVEL_HOST) {
        free(array);
        return 0;
    }
    ON_DEVICE(inside, kind == RAVEL_PINNED ? cudaFreeHost(array) : cudaFree(array));
}

static int cuda_copy(void *inside, void *to, const void *from, size_t bytes, void *stream) {
    ON_DEVICE(inside, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)stream));
}

/* Pinned memory is filled by the device as well: it is mapped there. */
static int cuda_fill(void *inside, void *to, uint8_t value, size_t bytes, void *stream) {
    ON_DEVICE(inside, cudaMemsetAsync(to, value, bytes, (cudaStream_t)stream));
}

/* ---- streams and events --------------------------------------------------------------------------------- */

static int cuda_stream_create(void *inside, void **stream) {
    ON_DEVICE(inside, cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

static void cuda_stream_free(void *inside, void *stream) {
    int before;
    if (ravel__cuda_enter(inside, &before)) return;
    (void)ravel__cuda_leave(inside, before, (int)cudaStreamDestroy((cudaStream_t)stream));
}

static int pending(int code) {
    return code == (int)cudaErrorNotReady ? RAVEL__DRIVER_PENDING : code;
}

static int query_stream(void *inside, void *stream) {
    ON_DEVICE(inside, cudaStreamQuery((cudaStream_t)stream));
}

static int cuda_stream_test(void *inside, void *stream) {
    return pending(query_stream(inside, stream));
}

static int cuda_event_create(void *inside, void **event) {
    ON_DEVICE(inside, cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDefault));
}

static void cuda_event_free(void *inside, void *event) {
    int before;
    if (ravel__cuda_enter(inside, &before)) return;
    (void)ravel__cuda_leave(inside, before, (int)cudaEventDestroy((cudaEvent_t)event));
}

static int cuda_event_record(void *inside, void *event, void *stream) {
    ON_DEVICE(inside, cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream));
}

static int cuda_event_order(void *inside, void *event, void *stream) {
    ON_DEVICE(inside, cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0));
}

static int query_event(void *inside, void *event) {
    ON_DEVICE(inside, cudaEventQuery((cudaEvent_t)event));
}

static int cuda_event_test(void *inside, void *event) {
    return pending(query_event(inside, event));
}

static int cuda_event_elapsed(void *inside, void *from, void *to, double *seconds) {
    float ms = 0;
    int before, code = ravel__cuda_enter(inside, &before);
    if (code) return code;
    code = ravel__cuda_leave(inside, before, (int)cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to));
    if (!code) *seconds = ms * 1e-3;
    return code;
}

/* ---- sharing -------------------------------------------------------------------------------------------- */

static CUmemAllocationProp shareable(const cuda_device *d) {
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = d->index;
    return p;
}

/* Maps a handle at an address of its own, with the access that is wanted. */
static CUresult map_handle(const cuda_device *d, CUmemGenericAllocationHandle handle, size_t bytes, int writable,
                           void **array) {
    RAVEL_ASSERT(bytes > 0 && handle);
    CUdeviceptr at = 0;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = d->index;
    access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    CUresult result = d->cuMemAddressReserve(&at, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) return result;
    result = d->cuMemMap(at, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) goto unreserve;
    result = d->cuMemSetAccess(at, bytes, &access, 1);
    if (result != CUDA_SUCCESS) goto unmap;
    *array = (void *)(uintptr_t)at;
    return CUDA_SUCCESS;
unmap:
    (void)d->cuMemUnmap(at, bytes);
unreserve:
    (void)d->cuMemAddressFree(at, bytes);
    return result;
}

static CUresult round_to_pages(const cuda_device *d, size_t *bytes) {
    CUmemAllocationProp p = shareable(d);
    size_t page = 0;
    CUresult result = d->cuMemGetAllocationGranularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result == CUDA_SUCCESS) *bytes = (*bytes + page - 1) / page * page;
    RAVEL_ASSERT(result != CUDA_SUCCESS || (page > 0 && *bytes > 0 && *bytes % page == 0));
    return result;
}

static CUresult make_shared(const cuda_device *d, size_t *bytes, int *fd, void **array,
                            CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp p = shareable(d);
    CUresult result = round_to_pages(d, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = d->cuMemCreate(handle, *bytes, &p, 0);
    if (result != CUDA_SUCCESS) return result;
    result = d->cuMemExportToShareableHandle(fd, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) goto drop;
    result = map_handle(d, *handle, *bytes, 1, array);
    if (result == CUDA_SUCCESS) return CUDA_SUCCESS;
    (void)close(*fd);
    *fd = -1;
drop:
    (void)d->cuMemRelease(*handle);
    return result;
}

static int cuda_share(void *inside, size_t *bytes, int *fd, void **array, void **handle) {
    CUmemGenericAllocationHandle made = 0;
    int before, code = ravel__cuda_enter(inside, &before);
    if (code) return code;
    CUresult result = make_shared(inside, bytes, fd, array, &made);
    (void)ravel__cuda_leave(inside, before, 0);
    *handle = (void *)(uintptr_t)made;
    return of_driver(result);
}

static int cuda_import(void *inside, int fd, size_t *bytes, int32_t writable, void **array, void **handle) {
    cuda_device *d = inside;
    CUmemGenericAllocationHandle found = 0;
    int before, code = ravel__cuda_enter(inside, &before);
    if (code) return code;
    CUresult result = round_to_pages(d, bytes);
    if (result == CUDA_SUCCESS)
        result =
            d->cuMemImportFromShareableHandle(&found, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS) {
        result = map_handle(d, found, *bytes, writable, array);
        if (result != CUDA_SUCCESS) (void)d->cuMemRelease(found);
    }
    (void)ravel__cuda_leave(inside, before, 0);
    *handle = (void *)(uintptr_t)found;
    return of_driver(result);
}

static void cuda_unshare(void *inside, void *array, size_t bytes, void *handle) {
    cuda_device *d = inside;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)array;
    int before;
    if (ravel__cuda_enter(inside, &before)) return;
    (void)cudaDeviceSynchronize(); /* a kernel may still use it, and unmapping does not wait */
    (void)d->cuMemUnmap(at, bytes);
    (void)d->cuMemAddressFree(at, bytes);
    (void)d->cuMemRelease((CUmemGenericAllocationHandle)(uintptr_t)handle);
    (void)ravel__cuda_leave(inside, before, 0);
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

static int cuda_rows(void *inside, const ravel__rows *rows, void *stream) {
    ON_DEVICE(inside, ravel__cuda_rows(rows, stream));
}

static int cuda_count_mask(void *inside, const ravel__mask_job *job, void *stream) {
    ON_DEVICE(inside, ravel__cuda_count_mask(job, stream));
}

static int cuda_cast(void *inside, const ravel__cast_job *job, void *stream) {
    ON_DEVICE(inside, ravel__cuda_cast(job, stream));
}

static int cuda_compare(void *inside, const ravel__compare_job *job, void *stream) {
    ON_DEVICE(inside, ravel__cuda_compare(job, stream));
}

static const ravel__driver table = {
    .version = RAVEL__DRIVER_VERSION,
    .bytes = sizeof(ravel__driver),
    .kind = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .free_bytes = cuda_free_bytes,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .stream_create = cuda_stream_create,
    .stream_free = cuda_stream_free,
    .stream_test = cuda_stream_test,
    .event_create = cuda_event_create,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_order = cuda_event_order,
    .event_test = cuda_event_test,
    .event_elapsed = cuda_event_elapsed,
    .share = cuda_share,
    .import = cuda_import,
    .unshare = cuda_unshare,
    .rows = cuda_rows,
    .count_mask = cuda_count_mask,
    .cast = cuda_cast,
    .compare = cuda_compare,
};

const ravel__driver *ravel_driver(void) {
    return &table;
}
