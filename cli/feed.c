/* ravel feed: runs the feed on a mesh of ranks, in this process or under mpirun, and reports every update. */
#include "cli/feed.h"
#include "cli/plan/plan.h"

#include <ravel/exchange.h>
#include "base/system/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Everything that the ranks of this process share. */
typedef struct job {
    feed_flags flags;
    ravel_source_options source_options;
    ravel_feed_options feed;
    ravel_mesh_options mesh;
    ravel_plan_options plan;
    ravel_weights_options weights;
    ravel_comm_options comm;
    const ravel_source *source;
    char prices[PLAN_PRICES]; /* of a cost that is a file */
    char *resume;             /* text of the cursor */
    int to_stdout;            /* JSON lines instead of lines for people */
} job;

#define ROW(...) RAVEL__ROW(feed_flags, __VA_ARGS__)
static const ravel_option own_table[] = {
    ROW("ranks", I32, ranks, "0", 0, 4096, NULL,
        "ranks in this process; 0: as many as the mesh has. Under mpirun: not used"),
    ROW("verify", BOOL, verify, "false", 0, 0, NULL, "every rank recomputes every update by itself, and compares"),
    ROW("consume-ms", F64, consume_ms, "0", 0, 1e6, NULL, "simulate training: milliseconds per micro-step"),
    ROW("mtp-stage", I32, mtp_stage, "-1", -1, 4096, NULL,
        "a pipeline stage that also gets tokens and labels, for multi-token prediction; -1: none"),
    ROW("cost", STRING, cost, NULL, 0, 0, "COST", "cost of a sample, as in ravel plan [tokens]"),
    ROW("resume", STRING, resume, NULL, 0, 0, "FILE", "resume from the cursor in this file"),
    ROW("save", STRING, save, NULL, 0, 0, "FILE", "write the cursor after the last update to this file"),
    ROW("json", STRING, json, NULL, 0, 0, "FILE", "write a JSON line per update; - is standard output"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL,
        "no line per update, only the summary; on a terminal one live line shows the progress in any case"),
    {0}};
/* ---- options -------------------------------------------------------------------------------------------- */

enum { SETS = 7, ROWS = 64 };

static void make_sets(job *j, cli_options *sets, ravel_option (*rows)[ROWS]) {
    sets[0] = (cli_options){"Running", own_table, &j->flags};
    sets[1] = (cli_options){"Samples", ravel_source_option_table(), &j->source_options};
    sets[2] = (cli_options){"Feeding", ravel_feed_option_table(), &j->feed};
    sets[3] = (cli_options){"Mesh", ravel_mesh_option_table(), &j->mesh};
    sets[4] = (cli_options){"Planning", cli_without(ravel_plan_option_table(), "dp|cp|updates|shuffle", rows[0], ROWS),
                            &j->plan};
    sets[5] = (cli_options){"Loss weights",
                            cli_without(ravel_weights_option_table(), "dp|cp|micro-steps", rows[1], ROWS), &j->weights};
    sets[6] = (cli_options){"Communicators", ravel_comm_option_table(), &j->comm};
    for (int i = 0; i < SETS; i++) ravel_options_default(sets[i].table, sets[i].options);
}

static void job_default(job *j) {
    memset(j, 0, sizeof *j);
    ravel_source_options_default(&j->source_options);
    ravel_feed_options_default(&j->feed);
    ravel_mesh_options_default(&j->mesh);
    ravel_plan_options_default(&j->plan);
    ravel_weights_options_default(&j->weights);
    ravel_comm_options_default(&j->comm);
}

