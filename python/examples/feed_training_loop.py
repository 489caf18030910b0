"""A training loop over ravel.Feed, as over a DataLoader: a softmax over tokens learns the frequencies of made-up rows.

    python3 feed_training_loop.py

Rows are read, planned, weighed and packed in the background. The loss is the mean over all tokens of an update, however the rows
were packed: two budgets give the same curve.
"""

import _checkout  # noqa: F401
import numpy as np

import ravel

VOCAB = 50


def rows(count):
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, VOCAB + 1)
    return [{"input_ids": rng.choice(VOCAB, n, p=share / share.sum()), "prompt_length": int(n // 4)}
            for n in rng.integers(4, 200, count)]


def train(budget):
    """Losses of the updates."""
    logits, curve, loss = np.zeros(VOCAB), [], 0.0
    slope = np.zeros(VOCAB)
    with ravel.Feed(ravel.Source.rows(rows(256)), budget=budget, samples=64, epochs=3, shuffle=True) as feed:
        for batch in feed:
            log_probs = logits - np.log(np.exp(logits).sum())
            learnt = batch.weights > 0
            loss -= float((batch.weights[learnt] * log_probs[batch.labels[learnt]]).sum())
            weight = np.bincount(batch.labels[learnt], batch.weights[learnt], VOCAB)
            slope += weight.sum() * np.exp(log_probs) - weight
            if batch.ends_update:
                logits -= 3.0 * slope
                curve.append(loss)
                slope[:], loss = 0, 0.0
    return curve


if __name__ == "__main__":
    narrow, wide = train(256), train(4096)
    assert np.allclose(narrow, wide, rtol=1e-4), "the loss must not depend on the packing"
    print(f"{len(narrow)} updates, loss {narrow[0]:.4f} to {narrow[-1]:.4f}, the same with budgets of 256 and 4096")
