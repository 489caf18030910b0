"""Arrays in a GPU's memory: handles of devices and streams, arrays of our own, tensors of others by DLPack.

A stream is a number, as in DLPack: 1 is CUDA's default stream, 2 the per-thread one, anything else a stream's address
(``torch.cuda.current_stream().cuda_stream``). What is queued in a stream is done when the stream comes to it, not when a call
returns. An array knows the stream that writes it; another stream that reads it is made to wait for that one.
"""

from __future__ import annotations

import ctypes as C
import sys
import threading
import weakref
from typing import Any, Sequence

import numpy as np

from . import _abi
from ._dlpack import CUDA, CUDA_MANAGED, Taken, device_of, give, row_major, take
from ._lib import NUMPY, address, call, lib

__all__ = ["Device", "DeviceArray", "is_on_device", "note_reader", "open_device", "pinned", "place_of", "stream_number"]

DEFAULT_STREAM = 1
WAIT_SECONDS = 600.0


class Device:
    """A GPU, opened once in a process and kept."""

    def __init__(self, index: int):
        pointer = C.c_void_p()
        call("ravel_device_open", f"cuda:{index}".encode(), C.byref(pointer))
        assert pointer.value is not None
        self.index, self.pointer = index, pointer.value
        self._streams: dict[int, int] = {}

    def stream(self, number: int) -> int:
        """The library's handle of a stream that somebody else made."""
        if number not in self._streams:
            pointer = C.c_void_p()
            call("ravel_stream_adopt", self.pointer, number, C.byref(pointer))
            assert pointer.value is not None
            self._streams[number] = pointer.value
        return self._streams[number]

    def order(self, later: int, earlier: int) -> None:
        """What is queued in ``later`` from now on waits for what is in ``earlier`` now."""
        if later != earlier:
            call("ravel_stream_follow", self.stream(later), self.stream(earlier))

    def wait(self, number: int) -> None:
        """Until everything in the stream is done."""
        call("ravel_stream_wait", self.stream(number), WAIT_SECONDS)

    def __repr__(self) -> str:
        return f"cuda:{self.index}"


_devices: dict[int, Device] = {}
_lock = threading.Lock()


def open_device(which: Any = 0) -> Device:
    """The device of a number, of "cuda" or "cuda:1", or of torch's."""
    text = str(which)
    index = int(text) if text.isdigit() else 0 if text == "cuda" else \
        int(text[5:]) if text.startswith("cuda:") and text[5:].isdigit() else -1
    if index < 0:
        raise ValueError(f"device is {which!r}; it must be a number, \"cuda\" or \"cuda:N\"")
    with _lock:
        if index not in _devices:
            _devices[index] = Device(index)
        return _devices[index]


def stream_number(stream: Any, device: int) -> int:
    """A stream as DLPack's number: of a number, of torch's or CuPy's stream, of anything with ``__cuda_stream__``. None: torch's
    current stream where torch uses the GPU, else the default stream."""
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return DEFAULT_STREAM
        stream = torch.cuda.current_stream(device)
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr"):  # torch, CuPy
        stream = getattr(stream, name, stream)
    if not isinstance(stream, (int, np.integer)) or isinstance(stream, bool) or stream < 0:
        raise TypeError(f"stream is {stream!r}; it must be a stream's number, a stream of torch or CuPy, or None")
    return int(stream) or DEFAULT_STREAM  # CUDA's own 0 is the default stream too


class _Block:
    """Memory of the device's cache. Other streams that use it are noted, and waited for before it is used again."""

    def __init__(self, device: Device, bytes_: int, stream: int):
        pointer = C.c_void_p()
        call("ravel_device_alloc", device.pointer, _abi.RAVEL_DEVICE, bytes_, device.stream(stream), C.byref(pointer))
        self.pointer, self.bytes, self.others = pointer.value or 0, bytes_, set[int]()
        self._finalizer = weakref.finalize(self, _release, device, self.pointer, stream, self.others)
        self._finalizer.atexit = False  # the process's end frees it


def _release(device: Device, pointer: int, stream: int, others: set[int]) -> None:
    for number in others:
        device.order(stream, number)
    lib.ravel_device_release(device.pointer, pointer, device.stream(stream))


