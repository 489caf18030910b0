# Tokenizers and conversations against the `tokenizers` and transformers packages, which pip brings into the build folder.
# 500 strings for each tokenizer; RAVEL_SOAK=1: 100,000.
set -u
if ! why=$(sh mk/text-venv.sh "$BUILD"); then echo "  skip  $why"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib >"$BUILD/text-build.log" 2>&1 || { cat "$BUILD/text-build.log"; exit 1; }
strings=500
[ -z "${RAVEL_SOAK:-}" ] || strings=100000
TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error RAVEL_LIBRARY="$(realpath "$BUILD")/libravel.so" \
    timeout 3600 "$BUILD/text-venv/bin/python" tests/text/parity.py $strings "$BUILD/tokenizers"
