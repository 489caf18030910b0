#include "train/run/log.h"

#include <stdarg.h>
#include <stdio.h>

void train_log(const ravel_logger *logger, ravel_log_level level, const char *format, ...) {
    char text[2048];
    va_list args;
    if (!logger) return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    logger->write(logger->user, level, text);
}
