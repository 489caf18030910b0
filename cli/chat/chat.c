/* ravel chat: a conversation with a model, line by line: in a terminal, or from a pipe.
 *
 * A line is a turn. One that begins with a slash is a command, a row of the table `commands`; "//" is a slash that is
 * meant. Several lines are one turn between lines of """, or where they end with a backslash. Answers go to standard
 * output, all else to standard error. From a pipe, what cannot be done ends the command. */
#include "cli/chat/line.h"
#include "cli/chat/talk.h"

#include "train/kernels/host.h"
#include "train/run/rundir.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat_options {
    cli_talk_sampling sampling; /* of a table of its own, as the next two */
    cli_model_options model;
    cli_pull_options pull;
    const char *system, *stop;
    int64_t context;
    int32_t raw, quiet;
} chat_options;

#define SAMPLING(...) RAVEL__ROW(cli_talk_sampling, __VA_ARGS__)
#define CHAT(...)     RAVEL__ROW(chat_options, __VA_ARGS__)

/* Each is a command too: /temperature 0.5. */
static const ravel_option sampling_table[] = {
    SAMPLING("temperature", F64, temperature, "0.7", 0, 100, NULL,
             "sampling temperature; 0: always the likeliest token"),
    SAMPLING("top-k", I32, top_k, "0", 0, 1 << 24, NULL, "sample among the k likeliest tokens; 0: all"),
    SAMPLING("top-p", F64, top_p, "0.95", 1e-9, 1, NULL, "sample among the likeliest tokens of this total probability"),
    SAMPLING("min-p", F64, min_p, "0", 0, 0.999999, NULL,
             "drop tokens less likely than this times the likeliest; 0: none"),
    SAMPLING("max-tokens", I64, max_tokens, "1024", 1, 1e9, NULL, "limit of tokens per answer"),
    SAMPLING("seed", I64, seed, "-1", -1, 9.2e18, NULL,
             "of sampling: the same seed and turns give the same answers; -1: another one each time"),
    {0}};

static const ravel_option table[] = {
    CHAT("system", STRING, system, NULL, 0, 0, "TEXT", "the system's message, before the conversation"),
    CHAT(
        "context", I64, context, "0", 0, 1e9, NULL,
        "limit of tokens in the conversation, beyond which its oldest turns are dropped; 0: 4096 or the model's limit"),
    CHAT("raw", BOOL, raw, "false", 0, 0, NULL,
         "no conversation: each text is continued as it is, for models without a chat template"),
    CHAT("stop", STRING, stop, NULL, 0, 0, "TEXT",
         "an answer ends before this text; may be given several times. A special token's text is that token"),
    CHAT("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only answers and errors"),
    {0}};

enum { SETS = 4 };

typedef struct chat {
    const chat_options *o;
    cli_talk_sampling sampling; /* as commands have changed it */
    cli_talk *talk;
    char model[TRAIN_PATH], adapter[TRAIN_PATH]; /* as the user named them; "": no adapter */
    int terminal;
    cli_line *editor; /* NULL: lines are read as they come */
    int over;
    char *turn; /* [room] lines of the turn that is being typed */
    size_t bytes, room;
} chat;

/* ---- commands ------------------------------------------------------------------------------------------- */

static ravel_status say_help(chat *c, const char *text, ravel_error *err);

static ravel_status set_system(chat *c, const char *text, ravel_error *err) {
    return cli_talk_system(c->talk, text, err);
}

static ravel_status reset(chat *c, const char *text, ravel_error *err) {
    (void)text, (void)err;
    cli_talk_reset(c->talk);
    return RAVEL_OK;
}

static ravel_status undo(chat *c, const char *text, ravel_error *err) {
    (void)text;
    return cli_talk_undo(c->talk, err);
}

static ravel_status retry(chat *c, const char *text, ravel_error *err) {
    (void)text;
    return cli_talk_retry(c->talk, err);
}

