"""The ``TokenBudgetBatcher`` of TRL's asynchronous GRPO (``trl.experimental.async_grpo``, read at release 1.16.0).

    import ravel.adapters.trl_rollouts; ravel.adapters.trl_rollouts.install()

Rows are TRL's ``TreeRow``: a token that several samples of a row share is forwarded once, and the budget counts it once.
Difference: samples of ``lookahead`` micro-batches are planned at once, instead of each sample the moment it comes, so rows are
fuller and their attention costs closer together. Samples of a group stay together unless they exceed the budget or a row would
be empty. Every row of every micro-batch has a sample, none is over ``token_budget``, and a sample that is longer than it is left
out with a warning and counted in ``metrics``, as in TRL.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Iterator, TYPE_CHECKING

from .._plan import plan
from ._bins import fill_empty
from ._switch import put

if TYPE_CHECKING:
    _Base = object
else:
    try:  # the data loader asks for this class
        from torch.utils.data import IterableDataset as _Base
    except ImportError:
        _Base = object

__all__ = ["TokenBudgetBatcher", "install"]

_log = logging.getLogger(__name__)


def _weight(tree: Any) -> int:
    """What a tree takes of the budget: it caps the tokens that are forwarded and the tokens that are trained."""
    return max(len(tree.tokens), int(tree.trained))


class TokenBudgetBatcher(_Base):
    """Iterates over micro-batches: lists of ``num_processes`` rows. A sample has ``["input_ids"]``, ``["completion_mask"]`` and
    ``["group_id"]``. ``row`` makes an empty row: TRL's ``TreeRow``."""

    def __init__(self, dataset: Iterable[Any], num_processes: int, token_budget: int, metrics: Any = None, *,
                 lookahead: int = 2, row: Any = None):
        if lookahead < 1:
            raise ValueError(f"lookahead is {lookahead}; it must be 1 or more")
        if row is None:
            from trl.experimental.async_grpo.packing import TreeRow
            row = TreeRow
        self.dataset, self.num_processes, self.token_budget = dataset, num_processes, token_budget
        self.metrics, self.lookahead, self.row = metrics, lookahead, row

    def _of(self, samples: Iterable[Any]) -> Any:
        tree = self.row()
        for sample in samples:
            tree.add(sample)
        return tree

    def _rows(self, bins: list[list[Any]]) -> list[Any] | None:
        """A row per bin, groups halved until none is empty; None if there are too few samples."""
        bins = fill_empty(bins)
        for empty in (part for part in bins if not part):
            source = max(bins, key=lambda part: len(part[0].samples) if len(part) == 1 else 0)
            samples = source[0].samples if source else []
            if len(samples) < 2:
                return None
            half = len(samples) // 2
            source[:], empty[:] = [self._of(samples[:half])], [self._of(samples[half:])]
        return [part[0] if len(part) == 1 else self._of(s for tree in part for s in tree.samples) for part in bins]

    def _ready(self, trees: list[Any], last: bool) -> tuple[list[list[Any]], list[Any]]:
        """Micro-batches whose rows all have samples, and the trees kept for later: of the last one, more may still come."""
        done = plan([_weight(t) for t in trees], costs=[t.load for t in trees], budget=self.token_budget, dp=self.num_processes)
        steps = sorted(done, key=lambda bins: min((int(b.min()) for b in bins if b.size), default=0))
        keep = None if last or len(steps) == 1 else min(steps, key=lambda bins: sum(_weight(trees[i]) for b in bins for i in b))
        out, later = [], []
        for bins in steps:
            rows = None if bins is keep else self._rows([[trees[i] for i in b] for b in bins])
            if rows is None:
                later += [i for b in bins for i in b.tolist()]
            else:
                out.append(rows)
        return out, [trees[i] for i in sorted(later)]

    def __iter__(self) -> Iterator[list[Any]]:
        trees: list[Any] = []  # of one group each, none over the budget
        newest: dict[Any, Any] = {}  # the last tree of each group
        weight, enough = 0, self.lookahead * self.num_processes * self.token_budget
        for sample in self.dataset:
            if len(sample["input_ids"]) > self.token_budget:
                self._leave_out(sample)
                continue
            tree = newest.get(sample["group_id"])
            if tree is None or not tree.fits(sample, self.token_budget):
                tree = newest[sample["group_id"]] = self.row()
                trees.append(tree)
            weight -= _weight(tree)
            tree.add(sample)
            weight += _weight(tree)
            if weight >= enough:
                ready, trees = self._ready(trees, False)
                newest = {group: tree for tree in trees for group in tree.groups}
                weight = sum(map(_weight, trees))
                yield from ready
        ready, trees = self._ready(trees, True) if trees else ([], trees)
        yield from ready
        if trees:
            _log.warning("the source ended: %d samples are too few for %d rows and are left out",
                         sum(len(tree.samples) for tree in trees), self.num_processes)

    def _leave_out(self, sample: Any) -> None:
        _log.warning("a sample of %d tokens is left out: token_budget is %d", len(sample["input_ids"]), self.token_budget)
        if self.metrics is not None:
            self.metrics["batch/dropped_oversize_total"].append(1.0)


def install(module: Any = "trl.experimental.async_grpo.async_grpo_trainer") -> list[str]:
    """Replaces TRL's class by this one. Returns the names that were replaced."""
    return put(module, {"TokenBudgetBatcher": TokenBudgetBatcher})
