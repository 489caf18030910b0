/* The reward command: a child process, a socket pair for its input (so that a closed one is an error and no signal), a
 * pipe for its output, and one poll loop that writes and reads at the same time: a command that answers each line at
 * once and one that reads everything first both work, and neither can block the trainer.
 *
 *        score()                      child
 *     [out: all lines]  -- socket -->  stdin
 *     [in: partial line] <-- pipe ---  stdout
 */
#include "train/rl/reward.h"

#include "train/kernels/assert.h"

#include "train/kernels/host.h"
#include "train/rl/http.h"

#include <ravel/json.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct text {
    char *data;
    size_t used, room;
} text;

struct train_reward {
    const ravel_allocator *allocator;
    char *command;
    double seconds;
    int server;  /* `command` is the URL of a server */
    pid_t child; /* 0: not running */
    int to, from;
    text out, in;
    ravel_json *doc; /* reused for every line */
};

/* ---- growing text --------------------------------------------------------------------------------------- */

static ravel_status make_room(train_reward *r, text *t, size_t more, ravel_error *err) {
    int64_t room = (int64_t)t->room, used = (int64_t)t->used;
    char *grown = train__grown(r->allocator, t->data, &room, used, used + (int64_t)more, 1);
    if (!grown) return train__no_memory(err, t->used + more, "lines to the reward command");
    t->data = grown;
    t->room = (size_t)room;
    TRAIN_ASSERT(t->room - t->used >= more);
    return RAVEL_OK;
}

static ravel_status append_quoted(train_reward *r, const char *key, const char *bytes, size_t count, ravel_error *err) {
    size_t need = ravel_json_quote(bytes, count, NULL, 0);
    ravel_status status = make_room(r, &r->out, need + strlen(key) + 8, err);
    if (status) return status;
    r->out.used += (size_t)sprintf(r->out.data + r->out.used, ", \"%s\": ", key);
    r->out.used += ravel_json_quote(bytes, count, r->out.data + r->out.used, r->out.room - r->out.used);
    TRAIN_ASSERT(r->out.used < r->out.room);
    return RAVEL_OK;
}

static ravel_status append_ids(train_reward *r, const char *key, const int32_t *ids, int64_t count, ravel_error *err) {
    ravel_status status = make_room(r, &r->out, strlen(key) + 16 + (size_t)count * 13, err);
    if (status) return status;
    char *at = r->out.data + r->out.used;
    at += sprintf(at, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++) at += sprintf(at, i ? ", %d" : "%d", ids[i]);
    *at++ = ']';
    r->out.used = (size_t)(at - r->out.data);
    TRAIN_ASSERT(r->out.used <= r->out.room);
    return RAVEL_OK;
}

static ravel_status append_line(train_reward *r, int64_t id, const train_rollout_text *x, ravel_error *err) {
    ravel_status status = make_room(r, &r->out, 64, err);
    if (status) return status;
    r->out.used += (size_t)sprintf(r->out.data + r->out.used, "{\"id\": %lld", (long long)id);
    status = append_quoted(r, "prompt", x->prompt, x->prompt_bytes, err);
    if (!status) status = append_quoted(r, "response", x->response, x->response_bytes, err);
    if (!status && x->answer) status = append_quoted(r, "answer", x->answer, x->answer_bytes, err);
    if (!status) status = append_ids(r, "prompt_ids", x->prompt_ids, x->prompt_tokens, err);
    if (!status) status = append_ids(r, "response_ids", x->response_ids, x->tokens, err);
    if (!status) status = make_room(r, &r->out, 96 + (x->row ? strlen(x->row) : 0), err);
    if (status) return status;
    r->out.used +=
        (size_t)sprintf(r->out.data + r->out.used, ", \"tokens\": %lld, \"ended\": %s%s%s}\n", (long long)x->tokens,
                        x->ended ? "true" : "false", x->row ? ", \"row\": " : "", x->row ? x->row : "");
    return RAVEL_OK;
}

/* ---- the child ------------------------------------------------------------------------------------------ */

static void stop(train_reward *r, int at_once) {
    if (!r->child) return;
    TRAIN_ASSERT(r->to >= 0 && r->from >= 0);
    close(r->to);
    close(r->from);
    double deadline = train__now() + (at_once ? 0 : 1);
    int status;
    while (waitpid(r->child, &status, WNOHANG) == 0) {
        if (train__now() >= deadline) {
            kill(-r->child, SIGKILL); /* its whole group: sh and what sh started */
            waitpid(r->child, &status, 0);
            break;
        }
        (void)usleep(2000);
    }
    r->child = 0;
    r->in.used = 0;
}

