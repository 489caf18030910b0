/* What follows from options together. */
#include "train/run/config/config.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <ravel/tree_batch.h>

#include <stdio.h>
#include <string.h>

const char *train_kind_name(train_kind kind) {
    static const char *const names[] = {"sft", "dpo", "grpo"};
    _Static_assert(sizeof names / sizeof *names == TRAIN_KINDS, "a name for each kind");
    RAVEL_ASSERT(kind >= 0 && kind < TRAIN_KINDS);
    return names[kind];
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

int train_config_distils(const train_config *c) {
    return c->grpo.teacher && !c->grpo.reward && !c->grpo.reward_command && !train_config_has_env(c);
}

train_model_choice train_config_teacher(const train_config *c) {
    train_model_choice teacher = c->model;
    RAVEL_ASSERT(c->grpo.teacher);
    teacher.model = c->grpo.teacher;
    teacher.shape = teacher.adapter = NULL;
    teacher.lora_rank = 0;
    teacher.lora = (train_lora){0};
    return teacher;
}

int train_config_episodes(const train_config *c) {
    return train_config_has_env(c) || c->grpo.async > 1;
}

int train_config_has_env(const train_config *c) {
    return c->grpo.env_command != NULL || c->grpo.env != NULL;
}

int64_t train_config_rollout_tokens(const train_config *c) {
    return train_config_has_env(c) ? c->grpo.env_tokens : c->grpo.scoring.max_tokens;
}

/* Turns of an environment begin after the pages of the turns before, which are kept as long as there are slots for
 * all. */
void train_config_generator(const train_config *c, int64_t longest_prompt, train_generator_options *options) {
    train_generator_options_default(options);
    options->slots = c->grpo.slots;
    options->graphs = c->model.graphs;
    options->lora = c->model.lora;
    options->routes = c->grpo.replay == TRAIN_REPLAY_ROLLOUT;
    options->slot_tokens = train__max(longest_prompt, 1) + train_config_rollout_tokens(c);
    if (c->grpo.async > 1) options->keep = train__max(longest_prompt, 1); /* members of a group share their prompt */
    if (train_config_has_env(c)) options->keep = options->slots * options->slot_tokens;
}

const train_section *train_config_section(const train_section *parts, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (ravel_option_find(parts[i].table, name)) return &parts[i];
    return NULL;
}

int32_t train_config_share(const train_config *c, train_kind kind) {
    if (c->learn.share_prefix != RAVEL_SHARE_AUTO) return c->learn.share_prefix;
    if (kind == TRAIN_GRPO && c->grpo.replay == TRAIN_REPLAY_ROLLOUT) return RAVEL_SHARE_OFF; /* routes may differ */
    if (kind == TRAIN_GRPO && c->grpo.teacher_topk) return RAVEL_SHARE_OFF; /* a loss per row, not per sample of it */
    if (kind == TRAIN_SFT && c->source.mock) return RAVEL_SHARE_OFF; /* random tokens: room for trees would be wasted */
    int apart = c->run.single || c->plan.oversize == RAVEL_OVERSIZE_ALONE || c->plan.layout != RAVEL_LAYOUT_PACKED;
    return apart || strcmp(c->model.kernels, "cuda") == 0 ? RAVEL_SHARE_OFF : RAVEL_SHARE_AUTO;
}

int train_config_old_by_trainer(const train_config *c) {
    if (c->grpo.old == TRAIN_OLD_AUTO) {
        if (c->policy.correction == RAVEL_CORRECTION_CISPO) return 0; /* its weight is of the log-prob now */
        return !c->grpo.async || c->policy.correction != RAVEL_CORRECTION_NONE;
    }
    return c->grpo.old == TRAIN_OLD_TRAINER;
}

train_learner_options train_config_learner(const train_config *c, train_kind kind) {
    int64_t cp = c->plan.cp_pool ? c->plan.cp_pool : c->mesh.cp, ranks = cp > 1 ? cp : 1; /* that share a bin */
    int64_t flat = c->plan.budget * ranks * c->learn.share_limit;
    int64_t budget = c->alone > c->plan.budget ? c->alone : c->plan.budget; /* trees are dealt in chunks */
    if (train_config_share(c, kind) == RAVEL_SHARE_OFF) flat = 0;
    return (train_learner_options){.flat_tokens = flat,
                                   .model = &c->model,
                                   .learn = &c->learn,
                                   .budget = flat && ranks > 1 ? train__round_up(budget, RAVEL_TREE_CHUNKS) : budget,
                                   .plan = c->plan.cp_pool ? &c->plan : NULL,
                                   .save_dtype = c->run.save_dtype == 1 ? RAVEL_BF16 : RAVEL_F32,
                                   .replay = kind == TRAIN_GRPO && c->grpo.replay != TRAIN_REPLAY_OFF,
                                   .top = kind == TRAIN_GRPO ? c->grpo.teacher_topk : 0,
                                   .save_shard = c->run.save_shard};
}

ravel_status train_config_set_budget(train_config *c, int64_t longest, ravel_error *err) {
    int32_t align = ravel_plan_align(&c->plan), ranks = c->plan.cp > 1 ? c->plan.cp : 1;
    RAVEL_ASSERT(longest > 0 && align > 0 && c->plan.count > 0);
    int64_t slot = (longest + align - 1) / align * align;
    if (c->plan.budget > 0) {
        if (c->plan.oversize == RAVEL_OVERSIZE_ALONE) c->alone = (slot + ranks - 1) / ranks;
        return RAVEL_OK;
    }
    if (slot > INT32_MAX / c->plan.count)
        return ravel_error_set(
            err, RAVEL_E_OVERSIZE,
            "%lld samples of up to %lld tokens do not fit a micro-batch; lower --count, or give --budget",
            (long long)c->plan.count, (long long)longest);
    c->plan.budget = (slot * c->plan.count + ranks - 1) / ranks;
    return RAVEL_OK;
}

ravel_plan_options train_config_plan(const train_config *c) {
    ravel_plan_options plan = c->plan;
    plan.sync = train_config_sync(c);
    if (c->run.single) plan.method = RAVEL_METHOD_AS_IS;
    return plan;
}

ravel_sync train_config_sync(const train_config *c) {
    if (c->plan.cp_pool) return RAVEL_SYNC_MICRO_STEP; /* groups meet in every micro-step */
    if (c->mesh.pp > 1) return RAVEL_SYNC_PIPELINE;
    return c->learn.shard == TRAIN_SHARD_PARAMS || c->learn.ep > 1 ? RAVEL_SYNC_MICRO_STEP : RAVEL_SYNC_UPDATE;
}
