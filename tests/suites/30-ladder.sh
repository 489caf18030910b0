# Who may include whom: each folder's includes against the ladder. A row is "folder: folders it may include"; every
# folder may include its own headers and the public ones.
set -u
passed=0 failed=0
ladder='
src/base:
src/device: base
src/plan: base
src/batch: base
src/metrics: base
src/io: base
src/comm: base device
src/refit: base device comm metrics
src/feed: base device comm plan batch metrics io
'
check() { # FOLDER ALLOWED...
    folder=$1; shift
    bad=""
    for line in $(grep -nHoE '#include "[^"]+"' $(find "$folder" -name "*.c" -o -name "*.h" -o -name "*.cu") 2>/dev/null | tr ' ' '@'); do
        target=$(echo "$line" | sed 's/.*"\(.*\)".*/\1/') ok=0
        for allowed in "$(basename "$folder")" "$@"; do case $target in "$allowed"/*) ok=1 ;; esac; done
        [ $ok = 1 ] || bad="$bad
    $(echo "$line" | tr '@' ' ')"
    done
    if [ -z "$bad" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  $folder includes what it may not:$bad"; fi
}
for folder in src/*/; do
    folder=${folder%/}
    row=$(echo "$ladder" | grep "^$folder:") || { echo "  FAIL  $folder is not on the ladder"; failed=$((failed + 1)); continue; }
    # shellcheck disable=SC2086
    check "$folder" ${row#*:}
done
check cli train
check bench train
# train/ has floors of its own: each sees those before it.
below=""
for floor in kernels model learn rl run; do
    below="$below train/$floor"
    # shellcheck disable=SC2086
    check train/$floor $below
done
found=$(find train -maxdepth 1 -type f; find train -mindepth 1 -maxdepth 1 -type d | grep -vE '^train/(kernels|model|learn|rl|run)$')
if [ -z "$found" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  not on a floor of train/: $found"; fi
[ -d examples ] && check examples

# System headers of optional parts stay in their one file.
only() { # HEADER ALLOWED-PATTERN
    found=$(grep -rlE "#include *<$1>" include src cli train bench examples 2>/dev/null | grep -vE "$2")
    if [ -z "$found" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  <$1> is included by $found"; fi
}
only 'mpi\.h' '^src/comm/mpi\.c$'
only 'nccl\.h' '^src/comm/nccl\.c$'
only '(cuda[a-z_]*|cublas[A-Za-z_]*|cudnn[a-z_]*)\.h' '^src/device/cuda[a-z_0-9]*\.(c|h|cu)$|^src/comm/nccl\.c$|^train/kernels/cuda/'
only 'cblas\.h' '^(train/kernels/cpu|bench)/'
# Public headers include only each other and the freestanding ones.
found=$(grep -nE '#include' include/ravel/*.h | grep -vE '<(ravel/[a-z_]+\.h|stddef\.h|stdint\.h)>')
if [ -z "$found" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  public headers include: $found"; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
