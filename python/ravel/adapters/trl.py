"""TRL's packing of tokenised rows (``trl.pack_dataset``, read at release 1.16.0), on Arrow buffers: no token becomes a Python
object.

    import ravel.adapters.trl; ravel.adapters.trl.install()      before SFTTrainer is made, packing=True as ever

Strategies are TRL's: "bfd" cuts off what is over ``seq_length``, "bfd_split" makes several rows of it, "wrapped" cuts wherever
a row is full. The result is TRL's, row for row and in its order: rows in the order in which best fit opened them, samples inside
a row longest first. ``overflow="error"`` names a row that is too long instead of cutting it; ``method="ravel"`` packs tighter
still. ``position_ids=True`` adds a column that survives ``remove_unused_columns``: the ``pack_dataset`` of
:mod:`ravel.adapters.huggingface` has it on, for the Trainer of transformers. ``ravel.adapters.trl_rollouts`` has the
``TokenBudgetBatcher`` of TRL's asynchronous GRPO.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

import numpy as np

from .._batch import Field, Ragged, pack
from .._plan import plan
from ._switch import put

__all__ = ["install", "pack_dataset", "pack_examples", "pack_table"]

_STRATEGIES = ("bfd", "bfd_split", "wrapped")
_OVERFLOWS = ("error", "truncate", "split")


# ---- which piece goes where ------------------------------------------------------------------------------------------


def _check(seq_length: int, overflow: str) -> None:
    if seq_length < 1:
        raise ValueError(f"seq_length is {seq_length}; it must be 1 or more")
    if overflow not in _OVERFLOWS:
        raise ValueError(f"overflow is {overflow!r}; it must be one of {', '.join(_OVERFLOWS)}")


def _cut(sizes: np.ndarray, seq_length: int, overflow: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of pieces that tile all rows in order, and whether each is kept. Rows without tokens have none."""
    sizes = sizes[sizes > 0]
    if overflow == "split":
        counts = -(-sizes // seq_length)
        pieces = np.full(int(counts.sum()), seq_length, np.int64)
        pieces[np.cumsum(counts) - 1] = sizes - (counts - 1) * seq_length
        return pieces, np.ones(pieces.size, bool)
    long = sizes > seq_length
    pieces = np.repeat(sizes, 1 + long)
    heads = np.cumsum(1 + long) - 1 - long  # the first piece of each row
    kept = np.zeros(pieces.size, bool)
    kept[heads] = True
    pieces[heads] = np.minimum(sizes, seq_length)
    pieces[heads[long] + 1] = sizes[long] - seq_length
    return pieces, kept


def _refuse_long(sizes: np.ndarray, seq_length: int, overflow: str) -> None:
    long = np.flatnonzero(sizes > seq_length)
    if overflow == "error" and long.size:
        raise ValueError(f"row {int(long[0])} has {int(sizes[long[0]])} tokens, which exceeds seq_length {seq_length}; set "
                         f"overflow to \"truncate\" or \"split\", or raise seq_length")


def _first_come(rank: np.ndarray, sizes: np.ndarray, bin_of: np.ndarray, seq_length: int) -> np.ndarray:
    """TRL's row of each sample, longest first. TRL takes the row that has waited longest among those with the same room; any
    other rule meets the same rooms in the same order, so the n-th sample that takes a room follows the n-th that left it."""
    sizes, bins = sizes[rank], bin_of[rank]
    grouped = np.argsort(bins, kind="stable")
    ends = np.cumsum(sizes[grouped])
    begins = np.flatnonzero(np.diff(bins[grouped], prepend=-1))
    before = np.repeat((ends - sizes[grouped])[begins], np.diff(begins, append=sizes.size))
    left = np.empty_like(sizes)
    left[grouped] = seq_length - (ends - before)  # room after each sample
    found = left + sizes  # and before it
    takes = np.flatnonzero(found < seq_length)
    takes = takes[np.argsort(found[takes], kind="stable")]
    puts = np.argsort(left, kind="stable")
    first = np.searchsorted(found[takes], found[takes])
    turn = np.arange(takes.size) - first  # among the takers of this room
    chain = np.arange(sizes.size)
    chain[takes] = puts[np.searchsorted(left[puts], found[takes]) + turn]
    while not np.array_equal(chain, further := chain[chain]):
        chain = further
    return chain


def _assign(sizes: np.ndarray, seq_length: int, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The order of the samples, and how many of them each packed row has. Longest first inside a row, and rows by their first
    sample: the order in which best fit opens them."""
    done = plan(sizes, budget=seq_length, cost="tokens", method=method)
    bin_of = np.empty(sizes.size, np.int64)
    bin_of[done.samples] = np.repeat(np.arange(done.bin_offsets.size - 1), np.diff(done.bin_offsets))
    rank = np.argsort(-sizes, kind="stable")  # longest first, then as they came
    if method == "bfd":
        lead = _first_come(rank, sizes, bin_of, seq_length)
    else:
        _, opened, row = np.unique(bin_of[rank], return_index=True, return_inverse=True)
        lead = opened[row]
    counts = np.bincount(lead)
    return rank[np.argsort(lead, kind="stable")].astype(np.int32), counts[counts > 0]


class _Packing:
    """What becomes of rows of these lengths: pieces, their order, and the packed rows' shape."""

    def __init__(self, sizes: np.ndarray, seq_length: int, method: str, overflow: str):
        _refuse_long(sizes, seq_length, overflow)
        self.pieces, kept = _cut(sizes, seq_length, overflow)
        chosen = np.flatnonzero(kept)
        none = np.zeros(0, np.int32)
        self.counts: np.ndarray
        order, self.counts = _assign(self.pieces[chosen], seq_length, method) if chosen.size else (none, none)
        self.order = chosen[order].astype(np.int32)
        self.lengths = self.pieces[self.order]  # of the samples, packed row after packed row
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])[ends]  # of the packed rows, in tokens
        self.row_offsets = ends  # in samples

    def take(self, values: np.ndarray) -> np.ndarray:
        """Values of all rows, end to end, in packed order: one pass of the library's packer."""
        if not self.order.size:
            return values[:0]
        store = Ragged(self.pieces, values=Field("values", values))
        return pack(store, self.order, positions=False)["values"]

    def index(self) -> np.ndarray:
        """The same for what is no plain array: positions of the values in packed order."""
        begins = (np.cumsum(self.pieces) - self.pieces)[self.order]
        found: np.ndarray = np.repeat(begins, self.lengths) + self.positions()
        return found

    def positions(self) -> np.ndarray:
        """0, 1, ... in every sample."""
        found: np.ndarray = np.arange(int(self.lengths.sum())) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        return found


