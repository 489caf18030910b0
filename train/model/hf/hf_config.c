/* config.json of a model folder, in and out, and the files that travel with it. */
#include "train/model/hf/hf.h"

#include "train/model/hf/arch.h"
#include "train/model/hf/files.h"

#include "base/json.h"
#include "base/model/shape.h"

#include <ravel/tokenizer.h>

#include <math.h>
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
    ravel__json *doc = NULL;
    ravel_shape read;
    config_path(path, file);
    ravel_status status = train_json_read(file, &doc, err);
    if (status) return status;
    status = train_arch_known(doc, err);
    if (status && err) ravel_error_prefix(err, "%s", file);
    if (!status) status = ravel_shape_read(file, &read, err);
    if (!status && (status = train_arch_check(doc, &read, err)) && err) ravel_error_prefix(err, "%s", file);
    ravel__json_free(doc);
    if (!status) *shape = read;
    return status;
}

/* eos_token_id of one file: a number or a list of them. */
static int32_t stops_of(const char *path, int32_t *stops, int32_t room) {
    ravel__json *doc = NULL;
    int32_t count = 0;
    int64_t id;
    if (train_json_read(path, &doc, NULL)) return 0;
    const ravel__json_node *node = ravel__json_get(doc, ravel__json_root(doc), "eos_token_id");
    int list = node && node->kind == RAVEL__JSON_ARRAY;
    if (list) node = ravel__json_first(doc, node);
    while (count < room && ravel__json_integer(node, &id) && id >= 0 && id <= INT32_MAX) {
        stops[count++] = (int32_t)id;
        node = list ? ravel__json_next(doc, node) : NULL;
    }
    ravel__json_free(doc);
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

static void print_factors(FILE *f, const char *before, const float *factors, int64_t count) {
    (void)fputs(before, f);
    for (int64_t i = 0; i < count; i++) print_real(f, i ? ", " : "[", (double)factors[i]);
    (void)fputs("]", f);
}

static void print_rope(FILE *f, const ravel_shape *s) {
    static const char *const names[] = {"default", "linear", "llama3", NULL, "yarn", "longrope"};
    int yarn = s->rope == RAVEL_ROPE_YARN, stretched = yarn || s->rope == RAVEL_ROPE_LONG;
    const int64_t rotated = ravel__shape_rotated(s);
    const struct {
        const char *before;
        double value;
        int wanted;
    } rows[] = {{"factor", s->rope_factor, s->rope_factor > 0},
                {"low_freq_factor", s->rope_low, !stretched && s->rope_low > 0},
                {"high_freq_factor", s->rope_high, !stretched && s->rope_high > 0},
                {"beta_slow", s->rope_low, yarn},
                {"beta_fast", s->rope_high, yarn},
                {"attention_factor", s->rope_attention, stretched},
                {"original_max_position_embeddings", (double)s->rope_positions, s->rope_positions > 0}};
    if (rotated < s->head_dim) print_real(f, "  \"partial_rotary_factor\": ", (double)rotated / (double)s->head_dim);
    if (rotated < s->head_dim) (void)fputs(",\n", f);
    if (s->rope == RAVEL_ROPE_PLAIN || s->rope == RAVEL_ROPE_OTHER) return;
    if (s->rope == RAVEL_ROPE_LONG)
        (void)fprintf(f, "  \"original_max_position_embeddings\": %lld,\n", (long long)s->rope_positions);
    (void)fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"%s\"", names[s->rope]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].wanted) continue;
        (void)fprintf(f, ", \"%s", rows[i].before);
        print_real(f, "\": ", rows[i].value);
    }
    if (s->rope_exact) (void)fputs(", \"truncate\": false", f);
    if (s->rope == RAVEL_ROPE_LONG) {
        print_factors(f, ", \"short_factor\": ", s->rope_short, rotated / 2);
        print_factors(f, ", \"long_factor\": ", s->rope_long, rotated / 2);
    }
    (void)fputs("},\n", f);
}

/* Lists of what each layer is, where they may differ. */
static void print_layers(FILE *f, const ravel__family *family, const ravel_shape *s) {
    if (family->windows && !s->window) (void)fputs("  \"sliding_window\": null,\n", f);
    if (s->window) (void)fprintf(f, "  \"sliding_window\": %lld,\n", (long long)s->window);
    if (s->window_every) (void)fputs("  \"layer_types\": [", f);
    for (int64_t i = 0; s->window_every && i < s->layers; i++)
        (void)fprintf(f, "\"%s_attention\"%s", train_arch_window(s, i) ? "sliding" : "full",
                      i + 1 < s->layers ? ", " : "],\n");
    if (s->rope_every) (void)fputs("  \"no_rope_layers\": [", f);
    for (int64_t i = 0; s->rope_every && i < s->layers; i++)
        (void)fprintf(f, "%d%s", train_arch_has_rope(s, i), i + 1 < s->layers ? ", " : "],\n");
}

