"""Safetensors without a framework: views of a mapped file."""

from __future__ import annotations

import ctypes as C
import os
from typing import Any, Iterator, Mapping

import numpy as np

from . import _abi
from ._dtype import CODES, NUMPY
from ._lib import Handle, address, call, lib
from ._refit import RefitTensor

__all__ = ["Safetensors", "read_safetensors", "write_safetensors"]


class Safetensors(Mapping[str, np.ndarray]):
    """The tensors of a file, a folder or an index, by name. Arrays are read-only views of the mapped file, which stays
    open as long as one of them lives. numpy has no bfloat16: such tensors come as float32, copied; ``dtype(name)`` says
    what the file holds, ``raw(name)`` gives its bytes."""

    def __init__(self, path: str | os.PathLike[str]):
        pointer = C.c_void_p()
        call("ravel_safetensors_open", os.fsencode(path), None, C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_safetensors_free)
        self._tensors: dict[str, _abi.ravel_safetensor] = {}
        for i in range(lib.ravel_safetensors_count(self._handle.pointer)):
            tensor = lib.ravel_safetensors_at(self._handle.pointer, i).contents
            self._tensors[tensor.name.decode()] = tensor
        self.metadata = {
            lib.ravel_safetensors_metadata_key(self._handle.pointer, i).decode():
            lib.ravel_safetensors_metadata_value(self._handle.pointer, i).decode()
            for i in range(lib.ravel_safetensors_metadata_count(self._handle.pointer))}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, without reading it."""
        tensor = self._tensors[name]
        return tuple((C.c_int64 * tensor.rank).from_address(tensor.dims)) if tensor.rank else ()

    def dtype(self, name: str) -> str:
        """As Ravel calls it: "bf16", "f32", ..."""
        return str(lib.ravel_dtype_name(self._tensors[name].dtype).decode())

    def raw(self, name: str) -> np.ndarray:
        """The bytes of the tensor in the file, for any dtype."""
        tensor = self._tensors[name]
        if tensor.bytes == 0:
            return np.empty(0, np.uint8)
        block = (C.c_uint8 * tensor.bytes).from_address(tensor.data)
        block._owner = self._handle
        array = np.frombuffer(block, np.uint8)
        array.flags.writeable = False
        return array

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        if tensor.dtype in NUMPY:
            found: np.ndarray = self.raw(name).view(NUMPY[tensor.dtype]).reshape(self.shape(name))
            return found
        out = np.empty(tensor.count, np.float32)
        call("ravel_safetensor_read", C.byref(tensor), 0, tensor.count, _abi.RAVEL_F32, address(out))
        return out.reshape(self.shape(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read_safetensors(path: str | os.PathLike[str]) -> Safetensors:
    """Opens a file, a "*.index.json" or a folder of shards; files are mapped, not read."""
    return Safetensors(path)


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Any],
                      metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file whole: the path holds the old one or the new one at any time. A :class:`RefitTensor` says a dtype that numpy
    lacks."""
    keep = []
    table = (_abi.ravel_safetensor * max(1, len(tensors)))()
    for entry, (name, value) in zip(table, tensors.items()):
        array = np.asarray(value.data if isinstance(value, RefitTensor) else value, order="C")
        code = value.code if isinstance(value, RefitTensor) else CODES.get(array.dtype)
        if code is None:
            raise TypeError(f"{name} has dtype {array.dtype}, which safetensors cannot hold")
        dims = (C.c_int64 * max(1, array.ndim))(*array.shape)
        entry.name, entry.dtype, entry.rank = name.encode(), code, array.ndim
        entry.dims, entry.count, entry.bytes = C.addressof(dims), array.size, array.nbytes
        entry.data = address(array) if array.size else None
        keep.append((array, dims))
    pairs = [text.encode() for item in (metadata or {}).items() for text in item]
    strings = (C.c_char_p * max(1, len(pairs)))(*pairs)
    call("ravel_safetensors_write", os.fsencode(path), table, len(tensors), C.cast(strings, C.c_void_p),
         len(pairs) // 2, None)
    del keep
