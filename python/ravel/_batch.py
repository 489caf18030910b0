"""Packed batches: ragged samples to the arrays of a training step, and back."""

from __future__ import annotations

import ctypes as C
from typing import Any, Iterator, Mapping

import numpy as np

from . import _abi
from ._dtype import code_of
from ._lib import address, as_array, call, host_array, lib
from ._options import Table

__all__ = ["Batch", "Field", "Ragged", "cp_shard", "cp_unshard", "pack", "pad", "scatter"]

_KINDS = {"token": _abi.RAVEL_FIELD_TOKEN, "next": _abi.RAVEL_FIELD_NEXT, "step": _abi.RAVEL_FIELD_STEP,
          "sample": _abi.RAVEL_FIELD_SAMPLE, "spread": _abi.RAVEL_FIELD_SPREAD}
_THD = Table(_abi.ravel_thd_options, "ravel_thd")
_PADDED = Table(_abi.ravel_padded_options, "ravel_padded")
_CP_KINDS = ["zig-zag", "contiguous", "striped"]


def _flat(value: Any, what: str) -> np.ndarray:
    """A contiguous array of one or two dimensions, or the concatenation of a list of arrays."""
    if isinstance(value, (list, tuple)) and value and not np.isscalar(value[0]):
        value = np.concatenate([host_array(v, what) for v in value])
    array = np.ascontiguousarray(host_array(value, what))
    if array.ndim not in (1, 2):
        raise ValueError(f"{what} must be flat, or [elements, width]; it has {array.ndim} dimensions")
    return array


def _check_kind(kind: str) -> None:
    if kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_KINDS)}")


class Field:
    """One array of a ragged store.

    ``kind`` says what an element belongs to: "token" (element t at position t), "next" (element t + 1 at position t:
    labels, loss masks, weights), "step" (one element less than tokens: next-token log-probs), "sample" (one a sample),
    "spread" (one a sample, at each of its positions). ``pad`` stands where there is nothing.
    """

    def __init__(self, name: str, data: Any, kind: str = "token", pad: float = 0):
        _check_kind(kind)
        self.name, self.kind, self.pad = name, kind, pad
        self.data = _flat(data, name)
        self.dtype = code_of(self.data, name)
        self.width = 1 if self.data.ndim == 1 else self.data.shape[1]

    def _c(self) -> _abi.ravel_field:
        return _abi.ravel_field(name=self.name.encode(), kind=_KINDS[self.kind], dtype=self.dtype, width=self.width,
                                data=address(self.data), pad=self.pad)


class Ragged:
    """Samples side by side: lengths, and one flat array for each field.

    >>> store = ravel.Ragged(lengths=[3, 5], tokens=ids, labels=ravel.Field("labels", ids, "next", pad=-100))

    A plain array given by keyword is a field of kind "token". Lists of arrays are concatenated.
    """

    def __init__(self, lengths: Any, *, prompts: Any = None, **fields: Any):
        sizes = as_array(lengths, np.int64, "lengths")
        self.lengths = sizes
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        self.prompts = None if prompts is None else as_array(prompts, np.int64, "prompts", sizes.size)
        self.fields: dict[str, Field] = {
            name: value if isinstance(value, Field) else Field(name, value) for name, value in fields.items()}
        self._update()

    def _update(self) -> None:
        """The C struct over the fields as they are now."""
        self._array = (_abi.ravel_field * max(1, len(self.fields)))(*[f._c() for f in self.fields.values()])
        self._c = _abi.ravel_ragged(size=C.sizeof(_abi.ravel_ragged), count=self.lengths.size,
                                    offsets=address(self.offsets), prompts=address(self.prompts), fields=self._array,
                                    field_count=len(self.fields))
        call("ravel_ragged_check", C.byref(self._c))
        for field in self.fields.values():
            need = lib.ravel_field_bytes(C.byref(self._c), C.byref(field._c()))
            if need != field.data.nbytes:
                raise ValueError(f"{field.name} has {field.data.nbytes} bytes; kind {field.kind!r} needs {need} for "
                                 f"these lengths")

    def add(self, name: str, data: Any, kind: str = "token", pad: float = 0) -> None:
        """One more field, such as the weights of an update; one of that name is replaced."""
        before = dict(self.fields)
        self.fields[name] = Field(name, data, kind, pad)
        try:
            self._update()
        except Exception:
            self.fields = before
            self._update()
            raise

    def __len__(self) -> int:
        return self.lengths.size


