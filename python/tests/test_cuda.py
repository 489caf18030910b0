"""Arrays on a CUDA device, over the stub driver and the mock of NCCL: host memory behind streams that move only when somebody
waits for them, so that a missing order between two streams gives old bytes. tests/gpu/torch_tensors.py does the same on a GPU."""

import ctypes as C
import gc
import os
import pathlib
import threading

import numpy as np
import pytest

import ravel
from ravel import _device, _dlpack, _lib

STUB = pathlib.Path(os.environ.get("RAVEL_STUB") or
                    pathlib.Path(__file__).resolve().parents[2] / "build" / "libravel_stub.so")
ALLOC, COPY, ORDER, REFUSED = 1, 3, 8, 7  # of tests/unit/stub_driver.h
BF16, F8 = (4, 16), (10, 8)  # DLPack's types that numpy lacks


@pytest.fixture(scope="module", autouse=True)
def stub():
    if not STUB.exists():
        pytest.skip(f"{STUB} is not there (make {STUB}): devices were not tried")
    before = {name: os.environ.get(name) for name in ("RAVEL_CUDA_MODULE", "RAVEL_NCCL_MODULE")}
    os.environ.update(dict.fromkeys(before, str(STUB)))
    library = C.CDLL(str(STUB))
    library.stub_live.restype = library.stub_count.restype = C.c_int64
    yield library
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


# ---- a tensor of another library: only DLPack is known of it ---------------------------------------------------------


class DLTensor(C.Structure):  # dlpack.h, written down here a second time: the package's own structs are under test
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.c_void_p),
                ("strides", C.c_void_p), ("byte_offset", C.c_uint64)]


class Old(C.Structure):
    _fields_ = [("t", DLTensor), ("context", C.c_void_p), ("deleter", C.c_void_p)]


class Versioned(C.Structure):
    _fields_ = [("major", C.c_uint32), ("minor", C.c_uint32), ("context", C.c_void_p), ("deleter", C.c_void_p),
                ("flags", C.c_uint64), ("t", DLTensor)]


def new_capsule(address, name):
    make = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(("PyCapsule_New", C.pythonapi))
    return make(address, name, None)


alive = set()  # exported and not deleted: an exporter keeps those


