"""Finds and loads libravel, turns statuses into exceptions, and moves arrays across without copying.

The library is looked for in RAVEL_LIBRARY (a file), beside this package (a wheel bundles it), and in ../../build of a
checkout. ctypes releases the GIL during every call.
"""

from __future__ import annotations

import ctypes as C
import os
import pathlib
import re
import weakref
from typing import Any, Callable

import numpy as np

from . import _abi, _dlpack

__all__ = ["Error", "ArgumentError", "DataError", "OversizeError", "PeerError", "Raised", "lib"]


class Error(Exception):
    """A call that failed: the library's sentence, and its status ("E_DATA")."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = _STATUS_NAMES.get(status, f"E_{status}")
        self.code = status


class ArgumentError(Error, ValueError):
    """An argument or option is wrong."""


class DataError(Error, ValueError):
    """The data is wrong: a sample, a file or a message."""


class OversizeError(DataError):
    """A sample does not fit the budget."""


class PeerError(Error):
    """A peer ended, left, failed or did not come in time; the communicator cannot be used any more."""


NUMPY: dict[int, Any] = {
    _abi.RAVEL_U8: np.uint8, _abi.RAVEL_I8: np.int8, _abi.RAVEL_I16: np.int16, _abi.RAVEL_U16: np.uint16,
    _abi.RAVEL_I32: np.int32, _abi.RAVEL_U32: np.uint32, _abi.RAVEL_I64: np.int64, _abi.RAVEL_U64: np.uint64,
    _abi.RAVEL_F16: np.float16, _abi.RAVEL_F32: np.float32, _abi.RAVEL_F64: np.float64, _abi.RAVEL_BOOL: np.bool_,
    _abi.RAVEL_C64: np.complex64}
"""The library's dtypes that numpy has."""
_STATUS_NAMES = {value: name[len("RAVEL_"):] for name, value in vars(_abi).items()
                 if name == "RAVEL_OK" or name.startswith("RAVEL_E_")}
_CLASSES = {
    _abi.RAVEL_E_ARGUMENT: ArgumentError, _abi.RAVEL_E_OVERFLOW: ArgumentError, _abi.RAVEL_E_DATA: DataError,
    _abi.RAVEL_E_CHECKSUM: DataError, _abi.RAVEL_E_MISMATCH: DataError, _abi.RAVEL_E_OVERSIZE: OversizeError,
    _abi.RAVEL_E_PEER_LOST: PeerError, _abi.RAVEL_E_TIMEOUT: PeerError, _abi.RAVEL_E_DEAD: PeerError,
}


def _candidates() -> list[pathlib.Path]:
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("RAVEL_LIBRARY")
    return [pathlib.Path(named)] if named else [here / "libravel.so", here.parents[1] / "build" / "libravel.so"]


SONAME = "libravel.so.0"


def _mapped() -> pathlib.Path:
    """Where the loader found the system's library."""
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf8").splitlines():
        if "/libravel.so" in line:
            return pathlib.Path(line[line.index("/"):])
    return pathlib.Path(SONAME)


def _load() -> tuple[C.CDLL, pathlib.Path]:
    tried = _candidates()
    for path in tried:
        if path.exists():
            library = C.CDLL(str(path))
            break
    else:
        try: # the system's, of a Debian package or of `make install`
            library = C.CDLL(SONAME if not os.environ.get("RAVEL_LIBRARY") else str(tried[0]))
            path = _mapped()
        except OSError:
            raise ImportError(f"libravel.so was not found; looked for {', '.join(map(str, tried))} and the system's {SONAME}. "
                              "Run `make` in the checkout, `pip install ./python`, or set RAVEL_LIBRARY.") from None
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as missing:
            raise ImportError(f"{path} has no {name}: it is another version than this package") from missing
        function.restype, function.argtypes = result, arguments
    return library, path.resolve()


lib, path = _load()


option_names: dict[str, str] = {}
"""Options whose names are written otherwise in C's sentences and on the command line: "max-samples" -> "max_samples"."""


def _as_keywords(sentence: str) -> str:
    """A sentence with options under the names that they have here."""
    return re.sub(r"(?<![\w./\"'-])(?:--)?([a-z]+(?:-[a-z0-9]+)+)(?![\w./-]*[\w/])",
                  lambda found: option_names.get(found[1], found[0]), sentence)


def check(status: int, error: _abi.ravel_error) -> None:
    """Raises the exception that fits a status; does nothing for RAVEL_OK."""
    if status != _abi.RAVEL_OK:
        message = _as_keywords(error.message.decode("utf-8", "replace"))
        raise _CLASSES.get(status, Error)(status, message or lib.ravel_status_text(status).decode())


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose last argument is the error record, and raises if it fails."""
    error = _abi.ravel_error()
    check(getattr(lib, name)(*arguments, C.byref(error)), error)


def fields(struct: Any) -> dict[str, Any]:
    """name -> ctypes kind of a struct's fields."""
    return {field[0]: field[1] for field in struct._fields_}


