#include "train/run/config/words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const train_word train_words[] = {
    /* micro-batches and packing */
    {"micro-token-budget token-budget", "UniRL, TRL", "--budget",
     "a hard cap; null takes --count samples instead, as in UniRL"},
    {"ppo-max-token-len-per-gpu max-token-len max-token-len-per-gpu", "verl", "--budget", "a hard cap per rank"},
    {"max-tokens-per-gpu", "slime", "--budget",
     "a longer sample is an error; the adapter runs it alone, as slime does"},
    {"max-tokens-per-mb", "AReaL", "--budget", NULL},
    {"train-mb-tokens logprob-mb-tokens max-tokens-per-microbatch", "NeMo-RL", "--budget", NULL},
    {"max-seqlen-per-dp-cp-rank", "Megatron-LM", "--budget", "per context-parallel rank, as there"},
    {"rl-sequence-packing-bin-size", "Megatron-LM", "--budget", NULL},
    {"max-sequences-per-bin max-num-seqs rl-sequence-packing-max-sequences-per-bin", "NeMo-RL, Megatron-LM",
     "--max-samples", NULL},
    {"num-microbatches min-num-micro-batch num-micro-batches", "Megatron-LM, verl", "--min-micro-steps",
     "a lower bound: the number follows from the lengths, the same on every rank"},
    {"micro-batch-size ppo-micro-batch-size-per-gpu train-micro-batch-size", "Megatron-LM, verl, DeepSpeed", "--budget",
     "in tokens, not samples: micro-batches are packed; N samples each: --method count --count N"},
    {"per-device-train-batch-size per-gpu-train-batch-size", "TRL, transformers", "--batch",
     "of all ranks together: theirs times devices times accumulation steps; --budget cuts micro-batches by tokens"},
    {"gradient-accumulation-steps", "TRL, transformers", "--batch", "micro-steps follow from --batch and --budget"},
    {"per-device-eval-batch-size eval-batch-size", "TRL, transformers", "--budget",
     "evaluations are packed as training is"},
    {"sequence-packing-scheduler packing-algorithm packing-strategy", "Megatron-LM, AReaL, TRL", "--method",
     "Megatron's dp_balanced is next-fit, ffd, bfd and kk go by these names; the default is better than each"},
    {"use-dynamic-bsz use-dynamic-batch-size packing sequence-packing", "verl, slime, TRL", "--method",
     "packing is always on; --single or --method count turns it off"},
    {"balance-data balance-batch balance-by-flops micro-cost-model", "slime, verl, UniRL", "--cost",
     "balancing is always on, by the cost of the model"},
    {"sequence-length-pad-multiple pad-to-multiple-of make-sequence-length-divisible-by", "NeMo-RL, transformers",
     "--align", "what context and tensor parallelism need is added"},
    {"sft-mock-dataset-config-json", "Megatron-LM", "--mock", "the same JSON"},
    {"dynamic-context-parallel min-dynamic-context-parallel-size hybrid-context-parallel", "Megatron-LM", "--cp-pool",
     "with --min-cp"},
    /* training */
    {"learning-rate", "TRL, transformers", "--lr", NULL},
    {"lr-scheduler-type lr-decay-style", "transformers, Megatron-LM", "--schedule", NULL},
    {"warmup-steps lr-warmup-iters lr-warmup-steps num-warmup-steps", "transformers, Megatron-LM, verl", "--warmup",
     "in updates"},
    {"warmup-ratio lr-warmup-fraction lr-warmup-steps-ratio", "transformers, Megatron-LM, verl", "--warmup",
     "in updates: the ratio times --steps"},
    {"adam-beta1 adam-beta-1", "transformers, Megatron-LM", "--beta1", NULL},
    {"adam-beta2 adam-beta-2", "transformers, Megatron-LM", "--beta2", "0.95 by default, there 0.999"},
    {"adam-epsilon adam-eps", "transformers, Megatron-LM", "--eps", NULL},
    {"max-grad-norm gradient-clipping grad-clip", "TRL, transformers, DeepSpeed, verl", "--clip-grad", NULL},
    {"batch-size global-batch-size train-batch-size ppo-mini-batch-size", "Megatron-LM, verl, AReaL", "--batch",
     "samples of an update; in grpo --prompts times --group-size, in --updates-per-batch updates"},
    {"max-steps train-iters total-training-steps num-rollout", "TRL, Megatron-LM, verl, slime", "--steps",
     "in updates"},
    {"num-train-epochs total-epochs num-epochs", "TRL, verl, transformers", "--epochs", NULL},
    {"max-length max-seq-length max-seq-len cutoff-len seq-length model-max-length", "TRL, LLaMA-Factory, Megatron-LM",
     "--truncate", "nothing is cut by default; a sample over --budget is an error"},
    {"gradient-checkpointing recompute-granularity", "transformers, Megatron-LM", "--recompute", NULL},
    {"model-name-or-path hf-checkpoint load", "TRL, slime, Megatron-LM", "--model", NULL},
    {"dataset-name train-files prompt-data train-data-path", "TRL, verl, slime", "--data", "a file of JSON lines"},
    {"output-dir save default-local-dir", "TRL, Megatron-LM, verl", "--run", "a folder with everything of the run"},
    {"save-steps save-interval save-freq", "TRL, Megatron-LM, verl", "--checkpoint-every",
     "an interval of time or updates"},
    {"eval-steps eval-interval test-freq", "TRL, Megatron-LM, verl", "--eval-every", NULL},
    {"save-total-limit max-actor-ckpt-to-keep", "transformers, verl", "--keep", NULL},
    {"load-best-model-at-end", "transformers", "--keep-best", "keeps the checkpoint with the best evaluation"},
    {"resume-from-checkpoint resume-mode", "transformers, verl", "--resume",
     "with --run FOLDER: its newest checkpoint"},
    {"logging-steps log-interval logging-strategy", "transformers, Megatron-LM", NULL,
     "every update has a line in metrics.jsonl and on the terminal; --quiet leaves the terminal alone"},
    {"report-to", "transformers", "--sinks", "python -m ravel.wandb RUN, python -m ravel.mlflow RUN"},
    {"tensor-model-parallel-size tensor-parallel-size", "Megatron-LM, verl, vLLM", "--tp", NULL},
    {"context-parallel-size ulysses-sequence-parallel-size", "Megatron-LM, verl", "--cp", NULL},
    {"pipeline-model-parallel-size", "Megatron-LM, verl", "--pp", NULL},
    {"num-layers-per-virtual-pipeline-stage virtual-pipeline-model-parallel-size", "Megatron-LM", "--vpp",
     "chunks per stage"},
    {"nproc-per-node num-processes", "torchrun, accelerate", "--ranks", NULL},
    {"expert-model-parallel-size expert-parallel-size", "Megatron-LM, verl", "--ep", NULL},
    {"moe-aux-loss-coeff router-aux-loss-coef aux-loss-coef moe-aux-loss-coef", "Megatron-LM, transformers, NeMo-RL",
     "--router-aux", "over the whole update; Megatron's is of each layer: --router-scope layer"},
    {"use-rollout-routing-replay use-routing-replay routing-replay moe-enable-routing-replay",
     "slime, verl, Megatron-LM", "--router-replay", "first is R2, rollout is R3"},
    {"fsdp zero-stage deepspeed use-distributed-optimizer", "transformers, DeepSpeed, Megatron-LM", "--shard",
     "params, states or none"},
    {"loss-agg-mode loss-type calculate-per-token-loss", "verl, TRL, Megatron-LM", "--aggregation", "verl's names"},
    /* reinforcement learning */
    {"num-generations n-samples-per-prompt rollout-n n-samples", "TRL, slime, verl, AReaL", "--group-size", NULL},
    {"use-vllm vllm-mode vllm-server-base-url sglang-router-ip rollout-backend", "TRL, slime, verl", "--rollout",
     "URLs of servers; without it ranks of the run generate"},
    {"rollout-batch-size num-prompts-per-step", "slime, NeMo-RL", "--prompts", NULL},
    {"max-completion-length max-response-length rollout-max-response-len max-new-tokens", "TRL, verl, slime, AReaL",
     "--max-tokens", NULL},
    {"kl-coef kl-loss-coef reference-policy-kl-penalty kl-beta", "verl, slime, NeMo-RL", "--kl", NULL},
    {"epsilon clip-ratio eps-clip clip-ratio-low", "TRL, verl, slime", "--clip-low", "and --clip-high"},
    {"clip-ratio-c delta", "verl, TRL", "--dual-clip", NULL},
    {"entropy-coeff entropy-coef", "verl, slime", "--entropy", "a bonus, 0 by default"},
    {"epsilon-high clip-ratio-high eps-clip-high", "TRL, verl, slime", "--clip-high", NULL},
    {"advantage-estimator adv-estimator", "slime, verl", "--advantage", NULL},
    {"importance-sampling-level", "TRL", "--ratio", "sequence is GSPO's"},
    {"max-staleness max-head-offpolicyness", "TRL, AReaL", "--async", NULL},
    {"teacher-model", "TRL", "--teacher", "a folder or a run"},
    {"reward-weights reward-model-weights", "TRL", "--reward", "names and weights, as exact:1,length:-0.1"},
    {"reward-funcs custom-rm-path custom-reward-function reward-fn", "TRL, slime, verl", "--reward-command",
     "a program: rows in, numbers out"},
    {"environment-factory rollout-func interaction-config-path custom-generate-function-path", "TRL, verl, slime",
     "--env-command", "a program that answers turn by turn, JSON lines; or --env with a server"},
    {"max-tool-calling-iterations max-assistant-turns max-rollout-turns", "TRL, verl, NeMo-RL", "--max-turns", NULL},
    {"ppo-epochs num-iterations", "verl, TRL", "--updates-per-batch", NULL},
    /* weights */
    {"nrl-refit-buffer-memory-ratio refit-buffer-memory-ratio", "NeMo-RL", "--refit-memory",
     "and RAVEL_REFIT_BUFFER_MEMORY_RATIO; the ratio is of all buffers of a rank together, there it is of each"},
    {"nrl-refit-num-buffers", "NeMo-RL", "--refit-buffers", "and RAVEL_REFIT_NUM_BUFFERS"},
    {"update-weights-bucket-size update-weight-buffer-size", "verl, slime", "--refit-buffer-size",
     "buffers are reused; a tensor may be larger than one"},
    {"max-prompt-length max-completion-len rollout-max-prompt-len", "TRL, verl, slime", "--truncate",
     "of whole samples; a prompt by itself is not cut: in GRPO it has what --max-tokens leaves of the budget"},
    {"wandb wandb-project use-wandb mlflow logger", "verl, slime, NeMo-RL", "--sinks",
     "python -m ravel.wandb RUN, python -m ravel.mlflow RUN"},
    /* sampling and serving */
    {"temp", "llama.cpp", "--temperature", NULL},
    {"n num-samples num-return-sequences", "OpenAI, transformers", "--samples", NULL},
    {"n-predict", "llama.cpp", "--max-tokens", NULL},
    {"port host bind", "vLLM, SGLang, llama.cpp", "--listen", "HOST:PORT, or a port of this machine alone"},
    {"served-model-name model-name", "vLLM, SGLang", "--name", NULL},
    {"max-model-len context-length ctx-size n-ctx", "vLLM, SGLang, llama.cpp", "--context", NULL},
    {"enable-lora lora-modules lora-paths", "vLLM, SGLang", "--adapter", "NAME=FOLDER"},
    /* what is not here */
    {"load-in-4bit load-in-8bit quantization use-qlora", "transformers, TRL, vLLM", NULL,
     "weights are f32 or bf16 (--kernels); --lora-rank and --recompute save memory"},
    {"gpu-memory-utilization vllm-gpu-memory-utilization mem-fraction-static", "vLLM, SGLang", NULL,
     "a generator asks for what --slots sequences need, and says how much that is"},
    {"bf16 fp16 mixed-precision dtype", "transformers", NULL,
     "a GPU multiplies in bf16 with f32 weights and states; --save-dtype is of checkpoints"},
    {"lora-r use-peft peft-config lora-adapter-rank", "PEFT, TRL", "--lora-rank",
     "0 trains the model itself; checkpoints are PEFT folders"},
    {"lora-target-modules target-modules", "PEFT, TRL, verl", "--lora-targets", NULL},
    {"use-rslora", "PEFT, TRL", "--lora-rslora", NULL},
    {"adapter-name-or-path lora-adapter-path", "TRL, LLaMA-Factory, verl", "--adapter", "a PEFT folder"},
    {"train-ppo train-grpo train-rl", "verl", "train grpo", "the clipped ratio is there; there is no critic"},
    {"train-rloo train-reinforce train-gspo train-dapo train-dr-grpo", "TRL, verl", "train grpo",
     "--advantage, --ratio, --clip-high, --overlong-buffer and --dynamic-sampling"},
    {"train-pretrain train-finetune train-fine-tune train-instruct train-sft", "others", "train sft", NULL},
    {"train-dpo train-orpo train-kto train-simpo train-ipo train-rm train-reward", "TRL", "train dpo",
     "dpo itself; the others are not here"},
    /* ideas */
    {"packing-eff", "Megatron-LM", "throughput/packing_efficiency",
     "theirs takes bins of full size, so that fillers and cut ends count as room; ours counts bins and fillers times the budget"},
    {"cap target", "verl, slime", "--budget", "a cap is never exceeded; a target (older verl, UniRL) may be"},
    {"oversize", "verl, slime, UniRL", "--oversize",
     "error names the sample, skip leaves it out and lists it, alone gives it a micro-batch over the budget and counts it"},
    {"bin pack microbatch micro-batch", "all", "micro-batch",
     "what one data-parallel rank runs forward and backward in one go"},
    {"global-step iteration", "all", "update",
     "one optimiser step: the same whole number of micro-steps on every rank"},
    {"weight-sync update-weights refit", "verl, slime, NeMo-RL", "refit",
     "trainers to generators; all or nothing, checksummed"},
    {"cu-seqlens", "flash-attn, Megatron-LM", "cu_seqlens", "real lengths; cu_seqlens_padded are slots"},
};
enum { WORDS = sizeof train_words / sizeof *train_words };
const int train_word_count = WORDS;

