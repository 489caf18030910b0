#!/bin/sh
# Runs each target under libFuzzer for FUZZ_SECONDS, starting from its corpus; new inputs stay under $BUILD.
set -eu
lib=$BUILD/libfuzzer
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude -Isrc -I. \
        -o "$lib/$name" "$source" "$lib/libravel.a" -lm -ldl -pthread
    mkdir -p "$lib/corpus/$name"
    echo "== $name"
    "$lib/$name" -max_total_time="$FUZZ_SECONDS" -print_final_stats=1 -rss_limit_mb=1024 -timeout=10 -artifact_prefix="$lib/$name-" \
        "$lib/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 | grep -E 'ERROR|SUMMARY|stat::number_of_executed|Test unit' || true
    if ls "$lib/$name"-crash-* "$lib/$name"-timeout-* "$lib/$name"-oom-* >/dev/null 2>&1; then echo "$name: found something, see $lib"; exit 1; fi
done
