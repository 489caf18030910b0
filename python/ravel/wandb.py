"""``python -m ravel.wandb RUN`` follows a run folder of ``ravel train`` into Weights & Biases, while the run goes on and after it.

    python -m ravel.wandb runs/sft-1 --project my-project          ends when the run does
    python -m ravel.wandb runs/sft-1 --once                        what is there now
    WANDB_MODE=offline python -m ravel.wandb runs/sft-1            without a network; `wandb sync` uploads it later

Every line of ``metrics.jsonl`` becomes a step, config.json and environment.json the config, samples.jsonl a table, and the page of
``ravel report`` is added at the end. A follower that is started again, also after ``kill -9``, goes on in the same W&B run behind the
last step that W&B has: the server is asked for it, or the files of an offline run. A resumed run repeats updates with the same
values: they are logged once.
"""

from __future__ import annotations

import os
import pathlib
import struct
import time
from typing import Any, Iterator

from . import _follow

__all__ = ["follow", "main"]

_BLOCK, _HEAD = 32768, 7  # of an offline run's file: blocks; a record is a checksum, a length, a kind, and its bytes


def _records(path: pathlib.Path) -> Iterator[bytes]:
    """The whole records of an offline run. One over a block's end is in parts: kind 1 is whole, 2 first, 3 middle, 4 last."""
    data, at, parts = path.read_bytes(), _HEAD, b""
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at:at + _HEAD])
        parts = (parts if kind in (3, 4) else b"") + data[at + _HEAD:at + _HEAD + size]
        at += _HEAD + size
        if kind in (1, 4) and at <= len(data):
            yield parts


def _last_offline(paths: list[pathlib.Path]) -> int:
    """The last step in the files of offline runs; -1: none."""
    from wandb.proto import wandb_internal_pb2 as proto

    last = -1
    for path in paths:
        for text in _records(path):
            record = proto.Record.FromString(text)
            if record.WhichOneof("record_type") == "history":
                last = max([last, *(int(item.value_json) for item in record.history.item if "_step" in (item.key, *item.nested_key))])
    return last


def _wait_until_closed(paths: list[pathlib.Path], seconds: float = 60) -> None:
    """What a killed follower had given to W&B's own process is still being written by that."""
    names, until = {str(path) for path in paths}, time.monotonic() + seconds
    while names and time.monotonic() < until:
        held = False
        for file in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
            try:
                held = held or os.readlink(file) in names
            except OSError:  # a process that ended, or of somebody else
                continue
        if not held:
            return
        time.sleep(0.1)


class _Wandb:
    def __init__(self, folder: pathlib.Path, state: dict[str, Any], config: dict[str, Any], init: dict[str, Any]):
        import wandb

        self.wandb, self.state, self.id = wandb, state, state["id"]
        init = {**({"dir": state["dir"]} if "dir" in state else {}), **init}
        ours = sorted(pathlib.Path(state.get("dir", "/nowhere"), "wandb").glob(f"offline-run-*-{self.id}/*.wandb"))
        _wait_until_closed(ours)
        self.run = wandb.init(id=self.id, resume="allow", name=folder.name, config=config, **init)
        self.state["dir"] = str(pathlib.Path(self.run.dir).parents[2])
        self.last = max(self.run.step - 1, _last_offline(ours))

    def row(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def flush(self) -> None:
        """W&B sends a step when the next one begins."""

    def end(self, step: int, columns: list[str], rows: list[list[Any]], page: str | None) -> None:
        last = {"samples": self.wandb.Table(columns=columns, data=rows)} if columns else {}
        if page is not None:
            last["report"] = self.wandb.Html(page)
        self.run.log(last, step=max(step, self.run.step))  # W&B takes no more for a step that was sent

    def close(self) -> None:
        self.run.finish()


def follow(folder: str | os.PathLike[str], *, once: bool = False, every: float = 2.0, **init: Any) -> str:
    """Logs a run folder to Weights & Biases until the run ends, or what is there now with ``once``; the id of the W&B run.
    ``init`` goes to ``wandb.init`` (project, entity, group, mode, dir, ...)."""
    return _follow.follow("wandb", folder, lambda path, state, config: _Wandb(path, state, config, init), once, every)


def main() -> None:
    _follow.main("wandb", follow, "Follows a run of ravel train into Weights & Biases.",
                 {"project": "of W&B (default: WANDB_PROJECT)", "entity": "of W&B (default: WANDB_ENTITY)",
                  "group": "of W&B: runs that belong together"})


if __name__ == "__main__":
    main()
