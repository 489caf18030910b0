/* The two human-readable lines.
 *
 *     log        iteration 12/100 | toks/s: 51234 | toks/s/gpu: 12808 | packing_eff: 97.3% | ... as Megatron writes it
 *     progress   12/100 ======------ 3m12s left | 51.2k tok/s | packing 97.3% | loss 1.234
 *
 * On a terminal the progress line is drawn over itself and cut to the width; elsewhere it is a plain line. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- the log line --------------------------------------------------------------------------------------- */

typedef enum print_style { WHOLE, SHARE, FIXED_1, FIXED_4, SHORT, POWER, MILLISECONDS, MEBIBYTES } print_style;

/* What is shown, in order. A row without a value is skipped. */
static const struct {
    const char *label;
    int32_t id;
    print_style style;
} shown[] = {
    {"consumed samples", RAVEL_METRIC_RUN_CONSUMED_SAMPLES, WHOLE},
    {"elapsed time per iteration (ms)", RAVEL_METRIC_TIME_UPDATE, MILLISECONDS},
    {"toks/s", RAVEL_METRIC_TOKENS_PER_SEC, WHOLE},
    {"toks/s/gpu", RAVEL_METRIC_TOKENS_PER_SEC_PER_GPU, WHOLE},
    {"compute_toks/s", RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC, WHOLE},
    {"compute_toks/s/gpu", RAVEL_METRIC_COMPUTE_TOKENS_PER_SEC_PER_GPU, WHOLE},
    {"actual_toks/s", RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC, WHOLE},
    {"actual_toks/s/gpu", RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC_PER_GPU, WHOLE},
    {"packing_eff", RAVEL_METRIC_PACKING_EFFICIENCY, SHARE},
    {"avg_seq_len", RAVEL_METRIC_AVG_SEQ_LENGTH, FIXED_1},
    {"throughput per GPU (TFLOP/s/GPU)", RAVEL_METRIC_TFLOPS_PER_GPU, FIXED_1},
    {"mfu", RAVEL_METRIC_MFU, SHARE},
    {"idle", RAVEL_METRIC_IDLE_SHARE, SHARE},
    {"loss", RAVEL_METRIC_TRAIN_LOSS, FIXED_4},
    {"token nll", RAVEL_METRIC_TRAIN_TOKEN_NLL, FIXED_4},
    {"eval loss", RAVEL_METRIC_EVAL_LOSS, FIXED_4},
    {"reward", RAVEL_METRIC_REWARD_MEAN, FIXED_4},
    {"response", RAVEL_METRIC_RESPONSE_LENGTH_MEAN, FIXED_1},
    {"ratio", RAVEL_METRIC_POLICY_RATIO_MEAN, FIXED_4},
    {"kl", RAVEL_METRIC_POLICY_APPROX_KL, POWER},
    {"token_mult_prob_error", RAVEL_METRIC_TOKEN_MULT_PROB_ERROR, FIXED_4},
    {"grad norm", RAVEL_METRIC_TRAIN_GRAD_NORM, SHORT},
    {"learning rate", RAVEL_METRIC_TRAIN_LEARNING_RATE, POWER},
    {"rss peak (MiB)", RAVEL_METRIC_MEMORY_RSS_PEAK, MEBIBYTES},
};

static void put_styled(ravel__text *t, print_style style, double x) {
    switch (style) {
    case WHOLE: ravel__text_printf(t, "%.0f", x); break;
    case SHARE: ravel__text_printf(t, "%.1f%%", 100 * x); break;
    case FIXED_1: ravel__text_printf(t, "%.1f", x); break;
    case FIXED_4: ravel__text_printf(t, "%.4f", x); break;
    case SHORT: ravel__text_printf(t, "%.4g", x); break;
    case POWER: ravel__text_printf(t, "%.3E", x); break;
    case MILLISECONDS: ravel__text_printf(t, "%.1f", 1e3 * x); break;
    case MEBIBYTES: ravel__text_printf(t, "%.0f", x / (1 << 20)); break;
    }
}

/* Without a seq_length, toks/s is already the actual rate: it is printed once. */
static int is_repeated(const ravel_metrics *m, int32_t id) {
    return !m->options.seq_length &&
           (id == RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC || id == RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC_PER_GPU);
}

