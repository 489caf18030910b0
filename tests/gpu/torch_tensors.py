"""Torch's CUDA tensors in and out of the Python package, on a GPU: every result is compared bit for bit with the host's.

    python3 tests/gpu/torch_tensors.py          exit code 0: all is well; needs torch with CUDA and the built modules

Part of `make test-gpu`. The same calls run without a GPU in python/tests/test_cuda.py, over a stub driver.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

try:
    import numpy as np
    import torch
except ImportError as missing:
    sys.exit(f"torch_tensors: {missing}: torch's tensors were not tried")

import ravel


def same(tensor, array, what):
    """A tensor on the device against an array of the host, by its bytes."""
    assert tensor.is_cuda, what
    bits = tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor
    assert bits.cpu().numpy().tobytes() == np.ascontiguousarray(array).tobytes(), what


def make_stores(seed, samples=64):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 700, samples)
    total = int(lengths.sum())
    fields = {"tokens": (rng.integers(0, 150000, total).astype(np.int32), "token", 0),
              "labels": (rng.integers(0, 150000, total), "next", -100),
              "old": (rng.random(total - samples).astype(np.float32), "step", 0),
              "probs": (torch.tensor(rng.random((total, 4))).to(torch.bfloat16), "token", 0),
              "reward": (rng.random(samples), "sample", 0)}
    prompts = np.minimum(lengths, 9)
    host = ravel.Ragged(lengths, prompts=prompts, **{n: ravel.Field(n, a, k, p) for n, (a, k, p) in fields.items()})
    there = ravel.Ragged(lengths, prompts=prompts, **{
        n: ravel.Field(n, torch.as_tensor(a).cuda(), k, p) for n, (a, k, p) in fields.items()})
    return host, there


def check_pack(stream):
    """Packed, padded and scattered in a stream; results are torch tensors over the same memory."""
    host, there = make_stores(1)
    with torch.cuda.stream(stream):
        for bin_ in ([5, 1, 7, 60], [3], []):
            want = ravel.pack(host, bin_, segments=True, padding=True, loss_mask=True, align=16)
            batch = ravel.pack(there, bin_, segments=True, padding=True, loss_mask=True, align=16)
            tensors = batch.torch()
            assert tensors["probs"].dtype == torch.bfloat16 and tensors["tokens"].data_ptr() == batch.tokens.pointer
            for name in want:
                same(tensors[name], want[name], f"pack: {name}")
            results = tensors["tokens"].float() * 2
            back = ravel.scatter(there, batch, results).torch()
            same(back, ravel.scatter(host, want, (want.tokens.astype(np.float32) * 2)), "scatter")
            out = torch.full((int(host.lengths.sum()),), -1.0, device="cuda")
            assert ravel.scatter(there, batch, results, out=out) is out
            same(out, ravel.scatter(host, want, want.tokens.astype(np.float32) * 2,
                                    out=np.full(out.numel(), -1, np.float32)), "scatter into a tensor")
            rows = ravel.pad(there, bin_, side="left").torch()
            for name, array in ravel.pad(host, bin_, side="left").items():
                same(rows[name], array, f"pad: {name}")
            shards = [ravel.cp_shard(tensors["probs"].view(torch.int16), want.cu_seqlens_padded, r, 4) for r in range(4)]
            whole = ravel.cp_unshard([s.torch() for s in shards], want.cu_seqlens_padded).torch()
            same(whole, want["probs"], "cp_shard and cp_unshard")


def check_streams():
    """A tensor that is still being written in one stream is packed in another one."""
    lengths = [1 << 20]
    side = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            tokens = torch.arange(1 << 20, device="cuda", dtype=torch.int32)
            store = ravel.Ragged(lengths, tokens=tokens)
        batch = ravel.pack(store, [0])  # in the default stream
        result = batch.torch()["tokens"] + 1
        assert int(result[-1]) == 1 << 20 and int(result[0]) == 1


def check_memory():
    """A loop allocates nothing after its first rounds, and what torch still reads is not used again."""
    _, there = make_stores(2)
    kept = [ravel.pack(there, [i]).torch()["tokens"] for i in range(32)]
    copies = [tensor.cpu() for tensor in kept]
    for i in range(200):
        ravel.pack(there, [i % 64]).torch()["tokens"].sum()
    assert all(torch.equal(tensor.cpu(), copy) for tensor, copy in zip(kept, copies))


def check_pinned():
    """Page-locked batches: torch sees that they are, and copies that are under way keep their bytes."""
    host, _ = make_stores(3)
    assert torch.from_numpy(ravel.pack(host, [0], pin=True).tokens).is_pinned()
    for i in range(200):
        there = ravel.pack(host, [i % 64], pin=True).torch("cuda")["tokens"]
        want = ravel.pack(host, [i % 64]).tokens
        same(there, want, "a page-locked batch")


def check_comm():
    """NCCL with one rank."""
    with ravel.comm.nccl(ravel.comm.self(), 0) as comm:
        tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
        assert torch.equal(comm.allreduce(tensor).torch(), tensor)
        assert torch.equal(comm.allgatherv(tensor)[0].torch(), tensor)
        assert torch.equal(comm.alltoall([tensor])[0].torch(), tensor)
        comm.broadcast(tensor)


def check_refit():
    """Weights between two ranks of this process, both on the GPU: f32, bf16, float8, a tensor with holes."""
    source = {"w": torch.randn(513, 257, device="cuda"), "h": torch.randn(300, 40, device="cuda").to(torch.bfloat16),
              "q": torch.randn(64, 64, device="cuda").to(torch.float8_e4m3fn)}
    base = torch.zeros(513, 300, device="cuda")
    sink = {"w": base[:, 20:277], "h": torch.zeros(300, 40, device="cuda", dtype=torch.bfloat16),
            "q": torch.zeros(64, 64, device="cuda").to(torch.float8_e4m3fn)}
    torch.cuda.synchronize()
    ravel.comm.threads(2, lambda comm: ravel.refit(comm, **({"source": source} if comm.rank == 0 else {"sink": sink})), timeout=60)
    torch.cuda.synchronize()
    for name in source:
        left, right = (side[name].contiguous().view(torch.uint8) for side in (source, sink))
        assert torch.equal(left, right), f"refit: {name}"
    assert float(base[:, :20].abs().sum()) == 0 and float(base[:, 277:].abs().sum()) == 0


def main():
    if not torch.cuda.is_available():
        sys.exit("torch_tensors: torch sees no CUDA device")
    checks = [lambda: check_pack(torch.cuda.current_stream()), lambda: check_pack(torch.cuda.Stream()), check_streams,
              check_memory, check_pinned, check_comm, check_refit]
    for check in checks:
        check()
        torch.cuda.synchronize()
    print(f"torch_tensors: {len(checks)} checks passed on {torch.cuda.get_device_name()}")


main()
