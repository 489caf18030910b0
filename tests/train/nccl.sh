# The trainer over NCCL's communicators, without GPUs: kernels, streams and NCCL are the stub's (tests/stub), which adds in the order of
# ranks. Losses are those of host communicators to the bit; faults are planted, a rank is killed. BUILD names the build folder.
# Ends with "N passed, N failed, N skipped".
set -u
. tests/ports.sh
ravel=$BUILD/ravel dir=$(mktemp -d) pids=""
trap 'for p in $pids; do kill $p 2>/dev/null; done; rm -rf "$dir"' EXIT # timeout passes it on
passed=0 failed=0
. tests/options.sh
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; }
check() { if eval "$2"; then ok "$1"; else bad "$1: $2: $(tail -n 1 "$dir/out")"; fi; }
RAVEL_TRAIN_CUDA_MODULE=$(realpath "$BUILD/libravel_train_stub.so")
RAVEL_CUDA_MODULE=$RAVEL_TRAIN_CUDA_MODULE RAVEL_NCCL_MODULE=$RAVEL_TRAIN_CUDA_MODULE RAVEL_STUB_GPUS=16
export RAVEL_TRAIN_CUDA_MODULE RAVEL_CUDA_MODULE RAVEL_NCCL_MODULE RAVEL_STUB_GPUS

shape="--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64"
model="--budget 256 --lr 0.003 --kernels cuda --sinks jsonl --timeout 60"
losses() { grep -o '"train/loss":[^,]*\|"train/grad_norm":[^,]*' "$dir/$1/metrics.jsonl" >"$dir/$1.txt" 2>/dev/null; }
# shellcheck disable=SC2086
run() { # NAME WIRE OPTIONS...
    into=$1 wire=$2 kind=$3; shift 3
    timeout 300 "$ravel" train "$kind" $(usual "$shape $model" "$@") --comm-device "$wire" --run "$dir/$into" "$@" >"$dir/out" 2>&1
    code=$?
    losses "$into"
    return $code
}
same() { [ -s "$dir/$1.txt" ] && grep -qv ':-\?0$' "$dir/$1.txt" && cmp -s "$dir/$1.txt" "$dir/$2.txt"; }
pair() { # NAME OPTIONS...: over host memory, and over NCCL
    name=$1; shift
    run "$name-host" host "$@" || { bad "$name, host: $(tail -n 1 "$dir/out")"; return; }
    run "$name-nccl" nccl "$@" || { bad "$name, nccl: $(tail -n 1 "$dir/out")"; return; }
    check "$name: the losses of host communicators to the bit" 'same "$name-host" "$name-nccl"'
}
layout() { # NAME OPTIONS
    # shellcheck disable=SC2086
    pair "$1" sft --task sort --steps 2 --batch 16 $2
}
layout one "--ranks 1"
layout dp "--ranks 2"
layout states "--ranks 2 --shard states"
layout params "--ranks 2 --shard params"
layout tp "--ranks 2 --tp 2 --no-sequence-parallel"
layout sequence "--ranks 2 --tp 2"
layout cp "--ranks 2 --cp 2"
layout ring "--ranks 3 --cp 3"
layout pool "--ranks 2 --cp-pool 2"
layout pp "--ranks 2 --pp 2"
layout vpp "--ranks 2 --pp 2 --vpp 2 --layers 4"
layout long "--ranks 3 --pp 3 --vpp 2 --layers 6"
layout tp-pp "--ranks 4 --tp 2 --pp 2"
layout all "--ranks 8 --tp 2 --cp 2 --pp 2 --shard params"
experts="--experts 8 --experts-active 2 --expert-ffn 32 --router-aux 0.05"
layout ep "$experts --ranks 4 --ep 2"
layout ep-all "$experts --ranks 8 --ep 4 --tp 2 --cp 2 --shard params"
windowed() { # NAME OPTIONS...: a window of 6 tokens
    name=$1 new=$shape; shift
    shape="--model tests/golden/archs/mistral"
    pair "$name" sft --mock '{"mode": "distribution", "type": "uniform", "min_seq_len": 3, "max_seq_len": 40, "count": 64, "seed": 5}' \
        --batch 12 --steps 2 "$@"
    shape=$new
}
windowed window --ranks 3 --cp 3
windowed window-pool --ranks 4 --cp-pool 4 --budget 16
awk 'BEGIN { for (i = 0; i < 32; i++) printf "{\"prompt\": \"p%d\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", i, substr("abc", 1, 1 + i % 3), substr("xyz", 1, 1 + i % 2) }' >"$dir/pairs.jsonl"
pair dpo dpo --data "$dir/pairs.jsonl" --batch 8 --steps 2 --ranks 2 --shard params
pair dpo-cp dpo --data "$dir/pairs.jsonl" --batch 8 --steps 2 --ranks 6 --tp 2 --cp 3 --shard params
pair dpo-pool dpo --data "$dir/pairs.jsonl" --batch 8 --steps 2 --ranks 4 --cp-pool 4 --budget 12
pair dpo-pp dpo --data "$dir/pairs.jsonl" --batch 8 --steps 2 --ranks 4 --tp 2 --pp 2
for mesh in "--ranks 2" "--ranks 4 --tp 2 --pp 2 --generators 2"; do
    # shellcheck disable=SC2086
    pair "grpo $mesh" grpo --task copy --steps 2 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --entropy 0.05 --kl 0.1 --refit collective $mesh
