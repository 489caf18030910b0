# make test-peers CHECKOUTS=FOLDER: the adapters beside checkouts of the peers (FOLDER/RL, FOLDER/slime, ...: python/tests/peers.py has
# the names), in the virtual environment of make test-frameworks. Says first what is newer than what the adapters were tested with.
set -u
build=$1 checkouts=${2:-}
python=$(realpath "$build/frameworks/bin/python" 2>/dev/null --no-symlinks)
[ -n "$checkouts" ] && [ -d "$checkouts" ] || { echo "give the folder: make test-peers CHECKOUTS=FOLDER"; exit 1; }
[ -x "${python:-}" ] || { echo "run make test-frameworks first: it installs the packages"; exit 1; }
RAVEL_LIBRARY=$(realpath "$build/libravel.so") RAVEL_ENGINES=$(realpath "$build/frameworks/engines") RAVEL_CHECKOUTS=$(realpath "$checkouts")
RAVEL_COMMAND=$(realpath "$build/ravel") RAVEL_STUB=$(realpath "$build/libravel_stub.so")
tests=$(realpath python/tests) package=$(realpath python) code=0
export RAVEL_LIBRARY RAVEL_ENGINES RAVEL_CHECKOUTS RAVEL_COMMAND RAVEL_STUB
"$python" "$tests/peers.py"
"$python" -m pytest -q -rsfE -p no:cacheprovider -W ignore "$tests"/test_peers.py || code=1

own() { # FOLDER ADAPTERS PACKAGES FILES...: a peer's own tests, with our adapters installed before they are collected
    folder=$checkouts/$1 adapters=$2 packages=$3
    shift 3
    [ -e "$folder/$1" ] || { echo "$folder has no $1: left out"; return; }
    # shellcheck disable=SC2086 # several packages
    "$python" -m pip install -q --disable-pip-version-check $packages || { code=1; return; }
    echo "$folder: $*"
    (cd "$folder" && RAVEL_PEER=$adapters PYTHONPATH=.:$package:$tests "$python" -m pytest -q -p no:cacheprovider -p peer_plugin \
        --noconftest -W ignore "$@") || code=1
}
own RL nemo_rl,nemo_rl_dynamic "ray pillow omegaconf" tests/unit/data/packing/test_algorithms.py tests/unit/distributed/test_batched_data_dict.py
own slime slime numpy tests/test_dp_schedule.py
exit $code
