/* A set for processors that have CPU_TARGET, which the rest of the program does not need: set.h between pragmas that say so. */
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>

#define CPU_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define CPU_EXPAND(...) CPU_PRAGMA(__VA_ARGS__)

#if defined(__clang__)
#pragma clang fp contract(fast)
CPU_EXPAND(clang attribute push(__attribute__((target(CPU_TARGET))), apply_to = function))
#include "train/kernels/cpu/set.h"
#pragma clang attribute pop
#else
#pragma GCC push_options
CPU_EXPAND(GCC target(CPU_TARGET))
#if CPU_LANES == 16
#pragma GCC target("prefer-vector-width=512")
#endif
#pragma GCC optimize("fp-contract=fast")
#include "train/kernels/cpu/set.h"
#pragma GCC pop_options
#endif
