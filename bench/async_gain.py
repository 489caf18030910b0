#!/usr/bin/env python3
"""What --async buys where generation is slow: guess.py (examples/env) behind an environment that takes its time.

    async_gain.py RAVEL [SEEDS] [STEPS]       trains a model first, then each seed with --async 0 and --async 4, side by side

Every answer of the environment takes a lognormal time (median 0.1 s, sigma 0.8), as a sandbox or a tool would; a rollout has up
to eight turns. Prints, per bound: updates per hour, the reward at the end over seeds, the mean length of what was trained, and what
it would be if rollouts that were not over at a refit were discarded."""
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, "examples", "env"))
MEDIAN, SIGMA = 0.1, 0.8


def slow():
    """The environment: each answer waits in its thread."""
    import guess
    import ravel_env
    dice = random.Random(os.getpid())

    def game(start):
        play = guess.game(start)
        said = next(play)
        while True:
            time.sleep(dice.lognormvariate(math.log(MEDIAN), SIGMA))
            try:
                said = play.send((yield said))
            except StopIteration as end:
                time.sleep(dice.lognormvariate(math.log(MEDIAN), SIGMA))
                return end.value

    ravel_env.serve(game, workers=640)


def rows(run):
    with open(os.path.join(run, "metrics.jsonl")) as f:
        return [row for row in map(json.loads, f) if row.get("step", 0) > 0]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def figures(run):
    r = rows(run)
    half = r[len(r) // 10:]  # from when generators are ahead
    late = [x.get("rollout/continued_share", 0) for x in half]
    length = mean(x["response/length_mean"] for x in half)
    rest = mean((x["response/length_mean"] - s * x.get("rollout/continued_tokens_mean", 0)) / (1 - s) for x, s in zip(half, late) if s < 1)
    return {"updates/h": 3600 * (len(half) - 1) / (half[-1]["time"] - half[0]["time"]), "reward": mean(x["reward/mean"] for x in r[-20:]),
            "length": length, "of the others": rest, "continued": mean(late), "staleness": mean(x["rollout/token_staleness_mean"] for x in half),
            "worst": max(x["rollout/token_staleness_max"] for x in half), "dropped": mean(x["rollout/dropped_tokens_share"] for x in half)}


def main(ravel, seeds, steps):
    out = tempfile.mkdtemp(prefix="ravel-async-")
    data, model = os.path.join(out, "games.jsonl"), os.path.join(out, "sft")
    with open(data, "w") as f:
        subprocess.run([sys.executable, os.path.join(root, "examples", "env", "guess.py"), "--warm-up", "20000"], stdout=f, check=True)
    shape = "--hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 192".split()
    subprocess.run([ravel, "train", "sft", "--quiet", "--data", data, "--steps", "250", "--batch", "64", "--budget", "2k", "--lr", "0.003",
                    "--threads", "1", "--run", model] + shape, check=True, stdout=subprocess.DEVNULL)
    running = []
    for bound in (4, 0):
        for seed in range(seeds):
            run = os.path.join(out, "async-%d-%d" % (bound, seed))
            line = [ravel, "train", "grpo", "--quiet", "--model", model, "--run", run, "--seed", str(seed + 1), "--async", str(bound),
                    "--env-command", "exec %s %s slow" % (sys.executable, os.path.abspath(__file__)), "--max-turns", "8", "--max-tokens", "3",
                    "--steps", str(steps), "--prompts", "8", "--group-size", "16", "--budget", "4k", "--lr", "0.0005",
                    "--threads", "1", "--slots", "640", "--eval-prompts", "0", "--sinks", "jsonl", "--checkpoint-every", "0"]
            running.append((bound, run, subprocess.Popen(line, stdout=subprocess.DEVNULL)))
    for bound in (4, 0):
        done = [figures(run) for b, run, p in running if b == bound and p.wait() == 0]
        print("--async %d, %d seeds" % (bound, len(done)))
        for name in done[0]:
            values = [x[name] for x in done]
            spread = math.sqrt(mean((v - mean(values)) ** 2 for v in values) * len(values) / max(len(values) - 1, 1))
            print("  %-14s %9.3f  +- %.3f" % (name, mean(values), spread))
    print(out)


if sys.argv[1:] == ["slow"]:
    slow()
else:
    main(sys.argv[1], int((sys.argv + ["5"])[2]) if len(sys.argv) > 2 else 5, int(sys.argv[3]) if len(sys.argv) > 3 else 200)
