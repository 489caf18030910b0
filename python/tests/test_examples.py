"""Every example runs, from a checkout or with the installed package, and says what it did."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted(p for p in (pathlib.Path(__file__).parents[1] / "examples").glob("*.py") if not p.name.startswith("_"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example):
    done = subprocess.run([sys.executable, str(example)], text=True, capture_output=True, timeout=300,
                          cwd="/", env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip().partition(": ")[2])


def test_all_are_there():
    assert {p.stem for p in EXAMPLES} >= {"feed_steps", "pack_dataloader", "verl_dynamic_batch", "exact_accumulation", "refit_two_processes"}
