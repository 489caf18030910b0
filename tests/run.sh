#!/bin/sh
# Runs the suites of tests/suites, three at a time, and adds up what they say. A suite is a script that prints what it
# likes and ends with a line "N passed, N failed" (", N skipped" may follow); it fails if it says so, says nothing, or
# exits non-zero. Output goes to $BUILD/test-logs; a failing suite's log is shown. After the totals every failed test is
# named once more, with the end of what it said, so that the end of a log tells what failed.
#
#   SUITES=unit,cli   only these, one after another
#   CHECK=1           the quick ones, without sanitizers, browser and CUDA's kernels; lint of what changed (make check)
#   LANES=1           one suite at a time; 2, 3 (the default)
#
# Everything that several suites need is built first, so that suites which run side by side find their `make` with
# nothing to do. All of it goes to $BUILD/test, with RAVEL_ASSERT on; $BUILD itself stays as `make` left it.
set -u
quick=unit,ladder,headers,snippets,cli,lint
# Long suites stand at the two ends of the list: in front those that keep both cores busy, at the end those that mostly
# wait (for deadlines, packages, one process after another). One lane begins in front and the others at the end: what waits
# leaves the two cores to what computes.
busy="lint sanitize tsan unit demo cli" waiting="install text feed metrics tcp serve train python mpi refit"
top=${BUILD:-build} CC=${CC:-gcc} MAKE=${MAKE:-make}
BUILD=$top/test
export BUILD CC MAKE
export ASSERT=1 DEBUGINFO=-g1 # lines of stack traces, not variables
# CUDA kernels are compiled here for their errors and warnings, and run by `make test-gpu`, from $top.
export NVCCFLAGS="${NVCCFLAGS:--Xcicc -O0 -Xptxas -O0}" CUDA_CODE="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a"
[ -z "${CHECK:-}" ] || MAKE="$MAKE HAVE_CUDA=" # a third of the build
# Random tests run with a fixed seed, and once more with this one; RAVEL_SEED=N repeats both with N.
export RAVEL_SEED_OF_DAY="${RAVEL_SEED:-$(date -u +%Y%m%d)}"
echo "seed of the day: $RAVEL_SEED_OF_DAY"
logs=$top/test-logs
rm -rf "$logs"
mkdir -p "$BUILD" "$logs/claims"
started=$(date +%s)

# Processor seconds of a command and all that it waited for, into a file: the second line of the shell's `times`, which are
# its children's, as "1m2.34s 0m5.67s".
spend() { # FILE COMMAND...
    (
        file=$1; shift
        "$@"; code=$?
        times >"$file.raw"
        awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "m"); s += 60 * t[1] + t[2] } printf "%.0f\n", s }' "$file.raw" >"$file"
        exit $code
    )
}

build() { # WHAT MAKE-ARGUMENTS...
    what=$1 begin=$(date +%s); shift
    # shellcheck disable=SC2086
    if spend "$logs/build-$what.spent" $MAKE --no-print-directory -j2 "$@" >"$logs/build-$what.log" 2>&1; then
        printf '%-14s %ss, processor %ss\n' "build $what" "$(($(date +%s) - begin))" "$(cat "$logs/build-$what.spent")"
    else echo "---- $logs/build-$what.log"; tail -n 40 "$logs/build-$what.log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; fi
}

run_suite() { # SCRIPT NAME: one line for people, one for the sum
    log=$logs/$2.log begin=$(date +%s)
    spend "$logs/$2.spent" sh "$1" >"$log" 2>&1
    code=$?
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p') f=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    s=$(echo "$line" | sed -n 's/.* \([0-9]*\) skipped.*/\1/p')
    if [ "$code" != 0 ] && [ "${f:-0}" = 0 ] || [ -z "$line" ]; then f=$((${f:-0} + 1)); fi
    echo "${p:-0} ${f:-0} ${s:-0}" >>"$logs/results"
    [ "${f:-0}" = 0 ] || awk -v suite="$2" -f tests/failures.awk "$log" >>"$logs/failures"
    {
        printf '%-14s %6s passed, %s failed, %s skipped  (%ss, processor %ss)\n' "$2" "${p:-0}" "${f:-0}" "${s:-0}" \
            "$(($(date +%s) - begin))" "$(cat "$logs/$2.spent")"
        [ "${f:-0}" = 0 ] || { echo "---- $log"; grep -aE '^ *FAIL' "$log" | head -n 20; tail -n 60 "$log"; echo "----"; }
        [ "${s:-0}" = 0 ] || grep -ai '^ *skip' "$log"
    } >"$logs/$2.said"
    cat "$logs/$2.said"
}

# The scripts in the order above, all others between them.
in_order() {
    for name in $busy; do echo tests/suites/*-"$name.sh"; done
    for suite in tests/suites/*.sh; do
        name=$(basename "$suite" .sh)
        case " $busy $waiting " in *" ${name#*-} "*) ;; *) echo "$suite" ;; esac
    done
    for name in $waiting; do echo tests/suites/*-"$name.sh"; done
}
# A lane takes the next suite that no other lane has taken.
lane() { # ORDER...: a command that lists the suites
    for suite in $(in_order | "$@"); do
        name=$(basename "$suite" .sh); name=${name#*-}
        case ",${SUITES:-${CHECK:+$quick}}," in ",,") ;; *",$name,"*) ;; *) continue ;; esac
        if mkdir "$logs/claims/$name" 2>/dev/null; then run_suite "$suite" "$name"; fi
    done
}

if [ -z "${SUITES:-}" ]; then
    # A make beside another one would read files of dependencies that are half written: what one suite alone needs is here, too.
    stubs=""
    [ -n "${CHECK:-}" ] || stubs="$BUILD/libravel_stub.so $BUILD/libravel_train_stub.so $BUILD/ravel-gpu"
    # shellcheck disable=SC2086
    build tests BUILD="$BUILD" all unit "$BUILD/mpi-ranks" "$BUILD/refit-ranks" $stubs
fi
if [ -z "${SUITES:-}${CHECK:-}" ]; then
    build asan BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined unit "$BUILD/asan/ravel" fuzz-targets lib "$BUILD/asan/mpi-ranks"
fi
lane cat &
if [ -z "${SUITES:-}" ]; then
    for number in $(seq 2 "${LANES:-3}"); do lane tac & done
fi
wait
if [ ! -e "$logs/results" ]; then
    echo "no suite is called \"${SUITES:-}\"; give some of these, with commas between them:"
    echo $(in_order | sed 's/.*[0-9]-//; s/\.sh$//')
    exit 1
fi
passed=0 failed=0 skipped=0
while read -r p f s; do passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)); done <"$logs/results"
took=$(($(date +%s) - started))
spent=$(cat "$logs"/*.spent | awk '{ s += $1 } END { print s }')
echo "took $((took / 60)) min $((took % 60)) s on $(nproc) cores, $spent processor seconds: busy $((100 * spent / ((took + 1) * $(nproc)))) %"
totals="$passed passed, $failed failed, $skipped skipped"
echo "$totals"
if [ -s "$logs/failures" ]; then
    echo; echo "---- what failed"; cat "$logs/failures"
    echo; echo "---- failed tests"; grep -v '^    ' "$logs/failures"; echo "$totals"
fi
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
