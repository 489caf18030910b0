"""NeMo-RL's packed broadcast (``nemo_rl.utils.packed_tensor``, read at commit 7ea279ab): weights as few large broadcasts.

    import ravel.adapters.nemo_rl_refit; ravel.adapters.nemo_rl_refit.install()

in the policy's and the generator's worker processes, or ``RAVEL_NEMO_RL_REFIT=1`` in the environment of vLLM's workers, whose plug-in
then calls it. The bytes and their cuts are NeMo-RL's, so one end may be theirs. Differences: the producer copies tensors straight
into buffers that live from refit to refit, instead of holding a copy of each and joining them, so it needs half the memory; weights
may be in host memory (over gloo).

All or nothing, checksums and changed elements only need another wire: ``ravel.adapters.vllm`` and :class:`ravel.Refit`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from contextlib import nullcontext
from typing import Any, Callable, Iterator

from ._switch import put

__all__ = ["install", "packed_broadcast_consumer", "packed_broadcast_producer"]

_HOME = "nemo_rl.utils.packed_tensor"
_LARGEST = 5 << 30  # NeMo-RL's limit of a buffer

_buffers: dict[tuple[str, int], Any] = {}  # (device, number): of the producer, kept from refit to refit


def _setting(name: str, default: Callable[[], int]) -> int:
    """NeMo-RL's own function where it is loaded, so that what it caches or a test replaces counts."""
    theirs = getattr(sys.modules.get(_HOME), name, None)
    return int(theirs()) if theirs is not None else default()


def _buffer_bytes(device: Any) -> int:
    def own() -> int:
        import torch

        ratio = float(os.environ.get("NRL_REFIT_BUFFER_MEMORY_RATIO", "0.02"))
        total = (torch.cuda.get_device_properties(device).total_memory if device.type == "cuda"
                 else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return min(int(total * ratio), _LARGEST)

    return _setting("get_target_packed_tensor_size", own)


def _buffer_count() -> int:
    return max(1, _setting("get_num_buffers", lambda: int(os.environ.get("NRL_REFIT_NUM_BUFFERS", "2"))))


def _device_of(group: Any) -> Any:
    """The group's device, as vLLM's communicator names it; else the GPU, or the host where there is none."""
    import torch

    device = getattr(group, "device", None)
    return torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")


def _streams(device: Any, count: int) -> list[Any]:
    import torch

    return [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(count)]


def _within(stream: Any) -> Any:
    import torch

    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _wait(stream: Any) -> None:
    if stream is not None:
        stream.synchronize()


def _chunks(items: Iterator[Any], size: Callable[[Any], int], limit: int) -> Iterator[tuple[list[Any], int]]:
    """Items until they are *over* the limit: both ends cut alike, from sizes alone."""
    chunk: list[Any] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total > limit:
            yield chunk, total
            chunk, total = [], 0
    if chunk:
        yield chunk, total


def _buffer(device: Any, number: int, size: int) -> Any:
    import torch

    held = _buffers.get((str(device), number))
    if held is None or held.numel() < size:
        _buffers.pop((str(device), number), None)
        del held
        held = _buffers[str(device), number] = torch.empty(size, dtype=torch.uint8, device=device)
    return held[:size]


def packed_broadcast_producer(iterator: Iterator[Any], group: Any, src: int, post_iter_func: Callable[[Any], Any], *,
                              buffer_size_bytes: int | None = None, num_buffers: int | None = None) -> None:
    """Broadcasts ``post_iter_func(item)`` of every item, packed. Nothing of the weights is read any more after it returns."""
    import torch

    device = _device_of(group)
    limit = _buffer_bytes(device) if buffer_size_bytes is None else int(buffer_size_bytes)
    count = _buffer_count() if num_buffers is None else int(num_buffers)
    streams = _streams(device, count)

    def tensors() -> Iterator[Any]:
        for item in iterator:
            tensor = post_iter_func(item)
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"post_iter_func gave {type(tensor).__name__}; it must give a tensor")
            yield tensor

    turn = 0
    try:
        made = _chunks(tensors(), lambda t: t.numel() * t.element_size(), limit)
        while True:
            turn = (turn + 1) % count
            _wait(streams[turn])  # the broadcast that used this buffer
            with _within(streams[turn]):
                chunk, total = next(made, (None, 0))  # in this stream: post_iter_func may launch kernels
                if chunk is None:
                    break
                packed, at = _buffer(device, turn, total), 0
                for tensor in chunk:
                    size = tensor.numel() * tensor.element_size()
                    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
                    packed[at:at + size].copy_(raw, non_blocking=tensor.device.type == "cuda")
                    at += size
                group.broadcast(packed, src=src)
    finally:
        for stream in streams:
            _wait(stream)


def _unpack(packed: Any, chunk: list[Any]) -> list[tuple[str, Any]]:
    done, at = [], 0
    for name, (shape, dtype) in chunk:
        size = math.prod(shape) * dtype.itemsize
        raw = packed[at:at + size]
        if at % dtype.itemsize:  # nothing is padded between tensors: a view needs its own alignment
            raw = raw.clone()
        done.append((name, raw.view(dtype).reshape(tuple(shape))))
        at += size
    return done


def packed_broadcast_consumer(iterator: Iterator[Any], group: Any, src: int, post_unpack_func: Callable[[list[Any]], Any]) -> None:
    """Receives what a producer sends: ``iterator`` announces (name, (shape, dtype)) in its order. ``post_unpack_func`` gets lists of
    (name, tensor), which stay valid as long as they are held."""
    import torch

    device, count = _device_of(group), _buffer_count()
    streams, limit, turn = _streams(device, count), _buffer_bytes(device), 0
    try:
        for chunk, total in _chunks(iterator, lambda entry: math.prod(entry[1][0]) * entry[1][1].itemsize, limit):
            turn = (turn + 1) % count
            _wait(streams[turn])
            with _within(streams[turn]):
                packed = torch.empty(total, dtype=torch.uint8, device=device)
                group.broadcast(packed, src=src)
                post_unpack_func(_unpack(packed, chunk))
    finally:
        for stream in streams:
            _wait(stream)


def install(module: Any = _HOME) -> list[str]:
    """Replaces NeMo-RL's producer and consumer, also where workers have imported them. Returns the places. A release whose functions
    take what ours do not know (newer ones exchange a token of readiness first) is an error, and nothing is changed."""
    target = importlib.import_module(module) if isinstance(module, str) else module
    ours = {f.__name__: f for f in (packed_broadcast_producer, packed_broadcast_consumer)}
    for name, function in ours.items():
        theirs = getattr(target, name, None)
        unknown = set(inspect.signature(theirs).parameters) - set(inspect.signature(function).parameters) if theirs else ()
        if unknown:
            raise AttributeError(f"{target.__name__}.{name} takes {', '.join(sorted(unknown))}, which the adapter does not know: this "
                                 f"release is not one that it fits; nothing was changed")
    return put(target, ours)
