/* ravel refit --publish and --pull: two commands that were not launched together. One keeps versions of a model's
 * weights and serves them, the other pulls, checks and commits them. */
#include "cli/refit/refit.h"

#include <ravel/publish.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct meet_flags {
    const char *publish, *pull, *from, *shape, *dtype;
    int64_t memory;
    int32_t ranks, updates, quiet;
    double interval, changed;
} meet_flags;

#define ROW(...) RAVEL__ROW(meet_flags, __VA_ARGS__)
/* clang-format off */
#define WHAT                                                                                                              \
    ROW("from", STRING, from, NULL, 0, 0, "FILE",                                                                         \
        "checkpoint whose tensors these are: a .safetensors file, an index of shards, or a folder with them"),            \
    ROW("shape", STRING, shape, "qwen3-0.6b", 0, 0, "SHAPE",                                                              \
        "without --from: synthetic weights of this model; every byte of version v is v modulo 251"),                      \
    ROW("changed", F64, changed, "1", 1e-6, 1, NULL,                                                                      \
        "share of the synthetic elements that change from version to version; the same on both sides"),                   \
    ROW("memory", I64, memory, "512M", 1048576.0, 0x1p50, NULL,                                                           \
        "of one set of synthetic weights; a larger model gets a smaller vocabulary and fewer layers, at least one"),      \
    ROW("dtype", STRING, dtype, NULL, 0, 0, "DTYPE", "dtype of the weights; without it the file's, or bf16")
/* clang-format on */

