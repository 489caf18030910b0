#!/bin/sh
# Runs each target under libFuzzer for FUZZ_SECONDS (30), FUZZ_JOBS (1) at a time, starting from its corpus. New inputs and
# what was found stay in the folder of the targets.
#
#   sh run.sh FOLDER [TARGET...]     FOLDER: the targets that `make fuzz` built; in an unpacked `make fuzz-bundle`: .
set -eu
folder=$1; shift
here=$(dirname "$0") seconds=${FUZZ_SECONDS:-30} jobs=${FUZZ_JOBS:-1}
export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" # a bundle has PCRE2 in it
[ $# -gt 0 ] || set -- $(cd "$here/corpus" && echo fuzz_*)
# One target; its log is FOLDER/TARGET.log.
if [ "${FUZZ_ONE:-}" ]; then
    mkdir -p "$folder/corpus-new/$1"
    "$folder/$1" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=2048 -timeout=25 -artifact_prefix="$folder/$1-" \
        "$folder/corpus-new/$1" "$here/corpus/$1" >"$folder/$1.log" 2>&1 && word=ok || word=FAIL
    echo "  $word  $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$1.log") runs$(grep -m 1 -E '^SUMMARY|ERROR: libFuzzer' "$folder/$1.log" | sed 's/^/; /')"
    [ $word = ok ]; exit
fi
code=0
printf '%s\n' "$@" | FUZZ_ONE=1 xargs -P "$jobs" -n 1 sh "$0" "$folder" || code=1
for found in "$folder"/fuzz_*-crash-* "$folder"/fuzz_*-timeout-* "$folder"/fuzz_*-oom-* "$folder"/fuzz_*-leak-*; do
    [ ! -e "$found" ] || { echo "found: $found"; code=1; }
done
exit $code
