/* The planner's options as a table, and the table of methods. */
#include "plan/hybrid/hybrid.h"

#include "base/options.h"

#include <stddef.h>

#define ROW(...) RAVEL__ROW(ravel_plan_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("budget", I64, budget, "0", 0, 0x1p40, NULL,
        "the hard cap on slot tokens in one bin, per context-parallel rank; required, but for method = count"),
    ROW("dp", I32, dp, "1", 1, 0x1p20, NULL, "data-parallel ranks"),
    ROW("cp", I32, cp, "1", 1, 0x1p16, NULL, "context-parallel ranks; a bin holds cp * budget"),
    ROW("align", I32, align, "1", 1, 0x1p30, NULL,
        "a slot is a multiple of this: 2 * cp, times tp with sequence parallelism, 16 or 128 for fp8"),
    ROW("cp-split", ENUM, cp_split, "zig-zag", 0, 0, RAVEL_CP_SPLIT_CHOICES,
        "how context-parallel ranks split a slot: with cp above 1, align is raised to a multiple of 2 * cp or of cp"),
    ROW("cp-pool", I32, cp_pool, "0", 0, 0x1p12, NULL,
        "hybrid context parallelism: ranks (dp * cp) that form groups of different widths in each micro-step; 0: off"),
    ROW("cp-widths", STRING, cp_widths, NULL, 0, 0, "LIST",
        "widths that groups may have, such as 1,2,4,8 [powers of two that divide the pool, and the pool]"),
    ROW("min-cp", I32, min_cp, "1", 1, 0x1p12, NULL, "smallest width of a group of the pool"),
    ROW("cp-price", STRING, cp_price, NULL, 0, 0, "LIST",
        "extra time per mille by width, such as 2:30,4:60 [30 per doubling, and 150 beyond a node]"),
    ROW("cp-node", I32, cp_node, "8", 1, 0x1p12, NULL, "ranks of a node, for the default price"),
    ROW("cp-tp", I32, cp_tp, "1", 1, 0x1p10, NULL,
        "tensor-parallel ranks that split sequences too: slots of a group of width k are multiples of 2 * k * this"),
    ROW("cp-empty", ENUM, cp_empty, "filler", 0, 0, RAVEL_CP_EMPTY_CHOICES,
        "ranks of the pool without work: run a filler, or widen groups until none is left"),
    ROW("max-samples", I64, max_samples, "0", 0, 0x1p40, NULL, "samples in one bin; 0: no cap"),
    ROW("multiple", I32, multiple, "1", 1, 0x1p20, NULL,
        "the micro-steps of an update are a multiple of this (virtual pipeline groups)"),
    ROW("min-micro-steps", I64, min_micro_steps, "1", 0, 0x1p31, NULL, "an update has at least this many micro-steps"),
    ROW("updates", I32, updates, "1", 1, 0x1p30, NULL, "cut the batch into this many updates"),
    ROW("samples-per-update", I64, samples_per_update, "0", 0, 0x1p40, NULL,
        "instead of updates: cut after this many samples; 0: off"),
    ROW("sync", ENUM, sync, "micro-step", 0, 0, RAVEL_SYNC_CHOICES,
        "where ranks synchronize: every micro-step (FSDP, ZeRO-3, experts), the update (DDP, ZeRO-1), or a pipeline"),
    ROW("layout", ENUM, layout, "packed", 0, 0, RAVEL_LAYOUT_CHOICES,
        "what counts against the budget: slots side by side, rows x longest, or prompts and responses padded apart"),
    ROW("method", ENUM, method, "ravel", 0, 0, RAVEL_METHOD_CHOICES, "how bins are made"),
    ROW("tree-method", ENUM, tree_method, "ravel", 0, 0, RAVEL_TREE_METHOD_CHOICES,
        "samples that share prefixes: how method ravel deals with them, or what other frameworks do"),
    ROW("effort", ENUM, effort, "default", 0, 0, RAVEL_EFFORT_CHOICES, "search effort of the default method"),
    ROW("objective", ENUM, objective, "auto", 0, 0, RAVEL_OBJECTIVE_CHOICES,
        "what is minimised first: predicted time, or the number of micro-steps; auto: time if --cost has an overhead or prefixes are shared"),
    ROW("count", I64, count, "1", 1, 0x1p40, NULL, "samples per bin for method = count"),
    ROW("group-rule", ENUM, group_rule, "free", 0, 0, RAVEL_GROUP_CHOICES,
        "samples of one group: anywhere, in one update, or on one rank of one update"),
    ROW("oversize", ENUM, oversize, "error", 0, 0, RAVEL_OVERSIZE_CHOICES,
        "a sample that fits no bin: an error, left out and listed, or in a bin of its own, over the budget"),
    ROW("shuffle", BOOL, shuffle, "false", 0, 0, NULL,
        "deal samples to updates in an order shuffled by seed, else in input order"),
    ROW("seed", U64, seed, "0", 0, 0, NULL, "seed of --shuffle"),
    {NULL, 0, 0, NULL, 0, 0, NULL, NULL},
};

