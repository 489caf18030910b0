/* The fast CPU set for any machine: vectors of 4, as SSE2 and NEON have them. See set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#include <math.h>
#include <stdlib.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define CPU_LANES  4
#define CPU_TABLE  train__cpu_base
#define CPU_NARROW train__cpu_base_bf16
#define CPU_TITLE  "cpu-base"

/* aarch64 always has NEON, which fuses multiplications and additions and has 32 registers: 24 of them hold a tile of
 * C. */
#if defined(__aarch64__)
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif
#define CPU_NV           4
#define CPU_GEMM_ROWS    6
#define CPU_GEMM_VECTORS 4
#define CPU_DOC          "vectors of 4 (NEON), threads"
#else
#define CPU_NV           2
#define CPU_GEMM_ROWS    6
#define CPU_GEMM_VECTORS 2
#define CPU_DOC          "vectors of 4 (any machine), threads"
#endif
#include "train/kernels/cpu/set.h"