/* Whether one of the names in `list` is `name`, with - or _, in any case. */
static int is_among(const char *list, const char *name) {
    while (*list) {
        size_t length = strcspn(list, " "), i = 0;
        while (i < length && name[i] &&
               (name[i] == '_' || name[i] == '.' ? '-' : tolower((unsigned char)name[i])) == list[i])
            i++;
        if (i == length && !name[i]) return 1;
        list += length + strspn(list + length, " ");
    }
    return 0;
}

/* "actor.ppo_epochs" is found as a whole or by its last part. */
const train_word *train_word_find(const char *name) {
    const char *dot = strrchr(name, '.');
    for (int i = 0; i < WORDS; i++)
        if (is_among(train_words[i].theirs, name)) return &train_words[i];
    return dot && dot[1] ? train_word_find(dot + 1) : NULL;
}

const char *train_word_option(const char *name) {
    const train_word *found = train_word_find(name);
    return found && found->ours && strncmp(found->ours, "--", 2) == 0 ? found->ours + 2 : NULL;
}

int train_word_answer(const char *name, char *text, size_t bytes) {
    const train_word *found = train_word_find(name);
    if (!found) return 0;
    if (!found->ours)
        (void)snprintf(text, bytes, "%s", found->note);
    else
        (void)snprintf(text, bytes, "here it is %s%s%s%s", found->ours, found->note ? " (" : "",
                       found->note ? found->note : "", found->note ? ")" : "");
    return 1;
}
