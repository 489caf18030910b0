"""Metrics: counters, phases, FLOPs and MFU, reduced over ranks, to any sink.

>>> m = ravel.metrics.Metrics(shape="qwen3-0.6b", gpu="h100")
>>> m.sink("jsonl:run/metrics.jsonl")
>>> for step in range(1, updates + 1):
...     m.begin()
...     with m.phase("forward"):
...         ...
...     m.add_plan(plan, rank)
...     m.add("train/loss", loss)
...     wandb.log(m.update(step), step=step)

Names, units and meanings: ``ravel.metrics.rows()``, docs/metrics.md and include/ravel/metrics.h.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import json
import logging
import operator
import os
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _abi
from ._lib import Handle, Raised, address, as_array, call, fields, host_array, lib, view_bytes
from ._options import Table
from ._plan import Plan
from ._shape import Shape, shape as shape_of
from .comm import Comm

__all__ = ["Flops", "Metrics", "Row", "flops", "gpu_peak", "phases", "rows"]

_TABLE = Table(_abi.ravel_metrics_options, "ravel_metrics")
_KINDS = ["counter", "gauge", "timer"]
_RULES = ["sum", "mean", "std", "min", "max", "derived"]
_SHOWS = ["all", "rl"]
_RECOMPUTE = ["none", "attention", "full"]
_LOG_LEVELS = {_abi.RAVEL_LOG_DEBUG: logging.DEBUG, _abi.RAVEL_LOG_INFO: logging.INFO,
               _abi.RAVEL_LOG_WARN: logging.WARNING}


class Row(NamedTuple):
    """One metric: its name, what it is and how the ranks' contributions become one value. Also how to declare one."""

    name: str
    kind: str = "gauge"  # counter, gauge, timer
    rule: str = "mean"  # sum, mean, std, min, max, derived
    unit: str = ""
    doc: str = ""
    show: str = "all"  # all, rl

    def _c(self) -> _abi.ravel_metric:
        for what, value, words in (("kind", self.kind, _KINDS), ("rule", self.rule, _RULES), ("show", self.show, _SHOWS)):
            if value not in words:
                raise ValueError(f"{self.name}: {what} is {value!r}; it must be one of {', '.join(words)}")
        return _abi.ravel_metric(name=self.name.encode(), unit=self.unit.encode(), doc=self.doc.encode(),
                                 kind=_KINDS.index(self.kind), rule=_RULES.index(self.rule),
                                 show=_SHOWS.index(self.show))


def _row(pointer: Any) -> Row:
    c = pointer.contents
    return Row(c.name.decode(), _KINDS[c.kind], _RULES[c.rule], c.unit.decode(), c.doc.decode(), _SHOWS[c.show])


def rows() -> list[Row]:
    """Every built-in metric."""
    return [_row(lib.ravel_metric_row(i)) for i in range(_abi.RAVEL_METRICS)]


def phases() -> list[str]:
    """The phases that :meth:`Metrics.phase` takes."""
    return [lib.ravel_phase_name(i).decode() for i in range(_abi.RAVEL_PHASES)]


_PHASES = {name: i for i, name in enumerate(phases())}


class Flops(NamedTuple):
    """Exact counts (Python integers) of floating-point operations."""

    forward: int
    backward: int
    recompute: int
    model: int
    hardware: int


def _flops(struct: _abi.ravel_flops) -> Flops:
    return Flops(*((getattr(struct, name).high << 64) + getattr(struct, name).low for name in Flops._fields))


def _choice(what: str, value: str, words: list[str]) -> int:
    if value not in words:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(words)}")
    return words.index(value)


def _positive(lengths: Any) -> np.ndarray:
    array = as_array(lengths, np.int64, "lengths")
    if array.size and int(array.min()) < 1:
        raise ValueError(f"a length is {int(array.min())}; lengths are 1 or more")
    return array


