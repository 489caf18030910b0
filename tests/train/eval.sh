# `ravel eval`: the loss that training's own evaluation has, on every mesh, files apart, pairs with and without a reference; `ravel export`.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $2"; fi; }
refuse() { # CODE SAYS ARGS...
    code=$1 says=$2; shift 2
    timeout 300 "$ravel" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    check "refused: $says" '[ $got = '"$code"' ] && grep -q -- "'"$says"'" "$dir/err"'
}
python3 - "$dir" <<'END'
import json, sys
names = ["red", "green", "blue", "cyan", "plum", "gold"]
rows, pairs, other = (open(sys.argv[1] + "/" + n, "w") for n in ("rows.jsonl", "pairs.jsonl", "two words.jsonl"))
for i in range(24):
    a, b = names[i % 6], names[(i + 1) % 6]
    rows.write(json.dumps({"prompt": f"say {a}:", "completion": a}) + "\n")
    other.write(json.dumps({"text": f"{a} {b} {i}"}) + "\n")
    pairs.write(json.dumps({"prompt": f"say {a}:", "chosen": a, "rejected": b}) + "\n")
END
train() { timeout 300 "$ravel" train "$@" --quiet --sinks jsonl >"$dir/log" 2>&1; }
evaluate() { timeout 300 "$ravel" eval "$@" --json --quiet 2>"$dir/err"; }
figure() { python3 -c "import json,sys; j=json.load(open(sys.argv[1])); print(eval('j'+sys.argv[2]))" "$1" "$2"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-4 && d > -1e-4) }'; }
shape="--hidden 48 --layers 2 --heads 4 --kv-heads 2 --head-dim 12 --ffn 96"
# shellcheck disable=SC2086
train sft --data "$dir/rows.jsonl" --eval-data "$dir/two words.jsonl" --steps 8 --batch 8 --lr 0.01 $shape --run "$dir/sft"
evaluate "$dir/sft" --data "$dir/rows.jsonl" "$dir/two words.jsonl" >"$dir/whole.json"
shown=$(awk '/eval loss per token/ { print $5 }' "$dir/log")
check "the loss of training's evaluation" 'near "$(figure "$dir/whole.json" "[\"files\"][1][\"loss\"]")" "$shown"'
check "all is the mean over tokens" 'python3 -c "
import json, math, sys
j = json.load(open(sys.argv[1])); f, a = j[\"files\"], j[\"all\"]
n = sum(x[\"tokens\"] for x in f)
assert a[\"tokens\"] == n and a[\"rows\"] == 48
for k in (\"loss\", \"accuracy\"): assert abs(sum(x[\"tokens\"] * x[k] for x in f) / n - a[k]) < 1e-6
assert abs(math.exp(a[\"loss\"]) / a[\"perplexity\"] - 1) < 1e-6 and 0 < a[\"accuracy\"] < 1
" "$dir/whole.json"'
for mesh in "--tp 2" "--pp 2 --dp 2" "--cp 2" "--dp 2 --cp-pool 2 --budget 64"; do
    # shellcheck disable=SC2086
    evaluate "$dir/sft" --data "$dir/rows.jsonl" "$dir/two words.jsonl" $mesh >"$dir/mesh.json"
    check "the same with $mesh" 'near "$(figure "$dir/mesh.json" "[\"all\"][\"loss\"]")" "$(figure "$dir/whole.json" "[\"all\"][\"loss\"]")" &&
        near "$(figure "$dir/mesh.json" "[\"all\"][\"accuracy\"]")" "$(figure "$dir/whole.json" "[\"all\"][\"accuracy\"]")"'
done
train dpo --model "$dir/sft" --data "$dir/pairs.jsonl" --eval-data "$dir/pairs.jsonl" --steps 4 --lora-rank 4 --lr 0.02 --run "$dir/dpo"
evaluate "$dir/dpo" --data "$dir/pairs.jsonl" --pairs >"$dir/pairs.json"
shown=$(awk '/eval loss per pair/ { print $5 }' "$dir/log")
check "pairs of an adapter: the loss of training's evaluation" 'near "$(figure "$dir/pairs.json" "[\"all\"][\"loss\"]")" "$shown"'
evaluate "$dir/dpo" --data "$dir/pairs.jsonl" --pairs --reference "$dir/sft" --tp 2 >"$dir/named.json"
check "its model as --reference, on two ranks: the same" 'near "$(figure "$dir/named.json" "[\"all\"][\"loss\"]")" "$(figure "$dir/pairs.json" "[\"all\"][\"loss\"]")"'
evaluate "$dir/sft" --data "$dir/pairs.jsonl" --pairs --reference "$dir/sft" >"$dir/self.json"
check "a model that is its own reference prefers nothing" '[ "$(figure "$dir/self.json" "[\"all\"][\"accuracy\"]")" = 0 ]'
evaluate "$dir/sft" --data "$dir/pairs.jsonl" --pairs >"$dir/alone.json"
check "without a reference it prefers what is likelier" 'python3 -c "
import json, sys
a = json.load(open(sys.argv[1]))[\"all\"]; assert a[\"pairs\"] == 24 and a[\"accuracy\"] > 0 and a[\"reward_chosen\"] < 0" "$dir/alone.json"'
refuse 2 "name a model and its data" eval "$dir/sft"
refuse 2 "no shares here" eval "$dir/sft" --data "$dir/rows.jsonl:0.5" "$dir/pairs.jsonl:0.5"
refuse 2 "for --pairs" eval "$dir/sft" --data "$dir/rows.jsonl" --reference "$dir/sft"
refuse 1 "hf download some-org/Some-Model_1.5" eval some-org/Some-Model_1.5 --data "$dir/rows.jsonl"
refuse 1 "hf download" generate some-org/some-model --prompt x
refuse 1 "cannot" eval "$dir/none" --data "$dir/rows.jsonl"
# ravel export; tests/text/gguf_files.py compares its values
timeout 300 "$ravel" export "$dir/sft" --gguf "$dir/sft.gguf" --type f32 >"$dir/out" 2>&1
check "export writes GGUF" '[ $? = 0 ] && [ "$(head -c 4 "$dir/sft.gguf")" = GGUF ]'
timeout 300 "$ravel" export "$dir/dpo" --gguf "$dir/dpo.gguf" --type f32 >"$dir/out" 2>&1
check "an adapter is merged first" '[ $? = 0 ] && [ ! -e "$dir/dpo.gguf.merged" ] && [ ! -e "$dir/dpo.gguf.partial" ] &&
    [ $(stat -c %s "$dir/dpo.gguf") = $(stat -c %s "$dir/sft.gguf") ] && ! cmp -s "$dir/dpo.gguf" "$dir/sft.gguf"'
refuse 2 "name a model and a file" export "$dir/sft"
ln -s /dev/full "$dir/full"
refuse 1 "No space left" export "$dir/sft" --gguf "$dir/full"
check "a device is written to, not replaced" '[ -c "$dir/full" ]'
refuse 2 "type" export "$dir/sft" --gguf "$dir/no" --type q4
refuse 1 "cannot" export "$dir/none" --gguf "$dir/no"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
