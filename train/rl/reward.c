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
#include "train/model/files.h"
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

struct train_reward {
    char *command;
    double seconds;
    int server;                   /* `command` is the URL of a server */
    pid_t child;                  /* 0: not running */
    const volatile int *stop_now; /* NULL, or not 0: give up */
    int to, from;
    char *out; /* lines to the command, [out_bytes] */
    size_t out_bytes;
    char *in; /* [in_room] what came from it, [in_bytes] */
    int64_t in_bytes, in_room;
    ravel_json *doc; /* reused for every line */
};

/* ---- lines to the command ------------------------------------------------------------------------------- */

static void print_ids(FILE *f, const char *key, const int32_t *ids, int64_t count) {
    (void)fprintf(f, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++) (void)fprintf(f, i ? ", %d" : "%d", ids[i]);
    (void)fputc(']', f);
}

/* 0: memory was short. */
static int print_line(FILE *f, int64_t id, const train_rollout_text *x) {
    (void)fprintf(f, "{\"id\": %lld, \"prompt\": ", (long long)id);
    int done = train_file_quote(f, x->prompt, x->prompt_bytes);
    (void)fputs(", \"response\": ", f);
    done &= train_file_quote(f, x->response, x->response_bytes);
    if (x->answer) {
        (void)fputs(", \"answer\": ", f);
        done &= train_file_quote(f, x->answer, x->answer_bytes);
    }
    print_ids(f, "prompt_ids", x->prompt_ids, x->prompt_tokens);
    print_ids(f, "response_ids", x->response_ids, x->tokens);
    (void)fprintf(f, ", \"tokens\": %lld, \"ended\": %s%s%s}\n", (long long)x->tokens, x->ended ? "true" : "false",
                  x->row ? ", \"row\": " : "", x->row ? x->row : "");
    return done;
}

/* Those of the rollouts without a score; *asked of them. */
static ravel_status print_lines(train_reward *r, const train_rollout_text *rollouts, int64_t count,
                                const train_score *scores, int64_t *asked, ravel_error *err) {
    free(r->out);
    r->out = NULL;
    *asked = 0;
    FILE *f = open_memstream(&r->out, &r->out_bytes);
    int done = f != NULL;
    for (int64_t i = 0; done && i < count; i++) {
        if (!isnan(scores[i].reward)) continue;
        done = print_line(f, i, &rollouts[i]);
        ++*asked;
    }
    if (f) done &= !ferror(f);
    if (f) done &= fclose(f) == 0;
    return !done ? train__no_memory(err, r->out_bytes, "lines to the reward command") : RAVEL_OK;
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
    r->in_bytes = 0;
}

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

static ravel_status start(train_reward *r, ravel_error *err) {
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    const char *failed = NULL;
    pid_t child = -1;
    if (r->child) return RAVEL_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
        failed = "no socket pair";
    else if (pipe2(output, O_CLOEXEC) != 0)
        failed = "no pipe";
    else if ((child = fork()) < 0)
        failed = "it cannot be started";
    int why = errno;
    if (child == 0) run_child(r->command, input[1], output[1]);
    for (int i = failed ? 0 : 1; i < 2; i++) { /* the child's ends; after a failure, all */
        if (input[i] >= 0) close(input[i]);
        if (output[i] >= 0) close(output[i]);
    }
    if (failed) return ravel_error_set(err, RAVEL_E_IO, "reward command: %s: %s", failed, strerror(why));
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
    if (ravel_json_parse(line, bytes, NULL, &r->doc, NULL) != RAVEL_OK)
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
    int64_t from = 0;
    for (int64_t i = 0; i < r->in_bytes; i++)
        if (r->in[i] == '\n') {
            ravel_status status = take_line(r, r->in + from, (size_t)(i - from), count, scores, left, err);
            if (status) return status;
            from = i + 1;
        }
    TRAIN_ASSERT(from <= r->in_bytes && *left >= 0);
    r->in_bytes -= from;
    memmove(r->in, r->in + from, (size_t)r->in_bytes);
    TRAIN_ASSERT(!memchr(r->in, '\n', (size_t)r->in_bytes));
    return RAVEL_OK;
}

static ravel_status make_room(train_reward *r, int64_t more, ravel_error *err) {
    char *grown = train__grown(NULL, r->in, &r->in_room, r->in_bytes, r->in_bytes + more, 1);
    if (!grown) return train__no_memory(err, (size_t)(r->in_bytes + more), "lines of the reward command");
    r->in = grown;
    return RAVEL_OK;
}

