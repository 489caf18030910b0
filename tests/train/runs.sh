# Training runs as a user starts them: killed anywhere and resumed, stopped by signals, over MPI, from a config file, with
# wrong options. BUILD names the build folder. Ends with "N passed, N failed, N skipped".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d) pid=""
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' TERM INT
passed=0 failed=0 skipped=0
. tests/options.sh
. tests/mpirun.sh
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; }
check() { if eval "$2"; then ok "$1"; else bad "$1: $2"; fi; }

small="--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --quiet --sinks jsonl"
sft="train sft --task sort --steps 60 --batch 16 --checkpoint-every 3 $small"
grpo="train grpo --task sort --steps 12 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 --checkpoint-every 2 --entropy 0.05 $small"

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
    for moment in 0.05 0.1 0.15 0.2 0.3 0.4 0.6; do
        # shellcheck disable=SC2086
        "$@" --run "$dir/$name-cut" $resume >/dev/null 2>&1 &
        pid=$!
        sleep $moment
        if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
        wait $pid 2>/dev/null; pid=""
        if ls "$dir/$name-cut/checkpoints" 2>/dev/null | grep -q ^step; then resume=--resume; else rm -rf "$dir/$name-cut"; fi
    done
    # shellcheck disable=SC2086
    "$@" --run "$dir/$name-cut" $resume >"$dir/out" 2>&1 || { bad "$name: resuming: $(tail -n 1 "$dir/out")"; return; }
    losses "$dir/$name-cut" >"$dir/$name-cut.txt"
    check "$name: $kills kills, the same losses bit for bit" 'cmp -s "$dir/$name-whole.txt" "$dir/$name-cut.txt" && [ -s "$dir/$name-cut.txt" ]'
}
# shellcheck disable=SC2086
killed sft "$ravel" $sft --ranks 2
# shellcheck disable=SC2086
killed params "$ravel" $sft --ranks 3 --shard params --moments bf16
# shellcheck disable=SC2086
killed grpo "$ravel" $grpo --ranks 2
# shellcheck disable=SC2086
killed async "$ravel" $grpo --ranks 2 --async 1 --correction tis

# ---- signals ----
for signal in INT TERM; do
    # shellcheck disable=SC2086
    "$ravel" $(usual "$sft" --steps) --steps 100000 --ranks 2 --run "$dir/$signal" >"$dir/out" 2>&1 &
    pid=$!
    for _ in $(seq 1200); do grep -q train/loss "$dir/$signal/metrics.jsonl" 2>/dev/null && break; sleep 0.05; done
    kill -$signal $pid
    wait $pid
    code=$? pid=""
    check "SIG$signal writes a checkpoint and leaves cleanly" '[ $code = 0 ] && grep -q "^stopped after" "$dir/out" && ls -d "$dir/$signal"/checkpoints/step-* >/dev/null'
done

# Another process: with a checkpoint and without an end, then with both.
# shellcheck disable=SC2086
"$ravel" $(usual "$sft" --steps --checkpoint-every) --steps 100000 --checkpoint-every 0 --ranks 2 --run "$dir/stop" >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do grep -q train/loss "$dir/stop/metrics.jsonl" 2>/dev/null && break; sleep 0.05; done
"$ravel" stop "$dir/stop" --save >"$dir/said" 2>&1
for _ in $(seq 1200); do ls -d "$dir"/stop/checkpoints/step-* >/dev/null 2>&1 && break; sleep 0.05; done
check "ravel stop --save writes a checkpoint, and the run goes on" 'ls -d "$dir"/stop/checkpoints/step-* >/dev/null && kill -0 $pid'
"$ravel" stop "$dir/stop" >"$dir/said" 2>&1
code=$?
wait $pid; ended=$? pid=""
check "ravel stop ends a run" '[ $code = 0 ] && [ $ended = 0 ] && grep -q "^stopped after" "$dir/out" && grep -q "stop has ended; its newest checkpoint is .*stop/checkpoints/step-" "$dir/said"'
"$ravel" stop "$dir/stop" >"$dir/said" 2>&1
check "... and says where none runs" '[ $? = 1 ] && grep -q "no process trains in .*stop" "$dir/said"'

