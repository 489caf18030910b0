/* ravel words: what other systems call an option, and what it is here (train/run/config/words.h). */
#include "cli/cli.h"

#include "train/run/config/words.h"

#include <stdio.h>
#include <string.h>

typedef struct choice {
    int32_t markdown;
} choice;

static const ravel_option table[] = {
    {.name = "markdown", .type = RAVEL_OPTION_BOOL, .offset = 0, .preset = "false", .doc = "the page docs/glossary.md"},
    {0},
};

static void print_markdown(void) {
    printf(
        "# Glossary\n\n"
        "Written by `ravel words --markdown` from the table that answers unknown options (train/run/config/words.c). `ravel words NAME` looks one\n"
        "up, however it is written; `ravel plan --micro-token-budget 8k` answers by itself.\n\n"
        "| theirs | whose | here | what differs |\n|---|---|---|---|\n");
    for (const train_word *w = train_words; w < train_words + train_word_count; w++) {
        printf("| `");
        for (const char *c = w->theirs; *c; c++) printf(*c == ' ' ? "`, `" : *c == '-' ? "_" : "%c", *c);
        printf("` | %s | %s%s%s | %s |\n", w->who, w->ours ? "`" : "not here", w->ours ? w->ours : "",
               w->ours ? "`" : "", w->note ? w->note : "");
    }
}

/* As it is pasted: "--name", "name=value". */
static int look_up(const char *given) {
    char text[400], name[100];
    ravel_error err = RAVEL_ERROR_INIT;
    given += strspn(given, "-");
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(given, "="), given);
    if (train_word_answer(name, text, sizeof text)) {
        printf("%s: %s\n", name, text);
        return CLI_OK;
    }
    (void)ravel_error_set(&err, RAVEL_E_DATA, "nothing is known of \"%.60s\"; ravel words lists all names", name);
    return cli_fail("words", &err);
}

int cli_words(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    choice chosen = {0};
    const char *name = NULL;
    int count = 0;
    cli_options set = {"options", table, &chosen};
    if (cli_wants_help(argc, argv)) {
        printf("usage: ravel words [NAME]\n\nWhat other systems call an option, and what it is here: ravel words "
               "ppo_max_token_len_per_gpu\n\n");
        cli_print_options(&set, 1);
        return CLI_OK;
    }
    if (argc > 1 && strncmp(argv[1], "--", 2) == 0 && !ravel_option_find(table, argv[1] + 2)) return look_up(argv[1]);
    if (cli_parse(argc, argv, &set, 1, &name, 1, &count, &err)) return cli_usage("words", &err);
    if (count) return look_up(name);
    if (chosen.markdown)
        print_markdown();
    else
        for (const train_word *w = train_words; w < train_words + train_word_count; w++)
            printf("%-28s %s\n", w->ours ? w->ours : "(not here)", w->theirs);
    return CLI_OK;
}
