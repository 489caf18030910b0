"""The feed: from a source of samples to packed micro-batches on every rank."""

from __future__ import annotations

import collections
import ctypes as C
import json
from typing import Any, Iterable, Iterator, Mapping

import numpy as np

from . import _abi
from . import comm as _comm
from ._batch import Batch, _Memory, pad
from ._dtype import CODES, NUMPY, code_of
from ._lib import Handle, Raised, address, as_array, check, fields as struct_fields, host_array, lib
from ._options import Table
from ._plan import _TABLE as _PLAN, _fresh_options
from ._ragged import KINDS, Field, Ragged, check_kind
from ._source import Source, Stream, with_mask
from ._typing import ArrayLike
from ._weights import _TABLE as _WEIGHTS
from .comm import Comm
from .mesh import Mesh
from .metrics import Flops, count_flops

__all__ = ["Feed", "MicroBatch", "TensorBatch", "Update", "feed_options"]

_TABLE = Table(_abi.ravel_feed_options, "ravel_feed")
_PHASES = int(_abi.RAVEL_FEED_PHASES)


def feed_options() -> dict[str, str]:
    """The feed's own options: name -> one sentence with the default. Keywords of :class:`Feed`, beside those of ``plan``."""
    return _TABLE.docs()


def _numbers(struct: Any) -> dict[str, int]:
    return {name: getattr(struct, name) for name in struct_fields(struct)}


class MicroBatch(Batch):
    """A micro-batch of a feed. Besides the arrays of a packed batch: ``tokens``, ``labels`` (the next token; -100 where there is
    none), ``weights`` (the loss is the sum of weights * token losses over all ranks and micro-steps), the source's other fields,
    and one element per sample of ``lengths``, ``ids`` (row numbers), ``parts`` and ``loss_tokens``; with layout padded-2d also of
    ``prompts``. What this part of the model does not get is not there. Samples without tokens have no ``tokens``, ``labels`` and
    ``positions`` to speak of; ``weights`` are one per sample then."""

    tokens: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray
    ids: np.ndarray
    parts: np.ndarray
    loss_tokens: np.ndarray
    step: int
    """0 .. micro-steps - 1 of its update."""
    steps: int
    """Micro-steps of the update."""
    update: int
    """Its number, from 0."""
    filler: bool
    """No samples: one token without weight, so that all ranks stay in step."""
    ends_update: bool
    """The last micro-batch before the optimiser's step."""
    cp: int
    """Ranks that the samples are cut for: the mesh's cp, or, with ``cp_pool``, the width of the group (``local_cp_size``)."""
    cp_rank: int
    """This rank among them."""
    _kinds: dict[str, tuple[str, float]]
    cp_first: int
    """With ``cp_pool``: the group is ranks ``cp_first`` .. ``cp_first + cp - 1`` of the pool; else -1."""

    def padded(self, side: str = "right", **options: Any) -> Batch:
        """The same as [rows, columns] arrays, as :func:`ravel.pad` makes them, for models without ragged attention. Of a feed with
        layout padded, or padded-2d (``side="2d"``): the rectangle is then within the budget, ``align`` given alike."""
        if self._c.tokens != self._c.actual_tokens and not self.filler:
            raise ValueError("this micro-batch has padding between its samples: give the feed layout padded or padded-2d")
        n = int(self.lengths.sum())
        fields = {name: Field(name, self[name][:self.lengths.size if kind == "sample" else n], "sample" if kind == "sample" else "token", pads)
                  for name, (kind, pads) in self._kinds.items() if name in self}
        prompts = self["prompts"] if "prompts" in self else None
        return pad(Ragged(self.lengths, prompts=prompts, **fields), np.arange(self.lengths.size), side=side, **options)

    def unpack(self, packed: ArrayLike, kind: str = "token") -> list[np.ndarray]:
        """Per-position results (log-probs, losses) back as one array per sample, in the order of ``ids``. ``kind`` "step" is for
        next-token results: one less than tokens."""
        check_kind(kind)
        array = np.ascontiguousarray(host_array(packed, "packed"))
        if array.shape[:1] != (self._c.local_tokens,):
            raise ValueError(f"packed results have shape {array.shape}; this micro-batch has {self._c.local_tokens} positions")
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        ragged = _abi.ravel_ragged(size=C.sizeof(_abi.ravel_ragged), count=self.lengths.size, offsets=address(offsets))
        field = _abi.ravel_field(name=b"result", kind=KINDS[kind], dtype=code_of(array, "packed"), width=width)
        each = {"step": self.lengths - 1, "sample": np.ones_like(self.lengths)}.get(kind, self.lengths)
        out = np.zeros((int(each.sum()), *array.shape[1:]), array.dtype)
        error = _abi.ravel_error()
        check(lib.ravel_thd_unpack(C.byref(ragged), C.byref(self._options), C.byref(self._c), C.byref(field), address(array),
                                   address(out), C.byref(error)), error)
        return np.split(out, np.cumsum(each)[:-1])