def count_flops(shape: Any, total: _abi.ravel_lengths_sum, head_tokens: int | None, recompute: str, adapter: int) -> Flops:
    """The same of a sum over lengths."""
    model, result = shape if isinstance(shape, Shape) else shape_of(shape), _abi.ravel_flops()
    call("ravel_flops_adapted", C.byref(model._c), C.byref(total), total.tokens if head_tokens is None else head_tokens, adapter,
         _choice("recompute", recompute, _RECOMPUTE), C.byref(result))
    return _flops(result)


def flops(shape: Any, lengths: Any, *, head_tokens: int | None = None, recompute: str = "none", adapter: int = 0) -> Flops:
    """Operations of one pass over packed samples of these lengths: causal attention inside each sample only.

    ``head_tokens`` go through the LM head (None: all); ``recompute`` is none, attention or full; ``adapter`` is the number of
    weights of a LoRA adapter beside the frozen model (0: the model is trained).
    """
    array, total = _positive(lengths), _abi.ravel_lengths_sum()
    lib.ravel_lengths_add(C.byref(total), address(array), array.size)
    return count_flops(shape, total, head_tokens, recompute, adapter)


def gpu_peak(name: str) -> float | None:
    """Dense bf16 FLOP/s of a GPU by its driver's name or a short one ("h100"); None where it is not surely known."""
    return lib.ravel_gpu_peak(name.encode()) or None


