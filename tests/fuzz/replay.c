/* A plain main for fuzz targets: runs each file (or each file of each folder) once. What a fuzzer found stays found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t room = 1 << 20, used = 0, got;
    uint8_t *data = malloc(room);
    while (data && (got = fread(data + used, 1, room - used, f)) > 0) {
        used += got;
        if (used == room) data = realloc(data, room *= 2);
    }
    fclose(f);
    if (!data) return 0;
    uint8_t *exact = malloc(used ? used : 1); /* exactly as long as the input: ASan sees a read past it */
    if (exact) {
        memcpy(exact, data, used);
        LLVMFuzzerTestOneInput(exact, used);
    }
    free(exact);
    free(data);
    return 1;
}

int main(int argc, char **argv) {
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            count += replay(argv[i]);
            continue;
        }
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (e->d_name[0] != '.') count += replay(path);
        }
        closedir(dir);
    }
    printf("%d inputs\n", count);
    return count == 0;
}
