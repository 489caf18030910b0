/* The padded layouts: one row per sample, all of the same length. A row is a slot whose sequence has a lead:
 *
 *     right   lead 0
 *     left    lead columns - length
 *     2d      lead prompt_columns - prompt     the prompt ends, and the response begins, at the same column in all rows
 */
#include "batch/rows.h"
#include "device/handle.h"

#include "base/assert.h"
#include "base/options.h"

#include <stddef.h>
#include <string.h>

#define ROW(...) RAVEL__ROW(ravel_padded_options, __VA_ARGS__)

ravel_option_table ravel_padded_option_table(void) {
    static const ravel_option table[] = {
        ROW("side", ENUM, side, "right", 0, 0, RAVEL_PAD_CHOICES, "where the padding goes"),
        ROW("align", I32, align, "1", 1, 1 << 20, NULL, "columns are a multiple of this"),
        ROW("rows", I64, rows, "0", 0, INT32_MAX - 2, NULL, "fixed number of rows; 0: one per sample"),
        ROW("columns", I64, columns, "0", 0, INT32_MAX, NULL,
            "fixed number of columns, in 2d of prompts; 0: the longest"),
        ROW("responses", I64, responses, "0", 0, INT32_MAX, NULL,
            "2d: fixed number of response columns; 0: the longest"),
        {NULL, 0, 0, NULL, 0, 0, NULL, NULL}};
    return table;
}

void ravel_padded_options_default(ravel_padded_options *options) {
    ravel__options_preset(ravel_padded_option_table(), options, sizeof *options);
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

/* The caller's options, with defaults where an older caller has no field; all of the input checked. */
static ravel_status read_inputs(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_padded_options *options,
                                ravel_padded_options *o, ravel_error *err) {
    ravel_padded_options_default(o);
    ravel_status status = ravel__take_options(ravel_padded_option_table(), "padded", options, o, sizeof *o, err);
    if (!status) status = ravel__bin_valid(ragged, bin, err);
    if (status) return status;
    if (o->side == RAVEL_PAD_2D && !ragged->prompts && bin->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the 2d layout needs ragged.prompts");
    return RAVEL_OK;
}

/* The longest of a part, or the fixed number, which must hold it. */
static ravel_status columns_of(const char *what, int64_t longest, int64_t fixed, int32_t align, int64_t *columns,
                               ravel_error *err) {
    if (fixed && fixed % align)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is %lld; it must be a multiple of align, %d", what,
                               (long long)fixed, align);
    if (fixed && longest > fixed)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "the longest has %lld tokens, over %s, %lld", (long long)longest,
                               what, (long long)fixed);
    RAVEL_ASSERT(align >= 1 && longest >= 0);
    *columns = fixed ? fixed : ravel__multiple_up(longest, align);
    RAVEL_ASSERT(*columns >= longest);
    return RAVEL_OK;
}

static ravel_status set_columns(const ravel_padded_options *o, int64_t prompt, int64_t response, ravel_padded *p,
                                ravel_error *err) {
    int64_t second = 0;
    int both = o->side == RAVEL_PAD_2D;
    ravel_status status = columns_of("columns", both ? prompt : p->max_length, o->columns, o->align, &p->columns, err);
    if (status || !both) return status;
    status = columns_of("responses", response, o->responses, o->align, &second, err);
    RAVEL_ASSERT(status || second >= response);
    p->prompt_columns = p->columns;
    p->columns += second;
    return status;
}

