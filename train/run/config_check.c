/* Presets, defaults that depend on other options, and checks of options that depend on one another. */
#include "train/run/config.h"

#include "train/run/cost.h"

#include "train/kernels/assert.h"

#include <ravel/flops.h>
#include <ravel/weights.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

ravel_status train_interval_parse(const char *text, train_interval *interval, ravel_error *err) {
    static const struct {
        const char *word;
        double seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    double value = text ? strtod(text, &end) : -1;
    *interval = (train_interval){0};
    if (text && end != text && value >= 0 && value < 1e12) {
        if (!*end && value == floor(value)) {
            interval->updates = (int64_t)value;
            return RAVEL_OK;
        }
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcmp(end, units[i].word) == 0) {
                interval->seconds = value * units[i].seconds;
                return RAVEL_OK;
            }
    }
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "\"%.40s\" is not an interval; write a time like 90s, 10m or 2h, or a number of updates",
                           text ? text : "");
}

/* A row per option, by its own name, and a column per preset after "none"; NULL: the preset does not set it. */
enum { PRESETS = 4 };
static const struct {
    const char *name, *values[PRESETS];
} presets[] = {
    /* clang-format off */
    /*                    grpo                   dr-grpo                    dapo          gspo */
    {"advantage",        {"grpo",                "dr-grpo",                 "grpo",       "grpo"}},
    {"aggregation",      {"seq-mean-token-mean", "seq-mean-token-sum-norm", "token-mean", "seq-mean-token-mean"}},
    {"clip-low",         {"0.2",                 "0.2",                     "0.2",        "3e-4"}},
    {"clip-high",        {"0.2",                 "0.2",                     "0.28",       "4e-4"}},
    {"kl",               {"0.04",                "0",                       "0",          "0"}},
    {"kl-kind",          {"k3",                  NULL,                      NULL,         NULL}},
    {"ratio",            {"token",               "token",                   "token",      "sequence"}},
    {"dynamic-sampling", {NULL,                  NULL,                      "true",       NULL}},
    {"overlong-buffer",  {NULL,                  NULL,                      "4096",       NULL}},
    {"overlong-penalty", {NULL,                  NULL,                      "1",          NULL}},
    /* clang-format on */
};

ravel_status train_config_preset(train_config *c, ravel_error *err) {
    train_part parts[TRAIN_PARTS];
    int count = train_config_parts(c, TRAIN_GRPO, parts), column = c->grpo.preset - 1;
    ravel_status status = RAVEL_OK;
    TRAIN_ASSERT(column < PRESETS);
    for (size_t i = 0; column >= 0 && i < sizeof presets / sizeof *presets && !status; i++) {
        const char *value = presets[i].values[column];
        const train_part *part = train_config_part(parts, count, presets[i].name);
        TRAIN_ASSERT(part);
        if (value) status = ravel_option_set(part->table, part->options, presets[i].name, value, err);
    }
    return status;
}

int32_t train_config_ranks(const train_config *c) {
    const ravel_mesh_options *m = &c->mesh;
    const int32_t sizes[] = {m->cp, m->pp, m->dp > 0 ? m->dp : 1};
    int64_t ranks = m->tp;
    for (int i = 0; i < 3 && ranks <= INT32_MAX; i++) ranks *= sizes[i];
    if (c->run.ranks > 0) return c->run.ranks;
    return (int32_t)(ranks < INT32_MAX ? ranks : INT32_MAX);
}

void train_config_settle(train_config *c, train_kind kind) {
    c->plan.cp = c->mesh.cp;
    if (c->plan.budget == 0 && c->plan.method == RAVEL_METHOD_RAVEL) c->plan.method = RAVEL_METHOD_FIXED_COUNT;
    if (c->plan.cp_pool && c->mesh.dp == 0) c->mesh.dp = c->plan.cp_pool;
    if (kind == TRAIN_GRPO && !c->grpo.task && !c->grpo.data) c->grpo.task = "arithmetic";
    if (c->grpo.scoring.max_tokens == 0) c->grpo.scoring.max_tokens = c->model.model && c->grpo.data ? 256 : 16;
    if (c->policy.overlong_buffer > c->grpo.scoring.max_tokens) /* DAPO's is for answers of 20k tokens */
        c->policy.overlong_buffer = c->grpo.scoring.max_tokens / 4;
    if (c->learn.lr == -1) c->learn.lr = !c->model.model ? 1e-3 : kind == TRAIN_SFT ? 2e-5 : 1e-6;
    TRAIN_ASSERT(c->learn.lr != -1 && c->plan.cp == c->mesh.cp);
}

/* ---- options that depend on one another ---------------------------------------------------------------- */

