/* A loss mask over one sample: zeros and ones of any dtype, or a prompt's length. */
#ifndef RAVEL_BATCH_MASK_H
#define RAVEL_BATCH_MASK_H

#include "batch/slot.h"

typedef struct ravel__mask {
    const char *data; /* NULL: the prompts decide */
    int32_t kind;     /* ravel_field_kind */
    int32_t element;  /* bytes */
    uint64_t one;     /* the bits of 1 */
    uint64_t minus;   /* the bits of -0 in a float dtype; 0 else */
    const char *name;
} ravel__mask;

ravel_status ravel__mask_init(const ravel_field *field, ravel__mask *mask, ravel_error *err);

/* The sentence for a value that is neither 0 nor 1. */
ravel_status ravel__mask_bad_value(const ravel__mask *mask, int64_t sample, int64_t token, ravel_error *err);

/* Ones among the sequence's tokens 1 .. length-1; E_DATA for a value that is neither 0 nor 1. */
ravel_status ravel__mask_count(const ravel__mask *mask, const ravel__sequence *seq, int64_t *ones, ravel_error *err);

/* Whether token t (1 .. length-1) of the sequence is a loss token. */
int ravel__mask_at(const ravel__mask *mask, const ravel__sequence *seq, int64_t t);

/* weights[t] = value at loss tokens, 0 at the others, for t in 0 .. length-1. */
void ravel__mask_spread_f32(const ravel__mask *mask, const ravel__sequence *seq, float value, float *weights);
void ravel__mask_spread_f64(const ravel__mask *mask, const ravel__sequence *seq, double value, double *weights);

#endif
