"""Two kinds of transport for tests: queues between threads, and pipes between processes."""

import queue
import threading
import time


class Queues:
    """N ranks in one process. `break_at` makes the n-th message of this rank raise. What a rank that gave up has not sent,
    nobody waits for: so timeouts can be long, and a slow machine fails nothing."""

    def __init__(self, rank, boxes, break_at=None, given_up=None):
        self.rank, self.size, self.boxes, self.messages, self.break_at = rank, len(boxes), boxes, 0, break_at
        self.given_up = given_up or threading.Event()
        self.aborted, self.closed = [], 0

    def _count(self):
        self.messages += 1
        if self.break_at == self.messages:
            raise ConnectionResetError("the cable was pulled")

    def send(self, data, peer, tag, timeout):
        self._count()
        self.boxes[peer].setdefault((self.rank, tag), queue.Queue()).put(bytes(data))

    def recv(self, into, peer, tag, timeout):
        self._count()
        box, end = self.boxes[self.rank].setdefault((peer, tag), queue.Queue()), time.monotonic() + timeout
        while True:
            last = self.given_up.is_set() or time.monotonic() >= end
            try:
                into[:] = box.get_nowait() if last else box.get(timeout=0.01)
                return
            except queue.Empty:
                if last:
                    raise TimeoutError("nothing came") from None

    def abort(self, why):
        self.aborted.append(why)
        self.given_up.set()

    def close(self):
        self.closed += 1


def queues(count, **breaks):
    boxes, given_up = [{} for _ in range(count)], threading.Event()
    return [Queues(rank, boxes, breaks.get(f"rank{rank}"), given_up) for rank in range(count)]


def on_threads(transports, work):
    """work(transport) on a thread each; results in order, exceptions as results."""
    results = [None] * len(transports)

    def run(i):
        try:
            results[i] = work(transports[i])
        except BaseException as exception:
            results[i] = exception

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(transports))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
        assert not t.is_alive(), "a rank hangs"
    return results
