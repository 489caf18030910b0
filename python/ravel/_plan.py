"""Planning: lengths in, plan out."""

from __future__ import annotations

import ctypes as C
import html
import operator
import os
from typing import Any, Iterator, NamedTuple

import numpy as np

from . import _abi
from ._lib import Handle, address, as_array, call, check, collect, fields, lib, view
from ._options import Table
from ._shape import Shape, shape
from ._typing import ArrayLike

__all__ = ["Hybrid", "HybridGroup", "Plan", "Planner", "plan", "plan_options"]

_TABLE = Table(_abi.ravel_plan_options, "ravel_plan")


def plan_options() -> dict[str, str]:
    """The planner's options: name -> one sentence with the default. The keywords of :func:`plan`."""
    return _TABLE.docs()


def _cost(options: _abi.ravel_plan_options, cost: Any) -> None:
    """None, "LIN:QUAD[:OVERHEAD]", "tokens", a tuple, a Shape or its name, or a path of a config.json."""
    if cost is None:
        return
    if isinstance(cost, (tuple, list)):
        if not 1 <= len(cost) <= 3 or not all(isinstance(c, (int, np.integer)) for c in cost):
            raise TypeError("cost must be (linear, quadratic[, overhead]), all integers")
        options.cost.linear, options.cost.quadratic, options.cost.overhead = (*map(int, cost), 0, 0)[:3]
        return
    if isinstance(cost, Shape):
        options.cost.linear, options.cost.quadratic, options.cost.overhead = cost.cost
        return
    text = os.fspath(cost)
    if text == "tokens" or text[:1].isdigit():
        call("ravel_cost_parse", text.encode(), C.byref(options.cost))
        return
    options.cost.linear, options.cost.quadratic, options.cost.overhead = shape(text).cost


_made: dict[Any, bytes] = {}  # option structs by the keywords that they were made from: making one takes longer


def _make_options(cost: Any, keywords: dict[str, Any]) -> _abi.ravel_plan_options:
    if isinstance(cost, (str, os.PathLike)) and os.path.exists(cost):  # a file may change
        return _fresh_options(cost, keywords)
    values = keywords.values()
    key = (cost, *keywords, *values, *map(type, values))
    try:
        return _abi.ravel_plan_options.from_buffer_copy(_made[key])
    except KeyError:
        options = _fresh_options(cost, keywords)
        if len(_made) >= 256:
            _made.clear()
        if "_texts" not in options.__dict__:  # a copy would not keep alive what the struct points at
            _made[key] = bytes(options)
        return options
    except TypeError:  # something that cannot be hashed: the library has the sentence
        return _fresh_options(cost, keywords)


def _fresh_options(cost: Any, keywords: dict[str, Any]) -> _abi.ravel_plan_options:
    options: _abi.ravel_plan_options = _TABLE.make(**keywords)
    _cost(options, cost)
    return options


_INPUT_SIZE = C.sizeof(_abi.ravel_plan_input)


class _Input:
    """The ravel_plan_input struct and the arrays that it points at."""

    def __init__(self, lengths: ArrayLike | None, prompts: ArrayLike | None = None, responses: ArrayLike | None = None, costs: ArrayLike | None = None, groups: ArrayLike | None = None,
                 update_ids: ArrayLike | None = None, homes: ArrayLike | None = None, shared: ArrayLike | None = None,
                 order: ArrayLike | None = None, **arrivals: ArrayLike | None):
        if lengths is None and (prompts is None or responses is None):
            raise TypeError("give lengths, or prompts and responses")
        self.arrays: dict[str, np.ndarray] = {}
        self.struct = _abi.ravel_plan_input(_INPUT_SIZE)
        count = None
        for name, value, dtype in (("lengths", lengths, np.int64), ("prompts", prompts, np.int64),
                                   ("responses", responses, np.int64), ("costs", costs, np.int64),
                                   ("groups", groups, np.int64), ("updates", update_ids, np.int32),
                                   ("homes", homes, np.int32), ("shared", shared, np.int64), ("order", order, np.int32)):
            if value is not None:
                self.arrays[name] = array = as_array(value, dtype, name, count)
                setattr(self.struct, name, address(array))
                count = array.size
        self.struct.count = count
        self.arrivals = [(name, as_array(value, np.int64, name, count)) for name, value in arrivals.items()
                         if value is not None]  # of a push only: pictures of plans do not need them
        for name, array in self.arrivals:
            setattr(self.struct, name, address(array))


