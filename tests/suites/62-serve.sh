# `ravel serve` as clients use it: over sockets with Python's standard library, with curl, and with the openai package, which pip
# brings into the build folder. RAVEL_SOAK=1: 500 clients at once.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" all >"$BUILD/serve-build.log" 2>&1 || { cat "$BUILD/serve-build.log"; exit 1; }
command -v python3 >/dev/null 2>&1 || { echo "  skip  python3 is not installed"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
clients=50
[ -z "${RAVEL_SOAK:-}" ] || clients=500
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
"$BUILD/ravel" train sft --task copy --level 1 --steps 100 --batch 64 --lr 0.003 --hidden 64 --layers 2 --heads 4 --kv-heads 2 \
    --head-dim 16 --ffn 128 --budget 1k --quiet --sinks jsonl --run "$dir/words" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
sum() { awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5; next } { print } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }'; }
part() { # PROGRAM...: one that ends without its totals has failed
    timeout 600 "$@" >"$dir/part" 2>&1
    cat "$dir/part"
    grep -qE '^[0-9]+ passed, [0-9]+ failed' "$dir/part" || printf '  FAIL  %s did not finish\n0 passed, 1 failed, 0 skipped\n' "$*"
}
model=$dir/words/checkpoints/step-00000100
{
    part python3 tests/serve/serve.py "$BUILD/ravel" "$model" $clients
    part python3 tests/serve/rollout.py "$BUILD/ravel" "$model"
    part sh tests/serve/clients.sh
} | sum
