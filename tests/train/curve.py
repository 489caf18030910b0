"""For tests that compare runs: the losses of a run folder, and the seed."""
import json
import os
import time


def seed_of(words):
    """The first word, RAVEL_SEED, or the day."""
    return int(words[0] if words else os.environ.get("RAVEL_SEED") or time.strftime("%Y%m%d", time.gmtime()))


def losses(run):
    """{step: loss}; a step that was run twice has its last one. Empty where the run never got that far."""
    found = {}
    try:
        with open(os.path.join(run, "metrics.jsonl")) as f:
            for line in f:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # the last line of a run that was killed
                if "train/loss" in row:
                    found[row["step"]] = row["train/loss"]
    except FileNotFoundError:
        pass
    return found
