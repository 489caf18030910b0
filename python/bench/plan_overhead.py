"""What ravel.plan costs on top of the C call: prints "C-seconds numpy-ratio list-ratio", the ratios taken in one run.

The baseline is ravel_plan_create and ravel_plan_free through ctypes with structs that were made beforehand. Rounds of the
three take turns, and each counts with its least time.
"""

import ctypes as C
import gc
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ravel  # noqa: E402
from ravel import _abi  # noqa: E402
from ravel._lib import lib  # noqa: E402
from ravel._plan import _Input, _make_options  # noqa: E402

COUNT, DP, BUDGET, ROUNDS, CALLS = 4096, 16, 16384, 60, 4


def least(body, best: float) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        body()
    return min(best, (time.perf_counter() - start) / CALLS)


def main() -> None:
    lengths = np.clip(np.random.default_rng(1).lognormal(7.3, 0.9, COUNT), 16, BUDGET).astype(np.int64)
    as_list = lengths.tolist()
    source, error = _Input(lengths), _abi.ravel_error()
    options, pointer = _make_options(None, {"budget": BUDGET, "dp": DP}), C.POINTER(_abi.ravel_plan)()
    arguments = C.byref(source.struct), C.byref(options), C.byref(pointer), C.byref(error)

    def c() -> None:
        assert lib.ravel_plan_create(*arguments) == 0
        lib.ravel_plan_free(pointer)

    bodies = [c, lambda: ravel.plan(lengths, budget=BUDGET, dp=DP), lambda: ravel.plan(as_list, budget=BUDGET, dp=DP)]
    best = [float("inf")] * 3
    gc.disable()
    for _ in range(ROUNDS):
        best = [least(body, time_) for body, time_ in zip(bodies, best)]
    print(best[0], best[1] / best[0], best[2] / best[0])


if __name__ == "__main__":
    main()
