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

#include "base/options.h"
#include "comm/nccl_comm.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#define ROW(...) RAVEL__ROW(ravel_refit_options, __VA_ARGS__)

#define NUM_MOST       RAVEL__NUM_BUFFERS_MOST
#define BYTES_LEAST    ((double)RAVEL__BUFFER_BYTES_LEAST)
#define BYTES_MOST     ((double)RAVEL__BUFFER_BYTES_MOST)
#define RATIO_LEAST    1e-6
#define RATIO_MOST     0.5
#define RATIO_DEFAULT  0.02
#define FALLBACK_TOTAL ((int64_t)4 << 30)

static const ravel_option table[] = {
    ROW("num-buffers", I32, num_buffers, "0", 0, NUM_MOST, NULL,
        "buffers per rank (1 to 16); 0: RAVEL_REFIT_NUM_BUFFERS, else 2"),
    ROW("buffer-bytes", I64, buffer_bytes, "0", 0, BYTES_MOST, NULL,
        "bytes of a buffer, from 4k; 0: RAVEL_REFIT_BUFFER_BYTES, else from memory-ratio, else 1M to 4M, tcp 1M, nccl to 64M"),
    ROW("memory-ratio", F64, memory_ratio, "0", 0, RATIO_MOST, NULL,
        "share of the memory that the buffers are in (this machine's; over NCCL the GPU's) for all buffers of a rank together; "
        "0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else at most 0.02"),
    ROW("cast", ENUM, cast, "exact", 0, 0, RAVEL_REFIT_CAST_CHOICES,
        "exact: the same dtype on both sides; narrow: f64, f32, bf16, f16 may differ, the narrower travels"),
    ROW("stage", ENUM, stage, "spare", 0, 0, RAVEL_REFIT_STAGE_CHOICES,
        "spare: into a second set of weights; undo: in place, with a log of what was there; copy: into a staging set that "
        "the commit copies to fixed addresses"),
    ROW("delta", BOOL, delta, "no", 0, 0, NULL, "send only blocks that changed since the version before"),
    ROW("delta-block", I64, delta_block, "0", 0, 1073741824.0, NULL,
        "bytes of a block; 0: 256k, more for streams beyond 8G"),
    ROW("sparse", BOOL, sparse, "no", 0, 0, NULL,
        "with delta, send only the changed elements of a block if that is less; senders keep two copies of what they send"),
    ROW("ignore-extra", BOOL, ignore_extra, "no", 0, 0, NULL, "leave out tensors that no receiver wants"),
    ROW("timeout", F64, timeout, "0", 0, 86400, NULL, "seconds without progress; 0: the communicator's"),
    ROW("threads", I32, threads, "0", 0, 64, NULL,
        "threads that pack, and as many that load; 0: by cores, ranks of the machine and link"),
    ROW("trace", BOOL, trace, "no", 0, 0, NULL, "keep events for a Chrome or Perfetto trace"),
    ROW("audit", BOOL, audit, "no", 0, 0, NULL, "hash every tensor at the commit"),
    {0},
};

ravel_option_table ravel_refit_option_table(void) {
    return table;
}

void ravel_refit_options_default(ravel_refit_options *options) {
    ravel__options_preset(table, options, sizeof *options);
}

ravel_status ravel__options_take(const ravel_refit_options *from, ravel_refit_options *options, ravel_error *err) {
    ravel_refit_options_default(options);
    return from ? ravel__take_options(table, "refit", from, options, sizeof *options, err) : RAVEL_OK;
}

/* The device's, if the buffers are on one: frames over NCCL are. */
int64_t ravel__buffer_memory(ravel_comm *comm) {
    ravel_device_info info = {.size = sizeof info};
    if (ravel_comm_host(comm) != comm &&
        ravel_device_get_info(ravel_stream_device(ravel__comm_nccl_stream(comm)), &info, NULL) == RAVEL_OK)
        return info.total_bytes;
    long pages = sysconf(_SC_PHYS_PAGES), each = sysconf(_SC_PAGESIZE);
    return pages > 0 && each > 0 ? (int64_t)pages * each : FALLBACK_TOTAL;
}

/* ---- environment ---------------------------------------------------------------------------------------- */

/* What says an option that was not given, and what both may be unless they are 0. */
static const struct setting {
    const char *option, *variable, *allowed;
    double least;
} chosen[] = {
    {"num-buffers", "RAVEL_REFIT_NUM_BUFFERS", "a whole number from 1 to 16", 1},
    {"buffer-bytes", "RAVEL_REFIT_BUFFER_BYTES", "a number of bytes from 4k (4096) to 1T, with or without k, M, G",
     BYTES_LEAST},
    {"memory-ratio", "RAVEL_REFIT_BUFFER_MEMORY_RATIO",
     "a share of memory, of all buffers of a rank together, from 0.000001 to 0.5", RATIO_LEAST},
};

static double number_of(const ravel_refit_options *o, size_t row) {
    return row == 0 ? o->num_buffers : row == 1 ? (double)o->buffer_bytes : o->memory_ratio;
}

static ravel_status ask_environment(ravel_refit_options *o, ravel_error *err) {
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        const char *text = getenv(chosen[i].variable);
        double given = number_of(o, i);
        if (given != 0 && !(given >= chosen[i].least))
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is %g; allowed is %s, or 0", chosen[i].option, given,
                                   chosen[i].allowed);
        if (given != 0 || !text || !text[0]) continue;
        if (ravel_option_set(table, o, chosen[i].option, text, NULL) != RAVEL_OK ||
            !(number_of(o, i) >= chosen[i].least))
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is \"%.60s\"; allowed is %s", chosen[i].variable, text,
                                   chosen[i].allowed);
    }
    return RAVEL_OK;
}

ravel_status ravel__settings_take(const ravel_refit_options *options, int64_t memory, ravel__settings *settings,
                                  ravel_error *err) {
    ravel_refit_options o = *options;
    ravel_status status = ask_environment(&o, err);
    if (status != RAVEL_OK) return status;
    double ratio = o.memory_ratio > 0 ? o.memory_ratio : RATIO_DEFAULT;
    *settings = (ravel__settings){.num_buffers = o.num_buffers, .buffer_bytes = o.buffer_bytes};
    settings->by_ratio = o.memory_ratio > 0;
    settings->memory_bytes = (int64_t)((double)memory * ratio);
    settings->afford = settings->by_ratio ? settings->memory_bytes : (int64_t)((double)memory * RATIO_MOST);
    return RAVEL_OK;
}
