/* The tables of a training run. One row is the flag, the JSON key, the default, the range and the help. */
#include "train/run/config/config.h"

#include "train/run/config/words.h"
#include "train/run/data/data.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

#include "base/options.h"
#include "base/json.h"

#include "base/system/file.h"
#include "base/yaml.h"
#include "train/model/hf/files.h"

#include <ravel/chat.h>
#include <ravel/tree_batch.h>
#include <ravel/weights.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
    RUN("steps", I64, steps, "0", 0, 1e12, NULL, "total optimizer steps; 0: 100, or from --epochs"),
    RUN("seed", U64, seed, "0", 0, 0, NULL, "seed of the data order, of questions and of sampling"),
    RUN("checkpoint-every", STRING, checkpoint_every, "10m", 0, 0, "INTERVAL",
        "write a checkpoint this often: 90s, 10m, 2h, or a number of updates; 0: only at the end"),
    RUN("keep", I64, keep, "2", 0, 1e6, NULL, "checkpoints to keep; 0: all"),
    RUN("keep-best", BOOL, keep_best, "false", 0, 0, NULL,
        "write and keep the checkpoint with the best evaluation too (eval loss, or greedy reward), whatever its age"),
    RUN("checkpoint-end", BOOL, checkpoint_end, "true", 0, 0, NULL, "write a checkpoint when the run ends"),
    RUN("save-dtype", ENUM, save_dtype, "f32", 0, 0, "f32|bf16",
        "dtype of the model in a checkpoint's Hugging Face folder"),
    RUN("save-shard", I64, save_shard, "0", 0, 1e15, NULL, "size limit of a safetensors file of that folder; 0: 5 GiB"),
    RUN("max-skipped", I64, max_skipped, "10", 0, 1e12, NULL,
        "consecutive updates skipped for a non-finite gradient before the run fails"),
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
    MODEL(
        "model", STRING, model, NULL, 0, 0, NULL,
        "to start from: a Hugging Face folder, a run or a checkpoint of ravel train, or an adapter to continue training"),
    MODEL("shape", STRING, shape, NULL, 0, 0, NULL, "new weights of this shape: a config.json or a published name"),
    MODEL("hidden", I64, hidden, "128", 1, 1 << 20, NULL, "width of a new byte model, without --model and --shape"),
    MODEL("layers", I64, layers, "4", 1, 4096, NULL, "its layers"),
    MODEL("heads", I64, heads, "4", 1, 4096, NULL, "its query heads"),
    MODEL("kv-heads", I64, kv_heads, "2", 1, 4096, NULL, "its key and value heads"),
    MODEL("head-dim", I64, head_dim, "32", 2, 4096, NULL, "elements of a head"),
    MODEL("ffn", I64, ffn, "384", 1, 1 << 24, NULL, "width of its feed-forward blocks"),
    MODEL("experts", I64, experts, "0", 0, 4096, NULL, "experts of each of its layers; 0: none"),
    MODEL("experts-active", I64, experts_active, "2", 1, 4096, NULL, "of them, experts that a token goes to"),
    MODEL("expert-ffn", I64, expert_ffn, "0", 0, 1 << 24, NULL, "width of an expert; 0: ffn divided by experts-active"),
    MODEL("vocab", I64, vocab, "320", 1, 1 << 24, NULL, "its vocabulary: 256 bytes and at least 2 more"),
    MODEL("init-seed", U64, init_seed, "1", 0, 0, NULL, "seed of new weights"),
    MODEL("init-std", F64, init_std, "0.02", 1e-9, 10, NULL, "standard deviation of new weights"),
    MODEL("kernels", STRING, kernels, "auto", 0, 0, "NAME", TRAIN_KERNELS_HELP),
    MODEL(
        "device", STRING, devices, "auto", 0, 0, "GPUS",
        "GPUs of a machine's ranks, with --kernels cuda: auto, one for each in turn; 2, all on GPU 2; or a list, 0,1,2,3"),
    MODEL(
        "comm-device", ENUM, wire, "auto", 0, 0, TRAIN_WIRE_CHOICES,
        "transport for GPU tensors of trainers: nccl; host, through page-locked host memory; auto: nccl if every trainer has "
        "a GPU of its own and NCCL can be loaded"),
    MODEL("deterministic", BOOL, deterministic, "true", 0, 0, NULL, "the same bits on every run, also on a GPU"),
    MODEL("threads", I32, threads, "0", 0, 1024, NULL,
          "threads per rank; 0: the machine's processors divided among its ranks, if the model is large enough"),
    MODEL("recompute", ENUM, recompute, "light", 0, 0, TRAIN_RECOMPUTE_CHOICES,
          "how much of the activations the backward pass recomputes"),
    MODEL(
        "tree-attention", ENUM, tree_attention, "auto", 0, 0, TRAIN_TREE_CHOICES,
        "with shared prefixes: a call of attention per level of the tree, or over copies of each sample's keys; auto: "
        "whichever moves fewer bytes"),
    MODEL("graphs", ENUM, graphs, "auto", 0, 0, TRAIN_GRAPHS_CHOICES,
          "CUDA graphs for repeated shapes and decode steps, with --kernels cuda and one rank per model; on: fail if "
          "unsupported"),
    MODEL("sequence-parallel", BOOL, sequence, "true", 0, 0, NULL,
          "with --tp above 1, norms and residuals of a share of the tokens on each rank"),
    {0}};

