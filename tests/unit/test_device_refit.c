/* Refit of device memory, and a feed that uploads, on the host's device and on the stub, whose streams do nothing before
 * somebody looks. */
#include "device/handle.h"
#include "tests/unit/check.h"
#include "tests/unit/feed_device_body.h"
#include "tests/unit/refit_device_body.h"
#include "tests/unit/stub_driver.h"

TEST(device_refit_on_the_host) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    refit_device_body_pull(device, check_scale(12, 200));
    refit_device_body_collective(device, check_scale(12, 200));
    refit_device_body_restart(device);
    refit_device_body_refusals(device);
    ravel_device_free(device);
}

TEST(device_refit_on_the_stub) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    refit_device_body_pull(device, check_scale(9, 100));
    refit_device_body_collective(device, check_scale(9, 100));
    refit_device_body_restart(device);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

TEST(device_feed_uploads) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    feed_device_body(device);
    ravel_device_free(device);
    stub_reset();
    CHECK_OK(ravel__device_make(&stub_driver, 0, &device, &err), &err);
    feed_device_body(device);
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}
