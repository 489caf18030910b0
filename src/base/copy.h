/* Copies of large blocks that another core will read, or that nobody reads soon.
 *
 * A plain store fetches the line that it is about to overwrite, and where another core has read that line, waits until
 * it has let go of it: handing a buffer back and forth between two cores runs at a fraction of memcpy's speed. Streaming
 * stores do neither. */
#ifndef RAVEL_BASE_COPY_H
#define RAVEL_BASE_COPY_H

#include <stddef.h>

/* As memcpy; short blocks are copied plainly. What was written is visible to whoever is told of it afterwards. */
void ravel__copy_far(void *to, const void *from, size_t bytes);

#endif
