# The fuzz targets over their corpora, sanitized: what a fuzzer found stays found.
set -u
passed=0 failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    if $MAKE --no-print-directory BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined "$BUILD/asan/fuzz/$name" >"$BUILD/fuzz-$name.log" 2>&1 &&
        "$BUILD/asan/fuzz/$name" "tests/fuzz/corpus/$name" >>"$BUILD/fuzz-$name.log" 2>&1; then
        passed=$((passed + 1)); echo "  ok    $name: $(tail -n 1 "$BUILD/fuzz-$name.log")"
    else failed=$((failed + 1)); echo "  FAIL  $name"; tail -n 30 "$BUILD/fuzz-$name.log"; fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
