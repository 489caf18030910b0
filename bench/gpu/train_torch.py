"""PyTorch's side of the trainer's comparison: one optimiser step of a Qwen3 shape on the packed mix of lengths.txt.

    python3 train_torch.py --shape 0.6B --budget 32768 --variant compiled [--liger FOLDER] [--master]

Variants: eager, liger (Liger's fused linear cross-entropy, norm, swiglu and rope), compiled (Liger's cross-entropy and every
layer through torch.compile). Attention is torch's own variable-length flash kernel. Micro-batches are packed by first-fit
decreasing and padded to the budget, so that compiled layers see one shape. --master keeps float32 weights beside the
bfloat16 ones. Prints one line of JSON.
"""

import argparse
import inspect
import json
import pathlib
import sys
import time

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

SHAPES = {"0.6B": (1024, 3072), "1.7B": (2048, 6144)}  # hidden, feed-forward; 28 layers, 16 and 8 heads of 128
LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, PEAK = 28, 16, 8, 128, 151936, 989.4e12
LENGTHS = [int(x) for x in pathlib.Path(__file__).with_name("lengths.txt").read_text().split()]

parser = argparse.ArgumentParser()
parser.add_argument("--shape", choices=SHAPES, default="0.6B")
parser.add_argument("--budget", type=int, default=16384)
parser.add_argument("--variant", choices=["eager", "liger", "compiled"], default="eager")
parser.add_argument("--liger", default="")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--master", action="store_true")
options = parser.parse_args()
if options.liger:
    sys.path.insert(0, options.liger)

cu_seqlens = None
takes = inspect.signature(varlen_attn).parameters
causal = {"window_size": (-1, 0)} if "window_size" in takes else {"is_causal": True}
grouped = {"enable_gqa": True} if "enable_gqa" in takes else {}


def packed_attention(module, query, key, value, mask, **unused):
    query, key, value = (x.transpose(1, 2)[0] for x in (query, key, value))
    if not grouped:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    out = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, 8192, 8192, **causal, **grouped)
    return out[None], None


AttentionInterface.register("packed", packed_attention)


def bins(budget):
    """First-fit decreasing."""
    found = []
    for length in sorted(LENGTHS, reverse=True):
        for b in found:
            if sum(b) + length <= budget:
                b.append(length)
                break
        else:
            found.append([length])
    return found


def micro_batches(budget):
    for lengths in bins(budget):
        rest = budget - sum(lengths)
        padded = lengths + ([rest] if rest else [])
        tokens = torch.randint(0, VOCAB, (budget,), device="cuda")
        labels = tokens.clone()
        starts = torch.tensor([0, *lengths]).cumsum(0)
        labels[starts[:-1].cuda()] = -100
        labels[sum(lengths):] = -100
        positions = torch.cat([torch.arange(n, device="cuda") for n in padded])
        ends = torch.tensor([0, *padded]).cumsum(0).tolist()
        table = torch.tensor((ends + [budget] * 256)[:256], dtype=torch.int32, device="cuda")
        yield tokens[None], labels[None], positions[None], table


def flops(hidden, ffn):
    width, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    weights = LAYERS * (hidden * (width + 2 * kv) + width * hidden + 3 * hidden * ffn) + hidden * VOCAB
    return 6 * weights * sum(LENGTHS) + 6 * LAYERS * width * sum(n * n for n in LENGTHS)


def main():
    global cu_seqlens
    hidden, ffn = SHAPES[options.shape]
    config = Qwen3Config(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
                         max_position_embeddings=40960, tie_word_embeddings=True, rope_theta=1e6)
    config._attn_implementation = "packed"
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).cuda().train()
    compiled = options.variant == "compiled"
    if options.variant != "eager":
        from liger_kernel.transformers import apply_liger_kernel_to_qwen3
        apply_liger_kernel_to_qwen3(rope=not compiled, rms_norm=not compiled, swiglu=not compiled,
                                    fused_linear_cross_entropy=True, model=model)
    if compiled:
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
    weights = list(model.parameters())
    masters = [w.detach().float() for w in weights] if options.master else weights
    optimizer = torch.optim.AdamW(masters, lr=1e-5, fused=True)
    data = list(micro_batches(options.budget))
    count = float(sum((labels != -100).sum() for _, labels, _, _ in data))

    def step():
        global cu_seqlens
        for tokens, labels, positions, cu_seqlens in data:
            model(input_ids=tokens, position_ids=positions, labels=labels, use_cache=False,
                  num_items_in_batch=count).loss.backward()
        if options.master:
            for master, weight in zip(masters, weights):
                master.grad = weight.grad.float()
        optimizer.step()
        if options.master:
            with torch.no_grad():
                for master, weight in zip(masters, weights):
                    weight.copy_(master)
        for weight in weights:
            weight.grad = None

    step()
    torch.cuda.synchronize()
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    best = min(times)
    print(json.dumps({"shape": options.shape, "variant": options.variant, "budget": options.budget, "master": options.master,
                      "step_ms": best * 1e3, "tokens_per_second": sum(LENGTHS) / best,
                      "mfu": flops(hidden, ffn) / best / PEAK,
                      "peak_gib": torch.cuda.max_memory_allocated() / 2**30}), flush=True)


main()
