"""Ravel beside its peers, each at its own default, in one run: the figures of README's comparison.

    make test-frameworks                                                 the packages and wheels of pip, once
    build/frameworks/bin/python bench/peers/compare.py --engines build/frameworks/engines --checkouts FOLDER

FOLDER has checkouts under the names of python/tests/peers.py (Megatron-LM, RL, slime, AReaL); a peer that is not there is said and
left out. Lengths are lognormal (mu 7.3, sigma .9, at most 16,384 tokens), a new draw per seed; time is processor time, the best of
three, or one where it takes over five seconds; idle is the share of rank time with the cost 24,576 L + L^2. Every figure is the smallest and the largest over the seeds.
"""

import argparse
import contextlib
import importlib
import io
import logging
import os
import pathlib
import sys
import time
import types

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]
CAP = 16384


def lengths_of(seed, count, mu=7.3, sigma=0.9):
    return np.clip(np.random.default_rng(seed).lognormal(mu, sigma, count), 1, CAP).astype(int).tolist()


def timed(call):
    """What a call returns, and the least processor time of three, in milliseconds."""
    best, got = float("inf"), None
    for _ in range(3):
        begin = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            got = call()
        best = min(best, 1e3 * (time.process_time() - begin))
        if best > 5000:  # long enough to be measured once
            break
    return got, best


def work(lengths, part):
    return sum(24576 * lengths[i] + lengths[i] ** 2 for i in part)


def idle(lengths, steps):
    """Of ranks that meet in every micro-step."""
    costs = np.array([[work(lengths, part) for part in step] for step in steps], float)
    return 100 * (1 - costs.sum() / (costs.max(1).sum() * costs.shape[1]))


def over(lengths, parts):
    return sum(sum(lengths[i] for i in part) > CAP for part in parts)


def verl(seed, module, ours):
    import torch

    lengths = lengths_of(seed, 2048)
    ids = types.SimpleNamespace(is_nested=True, offsets=lambda: torch.tensor([0, *lengths]).cumsum(0))  # as verl's trainers have them
    batch = type("Batch", (dict,), {"__getitem__": lambda self, key: ids if key == "input_ids" else None})({"input_ids": ids})
    for name, own in (("verl", module), ("Ravel", ours)):
        (_, parts), ms = timed(lambda own=own: own.rearrange_micro_batches(batch, CAP))
        yield name, {"ms": ms, "micro-batches": len(parts), "over the cap": over(lengths, parts)}


def nemo_rl(seed, module, ours):
    lengths = lengths_of(seed, 4096)
    for name, own, algorithm in (("modified_first_fit_decreasing", module, "modified_first_fit_decreasing"),
                                 ("first_fit_decreasing", module, "first_fit_decreasing"), ("Ravel", ours, "ravel")):
        packer = own.get_packer(algorithm, CAP, min_bin_count=8, bin_count_multiple=8)
        bins, ms = timed(lambda: packer.pack(lengths))
        yield name, {"ms": ms, "bins": len(bins), "idle %": idle(lengths, [bins[i:i + 8] for i in range(0, len(bins), 8)])}


def megatron(seed, module, ours):
    lengths = lengths_of(seed, 1024)
    for name, own in (("dp_balanced", module.DpBalancedScheduler), ("Ravel", ours.RavelScheduler)):
        steps, ms = timed(lambda own=own: own(CAP, 1, 16, None).get_groups_and_subsamples(list(enumerate(lengths))))
        yield name, {"ms": ms, "micro-steps": len(steps), "idle %": idle(lengths, steps)}


def areal(seed, module, ours):
    lengths = lengths_of(seed, 2048)
    for name, call in (("ffd (default)", module.ffd_allocate), ("kk", module.kk_allocate), ("Ravel", ours.ffd_allocate)):
        groups, ms = timed(lambda call=call: call(lengths, CAP, 1))
        yield name, {"ms": ms, "micro-batches": len(groups), "over the cap": over(lengths, groups)}


