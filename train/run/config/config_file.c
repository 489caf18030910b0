/* A configuration as JSON or YAML: of a file, or of a run's folder; and back. */
#include "train/run/config/config.h"

#include "train/model/out.h"
#include "train/run/config/words.h"
#include "train/run/data/data.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/system/file.h"
#include "base/yaml.h"
#include "train/model/hf/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ravel_status unknown_key(const train_section *parts, int count, const char *key, ravel_error *err) {
    const char *names[512] = {0};
    char answer[400];
    size_t known = 0;
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name && known < 512; row++) names[known++] = row->name;
    const char *near = ravel__suggest(key, names, known);
    if (train_word_answer(key, answer, sizeof answer))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "unknown option \"%.60s\"; %s", key, answer);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "unknown option \"%.60s\"%s%s%s", key,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* A single value as text; NULL: it is none. */
static const char *scalar(const ravel__json_node *node, char *text, size_t bytes) {
    switch ((ravel__json_kind)node->kind) {
    case RAVEL__JSON_TRUE: return "true";
    case RAVEL__JSON_FALSE: return "false";
    case RAVEL__JSON_STRING: return node->as.string;
    case RAVEL__JSON_INTEGER: (void)snprintf(text, bytes, "%lld", (long long)node->as.integer); return text;
    case RAVEL__JSON_REAL: (void)snprintf(text, bytes, "%.17g", node->as.real); return text;
    default: return NULL;
    }
}

/* The items of a list as one text, which the file owns. */
static ravel_status join_list(train_config_file *file, const ravel__json_node *node, const char **value,
                              ravel_error *err) {
    enum { MOST = sizeof file->lists / sizeof *file->lists };
    const char *words[64];
    char numbers[64][32];
    int count = 0, at = 0, files = strcmp(node->key, "data") == 0 || strcmp(node->key, "eval-data") == 0;
    for (const ravel__json_node *x = ravel__json_first(file->doc, node); x; x = ravel__json_next(file->doc, x)) {
        words[count] = count < 63 ? scalar(x, numbers[count], sizeof numbers[count]) : NULL;
        if (!words[count++])
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is not a list of up to 63 words and numbers", node->key);
    }
    while (at < MOST && file->lists[at]) at++;
    if (at == MOST) return ravel_error_set(err, RAVEL_E_ARGUMENT, "more than %d options are lists", (int)MOST);
    *value = file->lists[at] = train_files_join(words, count, files ? ' ' : ',');
    return *value ? RAVEL_OK : ravel__no_memory(err, (size_t)count, "a list");
}

static ravel_status set_member(const train_section *parts, int count, train_config_file *file,
                               const ravel__json_node *node, ravel_error *err) {
    char text[64];
    const char *value = scalar(node, text, sizeof text);
    const train_section *part = train_config_section(parts, count, node->key);
    if (!part) return unknown_key(parts, count, node->key, err);
    const ravel_option *row = ravel_option_find(part->table, node->key);
    int is_text = row->type == RAVEL_OPTION_STRING;
    if (node->kind == RAVEL__JSON_NULL) { /* as in a config.json of a run: not set; "budget": null is no budget */
        if (strcmp(node->key, "budget") != 0) return RAVEL_OK;
        value = "0";
    } else if (node->kind == RAVEL__JSON_ARRAY && is_text) {
        ravel_status status = join_list(file, node, &value, err);
        if (status) return status;
    } else if (!value) {
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a number, a word or true or false", node->key);
    } else if (is_text && node->kind != RAVEL__JSON_STRING) {
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a string, in quotes", node->key);
    }
    return ravel_option_set(part->table, part->options, node->key, value, err);
}

/* The line of the key, counted from 1; 0: not known. Values may hold the same word, but no colon follows it. */
static int line_of(const char *text, const char *key) {
    size_t length = strlen(key);
    int line = 1;
    for (const char *c = text; c && *c; c++) {
        line += *c == '\n';
        if (*c != '"' || strncmp(c + 1, key, length) != 0 || c[1 + length] != '"') continue;
        if (c[2 + length + strspn(c + 2 + length, " \t\r\n")] == ':') return line;
    }
    return 0;
}

/* Options that runs have written into their config.json and that are gone: such a run is still resumed. */
static int is_retired(train_kind kind, const ravel__json *doc, const char *key) {
    int of_a_run = ravel__json_get(doc, ravel__json_root(doc), "kind") != NULL;
    return of_a_run && kind == TRAIN_DPO && strcmp(key, "level") == 0;
}

/* What an option meant before it had a value of its own: a run that was started then is resumed as it was. */
static void set_earlier(train_config *config, const ravel__json *doc) {
    const ravel__json_node *root = ravel__json_root(doc);
    int whole = ravel__json_get(doc, root, "kind") && ravel__json_get(doc, root, "resume"); /* a run's config.json */
    if (whole && !ravel__json_get(doc, root, "eval-shuffle")) config->sft.eval_shuffle = 0;
}

