/* Adapters: targets by name, and PEFT folders in and out. */
#include "train/model/hf/lora.h"

#include "base/assert.h"
#include "base/model/family.h"
#include "base/system/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "train/model/hf/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_FILE "adapter_model.safetensors"

/* PEFT's names of the matrices that can be targets; of a fused tensor, before those that it is made of. */
#define BIT(which) (UINT32_C(1) << TRAIN_##which)
static const struct {
    const char *name;
    uint32_t bits;
} target_rows[] = {{"qkv_proj", BIT(Q) | BIT(K) | BIT(V)},
                   {"q_proj", BIT(Q)},
                   {"k_proj", BIT(K)},
                   {"v_proj", BIT(V)},
                   {"o_proj", BIT(O)},
                   {"gate_up_proj", BIT(GATE) | BIT(UP)},
                   {"gate_proj", BIT(GATE)},
                   {"up_proj", BIT(UP)},
                   {"down_proj", BIT(DOWN)},
                   {"w1", BIT(GATE)}, /* of Mixtral's experts */
                   {"w3", BIT(UP)},
                   {"w2", BIT(DOWN)}};
enum { TARGETS = sizeof target_rows / sizeof *target_rows };

double train_lora_scale(const train_lora *l) {
    RAVEL_ASSERT(l->rank > 0);
    return l->alpha / (l->rslora ? sqrt((double)l->rank) : (double)l->rank);
}

ravel_status train_lora_check(const train_lora *l, ravel_error *err) {
    if (l->rank < 1 || l->rank > TRAIN_LORA_RANK)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the rank of the adapter is %d; it must be 1 to %d", l->rank,
                               TRAIN_LORA_RANK);
    if (!(l->alpha > 0) || !(l->alpha <= 1e9))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the alpha of the adapter is %g; it must be above 0", l->alpha);
    if (!l->targets) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the adapter has no target");
    return RAVEL_OK;
}

/* The GPU's products read rows of whole 16 bytes. */
ravel_status train_lora_check_kernels(const train_lora *l, const train_kernels *kernels, ravel_error *err) {
    if (kernels->host_memory || l->rank % 8 == 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "the rank of an adapter must be a multiple of 8 with the %s kernels, not %d", kernels->name,
                           l->rank);
}

/* ---- targets -------------------------------------------------------------------------------------------- */

/* "q" or "q_proj", or with what is before it: "self_attn.q_proj". 0: no target is called that. */
static uint32_t target_of(const char *word, size_t bytes) {
    for (size_t i = bytes; i > 0; i--)
        if (word[i - 1] == '.') {
            word += i;
            bytes -= i;
            break;
        }
    for (int i = 0; i < TARGETS; i++) {
        size_t whole = strlen(target_rows[i].name);
        if ((bytes == whole || bytes + strlen("_proj") == whole) && memcmp(word, target_rows[i].name, bytes) == 0)
            return target_rows[i].bits;
    }
    return 0;
}

uint32_t train_lora_all(void) {
    uint32_t all = 0;
    for (int i = 0; i < TARGETS; i++) all |= target_rows[i].bits;
    return all;
}

static ravel_status unknown_target(const char *word, size_t bytes, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "\"%.*s\" is no target of an adapter; targets are q_proj, k_proj, v_proj, o_proj, "
                           "gate_proj, up_proj and down_proj, of Phi-3 qkv_proj, o_proj, gate_up_proj and down_proj, "
                           "or all of them: all-linear",
                           (int)(bytes < 60 ? bytes : 60), word);
}

ravel_status train_lora_targets(const char *list, uint32_t *targets, ravel_error *err) {
    uint32_t found = 0;
    if (strcmp(list, "all-linear") == 0) {
        *targets = train_lora_all();
        return RAVEL_OK;
    }
    for (const char *at = list;; at++) {
        size_t bytes = strcspn(at, ",");
        uint32_t one = target_of(at, bytes);
        if (!one) return unknown_target(at, bytes, err);
        found |= one;
        at += bytes;
        if (!*at) break;
    }
    *targets = found;
    return RAVEL_OK;
}

/* ---- adapter_config.json --------------------------------------------------------------------------------- */

/* Keys that do not change what an adapter computes, or are read below; the last four are of ways to begin, which
 * init_lora_weights names. PEFT gives every variant of LoRA a key of its own, so any other may be there but must be
 * off: null, false, "", {} or []. */
/* clang-format off */
static const char *const known_keys[] = {
    "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights", "base_model_name_or_path", "task_type",
    "inference_mode", "lora_dropout", "revision", "peft_version", "auto_mapping", "megatron_core", "qalora_group_size",
    "corda_config", "eva_config", "loftq_config", "lora_ga_config"};
/* clang-format on */

static int is_one_of(const char *text, const char *const *list, size_t count) {
    while (count > 0)
        if (strcmp(text, list[--count]) == 0) return 1;
    return 0;
}