static const ravel_option adapter_table[] = {
    MODEL("lora-rank", I32, lora_rank, "0", 0, TRAIN_LORA_RANK, NULL,
          "train a new adapter of this rank instead of the model, whose weights are frozen then; 0: train the model"),
    MODEL("lora-alpha", F64, lora_alpha, "0", 0, 1e9, NULL,
          "what the adapter adds is scaled by alpha / rank; 0: alpha is twice the rank"),
    MODEL("lora-targets", STRING, lora_targets, NULL, 0, 0, "LIST",
          "matrices that get an adapter: q,k,v,o,gate,up,down, or PEFT's names; without it all-linear, all of these"),
    MODEL("lora-rslora", BOOL, lora_rslora, "false", 0, 0, NULL, "scale by alpha / sqrt(rank) instead (rsLoRA)"),
    MODEL("lora-dropout", F64, lora_dropout, "0", 0, 1, NULL, "dropout before the adapter: only 0 is supported"),
    MODEL("adapter", STRING, adapter, NULL, 0, 0, "FOLDER",
          "continue training this PEFT adapter of the model, or that of a run, with its own rank, alpha and targets"),
    {0}};

#define LEARN(...) ROW(train_learn_options, __VA_ARGS__)
static const ravel_option learn_table[] = {
    LEARN(
        "lr", F64, lr, "-1", -1, 10, NULL,
        "learning rate after the warm-up; -1: 1e-3 for new weights, 2e-5 for sft with --model, 1e-6 for dpo and grpo with "
        "it, ten times as much for an adapter"),
    LEARN("min-lr", F64, min_lr, "0", 0, 10, NULL, "final learning rate of the schedule"),
    LEARN("schedule", ENUM, schedule, "cosine", 0, 0, TRAIN_SCHEDULE_CHOICES, "how the learning rate falls"),
    LEARN("warmup", I64, warmup, "0", 0, 1e12, NULL, "updates of linear warm-up"),
    LEARN("weight-decay", F64, weight_decay, "0", 0, 10, NULL, "decoupled weight decay, of matrices"),
    LEARN("beta1", F64, beta1, "0.9", 0, 0.999999, NULL, "AdamW"),
    LEARN("beta2", F64, beta2, "0.95", 0, 0.999999, NULL, "AdamW"),
    LEARN("eps", F64, eps, "1e-8", 1e-30, 1, NULL, "AdamW"),
    LEARN("moments", ENUM, moments, "f32", 0, 0, TRAIN_MOMENTS_CHOICES,
          "dtype of AdamW's moments; bf16 halves their memory and needs beta1 and beta2 of at most 0.99"),
    LEARN("clip-grad", F64, clip_grad, "1", 0, 1e9, NULL, "clip gradients to this global norm; 0: never"),
    LEARN(
        "shard", ENUM, shard, "none", 0, 0, TRAIN_SHARD_CHOICES,
        "sharded over dp and cp ranks: nothing, optimizer states (ZeRO-1), or weights, gradients and states (FSDP, ZeRO-3)"),
    LEARN("aggregation", ENUM, aggregation, "token-mean", 0, 0, RAVEL_LOSS_CHOICES, "how token losses are aggregated"),
    LEARN(
        "share-prefix", ENUM, share_prefix, "auto", 0, 0, RAVEL_SHARE_CHOICES,
        "compute what samples of a micro-batch share (prompts, earlier turns) once; auto: if the plan is then faster, "
        "and the kernels are a CPU's"),
    LEARN(
        "share-limit", I64, share_limit, "16", 1, 1024, NULL,
        "with shared prefixes, limit of a micro-batch's tokens when every sample is counted whole: this times the budget"),
    LEARN(
        "ep", I32, ep, "1", 1, 256, NULL,
        "expert-parallel ranks: each has a share of every layer's experts, and tokens are exchanged; a divisor of dp * cp"),
    LEARN("router-aux", F64, router_aux, "-1", -1, 1e6, NULL,
          "coefficient of the experts' load loss, over all tokens of an update; 0: none; -1: the config's "
          "router_aux_loss_coef where it says output_router_logits"),
    LEARN("router-scope", ENUM, router_scope, "model", 0, 0, TRAIN_ROUTER_SCOPES,
          "scope of the load loss: all layers together, as in transformers, or each layer, as in Megatron"),
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
    SFT("eval-share", F64, eval_share, "0", 0, 0.9, NULL, "share of the rows of each file that is kept for evaluation"),
    SFT("eval-shuffle", BOOL, eval_shuffle, "true", 0, 0, NULL,
        "rows of --eval-share are chosen at random, the same in every run; off: the last ones of each file"),
    SFT("eval-data", STRING, eval_data, NULL, 0, 0, "FILE", "evaluate on these rows instead; as --data"),
    SFT("eval-samples", I64, eval_samples, "3", 0, 1000, NULL,
        "prompts of those rows that are answered after each evaluation, greedily: in the log, samples.jsonl and the report"),
    SFT("eval-tokens", I64, eval_tokens, "64", 1, 1e6, NULL, "limit of tokens per such answer"),
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
         "a shell command that scores answers, JSON lines; or the http:// URLs of servers"),
    GRPO(
        "reward", STRING, reward, NULL, 0, 0, "LIST",
        "parts of the reward and their weights, as exact:1,length:-0.1: exact (the right answer), ended, length (share of "
        "max-tokens), command, and names that the command answers; without it command, or exact"),
    GRPO("reward-seconds", F64, reward_seconds, "60", 1e-3, 1e6, NULL, "its time limit per batch, seconds"),
    GRPO("reward-retries", I32, reward_retries, "2", 0, 1000, NULL,
         "retries after a failure of the command, before the answers that it failed on are dropped and counted"),
    GRPO(
        "env-command", STRING, env_command, NULL, 0, 0, NULL,
        "a shell command that answers the model turn by turn and gives the rewards, JSON lines; without --data it makes "
        "the questions too"),
    GRPO("env", STRING, env, NULL, 0, 0, "URLS", "servers that do so: http://host:port/path,..."),
    GRPO("max-turns", I32, max_turns, "8", 1, 100000, NULL, "answers of the model in a rollout with an environment"),
    GRPO("env-tokens", I64, env_tokens, "0", 0, 1e9, NULL,
         "limit of tokens over all its answers and observations; 0: 2 * max-turns * max-tokens"),
    GRPO("env-processes", I32, env_processes, "1", 1, 4096, NULL, "processes of the command, per generator"),
    GRPO("env-seconds", F64, env_seconds, "60", 1e-3, 1e6, NULL, "time limit for an answer of the environment"),
    GRPO("env-retries", I32, env_retries, "2", 0, 1000, NULL,
         "restarts of a rollout whose environment was lost, before it is dropped and counted"),
    GRPO("service-slots", I32, service_slots, "16", 1, 4096, NULL,
         "requests at once to each server of rewards or of an environment"),
    GRPO("service-wait", F64, service_wait, "120", 0.1, 86400, NULL,
         "seconds that servers of rewards, environments, answers and a teacher may be away, also at the start"),
    GRPO("max-dropped", F64, max_dropped, "0.25", 0, 1, NULL,
         "share of a batch's answers that may be dropped for lack of a reward before the run fails"),
    GRPO("show-every", I32, show_every, "20", 0, 1 << 30, NULL,
         "print a prompt, its answer and its reward once per this number of batches; 0: never"),
    GRPO(
        "teacher", STRING, teacher, NULL, 0, 0, "MODEL",
        "distil this model, a folder, a run or http://host:port,... with the same tokens: it scores the model's own answers, and the reverse divergence "
        "from it is learnt (--kl, 1 if it is not given); without --reward or a command there are no rewards beside it"),
    GRPO(
        "teacher-topk", I32, teacher_topk, "0", 0, 1024, NULL,
        "learn the forward divergence from the teacher's likeliest tokens, this many per position, all others being one "
        "more; 0: the reverse divergence on the token that was drawn"),
    GRPO("partial", F64, scoring.partial, "0.2", 0, 1, NULL, "largest reward of an answer that is partly right"),
    GRPO("generators", I32, generators, "1", 1, 4096, NULL, "ranks that generate"),
    GRPO("generator-tp", I32, generator_tp, "1", 1, 4096, NULL,
         "ranks that share the layers of each generator (tensor parallel); a divisor of --generators"),
    GRPO("prompts", I64, prompts, "16", 1, 1e9, NULL, "prompts in a batch"),
    GRPO("group-size", I32, group_size, "8", 1, 65536, NULL, "answers to each prompt"),
    GRPO("updates-per-batch", I32, updates, "1", 1, 65536, NULL, "optimiser steps on each batch"),
    GRPO("max-tokens", I64, scoring.max_tokens, "0", 0, 1e9, NULL,
         "limit of tokens per answer; 0: 16, or 256 with --model and --data"),
    GRPO("stop-ids", STRING, stop, NULL, 0, 0, NULL,
         "tokens that end an answer, as 151645,151643; by default the model's eos_token_id, or 257"),
    GRPO("temperature", F64, temperature, "1", 0, 100, NULL, "sampling temperature; 0: the likeliest token"),
    GRPO("top-p", F64, top_p, "1", 1e-9, 1, NULL, "sample among the likeliest tokens of this total probability"),
    GRPO("top-k", I32, top_k, "0", 0, 1 << 24, NULL, "sample among the k likeliest tokens; 0: all"),
    GRPO(
        "async", I32, async, "0", 0, TRAIN_ASYNC_MOST, NULL,
        "limit of staleness: versions by which the weights that begin an answer may be older than those that train on it; above 1 generators work "
        "on several batches at once"),
    GRPO("dynamic-sampling", BOOL, dynamic_sampling, "false", 0, 0, NULL,
         "replace groups whose answers are all right or all wrong"),
    GRPO("dynamic-rounds", I32, dynamic_rounds, "4", 1, 1000, NULL,
         "limit of extra rounds of prompts for --dynamic-sampling"),
    GRPO("max-flat", I32, max_flat, "50", 0, 1 << 30, NULL,
         "consecutive batches whose rewards are all equal before the run fails; 0: no limit"),
    GRPO("overlong-filter", BOOL, scoring.overlong_filter, "false", 0, 0, NULL,
         "answers cut off at max-tokens carry no loss"),
    GRPO(
        "old", ENUM, old, "auto", 0, 0, TRAIN_OLD_CHOICES,
        "log-probs that the ratio is taken against; auto: the trainer's, or the generator's with cispo, and with --async and no correction"),
    GRPO("router-replay", ENUM, replay, "off", 0, 0, TRAIN_REPLAY_CHOICES,
         "experts that tokens go to when they are learnt: chosen anew, those of the pass that scored the old log-probs "
         "(first, with --updates-per-batch above 1), or those of the generator (rollout)"),
    GRPO("entropy", F64, entropy, "0", 0, 100, NULL, "weight of an entropy bonus"),
    GRPO("slots", I64, slots, "64", 1, 65536, NULL, "concurrent sequences per generator"),
    GRPO("eval-prompts", I64, eval_prompts, "64", 0, 1e9, NULL, "greedy answers before and after training; 0: none"),
    GRPO("eval-data", STRING, eval_data, NULL, 0, 0, "FILE", "evaluate on the prompts of this file instead; as --data"),
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
    GRPO(
        "refit-delta", ENUM, refit_delta, "auto", 0, 0, TRAIN_DELTA_CHOICES,
        "what a collective refit sends: all weights (no), blocks that changed, or only their changed elements, for which trainers keep "
        "two copies of what they send; auto: elements for bf16 weights of ranks on several machines, else no"),
    GRPO("publish", STRING, publish, NULL, 0, 0, "ADDRESS",
         "publish every version for generators that pull (ravel generate --pull): host:port, :port, unix:/path"),
    GRPO("publish-keep", I32, publish_keep, "2", 1, 64, NULL, "versions that are kept for them, on every trainer"),
    GRPO("publish-sparse", BOOL, publish_sparse, "true", 0, 0, NULL,
         "to generators that hold a kept version, send only the changed elements of a block if that is less"),
    GRPO(
        "publish-dtype", ENUM, publish_dtype, "auto", 0, 0, "auto|trained|bf16|f16",
        "dtype of published weights: as they are trained, or narrower; small updates leave most bf16 weights as they are, and these "
        "are not sent; auto: bf16 if the servers of --rollout have a bf16 model, else trained"),
    GRPO("publish-open", BOOL, publish_open, "false", 0, 0, NULL,
         "listen beyond this machine without a shared secret (RAVEL_TOKEN)"),
    GRPO("publish-tls", BOOL, publish_tls, "false", 0, 0, NULL,
         "encrypt the connections of generators, which need --pull-tls then; also RAVEL_TLS=1"),
    GRPO("publish-allow", STRING, publish_allow, NULL, 0, 0, "NETWORKS",
         "networks that may connect, like 10.0.0.0/8,fd00::/8; without it any"),
    GRPO("publish-host", STRING, publish_host, NULL, 0, 0, "NAME",
         "name under which generators reach this trainer; without it the address's, or this machine's"),
    GRPO(
        "rollout", STRING, rollout, NULL, 0, 0, "URLS",
        "answers from these servers, http://host:port,...: ravel serve --pull, vLLM or SGLang with our plug-ins; needs --publish"),
    GRPO("rollout-kind", ENUM, rollout_kind, "auto", 0, 0, TRAIN_REMOTE_CHOICES, "kind of the servers; auto: detected"),
    GRPO("rollout-model", STRING, rollout_model, NULL, 0, 0, "NAME",
         "model name on the servers; by default the first that a server lists"),
    GRPO("rollout-key", STRING, rollout_key, NULL, 0, 0, "KEY",
         "API key of the servers; better in the variable RAVEL_ROLLOUT_KEY"),
    GRPO("rollout-slots", I32, rollout_slots, "64", 1, 4096, NULL, "concurrent prompts per server"),
    GRPO(
        "rollout-retries", I32, rollout_retries, "3", 0, 1000, NULL,
        "tries more, after servers that work have failed on a prompt, before its answers count as dropped (--max-dropped)"),
    GRPO("rollout-seconds", F64, rollout_seconds, "600", 0.1, 86400, NULL,
         "time limit of a request, and of an update of a server's weights"),
    GRPO(
        "rollout-command", STRING, rollout_command, NULL, 0, 0, "COMMAND",
        "command that updates a server's weights, told by a line of JSON on its input; by default python3 -m ravel.adapters.sglang"),
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
    PLAN("oversize", ENUM, oversize, "error", 0, 0, RAVEL_OVERSIZE_CHOICES,
         "samples over the budget: an error, left out, or each in a micro-batch of its own, for which memory is made"),
    PLAN("layout", ENUM, layout, "packed", 0, 0, RAVEL_LAYOUT_CHOICES,
         "what the budget caps: the sum of slots, or the rectangle of rows padded to the longest, or with prompts and "
         "responses padded apart; for comparing with what pads, as nothing is padded here"),
    PLAN("method", ENUM, method, "ravel", 0, 0, RAVEL_METHOD_CHOICES, "how micro-batches are packed"),
    PLAN("count", I64, count, "1", 1, 2147483647, NULL, "samples in a micro-batch, with --method count"),
    PLAN("cp-pool", I32, cp_pool, "0", 0, 0x1p12, NULL,
         "hybrid context parallelism: the dp ranks form groups of different widths in each micro-step; 0: off"),
    PLAN("cp-widths", STRING, cp_widths, NULL, 0, 0, "LIST",
         "widths that groups may have, such as 1,2,4,8; without it powers of two that divide the pool, and the pool"),
    PLAN("min-cp", I32, min_cp, "1", 1, 0x1p12, NULL, "smallest width of a group of the pool"),
    PLAN("cp-price", STRING, cp_price, NULL, 0, 0, "LIST",
         "extra time per mille by width, such as 2:30,4:60; without it 30 per doubling, and 150 beyond a node"),
    PLAN("cp-node", I32, cp_node, "8", 1, 0x1p12, NULL, "ranks of a node, for the default price"),
    PLAN("cp-empty", ENUM, cp_empty, "filler", 0, 0, RAVEL_CP_EMPTY_CHOICES,
         "ranks of the pool without work: run a filler, or widen groups until none is left"),
    PLAN("effort", ENUM, effort, "default", 0, 0, RAVEL_EFFORT_CHOICES, "search effort of the planner"),
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
    SOURCE(
        "data", STRING, data, NULL, 0, 0, NULL,
        "JSON lines, or an array of rows: messages, prompt and completion, text, input_ids; for dpo chosen and rejected. "
        "Several files: a.jsonl b.jsonl, or with their shares of the samples, a.jsonl:0.7 b.jsonl:0.3"),
    SOURCE(
        "chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ..., or a file of a template; without it the model's template"),
    SOURCE("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
           "variables of the chat template, such as {\"enable_thinking\": false}"),
    SOURCE("train-on", ENUM, train_on, "assistant", 0, 0, RAVEL_TRAIN_ON_CHOICES,
           "which tokens of a conversation get loss: every answer, the last one, or all"),
    SOURCE("bos", I32, bos, "256", -1, 2147483647, NULL,
           "token put before bytes, where the model has no tokenizer; -1: none"),
    SOURCE("eos", I32, eos, "257", -1, 2147483647, NULL, "token put after bytes, with loss; -1: none"),
    SOURCE("truncate", I64, truncate, "0", 0, 2147483647, NULL, "cut samples to this many tokens; 0: never"),
    SOURCE("bad-rows", ENUM, bad_rows, "error", 0, 0, RAVEL_BAD_ROWS_CHOICES,
           "what to do with rows that cannot be used"),
    {0}};

