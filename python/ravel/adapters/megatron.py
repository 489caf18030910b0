"""The shapes of Megatron core: a scheduler in the place of ``DpBalancedScheduler``, and ``PackedSeqParams`` fields.

Differences: micro-batches are balanced by cost instead of packed in the order of arrival, and where there are fewer
samples than ranks the rest of the ranks get empty lists (a filler) instead of a failed assertion. A sample that is longer
than a micro-batch is an error that names it.

In Megatron itself the class goes in front of its own, which then runs everything else:

    class Scheduler(RavelScheduler, DpBalancedScheduler): pass
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from .._batch import Batch
from .._plan import plan

__all__ = ["RavelScheduler", "packed_seq_params"]


class RavelScheduler:
    """Takes the constructor arguments of Megatron's schedulers, and any planner option by keyword."""

    def __init__(self, max_seqlen_per_dp_cp_rank: int, cp_size: int, dp_size: int,
                 microbatch_group_size_per_vp_stage: int | None = None, max_num_seqs: int | None = None, *,
                 cost: Any = None, **options: Any):
        self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = max_seqlen_per_dp_cp_rank, cp_size, dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs, self.cost, self.options = max_num_seqs, cost, options
        self.max_seq_len_all_ranks, self.is_dynamic_cp = max_seqlen_per_dp_cp_rank * cp_size, False
        self.digest: str | None = None  # of the last plan: compare it over ranks before samples move

    def get_groups_and_subsamples(self, sample_id_seqlens: Iterable[tuple[int, int]]) -> list[list[list[int]]]:
        """For each micro-batch, for each of the dp x cp ranks, its sample ids; ranks of one cp group have the same."""
        pairs = list(sample_id_seqlens)
        ids = np.fromiter((p[0] for p in pairs), np.int64, len(pairs))
        lengths = np.fromiter((p[1] for p in pairs), np.int64, len(pairs))
        done = plan(lengths, budget=self.max_seqlen_per_dp_cp_rank, cp=self.cp_size, dp=self.dp_size,
                    multiple=self.microbatch_group_size_per_vp_stage or 1, max_samples=self.max_num_seqs or 0,
                    cost=self.cost, **self.options)
        self.digest = done.digest
        bins = done.bins
        return [[ids[bins[step * self.dp_size + rank // self.cp_size]].tolist()
                 for rank in range(self.dp_size * self.cp_size)] for step in range(len(done))]


def packed_seq_params(batch: Batch) -> dict[str, Any]:
    """The keyword arguments of ``PackedSeqParams`` for a packed micro-batch (host arrays; move them where they go)."""
    return {"qkv_format": "thd", "cu_seqlens_q": batch.cu_seqlens, "cu_seqlens_kv": batch.cu_seqlens,
            "cu_seqlens_q_padded": batch.cu_seqlens_padded, "cu_seqlens_kv_padded": batch.cu_seqlens_padded,
            "max_seqlen_q": batch.max_seqlen, "max_seqlen_kv": batch.max_seqlen}
