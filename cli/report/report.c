/* ravel report: look at a run, compare runs. */
#include "cli/report/report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct report_flags {
    const char *html, *trace, *listen;
    int32_t list, quiet, serve;
} report_flags;

#define ROW(...) RAVEL__ROW(report_flags, __VA_ARGS__)
static const ravel_option flag_table[] = {
    ROW("html", STRING, html, NULL, 0, 0, "FILE", "write one self-contained page; - is standard output"),
    ROW("trace", STRING, trace, NULL, 0, 0, "FILE",
        "join the ranks' traces into one file for chrome://tracing or ui.perfetto.dev"),
    ROW("serve", BOOL, serve, "false", 0, 0, NULL,
        "show the page in a browser and follow the runs: it is redrawn as they progress, until Ctrl-C"),
    ROW("listen", STRING, listen, "8100", 0, 0, "ADDRESS",
        "where --serve listens: [address:]port; without an address only this machine can reach it"),
    ROW("list-metrics", BOOL, list, "false", 0, 0, NULL,
        "print the table of all metrics, sinks and known GPUs as Markdown, and do nothing else"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "no summary on standard output"),
    {0}};
static const char help_top[] =
    "usage: ravel report RUN_DIR [RUN_DIR ...] [--html FILE] [--serve] [--trace FILE]\n"
    "\n"
    "Shows what a run did: loss and reward, throughput, packing and padding, idle ranks, where the time went,\n"
    "refits. With several runs it compares them, the first being what the others are measured against. A run\n"
    "directory holds metrics.jsonl (an object per update) and, where there are any, config.json,\n"
    "environment.json, refit.jsonl and trace-RANK.json. A run that is still going can be looked at too.\n";

static const char help_end[] =
    "\nExamples:\n"
    "  ravel report runs/a\n"
    "  ravel report runs/a --html a.html\n"
    "  ravel report runs/a runs/b --html both.html\n"
    "  ravel report runs/a --serve\n"
    "  ravel report runs/a --trace a.trace.json\n"
    "\nExit codes: 0 done, 1 the data is wrong, 2 the command line is wrong. See also ravel-report(1).\n";

typedef struct job {
    const report_flags *flags;
    const char *folders[REPORT_RUNS_MAX];
    int count;
    report_run runs[REPORT_RUNS_MAX];
} job;

static void print_page(ravel__printer *out, const void *user) {
    const job *j = user;
    report_html(j->runs, j->count, 0, out);
}

static void print_summary(ravel__printer *out, const void *user) {
    const job *j = user;
    report_print(j->runs, j->count, out);
    for (int i = 0; i < 2; i++) {
        const char *path = i ? j->flags->trace : j->flags->html;
        if (!path) continue;
        ravel__printer_string(out, i ? "trace: " : "page: ");
        ravel__printer_string(out, path);
        ravel__printer_string(out, "\n");
    }
}

static int takes_stdout(const char *path) {
    return path && strcmp(path, "-") == 0;
}

static ravel_status make_report(job *j, ravel_error *err) {
    ravel_status status = report_read_all(j->folders, j->count, j->runs, err);
    if (!status && j->flags->html) status = cli_output_print(j->flags->html, print_page, j, err);
    if (!status && j->flags->trace) status = report_trace(j->folders, j->count, j->flags->trace, err);
    if (!status && !j->flags->quiet && !takes_stdout(j->flags->html) && !takes_stdout(j->flags->trace))
        status = cli_output_print("-", print_summary, j, err);
    report_free_all(j->runs, j->count);
    return status;
}

/* The page and the trace may be in a run's folder, but not in place of what is read there. */
static ravel_status claim_files(const job *j, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < j->count && !status; i++) status = cli_claim_input("run", j->folders[i], err);
    if (!status) status = cli_claim_output("html", j->flags->html, err);
    return status ? status : cli_claim_output("trace", j->flags->trace, err);
}

int cli_report(int argc, char **argv) {
    report_flags flags;
    const cli_options sets[] = {{"Options", flag_table, &flags}};
    const cli_form form = {"report", help_top, help_end, sets, 1, REPORT_RUNS_MAX};
    ravel_error err = RAVEL_ERROR_INIT;
    job j;
    int code;
    memset(&j, 0, sizeof j);
    j.flags = &flags;
    if (!cli_begin(&form, argc, argv, j.folders, &j.count, &code)) return code;
    (void)signal(SIGPIPE, SIG_IGN); /* `ravel report run | head` ends quietly */
    if (flags.list) return cli_output_print("-", report_list, NULL, &err) ? cli_fail("report", &err) : CLI_OK;
    if (j.count == 0) {
        (void)CLI_REFUSE(&err, "which run? Give its directory: ravel report RUN_DIR [--html FILE]");
        return cli_usage("report", &err);
    }
    if (flags.serve && (flags.html || flags.trace)) {
        (void)CLI_REFUSE(&err, "--serve writes no file; leave out --html and --trace");
        return cli_usage("report", &err);
    }
    if (flags.serve)
        return report_serve(j.folders, j.count, flags.listen, flags.quiet, &err) ? cli_fail("report", &err) : CLI_OK;
    if (claim_files(&j, &err)) return cli_usage("report", &err);
    return make_report(&j, &err) ? cli_fail("report", &err) : CLI_OK;
}
