/* The hello as bytes. One list of fields, walked by the writer and the reader alike. */
#include "refit/session/hello.h"

#include "refit/model/bytes.h"
#include "base/assert.h"
#include "base/xxh3.h"
#include "refit/model/manifest.h"

#include <stddef.h>

static const unsigned char magic[4] = {'R', 'V', 'L', 'H'};

enum { CHECKSUM_AT = 8, HEAD = 16, BODY = HEAD + RAVEL__HELLO_MESSAGE };

/* A field, and the range that a peer's value must be in. */
typedef struct field {
    size_t offset;
    int32_t bytes;
    const char *name;
    int64_t least, most;
} field;

/* clang-format off */
#define R(name, least, most) \
    { offsetof(ravel__hello, name), (int32_t)sizeof(((ravel__hello *)0)->name), #name, least, most }
/* clang-format on */
#define F(name) R(name, INT64_MIN, INT64_MAX) /* anything */
#define N(name) R(name, 0, INT64_MAX)

static const field fields[] = {
    R(roles, 0, RAVEL__SOURCE | RAVEL__SINK),
    R(sequential, 0, 1),
    R(settings.num_buffers, 0, RAVEL__NUM_BUFFERS_MOST),
    R(settings.size_from, RAVEL__SIZE_DEFAULT, RAVEL__SIZE_EXPLICIT),
    N(settings.buffer_bytes),
    N(settings.afford),
    R(cast, RAVEL_REFIT_EXACT, RAVEL_REFIT_NARROW),
    R(delta, 0, 1),
    R(ignore_extra, 0, 1),
    R(manifest_bytes[0], 0, RAVEL__MANIFEST_BYTES_MOST),
    R(manifest_bytes[1], 0, RAVEL__MANIFEST_BYTES_MOST),
    F(digest[0]),
    F(digest[1]),
    N(held.version),
    N(prepared.version),
    F(held.nonce),
    F(prepared.nonce),
    F(host),
    F(checksum),
};

/* Fields are integers of 4 or 8 bytes. */
static void put_field(unsigned char *p, const void *value, int32_t bytes) {
    RAVEL_ASSERT(bytes == 4 || bytes == 8);
    uint32_t x32;
    uint64_t x64;
    if (bytes == 4)
        memcpy(&x32, value, 4), ravel__put32(p, x32);
    else
        memcpy(&x64, value, 8), ravel__put64(p, x64);
}

static void get_field(const unsigned char *p, void *value, int32_t bytes) {
    RAVEL_ASSERT(bytes == 4 || bytes == 8);
    uint32_t x32 = ravel__get32(p);
    uint64_t x64 = bytes == 8 ? ravel__get64(p) : 0;
    if (bytes == 4)
        memcpy(value, &x32, 4);
    else
        memcpy(value, &x64, 8);
}

static ravel_status check_field(const field *f, const ravel__hello *hello, ravel_error *err) {
    const char *p = (const char *)hello + f->offset;
    int32_t x32 = 0;
    int64_t value = 0;
    if (f->bytes == 4)
        memcpy(&x32, p, 4), value = x32;
    else
        memcpy(&value, p, 8);
    if (value >= f->least && value <= f->most) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA, "its hello says %s %lld; allowed is %lld to %lld", f->name,
                           (long long)value, (long long)f->least, (long long)f->most);
}

/* Ranges of single fields, and consistency between fields. */
static ravel_status check(const ravel__hello *h, ravel_error *err) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (check_field(&fields[i], h, err) != RAVEL_OK) return RAVEL_E_DATA;
    int64_t bytes = h->settings.buffer_bytes;
    if (h->settings.size_from == RAVEL__SIZE_EXPLICIT &&
        (bytes < RAVEL__BUFFER_BYTES_LEAST || bytes > RAVEL__BUFFER_BYTES_MOST))
        return ravel_error_set(err, RAVEL_E_DATA, "its hello says buffers of %lld bytes; allowed is 4k to 1T",
                               (long long)bytes);
    for (int side = 0; side < 2 && h->status == RAVEL_OK; side++)
        if (!(h->roles & (side ? RAVEL__SINK : RAVEL__SOURCE)) != (h->manifest_bytes[side] == 0))
            return ravel_error_set(err, RAVEL_E_DATA, "its hello says roles %d and a manifest of %lld bytes", h->roles,
                                   (long long)h->manifest_bytes[side]);
    return RAVEL_OK;
}

/* Checksum of all bytes except the checksum field. */
static uint64_t sum_of(const unsigned char *bytes) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, CHECKSUM_AT);
    ravel__xxh3_add(&state, bytes + HEAD, RAVEL__HELLO_BYTES - HEAD);
    return ravel__xxh3_end(&state);
}

void ravel__hello_encode(const ravel__hello *hello, unsigned char out[RAVEL__HELLO_BYTES]) {
    RAVEL_ASSERT(hello->status >= 0 && hello->status <= UINT16_MAX);
    unsigned char *p = out + BODY;
    memset(out, 0, RAVEL__HELLO_BYTES);
    memcpy(out, magic, 4);
    ravel__put16(out + 4, RAVEL__HELLO_FORMAT);
    ravel__put16(out + 6, (uint16_t)hello->status);
    memcpy(out + HEAD, hello->message, RAVEL__HELLO_MESSAGE);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; p += fields[i++].bytes)
        put_field(p, (const char *)hello + fields[i].offset, fields[i].bytes);
    RAVEL_ASSERT(p <= out + RAVEL__HELLO_BYTES);
    ravel__put64(out + CHECKSUM_AT, sum_of(out));
}

ravel_status ravel__hello_decode(const unsigned char in[RAVEL__HELLO_BYTES], ravel__hello *hello, ravel_error *err) {
    const unsigned char *p = in + BODY;
    if (memcmp(in, magic, 4) != 0 || ravel__get16(in + 4) != RAVEL__HELLO_FORMAT)
        return ravel_error_set(err, RAVEL_E_MISMATCH, "it does not speak format %d of the refit protocol",
                               RAVEL__HELLO_FORMAT);
    if (ravel__get64(in + CHECKSUM_AT) != sum_of(in))
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "its hello arrived changed");
    hello->status = ravel__get16(in + 6);
    memcpy(hello->message, in + HEAD, RAVEL__HELLO_MESSAGE);
    hello->message[RAVEL__HELLO_MESSAGE - 1] = '\0';
    for (size_t i = 0; i < sizeof fields / sizeof *fields; p += fields[i++].bytes)
        get_field(p, (char *)hello + fields[i].offset, fields[i].bytes);
    RAVEL_ASSERT(p <= in + RAVEL__HELLO_BYTES);
    return check(hello, err);
}
