#include "tests/unit/metrics_ranks.h"

#include "tests/unit/check.h"

#include <stdlib.h>

/* Every rank adds up all ranks' arrays for itself between two barriers. */
static ravel_status reduce(void *user, int64_t *values, int64_t count, ravel_metrics_op op, ravel_error *err) {
    rank_seat *seat = user;
    rank_group *g = seat->group;
    if (seat->rank == 0) g->calls[op]++;
    int64_t *result = malloc((size_t)count * sizeof *result);
    if (!result) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory");
    g->values[seat->rank] = values;
    pthread_barrier_wait(&g->barrier);
    for (int64_t i = 0; i < count; i++) {
        int64_t x = op == RAVEL_METRICS_SUM ? 0 : INT64_MIN;
        for (int32_t r = 0; r < g->size; r++) {
            int64_t y = g->values[g->reversed ? g->size - 1 - r : r][i];
            x = op == RAVEL_METRICS_SUM ? x + y : y > x ? y : x;
        }
        result[i] = x;
    }
    pthread_barrier_wait(&g->barrier);
    memcpy(values, result, (size_t)count * sizeof *result);
    free(result);
    return RAVEL_OK;
}

static void *run_seat(void *user) {
    rank_seat *seat = user;
    seat->body(seat);
    return NULL;
}

void ranks_run(int32_t size, void (*body)(rank_seat *seat), void *user, rank_group *group) {
    static rank_seat seats[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    group->size = size;
    group->calls[0] = group->calls[1] = 0;
    pthread_barrier_init(&group->barrier, NULL, (unsigned)size);
    for (int32_t r = 0; r < size; r++) {
        rank_seat seat = {.group = group, .rank = r, .user = user, .body = body};
        seats[r] = seat;
        ravel_metrics_reducer reducer = {r, size, reduce, &seats[r]};
        seats[r].reducer = reducer;
        if (pthread_create(&threads[r], NULL, run_seat, &seats[r]) != 0) abort();
    }
    for (int32_t r = 0; r < size; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&group->barrier);
}
