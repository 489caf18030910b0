/* The inside of an open safetensors file, shared by the header's parser and by the opener of sets.
 *
 *     init -> add, once per shard -> index -> (reading) -> ravel_safetensors_free
 */
#ifndef RAVEL_IO_SAFETENSORS_H
#define RAVEL_IO_SAFETENSORS_H

#include <ravel/options.h>
#include <ravel/safetensors.h>

#include "base/system/file.h"
#include "base/memory.h"

struct ravel_safetensors {
    const ravel_allocator *allocator;
    ravel__arena arena; /* names, dims, metadata */
    ravel__map *maps;   /* [maps_count] mappings to unmap */
    size_t maps_count, maps_room;
    ravel_safetensor *tensors; /* [count], in the order of their bytes */
    size_t count, room;
    const ravel_safetensor **by_name; /* [count] */
    const char **metadata;            /* [2 * metadata_count] key, value, ... */
    int64_t metadata_count;
    int32_t shards;
};

/* NULL, and E_MEMORY in err, when memory is short. */
ravel_safetensors *ravel__safetensors_new(const ravel_allocator *allocator, ravel_error *err);
/* Maps a file and adds it. */
ravel_status ravel__safetensors_add_path(ravel_safetensors *file, const char *path, ravel_error *err);
/* Makes find work; E_DATA if two shards hold the same name. */
ravel_status ravel__safetensors_index(ravel_safetensors *file, ravel_error *err);

/* A file's bytes in memory, which must stay as they are until the file is freed: what parsing is fuzzed through. */
ravel_status ravel__safetensors_view(const void *bytes, size_t size, const ravel_allocator *allocator,
                                     ravel_safetensors **file, ravel_error *err);

#endif
