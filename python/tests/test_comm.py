"""Communicators: every operation over threads and over callbacks, exceptions, lost ranks."""

import gc
import os
import pathlib
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel
from transport import Queues, on_threads, queues


def everything(comm):
    """Each operation, against what numpy makes of it."""
    rank, size = comm.rank, comm.size
    mine = np.arange(3, dtype=np.int64) + 10 * rank
    all_ = np.stack([np.arange(3) + 10 * r for r in range(size)])
    comm.barrier()
    assert np.array_equal(comm.allgather(mine), all_)
    assert np.array_equal(comm.allreduce(mine), all_.sum(0))
    assert np.array_equal(comm.allreduce(mine.astype(np.float32), "max"), all_.max(0))
    assert comm.allreduce(np.int32(rank), "min").item() == 0
    parts = comm.allgatherv(np.full((rank, 2), rank, np.float64))
    assert [p.tolist() for p in parts] == [[[r, r]] * r for r in range(size)]
    got = comm.alltoall([np.full(rank + peer, rank, np.int32) for peer in range(size)])
    assert [g.tolist() for g in got] == [[peer] * (rank + peer) for peer in range(size)]
    data = np.full(4, rank, np.float32)
    comm.broadcast(data, root=size - 1)
    assert (data == size - 1).all()
    total = comm.reduce(mine, root=0)
    assert (total is None) == (rank != 0) and (rank or np.array_equal(total, all_.sum(0)))
    assert np.array_equal(comm.reduce_scatter(np.stack([mine] * size)), all_.sum(0))
    place = mine.copy()
    assert comm.allreduce(place, in_place=True) is place and np.array_equal(place, all_.sum(0))
    half = comm.split(rank % 2, -rank)
    assert half.size == (size + 1 - rank % 2) // 2
    assert half.allgather(np.array([rank]))[0, 0] == max(r for r in range(size) if r % 2 == rank % 2)
    half.close()
    assert comm.split(-1) is None
    twin = comm.dup()
    twin.name = "twin"
    assert twin.name == "twin" and twin.allreduce(np.array([1]))[0] == size
    twin.close()
    if size > 1:
        comm.timeout = 30
        if rank == 0:
            comm.send(np.arange(5), 1, tag=7)
        elif rank == 1:
            box = np.empty(5, np.int64)
            comm.recv(box, 0, tag=7)
            assert box.tolist() == [0, 1, 2, 3, 4]
    return comm.kind


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_threads(count):
    assert ravel.comm.threads(count, everything) == ["threads"] * count


def test_self():
    with ravel.comm.self() as comm:
        assert everything(comm) == "self" and "rank 0 of 1" in repr(comm)
    assert "closed" in repr(comm)
    with pytest.raises(ValueError, match="closed"):
        comm.barrier()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_callbacks(count):
    def work(transport):
        with ravel.comm.callbacks(transport, timeout=30) as comm:
            return everything(comm)

    transports = queues(count)
    assert on_threads(transports, work) == ["callbacks"] * count
    assert all(t.closed == 1 for t in transports)


def test_a_transport_without_messages_is_refused():
    class Gathers:
        rank, size = 0, 1

        def allgatherv(self, send, recv, timeout):
            pass

    with pytest.raises(TypeError, match="needs rank, size, send and recv"):
        ravel.comm.callbacks(Gathers(), timeout=30)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_every_back_end_gives_the_same_bits(count, values):
    def sums(comm):
        return comm.allreduce(np.array(values, np.float32) * (comm.rank + 1)).tobytes()

    def over(transport):
        with ravel.comm.callbacks(transport, timeout=30) as comm:
            return sums(comm)

    want = ravel.comm.threads(count, sums)
    assert len(set(want)) == 1 and on_threads(queues(count), over) == want


def test_an_exception_on_a_rank_comes_out_as_itself():
    class Mine(Exception):
        pass

    lost = []

    def work(comm):
        if comm.rank == 1:
            raise Mine("rank 1 gives up")
        try:
            comm.barrier()
        except ravel.PeerError as error:
            lost.append(str(error))
            raise

    with pytest.raises(Mine, match="gives up"):
        ravel.comm.threads(3, work)
    assert len(lost) == 2 and all("gives up" in text for text in lost)


def test_an_exception_in_a_transport_comes_out_as_itself():
    def work(transport):
        with ravel.comm.callbacks(transport, timeout=60) as comm:
            for _ in range(20):
                comm.allreduce(np.arange(4))

    transports = queues(2, rank1=5)
    first, second = on_threads(transports, work)
    assert isinstance(second, ConnectionResetError) and "cable" in str(second)
    assert isinstance(first, (TimeoutError, ravel.PeerError))
    assert any("cable" in text for text in transports[1].aborted)


def test_dead_afterwards():
    def work(transport):
        comm = ravel.comm.callbacks(transport, timeout=60)
        with pytest.raises(ConnectionResetError):
            comm.barrier()
        with pytest.raises(ravel.PeerError, match="cable"):
            comm.barrier()
        with pytest.raises(ravel.PeerError):
            comm.check_alive()

    assert on_threads(queues(2, rank0=1)[:1], work) == [None]


def test_what_is_no_transport_is_said():
    with pytest.raises(TypeError, match="needs rank, size"):
        ravel.comm.callbacks(object())
    with pytest.raises(ValueError, match="op is"):
        ravel.comm.self().allreduce(np.zeros(1), "mean")
    with pytest.raises(ValueError, match="in place"):
        ravel.comm.self().broadcast(np.zeros((4, 4))[:, ::2])
    with pytest.raises(TypeError, match="does not have"):
        ravel.comm.self().allreduce(np.array(["a"]))
    with pytest.raises(ravel.ArgumentError, match="did you mean"):
        ravel.comm.self(timout=3)


def test_mismatch_names_the_ranks():
    def work(comm):
        with pytest.raises(ravel.DataError, match="rank"):
            comm.allreduce(np.zeros(comm.rank + 1))
        return comm.allreduce(np.array([1]))[0]

    assert ravel.comm.threads(2, work) == [2, 2]


def test_callbacks_are_freed():
    transport = Queues(0, [{}])
    gone = weakref.ref(transport)
    comm = ravel.comm.callbacks(transport)
    child = comm.dup()
    comm.close()
    assert child.allreduce(np.array([3]))[0] == 3
    del transport, comm, child
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_mpi(kind):
    from ravel._lib import lib
    launcher = shutil.which(f"mpirun.{kind}")
    if launcher is None or not (pathlib.Path(lib._name).parent / f"libravel_{kind}.so").exists():
        pytest.skip(f"{kind} is not installed: ravel.comm.mpi() was not tried with it")
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import ravel, test_comm\n"
            "with ravel.comm.mpi(timeout=60) as comm:\n    sys.stdout.write(f'kind {test_comm.everything(comm)} {comm.size};')\n")
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm": "isolated",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    done = subprocess.run([launcher, "-n", "3", sys.executable, "-c", code, str(pathlib.Path(__file__).parent)], env=env,
                          text=True, capture_output=True, timeout=300)
    if "this MPI sees only itself" in done.stderr:
        pytest.skip(f"{kind}: its launcher starts worlds of one process")
    assert done.returncode == 0 and done.stdout.count("kind mpi 3;") == 3, done.stdout + done.stderr
