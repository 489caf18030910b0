"""Refit through Python: over threads and callbacks, cut tensors, callbacks that fail, wrong input."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel
from transport import on_threads, queues

DTYPES = ["f4", "f8", "f2", "i4", "u1", "?"]


def run(senders, receivers, **keywords):
    """senders[i](comm) and receivers[i](comm) each make a Refit; all update to version 1; the receivers' weights."""
    makers = [*senders, *receivers]

    def work(comm):
        with makers[comm.rank](comm) as refit:
            refit.update(1)
            return {name: array.copy() for name, array in refit.weights.items()}

    return ravel.comm.threads(len(makers), work, timeout=30)[len(senders):]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=4)), min_size=1, max_size=5),
       st.integers(1, 3), st.sampled_from(["spare", "undo"]))
def test_what_is_sent_is_what_arrives(specs, receivers, stage):
    rng = np.random.default_rng(0)
    tensors = {f"t{i}": rng.integers(0, 2 if d == "?" else 100, shape).astype(d) for i, (d, shape) in enumerate(specs)}
    makers = [lambda comm: ravel.Refit(comm, sink={n: np.zeros_like(t) for n, t in tensors.items()},
                                        stage=stage, buffer_bytes=4096)] * receivers
    got = run([lambda comm: ravel.Refit.producer(comm, tensors, buffer_bytes=4096)], makers)
    for weights in got:
        assert weights.keys() == tensors.keys()
        for name, want in tensors.items():
            assert weights[name].dtype == want.dtype and np.array_equal(weights[name], want), name


@pytest.mark.parametrize("stage", ["spare", "undo"])
def test_empty_shards_take_no_part(stage):
    """Shards as FSDP2 cuts 5 rows over 4 ranks: 2, 2, 1 and none. The last one's memory is neither read nor written."""
    whole = np.arange(5 * 6, dtype=np.float32).reshape(5, 6)

    def shard(index, side):
        first, end = min(2 * index, 5), min(2 * index + 2, 5)
        room = np.full((8, 6), -1, np.float32)
        piece = room[:end - first]
        if side == "source":
            piece[:] = whole[first:end]
        tensor = ravel.RefitTensor(piece, dims=whole.shape, start=(first, 0))
        return room, lambda comm: ravel.Refit(comm, stage=stage, **{side: {"w": tensor}})

    sinks = [shard(i, "sink") for i in range(4)]
    got = run([shard(i, "source")[1] for i in range(4)], [make for _, make in sinks])
    assert np.array_equal(np.vstack([g["w"] for g in got]), whole)
    assert (sinks[3][0] == -1).all() and (sinks[2][0][1:] == -1).all()


