# `ravel serve` as others reach it: OpenAI's package, which pip brings into the build folder, and curl. BUILD names the build folder.
# Ends with "N passed, N failed, N skipped".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d) golden=tests/golden/text/smol pid=""
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' TERM INT
passed=0 failed=0 skipped=0
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $(tail -n 3 "$dir/out")"; fi; }
skip() { skipped=$((skipped + 1)); echo "  skip  $1"; }

# A model with that tokenizer, which has learnt to say colours, and to call a tool where it is told to.
vocab=$(python3 -c "
import json
t = json.load(open('$golden/tokenizer.json'))
print(max(list(t['model']['vocab'].values()) + [a['id'] for a in t['added_tokens']]) + 1)")
"$ravel" train sft --task copy --vocab "$vocab" --hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128 --steps 1 \
    --batch 4 --budget 256 --quiet --sinks jsonl --run "$dir/new" >"$dir/out" 2>&1
model=$dir/new/checkpoints/step-00000001
cp $golden/tokenizer.json $golden/tokenizer_config.json "$model/"
printf '%s' "{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}{% for t in m.tool_calls or [] %}<tool_call>
{\"name\": \"{{ t.function.name }}\", \"arguments\": {{ t.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}" >"$model/chat_template.jinja"
python3 - "$model" "$dir/chat.jsonl" <<'P'
import json, sys
tokens = {t["content"]: t["id"] for t in json.load(open(sys.argv[1] + "/tokenizer.json"))["added_tokens"]}
config = json.load(open(sys.argv[1] + "/config.json"))
config["eos_token_id"] = tokens["<|im_end|>"]
json.dump(config, open(sys.argv[1] + "/config.json", "w"))
with open(sys.argv[2], "w") as f:
    for i in range(64):
        colour = ["red", "blue", "green", "black"][i % 4]
        f.write(json.dumps({"messages": [{"role": "user", "content": "Say %s." % colour}, {"role": "assistant", "content": colour}]}) + "\n")
        call = {"type": "function", "function": {"name": "f", "arguments": {"n": 1}}}
        if i % 4 == 0:
            f.write(json.dumps({"messages": [{"role": "user", "content": "Call f."}, {"role": "assistant", "content": "", "tool_calls": [call]}]}) + "\n")
P
"$ravel" train sft --model "$model" --data "$dir/chat.jsonl" --steps 60 --batch 16 --lr 0.003 --budget 512 --quiet --sinks jsonl \
    --run "$dir/sft" >"$dir/out" 2>&1
check "a model that says colours" '[ $? = 0 ]'
model=$dir/sft/checkpoints/step-00000060

if why=$(sh mk/openai-venv.sh "$BUILD"); then
    timeout 300 "$BUILD/openai-venv/bin/python" tests/serve/openai_client.py "$ravel" "$model" >"$dir/out" 2>&1
    grep '^  ' "$dir/out"
    if last=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$dir/out"); then
        passed=$((passed + ${last%% *})) failed=$((failed + $(echo "$last" | awk '{ print $3 }')))
    else
        failed=$((failed + 1)); echo "  FAIL  openai: $(tail -n 3 "$dir/out")"
    fi
else
    skip "openai: $why"
fi

if command -v curl >/dev/null 2>&1; then
    : >"$dir/log"
    "$ravel" serve "$model" --listen 127.0.0.1:0 --name m 2>"$dir/log" &
    pid=$!
    for _ in $(seq 1200); do grep -q 'at port' "$dir/log" && break; sleep 0.05; done
    at=http://127.0.0.1:$(sed -n 's/.*at port \([0-9]*\).*/\1/p' "$dir/log" | head -n 1)
    talk='{"messages": [{"role": "user", "content": "Say red."}], "temperature": 0, "max_tokens": 8'
    curl -sS "$at/v1/chat/completions" -d "$talk}" >"$dir/out" 2>&1
    check "curl: a conversation" 'grep -q "\"content\":\"red\"" "$dir/out"'
    curl -sSN "$at/v1/chat/completions" -d "$talk, \"stream\": true}" >"$dir/out" 2>&1
    check "curl: a stream" 'grep -q "\"content\":\"r" "$dir/out" && [ "$(grep -c "^data: " "$dir/out")" -ge 2 ] && grep -q "^data: \[DONE\]" "$dir/out"'
    curl -sS -H 'Transfer-Encoding: chunked' -H 'Expect: 100-continue' "$at/v1/completions" -d '{"prompt": "x", "max_tokens": 2}' >"$dir/out" 2>&1
    check "curl: a body in chunks, after 100-continue" 'grep -q "\"text_completion\"" "$dir/out"'
    curl -sS --http1.0 -o /dev/null -w '%{http_code}' "$at/health" >"$dir/out" 2>&1
    check "curl: health over HTTP/1.0" '[ "$(cat "$dir/out")" = 200 ]'
    curl -sS "$at/metrics" >"$dir/out" 2>&1
    check "curl: metrics" 'grep -q "^# TYPE ravel_serve_" "$dir/out"'
    curl -sS "$at/tokenize" -d '{"messages": [{"role": "user", "content": "x"}]}' >"$dir/out" 2>&1
    check "curl: tokens of a conversation" 'grep -q "\"count\":" "$dir/out"'
    kill "$pid"; wait "$pid"; code=$? pid=""
    check "the server ends" '[ $code = 0 ]'
else
    skip "curl is not installed"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