static int is_off(const ravel__json *doc, const ravel__json_node *node) {
    switch ((ravel__json_kind)node->kind) {
    case RAVEL__JSON_NULL:
    case RAVEL__JSON_FALSE: return 1;
    case RAVEL__JSON_STRING: return node->bytes == 0;
    case RAVEL__JSON_OBJECT:
    case RAVEL__JSON_ARRAY: return ravel__json_first(doc, node) == NULL;
    default: return 0;
    }
}

static ravel_status check_key(const ravel__json *doc, const ravel__json_node *node, ravel_error *err) {
    const char *usual = strcmp(node->key, "peft_type") == 0 ? "LORA" : strcmp(node->key, "bias") == 0 ? "none" : NULL;
    if (usual && ravel__json_is(node, usual)) return RAVEL_OK;
    if (is_one_of(node->key, known_keys, sizeof known_keys / sizeof *known_keys)) return RAVEL_OK;
    if (!usual && is_off(doc, node)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%.60s has a value that is not supported; it can be %s", node->key,
                           usual ? usual : "null, false or left out");
}

/* PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA change the model's own weights before they train: their A and B are for a
 * model that is not in the folder that they name. */
static ravel_status check_beginning(const ravel__json_node *node, ravel_error *err) {
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva"};
    int boolean;
    if (!node || node->kind == RAVEL__JSON_NULL || ravel__json_boolean(node, &boolean)) return RAVEL_OK;
    const char *name = node->kind == RAVEL__JSON_STRING ? node->as.string : "";
    if (is_one_of(name, harmless, sizeof harmless / sizeof *harmless)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_UNSUPPORTED,
        "init_lora_weights is \"%.40s\", which can change the model's weights before training; convert it with "
        "PEFT: save_pretrained(FOLDER, path_initial_model_for_weight_conversion=INITIAL_ADAPTER), or save "
        "the whole model with merge_and_unload()",
        name);
}

static ravel_status check_keys(const ravel__json *doc, const ravel__json_node *root, ravel_error *err) {
    ravel_status status = check_beginning(ravel__json_get(doc, root, "init_lora_weights"), err);
    if (!status && !ravel__json_get(doc, root, "peft_type"))
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED, "it has no peft_type; that of LoRA is \"LORA\"");
    for (const ravel__json_node *n = ravel__json_first(doc, root); n && !status; n = ravel__json_next(doc, n))
        status = check_key(doc, n, err);
    return status;
}

static ravel_status read_targets(const ravel__json *doc, const ravel__json_node *node, uint32_t *targets,
                                 ravel_error *err) {
    *targets = 0;
    if (node && node->kind == RAVEL__JSON_STRING) return train_lora_targets(node->as.string, targets, err);
    if (!node || node->kind != RAVEL__JSON_ARRAY)
        return ravel_error_set(err, RAVEL_E_DATA, "target_modules must be a list of names or \"all-linear\"");
    for (const ravel__json_node *n = ravel__json_first(doc, node); n; n = ravel__json_next(doc, n)) {
        uint32_t one = n->kind == RAVEL__JSON_STRING ? target_of(n->as.string, n->bytes) : 0;
        if (!one && n->kind == RAVEL__JSON_STRING) return unknown_target(n->as.string, n->bytes, err);
        if (!one) return ravel_error_set(err, RAVEL_E_DATA, "target_modules must be a list of names");
        *targets |= one;
    }
    return RAVEL_OK;
}

static ravel_status read_config(const ravel__json *doc, train_lora *lora, ravel_error *err) {
    const ravel__json_node *root = ravel__json_root(doc);
    int64_t rank = 0;
    train_lora l = {.alpha = 8}; /* PEFT's default */
    if (!root || root->kind != RAVEL__JSON_OBJECT) return ravel_error_set(err, RAVEL_E_DATA, "it must be an object");
    ravel_status status = check_keys(doc, root, err);
    if (status) return status;
    if (!ravel__json_integer(ravel__json_get(doc, root, "r"), &rank) || rank < 1 || rank > TRAIN_LORA_RANK)
        return ravel_error_set(err, RAVEL_E_DATA, "r must be a rank from 1 to %d", TRAIN_LORA_RANK);
    l.rank = (int32_t)rank;
    const ravel__json_node *alpha = ravel__json_get(doc, root, "lora_alpha");
    if (alpha && !ravel__json_real(alpha, &l.alpha))
        return ravel_error_set(err, RAVEL_E_DATA, "lora_alpha must be a number");
    int rslora = 0;
    (void)ravel__json_boolean(ravel__json_get(doc, root, "use_rslora"), &rslora);
    l.rslora = rslora;
    status = read_targets(doc, ravel__json_get(doc, root, "target_modules"), &l.targets, err);
    if (!status) status = train_lora_check(&l, err);
    if (!status) *lora = l;
    return status;
}

static ravel_status open_config(const char *folder, char *path, ravel__json **doc, ravel_error *err) {
    ravel_status status = train_path_join(path, folder, TRAIN_ADAPTER_CONFIG, err);
    if (!status && !train_path_exists(path))
        return ravel_error_set(err, RAVEL_E_IO, "%s is not an adapter: it has no " TRAIN_ADAPTER_CONFIG, folder);
    return status ? status : train_json_read(path, doc, err);
}

