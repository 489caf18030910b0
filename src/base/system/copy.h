/* Copies of large blocks that another core will read, or that is not read soon.
 *
 * A plain store fetches the line that it is about to overwrite, and where another core has read that line, waits for
 * it to be invalidated there: handing a buffer back and forth between two cores runs at a fraction of memcpy's speed.
 * Streaming stores do neither. */
#ifndef RAVEL_BASE_COPY_H
#define RAVEL_BASE_COPY_H

#include <stddef.h>

/* As memcpy; short blocks are copied plainly. The copy is visible to any thread that is notified afterwards. */
void ravel__copy_far(void *to, const void *from, size_t bytes);

#endif
