#!/bin/sh
# An agent of many turns, on two cores in about two minutes: a model learns to guess a number from "higher" and "lower".
#   1. fine-tuning on 20,000 games of a poor player   ravel train sft
#   2. GRPO in the environment examples/env/guess.py   ravel train grpo --env-command: at most eight guesses, the reward rises from 0.4 to 0.6
#   3. the curve
# STEPS=2000 goes on to 0.93 (ten minutes).
#     mk/demo-agent.sh BUILD
set -eu
build=$1 out=$1/demo-agent
rm -rf "$out"
mkdir -p "$out"
ravel() { echo; echo "\$ ravel $*"; "$build/ravel" "$@"; }
python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }

"$python" examples/env/guess.py --warm-up 20000 >"$out/games.jsonl"
ravel train sft --data "$out/games.jsonl" --hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 192 --steps 250 --batch 64 \
    --budget 2k --lr 0.003 --eval-samples 0 --quiet --run "$out/sft"
ravel train grpo --model "$out/sft" --env-command "exec $python examples/env/guess.py" --max-turns 8 --max-tokens 3 --steps "${STEPS:-400}" \
    --prompts 16 --group-size 16 --budget 4k --lr 0.001 --schedule linear --clip-high 0.28 --slots 256 --eval-prompts 256 --eval-every 50 \
    --quiet --run "$out/grpo"

echo
echo "Mean reward of sampled games, and of greedy ones that are not trained on, by update:"
"$python" - "$out/grpo/metrics.jsonl" <<'P'
import json, sys
rows = list(map(json.loads, open(sys.argv[1])))
greedy = {row["step"]: row["eval/reward"] for row in rows if "eval/reward" in row}
for end in range(50, rows[-1]["step"] + 1, 50):
    some = [row["reward/mean"] for row in rows if end - 50 < row["step"] <= end]
    mean = sum(some) / len(some)
    print("  %5d  %.2f  %.2f  %s" % (end, mean, greedy.get(end, 0), "#" * round(50 * mean)))
P
