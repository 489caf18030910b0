/* ravel train: reads the configuration (defaults, then --config, then flags), starts the ranks, and prints the result.
 * The work is in train/. */
#include "cli/ranks.h"

#include "train/learn/layout.h"
#include "train/run/config/resolve.h"
#include "train/run/config/words.h"
#include "train/run/grpo/grpo.h"
#include "train/run/sft/sft.h"
#include "train/rl/task.h"
#include "train/rl/outside/teacher.h"

#include "base/json.h"
#include "base/system/file.h"

#include <ravel/comm.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- signals -------------------------------------------------------------------------------------------- */

static volatile int save_requested;
static int speaks; /* rank 0 is in this process */

/* One line at once: the end of an update may take minutes. */
static void say_stop(int number) {
    static const char text[] = "\nravel train: stopping; Ctrl-C again ends at once, without a checkpoint\n";
    (void)number;
    ssize_t written = speaks ? write(STDERR_FILENO, text, sizeof text - 1) : 0;
    (void)written;
}

static void on_hang_up(int number) {
    (void)number;
    save_requested = 1;
}

/* A closed terminal or pipe does not end a run: it writes a checkpoint and goes on. */
static void catch_signals(void) {
    const struct sigaction save = {.sa_handler = on_hang_up, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGHUP, &save, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a file size limit is an error of the write, like a full disk */
}

/* Before the ranks have met there is nothing to lose, and Ctrl-C ends the process. */
static void on_met(int first) {
    speaks = first;
    cli_catch_stop(say_stop);
}

/* ---- configuration -------------------------------------------------------------------------------------- */

typedef struct file_options {
    const char *config;
} file_options;

static const ravel_option file_table[] = {
    {"config", RAVEL_OPTION_STRING, offsetof(file_options, config), NULL, 0, 0, "FILE",
     "these options as JSON or YAML, or the folder of a run to take them from; flags override it"},
    {0}};

enum { SETS = TRAIN_SECTIONS + 2, COMM_ROWS = 16 };

/* The file, the parts of the configuration, and how processes reach one another, which is not stored in the run's
 * folder, since the next start may be on other machines. Returns their number. */
static int make_sets(train_config *config, train_kind kind, file_options *file, ravel_comm_options *comm,
                     ravel_option *comm_rows, cli_options *sets) {
    train_section parts[TRAIN_SECTIONS];
    int count = train_config_sections(config, kind, parts), n = 0;
    sets[n++] = (cli_options){"configuration", file_table, file};
    for (int i = 0; i < count; i++) sets[n++] = (cli_options){parts[i].title, parts[i].table, parts[i].options};
    ravel_option_table table = cli_without(ravel_comm_option_table(), "comm-timeout", comm_rows, COMM_ROWS);
    sets[n++] = (cli_options){"ranks in several processes", table, comm};
    RAVEL_ASSERT(n <= SETS);
    return n;
}

static void help(train_kind kind) {
    train_config config;
    cli_options sets[SETS];
    ravel_option rows[COMM_ROWS];
    ravel_comm_options comm;
    file_options file = {0};
    train_config_default(&config);
    ravel_comm_options_default(&comm);
    int count = make_sets(&config, kind, &file, &comm, rows, sets);
    if (kind == TRAIN_DPO)
        printf("usage: ravel train dpo --model FOLDER --data PAIRS.jsonl [options]\n\n"
               "Direct preference optimisation on packed pairs: \"chosen\" and \"rejected\" answers to a prompt.\n\n"
               "examples:\n"
               "  ravel train dpo --model SmolLM2-135M-Instruct --data pairs.jsonl --beta 0.1 --lr 1e-6\n"
               "  mpirun -n 4 ravel train dpo --config run.json --resume\n");
    else if (kind == TRAIN_SFT)
        printf(
            "usage: ravel train sft --data FILE.jsonl | --mock JSON | --task NAME [options]\n\n"
            "Supervised fine-tuning on packed micro-batches, on any number of ranks: --ranks N in this process, or one\n"
            "per process under mpirun, srun, torchrun, or started by hand with --rendezvous.\n\n"
            "examples:\n"
            "  ravel train sft --task arithmetic --steps 200 --ranks 2\n"
            "  ravel train sft --model Qwen3-0.6B --data train.jsonl --eval-share 0.01 --budget 8k --lr 1e-5\n"
            "  mpirun -n 4 ravel train sft --config run.json --resume\n"
            "  torchrun --nnodes 2 --nproc-per-node 8 --no-python ravel train sft --config run.json\n"
            "  ravel train sft --config run.json --rendezvous host-0:7600 --comm-ranks 2 --comm-rank 0   (and 1)\n");
    else
        printf("usage: ravel train grpo [options]\n\n"
               "Reinforcement learning: generator ranks answer, trainer ranks learn, refit sends the weights.\n\n"
               "examples:\n"
               "  ravel train grpo --model runs/sft-1/checkpoints/step-00000200 --task arithmetic --ranks 2\n"
               "  ravel train grpo --model M --data prompts.jsonl --reward-command 'python3 score.py' --preset dapo\n"
               "  mpirun -n 6 ravel train grpo --model M --task sort --generators 2 --async 1 --correction tis\n"
               "  ravel train grpo --model M --task sort --publish :7700         and, at any time, any number of\n"
               "  ravel generate --pull 127.0.0.1:7700 --model FOLDER --data prompts.jsonl --repeat 0\n");
    cli_print_options(sets, count);
    if (kind == TRAIN_DPO) return;
    printf("\ntasks:\n");
    for (int32_t i = 0; train_task_name(i); i++) printf("  %-26s  %s\n", train_task_name(i), train_task_doc(i));
}

/* The texts that a configuration points into; they live as long as the run. */
typedef struct texts {
    cli_joined joined;
    train_config_file file;
    char *config;          /* all options as JSON, for config.json */
    char path[TRAIN_PATH]; /* of the run's own configuration */
    train_model_path model;
    train_model_path shape, cost;
    char teacher[TRAIN_PATH];
    int resolving; /* an error is one of these folders, not of the command line */
} texts;

/* A run or an adapter as --model, a run as --adapter: the folders that they stand for now, which config.json then
 * has. */
static ravel_status resolve_model(train_config *config, texts *t, ravel_error *err) {
    train_model_choice *m = &config->model;
    int64_t step;
    t->resolving = 1;
    ravel_status status = m->model     ? train_model_resolve_with(m->model, m->adapter, &t->model, err)
                          : m->adapter ? train_adapter_resolve(m->adapter, t->model.adapter, err)
                                       : RAVEL_OK;
    if (!status && m->shape) status = train_model_resolve(m->shape, &t->shape, err);
    if (!status && config->run.cost) status = train_model_resolve(config->run.cost, &t->cost, err);
    if (!status && config->grpo.teacher && !train_servers_are(config->grpo.teacher))
        status = train_run_resolve(config->grpo.teacher, t->teacher, &step, err);
    if (status) return status;
    if (t->teacher[0]) config->grpo.teacher = t->teacher;
    t->resolving = 0;
    if (t->model.adapter[0]) m->adapter = t->model.adapter;
    if (m->model) m->model = t->model.model;
    if (m->shape) m->shape = t->shape.model;
    if (config->run.cost) config->run.cost = t->cost.model;
    return RAVEL_OK;
}

/* A run's own folder is not taken from it: it is the other run's. */
static ravel_status take_file(train_config *config, train_kind kind, const char *path, texts *t, ravel_error *err) {
    int resumed = t->path[0] != '\0';
    train_config_file_close(&t->file);
    ravel_status status = train_config_file_read(path, &t->file, err);
    if (status) return status;
    status = train_config_json(config, kind, &t->file, err);
    if (status) ravel_error_prefix(err, "%s", path);
    if (t->file.of_a_run && !resumed) {
        config->run.run = NULL;
        config->run.resume = 0;
    }
    return status;
}

/* Defaults, then a preset (of the flags, or else of the file), then the file. */
static ravel_status apply_layers(train_config *config, train_kind kind, const char *path, int32_t preset, texts *t,
                                 ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int again = 0; again < 2 && !status; again++) { /* the file is read first to find its preset */
        train_config_default(config);
        config->grpo.preset = preset;
        if (again) status = train_config_preset(config, err);
        if (!status && path) status = take_file(config, kind, path, t, err);
        if (!preset) preset = config->grpo.preset;
    }
    return status;
}