ravel_option_table ravel_plan_option_table(void) {
    return table;
}

void ravel_plan_options_default(ravel_plan_options *options) {
    ravel__options_preset(table, options, sizeof *options);
    options->cost.linear = 1;
}

int32_t ravel_plan_align(const ravel_plan_options *o) {
    int64_t even = o->cp <= 1 ? 1 : o->cp_split == RAVEL_CP_SPLIT_ZIGZAG ? 2 * (int64_t)o->cp : o->cp;
    int64_t align = o->align < 1 ? 1 : o->align, a = align, b = even;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return align / a * even > 1 << 30 ? 0 : (int32_t)(align / a * even);
}

static ravel_status check_cost(const ravel_cost *cost, ravel_error *err) {
    const struct {
        const char *name;
        int64_t value, most;
    } rows[] = {{"linear", cost->linear, INT64_C(1) << 53},
                {"quadratic", cost->quadratic, INT64_C(1) << 30},
                {"overhead", cost->overhead, INT64_C(1) << 53}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < 0 || rows[i].value > rows[i].most)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "cost.%s is %lld; it must be from 0 to %lld", rows[i].name,
                                   (long long)rows[i].value, (long long)rows[i].most);
    return RAVEL_OK;
}

ravel_status ravel__options_read(const ravel_plan_options *options, ravel_plan_options *own, ravel_error *err) {
    ravel_plan_options_default(own);
    ravel_status status = ravel__take_options(table, "plan", options, own, sizeof *own, err);
    if (!status) status = check_cost(&own->cost, err);
    if (!status && !own->budget && (own->method != RAVEL_METHOD_FIXED_COUNT || own->cp_pool))
        status =
            ravel_error_set(err, RAVEL_E_ARGUMENT,
                            "budget is 0; it must be the tokens of a bin, 1 or more (only method = count needs none)");
    if (status) return status;
    int32_t align = ravel_plan_align(own);
    if (!align)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "align %d and cp %d have a common multiple above 2^30; lower one of them", own->align,
                               own->cp);
    own->align = align;
    if (own->cp_pool) return ravel__hybrid_options_check(own, err);
    int64_t room = own->cp * own->budget;
    if (room == 0 && own->method == RAVEL_METHOD_FIXED_COUNT)
        return RAVEL_OK; /* ravel__rules_make makes room for all lengths */
    if (room < own->align)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "cp * budget is %lld, below align %d, so that no slot fits a bin; raise budget",
                               (long long)room, own->align);
    if (own->updates > 1 && own->samples_per_update > 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "updates is %d and samples-per-update is %lld; give one of them",
                               own->updates, (long long)own->samples_per_update);
    return RAVEL_OK;
}

/* ---- methods ------------------------------------------------------------------------------------------------ */

const ravel__method ravel__methods[RAVEL_METHODS] = {
    {"ravel", "the default: few bins, balanced for what the ranks wait for, samples near their home rank; see --effort",
     NULL, 1},
#define X(NAME, function, name, splits, doc) {name, doc, ravel__pack_##function, splits},
    RAVEL_METHOD_LIST(X)
#undef X
};

const char *ravel_method_name(int32_t method) {
    return method >= 0 && method < RAVEL_METHODS ? ravel__methods[method].name : NULL;
}

const char *ravel_method_doc(int32_t method) {
    return method >= 0 && method < RAVEL_METHODS ? ravel__methods[method].doc : NULL;
}
