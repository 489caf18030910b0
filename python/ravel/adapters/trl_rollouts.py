"""The ``TokenBudgetBatcher`` of TRL's asynchronous GRPO (``trl.experimental.async_grpo``, read at commit f2cd5771).

    import ravel.adapters.trl_rollouts; ravel.adapters.trl_rollouts.install()

Difference: samples of ``lookahead`` micro-batches are planned at once, instead of each sample the moment it comes, so rows are
fuller and their costs closer together. Every row of every micro-batch has a sample, none is over ``token_budget``, and a sample
that is longer than it is left out with a warning, as in TRL.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Iterator, TYPE_CHECKING

import numpy as np

from .._plan import plan
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


class TokenBudgetBatcher(_Base):
    """Iterates over micro-batches: lists of ``num_processes`` rows, each a list of samples (anything with ``["input_ids"]``).

    ``cost`` is what is balanced over the rows, as in :func:`ravel.plan`: squared lengths unless said otherwise.
    """

    def __init__(self, dataset: Iterable[Any], num_processes: int, token_budget: int, *, lookahead: int = 2,
                 cost: Any = (0, 1)):
        if lookahead < 1:
            raise ValueError(f"lookahead is {lookahead}; it must be 1 or more")
        self.dataset, self.num_processes, self.token_budget = dataset, num_processes, token_budget
        self.lookahead, self.cost = lookahead, cost

    def _ready(self, held: list[Any], last: bool) -> tuple[list[list[list[Any]]], list[Any]]:
        """Micro-batches whose rows all have samples, and what is held for later: of the last one, more may still come."""
        lengths = np.fromiter((len(s["input_ids"]) for s in held), np.int64, len(held))
        done = plan(lengths, budget=self.token_budget, dp=self.num_processes, cost=self.cost)
        steps = sorted(done, key=lambda bins: min((int(b.min()) for b in bins if b.size), default=0))
        keep = None if last or len(steps) == 1 else min(steps, key=lambda bins: sum(int(lengths[b].sum()) for b in bins))
        out, later = [], []
        for bins in steps:
            if bins is not keep and all(b.size for b in bins):
                out.append([[held[i] for i in b] for b in bins])
            else:
                later += [i for b in bins for i in b.tolist()]
        return out, [held[i] for i in sorted(later)]

    def __iter__(self) -> Iterator[list[list[Any]]]:
        held: list[Any] = []
        tokens, enough = 0, self.lookahead * self.num_processes * self.token_budget
        for sample in self.dataset:
            length = len(sample["input_ids"])
            if length > self.token_budget:
                _log.warning("a sample of %d tokens is left out: token_budget is %d", length, self.token_budget)
                continue
            held.append(sample)
            tokens += length
            if tokens >= enough:
                ready, held = self._ready(held, False)
                tokens = sum(len(s["input_ids"]) for s in held)
                yield from ready
        ready, held = self._ready(held, True) if held else ([], held)
        yield from ready
        if held:
            _log.warning("the source ended: %d samples are too few for %d rows and are left out", len(held),
                         self.num_processes)


def install(module: Any = "trl.experimental.async_grpo.async_grpo_trainer") -> list[str]:
    """Replaces TRL's class by this one. Returns the names that were replaced."""
    return put(module, {"TokenBudgetBatcher": TokenBudgetBatcher})