static const ravel_option mock_table[] = {
    SOURCE("mock", STRING, mock, NULL, 0, 0, NULL, "mock data instead: JSON, or @file"), {0}};

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

int train_config_sections(train_config *c, train_kind kind, train_section *parts) {
    int n = 0;
    parts[n++] = (train_section){"run", run_table, &c->run};
    parts[n++] = (train_section){"model", model_table, &c->model};
    parts[n++] = (train_section){"adapter (LoRA)", adapter_table, &c->model};
    parts[n++] = (train_section){"learning", learn_table, &c->learn};
    parts[n++] = (train_section){"ranks", mesh_table, &c->mesh};
    if (kind != TRAIN_GRPO) {
        parts[n++] = (train_section){"data", sft_table, &c->sft};
        parts[n++] = (train_section){"rows", source_table, &c->source};
    }
    if (kind == TRAIN_SFT) {
        parts[n++] = (train_section){"mock data", mock_table, &c->source};
        parts[n++] = (train_section){"tasks", task_table, &c->sft};
    }
    if (kind == TRAIN_DPO) parts[n++] = (train_section){"preferences", dpo_table, &c->dpo};
    if (kind == TRAIN_GRPO) {
        parts[n++] = (train_section){"prompts, answers and rewards", grpo_table, &c->grpo};
        parts[n++] = (train_section){"policy loss", train_policy_option_table(), &c->policy};
    }
    parts[n++] = (train_section){"packing", plan_table, &c->plan};
    parts[n++] = (train_section){"balance", cost_table, &c->run};
    RAVEL_ASSERT(n <= TRAIN_SECTIONS);
    return n;
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

void train_config_default(train_config *config) {
    memset(config, 0, sizeof *config);
    ravel_mesh_options_default(&config->mesh);
    ravel_plan_options_default(&config->plan);
    ravel_source_options_default(&config->source);
    for (int kind = 0; kind < TRAIN_KINDS; kind++) {
        train_section parts[TRAIN_SECTIONS];
        int count = train_config_sections(config, (train_kind)kind, parts);
        for (int i = 0; i < count; i++) ravel_options_default(parts[i].table, parts[i].options);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static ravel_status unknown_key(const train_section *parts, int count, const char *key, ravel_error *err) {
    const char *names[512] = {0};
    char answer[400];
    size_t known = 0;
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name && known < 512; row++) names[known++] = row->name;
    const char *near = ravel__suggest(key, names, known);
    if (train_word_answer(key, answer, sizeof answer))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "unknown option \"%.60s\"; %s", key, answer);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "unknown option \"%.60s\"%s%s%s", key,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* A single value as text; NULL: it is none. */
static const char *scalar(const ravel__json_node *node, char *text, size_t bytes) {
    switch ((ravel__json_kind)node->kind) {
    case RAVEL__JSON_TRUE: return "true";
    case RAVEL__JSON_FALSE: return "false";
    case RAVEL__JSON_STRING: return node->as.string;
    case RAVEL__JSON_INTEGER: (void)snprintf(text, bytes, "%lld", (long long)node->as.integer); return text;
    case RAVEL__JSON_REAL: (void)snprintf(text, bytes, "%.17g", node->as.real); return text;
    default: return NULL;
    }
}

/* The items of a list as one text, which the file owns. */
static ravel_status join_list(train_config_file *file, const ravel__json_node *node, const char **value,
                              ravel_error *err) {
    enum { MOST = sizeof file->lists / sizeof *file->lists };
    const char *words[64];
    char numbers[64][32];
    int count = 0, at = 0, files = strcmp(node->key, "data") == 0 || strcmp(node->key, "eval-data") == 0;
    for (const ravel__json_node *x = ravel__json_first(file->doc, node); x; x = ravel__json_next(file->doc, x)) {
        words[count] = count < 63 ? scalar(x, numbers[count], sizeof numbers[count]) : NULL;
        if (!words[count++])
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is not a list of up to 63 words and numbers", node->key);
    }
    while (at < MOST && file->lists[at]) at++;
    if (at == MOST) return ravel_error_set(err, RAVEL_E_ARGUMENT, "more than %d options are lists", (int)MOST);
    *value = file->lists[at] = train_files_join(words, count, files ? ' ' : ',');
    return *value ? RAVEL_OK : ravel__no_memory(err, (size_t)count, "a list");
}

static ravel_status set_member(const train_section *parts, int count, train_config_file *file,
                               const ravel__json_node *node, ravel_error *err) {
    char text[64];
    const char *value = scalar(node, text, sizeof text);
    const train_section *part = train_config_section(parts, count, node->key);
    if (!part) return unknown_key(parts, count, node->key, err);
    const ravel_option *row = ravel_option_find(part->table, node->key);
    int is_text = row->type == RAVEL_OPTION_STRING;
    if (node->kind == RAVEL__JSON_NULL) { /* as in a config.json of a run: not set; "budget": null is no budget */
        if (strcmp(node->key, "budget") != 0) return RAVEL_OK;
        value = "0";
    } else if (node->kind == RAVEL__JSON_ARRAY && is_text) {
        ravel_status status = join_list(file, node, &value, err);
        if (status) return status;
    } else if (!value) {
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a number, a word or true or false", node->key);
    } else if (is_text && node->kind != RAVEL__JSON_STRING) {
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be a string, in quotes", node->key);
    }
    return ravel_option_set(part->table, part->options, node->key, value, err);
}

/* The line of the key, counted from 1; 0: not known. Values may hold the same word, but no colon follows it. */
static int line_of(const char *text, const char *key) {
    size_t length = strlen(key);
    int line = 1;
    for (const char *c = text; c && *c; c++) {
        line += *c == '\n';
        if (*c != '"' || strncmp(c + 1, key, length) != 0 || c[1 + length] != '"') continue;
        if (c[2 + length + strspn(c + 2 + length, " \t\r\n")] == ':') return line;
    }
    return 0;
}

/* Options that runs have written into their config.json and that are gone: such a run is still resumed. */
static int is_retired(train_kind kind, const ravel__json *doc, const char *key) {
    int of_a_run = ravel__json_get(doc, ravel__json_root(doc), "kind") != NULL;
    return of_a_run && kind == TRAIN_DPO && strcmp(key, "level") == 0;
}

/* What an option meant before it had a value of its own: a run that was started then is resumed as it was. */
static void set_earlier(train_config *config, const ravel__json *doc) {
    const ravel__json_node *root = ravel__json_root(doc);
    int whole = ravel__json_get(doc, root, "kind") && ravel__json_get(doc, root, "resume"); /* a run's config.json */
    if (whole && !ravel__json_get(doc, root, "eval-shuffle")) config->sft.eval_shuffle = 0;
}

/* Whether two names are one option: '-' and '_' are the same. */
static int same_name(const char *a, const char *b) {
    for (; *a && (*a == '_' ? '-' : *a) == (*b == '_' ? '-' : *b); a++) b++;
    return !*a && !*b;
}

static ravel_status refuse_repeated(const ravel__json *doc, const ravel__json_node *root, ravel_error *err) {
    for (const ravel__json_node *n = ravel__json_first(doc, root); n; n = ravel__json_next(doc, n))
        for (const ravel__json_node *m = ravel__json_first(doc, root); m != n; m = ravel__json_next(doc, m))
            if (same_name(n->key, m->key))
                return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.60s\" is there twice; leave one", n->key);
    return RAVEL_OK;
}

static int is_yaml(const char *path, const char *text) {
    const char *dot = strrchr(path, '.');
    if (dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0)) return 1;
    return !(dot && strcmp(dot, ".json") == 0) && text[strspn(text, " \t\r\n")] != '{';
}

