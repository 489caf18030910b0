# The same plans from gcc and clang, unoptimised and optimised: one program, four builds, one list of digests.
set -u
passed=0 failed=0 skipped=0 first=""
sources="tests/digest/digest.c $(find src/plan src/base -name "*.c")"
mkdir -p "$BUILD/digest"
for how in "gcc -O0" "gcc -O3" "clang -O0" "clang -O3"; do
    if ! command -v "${how%% *}" >/dev/null 2>&1; then echo "  skip  $how: not installed"; skipped=$((skipped + 1)); continue; fi
    name=$(echo "$how" | tr -d ' ')
    # shellcheck disable=SC2086
    if ! $how -std=c11 -D_GNU_SOURCE -ffp-contract=off -Iinclude -Isrc -I. -o "$BUILD/digest/$name" $sources -lm -pthread \
        >"$BUILD/digest/$name.log" 2>&1 || ! "$BUILD/digest/$name" >"$BUILD/digest/$name.txt"; then
        failed=$((failed + 1)); echo "  FAIL  $how"; tail -n 20 "$BUILD/digest/$name.log"; continue
    fi
    [ -n "$first" ] || first=$name
    if cmp -s "$BUILD/digest/$first.txt" "$BUILD/digest/$name.txt"; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "  FAIL  $how plans otherwise than $first:"; diff "$BUILD/digest/$first.txt" "$BUILD/digest/$name.txt" | head -n 4; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
