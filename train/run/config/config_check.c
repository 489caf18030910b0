/* Presets, defaults that depend on other options, and checks of options that depend on one another. */
#include "train/rl/outside/teacher.h"
#include "train/run/config/config.h"

#include "train/run/config/cost.h"

#include "base/assert.h"

#include <ravel/flops.h>
#include "http/http.h"
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
    train_section parts[TRAIN_SECTIONS];
    int count = train_config_sections(c, TRAIN_GRPO, parts), column = c->grpo.preset - 1;
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(column < PRESETS);
    for (size_t i = 0; column >= 0 && i < sizeof presets / sizeof *presets && !status; i++) {
        const char *value = presets[i].values[column];
        const train_section *part = train_config_section(parts, count, presets[i].name);
        RAVEL_ASSERT(part);
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
    if (kind == TRAIN_GRPO && !c->grpo.task && !c->grpo.data && !train_config_has_env(c)) c->grpo.task = "arithmetic";
    if (c->grpo.scoring.max_tokens == 0) c->grpo.scoring.max_tokens = c->model.model && c->grpo.data ? 256 : 16;
    if (c->grpo.env_tokens == 0) c->grpo.env_tokens = 2 * c->grpo.max_turns * c->grpo.scoring.max_tokens;
    if (c->policy.overlong_buffer > train_config_rollout_tokens(c)) /* DAPO's is for answers of 20k tokens */
        c->policy.overlong_buffer = train_config_rollout_tokens(c) / 4;
    if (c->grpo.teacher && c->policy.kl == 0) c->policy.kl = 1;
    if (c->grpo.teacher) c->policy.kl_kind = TRAIN_POLICY_K2; /* its gradient is that of the reverse divergence */
    double adapted = train_config_adapts(c) ? 10 : 1;
    if (c->learn.lr == -1) c->learn.lr = !c->model.model ? 1e-3 : adapted * (kind == TRAIN_SFT ? 2e-5 : 1e-6);
    RAVEL_ASSERT(c->learn.lr != -1 && c->plan.cp == c->mesh.cp);
}

/* ---- options that depend on one another ---------------------------------------------------------------- */

#define REFUSE(...) ravel_error_set(err, RAVEL_E_ARGUMENT, __VA_ARGS__)

/* The first option from `first` up to the one before `end` (NULL: the last of its part) that is not its default; NULL:
 * none. */
static const char *first_given(const train_config *c, train_kind kind, const char *first, const char *end) {
    train_config given = *c, usual;
    train_section parts[TRAIN_SECTIONS], defaults[TRAIN_SECTIONS];
    train_config_default(&usual);
    int count = train_config_sections(&given, kind, parts);
    (void)train_config_sections(&usual, kind, defaults);
    const train_section *part = train_config_section(parts, count, first);
    RAVEL_ASSERT(part);
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
    const char *number = given->model || given->shape ? first_given(c, TRAIN_SFT, "hidden", "init-seed") : NULL;
    if (given->model && given->shape) return REFUSE("--model brings its own shape; give --model or --shape, not both");
    if (number)
        return REFUSE("--%s is for a new byte model; --%s brings its own shape", number,
                      given->model ? "model" : "shape");
    int32_t gpus[TRAIN_GPUS], count;
    ravel_status status = train_gpus_parse("device", given->devices, gpus, &count, err);
    if (status) return status;
    if (!given->model && !given->shape && given->vocab < TRAIN_TOKENS)
        return REFUSE("vocab is %lld; a byte model needs %d or more", (long long)given->vocab, TRAIN_TOKENS);
    return RAVEL_OK;
}

int train_config_adapts(const train_config *c) {
    return c->model.lora_rank > 0 || c->model.adapter != NULL;
}

static ravel_status check_adapter(const train_model_choice *m, ravel_error *err) {
    int described = m->lora_alpha > 0 || m->lora_targets || m->lora_rslora;
    if (m->lora_dropout != 0)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "--lora-dropout is %g; only 0 is supported", m->lora_dropout);
    if (m->adapter && (m->lora_rank || described))
        return REFUSE("--adapter brings its own rank, alpha and targets; leave out --lora-rank and the others");
    if (!m->lora_rank && described) return REFUSE("--lora-... describe a new adapter; give its --lora-rank too");
    if (m->adapter && !m->model) return REFUSE("--adapter is of a model; give its --model too");
    return RAVEL_OK;
}

