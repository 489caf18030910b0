"""TRL's packing of tokenised rows: best-fit decreasing into rows of at most ``seq_length`` tokens.

Difference: a row that is longer than ``seq_length`` is an error that names it; ``overflow="truncate"`` cuts it, as TRL
does, and ``overflow="split"`` makes several of it. Planning is by Ravel, so ``method="ravel"`` packs tighter still.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from .._plan import plan

__all__ = ["pack_dataset", "pack_examples"]

_STRATEGIES = {"bfd": None, "bfd_split": "split", "bfd_truncate": "truncate", "wrapped": None}


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
    columns = dict(examples)
    if not columns:
        raise ValueError("there are no columns to pack")
    first = next(iter(columns))
    sizes = [len(row) for row in columns[first]]
    for name, rows in columns.items():
        if [len(row) for row in rows] != sizes:
            raise ValueError(f"column {name!r} has rows of other lengths than {first!r}")
    pieces = [(i, a, b) for i, n in enumerate(sizes) if n for a, b in _cut(n, i, seq_length, overflow)]
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
    joined = {name: [x for row in rows for x in row] for name, rows in examples.items()}
    return {name: [flat[i:i + seq_length] for i in range(0, len(flat), seq_length)] for name, flat in joined.items()}


def pack_dataset(dataset: Any, seq_length: int, strategy: str = "bfd", map_kwargs: Mapping[str, Any] | None = None, *,
                 overflow: str = "error", method: str = "bfd") -> Any:
    """``trl.pack_dataset`` for anything with ``map`` and ``column_names`` (a ``datasets.Dataset``): every column must be
    of lists. ``strategy`` is bfd, bfd_split, bfd_truncate or wrapped."""
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; it must be one of {', '.join(_STRATEGIES)}")
    overflow = _STRATEGIES[strategy] or overflow

    def pack(examples: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Any]]:
        return _wrap(examples, seq_length) if strategy == "wrapped" else \
            pack_examples(examples, seq_length, method, overflow)

    names = dataset.column_names
    names = next(iter(names.values())) if isinstance(names, dict) else names
    return dataset.map(pack, **{"batched": True, "remove_columns": names, **(map_kwargs or {})})