class TensorBatch(dict[str, Any]):
    """The same with torch tensors, by name (``batch["tokens"]``) or as attributes (``batch.tokens``, ``batch.max_seqlen``).
    ``host`` is the micro-batch that they were made of."""

    host: MicroBatch

    def __init__(self, host: MicroBatch, device: Any):
        super().__init__(host.torch(device))
        self.__dict__["host"] = host

    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else getattr(self.host, name)


def _copy(pointer: int | None, count: int, dtype: Any, name: str, memory: _Memory) -> np.ndarray | None:
    """The library's array as one of our own: its memory is used again by the next update."""
    if not pointer:
        return None
    out: np.ndarray = memory.new(name, count, dtype)
    if out.nbytes:
        C.memmove(out.ctypes.data, pointer, out.nbytes)
    return out


def _make(micro: _abi.ravel_micro_batch, steps: int, update: int, options: Any, pin: bool,
          shapes: Mapping[str, tuple[int, ...]]) -> MicroBatch:
    """Copies a micro-batch out of the library's memory."""
    thd, memory = micro.thd.contents, _Memory(None, pin)
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, pointer: Any, count: int, dtype: Any) -> None:
        made = _copy(pointer, count, dtype, name, memory)
        if made is not None:
            arrays[name] = made

    for name, count, dtype in (("cu_seqlens", thd.sequences + 1, np.int32), ("cu_seqlens_padded", thd.sequences + 1, np.int32),
                               ("samples", thd.sequences, np.int32), ("positions", thd.local_tokens, np.int32),
                               ("segments", thd.local_tokens, np.int32), ("padding", thd.local_tokens, np.uint8)):
        add(name, getattr(thd, name), count, dtype)
    table = C.cast(thd.fields, C.POINTER(C.c_void_p)) if thd.fields else None
    codes, kinds = {}, {}
    for i in range(micro.field_count):
        field = micro.fields[i]
        width, name = max(1, field.width), field.name.decode()
        count = (thd.sequences if field.kind == KINDS["sample"] else thd.local_tokens) * width
        bits = {1: np.uint8, 2: np.int16}.get(lib.ravel_dtype_bytes(field.dtype), np.uint8)
        add(name, table[i] if table else None, count, NUMPY.get(field.dtype, bits))
        kinds[name] = ("sample" if field.kind == KINDS["sample"] else "token", field.pad)
        if name in arrays and width > 1:
            arrays[name] = arrays[name].reshape(-1, *shapes.get(name, (width,)))
        if name in arrays and CODES.get(arrays[name].dtype) != field.dtype:
            codes[name] = field.dtype
    for name in ("lengths", "ids", "parts", "loss_tokens"):
        add(name, getattr(micro, name), thd.samples_count, np.int64)
        arrays.setdefault(name, np.empty(0, np.int64))
    if micro.prompts:
        add("prompts", micro.prompts, thd.samples_count, np.int64)
    numbers = {name: getattr(thd, name) for name in ("samples_count", "sequences", "local_tokens", "actual_tokens", "max_seqlen",
                                                     "max_length")}
    numbers |= {"slot_tokens": thd.tokens, "step": micro.step, "steps": steps, "update": update, "chunk": micro.chunk,
                "filler": bool(micro.filler), "first": bool(micro.first), "last": bool(micro.last),
                "ends_update": micro.step == steps - 1, "cp": micro.cp, "cp_rank": micro.cp_rank, "cp_first": micro.cp_first}
    own = _abi.ravel_thd.from_buffer_copy(thd)
    for name in ("cu_seqlens", "cu_seqlens_padded", "samples", "positions", "segments", "padding"):
        setattr(own, name, address(arrays.get(name)))
    own.fields = own.loss_mask = None
    own_options = _abi.ravel_thd_options.from_buffer_copy(options)
    own_options.cp, own_options.cp_rank = micro.cp, micro.cp_rank if micro.cp > 1 else -1
    made = MicroBatch(arrays, numbers, own, own_options, None, codes)
    made._kinds = kinds
    return made