/* The caller stops the command afterwards. */
static ravel_status died(const train_reward *r, ravel_error *err) {
    siginfo_t end = {0};
    TRAIN_ASSERT(r->child > 0);
    /* Waits briefly, so that the exit status of an ending command is known. */
    for (double deadline = train__now() + 0.5; !end.si_pid && train__now() < deadline; (void)usleep(1000))
        (void)waitid(P_PID, (id_t)r->child, &end, WEXITED | WNOHANG | WNOWAIT);
    if (!end.si_pid)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it closed its output before it had answered");
    if (end.si_code != CLD_EXITED)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it was killed by signal %d", end.si_status);
    return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it ended with exit code %d before it had answered",
                           end.si_status);
}

static ravel_status receive(train_reward *r, int64_t count, train_score *scores, int64_t *left, ravel_error *err) {
    ravel_status status = make_room(r, 65536, err);
    if (status) return status;
    ssize_t got = read(r->from, r->in + r->in_bytes, (size_t)(r->in_room - r->in_bytes));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return RAVEL_OK;
    if (got <= 0) return died(r, err);
    r->in_bytes += got;
    if (r->in_bytes > 16 << 20)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it wrote 16 MiB without the end of a line");
    return take_lines(r, count, scores, left, err);
}

static ravel_status transmit(train_reward *r, size_t *sent, ravel_error *err) {
    ssize_t put = send(r->to, r->out + *sent, r->out_bytes - *sent, MSG_NOSIGNAL);
    if (put > 0) *sent += (size_t)put;
    TRAIN_ASSERT(*sent <= r->out_bytes);
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
        struct pollfd fds[2] = {{r->from, POLLIN, 0}, {sent < r->out_bytes ? r->to : -1, POLLOUT, 0}};
        int ready = poll(fds, 2, wait > 0.2 ? 200 : (int)(wait * 1000) + 1);
        ravel_status status = RAVEL_OK;
        if (r->stop_now && *r->stop_now)
            return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while waiting for rewards");
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
    ravel_status status = train_http_post(r->command, r->out, r->out_bytes, r->seconds, &answer, &bytes, err);
    r->in_bytes = 0;
    if (!status) status = make_room(r, (int64_t)bytes + 1, err);
    if (!status) {
        memcpy(r->in, answer, bytes);
        r->in_bytes = (int64_t)bytes;
        if (bytes && answer[bytes - 1] != '\n') r->in[r->in_bytes++] = '\n';
        status = take_lines(r, count, scores, &left, err);
    }
    free(answer);
    r->in_bytes = 0;
    if (!status && left > 0)
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "%s scored %lld of %lld answers", r->command,
                                 (long long)(asked - left), (long long)asked);
    return status;
}

ravel_status train_reward_score(train_reward *r, const train_rollout_text *rollouts, int64_t count, train_score *scores,
                                ravel_error *err) {
    int64_t asked;
    ravel_status status = print_lines(r, rollouts, count, scores, &asked, err);
    if (!status && r->server) return asked > 0 ? post(r, count, asked, scores, err) : RAVEL_OK;
    if (!status) status = start(r, err);
    if (!status) status = converse(r, count, asked, scores, err);
    if (!status && r->in_bytes)
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "reward command: it wrote more than it was asked for");
    if (status) stop(r, 1);
    return status;
}

ravel_status train_reward_create(const char *command, double seconds, train_reward **reward, ravel_error *err) {
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
    train_reward *r = train__calloc(NULL, 1, sizeof *r);
    if (!r) return train__no_memory(err, sizeof *r, "the reward command");
    r->command = train__alloc(NULL, bytes);
    if (!r->command) {
        train__release(NULL, r, sizeof *r);
        return train__no_memory(err, bytes, "the reward command");
    }
    memcpy(r->command, command, bytes);
    r->seconds = seconds;
    r->server = server;
    TRAIN_ASSERT(r->command[0] && r->seconds > 0 && !r->child);
    *reward = r;
    return RAVEL_OK;
}

void train_reward_set_stop(train_reward *r, const volatile int *stop_now) {
    r->stop_now = stop_now;
}

void train_reward_free(train_reward *r) {
    if (!r) return;
    stop(r, 0);
    ravel_json_free(r->doc);
    free(r->out);
    train__release(NULL, r->in, (size_t)r->in_room);
    train__release(NULL, r->command, strlen(r->command) + 1);
    train__release(NULL, r, sizeof *r);
}
