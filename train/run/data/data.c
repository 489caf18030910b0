#include "train/run/data/data.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/rl/problems.h"
#include "base/log.h"

#include <ravel/exchange.h>
#include <ravel/order.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ravel_status train_progress_tell(const train_progress *progress, const char *what, double done, double total,
                                 ravel_error *err) {
    if (progress && progress->call) progress->call(progress->user, what, done, total);
    if (!progress || !progress->stop || !*progress->stop) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while %s", what);
}

/* ---- the rows ------------------------------------------------------------------------------------------- */

/* The findings of one rank in its part of the rows. Plain numbers and text, so that it can be sent as bytes. */
typedef struct part {
    train_data_found found;
    train_problems problems; /* that end the run */
    train_problems left_out; /* bad rows that are skipped */
    char inserted[64];       /* the first such text */
} part;

typedef struct check {
    const train_data_rules *rules;
    ravel_source *source;
    ravel_reader *reader;
    part *part;
} check;

/* A sample, or both of a pair. */
static void one_sample(check *c, int64_t row, const ravel_ragged *r, int64_t first, int64_t end) {
    const ravel_plan_options *plan = c->rules->plan;
    train_data_found *f = &c->part->found;
    const uint8_t *mask = r->fields[1].data;
    int32_t ranks = c->rules->widest > 1 ? c->rules->widest : 1;
    int64_t length = 0, slot = 0, loss = 0, most = plan->budget * ranks;
    RAVEL_ASSERT(first < end && end <= r->count && r->field_count > 1 && most > 0);
    for (int64_t i = first; i < end; i++) {
        int64_t tokens = r->offsets[i + 1] - r->offsets[i];
        for (int64_t t = 1; t < tokens; t++) loss += mask[r->offsets[i] + t] != 0;
        f->sequence = train__max(f->sequence, tokens);
        slot += ravel_plan_slot(plan, tokens, plan->cp_pool ? ranks : 0);
        length += tokens;
    }
    f->samples++;
    f->longest = train__max(f->longest, length);
    if (slot > most) {
        f->oversize++;
        if (plan->oversize == RAVEL_OVERSIZE_SKIP) return;
    }
    if (slot > most && plan->oversize == RAVEL_OVERSIZE_ERROR) {
        char where[TRAIN_PROBLEM_BYTES];
        ravel_error err = RAVEL_ERROR_INIT;
        (void)ravel_source_where(c->source, row, where, sizeof where);
        ravel_error_set(&err, RAVEL_E_OVERSIZE, "%.100s: %lld tokens; the budget is %lld", where, (long long)slot,
                        (long long)most);
        train_problems_add(&c->part->problems, &err);
        return;
    }
    f->tokens += length;
    f->loss_tokens += loss;
    f->lossless += loss == 0;
    RAVEL_ASSERT(f->loss_tokens <= f->tokens && f->lossless <= f->samples);
}

static ravel_status one_row(check *c, int64_t row, ravel_error *err) {
    const ravel_samples *samples;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel_reader_read(c->reader, &row, 1, &samples, &why);
    c->part->found.rows++;
    if (status == RAVEL_E_DATA) {
        c->part->found.bad++;
        train_problems_add(c->rules->source->bad_rows == RAVEL_BAD_ROWS_SKIP ? &c->part->left_out : &c->part->problems,
                           &why);
        return RAVEL_OK;
    }
    if (status) return ravel_error_set(err, status, "%s", why.message);
    if (samples->inserted && !c->part->found.inserted)
        (void)snprintf(c->part->inserted, sizeof c->part->inserted, "%s", samples->inserted_text);
    c->part->found.inserted += samples->inserted;
    int64_t step = c->rules->pairs ? 2 : 1; /* rows are pairs, or have no samples */
    for (int64_t i = 0; i < samples->ragged.count; i += step) one_sample(c, row, &samples->ragged, i, i + step);
    return RAVEL_OK;
}

