# The trainer on memory that the host can't touch (tests/stub/train_set.c in place of CUDA's kernels): whole runs give the
# losses of the CPU's kernels to the bit. BUILD names the build folder. Ends with "N passed, N failed, N skipped".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
. tests/options.sh
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; }
RAVEL_TRAIN_CUDA_MODULE=$(realpath "$BUILD/libravel_train_stub.so")
export RAVEL_TRAIN_CUDA_MODULE

small="--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --quiet --sinks jsonl"
losses() { grep -o '"train/loss":[^,]*\|"train/grad_norm":[^,]*' "$1/metrics.jsonl"; }

# Without sharing of prefixes, which only the CPU's kernels do: it adds in another order.
same() { # NAME COMMAND...: the run with the CPU's kernels, and with the stub's
    name=$1; shift; set -- "$@" --share-prefix off
    for kernels in cpu cuda; do
        "$ravel" train "$@" --kernels $kernels --run "$dir/$name-$kernels" >"$dir/out" 2>&1 ||
            { bad "$name, $kernels: $(tail -n 1 "$dir/out")"; return; }
        losses "$dir/$name-$kernels" >"$dir/$name-$kernels.txt"
    done
    grep -qv ':-\?0$' "$dir/$name-cpu.txt" || { bad "$name: every loss and gradient is 0, which compares nothing"; return; }
    if [ -s "$dir/$name-cpu.txt" ] && cmp -s "$dir/$name-cpu.txt" "$dir/$name-cuda.txt"; then ok "$name: the CPU's losses to the bit"
    else bad "$name: other losses than the CPU's"; fi
}
# Which GPU a rank gets: what a run says of it.
gpus() { # NAME GPUS TEXT OPTIONS...: the text is in what the run prints; "": no GPU is shared
    name=$1 count=$2 text=$3; shift 3
    RAVEL_STUB_GPUS=$count "$ravel" train "$@" --steps 1 --hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 \
        --budget 256 --sinks jsonl --kernels cuda --comm-device host --run "$dir/gpus-$name" >"$dir/out" 2>&1
    rm -rf "$dir/gpus-$name"
    if [ -n "$text" ]; then grep -q -e "$text" "$dir/out"; else ! grep -q shared "$dir/out" && grep -q '^done' "$dir/out"; fi
    if [ $? = 0 ]; then ok "gpus, $name"; else bad "gpus, $name: $(tail -n 2 "$dir/out")"; fi
}
task="--task sort --batch 16"
# shellcheck disable=SC2086
{
gpus "one each" 4 "" sft $task --ranks 4
gpus "in turn" 2 "GPU 0 is shared by 2 ranks: .* together" sft $task --ranks 3
gpus "one for all" 4 "GPU 2 is shared by 2 ranks" sft $task --ranks 2 --device 2
gpus "a list" 4 "" sft $task --ranks 2 --device 3,1
gpus "a GPU that is not there" 2 "--device 1,5: rank 1 of this machine would be on GPU 5, and it has GPUs 0 to 1" sft $task --ranks 2 --device 1,5
gpus "no list" 2 "device is \"1,x\"; it must be auto" sft $task --device 1,x
gpus "no GPU" 0 "the stub has no GPU" sft $task
gpus "generators after trainers" 3 "" grpo --task copy --prompts 2 --group-size 2 --max-tokens 4 --eval-prompts 0 --ranks 2 --refit collective
gpus "generators beside trainers" 3 "GPU 1 is shared by 2 ranks, of which 1 generates" grpo --task copy --prompts 2 --group-size 2 --max-tokens 4 \
    --eval-prompts 0 --ranks 2 --generator-device 1 --refit collective
}
# What ranks on a GPU need is compared with what is free there (the stub's has 16 GiB).
for ranks in 1 3; do
    RAVEL_STUB_GPUS=1 RAVEL_CUDA_MODULE=$RAVEL_TRAIN_CUDA_MODULE "$ravel" train sft --task sort --shape qwen3-1.7b --kernels cuda --ranks $ranks \
        --run "$dir/too-large" >"$dir/out" 2>&1
    code=$?
    if [ $code = 1 ] && grep -q "this run needs .* on GPU 0 ($ranks rank.*), which has 16.0 GiB" "$dir/out" && [ ! -e "$dir/too-large" ]; then
        ok "gpus, a model that $ranks rank(s) cannot hold is refused"
    else bad "gpus, a model that $ranks rank(s) cannot hold: $code, $(tail -n 2 "$dir/out")"; fi
