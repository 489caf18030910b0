"""Two kinds of transport for tests: queues between threads, and pipes between processes."""

import queue
import threading


class Queues:
    """N ranks in one process. `break_at` makes the n-th message of this rank raise."""

    def __init__(self, rank, boxes, break_at=None):
        self.rank, self.size, self.boxes, self.messages, self.break_at = rank, len(boxes), boxes, 0, break_at
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
        try:
            got = self.boxes[self.rank].setdefault((peer, tag), queue.Queue()).get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError("nothing came") from None
        into[:] = got

    def abort(self, why):
        self.aborted.append(why)

    def close(self):
        self.closed += 1


def queues(count, **breaks):
    boxes = [{} for _ in range(count)]
    return [Queues(rank, boxes, breaks.get(f"rank{rank}")) for rank in range(count)]


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
