/* Behind a ravel_lengths or a ravel__column: the arrays and where their memory comes from. */
#ifndef RAVEL_IO_HOLDER_H
#define RAVEL_IO_HOLDER_H

#include "io/columns.h"

typedef struct ravel__holder {
    union {
        ravel_lengths lengths;
        ravel__column column;
    } as; /* first: the caller's pointer is a pointer to the holder */
    const ravel_allocator *allocator;
    int64_t *columns[2]; /* the second NULL if there is one */
    int64_t rooms[2];    /* in numbers */
    int64_t *lines;      /* NULL if the format has no lines */
    int64_t line_room;
} ravel__holder;

/* Hands the columns out as lengths or as pairs, and adds them up. */
void ravel__holder_lengths(ravel__holder *holder);
void ravel__holder_free(ravel__holder *holder);

#endif
