#include "train/run/data.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/rl/problems.h"
#include "train/model/files.h"
#include "train/run/log.h"

#include <ravel/exchange.h>
#include <ravel/order.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* E_STATE where the user wants to stop. */
static ravel_status tell(const train_progress *progress, const char *what, double done, double total,
                         ravel_error *err) {
    if (progress && progress->call) progress->call(progress->user, what, done, total);
    if (!progress || !progress->stop || !*progress->stop) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while %s; nothing had been learnt yet", what);
}

/* ---- the file ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const unsigned char *data, size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    for (; bytes > 0; data++, bytes--) h = (h ^ *data) * UINT64_C(0x100000001b3);
    return h;
}

static ravel_status digest(FILE *f, const train_progress *progress, train_data_file *file, ravel_error *err) {
    enum { CHUNK = 1 << 20 };
    char what[128];
    unsigned char *buffer = malloc(CHUNK);
    TRAIN_ASSERT(file->path && file->bytes >= 0);
    if (!buffer) return train__no_memory(err, CHUNK, "reading a file");
    (void)snprintf(what, sizeof what, "reading %.100s", file->path);
    file->digest = UINT64_C(0x726176656c);
    int64_t done = 0;
    ravel_status status = RAVEL_OK;
    for (size_t got; !status && !feof(f) && !ferror(f) && (got = fread(buffer, 1, CHUNK, f)) > 0;
         done += (int64_t)got) {
        file->digest = mix(file->digest, buffer, got);
        status = tell(progress, what, (double)done, (double)file->bytes, err);
    }
    file->digest >>= 1; /* JSON readers take integers below 2^63 */
    TRAIN_ASSERT(done >= 0);
    free(buffer);
    return !status && ferror(f) ? train_file_error(err, "read", file->path) : status;
}

