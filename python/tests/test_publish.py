"""Publish and pull from Python, and the engines' plug-ins against their contracts as written down from their sources (none of
vLLM, SGLang and verl is installed here): the calls that each engine makes, in its order."""

import asyncio
import itertools
import os
import sys
import types

import numpy as np
import pytest

import ravel

_number = itertools.count()


def _address():
    return f"unix:@ravel-python-{os.getpid()}-{next(_number)}"


def test_publish_and_pull():
    w, at = np.arange(5000, dtype=np.float32), _address()
    publisher = ravel.Publisher(at, {"w": w}, threads=1)
    puller = ravel.Puller(at, {"w": np.zeros_like(w)}, threads=1, timeout=20)
    assert puller.poll() == "idle" and puller.identity.version == 0
    for version in (1, 2, 3):
        w[:] += 1
        published = publisher.publish(version)
        w[0] = -7  # after publish it may change
        puller.wait(20)
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
    puller = ravel.Puller(at, {"w": ravel.RefitTensor(np.zeros(300, np.uint16), dtype="bf16")}, timeout=20)
    publisher.publish(1)
    puller.wait(20)
    puller.commit()
    back = (puller.weights["w"].astype(np.uint32) << 16).view(np.float32)
    assert np.abs(back - w).max() < 0.01
    puller.close()
    publisher.close()


class _Model:
    def __init__(self):
        self.loaded = {}

    def load_weights(self, named):
        self.loaded = {name: tensor.clone() for name, tensor in named}


def test_vllm_contract(monkeypatch):
    torch = pytest.importorskip("torch")
    registered = {}

    class Factory:
        @classmethod
        def register_engine(cls, name, module, kind):
            registered[name, cls.__name__] = getattr(__import__(module, fromlist=[kind]), kind)

    module = types.ModuleType("vllm.distributed.weight_transfer")
    module.WeightTransferEngineFactory = type("WeightTransferEngineFactory", (Factory,), {})
    module.WeightTransferTrainerFactory = type("WeightTransferTrainerFactory", (Factory,), {})
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    from ravel.adapters import vllm

    vllm.register()
    engine_cls, trainer_cls = (registered["ravel", f"WeightTransfer{x}Factory"] for x in ("Engine", "Trainer"))
    workers = [engine_cls(None, model=_Model()) for _ in range(2)]

    class Client:  # what vLLM's client does with its four methods
        def init_weight_transfer_engine(self, info):
            for worker in workers:
                worker.init_transfer_engine(worker.init_info_cls(**info))

        def start_weight_update(self):
            for worker in workers:
                worker.start_weight_update()

        def update_weights(self, info):
            for worker in workers:
                worker.receive_weights(worker.update_info_cls(**info))
            assert all(version_before == (w.model.loaded or None) for w, version_before in zip(workers, before))

        def finish_weight_update(self, version):
            for worker in workers:
                worker.finish_weight_update()

    source = {"a": torch.randn(40, 30), "b": torch.randn(7).to(torch.bfloat16)}
    before = [None, None]
    trainer = trainer_cls.trainer_init(vllm.RavelTrainerInitInfo(rank=0, address=_address()), Client(), source)
    for _ in range(2):
        source["a"] += 1
        trainer.send_weights()
        for worker in workers:
            assert torch.equal(worker.model.loaded["a"], source["a"]) and torch.equal(worker.model.loaded["b"], source["b"])
        before = [dict(w.model.loaded) for w in workers]
        before = [None if not b else w.model.loaded for b, w in zip(before, workers)]
    for worker in workers:
        worker.shutdown()


def test_sglang_contract():
    torch = pytest.importorskip("torch")
    from ravel.adapters import sglang

    at, source = _address(), {"a": torch.randn(64, 3), "b": torch.randn(5)}
    publisher, model = ravel.Publisher(at, source), _Model()
    for version in (1, 2):
        source["a"] += 1
        publisher.publish(version)
        text = sglang.request(at, list(source), [str(t.dtype) for t in source.values()], [list(t.shape) for t in source.values()],
                              version)
        sglang.load(model, [("ravel", torch.frombuffer(bytearray(text), dtype=torch.uint8))])
        assert torch.equal(model.loaded["a"], source["a"]) and torch.equal(model.loaded["b"], source["b"])
    publisher.close()


def test_verl_contract():
    torch = pytest.importorskip("torch")
    from ravel.adapters.verl_refit import RavelCheckpointEngine

    trainer = RavelCheckpointEngine(bucket_size=1 << 20, is_master=True, address=_address(), timeout=20)
    rollout = RavelCheckpointEngine(timeout=20)
    weights = {"a": torch.randn(9, 4), "b": torch.randn(2).to(torch.float16)}

    async def step(version):
        announced = await trainer.send_weights(iter(weights.items()), version)
        return {name: tensor.clone() async for name, tensor in rollout.receive_weights(version, announced)}

    for version in (1, 2):
        weights["a"] += 1
        got = asyncio.run(step(version))
        assert all(torch.equal(got[name], weights[name]) for name in weights)
    trainer.finalize()
    rollout.finalize()