static ravel_status save(chat *c, const char *text, ravel_error *err) {
    if (!text[0]) return CLI_REFUSE(err, "/save FILE: name a file of JSON lines");
    return cli_talk_save(c->talk, text, err);
}

static ravel_status leave(chat *c, const char *text, ravel_error *err) {
    (void)text, (void)err;
    c->over = 1;
    return RAVEL_OK;
}

/* From `model` and `adapter`, which become what the user named if that works. */
static ravel_status use(chat *c, const char *model, const char *adapter, ravel_error *err) {
    if (strlen(model) >= TRAIN_PATH || strlen(adapter) >= TRAIN_PATH)
        return CLI_REFUSE(err, "%.60s...: the path is too long", model);
    ravel_status status = cli_talk_switch(c->talk, model, adapter[0] ? adapter : NULL, err);
    if (status == RAVEL_E_STATE) c->over = 1;
    if (status) return status;
    (void)snprintf(c->model, sizeof c->model, "%s", model);
    (void)snprintf(c->adapter, sizeof c->adapter, "%s", adapter);
    return RAVEL_OK;
}

static void say_model(const chat *c) {
    const train_model_path *p = cli_talk_path(c->talk);
    cli_talk_figures f = cli_talk_last(c->talk);
    (void)fprintf(stderr, "(%s%s%s", p->model, p->adapter[0] ? " with adapter " : "", p->adapter);
    if (c->o->pull.pull) (void)fprintf(stderr, ", weights of %s, version %lld", c->o->pull.pull, (long long)f.version);
    (void)fprintf(stderr, ")\n");
}

static ravel_status use_model(chat *c, const char *text, ravel_error *err) {
    ravel_status status = text[0] ? use(c, text, "", err) : RAVEL_OK;
    if (!status) say_model(c);
    return status;
}

/* Of the model itself, also if the user named another adapter of it. */
static ravel_status use_adapter(chat *c, const char *text, ravel_error *err) {
    char model[TRAIN_PATH];
    const train_model_path *p = cli_talk_path(c->talk);
    (void)snprintf(model, sizeof model, "%s", p->adapter[0] ? p->model : c->model);
    ravel_status status = text[0] ? use(c, model, strcmp(text, "off") == 0 ? "" : text, err) : RAVEL_OK;
    if (!status) say_model(c);
    return status;
}

typedef struct next_step {
    long long after, step; /* the smallest after `after`; -1: none */
} next_step;

static ravel_status find_step(const char *path, const char *name, void *user, ravel_error *err) {
    next_step *n = user;
    long long step;
    (void)path, (void)err;
    if (sscanf(name, "step-%lld", &step) == 1 && step > n->after && (n->step < 0 || step < n->step)) n->step = step;
    return RAVEL_OK;
}

static ravel_status say_steps(const char *folder, ravel_error *err) {
    next_step n = {-1, -1};
    ravel_status status = train_folder_walk(folder, find_step, &n, err);
    for (; !status && n.step >= 0; status = train_folder_walk(folder, find_step, &n, err)) {
        (void)fprintf(stderr, "(step %lld)\n", n.step);
        n = (next_step){n.step, -1};
    }
    return status;
}

/* The folder of the run whose checkpoints are the versions: of the adapter, or else of the model. */
static ravel_status run_of(const chat *c, char *run, ravel_error *err) {
    char inside[TRAIN_PATH];
    (void)snprintf(run, TRAIN_PATH, "%s", c->adapter[0] ? c->adapter : c->model);
    char *at = strstr(run, "/checkpoints/step-");
    if (at) *at = '\0';
    ravel_status status = train_path_join(inside, run, "checkpoints", err);
    if (status || train_path_exists(inside)) return status;
    return CLI_REFUSE(err, "%s is not a run of ravel train: it has one version", run);
}

