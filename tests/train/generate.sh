# `ravel generate`: streams, JSON lines in and out, the same answers however many run at once, bad inputs.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $2"; fi; }
"$ravel" train sft --task copy --level 1 --steps 150 --batch 64 --lr 0.003 --hidden 64 --layers 2 --heads 4 --kv-heads 2 \
    --head-dim 16 --ffn 128 --budget 1k --quiet --sinks jsonl --run "$dir/run" >/dev/null 2>&1
model=$dir/run/checkpoints/step-00000150
generate() { timeout 300 "$ravel" generate --model "$model" "$@"; }

greedy=$(generate --prompt 'copy ab:' --temperature 0 --max-tokens 16)
check "a greedy answer is what was taught: $greedy" '[ "$greedy" = ab ]'
for i in 0 1 2 3 4 5 6 7 8 9; do echo "{\"prompt\": \"copy a$i:\"}"; done >"$dir/prompts.jsonl"
generate --data "$dir/prompts.jsonl" --samples 3 --max-tokens 8 --seed 7 --slots 1 >"$dir/one" 2>/dev/null
generate --data "$dir/prompts.jsonl" --samples 3 --max-tokens 8 --seed 7 --slots 64 --out "$dir/many"
generate --data "$dir/prompts.jsonl" --samples 3 --max-tokens 8 --seed 8 --slots 64 >"$dir/other"
check "answers do not depend on how many run at once" '[ -s "$dir/one" ] && cmp -s "$dir/one" "$dir/many"'
python3 -c "
import json
for i in range(6): print(json.dumps({'input_ids': [(t * 7) % 90 + 33 for t in range(150 + 10 * i)]}))" >"$dir/long.jsonl"
generate --data "$dir/long.jsonl" --max-tokens 8 --temperature 0 --slots 2 >"$dir/plain"
generate --data "$dir/long.jsonl" --max-tokens 8 --temperature 0 --slots 2 --keep-tokens 2k >"$dir/keep"
check "kept pages give the same answers" 'python3 -c "
import json, sys
a, b = ([json.loads(line)[\"response_ids\"] for line in open(f)] for f in sys.argv[1:])
assert len(a) == 6 and a == b" "$dir/plain" "$dir/keep"'
check "another seed gives other answers" '! cmp -s "$dir/many" "$dir/other"'
check "30 lines of JSON in the order of the input" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [(r[\"row\"], r[\"sample\"]) for r in rows] == [(i, s) for i in range(10) for s in range(3)]
assert all(len(r[\"response_ids\"]) == r[\"tokens\"] <= 8 and r[\"logprob\"] <= 0 for r in rows)
assert all(r[\"prompt\"] == \"copy a%d:\" % r[\"row\"] for r in rows)" "$dir/many"'
check "it is the same sampler as greedy with top-k 1" '[ "$(generate --prompt "copy ab:" --top-k 1 --max-tokens 16)" = ab ]'
check "a reader that leaves is no failure" 'generate --data "$dir/prompts.jsonl" --samples 50 --max-tokens 8 2>"$dir/err" | head -n 1 >/dev/null; [ ! -s "$dir/err" ]'
# ---- stop texts: the model copies its word, and is not let end there ----
greedy() { generate --prompt 'copy ab:' --temperature 0 --max-tokens 12 --stop-ids 300 "$@"; }
sampled() { generate --prompt 'copy ab:' --max-tokens 12 --stop-ids 300 "$@"; }
word=$(greedy)
middle=$(echo "$word" | cut -c 2-3) second=$(echo "$word" | cut -c 2)
check "an answer ends before a stop text" '[ ${#word} -ge 2 ] && [ "$(greedy --stop "$middle")" = "$(echo "$word" | cut -c 1)" ]'
check "the first of several stop texts counts" '[ "$(greedy --stop zz --stop "$middle" --stop "$second")" = "$(echo "$word" | cut -c 1)" ]'
check "the beginning of one that does not come is shown after all" '[ "$(greedy --stop "${middle}zz")" = "$word" ]'
greedy --stop "$middle" --json >"$dir/stopped"
check "JSON lines: cut text, ended, no token after it" 'python3 -c "
import json, sys
row = json.loads(open(sys.argv[1]).read())
assert row[\"response\"] == sys.argv[2][:1] and row[\"ended\"] and row[\"tokens\"] == len(row[\"response_ids\"]) < 12, row" "$dir/stopped" "$word"'
generate --data "$dir/prompts.jsonl" --samples 3 --max-tokens 8 --seed 7 --stop a --stop 5 >"$dir/cut"
check "stop texts cut what would have come anyway" 'python3 -c "
import json, re, sys
for whole, cut in zip(open(sys.argv[1]), open(sys.argv[2])):
    whole, cut = json.loads(whole), json.loads(cut)
    assert cut[\"response\"] == re.split(\"[a5]\", whole[\"response\"])[0], (whole, cut)
    assert whole[\"response_ids\"][:cut[\"tokens\"]] == cut[\"response_ids\"] and (cut[\"tokens\"] == whole[\"tokens\"] or cut[\"ended\"])" "$dir/many" "$dir/cut"'
check "min-p 1 and a small top-p leave the likeliest token" '[ "$(sampled --min-p 0.9999)" = "$word" ] && [ "$(sampled --top-p 1e-6)" = "$word" ]'
# ---- standard input, and a run as the model ----
check "the prompt on standard input" '[ "$(printf "copy ab:\n" | "$ravel" generate "$dir/run" --prompt - --temperature 0 --max-tokens 16)" = ab ]'
"$ravel" generate "$dir/run" --data - --samples 3 --max-tokens 8 --seed 7 <"$dir/prompts.jsonl" >"$dir/stdin"
check "rows on standard input" 'cmp -s "$dir/many" "$dir/stdin"'
printf '{"nothing": 1}\n' | "$ravel" generate "$dir/run" --data - >"$dir/out" 2>&1
check "a bad row there is named" '[ $? = 1 ] && grep -q "standard input:1: " "$dir/out"'
# ---- interrupted: what is written stays, under a name that says so ----
python3 - "$ravel" "$model" "$dir" <<'P' >"$dir/out" 2>&1
import json, os, re, signal, subprocess, sys, time
ravel, model, folder = sys.argv[1:]
def interrupted(number, *flags, out="part"):
    path = os.path.join(folder, out)
    p = subprocess.Popen([ravel, "generate", model, "--data", folder + "/prompts.jsonl", "--out", path, "--samples", "20", "--max-tokens",
                          "100", "--stop-ids", "300", "--slots", "1", *flags], stderr=subprocess.PIPE, text=True)
    aside, end = f"{path}.tmp.{p.pid}.0", time.monotonic() + 300
    while p.poll() is None and time.monotonic() < end and not (os.path.exists(aside) and os.path.getsize(aside)):
        time.sleep(0.01)
    for _ in range(2): p.send_signal(number)  # as `timeout` does, to its child and to its group
    said = p.communicate(timeout=300)[1]
    return p.returncode, said, path
for number in (signal.SIGINT, signal.SIGTERM):
    code, said, path = interrupted(number, "--repeat", "1000")
    count = int(re.search(r"interrupted after ([\d,]+) of 200,000 answers; they are in .*part.partial", said)[1].replace(",", ""))
    rows = [json.loads(line) for line in open(path + ".partial")]
    assert code == 128 + number and len(rows) == count > 0 and not os.path.exists(path), (code, said)
    assert [f for f in os.listdir(folder) if f.startswith("part")] == ["part.partial"]
code, said, path = interrupted(signal.SIGINT, "--repeat", "0", out="endless")
assert code == 0 and [json.loads(line) for line in open(path)] and not os.path.exists(path + ".partial"), (code, said)
P
check "interrupted: status, count, FILE.partial; with --repeat 0 FILE" '[ $? = 0 ] || { tail -n 3 "$dir/out"; false; }'
cp "$dir/prompts.jsonl" "$dir/kept.jsonl"
refuse() { # CODE SAYS ARGS...
    code=$1 says=$2; shift 2
    timeout 300 "$ravel" generate "$@" >"$dir/out" 2>&1
    got=$?
    check "refused: $*" '[ $got = $code ] && grep -q -e "$says" "$dir/out"'
}
refuse 2 'give --model' --prompt x
refuse 2 'give --prompt' --model "$model"
refuse 2 'not both' --model "$model" --prompt x --data y
refuse 2 'add --json' --model "$model" --prompt x --samples 2
refuse 2 'did you mean --top-p' --model "$model" --prompt x --topp 0.5
refuse 2 'must be up to' --model "$model" --prompt x --stop-ids 9999
refuse 2 'graphs is "maybe"; it must be one of auto|on|off' --model "$model" --prompt x --graphs maybe
refuse 1 'graphs on: this kernel set has no graphs; use --graphs auto' --model "$model" --prompt x --graphs on
refuse 2 'must have from 1 to 256 bytes' --model "$model" --prompt x --stop ''
refuse 2 'at most' --model "$model" --prompt x $(for i in $(seq 17); do echo "--stop $i"; done)
refuse 2 'would write over a file that is read' --model "$model" --data "$dir/prompts.jsonl" --out "$dir/prompts.jsonl"
refuse 2 'would write over a file that is read' --model "$model" --data "$dir/prompts.jsonl" --out "$model/model.safetensors"
cp "$dir/prompts.jsonl" "$dir/x.partial"
refuse 2 'would write over a file that is read' --model "$model" --data "$dir/x.partial" --out "$dir/x"
check "inputs are as they were" 'cmp -s "$dir/kept.jsonl" "$dir/prompts.jsonl"'
refuse 1 'cannot open it\|cannot read' --model "$dir/missing" --prompt x
refuse 1 'cannot be read' --model "$model" --data "$dir/missing.jsonl"
echo '{"question": "x"}' >"$dir/bad.jsonl"
refuse 1 'bad.jsonl:1: expected' --model "$model" --data "$dir/bad.jsonl"
# ---- no more tokens than the model is made for ----
cp -r "$model" "$dir/short" && sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 12/' "$dir/short/config.json"
timeout 300 "$ravel" generate --model "$dir/short" --prompt 'copy ab:' --stop-ids 300 --json >"$dir/out" 2>"$dir/err"
check "an answer ends where the model's positions end" 'grep -q "made for no more (max_position_embeddings)" "$dir/err" && grep -q "\"tokens\": 3," "$dir/out"'
refuse 1 'a prompt of 15 tokens leaves no room for an answer: the model is made for 12' --model "$dir/short" --prompt 'copy abcdefgh:'
missing=$("$ravel" generate --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' |
    while read -r name; do grep -q -e "Fl -$name\b" docs/man/ravel-generate.1 || echo "$name"; done)
check "every option is in the man page" '[ -z "$missing" ]'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