def slime(seed, module, ours):
    lengths = lengths_of(seed, 512)
    args = types.SimpleNamespace(micro_batch_size=1, use_dynamic_batch_size=True, max_tokens_per_gpu=CAP, balance_data=False,
                                 balance_by_flops=False,  # slime's defaults, with dynamic batches; a model of Qwen3-8B's shape
                                 hidden_size=4096, num_layers=36, ffn_hidden_size=12288, num_attention_heads=32,
                                 num_query_groups=8, kv_channels=128, vocab_size=151936, num_experts=None, q_lora_rank=None,
                                 kv_lora_rank=None, moe_layer_freq=None, qk_head_dim=None, v_head_dim=None)
    flops = importlib.import_module("slime.utils.flops_utils").calculate_fwd_flops
    parallel = {"dp_size": 8, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    for name, own in (("slime", module), ("Ravel", ours)):
        (ranks, batches, *_), ms = timed(lambda own=own: own.build_dp_schedule(args, parallel, lengths, global_batch_size=512,
                                                                               rollout_indices=list(range(512))))
        costs = [flops([lengths[i] for i in rank], args) for rank in ranks]
        yield name, {"ms": ms, "micro-batches per rank": len(batches[0]), "slowest rank / mean": max(costs) * len(costs) / sum(costs)}


def trl(seed, module, ours):
    import pyarrow as pa

    lengths = np.minimum(lengths_of(seed, 4096), 4096)
    ends, values = np.concatenate([[0], np.cumsum(lengths)]), np.arange(int(np.sum(lengths)), dtype=np.int32)
    column = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values))
    table = pa.table({"input_ids": column, "labels": column})
    want, theirs = timed(lambda: module._pack_bfd(table, 4096))
    got, mine = timed(lambda: ours.pack_table(table, 4096))
    same = sum(a == b for a, b in zip(want["seq_lengths"].to_pylist(), got["seq_lengths"].to_pylist()))
    yield "TRL (bfd)", {"ms": theirs, "rows": want.num_rows}
    yield "Ravel", {"ms": mine, "rows": got.num_rows, "rows that are TRL's %": 100 * same / want.num_rows,
                    "times faster": theirs / mine}


def load_verl(patch):
    import peers

    return peers.verl(patch), peers.PACKAGES["verl"]


def load_checkout(folder, module):
    def load(patch):
        import peers

        root = pathlib.Path(os.environ.get("RAVEL_CHECKOUTS", ""), folder)
        if not root.is_dir():
            raise FileNotFoundError(f"no folder {folder} among the checkouts")
        patch.syspath_prepend(str(root))
        if folder == "AReaL":  # its package needs a server's libraries
            quiet = types.SimpleNamespace(getLogger=lambda name: logging.getLogger(name))
            stubs = {"areal": {}, "areal__utils": {"logging": quiet}, "numba": {"njit": lambda f=None, **_: f or (lambda g: g)}}
            return peers.load(patch, module, root / (module.replace(".", "/") + ".py"), **stubs), peers.head(root)
        return importlib.import_module(module), peers.head(root)
    return load


def load_trl(patch):
    import trl as package
    import trl.data_utils as module

    return module, package.__version__


PEERS = [  # title, what measures, how the peer is loaded, our adapter
    ("verl rearrange_micro_batches, 2,048 samples", verl, load_verl, "verl"),
    ("NeMo-RL packers, 4,096 samples on 8 ranks", nemo_rl, load_checkout("RL", "nemo_rl.data.packing"), "nemo_rl"),
    ("Megatron dp_balanced, 1,024 samples on 16 ranks", megatron,
     load_checkout("Megatron-LM", "megatron.core.datasets.data_schedule"), "megatron"),
    ("AReaL, 2,048 samples", areal, load_checkout("AReaL", "areal.utils.seqpack"), "areal"),
    ("slime build_dp_schedule, 512 samples on 8 ranks", slime, load_checkout("slime", "slime.utils.dp_schedule"), "slime"),
    ("TRL pack_dataset (bfd), 4,096 rows", trl, load_trl, "trl"),
]


def span(values):
    low, high = min(values), max(values)
    text = "{:.0f}" if low == int(low) and high == int(high) else "{:.3g}" if high < 100 else "{:.0f}"
    text = "{:.6f}" if 0.99 < low <= high < 1.1 and low != high else text
    return text.format(low) if low == high else f"{text.format(low)} to {text.format(high)}"


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--checkouts", default=os.environ.get("RAVEL_CHECKOUTS", ""), help="a folder of checkouts")
    ask.add_argument("--engines", default=os.environ.get("RAVEL_ENGINES", ""), help="the unpacked wheels")
    ask.add_argument("--seeds", type=int, default=3)
    given = ask.parse_args()
    os.environ["RAVEL_CHECKOUTS"], os.environ["RAVEL_ENGINES"] = given.checkouts, given.engines
    import pytest

    logging.disable(logging.WARNING)
    for title, measure, load, adapter in PEERS:
        with pytest.MonkeyPatch.context() as patch:
            try:
                module, version = load(patch)
            except (ImportError, OSError, pytest.skip.Exception) as missing:
                print(f"\n{title}: left out ({missing})")
                continue
            ours, found = importlib.import_module("ravel.adapters." + adapter), {}
            for seed in range(given.seeds):
                for name, figures in measure(seed, module, ours):
                    for what, value in figures.items():
                        found.setdefault(name, {}).setdefault(what, []).append(value)
        print(f"\n{title} (at {version})")
        for name, figures in found.items():
            print(f"  {name:30} " + ", ".join(f"{what} {span(values)}" for what, values in figures.items()))


if __name__ == "__main__":
    main()
