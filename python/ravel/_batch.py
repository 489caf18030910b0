"""Packed batches: ragged samples to the arrays of a training step, and back."""

from __future__ import annotations

import ctypes as C
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from . import _abi
from ._device import Device, DeviceArray, note_reader, pinned, place_of, stream_number
from ._dtype import CODES, any_array, name_of, torch_bits
from ._lib import Error, address, as_array, call, lib
from ._options import Table
from ._ragged import KINDS as _KINDS, Field, Ragged, check_kind as _check_kind
from ._typing import ArrayLike

__all__ = ["Batch", "Field", "Ragged", "cp_shard", "cp_unshard", "pack", "pad", "scatter"]

_THD = Table(_abi.ravel_thd_options, "ravel_thd")
_PADDED = Table(_abi.ravel_padded_options, "ravel_padded")
_CP_KINDS = ["zig-zag", "contiguous", "striped"]


class Batch(Mapping[str, np.ndarray]):
    """The arrays of one micro-batch, by name (``batch["tokens"]``) or as attributes (``batch.tokens``).

    Every field of the store is among them, under its own name. Which of the others there are depends on the call:
    :func:`pack` makes those of THD, :func:`pad` those of rows. Of a store on a CUDA device they are :class:`ravel.DeviceArray`.
    """

    # THD and rows
    samples: np.ndarray
    """int32: the number of each sequence's sample; -1: a filler, or the tail that pads the bin."""
    positions: np.ndarray
    """int32: 0, 1, 2, ... in each sample; 0 in padding."""
    loss_mask: np.ndarray
    """float32: 1 where the predicted token belongs to a response."""
    samples_count: int
    actual_tokens: int
    """Sum of real lengths; 0 for a filler."""
    max_length: int
    """Longest real length; goes with ``cu_seqlens``."""
    # THD
    cu_seqlens: np.ndarray
    """int32 [sequences + 1]: running sum of real lengths."""
    cu_seqlens_padded: np.ndarray
    """int32 [sequences + 1]: running sum of slots."""
    segments: np.ndarray
    """int32: 1 for the first sample's tokens, 2, 3, ...; 0 in padding."""
    padding: np.ndarray
    """uint8: 1 in padding."""
    max_seqlen: int
    """Longest slot; goes with ``cu_seqlens_padded``."""
    sequences: int
    local_tokens: int
    """Positions of this context-parallel rank."""
    slot_tokens: int
    """Positions of the whole bin."""
    # rows
    attention_mask: np.ndarray
    """uint8 [rows, columns]."""
    starts: np.ndarray
    """int32 [rows]: the first column that is no padding."""
    rows: int
    columns: int
    prompt_columns: int

    def __init__(self, arrays: dict[str, Any], numbers: dict[str, int], c: Any, options: Any, keep: Any,
                 codes: Mapping[str, int] | None = None):
        self._arrays, self._numbers = arrays, numbers
        self._c, self._options, self._keep = c, options, keep
        self._codes = dict(codes or {})  # dtypes of fields whose arrays hold bits that numpy has no name for

    def __getitem__(self, name: str) -> np.ndarray:
        found: np.ndarray = self._arrays[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def torch(self, device: Any = None, *, non_blocking: bool = True) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory or, with ``device``, as copies there (asynchronous where the batch
        was packed with ``pin=True``). Fields that came as bfloat16 or float8 tensors are those again."""
        import torch

        out = {}
        for name, array in self._arrays.items():
            if isinstance(array, DeviceArray):
                tensor = array.torch()
            else:
                tensor = torch.from_numpy(array)
                if name in self._codes:
                    tensor = tensor.view(torch_bits(torch, self._codes[name]))
            out[name] = tensor if device is None else tensor.to(device, non_blocking=non_blocking)
            if out[name].is_cuda and not isinstance(array, DeviceArray):
                note_reader(array, stream_number(None, out[name].device.index))
        return out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for place in (self._arrays, self._numbers):
            if name in place:
                return place[name]
        raise AttributeError(f"this batch has no {name}; it has {', '.join([*self._arrays, *self._numbers])}")

    def __dir__(self) -> list[str]:
        return [*self._arrays, *self._numbers, "torch"]

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {list(a.shape)} {name_of(self._codes[name]) if name in self._codes else a.dtype}"
                           for name, a in self._arrays.items())
        shape = f"{self.rows} rows x {self.columns} columns" if "rows" in self._numbers else \
            f"{self._numbers['sequences']} sequences in {self._numbers['slot_tokens']} positions"
        return f"<ravel.Batch: {self.samples_count} samples, {self.actual_tokens} tokens, {shape}; {arrays}>"


def _bin(samples: ArrayLike) -> tuple[_abi.ravel_bin, np.ndarray]:
    index = as_array(samples, np.int32, "samples")
    return _abi.ravel_bin(samples=address(index) if index.size else None, count=index.size), index


class _Memory:
    """Where outputs are made: new arrays, page-locked ones (``pin``), or the memory of an earlier batch (``out``) where that is
    large enough."""

    def __init__(self, out: Batch | None, pin: bool):
        self.old = {} if out is None else dict(out._arrays)
        self.pin = pin

    def new(self, name: str, shape: Any, dtype: Any, code: int | None = None) -> Any:
        """An array; ``code`` is the library's number where numpy lacks the dtype."""
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        wanted = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        old = self.old.get(name)
        if isinstance(old, np.ndarray) and old.dtype == wanted:
            whole = old
            while isinstance(whole.base, np.ndarray):
                whole = whole.base
            whole = whole.view(wanted) if whole.dtype == np.uint8 and whole.nbytes % wanted.itemsize == 0 else whole
            if whole.dtype == wanted and whole.flags.c_contiguous and whole.flags.writeable and whole.size >= count:
                found: np.ndarray = whole.reshape(-1)[:count].reshape(shape)
                return found
        if not self.pin:
            return np.empty(shape, wanted)
        found = _pinned(max(1, count * wanted.itemsize))[:count * wanted.itemsize].view(wanted).reshape(shape)
        return found


def _pinned(bytes_: int) -> np.ndarray:
    """Page-locked memory of the CUDA module; where that is not there, torch's."""
    try:
        return pinned(bytes_)
    except Error:
        try:
            import torch
        except ImportError:
            torch = None  # type: ignore[assignment,unused-ignore]
        if torch is None or not torch.cuda.is_available():
            raise
        block: np.ndarray = torch.empty(bytes_, dtype=torch.uint8, pin_memory=True).numpy()
        return block


class _DeviceMemory:
    """The same on a device, for use in a stream."""

    def __init__(self, out: Batch | None, device: Device, stream: int):
        self.old = {} if out is None else dict(out._arrays)
        self.device, self.stream = device, stream

    def new(self, name: str, shape: Any, dtype: Any, code: int | None = None) -> DeviceArray:
        """An array; ``code`` is the library's number of its dtype, where numpy's does not say it."""
        shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
        code = CODES[np.dtype(dtype)] if code is None else code
        bytes_ = int(np.prod(shape, dtype=np.int64)) * int(lib.ravel_dtype_bytes(code))
        old = self.old.get(name)
        if isinstance(old, DeviceArray) and old.device is self.device and old.code == code and old.capacity >= bytes_:
            return old.in_stream(self.stream).reshaped(shape)
        return DeviceArray.empty(self.device, shape, code, self.stream)


def _memory(store: Ragged, out: Batch | None, pin: bool, stream: Any) -> Any:
    """Where a store's batch is made."""
    if store.device is None:
        if stream is not None:
            raise ValueError("stream is for stores on a CUDA device; this one is in host memory")
        return _Memory(out, pin)
    if pin:
        raise ValueError(f"pin is for batches in host memory; this store is on {store.device}")
    return _DeviceMemory(out, store.device, stream_number(stream, store.device.index))


def _set_place(struct: Any, memory: Any, samples: str, ends: str, counts: tuple[int, int]) -> Any:
    """Says that a batch's arrays are on a device, and what of them is kept on the host; that, to be held."""
    if not isinstance(memory, _DeviceMemory):
        return None
    kept = tuple(np.empty(count, np.int32) for count in counts)
    struct.place = _abi.ravel_place(kind=_abi.RAVEL_DEVICE, stream=memory.device.stream(memory.stream))
    setattr(struct, samples, address(kept[0]))
    setattr(struct, ends, address(kept[1]))
    return kept


def _bits(store: Ragged) -> dict[str, int]:
    """Names of fields whose arrays are bits of a dtype that numpy lacks, and that dtype's number."""
    return {name: field.dtype for name, field in store.fields.items()
            if isinstance(field.data, np.ndarray) and CODES.get(field.data.dtype) != field.dtype}


def _check_clash(store: Ragged, own: Mapping[str, Any]) -> None:
    clash = sorted(set(store.fields) & set(own))
    if clash:
        raise ValueError(f"a field is called {clash[0]!r}, which is one of the packer's own arrays")


def _field_arrays(store: Ragged, rows: Any, per_sample: int, memory: Any) -> tuple[dict[str, Any], Any]:
    """Outputs for the store's fields, and the table of pointers that the packer wants."""
    arrays: dict[str, Any] = {}
    table = (C.c_void_p * max(1, len(store.fields)))()
    for i, field in enumerate(store.fields.values()):
        shape = (per_sample,) if field.kind == "sample" else rows
        shape = (*shape, *field.shape)
        arrays[field.name] = memory.new(field.name, shape, field.data.dtype if store.device is None else np.uint8, field.dtype)
        table[i] = address(arrays[field.name]) if arrays[field.name].size else None
    return arrays, table


def pack(store: Ragged, samples: ArrayLike, *, positions: bool = True, segments: bool = False, padding: bool = False,
         loss_mask: bool = False, out: Batch | None = None, pin: bool = False, stream: Any = None, tree: bool = False,
         **options: Any) -> Batch:
    """Packs a bin's samples (indices, as a plan gives them; none: a filler) into THD arrays.

    ``tree`` gives a :class:`ravel.TreeBatch` instead: tokens that samples share with the one before them are there once. Its
    options are ``align`` (of the bin's tokens, once) and ``shared`` (per sample of the bin; by default the tokens are compared).

    ``out`` is an earlier batch whose memory is used again where it is large enough: what that batch holds is overwritten.
    ``pin`` makes the arrays in page-locked memory, so that ``batch.torch("cuda")`` copies while the host goes on; where you queue
    copies from it yourself, keep the batch until they are done. A store on a CUDA device is packed there, by one launch in
    ``stream`` (a number as DLPack has it, or a stream of torch or CuPy; None: torch's current one, else the default stream).
    Options: align, total_multiple, fixed_tokens, max_samples, max_seqlen, cp, cp_rank, cp_kind.
    """
    if tree:
        from ._tree_batch import pack_tree

        if segments or padding or loss_mask or out is not None or pin or stream is not None:
            raise ValueError("tree=True takes align and shared; other options are of the flat layout")
        return pack_tree(store, samples, **options)
    chosen = _THD.make(**options)
    memory = _memory(store, out, pin, stream)
    bin_, index = _bin(samples)
    thd = _abi.ravel_thd(size=C.sizeof(_abi.ravel_thd))
    call("ravel_thd_measure", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(thd))
    local = thd.local_tokens
    kept = _set_place(thd, memory, "host_samples", "host_slots", (thd.sequences, thd.sequences + 1))
    arrays: dict[str, Any] = {
        name: memory.new(name, size, np.int32) for name, size in (
            ("cu_seqlens", thd.sequences + 1), ("cu_seqlens_padded", thd.sequences + 1), ("samples", thd.sequences))}
    for name, wanted, dtype in (("positions", positions, np.int32), ("segments", segments, np.int32),
                                ("padding", padding, np.uint8), ("loss_mask", loss_mask, np.float32)):
        if wanted:
            arrays[name] = memory.new(name, local, dtype)
    for name, array in arrays.items():
        setattr(thd, name, address(array))
    _check_clash(store, arrays)
    fields, table = _field_arrays(store, (local,), thd.sequences, memory)
    thd.fields = C.cast(table, C.c_void_p).value
    call("ravel_thd_pack", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(thd))
    numbers = {name: getattr(thd, name) for name in ("samples_count", "sequences", "local_tokens", "actual_tokens",
                                                     "max_seqlen", "max_length")}
    numbers["slot_tokens"] = thd.tokens  # "tokens" is what most stores call a field
    return Batch({**arrays, **fields}, numbers, thd, chosen, (table, index, kept), _bits(store))


def pad(store: Ragged, samples: ArrayLike, *, loss_mask: bool = False, out: Batch | None = None, pin: bool = False,
        stream: Any = None, **options: Any) -> Batch:
    """The same fields as [rows, columns] arrays. Options: side ("right", "left", "2d"), align, rows, columns, responses;
    ``out``, ``pin`` and ``stream`` as in :func:`pack`."""
    chosen = _PADDED.make(**options)
    memory = _memory(store, out, pin, stream)
    bin_, index = _bin(samples)
    padded = _abi.ravel_padded(size=C.sizeof(_abi.ravel_padded))
    call("ravel_padded_measure", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(padded))
    grid = (padded.rows, padded.columns)
    kept = _set_place(padded, memory, "host_samples", "host_starts", (padded.rows, padded.rows))
    arrays: dict[str, Any] = {
        name: memory.new(name, shape, dtype) for name, shape, dtype in (
            ("samples", padded.rows, np.int32), ("starts", padded.rows, np.int32), ("positions", grid, np.int32),
            ("attention_mask", grid, np.uint8))}
    if loss_mask:
        arrays["loss_mask"] = memory.new("loss_mask", grid, np.float32)
    for name, array in arrays.items():
        setattr(padded, name, address(array))
    _check_clash(store, arrays)
    fields, table = _field_arrays(store, grid, padded.rows, memory)
    padded.fields = C.cast(table, C.c_void_p).value
    call("ravel_padded_pack", C.byref(store._c), C.byref(bin_), C.byref(chosen), C.byref(padded))
    numbers = {name: getattr(padded, name) for name in ("samples_count", "rows", "columns", "prompt_columns",
                                                        "actual_tokens", "max_length")}
    return Batch({**arrays, **fields}, numbers, padded, chosen, (table, index, kept), _bits(store))


def _batch_shape(batch: Batch, kind: str) -> tuple[int, ...]:
    """The shape of results of that kind, without a width."""
    is_thd = isinstance(batch._c, _abi.ravel_thd)
    if kind == "sample":
        return (batch._c.sequences if is_thd else batch._c.rows,)
    return (batch._c.local_tokens,) if is_thd else (batch._c.rows, batch._c.columns)


def _contiguous(array: Any, what: str) -> Any:
    """Without holes: a copy on the host, an error on a device."""
    if not isinstance(array, DeviceArray):
        return np.ascontiguousarray(array)
    if not array.is_contiguous:
        raise ValueError(f"{what} is on {array.device} and has holes or another order; copy it first (torch: .contiguous())")
    return array


def _same_place(what: str, array: Any, device: Device | None, other: str) -> None:
    """Refuses an array that is not where another one is."""
    own = array.device if isinstance(array, DeviceArray) else None
    if own is not device:
        here, there = (f"on {place}" if place is not None else "in host memory" for place in (own, device))
        raise ValueError(f"{what} is {here} and {other} {there}; move one of them")


def _results(need: int, like: Any, code: int, width: int, out: Any, place: Device | None, stream: int) -> Any:
    """Where results in sample order go: the caller's array, or a new one of zeros."""
    elements = need // like.itemsize // width
    shape = (elements,) if width == 1 else (elements, width)
    if out is None and place is None:
        return np.zeros(shape, like.dtype)
    if out is None:
        assert place is not None
        made = DeviceArray.empty(place, shape, code, stream)
        made.fill(0)
        return made
    array, own = any_array(out, "out", stream=stream) if not isinstance(out, np.ndarray) else (out, code)
    _same_place("out", array, place, "this batch")
    usable = array.is_contiguous and not array.read_only if isinstance(array, DeviceArray) else \
        array.flags.c_contiguous and array.flags.writeable and array.dtype == like.dtype
    if array.nbytes != need or own != code or not usable:
        raise ValueError(f"out must be a contiguous, writable array of {need} bytes of {like.dtype}")
    return array


def scatter(store: Ragged, batch: Batch, packed: ArrayLike, *, kind: str = "token", out: Any = None, stream: Any = None) -> Any:
    """Per-token results of a packed (or padded, or cp-sharded) batch back in sample order.

    ``kind`` is the kind of field that they are: "step" for next-token log-probs (one less than tokens per sample). Call it
    once per bin (and each cp rank's shard) with the same ``out``. A batch on a CUDA device takes results there, and gives a
    :class:`ravel.DeviceArray`, or fills the tensor ``out``, in ``stream`` (see :func:`pack`).
    """
    _check_kind(kind)
    place = store.device if batch._c.place.kind == _abi.RAVEL_DEVICE else None
    number = 0 if place is None else stream_number(stream, place.index)
    data, code = any_array(packed, "packed", stream=None if place is None else number)
    _same_place("packed", data, place, "this batch")
    data = _contiguous(data, "packed")
    is_thd = isinstance(batch._c, _abi.ravel_thd)
    rows = 1 if is_thd else 2
    if kind != "sample" and data.ndim not in (rows, rows + 1):
        raise ValueError(f"packed results must have {rows} dimensions (or one more for a width), not {data.ndim}")
    shape = _batch_shape(batch, kind)
    if data.shape[:len(shape)] != shape:
        raise ValueError(f"packed results have shape {data.shape}; this batch is {shape}")
    width = int(np.prod(data.shape[len(shape):], dtype=np.int64))
    field = _abi.ravel_field(name=b"result", kind=_KINDS[kind], dtype=code, width=width, place=place_of(data))
    result = _results(lib.ravel_field_bytes(C.byref(store._c), C.byref(field)), data, code, width, out, place, number)
    if out is None and data.ndim > len(shape) + 1 and place is None:
        result = result.reshape(-1, *data.shape[len(shape):])
    own = type(batch._c).from_buffer_copy(batch._c)
    if place is not None:
        own.place.stream = place.stream(number)
    if is_thd:
        call("ravel_thd_unpack", C.byref(store._c), C.byref(batch._options), C.byref(own), C.byref(field), address(data),
             address(result))
    else:
        call("ravel_padded_unpack", C.byref(store._c), C.byref(own), C.byref(field), address(data), address(result))
    return result if out is None else out


def _cp(ranks: int, kind: str) -> _abi.ravel_cp:
    if kind not in _CP_KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_CP_KINDS)}")
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    return _abi.ravel_cp(ranks=ranks, kind=_CP_KINDS.index(kind))


