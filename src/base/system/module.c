#include "base/system/module.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef RAVEL_LIBDIR
#define RAVEL_LIBDIR "/usr/local/lib"
#endif

#ifdef RAVEL_ALONE
ravel_status ravel__module_load(const ravel__module *m, void **handle, ravel_error *err) {
    *handle = NULL;
    return ravel_error_set(
        err, RAVEL_E_UNSUPPORTED,
        "%s is a module, and this command is linked statically and loads none; install the ordinary one", m->what);
}

ravel__module_fn ravel__module_find(void *handle, const char *name) {
    RAVEL_ASSERT(handle && name);
    return NULL;
}
#else
enum { PATH_BYTES = 4096 };

/* What was tried so far, for the sentence. */
typedef struct search {
    int flags;
    void *handle;
    char seen[640];
    size_t used;
} search;

static void note(search *s, const char *path, const char *why) {
    RAVEL_ASSERT(path && why);
    if (s->used >= sizeof s->seen) return;
    int n = snprintf(s->seen + s->used, sizeof s->seen - s->used, "%s%s (%s)", s->used ? "; " : "", path, why);
    s->used += n > 0 ? (size_t)n : 0;
}

static int try_file(search *s, const char *path) {
    RAVEL_ASSERT(!s->handle);
    if (access(path, R_OK) != 0) return 0;
    s->handle = dlopen(path, s->flags);
    if (!s->handle) {
        const char *why = dlerror();
        note(s, path, why ? why : "it cannot be loaded");
    }
    return s->handle != NULL;
}

static int try_beside(search *s, const char *file, const char *folder, const char *name) {
    char path[PATH_BYTES];
    const char *slash = strrchr(file, '/');
    int length = slash ? (int)(slash - file) : 0;
    if (snprintf(path, sizeof path, "%.*s/%s%s", length, file, folder, name) >= (int)sizeof path) return 0;
    return try_file(s, path);
}

static int try_folders(search *s, const char *file, const char *const *folders, const char *name) {
    for (int i = 0; folders[i]; i++)
        if (try_beside(s, file, folders[i], name)) return 1;
    return 0;
}

/* lib/ravel is where Debian's packages have them. */
static int look_beside(search *s, const char *name) {
    static const char *const library[] = {"", "../", "../ravel/", NULL};
    static const char *const command[] = {"", "../lib/", "../lib/ravel/", "../", NULL};
    static const char here = 0;
    char program[PATH_BYTES];
    Dl_info info;
    if (dladdr(&here, &info) && info.dli_fname && try_folders(s, info.dli_fname, library, name)) return 1;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        RAVEL_ASSERT((size_t)length < sizeof program);
        program[length] = '\0';
        if (try_folders(s, program, command, name)) return 1;
    }
    return try_beside(s, RAVEL_LIBDIR "/", "", name);
}

/* RTLD_GLOBAL: Open MPI loads its parts with dlopen, and they expect to find libmpi's symbols. RTLD_NODELETE: neither
 * MPI nor CUDA can be unloaded and started again. */
ravel_status ravel__module_load(const ravel__module *m, void **handle, ravel_error *err) {
    search s = {.flags = RTLD_NOW | RTLD_NODELETE | (m->global ? RTLD_GLOBAL : RTLD_LOCAL)};
    const char *file = m->file && *m->file ? m->file : getenv(m->variable);
    if (file && *file) {
        if (!try_file(&s, file))
            return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the %s module \"%.300s\" cannot be loaded: %s", m->what,
                                   file, s.used ? s.seen : "there is no such file");
        *handle = s.handle;
        return RAVEL_OK;
    }
    for (int i = 0; i < 2 && m->names[i] && !s.handle; i++) (void)look_beside(&s, m->names[i]);
    if (!s.handle)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "no %s module (%s%s%s) was found beside libravel, beside the program or in %s; %s, or "
                               "set %s%s%s",
                               m->what, m->names[0], m->names[1] ? " or " : "", m->names[1] ? m->names[1] : "",
                               RAVEL_LIBDIR, m->advice, m->variable, s.used ? "; tried: " : "", s.seen);
    *handle = s.handle;
    return RAVEL_OK;
}

ravel__module_fn ravel__module_find(void *handle, const char *name) {
    ravel__module_fn function;
    void *symbol = dlsym(handle, name);
    memcpy(&function, &symbol, sizeof function); /* ISO C has no cast from an object to a function pointer */
    return function;
}
#endif