class Update:
    """One optimiser step. Iterate over its micro-batches, or take :meth:`micro_batches` of a pipeline chunk."""

    def __init__(self, feed: "Feed", c: _abi.ravel_feed_update):
        self._feed = feed
        self.number, self.batch, self.last_in_batch = int(c.number), int(c.batch), bool(c.last_in_batch)
        self.counts = _numbers(c.counts)
        """Over all ranks: micro_steps, samples, tokens, loss_tokens, padded_tokens, ..."""
        self.mine = _numbers(c.mine)
        """Of this data-parallel rank."""
        self._of_mine = _abi.ravel_update_counts.from_buffer_copy(c.mine)
        self._of_all = _abi.ravel_update_counts.from_buffer_copy(c.counts)
        self.plan = _numbers(c.plan.contents) if c.plan else None
        """The plan's figures; None on ranks that did not plan."""
        self.seconds = {lib.ravel_feed_phase_name(i).decode(): c.phase_sec[i] for i in range(_PHASES)}
        """What preparing its batch took on this rank, by phase."""
        self.prepare_sec, self.exposed_sec = c.prepare_sec, c.exposed_sec
        self.sent_bytes, self.needed_bytes, self.kept_bytes = c.sent_bytes, c.needed_bytes, c.kept_bytes

    def flops(self, shape: Any, *, head_tokens: int | None = None, recompute: str = "none", adapter: int = 0) -> Flops:
        """Operations of this update over all ranks, as :func:`ravel.metrics.flops` counts them."""
        total = _abi.ravel_lengths_sum()
        lib.ravel_feed_batch(C.byref(self._of_all), C.byref(total), C.byref(_abi.ravel_metrics_batch()))
        return count_flops(shape, total, head_tokens, recompute, adapter)

    def __len__(self) -> int:
        return int(self.counts["micro_steps"])

    def micro_batch(self, step: int, chunk: int = 0) -> Any:
        """Any of them, in any order, as often as wanted (PPO epochs), while this is the feed's current update."""
        return self._feed._micro(self, step, chunk)

    def micro_batches(self, chunk: int = 0) -> Iterator[Any]:
        """One after the other, of one pipeline chunk."""
        return (self.micro_batch(step, chunk) for step in range(len(self)))

    def __iter__(self) -> Iterator[Any]:
        return self.micro_batches()

    def __repr__(self) -> str:
        return f"<ravel.Update {self.number}: {self.counts['samples']} samples, {len(self)} micro-steps>"


