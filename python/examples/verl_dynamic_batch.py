"""A verl-style dynamic batch: rows of a padded batch to micro-batches under a token budget, and results back in order.

    python3 python/examples/verl_dynamic_batch.py

The one-line change in verl is the import:  from ravel.adapters.verl import rearrange_micro_batches
"""

import numpy as np

import _checkout  # noqa: F401
from ravel.adapters import verl

ROWS, LONGEST, MAX_TOKEN_LEN = 64, 512, 2048


class Rows(dict):
    """The little of TensorDict that is needed: columns by name, rows by index."""

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else Rows({k: v[key] for k, v in self.items()})


def log_probs(micro_batch):
    """Stands for the model: one number a row."""
    return (micro_batch["input_ids"] * micro_batch["attention_mask"]).sum(-1)


def main():
    rng = np.random.default_rng(3)
    lengths = rng.integers(8, LONGEST, ROWS)
    mask = (np.arange(LONGEST) < lengths[:, None]).astype(np.int64)
    batch = Rows(input_ids=rng.integers(0, 1000, (ROWS, LONGEST)), attention_mask=mask)

    micro_batches, indices = verl.rearrange_micro_batches(batch, MAX_TOKEN_LEN, num_batches_divided_by=2)
    tokens = [int(m["attention_mask"].sum()) for m in micro_batches]
    results = verl.restore_dynamic_batch(np.concatenate([log_probs(m) for m in micro_batches]), indices)

    print(f"{ROWS} rows, {int(lengths.sum())} tokens: {len(micro_batches)} micro-batches of {min(tokens)} to {max(tokens)} "
          f"tokens, budget {MAX_TOKEN_LEN}")
    assert max(tokens) <= MAX_TOKEN_LEN and len(micro_batches) % 2 == 0
    assert np.array_equal(results, log_probs(batch))
    print("results are back in the order of the rows")


if __name__ == "__main__":
    main()