/* Flags are parsed twice: to find --config, and again to override it. A run that is resumed has its own. */
static ravel_status read_config(int argc, char **argv, train_kind kind, train_config *config, ravel_comm_options *comm,
                                texts *t, ravel_error *err) {
    cli_options sets[SETS];
    ravel_option rows[COMM_ROWS];
    file_options file = {0};
    const char *words[1];
    int word_count = 0, count = make_sets(config, kind, &file, comm, rows, sets);
    train_config_default(config);
    ravel_comm_options_default(comm);
    ravel_status status = cli_parse(argc, argv, sets, count, words, 0, &word_count, err);
    if (!status && !file.config && config->run.resume) {
        status = train_run_config(config, kind, t->path, err);
        file.config = t->path;
    }
    int64_t steps = config->run.steps, epochs = config->sft.epochs;
    if (!status && (file.config || config->grpo.preset)) {
        int32_t preset = config->grpo.preset;
        status = apply_layers(config, kind, file.config, preset, t, err);
        if (!status && t->path[0] && preset && config->grpo.preset != preset)
            status = CLI_REFUSE(
                err,
                "--preset is for a new run: one that is resumed has a value of each of its options; give those that "
                "are to change, like --clip-high 0.28");
        if (!status) status = cli_parse(argc, argv, sets, count, words, 0, &word_count, err);
        if (steps && !epochs) config->sft.epochs = 0; /* a length that is given replaces the file's other one */
        if (epochs && !steps) config->run.steps = 0;
    }
    if (!status && !config->run.resume) status = resolve_model(config, t, err);
    if (!status) train_config_settle(config, kind);
    return status ? status : train_config_check(config, kind, err);
}

