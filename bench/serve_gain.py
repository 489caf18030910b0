#!/usr/bin/env python3
"""Throughput of `ravel serve` at 64 clients over that of `ravel generate` on the same prompts, with the same answers.

    python3 bench/serve_gain.py [RAVEL]

A new byte model of 11 M parameters; 192 prompts, answers of 128 tokens, 64 slots on both sides. The rate of generate is that of
the last 128 prompts (the time of all less that of the first 64), so that loading does not count; that of serve is of the same number.
Clients are threads of this program, one request at a time each. Prints the ratio, and tokens per second of serve and of generate: of
three rounds the one with the median ratio."""
import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time

RAVEL = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.environ.get("BUILD", "build"), "ravel")
CLIENTS, WAVES, TOKENS, SEED = 64, 2, 128, 7
NEVER = "319"  # a token that is hardly drawn, so that all answers are long
SHAPE = "--hidden 384 --layers 6 --heads 6 --kv-heads 2 --head-dim 64 --ffn 1024".split()


def prompt(i):
    return f"copy {i}:"


def generate(model, count, folder):
    """Seconds, and tokens of the answers."""
    rows, out = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "out.jsonl")
    with open(rows, "w") as f:
        f.writelines(json.dumps({"prompt": prompt(i)}) + "\n" for i in range(count))
    began = time.time()
    subprocess.run([RAVEL, "generate", model, "--data", rows, "--max-tokens", str(TOKENS), "--slots", str(CLIENTS), "--seed", str(SEED), "--stop-ids", NEVER,
                    "--out", out], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.time() - began
    with open(out) as f:
        tokens = sum(json.loads(line)["tokens"] for line in f)
    os.unlink(out)
    return seconds, tokens


def client(port, number):
    connection, tokens = http.client.HTTPConnection("127.0.0.1", port, timeout=600), 0
    for wave in range(WAVES):
        i = number + CLIENTS * (wave + 1)
        body = json.dumps({"prompt": prompt(i), "prompt_id": i, "max_tokens": TOKENS, "seed": SEED, "temperature": 1})
        connection.request("POST", "/v1/completions", body)
        tokens += json.loads(connection.getresponse().read())["usage"]["completion_tokens"]
    return tokens


def serve(port):
    began = time.time()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        tokens = sum(pool.map(lambda number: client(port, number), range(CLIENTS)))
    return time.time() - began, tokens


def main(folder):
    run, log = os.path.join(folder, "run"), os.path.join(folder, "log")
    subprocess.run([RAVEL, "train", "sft", "--task", "copy", "--steps", "1", "--batch", "4", "--budget", "256", "--quiet", "--run", run] + SHAPE,
                   check=True, stdout=subprocess.DEVNULL)
    with open(log, "w") as f:
        server = subprocess.Popen([RAVEL, "serve", run, "--listen", "127.0.0.1:0", "--slots", str(CLIENTS), "--context", "160", "--stop-ids", NEVER], stderr=f)
    try:
        port = None
        while not port and server.poll() is None:
            time.sleep(0.05)
            with open(log) as f:
                port = re.search(r"at port (\d+)", f.read())
        rates = []
        for _ in range(3):
            first, all_of_it = generate(run, CLIENTS, folder), generate(run, CLIENTS * (WAVES + 1), folder)
            answered = serve(int(port[1]))
            assert answered[1] == all_of_it[1] - first[1], "other answers"
            rates.append((answered[1] / answered[0], answered[1] / (all_of_it[0] - first[0])))
        rates.sort(key=lambda r: r[0] / r[1])
        print("%.3f %.0f %.0f" % (rates[1][0] / rates[1][1], rates[1][0], rates[1][1]))
    finally:
        server.terminate()
        server.wait()


with tempfile.TemporaryDirectory() as folder:
    main(folder)
