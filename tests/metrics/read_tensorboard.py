"""Reads RUN/tensorboard with the tensorboard package and compares every scalar with RUN/metrics.jsonl.

    read_tensorboard.py RUN WRITERS      WRITERS: how many runs have written into the folder
"""
import glob
import json
import math
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run, writers = sys.argv[1], int(sys.argv[2])
files = glob.glob(run + "/tensorboard/events.out.tfevents.*")
assert len(files) == writers, files


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


wanted, last = {}, 0
for line in open(run + "/metrics.jsonl"):
    row = json.loads(line)
    if row["step"] <= last:  # begun again from there: what was written of the steps that follow counts no more
        wanted = {name: {step: x for step, x in steps.items() if step < row["step"]} for name, steps in wanted.items()}
    last = row["step"]
    for name, value in row.items():
        if name not in ("step", "time", "ranks") and value is not None:
            wanted.setdefault(name, {})[row["step"]] = single(value)

events = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0})
events.Reload()
found = set(events.Tags()["scalars"])
assert found == set(wanted), found ^ set(wanted)
count = 0
for name in found:
    scalars = {e.step: e.value for e in events.Scalars(name)}
    assert len(events.Scalars(name)) == len(scalars) == len(wanted[name]), (name, "a step is there twice")
    for step, value in wanted[name].items():
        assert scalars[step] == value or math.isnan(value), (name, step, scalars[step], value)
        count += 1
    walls = [e.wall_time for e in events.Scalars(name)]
    assert all(w > 1.5e9 for w in walls)
print(f"tensorboard read {count} scalars of {len(found)} tags in {len(files)} files")
