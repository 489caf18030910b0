#!/bin/sh
# clang-format, clang-tidy and cppcheck over the tracked sources. Ends with "N passed, N failed[, N skipped]".
set -u
passed=0 failed=0 skipped=0
files=$(git ls-files '*.c' '*.h' '*.cu')
sources=$(git ls-files 'src/*.c' 'cli/*.c' 'train/*.c' 'bench/*.c' 'examples/*.c' | grep -v -e 'comm/nccl.c' -e 'device/cuda.c')
include="-Iinclude -Isrc -I."
# Where mpi.h is, whichever MPI is installed; without one, the file that needs it is left out.
mpi=$({ mpicc.openmpi -show || mpicc.mpich -show; } 2>/dev/null | tr ' ' '\n' | grep '^-I' | tr '\n' ' ')
[ -n "$mpi" ] || sources=$(echo "$sources" | grep -v 'comm/mpi.c')

check() { # NAME PROGRAM COMMAND...
    name=$1 program=$2; shift 2
    if ! command -v "$program" >/dev/null 2>&1; then
        echo "  skip  $name: $program is not installed"; skipped=$((skipped + 1)); return
    fi
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then passed=$((passed + 1)); echo "  ok    $name"
    else failed=$((failed + 1)); echo "  FAIL  $name"; head -n 60 "$log"; fi
    rm -f "$log"
}
format() { echo "$files" | xargs clang-format --dry-run --Werror; }
tidy() {
    echo "$sources" | xargs -P 2 -n 1 sh -c \
        'clang-tidy --quiet "$@" -- -std=c11 -D_GNU_SOURCE '"$include $mpi"' 2>/dev/null' tidy
}
cpp() { # without mpi.h, whose C++ part it takes for C
    # shellcheck disable=SC2086
    cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches -j 2 $include $sources
}
check clang-format clang-format format
check clang-tidy clang-tidy tidy
check cppcheck cppcheck cpp
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
