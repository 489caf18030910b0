"""``python -m ravel.wandb``: a run folder in Weights & Biases. "recorded" runs on every machine; "real" with the package of pip, in its
offline mode, whose file is read back."""

import collections
import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time
import types

import pytest

import ravel.wandb
from ravel._command import command


def write(folder, steps, **more):
    with (folder / "metrics.jsonl").open("a") as out:
        for step in steps:
            out.write(json.dumps({"step": step, "time": 1.0, "loss/mean": 1 / step, "ranks": {"busy_sec": [1, 2]}, **more}) + "\n")


@pytest.fixture
def logged(monkeypatch):
    """A wandb that writes down what it is given: {run id: [(step, row)]}, and refuses a step that goes back, as W&B does."""
    runs, inits = collections.defaultdict(list), []

    class Run:
        def __init__(self, id):
            self.id = id

        def log(self, row, step):
            assert not runs[self.id] or step >= runs[self.id][-1][0], "W&B drops a step that is behind"
            runs[self.id].append((step, row))

        def finish(self):
            pass

    def init(id, resume, **keywords):
        assert resume == "allow"
        inits.append(keywords)
        return Run(id)

    fake = types.SimpleNamespace(init=init, Table=lambda columns, data: ("table", columns, data), Html=lambda text: ("html", text))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return types.SimpleNamespace(runs=runs, inits=inits)


def steps_of(rows):
    return [step for step, row in rows if "loss/mean" in row]


def test_every_row_is_logged_once_over_restarts_and_resumed_runs(tmp_path, logged):
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    write(tmp_path, range(1, 4))
    with (tmp_path / "metrics.jsonl").open("a") as out:
        out.write('{"step":4,"loss')  # the trainer is writing it
    (tmp_path / "samples.jsonl").write_text('{"step":1,"prompt":"a","reward":0.5}\n{"step":2,"prompt":"b","ids":[1,2]}\n')
    run = ravel.wandb.follow(tmp_path, once=True, project="p")
    with (tmp_path / "metrics.jsonl").open("a") as out:
        out.write('/mean":0.25}\n')
    write(tmp_path, [3, 4, 5])  # resumed from step 2: the same values once more
    assert ravel.wandb.follow(tmp_path, once=True) == run == ravel.wandb.follow(tmp_path, once=True)
    rows = logged.runs[run]
    assert steps_of(rows) == [1, 2, 3, 4, 5] and all("ranks" not in row for _, row in rows)
    assert logged.inits[0]["config"]["lr"] == 0.1 and logged.inits[0]["project"] == "p"
    tables = [row["samples"] for _, row in rows if "samples" in row]
    assert tables[0] == ("table", ["step", "prompt", "reward", "ids"], [[1, "a", 0.5, None], [2, "b", None, "[1, 2]"]])
    if command():
        assert any("<html" in row["report"][1].lower() for _, row in rows if "report" in row)


def test_it_follows_until_the_trainer_lets_go_of_the_folder(tmp_path, logged):
    (tmp_path / ".lock").write_text("")
    held = os.open(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    found = []
    thread = threading.Thread(target=lambda: found.append(ravel.wandb.follow(tmp_path, every=0.01)))
    thread.start()
    for step in range(1, 6):
        write(tmp_path, [step])
        thread.join(0.05)
        assert thread.is_alive()
    os.close(held)
    thread.join(60)
    assert not thread.is_alive() and steps_of(logged.runs[found[0]]) == [1, 2, 3, 4, 5]


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="--run folder"):
        ravel.wandb.follow(tmp_path / "nothing")


def records(path):
    """The records of an offline run: blocks of 32 KiB, each record a checksum, a length, a kind (whole, first, middle, last)."""
    from wandb.proto import wandb_internal_pb2 as proto

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at:at + 7])
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = proto.Record()
            record.ParseFromString(whole)
            yield record


def history(folder):
    """[(step, {name: value})] of all offline runs in a folder, oldest first."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                found.append((int(row["_step"]), row))
    return found


def test_the_real_package_gets_every_step_of_a_training_run_once(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: a run was not followed with it")
    if command() is None:
        pytest.skip("the ravel command is not built")
    folder = tmp_path / "run"
    train = [str(command()), "train", "sft", "--task", "sort", "--level", "1", "--batch", "16", "--budget", "512", "--run", str(folder)]
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    trainer = subprocess.Popen([*train, "--steps", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while trainer.poll() is None and not (folder / "config.json").exists():
        time.sleep(0.05)
    follower = [sys.executable, "-m", "ravel.wandb", str(folder), "--every", "0.1", "--project", "tests"]
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)  # while it trains, and to its end
    assert trainer.wait(300) == 0
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)  # started again: nothing is new
    subprocess.run([*train, "--steps", "64", "--resume"], check=True, capture_output=True, timeout=300)
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)
    rows = history(tmp_path)
    assert [step for step, row in rows if "tokens/actual" in row] == list(range(1, 65))
    assert any(name.startswith("report") for _, row in rows for name in row)
    ids = {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert len(ids) == 1, ids
