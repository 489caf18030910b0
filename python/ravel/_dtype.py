"""Element types: numpy's, Ravel's numbers, and the names that both sides use."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from ._device import DeviceArray, is_on_device
from ._lib import NUMPY, call, host_array, host_tensor, lib

__all__ = ["CODES", "NUMPY", "any_array", "code_of", "name_of", "parse", "torch_bits", "with_code"]

CODES: dict[np.dtype, int] = {np.dtype(v): k for k, v in NUMPY.items()}


def name_of(code: int) -> str:
    """ "bf16" for RAVEL_BF16."""
    return str(lib.ravel_dtype_name(code).decode())


def parse(name: Any) -> int:
    """The number of "bf16", "torch.bfloat16", "float32", ..."""
    code = C.c_int32()
    call("ravel_dtype_parse", str(name).encode(), C.byref(code))
    return code.value


def code_of(array: np.ndarray, what: str, name: Any = None) -> int:
    """The number of an array's dtype; ``name`` says what its bits are where numpy has no such type ("bf16")."""
    if name is not None:
        code = parse(name)
        if lib.ravel_dtype_bytes(code) != array.dtype.itemsize:
            raise TypeError(f"{what} has elements of {array.dtype.itemsize} bytes, which cannot be {name_of(code)}")
        return code
    try:
        return CODES[array.dtype]
    except KeyError:
        raise TypeError(f"{what} has dtype {array.dtype}, which Ravel does not have") from None


def _as_bits(value: Any) -> tuple[Any, str | None]:
    """A torch tensor of a dtype that numpy lacks (bfloat16, float8) as its bits, and the dtype's name; anything else as it is."""
    own = str(getattr(value, "dtype", ""))
    if not own.startswith("torch.") or hasattr(np, own[6:]) or own == "torch.bool":
        return value, None
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[value.element_size()]
    return value.detach().view(bits), own


def with_code(value: Any, what: str, name: Any = None) -> tuple[np.ndarray, int]:
    """A value as a host array over its own memory, and its dtype's number; what numpy lacks (bfloat16, float8) is taken as its
    bits."""
    value, own = _as_bits(value)
    if own is not None:
        return host_array(value, what), parse(name or own)
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        tensor = host_tensor(value, what)
        array = tensor.numpy(NUMPY.get(tensor.code) or f"u{lib.ravel_dtype_bytes(tensor.code)}")
        return array, tensor.code if name is None else code_of(array, what, name)
    array = host_array(value, what)
    return array, code_of(array, what, name)


def any_array(value: Any, what: str, name: Any = None, stream: Any = None) -> tuple[Any, int]:
    """The same where the array may be on a CUDA device: then a :class:`DeviceArray` that is ready in ``stream``."""
    if not is_on_device(value):
        return with_code(value, what, name)
    value, own = _as_bits(value)
    array = DeviceArray.taken(value, what, stream)
    if own is None and name is None:
        return array, array.code
    code = parse(name or own)
    if lib.ravel_dtype_bytes(code) != array.itemsize:
        raise TypeError(f"{what} has elements of {array.itemsize} bytes, which cannot be {name_of(code)}")
    return array.as_dtype(code), code


_TORCH_NAMES = {"bf16": "bfloat16", "f8-e4m3": "float8_e4m3fn", "f8-e5m2": "float8_e5m2", "f8-e8m0": "float8_e8m0fnu"}


def torch_bits(torch: Any, code: int) -> Any:
    """torch's dtype of one of the library's that numpy lacks."""
    name = name_of(code)
    return getattr(torch, _TORCH_NAMES.get(name, name))
