"""Packing tokenised rows: TRL's functions and ravel.adapters.trl's, in turns in one process.

    build/frameworks/bin/python python/bench/trl_vs_trl.py [rows]

Prints "bfd-ratio wrapped-ratio bfd-call-ratio wrapped-call-ratio", then our milliseconds in the same order: TRL's time over ours, each
the least processor time of 9 (what shares the machine does not count). Tables as ``map`` hands them over: 4,096 rows of 1,220
tokens in the mean (lognormal), two columns. The first two are the functions alone, the others whole calls of ``pack_dataset``
on a data set in memory, in one batch.
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import datasets
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
    data = datasets.Dataset(table)
    datasets.disable_progress_bars()

    def call(library, strategy):
        return lambda: library.pack_dataset(data, ROW, strategy, {"batch_size": None, "load_from_cache_file": False})

    pairs = [(lambda: ours.pack_table(table, ROW), lambda: theirs._pack_bfd(table, ROW)),
             (lambda: ours._wrap_table(table, ROW), lambda: theirs._pack_wrapped(table, ROW)),
             *((call(ours, strategy), call(theirs, strategy)) for strategy in ("bfd", "wrapped"))]
    best = [[least(body) for body in pair] for pair in pairs]
    for _ in range(ROUNDS):
        best = [[min(time_, least(body)) for time_, body in zip(times, pair)] for times, pair in zip(best, pairs)]
    print(*(pair[1] / pair[0] for pair in best), *(pair[0] * 1e3 for pair in best))


main()
