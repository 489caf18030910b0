"""A data collator for Hugging Face models with variable-length attention: no padding, ``position_ids`` that restart.

The keys are those that ``flash_attention_2`` models take: ``input_ids, labels, position_ids, cu_seq_lens_q/k,
max_length_q/k``. Labels are not shifted (the models do that) and the first of each sample is ignored, so that nothing is
predicted across samples. Differences to ``DataCollatorWithFlattening``: slots can be aligned (``align``), and the
attention keywords are always there.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from .._batch import Field, Ragged, pack

__all__ = ["PackingCollator"]


class PackingCollator:
    """``collator([{"input_ids": [...], "labels": [...]}, ...])``. ``tensors`` is "np" or "pt"; ``return_seq_idx`` adds the
    number of each token's sample (-1 in padding)."""

    def __init__(self, tensors: str = "pt", ignore_index: int = -100, align: int = 1, pad_token_id: int = 0,
                 return_seq_idx: bool = False):
        if tensors not in ("np", "pt"):
            raise ValueError(f"tensors is {tensors!r}; it must be np or pt")
        self.tensors, self.ignore_index, self.align, self.pad_token_id = tensors, ignore_index, align, pad_token_id
        self.return_seq_idx = return_seq_idx

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        rows = [np.asarray(f["input_ids"], dtype=np.int64) for f in features]
        labels = [np.array(f.get("labels", f["input_ids"]), dtype=np.int64) for f in features]
        for row, label in zip(rows, labels):
            if row.shape != label.shape:
                raise ValueError(f"a sample has {row.size} input_ids and {label.size} labels")
            label[:1] = self.ignore_index
        store = Ragged([row.size for row in rows], input_ids=Field("input_ids", rows, pad=self.pad_token_id),
                       labels=Field("labels", labels, pad=self.ignore_index))
        batch = pack(store, np.arange(len(rows), dtype=np.int32), align=self.align, segments=self.return_seq_idx)
        arrays: dict[str, Any] = {"input_ids": batch["input_ids"][None], "labels": batch["labels"][None],
                                  "position_ids": batch["positions"].astype(np.int64)[None],
                                  "cu_seq_lens_q": batch["cu_seqlens_padded"], "cu_seq_lens_k": batch["cu_seqlens_padded"]}
        if self.return_seq_idx:
            arrays["seq_idx"] = batch["segments"][None] - 1
        if self.tensors == "pt":
            import torch
            arrays = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        return {**arrays, "max_length_q": batch.max_seqlen, "max_length_k": batch.max_seqlen}
