"""Each adapter called as its framework calls it, at the commits that the modules name; and what those calls need."""

import enum
import pickle
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel
from ravel.adapters import areal, huggingface, megatron, nemo_rl, nemo_rl_dynamic, slime, trl, trl_rollouts, verl
from ravel.adapters import _switch

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)


# ---- verl ------------------------------------------------------------------------------------------------------------


class Rows(dict):
    """The little of TensorDict that is needed: columns by name, rows by index."""

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else Rows({k: v[key] for k, v in self.items()})


def padded(lengths, width=None):
    width = width or max(1, max(lengths))
    mask = (np.arange(width) < np.asarray(lengths)[:, None]).astype(np.int64)
    return Rows(attention_mask=mask, input_ids=np.arange(mask.size).reshape(mask.shape))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 4))
def test_verl_groups_stay_together(lengths, size):
    lengths = lengths[:max(1, len(lengths) // size) * size]
    if len(lengths) % size:
        with pytest.raises(AssertionError, match="force_group_size"):
            verl.rearrange_micro_batches(padded(lengths), 100, force_group_size=size)
        return
    _, indices = verl.rearrange_micro_batches(batch=padded(lengths), max_token_len=100 * size, dp_group=None,
                                              num_batches_divided_by=None, same_micro_num_in_dp=True,
                                              min_num_micro_batch=None, use_dynamic_bsz_balance=True,
                                              force_group_size=size)
    assert sorted(i for part in indices for i in part) == list(range(len(lengths)))
    for part in indices:
        assert sum(lengths[i] for i in part) <= 100 * size
        groups = {i // size for i in part}
        assert sorted(part) == sorted(g * size + k for g in groups for k in range(size))


def test_verl_a_group_over_the_budget_is_named_or_alone():
    batch = padded([5, 5, 9, 9, 2, 2])
    with pytest.raises(ravel.OversizeError, match=r"group 1 \(rows 2 to 3\) has 18 tokens"):
        verl.rearrange_micro_batches(batch, 12, force_group_size=2)
    _, indices = verl.rearrange_micro_batches(batch, 12, force_group_size=2, oversize="alone")
    assert [2, 3] in indices and sorted(sum(indices, [])) == list(range(6))
    _, indices = verl.rearrange_micro_batches(padded([20, 3, 3]), 12, oversize="alone")
    assert [0] in indices


def test_verl_without_a_group_nothing_is_communicated(monkeypatch):
    def everyone(*_, **__):
        raise AssertionError("a collective over everyone")

    dist = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, all_reduce=everyone)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    assert len(verl.get_micro_batch_indices([10] * 8, 40)) == 2


@pytest.mark.parametrize("values", [[1.5, 2.25, 3.0, 4.75, 1e-9, 0.0], [3.0, 5.0, 2.0, 2.0, 1.0, 1.0],
                                    np.array([1, 2, 3, 4, 5, 6], np.float32), [1e300, 1e299, 5e299, 2e298, 1e300, 3e297]])
def test_verl_float_workloads(values):
    parts = verl.get_seqlen_balanced_partitions(values, 2, equal_size=True)
    assert sorted(i for p in parts for i in p) == list(range(6)) and {len(p) for p in parts} == {3}
    sums = [sum(float(values[i]) for i in p) for p in parts]
    assert abs(sums[0] - sums[1]) <= max(map(float, values))


@pytest.mark.parametrize("wrong", [[1.0, float("nan")], [1.0, float("inf")], [1.5, -1.0]])
def test_verl_workloads_that_are_no_numbers(wrong):
    with pytest.raises(ValueError, match="finite"):
        verl.get_seqlen_balanced_partitions(wrong, 1, False)


def test_verl_rows_without_tokens_are_taken():
    _, indices = verl.rearrange_micro_batches(padded([0, 5, 0, 7, 3], 8), 8)
    assert sorted(sum(indices, [])) == [0, 1, 2, 3, 4]


def test_verl_prepare_has_their_positions_and_copies_meta_info():
    class Proto:
        def __init__(self, batch, meta_info):
            self.batch, self.meta_info = batch, meta_info

        def select_idxs(self, index):
            return Proto(self.batch[index], self.meta_info)

    data = Proto(padded([3, 4, 5, 6]), {"temperature": [1.0]})
    parts, indices = verl.prepare_dynamic_batch(data, 8, None, 2, True, 4, False)  # as verl's own order has it
    assert len(parts) == 4 and sorted(sum(indices, [])) == [0, 1, 2, 3]
    parts[0].meta_info["temperature"].append(2.0)
    assert data.meta_info == {"temperature": [1.0]} == parts[1].meta_info


def test_verl_groups_by_uid_and_figures():
    lengths = [100] * 4 + [200] * 4 + [150] * 4 + [50] * 4
    uids = [u for u in "abcd" for _ in range(4)]
    parts = verl.get_group_balanced_partitions(lengths, uids, k_partitions=2)
    assert sorted(sum(parts, [])) == list(range(16)) and all(p == sorted(p) and len(p) == 8 for p in parts)
    assert all(len({uids[i] for i in p}) == 2 for p in parts)
    assert {sum(lengths[i] for i in p) for p in parts} == {1000}  # 200 + 50 and 150 + 100
    with pytest.raises(AssertionError, match="4 groups"):
        verl.get_group_balanced_partitions(lengths, uids, k_partitions=5)
    figures = verl.log_seqlen_unbalance(seqlen_list=lengths, partitions=parts, prefix="global_seqlen")
    assert figures == {"global_seqlen/min": 800, "global_seqlen/max": 1200, "global_seqlen/minmax_diff": 400,
                       "global_seqlen/balanced_min": 1000, "global_seqlen/balanced_max": 1000,
                       "global_seqlen/mean": 1000.0}
    assert verl.calculate_workload(np.array([2, 3])).tolist() == [2 * 24576 + 4, 3 * 24576 + 9]
    assert verl.ceildiv(7, 3) == 3 and verl.roundup_divisible(7, 4) == 8


# ---- switching -------------------------------------------------------------------------------------------------------


def fake_package(monkeypatch, **modules):
    """Modules of a made-up package, loaded."""
    for name, content in modules.items():
        module = types.ModuleType("madeup." + name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, "madeup." + name, module)
    return [sys.modules["madeup." + name] for name in modules]


def test_functions_are_replaced_where_they_were_imported_too(monkeypatch):
    def theirs():
        return "theirs"

    def other():
        return "other"

    home, user, bystander = fake_package(monkeypatch, home={"f": theirs}, user={"f": theirs}, bystander={"f": other})
    assert _switch.put(home, {"f": lambda: "ours"}) == ["madeup.home.f", "madeup.user.f"]
    assert (home.f(), user.f(), bystander.f()) == ("ours", "ours", "other")
    with pytest.raises(AttributeError, match="has no g"):
        _switch.put(home, {"f": other, "g": other})
    assert home.f() == "ours"


def test_verl_install_may_leave_large_groups_alone(monkeypatch):
    (home,) = fake_package(monkeypatch, home={name: object() for name in verl._SWITCHED})
    verl.install(home, oversize="alone")
    _, indices = home.rearrange_micro_batches(padded([50, 60, 80, 90, 40, 45, 100, 110]), max_token_len=200, dp_group=None,
                                              force_group_size=2)
    assert [6, 7] in indices
    with pytest.raises(ValueError, match="must be error or alone"):
        verl.install(home, oversize="skip")


@pytest.mark.parametrize("adapter, names", [
    (verl, verl._SWITCHED), (nemo_rl, ("get_packer",)), (slime, ("build_dp_schedule",)),
    (trl_rollouts, ("TokenBudgetBatcher",)), (huggingface, ("DataCollatorWithFlattening",)),
    (areal, ("ffd_allocate", "kk_allocate", "balanced_greedy_partition"))])
def test_install(monkeypatch, adapter, names):
    (home,) = fake_package(monkeypatch, home={name: object() for name in names})
    assert adapter.install(home) == [f"madeup.home.{name}" for name in names]
    assert all(callable(getattr(home, name)) for name in names)


# ---- Megatron --------------------------------------------------------------------------------------------------------


class Theirs:
    def __init__(self, max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage):
        self.ran = (max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage)


class PackingSchedulerEnum(enum.Enum):
    DP_BALANCED = "dp_balanced"


@pytest.mark.parametrize("key", [PackingSchedulerEnum.DP_BALANCED, "dp_balanced"])
def test_megatron_install_finds_the_key(key):
    module = types.SimpleNamespace(scheduler_map={key: Theirs, "other": Theirs})
    megatron.install(module, cost="tokens")
    made = module.scheduler_map[key](100, 1, 2, None)  # as wrap_data_iterator makes it
    assert isinstance(made, Theirs) and made.ran == (100, 1, 2, None) and made.cost == "tokens"
    assert len(made.get_groups_and_subsamples([(i, 50) for i in range(8)])) == 2
    megatron.install(module, fillers=True)
    again = module.scheduler_map[key](100, 1, 2, None)
    assert again.fillers and again.cost is None and type(again).__mro__[2] is Theirs
    assert module.scheduler_map["other"] is Theirs and set(module.scheduler_map) == {key, "other"}


class TheirsThatRuns(Theirs):
    def run(self, data_iterator, num_microbatches, dp_group, tp_group, pp_group, dp_cp_group, dev, config):
        return self.get_groups_and_subsamples(list(enumerate(data_iterator)))


def test_megatron_balances_the_cost_of_the_model_unless_told_otherwise():
    lengths = np.minimum(np.random.default_rng(1).lognormal(7.6, 1.1, 256).astype(int) + 1, 16384).tolist()
    config = types.SimpleNamespace(hidden_size=1024, num_layers=28, num_attention_heads=16, num_query_groups=8, kv_channels=128,
                                   ffn_hidden_size=3072, gated_linear_unit=True)

    def idle(**options):
        module = types.SimpleNamespace(scheduler_map={"dp_balanced": TheirsThatRuns})
        megatron.install(module, **options)
        made = module.scheduler_map["dp_balanced"](16384, 1, 8, None)
        steps = made.run(lengths, 4, None, None, None, None, "cpu", config)  # as wrap_data_iterator calls it
        linear, quadratic, overhead = megatron.model_cost(config)
        work = [[overhead + sum(linear * lengths[i] + quadratic * lengths[i] ** 2 for i in rank) for rank in step] for step in steps]
        return 1 - sum(map(sum, work)) / (8 * sum(map(max, work))), made.cost

    own, cost = idle()
    tokens, _ = idle(cost="tokens")
    assert cost == megatron.model_cost(config) and own < 0.06 < tokens, (own, tokens)
    shape = ravel.shape(hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, ffn=3072, gated=1, vocab=1)
    assert cost == shape.cost and megatron.model_cost(types.SimpleNamespace()) == megatron.WORKLOAD


def test_megatron_costs_of_experts_and_of_latent_attention(monkeypatch):
    config = types.SimpleNamespace(hidden_size=2048, num_layers=48, num_attention_heads=32, num_query_groups=4, kv_channels=128,
                                   ffn_hidden_size=6144, gated_linear_unit=True, num_moe_experts=128, moe_router_topk=8,
                                   moe_ffn_hidden_size=768, moe_layer_freq=[1] * 48)
    arguments = types.SimpleNamespace(_GLOBAL_ARGS=types.SimpleNamespace(padded_vocab_size=151936))
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", arguments)
    assert megatron.model_cost(config) == ravel.shape("qwen3-30b-a3b").cost
    config.multi_latent_attention, config.moe_layer_freq = True, [0] + [1] * 47
    config.qk_head_dim, config.qk_pos_emb_head_dim, config.v_head_dim, config.q_lora_rank, config.kv_lora_rank = 128, 64, 128, 0, 512
    fields = {**ravel.shape("qwen3-30b-a3b").to_dict(), "kv_heads": 32, "head_dim": 192, "rope_dim": 64, "v_dim": 128, "kv_rank": 512,
              "dense_layers": 1}
    assert megatron.model_cost(config) == ravel.shape(**fields).cost


def test_megatron_default_is_dp_balanced_under_its_first_name():
    module = types.SimpleNamespace(scheduler_map={"default": Theirs})  # pull request 2924 before it was dp_balanced
    megatron.install(module, name="default")
    made = module.scheduler_map["default"](100, 1, 2, None)
    assert isinstance(made, megatron.RavelScheduler) and len(made.get_groups_and_subsamples([(i, 50) for i in range(8)])) == 2
    with pytest.raises(ValueError, match="RavelBatchSampler"):
        megatron.install(module, name="empty")


def packed_by_empty(loader, budget, cp):
    """What the scheduler empty of pull request 2924 does with a loader: (samples of each micro-batch) of one update."""
    batch = next(loader)
    every = [batch] + [next(loader) for _ in range(batch[0]["num_micro_batches_left"])]
    assert [b[0]["num_micro_batches_left"] for b in every] == list(range(len(every)))[::-1]
    assert all(s["local_cp_size"] == cp and sum(len(x["tokens"]) for x in b) <= budget * cp for b in every for s in b)
    return every


@pytest.mark.parametrize("dp, cp", [(1, 1), (4, 1), (2, 2)])
def test_megatron_empty_packs_what_the_sampler_planned(dp, cp):
    lengths = np.minimum(np.random.default_rng(dp).lognormal(5, 1, 200).astype(int) + 1, 900)
    rows = [{"tokens": np.full(n, i)} for i, n in enumerate(lengths)]
    samplers = [megatron.RavelBatchSampler(lengths, 64, 1000, cp_size=cp, dp_size=dp, dp_rank=r) for r in range(dp)]
    data = pickle.loads(pickle.dumps(megatron.PlannedDataset(rows)))  # as workers of a loader get it, and indices too
    loaders = [iter([data[i] for i in pickle.loads(pickle.dumps(batch))] for batch in s) for s in samplers]
    for update in range(3):  # the last 8 rows do not fill one
        ranks = [packed_by_empty(loader, 1000, cp) for loader in loaders]
        assert len({len(steps) for steps in ranks}) == 1 and len({s.digest for s in samplers}) == 1
        seen = sorted(int(s["tokens"][0]) for steps in ranks for b in steps for s in b)
        assert seen == list(range(update * 64, update * 64 + 64))
    assert all(next(loader, None) is None for loader in loaders)
    again = megatron.RavelBatchSampler(lengths, 64, 1000, cp_size=cp, dp_size=dp, consumed_samples=128)
    assert min(int(i) for batch in again for i in batch) >= 128
    with pytest.raises(ValueError, match="raise global_batch_size"):
        list(megatron.RavelBatchSampler([5, 5], 2, 1000, dp_size=4))
    with pytest.raises(ValueError, match="global_batch_size 0"):
        megatron.RavelBatchSampler([5, 5], 0, 1000)


def test_megatron_install_is_loud():
    with pytest.raises(KeyError, match="has no 'dp_balanced'; it has new_name"):
        megatron.install(types.SimpleNamespace(scheduler_map={"new_name": Theirs}))
    with pytest.raises(AttributeError, match="no scheduler_map"):
        megatron.install(types.SimpleNamespace())
    with pytest.raises(ValueError, match="must be one of"):
        megatron.install(types.SimpleNamespace(scheduler_map={"x": Theirs}), "x")


def test_megatron_rl_packs_trajectories():
    torch = pytest.importorskip("torch", reason="torch is not installed: Megatron RL's packer was not tried")
    from ravel.adapters import megatron_rl

    pad, eod = 42, 43
    rows = torch.tensor([[1, 2, 3, eod, pad], [4, 5, eod, pad, pad], [6, 7, 8, 9, eod]])
    masks = [torch.tensor([0, 1, 1, 1, 0]), torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 1, 1, 1, 1])]
    packer = megatron_rl.SequencePacker(bin_size=16, pad_token=pad)
    packed, positions, mask, info = packer.pack_sequences(rows, masks)
    assert packed.tolist() == [[6, 7, 8, 9, eod, 1, 2, 3, eod, 4, 5, eod, pad, pad, pad, pad]]
    assert positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 0, 0, 0, 0]]
    assert mask.tolist() == [[0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0]]
    assert info.bin_seq_indices == [[2, 0, 1]] and info.seq_starts == {0: [0, 5, 9, 12]} and info.seq_lengths == [4, 3, 5]
    assert info.seq_to_bin_idx == [0, 0, 0] and packer.last_avg_seqs_per_bin == 3
    _, _, _, info = megatron_rl.SequencePacker(8, pad, seq_length_multiple=4).pack_sequences(torch.arange(1, 10).reshape(3, 3))
    assert sorted(len(part) for part in info.bin_seq_indices) == [1, 2] and all(s % 4 == 0 for v in info.seq_starts.values() for s in v)
    with pytest.raises(AssertionError, match="divisible"):
        megatron_rl.SequencePacker(bin_size=10, pad_token=0, seq_length_multiple=4)
    with pytest.raises(ValueError, match="trajectory 0 has 5 tokens; a bin holds 4"):
        megatron_rl.SequencePacker(4, pad).pack_sequences(rows[2:])
    rng = np.random.default_rng(3)
    many = torch.full((60, 50), pad)
    for i, n in enumerate(rng.integers(0, 51, 60)):
        many[i, :n] = torch.arange(100, 100 + int(n))
    packed, _, mask, info = megatron_rl.SequencePacker(64, pad, max_sequences_per_bin=4).pack_sequences(many)
    assert int((packed != pad).sum()) == int((many != pad).sum()) == int(mask.sum())
    for b, part in enumerate(info.bin_seq_indices):
        assert len(part) <= 4 and info.seq_starts[b][-1] <= 64
        for i, start in zip(part, info.seq_starts[b]):
            assert packed[b, start:start + info.seq_lengths[i]].tolist() == many[i, :info.seq_lengths[i]].tolist()


