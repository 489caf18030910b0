/* ravel completion: scripts for bash, zsh and fish, made from the option tables: each command is asked for its --help,
 * and the rows that it would print are collected. A script is one line per option:
 *
 *     words(COMMAND)            options of a command, `train sft` being a command of its own
 *     values(COMMAND, OPTION)   words of an option of choices; files are completed for the others */
#include "cli/cli.h"

#include "base/options.h"
#include "train/learn/choice.h"
#include "train/rl/task.h"
#include "train/run/config/words.h"

#include <ravel/shape.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct shell {
    const char *name;
    void (*begin)(FILE *out);
    void (*begin_command)(FILE *out, const char *path); /* "train sft" */
    void (*option)(FILE *out, const char *path, const ravel_option *row);
    void (*end_command)(FILE *out);
    void (*end)(FILE *out);
} shell;

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

static void put_choices(FILE *out, const ravel_option *row) {
    char word[128];
    for (int i = 0; value_at(row, i, word, sizeof word); i++) (void)fprintf(out, i ? " %s" : "%s", word);
}

/* Names of other systems that are an option here: theirs=ours. */
static void put_words(FILE *out) {
    for (const train_word *w = train_words; w < train_words + train_word_count; w++)
        for (const char *at = w->theirs; *at && w->ours && strncmp(w->ours, "--", 2) == 0;) {
            size_t length = strcspn(at, " ");
            (void)fprintf(out, "--%.*s=%s ", (int)length, at, w->ours);
            at += length + strspn(at + length, " ");
        }
}

/* A doc as a shell takes it in single quotes, to its first semicolon or full stop. */
static void put_doc(FILE *out, const char *doc, const char *escaped) {
    for (size_t i = 0; doc[i] && doc[i] != ';' && !(doc[i] == '.' && doc[i + 1] == ' '); i++) {
        if (strchr(escaped, doc[i])) (void)fputc('\\', out);
        (void)fputs(doc[i] == '\'' ? "'\\''" : (char[]){doc[i], '\0'}, out);
    }
}

static void put_commands(FILE *out) {
    for (int i = 0; cli_command_at(i); i++) (void)fprintf(out, i ? " %s" : "%s", cli_command_at(i)->name);
}

/* ---- bash ----------------------------------------------------------------------------------------------- */

static void bash_begin(FILE *out) {
    (void)fputs("# ravel: completion for bash\n_ravel_options() {\n    case \"$1\" in\n", out);
}
static void bash_begin_command(FILE *out, const char *path) {
    (void)fprintf(out, "    '%s') echo '", path);
}
static void bash_option(FILE *out, const char *path, const ravel_option *row) {
    (void)path;
    (void)fprintf(out, "--%s ", row->name);
}
static void bash_end_command(FILE *out) {
    (void)fputs("' ;;\n", out);
}
static void bash_end(FILE *out) {
    (void)out;
}

/* ---- zsh ------------------------------------------------------------------------------------------------ */

