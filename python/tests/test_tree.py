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


def padded(rows, left):
    width = max(map(len, rows)) + 2
    ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        at = width - len(row) - 1 if left else 1
        ids[i, at:at + len(row)], mask[i, at:at + len(row)] = row, 1
    return ids, mask


def test_rows_of_any_kind_become_a_tree_and_find_their_way_back():
    from ravel.adapters import tree_rows

    rows = draw(7, groups=4)
    packed = np.concatenate(rows)[None]
    positions = np.concatenate([np.arange(len(row)) for row in rows])[None]
    for ids, mask, given in ((*padded(rows, True), None), (*padded(rows, False), None), (packed, None, positions)):
        batch, places = tree_rows.find(ids, mask, given)
        assert batch.actual_tokens == sum(map(len, rows)) > batch.unique_tokens
        assert (batch["tokens"][batch["path"]] == ids.reshape(-1)[places]).all()
        assert sorted(places.tolist()) == (np.flatnonzero(mask).tolist() if mask is not None else list(range(ids.size)))
    assert tree_rows.find(packed, None, positions + 1) is None  # nobody knows where samples begin
    assert tree_rows.find(np.ones((1, 5), np.int64)) is None    # one sample shares with nothing


def test_verl_micro_batches_count_shared_tokens_once():
    from ravel.adapters import verl

    rows = draw(8, groups=10, answers=6)
    lengths, tree = [len(row) for row in rows], ravel.tree_order(rows)
    flat, shared = (verl.get_micro_batch_indices(lengths, 150, tree=found) for found in (None, tree))
    assert sorted(i for part in shared for i in part) == list(range(len(rows))) and len(shared) < len(flat)
    for part in shared:
        assert part and len({tuple(rows[i][:n].tolist()) for i in part for n in range(1, len(rows[i]) + 1)}) <= 150
    with pytest.raises(ValueError, match="trees need"):
        verl.get_micro_batch_indices(lengths, 150, force_group_size=2, tree=tree)

    class Batch(dict):
        def __getitem__(self, key):
            return super().__getitem__(key) if isinstance(key, str) else key

    ids, mask = padded(rows, True)
    assert verl.rearrange_micro_batches(Batch(input_ids=ids, attention_mask=mask), 150, trees=True)[1] == shared
