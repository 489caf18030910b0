/* train/rl/outside/child.h: a command of the user's that runs beside the trainer: `sh -c COMMAND` in a process group of its
 * own, a socket for its input (so that a closed one is an error and no signal) and a pipe for its output, both
 * non-blocking. It inherits standard error, and has the signals that a shell would start it with. Lines go in and come
 * out as far as they can at once; nothing here waits but train_child_stop. */
#ifndef TRAIN_CHILD_H
#define TRAIN_CHILD_H

#include "train/rl/outside/servers.h"

#include <sys/types.h>

typedef struct train_child_bytes {
    char *data; /* [used], of which `taken` are not needed any more */
    int64_t used, room, taken;
} train_child_bytes;

typedef struct train_child {
    pid_t pid; /* 0: not running */
    int to, from;
    train_child_bytes out, in;
    int64_t polled[2];
    int finishing;
    int code; /* as train_child_over, after the error that it has ended */
} train_child;

/* Starts it where it is not running. `what` begins the sentences: "reward command". */
ravel_status train_child_start(train_child *child, const char *command, const char *what, ravel_error *err);
/* Closes its input, gives it `seconds` to leave, then kills the group. */
void train_child_stop(train_child *child, double seconds);
/* Stopped before. */
void train_child_free(train_child *child);
/* Whether it has ended, and with which code; 128 and more: by a signal. */
int train_child_over(const train_child *child, int *code);

ravel_status train_child_write(train_child *child, const char *data, size_t bytes, ravel_error *err);
/* Closes its input after what was written. */
void train_child_finish(train_child *child);
/* Its next whole line, without the end; it lives until the next advance. */
int train_child_line(train_child *child, const char **line, size_t *bytes);
void train_child_poll(train_child *child, train_polls *polls);
/* Writes and reads what it can. E_CALLBACK: how it ended, after its output was found closed. */
ravel_status train_child_advance(train_child *child, const train_polls *polls, const char *what, ravel_error *err);

#endif