static ravel_status measure(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_padded_options *options,
                            ravel_padded *p, ravel_error *err) {
    ravel_padded_options own, *o = &own;
    memset(p, 0, sizeof *p);
    ravel_status status = read_inputs(ragged, bin, options, o, err);
    if (status) return status;
    int64_t prompt = 0, response = bin->count == 0;
    p->max_length = bin->count == 0;
    for (int64_t i = 0; i < bin->count; i++) {
        ravel__sequence g;
        status = ravel__sequence_get(ragged, bin->samples[i], &g, err);
        if (status) return status;
        if (g.length > p->max_length) p->max_length = g.length;
        if (g.prompt > prompt) prompt = g.prompt;
        if (g.length - g.prompt > response) response = g.length - g.prompt;
        p->actual_tokens += g.length;
    }
    p->samples_count = bin->count;
    p->rows = bin->count ? bin->count : 1;
    if (o->rows && p->rows > o->rows)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "the bin has %lld samples, over rows, %lld",
                               (long long)bin->count, (long long)o->rows);
    if (o->rows) p->rows = o->rows;
    status = set_columns(o, prompt, response, p, err);
    if (!status && p->columns > INT32_MAX)
        status = ravel_error_set(err, RAVEL_E_OVERFLOW, "%lld columns are over 2^31 - 1", (long long)p->columns);
    RAVEL_ASSERT(status || (p->max_length <= p->columns && p->prompt_columns <= p->columns));
    RAVEL_ASSERT(status || (p->samples_count <= p->rows && p->actual_tokens <= p->rows * p->columns));
    return status;
}

/* The caller's record, with 0 if an older caller has no field. */
static ravel_status read_record(const ravel_padded *padded, ravel_padded *own, ravel_error *err) {
    return ravel__record_read("padded", padded, padded->size, offsetof(ravel_padded, place), own, sizeof *own, err);
}

ravel_status ravel_padded_measure(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_padded_options *options,
                                  ravel_padded *padded, ravel_error *err) {
    ravel_padded fresh;
    ravel_status status = read_record(padded, &fresh, err);
    if (!status) status = measure(ragged, bin, options, &fresh, err);
    if (status) return status;
    padded->samples_count = fresh.samples_count;
    padded->rows = fresh.rows;
    padded->columns = fresh.columns;
    padded->prompt_columns = fresh.prompt_columns;
    padded->actual_tokens = fresh.actual_tokens;
    padded->max_length = fresh.max_length;
    return RAVEL_OK;
}

/* ---- one block ------------------------------------------------------------------------------------------ */

static int64_t field_positions(const ravel_padded *p, const ravel_field *field) {
    RAVEL_ASSERT(p->rows >= 0 && p->columns >= 0);
    return field->kind == RAVEL_FIELD_SAMPLE ? p->rows : p->rows * p->columns;
}

static size_t field_each(const ravel_field *field) {
    return (size_t)(field->width > 0 ? field->width : 1) * (size_t)ravel_dtype_bytes(field->dtype);
}

size_t ravel_padded_field_bytes(const ravel_padded *padded, const ravel_field *field) {
    return (size_t)field_positions(padded, field) * field_each(field);
}

static size_t cut(const ravel_ragged *ragged, void *block, ravel_padded *p) {
    ravel__cutter cutter = ravel__cutter_begin(block);
    int64_t n = p->rows * p->columns;
    int ours = !p->fields || p->fields == p->placed; /* a caller's table stays where it is */
    if (ours && p->place.kind != RAVEL_DEVICE) {
        void **table = ravel__cutter_take(&cutter, ragged->field_count, sizeof *table);
        if (block) p->fields = p->placed = table;
    }
    p->samples = ravel__cutter_take(&cutter, p->rows, sizeof *p->samples);
    p->starts = ravel__cutter_take(&cutter, p->rows, sizeof *p->starts);
    p->positions = ravel__cutter_take(&cutter, n, sizeof *p->positions);
    p->attention_mask = ravel__cutter_take(&cutter, n, sizeof *p->attention_mask);
    p->loss_mask = ravel__cutter_take(&cutter, n, sizeof *p->loss_mask);
    for (int64_t i = 0; i < ragged->field_count; i++) {
        const ravel_field *field = &ragged->fields[i];
        void *array = ravel__cutter_take(&cutter, field_positions(p, field), field_each(field));
        if (block && p->fields) p->fields[i] = array;
    }
    return cutter.used;
}

