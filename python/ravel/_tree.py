"""Samples that begin alike: in which order they form trees, and what neighbours share."""

from __future__ import annotations

import ctypes as C
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._lib import address, as_array, call
from ._ragged import Ragged
from ._typing import ArrayLike

__all__ = ["TreeOrder", "tree_from_groups", "tree_order"]


class TreeOrder(NamedTuple):
    """``order``: the sample of each place; ``shared``: the tokens that it has in common with the sample of the place
    before. Both go into :func:`ravel.plan` and :meth:`ravel.Planner.push` by these names."""

    order: np.ndarray
    shared: np.ndarray


def _ragged(ids: Any, lengths: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Flat ids and offsets: of a list of arrays or lists, or of flat ids with lengths."""
    if isinstance(ids, Ragged):
        raise TypeError("give the ids and lengths of the store's field, not the store")
    if lengths is None:
        parts = [as_array(row, np.int32, "ids") for row in ids]
        flat = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        sizes = np.array([part.size for part in parts], np.int64)
    else:
        flat, sizes = as_array(ids, np.int32, "ids"), as_array(lengths, np.int64, "lengths")
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if (sizes < 0).any() or offsets[-1] != flat.size:
        raise ValueError(f"lengths add up to {int(offsets[-1])}; there are {flat.size} ids")
    return flat, offsets


def tree_order(ids: Any, lengths: ArrayLike | None = None, *, sample_keys: ArrayLike | None = None,
               token_keys: ArrayLike | None = None) -> TreeOrder:
    """Puts samples that begin alike side by side, and says how many tokens each shares with the one before.

    ``ids`` is a list of samples, or one flat array with ``lengths``. ``sample_keys`` (one per sample) and ``token_keys`` (one
    per id) are compared along with the ids: give them where images, adapters or routes make equal ids unequal.

    >>> order = ravel.tree_order(token_ids)
    >>> plan = ravel.plan(lengths, budget="32k", dp=8, cost="qwen3-8b", **order._asdict())
    """
    flat, offsets = _ragged(ids, lengths)
    count = offsets.size - 1
    keys = [None if value is None else as_array(value, np.uint64, name, size) for name, value, size in
            (("sample_keys", sample_keys, count), ("token_keys", token_keys, flat.size))]
    trees = _abi.ravel_tree_input(C.sizeof(_abi.ravel_tree_input), count, address(offsets), address(flat),
                                  *(None if key is None else address(key) for key in keys))
    found = TreeOrder(np.empty(count, np.int32), np.empty(count, np.int64))
    call("ravel_tree_order", C.byref(trees), address(found.order), address(found.shared))
    return found


def tree_from_groups(lengths: ArrayLike, prompts: ArrayLike, groups: ArrayLike) -> TreeOrder:
    """The same where it is known without tokens: samples of a group have the same prompt, and nothing else in common.
    ``lengths`` are those of whole samples, ``prompts`` those of their prompts."""
    whole = as_array(lengths, np.int64, "lengths")
    heads, ids = as_array(prompts, np.int64, "prompts", whole.size), as_array(groups, np.int64, "groups", whole.size)
    found = TreeOrder(np.empty(whole.size, np.int32), np.empty(whole.size, np.int64))
    call("ravel_tree_from_groups", whole.size, address(whole), address(heads), address(ids), None, address(found.order),
         address(found.shared))
    return found
