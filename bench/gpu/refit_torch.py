"""The way of today's frameworks to refit on one GPU, in PyTorch: cast to bf16, concatenate into a buffer, copy the buffer (the wire), split
it and copy_ into the receiver's parameters. No checks, no commit. Prints the best time of several buffer sizes and streams.

    python3 bench/gpu/refit_torch.py          ->  "best_ms 10.6 buffer_mib 1024 streams 2"
"""

import sys
import time

import torch

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2048, 28, 16, 8, 128, 6144, 151936  # Qwen3-1.7B


def shapes():
    yield VOCAB, HIDDEN
    for _ in range(LAYERS):
        yield HEADS * HEAD, HIDDEN
        yield KV_HEADS * HEAD, HIDDEN
        yield KV_HEADS * HEAD, HIDDEN
        yield HIDDEN, HEADS * HEAD
        yield FFN, HIDDEN
        yield FFN, HIDDEN
        yield HIDDEN, FFN
        yield from ((HIDDEN,), (HIDDEN,), (HEAD,), (HEAD,))
    yield (HIDDEN,)


def groups(sizes, room):
    group, used = [], 0
    for i, size in enumerate(sizes):
        group.append(i)
        used += size
        if used > room:
            yield group
            group, used = [], 0
    if group:
        yield group


def refit(master, params, plan, streams):
    for k, group in enumerate(plan):
        with torch.cuda.stream(streams[k % len(streams)]):
            packed = torch.cat([master[i].to(torch.bfloat16).view(-1).view(torch.uint8) for i in group])
            arrived = torch.empty_like(packed)
            arrived.copy_(packed)
            at = 0
            for i in group:
                bytes_ = params[i].numel() * 2
                params[i].copy_(arrived[at:at + bytes_].view(torch.bfloat16).view(params[i].shape))
                at += bytes_
    torch.cuda.synchronize()


def main():
    if not torch.cuda.is_available():
        sys.exit("no GPU")
    master = [torch.randn(s, device="cuda") for s in shapes()]
    params = [torch.empty(t.shape, device="cuda", dtype=torch.bfloat16) for t in master]
    sizes = [p.numel() * 2 for p in params]
    best = None
    for mib in (256, 1024):
        for count in (1, 2):
            plan, streams = list(groups(sizes, mib << 20)), [torch.cuda.Stream() for _ in range(count)]
            for _ in range(2):
                refit(master, params, plan, streams)
            times = []
            for _ in range(7):
                begin = time.perf_counter()
                refit(master, params, plan, streams)
                times.append(time.perf_counter() - begin)
            best = min(best or (9e9,), (min(times) * 1e3, mib, count))
    print(f"best_ms {best[0]:.3f} buffer_mib {best[1]} streams {best[2]}")


main()
