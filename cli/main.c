/* ravel: one command with sub-commands, one row each. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const cli_command commands[] = {
    {"feed", "packed micro-batches on every rank of a mesh: read, plan, exchange, pack, share", cli_feed},
    {"generate", "sample answers from a model: a prompt, or a file of them", cli_generate},
    {"plan", "pack samples of any lengths into balanced micro-batches, and look at the result", cli_plan},
    {"refit", "move weights from sender ranks to receiver ranks, compare, measure", cli_refit},
    {"report", "look at a run: a summary, or a page with all its curves; compare runs", cli_report},
    {"tokenize", "text to the token ids of a model folder, and back; how long texts and rows are", cli_tokenize},
    {"train", "train a model: sft (data or tasks), dpo (pairs), grpo (reinforcement learning)", cli_train},
    {"words", "what an option of another system (verl, TRL, Megatron, ...) is called here", cli_words},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out) {
    (void)fprintf(out, "usage: ravel COMMAND [options]\n\n");
    for (int i = 0; i < COMMANDS; i++) (void)fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    (void)fprintf(out,
                  "\nravel COMMAND --help (or ravel help COMMAND) shows the options of a command; ravel --version the "
                  "version.\n");
}

static int help(int argc, char **argv);

static int version(int argc, char **argv) {
    (void)argc;
    (void)argv;
    printf("ravel %s\n", ravel_version());
    return CLI_OK;
}

/* help and --version, which are run like commands. */
static const cli_command others[] = {
    {"help", NULL, help}, {"--help", NULL, help}, {"-h", NULL, help}, {"--version", NULL, version}};
enum { OTHERS = sizeof others / sizeof *others };

static int unknown(const char *word) {
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    const char *near = ravel_suggest(word, names, COMMANDS);
    (void)fprintf(stderr, "ravel: there is no command \"%s\"%s%s%s\n", word, near ? "; did you mean \"" : "",
                  near ? near : "; see ravel --help", near ? "\"?" : "");
    return CLI_USAGE;
}

static const cli_command *find(const cli_command *list, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(name, list[i].name) == 0) return &list[i];
    return NULL;
}

/* `ravel help plan` is `ravel plan --help`; words after it (`ravel help train sft`) go with it. */
static int help(int argc, char **argv) {
    char flag[] = "--help", *words[8];
    int count = 0;
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    const cli_command *command = find(commands, COMMANDS, argv[1]);
    if (!command) return unknown(argv[1]);
    for (int i = 1; i < argc && count < 6; i++) words[count++] = argv[i];
    words[count++] = flag;
    TRAIN_ASSERT(count < (int)(sizeof words / sizeof *words) && command->run);
    words[count] = NULL;
    return command->run(count, words);
}

/* Weights and tokenizers are mapped. */
static void on_cut_file(int number) {
    static const char text[] = "ravel: a file that was being read was cut short by another process (SIGBUS)\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(CLI_FAILED);
}

/* Links, rewards and data files need more descriptors than a shell allows by default (1,024); the hard limit stays. */
static void raise_descriptors(void) {
    const rlim_t enough = 65536;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
    limit.rlim_cur = limit.rlim_max < enough ? limit.rlim_max : enough;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    raise_descriptors();
    struct sigaction cut = {.sa_handler = on_cut_file};
    (void)sigaction(SIGBUS, &cut, NULL);
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const cli_command *command = find(commands, COMMANDS, argv[1]);
    if (!command) command = find(others, OTHERS, argv[1]);
    return command ? cli_finish(argv[1], command->run(argc - 1, argv + 1)) : unknown(argv[1]);
}
