"""Trees in a framework that knows none: the layers of a transformers model see every token that rows share once.

    ravel.adapters.tree_rows.share(model)            # then train as ever: TRL's GRPOTrainer, verl's FSDP engine, a loop of one's own

The model's backbone (all but the head) is given rows as the framework has them: padded rows with an ``attention_mask``, or packed
rows whose ``position_ids`` restart. :func:`share` finds what they share, runs the layers over their tree
(:mod:`.transformers_tree`) and hands every row its hidden states back, so that head, losses, log-probs and labels stay those of the
framework. Outputs and gradients equal those without it up to rounding. Calls that cannot be shared run as before: generation with a
cache, images, router logits, rows without a mask whose positions do not say where samples begin, and rows that share less than
``least`` of their tokens.

A model is taken if tokens see one another in full causal attention alone, through the attention interface of transformers.
:func:`share` finds that out by trying: with attention silenced, a token that is no number must not reach any other. So hybrid models
(Mamba, short convolutions, linear attention), windows, chunks, sinks, soft caps and dropout in attention are refused by name.

What is saved is the layers' work and memory. Samples share only inside one forward call, so micro-batches should hold the answers to
a prompt side by side: TRL's do; :func:`ravel.adapters.verl.install` with ``share_prefix=True`` deals and cuts verl's so.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
from typing import Any

import numpy as np

from .._batch import Field, Ragged
from .._tree import tree_order
from .._tree_batch import TreeBatch, pack_tree
from . import transformers_tree

__all__ = ["find", "share", "unshare"]

_active: contextvars.ContextVar[Any] = contextvars.ContextVar("ravel_tree_rows", default=False)  # True over a tree, or a _Probe
_META = "its weights are on the device \"meta\": load them first"
_PLAIN = {"input_ids", "attention_mask", "position_ids", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
          "cache_position", "past_key_values", "inputs_embeds"}


def _samples(ids: np.ndarray, mask: np.ndarray | None, positions: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Where each sample's tokens are in the flattened rows, and the samples' lengths; None: it cannot be told."""
    if mask is not None:
        if mask.shape != ids.shape:
            return None
        places = np.flatnonzero(mask.reshape(-1))
        lengths = (mask != 0).sum(1)
        return places, lengths[lengths > 0]
    if positions is None or positions.shape != ids.shape:
        return (np.arange(ids.size), np.full(len(ids), ids.shape[1])) if positions is None else None
    flat = positions.reshape(-1)
    begins = np.flatnonzero(flat == 0)
    if not begins.size or begins[0] != 0:
        return None
    lengths = np.diff(begins, append=flat.size)
    whole = np.arange(flat.size) - np.repeat(begins, lengths)
    return (np.arange(flat.size), lengths) if np.array_equal(whole, flat) else None


def find(ids: np.ndarray, mask: np.ndarray | None = None, positions: np.ndarray | None = None) -> tuple[TreeBatch, np.ndarray] | None:
    """The tree of rows ``ids`` [rows, width], and for each place of its ``path`` the position in the flattened rows."""
    found = _samples(ids, mask, positions)
    if found is None or len(found[1]) < 2:
        return None
    places, lengths = found
    tokens = ids.reshape(-1)[places].astype(np.int32)
    order, shared = tree_order(tokens, lengths)
    store = Ragged(lengths, tokens=Field("tokens", tokens))
    batch = pack_tree(store, order, shared=shared)
    begins = np.cumsum(lengths) - lengths
    index = np.repeat(begins[order] - batch.cu_seqlens[:-1], lengths[order]) + np.arange(places.size)
    return batch, places[index]


def _host(value: Any) -> np.ndarray | None:
    return None if value is None else value.detach().cpu().numpy()


def _tree_of(kwargs: dict[str, Any], least: float) -> tuple[TreeBatch, np.ndarray] | None:
    ids, mask, positions = (kwargs.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
    extra = [name for name, value in kwargs.items() if value is not None and value is not False and name not in _PLAIN]
    if ids is None or ids.dim() != 2 or extra or any(kwargs.get(name) is not None for name in ("past_key_values", "inputs_embeds")):
        return None
    if any(kwargs.get(name) for name in ("output_attentions", "output_hidden_states", "use_cache")):
        return None
    if (mask is not None and mask.dim() != 2) or (positions is not None and positions.dim() != 2):
        return None
    found = find(_host(ids), _host(mask), _host(positions))  # type: ignore[arg-type]
    return found if found is not None and found[0].tokens_saved >= least * found[0].actual_tokens else None


class _Probe:
    """What a model does with attention, seen while it runs over four tokens, of which the second is not a number."""

    def __init__(self) -> None:
        self.calls, self.last = 0, None
        self.problems: list[str] = []

    def attention(self, module: Any, query: Any, value: Any, dropout: float = 0.0, **options: Any) -> Any:
        self.calls += 1
        options = {name: given for name, given in options.items() if name != "scaling"}
        why = transformers_tree.refusal(module, dropout, options)
        self.problems += [f"{type(module).__name__}: {why}"] if why else []
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])

    def mask(self, mask_function: Any = None, **options: Any) -> None:
        from transformers.masking_utils import causal_mask_function

        if mask_function is not None and mask_function is not causal_mask_function:
            self.problems.append("its mask is not of full causal attention (a sliding window, chunks, ...)")

    def leak(self, name: str, module: Any, output: Any) -> None:
        found = output[0] if isinstance(output, tuple) and output else getattr(output, "last_hidden_state", output)
        if getattr(found, "shape", ())[:2] == (1, 4) and found.is_floating_point() and found[:, [0, 2, 3]].isnan().any():
            self.problems.append(f"before {name or 'its end'} ({type(module).__name__}) tokens see one another outside of attention: a "
                                 f"convolution, a recurrence or linear attention")

    def end(self, module: Any, arguments: Any, output: Any) -> None:
        self.last = output.last_hidden_state

    def run(self, model: Any, backbone: Any) -> list[str]:
        import torch

        embedding = backbone.get_input_embeddings()
        device, poison = embedding.weight.device, torch.tensor([0., float("nan"), 0., 0.]).reshape(1, 4, 1)
        if device.type == "meta":
            return [_META]
        if "position_ids" not in inspect.signature(backbone.forward).parameters:
            return ["it takes no position_ids"]
        hooks = [embedding.register_forward_hook(lambda _, __, out: out + poison.to(out))]
        hooks += [m.register_forward_hook(functools.partial(lambda name, m, _, out: self.leak(name, m, out), name))
                  for name, m in backbone.named_modules() if m is not embedding]
        hooks.append(backbone.register_forward_hook(self.end))
        training = {m: m.training for m in backbone.modules()}
        token = _active.set(self)
        try:
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                backbone.train()  # so that dropout shows
                model(input_ids=torch.zeros(1, 4, dtype=torch.int64, device=device), position_ids=torch.arange(4, device=device)[None],
                      use_cache=False)
        finally:
            _active.reset(token)
            for hook in hooks:
                hook.remove()
            for module, was in training.items():
                module.training = was
        if not self.calls:
            self.problems.append("its attention does not go through the attention interface of transformers")
        if self.last is None:
            self.problems.append("its head does not get what its layers give from model.base_model")
        elif not self.problems and not self.last[0, 1].isnan().all():
            self.problems.append("what its layers do with tokens could not be seen")
        return self.problems


