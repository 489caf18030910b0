"""Plans through Python: the promises, recounted here; what goes in and what comes out; wrong input."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel


def recount(plan, lengths, budget, dp, align=1, cp=1):
    lengths = np.asarray(lengths)
    slots = -(-lengths // align) * align
    seen = np.concatenate([b for b in plan.bins]) if plan.bins else np.empty(0, int)
    assert sorted(seen.tolist()) == list(range(len(lengths)))
    for i, part in enumerate(plan.bins):
        assert slots[part].sum() <= budget * cp
        assert lengths[part].sum() == plan.bin_tokens[i]
        assert slots[part].sum() == plan.bin_slots[i]
    assert len(plan.bins) == len(plan) * dp
    assert plan.stats["over_budget"] == 0
    assert plan.stats["samples"] == len(lengths)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=80), st.integers(1, 6), st.sampled_from([1, 8, 16]),
       st.sampled_from(["micro-step", "update", "pipeline"]), st.sampled_from(["fast", "default", "max"]))
def test_promises(lengths, dp, align, sync, effort):
    plan = ravel.plan(lengths, budget=512, dp=dp, align=align, sync=sync, effort=effort)
    recount(plan, lengths, 512, dp, align)
    again = ravel.plan(np.array(lengths), budget=512, dp=dp, align=align, sync=sync, effort=effort)
    assert again.digest == plan.digest and np.array_equal(again.samples, plan.samples)


@pytest.mark.parametrize("method", ["ravel", "next-fit", "next-fit-decreasing", "ffd", "bfd", "mffd", "kk", "lpt"])
def test_every_method(method):
    lengths = np.random.default_rng(1).integers(1, 1000, 300)
    recount(ravel.plan(lengths, budget=2000, dp=4, method=method), lengths, 2000, 4)


def test_views_outlive_the_plan():
    samples = ravel.plan([5, 6, 7], budget=16).samples
    assert sorted(samples.tolist()) == [0, 1, 2]
    with pytest.raises(ValueError):
        samples[0] = 9


def test_micro_steps_and_updates():
    plan = ravel.plan([10] * 12, budget=20, dp=2, updates=3)
    assert plan.updates == 3 and len(plan) == int(plan.update_offsets[-1])
    parts = [plan.micro_steps(rank, update) for update in range(3) for rank in range(2)]
    assert sorted(i for part in parts for b in part for i in b.tolist()) == list(range(12))
    with pytest.raises(IndexError):
        plan.micro_steps(2)


def test_replay_is_a_permutation_inside_updates():
    plan = ravel.plan([10] * 40, budget=20, dp=2, updates=2)
    order = plan.replay(3, 1)
    assert sorted(order.tolist()) == list(range(len(plan)))
    cut = int(plan.update_offsets[1])
    assert sorted(order[:cut].tolist()) == list(range(cut))
    assert plan.replay(3, 0).tolist() == list(range(len(plan)))


def test_inputs_of_all_kinds():
    want = ravel.plan([3, 4, 5], budget=8).digest
    assert ravel.plan((3, 4, 5), budget="8").digest == want
    assert ravel.plan(np.array([3, 4, 5], np.int32), budget=8).digest == want
    assert ravel.plan(np.array([3, 9, 4, 9, 5])[::2], budget=8).digest == want
    pair = ravel.plan(prompts=[1, 2, 3], responses=[2, 2, 2], budget=8)
    assert pair.stats["actual_tokens"] == 12


@pytest.mark.parametrize("call, error, says", [
    (dict(lengths=[3, 0], budget=8), ravel.DataError, "sample 1"),
    (dict(lengths=[3, 99], budget=8), ravel.OversizeError, "sample 1"),
    (dict(lengths=[3], budget=8, method="best"), ravel.ArgumentError, "must be one of"),
    (dict(lengths=[3], budget=0), ravel.ArgumentError, "budget"),
    (dict(lengths=[3.5], budget=8), TypeError, "integers"),
    (dict(lengths=[[3]], budget=8), ValueError, "one dimension"),
    (dict(lengths=[3], budget=8, costs=[1, 2]), ValueError, "entries"),
    (dict(budget=8), TypeError, "lengths"),
    (dict(lengths=[3], budget=8, dp=1 << 40), OverflowError, "32 bits"),
])
def test_bad_input_is_an_exception_with_a_sentence(call, error, says):
    with pytest.raises(error, match=says):
        ravel.plan(**call)


def test_keywords_are_the_librarys_options():
    import inspect
    names = set(inspect.signature(ravel.plan).parameters)
    assert set(ravel.plan_options()) <= names, set(ravel.plan_options()) - names


def test_planner_takes_and_flushes():
    planner = ravel.Planner(budget=100, dp=2, fill=0.9)
    rng, seen = np.random.default_rng(0), []
    for i in range(30):
        planner.push(rng.integers(1, 60, 4), ids=np.arange(4 * i, 4 * i + 4))
        while (ready := planner.take()) is not None:
            seen += ready.ids[ready.samples].tolist()
    last = planner.flush()
    seen += last.ids[last.samples].tolist()
    assert sorted(seen) == list(range(120)) and len(planner) == 0 and planner.flush() is None


def test_a_planner_keeps_deadlines_and_versions():
    planner = ravel.Planner(budget=1000, dp=2, fill=1.0, max_wait=5, max_stale=2)
    planner.push([10, 20], ids=[1, 2])
    planner.push([30], ids=[3], deadlines=[2])
    assert planner.take() is None
    planner.advance(2)
    assert 3 in planner.take().ids
    planner.push([40], ids=[4], versions=[0])
    planner.advance(3, 1)
    assert planner.take() is None
    planner.advance(4, 2)  # version 3 would be three ahead
    assert 4 in planner.take().ids and len(planner) == 0
    planner.push([50] * 3)
    planner.advance(8, 2)
    assert planner.take() is None
    planner.advance(9, 2)
    assert planner.take() is not None
    report = planner.report()
    assert report["samples"] == 7 and report["forced"] >= 3 and report["stale_max"] == 2 and max(report["wait_max"]) == 5
    assert report["count"] == [7, 0, 0, 0, 0, 0, 0, 0] and len(report["wait_mean"]) == 8
    with pytest.raises(ravel.ArgumentError):
        ravel.Planner(budget=10, fill=2.0)
    with pytest.raises(TypeError):
        ravel.Planner(budget=10, max_wait=1.5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=60), st.sampled_from([1, 2, 6, 8, 16]), st.sampled_from([1, 2]))
def test_groups_of_a_pool(lengths, pool, tp):
    plan = ravel.plan(lengths, budget=800, cp_pool=pool, cp_tp=tp, cost=(1000, 1))
    plan.check()
    seen = []
    for step, groups in enumerate(map(plan.hybrid.groups, range(len(plan)))):
        ranks = [r for g in groups for r in range(g.first, g.first + g.width)]
        assert len(set(ranks)) == len(ranks) and all(0 <= r < pool for r in ranks)
        for g in groups:
            assert g.first % g.width == 0 and sum(plan.slot(lengths[i], g.width) for i in g.samples) <= 800 * g.width
            for r in range(g.first, g.first + g.width):
                assert plan.micro_steps(r)[step].tolist() == g.samples.tolist()
            seen += g.samples.tolist()
    assert sorted(seen) == list(range(len(lengths)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 300), max_size=20), min_size=1, max_size=8), st.integers(1, 3),
       st.sampled_from([1, 2]), st.sampled_from([0.5, 0.9, 1.0]))
def test_what_a_planner_gives_are_plans(pushes, dp, multiple, fill):
    """Each passes its check, and together they have every sample once, under the cap."""
    planner = ravel.Planner(budget=300, dp=dp, multiple=multiple, fill=fill)
    lengths, plans = [], []
    for push in pushes:
        planner.push(push)
        lengths += push
        while (ready := planner.take()) is not None:
            plans.append(ready)
    if (last := planner.flush()) is not None:
        plans.append(last)
    for plan in plans:
        plan.check()
        assert plan.lengths.tolist() == [lengths[i] for i in plan.ids]
    seen = [int(i) for plan in plans for i in plan.ids[plan.samples]]
    assert sorted(seen) == list(range(len(lengths))) and len(planner) == 0
    assert sum(len(plan) for plan in plans) % multiple == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=50), st.integers(1, 4), st.sampled_from([1, 4]),
       st.sampled_from(["ravel", "ffd", "kk", "next-fit"]))
def test_python_and_c_agree(lengths, dp, align, method):
    """The same call made by hand through the C functions gives the same plan, to the last figure."""
    import ctypes as C

    from ravel import _abi
    from ravel._lib import lib
    options, made, error = _abi.ravel_plan_options(), C.POINTER(_abi.ravel_plan)(), _abi.ravel_error()
    lib.ravel_plan_options_default(C.byref(options))
    options.budget, options.dp, options.align = 256, dp, align
    names = [lib.ravel_method_name(i).decode() for i in range(8)]
    options.method = names.index(method)
    array = (C.c_int64 * len(lengths))(*lengths)
    source = _abi.ravel_plan_input(size=C.sizeof(_abi.ravel_plan_input), count=len(lengths), lengths=C.addressof(array))
    assert lib.ravel_plan_create(C.byref(source), C.byref(options), C.byref(made), C.byref(error)) == 0, error.message
    c, plan = made.contents, ravel.plan(lengths, budget=256, dp=dp, align=align, method=method)
    assert f"{c.digest:016x}" == plan.digest and c.micro_steps == len(plan)
    assert list((C.c_int32 * len(lengths)).from_address(c.samples)) == plan.samples.tolist()
    assert list((C.c_int64 * (c.bins + 1)).from_address(c.bin_offsets)) == plan.bin_offsets.tolist()
    assert {name: getattr(c.stats, name) for name in plan.stats} == plan.stats
    lib.ravel_plan_free(made)


def test_threads_plan_side_by_side():
    """Threads that share everything get what one gets, and every call is made without the GIL."""
    import ctypes
    import threading

    from ravel._lib import lib
    assert isinstance(lib, ctypes.CDLL) and not lib._func_flags_ & ctypes.PyDLL._func_flags_ & ~ctypes.CDLL._func_flags_
    rng = np.random.default_rng(7)
    inputs = [rng.integers(1, 4000, 2000) for _ in range(8)]
    want = [ravel.plan(lengths, budget=8192, dp=4).digest for lengths in inputs]
    got = [[] for _ in inputs]

    def work(i):
        for _ in range(5):
            plan = ravel.plan(inputs[i], budget=8192, dp=4)
            plan.check()
            got[i].append(plan.digest)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[digest] * 5 for digest in want]


def test_many_samples():
    lengths = np.random.default_rng(5).integers(1, 2000, 300_000)
    plan = ravel.plan(lengths, budget=65536, dp=64)
    assert int(plan.bin_tokens.sum()) == int(lengths.sum()) and int(plan.bin_slots.max()) <= 65536
    assert sorted(plan.samples.tolist()) == list(range(lengths.size))


def test_sentences_name_options_as_they_are_called_here():
    with pytest.raises(ravel.Error, match="max_samples") as wrong:
        ravel.plan([3, 4], budget=8, max_samples=-1)
    assert "max-samples" not in str(wrong.value)
    store = ravel.Ragged([3, 4], tokens=np.arange(7))
    with pytest.raises(ravel.Error, match="max_samples"):
        ravel.pack(store, [0, 1], fixed_tokens=16)
    words = {"max-samples is 0": "max_samples is 0", "set --max-samples, or fixed-tokens": "set max_samples, or fixed_tokens",
             "file max-samples.json, a/max-samples, x-max-samples and max-samples-y": None, '"max-samples"': None, "zig-zag": None,
             "raise max-samples.": "raise max_samples."}
    from ravel._lib import _as_keywords
    for sentence, wanted in words.items():
        assert _as_keywords(sentence) == (wanted or sentence)


def test_shared_prefixes_count_once():
    lengths = [100, 100, 100, 100]
    assert len(ravel.plan(lengths, budget=200).bins) == 2
    assert len(ravel.plan(lengths, budget=200, shared=[0, 80, 80, 80]).bins) == 1  # 100 + 3 * 20 tokens
    assert len(ravel.plan(lengths, budget=200, shared=[0, 80, 0, 80], order=[0, 2, 1, 3]).bins) == 2


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_starts_are_tried_where_the_first_is_far_from_the_bound(seed):
    rng = np.random.default_rng(seed)  # bins nearly full, of few long and short samples
    lengths = np.where(rng.random(4096) < 0.5, rng.normal(1228, 245, 4096), rng.normal(4505, 655, 4096)).clip(16, 8192).astype(int)
    plan = ravel.plan(lengths, budget=8192, dp=16, cost=(24576, 1), sync="micro-step")
    assert plan.stats["slowdown"] < 1.0025
