/* Safetensors: files that are wrong in every way we could think of, and round trips. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "io/safetensors_writer.h"

#include "io/safetensors.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files in memory ------------------------------------------------------------------------------------ */

/* A header's length and text, and `data` zero bytes behind it; free it. */
static char *make(const char *header, size_t data, size_t *bytes) {
    uint64_t n = strlen(header);
    char *file = calloc(1, 8 + (size_t)n + data);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, (size_t)n);
    *bytes = 8 + (size_t)n + data;
    return file;
}

static ravel_status view(const char *header, size_t data, ravel_error *err) {
    size_t bytes;
    char *text = make(header, data, &bytes);
    ravel_safetensors *file = NULL;
    ravel_status status = ravel__safetensors_view(text, bytes, NULL, &file, err);
    ravel_safetensors_free(file);
    free(text);
    return status;
}

#define ONE(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(safetensors_says_what_is_wrong) {
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"", 0, "must be a JSON object that begins with '{'"},
        {" {}", 0, "begins with '{' at byte 8"},
        {"{\"a\":", 0, "the header: JSON, line 1, column 6: expected a value"},
        {"{\"a\":1}", 0, "tensor \"a\": its entry must be an object"},
        {"{" ONE("a", "F31", "[1]", "[0,4]") "}", 4, "dtype \"F31\" is not one that Ravel reads"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" must be a text"},
        {"{" ONE("a", "F32", "3", "[0,4]") "}", 4, "\"shape\" must be a list of whole numbers"},
        {"{" ONE("a", "F32", "[-1]", "[0,4]") "}", 4, "\"shape\" must be a list"},
        {"{" ONE("a", "F32", "[1.5]", "[0,4]") "}", 4, "\"shape\" must be a list"},
        {"{" ONE("a", "F32", "[1]", "[0,4,8]") "}", 4, "\"data_offsets\" must be two whole numbers"},
        {"{" ONE("a", "F32", "[1]", "[0,-4]") "}", 4, "\"data_offsets\" must be two whole numbers"},
        {"{" ONE("a", "F32", "[1]", "[0,99999999999999999999]") "}", 4, "\"data_offsets\" must be two"},
        {"{" ONE("a", "F32", "[1]", "[4,0]") "}", 4, "it ends before it begins"},
        {"{" ONE("a", "F32", "[2]", "[0,8]") "}", 4,
         "ends at byte 8 of the data, and the file has only 4: it is cut short"},
        {"{" ONE("a", "F32", "[2]", "[0,4]") "}", 4, "its shape needs 8 bytes, its offsets give 4"},
        {"{" ONE("a", "F32", "[1]", "[0,8]") "}", 8, "its shape needs 4 bytes, its offsets give 8"},
        {"{" ONE("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "the product of its shape overflows"},
        {"{" ONE("a", "F32", "[4611686018427387904]", "[0,4]") "}", 4, "its size in bytes overflows"},
        {"{" ONE("a", "F32", "[1]", "[0,4]") "," ONE("b", "F32", "[1]", "[8,12]") "}", 12,
         "there is a hole of 4 bytes before tensor \"b\""},
        {"{" ONE("a", "F32", "[1]", "[4,8]") "}", 8, "there is a hole of 4 bytes before tensor \"a\""},
        {"{" ONE("a", "F32", "[2]", "[0,8]") "," ONE("b", "F32", "[2]", "[4,12]") "}", 12,
         "tensor \"b\" overlaps tensor \"a\""},
        {"{" ONE("a", "F32", "[2]", "[0,8]") "," ONE("b", "F32", "[0]", "[4,4]") "}", 8, "tensor \"b\" overlaps"},
        {"{" ONE("a", "F32", "[1]", "[0,4]") "," ONE("a", "F32", "[1]", "[4,8]") "}", 8, "tensor \"a\" is there twice"},
        {"{" ONE("a", "F32", "[1]", "[0,4]") "}", 7, "3 bytes at the end of the file belong to no tensor"},
        {"{}", 1, "1 bytes at the end of the file belong to no tensor"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "the value of \"k\" must be a text"},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" must be an object of texts"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_EQ(view(cases[i].header, cases[i].data, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].says);
    }
}

