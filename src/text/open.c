/* A model folder to a tokenizer: the first of these files that is there, then what the files beside it add.
 *
 *     tokenizer.json          load.c
 *     tekken.json             tiktoken.c
 *     tokenizer.model         sentencepiece.c, or tiktoken.c (Llama 3): the first bytes say which
 *     *.tiktoken, *.model     likewise, if there is one such file
 *     tokenizer_config.json   the names of bos, eos and pad; add_bos_token and add_eos_token, which replace the
 *                             template of tokenizer.json as they do in transformers; the chat template
 *     chat_template.jinja     the chat template, where it has a file of its own */
#include "text/chat.h"
#include "text/tokenizer.h"

#include "base/json.h"
#include "text/decoder.h"

#include "base/assert.h"
#include "base/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH = 4096 };

const char *const ravel__special_names[RAVEL__SPECIALS] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                                           "sep_token", "cls_token", "mask_token"};

/* ---- tokenizer_config.json ------------------------------------------------------------------------------- */

typedef struct settings {
    ravel_tokenizer *t;
    const ravel__json *doc;
    const ravel__json_node *root;
} settings;

/* A token's name is a text or an object with "content". */
static int32_t named_id(const settings *c, const char *key) {
    const ravel__json_node *n = ravel__json_get(c->doc, c->root, key);
    if (n && n->kind == RAVEL__JSON_OBJECT) n = ravel__json_get(c->doc, n, "content");
    if (!n || n->kind != RAVEL__JSON_STRING) return RAVEL__NO_ID;
    return ravel__vocab_find(&c->t->vocab, n->as.string, n->bytes);
}

/* A template that is refused is an error only of conversations: its sentence is kept. */
static ravel_status compile_template(ravel_tokenizer *t, const char *tools, size_t tool_bytes, ravel_error *err) {
    ravel_chat_format_free(t->format);
    t->format = NULL;
    ravel_error_clear(&t->format_error);
    ravel_status status = ravel__chat_format_create("the model's template", t->chat_template, strlen(t->chat_template),
                                                    tools, tool_bytes, t->allocator, &t->format, &t->format_error);
    return status == RAVEL_E_MEMORY ? ravel_error_set(err, status, "%s", t->format_error.message) : RAVEL_OK;
}

static ravel_status keep_template(ravel_tokenizer *t, const char *text, size_t bytes, ravel_error *err) {
    t->chat_template = ravel__arena_push(&t->arena, bytes + 1, 1);
    if (!t->chat_template) return ravel__no_memory(err, bytes + 1, "a chat template");
    memcpy(t->chat_template, text, bytes);
    t->chat_template[bytes] = '\0';
    return RAVEL_OK;
}

static const ravel__json_node *named_template(const settings *c, const ravel__json_node *list, const char *name) {
    const ravel__json_node *each = ravel__json_first(c->doc, list);
    while (each && !ravel__json_is(ravel__json_get(c->doc, each, "name"), name)) each = ravel__json_next(c->doc, each);
    const ravel__json_node *n = each ? ravel__json_get(c->doc, each, "template") : NULL;
    return n && n->kind == RAVEL__JSON_STRING ? n : NULL;
}

/* A text, or a list of named ones: "default", and "tool_use" for rows with tools. */
static ravel_status read_chat_template(const settings *c, ravel_error *err) {
    const ravel__json_node *n = ravel__json_get(c->doc, c->root, "chat_template"), *tools = NULL;
    if (n && n->kind == RAVEL__JSON_ARRAY) {
        tools = named_template(c, n, "tool_use");
        n = named_template(c, n, "default");
    }
    if (!n || n->kind != RAVEL__JSON_STRING) return RAVEL_OK;
    ravel_status status = keep_template(c->t, n->as.string, n->bytes, err);
    if (!status) status = compile_template(c->t, tools ? tools->as.string : NULL, tools ? tools->bytes : 0, err);
    return status;
}

