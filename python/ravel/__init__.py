"""Ravel: ragged samples to balanced packed micro-batches, and weights to the generators.

>>> import ravel
>>> plan = ravel.plan(lengths, budget="16k", dp=8)
>>> for micro_step in plan.micro_steps(rank):
...     batch = ravel.pack(store, micro_step, align=8)

The nouns are those of the C headers (include/ravel); docs/python.md is the manual.
"""

from . import comm, metrics
from ._batch import Batch, Field, Ragged, cp_shard, cp_unshard, pack, pad, scatter
from ._io import Safetensors, read_safetensors, write_safetensors
from ._lib import ArgumentError, DataError, Error, OversizeError, PeerError, lib as _library
from ._plan import Plan, Planner, plan, plan_options
from ._publish import Identity, Publisher, Puller, publish_options, pull_options
from ._refit import Refit, RefitReport, RefitRule, RefitTensor, refit, refit_options, refit_rules
from ._shape import Lengths, Mock, Shape, mock, read_lengths, shape, shapes
from ._text import Tokenizer
from ._weights import Counts, counts, weights

__version__: str = _library.ravel_version().decode()
__all__ = ["ArgumentError", "Batch", "Counts", "DataError", "Error", "Field", "Identity", "Lengths", "Mock",
           "OversizeError", "PeerError", "Plan", "Planner", "Publisher", "Puller", "Ragged", "Refit", "RefitReport",
           "RefitRule", "RefitTensor", "Safetensors", "Shape", "Tokenizer", "comm", "counts", "cp_shard",
           "cp_unshard", "metrics", "mock", "pack", "pad", "plan", "plan_options", "publish_options", "pull_options",
           "read_lengths", "read_safetensors", "refit", "refit_options", "refit_rules", "scatter", "shape", "shapes",
           "weights", "write_safetensors"]
