"""The peers' call shapes: what they document, and the hard cap."""

import numpy as np
import pytest
import ravel
from hypothesis import given, settings, strategies as st

from ravel.adapters import huggingface, megatron, nemo_rl, trl, verl

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 8), st.booleans())
def test_verl_partitions(lengths, k, equal):
    if equal:
        lengths = lengths[:len(lengths) // k * k]
    if len(lengths) < k:
        with pytest.raises(ValueError):
            verl.get_seqlen_balanced_partitions(lengths, k, equal)
        return
    parts = verl.get_seqlen_balanced_partitions(lengths, k, equal)
    assert len(parts) == k and all(parts) and sorted(i for p in parts for i in p) == list(range(len(lengths)))
    assert all(p == sorted(p) for p in parts)
    if equal:
        assert {len(p) for p in parts} == {len(lengths) // k}
    else:
        sums = [sum(lengths[i] for i in p) for p in parts]
        assert max(sums) - min(sums) <= max(lengths)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.integers(0, 5))
def test_verl_micro_batches_keep_the_budget(lengths, multiple, least):
    parts = verl.get_micro_batch_indices(lengths, 128, num_batches_divided_by=multiple, min_num_micro_batch=least)
    assert len(parts) % multiple == 0 and len(parts) >= least
    assert all(sum(lengths[i] for i in p) <= 128 for p in parts)
    flat = [i for p in parts for i in p]
    assert sorted(flat) == list(range(len(lengths)))
    assert np.array_equal(np.asarray(flat)[verl.restore_order(parts)], np.arange(len(lengths)))


def test_verl_rearranges_rows():
    mask = np.zeros((5, 10), np.int64)
    for row, n in enumerate([3, 9, 5, 1, 7]):
        mask[row, :n] = 1

    class Rows(dict):
        def __getitem__(self, key):
            return super().__getitem__(key) if isinstance(key, str) else Rows({k: v[key] for k, v in self.items()})

    batches, indices = verl.rearrange_micro_batches(Rows(attention_mask=mask), 10)
    assert [b["attention_mask"].sum() for b in batches] == [int(mask[i].sum()) for i in indices]
    assert all(b["attention_mask"].sum() <= 10 for b in batches)


@pytest.mark.parametrize("algorithm", sorted(nemo_rl.ALGORITHMS))
def test_nemo_packers(algorithm):
    lengths = np.random.default_rng(2).integers(1, 100, 200).tolist()
    packer = nemo_rl.get_packer(algorithm, 128, collect_metrics=True, min_bin_count=10, bin_count_multiple=8)
    bins = packer.pack(lengths)
    assert all(bins) and len(bins) % 8 == 0 and sorted(i for b in bins for i in b) == list(range(200))
    assert all(sum(lengths[i] for i in b) <= 128 for b in bins)
    stats = packer.get_aggregated_metrics()
    assert stats["total_sequences"] == 200 and 0.5 < stats["average_utilization"] <= 1
    one = packer.compute_metrics(lengths, bins)
    assert one["num_bins"] == len(bins) and one["total_waste"] == len(bins) * 128 - sum(lengths)
    assert 0 < one["bin_efficiency"] <= 1 and one["waste_ratio"] == pytest.approx(1 - one["average_utilization"])
    with pytest.raises(ValueError, match="exceeds"):
        packer.pack([200])
    with pytest.raises(ValueError, match="cannot fill"):
        packer.pack([1, 2])


def test_nemo_concatenative_keeps_the_order():
    bins = nemo_rl.get_packer("concatenative", 5).pack([4, 1, 3, 2, 1, 3, 4, 5])
    assert bins == [[0, 1], [2, 3], [4, 5], [6], [7]]


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.sampled_from([1, 2]), st.sampled_from([None, 2]))
def test_megatron_groups(lengths, dp, cp, group):
    scheduler = megatron.RavelScheduler(100, cp, dp, group)
    pairs = [(1000 + i, n) for i, n in enumerate(lengths)]
    steps = scheduler.get_groups_and_subsamples(pairs)
    assert len(steps) % (group or 1) == 0 and all(len(step) == dp * cp for step in steps)
    seen = [i for step in steps for rank in step[::cp] for i in rank]
    assert sorted(seen) == [p[0] for p in pairs]
    for step in steps:
        for rank in range(dp * cp):
            assert step[rank] == step[rank // cp * cp]
            assert sum(lengths[i - 1000] for i in step[rank]) <= 100 * cp


def test_megatron_scheduler_goes_in_front_of_megatrons():
    class Theirs:
        def run(self):
            return self.get_groups_and_subsamples([(i, 10) for i in range(8)]), self.max_seq_len_all_ranks

    class Scheduler(megatron.RavelScheduler, Theirs):
        pass

    steps, most = Scheduler(40, 1, 2, None, 2).run()
    assert most == 40 and all(len(rank) <= 2 for step in steps for rank in step)
    batch = ravel.pack(ravel.Ragged([3, 4], tokens=np.arange(7)), [0, 1], align=4)
    assert megatron.packed_seq_params(batch)["cu_seqlens_q_padded"].tolist() == [0, 4, 8]


def test_verl_ranks_agree_through_torch_distributed(monkeypatch):
    """Two ranks with unlike batches get as many micro-batches; a rank that cannot plan fails the other one too."""
    import sys
    import types
    said = {}

    class Value(list):
        def item(self):
            return self[0]

    def all_reduce(value, op, group):
        said.setdefault(group, []).append(value[0])
        value[0] = max(value[0], peers[group])

    dist = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_backend=lambda g: "gloo",
                                 ReduceOp=types.SimpleNamespace(MAX="max"), all_reduce=all_reduce)
    torch = types.SimpleNamespace(tensor=lambda v, dtype: Value(v), int64="int64", distributed=dist)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    peers = {"a": 5, "b": 1 << 40}
    parts = verl.get_micro_batch_indices([10] * 8, 40, "a")
    assert len(parts) == 5 and said["a"] == [2]
    with pytest.raises(RuntimeError, match="another rank"):
        verl.get_micro_batch_indices([10] * 8, 40, "b")
    with pytest.raises(ravel.OversizeError):
        verl.get_micro_batch_indices([10, 50], 40, "a")
    assert said["a"][-1] == 1 << 40
    assert len(verl.get_micro_batch_indices([10] * 8, 40, "a", same_micro_num_in_dp=False)) == 2