static ravel_status check_part(check *c, ravel_comm *comm, const train_progress *progress, ravel_error *err) {
    ravel_source_options options = *c->rules->source;
    char what[128];
    options.bad_rows = RAVEL_BAD_ROWS_ERROR;
    train_rows_options rows_options = {.source = &options, .pairs = c->rules->pairs};
    ravel_status status = train_rows_open(&rows_options, TRAIN_ROWS_ALL, &c->source, err);
    if (!status) status = ravel_reader_create(c->source, NULL, NULL, &c->reader, err);
    int64_t rows = status ? 0 : ravel_source_count(c->source);
    if (c->rules->most > 0) rows = train__min(rows, c->rules->most);
    int32_t size = ravel_comm_size(comm), rank = ravel_comm_rank(comm);
    int64_t from = ravel_share(rows, size, rank), to = ravel_share(rows, size, rank + 1);
    RAVEL_ASSERT(from >= 0 && from <= to && to <= rows);
    (void)snprintf(what, sizeof what, "checking %.100s", options.data ? options.data : "mock data");
    for (int64_t row = from; row < to && !status; row++) {
        status = one_row(c, row, err);
        if (row % 256 == 0 && rank == 0 && !status)
            status = train_progress_tell(progress, what, (double)(row - from), (double)(to - from), err);
    }
    ravel_reader_free(c->reader);
    ravel_source_free(c->source);
    return status;
}

static void add_found(train_data_found *sum, const train_data_found *x) {
    int64_t longest = train__max(sum->longest, x->longest), sequence = train__max(sum->sequence, x->sequence);
    RAVEL_ASSERT(sum != x && x->rows >= 0 && x->loss_tokens <= x->tokens);
    _Static_assert(sizeof *x % sizeof(int64_t) == 0, "counts alone");
    for (size_t i = 0; i < sizeof *x / sizeof(int64_t); i++)
        ((int64_t *)(void *)sum)[i] += ((const int64_t *)(const void *)x)[i];
    sum->longest = longest;
    sum->sequence = sequence;
}

/* Text of a chat template that no message has, as one line. */
static void log_inserted(const part *sum, const ravel_logger *logger) {
    char text[2 * sizeof sum->inserted];
    size_t n = 0;
    for (const char *c = sum->inserted; *c; c++) {
        if (*c == '\n') text[n++] = '\\';
        text[n++] = *c == '\n' ? 'n' : *c;
    }
    text[n] = '\0';
    ravel__log(logger, RAVEL_LOG_INFO,
               "the chat template puts text of its own before %lld answer%s, as \"%s\"; it is trained on",
               (long long)sum->found.inserted, sum->found.inserted == 1 ? "" : "s", text);
}

static ravel_status refuse(const train_data_rules *rules, const char *name, const part *sum, ravel_error *err) {
    const train_data_found *f = &sum->found;
    char list[760], bad[80] = "", over[160] = "";
    RAVEL_ASSERT(sum->problems.count > 0);
    (void)train_problems_text(&sum->problems, list, sizeof list);
    if (f->bad && rules->source->bad_rows != RAVEL_BAD_ROWS_SKIP)
        (void)snprintf(bad, sizeof bad, "; %lld bad row%s (--bad-rows skip leaves %s out)", (long long)f->bad,
                       f->bad == 1 ? "" : "s", f->bad == 1 ? "it" : "them");
    if (f->oversize && rules->plan->oversize == RAVEL_OVERSIZE_ERROR)
        (void)snprintf(over, sizeof over,
                       "; %lld sample%s over the budget, the longest has %lld tokens (--budget, --truncate, "
                       "--oversize skip or alone)",
                       (long long)f->oversize, f->oversize == 1 ? "" : "s", (long long)f->longest);
    return ravel_error_set(err, f->bad ? RAVEL_E_DATA : RAVEL_E_OVERSIZE, "%s cannot be used as it is%s%s:%s", name,
                           bad, over, list);
}

