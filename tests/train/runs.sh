# Training runs as a user starts them: killed anywhere and resumed, stopped by signals, over MPI, from a config file, with
# wrong options. BUILD names the build folder. Ends with "N passed, N failed, N skipped".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; }
check() { if eval "$2"; then ok "$1"; else bad "$1: $2"; fi; }

small="--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --quiet --sinks jsonl"
sft="train sft --task sort --steps 40 --batch 16 --checkpoint-every 3 $small"
grpo="train grpo --task sort --steps 12 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --checkpoint-every 2 $small"

# step and loss of every update, the last time that it was run
losses() {
    awk -F'[:,]' '{ step = ""; loss = "";
        for (i = 1; i < NF; i++) { if ($i ~ /"step"/) step = $(i+1); if ($i ~ /"train\/loss"/) loss = $(i+1) }
        if (step != "" && loss != "") last[step + 0] = loss }
        END { for (s in last) print s, last[s] }' "$1/metrics.jsonl" | sort -n
}

# ---- killed anywhere ----
killed() { # NAME COMMAND...: kill -9 at several moments, resume each time, compare with a run that was left alone
    name=$1; shift
    "$@" --run "$dir/$name-whole" >/dev/null 2>&1 || { bad "$name: the run itself"; return; }
    losses "$dir/$name-whole" >"$dir/$name-whole.txt"
    resume="" kills=0
    for moment in 0.03 0.1 0.2 0.3 0.4 0.6; do
        # shellcheck disable=SC2086
        "$@" --run "$dir/$name-cut" $resume >/dev/null 2>&1 &
        pid=$!
        sleep $moment
        if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
        wait $pid 2>/dev/null
        [ -f "$dir/$name-cut/config.json" ] && resume=--resume
    done
    # shellcheck disable=SC2086
    "$@" --run "$dir/$name-cut" $resume >"$dir/out" 2>&1 || { bad "$name: resuming: $(tail -n 1 "$dir/out")"; return; }
    losses "$dir/$name-cut" >"$dir/$name-cut.txt"
    check "$name: $kills kills, the same losses bit for bit" 'cmp -s "$dir/$name-whole.txt" "$dir/$name-cut.txt" && [ -s "$dir/$name-cut.txt" ]'
}
# shellcheck disable=SC2086
killed sft "$ravel" $sft --ranks 2
# shellcheck disable=SC2086
killed zero "$ravel" $sft --ranks 3 --zero
# shellcheck disable=SC2086
killed grpo "$ravel" $grpo --ranks 2
# shellcheck disable=SC2086
killed async "$ravel" $grpo --ranks 2 --async 1 --tis 2

# ---- signals ----
for signal in INT TERM; do
    # shellcheck disable=SC2086
    "$ravel" $sft --steps 100000 --ranks 2 --run "$dir/$signal" >"$dir/out" 2>&1 &
    pid=$!
    for _ in $(seq 100); do [ -s "$dir/$signal/metrics.jsonl" ] && break; sleep 0.05; done
    kill -$signal $pid
    wait $pid
    code=$?
    check "SIG$signal writes a checkpoint and leaves cleanly" '[ $code = 0 ] && grep -q "^stopped after" "$dir/out" && ls -d "$dir/$signal"/checkpoints/step-* >/dev/null'
done

# ---- MPI ----
for mpi in openmpi mpich; do
    if ! command -v mpirun.$mpi >/dev/null 2>&1 || [ ! -f "$BUILD/libravel_$mpi.so" ]; then
        skipped=$((skipped + 1)); echo "  skip  training over $mpi: it is not installed"; continue
    fi
    flags=""
    [ $mpi = openmpi ] && flags="--allow-run-as-root --oversubscribe --quiet"
    # shellcheck disable=SC2086
    timeout 120 mpirun.$mpi $flags -n 2 "$ravel" $sft --ranks 2 --run "$dir/$mpi" >"$dir/out" 2>&1
    losses "$dir/$mpi" >"$dir/$mpi.txt" 2>/dev/null
    check "$mpi: the same losses as on threads" 'cmp -s "$dir/sft-whole.txt" "$dir/$mpi.txt"'
    # shellcheck disable=SC2086
    timeout 120 mpirun.$mpi $flags -n 3 "$ravel" $grpo --ranks 2 --run "$dir/$mpi-grpo" >"$dir/out" 2>&1
    losses "$dir/$mpi-grpo" >"$dir/$mpi-grpo.txt" 2>/dev/null
    check "$mpi: the same GRPO losses as on threads" 'cmp -s "$dir/grpo-whole.txt" "$dir/$mpi-grpo.txt"'
done

# ---- configuration ----
cat >"$dir/config.json" <<'J'
{"task": "sort", "steps": 3, "batch": 8, "hidden": 32, "layers": 1, "heads": 2, "kv-heads": 1, "head-dim": 16,
 "ffn": 64, "budget": "1k", "quiet": true}
J
"$ravel" train sft --config "$dir/config.json" --steps 2 --run "$dir/config" >"$dir/out" 2>&1
check "flags go before the config file" 'grep -q "done after 2 updates" "$dir/out" && grep -q "\"hidden\": 32" "$dir/config/config.json"'
"$ravel" train sft --config "$dir/config/config.json" --run "$dir/again" >"$dir/out" 2>&1
check "a run's config.json starts the same run" 'grep -q "done after 2 updates" "$dir/out"'
refuse() { # WHAT SAYS ARGS...
    what=$1 says=$2; shift 2
    "$ravel" train "$@" >"$dir/out" 2>&1
    code=$?
    check "$what" '[ $code = 2 ] && grep -q -e "$says" "$dir/out"'
}
refuse "a mistyped option gets a suggestion" "did you mean --steps" sft --task sort --stpes 3
refuse "a mistyped key gets a suggestion" 'did you mean "steps"' sft --config /dev/stdin <<'J'
{"stpes": 3}
J
refuse "no data" "give one of --data" sft
refuse "a wrong kind" "did you mean grpo" grop
refuse "a group of one" "2 or more" grpo --group-size 1
"$ravel" train sft --task sorting --run "$dir/none" >"$dir/out" 2>&1
check "an unknown task is named with the right ones" 'grep -q "did you mean \"sort\"" "$dir/out"'
"$ravel" train sft --config "$dir/config.json" --run "$dir/config" >"$dir/out" 2>&1
check "a run is not written over" 'grep -q "holds a run already" "$dir/out"'

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