size_t ravel_padded_bytes(const ravel_ragged *ragged, const ravel_padded *padded) {
    ravel_padded own;
    return read_record(padded, &own, NULL) ? SIZE_MAX : cut(ragged, NULL, &own);
}

void ravel_padded_place(const ravel_ragged *ragged, void *block, ravel_padded *padded) {
    ravel_padded own;
    if (read_record(padded, &own, NULL)) return; /* measuring has set the error */
    (void)cut(ragged, block, &own);
    memcpy(padded, &own, padded->size);
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* The sequence of row i; an empty row is a filler: one token, no sample. */
static ravel__sequence row_sequence(const ravel_ragged *ragged, const ravel_bin *bin, int32_t side,
                                    const ravel_padded *p, int64_t i) {
    RAVEL_ASSERT(i >= 0 && i < p->rows && bin->count <= p->rows);
    ravel__sequence seq = ravel__no_sample(1);
    if (i < bin->count) (void)ravel__sequence_get(ragged, bin->samples[i], &seq, NULL);
    if (side == RAVEL_PAD_LEFT) seq.lead = p->columns - seq.length;
    if (side == RAVEL_PAD_2D && i < bin->count) seq.lead = p->prompt_columns - seq.prompt;
    RAVEL_ASSERT(seq.lead >= 0 && seq.lead + seq.length <= p->columns);
    return seq;
}

static ravel_status check_same(const ravel_padded *padded, const ravel_padded *fresh, ravel_error *err) {
    if (padded->rows == fresh->rows && padded->columns == fresh->columns &&
        padded->prompt_columns == fresh->prompt_columns)
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "padded was measured as %lld x %lld, and this bin is %lld x %lld: measure it again before "
                           "packing",
                           (long long)padded->rows, (long long)padded->columns, (long long)fresh->rows,
                           (long long)fresh->columns);
}

/* A field at a time: rows are long, and a fill-heavy layout gains nothing from keeping samples in the cache. */
static ravel_status pack_field(const ravel_ragged *ragged, const ravel_bin *bin, int32_t side, const ravel_padded *p,
                               int64_t f, ravel_error *err) {
    RAVEL_ASSERT(f >= 0 && f < ragged->field_count && p->fields && p->fields[f]);
    const ravel_field *field = &ragged->fields[f];
    ravel__track track;
    ravel_status status = ravel__track_init(field, &track, err);
    if (status) return status;
    ravel__writer_open(&track.writer, p->fields[f], ravel__writer_streams(ravel_padded_field_bytes(p, field)));
    if (!field->data && bin->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no data", field->name ? field->name : "");
    if (bin->count) status = ravel__host_source(field, err);
    if (status) return status;
    const ravel__run run = {0, p->columns, 1};
    for (int64_t i = 0; i < p->rows; i++) {
        ravel__sequence seq = row_sequence(ragged, bin, side, p, i);
        if (track.kind == RAVEL_FIELD_SAMPLE)
            ravel__track_pack_sample(&track, &seq);
        else
            ravel__track_pack(&track, &seq, &run);
    }
    RAVEL_ASSERT(track.writer.at == (char *)p->fields[f] + ravel_padded_field_bytes(p, field));
    ravel__writer_close(&track.writer);
    return RAVEL_OK;
}

static void pack_derived(const ravel_ragged *ragged, const ravel_bin *bin, int32_t side, const ravel_padded *p) {
    ravel__derived derived;
    int stream = ravel__writer_streams((size_t)(p->rows * p->columns) * sizeof *p->positions);
    memset(&derived, 0, sizeof derived);
    ravel__derived_add(&derived, RAVEL__POSITIONS, p->positions, stream);
    ravel__derived_add(&derived, RAVEL__SHOWN, p->attention_mask, stream);
    ravel__derived_add(&derived, RAVEL__LOSS, p->loss_mask, stream);
    const ravel__run run = {0, p->columns, 1};
    for (int64_t i = 0; i < p->rows; i++) {
        ravel__sequence seq = row_sequence(ragged, bin, side, p, i);
        RAVEL_ASSERT(seq.index < ragged->count);
        if (p->samples) p->samples[i] = (int32_t)seq.index;
        if (p->starts) p->starts[i] = (int32_t)seq.lead;
        if (p->host_samples) p->host_samples[i] = (int32_t)seq.index;
        if (p->host_starts) p->host_starts[i] = (int32_t)seq.lead;
        ravel__derived_pack(&derived, &seq, 0, &run);
    }
    ravel__derived_close(&derived);
}

/* ---- on a device ---------------------------------------------------------------------------------------- */

static ravel_status book_fields(ravel__book *book, const ravel_ragged *ragged, const ravel_bin *bin,
                                const ravel_padded *p, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (ragged->field_count && !p->fields)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "padded.fields is NULL: arrays on a device need a table of %lld pointers in host memory",
                               (long long)ragged->field_count);
    for (int64_t f = 0; !status && f < ragged->field_count; f++) {
        const ravel_field *field = &ragged->fields[f];
        ravel__track track;
        if (!p->fields[f]) continue;
        status = ravel__track_init(field, &track, err);
        if (!status && !field->data && bin->count)
            status = ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no data", field->name ? field->name : "");
        if (!status && bin->count) status = ravel__book_source(field, p->place.stream, err);
        if (!status)
            ravel__book_field(book, &track, field->data, p->fields[f],
                              track.kind == RAVEL_FIELD_SAMPLE ? p->rows : p->rows * p->columns);
    }
    return status;
}

