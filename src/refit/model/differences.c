#include "refit/model/differences.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ravel__differences_init(ravel__differences *list, const ravel_logger *logger) {
    memset(list, 0, sizeof *list);
    list->logger = logger;
}

void ravel__differences_add(ravel__differences *list, const char *format, ...) {
    char one[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(one, sizeof one, format, args);
    va_end(args);
    list->count++;
    ravel__log(list->logger, RAVEL_LOG_WARN, "refit: difference %lld: %s", (long long)list->count, one);
    size_t need = strlen(one) + 2;
    if (list->said < list->count - 1 || list->used + need >= sizeof list->text) return;
    list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, "%s%s",
                                   list->count > 1 ? "; " : "", one);
    list->said++;
    RAVEL_ASSERT(list->used < sizeof list->text && list->said <= list->count);
}

ravel_status ravel__differences_share(ravel__differences *list, ravel_comm *comm, ravel_error *err) {
    int64_t rank = ravel_comm_rank(comm), ranks = ravel_comm_size(comm), best = list->count * ranks + ranks - 1 - rank;
    ravel_status status = ravel_comm_allreduce(comm, &best, &best, 1, RAVEL_I64, RAVEL_MAX, err);
    if (status != RAVEL_OK || best < ranks) return status; /* none found any */
    const ravel_logger *logger = list->logger;
    status = ravel_comm_broadcast(comm, list, sizeof *list, RAVEL_U8, (int32_t)(ranks - 1 - best % ranks), err);
    list->logger = logger;
    return status;
}

ravel_status ravel__differences_end(const ravel__differences *list, ravel_error *err) {
    char more[48] = "";
    if (list->count == 0) return RAVEL_OK;
    if (list->said < list->count)
        (void)snprintf(more, sizeof more, "; and %lld more", (long long)(list->count - list->said));
    return ravel_error_set(err, RAVEL_E_MISMATCH, "senders and receivers differ in %lld %s: %s%s",
                           (long long)list->count, list->count == 1 ? "way" : "ways", list->text, more);
}
