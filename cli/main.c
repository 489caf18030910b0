/* ravel: one command with sub-commands, one row each. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const cli_command commands[] = {
    {"feed", "packed micro-batches on every rank of a mesh: read, plan, exchange, pack, share", cli_feed},
    {"generate", "sample answers from a model: a prompt, or a file of them", cli_generate},
    {"plan", "pack samples of any lengths into balanced micro-batches, and look at the result", cli_plan},
    {"refit", "move weights from sender ranks to receiver ranks, compare, measure", cli_refit},
    {"report", "look at a run: a summary, or a page with all its curves; compare runs", cli_report},
    {"train", "train a model: sft (data or tasks), grpo (reinforcement learning)", cli_train},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out) {
    (void)fprintf(out, "usage: ravel COMMAND [options]\n\n");
    for (int i = 0; i < COMMANDS; i++) (void)fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    (void)fprintf(out, "\nravel COMMAND --help shows the options of a command; ravel --version the version.\n");
}

int main(int argc, char **argv) {
    const char *names[COMMANDS];
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ravel %s\n", ravel_version());
        return CLI_OK;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return cli_finish(argv[1], commands[i].run(argc - 1, argv + 1));
        names[i] = commands[i].name;
    }
    const char *near = ravel_suggest(argv[1], names, COMMANDS);
    (void)fprintf(stderr, "ravel: there is no command \"%s\"%s%s%s\n", argv[1], near ? "; did you mean \"" : "",
                  near ? near : "", near ? "\"?" : "");
    return CLI_USAGE;
}