# A closed terminal: a checkpoint is written, and the run goes on.
# shellcheck disable=SC2086
"$ravel" $(usual "$sft" --steps --checkpoint-every) --steps 100000 --checkpoint-every 0 --run "$dir/HUP" >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do grep -q train/loss "$dir/HUP/metrics.jsonl" 2>/dev/null && break; sleep 0.05; done
kill -HUP $pid
for _ in $(seq 1200); do ls -d "$dir/HUP"/checkpoints/step-* >/dev/null 2>&1 && break; sleep 0.05; done
check "SIGHUP writes a checkpoint" 'ls -d "$dir/HUP"/checkpoints/step-* >/dev/null 2>&1'
lines=$(wc -l <"$dir/HUP/metrics.jsonl")
for _ in $(seq 1200); do [ "$(wc -l <"$dir/HUP/metrics.jsonl")" -gt "$lines" ] && break; sleep 0.05; done
check "... and the run goes on" '[ "$(wc -l <"$dir/HUP/metrics.jsonl")" -gt "$lines" ] && kill -0 $pid'
kill -INT $pid; wait $pid; pid=""
# What Ctrl-C prints is enough to go on, and so is what the end of a run prints.
printed() { sed -n "s|^ *$1 *ravel |\"$ravel\" |p" "$dir/out"; }
command=$(printed "resume with")
check "Ctrl-C prints the checkpoint" 'grep -q "^  checkpoint  *$dir/HUP/checkpoints/step-0" "$dir/out"'
step=$(sed -n 's/^stopped after \([0-9]*\) .*/\1/p' "$dir/out")
eval "$command --steps $((step + 2))" >"$dir/out" 2>&1
check "... and a command that resumes: $command" 'grep -q "^done after $((step + 2)) updates" "$dir/out"'
command=$(printed "train further with")
eval "$(echo "$command" | sed "s/--steps [0-9]*/--steps $((step + 4))/")" >"$dir/out" 2>&1
check "the end of a run prints one that trains further" 'grep -q "^done after $((step + 4)) updates" "$dir/out"'
# shellcheck disable=SC2086
"$ravel" train sft --task sort --steps 40 --batch 8 --hidden 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 \
    --lr 0.003 --sinks jsonl --run "$dir/piped" 2>&1 | head -n 1 >/dev/null
check "a reader that leaves after a line does not end a run" '[ "$(grep -c time/update_sec "$dir/piped/metrics.jsonl")" = 40 ] && [ -d "$dir/piped/checkpoints/step-00000040" ]'
check "checkpoints come every ten minutes unless told otherwise" 'grep -q "\"checkpoint-every\": \"10m\"" "$dir/piped/config.json"'

# A data file that is cut short: a sentence, what was learnt is saved, and the run goes on when the file is back.
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "{\"prompt\": \"p%d\", \"response\": \"abc\"}\n", i }' >"$dir/cut.jsonl"
cp "$dir/cut.jsonl" "$dir/uncut.jsonl"
# shellcheck disable=SC2086
"$ravel" train sft --data "$dir/cut.jsonl" --steps 100000 --batch 16 --checkpoint-every 0 $small --run "$dir/cut" >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do [ -s "$dir/cut/metrics.jsonl" ] && break; sleep 0.05; done
truncate -s 1000 "$dir/cut.jsonl"
wait $pid
code=$? pid=""
check "a data file that is cut short ends a run with a sentence" '[ $code = 1 ] && grep -qE "^ravel train: .*cut.jsonl(: it was cut short| changed while)" "$dir/out"'
step=$(ls "$dir/cut/checkpoints" 2>/dev/null | sed -n 's/^step-0*//p' | tail -n 1)
cp "$dir/uncut.jsonl" "$dir/cut.jsonl"
"$ravel" train sft --run "$dir/cut" --resume --steps $((${step:-0} + 2)) >"$dir/out" 2>&1
check "... and a checkpoint, from which it goes on (${step:-none})" '[ -n "$step" ] && grep -q "^done after $((step + 2)) updates" "$dir/out"'

# ---- a terminal ----
# shellcheck disable=SC2086
on_terminal() { python3 tests/metrics/live_line.py "$ravel" $(usual "$grpo" --steps --quiet) --steps 4 --show-every 2 "$@" >"$dir/screen" 2>&1; }
on_terminal --run "$dir/screen-run"
check "an answer is shown now and then, with its reward" '[ "$(grep -c "update [0-9]*, reward [-0-9.e]*: \".*\" -> \"" "$dir/screen")" = 2 ]'
RAVEL_TEST_TERM=dumb on_terminal --run "$dir/dumb-run"
check "no escapes where TERM=dumb" 'grep -q "reward" "$dir/screen" && ! grep -q "$(printf "\033")" "$dir/screen"'
check "an answer per batch is kept" '[ "$(wc -l <"$dir/dumb-run/samples.jsonl")" = 4 ] && grep -q "\"response\": .*\"answer\": " "$dir/dumb-run/samples.jsonl"'

