#include "tests/unit/store.h"

#include <stdlib.h>

static void random_field(store *s, ravel__rng *r, int i) {
    static const int32_t dtypes[] = {RAVEL_U8,   RAVEL_I32, RAVEL_I64, RAVEL_F32,  RAVEL_F64,
                                     RAVEL_BF16, RAVEL_F16, RAVEL_I8,  RAVEL_BOOL, RAVEL_U16};
    static const double pads[] = {0, 1, -100, 0.5, 255, 7};
    ravel_field *f = &s->fields[i];
    snprintf(s->names[i], sizeof s->names[i], "field %d", i);
    f->name = s->names[i];
    f->kind = i % 5; /* every kind is there */
    f->dtype = dtypes[ravel__rng_below(r, 10)];
    f->width = (int64_t)(ravel__rng_below(r, 4) ? ravel__rng_below(r, 2) : 1 + ravel__rng_below(r, 5));
    unsigned char element[8];
    do f->pad = pads[ravel__rng_below(r, 6)];
    while (!ravel_dtype_store(f->dtype, element, f->pad));
    int64_t bytes = ravel_field_bytes(&s->ragged, f);
    s->data[i] = malloc((size_t)bytes + 1);
    for (int64_t b = 0; b < bytes; b++) s->data[i][b] = (unsigned char)ravel__rng_next(r);
    f->data = s->data[i];
}

void store_make(store *s, ravel__rng *r, int64_t count, int64_t longest) {
    memset(s, 0, sizeof *s);
    s->ragged = (ravel_ragged){.size = sizeof s->ragged, .count = count, .offsets = s->offsets, .prompts = s->prompts};
    for (int64_t i = 0; i < count; i++) {
        s->lengths[i] = ravel__rng_below(r, 5) ? 1 + (int64_t)ravel__rng_below(r, (uint64_t)longest) : 1;
        s->offsets[i + 1] = s->offsets[i] + s->lengths[i];
        s->prompts[i] = (int64_t)ravel__rng_below(r, (uint64_t)s->lengths[i] + 1);
        s->everyone[i] = (int32_t)i;
    }
    s->ragged.fields = s->fields;
    s->ragged.field_count = 1 + (int64_t)ravel__rng_below(r, ravel__rng_below(r, 8) ? 12 : STORE_FIELDS);
    for (int i = 0; i < s->ragged.field_count; i++) random_field(s, r, i);
}

void store_free(store *s) {
    for (int i = 0; i < STORE_FIELDS; i++) free(s->data[i]);
}

size_t store_each(const ravel_field *field) {
    return (size_t)(field->width ? field->width : 1) * (size_t)ravel_dtype_bytes(field->dtype);
}

const unsigned char *store_expect(const store *s, int64_t field, int64_t sample, int64_t t, unsigned char *pad) {
    const ravel_field *f = &s->fields[field];
    int32_t element = ravel_dtype_bytes(f->dtype);
    for (int64_t w = 0; w < (f->width ? f->width : 1); w++) {
        memset(pad + w * element, 0, (size_t)element);
        ravel_dtype_store(f->dtype, pad + w * element, f->pad);
    }
    if (sample < 0) return pad;
    int64_t at = -1, length = s->lengths[sample];
    if (f->kind == RAVEL_FIELD_SAMPLE) at = sample;
    if (f->kind == RAVEL_FIELD_SPREAD && t >= 0 && t < length) at = sample;
    if (f->kind == RAVEL_FIELD_TOKEN && t >= 0 && t < length) at = s->offsets[sample] + t;
    if (f->kind == RAVEL_FIELD_NEXT && t >= 0 && t + 1 < length) at = s->offsets[sample] + t + 1;
    if (f->kind == RAVEL_FIELD_STEP && t >= 0 && t + 1 < length) {
        at = t;
        for (int64_t i = 0; i < sample; i++) at += s->lengths[i] - 1;
    }
    return at < 0 ? pad : s->data[field] + (size_t)at * store_each(f);
}

bool store_same(const store *s, int64_t field, const unsigned char *a, const unsigned char *b) {
    const ravel_field *f = &s->fields[field];
    size_t each = store_each(f);
    if (f->kind != RAVEL_FIELD_NEXT) return memcmp(a, b, (size_t)ravel_field_bytes(&s->ragged, f)) == 0;
    for (int64_t i = 0; i < s->ragged.count; i++) { /* all but the first token, which nothing predicts */
        size_t from = (size_t)(s->offsets[i] + 1) * each, bytes = (size_t)(s->lengths[i] - 1) * each;
        if (memcmp(a + from, b + from, bytes) != 0) return false;
    }
    return true;
}
