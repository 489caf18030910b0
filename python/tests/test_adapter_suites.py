"""What the frameworks' own tests ask of the adapters, called as those tests and the frameworks' code call them."""

import types

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ravel.adapters import areal, huggingface, nemo_rl, slime

# ---- AReaL: allocate_balanced_mbs, redistribute and the train controller (4aef98d8) -----------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(100, 400), st.integers(1, 6),
       st.sampled_from([1, 2, 4]))
def test_areal_groups(values, capacity, least, divisor):
    try:
        groups = areal.ffd_allocate(np.array(values), capacity, min_groups=least, n_groups_divisor=divisor)
    except RuntimeError as refused:
        assert "smaller than min_groups" in str(refused) or "cannot fill" in str(refused)
        return
    assert sorted(i for g in groups for i in g) == list(range(len(values))) and all(groups)
    assert len(groups) >= least and len(groups) % divisor == 0 and all(type(i) is int for g in groups for i in g)
    assert max(sum(values[i] for i in g) for g in groups) <= capacity
    more = len(groups) + divisor  # another rank needs more: allocate_balanced_mbs_synced asks again
    if more <= len(values):
        assert len(areal.ffd_allocate(values, capacity, min_groups=more, n_groups_divisor=divisor)) == more


def test_areal_groups_are_even():
    values = np.random.default_rng(3).integers(50, 2048, 200).tolist()
    groups = areal.kk_allocate(values, capacity=int(1e12), min_groups=8)  # no capacity: dealt to 8 ranks
    sums = [sum(values[i] for i in g) for g in groups]
    assert len(groups) == 8 and max(sums) - min(sums) <= 8
    assert areal.ffd_allocate(values, capacity=int(1e12), min_groups=8) == groups  # ranks agree: the same every time
    equal = areal.kk_allocate(values, capacity=int(1e12), min_groups=8, equal_size=True)
    assert {len(g) for g in equal} == {25}
    assert len(areal.kk_allocate([100] * 10, capacity=120, min_groups=1, n_groups_divisor=8)) == 10  # one each, as theirs
    parts = areal.balanced_greedy_partition(values, K=8)
    sums = [sum(values[i] for i in g) for g in parts]
    assert {len(g) for g in parts} == {25} and max(sums) - min(sums) <= 8


@pytest.mark.parametrize("call, error, says", [
    (lambda: areal.ffd_allocate([100, 600], 500, 1), RuntimeError, "value 1 is 600, which is larger than capacity 500"),
    (lambda: areal.kk_allocate([10], 100, 5), RuntimeError, "smaller than min_groups 5"),
    (lambda: areal.ffd_allocate([60] * 5, 100, 1, 4), RuntimeError, "cannot fill 8 groups"),
    (lambda: areal.kk_allocate([1, 2, 3, 4, 5], int(1e12), 3, equal_size=True), RuntimeError, "no multiple of 3"),
    (lambda: areal.balanced_greedy_partition([1, 2, 3], 5), ValueError, "must be >= K"),
    (lambda: areal.balanced_greedy_partition([1, 2, 3], 2), ValueError, "must be divisible by K")])
def test_areal_refuses_what_areal_does(call, error, says):
    with pytest.raises(error, match=says):
        call()


# ---- slime: test_balance_data_distributes_by_flops (624b824a) ---------------------------------------------------------


def test_slime_partition_is_at_least_as_even_as_slimes():
    lengths = [1, 2, 3, 4, 5, 7, 9, 10]
    theirs = [[1, 2, 5, 6], [0, 3, 4, 7]]  # what the test compares with
    args = types.SimpleNamespace(micro_batch_size=1, use_dynamic_batch_size=False, balance_data=True, balance_by_flops=False)
    parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    ours, _, counts, _ = slime.build_dp_schedule(args, parallel, lengths, global_batch_size=8, rollout_indices=range(8))

    def slowest(parts):
        return max(sum(24576 * lengths[i] + lengths[i] ** 2 for i in part) for part in parts)

    assert counts == [4] and sorted(sum(ours, [])) == list(range(8)) and slowest(ours) <= slowest(theirs)


# ---- NeMo-RL: test_sequence_packing_executes_bins_largest_first (7ea279ab) ---------------------------------------------


def test_nemo_names_give_nemos_bins_and_ravel_is_more_even():
    lengths = [46, 24, 55, 88, 11, 14, 73, 17]

    def sums(algorithm):
        packer = nemo_rl.get_packer(algorithm, 100, min_bin_count=2, bin_count_multiple=2)
        return [sum(lengths[i] for i in part) for part in packer.pack(lengths)]

    assert sorted(sums("modified_first_fit_decreasing")) == [46, 87, 96, 99]  # the test's own
    ours = sums("ravel")
    assert sum(ours) == sum(lengths) and len(ours) == 4
    assert max(ours[:2]) + max(ours[2:]) < 99 + 96  # bins 0 and 1 run side by side, then 2 and 3


# ---- transformers: TestDataCollatorWithFlattening.test_basic_flattening (d56c55bf) -------------------------------------


def test_flattening_collator_has_the_defaults_of_theirs():
    features = [{"input_ids": [10, 11, 12]}, {"input_ids": [20, 21]}]
    out = huggingface.FlatteningCollator(return_tensors="np")(features)
    assert set(out) == {"input_ids", "labels", "position_ids"}
    asked = huggingface.FlatteningCollator("np", return_flash_attn_kwargs=True, position_ids_start=2)(features)
    assert asked["cu_seq_lens_q"].tolist() == [0, 3, 5] and asked["position_ids"].tolist() == [[2, 3, 4, 2, 3]]


# ---- TRL: data sets in memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_trl_data_in_memory_come_out_as_through_map(strategy):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: its map was not compared")
    from ravel.adapters import trl

    rng = np.random.default_rng(5)
    rows = [rng.integers(0, 3, n).tolist() for n in rng.integers(0, 30, 90)]
    kind = datasets.Features({"input_ids": datasets.List(datasets.Value("int32")),
                              "labels": datasets.List(datasets.ClassLabel(names=["a", "b", "c"]))})
    data = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows}, features=kind, split="train")
    for options in ({}, {"batch_size": 40}, {"batch_size": None, "desc": "packing", "num_proc": None}):
        fast = trl.pack_dataset(data, 16, strategy, options)
        slow = trl.pack_dataset(data, 16, strategy, {**options, "writer_batch_size": 50})  # which only map knows
        assert fast.to_dict() == slow.to_dict() and fast.features == slow.features and fast.split == slow.split
        again = trl.pack_dataset(data, 16, strategy, options)
        assert fast._fingerprint == again._fingerprint != trl.pack_dataset(data, 12, strategy, options)._fingerprint
    picked = data.select(range(80, 5, -1))  # rows by index: through map
    assert trl.pack_dataset(picked, 16, strategy).to_dict() == \
        trl.pack_dataset(datasets.Dataset.from_dict(picked.to_dict()), 16, strategy).to_dict()
