#!/usr/bin/env python3
"""What sharing prefixes gains in an update of `ravel train sft`, beside what the plan predicts.

    python3 bench/tree_gain.py ROWS.jsonl [--scale 16] [--tokens 30000] [--budget 4096] [--ravel build/ravel] [--repeat 1]
    python3 bench/tree_gain.py ROWS.jsonl --kernels cuda --shape config.json --scale 1 --tokens 400000 --budget 32768

ROWS: JSON lines of paths, as `ravel plan --tree` reads them. Lengths are divided by --scale, samples are taken from the front until
they have --tokens tokens, and nodes become random token ids. A model (20 M parameters without --shape) is trained on them with
--share-prefix off and --share (auto), on one thread. An update's processor time is that of a run of two updates minus that of a run
of one, the least of --repeat runs, so the machine may be busy. With --kernels it is the least wall time of the updates 2 to 4 of
a run. Printed: computed tokens, predicted and measured gain, their ratio, and the losses of the last update."""
import argparse
import json
import os
import random
import resource
import subprocess
import tempfile

SHAPE = {"model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 64, "intermediate_size": 1536, "vocab_size": 8192, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "max_position_embeddings": 32768, "hidden_act": "silu",
         "architectures": ["Qwen3ForCausalLM"], "attention_bias": False}


def read(path, scale, tokens):
    rows, total = [], 0
    for line in open(path):
        nodes = [(n, max(1, t // scale)) for n, t in json.loads(line)["path"]]
        total += sum(t for _, t in nodes)
        if rows and total > tokens:
            break
        rows.append(nodes)
    return rows


def write(rows, folder, shape):
    ids = {}
    for row in rows:
        for node, tokens in row:
            if node not in ids:
                rng = random.Random(node)
                ids[node] = [rng.randrange(8192) for _ in range(tokens)]
    with open(f"{folder}/train.jsonl", "w") as out:
        for row in rows:
            text = [t for node, _ in row for t in ids[node]]
            json.dump({"input_ids": text, "prompt_length": max(1, len(text) - row[-1][1])}, out)
            out.write("\n")
    with open(f"{folder}/rows.jsonl", "w") as out:
        for row in rows:
            out.write(json.dumps({"path": row}) + "\n")
    with open(f"{folder}/lengths.csv", "w") as out:
        out.writelines(f"{sum(t for _, t in row)}\n" for row in rows)
    json.dump(json.load(open(shape)) if shape else SHAPE, open(f"{folder}/config.json", "w"))


def plan(a, folder, source):
    run = subprocess.run([a.ravel, "plan", *source, "--budget", str(a.budget), "--cost", f"{folder}/config.json", "--json", "-"],
                         capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["stats"]


def train(a, folder, rows, share, steps):
    """Runs so many updates of all rows: processor seconds, and the run's metrics."""
    run = tempfile.mkdtemp(dir=folder) + "/run"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    own = ["--kernels", a.kernels] if a.kernels else ["--threads", "1"]
    if share != "off":
        own += ["--tree-attention", a.attention]
    subprocess.run([a.ravel, "train", "sft", "--data", f"{folder}/train.jsonl", "--shape", f"{folder}/config.json", *own,
                    "--budget", str(a.budget), "--batch", str(rows), "--steps", str(steps), "--share-prefix", share,
                    "--no-checkpoint-end", "--checkpoint-every", "0", "--quiet", "--run", run],
                   check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return used, [json.loads(line) for line in open(f"{run}/metrics.jsonl")]


def update(a, folder, rows, share):
    """Seconds of an update, and the last loss."""
    if a.kernels:
        _, metrics = train(a, folder, rows, share, 4)
        return min(m["time/update_sec"] for m in metrics[1:]), metrics[-1]["train/loss"]
    one = min(train(a, folder, rows, share, 1)[0] for _ in range(a.repeat))
    two = [train(a, folder, rows, share, 2) for _ in range(a.repeat)]
    return min(used for used, _ in two) - one, two[0][1][-1]["train/loss"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows")
    p.add_argument("--scale", type=int, default=16)
    p.add_argument("--tokens", type=int, default=30000)
    p.add_argument("--budget", type=int, default=4096)
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--kernels", help="a kernel set; then by wall time")
    p.add_argument("--shape", help="a config.json")
    p.add_argument("--share", default="auto", choices=("auto", "on"))
    p.add_argument("--attention", default="auto", choices=("auto", "levels", "keys"))
    p.add_argument("--ravel", default="build/ravel")
    a = p.parse_args()
    rows = read(a.rows, a.scale, a.tokens)
    with tempfile.TemporaryDirectory() as folder:
        write(rows, folder, a.shape)
        flat = plan(a, folder, ["--lengths", f"{folder}/lengths.csv"])
        trees = plan(a, folder, ["--tree", f"{folder}/rows.jsonl"])
        (off, loss), (on, shared_loss) = (update(a, folder, len(rows), share) for share in ("off", a.share))
    predicted, measured = flat["time"] / trees["time"], off / on
    print(f"{os.path.basename(a.rows)}: {len(rows)} samples, {trees['flat_tokens']} tokens, {trees['actual_tokens']} computed; "
          f"off {off:.2f} s, {a.share} {on:.2f} s; predicted {predicted:.2f}, measured {measured:.2f}, "
          f"ratio {measured / predicted:.2f}; losses {loss:.6f} and {shared_loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
