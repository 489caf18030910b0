#include "feed/source/line_index.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- scanning ------------------------------------------------------------------------------------------- */

static ravel_status push(ravel__line_index *x, int64_t begin, const ravel_allocator *allocator, ravel_error *err) {
    if (x->rows == x->own_room) {
        int64_t room = x->own_room ? 2 * x->own_room : 1024;
        size_t before = (size_t)x->own_room * sizeof *x->own, bytes = (size_t)room * sizeof *x->own;
        int64_t *grown = ravel__resize(allocator, x->own, before, bytes);
        if (!grown) return ravel__no_memory(err, bytes, "the index of a JSON-lines file");
        x->own = grown;
        x->own_room = room;
    }
    RAVEL_ASSERT(x->rows == 0 || begin > x->own[x->rows - 1]);
    x->own[x->rows++] = begin;
    return RAVEL_OK;
}

/* The line that a scan is in. */
typedef struct line {
    size_t begin;
    int blank; /* so far */
} line;

static ravel_status scan_chunk(ravel__line_index *x, line *l, const char *chunk, size_t bytes, size_t offset,
                               const ravel_allocator *allocator, ravel_error *err) {
    const char *end = chunk + bytes;
    ravel_status status = RAVEL_OK;
    for (const char *at = chunk; at < end && !status;) {
        while (l->blank && at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
        if (at < end && *at != '\n') l->blank = 0;
        const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!newline) break;
        if (!l->blank) status = push(x, (int64_t)l->begin, allocator, err);
        at = newline + 1;
        *l = (line){offset + (size_t)(at - chunk), 1};
    }
    return status;
}

/* Where a scan of an array is. */
typedef struct nest {
    int64_t depth; /* of brackets; 1: between rows */
    int wanted;    /* a row begins at the next byte that is not blank */
    int string, escaped;
} nest;

static int is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Brackets are only counted: what stands between two commas is parsed when the row is read. */
static ravel_status scan_array(ravel__line_index *x, nest *n, const char *chunk, size_t bytes, size_t offset,
                               const ravel_allocator *allocator, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (size_t i = 0; i < bytes && !status; i++) {
        char c = chunk[i];
        if (n->string) {
            n->string = n->escaped || c != '"';
            n->escaped = !n->escaped && c == '\\';
            continue;
        }
        if (is_blank(c)) continue;
        int closes = c == ']' || c == '}', opens = c == '[' || c == '{';
        if (n->depth == 0 && offset + i > x->first)
            return ravel_error_set(err, RAVEL_E_DATA, "there is text after the end of the array of rows, at byte %zu",
                                   offset + i);
        if (n->wanted && !(closes && n->depth == 1)) status = push(x, (int64_t)(offset + i), allocator, err);
        n->wanted = (n->depth == 0 && opens) || (n->depth == 1 && c == ',');
        n->string = c == '"';
        n->depth += opens - closes;
    }
    return status;
}

/* Where the rows begin: after a byte-order mark; whether they are the elements of an array. */
static ravel_status look(ravel__line_index *x, const ravel__reading *data, ravel_error *err) {
    char text[4096];
    size_t bytes = data->bytes < sizeof text ? data->bytes : sizeof text, at = 0;
    ravel_status status = ravel__reading_get(data, 0, text, bytes, err);
    if (status) return status;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) at = 3;
    x->first = at;
    while (at < bytes && is_blank(text[at])) at++;
    x->array = at < bytes && text[at] == '[';
    if (x->array) x->first = at;
    return RAVEL_OK;
}

/* One pass. */
static ravel_status scan(ravel__line_index *x, const ravel__reading *data, const ravel_allocator *allocator,
                         ravel_error *err) {
    enum { CHUNK = 1 << 20 };
    line l = {x->first, 1};
    nest n = {0};
    char *chunk = ravel__alloc(allocator, CHUNK);
    ravel_status status = chunk ? RAVEL_OK : ravel__no_memory(err, CHUNK, "reading a JSON-lines file");
    x->made = 1;
    for (size_t at = x->first; at < data->bytes && !status; at += CHUNK) {
        size_t bytes = data->bytes - at < CHUNK ? data->bytes - at : CHUNK;
        status = ravel__reading_get(data, at, chunk, bytes, err);
        if (!status)
            status = x->array ? scan_array(x, &n, chunk, bytes, at, allocator, err)
                              : scan_chunk(x, &l, chunk, bytes, at, allocator, err);
    }
    if (!status && !x->array && !l.blank) status = push(x, (int64_t)l.begin, allocator, err);
    if (!status && (n.depth != 0 || n.string))
        status = ravel_error_set(err, RAVEL_E_DATA, "the array of rows does not end: a bracket or a quote is missing");
    if (status && x->array) ravel_error_prefix(err, "%s", data->path);
    if (!status) status = ravel__reading_check(data, err);
    ravel__release(allocator, chunk, CHUNK);
    return status;
}

