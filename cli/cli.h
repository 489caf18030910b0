/* Shared by the commands of `ravel`: the table of commands, argument parsing from option tables, progress.
 *
 * A command is one function and one row in main.c. Its flags are the rows of one or more option tables (its own, and
 * the library's: ravel_plan_option_table and so on), so `--help`, parsing and suggestions come from one place.
 * Exit codes everywhere: 0, 1 for data and run errors, 2 for usage. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/assert.h"
#include "base/number.h"
#include "base/options.h"
#include "report/printer.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_command {
    const char *name;
    const char *summary;               /* one line for `ravel --help` */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
} cli_command;

int cli_chat(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_export(int argc, char **argv);
int cli_feed(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_merge(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_refit(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_stop_run(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_train(int argc, char **argv);
int cli_words(int argc, char **argv);

/* ---- arguments ------------------------------------------------------------------------------------------ */

/* What a command line says that cannot be. */
#define CLI_REFUSE(err, ...) ravel_error_set(err, RAVEL_E_ARGUMENT, __VA_ARGS__)

/* A table and the struct it fills, which already holds its defaults. */
typedef struct cli_options {
    const char *title; /* a heading in --help */
    ravel_option_table table;
    void *options;
} cli_options;

/* Takes `--name value`, `--name=value` and, for BOOL, `--name` and `--no-name`; other words go to `words` (at most
 * `max_words`, their number to *words_count). "--" ends the flags. E_ARGUMENT quotes the word and suggests a name. */
ravel_status cli_parse(int argc, char **argv, const cli_options *sets, int set_count, const char **words, int max_words,
                       int *words_count, ravel_error *err);
/* How a command begins. */
typedef struct cli_form {
    const char *name, *usage, *more; /* --help: what stands before the options, and after them (NULL: nothing) */
    const cli_options *sets;
    int set_count, most; /* words */
} cli_form;
/* Sets all defaults, then takes the arguments. 0: the command ends with *code; --help was printed, or the line is wrong. */
int cli_begin(const cli_form *form, int argc, char **argv, const char **words, int *count, int *code);

/* `choices` of a STRING that may be given several times. */
extern const char cli_several[];
/* All values of --name, of which there may be several (the option's own field has the last): *count of them to
 * values[room]. The arguments are those that cli_parse took. E_ARGUMENT if they are too many. */
ravel_status cli_values(int argc, char **argv, const cli_options *sets, int set_count, const char *name,
                        const char **values, int room, int *count, ravel_error *err);
/* `from` without the rows whose names are in "a|b|c": those that the command decides itself, or that another of its
 * tables means otherwise. Written to rows[room]. */
ravel_option_table cli_without(ravel_option_table from, const char *names, ravel_option *rows, int room);
/* Prints the flags of the sets with defaults and choices, wrapped to a terminal's width. The value of a STRING is shown
 * as its row's `choices` say (FILE, JSON), which is not used otherwise. */
void cli_print_options(const cli_options *sets, int set_count);
/* From here on cli_print_options hands its rows over, each with the title of its set, instead of printing them; NULL:
 * it prints again. */
void cli_collect_options(void (*take)(void *user, const char *title, const ravel_option *row), void *user);
/* Hands over the rows that the --help of a command would print; `kind`: of ravel train, else NULL. What it prints
 * besides goes to standard output. */
void cli_ask_options(const cli_command *command, const char *kind,
                     void (*take)(void *user, const char *title, const ravel_option *row), void *user);
/* What --help says of a value: "FILE", "N"; "" for a switch. */
const char *cli_value_word(const ravel_option *row);
/* " [4096]", " [on; --no-x]" or "". */
void cli_write_preset(const ravel_option *row, char *out, size_t room);
/* The options of every command as mdoc, for docs/man (mk/man.sh). */
void cli_print_man(ravel__printer *out);
/* The rows of a command, none of which is hidden; NULL after the last. */
const cli_command *cli_command_at(int index);
/* Whether --help or -h is among the arguments. */
int cli_wants_help(int argc, char **argv);

/* Control characters and invalid UTF-8 become '?': sentences quote bytes of files, which must not reach a terminal
 * unfiltered. Lists stay: a newline before two spaces. */
void cli_make_printable(char *text);
/* Prints "ravel COMMAND: sentence" to stderr and returns the exit code that fits the status. */
int cli_fail(const char *command, const ravel_error *err);
/* The same for an error of the command line itself: CLI_USAGE whatever the status. */
int cli_usage(const char *command, const ravel_error *err);

/* ---- signals -------------------------------------------------------------------------------------------- */

/* The signal that asked for an end, SIGINT, SIGTERM or SIGUSR1; 0: none. */
extern volatile int cli_stop;
/* From here on they set it and call `also` (async-signal-safe; may be NULL). The second one ends the process, if it
 * does not come together with the first. */
void cli_catch_stop(void (*also)(int number));

/* ---- time and progress -------------------------------------------------------------------------------- */

/* Seconds of a clock that only goes forward. */
double cli_now(void);
/* Whether standard error is a terminal that understands escapes (TERM=dumb does not). */
int cli_live_terminal(void);
/* A line on stderr that shows after a second of work and is wiped at the end; silent if there is no such terminal.
 * One at a time. `total` 0: not known, and `done` is shown by itself. */
void cli_progress(const char *what, double done, double total);
void cli_progress_end(void);
/* For one long call without progress reports: shows `what` and the seconds, from a second on, until the end. */
void cli_busy(const char *what);
void cli_busy_end(void);

/* Who speaks on standard error: a command. */
typedef struct cli_voice {
    const char *command;
    int quiet; /* warnings alone */
    int plain; /* what is no warning stands without the command's name */
} cli_voice;
/* Of a ravel_logger, and of training's hooks: `voice` is a cli_voice. */
void cli_log(void *voice, ravel_log_level level, const char *text);
void cli_show_progress(void *voice, const char *what, double done, double total);

/* ---- files ---------------------------------------------------------------------------------------------- */

/* No output may be one of the command's inputs, and no two outputs may be one file: symbolic and hard links, "./x" and
 * "x" are seen through. A command names its inputs and outputs before it reads or writes anything. NULL and "-" are
 * passed over; devices and pipes may be named twice; of an input folder its JSON, JSONL and safetensors files count.
 * E_ARGUMENT says which two options meet. */
ravel_status cli_claim_input(const char *option, const char *path, ravel_error *err);
ravel_status cli_claim_output(const char *option, const char *path, ravel_error *err);

/* Also the name that cli_output_partial gives. */
ravel_status cli_claim_partial(const char *option, const char *path, ravel_error *err);

/* A file that is written under a temporary name and renamed when it is complete, or standard output ("-"). A symbolic
 * link stays one, and its target is replaced; a device or a pipe is written to. */
typedef struct cli_output {
    void *file; /* FILE */
    const char *path;
    char target[4096]; /* the path with its links followed */
    char aside[4096];  /* "": written in place */
    int64_t bytes;
    double expected; /* bytes, for the progress line; 0: not known */
    int closed;      /* the reader of standard output has closed it: not an error, and the rest is not written */
    int error;       /* number of the first failure to write; 0: none */
} cli_output;

ravel_status cli_output_open(cli_output *output, const char *path, ravel_error *err);
/* Has the type of ravel_write. */
ravel_status cli_output_write(void *output, const char *text, size_t bytes, ravel_error *err);
/* The same into memory: a train_out (train/model/out.h). */
ravel_status cli_output_keep(void *out, const char *text, size_t bytes, ravel_error *err);
/* Before it is closed: it holds not all that was asked for, and is named FILE.partial. Standard output, devices and
 * pipes have no other name. */
void cli_output_partial(cli_output *output);
/* Flushes what printf wrote to `file`; cli_output_close reports a failure. */
void cli_output_flush(cli_output *output);
/* Ends it. With a status other than RAVEL_OK the file is thrown away and the status returned; otherwise E_IO if not
 * all of it could be written (a full disk). */
ravel_status cli_output_close(cli_output *output, ravel_status status, ravel_error *err);

/* What `print` prints, as a file of its own or on standard output. */
ravel_status cli_output_print(const char *path, void (*print)(ravel__printer *out, const void *user), const void *user,
                              ravel_error *err);

/* A text whose marks are replaced by what their rows put there; a row without a mark is the last. */
typedef struct cli_mark {
    const char *mark; /* "@words@" */
    void (*put)(ravel__printer *out, const void *user);
} cli_mark;
void cli_fill(ravel__printer *out, const char *text, const cli_mark *marks, const void *user);
/* Files that are part of the command (embed.c). */
extern const char cli_bash[], cli_zsh[], cli_fish[], cli_table_style[];

/* The exit code of a command that ended with `code`: CLI_FAILED, with a sentence, if its output could not be written (a
 * full disk). A reader that closed its pipe is not a failure. */
int cli_finish(const char *command, int code);

#endif