done
check "a run says over what arrays travel" 'grep -q "^trainers exchange arrays over NCCL" "$dir/out"'
RAVEL_STUB_GPUS=1 run shared auto sft --task sort --steps 1 --batch 16 --ranks 2
check "auto, trainers that share a GPU: through host memory, and why" 'grep -q "through host memory: trainers share GPU 0" "$dir/out"'
RAVEL_STUB_GPUS=1 run shared nccl sft --task sort --steps 1 --batch 16 --ranks 2
check "nccl, trainers that share a GPU: refused" '[ $code != 0 ] && grep -q "NCCL takes one rank per GPU; say --comm-device host" "$dir/out"'
RAVEL_NCCL_MODULE=/none run missing auto sft --task sort --steps 1 --batch 16 --ranks 2
check "auto without NCCL's module: through host memory" '[ $code = 0 ] && grep -q "through host memory: .*none" "$dir/out"'

# Exposed communication is what the GPU waits, not what the host takes to ask for it: NCCL's operations are slow here.
waits() { # NAME FIELD SECONDS: whether rank 0 waited for as long in an update
    grep -o "\"$2\": [^,]*" "$dir/$1/timeline.jsonl" | awk -v most="$3" '$2 > most { found = 1 } END { exit !found }'
}
RAVEL_STUB_SLOW=nccl run slow-tp nccl sft --task sort --steps 2 --batch 16 --ranks 2 --tp 2
check "time that kernels wait for tensor-parallel ranks" '[ $code = 0 ] && waits slow-tp tp_wait 0.001 && same sequence-nccl slow-tp'
RAVEL_STUB_SLOW=nccl run slow-cp nccl sft --task sort --steps 2 --batch 16 --ranks 3 --cp 3
check "time that kernels wait for context-parallel ranks" '[ $code = 0 ] && waits slow-cp cp_wait 0 && same ring-nccl slow-cp'
RAVEL_STUB_SLOW=nccl run slow-params nccl sft --task sort --steps 2 --batch 16 --ranks 2 --shard params
check "time that kernels wait for sharded weights" '[ $code = 0 ] && grep -q "shard/exposed_share\":0\.[0-9]*[1-9]" "$dir/slow-params/metrics.jsonl" && same params-nccl slow-params'

# The same as processes that meet over TCP.
tcp() { # NAME RANKS OPTIONS...
    name=$1 count=$2 kind=$3; shift 3
    free_port
    pids=""
    for rank in $(seq 0 $((count - 1))); do
        # shellcheck disable=SC2086
        RANK=$rank WORLD_SIZE=$count LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 300 "$ravel" train "$kind" $(usual "$shape $model" "$@") \
            --comm-device nccl --run "$dir/$name" "$@" >"$dir/$name-$rank.out" 2>&1 &
        pids="$pids $!"
    done
}
finish() { codes=""; for p in $pids; do wait "$p"; codes="$codes $?"; done; pids=""; }
tcp tcp 4 sft --task sort --steps 2 --batch 16 --tp 2 --pp 2
finish
losses tcp
check "four processes over TCP: the same bits" 'same tp-pp-nccl tcp'

# Faults. A planted one must be noticed: other losses, or an error. Kernels are slow, so that whoever does not wait for them is early.
for fault in events order; do
    RAVEL_STUB_SLOW=kernels RAVEL_STUB_PLANT=$fault run planted nccl sft --task sort --steps 2 --batch 16 --ranks 2 --shard params --timeout 5
    check "planted: $fault" '[ $code != 0 ] || ! same params-nccl planted'
    rm -rf "$dir/planted"
done
begun=$(date +%s)
RAVEL_STUB_PLANT=hang run hang nccl sft --task sort --steps 20 --batch 16 --ranks 2 --pp 2 --timeout 3
check "NCCL hangs: every rank returns an error at its deadline" '[ $code = 1 ] && [ $(($(date +%s) - begun)) -lt 60 ]'
tcp lost 3 sft --task sort --steps 4000 --batch 16 --shard params --timeout 20
for _ in $(seq 600); do grep -q train/loss "$dir/lost/metrics.jsonl" 2>/dev/null && break; sleep 0.1; done
set -- $pids
victim=$(child_of "$3")
kill -9 $victim "$3" 2>/dev/null
begun=$(date +%s)
finish
check "a rank is killed: the others end with an error within the deadline" 'echo "$codes" | grep -q "^ 1 1 " && [ $(($(date +%s) - begun)) -lt 60 ]'
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