class Batch(Mapping[str, np.ndarray]):
    """The arrays of one micro-batch, by name (``batch["tokens"]``) or as attributes (``batch.tokens``).

    THD: ``cu_seqlens``, ``cu_seqlens_padded``, ``samples``, ``positions``, ``segments``, ``padding``, ``loss_mask``, and
    every field; ``max_seqlen`` and ``max_length`` are numbers.
    """

    def __init__(self, arrays: dict[str, np.ndarray], numbers: dict[str, int], c: Any, options: Any, keep: Any):
        self._arrays, self._numbers = arrays, numbers
        self._c, self._options, self._keep = c, options, keep

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def torch(self) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self._arrays.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for place in (self._arrays, self._numbers):
            if name in place:
                return place[name]
        raise AttributeError(f"this batch has no {name}; it has {', '.join([*self._arrays, *self._numbers])}")


def _bin(samples: Any) -> tuple[_abi.ravel_bin, np.ndarray]:
    index = as_array(samples, np.int32, "samples")
    return _abi.ravel_bin(samples=address(index) if index.size else None, count=index.size), index


def _new(shape: Any, dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype)


def _check_clash(store: Ragged, own: Mapping[str, np.ndarray]) -> None:
    clash = sorted(set(store.fields) & set(own))
    if clash:
        raise ValueError(f"a field is called {clash[0]!r}, which is one of the packer's own arrays")


def _field_arrays(store: Ragged, rows: Any, per_sample: int) -> tuple[dict[str, np.ndarray], Any]:
    """Outputs for the store's fields, and the table of pointers that the packer wants."""
    arrays: dict[str, np.ndarray] = {}
    table = (C.c_void_p * max(1, len(store.fields)))()
    for i, field in enumerate(store.fields.values()):
        shape = (per_sample,) if field.kind == "sample" else rows
        shape = shape if field.width == 1 else (*shape, field.width)
        arrays[field.name] = _new(shape, field.data.dtype)
        table[i] = address(arrays[field.name]) if arrays[field.name].size else None
    return arrays, table


def pack(store: Ragged, samples: Any, *, positions: bool = True, segments: bool = False, padding: bool = False,
         loss_mask: bool = False, **options: Any) -> Batch:
    """Packs a bin's samples (indices, as a plan gives them; none: a filler) into THD arrays.

    Options: align, total_multiple, fixed_tokens, max_samples, max_seqlen, cp, cp_rank, cp_kind.
    """
    chosen = _THD.make(**options)
    bin_, index = _bin(samples)
    thd = _abi.ravel_thd(size=C.sizeof(_abi.ravel_thd))
    call("ravel_thd_measure", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(thd))
    local = thd.local_tokens
    arrays: dict[str, np.ndarray] = {
        "cu_seqlens": _new(thd.sequences + 1, np.int32), "cu_seqlens_padded": _new(thd.sequences + 1, np.int32),
        "samples": _new(thd.sequences, np.int32)}
    for name, wanted, dtype in (("positions", positions, np.int32), ("segments", segments, np.int32),
                                ("padding", padding, np.uint8), ("loss_mask", loss_mask, np.float32)):
        if wanted:
            arrays[name] = _new(local, dtype)
    for name, array in arrays.items():
        setattr(thd, name, address(array))
    _check_clash(store, arrays)
    fields, table = _field_arrays(store, (local,), thd.sequences)
    thd.fields = C.cast(table, C.c_void_p).value
    call("ravel_thd_pack", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(thd))
    numbers = {name: getattr(thd, name) for name in ("samples_count", "sequences", "local_tokens", "actual_tokens",
                                                     "max_seqlen", "max_length")}
    numbers["slot_tokens"] = thd.tokens  # "tokens" is what most stores call a field
    return Batch({**arrays, **fields}, numbers, thd, chosen, (table, index))


def pad(store: Ragged, samples: Any, *, loss_mask: bool = False, **options: Any) -> Batch:
    """The same fields as [rows, columns] arrays. Options: side ("right", "left", "2d"), align, rows, columns, responses."""
    chosen = _PADDED.make(**options)
    bin_, index = _bin(samples)
    out = _abi.ravel_padded(size=C.sizeof(_abi.ravel_padded))
    call("ravel_padded_measure", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(out))
    grid = (out.rows, out.columns)
    arrays: dict[str, np.ndarray] = {"samples": _new(out.rows, np.int32), "starts": _new(out.rows, np.int32),
                                     "positions": _new(grid, np.int32), "attention_mask": _new(grid, np.uint8)}
    if loss_mask:
        arrays["loss_mask"] = _new(grid, np.float32)
    for name, array in arrays.items():
        setattr(out, name, address(array))
    _check_clash(store, arrays)
    fields, table = _field_arrays(store, grid, out.rows)
    out.fields = C.cast(table, C.c_void_p).value
    call("ravel_padded_pack", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(out))
    numbers = {name: getattr(out, name) for name in ("samples_count", "rows", "columns", "prompt_columns",
                                                     "actual_tokens", "max_length")}
    return Batch({**arrays, **fields}, numbers, out, chosen, (table, index))