/* The first option from `first` up to the one before `end` (NULL: the last of its part) that is not its default; NULL: none. */
static const char *first_given(const train_config *c, const char *first, const char *end) {
    train_config given = *c, usual;
    train_part parts[TRAIN_PARTS], defaults[TRAIN_PARTS];
    train_config_default(&usual);
    int count = train_config_parts(&given, TRAIN_SFT, parts);
    (void)train_config_parts(&usual, TRAIN_SFT, defaults);
    const train_part *part = train_config_part(parts, count, first);
    TRAIN_ASSERT(part);
    const ravel_option *row = ravel_option_find(part->table, first);
    for (; row->name && !(end && strcmp(row->name, end) == 0); row++) {
        char value[256], preset[256];
        ravel_option_format(row, part->options, value, sizeof value);
        ravel_option_format(row, defaults[part - parts].options, preset, sizeof preset);
        if (strcmp(value, preset) != 0) return row->name;
    }
    return NULL;
}

/* --hidden and the like describe a new model; beside --model or --shape they would be ignored. */
static ravel_status check_model(const train_config *c, ravel_error *err) {
    const train_model_choice *given = &c->model;
    const char *number = given->model || given->shape ? first_given(c, "hidden", "init-seed") : NULL;
    if (given->model && given->shape)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "--model brings its own shape; give --model or --shape, not both");
    if (number)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--%s is for a new byte model; --%s brings its own shape", number,
                               given->model ? "model" : "shape");
    int32_t gpus[TRAIN_GPUS], count;
    ravel_status status = train_gpus_parse("device", given->devices, gpus, &count, err);
    if (status) return status;
    if (!given->model && !given->shape && given->vocab < TRAIN_TOKENS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "vocab is %lld; a byte model needs %d or more",
                               (long long)given->vocab, TRAIN_TOKENS);
    return RAVEL_OK;
}

static ravel_status check_run(const train_config *c, ravel_error *err) {
    train_interval interval;
    if (c->run.gpu && ravel_gpu_peak(c->run.gpu) <= 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the peak of \"%.60s\" is not known; --gpu takes a name like h100, h200, a100, mi300x",
                               c->run.gpu);
    if (c->learn.lr < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "lr is %g; it must be 0 or more, or -1 for the default",
                               c->learn.lr);
    if (c->learn.min_lr > c->learn.lr)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "min-lr is %g, which is above lr, %g", c->learn.min_lr,
                               c->learn.lr);
    if (c->learn.moments == TRAIN_MOMENTS_BF16 && fmax(c->learn.beta1, c->learn.beta2) > TRAIN_MOMENTS_BETA)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "moments is bf16, beta1 %g and beta2 %g; bf16 has 8 bits and would lose most changes of a "
            "moment above %g: lower the betas, or say --moments f32",
            c->learn.beta1, c->learn.beta2, TRAIN_MOMENTS_BETA);
    ravel_status status = train_interval_parse(c->run.checkpoint_every, &interval, err);
    if (status) ravel_error_prefix(err, "checkpoint-every");
    return status;
}

static ravel_status check_pool(const train_config *c, ravel_error *err) {
    const ravel_plan_options *p = &c->plan;
    if (p->budget == 0 && (p->method != RAVEL_METHOD_FIXED_COUNT || p->cp_pool))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "without a budget micro-batches are of --count samples: leave out --method and --cp-pool, or "
            "give --budget");
    if (p->budget == 0 && c->sft.task)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples of a task have no longest one; give --budget");
    if (p->count > 1 && p->method != RAVEL_METHOD_FIXED_COUNT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--count is of --method count; give that too");
    if (!p->cp_pool) {
        if (!p->cp_widths && !p->cp_price && p->min_cp == 1) return RAVEL_OK;
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "--cp-widths, --cp-price and --min-cp are those of --cp-pool; give --cp-pool too");
    }
    if (c->mesh.cp > 1 || c->mesh.dp != p->cp_pool)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "--cp-pool %d makes groups of the dp ranks, each of its own width: say --cp 1 and --dp %d "
            "(or neither)",
            p->cp_pool, p->cp_pool);
    return RAVEL_OK;
}

/* Evaluations that could never take place. `what`: the option that there would have to be. */
static ravel_status check_evaluation(const train_config *c, int64_t every, const char *what, ravel_error *err) {
    if (every == 0 && !c->run.keep_best) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "--%s needs something to evaluate; give --%s too",
                           every ? "eval-every" : "keep-best", what);
}

static ravel_status check_sft(const train_config *c, ravel_error *err) {
    int given = (c->sft.task != NULL) + (c->source.data != NULL) + (c->source.mock != NULL);
    if (given != 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "give one of --data FILE.jsonl, --mock JSON and --task NAME; %s was given",
                               given ? "more than one" : "none");
    if (c->sft.epochs && c->sft.task)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a task has no end: say --steps rather than --epochs");
    if (c->sft.eval_share > 0 && c->sft.task)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--eval-share is of the rows of --data; a task needs none");
    const char *about_rows = c->sft.task ? first_given(c, "data", NULL) : NULL; /* it would have no effect */
    if (about_rows) return ravel_error_set(err, RAVEL_E_ARGUMENT, "--%s is for --data; a task has no rows", about_rows);
    if (c->sft.task || c->sft.eval_share > 0) return RAVEL_OK;
    return check_evaluation(c, c->sft.eval_every, "eval-share", err);
}