class Feed:
    """Reads, plans, exchanges, weighs and packs, ahead of the training loop and in a thread of its own.

    >>> feed = ravel.Feed(source, budget="16k", samples=512, device="cuda")
    >>> for batch in feed:                                   # as from a DataLoader: one micro-batch after the other
    ...     loss = (batch.weights * token_losses(model, batch)).sum()
    ...     loss.backward()
    ...     if batch.ends_update:
    ...         optimizer.step(); optimizer.zero_grad()

    or, an update at a time: ``for update in feed.updates(): for batch in update: ...``.

    ``samples`` rows of the source, over all ranks together, are planned at once. ``comm`` (all its ranks are data-parallel) or
    ``mesh`` says who shares them; without either this process is alone. Every rank makes the feed with the same arguments. Without
    a source, ``fields`` (a store, or its fields) declares the fields of :meth:`submit`; those of ``Ragged.of_samples`` are samples without
    tokens, whose budget is a number of samples and whose field ``cost`` (int64), where there is one, is what is balanced. A source may also be a :class:`Stream`, or
    an iterator whose rows have no further fields.

    ``ask`` are the pipeline chunks of this rank that want every field, though they are neither the first nor the last of the model
    (multi-token prediction); all ranks of a stage ask for the same.

    Keywords are the options of the feed (:func:`feed_options`: shuffle, shuffle_seed, epochs, updates, prefetch, drop_last,
    owners, ...) and of the planner (``ravel.plan_options()``: align, max_samples, sync, ...; in
    ``plan={...}`` where both have the name); ``mode`` is how the loss is averaged, ``weights={...}`` the rest of ``ravel.weights``.
    ``tensors`` "np" gives :class:`MicroBatch`, "pt" (or a ``device``) :class:`TensorBatch`; ``pin`` makes the host arrays in page-locked memory.

    ``state_dict()`` and ``load_state_dict()`` keep the place in the stream, as of a stateful data loader.
    """

    def __init__(self, source: Source | Stream | Iterable[Any] | None = None, *, budget: int | str, samples: int = 0,
                 comm: Comm | None = None, mesh: Mesh | None = None, ask: Iterable[int] = (), fields: Ragged | None = None, mode: str = "token-mean", cost: Any = None,
                 plan: Mapping[str, Any] | None = None, weights: Mapping[str, Any] | None = None, tensors: str = "np",
                 device: Any = None, pin: bool = False, **options: Any):
        if tensors not in ("np", "pt"):
            raise ValueError(f"tensors is {tensors!r}; it must be np or pt")
        if comm is not None and mesh is not None:
            raise TypeError("give comm or mesh, not both")
        own = {name: value for name, value in options.items() if name in _TABLE.rows}
        rest = {name: value for name, value in options.items() if name not in own}
        unknown = [name for name in rest if name not in _PLAN.rows]
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; the feed has {', '.join(_TABLE.rows)}, the planner "
                            f"{', '.join(_PLAN.rows)}")
        self._mesh = mesh or Mesh(comm or _comm.self())
        self._stream: Stream | None = None
        if source is not None and not isinstance(source, Source):
            self._stream, source = source if isinstance(source, Stream) else Stream(source), None
            if samples < 1 or fields is not None:
                raise TypeError("an iterator needs samples, the rows of a batch, and its fields in ravel.Stream(rows, fields)")
            fields = self._stream.take(0)
        self._samples = samples
        self._source, self._raised = source, Raised() if source is None else source.raised
        chosen = _TABLE.make(samples=samples or None, **own)
        planned = _fresh_options(cost, {"budget": budget, **rest, **(plan or {})})
        weighed = _WEIGHTS.make(mode=mode, **(weights or {}))
        for chunk in ask:
            if not 0 <= chunk < 64:
                raise ValueError(f"ask has chunk {chunk}; chunks of a pipeline rank are 0 to 63")
            chosen.ask |= 1 << chunk
        chosen.plan, chosen.weights = C.pointer(planned), C.pointer(weighed)
        self._template = None if fields is None else with_mask(fields)
        self._shapes = {} if self._template is None else {name: field.shape for name, field in self._template.fields.items()}
        if self._template is not None:
            chosen.fields, chosen.field_count = self._template._c.fields, self._template._c.field_count
        pointer = C.c_void_p()
        self._call("ravel_feed_create", self._mesh.pointer, None if source is None else source.pointer, C.byref(chosen),
                   C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_feed_free, (self._mesh, source, chosen, planned, weighed, self._template))
        self._torch, self._device, self._pin = tensors == "pt" or device is not None, device, pin
        self._options = _abi.ravel_thd_options()
        self._planned = planned
        self._set_options(planned, chosen.cp_kind)
        self._current: Update | None = None
        self._submitted: Any = None
        self._recent: collections.deque[Any] = collections.deque(maxlen=4)  # copies to a device may still be under way

    def _set_options(self, planned: Any, cp_kind: int) -> None:
        """Options of packing, for ``unpack``; who shares a micro-batch is its own."""
        lib.ravel_thd_options_default(C.byref(self._options))
        self._options.align, self._options.cp_kind = max(1, lib.ravel_plan_align(C.byref(planned))), cp_kind

    def _micro_options(self, micro: _abi.ravel_micro_batch) -> Any:
        """Those of its own group where widths differ."""
        if micro.cp_first < 0:
            return self._options
        options = _abi.ravel_thd_options()
        self._call("ravel_thd_options_for_group", C.byref(self._planned), micro.cp, micro.cp_rank, 0, C.byref(options))
        options.cp_kind = self._options.cp_kind
        return options

    def _call(self, name: str, *arguments: Any) -> None:
        self._raised.call(name, *arguments)

    def _submit_next(self) -> bool:
        """This rank's share of the next batch of a stream; False where no rank has any row left."""
        assert self._stream is not None
        dp, rank = self._mesh.layout.sizes["dp"], self._mesh.coords.dp
        store = self._stream.take(self._samples // dp + (rank < self._samples % dp)) if self.is_owner else None
        if not self._mesh._parent.allreduce(np.array([0 if store is None else len(store)], np.int64))[0]:
            return False
        self.submit(store)
        return True

    def _next(self) -> Update | None:
        if self._stream is not None and (self._current is None or self._current.last_in_batch) and not self._submit_next():
            self._current, self._stream = None, Stream(())
            return None
        out, error = C.POINTER(_abi.ravel_feed_update)(), _abi.ravel_error()
        status = lib.ravel_feed_next(self._handle.pointer, C.byref(out), C.byref(error))
        if status == _abi.RAVEL_E_END:
            self._current = None
            return None
        self._raised.again(status, error)
        self._current = Update(self, out.contents)
        return self._current

    def _micro(self, update: Update, step: int, chunk: int) -> Any:
        if self._current is not update:
            raise RuntimeError(f"update {update.number} is over: the feed has gone on to the next")
        micro = _abi.ravel_micro_batch()
        self._call("ravel_feed_micro", self._handle.pointer, chunk, step, C.byref(micro))
        host = _make(micro, len(update), update.number, self._micro_options(micro), self._pin, self._shapes)
        if not self._torch:
            return host
        self._recent.append(host)
        return TensorBatch(host, self._device)

    def updates(self) -> Iterator[Update]:
        """One optimiser step after the other, until the source is over."""
        while (update := self._next()) is not None:
            yield update

    def __iter__(self) -> Iterator[Any]:
        for update in self.updates():
            yield from update

    def submit(self, store: Ragged | None, *, ids: ArrayLike | None = None) -> None:
        """Without a source: this rank's samples of the next batch (None on ranks that own none). Its preparation begins; take it
        with :meth:`updates`. ``ids`` are row numbers; running numbers where they are None."""
        if store is None:
            self._call("ravel_feed_submit", self._handle.pointer, None)
            return
        own = with_mask(store)
        numbers = None if ids is None else as_array(ids, np.int64, "ids", len(store))
        c = _abi.ravel_samples(ragged=own._c, rows=address(numbers))
        self._call("ravel_feed_submit", self._handle.pointer, C.byref(c))
        self._submitted = (self._submitted[1:] if self._submitted else (None,)) + ((own, numbers, c),)  # borrowed

    @property
    def is_owner(self) -> bool:
        """Whether this rank reads samples."""
        return bool(lib.ravel_feed_is_owner(self._handle.pointer))

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch of the current update: what a checkpoint keeps. Taken between updates of one batch, it stands
        after that whole batch."""
        cursor = lib.ravel_feed_cursor(self._handle.pointer)
        order = lib.ravel_feed_order(self._handle.pointer)
        need = lib.ravel_cursor_format(order, cursor, None, 0)
        text = C.create_string_buffer(need + 1)
        lib.ravel_cursor_format(order, cursor, text, need + 1)
        return dict(json.loads(text.value))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there, on every rank, before the first update. A place in another order (seed, count) is an error."""
        text, cursor = json.dumps(dict(state)).encode(), _abi.ravel_cursor()
        self._call("ravel_cursor_parse", lib.ravel_feed_order(self._handle.pointer), text, len(text), C.byref(cursor))
        self._call("ravel_feed_seek", self._handle.pointer, cursor)

    @property
    def stats(self) -> dict[str, Any]:
        """Over the life of the feed, on this rank: batches, updates, prepare_sec, exposed_sec, sent_bytes, memory_bytes, ..."""
        c = _abi.ravel_feed_stats()
        lib.ravel_feed_read_stats(self._handle.pointer, C.byref(c))
        out = {name: getattr(c, name) for name in struct_fields(c) if name not in ("phase_sec", "reader")}
        out["seconds"] = {lib.ravel_feed_phase_name(i).decode(): c.phase_sec[i] for i in range(_PHASES)}
        return {**out, "reader": _numbers(c.reader)}

    def verify(self) -> None:
        """Recomputes the current update on this rank alone and compares every bit; raises where something differs."""
        if self._source is None:
            raise TypeError("only a feed with a source can be verified")
        self._call("ravel_feed_verify", self._handle.pointer, self._source.pointer)

    def close(self) -> None:
        """Ends the background thread and frees everything; waits for batches that were begun."""
        self._current = None
        self._handle.close()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
