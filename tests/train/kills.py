#!/usr/bin/env python3
"""kill -9 at random of whatever a GRPO run gets its answers from: environments, inference servers, generator ranks.

    kills.py RAVEL COUNT [SEED]        COUNT kills in all, kind by kind

environment   processes of --env-command: the run must not notice, its losses are those of a run that was left alone
ahead         the same with --async 3: every rollout of every batch is learnt, and nothing is older than three versions
served        two servers of the same environment (--env), started again at their addresses: the same losses
reward        a server of rewards, likewise
teacher       `ravel serve` as a teacher, likewise
server        `ravel serve --pull` behind --rollout, started again at its address: the weights of a run that generates itself
generator     a generator rank over TCP: the others end with an error, and the resumed run has the losses of one that was left alone

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

ravel, count = os.path.abspath(sys.argv[1]), int(sys.argv[2])
seed = seed_of(sys.argv[3:])
dice = random.Random(seed)
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
scratch = tempfile.mkdtemp(prefix="ravel-kills-")
started, kills = [], {}
STEPS, DEADLINE = 16, 240
shape = "--hidden 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64".split()
common = ["train", "grpo", "--quiet", "--steps", str(STEPS), "--prompts", "4", "--group-size", "4", "--eval-prompts", "2", "--budget", "256",
          "--lr", "0.003", "--sinks", "jsonl", "--max-flat", "0", "--timeout", "60"]
task = common + "--task sort --max-tokens 6 --entropy 0.05".split()

game = os.path.join(scratch, "game.py")
with open(game, "w") as f:
    f.write('''
import os, random, sys, time
sys.path.insert(0, %r)
import ravel_env
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
def game(start):
    dice = random.Random(start["seed"])
    total = 0
    for turn in range(dice.randint(1, 5)):
        time.sleep(0.004)
        total += len((yield {"observation": "%%d?" %% dice.randint(0, 99), "reward": 0.25}))
    return {"reward": float(total %% 3), "accuracy": 1}
ravel_env.serve(game, port=int(sys.argv[2]) if len(sys.argv) > 2 else None)
''' % os.path.join(root, "examples", "env"))


scorer = os.path.join(scratch, "scorer.py")
with open(scorer, "w") as f:
    f.write('''
import http.server, json, sys, time
class Scorer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        rows = [json.loads(line) for line in self.rfile.read(int(self.headers["Content-Length"])).splitlines()]
        time.sleep(0.02)
        text = "".join(json.dumps({"id": r["id"], "reward": float(sum(r["response_ids"]) % 3)}) + "\\n" for r in rows).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Scorer).serve_forever()
''')


def path(name):
    return os.path.join(scratch, name)


def spawn(words, **more):
    out = tempfile.TemporaryFile("w+")
    p = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **more)
    p.out = out
    started.append(p)
    return p


def said(p, most=400):
    p.out.seek(0)
    return p.out.read()[-most:]


def ended(p):
    """Its exit status, or None if it hangs."""
    try:
        return p.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        p.kill()
        return None


def whole(words, run):
    p = spawn([ravel] + words + ["--run", path(run)])
    if ended(p) != 0:
        raise SystemExit("  FAIL  %s, left alone: %s\n0 passed, 1 failed" % (run, said(p)))
    return path(run)


def killed(kind):
    kills[kind] = kills.get(kind, 0) + 1


def rows(run):
    with open(os.path.join(run, "metrics.jsonl")) as f:
        return [row for row in map(json.loads, f) if row.get("step", 0) > 0]


def weights(run):
    with open(os.path.join(run, "checkpoints", "step-%08d" % STEPS, "model.safetensors"), "rb") as f:
        return f.read()


# ---- environments ----


turns = ["--max-turns", "4", "--max-tokens", "3", "--slots", "12"] + shape


def env(notes, *flags):
    os.makedirs(notes, exist_ok=True)
    return common + ["--env-command", "exec %s %s %s" % (sys.executable, game, notes), "--env-processes", "2"] + list(flags) + turns


def kill_environments(run, flags, kind, most):
    notes, done = path("notes"), 0
    shutil.rmtree(notes, ignore_errors=True)
    p = spawn([ravel] + env(notes, *flags) + ["--run", run])
    while p.poll() is None and done < most:
        time.sleep(dice.uniform(0.02, 0.3))
        for name in os.listdir(notes):
            if dice.random() < 0.6:
                os.unlink(os.path.join(notes, name))
                try:
                    os.kill(int(name), signal.SIGKILL)
                    killed(kind)
                    done += 1
                except ProcessLookupError:
                    pass
    code = ended(p)
    return "it hangs" if code is None else "status %d: %s" % (code, said(p)) if code else None


def environment(most):
    run = path("env")
    return kill_environments(run, [], "environment", most) or (None if losses(run) == base("environment") else "other losses")


def ahead(most):
    run = path("ahead")
    wrong = kill_environments(run, ["--async", "3"], "ahead", most)
    r = [] if wrong else rows(run)
    good = len(r) == STEPS and all(x["batch/samples"] == 16 and x["rollout/dropped_tokens_share"] == 0 and
                                   x["rollout/token_staleness_max"] <= 3 for x in r)
    return wrong or (None if good else "rollouts are missing, or too old")


# ---- servers ----


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def restart(p, servers, start, most, kind):
    """Kills them at random while p runs, and starts them again at their ports."""
    done = 0
    while p.poll() is None and done < most:
        time.sleep(dice.uniform(0.05, 0.6))
        if p.poll() is not None:
            break
        victim = dice.randrange(len(servers))
        servers[victim].kill()
        servers[victim].wait()
        killed(kind)
        done += 1
        time.sleep(dice.uniform(0, 0.3))
        servers[victim] = start(victim)
    code = ended(p)
    for s in servers:
        s.kill()
        s.wait()
    return "it hangs" if code is None else "status %d: %s" % (code, said(p)) if code else None


def helped(kind, count, start, flags, most):
    """A run that a service of `count` servers helps."""
    ports = [free_port() for _ in range(count)]
    run = path(kind)
    servers = [start(port) for port in ports]
    p = spawn([ravel] + common + flags(ports) + ["--run", run])
    wrong = restart(p, servers, lambda i: start(ports[i]), most, kind)
    return wrong or (None if losses(run) == base(kind) else "other losses")


HELPERS = {
    "served": (2, lambda port: spawn([sys.executable, game, path("served-notes"), str(port)]),
               lambda ports: ["--env", ",".join("http://127.0.0.1:%d/" % port for port in ports)] + turns),
    "reward": (1, lambda port: spawn([sys.executable, scorer, str(port)]),
               lambda ports: "--task sort --max-tokens 6".split() + ["--reward-command", "http://127.0.0.1:%d/" % ports[0]] + shape),
    "teacher": (1, lambda port: spawn([ravel, "serve", base("model"), "--listen", "127.0.0.1:%d" % port, "--quiet"]),
                lambda ports: "--task sort --max-tokens 6".split() + ["--teacher", "http://127.0.0.1:%d" % ports[0]] + shape)}


def served(most):
    os.makedirs(path("served-notes"), exist_ok=True)
    return helped("served", *HELPERS["served"], most)


def reward(most):
    return helped("reward", *HELPERS["reward"], most)


def teacher(most):
    return helped("teacher", *HELPERS["teacher"], most)


def serve(at, port):
    return spawn([ravel, "serve", base("model"), "--pull", "127.0.0.1:%d" % at, "--listen", "127.0.0.1:%d" % port, "--quiet", "--keep-tokens", "0"])


def server(most):
    at, ports = free_port(), [free_port(), free_port()]
    servers = [serve(at, port) for port in ports]
    run = path("remote")
    p = spawn([ravel] + task + ["--model", base("model"), "--publish", "127.0.0.1:%d" % at, "--publish-linger", "0", "--rollout", ",".join("http://127.0.0.1:%d" % port for port in ports), "--run", run])
    wrong = restart(p, servers, lambda i: serve(at, ports[i]), most, "server")
    return wrong or (None if weights(run) == base("server") else "other weights")


# ---- generators ----


def generator(most):
    run, port, line = path("ranks"), free_port(), task + ["--generators", "2", "--async", "1", "--checkpoint-every", "2"] + shape
    ranks = []
    for rank in range(3):
        place = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(spawn([ravel] + line + ["--run", run], env=place))
    time.sleep(dice.uniform(0.1, 1.5))
    victim = dice.choice(ranks[1:])
    if any(p.poll() is not None for p in ranks):
        for p in ranks:
            p.kill()
        return None
    victim.kill()
    killed("generator")
    for p in ranks:
        code = ended(p)
        if code is None or (p is not victim and code not in (0, 1)):
            return "rank %d: status %s: %s" % (ranks.index(p), code, said(p))
    saved = os.path.isdir(os.path.join(run, "checkpoints")) and any(x.startswith("step-") for x in os.listdir(os.path.join(run, "checkpoints")))
    if not saved:
        shutil.rmtree(run, ignore_errors=True)
    p = spawn([ravel] + line + ["--run", run] + (["--resume"] if saved else []))
    if ended(p) != 0:
        return "resumed: " + said(p)
    mine, alone = losses(run), base("generator")
    missing = 1 if "an update whose metrics are missing" in said(ranks[0], 1 << 20) else 0
    if len(mine) < len(alone) - missing or any(abs(mine[s] - alone[s]) > 1e-5 * max(1, abs(alone[s])) for s in mine):
        return "other losses"
    return None


# ---- all of them ----

bases = {}


def base(kind):
    """What a run that was left alone has; made once."""
    if kind in bases:
        return bases[kind]
    if kind == "model":
        run = spawn([ravel, "train", "sft", "--task", "sort", "--steps", "10", "--batch", "16", "--budget", "256", "--quiet", "--sinks", "jsonl",
                     "--run", path("sft")] + shape)
        assert ended(run) == 0, said(run)
        bases[kind] = path("sft/checkpoints/step-00000010")
    elif kind == "server":
        bases[kind] = weights(whole(task + ["--model", base("model")], "native"))
    elif kind == "generator":
        bases[kind] = losses(whole(task + ["--generators", "2", "--async", "1"] + shape, "threads"))
    elif kind in ("reward", "teacher"):
        start, flags, port = HELPERS[kind][1], HELPERS[kind][2], free_port()
        server = start(port)
        bases[kind] = losses(whole(common + flags([port]), "left-" + kind))
        server.kill()
        server.wait()
    else:
        bases[kind] = losses(whole(env(path("quiet")), "left-" + kind))
    return bases[kind]


def main():
    passed = failed = turn = 0
    kinds = [environment, server, ahead, served, generator, reward, teacher]
    while sum(kills.values()) < count and turn < 20 * count:
        kind = kinds[turn % len(kinds)]
        turn += 1
        for name in ("env", "ahead", "remote", "ranks", "served", "reward", "teacher"):
            shutil.rmtree(path(name), ignore_errors=True)
        wrong = kind(max(1, min(8, count - sum(kills.values()))))
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print("  FAIL  seed %d, run %d, %s: %s" % (seed, turn, kind.__name__, wrong), flush=True)
    print("  %d kills (seed %d): %s" % (sum(kills.values()), seed, ", ".join("%s %d" % x for x in sorted(kills.items()))))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


try:
    code = main()
finally:
    for p in started:
        if p.poll() is None:
            p.kill()
            p.wait()
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(code)
