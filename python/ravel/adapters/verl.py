"""The shapes of ``verl.utils.seqlen_balancing`` (read at release 0.9.1), and one call that switches verl over:

    import ravel.adapters.verl; ravel.adapters.verl.install()

As in verl, the budget of a micro-batch is never exceeded, no micro-batch is empty, and what makes that impossible is a
``ValueError`` on every rank of ``dp_group``. Differences: the rank whose row or group is too large names it; micro-batches are
planned at once instead of one more at a time, so there are fewer of them and the ranks talk once or twice instead of three
times and more.

With ``install(share_prefix=True)`` answers to a prompt go to one rank and into micro-batches together, the budget counts a token that
they share once, and the FSDP engine's model computes it once (:mod:`.verl_trees`, :mod:`.tree_rows`).
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, Sequence

import numpy as np

from .._abi import RAVEL_E_OVERSIZE
from .._lib import OversizeError, as_array, host_array
from .._plan import plan
from .._tree import tree_order
from ._bins import fill_empty
from ._switch import Refused, put

__all__ = ["calculate_workload", "ceildiv", "get_group_balanced_partitions", "get_micro_batch_indices", "get_reverse_idx",
           "get_seqlen_balanced_partitions", "install", "log_seqlen_unbalance", "prepare_dynamic_batch",
           "rearrange_micro_batches", "restore_dynamic_batch", "restore_order", "roundup_divisible"]

WORKLOAD = (24576, 1)  # verl's cost of a sequence: 24576 * length + length ** 2


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _host(values: Any, what: str) -> np.ndarray:
    """A list (of numbers or of tensors), an array or a tensor wherever it is, on the host."""
    if isinstance(values, (list, tuple)) and values and hasattr(values[0], "item"):
        values = [v.item() for v in values]
    return host_array(values.detach().cpu() if hasattr(values, "cpu") else values, what)


def _lengths(values: Any, what: str) -> np.ndarray:
    """Whole numbers. A row whose mask is all zeros still takes a place, so it counts as one token."""
    found: np.ndarray = np.maximum(as_array(_host(values, what), np.int64, what), 1)
    return found


def _workloads(values: Any, what: str) -> np.ndarray:
    """Workloads as integers. Floats that are whole numbers below 2^53 are taken as they are; others are multiplied by the
    power of two that brings the largest into 2^40 .. 2^41, and rounded to even."""
    array = _host(values, what)
    if array.dtype.kind != "f":
        return as_array(array, np.int64, what)
    if array.ndim != 1 or not np.all(np.isfinite(array)) or np.any(array < 0):
        raise Refused(f"{what} must be one dimension of finite numbers from 0 up")
    wide = array.astype(np.float64)
    largest = float(np.max(wide, initial=0))
    if largest < 2**53 and np.array_equal(wide, np.rint(wide)):
        return wide.astype(np.int64)
    return np.rint(np.ldexp(wide, 41 - int(np.frexp(largest)[1]))).astype(np.int64)


def calculate_workload(seqlen_list: Any) -> Any:
    """24576 * length + length ** 2, of a tensor, an array or a number."""
    return WORKLOAD[0] * seqlen_list + WORKLOAD[1] * seqlen_list**2


def ceildiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def roundup_divisible(a: int, b: int) -> int:
    """The least multiple of b that is not below a."""
    return ceildiv(a, b) * b


# ---- partitions ------------------------------------------------------------------------------------------------------


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Indices of the sequences, dealt to ``k_partitions`` so that their sums are even; each list is sorted, none is empty.

    ``seqlen_list`` are lengths or, as verl calls it today, workloads: integers or finite floats from 0 up, in a list, an
    array or a tensor. With ``equal_size`` every partition has the same number of sequences, and there must be a multiple
    of ``k_partitions`` of them.
    """
    sizes = _workloads(seqlen_list, "seqlen_list")
    if k_partitions < 1:
        raise Refused(f"k_partitions is {k_partitions}; it must be 1 or more")
    if sizes.size < k_partitions:
        raise Refused(f"{sizes.size} sequences cannot be dealt to {k_partitions} partitions")
    if equal_size and sizes.size % k_partitions:
        raise Refused(f"{sizes.size} sequences are no multiple of {k_partitions} partitions")
    each = sizes.size // k_partitions if equal_size else 0
    done = plan(np.ones(sizes.size, np.int64), costs=sizes, budget=sizes.size, dp=k_partitions, sync="update",
                max_samples=each)
    return [sorted(part.tolist()) for part in done.bins]


