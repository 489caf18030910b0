"""Publish and pull: trainers keep versions of the weights, generators pull them at any time (include/ravel/publish.h)."""

from __future__ import annotations

import ctypes as C
import time
from typing import Any, Callable, Iterable, Mapping, NamedTuple

from . import _abi
from . import comm as _comm
from ._dtype import name_of, parse
from ._lib import Handle, PeerError, address, call, lib
from ._options import Table
from ._refit import RefitRule, _make_sink, _make_source
from .comm import Comm

__all__ = ["Identity", "Publisher", "Puller", "publish_options", "published", "pull_options"]

_PUBLISH = Table(_abi.ravel_publish_options, "ravel_publish")
_PULL = Table(_abi.ravel_pull_options, "ravel_pull")
_STATES = ["idle", "newer", "staging", "ready"]


def publish_options() -> dict[str, str]:
    """The options of :class:`Publisher`: name -> one sentence with the default."""
    return _PUBLISH.docs()


def pull_options() -> dict[str, str]:
    """The options of :class:`Puller`: name -> one sentence with the default."""
    return _PULL.docs()


class Identity(NamedTuple):
    """Which weights: equal identities are equal bytes. Version 0: none yet."""

    version: int
    nonce: int
    digest: int


def _identity(struct: Any) -> Identity:
    return Identity(struct.version, struct.nonce, struct.digest)


class Publisher:
    """One trainer rank's part of a publication; collective over ``comm`` (default: this process alone), as is
    :meth:`publish`.

    >>> publisher = ravel.Publisher("127.0.0.1:7700", {"w": w})
    >>> publisher.publish(version=1)          # copies; w may change afterwards

    ``source`` is as in :class:`Refit`, ``iterate(name)`` and ``stream`` too; ``dtype`` keeps wider floats as it ("bf16").
    """

    def __init__(self, at: str | None, source: Mapping[str, Any], *, comm: Comm | None = None,
                 rules: Iterable[RefitRule] = (), iterate: Callable[[str], Any] | None = None, dtype: Any = None,
                 stream: Any = None, **options: Any):
        self.comm = comm if comm is not None else _comm.self()
        self.raised = self.comm.raised
        self._options = _PUBLISH.make(**options)
        if dtype is not None:
            self._options.dtype = parse(dtype)
        made = _make_source(source, rules, iterate, self.raised, stream)
        assert made is not None  # a source was given
        self._source = made
        pointer = C.c_void_p()
        self.raised.call("ravel_publisher_create", self.comm.pointer, at.encode() if at else None,
                         C.byref(self._source.struct), C.byref(self._options), C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_publisher_free, [self._source, self._options, self.comm._keep])

    def publish(self, version: int) -> Identity:
        """Collective. The source's weights become ``version``; it waits for the other trainer ranks only."""
        try:
            self.raised.call("ravel_publisher_publish", self._handle.pointer, version)
        finally:
            self._source.held = None
        return self.newest

    @property
    def newest(self) -> Identity:
        """The last version that all trainer ranks have."""
        return _identity(lib.ravel_publisher_newest(self._handle.pointer))

    @property
    def address(self) -> str:
        """Where generators find the publication, with the real port."""
        return str(lib.ravel_publisher_address(self._handle.pointer).decode())

    def generators(self) -> list[dict[str, Any]]:
        """What generators last reported, the newest reports first."""
        reports = (_abi.ravel_generator_report * 4096)()
        count = min(4096, lib.ravel_publisher_generators(self._handle.pointer, reports, 4096))
        names = [field[0] for field in _abi.ravel_generator_report._fields_]
        return [{name: _identity(r.held) if name == "held" else getattr(r, name) for name in names}
                for r in reports[:count]]

    def close(self) -> None:
        """Ends all connections; generators keep what they have committed."""
        self._handle.close()


