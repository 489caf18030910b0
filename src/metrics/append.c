/* Appending whole pieces to files, pipes and terminals.
 *
 *     | whole line | whole line | torn li          a crash: the next run cuts here
 *                                ^ end             a failed write: cut back to here at once; the part of a line that
 *                                                  a pipe already has is ended before the next one
 */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A write to a closed pipe raises SIGPIPE, whose default action ends the process: it is blocked for this thread during
 * the write, and taken off the queue if the write was what raised it. */
int ravel__write_all(int fd, const char *data, size_t bytes, size_t *wrote) {
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigemptyset(&pending);
    (void)sigpending(&pending);
    int was_pending = sigismember(&pending, SIGPIPE) == 1, number = 0;
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    size_t done = 0;
    while (done < bytes && !number) {
        ssize_t now = write(fd, data + done, bytes - done);
        if (now >= 0)
            done += (size_t)now;
        else if (errno != EINTR)
            number = errno;
    }
    RAVEL_ASSERT(done <= bytes && (number != 0) == (done < bytes));
    if (wrote) *wrote = done;
    struct timespec none = {0, 0};
    if (number == EPIPE && !was_pending)
        while (sigtimedwait(&pipe_signal, NULL, &none) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return number;
}

/* The offset after the last newline of the file, or -1 and errno. */
static int64_t last_line_end(int fd, int64_t size) {
    RAVEL_ASSERT(fd >= 0 && size >= 0);
    char block[4096];
    for (int64_t at = size; at > 0;) {
        int64_t from = at > (int64_t)sizeof block ? at - (int64_t)sizeof block : 0;
        ssize_t got = pread(fd, block, (size_t)(at - from), from);
        if (got < 0 && errno == EINTR) continue;
        if (got != at - from) return -1;
        const char *newline = memrchr(block, '\n', (size_t)got);
        if (newline) return from + (newline - block) + 1;
        at = from;
    }
    return 0;
}

static ravel_status continue_file(ravel__appender *a, const char *path, ravel_error *err) {
    struct stat info;
    if (fstat(a->fd, &info) != 0) return ravel__file_error(err, path, "cannot look at", errno);
    if (S_ISDIR(info.st_mode)) return ravel__file_error(err, path, "cannot write", EISDIR);
    a->regular = S_ISREG(info.st_mode);
    if (!a->regular) return RAVEL_OK;
    a->end = last_line_end(a->fd, (int64_t)info.st_size);
    RAVEL_ASSERT(a->end <= (int64_t)info.st_size);
    if (a->end < 0 || (a->end != (int64_t)info.st_size && ftruncate(a->fd, (off_t)a->end) != 0))
        return ravel__file_error(err, path, "cannot continue", errno);
    return RAVEL_OK;
}

ravel_status ravel__appender_open(ravel__appender *a, const char *path, int otherwise, ravel_error *err) {
    ravel__appender fresh = {.fd = -1};
    *a = fresh;
    if (!*path || strcmp(path, "-") == 0) {
        a->fd = *path ? STDOUT_FILENO : otherwise;
        if (a->fd < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "it needs a file: KIND:FILE");
        return RAVEL_OK;
    }
    a->own = 1;
    /* Reading and writing, so that the end can be read; a pipe or a device that refuses to be read is written
     * only. Non-blocking matters to pipes: opening one without a reader is an error, a full one loses a line. */
    a->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    struct stat info;
    if (a->fd >= 0 && fstat(a->fd, &info) == 0 && S_ISFIFO(info.st_mode)) {
        close(a->fd);
        a->fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (a->fd < 0 && (errno == EACCES || errno == EPERM))
        a->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (a->fd < 0) return ravel__file_error(err, path, "cannot open", errno);
    ravel_status status = continue_file(a, path, err);
    if (status) ravel__appender_close(a);
    return status;
}

static int put_pieces(ravel__appender *a, const char *data, size_t bytes) {
    size_t wrote = 0;
    int number = a->torn ? ravel__write_all(a->fd, "\n", 1, NULL) : 0;
    if (number) return number;
    number = ravel__write_all(a->fd, data, bytes, &wrote);
    a->torn = number && wrote > 0 && !a->regular;
    return number;
}

ravel_status ravel__appender_put(ravel__appender *a, const char *data, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(a->fd >= 0 && bytes > 0);
    int number = put_pieces(a, data, bytes);
    if (!number) {
        a->end += (int64_t)bytes;
        return RAVEL_OK;
    }
    if (a->regular) (void)!ftruncate(a->fd, (off_t)a->end);
    char what[160];
    return ravel_error_set(err, RAVEL_E_IO, "cannot write: %s", strerror_r(number, what, sizeof what));
}

void ravel__appender_close(ravel__appender *a) {
    if (a->own && a->fd >= 0) (void)close(a->fd);
    a->fd = -1;
}
