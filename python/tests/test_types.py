"""The package and a caller's program under ``mypy --strict``: py.typed says that this holds."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import ravel

HERE = pathlib.Path(__file__).resolve().parent

GOOD = '''
import numpy as np
import ravel

plan: ravel.Plan = ravel.plan([3, 4, 5], budget="16k", dp=2)
store = ravel.Ragged(np.array([3, 4]), tokens=np.arange(7))
batch = ravel.pack(store, plan.bins[0], pin=False)
ends: np.ndarray = batch.cu_seqlens
longest: int = batch.max_seqlen
for micro in ravel.Feed(ravel.Source.samples(store), budget=16, samples=2).updates():
    steps: int = len(micro)
groups: list[ravel.HybridGroup] = plan.hybrid.groups(0) if plan.hybrid is not None else []
'''
BAD = '''
import ravel

ravel.plan(5, budget=16)
ravel.plan([5], budgt=16)
ravel.pack([1, 2], [0])
'''


def check(*arguments, cwd=None):
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-any-generics", "--no-incremental", "--cache-dir", "/dev/null", *arguments],
                          capture_output=True, text=True, timeout=3600, cwd=cwd)


@pytest.fixture(autouse=True)
def mypy():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (pip install mypy): types were not checked")
    if tuple(map(int, np.__version__.split(".")[:2])) < (2, 3):
        pytest.skip("the types of numpy before 2.3 do not fit (2.2 takes lists of numbers for str): types were not checked")


def test_the_package():
    if not (HERE.parent / "ravel" / "_abi.py").exists():
        pytest.skip("not a checkout")
    done = check("-p", "ravel", cwd=HERE.parent)
    assert done.returncode == 0, done.stdout


def test_a_callers_program(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    package = pathlib.Path(ravel.__file__).parents[1]
    path = "" if package.name == "site-packages" else f"mypy_path = {package}\n"  # mypy finds installed packages itself
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{path}[mypy-ravel.*]\nfollow_imports = silent\n")
    done = check("--config-file", "mypy.ini", "good.py", "bad.py", cwd=tmp_path)  # one run: most of it reads numpy's types
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert errors and all(line.startswith("bad.py:") for line in errors), done.stdout
    assert [line for line in (4, 5, 6) if f"bad.py:{line}: error" not in done.stdout] == [], done.stdout
