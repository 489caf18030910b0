"""Packing tokenised rows: TRL's functions and ravel.adapters.trl's, in turns in one process.

    build/frameworks/bin/python python/bench/trl_vs_trl.py [rows]

Prints "bfd-ratio wrapped-ratio bfd-ms wrapped-ms": TRL's time over ours, and ours, each the least processor time of 9 (what
shares the machine does not count). Tables as ``map`` hands them over: 4,096 rows of 1,220 tokens in the mean (lognormal), two columns.
What ``datasets`` does around it (writing the result) is the same for both, and not counted.
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
from trl import data_utils as theirs

from ravel.adapters import trl as ours

ROUNDS, ROW = 9, 8192


def make_table(rows):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.8, 0.8, rows), 1, ROW).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.array(rng.integers(0, 150000, int(offsets[-1])))
    column = pa.LargeListArray.from_arrays(pa.array(offsets), values)
    return pa.table({"input_ids": column, "labels": column})


def least(body):
    begin = time.process_time()
    body()
    return time.process_time() - begin


def main():
    table = make_table(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
    pairs = [(lambda: ours.pack_table(table, ROW), lambda: theirs._pack_bfd(table, ROW)),
             (lambda: ours._wrap_table(table, ROW), lambda: theirs._pack_wrapped(table, ROW))]
    best = [[least(body) for body in pair] for pair in pairs]
    for _ in range(ROUNDS):
        best = [[min(time_, least(body)) for time_, body in zip(times, pair)] for times, pair in zip(best, pairs)]
    print(best[0][1] / best[0][0], best[1][1] / best[1][0], best[0][0] * 1e3, best[1][0] * 1e3)


main()
