#include "base/log.h"

#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>

void ravel__log(const ravel_logger *logger, ravel_log_level level, const char *format, ...) {
    if (!logger || !logger->write) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)ravel__number_vprint(text, sizeof text, format, args);
    va_end(args);
    logger->write(logger->user, level, text);
}
