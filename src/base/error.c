/* Status names and the caller's error record. The tables come from RAVEL_STATUS_LIST, so that a code is added in
 * one place. */
#include <ravel/base.h>

#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int number;
    const char *name, *text;
} statuses[] = {
#define X(name, number, sentence) {number, #name, sentence},
    RAVEL_STATUS_LIST(X)
#undef X
};

const char *ravel_version(void) {
    return RAVEL_VERSION_STRING;
}

const char *ravel_status_name(ravel_status status) {
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].number == (int)status) return statuses[i].name;
    return "E_UNKNOWN";
}

const char *ravel_status_text(ravel_status status) {
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].number == (int)status) return statuses[i].text;
    return "unknown status";
}

void ravel_error_clear(ravel_error *err) {
    if (!err) return;
    err->status = RAVEL_OK;
    err->message[0] = '\0';
}

/* A truncated sentence ends with "...". */
static void mark_cut(char *message, int needed) {
    if (needed >= RAVEL_ERROR_MESSAGE_BYTES) memcpy(message + RAVEL_ERROR_MESSAGE_BYTES - 4, "...", 4);
}

ravel_status ravel_error_set(ravel_error *err, ravel_status status, const char *format, ...) {
    if (!err || err->status != RAVEL_OK) return status;
    va_list args;
    va_start(args, format);
    int needed = ravel__number_vprint(err->message, sizeof err->message, format, args);
    va_end(args);
    mark_cut(err->message, needed);
    err->status = (int32_t)status;
    return status;
}

void ravel_error_prefix(ravel_error *err, const char *format, ...) {
    if (!err || err->status == RAVEL_OK) return;
    char old[sizeof err->message], prefix[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    va_list args;
    va_start(args, format);
    (void)ravel__number_vprint(prefix, sizeof prefix, format, args);
    va_end(args);
    int needed = snprintf(err->message, sizeof err->message, "%s: %s", prefix, old);
    mark_cut(err->message, needed);
}