class Foreign:
    """A numpy array's memory as a CUDA tensor. ``streams`` are those that were asked for; ``deleted`` counts deleter calls."""

    def __init__(self, data, device=(2, 0), versioned=True, dtype=None, flags=0, major=1, strides=True, lanes=1):
        self.data, self.device, self.versioned = data, device, versioned
        kind = {"i": 0, "u": 1, "f": 2, "b": 6}[data.dtype.kind]
        self.type = dtype or (kind, data.itemsize * 8)
        self.flags, self.major, self.has_strides, self.lanes = flags, major, strides, lanes
        self.streams, self.deleted, self.keep = [], 0, []

    def __len__(self):
        return len(self.data)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **later):
        if later and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        assert not later or later["max_version"][0] == 1
        self.streams.append(stream)
        deleter = C.CFUNCTYPE(None, C.c_void_p)(self.delete)
        n = self.data.ndim
        shape = (C.c_int64 * max(1, n))(*self.data.shape)
        strides = (C.c_int64 * max(1, n))(*[s // self.data.itemsize for s in self.data.strides])
        tensor = DLTensor(self.data.ctypes.data - 8, *self.device, n, *self.type, self.lanes, C.addressof(shape),
                          C.addressof(strides) if self.has_strides else None, 8)
        if later:
            made = Versioned(self.major, 3, None, C.cast(deleter, C.c_void_p), self.flags, tensor)
        else:
            made = Old(tensor, None, C.cast(deleter, C.c_void_p))
        name = C.create_string_buffer(b"dltensor_versioned" if later else b"dltensor")
        alive.add(self)
        self.keep.append((made, deleter, shape, strides, name))
        return new_capsule(C.addressof(made), C.cast(name, C.c_char_p))

    def delete(self, _address):
        self.deleted += 1
        alive.discard(self)


def deleted(foreign):
    gc.collect()
    return foreign.deleted


def lengths_and_ids(seed=1):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 12)
    return lengths, rng.integers(0, 1000, int(lengths.sum())).astype(np.int32)


# ---- capsules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False])
def test_both_forms_of_capsule_are_taken_and_given_back_once(versioned):
    lengths, ids = lengths_and_ids()
    foreign = Foreign(ids, versioned=versioned)
    store = ravel.Ragged(lengths, tokens=foreign)
    assert store.fields["tokens"].data.pointer == ids.ctypes.data  # no copy; byte_offset counts
    assert str(store.device) == "cuda:0" and deleted(foreign) == 0
    batch = ravel.pack(store, [3, 0])
    del store
    assert batch.tokens.numpy().tolist() == np.concatenate([np.split(ids, np.cumsum(lengths)[:-1])[i] for i in (3, 0)]).tolist()
    assert deleted(foreign) == 1


def test_what_is_refused_is_given_back_once():
    ids = np.arange(12, dtype=np.int32)
    cases = [(Foreign(ids, major=2), BufferError, "DLPack 2.3"), (Foreign(ids, dtype=(3, 64)), TypeError, "type 3 of 64 bits"),
             (Foreign(ids, lanes=4), TypeError, "4 lanes"), (Foreign(ids[::2]), ValueError, "tokens is on cuda:0 and has holes"),
             (Foreign(ids.reshape(2, 3, 2)), ValueError, "must be flat"), (Foreign(ids[:5]), ValueError, "5 elements"),
             (Foreign(ids, versioned=False, dtype=(0, 12)), TypeError, "0 of 12 bits")]
    for foreign, kind, sentence in cases:
        with pytest.raises(kind, match=sentence):
            ravel.Ragged([12], tokens=foreign)
        assert deleted(foreign) == 1, sentence
    for device, words in [((10, 0), "a ROCm device"), ((99, 0), "another device")]:
        other = Foreign(ids, device=device)
        with pytest.raises(TypeError, match=words):
            ravel.Ragged([12], tokens=other)
        assert other.streams == []  # it was not asked
    taken = Foreign(ids).__dlpack__()
    one = type("Again", (), {"__dlpack__": lambda self, **_: taken, "__dlpack_device__": lambda self: (2, 0)})()
    ravel.Ragged([12], tokens=one)
    with pytest.raises(BufferError, match="that nobody took yet"):
        ravel.Ragged([12], tokens=one)


def test_host_tensors_come_the_same_way():
    data = np.arange(24, dtype=np.int16).reshape(4, 6)[::-2, 1::2]
    for versioned in (True, False):
        foreign = Foreign(data, device=(1, 0), versioned=versioned)
        array = _lib.host_array(foreign, "x")
        assert array.tolist() == data.tolist() and np.shares_memory(array, data) and array.flags.writeable
        view = array[1:]
        del array
        assert deleted(foreign) == 0 and view.tolist() == data[1:].tolist()
        del view
        assert deleted(foreign) == 1
    fixed = Foreign(data, device=(1, 0), flags=1)
    assert not _lib.host_array(fixed, "x").flags.writeable
    plain = Foreign(np.arange(6).reshape(2, 3), device=(1, 0), strides=False)
    assert _lib.host_array(plain, "x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _lib.host_array(Foreign(np.array(7), device=(1, 0)), "x") == 7
    assert _lib.host_array(Foreign(np.zeros((0, 3)), device=(1, 0)), "x").shape == (0, 3)


def test_bf16_without_torch():
    bits = np.arange(7, dtype=np.uint16)
    for device in ((1, 0), (2, 0)):
        store = ravel.Ragged([3, 4], probs=Foreign(bits, device=device, dtype=BF16))
        assert store.fields["probs"].dtype == ravel._abi.RAVEL_BF16
        batch = ravel.pack(store, [1])
        array = batch.probs if device[0] == 1 else batch.probs.numpy()
        assert array.tolist() == [3, 4, 5, 6] and "bf16" in repr(batch)
    with pytest.raises(TypeError, match="dtype bf16"):
        ravel.plan(Foreign(bits, device=(1, 0), dtype=BF16), budget=9)


def test_lengths_stay_on_the_host():
    with pytest.raises(TypeError, match="lengths is on a CUDA device"):
        ravel.plan(Foreign(np.arange(3)), budget=8)


# ---- pack and scatter ------------------------------------------------------------------------------------------------


def stores(seed=2, stream=None):
    """The same samples on the host and on the device: fields of several kinds and widths."""
    lengths, ids = lengths_and_ids(seed)
    rng = np.random.default_rng(seed)
    steps, rewards = rng.random(int(lengths.sum()) - lengths.size).astype(np.float32), rng.random(lengths.size)
    wide = rng.integers(0, 9, (int(lengths.sum()), 3)).astype(np.int64)
    fields = {"tokens": (ids, "token", 0), "labels": (ids, "next", -100), "old": (steps, "step", 0), "reward": (rewards, "sample", 0),
              "wide": (wide, "token", 7)}
    prompts = np.minimum(lengths, 2)
    host = ravel.Ragged(lengths, prompts=prompts, **{n: ravel.Field(n, a, k, p) for n, (a, k, p) in fields.items()})
    there = ravel.Ragged(lengths, prompts=prompts, **{
        n: ravel.Field(n, ravel.DeviceArray.of(a, stream=stream), k, p) for n, (a, k, p) in fields.items()})
    return host, there


@pytest.mark.parametrize("written,packed", [(None, None), (1, 2), (2, 1), (2, None)])
def test_pack_is_the_hosts_in_any_stream(written, packed):
    host, there = stores(stream=written)
    options = {"segments": True, "padding": True, "loss_mask": True, "align": 8}
    want, batch = ravel.pack(host, [5, 1, 7], **options), ravel.pack(there, [5, 1, 7], stream=packed, **options)
    assert set(batch) == set(want) and batch.max_seqlen == want.max_seqlen
    for name in want:
        assert isinstance(batch[name], ravel.DeviceArray) and batch[name].stream == (packed or 1)
        assert batch[name].numpy().tobytes() == want[name].tobytes(), name
    for kind, name in (("token", "tokens"), ("step", "old"), ("sample", "reward"), ("token", "wide")):
        back, other = ravel.scatter(host, want, want[name], kind=kind), ravel.scatter(there, batch, batch[name], kind=kind, stream=2)
        assert other.numpy().tobytes() == back.tobytes(), name
    shard = ravel.cp_shard(batch.tokens, want.cu_seqlens_padded, 1, 2, stream=packed)
    assert shard.numpy().tolist() == ravel.cp_shard(want.tokens, want.cu_seqlens_padded, 1, 2).tolist()
    shards = [ravel.cp_shard(batch.tokens, want.cu_seqlens_padded, rank, 4) for rank in range(4)]
    assert ravel.cp_unshard(shards, want.cu_seqlens_padded, stream=2).numpy().tolist() == want.tokens.tolist()


@pytest.mark.parametrize("side", ["right", "left", "2d"])
def test_pad_is_the_hosts(side):
    host, there = stores(3)
    want, batch = ravel.pad(host, [2, 9], side=side, loss_mask=True), ravel.pad(there, [2, 9], side=side, loss_mask=True, stream=2)
    for name in want:
        assert batch[name].numpy().tobytes() == want[name].tobytes(), name
    assert ravel.scatter(there, batch, batch.tokens).numpy().tolist() == ravel.scatter(host, want, want.tokens).tolist()


def test_results_fill_the_callers_tensor():
    host, there = stores(4)
    batch, want = ravel.pack(there, [1, 3]), ravel.pack(host, [1, 3])
    target = np.full(int(host.lengths.sum()), -1, np.int32)
    out = Foreign(target)
    assert ravel.scatter(there, batch, batch.tokens, out=out, stream=2) is out and out.streams == [2]
    _device.open_device(0).wait(2)
    assert target.tolist() == ravel.scatter(host, want, want.tokens, out=np.full(target.size, -1, np.int32)).tolist()
    assert deleted(out) == 1
    for wrong in (Foreign(target, flags=1), Foreign(target[:-1]), Foreign(target.astype(np.int64)), Foreign(np.repeat(target, 2)[::2])):
        with pytest.raises(ValueError, match="out must be a contiguous, writable array"):
            ravel.scatter(there, batch, batch.tokens, out=wrong)
        assert deleted(wrong) == 1


def test_memory_of_an_earlier_batch_is_used_again(stub):
    host, there = stores(5)
    first = ravel.pack(there, [0, 1, 2, 3])
    where, allocations = first.tokens.pointer, stub.stub_count(ALLOC)
    second = ravel.pack(there, [2, 1], out=first, stream=2)
    assert second.tokens.pointer == where and stub.stub_count(ALLOC) == allocations
    assert second.tokens.numpy().tolist() == ravel.pack(host, [2, 1]).tokens.tolist()


def test_device_memory_comes_back(stub):
    _, there = stores(6)
    ravel.pack(there, [0, 1, 2]).tokens.numpy()
    gc.collect()
    allocations = stub.stub_count(ALLOC)
    for _ in range(20):
        batch = ravel.pack(there, [0, 1, 2])
        batch.tokens.numpy()
        del batch
    gc.collect()
    assert stub.stub_count(ALLOC) <= allocations + 8  # one more set, while the last batch still lives


def test_places_that_do_not_fit_together():
    lengths, ids = lengths_and_ids()
    floats = ids.astype(np.float32)
    with pytest.raises(ValueError, match="tokens is on cuda:0 and weights in host memory; all fields of a store are in one place"):
        ravel.Ragged(lengths, tokens=Foreign(ids), weights=floats)
    with pytest.raises(ValueError, match="tokens is on cuda:0 and weights on cuda:1"):
        ravel.Ragged(lengths, tokens=Foreign(ids), weights=Foreign(floats, device=(2, 1)))
    host, there = ravel.Ragged(lengths, tokens=ids), ravel.Ragged(lengths, tokens=Foreign(ids))
    batch = ravel.pack(there, [0])
    with pytest.raises(ValueError, match="packed is in host memory and this batch on cuda:0"):
        ravel.scatter(there, batch, np.zeros(batch.local_tokens))
    with pytest.raises(ValueError, match="packed is on cuda:1 and this batch on cuda:0"):
        ravel.scatter(there, batch, Foreign(np.zeros(batch.local_tokens), device=(2, 1)))
    with pytest.raises(ValueError, match="packed is on cuda:0 and this batch in host memory"):
        ravel.scatter(host, ravel.pack(host, [0]), batch.tokens)
    with pytest.raises(ValueError, match="out is in host memory and this batch on cuda:0"):
        ravel.scatter(there, batch, batch.tokens, out=np.zeros(ids.size, np.int32))
    with pytest.raises(ValueError, match="stream is for stores on a CUDA device"):
        ravel.pack(host, [0], stream=2)
    with pytest.raises(ValueError, match="pin is for batches in host memory; this store is on cuda:0"):
        ravel.pack(there, [0], pin=True)
    with pytest.raises(ValueError, match="padded rows on cuda:0; cut them there"):
        ravel.Ragged([2, 3], tokens=Foreign(np.zeros((2, 4), np.int32)))
    with pytest.raises(TypeError, match="join them"):
        ravel.Ragged([3], tokens=[Foreign(ids[:3])])
    far = Foreign(ids, device=(2, 2))
    with pytest.raises(ravel.Error, match="cuda:2 cannot be opened"):
        ravel.Ragged(lengths, tokens=far)
    assert far.streams == []


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_the_exporter_hears_of_our_stream():
    lengths, ids = lengths_and_ids()
    foreign = Foreign(ids)
    store = ravel.Ragged(lengths, tokens=foreign)
    batch = ravel.pack(store, [0])
    for stream, heard in ((None, 1), (0, 1), (1, 1), (2, 2), (type("S", (), {"cuda_stream": 2})(), 2),
                          (type("S", (), {"ptr": 2})(), 2), (type("S", (), {"__cuda_stream__": lambda self: (0, 2)})(), 2)):
        packed = Foreign(np.arange(batch.local_tokens))
        ravel.scatter(store, batch, packed, stream=stream)
        assert packed.streams == [heard]
    assert foreign.streams == [1]
    for wrong in (-1, "cuda", 1.5, True):
        with pytest.raises(TypeError, match="stream is"):
            ravel.pack(store, [0], stream=wrong)


def order_calls(stub, body):
    before = stub.stub_count(ORDER)
    body()
    return stub.stub_count(ORDER) - before


@pytest.mark.parametrize("stream,orders", [(None, 1), (1, 1), (2, 0), (-1, 0)])
def test_the_consumers_stream_waits_for_ours(stub, stream, orders):
    array = ravel.DeviceArray.of(np.arange(5), stream=2)
    assert order_calls(stub, lambda: array.__dlpack__(stream=stream)) == orders
    assert array.numpy().tolist() == [0, 1, 2, 3, 4]


def test_what_cannot_be_handed_out():
    array = ravel.DeviceArray.of(np.arange(5))
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        array.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="moves nothing"):
        array.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="copies nothing"):
        array.__dlpack__(copy=True)
    fixed = ravel.DeviceArray.taken(Foreign(np.arange(5), flags=1), "x")
    with pytest.raises(BufferError, match="read-only array needs DLPack 1.0"):
        fixed.__dlpack__()
    assert _dlpack.Taken and _dlpack.take(fixed, "x", 1).read_only
    with pytest.raises(ValueError, match="device is 'tpu'"):
        ravel.DeviceArray.of(np.arange(5), "tpu")


