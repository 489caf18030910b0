/* The hello: the first message of every rank to every other (docs/refit-wire.md, "Hello"). It has a fixed size,
 * so one all-gather brings them all, and carries the rank's own failure, so that one rank's bad argument is an
 * error on every rank instead of a timeout. */
#ifndef RAVEL_REFIT_HELLO_H
#define RAVEL_REFIT_HELLO_H

#include "refit/model/differences.h"

#include <ravel/refit.h>

enum { RAVEL__HELLO_BYTES = 640, RAVEL__HELLO_FORMAT = 2, RAVEL__HELLO_MESSAGE = 400 };

/* Limits of N, B and a manifest, for this rank's options and for a peer's. */
#define RAVEL__NUM_BUFFERS_MOST    16
#define RAVEL__BUFFER_BYTES_LEAST  4096
#define RAVEL__BUFFER_BYTES_MOST   ((int64_t)1 << 40)
#define RAVEL__MANIFEST_BYTES_MOST ((int64_t)1 << 31)

/* Where a rank's buffer size comes from. */
typedef enum ravel__size_from { RAVEL__SIZE_DEFAULT, RAVEL__SIZE_RATIO, RAVEL__SIZE_EXPLICIT } ravel__size_from;

typedef struct ravel__settings {
    int32_t num_buffers;  /* 0: not set */
    int32_t size_from;    /* ravel__size_from */
    int64_t buffer_bytes; /* EXPLICIT: this; else the most that the ratio allows for all buffers together */
    int64_t afford;       /* bytes that this rank's buffers may take together at most */
} ravel__settings;

/* The kind of checksum of payloads: one so far; the field leaves room for others. */
enum { RAVEL__CHECKSUM_XXH3 = 1 };

typedef struct ravel__hello {
    int32_t status; /* of the rank's own preparations */
    char message[RAVEL__HELLO_MESSAGE];
    int32_t roles;      /* RAVEL__SOURCE | RAVEL__SINK */
    int32_t sequential; /* its source has an iterate callback */
    ravel__settings settings;
    int32_t cast, delta, ignore_extra; /* must be the same everywhere */
    int64_t manifest_bytes[2];         /* of source and sink; 0: none */
    uint64_t digest[2];
    ravel_refit_identity held;     /* by its sink */
    ravel_refit_identity prepared; /* complete in its sink, not known to be committed; version 0: none */
    uint64_t host;                 /* the same for ranks on one machine */
    int32_t checksum;              /* RAVEL__CHECKSUM_XXH3 */
} ravel__hello;

void ravel__hello_encode(const ravel__hello *hello, unsigned char out[RAVEL__HELLO_BYTES]);
/* E_MISMATCH: another format; E_CHECKSUM; E_DATA: a field is out of its range, and the sentence names it. */
ravel_status ravel__hello_decode(const unsigned char in[RAVEL__HELLO_BYTES], ravel__hello *hello, ravel_error *err);

/* Settings that all ranks agreed on. */
typedef struct ravel__terms {
    int32_t num_buffers;
    int64_t buffer_bytes;
} ravel__terms;

/* Compares settings, options and checksum kind of hellos[ranks]; differences go to the list. */
void ravel__hello_compare(const ravel__hello *hellos, int32_t ranks, ravel__differences *list);
/* The same on every rank. For sizes that no rank chose: `kind` of the communicator, and `stream_bytes`, the most that one
 * rank moves. */
ravel__terms ravel__hello_terms(const ravel__hello *hellos, int32_t ranks, const char *kind, int64_t stream_bytes);
/* Buffers that a rank cannot afford. */
void ravel__hello_afford(const ravel__hello *hellos, int32_t ranks, const ravel__terms *terms,
                         ravel__differences *list);

/* settings.c. The caller's options, over the defaults; NULL: these. */
ravel_status ravel__options_take(const ravel_refit_options *from, ravel_refit_options *options, ravel_error *err);
ravel_status ravel__options_check(const ravel_refit_options *options, ravel_error *err);
/* Memory of the kind that the buffers over this communicator are in. */
int64_t ravel__buffer_memory(ravel_comm *comm);
/* Options over environment over defaults; the one place. Options that were checked. */
ravel_status ravel__settings_take(const ravel_refit_options *options, int64_t memory, ravel__settings *settings,
                                  ravel_error *err);

/* "sender", "receiver", "sender and receiver", "neither sender nor receiver". */
const char *ravel__role_name(int32_t roles);

#endif
