# Tokenizers, conversations and configs against the `tokenizers` and transformers packages, which pip brings into the build folder.
# 500 strings for each tokenizer; RAVEL_SOAK=1: 100,000.
set -u
. tests/seed.sh
if ! why=$(sh mk/text-venv.sh "$BUILD"); then echo "  skip  $why"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib >"$BUILD/text-build.log" 2>&1 || { cat "$BUILD/text-build.log"; exit 1; }
strings=500
[ -z "${RAVEL_SOAK:-}" ] || strings=100000
# RAVEL_TEMPLATES names folders with more chat templates than those of these packages.
sum() { awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; next } { print } END { print p + 0 " passed, " f + 0 " failed"; exit f > 0 }'; }
export TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
RAVEL_LIBRARY="$(realpath "$BUILD")/libravel.so"; export RAVEL_LIBRARY
python=$BUILD/text-venv/bin/python
packaged=
for package in trl axolotl transformers mistral_common; do
    packaged="$packaged $(ls -d "$BUILD"/text-venv/lib/python3*/site-packages/$package 2>/dev/null)"
done
# shellcheck disable=SC2086
{
    timeout 3600 "$python" tests/text/parity.py $strings "$BUILD/tokenizers" || echo "0 passed, 1 failed"
    timeout 3600 "$python" tests/text/files.py $strings "$BUILD/tokenizers/files" || echo "0 passed, 1 failed"
    $MAKE --no-print-directory -j2 BUILD="$BUILD" "$BUILD/ravel" >"$BUILD/text-build.log" 2>&1
    timeout 3600 "$python" tests/text/gguf_files.py "$BUILD/ravel" "$BUILD/tokenizers/gguf" || echo "0 passed, 1 failed"
    if "$python" -c "import cyllama" 2>/dev/null; then
        timeout 3600 "$python" tests/text/llama_cpp.py "$BUILD/ravel" "$BUILD/tokenizers" || echo "0 passed, 1 failed"
    else echo "  skip  llama.cpp itself: pip does not bring cyllama"; fi
    timeout 600 "$python" tests/text/configs.py || echo "0 passed, 1 failed"
    timeout 3600 "$python" tests/text/templates.py "$BUILD/tokenizers" $packaged ${RAVEL_TEMPLATES:-} || echo "0 passed, 1 failed"
} | sum
