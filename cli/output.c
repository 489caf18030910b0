/* Output files: complete or absent, also when the command is interrupted; they never overwrite an input, another
 * output, a link or a device. */
#include "cli/cli.h"

#include "base/memory.h"
#include "base/system/file.h"
#include "train/model/out.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- interruptions ------------------------------------------------------------------------------------------ */

/* The files that are being written aside; "": a free place. Static, because a signal handler reads it. */
enum { ASIDES = 8 };
static char asides[ASIDES][4096];
static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { SIGNALS = sizeof signals / sizeof *signals };

/* Removes the temporary files, then ends as the signal would have. */
static void on_signal(int number) {
    for (int i = 0; i < ASIDES; i++)
        if (asides[i][0]) (void)unlink(asides[i]);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Signals that end the command are caught while there is something to remove; what is ignored or handled already
 * (nohup, a trainer's own handler) stays so. */
static void guard(const char *aside) {
    struct sigaction old, action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    RAVEL_ASSERT(aside[0] && strlen(aside) < sizeof asides[0]);
    for (int i = 0; i < ASIDES; i++)
        if (!asides[i][0]) {
            (void)snprintf(asides[i], sizeof asides[i], "%s", aside);
            break;
        }
    for (int i = 0; i < SIGNALS; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(signals[i], &action, NULL);
}

static void unguard(const char *aside) {
    struct sigaction now;
    int left = 0;
    RAVEL_ASSERT(aside[0]);
    for (int i = 0; i < ASIDES; i++) {
        if (strcmp(asides[i], aside) == 0) asides[i][0] = '\0';
        left += asides[i][0] != '\0';
    }
    for (int i = 0; !left && i < SIGNALS; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == on_signal) (void)signal(signals[i], SIG_DFL);
}

/* ---- inputs and outputs ------------------------------------------------------------------------------------- */

/* A file of this command. One that does not exist yet is known by its folder and its name in it. */
typedef struct claim {
    const char *option;
    int output;
    dev_t device;
    ino_t inode;    /* of the file, or of its folder */
    char name[256]; /* in the folder; "": the file exists */
} claim;

static claim *claims; /* kept until the command ends */
static int claim_count;

static int keep(const claim *c) {
    claim *grown = realloc(claims, (size_t)(claim_count + 1) * sizeof *claims);
    if (!grown) return 0;
    claims = grown;
    claims[claim_count++] = *c;
    RAVEL_ASSERT(c->option && claim_count > 0);
    return 1;
}

/* 0 if no conflict is possible: a device, a pipe, a folder that is missing (opening will say so). */
static int identify(const char *path, claim *c) {
    struct stat info;
    char target[4096], folder[4096];
    int replace = 1;
    if (ravel__file_resolve(path, target, sizeof target, &replace, NULL) || !replace) return 0;
    c->name[0] = '\0';
    if (stat(target, &info) != 0) {
        const char *slash = strrchr(target, '/');
        (void)snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - target) + 1 : 1, slash ? target : ".");
        (void)snprintf(c->name, sizeof c->name, "%.255s", slash ? slash + 1 : target);
        if (stat(folder, &info) != 0) return 0;
    }
    c->device = info.st_dev;
    c->inode = info.st_ino;
    return 1;
}

static int same_file(const claim *a, const claim *b) {
    return a->device == b->device && a->inode == b->inode && strcmp(a->name, b->name) == 0;
}

static ravel_status add_claim(const char *option, const char *path, int output, ravel_error *err) {
    claim c = {.option = option, .output = output};
    RAVEL_ASSERT(option && option[0]);
    if (!path || strcmp(path, "-") == 0 || !identify(path, &c)) return RAVEL_OK;
    for (int i = 0; i < claim_count; i++) {
        if (!same_file(&claims[i], &c) || (!output && !claims[i].output)) continue;
        if (output && claims[i].output)
            return CLI_REFUSE(err, "%s: --%s and --%s would write the same file; give two names", path,
                              claims[i].option, option);
        return CLI_REFUSE(err, "%s: --%s would write over a file that is read (%s); give another name", path,
                          output ? option : claims[i].option, output ? claims[i].option : option);
    }
    return keep(&c) ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
}

static int is_data(const char *name) {
    static const char *const ends[] = {".safetensors", ".json", ".jsonl"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0) return 1;
    return 0;
}

ravel_status cli_claim_input(const char *option, const char *path, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    char inside[4096];
    DIR *folder = path ? opendir(path) : NULL;
    if (!folder) return add_claim(option, path, 0, err);
    for (const struct dirent *entry; !status && (entry = readdir(folder)) != NULL;)
        if (is_data(entry->d_name) &&
            snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name) < (int)sizeof inside)
            status = add_claim(option, inside, 0, err);
    (void)closedir(folder);
    return status;
}

ravel_status cli_claim_output(const char *option, const char *path, ravel_error *err) {
    return add_claim(option, path, 1, err);
}

static const char partial[] = ".partial";

ravel_status cli_claim_partial(const char *option, const char *path, ravel_error *err) {
    char name[4096];
    if (!path || strcmp(path, "-") == 0 || snprintf(name, sizeof name, "%s%s", path, partial) >= (int)sizeof name)
        return RAVEL_OK;
    return add_claim(option, name, 1, err);
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static ravel_status failed(const cli_output *output, int number, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_IO, "%s: writing failed: %s",
                           strcmp(output->path, "-") == 0 ? "standard output" : output->path, strerror(number));
}

