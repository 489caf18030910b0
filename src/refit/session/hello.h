/* The hello: the first message of every rank to every other (docs/refit-wire.md, "Hello"). It has a fixed size, so one
 * all-gather brings them all. One table (hello.c) says what each field may be, and which must be the same on every
 * rank. */
#ifndef RAVEL_REFIT_HELLO_H
#define RAVEL_REFIT_HELLO_H

#include "refit/model/differences.h"

#include <ravel/refit.h>

typedef enum ravel__side { RAVEL__SOURCE = 1, RAVEL__SINK = 2 } ravel__side;

enum { RAVEL__HELLO_FORMAT = 5 };

/* Limits of N, B and a manifest, for this rank's options and for a peer's. */
#define RAVEL__NUM_BUFFERS_MOST    16
#define RAVEL__BUFFER_BYTES_LEAST  4096
#define RAVEL__BUFFER_BYTES_MOST   ((int64_t)1 << 40)
#define RAVEL__MANIFEST_BYTES_MOST ((int64_t)1 << 31)

typedef struct ravel__settings {
    int32_t num_buffers;  /* 0: not set */
    int32_t by_ratio;     /* 1: memory_bytes was chosen, and is used in full */
    int64_t buffer_bytes; /* 0: not set */
    int64_t memory_bytes; /* that all buffers together take at most, if no size is set */
    int64_t afford;       /* bytes that this rank's buffers may take together at most */
} ravel__settings;

/* As it travels: the ranks are little-endian machines. */
typedef struct ravel__hello {
    uint64_t sum; /* XXH3 of all that follows */
    char magic[4];
    int32_t format;
    int32_t roles;      /* RAVEL__SOURCE | RAVEL__SINK */
    int32_t sequential; /* its source has an iterate callback */
    int32_t cast, delta, ignore_extra;
    int32_t reads_live; /* its sink can read the live version: changed elements may come */
    ravel__settings settings;
    int64_t manifest_bytes[2]; /* of source and sink; 0: none */
    uint64_t digest[2];
    ravel_refit_identity held;     /* by its sink */
    ravel_refit_identity prepared; /* complete in its sink, not known to be committed; version 0: none */
    uint64_t host;                 /* the same for ranks on one machine */
} ravel__hello;
_Static_assert(sizeof(ravel__hello) == 160, "docs/refit-wire.md, and no padding");

/* The sum of a message that begins with it. */
uint64_t ravel__sum_of(const void *message, size_t bytes);
/* Sets sum, magic and format, after everything else. */
void ravel__hello_seal(ravel__hello *hello);
/* E_MISMATCH: another format; E_CHECKSUM; E_DATA: a field is out of its range, and the sentence names it. */
ravel_status ravel__hello_check(const ravel__hello *hello, ravel_error *err);

/* Settings that all ranks agreed on. */
typedef struct ravel__terms {
    int32_t num_buffers;
    int64_t buffer_bytes;
} ravel__terms;

/* Compares what must be the same in hellos[ranks]; differences go to the list. */
void ravel__hello_compare(const ravel__hello *hellos, int32_t ranks, ravel__differences *list);
/* The same on every rank. For sizes that no rank chose: `kind` of the communicator, and `stream_bytes`, the most that
 * one rank moves. */
ravel__terms ravel__hello_terms(const ravel__hello *hellos, int32_t ranks, const char *kind, int64_t stream_bytes);
/* Buffers that a rank cannot afford. */
void ravel__hello_afford(const ravel__hello *hellos, int32_t ranks, const ravel__terms *terms,
                         ravel__differences *list);

/* settings.c. The caller's options, checked, over the defaults; NULL: these. */
ravel_status ravel__options_take(const ravel_refit_options *from, ravel_refit_options *options, ravel_error *err);
/* Memory of the kind that the buffers over this communicator are in. */
int64_t ravel__buffer_memory(ravel_comm *comm);
/* Options over environment over defaults; the one place. Options that were checked. */
ravel_status ravel__settings_take(const ravel_refit_options *options, int64_t memory, ravel__settings *settings,
                                  ravel_error *err);

/* "sender", "receiver", "sender and receiver", "neither sender nor receiver". */
const char *ravel__role_name(int32_t roles);

#endif
