# make test-frameworks: the Python tests beside the frameworks' own packages, in a virtual environment under $1 (gigabytes).
# Whatever `make test` skips for want of a package runs here; a skip is a failure.
set -u
build=$1
venv=$build/frameworks log=$build/frameworks.log
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }
cpu=https://download.pytorch.org/whl/cpu # without CUDA's libraries; PyPI's has them
mkdir -p "$build"
if [ ! -e "$venv/ready" ]; then
    echo "installing torch (CPU), transformers, trl, tensordict, datasets, mpi4py into $venv"
    rm -rf "$venv"
    {
        "$python" -m venv "$venv" &&
            { "$venv/bin/pip" install --disable-pip-version-check torch --index-url "$cpu" || "$venv/bin/pip" install torch; } &&
            "$venv/bin/pip" install --disable-pip-version-check numpy pytest hypothesis transformers trl tensordict datasets mpi4py mypy tokenizers
    } >"$log" 2>&1 && "$venv/bin/python" -c 'import torch, transformers, trl, tensordict, datasets, mypy' >>"$log" 2>&1 && touch "$venv/ready"
    [ -e "$venv/ready" ] || { tail -n 20 "$log"; echo "the packages could not be installed; $log has the whole"; exit 1; }
fi
"$venv/bin/python" -m pip list 2>/dev/null | grep -iE '^(torch|transformers|trl|tensordict|datasets|mpi4py|numpy) ' | sed 's/^/  /'
RAVEL_LIBRARY=$(realpath "$build/libravel.so") RAVEL_COMMAND=$(realpath "$build/ravel") \
    RAVEL_STUB=$(realpath "$build/libravel_stub.so") timeout 1800 "$venv/bin/python" -m pytest -q -rsfE \
    -p no:cacheprovider python/tests >"$build/frameworks-tests.log" 2>&1
code=$?
line=$(tail -n 1 "$build/frameworks-tests.log")
if [ $code != 0 ]; then tail -n 80 "$build/frameworks-tests.log"; else grep '^SKIPPED' "$build/frameworks-tests.log"; fi
echo "$line"
[ $code = 0 ] || exit $code
! grep -q '^SKIPPED' "$build/frameworks-tests.log" || { echo "a test was skipped"; exit 1; }