def _attention(before: str, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    """Over a tree, of the probe, or as the model had it: eager attention is a function of each model's own file."""
    from transformers import AttentionInterface

    active = _active.get()
    if isinstance(active, _Probe):
        return active.attention(module, query, value, **options), None
    if options.get("ravel_tree") is not None:
        return transformers_tree.attention(module, query, key, value, attention_mask, **options)
    own = vars(sys.modules[type(module).__module__])
    theirs = own.get("ALL_ATTENTION_FUNCTIONS", AttentionInterface()).get_interface(before, own.get("eager_attention_forward"))
    return theirs(module, query, key, value, attention_mask, **options)


def _mask(before: str, *arguments: Any, **options: Any) -> Any:
    from transformers import AttentionMaskInterface

    active = _active.get()
    if isinstance(active, _Probe):
        return active.mask(**options)
    return None if active else AttentionMaskInterface()[before](*arguments, **options)


def _register(before: str) -> str:
    """An attention of our own per attention that models had: their masks differ."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"{transformers_tree.NAME}_or_{before}"
    AttentionInterface.register(name, functools.partial(_attention, before))
    AttentionMaskInterface.register(name, functools.partial(_mask, before))
    return name


def _plain(model: Any) -> Any:
    """The model of transformers in one of PEFT."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _of_all(problems: list[str], group: Any) -> list[str]:
    """What any rank of a torch.distributed group has found. Weights on "meta" can be tried by nobody: these ranks take the others' word."""
    import torch.distributed as dist

    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, problems, group)
    tried = [found for found in said if found != [_META]]
    return next((found for found in tried if found), []) if tried else [_META]


def share(model: Any, least: float = 0.02, *, group: Any = None) -> Any:
    """Lets the layers of a causal model of transformers (or of PEFT over one) compute what rows of a call share once. ``least``: the
    share of tokens from which that is done. Returns the model; :func:`unshare` undoes it. A model that it is not for is a
    ``ValueError`` that says why, and stays as it was. It runs the layers over four tokens: call it before FSDP wraps them. With a
    ``group`` of torch.distributed all its ranks call it and refuse together; one of them has to have the weights."""
    plain = _plain(model)
    backbone = plain.base_model
    if hasattr(backbone, "_ravel_before"):
        return model
    configs = {id(m.config): m.config for m in plain.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")}
    backbone._ravel_before = backbone.forward, [(c, c._attn_implementation) for c in configs.values()]
    for config in configs.values():
        config._attn_implementation = _register(config._attn_implementation or "eager")
    try:
        problems = _Probe().run(plain, backbone)
    except Exception as problem:
        problems = [f"its layers could not be tried: {problem}"]
    problems = problems if group is None else _of_all(problems, group)
    if problems:
        unshare(model)
        raise ValueError(f"{type(plain).__name__} cannot share prefixes: {problems[0]}")
    backbone.forward, backbone.ravel_saved = _shared(backbone, least), 0
    return model


def _shared(backbone: Any, least: float) -> Any:
    forward = backbone.forward

    @functools.wraps(forward)
    def shared(input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any) -> Any:
        import torch

        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, **kwargs}
        found = _tree_of(given, least)
        if found is None:
            return forward(**given)
        batch, places = found
        token = _active.set(True)
        try:
            out = forward(**{**kwargs, **transformers_tree.inputs(batch, input_ids.device)})
        finally:
            _active.reset(token)
        device = input_ids.device
        rows = out.last_hidden_state[0][torch.from_numpy(batch["path"]).to(device=device, dtype=torch.int64)]
        flat = rows.new_zeros(input_ids.numel(), rows.shape[-1])
        out.last_hidden_state = flat.index_copy(0, torch.from_numpy(places).to(device), rows).reshape(*input_ids.shape, -1)
        backbone.ravel_saved += batch.tokens_saved
        return out

    return shared


def unshare(model: Any) -> Any:
    """The model as it was before :func:`share`."""
    backbone = _plain(model).base_model
    if hasattr(backbone, "_ravel_before"):
        backbone.forward, configs = backbone._ravel_before
        for config, before in configs:
            config._attn_implementation = before
        del backbone._ravel_before
    return model
