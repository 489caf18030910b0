/* Trainers publish versions of a weight; a generator pulls them while it works, and commits between two steps.
 *
 * Here both are threads of one process; in practice they are separate processes that only share an address: put
 * trainer() into one program, generator() into another. */
#include <ravel/publish.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { COUNT = 1 << 16, VERSIONS = 3 };
static const char *const address = "unix:@ravel-example-publish";
static _Atomic int32_t published, done;

static void nap(void) {
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
}

static ravel_status train(ravel_error *err) {
    static float w[COUNT];
    ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_F32, .ndim = 1, .dims = {COUNT}, .data = w};
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_publisher *publisher = NULL;
    ravel_comm *self = NULL;
    ravel_status status = ravel_comm_self(NULL, &self, err);
    if (status == RAVEL_OK) status = ravel_publisher_create(self, address, &source, NULL, &publisher, err);
    for (int64_t version = 1; version <= VERSIONS && status == RAVEL_OK; version++) {
        for (int i = 0; i < COUNT; i++) w[i] = (float)version; /* a step of training */
        status = ravel_publisher_publish(publisher, version, err);
        atomic_store(&published, (int32_t)version);
        while (status == RAVEL_OK && atomic_load(&done) < version) nap(); /* the example waits; trainers need not */
    }
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
    return status;
}

static void *trainer(void *unused) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (train(&err) != RAVEL_OK) fprintf(stderr, "trainer: %s\n", err.message);
    return unused;
}

static ravel_status generate(ravel_error *err) {
    static float w[COUNT];
    ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_F32, .ndim = 1, .dims = {COUNT}, .data = w};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_puller *puller = NULL;
    ravel_comm *self = NULL;
    ravel_status status = ravel_comm_self(NULL, &self, err);
    if (status == RAVEL_OK) status = ravel_puller_create(self, address, &sink, NULL, &puller, err);
    while (status == RAVEL_OK && atomic_load(&done) < VERSIONS) {
        int32_t state;
        status = ravel_puller_poll(puller, &state, err);
        if (status == RAVEL_OK && state == RAVEL_PULL_NEWER) status = ravel_puller_stage(puller, 0, err);
        if (status == RAVEL_OK && state == RAVEL_PULL_READY) {
            ravel_pull_report report = {.size = sizeof report};
            status = ravel_puller_commit(puller, &report, err);
            const float *live = ravel_puller_data(puller, 0);
            printf("version %lld: w[0] is %g, %lld bytes pulled\n", (long long)report.identity.version, live[0],
                   (long long)report.bytes_pulled);
            atomic_store(&done, (int32_t)report.identity.version);
        }
        nap(); /* a step of generating */
    }
    ravel_puller_free(puller);
    ravel_comm_free(self);
    return status;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    pthread_t thread;
    if (pthread_create(&thread, NULL, trainer, NULL) != 0) return 1;
    ravel_status status = generate(&err);
    if (status != RAVEL_OK) fprintf(stderr, "generator: %s\n", err.message);
    atomic_store(&done, VERSIONS);
    pthread_join(thread, NULL);
    return status != RAVEL_OK;
}