class HybridGroup(NamedTuple):
    """Ranks ``first`` .. ``first + width - 1`` of the pool, which run these samples together."""

    first: int
    width: int
    samples: np.ndarray


class Hybrid:
    """Groups of a plan with hybrid context parallelism (``cp_pool``): each has a width of its own."""

    def __init__(self, plan: "Plan"):
        self._plan, self._c = plan, plan._c.hybrid.contents

    def _view(self, name: str, count: int, dtype: Any) -> np.ndarray:
        return view(getattr(self._c, name), count, dtype, self._plan._handle)

    @property
    def pool(self) -> int:
        """Ranks of the pool."""
        return int(self._c.pool)

    @property
    def group_offsets(self) -> np.ndarray:
        """[micro_steps + 1]: the first group of each micro-step."""
        return self._view("group_offsets", len(self._plan) + 1, np.int64)

    @property
    def group_first(self) -> np.ndarray:
        """[groups]: first rank."""
        return self._view("group_first", self._c.groups, np.int32)

    @property
    def group_width(self) -> np.ndarray:
        """[groups]: ranks."""
        return self._view("group_width", self._c.groups, np.int32)

    @property
    def group_sample_offsets(self) -> np.ndarray:
        """[groups + 1]: where each group's samples begin in ``plan.samples``."""
        return self._view("group_sample_offsets", self._c.groups + 1, np.int64)

    @property
    def rank_group(self) -> np.ndarray:
        """[micro_steps, pool]: the group of each rank; -1: a filler."""
        return self._view("rank_group", len(self._plan) * self.pool, np.int32).reshape(-1, self.pool)

    @property
    def bounds(self) -> dict[str, int]:
        """Lower bounds of any plan: micro_steps, area, longest, canonical (times in cost units)."""
        return {name: getattr(self._c, "bound_" + name) for name in ("micro_steps", "area", "longest", "canonical")}

    def _group(self, number: int) -> HybridGroup:
        begin, end = self.group_sample_offsets[number:number + 2]
        return HybridGroup(int(self.group_first[number]), int(self.group_width[number]), self._plan.samples[begin:end])

    def groups(self, step: int) -> list[HybridGroup]:
        """Of one micro-step, in order of their first rank."""
        if not 0 <= step < len(self._plan):
            raise IndexError(f"step is {step}; there are {len(self._plan)}")
        return [self._group(g) for g in range(int(self.group_offsets[step]), int(self.group_offsets[step + 1]))]

    def samples_of(self, rank: int, step: int) -> np.ndarray:
        """What a rank of the pool runs in a micro-step, with the other ranks of its group; empty: a filler."""
        number = int(self.rank_group[step, rank])
        return self._group(number).samples if number >= 0 else self._plan.samples[:0]


