"""slime's ``build_dp_schedule`` (``slime.utils.dp_schedule``, read at commit 624b824a).

    import ravel.adapters.slime; ravel.adapters.slime.install()

Same arguments, same four results. Differences, with ``use_dynamic_batch_size``: micro-batches are packed and dealt to ranks in
one step, balanced by cost, so ``balance_data`` and ``balance_by_flops`` are always on, and the cap of tokens holds with
them too. A sample that is longer than the cap is alone in its micro-batch, as in slime; ``oversize="error"`` names it instead.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Mapping, Sequence

import numpy as np

from .._abi import RAVEL_E_OVERSIZE
from .._lib import OversizeError, as_array
from .._plan import plan
from ._bins import fill_empty
from ._switch import Refused, put
from .verl import WORKLOAD, get_seqlen_balanced_partitions

__all__ = ["build_dp_schedule", "install"]

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]


def _costs(lengths: np.ndarray, args: Any) -> np.ndarray | None:
    """What slime's own FLOP count says where slime is loaded; else None: the cost model decides."""
    theirs = sys.modules.get("slime.utils.flops_utils")
    if theirs is None:
        return None
    flops = {int(n): int(theirs.calculate_fwd_flops([int(n)], args)) for n in np.unique(lengths)}
    return np.array([flops[int(n)] for n in lengths], np.int64)


def _dynamic(lengths: np.ndarray, args: Any, parallel: Mapping[str, Any], multiple: int,
             oversize: str) -> list[list[list[int]]]:
    """One step's micro-batches of each rank."""
    cap, dp = args.max_tokens_per_gpu * parallel["cp_size"], parallel["dp_size"]
    if oversize == "error" and lengths.size and int(lengths.max()) > cap:
        raise OversizeError(RAVEL_E_OVERSIZE, f"a sample has {int(lengths.max())} tokens, which exceeds max_tokens_per_gpu * cp_size, "
                            f"{cap}; raise max_tokens_per_gpu, or set oversize=\"alone\"")
    slots = np.minimum(lengths, cap) if oversize == "alone" else lengths  # it fills a micro-batch: nothing joins it
    done = plan(slots, costs=_costs(lengths, args), budget=cap, dp=dp, multiple=multiple, cost=WORKLOAD, sync="update")
    bins = fill_empty([part.tolist() for part in done.bins])
    if not all(bins):
        raise Refused(f"{lengths.size} samples cannot fill {len(bins)} micro-batches ({len(done)} on each of {dp} ranks)")
    return [bins[rank::dp] for rank in range(dp)]


def _static(lengths: np.ndarray, args: Any, parallel: Mapping[str, Any], multiple: int) -> list[list[list[int]]]:
    """Runs of ``micro_batch_size`` samples, dealt round robin or, with ``balance_data``, by cost."""
    size, dp = args.micro_batch_size, parallel["dp_size"]
    bins = [list(range(i, min(i + size, lengths.size))) for i in range(0, lengths.size, size)]
    if len(bins) % (dp * multiple):
        raise Refused(f"{lengths.size} samples make {len(bins)} micro-batches of {size}, which is no multiple of dp_size "
                      f"{dp} times the micro-batch group {multiple}")
    if not args.balance_data:
        return [bins[rank::dp] for rank in range(dp)]
    costs = _costs(lengths, args)
    each = WORKLOAD[0] * lengths + lengths**2 if costs is None else costs
    parts = get_seqlen_balanced_partitions([int(each[part].sum()) for part in bins], dp, equal_size=True)
    return [[bins[i] for i in part] for part in parts]


def _steps(rollout_indices: Sequence[int], global_batch_size: int) -> list[list[int]]:
    """Sample positions of each training step: ``global_batch_size`` rollouts, whole; what is left at the end is dropped."""
    rollouts: dict[int, list[int]] = {}
    for position, rollout in enumerate(rollout_indices):
        rollouts.setdefault(rollout, []).append(position)
    runs = list(rollouts.values())
    if len(runs) < global_batch_size:
        raise Refused(f"num_rollouts {len(runs)} is below global_batch_size {global_batch_size}: there is no whole step")
    return [sum(runs[i:i + global_batch_size], [])
            for i in range(0, len(runs) - global_batch_size + 1, global_batch_size)]


def build_dp_schedule(args: Any, train_parallel_config: Mapping[str, Any], total_lengths: Sequence[int], *,
                      global_batch_size: int, rollout_indices: Sequence[int], oversize: str = "alone") -> Schedule:
    """(samples of each rank, its micro-batches as positions in them, micro-batches per step, rollouts per step)."""
    if oversize not in ("alone", "error"):
        raise Refused(f"oversize is {oversize!r}; it must be alone or error")
    lengths = as_array(total_lengths, np.int64, "total_lengths")
    dp = train_parallel_config["dp_size"]
    multiple = train_parallel_config["microbatch_group_size_per_vp_stage"] if train_parallel_config["vpp_size"] > 1 else 1
    partitions: list[list[int]] = [[] for _ in range(dp)]
    batches: list[list[list[int]]] = [[] for _ in range(dp)]
    counts = []
    steps = _steps(rollout_indices, global_batch_size)
    for number, samples in enumerate(steps):
        if len(samples) < dp:
            raise Refused(f"step {number} has {len(samples)} samples, fewer than dp_size {dp}")
        own = lengths[samples]
        ranks = _dynamic(own, args, train_parallel_config, multiple, oversize) if args.use_dynamic_batch_size else \
            _static(own, args, train_parallel_config, multiple)
        counts.append(len(ranks[0]))
        for rank, parts in enumerate(ranks):
            for part in parts:
                begin = len(partitions[rank])
                partitions[rank].extend(samples[i] for i in part)
                batches[rank].append(list(range(begin, begin + len(part))))
    return partitions, batches, counts, [global_batch_size] * len(steps)


def install(module: Any = "slime.utils.dp_schedule", *, oversize: str = "alone") -> list[str]:
    """Replaces slime's function by this one, also where it was imported by name already. Returns the names
    that were replaced."""
    return put(module, {"build_dp_schedule": functools.partial(build_dp_schedule, oversize=oversize)})
