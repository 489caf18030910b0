"""The shapes of ``verl.utils.seqlen_balancing``.

Differences: the budget of a micro-batch is never exceeded (an error names a sequence that is longer than it, on every
rank of the group), and where there are fewer sequences than micro-batches the rest are empty lists rather than a failed
assertion. What is wrong is a ``ValueError`` or ``TypeError`` with a sentence, where verl asserts.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

from .._lib import as_array
from .._plan import plan
from ._bins import fill_empty

__all__ = ["get_micro_batch_indices", "get_reverse_idx", "get_seqlen_balanced_partitions", "prepare_dynamic_batch",
           "rearrange_micro_batches", "restore_dynamic_batch", "restore_order"]

WORKLOAD = (24576, 1)  # verl's cost of a sequence: 24576 * length + length ** 2

_FAILED = 1 << 40  # a count that says: this rank could not plan


def _integers(values: Any, what: str) -> np.ndarray:
    """A list, an array or a tensor wherever it is, as int64 on the host."""
    return as_array(values.detach().cpu() if hasattr(values, "cpu") else values, np.int64, what)


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Indices of the sequences, dealt to ``k_partitions`` so that their sums are even; each list is sorted, none is empty.

    ``seqlen_list`` are lengths or, as verl calls it today, workloads: any integers from 0 up. With ``equal_size`` every
    partition has the same number of sequences, and there must be a multiple of ``k_partitions`` of them.
    """
    sizes = _integers(seqlen_list, "seqlen_list")
    if k_partitions < 1:
        raise ValueError(f"k_partitions is {k_partitions}; it must be 1 or more")
    if sizes.size < k_partitions:
        raise ValueError(f"{sizes.size} sequences cannot be dealt to {k_partitions} partitions")
    if equal_size and sizes.size % k_partitions:
        raise ValueError(f"{sizes.size} sequences are no multiple of {k_partitions} partitions")
    each = sizes.size // k_partitions if equal_size else 0
    done = plan(np.ones(sizes.size, np.int64), costs=sizes, budget=sizes.size, dp=k_partitions, sync="update",
                max_samples=each)
    return [sorted(part.tolist()) for part in done.bins]


def _device_of(group: Any, dist: Any) -> Any:
    """Where a tensor must be for this group's collectives."""
    import torch

    backend = str(dist.get_backend(group))
    if backend in ("gloo", "mpi", "ucc") or "cpu:" in backend:
        return "cpu"
    return torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else "cuda"


def _most(count: int, group: Any) -> int:
    """The largest count over the ranks of a torch.distributed group; where torch.distributed is not in use, this rank's."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return count
    import torch

    value = torch.tensor([count], dtype=torch.int64, device=_device_of(group, dist))
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return int(value.item())


def get_micro_batch_indices(seqlens: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None, use_dynamic_bsz_balance: bool = True,
                            cost: Any = WORKLOAD, layout: str = "packed") -> list[list[int]]:
    """Index lists of this rank's micro-batches, each at most ``max_token_len`` tokens.

    Where torch.distributed is initialised and ``same_micro_num_in_dp`` is set, all ranks of ``dp_group`` (None: all) get
    the same number of them. ``use_dynamic_bsz_balance`` puts small micro-batches at both ends, for pipelines. ``cost``
    is what is balanced, as in :func:`ravel.plan`; ``layout`` "padded" counts rows times the longest against the budget.
    """
    options: dict[str, Any] = {"budget": max_token_len, "multiple": num_batches_divided_by or 1, "cost": cost,
                               "layout": layout, "sync": "pipeline" if use_dynamic_bsz_balance else "update"}
    failure: Exception | None = None
    count = _FAILED
    try:
        lengths = _integers(seqlens, "seqlens")
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
    return fill_empty([sorted(part.tolist()) for part in done.bins])


def _seqlens(batch: Any) -> Any:
    """The real length of every row: of nested ``input_ids``, else what ``attention_mask`` adds up to."""
    ids: Any = batch["input_ids"] if "input_ids" in batch.keys() else None
    return ids.offsets().diff() if getattr(ids, "is_nested", False) else batch["attention_mask"].sum(-1)


def _rows(batch: Any, index: list[int]) -> Any:
    """Rows of a TensorDict. Inside verl its own selection is used, which knows nested tensors too."""
    tools = sys.modules.get("verl.utils.tensordict_utils")
    return batch[index] if tools is None else tools.index_select_tensor_dict(batch, index)


def rearrange_micro_batches(batch: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None,
                            use_dynamic_bsz_balance: bool = True) -> tuple[list[Any], list[list[int]]]:
    """Cuts a batch into micro-batches. It is anything with ``batch["attention_mask"]`` (or nested ``input_ids``),
    ``keys()`` and row indexing, such as a TensorDict.

    Returns the micro-batches and their index lists; put results back with :func:`restore_dynamic_batch`.
    """
    indices = get_micro_batch_indices(_seqlens(batch), max_token_len, dp_group, num_batches_divided_by,
                                      same_micro_num_in_dp, min_num_micro_batch, use_dynamic_bsz_balance)
    return [_rows(batch, index) for index in indices], indices


def prepare_dynamic_batch(data: Any, max_token_len: int, dp_group: Any = None, same_micro_num_in_dp: bool = True,
                          padding_mode: Any = "remove_padding", **kwargs: Any) -> tuple[list[Any], list[list[int]]]:
    """The same for a ``DataProto`` (anything with ``data.batch`` and ``data.select_idxs``).

    ``padding_mode`` is a member of verl's ``PaddingMode`` or its name: with "remove_padding" the sum of real lengths
    counts against the budget, with "truncate_padding" rows times the longest row of the micro-batch, with
    "max_sequence_length_padding" rows times the width of the batch. Further keywords are those of
    :func:`get_micro_batch_indices`.
    """
    mode = str(getattr(padding_mode, "name", padding_mode)).lower()
    lengths = _integers(_seqlens(data.batch), "seqlens")
    if mode == "max_sequence_length_padding":
        lengths = np.full_like(lengths, data.batch["input_ids"].shape[-1])
    elif mode not in ("remove_padding", "truncate_padding"):
        raise ValueError(f"padding_mode is {mode!r}; it must be remove_padding, truncate_padding or "
                         f"max_sequence_length_padding")
    indices = get_micro_batch_indices(lengths, max_token_len, dp_group, same_micro_num_in_dp=same_micro_num_in_dp,
                                      layout="padded" if mode == "truncate_padding" else "packed", **kwargs)
    return [data.select_idxs(index) for index in indices], indices


def restore_dynamic_batch(data: Any, batch_idx_list: Sequence[Sequence[int]]) -> Any:
    """The concatenated results of the micro-batches (an array or a tensor, nested too) in the batch's order."""
    order = restore_order(batch_idx_list)
    if len(order) != data.shape[0]:
        raise ValueError(f"the index lists name {len(order)} rows; the data has {data.shape[0]}")
    if getattr(data, "is_nested", False):
        import torch

        rows = data.unbind()
        return torch.nested.as_nested_tensor([rows[i] for i in order], layout=torch.jagged)
    return data[order]


def restore_order(indices: Sequence[Sequence[int]]) -> np.ndarray:
    """Positions that put the concatenated results of the micro-batches back into the batch's order."""
    flat = np.fromiter((i for part in indices for i in part), np.int64)
    order = np.empty_like(flat)
    order[flat] = np.arange(flat.size)
    return order


def get_reverse_idx(idx_map: Sequence[int]) -> list[int]:
    """The inverse of a permutation: ``reverse[idx_map[i]] == i``."""
    return restore_order([idx_map]).tolist()
