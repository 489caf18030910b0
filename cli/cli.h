/* What the commands of `ravel` share: the table of commands, argument parsing from option tables, progress.
 *
 * A command is one function and one row in main.c. Its flags are the rows of one or more option tables (its own, and
 * the library's: ravel_plan_option_table and so on), so `--help`, parsing and suggestions come from one place.
 * Exit codes everywhere: 0, 1 for data and run errors, 2 for usage. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <ravel/options.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_command {
    const char *name;
    const char *summary;               /* one line for `ravel --help` */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
} cli_command;

int cli_plan(int argc, char **argv);

/* ---- arguments ------------------------------------------------------------------------------------------ */

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
/* Prints the flags of the sets, one to two lines each, with defaults and choices. */
void cli_print_options(const cli_options *sets, int set_count);
/* Whether --help or -h is among the arguments. */
int cli_wants_help(int argc, char **argv);

/* Prints "ravel COMMAND: sentence" to stderr and returns the exit code that fits the status. */
int cli_fail(const char *command, const ravel_error *err);

/* ---- progress ------------------------------------------------------------------------------------------- */

/* A line on stderr that shows after a second of work and is wiped at the end; plain or silent when stderr is not a
 * terminal. One at a time. */
void cli_progress(const char *what, double done, double total);
void cli_progress_end(void);

#endif
