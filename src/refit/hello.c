/* The hello as bytes. One list of fields, walked by the writer and the reader alike. */
#include "refit/hello.h"

#include "refit/bytes.h"
#include "refit/checksum.h"

#include <stddef.h>

static const unsigned char magic[4] = {'R', 'V', 'L', 'H'};

enum { CHECKSUM_AT = 8, HEAD = 16, BODY = HEAD + RAVEL__HELLO_MESSAGE };

typedef struct field {
    size_t offset;
    int32_t bytes;
} field;

#define F(name) \
    { offsetof(ravel__hello, name), (int32_t)sizeof(((ravel__hello *)0)->name) }

static const field fields[] = {
    F(roles),
    F(sequential),
    F(settings.num_buffers),
    F(settings.size_from),
    F(settings.buffer_bytes),
    F(settings.afford),
    F(route),
    F(replica),
    F(cast),
    F(fanout),
    F(delta),
    F(ignore_extra),
    F(manifest_bytes[0]),
    F(manifest_bytes[1]),
    F(digest[0]),
    F(digest[1]),
    F(version),
    F(prepared),
    F(lineage),
    F(prepared_lineage),
    F(host),
    F(checksum),
};

/* Fields are integers of 4 or 8 bytes. */
static void put_field(unsigned char *p, const void *value, int32_t bytes) {
    uint32_t x32;
    uint64_t x64;
    if (bytes == 4)
        memcpy(&x32, value, 4), ravel__put32(p, x32);
    else
        memcpy(&x64, value, 8), ravel__put64(p, x64);
}

static void get_field(const unsigned char *p, void *value, int32_t bytes) {
    uint32_t x32 = ravel__get32(p);
    uint64_t x64 = bytes == 8 ? ravel__get64(p) : 0;
    if (bytes == 4)
        memcpy(value, &x32, 4);
    else
        memcpy(value, &x64, 8);
}

/* Of everything but itself. */
static uint64_t sum_of(const unsigned char *bytes) {
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, CHECKSUM_AT);
    ravel__xxh3_add(&state, bytes + HEAD, RAVEL__HELLO_BYTES - HEAD);
    return ravel__xxh3_end(&state);
}

void ravel__hello_encode(const ravel__hello *hello, unsigned char out[RAVEL__HELLO_BYTES]) {
    unsigned char *p = out + BODY;
    memset(out, 0, RAVEL__HELLO_BYTES);
    memcpy(out, magic, 4);
    ravel__put16(out + 4, RAVEL__HELLO_FORMAT);
    ravel__put16(out + 6, (uint16_t)hello->status);
    memcpy(out + HEAD, hello->message, RAVEL__HELLO_MESSAGE);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; p += fields[i++].bytes)
        put_field(p, (const char *)hello + fields[i].offset, fields[i].bytes);
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
    return RAVEL_OK;
}
