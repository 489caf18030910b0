/* The words of other systems: one table for the answers to unknown options, `ravel words` and docs/glossary.md. */
#include "cli/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct word {
    const char *theirs; /* names, separated by spaces, written with '-' */
    const char *who;
    const char *ours; /* an option (--x), a command, a variable or a metric; NULL: there is nothing of the kind */
    const char *note; /* what differs; NULL: nothing */
} word;

static const word words[] = {
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
    {"micro-batch-size ppo-micro-batch-size-per-gpu per-device-train-batch-size train-micro-batch-size",
     "Megatron-LM, verl, TRL", "--count", "with --method count; otherwise --budget cuts micro-batches by tokens"},
    {"gradient-accumulation-steps", "TRL, transformers", "--batch", "micro-steps follow from --batch and --budget"},
    {"sequence-packing-scheduler packing-algorithm packing-strategy micro-cost-model", "Megatron-LM, AReaL, TRL",
     "--method",
     "Megatron's dp_balanced is next-fit, ffd, bfd and kk go by these names; the default is better than each"},
    {"use-dynamic-bsz use-dynamic-batch-size packing sequence-packing", "verl, slime, TRL", "--method",
     "packing is always on; --single or --method count turns it off"},
    {"balance-data balance-batch balance-by-flops", "slime, verl", "--cost",
     "balancing is always on, by the cost of the model"},
    {"sequence-length-pad-multiple pad-to-multiple-of make-sequence-length-divisible-by", "NeMo-RL, transformers",
     "--align", "what context and tensor parallelism need is added"},
    {"sft-mock-dataset-config-json", "Megatron-LM", "--mock", "the same JSON"},
    {"dynamic-context-parallel min-dynamic-context-parallel-size hybrid-context-parallel", "Megatron-LM", "--cp-pool",
     "with --min-cp"},
    /* training */
    {"learning-rate", "TRL, transformers", "--lr", NULL},
    {"lr-scheduler-type lr-decay-style", "transformers, Megatron-LM", "--schedule", NULL},
    {"warmup-steps lr-warmup-iters", "transformers, Megatron-LM", "--warmup", "in updates"},
    {"max-grad-norm", "TRL, transformers", "--clip-grad", NULL},
    {"batch-size global-batch-size train-batch-size ppo-mini-batch-size", "Megatron-LM, verl, AReaL", "--batch",
     "samples of an update; in grpo --prompts times --group-size, in --updates-per-batch updates"},
    {"max-steps train-iters total-training-steps num-rollout", "TRL, Megatron-LM, verl, slime", "--steps",
     "in updates"},
    {"num-train-epochs total-epochs", "TRL, verl", "--epochs", NULL},
    {"max-length max-seq-length max-seq-len cutoff-len seq-length model-max-length", "TRL, LLaMA-Factory, Megatron-LM",
     "--truncate", "nothing is cut by default; a sample over --budget is an error"},
    {"gradient-checkpointing recompute-granularity", "transformers, Megatron-LM", "--recompute", NULL},
    {"model-name-or-path hf-checkpoint load", "TRL, slime, Megatron-LM", "--model", NULL},
    {"dataset-name train-files prompt-data train-data-path", "TRL, verl, slime", "--data", "a file of JSON lines"},
    {"output-dir save default-local-dir", "TRL, Megatron-LM, verl", "--run", "a folder with everything of the run"},
    {"save-steps save-interval save-freq", "TRL, Megatron-LM, verl", "--checkpoint-every",
     "an interval of time or updates"},
    {"eval-steps eval-interval test-freq", "TRL, Megatron-LM, verl", "--eval-every", NULL},
    {"report-to", "transformers", "--sinks", "W&B: python -m ravel.wandb RUN"},
    {"tensor-model-parallel-size tensor-parallel-size", "Megatron-LM, verl, vLLM", "--tp", NULL},
    {"context-parallel-size ulysses-sequence-parallel-size", "Megatron-LM, verl", "--cp", NULL},
    {"pipeline-model-parallel-size", "Megatron-LM, verl", "--pp", NULL},
    {"num-layers-per-virtual-pipeline-stage virtual-pipeline-model-parallel-size", "Megatron-LM", "--vpp",
     "chunks per stage"},
    {"nproc-per-node num-processes", "torchrun, accelerate", "--ranks", NULL},
    {"fsdp zero-stage use-distributed-optimizer", "transformers, DeepSpeed, Megatron-LM", "--shard",
     "params, states or none"},
    {"loss-agg-mode loss-type calculate-per-token-loss", "verl, TRL, Megatron-LM", "--aggregation", "verl's names"},
    /* reinforcement learning */
    {"num-generations n-samples-per-prompt rollout-n n-samples", "TRL, slime, verl, AReaL", "--group-size", NULL},
    {"rollout-batch-size num-prompts-per-step", "slime, NeMo-RL", "--prompts", NULL},
    {"max-completion-length max-response-length rollout-max-response-len max-new-tokens", "TRL, verl, slime, AReaL",
     "--max-tokens", NULL},
    {"kl-coef kl-loss-coef reference-policy-kl-penalty kl-beta", "verl, slime, NeMo-RL", "--kl", NULL},
    {"epsilon clip-ratio eps-clip clip-ratio-low", "TRL, verl, slime", "--clip-low", "and --clip-high"},
    {"epsilon-high clip-ratio-high eps-clip-high", "TRL, verl, slime", "--clip-high", NULL},
    {"advantage-estimator adv-estimator", "slime, verl", "--advantage", NULL},
    {"importance-sampling-level", "TRL", "--ratio", "sequence is GSPO's"},
    {"max-staleness max-head-offpolicyness", "TRL, AReaL", "--async", NULL},
    {"reward-funcs custom-rm-path custom-reward-function reward-fn", "TRL, slime, verl", "--reward-command",
     "a program: rows in, numbers out"},
    {"ppo-epochs num-iterations", "verl, TRL", "--updates-per-batch", NULL},
    /* weights */
    {"nrl-refit-buffer-memory-ratio refit-buffer-memory-ratio", "NeMo-RL", "--refit-memory",
     "and RAVEL_REFIT_BUFFER_MEMORY_RATIO; the ratio is of all buffers of a rank together, there it is of each"},
    {"nrl-refit-num-buffers", "NeMo-RL", "--refit-buffers", "and RAVEL_REFIT_NUM_BUFFERS"},
    {"update-weights-bucket-size update-weight-buffer-size", "verl, slime", "--refit-buffer-size",
     "buffers are reused; a tensor may be larger than one"},
    /* what is not here */
    {"gpu-memory-utilization vllm-gpu-memory-utilization mem-fraction-static", "vLLM, SGLang", NULL,
     "a generator asks for what --slots sequences need, and says how much that is"},
    {"bf16 fp16 mixed-precision dtype", "transformers", NULL,
     "a GPU multiplies in bf16 with f32 weights and states; --save-dtype is of checkpoints"},
    {"lora-rank lora-alpha lora-dropout lora-r lora-target-modules use-peft peft-config", "PEFT, TRL", NULL,
     "LoRA is not here: all weights are trained"},
    {"train-ppo", "verl", "train grpo", "the clipped ratio is there; there is no critic"},
    {"train-rloo train-reinforce train-gspo train-dapo train-dr-grpo", "TRL, verl", "train grpo",
     "--advantage, --ratio, --clip-high, --overlong-buffer and --dynamic-sampling"},
    {"train-pretrain train-finetune train-instruct", "others", "train sft", NULL},
    {"train-orpo train-kto train-simpo train-ipo train-rm train-reward", "TRL", "train dpo",
     "dpo itself; the others are not here"},
    /* ideas */
    {"packing-eff", "Megatron-LM", "throughput/packing_efficiency",
     "theirs takes bins of full size, so that fillers and cut ends count as room; ours counts bins and fillers times the budget"},
    {"cap target", "verl, slime", "--budget", "a cap is never exceeded; a target (older verl, UniRL) may be"},
    {"oversize", "verl, slime, UniRL", "--oversize",
     "error names the sample, skip leaves it out and lists it; the adapters also have alone"},
    {"bin pack microbatch micro-batch", "all", "micro-batch",
     "what one data-parallel rank runs forward and backward in one go"},
    {"global-step iteration", "all", "update",
     "one optimiser step: the same whole number of micro-steps on every rank"},
    {"weight-sync update-weights refit", "verl, slime, NeMo-RL", "refit",
     "trainers to generators; all or nothing, checksummed"},
    {"cu-seqlens", "flash-attn, Megatron-LM", "cu_seqlens", "real lengths; cu_seqlens_padded are slots"},
};
enum { WORDS = sizeof words / sizeof *words };

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

