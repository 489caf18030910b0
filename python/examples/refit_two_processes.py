"""Weights from a training process to a generating process, over a pipe.

    python3 python/examples/refit_two_processes.py

The transport is any object with rank, size, send and recv: here two ends of a multiprocessing pipe. With mpi4py it would
be ravel.comm.from_mpi4py(MPI.COMM_WORLD), with torch.distributed ravel.comm.from_torch(group), and nothing below changes.
The generator reads version v from one set of arrays while v + 1 is staged in another; the switch is all or nothing.
"""

import multiprocessing
import struct

import numpy as np

import _checkout  # noqa: F401
import ravel

UPDATES = 3
SHAPES = {"embed": (512, 64), "layers.0.w": (64, 256), "layers.0.b": (256,), "step": ()}


class Pipe:
    """Two ranks at the ends of a pipe. Messages carry their tag; one that is not wanted yet is put aside."""

    def __init__(self, connection, rank):
        self.connection, self.rank, self.size, self.aside = connection, rank, 2, []

    def send(self, data, peer, tag, timeout):
        self.connection.send_bytes(struct.pack("<i", tag) + bytes(data))

    def recv(self, into, peer, tag, timeout):
        into[:] = self._next(tag, timeout)

    def _next(self, tag, timeout):
        for i, (got, data) in enumerate(self.aside):
            if got == tag:
                return self.aside.pop(i)[1]
        while True:
            if not self.connection.poll(timeout):
                raise TimeoutError(f"nothing came in {timeout:.0f} s")
            message = self.connection.recv_bytes()
            got = struct.unpack_from("<i", message)[0]
            if got == tag:
                return message[4:]
            self.aside.append((got, message[4:]))


def weights_of(version):
    """What training would have made of the weights by then."""
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}


def train(connection):
    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with ravel.comm.callbacks(Pipe(connection, 0), timeout=60) as comm, ravel.Refit.producer(comm, weights) as refit:
        for version in range(1, UPDATES + 1):
            for name, value in weights_of(version).items():
                weights[name][...] = value
            report = refit.update(version)
            print(f"trainer: version {version}, {report.bytes_moved} bytes in {report.seconds * 1e3:.1f} ms", flush=True)


def generate(connection):
    mine = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with ravel.comm.callbacks(Pipe(connection, 1), timeout=60) as comm, ravel.Refit.consumer(comm, mine) as refit:
        for _ in range(UPDATES):
            refit.update()
            for name, value in weights_of(refit.version).items():
                assert np.array_equal(refit.weights[name], value), name
            print(f"generator: version {refit.version} is live and whole", flush=True)


def main():
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=generate, args=(there,))
    other.start()
    train(here)
    other.join()
    assert other.exitcode == 0, f"the generator ended with {other.exitcode}"
    print("done: every version arrived whole")


if __name__ == "__main__":
    main()
