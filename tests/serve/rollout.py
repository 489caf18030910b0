"""`ravel train grpo --rollout`: answers from servers instead of generator ranks.

    rollout.py RAVEL MODEL        MODEL: a byte model

Against `ravel serve --pull`: the same weights as the run with a rank that generates, bit for bit; servers that are killed.
Against what vllm 0.33.0 and sglang 0.5.23 take and answer, written down from their sources: paths, fields, shapes of answers. The
tokens of these come from a `ravel serve` behind. Ends with "N passed, N failed, N skipped"."""
import base64
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

RAVEL, MODEL = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[2]
passed = failed = 0
folder = tempfile.TemporaryDirectory()
T = pathlib.Path(folder.name)
processes = []


def check(what, good, seen=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"  {'ok   ' if good else 'FAIL '} {what}{'' if good else f': {seen}'}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(publication, port=0, *flags):
    """A server that pulls; its port, when it is known."""
    port = port or free_port()
    p = subprocess.Popen([RAVEL, "serve", MODEL, "--pull", f"127.0.0.1:{publication}", "--listen", f"127.0.0.1:{port}", "--quiet",
                          "--keep-tokens", "0", *flags], stderr=subprocess.DEVNULL)
    processes.append(p)
    return p, port


def train(run, *flags, steps=3, wait=True, **how):
    words = [RAVEL, "train", "grpo", "--model", MODEL, "--task", "copy", "--level", "2", "--steps", str(steps), "--prompts", "6",
             "--group-size", "4", "--max-tokens", "8", "--eval-prompts", "8", "--budget", "512", "--max-flat", "0", "--quiet",
             "--sinks", "jsonl", "--lr", "1e-3", "--run", str(T / run), *flags]
    p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)
    processes.append(p)
    if not wait:
        return p
    out = p.communicate(timeout=300)[0]
    return p.returncode, out


