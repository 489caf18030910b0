"""A training step of PyTorch and transformers (Qwen3-0.6B's shape) fed three ways, in one run.

    RAVEL_LIBRARY=build/libravel.so python3 bench/gpu/torch_feed.py [--json OUT] [--samples 64] [--budget 8192] [--steps 2]

  feed       ravel.Feed: samples are read, planned, weighed and packed in the background; tensors on the GPU, THD, every
             micro-batch of one shape, as compiled layers and CUDA graphs want it
  next-fit   the same shape and attention, samples packed in the order they come; made before the clock starts
  padded     rows padded to the longest of their micro-batch, as many as fit the budget; made before the clock starts, no
             attention mask (rows are padded on the right and attention is causal)

A step is forward, backward and AdamW over the same samples; the best of --steps after one to warm up. The loss of the feed is
compared with that of the samples run one by one. --tiny runs a small shape on the CPU, to see that the script works.
"""

import argparse
import inspect
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

import ravel

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=64)
parser.add_argument("--budget", type=int, default=8192)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--json", default="")
parser.add_argument("--tiny", action="store_true")
options = parser.parse_args()

DEVICE = "cpu" if options.tiny else "cuda"
LENGTHS = [int(x) for x in pathlib.Path(__file__).with_name("lengths.txt").read_text().split()][:options.samples]
if options.tiny:
    LENGTHS = [max(2, n // 16) for n in LENGTHS]
MOST = 64  # samples in one micro-batch, for the fixed shape


# ---- attention over packed samples -------------------------------------------------------------------------------------


def on_cpu(query, key, value, cu, _longest):
    out = torch.zeros_like(query)
    for a, b in zip(cu.tolist(), cu.tolist()[1:]):
        if b > a:
            q, k, v = (x[a:b].transpose(0, 1)[None] for x in (query, key, value))
            out[a:b] = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    return out


def on_gpu():
    from torch.nn.attention.varlen import varlen_attn

    takes = inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if "window_size" in takes else {"is_causal": True}
    grouped = {"enable_gqa": True} if "enable_gqa" in takes else {}

    def run(query, key, value, cu, longest):
        if not grouped:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        return varlen_attn(query, key, value, cu, cu, longest, longest, **causal, **grouped)

    return run


varlen = on_cpu if options.tiny else on_gpu()
boundaries = None  # (cu_seqlens_padded, longest) of the micro-batch that runs; None: padded rows


def attention(module, query, key, value, mask, **unused):
    if boundaries is None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2), None
    query, key, value = (x.transpose(1, 2)[0] for x in (query, key, value))
    return varlen(query, key, value, *boundaries)[None], None


AttentionInterface.register("ravel_bench", attention)


# ---- the model ---------------------------------------------------------------------------------------------------------


def make_model():
    wide = dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                num_key_value_heads=8, head_dim=128)
    small = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16)
    config = Qwen3Config(**(small if options.tiny else wide), max_position_embeddings=40960, tie_word_embeddings=True)
    config._attn_implementation = "ravel_bench"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).train(), config.vocab_size


def run(model, tokens, labels, weights, positions, bounds):
    """The weighted sum of token losses of one micro-batch."""
    global boundaries
    boundaries = bounds
    rows = tokens[None] if bounds is not None else tokens
    logits = model(input_ids=rows.long(), position_ids=positions[None].long() if bounds is not None else None,
                   use_cache=False).logits
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1).long(), ignore_index=-100,
                             reduction="none")
    return (losses * weights.reshape(-1)).sum()


# ---- three ways to feed it ---------------------------------------------------------------------------------------------


def make_samples(vocab):
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in LENGTHS]


def packed(batch):
    return batch["tokens"], batch["labels"], batch["weights"], batch["positions"], (batch["cu_seqlens_padded"], batch.max_seqlen)


def from_feed(samples):
    """Updates of the feed, without end."""
    source = ravel.Source.rows([{"input_ids": s} for s in samples])
    feed = ravel.Feed(source, budget=options.budget, samples=len(samples), max_samples=MOST, fixed_shape=True, prefetch=2,
                      cost="qwen3-0.6b", device=DEVICE, pin=DEVICE == "cuda")
    for update in feed.updates():
        yield [packed(batch) for batch in update]