TEST(safetensors_knows_what_else_a_file_may_be) {
    static const struct {
        const char *bytes;
        size_t count;
        const char *says;
    } cases[] = {
        {"", 0, "the file is empty"},
        {"abc", 3, "cut short: 3 bytes"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", 64, "this is a Git LFS pointer"},
        {"PK\x03\x04junkjunk", 12, "a zip archive"},
        {"{\"weight_map\":{}}", 17, "JSON text"},
        {"<!DOCTYPE html>", 15, "HTML"},
        {"GGUF\3\0\0\0\0\0\0\0", 12, "GGUF"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "header has 100000001 bytes, over the limit of 100000000"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "header has 18446744073709551615 bytes"},
        {"\x40\0\0\0\0\0\0\0{}", 10, "cut short: a header of 64 bytes, and 2 bytes follow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_safetensors *file = NULL;
        CHECK_EQ(ravel__safetensors_view(cases[i].bytes, cases[i].count, NULL, &file, &err), RAVEL_E_DATA);
        CHECK(!file);
        CHECK_HAS(err.message, cases[i].says);
    }
}

TEST(safetensors_takes_what_the_format_allows) {
    ravel_error err = RAVEL_ERROR_INIT;
    size_t bytes;
    char *text = make("{" ONE("half", "BF16", "[1,3]", "[1,7]") ", \"__metadata__\":{\"format\":\"pt\"},\n" ONE(
                          "flag", "BOOL", "[]", "[0,1]") "," ONE("none", "F32", "[4,0]", "[7,7]") "}   ",
                      7, &bytes);
    ravel_safetensors *file = NULL;
    CHECK_OK(ravel__safetensors_view(text, bytes, NULL, &file, &err), &err);
    CHECK_EQ(ravel_safetensors_count(file), 3);
    CHECK_STR(ravel_safetensors_at(file, 0)->name, "flag");
    CHECK_EQ(ravel_safetensors_at(file, 0)->rank, 0);
    CHECK_EQ(ravel_safetensors_at(file, 0)->count, 1);
    CHECK_STR(ravel_safetensors_at(file, 1)->name, "half");
    CHECK(!ravel_safetensors_at(file, 3) && !ravel_safetensors_at(file, -1));
    CHECK_STR(ravel_safetensors_metadata(file, "format"), "pt");
    CHECK(!ravel_safetensors_metadata(file, "fromat"));
    /* misaligned, and read all the same */
    const uint16_t codes[] = {0x3f80, 0x4000, 0xc000};
    memcpy(text + bytes - 6, codes, 6);
    const ravel_safetensor *half = ravel_safetensors_find(file, "half");
    CHECK_EQ(half->aligned, (uintptr_t)half->data % 2 == 0);
    float values[3];
    CHECK_OK(ravel_safetensor_read(half, 0, 3, RAVEL_F32, values, &err), &err);
    CHECK(values[0] == 1 && values[1] == 2 && values[2] == -2);
    CHECK_EQ(ravel_safetensor_read(half, 1, 3, RAVEL_F32, values, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "has 3 elements; 3 from 1 are not there");
    ravel_error_clear(&err);
    const int64_t right[] = {1, 3}, wrong[] = {3, 1};
    CHECK_OK(ravel_safetensors_get(file, "half", 2, right, &half, &err), &err);
    CHECK_EQ(ravel_safetensors_get(file, "half", 2, wrong, &half, &err), RAVEL_E_DATA);
    CHECK_STR(err.message, "tensor \"half\" has shape [1, 3]; it must be [3, 1]");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_safetensors_get(file, "halv", -1, NULL, &half, &err), RAVEL_E_DATA);
    CHECK_STR(err.message, "there is no tensor \"halv\" among the 3 in the file; the nearest is \"half\"");
    ravel_safetensors_free(file);
    free(text);
}

static ravel_status view_body(const ravel_allocator *allocator, void *user) {
    size_t bytes;
    char *text =
        make("{" ONE("a", "F32", "[1]", "[0,4]") "," ONE("b", "F32", "[1]", "[4,8]") ",\"__metadata__\":{\"k\":\"v\"}}",
             8, &bytes);
    (void)user;
    ravel_safetensors *file = NULL;
    ravel_status status = ravel__safetensors_view(text, bytes, allocator, &file, NULL);
    ravel_safetensors_free(file);
    free(text);
    return status;
}

TEST(safetensors_view_survives_every_failed_allocation) {
    CHECK(check_every_allocation(view_body, NULL) > 3);
}

/* ---- files on disk -------------------------------------------------------------------------------------- */

static char folder[64];

static const char *scratch(const char *name) {
    static char path[256];
    if (!folder[0]) {
        strcpy(folder, "/tmp/ravel-st-XXXXXX");
        if (!mkdtemp(folder)) return NULL;
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Removes the folder and returns how many files were in it. */
static int clean(void) {
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') count++, unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(folder);
    folder[0] = '\0';
    return count;
}

static void put_file(const char *name, const char *content) {
    FILE *f = fopen(scratch(name), "w");
    if (f) fputs(content, f), fclose(f);
}

TEST(safetensors_round_trip_of_random_tensors) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(40, 2000); round++) {
        enum { MOST = 40 };
        ravel_safetensor tensors[MOST];
        char names[MOST][40];
        int64_t dims[MOST][4];
        int64_t count = (int64_t)ravel__rng_below(&r, MOST);
        for (int64_t i = 0; i < count; i++) {
            ravel_safetensor *t = &tensors[i];
            snprintf(names[i], sizeof names[i], "t\"\\\xc3\xa9.%lld\n", (long long)ravel__mix64((uint64_t)i));
            t->name = names[i];
            t->dtype = (int32_t)ravel__rng_below(&r, RAVEL_DTYPE_COUNT);
            t->rank = (int32_t)ravel__rng_below(&r, 5);
            t->dims = dims[i];
            t->count = 1;
            for (int32_t d = 0; d < t->rank; d++) t->count *= dims[i][d] = (int64_t)ravel__rng_below(&r, 6);
            t->bytes = t->count * ravel_dtype_bytes(t->dtype);
            unsigned char *data = malloc((size_t)t->bytes + 1);
            for (int64_t b = 0; b < t->bytes; b++) data[b] = (unsigned char)ravel__rng_next(&r);
            t->data = data;
        }
        const char *metadata[] = {"format", "pt", "note", "a \"quoted\" text\n"};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_safetensors_options options;
        ravel_safetensors_options_default(&options);
        options.durability = (int32_t)(round % 3);
        CHECK_OK(ravel_safetensors_write(scratch("x.safetensors"), tensors, count, metadata, 2, &options, &err), &err);
        ravel_safetensors *file = NULL;
        CHECK_OK(ravel_safetensors_open(scratch("x.safetensors"), NULL, &file, &err), &err);
        CHECK_EQ(ravel_safetensors_count(file), count);
        CHECK_STR(ravel_safetensors_metadata(file, "note"), metadata[3]);
        for (int64_t i = 0; i < count; i++) {
            const ravel_safetensor *t = NULL;
            CHECK_OK(ravel_safetensors_get(file, names[i], tensors[i].rank, dims[i], &t, &err), &err);
            CHECK(t->aligned && t->dtype == tensors[i].dtype && t->bytes == tensors[i].bytes);
            CHECK(memcmp(t->data, tensors[i].data, (size_t)t->bytes) == 0);
        }
        ravel_safetensors_free(file);
        for (int64_t i = 0; i < count; i++) free((void *)(uintptr_t)tensors[i].data);
    }
    CHECK_EQ(clean(), 1);
}

TEST(safetensors_writer_streams_and_leaves_nothing_behind) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__safetensors_writer *w = NULL;
    put_file("y.safetensors", "old");
    CHECK_OK(ravel__safetensors_writer_create(scratch("y.safetensors"), NULL, &w, &err), &err);
    const int64_t dims[] = {2, 3}, negative[] = {-1};
    int64_t first = -1, second = -1;
    CHECK_OK(ravel__safetensors_writer_declare(w, "bytes", RAVEL_U8, 2, dims, &first, &err), &err);
    CHECK_OK(ravel__safetensors_writer_declare(w, "words", RAVEL_F64, 2, dims, &second, &err), &err);
    CHECK_EQ(ravel__safetensors_writer_declare(w, "x", RAVEL_F64, 1, negative, NULL, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "tensor \"x\": dim 0 is -1");
    ravel_error_clear(&err);
    CHECK_EQ(ravel__safetensors_writer_declare(w, "__metadata__", RAVEL_F64, 1, dims, NULL, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__safetensors_writer_declare(w, "\xff", RAVEL_F64, 1, dims, NULL, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "must be UTF-8");
    ravel_error_clear(&err);
    const double words[] = {1, 2, 3, 4, 5, 6};
    CHECK_OK(ravel__safetensors_writer_write(w, second, words, 20, &err), &err); /* in the middle of an element */
    CHECK_OK(ravel__safetensors_writer_write(w, first, "abcdef", 6, &err), &err);
    CHECK_EQ(ravel__safetensors_writer_write(w, first, "g", 1, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "has 6 bytes, 6 of them are written, and 1 more came");
    ravel_error_clear(&err);
    CHECK_EQ(ravel__safetensors_writer_finish(w, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "tensor \"words\" has 48 bytes, and only 20 came");
    ravel_error_clear(&err);
    CHECK_EQ(ravel__safetensors_writer_declare(w, "late", RAVEL_U8, 2, dims, NULL, &err), RAVEL_E_STATE);
    ravel_error_clear(&err);
    CHECK_OK(ravel__safetensors_writer_write(w, second, (const char *)words + 20, 28, &err), &err);
    char old[4] = "";
    FILE *f = fopen(scratch("y.safetensors"), "r");
    CHECK(f && fread(old, 1, 3, f) == 3 && strcmp(old, "old") == 0); /* still there */
    fclose(f);
    CHECK_OK(ravel__safetensors_writer_finish(w, &err), &err);
    CHECK_EQ(ravel__safetensors_writer_finish(w, &err), RAVEL_E_STATE);
    ravel_error_clear(&err);
    ravel__safetensors_writer_free(w);
    ravel_safetensors *file = NULL;
    CHECK_OK(ravel_safetensors_open(scratch("y.safetensors"), NULL, &file, &err), &err);
    CHECK_STR(ravel_safetensors_at(file, 0)->name, "words");
    CHECK(memcmp(ravel_safetensors_find(file, "words")->data, words, sizeof words) == 0);
    CHECK(memcmp(ravel_safetensors_find(file, "bytes")->data, "abcdef", 6) == 0);
    ravel_safetensors_free(file);
    /* given up half way: the old file stays, the temporary one goes */
    w = NULL;
    CHECK_OK(ravel__safetensors_writer_create(scratch("y.safetensors"), NULL, &w, &err), &err);
    CHECK_OK(ravel__safetensors_writer_declare(w, "a", RAVEL_U8, 2, dims, NULL, &err), &err);
    CHECK_OK(ravel__safetensors_writer_declare(w, "a", RAVEL_U8, 2, dims, NULL, &err), &err);
    CHECK_EQ(ravel__safetensors_writer_write(w, 0, "abc", 3, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "tensor \"a\" is declared twice");
    ravel__safetensors_writer_free(w);
    ravel_error_clear(&err);
    CHECK_OK(ravel_safetensors_open(scratch("y.safetensors"), NULL, &file, &err), &err);
    ravel_safetensors_free(file);
    CHECK_EQ(clean(), 1);
}

static ravel_status write_body(const ravel_allocator *allocator, void *user) {
    (void)user;
    const int64_t dims[] = {2};
    const char *metadata[] = {"k", "v"};
    const ravel_safetensor tensors[] = {{.name = "a", .dtype = RAVEL_U8, .rank = 1, .dims = dims, .data = "xy"},
                                        {.name = "b", .dtype = RAVEL_F16, .rank = 1, .dims = dims, .data = "xyzt"}};
    ravel_safetensors_options options;
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_ATOMIC;
    options.allocator = allocator;
    ravel_status status = ravel_safetensors_write(scratch("z.safetensors"), tensors, 2, metadata, 1, &options, NULL);
    ravel_safetensors *file = NULL;
    if (status == RAVEL_OK) status = ravel_safetensors_open(folder, allocator, &file, NULL);
    ravel_safetensors_free(file);
    return status;
}

TEST(safetensors_files_survive_every_failed_allocation) {
    CHECK(check_every_allocation(write_body, NULL) > 5);
    CHECK_EQ(clean(), 1);
}

TEST(safetensors_opens_shards_as_one) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t dims[] = {2};
    const ravel_safetensor a = {.name = "a", .dtype = RAVEL_U8, .rank = 1, .dims = dims, .data = "xy"};
    const ravel_safetensor b = {.name = "b", .dtype = RAVEL_F16, .rank = 1, .dims = dims, .data = "xyzt"};
    CHECK_OK(ravel_safetensors_write(scratch("m-2.safetensors"), &a, 1, NULL, 0, NULL, &err), &err);
    CHECK_OK(ravel_safetensors_write(scratch("m-1.safetensors"), &b, 1, NULL, 0, NULL, &err), &err);
    ravel_safetensors *file = NULL;
    CHECK_OK(ravel_safetensors_open(folder, NULL, &file, &err), &err);
    CHECK_EQ(ravel_safetensors_count(file), 2);
    CHECK_EQ(ravel_safetensors_find(file, "a")->shard, 1);
    CHECK_EQ(ravel_safetensors_find(file, "b")->shard, 0);
    ravel_safetensors_free(file);
    put_file("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-2.safetensors\"}}");
    CHECK_OK(ravel_safetensors_open(folder, NULL, &file, &err), &err);
    CHECK_EQ(ravel_safetensors_count(file), 1);
    ravel_safetensors_free(file);
    file = NULL;
    static const struct {
        const char *index, *says;
        ravel_status status;
    } cases[] = {
        {"{\"weight_map\":{\"b\":\"m-2.safetensors\"}}", "tensor \"b\" should be in \"m-2.safetensors\"", RAVEL_E_DATA},
        {"{\"weight_map\":{\"b\":\"../m-2.safetensors\"}}", "is not a file beside the index", RAVEL_E_DATA},
        {"{\"weight_map\":{\"b\":\"m-3.safetensors\"}}", "m-3.safetensors: cannot open it", RAVEL_E_IO},
        {"{\"weight_map\":[]}", "must have a \"weight_map\"", RAVEL_E_DATA},
        {"", "index.json: JSON, line 1", RAVEL_E_DATA}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error_clear(&err);
        put_file("model.safetensors.index.json", cases[i].index);
        CHECK_EQ(ravel_safetensors_open(folder, NULL, &file, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!file);
    }
    unlink(scratch("model.safetensors.index.json"));
    ravel_error_clear(&err);
    CHECK_OK(ravel_safetensors_write(scratch("m-3.safetensors"), &a, 1, NULL, 0, NULL, &err), &err);
    CHECK_EQ(ravel_safetensors_open(folder, NULL, &file, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "tensor \"a\" is there twice, in two shards");
    clean();
    ravel_error_clear(&err);
    CHECK_EQ(ravel_safetensors_open("/tmp/no/such/file", NULL, &file, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "/tmp/no/such/file: cannot open it: No such file");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_safetensors_open("/dev/null", NULL, &file, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "is not a regular file");
}
