"""A run folder of ``ravel train``, read while the run goes on and handed to a writer: what wandb.py and mlflow.py share.

A writer is asked for ``last``, the last step that its service surely has, so a follower that was killed goes on behind it: nothing is
lost, and nothing is there twice. ``RUN/NAME.json`` keeps what a writer needs for that, and as ``finished`` the step with which it got the
table of samples and the report page."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import uuid
from typing import Any, Callable, Iterator, Protocol


class Writer(Protocol):
    id: str
    """Of the run in the service."""
    last: int
    """The last step that is there already; -1: none."""

    def row(self, step: int, values: dict[str, float]) -> None:
        """A line of metrics.jsonl. Steps rise."""

    def flush(self) -> None:
        """After every look at the folder."""

    def end(self, step: int, columns: list[str], rows: list[list[Any]], page: str | None) -> None:
        """The table of samples and the report page, with the last step."""

    def close(self) -> None:
        """Returns when everything is where it goes."""


def _lines(path: pathlib.Path, at: int) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole lines from a place in a file on, and the place behind each. A file that became shorter is read from its start."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(at if at <= os.fstat(file.fileno()).st_size else 0)
        for line in iter(file.readline, b""):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield json.loads(line), file.tell()


def _goes_on(folder: pathlib.Path) -> bool:
    """Whether a trainer holds the folder's lock. Without such a file (Metrics of a loop of one's own) nobody knows."""
    lock = folder / ".lock"
    if not lock.exists():
        return True
    try:
        held = pathlib.Path("/proc/locks").read_text()
    except OSError:
        return True
    return any(words[1] == "FLOCK" and words[5].endswith(f":{lock.stat().st_ino}") for words in map(str.split, held.splitlines()))


def _json(path: pathlib.Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _keep(path: pathlib.Path, state: dict[str, Any]) -> None:
    """Writes aside and renames."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps(state) + "\n")
    aside.replace(path)


def _samples(folder: pathlib.Path) -> tuple[list[str], list[list[Any]]]:
    samples = [row for row, _ in _lines(folder / "samples.jsonl", 0)]
    columns = list(dict.fromkeys(name for row in samples for name in row))
    return columns, [[json.dumps(v) if isinstance(v := row.get(name), (dict, list)) else v for name in columns] for row in samples]


def _report(folder: pathlib.Path) -> str | None:
    """The page of ``ravel report``; None where the command is not there or has nothing to draw."""
    from ._command import command

    program = command()
    if program is None or not (folder / "metrics.jsonl").exists():
        return None
    with tempfile.TemporaryDirectory(prefix="ravel-") as aside:
        page = pathlib.Path(aside, "report.html")
        done = subprocess.run([str(program), "report", str(folder), "--html", str(page)], capture_output=True, text=True)
        if done.returncode:
            print(f"without the report page: {done.stderr.strip()}", file=sys.stderr)
            return None
        return page.read_text(encoding="utf8")


def follow(name: str, folder: str | os.PathLike[str], make: Callable[[pathlib.Path, dict[str, Any], dict[str, Any]], Writer],
           once: bool, every: float) -> str:
    """Until the run ends, or what is there now with ``once``; the id of the run in the service. ``make`` gets the folder, the
    state, to which it may add, and the run's configuration."""
    path = pathlib.Path(folder).resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; give the --run folder of ravel train")
    kept, config = path / f"{name}.json", {**_json(path / "config.json"), "environment": _json(path / "environment.json")}
    state = {"id": uuid.uuid4().hex[:12], **_json(kept)}
    _keep(kept, state)  # before the service hears of it
    writer = make(path, state, config)
    _keep(kept, state)
    step, at, more = writer.last, 0, True
    while more:
        try:
            more = not once and _goes_on(path)  # asked before the last look, so that no row is missed
            for row, at in _lines(path / "metrics.jsonl", at):
                now = int(row.pop("step"))
                if now > step:  # a resumed run repeats updates with the same values
                    writer.row(now, {key: value for key, value in row.items() if isinstance(value, (int, float))})
                    step = now
            writer.flush()
            if more:
                time.sleep(every)
        except KeyboardInterrupt:
            once = True
    if step >= 0 and state.get("finished") != step:
        writer.end(step, *_samples(path), _report(path))
    writer.close()
    _keep(kept, {**state, "finished": step})
    return writer.id


def main(name: str, call: Callable[..., str], about: str, options: dict[str, str]) -> None:
    """A command line: the folder, --once, --every, and ``options`` with their help, which go to ``call`` as keywords."""
    ask = argparse.ArgumentParser(prog=f"python -m ravel.{name}", description=about)
    ask.add_argument("run", help="the folder of --run")
    for option, text in options.items():
        ask.add_argument(f"--{option}", help=text)
    ask.add_argument("--once", action="store_true", help="log what is there now and end, also while the run goes on")
    ask.add_argument("--every", type=float, default=2.0, help="seconds between two looks (default 2)")
    given = vars(ask.parse_args())
    try:
        call(given.pop("run"), **{key: value for key, value in given.items() if value is not None})
    except (FileNotFoundError, ImportError) as problem:
        sys.exit(f"ravel.{name}: {problem}" + (f"; pip install {name}" if isinstance(problem, ImportError) else ""))