/* A name that nobody else has taken, guarded before the file is there. */
static FILE *open_aside(cli_output *output) {
    for (int n = 0, number = EEXIST; n < 1000 && number == EEXIST; n++) {
        (void)snprintf(output->aside, sizeof output->aside, "%.4000s.tmp.%ld.%d", output->target, (long)getpid(), n);
        guard(output->aside);
        int fd = open(output->aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return fdopen(fd, "w");
        number = errno;
        unguard(output->aside);
        errno = number;
    }
    return NULL;
}

ravel_status cli_output_open(cli_output *output, const char *path, ravel_error *err) {
    int replace = 1;
    memset(output, 0, sizeof *output);
    output->path = path;
    if (strcmp(path, "-") == 0) {
        output->file = stdout;
        return RAVEL_OK;
    }
    ravel_status status = ravel__file_resolve(path, output->target, sizeof output->target, &replace, err);
    if (status) return status;
    output->file = replace ? open_aside(output) : fopen(output->target, "w");
    int number = errno;
    if (!output->file) return ravel_error_set(err, RAVEL_E_IO, "%s: cannot write it: %s", path, strerror(number));
    return RAVEL_OK;
}

ravel_status cli_output_write(void *user, const char *text, size_t bytes, ravel_error *err) {
    cli_output *output = user;
    RAVEL_ASSERT(output->file && (text || bytes == 0));
    if (output->closed) return RAVEL_OK;
    errno = 0;
    if (fwrite(text, 1, bytes, output->file) != bytes) {
        output->closed = output->file == stdout && errno == EPIPE;
        return output->closed ? RAVEL_OK : failed(output, errno, err);
    }
    output->bytes += (int64_t)bytes;
    RAVEL_ASSERT(output->bytes >= 0 && output->expected >= 0);
    char what[128];
    (void)snprintf(what, sizeof what, "writing %.100s", output->path);
    cli_progress(what, (double)output->bytes, output->expected);
    return RAVEL_OK;
}

ravel_status cli_output_keep(void *out, const char *text, size_t bytes, ravel_error *err) {
    train_out *o = out;
    train_out_put(o, text, bytes);
    return o->failed ? ravel__no_memory(err, bytes, "a text") : RAVEL_OK;
}

/* The reader of the pipe that is standard output has closed it. */
static int reader_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP));
}

/* Flushes, and closes all but standard output. Returns errno, or 0, also if the reader of a pipe has closed it. */
static int settle(cli_output *output) {
    FILE *file = output->file;
    RAVEL_ASSERT(file && output->path);
    errno = 0;
    int bad = fflush(file) != 0 || ferror(file), number = output->error ? output->error : errno;
    if (bad && file == stdout && (number == EPIPE || reader_gone())) {
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

void cli_output_partial(cli_output *output) {
    size_t bytes = strlen(output->target);
    RAVEL_ASSERT(output->file);
    if (output->aside[0] && bytes + sizeof partial <= sizeof output->target)
        memcpy(output->target + bytes, partial, sizeof partial);
}

void cli_output_flush(cli_output *output) {
    RAVEL_ASSERT(output->file);
    errno = 0;
    if (fflush(output->file) != 0 && !output->error) output->error = errno;
}

ravel_status cli_output_close(cli_output *output, ravel_status status, ravel_error *err) {
    cli_progress_end();
    RAVEL_ASSERT(output->file && (!output->aside[0] || output->target[0]));
    if (output->closed) return status;
    int number = settle(output);
    if (!status && number) status = failed(output, number, err);
    if (!status && output->aside[0] && rename(output->aside, output->target) != 0) status = failed(output, errno, err);
    if (status && output->aside[0]) (void)unlink(output->aside);
    if (output->aside[0]) unguard(output->aside);
    return status;
}

ravel_status cli_output_print(const char *path, void (*print)(ravel__printer *out, const void *user), const void *user,
                              ravel_error *err) {
    cli_output output;
    ravel__printer out;
    ravel_status status = cli_output_open(&output, path, err);
    if (status) return status;
    ravel__printer_begin(&out, cli_output_write, &output, err);
    print(&out, user);
    return cli_output_close(&output, ravel__printer_end(&out), err);
}

/* The nearest mark in the text, and where it is. */
static const cli_mark *next_mark(const char *text, const cli_mark *marks, const char **at) {
    const cli_mark *nearest = NULL;
    for (const cli_mark *m = marks; m->mark; m++) {
        const char *found = strstr(text, m->mark);
        if (!found || (nearest && found > *at)) continue;
        nearest = m;
        *at = found;
    }
    return nearest;
}

void cli_fill(ravel__printer *out, const char *text, const cli_mark *marks, const void *user) {
    const char *at = text;
    for (const cli_mark *m; (m = next_mark(text, marks, &at)); text = at + strlen(m->mark)) {
        ravel__printer_put(out, text, (size_t)(at - text));
        m->put(out, user);
    }
    ravel__printer_string(out, text);
}

int cli_finish(const char *command, int code) {
    errno = 0;
    int bad = fflush(stdout) != 0 || ferror(stdout), number = errno;
    if (!bad || code != CLI_OK || reader_gone()) return code;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_error_set(&err, RAVEL_E_IO, "standard output: writing failed: %s", strerror(number ? number : EIO));
    return cli_fail(command, &err);
}
