/* ravel/dtype.h: element types, in the one place where they are listed.
 *
 * A dtype is an int32_t of the list below; every array that Ravel packs, sends, refits or stores says its elements
 * with one. Numbers are stable: they go over wires and into files.
 *
 *     int32_t dtype;
 *     if (ravel_dtype_parse("bfloat16", &dtype, &err)) ...           "bf16", "BF16", "torch.bfloat16" mean the same
 *     size_t bytes = count * (size_t)ravel_dtype_bytes(dtype);
 *     ravel_dtype_convert(RAVEL_F32, weights, RAVEL_BF16, half, count, &err);
 *
 * Everything here is a pure function; nothing is allocated. Elements are little-endian, as on every machine that
 * Ravel builds for.
 */
#ifndef RAVEL_DTYPE_H
#define RAVEL_DTYPE_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, number, bytes, kind, name, names elsewhere)
 * kind: f floating point, i signed, u unsigned, b truth value, - bytes without arithmetic.
 * The safetensors name is NAME. */
#define RAVEL_DTYPE_LIST(X)                             \
    X(U8, 0, 1, 'u', "u8", "uint8|byte")                \
    X(I8, 1, 1, 'i', "i8", "int8|char")                 \
    X(I16, 2, 2, 'i', "i16", "int16|short")             \
    X(U16, 3, 2, 'u', "u16", "uint16")                  \
    X(I32, 4, 4, 'i', "i32", "int32|int")               \
    X(U32, 5, 4, 'u', "u32", "uint32")                  \
    X(I64, 6, 8, 'i', "i64", "int64|long")              \
    X(U64, 7, 8, 'u', "u64", "uint64")                  \
    X(F16, 8, 2, 'f', "f16", "float16|half|fp16")       \
    X(BF16, 9, 2, 'f', "bf16", "bfloat16")              \
    X(F32, 10, 4, 'f', "f32", "float32|float|fp32")     \
    X(F64, 11, 8, 'f', "f64", "float64|double|fp64")    \
    X(BOOL, 12, 1, 'b', "bool", "boolean")              \
    X(F8_E4M3, 13, 1, 'f', "f8-e4m3", "float8-e4m3fn")  \
    X(F8_E5M2, 14, 1, 'f', "f8-e5m2", "float8-e5m2")    \
    X(F8_E8M0, 15, 1, '-', "f8-e8m0", "float8-e8m0fnu") \
    X(C64, 16, 8, '-', "c64", "complex64")

typedef enum ravel_dtype {
#define X(NAME, number, bytes, kind, name, also) RAVEL_##NAME = number,
    RAVEL_DTYPE_LIST(X)
#undef X
} ravel_dtype;
#define RAVEL_DTYPE_COUNT 17

/* Bytes of one element; 0 when `dtype` is none of the list. */
RAVEL_API int32_t ravel_dtype_bytes(int32_t dtype);
/* "bf16"; "BF16", as safetensors headers write it; NULL when `dtype` is none of the list. Static strings. */
RAVEL_API const char *ravel_dtype_name(int32_t dtype);
/* 'f', 'i', 'u', 'b' or '-' (see the list); 0 when `dtype` is none of the list. */
RAVEL_API char ravel_dtype_kind(int32_t dtype);

/* Any of a dtype's names, in any case, '-' or '_', with or without "torch." in front. E_ARGUMENT quotes the word and
 * lists what there is. */
RAVEL_API ravel_status ravel_dtype_parse(const char *text, int32_t *dtype, ravel_error *err);

/* Converts `count` elements. The arrays need no alignment and must not overlap.
 *   float to float       rounded once, to nearest even; NaN stays NaN; what is too large becomes infinity (F8_E4M3,
 *                        which has none: NaN). Between f32 and bf16 or f16 it runs at about memory speed.
 *   integer to integer   E_OVERFLOW names the first element that does not fit, and nothing after it is written;
 *                        BOOL counts as 0 or 1 and cannot be a target.
 *   integer to f32, f64  rounded once.
 *   the same dtype       a copy, of any dtype.
 * Anything else is E_UNSUPPORTED. */
RAVEL_API ravel_status ravel_dtype_convert(int32_t from, const void *source, int32_t to, void *target, int64_t count,
                                           ravel_error *err);

/* One element as a double, and a double as one element (rounded once); for pad values, prints and tests. Reads BOOL
 * and every number; i64 and u64 beyond 2^53 are rounded. Storing into an integer dtype takes whole numbers in range
 * only. 0 when that cannot be done, 1 otherwise. */
RAVEL_API int ravel_dtype_load(int32_t dtype, const void *element, double *value);
RAVEL_API int ravel_dtype_store(int32_t dtype, void *element, double value);

#ifdef __cplusplus
}
#endif
#endif
