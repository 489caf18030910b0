"""What ``ravel.adapters.trl.install(share_prefix=True)`` changes in TRL (release 1.16.0): in ``GRPOTrainer`` and ``RLOOTrainer`` the layers of
the model and of the reference compute what the rows of a call begin with alike once (:mod:`.tree_rows`).

TRL shuffles the rows of a generation batch before it cuts it into steps; here the answers to a prompt stay side by side, and prompts
are shuffled. What is learnt from a generation batch in one optimizer step is the same.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any, Callable

import numpy as np

from . import tree_rows

__all__ = ["install", "shuffle_sequence_dict"]

_TRAINERS = (("trl.trainer.grpo_trainer", "GRPOTrainer"), ("trl.trainer.rloo_trainer", "RLOOTrainer"))


def shuffle_sequence_dict(seq_dict: dict[str, Any]) -> dict[str, Any]:
    """TRL's function for a batch with ``prompt_ids``: rows with one prompt stay side by side, in their order."""
    import torch

    prompts = seq_dict["prompt_ids"]
    _, group = np.unique(prompts.cpu().numpy(), axis=0, return_inverse=True)
    rank = torch.randperm(int(np.max(group)) + 1)[torch.from_numpy(group.reshape(-1))]
    order = torch.argsort(rank, stable=True)

    def moved(values: Any) -> Any:
        if values is None or (isinstance(values, torch.Tensor) and values.ndim == 0):
            return values
        return values[order.to(values.device)] if isinstance(values, torch.Tensor) else [values[i] for i in order.tolist()]

    return {name: moved(values) for name, values in seq_dict.items()}


def _sharing(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        theirs(self, *arguments, **keywords)
        tree_rows.share(self.model)
        if getattr(self, "ref_model", None) is not None:
            try:
                tree_rows.share(self.accelerator.unwrap_model(self.ref_model))
            except ValueError as problem:  # it may be sharded already
                warnings.warn(f"the reference computes every row whole: {problem}", stacklevel=2)

    return init


def install() -> list[str]:
    """Wraps the trainers, once; the places that were changed."""
    places = []
    for module, name in _TRAINERS:
        loaded: Any = importlib.import_module(module)
        kind = getattr(loaded, name)
        if not getattr(kind.__init__, "_ravel", False):
            kind.__init__ = _sharing(kind.__init__)
            kind.__init__._ravel = True
            loaded.shuffle_sequence_dict = shuffle_sequence_dict
            places += [f"{module}.{name}", f"{module}.shuffle_sequence_dict"]
    return places