static const word *find(const char *name) {
    for (int i = 0; i < WORDS; i++)
        if (is_among(words[i].theirs, name)) return &words[i];
    return NULL;
}

int cli_word_answer(const char *name, char *text, size_t bytes) {
    const word *found = find(name);
    if (!found) return 0;
    if (!found->ours)
        (void)snprintf(text, bytes, "%s", found->note);
    else
        (void)snprintf(text, bytes, "here it is %s%s%s%s", found->ours, found->note ? " (" : "",
                       found->note ? found->note : "", found->note ? ")" : "");
    return 1;
}

/* ---- ravel words ------------------------------------------------------------------------------------------ */

typedef struct choice {
    int32_t markdown;
} choice;

static const ravel_option table[] = {
    {.name = "markdown", .type = RAVEL_OPTION_BOOL, .offset = 0, .preset = "false", .doc = "the page docs/glossary.md"},
    {0},
};

static void print_markdown(void) {
    printf(
        "# Glossary\n\n"
        "Written by `ravel words --markdown` from the table that answers unknown options (cli/words.c). `ravel words NAME` looks one\n"
        "up, however it is written; `ravel plan --micro-token-budget 8k` answers by itself.\n\n"
        "| theirs | whose | here | what differs |\n|---|---|---|---|\n");
    for (const word *w = words; w < words + WORDS; w++) {
        printf("| `");
        for (const char *c = w->theirs; *c; c++) printf(*c == ' ' ? "`, `" : *c == '-' ? "_" : "%c", *c);
        printf("` | %s | %s%s%s | %s |\n", w->who, w->ours ? "`" : "not here", w->ours ? w->ours : "",
               w->ours ? "`" : "", w->note ? w->note : "");
    }
}

