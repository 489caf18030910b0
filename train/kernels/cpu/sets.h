/* The tables of the fast CPU sets, and whether this machine can run them. */
#ifndef TRAIN_CPU_SETS_H
#define TRAIN_CPU_SETS_H

#include "train/kernels/kernels.h"

#if defined(__x86_64__)
#define TRAIN_CPU_X86 1
#else
#define TRAIN_CPU_X86 0
#endif

extern const train_kernels train__cpu_base, train__cpu_base_bf16;
#if TRAIN_CPU_X86
extern const train_kernels train__cpu_avx512, train__cpu_avx2, train__cpu_avx512_bf16, train__cpu_avx2_bf16,
    train__cpu_avx512bf16;
#endif

#endif
