#!/bin/sh
# clang-format, clang-tidy, cppcheck and constant seeds over the tracked sources. Ends with "N passed, N failed[, N skipped]".
#     mk/lint.sh [BUILD]
# clang-tidy looks only at files whose preprocessed text has changed since it last found nothing wrong in them; the
# stamps are in BUILD/lint. Its analyzer, which takes most of the time, follows 12,500 states per function, and a large function
# from its first four callers: this leaves as few blocks unseen (6 of 100) as twice the states with callees from every
# caller. DEEP=1 lets it follow every path (several times as long; for releases).
#   CHANGED=1  clang-tidy and cppcheck only for files that git shows as changed since upstream's last commit (without an upstream, since
#              the last commit here), and for files that include a changed header themselves. For `make check`.
set -u
build=${1:-build}
passed=0 failed=0 skipped=0
files=$(git ls-files '*.c' '*.h' '*.cu' 2>/dev/null)
[ -n "$files" ] || { # a lint of no file would find nothing wrong
    echo "  skip  lint: git does not list the files (is it installed, and is the checkout this user's?)"
    echo "0 passed, 0 failed, 1 skipped"; exit 0; }
sources=$(git ls-files 'src/*.c' 'cli/*.c' 'train/*.c' 'bench/*.c' 'examples/*.c' | grep -v -e 'comm/nccl\.c' -e 'device/cuda' -e 'kernels/cuda/')
# Where mpi.h is, whichever MPI is installed; without one, the file that needs it is left out.
mpi=$({ mpicc.openmpi -show || mpicc.mpich -show; } 2>/dev/null | tr ' ' '\n' | grep '^-I' | tr '\n' ' ')
[ -n "$mpi" ] || sources=$(echo "$sources" | grep -v 'comm/mpi.c')
if [ -n "${CHANGED:-}" ]; then
    changed=$(git diff --name-only "$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)")
    headers=$(echo "$changed" | grep '\.h$' | sed -E 's#^(include|src)/##; s#.*#[<"]&[>"]#') # as they are included
    sources=$(for file in $sources; do
        if echo "$changed" | grep -qxF "$file" || { [ -n "$headers" ] && grep -q "$headers" "$file"; }; then echo "$file"; fi
    done)
fi
include="-Iinclude -Isrc -I."
flags="-std=c11 -D_GNU_SOURCE -DRAVEL_ASSERT_ON $include $mpi" # what is asserted, the analyzer knows
nodes="-Xclang -analyzer-config -Xclang max-nodes=12500,max-times-inline-large=4"
[ -z "${DEEP:-}" ] || nodes=""
mkdir -p "$build/lint/cppcheck"

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

# One file: a stamp is named by the hash of what clang-tidy would read. And one file per process: in the second file of a process
# clang 14's checker of va_list no longer knows va_start.
cat >"$build/lint/tidy.sh" <<END
key=\$({ cat .clang-tidy; echo "$nodes"; ${CC:-gcc} $flags -E "\$1"; } 2>/dev/null | sha256sum)
stamp=$build/lint/\${key%% *}
[ -e "\$stamp" ] || { clang-tidy --quiet "\$1" -- $flags $nodes 2>/dev/null && : >"\$stamp"; }
END
tidy() {
    echo "$sources" | xargs -r -P 2 -n 1 sh "$build/lint/tidy.sh" >"$build/lint/tidy.log" && return 0
    grep ': error: ' "$build/lint/tidy.log" # first what was found, then why
    cat "$build/lint/tidy.log"
    return 1
}
# Without mpi.h, whose C++ part it takes for C. The macros are those of the test builds: left to itself it goes through a file
# once per combination of macros that it finds, among them compilers and processors that are not here.
cpp() {
    [ -n "$sources" ] || return 0
    # shellcheck disable=SC2086
    cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches --cppcheck-build-dir="$build/lint/cppcheck" \
        -j 2 -D_GNU_SOURCE -DRAVEL_ASSERT_ON -D__GNUC__=12 -D__x86_64__=1 -D__linux__=1 $include $sources
}
# A random test draws from check_seed(); a number that must not change says why, on its line.
seeds() { ! git grep -nE 'ravel__rng_seed\([0-9]' -- tests | grep -v 'fixed: '; }
check clang-format clang-format format
check seeds git seeds
check clang-tidy clang-tidy tidy
check cppcheck cppcheck cpp
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