class Plan:
    """Where every sample goes. Arrays are views over the library's memory and keep it alive.

    ``bins`` are in order of (update, micro-step, rank), fillers included (they are empty), so the bin of micro-step
    ``m`` and rank ``r`` is ``bins[m * dp + r]``.
    """

    def __init__(self, pointer: Any, source: "_Input | list[_Push]", options: _abi.ravel_plan_options):
        self._handle = Handle(pointer, lib.ravel_plan_free)
        self._c = pointer.contents
        self._source, self._options = source, options

    @property
    def _input(self) -> "_Input":
        if not isinstance(self._source, _Input):
            self._source = _gather(self._source, self.ids)
        return self._source

    # -- sizes
    @property
    def count(self) -> int:
        """Samples that were given."""
        return int(self._c.count)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return int(self._c.dp)

    @property
    def updates(self) -> int:
        """Optimiser steps that the plan is cut into."""
        return int(self._c.updates)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over inputs, options and plan: equal on every rank, or something differs."""
        return f"{self._c.digest:016x}"

    @property
    def stats(self) -> dict[str, Any]:
        """The plan's figures, by the names of ``ravel plan --json``."""
        values = self._c.stats
        return {name: getattr(values, name) for name in fields(values)}

    @property
    def capacity(self) -> int:
        """Slot tokens that one bin may hold: cp * budget."""
        return int(self._options.cp * self._options.budget)

    @property
    def lengths(self) -> np.ndarray:
        """[count]: the lengths that the plan was made from."""
        arrays = self._input.arrays
        return arrays["lengths"] if "lengths" in arrays else arrays["prompts"] + arrays["responses"]

    # -- arrays
    def _view(self, name: str, count: int, dtype: Any) -> np.ndarray:
        return view(getattr(self._c, name), count, dtype, self._handle)

    @property
    def update_offsets(self) -> np.ndarray:
        """[updates + 1]: the first micro-step of each update."""
        return self._view("update_offsets", self._c.updates + 1, np.int64)

    @property
    def bin_offsets(self) -> np.ndarray:
        """[bins + 1]: where each bin's samples begin in ``samples``."""
        return self._view("bin_offsets", self._c.bins + 1, np.int64)

    @property
    def samples(self) -> np.ndarray:
        """Row indices, bin after bin."""
        return self._view("samples", int(self.bin_offsets[-1]), np.int32)

    @property
    def bin_tokens(self) -> np.ndarray:
        """[bins]: the sum of each bin's lengths."""
        return self._view("bin_tokens", self._c.bins, np.int64)

    @property
    def bin_slots(self) -> np.ndarray:
        """[bins]: what counts against ``capacity``: the sum of slots, or the rectangle of a padded layout."""
        return self._view("bin_slots", self._c.bins, np.int64)

    @property
    def bin_costs(self) -> np.ndarray:
        """[bins]: predicted time of each, in the units of the cost model."""
        return self._view("bin_costs", self._c.bins, np.int64)

    @property
    def shared(self) -> np.ndarray | None:
        """With prefix trees: the tokens that each of ``samples`` shares with the one before it in its bin (0 for the first),
        which the bin computes once. None where nothing is shared."""
        return self._view("shared", int(self.bin_offsets[-1]), np.int64) if self._c.shared else None

    @property
    def skipped(self) -> np.ndarray:
        """Rows that were left out because they fit no bin (``oversize="skip"``)."""
        return self._view("skipped", self._c.stats.skipped, np.int32)

    @property
    def ids(self) -> np.ndarray:
        """For a plan of :class:`Planner`: the id of each sample that ``samples`` names."""
        pointer = lib.ravel_planner_ids(self._handle.pointer)
        return view(pointer, self.count, np.int64, self._handle) if pointer else np.arange(self.count, dtype=np.int64)

    @property
    def hybrid(self) -> Hybrid | None:
        """The groups of a plan with ``cp_pool``; None for others."""
        return Hybrid(self) if self._c.hybrid else None

    # -- people's shapes
    @property
    def bins(self) -> list[np.ndarray]:
        """One array of row indices per bin."""
        offsets, samples = self.bin_offsets.tolist(), self.samples
        return [samples[a:b] for a, b in zip(offsets, offsets[1:])]

    def slot(self, length: int, width: int = 0) -> int:
        """Tokens that a sample of this length takes: its slot on a group of ``width`` ranks, or in a bin where that is 0."""
        return int(lib.ravel_plan_slot(C.byref(self._options), int(length), int(width)))

    def micro_steps(self, rank: int, update: int | None = None) -> list[np.ndarray]:
        """What data-parallel rank ``rank`` runs, micro-step after micro-step, of one update or of all. With ``cp_pool``
        every member of a group runs the group's samples: see :attr:`hybrid`."""
        if not 0 <= rank < self.dp:
            raise IndexError(f"rank is {rank}; there are {self.dp}")
        if update is not None and not 0 <= update < self.updates:
            raise IndexError(f"update is {update}; there are {self.updates}")
        steps = self.update_offsets
        first, last = (0, self._c.micro_steps) if update is None else (int(steps[update]), int(steps[update + 1]))
        if self._c.hybrid:
            hybrid = Hybrid(self)
            return [hybrid.samples_of(rank, m) for m in range(first, last)]
        offsets, samples = self.bin_offsets, self.samples
        return [samples[offsets[m * self.dp + rank]:offsets[m * self.dp + rank + 1]] for m in range(first, last)]

    def replay(self, seed: int, epoch: int) -> np.ndarray:
        """The order of micro-steps for another epoch over the same plan (PPO epochs); epoch 0 is the plan's own."""
        order = np.empty(self._c.micro_steps, np.int64)
        call("ravel_plan_replay", self._handle.pointer, seed, epoch, address(order))
        return order

    # -- pictures and files
    def _write(self, name: str, *arguments: Any) -> str:
        return collect(name, C.byref(self._input.struct), C.byref(self._options), self._handle.pointer, *arguments)

    def to_html(self, title: str | None = None) -> str:
        """One page that needs no network: every micro-step's bins as bars, details under the pointer."""
        return self._write("ravel_plan_html", None if title is None else title.encode())

    def to_svg(self) -> str:
        """A small still picture of the whole plan."""
        return self._write("ravel_plan_svg")

    def to_json(self) -> str:
        """The stable contract of `ravel plan --json` (docs/formats.md)."""
        return self._write("ravel_plan_json")

    def to_csv(self) -> str:
        """One row per bin."""
        return self._write("ravel_plan_csv")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        return f"<figure>{self.to_svg()}<figcaption><code>{html.escape(repr(self))}</code></figcaption></figure>"

    def check(self) -> None:
        """Recounts everything from the lengths; raises if a promise is broken. For tests."""
        call("ravel_plan_check", C.byref(self._input.struct), C.byref(self._options), self._handle.pointer)

    def __len__(self) -> int:
        return int(self._c.micro_steps)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        """Micro-step after micro-step: a list of dp bins."""
        bins = self.bins
        return (bins[i:i + self.dp] for i in range(0, len(bins), self.dp))

    def __repr__(self) -> str:
        s = self._c.stats
        return (f"<ravel.Plan: {s.samples} samples, {self.updates} update(s) x {self._c.micro_steps} micro-steps x "
                f"{self.dp} ranks, fill {s.fill:.1%}, idle {s.idle_micro_step:.2%}, digest {self.digest}>")


