/* Time on a GPU, by events in the stream of its kernels: spans of several kinds, summed up when they are over. Internal
 * to train/.
 *
 * A host clock around calls that only put operations into a stream measures the putting. An event is reached when the
 * GPU gets there, so the time between two is the GPU's own: of kernels, and of waiting for another stream. */
#ifndef TRAIN_STOPWATCH_H
#define TRAIN_STOPWATCH_H

#include <ravel/device.h>

typedef struct train__span {
    int32_t kind, reserved;
    int64_t from, to; /* marks */
} train__span;

typedef struct train__stopwatch {
    ravel_device *place;
    ravel_stream *stream;
    ravel_event **events; /* [room] made once, used again after every reading */
    int64_t marks, made, room;
    train__span *spans; /* [span_room] */
    int64_t span_count, span_room;
    ravel_status status; /* the first failure; later calls do nothing */
    ravel_error error;
} train__stopwatch;

/* The place in the stream that is reached after all operations that are in it now. */
int64_t train__stopwatch_mark(train__stopwatch *s);
/* The time between two marks is of `kind`. */
void train__stopwatch_add(train__stopwatch *s, int32_t kind, int64_t from, int64_t to);
/* seconds[kinds] = the sums since the last reading. All operations up to the last mark are over. */
ravel_status train__stopwatch_read(train__stopwatch *s, double *seconds, int32_t kinds, ravel_error *err);
void train__stopwatch_close(train__stopwatch *s);

#endif
