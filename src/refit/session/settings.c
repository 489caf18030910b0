/* Options and environment: the one place where they are read and checked.
 *
 *     N   options.num_buffers,  else RAVEL_REFIT_NUM_BUFFERS, else the other ranks' value, else 2
 *     B   options.buffer_bytes, else RAVEL_REFIT_BUFFER_BYTES, else the other ranks' value, else
 *         options.memory_ratio, else RAVEL_REFIT_BUFFER_MEMORY_RATIO: that share of the memory that the buffers are in,
 *         over N (all buffers together take the share), else
 *         the transport's default, and at most 0.02 of that memory over N
 *
 * The defaults are measured: 315 MB of bf16, 1 to 1, two busy cores, GB/s by size of a buffer, the best of 12 updates:
 *
 *                          1 MiB    2 MiB    4 MiB    8 MiB   16 MiB   64 MiB
 *     threads               2.57     4.27     4.97     2.57     1.29     1.38
 *     mpi, one machine      3.10     3.32     3.52     0.90     0.77     0.69
 *     tcp, one machine      1.26     1.22     0.70     0.53     0.48     0.47
 *     tcp, sockets alone    0.86     0.53     0.43     0.53     0.66     0.37
 *
 * Buffers that fit a cache win, and many frames overlap better than few. Over NCCL a frame costs some messages between
 * the hosts, so there buffers are large (docs/refit.md, "Between GPUs"). */
#include "refit/session/hello.h"
#include "refit/model/caller.h"
#include "refit/model/manifest.h"

#include "base/number.h"
#include "comm/nccl_comm.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIELD(name) ((int32_t)offsetof(ravel_refit_options, name))

#define NUM_MOST       RAVEL__NUM_BUFFERS_MOST
#define BYTES_LEAST    ((double)RAVEL__BUFFER_BYTES_LEAST)
#define BYTES_MOST     ((double)RAVEL__BUFFER_BYTES_MOST)
#define RATIO_LEAST    1e-6
#define RATIO_MOST     0.5
#define RATIO_DEFAULT  0.02
#define NUM_DEFAULT    2
#define GRAIN          4096 /* B is a multiple of it where no rank set another size */
#define FALLBACK_TOTAL ((int64_t)4 << 30)

static const ravel_option table[] = {
    {"num-buffers", RAVEL_OPTION_I32, FIELD(num_buffers), "0", 0, NUM_MOST, NULL,
     "buffers per rank (1 to 16); 0: RAVEL_REFIT_NUM_BUFFERS, else 2"},
    {"buffer-bytes", RAVEL_OPTION_I64, FIELD(buffer_bytes), "0", 0, BYTES_MOST, NULL,
     "bytes of a buffer, from 4k; 0: RAVEL_REFIT_BUFFER_BYTES, else from memory-ratio, else 1M to 4M, tcp 1M, nccl to 64M"},
    {"memory-ratio", RAVEL_OPTION_F64, FIELD(memory_ratio), "0", 0, RATIO_MOST, NULL,
     "share of the memory that the buffers are in (this machine's; over NCCL the GPU's) for all buffers of a rank together; "
     "0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else at most 0.02"},
    {"cast", RAVEL_OPTION_ENUM, FIELD(cast), "exact", 0, 0, RAVEL_REFIT_CAST_CHOICES,
     "exact: the same dtype on both sides; narrow: f64, f32, bf16, f16 may differ, the narrower travels"},
    {"stage", RAVEL_OPTION_ENUM, FIELD(stage), "spare", 0, 0, RAVEL_REFIT_STAGE_CHOICES,
     "spare: into a second set of weights; undo: in place, with a log of what was there; copy: into a staging set that "
     "the commit copies to fixed addresses"},
    {"delta", RAVEL_OPTION_BOOL, FIELD(delta), "no", 0, 0, NULL,
     "send only blocks that changed since the version before"},
    {"delta-block", RAVEL_OPTION_I64, FIELD(delta_block), "0", 0, 1073741824.0, NULL,
     "bytes of a block; 0: 256k, more for streams beyond 8G"},
    {"ignore-extra", RAVEL_OPTION_BOOL, FIELD(ignore_extra), "no", 0, 0, NULL,
     "leave out tensors that no receiver wants"},
    {"timeout", RAVEL_OPTION_F64, FIELD(timeout), "0", 0, 86400, NULL,
     "seconds without progress; 0: the communicator's"},
    {"threads", RAVEL_OPTION_I32, FIELD(threads), "0", 0, 64, NULL,
     "threads that pack, and as many that load; 0: by cores, ranks of the machine and link"},
    {"trace", RAVEL_OPTION_BOOL, FIELD(trace), "no", 0, 0, NULL, "keep events for a Chrome or Perfetto trace"},
    {"audit", RAVEL_OPTION_BOOL, FIELD(audit), "no", 0, 0, NULL, "hash every tensor at the commit"},
    {0},
};

