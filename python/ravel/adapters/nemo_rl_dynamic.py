"""NeMo-RL's dynamic batching: padded micro-batches that have as many rows on every data-parallel rank (``dynamic_batching_args`` of
``BatchedDataDict.shard_by_batch_size``, read at commit 7ea279ab).

    import ravel.adapters.nemo_rl_dynamic; ravel.adapters.nemo_rl_dynamic.install()

Rows are sorted by length and dealt to the ranks as in NeMo-RL. Difference: where the cuts between micro-batches lie is chosen
so that there are as few as possible and, among those, the fewest padded tokens; NeMo-RL fills from the shortest row up.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Mapping

import numpy as np

from .._lib import as_array
from ._switch import Refused

__all__ = ["DynamicBatches", "dynamic_batches", "install"]


class DynamicBatches:
    """``order``: rows, rank after rank; ``micro_batch_indices``: [begin, end) of each micro-batch in a rank's rows, the same on
    all ranks; ``micro_batch_lengths``: how wide each is."""

    def __init__(self, order: list[int], indices: list[list[int]], lengths: list[int]):
        self.order, self.micro_batch_indices, self.micro_batch_lengths = order, indices, lengths

    @property
    def padded_tokens(self) -> int:
        """Rows times width, over the micro-batches of one rank."""
        return sum((end - begin) * width
                   for (begin, end), width in zip(self.micro_batch_indices, self.micro_batch_lengths))


def _cuts(widths: np.ndarray, most: int) -> list[int]:
    """Ends of runs of ascending widths, each run's rows times its last width at most ``most``: fewest runs, then fewest tokens."""
    count = widths.size
    runs, tokens = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    begin = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        width = int(widths[end - 1])
        first = max(0, end - most // width)
        choices = tokens[first:end] + (end - np.arange(first, end)) * width
        fewest = runs[first:end] == np.min(runs[first:end])
        best = first + int(np.flatnonzero(fewest)[np.argmin(choices[fewest])])
        runs[end], tokens[end], begin[end] = runs[best] + 1, choices[best - first], best
    ends, at = [], count
    while at:
        ends.append(at)
        at = int(begin[at])
    return ends[::-1]


def dynamic_batches(lengths: Any, shards: int, max_tokens_per_microbatch: int, sequence_length_round: int = 1,
                    width: int | None = None) -> DynamicBatches:
    """Rows of one global batch to ranks and micro-batches. There must be a multiple of ``shards`` of them. A row counts as its
    length rounded up to ``sequence_length_round``, but never more than ``width``, the columns of the batch."""
    sizes = as_array(lengths, np.int64, "lengths")
    if shards < 1 or sizes.size % shards or not sizes.size:
        raise Refused(f"{sizes.size} rows cannot be dealt evenly to {shards} ranks")
    ascending = np.argsort(sizes, kind="stable")
    longest = sizes[ascending].reshape(-1, shards).max(1)  # of the rows that run side by side
    rounded = np.maximum(-(-longest // sequence_length_round) * sequence_length_round, 1)
    widths = rounded if width is None else np.minimum(rounded, width)
    if int(widths.max()) > max_tokens_per_microbatch:
        raise Refused(f"row {int(ascending[-1])} has {int(sizes.max())} tokens, {int(widths.max())} when rounded up; "
                      f"max_tokens_per_microbatch is {max_tokens_per_microbatch}")
    ends = _cuts(widths, max_tokens_per_microbatch)
    indices = [[begin, end] for begin, end in zip([0, *ends], ends)]
    order = ascending.reshape(-1, shards).T.ravel()
    return DynamicBatches(order.tolist(), indices, [int(widths[end - 1]) for end in ends])


def _shard(theirs: Any, batch: Any, shards: int, batch_size: int | None, arguments: Mapping[str, Any],
           **keywords: Any) -> tuple[list[Any], list[int]]:
    """``shard_by_batch_size`` with ``dynamic_batching_args``: rows in the planned order, cut by NeMo-RL's own method."""
    lengths = batch[arguments["input_lengths_key"]]
    sizes = as_array(lengths.cpu() if hasattr(lengths, "cpu") else lengths, np.int64, "input lengths")
    each = batch_size or sizes.size
    if sizes.size % each:
        raise Refused(f"{sizes.size} rows are no multiple of batch_size {each}")
    columns = int(batch[arguments["input_key"]].shape[1])
    chunks = [dynamic_batches(sizes[begin:begin + each], shards, arguments["max_tokens_per_microbatch"],
                              arguments["sequence_length_round"], columns) for begin in range(0, sizes.size, each)]
    order = [i + n * each for n, chunk in enumerate(chunks) for i in chunk.order]
    parts = theirs(batch.select_indices(order), shards, batch_size, **keywords)
    for part in parts:
        part.micro_batch_indices = [chunk.micro_batch_indices for chunk in chunks]
        part.micro_batch_lengths = [chunk.micro_batch_lengths for chunk in chunks]
    return parts, order


def install(batched_data_dict: Any = None) -> None:
    """Puts :func:`dynamic_batches` behind ``BatchedDataDict.shard_by_batch_size`` (of the class given, or NeMo-RL's); calls
    without ``dynamic_batching_args`` are NeMo-RL's as before."""
    if batched_data_dict is None:
        batched_data_dict = importlib.import_module("nemo_rl.distributed.batched_data_dict").BatchedDataDict
    theirs = batched_data_dict.shard_by_batch_size
    if getattr(theirs, "_ravel", False):
        return

    @functools.wraps(theirs)
    def shard_by_batch_size(self: Any, shards: int, batch_size: int | None = None, *arguments: Any, **keywords: Any) -> Any:
        dynamic = keywords.pop("dynamic_batching_args", None)
        if dynamic is None or arguments or keywords.get("sequence_packing_args") is not None:
            if dynamic is not None:
                keywords["dynamic_batching_args"] = dynamic
            return theirs(self, shards, batch_size, *arguments, **keywords)
        return _shard(theirs, self, shards, batch_size, dynamic, **keywords)

    shard_by_batch_size._ravel = True  # type: ignore[attr-defined]
    batched_data_dict.shard_by_batch_size = shard_by_batch_size
