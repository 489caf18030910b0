#include "train/model/hf.h"

#include "train/kernels/arena.h"

#include <ravel/json.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- config.json ---------------------------------------------------------------------------------------- */

static ravel_status read_text(const char *path, char **text, size_t *bytes, ravel_error *err) {
    enum { MOST = 16 << 20 };
    FILE *f = fopen(path, "rb");
    if (!f) return ravel_error_set(err, RAVEL_E_IO, "cannot read %s: %s", path, strerror(errno));
    size_t room = 1 << 16, used = 0;
    char *buffer = train__alloc(NULL, room);
    while (buffer && room <= MOST) {
        used += fread(buffer + used, 1, room - used, f);
        if (used < room) break;
        char *larger = train__alloc(NULL, 2 * room);
        if (larger) memcpy(larger, buffer, used);
        train__release(NULL, buffer, room);
        buffer = larger;
        room *= 2;
    }
    int failed = ferror(f) || !buffer || room > MOST;
    (void)fclose(f);
    if (failed) {
        train__release(NULL, buffer, room);
        return ravel_error_set(err, RAVEL_E_IO, "cannot read %s, or it is larger than a config", path);
    }
    *text = buffer;
    *bytes = used;
    return RAVEL_OK;
}

static void config_path(const char *path, char *out, size_t bytes) {
    struct stat s;
    int folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    (void)snprintf(out, bytes, "%s%s", path, folder ? "/config.json" : "");
}

/* rope_scaling or rope_parameters with a type other than "default". */
static const char *odd_rope(const ravel_json *doc, const ravel_json_node *root) {
    static const char *const places[] = {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const ravel_json_node *type = ravel_json_path(doc, root, places[i]);
        if (type && type->kind == RAVEL_JSON_STRING && !ravel_json_is(type, "default")) return type->as.string;
    }
    return NULL;
}

static ravel_status check_config(const ravel_json *doc, const char *path, ravel_error *err) {
    const ravel_json_node *root = ravel_json_root(doc), *act = ravel_json_get(doc, root, "hidden_act");
    const char *rope = odd_rope(doc, root);
    int windows = 0;
    if (rope)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "%s: rope of type \"%s\"; the trainer has the default "
                               "one only",
                               path, rope);
    if (act && act->kind == RAVEL_JSON_STRING && !ravel_json_is(act, "silu"))
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s: hidden_act \"%s\"; the trainer has silu only", path,
                               act->as.string);
    if (ravel_json_boolean(ravel_json_get(doc, root, "use_sliding_window"), &windows) && windows)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s: use_sliding_window; the trainer attends to all", path);
    return RAVEL_OK;
}

ravel_status train_config_read(const char *path, ravel_shape *shape, ravel_error *err) {
    char file[4096], *text = NULL;
    size_t bytes = 0;
    ravel_json *doc = NULL;
    ravel_shape read;
    config_path(path, file, sizeof file);
    ravel_status status = read_text(file, &text, &bytes, err);
    if (status) return status;
    status = ravel_json_parse(text, bytes, NULL, &doc, err);
    if (!status) status = ravel_shape_parse(text, bytes, &read, err);
    if (status && err) ravel_error_prefix(err, "%s", file);
    if (!status) status = check_config(doc, file, err);
    ravel_json_free(doc);
    train__release(NULL, text, bytes);
    if (!status) *shape = read;
    return status;
}

static const struct {
    int32_t dtype;
    const char *torch;
} torch_names[] = {{RAVEL_F32, "float32"}, {RAVEL_BF16, "bfloat16"}, {RAVEL_F16, "float16"}};

static ravel_status torch_name(int32_t dtype, const char **name, ravel_error *err) {
    for (size_t i = 0; i < sizeof torch_names / sizeof *torch_names; i++)
        if (torch_names[i].dtype == dtype) {
            *name = torch_names[i].torch;
            return RAVEL_OK;
        }
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "weights can be saved as f32, bf16 or f16, not as %s",
                           ravel_dtype_name(dtype) ? ravel_dtype_name(dtype) : "that");
}

/* The family whose layers are these: norms on q and k, biases, or neither. */
static void family(const ravel_shape *s, const char **architecture, const char **type) {
    *architecture = s->qk_norm ? "Qwen3ForCausalLM" : s->attention_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
    *type = s->qk_norm ? "qwen3" : s->attention_bias ? "qwen2" : "llama";
}