def scatter(store: Ragged, batch: Batch, packed: Any, *, kind: str = "token", out: np.ndarray | None = None) -> np.ndarray:
    """Per-token results of a packed (or padded, or cp-sharded) batch back in sample order.

    ``kind`` is the kind of field that they are: "step" for next-token log-probs (one less than tokens a sample). Call it
    once for each bin (and each cp rank's shard) with the same ``out``.
    """
    _check_kind(kind)
    data = np.ascontiguousarray(host_array(packed, "packed"))
    is_thd = isinstance(batch._c, _abi.ravel_thd)
    rows = 1 if is_thd else 2
    if data.ndim not in (rows, rows + 1):
        raise ValueError(f"packed results must have {rows} dimensions (or one more for a width), not {data.ndim}")
    shape = (batch._c.local_tokens,) if is_thd else (batch._c.rows, batch._c.columns)
    if kind == "sample":
        shape = (batch._c.sequences if is_thd else batch._c.rows,)
    if data.shape[:len(shape)] != shape:
        raise ValueError(f"packed results have shape {data.shape}; this batch is {shape}")
    width = data.shape[-1] if data.ndim > len(shape) else 1
    field = _abi.ravel_field(name=b"result", kind=_KINDS[kind], dtype=code_of(data, "packed"), width=width)
    need = lib.ravel_field_bytes(C.byref(store._c), C.byref(field))
    if out is None:
        elements = need // data.dtype.itemsize // width
        out = np.zeros((elements,) if width == 1 else (elements, width), data.dtype)
    if out.nbytes != need or out.dtype != data.dtype or not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"out must be a contiguous, writable array of {need} bytes of {data.dtype}")
    if is_thd:
        call("ravel_thd_unpack", C.byref(store._c), C.byref(batch._options), C.byref(batch._c), C.byref(field),
             address(data), address(out))
    else:
        call("ravel_padded_unpack", C.byref(store._c), C.byref(batch._c), C.byref(field), address(data), address(out))
    return out


def _cp(ranks: int, kind: str) -> _abi.ravel_cp:
    if kind not in _CP_KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_CP_KINDS)}")
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    return _abi.ravel_cp(ranks=ranks, kind=_CP_KINDS.index(kind))


def _slots(cu_seqlens_padded: Any) -> np.ndarray:
    slots = as_array(cu_seqlens_padded, np.int32, "cu_seqlens_padded")
    if slots.size < 1:
        raise ValueError("cu_seqlens_padded is empty; it begins with 0")
    return slots


def cp_shard(whole: Any, cu_seqlens_padded: Any, rank: int, ranks: int, kind: str = "zig-zag") -> np.ndarray:
    """This rank's positions of an array over a packed bin's tokens (its first dimension)."""
    cp, slots = _cp(ranks, kind), _slots(cu_seqlens_padded)
    array = np.ascontiguousarray(host_array(whole, "whole"))
    if array.shape[:1] != (int(slots[-1]),):
        raise ValueError(f"the array has shape {array.shape}; cu_seqlens_padded ends at {int(slots[-1])} positions")
    each = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    shard = np.empty((array.shape[0] // ranks, *array.shape[1:]), array.dtype)
    call("ravel_cp_gather", C.byref(cp), rank, address(slots), slots.size - 1, address(array), each,
         address(shard), None)
    return shard


def cp_unshard(shards: Any, cu_seqlens_padded: Any, kind: str = "zig-zag") -> np.ndarray:
    """All ranks' shards, in rank order, back to the whole array."""
    slots = _slots(cu_seqlens_padded)
    parts = [np.ascontiguousarray(host_array(s, "a shard")) for s in shards]
    if not parts or any(p.shape != parts[0].shape or p.dtype != parts[0].dtype for p in parts):
        raise ValueError("shards must be as many arrays as there are ranks, all of one shape and dtype")
    if parts[0].ndim < 1 or parts[0].shape[0] * len(parts) != int(slots[-1]):
        raise ValueError(f"{len(parts)} shards of shape {parts[0].shape} do not make {int(slots[-1])} positions")
    whole = np.empty((int(slots[-1]), *parts[0].shape[1:]), parts[0].dtype)
    each = whole.itemsize * int(np.prod(whole.shape[1:], dtype=np.int64))
    cp = _cp(len(parts), kind)
    for rank, part in enumerate(parts):
        call("ravel_cp_scatter", C.byref(cp), rank, address(slots), slots.size - 1, address(part),
             each, address(whole), None)
    return whole