ravel_status train_config_file_read(const char *path, train_config_file *file, ravel_error *err) {
    char name[TRAIN_PATH], *json = NULL;
    size_t bytes = 0;
    memset(file, 0, sizeof *file);
    ravel_status status = train_path_join(name, path, "config.json", err);
    if (status) return status;
    file->of_a_run = train_path_exists(name);
    if (!file->of_a_run) (void)snprintf(name, sizeof name, "%s", path);
    status = ravel__file_read(name, 1 << 20, NULL, &file->text, &bytes, err);
    if (status) return status;
    if (is_yaml(name, file->text)) {
        status = ravel__yaml_to_json(file->text, bytes, &json, &bytes, err);
        free(file->text);
        file->text = json;
    }
    if (!status) status = ravel__json_parse(file->text, bytes, NULL, &file->doc, err);
    if (status) ravel_error_prefix(err, "%s", name);
    return status;
}

void train_config_file_close(train_config_file *file) {
    for (size_t i = 0; i < sizeof file->lists / sizeof *file->lists; i++) free(file->lists[i]);
    ravel__json_free(file->doc);
    free(file->text);
    memset(file, 0, sizeof *file);
}

ravel_status train_config_json(train_config *config, train_kind kind, train_config_file *file, ravel_error *err) {
    train_section parts[TRAIN_SECTIONS];
    const ravel__json *doc = file->doc;
    int count = train_config_sections(config, kind, parts);
    const ravel__json_node *root = ravel__json_root(doc);
    if (!root || root->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a configuration is a JSON object like {\"steps\": 100}");
    set_earlier(config, doc);
    ravel_status twice = refuse_repeated(doc, root, err);
    if (twice) return twice;
    for (const ravel__json_node *n = ravel__json_first(doc, root); n; n = ravel__json_next(doc, n)) {
        if (strcmp(n->key, "kind") == 0) {
            if (ravel__json_is(n, train_kind_name(kind))) continue;
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "this configuration is for another kind of training, not %s",
                                   train_kind_name(kind));
        }
        if (is_retired(kind, doc, n->key)) continue;
        ravel_status status = set_member(parts, count, file, n, err);
        int line = status ? line_of(file->text, n->key) : 0;
        if (line) ravel_error_prefix(err, "line %d", line);
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
    RAVEL_ASSERT(row->name && options);
    put(o, ",\n  \"%s\": ", row->name);
    if (row->type == RAVEL_OPTION_STRING) /* of any length */
        memcpy(&text, (const char *)options + row->offset, sizeof text);
    else
        (void)ravel_option_format(row, options, value, sizeof value);
    if (text && (row->type == RAVEL_OPTION_STRING || row->type == RAVEL_OPTION_ENUM)) {
        size_t left = o->need < o->bytes ? o->bytes - o->need : 0;
        o->need += ravel__json_quote(text, strlen(text), left ? o->text + o->need : NULL, left);
    } else {
        put(o, "%s", text ? text : "null");
    }
}

size_t train_config_text(const train_config *config, train_kind kind, char *text, size_t bytes) {
    train_section parts[TRAIN_SECTIONS];
    train_config copy = *config; /* the parts point into something that may be written */
    int count = train_config_sections(&copy, kind, parts);
    out o = {text, bytes, 0};
    put(&o, "{\n  \"kind\": \"%s\"", train_kind_name(kind));
    for (int i = 0; i < count; i++)
        for (const ravel_option *row = parts[i].table; row->name; row++) put_row(&o, row, parts[i].options);
    put(&o, "\n}\n");
    if (bytes) text[o.need < bytes ? o.need : bytes - 1] = '\0';
    return o.need;
}
