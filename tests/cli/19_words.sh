# Names of other systems are answered: on the command line, in configurations, as commands; and the glossary is current.
. tests/cli/lib.sh
"$RAVEL" words --markdown >"$T/page" && cmp -s "$T/page" docs/glossary.md && ok "docs/glossary.md is what ravel words --markdown writes" || bad "docs/glossary.md is what ravel words --markdown writes"
missing=""
for name in micro_token_budget ppo_max_token_len_per_gpu max_tokens_per_gpu sequence_packing_scheduler sft_mock_dataset_config_json num_microbatches \
    NRL_REFIT_BUFFER_MEMORY_RATIO warmup_ratio entropy_coeff expert_model_parallel_size logging_steps save_total_limit resume_from_checkpoint adam_beta1 \
    lr_warmup_steps clip_ratio_c deepspeed load_best_model_at_end num_epochs actor_rollout_ref.actor.ppo_max_token_len_per_gpu --loss_agg_mode \
    --learning-rate=1e-5 rollout.n; do
    "$RAVEL" words "$name" >/dev/null 2>&1 || missing="$missing $name"
done
[ -z "$missing" ] && ok "names that people look for" || bad "names that people look for" "$missing"
answers() { # NAME SENTENCE ARGS...
    name=$1 sentence=$2; shift 2
    "$RAVEL" "$@" >"$T/said" 2>&1; code=$?
    [ $code = 2 ] && grep -qF -e "$sentence" "$T/said" && ok "$name" || bad "$name" "$code: $(cat "$T/said")"
}
answers "an option instead of a command" 'there is no command "--micro-token-budget"; here it is --budget' --micro-token-budget 8k
answers "help for an option" 'there is no command "micro-token-budget"; here it is --budget' help micro-token-budget
answers "a kind of training" 'train grpo' train ppo
answers "an option that another command has" 'other commands call it --lr' plan --learning-rate 1
answers "samples per device are a batch" 'here it is --batch' train sft --per_device_train_batch_size 8
answers "W&B" 'python -m ravel.wandb RUN' train sft --task sort --sinks wandb --run "$T/refused"
answers "no budget" '--method count --count N' plan --mock '{}' --budget null
printf 'steps: 3\nlearning_rate: 1\n' >"$T/theirs.yaml"
answers "a configuration" 'theirs.yaml: line 2: unknown option "learning_rate"; here it is --lr' train sft --task sort --config "$T/theirs.yaml" --run "$T/refused"
finish