# ---- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_capsules_that_we_make(stub, version):
    gc.collect()
    array = ravel.DeviceArray.of(np.arange(6, dtype=np.int32).reshape(2, 3), stream=2)
    kind = Versioned if version and version >= (1, 0) else Old
    name = b"dltensor_versioned" if kind is Versioned else b"dltensor"
    capsule = array.__dlpack__(stream=2, max_version=version)
    get = C.PYFUNCTYPE(C.c_void_p, C.py_object, C.c_char_p)(("PyCapsule_GetPointer", C.pythonapi))
    made = kind.from_address(get(capsule, name))
    if kind is Versioned:
        assert made.major == 1 and made.flags == 0
    t = made.t
    assert (t.device_type, t.device_id, t.ndim, t.code, t.bits, t.lanes, t.byte_offset) == (2, 0, 2, 0, 32, 1, 0)
    assert list((C.c_int64 * 2).from_address(t.shape)) == [2, 3] and list((C.c_int64 * 2).from_address(t.strides)) == [3, 1]
    exports = len(_dlpack._exports)
    del capsule  # nobody took it: its end gives the memory back
    assert len(_dlpack._exports) == exports - 1
    taken = _dlpack.take(array, "x", 2)
    assert taken.pointer == array.pointer and len(_dlpack._exports) == exports
    pointer, array = array.pointer, None
    gc.collect()
    assert len(_dlpack._exports) == exports  # the consumer holds it
    del taken
    assert len(_dlpack._exports) == exports - 1
    assert ravel.DeviceArray.of(np.arange(6, dtype=np.int32), stream=2).pointer == pointer  # the cache has it again


