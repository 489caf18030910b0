#!/usr/bin/env python3
"""What LoRA takes of a machine's memory, by the size of the model: an update of `ravel train` on Llama-shaped models.

    python3 bench/lora_memory.py [1b 3b 7b] [--ravel build/ravel] [--out FOLDER] [--tokens 128 2048] [--threads 2] [--zeros] [--flags "--recompute full"]

A folder of random bf16 weights per size (14 GB for 7b, removed afterwards; with --zeros a file of holes, which takes no disk) is trained
with --lora-rank 16, which maps its file: one update of `sft` for each number of tokens, and one of `grpo`, whose generator reads the same
pages. With --copy also --kernels cpu, which loads it as f32, and, without an adapter, full fine-tuning, where the command finds room for
them. Printed: the command's own estimate, the largest anonymous memory and the largest resident set of the process (pages of the mapped
file are in it as far as the machine has room), and processor and wall seconds of the update."""
import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time

SIZES = {"tiny": (256, 2, 4, 4, 512), "1b": (2048, 16, 32, 8, 8192), "3b": (3072, 28, 24, 8, 8192), "7b": (4096, 32, 32, 32, 11008)}
VOCAB = 32000


def tensors_of(hidden, layers, heads, kv_heads, ffn):
    kv = hidden // heads * kv_heads
    yield "model.embed_tokens.weight", [VOCAB, hidden]
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", [hidden, hidden]), ("self_attn.k_proj", [kv, hidden]), ("self_attn.v_proj", [kv, hidden]),
                            ("self_attn.o_proj", [hidden, hidden]), ("mlp.gate_proj", [ffn, hidden]), ("mlp.up_proj", [ffn, hidden]),
                            ("mlp.down_proj", [hidden, ffn]), ("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden])):
            yield at + name + ".weight", shape
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [VOCAB, hidden]


def make(folder, size, zeros):
    """Weights of about 0.02: one run of a few million of them, again and again. Or holes."""
    hidden, layers, heads, kv_heads, ffn = SIZES[size]
    os.makedirs(folder, exist_ok=True)
    head, at, source = {}, 0, random.Random(1)
    for name, shape in tensors_of(hidden, layers, heads, kv_heads, ffn):
        count = 1
        for n in shape:
            count *= n
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    some = b"".join(struct.pack("<f", source.gauss(0, 0.02))[2:] for _ in range((1 << 20) + 3))
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        if zeros:
            out.truncate(8 + len(text) + at)
        for left in range(0 if zeros else at, 0, -len(some)):
            out.write(some[:left])
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5,
              "vocab_size": VOCAB, "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 1e4,
              "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)
    return at // 2


def measure(o, command):
    """The command's output, and the largest anonymous memory and resident set of its process, in GiB."""
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([o.ravel, "train", *command], stdout=said, stderr=subprocess.STDOUT)
        most, resident = 0, 0
        while child.poll() is None:
            try:
                with open(f"/proc/{child.pid}/status") as text:
                    read = {line.split()[0]: int(line.split()[1]) for line in text if line.startswith(("RssAnon", "VmHWM"))}
                most, resident = max(most, read.get("RssAnon:", 0)), max(resident, read.get("VmHWM:", 0))
            except OSError:
                pass
            time.sleep(0.05)
        said.seek(0)
        return child.returncode, said.read(), most / 2**20, resident / 2**20


def run(o, kind, folder, tokens, *flags):
    rows, kept = os.path.join(o.out, "rows.jsonl"), os.path.join(o.out, "run")
    shutil.rmtree(kept, ignore_errors=True)
    with open(rows, "w") as out:
        for i in range(8):
            out.write(json.dumps({"input_ids": [(i * 37 + t * 11) % VOCAB for t in range(tokens // (2 if kind == "sft" else 4))]}) + "\n")
    reward = "python3 -c 'import json, sys; [print(json.dumps({\"id\": json.loads(line)[\"id\"], \"reward\": i % 2}), flush=True) for i, line in enumerate(sys.stdin)]'"
    own = {"sft": ["--batch", "2"],
           "grpo": ["--prompts", "2", "--group-size", "4", "--max-tokens", "32", "--slots", "8", "--eval-prompts", "0", "--generators", "1",
                    "--reward-command", reward, "--max-flat", "0"]}[kind]
    command = [kind, "--model", folder, "--data", rows, "--steps", "1", "--budget", str(tokens), "--threads", str(o.threads),
               "--no-checkpoint-end", "--sinks", "jsonl", "--run", kept, *own, *flags, *o.flags.split()]
    before = os.times()
    code, text, most, resident = measure(o, command)
    after = os.times()
    if code:
        return f"refused: {text.strip().splitlines()[-1][:200]}"
    told = re.findall(r"memory per (?:trainer|generator rank): ([0-9.]+ \w+)", text)
    row = [r for r in map(json.loads, open(os.path.join(kept, "metrics.jsonl"))) if "train/loss" in r][-1]
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return (f"estimate {' + '.join(told):>10}   anonymous {most:5.2f} GiB   resident {resident:5.2f} GiB   update {row['time/wall_sec']:6.1f} s   "
            f"run {spent:6.1f} s of a processor, {after.elapsed - before.elapsed:6.1f} s   loss {row['train/loss']:.3f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sizes", nargs="*", default=["1b", "3b", "7b"]), p.add_argument("--ravel", default="build/ravel")
    p.add_argument("--out", default="build/lora-memory"), p.add_argument("--tokens", type=int, nargs="+", default=[128, 2048])
    p.add_argument("--threads", type=int, default=2), p.add_argument("--copy", action="store_true"), p.add_argument("--zeros", action="store_true")
    p.add_argument("--flags", default="")
    o = p.parse_args()
    for size in o.sizes:
        folder = os.path.join(o.out, size)
        count = make(folder, size, o.zeros)
        print(f"{size}: {count / 1e9:.2f} B parameters, {2 * count / 2**30:.1f} GiB in bf16", flush=True)
        for tokens in o.tokens:
            print(f"  sft, {tokens} tokens: ", run(o, "sft", folder, tokens, "--lora-rank", "16"), flush=True)
            if o.copy:
                print("    f32:       ", run(o, "sft", folder, tokens, "--lora-rank", "16", "--kernels", "cpu"), flush=True)
                print("    full, f32: ", run(o, "sft", folder, tokens), flush=True)
        print(f"  grpo, {o.tokens[0]} tokens:", run(o, "grpo", folder, o.tokens[0], "--lora-rank", "16"), flush=True)
        shutil.rmtree(folder)


main()