static void run_child(const char *command, int in, int out) {
    setpgid(0, 0);
    dup2(in, 0);
    dup2(out, 1);
    for (int fd = 3; fd < 1024; fd++) close(fd); /* that other libraries opened without close-on-exec */
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static ravel_status start(train_reward *r, ravel_error *err) {
    int input[2], output[2];
    if (r->child) return RAVEL_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
        return ravel_error_set(err, RAVEL_E_IO, "reward command: no socket pair: %s", strerror(errno));
    if (pipe2(output, O_CLOEXEC) != 0) {
        int why = errno;
        close(input[0]);
        close(input[1]);
        return ravel_error_set(err, RAVEL_E_IO, "reward command: no pipe: %s", strerror(why));
    }
    pid_t child = fork();
    if (child == 0) run_child(r->command, input[1], output[1]);
    close(input[1]);
    close(output[1]);
    if (child < 0) {
        int why = errno;
        close(input[0]);
        close(output[0]);
        return ravel_error_set(err, RAVEL_E_IO, "reward command: it cannot be started: %s", strerror(why));
    }
    setpgid(child, child);
    fcntl(input[0], F_SETFL, O_NONBLOCK);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    TRAIN_ASSERT(child > 0 && !r->child);
    r->child = child;
    r->to = input[0];
    r->from = output[0];
    return RAVEL_OK;
}

/* ---- a batch -------------------------------------------------------------------------------------------- */

static ravel_status take_line(train_reward *r, const char *line, size_t bytes, int64_t count, train_score *scores,
                              int64_t *left, ravel_error *err) {
    int64_t id;
    double value;
    int quoted = bytes > 120 ? 120 : (int)bytes;
    if (bytes == 0) return RAVEL_OK;
    if (ravel_json_parse(line, bytes, r->allocator, &r->doc, NULL) != RAVEL_OK)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it wrote \"%.*s\", which is not a JSON line",
                               quoted, line);
    const ravel_json_node *root = ravel_json_root(r->doc);
    if (!ravel_json_integer(ravel_json_get(r->doc, root, "id"), &id) ||
        !ravel_json_real(ravel_json_get(r->doc, root, "reward"), &value) || !isfinite(value) || id < 0 || id >= count)
        return ravel_error_set(err, RAVEL_E_CALLBACK,
                               "reward command: it wrote \"%.*s\"; expected {\"id\": 0 to %lld, \"reward\": a finite "
                               "number}",
                               quoted, line, (long long)count - 1);
    if (!isnan(scores[id].reward))
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it answered id %lld twice", (long long)id);
    scores[id] = (train_score){value, value};
    (void)ravel_json_real(ravel_json_get(r->doc, root, "accuracy"), &scores[id].accuracy);
    --*left;
    TRAIN_ASSERT(*left >= 0); /* an id is answered once, and only where it was asked for */
    return RAVEL_OK;
}

/* Whole lines of what has been read; the rest is kept for later. */
static ravel_status take_lines(train_reward *r, int64_t count, train_score *scores, int64_t *left, ravel_error *err) {
    size_t from = 0;
    for (size_t i = 0; i < r->in.used; i++)
        if (r->in.data[i] == '\n') {
            ravel_status status = take_line(r, r->in.data + from, i - from, count, scores, left, err);
            if (status) return status;
            from = i + 1;
        }
    TRAIN_ASSERT(from <= r->in.used && *left >= 0);
    memmove(r->in.data, r->in.data + from, r->in.used - from);
    r->in.used -= from;
    TRAIN_ASSERT(!memchr(r->in.data, '\n', r->in.used));
    return RAVEL_OK;
}

static ravel_status died(train_reward *r, ravel_error *err) {
    int status = 0;
    pid_t gone = 0; /* waits briefly, so that the exit status of an ending command is known */
    TRAIN_ASSERT(r->child > 0);
    for (double deadline = train__now() + 0.5; !gone && train__now() < deadline; (void)usleep(1000))
        gone = waitpid(r->child, &status, WNOHANG);
    if (gone == r->child) {
        close(r->to);
        close(r->from);
        r->child = 0;
        r->in.used = 0;
        if (WIFSIGNALED(status))
            return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it was killed by signal %d",
                                   WTERMSIG(status));
        return ravel_error_set(err, RAVEL_E_CALLBACK,
                               "reward command: it ended with exit code %d before it had answered",
                               WEXITSTATUS(status));
    }
    return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it closed its output before it had answered");
}

static ravel_status receive(train_reward *r, int64_t count, train_score *scores, int64_t *left, ravel_error *err) {
    ravel_status status = make_room(r, &r->in, 65536, err);
    if (status) return status;
    ssize_t got = read(r->from, r->in.data + r->in.used, r->in.room - r->in.used);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return RAVEL_OK;
    if (got <= 0) return died(r, err);
    r->in.used += (size_t)got;
    if (r->in.used > (size_t)16 << 20)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it wrote 16 MiB without the end of a line");
    return take_lines(r, count, scores, left, err);
}

