"""A stock model of transformers on trees: every token that samples share is computed once.

    ravel.adapters.transformers_tree.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="ravel_tree")
    batch = ravel.pack(store, samples, tree=True)
    logits = model(**ravel.adapters.transformers_tree.inputs(batch)).logits[0]
    logp = ravel.adapters.transformers_tree.logprobs(logits, batch)      # of every token of every sample but its first

Losses and gradients equal those of the samples one by one, up to rounding. On a CPU attention is torch's
``scaled_dot_product_attention`` with a mask of the tree; on a GPU with flash-attn it is its variable-length kernel over gathered
keys (not tried on a GPU yet). Models with a sliding window, dropout in attention or recurrent layers are not for it.
"""

from __future__ import annotations

from typing import Any

from .._tree_batch import TreeBatch

__all__ = ["NAME", "attention", "inputs", "logprobs", "register"]

NAME = "ravel_tree"


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


def _gathered(query: Any, key: Any, value: Any, tree: dict[str, Any], scaling: float | None) -> Any:
    import torch
    from flash_attn import flash_attn_varlen_func

    unique = int(tree["cu_seqlens_q"][-1])
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = flash_attn_varlen_func(q[:unique].contiguous(), k[tree["gather"]], v[tree["gather"]], tree["cu_seqlens_q"],
                                 tree["cu_seqlens_k"], tree["max_q"], tree["max_k"], softmax_scale=scaling, causal=True)
    return torch.cat([out, torch.zeros_like(q[unique:])])[None]


def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, ravel_tree: dict[str, Any] | None = None, **options: Any) -> tuple[Any, None]:
    """An attention function of transformers: [1, heads, tokens, dim] in, [1, tokens, heads, dim] out."""
    if ravel_tree is None:
        raise ValueError("the model got no tree: call it with **ravel.adapters.transformers_tree.inputs(batch)")
    if dropout or options.get("sliding_window"):
        raise ValueError("trees are not exact with dropout in attention, nor possible with a sliding window")
    if query.shape[0] != 1 or query.shape[2] != ravel_tree["limits"].shape[0]:
        raise ValueError(f"a tree of {ravel_tree['limits'].shape[0]} tokens is one row of the model, not {tuple(query.shape)}")
    if query.is_cuda:
        try:
            return _gathered(query, key, value, ravel_tree, scaling), None
        except ImportError:
            pass
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
