"""Model shapes, lengths from files and mock data sets."""

from __future__ import annotations

import ctypes as C
import json
import os
from typing import Any, Iterator

import numpy as np

from . import _abi
from ._lib import Handle, address, call, fields, lib, view
from ._options import Table

__all__ = ["Lengths", "Mock", "Shape", "mock", "read_lengths", "shape", "shapes"]

_READ = Table(_abi.ravel_read_options, "ravel_read")


class Shape:
    """The shape of a transformer: hidden, layers, heads, kv_heads, head_dim, ffn, vocab, experts, ... as attributes."""

    def __init__(self, struct: _abi.ravel_shape):
        call("ravel_shape_check", C.byref(struct))
        self._c = struct

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._c, name)

    @property
    def parameters(self) -> int:
        """How many there are, embeddings counted once where tied."""
        return int(lib.ravel_shape_parameters(C.byref(self._c)))

    @property
    def cost(self) -> tuple[int, int, int]:
        """(linear, quadratic, overhead), as ``ravel.plan(cost=...)`` takes it."""
        cost = _abi.ravel_cost()
        call("ravel_cost_from_shape", C.byref(self._c), C.byref(cost))
        return cost.linear, cost.quadratic, cost.overhead

    def to_dict(self) -> dict[str, Any]:
        """Every field by name; ``ravel.shape(**fields)`` makes the shape again."""
        values = {name: getattr(self._c, name) for name in fields(self._c)}
        return {name: tuple(value) if isinstance(value, C.Array) else value for name, value in values.items()}

    def has_experts(self, layer: int) -> bool:
        """Whether the layer's feed-forward block is a choice of experts."""
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer} of {self.layers}")
        return bool(lib.ravel_shape_has_experts(C.byref(self._c), layer))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.to_dict().values()))

    def __repr__(self) -> str:
        return (f"<ravel.Shape: {self.layers} layers x {self.hidden}, {self.heads} heads, {self.kv_heads} kv heads, "
                f"{self.parameters / 1e9:.2f} B parameters>")


def shape(what: Any = None, **changes: Any) -> Shape:
    """A shape by a published name ("qwen3-0.6b"), from a ``config.json`` (or its folder), from the dict of one, or from
    fields: ``ravel.shape(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=1000, gated=1)``.
    Fields given with a name change that shape."""
    struct = _abi.ravel_shape()
    if isinstance(what, Shape):
        C.memmove(C.byref(struct), C.byref(what._c), C.sizeof(struct))
    elif isinstance(what, dict):
        text = json.dumps(what).encode()
        call("ravel_shape_parse", text, len(text), C.byref(struct))
    elif what is not None:
        text = os.fspath(what)
        reader = "ravel_shape_read" if os.path.exists(text) or text.endswith(".json") else "ravel_shape_named"
        call(reader, os.fsencode(text), C.byref(struct))
    known = fields(struct)
    for name, value in changes.items():
        if name not in known:
            raise TypeError(f"a shape has no {name}; it has {', '.join(sorted(known))}")
        setattr(struct, name, value)
    return Shape(struct)


def shapes() -> list[str]:
    """The names of published shapes."""
    names: list[str] = []
    while (name := lib.ravel_shape_name(len(names))) is not None:
        names.append(name.decode())
    return names


class Lengths:
    """Lengths from a file: ``lengths``, or ``prompts`` and ``responses``; ``ravel.plan(**lengths.input(), budget=...)``."""

    def __init__(self, pointer: Any):
        handle = Handle(pointer, lib.ravel_lengths_free)
        c = pointer.contents
        self.count, self.longest, self.total, self.columns = c.count, c.longest, c.total, c.columns.decode()
        self.prompts = view(c.prompts, c.count, np.int64, handle) if c.prompts else None
        self.responses = view(c.responses, c.count, np.int64, handle) if c.responses else None
        self.lengths: np.ndarray
        if self.prompts is not None and self.responses is not None:
            self.lengths = self.prompts + self.responses
        else:
            self.lengths = view(c.lengths, c.count, np.int64, handle)

    def input(self) -> dict[str, np.ndarray]:
        """The keywords of :func:`ravel.plan` for this file."""
        if self.prompts is None or self.responses is None:
            return {"lengths": self.lengths}
        return {"prompts": self.prompts, "responses": self.responses}

    def __len__(self) -> int:
        return int(self.count)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.lengths, dtype=dtype)

    def __repr__(self) -> str:
        return f"<ravel.Lengths: {self.count} samples ({self.columns}), {self.total} tokens, longest {self.longest}>"


def read_lengths(path: str | os.PathLike[str], **options: Any) -> Lengths:
    """Lengths from CSV, JSONL or NPY. Options: format, field ("usage.total", "prompt,response"), limit."""
    chosen = _READ.make(**options)
    pointer = C.POINTER(_abi.ravel_lengths)()
    call("ravel_lengths_read", os.fsencode(path), C.byref(chosen), C.byref(pointer))
    return Lengths(pointer)


def _index(index: int) -> int:
    if index < 0:
        raise IndexError(f"index is {index}; samples are numbered from 0")
    return index


class Mock:
    """A mock data set, the same on every machine; sample i depends on the seed and on i alone."""

    def __init__(self, description: str):
        pointer = C.c_void_p()
        call("ravel_mock_open", description.encode(), None, C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_mock_free)
        self.count = lib.ravel_mock_described(pointer.value).contents.count

    def length(self, index: int) -> int:
        """Of sample ``index``; any from 0 up, since a mock set has no end: ``count`` is only how many one asks for."""
        return int(lib.ravel_mock_length(self._handle.pointer, _index(index)))

    def prompt(self, index: int) -> int:
        """How much of sample ``index`` is prompt; 0 without prompt_share."""
        return int(lib.ravel_mock_prompt(self._handle.pointer, _index(index)))

    def tokens(self, index: int, vocab: int) -> np.ndarray:
        """The token ids of sample ``index``."""
        if vocab < 1:
            raise ValueError(f"vocab is {vocab}; it must be 1 or more")
        out = np.empty(self.length(index), np.int32)
        lib.ravel_mock_tokens(self._handle.pointer, index, vocab, out.size, address(out))
        return out

    def lengths(self) -> Lengths:
        """All ``count`` of them."""
        pointer = C.POINTER(_abi.ravel_lengths)()
        call("ravel_mock_lengths", self._handle.pointer, C.byref(pointer))
        return Lengths(pointer)

    def __len__(self) -> int:
        return int(self.count)

    def __iter__(self) -> Iterator[int]:
        return (self.length(i) for i in range(self.count))


def mock(description: str | dict[str, Any] | None = None, **members: Any) -> Mock:
    """A mock data set from Megatron's JSON (text, "@path", a dict) or its members by keyword:

    >>> ravel.mock(type="lognormal", max_seq_len=8192, mean_seq_len=4096, count=1024, seed=7).lengths()
    """
    if isinstance(description, str):
        if members:
            raise TypeError("give text or members, not both")
        return Mock(description)
    return Mock(json.dumps({"mode": "distribution", **(description or {}), **members}))
