# Unit and property tests, optimised build with RAVEL_ASSERT on; the random ones twice.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" unit >"$BUILD/unit-build.log" 2>&1 || { cat "$BUILD/unit-build.log"; exit 1; }
# A locale that writes 0,5: ours must write and read 0.5 in it.
export LOCPATH="$PWD/$BUILD/locale"
mkdir -p "$LOCPATH"
localedef -c -i de_DE -f UTF-8 "$LOCPATH/de_DE.UTF-8" >/dev/null 2>&1
# A second pass of the random tests with the seed of the day, unless RAVEL_SEED asks for one.
if [ -n "${RAVEL_SEED:-}" ]; then echo "seed $RAVEL_SEED"; set --; else
    echo "seed of the day: ${RAVEL_SEED_OF_DAY:=$(date -u +%Y%m%d)}"; set -- --again "$RAVEL_SEED_OF_DAY"; fi
sh tests/unit/both.sh "$BUILD/ravel-unit" "$@"
