/* ravel: one command with sub-commands, one row each. */
#include "cli/cli.h"

#include "train/run/config/words.h"
#include "base/system/file.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const cli_command commands[] = {
    {"chat", "a conversation with a model, in the terminal", cli_chat},
    {"completion", "what bash, zsh and fish need to complete commands and options", cli_completion},
    {"config", "the options that a run used, as a configuration for the next", cli_config},
    {"eval", "a model's loss, perplexity and accuracy on files of rows or pairs", cli_eval},
    {"export", "a model as one GGUF file, for llama.cpp", cli_export},
    {"feed", "packed micro-batches on every rank of a mesh: read, plan, exchange, pack, share", cli_feed},
    {"generate", "sample answers from a model: a prompt, or a file of them", cli_generate},
    {"merge", "add a LoRA adapter to the weights of its model", cli_merge},
    {"plan", "pack samples of any lengths into balanced micro-batches, and look at the result", cli_plan},
    {"refit", "move weights from sender ranks to receiver ranks, compare, measure", cli_refit},
    {"report", "look at a run: a summary, or a page with all its curves; compare runs", cli_report},
    {"serve", "a model as a server for OpenAI's clients; weights pulled while it serves", cli_serve},
    {"stop", "end a run that trains, with a checkpoint; from anywhere, also under mpirun", cli_stop_run},
    {"tokenize", "text to the token ids of a model folder, and back; how long texts and rows are", cli_tokenize},
    {"train", "train a model: sft (data or tasks), dpo (pairs), grpo (reinforcement learning)", cli_train},
    {"words", "what an option of another system (verl, TRL, Megatron, ...) is called here", cli_words},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

const cli_command *cli_command_at(int index) {
    return index >= 0 && index < COMMANDS ? &commands[index] : NULL;
}

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
    const char *near = ravel__suggest(word, names, COMMANDS);
    char kind[80], answer[400];
    const char *option = word + strspn(word, "-");
    (void)snprintf(kind, sizeof kind, "train-%.60s", word); /* what other programs call a way to train */
    if (train_word_answer(kind, answer, sizeof answer) || train_word_answer(option, answer, sizeof answer)) {
        (void)fprintf(stderr, "ravel: there is no command \"%s\"; %s\n", word, answer);
        return CLI_USAGE;
    }
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
    RAVEL_ASSERT(count < (int)(sizeof words / sizeof *words) && command->run);
    words[count] = NULL;
    return command->run(count, words);
}

/* Weights and tokenizers are mapped. */
static void on_cut_file(int number, siginfo_t *info, void *context) {
    int patched;
    const char *path = ravel__maps_patch(info->si_addr, &patched);
    (void)number, (void)context;
    if (patched) return; /* a run, which saves what it has */
    const char *says[] = {"ravel: ", path ? path : "a file",
                          " was cut short by another process while it was being read (SIGBUS)\n"};
    for (int i = 0; i < 3; i++)
        if (write(STDERR_FILENO, says[i], strlen(says[i])) < 0) break;
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
    (void)signal(SIGINT, SIG_DFL); /* which is ignored in what a script starts beside itself */
    struct sigaction cut = {.sa_sigaction = on_cut_file, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGBUS, &cut, NULL);
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const cli_command *command = find(commands, COMMANDS, argv[1]);
    if (!command) command = find(others, OTHERS, argv[1]);
    return command ? cli_finish(argv[1], command->run(argc - 1, argv + 1)) : unknown(argv[1]);
}
