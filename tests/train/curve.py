"""The losses of a run folder, for tests that compare runs."""
import json
import os


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
