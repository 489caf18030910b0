"""What the engines' plug-ins share: whole tensors by Hugging Face's names, pulled into host memory and verified there before
the engine sees any of them."""

from __future__ import annotations

import time
from typing import Any, Iterator, Sequence

import numpy as np

from .._dtype import NUMPY, parse
from .._lib import Error, lib
from .._publish import Identity, Puller
from .._refit import RefitTensor

_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "float8_e4m3fn": "f8-e4m3",
          "float8_e5m2": "f8-e5m2", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64"}

RECONNECT_SECONDS = 5.0  # for a puller to notice that the trainers were started again


def whole_tensors(names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, RefitTensor]:
    """Host memory for tensors that the trainers announced ("bfloat16", "torch.float32", ... are understood)."""
    found = {}
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        word = str(dtype).removeprefix("torch.")
        word = _NAMES.get(word, word)
        code = parse(word)
        kind = np.dtype(NUMPY.get(code) or f"u{lib.ravel_dtype_bytes(code)}")
        found[name] = RefitTensor(np.empty(tuple(shape), kind), dtype=word)
    return found


class Staged:
    """A generator's copy: :meth:`receive` stages and verifies, :meth:`take` commits and hands out (name, array)."""

    def __init__(self, address: str, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]],
                 timeout: float = 600, token: str | None = None):
        self.timeout, self.live = timeout, False
        self.puller = Puller(address, whole_tensors(names, dtypes, shapes), timeout=timeout, token=token)

    def receive(self, version: int = 0) -> None:
        """Until ``version`` (0: the newest) is staged and verified. The request of the trainer may arrive before the
        publication shows the version. A version that is live already can be taken again."""
        self.puller.drop()  # what an update left that failed on another worker
        until = time.monotonic() + self.timeout
        while version and self.puller.newest.version < version and time.monotonic() < until:
            time.sleep(0.002)
        self.live = version > 0 and self._is_live(version, min(until, time.monotonic() + RECONNECT_SECONDS))
        if not self.live:
            self.puller.wait(self.timeout)

    def _is_live(self, version: int, until: float) -> bool:
        """Whether the version is live; else it is being staged. Trainers that were started again may publish an earlier
        version than the newest known here, or other weights under the same number: hence the second tries."""
        while True:
            try:
                self.puller.stage(version)
                return False
            except Error as problem:
                if problem.status != "E_STATE":
                    raise
                if time.monotonic() >= until:
                    if self.puller.identity.version == version and self.puller.newest == self.puller.identity:
                        return True
                    raise
            time.sleep(0.02)

    def take(self) -> Iterator[tuple[str, Any]]:
        if not self.live:
            self.puller.commit()
        yield from self.puller.weights.items()

    @property
    def identity(self) -> Identity:
        return self.puller.identity

    def close(self) -> None:
        self.puller.close()


def to_torch(array: Any, dtype: str) -> Any:
    """The same memory as a torch tensor of the engine's dtype."""
    import torch

    wanted = getattr(torch, str(dtype).removeprefix("torch."))
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(wanted).reshape(array.shape)
