"""Sources: data sets that are read by row number."""

from __future__ import annotations

import ctypes as C
import json
import os
import itertools
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from . import _abi
from ._dtype import NUMPY, parse
from ._lib import Handle, Raised, address, as_array, call, fields as struct_fields, lib
from ._options import Table
from ._ragged import KINDS, Field, Ragged
from ._typing import ArrayLike

__all__ = ["Source", "Stream", "source_options"]

_TABLE = Table(_abi.ravel_source_options, "ravel_source")
_NAMES = {number: name for name, number in KINDS.items()}


def source_options() -> dict[str, str]:
    """The options of ``Source.open``: name -> one sentence with the default."""
    return _TABLE.docs()


class _Column:
    """A field of rows that Python provides: name, kind, dtype, and its width."""

    def __init__(self, name: str, kind: str, dtype: Any, pad: float, width: int = 1):
        self.name, self.kind, self.pad, self.width = name, kind, pad, width
        self.code = parse(dtype)
        self.dtype = np.dtype(NUMPY[self.code])

    def c(self) -> _abi.ravel_field:
        return _abi.ravel_field(name=self.name.encode(), kind=KINDS[self.kind], dtype=self.code, width=self.width,
                                pad=self.pad)

    def array(self, value: Any, length: int, fill: bool = False) -> np.ndarray | None:
        """The values of one sample; None, or the padding with ``fill``, where it has none."""
        elements = {"sample": 1, "spread": 1, "step": length - 1}.get(self.kind, length) * self.width
        if value is None:
            return np.full(elements, self.pad, self.dtype) if fill else None
        array = np.ascontiguousarray(np.asarray(value).reshape(-1), self.dtype)
        if array.size != elements:
            raise ValueError(f"{self.name} has {array.size} elements; kind {self.kind!r} needs {elements} for {length} tokens")
        return array


def _columns(fields: Mapping[str, str]) -> list[_Column]:
    """{"reward": "f32:sample"} beside the two that every row has."""
    out = [_Column("tokens", "token", "i32", 0), _Column("loss_mask", "next", "u8", 0)]
    for name, text in fields.items():
        dtype, _, kind = text.partition(":")
        kind = kind or "token"
        if kind not in KINDS:
            raise ValueError(f"field {name!r} is {text!r}; write DTYPE:KIND, KIND one of {', '.join(KINDS)}")
        out.append(_Column(name, kind, dtype, 0))
    return out


class _Rows:
    """The hooks over a sequence of rows, with everything that must live as long as the source."""

    def __init__(self, rows: Sequence[Any], fields: Mapping[str, str]):
        self.rows, self.columns, self.raised = rows, _columns(fields), Raised()
        self.fields = (_abi.ravel_field * len(self.columns))(*[column.c() for column in self.columns])
        kinds = struct_fields(_abi.ravel_source_hooks)
        self.read_hook = kinds["read"](self._read)
        self.struct = _abi.ravel_source_hooks(size=C.sizeof(_abi.ravel_source_hooks), count=len(rows),
                                              fields=C.cast(self.fields, kinds["fields"]), field_count=len(self.columns),
                                              read=self.read_hook)

    def _read(self, _user: Any, row: int, collector: int, error: Any) -> int:
        return self.raised.guard(lambda: self._add(self.rows[row], collector, error), error)

    def _add(self, row: Any, collector: int, error: Any) -> None:
        for sample in _samples_of(row):
            length, values = _values_of(sample)
            arrays = [column.array(values.get(column.name), length) for column in self.columns]
            table = (C.c_void_p * len(arrays))(*[address(a) if a is not None and a.size else None for a in arrays])
            own = _abi.ravel_error()
            status = lib.ravel_collector_add(collector, length, C.cast(table, C.c_void_p), C.byref(own))
            if status:
                raise ValueError(own.message.decode("utf-8", "replace"))


def _samples_of(row: Any) -> Sequence[Any]:
    return row if isinstance(row, (list, tuple)) else [row]


