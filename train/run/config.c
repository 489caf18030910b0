/* The tables of a training run. One row is the flag, the JSON key, the default, the range and the help. */
#include "train/run/config.h"

#include "train/kernels/assert.h"

#include <ravel/chat.h>
#include <ravel/weights.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
#define ROW(type, name, kind, field, preset, min, max, choices, doc) \
    { name, RAVEL_OPTION_##kind, offsetof(type, field), preset, min, max, choices, doc }
/* clang-format on */

#define RUN(...) ROW(train_run_options, __VA_ARGS__)
static const ravel_option run_table[] = {
    RUN("run", STRING, run, NULL, 0, 0, NULL, "folder of the run; without it runs/KIND-1, -2, ... whichever is free"),
    RUN("resume", BOOL, resume, "false", 0, 0, NULL, "resume from the newest checkpoint of the run"),
    RUN("ranks", I32, ranks, "0", 0, 4096, NULL,
        "trainer ranks; 0: tp * cp * dp * pp (with several processes: not used, all ranks that do not generate train)"),
    RUN("steps", I64, steps, "0", 0, 1e12, NULL, "updates to run in all; 0: 100, or what --epochs takes"),
    RUN("seed", U64, seed, "0", 0, 0, NULL, "seed of the data order, of questions and of sampling"),
    RUN("checkpoint-every", STRING, checkpoint_every, "10m", 0, 0, "INTERVAL",
        "write a checkpoint this often: 90s, 10m, 2h, or a number of updates; 0: only at the end"),
    RUN("keep", I64, keep, "2", 0, 1e6, NULL, "checkpoints to keep; 0: all"),
    RUN("keep-best", BOOL, keep_best, "false", 0, 0, NULL,
        "write and keep the checkpoint with the best evaluation too (eval loss, or greedy reward), whatever its age"),
    RUN("checkpoint-end", BOOL, checkpoint_end, "true", 0, 0, NULL, "write a checkpoint when the run ends"),
    RUN("save-dtype", ENUM, save_dtype, "f32", 0, 0, "f32|bf16",
        "dtype of the model in a checkpoint's Hugging Face folder"),
    RUN("save-shard", I64, save_shard, "0", 0, 1e15, NULL,
        "the most bytes of one safetensors file of that folder; 0: 5 GiB"),
    RUN("max-skipped", I64, max_skipped, "10", 0, 1e12, NULL,
        "updates in a row whose gradient is not finite (they are skipped) before the run fails"),
    RUN("sinks", STRING, sinks, "jsonl,tensorboard", 0, 0, NULL,
        "metrics files in the run folder: jsonl, csv, tensorboard, trace"),
    RUN("timeout", F64, timeout, "0", 0, 1e9, NULL,
        "seconds that a rank waits for another; 0: RAVEL_COMM_TIMEOUT, else 600"),
    RUN("http", STRING, http, NULL, 0, 0, NULL, "serve metrics for Prometheus at [address:]port"),
    RUN("gpu", STRING, gpu, NULL, 0, 0, NULL, "name of the accelerator, for MFU"),
    RUN("quiet", BOOL, quiet, "false", 0, 0, NULL, "no progress on the terminal"),
    {0}};

#define MODEL(...) ROW(train_model_choice, __VA_ARGS__)
static const ravel_option model_table[] = {
    MODEL("model", STRING, model, NULL, 0, 0, NULL, "a Hugging Face folder to start from: config.json and safetensors"),
    MODEL("shape", STRING, shape, NULL, 0, 0, NULL, "new weights of this shape: a config.json or a published name"),
    MODEL("hidden", I64, hidden, "128", 1, 1 << 20, NULL, "width of a new byte model, without --model and --shape"),
    MODEL("layers", I64, layers, "4", 1, 4096, NULL, "its layers"),
    MODEL("heads", I64, heads, "4", 1, 4096, NULL, "its query heads"),
    MODEL("kv-heads", I64, kv_heads, "2", 1, 4096, NULL, "its key and value heads"),
    MODEL("head-dim", I64, head_dim, "32", 2, 4096, NULL, "elements of a head"),
    MODEL("ffn", I64, ffn, "384", 1, 1 << 24, NULL, "width of its feed-forward blocks"),
    MODEL("vocab", I64, vocab, "320", 1, 1 << 24, NULL, "its vocabulary: 256 bytes and at least 2 more"),
    MODEL("init-seed", U64, init_seed, "1", 0, 0, NULL, "seed of new weights"),
    MODEL("init-std", F64, init_std, "0.02", 1e-9, 10, NULL, "standard deviation of new weights"),
    MODEL("kernels", STRING, kernels, "cpu", 0, 0, NULL, "kernel set: cpu, cuda, ref, cpu-avx2, ..."),
    MODEL(
        "device", STRING, devices, "auto", 0, 0, "GPUS",
        "GPUs of a machine's ranks, with --kernels cuda: auto, one for each in turn; 2, all on GPU 2; or a list, 0,1,2,3"),
    MODEL(
        "comm-device", ENUM, wire, "auto", 0, 0, TRAIN_WIRE_CHOICES,
        "over what trainers exchange arrays of GPUs: nccl, between GPUs; host, through page-locked host memory; auto: nccl "
        "where every trainer has a GPU of its own and NCCL can be loaded"),
    MODEL("deterministic", BOOL, deterministic, "true", 0, 0, NULL, "the same bits on every run, also on a GPU"),
    MODEL("threads", I32, threads, "0", 0, 1024, NULL,
          "threads per rank; 0: the machine's processors divided among its ranks, where the model is large enough"),
    MODEL("recompute", ENUM, recompute, "light", 0, 0, TRAIN_RECOMPUTE_CHOICES,
          "how much of the activations the backward pass recomputes"),
    MODEL(
        "graphs", ENUM, graphs, "auto", 0, 0, TRAIN_GRAPHS_CHOICES,
        "micro-batches whose shape comes again, and decode steps, as recorded graphs, with --kernels cuda and one rank per "
        "model; on: an error where that cannot be"),
    MODEL("sequence-parallel", BOOL, sequence, "true", 0, 0, NULL,
          "with --tp above 1, norms and residuals of a share of the tokens on each rank"),
    {0}};

#define LEARN(...) ROW(train_learn_options, __VA_ARGS__)
static const ravel_option learn_table[] = {
    LEARN(
        "lr", F64, lr, "-1", -1, 10, NULL,
        "learning rate after the warm-up; -1: 1e-3 for new weights, 2e-5 for sft with --model, 1e-6 for dpo and grpo with it"),
    LEARN("min-lr", F64, min_lr, "0", 0, 10, NULL, "learning rate that the schedule falls to after the last update"),
    LEARN("schedule", ENUM, schedule, "cosine", 0, 0, TRAIN_SCHEDULE_CHOICES, "how the learning rate falls"),
    LEARN("warmup", I64, warmup, "0", 0, 1e12, NULL, "updates of linear warm-up"),
    LEARN("weight-decay", F64, weight_decay, "0", 0, 10, NULL, "decoupled weight decay, of matrices"),
    LEARN("beta1", F64, beta1, "0.9", 0, 0.999999, NULL, "AdamW"),
    LEARN("beta2", F64, beta2, "0.95", 0, 0.999999, NULL, "AdamW"),
    LEARN("eps", F64, eps, "1e-8", 1e-30, 1, NULL, "AdamW"),
    LEARN("moments", ENUM, moments, "f32", 0, 0, TRAIN_MOMENTS_CHOICES,
          "how AdamW's moments are stored; bf16 takes half the memory, for beta1 and beta2 up to 0.99"),
    LEARN("clip-grad", F64, clip_grad, "1", 0, 1e9, NULL, "norm above which gradients are scaled down; 0: never"),
    LEARN("shard", ENUM, shard, "none", 0, 0, TRAIN_SHARD_CHOICES,
          "what is sharded over dp and cp ranks: nothing, the optimiser's states (ZeRO-1), or weights, gradients and "
          "states (FSDP, ZeRO-3)"),
    LEARN("aggregation", ENUM, aggregation, "token-mean", 0, 0, RAVEL_LOSS_CHOICES, "how token losses are aggregated"),
    LEARN(
        "share-prefix", ENUM, share_prefix, "auto", 0, 0, RAVEL_SHARE_CHOICES,
        "compute what samples of a micro-batch share (prompts, earlier turns) once; auto: if the plan is then faster, "
        "and the kernels are a CPU's"),
    LEARN(
        "share-limit", I64, share_limit, "8", 1, 1024, NULL,
        "with shared prefixes, the most tokens of a micro-batch's samples, each counted whole: this times the budget"),
    LEARN("norm", I64, norm, "0", 0, 1e12, NULL, "divisor of seq-mean-token-sum-norm; 0: budget, in grpo max-tokens"),
    {0}};

#define MESH(...) ROW(ravel_mesh_options, __VA_ARGS__)
static const ravel_option mesh_table[] = {
    MESH("tp", I32, tp, "1", 1, 4096, NULL, "tensor-parallel ranks: they share every layer"),
    MESH("cp", I32, cp, "1", 1, 4096, NULL, "context-parallel ranks: they share every sample; the budget is per rank"),
    MESH("dp", I32, dp, "0", 0, 4096, NULL, "data-parallel ranks; 0: ranks / (tp * cp * pp), or 1 without --ranks"),
    MESH("pp", I32, pp, "1", 1, 4096, NULL, "pipeline stages: each has a part of the layers"),
    MESH("vpp", I32, vpp, "1", 1, TRAIN_CHUNKS, NULL, "chunks of layers per stage (interleaved pipeline)"),
    {0}};

#define SFT(...) ROW(train_sft_options, __VA_ARGS__)
static const ravel_option sft_table[] = {
    SFT("batch", I64, batch, "64", 1, 1e9, NULL, "samples in an update; in dpo pairs"),
    SFT("eval-every", I64, eval_every, "0", 0, 1e12, NULL, "updates between evaluations; 0: only at the end"),
    SFT("eval-share", F64, eval_share, "0", 0, 0.9, NULL,
        "share of the rows, from the end, that is kept for evaluation"),
    SFT("epochs", I64, epochs, "0", 0, 1e9, NULL, "passes over the data, --steps at most; 0: as many as --steps take"),
    {0}};

static const ravel_option task_table[] = {
    SFT("task", STRING, task, NULL, 0, 0, NULL, "learn the answers of a verifiable task instead of data, see below"),
    SFT("level", I32, level, "2", 1, 12, NULL, "difficulty of its questions"),
    {0}};

static const ravel_option dpo_table[] = {ROW(train_dpo_options, "beta", F64, beta, "0.1", 1e-6, 1e3, NULL,
                                             "DPO's beta: how strongly the model is kept near its reference"),
                                         {0}};

#define GRPO(...) ROW(train_grpo_options, __VA_ARGS__)
static const ravel_option grpo_table[] = {
    GRPO("preset", ENUM, preset, "none", 0, 0, TRAIN_PRESET_CHOICES,
         "clip, aggregation, std, KL and length rules as a paper has them; a file and flags override them"),
    GRPO("task", STRING, task, NULL, 0, 0, NULL,
         "prompts and rewards of a verifiable task, see below; arithmetic where there is no --data"),
    GRPO("data", STRING, data, NULL, 0, 0, NULL,
         "prompts from a JSON-lines file: messages, prompt or input_ids, and answer"),
    GRPO(
        "chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ..., or a file of a template; without it the model's template"),
    GRPO("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
         "variables of the chat template, such as {\"enable_thinking\": false}"),
    GRPO("bad-rows", ENUM, bad_rows, "error", 0, 0, RAVEL_BAD_ROWS_CHOICES, "what to do with rows that cannot be used"),
    GRPO("level", I32, level, "2", 1, 12, NULL, "difficulty of its questions"),
    GRPO("reward-command", STRING, reward_command, NULL, 0, 0, NULL,
         "a shell command that scores answers, JSON lines; or the http:// URL of a server"),
    GRPO("reward-seconds", F64, reward_seconds, "60", 1e-3, 1e6, NULL, "its time limit per batch, seconds"),
    GRPO("reward-retries", I32, reward_retries, "2", 0, 1000, NULL,
         "attempts after a failure of the command; then the answers that it failed on are left out and counted"),
    GRPO("max-dropped", F64, max_dropped, "0.25", 0, 1, NULL,
         "share of a batch's answers that may be left out for lack of a reward; more ends the run"),
    GRPO("show-every", I32, show_every, "20", 0, 1 << 30, NULL,
         "print a prompt, its answer and its reward once per this number of batches; 0: never"),
    GRPO("partial", F64, scoring.partial, "0.2", 0, 1, NULL, "reward of an answer that is partly right, at most"),
    GRPO("generators", I32, generators, "1", 1, 4096, NULL, "ranks that generate"),
    GRPO("generator-tp", I32, generator_tp, "1", 1, 4096, NULL,
         "ranks that share the layers of each generator (tensor parallel); a divisor of --generators"),
    GRPO("prompts", I64, prompts, "16", 1, 1e9, NULL, "prompts in a batch"),
    GRPO("group-size", I32, group_size, "8", 1, 65536, NULL, "answers to each prompt"),
    GRPO("updates-per-batch", I32, updates, "1", 1, 65536, NULL, "optimiser steps on each batch"),
    GRPO("max-tokens", I64, scoring.max_tokens, "0", 0, 1e9, NULL,
         "tokens of an answer, at most; 0: 16, or 256 with --model and --data"),
    GRPO("stop-ids", STRING, stop, NULL, 0, 0, NULL,
         "tokens that end an answer, as 151645,151643; without it the model's eos_token_id, or 257"),
    GRPO("temperature", F64, temperature, "1", 0, 100, NULL, "sampling temperature; 0: the likeliest token"),
    GRPO("top-p", F64, top_p, "1", 1e-9, 1, NULL, "sample among the likeliest tokens of this total probability"),
    GRPO("top-k", I32, top_k, "0", 0, 1 << 24, NULL, "sample among the k likeliest tokens; 0: all"),
    GRPO("async", I32, async, "0", 0, 1, NULL, "generate with weights at most this many versions old"),
    GRPO("dynamic-sampling", BOOL, dynamic_sampling, "false", 0, 0, NULL,
         "replace groups whose answers are all right or all wrong"),
    GRPO("dynamic-rounds", I32, dynamic_rounds, "4", 1, 1000, NULL, "limit on further rounds of prompts for that"),
    GRPO("max-flat", I32, max_flat, "50", 0, 1 << 30, NULL,
         "batches in a row whose rewards are all equal before the run fails; 0: any number"),
    GRPO("overlong-filter", BOOL, scoring.overlong_filter, "false", 0, 0, NULL,
         "answers cut off at max-tokens carry no loss"),
    GRPO("old", ENUM, old, "auto", 0, 0, TRAIN_OLD_CHOICES,
         "whose log-probs the ratio is against; auto: the trainer's, or the generator's with --async 1 and no --tis"),
    GRPO("entropy", F64, entropy, "0", 0, 100, NULL, "weight of an entropy bonus"),
    GRPO("slots", I64, slots, "64", 1, 65536, NULL, "sequences that a generator runs at once"),
    GRPO("eval-prompts", I64, eval_prompts, "64", 0, 1e9, NULL, "greedy answers before and after training; 0: none"),
    GRPO("eval-share", F64, eval_share, "0", 0, 0.9, NULL, "share of the rows of --data, from the end, kept for them"),
    GRPO("eval-every", I64, eval_every, "0", 0, 1e12, NULL, "updates between such evaluations"),
    GRPO(
        "generator-device", STRING, generator_devices, NULL, 0, 0, "GPUS",
        "GPUs of a machine's generator ranks, as --device; by default they take their turn in --device after the trainers"),
    GRPO(
        "refit", ENUM, refit, "auto", 0, 0, TRAIN_REFIT_CHOICES,
        "how weights go to the run's generators: collective, over the ranks' links; pull, by shared memory of one machine, "
        "on a GPU from device to device; auto: pull on a GPU"),
    GRPO("refit-buffers", I32, refit_buffers, "0", 0, 16, NULL,
         "buffers of a rank in a collective refit; 0: RAVEL_REFIT_NUM_BUFFERS, else 2"),
    GRPO("refit-buffer-size", I64, refit_buffer_size, "0", 0, 0x1p40, NULL,
         "bytes of each, from 4k; 0: RAVEL_REFIT_BUFFER_BYTES, else from --refit-memory"),
    GRPO(
        "refit-memory", F64, refit_memory, "0", 0, 0.5, NULL,
        "share of the machine's memory for all of a rank's buffers together; 0: RAVEL_REFIT_BUFFER_MEMORY_RATIO, else at "
        "most 0.02 and 4 MiB each"),
    GRPO("publish", STRING, publish, NULL, 0, 0, "ADDRESS",
         "publish every version for generators that pull (ravel generate --pull): host:port, :port, unix:/path"),
    GRPO("publish-keep", I32, publish_keep, "2", 1, 64, NULL, "versions that are kept for them, on every trainer"),
    GRPO("publish-open", BOOL, publish_open, "false", 0, 0, NULL,
         "listen beyond this machine without a shared secret (RAVEL_TOKEN)"),
    GRPO("publish-tls", BOOL, publish_tls, "false", 0, 0, NULL,
         "encrypt the connections of generators, which need --pull-tls then; also RAVEL_TLS=1"),
    GRPO("publish-allow", STRING, publish_allow, NULL, 0, 0, "NETWORKS",
         "networks that may connect, like 10.0.0.0/8,fd00::/8; without it any"),
    GRPO("publish-host", STRING, publish_host, NULL, 0, 0, "NAME",
         "name under which generators reach this trainer; without it the address's, or this machine's"),
    GRPO("publish-linger", F64, publish_linger, "10", 0, 300, NULL,
         "seconds to wait at the end until connected generators hold the last version"),
    {0}};

#define PLAN(...) ROW(ravel_plan_options, __VA_ARGS__)
static const ravel_option plan_table[] = {
    PLAN(
        "budget", I64, budget, "4096", 0, 2147483647, NULL,
        "tokens in a micro-batch, a hard cap; 0 (null in a file): micro-batches of --count samples, and room for the longest"),
    PLAN("max-samples", I64, max_samples, "0", 0, 2147483647, NULL, "samples in a micro-batch; 0: no cap"),
    PLAN("align", I32, align, "1", 1, 1 << 20, NULL, "slots are multiples of this"),
    PLAN("min-micro-steps", I64, min_micro_steps, "1", 0, 1e9, NULL,
         "micro-steps of an update, at least: bins are split, and when there are no more samples fillers are added"),
    PLAN("oversize", ENUM, oversize, "error", 0, 0, RAVEL_OVERSIZE_CHOICES, "what to do with samples over the budget"),
    PLAN("method", ENUM, method, "ravel", 0, 0, RAVEL_METHOD_CHOICES, "how micro-batches are packed"),
    PLAN("count", I64, count, "1", 1, 2147483647, NULL, "samples in a micro-batch, with --method count"),
    PLAN("cp-pool", I32, cp_pool, "0", 0, 0x1p12, NULL,
         "hybrid context parallelism: the dp ranks form groups of different widths in each micro-step; 0: off"),
    PLAN("cp-widths", STRING, cp_widths, NULL, 0, 0, "LIST",
         "widths that groups may have, such as 1,2,4,8; without it powers of two that divide the pool, and the pool"),
    PLAN("min-cp", I32, min_cp, "1", 1, 0x1p12, NULL, "no group of the pool is narrower"),
    PLAN("cp-price", STRING, cp_price, NULL, 0, 0, "LIST",
         "extra time per mille by width, such as 2:30,4:60; without it 30 per doubling, and 150 beyond a node"),
    PLAN("cp-node", I32, cp_node, "8", 1, 0x1p12, NULL, "ranks of a node, for the default price"),
    PLAN("cp-empty", ENUM, cp_empty, "filler", 0, 0, RAVEL_CP_EMPTY_CHOICES,
         "ranks of the pool without work: run a filler, or widen groups until none is left"),
    PLAN("effort", ENUM, effort, "default", 0, 0, RAVEL_EFFORT_CHOICES, "how much to search for a better plan"),
    {0}};

static const ravel_option cost_table[] = {
    RUN("cost", STRING, cost, NULL, 0, 0, "COST",
        "what samples cost, for the balance of ranks: model, the FLOPs of training this model (without it); fit, what its "
        "micro-batches take, measured in the first updates; or as ravel plan --cost: LIN:QUAD[:OVERHEAD], tokens, a shape, a "
        "config.json, a file of --fit"),
    RUN("single", BOOL, single, "false", 0, 0, NULL, "one sample per micro-batch, for comparison"),
    {0}};

#define SOURCE(...) ROW(ravel_source_options, __VA_ARGS__)
static const ravel_option source_table[] = {
    SOURCE("data", STRING, data, NULL, 0, 0, NULL,
           "JSON lines: messages, prompt and completion, text, input_ids; for dpo chosen and rejected"),
    SOURCE(
        "chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ..., or a file of a template; without it the model's template"),
    SOURCE("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
           "variables of the chat template, such as {\"enable_thinking\": false}"),
    SOURCE("train-on", ENUM, train_on, "assistant", 0, 0, RAVEL_TRAIN_ON_CHOICES,
           "what is learnt of a conversation: every answer, the last one, all tokens"),
    SOURCE("bos", I32, bos, "256", -1, 2147483647, NULL,
           "token put before bytes, where the model has no tokenizer; -1: none"),
    SOURCE("eos", I32, eos, "257", -1, 2147483647, NULL, "token put after bytes, and learnt; -1: none"),
    SOURCE("truncate", I64, truncate, "0", 0, 2147483647, NULL, "cut samples to this many tokens; 0: never"),
    SOURCE("bad-rows", ENUM, bad_rows, "error", 0, 0, RAVEL_BAD_ROWS_CHOICES,
           "what to do with rows that cannot be used"),
    {0}};

static const ravel_option mock_table[] = {
    SOURCE("mock", STRING, mock, NULL, 0, 0, NULL, "mock data instead: JSON, or @file"), {0}};

const char *train_kind_name(train_kind kind) {
    static const char *const names[] = {"sft", "dpo", "grpo"};
    _Static_assert(sizeof names / sizeof *names == TRAIN_KINDS, "a name for each kind");
    TRAIN_ASSERT(kind >= 0 && kind < TRAIN_KINDS);
    return names[kind];
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

int train_config_parts(train_config *c, train_kind kind, train_part *parts) {
    int n = 0;
    parts[n++] = (train_part){"run", run_table, &c->run};
    parts[n++] = (train_part){"model", model_table, &c->model};
    parts[n++] = (train_part){"learning", learn_table, &c->learn};
    parts[n++] = (train_part){"ranks", mesh_table, &c->mesh};
    if (kind != TRAIN_GRPO) {
        parts[n++] = (train_part){"data", sft_table, &c->sft};
        parts[n++] = (train_part){"rows", source_table, &c->source};
    }
    if (kind == TRAIN_SFT) {
        parts[n++] = (train_part){"mock data", mock_table, &c->source};
        parts[n++] = (train_part){"tasks", task_table, &c->sft};
    }
    if (kind == TRAIN_DPO) parts[n++] = (train_part){"preferences", dpo_table, &c->dpo};
    if (kind == TRAIN_GRPO) {
        parts[n++] = (train_part){"prompts, answers and rewards", grpo_table, &c->grpo};
        parts[n++] = (train_part){"policy loss", train_policy_option_table(), &c->policy};
    }
    parts[n++] = (train_part){"packing", plan_table, &c->plan};
    parts[n++] = (train_part){"balance", cost_table, &c->run};
    TRAIN_ASSERT(n <= TRAIN_PARTS);
    return n;
}

const train_part *train_config_part(const train_part *parts, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (ravel_option_find(parts[i].table, name)) return &parts[i];
    return NULL;
}

int32_t train_config_share(const train_config *c, train_kind kind, const ravel_shape *shape) {
    if (kind == TRAIN_DPO && c->mesh.pp > 1)
        return RAVEL_SHARE_OFF; /* stages learn a micro-batch's rows from the feed */
    if (c->learn.share_prefix != RAVEL_SHARE_AUTO) return c->learn.share_prefix;
    int apart = c->mesh.cp > 1 || c->plan.cp_pool || c->run.single || shape->window > 0;
    return apart || strcmp(c->model.kernels, "cuda") == 0 ? RAVEL_SHARE_OFF : RAVEL_SHARE_AUTO;
}

train_learner_options train_config_learner(const train_config *c, train_kind kind, const ravel_shape *shape) {
    int64_t flat = c->plan.budget * (kind == TRAIN_DPO ? 1 : c->learn.share_limit); /* a pair is within the budget */
    if (train_config_share(c, kind, shape) == RAVEL_SHARE_OFF) flat = 0;
    return (train_learner_options){.flat_tokens = flat,
                                   .model = &c->model,
                                   .learn = &c->learn,
                                   .budget = c->plan.budget,
                                   .plan = c->plan.cp_pool ? &c->plan : NULL,
                                   .save_dtype = c->run.save_dtype == 1 ? RAVEL_BF16 : RAVEL_F32,
                                   .save_shard = c->run.save_shard};
}

ravel_status train_config_set_budget(train_config *c, int64_t longest, ravel_error *err) {
    int32_t align = ravel_plan_align(&c->plan), ranks = c->plan.cp > 1 ? c->plan.cp : 1;
    if (c->plan.budget > 0) return RAVEL_OK;
    TRAIN_ASSERT(longest > 0 && align > 0 && c->plan.count > 0);
    int64_t slot = (longest + align - 1) / align * align;
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
    return c->learn.shard == TRAIN_SHARD_PARAMS ? RAVEL_SYNC_MICRO_STEP : RAVEL_SYNC_UPDATE;
}

void train_config_default(train_config *config) {
    memset(config, 0, sizeof *config);
    ravel_mesh_options_default(&config->mesh);
    ravel_plan_options_default(&config->plan);
    ravel_source_options_default(&config->source);
    for (int kind = 0; kind < TRAIN_KINDS; kind++) {
        train_part parts[TRAIN_PARTS];
        int count = train_config_parts(config, (train_kind)kind, parts);
        for (int i = 0; i < count; i++) ravel_options_default(parts[i].table, parts[i].options);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static ravel_status unknown_key(const train_part *parts, int count, const char *key, ravel_error *err) {
    const char *names[512] = {0};
    size_t known = 0;
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name && known < 512; row++) names[known++] = row->name;
    const char *near = ravel_suggest(key, names, known);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no option \"%.60s\"%s%s%s", key,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static ravel_status set_member(const train_part *parts, int count, const ravel_json_node *node, ravel_error *err) {
    char text[64];
    const char *value = text;
    switch ((ravel_json_kind)node->kind) {
    case RAVEL_JSON_NULL: /* as in a config.json of a run: not set; "budget": null is no budget */
        if (strcmp(node->key, "budget") != 0) return RAVEL_OK;
        value = "0";
        break;
    case RAVEL_JSON_TRUE: value = "true"; break;
    case RAVEL_JSON_FALSE: value = "false"; break;
    case RAVEL_JSON_STRING: value = node->as.string; break;
    case RAVEL_JSON_INTEGER: (void)snprintf(text, sizeof text, "%lld", (long long)node->as.integer); break;
    case RAVEL_JSON_REAL: (void)snprintf(text, sizeof text, "%.17g", node->as.real); break;
    default: return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a number, a word or true or false", node->key);
    }
    const train_part *part = train_config_part(parts, count, node->key);
    if (!part) return unknown_key(parts, count, node->key, err);
    if (ravel_option_find(part->table, node->key)->type == RAVEL_OPTION_STRING && node->kind != RAVEL_JSON_STRING)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a string, in quotes", node->key);
    return ravel_option_set(part->table, part->options, node->key, value, err);
}

/* Options that runs have written into their config.json and that are gone: such a run is still resumed. */
static int is_retired(train_kind kind, const ravel_json *doc, const char *key) {
    int of_a_run = ravel_json_get(doc, ravel_json_root(doc), "kind") != NULL;
    return of_a_run && kind == TRAIN_DPO && strcmp(key, "level") == 0;
}

ravel_status train_config_json(train_config *config, train_kind kind, const ravel_json *doc, ravel_error *err) {
    train_part parts[TRAIN_PARTS];
    int count = train_config_parts(config, kind, parts);
    const ravel_json_node *root = ravel_json_root(doc);
    if (!root || root->kind != RAVEL_JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a configuration is a JSON object like {\"steps\": 100}");
    for (const ravel_json_node *n = ravel_json_first(doc, root); n; n = ravel_json_next(doc, n)) {
        if (strcmp(n->key, "kind") == 0) {
            if (ravel_json_is(n, train_kind_name(kind))) continue;
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "this configuration is for another kind of training, not %s",
                                   train_kind_name(kind));
        }
        if (is_retired(kind, doc, n->key)) continue;
        ravel_status status = set_member(parts, count, n, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* Appends like snprintf into what is left, and counts what is needed. */
typedef struct out {
    char *text;
    size_t bytes, need;
} out;

static void put(out *o, const char *format, ...) RAVEL_PRINTF(2, 3);
static void put(out *o, const char *format, ...) {
    size_t left = o->need < o->bytes ? o->bytes - o->need : 0;
    va_list args;
    va_start(args, format);
    o->need += (size_t)vsnprintf(left ? o->text + o->need : NULL, left, format, args);
    va_end(args);
}

static void put_row(out *o, const ravel_option *row, const void *options) {
    char value[128];
    const char *text = value;
    TRAIN_ASSERT(row->name && options);
    put(o, ",\n  \"%s\": ", row->name);
    if (row->type == RAVEL_OPTION_STRING) /* of any length */
        memcpy(&text, (const char *)options + row->offset, sizeof text);
    else
        (void)ravel_option_format(row, options, value, sizeof value);
    if (text && (row->type == RAVEL_OPTION_STRING || row->type == RAVEL_OPTION_ENUM)) {
        size_t left = o->need < o->bytes ? o->bytes - o->need : 0;
        o->need += ravel_json_quote(text, strlen(text), left ? o->text + o->need : NULL, left);
    } else {
        put(o, "%s", text ? text : "null");
    }
}

size_t train_config_text(const train_config *config, train_kind kind, char *text, size_t bytes) {
    train_part parts[TRAIN_PARTS];
    train_config copy = *config; /* the parts point into something that may be written */
    int count = train_config_parts(&copy, kind, parts);
    out o = {text, bytes, 0};
    put(&o, "{\n  \"kind\": \"%s\"", train_kind_name(kind));
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name; row++) put_row(&o, row, parts[i].options);
    put(&o, "\n}\n");
    if (bytes) text[o.need < bytes ? o.need : bytes - 1] = '\0';
    return o.need;
}
