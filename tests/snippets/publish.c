#include <ravel/ravel.h>

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* A trainer and a generator in one process, joined by a socket of this machine. The headers' addresses are examples. */
#define training (version <= 3)
static volatile int pulled;
static float weights[64] = {1, 2, 3};

static const char *here(void) {
    static char text[64];
    (void)snprintf(text, sizeof text, "unix:@ravel-snippet-%d", (int)getpid());
    return text;
}

#define ravel_publisher_create(c, address, s, o, p, e) ravel_publisher_create(c, here(), s, o, p, e)
#define ravel_puller_create(c, address, s, o, p, e)    ravel_puller_create(c, here(), s, o, p, e)

static ravel_status open_self(ravel_comm **comm, ravel_error *err) {
    return ravel_comm_open("self", NULL, comm, err);
}

static void *generator(void *unused) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_puller *puller = NULL;
    ravel_pull_report report = {.size = sizeof report};
    int32_t state = 0;
    float mine[64] = {0}, spare[64];
    ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_F32, .ndim = 1, .dims = {64}, .data = mine, .spare = spare};
    const ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    if (open_self(&comm, &err)) return NULL;
    struct timespec pause = {0, 10000000};
    int steps = 0;
#define generating \
    (!err.status && ((float *)ravel_puller_data(puller, 0))[2] != 3 && steps++ < 1000 && !nanosleep(&pause, NULL))
    //@ include/ravel/publish.h 2
    if (err.status) fprintf(stderr, "%s\n", err.message);
    pulled = 1;
    ravel_comm_free(comm);
    return NULL;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_publisher *publisher = NULL;
    const ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_F32, .ndim = 1, .dims = {64}, .data = weights};
    const ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    pthread_t thread;
    struct timespec pause = {0, 10000000};
    if (open_self(&comm, &err)) return 1;
#define ravel_publisher_free(p)                                             \
    (pthread_create(&thread, NULL, generator, NULL), ({                     \
         for (int i = 0; i < 2000 && !pulled; i++) nanosleep(&pause, NULL); \
     }),                                                                    \
     pthread_join(thread, NULL), ravel_publisher_free(p))
    //@ include/ravel/publish.h 1
    ravel_comm_free(comm);
    if (err.status) fprintf(stderr, "%s\n", err.message);
    return err.status;
}
