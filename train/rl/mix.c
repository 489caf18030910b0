#include "train/rl/mix.h"

#include "base/assert.h"
#include "base/number.h"

#include <ravel/metrics.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define X(ID, name, sentence) name,
    TRAIN_MIX_LIST(X)
#undef X
};

/* The metric of a part is reward/NAME, which must not be one of the library's. */
static int is_taken(const char *name) {
    char metric[TRAIN_MIX_NAME + 8];
    (void)snprintf(metric, sizeof metric, "reward/%.*s", TRAIN_MIX_NAME - 1, name);
    for (int32_t id = 0; id < RAVEL_METRICS; id++)
        if (strcmp(ravel_metric_row(id)->name, metric) == 0) return 1;
    return 0;
}

static ravel_status check_name(const train_mix *mix, const char *name, ravel_error *err) {
    for (int32_t i = 0; i < mix->count; i++)
        if (strcmp(mix->parts[i].name, name) == 0)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "reward: \"%s\" is there twice", name);
    if (is_taken(name))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "reward: a part cannot be called \"%s\", as reward/%s is a metric of its own", name,
                               name);
    return RAVEL_OK;
}

/* One NAME[:WEIGHT] of `length` bytes. */
static ravel_status add_part(train_mix *mix, const char *text, size_t length, ravel_error *err) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    char item[80] = "", *end = item;
    if (length < sizeof item) memcpy(item, text, length);
    item[length < sizeof item ? length : 0] = '\0';
    size_t name = strspn(item, letters);
    double weight = 1;
    if (item[name] == ':') {
        weight = ravel__number_read(item + name + 1, &end);
        if (end == item + name + 1 || *end || !isfinite(weight)) name = 0;
        item[name] = '\0';
    } else if (item[name]) {
        name = 0;
    }
    if (name == 0 || name >= TRAIN_MIX_NAME)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "reward: \"%.*s\" is not NAME or NAME:WEIGHT, as in exact:1,length:-0.1; a name has small "
            "letters, digits and _, %d at most",
            (int)(length < 60 ? length : 60), text, TRAIN_MIX_NAME - 1);
    if (mix->count == TRAIN_MIX_PARTS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "reward: it has more than %d parts", TRAIN_MIX_PARTS);
    ravel_status status = check_name(mix, item, err);
    if (status) return status;
    train_mix_part *part = &mix->parts[mix->count++];
    *part = (train_mix_part){.kind = TRAIN_MIX_NAMED, .weight = weight};
    memcpy(part->name, item, name + 1);
    for (int k = 0; k < TRAIN_MIX_NAMED; k++)
        if (strcmp(item, names[k]) == 0) part->kind = k;
    return RAVEL_OK;
}

static ravel_status check_command(const train_mix *mix, int has_command, ravel_error *err) {
    int32_t commanded = 0;
    for (int32_t i = 0; i < mix->count; i++) {
        int of_command = train_mix_commanded(mix, i);
        if (of_command && !has_command)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "reward: \"%s\" is measured by a reward command; give --reward-command, or one of "
                                   "exact, ended, length",
                                   mix->parts[i].name);
        commanded += of_command;
    }
    if (has_command && !commanded)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "reward: --reward-command has no part in it; add \"command\", or names that it answers");
    return RAVEL_OK;
}

ravel_status train_mix_parse(const char *list, int has_command, train_mix *out, ravel_error *err) {
    train_mix mix = {.count = 0};
    const char *at = list ? list : has_command ? names[TRAIN_MIX_COMMAND] : names[TRAIN_MIX_EXACT];
    for (;; at++) {
        size_t length = strcspn(at, ",");
        ravel_status status = add_part(&mix, at, length, err);
        if (status) return status;
        at += length;
        if (!*at) break;
    }
    ravel_status status = check_command(&mix, has_command, err);
    if (!status) *out = mix;
    return status;
}

int train_mix_has(const train_mix *mix, train_mix_kind kind) {
    for (int32_t i = 0; i < mix->count; i++)
        if (mix->parts[i].kind == (int32_t)kind) return 1;
    return 0;
}

int train_mix_commanded(const train_mix *mix, int32_t i) {
    RAVEL_ASSERT(i >= 0 && i < mix->count);
    return mix->parts[i].kind >= TRAIN_MIX_COMMAND;
}

double train_mix_sum(const train_mix *mix, const double *values) {
    double sum = 0;
    for (int32_t i = 0; i < mix->count; i++) sum += mix->parts[i].weight * values[i];
    return sum;
}