def test_a_deleter_may_run_in_another_thread():
    array = ravel.DeviceArray.of(np.arange(6))
    exports = len(_dlpack._exports)
    taken = [_dlpack.take(array, "x", 1)]
    thread = threading.Thread(target=taken.clear)
    thread.start()
    thread.join()
    assert len(_dlpack._exports) == exports


def test_memory_is_not_used_again_before_the_consumer_has_read_it():
    """The consumer's copy waits in stream 2; the array is dropped, and its memory written anew in stream 1."""
    array = ravel.DeviceArray.of(np.arange(600, dtype=np.int32), stream=1)
    copy = ravel.DeviceArray.empty(array.device, (600,), array.code, 2)
    copy.assign(array)
    pointer = array.pointer
    del array
    gc.collect()
    again = ravel.DeviceArray.of(np.zeros(600, np.int32), stream=1)
    assert again.pointer == pointer
    assert again.numpy().sum() == 0 and copy.numpy().tolist() == list(range(600))


# ---- communicators ---------------------------------------------------------------------------------------------------


def on_device(values, index):
    return ravel.DeviceArray.of(np.asarray(values), index)


def test_collectives_of_device_arrays():
    def work(host):
        with ravel.comm.nccl(host, host.rank % 2, timeout=30) as comm:
            assert comm.kind == "nccl" and str(comm.device) == f"cuda:{host.rank % 2}"
            mine = on_device(np.arange(4) + 10 * comm.rank, host.rank % 2)
            out = {"sum": comm.allreduce(mine).numpy().tolist(), "all": comm.allgather(mine).numpy().tolist(),
                   "ragged": [a.numpy().tolist() for a in comm.allgatherv(on_device(np.full((comm.rank, 2), comm.rank), host.rank % 2))]}
            root = comm.reduce(mine, "max", 1)
            out["max"] = root.numpy().tolist() if root is not None else None
            parts = [on_device(np.full(comm.rank + r, comm.rank * 10 + r), host.rank % 2) for r in range(comm.size)]
            for part in (pieces := comm.alltoall(parts)):
                assert isinstance(part, ravel.DeviceArray)
            out["to"] = [a.numpy().tolist() for a in pieces]
            out["row"] = comm.reduce_scatter(on_device(np.ones((comm.size, 2)), host.rank % 2)).numpy().tolist()
            comm.broadcast(mine, 2)
            out["cast"] = mine.numpy().tolist()
            half = comm.split(comm.rank // 2)
            assert half is not None and half.device is comm.device
            out["half"] = half.allreduce(mine, in_place=True).numpy().tolist()
            half.close()
            return out

    results = ravel.comm.threads(4, work, timeout=30)
    for rank, out in enumerate(results):
        assert out["sum"] == [60, 64, 68, 72] and out["all"] == [[10 * r + i for i in range(4)] for r in range(4)]
        assert out["ragged"] == [[[r, r]] * r for r in range(4)] and out["max"] == ([30, 31, 32, 33] if rank == 1 else None)
        assert out["to"] == [[r * 10 + rank] * (rank + r) for r in range(4)] and out["row"] == [4.0, 4.0]
        assert out["cast"] == [20, 21, 22, 23] and out["half"] == [40, 42, 44, 46]


def test_arrays_that_cannot_travel():
    host = ravel.comm.self()
    foreign = Foreign(np.arange(3))
    with pytest.raises(ravel.Error, match="arrays in device memory cannot travel over self"):
        host.allreduce(foreign)
    assert deleted(foreign) == 1
    with ravel.comm.nccl(host) as comm:
        with pytest.raises(ravel.Error, match="arrays in host memory cannot travel over nccl"):
            comm.allreduce(np.arange(3))
        for wrong, sentence in ((Foreign(np.arange(3), device=(2, 1)), "array is on cuda:1 and this communicator on cuda:0"),
                                (Foreign(np.arange(6)[::2]), "array must be contiguous"),
                                (Foreign(np.arange(6), flags=1), "array must be contiguous and writable")):
            with pytest.raises(ValueError, match=sentence):
                comm.broadcast(wrong)
            assert deleted(wrong) == 1


# ---- refit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["spare", "undo"])
def test_refit_between_device_tensors(stage):
    rng = np.random.default_rng(7)
    weights = {"w": rng.random((33, 17)).astype(np.float32), "b": rng.integers(0, 60000, 40).astype(np.uint16)}
    holes = np.zeros((33, 34), np.float32)
    sinks = {"w": Foreign(holes[:, 8:25]), "b": Foreign(np.zeros(40, np.uint16), dtype=BF16)}

    def work(comm):
        if comm.rank == 0:
            source = {"w": ravel.DeviceArray.of(weights["w"], stream=2), "b": ravel.DeviceArray.of(weights["b"], dtype="bf16")}
            return ravel.refit(comm, source=source, stream=2).version
        with ravel.Refit(comm, sink=sinks, stage=stage) as session:
            session.update(1)
            live = session.weights
            assert all(isinstance(a, ravel.DeviceArray) for a in live.values())
            assert live["b"].numpy().tolist() == weights["b"].tolist()
        return None

    assert ravel.comm.threads(2, work, timeout=30)[0] == 1
    _device.open_device(0).wait(1)
    assert np.array_equal(holes[:, 8:25], weights["w"]) and holes[:, :8].sum() == holes[:, 25:].sum() == 0
    assert sinks["b"].data.tolist() == weights["b"].tolist()
    assert all(deleted(sink) == 1 and sink.streams == [1] for sink in sinks.values())


def test_tensors_that_come_when_it_is_their_turn():
    values = {f"t{i}": np.arange(9.0) + i for i in range(3)}
    target = {name: np.zeros(9) for name in values}

    def work(comm):
        if comm.rank == 0:
            source = {name: ravel.RefitTensor(shape=[9], dtype="f64", device="cuda") for name in values}
            ravel.refit(comm, source=source, iterate=lambda name: ravel.DeviceArray.of(values[name]))
        else:
            ravel.refit(comm, sink=target)

    ravel.comm.threads(2, work, timeout=30)
    assert all(np.array_equal(target[name], values[name]) for name in values)


def test_tensors_of_one_rank_are_in_one_place():
    def bad(comm):
        ravel.refit(comm, source={"a": Foreign(np.arange(3)), "b": Foreign(np.arange(3), device=(2, 1))})

    with pytest.raises(ValueError, match="a is on cuda:0 and b on cuda:1"):
        ravel.comm.threads(1, bad)
    fixed = Foreign(np.arange(3), flags=1)
    with pytest.raises(ValueError, match="w is read-only"):
        ravel.comm.threads(1, lambda comm: ravel.refit(comm, sink={"w": fixed}))
    assert deleted(fixed) == 1
    with pytest.raises(ValueError, match="gave host memory; cuda:0 was announced"):
        ravel.comm.threads(1, lambda comm: ravel.refit(
            comm, source={"w": ravel.RefitTensor(shape=[3], dtype="i64", device=0)}, sink={"w": np.zeros(3, np.int64)},
            iterate=lambda name: np.arange(3)))


def test_publish_and_pull_between_device_tensors():
    value, target = np.arange(1000, dtype=np.float32), Foreign(np.zeros(1000, np.float32))
    publisher = ravel.Publisher("127.0.0.1:0", {"w": ravel.DeviceArray.of(value, stream=2)}, stream=2)
    publisher.publish(1)
    puller = ravel.Puller(publisher.address, {"w": target})
    puller.wait(30)
    puller.commit()
    assert puller.weights["w"].numpy().tolist() == value.tolist()
    puller.close()
    publisher.close()


# ---- page-locked memory ----------------------------------------------------------------------------------------------


def test_page_locked_batches(stub):
    host, _ = stores(8)
    allocations = stub.stub_count(ALLOC)
    first = ravel.pack(host, [0, 1, 2], pin=True, loss_mask=True)
    assert stub.stub_count(ALLOC) > allocations
    want = ravel.pack(host, [0, 1, 2], loss_mask=True)
    assert all(first[name].tobytes() == want[name].tobytes() for name in want)
    where, allocations = first.tokens.ctypes.data, stub.stub_count(ALLOC)
    second = ravel.pack(host, [1], pin=True, loss_mask=True, out=first)
    assert second.tokens.ctypes.data == where and stub.stub_count(ALLOC) == allocations
    assert second.tokens.tolist() == ravel.pack(host, [1]).tokens.tolist()
    rows = ravel.pad(host, [2, 0], pin=True)
    assert rows.tokens.tolist() == ravel.pad(host, [2, 0]).tokens.tolist()


def test_page_locked_memory_waits_for_copies_from_it(stub):
    block = _device.pinned(4096)
    pointer = block.ctypes.data
    device = _device.open_device(0)
    _device.note_reader(block[:8].view(np.int32), 2)
    stub.stub_hold(1)  # the copy does not move
    try:
        del block
        gc.collect()
        other = _device.pinned(4096)
        assert other.ctypes.data != pointer
    finally:
        stub.stub_hold(0)
    device.wait(2)
    _device.pinned(1)  # looks after what has come back
    assert _device.pinned(4096).ctypes.data == pointer


def test_failures_of_the_driver_are_exceptions(stub):
    _, there = stores(9)
    stub.stub_fail_next(ALLOC, REFUSED)
    with pytest.raises(ravel.Error, match="stub code 7"):
        ravel.DeviceArray.of(np.zeros(1 << 20))
    stub.stub_fail_next(COPY, REFUSED)
    with pytest.raises(ravel.Error, match="copying: stub code 7"):
        ravel.DeviceArray.of(np.zeros(3))
    assert ravel.pack(there, [0]).tokens.numpy().size