def get_group_balanced_partitions(seqlen_list: Any, uid_list: Sequence[Any], k_partitions: int) -> list[list[int]]:
    """The same for groups: neighbours with the same uid stay together, every partition gets the same number of groups."""
    lengths = _lengths(seqlen_list, "seqlen_list")
    uids = list(uid_list)
    if len(uids) != lengths.size:
        raise Refused(f"there are {lengths.size} lengths and {len(uids)} uids")
    begins = [i for i in range(len(uids)) if i == 0 or uids[i] != uids[i - 1]]
    if len(begins) < k_partitions:
        raise Refused(f"{len(begins)} groups cannot be dealt to {k_partitions} partitions; give more prompts or fewer ranks")
    work = np.add.reduceat(calculate_workload(lengths), begins)
    ends = [*begins[1:], len(uids)]
    return [sorted(i for g in part for i in range(begins[g], ends[g]))
            for part in get_seqlen_balanced_partitions(work, k_partitions, equal_size=True)]


def log_seqlen_unbalance(seqlen_list: Any, partitions: Sequence[Sequence[int]], prefix: str) -> dict[str, Any]:
    """Least and largest sum of lengths over ranks, as the batch came (runs of equal count) and as it was dealt."""
    lengths = _host(seqlen_list, "seqlen_list")
    each = max(1, lengths.size // len(partitions))
    before = np.add.reduceat(lengths, np.arange(0, lengths.size, each))
    after = [lengths[list(part)].sum() for part in partitions]
    figures = {"min": before.min(), "max": before.max(), "minmax_diff": before.max() - before.min(),
               "balanced_min": min(after), "balanced_max": max(after), "mean": lengths.sum() / len(partitions)}
    return {f"{prefix}/{name}": value.item() for name, value in figures.items()}


# ---- micro-batches ---------------------------------------------------------------------------------------------------


def _device_of(group: Any, dist: Any) -> Any:
    """Where a tensor must be for this group's collectives."""
    import torch

    backend = str(dist.get_backend(group))
    if backend in ("gloo", "mpi", "ucc") or "cpu:" in backend:
        return "cpu"
    return torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else "cuda"


def _largest(values: list[int], group: Any) -> list[int]:
    """The largest of each number over the ranks of a torch.distributed group; without a group, this rank's."""
    dist = sys.modules.get("torch.distributed")
    if group is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return values
    import torch

    found = torch.tensor(values, dtype=torch.int64, device=_device_of(group, dist))
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return [int(value) for value in found.tolist()]


class _Rows:
    """Rows, or groups of neighbouring rows that stay together, as the samples of a plan."""

    def __init__(self, seqlens: Any, group_size: int, budget: int, layout: str, oversize: str, tree: Any = None):
        lengths = _lengths(seqlens, "seqlens")
        self.tree: dict[str, Any] = {} if tree is None else tree._asdict()
        if tree is not None and (group_size > 1 or layout != "packed" or oversize != "error"):
            raise Refused("trees need layout packed, no force_group_size and oversize error")
        if group_size < 1 or lengths.size % group_size:
            raise Refused(f"{lengths.size} rows are no multiple of force_group_size {group_size}")
        if oversize not in ("error", "alone"):
            raise Refused(f"oversize is {oversize!r}; it must be error or alone")
        if layout != "packed" and group_size > 1:
            raise Refused("groups that stay together need layout packed")
        self.size = group_size
        groups = lengths.reshape(-1, group_size)
        self.costs = None if group_size == 1 else calculate_workload(groups).sum(1)
        self.lengths = groups.sum(1)
        if oversize == "alone":
            self.lengths = np.minimum(self.lengths, budget)  # it fills a micro-batch, so nothing joins it

    def refuse_larger(self, budget: int, longest: int) -> None:
        """An error on all ranks if a row or group of any of them is over the budget; ``longest`` is the largest of all."""
        if longest <= budget:
            return
        over = np.flatnonzero(self.lengths > budget)
        what, tokens = "a row or group of another rank", longest
        if over.size:
            first, tokens = int(over[0]), int(self.lengths[over[0]])
            what = f"row {first}" if self.size == 1 else \
                f"group {first} (rows {first * self.size} to {(first + 1) * self.size - 1})"
        raise OversizeError(RAVEL_E_OVERSIZE, f"{what} has {tokens} tokens, which exceeds max_token_len {budget}; raise it, or "
                            f"set oversize=\"alone\"")

    def rows(self, part: list[int]) -> list[int]:
        return [i for group in sorted(part) for i in range(group * self.size, (group + 1) * self.size)]


def get_micro_batch_indices(seqlens: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None, use_dynamic_bsz_balance: bool = True,
                            force_group_size: int = 1, *, cost: Any = WORKLOAD, layout: str = "packed",
                            oversize: str = "error", tree: Any = None) -> list[list[int]]:
    """Index lists of this rank's micro-batches, none empty, each at most ``max_token_len`` tokens.

    With a ``dp_group`` of torch.distributed and ``same_micro_num_in_dp``, all its ranks get the same number of them;
    without one nothing is communicated. ``use_dynamic_bsz_balance`` puts small micro-batches at both ends, for pipelines.
    ``force_group_size`` rows in a row stay together. What is larger than the budget is an error on every rank, or alone in
    its micro-batch with ``oversize="alone"``; more micro-batches than a rank has rows (or groups) are an error on every
    rank. ``cost`` is what is balanced, as in :func:`ravel.plan`; ``layout`` "padded" counts rows times the longest against
    the budget. ``tree`` (of :func:`ravel.tree_order`): what the rows share; the budget counts it once per micro-batch.
    """
    group = dp_group if same_micro_num_in_dp else None
    options: dict[str, Any] = {"budget": max_token_len, "multiple": num_batches_divided_by or 1, "cost": cost,
                               "layout": layout, "sync": "pipeline" if use_dynamic_bsz_balance else "update"}
    failure: Exception | None = None
    failed, longest, groups = 0, 0, 0
    try:
        rows = _Rows(seqlens, force_group_size, max_token_len, layout, oversize, tree)
        longest, groups = int(rows.lengths.max(initial=0)), rows.lengths.size
        done = None if longest > max_token_len else plan(rows.lengths, costs=rows.costs,
                                                         min_micro_steps=min_num_micro_batch or 0, **rows.tree, **options)
    except Exception as exception:  # the others wait for this rank: they hear of it, then it is raised
        failure, failed = exception, 1
    count = 0 if failed or done is None else len(done)
    failed, longest, groups, most = _largest([failed, longest, -groups, count], group)
    if failure is not None:
        raise failure
    if failed:
        raise Refused("another rank of the data-parallel group could not plan its micro-batches; see its error")
    rows.refuse_larger(max_token_len, longest)
    if most > -groups:
        raise Refused(f"{most} micro-batches are needed and a rank has {-groups} rows (or groups of force_group_size rows), "
                      f"but none may be empty; raise max_token_len or lower min_num_micro_batch")
    assert done is not None  # no rank is over the budget
    if most != count:
        done = plan(rows.lengths, costs=rows.costs, min_micro_steps=most, **rows.tree, **options)
    return [rows.rows(part) for part in fill_empty([part.tolist() for part in done.bins])]


def _seqlens(batch: Any) -> Any:
    """The real length of every row: of nested ``input_ids``, else what ``attention_mask`` adds up to."""
    ids: Any = batch["input_ids"] if "input_ids" in batch.keys() else None
    return ids.offsets().diff() if getattr(ids, "is_nested", False) else batch["attention_mask"].sum(-1)


def _tree(batch: Any) -> Any:
    """What the rows of a batch share, from their ids: nested ones, or padded ones with a mask."""
    ids = batch["input_ids"]
    if getattr(ids, "is_nested", False):
        rows = [_host(row, "input_ids") for row in ids.unbind()]
    else:
        mask = _host(batch["attention_mask"], "attention_mask") != 0
        rows = [row[keep] for row, keep in zip(_host(ids, "input_ids"), mask)]
    return tree_order([row if row.size else np.full(1, -1) for row in rows])


def _rows(batch: Any, index: list[int]) -> Any:
    """Rows of a TensorDict. Inside verl its own selection is used, which knows nested tensors too."""
    tools = sys.modules.get("verl.utils.tensordict_utils")
    return batch[index] if tools is None else tools.index_select_tensor_dict(batch, index)


def rearrange_micro_batches(batch: Any, max_token_len: int, dp_group: Any = None,
                            num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                            min_num_micro_batch: int | None = None, use_dynamic_bsz_balance: bool = True,
                            force_group_size: int = 1, *,
                            oversize: str = "error", trees: bool = False) -> tuple[list[Any], list[list[int]]]:
    """Cuts a batch into micro-batches. It is anything with ``batch["attention_mask"]`` (or nested ``input_ids``),
    ``keys()`` and row indexing, such as a TensorDict. The arguments are those of :func:`get_micro_batch_indices`.

    Returns the micro-batches and their index lists; put results back with :func:`restore_dynamic_batch`.
    """
    indices = get_micro_batch_indices(_seqlens(batch), max_token_len, dp_group, num_batches_divided_by,
                                      same_micro_num_in_dp, min_num_micro_batch, use_dynamic_bsz_balance,
                                      force_group_size, oversize=oversize, tree=_tree(batch) if trees else None)
    return [_rows(batch, index) for index in indices], indices


def _select(data: Any, index: list[int]) -> Any:
    """Rows of a ``DataProto``, with a ``meta_info`` of their own."""
    part = data.select_idxs(index)
    if getattr(data, "meta_info", None) is not None:
        part.meta_info = copy.deepcopy(data.meta_info)
    return part


def prepare_dynamic_batch(data: Any, max_token_len: int, dp_group: Any = None,
                          num_batches_divided_by: int | None = None, same_micro_num_in_dp: bool = True,
                          min_num_micro_batch: int | None = None, use_dynamic_bsz_balance: bool = True, *,
                          padding_mode: Any = "remove_padding", trees: bool = False,
                          **kwargs: Any) -> tuple[list[Any], list[list[int]]]:
    """The same for a ``DataProto`` (anything with ``data.batch`` and ``data.select_idxs``); each micro-batch has a copy of
    ``meta_info``.

    ``padding_mode`` is a member of verl's ``PaddingMode`` or its name: with "remove_padding" the sum of real lengths
    counts against the budget, with "truncate_padding" rows times the longest row of the micro-batch, with
    "max_sequence_length_padding" rows times the width of the batch. Further keywords are those of
    :func:`get_micro_batch_indices`.
    """
    mode = str(getattr(padding_mode, "name", padding_mode)).lower()
    lengths = _lengths(_seqlens(data.batch), "seqlens")
    if mode == "max_sequence_length_padding":
        lengths = np.full_like(lengths, data.batch["input_ids"].shape[-1])
    elif mode not in ("remove_padding", "truncate_padding"):
        raise Refused(f"padding_mode is {mode!r}; it must be remove_padding, truncate_padding or "
                      f"max_sequence_length_padding")
    indices = get_micro_batch_indices(lengths, max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp,
                                      min_num_micro_batch, use_dynamic_bsz_balance,
                                      layout="padded" if mode == "truncate_padding" else "packed",
                                      tree=_tree(data.batch) if trees and mode == "remove_padding" else None, **kwargs)
    return [_select(data, index) for index in indices], indices


def restore_dynamic_batch(data: Any, batch_idx_list: Sequence[Sequence[int]]) -> Any:
    """The concatenated results of the micro-batches (an array or a tensor, nested too) in the batch's order."""
    order = restore_order(batch_idx_list)
    if len(order) != data.shape[0]:
        raise Refused(f"the index lists name {len(order)} rows; the data has {data.shape[0]}")
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
    return [int(i) for i in restore_order([idx_map])]


_SWITCHED = ("get_seqlen_balanced_partitions", "get_group_balanced_partitions", "rearrange_micro_batches",
             "prepare_dynamic_batch", "restore_dynamic_batch", "get_reverse_idx", "log_seqlen_unbalance",
             "calculate_workload")


def install(module: Any = "verl.utils.seqlen_balancing", *, oversize: str = "error", share_prefix: bool = False) -> list[str]:
    """Puts these functions in the place of verl's, also where they were imported by name already. Returns the names that
    were replaced. Call it in every process, before engines and trainers are made. ``oversize="alone"`` lets a group
    (``force_group_size``) that is larger than the budget have a micro-batch of its own, as verl does. ``share_prefix``: what rows
    begin with alike is computed once."""
    if oversize not in ("error", "alone"):
        raise Refused(f"oversize is {oversize!r}; it must be error or alone")
    if oversize != "error" and share_prefix:
        raise Refused("share_prefix needs oversize error")
    found = {name: globals()[name] for name in _SWITCHED}
    options: dict[str, Any] = {"trees": True} if share_prefix else {"oversize": oversize}
    for name in ("rearrange_micro_batches", "prepare_dynamic_batch"):
        found[name] = functools.partial(found[name], **options)
    places = put(module, found)
    if share_prefix:
        from . import verl_trees

        places += verl_trees.install()
    return places