class Raised:
    """What a callback of the caller raised: it travels through C as E_CALLBACK and comes out as itself.

    A callback must not let an exception out (ctypes would print it and go on); :meth:`guard` keeps it here and writes
    its sentence into the library's error record, and :meth:`call` raises it again when the C call has come back.
    """

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def keep(self, exception: BaseException, error: Any) -> int:
        if self.first is None:
            self.first = exception
        if error:
            say(error.contents, f"{type(exception).__name__}: {exception}")
        return _abi.RAVEL_E_CALLBACK

    def guard(self, function: Callable[..., None], error: Any, *arguments: Any) -> int:
        """Runs a callback's body; the status to return to C."""
        try:
            function(*arguments)
            return _abi.RAVEL_OK
        except BaseException as exception:  # KeyboardInterrupt too: it must not get lost in C
            return self.keep(exception, error)

    def quietly(self, function: Callable[..., None], *arguments: Any) -> None:
        """The same for callbacks that cannot fail in C: what they raise comes out of the call, whatever its status."""
        self.guard(function, None, *arguments)

    def again(self, status: int, error: _abi.ravel_error) -> None:
        """Raises what a callback raised, else what the status says."""
        first, self.first = self.first, None
        if first is not None:
            raise first
        check(status, error)

    def call(self, name: str, *arguments: Any) -> None:
        error = _abi.ravel_error()
        self.again(getattr(lib, name)(*arguments, C.byref(error)), error)


def say(error: _abi.ravel_error, sentence: str) -> None:
    """Writes into an error record of the library; the first error wins."""
    if error.status == _abi.RAVEL_OK:
        error.status = _abi.RAVEL_E_CALLBACK
        error.message = sentence.encode()[:_abi.ravel_error.message.size - 1].decode("utf-8", "ignore").encode()


_DEVICES = {_dlpack.CUDA: "a CUDA device", _dlpack.CUDA_MANAGED: "a CUDA device", 7: "a Vulkan device", 8: "a Metal device",
            10: "a ROCm device", 14: "a oneAPI device"}


def host_tensor(value: Any, what: str) -> _dlpack.Taken:
    """A tensor that speaks DLPack, which must be in host memory."""
    kind = _dlpack.device_of(value)[0]
    if kind not in _dlpack.HOSTS:
        raise TypeError(f"{what} is on {_DEVICES.get(kind, 'another device')}; only host memory can be used here: copy it "
                        f"(torch: .cpu())")
    return _dlpack.take(value, what)


def host_array(value: Any, what: str) -> np.ndarray:
    """An array over the same memory: numpy arrays, DLPack (host torch tensors), the buffer protocol, sequences."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        tensor = host_tensor(value, what)
        if tensor.code not in NUMPY:
            raise TypeError(f"{what} has dtype {lib.ravel_dtype_name(tensor.code).decode()}, which cannot be used here")
        return tensor.numpy(NUMPY[tensor.code])
    return np.asarray(value)


def as_array(value: Any, dtype: Any, what: str, count: int | None = None) -> np.ndarray:
    """A contiguous array of exactly this dtype, without a copy where the input already is one.

    Takes numpy arrays, anything with the buffer protocol or DLPack (host torch tensors), and sequences. Floats that
    are whole numbers are not taken for integers: that is how a wrong column gets in.
    """
    array = host_array(value, what)
    if array.ndim != 1:
        raise ValueError(f"{what} must have one dimension, not {array.ndim}")
    if count is not None and array.size != count:
        raise ValueError(f"{what} has {array.size} entries; there are {count} samples")
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    wanted = np.dtype(dtype)
    if array.size == 0:
        array = array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, not {array.dtype}")
    if wanted.kind == "f" and array.dtype.kind not in "iuf":
        raise TypeError(f"{what} must be numbers, not {array.dtype}")
    if array.dtype != wanted and wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise OverflowError(f"{what} has a value that does not fit {wanted}")
    return np.require(array, wanted, ["C", "A"])


def address(array: Any) -> int | None:
    """Where an array's first element is, in host memory or on a device."""
    if array is None:
        return None
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.pointer or None


_CTYPES: dict[np.dtype, Any] = {np.dtype(k): v for k, v in {
    np.uint8: C.c_uint8, np.int32: C.c_int32, np.int64: C.c_int64, np.float32: C.c_float, np.float64: C.c_double}.items()}


def view(pointer: int | None, count: int, dtype: Any, owner: object) -> np.ndarray:
    """A read-only array over memory of the library; it keeps `owner` alive."""
    if not count or not pointer:
        return np.empty(0, dtype)
    block = (_CTYPES[np.dtype(dtype)] * count).from_address(pointer)
    block._owner = owner  # the array's base is the block, and the block holds the owner
    array = np.ctypeslib.as_array(block)
    array.flags.writeable = False
    return array


def _release(free: Callable[[Any], None], pointer: Any, _keep: Any) -> None:
    free(pointer)


class Handle:
    """An object of the library, freed with the last reference to it; ``keep`` lives until then."""

    def __init__(self, pointer: Any, free: Callable[[Any], None], keep: Any = None):
        self.pointer = pointer
        self._finalizer = weakref.finalize(self, _release, free, pointer, keep)

    def close(self) -> None:
        self._finalizer()


def collect(name: str, *arguments: Any) -> str:
    """Calls a function that hands out text in pieces (the arguments before `write`), and returns the text."""
    parts: list[bytes] = []

    def take(_user: Any, text: Any, size: int, error: Any) -> int:
        return raised.guard(lambda: parts.append(C.string_at(text, size)), error)

    raised = Raised()
    raised.call(name, *arguments, _abi.ravel_write(take), None)
    return b"".join(parts).decode("utf-8")


def view_bytes(pointer: int | None, size: int) -> memoryview:
    """Memory of the library as writable bytes, for the time of a callback."""
    return memoryview((C.c_uint8 * size).from_address(pointer) if pointer and size else bytearray()).cast("B")