static void zsh_begin(FILE *out) {
    (void)fputs("#compdef ravel\n# ravel: completion for zsh\n_ravel_options() {\n    case \"$1\" in\n", out);
}
static void zsh_begin_command(FILE *out, const char *path) {
    (void)fprintf(out, "    '%s') specs=(", path);
}
static void zsh_option(FILE *out, const char *path, const ravel_option *row) {
    (void)path;
    (void)fprintf(out, "\n        '--%s[", row->name);
    put_doc(out, row->doc, "[]:\\");
    (void)fputs("]", out);
    if (has_values(row)) {
        (void)fputs(":value:(", out);
        put_choices(out, row);
        (void)fputs(")", out);
    } else if (row->type != RAVEL_OPTION_BOOL) {
        (void)fputs(row->type == RAVEL_OPTION_STRING ? ":value:_files" : ":number:", out);
    }
    (void)fputs("'", out);
}
static void zsh_end_command(FILE *out) {
    (void)fputs(" '*:file:_files') ;;\n", out);
}
static void zsh_end(FILE *out) {
    (void)fputs(
        "    esac\n}\n_ravel() {\n    local -a specs\n    local path=${words[2]}\n    if (( CURRENT == 2 )); then\n        compadd ",
        out);
    put_commands(out);
    (void)fputs(
        "\n        return\n    fi\n    if (( CURRENT == 3 )); then\n        case $path in\n        completion) compadd bash zsh fish; return ;;\n"
        "        help) compadd ",
        out);
    put_commands(out);
    (void)fputs(
        "; return ;;\n        esac\n    fi\n    if [[ $path == train ]]; then\n        if (( CURRENT == 3 )); then compadd sft dpo grpo; return; fi\n"
        "        path=\"train ${words[3]}\"\n        shift words; (( CURRENT-- ))\n    fi\n    shift words; (( CURRENT-- ))\n"
        "    _ravel_options \"$path\"\n    local word=${words[CURRENT]//_/-} pair\n    local -a ours\n"
        "    if [[ $word == --?* && -z ${(M)specs:#$word*} ]]; then\n        for pair in ",
        out);
    put_words(out);
    (void)fputs(
        "; do\n            [[ $pair == $word* && -n ${(M)specs:#${pair#*=}\\[*} ]] && ours+=(${pair#*=})\n        done\n"
        "        (( $#ours )) && { compadd -U -- ${(u)ours}; return; }\n    fi\n"
        "    _arguments -s \"${specs[@]}\"\n}\ncompdef _ravel ravel 2>/dev/null\n",
        out);
}

/* ---- fish ----------------------------------------------------------------------------------------------- */

static void fish_begin(FILE *out) {
    (void)fputs("# ravel: completion for fish\ncomplete -c ravel -n __fish_use_subcommand -f\n", out);
    for (int i = 0; cli_command_at(i); i++) {
        (void)fprintf(out, "complete -c ravel -n __fish_use_subcommand -a %s -d '", cli_command_at(i)->name);
        put_doc(out, cli_command_at(i)->summary, "\\");
        (void)fputs("'\n", out);
    }
    (void)fputs("complete -c ravel -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n"
                "complete -c ravel -n '__fish_seen_subcommand_from help' -f -a '",
                out);
    put_commands(out);
    (void)fputs("'\n", out);
    (void)fputs(
        "complete -c ravel -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from sft dpo grpo' -f -a 'sft dpo grpo'\n",
        out);
}
static void fish_begin_command(FILE *out, const char *path) {
    (void)out, (void)path;
}
static void fish_option(FILE *out, const char *path, const ravel_option *row) {
    const char *last = strrchr(path, ' ');
    (void)fprintf(out, "complete -c ravel -n '__fish_seen_subcommand_from %s' -l %s -d '", last ? last + 1 : path,
                  row->name);
    put_doc(out, row->doc, "\\");
    (void)fputs("'", out);
    if (has_values(row)) {
        (void)fputs(" -x -a '", out);
        put_choices(out, row);
        (void)fputs("'", out);
    } else if (row->type != RAVEL_OPTION_BOOL) {
        (void)fputs(row->type == RAVEL_OPTION_STRING ? " -r" : " -x", out);
    }
    (void)fputs("\n", out);
}
static void fish_end(FILE *out) {
    (void)out;
}

static const shell shells[] = {
    {"bash", bash_begin, bash_begin_command, bash_option, bash_end_command, bash_end},
    {"zsh", zsh_begin, zsh_begin_command, zsh_option, zsh_end_command, zsh_end},
    {"fish", fish_begin, fish_begin_command, fish_option, fish_end, fish_end},
};
enum { SHELLS = sizeof shells / sizeof *shells };

/* ---- collecting ----------------------------------------------------------------------------------------- */

typedef struct collection {
    const shell *shell;
    FILE *out;
    char path[96]; /* of the command, "train sft" */
    int choices;   /* bash: a second pass writes the words of options instead */
} collection;

