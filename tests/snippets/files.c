#include <ravel/ravel.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

static int lengths_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    write_file("lengths.csv", "prompt_len,response_len\n3,4\n5,6\n");
    //@ include/ravel/lengths.h 1
    assert(input.count == 2);
    return 0;
}

static int mock_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    const char *text = "{\"type\":\"lognormal\",\"max_seq_len\":8192}";
    enum { n = 10 };
    int64_t lengths[n];
    //@ include/ravel/mock.h 1
    for (int i = 0; i < n; i++) assert(lengths[i] >= 1 && lengths[i] <= 8192);
    return 0;
}

static int writer(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    const char *name = "model.embed_tokens.weight";
    const int64_t dims[] = {3, 4};
    const float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const ravel_safetensor tensor = {.name = name, .dtype = RAVEL_F32, .rank = 2, .dims = dims, .data = data};
    (void)ravel_safetensors_write("model.safetensors", &tensor, 1, NULL, 0, NULL, &err);
    assert(!err.status);
    return 0;
}

static int reader(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    enum { vocab = 3, hidden = 4 };
    float weights[vocab * hidden];
    //@ include/ravel/safetensors.h 1
    assert(!err.status && weights[11] == 11);
    return 0;
}

static int dtype_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    enum { count = 3 };
    float weights[count] = {1, 2, 3};
    uint16_t half[count];
    //@ include/ravel/dtype.h 1
    assert(bytes == 6 && half[0] == 0x3f80);
    return 0;
}

static int flops_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    ravel_flops flops;
    const int64_t lengths[] = {10, 20};
    const int64_t count = 2;
    if (ravel_shape_named("qwen3-8b", &shape, &err)) return 1;
    //@ include/ravel/flops.h 1
    assert(!err.status);
    return 0;
}

int main(void) {
    return lengths_header() || mock_header() || writer() || reader() || dtype_header() || flops_header();
}
