/* Moved to base/xxh3.h. */
#include "base/xxh3.h"