# ---- Arrow -----------------------------------------------------------------------------------------------------------


def _column(name: str, column: Any) -> Any:
    """One list array without chunks, rows that are null as empty ones."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise TypeError(f"column {name!r} holds {kind}, not lists; drop it before packing (dataset.select_columns)")
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else \
            pa.array([], kind)
    return column.fill_null(pa.scalar([], kind)) if column.null_count else column


def _columns(table: Any) -> dict[str, Any]:
    """Column name to list array. Rows must have the same lengths in all of them."""
    names = table.column_names
    if not names:
        raise ValueError("there are no columns to pack")
    columns = {name: _column(name, table.column(name)) for name in names}
    first = columns[names[0]].offsets
    for name in names[1:]:
        own = columns[name].offsets
        if not own.equals(first) and not np.array_equal(_sizes_of(columns[name]), _sizes_of(columns[names[0]])):
            raise ValueError(f"column {name!r} has rows of other lengths than {names[0]!r}")
    return columns


def _sizes_of(column: Any) -> np.ndarray:
    """The rows' lengths of a list array."""
    found: np.ndarray = np.diff(column.offsets.to_numpy()).astype(np.int64)
    return found


def _values(column: Any) -> Any:
    """All values of a list array, end to end."""
    offsets = column.offsets
    begin, end = offsets[0].as_py(), offsets[-1].as_py()
    values = column.values
    return values if begin == 0 and end == len(values) else values[begin:end]


def _taken(packing: _Packing, column: Any) -> Any:
    """A column's values in packed order."""
    import pyarrow as pa

    values = _values(column)
    plain = (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)) and not values.null_count
    if plain:
        return pa.array(packing.take(values.to_numpy(zero_copy_only=True)), values.type)
    return values.take(pa.array(packing.index()))


def _lists(like: Any, offsets: np.ndarray, values: Any) -> Any:
    """A list array of the same kind as another one."""
    return type(like).from_arrays(offsets.astype(like.offsets.type.to_pandas_dtype(), copy=False), values)


