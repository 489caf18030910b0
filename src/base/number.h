/* Numbers as text, with a decimal point in any locale of the host program: a Python session under de_DE would otherwise
 * write 0,5 into JSON and read 0.5 as 0. */
#ifndef RAVEL_BASE_NUMBER_H
#define RAVEL_BASE_NUMBER_H

#include <ravel/base.h>

#include <stdarg.h>

enum { RAVEL__NUMBER_BYTES = 40 }; /* room for any double */

/* strtod, snprintf and vsnprintf of the C locale. */
double ravel__number_read(const char *text, char **end);
int ravel__number_print(char *text, size_t room, const char *format, ...) RAVEL_PRINTF(3, 4);
int ravel__number_vprint(char *text, size_t room, const char *format, va_list args);

/* The shortest text, of `least_digits` digits or more, that reads back as the same double. */
void ravel__number_shortest(double x, int least_digits, char text[RAVEL__NUMBER_BYTES]);

/* 1,234,567: `ravel__thousands(n).text`, valid to the end of the expression that it stands in. */
typedef struct ravel__grouped {
    char text[32];
} ravel__grouped;
ravel__grouped ravel__thousands(int64_t value);

#endif