static ravel_status check_run(const train_config *c, ravel_error *err) {
    train_interval interval;
    if (c->run.gpu && ravel_gpu_peak(c->run.gpu) <= 0)
        return REFUSE("the peak of \"%.60s\" is not known; --gpu takes a name like h100, h200, a100, mi300x",
                      c->run.gpu);
    if (c->run.sinks && strstr(c->run.sinks, "wandb"))
        return REFUSE(
            "--sinks wandb: W&B gets a run from its folder, while it goes on or after it: python -m ravel.wandb RUN");
    if (c->learn.lr < 0) return REFUSE("lr is %g; it must be 0 or more, or -1 for the default", c->learn.lr);
    if (c->learn.min_lr > c->learn.lr)
        return REFUSE("min-lr is %g, which is above lr, %g", c->learn.min_lr, c->learn.lr);
    if (c->learn.moments == TRAIN_MOMENTS_BF16 && fmax(c->learn.beta1, c->learn.beta2) > TRAIN_MOMENTS_BETA)
        return REFUSE(
            "moments is bf16, beta1 %g and beta2 %g; bf16 has 8 bits and would lose most changes of a moment above "
            "%g: lower the betas, or say --moments f32",
            c->learn.beta1, c->learn.beta2, TRAIN_MOMENTS_BETA);
    ravel_status status = train_interval_parse(c->run.checkpoint_every, &interval, err);
    if (status) ravel_error_prefix(err, "checkpoint-every");
    return status;
}

/* Padded rows are planned for one rank each, and of single samples. */
static ravel_status check_layout(const train_config *c, train_kind kind, ravel_error *err) {
    const char *with = kind == TRAIN_DPO                      ? "dpo, whose pairs are packed"
                       : c->mesh.cp > 1                       ? "--cp"
                       : c->plan.cp_pool                      ? "--cp-pool"
                       : c->run.single                        ? "--single"
                       : c->plan.method == RAVEL_METHOD_AS_IS ? "--method as-is"
                                                              : NULL;
    if (c->plan.layout == RAVEL_LAYOUT_PACKED || !with) return RAVEL_OK;
    return REFUSE("--layout padded and padded-2d are not possible with %s", with);
}

static ravel_status check_pool(const train_config *c, ravel_error *err) {
    const ravel_plan_options *p = &c->plan;
    if (p->budget == 0 && (p->method != RAVEL_METHOD_FIXED_COUNT || p->cp_pool))
        return REFUSE(
            "without a budget micro-batches are of --count samples: leave out --method and --cp-pool, or give --budget");
    if (p->budget == 0 && c->sft.task) return REFUSE("the samples of a task have no longest one; give --budget");
    if (p->count > 1 && p->method != RAVEL_METHOD_FIXED_COUNT)
        return REFUSE("--count is of --method count; give that too");
    if (!p->cp_pool) {
        if (!p->cp_widths && !p->cp_price && p->min_cp == 1) return RAVEL_OK;
        return REFUSE("--cp-widths, --cp-price and --min-cp are those of --cp-pool; give --cp-pool too");
    }
    if (c->mesh.cp > 1 || c->mesh.dp != p->cp_pool)
        return REFUSE(
            "--cp-pool %d makes groups of the dp ranks, each of its own width: say --cp 1 and --dp %d (or neither)",
            p->cp_pool, p->cp_pool);
    return RAVEL_OK;
}

/* Evaluations that could never take place. `what`: the option that there would have to be. */
static ravel_status check_evaluation(const train_config *c, int64_t every, const char *what, ravel_error *err) {
    if (every == 0 && !c->run.keep_best) return RAVEL_OK;
    return REFUSE("--%s needs something to evaluate; give --%s too", every ? "eval-every" : "keep-best", what);
}

/* Of sft and dpo with data. */
static ravel_status check_evaluation_rows(const train_config *c, ravel_error *err) {
    if (c->sft.eval_data && c->sft.eval_share > 0) return REFUSE("give --eval-data or --eval-share, not both");
    if (c->sft.eval_data || c->sft.eval_share > 0) return RAVEL_OK;
    return check_evaluation(c, c->sft.eval_every, "eval-data FILE or --eval-share", err);
}

/* New weights are never what was meant, unless their shape was given. */
static int is_new_by_accident(const train_config *c) {
    return !c->model.model && !c->model.shape && !c->run.resume && !first_given(c, TRAIN_SFT, "hidden", "init-seed");
}

static ravel_status check_sft(const train_config *c, ravel_error *err) {
    int given = (c->sft.task != NULL) + (c->source.data != NULL) + (c->source.mock != NULL);
    if (given != 1)
        return REFUSE("give one of --data FILE.jsonl, --mock JSON and --task NAME; %s was given",
                      given ? "more than one" : "none");
    if (c->source.data && is_new_by_accident(c))
        return REFUSE(
            "which model is to learn this data? give --model FOLDER, or --shape or --hidden N for new, random weights");
    if (c->sft.epochs && c->sft.task) return REFUSE("a task has no end: say --steps rather than --epochs");
    if (c->sft.eval_share > 0 && c->sft.task) return REFUSE("--eval-share is of the rows of --data; a task needs none");
    if (c->sft.eval_data && !c->source.data)
        return REFUSE("--eval-data goes with --data; a task has questions of its own");
    const char *about_rows = c->sft.task ? first_given(c, TRAIN_SFT, "data", NULL) : NULL; /* it would have no effect */
    if (about_rows) return REFUSE("--%s is for --data; a task has no rows", about_rows);
    return c->sft.task ? RAVEL_OK : check_evaluation_rows(c, err);
}