def next_fit(samples):
    store = ravel.Ragged(LENGTHS, tokens=np.concatenate(samples),
                         labels=ravel.Field("labels", np.concatenate(samples), "next", pad=-100))
    store.add("weights", ravel.weights(store), kind="next")
    plan = ravel.plan(LENGTHS, budget=options.budget, method="next-fit", max_samples=MOST)
    out = []
    for part in plan.bins:
        batch = ravel.pack(store, part, fixed_tokens=options.budget, max_samples=MOST)
        tensors = batch.torch(DEVICE)
        out.append((tensors["tokens"], tensors["labels"], tensors["weights"], tensors["positions"],
                    (tensors["cu_seqlens_padded"], batch.max_seqlen)))
    return out


def padded(samples):
    total = sum(n - 1 for n in LENGTHS)
    batches, rows = [], []
    for sample in [*samples, None]:
        longest = max([len(s) for s in rows] + [0 if sample is None else len(sample)])
        if sample is None or (rows and (len(rows) + 1) * longest > options.budget):
            width = max(len(s) for s in rows)
            tokens = np.zeros((len(rows), width), np.int64)
            labels = np.full((len(rows), width), -100, np.int64)
            for i, row in enumerate(rows):
                tokens[i, :len(row)], labels[i, :len(row) - 1] = row, row[1:]
            batches.append((tokens, labels))
            rows = []
        rows.append(sample)
    return [(torch.from_numpy(t).to(DEVICE), torch.from_numpy(n).to(DEVICE),
             torch.from_numpy((n != -100).astype(np.float32) / total).to(DEVICE), None, None) for t, n in batches]


# ---- measuring ---------------------------------------------------------------------------------------------------------


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def best_time(model, optimizer, updates):
    """Seconds of the fastest step, and how many micro-batches it had."""
    times, count = [], 0
    for _ in range(options.steps + 1):
        begin = time.perf_counter()
        count = 0
        for batch in next(updates):
            run(model, *batch).backward()
            count += 1
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - begin)
    return min(times[1:]), count


def forever(batches):
    while True:
        yield batches


def main():
    begin = time.perf_counter()
    model, vocab = make_model()
    samples = make_samples(vocab)
    feed = from_feed(samples)
    total = sum(n - 1 for n in LENGTHS)
    with torch.no_grad():
        whole = sum(float(run(model, *batch)) for batch in next(feed))
        alone = 0.0
        for sample in samples:
            tokens = torch.from_numpy(sample).to(DEVICE)
            cu = torch.tensor([0, len(sample)], dtype=torch.int32, device=DEVICE)
            labels = torch.cat([tokens[1:], tokens.new_full((1,), -100)])
            weights = torch.full((len(sample),), 1 / total, device=DEVICE)
            alone += float(run(model, tokens, labels, weights, torch.arange(len(sample), device=DEVICE), (cu, len(sample))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=DEVICE == "cuda")
    ways = {"feed": feed, "next_fit": forever(next_fit(samples)), "padded": forever(padded(samples))}
    seconds, counts = {}, {}
    for name, updates in ways.items():
        seconds[name], counts[name] = best_time(model, optimizer, updates)
    tokens = sum(LENGTHS)
    rows = [("gpu.torch_feed_tokens_per_sec", tokens / seconds["feed"], "tokens/s", "more"),
            ("gpu.torch_next_fit_tokens_per_sec", tokens / seconds["next_fit"], "tokens/s", "more"),
            ("gpu.torch_padded_tokens_per_sec", tokens / seconds["padded"], "tokens/s", "more"),
            ("gpu.torch_feed_vs_padded", seconds["padded"] / seconds["feed"], "ratio", "more"),
            ("gpu.torch_feed_vs_next_fit", seconds["next_fit"] / seconds["feed"], "ratio", "more"),
            ("gpu.torch_feed_loss_difference", abs(whole - alone) / abs(alone), "relative", "less"),
            ("gpu.torch_feed_micro_batches", counts["feed"], "count", "less"),
            ("gpu.torch_next_fit_micro_batches", counts["next_fit"], "count", "less"),
            ("gpu.torch_padded_micro_batches", counts["padded"], "count", "less"),
            ("gpu.torch_feed_seconds_in_all", time.perf_counter() - begin, "s", "less")]
    conditions = f"{len(LENGTHS)} samples, {tokens} tokens, budget {options.budget}, torch {torch.__version__}"
    found = [{"name": name, "value": value, "unit": unit, "better": better, "conditions": conditions}
             for name, value, unit, better in rows]
    for row in found:
        print(f"{row['name']:40} {row['value']:14.6g} {row['unit']}", flush=True)
    print(f"loss {whole:.6f}, one by one {alone:.6f}; {len(LENGTHS)} samples, {tokens} tokens, budget {options.budget}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


main()
