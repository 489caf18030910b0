"""``python -m ravel.wandb`` and ``python -m ravel.mlflow``: a run folder in Weights & Biases and in MLflow, with stand-ins on every machine, and
with the packages of pip: W&B's offline mode, whose files are read back, and MLflow's stores of files and of SQLite."""

import collections
import fcntl
import json
import os
import pathlib
import random
import signal
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
            out.write(json.dumps({"step": step, "time": 1.0, "loss/mean": 1 / (step + 1), "ranks": {"busy_sec": [1, 2]}, **more}) + "\n")


@pytest.fixture
def logged(monkeypatch, tmp_path):
    """A wandb that writes down what it is given: {run id: [(step, row)]}, and refuses a step that goes back, as W&B does."""
    runs, inits = collections.defaultdict(list), []

    class Run:
        dir = str(tmp_path / "wandb" / "run-1" / "files")

        def __init__(self, id):
            self.id = id
            self.step = runs[id][-1][0] + 1 if runs[id] else 0

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
    monkeypatch.setattr(ravel.wandb, "_last_offline", lambda paths: -1)
    return types.SimpleNamespace(runs=runs, inits=inits)


def steps_of(rows):
    return [step for step, row in rows if "loss/mean" in row]


def test_every_row_is_logged_once_over_restarts_and_resumed_runs(tmp_path, logged):
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    write(tmp_path, range(4))  # 0: an evaluation before training
    with (tmp_path / "metrics.jsonl").open("a") as out:
        out.write('{"step":4,"loss')  # the trainer is writing it
    (tmp_path / "samples.jsonl").write_text('{"step":1,"prompt":"a","reward":0.5}\n{"step":2,"prompt":"b","ids":[1,2]}\n')
    run = ravel.wandb.follow(tmp_path, once=True, project="p")
    with (tmp_path / "metrics.jsonl").open("a") as out:
        out.write('/mean":0.25}\n')
    write(tmp_path, [3, 4, 5])  # resumed from step 2: the same values once more
    assert ravel.wandb.follow(tmp_path, once=True) == run == ravel.wandb.follow(tmp_path, once=True)
    rows = logged.runs[run]
    assert steps_of(rows) == [0, 1, 2, 3, 4, 5] and all("ranks" not in row for _, row in rows)
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


def history(folder):
    """[(step, {name: value})] of all offline runs in a folder, oldest first."""
    from wandb.proto import wandb_internal_pb2 as proto

    found = []
    for path in sorted(pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb")):
        for record in map(proto.Record.FromString, ravel.wandb._records(path)):
            if record.WhichOneof("record_type") == "history":
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                found.append((int(row["_step"]), row))
    return found


def train_arguments(folder):
    if command() is None:
        pytest.skip("the ravel command is not built")
    return [str(command()), "train", "sft", "--task", "sort", "--level", "1", "--batch", "16", "--budget", "512", "--eval-every", "20", "--run", str(folder)]


def check_history(tmp_path, steps, ends):
    """Every step once, and as many tables and pages as followers came to the end with something new."""
    rows = history(tmp_path)
    assert sorted(step for step, row in rows if "time/wall_sec" in row) == list(range(steps + 1))
    assert sum(any(name.startswith("report") for name in row) for _, row in rows) == ends
    assert len({path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}) == 1


def test_the_real_package_gets_every_step_of_a_training_run_once(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: a run was not followed with it")
    folder = tmp_path / "run"
    train = train_arguments(folder)
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    trainer = subprocess.Popen([*train, "--steps", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while trainer.poll() is None and not (folder / "config.json").exists():
        time.sleep(0.05)
    follower = [sys.executable, "-m", "ravel.wandb", str(folder), "--every", "0.1", "--project", "tests"]
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)  # while it trains, and to its end
    assert trainer.wait(300) == 0
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)  # started again: nothing is new
    check_history(tmp_path, 60, 1)
    subprocess.run([*train, "--steps", "64", "--resume"], check=True, capture_output=True, timeout=300)
    subprocess.run(follower, check=True, cwd=tmp_path, env=environment, timeout=300)
    check_history(tmp_path, 64, 2)


def killed_followers(follower, folder, at, **run):
    """While rows appear in the folder, followers that are killed with -9, alone or with all that they started, then one that is not."""
    draw, whole = random.Random(5), [{**json.loads(line), "step": 0} for line in (at / "metrics.jsonl").read_text().splitlines()[:1]]
    steps = 0
    for kill in range(4):
        process = subprocess.Popen(follower, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **run)
        until = time.monotonic() + draw.uniform(1, 6)
        while time.monotonic() < until and process.poll() is None:
            with (folder / "metrics.jsonl").open("a") as out:
                out.write(json.dumps({**whole[0], "step": steps}) + "\n")
            steps += 1
            time.sleep(0.1)
        (os.killpg if kill % 2 else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*follower, "--once"], check=True, timeout=300, **run)
    subprocess.run([*follower, "--once"], check=True, timeout=300, **run)
    return steps - 1


@pytest.fixture
def recorded(tmp_path):
    """The metrics of a short run, and an empty folder with its samples."""
    subprocess.run([*train_arguments(tmp_path / "short"), "--steps", "2"], check=True, capture_output=True, timeout=300)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("samples.jsonl", "config.json"):
        (folder / name).write_bytes((tmp_path / "short" / name).read_bytes())
    return folder


def test_a_follower_that_is_killed_loses_no_step_in_the_real_package(tmp_path, recorded):
    pytest.importorskip("wandb", reason="wandb is not installed: a run was not followed with it")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    follower = [sys.executable, "-m", "ravel.wandb", str(recorded), "--every", "0.05", "--project", "tests"]
    steps = killed_followers(follower, recorded, tmp_path / "short", cwd=tmp_path, env=environment)
    check_history(tmp_path, steps, 1)


@pytest.mark.parametrize("store", ["file://{}/mlruns", "sqlite:///{}/mlflow.db"])
def test_mlflow_gets_every_step_once(tmp_path, recorded, store, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: a run was not followed with it")
    if store.startswith("sqlite"):
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no SQLite")
    store = store.format(tmp_path)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    follower = [sys.executable, "-m", "ravel.mlflow", str(recorded), "--every", "0.05", "--experiment", "tests"]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    client.search_experiments()  # MLflow makes its tables, which it cannot do after it was killed over that
    steps = killed_followers(follower, recorded, tmp_path / "short", cwd=tmp_path, env=environment)
    run, = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    for name in ("time/wall_sec", "run/updates"):
        assert [metric.step for metric in client.get_metric_history(run.info.run_id, name)] == list(range(steps + 1))
    assert run.data.params["budget"] == "512" and run.info.status == "FINISHED"
    assert {"samples.json", "report.html"} <= {each.path for each in client.list_artifacts(run.info.run_id)}
