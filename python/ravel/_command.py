"""The ravel command: where it is, and answers of a model through it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from . import _lib

__all__ = ["Answer", "command", "generate"]


def command() -> pathlib.Path | None:
    """The ravel program: RAVEL_COMMAND, else the wheel's own, the checkout's build or Debian's; None: there is none."""
    named = os.environ.get("RAVEL_COMMAND")
    here = pathlib.Path(__file__).resolve().parent
    places = [pathlib.Path(named)] if named else [here / "bin" / "ravel", here.parents[1] / "build" / "ravel"]
    if not named and _lib.path.parent.parent.parent == pathlib.Path("/usr"): # the Debian package of the library has one of the command
        places.append(pathlib.Path("/usr/bin/ravel"))
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


class Answer(NamedTuple):
    """One sampled answer."""

    row: int
    """The prompt's number, from 0."""
    sample: int
    """0 .. samples - 1 of this prompt."""
    text: str
    tokens: np.ndarray
    """int32 ids of the answer."""
    prompt_tokens: np.ndarray
    logprob: float
    """Sum over the answer's tokens."""
    ended: bool
    """Whether the model ended it itself, rather than max_tokens."""


def _row(prompt: Any) -> dict[str, Any]:
    """A prompt as a line of the command's input."""
    if isinstance(prompt, str):
        return {"messages": [{"role": "user", "content": prompt}]}
    if isinstance(prompt, Mapping):
        return dict(prompt)
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        return {"messages": list(prompt)}
    return {"input_ids": [int(token) for token in prompt]}


def _flags(name: str, value: Any) -> list[str]:
    """A keyword as words of the command line; None is the command's default."""
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return [word for each in value for word in (flag, each)]
    return [flag, str(value) if isinstance(value, (str, os.PathLike)) or np.ndim(value) == 0 else ",".join(map(str, value))]


def _answer(line: str) -> Answer:
    found = json.loads(line)
    return Answer(int(found["row"]), int(found["sample"]), found.get("response", ""),
                  np.asarray(found["response_ids"], np.int32), np.asarray(found["prompt_ids"], np.int32),
                  float(found["logprob"]), bool(found["ended"]))


def generate(model: str | os.PathLike[str], prompts: Iterable[Any], *, timeout: float | None = None,
             **options: Any) -> list[Answer]:
    """Samples answers of a model folder, with the generator that Ravel trains with, in a process of its own.

    A prompt is a text (a user's turn), a list of messages, token ids, or a row as ``ravel generate --data`` takes it; a model
    without a tokenizer takes ``{"prompt": text}`` and token ids. ``options`` are those of ``ravel generate --help``: samples,
    max_tokens, temperature, top_k, top_p, min_p, seed, stop (a text or a list of them), stop_ids, threads, kernels, chat_format.
    Answers are in the order of the prompts. What goes wrong is a ``RuntimeError`` with the command's sentence."""
    program = command()
    if program is None:
        raise FileNotFoundError("the ravel command was not found; run `make` in the checkout, install the wheel, or set "
                                "RAVEL_COMMAND")
    rows = [_row(prompt) for prompt in prompts]
    if not rows:
        return []
    with tempfile.TemporaryDirectory(prefix="ravel-") as folder:
        data, out = pathlib.Path(folder, "prompts.jsonl"), pathlib.Path(folder, "answers.jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
        words = [str(program), "generate", "--model", os.fspath(model), "--data", str(data), "--out", str(out)]
        for name, value in options.items():
            words += _flags(name, value)
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"ravel generate ended with {done.returncode}")
        return [_answer(line) for line in out.read_text(encoding="utf8").split("\n") if line]
