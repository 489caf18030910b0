/* The fast CPU set for any machine: vectors of 4, as SSE2 and NEON have them. See set.h. */
#include "train/kernels/cpu/cpu.h"
#include "train/kernels/cpu/sets.h"

#include <math.h>
#include <stdlib.h>

#define CPU_LANES        4
#define CPU_NV           2
#define CPU_GEMM_ROWS    6
#define CPU_GEMM_VECTORS 2
#define CPU_TABLE        train__cpu_base
#define CPU_TITLE        "cpu-base"
#define CPU_DOC          "vectors of 4 (any machine), threads"
#include "train/kernels/cpu/set.h"
