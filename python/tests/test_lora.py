"""Adapters (LoRA) from a publication into inference engines, as in test_plugins.py: with recorded base classes and, where RAVEL_ENGINES
has them, the packages' own."""

import asyncio
import dataclasses
import http.server
import importlib.util
import json
import pathlib
import sys
import threading
import types

import numpy as np
import pytest

import ravel
from ravel.adapters import lora

from test_plugins import _address, _engine_file, _real_vllm, _recorded_vllm, torch

CONFIG = dict(peft_type="LORA", r=4, lora_alpha=8, target_modules={"v_proj", "q_proj"}, bias="none")


def _tensors():
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    return {name.format("A"): torch.randn(4, 16).to(torch.bfloat16), name.format("B"): torch.randn(16, 4).to(torch.bfloat16)}


def _read(folder):
    found = ravel.read_safetensors(folder / lora.WEIGHTS)
    return {n: (found.dtype(n), found.raw(n).tobytes()) for n in found}, json.loads((folder / lora.CONFIG).read_text())


def _bits(tensors):
    return {n: ("bf16", t.view(torch.int16).numpy().tobytes()) for n, t in tensors.items()}


def test_versions_are_folders_that_appear_whole(tmp_path):
    tensors = _tensors()
    publisher = ravel.Publisher(_address(), lora.adapter_tensors(tensors, CONFIG))
    assert ravel.published(publisher.address)[lora.CONFIG][0] == "u8"
    workers = [lora.AdapterFolder(publisher.address, tmp_path, "policy", keep=2, timeout=60) for _ in range(2)]
    for version in range(1, 6):
        for t in tensors.values():
            t += 1
        publisher.publish(version)
        before = set(tmp_path.glob("policy@*"))
        for worker in workers:
            worker.receive(version)
        assert set(tmp_path.glob("policy@*")) == before  # nothing has its name yet
        if version == 3:  # another worker failed: nobody takes it
            workers[1].drop()
            continue
        places = {worker.take() for worker in workers}
        assert places == {pathlib.Path(lora.lora_version("policy", version, tmp_path).path)}
        got, config = _read(places.pop())
        assert got == _bits(tensors) and config == {**CONFIG, "target_modules": ["q_proj", "v_proj"]}
    workers[0].drop()
    assert workers[0].versions() == [4, 5] and not list(tmp_path.glob(".*"))
    publisher.close()
    again = {n: t * 2 for n, t in tensors.items()}  # other trainers, the same number
    publisher = ravel.Publisher(publisher.address, lora.adapter_tensors(again, CONFIG))
    publisher.publish(5)
    workers[0].receive(5)
    assert _read(workers[0].take())[0] == _bits(again)
    plain = ravel.Publisher(_address(), {"w": np.zeros(3)})
    with pytest.raises(ValueError, match="publishes no adapter"):
        lora.AdapterFolder(plain.address, tmp_path)
    for part in (*workers, publisher, plain):
        part.close()


