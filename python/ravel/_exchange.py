"""The steps between a plan and packed batches that need a communicator, each by itself: gather, compare, exchange, share."""

from __future__ import annotations

import ctypes as C
from typing import Any, Sequence

import numpy as np

from . import _abi
from ._lib import Handle, address, as_array, call, lib, view
from ._plan import Plan
from ._ragged import Ragged
from ._source import copy_ragged
from ._typing import ArrayLike
from .comm import Comm

__all__ = ["Arrived", "compare", "exchange", "gather", "share", "share_words"]


def gather(comm: Comm, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Every rank's integers (lengths, say), in rank order, and how many each rank had: what a plan is made from."""
    mine = as_array(values, np.int64, "values")
    counts = np.empty(comm.size, np.int64)
    comm._call("ravel_gather_counts", mine.size, address(counts))
    out = np.empty(int(counts.sum()), np.int64)
    comm._call("ravel_gather", address(mine), address(counts), 1, address(out))
    return out, counts


def compare(comm: Comm, plan: Plan) -> None:
    """Collective. Raises on every rank, naming the ranks, where plans differ; before any data moves."""
    comm._call("ravel_compare", int(plan.digest, 16))


class Arrived(Ragged):
    """The samples of this rank's bins, bin after bin and in the order of each, so that the k-th of all is sample k.
    ``numbers`` are what the plan calls them; ``bins`` are index arrays into this store, one per micro-step."""

    numbers: np.ndarray
    bins: list[np.ndarray]


def exchange(comm: Comm, plan: Plan, store: Ragged, counts: ArrayLike) -> Arrived:
    """Collective over the plan's data-parallel ranks. Sends every sample to the rank that the plan gives it to, all fields in one
    ragged all-to-all. ``counts`` are the samples of each rank, as :func:`gather` returns them, in the order of the plan's input."""
    sizes_each = as_array(counts, np.int64, "counts", comm.size)
    lengths = np.ascontiguousarray(plan.lengths, np.int64)
    pointer = C.c_void_p()
    call("ravel_exchange_create", plan._handle.pointer, address(sizes_each), address(lengths), comm.rank, None, C.byref(pointer))
    handle = Handle(pointer.value, lib.ravel_exchange_free)
    sizes = _abi.ravel_exchange_sizes()
    lib.ravel_exchange_measure(handle.pointer, C.byref(store._c), C.byref(sizes))
    result, scratch = np.empty(max(1, sizes.result_bytes), np.uint8), np.empty(max(1, sizes.scratch_bytes), np.uint8)
    ragged = _abi.ravel_ragged()
    comm.raised.call("ravel_exchange_run", handle.pointer, comm.pointer, C.byref(store._c), address(result), address(scratch),
                     C.byref(ragged))
    copied = copy_ragged(ragged)
    arrived = Arrived.__new__(Arrived)
    arrived.__dict__.update(copied.__dict__)
    arrived.numbers = view(lib.ravel_exchange_samples(handle.pointer), sizes.samples, np.int32, handle).copy()
    ends = np.cumsum([part.size for part in plan.micro_steps(comm.rank)])
    arrived.bins = [np.asarray(part, np.int32) for part in np.split(np.arange(int(sizes.samples)), ends[:-1])] if ends.size else []
    return arrived


def share_words(comm: Comm, values: ArrayLike | None = None, root: int = 0) -> np.ndarray:
    """Collective. The integers of ``root`` on every rank, however many there are: the shape of what will be sent, over the pipeline
    stages and then over tensor-parallel ranks. ``values`` are looked at on ``root`` only."""
    words = _abi.ravel_words()
    try:
        if comm.rank == root:
            mine = as_array(() if values is None else values, np.int64, "values")
            call("ravel_words_resize", C.byref(words), mine.size)
            if mine.size:
                C.memmove(words.at, mine.ctypes.data, mine.nbytes)
        comm._call("ravel_share_words", C.byref(words), root)
        return np.frombuffer(C.string_at(words.at, 8 * words.count), np.int64).copy() if words.count else np.empty(0, np.int64)
    finally:
        lib.ravel_words_free(C.byref(words))


def share(comm: Comm, array: Any, root: int = 0, wants: Sequence[bool] | None = None) -> None:
    """Collective. The array of ``root`` into those of the other ranks, in place: of all, or of those whose place in ``wants`` is
    true (pipeline stages that need it). What was packed goes this way to tensor-parallel peers; cut it for cp first."""
    data, _ = comm._whole(array, "array", None, writes=True)
    flags = None if wants is None else as_array([int(bool(w)) for w in wants], np.int32, "wants", comm.size)
    comm._call("ravel_share_bytes", address(data), data.nbytes, address(flags), root)
