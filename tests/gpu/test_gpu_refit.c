/* Refit of device memory on a GPU: the body that every device runs, and processes that are killed. */
#include "tests/unit/check.h"
#include "tests/unit/refit_device_body.h"

#include <ravel/publish.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void on_gpu(void (*body)(ravel_device *device, int64_t rounds), int64_t rounds) {
    ravel_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_device_open("cuda:0", &device, &err), &err);
    body(device, rounds);
    ravel_device_free(device);
}

TEST(gpu_refit_pull) {
    on_gpu(refit_device_body_pull, check_scale(12, 200));
}

static void restart(ravel_device *device, int64_t rounds) {
    (void)rounds;
    refit_device_body_restart(device, 1);
    refit_device_body_refusals(device);
}

TEST(gpu_refit_another_trainer) {
    on_gpu(restart, 1);
}

TEST(gpu_refit_changes) {
    on_gpu(refit_device_body_changes, check_scale(6, 100));
}

TEST(gpu_refit_collective) {
    on_gpu(refit_device_body_collective, check_scale(9, 200));
}

/* One GPU holds one NCCL rank: it sends to itself. */
static void over_nccl(ravel_device *device, int64_t rounds) {
    refit_device_body_nccl(device, ravel_comm_nccl, 1, rounds);
}

TEST(gpu_refit_nccl_one_rank) {
    on_gpu(over_nccl, check_scale(6, 50));
}

/* ---- processes that are killed --------------------------------------------------------------------------- *
 * A trainer publishes without pause, a generator pulls, commits, looks at every element and says what it holds. One of them
 * after the other is killed at any moment and started again. Each version is one number in all tensors (and the tensor's
 * own number on top), so a mix would be seen. Both are this program again: a process that has used CUDA cannot be forked. */

enum { TENSORS = 6, ELEMENTS = 1 << 20, NUMBERS = 100, KILLS = 40 };

typedef struct weights {
    ravel_device *device;
    ravel_stream *stream;
    ravel_refit_tensor tensors[TENSORS];
    char names[TENSORS][16];
    float *host; /* [ELEMENTS] */
    ravel_comm *self;
    ravel_error err;
} weights;

static bool weights_open(weights *w, int32_t dtype) {
    const char *name = getenv("RAVEL_TEST_KILL_DEVICE");
    memset(w, 0, sizeof *w);
    w->host = malloc(ELEMENTS * sizeof *w->host);
    if (!w->host || ravel_device_open(name ? name : "cuda:0", &w->device, &w->err) != RAVEL_OK ||
        ravel_stream_create(w->device, &w->stream, &w->err) != RAVEL_OK ||
        ravel_comm_self(NULL, &w->self, &w->err) != RAVEL_OK)
        return false;
    for (int i = 0; i < TENSORS; i++) {
        (void)snprintf(w->names[i], sizeof w->names[i], "w%d", i);
        w->tensors[i] = (ravel_refit_tensor){.name = w->names[i], .dtype = dtype, .ndim = 1, .dims = {ELEMENTS}};
        w->tensors[i].place = (ravel_place){RAVEL_DEVICE, 0, w->stream};
        size_t bytes = (size_t)ELEMENTS * (size_t)ravel_dtype_bytes(dtype);
        if (ravel_device_alloc(w->device, RAVEL_DEVICE, bytes, w->stream, &w->tensors[i].data, &w->err) != RAVEL_OK)
            return false;
    }
    return true;
}

static int be_the_trainer(const char *address, int launch) {
    weights w;
    ravel_publisher *publisher = NULL;
    ravel_publish_options options;
    ravel_publish_options_default(&options);
    options.dtype = RAVEL_BF16;
    options.threads = 2;
    if (!weights_open(&w, RAVEL_F32)) return 1;
    ravel_refit_source source = {.size = sizeof source, .tensors = w.tensors, .count = TENSORS};
    /* The trainer before was killed: its address may take a moment to be free. */
    for (int i = 0; i < 100 && !publisher; i++) {
        ravel_error_clear(&w.err);
        if (ravel_publisher_create(w.self, address, &source, &options, &publisher, &w.err) != RAVEL_OK)
            (void)usleep(50000);
    }
    if (!publisher) return 2;
    for (int64_t version = 1;; version++) {
        for (int t = 0; t < TENSORS; t++) {
            float value = (float)((launch * 7 + (int)version) % NUMBERS + t);
            for (int i = 0; i < ELEMENTS; i++) w.host[i] = value;
            (void)ravel_device_copy(w.device, w.tensors[t].data, w.host, ELEMENTS * sizeof *w.host, w.stream, &w.err);
        }
        if (ravel_publisher_publish(publisher, version, &w.err) != RAVEL_OK) return 3;
        (void)usleep(5000); /* two versions are kept: time to pull one */
    }
}

/* The number that all elements of the live version have; -1: they differ. */
static int number_of(weights *w, const ravel_puller *p) {
    uint16_t *bits = (uint16_t *)(void *)w->host;
    int number = -1;
    for (int t = 0; t < TENSORS; t++) {
        if (ravel_device_copy(w->device, bits, ravel_puller_data(p, t), ELEMENTS * 2, w->stream, &w->err) != RAVEL_OK ||
            ravel_stream_wait(w->stream, 60, &w->err) != RAVEL_OK)
            return -1;
        for (int i = 0; i < ELEMENTS; i++) {
            uint32_t word = (uint32_t)bits[i] << 16;
            float value;
            memcpy(&value, &word, sizeof value);
            if (t == 0 && i == 0) number = (int)value;
            if (value != (float)(number + t)) return -1;
        }
    }
    return number;
}