# ---- the index beside the data ----
python3 -c "
import sys
row = '{\"input_ids\": [' + ', '.join(['7'] * 2000) + ']}\n'
open(sys.argv[1], 'w').write(row * 2900)" "$dir/large.jsonl"
# shellcheck disable=SC2086
"$ravel" train sft --data "$dir/large.jsonl" --steps 1 --batch 2 $(usual "$small" --budget) --budget 2048 --run "$dir/large" >"$dir/out" 2>&1
check "the check before training leaves an index of a large file's rows" '[ $? = 0 ] && [ "$(wc -c <"$dir/large.jsonl.rows")" = $((8 * (2900 + 7))) ]'
stamp=$(stat -c %Y.%i "$dir/large.jsonl.rows")
"$ravel" feed --data "$dir/large.jsonl" --budget 2k --samples 4 --updates 1 >"$dir/out" 2>&1
check "... which the feed reads" '[ $? = 0 ] && [ "$(stat -c %Y.%i "$dir/large.jsonl.rows")" = "$stamp" ]'

# ---- MPI ----
for mpi in openmpi mpich; do
    if ! command -v mpirun.$mpi >/dev/null 2>&1 || [ ! -f "$BUILD/libravel_$mpi.so" ]; then
        skipped=$((skipped + 1)); echo "  skip  training over $mpi: it is not installed"; continue
    fi
    timeout 300 mpirun.$mpi -n 2 "$ravel" $sft --ranks 2 --run "$dir/$mpi" >"$dir/out" 2>&1
    losses "$dir/$mpi" >"$dir/$mpi.txt" 2>/dev/null
    check "$mpi: the same losses as on threads" 'cmp -s "$dir/sft-whole.txt" "$dir/$mpi.txt"'
    # shellcheck disable=SC2086
    timeout 300 mpirun.$mpi -n 3 "$ravel" $(usual "$sft" --steps --quiet) --steps 1 --run "$dir/$mpi-said" >"$dir/out" 2>&1
    check "$mpi: what a run takes is said once" '[ "$(grep -c "trainer ranks: 3" "$dir/out")" = 1 ]'
    # shellcheck disable=SC2086
    timeout 300 mpirun.$mpi -n 3 "$ravel" $grpo --ranks 2 --run "$dir/$mpi-grpo" >"$dir/out" 2>&1
    losses "$dir/$mpi-grpo" >"$dir/$mpi-grpo.txt" 2>/dev/null
    # shellcheck disable=SC2086
    mpirun.$mpi -n 2 "$ravel" $(usual "$sft" --steps --checkpoint-every) --steps 100000 --checkpoint-every 0 --ranks 2 --run "$dir/$mpi-stop" >"$dir/out.stop" 2>&1 &
    pid=$!
    for _ in $(seq 1200); do grep -q train/loss "$dir/$mpi-stop/metrics.jsonl" 2>/dev/null && break; sleep 0.05; done
    "$ravel" stop "$dir/$mpi-stop" >"$dir/said" 2>&1
    wait $pid; code=$? pid=""
    check "$mpi: ravel stop ends all ranks, with a checkpoint" '[ $code = 0 ] && grep -q "^stopped after" "$dir/out.stop" && grep -q "newest checkpoint" "$dir/said"'
    check "$mpi: the same GRPO losses as on threads" 'cmp -s "$dir/grpo-whole.txt" "$dir/$mpi-grpo.txt"'
done

# ---- memory ----
# What is announced is what the process takes, within 10 %: a model and a budget large enough for the rest not to count,
# and full bins, since memory that no token touches is not taken.
told=$(python3 - "$ravel" "$dir" <<'P'
import re, resource, subprocess, sys
units = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
mock = '{"mode":"distribution","type":"uniform","min_seq_len":1000,"max_seq_len":1024}'
run = subprocess.run([sys.argv[1], "train", "sft", "--mock", mock, "--budget", "4k", "--batch", "8", "--steps", "1",
                      "--hidden", "256", "--ffn", "768", "--threads", "2", "--run", sys.argv[2] + "/memory", "--no-checkpoint-end"],
                     capture_output=True, text=True)
said = re.search(r"memory per trainer: ([\d.]+) (\w+)", run.stderr)
taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print("%.0f %.0f" % (float(said.group(1)) * units[said.group(2)], taken))
P
)
check "memory as announced: $told MiB" 'echo "$told" | awk "{ exit !(\$2 > 0.9 * \$1 && \$2 < 1.1 * \$1) }"'