ravel_option_table ravel_refit_option_table(void) {
    return table;
}

void ravel_refit_options_default(ravel_refit_options *options) {
    memset(options, 0, sizeof *options);
    ravel_options_default(table, options);
    options->size = sizeof *options;
}

ravel_status ravel__options_take(const ravel_refit_options *from, ravel_refit_options *options, ravel_error *err) {
    ravel_refit_options_default(options);
    if (!from) return RAVEL_OK;
    ravel_status status = ravel__struct_take(options, sizeof *options, from, from->size, "options", err);
    options->size = sizeof *options;
    return status;
}

/* Sizes of a buffer that nobody chose: `frames` of a stream, from `least` to `most` bytes. */
typedef struct transport_row {
    const char *kind; /* ravel_comm_kind; NULL: any other */
    int64_t frames, least, most;
} transport_row;

static const transport_row transports[] = {
    {"tcp", 64, 1 << 20, 1 << 20},
    {"nccl", 8, 1 << 20, 64 << 20},
    {NULL, 64, 1 << 20, 4 << 20},
};

/* The device's, if the buffers are on one: frames over NCCL are. */
int64_t ravel__buffer_memory(ravel_comm *comm) {
    ravel_device_info info = {.size = sizeof info};
    if (ravel_comm_host(comm) != comm &&
        ravel_device_info_get(ravel_stream_device(ravel__comm_nccl_stream(comm)), &info, NULL) == RAVEL_OK)
        return info.total_bytes;
    long pages = sysconf(_SC_PHYS_PAGES), each = sysconf(_SC_PAGESIZE);
    return pages > 0 && each > 0 ? (int64_t)pages * each : FALLBACK_TOTAL;
}

/* ---- environment ---------------------------------------------------------------------------------------- */

static ravel_status bad_value(ravel_error *err, const char *variable, const char *text, const char *allowed) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is \"%.60s\"; allowed is %s", variable, text, allowed);
}

/* 1: the variable is set and holds a number in the range; 0: it is not set; -1: it is wrong. */
static int env_size(const char *variable, double least, double most, int64_t *value) {
    const char *text = getenv(variable);
    if (!text || !text[0]) return 0;
    int64_t x;
    if (ravel_parse_size(text, &x, NULL) != RAVEL_OK || (double)x < least || (double)x > most) return -1;
    *value = x;
    return 1;
}

static int env_ratio(const char *variable, double *value) {
    const char *text = getenv(variable);
    char *end = NULL;
    if (!text || !text[0]) return 0;
    double x = ravel__number_read(text, &end);
    if (end == text || *end || !isfinite(x) || x < RATIO_LEAST || x > RATIO_MOST) return -1;
    *value = x;
    return 1;
}

static ravel_status take_num(const ravel_refit_options *options, int32_t *num, ravel_error *err) {
    int64_t value = options->num_buffers;
    *num = options->num_buffers;
    if (value > 0) return RAVEL_OK;
    if (env_size("RAVEL_REFIT_NUM_BUFFERS", 1, NUM_MOST, &value) < 0)
        return bad_value(err, "RAVEL_REFIT_NUM_BUFFERS", getenv("RAVEL_REFIT_NUM_BUFFERS"),
                         "a whole number from 1 to 16");
    *num = (int32_t)value;
    return RAVEL_OK;
}

