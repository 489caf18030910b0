/* Messages to the caller's logger; without one nothing happens. */
#ifndef RAVEL_BASE_LOG_H
#define RAVEL_BASE_LOG_H

#include <ravel/base.h>

void ravel__log(const ravel_logger *logger, ravel_log_level level, const char *format, ...) RAVEL_PRINTF(3, 4);

#endif
