/* ravel refit: streams a checkpoint from sender ranks to receiver ranks and compares what arrived. */
#include "cli/refit/refit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(...) RAVEL__ROW(refit_flags, __VA_ARGS__)
static const ravel_option own_table[] = {
    ROW("from", STRING, from, NULL, 0, 0, "FILE",
        "checkpoint: a .safetensors file, an index of shards, or a folder with them"),
    ROW("to", STRING, to, NULL, 0, 0, "FILE", "write what the first receiver got, as safetensors"),
    ROW("ranks", I32, ranks, "3", 2, 512, NULL, "senders and receivers in this process; under mpirun: not used"),
    ROW("senders", I32, senders, "1", 1, 511, NULL, "ranks that send; the others receive"),
    ROW("send-tp", I32, send_tp, "0", 0, 511, NULL, "tensor parallelism of the senders; 0: the number of senders"),
    ROW("receive-tp", I32, receive_tp, "1", 1, 511, NULL, "tensor parallelism of the receivers"),
    ROW("dtype", STRING, dtype, NULL, 0, 0, "DTYPE", "dtype of the receivers (bf16, f16, f32); without it the file's"),
    ROW("updates", I32, updates, "1", 1, 1000000, NULL, "versions to send, one after the other"),
    ROW("json", STRING, json, NULL, 0, 0, "FILE", "write the reports as JSON; - is standard output"),
    ROW("trace", STRING, trace, NULL, 0, 0, "FILE", "write the last update's events for chrome://tracing or Perfetto"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only errors"),
    {0}};

enum { SETS = 3, ROWS = 32 };

static int help(const cli_options *sets) {
    (void)fputs("usage: ravel refit --from FILE [--to FILE] [--ranks N] [options]\n"
                "       mpirun -n N ravel refit ...\n"
                "       ravel refit --publish ADDRESS | --pull ADDRESS ...     (see --publish --help, --pull --help)\n"
                "\n"
                "Moves weights from sender ranks to receiver ranks through a few buffers, as a trainer hands a new\n"
                "version to its generators; compares every element that arrived with the file, and reports what\n"
                "had to move, how fast it was and how much of the work overlapped.\n",
                stdout);
    cli_print_options(sets, SETS);
    (void)fputs("\nExamples:\n"
                "  ravel refit --from model.safetensors --to out.safetensors --ranks 3\n"
                "  ravel refit --from model/ --ranks 6 --senders 4 --receive-tp 2 --dtype bf16\n"
                "  ravel refit --from model.safetensors --updates 3 --delta --json -\n"
                "  mpirun -n 5 ravel refit --from model/ --senders 2 --trace refit.json\n"
                "\nExit codes: 0 done and equal, 1 a difference, bad data or a lost rank, 2 the command line is wrong. "
                "See also\nravel-refit(1).\n",
                stdout);
    return CLI_OK;
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

typedef struct rank_work {
    refit_job *job;
    refit_set set;
    refit_place place;
    ravel_comm *comm;
    int32_t rank;
    ravel_refit *refit;
} rank_work;

static void show_progress(void *user, int64_t done, int64_t total) {
    (void)user;
    cli_progress("refit", (double)done, (double)total);
}

static ravel_status create(rank_work *w, ravel_error *err) {
    refit_job *job = w->job;
    ravel_refit_options o = job->options;
    ravel_refit_source source = {.size = sizeof source, .tensors = w->set.tensors, .count = w->set.count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = w->set.tensors, .count = w->set.count};
    o.trace = job->flags.trace != NULL;
    if (job->dtype >= 0) o.cast = RAVEL_REFIT_NARROW;
    if (w->rank == 0 && !job->flags.quiet) o.progress = show_progress; /* by the rank that also prints */
    return ravel_refit_create(w->comm, w->place.side ? NULL : &source, w->place.side ? &sink : NULL, &o, &w->refit,
                              err);
}

/* The receivers' pieces put together again on the first of them: a refit the other way round. */
static ravel_status gather_whole(rank_work *w, refit_set *whole, ravel_error *err) {
    refit_job *job = w->job;
    int first = w->rank == job->flags.senders, sends = w->place.side && w->place.replica == 0;
    RAVEL_ASSERT(!first || w->place.side);
    refit_set pieces = w->set;
    ravel_status status = RAVEL_OK;
    /* The live set may be the second one. */
    pieces.tensors = malloc(((size_t)w->set.count + 1) * sizeof *pieces.tensors);
    if (!pieces.tensors) {
        ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
        ravel_comm_abort(w->comm, err);
        return RAVEL_E_MEMORY;
    }
    if (first) status = refit_set_like_file(job->file, job->dtype, 1, 0, 0, whole, err);
    for (int64_t i = 0; i < w->set.count && w->set.tensors && sends && status == RAVEL_OK; i++) {
        pieces.tensors[i] = w->set.tensors[i];
        pieces.tensors[i].data = ravel_refit_data(w->refit, i);
    }
    ravel_refit_source source = {.size = sizeof source, .tensors = pieces.tensors, .count = pieces.count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = whole->tensors, .count = whole->count};
    /* A rank that failed above takes part with nothing, and so fails all of them. */
    if (status == RAVEL_OK)
        status = ravel_refit_run(w->comm, sends ? &source : NULL, first ? &sink : NULL, NULL, 1, NULL, err);
    else
        ravel_comm_abort(w->comm, err);
    free(pieces.tensors);
    return status;
}

static ravel_status write_result(rank_work *w, ravel_error *err) {
    refit_set whole = {0};
    ravel_status status = gather_whole(w, &whole, err);
    if (status == RAVEL_OK && w->rank == w->job->flags.senders)
        status = refit_set_write(&whole, w->job->file, w->job->flags.to, err);
    refit_set_free(&whole);
    if (status != RAVEL_OK) {
        ravel_comm_abort(w->comm, err);
        return status;
    }
    return ravel_comm_barrier(w->comm, err); /* no rank reports it as written before it is */
}

static ravel_status run_updates(rank_work *w, ravel_refit_report *reports, ravel_error *err) {
    refit_job *job = w->job;
    int32_t count = job->flags.updates, tells = w->rank == 0 && !job->flags.quiet && !job->to_stdout;
    ravel_status status = RAVEL_OK;
    for (int32_t v = 1; v <= count && status == RAVEL_OK; v++) {
        reports[v - 1].size = sizeof *reports;
        status = ravel_refit_update(w->refit, v, &reports[v - 1], err);
        if (w->rank == 0 && !job->flags.quiet) cli_progress_end();
        if (status == RAVEL_OK && tells) refit_print_report(&reports[v - 1], v);
    }
    return status;
}

static const void *live_data(const void *refit, int64_t tensor) {
    return ravel_refit_data(refit, tensor);
}

/* Every receiver compares; how many did. */
static ravel_status compare(rank_work *w, int64_t *compared, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *compared = w->place.side;
    if (w->place.side) status = refit_set_compare(&w->set, live_data, w->refit, w->job->file, err);
    if (status != RAVEL_OK) {
        ravel_comm_abort(w->comm, err);
        return status;
    }
    return ravel_comm_allreduce(w->comm, compared, compared, 1, RAVEL_I64, RAVEL_SUM, err);
}

static void describe(const refit_job *job, const ravel_comm *comm) {
    char bytes[24];
    double total = 0;
    for (int64_t i = 0; i < ravel_safetensors_count(job->file); i++)
        total += (double)ravel_safetensors_at(job->file, i)->bytes;
    refit_print_bytes(total, bytes, sizeof bytes);
    printf("%s: %lld tensors, %s; %d sender%s (tp %d), %d receiver%s (tp %d), %s\n", job->flags.from,
           (long long)ravel_safetensors_count(job->file), bytes, job->flags.senders, job->flags.senders == 1 ? "" : "s",
           job->flags.send_tp, job->receivers, job->receivers == 1 ? "" : "s", job->flags.receive_tp,
           strcmp(ravel_comm_kind(comm), "threads") == 0 ? "threads of this process" : "processes");
}

static ravel_status work(rank_work *w, ravel_error *err) {
    refit_job *job = w->job;
    const refit_flags *f = &job->flags;
    int spare = f->updates > 1 && job->options.stage == RAVEL_REFIT_SPARE;
    RAVEL_ASSERT(f->updates > 0 && job->file);
    int64_t compared = 0;
    ravel_refit_report *reports = calloc((size_t)f->updates, sizeof *reports);
    if (!reports) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    ravel_status status =
        w->place.side ? refit_set_like_file(job->file, job->dtype, w->place.tp, w->place.index, spare, &w->set, err)
                      : refit_set_of_file(job->file, w->place.tp, w->place.index, &w->set, err);
    if (status != RAVEL_OK) ravel_comm_abort(w->comm, err);
    int tells = w->rank == 0 && !f->quiet && !job->to_stdout;
    if (status == RAVEL_OK) status = create(w, err);
    if (status == RAVEL_OK && tells) describe(job, w->comm);
    if (status == RAVEL_OK) status = run_updates(w, reports, err);
    if (status == RAVEL_OK) status = compare(w, &compared, err);
    if (status == RAVEL_OK && tells)
        printf("%lld receiver%s compared with the file: equal\n", (long long)compared, compared == 1 ? "" : "s");
    if (status == RAVEL_OK && f->to) status = write_result(w, err);
    if (status == RAVEL_OK && f->to && tells) printf("%s written\n", f->to);
    if (status == RAVEL_OK && f->trace) status = refit_write_trace(w->comm, w->refit, f->trace, err);
    if (status == RAVEL_OK && f->json && w->rank == 0)
        status = cli_output_print(f->json, refit_print_json, &(const refit_result){job, reports, compared}, err);
    free(reports);
    return status;
}

static ravel_status rank_body(ravel_comm *comm, void *user, ravel_error *err) {
    rank_work w = {.job = user, .comm = comm, .rank = ravel_comm_rank(comm)};
    w.place = refit_place_of(w.job, w.rank);
    RAVEL_ASSERT(w.place.index < w.place.tp);
    ravel_status status = work(&w, err);
    ravel_refit_free(w.refit);
    refit_set_free(&w.set);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------------------- */

static ravel_status check_flags(refit_job *job, int words, const char *word, ravel_error *err) {
    const refit_flags *f = &job->flags;
    if (words) return CLI_REFUSE(err, "\"%.60s\" is not an option; see --help", word);
    if (!f->from) return CLI_REFUSE(err, "give --from FILE: the weights to send");
    job->dtype = -1;
    ravel_status status = refit_from(&job->flags.from, err);
    if (!status) status = cli_claim_input("from", f->from, err);
    if (!status) status = cli_claim_output("to", f->to, err);
    if (!status) status = cli_claim_output("json", f->json, err);
    if (!status) status = cli_claim_output("trace", f->trace, err);
    if (status || !f->dtype) return status;
    status = ravel_dtype_parse(f->dtype, &job->dtype, err);
    if (status != RAVEL_OK) return status;
    if (ravel_dtype_kind(job->dtype) == 'f' && ravel_dtype_bytes(job->dtype) >= 2) return RAVEL_OK;
    return CLI_REFUSE(err, "--dtype %s: weights can be cast to f64, f32, bf16 and f16", f->dtype);
}

static int run_file(refit_job *job, int processes) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_safetensors *file = NULL;
    ravel_comm *comm = NULL;
    ravel_status status = ravel_safetensors_open(job->flags.from, NULL, &file, &err);
    job->file = file;
    int32_t ranks = job->flags.ranks;
    if (status == RAVEL_OK && processes) status = ravel_comm_open("auto", &job->comm, &comm, &err);
    if (status == RAVEL_OK && comm) ranks = ravel_comm_size(comm);
    int usage = 0;
    if (status == RAVEL_OK) {
        status = refit_settle(job, ranks, &err);
        usage = status != RAVEL_OK;
    }
    int first = !comm || ravel_comm_rank(comm) == 0;
    if (status == RAVEL_OK)
        status = comm ? rank_body(comm, job, &err) : ravel_threads_run(ranks, &job->comm, rank_body, job, &err);
    cli_progress_end();
    if (status != RAVEL_OK && comm && !usage) ravel_comm_abort(comm, &err);
    ravel_comm_free(comm);
    ravel_safetensors_free(file);
    if (status == RAVEL_OK) return CLI_OK;
    if (comm && !first && usage) return CLI_USAGE; /* rank 0 prints it */
    return usage ? cli_usage("refit", &err) : cli_fail("refit", &err);
}

int cli_refit(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--publish", 9) == 0 && (!argv[i][9] || argv[i][9] == '='))
            return refit_publish(argc, argv);
        if (strncmp(argv[i], "--pull", 6) == 0 && (!argv[i][6] || argv[i][6] == '=')) return refit_pull(argc, argv);
    }
    refit_job job;
    ravel_option rows[ROWS];
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1];
    int count = 0;
    memset(&job, 0, sizeof job);
    ravel_refit_options_default(&job.options);
    ravel_comm_options_default(&job.comm);
    const cli_options sets[SETS] = {
        {"Running", own_table, &job.flags},
        {"Refit", cli_without(ravel_refit_option_table(), "trace|timeout", rows, ROWS), &job.options},
        {"Communicators", ravel_comm_option_table(), &job.comm},
    };
    for (int i = 0; i < SETS; i++) ravel_options_default(sets[i].table, sets[i].options);
    if (cli_wants_help(argc, argv)) return help(sets);
    ravel_status status = cli_parse(argc, argv, sets, SETS, words, 1, &count, &err);
    if (status == RAVEL_OK) status = check_flags(&job, count, count ? words[0] : "", &err);
    if (status != RAVEL_OK) return cli_usage("refit", &err);
    job.to_stdout = job.flags.json && strcmp(job.flags.json, "-") == 0;
    int processes = strcmp(ravel_comm_auto_kind(&job.comm), "self") != 0;
    return run_file(&job, processes);
}