def plan(lengths: ArrayLike | None = None, *, budget: int | str, dp: int = 1, cp: int = 1, align: int = 1,
         max_samples: int = 0, multiple: int = 1, min_micro_steps: int | None = None, updates: int | None = None,
         samples_per_update: int = 0, sync: str = "micro-step", layout: str = "packed", method: str = "ravel",
         effort: str = "default", group_rule: str = "free", count: int | None = None, oversize: str = "error",
         shuffle: bool = False, seed: int = 0, objective: str = "auto", cp_split: str = "zig-zag", cp_pool: int = 0,
         cp_widths: str | None = None, min_cp: int = 1, cp_price: str | None = None, cp_node: int = 8, cp_tp: int = 1,
         cp_empty: str = "filler", tree_method: str = "ravel", cost: Any = None, prompts: ArrayLike | None = None, responses: ArrayLike | None = None, costs: ArrayLike | None = None,
         groups: ArrayLike | None = None, update_ids: ArrayLike | None = None, homes: ArrayLike | None = None,
         shared: ArrayLike | None = None, order: ArrayLike | None = None) -> Plan:
    """Packs samples of any lengths into micro-batches under a hard token budget, balanced over ``dp`` ranks.

    ``lengths`` are integers, one per sample (or give ``prompts`` and ``responses``): a numpy array of int64 goes in
    without a copy, so does a host torch tensor; lists work. Sizes may be words ("16k"). ``cost`` is
    "LINEAR:QUADRATIC", a tuple, "tokens", the name of a published shape ("qwen3-0.6b") or the path of a Hugging Face
    ``config.json``. What each option means: ``ravel.plan_options()``. ``shared`` are the tokens that each sample shares with
    the one before it in ``order`` (as they come, without one): prefix trees, whose shared tokens a bin counts once.

    The same input gives the same plan on every rank and machine; compare ``digest`` before data moves.
    """
    keywords = {"budget": budget, "dp": dp, "cp": cp, "align": align, "max_samples": max_samples,
                "multiple": multiple, "min_micro_steps": min_micro_steps, "updates": updates,
                "samples_per_update": samples_per_update, "sync": sync, "layout": layout, "method": method,
                "effort": effort, "group_rule": group_rule, "count": count, "oversize": oversize, "shuffle": shuffle,
                "seed": seed, "objective": objective, "cp_split": cp_split, "cp_pool": cp_pool, "cp_widths": cp_widths,
                "min_cp": min_cp, "cp_price": cp_price, "cp_node": cp_node, "cp_tp": cp_tp, "cp_empty": cp_empty,
                "tree_method": tree_method}
    source = _Input(lengths, prompts, responses, costs, groups, update_ids, homes, shared, order)
    options = _make_options(cost, keywords)
    pointer = C.POINTER(_abi.ravel_plan)()
    call("ravel_plan_create", C.byref(source.struct), C.byref(options), C.byref(pointer))
    return Plan(pointer, source, options)