/* ---- threads -------------------------------------------------------------------------------------------- */

/* Ranks of one process that share its machine's processors at one time: trainers and generators take turns, unless
 * --async. */
static int32_t busy_threads(const train_config *c, train_kind kind) {
    int32_t ranks = train_config_ranks(c);
    RAVEL_ASSERT(ranks > 0);
    if (kind != TRAIN_GRPO) return ranks;
    if (c->grpo.async) return ranks + c->grpo.generators;
    return ranks > c->grpo.generators ? ranks : c->grpo.generators;
}

/* ---- the run -------------------------------------------------------------------------------------------- */

typedef struct job {
    train_kind kind;
    train_config *config;
    ravel_comm_options comm;
    train_hooks hooks;
    int32_t processes;     /* 0: ranks are threads */
    char by[8];            /* what joins the processes: "mpi", "tcp" */
    train_summary summary; /* written by rank 0 */
} job;

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    train_summary summary = {0};
    RAVEL_ASSERT(j->kind >= 0 && j->kind < TRAIN_KINDS);
    ravel_status status = j->kind == TRAIN_GRPO ? train_grpo(j->config, comm, &j->hooks, &summary, err)
                                                : train_tune(j->kind, j->config, comm, &j->hooks, &summary, err);
    if (ravel_comm_rank(comm) == 0) j->summary = summary;
    return status;
}

static ravel_status launch(job *j, int *first, ravel_error *err) {
    cli_ranks ranks = {.config = j->config,
                       .comm = &j->comm,
                       .count =
                           train_config_ranks(j->config) + (j->kind == TRAIN_GRPO ? j->config->grpo.generators : 0),
                       .busy = busy_threads(j->config, j->kind),
                       .met = on_met};
    ravel_status status = cli_ranks_run(&ranks, work, j, err);
    *first = ranks.first;
    j->processes = ranks.processes;
    memcpy(j->by, ranks.by, sizeof j->by);
    return status;
}

