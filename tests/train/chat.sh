# Conversations from a chat file, through a model folder with a tokenizer: sft, dpo, grpo, generate.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d) golden=tests/golden/text/smol
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $(tail -n 3 "$dir/out")"; fi; }
vocab=$(python3 -c "
import json
t = json.load(open('$golden/tokenizer.json'))
print(max(list(t['model']['vocab'].values()) + [a['id'] for a in t['added_tokens']]) + 1)")
# A new model of the tokenizer's vocabulary, as a folder with that tokenizer.
"$ravel" train sft --task copy --vocab "$vocab" --hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128 --steps 1 \
    --batch 4 --budget 256 --quiet --sinks jsonl --run "$dir/new" >"$dir/out" 2>&1
model=$dir/new/checkpoints/step-00000001
cp $golden/tokenizer.json $golden/tokenizer_config.json "$model/"
python3 - "$model" <<'P'
import json, sys
tokens = {t["content"]: t["id"] for t in json.load(open(sys.argv[1] + "/tokenizer.json"))["added_tokens"]}
config = json.load(open(sys.argv[1] + "/config.json"))
config["eos_token_id"] = tokens["<|im_end|>"]
json.dump(config, open(sys.argv[1] + "/config.json", "w"))
P
python3 - "$dir" <<'P'
import json, sys
dir = sys.argv[1]
colours = ["red", "blue", "green", "black"]
chat, pairs, ask = (open("%s/%s.jsonl" % (dir, name), "w") for name in ("chat", "pairs", "ask"))
for i in range(64):
    a, b = colours[i % 4], colours[(i + 1) % 4]
    user = {"role": "user", "content": "Say %s." % a}
    chat.write(json.dumps({"messages": [user, {"role": "assistant", "content": a}]}) + "\n")
    pairs.write(json.dumps({"prompt": [user], "chosen": [{"role": "assistant", "content": a}],
                            "rejected": [{"role": "assistant", "content": b}]}) + "\n")
    ask.write(json.dumps({"messages": [user], "answer": a}) + "\n")
open(dir + "/tools.jsonl", "w").write(json.dumps({"messages": [user], "tools": [{}]}) + "\n")
open(dir + "/odd.jsonl", "w").write(json.dumps({"question": "x"}) + "\n")
P
common="--budget 512 --quiet --sinks jsonl"
has_format() { "$ravel" train sft --model "$model" --data "$dir/chat.jsonl" --steps 1 --batch 4 $common --run "$dir/try" >"$dir/out" 2>&1; code=$?; rm -rf "$dir/try"; return $code; }
format=""
has_format || format="--chat-format chatml"
"$ravel" train sft --model "$model" --data "$dir/chat.jsonl" --steps 60 --batch 16 --lr 0.003 $common $format --run "$dir/sft" >"$dir/out" 2>&1
check "sft on conversations" '[ $? = 0 ] && [ -f "$dir/sft/checkpoints/step-00000060/tokenizer.json" ]'
check "the answers are learnt: $(sed -n "s/.*last loss per token *//p" "$dir/out")" 'sed -n "s/.*last loss per token *//p" "$dir/out" | awk "{ exit !(\$1 < 0.5) }"'
tuned=$dir/sft/checkpoints/step-00000060
loss() { python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + '/metrics.jsonl')]
print(rows[0]['tokens/loss'])" "$1"; }
"$ravel" train sft --model "$model" --data "$dir/chat.jsonl" --steps 1 --batch 16 --train-on all $common $format --run "$dir/all" >"$dir/out" 2>&1
check "--train-on all learns more tokens than the answers" '[ "$(loss "$dir/all")" -gt "$(loss "$dir/sft")" ]'
"$ravel" train dpo --model "$tuned" --data "$dir/pairs.jsonl" --steps 10 --batch 16 --lr 1e-4 $common $format --run "$dir/dpo" >"$dir/out" 2>&1
check "dpo on conversations begins at log 2" '[ $? = 0 ] && grep -q "first loss per pair *0.6931" "$dir/out"'
for file in odd tools; do
    "$ravel" train sft --model "$model" --data "$dir/$file.jsonl" --steps 1 $common $format --run "$dir/$file" >"$dir/out" 2>&1
    check "$file rows are refused with a sentence" '[ $? = 1 ] && grep -q "$file.jsonl:1: " "$dir/out" && [ ! -e "$dir/$file" ]'