static ravel_status use_version(chat *c, const char *text, ravel_error *err) {
    char run[TRAIN_PATH], path[TRAIN_PATH];
    char *end;
    if (!text[0]) say_model(c);
    if (!text[0] && c->o->pull.pull) return RAVEL_OK;
    ravel_status status = run_of(c, run, err);
    if (status) return text[0] ? status : (ravel_error_clear(err), RAVEL_OK);
    if (!text[0]) {
        status = train_path_join(path, run, "checkpoints", err);
        return status ? status : say_steps(path, err);
    }
    (void)snprintf(path, sizeof path, "%s", run);
    if (strcmp(text, "newest") != 0) {
        long long step = strtoll(text, &end, 10);
        if (*end || step < 0)
            return CLI_REFUSE(err, "/version takes a step of the run, or newest; not \"%.60s\"", text);
        status = train_checkpoint_folder(run, step, path, err);
        if (!status && !train_path_exists(path))
            status = CLI_REFUSE(err, "%s has no checkpoint of step %lld; /version lists them", run, step);
    }
    if (!status) status = c->adapter[0] ? use(c, c->model, path, err) : use(c, path, "", err);
    if (!status) say_model(c);
    return status;
}

static ravel_status say_status(chat *c, const char *text, ravel_error *err) {
    cli_talk_figures f = cli_talk_last(c->talk);
    (void)text, (void)err;
    say_model(c);
    (void)fprintf(stderr,
                  "(%lld messages; last turn: %lld tokens of prompt, %lld of them kept from before, %lld of answer",
                  (long long)f.turns, (long long)f.prompt, (long long)f.kept, (long long)f.answer);
    (void)fprintf(stderr, f.seconds > 0 ? " at %.1f tokens/s)\n" : ")\n", (double)f.answer / f.seconds);
    return RAVEL_OK;
}

static const struct command {
    const char *name, *takes, *doc;
    ravel_status (*run)(chat *c, const char *text, ravel_error *err);
    const char *done; /* what is said if it worked, with TEXT after it; NULL: it has said something itself */
} commands[] = {{"system", "[TEXT]", "the system's message; without TEXT none", set_system, "system message"},
                {"reset", "", "forget the conversation", reset, "the conversation is forgotten"},
                {"undo", "", "take the last turn back", undo, "the last turn is taken back"},
                {"retry", "", "another answer to the last turn", retry, NULL},
                {"save", "FILE", "append the conversation to a file, as a row to train on", save, "saved in"},
                {"model", "[FOLDER]", "another model, run or adapter", use_model, NULL},
                {"adapter", "[FOLDER|off]", "another adapter of the model, or none", use_adapter, NULL},
                {"version", "[STEP|newest]", "another checkpoint of the run; alone it lists them", use_version, NULL},
                {"status", "", "the model, and figures of the last turn", say_status, NULL},
                {"help", "", "this", say_help, NULL},
                {"exit", "", "end; so does Ctrl-D", leave, NULL}};
enum { COMMANDS = sizeof commands / sizeof *commands };

static ravel_status say_help(chat *c, const char *text, ravel_error *err) {
    char value[64];
    (void)text, (void)err;
    for (int i = 0; i < COMMANDS; i++)
        (void)fprintf(stderr, "  /%-8s %-14s %s\n", commands[i].name, commands[i].takes, commands[i].doc);
    for (const ravel_option *row = sampling_table; row->name; row++) {
        (void)ravel_option_format(row, &c->sampling, value, sizeof value);
        (void)fprintf(stderr, "  /%-11s %-11s %s (now %s)\n", row->name, "X", row->doc, value);
    }
    (void)fprintf(
        stderr,
        "  Pasted text is one turn. A line that ends with \\ goes on in the next; so does all between lines of\n"
        "  \"\"\"; Alt-Enter is a line break.\n");
    return RAVEL_OK;
}

