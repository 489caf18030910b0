"""The shapes of ``nemo_rl.data.packing``: ``get_packer(algorithm, bin_capacity, ...)`` and ``packer.pack(lengths)``.

    import ravel.adapters.nemo_rl; ravel.adapters.nemo_rl.install()

Read at commit 7ea279ab and with pull requests 3345 and 4105. The algorithms go by their names there, and ``ravel`` is one more.
Differences: nothing is printed, and extra bins (``min_bin_count``, ``bin_count_multiple``) are made by splitting the bins with the
most sequences in halves rather than by popping single sequences off them. ``first_fit_shuffle`` shuffles by ``seed``, so it can be
repeated. Preference pairs (``pair_grouping_key``) come to a packer as one sequence each; ``microbatch_order`` is NeMo-RL's own sort
of what a rank was given: both work with every algorithm here.
:mod:`ravel.adapters.nemo_rl_dynamic` has dynamic (padded) batching.
"""

from __future__ import annotations

import functools
import heapq
import sys
from typing import Any, Sequence

import numpy as np

from .._lib import as_array
from .._plan import plan
from ._bins import fill_empty
from ._switch import put

__all__ = ["ALGORITHMS", "Packer", "PackingMetrics", "get_packer", "install"]

ALGORITHMS = {"concatenative": "next-fit", "first_fit_decreasing": "ffd", "first_fit_shuffle": "first-fit",
              "modified_first_fit_decreasing": "mffd", "greedy_knapsack": "first-fit", "balanced_greedy_knapsack": "least-full",
              "ravel": "ravel"}  # the planner's methods, or those of this file


WORKLOAD = (24576, 1)  # 24576 * length + length ** 2: a dense model of 7 B parameters


