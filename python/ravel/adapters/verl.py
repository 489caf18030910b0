"""The shapes of ``verl.utils.seqlen_balancing``.

Differences: the budget of a micro-batch is never exceeded (an error names a sequence that is longer than it, on every
rank of the group), and where there are fewer sequences than micro-batches the rest are empty lists rather than a failed
assertion.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

from .._plan import plan

__all__ = ["get_micro_batch_indices", "get_reverse_idx", "get_seqlen_balanced_partitions", "rearrange_micro_batches",
           "restore_order"]

_FAILED = 1 << 40  # a count that says: this rank could not plan


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
    """The largest count over the ranks of a torch.distributed group; where torch.distributed is not in use, this rank's."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return count
    import torch

    value = torch.tensor([count], dtype=torch.int64)
    if dist.get_backend(group) == "nccl":
        value = value.cuda()
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return int(value.item())


def get_micro_batch_indices(seqlens: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None, use_dynamic_bsz_balance: bool = True,
                            cost: Any = None) -> list[list[int]]:
    """Index lists of this rank's micro-batches, each at most ``max_token_len`` tokens.

    Where torch.distributed is initialised and ``same_micro_num_in_dp`` is set, all ranks of ``dp_group`` (None: all) get
    the same number of them. ``use_dynamic_bsz_balance`` puts small micro-batches at both ends, for pipelines; ``cost``
    is as in :func:`ravel.plan`.
    """
    lengths = np.asarray(seqlens, dtype=np.int64)
    options: dict[str, Any] = {"budget": max_token_len, "multiple": num_batches_divided_by or 1, "cost": cost,
                               "sync": "pipeline" if use_dynamic_bsz_balance else "update"}
    failure: Exception | None = None
    count = _FAILED
    try:
        done = plan(lengths, min_micro_steps=min_num_micro_batch or 0, **options)
        count = len(done)
    except Exception as exception:  # the others wait for this rank's count: they get it, then this is raised
        failure = exception
    most = _most(count, dp_group) if same_micro_num_in_dp else count
    if failure is not None:
        raise failure
    if most >= _FAILED:
        raise RuntimeError("another rank of the data-parallel group could not plan its micro-batches; see its error")
    if most != count:
        done = plan(lengths, min_micro_steps=most, **options)
    return [sorted(map(int, part)) for part in done.bins]


def rearrange_micro_batches(batch: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None,
                            use_dynamic_bsz_balance: bool = True) -> tuple[list[Any], list[list[int]]]:
    """Cuts a batch (anything with ``batch["attention_mask"]`` and row indexing, such as a TensorDict) into micro-batches.

    Returns the micro-batches and their index lists; put results back with :func:`restore_order`.
    """
    seqlens = batch["attention_mask"].sum(-1)
    seqlens = np.asarray(seqlens.cpu() if hasattr(seqlens, "cpu") else seqlens).reshape(-1)
    indices = get_micro_batch_indices(seqlens, max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp,
                                      min_num_micro_batch, use_dynamic_bsz_balance)
    return [batch[index] for index in indices], indices


def restore_order(indices: Sequence[Sequence[int]]) -> np.ndarray:
    """Positions that put the concatenated results of the micro-batches back into the batch's order."""
    flat = np.fromiter((i for part in indices for i in part), np.int64)
    order = np.empty_like(flat)
    order[flat] = np.arange(flat.size)
    return order


def get_reverse_idx(idx_map: Sequence[int]) -> list[int]:
    """The inverse of a permutation: ``reverse[idx_map[i]] == i``."""
    return restore_order([idx_map]).tolist()
