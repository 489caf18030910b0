/* ravel config: the options that a run used, as YAML that `ravel train --config` takes. */
#include "cli/cli.h"

#include "base/system/file.h"
#include "base/json.h"

#include "train/model/hf/files.h"
#include "train/run/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct config_options {
    int32_t all, json;
} config_options;

#define ROW(...) RAVEL__ROW(config_options, __VA_ARGS__)
static const ravel_option table[] = {
    ROW("all", BOOL, all, "false", 0, 0, NULL, "options that have their default value, too"),
    ROW("json", BOOL, json, "false", 0, 0, NULL, "all options as one JSON object"),
    {0}};

static const char usage[] =
    "usage: ravel config RUN|FILE [options]\n\n"
    "The options that a run used, or that a configuration sets, as YAML for ravel train --config.\n\n"
    "examples:\n"
    "  ravel config runs/sft-1\n"
    "  ravel config runs/sft-1 >next.yaml; ravel train sft --config next.yaml --lr 1e-5\n";

/* Plain where YAML reads it as the same text, else in quotes. */
static void print_value(const ravel_option *row, const char *value) {
    int text = row->type == RAVEL_OPTION_STRING;
    if (!text ||
        (*value && value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/._-0123456789")] == '\0' &&
         strchr("0123456789-.", *value) == NULL && strcmp(value, "true") != 0 && strcmp(value, "false") != 0 &&
         strcmp(value, "null") != 0)) {
        printf("%s\n", value);
        return;
    }
    (void)train_file_quote(stdout, value, strlen(value));
    printf("\n");
}

static void print_row(const ravel_option *row, const void *options, const void *presets, int all) {
    char value[256], preset[256];
    const char *text = value, *usual = preset;
    if (row->type == RAVEL_OPTION_STRING) { /* of any length */
        memcpy(&text, (const char *)options + row->offset, sizeof text);
        memcpy(&usual, (const char *)presets + row->offset, sizeof usual);
    } else {
        (void)ravel_option_format(row, options, value, sizeof value);
        (void)ravel_option_format(row, presets, preset, sizeof preset);
    }
    int same = text && usual ? strcmp(text, usual) == 0 : text == usual;
    int own = strcmp(row->name, "run") == 0 || strcmp(row->name, "resume") == 0; /* not for the next run */
    if ((same && !all) || (own && !text)) return;
    printf("%s%s: ", own ? "# " : "", row->name);
    if (text)
        print_value(row, text);
    else
        printf("null\n");
}

static void print_yaml(train_config *config, train_kind kind, int all) {
    train_config usual;
    train_section parts[TRAIN_SECTIONS], presets[TRAIN_SECTIONS];
    train_config_default(&usual);
    int count = train_config_sections(config, kind, parts);
    (void)train_config_sections(&usual, kind, presets);
    printf("kind: %s\n", train_kind_name(kind));
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name; row++)
            print_row(row, parts[i].options, presets[i].options, all);
}

static ravel_status print_json(const train_config *config, train_kind kind, ravel_error *err) {
    char *text = train_config_text(config, kind);
    if (!text) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the configuration");
    (void)fputs(text, stdout);
    free(text);
    return RAVEL_OK;
}

static ravel_status kind_of(const train_config_file *file, const char *path, train_kind *kind, ravel_error *err) {
    const ravel__json_node *node = ravel__json_get(file->doc, ravel__json_root(file->doc), "kind");
    for (int k = 0; k < TRAIN_KINDS; k++)
        if (ravel__json_is(node, train_kind_name((train_kind)k))) {
            *kind = (train_kind)k;
            return RAVEL_OK;
        }
    return ravel_error_set(err, RAVEL_E_DATA, "%s does not say what is trained: it needs \"kind\": sft, dpo or grpo",
                           path);
}

int cli_config(int argc, char **argv) {
    const char *words[1];
    int count = 0, code;
    config_options o;
    train_config config;
    train_config_file file = {0};
    train_kind kind = TRAIN_SFT;
    ravel_error err = RAVEL_ERROR_INIT;
    const cli_options sets[] = {{"Options", table, &o}};
    const cli_form form = {"config", usage, NULL, sets, 1, 1};
    if (!cli_begin(&form, argc, argv, words, &count, &code)) return code;
    if (count == 0) {
        (void)CLI_REFUSE(&err, "name the folder of a run, or a configuration; see --help");
        return cli_usage("config", &err);
    }
    train_config_default(&config);
    ravel_status status = train_config_file_read(words[0], &file, &err);
    if (!status) status = kind_of(&file, words[0], &kind, &err);
    if (!status) status = train_config_json(&config, kind, &file, &err);
    if (!status && o.json) status = print_json(&config, kind, &err);
    if (!status && !o.json) print_yaml(&config, kind, o.all);
    train_config_file_close(&file);
    return status ? cli_fail("config", &err) : CLI_OK;
}