class _Push(NamedTuple):
    """What was pushed in one call, for the pictures of plans that are made of it."""

    ids: np.ndarray
    source: _Input


def _gather(pushes: list[_Push], ids: np.ndarray) -> _Input:
    """The input of a planner's plan: the rows of `ids`, wherever they were pushed. The last one of an id counts."""
    every = np.concatenate([push.ids for push in pushes])
    at = {number: i for i, number in enumerate(every.tolist())}
    rows = [at[number] for number in ids.tolist()]
    names = [name for name in pushes[0].source.arrays if name not in ("shared", "order")]
    columns = {name: np.concatenate([push.source.arrays[name] for push in pushes])[rows] for name in names}
    if "updates" in columns:
        columns["update_ids"] = columns.pop("updates")
    return _Input(columns.pop("lengths", None), **columns, shared=_shared(pushes, rows))


def _shared(pushes: list[_Push], rows: list[int]) -> np.ndarray | None:
    """What each of the rows, which a planner lists in tree order, shares with the one before it."""
    if not any("shared" in push.source.arrays for push in pushes):
        return None
    shared: list[int] = []  # by place, push after push
    place: dict[int, int] = {}
    for push in pushes:
        arrays, begin = push.source.arrays, len(shared)
        own = arrays["shared"].tolist() if "shared" in arrays else [0] * push.ids.size
        order = arrays["order"].tolist() if "order" in arrays else range(push.ids.size)
        place.update((begin + row, begin + at) for at, row in enumerate(order))
        shared += [0, *own[1:]]
    places = [place[row] for row in rows]
    return np.array([min(shared[a + 1:b + 1], default=0) for a, b in zip([-1, *places], places)][:len(rows)], np.int64) \
        if places else np.zeros(0, np.int64)