static int print_config(FILE *f, const ravel_shape *s, const char *dtype, int32_t eos) {
    const char *architecture, *type;
    char end[64] = "";
    family(s, &architecture, &type);
    if (eos >= 0) (void)snprintf(end, sizeof end, "  \"eos_token_id\": %d,\n", eos);
    return fprintf(f,
                   "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"dtype\": \"%s\",\n"
                   "  \"torch_dtype\": \"%s\",\n  \"hidden_size\": %lld,\n  \"num_hidden_layers\": %lld,\n"
                   "  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n  \"head_dim\": %lld,\n"
                   "  \"intermediate_size\": %lld,\n  \"vocab_size\": %lld,\n  \"max_position_embeddings\": %lld,\n"
                   "  \"tie_word_embeddings\": %s,\n  \"attention_bias\": %s,\n  \"hidden_act\": \"silu\",\n"
                   "%s  \"rope_theta\": %.17g,\n  \"rms_norm_eps\": %.17g\n}\n",
                   architecture, type, dtype, dtype, (long long)s->hidden, (long long)s->layers, (long long)s->heads,
                   (long long)s->kv_heads, (long long)s->head_dim, (long long)s->ffn, (long long)s->vocab,
                   (long long)(s->max_positions ? s->max_positions : 4096), s->tied ? "true" : "false",
                   s->attention_bias ? "true" : "false", end, s->rope_theta, s->norm_eps);
}

ravel_status train_config_write(const char *path, const ravel_shape *shape, int32_t dtype, int32_t eos,
                                ravel_error *err) {
    const char *name = NULL;
    ravel_status status = torch_name(dtype, &name, err);
    if (status) return status;
    FILE *f = fopen(path, "wb");
    if (!f) return ravel_error_set(err, RAVEL_E_IO, "cannot write %s: %s", path, strerror(errno));
    int failed = print_config(f, shape, name, eos) < 0;
    if (fclose(f) != 0 || failed) return ravel_error_set(err, RAVEL_E_IO, "cannot write %s: %s", path, strerror(errno));
    return RAVEL_OK;
}

/* eos_token_id of one file: a number or a list of them. */
static int32_t stops_of(const char *path, int32_t *stops, int32_t room) {
    char *text = NULL;
    size_t bytes = 0;
    ravel_json *doc = NULL;
    int32_t count = 0;
    int64_t id;
    if (read_text(path, &text, &bytes, NULL)) return 0;
    if (!ravel_json_parse(text, bytes, NULL, &doc, NULL)) {
        const ravel_json_node *node = ravel_json_get(doc, ravel_json_root(doc), "eos_token_id");
        int list = node && node->kind == RAVEL_JSON_ARRAY;
        if (list) node = ravel_json_first(doc, node);
        while (count < room && ravel_json_integer(node, &id) && id >= 0 && id <= INT32_MAX) {
            stops[count++] = (int32_t)id;
            node = list ? ravel_json_next(doc, node) : NULL;
        }
    }
    ravel_json_free(doc);
    train__release(NULL, text, bytes);
    return count;
}

int32_t train_stops_read(const char *folder, int32_t *stops, int32_t room) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/generation_config.json", folder);
    int32_t count = stops_of(path, stops, room);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    return count ? count : stops_of(path, stops, room);
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

/* Elements on their way between device and file. */
enum { PIECE = 1 << 18 };

static ravel_status load_tensor(const train_tensor *t, const ravel_safetensors *file, const train_array *to,
                                void *piece, ravel_error *err) {
    const ravel_safetensor *source = NULL;
    ravel_status status = ravel_safetensors_get(file, t->name, t->rank, t->dims, &source, err);
    for (int64_t done = 0; done < t->count && !status;) {
        int64_t count = train__min(t->count - done, PIECE);
        status = ravel_safetensor_read(source, done, count, to->dtype, piece, err);
        if (!status)
            to->kernels->upload(to->device, train__at(to->data, to->dtype, t->offset + done), piece,
                                (size_t)(count * ravel_dtype_bytes(to->dtype)));
        done += count;
    }
    return status;
}

ravel_status train_tensors_load(const train_params *params, const train_array *to, const char *path, ravel_error *err) {
    ravel_safetensors *file = NULL;
    ravel_status status = ravel_safetensors_open(path, NULL, &file, err);
    if (status) return status;
    train__arena arena = {0};
    void *piece = train__arena_take_array(&arena, PIECE, (size_t)ravel_dtype_bytes(to->dtype));
    status = train__arena_status(&arena, "a piece of a tensor", err);
    for (int64_t i = 0; i < params->count && !status; i++)
        status = load_tensor(params->tensors + i, file, to, piece, err);
    if (status && err) ravel_error_prefix(err, "%s", path);
    train__arena_free(&arena);
    ravel_safetensors_free(file);
    return status ? status : to->kernels->sync(to->device, err);
}

