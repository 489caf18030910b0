/* ravel completion: scripts for bash, zsh and fish, from the option tables: each command is asked for its --help, and
 * the rows that it would print are collected. What is the same for all commands is in ravel.bash and so on, with
 * marks. */
#include "cli/cli.h"

#include "train/learn/choice.h"
#include "train/rl/task.h"
#include "train/run/config/config.h"
#include "train/run/config/words.h"

#include <ravel/shape.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The values that an option is known to take, by index; 0 after the last. */
static int value_at(const ravel_option *row, int index, char *word, size_t room) {
    const char *known = NULL;
    if (row->type == RAVEL_OPTION_ENUM) return ravel__choice_word(row->choices, index, word, room);
    if (strcmp(row->name, "kernels") == 0) return ravel__choice_word(TRAIN_KERNELS_NAMES, index, word, room);
    if (strcmp(row->name, "task") == 0) known = train_task_name(index);
    if (strcmp(row->name, "shape") == 0) known = ravel_shape_name(index);
    if (known) (void)snprintf(word, room, "%s", known);
    return known != NULL;
}

static int has_values(const ravel_option *row) {
    char word[128];
    return value_at(row, 0, word, sizeof word);
}

static void put_choices(ravel__printer *out, const ravel_option *row) {
    char word[128];
    for (int i = 0; value_at(row, i, word, sizeof word); i++) ravel__printer_format(out, i ? " %s" : "%s", word);
}

/* Names of other systems that are an option here: theirs=ours. */
static void put_words(ravel__printer *out, const void *s) {
    (void)s;
    for (const train_word *w = train_words; w < train_words + train_word_count; w++)
        for (const char *at = w->theirs; *at && w->ours && strncmp(w->ours, "--", 2) == 0;) {
            size_t length = strcspn(at, " ");
            ravel__printer_format(out, "--%.*s=%s ", (int)length, at, w->ours);
            at += length + strspn(at + length, " ");
        }
}

/* A doc as a shell takes it in single quotes, to its first semicolon or full stop. */
static void put_doc(ravel__printer *out, const char *doc, const char *escaped) {
    for (size_t i = 0; doc[i] && doc[i] != ';' && !(doc[i] == '.' && doc[i + 1] == ' '); i++) {
        if (strchr(escaped, doc[i])) ravel__printer_string(out, "\\");
        ravel__printer_string(out, doc[i] == '\'' ? "'\\''" : (char[]){doc[i], '\0'});
    }
}

static void put_commands(ravel__printer *out, const void *s) {
    (void)s;
    for (int i = 0; cli_command_at(i); i++) ravel__printer_format(out, i ? " %s" : "%s", cli_command_at(i)->name);
}

static void put_summaries(ravel__printer *out, const void *s) {
    (void)s;
    for (int i = 0; cli_command_at(i); i++) {
        ravel__printer_format(out, "complete -c ravel -n __fish_use_subcommand -a %s -d '", cli_command_at(i)->name);
        put_doc(out, cli_command_at(i)->summary, "\\");
        ravel__printer_string(out, "'\n");
    }
}

/* ---- rows of a shell ---------------------------------------------------------------------------------------- */

typedef struct shell {
    const char *name, *script;
    const char *before, *between, *after; /* stand around the command and around its rows; NULL: no command */
    void (*option)(ravel__printer *out, const char *path, const ravel_option *row);
} shell;

static void bash_option(ravel__printer *out, const char *path, const ravel_option *row) {
    (void)path;
    ravel__printer_format(out, "--%s ", row->name);
}

static void bash_values(ravel__printer *out, const char *path, const ravel_option *row) {
    if (!has_values(row)) return;
    ravel__printer_format(out, "    '%s --%s') echo '", path, row->name);
    put_choices(out, row);
    ravel__printer_string(out, "' ;;\n");
}

static void zsh_option(ravel__printer *out, const char *path, const ravel_option *row) {
    (void)path;
    ravel__printer_format(out, "\n        '--%s[", row->name);
    put_doc(out, row->doc, "[]:\\");
    ravel__printer_string(out, "]");
    if (has_values(row)) {
        ravel__printer_string(out, ":value:(");
        put_choices(out, row);
        ravel__printer_string(out, ")");
    } else if (row->type != RAVEL_OPTION_BOOL) {
        ravel__printer_string(out, row->type == RAVEL_OPTION_STRING ? ":value:_files" : ":number:");
    }
    ravel__printer_string(out, "'");
}

static void fish_option(ravel__printer *out, const char *path, const ravel_option *row) {
    const char *last = strrchr(path, ' ');
    ravel__printer_format(out, "complete -c ravel -n '__fish_seen_subcommand_from %s' -l %s -d '",
                          last ? last + 1 : path, row->name);
    put_doc(out, row->doc, "\\");
    ravel__printer_string(out, "'");
    if (has_values(row)) {
        ravel__printer_string(out, " -x -a '");
        put_choices(out, row);
        ravel__printer_string(out, "'");
    } else if (row->type != RAVEL_OPTION_BOOL) {
        ravel__printer_string(out, row->type == RAVEL_OPTION_STRING ? " -r" : " -x");
    }
    ravel__printer_string(out, "\n");
}