static void take(void *user, const char *title, const ravel_option *row) {
    const collection *c = user;
    (void)title;
    if (!c->choices) {
        c->shell->option(c->out, c->path, row);
    } else if (has_values(row)) {
        (void)fprintf(c->out, "    '%s --%s') echo '", c->path, row->name);
        put_choices(c->out, row);
        (void)fputs("' ;;\n", c->out);
    }
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

/* Runs `--help` of a command; what it prints goes nowhere. */
static void ask(collection *c, const cli_command *command, const char *kind) {
    (void)snprintf(c->path, sizeof c->path, "%s%s%s", command->name, kind ? " " : "", kind ? kind : "");
    if (!c->choices) c->shell->begin_command(c->out, c->path);
    cli_ask_options(command, kind, take, c);
    if (!c->choices) c->shell->end_command(c->out);
}

static void ask_all(collection *c) {
    static const char *const kinds[] = {"sft", "dpo", "grpo"};
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *command = cli_command_at(i);
        int several = strcmp(command->name, "train") == 0;
        for (int k = 0; k < (several ? 3 : 1); k++) ask(c, command, several ? kinds[k] : NULL);
    }
}

/* Bash has no descriptions: words, then values, then one function that looks at the line. */
static void finish_bash(collection *c) {
    (void)fputs("    esac\n}\n_ravel_values() {\n    case \"$1\" in\n", c->out);
    c->choices = 1;
    ask_all(c);
    (void)fputs(
        "    esac\n}\n_ravel() {\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=${COMP_WORDS[1]}\n"
        "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W '",
        c->out);
    put_commands(c->out);
    (void)fputs(
        " help' -- \"$word\")); return; fi\n"
        "    if [ \"$COMP_CWORD $path\" = '2 completion' ]; then COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\")); return; fi\n"
        "    if [ \"$COMP_CWORD $path\" = '2 help' ]; then COMPREPLY=($(compgen -W '",
        c->out);
    put_commands(c->out);
    (void)fputs(
        "' -- \"$word\")); return; fi\n"
        "    if [ \"$path\" = train ]; then\n"
        "        if [ \"$COMP_CWORD\" = 2 ]; then COMPREPLY=($(compgen -W 'sft dpo grpo' -- \"$word\")); return; fi\n"
        "        path=\"train ${COMP_WORDS[2]}\"\n    fi\n"
        "    local values=$(_ravel_values \"$path $before\")\n"
        "    if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- \"$word\")); return; fi\n"
        "    case \"$word\" in -*) ;; *) return ;; esac\n"
        "    local own=$(_ravel_options \"$path\") pair ours=\n"
        "    COMPREPLY=($(compgen -W \"$own\" -- \"$word\"))\n"
        "    case \"${#COMPREPLY[@]} $word\" in '0 --'?*) ;; *) return ;; esac\n"
        "    word=${word//_/-}\n"
        "    for pair in ",
        c->out);
    put_words(c->out);
    (void)fputs(
        "; do\n        case \"$pair\" in \"$word\"*) case \" $own\" in *\" ${pair#*=} \"*) ours=\"$ours ${pair#*=}\" ;; esac ;; esac\n    done\n"
        "    COMPREPLY=($(printf '%s\\n' $ours | sort -u))\n"
        "}\ncomplete -o default -F _ravel ravel\n",
        c->out);
}

/* Of a shell, or (NULL) of the man pages. */
static ravel_status print_script(const shell *s, ravel_error *err) {
    (void)fflush(stdout);
    int copy = dup(STDOUT_FILENO);
    FILE *out = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (!out || !freopen("/dev/null", "w", stdout)) {
        if (out) (void)fclose(out);
        return ravel_error_set(err, RAVEL_E_IO, "standard output cannot be redirected");
    }
    collection c = {.shell = s, .out = out};
    if (s) s->begin(out);
    if (s) ask_all(&c);
    if (!s)
        cli_print_man(out);
    else if (s == &shells[0])
        finish_bash(&c);
    else
        s->end(out);
    int failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? ravel_error_set(err, RAVEL_E_IO, "standard output could not be written") : RAVEL_OK;
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
    (void)ravel_error_set(&err, RAVEL_E_ARGUMENT, "say for which shell: ravel completion bash, zsh or fish");
    return cli_usage("completion", &err);
}
