"""Refit: weights from the ranks that train to the ranks that generate, all or nothing."""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from . import _abi
from ._device import Device, DeviceArray, is_on_device, open_device, stream_number
from ._dtype import NUMPY, any_array, parse
from ._lib import Handle, Raised, address, fields, lib, view_bytes
from ._options import Table
from .comm import Comm

__all__ = ["Refit", "RefitReport", "RefitRule", "RefitTensor", "refit", "refit_options", "refit_rules"]

_TABLE = Table(_abi.ravel_refit_options, "ravel_refit")
_DIMS = _abi.ravel_refit_tensor.dims.size // 8
_JOINS = ["concat", "qkv", "qkv-grouped"]
_PHASES = ["iterate", "pack", "send", "receive", "verify", "load", "vote"]


def refit_options() -> dict[str, str]:
    """The options of :class:`Refit`: name -> one sentence with the default."""
    return _TABLE.docs()


class RefitTensor:
    """A tensor as one rank has it: an array, and where its piece lies in the whole.

    ``data`` is the piece (numpy, a torch tensor, anything that speaks DLPack, on the host or a CUDA device; no copy is made).
    Where the tensor is cut over ranks, ``dims``
    is the whole tensor's shape and either ``parts`` and ``index`` say which part of each dimension this is, or ``start``
    does exactly. ``dtype`` names what numpy has no type for ("bf16" over uint16); a torch tensor says it itself.
    A tensor without data (``shape`` and ``dtype`` given) is provided by ``iterate`` (on ``device``, where that is given) or taken by
    a loader. ``stream`` is the one in which a device's tensor is written and read (None: torch's current one).
    """

    def __init__(self, data: Any = None, *, dims: Sequence[int] | None = None, parts: Sequence[int] | None = None,
                 index: Sequence[int] | None = None, start: Sequence[int] | None = None, dtype: Any = None,
                 shape: Sequence[int] | None = None, device: Any = None, stream: Any = None):
        if data is None and (shape is None or dtype is None):
            raise TypeError("a tensor without data needs shape and dtype")
        self.data: Any = None
        if data is not None:
            self.data, self.code = any_array(data, "a tensor", dtype, stream)
            self.shape: tuple[int, ...] = self.data.shape
            self.device: Device | None = self.data.device if isinstance(self.data, DeviceArray) else None
        else:
            self.device = None if device is None else open_device(device)
            self.code, self.shape = parse(dtype), tuple(int(n) for n in shape or ())
        self.dims = tuple(int(n) for n in dims) if dims is not None else self._whole(parts)
        self.parts, self.index, self.start = parts, index, start
        self.stream = 0 if self.device is None else stream_number(stream, self.device.index)
        for what, given in (("dims", self.dims), ("parts", parts), ("index", index), ("start", start)):
            if given is not None and len(given) != len(self.shape):
                raise ValueError(f"{what} has {len(given)} entries; the tensor has {len(self.shape)} dimensions")
        if len(self.shape) > _DIMS:
            raise ValueError(f"a tensor has at most {_DIMS} dimensions, not {len(self.shape)}")

    def _whole(self, parts: Sequence[int] | None) -> tuple[int, ...]:
        if parts is None:
            return self.shape
        if len(parts) != len(self.shape):
            raise ValueError(f"parts has {len(parts)} entries; the tensor has {len(self.shape)} dimensions")
        return tuple(n * max(1, p) for n, p in zip(self.shape, parts))

    def numpy_dtype(self) -> Any:
        """numpy's dtype, or an unsigned integer of the same width for what it lacks."""
        return np.dtype(NUMPY.get(self.code) or f"u{lib.ravel_dtype_bytes(self.code)}")

    def strides(self, name: str) -> tuple[int, ...]:
        """In elements; all 0 for an array without holes."""
        if self.data is None or _is_contiguous(self.data):
            return (0,) * len(self.shape)
        steps = [(s, 0) for s in self.data.strides] if isinstance(self.data, DeviceArray) else \
            [divmod(s, self.data.itemsize) for s in self.data.strides]
        if any(rest or step < 1 for step, rest in steps):
            raise ValueError(f"{name} has strides that go backwards, repeat elements or split them; copy it first")
        return tuple(step for step, _ in steps)

    def fill(self, entry: _abi.ravel_refit_tensor, name: str, sink: bool) -> None:
        """Writes the C struct."""
        n = len(self.shape)
        entry.name, entry.dtype, entry.ndim = name.encode(), self.code, n
        entry.dims[:n] = self.dims
        if self.start is not None and 0 in self.shape:  # an empty shard: a part of nothing, since a box has elements
            empty = self.shape.index(0)
            entry.parts[empty] = min(self.dims[empty] + 1, 2**31 - 1)
        elif self.start is not None:
            entry.start[:n], entry.extent[:n] = self.start, self.shape
        else:
            entry.parts[:n] = self.parts or (0,) * n
            entry.index[:n] = self.index or (0,) * n
            own = tuple(d * (i + 1) // p - d * i // p for d, p, i in
                        zip(self.dims, (max(1, p) for p in entry.parts[:n]), entry.index[:n]))
            if own != self.shape:
                raise ValueError(f"{name}: this rank's part of {self.dims} is {own}; the array is {self.shape}")
        entry.strides[:n] = self.strides(name)
        if self.device is not None:
            entry.place = _abi.ravel_place(kind=_abi.RAVEL_DEVICE, stream=self.device.stream(self.stream))
        if self.data is not None:
            fixed = self.data.read_only if isinstance(self.data, DeviceArray) else not self.data.flags.writeable
            if sink and fixed:
                raise ValueError(f"{name} is read-only; a sink's arrays are written to")
            entry.data = address(self.data)