static ravel_status read_special_texts(const settings *c, ravel_error *err) {
    for (int i = 0; i < RAVEL__SPECIALS; i++) {
        const ravel__json_node *n = ravel__json_get(c->doc, c->root, ravel__special_names[i]);
        if (n && n->kind == RAVEL__JSON_OBJECT) n = ravel__json_get(c->doc, n, "content");
        if (!n || n->kind != RAVEL__JSON_STRING) continue;
        char *text = ravel__arena_push(&c->t->arena, (size_t)n->bytes + 1, 1);
        if (!text) return ravel__no_memory(err, n->bytes, "a special token");
        c->t->special_texts[i] = memcpy(text, n->as.string, (size_t)n->bytes + 1);
    }
    return RAVEL_OK;
}

ravel_status ravel__tokenizer_surround(ravel_tokenizer *t, int32_t before, int32_t after, ravel_error *err) {
    t->prefix = ravel__arena_push(&t->arena, 1, sizeof *t->prefix);
    t->suffix = t->prefix ? ravel__arena_push(&t->arena, 1, sizeof *t->suffix) : NULL;
    if (!t->suffix) return ravel__no_memory(err, sizeof *t->prefix, "a template");
    t->prefix_count = before != RAVEL__NO_ID;
    t->suffix_count = after != RAVEL__NO_ID;
    t->prefix[0] = before;
    t->suffix[0] = after;
    return RAVEL_OK;
}

/* add_bos_token and add_eos_token, where the file has either, decide alone what goes before and after a text. */
static ravel_status read_additions(const settings *c, ravel_error *err) {
    const ravel__json_node *bos = ravel__json_get(c->doc, c->root, "add_bos_token");
    const ravel__json_node *eos = ravel__json_get(c->doc, c->root, "add_eos_token");
    ravel_tokenizer *t = c->t;
    int add_bos = 0, add_eos = 0;
    if (!bos && !eos) return RAVEL_OK;
    (void)ravel__json_boolean(bos, &add_bos);
    (void)ravel__json_boolean(eos, &add_eos);
    return ravel__tokenizer_surround(t, add_bos ? t->bos : RAVEL__NO_ID, add_eos ? t->eos : RAVEL__NO_ID, err);
}

static ravel_status configure(ravel_tokenizer *t, const char *json, size_t bytes, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(json, bytes, t->allocator, &doc, err);
    if (!status) {
        settings c = {t, doc, ravel__json_root(doc)};
        static const char *const names[] = {"bos_token", "eos_token", "pad_token"};
        int32_t *const ids[] = {&t->bos, &t->eos, &t->pad};
        for (int i = 0; i < 3; i++) {
            int32_t id = named_id(&c, names[i]);
            if (id != RAVEL__NO_ID || ravel__json_get(doc, c.root, names[i])) *ids[i] = id;
        }
        status = read_chat_template(&c, err);
        if (!status) status = read_special_texts(&c, err);
        if (!status) status = read_additions(&c, err);
    }
    ravel__json_free(doc);
    return status;
}

/* ---- the object ------------------------------------------------------------------------------------------ */

typedef enum kind { TOKENIZER_JSON, TEKKEN, SENTENCEPIECE, TIKTOKEN } kind;

/* What a file is, by its first bytes: "{" is JSON, and Mistral's if its first member is "config"; a message
 * of sentencepiece begins with the tag of its first field; everything else is lines of base64. */
static kind kind_of(const char *text, size_t bytes) {
    size_t at = 0, end = bytes < 4096 ? bytes : 4096;
    while (at < end && strchr(" \t\r\n", text[at]) && text[at]) at++;
    if (bytes && text[0] == '\n' && (at == end || text[at] != '{')) return SENTENCEPIECE;
    if (at == end || !strchr("{[", text[at])) return at == end ? TOKENIZER_JSON : TIKTOKEN;
    for (; at < end && text[at] != '"'; at++) {}
    return end - at >= 8 && (memcmp(text + at, "\"config\"", 8) == 0) ? TEKKEN : TOKENIZER_JSON;
}

