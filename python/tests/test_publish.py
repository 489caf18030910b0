"""Publish and pull from Python. The engines' plug-ins are in test_plugins.py."""

import itertools
import os
import signal

import numpy as np
import pytest

import ravel

_number = itertools.count()


def _address():
    return f"unix:@ravel-python-{os.getpid()}-{next(_number)}"


def test_publish_and_pull():
    w, at = np.arange(5000, dtype=np.float32), _address()
    publisher = ravel.Publisher(at, {"w": w}, threads=1)
    puller = ravel.Puller(at, {"w": np.zeros_like(w)}, threads=1, timeout=60)
    assert puller.poll() == "idle" and puller.identity.version == 0
    for version in (1, 2, 3):
        w[:] += 1
        published = publisher.publish(version)
        w[0] = -7  # after publish it may change
        puller.wait(60)
        report = puller.commit()
        assert report["identity"] == published == puller.identity
        assert puller.weights["w"][0] == (1 if version == 1 else -6) and puller.weights["w"][4999] == 4999 + version
    with pytest.raises(ravel.Error):
        puller.stage(17)
    puller.close()
    publisher.close()


def test_options_and_mistakes():
    assert "keep" in ravel.publish_options() and "stage" in ravel.pull_options()
    with pytest.raises(ravel.ArgumentError):
        ravel.Publisher(_address(), {"w": np.zeros(3, np.float32)}, keeps=3)
    with pytest.raises(ravel.Error):
        ravel.Puller("unix:@ravel-nobody", {"w": np.zeros(3, np.float32)}, timeout=0.2)


def test_bf16_is_kept_and_pulled():
    w, at = np.linspace(-1, 1, 300, dtype=np.float32), _address()
    publisher = ravel.Publisher(at, {"w": w}, dtype="bf16")
    puller = ravel.Puller(at, {"w": ravel.RefitTensor(np.zeros(300, np.uint16), dtype="bf16")}, timeout=60)
    publisher.publish(1)
    puller.wait(60)
    puller.commit()
    back = (puller.weights["w"].astype(np.uint32) << 16).view(np.float32)
    assert np.abs(back - w).max() < 0.01
    puller.close()
    publisher.close()


def test_signal_handlers_run_while_a_puller_waits():
    """As for Ctrl-C: the version that is waited for is published by the handler."""
    at, w = _address(), np.ones(3, np.float32)
    publisher = ravel.Publisher(at, {"w": w})
    puller = ravel.Puller(at, {"w": np.zeros(3, np.float32)}, timeout=60)
    with pytest.raises(ravel.PeerError, match="no version was ready within 0.01 s"):
        puller.wait(0.01)
    before = signal.signal(signal.SIGALRM, lambda *_: publisher.publish(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        puller.wait(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    puller.commit()
    assert puller.weights["w"].tolist() == [1, 1, 1]
    puller.close()
    publisher.close()
