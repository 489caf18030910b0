# The unit tests in two halves, side by side: many of them wait for deadlines, so two processes take half the time.
#     sh tests/unit/both.sh PROGRAM [--again SEED] [PREFIX...]
set -u
program=$1; shift
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
half() { timeout --kill-after=10 "${UNIT_SECONDS:-7200}" "$program" --part "$@"; } # a test that hangs ends its half; the line before names it
half 1/2 "$@" >"$dir/1" 2>&1 & first=$!
half 2/2 "$@" >"$dir/2" 2>&1; second=$?
wait $first; first=$?
cat "$dir/1" "$dir/2"
grep -hE '^[0-9]+ passed, ' "$dir/1" "$dir/2" >"$dir/ends"
if [ "$(wc -l <"$dir/ends")" != 2 ]; then
    echo "  FAIL  a half did not finish: exit codes $first and $second; its end:"
    for half in 1 2; do grep -qE '^[0-9]+ passed, ' "$dir/$half" || tail -n 14 "$dir/$half" | sed 's/^ *//'; done
    echo "0 passed, 1 failed"; exit 1
fi
awk '{ p += $1; f += $3; s += $5 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$dir/ends"
[ $first = 0 ] && [ $second = 0 ]
