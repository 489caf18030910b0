"""Sources, meshes, exchange, feeds: every sample once, the same weights on any number of ranks."""

import json

import numpy as np
import pytest

import ravel

MOCK = {"mode": "distribution", "type": "lognormal", "min_seq_len": 2, "max_seq_len": 400, "mean_seq_len": 80,
        "lognormal_sigma": 1.0, "count": 300, "seed": 3, "prompt_share": 0.3}


def mock():
    return ravel.Source.open(mock=MOCK)


def rows(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(0, 100, n).tolist(), "reward": float(i), "prompt_length": int(n // 2)}
            for i, n in enumerate(rng.integers(1, 30, count))]


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_sources_read_rows(tmp_path):
    data = rows(5)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    source = ravel.Source.open(path, fields="reward:f32:sample")
    assert len(source) == 5 and source.kind == "jsonl" and source.fields == {"tokens": "token", "loss_mask": "next",
                                                                             "reward": "sample"}
    assert source.where(2).endswith("rows.jsonl:3")
    own = ravel.Source.rows(data, fields={"reward": "f32:sample"})
    assert own.kind == "callbacks" and own.fields == source.fields
    for a, b in ((source, own),):
        left, right = a.read([3, 0]), b.read([3, 0])
        assert left.lengths.tolist() == right.lengths.tolist() == [len(data[3]["input_ids"]), len(data[0]["input_ids"])]
        for name in left.fields:
            assert left.fields[name].data.tolist() == right.fields[name].data.tolist(), name
        assert left.fields["tokens"].data.tolist() == data[3]["input_ids"] + data[0]["input_ids"]
        assert left.fields["reward"].data.tolist() == [3.0, 0.0]


def test_a_row_may_be_several_samples_and_what_is_wrong_comes_out_as_itself():
    source = ravel.Source.rows([[{"input_ids": [1, 2]}, {"tokens": [3], "labels": [-100]}], {"text": "no tokens"},
                                {"input_ids": [1, 2], "reward": [1, 2, 3]}], fields={"reward": "f32:sample"})
    store = source.read([0])
    assert store.lengths.tolist() == [2, 1] and store.fields["loss_mask"].data.tolist() == [1, 1, 0]
    with pytest.raises(KeyError, match="neither tokens nor input_ids"):
        source.read([1])
    with pytest.raises(ValueError, match="reward has 3 elements"):
        source.read([2])
    with pytest.raises(ValueError, match="DTYPE:KIND"):
        ravel.Source.rows([], fields={"x": "f32:everywhere"})


def test_a_store_as_a_source():
    store = ravel.Ragged([3, 2], tokens=np.arange(5), reward=ravel.Field("reward", [1.0, 2.0], "sample"))
    source = ravel.Source.samples(store, rows=[10, 20])
    assert source.kind == "samples" and len(source) == 2
    got = source.read([1])
    assert got.fields["tokens"].data.tolist() == [3, 4] and got.fields["reward"].data.tolist() == [2.0]
    with pytest.raises(ValueError, match="no field tokens"):
        ravel.Source.samples(ravel.Ragged([2], ids=[1, 2]))


# ---- mesh ------------------------------------------------------------------------------------------------------------


def test_layouts():
    layout = ravel.mesh.layout(16, tp=2, pp=2)
    assert layout.sizes == {"tp": 2, "cp": 1, "dp": 4, "pp": 2} and layout.ranks == 16
    assert layout.locate(5) == (1, 0, 2, 0) and layout.rank_at(tp=1, dp=2) == 5
    assert layout.groups("tp").tolist()[:2] == [[0, 1], [2, 3]] and layout.groups("dp").shape == (4, 4)
    assert sorted(layout.groups("dp-cp").ravel().tolist()) == list(range(16))
    with pytest.raises(IndexError):
        layout.locate(16)
    with pytest.raises(IndexError, match="outside"):
        layout.rank_at(tp=2)
    with pytest.raises(ravel.ArgumentError):
        ravel.mesh.layout(15, tp=2)


def test_a_mesh_has_communicators():
    def work(comm):
        with ravel.mesh.Mesh(comm, tp=2) as mesh:
            seen = mesh.comm("dp").allreduce(np.array([mesh.coords.dp])).tolist(), mesh.add("tp-dp").size
            with pytest.raises(ValueError, match="call add"):
                mesh.comm("cp-pp")
            return seen, mesh.is_first(), mesh.is_last()

    assert ravel.comm.threads(4, work, timeout=60) == [(([1], 4), True, True)] * 4


# ---- exchange --------------------------------------------------------------------------------------------------------


def test_samples_go_where_the_plan_says():
    data = rows(30, seed=2)

    def work(comm):
        mine = data[comm.rank::comm.size]
        store = ravel.Ragged([len(r["input_ids"]) for r in mine], tokens=[np.asarray(r["input_ids"]) for r in mine],
                             reward=ravel.Field("reward", [r["reward"] for r in mine], "sample"))
        lengths, counts = ravel.gather(comm, store.lengths)
        plan = ravel.plan(lengths, budget=64, dp=comm.size)
        ravel.compare(comm, plan)
        arrived = ravel.exchange(comm, plan, store, counts)
        assert arrived.numbers.tolist() == [i for part in plan.micro_steps(comm.rank) for i in part.tolist()]
        for part in arrived.bins:
            batch = ravel.pack(arrived, part)
            assert batch.slot_tokens <= 64
        return arrived.fields["reward"].data.tolist(), arrived.fields["tokens"].data.tolist()

    out = ravel.comm.threads(3, work, timeout=60)
    assert sorted(x for part, _ in out for x in part) == [float(i) for i in range(30)]
    for rewards, tokens in out:
        assert tokens == [t for r in rewards for t in data[int(r)]["input_ids"]]


def test_other_plans_are_found_before_data_moves():
    def work(comm):
        plan = ravel.plan([5, 6, 7], budget=16 + comm.rank, dp=2)
        with pytest.raises(ravel.DataError):
            ravel.compare(comm, plan)

    ravel.comm.threads(2, work, timeout=60)


def test_what_one_rank_has_is_shared_with_those_that_want_it():
    def work(comm):
        words = ravel.share_words(comm, [3, 1, 4] if comm.rank == 2 else None, root=2)
        array = np.full((2, 3), comm.rank, np.float32)
        ravel.share(comm, array, root=1, wants=[True, False, False])
        once = array.copy()
        ravel.share(comm, array, root=2)
        with pytest.raises(ValueError, match="contiguous"):
            ravel.share(comm, np.zeros((2, 3))[:, :2])
        return words.tolist(), once.ravel().tolist(), array.ravel().tolist(), ravel.share_words(comm).tolist()

    for rank, (words, once, after, none) in enumerate(ravel.comm.threads(3, work, timeout=60)):
        assert words == [3, 1, 4] and none == []
        assert once == [float((1, 1, 2)[rank])] * 6 and after == [2.0] * 6


# ---- feeds -----------------------------------------------------------------------------------------------------------


def drain(feed):
    """What a training loop sees: (update, ids, weights per sample), and checks of every micro-batch."""
    seen = []
    for batch in feed:
        assert batch.slot_tokens <= 512 and batch.tokens.size == batch.labels.size == batch.weights.size
        if batch.filler:
            assert batch.ids.size == 0 and not batch.weights.any()
            continue
        weights, tokens = batch.unpack(batch.weights), batch.unpack(batch.tokens)
        for i, row in enumerate(batch.ids.tolist()):
            assert len(tokens[i]) == batch.lengths[i]
            seen.append((batch.update, row, tokens[i].tolist(), float(weights[i].sum())))
    return seen


def test_every_sample_once_and_the_same_weights_on_any_number_of_ranks():
    def work(comm):
        with ravel.Feed(mock(), comm=comm, budget=512, samples=64, epochs=1, shuffle=True, shuffle_seed=5) as feed:
            return drain(feed)

    one = sorted(work(ravel.comm.self()))
    assert [row for _, row, _, _ in sorted(one, key=lambda s: s[1])] == list(range(300))
    for update in range(4):
        assert sum(s[3] for s in one if s[0] == update) == pytest.approx(1, rel=1e-5)
    many = sorted(s for part in ravel.comm.threads(3, work, timeout=120) for s in part)
    assert [s[:3] for s in many] == [s[:3] for s in one]
    assert [s[3] for s in many] == pytest.approx([s[3] for s in one], rel=1e-6)


def test_updates_in_any_order_and_figures():
    with ravel.Feed(mock(), budget="512", samples=100, epochs=1, prefetch=1, align=8) as feed:
        first = next(feed.updates())
        assert len(first) == first.counts["micro_steps"] and first.counts["samples"] == 100
        assert first.plan["over_budget"] == 0 and set(first.seconds) >= {"read", "plan", "pack"}
        again = [first.micro_batch(step) for step in reversed(range(len(first)))]
        assert [b.step for b in again] == list(reversed(range(len(first)))) and again[0].ends_update
        assert all(int(n) % 8 == 0 for b in again for n in np.diff(b.cu_seqlens_padded))
        feed.verify()
        rest = list(feed.updates())
        assert [u.number for u in rest] == [1, 2] and feed.stats["updates"] == 3 and feed.stats["reader"]["rows"] >= 300
        with pytest.raises(RuntimeError, match="update 0 is over"):
            first.micro_batch(0)


def test_a_feed_goes_on_from_its_state():
    def make():
        return ravel.Feed(mock(), budget=512, samples=50, epochs=2, shuffle=True)

    with make() as feed:
        whole = drain(feed)
    with make() as feed:
        updates = feed.updates()
        for _ in range(3):
            next(updates)
        state = json.loads(json.dumps(feed.state_dict()))
    with make() as feed:
        feed.load_state_dict(state)
        rest = drain(feed)
    assert [s[1:3] for s in rest] == [s[1:3] for s in whole if s[0] >= 3]
    with ravel.Feed(mock(), budget=512, samples=50, shuffle=True, shuffle_seed=9) as feed, pytest.raises(ravel.DataError):
        feed.load_state_dict(state)


def test_rollouts_are_submitted():
    data = rows(20, seed=4)
    store = ravel.Ragged([len(r["input_ids"]) for r in data], tokens=[np.asarray(r["input_ids"]) for r in data],
                         advantages=ravel.Field("advantages", [r["reward"] for r in data], "spread"))
    with ravel.Feed(fields=store, budget=64) as feed:
        updates = feed.updates()
        for _ in range(2):
            feed.submit(store, ids=np.arange(100, 120))
            seen = [i for batch in next(updates) for i in batch.ids.tolist()]
            assert sorted(seen) == list(range(100, 120))
        batch = feed._current.micro_batch(0)
        assert [float(a[0]) for a in batch.unpack(batch.advantages)] == [float(i - 100) for i in batch.ids]


def test_a_callback_that_raises_comes_out_as_itself():
    class Broken(list):
        def __getitem__(self, row):
            raise OSError("the disk is gone")

    with ravel.Feed(ravel.Source.rows(Broken(rows(8))), budget=64, samples=8) as feed, pytest.raises(OSError, match="the disk"):
        next(iter(feed))


def test_wrong_arguments_are_said():
    with pytest.raises(TypeError, match="unknown option 'buget'"):
        ravel.Feed(mock(), budget=8, buget=3)
    with pytest.raises(ValueError, match="must be np or pt"):
        ravel.Feed(mock(), budget=8, tensors="tf")
    with pytest.raises(TypeError, match="not both"):
        ravel.Feed(mock(), budget=8, comm=ravel.comm.self(), mesh=ravel.mesh.Mesh(ravel.comm.self()))
    with ravel.Feed(mock(), budget=8, samples=10) as feed, pytest.raises(ravel.OversizeError):
        next(iter(feed))


def test_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: the feed gave numpy arrays only")
    with ravel.Feed(mock(), budget=512, samples=100, epochs=1, tensors="pt") as feed:
        batch = next(iter(feed))
        assert isinstance(batch["tokens"], torch.Tensor) and batch.tokens is batch["tokens"]
        assert batch.max_seqlen == batch.host.max_seqlen and batch.weights.dtype == torch.float32
    with ravel.Feed(mock(), budget=512, samples=100, epochs=1, device="cpu") as feed:
        assert next(iter(feed)).tokens.device.type == "cpu"


@pytest.mark.parametrize("kind", ["zig-zag", "contiguous"])
def test_shards_of_context_parallel_ranks_make_whole_samples(kind):
    def work(comm):
        with ravel.mesh.Mesh(comm, cp=2) as mesh, ravel.Feed(mock(), mesh=mesh, budget=512, samples=64, updates=1,
                                                              cp_kind=kind) as feed:
            out = {}
            for batch in feed:
                assert batch.cp == 2 and batch.cp_rank == mesh.coords.cp and batch.local_tokens * 2 == batch.slot_tokens
                for row, tokens in zip(batch.ids.tolist(), batch.unpack(batch.tokens + 1)):
                    out[row] = tokens
            return mesh.coords.dp, out

    whole: dict = {}
    for dp, part in ravel.comm.threads(4, work, timeout=120):
        for row, tokens in part.items():
            whole[row] = whole.get(row, 0) + tokens  # 0 where the other rank has it
    source = mock()
    assert len(whole) == 64
    for row, tokens in whole.items():
        assert (tokens - 1).tolist() == source.read([row]).fields["tokens"].data.tolist()


# ---- hybrid plans ----------------------------------------------------------------------------------------------------


def test_hybrid_groups():
    lengths = np.array([900, 300, 40, 50, 60, 70, 80, 90, 100, 500])
    plan = ravel.plan(lengths, budget=256, cp_pool=4, cost=(100, 1))
    hybrid = plan.hybrid
    assert hybrid is not None and hybrid.pool == 4 and ravel.plan([5], budget=8).hybrid is None
    seen = []
    for step in range(len(plan)):
        taken = set()
        for group in hybrid.groups(step):
            ranks = set(range(group.first, group.first + group.width))
            assert group.first % group.width == 0 and not ranks & taken
            taken |= ranks
            assert lengths[group.samples].sum() <= group.width * 256
            seen += group.samples.tolist()
            assert all(hybrid.samples_of(rank, step).tolist() == group.samples.tolist() for rank in ranks)
    assert sorted(seen) == list(range(10))
    assert plan.stats["time"] >= hybrid.bounds["canonical"] > 0


def test_a_feed_of_groups_of_different_widths():
    """Over the members of its group every token of a sample comes once, and the weights are those of one rank."""
    def work(comm):
        seen = []
        with ravel.Feed(mock(), comm=comm, budget=104, samples=64, epochs=1, shuffle=True, shuffle_seed=5,
                        plan={"cp_pool": 4} if comm.size == 4 else {}) as feed:
            for batch in feed:
                assert batch.cp == 1 or batch.cp_first % batch.cp == 0
                assert comm.size == 1 or batch.cp_first + batch.cp_rank == comm.rank
                assert batch.tokens.size <= 104 and batch.slot_tokens == batch.tokens.size * batch.cp
                tokens, weights = batch.unpack(batch.tokens + 1), batch.unpack(batch.weights)
                seen += [(batch.update, row, tokens[i], weights[i], batch.cp)
                         for i, row in enumerate(batch.ids.tolist())]
        return seen

    longest = max(len(s[2]) for part in ravel.comm.threads(4, work, timeout=120) for s in part)
    assert 104 < longest <= 4 * 104
    found, widths = {}, set()
    for update, row, tokens, weights, cp in (s for part in ravel.comm.threads(4, work, timeout=120) for s in part):
        at = found.setdefault(row, [update, np.zeros_like(tokens), np.zeros_like(weights)])
        assert at[0] == update and not (at[1] * tokens).any()  # no token twice
        at[1], at[2] = at[1] + tokens, at[2] + weights
        widths.add(cp)
    assert sorted(found) == list(range(300)) and len(widths) > 1
    assert all(at[1].all() for at in found.values())  # and none is missing
    for update in range(5):
        assert sum(at[2].sum() for at in found.values() if at[0] == update) == pytest.approx(1, rel=1e-5)


# ---- iterators, multi-token prediction, metrics -----------------------------------------------------------------------


def test_a_generator_is_a_source():
    data = rows(23, seed=6)
    with ravel.Feed((row for row in data), budget=64, samples=8) as feed:
        seen = [update.counts["samples"] for update in feed.updates()]
        assert seen == [8, 8, 7] and list(feed.updates()) == []
    with ravel.Feed(ravel.Stream(iter(data), {"reward": "f32:sample"}), budget=64, samples=8) as feed:
        got = sorted((batch.lengths[i], float(batch.reward[i])) for batch in feed for i in range(len(batch.ids)))
    assert got == sorted((len(row["input_ids"]), float(np.float32(row["reward"]))) for row in data)
    with pytest.raises(TypeError, match="needs samples"):
        ravel.Feed(iter(data), budget=64)


@pytest.mark.parametrize("counts", [(11, 11), (20, 3), (0, 5)])
def test_each_rank_has_an_iterator_of_its_own(counts):
    """Where one rank's is over first, it goes on with the samples of the other."""
    data = rows(40, seed=7)
    shares = [data[:counts[0]], data[20:20 + counts[1]]]

    def work(comm):
        with ravel.Feed(iter(shares[comm.rank]), budget=64, samples=6, comm=comm) as feed:
            return [[len(update), [tuple(np.sort(batch.tokens).tolist()) for batch in update if not batch.filler]]
                    for update in feed.updates()]

    one, two = ravel.comm.threads(2, work)
    assert [u[0] for u in one] == [u[0] for u in two]  # as many micro-steps on both
    got = sorted(t for u in (*one, *two) for batch in u[1] for t in batch)
    assert got == sorted(t for share in shares for row in share for t in row["input_ids"])


def test_a_generator_that_raises_comes_out_as_itself():
    def broken():
        yield {"input_ids": [1, 2]}
        raise OSError("the stream is cut")

    with ravel.Feed(broken(), budget=64, samples=4) as feed, pytest.raises(OSError, match="cut"):
        next(iter(feed))


@pytest.mark.parametrize("ask", [(), (0,)])
def test_a_middle_stage_asks_for_tokens(ask):
    """Multi-token prediction: a stage that is neither first nor last gets everything if it asks."""
    def work(comm):
        mesh = ravel.mesh.Mesh(comm, pp=3)
        with ravel.Feed(mock(), budget=512, samples=50, updates=1, mesh=mesh, ask=ask if mesh.coords.pp == 1 else ()) as feed:
            batch = next(iter(feed))
            return [name for name in ("tokens", "labels", "weights") if hasattr(batch, name)]

    first, middle, last = ravel.comm.threads(3, work)
    assert "tokens" in first and "labels" in last and middle == (["tokens", "labels", "weights"] if ask else [])
    with pytest.raises(ValueError, match="chunk 64"):
        ravel.Feed(mock(), budget=8, samples=8, ask=[64])


def test_an_update_goes_into_metrics_in_one_call():
    def work(comm):
        mesh = ravel.mesh.Mesh(comm, tp=2)
        with ravel.Feed(mock(), budget=512, samples=60, updates=1, mesh=mesh) as feed:
            update = next(feed.updates())
            lengths = np.concatenate([batch.lengths for batch in update])
            with ravel.metrics.Metrics(comm=comm, shape="qwen3-0.6b") as m:
                m.begin()
                m.add_feed(update)
                values = m.update(1)
            flops = update.flops("qwen3-0.6b", head_tokens=update.counts["loss_tokens"])
            return lengths.tolist() if mesh.coords.tp == 0 else [], update.counts, values, flops

    done = ravel.comm.threads(4, work)
    lengths = sum((d[0] for d in done), [])
    _, counts, values, flops = done[0]
    assert values["tokens/actual"] == counts["tokens"] == sum(lengths) and values["batch/samples"] == 60 == len(lengths)
    assert values["tokens/capacity"] == counts["capacity_tokens"] and values["batch/micro_steps"] == counts["micro_steps"]
    assert flops == ravel.metrics.flops("qwen3-0.6b", lengths, head_tokens=counts["loss_tokens"])
    assert values["flops/model"] == pytest.approx(flops.model) and 0 <= values["plan/idle_share"] < 1


# ---- padded rows, and samples without tokens --------------------------------------------------------------------------


def test_prompts_and_responses_are_padded_apart():
    source = mock()
    with ravel.Feed(source, budget=2048, samples=100, layout="padded-2d", align=8, epochs=1, first_fields="*") as feed:
        seen = 0
        for batch in feed:
            rows = batch.padded(side="2d", align=8)
            assert rows.rows * rows.columns <= 2048 and rows.prompt_columns % 8 == 0
            seen += batch.lengths.size
            for i, row in enumerate(batch.ids):
                own = source.read([int(row)])
                learnt = np.flatnonzero(own.fields["loss_mask"].data[1:])
                assert batch["prompts"][i] == (learnt[0] + 1 if learnt.size else own.lengths[0])
                begin = rows.prompt_columns - batch["prompts"][i]
                assert rows["tokens"][i, begin:begin + own.lengths[0]].tolist() == own.fields["tokens"].data.tolist()
            assert np.isclose(rows["weights"].sum(), batch.weights.sum()) and (rows["labels"][rows["attention_mask"] == 0] == -100).all()
        assert seen == len(source)
    with ravel.Feed(source, budget=2048, samples=100, align=8) as feed, pytest.raises(ValueError, match="give the feed layout padded"):
        next(iter(feed)).padded()


def test_samples_without_tokens_pack_weigh_and_scatter():
    rng = np.random.default_rng(2)
    images, cost, reward = rng.standard_normal((23, 2, 3, 4)).astype(np.float32), rng.integers(1, 90, 23), rng.random(23)
    store = ravel.Ragged.of_samples(images=images, reward=reward)
    store.add("weight", ravel.weights(store, sample_weights=reward, dtype=np.float64), kind="sample")
    assert np.allclose(store.fields["weight"].data, reward / reward.sum(), rtol=1e-12)
    plan = ravel.plan(store.lengths, budget=4, dp=3, costs=cost)
    back = np.zeros((23, 24), np.float32)
    total = 0
    for part in plan.bins:
        batch = ravel.pack(store, part)
        assert batch["images"].shape[1:] == (2, 3, 4) and (batch["images"][:len(part)] == images[part]).all()
        total += (batch["weight"][:, None] * batch["images"].reshape(len(batch["weight"]), -1)).sum(0)
        ravel.scatter(store, batch, batch["images"] + 1, kind="sample", out=back)
    assert np.allclose(total, (reward[:, None] * images.reshape(23, -1)).sum(0) / reward.sum()) and np.array_equal(back, images.reshape(23, 24) + 1)
    whole = ravel.scatter(store, ravel.pack(store, np.arange(23)), images, kind="sample")
    assert whole.shape == images.shape and (whole == images).all()
    fed = ravel.Ragged.of_samples(images=images, cost=cost, sample_weight=reward)
    with ravel.Feed(fields=fed, budget=4) as feed:
        feed.submit(fed)
        update = next(feed.updates())
        seen = []
        for batch in update:
            n = batch.lengths.size
            assert n <= 4 and (batch["images"][:n] == images[batch.ids]).all() and "tokens" not in batch
            assert np.allclose(batch.weights[:n], reward[batch.ids] / reward.sum())
            assert [a.shape for a in batch.unpack(batch["images"], "sample")] == [(1, 2, 3, 4)] * n
            seen += batch.ids.tolist()
        assert sorted(seen) == list(range(23)) and update.counts["samples"] == 23
    for wrong, says in ((lambda: ravel.Ragged.of_samples(), "give fields"), (lambda: ravel.Ragged.of_samples(a=[1], b=[1, 2]), "2 elements"),
                        (lambda: ravel.Ragged.of_samples(a=ravel.Field("a", [1])), "kind 'token'"),
                        (lambda: ravel.counts(store, mask=np.ones(23, np.uint8)), "no loss mask")):
        with pytest.raises((ValueError, ravel.Error), match=says):
            wrong()
