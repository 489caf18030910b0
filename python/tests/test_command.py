"""``python -m ravel``, the command beside the package, and answers through it."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import ravel

TINY = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "qwen3-tiny"


def run(*arguments, **environment):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment})


def test_the_package_says_what_it_found():
    done = run("-m", "ravel")
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert done.returncode == 0 and lines["ravel"] == ravel.__version__ and lines["library"].endswith("libravel.so")
    assert {"command", "openmpi", "cuda", "numpy", "torch"} <= set(lines) and lines["numpy"] == np.__version__
    lost = run("-m", "ravel", RAVEL_LIBRARY="/nowhere/libravel.so")
    assert lost.returncode != 0 and "libravel.so was not found" in lost.stdout + lost.stderr


def test_the_command_is_found_where_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RAVEL_COMMAND", str(tmp_path / "nowhere"))
    assert ravel.command() is None
    with pytest.raises(FileNotFoundError, match="set RAVEL_COMMAND"):
        ravel.generate("model", ["hello"])
    program = tmp_path / "ravel"
    program.write_text("#!/bin/sh\necho \"ravel generate: there is no model $3\" >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("RAVEL_COMMAND", str(program))
    assert ravel.command() == program and ravel.generate("model", []) == []
    with pytest.raises(RuntimeError, match="there is no model model"):
        ravel.generate("model", ["hello"])


def test_options_become_flags_and_any_text_comes_back(monkeypatch, tmp_path):
    program, words = tmp_path / "ravel", tmp_path / "words"
    program.write_text(f"""#!{sys.executable}
import json, sys
json.dump(sys.argv[2:], open({str(words)!r}, "w"))
row = dict(row=0, sample=0, response="a\u2028b\u0085c", response_ids=[1], prompt_ids=[2], logprob=0, ended=True)
with open(sys.argv[sys.argv.index("--out") + 1], "w", encoding="utf8") as out:
    out.write(json.dumps(row, ensure_ascii=False) + "\\n")
""", encoding="utf8")
    program.chmod(0o755)
    monkeypatch.setenv("RAVEL_COMMAND", str(program))
    found = ravel.generate("m", ["x"], stop=["Q:", "A:"], stop_ids=np.array([7, 8]), top_k=4, quiet=True, raw=False, seed=None)
    assert [a.text for a in found] == ["a\u2028b\u0085c"]
    assert json.loads(words.read_text())[6:] == ["--stop", "Q:", "--stop", "A:", "--stop-ids", "7,8", "--top-k", "4", "--quiet"]


def test_answers(tmp_path):
    if ravel.command() is None:
        pytest.skip("the ravel command is not beside the package: no answers were sampled")
    if not TINY.exists():
        pytest.skip("this is no checkout: tests/golden/qwen3-tiny is not here: no answers were sampled")
    found = ravel.generate(TINY, [[1, 2, 3], {"input_ids": [4, 5]}], samples=2, max_tokens=5, temperature=0, threads=1)
    assert [(a.row, a.sample) for a in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(a.tokens.dtype == np.int32 and 0 < len(a.tokens) <= 5 and a.logprob <= 0 for a in found)
    assert found[0].tokens.tolist() == found[1].tokens.tolist() and found[0].prompt_tokens.tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="nothing"):
        ravel.generate(tmp_path / "nothing", [[1]])