static ravel_status take_bytes(const ravel_refit_options *options, ravel__settings *settings, ravel_error *err) {
    int64_t bytes = options->buffer_bytes;
    if (bytes > 0 && (double)bytes < BYTES_LEAST)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "buffer-bytes is %lld; allowed is 4k (4096) to 1T, or 0",
                               (long long)bytes);
    if (bytes == 0 && env_size("RAVEL_REFIT_BUFFER_BYTES", BYTES_LEAST, BYTES_MOST, &bytes) < 0)
        return bad_value(err, "RAVEL_REFIT_BUFFER_BYTES", getenv("RAVEL_REFIT_BUFFER_BYTES"),
                         "a number of bytes from 4k (4096) to 1T, with or without k, M, G");
    if (bytes == 0) return RAVEL_OK;
    settings->size_from = RAVEL__SIZE_EXPLICIT;
    settings->buffer_bytes = bytes;
    return RAVEL_OK;
}

static ravel_status take_ratio(const ravel_refit_options *options, int64_t total, ravel__settings *settings,
                               ravel_error *err) {
    double ratio = options->memory_ratio;
    if (ratio != 0 && (!(ratio >= RATIO_LEAST) || ratio > RATIO_MOST))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "memory-ratio is %g; allowed is 0.000001 to 0.5, or 0", ratio);
    if (ratio == 0 && env_ratio("RAVEL_REFIT_BUFFER_MEMORY_RATIO", &ratio) < 0)
        return bad_value(err, "RAVEL_REFIT_BUFFER_MEMORY_RATIO", getenv("RAVEL_REFIT_BUFFER_MEMORY_RATIO"),
                         "a share of memory, of all buffers of a rank together, from 0.000001 to 0.5");
    settings->size_from = ratio > 0 ? RAVEL__SIZE_RATIO : RAVEL__SIZE_DEFAULT;
    settings->buffer_bytes = (int64_t)((double)total * (ratio > 0 ? ratio : RATIO_DEFAULT));
    settings->afford = ratio > 0 ? settings->buffer_bytes : (int64_t)((double)total * RATIO_MOST);
    return RAVEL_OK;
}

ravel_status ravel__options_check(const ravel_refit_options *options, ravel_error *err) {
    return ravel_options_check(table, options, err);
}

ravel_status ravel__settings_take(const ravel_refit_options *options, int64_t memory, ravel__settings *settings,
                                  ravel_error *err) {
    ravel__settings taken = {0};
    ravel_status status = take_num(options, &taken.num_buffers, err);
    if (status == RAVEL_OK) status = take_ratio(options, memory, &taken, err);
    if (status == RAVEL_OK) status = take_bytes(options, &taken, err);
    if (status == RAVEL_OK) *settings = taken;
    return status;
}

/* ---- over all ranks ------------------------------------------------------------------------------------- */

const char *ravel__role_name(int32_t roles) {
    static const char *const names[] = {"neither sender nor receiver", "sender", "receiver", "sender and receiver"};
    return names[roles & 3];
}

/* A field that all ranks must agree on. */
typedef struct agreed {
    const char *what, *choices;
    size_t offset; /* of an i32 in the hello; 0: the explicit size of a buffer */
    int unset;     /* 0 is no value */
} agreed;

static int64_t explicit_bytes(const ravel__hello *h) {
    return h->settings.size_from == RAVEL__SIZE_EXPLICIT ? h->settings.buffer_bytes : 0;
}

static int64_t value_of(const agreed *row, const ravel__hello *hello) {
    int32_t value;
    if (row->offset == 0) return explicit_bytes(hello);
    memcpy(&value, (const char *)hello + row->offset, sizeof value);
    return value;
}

static void name_value(const agreed *row, int64_t value, char *text, size_t bytes) {
    if (!row->choices || !ravel_choice_word(row->choices, (int32_t)value, text, bytes))
        (void)snprintf(text, bytes, "%lld", (long long)value);
}

