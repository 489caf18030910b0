"""A bin whose samples share prefixes, packed so that every shared token is there once."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from . import _abi
from ._batch import Batch, _bin, pack as _pack_flat
from ._lib import address, as_array, call
from ._ragged import Ragged
from ._typing import ArrayLike

__all__ = ["TreeBatch", "pack_tree"]

_ARRAYS = {"starts": ("samples", 1), "positions": ("tokens", 0), "path": ("path_tokens", 0), "limits": ("tokens", 0),
           "parents": ("tokens", 0), "cu_seqlens_q": ("runs", 1), "cu_seqlens_k": ("runs", 1), "gather": ("keys", 0),
           "node_of": ("tokens", 0), "node_first": ("nodes_most", 0), "node_last": ("nodes_most", 0),
           "node_end": ("nodes_most", 0), "node_parent": ("nodes_most", 0), "node_level": ("nodes_most", 0),
           "level_nodes": ("nodes_most", 0), "level_offsets": ("nodes_most", 1)}


class TreeBatch(Batch):
    """What ``ravel.pack(store, samples, tree=True)`` gives: the arrays of ravel/tree_batch.h by name.

    Fields of kind "token" are [tokens]: every shared token once. All other fields stay per sample, one sample after the other
    with boundaries ``cu_seqlens``, because weights, log-probs and advantages of samples differ also where their tokens are
    shared. ``path`` joins the two: element ``cu_seqlens[i] + t`` is the place of token t of sample i.
    """

    starts: np.ndarray
    """int32 [samples + 1]: the place of each sample's first own token."""
    limits: np.ndarray
    """int32 [tokens]: key k is visible to query q if k <= q < limits[k]."""
    parents: np.ndarray
    """int32 [tokens]: the place that predicts each token; -1: none."""
    path: np.ndarray
    """int32 [path_tokens]: the place of every token of every sample."""
    cu_seqlens_q: np.ndarray
    """int32 [runs + 1]: attention with gathered keys, running sum of queries."""
    cu_seqlens_k: np.ndarray
    """int32 [runs + 1]: and of keys; causal with the mask at the bottom right."""
    gather: np.ndarray
    """int32 [keys]: the places of those keys."""
    tokens_saved: int
    """Tokens that sharing leaves out."""

    _tree: _abi.ravel_tree_batch
    _shape: _abi.ravel_tree_bin

    def unpack(self, values: ArrayLike, kind: str = "token") -> np.ndarray:
        """Values at places, [tokens, ...], back to samples: "token": those of each sample's tokens; "step": one less per sample,
        prediction t being what stands at the place of token t + 1 (log-probs of labels, entropies)."""
        if kind not in ("token", "step"):
            raise ValueError(f"kind is {kind!r}; it must be token or step")
        data = np.ascontiguousarray(values)
        if data.shape[:1] != (self.slot_tokens,):
            raise ValueError(f"values have shape {data.shape}; this batch has {self.slot_tokens} places")
        count = int(self.cu_seqlens[-1]) - (len(self.cu_seqlens) - 1 if kind == "step" else 0)
        out = np.empty((count, *data.shape[1:]), data.dtype)
        each = data.dtype.itemsize * int(np.prod(data.shape[1:], dtype=np.int64))
        call("ravel_tree_unpack", C.byref(self._shape), C.byref(self._tree),
             _abi.RAVEL_FIELD_STEP if kind == "step" else _abi.RAVEL_FIELD_TOKEN, address(data), each, address(out))
        return out

    def deal(self, ranks: int) -> tuple[np.ndarray, np.ndarray]:
        """Context parallel: the rank of each of ``8 * ranks`` chunks of places, and the pairs of (query, key) of each rank.
        Pack with ``align`` a multiple of ``8 * ranks``."""
        owners, pairs = np.empty(8 * max(1, ranks), np.int32), np.empty(max(1, ranks), np.int64)
        call("ravel_tree_deal", C.byref(self._tree), ranks, address(owners), address(pairs))
        return owners, pairs

    def piece(self, owners: ArrayLike, rank: int) -> dict[str, np.ndarray]:
        """One rank's ``places``, and attention with gathered keys for them: ``query_starts`` (local rows), ``cu_seqlens_q``,
        ``cu_seqlens_k``, ``gather`` (places of the whole bin)."""
        dealt = as_array(owners, np.int32, "owners")
        args = (C.byref(self._shape), C.byref(self._tree), address(dealt), dealt.size // 8, rank)
        piece = _abi.ravel_tree_piece(size=C.sizeof(_abi.ravel_tree_piece))
        call("ravel_tree_piece_measure", *args, C.byref(piece))
        out = {"places": np.empty(piece.tokens, np.int32), "query_starts": np.empty(piece.runs, np.int32),
               "cu_seqlens_q": np.empty(piece.runs + 1, np.int32), "cu_seqlens_k": np.empty(piece.runs + 1, np.int32),
               "gather": np.empty(piece.keys, np.int32)}
        for name, array in out.items():
            setattr(piece, name, address(array))
        call("ravel_tree_piece_pack", *args, C.byref(piece))
        return out

    def segments_by_node(self) -> dict[str, np.ndarray]:
        """The tree as depth-first segments, in the words of Megatron-LM's ``TreePackedSeqParams``: start, length, parent and depth
        of each segment."""
        n = self.nodes
        return {"segment_starts": self.node_first[:n], "segment_lengths": self.node_last[:n] - self.node_first[:n],
                "segment_parents": self.node_parent[:n], "segment_depths": self.node_level[:n]}

    def ranges(self) -> dict[str, np.ndarray]:
        """Attention as ranges, in the words of MagiAttention: ``q_ranges``, ``k_ranges`` [n, 2] and ``attn_type_map`` (0 full, 1
        causal): each node over itself, and what is below a node over it."""
        first, last, end = (getattr(self, f"node_{name}")[:self.nodes] for name in ("first", "last", "end"))
        below = end > last
        own, rest = np.stack([first, last], 1), np.stack([last, end], 1)[below]
        return {"q_ranges": np.concatenate([own, rest]), "k_ranges": np.concatenate([own, own[below]]),
                "attn_type_map": np.concatenate([np.ones(len(own), np.int32), np.zeros(len(rest), np.int32)])}


def _found(store: Ragged, index: np.ndarray) -> np.ndarray:
    """The tokens that each sample shares with the one before it: equal in every field of kind "token"."""
    fields = [np.asarray(field.data) for field in store.fields.values() if field.kind == "token"]
    offsets, shared = store.offsets, np.zeros(index.size, np.int32)
    for i in range(1, index.size):
        a, b = int(offsets[index[i - 1]]), int(offsets[index[i]])
        n = min(int(offsets[index[i - 1] + 1]) - a, int(offsets[index[i] + 1]) - b)
        for data in fields:
            same = (data[a:a + n] == data[b:b + n]).reshape(n, int(np.prod(data.shape[1:]))).all(1)
            n = n if same.all() else int(same.argmin())
        shared[i] = n if fields else 0
    return shared


def pack_tree(store: Ragged, samples: ArrayLike, *, shared: ArrayLike | None = None, align: int = 1) -> TreeBatch:
    """See :func:`ravel.pack`."""
    if store.device is not None:
        raise ValueError(f"this store is on {store.device}; trees are packed in host memory: use batch.torch(device)")
    _, index = _bin(samples)
    if index.size == 0:
        raise ValueError("a tree needs at least one sample")
    flat = _pack_flat(store, index, positions=False)
    found = _found(store, index) if shared is None else as_array(shared, np.int32, "shared")
    if found.shape != index.shape:
        raise ValueError(f"shared has {found.size} elements for {index.size} samples")
    bin_ = _abi.ravel_tree_bin(cu_seqlens=address(flat.cu_seqlens), shared=address(found), count=index.size)
    tree = _abi.ravel_tree_batch(size=C.sizeof(_abi.ravel_tree_batch))
    call("ravel_tree_measure", C.byref(bin_), align, C.byref(tree))
    arrays: dict[str, Any] = {"cu_seqlens": flat.cu_seqlens, "samples": flat.samples, "shared": found}
    for name, (size, more) in _ARRAYS.items():
        arrays[name] = np.empty(getattr(tree, size) + more, np.int32)
        setattr(tree, name, address(arrays[name]))
    call("ravel_tree_pack", C.byref(bin_), C.byref(tree))
    for field in store.fields.values():
        data = flat[field.name]
        if field.kind == "token":
            pad, out = np.full(field.width, field.pad).astype(data.dtype), np.empty((tree.tokens, *data.shape[1:]), data.dtype)
            call("ravel_tree_pack_field", C.byref(bin_), C.byref(tree), address(data), data.dtype.itemsize * field.width,
                 address(pad), address(out))
            data = out
        arrays[field.name] = data
    numbers = {"samples_count": index.size, "sequences": tree.runs, "slot_tokens": tree.tokens, "unique_tokens": tree.unique,
               "actual_tokens": tree.path_tokens, "tokens_saved": tree.path_tokens - tree.unique, "nodes": tree.nodes,
               "levels": tree.levels, "max_length": tree.longest, "max_seqlen": tree.longest,
               "max_seqlen_q": tree.longest_own, "max_seqlen_k": tree.longest}
    batch = TreeBatch(arrays, numbers, flat._c, flat._options, (flat, found), flat._codes)
    batch._tree, batch._shape = tree, bin_
    return batch
