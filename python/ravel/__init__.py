"""Ravel: ragged samples to balanced packed micro-batches, and weights to the generators.

>>> import ravel
>>> plan = ravel.plan(lengths, budget="16k", dp=8)
>>> for micro_step in plan.micro_steps(rank):
...     batch = ravel.pack(store, micro_step, align=8)
"""

from ._batch import Batch, Field, Ragged, cp_shard, cp_unshard, pack, pad, scatter
from ._io import Safetensors, read_safetensors, write_safetensors
from ._lib import ArgumentError, DataError, Error, OversizeError, PeerError, lib as _library
from ._plan import Plan, Planner, plan, plan_options
from ._weights import Counts, counts, weights

__version__ = _library.ravel_version().decode()
__all__ = ["ArgumentError", "Batch", "Counts", "DataError", "Error", "Field", "OversizeError", "PeerError", "Plan",
           "Planner", "Ragged", "Safetensors", "counts", "cp_shard", "cp_unshard", "pack", "pad", "plan",
           "plan_options", "read_safetensors", "scatter", "weights", "write_safetensors"]