static ravel_status transmit(train_reward *r, size_t *sent, ravel_error *err) {
    ssize_t put = send(r->to, r->out.data + *sent, r->out.used - *sent, MSG_NOSIGNAL);
    if (put > 0) *sent += (size_t)put;
    TRAIN_ASSERT(*sent <= r->out.used);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return died(r, err);
    return RAVEL_OK;
}

static ravel_status converse(train_reward *r, int64_t count, int64_t asked, train_score *scores, ravel_error *err) {
    int64_t left = asked;
    size_t sent = 0;
    TRAIN_ASSERT(asked >= 0 && asked <= count && r->child);
    double deadline = train__now() + r->seconds;
    while (left > 0) {
        double wait = deadline - train__now();
        if (wait <= 0)
            return ravel_error_set(err, RAVEL_E_TIMEOUT, "reward command: %lld of %lld rewards came within %g s",
                                   (long long)(asked - left), (long long)asked, r->seconds);
        struct pollfd fds[2] = {{r->from, POLLIN, 0}, {sent < r->out.used ? r->to : -1, POLLOUT, 0}};
        int ready = poll(fds, 2, wait > 1 ? 1000 : (int)(wait * 1000) + 1);
        ravel_status status = RAVEL_OK;
        if (ready > 0 && fds[0].revents) status = receive(r, count, scores, &left, err);
        if (!status && ready > 0 && fds[1].revents && r->child) status = transmit(r, &sent, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* The same lines as one request to a server. */
static ravel_status post(train_reward *r, int64_t count, int64_t asked, train_score *scores, ravel_error *err) {
    char *answer = NULL;
    size_t bytes = 0;
    int64_t left = asked;
    TRAIN_ASSERT(asked > 0 && asked <= count && r->server);
    ravel_status status = train_http_post(r->command, r->out.data, r->out.used, r->seconds, &answer, &bytes, err);
    r->in.used = 0;
    if (!status) status = make_room(r, &r->in, bytes + 1, err);
    if (!status) {
        memcpy(r->in.data, answer, bytes);
        r->in.used = bytes;
        if (bytes && answer[bytes - 1] != '\n') r->in.data[r->in.used++] = '\n';
        status = take_lines(r, count, scores, &left, err);
    }
    free(answer);
    r->in.used = 0;
    if (!status && left > 0)
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "%s scored %lld of %lld answers", r->command,
                                 (long long)(asked - left), (long long)asked);
    return status;
}

ravel_status train_reward_score(train_reward *r, const train_rollout_text *rollouts, int64_t count, train_score *scores,
                                ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int64_t asked = 0;
    r->out.used = 0;
    for (int64_t i = 0; i < count && !status; i++) {
        if (!isnan(scores[i].reward)) continue;
        status = append_line(r, i, &rollouts[i], err);
        asked++;
    }
    if (!status && r->server) return asked > 0 ? post(r, count, asked, scores, err) : RAVEL_OK;
    if (!status) status = start(r, err);
    if (!status) status = converse(r, count, asked, scores, err);
    if (!status && r->in.used)
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it wrote more than it was asked for");
    if (status) stop(r, 1);
    return status;
}

ravel_status train_reward_create(const char *command, double seconds, const ravel_allocator *allocator,
                                 train_reward **reward, ravel_error *err) {
    size_t bytes = strlen(command) + 1;
    if (bytes == 1) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the reward command is empty");
    int server = strncmp(command, "http://", 7) == 0;
    if (strncmp(command, "https://", 8) == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%.100s: a reward server is reached over plain http://; put a proxy such as stunnel "
                               "before one that needs TLS",
                               command);
    if (server && train_http_check(command, err)) return RAVEL_E_ARGUMENT;
    if (!(seconds > 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the reward command's time limit must be above 0");
    train_reward *r = train__calloc(allocator, 1, sizeof *r);
    if (!r) return train__no_memory(err, sizeof *r, "the reward command");
    r->command = train__alloc(allocator, bytes);
    if (!r->command) {
        train__release(allocator, r, sizeof *r);
        return train__no_memory(err, bytes, "the reward command");
    }
    memcpy(r->command, command, bytes);
    r->allocator = allocator;
    r->seconds = seconds;
    r->server = server;
    TRAIN_ASSERT(r->command[0] && r->seconds > 0 && !r->child);
    *reward = r;
    return RAVEL_OK;
}

void train_reward_free(train_reward *r) {
    if (!r) return;
    stop(r, 0);
    ravel_json_free(r->doc);
    train__release(r->allocator, r->out.data, r->out.room);
    train__release(r->allocator, r->in.data, r->in.room);
    train__release(r->allocator, r->command, strlen(r->command) + 1);
    train__release(r->allocator, r, sizeof *r);
}
