"""Rewards to advantages, and the policy losses of RL: functions that a framework calls by themselves.

    A = ravel.policy.advantages(rewards, groups, "grpo")
    out = ravel.policy.loss(logprobs, advantages=A[sample_of_token], weights=w, old=old, clip_high=0.28)
    out.loss, out.slopes, out.sums["clipped"]
    ravel.policy.loss_torch(logprobs, ...).backward()        a torch scalar with the same derivative

The formulas are in include/ravel/policy.h; weights are those of :func:`ravel.weights`, so that the sum over all micro-batches and
ranks is the update's loss. Everything is worked out in double on the host.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._lib import address, as_array, call, fields, host_array
from ._options import Table
from ._typing import ArrayLike

__all__ = ["KINDS", "Loss", "advantages", "corrections", "loss", "loss_torch", "options"]

KINDS = ("grpo", "dr-grpo", "rloo", "none")
_TABLE = Table(_abi.ravel_policy_options, "ravel_policy")


def options() -> dict[str, str]:
    """The keywords of :func:`loss`: name -> one sentence with the default."""
    return _TABLE.docs()


def corrections() -> dict[str, dict[str, Any]]:
    """What ``correction`` may be: name -> sequence (the weight is of the sample), masked (0 beyond the limits, not the limit),
    now (of the log-prob now), low and high (the limits by default) and paper."""
    found = {}
    for kind in range(_abi.RAVEL_CORRECTIONS):
        row = _abi.ravel_correction()
        call("ravel_policy_get_correction", kind, 0.0, 0.0, C.byref(row))
        found[row.name.decode()] = {"sequence": bool(row.sequence), "masked": bool(row.masked), "now": bool(row.now),
                                    "low": row.low, "high": row.high, "paper": row.paper.decode()}
    return found


def advantages(rewards: ArrayLike, groups: ArrayLike, kind: str = "grpo") -> np.ndarray:
    """[samples], float64: samples with equal ``groups`` (any integers, in any order) are answers to one prompt."""
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    own = as_array(rewards, np.float64, "rewards")
    ids = as_array(groups, np.int64, "groups", own.size)
    out, scratch = np.empty(own.size), np.empty(2 * own.size, np.int64)
    call("ravel_advantages", KINDS.index(kind), address(own), address(ids), own.size, address(out), address(scratch))
    return out


class Loss(NamedTuple):
    """What :func:`loss` found."""

    loss: float
    """The sum over tokens."""
    losses: np.ndarray
    """[tokens] float32: each token's part of it."""
    slopes: np.ndarray
    """[tokens] float32: derivative of the sum by each log-prob."""
    sums: dict[str, float]
    """tokens, ratio, ratio_max, clipped, approx_kl, kl; divide by tokens for means. With a correction
    also corrected (tokens or samples), weight, weight_square, raw_square, outside, and of these ess, chi_square, outside_share."""


def _floats(value: ArrayLike | None, what: str, count: int | None) -> np.ndarray | None:
    if value is None:
        return None
    tensor: Any = value
    array = host_array(tensor.detach().float().cpu() if hasattr(tensor, "detach") else tensor, what)
    return as_array(array.reshape(-1), np.float32, what, count)


def loss(logprobs: ArrayLike, *, advantages: ArrayLike, weights: ArrayLike, old: ArrayLike | None = None,
         generator: ArrayLike | None = None, reference: ArrayLike | None = None, samples: ArrayLike | None = None,
         **keywords: Any) -> Loss:
    """The clipped policy loss of scored tokens. Arrays have one entry per token; ``old`` None is the first step of a batch.

    Options (``ravel.policy.options()``): ratio ("token", "sequence"; the latter needs ``samples``, the number of each token's
    sample), clip_low, clip_high, dual_clip, kl and kl_kind (with ``reference``), correction and its limits correction_low and
    correction_high (with ``generator``; seq-tis and seq-mis need ``samples``; see :func:`corrections`). A token of weight 0 is left
    out, whatever its log-prob.
    """
    chosen = _TABLE.make(**keywords)
    now = _floats(logprobs, "logprobs", None)
    assert now is not None
    given = {"old": old, "generator": generator, "reference": reference, "advantages": advantages, "weights": weights}
    arrays = {name: _floats(value, name, now.size) for name, value in given.items()}
    numbers = None if samples is None else as_array(samples, np.int32, "samples", now.size)
    rows = _abi.ravel_policy_rows(size=C.sizeof(_abi.ravel_policy_rows), count=now.size, logprobs=address(now),
                                  samples=address(numbers),
                                  sample_count=0 if numbers is None or not numbers.size else int(numbers.max()) + 1,
                                  **{name: address(array) for name, array in arrays.items()})
    losses, slopes, sums = np.empty(now.size, np.float32), np.empty(now.size, np.float32), _abi.ravel_policy_sums()
    call("ravel_policy_loss", C.byref(chosen), C.byref(rows), address(losses), address(slopes), C.byref(sums))
    found = {name: float(getattr(sums, name)) for name in fields(sums)}
    if n := found["corrected"]:
        square = found["weight"] ** 2
        found["ess"] = square / (n * found["weight_square"]) if square else 0.0
        found["chi_square"], found["outside_share"] = found["raw_square"] / n - 1, found["outside"] / n
    return Loss(found.pop("loss"), losses, slopes, found)


def loss_torch(logprobs: Any, **arrays_and_options: Any) -> Any:
    """The same as a torch scalar on the device of ``logprobs``, with its derivative: call ``backward()`` on it, or add it to
    others. Log-probs go to the host and slopes come back: two copies of one number per token."""
    import torch

    found = loss(logprobs, **arrays_and_options)
    slopes = torch.from_numpy(found.slopes).to(logprobs.device).view(logprobs.shape)

    class Value(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            ctx.kind = given.dtype
            return torch.tensor(found.loss, dtype=torch.float32, device=given.device)

        @staticmethod
        def backward(ctx: Any, outer: Any) -> Any:
            return (outer * slopes).to(ctx.kind)

    return Value.apply(logprobs)
