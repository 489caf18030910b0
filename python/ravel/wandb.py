"""``python -m ravel.wandb RUN`` follows a run folder of ``ravel train`` into Weights & Biases, while the run goes on and after it.

    python -m ravel.wandb runs/sft-1 --project my-project          ends when the run does
    python -m ravel.wandb runs/sft-1 --once                        what is there now
    WANDB_MODE=offline python -m ravel.wandb runs/sft-1            without a network; `wandb sync` uploads it later

Every line of ``metrics.jsonl`` becomes a step, config.json and environment.json the config, samples.jsonl a table, and the page of
``ravel report`` is added at the end. ``RUN/wandb.json`` keeps the id and the last step, so that a follower that is started again
goes on in the same W&B run and logs no step twice. A resumed run repeats updates with the same values: they are logged once.
"""

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
from typing import Any, Iterator

__all__ = ["follow", "main"]


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


class _Follower:
    def __init__(self, folder: pathlib.Path, **init: Any):
        import wandb

        self.wandb, self.folder, self.kept = wandb, folder, folder / "wandb.json"
        self.state = {"id": uuid.uuid4().hex[:12], "step": 0, **_json(self.kept)}
        config = {**_json(folder / "config.json"), "environment": _json(folder / "environment.json")}
        self.run = wandb.init(id=self.state["id"], resume="allow", name=folder.name, config=config, **init)
        self.at, self.logged = 0, 0
        self._keep()

    def _keep(self) -> None:
        """Writes what was logged aside and renames it."""
        aside = self.kept.with_name(".wandb.json.new")
        aside.write_text(json.dumps(self.state) + "\n")
        aside.replace(self.kept)

    def read(self) -> None:
        """Logs the rows that are new."""
        before = self.logged
        for row, self.at in _lines(self.folder / "metrics.jsonl", self.at):
            step = int(row.pop("step"))
            if step <= self.state["step"]:
                continue
            self.run.log({name: value for name, value in row.items() if isinstance(value, (int, float))}, step=step)
            self.state["step"], self.logged = step, self.logged + 1
        if self.logged > before:
            self._keep()

    def finish(self) -> None:
        """The table of samples and the report page, in the last step that this follower logged, then the end of the W&B run."""
        if self.logged:
            last: dict[str, Any] = {}
            samples = [row for row, _ in _lines(self.folder / "samples.jsonl", 0)]
            columns: list[Any] = list(dict.fromkeys(name for row in samples for name in row))
            if columns:
                rows = [[json.dumps(v) if isinstance(v := row.get(name), (dict, list)) else v for name in columns] for row in samples]
                last["samples"] = self.wandb.Table(columns=columns, data=rows)
            if page := _report(self.folder):
                last["report"] = self.wandb.Html(page)
            self.run.log(last, step=self.state["step"])
        self.run.finish()


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
            print(f"ravel.wandb: without the report page: {done.stderr.strip()}", file=sys.stderr)
            return None
        return page.read_text(encoding="utf8")


def follow(folder: str | os.PathLike[str], *, once: bool = False, every: float = 2.0, **init: Any) -> str:
    """Logs a run folder to Weights & Biases until the run ends, or what is there now with ``once``; the id of the W&B run.
    ``init`` goes to ``wandb.init`` (project, entity, group, mode, dir, ...)."""
    path = pathlib.Path(folder).resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; give the --run folder of ravel train")
    follower = _Follower(path, **init)
    try:
        more = True
        while more:
            more = not once and _goes_on(path)  # asked before the last look, so that no row is missed
            follower.read()
            if more:
                time.sleep(every)
    except KeyboardInterrupt:
        follower.read()
    follower.finish()
    return str(follower.state["id"])


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m ravel.wandb", description="Follows a run of ravel train into Weights & Biases.")
    ask.add_argument("run", help="the folder of --run")
    ask.add_argument("--project", help="of W&B (default: WANDB_PROJECT)")
    ask.add_argument("--entity", help="of W&B (default: WANDB_ENTITY)")
    ask.add_argument("--group", help="of W&B: runs that belong together")
    ask.add_argument("--once", action="store_true", help="log what is there now and end, also while the run goes on")
    ask.add_argument("--every", type=float, default=2.0, help="seconds between two looks (default 2)")
    given = vars(ask.parse_args())
    try:
        follow(given.pop("run"), once=given.pop("once"), every=given.pop("every"),
               **{name: value for name, value in given.items() if value is not None})
    except (FileNotFoundError, ImportError) as problem:
        sys.exit(f"ravel.wandb: {problem}" + ("; pip install wandb" if isinstance(problem, ImportError) else ""))


if __name__ == "__main__":
    main()