static void put_line(const ravel_metrics *m, const ravel__snapshot *u, ravel__text *t) {
    ravel__text_printf(t, " iteration %lld", (long long)u->step);
    if (m->options.updates) ravel__text_printf(t, "/%lld", (long long)m->options.updates);
    ravel__text_puts(t, " |");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        int32_t id = shown[i].id;
        if (!ravel__shown(m, u, id) || is_repeated(m, id)) continue;
        ravel__text_printf(t, " %s: ", shown[i].label);
        put_styled(t, shown[i].style, ravel__real(m, u, id));
        ravel__text_puts(t, " |");
    }
}

size_t ravel_metrics_line(ravel_metrics *m, char *text, size_t bytes) {
    char line[2048];
    ravel__text t = ravel__text_begin(line, sizeof line - 1);
    pthread_mutex_lock(&m->lock);
    if (m->last.updates) put_line(m, &m->last, &t);
    pthread_mutex_unlock(&m->lock);
    RAVEL_ASSERT(t.used < sizeof line);
    line[t.used] = '\0';
    return (size_t)snprintf(text, bytes, "%s", line);
}

/* ---- the log sink --------------------------------------------------------------------------------------- */

typedef struct log_sink {
    ravel__sink sink;
    ravel__appender file; /* fd -1: to the logger */
    int terminal;
    int drawn;
    int64_t drawn_ns, begun_ns;
    int64_t first_step; /* steps before the first one that was shown */
    double pace;        /* seconds per update, smoothed */
} log_sink;

enum { LINE_BYTES = 4096 };

static ravel_status open_log(ravel__sink *sink, const char *target, ravel_error *err) {
    log_sink *s = (log_sink *)sink;
    s->file.fd = -1;
    ravel_status status = ravel__sink_room(sink, LINE_BYTES, err);
    if (status || !*target) return status;
    return ravel__appender_open(&s->file, target, -1, err);
}

static ravel_status write_log(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    log_sink *s = (log_sink *)sink;
    ravel__text t = ravel__text_begin(sink->text, sink->text_room - 1);
    put_line(sink->metrics, u, &t);
    RAVEL_ASSERT(t.used < sink->text_room);
    if (s->file.fd >= 0) {
        sink->text[t.used] = '\n';
        return ravel__appender_put(&s->file, t.data, t.used + 1, err);
    }
    sink->text[t.used] = '\0';
    ravel__log(sink->metrics->options.logger, RAVEL_LOG_INFO, "%s", t.data);
    return RAVEL_OK;
}

static void close_log(ravel__sink *sink) {
    ravel__appender_close(&((log_sink *)sink)->file);
}

/* ---- the progress sink ---------------------------------------------------------------------------------- */

static ravel_status open_progress(ravel__sink *sink, const char *target, ravel_error *err) {
    log_sink *s = (log_sink *)sink;
    s->file.fd = -1;
    ravel_status status = ravel__sink_room(sink, LINE_BYTES, err);
    if (!status) status = ravel__appender_open(&s->file, target, STDERR_FILENO, err);
    const char *term = getenv("TERM");
    s->terminal = !status && isatty(s->file.fd) && term && *term && strcmp(term, "dumb") != 0;
    return status;
}

