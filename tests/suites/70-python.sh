# The Python package twice: over the checkout's build, and as a wheel that pip built, in a fresh virtual environment.
set -u
passed=0 failed=0 skipped=0
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; exit; }
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "  skip  python3 is not installed"; skipped=1; finish; }
for module in numpy pytest hypothesis; do
    "$python" -c "import $module" 2>/dev/null || { echo "  skip  $python has no $module (Debian: python3-$module)"; skipped=1; finish; }
done
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib "$BUILD/libravel_stub.so" >"$BUILD/python-build.log" 2>&1 || { cat "$BUILD/python-build.log"; exit 1; }
build=$(realpath "$BUILD")
export RAVEL_STUB="$build/libravel_stub.so"

number() { # WORD LINE: the number before the word in pytest's last line, else 0
    found=$(echo "$2" | grep -oE "[0-9]+ $1" | head -n 1); echo "${found%% *}" | grep -E '^[0-9]+$' || echo 0
}
tests() { # NAME PYTHON SEED: of hypothesis
    log=$build/python-tests.log
    echo "$1, RAVEL_SEED=$3"
    timeout 7200 "$2" -m pytest -q --hypothesis-seed="$3" -rsfE -p no:cacheprovider -W error::DeprecationWarning python/tests >"$log" 2>&1; code=$?
    line=$(tail -n 1 "$log")
    bad=$(($(number failed "$line") + $(number error "$line")))
    if [ $code != 0 ] && [ $bad = 0 ]; then bad=1; echo "  FAIL  pytest ended with $code"; fi
    if [ $bad = 0 ]; then grep '^SKIPPED' "$log" | sed 's/^SKIPPED/  skip /'; else tail -n 80 "$log"; fi
    echo "  $line"
    passed=$((passed + $(number passed "$line"))) failed=$((failed + bad)) skipped=$((skipped + $(number skipped "$line")))
}

RAVEL_LIBRARY=$build/libravel.so tests "the checkout" "$python" "${RAVEL_SEED:-20260101}"
echo "  what needs torch, transformers, trl, ... runs in: make test-frameworks"

venv=$build/python/venv
rm -rf "$venv" build/python/setuptools
if ! "$python" -m venv --system-site-packages "$venv" >"$build/venv.log" 2>&1; then
    echo "  skip  a virtual environment could not be made (Debian: python3-venv)"; skipped=$((skipped + 1)); finish
fi
isolation=""
"$venv/bin/python" -c 'import setuptools, wheel' 2>/dev/null && isolation=--no-build-isolation
# A release build, which no other suite makes: without RAVEL_ASSERT. Kernels of CUDA are compiled in the first build already.
# shellcheck disable=SC2086
if RAVEL_MAKE_FLAGS="-j2 ASSERT= OPT=-O1 DEBUGINFO= NO_CUDA=1" timeout 3600 "$venv/bin/pip" install --quiet --no-deps --disable-pip-version-check $isolation ./python \
    >"$build/pip.log" 2>&1; then passed=$((passed + 1)); else
    failed=$((failed + 1)); echo "  FAIL  pip install ./python"; tail -n 30 "$build/pip.log"; finish
fi
timeout 600 "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check mpi4py >"$build/mpi4py.log" 2>&1 ||
    echo "  mpi4py could not be installed from PyPI"
timeout 600 "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check mypy 'numpy>=2.3' >"$build/mypy.log" 2>&1 ||
    echo "  mypy and numpy 2.3 could not be installed from PyPI: types are not checked"
RAVEL_TEST_INSTALLED=1 tests "the wheel, in a fresh virtual environment" "$venv/bin/python" "${RAVEL_SEED_OF_DAY:-${RAVEL_SEED:-$(date -u +%Y%m%d)}}"
finish
