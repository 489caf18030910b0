/* The tables of a training run. One row is the flag, the JSON key, the default, the range and the help. */
#include "train/run/config/config.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

#include <ravel/chat.h>
#include <ravel/tree_batch.h>
#include <ravel/weights.h>

#include "base/options.h"

#include <stdio.h>
#include <string.h>

#define RUN(...) RAVEL__ROW(train_run_options, __VA_ARGS__)
static const ravel_option run_table[] = {
    RUN("run", STRING, run, NULL, 0, 0, "FOLDER",
        "folder of the run; without it runs/KIND-1, -2, ... whichever is free"),
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
    RUN("sinks", STRING, sinks, "jsonl,tensorboard", 0, 0, "LIST",
        "metrics files in the run folder: jsonl, csv, tensorboard, trace"),
    RUN("timeout", F64, timeout, "0", 0, 1e9, NULL,
        "seconds that a rank waits for another; 0: RAVEL_COMM_TIMEOUT, else 600"),
    RUN("http", STRING, http, NULL, 0, 0, "ADDRESS", "serve metrics for Prometheus at [address:]port"),
    RUN("gpu", STRING, gpu, NULL, 0, 0, "NAME", "name of the accelerator, for MFU"),
    RUN("quiet", BOOL, quiet, "false", 0, 0, NULL, "no progress on the terminal"),
    {0}};

#define MODEL(...) RAVEL__ROW(train_model_choice, __VA_ARGS__)
static const ravel_option model_table[] = {
    MODEL(
        "model", STRING, model, NULL, 0, 0, "FOLDER",
        "to start from: a Hugging Face folder, a run or a checkpoint of ravel train, or an adapter to continue training"),
    MODEL("shape", STRING, shape, NULL, 0, 0, "SHAPE", "new weights of this shape: a config.json or a published name"),
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
          "matrices that get an adapter: q,k,v,o,gate,up,down (of every expert), or PEFT's names; "
          "without it all-linear, all of these"),
    MODEL("lora-rslora", BOOL, lora_rslora, "false", 0, 0, NULL, "scale by alpha / sqrt(rank) instead (rsLoRA)"),
    MODEL("lora-dropout", F64, lora_dropout, "0", 0, 1, NULL, "dropout before the adapter: only 0 is supported"),
    MODEL("adapter", STRING, adapter, NULL, 0, 0, "FOLDER",
          "continue training this PEFT adapter of the model, or that of a run, with its own rank, alpha and targets"),
    {0}};

#define LEARN(...) RAVEL__ROW(train_learn_options, __VA_ARGS__)
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
          "router_aux_loss_coef if it sets output_router_logits"),
    LEARN("router-scope", ENUM, router_scope, "model", 0, 0, TRAIN_ROUTER_SCOPES,
          "scope of the load loss: all layers together, as in transformers, or each layer, as in Megatron"),
    LEARN("norm", I64, norm, "0", 0, 1e12, NULL, "divisor of seq-mean-token-sum-norm; 0: budget, in grpo max-tokens"),
    {0}};

#define MESH(...) RAVEL__ROW(ravel_mesh_options, __VA_ARGS__)
static const ravel_option mesh_table[] = {
    MESH("tp", I32, tp, "1", 1, 4096, NULL, "tensor-parallel ranks: they share every layer"),
    MESH("cp", I32, cp, "1", 1, 4096, NULL, "context-parallel ranks: they share every sample; the budget is per rank"),
    MESH("dp", I32, dp, "0", 0, 4096, NULL, "data-parallel ranks; 0: ranks / (tp * cp * pp), or 1 without --ranks"),
    MESH("pp", I32, pp, "1", 1, 4096, NULL, "pipeline stages: each has a part of the layers"),
    MESH("vpp", I32, vpp, "1", 1, TRAIN_CHUNKS, NULL, "chunks of layers per stage (interleaved pipeline)"),
    {0}};

#define SFT(...) RAVEL__ROW(train_sft_options, __VA_ARGS__)
static const ravel_option sft_table[] = {
    SFT("batch", I64, batch, "64", 1, 1e9, NULL, "samples in an update; in dpo pairs"),
    SFT("eval-every", I64, eval_every, "0", 0, 1e12, NULL, "updates between evaluations; 0: only at the end"),
    SFT("eval-share", F64, eval_share, "0", 0, 0.9, NULL, "share of the rows of each file that is kept for evaluation"),
    SFT("eval-shuffle", BOOL, eval_shuffle, "true", 0, 0, NULL,
        "rows of --eval-share are chosen at random, the same in every run; off: the last ones of each file"),
    SFT("eval-data", STRING, eval_data, NULL, 0, 0, "FILES", "evaluate on these rows instead; as --data"),
    SFT("eval-samples", I64, eval_samples, "3", 0, 1000, NULL,
        "prompts of those rows that are answered after each evaluation, greedily: in the log, samples.jsonl and the report"),
    SFT("eval-tokens", I64, eval_tokens, "64", 1, 1e6, NULL, "limit of tokens per such answer"),
    SFT("epochs", I64, epochs, "0", 0, 1e9, NULL, "passes over the data, --steps at most; 0: as many as --steps take"),
    {0}};

