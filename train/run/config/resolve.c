#include "train/run/config/resolve.h"

#include "train/model/hf/lora.h"
#include "train/run/rundir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HUB_NAME = 100 };

static ravel_status copy(char *to, const char *from, ravel_error *err) {
    int used = snprintf(to, TRAIN_PATH, "%s", from);
    if (used >= 0 && used < TRAIN_PATH) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%.60s...: the path is too long", from);
}

static ravel_status has(const char *folder, const char *name, int *there, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_status status = train_path_join(path, folder, name, err);
    *there = !status && train_path_exists(path);
    return status;
}

/* ---- names of the hub ------------------------------------------------------------------------------------- */

/* "org/name" that is not there, nor a folder "org"; its two parts. */
static int is_hub_name(const char *given, char *org, char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t first = strspn(given, letters), second = given[first] == '/' ? strspn(given + first + 1, letters) : 0;
    if (first == 0 || first >= HUB_NAME || second == 0 || second >= HUB_NAME || given[first + 1 + second]) return 0;
    if (*given == '.' || given[first + 1] == '.' || train_path_exists(given)) return 0;
    (void)snprintf(org, HUB_NAME, "%.*s", (int)first, given);
    (void)snprintf(name, HUB_NAME, "%s", given + first + 1);
    return !train_path_exists(org);
}

/* Where `hf download` and transformers put it: CACHE/models--ORG--NAME/snapshots/REVISION. */
static int find_in_cache(const char *org, const char *name, char *path) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    char revision[64], root[TRAIN_PATH - 400];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *at = getenv(places[i].variable);
        if (!at || !*at) continue;
        (void)snprintf(root, sizeof root, "%s%s/models--%s--%s", at, places[i].below, org, name);
        (void)snprintf(path, TRAIN_PATH, "%s/refs/main", root);
        FILE *f = fopen(path, "r");
        int read = f && fscanf(f, "%63s", revision) == 1;
        if (f) (void)fclose(f);
        (void)snprintf(path, TRAIN_PATH, "%s/snapshots/%s", root, read ? revision : "");
        return read && train_path_exists(path);
    }
    return 0;
}

/* A folder as it is, a name of the hub as where it was downloaded to: path[TRAIN_PATH]. */
static ravel_status find_folder(const char *given, char *path, ravel_error *err) {
    char org[HUB_NAME], name[HUB_NAME];
    if (!is_hub_name(given, org, name)) return copy(path, given, err);
    if (find_in_cache(org, name, path)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_IO,
        "there is no folder %.200s here, nor in the cache of the Hugging Face hub; if it is a model of the hub, download "
        "it: hf download %.200s (pip install huggingface_hub)",
        given, given);
}

/* ---- adapters --------------------------------------------------------------------------------------------- */

/* The base of an adapter as its config has it: a folder from here or, so that an adapter can be moved with its model and be used
 * from anywhere, from its own folder or one above that; or a name of the hub. 0: it is not found. */
static int find_base(const char *adapter, const char *base, char *path) {
    char folder[TRAIN_PATH], org[HUB_NAME], name[HUB_NAME];
    if (train_path_exists(base)) return !copy(path, base, NULL);
    if (is_hub_name(base, org, name) && find_in_cache(org, name, path)) return 1;
    if (*base == '/' || !realpath(adapter, folder)) return 0;
    for (char *end = folder + strlen(folder); end; end = strrchr(folder, '/')) {
        *end = '\0';
        if (!train_path_join(path, folder, base, NULL) && train_weights_dtype(path) >= 0) return 1;
    }
    return 0;
}

ravel_status train_adapter_find_base(const char *adapter, char *path, ravel_error *err) {
    char base[TRAIN_PATH];
    ravel_status status = train_adapter_base(adapter, base, err);
    if (status) return status;
    if (!base[0])
        return ravel_error_set(err, RAVEL_E_DATA,
                               "%s is an adapter that does not say of which model: give that model, and this folder as "
                               "--adapter",
                               adapter);
    if (find_base(adapter, base, path)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_DATA,
        "%s is an adapter of \"%.200s\", which is not a folder here: give that model's folder, and this one "
        "as --adapter",
        adapter, base);
}

/* ---- what is given ---------------------------------------------------------------------------------------- */

ravel_status train_run_resolve(const char *given, char *path, int64_t *step, ravel_error *err) {
    int run = 0;
    *step = -1;
    ravel_status status = find_folder(given, path, err);
    if (!status) status = has(given, "checkpoints", &run, err);
    if (status || !run) return status;
    status = train_checkpoint_latest(given, step, path, err);
    if (status != RAVEL_E_END) return status;
    ravel_error_clear(err);
    return ravel_error_set(err, RAVEL_E_STATE, "%s is a run without a checkpoint yet", given);
}

ravel_status train_adapter_resolve(const char *given, char *path, ravel_error *err) {
    int64_t step;
    int adapter = 0;
    ravel_status status = train_run_resolve(given, path, &step, err);
    if (!status) status = has(path, "adapter_config.json", &adapter, err);
    if (status || adapter) return status;
    if (access(path, R_OK | X_OK) != 0) return train_file_error(err, "opened", path);
    return ravel_error_set(err, RAVEL_E_DATA, "%s is not an adapter: it has no adapter_config.json", given);
}

ravel_status train_model_resolve(const char *given, train_model_path *p, ravel_error *err) {
    int adapter = 0;
    *p = (train_model_path){.step = -1};
    ravel_status status = train_run_resolve(given, p->model, &p->step, err);
    if (!status) status = has(p->model, "adapter_config.json", &adapter, err);
    if (status || !adapter) return status;
    status = copy(p->adapter, p->model, err);
    return status ? status : train_adapter_find_base(p->adapter, p->model, err);
}

ravel_status train_model_resolve_with(const char *given, const char *adapter, train_model_path *p, ravel_error *err) {
    ravel_status status = train_model_resolve(given, p, err);
    if (status || !adapter) return status;
    if (p->adapter[0])
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is an adapter itself: give it, or its model with --adapter",
                               given);
    return train_adapter_resolve(adapter, p->adapter, err);
}
