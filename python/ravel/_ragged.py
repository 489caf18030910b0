"""The ragged store: samples side by side, one flat array for each field."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from . import _abi
from ._device import Device, DeviceArray, is_on_device, place_of
from ._dtype import any_array, with_code
from ._lib import address, as_array, call, host_array, lib
from ._typing import ArrayLike

__all__ = ["Field", "Ragged"]

KINDS = {"token": _abi.RAVEL_FIELD_TOKEN, "next": _abi.RAVEL_FIELD_NEXT, "step": _abi.RAVEL_FIELD_STEP,
         "sample": _abi.RAVEL_FIELD_SAMPLE, "spread": _abi.RAVEL_FIELD_SPREAD}


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")


def _jagged_lengths(value: Any) -> np.ndarray | None:
    """The rows' lengths of a nested tensor; None for anything else."""
    if not getattr(value, "is_nested", False):
        return None
    if str(getattr(value, "layout", "")) != "torch.jagged":
        raise TypeError("nested tensors must have layout torch.jagged; this one has torch.strided rows: use "
                        "torch.nested.as_nested_tensor(rows, layout=torch.jagged)")
    return host_array(value.offsets().diff().cpu(), "offsets").astype(np.int64)


def _flat(value: Any, what: str, kind: str) -> tuple[Any, int]:
    """A contiguous array of one or two dimensions (of any number with one element per sample) and its dtype's number: of an array, of
    a list of arrays (concatenated), of a nested tensor (its values). A tensor on a CUDA device stays there."""
    if getattr(value, "is_nested", False):
        value = value.values()
    if isinstance(value, (list, tuple)) and len(value) and hasattr(value[0], "__len__"):
        if is_on_device(value[0]):
            raise TypeError(f"{what} is a list of tensors on a CUDA device; join them (torch.cat)")
        parts = [with_code(v, what) for v in value]
        array, code = np.concatenate([part for part, _ in parts]), parts[0][1]
    else:
        array, code = any_array(value, what)
    if not isinstance(array, DeviceArray):
        array = np.ascontiguousarray(array)
    elif not array.is_contiguous:
        raise ValueError(f"{what} is on {array.device} and has holes or another order; copy it first (torch: .contiguous())")
    if array.ndim < 1 or (array.ndim > 2 and kind != "sample"):
        raise ValueError(f"{what} must be flat, or [elements, width]; it has {array.ndim} dimensions")
    return array, code


class Field:
    """One array of a ragged store.

    ``kind`` says what an element belongs to: "token" (element t at position t), "next" (element t + 1 at position t:
    labels, loss masks, weights), "step" (one element less than tokens: next-token log-probs), "sample" (one per sample, of any shape),
    "spread" (one per sample, at each of its positions). ``pad`` stands where there is nothing.

    ``data`` is flat, [elements, width], a list of one array per sample, padded rows [samples, columns] (what lies beyond
    a sample's length is left out), or a nested torch tensor. torch's bfloat16 and float8 tensors are taken as their bits;
    ``Batch.torch()`` gives them back as they were. A tensor on a CUDA device is flat or [elements, width] and contiguous.
    """

    def __init__(self, name: str, data: ArrayLike, kind: str = "token", pad: float = 0):
        check_kind(kind)
        self.name, self.kind, self.pad = name, kind, pad
        self.jagged = _jagged_lengths(data)
        self.data: Any
        self.data, self.dtype = _flat(data, name, kind)
        self.shape: tuple[int, ...] = tuple(self.data.shape[1:])
        """Of one element."""
        self.width = int(np.prod(self.shape, dtype=np.int64))

    def _fit(self, lengths: np.ndarray) -> None:
        """Looks at the lengths: rows of a nested tensor must have them, padded rows are cut to them."""
        if self.jagged is not None and not np.array_equal(self.jagged, lengths):
            raise ValueError(f"{self.name} is a nested tensor whose rows have other lengths than the samples")
        if self.data.ndim == 2 and self.kind in ("token", "next") and self._is_padded(lengths):
            if isinstance(self.data, DeviceArray):
                raise ValueError(f"{self.name} is padded rows on {self.data.device}; cut them there: "
                                 f"{self.name}[attention_mask.bool()]")
            self.data = self.data[np.arange(self.data.shape[1]) < lengths[:, None]]
            self.width, self.shape = 1, ()

    def _is_padded(self, lengths: np.ndarray) -> bool:
        rows, columns = self.data.shape
        if rows == int(lengths.sum()):  # [elements, width]: what it always meant
            return False
        if rows != lengths.size:
            raise ValueError(f"{self.name} has shape {self.data.shape}; with {lengths.size} samples of {int(lengths.sum())} "
                             f"tokens it must be [{int(lengths.sum())}], [{int(lengths.sum())}, width], or padded rows "
                             f"[{lengths.size}, columns]")
        if lengths.size and int(lengths.max()) > columns:
            raise ValueError(f"{self.name} has rows of {columns} columns; sample {int(np.argmax(lengths))} has "
                             f"{int(lengths.max())} tokens")
        return True

    def _c(self) -> _abi.ravel_field:
        return _abi.ravel_field(name=self.name.encode(), kind=KINDS[self.kind], dtype=self.dtype, width=self.width,
                                data=address(self.data), pad=self.pad, place=place_of(self.data))


