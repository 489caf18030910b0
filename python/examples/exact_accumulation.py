"""Weights that make gradient accumulation exact.

    python3 python/examples/exact_accumulation.py

A linear model is trained on samples of different lengths. The loss is the mean over all loss tokens of the update. Three
ways to get its gradient:

    whole      one sample after the other, the mean taken at the end: the truth
    usual      the mean of each micro-batch's own mean, as accumulation loops do it: wrong where micro-batches differ
    ravel      each token has its weight beforehand, micro-batches only add up: the truth again, however it was cut
"""

import numpy as np

import _checkout  # noqa: F401
import ravel

WIDTH, RANKS = 8, 4


def gradient(w, x, y, weight):
    """Of sum(weight * (x @ w - y)^2)."""
    return x.T @ (2 * weight * (x @ w - y))


def main():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 200, 96)
    total = int(lengths.sum())
    inputs, targets = rng.standard_normal((total, WIDTH)), rng.standard_normal(total)
    mask = (rng.random(total) < 0.6).astype(np.uint8)  # which tokens count
    w = rng.standard_normal(WIDTH)

    # The features of position t predict the target of token t + 1, as in a language model.
    store = ravel.Ragged(lengths, x=inputs, y=ravel.Field("y", targets, "next"), mask=ravel.Field("mask", mask, "next"))
    store.add("weight", ravel.weights(store, mode="token-mean", mask=mask, dtype=np.float64), kind="next")
    plan = ravel.plan(lengths, budget=512, dp=RANKS, align=8)

    batches = [ravel.pack(store, samples, align=8) for samples in plan.bins]
    packed = sum(gradient(w, b["x"], b["y"], b["weight"]) for b in batches)
    usual = sum(gradient(w, b["x"], b["y"], b["mask"] / max(1, b["mask"].sum())) for b in batches) / len(batches)

    truth, count = np.zeros(WIDTH), 0
    for first, last in zip(store.offsets, store.offsets[1:]):
        truth += gradient(w, inputs[first:last - 1], targets[first + 1:last], mask[first + 1:last])
        count += int(mask[first + 1:last].sum())
    truth /= count

    def error(g):
        return float(np.abs(g - truth).max() / np.abs(truth).max())

    print(f"{len(lengths)} samples in {len(batches)} micro-batches on {RANKS} ranks, {count} loss tokens")
    print(f"usual accumulation: the gradient is off by {error(usual):.1e}")
    print(f"with ravel.weights: the gradient is off by {error(packed):.1e}")
    assert error(packed) < 1e-12 < error(usual)


if __name__ == "__main__":
    main()
