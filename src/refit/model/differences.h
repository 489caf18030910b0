/* A list of differences, reported as one sentence. The sentence holds as many as fit; the logger gets every one. */
#ifndef RAVEL_REFIT_DIFFERENCES_H
#define RAVEL_REFIT_DIFFERENCES_H

#include <ravel/comm.h>

typedef struct ravel__differences {
    const ravel_logger *logger;
    int64_t count, said;
    size_t used;
    char text[RAVEL_ERROR_MESSAGE_BYTES - 100];
} ravel__differences;

void ravel__differences_init(ravel__differences *list, const ravel_logger *logger);
void ravel__differences_add(ravel__differences *list, const char *format, ...) RAVEL_PRINTF(2, 3);
/* Collective: every rank goes on with the list of the rank that found most; of several, the lowest. */
ravel_status ravel__differences_share(ravel__differences *list, ravel_comm *comm, ravel_error *err);
/* RAVEL_OK where there is none, else E_MISMATCH with the sentence. */
ravel_status ravel__differences_end(const ravel__differences *list, ravel_error *err);

#endif
