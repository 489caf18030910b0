"""Loss weights that make packing exact: computed once per update from global integer counts."""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable

import numpy as np

from . import _abi
from ._batch import Ragged, _bin
from ._dtype import code_of
from ._lib import address, as_array, call, host_array
from ._options import Table
from ._typing import ArrayLike

__all__ = ["Counts", "counts", "weights"]

_TABLE = Table(_abi.ravel_weights_options, "ravel_weights")
_WORDS = C.sizeof(_abi.ravel_counts) // 8


class Counts:
    """Integer counts of samples and loss tokens. ``array`` is a numpy view to all-reduce (sum) over ranks in place."""

    def __init__(self) -> None:
        self._c = _abi.ravel_counts()
        self.array = np.frombuffer(memoryview(self._c), np.int64, _WORDS)

    def __getattr__(self, name: str) -> int:
        if name in ("samples", "samples_with_loss", "tokens", "loss_tokens"):
            return int(getattr(self._c, name))
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<ravel.Counts: {self.samples} samples, {self.loss_tokens} loss tokens of {self.tokens}>"


def _mask(store: Ragged, mask: Any) -> tuple[Any, Any]:
    if mask is None:
        return None, None
    data = np.ascontiguousarray(host_array(mask, "mask"))
    total, steps = int(store.offsets[-1]), int(store.offsets[-1]) - len(store)
    if data.size == total:
        kind = _abi.RAVEL_FIELD_NEXT
    elif data.size == steps:
        kind = _abi.RAVEL_FIELD_STEP
    else:
        raise ValueError(f"the mask has {data.size} entries; {total} (one per token) or {steps} (one per prediction) fit")
    field = _abi.ravel_field(name=b"mask", kind=kind, dtype=code_of(data, "mask"), width=1, data=address(data))
    return C.byref(field), (field, data)


def _sample_weights(store: Ragged, values: Any) -> np.ndarray | None:
    return None if values is None else as_array(values, np.float64, "sample_weights", len(store))


def counts(store: Ragged, *, samples: ArrayLike | None = None, mask: ArrayLike | None = None,
           sample_weights: ArrayLike | None = None,
           add_to: Counts | None = None) -> Counts:
    """Counts of a bin's samples, or of the whole store. Add up all bins of an update, then sum over ranks."""
    result = add_to or Counts()
    pointer, keep = _mask(store, mask)
    own = _sample_weights(store, sample_weights)
    bin_ = None if samples is None else _bin(samples)
    call("ravel_counts_add", C.byref(store._c), None if bin_ is None else C.byref(bin_[0]), pointer, address(own),
         C.byref(result._c))
    del keep
    return result


def weights(store: Ragged, *, mode: str = "token-mean", mask: ArrayLike | None = None,
            sample_weights: ArrayLike | None = None, samples: ArrayLike | None = None, update_counts: Counts | None = None,
            all_reduce: Callable[[np.ndarray], None] | None = None, dtype: Any = np.float32,
            **options: Any) -> np.ndarray:
    """The weight of every token, as the token that is predicted: pack it as a field of kind "next". Of samples without tokens
    (``Ragged.of_samples``) one per sample, of kind "sample": the mean over samples, or with ``sample_weights`` their weighted mean.

    The loss of an update is then sum(weight * token loss) over all ranks and micro-steps, whatever the packing.
    ``mask`` says which tokens count (one per token; the store's prompts decide where it is None). Counts are those of the
    whole update: ``update_counts``, or counted here over the store and, with ``all_reduce`` (called with an int64 array
    to be summed over ranks in place), over all ranks. Options: empty ("count", "skip"), divisor, dp, dp_reduce
    ("sum": gradients are summed, "mean": averaged), micro_steps, step_reduce, cp, cp_reduce.
    """
    wanted = np.dtype(dtype)
    if wanted not in (np.float32, np.float64):
        raise TypeError(f"weights are float32 or float64, not {wanted}")
    chosen = _TABLE.make(mode=mode, **options)
    if update_counts is None:
        update_counts = counts(store, mask=mask, sample_weights=sample_weights)
        if all_reduce is not None:
            all_reduce(update_counts.array)
    pointer, keep = _mask(store, mask)
    own = _sample_weights(store, sample_weights)
    bin_ = None if samples is None else _bin(samples)
    out = np.zeros(int(store.offsets[-1]), wanted)
    call("ravel_weights_fill", C.byref(store._c), None if bin_ is None else C.byref(bin_[0]), pointer, address(own),
         C.byref(update_counts._c), C.byref(chosen), _abi.RAVEL_F32 if wanted == np.float32 else _abi.RAVEL_F64,
         address(out))
    del keep
    return out