static void print_scalars(FILE *f, const ravel__family *family, const ravel_shape *s) {
    const struct {
        const char *key;
        double value;
        int wanted;
    } rows[] = {{"attention_multiplier", s->attention_scale, family->scalars},
                {"embedding_multiplier", s->embedding_scale, family->scalars},
                {"residual_multiplier", s->residual_scale, family->scalars},
                {"logits_scaling", s->logits_scale, family->scalars},
                {"rope_local_base_freq", s->rope_local, s->rope_local > 0},
                {"query_pre_attn_scalar", 1 / (s->attention_scale * s->attention_scale), family->scaled_embedding}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].wanted) continue;
        (void)fprintf(f, "  \"%s", rows[i].key);
        print_real(f, "\": ", rows[i].value);
        (void)fputs(",\n", f);
    }
}

static void print_experts(FILE *f, const ravel__family *family, const ravel_shape *s) {
    const char *before = "";
    if (!family->router) return;
    (void)fprintf(f, "  \"%s\": %lld,\n  \"num_experts_per_tok\": %lld,\n", family->expert_keys[0],
                  (long long)s->experts, (long long)s->experts_active);
    if (s->router_aux > 0)
        print_real(f, "  \"output_router_logits\": true,\n  \"router_aux_loss_coef\": ", s->router_aux);
    if (s->router_aux > 0) (void)fputs(",\n", f);
    if (family->router_norm < 2) (void)fprintf(f, "  \"norm_topk_prob\": %s,\n", s->router_norm ? "true" : "false");
    if (!family->expert_keys[1]) return;
    (void)fprintf(f, "  \"%s\": %lld,\n  \"mlp_only_layers\": [", family->expert_keys[1], (long long)s->expert_ffn);
    for (int64_t i = 0; i < s->layers; i++)
        if (!ravel_shape_has_experts(s, i)) {
            (void)fprintf(f, "%s%lld", before, (long long)i);
            before = ", ";
        }
    (void)fputs("],\n", f);
}

static void print_config(FILE *f, const ravel_shape *s, const char *dtype, int32_t eos) {
    const ravel__family *family = ravel__shape_family(s);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"hidden_size", s->hidden},
                   {"num_hidden_layers", s->layers},
                   {"num_attention_heads", s->heads},
                   {"num_key_value_heads", s->kv_heads},
                   {"head_dim", s->head_dim},
                   {"intermediate_size", family->router && !family->expert_keys[1] ? s->expert_ffn : s->ffn},
                   {"vocab_size", s->vocab},
                   {"max_position_embeddings", s->max_positions ? s->max_positions : 4096}};
    (void)fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", family->architecture,
                  family->model_type);
    (void)fprintf(f, "  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\",\n", dtype, dtype);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)fprintf(f, "  \"%s\": %lld,\n", numbers[i].key, (long long)numbers[i].value);
    print_layers(f, family, s);
    print_experts(f, family, s);
    if (eos >= 0) (void)fprintf(f, "  \"eos_token_id\": %d,\n", eos);
    print_rope(f, s);
    (void)fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"attention_bias\": %s,\n  \"hidden_act%s\",\n",
                  s->tied ? "true" : "false", s->attention_bias ? "true" : "false",
                  family->activation == RAVEL__ACTIVATION_GELU ? "ivation\": \"gelu_pytorch_tanh" : "\": \"silu");
    print_scalars(f, family, s);
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

int32_t train_config_dtype(const char *path) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char file[TRAIN_PATH];
    ravel__json *doc = NULL;
    int32_t dtype = -1;
    if (!path) return -1;
    config_path(path, file);
    if (train_json_read(file, &doc, NULL)) return -1;
    for (size_t i = 0; i < 2 * sizeof torch_names / sizeof *torch_names; i++)
        if (ravel__json_is(ravel__json_get(doc, ravel__json_root(doc), keys[i % 2]), torch_names[i / 2].torch))
            dtype = torch_names[i / 2].dtype;
    ravel__json_free(doc);
    return dtype;
}

/* ---- the folder that a model came from ------------------------------------------------------------------ */