static void print_figure(const char *what, double value, const char *format) {
    if (isnan(value)) return;
    printf("  %-22s ", what);
    printf(format, value);
    printf("\n");
}

/* A word as a shell takes it. */
static void print_word(FILE *out, const char *word) {
    if (word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%")] == '\0' &&
        *word) {
        (void)fputs(word, out);
        return;
    }
    (void)fputc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            (void)fputs("'\\''", out);
        else
            (void)fputc(*word, out);
    (void)fputc('\'', out);
}

/* The options that double a run that is done: of --steps and --epochs the smaller ends it. */
static void print_further(FILE *out, const job *j) {
    int64_t epochs = j->kind == TRAIN_GRPO ? 0 : j->config->sft.epochs;
    if (epochs) (void)fprintf(out, " --epochs %lld", 2 * (long long)epochs);
    if (!epochs || j->config->run.steps) (void)fprintf(out, " --steps %lld", 2 * (long long)j->summary.steps);
}

/* Prints the newest checkpoint and the command that resumes. */
static void print_resume(FILE *out, const job *j) {
    const train_summary *s = &j->summary;
    if (!s->checkpoint[0]) return;
    if (s->best[0]) (void)fprintf(out, "  %-22s %s (evaluation %.4g)\n", "best checkpoint", s->best, s->best_value);
    (void)fprintf(out, "  %-22s %s\n", "checkpoint", s->checkpoint);
    (void)fprintf(out, "  %-22s ", s->steps < s->planned ? "resume with" : "train further with");
    if (j->processes > 1 && strcmp(j->by, "mpi") == 0) (void)fprintf(out, "mpirun -n %d ", j->processes);
    if (j->processes > 1 && strcmp(j->by, "tcp") == 0) (void)fprintf(out, "(as each of %d ranks) ", j->processes);
    (void)fprintf(out, "ravel train %s --run ", train_kind_name(j->kind));
    print_word(out, s->folder);
    (void)fprintf(out, " --resume");
    if (s->steps >= s->planned) print_further(out, j);
    (void)fprintf(out, "\n");
}

static void report(const job *j) {
    const train_summary *s = &j->summary;
    printf("%s after %lld update%s\n", s->stopped ? "stopped" : "done", (long long)s->steps, s->steps == 1 ? "" : "s");
    if (j->kind == TRAIN_GRPO) {
        char how[96]; /* a reward command has its own scale */
        (void)snprintf(how, sizeof how, "%%.3f (greedy, %squestions %s)",
                       j->config->grpo.reward_command || j->config->grpo.reward ? "" : "right or wrong, ",
                       s->reward_apart ? "not trained on" : "of the training data");
        print_figure("reward before", s->reward_first, how);
        print_figure("reward after", s->reward_last, "%.3f");
        print_figure("sampled, first", s->sampled_first, "%.3f (mean reward of the first five batches)");
        print_figure("sampled, last", s->sampled_last, "%.3f");
        print_figure("dropped answers", 100 * s->dropped, "%.1f %% (they could not be scored)");
        print_figure("refit overlap", 100 * s->refit_overlap,
                     "%.0f %% of the smaller phases hidden, mean of all refits");
        print_figure("refit rate", s->refit_gb_per_sec, "%.2f GB/s");
    } else {
        const char *per = j->kind == TRAIN_DPO ? "pair" : "token";
        char what[32];
        (void)snprintf(what, sizeof what, "first loss per %s", per);
        print_figure(what, s->loss_first, "%.4f");
        (void)snprintf(what, sizeof what, "last loss per %s", per);
        print_figure(what, s->loss_last, "%.4f");
        print_figure("eval loss before", s->eval_first, "%.4f");
        (void)snprintf(what, sizeof what, "eval loss per %s", per);
        print_figure(what, s->eval_loss, "%.4f");
    }
    print_figure("tokens/s", s->tokens_per_sec, "%.0f");
    print_figure("packing efficiency", 100 * s->packing_efficiency, "%.1f %%");
    if (s->skipped) print_figure("skipped updates", (double)s->skipped, "%.0f (the gradient was not finite)");
    if (s->folder[0]) printf("  %-22s %s\n", "run folder", s->folder);
    print_resume(stdout, j);
    if (s->folder[0]) printf("ravel report %s --html report.html draws it\n", s->folder);
}