static ravel_status check_dpo(const train_config *c, ravel_error *err) {
    if (c->source.data && is_new_by_accident(c))
        return REFUSE("dpo improves a model: give --model FOLDER (or --shape or --hidden for new, random weights)");
    if (!c->source.data || c->source.mock || c->sft.task)
        return REFUSE("give --data FILE.jsonl with \"chosen\" and \"rejected\"");
    if (c->learn.aggregation != RAVEL_TOKEN_MEAN || c->learn.norm > 0)
        return REFUSE("the loss of dpo is a mean over pairs; --aggregation and --norm do not apply");
    return check_evaluation_rows(c, err);
}

static ravel_status check_rollout(const train_config *c, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    if (!o->rollout) {
        const char *given = first_given(c, TRAIN_GRPO, "rollout-kind", "rollout-command");
        if (!given) return RAVEL_OK;
        return REFUSE("--%s is about servers; say which: --rollout http://...", given);
    }
    if (!o->publish) return REFUSE("--rollout: servers take the weights that this run publishes; say where: --publish");
    if (o->generator_tp > 1) return REFUSE("--generator-tp is of ranks that generate; --rollout has none");
    if (c->policy.correction && (o->top_p < 1 || o->top_k > 0))
        return REFUSE(
            "--correction with --top-p or --top-k needs log-probs under what was sampled from, which servers do not "
            "give: leave one out, or --rollout");
    return RAVEL_OK;
}

static ravel_status check_replay(const train_config *c, ravel_error *err) {
    if (c->grpo.replay != TRAIN_REPLAY_FIRST || (c->grpo.updates > 1 && train_config_old_by_trainer(c)))
        return RAVEL_OK;
    return REFUSE(
        "--router-replay first repeats the routes of the pass that scores old log-probs in later updates: it needs "
        "--updates-per-batch above 1 and --old trainer");
}

static ravel_status check_env(const train_config *c, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    if (!train_config_has_env(c)) return RAVEL_OK;
    if (o->env_command && o->env) return REFUSE("give --env-command or --env, not both");
    if (o->task || o->reward_command || o->reward)
        return REFUSE("an environment gives the rewards itself; leave out --%s", o->task             ? "task"
                                                                                 : o->reward_command ? "reward-command"
                                                                                                     : "reward");
    return o->env ? train_servers_check("--env", o->env, err) : RAVEL_OK;
}

/* --teacher-topk needs whole distributions: of a folder, token by token. */
static ravel_status check_topk(const train_config *c, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    if (!o->teacher_topk) return RAVEL_OK;
    if (!o->teacher) return REFUSE("--teacher-topk is of --teacher: say which model it is");
    if (train_servers_are(o->teacher))
        return REFUSE(
            "--teacher-topk needs the teacher as a folder or a run: of servers it takes the log-prob of the drawn "
            "token alone");
    if (c->policy.ratio == RAVEL_RATIO_SEQUENCE ||
        train_policy_terms_of(&c->policy, TRAIN_GAP_NONE, 0).correction.sequence)
        return REFUSE("--teacher-topk is a loss per token: not with --ratio sequence or a seq- correction");
    if (train_config_share(c, TRAIN_GRPO) != RAVEL_SHARE_OFF)
        return REFUSE("--teacher-topk does not share prefixes: say --share-prefix off");
    return RAVEL_OK;
}