static int help(const cli_options *sets) {
    (void)fputs(
        "usage: ravel feed --data FILE.jsonl | --mock JSON  --budget SIZE [options]\n"
        "       mpirun -n N ravel feed ...\n"
        "\n"
        "Reads samples, plans each batch, exchanges samples between data-parallel ranks and packs micro-batches\n"
        "on every rank of a tp x cp x dp x pp mesh, as in a training job; and reports what\n"
        "each update held, what had to move, and how long training would have waited.\n",
        stdout);
    cli_print_options(sets, SETS);
    (void)fputs("\nExamples:\n"
                "  ravel feed --mock '{\"type\":\"lognormal\",\"max_seq_len\":8192}' --budget 16k --dp 4 --updates 10\n"
                "  ravel feed --data train.jsonl --budget 8k --ranks 24 --tp 2 --cp 2 --pp 3 --vpp 2 --verify\n"
                "  ravel feed --mock @long.json --budget 8k --cp-pool 8 --verify       groups of different cp widths\n"
                "  mpirun -n 8 ravel feed --data train.jsonl --budget 8k --owners root-only --json - --updates 100\n"
                "\nExit codes: 0 done, 1 the data is wrong or a rank failed, 2 the command line is wrong. See also "
                "ravel-feed(1).\n",
                stdout);
    return CLI_OK;
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

typedef struct rank {
    const job *j;
    ravel_comm *comm;
    ravel_feed *feed;
    int32_t number;
    feed_totals totals;
    double last; /* when the update before was done */
    char cursor[200];
    ravel_metrics *live;   /* of rank 0, on a terminal, as are the rest */
    cli_output json, save; /* lines, and where the cursor goes; file is NULL if it is not wanted */
} rank;

/* ---- files: rank 0 opens them before anything is read, so that a wrong path is reported at once ---- */

static ravel_status open_files(rank *r, ravel_error *err) {
    const feed_flags *flags = &r->j->flags;
    if (r->number != 0) return RAVEL_OK;
    ravel_status status = flags->json ? cli_output_open(&r->json, flags->json, err) : RAVEL_OK;
    return !status && flags->save ? cli_output_open(&r->save, flags->save, err) : status;
}

/* The cursor is kept where the run succeeded and there was an update. */
static ravel_status close_save(rank *r, ravel_status status, ravel_error *err) {
    if (!r->save.file) return status;
    if (!status && !r->cursor[0]) {
        (void)cli_output_close(&r->save, RAVEL_E_END, NULL);
        return RAVEL_OK;
    }
    if (!status) status = cli_output_write(&r->save, r->cursor, strlen(r->cursor), err);
    if (!status) status = cli_output_write(&r->save, "\n", 1, err);
    return cli_output_close(&r->save, status, err);
}

/* `status`: of the run. */
static ravel_status close_files(rank *r, ravel_status status, ravel_error *err) {
    status = close_save(r, status, err);
    return r->json.file ? cli_output_close(&r->json, status, err) : status;
}

/* ---- the loop ---- */

/* Over all ranks: bytes sent (sum), times (maximum), and whether every rank's arrays were right. */
static ravel_status gather_line(rank *r, const ravel_feed_update *u, ravel_status verified, feed_line *line,
                                ravel_error *err) {
    int64_t sums[3] = {u->sent_bytes, u->needed_bytes, u->kept_bytes};
    RAVEL_ASSERT(u->sent_bytes >= 0 && u->kept_bytes >= 0 && u->exposed_sec >= 0);
    double most[2] = {u->prepare_sec, u->exposed_sec};
    ravel_status status = ravel_agree(r->comm, verified, err);
    if (!status) status = ravel_comm_allreduce(r->comm, sums, sums, 3, RAVEL_I64, RAVEL_SUM, err);
    if (!status) status = ravel_comm_allreduce(r->comm, most, most, 2, RAVEL_F64, RAVEL_MAX, err);
    double t = cli_now();
    *line = (feed_line){.update = u,
                        .total = r->j->feed.updates,
                        .sent = sums[0],
                        .needed = sums[1],
                        .kept = sums[2],
                        .prepare = most[0],
                        .exposed = most[1],
                        .wall = t - r->last,
                        .verified = r->j->flags.verify};
    r->last = t;
    return status;
}

/* --consume-ms: stands in for training; other ranks of this process run meanwhile. */
static void consume(const rank *r, int64_t micro_steps) {
    double seconds = 1e-3 * r->j->flags.consume_ms * (double)micro_steps;
    RAVEL_ASSERT(micro_steps >= 0 && seconds >= 0);
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    if (seconds > 0) (void)nanosleep(&t, NULL);
}

static void report(rank *r, const feed_line *line) {
    const job *j = r->j;
    feed_add(&r->totals, line);
    if (r->number != 0) return;
    if (r->json.file) {
        feed_print_json(r->json.file, line, r->cursor);
        cli_output_flush(&r->json); /* a reader of standard output sees every update when it is there */
    }
    if (r->live) feed_live_update(r->live, line);
    if (!j->flags.quiet && !j->to_stdout && !(r->live && isatty(STDOUT_FILENO))) feed_print_line(line);
}

static ravel_status one_update(rank *r, ravel_error *err) {
    const ravel_feed_update *u;
    feed_line line;
    ravel_status status = ravel_feed_next(r->feed, &u, err);
    if (status) return status;
    consume(r, u->counts.micro_steps);
    ravel_status verified = r->j->flags.verify ? ravel_feed_verify(r->feed, r->j->source, err) : RAVEL_OK;
    status = gather_line(r, u, verified, &line, err);
    if (status) return status;
    size_t length =
        ravel_cursor_format(ravel_feed_order(r->feed), ravel_feed_cursor(r->feed), r->cursor, sizeof r->cursor);
    RAVEL_ASSERT(length < sizeof r->cursor);
    (void)length;
    report(r, &line);
    return RAVEL_OK;
}

static ravel_status run_updates(rank *r, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    r->last = cli_now();
    if (r->number == 0) r->live = feed_live_open(r->j->feed.updates);
    RAVEL_ASSERT(r->feed && r->totals.updates == 0);
    while (!status) status = one_update(r, err);
    ravel_metrics_free(r->live);
    if (status != RAVEL_E_END) return status;
    ravel_feed_stats stats;
    ravel_feed_read_stats(r->feed, &stats);
    if (r->number == 0 && !r->j->to_stdout)
        feed_print_totals(&r->totals, &stats, ravel_comm_size(r->comm), ravel_comm_kind(r->comm));
    return RAVEL_OK;
}

static ravel_status resume(const rank *r, ravel_error *err) {
    ravel_cursor cursor;
    if (!r->j->resume) return RAVEL_OK;
    ravel_status status =
        ravel_cursor_parse(ravel_feed_order(r->feed), r->j->resume, strlen(r->j->resume), &cursor, err);
    if (status) ravel_error_prefix(err, "%s", r->j->flags.resume);
    return status ? status : ravel_feed_seek(r->feed, cursor, err);
}

static ravel_status run_rank(ravel_comm *comm, void *user, ravel_error *err) {
    const job *j = user;
    rank r = {.j = j, .comm = comm, .number = ravel_comm_rank(comm)};
    ravel_mesh *mesh = NULL;
    ravel_feed_options options = j->feed;
    cli_voice voice = {"feed", 1, 0};
    const ravel_logger logger = {cli_log, &voice};
    ravel_status status = ravel_mesh_create(comm, &j->mesh, &mesh, err);
    if (status) return status;
    options.plan = &j->plan;
    options.weights = &j->weights;
    options.logger = &logger;
    if (j->flags.mtp_stage == ravel_mesh_coords(mesh).pp) options.ask = UINT64_MAX;
    status = ravel_agree(comm, open_files(&r, err), err);
    if (!status) status = ravel_feed_create(mesh, j->source, &options, &r.feed, err);
    if (!status) status = ravel_agree(comm, resume(&r, err), err);
    if (!status) status = run_updates(&r, err);
    status = close_files(&r, status, err);
    ravel_feed_free(r.feed);
    ravel_mesh_free(mesh);
    return status;
}

/* ---- all ranks ---------------------------------------------------------------------------------------- */

static int is_lost(ravel_status status) {
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT || status == RAVEL_E_DEAD;
}

/* Under mpirun an error that all ranks agreed on is printed once; a lost peer by every rank that detected it. */
static ravel_status run_processes(job *j, ravel_error *err) {
    ravel_comm *comm = NULL;
    ravel_status status = ravel_comm_open("auto", &j->comm, &comm, err);
    if (status) return status;
    int32_t number = ravel_comm_rank(comm);
    status = run_rank(comm, j, err);
    if (status && !is_lost(status) && number != 0) err->message[0] = '\0';
    if (is_lost(status)) ravel_error_prefix(err, "rank %d", number);
    ravel_comm_free(comm);
    return status;
}

static ravel_status run_all(job *j, ravel_error *err) {
    if (strcmp(ravel_comm_auto_kind(&j->comm), "self") != 0) return run_processes(j, err);
    ravel_mesh_options mesh = j->mesh;
    ravel_mesh_layout layout;
    if (j->flags.ranks == 0 && mesh.dp == 0) mesh.dp = j->plan.cp_pool > mesh.cp ? j->plan.cp_pool / mesh.cp : 1;
    ravel_status status = ravel_mesh_plan(&mesh, j->flags.ranks, &layout, err);
    return status ? status : ravel_threads_run(layout.ranks, &j->comm, run_rank, j, err);
}

static ravel_status open_all(job *j, ravel_source **source, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    size_t bytes = 0;
    if (j->flags.cost) status = plan_cost(j->flags.cost, &j->plan, j->prices, err);
    if (!status && j->flags.resume) status = ravel__file_read(j->flags.resume, 4096, NULL, &j->resume, &bytes, err);
    if (!status) status = ravel_source_open(&j->source_options, source, err);
    if (status) return status;
    j->source = *source;
    RAVEL_ASSERT(*source);
    if (j->feed.updates == 0 && j->feed.epochs == 0) j->feed.epochs = 1;
    j->to_stdout = j->flags.json && strcmp(j->flags.json, "-") == 0;
    return RAVEL_OK;
}

/* Checks of the options, before anything is opened. */
static ravel_status check_flags(const job *j, ravel_error *err) {
    if (!j->source_options.data == !j->source_options.mock)
        return CLI_REFUSE(err, "where samples come from is %s: give either --data FILE.jsonl or --mock JSON",
                          j->source_options.data ? "said twice" : "missing");
    if (!j->plan.budget)
        return CLI_REFUSE(err,
                          "--budget is missing or 0: how many tokens fit one micro-batch, for example --budget 16k");
    if (j->flags.mtp_stage >= j->mesh.pp)
        return CLI_REFUSE(err, "--mtp-stage is %d; with --pp %d it must be from 0 to %d", j->flags.mtp_stage,
                          j->mesh.pp, j->mesh.pp - 1);
    if (j->flags.json && j->flags.save && strcmp(j->flags.json, "-") == 0 && strcmp(j->flags.save, "-") == 0)
        return CLI_REFUSE(err, "only one output can be standard output");
    if (j->source_options.mock && (j->source_options.tokenizer || j->source_options.chat_format))
        return CLI_REFUSE(err, "--tokenizer and --chat-format are for --data; mock data is tokens");
    const char *mock = j->source_options.mock;
    ravel_status status = cli_claim_input("data", j->source_options.data, err);
    if (!status && mock && *mock == '@') status = cli_claim_input("mock", mock + 1, err);
    if (!status) status = cli_claim_output("json", j->flags.json, err);
    return status ? status : cli_claim_output("save", j->flags.save, err); /* --resume X --save X: a job continues */
}

int cli_feed(int argc, char **argv) {
    static ravel_option rows[2][ROWS];
    job j;
    cli_options sets[SETS];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    const char *word;
    int words = 0;
    job_default(&j);
    make_sets(&j, sets, rows);
    if (cli_wants_help(argc, argv)) return help(sets);
    if (cli_parse(argc, argv, sets, SETS, &word, 1, &words, &err)) return cli_usage("feed", &err);
    if (words) {
        (void)CLI_REFUSE(&err, "\"%s\" is one word too many; see --help", word);
        return cli_usage("feed", &err);
    }
    if (check_flags(&j, &err)) return cli_usage("feed", &err);
    ravel_status status = open_all(&j, &source, &err);
    if (!status) status = run_all(&j, &err);
    int code = CLI_OK;
    if (status && err.message[0]) code = cli_fail("feed", &err);
    if (status && code == CLI_OK) code = CLI_FAILED; /* another rank prints it */
    free(j.resume);
    ravel_source_free(source);
    return code;
}