/* Whether two names are one option: '-' and '_' are the same. */
static int same_name(const char *a, const char *b) {
    for (; *a && (*a == '_' ? '-' : *a) == (*b == '_' ? '-' : *b); a++) b++;
    return !*a && !*b;
}

static ravel_status refuse_repeated(const ravel__json *doc, const ravel__json_node *root, ravel_error *err) {
    for (const ravel__json_node *n = ravel__json_first(doc, root); n; n = ravel__json_next(doc, n))
        for (const ravel__json_node *m = ravel__json_first(doc, root); m != n; m = ravel__json_next(doc, m))
            if (same_name(n->key, m->key))
                return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.60s\" is there twice; leave one", n->key);
    return RAVEL_OK;
}

static int is_yaml(const char *path, const char *text) {
    const char *dot = strrchr(path, '.');
    if (dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0)) return 1;
    return !(dot && strcmp(dot, ".json") == 0) && text[strspn(text, " \t\r\n")] != '{';
}

ravel_status train_config_file_read(const char *path, train_config_file *file, ravel_error *err) {
    char name[TRAIN_PATH], *json = NULL;
    size_t bytes = 0;
    memset(file, 0, sizeof *file);
    ravel_status status = train_path_join(name, path, "config.json", err);
    if (status) return status;
    file->of_a_run = train_path_exists(name);
    if (!file->of_a_run) (void)snprintf(name, sizeof name, "%s", path);
    status = ravel__file_read(name, 1 << 20, NULL, &file->text, &bytes, err);
    if (status) return status;
    if (is_yaml(name, file->text)) {
        status = ravel__yaml_to_json(file->text, bytes, &json, &bytes, err);
        free(file->text);
        file->text = json;
    }
    if (!status) status = ravel__json_parse(file->text, bytes, NULL, &file->doc, err);
    if (status) ravel_error_prefix(err, "%s", name);
    return status;
}

void train_config_file_close(train_config_file *file) {
    for (size_t i = 0; i < sizeof file->lists / sizeof *file->lists; i++) free(file->lists[i]);
    ravel__json_free(file->doc);
    free(file->text);
    memset(file, 0, sizeof *file);
}

ravel_status train_config_json(train_config *config, train_kind kind, train_config_file *file, ravel_error *err) {
    train_section parts[TRAIN_SECTIONS];
    const ravel__json *doc = file->doc;
    int count = train_config_sections(config, kind, parts);
    const ravel__json_node *root = ravel__json_root(doc);
    if (!root || root->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a configuration is a JSON object like {\"steps\": 100}");
    set_earlier(config, doc);
    ravel_status twice = refuse_repeated(doc, root, err);
    if (twice) return twice;
    for (const ravel__json_node *n = ravel__json_first(doc, root); n; n = ravel__json_next(doc, n)) {
        if (strcmp(n->key, "kind") == 0) {
            if (ravel__json_is(n, train_kind_name(kind))) continue;
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "this configuration is for another kind of training, not %s",
                                   train_kind_name(kind));
        }
        if (is_retired(kind, doc, n->key)) continue;
        ravel_status status = set_member(parts, count, file, n, err);
        int line = status ? line_of(file->text, n->key) : 0;
        if (line) ravel_error_prefix(err, "line %d", line);
        if (status) return status;
    }
    return RAVEL_OK;
}

static void put_row(train_out *o, const ravel_option *row, const void *options) {
    char value[128];
    const char *text = value;
    RAVEL_ASSERT(row->name && options);
    train_out_print(o, ",\n  \"%s\": ", row->name);
    if (row->type == RAVEL_OPTION_STRING) /* of any length */
        memcpy(&text, (const char *)options + row->offset, sizeof text);
    else
        (void)ravel_option_format(row, options, value, sizeof value);
    if (text && (row->type == RAVEL_OPTION_STRING || row->type == RAVEL_OPTION_ENUM))
        train_out_quote(o, text, strlen(text));
    else
        train_out_puts(o, text ? text : "null");
}

char *train_config_text(const train_config *config, train_kind kind) {
    train_section parts[TRAIN_SECTIONS];
    train_config copy = *config; /* the parts point into something that may be written */
    int count = train_config_sections(&copy, kind, parts);
    train_out o = {0};
    train_out_print(&o, "{\n  \"kind\": \"%s\"", train_kind_name(kind));
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name; row++) put_row(&o, row, parts[i].options);
    train_out_put(&o, "\n}\n", 4); /* and its NUL */
    if (o.failed) train_out_free(&o);
    return o.data;
}
