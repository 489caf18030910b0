"""For the Trainer of transformers: packed rows, and a collator for models with variable-length attention.

    data = ravel.adapters.huggingface.pack_dataset(data, 4096)
    Trainer(..., train_dataset=data, data_collator=ravel.adapters.huggingface.PackingCollator())

Arguments and keys of the collator are those of ``DataCollatorWithFlattening`` (read at commit d56c55bf): ``input_ids, labels,
position_ids, cu_seq_lens_q/k, max_length_q/k`` and ``seq_idx``. Labels are not shifted (the models do that) and the first of
each sample is ignored, so that nothing is predicted across samples. Differences: the attention keywords are there unless they are
turned off, slots can be aligned, and a row that holds several samples is taken as several samples. What says so is
``seq_lengths`` or, since the Trainer drops columns that the model does not take (``remove_unused_columns``), ``position_ids`` that
start again. A row that looks packed and says nothing is refused: its samples would attend to each other.

:func:`install` puts the collator in the place of transformers' own, for code that makes that one by name.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

import numpy as np

from .._batch import Field, Ragged, pack
from .._lib import as_array
from . import trl
from ._switch import put

__all__ = ["FlatteningCollator", "PackingCollator", "install", "pack_dataset"]

pack_dataset = functools.partial(trl.pack_dataset, position_ids=True)
"""``ravel.adapters.trl.pack_dataset`` with ``position_ids``, which the Trainer does not drop."""


def _labels(feature: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
    if feature.get("labels") is None:
        return ids
    labels = as_array(feature["labels"], np.int64, "labels")
    if labels.size != ids.size:
        raise ValueError(f"a sample has {ids.size} input_ids and {labels.size} labels")
    return labels


def _looks_packed(ids: np.ndarray, labels: np.ndarray, ignore: int) -> bool:
    """Whether the row's last token is followed by its first one somewhere inside, as an end and a beginning of text are where
    samples meet, and every token is learnt (conversations have such places too, but their prompts are not)."""
    return bool(ids.size > 2 and np.any((ids[:-1] == ids[-1]) & (ids[1:] == ids[0])) and not np.any(labels == ignore))


class PackingCollator:
    """``collator([{"input_ids": [...], "labels": [...]}, ...])``. ``return_tensors`` is "pt" or "np"; ``return_seq_idx``
    adds the number of each token's sample (-1 in padding); ``align`` rounds the slot of each sample up, and
    ``pad_to_multiple_of`` the whole, filled with ``pad_token_id`` and labels that are ignored.

    ``packed`` says what the rows are. None: as many samples as ``seq_lengths`` or ``position_ids`` say, else one, and rows that
    look packed are refused; True: rows that say nothing are refused; False: every row is one sample."""

    def __init__(self, return_tensors: str = "pt", *, return_position_ids: bool = True, separator_id: int = -100,
                 return_flash_attn_kwargs: bool = True, return_seq_idx: bool = False, position_ids_start: int = 0,
                 align: int = 1, pad_to_multiple_of: int | None = None, pad_token_id: int = 0,
                 packed: bool | None = None):
        self.return_tensors, self.separator_id, self.pad_token_id = return_tensors, separator_id, pad_token_id
        self.return_position_ids, self.position_ids_start = return_position_ids, position_ids_start
        self.return_flash_attn_kwargs, self.return_seq_idx = return_flash_attn_kwargs, return_seq_idx
        self.align, self.pad_to_multiple_of, self.packed = align, pad_to_multiple_of, packed
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

    def _lengths(self, feature: Mapping[str, Any], ids: np.ndarray, labels: np.ndarray, ignore: int) -> list[int]:
        """Of the samples in one row."""
        if self.packed is not False and feature.get("seq_lengths") is not None:
            lengths = as_array(feature["seq_lengths"], np.int64, "seq_lengths")
            if int(lengths.sum()) != ids.size:
                raise ValueError(f"a row has {ids.size} input_ids; its seq_lengths add up to {int(lengths.sum())}")
            return list(lengths.tolist())
        if self.packed is not False and feature.get("position_ids") is not None:
            positions = as_array(feature["position_ids"], np.int64, "position_ids")
            if positions.size != ids.size:
                raise ValueError(f"a row has {ids.size} input_ids and {positions.size} position_ids")
            begins = np.flatnonzero(np.concatenate([[True], np.diff(positions) != 1])) if ids.size else np.zeros(1, np.int64)
            return list(np.diff(np.append(begins, ids.size)).tolist())
        if self.packed or (self.packed is None and _looks_packed(ids, labels, ignore)):
            raise ValueError(f"a row of {ids.size} tokens {'says' if self.packed else 'looks packed and says'} nothing about "
                             f"where its samples begin; keep its seq_lengths (remove_unused_columns=False) or position_ids "
                             f"(ravel.adapters.huggingface.pack_dataset writes them), or set packed=False where every row is "
                             f"one sample")
        return [ids.size]

    def _pack(self, features: Sequence[Mapping[str, Any]], ignore: int) -> tuple[dict[str, Any], dict[str, int]]:
        rows = [as_array(f["input_ids"], np.int64, "input_ids") for f in features]
        each = [_labels(f, row) for f, row in zip(features, rows)]
        lengths = [n for f, row, own in zip(features, rows, each) for n in self._lengths(f, row, own, ignore)]
        labels = np.concatenate(each)
        store = Ragged(lengths, input_ids=Field("input_ids", rows, pad=self.pad_token_id),
                       labels=Field("labels", labels, pad=ignore))
        labels[store.offsets[:-1]] = ignore  # the field is over the same memory
        batch = pack(store, np.arange(len(lengths), dtype=np.int32), align=self.align, segments=self.return_seq_idx,
                     total_multiple=int(np.lcm(self.pad_to_multiple_of or 1, self.align)))
        out: dict[str, Any] = {"input_ids": batch["input_ids"][None], "labels": batch["labels"][None]}
        if self.return_position_ids:
            out["position_ids"] = batch["positions"].astype(np.int64)[None] + self.position_ids_start
        if self.return_seq_idx:
            out["seq_idx"] = batch["segments"][None] - 1
        if not self.return_flash_attn_kwargs:
            return out, {}
        out["cu_seq_lens_q"] = out["cu_seq_lens_k"] = batch["cu_seqlens_padded"]
        return out, {"max_length_q": batch.max_seqlen, "max_length_k": batch.max_seqlen}


class FlatteningCollator(PackingCollator):
    """The same with the defaults of ``DataCollatorWithFlattening``: the attention keywords only where they are asked for."""

    def __init__(self, return_tensors: str = "pt", *, return_flash_attn_kwargs: bool = False, **options: Any):
        super().__init__(return_tensors, return_flash_attn_kwargs=return_flash_attn_kwargs, **options)


def install(module: Any = "transformers.data.data_collator") -> list[str]:
    """Puts :class:`FlatteningCollator` in the place of ``DataCollatorWithFlattening``, also where it was imported by name
    already. Returns the names that were replaced."""
    return put(module, {"DataCollatorWithFlattening": FlatteningCollator})
