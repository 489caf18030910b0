/* The rows of normalizers: see normal.h. */
#include "text/normal.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <string.h>

ravel_status ravel__rewriting_put(ravel__rewriting *r, const char *text, size_t bytes, size_t at) {
    ravel__rewritten *out = r->out;
    size_t need = out->bytes + bytes;
    if (need > INT32_MAX)
        return ravel_error_set(r->err, RAVEL_E_DATA, "the text is longer than 2 GiB once it is normalized");
    if (need > out->text.room || need * sizeof(uint32_t) > out->origins.room) {
        int64_t room = (int64_t)(2 * need + 64);
        ravel_status status = ravel__buffer_reserve(&out->text, r->allocator, room, 1, "a text", r->err);
        if (!status)
            status = ravel__buffer_reserve(&out->origins, r->allocator, room, sizeof(uint32_t), "a text", r->err);
        if (status) return status;
    }
    uint32_t origin = r->origins ? r->origins[at] : (uint32_t)at;
    char *to = (char *)out->text.at + out->bytes;
    uint32_t *origins = (uint32_t *)out->origins.at + out->bytes;
    for (size_t i = 0; i < bytes; i++) to[i] = text[i], origins[i] = origin;
    out->bytes = need;
    return RAVEL_OK;
}

/* Bytes from .. end of what is read, as they are. */
static ravel_status copy(ravel__rewriting *r, const char *text, size_t from, size_t end) {
    ravel_status status = RAVEL_OK;
    for (size_t n; from < end && !status; from += n) {
        n = ravel__utf8_width(text + from, end - from);
        status = ravel__rewriting_put(r, text + from, n, from);
    }
    return status;
}

ravel_status ravel__normal_spaces(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    return ravel__spaces_write(r->out, &step->spacing, text, bytes, r->origins, r->is_start, r->allocator, r->err);
}

ravel_status ravel__normal_nfc(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    (void)step;
    ravel_status status = ravel__nfc_apply(r->nfc, text, bytes, r->allocator, r->err);
    const uint32_t *origins = r->nfc->text_origins.at;
    const char *whole = r->nfc->text.at;
    for (size_t at = 0, n; !status && at < r->nfc->bytes; at += n) {
        n = ravel__utf8_width(whole + at, r->nfc->bytes - at);
        status = ravel__rewriting_put(r, whole + at, n, origins[at]);
    }
    return status;
}

static ravel_status gave_up(ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA,
                           "a pattern of the tokenizer's normalizer takes too many steps on the text");
}

/* Every match of the pattern becomes the content. */
ravel_status ravel__normal_replace(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    size_t done = 0, from = 0, begin, end;
    ravel_status status = RAVEL_OK;
    while (from < bytes && !status) {
        int found = ravel__regex_search(step->regex, r->state, text, bytes, from, &begin, &end);
        if (found < 0) return gave_up(r->err);
        if (!found) break;
        from = end > begin || end == bytes ? end : end + ravel__utf8_width(text + end, bytes - end);
        if (end == begin) continue;
        status = copy(r, text, done, begin);
        if (!status) status = ravel__rewriting_put(r, step->text, step->text_bytes, begin);
        done = end;
    }
    return status ? status : copy(r, text, done, bytes);
}

ravel_status ravel__normal_prepend(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    ravel_status status = ravel__rewriting_put(r, step->text, step->text_bytes, 0);
    return status ? status : copy(r, text, 0, bytes);
}

ravel_status ravel__normal_strip(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    size_t from = step->left ? ravel__spaces_after(text, bytes) : 0;
    size_t after = step->right && from < bytes ? ravel__spaces_before(text, bytes) : 0;
    return copy(r, text, from, bytes - after);
}

ravel_status ravel__normalize(const ravel_tokenizer *t, ravel__rewritten out[2], ravel__nfc *nfc,
                              ravel__regex_state *state, int seen, int is_start, const char **text, size_t *bytes,
                              const uint32_t **origins, const ravel_allocator *allocator, ravel_error *err) {
    ravel__rewriting r = {out, *origins, is_start, nfc, state, allocator, err};
    for (int i = 0; i < t->normal_count && *bytes; i++) {
        const ravel__normal *step = &t->normals[i];
        if (step->needs && !(seen & step->needs)) continue;
        r.out->bytes = 0;
        ravel_status status = step->apply(&r, step, *text, *bytes);
        if (status) return status;
        *text = r.out->text.at;
        *bytes = r.out->bytes;
        *origins = r.origins = r.out->origins.at;
        r.out = r.out == out ? out + 1 : out;
    }
    return RAVEL_OK;
}
