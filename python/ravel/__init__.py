"""Ravel: ragged samples to balanced packed micro-batches, and weights to the generators."""

from ._lib import ArgumentError, DataError, Error, OversizeError, PeerError, lib as _lib_handle
from ._plan import Plan, Planner, plan, plan_options

__version__ = _lib_handle.ravel_version().decode()
__all__ = ["ArgumentError", "DataError", "Error", "OversizeError", "PeerError", "Plan", "Planner", "plan",
           "plan_options"]
