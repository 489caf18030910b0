/* The test body of communicators: written once, run over every back end. Each function is what one rank does; it
 * returns E_INTERNAL and a sentence where the result is not what a plain reference says. All ranks draw from the same
 * seed and can compute what every other rank sent, so nothing is compared over the communicator that is being tested.
 */
#ifndef TESTS_COMM_BODY_H
#define TESTS_COMM_BODY_H

#include <ravel/comm.h>

typedef struct comm_job {
    uint64_t seed;
    int32_t rounds;     /* of random operations */
    int64_t most;       /* elements in one piece */
    int32_t unchecked;  /* the communicator compares nothing: bodies about that have nothing to do */
    int32_t one_thread; /* the transport below belongs to one thread */
} comm_job;

typedef struct comm_body {
    const char *name;
    ravel_rank_fn run; /* user: a comm_job */
} comm_body;

/* Rows until name == NULL. */
extern const comm_body comm_bodies[];

#endif
