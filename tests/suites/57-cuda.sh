# CUDA kernels for every GPU since Ampere: one file of kernels is compiled for all of them (by turns: the day chooses), and what it
# holds is read. RAVEL_SOAK=1: all files. `make test` compiles every file for two GPUs.
set -u
if ! grep -q '^HAVE_CUDA' "$BUILD/config.mk" 2>/dev/null; then
    echo "  skip  kernels for every GPU: nvcc is missing (Debian: cuda-toolkit-13)"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
set -- src/device/cuda*.cu train/kernels/cuda/*.cu
if [ -z "${RAVEL_SOAK:-}" ]; then
    shift $((${RAVEL_SEED_OF_DAY:-0} % $#))
    set -- "$1"
fi
mkdir -p "$BUILD/fat"
cp "$BUILD/config.mk" "$BUILD/fat/config.mk"
gpus=$(sed -n 's/^CUDA_GPUS ?=//p' "$BUILD/config.mk")
passed=0 failed=0
for file; do
    object=$BUILD/fat/obj/$file.o
    if env -u CUDA_CODE $MAKE --no-print-directory BUILD="$BUILD/fat" "$object" >"$BUILD/fat/log" 2>&1 &&
       python3 tests/gpu/fatbin.py "$object" $gpus >>"$BUILD/fat/log" 2>&1; then
        passed=$((passed + 1)); echo "  ok    $file: $(tail -n 1 "$BUILD/fat/log")"
    else failed=$((failed + 1)); echo "  FAIL  $file"; tail -n 20 "$BUILD/fat/log"; fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
