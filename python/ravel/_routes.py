"""Experts' routes beside the tokens that took them (include/ravel/routes.h)."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from . import _abi
from ._batch import Batch, Field, Ragged
from ._dtype import code_of
from ._lib import address, call, host_array
from .comm import Comm

__all__ = ["add_routes", "check_routes"]

FIELD, ID = "routed_experts", "routed_experts_id"
_TYPES = (np.int8, np.int16, np.int32, np.int64)


def _check_dtype(rows: np.ndarray) -> None:
    if rows.dtype not in _TYPES:
        raise TypeError(f"routes have dtype {rows.dtype}; padding is -1, so it must be one of int8, int16, int32, int64")


def _shape(rows: np.ndarray, topk: int, experts: int) -> _abi.ravel_routes:
    _check_dtype(rows)
    if topk < 1 or rows.shape[-1] % topk:
        raise ValueError(f"rows of {rows.shape[-1]} experts are no whole layers of top-{topk}")
    return _abi.ravel_routes(layers=rows.shape[-1] // topk, topk=topk, experts=experts, dtype=code_of(rows, "routes"))


def _joined(rows: Any, lengths: np.ndarray) -> np.ndarray:
    """[tokens, ...] of all samples; a sample's rows may end early (the last token was never read): -1 from there on."""
    if not isinstance(rows, (list, tuple)):
        return host_array(rows, "routes")
    parts = [host_array(r, "routes") for r in rows]
    if len(parts) != lengths.size:
        raise ValueError(f"there are routes of {len(parts)} samples; the store has {lengths.size}")
    _check_dtype(parts[0])
    out = np.full((int(lengths.sum()), *parts[0].shape[1:]), -1, parts[0].dtype)
    at = 0
    for i, part in enumerate(parts):
        if len(part) > lengths[i]:
            raise ValueError(f"sample {i} has {len(part)} rows of routes and {lengths[i]} tokens")
        out[at:at + len(part)] = part
        at += int(lengths[i])
    return out


def add_routes(store: Ragged, rows: Any, *, experts: int, topk: int | None = None, tokens: str = "tokens") -> None:
    """Adds the routes of a store's tokens, as field "routed_experts", and their id per sample, "routed_experts_id".

    ``rows`` is [tokens, layers, topk], or [tokens, layers * topk] with ``topk``, or a list of one such array per sample, which may
    end before its sample does. Row t is of the forward pass that read token t; -1: not known, or a layer without experts.
    :class:`ravel.DataError` names an expert that cannot be. Do this where tokens and routes come from, before anything moves them."""
    array = _joined(rows, store.lengths)
    if array.ndim == 3:
        topk = array.shape[2]
    elif topk is None:
        raise TypeError("rows of two dimensions do not say topk: give it")
    flat = np.ascontiguousarray(array.reshape(len(array), -1))
    ids = np.empty(len(store), np.int64)
    words = np.ascontiguousarray(store.fields[tokens].data, np.int32)
    if len(flat) != words.size:
        raise ValueError(f"there are {len(flat)} rows of routes; the store has {words.size} tokens")
    call("ravel_routes_ids", C.byref(_shape(flat, topk, experts)), len(store), address(store.offsets), address(words), address(flat),
         address(ids))
    store.add(FIELD, flat, "token", -1)
    store.fields[ID] = Field(ID, ids, "sample")
    store._update()


def _places(batch: Batch, tokens: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions, segments and rows, flat."""
    words, rows = np.asarray(batch[tokens]), np.asarray(batch[FIELD])
    if "path" in batch:  # a tree: every sample's tokens in its own order
        ends, path = np.asarray(batch["cu_seqlens"], np.int64), np.asarray(batch["path"])
        sizes = np.diff(ends)
        segments = np.repeat(np.arange(1, sizes.size + 1), sizes)
        return words[path], np.arange(path.size) - np.repeat(ends[:-1], sizes), segments, rows[path]
    if "attention_mask" in batch:
        mask = np.asarray(batch["attention_mask"])
        numbers = np.arange(1, mask.shape[0] + 1)[:, None]
        real = np.asarray(batch["samples"])[:, None] >= 0  # an empty row shows one token to attention
        return words.reshape(-1), np.asarray(batch["positions"]).reshape(-1), ((mask != 0) & real).reshape(-1) * numbers.repeat(
            mask.shape[1], 1).reshape(-1), rows.reshape(mask.size, -1)
    for name in ("positions", "segments"):
        if name not in batch:
            raise ValueError(f"routes are checked by the batch's {name}: pack with {name}=True")
    return words, np.asarray(batch["positions"]), np.asarray(batch["segments"]), rows


def check_routes(batch: Batch, *, experts: int, topk: int, tokens: str = "tokens", comm: Comm | None = None) -> None:
    """Raises :class:`ravel.DataError` where the routes of a batch (of :func:`ravel.pack` with ``segments=True``, :func:`ravel.pad`, or a tree)
    are not those that its tokens had when :func:`ravel.add_routes` was called, or padding has a route. Of one context-parallel
    rank's shard ``comm`` is the communicator of these ranks; then it is collective."""
    *indices, rows = _places(batch, tokens)
    words, positions, segments = (np.ascontiguousarray(a, np.int32) for a in indices)
    rows = np.ascontiguousarray(rows, np.asarray(batch[FIELD]).dtype)
    ids = np.ascontiguousarray(batch[ID], np.int64)
    sums = np.zeros_like(ids)
    failed: Exception | None = None
    try:
        call("ravel_routes_add", C.byref(_shape(rows, topk, experts)), words.size, address(words), address(positions),
             address(segments), address(rows), ids.size, address(sums))
    except Exception as problem:
        if comm is None:
            raise
        failed = problem
    if comm is not None:
        sums = np.asarray(comm.allreduce(sums))
    if failed is not None:
        raise failed
    samples = np.ascontiguousarray(batch["samples"], np.int32) if "samples" in batch else np.arange(ids.size, dtype=np.int32)
    call("ravel_routes_compare", ids.size, address(samples), address(ids), address(sums))
