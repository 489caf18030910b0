/* Memory that other processes can map: a file descriptor travels over a Unix socket. */
#ifndef RAVEL_DEVICE_SHARED_H
#define RAVEL_DEVICE_SHARED_H

#include <ravel/device.h>

typedef struct ravel__shared ravel__shared;

/* Memory of the device that other processes can map: rounded up to the device's page (2 MiB on CUDA). It lives until
 * the last process that mapped it has freed it: the maker may end before. Not from the cache. */
ravel_status ravel__shared_create(ravel_device *device, size_t bytes, ravel__shared **shared, ravel_error *err);
/* Maps what another process made. `fd` is its descriptor and stays the caller's to close. A mapping that is not
 * writable refuses writes. */
ravel_status ravel__shared_import(ravel_device *device, int fd, size_t bytes, int32_t writable, ravel__shared **shared,
                                  ravel_error *err);
void ravel__shared_free(ravel__shared *shared);
void *ravel__shared_data(const ravel__shared *shared);
size_t ravel__shared_bytes(const ravel__shared *shared);
/* The descriptor to send, open until the memory is freed here; -1 for an import. */
int ravel__shared_fd(const ravel__shared *shared);
/* A descriptor, and up to 255 bytes beside it, over a connected Unix socket; `seconds` to wait. The receiver owns the
 * descriptor; *bytes: room for the note, then its size. */
ravel_status ravel__fd_send(int socket, int fd, const void *note, size_t bytes, double seconds, ravel_error *err);
ravel_status ravel__fd_recv(int socket, int *fd, void *note, size_t *bytes, double seconds, ravel_error *err);

#endif
