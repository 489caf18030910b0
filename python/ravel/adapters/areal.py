"""AReaL's allocation functions (``areal.utils.seqpack``, read at commit 4aef98d8).

    import ravel.adapters.areal; ravel.adapters.areal.install()

Same arguments and results: ``ffd_allocate`` and ``kk_allocate`` cut a rank's sequences into micro-batches of at most ``capacity``
tokens, ``balanced_greedy_partition`` deals trajectories to data-parallel ranks. Differences: both algorithms have the number of groups
of Ravel's packing, and the groups' sums are as even as it finds; ``kk_allocate`` keeps the capacity, the divisor and
``equal_size`` together, where AReaL's falls back to first fit without ``equal_size``. Errors name the sequence that is too long.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .._lib import as_array
from .._plan import plan
from ._bins import fill_empty
from ._switch import put

__all__ = ["balanced_greedy_partition", "ffd_allocate", "install", "kk_allocate"]


class Unpackable(RuntimeError, ValueError):
    """AReaL raises RuntimeError for what cannot be allocated; other functions of this package raise ValueError."""


def _sizes(values: Any, capacity: int, min_groups: int) -> np.ndarray:
    """Lengths, of which there are enough and none is over the capacity."""
    sizes = as_array(values.cpu() if hasattr(values, "cpu") else values, np.int64, "values")
    over = np.flatnonzero(sizes > capacity)
    if over.size:
        raise Unpackable(f"value {int(over[0])} is {int(sizes[over[0]])}, which is larger than capacity {capacity}")
    if sizes.size < min_groups:
        raise Unpackable(f"{sizes.size} values: their number is smaller than min_groups {min_groups}")
    found: np.ndarray = np.maximum(sizes, 1)  # a sequence without tokens still takes a place
    return found


def _fewest(sizes: np.ndarray, capacity: int) -> int:
    """The number of groups that hold all sequences."""
    return len(plan(sizes, budget=capacity, cost="tokens"))


def _even(sizes: np.ndarray, capacity: int, groups: int, each: int = 0) -> list[list[int]] | None:
    """As many groups, with sums as even as possible; None where they cannot hold the sequences. ``each``: the most in one."""
    done = plan(sizes, budget=capacity, dp=groups, cost="tokens", sync="update", max_samples=each)
    return None if len(done) != 1 else [part.tolist() for part in done.bins]


def _packed(sizes: np.ndarray, capacity: int, groups: int) -> list[list[int]]:
    """As many groups by packing alone: for counts that only just hold the sequences."""
    done = plan(sizes, budget=capacity, cost="tokens", min_micro_steps=groups)
    return [part.tolist() for part in done.bins]


def _allocate(values: Any, capacity: int, min_groups: int | None, divisor: int, clamp: bool, equal: bool) -> list[list[int]]:
    least = max(min_groups or 0, divisor)
    sizes = _sizes(values, capacity, least)
    cap = min(int(capacity), max(int(sizes.sum()), 1))  # "no limit" is written as 10^12
    groups = -(-max(least, _fewest(sizes, cap)) // divisor) * divisor
    if groups > sizes.size and not clamp:
        raise Unpackable(f"{sizes.size} values cannot fill {groups} groups, a multiple of n_groups_divisor {divisor}")
    groups = min(groups, sizes.size)
    if equal and sizes.size % groups:
        raise Unpackable(f"equal_size: {sizes.size} values are no multiple of {groups} groups")
    found = _even(sizes, cap, groups, sizes.size // groups if equal else 0)
    if found is None and equal:
        raise Unpackable(f"equal_size: {sizes.size // groups} values in each of {groups} groups exceed capacity {capacity}")
    return fill_empty(found if found is not None else _packed(sizes, cap, groups))


def ffd_allocate(values: Sequence[int], capacity: int, min_groups: int, n_groups_divisor: int = 1) -> list[list[int]]:
    """Indices of the sequences of each group: no sum over ``capacity``, at least ``min_groups`` groups and a multiple of
    ``n_groups_divisor``, none empty."""
    return _allocate(values, capacity, min_groups, n_groups_divisor, False, False)


def kk_allocate(values: Sequence[int], capacity: int, min_groups: int, n_groups_divisor: int = 1,
                equal_size: bool = False) -> list[list[int]]:
    """The same; where there are fewer sequences than the divisor asks for, one group per sequence. ``equal_size``: the same
    number of sequences in each."""
    return _allocate(values, capacity, min_groups, n_groups_divisor, True, equal_size)


def balanced_greedy_partition(nums: Sequence[int], K: int) -> list[list[int]]:
    """Indices dealt to ``K`` groups, the same number to each, their sums as even as possible."""
    sizes = as_array(nums, np.int64, "nums")
    if sizes.size < K:
        raise ValueError(f"Number of items ({sizes.size}) must be >= K ({K}).")
    if sizes.size % K:
        raise ValueError(f"{sizes.size} items: their number must be divisible by K, {K}")
    done = plan(np.ones(sizes.size, np.int64), costs=sizes, budget=sizes.size, dp=K, sync="update", max_samples=sizes.size // K)
    return [part.tolist() for part in done.bins]


def install(module: Any = "areal.utils.seqpack") -> list[str]:
    """Replaces AReaL's functions by these, also where they were imported by name already. Returns the names
    that were replaced."""
    return put(module, {"ffd_allocate": ffd_allocate, "kk_allocate": kk_allocate,
                        "balanced_greedy_partition": balanced_greedy_partition})