/* Writes a value as text. At the top level, the two keys of the dtype get the new value. */
static void print_value(FILE *f, const ravel__json *doc, const ravel__json_node *node, int depth, const char *dtype) {
    int object = node->kind == RAVEL__JSON_OBJECT;
    switch (node->kind) {
    case RAVEL__JSON_NULL: (void)fputs("null", f); return;
    case RAVEL__JSON_FALSE: (void)fputs("false", f); return;
    case RAVEL__JSON_TRUE: (void)fputs("true", f); return;
    case RAVEL__JSON_INTEGER: (void)fprintf(f, "%lld", (long long)node->as.integer); return;
    case RAVEL__JSON_REAL: /* stays one: transformers refuses 0 where a key has 0.0 */
        print_real(f, "", node->as.real);
        if (node->as.real == trunc(node->as.real) && fabs(node->as.real) < 1e15) (void)fputs(".0", f);
        return;
    case RAVEL__JSON_STRING: (void)train_file_quote(f, node->as.string, node->bytes); return;
    default: break;
    }
    (void)fputs(object ? "{" : "[", f);
    const char *before = "";
    for (const ravel__json_node *n = ravel__json_first(doc, node); n; n = ravel__json_next(doc, n), before = ",") {
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

/* Of a model with images only the model of text is written: a config.json of its own, with what the whole says of the
 * end of an answer. */
static void print_text_config(FILE *f, const ravel__json *doc, const ravel__json_node *text, const char *dtype) {
    const ravel__json_node *eos = ravel__json_get(doc, ravel__json_root(doc), "eos_token_id"),
                           *type = ravel__json_get(doc, text, "model_type");
    const char *class = "";
    for (int32_t i = 0; ravel__family_at(i); i++)
        if (ravel__json_is(type, ravel__family_at(i)->model_type)) class = ravel__family_at(i)->architecture;
    (void)fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"torch_dtype\": \"%s\"", class, dtype);
    for (const ravel__json_node *n = ravel__json_first(doc, text); n; n = ravel__json_next(doc, n)) {
        if (strstr("architectures torch_dtype dtype", n->key) || (eos && strcmp(n->key, "eos_token_id") == 0)) continue;
        (void)fputs(",\n  ", f);
        (void)train_file_quote(f, n->key, strlen(n->key));
        (void)fputs(": ", f);
        print_value(f, doc, n, 2, dtype);
    }
    if (eos) (void)fputs(",\n  \"eos_token_id\": ", f);
    if (eos) print_value(f, doc, eos, 2, dtype);
    (void)fputs("\n}", f);
}

/* The config.json of one folder in another, all keys kept, with the new dtype. */
static ravel_status config_copy(const char *from, const char *to, int32_t dtype, ravel_error *err) {
    char source[TRAIN_PATH], target[TRAIN_PATH];
    const char *name = NULL;
    ravel__json *doc = NULL;
    config_path(from, source);
    ravel_status status = train_path_join(target, to, "config.json", err);
    if (!status) status = train__torch_name(dtype, &name, err);
    if (!status) status = train_json_read(source, &doc, err);
    FILE *f = status ? NULL : train_file_create(target, err);
    if (f) {
        const ravel__json_node *root = ravel__json_root(doc), *text = ravel__family_config(doc);
        if (text != root)
            print_text_config(f, doc, text, name);
        else
            print_value(f, doc, root, 1, name);
        (void)fputs("\n", f);
        status = train_file_close(f, target, err);
    } else if (!status) {
        status = RAVEL_E_IO;
    }
    ravel__json_free(doc);
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

/* A file that may be missing. */
static ravel_status copy_named(const char *from, const char *to, ravel_error *err) {
    FILE *in = fopen(from, "rb");
    if (!in) return RAVEL_OK;
    ravel_status status = copy_file(in, to, err);
    (void)fclose(in);
    return status;
}

ravel_status train_folder_copy_rest(const char *from, const char *to, int32_t dtype, ravel_error *err) {
    static const char *const names[] = {"generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
                                        "special_tokens_map.json", "vocab.json",      "merges.txt",
                                        "added_tokens.json",       "tokenizer.model", "chat_template.jinja",
                                        "chat_template.json",      "tekken.json"};
    char source[TRAIN_PATH], target[TRAIN_PATH];
    ravel_status status = config_copy(from, to, dtype, err);
    if (!status && ravel_tokenizer_file(from, source, sizeof source)) { /* files of ranks have any name */
        const char *slash = strrchr(source, '/');
        status = train_path_join(target, to, slash ? slash + 1 : source, err);
        if (!status) status = copy_named(source, target, err);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        status = train_path_join(source, from, names[i], err);
        if (!status) status = train_path_join(target, to, names[i], err);
        if (!status) status = copy_named(source, target, err);
    }
    return status;
}
