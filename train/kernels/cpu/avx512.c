/* The fast CPU set for x86 with AVX-512. See set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#if TRAIN_CPU_X86

#define CPU_TARGET       "avx512f,avx512vl,avx512bw,avx512dq,fma"
#define CPU_LANES        16
#define CPU_NV           4
#define CPU_GEMM_ROWS    12
#define CPU_GEMM_VECTORS 2
#define CPU_TABLE        train__cpu_avx512
#define CPU_NARROW       train__cpu_avx512_bf16
#define CPU_TITLE        "cpu-avx512"
#define CPU_DOC          "vectors of 16 (AVX-512), threads"
#include "train/kernels/cpu/x86.h"

#else
typedef int train__no_avx512; /* ISO C forbids an empty file */
#endif