static ravel_status load(ravel_tokenizer *t, const char *text, size_t bytes, const char *config, size_t config_bytes,
                         ravel_error *err) {
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model", "the tiktoken file"};
    ravel_status status;
    kind k = kind_of(text, bytes);
    switch (k) {
    case TEKKEN: status = ravel__tekken_load(t, text, bytes, err); break;
    case SENTENCEPIECE: status = ravel__sentencepiece_load(t, text, bytes, err); break;
    case TIKTOKEN: status = ravel__tiktoken_load(t, text, bytes, config, config_bytes, err); break;
    default: status = ravel__tokenizer_load(t, text, bytes, err); break;
    }
    if (status) ravel_error_prefix(err, "%s", names[k]);
    return status;
}

ravel_status ravel__tokenizer_parse(const char *json, size_t bytes, const char *config, size_t config_bytes,
                                    const ravel_allocator *allocator, ravel_tokenizer **tokenizer, ravel_error *err) {
    ravel_tokenizer *t = ravel__calloc(allocator, 1, sizeof *t);
    if (!t) return ravel__no_memory(err, sizeof *t, "a tokenizer");
    t->allocator = allocator;
    t->bos = t->eos = t->pad = RAVEL__NO_ID;
    ravel__arena_init(&t->arena, allocator, 64 << 10);
    ravel_status status = load(t, json, bytes, config, config_bytes, err);
    if (!status && config) {
        status = configure(t, config, config_bytes, err);
        if (status) ravel_error_prefix(err, "tokenizer_config.json");
    }
    if (status)
        ravel_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}