static int look_up(const char *name) {
    char text[400];
    ravel_error err = RAVEL_ERROR_INIT;
    if (cli_word_answer(name + (strncmp(name, "--", 2) == 0 ? 2 : 0), text, sizeof text)) {
        printf("%s: %s\n", name, text);
        return CLI_OK;
    }
    (void)ravel_error_set(&err, RAVEL_E_DATA, "nothing is known of \"%.60s\"; ravel words lists all names", name);
    return cli_fail("words", &err);
}

int cli_words(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    choice chosen = {0};
    const char *name = NULL;
    int count = 0;
    cli_options set = {"options", table, &chosen};
    if (cli_wants_help(argc, argv)) {
        printf("usage: ravel words [NAME]\n\nWhat other systems call an option, and what it is here: ravel words "
               "ppo_max_token_len_per_gpu\n\n");
        cli_print_options(&set, 1);
        return CLI_OK;
    }
    if (cli_parse(argc, argv, &set, 1, &name, 1, &count, &err)) return cli_usage("words", &err);
    if (count) return look_up(name);
    if (chosen.markdown)
        print_markdown();
    else
        for (const word *w = words; w < words + WORDS; w++)
            printf("%-28s %s\n", w->ours ? w->ours : "(not here)", w->theirs);
    return CLI_OK;
}
