/* Files that appear whole or not at all: also when the command is interrupted half-way. */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- interruptions ------------------------------------------------------------------------------------------ */

/* The file that is being written aside. A signal handler can look nowhere else, hence the only global of this file. */
static char aside_now[4096];
static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNALS = sizeof signals / sizeof *signals };

/* Leaves nothing behind, then ends as the signal would have. */
static void on_signal(int number) {
    (void)unlink(aside_now);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Signals that end the command are caught while there is something to remove; what is ignored or handled already (nohup,
 * a trainer's own handler) stays so. */
static void guard(const char *aside) {
    struct sigaction old, action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)snprintf(aside_now, sizeof aside_now, "%s", aside);
    for (int i = 0; i < SIGNALS; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(signals[i], &action, NULL);
}

static void unguard(void) {
    struct sigaction now;
    for (int i = 0; i < SIGNALS; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == on_signal) (void)signal(signals[i], SIG_DFL);
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static ravel_status failed(const cli_output *output, int number, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_IO, "%s: writing failed: %s",
                           strcmp(output->path, "-") == 0 ? "standard output" : output->path, strerror(number));
}

ravel_status cli_output_open(cli_output *output, const char *path, ravel_error *err) {
    struct stat info;
    memset(output, 0, sizeof *output);
    output->path = path;
    if (strcmp(path, "-") == 0) {
        output->file = stdout;
        return RAVEL_OK;
    }
    /* what is there already and is no plain file (a pipe, /dev/null) cannot be replaced, only written to */
    int special = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    if (!special &&
        snprintf(output->aside, sizeof output->aside, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof output->aside)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.60s... is too long", path);
    if (!special) guard(output->aside);
    output->file = fopen(special ? path : output->aside, "w");
    int number = errno;
    if (!output->file && !special) unguard();
    if (!output->file) return ravel_error_set(err, RAVEL_E_IO, "%s: cannot write it: %s", path, strerror(number));
    return RAVEL_OK;
}

ravel_status cli_output_write(void *user, const char *text, size_t bytes, ravel_error *err) {
    cli_output *output = user;
    if (output->closed) return RAVEL_OK;
    errno = 0;
    if (fwrite(text, 1, bytes, output->file) != bytes) {
        output->closed = output->file == stdout && errno == EPIPE;
        return output->closed ? RAVEL_OK : failed(output, errno, err);
    }
    output->bytes += (int64_t)bytes;
    char what[128];
    (void)snprintf(what, sizeof what, "writing %.100s", output->path);
    cli_progress(what, (double)output->bytes, output->expected);
    return RAVEL_OK;
}

/* Everything out of our hands; the number of the error, or 0. */
static int settle(cli_output *output) {
    FILE *file = output->file;
    errno = 0;
    int bad = fflush(file) != 0 || ferror(file), number = errno;
    if (bad && file == stdout && number == EPIPE) {
        output->closed = 1;
        clearerr(file);
        return 0;
    }
    if (file != stdout && fclose(file) != 0 && !bad) {
        bad = 1;
        number = errno;
    }
    return bad ? (number ? number : EIO) : 0;
}

ravel_status cli_output_close(cli_output *output, ravel_status status, ravel_error *err) {
    cli_progress_end();
    if (output->closed) return status;
    int number = settle(output);
    if (!status && number) status = failed(output, number, err);
    if (!status && output->aside[0] && rename(output->aside, output->path) != 0) status = failed(output, errno, err);
    if (status && output->aside[0]) (void)unlink(output->aside);
    if (output->aside[0]) unguard();
    return status;
}

/* Nobody is left to read from the pipe that standard output is. */
static int reader_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP));
}

int cli_finish(const char *command, int code) {
    errno = 0;
    int bad = fflush(stdout) != 0 || ferror(stdout), number = errno;
    if (!bad || code != CLI_OK || reader_gone()) return code;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_error_set(&err, RAVEL_E_IO, "standard output: writing failed: %s", strerror(number ? number : EIO));
    return cli_fail(command, &err);
}

const char *cli_thousands(int64_t value, char *out, size_t room) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < room; i++) {
        if (i > (value < 0) && (length - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}