static const shell shells[] = {{"bash", cli_bash, "    '", "') echo '", "' ;;\n", bash_option},
                               {"zsh", cli_zsh, "    '", "') specs=(", " '*:file:_files') ;;\n", zsh_option},
                               {"fish", cli_fish, NULL, NULL, NULL, fish_option}};
enum { SHELLS = sizeof shells / sizeof *shells };

/* ---- collecting ----------------------------------------------------------------------------------------- */

typedef struct collection {
    ravel__printer *out;
    char path[96]; /* of the command, "train sft" */
    void (*option)(ravel__printer *out, const char *path, const ravel_option *row);
} collection;

static void take(void *user, const char *title, const ravel_option *row) {
    const collection *c = user;
    (void)title;
    c->option(c->out, c->path, row);
}

void cli_ask_options(const cli_command *command, const char *kind,
                     void (*take_row)(void *user, const char *title, const ravel_option *row), void *user) {
    char name[64], word[16] = "", flag[] = "--help";
    char *argv[] = {name, kind ? word : flag, kind ? flag : NULL, NULL};
    (void)snprintf(name, sizeof name, "%s", command->name);
    (void)snprintf(word, sizeof word, "%s", kind ? kind : "");
    cli_collect_options(take_row, user);
    (void)command->run(kind ? 3 : 2, argv);
    (void)fflush(stdout);
    cli_collect_options(NULL, NULL);
}

/* Every command, a kind of training being one of its own. What --help prints besides goes nowhere. */
static void put_rows(ravel__printer *out, const shell *s, int values) {
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *command = cli_command_at(i);
        int several = strcmp(command->name, "train") == 0;
        for (int k = 0; k < (several ? TRAIN_KINDS : 1); k++) {
            const char *kind = several ? train_kind_name((train_kind)k) : NULL;
            collection c = {.out = out, .option = values ? bash_values : s->option};
            (void)snprintf(c.path, sizeof c.path, "%s%s%s", command->name, kind ? " " : "", kind ? kind : "");
            if (s->before && !values) ravel__printer_format(out, "%s%s%s", s->before, c.path, s->between);
            cli_ask_options(command, kind, take, &c);
            if (s->before && !values) ravel__printer_string(out, s->after);
        }
    }
}

static void put_options(ravel__printer *out, const void *s) {
    put_rows(out, s, 0);
}
static void put_values(ravel__printer *out, const void *s) {
    put_rows(out, s, 1);
}
static void put_kinds(ravel__printer *out, const void *s) {
    (void)s;
    for (int k = 0; k < TRAIN_KINDS; k++) ravel__printer_format(out, k ? " %s" : "%s", train_kind_name((train_kind)k));
}

static const cli_mark marks[] = {{"@commands@", put_commands},
                                 {"@kinds@", put_kinds},
                                 {"@words@", put_words},
                                 {"@summaries@", put_summaries},
                                 {"@options@", put_options},
                                 {"@values@", put_values},
                                 {0}};

static ravel_status write_file(void *file, const char *text, size_t bytes, ravel_error *err) {
    return fwrite(text, 1, bytes, file) == bytes
               ? RAVEL_OK
               : ravel_error_set(err, RAVEL_E_IO, "standard output could not be written");
}

/* Of a shell, or (NULL) of the man pages. What commands print goes nowhere meanwhile. */
static ravel_status print_script(const shell *s, ravel_error *err) {
    ravel__printer out;
    (void)fflush(stdout);
    int copy = dup(STDOUT_FILENO);
    FILE *file = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (!file || !freopen("/dev/null", "w", stdout)) {
        if (file) (void)fclose(file);
        return ravel_error_set(err, RAVEL_E_IO, "standard output cannot be redirected");
    }
    ravel__printer_begin(&out, write_file, file, err);
    if (s)
        cli_fill(&out, s->script, marks, s);
    else
        cli_print_man(&out);
    ravel_status status = ravel__printer_end(&out);
    int failed = fclose(file) != 0;
    return failed && !status ? ravel_error_set(err, RAVEL_E_IO, "standard output could not be written") : status;
}

int cli_completion(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (cli_wants_help(argc, argv)) {
        printf(
            "usage: ravel completion bash|zsh|fish\n\n"
            "Prints a script that completes commands, options and their values. make install puts them in place; by hand:\n\n"
            "  source <(ravel completion bash)\n"
            "  ravel completion zsh >~/.zfunc/_ravel\n"
            "  ravel completion fish >~/.config/fish/completions/ravel.fish\n\n"
            "ravel completion man prints the options of all commands as the man pages have them.\n");
        return CLI_OK;
    }
    for (int i = 0; argc == 2 && i < SHELLS; i++)
        if (strcmp(argv[1], shells[i].name) == 0)
            return print_script(&shells[i], &err) ? cli_fail("completion", &err) : CLI_OK;
    if (argc == 2 && strcmp(argv[1], "man") == 0)
        return print_script(NULL, &err) ? cli_fail("completion", &err) : CLI_OK;
    (void)CLI_REFUSE(&err, "say for which shell: ravel completion bash, zsh or fish");
    return cli_usage("completion", &err);
}