done
"$ravel" generate --model "$tuned" --prompt "Say red." --temperature 0 --max-tokens 8 $format >"$dir/out" 2>&1
check "generate answers as taught: $(cat "$dir/out")" '[ "$(cat "$dir/out")" = red ]'
"$ravel" generate --model "$tuned" --prompt "Say red." --temperature 0 --max-tokens 8 --stop-ids 0 --stop '<|im_end|>' $format >"$dir/out" 2>&1
check "a special token's text stands for the token" '[ "$(cat "$dir/out")" = red ]'
"$ravel" generate --model "$tuned" --prompt "Say red." --temperature 0 --max-tokens 8 --stop e $format >"$dir/out" 2>&1
check "a stop text inside a token" '[ "$(cat "$dir/out")" = r ]'
printf '{"prompt": "Say red."}\n' >"$dir/raw.jsonl"
"$ravel" generate --model "$tuned" --prompt "Say red." --raw --json --max-tokens 4 $format >"$dir/one" 2>"$dir/out"
"$ravel" generate --model "$tuned" --data "$dir/raw.jsonl" --raw --max-tokens 4 $format >"$dir/rows" 2>"$dir/out"
"$ravel" generate --model "$tuned" --data "$dir/raw.jsonl" --max-tokens 4 $format >"$dir/turns" 2>"$dir/out"
check "--raw is for the rows of a file too" '[ -s "$dir/one" ] && cmp -s "$dir/one" "$dir/rows" && ! cmp -s "$dir/one" "$dir/turns"'
printf '{"prompt": ""}\n' >"$dir/empty.jsonl"
"$ravel" generate --model "$tuned" --data "$dir/empty.jsonl" --raw >"$dir/out" 2>&1
check "an empty prompt is refused with its line" '[ $? = 1 ] && grep -q "empty.jsonl:1: the prompt is empty" "$dir/out"'
"$ravel" train grpo --model "$tuned" --data "$dir/ask.jsonl" --steps 2 --prompts 4 --group-size 4 --max-tokens 8 --eval-prompts 8 \
    --max-flat 0 $common $format --run "$dir/grpo" >"$dir/out" 2>&1
code=$?
check "grpo on conversations: $(sed -n "s/.*reward before *//p" "$dir/out")" '[ $code = 0 ] && sed -n "s/.*reward before *//p" "$dir/out" | awk "{ exit !(\$1 > 0.5) }"'
# The same rows as token ids (what ravel.prepare writes), on a folder whose tokenizer is refused: all three kinds of training.
ids=$dir/ids
mkdir "$ids"
cp "$tuned/config.json" "$tuned/model.safetensors" "$ids/"
echo '{"model": {"type": "Unigram", "vocab": [["a", 0]]}}' >"$ids/tokenizer.json"
"$ravel" tokenize "$model" "$dir/chat.jsonl" --rows --json $format >"$dir/rows.jsonl" 2>"$dir/out"
python3 - "$dir" <<'P'
import json, sys
dir = sys.argv[1]
rows = [json.loads(line) for line in open(dir + "/rows.jsonl")]
chat, pairs, ask = (open("%s/ids-%s.jsonl" % (dir, name), "w") for name in ("chat", "pairs", "ask"))
for i, row in enumerate(rows):
    ids, mask = row["ids"], row["loss_mask"]
    begin, end = mask.index(1), len(mask) - mask[::-1].index(1)
    other = rows[(i + 1) % 4]
    chat.write(json.dumps({"input_ids": ids, "loss_mask": mask}) + "\n")
    pairs.write(json.dumps({"prompt": ids[:begin], "chosen": ids[begin:end], "rejected": other["ids"][other["loss_mask"].index(1):]}) + "\n")
    ask.write(json.dumps({"input_ids": ids[:begin], "answer": {"ids": ids[begin:end]}}) + "\n")
open(dir + "/score.py", "w").write("""
import json, sys
for line in iter(sys.stdin.readline, ""):
    x = json.loads(line)
    print(json.dumps({"id": x["id"], "reward": float(x["response_ids"] == x["row"]["answer"]["ids"])}), flush=True)
""")
P
"$ravel" train sft --model "$ids" --data "$dir/chat.jsonl" --steps 1 $common --run "$dir/none" >"$dir/out" 2>&1
check "a refused tokenizer is an error of text, by name, with the way out" '[ $? = 1 ] && grep -q "Unigram.*ravel.prepare" "$dir/out"'
"$ravel" train sft --model "$ids" --data "$dir/ids-chat.jsonl" --steps 1 --batch 16 --save-shard 40k $common --run "$dir/ids-sft" >"$dir/out" 2>&1
check "sft on token ids, saved in several files" '[ $? = 0 ] && [ -f "$dir/ids-sft/checkpoints/step-00000001/model.safetensors.index.json" ] && cmp "$ids/tokenizer.json" "$dir/ids-sft/checkpoints/step-00000001/tokenizer.json"'
"$ravel" train dpo --model "$dir/ids-sft/checkpoints/step-00000001" --data "$dir/ids-pairs.jsonl" --steps 1 --batch 16 $common --run "$dir/ids-dpo" >"$dir/out" 2>&1
check "dpo on token ids, from several files" '[ $? = 0 ] && grep -q "first loss per pair *0.6931" "$dir/out"'
"$ravel" train grpo --model "$ids" --data "$dir/ids-ask.jsonl" --steps 1 $common --run "$dir/none" >"$dir/out" 2>&1
check "grpo on token ids cannot compare texts" '[ $? = 2 ] && grep -q -- "--reward-command can score" "$dir/out"'
"$ravel" train grpo --model "$ids" --data "$dir/ids-ask.jsonl" --steps 1 --prompts 4 --group-size 4 --max-tokens 8 --eval-prompts 8 --max-flat 0 \
    --reward-command "python3 $dir/score.py" $common --run "$dir/ids-grpo" >"$dir/out" 2>&1
code=$?
check "a reward command scores ids by the row: $(sed -n "s/.*reward before *//p" "$dir/out")" '[ $code = 0 ] && sed -n "s/.*reward before *//p" "$dir/out" | awk "{ exit !(\$1 > 0.5) }"'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