static void note(const struct stat *s, train_data_file *file) {
    file->bytes = (int64_t)s->st_size;
    file->inode = (int64_t)s->st_ino;
    file->modified_ns = (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec;
}

static ravel_status open_file(const char *path, const train_progress *progress, train_data_file *file,
                              ravel_error *err) {
    struct stat s;
    FILE *f = fopen(path, "rb");
    if (!f) return train_file_error(err, "read", path);
    ravel_status status = RAVEL_OK;
    file->path = path;
    if (fstat(fileno(f), &s) != 0)
        status = train_file_error(err, "read", path);
    else if (!S_ISREG(s.st_mode))
        status = ravel_error_set(err, RAVEL_E_DATA, "%s is not a regular file; rows are read more than once", path);
    else
        note(&s, file);
    if (!status) status = digest(f, progress, file, err);
    (void)fclose(f);
    return status;
}

ravel_status train_data_open(const char *path, ravel_comm *comm, const train_progress *progress, train_data_file *file,
                             ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *file = (train_data_file){0};
    if (!path) return RAVEL_OK;
    if (ravel_comm_rank(comm) == 0) status = open_file(path, progress, file, err);
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_comm_broadcast(comm, file, sizeof *file, RAVEL_U8, 0, err);
    file->path = path;
    return status;
}

int train_data_changed(const train_data_file *file) {
    struct stat s;
    train_data_file now = *file;
    TRAIN_ASSERT(!file->path || file->bytes >= 0);
    if (!file->path) return 0;
    if (stat(file->path, &s) != 0) return 1;
    note(&s, &now);
    return now.bytes != file->bytes || now.inode != file->inode || now.modified_ns != file->modified_ns;
}

ravel_status train_data_source(const ravel_source_options *options, int pairs, ravel_source **source,
                               ravel_error *err) {
    ravel_source *inner = NULL;
    ravel_status status = ravel_source_open(options, &inner, err);
    if (status) return status;
    if (pairs) return train_pair_source(inner, source, err);
    *source = inner;
    return RAVEL_OK;
}

/* ---- the rows ------------------------------------------------------------------------------------------- */

/* The findings of one rank in its part of the rows. Plain numbers and text, so that it can be sent as bytes. */
typedef struct part {
    train_data_found found;
    train_problems problems; /* that end the run */
    train_problems left_out; /* bad rows that are skipped */
} part;

typedef struct check {
    const train_data_rules *rules;
    ravel_source *source;
    ravel_reader *reader;
    part *part;
} check;

static void one_sample(check *c, int64_t row, const ravel_samples *samples, int64_t i) {
    const ravel_plan_options *plan = c->rules->plan;
    train_data_found *f = &c->part->found;
    int64_t from = samples->ragged.offsets[i], length = samples->ragged.offsets[i + 1] - from, loss = 0;
    TRAIN_ASSERT(length >= 0 && i < samples->ragged.count && samples->ragged.field_count > 1);
    int32_t ranks = c->rules->widest > 1 ? c->rules->widest : 1;
    int64_t slot = ravel_plan_slot(plan, length, plan->cp_pool ? ranks : 0), most = plan->budget * ranks;
    TRAIN_ASSERT(slot >= length && most > 0);
    const uint8_t *mask = samples->ragged.fields[1].data;
    for (int64_t t = 1; t < length; t++) loss += mask[from + t] != 0;
    f->samples++;
    f->longest = train__max(f->longest, length);
    if (slot > most) {
        char where[TRAIN_PROBLEM_BYTES];
        ravel_error err = RAVEL_ERROR_INIT;
        f->oversize++;
        if (plan->oversize == RAVEL_OVERSIZE_SKIP) return;
        (void)ravel_source_where(c->source, row, where, sizeof where);
        ravel_error_set(&err, RAVEL_E_OVERSIZE, "%.100s: %lld tokens; the budget is %lld", where, (long long)slot,
                        (long long)most);
        train_problems_add(&c->part->problems, &err);
        return;
    }
    f->tokens += length;
    f->loss_tokens += loss;
    f->lossless += loss == 0;
    TRAIN_ASSERT(f->loss_tokens <= f->tokens && f->lossless <= f->samples);
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
    for (int64_t i = 0; i < samples->ragged.count; i++) one_sample(c, row, samples, i);
    return RAVEL_OK;
}

static ravel_status check_part(check *c, ravel_comm *comm, const train_progress *progress, ravel_error *err) {
    ravel_source_options options = *c->rules->source;
    char what[128];
    options.bad_rows = RAVEL_BAD_ROWS_ERROR;
    ravel_status status = train_data_source(&options, c->rules->pairs, &c->source, err);
    if (!status) status = ravel_reader_create(c->source, NULL, NULL, &c->reader, err);
    int64_t rows = status ? 0 : ravel_source_count(c->source);
    if (c->rules->most > 0) rows = train__min(rows, c->rules->most);
    int32_t size = ravel_comm_size(comm), rank = ravel_comm_rank(comm);
    int64_t from = ravel_share(rows, size, rank), to = ravel_share(rows, size, rank + 1);
    TRAIN_ASSERT(from >= 0 && from <= to && to <= rows);
    (void)snprintf(what, sizeof what, "checking %.100s", options.data ? options.data : "mock data");
    for (int64_t row = from; row < to && !status; row++) {
        status = one_row(c, row, err);
        if (row % 256 == 0 && rank == 0 && !status)
            status = tell(progress, what, (double)(row - from), (double)(to - from), err);
    }
    ravel_reader_free(c->reader);
    ravel_source_free(c->source);
    return status;
}

static void add_found(train_data_found *sum, const train_data_found *x) {
    int64_t longest = train__max(sum->longest, x->longest);
    TRAIN_ASSERT(sum != x && x->rows >= 0 && x->loss_tokens <= x->tokens);
    _Static_assert(sizeof *x % sizeof(int64_t) == 0, "counts alone");
    for (size_t i = 0; i < sizeof *x / sizeof(int64_t); i++)
        ((int64_t *)(void *)sum)[i] += ((const int64_t *)(const void *)x)[i];
    sum->longest = longest;
}

static ravel_status refuse(const train_data_rules *rules, const char *name, const part *sum, ravel_error *err) {
    const train_data_found *f = &sum->found;
    char list[900], bad[80] = "", over[160] = "";
    TRAIN_ASSERT(sum->problems.count > 0);
    (void)train_problems_text(&sum->problems, list, sizeof list);
    if (f->bad && rules->source->bad_rows != RAVEL_BAD_ROWS_SKIP)
        (void)snprintf(bad, sizeof bad, "; %lld bad rows (--bad-rows skip leaves them out)", (long long)f->bad);
    if (f->oversize && rules->plan->oversize != RAVEL_OVERSIZE_SKIP)
        (void)snprintf(over, sizeof over,
                       "; %lld samples over the budget, the longest has %lld tokens (--budget, --truncate, "
                       "--oversize skip)",
                       (long long)f->oversize, (long long)f->longest);
    return ravel_error_set(err, f->bad ? RAVEL_E_DATA : RAVEL_E_OVERSIZE, "%s cannot be used as it is%s%s:%s", name,
                           bad, over, list);
}

/* Logs what is skipped by choice; E_DATA where no remaining token has a loss. */
static ravel_status judge(const train_data_rules *rules, const part *sum, const ravel_logger *logger,
                          ravel_error *err) {
    const train_data_found *f = &sum->found;
    const char *name = rules->source->data ? rules->source->data : "mock data";
    char list[900] = "";
    if (sum->problems.count > 0) return refuse(rules, name, sum, err);
    train_log(logger, RAVEL_LOG_INFO,
              "%.200s: %lld rows, %lld samples of up to %lld tokens; %lld tokens, %lld with a loss", name,
              (long long)f->rows, (long long)f->samples, (long long)f->longest, (long long)f->tokens,
              (long long)f->loss_tokens);
    (void)train_problems_text(&sum->left_out, list, sizeof list);
    if (f->bad) train_log(logger, RAVEL_LOG_WARN, "%lld bad rows are skipped:%s", (long long)f->bad, list);
    if (f->oversize)
        train_log(logger, RAVEL_LOG_WARN, "%lld samples over the budget are skipped", (long long)f->oversize);
    if (f->loss_tokens == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "%s has nothing to learn: no token of its %lld samples has a loss%s",
                               name, (long long)f->samples, rules->source->truncate ? " after --truncate" : "");
    if (f->lossless)
        train_log(logger, RAVEL_LOG_WARN, "%lld of %lld samples have no token to learn", (long long)f->lossless,
                  (long long)f->samples);
    return RAVEL_OK;
}

ravel_status train_data_check(const train_data_rules *rules, ravel_comm *comm, const train_progress *progress,
                              const ravel_logger *logger, train_data_found *found, ravel_error *err) {
    int32_t ranks = ravel_comm_size(comm), rank = ravel_comm_rank(comm);
    part *parts = calloc((size_t)ranks + 1, sizeof *parts), *own = parts ? parts + ranks : NULL;
    TRAIN_ASSERT(rank >= 0 && rank < ranks);
    check c = {.rules = rules, .part = own};
    ravel_status status = parts ? check_part(&c, comm, progress, err)
                                : train__no_memory(err, ((size_t)ranks + 1) * sizeof *parts, "checking data");
    status = ravel_agree(comm, status, err);
    if (status || !parts) { /* agreed: without memory here, no rank goes on */
        free(parts);
        return status;
    }
    status = ravel_comm_allgather(comm, own, parts, sizeof *own, RAVEL_U8, err);
    for (int32_t r = 1; r < ranks && !status; r++) {
        add_found(&parts[0].found, &parts[r].found);
        train_problems_merge(&parts[0].problems, &parts[r].problems);
        train_problems_merge(&parts[0].left_out, &parts[r].left_out);
    }
    if (!status) status = judge(rules, &parts[0], rank == 0 ? logger : NULL, err);
    if (!status) *found = parts[0].found;
    free(parts);
    return status;
}
