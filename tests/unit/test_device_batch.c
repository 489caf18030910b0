/* Packing, unpacking, cp shards and weights through a device: on the host driver, on the stub whose streams are lazy,
 * and with every call of the stub failing in turn. */
#include "device/handle.h"
#include "tests/unit/batch_device_body.h"
#include "tests/unit/check.h"
#include "tests/unit/stub_driver.h"

#include <ravel/batch.h>

static void with_host(void (*body)(ravel_device *, int64_t), int64_t rounds) {
    ravel_device *device = NULL;
    CHECK(ravel_device_open("host", &device, NULL) == RAVEL_OK);
    body(device, rounds);
    ravel_device_free(device);
}

static void with_stub(void (*body)(ravel_device *, int64_t), int64_t rounds) {
    ravel_device *device = NULL;
    stub_reset();
    CHECK(ravel__device_make(&stub_driver, 0, &device, NULL) == RAVEL_OK);
    body(device, rounds);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

TEST(device_batch_thd_as_on_the_host) {
    with_host(batch_device_body_thd, check_rounds(40, 2000));
    with_stub(batch_device_body_thd, check_rounds(40, 2000));
    CHECK(stub.calls[STUB_ROWS] > check_rounds(40, 40));
}

TEST(device_batch_padded_as_on_the_host) {
    with_host(batch_device_body_padded, check_rounds(30, 1000));
    with_stub(batch_device_body_padded, check_rounds(30, 1000));
}

TEST(device_batch_weights_as_on_the_host) {
    with_host(batch_device_body_weights, check_rounds(40, 1000));
    with_stub(batch_device_body_weights, check_rounds(40, 1000));
    CHECK(stub.calls[STUB_COUNT] > check_rounds(20, 20));
}

TEST(device_batch_trees_as_on_the_host) {
    with_host(batch_device_body_tree, check_rounds(40, 1000));
    with_stub(batch_device_body_tree, check_rounds(40, 1000));
    CHECK(stub.calls[STUB_ROWS] >= check_rounds(40, 40));
}

TEST(device_batch_refuses_with_a_sentence) {
    ravel_device *device = NULL;
    CHECK(ravel_device_open("host", &device, NULL) == RAVEL_OK);
    batch_device_body_refusals(device);
    ravel_device_free(device);
}

/* One launch for a micro-batch, whatever it has; and a launch that fails is said. */
TEST(device_batch_one_launch) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    int32_t tokens[7] = {1, 2, 3, 4, 5, 6, 7}, order[2] = {1, 0};
    const int64_t offsets[3] = {0, 3, 7};
    char packed[4096];
    void *table[2];
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    const ravel_place place = {RAVEL_DEVICE, 0, stream};
    const ravel_field fields[2] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = tokens, .place = place},
        {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = tokens, .pad = -100, .place = place}};
    const ravel_ragged ragged = {
        .size = sizeof ragged, .count = 2, .offsets = offsets, .fields = fields, .field_count = 2};
    const ravel_bin bin = {order, 2};
    ravel_thd thd = {.size = sizeof thd, .fields = table, .place = place};
    ravel_thd_options o;
    ravel_thd_options_default(&o);
    CHECK_OK(ravel_thd_measure(&ragged, &bin, &o, &thd, &err), &err);
    CHECK(ravel_thd_bytes(&ragged, &o, &thd) <= sizeof packed);
    ravel_thd_place(&ragged, &o, packed, &thd);
    CHECK_OK(ravel_thd_pack(&ragged, &bin, &o, &thd, &err), &err);
    CHECK_EQ(stub.calls[STUB_ROWS], 1);
    CHECK_EQ(stub.calls[STUB_COPY], 0);
    CHECK_OK(ravel_stream_wait(stream, 1, &err), &err);
    const int32_t want[7] = {5, 6, 7, -100, 2, 3, -100};
    CHECK(memcmp(table[1], want, sizeof want) == 0);
    stub_fail(STUB_ROWS, 0, STUB_FATAL);
    CHECK_EQ(ravel_thd_pack(&ragged, &bin, &o, &thd, &err), RAVEL_E_DEVICE);
    CHECK_HAS(err.message, "packing: stub code 9");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_thd_pack(&ragged, &bin, &o, &thd, &err), RAVEL_E_DEAD);
    ravel_stream_free(stream);
    ravel_device_free(device);
}