class Metrics:
    """What one rank counts. ``comm`` (or ``reducer``, see below) joins the ranks; without it this is the only one.

    ``shape`` (a :class:`ravel.Shape`, a name, a path) is for FLOPs; ``extra`` are rows of the caller's own
    (:class:`Row`, or names of gauges that are averaged). ``reducer`` is (rank, size, all_reduce), with
    ``all_reduce(values, op)`` replacing an int64 array by its sum or max ("sum", "max") over ranks. Options: world,
    updates, seq_length, peak_flops, gpu, rl, counts, compute, recompute, adapter, per_rank. A sink that fails is reported to the
    logger "ravel" of Python's logging, once, and tried again at the next update.
    """

    def __init__(self, *, comm: Comm | None = None, shape: Any = None, extra: Sequence[Row | str] = (),
                 reducer: tuple[int, int, Callable[[np.ndarray, str], None]] | None = None,
                 sinks: Sequence[str] = (), **options: Any):
        self._raised = comm.raised if comm is not None else Raised()
        made = _TABLE.make(**options)
        keep: list[Any] = [made, comm]
        if shape is not None:
            model = shape if isinstance(shape, Shape) else shape_of(shape)
            made.shape = C.pointer(model._c)
            keep.append(model)
        declared = [(row if isinstance(row, Row) else Row(row))._c() for row in extra]
        table = (_abi.ravel_metric * max(1, len(declared)))(*declared)
        made.extra, made.extra_count = table, len(declared)
        if comm is not None:
            reducer = (comm.rank, comm.size, lambda values, op: _over(comm, values, op))
        if reducer is not None:
            made.reducer = C.pointer(self._reducer(*reducer))
        made.logger = C.pointer(_logger())
        keep += [table, made.reducer, made.logger]
        pointer = C.c_void_p()
        self._raised.call("ravel_metrics_create", C.byref(made), C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_metrics_free, keep)
        self._closed = False
        self._rows = [_row(lib.ravel_metrics_row(pointer.value, i))
                      for i in range(lib.ravel_metrics_rows(pointer.value))]
        self._ids = {row.name: i for i, row in enumerate(self._rows)}
        for spec in sinks:
            self.sink(spec)

    def _reducer(self, rank: int, size: int, all_reduce: Callable[[np.ndarray, str], None]) -> Any:
        def reduce(_user: Any, values: Any, count: int, op: int, error: Any) -> int:
            word = "sum" if op == _abi.RAVEL_METRICS_SUM else "max"
            return self_raised.guard(lambda: all_reduce(np.frombuffer(view_bytes(values, 8 * count), np.int64), word),
                                     error)

        self_raised = self._raised
        kind = fields(_abi.ravel_metrics_reducer)["all_reduce"]
        return _abi.ravel_metrics_reducer(rank=rank, size=size, all_reduce=kind(reduce))

    @property
    def _pointer(self) -> Any:
        if self._closed:
            raise ValueError("these metrics are closed")
        return self._handle.pointer

    def _id(self, name: str) -> int:
        if name not in self._ids:
            import difflib

            near = difflib.get_close_matches(name, self._ids, 1)
            raise KeyError(f"there is no metric {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return self._ids[name]

    # -- counting
    def begin(self) -> None:
        """Starts the update's clock."""
        lib.ravel_metrics_begin(self._pointer)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time inside counts as the phase; phases nest. See :func:`phases`."""
        number = self._phase(name)
        call("ravel_metrics_phase_begin", self._pointer, number)
        try:
            yield
        finally:
            call("ravel_metrics_phase_end", self._pointer, number)

    def phase_add(self, name: str, seconds: float) -> None:
        """Time that was measured elsewhere: another thread, the device."""
        lib.ravel_metrics_phase_add(self._pointer, self._phase(name), float(seconds))

    def _phase(self, name: str) -> int:
        if name not in _PHASES:
            raise ValueError(f"there is no phase {name!r}; there are {', '.join(_PHASES)}")
        return _PHASES[name]

    def add_batch(self, lengths: Any, *, capacity: int, padded: int | None = None, loss: int = 0, head: int = 0,
                  bins: int = 1, fillers: int = 0, micro_steps: int | None = None) -> None:
        """A bin of this rank, or all bins of an update at once: real lengths, room, slot tokens, loss tokens."""
        array = _positive(lengths)
        batch = _abi.ravel_metrics_batch(
            size=C.sizeof(_abi.ravel_metrics_batch), lengths=address(array), samples=array.size, capacity=capacity,
            padded=int(array.sum()) if padded is None else padded, loss=loss, head=head, bins=bins, fillers=fillers,
            micro_steps=bins + fillers if micro_steps is None else micro_steps)
        lib.ravel_metrics_add_batch(self._pointer, C.byref(batch))

    def add_plan(self, plan: Plan, rank: int, *, update: int | None = None, loss: int = 0) -> None:
        """All bins of a plan's rank (of one update, or of all), and what the plan predicts about balance."""
        steps = plan.micro_steps(rank, update)
        first = 0 if update is None else int(plan.update_offsets[update])
        own = slice(first * plan.dp + rank, (first + len(steps)) * plan.dp, plan.dp)
        fillers = sum(1 for step in steps if not step.size)
        chosen = np.concatenate([*steps, np.empty(0, np.int32)]).astype(np.int64)
        self.add_batch(plan.lengths[chosen], capacity=len(steps) * plan.capacity, loss=loss,
                       padded=int(plan.bin_slots[own].sum()), bins=len(steps) - fillers, fillers=fillers)
        self._add_balance(plan.stats, plan._options.sync)

    def _add_balance(self, stats: Mapping[str, Any], sync: int) -> None:
        meets_in_between = sync == _abi.RAVEL_SYNC_MICRO_STEP
        self.add("plan/idle_share", stats["idle_micro_step" if meets_in_between else "idle_update"])
        self.add("plan/imbalance", stats["imbalance"])

    def add_feed(self, update: Any) -> None:
        """What an update of :class:`ravel.Feed` brought this rank, and what its plan predicts about balance. Call it on every rank:
        ranks that share their samples with another (tensor, context, pipeline parallel) count nothing. Only tokens with a loss
        are taken to go through the LM head."""
        at = update._feed._mesh.coords
        if at.tp or at.cp or at.pp:
            return
        total, batch = _abi.ravel_lengths_sum(), _abi.ravel_metrics_batch()
        lib.ravel_feed_batch(C.byref(update._of_mine), C.byref(total), C.byref(batch))
        batch.head = batch.loss if batch.loss > 0 else -1
        lib.ravel_metrics_add_batch(self._pointer, C.byref(batch))
        if update.plan is not None:
            self._add_balance(update.plan, update._feed._planned.sync)

    def add_rollouts(self, *, rewards: Any = None, groups: Any = None, responses: Any = None, truncated: Any = None,
                     staleness: Any = None) -> None:
        """Samples that came from generators (``rl=True``). Equal group ids stand side by side and on one rank."""
        given = {"rewards": (rewards, np.float64), "groups": (groups, np.int64), "responses": (responses, np.int64),
                 "truncated": (truncated, np.uint8), "staleness": (staleness, np.float64)}
        struct, keep = _arrays(_abi.ravel_metrics_rollouts, given)
        lib.ravel_metrics_add_rollouts(self._pointer, C.byref(struct))
        del keep

    def add_groups(self, groups: int, zero_variance: int) -> None:
        """Groups counted elsewhere: how many, and how many of them had one reward throughout."""
        lib.ravel_metrics_add_groups(self._pointer, groups, zero_variance)

    def add_tokens(self, *, weights: Any = None, logprobs: Any = None, old: Any = None, generator: Any = None,
                   trainer: Any = None, reference: Any = None, entropy: Any = None, advantages: Any = None,
                   clip_low: float = 0, clip_high: float = 0) -> None:
        """Per-token figures (``rl=True``): flat float32 arrays of one length; a token counts where its weight is not 0."""
        given = {name: (value, np.float32) for name, value in
                 (("weights", weights), ("logprobs", logprobs), ("old", old), ("generator", generator),
                  ("trainer", trainer), ("reference", reference), ("entropy", entropy), ("advantages", advantages))}
        struct, keep = _arrays(_abi.ravel_metrics_tokens, given)
        struct.clip_low, struct.clip_high = clip_low, clip_high
        lib.ravel_metrics_add_tokens(self._pointer, C.byref(struct))
        del keep

    def add(self, name: str, value: float, weight: float = 1) -> None:
        """Any row that is not derived. Integers of counters are exact."""
        number = self._id(name)
        row = self._rows[number]
        if row.rule == "derived":
            raise ValueError(f"{name} is worked out from other metrics and cannot be added to")
        if row.kind == "counter" and isinstance(value, (int, np.integer)):
            done = lib.ravel_metrics_count(self._pointer, number, int(value))
        else:
            done = lib.ravel_metrics_add(self._pointer, number, float(value), float(weight))
        if not done and lib.ravel_metrics_enabled(self._pointer, number):
            raise ValueError(f"{name} does not take {value!r}")

    def add_all(self, values: Mapping[str, float]) -> None:
        """Several rows at once, such as ``RefitReport.metrics()``."""
        for name, value in values.items():
            self.add(name, value)

    # -- the update
    def update(self, step: int) -> dict[str, float | int]:
        """Ends update ``step``: reduces over ranks, writes to the sinks, and returns :meth:`values`. Collective."""
        self._raised.call("ravel_metrics_update", self._pointer, operator.index(step))
        return self.values()

    def values(self) -> dict[str, float | int]:
        """The last update's values by name, for ``wandb.log``; rows without a value are left out."""
        found: dict[str, float | int] = {}
        real, whole = C.c_double(), C.c_int64()
        for number, row in enumerate(self._rows):
            if row.kind == "counter" and lib.ravel_metrics_integer(self._pointer, number, C.byref(whole)):
                found[row.name] = whole.value
            elif lib.ravel_metrics_value(self._pointer, number, C.byref(real)):
                found[row.name] = real.value
        return found

    def __getitem__(self, name: str) -> float | int | None:
        """One value of the last update, None where it has none."""
        number = self._id(name)
        real, whole = C.c_double(), C.c_int64()
        if self._rows[number].kind == "counter" and lib.ravel_metrics_integer(self._pointer, number, C.byref(whole)):
            return whole.value
        return real.value if lib.ravel_metrics_value(self._pointer, number, C.byref(real)) else None

    @property
    def rows(self) -> list[Row]:
        """Every row of this object, the caller's own included."""
        return list(self._rows)

    @property
    def flops(self) -> Flops | None:
        """The exact counts behind flops/model; None without a shape."""
        struct = _abi.ravel_flops()
        return _flops(struct) if lib.ravel_metrics_flops(self._pointer, C.byref(struct)) else None

    def rank(self, rank: int) -> dict[str, float | int] | None:
        """Of one rank in the last update: busy_sec, idle_share, padded; None outside the ranks that are shown."""
        busy, idle, padded = C.c_double(), C.c_double(), C.c_int64()
        if not lib.ravel_metrics_rank(self._pointer, rank, C.byref(busy), C.byref(idle), C.byref(padded)):
            return None
        return {"busy_sec": busy.value, "idle_share": idle.value, "padded": padded.value}

    @property
    def line(self) -> str:
        """The log line of the last update."""
        text = C.create_string_buffer(4096)
        lib.ravel_metrics_line(self._pointer, text, len(text))
        return text.value.decode()

    # -- totals, for checkpoints
    def state_dict(self) -> dict[str, Any]:
        """The totals of the run, to be kept in a checkpoint."""
        totals = _abi.ravel_metrics_totals()
        lib.ravel_metrics_get_totals(self._pointer, C.byref(totals))
        values = {name: getattr(totals, name) for name in fields(totals)}
        return {**values, "phases": list(values["phases"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there; the same on every rank, before the first update."""
        totals = _abi.ravel_metrics_totals()
        for name in fields(totals):
            if name == "phases":
                totals.phases[:len(state["phases"])] = state["phases"]
            else:
                setattr(totals, name, state.get(name, 0))
        lib.ravel_metrics_set_totals(self._pointer, C.byref(totals))

    # -- sinks
    def sink(self, spec: str, every: int = 1) -> None:
        """Adds one: "log:-", "jsonl:FILE", "csv:FILE", "tensorboard:FOLDER", "prometheus:FILE", "http:PORT",
        "trace:FOLDER", "progress". The same call on every rank."""
        call("ravel_metrics_sink_every", self._pointer, spec.encode(), every)

    def run(self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None, sinks: str = "jsonl") -> None:
        """A run folder as `ravel report` reads it: config.json, environment.json and the sinks' files."""
        text = None if config is None else json.dumps(config).encode()
        call("ravel_metrics_run", self._pointer, os.fsencode(folder), text, sinks.encode())

    @property
    def http_port(self) -> int:
        """That the http sink listens on; 0 when there is none."""
        return int(lib.ravel_metrics_http_port(self._pointer))

    @property
    def sinks_failed(self) -> int:
        """How many sinks are failing now."""
        return int(lib.ravel_metrics_sinks_failed(self._pointer))

    def close(self) -> None:
        """Flushes and closes the sinks."""
        self._closed = True
        self._handle.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _over(comm: Comm, values: np.ndarray, op: str) -> None:
    comm.allreduce(values, op, in_place=True)


def _arrays(kind: Any, given: Mapping[str, tuple[Any, Any]]) -> tuple[Any, list[np.ndarray]]:
    """A struct of parallel arrays, all of one length."""
    struct = kind(size=C.sizeof(kind))
    keep: list[np.ndarray] = []
    for name, (value, dtype) in given.items():
        if value is None:
            continue
        if dtype is np.uint8:  # truth values
            value = host_array(value, name).astype(bool).astype(np.uint8)
        array = as_array(value, dtype, name, keep[0].size if keep else None)
        keep.append(array)
        setattr(struct, name, address(array))
    struct.count = keep[0].size if keep else 0
    return struct, keep


def _logger() -> _abi.ravel_logger:
    def write(_user: Any, level: int, text: Any) -> None:
        with contextlib.suppress(Exception):
            logging.getLogger("ravel").log(_LOG_LEVELS.get(level, logging.INFO), "%s", C.string_at(text).decode())

    return _abi.ravel_logger(write=fields(_abi.ravel_logger)["write"](write))
