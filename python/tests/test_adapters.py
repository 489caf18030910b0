"""The peers' call shapes: what they document, and the hard cap."""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import ravel
from hypothesis import HealthCheck, given, settings, strategies as st

from ravel.adapters import huggingface, megatron, nemo_rl, trl, verl

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


def test_one_line_after_import_ravel():
    """As the README has it: an adapter is imported when it is named, and none before."""
    code = ("import sys, ravel; assert not any(n.startswith('ravel.adapters.') for n in sys.modules); "
            "assert ravel.adapters.verl.install.__module__ == 'ravel.adapters.verl'; assert not hasattr(ravel.adapters, 'nothing')")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def test_an_older_vllm_runs_beside_the_package(monkeypatch, caplog):
    """vLLM calls the entry point wherever the wheel is installed."""
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.delitem(sys.modules, "ravel.adapters.vllm", raising=False)
    with caplog.at_level("INFO"):
        ravel.adapters.vllm.register()
    assert "needs vLLM 0.32" in caplog.text


# ---- verl ------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(1, 8), st.booleans(),
       st.sampled_from([1, 10**10]))
def test_verl_partitions(sizes, k, equal, scale):
    """Lengths, or workloads of any size: verl calls it with both."""
    sizes = [n * scale for n in sizes[:len(sizes) // k * k if equal else None]]
    if len(sizes) < k:
        with pytest.raises(ValueError, match="cannot be dealt"):
            verl.get_seqlen_balanced_partitions(sizes, k, equal)
        return
    parts = verl.get_seqlen_balanced_partitions(seqlen_list=sizes, k_partitions=k, equal_size=equal)
    assert len(parts) == k and all(parts) and sorted(i for p in parts for i in p) == list(range(len(sizes)))
    assert all(p == sorted(p) and all(type(i) is int for i in p) for p in parts)
    if equal:
        assert {len(p) for p in parts} == {len(sizes) // k}
    else:
        sums = [sum(sizes[i] for i in p) for p in parts]
        assert max(sums) - min(sums) <= max(sizes)


def test_verl_workloads_of_a_large_batch_are_dealt_evenly():
    lengths = np.random.default_rng(0).integers(1, 32768, 4096)
    work = 24576 * lengths + lengths**2  # beyond what a length may be, in one sequence and in all
    parts = verl.get_seqlen_balanced_partitions(work.tolist(), 64, True)
    sums = np.array([work[p].sum() for p in parts])
    assert {len(p) for p in parts} == {64} and sums.max() / sums.mean() < 1.0001


@settings(max_examples=80, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.integers(0, 5), st.booleans(), st.sampled_from(["packed", "padded"]))
def test_verl_micro_batches_keep_the_budget(lengths, multiple, least, balance, layout):
    try:
        parts = verl.get_micro_batch_indices(lengths, 128, num_batches_divided_by=multiple, min_num_micro_batch=least,
                                             use_dynamic_bsz_balance=balance, layout=layout)
    except ValueError as refused:
        assert "none may be empty" in str(refused) and len(lengths) < verl.roundup_divisible(max(least, len(lengths)), multiple)
        return
    assert len(parts) % multiple == 0 and len(parts) >= least and all(parts)
    for part in parts:
        own = [lengths[i] for i in part] or [0]
        assert (sum(own) if layout == "packed" else len(own) * max(own)) <= 128
    flat = [i for p in parts for i in p]
    assert sorted(flat) == list(range(len(lengths)))
    assert np.array_equal(np.asarray(flat)[verl.restore_order(parts)], np.arange(len(lengths)))
    assert verl.restore_dynamic_batch(np.asarray(flat), parts).tolist() == list(range(len(lengths)))


class Rows(dict):
    """The little of TensorDict that is needed: columns by name, rows by index."""

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else Rows({k: v[key] for k, v in self.items()})


def padded_batch(lengths, width):
    mask = (np.arange(width) < np.asarray(lengths)[:, None]).astype(np.int64)
    return Rows(attention_mask=mask, input_ids=np.arange(mask.size).reshape(mask.shape))


def test_verl_rearranges_rows():
    batch = padded_batch([3, 9, 5, 1, 7], 10)
    batches, indices = verl.rearrange_micro_batches(batch, 10)
    assert [b["attention_mask"].sum() for b in batches] == [int(batch["attention_mask"][i].sum()) for i in indices]
    assert all(b["attention_mask"].sum() <= 10 for b in batches)
    with pytest.raises(ravel.OversizeError, match="row 1 has 9 tokens, which exceeds max_token_len 8"):
        verl.rearrange_micro_batches(batch, 8)


@pytest.mark.parametrize("mode, most", [("remove_padding", 10), ("TRUNCATE_PADDING", 10),
                                        ("max_sequence_length_padding", 1)])
def test_verl_dynamic_batches_in_every_padding_mode(mode, most):
    class Proto:  # of verl's DataProto: tensors in batch, rows by select_idxs
        def __init__(self, batch):
            self.batch = batch

        def select_idxs(self, index):
            return Proto(self.batch[index])

    lengths = [3, 9, 5, 1, 7, 2, 2, 2]
    parts, indices = verl.prepare_dynamic_batch(Proto(padded_batch(lengths, 10)), max_token_len=10, padding_mode=mode)
    assert sorted(i for p in indices for i in p) == list(range(8)) and all(len(p) <= most for p in indices)
    for part, index in zip(parts, indices):
        own = part.batch["attention_mask"].sum(-1)
        assert own.tolist() == [lengths[i] for i in index]
        assert own.sum() <= 10 and (mode != "TRUNCATE_PADDING" or len(own) * own.max() <= 10)
    with pytest.raises(ValueError, match="padding_mode is 'none'"):
        verl.prepare_dynamic_batch(Proto(padded_batch(lengths, 10)), 10, padding_mode="none")


def test_verl_inside_verl_selects_rows_with_its_own_tools(monkeypatch):
    asked = []
    tools = types.SimpleNamespace(index_select_tensor_dict=lambda batch, index: asked.append(index) or batch[index])
    monkeypatch.setitem(sys.modules, "verl.utils.tensordict_utils", tools)
    _, indices = verl.rearrange_micro_batches(padded_batch([3, 4, 5], 8), 8)
    assert asked == indices


def test_verl_nested_rows():
    torch = pytest.importorskip("torch", reason="torch is not installed: nested tensors were not tried")
    rows = [torch.arange(n) for n in (3, 9, 5, 1, 7)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    class Nested(dict):
        def __getitem__(self, key):
            return super().__getitem__(key) if isinstance(key, str) else [rows[i] for i in key]

    batches, indices = verl.rearrange_micro_batches(Nested(input_ids=nested), 10)
    assert all(sum(map(len, b)) <= 10 for b in batches)
    done = torch.nested.as_nested_tensor([row for b in batches for row in b], layout=torch.jagged)
    assert [len(r) for r in verl.restore_dynamic_batch(done, indices).unbind()] == [3, 9, 5, 1, 7]
    flat = torch.cat([torch.tensor(i) for i in indices if i])
    assert verl.restore_dynamic_batch(flat, indices).tolist() == [0, 1, 2, 3, 4]


class Ranks:
    """torch and torch.distributed, as far as an all_reduce of ranks that are threads needs them."""

    def __init__(self, monkeypatch, count, backend="gloo"):
        self.meet, self.given = threading.Barrier(count, timeout=60), {}
        self.backend, self.places = backend, []
        dist = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, all_reduce=self.all_reduce,
                                     get_backend=lambda group: self.backend, ReduceOp=types.SimpleNamespace(MAX=max))
        torch = types.SimpleNamespace(tensor=self.tensor, int64="int64", distributed=dist)
        torch.accelerator = types.SimpleNamespace(current_accelerator=lambda: "npu")
        self.torch = torch
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)

    def tensor(self, values, dtype, device):
        self.places.append(device)
        return np.array(values, dtype)

    def all_reduce(self, value, op, group):
        self.given[threading.get_ident()] = value.copy()
        self.meet.wait()
        value[:] = np.max(list(self.given.values()), axis=0)
        self.meet.wait()

    def run(self, *calls):
        """What each rank's call returned or raised."""
        def outcome(call):
            try:
                return call()
            except Exception as raised:
                return raised

        self.given.clear()
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(outcome, calls))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LENGTHS, LENGTHS, st.integers(1, 3), st.integers(0, 12), st.integers(1, 4), st.sampled_from([60, 128, 400]))
def test_verl_ranks_fail_together_or_not_at_all(monkeypatch, one, two, group, least, multiple, budget):
    """As many micro-batches on both ranks, none empty, or a ValueError on both; a rank that stops alone leaves the other in its
    next collective."""
    ranks = Ranks(monkeypatch, 2)
    batches = [one[:max(1, len(one) // group) * group], two[:max(1, len(two) // group) * group]]
    got = ranks.run(*[lambda b=b: verl.rearrange_micro_batches(padded_batch(b, 100), budget, "dp", multiple, True, least, True, group)[1]
                      for b in batches])
    if any(isinstance(g, Exception) for g in got):
        assert all(isinstance(g, ValueError) for g in got)
        assert len({isinstance(g, ravel.OversizeError) for g in got}) == 1
        return
    assert len(got[0]) == len(got[1]) >= least and len(got[0]) % multiple == 0
    for parts, lengths in zip(got, batches):
        assert all(parts) and sorted(sum(parts, [])) == list(range(len(lengths)))
        assert all(sum(lengths[i] for i in part) <= budget for part in parts)


def test_verl_what_one_rank_cannot_do_is_an_error_on_all(monkeypatch):
    ranks = Ranks(monkeypatch, 2)

    def both(one, two, budget, **keywords):
        return ranks.run(*[lambda b=b: verl.rearrange_micro_batches(padded_batch(b, 60), budget, "dp", **keywords) for b in (one, two)])

    few = both([1, 1], [1] * 9, 60, min_num_micro_batch=3)
    assert all(isinstance(error, ValueError) and "3 micro-batches are needed and a rank has 2 rows" in str(error) for error in few)
    here, there = both([10, 50], [10], 40)
    assert str(here).startswith("row 1 has 50 tokens") and str(there).startswith("a row or group of another rank has 50 tokens")
    assert all(isinstance(error, ravel.OversizeError) for error in (here, there))
    here, there = both([1, 1, 1], [1, 1], 40, force_group_size=2)
    assert "3 rows are no multiple" in str(here) and "another rank" in str(there) and isinstance(there, AssertionError)
    alone = ranks.run(*[lambda b=b: verl.get_micro_batch_indices(b, 40, "dp", same_micro_num_in_dp=False) for b in ([10] * 8, [50])])
    assert len(alone[0]) == 2 and isinstance(alone[1], ravel.OversizeError)


def test_verl_counts_are_where_the_group_can_reduce_them(monkeypatch):
    ranks = Ranks(monkeypatch, 1)
    for ranks.backend, place in (("gloo", "cpu"), ("nccl", "npu"), ("cpu:gloo,cuda:nccl", "cpu"), ("hccl", "npu")):
        verl.get_micro_batch_indices([10], 40, "a")
        assert ranks.places[-1] == place
    del ranks.torch.accelerator
    ranks.backend = "nccl"
    verl.get_micro_batch_indices([10], 40, "a")
    assert ranks.places[-1] == "cuda"


def test_verl_ranks_agree_over_gloo(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: verl's ranks were not tried over gloo")
    code = ("import sys, torch.distributed as dist\n"
            "from ravel.adapters import verl\n"
            "rank = int(sys.argv[1])\n"
            "dist.init_process_group('gloo', init_method='file://' + sys.argv[2], rank=rank, world_size=2)\n"
            "parts = verl.get_micro_batch_indices([[10] * 12, [20] * 12][rank], 40, dist.group.WORLD)\n"
            "if rank == 0: verl.get_micro_batch_indices([10] * 3, 40)\n"  # without a group nobody is waited for
            "assert len(parts) == 6 and all(parts), parts\n"
            "try:\n"
            "    verl.get_micro_batch_indices([[10], [50]][rank], 40, dist.group.WORLD)\n"
            "except ValueError as error:\n"
            "    assert ('another rank' in str(error)) == (rank == 0), error\n"
            "    print('fine')\n")
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(r), str(tmp_path / "meet")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(2)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 and "fine" in text for rank, text in zip(ranks, said)), "\n".join(said)


# ---- NeMo-RL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(nemo_rl.ALGORITHMS))
def test_nemo_bins_have_a_limit_of_sequences_too(algorithm):
    lengths = np.random.default_rng(4).integers(0, 40, 90).tolist()  # pull request 3345 passes None without a limit
    assert nemo_rl.get_packer(algorithm, 100, max_sequences_per_bin=None).pack(lengths) == nemo_rl.get_packer(algorithm, 100).pack(lengths)
    for most in (1, 3):
        bins = nemo_rl.get_packer(algorithm, 100, max_sequences_per_bin=most, bin_count_multiple=2, min_bin_count=2).pack(lengths)
        assert sorted(i for b in bins for i in b) == list(range(90)) and len(bins) % 2 == 0
        assert all(1 <= len(b) <= most and sum(lengths[i] for i in b) <= 100 for b in bins)
    with pytest.raises(ValueError, match="max_sequences_per_bin"):
        nemo_rl.get_packer(algorithm, 100, max_sequences_per_bin=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(0, 5))
def test_nemo_knapsacks_are_those_of_pull_request_4105(lengths, delta):
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    left, greedy = list(order), []
    while left:  # fill one bin with the largest that still fits, then the next
        greedy.append([])
        for i in list(left):
            if sum(lengths[j] for j in greedy[-1]) + lengths[i] <= 100:
                greedy[-1].append(i)
                left.remove(i)
    assert nemo_rl.get_packer("greedy_knapsack", 100).pack(lengths) == greedy
    even = [[] for _ in range(-(-sum(lengths) // 100) + delta)]
    for i in order:
        least = min(even, key=lambda part: sum(lengths[j] for j in part), default=[])
        if not even or sum(lengths[j] for j in least) + lengths[i] > 100:
            even.append(least := [])
        least.append(i)
    assert nemo_rl.get_packer("balanced_greedy_knapsack", 100, balanced_knapsack_delta=delta).pack(lengths) == [b for b in even if b]


def test_nemo_knapsacks_on_the_examples_of_pull_request_4105():
    assert nemo_rl.get_packer("greedy_knapsack", 10).pack([6, 5, 4, 3, 2]) == [[0, 2], [1, 3, 4]]
    assert nemo_rl.get_packer("balanced_greedy_knapsack", 8, balanced_knapsack_delta=0).pack([4] * 4) == [[0, 2], [1, 3]]
    for name in ("greedy_knapsack", "balanced_greedy_knapsack"):
        assert nemo_rl.get_packer(name, 10, max_sequences_per_bin=1).pack([4, 3, 2]) == [[0], [1], [2]]
    with pytest.raises(ValueError, match="balanced_knapsack_delta"):
        nemo_rl.get_packer("balanced_greedy_knapsack", 10, balanced_knapsack_delta=-1)


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
    with pytest.raises(ValueError, match="Cannot create 16 bins with only 2"):
        packer.pack([1, 2])


def first_fit(lengths, capacity):
    """The textbook's, in the order given: how full each bin is."""
    loads = []
    for n in lengths:
        at = next((i for i, load in enumerate(loads) if load + n <= capacity), None)
        if at is None:
            loads.append(n)
        else:
            loads[at] += n
    return loads


@settings(max_examples=60, deadline=None)
@given(LENGTHS)
def test_nemo_first_fit_is_the_textbooks(lengths):
    def loads(algorithm):
        return sorted(sum(lengths[i] for i in b) for b in nemo_rl.get_packer(algorithm, 128, seed=5).pack(lengths))

    assert loads("first_fit_decreasing") == sorted(first_fit(sorted(lengths, reverse=True), 128))
    order = np.random.default_rng(5).permutation(len(lengths))
    assert loads("first_fit_shuffle") == sorted(first_fit([lengths[i] for i in order], 128))


@pytest.mark.parametrize("algorithm", sorted(nemo_rl.ALGORITHMS))
def test_nemo_wrong_input_is_said(algorithm):
    packer = nemo_rl.get_packer(algorithm.upper(), bin_capacity=10)
    assert packer.pack(sequence_lengths=[]) == []
    assert sorted(i for part in packer.pack([3, 0, 4, 0]) for i in part) == [0, 1, 2, 3] and packer.pack([0]) == [[0]]
    for wrong, error, says in (([3, -5], ValueError, "sequence 1 has -5"), ([2.5], TypeError, "integers"),
                               ([[1, 2]], ValueError, "one dimension")):
        with pytest.raises(error, match=says):
            packer.pack(wrong)
    with pytest.raises(ValueError, match="Cannot create 2 bins with only 0 sequences"):
        nemo_rl.get_packer(algorithm, 10, min_bin_count=2).pack([])
    with pytest.raises(ValueError, match="bin_capacity is 0"):
        nemo_rl.get_packer(algorithm, 0)


def test_nemo_takes_their_enum_and_splits_without_end():
    import enum
    Theirs = enum.Enum("PackingAlgorithm", {"FIRST_FIT_DECREASING": "first_fit_decreasing"})
    bins = nemo_rl.get_packer(Theirs.FIRST_FIT_DECREASING, 10**6, min_bin_count=5000).pack([1] * 20000)
    assert len(bins) == 5000 and {len(b) for b in bins} <= {2, 3, 4, 5}


def test_nemo_concatenative_keeps_the_order():
    bins = nemo_rl.get_packer("concatenative", 5).pack([4, 1, 3, 2, 1, 3, 4, 5])
    assert bins == [[0, 1], [2, 3], [4, 5], [6], [7]]


# ---- Megatron --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.sampled_from([1, 2]), st.sampled_from([None, 2]))
def test_megatron_groups(lengths, dp, cp, group):
    pairs = [(1000 + i, n) for i, n in enumerate(lengths)]
    steps = megatron.RavelScheduler(100, cp, dp, group, fillers=True).get_groups_and_subsamples(pairs)
    strict = megatron.RavelScheduler(100, cp, dp, group)
    if len(steps) * dp > len(lengths):
        with pytest.raises(ValueError, match=f"{len(lengths)} samples cannot fill {len(steps) * dp} micro-batches"):
            strict.get_groups_and_subsamples(pairs)
    else:
        assert strict.get_groups_and_subsamples(pairs) == steps and all(rank for step in steps for rank in step)
    assert len(steps) % (group or 1) == 0 and all(len(step) == dp * cp for step in steps)
    seen = [i for step in steps for rank in step[::cp] for i in rank]
    assert sorted(seen) == [p[0] for p in pairs]
    for step in steps:
        for rank in range(dp * cp):
            assert step[rank] == step[rank // cp * cp]
            assert sum(lengths[i - 1000] for i in step[rank]) <= 100 * cp


def test_megatron_scheduler_goes_in_front_of_megatrons():
    class Base:  # as Megatron's: some releases have no max_num_seqs
        def __init__(self, max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage):
            self.theirs = (max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage)

        def run(self):
            return self.get_groups_and_subsamples([(i, 10) for i in range(8)]), self.max_seq_len_all_ranks

    class Newer(Base):
        def __init__(self, *args, max_num_seqs=None, **kwargs):
            super().__init__(*args[:4], **kwargs)
            self.cap = args[4] if len(args) > 4 else max_num_seqs

    class Scheduler(megatron.RavelScheduler, Base):
        pass

    class NewerScheduler(megatron.RavelScheduler, Newer):
        pass

    scheduler = Scheduler(40, 1, 2, None)
    steps, most = scheduler.run()
    assert most == 40 and scheduler.theirs == (40, 1, 2, None) and not scheduler.is_dynamic_cp
    assert sorted(i for step in steps for rank in step for i in rank) == list(range(8)) and scheduler.digest
    capped = NewerScheduler(40, 1, 2, None, max_num_seqs=2)
    assert capped.cap == 2 and all(len(rank) <= 2 for step in capped.run()[0] for rank in step)
    with pytest.raises(ravel.OversizeError, match="sample 7 has 41 tokens, which exceeds max_seqlen_per_dp_cp_rank 40"):
        scheduler.get_groups_and_subsamples([(0, 1), (7, 41)])
    with pytest.raises(TypeError, match="integers"):
        scheduler.get_groups_and_subsamples([(0, 1.5)])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.sampled_from([(1, 1), (2, 2), (4, 2), (8, 4), (3, 4)]),
       st.sampled_from([None, 2, 3]), st.sampled_from([1, 2]))
def test_megatron_dynamic_groups(lengths, mesh, multiple, least):
    dp, cp = mesh
    pool = dp * cp
    lengths = [min(n, 60 * pool) for n in lengths]
    pairs = [(1000 + i, n) for i, n in enumerate(lengths)]
    scheduler = megatron.RavelDynamicScheduler(100, cp, dp, multiple, min_cp_size=min(least, pool))
    try:
        steps = scheduler.get_groups_and_subsamples(pairs)
    except ValueError as error:  # too few samples for the multiple, or a pool whose groups leave a rest
        assert "cannot fill" in str(error) or pool == 12
        return
    assert len(steps) % (multiple or 1) == 0 and all(len(step) == pool and all(step) for step in steps)
    seen = []
    for step in steps:
        rank = 0
        while rank < pool:
            width = sum(step[rank] == other for other in step)  # as Megatron finds local_cp_size
            assert rank % width == 0 and all(step[rank + k] == step[rank] for k in range(width)) and width >= min(least, pool)
            assert pool % width == 0 and (width == pool or width & (width - 1) == 0)
            many = 1 if width == 1 else 2 * width
            assert sum(-(-lengths[i - 1000] // many) * many for i in step[rank]) <= width * 100
            seen += step[rank]
            rank += width
    assert sorted(seen) == [p[0] for p in pairs]


def test_megatron_dynamic_scheduler_goes_in_front_of_megatrons():
    class Base:
        def __init__(self, max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage,
                     max_num_seqs=None, min_cp_size=1):
            self.theirs = (max_seqlen_per_dp_cp_rank, cp_size, dp_size, max_num_seqs, min_cp_size)
            self.is_dynamic_cp = True

    class Scheduler(megatron.RavelDynamicScheduler, Base):
        pass

    scheduler = Scheduler(64, 2, 4, None, max_num_seqs=3, min_cp_size=2, cost=(24576, 1))
    assert scheduler.theirs == (64, 2, 4, 3, 2) and scheduler.is_dynamic_cp and scheduler.max_seq_len_all_ranks == 512
    steps = scheduler.get_groups_and_subsamples([(7, 500), (8, 20), (9, 20), (10, 20)])
    assert [[[7]] * 8] == [step for step in steps if 7 in step[0]] and scheduler.digest
    with pytest.raises(ravel.OversizeError, match="the widest group"):
        scheduler.get_groups_and_subsamples([(0, 513)])


def test_megatron_packed_seq_params():
    batch = ravel.pack(ravel.Ragged([3, 4], tokens=np.arange(7)), [0, 1], align=4)
    fields = megatron.packed_seq_params(batch)
    assert set(fields) == {"qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded",
                           "max_seqlen_q", "max_seqlen_kv", "total_tokens", "pad_between_seqs"}
    assert fields["total_tokens"] == 8 and fields["pad_between_seqs"] is True
    dense = ravel.pack(ravel.Ragged([3, 4], tokens=np.arange(7)), [0, 1])
    assert megatron.packed_seq_params(dense)["pad_between_seqs"] is False
    older = dataclasses.make_dataclass("PackedSeqParams", ["qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q"])
    assert set(megatron.packed_seq_params(batch, of=older)) == {"qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q"}
    assert fields["cu_seqlens_q"].tolist() == [0, 3, 7] and fields["cu_seqlens_q_padded"].tolist() == [0, 4, 8]
    assert fields["max_seqlen_q"] == 4 and type(fields["max_seqlen_q"]) is int and fields["qkv_format"] == "thd"
    wide = megatron.packed_seq_params(batch, local_cp_size=4, cp_group="group")
    assert wide["local_cp_size"] == 4 and wide["cp_group"] == "group" and set(wide) > set(fields)
    torch = pytest.importorskip("torch", reason="torch is not installed: PackedSeqParams got numpy arrays only")
    there = megatron.packed_seq_params(batch, device="cpu")
    assert there["cu_seqlens_kv"].dtype == torch.int32 and there["cu_seqlens_kv_padded"].tolist() == [0, 4, 8]


# ---- TRL and Hugging Face ----------------------------------------------------------------------------------------------


def test_trl_dataset():
    class Rows(dict):
        column_names = ["input_ids"]

        def map(self, function, batched, remove_columns):
            assert batched and remove_columns == ["input_ids"]
            return function(self)

    rows = Rows(input_ids=[[1] * 3, [2] * 5, [3] * 4])
    assert sorted(map(sum, trl.pack_dataset(rows, 8)["seq_lengths"])) == [4, 8]
    assert list(map(len, trl.pack_dataset(rows, 5, "wrapped")["input_ids"])) == [5, 5, 2]
    assert sum(map(len, trl.pack_dataset(rows, 4, "bfd_split")["input_ids"])) == 12
    assert sum(map(len, trl.pack_dataset(rows, 4)["input_ids"])) == 11
    with pytest.raises(ValueError, match="row 1 has 5 tokens"):
        trl.pack_dataset(rows, 4, overflow="error")
    with pytest.raises(TypeError, match="column 'text' holds str"):
        trl.pack_dataset(Rows(input_ids=[[1], [2]], text=["a", "b"]), 8)
    with pytest.raises(ValueError, match="must be one of"):
        trl.pack_dataset(rows, 8, "ffd")
    for strategy in ("bfd", "bfd_split", "wrapped"):
        with pytest.raises(TypeError, match="column 'id' holds int, not lists"):
            trl.pack_dataset(Rows(input_ids=[[1], [2]], id=[1, 2]), 8, strategy)
        with pytest.raises(TypeError, match="column 'input_ids' holds NoneType, not lists"):
            trl.pack_dataset(Rows(input_ids=[[1], None]), 8, strategy)
        with pytest.raises(ValueError, match="seq_length is 0"):
            trl.pack_dataset(rows, 0, strategy)


def test_trl_streams_and_splits_of_a_dataset():
    class Stream(list):
        column_names = None

        def map(self, function, batched, remove_columns):
            assert remove_columns == ["input_ids"]
            return function({"input_ids": [row["input_ids"] for row in self]})

    assert trl.pack_dataset(Stream([{"input_ids": [1, 2]}, {"input_ids": [3]}]), 4)["seq_lengths"] == [[2, 1]]

    class Splits(dict):
        column_names = {"train": ["input_ids"], "test": ["input_ids"]}

        def map(self, function, batched, remove_columns, num_proc):
            assert remove_columns == ["input_ids"] and num_proc == 2
            return {name: function(part) for name, part in self.items()}

    done = trl.pack_dataset(Splits(train={"input_ids": [[1], [2]]}, test={"input_ids": [[3]]}), 4, map_kwargs={"num_proc": 2})
    assert done["train"]["seq_lengths"] == [[1, 1]] and done["test"]["seq_lengths"] == [[1]]


def test_trl_rows():
    rows = {"input_ids": [[1] * 3, [2] * 5, [3] * 4, []], "labels": [[1] * 3, [2] * 5, [3] * 4, []]}
    out = trl.pack_examples(rows, 8)
    assert [len(r) for r in out["input_ids"]] == [sum(n) for n in out["seq_lengths"]] and len(out["input_ids"]) == 2
    assert sorted(x for r in out["input_ids"] for x in r) == sorted(x for r in rows["input_ids"] for x in r)
    with pytest.raises(ValueError, match="row 1"):
        trl.pack_examples(rows, 4, overflow="error")
    assert sum(map(len, trl.pack_examples(rows, 4, overflow="truncate")["input_ids"])) == 11
    assert sum(map(len, trl.pack_examples(rows, 4, overflow="split")["input_ids"])) == 12


def test_collator():
    features = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [8, -100], "attention_mask": [1, 1]}]
    out = huggingface.PackingCollator("np")(features)
    assert out["input_ids"].tolist() == [[5, 6, 7, 8, 9]] and out["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert out["labels"].tolist() == [[-100, 6, 7, -100, -100]] and features[0] == {"input_ids": [5, 6, 7]}
    assert out["cu_seq_lens_q"].tolist() == [0, 3, 5] and out["max_length_k"] == 3 and type(out["max_length_q"]) is int
    assert {k: str(v.dtype) for k, v in out.items() if hasattr(v, "dtype")} == {
        "input_ids": "int64", "labels": "int64", "position_ids": "int64", "cu_seq_lens_q": "int32", "cu_seq_lens_k": "int32"}
    out = huggingface.PackingCollator("np", align=4, return_seq_idx=True)([{"input_ids": np.array([5, 6, 7], np.int32)}])
    assert out["seq_idx"].tolist() == [[0, 0, 0, -1]] and out["labels"].tolist() == [[-100, 6, 7, -100]]


def test_collator_has_the_arguments_of_theirs():
    collator = huggingface.PackingCollator(return_position_ids=True, separator_id=-1, return_flash_attn_kwargs=False,
                                           return_seq_idx=True, position_ids_start=2)
    out = collator([{"input_ids": [5, 6]}, {"input_ids": [7]}], return_tensors="np")
    assert set(out) == {"input_ids", "labels", "position_ids", "seq_idx"}
    assert out["labels"].tolist() == [[-1, 6, -1]] and out["position_ids"].tolist() == [[2, 3, 2]]
    out = huggingface.PackingCollator("np", return_position_ids=False)([{"input_ids": [5, 6]}], separator_id=-7)
    assert "position_ids" not in out and out["labels"].tolist() == [[-7, 6]]


def test_collator_keeps_the_samples_of_packed_rows_apart():
    packed = trl.pack_examples({"input_ids": [[1, 2], [3, 4, 5], [6]]}, 6)
    rows = [{name: column[i] for name, column in packed.items()} for i in range(len(packed["input_ids"]))]
    out = huggingface.PackingCollator("np")(rows)
    assert np.diff(out["cu_seq_lens_q"]).tolist() == [n for row in packed["seq_lengths"] for n in row]
    assert (out["position_ids"] == 0).sum() == 3 and (out["labels"] == -100).sum() == 3
    with pytest.raises(ValueError, match="seq_lengths add up to 3"):
        huggingface.PackingCollator("np")([{"input_ids": [1, 2], "seq_lengths": [1, 2]}])


@pytest.mark.parametrize("features, error, says", [
    ([], ValueError, "no samples"), ([{"input_ids": [1.5]}], TypeError, "integers"),
    ([{"input_ids": [[1, 2]]}], ValueError, "one dimension"), ([{"input_ids": []}], ValueError, "sample 0"),
    ([{"input_ids": [1, 2], "labels": [1]}], ValueError, "2 input_ids and 1 labels")])
def test_collator_says_what_is_wrong(features, error, says):
    with pytest.raises(error, match=says):
        huggingface.PackingCollator("np")(features)


def test_collator_gives_torch_tensors():
    with pytest.raises(ValueError, match="must be np or pt"):
        huggingface.PackingCollator("tf")
    torch = pytest.importorskip("torch", reason="torch is not installed: the collator gave numpy arrays only")
    out = huggingface.PackingCollator()([{"input_ids": torch.tensor([5, 6, 7])}, {"input_ids": [8, 9]}])
    assert torch.equal(out["cu_seq_lens_k"], torch.tensor([0, 3, 5], dtype=torch.int32))
    assert out["input_ids"].shape == (1, 5) and out["position_ids"].dtype == torch.int64
