# The code blocks of public headers, README and docs, compiled and run (tests/snippets/extract.py).
set -u
passed=0 failed=0
python=$(command -v /usr/bin/python3 || command -v python3) || { echo "  skip  python3 is not installed"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib >"$BUILD/snippets-build.log" 2>&1 || { cat "$BUILD/snippets-build.log"; exit 1; }
dir=$PWD/$BUILD/snippets lib=$PWD/$BUILD/libravel.a include=$PWD/include
rm -rf "$dir"; mkdir -p "$dir/work"
if said=$("$python" tests/snippets/extract.py "$dir" 2>&1); then passed=1; else failed=1; echo "  FAIL  $said"; fi
for program in "$dir"/*.c; do
    name=$(basename "$program" .c)
    if gcc -std=c11 -D_GNU_SOURCE -Wall -Wno-unused -Wno-misleading-indentation -Wno-address -Werror -I"$include" -o "$dir/$name" "$program" \
        "$lib" -lm -ldl -pthread 2>"$dir/$name.log" && (cd "$dir/work" && timeout 300 "$dir/$name" >>"$dir/$name.log" 2>&1); then
        passed=$((passed + 1)); echo "  ok    $name"
    else failed=$((failed + 1)); echo "  FAIL  $name"; head -n 20 "$dir/$name.log"; fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
