# Whatever runs in several threads, under the thread sanitizer. RAVEL_TSAN adds prefixes of test names.
set -u
prefixes="comm_ mesh_ exchange_ feed_ metrics_ http_ refit_ ${RAVEL_TSAN:-}"
$MAKE --no-print-directory -j2 BUILD="$BUILD/tsan" OPT=-Og SAN=thread UNIT_PREFIXES="$prefixes" unit >"$BUILD/tsan-build.log" 2>&1 ||
    { cat "$BUILD/tsan-build.log"; exit 1; }
# shellcheck disable=SC2086
TSAN_OPTIONS=halt_on_error=0:exitcode=66 sh tests/unit/both.sh "$BUILD/tsan/ravel-unit" $prefixes