static ravel_status unknown(const char *name, ravel_error *err) {
    enum { NAMES = COMMANDS + sizeof sampling_table / sizeof *sampling_table };
    const char *names[NAMES];
    size_t count = 0;
    for (int i = 0; i < COMMANDS; i++) names[count++] = commands[i].name;
    for (const ravel_option *row = sampling_table; row->name; row++) names[count++] = row->name;
    const char *near = ravel__suggest(name, names, count);
    return CLI_REFUSE(err, "there is no /%.40s%s%s%s; // begins a text with a slash", name,
                      near ? "; did you mean /" : ": /help lists commands", near ? near : "", near ? "?" : "");
}

/* line: after its slash. */
static ravel_status run_command(chat *c, char *line, ravel_error *err) {
    char *text = line + strcspn(line, " \t");
    if (*text) *text++ = '\0';
    text += strspn(text, " \t");
    for (const struct command *x = commands; x < commands + COMMANDS; x++) {
        if (strcmp(line, x->name) != 0) continue;
        ravel_status done = x->run(c, text, err);
        if (!done && x->done && !c->o->quiet)
            (void)fprintf(stderr, "(%s%s%s)\n", x->done, x->takes[0] ? ": " : "",
                          !x->takes[0] ? ""
                          : text[0]    ? text
                                       : "none");
        return done;
    }
    const ravel_option *row = ravel_option_find(sampling_table, line);
    if (!row) return unknown(line, err);
    char value[64];
    ravel_status status = text[0] ? ravel_option_set(sampling_table, &c->sampling, row->name, text, err) : RAVEL_OK;
    (void)ravel_option_format(row, &c->sampling, value, sizeof value);
    if (!status && !c->o->quiet) (void)fprintf(stderr, "(%s %s)\n", row->name, value);
    return status;
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

static ravel_status add_line(chat *c, const char *line, size_t bytes, ravel_error *err) {
    if (c->bytes + bytes + 2 > c->room) {
        size_t room = 2 * (c->bytes + bytes) + 256;
        char *grown = realloc(c->turn, room);
        if (!grown) return ravel__no_memory(err, room, "a turn");
        c->turn = grown;
        c->room = room;
    }
    memcpy(c->turn + c->bytes, line, bytes);
    c->bytes += bytes;
    c->turn[c->bytes] = '\0';
    return RAVEL_OK;
}

static ssize_t read_line(const chat *c, const char *prompt, char **line, size_t *room) {
    size_t typed;
    if (c->editor) {
        const char *text = cli_line_read(c->editor, prompt, &typed);
        free(*line);
        *line = text ? strdup(text) : NULL;
        return *line ? (ssize_t)typed : -1;
    }
    if (c->terminal) {
        (void)fputs(prompt, stdout);
        (void)fflush(stdout);
    }
    errno = 0;
    ssize_t bytes = getline(line, room, stdin);
    while (bytes > 0 && strchr("\r\n", (*line)[bytes - 1])) (*line)[--bytes] = '\0';
    return bytes;
}

/* A turn or a command in c->turn; 0 at the end of the input. */
static int read_turn(chat *c, ravel_error *err) {
    static const char fence[] = "\"\"\"";
    char *line = NULL;
    size_t room = 0;
    int fenced = 0, more = 1, first = 1;
    c->bytes = 0;
    while (more && !err->status) {
        ssize_t bytes = read_line(c, first ? "> " : ". ", &line, &room);
        if (bytes < 0) break;
        int is_fence = strcmp(line, fence) == 0;
        if (is_fence && (first || fenced)) {
            fenced = more = !fenced;
            first = 0;
            continue;
        }
        more = fenced || (bytes > 0 && line[bytes - 1] == '\\');
        if (!first && c->bytes) (void)add_line(c, "\n", 1, err);
        (void)add_line(c, line, (size_t)bytes - (more && !fenced), err);
        first = 0;
    }
    free(line);
    return !first;
}

static ravel_status take_turn(chat *c, ravel_error *err) {
    if (!c->turn || c->bytes == 0) return RAVEL_OK;
    if (c->turn[0] == '/' && c->turn[1] != '/') return run_command(c, c->turn + 1, err);
    int slash = c->turn[0] == '/';
    return cli_talk_say(c->talk, c->turn + slash, c->bytes - (size_t)slash, err);
}

static int talk(chat *c, ravel_error *err) {
    while (!c->over && read_turn(c, err)) {
        ravel_status status = err->status ? (ravel_status)err->status : take_turn(c, err);
        if (cli_stop && (!c->terminal || cli_stop != SIGINT)) break;
        if (cli_stop && !c->o->quiet) (void)fprintf(stderr, "(stopped)\n");
        cli_stop = 0;
        if (status && (!c->terminal || c->over)) break;
        if (status) (void)cli_fail("chat", err);
        ravel_error_clear(err);
    }
    if (c->terminal && !c->over) (void)puts("");
    if (err->status) return cli_fail("chat", err);
    return cli_stop ? 128 + cli_stop : CLI_OK;
}

/* ---- the command ---------------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: ravel chat MODEL [options]\n\n"
    "A conversation with a model folder, a run or an adapter: a line is a turn, /help lists commands. From a pipe,\n"
    "each line is a turn too.\n\n"
    "examples:\n"
    "  ravel chat Qwen3-0.6B\n"
    "  ravel chat runs/sft-1 --system 'Answer in one sentence.' --temperature 0\n"
    "  printf '%s\\n' 'Say red.' '/reset' 'Say blue.' | ravel chat runs/sft-1\n\n";

static int run(const chat_options *o, const train_stop_texts *stops) {
    ravel_error err = RAVEL_ERROR_INIT;
    cli_voice voice = {"chat", o->quiet, 0};
    ravel_logger logger = {cli_log, &voice};
    chat c = {.o = o, .sampling = o->sampling, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    const cli_talk_options options = {.model = &o->model,
                                      .pull = &o->pull,
                                      .sampling = &c.sampling,
                                      .stops = stops,
                                      .context = o->context,
                                      .raw = o->raw,
                                      .stop = &cli_stop,
                                      .logger = &logger};
    (void)snprintf(c.model, sizeof c.model, "%s", o->model.model);
    (void)snprintf(c.adapter, sizeof c.adapter, "%s", o->model.adapter ? o->model.adapter : "");
    ravel_status status = cli_talk_open(&options, &c.talk, &err);
    if (!status && o->system) status = cli_talk_system(c.talk, o->system, &err);
    if (!status && c.terminal && !o->quiet) {
        say_model(&c);
        (void)fprintf(stderr, "(/help lists commands; Ctrl-C stops an answer, Ctrl-D ends)\n");
    }
    if (!status && c.terminal) c.editor = cli_line_open();
    int code = status ? cli_fail("chat", &err) : talk(&c, &err);
    cli_line_free(c.editor);
    cli_talk_free(c.talk);
    free(c.turn);
    return code;
}

int cli_chat(int argc, char **argv) {
    chat_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1], *stops[CLI_STOPS];
    int word_count = 0, stop_count = 0, code;
    const cli_options sets[SETS] = {{"the model", cli_model_table, &o.model},
                                    {"the conversation", table, &o},
                                    {"answers; each is a command too", sampling_table, &o.sampling},
                                    {"weights that trainers publish", cli_pull_table, &o.pull}};
    const cli_form form = {"chat", usage, NULL, sets, SETS, 1};
    if (!cli_begin(&form, argc, argv, words, &word_count, &code)) return code;
    if (cli_stops(argc, argv, sets, SETS, stops, &stop_count, &err) ||
        cli_model_check(&o.model, word_count ? words[0] : NULL, &err))
        return cli_usage("chat", &err);
    cli_catch_stop(NULL);
    return run(&o, &(const train_stop_texts){stops, stop_count});
}
