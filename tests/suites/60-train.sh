# Training runs as a user starts them: interrupted and resumed, bad inputs, random ways to end. RAVEL_SOAK: 300 such ends, 100 killed environments, 200
# lost ranks, and a real checkpoint on a mesh.
set -u
. tests/seed.sh
$MAKE --no-print-directory -j2 BUILD="$BUILD" all "$BUILD/libravel_train_stub.so" "$BUILD/ravel-gpu" >"$BUILD/train-build.log" 2>&1 || { cat "$BUILD/train-build.log"; exit 1; }
log=$BUILD/train-suite.log code=0
: >"$log"
part() { # INTERPRETER SCRIPT...: a part that ends without its totals has failed
    if grep -q python3 "$2" && ! command -v python3 >/dev/null 2>&1; then
        printf '  skip  %s: python3 is not installed\n0 passed, 0 failed, 1 skipped\n' "$2" | tee -a "$log"
        return
    fi
    "$@" >"$log.part" 2>&1
    grep -qE '^[0-9]+ passed, [0-9]+ failed' "$log.part" || printf '  FAIL  %s did not finish\n0 passed, 1 failed, 0 skipped\n' "$*" >>"$log.part"
    cat "$log.part"
    cat "$log.part" >>"$log"
}
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/runs.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/mesh.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/device.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/nccl.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/inputs.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/everyday.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/generate.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/lora.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/eval.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/rewards.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/chat.sh
[ -n "${RAVEL_SOAK:-}" ] || part sh tests/train/publish.sh
[ -z "${RAVEL_SOAK:-}" ] || part sh tests/train/real.sh
[ -z "${RAVEL_SOAK:-}" ] || part python3 tests/train/lost.py "$BUILD/ravel" 200
[ -z "${RAVEL_SOAK:-}" ] || part python3 tests/train/kills.py "$BUILD/ravel" 100
part python3 tests/train/envs.py "$BUILD/ravel" "$([ -n "${RAVEL_SOAK:-}" ] && echo 100 || echo 8)"
part python3 tests/train/ends.py "$BUILD/ravel" "$([ -n "${RAVEL_SOAK:-}" ] && echo 300 || echo 14)"
awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5; n++ }
    END { if (n == 0) f++; printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$log" || code=1
exit $code