def weights(run, step=3):
    return (T / run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def rollout(publication, urls, *flags):
    return ["--publish", f"127.0.0.1:{publication}", "--rollout", ",".join(urls), "--publish-linger", "0", *flags]


def url(port):
    return f"http://127.0.0.1:{port}"


# ---- ravel serve -----------------------------------------------------------------------------------------------------


def ours():
    code, out = train("native")
    assert code == 0, out
    at = free_port()
    one, two = serve(at), serve(at)
    code, out = train("remote", *rollout(at, [url(one[1]), url(two[1]) + "/v1/"]))
    check("two servers give the weights of the rank that generates, bit for bit", code == 0 and weights("remote") == weights("native"), out)
    check("its rows say which servers it waits for", "left alone" not in out, out)
    at = free_port()
    one = serve(at)
    code, out = train("native-ahead", "--async", "1", "--entropy", "0.01")
    code, out = train("ahead", *rollout(at, [url(one[1])]), "--async", "1", "--entropy", "0.01")
    check("with --async 1, which learns from the server's log-probs, too", code == 0 and weights("ahead") == weights("native-ahead") and
          weights("ahead") != weights("native"), out)
    at = free_port()
    one, two = serve(at), serve(at)
    p = train("killed", *rollout(at, [url(one[1]), url(two[1])], "--service-wait", "60"), steps=8, wait=False)
    metrics = T / "killed" / "metrics.jsonl"
    rows = lambda: len(metrics.read_text().splitlines()) if metrics.exists() else 0
    end = time.time() + 120
    while rows() < 3 and p.poll() is None and time.time() < end:
        time.sleep(0.01)
    one[0].kill()
    one[0].wait()
    while rows() < 5 and p.poll() is None and time.time() < end:
        time.sleep(0.01)
    serve(at, one[1])  # it comes back, with the newest version
    out = p.communicate(timeout=300)[0]
    train("whole", steps=8)
    check("a server that is killed, and started again, changes nothing", p.returncode == 0 and weights("killed", 8) == weights("whole", 8), out)
    at = free_port()
    only = serve(at)
    p = train("alone", *rollout(at, [url(only[1])], "--service-wait", "4"), steps=1000, wait=False)
    metrics = T / "alone" / "metrics.jsonl"
    while (len(metrics.read_text().splitlines()) if metrics.exists() else 0) < 3 and p.poll() is None and time.time() < end:
        time.sleep(0.01)
    only[0].kill()
    out = p.communicate(timeout=300)[0]
    kept = list((T / "alone" / "checkpoints").glob("step-*"))
    check("without any server the run ends with a checkpoint", p.returncode == 1 and kept and
          re.search(r"(no server has answered for 4 s|none of 1 servers took version)", out), out)
    serve(at, only[1])
    step = int(kept[0].name[5:])
    code, out = train("alone", "--resume", steps=step + 1)
    check("and is resumed", code == 0, out)


# ---- what vLLM and SGLang take and answer ----------------------------------------------------------------------------

COMMON = {"model", "prompt", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "logprobs", "return_token_ids", "stop_token_ids"}


class Fake(http.server.BaseHTTPRequestHandler):
    """One of the two in front of a server of ours."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, document, code=200):
        text = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def behind(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url(self.server.port) + path, data), timeout=120) as r:
            return json.load(r)

    def version(self):
        try:
            return self.behind("/v1/models")["data"][0]["version"]
        except OSError:
            return 0  # it is not up yet

    def do_GET(self):
        if self.path != "/v1/models":
            return self.answer({"detail": "Not Found"}, 404)
        card = {"id": "served", "object": "model", "created": 1, "owned_by": self.server.kind, "root": "/models/x", "parent": None,
                "max_model_len": 512}
        self.answer({"object": "list", "data": [card]})

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(text)
        self.server.calls.append((self.path, body))
        if self.path == "/v1/completions":
            return self.complete(body)
        if self.server.kind == "vllm" and self.path in VLLM:
            return self.vllm(body)
        self.answer({"detail": "Not Found"}, 404)

    def vllm(self, body):
        s, i = self.server, VLLM.index(self.path)
        if s.state != (i - 1 if i else s.state) and not (i == 1 and s.state == 3):
            return self.answer({"error": {"message": f"{self.path} after {s.state}", "type": "Internal", "code": 500}}, 500)
        s.state = i
        if i == 2:
            end = time.time() + 60
            while self.version() < body["update_info"]["version"] and time.time() < end:
                time.sleep(0.01)
        self.answer({"message": "done"})

    def complete(self, body):
        s = self.server
        wanted = body.pop("return_routed_experts", False)
        if set(body) - COMMON or wanted != (s.kind == "sglang" and bool(s.routes)) or body["model"] != "served" or body["n"] != len(range(body["n"])):
            return self.answer({"error": {"message": f"unknown: {set(body) - COMMON}", "type": "BadRequestError", "code": 400}}, 400)
        if s.hangs:
            s.reached.set()
            time.sleep(300)
        with s.lock:
            s.asked += 1
            if s.refuse and s.asked % s.refuse == 0:
                return self.answer({"error": {"message": "overloaded", "type": "x", "code": 503}}, 503)
        got = self.behind("/v1/completions", {**body, "model": s.model})
        choices = []
        for c in got["choices"]:
            lp = {"text_offset": c["logprobs"]["text_offset"], "token_logprobs": c["logprobs"]["token_logprobs"],
                  "tokens": c["logprobs"]["tokens"], "top_logprobs": [{t: x} for t, x in zip(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"])]}
            choice = {"index": c["index"], "text": c["text"], "logprobs": lp, "finish_reason": c["finish_reason"], "token_ids": c["token_ids"]}
            if s.kind == "vllm":
                choice |= {"stop_reason": None, "prompt_logprobs": None, "prompt_token_ids": body["prompt"], "routed_experts": None}
            else:
                choice |= {"matched_stop": 257 if c["finish_reason"] == "stop" else None, "prompt_token_ids": body["prompt"]}
            choices.append(choice)
            if s.kind == "vllm" and s.routes:
                choice["routed_experts"] = routes(len(body["prompt"]) + len(c["token_ids"]) - 1, s.routes, "<u2")
        if s.broken:
            del choices[0]["token_ids"]
        beside = {}
        if wanted:
            beside["sglext"] = {"routed_experts": routes(len(body["prompt"]) + len(got["choices"][0]["token_ids"]) - 1, s.routes, None)}
        self.answer({**beside, "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served", "choices": choices,
                     "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": None}})


def routes(rows, experts, dtype):
    """Every token to the same experts, in two layers: as an .npy file's bytes of a dtype, or as int32; base64."""
    flat = struct.pack(f"<{rows * 2 * len(experts)}{'H' if dtype else 'i'}", *(experts * (2 * rows)))
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows}, 2, {len(experts)}), }}"
    head = head.ljust((len(head) + 11 + 63) // 64 * 64 - 11) + "\n"
    return base64.b64encode(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + flat if dtype else flat).decode()


VLLM = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]


