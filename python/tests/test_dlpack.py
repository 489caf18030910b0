"""Arrays in and out without copies: DLPack, the buffer protocol, torch where it is installed."""

import array

import numpy as np
import pytest

import ravel
from ravel._lib import as_array, host_array


class Foreign:
    """A tensor of another library: all that is known of it is DLPack."""

    def __init__(self, data, device=(1, 0)):
        self.data, self.device = data, device

    def __dlpack__(self, stream=None):
        return self.data.__dlpack__()

    def __dlpack_device__(self):
        return self.device


def test_no_copies():
    data = np.arange(1, 9)
    assert np.shares_memory(as_array(Foreign(data), np.int64, "x"), data)
    assert np.shares_memory(as_array(data, np.int64, "x"), data)
    assert np.shares_memory(as_array(memoryview(data), np.int64, "x"), data)
    words = array.array("q", [1, 2, 3])
    as_array(words, np.int64, "x").flags.writeable = False
    assert host_array(words, "x").ctypes.data == words.buffer_info()[0]


def test_foreign_tensors_everywhere():
    lengths, ids = np.array([3, 4, 5]), np.arange(12, dtype=np.int32)
    assert ravel.plan(Foreign(lengths), budget=8).digest == ravel.plan(lengths, budget=8).digest
    store = ravel.Ragged(Foreign(lengths), tokens=Foreign(ids))
    assert np.shares_memory(store.fields["tokens"].data, ids)
    batch = ravel.pack(store, [2, 0, 1])
    assert ravel.scatter(store, batch, Foreign(batch["tokens"])).tolist() == ids.tolist()
    assert np.shares_memory(np.from_dlpack(batch["tokens"]), batch["tokens"])  # and out again
    whole = np.arange(16)
    assert ravel.cp_shard(Foreign(whole), [0, 8, 16], 1, 2).tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    sums = ravel.comm.threads(2, lambda comm: comm.allreduce(Foreign(np.arange(3))).tolist())
    assert sums == [[0, 2, 4]] * 2
    target = np.zeros(12, np.int32)

    def work(comm):
        ravel.refit(comm, **({"source": {"w": Foreign(ids)}} if comm.rank == 0 else {"sink": {"w": Foreign(target)}}))

    ravel.comm.threads(2, work, timeout=30)
    assert np.array_equal(target, ids)


def test_devices_are_refused_with_a_sentence():
    with pytest.raises(TypeError, match="lengths is on a CUDA device"):
        ravel.plan(Foreign(np.arange(3), (2, 0)), budget=8)


def test_misaligned_and_byteswapped_arrays():
    raw = np.zeros(33, np.uint8)
    odd = raw[1:].view(np.int64)
    odd[:] = [3, 4, 5, 6]
    want = ravel.plan([3, 4, 5, 6], budget=9).digest
    assert ravel.plan(odd, budget=9).digest == want
    assert ravel.plan(np.array([3, 4, 5, 6], ">i8"), budget=9).digest == want
    assert ravel.plan(np.array([3, 4, 5, 6], np.uint64), budget=9).digest == want


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: its tensors were not tried")
    lengths, ids = torch.tensor([3, 4, 5]), torch.arange(12, dtype=torch.int32)
    assert ravel.plan(lengths, budget=8).digest == ravel.plan([3, 4, 5], budget=8).digest
    store = ravel.Ragged(lengths, tokens=ids)
    assert store.fields["tokens"].data.ctypes.data == ids.data_ptr()
    batch = ravel.pack(store, [1, 0]).torch()
    assert batch["tokens"].tolist() == [3, 4, 5, 6, 0, 1, 2]
    weights, target = torch.randn(5, 4, dtype=torch.bfloat16, requires_grad=True), torch.zeros(5, 4, dtype=torch.bfloat16)

    def work(comm):
        ravel.refit(comm, **({"source": {"w": weights}} if comm.rank == 0 else {"sink": {"w": target}}))

    ravel.comm.threads(2, work, timeout=30)
    assert torch.equal(weights.detach(), target)
