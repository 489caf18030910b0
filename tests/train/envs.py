#!/usr/bin/env python3
"""GRPO with environments of several turns: processes and servers, kills at random moments, limits, drops, resume, Ctrl-C.

    envs.py RAVEL KILLS [SEED]

A run whose environments are killed must have the losses of one that was left alone: what is lost begins again and draws the
same tokens. Ends with "N passed, N failed"."""

import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from curve import losses, seed_of

ravel, kills = sys.argv[1], int(sys.argv[2])
seed = seed_of(sys.argv[3:])
dice = random.Random(seed)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(root, "examples", "env"))
import ravel_env  # noqa: E402

scratch = tempfile.mkdtemp(prefix="ravel-envs-")
passed = failed = 0
python = "exec " + sys.executable
common = {"max-turns": 4, "max-tokens": 3, "steps": 4, "prompts": 4, "group-size": 4, "eval-prompts": 2, "hidden": 32, "layers": 1,
          "heads": 2, "kv-heads": 1, "head-dim": 16, "ffn": 64, "budget": 256, "lr": 0.003, "sinks": "jsonl", "max-flat": 0,
          "slots": 8, "timeout": 100}


def words_of(**more):
    """--max-turns 4 ...; other values by their names with underscores"""
    chosen = dict(common, **{name.replace("_", "-"): value for name, value in more.items()})
    return ["--quiet"] + [word for name, value in chosen.items() for word in ("--" + name, str(value))]


script = os.path.join(scratch, "game.py")
with open(script, "w") as f:
    f.write('''
import os, random, sys, time
sys.path.insert(0, %r)
import ravel_env

note, bad, slow = sys.argv[1], sys.argv[2], float(sys.argv[3])
open(os.path.join(note, str(os.getpid())), "w").close()

raised = set()

def game(start):
    dice = random.Random(start["seed"])
    if bad == "crash" and start["seed"] %% 5 == 3: os._exit(7)
    fails = "raise" in bad and start["id"] %% 5 == 3 and start["id"] not in raised
    raised.add(start["id"])
    total = 0
    if bad == "uneven":
        turns = 1 + start["seed"] %% 3
        for turn in range(turns): yield {"context": [{"role": "user", "content": "T%%d" %% turn}]}
        return {"reward": float(turns)}
    if "rewrite" in bad:
        for turn in range(3):
            time.sleep(slow)
            action = yield {"context": [{"role": "user", "content": "T%%d" %% (total %% 7)}], "observation": "?", "reward": 0.25}
            total += len(action)
            if fails and turn == 1: raise KeyError("no such room")
        return {"reward": float(total %% 3), "accuracy": 1}
    for turn in range(dice.randint(1, 6)):
        time.sleep(slow)
        action = yield {"observation": "%%d?" %% dice.randint(0, 99), "reward": 0.25}
        total += len(action)
        if fails: raise KeyError("no such room")
        if bad == "hang" and start["seed"] >= 2: time.sleep(1000)
    return {"reward": float(total %% 3), "accuracy": 1}

ravel_env.serve(game)
''' % os.path.join(root, "examples", "env"))