static ravel_status pack_device(const ravel_ragged *ragged, const ravel_bin *bin, int32_t side, const ravel_padded *p,
                                ravel_error *err) {
    const ravel__book_room room = {
        .tracks = ragged->field_count + 5, .runs = p->rows, .sequences = p->rows, .list_words = 2 * p->rows};
    const ravel__run run = {0, p->columns, 1};
    ravel__book book;
    ravel_status status = ravel__book_open(&book, &room, err);
    if (status) return status;
    int32_t *samples = ravel__book_list(&book, p->samples, p->rows);
    int32_t *starts = ravel__book_list(&book, p->starts, p->rows);
    for (int64_t i = 0; i < p->rows; i++) {
        ravel__sequence seq = row_sequence(ragged, bin, side, p, i);
        samples[i] = book.samples[i] = (int32_t)seq.index;
        starts[i] = (int32_t)seq.lead;
        ravel__book_run(&book, &seq, &run, 0);
    }
    status = book_fields(&book, ragged, bin, p, err);
    if (!status) {
        ravel__book_derived(&book, RAVEL__ROW_POSITIONS, p->positions, 4);
        ravel__book_derived(&book, RAVEL__ROW_SHOWN, p->attention_mask, 1);
        ravel__book_derived(&book, RAVEL__ROW_LOSS, p->loss_mask, 4);
        status = ravel__book_launch(&book, p->place.stream, err);
    }
    if (!status && p->host_samples) memcpy(p->host_samples, samples, (size_t)p->rows * sizeof *samples);
    if (!status && p->host_starts) memcpy(p->host_starts, starts, (size_t)p->rows * sizeof *starts);
    ravel__book_close(&book);
    return status;
}

ravel_status ravel_padded_pack(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_padded_options *options,
                               const ravel_padded *padded, ravel_error *err) {
    ravel_padded fresh, p;
    ravel_status status = read_record(padded, &p, err);
    if (!status) status = measure(ragged, bin, options, &fresh, err);
    if (!status) status = check_same(&p, &fresh, err);
    if (!status) status = ravel__place_check(&p.place, RAVEL__ALL_KINDS, "padded", err);
    if (!status && p.place.kind == RAVEL_DEVICE) return pack_device(ragged, bin, options->side, &p, err);
    for (int64_t f = 0; f < ragged->field_count && !status; f++)
        if (p.fields && p.fields[f]) status = pack_field(ragged, bin, options->side, &p, f, err);
    if (status) return status;
    pack_derived(ragged, bin, options->side, &p);
    return RAVEL_OK;
}