class Quiet(http.server.ThreadingHTTPServer):
    """Clients may go."""

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def fake(kind, port):
    s = Quiet(("127.0.0.1", 0), Fake)
    s.kind, s.port, s.calls, s.lock, s.asked, s.refuse, s.broken = kind, port, [], threading.Lock(), 0, 0, False
    s.state, s.model, s.hangs, s.reached, s.daemon_threads = -1, os.path.basename(MODEL), False, threading.Event(), True
    s.routes = None
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s


def told_by(port):
    """The command that tells SGLang of weights: it waits for the server behind."""
    script = T / "tell.py"
    script.write_text(f"""
import json, sys, time, urllib.request
asked = json.loads(sys.stdin.readline())
while json.load(urllib.request.urlopen("{url(port)}/v1/models"))["data"][0]["version"] < asked["version"]: time.sleep(0.01)
open("{T}/told", "a").write(json.dumps(asked) + "\\n")
""")
    return ["--rollout-command", f"{sys.executable} {script}"]


def theirs():
    at = free_port()
    _, port = serve(at)
    s = fake("vllm", port)
    code, out = train("vllm", *rollout(at, [url(s.server_port)]))
    paths = [p for p, _ in s.calls if p != "/v1/completions"]
    check("vLLM: weights by our backend, once per version, in its order", code == 0 and paths[:4] == VLLM and paths[4:7] == VLLM[1:4] and
          len(paths) == 13, (paths, out))
    info = next(b for p, b in s.calls if p == VLLM[0])["init_info"]
    check("vLLM: what is published", info["address"] == f"127.0.0.1:{at}" and len(info["names"]) == len(info["dtype_names"]) == len(info["shapes"]) and
          "model.embed_tokens.weight" in info["names"] and set(info["dtype_names"]) == {"float32"}, info)
    versions = [b["update_info"]["version"] for p, b in s.calls if p == "/update_weights"]
    check("vLLM: every version", sorted(set(versions)) == [1, 2, 3, 4], versions)
    s.refuse = 5
    code, out = train("refusing", *rollout(at, [url(s.server_port)]), "--publish-dtype", "bf16", steps=1)
    check("503 is tried again, after the version was told again", code == 0 and "left alone" in out and
          [p for p, _ in s.calls].count(VLLM[0]) > 2, out)
    info = [b for p, b in s.calls if p == VLLM[0]][-1]["init_info"]
    check("vLLM: a narrower publication", set(info["dtype_names"]) == {"bfloat16"}, info)
    s.refuse, s.broken = 0, True
    code, out = train("broken", *rollout(at, [url(s.server_port)]), steps=1)
    check("an answer without token ids ends the run with a sentence", code == 1 and "must know return_token_ids" in out, out)
    s = fake("sglang", port)
    code, out = train("sglang", *rollout(at, [url(s.server_port)], *told_by(port)))
    told = [json.loads(line) for line in open(T / "told")]
    check("SGLang: the command per server and version", code == 0 and [t["version"] for t in told] == [1, 2, 3, 4] and
          told[0]["url"] == url(s.server_port) and set(told[0]) == {"url", "version", "address", "names", "dtypes", "shapes"}, (told[:1], out))
    rows = [json.loads(line) for line in open(T / "sglang" / "metrics.jsonl")]
    check("answers are learnt from", any(r.get("train/grad_norm", 0) > 0 for r in rows), rows)


