/* Element types (ravel/dtype.h) in files. */
#ifndef RAVEL_BASE_DTYPE_H
#define RAVEL_BASE_DTYPE_H

#include <ravel/dtype.h>

const char *ravel__dtype_tag(int32_t dtype);

#endif
