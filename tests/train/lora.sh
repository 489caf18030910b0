# Adapters by the command: `ravel train --lora-rank` in SFT, DPO and GRPO, resume, --adapter, `ravel merge`, `ravel generate`.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$(realpath "$BUILD")/ravel dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $2"; fi; }
refuse() { # CODE SAYS ARGS...
    code=$1 says=$2; shift 2
    timeout 300 "$ravel" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    check "refused: $says" '[ $got = '"$code"' ] && grep -q -- "'"$says"'" "$dir/err"'
}
train() { timeout 300 "$ravel" train "$@" --quiet --sinks jsonl >"$dir/log" 2>&1; }
train sft --task copy --level 1 --steps 60 --batch 32 --lr 0.003 --hidden 48 --layers 2 --heads 4 --kv-heads 2 --head-dim 12 \
    --ffn 96 --budget 512 --run "$dir/base"
model=$dir/base/checkpoints/step-00000060
sft() { train sft --model "$model" --task sort --level 1 --batch 32 --budget 512 --lr 0.02 --schedule constant "$@"; }

sft --lora-rank 4 --steps 20 --checkpoint-every 10 --run "$dir/whole"
whole=$dir/whole/checkpoints/step-00000020
check "a checkpoint is a PEFT folder" '[ -s "$whole/adapter_model.safetensors" ] && [ ! -e "$whole/model.safetensors" ] &&
    python3 -c "