def _is_contiguous(array: Any) -> bool:
    return array.is_contiguous if isinstance(array, DeviceArray) else bool(array.flags.c_contiguous)


def _spare(data: Any) -> Any:
    """A second array with the first one's strides."""
    if isinstance(data, DeviceArray):
        return data.twin()
    if data.flags.c_contiguous:
        return np.empty_like(data)
    count = 1 + sum((n - 1) * s // data.itemsize for n, s in zip(data.shape, data.strides)) if data.size else 0
    return np.lib.stride_tricks.as_strided(np.empty(count, data.dtype), data.shape, data.strides)


class RefitRule:
    """How a fused tensor is made of the tensors that the other side has: see include/ravel/refit.h.

    >>> RefitRule("model.layers.*.mlp.gate_up_proj.weight",
    ...           ["model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"])
    """

    def __init__(self, name: str, parts: Sequence[str] | str, *, join: str = "concat", dim: int = 0, heads: int = 0,
                 kv_heads: int = 0, shares: Sequence[int] = (), stack: int = 0):
        if join not in _JOINS:
            raise ValueError(f"join is {join!r}; it must be one of {', '.join(_JOINS)}")
        most = len(_abi.ravel_refit_rule().shares)
        if len(shares) > most:
            raise ValueError(f"a rule joins at most {most} tensors")
        self.name, self.parts = name, parts.split(",") if isinstance(parts, str) else list(parts)
        self.join, self.dim, self.heads, self.kv_heads, self.stack = join, dim, heads, kv_heads, stack
        self.shares = tuple(shares)

    def _c(self) -> _abi.ravel_refit_rule:
        rule = _abi.ravel_refit_rule(name=self.name.encode(), parts=",".join(self.parts).encode(),
                                     join=_JOINS.index(self.join), dim=self.dim, heads=self.heads,
                                     kv_heads=self.kv_heads, stack=self.stack)
        rule.shares[:len(self.shares)] = self.shares
        return rule

    def __repr__(self) -> str:
        return f"RefitRule({self.name!r}, {self.parts!r}, join={self.join!r})"


def refit_rules(framework: str, *, heads: int, kv_heads: int, experts: int = 0) -> list[RefitRule]:
    """The rules of a well-known framework ("vllm", "sglang", "megatron", "fsdp2") to Hugging Face names."""
    count = lib.ravel_refit_rules_named(framework.encode(), heads, kv_heads, experts, None, 0)
    if count <= 0:
        raise ValueError(f"there are no rules for {framework!r}; there are for vllm, sglang, megatron, fsdp2 and hf")
    table = (_abi.ravel_refit_rule * count)()
    lib.ravel_refit_rules_named(framework.encode(), heads, kv_heads, experts, table, count)
    return [RefitRule(r.name.decode(), r.parts.decode(), join=_JOINS[r.join], dim=r.dim, heads=r.heads,
                      kv_heads=r.kv_heads, shares=list(r.shares) if any(r.shares) else (), stack=r.stack)
            for r in table]


class RefitReport(Mapping[str, Any]):
    """What an update did, by the names of include/ravel/refit.h (``report["bytes_moved"]`` or ``report.bytes_moved``);
    ``phase`` and ``phase_most`` are dicts of seconds."""

    def __init__(self, struct: _abi.ravel_refit_report):
        self._values: dict[str, Any] = {name: getattr(struct, name) for name in fields(struct) if name != "size"}
        for name in ("phase", "phase_most"):
            self._values[name] = dict(zip(_PHASES, self._values[name]))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def metrics(self) -> dict[str, float]:
        """The same as rows of ``ravel.metrics`` (refit/...), for wandb.log."""
        most = self.phase_most
        return {"refit/bytes_needed": self.bytes_needed, "refit/bytes_moved": self.bytes_moved,
                "refit/total_sec": self.seconds, "refit/iterate_sec": most["iterate"], "refit/pack_sec": most["pack"],
                "refit/send_sec": most["send"], "refit/receive_sec": most["receive"],
                "refit/load_sec": most["verify"] + most["load"], "refit/commit_sec": most["vote"],
                "refit/overlap_share": self.overlap, "refit/gb_per_sec": self.gb_per_second}

    def __repr__(self) -> str:
        return (f"<ravel.RefitReport: version {self.version}, {self.bytes_moved} bytes in {self.seconds:.4f} s, "
                f"{self.gb_per_second:.2f} GB/s>")


def _check_places(tensors: Mapping[str, RefitTensor]) -> None:
    """All tensors of a side are in host memory or on one device."""
    first = next(iter(tensors), None)
    for name, tensor in tensors.items():
        assert first is not None
        if tensor.device is not tensors[first].device:
            here, there = (f"on {t.device}" if t.device is not None else "in host memory" for t in (tensors[first], tensor))
            raise ValueError(f"{first} is {here} and {name} {there}; all tensors of a rank are in one place")


class _Side:
    """The C structs of a source or sink, and everything that they point at."""

    def __init__(self, tensors: Mapping[str, Any], rules: Iterable[RefitRule], sink: bool, version: int = 0,
                 stream: Any = None):
        self.tensors = {name: t if isinstance(t, RefitTensor) else RefitTensor(t, stream=stream) for name, t in tensors.items()}
        self.names = list(self.tensors)
        _check_places(self.tensors)
        self.array = (_abi.ravel_refit_tensor * max(1, len(self.names)))()
        self.spares: dict[str, Any] = {}
        for entry, (name, tensor) in zip(self.array, self.tensors.items()):
            tensor.fill(entry, name, sink)
        listed = [rule._c() for rule in rules]
        self.rules = (_abi.ravel_refit_rule * max(1, len(listed)))(*listed)
        kind = _abi.ravel_refit_sink if sink else _abi.ravel_refit_source
        self.struct = kind(size=C.sizeof(kind), tensors=self.array, count=len(self.names), rules=self.rules,
                           rule_count=len(listed))
        if sink:
            self.struct.version = version
        self.held: Any = None  # what the last iterate gave
        self.callbacks: list[Any] = []

    def make_spares(self) -> None:
        """The second set is ours, so that arrays handed out outlive the session."""
        for entry, (name, tensor) in zip(self.array, self.tensors.items()):
            assert tensor.data is not None
            self.spares[name] = _spare(tensor.data)
            entry.spare = address(self.spares[name])

    def set_callback(self, field: str, function: Callable[..., Any]) -> None:
        kind = fields(self.struct)[field]
        self.callbacks.append(kind(function))
        setattr(self.struct, field, self.callbacks[-1])

    def without_data(self) -> str | None:
        return next((name for name, tensor in self.tensors.items() if tensor.data is None), None)


def _set_iterate(side: _Side, iterate: Callable[[str], Any], raised: Raised) -> None:
    def body(index: int, data: int) -> None:
        name = side.names[index]
        tensor = side.tensors[name]
        value = iterate(name)
        if is_on_device(value) != (tensor.device is not None):
            raise ValueError(f"iterate({name!r}) gave {'a device' if is_on_device(value) else 'host'} memory; "
                             f"{tensor.device or 'host memory'} was announced")
        array, code = any_array(value, name, stream=tensor.stream or None)
        if array.shape != tensor.shape or array.itemsize != tensor.numpy_dtype().itemsize:
            raise ValueError(f"iterate({name!r}) gave {array.dtype} of shape {array.shape}; {tensor.numpy_dtype()} of "
                             f"shape {tensor.shape} was announced")
        if isinstance(array, DeviceArray):
            if array.device is not tensor.device:
                raise ValueError(f"iterate({name!r}) gave a tensor on {array.device}; {tensor.device} was announced")
            if not array.is_contiguous and (tensor.data is None or array.strides != tensor.data.strides):
                raise ValueError(f"iterate({name!r}) gave strides {array.strides}, which were not announced")
            array.device.wait(array.stream)  # the update has looked at the stream before
        elif tensor.data is None or tensor.data.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        elif array.strides != tensor.data.strides:
            raise ValueError(f"iterate({name!r}) gave strides {array.strides}; {tensor.data.strides} were announced")
        side.held = array
        C.c_void_p.from_address(data).value = address(array)

    side.set_callback("iterate", lambda _user, index, data, error: raised.guard(body, error, index, data))


def _set_loader(side: _Side, loader: Any, raised: Raised) -> None:
    """Callbacks of a sink: loader.load(name, first, array), and begin, commit, abort(version) where it has them."""
    def load(piece: Any) -> None:
        p = piece.contents
        name = side.names[p.tensor]
        if not p.data:
            loader.load(name, p.first, None)
            return
        bytes_ = p.count * lib.ravel_dtype_bytes(p.dtype)
        dtype = np.dtype(NUMPY.get(p.dtype) or f"u{lib.ravel_dtype_bytes(p.dtype)}")
        loader.load(name, p.first, np.frombuffer(view_bytes(p.data, bytes_), dtype))

    side.set_callback("load", lambda _user, piece, error: raised.guard(load, error, piece))
    begin, commit, abort = (getattr(loader, name, None) for name in ("begin", "commit", "abort"))
    if begin is not None:
        side.set_callback("begin", lambda _user, version, error: raised.guard(begin, error, version))
    if commit is not None:
        side.set_callback("commit", lambda _user, version: raised.quietly(commit, version))
    side.set_callback("abort", lambda _user, version: raised.quietly(abort, version) if abort is not None else None)


class Refit:
    """A session: both sides are compared over all ranks and the transfer is planned once; then :meth:`update` brings
    every receiver from one version to the next, whole or not at all.

    >>> refit = ravel.Refit(comm, source={"w": w})                     # on ranks that train
    >>> refit = ravel.Refit(comm, sink={"w": np.empty_like(w)})        # on ranks that generate
    >>> refit.update(version=1)                                        # on all of them
    >>> refit.weights["w"]                                             # where the live version is now

    Collective over ``comm``, as are :meth:`update` and :meth:`connect`. Values are arrays (numpy, host torch tensors) or
    :class:`RefitTensor` for pieces of a tensor that is cut over ranks. ``iterate(name)`` provides a source's arrays when
    it is their turn; ``loader`` takes a sink's pieces: ``load(name, first, array)`` (array None: unchanged), and
    ``begin``, ``commit``, ``abort(version)``. ``progress(done_bytes, total_bytes)`` is called now and then. Tensors on a CUDA
    device, all of a rank's, are read and written there, after what is in ``stream`` (None: torch's current one). Options:
    ``ravel.refit_options()``. An exception in any of these fails the update on every rank and is raised here.
    """

    def __init__(self, comm: Comm, *, source: Mapping[str, Any] | None = None, sink: Mapping[str, Any] | None = None,
                 source_rules: Iterable[RefitRule] = (), sink_rules: Iterable[RefitRule] = (),
                 iterate: Callable[[str], Any] | None = None, loader: Any = None, version: int = 0,
                 progress: Callable[[int, int], None] | None = None, logger: Callable[[str], None] | None = None,
                 stream: Any = None, **options: Any):
        self.raised = comm.raised
        self._takes_pieces = loader is not None
        try:
            self._options = _make_options(options, progress, logger, self.raised)
            self._source = _make_source(source, source_rules, iterate, self.raised, stream)
            self._sink = _make_sink(sink, sink_rules, loader, version, self.raised, stream)
        except Exception as wrong:
            _fail_together(comm, wrong)
            raise
        if self._sink is not None and loader is None and self._options.stage == _abi.RAVEL_REFIT_SPARE:
            self._sink.make_spares()
        pointer = C.c_void_p()
        self.raised.call("ravel_refit_create", comm.pointer, _pointer(self._source), _pointer(self._sink),
                         C.byref(self._options), C.byref(pointer))
        self._keep = [self._source, self._sink, self._options, comm._keep]
        self._handle = Handle(pointer.value, lib.ravel_refit_free, self._keep)
        self._closed = False

    @classmethod
    def producer(cls, comm: Comm, tensors: Mapping[str, Any], **keywords: Any) -> "Refit":
        """A rank that sends: ``Refit(comm, source=tensors, ...)``."""
        return cls(comm, source=tensors, **keywords)

    @classmethod
    def consumer(cls, comm: Comm, tensors: Mapping[str, Any], **keywords: Any) -> "Refit":
        """A rank that receives: ``Refit(comm, sink=tensors, ...)``."""
        return cls(comm, sink=tensors, **keywords)

    @property
    def _pointer(self) -> Any:
        if self._closed:
            raise ValueError("this refit is closed")
        return self._handle.pointer

    def update(self, version: int = 0) -> RefitReport:
        """Collective. Brings every receiver to ``version``, which the senders give; receivers pass the same or 0."""
        report = _abi.ravel_refit_report(size=C.sizeof(_abi.ravel_refit_report))
        try:
            self.raised.call("ravel_refit_update", self._pointer, version, C.byref(report))
        finally:
            if self._source is not None:
                self._source.held = None
        return RefitReport(report)

    def connect(self, comm: Comm) -> None:
        """Collective. The same session over another communicator, after a failure or when ranks joined or left."""
        self._keep.append(comm._keep)
        self.raised = comm.raised
        self.raised.call("ravel_refit_connect", self._pointer, comm.pointer)

    @property
    def version(self) -> int:
        """That the sink holds, or that the source sent last; 0: none."""
        return int(lib.ravel_refit_version(self._pointer))

    @property
    def lost(self) -> bool:
        """True after a lost peer or a deadline, until :meth:`connect`."""
        return bool(lib.ravel_refit_lost(self._pointer))

    @property
    def weights(self) -> dict[str, Any]:
        """A sink's live arrays by name (on a device: :class:`ravel.DeviceArray`); the next update fills the other set. Without a
        loader only."""
        if self._sink is None or self._takes_pieces:
            return {}
        found = {}
        for i, (name, tensor) in enumerate(self._sink.tensors.items()):
            assert tensor.data is not None
            spare = self._sink.spares.get(name)
            live = lib.ravel_refit_data(self._pointer, i)
            found[name] = spare if spare is not None and spare.size and live == address(spare) else tensor.data
        return found

    def audit(self) -> None:
        """With ``audit=True``: hashes the live arrays again; :class:`ravel.DataError` names the first that changed."""
        self.raised.call("ravel_refit_audit", self._pointer)

    def trace(self, first: bool = True, last: bool = True) -> str:
        """With ``trace=True``: the last update's events as JSON for Perfetto and chrome://tracing."""
        parts: list[bytes] = []
        kind = lib.ravel_refit_trace.argtypes[3]

        def take(_user: Any, text: Any, size: int, _err: Any) -> int:
            parts.append(C.string_at(text, size))
            return _abi.RAVEL_OK

        self.raised.call("ravel_refit_trace", self._pointer, int(first), int(last), kind(take), None)
        return b"".join(parts).decode()

    def close(self) -> None:
        """Frees the session. Where the spare set is live, its content is copied to the sink's own arrays first."""
        if self._closed:
            return
        live = self.weights
        if self._sink is not None:
            for name, tensor in self._sink.tensors.items():
                if name not in live or tensor.data is None or live[name] is tensor.data:
                    continue
                if isinstance(tensor.data, DeviceArray):
                    tensor.data.assign(live[name])
                else:
                    tensor.data[...] = live[name]
        self._closed = True
        self._handle.close()

    def __enter__(self) -> "Refit":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _fail_together(comm: Comm, wrong: Exception) -> None:
    """The other ranks wait for this one in a collective call: it comes, with a source that says what was wrong."""
    entry = _abi.ravel_refit_tensor(name=f"{type(wrong).__name__}: {wrong}".encode()[:400], dtype=-1)
    bad = _abi.ravel_refit_source(size=C.sizeof(_abi.ravel_refit_source), tensors=C.pointer(entry), count=1)
    pointer, error = C.c_void_p(), _abi.ravel_error()
    lib.ravel_refit_create(comm.pointer, C.byref(bad), None, None, C.byref(pointer), C.byref(error))


def _pointer(side: _Side | None) -> Any:
    return None if side is None else C.byref(side.struct)


def _make_source(source: Mapping[str, Any] | None, rules: Iterable[RefitRule], iterate: Any, raised: Raised,
                 stream: Any = None) -> _Side | None:
    if source is None:
        if iterate is not None:
            raise TypeError("iterate needs a source: names with their shapes and dtypes")
        return None
    side = _Side(source, rules, sink=False, stream=stream)
    if iterate is not None:
        _set_iterate(side, iterate, raised)
    elif side.without_data():
        raise ValueError(f"{side.without_data()} has no data; give iterate")
    return side


def _make_sink(sink: Mapping[str, Any] | None, rules: Iterable[RefitRule], loader: Any, version: int,
               raised: Raised, stream: Any = None) -> _Side | None:
    if sink is None:
        if loader is not None:
            raise TypeError("loader needs a sink: names with their shapes and dtypes")
        return None
    side = _Side(sink, rules, sink=True, version=version, stream=stream)
    if loader is not None:
        _set_loader(side, loader, raised)
    elif side.without_data():
        raise ValueError(f"{side.without_data()} has no data; give loader")
    return side


def _make_options(options: dict[str, Any], progress: Any, logger: Any, raised: Raised) -> Any:
    made = _TABLE.make(**options)
    if progress is not None:
        kind = fields(made)["progress"]
        made.progress = kind(lambda _user, done, total: raised.quietly(progress, done, total))
    if logger is not None:
        kind = fields(_abi.ravel_logger)["write"]
        made._logger = _abi.ravel_logger(write=kind(
            lambda _user, _level, text: raised.quietly(logger, C.string_at(text).decode("utf-8", "replace"))))
        made.logger = C.pointer(made._logger)
    return made


def refit(comm: Comm, *, source: Mapping[str, Any] | None = None, sink: Mapping[str, Any] | None = None,
          version: int = 1, **keywords: Any) -> RefitReport:
    """One transfer: make a session, update it, close it. A sink's arrays hold the weights afterwards."""
    with Refit(comm, source=source, sink=sink, **keywords) as session:
        return session.update(version)
