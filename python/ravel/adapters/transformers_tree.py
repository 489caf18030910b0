"""A stock model of transformers on trees: every token that samples share is computed once.

    ravel.adapters.transformers_tree.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="ravel_tree")
    batch = ravel.pack(store, samples, tree=True)
    logits = model(**ravel.adapters.transformers_tree.inputs(batch)).logits[0]
    logp = ravel.adapters.transformers_tree.logprobs(logits, batch)      # of every token of every sample but its first

Losses and gradients equal those of the samples one by one, up to rounding. On a CPU attention is torch's
``scaled_dot_product_attention`` with a mask of the tree. On a GPU it is a variable-length kernel over gathered keys, of flash-attn or of
torch, whichever gives what the mask gives when it is first used (not run on a GPU yet); without one it is the mask, which takes
tokens squared: a warning says so, and over :data:`DENSE` tokens it is refused.

Only full causal attention can be of a tree. Windows, chunks, sinks, soft caps and dropout in attention are refused;
convolutions, recurrences and linear attention never come here: :func:`.tree_rows.share` finds them, a caller of :func:`register` has
to know.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable

import numpy as np

from .._tree_batch import TreeBatch

__all__ = ["DENSE", "NAME", "attention", "inputs", "logprobs", "refusal", "register"]

NAME = "ravel_tree"
DENSE = 16384
"""Tokens up to which a GPU without a kernel for trees takes a mask of tokens x tokens."""

# What transformers hands to an attention function and what does not change its result.
_HARMLESS = {"is_causal", "position_ids", "use_cache", "cache_position", "position_embeddings", "return_dict", "num_items_in_batch",
             "logits_to_keep", "output_attentions", "output_hidden_states"}


def inputs(batch: TreeBatch, device: Any = None) -> dict[str, Any]:
    """``input_ids``, ``position_ids`` and the tree of a batch that has a field ``tokens``: arguments of the model."""
    import torch

    def tensor(name: str, dtype: Any) -> Any:
        return torch.from_numpy(batch[name]).to(device=device, dtype=dtype)

    tree = {name: tensor(name, torch.int32) for name in ("limits", "cu_seqlens_q", "cu_seqlens_k")}
    tree |= {"gather": tensor("gather", torch.int64), "max_q": batch.max_seqlen_q, "max_k": batch.max_seqlen_k}
    return {"input_ids": tensor("tokens", torch.int64)[None], "position_ids": tensor("positions", torch.int64)[None],
            "use_cache": False, "ravel_tree": tree}


def _masked(query: Any, key: Any, value: Any, tree: dict[str, Any], scaling: float | None) -> Any:
    import torch

    q = torch.arange(query.shape[2], device=query.device)[:, None]
    k = torch.arange(query.shape[2], device=query.device)[None]
    mask = (k <= q) & (q < tree["limits"][None])
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[None, None], scale=scaling)
    return out.transpose(1, 2).contiguous()


def _flash_attn() -> Callable[..., Any]:
    from flash_attn import flash_attn_varlen_func

    return functools.partial(flash_attn_varlen_func, causal=True)


def _torch_varlen() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn

    return lambda *tensors, softmax_scale: varlen_attn(*tensors, scale=softmax_scale, window_size=(-1, 0), enable_gqa=True)


_KERNELS = (_flash_attn, _torch_varlen)


def _gathered(kernel: Callable[..., Any], query: Any, key: Any, value: Any, tree: dict[str, Any], scaling: float | None) -> Any:
    import torch

    unique = int(tree["cu_seqlens_q"][-1])
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = kernel(q[:unique].contiguous(), k[tree["gather"]], v[tree["gather"]], tree["cu_seqlens_q"], tree["cu_seqlens_k"],
                 tree["max_q"], tree["max_k"], softmax_scale=scaling)
    return torch.cat([out, torch.zeros_like(q[unique:])])[None]


@functools.lru_cache(None)
def _kernel(device: Any, dtype: Any, heads: int, groups: int, width: int, value_width: int) -> Callable[..., Any] | None:
    """The first kernel that is there and gives what the mask gives for two samples that share two tokens of four: where queries
    are fewer than keys, kernels do not agree which keys they may see."""
    import torch

    from .._batch import Field, Ragged
    from .._tree_batch import pack_tree

    batch = pack_tree(Ragged([4, 4], tokens=Field("tokens", np.asarray([1, 2, 3, 4, 1, 2, 5, 6], np.int32))), [0, 1], shared=[0, 2])
    tree = inputs(batch, device)["ravel_tree"]
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, batch.slot_tokens, size, generator=draw).to(device, dtype)
               for n, size in ((heads, width), (groups, width), (groups, value_width)))
    want = _masked(q, k, v, tree, None)
    for load in _KERNELS:
        try:
            kernel = load()
            if torch.allclose(_gathered(kernel, q, k, v, tree, width**-.5).float(), want.float(), atol=.05):
                return kernel
        except (ImportError, RuntimeError, TypeError, ValueError):
            continue
    warnings.warn("attention over trees finds no variable-length kernel (flash-attn, or torch from 2.15): it takes a mask of tokens x "
                  "tokens, which is slower and larger", stacklevel=2)
    return None


def refusal(module: Any, dropout: float, options: dict[str, Any]) -> str | None:
    """Why the attention of a layer cannot be computed over a tree, as transformers calls it; None: it can."""
    if dropout:
        return f"dropout {dropout} in attention draws again for every copy of a token: set attention_dropout to 0"
    if options.get("is_causal", getattr(module, "is_causal", True)) is False:
        return "its attention is not causal"
    unknown = sorted(name for name, value in options.items() if name not in _HARMLESS and value is not None and value is not False)
    return f"its attention takes {', '.join(unknown)}, which trees do not know" if unknown else None


def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, ravel_tree: dict[str, Any] | None = None, **options: Any) -> tuple[Any, None]:
    """An attention function of transformers: [1, heads, tokens, dim] in, [1, tokens, heads, dim] out."""
    if ravel_tree is None:
        raise ValueError("the model got no tree: call it with **ravel.adapters.transformers_tree.inputs(batch)")
    why = refusal(module, dropout, options)
    if why:
        raise ValueError(f"trees are not for {type(module).__name__}: {why}")
    tokens = query.shape[2]
    if query.shape[0] != 1 or tokens != ravel_tree["limits"].shape[0]:
        raise ValueError(f"a tree of {ravel_tree['limits'].shape[0]} tokens is one row of the model, not {tuple(query.shape)}")
    kernel = None
    if query.is_cuda:
        kernel = _kernel(query.device, query.dtype, query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    if kernel is not None:
        return _gathered(kernel, query, key, value, ravel_tree, scaling), None
    if query.is_cuda and tokens > DENSE:
        raise ValueError(f"a tree of {tokens} tokens needs a mask of {tokens} x {tokens} without a variable-length kernel; install flash-attn, "
                         f"or give at most {DENSE} tokens")
    return _masked(query, key, value, ravel_tree, scaling), None


def logprobs(logits: Any, batch: TreeBatch) -> Any:
    """log p of every token of every sample but its first, sample after sample: logits are [tokens, vocab]."""
    import torch

    tokens = torch.from_numpy(batch["tokens"]).to(device=logits.device, dtype=torch.int64)
    parents = torch.from_numpy(batch["parents"]).to(device=logits.device, dtype=torch.int64)
    edges = (parents >= 0).nonzero()[:, 0]
    at = torch.zeros(tokens.shape[0], dtype=logits.dtype, device=logits.device)
    at = at.index_put((edges,), logits[parents[edges]].log_softmax(-1).gather(1, tokens[edges, None])[:, 0])
    path = torch.from_numpy(batch["path"]).to(device=logits.device, dtype=torch.int64)
    first = torch.ones(path.shape[0], dtype=torch.bool, device=logits.device)
    first[torch.from_numpy(batch["cu_seqlens"][:-1]).to(device=logits.device, dtype=torch.int64)] = False
    return at[path[first]]


def register() -> str:
    """Makes :data:`NAME` known to transformers as an attention implementation; returns the name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    return NAME
