"""TRL's packing of tokenised rows: best-fit decreasing into rows of at most ``seq_length`` tokens.

Difference: a row that is longer than ``seq_length`` is an error that names it; ``overflow="truncate"`` cuts it, as TRL's
"bfd" does without a word, and ``overflow="split"`` makes several of it, as its "bfd_split" does. ``method="ravel"`` packs
tighter still. :class:`ravel.adapters.huggingface.PackingCollator` keeps the samples of a packed row apart.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from .._plan import plan

__all__ = ["pack_dataset", "pack_examples"]

_STRATEGIES = ("bfd", "bfd_split", "wrapped")


def _sizes(columns: Mapping[str, Sequence[Sequence[Any]]]) -> list[int]:
    """The rows' lengths, which all columns must agree about."""
    if not columns:
        raise ValueError("there are no columns to pack")
    sizes: dict[str, list[int]] = {}
    for name, rows in columns.items():
        try:
            sizes[name] = [len(row) for row in rows]
        except TypeError:
            raise TypeError(f"column {name!r} has something else than lists in it; drop it before packing") from None
    first = next(iter(sizes))
    for name, own in sizes.items():
        if own != sizes[first]:
            raise ValueError(f"column {name!r} has rows of other lengths than {first!r}")
    return sizes[first]


def _check_length(seq_length: int) -> None:
    if seq_length < 1:
        raise ValueError(f"seq_length is {seq_length}; it must be 1 or more")


def _cut(length: int, index: int, seq_length: int, overflow: str) -> list[tuple[int, int]]:
    """The pieces (start, stop) that a row contributes."""
    if length <= seq_length:
        return [(0, length)]
    if overflow == "truncate":
        return [(0, seq_length)]
    if overflow == "split":
        return [(a, min(a + seq_length, length)) for a in range(0, length, seq_length)]
    raise ValueError(f"row {index} has {length} tokens, which exceeds seq_length {seq_length}; set overflow to "
                     f"\"truncate\" or \"split\", or raise seq_length")


def pack_examples(examples: Mapping[str, Sequence[Sequence[Any]]], seq_length: int, method: str = "bfd",
                  overflow: str = "error") -> dict[str, list[Any]]:
    """Columns of tokenised rows (``input_ids`` and others of the same lengths) to columns of packed rows.

    The result has a further column ``seq_lengths``: the lengths of the sequences in each packed row, in their order.
    """
    if overflow not in ("error", "truncate", "split"):
        raise ValueError(f"overflow is {overflow!r}; it must be error, truncate or split")
    _check_length(seq_length)
    columns = dict(examples)
    pieces = [(i, a, b) for i, n in enumerate(_sizes(columns)) if n for a, b in _cut(n, i, seq_length, overflow)]
    out: dict[str, list[Any]] = {name: [] for name in columns}
    out["seq_lengths"] = []
    if not pieces:
        return out
    done = plan(np.fromiter((b - a for _, a, b in pieces), np.int64, len(pieces)), budget=seq_length, cost="tokens",
                method=method)
    for part in done.bins:
        if not part.size:
            continue
        chosen = [pieces[i] for i in part]
        for name, rows in columns.items():
            out[name].append([x for i, a, b in chosen for x in rows[i][a:b]])
        out["seq_lengths"].append([b - a for _, a, b in chosen])
    return out


def _wrap(examples: Mapping[str, Sequence[Sequence[Any]]], seq_length: int) -> dict[str, list[Any]]:
    """All rows end to end, cut every ``seq_length`` tokens, whatever is cut through."""
    _check_length(seq_length)
    _sizes(examples)
    joined = {name: [x for row in rows for x in row] for name, rows in examples.items()}
    return {name: [flat[i:i + seq_length] for i in range(0, len(flat), seq_length)] for name, flat in joined.items()}


def pack_dataset(dataset: Any, seq_length: int, strategy: str = "bfd", map_kwargs: Mapping[str, Any] | None = None, *,
                 overflow: str = "error", method: str = "bfd") -> Any:
    """``trl.pack_dataset`` for anything with ``map`` and ``column_names`` (``Dataset``, ``DatasetDict``,
    ``IterableDataset``): every column must be of lists. ``strategy`` is bfd, bfd_split or wrapped."""
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; it must be one of {', '.join(_STRATEGIES)}")
    overflow = "split" if strategy == "bfd_split" else overflow

    def pack(examples: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Any]]:
        return _wrap(examples, seq_length) if strategy == "wrapped" else \
            pack_examples(examples, seq_length, method, overflow)

    names = dataset.column_names
    if isinstance(names, dict):
        names = next(iter(names.values()))
    elif names is None:  # a stream that does not know its columns
        names = list(next(iter(dataset)))
    return dataset.map(pack, **{"batched": True, "remove_columns": names, **(map_kwargs or {})})
