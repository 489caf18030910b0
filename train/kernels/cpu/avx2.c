/* The fast CPU set for x86 with AVX2. See set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#if TRAIN_CPU_X86

#include <immintrin.h>
#include <math.h>
#include <stdlib.h>

#if defined(__clang__)
#pragma clang fp contract(fast)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#pragma GCC optimize("fp-contract=fast")
#endif

#define CPU_LANES        8
#define CPU_NV           2
#define CPU_GEMM_ROWS    6
#define CPU_GEMM_VECTORS 2
#define CPU_TABLE        train__cpu_avx2
#define CPU_NARROW       train__cpu_avx2_bf16
#define CPU_TITLE        "cpu-avx2"
#define CPU_DOC          "vectors of 8 (AVX2), threads"
#include "train/kernels/cpu/set.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int train__no_avx2; /* ISO C forbids an empty file */
#endif
