/* The CPU set for x86 with AVX512-BF16: activations are rounded to bf16 for the large products with weights. See
 * set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#if TRAIN_CPU_X86

#define CPU_TARGET       "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,fma"
#define CPU_LANES        16
#define CPU_NV           4
#define CPU_GEMM_ROWS    12
#define CPU_GEMM_VECTORS 2
#define CPU_NARROW       train__cpu_avx512bf16
#define CPU_PAIRS        1
#define CPU_TITLE        "cpu-avx512bf16"
#define CPU_DOC          "vectors of 16 (AVX-512), products of bf16 (AVX512-BF16), threads"
#include "train/kernels/cpu/x86.h"

#else
typedef int train__no_avx512bf16; /* ISO C forbids an empty file */
#endif
