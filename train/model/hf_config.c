/* config.json of a model folder, in and out, and the files that travel with it. */
#include "train/model/hf.h"

#include "train/model/arch.h"
#include "train/model/files.h"

#include <ravel/json.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* path[TRAIN_PATH] = a config.json: the path itself, or the one in that folder. */
static void config_path(const char *path, char *out) {
    struct stat s;
    int folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    (void)snprintf(out, TRAIN_PATH, "%s%s", path, folder ? "/config.json" : "");
}

/* ---- reading -------------------------------------------------------------------------------------------- */

ravel_status train_config_read(const char *path, ravel_shape *shape, ravel_error *err) {
    char file[TRAIN_PATH];
    ravel_json *doc = NULL;
    ravel_shape read;
    config_path(path, file);
    ravel_status status = ravel_shape_read(file, &read, err);
    if (!status) status = train_json_read(file, &doc, err);
    if (status) return status;
    status = train_arch_check(doc, &read, err);
    if (status && err) ravel_error_prefix(err, "%s", file);
    ravel_json_free(doc);
    if (!status) *shape = read;
    return status;
}

/* eos_token_id of one file: a number or a list of them. */
static int32_t stops_of(const char *path, int32_t *stops, int32_t room) {
    ravel_json *doc = NULL;
    int32_t count = 0;
    int64_t id;
    if (train_json_read(path, &doc, NULL)) return 0;
    const ravel_json_node *node = ravel_json_get(doc, ravel_json_root(doc), "eos_token_id");
    int list = node && node->kind == RAVEL_JSON_ARRAY;
    if (list) node = ravel_json_first(doc, node);
    while (count < room && ravel_json_integer(node, &id) && id >= 0 && id <= INT32_MAX) {
        stops[count++] = (int32_t)id;
        node = list ? ravel_json_next(doc, node) : NULL;
    }
    ravel_json_free(doc);
    return count;
}

int32_t train_stops_read(const char *folder, int32_t *stops, int32_t room) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    char path[TRAIN_PATH];
    int32_t count = 0;
    for (int i = 0; i < 2 && !count; i++)
        if (!train_path_join(path, folder, names[i], NULL)) count = stops_of(path, stops, room);
    return count;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

static const struct {
    int32_t dtype;
    const char *torch;
} torch_names[] = {{RAVEL_F32, "float32"}, {RAVEL_BF16, "bfloat16"}, {RAVEL_F16, "float16"}};

ravel_status train__torch_name(int32_t dtype, const char **name, ravel_error *err) {
    for (size_t i = 0; i < sizeof torch_names / sizeof *torch_names; i++)
        if (torch_names[i].dtype == dtype) {
            *name = torch_names[i].torch;
            return RAVEL_OK;
        }
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "weights can be saved as f32, bf16 or f16, not as %s",
                           ravel_dtype_name(dtype) ? ravel_dtype_name(dtype) : "that");
}

/* `before`, and then the number in as few digits as read back the same: 1e-05 rather than 1.0000000000000001e-05. */
static void print_real(FILE *f, const char *before, double x) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    (void)fprintf(f, "%s%s", before, text);
}

static void print_rope(FILE *f, const ravel_shape *s) {
    if (s->rope != RAVEL_ROPE_LINEAR && s->rope != RAVEL_ROPE_LLAMA3) return;
    (void)fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"%s\"", s->rope == RAVEL_ROPE_LINEAR ? "linear" : "llama3");
    print_real(f, ", \"factor\": ", s->rope_factor);
    if (s->rope == RAVEL_ROPE_LLAMA3) {
        print_real(f, ", \"low_freq_factor\": ", s->rope_low);
        print_real(f, ", \"high_freq_factor\": ", s->rope_high);
        (void)fprintf(f, ", \"original_max_position_embeddings\": %lld", (long long)s->rope_positions);
    }
    (void)fputs("},\n", f);
}

static void print_config(FILE *f, const ravel_shape *s, const char *dtype, int32_t eos) {
    const train_arch *arch = train_arch_of(s);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"hidden_size", s->hidden},        {"num_hidden_layers", s->layers},
        {"num_attention_heads", s->heads}, {"num_key_value_heads", s->kv_heads},
        {"head_dim", s->head_dim},         {"intermediate_size", s->ffn},
        {"vocab_size", s->vocab},          {"max_position_embeddings", s->max_positions ? s->max_positions : 4096}};
    (void)fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", arch->name, arch->model_type);
    (void)fprintf(f, "  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\",\n", dtype, dtype);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)fprintf(f, "  \"%s\": %lld,\n", numbers[i].key, (long long)numbers[i].value);
    if (arch->window && s->window) (void)fprintf(f, "  \"sliding_window\": %lld,\n", (long long)s->window);
    if (arch->window && !s->window) (void)fputs("  \"sliding_window\": null,\n", f);
    if (eos >= 0) (void)fprintf(f, "  \"eos_token_id\": %d,\n", eos);
    print_rope(f, s);
    (void)fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"attention_bias\": %s,\n  \"hidden_act\": \"silu\",\n",
                  s->tied ? "true" : "false", s->attention_bias ? "true" : "false");
    print_real(f, "  \"rope_theta\": ", s->rope_theta);
    print_real(f, ",\n  \"rms_norm_eps\": ", s->norm_eps);
    (void)fputs("\n}\n", f);
}

