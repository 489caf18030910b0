#!/bin/sh
# The main job, start to finish, on two cores in under two minutes:
#   1. a plan for 4096 samples of lognormal lengths on 16 ranks, and its picture
#   2. supervised fine-tuning of a small model on a task: sort the digits of a number
#   3. GRPO on the same task: 2 trainer ranks and 1 generator rank in one process, weights moved by refit
#   4. the report: where the time went, and at the end the rewards before and after
# The reward rises by 0.1 or more for greedy answers to questions that were not trained on, and by 0.2 or more for sampled
# ones (tests/suites/61-demo.sh holds it to that; seen: 0.74 to 0.93, and 0.19 to 0.71).
#     mk/demo.sh BUILD
set -eu
build=$1 out=$1/demo
rm -rf "$out"
mkdir -p "$out"
ravel() { echo; echo "\$ ravel $*"; echo; "$build/ravel" "$@"; }

mock='{"mode":"distribution","type":"lognormal","min_seq_len":1024,"max_seq_len":8192,"mean_seq_len":4096,"lognormal_sigma":1.1}'
ravel plan --mock "$mock" --mock-count 4096 --budget 16k --dp 16 --cost qwen3-0.6b --html "$out/plan.html"

ravel train sft --task sort --level 2 --steps 60 --batch 64 --ranks 2 --budget 1k --lr 0.003 --run "$out/sft"

# Progress goes to the terminal; the result is printed at the end.
set -- train grpo --task sort --level 2 --model "$out/sft/checkpoints/step-00000060" --ranks 2 --generators 1 \
    --steps 160 --prompts 32 --group-size 8 --max-tokens 8 --budget 2k --lr 0.0004 --eval-prompts 256 --run "$out/grpo"
echo; echo "\$ ravel $*"; echo
"$build/ravel" "$@" >"$out/grpo.txt"

ravel report "$out/grpo" --html "$out/grpo.html"

here=$(cd "$out" && pwd)
echo
echo "Result: GRPO on 2 trainer ranks and 1 generator rank"
sed -n '/^  run folder/d; /^  /p' "$out/grpo.txt"
echo
echo "The pictures:"
echo "  the plan               file://$here/plan.html"
echo "  the report             file://$here/grpo.html"
