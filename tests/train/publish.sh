# Processes that nobody launched together: `ravel train grpo --publish` with `ravel generate --pull`, and training over TCP.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
[ -n "${RAVEL_TIMED:-}" ] || exec env RAVEL_TIMED=1 timeout 1800 sh "$0"
. tests/ports.sh
ravel=$BUILD/ravel dir=$(mktemp -d) started=""
trap 'for p in $started; do kill -9 $p 2>/dev/null; done; rm -rf "$dir"' EXIT
trap 'exit 1' TERM INT
passed=0 failed=0
. tests/options.sh
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $2"; fi; }
unset SLURM_PROCID SLURM_NTASKS SLURM_NODELIST RANK WORLD_SIZE RAVEL_PORT RAVEL_TOKEN RAVEL_TOKEN_FILE

shape="--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64"
other="--hidden 48 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64"
"$ravel" train sft --task sort --steps 2 --batch 16 $shape --budget 256 --quiet --sinks jsonl --run "$dir/start" >"$dir/out" 2>&1
"$ravel" train sft --task sort --steps 1 --batch 16 $other --budget 256 --quiet --sinks jsonl --run "$dir/other" >>"$dir/out" 2>&1
model=$dir/start/checkpoints/step-00000002
for i in 1 2 3 4 5 6; do echo "{\"prompt\": \"sort 3${i}2:\"}"; done >"$dir/prompts.jsonl"

# reap PID: waits for it; its exit status is in $code
reap() {
    wait "$1" 2>/dev/null; code=$?
    started=$(echo " $started " | sed "s/ $1 / /")
}
stop_trainer() { kill -INT $trainer; reap $trainer; }
# until_true TENTHS COMMAND: waits for it, at most so long
until_true() { n=$1; while [ "$n" -gt 0 ] && ! eval "$2"; do sleep 0.1; n=$((n - 1)); done; eval "$2"; }
# generator NAME FLAGS...: in the background, in $pid
generator() {
    name=$1; shift
    "$ravel" generate --model "$model" --pull "$address" --data "$dir/prompts.jsonl" --repeat 0 --max-tokens 6 \
        --slots 4 --threads 1 "$@" >"$dir/$name.jsonl" 2>"$dir/$name.err" &
    pid=$!
    started="$started $pid"
}

# ---- publish and pull ----
"$ravel" train grpo --task sort --model "$model" --lr 0.001 --steps 1000000 --prompts 4 --group-size 4 --max-tokens 6 \
    --eval-prompts 0 --budget 256 --ranks 2 --max-flat 0 --sinks jsonl --publish 127.0.0.1:0 --publish-linger 120 --run "$dir/run" >"$dir/train.out" 2>"$dir/train.err" &
