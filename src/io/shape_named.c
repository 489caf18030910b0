/* Published shapes by name, from the models' own config.json files. */
#include "base/options.h"

#include <ravel/options.h>
#include <ravel/shape.h>

#include <stdio.h>
#include <string.h>

typedef struct named {
    const char *name;
    ravel_shape shape;
} named;

/* clang-format off */
#define ALIKE(norm) 0, 0, 0, 0, 0, 0, 0, {0, 0}, norm, 0, 0, 0, 0, {0}, {0} /* all layers, no factors; whether weights of experts add up to 1 */
#define PLAIN_ROPE(norm) 0, RAVEL_ROPE_PLAIN, 0, 0, 0, 0, 0, ALIKE(norm)
/* Llama 3.2: 8192 positions stretched by 32. */
#define LLAMA32(hidden, layers, heads, kv, dim, ffn) \
    {hidden, layers, heads, kv, dim, ffn, 128256, 0, 0, 0, 0, 0, 131072, 1, 0, 0, 1, 5e5, 1e-5, 0, 0, 0, 0, \
     0, RAVEL_ROPE_LLAMA3, 0, 32, 1, 4, 8192, ALIKE(0)}
#define DENSE(hidden, layers, heads, kv, dim, ffn, vocab, positions, tied, qk_norm, bias, theta, eps) \
    {hidden, layers, heads, kv, dim, ffn, vocab, 0, 0, 0, 0, 0, positions, tied, qk_norm, bias, 1, theta, eps, 0, 0, 0, 0, \
     PLAIN_ROPE(0)}
#define MOE(hidden, layers, heads, kv, dim, ffn, vocab, experts, active, expert, positions, qk_norm, theta, eps) \
    {hidden, layers, heads, kv, dim, ffn, vocab, experts, active, expert, 0, 0, positions, 0, qk_norm, 0, 1, theta, eps, 0, 0, 0, 0, \
     PLAIN_ROPE(1)}

static const named shapes[] = {
    /*                      hidden lay. heads kv  dim  ffn    vocab   positions tied norm bias theta eps */
    {"qwen3-0.6b",     DENSE(1024, 28, 16,  8, 128,  3072, 151936,  40960, 1, 1, 0, 1e6, 1e-6)},
    {"qwen3-1.7b",     DENSE(2048, 28, 16,  8, 128,  6144, 151936,  40960, 1, 1, 0, 1e6, 1e-6)},
    {"qwen3-4b",       DENSE(2560, 36, 32,  8, 128,  9728, 151936,  40960, 1, 1, 0, 1e6, 1e-6)},
    {"qwen3-8b",       DENSE(4096, 36, 32,  8, 128, 12288, 151936,  40960, 0, 1, 0, 1e6, 1e-6)},
    {"qwen3-14b",      DENSE(5120, 40, 40,  8, 128, 17408, 151936,  40960, 0, 1, 0, 1e6, 1e-6)},
    {"qwen3-32b",      DENSE(5120, 64, 64,  8, 128, 25600, 151936,  40960, 0, 1, 0, 1e6, 1e-6)},
    {"qwen2.5-0.5b",   DENSE( 896, 24, 14,  2,  64,  4864, 151936,  32768, 1, 0, 1, 1e6, 1e-6)},
    {"qwen2.5-1.5b",   DENSE(1536, 28, 12,  2, 128,  8960, 151936, 131072, 1, 0, 1, 1e6, 1e-6)},
    {"qwen2.5-3b",     DENSE(2048, 36, 16,  2, 128, 11008, 151936,  32768, 1, 0, 1, 1e6, 1e-6)},
    {"qwen2.5-7b",     DENSE(3584, 28, 28,  4, 128, 18944, 152064, 131072, 0, 0, 1, 1e6, 1e-6)},
    {"qwen2.5-14b",    DENSE(5120, 48, 40,  8, 128, 13824, 152064, 131072, 0, 0, 1, 1e6, 1e-5)},
    {"qwen2.5-32b",    DENSE(5120, 64, 40,  8, 128, 27648, 152064, 131072, 0, 0, 1, 1e6, 1e-5)},
    {"llama-1b",     LLAMA32(2048, 16, 32,  8,  64,  8192)}, /* Llama-3.2-1B */
    {"llama-3b",     LLAMA32(3072, 28, 24,  8, 128,  8192)}, /* Llama-3.2-3B */
    {"llama-8b",       DENSE(4096, 32, 32,  8, 128, 14336, 128256,   8192, 0, 0, 0, 5e5, 1e-5)}, /* Llama-3-8B */
    {"llama-70b",      DENSE(8192, 80, 64,  8, 128, 28672, 128256,   8192, 0, 0, 0, 5e5, 1e-5)}, /* Llama-3-70B */
    {"mistral-7b",     DENSE(4096, 32, 32,  8, 128, 14336,  32768,  32768, 0, 0, 0, 1e6, 1e-5)}, /* v0.3 */
    /*                    hidden lay. heads kv dim  ffn    vocab  experts top expert positions norm theta eps */
    {"mixtral-8x7b",     MOE(4096, 32, 32,  8, 128, 14336,  32000,   8, 2, 14336,  32768, 0, 1e6, 1e-5)},
    {"qwen3-30b-a3b",    MOE(2048, 48, 32,  4, 128,  6144, 151936, 128, 8,   768,  40960, 1, 1e6, 1e-6)},
    {"qwen3-235b-a22b",  MOE(4096, 94, 64,  4, 128, 12288, 151936, 128, 8,  1536,  40960, 1, 1e6, 1e-6)},
    {"deepseek-v3",    {7168, 61, 128, 128, 192, 18432, 129280, 256, 8, 2048, 2048, 3, 163840, 0, 0, 0, 1, 1e4, 1e-6,
                        1536, 512, 64, 128, PLAIN_ROPE(1)}},
};
/* clang-format on */

enum { SHAPES = sizeof shapes / sizeof *shapes };

const char *ravel_shape_name(int32_t index) {
    return index >= 0 && index < SHAPES ? shapes[index].name : NULL;
}

static ravel_status unknown(const char *name, ravel_error *err) {
    const char *names[SHAPES];
    char list[512] = "";
    size_t used = 0;
    for (int32_t i = 0; i < SHAPES; i++) {
        names[i] = shapes[i].name;
        int length = snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
        if (length > 0 && used + (size_t)length < sizeof list) used += (size_t)length;
    }
    const char *near = ravel__suggest(name, names, SHAPES);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no model shape \"%.60s\"%s%s%s; there are %s", name,
                           near ? " (did you mean " : "", near ? near : "", near ? "?)" : "", list);
}

ravel_status ravel_shape_named(const char *name, ravel_shape *shape, ravel_error *err) {
    for (int32_t i = 0; i < SHAPES; i++)
        if (ravel__choice_index(shapes[i].name, name) == 0) {
            *shape = shapes[i].shape;
            return RAVEL_OK;
        }
    return unknown(name, err);
}
