/* ravel report --serve: the page over HTTP.
 *
 *     GET /                  the page, made from what the runs' folders hold now
 *     GET /stamp             digits that change when a run goes on, and how far it is: the page asks for them, and after a change
 *     GET /news?735,1500     for what has come since so many rows of each run
 *
 * A run that has not finished its first update gets a page that says so and asks again. */
#include "cli/report/report.h"

#include "base/hash.h"

#include "http/http.h"
#include "train/model/out.h"
#include "train/run/rundir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct service {
    const char *const *folders;
    int count;
    uint64_t stamp; /* of `page` */
    char progress[96];
    train_out page; /* empty: not made yet */
    int32_t code;
} service;

static ravel__http_server *serving;

static void end_service(int number) {
    (void)number;
    ravel__http_server_wake(serving);
}

/* Of sizes and times of the files that the page is made from. */
static uint64_t stamp_of(const service *s) {
    static const char *const names[] = {"metrics.jsonl", "samples.jsonl", "timeline.jsonl", "refit.jsonl",
                                        "config.json"};
    int64_t facts[REPORT_RUNS_MAX * 5][3];
    size_t used = 0;
    RAVEL_ASSERT(s->count <= REPORT_RUNS_MAX);
    for (int i = 0; i < s->count; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++, used++) {
            char path[4096];
            struct stat info = {0};
            (void)snprintf(path, sizeof path, "%s/%s", s->folders[i], names[k]);
            if (stat(path, &info) != 0) memset(&info, 0, sizeof info);
            facts[used][0] = (int64_t)info.st_size;
            facts[used][1] = (int64_t)info.st_mtim.tv_sec;
            facts[used][2] = (int64_t)info.st_mtim.tv_nsec;
        }
    ravel__hash h = ravel__hash_begin(used);
    ravel__hash_i64s(&h, facts[0], 3 * used);
    return ravel__hash_end(h);
}

static const char waiting[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    "<meta http-equiv=\"refresh\" content=\"2\"><title>Ravel report</title><style>:root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:20vh auto;padding:0 1em}</style><h1>Not yet</h1><p>";

/* known NULL: the whole page. The page is in `text`. */
static ravel_status make(service *s, const int64_t *known, train_out *text, ravel_error *err) {
    report_run *runs = calloc(REPORT_RUNS_MAX, sizeof *runs);
    ravel_error why = RAVEL_ERROR_INIT;
    ravel__printer out;
    if (!runs) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    ravel__printer_begin(&out, cli_output_keep, text, err);
    ravel_status status = report_read_all(s->folders, s->count, runs, &why);
    s->code = status ? 503 : 200;
    s->progress[0] = '\0';
    if (!status && s->count == 1) report_progress(&runs[0], s->progress, sizeof s->progress);
    if (status) {
        ravel__printer_string(&out, waiting);
        ravel__printer_html(&out, why.message); /* sentences quote names of files */
        ravel__printer_string(&out, "</p><p>This page asks again every two seconds.</p></html>\n");
    } else if (known) {
        report_news(runs, s->count, known, &out);
    } else {
        report_html(runs, s->count, 1, &out);
    }
    report_free_all(runs, s->count);
    free(runs);
    return ravel__printer_end(&out);
}

static ravel_status make_page(service *s, ravel_error *err) {
    uint64_t stamp = stamp_of(s);
    if (s->page.used && s->stamp == stamp) return RAVEL_OK;
    train_out_free(&s->page);
    s->stamp = stamp;
    return make(s, NULL, &s->page, err);
}

static ravel_status make_news(service *s, const char *query, train_out *text, ravel_error *err) {
    int64_t known[REPORT_RUNS_MAX] = {0};
    char *at = (char *)query;
    for (int i = 0; i < s->count && *at >= '0' && *at <= '9'; i++) {
        known[i] = strtoll(at, &at, 10);
        at += *at == ',';
    }
    return make(s, known, text, err);
}

/* Whether a process trains in one of the folders. */
static int is_alive(const service *s) {
    train_holder holder;
    for (int i = 0; i < s->count; i++)
        if (train_rundir_holder(s->folders[i], &holder, NULL) == RAVEL_OK && holder.process != 0) return 1;
    return 0;
}

static void handle(void *user, ravel__http_server *server, const ravel__http_request *request) {
    static const char type[] = "text/html; charset=utf-8", headers[] = "Cache-Control: no-store\r\n";
    service *s = user;
    ravel_error err = RAVEL_ERROR_INIT;
    char stamp[160];
    train_out news = {0};
    int get = strcmp(request->method, "GET") == 0;
    if (get && strcmp(request->path, "/stamp") == 0) {
        int bytes = snprintf(stamp, sizeof stamp, "%016llx %s\n", (unsigned long long)stamp_of(s),
                             is_alive(s) ? s->progress[0] ? s->progress : "live" : "ended");
        (void)ravel__http_server_answer(server, request->id, 200, "text/plain", headers, stamp, (size_t)bytes);
    } else if (get && strcmp(request->path, "/news") == 0 && !make_news(s, request->query, &news, &err)) {
        (void)ravel__http_server_answer(server, request->id, s->code, "application/json", headers, news.data,
                                        news.used);
    } else if (!get || strcmp(request->path, "/") != 0) {
        (void)ravel__http_server_answer(server, request->id, get ? 404 : 405, "text/plain", NULL, "only / is here\n",
                                        15);
    } else if (make_page(s, &err)) {
        (void)ravel__http_server_answer(server, request->id, 500, "text/plain", NULL, err.message, strlen(err.message));
    } else {
        (void)ravel__http_server_answer(server, request->id, s->code, type, headers, s->page.data, s->page.used);
    }
    train_out_free(&news);
}

static ravel_status check_folders(const char *const *folders, int count, ravel_error *err) {
    struct stat info;
    for (int i = 0; i < count; i++)
        if (stat(folders[i], &info) != 0 || !S_ISDIR(info.st_mode))
            return ravel_error_set(err, RAVEL_E_DATA, "%s: no such folder; expected a run directory", folders[i]);
    return RAVEL_OK;
}

ravel_status report_serve(const char *const *folders, int count, const char *listen, int quiet, ravel_error *err) {
    service s = {.folders = folders, .count = count};
    ravel__http_server_options options;
    ravel__http_server *server = NULL;
    ravel__http_server_options_default(&options);
    options.listen = listen;
    options.handle = handle;
    options.user = &s;
    ravel_status status = check_folders(folders, count, err);
    if (!status) status = ravel__http_server_create(&options, &server, err);
    if (status) return status;
    serving = server;
    cli_catch_stop(end_service);
    if (!quiet)
        (void)fprintf(stderr, "ravel report: http://localhost:%d/ shows it and follows it; Ctrl-C ends\n",
                      (int)ravel__http_server_port(server));
    while (!status && !cli_stop) status = ravel__http_server_step(server, -1, err);
    ravel__http_server_free(server);
    train_out_free(&s.page);
    return status;
}
