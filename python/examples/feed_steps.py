"""The steps of a feed, one by one: gather, plan, compare, exchange, weigh, pack, cut for cp, share. And the same by a Feed.

    python3 feed_steps.py

Eight ranks of this process are a mesh of tp 2, cp 2, dp 2. The ranks with tp 0 own the data. Each step is a call that can be used
without the others; together they give the bytes of ravel.Feed.
"""

import _checkout  # noqa: F401
import numpy as np

import ravel

BUDGET, SAMPLES = 512, 40
NAMES = ("tokens", "labels", "weights")


def rows():
    rng = np.random.default_rng(1)
    return [{"input_ids": rng.integers(1, 1000, n), "prompt_length": int(n // 4)} for n in rng.integers(3, 900, SAMPLES)]


def decide(dp, mine):
    """Lengths of all owners in, the same plan on each of them; and the counts of the whole update."""
    lengths, counts = ravel.gather(dp, mine.lengths)
    plan = ravel.plan(lengths, budget=BUDGET, dp=dp.size, cp=2, homes=np.repeat(np.arange(dp.size), counts))
    ravel.compare(dp, plan)
    learnt = ravel.counts(mine, mask=mine.fields["loss_mask"].data)
    dp.allreduce(learnt.array, in_place=True)
    return plan, counts, learnt


def make(mesh, source):
    """An owner's part: its micro-batches, packed and cut for its cp rank."""
    dp, at = mesh.comm("dp"), mesh.coords
    share = SAMPLES // dp.size
    mine = source.read(np.arange(at.dp * share, (at.dp + 1) * share))
    plan, counts, learnt = decide(dp, mine)
    arrived = ravel.exchange(dp, plan, mine, counts)
    tokens, mask = arrived.fields["tokens"].data, arrived.fields["loss_mask"].data
    weights = ravel.weights(arrived, mask=mask, update_counts=learnt, dp=dp.size, cp=2, micro_steps=len(arrived.bins))
    store = ravel.Ragged(arrived.lengths, tokens=tokens, labels=ravel.Field("labels", tokens, "next", -100),
                         weights=ravel.Field("weights", weights, "next"))
    out = []
    for part in arrived.bins:
        whole = ravel.pack(store, part, align=4, cp=2)
        out.append([ravel.cp_shard(whole[name], whole.cu_seqlens_padded, at.cp, 2) for name in NAMES])
    return out


def steps(mesh, source):
    """Tokens, labels and weights of every micro-batch, on every rank."""
    tp = mesh.comm("tp")
    made = make(mesh, source) if mesh.coords.tp == 0 else []
    sizes = ravel.share_words(tp, [len(arrays[0]) for arrays in made])
    if tp.rank != 0:
        made = [[np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.float32)] for n in sizes]
    for arrays in made:
        for array in arrays:
            ravel.share(tp, array)
    return made


def work(comm):
    source = ravel.Source.rows(rows())
    with ravel.mesh.Mesh(comm, tp=2, cp=2) as mesh:
        ours = steps(mesh, source)
        with ravel.Feed(source, budget=BUDGET, samples=SAMPLES, updates=1, shuffle=False, mesh=mesh) as feed:
            theirs = [[np.array(batch[name]) for name in NAMES] for update in feed.updates() for batch in update]
    same = len(ours) == len(theirs) and all(a.tobytes() == b.tobytes() for mine, other in zip(ours, theirs) for a, b in zip(mine, other))
    return same, len(ours)


if __name__ == "__main__":
    results = ravel.comm.threads(8, work, timeout=120)
    assert all(same for same, _ in results), results
    print(f"8 ranks, {results[0][1]} micro-batches: step by step and by a Feed, the same bytes")