@pytest.mark.parametrize("ways", [1, 2, 3])
def test_cut_tensors_come_together(ways):
    """Senders have rows, receivers have columns."""
    whole = np.arange(7 * 12, dtype=np.float32).reshape(7, 12)

    def rows(index):
        piece = whole[7 * index // ways:7 * (index + 1) // ways]
        return lambda comm: ravel.Refit(comm, source={"w": ravel.RefitTensor(piece, dims=whole.shape, parts=(ways, 1),
                                                                             index=(index, 0))})

    def columns(index):
        piece = np.zeros((7, 6), np.float32)
        return lambda comm: ravel.Refit(comm, sink={"w": ravel.RefitTensor(piece, dims=whole.shape, start=(0, 6 * index))})

    got = run([rows(i) for i in range(ways)], [columns(0), columns(1)])
    assert np.array_equal(np.hstack([g["w"] for g in got]), whole)


def test_strided_arrays():
    big, there = np.arange(60.).reshape(6, 10), np.zeros((8, 20))
    got = run([lambda comm: ravel.Refit(comm, source={"w": big[::2, 1:9].T})],
              [lambda comm: ravel.Refit(comm, sink={"w": there[:, ::7].reshape(8, 3)[:8]})])
    assert np.array_equal(got[0]["w"], big[::2, 1:9].T)
    view = there[:, 1:20:7]
    got = run([lambda comm: ravel.Refit(comm, source={"w": big[::2, 1:9].T})], [lambda comm: ravel.Refit(comm, sink={"w": view})])
    assert np.array_equal(got[0]["w"], big[::2, 1:9].T)
    assert np.array_equal(view, big[::2, 1:9].T) and there[:, 2].sum() == 0  # close() copied it, holes untouched


def test_narrowing_and_bits_of_bfloat16():
    values = np.array([1.0, 1.00390625, -2.5, 3e38], np.float32)
    got = run([lambda comm: ravel.Refit(comm, source={"w": values}, cast="narrow")],
              [lambda comm: ravel.Refit(comm, sink={"w": ravel.RefitTensor(np.zeros(4, np.uint16), dtype="bf16")}, cast="narrow")])
    assert (got[0]["w"].astype(np.uint32) << 16).view(np.float32)[[0, 2]].tolist() == [1.0, -2.5]


def test_versions_switch_between_two_sets():
    def work(comm):
        if comm.rank == 0:
            w = np.zeros(100, np.float32)
            refit = ravel.Refit.producer(comm, {"w": w})
            for version in (1, 2, 3):
                w[:] = version
                assert refit.update(version).version == version
            refit.close()
            return None
        mine = np.zeros(100, np.float32)
        refit = ravel.Refit.consumer(comm, {"w": mine}, audit=True)
        seen = []
        for version in (1, 2, 3):
            report = refit.update()
            live = refit.weights["w"]
            assert report["version"] == refit.version == version and (live == version).all()
            assert report.bytes_needed == 400 and set(report.phase) >= {"pack", "load"}
            refit.audit()
            seen.append(live)
        assert seen[0] is not seen[1] and seen[0] is seen[2]
        last = refit.weights["w"]
        last[3] = 7
        with pytest.raises(ravel.DataError, match="w"):
            refit.audit()
        refit.close()
        assert (mine[4:] == 3).all()
        with pytest.raises(ValueError, match="closed"):
            refit.update()

    ravel.comm.threads(2, work, timeout=30)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_close_leaves_the_live_version_in_the_callers_arrays(updates):
    def work(comm):
        w = np.zeros(50)
        with ravel.Refit(comm, **{"source" if comm.rank == 0 else "sink": {"w": w}}) as refit:
            for version in range(1, updates + 1):
                if comm.rank == 0:
                    w[:] = version
                refit.update(version)
                comm.barrier()
        return w

    assert (ravel.comm.threads(2, work, timeout=30)[1] == updates).all()


def test_iterate_and_loader_stream():
    shapes = {"a": (4, 8), "b": (1000,)}
    truth = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    announced = {name: ravel.RefitTensor(shape=shape, dtype="f32") for name, shape in shapes.items()}
    asked = []

    class Loader:
        def __init__(self):
            self.staged, self.live, self.calls = {}, {}, []

        def begin(self, version):
            self.staged = {name: np.zeros(int(np.prod(shape)), np.float32) for name, shape in shapes.items()}
            self.calls.append("begin")

        def load(self, name, first, array):
            self.staged[name][first:first + array.size] = array

        def commit(self, version):
            self.live = self.staged
            self.calls.append(("commit", version))

        def abort(self, version):
            self.calls.append("abort")

    def work(comm):
        if comm.rank == 0:
            def iterate(name):
                asked.append(name)
                return truth[name]
            ravel.Refit(comm, source=announced, iterate=iterate).update(5)
            return None
        loader = Loader()
        refit = ravel.Refit(comm, sink=announced, loader=loader)
        refit.update(5)
        assert refit.weights == {}
        return loader

    loader = ravel.comm.threads(2, work, timeout=30)[1]
    assert set(asked) == set(shapes) and loader.calls == ["begin", ("commit", 5)]
    for name, value in truth.items():
        assert np.array_equal(loader.live[name].reshape(value.shape), value)


@pytest.mark.parametrize("who", ["iterate", "load", "begin"])
def test_an_exception_in_a_callback_fails_all_and_comes_out_as_itself(who):
    """The update fails on both ranks, the old version stays, and the next update works."""
    trouble = [True]

    class Loader:
        done = 0

        def begin(self, version):
            if who == "begin" and trouble[0]:
                raise RuntimeError("begin refused")

        def load(self, name, first, array):
            if who == "load" and trouble[0]:
                raise RuntimeError("load refused")

        def commit(self, version):
            self.done = version

        def abort(self, version):
            pass

    def iterate(name):
        if who == "iterate" and trouble[0]:
            raise RuntimeError("iterate refused")
        return np.ones(10, np.float32)

    tensors = {"w": ravel.RefitTensor(shape=(10,), dtype="f32")}

    def work(comm):
        loader = Loader()
        refit = ravel.Refit(comm, source=tensors, iterate=iterate) if comm.rank == 0 else \
            ravel.Refit(comm, sink=tensors, loader=loader)
        mine = (who == "iterate") == (comm.rank == 0)
        with pytest.raises(RuntimeError if mine else ravel.Error, match=f"{who} refused"):
            refit.update(1)
        assert refit.version == 0 and not refit.lost and loader.done == 0
        comm.barrier()
        trouble[0] = False
        comm.barrier()
        refit.update(2)
        return loader.done

    assert ravel.comm.threads(2, work, timeout=30) == [0, 2]


def test_over_a_transport_of_callbacks():
    want = np.arange(5000, dtype=np.float64)

    def work(transport):
        with ravel.comm.callbacks(transport, timeout=30) as comm:
            if transport.rank == 0:
                return ravel.refit(comm, source={"w": want}).bytes_needed
            mine = np.zeros(5000)
            ravel.refit(comm, sink={"w": mine})
            return np.array_equal(mine, want)

    assert on_threads(queues(3), work) == [2 * want.nbytes, True, True]


def test_a_lost_peer_leaves_the_old_version():
    def work(transport):
        comm = ravel.comm.callbacks(transport, timeout=60)
        mine = np.zeros(1000)
        refit = ravel.Refit(comm, source={"w": np.ones(1000)}) if transport.rank == 0 else \
            ravel.Refit(comm, sink={"w": mine}, version=9)
        if transport.rank == 0:
            transport.break_at = transport.messages + 3
        with pytest.raises((ConnectionResetError, TimeoutError, ravel.PeerError)):
            refit.update(10)
        return refit.lost and (transport.rank == 0 or refit.version == 9)

    assert on_threads(queues(2), work) == [True, True]


def test_differences_are_listed():
    def work(comm):
        side = {"source": {"a": np.zeros(3), "b": np.zeros(2)}} if comm.rank == 0 else {"sink": {"a": np.zeros(4), "c": np.zeros(2)}}
        with pytest.raises(ravel.DataError) as caught:
            ravel.Refit(comm, **side)
        return str(caught.value)

    said = ravel.comm.threads(2, work, timeout=30)
    assert said[0] == said[1] and "a" in said[0] and "c" in said[0]


def test_what_is_wrong_here_fails_the_others_too():
    def work(comm):
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        if comm.rank == 1:
            with pytest.raises(ValueError, match="read-only"):
                ravel.Refit(comm, sink={"w": frozen})
        else:
            with pytest.raises(ravel.Error, match="read-only"):
                ravel.Refit(comm, source={"w": np.zeros(3)})
        return comm.allreduce(np.array([1]))[0]

    assert ravel.comm.threads(2, work, timeout=30) == [2, 2]


@pytest.mark.parametrize("make, error, says", [
    (lambda c: ravel.RefitTensor(), TypeError, "shape and dtype"),
    (lambda c: ravel.RefitTensor(np.zeros((2, 2)), dims=(2,)), ValueError, "dimensions"),
    (lambda c: ravel.RefitTensor(np.zeros((1,) * 7)), ValueError, "at most"),
    (lambda c: ravel.RefitTensor(np.zeros(2), dtype="bf16"), TypeError, "cannot be bf16"),
    (lambda c: ravel.Refit(c, source={"w": np.zeros((3, 3))[::-1]}), ValueError, "backwards"),
    (lambda c: ravel.Refit(c, source={"w": ravel.RefitTensor(np.zeros(3), dims=(8,), parts=(2,))}), ValueError, "part of"),
    (lambda c: ravel.Refit(c, source={"w": np.zeros(3)}, num_bufers=3), ravel.ArgumentError, "did you mean"),
    (lambda c: ravel.Refit(c, source={"w": np.zeros(3)}, num_buffers=99), ravel.ArgumentError, "num"),
    (lambda c: ravel.Refit(c, source={"w": ravel.RefitTensor(shape=(3,), dtype="f32")}), ValueError, "no data"),
    (lambda c: ravel.Refit(c, iterate=lambda name: None), TypeError, "needs a source"),
    (lambda c: ravel.RefitRule("x", "y", join="sum"), ValueError, "must be one of"),
    (lambda c: ravel.refit_rules("sglong", heads=4, kv_heads=2), ValueError, "vllm"),
])
def test_bad_input_is_an_exception_with_a_sentence(make, error, says):
    with pytest.raises(error, match=says):
        make(ravel.comm.self())


def test_fused_tensors_by_rules():
    parts = {f"model.layers.0.mlp.{n}_proj.weight": np.random.default_rng(i).standard_normal((6, 4)).astype(np.float32)
             for i, n in enumerate(("gate", "up"))}
    fused = "model.layers.0.mlp.gate_up_proj.weight"
    rules = ravel.refit_rules("vllm", heads=4, kv_heads=2)
    assert any(rule.name.endswith("gate_up_proj.weight") and len(rule.parts) == 2 for rule in rules)
    got = run([lambda comm: ravel.Refit(comm, source=parts)],
              [lambda comm: ravel.Refit(comm, sink={fused: np.zeros((12, 4), np.float32)}, sink_rules=rules)])
    assert np.array_equal(got[0][fused], np.vstack(list(parts.values())))
    own = ravel.RefitRule("model.layers.*.mlp.gate_up_proj.weight", ["model.layers.*.mlp.gate_proj.weight",
                                                                     "model.layers.*.mlp.up_proj.weight"])
    got = run([lambda comm: ravel.Refit(comm, source=parts)],
              [lambda comm: ravel.Refit(comm, sink={fused: np.zeros((12, 4), np.float32)}, sink_rules=[own])])
    assert np.array_equal(got[0][fused], np.vstack(list(parts.values())))


def test_trace_progress_and_metrics_rows():
    seen = []

    def work(comm):
        side = {"source": {"w": np.ones(50000)}} if comm.rank == 0 else {"sink": {"w": np.zeros(50000)}}
        with ravel.Refit(comm, trace=True, buffer_bytes=65536, progress=lambda d, t: seen.append((d, t)), **side) as refit:
            report = refit.update(1)
            assert set(report.metrics()) <= {row.name for row in ravel.metrics.rows()}
            return json.loads(refit.trace())

    traces = ravel.comm.threads(2, work, timeout=30)
    assert all(traces) and all(0 <= done <= total == 400000 for done, total in seen) and (400000, 400000) in seen


def test_between_processes_with_mpi4py():
    mpi = pytest.importorskip("mpi4py", reason="mpi4py is not installed: its communicator was not tried")
    del mpi
    import shutil
    launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if launcher is None:
        pytest.skip("there is no mpirun: mpi4py's communicator was not tried")
    code = ("from mpi4py import MPI; import numpy as np, ravel\n"
            "c = ravel.comm.from_mpi4py(MPI.COMM_WORLD, timeout=30)\n"
            "assert c.split(c.rank % 2).size >= 1\n"
            "w = np.arange(9.0) if c.rank == 0 else np.zeros(9)\n"
            "ravel.refit(c, **({'source': {'w': w}} if c.rank == 0 else {'sink': {'w': w}}))\n"
            "assert w.tolist() == list(range(9)); c.barrier(); print('fine', end=' ', flush=True)\n")
    import os
    path = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": path,
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    done = subprocess.run([launcher, "-n", "3", sys.executable, "-c", code], env=env, text=True, capture_output=True,
                          timeout=300)
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr


def test_between_processes_with_torch_distributed(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: its groups were not tried")
    code = ("import sys, torch, torch.distributed as dist, numpy as np, ravel\n"
            "rank = int(sys.argv[1])\n"
            "dist.init_process_group('gloo', init_method='file://' + sys.argv[2], rank=rank, world_size=3)\n"
            "for group in (None, dist.new_group([0, 1, 2])):\n"
            "    c = ravel.comm.from_torch(group, timeout=60)\n"
            "    assert c.split(c.rank % 2).size >= 1 and c.allreduce(np.array([c.rank]))[0] == 3\n"
            "    w = torch.arange(9, dtype=torch.bfloat16) if rank == 0 else torch.zeros(9, dtype=torch.bfloat16)\n"
            "    ravel.refit(c, **({'source': {'w': w}} if rank == 0 else {'sink': {'w': w}}))\n"
            "    assert w.tolist() == list(range(9)); c.barrier()\n"
            "dist.barrier(); dist.destroy_process_group(); print('fine')\n")
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(r), str(tmp_path / "meet")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(3)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 and "fine" in text for rank, text in zip(ranks, said)), "\n".join(said)
