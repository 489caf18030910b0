"""The shapes of ``verl.utils.seqlen_balancing``.

Differences: the budget of a micro-batch is never exceeded (an error names a sequence that is longer than it), and where
there are fewer sequences than micro-batches the rest are empty lists rather than a failed assertion.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .._plan import plan

__all__ = ["get_seqlen_balanced_partitions", "get_micro_batch_indices", "rearrange_micro_batches"]


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Indices of the sequences, dealt to ``k_partitions`` so that token sums are even; each list is sorted.

    With ``equal_size`` every partition has the same number of sequences, and there must be a multiple of
    ``k_partitions`` of them.
    """
    lengths = np.asarray(seqlen_list, dtype=np.int64)
    if k_partitions < 1:
        raise ValueError(f"k_partitions is {k_partitions}; it must be 1 or more")
    if lengths.size < k_partitions:
        raise ValueError(f"{lengths.size} sequences cannot be dealt to {k_partitions} partitions")
    if equal_size and lengths.size % k_partitions:
        raise ValueError(f"{lengths.size} sequences are no multiple of {k_partitions} partitions")
    done = plan(lengths, budget=int(lengths.sum()), dp=k_partitions, sync="update", cost="tokens", effort="max",
                max_samples=lengths.size // k_partitions if equal_size else 0)
    return [sorted(map(int, part)) for part in done.bins]


def _most(count: int, group: Any) -> int:
    """The largest count over the ranks of a torch.distributed group."""
    import torch
    import torch.distributed as dist

    value = torch.tensor([count])
    if dist.get_backend(group) == "nccl":
        value = value.cuda()
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return int(value.item())


def get_micro_batch_indices(seqlens: Sequence[int], max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None) -> list[list[int]]:
    """Index lists of this rank's micro-batches, each at most ``max_token_len`` tokens.

    With ``dp_group`` (torch.distributed) and ``same_micro_num_in_dp`` all its ranks get the same number of them.
    """
    lengths = np.asarray(seqlens, dtype=np.int64)
    least, multiple = min_num_micro_batch or 0, num_batches_divided_by or 1
    options: dict[str, Any] = {"budget": max_token_len, "multiple": multiple}
    done = plan(lengths, min_micro_steps=least, **options)
    if dp_group is not None and same_micro_num_in_dp:
        most = _most(len(done), dp_group)
        if most != len(done):
            done = plan(lengths, min_micro_steps=most, **options)
    return [sorted(map(int, part)) for part in done.bins]


def rearrange_micro_batches(batch: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None) -> tuple[list[Any], list[list[int]]]:
    """Cuts a batch (anything with ``batch["attention_mask"]`` and row indexing, such as a TensorDict) into micro-batches.

    Returns the micro-batches and their index lists; put results back with ``restore_order``.
    """
    seqlens = np.asarray(batch["attention_mask"].sum(-1)).reshape(-1)
    indices = get_micro_batch_indices(seqlens, max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp,
                                      min_num_micro_batch)
    return [batch[index] for index in indices], indices


def restore_order(indices: Sequence[Sequence[int]]) -> np.ndarray:
    """Positions that put the concatenated results of the micro-batches back into the batch's order."""
    flat = np.fromiter((i for part in indices for i in part), np.int64)
    order = np.empty_like(flat)
    order[flat] = np.arange(flat.size)
    return order