import json, sys
c = json.load(open(sys.argv[1]))
assert c[\"peft_type\"] == \"LORA\" and c[\"r\"] == 4 and c[\"lora_alpha\"] == 8 and c[\"base_model_name_or_path\"] == sys.argv[2]
assert len(c[\"target_modules\"]) == 7" "$whole/adapter_config.json" "$model"'
check "it learns" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
loss = [r[\"train/token_nll\"] for r in rows if \"train/token_nll\" in r]
assert len(loss) == 20 and loss[-1] < .9 * loss[0], loss" "$dir/whole/metrics.jsonl"'
sft --steps 1 --run "$dir/full"
check "FLOPs count two products of a frozen weight, not three" 'python3 -c "
import json, sys
a, b = (next(r for r in map(json.loads, open(run + \"/metrics.jsonl\")) if \"flops/model\" in r) for run in sys.argv[1:])
for row in \"flops/model\", \"flops/hardware\":
    assert .62 < a[row] / b[row] < .85, (row, a[row], b[row])" "$dir/whole" "$dir/full"'
cp -r "$dir/whole" "$dir/parts" && rm -r "$dir/parts/checkpoints/step-00000020" && sft --lora-rank 4 --steps 20 --run "$dir/parts" --resume
check "a run that goes on has the same bits" 'cmp "$whole/adapter_model.safetensors" "$dir/parts/checkpoints/step-00000020/adapter_model.safetensors" &&
    cmp "$whole/optimizer.safetensors" "$dir/parts/checkpoints/step-00000020/optimizer.safetensors"'
sft --adapter "$whole" --steps 5 --ranks 4 --tp 2 --run "$dir/more"
check "an adapter is trained further, on another mesh" '[ -s "$dir/more/checkpoints/step-00000005/adapter_model.safetensors" ]'
generate() { timeout 300 "$ravel" generate --prompt "copy ab:" --temperature 0 --max-tokens 8 --json "$@"; }
"$ravel" merge --adapter "$whole" --out "$dir/merged" >/dev/null
"$ravel" merge --adapter "$whole" --out "$dir/merged-3" --threads 3 >/dev/null
check "merged, the same on any number of threads" 'cmp "$dir/merged/model.safetensors" "$dir/merged-3/model.safetensors"'
generate --model "$model" --adapter "$whole" >"$dir/beside"
generate --model "$dir/merged" >"$dir/in"
generate --adapter "$whole" >"$dir/found"
generate --model "$model" >"$dir/without"
check "answers beside the weights are those of the merged model" 'python3 -c "
import json, sys
a, b, without = (json.load(open(f)) for f in sys.argv[1:])
assert a[\"response_ids\"] == b[\"response_ids\"] and abs(a[\"logprob\"] - b[\"logprob\"]) < 1e-4, (a, b)
assert abs(a[\"logprob\"] - without[\"logprob\"]) > 1e-3, (a, without)" "$dir/beside" "$dir/in" "$dir/without"'
check "the model is found by the adapter" 'cmp "$dir/beside" "$dir/found"'
"$ravel" merge --model "$model" --adapter "$whole" --out "$dir/half" --dtype bf16 --save-shard 20k >/dev/null
check "merged in bf16, in several files" 'ls "$dir"/half/model-00002-of-*.safetensors >/dev/null && generate --model "$dir/half" >/dev/null'
for kernels in cpu cpu-bf16; do # the second maps the files; its adapter is rounded to bf16 after each step
    train sft --model "$dir/half" --task copy --level 1 --lora-rank 4 --steps 3 --batch 8 --budget 512 --kernels $kernels --run "$dir/$kernels"
    train grpo --model "$dir/half" --task copy --level 1 --lora-rank 4 --steps 2 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 \
        --budget 512 --max-flat 0 --ranks 2 --kernels $kernels --run "$dir/grpo-$kernels" || cat "$dir/log"
done
check "weights in bf16: the first loss of f32 on the same values, then near it" 'python3 -c "
import json, sys
a, b = ([r[\"train/loss\"] for r in map(json.loads, open(f)) if \"train/loss\" in r] for f in sys.argv[1:])
assert len(a) == len(b) == 3 and abs(a[0] - b[0]) < 1e-6 and abs(a[2] - b[2]) < 2e-2 * a[2], (a, b)" "$dir/cpu/metrics.jsonl" "$dir/cpu-bf16/metrics.jsonl"'
loud() { timeout 300 "$ravel" train sft --model "$dir/half" --task copy --level 1 --steps 1 --batch 8 --budget 512 --sinks jsonl "$@" >"$dir/log" 2>&1; }
loud --lora-rank 4 --run "$dir/auto"
check "by default frozen weights in bf16 stay in their file" 'grep -q "kernels cpu-[a-z0-9-]*bf16, trainer ranks: 1" "$dir/log" && grep -q "KiB of mapped files" "$dir/log" &&
    grep -q "\"kernels\": \"auto\"" "$dir/auto/config.json"'
loud --run "$dir/auto-whole"
check "and weights that are trained are f32" 'grep -q "kernels cpu-[a-z0-9]*, trainer ranks" "$dir/log" && ! grep -q "bf16\|mapped" "$dir/log"'
loud --lora-rank 4 --kernels cpu --run "$dir/loaded"
check "or the run says why they are loaded" 'grep -q "not mapped, since .* holds bf16 and cpu-.* kernels read f32" "$dir/log"'
if awk '/^MemTotal/ { exit $2 > 5e8 }' /proc/meminfo; then
    refuse 1 "the model with its cache needs .* on this machine, which has .*; try --slots" generate --model "$model" --raw --prompt x --samples 65536 \
        --slots 65536 --max-tokens 32000 --json
fi
check "and grpo ends well with both" '[ -d "$dir/grpo-cpu-bf16/checkpoints/step-00000002" ] && [ -d "$dir/grpo-cpu/checkpoints/step-00000002" ]'

python3 -c "
for i in range(24):
    a, b = 97 + i % 7, 97 + i % 5
    print('{\"prompt\": \"copy %c%c:\", \"chosen\": \"%c%c\", \"rejected\": \"%c\"}' % (a, b, a, b, b))" >"$dir/pairs.jsonl"
train dpo --model "$model" --data "$dir/pairs.jsonl" --lora-rank 2 --lora-targets q,v --steps 4 --batch 8 --budget 512 --run "$dir/dpo"
check "dpo: pairs begin without a margin" 'python3 -c "
import json, math, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
loss = [r[\"train/loss\"] for r in rows if \"train/loss\" in r]
assert len(loss) == 4 and abs(loss[0] - math.log(2)) < 1e-6 and loss[-1] < loss[0], loss" "$dir/dpo/metrics.jsonl"'
for refit in collective pull; do
    train grpo --model "$model" --task copy --level 1 --lora-rank 4 --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --kl 0.05 \
        --eval-prompts 0 --budget 512 --max-flat 0 --refit $refit --run "$dir/$refit" || cat "$dir/log"
    check "grpo, refit $refit: only the adapter travels" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert sum(\"train/loss\" in r for r in rows) == 3
sent = [r[k] for r in rows for k in (\"refit/bytes_moved\", \"publish/bytes\") if k in r]
assert all(b < 60000 for b in sent), sent" "$dir/$refit/metrics.jsonl"'
done
check "grpo: both ways of the weights give one run" 'cmp "$dir/collective/checkpoints/step-00000003/adapter_model.safetensors" "$dir/pull/checkpoints/step-00000003/adapter_model.safetensors"'

train sft --model "$dir/dpo" --task copy --level 1 --steps 1 --batch 8 --budget 512 --run "$dir/further"
check "a run that trained an adapter is a model" 'python3 -c "
import json, os, sys
c = json.load(open(sys.argv[1]))
assert os.path.samefile(c[\"model\"], sys.argv[2]) and c[\"adapter\"].endswith(\"dpo/checkpoints/step-00000004\"), c" "$dir/further/config.json" "$model"'
"$ravel" merge "$dir/dpo" --out "$dir/dpo-merged" >"$dir/log" 2>&1
check "and its adapter can be merged" '[ $? = 0 ] && [ -f "$dir/dpo-merged/model.safetensors" ]'
# ---- another process cuts the mapped model short: an error that names it, and all updates before are kept ----
cut() { # NAME ARGS...: the run, and one that was left alone for as many updates
    name=$1; shift
    rm -rf "$dir/short"; cp -r "$model" "$dir/short"
    timeout 300 "$ravel" train "$@" --model "$dir/short" --lora-rank 4 --steps 1000000 --checkpoint-every 1000000 --quiet --sinks jsonl \
        --run "$dir/cut-$name" >"$dir/log" 2>&1 &
    run=$!
    n=3000; while [ $n -gt 0 ] && ! grep -qs '"step": *3,' "$dir/cut-$name/metrics.jsonl"; do sleep 0.02; n=$((n - 1)); done
    truncate -s "$(($(wc -c <"$dir/short/model.safetensors") / 3))" "$dir/short/model.safetensors"
    wait $run
    code=$?
    steps=$(ls "$dir/cut-$name/checkpoints" | sed -n 's/^step-0*//p')
    check "$name: the weights are cut short: exit 1, after $steps updates, and the file is named" '[ $code = 1 ] &&
        grep -q "/short/model.safetensors changed while the run was reading its weights" "$dir/log" || ! cat "$dir/log"'
    train "$@" --model "$model" --lora-rank 4 --steps "$steps" --run "$dir/left-$name"
    check "$name: its checkpoint has the bits of a run that was left alone" 'cmp "$dir"/cut-$name/checkpoints/step-*/adapter_model.safetensors "$dir"/left-$name/checkpoints/step-*/adapter_model.safetensors'
}
cut sft sft --task sort --level 1 --batch 32 --budget 512 --lr 0.02 --schedule constant --ranks 2
cut grpo grpo --task copy --level 1 --lr 0.01 --schedule constant --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --budget 512 --max-flat 0 --async 1 --correction tis

# ---- adapters that are published, and served by name ----
place=unix:@lora-$$
started= ; : >"$dir/train.err" >"$dir/pulled.err" >"$dir/serve.err"
trap 'for p in $started; do kill -9 $p 2>/dev/null; done; rm -rf "$dir"' EXIT
until_true() { n=$1; while [ "$n" -gt 0 ] && ! eval "$2"; do sleep 0.1; n=$((n - 1)); done; eval "$2"; }
for i in 1 2 3 4 5 6; do echo "{\"prompt\": \"copy a$i:\"}"; done >"$dir/prompts.jsonl"
"$ravel" train grpo --model "$model" --task copy --level 1 --lora-rank 4 --lora-targets q,v,down --lr 0.01 --steps 1000000 --prompts 4 --group-size 4 \
    --max-tokens 6 --eval-prompts 0 --budget 512 --max-flat 0 --sinks jsonl --publish "$place" --publish-linger 60 --run "$dir/published" \
    >"$dir/log" 2>"$dir/train.err" &
trainer=$! started="$started $!"
until_true 1800 'grep -q "^publishing at" "$dir/train.err"'
"$ravel" generate --model "$model" --pull "$place" --data "$dir/prompts.jsonl" --repeat 0 --max-tokens 6 --slots 4 --threads 1 \
    --temperature 0 >"$dir/pulled.jsonl" 2>"$dir/pulled.err" &
puller=$! started="$started $!"
"$ravel" serve "$model" --pull "$place" --adapter sft="$whole" --adapter twice="$dir/whole" --listen 127.0.0.1:0 --threads 1 2>"$dir/serve.err" &
server=$! started="$started $!"
until_true 1800 '[ "$(grep -c ": version [0-9]*: .* pulled" "$dir/pulled.err")" -ge 4 ]'
check "an adapter is pulled beside the model, kilobytes per version" 'sed -n "s/.*: version [0-9]*: \([0-9.]*\) MB pulled.*/\1/p" "$dir/pulled.err" | awk "NR == 1 { first = \$1 } \$1 > .06 { bad = 1 } END { exit bad || !(first > 0) }"'
until_true 1800 'grep -q "at port" "$dir/serve.err"'
check "a server: the adapter that is pulled, and others by name" 'python3 -c "
import json, re, sys, time, urllib.request
base = \"http://127.0.0.1:\" + re.search(r\"at port (\d+)\", open(sys.argv[1]).read())[1]
def ask(path, **body):
    data = json.dumps(body).encode() if body else None
    return json.load(urllib.request.urlopen(urllib.request.Request(base + path, data), timeout=120))
def complete(name):
    a = ask(\"/v1/completions\", model=name, prompt=\"copy ab:\", temperature=0, max_tokens=8, return_token_ids=True, logprobs=1)
    assert a[\"model\"] == name
    return a[\"choices\"][0]
own = sys.argv[2]
models = ask(\"/v1/models\")[\"data\"]
assert [m[\"id\"] for m in models] == [own, \"sft\", \"twice\"] and models[1][\"parent\"] == own, models
a, b, beside = complete(\"sft\"), complete(\"twice\"), json.load(open(sys.argv[3]))
assert a[\"token_ids\"] == b[\"token_ids\"] == beside[\"response_ids\"], (a, beside)
assert abs(sum(a[\"logprobs\"][\"token_logprobs\"]) - beside[\"logprob\"]) < 1e-4
until = time.time() + 120
while len({v for v in complete(own)[\"versions\"]}) != 1 or complete(own)[\"versions\"][0] < 3:
    assert time.time() < until
    time.sleep(.05)" "$dir/serve.err" "$(basename "$model")" "$dir/beside"'
kill -INT $trainer; wait $trainer; trained=$?
last=$(sed -n 's/.*"version": \([0-9]*\).*/\1/p' "$dir/published/checkpoints/"*/state.json | sort -n | tail -n 1)
until_true 600 '[ "$(grep -c "\"version\": $last, \"last_version\": $last}" "$dir/pulled.jsonl")" -ge 12 ]'
kill -INT $puller $server; wait $puller; ended=$?; wait $server; ended=$((ended + $?))
check "all of them end well" '[ $trained = 0 ] && [ $ended = 0 ]'
step=$dir/published/checkpoints/$(ls "$dir/published/checkpoints" | tail -n 1)
timeout 300 "$ravel" generate --adapter "$step" --data "$dir/prompts.jsonl" --max-tokens 6 --temperature 0 --threads 1 >"$dir/expected"
check "every answer has one version, and the last one answers as the last checkpoint" 'python3 -c "
import json, sys
rows, last = [json.loads(line) for line in open(sys.argv[1])], int(sys.argv[3])
expected = {r[\"row\"]: r for r in map(json.loads, open(sys.argv[2]))}
assert all(r[\"version\"] == r[\"last_version\"] for r in rows) and len({r[\"version\"] for r in rows}) > 2
rows = [r for r in rows if r[\"version\"] == last]
assert len(rows) >= 6
for r in rows:
    e = expected[r[\"row\"]]
    assert r[\"response_ids\"] == e[\"response_ids\"] and abs(r[\"logprob\"] - e[\"logprob\"]) < 1e-4, (r, e)" "$dir/pulled.jsonl" "$dir/expected" "$last"'
# ---- an adapter with its model, elsewhere ----
mkdir "$dir/here" && cp -r "$model" "$dir/here/base"
(cd "$dir/here" && train sft --model base --task copy --level 1 --lora-rank 2 --steps 1 --batch 8 --budget 512 --run runs/moved)
mv "$dir/here" "$dir/there"
check "an adapter names its model as --model did, and finds it where both were moved to" 'grep -q "\"base_model_name_or_path\": \"base\"" "$dir/there/runs/moved/checkpoints/step-00000001/adapter_config.json" &&
    "$ravel" generate "$dir/there/runs/moved" --prompt "copy ab:" --max-tokens 4 --quiet >"$dir/moved" 2>&1'
hub=$dir/hub/models--some-org--Some-Model revision=0123456789abcdef0123456789abcdef01234567
mkdir -p "$hub/refs" "$hub/snapshots" && printf %s $revision >"$hub/refs/main" && mv "$dir/there/base" "$hub/snapshots/$revision"
refuse 1 "which is not a folder here" generate "$dir/there/runs/moved" --prompt x
check "a name of the hub is found in its cache" 'HF_HUB_CACHE=$dir/hub train sft --model some-org/Some-Model --task copy --level 1 --lora-rank 2 --steps 1 --batch 8 \
    --budget 512 --run "$dir/of-hub" && grep -q "\"base_model_name_or_path\": \"some-org/Some-Model\"" "$dir/of-hub/checkpoints/step-00000001/adapter_config.json" &&
    HF_HUB_CACHE=$dir/hub "$ravel" merge --adapter "$dir/of-hub" --out "$dir/hub-merged" >/dev/null'
refuse 1 "nor in the cache" generate some-org/Other-Model --prompt x

refuse 2 "two adapters are called" serve "$model" --adapter a="$whole" --adapter a="$dir/dpo"
refuse 2 "has the model's name" serve "$model" --name a --adapter a="$whole"
refuse 2 "the second one without a name" serve "$model" --adapter "$whole" --adapter "$dir/dpo"
refuse 1 "is not an adapter" serve "$model" --adapter a="$model" --listen 127.0.0.1:0

refuse 2 "only 0 is supported" train sft --task copy --lora-rank 4 --lora-dropout 0.1
refuse 2 "give its --lora-rank too" train sft --task copy --lora-alpha 4
refuse 2 "brings its own rank" train sft --task copy --model "$model" --adapter "$whole" --lora-rank 4
refuse 2 "is no target of an adapter" train sft --task copy --lora-rank 4 --lora-targets q,x
refuse 1 "has no adapter_config.json" train sft --task copy --model "$model" --adapter "$model" --run "$dir/none"
refuse 2 "is not an empty folder" merge --adapter "$whole" --out "$dir/merged"
refuse 2 "name the adapter, and --out FOLDER" merge --adapter "$whole"
sed 's/"use_rslora": false/"use_dora": true/' "$whole/adapter_config.json" >"$dir/config"
mkdir "$dir/dora" && cp "$whole/adapter_model.safetensors" "$dir/dora" && cp "$dir/config" "$dir/dora/adapter_config.json"
refuse 1 "use_dora has a value that is not supported" merge "$dir/dora" --out "$dir/no"
sed 's/"r": 4/"r": 5/' "$whole/adapter_config.json" >"$dir/dora/adapter_config.json"
refuse 1 "lora_A" merge "$dir/dora" --out "$dir/no"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
