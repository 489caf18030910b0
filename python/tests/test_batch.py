"""Packing, shards, scatter and weights against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel


def make(lengths, seed=0):
    rng = np.random.default_rng(seed)
    total = int(np.sum(lengths))
    ids = rng.integers(0, 1000, total).astype(np.int32)
    return ravel.Ragged(lengths, tokens=ids, labels=ravel.Field("labels", ids, "next", pad=-100),
                        lp=ravel.Field("lp", rng.standard_normal(total - len(lengths)).astype(np.float32), "step"),
                        reward=ravel.Field("reward", rng.standard_normal(len(lengths)), "sample")), ids


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from([1, 4, 8]), st.randoms())
def test_pack_is_plain_numpy_and_comes_back(lengths, align, random):
    store, ids = make(lengths)
    order = list(range(len(lengths)))
    random.shuffle(order)
    batch = ravel.pack(store, order, align=align, segments=True, padding=True)
    at = 0
    for n, sample in enumerate(order):
        length, first = lengths[sample], int(store.offsets[sample])
        own = ids[first:first + length]
        assert batch.tokens[at:at + length].tolist() == own.tolist()
        assert batch.labels[at:at + length].tolist() == [*own[1:].tolist(), -100]
        assert batch.positions[at:at + length].tolist() == list(range(length))
        assert (batch.segments[at:at + length] == n + 1).all() and not batch.padding[at:at + length].any()
        assert int(batch.cu_seqlens_padded[n]) == at
        at += -(-length // align) * align
    assert batch.slot_tokens == at
    assert ravel.scatter(store, batch, batch["tokens"]).tolist() == ids.tolist()
    assert np.array_equal(ravel.scatter(store, batch, batch["lp"], kind="step"), store.fields["lp"].data)
    assert np.array_equal(ravel.scatter(store, batch, batch["reward"], kind="sample"), store.fields["reward"].data)


@pytest.mark.parametrize("kind", ["zig-zag", "contiguous", "striped"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_come_back(kind, ranks):
    slots = np.cumsum([0, 16, 32, 8]).astype(np.int32)
    whole = np.arange(56 * 3).reshape(56, 3)
    shards = [ravel.cp_shard(whole, slots, r, ranks, kind) for r in range(ranks)]
    assert np.array_equal(ravel.cp_unshard(shards, slots, kind), whole)
    if kind == "zig-zag" and ranks == 2:
        assert shards[0][:8, 0].tolist() == [0, 3, 6, 9, 36, 39, 42, 45]


def test_padded_layouts():
    store, ids = make([2, 3])
    left = ravel.pad(store, [0, 1], side="left")
    assert left.tokens.shape == (2, 3) and left.attention_mask.tolist() == [[0, 1, 1], [1, 1, 1]]
    assert ravel.scatter(store, left, left["tokens"]).tolist() == ids.tolist()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_weights_make_packing_exact(mode):
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 30, 17)
    store, _ = make(lengths)
    mask = rng.integers(0, 2, int(lengths.sum())).astype(np.uint8)
    loss = rng.standard_normal(int(lengths.sum()))
    w = ravel.weights(store, mode=mode, mask=mask, dtype=np.float64)
    parts = [slice(int(a) + 1, int(b)) for a, b in zip(store.offsets, store.offsets[1:])]  # nothing predicts a first token
    if mode == "token-mean":
        want = sum((mask[p] * loss[p]).sum() for p in parts) / sum(int(mask[p].sum()) for p in parts)
    elif mode == "seq-mean-token-sum":
        want = sum((mask[p] * loss[p]).sum() for p in parts) / len(lengths)
    else:
        want = sum((mask[p] * loss[p]).sum() / max(1, int(mask[p].sum())) for p in parts) / len(lengths)
    assert (w * loss).sum() == pytest.approx(want, rel=1e-12)
    # over two "ranks", with counts summed by a callback, in bins of any cut
    total = sum((ravel.weights(store, mode=mode, mask=mask, samples=part, dtype=np.float64,
                               update_counts=ravel.counts(store, mask=mask)) * loss).sum()
                for part in np.array_split(np.arange(len(lengths), dtype=np.int32), 3))
    assert total == pytest.approx(want, rel=1e-12)


def test_wrong_sizes_are_said():
    with pytest.raises(ValueError, match="needs"):
        ravel.Ragged([2, 3], tokens=np.zeros(4, np.int32))
    store, _ = make([2, 3])
    with pytest.raises(ravel.ArgumentError):
        ravel.pack(store, [7])
    with pytest.raises(ValueError, match="one of"):
        ravel.Field("x", np.zeros(3), kind="row")
    with pytest.raises(ravel.ArgumentError, match="did you mean"):
        ravel.pack(store, [0], allign=4)
    for lengths, says in (([3, -1], "sample 1"), ([0], "sample 0"), ([2**62, 2**62], "sample 0")):
        with pytest.raises(ravel.DataError, match=says):
            ravel.Ragged(lengths, tokens=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="'positions', which is one of the packer's own"):
        ravel.pack(ravel.Ragged([2], positions=np.arange(2)), [0])
    batch = ravel.pack(store, [0, 1])
    with pytest.raises(ValueError, match="kind is 'row'"):
        ravel.scatter(store, batch, batch["tokens"], kind="row")
    sealed = np.zeros(5, np.int32)
    sealed.flags.writeable = False
    for out in (sealed, np.zeros(10, np.int32)[::2], np.zeros(5, np.int64), np.zeros(4, np.int32)):
        with pytest.raises(ValueError, match="writable array of 20 bytes"):
            ravel.scatter(store, batch, batch["tokens"], out=out)
    with pytest.raises(ValueError, match="this batch is"):
        ravel.scatter(store, batch, batch["tokens"][1:])


@pytest.mark.parametrize("act, says", [
    (lambda: ravel.cp_shard(np.arange(8), [0, 8], 0, 0), "ranks is 0"),
    (lambda: ravel.cp_shard(np.arange(8), [0, 8], 2, 2), "cp rank 2"),
    (lambda: ravel.cp_shard(np.arange(8), [], 0, 2), "is empty"),
    (lambda: ravel.cp_shard(np.int64(8), [0, 8], 0, 2), "shape"),
    (lambda: ravel.cp_shard(np.arange(8), [0, 20, 8], 0, 2), "before it begins"),
    (lambda: ravel.cp_shard(np.arange(8), [0, 8], 0, 2, "zigzag"), "must be one of"),
    (lambda: ravel.cp_unshard([np.arange(4)], []), "is empty"),
    (lambda: ravel.cp_unshard([], [0, 8]), "as many arrays"),
    (lambda: ravel.cp_unshard([np.int64(4)] * 2, [0, 8]), "do not make 8"),
])
def test_wrong_shards_are_said(act, says):
    with pytest.raises(ValueError, match=says):
        act()


def test_a_field_that_does_not_fit_leaves_the_store_as_it_was():
    store, _ = make([2, 3])
    for data in (np.zeros(4), np.zeros(5, "U3")):
        with pytest.raises((ValueError, TypeError)):
            store.add("tokens", data)
    assert ravel.pack(store, [0, 1])["tokens"].dtype == np.int32


def test_safetensors_round_trip(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.int64(7)}
    ravel.write_safetensors(path, tensors, {"format": "np"})
    back = ravel.read_safetensors(path)
    assert set(back) == set(tensors) and back.metadata == {"format": "np"}
    for name, value in tensors.items():
        assert np.array_equal(back[name], value) and back.shape(name) == np.shape(value)
    kept = back["a"]
    del back
    assert kept.tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ravel.DataError, match="LFS"):
        ravel.read_safetensors(path)


def tree_of(rows):
    """A store of sorted rows, a longer one before its own prefixes, and what brute force says each shares with the one before."""
    rows = sorted(rows, key=lambda row: [*row, 99])
    ids = np.concatenate([np.array(row, np.int32) for row in rows])
    weights = np.arange(len(ids), dtype=np.float32)
    store = ravel.Ragged([len(row) for row in rows], tokens=ravel.Field("tokens", ids, pad=-1),
                         weights=ravel.Field("weights", weights, "next"))
    shared = [0] + [next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                    for a, b in zip(rows, rows[1:])]
    return rows, store, shared


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12))
def test_tree_holds_every_token_once(rows):
    rows, store, shared = tree_of(rows)
    batch = ravel.pack(store, range(len(rows)), tree=True, align=16)
    assert batch.shared.tolist() == shared and batch.slot_tokens % 16 == 0
    assert batch.unique_tokens == len({tuple(row[:k]) for row in rows for k in range(1, len(row) + 1)})
    assert batch.tokens_saved == sum(map(len, rows)) - batch.unique_tokens
    assert batch.tokens[batch.unique_tokens:].tolist() == [-1] * (batch.slot_tokens - batch.unique_tokens)
    for i, row in enumerate(rows):
        path = batch.path[batch.cu_seqlens[i]:batch.cu_seqlens[i + 1]]
        assert batch.tokens[path].tolist() == row and batch.parents[path].tolist() == [-1, *path[:-1].tolist()]
    assert batch.unpack(batch.tokens).tolist() == sum(rows, [])
    assert batch.unpack(batch.tokens, "step").tolist() == sum((row[1:] for row in rows), [])
    assert np.array_equal(batch.weights, ravel.pack(store, range(len(rows))).weights)
    places = [batch.piece(batch.deal(2)[0], rank)["places"] for rank in range(2)]
    assert sorted(np.concatenate(places).tolist()) == list(range(batch.slot_tokens))
    ranges, seen = batch.ranges(), np.zeros((batch.slot_tokens, batch.slot_tokens), bool)
    for (a, b), (c, d), causal in zip(ranges["q_ranges"], ranges["k_ranges"], ranges["attn_type_map"]):
        seen[a:b, c:d] |= np.tri(b - a, dtype=bool) if causal else True
    q, k = np.arange(batch.slot_tokens)[:, None], np.arange(batch.slot_tokens)[None]
    real = (q < batch.unique_tokens) & (k < batch.unique_tokens)
    assert np.array_equal(seen, real & (k <= q) & (q < batch.limits[None]))


def test_tree_says_what_is_wrong():
    _, store, _ = tree_of([[1, 2], [1, 3]])
    with pytest.raises(ravel.ArgumentError, match="shares 3 tokens"):
        ravel.pack(store, [0, 1], tree=True, shared=[0, 3])
    with pytest.raises(ValueError, match="flat layout"):
        ravel.pack(store, [0, 1], tree=True, padding=True)
    with pytest.raises(ravel.ArgumentError, match="multiple of 16"):
        ravel.pack(store, [0, 1], tree=True).deal(2)
