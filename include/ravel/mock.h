/* ravel/mock.h (experimental): mock data sets, the same on every machine.
 *
 * A mock is described by the JSON that Megatron's mock SFT data set takes:
 *
 *     {"mode": "file", "path": "lengths.csv"}
 *     {"mode": "distribution", "type": "lognormal", "min_seq_len": 1024, "max_seq_len": 8192, "mean_seq_len": 4096,
 *      "lognormal_sigma": 1.1}
 *
 *   lognormal   mu = ln(mean_seq_len) - lognormal_sigma^2 / 2, clipped to min .. max as Megatron does
 *   uniform     min .. max
 *   zipf        P(length) ~ length^-zipf_exponent on min .. max
 *   constant    mean_seq_len
 *   bimodal     lognormal around mean_seq_len or, for long_share of the samples, around long_seq_len
 *
 * and for all of them: "count" samples, a "seed", and "prompt_share" (0: none), the mean share of a sample that is
 * prompt. What is left out: max 8192 (or twice the mean), min max/8, mean max/2 (bimodal: max/8, and 3/4 max for the
 * long ones), sigma 1.1 (bimodal: 0.25), exponent 1.2, long_share 0.2, count 4096. In a file, samples repeat if
 * count is larger.
 *
 * Sample i depends on the seed and on i alone, so any rank can make any sample without the ones before it, and a larger
 * count only adds samples. Only additions, multiplications, divisions and square roots of IEEE doubles are used.
 *
 *     ravel_mock *mock = NULL;
 *     if (ravel_mock_open(text, NULL, &mock, &err)) ...
 *     for (int64_t i = 0; i < n; i++) lengths[i] = ravel_mock_length(mock, i);
 *     ravel_mock_free(mock);
 */
#ifndef RAVEL_MOCK_H
#define RAVEL_MOCK_H

#include <ravel/lengths.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ravel_mock_mode { RAVEL_MOCK_DISTRIBUTION, RAVEL_MOCK_FILE } ravel_mock_mode;
#define RAVEL_MOCK_MODE_CHOICES "distribution|file"

typedef enum ravel_mock_type {
    RAVEL_MOCK_LOGNORMAL,
    RAVEL_MOCK_UNIFORM,
    RAVEL_MOCK_ZIPF,
    RAVEL_MOCK_CONSTANT,
    RAVEL_MOCK_BIMODAL
} ravel_mock_type;
#define RAVEL_MOCK_TYPE_CHOICES "lognormal|uniform|zipf|constant|bimodal"

/* The members of the JSON; 0 (NULL) means: the default, see above. */
typedef struct ravel_mock_options {
    size_t size; /* sizeof(ravel_mock_options) */
    int32_t mode;
    int32_t type;
    int64_t min_seq_len;
    int64_t max_seq_len;
    double mean_seq_len;
    double lognormal_sigma; /* -1: the default, since 0 is a sigma too */
    double zipf_exponent;
    double long_seq_len;
    double long_share; /* -1: the default */
    double prompt_share;
    int64_t count;
    uint64_t seed;
    const char *path;                 /* of mode file */
    const char *field;                /* and what to read in it, as in ravel/lengths.h */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the mock */
} ravel_mock_options;

/* Read-only and usable from several threads at once; owned by the library until ravel_mock_free. */
typedef struct ravel_mock ravel_mock;

/* As command lines give it: JSON text, or "@path" of a file that holds it. */
RAVEL_API ravel_status ravel_mock_open(const char *text, const ravel_allocator *allocator, ravel_mock **mock,
                                       ravel_error *err);
RAVEL_API void ravel_mock_free(ravel_mock *mock);

/* Its options, defaults filled in; valid as long as the mock. */
RAVEL_API const ravel_mock_options *ravel_mock_described(const ravel_mock *mock);

/* Sample `index` (any number from 0; the count is not a limit): its length, and how much of it is prompt (0 without
 * prompt_share). */
RAVEL_API int64_t ravel_mock_length(const ravel_mock *mock, int64_t index);
RAVEL_API int64_t ravel_mock_prompt(const ravel_mock *mock, int64_t index);
/* The first `count` token ids of the sample, 0 .. vocab - 1; vocab is at least 1. */
RAVEL_API void ravel_mock_tokens(const ravel_mock *mock, int64_t index, int32_t vocab, int64_t count, int32_t *tokens);

/* All of them, count as described, in the form that files are read in. */
RAVEL_API ravel_status ravel_mock_lengths(const ravel_mock *mock, ravel_lengths **lengths, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
