"""The words of other systems: what an unknown option answers, `ravel words`, and docs/glossary.md, all from one table."""

import os
import pathlib
import re
import subprocess

import pytest

from ravel._command import command

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ravel(*words):
    done = subprocess.run([str(command()), *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def program():
    if command() is None:
        pytest.skip("the ravel command is not built")


@pytest.mark.parametrize("name, kind, here", [
    ("--micro-token-budget", "sft", "--budget"), ("--ppo-max-token-len-per-gpu", "grpo", "--budget"),
    ("--max-tokens-per-gpu", "grpo", "--budget"), ("--sequence-packing-scheduler", "sft", "--method"),
    ("--sft-mock-dataset-config-json", "sft", "--mock"), ("--num_microbatches", "sft", "--min-micro-steps"),
    ("--NRL_REFIT_BUFFER_MEMORY_RATIO", "grpo", "--refit-memory"), ("--learning-rate", "dpo", "--lr"),
    ("--batch-size", "sft", "--batch"), ("--max-length", "sft", "--truncate"), ("--actor.ppo_mini_batch_size", "sft", None)])
def test_options_of_others_are_answered(name, kind, here):
    code, _, said = ravel("train", kind, name, "8")
    assert code == 2 and f"unknown option {name}" in said
    assert here is None or f"; here it is {here}" in said, said


@pytest.mark.parametrize("kind", ["ppo", "rloo", "finetune"])
def test_methods_of_others_are_answered(kind):
    code, _, said = ravel("train", kind)
    assert code == 2 and f"there is no ravel train {kind}; here it is train " in said


def test_every_word_is_answered_and_names_an_option_that_is_there():
    page = ravel("words", "--markdown")[1]
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in page.splitlines() if line.startswith("| `")]
    helps = "".join(ravel(*words, "--help")[1] for words in (["plan"], ["feed"], ["refit"], ["serve"], ["train", "sft"], ["train", "dpo"],
                                                             ["train", "grpo"]))
    options = set(re.findall(r"^  (--[a-z0-9-]+)", helps, re.M))
    seen = set()
    for theirs, _, here, *_ in rows:
        for name in re.findall(r"`([^`]+)`", theirs):
            assert name not in seen, f"{name} is there twice"
            seen.add(name)
            assert ravel("words", name)[0] == 0 and ravel("words", "--" + name.upper())[0] in (0, 2)
        ours = here.strip("`")
        assert not ours.startswith("--") or ours in options, f"{theirs} names {ours}, which no command has"
        assert here == "not here" or "`" in here
    assert len(seen) > 120
    code, _, said = ravel("words", "frobnicate")
    assert code == 1 and "nothing is known" in said


@pytest.mark.skipif("RAVEL_TEST_INSTALLED" in os.environ, reason="the page is compared with the checkout")
def test_the_glossary_is_what_the_table_says():
    assert (ROOT / "docs" / "glossary.md").read_text() == ravel("words", "--markdown")[1], "run: build/ravel words --markdown > docs/glossary.md"
