#include "comm/machine.h"

#include "base/assert.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* State letter and start time of a process, from /proc; 0 if there is none. */
static int64_t started_at(int64_t pid, char *state) {
    char path[64], line[1024];
    long long start = 0;
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t got = fread(line, 1, sizeof line - 1, f);
    (void)fclose(f);
    line[got] = '\0';
    const char *end = strrchr(line, ')'); /* the name before it may hold anything */
    *state = '?';
    if (!end || sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
                       state, &start) != 2)
        return 0;
    return start;
}

uint64_t ravel__machine_number(void) {
    char text[256] = "";
    ravel__hash h = ravel__hash_begin(0x6d616368);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t used = f ? fread(text, 1, 100, f) : 0;
    if (f) (void)fclose(f);
    ssize_t length = readlink("/proc/self/ns/pid", text + used, sizeof text - used - 1);
    if (length < 0 || used == 0) return 0;
    RAVEL_ASSERT(used + (size_t)length < sizeof text);
    ravel__hash_bytes(&h, text, used + (size_t)length);
    return ravel__hash_end(h) | 1;
}

ravel__process ravel__process_self(void) {
    char state;
    ravel__process p = {ravel__machine_number(), (int64_t)getpid(), 0};
    p.started = started_at(p.pid, &state);
    return p;
}

int ravel__process_is_gone(const ravel__process *p) {
    char state = '?';
    return p->pid > 0 && (started_at(p->pid, &state) != p->started || state == 'Z' || state == 'X');
}
