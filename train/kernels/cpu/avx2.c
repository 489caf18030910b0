/* The fast CPU set for x86 with AVX2. See set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#if TRAIN_CPU_X86

#define CPU_TARGET       "avx2,fma"
#define CPU_LANES        8
#define CPU_NV           2
#define CPU_GEMM_ROWS    6
#define CPU_GEMM_VECTORS 2
#define CPU_TABLE        train__cpu_avx2
#define CPU_NARROW       train__cpu_avx2_bf16
#define CPU_TITLE        "cpu-avx2"
#define CPU_DOC          "vectors of 8 (AVX2), threads"
#include "train/kernels/cpu/x86.h"

#else
typedef int train__no_avx2; /* ISO C forbids an empty file */
#endif
