"""Ravel: ragged samples to balanced packed micro-batches, and weights to the generators.

>>> import ravel
>>> plan = ravel.plan(lengths, budget="16k", dp=8)
>>> for micro_step in plan.micro_steps(rank):
...     batch = ravel.pack(store, micro_step, align=8)
>>> for batch in ravel.Feed(source, budget="16k", samples=512): ...

The nouns are those of the C headers (include/ravel); docs/python.md is the manual.
"""

from . import adapters, comm, mesh, metrics, policy
from ._command import Answer, command, generate
from ._batch import Batch, Field, Ragged, cp_shard, cp_unshard, pack, pad, scatter
from ._device import DeviceArray
from ._exchange import Arrived, compare, exchange, gather, share, share_words
from ._feed import Feed, MicroBatch, TensorBatch, Update, feed_options
from ._io import Safetensors, read_safetensors, write_safetensors
from ._lib import ArgumentError, DataError, Error, OversizeError, PeerError, lib as _library
from ._plan import Hybrid, HybridGroup, Plan, Planner, plan, plan_options
from ._publish import Identity, Publisher, Puller, publish_options, published, pull_options
from ._refit import Refit, RefitReport, RefitRule, RefitTensor, refit, refit_options, refit_rules
from ._routes import add_routes, check_routes
from ._shape import Lengths, Mock, Shape, mock, read_lengths, shape, shapes
from ._source import Source, Stream, source_options
from ._text import Tokenizer
from ._tree import TreeOrder, tree_from_groups, tree_order
from ._tree_batch import TreeBatch
from ._typing import ArrayLike
from ._weights import Counts, counts, weights

__version__: str = _library.ravel_version().decode()
__all__ = ["Answer", "ArgumentError", "ArrayLike", "Arrived", "Batch", "Counts", "DataError", "DeviceArray", "Error", "Feed", "Field", "Hybrid",
           "HybridGroup", "Identity", "Lengths", "MicroBatch", "Mock", "OversizeError", "PeerError", "Plan", "Planner",
           "Publisher", "Puller", "Ragged", "Refit", "RefitReport", "RefitRule", "RefitTensor", "Safetensors", "Shape",
           "Source", "Stream", "TensorBatch", "Tokenizer", "TreeBatch", "TreeOrder", "Update", "adapters", "add_routes", "check_routes", "comm", "command", "compare", "counts", "cp_shard", "cp_unshard",
           "exchange", "feed_options", "gather", "generate", "mesh", "metrics", "mock", "pack", "pad", "plan", "plan_options", "policy",
           "publish_options", "published", "pull_options", "read_lengths", "read_safetensors", "refit", "refit_options",
           "refit_rules", "scatter", "shape", "shapes", "share", "share_words", "source_options", "tree_from_groups", "tree_order", "weights", "write_safetensors"]
