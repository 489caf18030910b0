/* The cache folder. See kept.h. */
#include "train/kernels/cuda/kept.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int place_of(const char *folder, char *path, size_t size) {
    const char *own = folder ? folder : getenv("RAVEL_CACHE_DIR");
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (own)
        n = snprintf(path, size, "%s", own);
    else if (xdg && *xdg)
        n = snprintf(path, size, "%s/ravel", xdg);
    else if (home && *home)
        n = snprintf(path, size, "%s/.cache/ravel", home);
    return n > 0 && (size_t)n < size;
}

/* The folder and those above it. A module has only libravel's public functions. */
static int make_folders(char *path) {
    for (char *end = path + 1;; end++) {
        const char found = *end;
        if (found && found != '/') continue;
        *end = 0;
        const int made = mkdir(path, 0755) == 0 || errno == EEXIST;
        *end = found;
        if (!made || !found) return made;
    }
}

void kept_path(const char *folder, int gpu, const char *name, const char *extension, char *path, size_t size) {
    char place[400], model[256];
    struct cudaDeviceProp properties;
    *path = 0;
    if (!place_of(folder, place, sizeof place) || cudaGetDeviceProperties(&properties, gpu)) return;
    snprintf(model, sizeof model, "%s", properties.name);
    for (char *c = model; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9'))) *c = '-';
    if (!make_folders(place)) return;
    int n = snprintf(path, size, "%s/%s-%s.%s", place, name, model, extension);
    if (n < 0 || (size_t)n >= size) *path = 0;
}

void kept_append(const char *path, const char *line, size_t bytes) {
    int file = *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file < 0) return;
    if (write(file, line, bytes) != (ssize_t)bytes) { /* a line cut short is not read back */
    }
    close(file);
}

char *kept_read(const char *path, size_t *bytes) {
    FILE *f = *path ? fopen(path, "rb") : NULL;
    char *content = NULL;
    struct stat about;
    if (!f) return NULL;
    if (fstat(fileno(f), &about) == 0 && about.st_size > 0 && about.st_size < 64 << 20)
        content = malloc((size_t)about.st_size + 1);
    if (content) {
        *bytes = fread(content, 1, (size_t)about.st_size, f);
        content[*bytes] = 0;
    }
    fclose(f);
    return content;
}

void kept_write(const char *path, const void *content, size_t bytes) {
    char part[600];
    if (!*path || (size_t)snprintf(part, sizeof part, "%s.%d", path, (int)getpid()) >= sizeof part) return;
    FILE *f = fopen(part, "wb");
    if (!f) return;
    int whole = fwrite(content, 1, bytes, f) == bytes;
    whole = fclose(f) == 0 && whole;
    if (!whole || rename(part, path)) unlink(part);
}