trainer=$!
started="$started $trainer"
address=
until_true 1800 'address=$(sed -n "s/^publishing at \([^,]*\),.*/\1/p" "$dir/train.err"); [ -n "$address" ]'
generator greedy --temperature 0
greedy=$pid
generator whole --pull-commit idle --seed 3
whole=$pid
versions() { grep -c ': version [0-9]*: .* pulled' "$dir/$1.err"; } # the answers soon have hundreds of megabytes
check "a generator pulls one version after the other" 'until_true 1800 "[ \$(versions greedy) -ge 3 ]"'
check "and one that commits between answers, too" 'until_true 1800 "[ \$(versions whole) -ge 3 ]"'
generator cut --seed 5
until_true 1800 '[ -s "$dir/cut.jsonl" ]'
kill -9 $pid; reap $pid
generator again --seed 5
again=$pid
check "one that was killed and started again goes on" 'until_true 1800 "[ \$(versions again) -ge 2 ]"'
# A generator reports its speed every two seconds, and the update after that has it.
until_true 1800 'grep -q "\"refit/generator_tokens_per_sec\": *[0-9.]*[1-9]" "$dir/run/metrics.jsonl" && grep -q "\"refit/generators\": *[3-9]" "$dir/run/metrics.jsonl"'
stop_trainer
trained=$code
last=$(sed -n 's/.*"version": \([0-9]*\).*/\1/p' "$dir/run/checkpoints/"*/state.json | sort -n | tail -n 1)
until_true 1800 '[ "$(grep -c "\"version\": $last, \"last_version\": $last}" "$dir/greedy.jsonl")" -ge 12 ]' # every prompt of it twice
kill -INT $greedy; reap $greedy; ended=$code
kill -TERM $whole; reap $whole; ended=$((ended + code))
kill -INT $again; reap $again; ended=$((ended + code))
check "the trainers ended well, and the generators after them" '[ $trained = 0 ] && [ $ended = 0 ]'
step=$(ls "$dir/run/checkpoints" | tail -n 1)
"$ravel" generate --model "$dir/run/checkpoints/$step" --data "$dir/prompts.jsonl" --max-tokens 6 --temperature 0 --threads 1 >"$dir/expected"
check "the last version answers as the last checkpoint does" 'python3 -c "
import json, sys
last = int(sys.argv[3])
expected = {r[\"row\"]: r[\"response_ids\"] for r in map(json.loads, open(sys.argv[2]))}
rows = [json.loads(line) for line in open(sys.argv[1])]
rows = [r for r in rows if r[\"version\"] == last == r[\"last_version\"]]
assert len(rows) >= 6, len(rows)
assert all(r[\"response_ids\"] == expected[r[\"row\"]] for r in rows)" "$dir/greedy.jsonl" "$dir/expected" "$last"'
check "commits between answers: every answer is of one version" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows and all(r[\"version\"] == r[\"last_version\"] for r in rows)" "$dir/whole.jsonl"'
check "the trainer counted its generators, apart from their pauses" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
most = lambda name: max(r.get(name) or 0 for r in rows)
assert most(\"refit/generators\") >= 3, most(\"refit/generators\")
for name in (\"publish_sec\", \"prepare_sec\", \"pause_sec\", \"generator_tokens_per_sec\"):
    assert most(\"refit/\" + name) > 0, name
assert most(\"refit/sent_bytes\") > 0 and 0 < most(\"refit/changed_share\") <= 1
assert sum(most(\"refit/blocks_\" + kind) for kind in (\"whole\", \"sparse\", \"kept\")) > 0
assert most(\"refit/version_lag\") <= len(rows)" "$dir/run/metrics.jsonl"'
check "the generator said what it paid" 'grep -q "^versions pulled: .*longest pause" "$dir/greedy.err"'
timeout 300 "$ravel" generate --model "$model" --pull "unix:@${dir##*/}-nobody" --pull-timeout 0.5 --prompt x >"$dir/out" 2>&1
code=$?
check "without trainers: the address once, and the seconds that were given" '[ $code = 1 ] &&
    [ "$(tail -n 1 "$dir/out")" = "ravel generate: no trainer was reached at unix:@${dir##*/}-nobody within 0.5 s: Connection refused" ] || ! cat "$dir/out"'
lr=0.001 place=unix:@${dir##*/}-restart
trainer_at() { # RUN MODEL FLAGS...: publishes at $place, in the background, in $trainer
    run=$1 from=$2; shift 2
    "$ravel" train grpo "$@" --task sort --model "$from" --lr "$lr" --steps 1000000 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 \
        --budget 256 --max-flat 0 --sinks jsonl --publish "$place" --publish-linger 0 --run "$dir/$run" >"$dir/$run.out" 2>"$dir/$run.err" &
    trainer=$!
    started="$started $trainer"
    until_true 1800 'grep -q "^publishing at" "$dir/$run.err"'
}
trainer_at first "$model"
generators=
for i in 1 2 3; do address=$place; generator "live$i" --seed $i --out "$dir/live$i.answers"; generators="$generators $pid"; done
until_true 1800 '[ $(versions live1) -ge 3 ] && [ $(versions live2) -ge 2 ] && [ $(versions live3) -ge 2 ]'
kill -9 $trainer; reap $trainer
until_true 30 'grep -q "staging again" "$dir/live1.err"' # a pause: some begin to stage what nobody has any more
trainer_at second "$model"
for i in 1 2 3; do eval "had$i=\$(versions live$i)"; done
until_true 900 '[ $(versions live1) -gt $((had1 + 1)) ] && [ $(versions live2) -gt $((had2 + 1)) ] && [ $(versions live3) -gt $((had3 + 1)) ]'
check "generators live through a restart of the trainer" 'kill -0 $generators && [ $(versions live1) -gt $((had1 + 1)) ] && [ $(versions live2) -gt $((had2 + 1)) ] && [ $(versions live3) -gt $((had3 + 1)) ]'
kill -9 $trainer; reap $trainer
trainer_at third "$dir/other/checkpoints/step-00000001"
codes=; for p in $generators; do reap $p; codes="$codes$code"; done
check "one of another model ends them with what differs, and they keep their answers" \
    '[ $codes = 111 ] && grep -q "embed_tokens\|shape" "$dir/live1.err" && grep -q "version" "$dir/live1.answers" && [ -s "$dir/live2.answers" ] && [ -s "$dir/live3.answers" ]'
stop_trainer
# ---- small updates are small ----
place=unix:@${dir##*/}-small
lr=1e-6
trainer_at small "$model" --publish-dtype bf16 --refit-delta elements
address=$place
generator small --temperature 0
small=$pid
until_true 1800 '[ $(versions small) -ge 8 ]'
stop_trainer; trained=$code
kill -INT $small; reap $small
check "updates of f32 weights at lr 1e-6 are published as less than .1 of a version in bf16" '[ $trained = 0 ] && python3 -c "
import json, sys
rows = [r for r in map(json.loads, open(sys.argv[1])) if r.get(\"refit/sent_bytes\")]
version = rows[0][\"refit/sent_bytes\"]
sparse = [r for r in rows[1:] if r[\"refit/compared_share\"] == 1 and r[\"refit/blocks_sparse\"] > 0]
small = [r for r in sparse if r[\"refit/sent_bytes\"] < .1 * version and r[\"refit/changed_share\"] < .1]
assert version > 50000 and len(small) >= 2, rows" "$dir/small/metrics.jsonl"'
"$ravel" train grpo --task sort --model "$model" --kernels cpu-bf16 --lr 1e-6 --steps 4 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 \
    --budget 256 --max-flat 0 --sinks jsonl --refit-delta elements --run "$dir/delta" >"$dir/out" 2>&1
check "and sent to the run's own generators as little, with --refit-delta elements" 'grep -q "kept for generators" "$dir/out" && python3 -c "
import json, sys
rows = list(map(json.loads, open(sys.argv[1])))
assert rows[0][\"refit/bytes_moved\"] > rows[0][\"refit/bytes_needed\"] # the first one, and heads of frames
assert all(r[\"refit/bytes_moved\"] < .2 * r[\"refit/bytes_needed\"] for r in rows[1:]), rows" "$dir/delta/metrics.jsonl"'
# ---- the run's own generators and others pull from one publication ----
lr=0.001 place=unix:@${dir##*/}-both
trainer_at both "$model" --refit pull --ranks 2
address=$place
generator fourth --seed 4
fourth=$pid
check "with --refit pull --publish both kinds of generators get versions" 'until_true 1800 "[ \$(versions fourth) -ge 3 ]"'
check "of one copy: there is no second publication" 'grep -q "@${dir##*/}-both" /proc/net/unix && ! grep -q "@ravel-grpo-$trainer-" /proc/net/unix'
stop_trainer; trained=$code
kill -INT $fourth; reap $fourth
check "and the run ends well" '[ $trained = 0 ] && [ $code = 0 ]'
place=unix:$dir/other.sock
[ ${#dir} -lt 80 ] || place=unix:@${dir##*/} # the path of a socket has at most 107 bytes
"$ravel" train grpo --task sort --model "$dir/other/checkpoints/step-00000001" --steps 100000 --prompts 4 --group-size 4 --max-tokens 6 \
    --eval-prompts 0 --budget 256 --max-flat 0 --sinks jsonl --publish "$place" --run "$dir/run2" >"$dir/train2.out" 2>"$dir/train2.err" &
trainer=$!
started="$started $trainer"
until_true 1800 'grep -q "^publishing at" "$dir/train2.err"'
timeout 300 "$ravel" generate --model "$model" --pull "$place" --prompt x >"$dir/out" 2>&1
code=$?
check "another model is refused with what differs" '[ $code = 1 ] && grep -q "embed_tokens\|shape" "$dir/out"'
stop_trainer

# ---- strangers ----
# 1,500 connections that send 50 bytes each and stay, to a trainer that may open 300 files.
(ulimit -n 300; exec "$ravel" train grpo --task sort --model "$model" --lr 0.001 --steps 1000000 --prompts 4 --group-size 4 --max-tokens 6 \
    --eval-prompts 0 --budget 256 --max-flat 0 --sinks jsonl --checkpoint-every 5 --publish 127.0.0.1:0 --publish-linger 0 --run "$dir/flooded" >"$dir/train3.out" 2>"$dir/train3.err") &
trainer=$!
started="$started $trainer"
address=
until_true 1800 'address=$(sed -n "s/^publishing at \([^,]*\),.*/\1/p" "$dir/train3.err"); [ -n "$address" ]'
(ulimit -n 4096; exec python3 -c "
import resource, socket, sys, time
host, port = sys.argv[1].rsplit(':', 1)
links = []
for i in range(1500):
    s = socket.create_connection((host, int(port)))
    s.send(b'x' * 50 if i % 2 else b'RAVELLNK' + b'x' * 42)
    links.append(s)
print('flooded', flush=True)
time.sleep(600)" "$address" >"$dir/flood.out" 2>&1) &
flood=$!
started="$started $flood"
check "1,500 connections that prove nothing" 'until_true 1800 "grep -q flooded \"\$dir/flood.out\""'
before=$(ls "$dir/flooded/checkpoints" | tail -n 1)
generator beside --temperature 0
beside=$pid
check "a generator gets versions beside them" 'until_true 1800 "[ \$(versions beside) -ge 3 ]"'
check "and checkpoints are written" 'until_true 600 "ls \"\$dir/flooded/checkpoints\" | grep ^step | tail -n 1 | grep -qv \"\^\$before\\\$\""'
stop_trainer; ended=$code
kill $flood 2>/dev/null; reap $flood
kill -TERM $beside; reap $beside
last=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$dir/flooded/metrics.jsonl" | tail -n 1)
check "the run ends well, with its last update saved" '[ $ended = 0 ] && grep -q "\"step\": *$last" "$dir/flooded/checkpoints/$(ls "$dir/flooded/checkpoints" | tail -n 1)/state.json"'
# ---- TLS ----
if [ -f "$BUILD/libravel_tls.so" ]; then
    "$ravel" train grpo --task sort --model "$model" --lr 0.001 --steps 1000000 --prompts 4 --group-size 4 --max-tokens 6 \
        --eval-prompts 0 --budget 256 --max-flat 0 --sinks jsonl --publish 127.0.0.1:0 --publish-tls --publish-linger 0 --run "$dir/secret" >"$dir/train4.out" 2>"$dir/train4.err" &
    trainer=$!
    started="$started $trainer"
    address=
    until_true 1800 'address=$(sed -n "s/^publishing at \([^,]*\),.*/\1/p" "$dir/train4.err"); [ -n "$address" ]'
    generator hidden --temperature 0 --pull-tls
    hidden=$pid
    check "a generator pulls over TLS" 'until_true 1800 "[ \$(versions hidden) -ge 2 ]"'
    timeout 300 "$ravel" generate --model "$model" --pull "$address" --pull-timeout 2 --prompt x >"$dir/out" 2>&1
    check "one without TLS is told: $(tail -n 1 "$dir/out" | cut -c 1-120)" 'grep -q "it speaks TLS only" "$dir/out"'
    kill -TERM $hidden; reap $hidden
    stop_trainer
else echo "  skip  --publish-tls: there is no libravel_tls.so (libssl-dev)"; fi
echo "my notes" >"$dir/notes.txt"
"$ravel" train grpo --task sort --model "$model" --steps 1 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --budget 256 \
    --sinks jsonl --publish "unix:$dir/notes.txt" --run "$dir/run4" >"$dir/out" 2>&1
check "publishing at a file that is there leaves it: $(grep -o 'cannot listen.*' "$dir/out" | head -n 1 | cut -c 1-60)" '[ "$(cat "$dir/notes.txt")" = "my notes" ] && grep -q "notes.txt" "$dir/out"'

# ---- training over TCP ----
sft="train sft --task sort --steps 12 --batch 16 $shape --budget 256 --lr 0.003 --quiet --sinks jsonl --threads 1 --timeout 120"
grpo="train grpo --task sort --steps 4 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 4 $shape --budget 256 --lr 0.003 --quiet --sinks jsonl --threads 1 --timeout 120"
losses() { sed -n 's/.*"train\/loss": *\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
# processes COUNT COMMAND...: by hand, rank 0 last; $code is the worst
processes() {
    count=$1 pids=""; shift
    free_port
    for r in $(seq $((count - 1)) -1 0); do
        "$ravel" "$@" --comm tcp --rendezvous "127.0.0.1:$port" --comm-ranks "$count" --comm-rank "$r" >"$dir/rank.$r" 2>&1 &
        pids="$pids $!" started="$started $!"
    done
    reap_all
}
# reap_all: those in $pids; $code is 0 or 1
reap_all() {
    worst=0
    for p in $pids; do reap "$p"; [ $code = 0 ] || worst=1; done
    code=$worst
}
# shellcheck disable=SC2086
"$ravel" $sft --ranks 3 --run "$dir/threads" >/dev/null 2>&1
# shellcheck disable=SC2086
processes 3 $sft --run "$dir/tcp"
check "three processes started by hand learn the same bits as three threads" \
    '[ $code = 0 ] && losses "$dir/threads" >"$dir/a" && losses "$dir/tcp" >"$dir/b" && [ -s "$dir/a" ] && cmp -s "$dir/a" "$dir/b"'
# shellcheck disable=SC2086
"$ravel" $grpo --ranks 2 --run "$dir/grpo-threads" >/dev/null 2>&1
# shellcheck disable=SC2086
processes 3 $grpo --run "$dir/grpo-tcp"
check "grpo: two trainers and a generator, too" \
    '[ $code = 0 ] && losses "$dir/grpo-threads" >"$dir/a" && losses "$dir/grpo-tcp" >"$dir/b" && [ -s "$dir/a" ] && cmp -s "$dir/a" "$dir/b"'
pids=""
free_port
for r in 0 1; do
    # shellcheck disable=SC2086
    RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ravel" $sft --run "$dir/torchrun" >"$dir/rank.$r" 2>&1 &
    pids="$pids $!" started="$started $!"
done
reap_all
check "torchrun's environment: two ranks of one run" '[ $code = 0 ] && [ $(losses "$dir/torchrun" | wc -l) = 12 ] && grep -q "^done after 12" "$dir/rank.0" && ! grep -q "^done" "$dir/rank.1"'
free_port
for r in 0 1; do
    # shellcheck disable=SC2086
    "$ravel" $(usual "$sft" --steps) --steps 1000000 --rendezvous "127.0.0.1:$port" --comm-ranks 2 --comm-rank $r --run "$dir/lost" >"$dir/rank.$r" 2>&1 &
    eval "rank$r=$!"; started="$started $!"
done
until_true 1800 'grep -q train/loss "$dir/lost/metrics.jsonl" 2>/dev/null'
kill -9 "$rank1"
reap "$rank1"
reap "$rank0"
check "a rank that is killed ends the other with a sentence and a checkpoint" '[ $code = 1 ] && grep -q "rank 1" "$dir/rank.0" && ls "$dir/lost/checkpoints" | grep -q ^step'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
