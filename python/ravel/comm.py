"""Communicators: N ranks that exchange arrays and never hang.

    ravel.comm.self()                      one rank
    ravel.comm.threads(8, work)            work(comm) on eight ranks of this process; their results in a list
    ravel.comm.mpi()                       all processes that mpirun or srun started
    ravel.comm.callbacks(transport)        any object with rank, size, send and recv (see Transport)
    ravel.comm.from_mpi4py(MPI.COMM_WORLD)
    ravel.comm.from_torch(group)           torch.distributed
    ravel.comm.nccl(host)                  the same ranks over NCCL: tensors on CUDA devices

Operations are over host memory (numpy arrays, or host torch tensors), those of ``nccl`` over memory of its device (anything
that speaks DLPack), without copies. Operations that return an array return a new one, on a device a
:class:`ravel.DeviceArray`; ``broadcast`` and ``recv`` fill the array that they are given. What an operation does when the
ranks disagree, when one is lost and when a deadline passes is in include/ravel/comm.h; here those are exceptions
(:class:`ravel.DataError` for a mismatch, :class:`ravel.PeerError` for a lost peer or a deadline).

An exception in a transport's method is raised by the call unchanged, and the communicator is dead afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import time
from typing import Any, Callable, Protocol, Sequence, TypeVar

import numpy as np

from . import _abi
from ._device import Device, DeviceArray, is_on_device, open_device, place_of, stream_number
from ._dtype import NUMPY, any_array, name_of
from ._lib import Handle, Raised, address, fields, lib, view_bytes
from ._options import Table

__all__ = ["Comm", "Transport", "callbacks", "from_mpi4py", "from_torch", "mpi", "nccl", "self", "threads", "world"]

_TABLE = Table(_abi.ravel_comm_options, "ravel_comm")
_REDUCE = {"sum": _abi.RAVEL_SUM, "min": _abi.RAVEL_MIN, "max": _abi.RAVEL_MAX}
T = TypeVar("T")


def _reduce(op: str) -> int:
    if op not in _REDUCE:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join(_REDUCE)}")
    return _REDUCE[op]


class Comm:
    """One rank's handle to a group of ranks. It belongs to one thread at a time."""

    device: Device | None = None
    """That the arrays of a NCCL communicator are on; None: host memory."""
    stream = 0
    """In which its operations run."""

    def __init__(self, pointer: int, raised: Raised, keep: Any = None, owned: bool = True):
        self.raised, self._keep = raised, keep
        self._handle = Handle(pointer, lib.ravel_comm_free, keep) if owned else None
        self._pointer: int | None = pointer

    # -- what it is
    @property
    def pointer(self) -> int:
        """Of the library's own object."""
        if self._pointer is None:
            raise ValueError("this communicator is closed")
        return self._pointer

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        return int(lib.ravel_comm_rank(self.pointer))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(lib.ravel_comm_size(self.pointer))

    @property
    def kind(self) -> str:
        """self, threads, mpi, callbacks or nccl."""
        return str(lib.ravel_comm_kind(self.pointer).decode())

    @property
    def name(self) -> str:
        """Stands in error sentences."""
        return str(lib.ravel_comm_name(self.pointer).decode())

    @name.setter
    def name(self, value: str) -> None:
        lib.ravel_comm_set_name(self.pointer, value.encode())

    @property
    def timeout(self) -> float:
        """Seconds that a call may wait."""
        return float(lib.ravel_comm_timeout(self.pointer))

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"timeout is {seconds}; it must be above 0")
        lib.ravel_comm_set_timeout(self.pointer, float(seconds))

    @property
    def lost_rank(self) -> int | None:
        """The rank that was lost, where it is known."""
        rank = lib.ravel_comm_lost_rank(self.pointer)
        return rank if rank >= 0 else None

    def check_alive(self) -> None:
        """Raises :class:`ravel.PeerError` if no call can succeed any more. Never waits."""
        self._call("ravel_comm_alive")

    def _call(self, name: str, *arguments: Any) -> None:
        self.raised.call(name, self.pointer, *arguments)

    # -- arrays
    def _whole(self, value: Any, what: str, dtype: Any, writes: bool = False) -> tuple[Any, int]:
        """A contiguous array that can travel, and its dtype's number. One that is written to must be contiguous already."""
        if self.device is None:
            if is_on_device(value):
                self._call("ravel_comm_place_check", C.byref(place_of(DeviceArray.taken(value, what))))
            array, code = any_array(value, what, dtype)
            if writes and not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"{what} is filled in place: it must be contiguous and writable")
            return np.asarray(array, order="C"), code
        if not is_on_device(value):
            self._call("ravel_comm_place_check", C.byref(_abi.ravel_place()))
        array, code = any_array(value, what, dtype, self.stream)
        if array.device is not self.device:
            raise ValueError(f"{what} is on {array.device} and this communicator on {self.device}")
        if not array.is_contiguous or writes and array.read_only:
            raise ValueError(f"{what} must be contiguous" + " and writable" * writes + "; copy it first")
        return array, code

    def _empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """A new array for a result, of another one's dtype."""
        if self.device is None:
            return np.empty(shape, like.dtype)
        return DeviceArray.empty(self.device, shape, like.code, self.stream)

    def _host(self) -> Any:
        """The communicator of these ranks for host memory: this one, or that behind NCCL."""
        return self.pointer if self.device is None else lib.ravel_comm_host(self.pointer)

    # -- collectives
    def barrier(self) -> None:
        """Returns when every rank has come."""
        self._call("ravel_comm_barrier")

    def broadcast(self, array: Any, root: int = 0, *, dtype: Any = None) -> None:
        """``array`` of ``root`` to every rank's ``array``, in place."""
        data, code = self._whole(array, "array", dtype, writes=True)
        self._call("ravel_comm_broadcast", address(data), data.size, code, root)

    def allgather(self, array: Any, *, dtype: Any = None) -> Any:
        """[size, *array.shape]: every rank's array."""
        data, code = self._whole(array, "array", dtype)
        out = self._empty((self.size, *data.shape), data)
        self._call("ravel_comm_allgather", address(data), address(out), data.size, code)
        return out

    def allgatherv(self, array: Any, *, dtype: Any = None) -> list[Any]:
        """Every rank's array, of whatever length (first dimension)."""
        data, code = self._whole(array, "array", dtype)
        if data.ndim < 1:
            raise ValueError("array must have a first dimension; use allgather for single numbers")
        own, sizes = np.array([data.size], np.int64), np.empty(self.size, np.int64)
        self.raised.call("ravel_comm_allgather", self._host(), address(own), address(sizes), 1, _abi.RAVEL_I64)
        flat = self._empty((int(sizes.sum()),), data)
        self._call("ravel_comm_allgatherv", address(data), address(flat), address(sizes), None, code)
        rest = int(np.prod(data.shape[1:], dtype=np.int64)) or 1
        return [part.reshape(-1, *data.shape[1:]) if isinstance(part, np.ndarray) else
                part.reshaped((part.size // rest, *data.shape[1:])) for part in _cut(flat, sizes)]

    def alltoall(self, arrays: Sequence[Any], *, dtype: Any = None) -> list[Any]:
        """arrays[r] goes to rank r; the result's r-th came from rank r. Flat arrays of one dtype, of any lengths."""
        pairs = [self._whole(a, "an array", dtype) for a in arrays]
        if len(pairs) != self.size or len({code for _, code in pairs}) != 1:
            raise ValueError(f"alltoall takes {self.size} arrays (one per rank) of one dtype")
        sizes = np.array([a.size for a, _ in pairs], np.int64)
        wanted = np.empty_like(sizes)
        self.raised.call("ravel_comm_alltoall", self._host(), address(sizes), address(wanted), 1, _abi.RAVEL_I64)
        send = self._joined([a for a, _ in pairs], sizes)
        recv = self._empty((int(wanted.sum()),), send)
        self._call("ravel_comm_alltoallv", address(send), address(sizes), None, address(recv), address(wanted), None,
                   pairs[0][1])
        return _cut(recv, wanted)

    def _joined(self, arrays: list[Any], sizes: np.ndarray) -> Any:
        """Arrays end to end."""
        if self.device is None:
            return np.concatenate([a.reshape(-1) for a in arrays])
        whole = self._empty((int(sizes.sum()),), arrays[0])
        for part, array in zip(_cut(whole, sizes), arrays):
            part.assign(array.reshaped((array.size,)))
        return whole

    def allreduce(self, array: Any, op: str = "sum", *, dtype: Any = None, in_place: bool = False) -> Any:
        """Element by element over all ranks: sum, min or max, the same bits on every rank."""
        data, code = self._whole(array, "array", dtype, writes=in_place)
        out = data if in_place else self._empty(data.shape, data)
        self._call("ravel_comm_allreduce", address(data), address(out), data.size, code, _reduce(op))
        return out

    def reduce(self, array: Any, op: str = "sum", root: int = 0, *, dtype: Any = None) -> Any:
        """The same, on ``root`` only; None elsewhere."""
        data, code = self._whole(array, "array", dtype)
        out = self._empty(data.shape, data) if self.rank == root else None
        self._call("ravel_comm_reduce", address(data), address(out), data.size, code, _reduce(op), root)
        return out

    def reduce_scatter(self, array: Any, op: str = "sum", *, dtype: Any = None) -> Any:
        """[size, ...] is reduced, and this rank's row of the result returned."""
        data, code = self._whole(array, "array", dtype)
        if data.ndim < 1 or data.shape[0] != self.size:
            raise ValueError(f"the first dimension must be {self.size}, one row per rank; the shape is {data.shape}")
        out = self._empty(data.shape[1:], data)
        self._call("ravel_comm_reduce_scatter", address(data), address(out), out.size, code, _reduce(op))
        return out

    # -- messages
    def send(self, array: Any, peer: int, tag: int = 0, *, dtype: Any = None) -> None:
        """To rank ``peer``, which calls ``recv`` with the same tag; may wait until it does."""
        data, code = self._whole(array, "array", dtype)
        self._call("ravel_comm_send", address(data), data.size, code, peer, tag)

    def recv(self, array: Any, peer: int, tag: int = 0, *, dtype: Any = None) -> None:
        """Fills ``array``, whose size and dtype must be the sender's."""
        data, code = self._whole(array, "array", dtype, writes=True)
        self._call("ravel_comm_recv", address(data), data.size, code, peer, tag)

    # -- life
    def split(self, colour: int, key: int = 0) -> "Comm | None":
        """Collective. Ranks with the same colour form a communicator; a negative colour takes part and gets None."""
        return self._child("ravel_comm_split", colour, key)

    def dup(self) -> "Comm":
        """Collective. The same ranks again, for a background thread."""
        child = self._child("ravel_comm_dup")
        assert child is not None
        return child

    def _child(self, name: str, *arguments: Any) -> "Comm | None":
        pointer = C.c_void_p()
        self._call(name, *arguments, C.byref(pointer))
        if not pointer.value:
            return None
        child = Comm(pointer.value, self.raised, self._keep)
        child.device, child.stream = self.device, self.stream
        return child

    def abort(self, why: str | BaseException = "aborted") -> None:
        """Tells all other ranks that this one failed, and why. The communicator is dead afterwards."""
        error = _abi.ravel_error()
        error.status = _abi.RAVEL_E_CALLBACK
        error.message = str(why).encode()[:1000]
        lib.ravel_comm_abort(self.pointer, C.byref(error))

    def close(self) -> None:
        """Leaves. At the end of the work that is all; earlier, the others' operations that need this rank fail."""
        self._pointer = None
        if self._handle is not None:
            self._handle.close()

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, kind: Any, value: BaseException | None, _trace: Any) -> None:
        if value is not None and self._pointer is not None:
            self.abort(value)
        self.close()

    def __repr__(self) -> str:
        if self._pointer is None:
            return "<ravel.Comm: closed>"
        return f"<ravel.Comm: rank {self.rank} of {self.size}, {self.kind} {self.name!r}>"


def _cut(flat: Any, sizes: np.ndarray) -> list[Any]:
    """Consecutive parts of a flat array, over the same memory."""
    if isinstance(flat, np.ndarray):
        return np.split(flat, np.cumsum(sizes)[:-1])
    ends = np.cumsum(sizes).tolist()
    return [flat.part(end - size, size) for size, end in zip(sizes.tolist(), ends)]


def _open(name: str, *arguments: Any, raised: Raised | None = None, keep: Any = None, **options: Any) -> Comm:
    pointer = C.c_void_p()
    raised = raised or Raised()
    raised.call(name, *arguments, C.byref(_TABLE.make(**options)), C.byref(pointer))
    assert pointer.value is not None
    return Comm(pointer.value, raised, keep)


def self(**options: Any) -> Comm:  # noqa: A001 (the back end's name)
    """One rank. Options of all communicators: timeout, chunk_bytes, check."""
    return _open("ravel_comm_self", **options)


def mpi(**options: Any) -> Comm:
    """All processes that the launcher started; MPI is initialised unless it is already (by mpi4py)."""
    return _open("ravel_comm_mpi", **options)


def nccl(host: Comm, device: Any = 0, *, stream: Any = None, **options: Any) -> Comm:
    """The ranks of ``host`` over NCCL, each with a CUDA device of its own ("cuda:1", or a number). Collective. Arrays are on that
    device; operations run in ``stream`` (a number as DLPack has it, a stream of torch or CuPy; None: torch's current one, else
    the default stream), after what is in it and before what comes later. The stream outlives the communicator."""
    there = open_device(device)
    number = stream_number(stream, there.index)
    made = _open("ravel_comm_nccl", host.pointer, there.stream(number), raised=host.raised, keep=host._keep, **options)
    made.device, made.stream = there, number
    return made


def world(**options: Any) -> Comm:
    """:func:`mpi` where a launcher started this process as one of several ranks, else :func:`self`."""
    return _open("ravel_comm_open", b"auto", **options)


def threads(count: int, work: Callable[[Comm], T], **options: Any) -> list[T]:
    """Runs ``work(comm)`` on ``count`` ranks, a thread each, and returns their results in rank order.

    A rank that raises fails the others, and this call raises its exception. numpy and Ravel release the GIL, so
    ranks run side by side where it matters.
    """
    results: list[Any] = [None] * max(0, count)
    failures: list[BaseException] = []

    def rank(pointer: int, _user: Any, error: Any) -> int:
        comm = Comm(pointer, Raised(), owned=False)

        def body() -> None:
            results[comm.rank] = work(comm)

        try:
            body()
            return _abi.RAVEL_OK
        except BaseException as exception:
            failures.append(exception)
            return Raised().keep(exception, error)
        finally:
            comm.close()

    error = _abi.ravel_error()
    chosen = _TABLE.make(**options)
    status = lib.ravel_threads_run(count, C.byref(chosen), _abi.ravel_rank_fn(rank), None, C.byref(error))
    raised = Raised()
    raised.first = failures[0] if failures else None  # the first failure is the cause of the others
    raised.again(status, error)
    return results


# ---- the caller's own transport --------------------------------------------------------------------------------------


class Transport(Protocol):
    """What :func:`callbacks` takes. Buffers are memoryviews of bytes, valid during the call; ``timeout`` is what is left
    of the deadline in seconds. A method reports failure by raising, and the communicator is dead afterwards.

    Further methods are used where an object has them, and made from these where it has not:

        barrier(timeout)
        broadcast(data, root, timeout)
        allgatherv(send, recv, timeout)             recv[r] is where rank r's bytes go
        alltoallv(send, recv, timeout)              send[r] goes to rank r, recv[r] comes from rank r
        allreduce(send, recv, op, timeout)          arrays of numbers; op is "sum", "min" or "max". Without it Ravel adds
                                                    in rank order, so that every back end gives the same bits
        split(members, index, timeout) -> Transport for the ranks `members`, of which this one is members[index]
        abort(why)                                  tells the peers, best effort
        close()
    """

    rank: int
    size: int

    def send(self, data: memoryview, peer: int, tag: int, timeout: float) -> None:
        """All of the bytes to rank ``peer``. May wait for its ``recv``."""

    def recv(self, into: memoryview, peer: int, tag: int, timeout: float) -> None:
        """Fills ``into`` with the next message of that rank and tag, which is of that size."""


def _pieces(base: int | None, sizes: int, offsets: int, count: int) -> list[memoryview]:
    lengths = (C.c_int64 * count).from_address(sizes)
    starts = (C.c_int64 * count).from_address(offsets)
    return [view_bytes((base or 0) + at if base else None, size) for at, size in zip(starts, lengths)]


def _numbers(pointer: int | None, count: int, code: int) -> np.ndarray:
    if code not in NUMPY:
        raise TypeError(f"this transport cannot reduce {name_of(code)}")
    dtype = np.dtype(NUMPY[code])
    return np.frombuffer(view_bytes(pointer, count * dtype.itemsize), dtype)


class _Hooks:
    """The table of functions over a transport, with everything that must live as long as the communicator."""

    def __init__(self, transport: Any, raised: Raised):
        self.transport, self.raised = transport, raised
        self.children: list[_Hooks] = []
        self.struct = _abi.ravel_comm_hooks(size=C.sizeof(_abi.ravel_comm_hooks), rank=transport.rank,
                                            ranks=transport.size)
        kinds = fields(_abi.ravel_comm_hooks)
        for name in ("barrier", "broadcast", "allgatherv", "alltoallv", "allreduce", "send", "recv", "split", "abort",
                     "close"):
            if getattr(transport, name, None) is not None:
                setattr(self.struct, name, kinds[name](getattr(self, "_" + name)))

    def _barrier(self, _user: Any, timeout: float, error: Any) -> int:
        return self.raised.guard(self.transport.barrier, error, timeout)

    def _broadcast(self, _user: Any, data: Any, size: int, root: int, timeout: float, error: Any) -> int:
        return self.raised.guard(lambda: self.transport.broadcast(view_bytes(data, size), root, timeout), error)

    def _allgatherv(self, _user: Any, send: Any, size: int, recv: Any, sizes: Any, offsets: Any, timeout: float,
                    error: Any) -> int:
        return self.raised.guard(lambda: self.transport.allgatherv(
            view_bytes(send, size), _pieces(recv, sizes, offsets, self.transport.size), timeout), error)

    def _alltoallv(self, _user: Any, send: Any, send_sizes: Any, send_offsets: Any, recv: Any, recv_sizes: Any,
                   recv_offsets: Any, timeout: float, error: Any) -> int:
        n = self.transport.size
        return self.raised.guard(lambda: self.transport.alltoallv(
            _pieces(send, send_sizes, send_offsets, n), _pieces(recv, recv_sizes, recv_offsets, n), timeout), error)

    def _allreduce(self, _user: Any, send: Any, recv: Any, count: int, code: int, op: int, timeout: float,
                   error: Any) -> int:
        word = next(word for word, value in _REDUCE.items() if value == op)
        return self.raised.guard(lambda: self.transport.allreduce(
            _numbers(send, count, code), _numbers(recv, count, code), word, timeout), error)

    def _send(self, _user: Any, data: Any, size: int, peer: int, tag: int, timeout: float, error: Any) -> int:
        return self.raised.guard(lambda: self.transport.send(view_bytes(data, size), peer, tag, timeout), error)

    def _recv(self, _user: Any, data: Any, size: int, peer: int, tag: int, timeout: float, error: Any) -> int:
        return self.raised.guard(lambda: self.transport.recv(view_bytes(data, size), peer, tag, timeout), error)

    def _split(self, _user: Any, members: Any, count: int, index: int, child: Any, timeout: float, error: Any) -> int:
        def body() -> None:
            ranks = list((C.c_int32 * count).from_address(members))
            hooks = _Hooks(self.transport.split(ranks, index, timeout), self.raised)
            self.children.append(hooks)
            C.memmove(child, C.byref(hooks.struct), C.sizeof(hooks.struct))

        return self.raised.guard(body, error)

    def _abort(self, _user: Any, why: Any) -> None:
        with contextlib.suppress(Exception):
            self.transport.abort(C.string_at(why).decode("utf-8", "replace") if why else "")

    def _close(self, _user: Any) -> None:
        with contextlib.suppress(Exception):
            self.transport.close()


def callbacks(transport: Any, **options: Any) -> Comm:
    """A communicator over any object that can move bytes between numbered ranks: see :class:`Transport`."""
    missing = [name for name in ("rank", "size") if not hasattr(transport, name)]
    messages = callable(getattr(transport, "send", None)) and callable(getattr(transport, "recv", None))
    if missing or not messages:
        raise TypeError(f"{type(transport).__name__} is no transport: it needs rank, size, send and recv; "
                        f"see ravel.comm.Transport")
    raised = Raised()
    hooks = _Hooks(transport, raised)
    return _open("ravel_comm_callbacks", C.byref(hooks.struct), raised=raised, keep=hooks, **options)


class _Mpi4py:
    """A communicator of mpi4py: messages of its own on a duplicate, with deadlines."""

    def __init__(self, comm: Any, mpi_module: Any):
        self._comm, self._mpi = comm, mpi_module
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def _wait(self, request: Any, timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        pause = 0.0
        while not request.Test():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: the deadline passed")
            time.sleep(pause)
            pause = min(pause + 2e-6, 1e-3)

    def send(self, data: memoryview, peer: int, tag: int, timeout: float) -> None:
        self._wait(self._comm.Isend([data, self._mpi.BYTE], peer, tag), timeout, f"send to rank {peer}")

    def recv(self, into: memoryview, peer: int, tag: int, timeout: float) -> None:
        self._wait(self._comm.Irecv([into, self._mpi.BYTE], peer, tag), timeout, f"receive from rank {peer}")

    def barrier(self, timeout: float) -> None:
        self._wait(self._comm.Ibarrier(), timeout, "barrier")

    def split(self, members: list[int], index: int, timeout: float) -> "_Mpi4py":
        return _Mpi4py(self._comm.Create_group(self._comm.Get_group().Incl(members)), self._mpi)


def from_mpi4py(comm: Any, **options: Any) -> Comm:
    """Over a communicator of mpi4py. Collective: it is duplicated first, so that messages cannot mix."""
    from mpi4py import MPI

    return callbacks(_Mpi4py(comm.Dup(), MPI), **options)


class _Torch:
    """A torch.distributed group over host tensors."""

    def __init__(self, dist: Any, group: Any):
        import torch

        self._torch, self._dist, self._group = torch, dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group) if group is not None else list(range(self.size))

    def _tensor(self, data: memoryview) -> Any:
        return self._torch.frombuffer(data, dtype=self._torch.uint8) if len(data) else \
            self._torch.empty(0, dtype=self._torch.uint8)

    def _wait(self, work: Any, timeout: float) -> None:
        import datetime

        work.wait(datetime.timedelta(seconds=timeout))

    def send(self, data: memoryview, peer: int, tag: int, timeout: float) -> None:
        self._wait(self._dist.isend(self._tensor(data), self._ranks[peer], group=self._group, tag=tag), timeout)

    def recv(self, into: memoryview, peer: int, tag: int, timeout: float) -> None:
        self._wait(self._dist.irecv(self._tensor(into), self._ranks[peer], group=self._group, tag=tag), timeout)

    def broadcast(self, data: memoryview, root: int, timeout: float) -> None:
        self._wait(self._dist.broadcast(self._tensor(data), self._ranks[root], group=self._group, async_op=True), timeout)


def from_torch(group: Any = None, **options: Any) -> Comm:
    """Over a torch.distributed group (None: all ranks). Collective.

    Host memory travels, so a group of NCCL alone is joined by a gloo group of the same ranks, made here; a new group is
    made in any case, so that messages cannot mix with the caller's.
    """
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    own = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return callbacks(_Torch(dist, own), **options)