static ravel_status check_dpo(const train_config *c, ravel_error *err) {
    if (c->source.data && !c->model.model && !c->model.shape && !first_given(c, "hidden", "init-seed"))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "dpo improves a model: give --model FOLDER (or --shape or --hidden for new, random weights)");
    if (!c->source.data || c->source.mock || c->sft.task)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "give --data FILE.jsonl with \"chosen\" and \"rejected\"");
    if (c->learn.aggregation != RAVEL_TOKEN_MEAN || c->learn.norm > 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the loss of dpo is a mean over pairs; --aggregation and --norm do not apply");
    return c->sft.eval_share > 0 ? RAVEL_OK : check_evaluation(c, c->sft.eval_every, "eval-share", err);
}

static ravel_status check_grpo(const train_config *c, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    int32_t gpus[TRAIN_GPUS], count;
    ravel_status status = train_gpus_parse("generator-device", o->generator_devices, gpus, &count, err);
    if (status) return status;
    if (o->generators % o->generator_tp)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "generators is %d, ranks per generator (generator-tp) %d; the first must be a multiple of "
            "the second: say --generators %d",
            o->generators, o->generator_tp, (o->generators + o->generator_tp - 1) / o->generator_tp * o->generator_tp);
    if (o->task && o->data) return ravel_error_set(err, RAVEL_E_ARGUMENT, "give --task or --data, not both");
    if (o->eval_share > 0 && !o->data)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--eval-share is of the rows of --data; a task needs none");
    if (o->group_size < 2 && c->policy.advantage != RAVEL_ADVANTAGE_NONE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "group-size is %d; advantages are taken within a group, so it must be 2 or more",
                               o->group_size);
    if (o->temperature == 0 && c->policy.advantage != RAVEL_ADVANTAGE_NONE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "temperature is 0: all answers of a group would be the same, and nothing could be "
                               "learnt; give one above 0");
    if (!o->publish && (o->publish_open || o->publish_tls || o->publish_allow || o->publish_host))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--publish-... describe a publication; say where: --publish");
    if ((o->refit_buffer_size > 0 && o->refit_buffer_size < 4096) || (o->refit_memory > 0 && o->refit_memory < 1e-6))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "--refit-buffer-size %lld, --refit-memory %g; allowed is from 4k, from 0.000001, or 0",
                               (long long)o->refit_buffer_size, o->refit_memory);
    if (o->prompts < o->updates)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%lld prompts cannot be dealt to %d updates",
                               (long long)o->prompts, o->updates);
    if (o->old == TRAIN_OLD_GENERATOR && c->policy.tis > 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--tis weighs trainer / generator: it needs --old trainer");
    if (c->policy.dual_clip != 0 && !(c->policy.dual_clip > 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "dual-clip is %g; it must be 0 (off) or above 1",
                               c->policy.dual_clip);
    return o->eval_prompts > 0 ? RAVEL_OK : check_evaluation(c, o->eval_every, "eval-prompts", err);
}

/* --share-prefix on is refused where nothing can be shared; auto leaves it then. */
static ravel_status check_share(const train_config *c, train_kind kind, ravel_error *err) {
    const char *why = c->mesh.cp > 1                        ? "--cp"
                      : c->plan.cp_pool                     ? "--cp-pool"
                      : c->run.single                       ? "--single"
                      : kind == TRAIN_DPO && c->mesh.pp > 1 ? "--pp in dpo"
                                                            : NULL;
    if (!why || c->learn.share_prefix != RAVEL_SHARE_ON) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "--share-prefix on is not possible with %s yet; say auto or off",
                           why);
}

ravel_status train_config_check(const train_config *c, train_kind kind, ravel_error *err) {
    TRAIN_ASSERT(kind >= 0 && kind < TRAIN_KINDS);
    ravel_status status = check_model(c, err);
    if (!status) status = check_run(c, err);
    if (!status) status = check_pool(c, err);
    if (!status) status = check_share(c, kind, err);
    if (!status) status = train_cost_check(c->run.cost, err);
    if (status) return status;
    if (kind == TRAIN_DPO) return check_dpo(c, err);
    if (c->learn.norm > 0 && c->learn.aggregation != RAVEL_SEQ_MEAN_TOKEN_SUM_NORM)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "--norm is the divisor of --aggregation seq-mean-token-sum-norm; give both, or neither");
    return kind == TRAIN_SFT ? check_sft(c, err) : check_grpo(c, err);
}
