/* The files of --data: their names and weights, their digest, and whether they have changed. */
#include "train/run/data/data.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/files.h"

#include <ravel/exchange.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ---------------------------------------------------------------------------------------------- */

/* The next word into text[bytes], with "\ " as a space; returns where it ends, NULL if there is none or it is too
 * long. */
static const char *next_word(const char *at, char *text, size_t bytes) {
    size_t used = 0;
    at += strspn(at, " \t\n");
    if (!*at) return NULL;
    for (; *at && !strchr(" \t\n", *at); at++) {
        if (*at == '\\' && at[1]) at++;
        if (used + 1 >= bytes) return NULL;
        text[used++] = *at;
    }
    text[used] = '\0';
    return at;
}

/* Cuts ":0.7" off a name; 0: it has no weight. A file whose name ends like one has none. */
static double take_weight(char *name) {
    char *colon = strrchr(name, ':'), *end;
    if (!colon || colon == name || train_path_exists(name)) return 0;
    double weight = strtod(colon + 1, &end);
    if (end == colon + 1 || *end || !(weight > 0) || !isfinite(weight)) return 0;
    *colon = '\0';
    return weight;
}

char *train_files_join(const char *const *words, int count, char between) {
    size_t bytes = 1;
    for (int i = 0; i < count; i++) bytes += 2 * strlen(words[i]) + 1;
    char *text = malloc(bytes), *at = text;
    for (int i = 0; text && i < count; i++) {
        if (i) *at++ = between;
        for (const char *c = words[i]; *c; c++) {
            if (between == ' ' && (*c == ' ' || *c == '\\')) *at++ = '\\';
            *at++ = *c;
        }
    }
    if (text) *at = '\0';
    return text;
}

ravel_status train_files_parse(const char *data, train_files *files, ravel_error *err) {
    int weights = 0;
    memset(files, 0, sizeof *files);
    if (!data) return RAVEL_OK;
    if (strlen(data) < TRAIN_PATH && (train_path_exists(data) || !data[strcspn(data, " :\\")])) {
        memcpy(files->paths[0], data, strlen(data) + 1);
        files->weights[0] = 1;
        files->count = 1;
        return RAVEL_OK;
    }
    for (const char *at = data, *end; at[strspn(at, " \t\n")]; at = end) {
        if (files->count == TRAIN_FILES)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "--data takes %d files at most", TRAIN_FILES);
        char *name = files->paths[files->count];
        end = next_word(at, name, TRAIN_PATH);
        if (!end) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a name in --data has more than %d bytes", TRAIN_PATH);
        double weight = take_weight(name);
        weights += weight > 0;
        files->weights[files->count++] = weight > 0 ? weight : 1;
    }
    if (files->count == 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "--data is empty; name a file");
    files->weighted = weights > 0 && files->count > 1;
    if (weights == 0 || weights == files->count) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "%d of %d files in --data have a weight; give each one, like a.jsonl:0.7 b.jsonl:0.3, or none", weights,
        files->count);
}

/* ---- content -------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const unsigned char *data, size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    for (; bytes > 0; data++, bytes--) h = (h ^ *data) * UINT64_C(0x100000001b3);
    return h;
}

static ravel_status digest(FILE *f, const char *path, const train_progress *progress, double total, uint64_t *hash,
                           ravel_error *err) {
    enum { CHUNK = 1 << 20 };
    char what[128];
    unsigned char *buffer = malloc(CHUNK);
    if (!buffer) return ravel__no_memory(err, CHUNK, "reading a file");
    (void)snprintf(what, sizeof what, "reading %.100s", path);
    int64_t done = 0;
    ravel_status status = RAVEL_OK;
    for (size_t got; !status && !feof(f) && !ferror(f) && (got = fread(buffer, 1, CHUNK, f)) > 0;
         done += (int64_t)got) {
        *hash = mix(*hash, buffer, got);
        status = train_progress_tell(progress, what, (double)done, total, err);
    }
    free(buffer);
    return !status && ferror(f) ? train_file_error(err, "read", path) : status;
}

static train_file_state state_of(const struct stat *s) {
    return (train_file_state){.bytes = (int64_t)s->st_size,
                              .inode = (int64_t)s->st_ino,
                              .modified_ns = (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec};
}

static ravel_status open_file(const char *path, const train_progress *progress, train_file_state *state, uint64_t *hash,
                              ravel_error *err) {
    struct stat s;
    FILE *f = fopen(path, "rb");
    if (!f) return train_file_error(err, "read", path);
    ravel_status status = RAVEL_OK;
    if (fstat(fileno(f), &s) != 0)
        status = train_file_error(err, "read", path);
    else if (!S_ISREG(s.st_mode))
        status = ravel_error_set(err, RAVEL_E_DATA, "%s is not a regular file; rows are read more than once", path);
    else
        *state = state_of(&s);
    if (!status) status = digest(f, path, progress, (double)state->bytes, hash, err);
    (void)fclose(f);
    return status;
}

static ravel_status open_files(const char *data, const train_progress *progress, train_data_file *file,
                               ravel_error *err) {
    train_files files;
    ravel_status status = train_files_parse(data, &files, err);
    file->digest = UINT64_C(0x726176656c);
    for (int32_t i = 0; i < files.count && !status; i++) {
        if (files.weighted)
            file->digest = mix(file->digest, (const unsigned char *)&files.weights[i], sizeof files.weights[i]);
        status = open_file(files.paths[i], progress, &file->files[i], &file->digest, err);
        file->bytes += file->files[i].bytes;
    }
    file->digest >>= 1; /* JSON readers take integers below 2^63 */
    return status;
}

ravel_status train_data_open(const char *data, ravel_comm *comm, const train_progress *progress, train_data_file *file,
                             ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *file = (train_data_file){0};
    if (!data) return RAVEL_OK;
    if (ravel_comm_rank(comm) == 0) status = open_files(data, progress, file, err);
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_comm_broadcast(comm, file, sizeof *file, RAVEL_U8, 0, err);
    file->path = data;
    return status;
}

int train_data_changed(const train_data_file *file) {
    train_files files;
    struct stat s;
    if (!file->path || train_files_parse(file->path, &files, NULL)) return file->path != NULL;
    for (int32_t i = 0; i < files.count; i++) {
        if (stat(files.paths[i], &s) != 0) return 1;
        train_file_state now = state_of(&s);
        if (memcmp(&now, &file->files[i], sizeof now) != 0) return 1;
    }
    return 0;
}
