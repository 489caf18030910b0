/* The list of kernel sets: a name, the table, and whether this machine can run it. */
#include "train/kernels/kernels.h"

#include "base/assert.h"
#include "train/kernels/cpu/sets.h"
#include "train/kernels/ref/ref.h"

#include "base/system/module.h"

#include <stdio.h>
#include <string.h>

static int always(void) {
    return 1;
}

#if TRAIN_CPU_X86
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
static int has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

/* The CUDA set is a module of its own, so that nothing here links CUDA. */
static ravel_status load_cuda(const train_kernels **kernels, ravel_error *err) {
    static const ravel__module module = {.what = "CUDA trainer",
                                         .variable = "RAVEL_TRAIN_CUDA_MODULE",
                                         .advice = "build with NVIDIA's nvcc, cuBLASLt and cuDNN installed",
                                         .names = {"libravel_train_cuda.so", NULL}};
    void *handle;
    ravel_status status = ravel__module_load(&module, &handle, err);
    if (status) return status;
    const train_kernels *(*get)(void) = (const train_kernels *(*)(void))ravel__module_find(handle, "train_cuda_set");
    if (!get) return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the CUDA trainer module has no train_cuda_set");
    *kernels = get();
    RAVEL_ASSERT(*kernels && (*kernels)->name && (*kernels)->open);
    return RAVEL_OK;
}

/* A name may be on several rows: the first that the machine can run is taken. */
static const struct {
    const char *name;
    const train_kernels *table;
    int (*usable)(void);
    const char *needs;
    ravel_status (*load)(const train_kernels **kernels, ravel_error *err); /* instead of a table */
} sets[] = {
    {"ref", &REF(table), always, "nothing", NULL},
#if TRAIN_CPU_X86
    {"cpu", &train__cpu_avx512, has_avx512, "", NULL},
    {"cpu", &train__cpu_avx2, has_avx2, "", NULL},
    {"cpu-bf16", &train__cpu_avx512_bf16, has_avx512, "", NULL},
    {"cpu-bf16", &train__cpu_avx2_bf16, has_avx2, "", NULL},
    {"cpu-avx512", &train__cpu_avx512, has_avx512, "AVX-512 (F, VL, BW, DQ)", NULL},
    {"cpu-avx2", &train__cpu_avx2, has_avx2, "AVX2 and FMA", NULL},
    {"cpu-avx512-bf16", &train__cpu_avx512_bf16, has_avx512, "AVX-512 (F, VL, BW, DQ)", NULL},
    {"cpu-avx512bf16", &train__cpu_avx512bf16, has_avx512bf16, "AVX-512 (F, VL, BW, DQ, BF16)", NULL},
    {"cpu-avx2-bf16", &train__cpu_avx2_bf16, has_avx2, "AVX2 and FMA", NULL},
#endif
    {"cpu", &train__cpu_base, always, "", NULL},
    {"cpu-bf16", &train__cpu_base_bf16, always, "", NULL},
    {"cpu-base", &train__cpu_base, always, "", NULL},
    {"cpu-base-bf16", &train__cpu_base_bf16, always, "", NULL},
    {"cuda", NULL, always, "", load_cuda},
};
enum { SETS = sizeof sets / sizeof *sets };

/* Host sets have every slot that is not optional; graphs are all or none. */
static int table_ok(const train_kernels *k) {
    int memory = k->open && k->close && k->reserve && k->scratch_bytes && k->alloc && k->release && k->copy && k->zero;
    int rows = k->matmul && k->copy_rows && k->embed && k->embed_backward && k->rmsnorm && k->rmsnorm_backward;
    int heads = k->rope && k->rope_backward && k->attention && k->attention_backward && k->attention_cached;
    int ends = k->softmax_parts && k->softmax_combine && k->softmax_backward && k->loss && k->sample && k->adamw;
    return memory && rows && heads && ends && !k->capture_begin == !k->capture_end &&
           !k->capture_begin == !k->graph_run;
}

/* Whether an earlier row has the name. */
static int repeated(int row) {
    for (int i = 0; i < row; i++)
        if (strcmp(sets[i].name, sets[row].name) == 0) return 1;
    return 0;
}

/* The i-th name, or NULL after the last. */
static const char *set_name(int32_t index) {
    for (int i = 0; i < SETS; i++)
        if (!repeated(i) && index-- == 0) return sets[i].name;
    return NULL;
}

static ravel_status unknown_set(const char *name, ravel_error *err) {
    char list[256] = "auto";
    const char *known;
    for (int32_t i = 0; (known = set_name(i)); i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, ", %s", known);
    }
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no set of kernels called \"%s\"; there are %s", name, list);
}

ravel_status train_kernels_find(const char *name, const train_kernels **kernels, ravel_error *err) {
    const char *needs = NULL;
    for (int i = 0; i < SETS; i++) {
        if (strcmp(sets[i].name, name) != 0) continue;
        if (sets[i].load) return sets[i].load(kernels, err);
        if (sets[i].usable()) {
            *kernels = sets[i].table;
            RAVEL_ASSERT(table_ok(*kernels));
            return RAVEL_OK;
        }
        needs = sets[i].needs;
    }
    if (!needs) return unknown_set(name, err);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "kernels \"%s\" need a processor with %s; \"auto\" takes what this one can run", name,
                           needs);
}