def test_parts_of_a_fused_tensor_become_one(tmp_path):
    layer, rng = "base_model.model.model.layers.0.", np.random.default_rng(3)
    sizes = {"self_attn.qkv_proj.lora_A": (2, 8), "self_attn.q_proj.lora_B": (8, 2), "self_attn.k_proj.lora_B": (4, 2),
             "self_attn.v_proj.lora_B": (4, 2), "self_attn.o_proj.lora_A": (2, 8), "self_attn.o_proj.lora_B": (8, 2)}
    tensors = {f"{layer}{name}.weight": rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    publisher = ravel.Publisher(_address(), lora.adapter_tensors(tensors, dict(CONFIG, target_modules=["qkv_proj", "o_proj"])))
    publisher.publish(1)
    folder = lora.AdapterFolder(publisher.address, tmp_path, "policy", timeout=60)
    folder.receive()
    found = ravel.read_safetensors(folder.take() / lora.WEIGHTS)
    b = [tensors.pop(f"{layer}self_attn.{part}_proj.lora_B.weight") for part in "qkv"]
    tensors[f"{layer}self_attn.qkv_proj.lora_B.weight"] = np.concatenate(b)
    assert set(found) == set(tensors) and all(np.array_equal(found[n], tensors[n]) for n in tensors)
    folder.close()
    publisher.close()


@dataclasses.dataclass
class _RecordedHelper:
    """vllm 0.33.0's PEFTHelper, as far as it is called."""

    config: dict

    @classmethod
    def from_local_dir(cls, path, max_position_embeddings):
        return cls(json.loads((pathlib.Path(path) / "adapter_config.json").read_text()))

    def validate_legal(self, lora_config):
        if self.config["r"] > lora_config.max_lora_rank:
            raise ValueError(f"LoRA rank {self.config['r']} is greater than max_lora_rank {lora_config.max_lora_rank}.")


@pytest.mark.parametrize("kind", ["recorded", "real"])
def test_vllm(kind, monkeypatch, tmp_path):
    made = {}
    for name in ("", "config", "config.parallel", "config.weight_transfer", "config.lora", "logger", "distributed",
                 "distributed.weight_transfer", "distributed.weight_transfer.base", "distributed.weight_transfer.factory", "lora",
                 "lora.peft_helper", "lora.request", "lora.resolver"):
        full = f"vllm.{name}".rstrip(".")
        made[name.removeprefix("distributed.weight_transfer").removeprefix(".") if name.startswith("distributed.w") else full] = \
            module = types.ModuleType(full)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, full, module)
    sys.modules["vllm.config.parallel"].ParallelConfig = sys.modules["vllm.config.weight_transfer"].WeightTransferConfig = object
    sys.modules["vllm.config.lora"].LoRAConfig = object
    quiet = types.SimpleNamespace(info=lambda *a: None, warning=lambda *a: None, warning_once=lambda *a: None, info_once=lambda *a: None)
    sys.modules["vllm.logger"].init_logger = lambda name: quiet
    monkeypatch.setattr(torch, "accelerator", types.SimpleNamespace(synchronize=lambda: None), raising=False)
    for name in ("ravel.adapters.vllm", "ravel.adapters.vllm_trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    {"recorded": _recorded_vllm, "real": _real_vllm}[kind](made)
    registered = {}
    sys.modules["vllm.lora.resolver"].LoRAResolverRegistry = types.SimpleNamespace(register_resolver=registered.__setitem__)
    sys.modules["vllm.lora.request"].LoRARequest = lambda name, number, path, base_model_name=None: (name, number, path)
    helper = sys.modules["vllm.lora.peft_helper"]
    if kind == "real":
        monkeypatch.setitem(sys.modules, "regex", __import__("re"))
        spec = importlib.util.spec_from_file_location("vllm.lora.peft_helper", _engine_file("vllm/lora/peft_helper.py"))
        helper = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, helper)
        spec.loader.exec_module(helper)
        assert "def resolve_lora(\n        self, base_model_name: str, lora_name: str\n" in _engine_file("vllm/lora/resolver.py").read_text()
    else:
        helper.PEFTHelper = _RecordedHelper
    monkeypatch.setenv("RAVEL_LORA_FOLDER", str(tmp_path))
    from ravel.adapters import vllm
    from ravel.adapters.vllm_trainer import RavelTrainerInitInfo

    vllm.register()
    weight_transfer = sys.modules["vllm.distributed.weight_transfer"]
    limits = types.SimpleNamespace(max_lora_rank=8)
    config = types.SimpleNamespace(parallel_config=None, model_config="model config", lora_config=limits)
    workers = [weight_transfer.WeightTransferEngineFactory.create_engine(
        types.SimpleNamespace(backend="ravel"), config, torch.device("cpu"), None) for _ in range(2)]

    class Client:
        def init_weight_transfer_engine(self, info):
            for worker in workers:
                worker.init_transfer_engine(worker.parse_init_info(info))

        def start_weight_update(self):
            for worker in workers:
                worker.start_weight_update()

        def update_weights(self, info):
            for worker in workers:
                worker.update_weights(info)

        def finish_weight_update(self, weight_version=None):
            for worker in workers:
                worker.finish_weight_update()

    tensors = _tensors()

    class Source:
        def metadata(self):
            return [types.SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in tensors.items()]

        def __iter__(self):
            return iter(tensors.items())

    trainer = weight_transfer.WeightTransferTrainerFactory.trainer_init(
        RavelTrainerInitInfo(rank=0, address=_address(), adapter="policy", adapter_folder=str(tmp_path), adapter_config=CONFIG),
        client=Client(), source=Source())
    resolve = registered["ravel"].resolve_lora
    for version in (1, 2):
        for t in tensors.values():
            t += 1
        trainer.send_weights()
        assert trainer.lora.name == f"policy@{version}" and asyncio.run(resolve("base", trainer.lora.name)) == tuple(trainer.lora)
        assert _read(pathlib.Path(trainer.lora.path))[0] == _bits(tensors)
    limits.max_lora_rank = 2  # what vLLM would refuse is refused before the vote, and nothing of it stays
    with pytest.raises(ValueError, match="max_lora_rank"):
        trainer.send_weights()
    assert trainer.lora.name == "policy@2" and asyncio.run(resolve("base", "policy@3")) is None
    assert asyncio.run(resolve("base", "../policy@2")) is None and not list(tmp_path.glob(".*"))
    limits.max_lora_rank = 8
    trainer.send_weights()
    assert trainer.lora.name == "policy@4" and sorted(p.name for p in tmp_path.iterdir()) == ["policy@1", "policy@2", "policy@4"]
    for part in (*workers, trainer):
        part.shutdown()