class PackingMetrics:
    """Figures of one packing, and sums over calls of ``pack``, under the names that NeMo-RL gives them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Resets the sums over calls."""
        self.total_sequences = self.total_bins = self.total_sequence_length = self.total_bin_capacity = 0
        self.least_bins = 0
        self.shares: list[float] = []  # of each call

    def update(self, sequence_lengths: Any, bins: Sequence[Sequence[int]], bin_capacity: int) -> dict[str, float]:
        """Adds one packing to the sums; its own figures."""
        stats = self.calculate_stats_only(sequence_lengths, bins, bin_capacity)
        self.total_sequences += len(sequence_lengths)
        self.total_bins += len(bins)
        self.total_sequence_length += int(stats["total_sequence_length"])
        self.total_bin_capacity += int(stats["total_bin_capacity"])
        self.least_bins += int(stats["theoretical_min_bins"])
        self.shares.append(stats["average_utilization"])
        return stats

    def calculate_stats_only(self, sequence_lengths: Any, bins: Sequence[Sequence[int]],
                             bin_capacity: int) -> dict[str, float]:
        """The figures of one packing, counted nowhere."""
        lengths = as_array(sequence_lengths, np.int64, "sequence_lengths")
        loads = np.array([lengths[list(b)].sum() for b in bins], dtype=np.int64)
        tokens, capacity = int(lengths.sum()), len(bins) * bin_capacity
        share = tokens / capacity if capacity else 0.0
        spread = float(np.std(loads / bin_capacity, ddof=1)) if len(bins) > 1 else 0.0
        least = -(-tokens // bin_capacity)
        return {"num_sequences": lengths.size, "num_bins": len(bins), "total_sequence_length": tokens,
                "total_bin_capacity": capacity, "total_waste": capacity - tokens, "average_utilization": share,
                "waste_ratio": 1 - share if capacity else 0.0, "bin_balance": 1 - spread / share if share else 0.0,
                "theoretical_min_bins": least, "bin_efficiency": least / len(bins) if bins else 0.0}

    def get_aggregated_stats(self) -> dict[str, float]:
        """Over all calls; {} before the first."""
        if not self.shares:
            return {}
        share = self.total_sequence_length / self.total_bin_capacity if self.total_bin_capacity else 0.0
        low, high = min(self.shares), max(self.shares)
        return {"total_sequences": self.total_sequences, "total_bins": self.total_bins, "average_utilization": share,
                "min_utilization": low, "max_utilization": high, "average_waste_ratio": 1 - share,
                "min_waste_ratio": 1 - high, "max_waste_ratio": 1 - low,
                "average_bin_count": self.total_bins / len(self.shares),
                "bin_efficiency": self.least_bins / self.total_bins if self.total_bins else 0.0}

    def print_aggregated_stats(self) -> None:
        """The same on standard output, a line each."""
        print("\n".join(f"{name}: {value:g}" for name, value in self.get_aggregated_stats().items())
              or "nothing was packed yet")


def _first_fit(lengths: np.ndarray, order: np.ndarray, capacity: int, most: int) -> list[list[int]]:
    """First fit in a given order, through a tree of the largest room left: n log n."""
    leaves = 1 << max(0, int(lengths.size - 1).bit_length())
    room = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    for index in map(int, order):
        need, node = int(lengths[index]), 1
        while node < leaves:
            node = 2 * node if room[2 * node] >= need else 2 * node + 1
        if node - leaves == len(bins):
            bins.append([])
        bins[node - leaves].append(index)
        room[node] = room[node] - need if len(bins[node - leaves]) != most else -1
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return bins


def _least_full(lengths: np.ndarray, order: np.ndarray, capacity: int, most: int, delta: int) -> list[list[int]]:
    """Each sequence to the bin with the fewest tokens (the first of equals), of so many bins as the tokens need and ``delta``
    more; where it does not fit there, to a new one."""
    bins: list[list[int]] = [[] for _ in range(-(-int(lengths.sum()) // capacity) + delta)]
    heap = [(0, b) for b in range(len(bins))]
    for index in map(int, order):
        load, b = heap[0] if heap else (capacity, 0)
        if load + int(lengths[index]) > capacity:
            load, b = 0, len(bins)
            bins.append([])
        else:
            heapq.heappop(heap)
        bins[b].append(index)
        if len(bins[b]) != most:
            heapq.heappush(heap, (load + int(lengths[index]), b))
    return [part for part in bins if part]


class Packer:
    """Made by :func:`get_packer`."""

    def __init__(self, algorithm: str, bin_capacity: int, collect_metrics: bool = False,
                 min_bin_count: int | None = None, bin_count_multiple: int | None = None, seed: int = 0,
                 cost: Any = WORKLOAD, max_sequences_per_bin: int | None = None, balanced_knapsack_delta: int = 20):
        name = str(getattr(algorithm, "value", algorithm)).lower()
        if name not in ALGORITHMS:
            raise ValueError(f"algorithm is {name!r}; it must be one of {', '.join(ALGORITHMS)}")
        if min_bin_count is not None and min_bin_count < 0:
            raise ValueError("min_bin_count must not be negative")
        if bin_count_multiple is not None and bin_count_multiple < 1:
            raise ValueError("bin_count_multiple must be 1 or more")
        if max_sequences_per_bin is not None and max_sequences_per_bin < 1:
            raise ValueError("max_sequences_per_bin must be 1 or more, or None")
        if balanced_knapsack_delta < 0:
            raise ValueError("balanced_knapsack_delta must not be negative")
        if bin_capacity < 1:
            raise ValueError(f"bin_capacity is {bin_capacity}; it must be 1 or more")
        self.algorithm, self.bin_capacity = name, bin_capacity
        self.min_bin_count, self.bin_count_multiple, self.seed = min_bin_count, bin_count_multiple, seed
        self.max_sequences_per_bin, self.balanced_knapsack_delta = max_sequences_per_bin, balanced_knapsack_delta
        self.cost = cost if name == "ravel" else "tokens"
        self.collect_metrics = collect_metrics
        self.metrics = PackingMetrics() if collect_metrics else None

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Bins of indices, none empty, none over ``bin_capacity`` or ``max_sequences_per_bin``."""
        lengths = as_array(sequence_lengths, np.int64, "sequence_lengths")
        if lengths.size and int(lengths.max()) > self.bin_capacity:
            raise ValueError(f"sequence {int(np.argmax(lengths))} has {int(lengths.max())} tokens, which exceeds the bin "
                             f"capacity {self.bin_capacity}")
        if lengths.size and int(lengths.min()) < 0:
            raise ValueError(f"sequence {int(np.argmin(lengths))} has {int(lengths.min())} tokens; it must have 0 or more")
        bins = self._pack_all(lengths)
        bins = fill_empty(bins + [[]] * (self._target(len(bins), lengths.size) - len(bins)))
        if self.metrics is not None:
            self.metrics.update(lengths, bins, self.bin_capacity)
        return bins

    def _pack_all(self, lengths: np.ndarray) -> list[list[int]]:
        """Sequences without tokens go to the first bin with a place, whatever is in it."""
        filled, empty = np.flatnonzero(lengths), np.flatnonzero(lengths == 0).tolist()
        bins = [filled[part].tolist() for part in self._pack(lengths[filled])] if filled.size else []
        for index in empty:
            part = next((b for b in bins if len(b) != self.max_sequences_per_bin), None)
            if part is None:
                bins.append([index])
            else:
                part.append(index)
        return bins

    def _pack(self, lengths: np.ndarray) -> list[list[int]]:
        method, most = ALGORITHMS[self.algorithm], self.max_sequences_per_bin or 0
        if method in ("first-fit", "least-full"):
            order = np.random.default_rng(self.seed).permutation(lengths.size) if self.algorithm == "first_fit_shuffle" else \
                np.argsort(-lengths, kind="stable")
            return _first_fit(lengths, order, self.bin_capacity, most) if method == "first-fit" else \
                _least_full(lengths, order, self.bin_capacity, most, self.balanced_knapsack_delta)
        multiple = self.bin_count_multiple or 1
        done = plan(lengths, budget=self.bin_capacity, dp=multiple, cost=self.cost, max_samples=most,
                    method="ffd" if method == "mffd" and most else method,  # as NeMo-RL does
                    min_micro_steps=-(-(self.min_bin_count or 0) // multiple))
        return [part.tolist() for part in done.bins if part.size]

    def _target(self, bins: int, sequences: int) -> int:
        """How many bins there must be."""
        multiple = self.bin_count_multiple or 1
        target = -(-max(bins, self.min_bin_count or 0) // multiple) * multiple
        if target > sequences:
            raise ValueError(f"Cannot create {target} bins with only {sequences} sequences, since none may be empty; reduce "
                             f"min_bin_count or bin_count_multiple, or give more sequences")
        return target

    def reset_metrics(self) -> None:
        """Resets the counts of ``pack``."""
        if self.metrics is not None:
            self.metrics.reset()

    def compute_metrics(self, sequence_lengths: Sequence[int], bins: Sequence[Sequence[int]]) -> dict[str, float]:
        """The figures of any packing."""
        return PackingMetrics().calculate_stats_only(sequence_lengths, bins, self.bin_capacity)

    def get_aggregated_metrics(self) -> dict[str, float]:
        """Over all calls of ``pack``; {} without ``collect_metrics``."""
        return self.metrics.get_aggregated_stats() if self.metrics is not None else {}

    def print_metrics(self) -> None:
        """The same on standard output."""
        if self.metrics is None:
            print("metrics are not collected: give collect_metrics=True")
        else:
            self.metrics.print_aggregated_stats()


def _is_one_of_theirs() -> None:
    """Where NeMo-RL is loaded, its abstract SequencePacker counts ours among its own: isinstance holds."""
    theirs = getattr(sys.modules.get("nemo_rl.data.packing"), "SequencePacker", None)
    if theirs is not None:
        theirs.register(Packer)


def get_packer(algorithm: Any, bin_capacity: int, collect_metrics: bool = False, min_bin_count: int | None = None,
               bin_count_multiple: int | None = None, **options: Any) -> Packer:
    """A packer by the name of its algorithm (a string, or an enum whose value is one). ``options``: ``max_sequences_per_bin``,
    ``balanced_knapsack_delta``, ``seed``, and ``cost``, which is what "ravel" balances over the bins that run side by side, as
    in :func:`ravel.plan`."""
    _is_one_of_theirs()
    return Packer(algorithm, bin_capacity, collect_metrics, min_bin_count, bin_count_multiple, **options)


def install(module: Any = "nemo_rl.data.packing", algorithm: str | None = None) -> list[str]:
    """Puts :func:`get_packer` in the place of NeMo-RL's, also where it was imported by name already. Returns the names that
    were replaced. With ``algorithm="ravel"`` every packer is that one, whichever of NeMo-RL's the configuration names."""
    always = algorithm
    if always is not None:
        Packer(always, 1)  # a name that does not exist is said now

    @functools.wraps(get_packer)
    def get(algorithm: Any, *arguments: Any, **keywords: Any) -> Packer:
        asked = get_packer(algorithm, *arguments, **keywords)  # a name that does not exist is an error as before
        return asked if always is None else get_packer(always, *arguments, **keywords)

    return put(module, {"get_packer": get})
