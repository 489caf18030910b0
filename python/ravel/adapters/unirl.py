"""UniRL's ``micro_planner`` (``unirl.train.stack``, read at pull requests 42 and 56 and at commit 36547bd8).

    micro_planner: {_target_: ravel.adapters.unirl.TokenBudgetPlanner, token_budget: 10240, cost_model: sum}

in a recipe, or ``ravel.adapters.unirl.install()``, which puts the class in the place of UniRL's. Both cost models are there:
"sum" counts real tokens, "dense" prompts and responses padded apart, each to its longest. ``token_budget=None`` (null) is
count-based. Differences: the budget is a hard cap also where ranks need as many micro-batches as the others; a sample that is
larger is an error on all ranks that names it, or alone in its micro-batch with ``oversize="alone"``, as in UniRL.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .._lib import host_array
from .._plan import plan
from ._bins import fill_empty
from ._switch import Refused, put
from .verl import _largest

__all__ = ["TokenBudgetPlanner", "install"]


def _lengths_of(track: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Lengths of the responses, and of the prompts where the track's conditions have a mask of them."""
    found = getattr(getattr(track, "segment", None), "lengths", None)
    if found is None or len(found) != track.batch_size:
        return None, None
    conditions = getattr(track, "conditions", None)
    prompt = conditions.get("prompt") if isinstance(conditions, dict) else getattr(conditions, "prompt", None)
    mask = getattr(prompt, "attention_mask", None)
    responses = np.maximum(host_array(found.cpu() if hasattr(found, "cpu") else found, "lengths").astype(np.int64), 1)
    if mask is None or len(mask.shape) != 2 or mask.shape[0] != track.batch_size:
        return responses, None
    return responses, host_array(mask.sum(-1).cpu() if hasattr(mask, "cpu") else mask.sum(-1), "attention_mask").astype(np.int64)


class TokenBudgetPlanner:
    """``arrange(track, num_updates=, micro_batch_size=)`` reorders the track once and gives contiguous ranges per update;
    ``validate(algorithm)`` refuses losses whose gradient would depend on the grouping."""

    def __init__(self, *, token_budget: int | None, cost_model: str = "dense", oversize: str = "error"):
        if token_budget is not None and int(token_budget) < 1:
            raise ValueError(f"token_budget is {token_budget}; it must be 1 or more, or None for micro-batches by count")
        if cost_model not in ("dense", "sum"):
            raise ValueError(f"cost_model is {cost_model!r}; it must be dense or sum")
        if oversize not in ("error", "alone"):
            raise ValueError(f"oversize is {oversize!r}; it must be error or alone")
        self.token_budget, self.cost_model, self.oversize = token_budget, cost_model, oversize

    def _bins(self, responses: np.ndarray, prompts: np.ndarray | None, group: Any) -> list[list[int]]:
        """Micro-batches of one update, as many on every rank."""
        if self.oversize == "alone":  # it fills a micro-batch, so nothing joins it
            assert self.token_budget is not None
            prompts = None if prompts is None else np.minimum(prompts, self.token_budget - 1)
            responses = np.minimum(responses, self.token_budget - (0 if prompts is None else prompts))
        total = responses if prompts is None else responses + prompts
        samples: dict[str, Any] = {"lengths": total, "layout": "packed" if self.cost_model == "sum" else "padded"}
        if self.cost_model == "dense" and prompts is not None:
            samples = {"prompts": prompts, "responses": responses, "layout": "padded-2d"}
        options: dict[str, Any] = {"budget": self.token_budget, "sync": "micro-step", **samples}
        failure, done = None, None
        try:
            done = plan(**options)
        except Exception as exception:  # the others wait for this rank: they hear of it, then it is raised
            failure = exception
        failed, most, least = _largest([int(failure is not None), 0 if done is None else len(done), -total.size], group)
        if failure is not None:
            raise failure
        if failed:
            raise Refused("another rank could not plan its micro-batches; see its error")
        if most > -least:
            raise Refused(f"{most} micro-batches are needed and a rank has {-least} samples in an update; raise token_budget")
        assert done is not None
        if most != len(done):
            done = plan(**options, min_micro_steps=most)
        return fill_empty([part.tolist() for part in done.bins])

    def arrange(self, resp_track: Any, *, num_updates: int, micro_batch_size: int) -> tuple[Any, list[list[tuple[int, int]]]]:
        """The track, reordered so that micro-batches are contiguous, and their ranges for each update."""
        total, each = int(resp_track.batch_size), int(resp_track.batch_size) // num_updates
        if num_updates < 1 or total % num_updates:
            raise Refused(f"num_updates_per_batch {num_updates} must evenly divide the batch of {total} samples")
        responses, prompts = _lengths_of(resp_track) if self.token_budget is not None else (None, None)
        if responses is None:
            return resp_track, [[(at, min(at + micro_batch_size, begin + each)) for at in range(begin, begin + each, micro_batch_size)]
                                for begin in range(0, total, each)]
        dist: Any = sys.modules.get("torch.distributed")
        group = dist.group.WORLD if dist is not None and dist.is_available() and dist.is_initialized() else None
        order, ranges = [], []
        for begin in range(0, total, each):
            part = slice(begin, begin + each)
            bins = self._bins(responses[part], None if prompts is None else prompts[part], group)
            ends = begin + np.cumsum([0, *map(len, bins)])
            ranges.append(list(zip(ends[:-1].tolist(), ends[1:].tolist())))
            order += [begin + i for b in bins for i in b]
        return resp_track.select(order), ranges

    def validate(self, algorithm: Any) -> None:
        """UniRL weights micro-batches by their number of samples: only means over sequences do not depend on the grouping. An
        algorithm whose ``loss_weighting`` is "token" has them weighted by tokens."""
        mode = getattr(algorithm, "loss_agg_mode", None)
        by_tokens = getattr(algorithm, "loss_weighting", "sample") == "token"
        if self.token_budget is not None and not by_tokens and not str(mode).startswith("seq-mean"):
            raise ValueError(f"micro-batches by tokens need a loss_agg_mode that begins with seq-mean; it is {mode!r}, whose gradient "
                             f"would depend on the grouping")


def install(module: Any = "unirl.train.stack") -> list[str]:
    """Replaces UniRL's class by this one. Returns the names that were replaced."""
    return put(module, {"TokenBudgetPlanner": TokenBudgetPlanner})