class DeviceArray:
    """An array in a GPU's memory. It speaks DLPack: ``torch.from_dlpack(array)``, or :meth:`torch`, is a tensor over the same
    memory, ordered after what writes it. :meth:`numpy` copies it to the host, :meth:`of` from there."""

    def __init__(self, device: Device, pointer: int, shape: Sequence[int], strides: Sequence[int], code: int, stream: int,
                 owner: Any, read_only: bool = False):
        self.device, self.pointer, self.code, self.stream = device, pointer, code, stream
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.read_only, self._owner = read_only, owner

    @classmethod
    def empty(cls, device: Device, shape: Sequence[int], code: int, stream: int) -> "DeviceArray":
        """Memory that is not set, for use in ``stream``."""
        shape = tuple(int(n) for n in shape)
        bytes_ = int(np.prod(shape, dtype=np.int64)) * int(lib.ravel_dtype_bytes(code))
        block = _Block(device, bytes_, stream)
        return cls(device, block.pointer, shape, row_major(shape), code, stream, block)

    @classmethod
    def of(cls, array: Any, device: Any = 0, *, stream: Any = None, dtype: Any = None) -> "DeviceArray":
        """A copy of a host array on ``device`` ("cuda:1", or a number). ``dtype`` says what its bits are ("bf16")."""
        from ._dtype import with_code

        there = open_device(device)
        number = stream_number(stream, there.index)
        data, code = with_code(array, "array", dtype)
        data = np.ascontiguousarray(data)
        made = cls.empty(there, data.shape, code, number)
        call("ravel_device_copy", there.pointer, made.pointer, address(data), data.nbytes, there.stream(number))
        return made

    @classmethod
    def taken(cls, value: Any, what: str, stream: Any = None) -> "DeviceArray":
        """A tensor of another library on a CUDA device, over its own memory, ready in ``stream``."""
        kind, index = device_of(value)
        assert kind in (CUDA, CUDA_MANAGED)
        device = open_device(index)
        number = stream_number(stream, index)
        if isinstance(value, cls):
            return value.in_stream(number)
        tensor: Taken = take(value, what, number)
        return cls(device, tensor.pointer, tensor.shape, tensor.strides, tensor.code, number, tensor, tensor.read_only)

    def in_stream(self, stream: int) -> "DeviceArray":
        """The same array, ready in another stream."""
        if stream == self.stream:
            return self
        self.used_in(stream)
        return DeviceArray(self.device, self.pointer, self.shape, self.strides, self.code, stream, self._owner, self.read_only)

    def used_in(self, stream: int) -> None:
        """Orders another stream after this array's, and the memory's next use after that stream."""
        self.device.order(stream, self.stream)
        if isinstance(self._owner, _Block) and stream != self.stream:
            self._owner.others.add(stream)

    def reshaped(self, shape: Sequence[int]) -> "DeviceArray":
        """The first elements in another shape; of an array without holes."""
        return DeviceArray(self.device, self.pointer, shape, row_major(tuple(shape)), self.code, self.stream, self._owner,
                           self.read_only)

    def part(self, first: int, count: int) -> "DeviceArray":
        """``count`` elements of a flat array from ``first`` on, over the same memory."""
        return DeviceArray(self.device, self.pointer + first * self.itemsize, (count,), (1,), self.code, self.stream, self._owner,
                           self.read_only)

    def as_dtype(self, code: int) -> "DeviceArray":
        """The same bytes under another dtype of the same width."""
        return DeviceArray(self.device, self.pointer, self.shape, self.strides, code, self.stream, self._owner, self.read_only)

    @property
    def dtype(self) -> str:
        """Ravel's name: "i32", "bf16"."""
        return str(lib.ravel_dtype_name(self.code).decode())

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(lib.ravel_dtype_bytes(self.code))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def capacity(self) -> int:
        """Bytes of the memory behind it, where that is ours; else 0."""
        return self._owner.bytes if isinstance(self._owner, _Block) else 0

    @property
    def is_contiguous(self) -> bool:
        """Whether it is row-major without holes."""
        steps = row_major(self.shape)
        return self.size == 0 or all(n == 1 or have == want for n, have, want in zip(self.shape, self.strides, steps))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<ravel.DeviceArray: {list(self.shape)} {self.dtype} on {self.device}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device.index

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A capsule. ``stream`` is the consumer's, which is made to wait: 1 (and None) the default stream, 2 the per-thread one,
        -1: no waiting."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}; DLPack moves nothing: use numpy() or torch().to(...)")
        if copy:
            raise BufferError("DLPack copies nothing here: copy what you got")
        if stream == 0:
            raise ValueError("stream 0 is ambiguous in DLPack: 1 is the default stream, 2 the per-thread one")
        if stream != -1:
            self.used_in(stream_number(DEFAULT_STREAM if stream is None else stream, self.device.index))
        return give(self.pointer, self.shape, self.strides, self.code, self.__dlpack_device__(), self, self.read_only, max_version)

    def torch(self) -> Any:
        """A torch tensor over the same memory."""
        import torch

        from ._dtype import torch_bits

        if self.code in NUMPY or self.code == _abi.RAVEL_BF16:
            return torch.from_dlpack(self)
        return torch.from_dlpack(self.as_dtype(_abi.RAVEL_U8)).view(torch_bits(torch, self.code))  # float8: not in every torch

    def numpy(self) -> np.ndarray:
        """A copy in host memory; waits for the array. bf16 and float8 come as unsigned integers of their width."""
        if not self.is_contiguous:
            raise ValueError("the array has holes: copy it on the device first")
        out = np.empty(self.shape, NUMPY.get(self.code) or f"u{self.itemsize}")
        if out.size:
            call("ravel_device_copy", self.device.pointer, address(out), self.pointer, out.nbytes, self.device.stream(self.stream))
        self.device.wait(self.stream)
        return out

    def fill(self, byte: int) -> None:
        """Sets every byte, in the array's stream."""
        call("ravel_device_fill", self.device.pointer, self.pointer, byte, self.nbytes, self.device.stream(self.stream))

    def twin(self) -> "DeviceArray":
        """Memory of the same shape and strides, not set."""
        span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if self.size else 0
        made = DeviceArray.empty(self.device, (span,), self.code, self.stream)
        return DeviceArray(self.device, made.pointer, self.shape, self.strides, self.code, self.stream, made._owner)

    def assign(self, other: "DeviceArray") -> None:
        """Copies an array of the same shape and strides on the same device, in this array's stream. Holes are left alone."""
        other = other.in_stream(self.stream)
        handle, item = self.device.stream(self.stream), self.itemsize
        for offset, count in _runs(self.shape, self.strides):
            call("ravel_device_copy", self.device.pointer, self.pointer + offset * item, other.pointer + offset * item,
                 count * item, handle)


