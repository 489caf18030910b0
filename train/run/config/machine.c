#include "train/run/config/machine.h"

#include "base/assert.h"
#include "base/log.h"
#include "train/kernels/host.h"
#include "train/model/hf/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* The first number of a file; INT64_MAX if there is none. */
static int64_t number_in(const char *path, const char *format, int64_t unit) {
    long long value = 0;
    char line[256];
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) found = sscanf(line, format, &value) == 1;
    if (f) (void)fclose(f);
    return found && value > 0 && value < INT64_MAX / unit ? value * unit : INT64_MAX;
}

/* The least limit on the way from a group to the root of its hierarchy. In a container the path may be one of the host's, of
 * which only the root is there. */
static int64_t limit_above(const char *hierarchy, char *group, const char *name) {
    int64_t least = INT64_MAX;
    char path[2 * TRAIN_PATH];
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = '\0';
        (void)snprintf(path, sizeof path, "%s%s/%s", hierarchy, group, name);
        least = train__min(least, number_in(path, "%lld", 1));
        if (end == group) break;
    }
    return least;
}

/* Lines are ID:CONTROLLERS:PATH, in version 2 with ID 0 and no controllers. */
static int64_t limit_of_groups(const char *root) {
    char path[TRAIN_PATH], line[TRAIN_PATH], tree[TRAIN_PATH];
    int64_t least = INT64_MAX;
    (void)snprintf(path, sizeof path, "%.2000s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        int second = strncmp(line, "0:", 2) == 0 && !controllers[1];
        if (!second && !strstr(controllers + 1, "memory")) continue;
        (void)snprintf(tree, sizeof tree, "%.2000s/sys/fs/cgroup%s", root, second ? "" : "/memory");
        least = train__min(least, limit_above(tree, group, second ? "memory.max" : "memory.limit_in_bytes"));
    }
    if (f) (void)fclose(f);
    return least;
}

train_machine train_machine_look(const char *root) {
    char path[TRAIN_PATH];
    (void)snprintf(path, sizeof path, "%.2000s/proc/meminfo", root);
    int64_t all = number_in(path, "MemTotal: %lld kB", 1024);
    return (train_machine){train__min(all, limit_of_groups(root)), number_in(path, "MemAvailable: %lld kB", 1024)};
}

ravel_status train_machine_fits(const train_machine *machine, int64_t bytes, const char *what, const char *advice,
                                ravel_error *err) {
    char a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT];
    RAVEL_ASSERT(bytes >= 0 && what && advice);
    if (bytes <= machine->memory) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_MEMORY, "%s needs %s on this machine, which has %s; %s", what,
                           train_bytes_text(bytes, a), train_bytes_text(machine->memory, b), advice);
}

void train_machine_warn(const train_machine *machine, int64_t bytes, int64_t mapped, const ravel_logger *logger) {
    char a[TRAIN_BYTES_TEXT], b[TRAIN_BYTES_TEXT], c[TRAIN_BYTES_TEXT];
    RAVEL_ASSERT(bytes >= 0 && mapped >= 0);
    if (bytes > machine->available)
        ravel__log(logger, RAVEL_LOG_WARN, "this takes %s of memory, and other processes leave %s of it now",
                   train_bytes_text(bytes, a), train_bytes_text(machine->available, b));
    else if (mapped > 0 && mapped > machine->memory - bytes)
        ravel__log(
            logger, RAVEL_LOG_WARN,
            "%s of memory and %s of mapped files are more than the %s of this machine: pages of the files will leave "
            "memory and be read again, which is slow",
            train_bytes_text(bytes, a), train_bytes_text(mapped, b), train_bytes_text(machine->memory, c));
}

/* ---- disk ------------------------------------------------------------------------------------------------ */

int64_t train_machine_disk(const char *folder) {
    char path[TRAIN_PATH];
    struct statvfs info;
    (void)snprintf(path, sizeof path, "%s", folder);
    while (statvfs(path, &info) != 0) { /* the nearest folder above it that exists */
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            if (statvfs(slash ? "/" : ".", &info) != 0) return INT64_MAX;
            break;
        }
        *slash = '\0';
    }
    if (info.f_blocks == 0) return INT64_MAX; /* no disk: /proc and the like */
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

const char *train_bytes_text(int64_t bytes, char *text) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    RAVEL_ASSERT(bytes >= 0 && unit < (int)(sizeof units / sizeof *units));
    (void)snprintf(text, TRAIN_BYTES_TEXT, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return text;
}