class _Server(http.server.BaseHTTPRequestHandler):
    loaded: dict = {}
    refuse = False

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ok = not self.refuse
        if ok and self.path == "/load_lora_adapter":
            assert (pathlib.Path(body["lora_path"]) / lora.WEIGHTS).exists()
            self.loaded[body["lora_name"]] = body["lora_path"]
        elif ok:
            del self.loaded[body["lora_name"]]
        self.send_response(200 if ok else 400)
        self.end_headers()
        self.wfile.write(json.dumps(dict(success=ok, error_message="no memory")).encode())


@pytest.mark.parametrize("kind", ["recorded", "real"])
def test_sglang(kind, tmp_path):
    from ravel.adapters import sglang

    if kind == "real":
        routes = _engine_file("sglang/srt/entrypoints/http_server.py").read_text()
        structs = _engine_file("sglang/srt/managers/io_struct.py").read_text()
        assert '"/load_lora_adapter", methods=["POST"]' in routes and '"/unload_lora_adapter", methods=["POST"]' in routes
        assert "class LoadLoRAAdapterReqInput" in structs and "    lora_path: str\n" in structs.split("class LoadLoRAAdapterReqInput")[1]
    _Server.loaded = {}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    tensors = _tensors()
    publisher = ravel.Publisher(_address(), lora.adapter_tensors(tensors, CONFIG))
    folder = lora.AdapterFolder(publisher.address, tmp_path, "policy", keep=2, timeout=60)
    for version in range(1, 5):
        publisher.publish(version)
        assert sglang.load_adapter(url, folder, version).name == f"policy@{version}"
    assert list(_Server.loaded) == ["policy@3", "policy@4"]  # running answers finish with the version before
    publisher.publish(5)
    _Server.refuse = True
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            sglang.load_adapter(url, folder, 5)
        assert list(_Server.loaded) == ["policy@3", "policy@4"]
    finally:
        _Server.refuse = False
    server.shutdown(), server.server_close(), folder.close(), publisher.close()