def _runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first element, elements) of the runs without holes, the last dimensions joined where they can be."""
    if 0 in shape:
        return []
    count, outer = 1, len(shape)
    while outer and (shape[outer - 1] == 1 or strides[outer - 1] == count):
        outer -= 1
        count *= shape[outer]
    return [(sum(i * s for i, s in zip(at, strides)), count) for at in np.ndindex(*shape[:outer])]


def is_on_device(value: Any) -> bool:
    """Whether a value is a tensor in a CUDA device's memory."""
    return not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__") and device_of(value)[0] in (CUDA, CUDA_MANAGED)


def place_of(array: Any) -> _abi.ravel_place:
    """Where an array is, as the library's structs say it."""
    if not isinstance(array, DeviceArray):
        return _abi.ravel_place()
    return _abi.ravel_place(kind=_abi.RAVEL_DEVICE, stream=array.device.stream(array.stream))


# ---- page-locked host memory -----------------------------------------------------------------------------------------


class _Pinned:
    """A page-locked block. Copies that were queued from it are waited for before the cache gets it back."""

    def __init__(self, device: Device, bytes_: int):
        pointer = C.c_void_p()
        call("ravel_device_alloc", device.pointer, _abi.RAVEL_PINNED, max(1, bytes_), device.stream(DEFAULT_STREAM),
             C.byref(pointer))
        assert pointer.value is not None
        self.pointer, self.events = pointer.value, list[int]()
        self.device = device
        self._finalizer = weakref.finalize(self, _returned.append, (device, self.pointer, self.events))
        self._finalizer.atexit = False

    def read_by(self, stream: int) -> None:
        """Notes that what is now in ``stream`` reads the block."""
        event = C.c_void_p()
        call("ravel_event_create", self.device.pointer, C.byref(event))
        assert event.value is not None
        self.events.append(event.value)
        call("ravel_event_record", event.value, self.device.stream(stream))


_returned: list[tuple[Device, int, list[int]]] = []  # blocks that nobody holds; copies from them may still be under way


def _sweep() -> None:
    """Gives the cache what is not read any more."""
    for entry in list(_returned):
        device, pointer, events = entry
        while events and _is_done(events[-1]):
            lib.ravel_event_free(events.pop())
        if not events:
            _returned.remove(entry)
            lib.ravel_device_release(device.pointer, pointer, device.stream(DEFAULT_STREAM))


def _is_done(event: int) -> bool:
    done = C.c_int32()
    call("ravel_event_test", event, C.byref(done))
    return bool(done.value)


def pinned(bytes_: int, device: Any = 0) -> np.ndarray:
    """A uint8 array in page-locked memory of the device's cache."""
    there = open_device(device)
    with _lock:
        _sweep()
    owner = _Pinned(there, bytes_)
    block: Any = (C.c_uint8 * bytes_).from_address(owner.pointer)
    block._owner = owner
    array: np.ndarray = np.ctypeslib.as_array(block)
    return array


def note_reader(array: np.ndarray, stream: int) -> None:
    """Where an array lies in :func:`pinned` memory: what is in ``stream`` now reads it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = getattr(getattr(base, "obj", base), "_owner", None)
    if isinstance(owner, _Pinned):
        owner.read_by(stream)
