"""Experts' routes as engines and frameworks hand them over, to rows for :func:`ravel.add_routes`, and back (docs/routes.md).

All of them give one array per sample, int16 [rows, layers, topk]. What an engine fills with zeros where it has nothing (layers
without experts, padding, tokens that it did not read) becomes -1; with top-1 a zero is an expert, and stays."""

from __future__ import annotations

import base64
from typing import Any, Sequence

import numpy as np

__all__ = ["from_padded", "from_sglang", "from_slime", "from_vllm", "per_layer", "to_padded"]


def _rows(array: Any, start: int = 0) -> np.ndarray:
    """int16, with -1 where there is nothing, and ``start`` rows of -1 in front."""
    found = np.array(array.cpu() if hasattr(array, "cpu") else array)
    if found.ndim != 3:
        raise ValueError(f"routes have shape {found.shape}; they must be [tokens, layers, topk]")
    if found.size and int(found.max()) > np.iinfo(np.int16).max:
        raise ValueError(f"expert {int(found.max())} does not fit into 16 bits")
    rows = found.astype(np.int16)
    if rows.shape[2] > 1:
        rows[(rows == 0).all(2)] = -1
    return np.concatenate([np.full((start, *rows.shape[1:]), -1, np.int16), rows]) if start else rows


def from_vllm(output: Any, index: int = 0, start: int = 0) -> np.ndarray:
    """Of a RequestOutput's ``outputs[index].routed_experts`` (``--enable-return-routed-experts``), for prompt and answer together.
    ``start`` is the request's ``routed_experts_prompt_start``."""
    answer = output.outputs[index]
    if answer.routed_experts is None:
        raise ValueError("the answer has no routes: start vLLM with --enable-return-routed-experts; they come with the last output")
    rows, tokens = _rows(answer.routed_experts, start), len(output.prompt_token_ids) + len(answer.token_ids)
    if not tokens - 1 <= len(rows) <= tokens:
        raise ValueError(f"vLLM gave routes of {len(rows)} tokens, with {start} that were not asked for; there are {tokens}")
    return rows


def from_sglang(meta_info: dict[str, Any], tokens: int, layers: int, start: int = 0) -> np.ndarray:
    """Of ``meta_info`` of an answer to a request with ``return_routed_experts``: base64 of int32 [tokens - 1, layers, topk].
    ``tokens`` are those of prompt and answer; ``start`` is the request's ``routed_experts_start_len``."""
    packed = meta_info.get("routed_experts")
    if packed is None:
        raise ValueError("the answer has no routes: start SGLang with --enable-return-routed-experts, and ask with return_routed_experts")
    flat = np.frombuffer(base64.b64decode(packed), np.int32)
    rows = tokens - 1 - start
    if rows < 1 or flat.size % (rows * layers):
        raise ValueError(f"SGLang gave {flat.size} experts, which are no rows of {layers} layers for {rows} tokens")
    return _rows(flat.reshape(rows, layers, -1), start)


def from_slime(sample: Any) -> np.ndarray:
    """Of a Sample's ``rollout_routed_experts`` (``--use-rollout-routing-replay``): int32 [tokens - 1, layers, topk]."""
    if sample.rollout_routed_experts is None:
        raise ValueError("the sample has no routes: start slime with --use-rollout-routing-replay")
    rows = _rows(sample.rollout_routed_experts)
    if len(rows) != len(sample.tokens) - 1:
        raise ValueError(f"slime's sample has routes of {len(rows)} tokens and {len(sample.tokens)} tokens; the last one alone has none")
    return rows


def from_padded(routes: Any, attention_mask: Any) -> list[np.ndarray]:
    """verl's ``routed_experts`` and SkyRL's ``rollout_expert_indices``: [samples, columns, layers, topk] beside an attention mask."""
    array, mask = (np.asarray(a.cpu() if hasattr(a, "cpu") else a) for a in (routes, attention_mask))
    if array.shape[:2] != mask.shape:
        raise ValueError(f"routes have shape {array.shape}; attention_mask has {mask.shape}")
    return [_rows(sample[kept != 0]) for sample, kept in zip(array, mask)]


def to_padded(rows: Sequence[np.ndarray], attention_mask: Any, fill: int = 0) -> np.ndarray:
    """The same back, for a framework that replays itself: [samples, columns, layers, topk] with ``fill`` where there is nothing."""
    mask = np.asarray(attention_mask.cpu() if hasattr(attention_mask, "cpu") else attention_mask) != 0
    out = np.full((*mask.shape, *rows[0].shape[1:]), fill, rows[0].dtype)
    for i, sample in enumerate(rows):
        places = np.flatnonzero(mask[i])[:len(sample)]
        out[i, places] = np.where(sample[:len(places)] < 0, fill, sample[:len(places)])
    return out


def per_layer(routes: Any, topk: int) -> list[Any]:
    """A batch's field "routed_experts" [places, layers * topk] as one [places, topk] per layer, as Megatron's RouterReplay takes them."""
    return [routes[..., i:i + topk] for i in range(0, routes.shape[-1], topk)]