# ---- a full disk ----
# A limit on the size of files stands in for it: the run ends with a sentence, earlier checkpoints stay as they are.
# shellcheck disable=SC2086
"$ravel" $(usual "$sft" --steps) --run "$dir/full" --steps 3 >/dev/null 2>&1
# shellcheck disable=SC2086
(trap '' XFSZ; ulimit -f 64; "$ravel" $(usual "$sft" --steps) --run "$dir/full" --resume --steps 9 >"$dir/out" 2>&1)
code=$?
check "a full disk is a sentence" '[ $code = 1 ] && grep -q "cannot write" "$dir/out"'
check "... and leaves the last checkpoint alone" '[ "$(ls "$dir/full/checkpoints")" = step-00000003 ]'

# ---- configuration ----
cat >"$dir/config.json" <<'J'
{"task": "sort", "steps": 3, "batch": 8, "hidden": 32, "layers": 1, "heads": 2, "kv-heads": 1, "head-dim": 16,
 "ffn": 64, "budget": "1k", "quiet": true}
J
"$ravel" train sft --config "$dir/config.json" --steps 2 --run "$dir/config" >"$dir/out" 2>&1
check "flags override the config file" 'grep -q "done after 2 updates" "$dir/out" && grep -q "\"hidden\": 32" "$dir/config/config.json"'
"$ravel" train sft --config "$dir/config/config.json" --run "$dir/again" >"$dir/out" 2>&1
check "a run's config.json starts the same run" 'grep -q "done after 2 updates" "$dir/out"'
"$ravel" train sft --run "$dir/config" --resume --steps 4 >"$dir/out" 2>&1
check "a run is resumed without its flags" 'grep -q "done after 4 updates" "$dir/out"'
for wrong in "--steps 6 --hidden 64" "--steps 3"; do
    # shellcheck disable=SC2086
    "$ravel" train sft --run "$dir/config" --resume $wrong >"$dir/out" 2>&1
    code=$?
    check "a run is not resumed with $wrong" '[ $code != 0 ] && grep -q "must be \[320, 64\]\|has done 4 updates" "$dir/out"'
done
"$ravel" train sft --run "$dir/config" --resume >"$dir/out" 2>&1
check "... and its configuration stays what it was" 'grep -q "done after 4 updates" "$dir/out" && grep -q "\"hidden\": 32" "$dir/config/config.json"'
long=$(printf '{"max_seq_len": 64%30000s}' ' ')
# shellcheck disable=SC2086
"$ravel" train sft --mock "$long" --batch 4 $small --steps 1 --run "$dir/long" >"$dir/out" 2>&1
"$ravel" train sft --run "$dir/long" --resume --steps 2 >"$dir/out" 2>&1
check "an option of 30,000 bytes is stored whole and read again" 'grep -q "done after 2 updates" "$dir/out" && [ "$(wc -c <"$dir/long/config.json")" -gt 30000 ]'
printf '%s\n' '{"prompt": "a", "response": "b"}' 'nonsense' '{"text": "c"}' >"$dir/rows.jsonl"
# shellcheck disable=SC2086
"$ravel" train sft --data "$dir/rows.jsonl" --epochs 2 --batch 1 $small --bad-rows skip --run "$dir/rows" >"$dir/out" 2>&1
check "rows that are skipped are counted and named" 'grep -q "1 bad row is skipped" "$dir/out" && grep -q "rows.jsonl:2: " "$dir/out" && grep -q "done after 6 updates" "$dir/out"'
eval "$(printed "train further with")" >"$dir/out" 2>&1
check "a run of --epochs prints a command that trains further" 'grep -q "done after 12 updates" "$dir/out"'
for kind in sft dpo grpo; do
    missing=$("$ravel" train $kind --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' |
        while read -r name; do grep -q -e "Fl -$name\b" docs/man/ravel-train.1 || echo "$name"; done)
    check "every option of train $kind is in the man page" '[ -z "$missing" ]'
done
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