def _slots(cu_seqlens_padded: ArrayLike) -> np.ndarray:
    slots = as_array(cu_seqlens_padded, np.int32, "cu_seqlens_padded")
    if slots.size < 1:
        raise ValueError("cu_seqlens_padded is empty; it begins with 0")
    return slots


def _move(name: str, cp: _abi.ravel_cp, rank: int, slots: np.ndarray, from_: Any, to: Any) -> None:
    """ravel_cp_gather or ravel_cp_scatter, where the arrays are."""
    each = to.itemsize * int(np.prod(to.shape[1:], dtype=np.int64))
    place = place_of(to)
    call(name, C.byref(cp), rank, address(slots), slots.size - 1, address(from_), each, address(to), C.byref(place))


def _alike(shape: Any, like: Any) -> Any:
    """A new array of another one's dtype, where that one is."""
    return DeviceArray.empty(like.device, shape, like.code, like.stream) if isinstance(like, DeviceArray) else \
        np.empty(shape, like.dtype)


def cp_shard(whole: ArrayLike, cu_seqlens_padded: ArrayLike, rank: int, ranks: int, kind: str = "zig-zag", *,
             stream: Any = None) -> Any:
    """This rank's positions of an array over a packed bin's tokens (its first dimension). Of a tensor on a CUDA device: there,
    in ``stream``; ``cu_seqlens_padded`` is a host array."""
    cp, slots = _cp(ranks, kind), _slots(cu_seqlens_padded)
    array = _contiguous(any_array(whole, "whole", stream=stream)[0], "whole")
    if array.shape[:1] != (int(slots[-1]),):
        raise ValueError(f"the array has shape {array.shape}; cu_seqlens_padded ends at {int(slots[-1])} positions")
    shard = _alike((array.shape[0] // ranks, *array.shape[1:]), array)
    _move("ravel_cp_gather", cp, rank, slots, array, shard)
    return shard


def cp_unshard(shards: Sequence[ArrayLike], cu_seqlens_padded: ArrayLike, kind: str = "zig-zag", *, stream: Any = None) -> Any:
    """All ranks' shards, in rank order, back to the whole array."""
    slots = _slots(cu_seqlens_padded)
    parts = [_contiguous(any_array(s, "a shard", stream=stream)[0], "a shard") for s in shards]
    if not parts or any(p.shape != parts[0].shape or p.dtype != parts[0].dtype for p in parts):
        raise ValueError("shards must be as many arrays as there are ranks, all of one shape and dtype")
    if parts[0].ndim < 1 or parts[0].shape[0] * len(parts) != int(slots[-1]):
        raise ValueError(f"{len(parts)} shards of shape {parts[0].shape} do not make {int(slots[-1])} positions")
    for part in parts:
        _same_place("a shard", part, parts[0].device if isinstance(parts[0], DeviceArray) else None, "the first")
    whole, cp = _alike((int(slots[-1]), *parts[0].shape[1:]), parts[0]), _cp(len(parts), kind)
    for rank, part in enumerate(parts):
        _move("ravel_cp_scatter", cp, rank, slots, part, whole)
    return whole
