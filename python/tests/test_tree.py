"""Prefix trees: the order from ids, and plans that compute a shared token once."""
import numpy as np
import pytest

import ravel


def draw(seed, groups=12, answers=5):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(groups):
        prompt = rng.integers(0, 1000, rng.integers(1, 60))
        rows += [np.concatenate([prompt, rng.integers(0, 1000, rng.integers(1, 40))]).astype(np.int32) for _ in range(answers)]
    rng.shuffle(rows)
    return rows


def common(a, b):
    n = min(len(a), len(b))
    differ = np.nonzero(a[:n] != b[:n])[0]
    return int(differ[0]) if differ.size else n


def test_the_order_says_what_neighbours_share():
    rows = draw(1)
    order, shared = ravel.tree_order(rows)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert shared[0] == 0
    for i in range(1, len(rows)):
        assert shared[i] == common(rows[order[i - 1]], rows[order[i]])
    flat = ravel.tree_order(np.concatenate(rows), [len(row) for row in rows])
    assert (flat.order == order).all() and (flat.shared == shared).all()


def test_keys_are_compared_along_with_ids():
    rows = [[1, 2, 3], [1, 2, 3], [1, 2, 4]]
    assert ravel.tree_order(rows).shared.tolist() == [0, 3, 2]
    apart = ravel.tree_order(rows, sample_keys=[7, 8, 7])
    assert apart.order.tolist() == [0, 2, 1] and apart.shared.tolist() == [0, 2, 0]
    images = ravel.tree_order(rows, token_keys=[0, 5, 0, 0, 6, 0, 0, 5, 0])
    assert images.order.tolist() == [0, 2, 1] and images.shared.tolist() == [0, 2, 1]


def test_a_plan_counts_a_shared_token_once():
    rows = draw(2)
    lengths = [len(row) for row in rows]
    plan = ravel.plan(lengths, budget=400, dp=2, cost="24576:1", **ravel.tree_order(rows)._asdict())
    plan.check()
    assert sorted(plan.samples.tolist()) == list(range(len(rows)))
    offsets = plan.bin_offsets
    for b, samples in enumerate(plan.bins):
        paths = {tuple(rows[s][:n].tolist()) for s in samples for n in range(1, len(rows[s]) + 1)}
        own = plan.shared[offsets[b]:offsets[b + 1]]
        assert len(paths) == plan.bin_tokens[b] == sum(lengths[s] for s in samples) - own.sum() <= 400
    assert plan.stats["unique_tokens"] < plan.stats["flat_tokens"] == sum(lengths)
    assert ravel.plan(lengths, budget=400).shared is None
    assert "rv-shared" in plan.to_svg() and '"shared":[' in plan.to_json()
    cut = ravel.plan(lengths, budget=400, dp=2, cost="24576:1", tree_method="cut", **ravel.tree_order(rows)._asdict())
    cut.check()
    assert cut.stats["time"] >= plan.stats["time"]


def test_groups_need_no_tokens():
    order, shared = ravel.tree_from_groups([7, 9, 5, 8], prompts=[4, 5, 4, 5], groups=[1, 2, 1, 2])
    assert order.tolist() == [0, 2, 1, 3] and shared.tolist() == [0, 4, 0, 5]
    with pytest.raises(ravel.DataError, match="prompts have 4 and 3 tokens"):
        ravel.tree_from_groups([7, 9], prompts=[4, 3], groups=[1, 1])


def test_arrivals_share_inside_a_push():
    planner = ravel.Planner(budget=200, dp=2)
    seen = []
    for seed in (3, 4):
        rows = draw(seed)
        planner.push([len(row) for row in rows], **ravel.tree_order(rows)._asdict())
        while (ready := planner.take()) is not None:
            ready.check()
            seen += ready.ids[ready.samples].tolist()
    last = planner.flush()
    last.check()
    seen += last.ids[last.samples].tolist()
    assert sorted(seen) == list(range(120)) and last.to_svg()


def test_what_cannot_be_is_named():
    with pytest.raises(ravel.DataError, match="place 1 of the tree order shares 9 tokens"):
        ravel.plan([5, 6], budget=16, shared=[0, 9])
    with pytest.raises(ValueError, match="lengths add up to 3; there are 4 ids"):
        ravel.tree_order([1, 2, 3, 4], [1, 2])
