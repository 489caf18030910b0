/* The list of kernel sets: a name, the table, and whether this machine can run it. */
#include "train/kernels.h"

#include "train/kernels_ref.h"

#include <stdio.h>
#include <string.h>

static int always(void) {
    return 1;
}

/* Sets in order of preference within a family; "cpu" is the first usable one of its rows. */
static const struct {
    const char *name;
    const train_kernels *table;
    int (*usable)(void);
    const char *needs;
} sets[] = {
    {"ref", &REF(table), always, "nothing"},
};
enum { SETS = sizeof sets / sizeof *sets };

const char *train_kernels_name(int32_t index) {
    return index >= 0 && index < SETS ? sets[index].name : NULL;
}

static ravel_status unknown_set(const char *name, ravel_error *err) {
    char list[256] = "";
    for (int i = 0; i < SETS; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", sets[i].name);
    }
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no set of kernels called \"%s\"; there are %s", name, list);
}

ravel_status train_kernels_find(const char *name, const train_kernels **kernels, ravel_error *err) {
    const char *needs = NULL;
    for (int i = 0; i < SETS; i++) {
        if (strcmp(sets[i].name, name) != 0) continue;
        if (sets[i].usable()) {
            *kernels = sets[i].table;
            return RAVEL_OK;
        }
        needs = sets[i].needs;
    }
    if (!needs) return unknown_set(name, err);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "kernels \"%s\" need a processor with %s; \"cpu\" runs anywhere",
                           name, needs);
}