def _common_device(fields: dict[str, Field]) -> Device | None:
    """The device that all fields are on; None: host memory."""
    places = {name: field.data.device if isinstance(field.data, DeviceArray) else None for name, field in fields.items()}
    first = next(iter(places), None)
    for name, place in places.items():
        assert first is not None
        if place is not places[first]:
            here, there = (str(p) if p is not None else "in host memory" for p in (places[first], place))
            raise ValueError(f"{first} is {'on ' * (places[first] is not None)}{here} and {name} "
                             f"{'on ' * (place is not None)}{there}; all fields of a store are in one place")
    return None if first is None else places[first]


def _lengths_of(fields: dict[str, Field]) -> np.ndarray:
    """Where no lengths were given: those of a nested tensor among the fields."""
    for field in fields.values():
        if field.jagged is not None:
            return field.jagged
    raise TypeError("give lengths: no field is a nested tensor that would tell them")


class Ragged:
    """Samples side by side: lengths, and one flat array for each field.

    >>> store = ravel.Ragged(lengths=[3, 5], tokens=ids, labels=ravel.Field("labels", ids, "next", pad=-100))
    >>> store = ravel.Ragged(attention_mask.sum(1), tokens=input_ids)       padded rows [samples, columns]
    >>> store = ravel.Ragged(tokens=nested)                                 a nested (jagged) torch tensor has lengths itself

    A plain array given by keyword is a field of kind "token". Where the fields are tensors on a CUDA device, all of them, ``pack``
    and ``scatter`` work there (``device``); lengths and prompts are host arrays.
    """

    device: Device | None
    """That the fields are on; None: host memory."""

    fixed = False
    """Samples have no tokens: see :meth:`of_samples`."""

    def __init__(self, lengths: ArrayLike | None = None, *, prompts: ArrayLike | None = None,
                 **fields: "ArrayLike | Field"):
        self.fields: dict[str, Field] = {
            name: value if isinstance(value, Field) else Field(name, value) for name, value in fields.items()}
        sizes = _lengths_of(self.fields) if lengths is None else as_array(lengths, np.int64, "lengths")
        self.lengths = sizes
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        self.prompts = None if prompts is None else as_array(prompts, np.int64, "prompts", sizes.size)
        self._update()

    @classmethod
    def of_samples(cls, **fields: "ArrayLike | Field") -> "Ragged":
        """Samples of a fixed shape without tokens (images, latents, audio clips): arrays [samples, ...], of any further shape, one element
        per sample. ``lengths`` are 1: a budget is a number of samples, weights are one per sample.

        >>> store = ravel.Ragged.of_samples(latents=latents, timestep=t, reward=rewards)
        """
        made = {name: value if isinstance(value, Field) else Field(name, value, "sample") for name, value in fields.items()}
        if not made:
            raise ValueError("give fields: arrays of one element per sample")
        first = next(iter(made.values()))
        for field in made.values():
            if field.kind != "sample" or field.data.shape[0] != first.data.shape[0]:
                raise ValueError(f"{field.name} is of kind {field.kind!r} with {field.data.shape[0]} elements; samples without tokens have "
                                 f"fields of kind 'sample' alone, here of {first.data.shape[0]}")
        store = cls.__new__(cls)
        store.fields, store.fixed, store.prompts = made, True, None
        store.lengths = np.ones(first.data.shape[0], np.int64)
        store.offsets = np.arange(store.lengths.size + 1, dtype=np.int64)
        store._update()
        return store

    @classmethod
    def from_padded(cls, attention_mask: ArrayLike, *, prompts: ArrayLike | None = None, **fields: ArrayLike) -> "Ragged":
        """From rows that are padded on any side: [samples, columns] arrays, of which the elements where ``attention_mask`` is
        not 0 are kept."""
        mask = host_array(attention_mask, "attention_mask") != 0
        if mask.ndim != 2:
            raise ValueError(f"attention_mask must be [samples, columns]; it has {mask.ndim} dimensions")
        kept: dict[str, ArrayLike] = {}
        for name, value in fields.items():
            array, _ = with_code(value, name)
            if array.shape[:2] != mask.shape:
                raise ValueError(f"{name} has shape {array.shape}; attention_mask has {mask.shape}")
            tensor: Any = value
            kept[name] = tensor[mask] if hasattr(value, "is_nested") else array[mask]
        return cls(mask.sum(1).astype(np.int64), prompts=prompts, **kept)

    def _update(self) -> None:
        """The C struct over the fields as they are now."""
        self.device = _common_device(self.fields)
        for field in self.fields.values():
            field._fit(self.lengths)
        self._array = (_abi.ravel_field * max(1, len(self.fields)))(*[f._c() for f in self.fields.values()])
        self._c = _abi.ravel_ragged(size=C.sizeof(_abi.ravel_ragged), count=self.lengths.size,
                                    offsets=None if self.fixed else address(self.offsets), prompts=address(self.prompts), fields=self._array,
                                    field_count=len(self.fields))
        call("ravel_ragged_check", C.byref(self._c))
        for field in self.fields.values():
            need = lib.ravel_field_bytes(C.byref(self._c), C.byref(field._c()))
            if need != field.data.nbytes:
                each = field.data.itemsize * field.width
                raise ValueError(f"{field.name} has {field.data.nbytes // each} elements; kind {field.kind!r} needs "
                                 f"{need // each} for these lengths")

    def add(self, name: str, data: ArrayLike, kind: str = "token", pad: float = 0) -> None:
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

    def __repr__(self) -> str:
        return (f"<ravel.Ragged: {len(self)} samples, {int(self.offsets[-1])} tokens, fields "
                f"{', '.join(self.fields) or 'none'}>")