def published(at: str, **options: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What is published at an address: dtype and shape of every tensor by name, for a generator that does not know yet what it will
    get. ``options`` are a :class:`Puller`'s."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}

    def each(_user: Any, tensor: Any, _error: Any) -> int:
        t = tensor.contents
        found[t.name.decode()] = name_of(t.dtype), tuple(t.dims[:t.ndim])
        return _abi.RAVEL_OK

    made = _PULL.make(**options)
    call("ravel_publication_list", at.encode(), C.byref(made), lib.ravel_publication_list.argtypes[2](each), None)
    return found


class Puller:
    """One generator rank's part; collective over ``comm`` (the generator's ranks; default: this process alone), as are
    :meth:`poll`, :meth:`stage`, :meth:`wait`, :meth:`commit` and :meth:`drop`.

    >>> puller = ravel.Puller("trainer:7700", {"w": np.empty((4096, 4096), np.float32)})
    >>> puller.wait(60); puller.commit()
    >>> puller.weights["w"]

    ``sink``, ``rules``, ``loader`` and ``stream`` are as in :class:`Refit`.
    """

    def __init__(self, at: str, sink: Mapping[str, Any], *, comm: Comm | None = None, rules: Iterable[RefitRule] = (),
                 loader: Any = None, stream: Any = None, **options: Any):
        self.comm = comm if comm is not None else _comm.self()
        self.raised = self.comm.raised
        self._options = _PULL.make(**options)
        made = _make_sink(sink, rules, loader, 0, self.raised, stream)
        assert made is not None  # a sink was given
        self._sink = made
        if loader is None and self._options.stage != _abi.RAVEL_REFIT_UNDO:
            self._sink.make_spares()
        pointer = C.c_void_p()
        self.raised.call("ravel_puller_create", self.comm.pointer, at.encode(), C.byref(self._sink.struct),
                         C.byref(self._options), C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_puller_free, [self._sink, self._options, self.comm._keep])
        self._takes_pieces = loader is not None

    def poll(self) -> str:
        """"idle", "newer", "staging" or "ready", the same on every rank. A stage that failed is raised, once."""
        state = C.c_int32()
        self.raised.call("ravel_puller_poll", self._handle.pointer, C.byref(state))
        return _STATES[state.value]

    def stage(self, version: int = 0) -> None:
        """Begins to pull ``version`` (0: the newest) in the background."""
        self.raised.call("ravel_puller_stage", self._handle.pointer, version)

    def wait(self, seconds: float) -> None:
        """Until a version is ready; stages the newest where nothing is staged. With one rank it waits here rather than in C,
        so that Python's signal handlers run (Ctrl-C)."""
        if self.comm.size > 1 or seconds != seconds:
            return self.raised.call("ravel_puller_wait", self._handle.pointer, seconds)
        until = time.monotonic() + seconds
        while (state := self.poll()) != "ready":
            if state == "newer":
                self.stage()
            if time.monotonic() > until:
                raise PeerError(_abi.RAVEL_E_TIMEOUT, f"no version was ready within {seconds:.3g} s")
            time.sleep(0.001)

    def commit(self) -> dict[str, Any]:
        """Makes the staged version live on every rank, or on none; returns its report."""
        report = _abi.ravel_pull_report(size=C.sizeof(_abi.ravel_pull_report))
        self.raised.call("ravel_puller_commit", self._handle.pointer, C.byref(report))
        names = [field[0] for field in _abi.ravel_pull_report._fields_ if field[0] != "size"]
        return {name: _identity(report.identity) if name == "identity" else getattr(report, name) for name in names}

    def drop(self) -> None:
        """Drops the version that is staged or being staged."""
        self.raised.call("ravel_puller_drop", self._handle.pointer)

    def audit(self) -> None:
        """With ``audit=True``: hashes the live arrays again; :class:`ravel.DataError` names the first that changed."""
        self.raised.call("ravel_puller_audit", self._handle.pointer)

    def note(self, tokens_per_second: float) -> None:
        """Tells the trainers, with the next commit, how fast this generator is."""
        lib.ravel_puller_note(self._handle.pointer, tokens_per_second)

    @property
    def identity(self) -> Identity:
        """What is live."""
        return _identity(lib.ravel_puller_identity(self._handle.pointer))

    @property
    def newest(self) -> Identity:
        """The newest published version that is known here; only on the generator's rank 0."""
        return _identity(lib.ravel_puller_newest(self._handle.pointer))

    @property
    def weights(self) -> dict[str, Any]:
        """The live arrays by name. Without a loader only."""
        if self._takes_pieces:
            return {}
        found: dict[str, Any] = {}
        for i, (name, tensor) in enumerate(self._sink.tensors.items()):
            live, spare = lib.ravel_puller_data(self._handle.pointer, i), self._sink.spares.get(name)
            found[name] = spare if spare is not None and spare.size and live == address(spare) else tensor.data
        return found

    def close(self) -> None:
        """Stops pulling; arrays that were handed out stay."""
        self._handle.close()
