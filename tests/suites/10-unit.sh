# Unit and property tests, optimised build.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" unit >"$BUILD/unit-build.log" 2>&1 || { cat "$BUILD/unit-build.log"; exit 1; }
"$BUILD/ravel-unit"
