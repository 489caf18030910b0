#include "train/rl/outside/child.h"

#include "base/assert.h"
#include "base/memory.h"
#include "train/kernels/host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_child(const char *command, int in, int out) {
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL); /* ignored signals stay ignored in a command; ravel train ignores these */
    signal(SIGXFSZ, SIG_DFL);
    dup2(in, 0);
    dup2(out, 1);
    for (int fd = 3; fd < 1024; fd++) close(fd); /* that other libraries opened without close-on-exec */
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

ravel_status train_child_start(train_child *c, const char *command, const char *what, ravel_error *err) {
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    const char *failed = NULL;
    pid_t pid = -1;
    if (c->pid) return RAVEL_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
        failed = "no socket pair";
    else if (pipe2(output, O_CLOEXEC) != 0)
        failed = "no pipe";
    else if ((pid = fork()) < 0)
        failed = "it cannot be started";
    int why = errno;
    if (pid == 0) run_child(command, input[1], output[1]);
    for (int i = failed ? 0 : 1; i < 2; i++) { /* the child's ends; after a failure, all */
        if (input[i] >= 0) close(input[i]);
        if (output[i] >= 0) close(output[i]);
    }
    if (failed) return ravel_error_set(err, RAVEL_E_IO, "%s: %s: %s", what, failed, strerror(why));
    setpgid(pid, pid);
    fcntl(input[0], F_SETFL, O_NONBLOCK);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    RAVEL_ASSERT(pid > 0);
    c->pid = pid;
    c->to = input[0];
    c->from = output[0];
    c->out.used = c->out.taken = c->in.used = c->in.taken = c->finishing = c->code = 0;
    return RAVEL_OK;
}

void train_child_stop(train_child *c, double seconds) {
    if (!c->pid) return;
    RAVEL_ASSERT(c->to >= 0 && c->from >= 0);
    close(c->to);
    close(c->from);
    double deadline = train__now() + seconds;
    int status;
    while (waitpid(c->pid, &status, WNOHANG) == 0) {
        if (train__now() >= deadline) {
            kill(-c->pid, SIGKILL); /* its whole group: sh and what sh started */
            waitpid(c->pid, &status, 0);
            break;
        }
        (void)usleep(2000);
    }
    c->pid = 0;
}

void train_child_free(train_child *c) {
    RAVEL_ASSERT(!c->pid);
    ravel__release(NULL, c->out.data, (size_t)c->out.room);
    ravel__release(NULL, c->in.data, (size_t)c->in.room);
    *c = (train_child){0};
}

int train_child_over(const train_child *c, int *code) {
    siginfo_t end = {0};
    if (waitid(P_PID, (id_t)c->pid, &end, WEXITED | WNOHANG | WNOWAIT) != 0 || !end.si_pid) return 0;
    *code = end.si_code == CLD_EXITED ? end.si_status : 128 + end.si_status;
    return 1;
}

/* Its output or its input is closed. Waits briefly, so that the exit status of an ending command is known. */
static ravel_status ended(train_child *c, const char *what, ravel_error *err) {
    int code = 0, over = 0;
    for (double deadline = train__now() + 0.5; !over && train__now() < deadline; (void)usleep(1000))
        if ((over = train_child_over(c, &code))) break;
    if (!over) return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it closed its output before it had answered", what);
    c->code = code;
    if (code >= 128) return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it was killed by signal %d", what, code - 128);
    return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it ended with exit code %d before it had answered", what, code);
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

enum { LINE = 16 << 20, PIECE = 65536 };

static ravel_status make_room(train_child_bytes *b, int64_t more, ravel_error *err) {
    if (b->taken) memmove(b->data, b->data + b->taken, (size_t)(b->used - b->taken));
    b->used -= b->taken;
    b->taken = 0;
    char *grown = train__grown(NULL, b->data, &b->room, b->used, b->used + more, 1);
    if (!grown) return ravel__no_memory(err, (size_t)more, "lines of a command");
    b->data = grown;
    return RAVEL_OK;
}

static void transmit(train_child *c) {
    while (c->out.taken < c->out.used) {
        ssize_t put = send(c->to, c->out.data + c->out.taken, (size_t)(c->out.used - c->out.taken), MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return; /* full: later; closed: its output says so */
        c->out.taken += put;
    }
    if (c->finishing) (void)shutdown(c->to, SHUT_WR);
}

void train_child_finish(train_child *c) {
    c->finishing = 1;
    transmit(c);
}

ravel_status train_child_write(train_child *c, const char *data, size_t bytes, ravel_error *err) {
    ravel_status status = make_room(&c->out, (int64_t)bytes, err);
    if (status) return status;
    memcpy(c->out.data + c->out.used, data, bytes);
    c->out.used += (int64_t)bytes;
    transmit(c);
    return RAVEL_OK;
}

int train_child_line(train_child *c, const char **line, size_t *bytes) {
    const char *from = c->in.data + c->in.taken,
               *end = c->in.taken < c->in.used ? memchr(from, '\n', (size_t)(c->in.used - c->in.taken)) : NULL;
    if (!end) return 0;
    *line = from;
    *bytes = (size_t)(end - from);
    c->in.taken += (int64_t)*bytes + 1;
    return 1;
}

void train_child_poll(train_child *c, train_polls *polls) {
    c->polled[0] = train_polls_add(polls, c->from, POLLIN);
    c->polled[1] = c->out.taken < c->out.used ? train_polls_add(polls, c->to, POLLOUT) : -1;
}

ravel_status train_child_advance(train_child *c, const train_polls *polls, const char *what, ravel_error *err) {
    if (train_polls_ready(polls, c->polled[1])) transmit(c);
    if (!train_polls_ready(polls, c->polled[0])) return RAVEL_OK;
    ravel_status status = make_room(&c->in, PIECE, err);
    if (status) return status;
    ssize_t got = read(c->from, c->in.data + c->in.used, PIECE);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return RAVEL_OK;
    int more = c->in.used && memchr(c->in.data, '\n', (size_t)c->in.used); /* those lines first */
    if (got <= 0) return more ? RAVEL_OK : ended(c, what, err);
    c->in.used += got;
    if (more || c->in.used <= LINE || memchr(c->in.data, '\n', (size_t)c->in.used)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_CALLBACK, "%s: it wrote 16 MiB without the end of a line", what);
}
