"""What the array arguments of this package take."""

from __future__ import annotations

from typing import Any, Protocol, Sequence, Union

import numpy as np

__all__ = ["ArrayLike"]


class SupportsDLPack(Protocol):
    """A tensor of any library that speaks DLPack, such as torch's."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


class SupportsBuffer(Protocol):
    """Anything with the buffer protocol: bytes, memoryview, array.array, mmap."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


ArrayLike = Union["np.ndarray[Any, Any]", SupportsDLPack, SupportsBuffer, Sequence[Any]]
"""A numpy array, a host tensor (DLPack), the buffer protocol, or a sequence of numbers or of arrays."""
