#!/usr/bin/env python3
"""kill -9 of a random rank at a random moment of a run of several processes over TCP. All other ranks must end with an
error within the deadline, and the run, resumed on another mesh, must have the losses of a run that was left alone.

    lost.py RAVEL COUNT [SEED] [KIND]      KIND: sft, dpo, grpo or async (grpo --async 1) alone

Ends with "N passed, N failed"."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from curve import losses, seed_of

ravel, count = sys.argv[1], int(sys.argv[2])
seed = seed_of(sys.argv[3:])
only = sys.argv[4] if len(sys.argv) > 4 else None
dice = random.Random(seed)
scratch = tempfile.mkdtemp(prefix="ravel-lost-")
pairs = os.path.join(scratch, "pairs.jsonl")
deadline = 60  # seconds that a rank waits for the others
started = []

model = ("--hidden 32 --layers 4 --heads 4 --kv-heads 2 --head-dim 8 --ffn 64 --budget 96 --lr 0.001 --schedule constant "
         "--sinks jsonl --quiet --timeout %d" % deadline).split()
sft = ["train", "sft", "--task", "sort", "--batch", "16", "--steps", "16", "--checkpoint-every", "2"] + model
dpo = ["train", "dpo", "--data", pairs, "--batch", "8", "--steps", "12", "--checkpoint-every", "2"] + model
grpo = ["train", "grpo", "--entropy", "0.05", "--task", "sort", "--prompts", "4", "--group-size", "4", "--max-tokens", "6", "--steps", "8",
        "--checkpoint-every", "2", "--eval-prompts", "2"] + model
# meshes: options, and the number of trainer processes
meshes = [("--tp 2 --pp 2", 4), ("--pp 2 --dp 2 --shard params", 4), ("--cp 2 --dp 2", 4), ("--tp 2 --dp 2 --shard states", 4),
          ("--pp 2 --vpp 2 --tp 2", 4), ("--cp 2 --pp 2 --shard params", 4), ("--dp 3 --shard states", 3), ("--tp 2 --cp 2", 4)]
kinds = {"sft": sft, "dpo": dpo, "grpo": grpo, "async": grpo + ["--async", "1"]}
kinds = {kind: line for kind, line in kinds.items() if only in (None, kind)}


def write_pairs():
    with open(pairs, "w") as f:
        for i in range(100):
            f.write(json.dumps({"prompt": "p%d" % i, "chosen": "ab"[: 1 + i % 2], "rejected": "xyz"[: 1 + i % 3]}) + "\n")


def free_port():
    """Random, so that tests side by side choose differently; the ranks meet at the next one."""
    while True:
        port = random.randrange(12000, 30000, 2)
        with socket.socket() as one, socket.socket() as next_one:
            try:
                one.bind(("127.0.0.1", port))
                next_one.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def has_checkpoint(run):
    folder = os.path.join(run, "checkpoints")
    return os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder))


def command(kind, mesh, run):
    if not has_checkpoint(run):
        shutil.rmtree(run, ignore_errors=True)
    return [ravel] + kinds[kind] + mesh.split() + ["--run", run] + (["--resume"] if has_checkpoint(run) else [])


def start(kind, mesh, ranks, run):
    """The ranks of a run, one process each."""
    port, line, processes = free_port(), command(kind, mesh, run), []
    for rank in range(ranks):
        place = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=str(port))
        out = open(os.path.join(scratch, "out-%d" % rank), "w")
        processes.append(subprocess.Popen(line, env=place, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT))
        out.close()
    started[:] = processes
    return processes


def end_all():
    for p in started:
        if p.poll() is None:
            p.kill()
        p.wait()
    started.clear()


def said(rank):
    with open(os.path.join(scratch, "out-%d" % rank)) as f:
        return f.read()


def alone(kind, mesh, run):
    """The run to its end, ranks as threads; a complaint or None."""
    line = command(kind, mesh, run)
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return None if done.returncode == 0 else "%s: exit status %d: %s" % (mesh, done.returncode, done.stdout[-300:])


def curve_of(run, whole, missing):
    """A loss that differs from the run that was left alone, or None. Metrics of `missing` updates may be lost."""
    mine = losses(run)
    if not set(mine) <= set(whole) or len(mine) < len(whole) - missing:
        return "other updates: %s" % sorted(mine)
    for step in sorted(mine):
        loss = whole[step]
        if abs(mine[step] - loss) > 1e-5 * max(1, abs(loss)):
            return "update %d: loss %.9g, alone %.9g" % (step, mine[step], loss)
    return None


def lose(kind, mesh, ranks, run, seconds):
    """Kills a rank; returns (a complaint or None, seconds until the last of the others ended), or None where the run was over."""
    processes = start(kind, mesh, ranks, run)
    victim = dice.randrange(ranks)
    time.sleep(dice.uniform(0, seconds))
    if any(p.poll() is not None for p in processes):
        end_all()
        return None
    processes[victim].send_signal(signal.SIGKILL)
    begun, last = time.time(), 0.0
    for rank, p in enumerate(processes):
        if rank == victim:
            continue
        try:
            code = p.wait(timeout=max(1, begun + deadline + 30 - time.time()))
        except subprocess.TimeoutExpired:
            end_all()
            return "rank %d of %d hangs after rank %d was killed" % (rank, ranks, victim), 0
        last = max(last, time.time() - begun)
        if code not in (0, 1) or (code == 1 and "ravel train: " not in said(rank)):
            end_all()
            return "rank %d ended with %d: %s" % (rank, code, said(rank)[-300:]), 0
    end_all()
    return None, last


def one(kind, run, whole, seconds):
    """A run that loses a rank and goes on; a complaint or None, seconds, or None where it was over before."""
    usable = [(mesh, ranks) for mesh, ranks in meshes if kind != "dpo" or "--cp" not in mesh]  # dpo has no cp
    mesh, ranks = dice.choice(usable)
    generators = int(kinds[kind][1] == "grpo")
    result = lose(kind, mesh, ranks + generators, run, seconds)
    if result is None or result[0]:
        return result and ("%s %s: %s" % (kind, mesh, result[0]), 0)
    other = dice.choice([m for m, _ in usable if m != mesh])
    missing = 1 if "an update whose metrics are missing" in said(0) else 0
    complaint = alone(kind, other, run) or curve_of(run, whole, missing)
    return complaint and "%s %s, then %s: %s" % (kind, mesh, other, complaint), result[1]


def measure(kind):
    """Losses of a run on one rank, and the seconds that one of several processes takes."""
    run = os.path.join(scratch, "whole-" + kind)
    complaint = alone(kind, "--dp 1", run)
    if complaint:
        raise SystemExit("  FAIL  %s, left alone: %s\n0 passed, 1 failed" % (kind, complaint))
    begun = time.time()
    mesh, ranks = meshes[0]
    for p in start(kind, mesh, ranks + (kinds[kind][1] == "grpo"), os.path.join(scratch, "time-" + kind)):
        p.wait()
    if any(p.returncode for p in started):
        raise SystemExit("  FAIL  %s over tcp: %s\n0 passed, 1 failed" % (kind, said(0)[-300:]))
    return losses(run), time.time() - begun


def main():
    passed = failed = over = 0
    longest = 0.0
    write_pairs()
    whole = {kind: measure(kind) for kind in kinds}
    while passed + failed < count and over < 3 * count + 20:
        kind = list(kinds)[(passed + failed) % len(kinds)]
        run = os.path.join(scratch, "run")
        shutil.rmtree(run, ignore_errors=True)
        result = one(kind, run, *whole[kind])
        if result is None:
            over += 1
            continue
        passed, failed, longest = passed + (not result[0]), failed + bool(result[0]), max(longest, result[1])
        if result[0]:
            print("  FAIL  seed %d, number %d: %s" % (seed, passed + failed - 1, result[0]), flush=True)
    print("  %d runs lost a rank (seed %d) and went on with another mesh; the others ended within %.1f s" %
          (passed + failed, seed, longest))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or passed < count else 0


try:
    code = main()
finally:
    end_all()
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(code)
