/* cuDNN's attention plans for GPUs of every generation since Ampere, from descriptions of them: whether an engine is there for
 * what the trainer asks for. Needs a driver (cuDNN compiles with its help), not these GPUs: a plan for another generation
 * is compiled, and then cannot be loaded here. If there is none, the trainer uses its own kernels; so the test prints a table,
 * and asks only for what the manual promises. */
#include "tests/unit/check.h"
#include "train/kernels/cuda/attention_graph.h"

#include <stdio.h>
#include <string.h>

typedef struct gpu {
    const char *name;
    int capability, multiprocessors, threads, blocks,
        shared; /* of a multiprocessor; shared memory of a block, at most */
    long cache, memory;
} gpu;

static const gpu GPUS[] = {
    {"A100", 800, 108, 2048, 32, 166912, 41943040, 85000000000},
    {"A10", 860, 72, 1536, 16, 101376, 6291456, 24000000000},
    {"L40S", 890, 142, 1536, 24, 101376, 100663296, 48000000000},
    {"H200", 900, 132, 2048, 32, 232448, 62914560, 150110000000},
    {"B200", 1000, 148, 2048, 32, 232448, 132120576, 190000000000},
    {"RTX 5090", 1200, 170, 1536, 24, 101376, 100663296, 33000000000},
};

static void describe(const gpu *g, char *text, size_t size) {
    snprintf(text, size,
             "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA %s\",\"deviceVer\":%d,\"driverVer\":13000,\"isTccDriver\":0,"
             "\"l2CacheSize\":%ld,\"maxBlockSize\":[1024,1024,64],\"maxGridSize\":[2147483647,65535,65535],"
             "\"maxCtasPerSM\":%d,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
             "\"memClockRateKHz\":3201000,\"multiProcessorCount\":%d,\"pciDeviceId\":0,\"regsPerBlock\":65536,"
             "\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1980000,\"supportCoopLaunch\":1,"
             "\"totalGlobalMem\":%ld,\"warpSize\":32}",
             g->name, g->capability, g->cache, g->blocks, g->shared, g->threads, g->multiprocessors, g->memory);
}

/* '1': there is a plan; 'c': one was compiled for that GPU, which this machine has not; '0': none. */
static char plan_there(const gpu *g, int backward, int deterministic, cuda_plan_mask mask, int dim) {
    cuda_plan_key key;
    cudnnBackendDescriptor_t plan;
    int64_t workspace;
    char properties[1000], said[300] = "";
    memset(&key, 0, sizeof key);
    key.samples = 8, key.longest_query = 256, key.longest_key = 1024, key.heads = 16, key.kv_heads = 8,
    key.head_dim = dim;
    key.ld_q = 16 * dim, key.ld_k = key.ld_v = 8 * dim;
    key.backward = backward, key.deterministic = deterministic, key.mask = (int32_t)mask;
    describe(g, properties, sizeof properties);
    cudnnStatus_t s = cuda_plan_build(NULL, properties, &key, &plan, &workspace, said, sizeof said);
    if (!s) cudnnBackendDestroyDescriptor(plan);
    return !s ? '1' : s == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER ? 'c' : '0';
}

TEST(gpu_plans_of_attention_for_every_generation) {
    static const char *const masks[PLAN_MASKS] = {"causal", "sliding", "all", "at end", "sliding at end"};
    printf("    cuDNN %zu has plans for: forward / backward / backward, deterministic\n", cudnnGetVersion());
    for (size_t i = 0; i < sizeof GPUS / sizeof *GPUS; i++)
        for (int dim = 64; dim <= 128; dim += 64) {
            printf("    %-9s head size %3d:", GPUS[i].name, dim);
            for (int mask = 0; mask < PLAN_MASKS; mask++) {
                char forward = plan_there(&GPUS[i], 0, 0, (cuda_plan_mask)mask, dim);
                char backward = plan_there(&GPUS[i], 1, 0, (cuda_plan_mask)mask, dim);
                char repeats = plan_there(&GPUS[i], 1, 1, (cuda_plan_mask)mask, dim);
                printf("  %s %c %c %c", masks[mask], forward, backward, repeats);
                CHECK(forward != '0' && backward != '0' && (repeats != '0' || GPUS[i].capability != 900));
            }
            printf("\n");
        }
}