/* Pieces as the device holds them, and as the file does. */
typedef struct saving {
    ravel_safetensors_writer *writer;
    const train_array *from;
    int32_t dtype;
    void *piece, *converted;
} saving;

static ravel_status save_tensor(const saving *s, int64_t index, const train_tensor *t, ravel_error *err) {
    const train_array *from = s->from;
    ravel_status status = RAVEL_OK;
    for (int64_t done = 0; done < t->count && !status;) {
        int64_t count = train__min(t->count - done, PIECE);
        from->kernels->download(from->device, s->piece, train__at(from->data, from->dtype, t->offset + done),
                                (size_t)(count * ravel_dtype_bytes(from->dtype)));
        status = ravel_dtype_convert(from->dtype, s->piece, s->dtype, s->converted, count, err);
        if (!status)
            status = ravel_safetensors_writer_write(s->writer, index, s->converted, count * ravel_dtype_bytes(s->dtype),
                                                    err);
        done += count;
    }
    return status;
}

static ravel_status save_all(const saving *s, const train_params *params, ravel_error *err) {
    ravel_status status = ravel_safetensors_writer_metadata(s->writer, "format", "pt", err);
    int64_t index = 0;
    for (int64_t i = 0; i < params->count && !status; i++) {
        const train_tensor *t = params->tensors + i;
        status = ravel_safetensors_writer_declare(s->writer, t->name, s->dtype, t->rank, t->dims, &index, err);
    }
    for (int64_t i = 0; i < params->count && !status; i++) /* declared in this order, so numbered 0, 1, ... */
        status = save_tensor(s, i, params->tensors + i, err);
    return status ? status : ravel_safetensors_writer_finish(s->writer, err);
}

ravel_status train_tensors_save(const char *path, const train_params *params, const train_array *from, int32_t dtype,
                                const ravel_safetensors_options *options, ravel_error *err) {
    const char *name = NULL;
    saving s = {.from = from, .dtype = dtype};
    ravel_status status = torch_name(dtype, &name, err);
    if (!status) status = ravel_safetensors_writer_create(path, options, &s.writer, err);
    if (status) return status;
    train__arena arena = {0};
    s.piece = train__arena_take_array(&arena, PIECE, (size_t)ravel_dtype_bytes(from->dtype));
    s.converted = train__arena_take_array(&arena, PIECE, (size_t)ravel_dtype_bytes(dtype));
    status = train__arena_status(&arena, "a piece of a tensor", err);
    if (!status) status = save_all(&s, params, err);
    train__arena_free(&arena);
    ravel_safetensors_writer_free(s.writer);
    return status;
}

ravel_status train_folder_save(const char *folder, const ravel_shape *shape, const train_params *params,
                               const train_array *from, int32_t dtype, int32_t eos, ravel_error *err) {
    char path[4096];
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ravel_error_set(err, RAVEL_E_IO, "cannot make the folder %s: %s", folder, strerror(errno));
    if (strlen(folder) > sizeof path - 32)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the folder's name is too long");
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    ravel_status status = train_config_write(path, shape, dtype, eos, err);
    if (status) return status;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return train_tensors_save(path, params, from, dtype, NULL, err);
}

/* ---- the rest of a folder ------------------------------------------------------------------------------- */

static ravel_status copy_file(FILE *in, const char *to, ravel_error *err) {
    char piece[1 << 14];
    size_t bytes;
    FILE *out = fopen(to, "wb");
    if (!out) return ravel_error_set(err, RAVEL_E_IO, "cannot write %s: %s", to, strerror(errno));
    int failed = 0;
    while (!failed && (bytes = fread(piece, 1, sizeof piece, in)) > 0) failed = fwrite(piece, 1, bytes, out) != bytes;
    failed |= ferror(in);
    if (fclose(out) != 0 || failed) return ravel_error_set(err, RAVEL_E_IO, "cannot write %s: %s", to, strerror(errno));
    return RAVEL_OK;
}

ravel_status train_folder_copy_rest(const char *from, const char *to, ravel_error *err) {
    static const char *const names[] = {"generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
                                        "special_tokens_map.json", "vocab.json",      "merges.txt",
                                        "added_tokens.json",       "tokenizer.model", "chat_template.jinja"};
    ravel_status status = RAVEL_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        char source[4096], target[4096];
        (void)snprintf(source, sizeof source, "%.4000s/%s", from, names[i]);
        (void)snprintf(target, sizeof target, "%.4000s/%s", to, names[i]);
        FILE *in = fopen(source, "rb");
        if (!in) continue;
        status = copy_file(in, target, err);
        (void)fclose(in);
    }
    return status;
}
