"""Experts' routes: packed in every layout, cut, brought back, and what a slip does; and the shapes of the frameworks."""

import base64
import types

import numpy as np
import pytest

import ravel
from ravel.adapters import routes as shapes

LAYERS, TOPK, EXPERTS = 3, 4, 60


def _samples(rng, count=6):
    lengths = rng.integers(2, 30, count)
    rows = [np.argsort(rng.random((n - 1, LAYERS, EXPERTS)))[..., :TOPK].astype(np.int16) for n in lengths]
    return lengths, rng.integers(0, 1000, int(lengths.sum())).astype(np.int32), rows


def _store(seed=0):
    lengths, tokens, rows = _samples(np.random.default_rng(seed))
    store = ravel.Ragged(lengths, tokens=tokens)
    ravel.add_routes(store, rows, experts=EXPERTS)
    return store, rows


def test_routes_go_with_their_tokens_in_every_layout():
    for seed in range(5):
        store, rows = _store(seed)
        everyone = range(len(store))
        for batch in (ravel.pack(store, everyone, segments=True, align=8), ravel.pad(store, everyone),
                      ravel.pad(store, [*everyone][::-1], side="left", rows=9), ravel.pack(store, everyone, tree=True)):
            assert batch["routed_experts"].shape[-1] == LAYERS * TOPK
            ravel.check_routes(batch, experts=EXPERTS, topk=TOPK)
            assert [a.shape[-1] for a in shapes.per_layer(batch["routed_experts"], TOPK)] == [TOPK] * LAYERS
            for shift in (-1, 1):
                late = batch["routed_experts"].copy()
                batch._arrays["routed_experts"] = np.roll(late, shift, axis=-2)
                with pytest.raises(ravel.DataError, match="route"):
                    ravel.check_routes(batch, experts=EXPERTS, topk=TOPK)
                batch._arrays["routed_experts"] = late
        whole = ravel.pack(store, everyone, align=4)
        back = ravel.scatter(store, whole, whole["routed_experts"])
        assert np.array_equal(back, store.fields["routed_experts"].data)


def test_shards_add_up():
    store, _ = _store(3)
    shards = [ravel.pack(store, range(len(store)), segments=True, align=8, cp=2, cp_rank=r) for r in range(2)]
    with pytest.raises(ravel.DataError, match="its routes are not those of its tokens"):
        ravel.check_routes(shards[0], experts=EXPERTS, topk=TOPK)  # half of it

    def rank(comm):
        ravel.check_routes(shards[comm.rank], experts=EXPERTS, topk=TOPK, comm=comm)
        shards[1]._arrays["routed_experts"][0] = -1
        with pytest.raises(ravel.DataError):
            ravel.check_routes(shards[comm.rank], experts=EXPERTS, topk=TOPK, comm=comm)

    ravel.comm.threads(2, rank)


def test_routes_go_to_the_ranks_of_their_bins_and_back():
    """Exchange, pack, check, scatter: each rank finds the rows that its samples left with."""
    lengths, tokens, rows = _samples(np.random.default_rng(11), 24)
    starts = np.concatenate([[0], np.cumsum(lengths)])

    def rank(comm):
        mine = list(range(len(lengths)))[comm.rank::comm.size]
        store = ravel.Ragged(lengths[mine], tokens=np.concatenate([tokens[starts[i]:starts[i + 1]] for i in mine]))
        ravel.add_routes(store, [rows[i] for i in mine], experts=EXPERTS)
        every, counts = ravel.gather(comm, store.lengths)
        plan = ravel.plan(every, budget=64, dp=comm.size)
        arrived = ravel.exchange(comm, plan, store, counts)
        order = [i for r in range(comm.size) for i in range(len(lengths))[r::comm.size]]
        for k, number in enumerate(arrived.numbers):
            at = int(arrived.lengths[:k].sum())
            found = arrived.fields["routed_experts"].data[at:at + int(arrived.lengths[k])].reshape(-1, LAYERS, TOPK)
            assert np.array_equal(found[:-1], rows[order[number]]) and (found[-1] == -1).all()
        back = np.full_like(arrived.fields["routed_experts"].data, -7)
        for part in arrived.bins:
            whole = ravel.pack(arrived, part, segments=True)
            ravel.check_routes(whole, experts=EXPERTS, topk=TOPK)
            brought = ravel.scatter(arrived, whole, whole["routed_experts"])
            for i in part:
                places = slice(int(arrived.lengths[:i].sum()), int(arrived.lengths[:i + 1].sum()))
                back[places] = brought[places]
        assert np.array_equal(back, arrived.fields["routed_experts"].data)

    ravel.comm.threads(3, rank, timeout=60)


def test_mistakes():
    store, rows = _store()
    plain = ravel.Ragged(store.lengths, tokens=store.fields["tokens"].data)
    with pytest.raises(ValueError, match="rows of routes and"):
        ravel.add_routes(plain, [np.concatenate([r, r]) for r in rows], experts=EXPERTS)
    with pytest.raises(ravel.DataError, match="sample 0, token 0, layer 0"):
        ravel.add_routes(plain, [np.zeros_like(r) for r in rows], experts=EXPERTS)
    with pytest.raises(TypeError, match="padding is -1"):
        ravel.add_routes(plain, [r.astype(np.uint8) for r in rows], experts=EXPERTS)
    with pytest.raises(ValueError, match="pack with segments=True"):
        ravel.check_routes(ravel.pack(store, range(3)), experts=EXPERTS, topk=TOPK)
    assert list(plain.fields) == ["tokens"]


def test_the_frameworks_shapes():
    lengths, _, rows = _samples(np.random.default_rng(1))
    for n, r in zip(lengths, rows):
        prompt = int(n) // 2
        output = types.SimpleNamespace(prompt_token_ids=[0] * prompt, outputs=[types.SimpleNamespace(
            token_ids=[0] * (int(n) - prompt), routed_experts=r)])
        assert np.array_equal(shapes.from_vllm(output), r)
        output.outputs[0].routed_experts = r[2:]
        if n > 2:
            with pytest.raises(ValueError, match="there are"):
                shapes.from_vllm(output)
            assert (shapes.from_vllm(output, start=min(2, int(n) - 1))[:2] == -1).all()
        sample = types.SimpleNamespace(tokens=[0] * int(n), rollout_routed_experts=r.astype(np.int32))
        assert np.array_equal(shapes.from_slime(sample), r)
        sample.tokens.append(0)
        with pytest.raises(ValueError, match="the last one alone has none"):
            shapes.from_slime(sample)
        meta = {"routed_experts": base64.b64encode(r.astype(np.int32).tobytes()).decode()}
        assert np.array_equal(shapes.from_sglang(meta, int(n), LAYERS), r)
        with pytest.raises(ValueError, match="no rows of"):
            shapes.from_sglang(meta, int(n) + 1 + (int(n) - 1) * LAYERS * TOPK, LAYERS)
    columns = int(lengths.max()) + 3
    mask = np.zeros((len(rows), columns), np.int64)
    for i, n in enumerate(lengths):
        mask[i, columns - n:] = 1  # padded left, as verl's prompts and SkyRL's rows are
    padded = shapes.to_padded(rows, mask)
    assert padded.shape == (len(rows), columns, LAYERS, TOPK) and padded[mask == 0].max() == 0
    for found, r in zip(shapes.from_padded(padded, mask), rows):
        assert np.array_equal(found[:-1], r) and (found[-1] == -1).all()  # the last token was never read