static ravel_status check_grpo(const train_config *c, ravel_error *err) {
    const train_grpo_options *o = &c->grpo;
    int32_t gpus[TRAIN_GPUS], count;
    train_mix mix;
    if (train_mix_parse(o->reward, o->reward_command != NULL, &mix, err)) return RAVEL_E_ARGUMENT;
    ravel_status status = train_gpus_parse("generator-device", o->generator_devices, gpus, &count, err);
    if (status) return status;
    if (o->generators % o->generator_tp)
        return REFUSE(
            "generators is %d, ranks per generator (generator-tp) %d; the first must be a multiple of the second: "
            "say --generators %d",
            o->generators, o->generator_tp, (o->generators + o->generator_tp - 1) / o->generator_tp * o->generator_tp);
    if (!status) status = check_env(c, err);
    if (status) return status;
    if (train_servers_are(o->teacher) && train_servers_check("--teacher", o->teacher, err)) return RAVEL_E_ARGUMENT;
    if (train_servers_are(o->teacher) && o->temperature != 1)
        return REFUSE("a teacher behind a server gives log-probs at temperature 1, and --temperature is %g",
                      o->temperature);
    status = check_topk(c, err);
    if (status) return status;
    if (train_config_distils(c) && o->dynamic_sampling)
        return REFUSE("--dynamic-sampling looks for different rewards, and --teacher alone has none");
    if (o->task && o->data) return REFUSE("give --task or --data, not both");
    if ((o->eval_share > 0 || o->eval_data) && !o->data)
        return REFUSE("--eval-%s goes with --data; a task has questions of its own", o->eval_data ? "data" : "share");
    if (o->eval_share > 0 && o->eval_data) return REFUSE("give --eval-data or --eval-share, not both");
    if ((o->data || train_config_has_env(c)) && is_new_by_accident(c))
        return REFUSE("grpo improves a model: give --model FOLDER (or --shape or --hidden N for new, random weights)");
    if (o->group_size < 2 && c->policy.advantage != RAVEL_ADVANTAGE_NONE)
        return REFUSE("group-size is %d; advantages are taken within a group, so it must be 2 or more", o->group_size);
    if (o->temperature == 0 && c->policy.advantage != RAVEL_ADVANTAGE_NONE)
        return REFUSE(
            "temperature is 0: all answers of a group would be the same, and have no advantage; give one above 0");
    if (!o->publish && (o->publish_dtype || o->publish_open || o->publish_tls || o->publish_allow || o->publish_host))
        return REFUSE("--publish-... describe a publication; say where: --publish");
    if ((o->refit_buffer_size > 0 && o->refit_buffer_size < 4096) || (o->refit_memory > 0 && o->refit_memory < 1e-6))
        return REFUSE("--refit-buffer-size %lld, --refit-memory %g; allowed is from 4k, from 0.000001, or 0",
                      (long long)o->refit_buffer_size, o->refit_memory);
    if (check_rollout(c, err) || check_replay(c, err)) return RAVEL_E_ARGUMENT;
    if (o->prompts < o->updates)
        return REFUSE("%lld prompts cannot be dealt to %d updates", (long long)o->prompts, o->updates);
    ravel_correction correction;
    if (ravel_policy_get_correction(c->policy.correction, c->policy.correction_low, c->policy.correction_high,
                                    &correction, err))
        return RAVEL_E_ARGUMENT;
    if (o->old == TRAIN_OLD_GENERATOR && correction.kind != RAVEL_CORRECTION_NONE && !correction.now)
        return REFUSE("--correction %s weighs trainer / generator: it needs --old trainer", correction.name);
    if (correction.now && c->policy.ratio == RAVEL_RATIO_SEQUENCE)
        return REFUSE("--correction cispo needs --ratio token");
    if (c->policy.dual_clip != 0 && !(c->policy.dual_clip > 1))
        return REFUSE("dual-clip is %g; it must be 0 (off) or above 1", c->policy.dual_clip);
    return o->eval_prompts > 0 ? RAVEL_OK : check_evaluation(c, o->eval_every, "eval-prompts", err);
}

/* --share-prefix on is refused where nothing can be shared; auto leaves it then. */
static ravel_status check_share(const train_config *c, train_kind kind, ravel_error *err) {
    const char *why = c->plan.oversize == RAVEL_OVERSIZE_ALONE                       ? "--oversize alone"
                      : c->run.single                                                ? "--single"
                      : c->plan.layout != RAVEL_LAYOUT_PACKED                        ? "a padded --layout"
                      : kind == TRAIN_GRPO && c->grpo.replay == TRAIN_REPLAY_ROLLOUT ? "--router-replay rollout"
                                                                                     : NULL;
    if (!why || c->learn.share_prefix != RAVEL_SHARE_ON) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "--share-prefix on is not possible with %s yet; say auto or off",
                           why);
}

ravel_status train_config_check(const train_config *c, train_kind kind, ravel_error *err) {
    RAVEL_ASSERT(kind >= 0 && kind < TRAIN_KINDS);
    ravel_status status = check_model(c, err);
    if (!status) status = check_adapter(&c->model, err);
    if (!status) status = check_run(c, err);
    if (!status) status = check_pool(c, err);
    if (!status) status = check_layout(c, kind, err);
    if (!status) status = check_share(c, kind, err);
    if (!status) status = train_cost_check(c->run.cost, err);
    if (status) return status;
    if (kind == TRAIN_DPO) return check_dpo(c, err);
    if (c->learn.norm > 0 && c->learn.aggregation != RAVEL_SEQ_MEAN_TOKEN_SUM_NORM)
        return REFUSE("--norm is the divisor of --aggregation seq-mean-token-sum-norm; give both, or neither");
    return kind == TRAIN_SFT ? check_sft(c, err) : check_grpo(c, err);
}