/* Logs what is skipped by choice; E_DATA if no remaining token has a loss. */
static ravel_status judge(const train_data_rules *rules, const part *sum, const ravel_logger *logger,
                          ravel_error *err) {
    const train_data_found *f = &sum->found;
    const char *name = rules->source->data ? rules->source->data : "mock data";
    char list[760] = "";
    if (sum->problems.count > 0) return refuse(rules, name, sum, err);
    ravel__log(logger, RAVEL_LOG_INFO,
               "%.200s: %lld rows, %lld samples of up to %lld tokens; %lld tokens, %lld with a loss", name,
               (long long)f->rows, (long long)f->samples, (long long)f->longest, (long long)f->tokens,
               (long long)f->loss_tokens);
    if (f->inserted) log_inserted(sum, logger);
    (void)train_problems_text(&sum->left_out, list, sizeof list);
    if (f->bad)
        ravel__log(logger, RAVEL_LOG_WARN, "%lld bad row%s skipped:%s", (long long)f->bad,
                   f->bad == 1 ? " is" : "s are", list);
    if (f->oversize)
        ravel__log(logger, RAVEL_LOG_WARN, "%lld sample%s over the budget %s", (long long)f->oversize,
                   f->oversize == 1 ? "" : "s",
                   rules->plan->oversize != RAVEL_OVERSIZE_SKIP
                       ? f->oversize == 1 ? "runs in a micro-batch of its own" : "run in micro-batches of their own"
                   : f->oversize == 1 ? "is skipped"
                                      : "are skipped");
    if (f->loss_tokens == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "%s has nothing to learn: no token of its %lld samples has a loss%s",
                               name, (long long)f->samples, rules->source->truncate ? " after --truncate" : "");
    if (f->lossless)
        ravel__log(logger, RAVEL_LOG_WARN, "%lld of %lld samples have no token to learn", (long long)f->lossless,
                   (long long)f->samples);
    return RAVEL_OK;
}

void train_data_warn_long(const ravel_shape *shape, int64_t longest, const ravel_logger *logger) {
    if (shape->max_positions <= 0 || longest <= shape->max_positions) return;
    ravel__log(logger, RAVEL_LOG_WARN,
               "sequences have up to %lld tokens, and the model is made for %lld (max_position_embeddings): --truncate "
               "%lld cuts them",
               (long long)longest, (long long)shape->max_positions, (long long)shape->max_positions);
}

ravel_status train_data_check(const train_data_rules *rules, ravel_comm *comm, const train_progress *progress,
                              const ravel_logger *logger, train_data_found *found, ravel_error *err) {
    int32_t ranks = ravel_comm_size(comm), rank = ravel_comm_rank(comm);
    part *parts = calloc((size_t)ranks + 1, sizeof *parts), *own = parts ? parts + ranks : NULL;
    RAVEL_ASSERT(rank >= 0 && rank < ranks);
    check c = {.rules = rules, .part = own};
    ravel_status status = parts ? check_part(&c, comm, progress, err)
                                : ravel__no_memory(err, ((size_t)ranks + 1) * sizeof *parts, "checking data");
    status = ravel_agree(comm, status, err);
    if (status || !parts) { /* agreed: without memory here, no rank goes on */
        free(parts);
        return status;
    }
    status = ravel_comm_allgather(comm, own, parts, sizeof *own, RAVEL_U8, err);
    for (int32_t r = 1; r < ranks && !status; r++) {
        if (!parts[0].found.inserted) memcpy(parts[0].inserted, parts[r].inserted, sizeof parts[r].inserted);
        add_found(&parts[0].found, &parts[r].found);
        train_problems_merge(&parts[0].problems, &parts[r].problems);
        train_problems_merge(&parts[0].left_out, &parts[r].left_out);
    }
    if (!status) status = judge(rules, &parts[0], rank == 0 ? logger : NULL, err);
    if (!status) *found = parts[0].found;
    free(parts);
    return status;
}
