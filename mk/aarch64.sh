#!/bin/sh
# aarch64 without such a machine: a cross build, unit tests of what differs by instruction set under qemu's user mode, and plans of
# the same bits as here. Ends with "N passed, N failed, N skipped".
#     mk/aarch64.sh BUILD
#   TESTS="plan_ feed_"   unit tests of these prefixes instead
#   WHOLE=1               all unit tests
set -u
BUILD=$1 MAKE=${MAKE:-make} passed=0 failed=0
export ASSERT=1 DEBUGINFO=
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
cc=aarch64-linux-gnu-gcc root=/usr/aarch64-linux-gnu
skip() { echo "  skip  $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
[ "$(uname -m)" != aarch64 ] || skip "aarch64: this is one; make test runs here"
command -v $cc >/dev/null 2>&1 && [ -e $root/lib/libc.so.6 ] && [ -n "$qemu" ] ||
    skip "aarch64: a cross compiler and qemu (apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)"
dir=$BUILD/aarch64 tests=${TESTS:-"batch_ train_kernels_ refit_checksum refit_sparse comm_mac dtype_"}
[ -z "${WHOLE:-}" ] || { dir=$BUILD/aarch64-whole; tests=""; }
mkdir -p "$dir"
run() { timeout 7200 "$qemu" -L $root "$@"; }
# OpenBLAS, PCRE2 and MPI that are here are not aarch64's.
if ! $MAKE --no-print-directory -j2 BUILD="$dir" CC=$cc NO_CUDA=1 HAVE_OPENBLAS= HAVE_PCRE2= HAVE_OPENMPI= HAVE_MPICH= WERROR=1 \
    UNIT_PREFIXES="$tests" "$dir/ravel-unit" "$dir/ravel" >"$dir/build.log" 2>&1; then
    echo "  FAIL  cross build"; tail -n 30 "$dir/build.log"; echo "0 passed, 1 failed"; exit 1
fi
passed=$((passed + 1)); echo "  ok    cross build without a warning"
for prefix in ${tests:-""}; do
    # shellcheck disable=SC2086
    run "$dir/ravel-unit" ${prefix:+"$prefix"} >"$dir/unit.log" 2>&1
    cat "$dir/unit.log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$dir/unit.log" | tail -n 1)
    # shellcheck disable=SC2086
    set -- ${line:-0 passed, 1 failed}
    passed=$((passed + $1)) failed=$((failed + $3))
done
# Plans, digest by digest.
sources="tests/digest/digest.c $(find src/plan src/base -name '*.c')"
for how in "gcc -O2" "$cc -O2"; do
    # shellcheck disable=SC2086
    $how -std=c11 -D_GNU_SOURCE -ffp-contract=off -Iinclude -Isrc -I. -o "$dir/digest-${how%% *}" $sources -lm -pthread >"$dir/digest.log" 2>&1
done
if "$dir/digest-gcc" >"$dir/here.txt" && run "$dir/digest-$cc" >"$dir/there.txt" && cmp -s "$dir/here.txt" "$dir/there.txt"; then
    passed=$((passed + 1)); echo "  ok    plans have the bits of this machine"
else failed=$((failed + 1)); echo "  FAIL  plans differ"; diff "$dir/here.txt" "$dir/there.txt" | head -n 4; fi
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