static const ravel_option task_table[] = {
    SFT("task", STRING, task, NULL, 0, 0, "NAME", "learn the answers of a verifiable task instead of data, see below"),
    SFT("level", I32, level, "2", 1, 12, NULL, "difficulty of the questions of --task"),
    {0}};

static const ravel_option dpo_table[] = {RAVEL__ROW(train_dpo_options, "beta", F64, beta, "0.1", 1e-6, 1e3, NULL,
                                                    "DPO's beta: how strongly the model is kept near its reference"),
                                         {0}};

#define GRPO(...) RAVEL__ROW(train_grpo_options, __VA_ARGS__)
static const ravel_option grpo_table[] = {
    GRPO("preset", ENUM, preset, "none", 0, 0, TRAIN_PRESET_CHOICES,
         "clip, aggregation, std, KL and length rules as a paper has them; a file and flags override them"),
    GRPO("task", STRING, task, NULL, 0, 0, "NAME",
         "prompts and rewards of a verifiable task, see below; arithmetic without --data"),
    GRPO("data", STRING, data, NULL, 0, 0, "FILE",
         "prompts from a JSON-lines file: messages, prompt or input_ids, and answer"),
    GRPO(
        "chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ..., or a file of a template; without it the model's template"),
    GRPO("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
         "variables of the chat template, such as {\"enable_thinking\": false}"),
    GRPO("bad-rows", ENUM, bad_rows, "error", 0, 0, RAVEL_BAD_ROWS_CHOICES, "what to do with rows that cannot be used"),
    GRPO("level", I32, level, "2", 1, 12, NULL, "difficulty of the questions of --task"),
    GRPO("reward-command", STRING, reward_command, NULL, 0, 0, "COMMAND",
         "a shell command that scores answers, JSON lines; or the http:// URLs of servers"),
    GRPO(
        "reward", STRING, reward, NULL, 0, 0, "LIST",
        "parts of the reward and their weights, as exact:1,length:-0.1: exact (the right answer), ended, length (share of "
        "max-tokens), command, and names that the command answers; without it command, or exact"),
    GRPO("reward-seconds", F64, reward_seconds, "60", 1e-3, 1e6, NULL, "seconds per batch for --reward-command"),
    GRPO("reward-retries", I32, reward_retries, "2", 0, 1000, NULL,
         "retries after a failure of the command, before the answers that it failed on are dropped and counted"),
    GRPO(
        "env-command", STRING, env_command, NULL, 0, 0, "COMMAND",
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
        "from it is minimised (--kl, 1 if it is not given); without --reward or a command there are no rewards beside it"),
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
    GRPO("stop-ids", STRING, stop, NULL, 0, 0, "TOKENS",
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
         "experts of tokens in training: chosen anew, those of the pass that scored the old log-probs "
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
    GRPO("rollout-retries", I32, rollout_retries, "3", 0, 1000, NULL,
         "retries of a prompt that working servers failed on, before its answers count as dropped (--max-dropped)"),
    GRPO("rollout-seconds", F64, rollout_seconds, "600", 0.1, 86400, NULL,
         "time limit of a request, and of an update of a server's weights"),
    GRPO(
        "rollout-command", STRING, rollout_command, NULL, 0, 0, "COMMAND",
        "command that updates a server's weights, told by a line of JSON on its input; by default python3 -m ravel.adapters.sglang"),
    GRPO("publish-linger", F64, publish_linger, "10", 0, 300, NULL,
         "seconds to wait at the end until connected generators hold the last version"),
    {0}};

#define PLAN(...) RAVEL__ROW(ravel_plan_options, __VA_ARGS__)
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
         "responses padded apart; for comparison with frameworks that pad; nothing is padded here"),
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

#define SOURCE(...) RAVEL__ROW(ravel_source_options, __VA_ARGS__)
static const ravel_option source_table[] = {
    SOURCE(
        "data", STRING, data, NULL, 0, 0, "FILES",
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
    SOURCE("mock", STRING, mock, NULL, 0, 0, "JSON", "mock data instead: JSON, or @file"), {0}};

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