class Planner:
    """Samples that arrive over time: push lengths, take micro-steps as they fill, flush at the end of an update.

    >>> planner = ravel.Planner(budget=16384, dp=8)
    >>> planner.push(lengths, ids=rollout_ids)
    >>> while (ready := planner.take()) is not None:
    ...     run(ready.ids[ready.samples])
    >>> last = planner.flush()

    ``ids`` default to running numbers from 0. Every push of an update has the same arrays (lengths, or prompts and
    responses, ...).

    Micro-steps are taken when what waits fills the share ``fill`` of them, or when ranks would wait for no more than the
    share ``idle`` of the time. With ``max_wait`` a sample is taken at most that long after its push, with ``max_stale``
    before the weights are more than that many versions ahead of the sample's; times and versions are the caller's numbers,
    told by :meth:`advance`. :meth:`report` says how long samples waited, by length, and how stale they were.
    """

    def __init__(self, *, fill: float | None = None, idle: float | None = None, max_wait: int | None = None,
                 max_stale: int | None = None, cost: Any = None, **options: Any):
        self._options = _make_options(cost, options)
        how = _abi.ravel_planner_options()
        lib.ravel_planner_options_default(C.byref(how))
        for name, value in (("fill", fill), ("idle", idle)):
            if value is not None:
                setattr(how, name, float(value))
        for name, value in (("max_wait", max_wait), ("max_stale", max_stale)):
            if value is not None:
                setattr(how, name, operator.index(value))
        pointer = C.c_void_p()
        call("ravel_planner_create", C.byref(self._options), C.byref(how), C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_planner_free)
        self._taken = _abi.ravel_plan_options.from_buffer_copy(self._options)  # what a taken plan is a plan of
        self._taken.multiple, self._taken.min_micro_steps = 1, 0
        self._next = 0
        self._pushes: list[_Push] = []

    def push(self, lengths: ArrayLike | None = None, *, ids: ArrayLike | None = None, prompts: ArrayLike | None = None,
             responses: ArrayLike | None = None, costs: ArrayLike | None = None, groups: ArrayLike | None = None,
             update_ids: ArrayLike | None = None, homes: ArrayLike | None = None, versions: ArrayLike | None = None,
             deadlines: ArrayLike | None = None, shared: ArrayLike | None = None, order: ArrayLike | None = None) -> None:
        """All or nothing: on an error none of the samples is taken in. ``shared`` and ``order``: prefix trees, as in
        :func:`plan`; samples of different pushes share nothing. ``versions``: of the weights that generated each
        sample (default: the one of the last :meth:`advance`); ``deadlines``: when each must be taken at the latest."""
        source = _Input(lengths, prompts, responses, costs, groups, update_ids, homes, shared, order, versions=versions,
                        deadlines=deadlines)
        if self._pushes and self._pushes[0].source.arrays.keys() != source.arrays.keys():
            raise ValueError(f"this push has {', '.join(source.arrays)}; earlier ones of this update had "
                             f"{', '.join(self._pushes[0].source.arrays)}")
        count = source.struct.count
        tags = np.arange(self._next, self._next + count, dtype=np.int64) if ids is None else \
            as_array(ids, np.int64, "ids", count)
        call("ravel_planner_push", self._handle.pointer, C.byref(source.struct), address(tags))
        if count:
            self._pushes.append(_Push(tags, source))
        if ids is None:
            self._next += count

    def _take(self, flush: bool) -> Plan | None:
        pointer = C.POINTER(_abi.ravel_plan)()
        error = _abi.ravel_error()
        status = lib.ravel_planner_take(self._handle.pointer, int(flush), C.byref(pointer), C.byref(error))
        if status == _abi.RAVEL_E_END:
            return None
        check(status, error)
        return Plan(pointer, self._pushes, self._taken)

    def advance(self, now: int, version: int = 0) -> None:
        """The time now and the version of the weights; neither goes back. A sample whose deadline has come, or that would
        be too stale at the next version, is in the next :meth:`take`."""
        lib.ravel_planner_advance(self._handle.pointer, operator.index(now), operator.index(version))

    def report(self) -> dict[str, Any]:
        """What has been taken so far: samples, micro_steps, forced (by a deadline or a version), stale_mean, stale_max,
        steps_max (micro-steps taken while a sample waited), and by length (up to 128, 512, 2k, 8k, 32k, 128k, 512k tokens,
        and longer) count, wait_mean, wait_max."""
        values = _abi.ravel_planner_report(C.sizeof(_abi.ravel_planner_report))
        lib.ravel_planner_get_report(self._handle.pointer, C.byref(values))
        found = {name: getattr(values, name) for name in fields(values) if name != "size"}
        return {name: list(value) if isinstance(value, C.Array) else value for name, value in found.items()}

    def take(self) -> Plan | None:
        """The micro-steps that are full enough, or None."""
        return self._take(False)

    def flush(self) -> Plan | None:
        """Everything that is left, as the end of an update; None if nothing was pushed since the last flush."""
        done = self._take(True)
        self._pushes = []  # plans that were taken keep theirs
        return done

    def __len__(self) -> int:
        """Samples pushed and not yet taken."""
        return int(lib.ravel_planner_waiting(self._handle.pointer))