ravel_status train_adapter_read(const char *folder, train_lora *lora, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel__json *doc = NULL;
    ravel_status status = open_config(folder, path, &doc, err);
    if (status) return status;
    status = read_config(doc, lora, err);
    if (status && err) ravel_error_prefix(err, "%s", path);
    ravel__json_free(doc);
    return status;
}

ravel_status train_adapter_parse(const char *text, size_t bytes, train_lora *lora, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(text, bytes, NULL, &doc, err);
    if (!status) status = read_config(doc, lora, err);
    if (status && err) ravel_error_prefix(err, TRAIN_ADAPTER_CONFIG);
    ravel__json_free(doc);
    return status;
}

ravel_status train_adapter_base(const char *folder, char *base, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel__json *doc = NULL;
    ravel_status status = open_config(folder, path, &doc, err);
    if (status) return status;
    const ravel__json_node *node = ravel__json_get(doc, ravel__json_root(doc), "base_model_name_or_path");
    (void)snprintf(base, TRAIN_PATH, "%s", node && node->kind == RAVEL__JSON_STRING ? node->as.string : "");
    ravel__json_free(doc);
    return RAVEL_OK;
}

static void print_targets(FILE *f, const train_lora *l) {
    const char *before = "";
    uint32_t left = l->targets;
    const ravel__family *family = l->family;
    int mixtral = family && family->router && strcmp(family->experts[1], "w1") == 0;
    for (int i = 0; i < TARGETS; i++) {
        uint32_t bits = target_rows[i].bits;
        int several = (bits & (bits - 1)) != 0, other = mixtral && bits >= BIT(GATE) && target_rows[i].name[0] != 'w';
        if ((left & bits) != bits || other || (several && !(family && family->fused))) continue;
        (void)fprintf(f, "%s\"%s\"", before, target_rows[i].name);
        before = ", ";
        left -= bits;
    }
}

/* A model of the hub's cache (.../models--ORG--NAME/snapshots/...) by its name, another as it was given, so that a
 * folder with both can be moved. */
static void print_base(FILE *f, const char *base) {
    char name[256];
    const char *cached = base ? strstr(base, "models--") : NULL, *parts = cached ? strstr(cached + 8, "--") : NULL;
    size_t end = parts ? strcspn(parts, "/") : 0;
    if (parts && strncmp(parts + end, "/snapshots/", 11) == 0 && !memchr(cached, '/', (size_t)(parts - cached))) {
        (void)snprintf(name, sizeof name, "%.*s/%.*s", (int)(parts - cached - 8), cached + 8, (int)end - 2, parts + 2);
        base = name;
    }
    if (base)
        (void)train_file_quote(f, base, strlen(base));
    else
        (void)fputs("null", f);
}

static void print_config(FILE *f, const train_lora *l, const char *base) {
    (void)fputs("{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": ", f);
    print_base(f, base);
    (void)fprintf(f, ",\n  \"r\": %d,\n  \"lora_alpha\": %.17g,\n  \"lora_dropout\": 0.0,\n  \"use_rslora\": %s,\n",
                  l->rank, l->alpha, l->rslora ? "true" : "false");
    (void)fputs("  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n", f);
    (void)fputs("  \"target_modules\": [", f);
    print_targets(f, l);
    (void)fputs("]\n}\n", f);
}

ravel_status train_adapter_print(const train_lora *lora, const char *base, char **text, size_t *bytes,
                                 ravel_error *err) {
    *text = NULL;
    FILE *f = open_memstream(text, bytes);
    if (f) print_config(f, lora, base);
    if (f && fclose(f) == 0 && *text) return RAVEL_OK;
    free(*text);
    *text = NULL;
    return ravel__no_memory(err, 1024, "the configuration of an adapter");
}

static ravel_status write_config(const char *folder, const train_lora *l, const char *base, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_status status = train_path_join(path, folder, TRAIN_ADAPTER_CONFIG, err);
    if (status) return status;
    FILE *f = train_file_create(path, err);
    if (!f) return RAVEL_E_IO;
    print_config(f, l, base);
    return train_file_close(f, path, err);
}

/* ---- weights --------------------------------------------------------------------------------------------- */

ravel_status train_adapter_load(const train_params *params, const train_array *to, const char *folder,
                                ravel_error *err) {
    char path[TRAIN_PATH];
    RAVEL_ASSERT(params->lora.rank);
    ravel_status status = train_path_join(path, folder, TENSORS_FILE, err);
    if (!status && !train_path_exists(path)) return ravel_error_set(err, RAVEL_E_IO, "%s has no " TENSORS_FILE, folder);
    return status ? status : train_tensors_load(params, to, path, err);
}

ravel_status train_adapter_save(const char *folder, const train_params *params, const char *base,
                                const train_rows_source *from, int32_t dtype, ravel_error *err) {
    char path[TRAIN_PATH];
    RAVEL_ASSERT(params->lora.rank);
    ravel_status status = ravel__folder_make(folder, err);
    if (!status) status = write_config(folder, &params->lora, base, err);
    if (!status) status = train_path_join(path, folder, TENSORS_FILE, err);
    return status ? status : train_tensors_save(path, params, from, dtype, err);
}
