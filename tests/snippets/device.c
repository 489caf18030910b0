#include <ravel/ravel.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int device_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    static char source[1000] = "abc", kept[1000];
    const size_t bytes = sizeof source;
    void *array = NULL;
#define ravel_device_open(name, d, e) ravel_device_open("host", d, e) /* a machine without a GPU runs it too */
#define ravel_device_release(d, a, s) (memcpy(kept, a, bytes), ravel_device_release(d, a, s))
    //@ include/ravel/device.h 1
    assert(!err.status && strcmp(kept, "abc") == 0);
    return 0;
}

static int slab_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel_slab *slab = NULL;
    static float weight[64];
    static _Alignas(256) char packed[1 << 16];
    static uint64_t hashes[64];
    const int64_t n = 64, count = 1;
    if (ravel_device_open("host", &device, &err) || ravel_stream_create(device, &stream, &err)) return 1;
    //@ include/ravel/slab.h 1
    if (err.status) fprintf(stderr, "%s\n", err.message);
    return err.status;
}

int main(void) {
    return device_header() || slab_header();
}
