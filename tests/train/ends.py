#!/usr/bin/env python3
"""Random ways to end a training run; after one to three of them the run is resumed, and its losses and the weights of its
last checkpoint must be those of a run that was left alone, bit for bit.

    ends.py RAVEL COUNT [SEED]

Ways: kill -9, SIGTERM, SIGINT, SIGHUP (the run goes on), a reader of the output that goes away (the run goes on), a full
disk (a small file system where one can be mounted; a limit on file sizes), a row of the data changed on the disk, a reward
command that fails. Ends with "N passed, N failed"."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from curve import losses, seed_of

ravel, count = sys.argv[1], int(sys.argv[2])
seed = seed_of(sys.argv[3:])
dice = random.Random(seed)
scratch = tempfile.mkdtemp(prefix="ravel-ends-")
data = os.path.join(scratch, "rows.jsonl")
pairs = os.path.join(scratch, "pairs.jsonl")
fails = os.path.join(scratch, "reward-fails")

small = "--hidden 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --sinks jsonl".split()
sft = ["train", "sft", "--steps", "40", "--batch", "16", "--checkpoint-every", "3"] + small
grpo = ["train", "grpo", "--entropy", "0.05", "--task", "sort", "--steps", "12", "--prompts", "4", "--group-size", "4", "--max-tokens", "6",
        "--eval-prompts", "4", "--ranks", "2", "--checkpoint-every", "2"] + small
score = "[ ! -e %s ] || exit 3; exec sed -u 's/{\"id\": \\([0-9]*\\),.*\"tokens\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\2}/'" % fails
kinds = {
    "sft": sft + ["--task", "sort", "--ranks", "2"],
    "zero": sft + ["--task", "sort", "--ranks", "3", "--shard", "states"],
    "mesh": sft + ["--task", "sort", "--tp", "2", "--pp", "2", "--shard", "states"],
    "params": sft + ["--task", "sort", "--pp", "2", "--dp", "2", "--shard", "params"],
    "data": sft + ["--data", data, "--ranks", "2"],
    "eval": sft + ["--data", data, "--eval-data", data, "--eval-every", "1", "--eval-tokens", "40", "--ranks", "2"],
    "dpo": ["train", "dpo", "--data", pairs, "--steps", "24", "--batch", "8", "--checkpoint-every", "2", "--ranks", "2"] + small,
    "timed": ["0.05s" if word == "3" else word for word in sft] + ["--task", "sort"],
    "grpo": grpo,
    "async": grpo + ["--async", "1", "--correction", "tis"],
    # answers of any length: at every checkpoint generators have some that are begun
    "ahead": ["24" if word == "6" else word for word in grpo] + ["--async", "4", "--correction", "tis", "--slots", "30", "--stop-ids",
                                                                   ",".join(str(i) for i in range(1, 17))],
    "reward": grpo + ["--reward-command", score],
}
ways = ["kill", "term", "int", "hup", "pipe", "disk", "full"]
more_ways = {"data": ["changed"] * 4 + ["cut"] * 4, "reward": ["reward"] * 4}
counts = {}  # of each way


def write_rows(change=None):
    rows = [json.dumps({"prompt": "p%d" % i, "response": "abc"[: 1 + i % 3]}) for i in range(200)]
    if change is not None:
        rows[change] = rows[change].replace("p", "q", 1)
    with open(data, "r+" if os.path.exists(data) else "w") as f:  # in place: the run has the file open
        f.write("\n".join(rows) + "\n")


def write_pairs():
    with open(pairs, "w") as f:
        for i in range(100):
            f.write(json.dumps({"prompt": "p%d" % i, "chosen": "ab"[: 1 + i % 2], "rejected": "xyz"[: 1 + i % 3]}) + "\n")


def weights(run):
    """Of the newest checkpoint."""
    folder = os.path.join(run, "checkpoints")
    newest = max(name for name in os.listdir(folder) if name.startswith("step-"))
    with open(os.path.join(folder, newest, "model.safetensors"), "rb") as f:
        return newest, hashlib.sha256(f.read()).hexdigest()


def has_checkpoint(run):
    folder = os.path.join(run, "checkpoints")
    return os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder))


def start(kind, run, limit=None):
    resume = ["--resume"] if has_checkpoint(run) else []
    if not resume:
        shutil.rmtree(run, ignore_errors=True)

    def before():
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen([ravel] + kinds[kind] + ["--run", run] + resume, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=before)


def wait(process):
    """Exit status and output; a run that hangs is killed and fails."""
    try:
        out, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return None, (out or b"").decode(errors="replace")
    return process.returncode, (out or b"").decode(errors="replace")


def disturb(kind, way, run):
    """One way to end; returns a complaint or None."""
    moment = dice.uniform(0.02, 0.5)
    if way == "disk":
        code, out = wait(start(kind, run, limit=dice.choice([4096, 65536, 200000])))
        return judge(way, code, out)
    if way == "full":
        return fill(kind, run)
    process = start(kind, run)
    if way == "pipe":
        process.stdout.read(1)
        process.stdout.close()
        process.stdout = None
        code, _ = wait(process)
        return None if code == 0 else "exit status %s after its reader left" % code
    time.sleep(moment)
    if way == "changed":
        write_rows(change=dice.randrange(200))
    elif way == "cut":
        os.truncate(data, dice.randrange(os.path.getsize(data)))
    elif way == "reward":
        open(fails, "w").close()
    else:
        signals = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT, "hup": signal.SIGHUP}
        process.send_signal(signals[way])
    code, out = wait(process)
    write_rows()
    if os.path.exists(fails):
        os.remove(fails)
    return judge(way, code, out)


def judge(way, code, out):
    """An end that was expected: 0, the signal itself where it came before the run could catch it, or 1 with a sentence."""
    allowed = {"kill": (-9, 0), "term": (0, -15, 130), "int": (0, -2, 130), "hup": (0, -1)}
    if code not in allowed.get(way, (0, 1)):
        return "exit status %s: %s" % (code, out[-300:])
    if code in (1, 130) and not any(line.startswith("ravel train: ") for line in out.splitlines()):
        return "no sentence: %s" % out[-300:]
    return None


def fill(kind, run):
    """The run's folder moves to a file system with little room, is filled there, and moves back with what it has."""
    disk = os.path.join(scratch, "disk")
    size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(run) for name in names)
    size += dice.choice([50000, 800000, 1000000, 1300000])  # a run that begins with too little is refused
    os.makedirs(disk, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", disk], stderr=subprocess.DEVNULL).returncode:
        code, out = wait(start(kind, run, limit=dice.choice([20000, 100000])))
        return judge("disk", code, out)
    try:
        there = os.path.join(disk, "run")
        if os.path.exists(run):
            shutil.copytree(run, there)
        code, out = wait(start(kind, there))
        shutil.rmtree(run, ignore_errors=True)
        if os.path.exists(there):
            shutil.copytree(there, run)
        counts["mounted"] = counts.get("mounted", 0) + 1
        return judge("full", code, out)
    finally:
        subprocess.run(["umount", disk])


def one(number, kind, whole):
    run = os.path.join(scratch, "run-%d" % number)
    done = []
    for _ in range(dice.randint(1, 3)):
        way = dice.choice(ways + more_ways.get(kind, []))
        counts[way] = counts.get(way, 0) + 1
        done.append(way)
        complaint = disturb(kind, way, run)
        if complaint:
            return "%s, %s: %s" % (kind, "+".join(done), complaint)
    code, out = wait(start(kind, run))
    if code != 0:
        return "%s, %s: resuming: %s" % (kind, "+".join(done), out[-300:])
    if losses(run) != whole[0]:
        return "%s, %s: other losses" % (kind, "+".join(done))
    if weights(run) != whole[1]:
        return "%s, %s: other weights" % (kind, "+".join(done))
    shutil.rmtree(run)
    return None


def main():
    passed = failed = 0
    write_rows()
    write_pairs()
    whole = {}
    for kind in kinds:
        run = os.path.join(scratch, "whole-" + kind)
        code, out = wait(start(kind, run))
        if code != 0:
            print("  FAIL  %s, left alone: %s" % (kind, out[-500:]))
            failed += 1
            continue
        whole[kind] = losses(run), weights(run)
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        if kind not in whole:
            continue
        complaint = one(number, kind, whole[kind])
        passed, failed = passed + (not complaint), failed + bool(complaint)
        if complaint:
            print("  FAIL  seed %d, number %d: %s" % (seed, number, complaint))
    said = ", ".join("%s %d" % (way, counts[way]) for way in sorted(counts))
    print("  %d runs ended at random (seed %d) and resumed: %s" % (count, seed, said))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


try:
    code = main()
finally:
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(code)
