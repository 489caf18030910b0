"""What ``ravel.adapters.verl.install(share_prefix=True)`` changes in verl's classes (release 0.9.1), beside its functions.

- ``FSDPEngine``: before FSDP wraps a model, :func:`.tree_rows.share` gets it. All ranks refuse a model that it is not for.
- ``PPOTrainer`` and ``RayPPOTrainer``: after verl has dealt a batch to data-parallel ranks row by row, answers to a prompt come to one
  rank and stand side by side, with equal rows on every rank and balanced workloads. Where whole groups do not make equal rows the
  rows stay where verl dealt them, and share what their rank has.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable, Sequence

import numpy as np

from .._plan import plan
from . import tree_rows, verl
from ._switch import Refused

__all__ = ["deal", "install"]


def deal(lengths: Any, uids: Sequence[Any], ranks: int) -> list[list[int]] | None:
    """Rows for ranks: as many for each, those with one uid on one of them and side by side; None where that cannot be."""
    rows = len(uids)
    _, groups, counts = np.unique(np.asarray([str(uid) for uid in uids]), return_inverse=True, return_counts=True)
    if ranks < 2 or rows % ranks or np.max(counts, initial=0) > rows // ranks:
        return None
    work = np.bincount(groups, verl.calculate_workload(np.asarray(lengths, np.int64))).astype(np.int64)
    parts = [set(part.tolist()) for part in plan(counts, costs=work, budget=rows // ranks, dp=ranks).bins]
    if len(parts) != ranks:
        return None
    order = np.argsort(groups, kind="stable").tolist()
    return [[i for i in order if groups[i] in part] for part in parts]


def _balance(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def balance(self: Any, batch: Any, metrics: Any, logging_prefix: str = "global_seqlen", keep_minibatch: bool = False) -> Any:
        out = theirs(self, batch, metrics, logging_prefix, keep_minibatch)
        found = batch if out is None else out
        if hasattr(found, "tags"):  # of the transfer queue: a key is uid_session_index
            lengths, uids = [tag["seq_len"] for tag in found.tags], [key.split("_")[0] for key in found.keys]
        else:
            lengths = found.batch["attention_mask"].sum(-1).tolist()
            uids = list(found.non_tensor_batch.get("uid", range(len(lengths))))
        parts = None if keep_minibatch else deal(lengths, uids, max(self.actor_rollout_wg._dispatch_info["actor"]) + 1)
        if parts is not None:
            order = [i for part in parts for i in part]
            if hasattr(found, "tags"):
                found.reorder(order)
            else:
                import torch

                found.reorder(torch.tensor(order))
            metrics.update(verl.log_seqlen_unbalance(lengths, parts, logging_prefix))
        return out

    return balance


def _build(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def build(self: Any, module: Any) -> Any:
        if self.ulysses_sequence_parallel_size > 1:
            raise Refused("share_prefix needs ulysses_sequence_parallel_size 1: with more, a rank has a part of every row")
        tree_rows.share(module, group=self.get_data_parallel_group())
        return theirs(self, module)

    return build


_HOOKS = (("verl.workers.engine.fsdp.transformer_impl", "FSDPEngine", "_build_fsdp_module", _build),
          ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "_balance_batch", _balance),
          ("verl.trainer.ppo.ray_trainer", "RayPPOTrainer", "_balance_batch", _balance))


def install() -> list[str]:
    """Wraps the methods, once; the places that were changed."""
    places = []
    for module, owner, method, wrap in _HOOKS:
        kind = getattr(importlib.import_module(module), owner)
        theirs = getattr(kind, method)
        if getattr(theirs, "_ravel", False):
            continue
        ours = wrap(theirs)
        ours._ravel = True  # type: ignore[attr-defined]
        setattr(kind, method, ours)
        places.append(f"{module}.{owner}.{method}")
    return places