# ---- a teacher behind servers ------------------------------------------------------------------------------------------


def routed():
    """--router-replay rollout: the experts that servers say are those that are learnt with, seen by the gap of log-probs."""
    global MODEL
    dense, made = MODEL, T / "experts-run"
    subprocess.run([RAVEL, "train", "sft", "--task", "copy", "--hidden", "32", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--head-dim",
                    "16", "--ffn", "32", "--experts", "8", "--experts-active", "2", "--init-std", "0.2", "--steps", "1", "--batch", "4",
                    "--budget", "256", "--quiet", "--run", made], check=True, stdout=subprocess.DEVNULL)
    MODEL = str(made / "checkpoints" / "step-00000001")
    replay, gap = ["--router-replay", "rollout"], {}
    for kind in ("vllm", "sglang"):
        at = free_port()
        p, port = serve(at)
        s = fake(kind, port)
        tell = told_by(port) if kind == "sglang" else []
        for name, experts in (("none", None), ("high", [3, 8]), ("twice", [3, 3]), ("two", [3, 5])):
            s.routes, s.calls[:] = experts, []
            code, out = train(f"{kind}-{name}", *rollout(at, [url(s.server_port)], *tell), *(replay if experts else []), steps=1)
            if name in ("high", "twice"):
                check(f"{kind}: refused: experts {experts}", code == 1 and "layer 0: experts must be below 8, and differ" in out, out)
                continue
            rows = [json.loads(line) for line in open(T / f"{kind}-{name}" / "metrics.jsonl")] if code == 0 else []
            gap[kind, name] = max([r["policy/logprob_gap_mean"] for r in rows if "policy/logprob_gap_mean" in r] or [float("nan")])
        counts = {b["n"] for path, b in s.calls if path == "/v1/completions"}
        check(f"{kind}: answers {'one by one' if kind == 'sglang' else 'of a group'} in a request", max(counts) == (1 if kind == "sglang" else 4), counts)
        check(f"{kind}: given routes are learnt with", gap[kind, "none"] < 1e-4 and gap[kind, "two"] > 1e-2, gap)
        s.routes = None
        if kind == "vllm":
            code, out = train("unrouted", *rollout(at, [url(s.server_port)]), *replay, steps=1)
            check("an answer without routes ends the run with a sentence", code == 1 and "--enable-return-routed-experts" in out, out)
        p.kill()
    MODEL = dense


def played():
    """Environments with servers: a turn is a request. And several batches at once."""
    game = T / "game.py"
    game.write_text(f"""
import random, sys, time
sys.path.insert(0, {str(ROOT / "examples" / "env")!r})
import ravel_env
def game(start):
    dice = random.Random(start["seed"])
    total = 0
    for _ in range(dice.randint(1, 4)):
        time.sleep(0.01)
        total += len((yield "%d?" % dice.randint(0, 99)))
    return {{"reward": float(total % 3), "accuracy": 1}}
ravel_env.serve(game)
""")
    turns = ["--env-command", f"exec {sys.executable} {game}", "--max-turns", "4", "--max-tokens", "3"]

    def run(name, *flags, task=turns, steps=3):
        words = [RAVEL, "train", "grpo", "--model", MODEL, "--steps", str(steps), "--prompts", "6", "--group-size", "4", "--eval-prompts", "4",
                 "--budget", "512", "--max-flat", "0", "--quiet", "--sinks", "jsonl", "--lr", "1e-3", "--run", str(T / name), *task, *flags]
        p = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        rows = [json.loads(x) for x in (T / name / "metrics.jsonl").read_text().splitlines()] if (T / name / "metrics.jsonl").exists() else []
        return p.returncode, p.stdout, [r for r in rows if r.get("step", 0) > 0]

    code, out, _ = run("own-env")
    assert code == 0, out
    at = free_port()
    one, two = serve(at), serve(at)
    code, out, rows = run("served-env", *rollout(at, [url(one[1]), url(two[1])]))
    check("an environment with two servers gives the weights of the rank that generates, bit for bit",
          code == 0 and weights("served-env") == weights("own-env") and rows[-1]["env/turns_mean"] > 1, out)
    for name, task in (("env", turns), ("copy", ["--task", "copy", "--level", "2", "--max-tokens", "8"])):
        at = free_port()
        one, two = serve(at), serve(at)
        code, out, rows = run("ahead-" + name, *rollout(at, [url(one[1]), url(two[1])], "--async", "3", "--rollout-slots", "40"), task=task, steps=10)
        good = len(rows) == 10 and all(r["batch/samples"] == 24 and r["rollout/dropped_tokens_share"] == 0 and
                                       r["rollout/token_staleness_max"] <= 3 for r in rows)
        check(f"--async 3 with servers, {name}: every answer is learnt, and none is too old", code == 0 and good and
              max(r["rollout/token_staleness_max"] for r in rows) > 1, (out, rows[-1:]))
        code, out, rows = run("ahead-" + name, "--resume", *rollout(at, [url(one[1]), url(two[1])]), task=task, steps=13)
        check("and the run is resumed", code == 0 and [r["step"] for r in rows] == list(range(1, 14)), out)


