"""The shapes of ``nemo_rl.data.packing``: ``get_packer(algorithm, bin_capacity, ...)`` and ``packer.pack(lengths)``.

The four algorithms go by their names there, and ``ravel`` is one more. Differences: nothing is printed, and extra bins
(``min_bin_count``, ``bin_count_multiple``) are made by splitting where it costs least rather than by popping the last
sequence of the fullest bins. ``first_fit_shuffle`` shuffles by ``seed``, so it can be repeated.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .._plan import plan

__all__ = ["ALGORITHMS", "Packer", "PackingMetrics", "get_packer"]

ALGORITHMS = {"concatenative": "next-fit", "first_fit_decreasing": "ffd", "first_fit_shuffle": None,
              "modified_first_fit_decreasing": "mffd", "ravel": "ravel"}


class PackingMetrics:
    """Sums over calls of ``pack``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sequences = self.bins = self.tokens = self.capacity = self.packs = 0
        self.lowest, self.highest = 1.0, 0.0

    def update(self, lengths: np.ndarray, bins: Sequence[Sequence[int]], bin_capacity: int) -> None:
        shares = [float(lengths[list(b)].sum()) / bin_capacity for b in bins if len(b)]
        self.packs += 1
        self.sequences += int(lengths.size)
        self.bins += len(bins)
        self.tokens += int(lengths.sum())
        self.capacity += len(bins) * bin_capacity
        self.lowest, self.highest = min([self.lowest, *shares]), max([self.highest, *shares])

    def stats(self) -> dict[str, float]:
        used = self.tokens / self.capacity if self.capacity else 0.0
        return {"packs": self.packs, "sequences": self.sequences, "bins": self.bins, "tokens": self.tokens,
                "average_utilization": used, "waste_ratio": 1 - used if self.capacity else 0.0,
                "min_utilization": self.lowest if self.bins else 0.0, "max_utilization": self.highest}


def _first_fit(lengths: np.ndarray, order: np.ndarray, capacity: int) -> list[list[int]]:
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
        room[node] -= need
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return bins


class Packer:
    """Made by :func:`get_packer`."""

    def __init__(self, algorithm: str, bin_capacity: int, collect_metrics: bool = False,
                 min_bin_count: int | None = None, bin_count_multiple: int | None = None, seed: int = 0):
        name = str(getattr(algorithm, "value", algorithm)).lower()
        if name not in ALGORITHMS:
            raise ValueError(f"algorithm is {name!r}; it must be one of {', '.join(ALGORITHMS)}")
        if min_bin_count is not None and min_bin_count < 0:
            raise ValueError("min_bin_count must not be negative")
        if bin_count_multiple is not None and bin_count_multiple < 1:
            raise ValueError("bin_count_multiple must be 1 or more")
        self.algorithm, self.bin_capacity = name, bin_capacity
        self.min_bin_count, self.bin_count_multiple, self.seed = min_bin_count, bin_count_multiple, seed
        self.collect_metrics = collect_metrics
        self.metrics = PackingMetrics() if collect_metrics else None

    def _target(self, bins: int) -> int:
        multiple = self.bin_count_multiple or 1
        least = max(bins, self.min_bin_count or 0)
        return -(-least // multiple) * multiple

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Bins of indices, none empty, none over ``bin_capacity``."""
        lengths = np.asarray(sequence_lengths, dtype=np.int64)
        if lengths.size and int(lengths.max()) > self.bin_capacity:
            raise ValueError(f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens, which exceeds the bin "
                             f"capacity {self.bin_capacity}")
        bins = self._pack(lengths) if lengths.size else []
        if self.metrics is not None:
            self.metrics.update(lengths, bins, self.bin_capacity)
        return bins

    def _pack(self, lengths: np.ndarray) -> list[list[int]]:
        if self.algorithm == "first_fit_shuffle":
            order = np.random.default_rng(self.seed).permutation(lengths.size)
            bins = _first_fit(lengths, order, self.bin_capacity)
            return _split(bins, self._checked(len(bins), lengths.size))
        multiple = self.bin_count_multiple or 1
        done = plan(lengths, budget=self.bin_capacity, dp=multiple, cost="tokens", method=ALGORITHMS[self.algorithm],
                    min_micro_steps=-(-(self.min_bin_count or 0) // multiple))
        bins = [list(map(int, part)) for part in done.bins if part.size]
        return _split(bins, self._checked(len(bins), lengths.size))

    def _checked(self, bins: int, sequences: int) -> int:
        target = self._target(bins)
        if target > sequences:
            raise ValueError(f"{sequences} sequences cannot fill {target} bins; reduce min_bin_count or "
                             f"bin_count_multiple, or give more sequences")
        return target

    def reset_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.reset()

    def compute_metrics(self, sequence_lengths: Sequence[int], bins: Sequence[Sequence[int]]) -> dict[str, float]:
        fresh = PackingMetrics()
        fresh.update(np.asarray(sequence_lengths, dtype=np.int64), bins, self.bin_capacity)
        return fresh.stats()

    def get_aggregated_metrics(self) -> dict[str, float]:
        return self.metrics.stats() if self.metrics is not None else {}


def _split(bins: list[list[int]], target: int) -> list[list[int]]:
    """More bins: halves of the ones with the most sequences."""
    while len(bins) < target:
        widest = max(range(len(bins)), key=lambda i: len(bins[i]))
        half = len(bins[widest]) // 2
        bins.append(bins[widest][half:])
        bins[widest] = bins[widest][:half]
    return bins


def get_packer(algorithm: Any, bin_capacity: int, collect_metrics: bool = False, min_bin_count: int | None = None,
               bin_count_multiple: int | None = None, seed: int = 0) -> Packer:
    """A packer by the name of its algorithm (a string, or an enum whose value is one)."""
    return Packer(algorithm, bin_capacity, collect_metrics, min_bin_count, bin_count_multiple, seed)
