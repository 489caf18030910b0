/* The user's own token is made once, under another name, and linked to its name: of two processes that make it at the
 * same time, both use the one that was linked first. Files and folders of other users, or that others can read, are
 * refused, and links are not followed, so that nobody can prepare a token for this user. */
#include "comm/link/token.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECRET_BYTES = 32 };

/* ---- a token that was given ------------------------------------------------------------------------------- */

static ravel_status read_file(const char *path, char *token, ravel_error *err) {
    FILE *f = fopen(path, "re");
    if (!f)
        return ravel_error_set(err, RAVEL_E_IO, "the token file \"%.200s\" cannot be read: %s", path, strerror(errno));
    size_t got = fread(token, 1, RAVEL__TOKEN_MOST, f);
    (void)fclose(f);
    if (got >= RAVEL__TOKEN_MOST)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the token in \"%.200s\" has more than %d bytes", path,
                               RAVEL__TOKEN_MOST - 1);
    token[got] = '\0';
    token[strcspn(token, "\r\n")] = '\0';
    if (!token[0]) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the token file \"%.200s\" is empty", path);
    return RAVEL_OK;
}

static int has_text(const char *text) {
    return text && text[0];
}

int ravel__token_is_none(const char *token) {
    return strcmp(token, "none") == 0;
}

ravel_status ravel__token_find(const char *word, const char *file, char token[RAVEL__TOKEN_MOST], ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int is_environment = !has_text(word) && !has_text(file);
    if (is_environment) word = getenv("RAVEL_TOKEN");
    if (is_environment && !has_text(word)) file = getenv("RAVEL_TOKEN_FILE");
    token[0] = '\0';
    if (has_text(word) && strlen(word) >= RAVEL__TOKEN_MOST)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "%s has more than %d bytes",
                                 is_environment ? "the environment's RAVEL_TOKEN" : "the token", RAVEL__TOKEN_MOST - 1);
    else if (has_text(word))
        (void)snprintf(token, RAVEL__TOKEN_MOST, "%s", word);
    else if (has_text(file))
        status = read_file(file, token, err);
    RAVEL_ASSERT(memchr(token, '\0', RAVEL__TOKEN_MOST));
    return status;
}

/* ---- the user's own --------------------------------------------------------------------------------------- */

/* Folder and file where it may be; 0: there is no such place. */
static int place_of(int which, char *folder) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int used = -1;
    if (which == 0 && has_text(cache) && cache[0] == '/')
        used = snprintf(folder, RAVEL__TOKEN_PATH, "%s/ravel", cache);
    else if (which == 0 && has_text(home) && home[0] == '/')
        used = snprintf(folder, RAVEL__TOKEN_PATH, "%s/.cache/ravel", home);
    else if (which == 1)
        used = snprintf(folder, RAVEL__TOKEN_PATH, "/tmp/ravel-%u", (unsigned)geteuid());
    return used > 0 && used < RAVEL__TOKEN_PATH - 32;
}

static int is_private(int fd, mode_t type) {
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == type && st.st_uid == geteuid() && (st.st_mode & 077) == 0;
}

/* Opens the folder, which it makes if its parent is there (for ~/.cache, that too). */
static int open_folder(const char *path) {
    char parent[RAVEL__TOKEN_PATH];
    (void)snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    (void)mkdir(parent, 0700);
    (void)mkdir(path, 0700);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && is_private(fd, S_IFDIR)) return fd;
    if (fd >= 0) (void)close(fd), errno = EPERM;
    return -1;
}

/* 1: read; 0: there is none; -1: there is one that is not to be trusted. */
static int read_secret(int folder, char *token) {
    int fd = openat(folder, "token", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    ssize_t got = is_private(fd, S_IFREG) ? read(fd, token, 2 * SECRET_BYTES + 1) : -1;
    (void)close(fd);
    token[2 * SECRET_BYTES] = '\0';
    if (got == 2 * SECRET_BYTES && strspn(token, "0123456789abcdef") == 2 * SECRET_BYTES) return 1;
    return errno = EPERM, -1;
}

static int make_secret(int folder) {
    uint8_t secret[SECRET_BYTES + 8];
    char text[2 * SECRET_BYTES + 1], name[64];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret) return 0;
    for (int i = 0; i < SECRET_BYTES; i++) (void)snprintf(text + 2 * i, 3, "%02x", secret[i]);
    (void)snprintf(name, sizeof name, ".token-%d-%02x%02x%02x%02x", (int)getpid(), secret[SECRET_BYTES],
                   secret[SECRET_BYTES + 1], secret[SECRET_BYTES + 2], secret[SECRET_BYTES + 3]);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return 0;
    int ok = write(fd, text, 2 * SECRET_BYTES) == 2 * SECRET_BYTES;
    ok = close(fd) == 0 && ok;
    if (ok && linkat(folder, name, folder, "token", 0) != 0) ok = errno == EEXIST;
    (void)unlinkat(folder, name, 0);
    return ok;
}

static int find_in(const char *path, char *token) {
    int folder = open_folder(path), found = -1;
    if (folder < 0) return 0;
    found = read_secret(folder, token);
    if (found == 0 && make_secret(folder)) found = read_secret(folder, token);
    int error = errno;
    (void)close(folder);
    errno = error;
    return found == 1;
}

ravel_status ravel__token_user(char token[RAVEL__TOKEN_MOST], ravel_error *err) {
    char path[RAVEL__TOKEN_PATH] = "";
    for (int i = 0; i < 2; i++)
        if (place_of(i, path) && find_in(path, token)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_IO,
        "there is no token, and none can be kept for this user (\"%.200s/token\" must be a file of mode "
        "0600 in a folder of mode 0700, both of this user: %s); give all sides the same RAVEL_TOKEN, or "
        "RAVEL_TOKEN=none to let every process of this machine connect",
        path, strerror(errno));
}
