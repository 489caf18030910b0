/* ravel stop: ends a run of ravel train as Ctrl-C does; and how all commands take Ctrl-C.
 *
 * Under mpirun a signal to the launcher is not one to the ranks: Open MPI ends them two seconds later. Ranks agree on a
 * stop, so a signal to the process that holds the folder's lock, rank 0, is enough. */
#include "cli/cli.h"

#include "base/system/clock.h"
#include "train/run/rundir.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- signals -------------------------------------------------------------------------------------------- */

volatile int cli_stop;
static void (*volatile tell)(int number);

/* `timeout` sends a signal to its child and to its child's group: two that come together are one. */
static void on_stop(int number) {
    enum { TOGETHER_NS = 250000000 };
    static volatile int64_t first_ns;
    int64_t now_ns = ravel__clock_ns();
    if (!cli_stop) {
        first_ns = now_ns;
        cli_stop = number;
        if (tell) tell(number);
    } else if (now_ns - first_ns > TOGETHER_NS) { /* the second one */
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
}

void cli_catch_stop(void (*also)(int number)) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    const struct sigaction action = {.sa_handler = on_stop}; /* without SA_RESTART: it ends a wait */
    tell = also;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) (void)sigaction(signals[i], &action, NULL);
}

/* ---- ravel stop ------------------------------------------------------------------------------------------- */

typedef struct stop_options {
    int32_t save, wait;
} stop_options;

#define ROW(...) RAVEL__ROW(stop_options, __VA_ARGS__)
static const ravel_option table[] = {
    ROW("save", BOOL, save, "false", 0, 0, NULL, "only write a checkpoint after this update; the run goes on"),
    ROW("wait", BOOL, wait, "true", 0, 0, NULL, "wait until the run has ended"),
    {0}};

static ravel_status wait_for(const char *run, const train_holder *stopped, ravel_error *err) {
    const struct timespec pause = {0, 100000000};
    train_holder now = *stopped;
    char what[TRAIN_PATH + 64];
    ravel_status status = RAVEL_OK;
    (void)snprintf(what, sizeof what, "waiting for %s to end", run);
    cli_busy(what);
    while (!status && now.process == stopped->process) {
        (void)nanosleep(&pause, NULL);
        status = train_rundir_holder(run, &now, err);
    }
    cli_busy_end();
    return status;
}

static ravel_status stop(const char *run, const stop_options *o, ravel_error *err) {
    train_holder h;
    char newest[TRAIN_PATH];
    int64_t step;
    ravel_status status = train_rundir_holder(run, &h, err);
    if (status) return status;
    if (h.process == 0) return ravel_error_set(err, RAVEL_E_STATE, "no process trains in %s", run);
    if (!h.visible)
        return ravel_error_set(
            err, RAVEL_E_STATE,
            "%s is in use by process %lld on %s, which is not to be seen from here; run this command there, as the "
            "same user",
            run, h.process, h.host);
    if (kill((pid_t)h.process, o->save ? SIGHUP : SIGTERM) != 0)
        return ravel_error_set(err, RAVEL_E_IO, "process %lld, which trains in %s: %s", h.process, run,
                               strerror(errno));
    if (!o->save && o->wait) status = wait_for(run, &h, err);
    if (status || o->save || !o->wait) return status;
    if (train_checkpoint_latest(run, &step, newest, NULL))
        printf("%s has ended, without a checkpoint\n", run);
    else
        printf("%s has ended; its newest checkpoint is %s\n", run, newest);
    return RAVEL_OK;
}

static const char usage[] =

    "usage: ravel stop RUN [options]\n\n"
    "Ends the process that trains in a folder, and with it all ranks of the run, as Ctrl-C does: it writes a\n"
    "checkpoint. Under Open MPI's mpirun, where Ctrl-C may end ranks before they have written one, use this.\n\n"
    "examples:\n"
    "  ravel stop runs/sft-1\n"
    "  ravel stop runs/sft-1 --save\n";

int cli_stop_run(int argc, char **argv) {
    stop_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1];
    int count = 0, code;
    const cli_options sets[] = {{"Options", table, &o}};
    const cli_form form = {"stop", usage, NULL, sets, 1, 1};
    if (!cli_begin(&form, argc, argv, words, &count, &code)) return code;
    if (count == 0) {
        (void)CLI_REFUSE(&err, "name the folder of a run; see --help");
        return cli_usage("stop", &err);
    }
    return stop(words[0], &o, &err) ? cli_fail("stop", &err) : CLI_OK;
}