void ravel_tokenizer_free(ravel_tokenizer *tokenizer) {
    RAVEL_ASSERT(!tokenizer || (tokenizer->step_count >= 0 && tokenizer->step_count <= RAVEL__STEPS));
    if (!tokenizer) return;
    for (int i = 0; i < tokenizer->step_count; i++) ravel__regex_free(tokenizer->steps[i].regex);
    for (int i = 0; i < tokenizer->normal_count; i++) ravel__regex_free(tokenizer->normals[i].regex);
    ravel__unigram_free(&tokenizer->unigram, tokenizer->allocator);
    ravel_chat_format_free(tokenizer->format);
    ravel__arena_free(&tokenizer->arena);
    ravel__release(tokenizer->allocator, tokenizer, sizeof *tokenizer);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

/* The folder's files, with the names that sentences show. */
typedef struct folder {
    char path[PATH];
    size_t bytes; /* of the folder with its slash */
} folder;

static ravel_status find_folder(folder *f, const char *path, ravel_error *err) {
    struct stat info;
    if (strlen(path) + 64 > PATH) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.60s... is too long", path);
    int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *slash = strrchr(path, '/');
    f->bytes = is_folder ? strlen(path) : slash ? (size_t)(slash - path) + 1 : 0;
    RAVEL_ASSERT(f->bytes + 64 <= PATH);
    memcpy(f->path, path, f->bytes);
    if (is_folder && f->bytes && path[f->bytes - 1] != '/') f->path[f->bytes++] = '/';
    f->path[f->bytes] = '\0';
    return RAVEL_OK;
}

static const char *file_in(folder *f, const char *name) {
    RAVEL_ASSERT(f->bytes + strlen(name) < PATH);
    memcpy(f->path + f->bytes, name, strlen(name) + 1);
    return f->path;
}

/* A file that may be missing: then the map is of 0 bytes. */
static ravel_status map_optional(folder *f, const char *name, ravel__map *map, ravel_error *err) {
    struct stat info;
    memset(map, 0, sizeof *map);
    if (stat(file_in(f, name), &info) != 0 && errno == ENOENT) return RAVEL_OK;
    return ravel__map_open(f->path, map, err);
}

static ravel_status open_folder(folder *f, const ravel__map *json, const ravel_allocator *allocator,
                                ravel_tokenizer **tokenizer, ravel_error *err) {
    ravel__map config = {NULL, 0}, template = {NULL, 0};
    ravel_tokenizer *t = NULL;
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = map_optional(f, "tokenizer_config.json", &config, err);
    if (!status) status = map_optional(f, "chat_template.jinja", &template, err);
    f->path[f->bytes] = '\0';
    if (!status) {
        status = ravel__tokenizer_parse(json->data, json->bytes, config.data, config.bytes, allocator, &t, &inner);
        if (!status && template.bytes) status = keep_template(t, template.data, template.bytes, &inner);
        if (!status && template.bytes) status = compile_template(t, NULL, 0, &inner);
        if (status) (void)ravel_error_set(err, status, "%s%s", f->path, inner.message);
    }
    ravel__map_close(&config);
    ravel__map_close(&template);
    if (status)
        ravel_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}

static int ends_with(const char *name, const char *end) {
    size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

/* The first file of the folder that holds ranks, by name; "" if none does. */
static void find_ranks(folder *f, char found[64]) {
    struct dirent *entry;
    DIR *listing = opendir(f->path);
    *found = '\0';
    while (listing && (entry = readdir(listing)) != NULL) {
        int fits = ends_with(entry->d_name, ".tiktoken") || ends_with(entry->d_name, "tiktoken.model");
        if (fits && (!*found || strcmp(entry->d_name, found) < 0) && strlen(entry->d_name) < 64)
            memcpy(found, entry->d_name, strlen(entry->d_name) + 1);
    }
    if (listing) (void)closedir(listing);
}

/* The file of the folder that holds the tokenizer; NULL: none does. */
static const char *tokenizer_file(folder *f) {
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model"};
    struct stat info;
    char found[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (stat(file_in(f, names[i]), &info) == 0 && S_ISREG(info.st_mode)) return f->path;
    f->path[f->bytes] = '\0';
    find_ranks(f, found);
    return *found ? file_in(f, found) : NULL;
}

size_t ravel_tokenizer_file(const char *path, char *out, size_t room) {
    folder f = {.bytes = 0};
    struct stat info;
    int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *file = is_folder && find_folder(&f, path, NULL) == RAVEL_OK ? tokenizer_file(&f) : NULL;
    return (size_t)snprintf(out, room, "%s", file ? file : "");
}

ravel_status ravel_tokenizer_open(const char *path, const ravel_allocator *allocator, ravel_tokenizer **tokenizer,
                                  ravel_error *err) {
    folder f = {.bytes = 0};
    ravel__map json;
    struct stat info;
    ravel_status status = find_folder(&f, path, err);
    if (status) return status;
    int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *file = is_folder ? tokenizer_file(&f) : path;
    status = ravel__map_open(file ? file : file_in(&f, "tokenizer.json"), &json, err);
    if (status) return status;
    status = open_folder(&f, &json, allocator, tokenizer, err);
    ravel__map_close(&json);
    return status;
}

/* ---- getters --------------------------------------------------------------------------------------------- */

int32_t ravel_tokenizer_size(const ravel_tokenizer *tokenizer) {
    return tokenizer->vocab.size;
}

int32_t ravel_tokenizer_id(const ravel_tokenizer *tokenizer, const char *text, size_t bytes) {
    return ravel__vocab_find(&tokenizer->vocab, text, bytes);
}

const char *ravel_tokenizer_bytes(const ravel_tokenizer *tokenizer, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || id >= tokenizer->vocab.size) return NULL;
    const ravel__token *token = &tokenizer->vocab.tokens[id];
    *bytes = token->byte_count;
    return token->text ? token->bytes : NULL;
}

int32_t ravel__tokenizer_is_special(const ravel_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->vocab.size && tokenizer->vocab.tokens[id].special;
}

int32_t ravel_tokenizer_bos(const ravel_tokenizer *tokenizer) {
    return tokenizer->bos;
}

int32_t ravel_tokenizer_eos(const ravel_tokenizer *tokenizer) {
    return tokenizer->eos;
}

int32_t ravel_tokenizer_pad(const ravel_tokenizer *tokenizer) {
    return tokenizer->pad;
}

const char *ravel_tokenizer_chat_template(const ravel_tokenizer *tokenizer) {
    return tokenizer->chat_template;
}
