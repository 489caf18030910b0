"""DLPack: tensors of other libraries taken over, and ours handed out, both over the same memory.

    take(value, "tokens", stream)  ->  Taken: address, shape, strides, dtype, device; it owns the exporter's tensor
    give(pointer, shape, ...)      ->  a capsule; whoever takes it owns a reference to our memory

Both forms of capsule are known: ``dltensor`` of the first version, and ``dltensor_versioned`` of 1.x with its flags. A tensor's
deleter is called once: by us when the last array over it is gone or when it is refused, by the capsule where nobody took it.
"""

from __future__ import annotations

import ctypes as C
import weakref
from typing import Any, Callable

import numpy as np

from . import _abi

__all__ = ["CPU", "CUDA", "CUDA_HOST", "CUDA_MANAGED", "HOSTS", "Taken", "device_of", "give", "row_major", "take"]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
HOSTS = (CPU, CUDA_HOST, 11)  # 11: ROCm's page-locked memory
READ_ONLY = 1  # of ManagedVersioned.flags
VERSION = (1, 1)  # that we write; any minor version of 1 is read

_CODES = {  # DLPack's (code, bits) -> Ravel's number
    (0, 8): _abi.RAVEL_I8, (0, 16): _abi.RAVEL_I16, (0, 32): _abi.RAVEL_I32, (0, 64): _abi.RAVEL_I64,
    (1, 8): _abi.RAVEL_U8, (1, 16): _abi.RAVEL_U16, (1, 32): _abi.RAVEL_U32, (1, 64): _abi.RAVEL_U64,
    (2, 16): _abi.RAVEL_F16, (2, 32): _abi.RAVEL_F32, (2, 64): _abi.RAVEL_F64, (4, 16): _abi.RAVEL_BF16,
    (5, 64): _abi.RAVEL_C64, (6, 8): _abi.RAVEL_BOOL, (10, 8): _abi.RAVEL_F8_E4M3, (12, 8): _abi.RAVEL_F8_E5M2,
    (14, 8): _abi.RAVEL_F8_E8M0}
_TYPES = {code: pair for pair, code in _CODES.items()}


class Device(C.Structure):
    _fields_ = [("kind", C.c_int32), ("index", C.c_int32)]


