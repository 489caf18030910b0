#!/bin/sh
# Runs every suite of tests/suites in order and adds up what they say. A suite is a script that prints what it likes
# and ends with a line "N passed, N failed" (", N skipped" may follow); it fails if it says so, says nothing, or exits
# non-zero. SUITES=unit,cli runs some of them. Output goes to $BUILD/test-logs; a failing suite's log is shown.
set -u
BUILD=${BUILD:-build} CC=${CC:-gcc} MAKE=${MAKE:-make}
export BUILD CC MAKE
mkdir -p "$BUILD/test-logs"
passed=0 failed=0 skipped=0 started=$(date +%s)
for suite in tests/suites/*.sh; do
    name=$(basename "$suite" .sh); name=${name#*-}
    case ",${SUITES:-$name}," in *",$name,"*) ;; *) continue ;; esac
    log="$BUILD/test-logs/$name.log" begin=$(date +%s)
    printf '%-14s ' "$name"
    sh "$suite" >"$log" 2>&1
    code=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p') f=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    s=$(echo "$line" | sed -n 's/.* \([0-9]*\) skipped.*/\1/p')
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0})) skipped=$((skipped + ${s:-0}))
    if [ "$code" != 0 ] && [ "${f:-0}" = 0 ] || [ -z "$line" ]; then failed=$((failed + 1)) f=$((${f:-0} + 1)); fi
    printf '%6s passed, %s failed, %s skipped  (%ss)\n' "${p:-0}" "${f:-0}" "${s:-0}" "$(($(date +%s) - begin))"
    [ "${f:-0}" = 0 ] || { echo "---- $log"; tail -n 60 "$log"; echo "----"; }
    [ "${s:-0}" = 0 ] || grep -i '^ *skip' "$log"
done
echo "took $(($(date +%s) - started)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
