"""`ravel serve` over sockets, with the standard library alone: answers, errors, clients that go, many clients at once.

    serve.py RAVEL MODEL [CLIENTS]        MODEL: a byte model that copies words; CLIENTS at once (50)

Ends with "N passed, N failed, N skipped".
"""
import concurrent.futures
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

RAVEL, MODEL = sys.argv[1:3]
CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 50
passed = failed = 0


def check(what, good, seen=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"  {'ok   ' if good else 'FAIL '} {what}{'' if good else f': {seen}'}")


class Server:
    def __init__(self, *flags, limit=None, **env):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([RAVEL, "serve", MODEL, "--listen", "127.0.0.1:0", *flags], stderr=self.log,
                                        env={**os.environ, **env}, preexec_fn=limit and (
                                            lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))))
        self.port = 0
        deadline = time.time() + 120
        while not self.port and time.time() < deadline and self.process.poll() is None:
            time.sleep(0.02)
            found = re.search(r"at port (\d+)", self.said())
            self.port = int(found[1]) if found else 0
        assert self.port, self.said()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        return s

    def ask(self, path, body=None, headers=None, method=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        c.request(method or ("POST" if data is not None else "GET"), path, data, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text, r.headers

    def complete(self, **body):
        status, text, _ = self.ask("/v1/completions", body)
        assert status == 200, (status, text)
        return json.loads(text)

    def events(self, path="/v1/completions", **body):
        status, text, _ = self.ask(path, {**body, "stream": True})
        assert status == 200 and text.endswith(b"data: [DONE]\n\n"), (status, text)
        return [json.loads(e[6:]) for e in text.decode().split("\n\n")[:-2]]

    def metric(self, name):
        return float(re.search(rf"^ravel_serve_{name} (\S+)$", self.ask("/metrics")[1].decode(), re.M)[1])

    def until(self, name, value):
        deadline = time.time() + 60
        while self.metric(name) != value and time.time() < deadline:
            time.sleep(0.02)
        return self.metric(name) == value

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)


def close(a, b, by=1e-4): return len(a) == len(b) and all(abs(x - y) <= by for x, y in zip(a, b))

def few_descriptors():
    """A container's hard limit: fewer connections with one warning, and a flood of idle clients keeps nobody out."""
    s = Server("--slots", "1", "--context", "64", limit=256)
    idle = [s.connect() for _ in range(400)]
    got = s.complete(prompt="copy ab:", max_tokens=2)
    check("with 256 descriptors: one warning, and answers beside 400 idle clients", got["choices"] and
          s.said().count("at most 192 at once (ulimit -n)") == 1, s.said())
    for c in idle:
        c.close()
    check("then it ends as ever", s.end() == 0, s.said())


def text_of(events, index=0):
    return "".join(c["text"] for e in events for c in e["choices"] if c["index"] == index)


def answers(s):
    prompts = ["copy ab:", "copy xyz:", "sort 321:"]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
        f.flush()
        made = subprocess.run([RAVEL, "generate", "--model", MODEL, "--data", f.name, "--samples", "2", "--max-tokens", "12",
                               "--seed", "7"], capture_output=True, text=True, check=True).stdout
    wanted = [json.loads(line)["response_ids"] for line in made.split("\n") if line]
    how = dict(prompt=prompts, n=2, max_tokens=12, seed=7, return_token_ids=True)
    whole = s.complete(**how)
    got = [c["token_ids"] for c in whole["choices"]]
    check("the tokens of ravel generate with the same seed", got == wanted, (got, wanted))
    check("choices in order, usage", [c["index"] for c in whole["choices"]] == list(range(6)) and
          whole["usage"]["completion_tokens"] == sum(map(len, got)), whole)
    events = s.events(**how)
    parts = [sum((c["token_ids"] for e in events for c in e["choices"] if c["index"] == i), []) for i in range(6)]
    check("a stream has the same tokens and text", parts == wanted and
          all(text_of(events, i) == whole["choices"][i]["text"] for i in range(6)), parts)
    check("each choice ends once", sorted(c["index"] for e in events for c in e["choices"] if c["finish_reason"]) == list(range(6)))
    ids = s.complete(prompt=whole["choices"][2]["prompt_token_ids"], max_tokens=12, temperature=0, return_token_ids=True)
    text = s.complete(prompt=prompts[1], max_tokens=12, temperature=0, return_token_ids=True)
    check("a prompt as tokens", ids["choices"][0]["token_ids"] == text["choices"][0]["token_ids"])
    check("the version of every token", set(ids["choices"][0]["versions"]) == {1} and
          len(ids["choices"][0]["versions"]) == len(ids["choices"][0]["token_ids"]))
    for n in (0, 3):
        lp = s.complete(prompt=prompts[1], max_tokens=5, temperature=0, logprobs=n)["choices"][0]["logprobs"]
        flow = [c["logprobs"] for e in s.events(prompt=prompts[1], max_tokens=5, temperature=0, logprobs=n) for c in e["choices"]]
        joined = {k: sum((f[k] or [] for f in flow), []) or None for k in lp}
        check(f"logprobs {n}, and the same in a stream", joined == lp and all(x <= 0 for x in lp["token_logprobs"]) and
              (not n or all(len(t) == 3 for t in lp["top_logprobs"]) and close([max(t.values()) for t in lp["top_logprobs"]], lp["token_logprobs"])), (lp, joined))
    free = s.complete(prompt=prompts[0], max_tokens=12, temperature=0, ignore_eos=True)["choices"][0]
    check("ignore_eos ends at the length", free["finish_reason"] == "length", free)
    word = free["text"]
    cut = s.complete(prompt=prompts[0], max_tokens=12, temperature=0, ignore_eos=True, stop=[word[1:3], "never"])["choices"][0]
    check("a stop text", cut["text"] == word[:1] and cut["finish_reason"] == "stop", (cut, word))
    events = s.events(prompt=prompts[0], max_tokens=12, temperature=0, ignore_eos=True, stop=word[1:3])
    check("a stop text in a stream", text_of(events) == word[:1], events)
    cut = s.complete(prompt=prompts[0], max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[ord(word[1])])["choices"][0]
    check("a stop token", cut["text"] == word[:1] and cut["finish_reason"] == "stop", cut)
    tokens = json.loads(s.ask("/tokenize", {"prompt": "ab"})[1])
    check("tokenize and detokenize", tokens["tokens"] == [256, 97, 98] and
          json.loads(s.ask("/detokenize", {"tokens": tokens["tokens"]})[1]) == {"prompt": "ab"}, tokens)
    models = json.loads(s.ask("/v1/models")[1])
    check("models", models["data"][0]["id"] == os.path.basename(MODEL) and models["data"][0]["max_model_len"] == 512, models)
    before, long = s.metric("kept_tokens_total"), "copy " + "abcdefgh" * 40 + ":"
    s.complete(prompt=long, max_tokens=2)
    s.complete(prompt=long + "x", max_tokens=2)
    check("turns that begin alike share their beginning", s.metric("kept_tokens_total") > before)


def prompt_logprobs(s):
    """vLLM's field: what a prompt's tokens have, equal to `ravel eval`, to the log-probs of answers, and to itself however it is batched."""
    def score(prompt, top=0, **how):
        choice = s.complete(prompt=prompt, **{"max_tokens": 0, "prompt_logprobs": top, "return_token_ids": True, **how})["choices"][0]
        ids, listed = choice["prompt_token_ids"], choice["prompt_logprobs"]
        assert listed[0] is None and len(listed) == len(ids), listed
        return ids, [listed[t][str(ids[t])]["logprob"] for t in range(1, len(ids))], choice

    long = "copy " + "hgfedcba" * 30 + ":"
    ids, first, choice = score(long)
    check("max_tokens 0: log-probs of the prompt, no answer", choice["text"] == "" and choice["finish_reason"] == "length" and
          choice["token_ids"] == [] and choice["logprobs"] is None, choice)
    check("of a text and of its tokens, also with kept pages", first == score(long)[1] == score(ids, max_tokens=1)[1])
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write(json.dumps({"input_ids": ids, "loss_mask": [0] + [1] * (len(ids) - 1)}) + "\n")
        f.flush()
        made = subprocess.run([RAVEL, "eval", MODEL, "--data", f.name, "--json", "--quiet"], capture_output=True, text=True)
    loss = re.search(r'"loss": *([-0-9.e+]+)', made.stdout)
    check("their mean is the loss of ravel eval", loss and abs(float(loss[1]) + sum(first) / len(first)) < 1e-4,
          (made.stdout, made.stderr, sum(first) / len(first)))
    drawn = s.complete(prompt="copy ab:", max_tokens=12, seed=3, logprobs=0, return_token_ids=True)["choices"][0]
    whole, scores, _ = score(drawn["prompt_token_ids"] + drawn["token_ids"])
    check("those of an answer as part of a prompt", close(scores[-len(drawn["token_ids"]):], drawn["logprobs"]["token_logprobs"]), (scores, drawn))
    _, _, best = score(whole, 3)
    for t, at in enumerate(best["prompt_logprobs"][1:], 1):
        ranked = sorted((x["rank"], x["logprob"], i) for i, x in at.items() if x["rank"])
        own = at[str(whole[t])]
        good = [r[0] for r in ranked] == [1, 2, 3] and ranked[0][1] >= ranked[1][1] >= ranked[2][1] and own["logprob"] == scores[t - 1]
        good &= len(at) == (3 if own["rank"] else 4) and (own["rank"] is not None or own["logprob"] <= ranked[2][1])
        if not good:
            break
    check("the likeliest beside each", good, at)
    top = s.complete(prompt=whole[:-1], max_tokens=1, temperature=0, logprobs=3, return_tokens_as_token_ids=True)["choices"][0]
    listed = {f"token_id:{i}": x["logprob"] for i, x in at.items() if x["rank"]}
    there = top["logprobs"]["top_logprobs"][0]
    check("as those of an answer", set(there) == set(listed) and all(abs(there[i] - listed[i]) <= 1e-4 for i in there), (there, listed))
    several = [ids[:n] for n in (1, 2, 17, 64, 65, 200)]
    many = s.complete(prompt=several, max_tokens=0, prompt_logprobs=0)["choices"]
    check("of several prompts", all(close([m["prompt_logprobs"][t][str(p[t])]["logprob"] for t in range(1, len(p))], first[:len(p) - 1], 2e-6)
                                    for p, m in zip(several, many)))
    check("none unless asked for", "prompt_logprobs" not in s.complete(prompt="x", max_tokens=1)["choices"][0])


def refusals(s):
    cases = [(400, "unless prompt_logprobs", {"prompt": "x", "max_tokens": 0}), (400, "stream must be", {"prompt": "x", "prompt_logprobs": 0, "stream": True}),
             (400, "prompt_logprobs must be at most 20", {"prompt": "x", "prompt_logprobs": 21}),
             (400, "expected", b'{"prompt": "x'), (400, "JSON object", b"[]"), (400, "must be given", {}),
             (400, "echo", {"prompt": "x", "echo": True}), (400, 'no field \\"foo\\"', {"prompt": "x", "foo": 1}),
             (400, "messages does not belong", {"prompt": "x", "messages": []}), (400, "from 0 to 100", {"prompt": "x", "temperature": -1}),
             (400, "n must be at most 8", {"prompt": "x", "n": 9}), (400, "holds 512", {"prompt": "x" * 600}),
             (400, "holds 512", {"prompt": "x", "max_tokens": 512}), (400, "token 1 is not", {"prompt": [1, 10**9]}),
             (400, "list of tokens", {"prompt": [[]]}), (400, "list of tokens", {"prompt": 5}),
             (400, "whole number", {"prompt": "x", "top_k": 1.5}), (400, "stop must be", {"prompt": "x", "stop": [""]}),
             (400, "logprobs must be at most", {"prompt": "x", "logprobs": 21}), (404, "no model", {"prompt": "x", "model": "gpt"})]
    for code, says, body in cases:
        status, text, _ = s.ask("/v1/completions", body)
        error = json.loads(text)["error"]
        check(f"{code}: {says}", status == code == error["code"] and says in text.decode() and error["type"], text)
    check("404 for another path", s.ask("/v2")[0] == 404 and s.ask("/v1/completions")[0] == 405)
    check("413 for a large body", s.ask("/v1/completions", b"x" * 5000)[0] == 413)
    for garbage in (b"\x00\xff\xfe\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        c = s.connect()
        c.sendall(garbage)
        first = c.recv(100)
        check(f"garbage {garbage[:12]!r}", re.match(rb"HTTP/1.1 (400|505) ", first), first)
        c.close()


def clients(s):
    c = s.connect()
    body = json.dumps({"prompt": "copy ab:", "max_tokens": 480, "ignore_eos": True, "stream": True, "n": 4}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    c.recv(500)
    gone = s.metric("clients_gone_total")
    c.close()
    check("a client that goes frees its slots", s.until("running", 0) and s.metric("clients_gone_total") == gone + 1)
    half = s.connect()
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    check("half a request harms nobody", s.complete(prompt="copy a:", max_tokens=3)["choices"])
    half.close()

    def one(i):
        how = dict(prompt=f"copy {chr(97 + i % 26)}{chr(97 + i // 26)}:", max_tokens=6, seed=i, return_token_ids=True)
        if i % 2:
            return sum((e["choices"][0]["token_ids"] for e in s.events(**how)), [])
        return s.complete(**how)["choices"][0]["token_ids"]
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(one, range(CLIENTS)))
    some = range(0, CLIENTS, max(1, CLIENTS // 10))
    check(f"{CLIENTS} clients at once get what each gets alone", all(together[i] == one(i) for i in some))


def limits():
    s = Server("--slots", "1", "--queue", "1", "--context", "4096", "--grace", "60", RAVEL_API_KEY="secret")
    key = {"Authorization": "Bearer secret"}
    check("401 without the key", s.ask("/v1/models")[0] == 401 and s.ask("/v1/models", headers={"Authorization": "Bearer secreT"})[0] == 401)
    check("with it, and health without", s.ask("/v1/models", headers=key)[0] == 200 and s.ask("/health")[0] == 200)
    long = json.dumps({"prompt": "copy ab:", "max_tokens": 1500, "ignore_eos": True}).encode()

    def start():
        c = s.connect()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: %d\r\n\r\n%b" % (len(long), long))
        return c

    def metric(name):
        return float(re.search(rf"^ravel_serve_{name} (\S+)$", s.ask("/metrics", headers=key)[1].decode(), re.M)[1])

    def until(name, value):
        deadline = time.time() + 60
        while metric(name) != value and time.time() < deadline:
            time.sleep(0.01)
    first = start()
    until("running", 1)
    second = start()
    until("queue", 1)
    status, text, headers = s.ask("/v1/completions", {"prompt": "x"}, key)
    check("429 when the queue is full", status == 429 and headers["Retry-After"] and "rate_limit" in text.decode(), (status, text))
    second.close()
    until("queue", 0)
    check("a client that goes leaves the queue", metric("queue") == 0)
    s.process.send_signal(signal.SIGTERM)
    answer = b""
    while True:
        more = first.recv(65536)
        if not more:
            break
        answer += more
    check("SIGTERM: what runs is answered, then exit 0", b'"finish_reason":"length"' in answer and s.process.wait(120) == 0, answer[:200])
    s = Server("--slots", "4", "--queue", "2", "--context", "64")
    one = {"max_tokens": 4, "seed": 1}
    check("a list that fits idle slots and the queue", s.ask("/v1/completions", {"prompt": ["x"] * 6, **one})[0] == 200)
    status, text, _ = s.ask("/v1/completions", {"prompt": ["x"] * 7, **one})
    check("400 for one that never fits", status == 400 and "--queue" in text.decode() and '"param":"prompt"' in text.decode(), (status, text))
    status, text, _ = s.ask("/v1/completions", {"prompt": [[-1]] * 7, **one})
    check("and none of its prompts is read before", status == 400 and "--queue" in text.decode(), (status, text))
    check("n answers take n slots", s.ask("/v1/completions", {"prompt": ["x"] * 4, "n": 2, **one})[0] == 200 and
          s.ask("/v1/completions", {"prompt": ["x"] * 5, "n": 2, **one})[0] == 400)
    s.end()
    long = {"prompt": [i * 7 % 256 for i in range(700)], "max_tokens": 20, "seed": 3, "logprobs": 1, "ignore_eos": True}
    texts = []
    for rows in ("128", "0"):
        s = Server("--slots", "4", "--context", "1024", "--prefill-rows", rows)
        texts.append(json.loads(s.ask("/v1/completions", long)[1])["choices"])
        s.end()
    check("a prompt in parts has the answer of a whole one", texts[0] == texts[1], texts)
    s = Server("--slots", "2", "--queue", "0", "--context", "64")
    check("--queue 0 answers as many as there are slots", s.ask("/v1/completions", {"prompt": ["x"] * 2, **one})[0] == 200 and
          s.ask("/v1/completions", {"prompt": ["x"] * 3, **one})[0] == 400)
    s.end()
    s = Server("--slots", "1", "--context", "4096", "--grace", "0")
    first = s.connect()
    long = json.dumps({"prompt": "copy ab:", "max_tokens": 4000, "ignore_eos": True}).encode()
    first.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(long), long))
    s.until("running", 1)
    code, got = s.end(), first.recv(100)
    check("the grace has an end", code == 0 and not got, (code, got))


server = Server("--slots", "8", "--context", "512", "--max-body", "4096")
try:
    answers(server)
    prompt_logprobs(server)
    refusals(server)
    clients(server)
    check("SIGINT of an idle server", server.end(signal.SIGINT) == 0, server.said())
    limits()
    few_descriptors()
finally:
    if server.process.poll() is None:
        server.process.kill()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
