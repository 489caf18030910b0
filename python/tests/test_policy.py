"""Advantages and policy losses against numpy and torch."""

import numpy as np
import pytest

import ravel
from ravel import policy


def case(seed, tokens=40, samples=6):
    rng = np.random.default_rng(seed)
    now = rng.uniform(-3, -0.1, tokens).astype(np.float32)
    near = lambda: (now + rng.uniform(-0.5, 0.5, tokens)).astype(np.float32)  # noqa: E731
    return dict(logprobs=now, old=near(), generator=near(), reference=near(), samples=rng.integers(0, samples, tokens),
                advantages=rng.standard_normal(samples)[rng.integers(0, samples, tokens)], weights=rng.uniform(0.1, 1, tokens))


def test_advantages():
    rewards, groups = np.array([1.0, 0, 0, 3, 3, 5, 2]), np.array([9, 9, 9, 4, 4, 4, 1])
    a = policy.advantages(rewards, groups)
    for group in (9, 4):
        own = rewards[groups == group]
        assert a[groups == group] == pytest.approx((own - own.mean()) / (own.std(ddof=1) + 1e-6))
        assert policy.advantages(rewards, groups, "dr-grpo")[groups == group] == pytest.approx(own - own.mean())
        others = [(own.sum() - r) / (own.size - 1) for r in own]
        assert policy.advantages(rewards, groups, "rloo")[groups == group] == pytest.approx(own - others)
    assert a[6] == 0 and policy.advantages(rewards, groups, "none").tolist() == rewards.tolist()
    with pytest.raises(ValueError, match="must be one of grpo"):
        policy.advantages(rewards, groups, "ppo")


@pytest.mark.parametrize("options", [{}, {"clip_high": 0.28, "dual_clip": 3}, {"kl": 0.1, "kl_kind": "k3"}, {"correction": "tis", "correction_high": 1.2},
                                     {"ratio": "sequence", "kl": 0.05, "kl_kind": "k2", "correction": "tis", "correction_high": 1.1}])
def test_loss_against_torch(options):
    torch = pytest.importorskip("torch", reason="torch is not installed: policy losses were not compared with autograd")
    c = case(1)
    now = torch.tensor(c["logprobs"], dtype=torch.float64, requires_grad=True)
    old, generator, reference, a, w = (torch.tensor(np.asarray(c[k]), dtype=torch.float64) for k in
                                       ("old", "generator", "reference", "advantages", "weights"))
    step = now - old
    if options.get("ratio") == "sequence":
        index = torch.tensor(c["samples"])
        sums, counts = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
        step = (sums.index_add(0, index, step) / counts.index_add(0, index, torch.ones_like(step)))[index]
    ratio = step.exp()
    clipped = ratio.clamp(0.8, 1 + options.get("clip_high", 0.2))
    value = torch.maximum(-ratio * a, -clipped * a)
    if "dual_clip" in options:
        value = torch.where(a < 0, torch.minimum(value, -options["dual_clip"] * a), value)
    if "correction" in options:
        value = value * (old - generator).exp().clamp(max=options["correction_high"])
    if "kl" in options:
        d = now - reference
        value = value + options["kl"] * (d**2 / 2 if options["kl_kind"] == "k2" else (-d).exp() + d - 1)
    want = (w * value).sum()
    want.backward()
    got = policy.loss(**c, **options)
    assert got.loss == pytest.approx(float(want.detach()), rel=1e-5) and got.losses.sum() == pytest.approx(got.loss, rel=1e-4)
    assert got.slopes == pytest.approx(now.grad.numpy(), rel=1e-3, abs=1e-6) and got.sums["tokens"] == 40
    given = torch.tensor(c["logprobs"], requires_grad=True)
    (2 * policy.loss_torch(given, **{k: v for k, v in c.items() if k != "logprobs"}, **options)).backward()
    assert given.grad.numpy() == pytest.approx(2 * got.slopes, rel=1e-6)


def test_what_is_missing_is_said():
    c = case(2)
    assert list(policy.corrections()) == ["none", "tis", "mis", "seq-tis", "seq-mis", "icepop", "cispo"]
    assert set(policy.options()) == {"ratio", "kl_kind", "clip_low", "clip_high", "dual_clip", "kl", "correction",
                                     "correction_low", "correction_high"}
    del c["reference"]
    with pytest.raises(ravel.ArgumentError, match="reference is NULL; it is needed with kl"):
        policy.loss(**c, kl=0.1)
    with pytest.raises(ValueError, match="weights has 3 entries"):
        policy.loss(**{**c, "weights": [1, 2, 3]})
    first = policy.loss(**{**c, "old": None})
    assert first.sums["ratio"] == first.sums["tokens"] and first.sums["clipped"] == 0


def hand(c, kind, low, high):
    """Loss and slopes of the corrections in float64 numpy: (loss, slopes, weights of the samples or tokens, x before the limits)."""
    now, old, generator, a, w = (np.asarray(c[k], np.float64) for k in
                                 ("logprobs", "old", "generator", "advantages", "weights"))
    live = w != 0
    gap = old - generator
    if kind.startswith("seq-"):
        sums = np.zeros(6)
        np.add.at(sums, c["samples"][live], gap[live])
        gap = sums[c["samples"]]
    x = np.exp(now - generator if kind == "cispo" else gap)
    inside = (x >= low) & (x <= high)
    weight = x * inside if kind in ("mis", "seq-mis", "icepop") else x.clip(low, high)
    ratio = np.exp(now - old)
    value, slope = -ratio * a, -ratio * a
    cut = -ratio.clip(0.8, 1.2) * a
    value, slope = np.maximum(value, cut), np.where(cut > value, 0, slope)
    if kind == "cispo":
        value, slope = -a * now, -a
    return (w * weight * value)[live].sum(), np.where(live, w * weight * slope, 0), weight, x


@pytest.mark.parametrize("kind", ["tis", "mis", "seq-tis", "seq-mis", "icepop", "cispo"])
def test_corrections_against_float64(kind):
    low, high = (0.9, 1.1) if kind == "icepop" else (0, 1.1)
    c = case(3)
    c["weights"] = np.asarray(c["weights"]).copy()
    c["weights"][5] = 0
    want, slopes, weight, x = hand(c, kind, low, high)
    got = policy.loss(**c, correction=kind, correction_low=low, correction_high=high)
    assert got.loss == pytest.approx(want, rel=1e-6) and got.slopes == pytest.approx(slopes, rel=1e-5, abs=1e-7)
    live = np.flatnonzero(c["weights"])
    if kind.startswith("seq-"):
        live = [np.flatnonzero(np.asarray(c["samples"]) == s)[0] for s in np.unique(np.asarray(c["samples"])[live])]
    assert got.sums["ess"] == pytest.approx(weight[live].sum() ** 2 / (len(live) * (weight[live] ** 2).sum()))
    assert got.sums["chi_square"] == pytest.approx((x[live] ** 2).mean() - 1)
    assert got.sums["outside_share"] == pytest.approx(((x[live] < low) | (x[live] > high)).mean())
    row = policy.corrections()[kind]
    assert row["paper"] and row["masked"] == (kind in ("mis", "seq-mis", "icepop")) and row["high"] >= 2
