/* What ravel generate --pull says when it ends. */
#include "tests/unit/refit_case.h"

#include "train/run/answers/pulled.h"

#include <unistd.h>

/* The time that the user gave, not that of a slice of it. */
TEST(train_pulled_says_how_long_it_waited_for_the_first_version) {
    char address[64];
    float from[64] = {0}, here[64] = {0};
    ravel_refit_tensor source_tensor = float_tensor("w", from, 64), sink_tensor = float_tensor("w", here, 64);
    ravel_refit_source source = {.size = sizeof source, .tensors = &source_tensor, .count = 1};
    train_weight_sets sets = {.sink = {.size = sizeof sets.sink, .tensors = &sink_tensor, .count = 1}};
    const train_pulled_to to = train_pulled_sets(&sets);
    train_pulled_options options = {.address = address, .timeout = 0.5};
    ravel_comm *self = NULL;
    ravel_publisher *publisher = NULL;
    train_pulled *pulled = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)snprintf(address, sizeof address, "unix:@ravel-pulled-%d", (int)getpid());
    CHECK_OK(ravel_comm_self(NULL, &self, &err), &err);
    CHECK_OK(ravel_publisher_create(self, address, &source, NULL, &publisher, &err), &err);
    CHECK_EQ(train_pulled_open(&options, &to, &pulled, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "no version was published at ");
    CHECK_HAS(err.message, " within 0.5 s");
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
}
