/* The table of metrics and of phases, from the lists in the header. */
#include "metrics/state.h"

#include "base/assert.h"

#include <ctype.h>

const ravel_metric ravel__metric_table[RAVEL_METRICS] = {
#define X(id, name, kind, unit, rule, show, sentence) \
    {name, unit, sentence, RAVEL_KIND_##kind, RAVEL_RULE_##rule, RAVEL_SHOW_##show, 0},
    RAVEL_METRIC_LIST(X)
#undef X
};

static const char *const phase_names[] = {
#define P(x, id, name, sentence) name,
    RAVEL_PHASE_LIST(P, )
#undef P
};

_Static_assert(RAVEL_PHASES <= sizeof((ravel_metrics_totals *)0)->phases / sizeof(double), "totals hold every phase");

const ravel_metric *ravel_metric_row(int32_t id) {
    return id >= 0 && id < RAVEL_METRICS ? &ravel__metric_table[id] : NULL;
}

const char *ravel_phase_name(int32_t phase) {
    return phase >= 0 && phase < RAVEL_PHASES ? phase_names[phase] : NULL;
}

/* Prometheus writes an underscore for everything that is neither letter nor digit. */
static int alike(char a, char b) {
    return a == b || (a && b && !isalnum((unsigned char)a) && !isalnum((unsigned char)b));
}

const char *ravel__metric_clash(const char *a, const char *b) {
    RAVEL_ASSERT(a && b && *a && *b);
    size_t i = 0;
    while (a[i] && a[i] == b[i]) i++;
    if (!a[i] && (!b[i] || b[i] == '/')) return a;
    if (!b[i] && a[i] == '/') return b;
    for (i = 0; alike(a[i], b[i]); i++)
        if (!a[i]) return a;
    return NULL;
}