/* ---- back ----------------------------------------------------------------------------------------------- */

/* Row i's sample and its columns; index -1: no sample. */
static ravel_status find_row(const ravel_ragged *ragged, const ravel_padded *p, int64_t i, ravel__sequence *seq,
                             ravel_error *err) {
    RAVEL_ASSERT(i >= 0 && i < p->rows);
    int there = p->place.kind == RAVEL_DEVICE;
    const int32_t *samples = there ? p->host_samples : p->samples, *starts = there ? p->host_starts : p->starts;
    *seq = ravel__no_sample(0);
    if (samples[i] < 0) return RAVEL_OK;
    ravel_status status = ravel__sequence_get(ragged, samples[i], seq, err);
    if (status) return status;
    seq->lead = starts[i];
    if (seq->lead < 0 || seq->lead + seq->length > p->columns)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "sample %lld has %lld tokens from column %lld of %lld",
                               (long long)seq->index, (long long)seq->length, (long long)seq->lead,
                               (long long)p->columns);
    return RAVEL_OK;
}

static ravel_status unpack_host(const ravel_ragged *ragged, const ravel_padded *p, const ravel__track *track,
                                const void *packed, void *out, ravel_error *err) {
    RAVEL_ASSERT(p->place.kind != RAVEL_DEVICE);
    const ravel__run run = {0, p->columns, 1};
    for (int64_t i = 0; i < p->rows; i++) {
        ravel__sequence seq;
        ravel_status status = find_row(ragged, p, i, &seq, err);
        if (status) return status;
        if (seq.index < 0) continue;
        if (track->kind == RAVEL_FIELD_SAMPLE)
            ravel__track_unpack_sample(track, &seq, packed, i, out);
        else
            ravel__track_unpack(track, &seq, &run, packed, i * p->columns, out);
    }
    return RAVEL_OK;
}

static ravel_status unpack_device(const ravel_ragged *ragged, const ravel_padded *p, const ravel__track *track,
                                  const void *packed, void *out, ravel_error *err) {
    RAVEL_ASSERT(p->place.kind == RAVEL_DEVICE);
    const ravel__book_room room = {.tracks = 1, .runs = p->rows, .sequences = p->rows};
    const ravel__run run = {0, p->columns, 1};
    ravel__book book;
    ravel_status status = ravel__book_open(&book, &room, err);
    if (status) return status;
    book.head->scatter = 1;
    for (int64_t i = 0; !status && i < p->rows; i++) {
        ravel__sequence seq;
        status = find_row(ragged, p, i, &seq, err);
        if (status) break;
        book.samples[i] = (int32_t)seq.index;
        ravel__book_run(&book, &seq, &run, 0);
    }
    if (!status) {
        ravel__book_field(&book, track, packed, out, track->kind == RAVEL_FIELD_SAMPLE ? p->rows : book.positions);
        status = ravel__book_launch(&book, p->place.stream, err);
    }
    ravel__book_close(&book);
    return status;
}

ravel_status ravel_padded_unpack(const ravel_ragged *ragged, const ravel_padded *padded, const ravel_field *field,
                                 const void *packed, void *out, ravel_error *err) {
    ravel__track track;
    ravel_padded p;
    ravel_status status = read_record(padded, &p, err);
    if (!status) status = ravel__track_init(field, &track, err);
    if (!status) status = ravel__place_check(&p.place, RAVEL__ALL_KINDS, "padded", err);
    if (status) return status;
    int there = p.place.kind == RAVEL_DEVICE;
    int known = there ? p.host_samples && p.host_starts : p.samples && p.starts;
    if (!known || field->kind == RAVEL_FIELD_SPREAD)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "unpacking needs %s, and a field that is not spread",
                               there ? "padded.host_samples and padded.host_starts"
                                     : "padded.samples and padded.starts");
    return there ? unpack_device(ragged, &p, &track, packed, out, err)
                 : unpack_host(ragged, &p, &track, packed, out, err);
}