/* ---- the file beside it --------------------------------------------------------------------------------- */

enum { MAGIC, VERSION, SIZE, SECONDS, NANOSECONDS, ROWS };
_Static_assert(ROWS + 1 == RAVEL__INDEX_HEAD, "words before the rows");

static int64_t magic(void) {
    int64_t word;
    memcpy(&word, "RAVELROW", sizeof word);
    return word;
}

static int64_t checksum(const int64_t *words, size_t count) {
    ravel__hash h = ravel__hash_begin(0x526f7773);
    ravel__hash_i64s(&h, words, count);
    return (int64_t)ravel__hash_end(h);
}

int ravel__line_index_valid(const int64_t *words, size_t count, int64_t size, int64_t seconds, int64_t nanoseconds,
                            int64_t *rows) {
    if (count < RAVEL__INDEX_HEAD + 2 || words[MAGIC] != magic() || words[VERSION] != 2 || words[SIZE] != size ||
        words[SECONDS] != seconds || words[NANOSECONDS] != nanoseconds ||
        words[ROWS] != (int64_t)(count - RAVEL__INDEX_HEAD - 1) || checksum(words, count - 1) != words[count - 1])
        return 0;
    const int64_t *begins = words + RAVEL__INDEX_HEAD;
    for (int64_t i = 0; i < words[ROWS]; i++)
        if (begins[i] < 0 || begins[i] >= size || (i && begins[i] <= begins[i - 1])) return 0;
    *rows = words[ROWS];
    return 1;
}

/* Its words are checked once; a row's are read when they are needed. */
static int load(ravel__line_index *x, const char *name, const struct stat *info, const ravel_allocator *allocator) {
    ravel__reading file;
    if (ravel__reading_open(name, &file, NULL)) return 0;
    int64_t *words = file.bytes % sizeof *words == 0 ? ravel__alloc(allocator, file.bytes + 1) : NULL;
    int good = words && !ravel__reading_get(&file, 0, words, file.bytes, NULL) &&
               ravel__line_index_valid(words, file.bytes / sizeof *words, (int64_t)info->st_size,
                                       (int64_t)info->st_mtim.tv_sec, (int64_t)info->st_mtim.tv_nsec, &x->rows);
    if (words) ravel__release(allocator, words, file.bytes + 1);
    file.path = "the index of a JSON-lines file"; /* `name` ends here */
    if (good)
        x->file = file;
    else
        ravel__reading_close(&file);
    return good;
}

/* The file is optional: if it cannot be written, the next process scans again. */
static void save(const ravel__line_index *x, const char *name, const struct stat *info,
                 const ravel_allocator *allocator) {
    RAVEL_ASSERT(x->rows > 0 && x->own[x->rows - 1] < (int64_t)info->st_size);
    size_t count = RAVEL__INDEX_HEAD + (size_t)x->rows + 1, bytes = count * sizeof(int64_t);
    int64_t *words = ravel__alloc(allocator, bytes);
    if (!words) return;
    words[MAGIC] = magic();
    words[VERSION] = 2;
    words[SIZE] = (int64_t)info->st_size;
    words[SECONDS] = (int64_t)info->st_mtim.tv_sec;
    words[NANOSECONDS] = (int64_t)info->st_mtim.tv_nsec;
    words[ROWS] = x->rows;
    memcpy(words + RAVEL__INDEX_HEAD, x->own, (size_t)x->rows * sizeof *words);
    words[count - 1] = checksum(words, count - 1);
    ravel__writing w = {.fd = -1};
    ravel_status status = ravel__writing_open(&w, name, 1, allocator, NULL);
    if (!status) status = ravel__writing_put(&w, 0, words, bytes, NULL);
    if (!status) (void)ravel__writing_commit(&w, 0, NULL);
    ravel__writing_discard(&w);
    ravel__release(allocator, words, bytes);
}