/* Reports the first rank whose value differs from that of the first rank that has one. */
static void compare(const agreed *row, const ravel__hello *hellos, int32_t ranks, ravel__differences *list) {
    int32_t first = 0;
    char a[32], b[32];
    while (row->unset && first < ranks && value_of(row, &hellos[first]) == 0) first++;
    for (int32_t r = first + 1; r < ranks; r++) {
        int64_t x = value_of(row, &hellos[first]), y = value_of(row, &hellos[r]);
        if (x == y || (row->unset && y == 0)) continue;
        name_value(row, x, a, sizeof a);
        name_value(row, y, b, sizeof b);
        ravel__differences_add(list, "%s: %s on rank %d (%s), %s on rank %d (%s)", row->what, a, first,
                               ravel__role_name(hellos[first].roles), b, r, ravel__role_name(hellos[r].roles));
        return;
    }
}

void ravel__hello_compare(const ravel__hello *hellos, int32_t ranks, ravel__differences *list) {
#define AT(field) offsetof(ravel__hello, field)
    static const agreed rows[] = {
        {"num-buffers (RAVEL_REFIT_NUM_BUFFERS)", NULL, AT(settings.num_buffers), 1},
        {"buffer-bytes (RAVEL_REFIT_BUFFER_BYTES)", NULL, 0, 1},
        {"cast", RAVEL_REFIT_CAST_CHOICES, AT(cast), 0},
        {"delta", "no|yes", AT(delta), 0},
        {"ignore-extra", "no|yes", AT(ignore_extra), 0},
        {"checksum", "none|xxh3", AT(checksum), 0},
    };
#undef AT
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) compare(&rows[i], hellos, ranks, list);
}

static int64_t auto_bytes(const char *kind, int64_t stream_bytes) {
    const transport_row *row = transports;
    while (row->kind && strcmp(row->kind, kind) != 0) row++;
    int64_t bytes = stream_bytes / row->frames;
    return bytes < row->least ? row->least : bytes > row->most ? row->most : bytes;
}

/* B by this rank's own settings. */
static int64_t wanted_bytes(const ravel__settings *s, int32_t num, const char *kind, int64_t stream_bytes) {
    int64_t bytes = s->buffer_bytes / num, best = auto_bytes(kind, stream_bytes);
    if (s->size_from == RAVEL__SIZE_EXPLICIT) return s->buffer_bytes;
    if (s->size_from == RAVEL__SIZE_DEFAULT && bytes > best) bytes = best;
    bytes -= bytes % GRAIN;
    return bytes < (int64_t)BYTES_LEAST ? (int64_t)BYTES_LEAST : bytes;
}

ravel__terms ravel__hello_terms(const ravel__hello *hellos, int32_t ranks, const char *kind, int64_t stream_bytes) {
    ravel__terms terms = {NUM_DEFAULT, 0};
    for (int32_t r = ranks; r-- > 0;)
        if (hellos[r].settings.num_buffers > 0) terms.num_buffers = hellos[r].settings.num_buffers;
    for (int32_t r = 0; r < ranks && terms.buffer_bytes == 0; r++) terms.buffer_bytes = explicit_bytes(&hellos[r]);
    if (terms.buffer_bytes > 0) return terms;
    for (int32_t r = 0; r < ranks; r++) {
        int64_t bytes = wanted_bytes(&hellos[r].settings, terms.num_buffers, kind, stream_bytes);
        if (terms.buffer_bytes == 0 || bytes < terms.buffer_bytes) terms.buffer_bytes = bytes;
    }
    return terms;
}

void ravel__hello_afford(const ravel__hello *hellos, int32_t ranks, const ravel__terms *terms,
                         ravel__differences *list) {
    for (int32_t r = 0; r < ranks; r++) {
        int64_t sets = hellos[r].roles == (RAVEL__SOURCE | RAVEL__SINK) ? 2 : hellos[r].roles != 0;
        if (terms->buffer_bytes <= hellos[r].settings.afford / terms->num_buffers / (sets ? sets : 1) || sets == 0)
            continue;
        ravel__differences_add(list, "%d buffers of %lld bytes: rank %d (%s) can afford %lld bytes in all",
                               (int)(sets * terms->num_buffers), (long long)terms->buffer_bytes, r,
                               ravel__role_name(hellos[r].roles), (long long)hellos[r].settings.afford);
    }
}
