/* train/run/log.h: remarks of a run, to the logger of the program around it. */
#ifndef TRAIN_LOG_H
#define TRAIN_LOG_H

#include <ravel/base.h>

/* A remark as printf makes it; a very long one is cut. logger NULL: nothing. */
void train_log(const ravel_logger *logger, ravel_log_level level, const char *format, ...) RAVEL_PRINTF(3, 4);

#endif
