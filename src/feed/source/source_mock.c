/* Mock data: lengths, prompts and tokens of ravel/mock.h, row by row from the seed and the row's number alone. Fields
 * that the options add are filled with reproducible numbers: 0 .. 1 for floats, 0 .. 99 for integers. */
#include "feed/source/source.h"

#include "base/assert.h"
#include "base/rng.h"

#include <ravel/mock.h>

#include <string.h>

enum { VOCAB = 32000 }; /* where none is given */

typedef struct mock_source {
    ravel_source base;
    ravel_mock *mock;
    int32_t vocab;
} mock_source;

static void fill_numbers(const ravel_field *field, char *place, int64_t count, uint64_t seed) {
    int32_t each = ravel_dtype_bytes(field->dtype);
    int real = ravel_dtype_kind(field->dtype) == 'f';
    for (int64_t i = 0; i < count * (field->width > 1 ? field->width : 1); i++) {
        uint64_t x = ravel__mix64(seed + (uint64_t)i);
        double value = real ? (double)(x >> 52) / 4096 : (double)(x % (field->dtype == RAVEL_BOOL ? 2 : 100));
        if (!ravel_dtype_store(field->dtype, place + i * each, value)) memset(place + i * each, 0, (size_t)each);
    }
}

static ravel_status mock_read(const ravel_source *source, void *scratch, int64_t row, ravel_collector *collector,
                              ravel_error *err) {
    const mock_source *s = (const mock_source *)source;
    int64_t whole = ravel_mock_length(s->mock, row), length = ravel__collector_cut(collector, whole);
    int64_t prompt = ravel_mock_prompt(s->mock, row);
    (void)scratch;
    ravel_status status = ravel__collector_room(collector, length, err);
    if (status) return status;
    if (prompt > length) prompt = length;
    ravel_mock_tokens(s->mock, row, s->vocab, length, ravel__collector_place(collector, RAVEL__FIELD_TOKENS));
    unsigned char *mask = ravel__collector_place(collector, RAVEL__FIELD_MASK);
    RAVEL_ASSERT(prompt >= 0 && prompt <= length && length <= whole);
    memset(mask, 0, (size_t)prompt);
    memset(mask + prompt, 1, (size_t)(length - prompt));
    for (int32_t f = RAVEL__FIELDS_BUILT_IN; f < collector->field_count; f++) {
        uint64_t seed = ravel__mix64(ravel_mock_described(s->mock)->seed + (uint64_t)f) ^ ravel__mix64((uint64_t)row);
        fill_numbers(&collector->fields[f], ravel__collector_place(collector, f),
                     ravel__field_elements(&collector->fields[f], 1, length), seed);
    }
    collector->truncated += length < whole;
    ravel__collector_push(collector, length);
    return RAVEL_OK;
}

static void mock_close(ravel_source *source) {
    ravel_mock_free(((mock_source *)source)->mock);
}

static const ravel__source_kind mock_kind = {"mock", 0, mock_read, NULL, mock_close, NULL};

ravel_status ravel__source_open_mock(const ravel_source_options *options, const ravel_field *fields,
                                     int64_t field_count, ravel_source **source, ravel_error *err) {
    ravel_source *s;
    ravel_status status =
        ravel__source_create(&mock_kind, sizeof(mock_source), fields, field_count, options->allocator, &s, err);
    if (status) return status;
    mock_source *m = (mock_source *)s;
    m->vocab = options->vocab ? (int32_t)options->vocab : VOCAB;
    status = ravel_mock_open(options->mock, options->allocator, &m->mock, err);
    if (!status) status = ravel__source_range(s, ravel_mock_described(m->mock)->count, options, err);
    if (status)
        ravel_source_free(s);
    else
        *source = s;
    return status;
}
