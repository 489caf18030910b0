"""Packing a torch DataLoader: samples of any length come in, packed micro-batches under a token budget come out.

    python3 python/examples/pack_dataloader.py

The sampler plans an epoch from the lengths alone; the collator packs the samples of a micro-batch into one row with
restarting positions and cu_seq_lens, as variable-length attention wants them. Every rank of a data-parallel group makes
the same plan and takes its own micro-batches, so all have the same number of them.
"""

import sys

import numpy as np

import _checkout  # noqa: F401
import ravel
from ravel.adapters.huggingface import PackingCollator

try:
    import torch
    from torch.utils.data import DataLoader, Dataset
except ImportError:
    print("skipped: torch is not installed; this example shows its DataLoader")
    sys.exit(0)

SAMPLES, BUDGET, RANKS = 256, 4096, 2


class Samples(Dataset):
    def __init__(self):
        self.mock = ravel.mock(type="lognormal", max_seq_len=BUDGET, mean_seq_len=700, count=SAMPLES, seed=1)
        self.lengths = np.asarray(self.mock.lengths())

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return {"input_ids": self.mock.tokens(int(index), vocab=32000)}


class PlannedBatches:
    """A batch sampler: the micro-batches of one rank, in a new order every epoch. Fillers are not handed out here; a
    training loop over several ranks would run them with zero weight."""

    def __init__(self, lengths, budget, rank, ranks, seed=0):
        self.plan = ravel.plan(lengths, budget=budget, dp=ranks, cost="qwen3-0.6b")
        self.rank, self.seed, self.epoch = rank, seed, 0

    def __iter__(self):
        steps = self.plan.micro_steps(self.rank)
        return iter([steps[i].tolist() for i in self.plan.replay(self.seed, self.epoch) if steps[i].size])

    def __len__(self):
        return sum(1 for step in self.plan.micro_steps(self.rank) if step.size)


def main():
    data, seen = Samples(), 0
    for rank in range(RANKS):
        sampler = PlannedBatches(data.lengths, BUDGET, rank, RANKS)
        for batch in DataLoader(data, batch_sampler=sampler, collate_fn=PackingCollator()):
            tokens = batch["input_ids"].shape[1]
            assert tokens <= BUDGET and batch["input_ids"].dtype == torch.int64
            assert int(batch["cu_seq_lens_q"][-1]) == tokens
            seen += len(batch["cu_seq_lens_q"]) - 1
    print(f"{seen} samples in {len(sampler.plan.bins)} micro-batches of at most {BUDGET} tokens: {sampler.plan}")
    assert seen == SAMPLES


if __name__ == "__main__":
    main()