/* Says a line per commit: number, 1 where the trainer's memory was read on the device. */
static int be_the_generator(const char *address, int out) {
    weights w;
    ravel_puller *puller = NULL;
    ravel_pull_options options;
    ravel_pull_options_default(&options);
    options.threads = 2;
    options.timeout = 5;
    if (!weights_open(&w, RAVEL_BF16)) return 1;
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = w.tensors, .count = TENSORS};
    for (int i = 0; i < 200 && !puller; i++) {
        ravel_error_clear(&w.err);
        if (ravel_puller_create(w.self, address, &sink, &options, &puller, &w.err) != RAVEL_OK) (void)usleep(50000);
    }
    if (!puller) return 2;
    for (;;) {
        ravel_pull_report report = {.size = sizeof report};
        ravel_error_clear(&w.err);
        if (ravel_puller_wait(puller, 1, &w.err) != RAVEL_OK ||
            ravel_puller_commit(puller, &report, &w.err) != RAVEL_OK) { /* the trainer was killed, or was faster */
            (void)usleep(1000);
            continue;
        }
        int32_t line[2] = {number_of(&w, puller), report.mapped};
        if (write(out, line, sizeof line) != sizeof line) return 3;
    }
}

__attribute__((constructor)) static void be_a_child(void) {
    const char *role = getenv("RAVEL_TEST_KILL"), *address = getenv("RAVEL_TEST_KILL_ADDRESS");
    const char *number = getenv("RAVEL_TEST_KILL_NUMBER");
    if (!role || !address || !number) return;
    int code = role[0] == 't' ? be_the_trainer(address, atoi(number)) : be_the_generator(address, atoi(number));
    (void)fprintf(stderr, "    %s ended with %d\n", role, code);
    _exit(code);
}

static pid_t start(const char *role, const char *address, int number) {
    char text[16];
    (void)fflush(NULL);
    (void)snprintf(text, sizeof text, "%d", number);
    (void)setenv("RAVEL_TEST_KILL", role, 1); /* before the fork: other threads may hold malloc's lock */
    (void)setenv("RAVEL_TEST_KILL_ADDRESS", address, 1);
    (void)setenv("RAVEL_TEST_KILL_NUMBER", text, 1);
    pid_t child = fork();
    if (child == 0) {
        (void)execl("/proc/self/exe", "ravel-gpu", (char *)NULL);
        _exit(127);
    }
    (void)unsetenv("RAVEL_TEST_KILL");
    return child;
}

static void stop(pid_t child) {
    int status = 0;
    if (child <= 0) return;
    (void)kill(child, SIGKILL);
    (void)waitpid(child, &status, 0);
}

typedef struct heard {
    int64_t commits, mapped, mixes;
} heard;

/* Reads lines until `more` commits have come, nothing has come for 30 s, or a child has ended by itself. */
static bool listen_for(int pipe_end, const pid_t children[2], int64_t more, heard *h) {
    int waited = 0;
    for (int64_t got = 0; got < more;) {
        struct pollfd one = {.fd = pipe_end, .events = POLLIN};
        int32_t line[2];
        int status = 0;
        if (poll(&one, 1, 200) <= 0) {
            if (++waited == 150 || waitpid(children[0], &status, WNOHANG) || waitpid(children[1], &status, WNOHANG))
                return false;
            continue;
        }
        waited = 0;
        if (read(pipe_end, line, sizeof line) != sizeof line) return false;
        got++;
        h->commits++;
        h->mapped += line[1];
        h->mixes += line[0] < 0;
    }
    return true;
}

static int64_t free_now(void) {
    ravel_device *device = NULL;
    ravel_device_info info = {.size = sizeof info};
    const char *name = getenv("RAVEL_TEST_KILL_DEVICE");
    int64_t bytes = -1;
    if (ravel_device_open(name ? name : "cuda:0", &device, NULL) != RAVEL_OK) return -1;
    if (ravel_device_get_info(device, &info, NULL) == RAVEL_OK) bytes = info.free_bytes;
    ravel_device_free(device);
    return bytes;
}

TEST(gpu_refit_killed_processes) {
    const char *times = getenv("RAVEL_TEST_KILLS");
    int kills = times ? atoi(times) : KILLS, pair[2];
    char address[64];
    heard h = {0};
    uint64_t seed = check_seed();
    int64_t before = free_now();
    CHECK(pipe(pair) == 0);
    (void)snprintf(address, sizeof address, "unix:@ravel-kill-%d", (int)getpid());
    pid_t children[2] = {start("trainer", address, 0), start("generator", address, pair[1])};
    bool good = EXPECT(listen_for(pair[0], children, 2, &h));
    for (int k = 0; k < kills && good; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        (void)usleep((useconds_t)(seed >> 40) % 30000);
        stop(children[k % 2]);
        children[k % 2] = k % 2 == 0 ? start("trainer", address, k + 1) : start("generator", address, pair[1]);
        good = EXPECT(listen_for(pair[0], children, 2, &h)); /* one may have been under way */
    }
    stop(children[0]);
    stop(children[1]);
    (void)close(pair[0]);
    (void)close(pair[1]);
    (void)usleep(500000); /* the driver takes the memory of a killed process back in a moment */
    int64_t after = free_now();
    fprintf(stderr,
            "    %d kills, %lld commits, %lld of them read on the device; free memory %lld before, %lld after\n", kills,
            (long long)h.commits, (long long)h.mapped, (long long)before, (long long)after);
    CHECK_EQ(h.mixes, 0);
    CHECK(h.mapped > 0);
    if (!getenv("RAVEL_TEST_KILL_DEVICE")) CHECK(after > before - ((int64_t)64 << 20));
}