static ravel_status read_options(int argc, char **argv, job *j, texts *t, ravel_error *err) {
    int count = cli_join_files(argc, argv, &t->joined);
    if (!count) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the options");
    ravel_status status = read_config(count, t->joined.words, j->kind, j->config, &j->comm, t, err);
    if (status) return status;
    t->config = train_config_text(j->config, j->kind);
    return t->config ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the configuration");
}

static int run(int argc, char **argv, train_kind kind) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_config config = {0};
    texts t = {0};
    int first = 0, code = CLI_OK;
    job j = {.kind = kind, .config = &config};
    if (read_options(argc, argv, &j, &t, &err)) {
        code = t.resolving ? cli_fail("train", &err) : cli_usage("train", &err);
    } else {
        cli_voice voice = {"train", config.run.quiet, 1};
        const ravel_logger logger = {cli_log, &voice};
        j.hooks = (train_hooks){.stop = &cli_stop,
                                .save = &save_requested,
                                .logger = &logger,
                                .config_text = t.config,
                                .progress = {cli_show_progress, &voice, &cli_stop}};
        catch_signals();
        (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
                     0); /* hardware queues: streams that share one wait for one another */
        if (launch(&j, &first, &err)) {
            cli_progress_end();
            code = cli_fail("train", &err);
            if (cli_stop) code = 130; /* as a shell has it */
            if (first) print_resume(stderr, &j);
        } else if (first) {
            report(&j);
        }
    }
    train_config_file_close(&t.file);
    free(t.config);
    cli_free_joined(&t.joined);
    return code;
}

int cli_train(int argc, char **argv) {
    const char *kinds[TRAIN_KINDS];
    for (int kind = 0; kind < TRAIN_KINDS; kind++) kinds[kind] = train_kind_name((train_kind)kind);
    for (int kind = 0; argc > 1 && kind < TRAIN_KINDS; kind++)
        if (strcmp(argv[1], kinds[kind]) == 0) {
            if (!cli_wants_help(argc - 1, argv + 1)) return run(argc - 1, argv + 1, (train_kind)kind);
            help((train_kind)kind);
            return CLI_OK;
        }
    if (cli_wants_help(argc, argv)) {
        printf("usage: ravel train sft|dpo|grpo [options]\n\n"
               "  sft    supervised fine-tuning on data, mock data or the answers of a verifiable task\n"
               "  dpo    direct preference optimisation on pairs of answers\n"
               "  grpo   reinforcement learning with separate generator ranks\n\n"
               "ravel train sft --help and so on list the options.\n");
        return CLI_OK;
    }
    ravel_error err = RAVEL_ERROR_INIT;
    char name[80], answer[300];
    (void)snprintf(name, sizeof name, "train-%.60s", argc > 1 ? argv[1] : "");
    if (train_word_answer(name, answer, sizeof answer)) {
        CLI_REFUSE(&err, "there is no ravel train %s; %s", argv[1], answer);
        return cli_usage("train", &err);
    }
    const char *near = argc > 1 ? ravel__suggest(argv[1], kinds, TRAIN_KINDS) : NULL;
    CLI_REFUSE(&err, "say what to train: ravel train sft, dpo or grpo%s%s%s", near ? "; did you mean " : "",
               near ? near : "", near ? "?" : "");
    return cli_usage("train", &err);
}
