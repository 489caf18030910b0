"""Samples of a fixed shape: a toy diffusion loop whose gradients are those of one sample after the other.

    python3 python/examples/diffusion_steps.py

Images have no tokens to pack, but the rest is the same: every rank must run as many micro-batches as the others, samples cost
different amounts (here: the number of denoising steps that are trained), and the mean over samples must not depend on how they
were cut. A store without lengths has a budget of samples; the feed deals them by the field ``cost`` and gives each a weight.
Four ranks are threads of this process.
"""

import numpy as np

import _checkout  # noqa: F401
import ravel

SHAPE, RANKS, SAMPLES, BUDGET = (3, 8, 8), 4, 90, 6


def gradient(w, latents, noise, level, weight):
    """Of sum(weight * mean((w * (latents + level * noise) - noise) ** 2)) with respect to w, one number per pixel."""
    x = latents + level[:, None, None, None] * noise
    return (weight[:, None, None, None] * 2 * (w * x - noise) * x).sum(0) / np.prod(SHAPE)


def rank_loop(world, data, w):
    mine = slice(SAMPLES * world.rank // RANKS, SAMPLES * (world.rank + 1) // RANKS)
    store = ravel.Ragged.of_samples(**{name: values[mine] for name, values in data.items()})
    with ravel.Feed(fields=store, budget=BUDGET, comm=world, owners="every-rank") as feed:
        feed.submit(store, ids=np.arange(SAMPLES)[mine])
        update = next(feed.updates())
        total, losses = np.zeros(SHAPE), {}
        for batch in update:  # as many on every rank; a filler has a row with weight 0
            total += gradient(w, batch["latents"], batch["noise"], batch["level"], batch["weights"].astype(np.float64))
            errors = ((w * batch["latents"] - batch["noise"]) ** 2).mean((1, 2, 3))
            losses.update(zip(batch["ids"].tolist(), batch.unpack(errors, "sample")))  # back to their samples
        return world.allreduce(total), losses, len(update), update.plan


def main():
    rng = np.random.default_rng(0)
    data = {"latents": rng.standard_normal((SAMPLES, *SHAPE)).astype(np.float32),
            "noise": rng.standard_normal((SAMPLES, *SHAPE)).astype(np.float32),
            "level": rng.random(SAMPLES).astype(np.float32),
            "sample_weight": rng.choice([0.5, 1, 2], SAMPLES),  # e.g. advantages
            "cost": rng.integers(1, 50, SAMPLES)}
    w = rng.standard_normal(SHAPE)
    out = ravel.comm.threads(RANKS, lambda world: rank_loop(world, data, w))

    share = data["sample_weight"] / data["sample_weight"].sum()
    truth = sum(gradient(w, data["latents"][i:i + 1].astype(np.float64), data["noise"][i:i + 1].astype(np.float64),
                         data["level"][i:i + 1].astype(np.float64), share[i:i + 1]) for i in range(SAMPLES))
    off = float(np.abs(out[0][0] - truth).max() / np.abs(truth).max())
    losses = {i: loss for _, own, _, _ in out for i, loss in own.items()}
    want = ((w * data["latents"] - data["noise"]) ** 2).mean((1, 2, 3))
    assert sorted(losses) == list(range(SAMPLES)) and all(abs(losses[i][0] - want[i]) < 1e-6 for i in losses)
    print(f"{SAMPLES} samples of {SHAPE}, {RANKS} ranks, {out[0][2]} micro-batches of at most {BUDGET} on each: "
          f"{out[0][3]['idle_micro_step']:.1%} of rank time idle by cost")
    print(f"gradient of micro-batches against one by one: off by {off:.1e}")
    assert off < 1e-6 and len({steps for _, _, steps, _ in out}) == 1


if __name__ == "__main__":
    main()