# ---- slime -----------------------------------------------------------------------------------------------------------


def slime_args(**keywords):
    return types.SimpleNamespace(**{"micro_batch_size": 1, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 100,
                                    "balance_data": False, "balance_by_flops": False, **keywords})


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=4, max_size=60), st.integers(1, 3), st.sampled_from([1, 2]), st.integers(1, 4))
def test_slime_schedule(lengths, dp, group, rollouts):
    parallel = {"dp_size": dp, "cp_size": 1, "vpp_size": group, "microbatch_group_size_per_vp_stage": group}
    indices = [i // 2 for i in range(len(lengths))]
    try:
        partitions, batches, counts, sizes = slime.build_dp_schedule(
            slime_args(), parallel, lengths, global_batch_size=rollouts, rollout_indices=indices)
    except AssertionError as refused:
        assert any(word in str(refused) for word in ("cannot fill", "fewer than dp_size", "num_rollouts"))
        return
    steps = (max(indices) + 1) // rollouts
    kept = [i for i, rollout in enumerate(indices) if rollout < steps * rollouts]
    assert sizes == [rollouts] * steps and len(counts) == steps and all(n % group == 0 for n in counts)
    assert sorted(i for part in partitions for i in part) == kept
    for part, mine in zip(partitions, batches):
        assert [i for batch in mine for i in batch] == list(range(len(part))) and len(mine) == sum(counts)
        for batch in mine:
            assert batch and (sum(lengths[part[i]] for i in batch) <= 100 or len(batch) == 1)
    with pytest.raises(AssertionError, match="num_rollouts"):
        slime.build_dp_schedule(slime_args(), parallel, lengths, global_batch_size=len(lengths), rollout_indices=indices)


def test_slime_static_batches_and_refusals():
    parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    args = slime_args(use_dynamic_batch_size=False, micro_batch_size=2)
    rows = list(range(8))
    partitions, batches, counts, _ = slime.build_dp_schedule(args, parallel, [10] * 8, global_batch_size=8, rollout_indices=rows)
    assert partitions == [[0, 1, 4, 5], [2, 3, 6, 7]] and counts == [2] and batches[0] == [[0, 1], [2, 3]]
    args.balance_data = True
    partitions, _, _, _ = slime.build_dp_schedule(args, parallel, [9, 9, 1, 1, 1, 1, 9, 9], global_batch_size=8,
                                                  rollout_indices=rows)
    assert all(sum([9, 9, 1, 1, 1, 1, 9, 9][i] for i in part) == 20 for part in partitions)
    with pytest.raises(AssertionError, match="no multiple"):
        slime.build_dp_schedule(args, parallel, [10] * 6, global_batch_size=6, rollout_indices=rows[:6])
    with pytest.raises(ravel.OversizeError):
        slime.build_dp_schedule(slime_args(), parallel, [10, 200], global_batch_size=2, rollout_indices=[0, 1], oversize="error")


# ---- NeMo-RL ---------------------------------------------------------------------------------------------------------


def test_nemo_packers_are_theirs_where_nemo_is_loaded(monkeypatch):
    import abc

    class SequencePacker(abc.ABC):
        @abc.abstractmethod
        def _pack_implementation(self, sequence_lengths): ...

    monkeypatch.setitem(sys.modules, "nemo_rl.data.packing", types.SimpleNamespace(SequencePacker=SequencePacker))
    assert isinstance(nemo_rl.get_packer("first_fit_decreasing", 100), SequencePacker)


def test_nemo_install_may_fix_the_algorithm(monkeypatch):
    (home,) = fake_package(monkeypatch, home={"get_packer": object()})
    nemo_rl.install(home, algorithm="ravel")
    packer = home.get_packer(algorithm="modified_first_fit_decreasing", bin_capacity=10, collect_metrics=False,
                             min_bin_count=2, bin_count_multiple=2)  # as shard_by_batch_size calls it
    assert packer.algorithm == "ravel" and len(packer.pack(sequence_lengths=[3, 4, 5])) == 2
    with pytest.raises(ValueError, match="algorithm is 'new'"):
        nemo_rl.install(home, algorithm="new")
    with pytest.raises(ValueError, match="algorithm is 'knapsac'"):  # a name that the configuration has wrong
        home.get_packer(algorithm="knapsac", bin_capacity=10)


def ascending_next_fit(widths, most):
    """NeMo-RL's cuts: (how many micro-batches, padded tokens)."""
    batches = []
    for width in widths:
        if batches and (len(batches[-1]) + 1) * max(max(batches[-1]), width) <= most:
            batches[-1].append(width)
        else:
            batches.append([width])
    return len(batches), sum(len(b) * max(b) for b in batches)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(1, 4), st.sampled_from([1, 8]))
