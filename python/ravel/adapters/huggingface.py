"""A data collator for Hugging Face models with variable-length attention: no padding, ``position_ids`` that restart.

Arguments and keys are those of ``DataCollatorWithFlattening``: ``input_ids, labels, position_ids, cu_seq_lens_q/k,
max_length_q/k`` and ``seq_idx``. Labels are not shifted (the models do that) and the first of each sample is ignored, so
that nothing is predicted across samples. Differences: the attention keywords are there unless they are turned off, slots
can be aligned, and a row that holds several samples (``seq_lengths``, as :func:`ravel.adapters.trl.pack_dataset` and
TRL's own write it) is taken as several samples.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from .._batch import Field, Ragged, pack
from .._lib import as_array

__all__ = ["PackingCollator"]


def _labels(feature: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
    if feature.get("labels") is None:
        return ids
    labels = as_array(feature["labels"], np.int64, "labels")
    if labels.size != ids.size:
        raise ValueError(f"a sample has {ids.size} input_ids and {labels.size} labels")
    return labels


def _lengths(feature: Mapping[str, Any], ids: np.ndarray) -> list[int]:
    """Of the samples in one row: one, or as many as ``seq_lengths`` says."""
    if feature.get("seq_lengths") is None:
        return [ids.size]
    lengths = as_array(feature["seq_lengths"], np.int64, "seq_lengths")
    if int(lengths.sum()) != ids.size:
        raise ValueError(f"a row has {ids.size} input_ids; its seq_lengths add up to {int(lengths.sum())}")
    return lengths.tolist()


class PackingCollator:
    """``collator([{"input_ids": [...], "labels": [...]}, ...])``. ``return_tensors`` is "pt" or "np"; ``return_seq_idx``
    adds the number of each token's sample (-1 in padding); ``align`` rounds the slot of each sample up, filled with
    ``pad_token_id`` and labels that are ignored."""

    def __init__(self, return_tensors: str = "pt", *, return_position_ids: bool = True, separator_id: int = -100,
                 return_flash_attn_kwargs: bool = True, return_seq_idx: bool = False, position_ids_start: int = 0,
                 align: int = 1, pad_token_id: int = 0):
        self.return_tensors, self.separator_id, self.pad_token_id = return_tensors, separator_id, pad_token_id
        self.return_position_ids, self.position_ids_start = return_position_ids, position_ids_start
        self.return_flash_attn_kwargs, self.return_seq_idx = return_flash_attn_kwargs, return_seq_idx
        self.align = align
        self._check(return_tensors)

    def _check(self, tensors: str) -> None:
        if tensors not in ("np", "pt"):
            raise ValueError(f"return_tensors is {tensors!r}; it must be np or pt")

    def __call__(self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None,
                 separator_id: int | None = None) -> dict[str, Any]:
        tensors = return_tensors or self.return_tensors
        self._check(tensors)
        if not features:
            raise ValueError("there are no samples to collate")
        ignore = self.separator_id if separator_id is None else separator_id
        arrays, longest = self._pack(features, ignore)
        if tensors == "pt":
            import torch

            arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {**arrays, **longest}

    def _pack(self, features: Sequence[Mapping[str, Any]], ignore: int) -> tuple[dict[str, Any], dict[str, int]]:
        rows = [as_array(f["input_ids"], np.int64, "input_ids") for f in features]
        labels = np.concatenate([_labels(f, row) for f, row in zip(features, rows)])
        lengths = [n for f, row in zip(features, rows) for n in _lengths(f, row)]
        store = Ragged(lengths, input_ids=Field("input_ids", rows, pad=self.pad_token_id),
                       labels=Field("labels", labels, pad=ignore))
        labels[store.offsets[:-1]] = ignore  # the field is over the same memory
        batch = pack(store, np.arange(len(lengths), dtype=np.int32), align=self.align, segments=self.return_seq_idx)
        out: dict[str, Any] = {"input_ids": batch["input_ids"][None], "labels": batch["labels"][None]}
        if self.return_position_ids:
            out["position_ids"] = batch["positions"].astype(np.int64)[None] + self.position_ids_start
        if self.return_seq_idx:
            out["seq_idx"] = batch["segments"][None] - 1
        if not self.return_flash_attn_kwargs:
            return out, {}
        out["cu_seq_lens_q"] = out["cu_seq_lens_k"] = batch["cu_seqlens_padded"]
        return out, {"max_length_q": batch.max_seqlen, "max_length_k": batch.max_seqlen}