/* A lock on the data, for as long as one process scans; waits at most a minute, since the index only saves time, and
 * not at all where the file system has no such lock (NFS wants the file open for writing). */
static int lock(const char *path) {
    const struct timespec pause = {0, 20000000};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < 3000 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++)
        (void)nanosleep(&pause, NULL);
    return fd;
}

static ravel_status find(ravel__line_index *x, const ravel__reading *data, const ravel_allocator *allocator,
                         ravel_error *err) {
    char name[4200];
    struct stat info;
    int named = snprintf(name, sizeof name, "%s.rows", data->path) < (int)sizeof name;
    if (!named || fstat(data->fd, &info) != 0 || (size_t)info.st_size != data->bytes)
        return scan(x, data, allocator, err);
    if (load(x, name, &info, allocator)) return RAVEL_OK;
    int fd = lock(data->path);
    if (load(x, name, &info, allocator)) { /* another process has made it meanwhile */
        if (fd >= 0) (void)close(fd);
        return RAVEL_OK;
    }
    ravel_status status = scan(x, data, allocator, err);
    if (!status && x->rows) save(x, name, &info, allocator);
    if (fd >= 0) (void)close(fd);
    return status;
}

ravel_status ravel__line_index_open(ravel__line_index *index, const ravel__reading *data, int32_t keep,
                                    const ravel_allocator *allocator, ravel_error *err) {
    memset(index, 0, sizeof *index);
    index->file.fd = -1;
    index->bytes = data->bytes;
    int kept = keep == RAVEL_INDEX_ALWAYS || (keep == RAVEL_INDEX_AUTO && data->bytes >= RAVEL__INDEX_FROM);
    ravel_status status = look(index, data, err);
    if (!status) status = kept ? find(index, data, allocator, err) : scan(index, data, allocator, err);
    if (!status && index->rows == 0)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s: the file has no rows", data->path);
    return status;
}

ravel_status ravel__line_index_find(const ravel__line_index *index, int64_t row, size_t *begin, size_t *end,
                                    ravel_error *err) {
    int64_t words[2] = {0, (int64_t)index->bytes};
    size_t count = row + 1 < index->rows ? 2 : 1, at = RAVEL__INDEX_HEAD + (size_t)row;
    RAVEL_ASSERT(row >= 0 && row < index->rows);
    if (index->file.fd < 0) {
        memcpy(words, index->own + row, count * sizeof *words);
    } else {
        ravel_status status = ravel__reading_get(&index->file, at * sizeof *words, words, count * sizeof *words, err);
        if (status) return status;
    }
    if (words[0] < 0 || words[0] >= words[1] || (size_t)words[1] > index->bytes)
        return ravel_error_set(err, RAVEL_E_IO, "the index of a JSON-lines file was damaged while it was being read");
    *begin = (size_t)words[0];
    *end = (size_t)words[1];
    return RAVEL_OK;
}

size_t ravel__line_index_text(const ravel__line_index *index, int64_t row, const char *text, size_t bytes) {
    const char *newline = index->array ? NULL : memchr(text, '\n', bytes);
    if (newline) return (size_t)(newline - text); /* blank lines may follow it */
    if (!index->array) return bytes;
    char after = row + 1 < index->rows ? ',' : ']';
    while (bytes > 0 && is_blank(text[bytes - 1])) bytes--;
    if (bytes > 0 && text[bytes - 1] == after) bytes--;
    while (bytes > 0 && is_blank(text[bytes - 1])) bytes--;
    if (after == ']' && bytes > 0 && text[bytes - 1] == ',') bytes--; /* [a, b,] */
    return bytes;
}

void ravel__line_index_close(ravel__line_index *index, const ravel_allocator *allocator) {
    ravel__reading_close(&index->file);
    ravel__release(allocator, index->own, (size_t)index->own_room * sizeof *index->own);
    index->own = NULL;
    index->rows = index->own_room = 0;
}
