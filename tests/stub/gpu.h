/* A GPU without a GPU, for tests of the trainer: memory that the host can't touch, and streams that are threads.
 *
 *     region     memory that is mapped twice: closed, where the addresses of blocks are, and open
 *     new block  every byte is 0xff (f32: NaN), as memory of a GPU holds anything
 *     stream     a queue of work and a thread that does it, in order and later; streams run side by side
 *     event      a place in a stream
 *
 * RAVEL_STUB_GPUS: how many GPUs there are (1). RAVEL_STUB_PLANT: a fault on purpose, so that tests can see that they would catch it:
 *     events   streams do not wait for events
 *     order    the first rank of every NCCL communicator swaps two of its operations
 *     hang     NCCL's operations never end from the 40th of a communicator on
 * RAVEL_STUB_SLOW: nccl or kernels, see stub_dawdle. */
#ifndef TESTS_STUB_GPU_H
#define TESTS_STUB_GPU_H

#include "device/driver.h"

int stub_plant(const char *fault);
/* Up to half a millisecond where RAVEL_STUB_SLOW is `what` ("nccl" or "kernels"): an order that is missing shows more often. */
void stub_dawdle(const char *what);
int32_t stub_gpus(void);

/* Blocks have closed addresses; NULL: no room. */
void *stub_block(size_t bytes);
void stub_block_free(void *block, size_t bytes);
void stub_block_bytes(int64_t *total, int64_t *live, int64_t *peak);
/* The open address of a block's; another address is that of the host, and stays. */
void *stub_inside(const void *address);

typedef struct stub_stream stub_stream;
stub_stream *stub_stream_open(void);
void stub_stream_close(stub_stream *stream);
/* Later, work(a copy of the arguments). */
void stub_push(stub_stream *stream, void (*work)(void *arguments), const void *arguments, size_t bytes);
/* The number of the last work that was pushed. */
int64_t stub_pushed(stub_stream *stream);
/* Whether work number `seq` is done, after at most so many milliseconds. */
int stub_reached(stub_stream *stream, int64_t seq, int milliseconds);

extern const ravel__driver stub_gpu_driver;

#endif
