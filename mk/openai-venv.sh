#!/bin/sh
# A virtual environment with OpenAI's Python package, for the tests of ravel serve, under BUILD/openai-venv.
#     mk/openai-venv.sh BUILD
# Exit code 1, with one line why, where pip cannot bring it. Nothing of it is committed or shipped.
set -u
venv=$1/openai-venv log=$1/openai-venv.log
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }
[ -e "$venv/ready" ] && exit 0
mkdir -p "$1"
"$python" -m venv "$venv" >"$log" 2>&1 || { echo "a virtual environment could not be made (Debian: python3-venv)"; exit 1; }
timeout 600 "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check openai >>"$log" 2>&1 ||
    { echo "pip cannot reach openai: $(tail -n 1 "$log")"; exit 1; }
touch "$venv/ready"