def _values_of(sample: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    tokens = sample.get("tokens", sample.get("input_ids"))
    if tokens is None:
        raise KeyError(f"a row has neither tokens nor input_ids; it has {', '.join(sample)}")
    return len(tokens), {**sample, "tokens": tokens, "loss_mask": _mask(sample, len(tokens))}


def _mask(sample: Mapping[str, Any], length: int) -> Any:
    """loss_mask as it is, from labels (-100: not learnt), from prompt_length, else everything."""
    if sample.get("loss_mask") is not None:
        return sample["loss_mask"]
    if sample.get("labels") is not None:
        return (np.asarray(sample["labels"]) != -100).astype(np.uint8)
    mask = np.ones(length, np.uint8)
    mask[:int(sample.get("prompt_length", 0))] = 0
    return mask


class Stream:
    """Rows that come one after the other and have no number: an iterator or a generator, as a data loader's. Rows and ``fields``
    are as in :meth:`Source.rows`. Give it to :class:`Feed`, with ``samples`` rows per batch; every data-parallel rank reads its
    own share of them from its own iterator, until none of the ranks has any left.

    >>> feed = ravel.Feed(ravel.Stream(generator()), budget="16k", samples=512, comm=comm)
    """

    def __init__(self, rows: Iterable[Any], fields: Mapping[str, str] | None = None):
        self._rows, self._columns = iter(rows), _columns(fields or {})

    def take(self, count: int) -> Ragged:
        """The samples of the next ``count`` rows, or of as many as there are."""
        lengths: list[int] = []
        parts: list[list[Any]] = [[np.empty(0, column.dtype)] for column in self._columns]
        for row in itertools.islice(self._rows, count):
            for sample in _samples_of(row):
                length, values = _values_of(sample)
                lengths.append(length)
                for part, column in zip(parts, self._columns):
                    part.append(column.array(values.get(column.name), length, fill=True))
        found: dict[str, Any] = {column.name: Field(column.name, np.concatenate(part), column.kind, column.pad)
                                 for part, column in zip(parts, self._columns)}
        return Ragged(np.asarray(lengths, np.int64), **found)


class Source:
    """A data set that is read by row number; every thread may use it at once.

    >>> source = ravel.Source.open("train.jsonl", tokenizer="models/Qwen3-0.6B")
    >>> source = ravel.Source.open(mock='{"type": "lognormal", ...}')
    >>> source = ravel.Source.rows(dataset, fields={"reward": "f32:sample"})      anything with len and [row]
    >>> source = ravel.Source.samples(store)                                      rollouts in memory

    Every source has the fields ``tokens`` (i32) and ``loss_mask`` (u8, of the token that is predicted), and those that were
    added.
    """

    def __init__(self, pointer: Any, keep: Any = None, raised: Raised | None = None):
        self._handle = Handle(pointer, lib.ravel_source_free, keep)
        self._keep = keep
        self.raised = raised or Raised()

    @classmethod
    def open(cls, data: str | os.PathLike[str] | None = None, *, mock: str | Mapping[str, Any] | None = None,
             **options: Any) -> "Source":
        """A JSON-lines file, or mock data; ``source_options()`` has the rest: tokenizer, chat_format, train_on, fields, ..."""
        if isinstance(mock, Mapping):
            mock = json.dumps(mock)
        chosen = _TABLE.make(data=None if data is None else os.fspath(data), mock=mock, **options)
        pointer = C.c_void_p()
        call("ravel_source_open", C.byref(chosen), C.byref(pointer))
        return cls(pointer.value, chosen)

    @classmethod
    def rows(cls, rows: Sequence[Any], fields: Mapping[str, str] | None = None) -> "Source":
        """Anything with ``len`` and ``[row]``, such as a ``Dataset`` or a list. A row is a mapping with ``input_ids`` (or
        ``tokens``) and, where they are there, ``loss_mask``, ``labels`` (-100: not learnt) or ``prompt_length``; a list of
        mappings is several samples. ``fields`` names more columns: {"advantages": "f32:next", "reward": "f32:sample"}. Rows are
        read in the feed's own thread."""
        hooks = _Rows(rows, fields or {})
        pointer = C.c_void_p()
        hooks.raised.call("ravel_source_callbacks", C.byref(hooks.struct), C.byref(pointer))
        return cls(pointer.value, hooks, hooks.raised)

    @classmethod
    def samples(cls, store: Ragged, *, rows: ArrayLike | None = None) -> "Source":
        """The samples of a store, one per row, without a copy. The store needs a field ``tokens`` of int32; without a field
        ``loss_mask`` everything is learnt. ``rows`` are their numbers, where those are others than 0, 1, 2, ..."""
        own = with_mask(store)
        numbers = None if rows is None else as_array(rows, np.int64, "rows", len(store))
        c = _abi.ravel_samples(ragged=own._c, rows=address(numbers))
        pointer = C.c_void_p()
        call("ravel_source_samples", C.byref(c), None, C.byref(pointer))
        return cls(pointer.value, (own, numbers, c))

    @property
    def pointer(self) -> Any:
        """Of the library's own object."""
        return self._handle.pointer

    @property
    def kind(self) -> str:
        """jsonl, mock, callbacks or samples."""
        return str(lib.ravel_source_kind(self.pointer).decode())

    @property
    def fields(self) -> dict[str, str]:
        """Name -> kind of every field."""
        array = lib.ravel_source_fields(self.pointer)
        return {array[i].name.decode(): _NAMES[array[i].kind] for i in range(lib.ravel_source_field_count(self.pointer))}

    def where(self, row: int) -> str:
        """Where a row is, for a sentence: "train.jsonl:17"."""
        need = lib.ravel_source_where(self.pointer, row, None, 0)
        text = C.create_string_buffer(need + 1)
        lib.ravel_source_where(self.pointer, row, text, need + 1)
        return text.value.decode()

    def read(self, rows: ArrayLike) -> Ragged:
        """The samples of these rows, as a store of their own."""
        index = as_array(rows, np.int64, "rows")
        pointer = C.c_void_p()
        call("ravel_reader_create", self.pointer, None, None, C.byref(pointer))
        reader = Handle(pointer.value, lib.ravel_reader_free, self)
        out = C.POINTER(_abi.ravel_samples)()
        self.raised.call("ravel_reader_read", reader.pointer, address(index), index.size, C.byref(out))
        return copy_ragged(out.contents.ragged)

    def __len__(self) -> int:
        return int(lib.ravel_source_count(self.pointer))

    def __repr__(self) -> str:
        return f"<ravel.Source: {len(self)} rows of {self.kind}, fields {', '.join(self.fields)}>"


def with_mask(store: Ragged) -> Ragged:
    """A store as a feed wants it: tokens of int32, and a loss_mask; samples without tokens as they are."""
    if store.fixed:
        return store
    tokens = store.fields.get("tokens") or store.fields.get("input_ids")
    if tokens is None:
        raise ValueError(f"the store has no field tokens; it has {', '.join(store.fields) or 'none'}")
    rest = {name: field for name, field in store.fields.items() if field is not tokens}
    if "loss_mask" not in rest:
        rest["loss_mask"] = Field("loss_mask", np.ones(int(store.offsets[-1]), np.uint8), "next")
    data = tokens.data if tokens.data.dtype == np.int32 else as_array(tokens.data, np.int32, "tokens")
    return Ragged(store.lengths, prompts=store.prompts, tokens=Field("tokens", data), **rest)


def copy_ragged(c: _abi.ravel_ragged) -> Ragged:
    """A store of our own: the library's is used again."""
    offsets = np.ctypeslib.as_array(C.cast(c.offsets, C.POINTER(C.c_int64)), (c.count + 1,)).copy()
    found: dict[str, Any] = {}
    for i in range(c.field_count):
        field = c.fields[i]
        size = lib.ravel_field_bytes(C.byref(c), C.byref(field))
        dtype = np.dtype(NUMPY[field.dtype])
        data = np.frombuffer(C.string_at(field.data, size), dtype).copy() if size else np.empty(0, dtype)
        width = max(1, field.width)
        name = field.name.decode()
        found[name] = Field(name, data if width == 1 else data.reshape(-1, width), _NAMES[field.kind], field.pad)
    return Ragged(np.diff(offsets), **found)
