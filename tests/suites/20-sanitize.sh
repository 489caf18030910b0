# The same tests with address, leak and undefined-behaviour sanitizers.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined unit >"$BUILD/asan-build.log" 2>&1 ||
    { cat "$BUILD/asan-build.log"; exit 1; }
export LOCPATH="$PWD/$BUILD/asan/locale"
mkdir -p "$LOCPATH"
localedef -c -i de_DE -f UTF-8 "$LOCPATH/de_DE.UTF-8" >/dev/null 2>&1
ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 sh tests/unit/both.sh "$BUILD/asan/ravel-unit"
