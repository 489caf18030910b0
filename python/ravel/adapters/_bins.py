"""The frameworks expect that no bin is empty while another has two samples; a planner does not promise it."""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["fill_empty"]


def fill_empty(bins: list[list[Any]]) -> list[list[Any]]:
    """The bins, each empty one filled with half of the bin that has the most samples then. No cap can break: a part of
    a bin is never larger than the bin. Bins are still empty only where there are too few samples."""
    done = list(bins)
    widest = [(-len(part), i) for i, part in enumerate(done)]
    heapq.heapify(widest)
    for empty in [i for i, part in enumerate(done) if not part]:
        count, source = heapq.heappop(widest)
        if -count < 2:
            break
        whole, half = done[source], -count // 2
        done[source], done[empty] = whole[:half], whole[half:]
        for i in (source, empty):
            heapq.heappush(widest, (-len(done[i]), i))
    return done
