"""Element types: numpy's, Ravel's numbers, and the names that both sides use."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from . import _abi
from ._lib import call, host_array, lib

__all__ = ["CODES", "NUMPY", "code_of", "name_of", "parse", "with_code"]

NUMPY: dict[int, Any] = {
    _abi.RAVEL_U8: np.uint8, _abi.RAVEL_I8: np.int8, _abi.RAVEL_I16: np.int16, _abi.RAVEL_U16: np.uint16,
    _abi.RAVEL_I32: np.int32, _abi.RAVEL_U32: np.uint32, _abi.RAVEL_I64: np.int64, _abi.RAVEL_U64: np.uint64,
    _abi.RAVEL_F16: np.float16, _abi.RAVEL_F32: np.float32, _abi.RAVEL_F64: np.float64, _abi.RAVEL_BOOL: np.bool_,
    _abi.RAVEL_C64: np.complex64}
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


def with_code(value: Any, what: str, name: Any = None) -> tuple[np.ndarray, int]:
    """A value as an array over its own memory, and its dtype's number; a torch tensor of a dtype that numpy lacks
    (bfloat16, float8) is taken as its bits."""
    own = str(getattr(value, "dtype", ""))
    if own.startswith("torch.") and not hasattr(np, own[6:]) and own != "torch.bool":
        import torch

        bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[value.element_size()]
        return host_array(value.detach().view(bits), what), parse(name or own)
    array = host_array(value, what)
    return array, code_of(array, what, name)
