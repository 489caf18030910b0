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
cat >"$dir/think.jinja" <<'J'
{% for m in messages %}<|im_start|>{{ m.role }}
{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
J
"$ravel" train sft --model "$model" --data "$dir/chat.jsonl" --steps 1 --batch 16 --budget 512 --chat-format "$dir/think.jinja" --run "$dir/think" >"$dir/out" 2>&1
check "empty thoughts that a template writes are said" 'grep -qF "the chat template puts text of its own before 64 answers, as \"<think>\\n\\n</think>\\n\\n\"; it is trained on" "$dir/out"'
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
# ---- ravel chat, on the run's folder ----
talk() { timeout 300 "$ravel" chat "$dir/sft" --temperature 0 --max-tokens 8 $format "$@" 2>"$dir/err"; }
printf '%s\n' 'Say red.' /retry /undo 'Say blue.' /reset '/system Be brief.' '"""' 'Say' 'green.' '"""' 'Say \' 'black.' '/status' "/save $dir/saved.jsonl" /exit 'Say red.' |
    talk >"$dir/out"
code=$?
check "a conversation from a pipe" '[ $code = 0 ] && [ "$(head -n 3 "$dir/out" | tr "\n" " ")" = "red red blue " ] && [ "$(wc -l <"$dir/out")" = 5 ]'
check "what a command has done is said" 'grep -qx "(the last turn is taken back)" "$dir/err" && grep -qx "(the conversation is forgotten)" "$dir/err" &&
    grep -qx "(system message: Be brief.)" "$dir/err" && grep -qx "(saved in: $dir/saved.jsonl)" "$dir/err"'
check "its status" 'grep -q "step-00000060" "$dir/err" && grep -q "5 messages; last turn: [0-9]* tokens of prompt" "$dir/err"'
check "it is saved as a row to train on" 'python3 -c "
import json, sys
rows = [json.loads(line)[\"messages\"] for line in open(sys.argv[1])]
assert len(rows) == 1 and [m[\"role\"] for m in rows[0]] == [\"system\", \"user\", \"assistant\", \"user\", \"assistant\"]
assert [m[\"content\"] for m in rows[0]][:2] == [\"Be brief.\", \"Say\\ngreen.\"] and rows[0][3][\"content\"] == \"Say \\nblack.\", rows" "$dir/saved.jsonl"'
long='Say red. Say blue. Say green. Say black. '
printf '%s\n' "$long$long$long$long$long" 'Say green.' /status | talk --context 1024 >"$dir/out"
check "keys of earlier turns are kept" 'grep -q "tokens of prompt, [1-9][0-9]* of them kept from before" "$dir/err"'
for i in 1 2 3 4 5 6 7 8 9; do printf 'Say red.\nSay blue.\n'; done | talk --context 96 >"$dir/out"
check "the oldest turns of a long one are forgotten, and it says so" '[ $? = 0 ] && [ "$(wc -l <"$dir/out")" = 18 ] && grep -q "its first 1 turn is forgotten" "$dir/err"'
printf '%s\n' 'Say red.' '/model '"$model" 'Say red.' "/model $dir/nothing" 'Say blue.' | talk >"$dir/out"
check "another model; one that is missing ends it, from a pipe" '[ $? = 1 ] && grep -q "nothing" "$dir/err" && head -n 1 "$dir/out" | grep -qx red'
printf '%s\n' /version '/version 60' 'Say red.' '/version newest' '/temperatur 1' | talk >"$dir/out"
check "versions, and a mistyped command" '[ $? = 2 ] && [ "$(cat "$dir/out")" = red ] && grep -q "(step 60)" "$dir/err" && grep -q "did you mean /temperature" "$dir/err"'
printf '//slash\n' | timeout 300 "$ravel" chat "$model" --raw --max-tokens 3 >"$dir/out" 2>&1
check "raw texts" '[ $? = 0 ] && [ -s "$dir/out" ]'
[ -z "$format" ] || { timeout 300 "$ravel" chat "$tuned" </dev/null >"$dir/out" 2>&1
    check "without a template it refuses" '[ $? = 1 ] && grep -q "cannot hold a conversation: .*--raw" "$dir/out"'; }
# A template that cannot be read: raw texts only if they are asked for.
cp -r "$tuned" "$dir/odd-template"
python3 - "$dir/odd-template/tokenizer_config.json" <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
config["chat_template"] = "{{ cycler(1, 2)|no_such_filter }}"
json.dump(config, open(sys.argv[1], "w"))
P
timeout 300 "$ravel" chat "$dir/odd-template" </dev/null >"$dir/out" 2>&1
check "chat says at the start that a template cannot be used" '[ $? = 1 ] && grep -q "cannot hold a conversation: .*no_such_filter" "$dir/out"'
"$ravel" serve "$dir/odd-template" --listen 0 >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 600); do grep -q "at port" "$dir/out" && break; sleep 0.1; done
kill $pid; wait $pid
check "... and so does serve" 'grep -q "/v1/chat/completions will be refused: .*no_such_filter" "$dir/out"'
timeout 300 "$ravel" generate "$dir/odd-template" --prompt "Say red." --max-tokens 4 >"$dir/answer" 2>"$dir/out"
check "generate refuses an unknown chat template without --raw" '[ $? != 0 ] && [ ! -s "$dir/answer" ] && grep -q -e "--raw" "$dir/out"'
timeout 300 "$ravel" generate "$dir/odd-template" --prompt "Say red." --max-tokens 4 --raw >"$dir/answer" 2>"$dir/out"
check "... and answers with it" '[ $? = 0 ] && [ -s "$dir/answer" ]'
python3 - "$ravel" "$dir/sft" "$dir/typed.jsonl" $format <<'P' >"$dir/out" 2>&1
import json, os, pty, select, sys, time
os.environ["TERM"] = "xterm"
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "chat", sys.argv[2], "--temperature", "0", "--stop-ids", "0", "--max-tokens", "1000", *sys.argv[4:]])
seen = b""
def until(text, seconds=120):
    global seen
    end = time.time() + seconds
    while text not in seen and time.time() < end and select.select([fd], [], [], 1)[0] is not None:
        try:
            if select.select([fd], [], [], 0.1)[0]:
                seen += os.read(fd, 4096)
        except OSError:
            break
    assert text in seen, seen
    before, seen = seen.split(text, 1)
    return before
def typed(keys):
    os.write(fd, keys)
    until(b"\x1b[?2004l")
until(b"> ")
typed(b"Say red.\n")
until(b"red")
os.write(fd, b"\x03")
until(b"(stopped)")
until(b"> ")
typed(b"/foo\n")
until(b"there is no /foo")
until(b"> ")
typed(b"/max-tokens 2\n")
until(b"> ")
typed(b"Say blue.\n")
until(b"(cut at --max-tokens 2)")
until(b"> ")
# an editor: UTF-8, keys, history; what is pasted is one turn of any length
typed("/system ".encode() + "h\u00e9\u4e2dx".encode() + b"\x1b[D\x7f\x1b[D!\x1b[Hjunk\x15\r")
until("(system message: h!\u00e9x)".encode())
until(b"> ")
typed(b"\x1b[A\x1b[A\x1b[B!\r")
until("(system message: h!\u00e9x!)".encode())
until(b"> ")
typed(b"/reset\r")
until(b"> ")
typed(b"\x1b[200~Say\r\tred.\r\n\x1b[201~\x1b[H\x1b[C\x1b[3~\r")
until(b"> ")
typed(b"/save %s\r" % os.fsencode(sys.argv[3]))
until(b"(saved in: ")
until(b"> ")
rows = [json.loads(line)["messages"] for line in open(sys.argv[3])]
assert rows[0][1]["content"] == "Sy\n\tred.\n", rows
typed(b"\x1b[200~" + b"".join(b"line %d of a long text\r" % i for i in range(1000)) + b"\x1b[201~\r")
assert b"but --context is" in until(b"> ") # 20,000 bytes came
os.write(fd, b"x\x03\x04")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
P
check "a terminal: an editor; Ctrl-C stops an answer, a mistake is said, Ctrl-D ends" '[ $? = 0 ]'
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
echo '{"model": {"type": "WordLevel", "vocab": {"a": 0}}}' >"$ids/tokenizer.json"
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
check "a refused tokenizer is an error of text, by name, with the way out" '[ $? = 1 ] && grep -q "WordLevel.*ravel.prepare" "$dir/out"'
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
# Turns between a chat model and an environment: markers are the template's, and the model's own tokens stay.
python3 examples/env/calculator.py --questions 20 >"$dir/sums.jsonl"
"$ravel" train grpo --model "$tuned" --data "$dir/sums.jsonl" --env-command "python3 examples/env/calculator.py" --max-turns 3 --max-tokens 6 \
    --env-tokens 100 --steps 2 --prompts 2 --group-size 4 --eval-prompts 0 $common $format --run "$dir/calc" >"$dir/out" 2>&1
check "grpo with a tool" '[ $? = 0 ] && grep -q "\"env/turns_mean\":1" "$dir/calc/metrics.jsonl"'
"$ravel" train grpo --model "$tuned" --env-command "python3 examples/env/rooms.py" --max-turns 3 --max-tokens 6 --env-tokens 300 --steps 2 --prompts 2 \
    --group-size 4 --eval-prompts 0 $common $format --run "$dir/rooms" >"$dir/out" 2>&1
check "grpo with a text game, whose turns have the template's markers" '[ $? = 0 ] && grep -q "\"env/turns_mean\":3" "$dir/rooms/metrics.jsonl" \
    && grep -q "Bring the lamp" "$dir/rooms/samples.jsonl" && [ "$(grep -c "user" "$dir/rooms/samples.jsonl")" = 2 ]'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