def stopped(what, p, server):
    server.reached.wait(120)
    p.send_signal(signal.SIGINT)
    began = time.time()
    try:
        out = p.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        p.kill()
        out = "it hangs"
    check(f"the first Ctrl-C does not wait for {what} that hangs", server.reached.is_set() and p.returncode == 130 and
          time.time() - began < 60, (p.returncode, out))


def interrupted():
    at = free_port()
    _, port = serve(at)
    s = fake("vllm", port)
    s.hangs = True
    stopped("a server", train("hanging", *rollout(at, [url(s.server_port)]), wait=False), s)
    t = teacher(lambda t: -1.0)
    t.hangs = True
    stopped("a teacher", train("taught", "--teacher", url(t.server_port), wait=False), t)


class Teacher(http.server.BaseHTTPRequestHandler):
    """vLLM's prompt_logprobs: null, then an object per token with the token itself, here beside another one."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {"object": "list", "data": [{"id": "big", "owned_by": "vllm"}]})

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner = self.server
        if owner.hangs:
            owner.reached.set()
            time.sleep(300)
        owner.asked.append((ask, self.headers["Authorization"]))
        if len(owner.asked) % 5 == owner.fails:
            return self.answer(503, {"error": {"message": "busy"}})
        listed = [None] + [{str(token): {"logprob": owner.logprob(t), "rank": 3}, str(token + 1): {"logprob": -1e-3, "rank": 1}}
                           for t, token in enumerate(ask["prompt"]) if t > 0]
        self.answer(200, {"choices": [{"text": "", "prompt_logprobs": listed} if owner.knows else {"text": ""}]})


def teacher(logprob, fails=-1, knows=True):
    s = Quiet(("127.0.0.1", 0), Teacher)
    s.logprob, s.fails, s.knows, s.asked = logprob, fails, knows, []
    s.hangs, s.reached, s.daemon_threads = False, threading.Event(), True
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s


def taught():
    """One token per answer, at place 9 of `copy ab:` and the beginning: what the server says of it is what is learnt."""
    def learn(run, servers, *flags, steps=2, most=1, **env):
        words = [RAVEL, "train", "grpo", "--model", MODEL, "--data", str(rows), "--steps", str(steps), "--prompts", "2", "--group-size", "4",
                 "--max-tokens", str(most), "--eval-prompts", "0", "--budget", "256", "--quiet", "--sinks", "jsonl", "--run", str(T / run),
                 "--teacher", str(servers) if isinstance(servers, pathlib.Path) else
                 ",".join(url(s if isinstance(s, int) else s.server_port) for s in servers), *flags]
        p = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                           env={**os.environ, **env})
        metrics = T / run / "metrics.jsonl"
        return p.returncode, p.stdout, [json.loads(x) for x in metrics.read_text().splitlines()] if metrics.exists() else []

    rows = T / "teach.jsonl"
    rows.write_text('{"prompt": "copy ab:"}\n{"prompt": "copy yz:"}\n')
    moving, constant = teacher(lambda t: -100.0 - t), teacher(lambda t: -109.0)
    code, out, by_place = learn("moving", [moving], RAVEL_TEACHER_KEY="sk-t")
    asked = [a for a, _ in moving.asked]
    check("a teacher's server is asked for each answer", code == 0 and len(asked) == 16 and all(
        a["model"] == "big" and a["max_tokens"] == 1 and a["prompt_logprobs"] == 0 and len(a["prompt"]) == 10 for a in asked), (out, asked[:1]))
    check("with the key", {k for _, k in moving.asked} == {"Bearer sk-t"})
    code, out, by_token = learn("constant", [constant])
    figures = [[x["policy/kl_ref"] for x in run if "policy/kl_ref" in x] for run in (by_place, by_token)]
    check("the log-prob of the drawn token is what is learnt", figures[0] == figures[1] and len(figures[0]) == 2 and
          all(100 ** 2 / 2 < x < 109 ** 2 / 2 for x in figures[0]), (out, figures))
    code, out, several = learn("several", [teacher(lambda t: -109.0, fails=2), teacher(lambda t: -109.0, fails=3)], "--tp", "2")
    close = [x["policy/kl_ref"] for x in several if "policy/kl_ref" in x]
    check("servers that fail now and then, two ranks that share the model", code == 0 and close and abs(close[0] / figures[1][0] - 1) < 1e-5, (out, close))
    code, out, _ = learn("ignorant", [teacher(lambda t: -1.0, knows=False)])
    check("one without prompt_logprobs ends the run with a sentence", code == 1 and "must know this field" in out, out)
    # ravel serve as the teacher: what the same model gives as a folder
    other = T / "native" / "checkpoints" / "step-00000003"
    if not other.exists():
        train("native")
    port = free_port()
    p = subprocess.Popen([RAVEL, "serve", str(other), "--listen", f"127.0.0.1:{port}", "--quiet"], stderr=subprocess.DEVNULL)
    processes.append(p)
    end = time.time() + 60
    while time.time() < end:
        with socket.socket() as at:
            if at.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    code, out, served = learn("served", [port], steps=3, most=12)
    again, said, folder_rows = learn("folder", other, steps=3, most=12)
    kl = [[x["policy/kl_ref"] for x in run if "policy/kl_ref" in x] for run in (served, folder_rows)]
    check("ravel serve as a teacher is the teacher as a folder", code == again == 0 and len(kl[0]) == len(kl[1]) == 3 and
          all(0 < b and abs(a - b) < 1e-4 * b + 1e-7 for a, b in zip(*kl)), (out, said, kl))
    p.terminate()
    code, out, _ = learn("warm", [constant], "--temperature", "0.5")
    check("refused: another temperature", code in (1, 2) and "at temperature 1" in out, out)


def refusals():
    for says, flags in (("needs --publish", ["--rollout", url(1)]), ("say which", ["--rollout-kind", "vllm"]),
                        ("http", ["--rollout", "ftp://x", "--publish", "127.0.0.1:0"]),
                        ("leave one out", ["--rollout", url(1), "--publish", "127.0.0.1:0", "--correction", "tis", "--top-k", "5"])):
        code, out = train("refused", *flags)
        check(f"refused: {' '.join(flags)}", code in (1, 2) and (says in out or says == "needs --publish" and "--publish" in out), out)
    at = free_port()
    begun = time.time()
    code, out = train("nobody", *rollout(at, [url(free_port())], "--service-wait", "0.5"))
    check("no server at all", code == 1 and "none of 1 servers took version 1" in out and time.time() - begun < 60, out)


try:
    ours()
    played()
    theirs()
    routed()
    taught()
    interrupted()
    refusals()
finally:
    for p in processes:
        if p.poll() is None:
            p.kill()
            p.wait()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