def test_trl_dataset():
    class Rows(dict):
        column_names = ["input_ids"]

        def map(self, function, batched, remove_columns):
            assert batched and remove_columns == ["input_ids"]
            return function(self)

    rows = Rows(input_ids=[[1] * 3, [2] * 5, [3] * 4])
    assert sorted(map(sum, trl.pack_dataset(rows, 8)["seq_lengths"])) == [4, 8]
    assert list(map(len, trl.pack_dataset(rows, 5, "wrapped")["input_ids"])) == [5, 5, 2]
    assert sum(map(len, trl.pack_dataset(rows, 4, "bfd_truncate")["input_ids"])) == 11
    with pytest.raises(ValueError, match="must be one of"):
        trl.pack_dataset(rows, 8, "ffd")


def test_trl_rows():
    rows = {"input_ids": [[1] * 3, [2] * 5, [3] * 4, []], "labels": [[1] * 3, [2] * 5, [3] * 4, []]}
    out = trl.pack_examples(rows, 8)
    assert [len(r) for r in out["input_ids"]] == [sum(n) for n in out["seq_lengths"]] and len(out["input_ids"]) == 2
    assert sorted(x for r in out["input_ids"] for x in r) == sorted(x for r in rows["input_ids"] for x in r)
    with pytest.raises(ValueError, match="row 1"):
        trl.pack_examples(rows, 4)
    assert sum(map(len, trl.pack_examples(rows, 4, overflow="truncate")["input_ids"])) == 11
    assert sum(map(len, trl.pack_examples(rows, 4, overflow="split")["input_ids"])) == 12


def test_collator():
    out = huggingface.PackingCollator(tensors="np")([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [8, -100]}])
    assert out["input_ids"].tolist() == [[5, 6, 7, 8, 9]] and out["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert out["labels"].tolist() == [[-100, 6, 7, -100, -100]]
    assert out["cu_seq_lens_q"].tolist() == [0, 3, 5] and out["max_length_k"] == 3
    out = huggingface.PackingCollator(tensors="np", align=4, return_seq_idx=True)([{"input_ids": [5, 6, 7]}])
    assert out["seq_idx"].tolist() == [[0, 0, 0, -1]] and out["labels"].tolist() == [[-100, 6, 7, -100]]
