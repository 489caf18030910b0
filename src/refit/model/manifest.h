/* The manifest: what one rank sends or wants, as bytes (docs/refit-wire.md, "Manifest").
 *
 *     header, 32 bytes        magic "RVLM", format, side, count, bytes, checksum of all the rest
 *     entry, for each tensor  name length u16, dtype u8, ndim u8, name, then ndim times (dim, start, extent) i64
 *
 * All numbers are little-endian. Decoding checks everything: a reader steps through checked entries and never reads
 * outside the given bytes. */
#ifndef RAVEL_REFIT_MANIFEST_H
#define RAVEL_REFIT_MANIFEST_H

#include "refit/model/holding.h"

enum { RAVEL__MANIFEST_HEADER = 32, RAVEL__MANIFEST_FORMAT = 1 };

typedef enum ravel__side { RAVEL__SOURCE = 1, RAVEL__SINK = 2 } ravel__side;

typedef struct ravel__entry {
    char name[1024]; /* NUL-terminated */
    int32_t dtype;
    int32_t ndim;
    int64_t dims[RAVEL_REFIT_DIMS];
    ravel__box box;
} ravel__entry;

typedef struct ravel__manifest_reader {
    const unsigned char *at, *end;
    int32_t side;
    int64_t count, next; /* entries, and the one that comes */
} ravel__manifest_reader;

/* Bytes that encoding takes. */
size_t ravel__manifest_bytes(const ravel__holding *holding);
/* Writes exactly that number of bytes. */
void ravel__manifest_encode(const ravel__holding *holding, int32_t side, unsigned char *out);

/* Checks the header and the checksum. */
ravel_status ravel__manifest_open(const void *bytes, size_t size, ravel__manifest_reader *reader, ravel_error *err);
/* The next entry, checked; E_END after the last. */
ravel_status ravel__manifest_next(ravel__manifest_reader *reader, ravel__entry *entry, ravel_error *err);

#endif