def test_nemo_dynamic_batches(lengths, shards, rounding):
    lengths = (lengths * shards)[:max(1, len(lengths) // shards) * shards]
    done = nemo_rl_dynamic.dynamic_batches(lengths, shards, 256, rounding, width=100)
    each = len(lengths) // shards
    assert sorted(done.order) == list(range(len(lengths)))
    assert done.micro_batch_indices[0][0] == 0 and done.micro_batch_indices[-1][1] == each
    for (begin, end), width in zip(done.micro_batch_indices, done.micro_batch_lengths):
        assert end > begin and (end - begin) * width <= 256
        for rank in range(shards):
            assert all(lengths[i] <= width for i in done.order[rank * each + begin:rank * each + end])
    widths = [min(100, max(1, -(-max(lengths[done.order[r * each + i]] for r in range(shards)) // rounding) * rounding))
              for i in range(each)]
    count, tokens = ascending_next_fit(widths, 256)
    assert len(done.micro_batch_indices) <= count
    assert len(done.micro_batch_indices) < count or done.padded_tokens <= tokens


def test_nemo_dynamic_batches_refuse_what_fits_nowhere():
    with pytest.raises(AssertionError, match="row 1 has 300 tokens"):
        nemo_rl_dynamic.dynamic_batches([10, 300], 1, 256)
    with pytest.raises(AssertionError, match="dealt evenly"):
        nemo_rl_dynamic.dynamic_batches([10, 20, 30], 2, 256)


def test_nemo_dynamic_batching_behind_their_method():
    class Batch(dict):
        def select_indices(self, order):
            return Batch({k: v[order] for k, v in self.items()})

        def shard_by_batch_size(self, shards, batch_size=None, allow_uneven_shards=False, dynamic_batching_args=None,
                                sequence_packing_args=None):
            assert dynamic_batching_args is None
            each, size = batch_size or len(self["n"]), (batch_size or len(self["n"])) // shards
            return [types.SimpleNamespace(n=np.concatenate([self["n"][c + s * size:c + (s + 1) * size]
                                                            for c in range(0, len(self["n"]), each)])) for s in range(shards)]

    nemo_rl_dynamic.install(Batch)
    nemo_rl_dynamic.install(Batch)  # a second time changes nothing
    n = np.array([5, 60, 7, 50, 9, 40, 11, 30])
    batch = Batch(n=n, ids=np.zeros((8, 64)))
    assert len(batch.shard_by_batch_size(2)) == 2
    args = {"max_tokens_per_microbatch": 128, "input_key": "ids", "input_lengths_key": "n", "sequence_length_round": 4}
    shards, order = batch.shard_by_batch_size(2, batch_size=4, dynamic_batching_args=args)
    assert sorted(order) == list(range(8)) and all(i < 4 for i in order[:4])
    assert sorted(np.concatenate([s.n for s in shards]).tolist()) == sorted(n.tolist())
    for shard in shards:
        assert len(shard.micro_batch_indices) == 2 and shard.micro_batch_indices[0][-1][1] == 2


# ---- TRL's rollouts, Hugging Face ------------------------------------------------------------------------------------


class Tree:
    """A row as TRL 1.16.0 has them, for samples of one group: what they share is written once."""

    def __init__(self):
        self.samples, self.groups, self.trained, self.nodes = [], set(), 0, {}

    def _new(self, sample):
        ids = list(sample["input_ids"])
        return [p for p in (tuple(ids[:i + 1]) + ((ids + [None])[i + 1],) for i in range(len(ids))) if p not in self.nodes]

    def fits(self, sample, budget):
        return len(self.nodes) + len(self._new(sample)) <= budget and self.trained + sum(sample["completion_mask"]) <= budget

    def add(self, sample):
        self.nodes.update(dict.fromkeys(self._new(sample)))
        self.samples.append(sample)
        self.groups.add(sample["group_id"])
        self.trained += sum(sample["completion_mask"])

    tokens = property(lambda self: list(self.nodes))
    load = property(lambda self: sum(len(path) - 1 for path in self.nodes))


def rollouts(lengths, group, prompt):
    """Samples whose groups share a prompt of their own."""
    return [{"input_ids": [1000 + i // group] * prompt + [i] * n, "completion_mask": [0] * prompt + [1] * n, "group_id": i // group,
             "number": i} for i, n in enumerate(lengths)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 3), st.integers(1, 8),
       st.integers(0, 6))
def test_token_budget_batcher(lengths, ranks, lookahead, group, prompt):
    samples = rollouts(lengths, group, prompt)
    batcher = trl_rollouts.TokenBudgetBatcher(samples, ranks, 14, {}, lookahead=lookahead, row=Tree)  # as AsyncGRPOTrainer calls it
    seen = []
    for rows in batcher:
        assert len(rows) == ranks
        assert all(row.samples and len(row.tokens) <= 14 and row.trained <= 14 for row in rows)
        seen += [sample["number"] for row in rows for sample in row.samples]
    assert len(seen) == len(set(seen)) and len(lengths) - len(seen) < ranks  # only too few for a row each are left out


def test_token_budget_batcher_forwards_a_shared_prompt_once():
    samples = rollouts([2] * 32, 8, 12)  # 448 tokens, of which 8 * 2 + 12 of a group are its own
    rows = [row for rows in trl_rollouts.TokenBudgetBatcher(samples, 2, 44, row=Tree) for row in rows]
    assert [len(row.groups) for row in rows] == [1] * 4 and all(len(row.samples) == 8 for row in rows)
    halves = list(trl_rollouts.TokenBudgetBatcher(samples[:8], 2, 44, row=Tree))
    assert [len(row.samples) for row in halves[0]] == [4, 4]  # one group on two ranks: no rank has nothing


def test_token_budget_batcher_leaves_out_what_is_too_long(caplog):
    metrics = {"batch/dropped_oversize_total": []}
    batches = list(trl_rollouts.TokenBudgetBatcher(rollouts([12] + [3] * 60, 1, 0), 2, 8, metrics, row=Tree))
    assert "12 tokens" in caplog.text and sum(len(row.samples) for rows in batches for row in rows) == 60
    assert metrics == {"batch/dropped_oversize_total": [1.0]}


def test_collator_takes_positions_for_boundaries_and_refuses_what_says_nothing():
    packed = {"input_ids": [1, 5, 2, 1, 6, 7, 2], "position_ids": [0, 1, 2, 0, 1, 2, 3], "seq_lengths": [3, 4]}
    want = huggingface.PackingCollator("np")([{k: packed[k] for k in ("input_ids", "seq_lengths")}])
    got = huggingface.PackingCollator("np")([{k: packed[k] for k in ("input_ids", "position_ids")}])
    assert got["cu_seq_lens_q"].tolist() == want["cu_seq_lens_q"].tolist() == [0, 3, 7]
    assert got["position_ids"].tolist() == [packed["position_ids"]]
    silent = [{"input_ids": packed["input_ids"]}]
    with pytest.raises(ValueError, match="remove_unused_columns=False.*packed=False"):
        huggingface.PackingCollator("np")(silent)
    assert huggingface.PackingCollator("np", packed=False)(silent)["cu_seq_lens_q"].tolist() == [0, 7]
    turns = {"input_ids": packed["input_ids"], "labels": [-100, 5, 2, -100, 6, 7, 2]}  # a conversation: prompts are masked
    assert huggingface.PackingCollator("np")([turns])["cu_seq_lens_q"].tolist() == [0, 7]
    with pytest.raises(ValueError, match="says nothing"):
        huggingface.PackingCollator("np", packed=True)([{"input_ids": [1, 2, 3]}])
    with pytest.raises(ValueError, match="3 input_ids and 2 position_ids"):
        huggingface.PackingCollator("np")([{"input_ids": [1, 2, 3], "position_ids": [0, 1]}])


def test_collator_pads_to_a_multiple():
    out = huggingface.PackingCollator("np", pad_to_multiple_of=8, pad_token_id=9, return_seq_idx=True)(
        [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 3]}])
    assert out["input_ids"].tolist() == [[5, 6, 7, 8, 3, 9, 9, 9]] and out["labels"].tolist()[0][5:] == [-100] * 3
    assert out["cu_seq_lens_q"].tolist() == [0, 3, 5, 8] and out["seq_idx"].tolist() == [[0, 0, 0, 1, 1, -1, -1, -1]]
    both = huggingface.PackingCollator("np", pad_to_multiple_of=6, align=4)([{"input_ids": [5, 6, 7]}])
    assert both["input_ids"].shape == (1, 12)


# ---- TRL on Arrow ----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.sampled_from([5, 9, 16, 40]))
def test_trl_bfd_rows_are_trls_where_lengths_tie(lengths, seq_length):
    """TRL takes the row that has waited longest among rows with the same room."""
    lengths, rows, waiting = [min(n, seq_length) for n in lengths], [], {}
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = min((r for r, queue in waiting.items() if queue and r >= lengths[i]), default=None)
        row = waiting[room].pop(0) if room else []
        rows += [] if room else [row]
        row.append(i)
        waiting.setdefault((room or seq_length) - lengths[i], []).append(row)
        waiting.pop(0, None)
    got = trl.pack_examples({"n": [[i] * n for i, n in enumerate(lengths)]}, seq_length)
    assert got["n"] == [[i for i in row for _ in range(lengths[i])] for row in rows]
    assert got["seq_lengths"] == [[lengths[i] for i in row] for row in rows]


def test_trl_tables():
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: Arrow tables were not packed")
    from ravel.adapters import trl

    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 60, 200)
    rows = [rng.integers(0, 999, n).tolist() for n in lengths]
    words = [[str(x) for x in row] for row in rows]
    for overflow in ("truncate", "split"):
        for method in ("bfd", "ravel"):
            table = pa.table({"input_ids": pa.array(rows, pa.large_list(pa.int32())), "words": pa.array(words)}).slice(3, 150)
            packed = trl.pack_table(table, 32, method, overflow, position_ids=True)
            flat = trl.pack_examples({"input_ids": rows[3:153], "words": words[3:153]}, 32, method, overflow)
            assert packed["input_ids"].to_pylist() == flat["input_ids"] and packed["words"].to_pylist() == flat["words"]
            assert packed["seq_lengths"].to_pylist() == flat["seq_lengths"]
            assert packed["position_ids"].to_pylist() == [[i for n in own for i in range(n)] for own in flat["seq_lengths"]]
            assert packed.schema.field("input_ids").type == pa.large_list(pa.int32())
            assert all(len(row) <= 32 for row in flat["input_ids"])
            assert all(own == sorted(own, reverse=True) for own in flat["seq_lengths"])  # longest first, as documented
    chunks = pa.concat_tables([pa.table({"a": [[1, 2], None]}), pa.table({"a": [[3], [4, 5, 6]]})])
    assert sorted(sum(trl.pack_table(chunks, 4)["a"].to_pylist(), [])) == [1, 2, 3, 4, 5, 6]
    assert trl._wrap_table(chunks, 4)["a"].to_pylist() == [[1, 2, 3, 4], [5, 6]]
    assert trl._wrap_table(chunks.slice(1, 2), 4)["a"].to_pylist() == [[3]]
    with pytest.raises(TypeError, match="column 'text' holds string, not lists"):
        trl.pack_table(pa.table({"text": ["abc"]}), 4)
    with pytest.raises(ValueError, match="column 'b' has rows of other lengths than 'a'"):
        trl.pack_table(pa.table({"a": [[1]], "b": [[1, 2]]}), 4)
    with pytest.raises(ValueError, match="row 1 has 3 tokens, which exceeds seq_length 2"):
        trl.pack_table(pa.table({"a": [[1], [1, 2, 3]]}), 2, overflow="error")
    empty = trl.pack_table(pa.table({"a": pa.array([[]], pa.list_(pa.int64()))}), 4)
    assert empty.num_rows == 0 and empty.column_names == ["a", "seq_lengths"]
    assert trl._wrap_table(pa.table({"a": pa.array([[]], pa.list_(pa.int64()))}), 4).num_rows == 0


def test_trl_datasets_keep_their_format():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: its formats were not tried")
    from ravel.adapters import trl

    data = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6, 7], [8]]})
    for given in (data, data.with_format("numpy"), data.with_format("arrow"), data.with_format("numpy", dtype="float32")):
        packed = trl.pack_dataset(given, 4)
        assert packed.to_dict() == {"input_ids": [[4, 5, 6, 7], [1, 2, 3, 8]], "seq_lengths": [[4], [3, 1]]}
        assert packed.format["type"] == given.format["type"] and packed.format["format_kwargs"] == given.format["format_kwargs"]
    packed = huggingface.pack_dataset(data, 4)
    rows = [{k: v for k, v in row.items() if k in ("input_ids", "position_ids")} for row in packed]  # what the Trainer keeps
    out = huggingface.PackingCollator("np")(rows)
    assert out["cu_seq_lens_q"].tolist() == [0, 4, 7, 8] and set(packed.column_names) == {"input_ids", "position_ids", "seq_lengths"}


def test_trl_install_reaches_the_trainer():
    pytest.importorskip("trl", reason="trl is not installed: SFTTrainer was not switched")
    from trl.trainer import sft_trainer

    from ravel.adapters import trl

    before = sft_trainer.pack_dataset
    places = trl.install(overflow="error")
    try:
        assert "trl.trainer.sft_trainer.pack_dataset" in places and sft_trainer.pack_dataset.func is trl.pack_dataset
    finally:
        _switch.put("trl.data_utils", {"pack_dataset": before})
    assert sft_trainer.pack_dataset is before
