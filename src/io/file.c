#include "io/file.h"

#include "base/memory.h"
#include "io/source.h"

/* Makes sure of room for a byte and the NUL. */
static ravel_status grow(const ravel_allocator *allocator, char **text, size_t *room, size_t used, const char *path,
                         ravel_error *err) {
    if (*room - used >= 2) return RAVEL_OK;
    char *grown = ravel__resize(allocator, *text, *room, *room * 2);
    if (!grown) return ravel__no_memory(err, *room * 2, path);
    *text = grown;
    *room *= 2;
    return RAVEL_OK;
}

static ravel_status read_all(ravel__source *source, size_t most, const ravel_allocator *allocator, char **text,
                             size_t *room, size_t *used, ravel_error *err) {
    for (size_t got = 1; got;) {
        ravel_status status = grow(allocator, text, room, *used, source->name, err);
        if (status) return status;
        status = ravel__source_read(source, *text + *used, *room - *used - 1, &got, err);
        if (status) return status;
        *used += got;
        if (*used > most)
            return ravel_error_set(err, RAVEL_E_DATA, "%s: more than %zu bytes; is it the right file?", source->name,
                                   most);
    }
    return RAVEL_OK;
}

ravel_status ravel__file_read(const char *path, size_t most, const ravel_allocator *allocator, char **data,
                              size_t *bytes, ravel_error *err) {
    ravel__source source;
    size_t room = 4096, used = 0;
    ravel_status status = ravel__source_open(&source, path, err);
    if (status) return status;
    char *text = ravel__alloc(allocator, room);
    status = text ? read_all(&source, most, allocator, &text, &room, &used, err) : ravel__no_memory(err, room, path);
    ravel__source_close(&source);
    char *exact = status ? NULL : ravel__resize(allocator, text, room, used + 1);
    if (!exact) {
        ravel__release(allocator, text, room);
        return status ? status : ravel__no_memory(err, used + 1, path);
    }
    exact[used] = '\0';
    *data = exact;
    *bytes = used;
    return RAVEL_OK;
}