static int columns(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void put_duration(ravel__text *t, double seconds) {
    long long s = (long long)(seconds + 0.5);
    if (s >= 86400)
        ravel__text_printf(t, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        ravel__text_printf(t, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        ravel__text_printf(t, "%lldm%02llds", s / 60, s % 60);
    else
        ravel__text_printf(t, "%llds", s);
}

static void put_rate(ravel__text *t, double x) {
    if (x >= 1e6)
        ravel__text_printf(t, "%.2fM", x / 1e6);
    else if (x >= 1e4)
        ravel__text_printf(t, "%.1fk", x / 1e3);
    else
        ravel__text_printf(t, "%.0f", x);
}

static void put_bar(ravel__text *t, double share, int width) {
    RAVEL_ASSERT(width > 0);
    int full = (int)(share * width);
    for (int i = 0; i < width; i++) ravel__text_puts(t, i < full ? "=" : "-");
}

/* Rows of the caller's that are a part of the reward: " (exact 0.5000, length 0.2500)". */
static void put_parts(ravel__text *t, const ravel_metrics *m, const ravel__snapshot *u) {
    static const char reward[] = "reward/";
    const char *before = " (";
    for (int32_t id = RAVEL_METRICS; id < m->rows; id++) {
        if (strncmp(m->row[id].name, reward, sizeof reward - 1) != 0 || !ravel__shown(m, u, id)) continue;
        ravel__text_printf(t, "%s%s %.4f", before, m->row[id].name + sizeof reward - 1, ravel__real(m, u, id));
        before = ", ";
    }
    if (*before == ',') ravel__text_puts(t, ")");
}

static void put_progress(const log_sink *s, const ravel__snapshot *u, ravel__text *t) {
    const ravel_metrics *m = s->sink.metrics;
    int64_t total = m->options.updates, left = total - u->step;
    ravel__text_printf(t, "%lld", (long long)u->step);
    if (total > 0) {
        ravel__text_printf(t, "/%lld ", (long long)total);
        if (s->terminal) put_bar(t, (double)u->step / (double)total, 16);
        ravel__text_puts(t, s->terminal ? " " : "| ");
        put_duration(t, left > 0 ? (double)left * s->pace : 0);
        ravel__text_puts(t, " left");
    }
    if (ravel__shown(m, u, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC)) {
        ravel__text_puts(t, " | ");
        put_rate(t, ravel__real(m, u, RAVEL_METRIC_ACTUAL_TOKENS_PER_SEC));
        ravel__text_puts(t, " tok/s");
    }
    if (ravel__shown(m, u, RAVEL_METRIC_PACKING_EFFICIENCY))
        ravel__text_printf(t, " | packing %.1f%%", 100 * ravel__real(m, u, RAVEL_METRIC_PACKING_EFFICIENCY));
    if (ravel__shown(m, u, RAVEL_METRIC_TRAIN_LOSS))
        ravel__text_printf(t, " | loss %.4f", ravel__real(m, u, RAVEL_METRIC_TRAIN_LOSS));
    if (ravel__shown(m, u, RAVEL_METRIC_REWARD_MEAN))
        ravel__text_printf(t, " | reward %.4f", ravel__real(m, u, RAVEL_METRIC_REWARD_MEAN));
    put_parts(t, m, u);
    if (ravel__shown(m, u, RAVEL_METRIC_REWARD_DROPPED) && ravel__real(m, u, RAVEL_METRIC_REWARD_DROPPED) > 0)
        ravel__text_printf(t, " | dropped %.1f%%", 100 * ravel__real(m, u, RAVEL_METRIC_REWARD_DROPPED));
}

/* Seconds per update, from end to end, so that the time between updates counts in the time left. */
static void keep_pace(log_sink *s, const ravel__snapshot *u, int64_t now) {
    if (s->begun_ns == 0) {
        s->pace = ravel__real(s->sink.metrics, u, RAVEL_METRIC_TIME_UPDATE);
    } else {
        double steps = (double)(u->step > s->first_step ? u->step - s->first_step : 1);
        double took = (double)(now - s->begun_ns) * 1e-9 / steps;
        s->pace += (took - s->pace) * 0.2;
    }
    RAVEL_ASSERT(now >= s->begun_ns);
    s->begun_ns = now;
    s->first_step = u->step;
}

static ravel_status write_progress(ravel__sink *sink, const ravel__snapshot *u, ravel_error *err) {
    log_sink *s = (log_sink *)sink;
    if (!ravel__shown(sink->metrics, u, RAVEL_METRIC_TIME_UPDATE)) return RAVEL_OK; /* no update */
    int64_t now = ravel__clock_ns();
    keep_pace(s, u, now);
    int last = sink->metrics->options.updates && u->step >= sink->metrics->options.updates;
    if (s->terminal && s->drawn && !last && now - s->drawn_ns < 50000000) return RAVEL_OK;
    ravel__text t = ravel__text_begin(sink->text, sink->text_room);
    if (s->terminal) ravel__text_puts(&t, "\r\033[K");
    size_t start = t.used;
    if (!s->terminal) ravel__text_puts(&t, "update ");
    put_progress(s, u, &t);
    if (!s->terminal) ravel__text_puts(&t, "\n");
    size_t width = s->terminal ? (size_t)columns(s->file.fd) : t.used;
    if (s->terminal && t.used - start >= width) t.used = start + width - 1; /* a full line would wrap */
    RAVEL_ASSERT(t.used >= start && width >= 1);
    s->drawn = 1;
    s->drawn_ns = now;
    return ravel__appender_put(&s->file, t.data, t.used, err);
}

static void close_progress(ravel__sink *sink) {
    log_sink *s = (log_sink *)sink;
    if (s->terminal && s->drawn) (void)ravel__write_all(s->file.fd, "\n", 1, NULL);
    ravel__appender_close(&s->file);
}

const ravel__sink_type ravel__sink_log = {"log", 0, sizeof(log_sink), open_log, write_log, close_log};
const ravel__sink_type ravel__sink_progress = {"progress",    0, sizeof(log_sink), open_progress, write_progress,
                                               close_progress};
