# make test-frameworks: the Python tests beside the frameworks' own packages, in a virtual environment under $1 (gigabytes).
# Whatever `make test` skips for want of a package runs here; a skip is a failure.
set -u
build=$1
venv=$build/frameworks log=$build/frameworks.log
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }
# PyPI's torch has CUDA's libraries; TORCH_INDEX names an index that has it without them.
torch="torch ${TORCH_INDEX:+--index-url $TORCH_INDEX}"
mkdir -p "$build"
if [ ! -e "$venv/ready-2" ]; then
    echo "installing torch, transformers, trl, peft, wandb, what verl imports, ... into $venv"
    rm -rf "$venv"
    # shellcheck disable=SC2086 # a name and an option
    {
        "$python" -m venv "$venv" &&
            "$venv/bin/pip" install --disable-pip-version-check $torch &&
            "$venv/bin/pip" install --disable-pip-version-check numpy pytest hypothesis transformers trl tensordict datasets mpi4py mypy tokenizers wandb \
                peft ray torchdata codetiming hydra-core orjson TransferQueue mlflow
    } >"$log" 2>&1 && "$venv/bin/python" -c 'import torch, transformers, trl, tensordict, datasets, mypy, wandb, peft, transfer_queue, mlflow' >>"$log" 2>&1 && touch "$venv/ready-2"
    [ -e "$venv/ready-2" ] || { tail -n 20 "$log"; echo "the packages could not be installed; $log has the whole"; exit 1; }
fi
# The inference engines' own sources, without what they need: the plug-ins are tested with their base classes and factories.
if [ ! -e "$venv/engines/ready-2" ]; then
    echo "downloading vllm, sglang, verl (their Python files, into $venv/engines)"
    rm -rf "$venv/engines"; mkdir -p "$venv/engines"
    "$venv/bin/pip" download --disable-pip-version-check -q --no-deps -d "$venv/engines/wheels" vllm sglang verl >>"$log" 2>&1 &&
        for wheel in "$venv"/engines/wheels/*.whl; do
            "$python" -c 'import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
z.extractall(sys.argv[2], [n for n in z.namelist() if n.endswith((".py", "METADATA", "version/version"))])' "$wheel" "$venv/engines" || exit 1
        done && rm -rf "$venv/engines/wheels" && touch "$venv/engines/ready-2"
    [ -e "$venv/engines/ready-2" ] || { tail -n 20 "$log"; echo "the engines could not be downloaded"; exit 1; }
fi
"$venv/bin/python" -m pip list 2>/dev/null | grep -iE '^(torch|transformers|trl|tensordict|datasets|mpi4py|numpy) ' | sed 's/^/  /'
RAVEL_LIBRARY=$(realpath "$build/libravel.so") RAVEL_COMMAND=$(realpath "$build/ravel") \
    RAVEL_STUB=$(realpath "$build/libravel_stub.so") RAVEL_ENGINES=$(realpath "$venv/engines") timeout 1800 "$venv/bin/python" -m pytest -q -rsfE \
    -p no:cacheprovider ${TESTS:-python/tests} >"$build/frameworks-tests.log" 2>&1
code=$?
line=$(tail -n 1 "$build/frameworks-tests.log")
if [ $code != 0 ]; then tail -n 80 "$build/frameworks-tests.log"; else grep '^SKIPPED' "$build/frameworks-tests.log"; fi
echo "$line"
[ $code = 0 ] || exit $code
# What needs a checkout runs in make test-peers.
! grep '^SKIPPED' "$build/frameworks-tests.log" | grep -qv 'no checkout of' || { echo "a test was skipped"; exit 1; }
