/* The traces of all ranks (trace-0.json, trace-1.json, ...) of one or more runs as one JSON array. Each file is an
 * event per line, so that they are joined line by line; the ranks of a second run get process numbers of their own. */
#include "cli/report/report.h"

#include "base/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_A_RUN = 1 << 20 };

/* The event with its rank moved by `shift`: "pid":3 is rewritten, the rest stays. */
static void put_event(const char *line, size_t bytes, int64_t shift, int *any, ravel__printer *out) {
    static const char key[] = "\"pid\":";
    const char *pid = memmem(line, bytes, key, sizeof key - 1);
    if (!pid || line[0] != '{') return;
    const char *digits = pid + sizeof key - 1;
    RAVEL_ASSERT(digits <= line + bytes && shift >= 0);
    char *rest;
    int64_t rank = strtoll(digits, &rest, 10);
    ravel__printer_string(out, *any ? ",\n" : "[\n");
    *any = 1;
    ravel__printer_put(out, line, (size_t)(digits - line));
    ravel__printer_integer(out, rank + shift);
    ravel__printer_put(out, rest, (size_t)(line + bytes - rest));
}

static ravel_status put_file(const char *folder, const char *name, int64_t shift, int *any, ravel__printer *out,
                             ravel_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    ravel_status status = report_slurp(folder, name, &text, &bytes, err);
    for (const char *line = text; !status && line && *line;) {
        size_t length = strcspn(line, "\n"), kept = length;
        if (kept && line[kept - 1] == ',') kept--;
        ravel__json *doc = NULL;
        if (kept && ravel__json_parse(line, kept, NULL, &doc, NULL) == RAVEL_OK) put_event(line, kept, shift, any, out);
        ravel__json_free(doc);
        line += length + (line[length] == '\n');
    }
    free(text);
    return status;
}

/* The rank in "trace-12.json", or -1. */
static int64_t rank_in(const char *name) {
    int64_t rank = -1;
    int used = 0;
    if (strncmp(name, "trace-", 6) != 0 || name[6] < '0' || name[6] > '9') return -1;
    char *end;
    rank = strtoll(name + 6, &end, 10);
    used = strcmp(end, ".json") == 0;
    return used && rank < RANKS_A_RUN ? rank : -1;
}

static int compare_ranks(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The ranks that have a file, in order; *ranks is the caller's. */
static ravel_status find_ranks(const char *folder, int64_t **ranks, int64_t *count, ravel_error *err) {
    DIR *dir = opendir(folder);
    if (!dir) return ravel_error_set(err, RAVEL_E_DATA, "%s: no such folder; expected a run directory", folder);
    int64_t room = 0;
    *ranks = NULL;
    *count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        int64_t rank = rank_in(e->d_name);
        if (rank < 0) continue;
        if (*count == room) {
            room = room ? room * 2 : 64;
            int64_t *grown = realloc(*ranks, (size_t)room * sizeof *grown);
            if (!grown) break;
            *ranks = grown;
        }
        RAVEL_ASSERT(*count < room);
        (*ranks)[(*count)++] = rank;
    }
    (void)closedir(dir);
    if (*count == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "%s: there is no trace-0.json or other trace in it", folder);
    qsort(*ranks, (size_t)*count, sizeof **ranks, compare_ranks);
    return RAVEL_OK;
}

ravel_status report_trace(const char *const *folders, int count, const char *path, ravel_error *err) {
    cli_output output;
    ravel__printer out;
    int any = 0;
    ravel_status status = cli_output_open(&output, path, err);
    if (status) return status;
    ravel__printer_begin(&out, cli_output_write, &output, err);
    for (int i = 0; i < count && !status; i++) {
        int64_t *ranks = NULL, found = 0;
        status = find_ranks(folders[i], &ranks, &found, err);
        for (int64_t r = 0; r < found && !status; r++) {
            char name[64];
            (void)snprintf(name, sizeof name, "trace-%lld.json", (long long)ranks[r]);
            status = put_file(folders[i], name, (int64_t)i * RANKS_A_RUN, &any, &out, err);
            cli_progress("joining traces", (double)r, (double)found);
        }
        free(ranks);
    }
    ravel__printer_string(&out, any ? "\n]\n" : "[]\n");
    return cli_output_close(&output, status ? status : ravel__printer_end(&out), err);
}