static const ravel_option publish_table[] = {
    ROW("publish", STRING, publish, NULL, 0, 0, "ADDRESS",
        "where to publish: host:port, :port (this machine only), unix:/path, unix:@name"),
    WHAT,
    ROW("ranks", I32, ranks, "1", 1, 64, NULL, "trainer ranks in this process, each with a piece"),
    ROW("updates", I32, updates, "0", 0, 1000000000, NULL,
        "versions to publish; then waits until generators have the last one, at most 10 s. 0: until interrupted"),
    ROW("interval", F64, interval, "1", 0, 86400, NULL, "seconds between versions"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only errors"),
    {0}};

static const ravel_option pull_table[] = {
    ROW("pull", STRING, pull, NULL, 0, 0, "ADDRESS", "where the trainers publish"),
    WHAT,
    ROW("ranks", I32, ranks, "1", 1, 64, NULL, "tensor-parallel ranks of this generator: they stage and commit as one"),
    ROW("updates", I32, updates, "1", 0, 1000000000, NULL, "versions to commit; 0: until interrupted"),
    ROW("interval", F64, interval, "0", 0, 86400, NULL, "seconds between a commit and the next stage"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only errors"),
    {0}};

typedef struct meet_job {
    meet_flags flags;
    ravel_publish_options publish;
    ravel_pull_options pull;
    ravel_safetensors *file;
    ravel_shape shape;
    int32_t dtype; /* -1: the file's */
} meet_job;

static void nap(double seconds) {
    RAVEL_ASSERT(seconds >= 0);
    while (seconds > 0 && !cli_stop) {
        double step = seconds < 0.05 ? seconds : 0.05;
        struct timespec t = {0, (long)(step * 1e9)};
        (void)nanosleep(&t, NULL);
        seconds -= step;
    }
}

/* ---- shared by both --------------------------------------------------------------------------------------- */

/* As many layers as `room` parameters allow, and a vocabulary of a quarter of them at most. */
static void scale(ravel_shape *shape, double room) {
    ravel_shape bare = *shape;
    if ((double)ravel_shape_parameters(shape) <= room) return;
    for (bare.layers = 1; bare.vocab > 256 && (double)ravel_shape_parameters(&bare) > room / 4; bare.vocab /= 2) {}
    shape->vocab = bare.vocab;
    while (shape->layers > 1 && (double)ravel_shape_parameters(shape) > room) shape->layers--;
}

static ravel_status open_model(meet_job *job, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    job->dtype = -1;
    if (job->flags.dtype) status = ravel_dtype_parse(job->flags.dtype, &job->dtype, err);
    if (status == RAVEL_OK && job->flags.from) status = refit_from(&job->flags.from, err);
    if (status == RAVEL_OK && job->flags.from) return ravel_safetensors_open(job->flags.from, NULL, &job->file, err);
    if (status == RAVEL_OK) status = ravel_shape_named(job->flags.shape, &job->shape, err);
    if (job->dtype < 0) job->dtype = RAVEL_BF16;
    if (status == RAVEL_OK) scale(&job->shape, (double)job->flags.memory / ravel_dtype_bytes(job->dtype));
    return status;
}

/* ---- synthetic weights ------------------------------------------------------------------------------------- */

/* The version at which an element changed last, where one in `every` changes per version: its turn comes once in
 * `every`. */
static int64_t changed_at(uint64_t element, int64_t every, int64_t version) {
    uint64_t x = (element + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    int64_t since = (version + (int64_t)((x ^ x >> 32) % (uint64_t)every)) % every;
    return version > since ? version - since : 0;
}

static int write_byte(char *element, int byte, int32_t bytes) {
    memset(element, byte, (size_t)bytes);
    return 1;
}

static int is_byte(char *element, int byte, int32_t bytes) {
    for (int32_t i = 0; i < bytes; i++)
        if ((unsigned char)element[i] != byte) return 0;
    return 1;
}

/* Elements of a rank's piece, numbered as in the whole tensor: `each` gets their bytes and what these are in the
 * version. -1, or the first of the piece for which it returns 0. */
static int64_t walk_tensor(const ravel_refit_tensor *t, char *data, double changed, int64_t version,
                           int (*each)(char *element, int byte, int32_t bytes)) {
    int64_t count = ravel_refit_tensor_elements(t), every = (int64_t)(1 / changed + .5), row = 1, start = 0, here = 1;
    int32_t bytes = ravel_dtype_bytes(t->dtype);
    RAVEL_ASSERT(every >= 1 && bytes > 0 && t->ndim <= 2); /* as ravel_refit_shape_tensors cuts */
    for (int32_t d = 0; d < t->ndim; d++) {
        int64_t parts = t->parts[d] > 0 ? t->parts[d] : 1, first = t->dims[d] * t->index[d] / parts;
        start = start * t->dims[d] + first;
        row = t->dims[d];
        here = t->dims[d] * (t->index[d] + 1) / parts - first;
    }
    for (int64_t e = 0; e < count; e++) {
        int64_t number = start + e / here * row + e % here;
        if (!each(data + e * bytes, (int)(changed_at((uint64_t)number, every, version) % 251), bytes)) return e;
    }
    return -1;
}

/* Whether any rank was cli_stop or is done: all of them stop at the same version. */
static ravel_status all_stop(ravel_comm *comm, int64_t mine, int64_t *stop, ravel_error *err) {
    *stop = mine;
    return ravel_comm_allreduce(comm, stop, stop, 1, RAVEL_I64, RAVEL_MAX, err);
}

/* ---- publish -------------------------------------------------------------------------------------------- */

/* The connected generators that do not hold the version; -1: none ever reported. */
static int64_t behind(ravel_publisher *publisher, int64_t version) {
    ravel_generator_report reports[256];
    int64_t count = ravel_publisher_generators(publisher, reports, 256), late = 0;
    for (int64_t i = 0; i < count && i < 256; i++) late += reports[i].connected && reports[i].held.version < version;
    return count == 0 ? -1 : late;
}

static void linger(ravel_publisher *publisher, int64_t version) {
    for (int i = 0; i < 200 && !cli_stop && behind(publisher, version) != 0; i++) nap(0.05);
}

static void say_published(ravel_publisher *publisher) {
    ravel_generator_report reports[256];
    double total, copy, bytes = (double)ravel_publisher_version_bytes(publisher), pause = 0;
    int64_t count = ravel_publisher_generators(publisher, reports, 256), connected = 0, lag = 0;
    for (int64_t i = 0; i < count && i < 256; i++) {
        if (!reports[i].connected) continue;
        connected++;
        lag = reports[i].lag > lag ? reports[i].lag : lag;
        pause = reports[i].pause_seconds > pause ? reports[i].pause_seconds : pause;
    }
    ravel_refit_identity id = ravel_publisher_newest(publisher);
    ravel_publisher_seconds(publisher, &total, &copy);
    printf("version %lld (%016llx): %.4f s, copy %.2f GB/s; %lld generator%s connected", (long long)id.version,
           (unsigned long long)id.digest, total, copy > 0 ? bytes / copy * 1e-9 : 0, (long long)connected,
           connected == 1 ? "" : "s");
    if (connected > 0) printf(", at most %lld behind, longest pause %.3f ms", (long long)lag, 1e3 * pause);
    printf("\n");
    (void)fflush(stdout);
}

static void fill(const refit_set *set, const meet_job *job, int64_t version) {
    for (int64_t i = 0; i < set->count; i++) {
        const ravel_refit_tensor *t = &set->tensors[i];
        (void)walk_tensor(t, t->data, job->flags.changed, version, write_byte);
    }
}

static ravel_status publish_loop(meet_job *job, ravel_comm *comm, ravel_publisher *publisher, const refit_set *set,
                                 ravel_error *err) {
    int tells = ravel_comm_rank(comm) == 0 && !job->flags.quiet;
    RAVEL_ASSERT(publisher && set->count >= 0);
    int64_t version = 1, stop = 0;
    ravel_status status = RAVEL_OK;
    for (; status == RAVEL_OK; version++) {
        if (set->block) fill(set, job, version);
        status = ravel_publisher_publish(publisher, version, err);
        if (status == RAVEL_OK && tells) say_published(publisher);
        int last = job->flags.updates > 0 && version == job->flags.updates;
        if (status == RAVEL_OK && !last) nap(job->flags.interval);
        if (status == RAVEL_OK) status = all_stop(comm, cli_stop || last, &stop, err);
        if (stop) break;
    }
    if (status == RAVEL_OK && ravel_comm_rank(comm) == 0) linger(publisher, version);
    return status == RAVEL_OK ? ravel_comm_barrier(comm, err) : status;
}

static ravel_status publish_rank(ravel_comm *comm, void *user, ravel_error *err) {
    meet_job *job = user;
    int32_t rank = ravel_comm_rank(comm), ranks = ravel_comm_size(comm);
    refit_set set = {0};
    ravel_publisher *publisher = NULL;
    ravel_status status = job->file ? refit_set_of_file(job->file, ranks, rank, &set, err)
                                    : refit_set_of_shape(&job->shape, job->dtype, ranks, rank, 0, &set, err);
    if (status != RAVEL_OK) ravel_comm_abort(comm, err);
    ravel_refit_source source = {.size = sizeof source, .tensors = set.tensors, .count = set.count};
    ravel_publish_options o = job->publish;
    if (job->file) o.dtype = job->dtype;
    if (status == RAVEL_OK)
        status = ravel_publisher_create(comm, rank == 0 ? job->flags.publish : NULL, &source, &o, &publisher, err);
    if (status == RAVEL_OK && rank == 0 && !job->flags.quiet) {
        printf("publishing %lld tensors at %s\n", (long long)set.count, ravel_publisher_address(publisher));
        (void)fflush(stdout);
    }
    if (status == RAVEL_OK) status = publish_loop(job, comm, publisher, &set, err);
    ravel_publisher_free(publisher);
    refit_set_free(&set);
    return status;
}

/* ---- pull ----------------------------------------------------------------------------------------------- */

static const void *live_data(const void *puller, int64_t tensor) {
    return ravel_puller_data(puller, tensor);
}

static ravel_status check_bytes(const refit_set *set, const meet_job *job, const ravel_puller *puller, int64_t version,
                                ravel_error *err) {
    for (int64_t i = 0; i < set->count; i++) {
        int64_t wrong =
            walk_tensor(&set->tensors[i], ravel_puller_data(puller, i), job->flags.changed, version, is_byte);
        if (wrong >= 0)
            return ravel_error_set(err, RAVEL_E_CHECKSUM, "%s: element %lld is not of version %lld",
                                   set->tensors[i].name, (long long)wrong, (long long)version);
    }
    return RAVEL_OK;
}

static ravel_status pull_one(meet_job *job, ravel_comm *comm, ravel_puller *puller, const refit_set *set, int64_t *stop,
                             ravel_error *err) {
    ravel_pull_report report = {.size = sizeof report};
    ravel_status status = ravel_puller_wait(puller, 0.5, err);
    if (status == RAVEL_E_TIMEOUT || status == RAVEL_E_STATE || status == RAVEL_E_IO) {
        if (status == RAVEL_E_IO && ravel_comm_rank(comm) == 0 && !job->flags.quiet)
            (void)fprintf(stderr, "ravel refit: %s; staging again\n", err->message);
        ravel_error_clear(err);
        return all_stop(comm, cli_stop, stop, err);
    }
    if (status == RAVEL_OK) status = ravel_puller_commit(puller, &report, err);
    if (status != RAVEL_OK) return status;
    status = job->file ? refit_set_compare(set, live_data, puller, job->file, err)
                       : check_bytes(set, job, puller, report.identity.version, err);
    if (status != RAVEL_OK) ravel_comm_abort(comm, err);
    if (status == RAVEL_OK && ravel_comm_rank(comm) == 0 && !job->flags.quiet) {
        double gb = (double)report.bytes_pulled * 1e-9, seconds = report.prepare_seconds;
        printf("version %lld (%016llx): %.4g GB pulled, %.4g GB kept, %.4g GB as %.4g GB of changes",
               (long long)report.identity.version, (unsigned long long)report.identity.digest, gb,
               (double)report.bytes_kept * 1e-9, (double)report.bytes_sparse * 1e-9,
               (double)report.bytes_changes * 1e-9);
        printf(" (%.3g %% of elements changed), prepared in %.4f s (%.2f GB/s), pause %.3f ms; equal\n",
               report.compared > 0 ? 100. * (double)report.changed / (double)report.compared : 0, seconds,
               seconds > 0 ? gb / seconds : 0, 1e3 * report.pause_seconds);
        (void)fflush(stdout);
    }
    *stop = -1; /* one more is done */
    return status;
}

static ravel_status pull_rank(ravel_comm *comm, void *user, ravel_error *err) {
    meet_job *job = user;
    int32_t rank = ravel_comm_rank(comm), ranks = ravel_comm_size(comm), done = 0;
    refit_set set = {0};
    ravel_puller *puller = NULL;
    ravel_status status = job->file ? refit_set_like_file(job->file, job->dtype, ranks, rank, 0, &set, err)
                                    : refit_set_of_shape(&job->shape, job->dtype, ranks, rank, 0, &set, err);
    if (status != RAVEL_OK) ravel_comm_abort(comm, err);
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = set.tensors, .count = set.count};
    ravel_pull_options o = job->pull;
    if (job->file && job->dtype >= 0) o.cast = RAVEL_REFIT_NARROW;
    if (rank == 0 && !job->flags.quiet) cli_busy("waiting for a trainer");
    if (status == RAVEL_OK) status = ravel_puller_create(comm, job->flags.pull, &sink, &o, &puller, err);
    if (rank == 0) cli_busy_end();
    for (int64_t stop = 0; status == RAVEL_OK && stop != 1;) {
        stop = 0;
        status = pull_one(job, comm, puller, &set, &stop, err);
        if (status == RAVEL_OK && stop == -1) {
            done++;
            if (job->flags.updates == 0 || done < job->flags.updates) nap(job->flags.interval);
            status = all_stop(comm, cli_stop || (job->flags.updates > 0 && done >= job->flags.updates), &stop, err);
        }
    }
    ravel_puller_free(puller);
    refit_set_free(&set);
    return status;
}

/* ---- the commands --------------------------------------------------------------------------------------- */

static int help(int publishes, const cli_options *sets, int count) {
    if (publishes)
        (void)fputs("usage: ravel refit --publish ADDRESS [--from FILE | --shape NAME] [options]\n\n"
                    "Publishes versions of a model's weights, for generators, which pull them at any time.\n",
                    stdout);
    else
        (void)fputs(
            "usage: ravel refit --pull ADDRESS [--from FILE | --shape NAME] [options]\n\n"
            "Pulls versions as one generator does: stages each beside the live one, verifies it, commits it on all\n"
            "ranks, and compares it with the file or with the expected synthetic weights. Trainers that end later are\n"
            "waited for: they may be started again.\n",
            stdout);
    cli_print_options(sets, count);
    (void)fputs(
        "\nExamples:\n"
        "  ravel refit --publish unix:/tmp/weights --shape qwen3-0.6b --ranks 2 --interval 0.5\n"
        "  ravel refit --pull unix:/tmp/weights --shape qwen3-0.6b --updates 5\n"
        "  RAVEL_TOKEN=secret ravel refit --publish 0.0.0.0:7700 --from model/ --keep 3\n"
        "  RAVEL_TOKEN=secret ravel refit --pull trainer:7700 --from model/ --ranks 4 --stage copy\n"
        "\nExit codes: 0 done and equal, 1 a difference, bad data or no trainer at ADDRESS, 2 the command line is wrong.\n",
        stdout);
    return CLI_OK;
}

static int run(int argc, char **argv, int publishes) {
    meet_job job;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1];
    int count = 0;
    memset(&job, 0, sizeof job);
    ravel_publish_options_default(&job.publish);
    ravel_pull_options_default(&job.pull);
    const cli_options publish_sets[] = {{"Running", publish_table, &job.flags},
                                        {"Publishing", ravel_publish_option_table(), &job.publish}};
    const cli_options pull_sets[] = {{"Running", pull_table, &job.flags},
                                     {"Pulling", ravel_pull_option_table(), &job.pull}};
    const cli_options *sets = publishes ? publish_sets : pull_sets;
    for (int i = 0; i < 2; i++) ravel_options_default(sets[i].table, sets[i].options);
    if (cli_wants_help(argc, argv)) return help(publishes, sets, 2);
    ravel_status status = cli_parse(argc, argv, sets, 2, words, 1, &count, &err);
    if (status == RAVEL_OK && count) status = CLI_REFUSE(&err, "\"%.60s\" is not an option; see --help", words[0]);
    if (status != RAVEL_OK) return cli_usage("refit", &err);
    status = open_model(&job, &err);
    if (status == RAVEL_OK) {
        cli_catch_stop(NULL);
        status = ravel_threads_run(job.flags.ranks, NULL, publishes ? publish_rank : pull_rank, &job, &err);
    }
    ravel_safetensors_free(job.file);
    return status == RAVEL_OK ? CLI_OK : cli_fail("refit", &err);
}

int refit_publish(int argc, char **argv) {
    return run(argc, argv, 1);
}

int refit_pull(int argc, char **argv) {
    return run(argc, argv, 0);
}
