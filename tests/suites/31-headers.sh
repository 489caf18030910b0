# Every public header compiles by itself, as C11 and as C++17, without a warning; and names only what is Ravel's.
set -u
passed=0 failed=0
for header in include/ravel/*.h; do
    name=${header#include/}
    for how in "gcc -std=c11 -x c" "g++ -std=c++17 -x c++" "clang -std=c11 -x c" "clang++ -std=c++17 -x c++"; do
        command -v "${how%% *}" >/dev/null 2>&1 || continue
        if printf '#include <%s>\n#include <%s>\n' "$name" "$name" |
            $how -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only - 2>"$BUILD/header.log"; then passed=$((passed + 1))
        else failed=$((failed + 1)); echo "  FAIL  $name as ${how}"; head -n 10 "$BUILD/header.log"; fi
    done
done
# ravel.h has them all: the stable ones, and those whose first line says that they are experimental.
sed '/^\/\* experimental/,$d' include/ravel/ravel.h >"$BUILD/stable"
sed -n '/^\/\* experimental/,$p' include/ravel/ravel.h >"$BUILD/experimental"
for header in include/ravel/*.h; do
    name=${header#include/} kind=stable
    head -n 1 "$header" | grep -qF ' (experimental): ' && kind=experimental
    [ "$name" = ravel/ravel.h ] || grep -q "<$name>" "$BUILD/$kind" || { failed=$((failed + 1)); echo "  FAIL  ravel.h lacks $name among the $kind headers"; }
done
# A stable header includes no experimental one.
for header in $(grep -LF ' (experimental): ' include/ravel/*.h); do
    [ "$header" = include/ravel/ravel.h ] && continue
    for other in $(grep -oE '<ravel/[a-z_]+\.h>' "$header" | tr -d '<>'); do
        grep -q "<$other>" "$BUILD/stable" || { failed=$((failed + 1)); echo "  FAIL  $header is stable and includes $other"; }
    done
done
# The shared library exports ravel_ and nothing else, and everything that the headers declare.
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib >"$BUILD/lib-build.log" 2>&1 || { cat "$BUILD/lib-build.log"; exit 1; }
nm -D --defined-only "$BUILD/libravel.so" | awk '{print $3}' | sort -u >"$BUILD/exported"
grep -hoE '\bravel_[a-z0-9_]+\(' include/ravel/*.h | tr -d '(' | sort -u >"$BUILD/mentioned"
strange=$(grep -v '^ravel_[a-z]' "$BUILD/exported")
if [ -z "$strange" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  exported: $strange"; fi
grep -hE -A1 '^RAVEL_API' include/ravel/*.h | grep -oE '\bravel_[a-z0-9_]+\(' | tr -d '(' | sort -u >"$BUILD/declared"
lost=$(comm -23 "$BUILD/declared" "$BUILD/exported")
if [ -z "$lost" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  declared but not exported: $lost"; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