done

# shellcheck disable=SC2086
same sft sft --task sort --steps 6 --batch 16 --checkpoint-every 3 $small
# shellcheck disable=SC2086
same recompute sft --task sort --steps 3 --batch 16 --recompute full $small
# shellcheck disable=SC2086
same grpo grpo --task copy --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --entropy 0.05 --kl 0.1 $small
# Layouts: what ranks exchange goes through host memory.
layout() { # NAME OPTIONS...
    # shellcheck disable=SC2086
    same "$1" sft --task sort --steps 2 --batch 16 $(usual "$small" $2) $2
}
layout dp "--ranks 2"
layout zero "--ranks 2 --shard states --checkpoint-every 1"
layout shard "--ranks 2 --shard params --checkpoint-every 1"
layout tp "--ranks 2 --tp 2"
layout sequence "--ranks 2 --tp 2 --sequence-parallel"
layout cp "--ranks 2 --cp 2"
layout pool "--ranks 2 --cp-pool 2"
layout pp "--ranks 2 --pp 2"
layout vpp "--ranks 2 --pp 2 --vpp 2 --layers 4"
layout mesh "--ranks 16 --tp 2 --cp 2 --pp 2 --shard params"
experts="--experts 8 --experts-active 2 --expert-ffn 32 --router-aux 0.05"
layout experts "$experts --min-micro-steps 3"
layout ep "$experts --ranks 4 --ep 2"
layout ep-shard "$experts --ranks 4 --ep 2 --shard params --pp 2 --tp 1"
layout ep-all "$experts --ranks 8 --ep 4 --cp 2 --tp 2 --shard states"
# shellcheck disable=SC2086
same replay grpo --task copy --steps 4 --updates-per-batch 2 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --entropy 0.05 $small \
    --experts 8 --experts-active 2 --expert-ffn 32 --router-replay rollout
for mesh in "--ranks 4 --generators 2 --pp 2" "--ranks 4 --generators 2 --generator-tp 2 --tp 2" "--ranks 3 --shard params"; do
    # shellcheck disable=SC2086
    same "grpo $mesh" grpo --task copy --steps 2 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --entropy 0.05 --kl 0.1 $small $mesh
done
# shellcheck disable=SC2086
if "$ravel" train grpo --task copy --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --entropy 0.05 --kl 0.1 $small --refit pull --share-prefix off \
    --run "$dir/pull" >"$dir/out" 2>&1 && losses "$dir/pull" | cmp -s - "$dir/grpo-cpu.txt"
then ok "grpo: generators that pull, the same losses"
else bad "grpo, --refit pull: $(tail -n 1 "$dir/out")"; fi
# shellcheck disable=SC2086
if "$ravel" train sft --task sort --steps 8 --resume --run "$dir/sft-cuda" --quiet >"$dir/out" 2>&1; then ok "resumed"
else bad "resuming: $(tail -n 1 "$dir/out")"; fi
if "$BUILD/ravel-gpu" cuda_model_a cuda_model_l >"$dir/out" 2>&1 && grep -q "^2 passed, 0 failed, 0 skipped" "$dir/out"; then ok "the GPU's own tests of models"
else bad "the GPU's own tests: $(grep -m 3 -A 2 FAIL "$dir/out" || tail -n 3 "$dir/out")"; fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