def pack_table(table: Any, seq_length: int, method: str = "bfd", overflow: str = "truncate",
               position_ids: bool = False) -> Any:
    """A pyarrow table of list columns to a table of packed rows, with ``seq_lengths``: the lengths of the samples in each row,
    in their order. ``position_ids`` adds a column of these, which restart in every sample."""
    import pyarrow as pa

    _check(seq_length, overflow)
    columns = _columns(table)
    packing = _Packing(_sizes_of(next(iter(columns.values()))), seq_length, method, overflow)
    out = {name: _lists(column, packing.offsets, _taken(packing, column)) for name, column in columns.items()}
    if position_ids:
        out["position_ids"] = pa.LargeListArray.from_arrays(packing.offsets, packing.positions())
    out["seq_lengths"] = pa.ListArray.from_arrays(packing.row_offsets.astype(np.int32), packing.lengths.astype(np.int32))
    return pa.Table.from_arrays(list(out.values()), names=list(out))


def _wrap_table(table: Any, seq_length: int) -> Any:
    """All rows end to end, cut every ``seq_length`` tokens, whatever is cut through. Nothing is copied."""
    import pyarrow as pa

    _check(seq_length, "split")
    columns = _columns(table)
    values = [_values(column) for column in columns.values()]
    total = len(values[0])
    offsets = np.arange(0, total + seq_length, seq_length)[:-(-total // seq_length) + 1]
    offsets[-1] = total
    ends = {kind: pa.array(offsets, kind) for kind in {column.offsets.type for column in columns.values()}}
    lists = [type(column).from_arrays(ends[column.offsets.type], own) for column, own in zip(columns.values(), values)]
    return pa.Table.from_arrays(lists, names=list(columns))


# ---- the shapes of TRL -----------------------------------------------------------------------------------------------


def _sizes(columns: Mapping[str, Sequence[Sequence[Any]]]) -> np.ndarray:
    """The lengths of rows that are Python lists, which all columns must agree about."""
    if not columns:
        raise ValueError("there are no columns to pack")
    sizes: dict[str, list[int]] = {}
    for name, rows in columns.items():
        wrong = [row for row in rows if isinstance(row, (str, bytes)) or not hasattr(row, "__len__")]
        if wrong:
            raise TypeError(f"column {name!r} holds {type(wrong[0]).__name__}, not lists; drop it before packing")
        sizes[name] = [len(row) for row in rows]
    first = next(iter(sizes))
    for name, own in sizes.items():
        if own != sizes[first]:
            raise ValueError(f"column {name!r} has rows of other lengths than {first!r}")
    return np.asarray(sizes[first], np.int64)


def _relist(columns: Mapping[str, Sequence[Sequence[Any]]], index: np.ndarray, offsets: np.ndarray) -> dict[str, list[Any]]:
    """Each column end to end, in another order, cut at these offsets."""
    out: dict[str, list[Any]] = {}
    for name, rows in columns.items():
        flat = [x for row in rows for x in row]
        moved = [flat[i] for i in index.tolist()]
        out[name] = [moved[a:b] for a, b in zip(offsets.tolist(), offsets[1:].tolist())]
    return out


def pack_examples(examples: Mapping[str, Sequence[Any]], seq_length: int, method: str = "bfd",
                  overflow: str = "truncate") -> dict[str, list[Any]]:
    """The same for columns that are Python lists of lists, such as a small data set in memory; needs no pyarrow."""
    _check(seq_length, overflow)
    packing = _Packing(_sizes(examples), seq_length, method, overflow)
    out = _relist(examples, packing.index(), packing.offsets)
    lengths, ends = packing.lengths.tolist(), packing.row_offsets.tolist()
    return {**out, "seq_lengths": [lengths[a:b] for a, b in zip(ends, ends[1:])]}


def _wrap_examples(examples: Mapping[str, Sequence[Any]], seq_length: int) -> dict[str, list[Any]]:
    total = int(_sizes(examples).sum())
    return _relist(examples, np.arange(total), np.append(np.arange(0, total, seq_length), total))


def _map_lists(dataset: Any, function: Any, map_kwargs: Mapping[str, Any]) -> Any:
    """For anything with ``map`` and ``column_names`` that is not of ``datasets``."""
    names = dataset.column_names
    if isinstance(names, dict):
        names = next(iter(names.values()))
    elif names is None:  # a stream that does not know its columns
        names = list(next(iter(dataset)))
    return dataset.map(function, **{"batched": True, "remove_columns": names, **map_kwargs})


def _format_of(dataset: Any) -> dict[str, Any]:
    """How a data set of ``datasets`` gives out its rows, as arguments of ``with_format``."""
    one = dataset[next(iter(dataset))] if isinstance(dataset, dict) else dataset
    if hasattr(one, "format"):
        found = dict(one.format)
        return {**found, **found.pop("format_kwargs", {})}
    inner = getattr(one, "_formatting", None)
    return {"type": None if inner is None else inner.format_type}


_HARMLESS = {"batch_size", "desc", "keep_in_memory", "load_from_cache_file", "num_proc"}


def _stays_in_memory(dataset: Any, map_kwargs: Mapping[str, Any]) -> bool:
    """Whether ``map`` would leave the result in memory, and does nothing else that somebody asked for."""
    import datasets

    return isinstance(dataset, datasets.Dataset) and len(dataset) > 0 and dataset._indices is None and \
        map_kwargs.keys() <= _HARMLESS and bool(map_kwargs.get("keep_in_memory") or not dataset.cache_files)


def _map_in_memory(dataset: Any, function: Any, map_kwargs: Mapping[str, Any]) -> Any:
    """``map`` without the copy that it writes: a data set over the tables that the function returns."""
    import datasets
    import pyarrow as pa
    from datasets.fingerprint import Hasher

    size = map_kwargs.get("batch_size", 1000)
    rows = dataset.with_format("arrow").iter(batch_size=size if size and size > 0 else len(dataset))
    table = pa.concat_tables([function(part) for part in rows])
    info = dataset.info.copy()
    info.features = datasets.Features({**datasets.Features.from_arrow_schema(table.schema), **dataset.features})
    fingerprint = Hasher.hash((dataset._fingerprint, function.func.__name__, sorted(function.keywords.items()), size))
    return datasets.Dataset(table, info=info, split=dataset.split, fingerprint=fingerprint)


def pack_dataset(dataset: Any, seq_length: int, strategy: str = "bfd", map_kwargs: Mapping[str, Any] | None = None, *,
                 overflow: str | None = None, method: str = "bfd", position_ids: bool = False) -> Any:
    """``trl.pack_dataset`` for a ``Dataset``, ``DatasetDict`` or ``IterableDataset`` in any format: every column must be of
    lists. ``strategy`` is bfd, bfd_split or wrapped. ``overflow`` is what happens to rows over ``seq_length``: "truncate",
    "split" or "error"; None is what TRL's strategy does."""
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; it must be one of {', '.join(_STRATEGIES)}")
    overflow = overflow or ("split" if strategy == "bfd_split" else "truncate")
    _check(seq_length, overflow)
    if not hasattr(dataset, "with_format"):
        return _map_lists(dataset, functools.partial(_wrap_examples, seq_length=seq_length) if strategy == "wrapped" else
                          functools.partial(pack_examples, seq_length=seq_length, method=method, overflow=overflow),
                          map_kwargs or {})
    shape = _format_of(dataset)
    function = functools.partial(_wrap_table, seq_length=seq_length) if strategy == "wrapped" else functools.partial(
        pack_table, seq_length=seq_length, method=method, overflow=overflow, position_ids=position_ids)
    options = map_kwargs or {}
    done = _map_in_memory(dataset, function, options) if _stays_in_memory(dataset, options) else \
        dataset.with_format("arrow").map(function, batched=True, **options)
    if strategy != "wrapped" and shape.get("columns") is not None:
        shape["columns"] = [*shape["columns"], *(["position_ids"] if position_ids else []), "seq_lengths"]
    if not hasattr(done, "set_format"):  # a stream
        return done.with_format(**shape)
    done.set_format(**shape)  # in place: with_format would copy what nobody else has
    return done


def install(module: Any = "trl.data_utils", *, overflow: str | None = None, method: str = "bfd",
            share_prefix: bool = False) -> list[str]:
    """Puts :func:`pack_dataset`, with these two arguments, in the place of TRL's, also where a trainer has imported it by name
    already. Returns the names that were replaced. ``SFTTrainer(..., args=SFTConfig(packing=True))`` then packs with it.
    ``share_prefix``: trainers of GRPO and RLOO that are made from then on compute a prompt once for its answers
    (:mod:`.trl_trees`)."""
    import importlib

    if module == "trl.data_utils":
        importlib.import_module("trl.trainer.sft_trainer")  # it imports the function by name
    places = put(module, {"pack_dataset": functools.partial(pack_dataset, overflow=overflow, method=method)})
    if share_prefix:
        from . import trl_trees

        places += trl_trees.install()
    return places