ravel_status train_config_write(const char *path, const ravel_shape *shape, int32_t dtype, int32_t eos,
                                ravel_error *err) {
    const char *name = NULL;
    ravel_status status = train__torch_name(dtype, &name, err);
    if (status) return status;
    FILE *f = train_file_create(path, err);
    if (!f) return RAVEL_E_IO;
    print_config(f, shape, name, eos);
    return train_file_close(f, path, err);
}

/* ---- the folder that a model came from ------------------------------------------------------------------ */

/* Writes a value as text. At the top level, the two keys of the dtype get the new value. */
static void print_value(FILE *f, const ravel_json *doc, const ravel_json_node *node, int depth, const char *dtype) {
    int object = node->kind == RAVEL_JSON_OBJECT;
    switch (node->kind) {
    case RAVEL_JSON_NULL: (void)fputs("null", f); return;
    case RAVEL_JSON_FALSE: (void)fputs("false", f); return;
    case RAVEL_JSON_TRUE: (void)fputs("true", f); return;
    case RAVEL_JSON_INTEGER: (void)fprintf(f, "%lld", (long long)node->as.integer); return;
    case RAVEL_JSON_REAL: print_real(f, "", node->as.real); return;
    case RAVEL_JSON_STRING: (void)train_file_quote(f, node->as.string, node->bytes); return;
    default: break;
    }
    (void)fputs(object ? "{" : "[", f);
    const char *before = "";
    for (const ravel_json_node *n = ravel_json_first(doc, node); n; n = ravel_json_next(doc, n), before = ",") {
        int is_dtype = object && depth == 1 && (strcmp(n->key, "torch_dtype") == 0 || strcmp(n->key, "dtype") == 0);
        (void)fprintf(f, "%s\n%*s", before, 2 * depth, "");
        if (object) (void)train_file_quote(f, n->key, strlen(n->key));
        if (object) (void)fputs(": ", f);
        if (is_dtype)
            (void)train_file_quote(f, dtype, strlen(dtype));
        else
            print_value(f, doc, n, depth + 1, dtype);
    }
    (void)fprintf(f, "\n%*s%s", 2 * (depth - 1), "", object ? "}" : "]");
}

/* The config.json of one folder in another, all keys kept, with the new dtype. */
static ravel_status config_copy(const char *from, const char *to, int32_t dtype, ravel_error *err) {
    char source[TRAIN_PATH], target[TRAIN_PATH];
    const char *name = NULL;
    ravel_json *doc = NULL;
    config_path(from, source);
    ravel_status status = train_path_join(target, to, "config.json", err);
    if (!status) status = train__torch_name(dtype, &name, err);
    if (!status) status = train_json_read(source, &doc, err);
    FILE *f = status ? NULL : train_file_create(target, err);
    if (f) {
        print_value(f, doc, ravel_json_root(doc), 1, name);
        (void)fputs("\n", f);
        status = train_file_close(f, target, err);
    } else if (!status) {
        status = RAVEL_E_IO;
    }
    ravel_json_free(doc);
    return status;
}

static ravel_status copy_file(FILE *in, const char *to, ravel_error *err) {
    char piece[1 << 14];
    size_t bytes;
    FILE *out = train_file_create(to, err);
    if (!out) return RAVEL_E_IO;
    while (!feof(in) && !ferror(in) && (bytes = fread(piece, 1, sizeof piece, in)) > 0 &&
           fwrite(piece, 1, bytes, out) == bytes) {}
    ravel_status status = train_file_close(out, to, err);
    if (!status && ferror(in)) status = ravel_error_set(err, RAVEL_E_IO, "cannot read the source of %s", to);
    return status;
}

ravel_status train_folder_copy_rest(const char *from, const char *to, int32_t dtype, ravel_error *err) {
    static const char *const names[] = {"generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
                                        "special_tokens_map.json", "vocab.json",      "merges.txt",
                                        "added_tokens.json",       "tokenizer.model", "chat_template.jinja",
                                        "chat_template.json"};
    ravel_status status = config_copy(from, to, dtype, err);
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        char source[TRAIN_PATH], target[TRAIN_PATH];
        status = train_path_join(source, from, names[i], err);
        if (!status) status = train_path_join(target, to, names[i], err);
        FILE *in = status ? NULL : fopen(source, "rb");
        if (!in) continue;
        status = copy_file(in, target, err);
        (void)fclose(in);
    }
    return status;
}
