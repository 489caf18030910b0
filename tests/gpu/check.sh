#!/bin/sh
# What one call on a machine with a GPU should tell: the tests, torch's tensors through the Python package, then
# compute-sanitizer's tools over our own kernels, those of refit included. One line per part; what a part printed is in
# $BUILD/gpu. Ends with "N passed, N failed, N skipped". A part that would begin after LIMIT seconds (480) is skipped, and one
# that is still running then is ended and failed.
#
#     BUILD=build sh tests/gpu/check.sh [PART ...]        all parts, or those whose names begin so
set -u
build=${BUILD:-build} limit=${LIMIT:-480}
program=${PROGRAM:-$build/ravel-gpu} sanitizer=${SANITIZER:-compute-sanitizer}
logs=$build/gpu
began=$(date +%s)
passed=0 failed=0 skipped=0
mkdir -p "$logs"

# Kernels of our own alone: the libraries' would take minutes and are not ours to mend.
kernels="gpu_cast"
refit="gpu_cast gpu_refit_pull gpu_refit_another gpu_refit_collective gpu_refit_nccl"
batch="gpu_batch"
train="cuda_norms cuda_rope cuda_gated cuda_experts cuda_embedding cuda_softmax cuda_losses cuda_sampling cuda_update
       cuda_attention_cached cuda_attention_merge cuda_attention_own"
plans="cuda_attention_blocks cuda_attention_trees" # our kernels beside cuDNN's: memcheck alone, the others report cuDNN's own

wanted() { # NAME PART ...
    name=$1
    shift
    [ $# -eq 0 ] && return 0
    for part; do
        case $name in "$part"*) return 0 ;; esac
    done
    return 1
}

# part NAME TOOL PREFIX ...: TOOL "" runs without a sanitizer. Calls that NCCL makes to find out what the GPU can do fail by
# design, and memcheck would count them: what our own calls return is checked by the tests.
part() {
    name=$1 tool=$2
    shift 2
    case $tool in
    "") run "$name" "$program" --times "$@" ;;
    memcheck) run "$name" "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 "$program" "$@" ;;
    *) run "$name" "$sanitizer" --tool "$tool" --error-exitcode 99 "$program" "$@" ;;
    esac
}

# run NAME COMMAND ...
run() {
    name=$1
    shift
    # shellcheck disable=SC2086 # a list of names
    wanted "$name" $asked || return 0
    left=$((began + limit - $(date +%s)))
    if [ "$left" -le 0 ]; then
        skipped=$((skipped + 1))
        echo "  skip  $name: no time left"
        return 0
    fi
    start=$(date +%s)
    timeout "$left" "$@" >"$logs/$name.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "  ok    $name: $(tail -n 1 "$logs/$name.log" | cut -c 1-60) ($seconds s)"
    else
        failed=$((failed + 1))
        echo "  FAIL  $name: code $code after $seconds s; the end of $logs/$name.log:"
        tail -n 12 "$logs/$name.log" | sed 's/^/        /'
    fi
}

asked=$*
command -v nvidia-smi >/dev/null 2>&1 &&
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu,power.draw --format=csv,noheader
part test-gpu "" gpu_ # first: its first test forks, which needs a process without CUDA
part test-train "" cuda_
export RAVEL_CUDA_PLAIN=1 # the forms of kernels for GPUs that lack what Hopper has
part test-plain "" cuda_norms cuda_softmax cuda_model
unset RAVEL_CUDA_PLAIN
part test-fatal "" fatal_
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    run test-torch env "RAVEL_LIBRARY=$(realpath "${LIBRARY:-$build/libravel.so}")" PYTHONPATH=python \
        python3 tests/gpu/torch_tensors.py
else
    skipped=$((skipped + 1))
    echo "  skip  test-torch: no torch with CUDA"
fi
for tool in memcheck racecheck initcheck; do
    # initcheck has the kernels alone, on plain allocations.
    # shellcheck disable=SC2086
    if [ $tool = initcheck ]; then part $tool-refit $tool $kernels; else part $tool-refit $tool $refit; fi
    # shellcheck disable=SC2086
    part $tool-batch $tool $batch
    # shellcheck disable=SC2086
    if [ $tool = memcheck ]; then part $tool-train $tool $train $plans; else part $tool-train $tool $train; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
