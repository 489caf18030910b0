"""The shapes of Megatron core: a scheduler in the place of ``DpBalancedScheduler``, and ``PackedSeqParams`` fields.

Differences: micro-batches are balanced by cost instead of packed in the order of arrival, a sample that is longer than a
micro-batch is an error that names it, and where there are fewer samples than micro-batches the error says so (or, with
``fillers=True``, the rest are empty lists).

In Megatron itself the class goes in front of its own, which then runs everything else:

    from megatron.core.datasets import data_schedule

    class Scheduler(RavelScheduler, data_schedule.DpBalancedScheduler): pass
    data_schedule.scheduler_map["dp_balanced"] = Scheduler
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from .._batch import Batch
from .._lib import as_array
from .._plan import plan
from ._bins import fill_empty

__all__ = ["RavelScheduler", "packed_seq_params"]


class RavelScheduler:
    """Takes the constructor arguments of Megatron's schedulers, and any planner option by keyword.

    ``fillers`` says that the caller can run a micro-batch without samples; Megatron's own ``run`` cannot.
    """

    def __init__(self, max_seqlen_per_dp_cp_rank: int, cp_size: int, dp_size: int,
                 microbatch_group_size_per_vp_stage: int | None = None, max_num_seqs: int | None = None, *,
                 fillers: bool = False, cost: Any = None, **options: Any):
        theirs: Any = super().__init__
        if theirs.__qualname__ != "object.__init__":  # in front of Megatron's, whose releases differ in the last one
            last = () if max_num_seqs is None else (max_num_seqs,)
            theirs(max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage, *last)
        self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = max_seqlen_per_dp_cp_rank, cp_size, dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs, self.fillers, self.cost, self.options = max_num_seqs, fillers, cost, options
        self.max_seq_len_all_ranks, self.is_dynamic_cp = max_seqlen_per_dp_cp_rank * cp_size, False
        self.digest: str | None = None  # of the last plan: compare it over ranks before samples move

    def get_groups_and_subsamples(self, sample_id_seqlens: Iterable[tuple[int, int]]) -> list[list[list[int]]]:
        """For each micro-batch, for each of the dp x cp ranks, its sample ids; ranks of one cp group have the same."""
        pairs = list(sample_id_seqlens)
        ids = as_array([int(p[0]) for p in pairs], np.int64, "sample ids")
        lengths = as_array([p[1] for p in pairs], np.int64, "lengths")
        done = plan(lengths, budget=self.max_seqlen_per_dp_cp_rank, cp=self.cp_size, dp=self.dp_size,
                    multiple=self.microbatch_group_size_per_vp_stage or 1, max_samples=self.max_num_seqs or 0,
                    cost=self.cost, **self.options)
        bins = fill_empty([ids[part].tolist() for part in done.bins])
        if not self.fillers and not all(bins):
            raise ValueError(f"{len(pairs)} samples cannot fill {len(bins)} micro-batches ({len(done)} on each of "
                             f"{self.dp_size} data-parallel ranks); give more samples, or set fillers")
        self.digest = done.digest
        return [[bins[step * self.dp_size + rank // self.cp_size] for rank in range(self.dp_size * self.cp_size)]
                for step in range(len(done))]


def packed_seq_params(batch: Batch, device: Any = None) -> dict[str, Any]:
    """The keyword arguments of ``PackedSeqParams`` for a packed micro-batch: torch tensors on ``device`` ("cpu", "cuda",
    ...), or the batch's own numpy arrays where it is None."""
    real, slots = batch.cu_seqlens, batch.cu_seqlens_padded
    if device is not None:
        import torch

        real, slots = torch.from_numpy(real).to(device), torch.from_numpy(slots).to(device)
    return {"qkv_format": "thd", "cu_seqlens_q": real, "cu_seqlens_kv": real, "cu_seqlens_q_padded": slots,
            "cu_seqlens_kv_padded": slots, "max_seqlen_q": batch.max_seqlen, "max_seqlen_kv": batch.max_seqlen}