class Type(C.Structure):
    _fields_ = [("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16)]


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device", Device), ("ndim", C.c_int32), ("type", Type),
                ("shape", C.POINTER(C.c_int64)), ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


class Managed(C.Structure):
    _fields_ = [("tensor", Tensor), ("context", C.c_void_p), ("deleter", C.c_void_p)]


class ManagedVersioned(C.Structure):
    _fields_ = [("major", C.c_uint32), ("minor", C.c_uint32), ("context", C.c_void_p), ("deleter", C.c_void_p),
                ("flags", C.c_uint64), ("tensor", Tensor)]


# Names of capsules, before and after they were taken. A capsule keeps the pointer: these live as long as the process.
_NAMES: dict[Any, tuple[Any, Any]] = {
    ManagedVersioned: (C.create_string_buffer(b"dltensor_versioned"), C.create_string_buffer(b"used_dltensor_versioned")),
    Managed: (C.create_string_buffer(b"dltensor"), C.create_string_buffer(b"used_dltensor"))}
_Deleter = C.CFUNCTYPE(None, C.c_void_p)
_is_valid = C.PYFUNCTYPE(C.c_int, C.c_void_p, C.c_char_p)(("PyCapsule_IsValid", C.pythonapi))
_get_pointer = C.PYFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p)(("PyCapsule_GetPointer", C.pythonapi))
_set_name = C.PYFUNCTYPE(C.c_int, C.py_object, C.c_char_p)(("PyCapsule_SetName", C.pythonapi))
_new = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(("PyCapsule_New", C.pythonapi))


# ---- in --------------------------------------------------------------------------------------------------------------


def device_of(value: Any) -> tuple[int, int]:
    """(kind, index) of the device that a tensor is on, in DLPack's numbers."""
    if not hasattr(value, "__dlpack_device__"):
        return CPU, 0
    kind, index = value.__dlpack_device__()
    return int(kind), int(index)


def _call_deleter(address: int, deleter: int | None) -> None:
    if deleter:
        _Deleter(deleter)(address)


class Taken:
    """A tensor of another library. It is given back with the last reference to this object."""

    def __init__(self, address: int, kind: Any, what: str):
        managed = kind.from_address(address)
        self._finalizer = weakref.finalize(self, _call_deleter, address, managed.deleter)
        self._finalizer.atexit = False  # the exporter may be gone by then
        if kind is ManagedVersioned and managed.major != VERSION[0]:  # the rest of the struct is not known
            version = f"{managed.major}.{managed.minor}"
            self._finalizer()
            raise BufferError(f"{what} comes as DLPack {version}; versions up to {VERSION[0]}.x are known")
        tensor = managed.tensor
        n, pair, lanes = tensor.ndim, (tensor.type.code, tensor.type.bits), tensor.type.lanes
        if lanes != 1 or pair not in _CODES:
            self._finalizer()
            raise TypeError(f"{what} has DLPack's type {pair[0]} of {pair[1]} bits and {lanes} lanes, which Ravel does not have")
        self.code: int = _CODES[pair]
        self.shape: tuple[int, ...] = tuple(tensor.shape[:n]) if n else ()
        self.strides: tuple[int, ...] = tuple(tensor.strides[:n]) if n and tensor.strides else row_major(self.shape)
        self.pointer: int = (tensor.data or 0) + tensor.byte_offset
        self.kind, self.index = int(tensor.device.kind), int(tensor.device.index)
        self.read_only = kind is ManagedVersioned and bool(managed.flags & READ_ONLY)

    def numpy(self, dtype: Any) -> np.ndarray:
        """A numpy array over host memory; the array keeps this object."""
        wanted = np.dtype(dtype)
        if 0 in self.shape:
            return np.empty(self.shape, wanted)
        steps = [s * wanted.itemsize for s in self.strides]
        low = sum(min(0, (n - 1) * s) for n, s in zip(self.shape, steps))
        high = sum(max(0, (n - 1) * s) for n, s in zip(self.shape, steps)) + wanted.itemsize
        block = (C.c_uint8 * (high - low)).from_address(self.pointer + low)
        block._owner = self  # the array's base is the block, and the block holds its owner
        array: np.ndarray = np.ndarray(self.shape, wanted, buffer=block, offset=-low, strides=steps)
        array.flags.writeable = not self.read_only
        return array


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of an array without holes."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


def _export(value: Any, stream: int | None) -> Any:
    """The capsule; exporters of the first version do not know ``max_version``."""
    arguments = {} if stream is None else {"stream": stream}
    try:
        return value.__dlpack__(max_version=VERSION, **arguments)
    except TypeError:
        return value.__dlpack__(**arguments)


def take(value: Any, what: str, stream: int | None = None) -> Taken:
    """The tensor behind ``__dlpack__``. ``stream`` is where it will be read and written: 1 CUDA's default stream, 2 the
    per-thread one, else its address; the exporter lets that stream wait for its own work. None for host memory."""
    if getattr(value, "requires_grad", False):
        value = value.detach()
    capsule = _export(value, stream)
    for kind, (fresh, used) in _NAMES.items():
        if _is_valid(id(capsule), fresh.value):
            address = _get_pointer(id(capsule), fresh.value)
            _set_name(capsule, C.cast(used, C.c_char_p))
            return Taken(address, kind, what)
    raise BufferError(f"{what}: __dlpack__ gave {type(capsule).__name__}, not a DLPack capsule that nobody took yet")


# ---- out -------------------------------------------------------------------------------------------------------------

_exports: dict[int, Any] = {}  # address of what was handed out -> everything that it points at


def _delete(address: int) -> None:
    _exports.pop(address, None)


def _discard(capsule: int) -> None:
    """A capsule's end: what nobody took is given back."""
    for kind, (fresh, _) in _NAMES.items():
        if _is_valid(capsule, fresh.value):
            address = _get_pointer(capsule, fresh.value)
            _call_deleter(address, kind.from_address(address).deleter)


def _forever(function: Callable[[int], None]) -> Any:
    """A C function over ``function``. It may be called until the very end of the process: it is never freed."""
    made = _Deleter(function)
    C.pythonapi.Py_IncRef(C.py_object(made))
    return made


_DELETE, _DISCARD = _forever(_delete), _forever(_discard)


def give(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], code: int, device: tuple[int, int], keep: Any,
         read_only: bool, max_version: tuple[int, int] | None) -> Any:
    """A capsule over memory that ``keep`` holds; of 1.x where the consumer knows it."""
    if code not in _TYPES:
        raise BufferError("DLPack has no such element type")
    versioned = max_version is not None and tuple(max_version) >= (1, 0)
    if read_only and not versioned:
        raise BufferError("a read-only array needs DLPack 1.0: pass max_version=(1, 0)")
    n = len(shape)
    sizes, steps = (C.c_int64 * max(1, n))(*shape), (C.c_int64 * max(1, n))(*strides)
    kind: Any = ManagedVersioned if versioned else Managed
    made = kind(deleter=C.cast(_DELETE, C.c_void_p).value,
                tensor=Tensor(data=pointer, device=Device(*device), ndim=n, type=Type(*_TYPES[code], 1), shape=sizes, strides=steps))
    if versioned:
        (made.major, made.minor), made.flags = VERSION, READ_ONLY if read_only else 0
    address = C.addressof(made)
    _exports[address] = (made, sizes, steps, keep)
    return _new(address, C.cast(_NAMES[kind][0], C.c_char_p), C.cast(_DISCARD, C.c_void_p))