def check(name, good, more=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print("  %s %s%s" % ("ok   " if good else "FAIL ", name, "" if good else ": " + str(more)[-600:]), flush=True)


def start(run, notes, bad="no", slow=0.0, resume=False, **more):
    os.makedirs(notes, exist_ok=True)
    command = "%s %s %s '%s' %g" % (python, script, notes, bad, slow)
    words = [ravel, "train", "grpo", "--env-command", command, "--run", run] + words_of(**more) + ["--resume"] * resume
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def whole(*words, **options):
    p = start(*words, **options)
    return p.communicate(timeout=300)[0], p.returncode


def direct(*words, **more):
    p = subprocess.run([ravel, "train", "grpo"] + list(words) + words_of(**more), stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return p.stdout, p.returncode


def rows(run):
    with open(os.path.join(run, "metrics.jsonl")) as f:
        return [json.loads(x) for x in f]


def folder(name):
    return os.path.join(scratch, name)


def alone():
    out, code = whole(folder("alone"), folder("n0"))
    check("a run with an environment", code == 0, out)
    last = rows(folder("alone"))[-1]
    check("turns, tokens and drops are in the metrics",
          1 <= last["env/turns_mean"] <= 4 and last["env/tokens_mean"] > 0 and last["reward/dropped_share"] == 0 and
          last["env/template_differs_share"] == 0 and last["reward/max"] >= 0.5, last)
    out, code = whole(folder("many"), folder("n0"), slow=0.002, env_processes=3, slots=5)
    check("three processes and other slots change nothing", code == 0 and losses(folder("many")) == losses(folder("alone")), out)


def together():
    """Two ranks share a generator's layers: the first has the environment, and both do the same."""
    for name, more in (("one", {}), ("two", {"generators": 2, "generator_tp": 2, "env_processes": 2}), ("two-ahead", {"generators": 2, "generator_tp": 2, "async": 2})):
        out, code = whole(folder(name), folder("n7"), kv_heads=2, **more)
        check("a generator of %s" % ("one rank" if name == "one" else "two ranks, " + name), code == 0, out)
    mine, own = losses(folder("two")), losses(folder("one"))
    check("two ranks learn what one learns", own.keys() == mine.keys() and len(own) == 4 and
          all(abs(own[k] - mine[k]) < 1e-3 for k in own), (mine, own))
    out, code = direct("--env-command", "exit 7", "--run", folder("no-env"), kv_heads=2, generators=2, generator_tp=2, eval_prompts=0)
    check("what fails on the first rank ends both with its sentence", code == 1 and "exit code 7" in out, out)


def rewritten():
    """A conversation that is replaced between turns is several samples with one reward; what begins again leaves none behind."""
    out, code = whole(folder("rewrite"), folder("n8"), bad="rewrite", steps=3)
    last = rows(folder("rewrite"))[-1]
    check("every turn is a sample", code == 0 and last["batch/samples"] == 3 * 16 and last["env/turns_mean"] == 3 and
          last["response/length_max"] <= 3 and last["reward/dropped_share"] == 0, out + str(last))
    for name, more in (("rewrite-two", {"generators": 2, "slots": 3}), ("rewrite-again", {"bad": "rewrite raise"})):
        out, code = whole(folder(name), folder("n9"), **{"bad": "rewrite", "steps": 3, **more})
        check("the same losses: " + name, code == 0 and losses(folder(name)) == losses(folder("rewrite")), out)
    retried = [x["env/retried_share"] for x in rows(folder("rewrite-again")) if "env/retried_share" in x]
    check("some began again after a part of them was a sample", max(retried) > 0, retried)
    out, code = whole(folder("uneven"), folder("n10"), bad="uneven", steps=2, eval_prompts=3, eval_every=1)
    first = rows(folder("uneven"))[1]
    check("a rollout of several samples counts once in the reward and in its evaluation", code == 0 and
          abs(first["reward/mean"] * 16 - first["batch/samples"]) < 1e-9 and abs(first["eval/reward"] - 2) < 1e-9, out + str(first))


def killed():
    """Processes of the environment are killed while the run goes on."""
    notes, done = folder("n1"), 0
    p = start(folder("killed"), notes, slow=0.1, env_processes=2)
    while p.poll() is None and done < kills:
        time.sleep(dice.uniform(0.02, 0.2))
        for name in os.listdir(notes):
            os.unlink(os.path.join(notes, name))
            if dice.random() < 0.7:
                try:
                    os.kill(int(name), signal.SIGKILL)
                    done += 1
                except ProcessLookupError:
                    pass
    out = p.communicate(timeout=300)[0]
    check("%d kills of environments cost nothing (seed %d)" % (done, seed),
          p.returncode == 0 and done > 0 and losses(folder("killed")) == losses(folder("alone")), out)


def resumed():
    out, code = whole(folder("half"), folder("n0"), steps=2)
    out, code = whole(folder("half"), folder("n0"), resume=True)
    mine, all_of_it = losses(folder("half")), losses(folder("alone"))
    check("a resumed run goes on exactly", code == 0 and mine == all_of_it, out + str(mine) + str(all_of_it))


def excepted():
    """An exception costs its episode, and that one alone: no other begins again, and the process stays."""
    out, code = whole(folder("raise"), folder("n6"), bad="raise")
    retried = [x["env/retried_share"] for x in rows(folder("raise")) if "env/retried_share" in x]
    wasted = [x["env/wasted_tokens_share"] for x in rows(folder("raise")) if "env/wasted_tokens_share" in x]
    check("an exception begins its episode again", code == 0 and losses(folder("raise")) == losses(folder("alone")) and "no such room" in out, out)
    check("and no other", len(os.listdir(folder("n6"))) == 1 and 0 < max(retried) <= 0.5 and 0 < max(wasted) < 0.4, (retried, wasted))


def dropped():
    out, code = whole(folder("crash"), folder("n2"), bad="crash", env_retries=1, max_dropped=0.9)
    shares = [x["reward/dropped_share"] for x in rows(folder("crash")) if "reward/dropped_share" in x]
    check("an environment that crashes costs its rollouts alone", code == 0 and 0.2 < max(shares) < 0.6 and
          "exit code 7" in out, str(code) + out[-300:] + str(shares))
    out, code = whole(folder("most"), folder("n3"), bad="crash", env_retries=0, max_dropped=0.01)
    check("more than --max-dropped of them end the run", code == 1 and "could not be scored" in out, out)
    out, code = whole(folder("late"), folder("n4"), bad="hang", env_retries=0, max_dropped=1, env_seconds=1, steps=1,
                      eval_prompts=0)
    check("one that is late costs the rollout", code == 0 and "no answer came within 1 s" in out, out)
    out, code = direct("--env-command", "no-such-thing", "--run", folder("none"), eval_prompts=0)
    check("a command that cannot run ends the run with a sentence",
          code == 1 and "exit code 127" in out and not os.path.exists(folder("none")), out)


class Server(http.server.BaseHTTPRequestHandler):
    episodes, fails = {}, 0

    def do_POST(self):
        lines = self.rfile.read(int(self.headers["Content-Length"])).decode().splitlines()
        if Server.fails and dice.random() < 0.2:
            Server.fails -= 1
            self.send_error(500)
            return
        out = []
        for text in lines:
            message = json.loads(text)
            if message["event"] == "end":
                Server.episodes.pop(message["id"], None)
            else:
                out.append(ravel_env.reply(game, Server.episodes, message))
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(out).encode())

    def log_message(self, *words):
        pass


def game(start):
    total, chance = 0, random.Random(start["seed"])
    for _ in range(chance.randint(1, 6)):
        action = yield {"observation": "%d?" % chance.randint(0, 99), "reward": 0.25}
        total += len(action)
    return {"reward": float(total % 3), "accuracy": 1}


def served():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d/env" % server.server_port
    for name, fails in (("http", 0), ("shaky", 10)):
        Server.fails = fails
        out, code = direct("--env", url, "--run", folder(name), env_retries=1000)
        check("a server%s gives the losses of a command" % (" that fails now and then" if fails else ""),
              code == 0 and losses(folder(name)) == losses(folder("alone")), out)
    server.shutdown()


def interrupted():
    p = start(folder("stopped"), folder("n5"), bad="hang", env_seconds=1000)
    for _ in range(1200):
        if os.path.isdir(folder("n5")) and os.listdir(folder("n5")):
            break
        time.sleep(0.05)
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    out = p.communicate(timeout=60)[0]
    check("Ctrl-C does not wait for an environment", p.returncode == 130 and "stopped by a signal" in out, "%d %s" % (p.returncode, out))
    for name in os.listdir(folder("n5")):
        for _ in range(100):
            if not os.path.exists("/proc/%s" % name):
                break
            time.sleep(0.05)
        check("its process is gone", not os.path.exists("/proc/%s" % name))


def refused():
    for words, says in ((["--env-command", "x", "--env", "http://h/"], "not both"), (["--env", "https://h/"], "plain http://"),
                        (["--env-command", "x", "--task", "sort"], "leave out --task")):
        out, code = direct(*words)
        check("refused: " + " ".join(words), code == 2 and says in out, out)


try:
    for part in (alone, together, rewritten, killed, resumed, excepted, dropped, served, interrupted, refused):
        part()
finally:
    shutil.rmtree(scratch, ignore_errors=True)
print("%d passed, %d failed" % (passed, failed))
sys.exit(1 if failed else 0)
