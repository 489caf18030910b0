"""The engines' plug-ins, driven as each engine drives them: the calls that it makes, in its order.

Each test runs twice. "recorded": with base classes written down from vllm 0.32.0, verl 0.9.1 and sglang 0.5.23, the newest of
November 2026. "real": with the classes of the packages' own files, where the folder RAVEL_ENGINES has them (`make
test-frameworks` brings them); what those files import beyond torch is replaced, since the engines need a GPU."""

import abc
import ast
import asyncio
import dataclasses
import importlib.util
import itertools
import os
import pathlib
import sys
import types
import typing

import pytest

import ravel

torch = pytest.importorskip("torch")
_number = itertools.count()


def _address():
    return f"unix:@ravel-plugins-{os.getpid()}-{next(_number)}"


def _engine_file(path):
    folder = os.environ.get("RAVEL_ENGINES")
    if not folder:
        pytest.skip("RAVEL_ENGINES is not set (make test-frameworks sets it)")
    return pathlib.Path(folder) / path


def _definitions(path, names, scope):
    """The named classes and functions of a file, without its imports."""
    body = [n for n in ast.parse(path.read_text()).body if getattr(n, "name", None) in names]
    assert {n.name for n in body} == set(names), f"{path} has no {set(names) - {n.name for n in body}}"
    exec(compile(ast.Module(body, []), str(path), "exec"), scope)
    return [scope[name] for name in names]


class _Model:
    def __init__(self):
        self.loaded = {}

    def load_weights(self, named):
        self.loaded = {name: tensor.clone() for name, tensor in named}


def test_an_update_that_failed_elsewhere_does_not_block_the_next(monkeypatch):
    from ravel.adapters import _staged

    monkeypatch.setattr(_staged, "RECONNECT_SECONDS", 0.2)
    source = {"a": torch.zeros(3)}
    publisher = ravel.Publisher(_address(), source)
    worker = _staged.Staged(publisher.address, ["a"], ["float32"], [[3]], timeout=60)
    for version in (1, 2):
        source["a"] += 1
        publisher.publish(version)
        worker.receive(version)  # version 1 is staged, and nobody takes it
    assert dict(worker.take())["a"].tolist() == [2, 2, 2]
    worker.receive(2)  # asked for again, after the engine's own loader has failed
    assert dict(worker.take())["a"].tolist() == [2, 2, 2]
    with pytest.raises(ravel.Error, match="version 1 is not among"):
        publisher.publish(3), publisher.publish(4), publisher.publish(5), worker.receive(5), worker.receive(1)
    worker.close(), publisher.close()


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def _recorded_vllm(module):
    class WeightTransferEngine(abc.ABC):
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.model_config = vllm_config.model_config

        def parse_init_info(self, info):
            return self.init_info_cls(**info)

        def update_weights(self, info):
            self.receive_weights(self.update_info_cls(**info))

        def reset_weight_update_target(self):
            pass

    for name in ("init_transfer_engine", "start_weight_update", "receive_weights", "finish_weight_update", "shutdown"):
        setattr(WeightTransferEngine, name, abc.abstractmethod(lambda self, *a: None))
    abc.update_abstractmethods(WeightTransferEngine)

    @dataclasses.dataclass
    class TrainerInitInfo:
        rank: int = dataclasses.field(kw_only=True)

        @property
        def is_sender(self):
            return self.rank == 0

    class TrainerWeightTransferEngine(abc.ABC):
        def __init__(self, *, client, source=None, is_sender=True):
            self.client, self.source, self.is_sender = client, source, is_sender

    class Factory:
        @classmethod
        def register_engine(cls, name, path, kind):
            if name in cls.registry:
                raise ValueError(f"{name} is already registered")
            cls.registry[name] = lambda: getattr(importlib.import_module(path), kind)

    base = types.SimpleNamespace(
        WeightTransferEngine=WeightTransferEngine, TrainerInitInfo=TrainerInitInfo,
        TrainerWeightTransferEngine=TrainerWeightTransferEngine,
        WeightTransferInitInfo=dataclasses.make_dataclass("WeightTransferInitInfo", []),
        WeightTransferUpdateInfo=dataclasses.make_dataclass("WeightTransferUpdateInfo", []))
    for name, value in vars(base).items():
        setattr(module["base"], name, value)

    class Engines(Factory):
        registry: typing.ClassVar[dict] = {}

        @classmethod
        def create_engine(cls, config, vllm_config, device, model):
            return cls.registry[config.backend]()(config, vllm_config, device, model)

    class Trainers(Factory):
        registry: typing.ClassVar[dict] = {}

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            return cls.registry[init_info.backend]().trainer_init(init_info=init_info, client=client, source=source)

    module[""].WeightTransferEngineFactory, module[""].WeightTransferTrainerFactory = Engines, Trainers


def _real_vllm(module):
    folder = _engine_file("vllm/distributed/weight_transfer")
    for name in ("base", "factory"):
        spec = importlib.util.spec_from_file_location(f"vllm.distributed.weight_transfer.{name}", folder / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
    module[""].WeightTransferEngineFactory = made.WeightTransferEngineFactory
    module[""].WeightTransferTrainerFactory = made.WeightTransferTrainerFactory


@pytest.mark.parametrize("kind", ["recorded", "real"])
def test_vllm(kind, monkeypatch):
    made = {}
    for name in ("", "config", "config.parallel", "config.weight_transfer", "logger", "distributed", "distributed.weight_transfer",
                 "distributed.weight_transfer.base", "distributed.weight_transfer.factory", "model_executor",
                 "model_executor.model_loader", "model_executor.model_loader.reload"):
        full = f"vllm.{name}".rstrip(".")
        made[name.removeprefix("distributed.weight_transfer").removeprefix(".") if "weight_transfer" in name
             and name.startswith("distributed") else full] = module = types.ModuleType(full)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, full, module)
    sys.modules["vllm.config.parallel"].ParallelConfig = sys.modules["vllm.config.weight_transfer"].WeightTransferConfig = object
    sys.modules["vllm.logger"].init_logger = lambda name: types.SimpleNamespace(info=lambda *a: None)
    reloads = []
    reload = sys.modules["vllm.model_executor.model_loader.reload"]
    reload.initialize_layerwise_reload = lambda model: reloads.append("initialize")
    reload.finalize_layerwise_reload = lambda model, config: reloads.append("finalize")
    monkeypatch.setattr(torch, "accelerator", types.SimpleNamespace(synchronize=lambda: None), raising=False)
    for name in ("ravel.adapters.vllm", "ravel.adapters.vllm_trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    {"recorded": _recorded_vllm, "real": _real_vllm}[kind](made)
    from ravel.adapters import vllm
    from ravel.adapters.vllm_trainer import RavelTrainerInitInfo

    vllm.register()
    vllm.register()  # a second time does no harm
    weight_transfer = sys.modules["vllm.distributed.weight_transfer"]
    config = types.SimpleNamespace(parallel_config=None, model_config="model config")
    workers = [weight_transfer.WeightTransferEngineFactory.create_engine(
        types.SimpleNamespace(backend="ravel"), config, torch.device("cpu"), _Model()) for _ in range(2)]
    calls = []

    class Client:  # what vLLM's workers do with the client's four calls
        def init_weight_transfer_engine(self, info):
            for worker in workers:
                worker.init_transfer_engine(worker.parse_init_info(info))

        def start_weight_update(self):
            for worker in workers:
                worker.start_weight_update()

        def update_weights(self, info):
            before = [worker.model.loaded for worker in workers]
            for worker in workers:
                worker.update_weights(info)
            assert all(w.model.loaded is b for w, b in zip(workers, before))  # the models were not touched

        def finish_weight_update(self, weight_version=None):
            calls.append(weight_version)
            for worker in workers:
                worker.finish_weight_update()
                worker.reset_weight_update_target()

    class Source:  # as vLLM's WeightSource
        tensors: typing.ClassVar[dict] = {"a": torch.randn(40, 30), "b": torch.randn(7).to(torch.bfloat16),
                                         "scale": torch.tensor(0.5)}

        def metadata(self):
            return [types.SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in self.tensors.items()]

        def __iter__(self):
            return iter(self.tensors.items())

    trainers = [weight_transfer.WeightTransferTrainerFactory.trainer_init(
        RavelTrainerInitInfo(rank=rank, address=_address()), client=Client(), source=Source()) for rank in range(2)]
    for version in (1, 2):
        Source.tensors["a"] += 1
        for trainer in trainers:
            trainer.send_weights()
        assert calls[-1] == str(version) and len(calls) == version
        for worker in workers:
            assert all(torch.equal(worker.model.loaded[n], t) for n, t in Source.tensors.items())
    assert reloads == ["initialize", "finalize"] * 4
    for part in (*workers, *trainers[:1]):
        part.shutdown()


# ---- verl ------------------------------------------------------------------------------------------------------------


class _Group:
    """A worker group of verl, as far as its manager looks at it: one method with one list per keyword."""

    def __init__(self, engines):
        self.engines, self.world_size = engines, len(engines)

    def execute_checkpoint_engine(self, method, **keywords):
        return [getattr(e, name)(**{k: v[i] for k, v in keywords.items()}) for i, (e, name) in enumerate(zip(self.engines, method))]


def _recorded_verl():
    class Base(abc.ABC):
        wire_format = "named_tensors"

    for name in ("prepare", "build_topology", "init_process_group", "finalize", "send_weights", "receive_weights"):
        setattr(Base, name, abc.abstractmethod(lambda self, *a: None))
    abc.update_abstractmethods(Base)

    class Registry:
        found: typing.ClassVar[dict] = {}

        def register(backend):
            return lambda cls: Registry.found.setdefault(backend, cls)

        @classmethod
        def new(cls, backend, **keywords):
            return cls.found[backend](**keywords)

    def build_process_group(backend, actors, rollout):
        metadata = actors.execute_checkpoint_engine(["prepare"] * actors.world_size)
        metadata += rollout.execute_checkpoint_engine(["prepare"] * rollout.world_size)
        for group, keywords in zip((actors, rollout), backend.build_topology(actors.world_size, rollout.world_size, metadata)):
            assert all(len(v) == group.world_size for v in keywords.values())
            group.execute_checkpoint_engine(method=["init_process_group"] * group.world_size, **keywords)

    return Base, Registry, build_process_group


def _real_verl():
    scope = dict(ABC=abc.ABC, abstractmethod=abc.abstractmethod, Any=typing.Any, Generator=typing.Generator, torch=torch,
                 asyncio=asyncio, auto_await=lambda f: f, ray=types.SimpleNamespace(get=lambda x: x),
                 CheckpointEngineConfig=object, RayWorkerGroup=object, RolloutReplica=object)
    base, registry, manager = _definitions(_engine_file("verl/checkpoint_engine/base.py"),
                                           ["CheckpointEngine", "CheckpointEngineRegistry", "CheckpointEngineManager"], scope)

    def build_process_group(backend, actors, rollout):
        self = manager.__new__(manager)
        self.backend_cls, self.actor_wg = backend, actors
        self.build_process_group(rollout)

    return base, registry, build_process_group


@pytest.mark.parametrize("kind", ["recorded", "real"])
def test_verl(kind, monkeypatch):
    base, registry, build_process_group = _recorded_verl() if kind == "recorded" else _real_verl()
    for name in ("verl", "verl.checkpoint_engine", "verl.checkpoint_engine.base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = sys.modules["verl.checkpoint_engine.base"]
    module.CheckpointEngine, module.CheckpointEngineRegistry = base, registry
    monkeypatch.delitem(sys.modules, "ravel.adapters.verl_refit", raising=False)
    import ravel.adapters.verl_refit as plugin

    assert issubclass(plugin.RavelCheckpointEngine, base)
    options = dict(bucket_size=1 << 20, timeout=30, address=_address())
    actors = _Group([registry.new("ravel", is_master=rank == 0, **options) for rank in range(2)])
    rollout = _Group([registry.new("ravel", **options) for _ in range(2)])
    weights = {"a": torch.randn(9, 4), "b": torch.randn(2).to(torch.float16), "scale": torch.tensor(0.5)}

    async def receive(engine, step):
        return {name: tensor.clone() async for name, tensor in engine.receive_weights(global_steps=step)}

    async def update(step):
        sends = [engine.send_weights(iter(weights.items()), global_steps=step) for engine in actors.engines]
        done = await asyncio.gather(*[receive(engine, step) for engine in rollout.engines], *sends)
        return done[:rollout.world_size]

    for step in (None, 0, 7):  # verl's steps may begin with 0
        weights["a"] += 1
        build_process_group(plugin.RavelCheckpointEngine, actors, rollout)
        for got in asyncio.run(update(step)):
            assert list(got) == list(weights) and all(torch.equal(got[n], t) for n, t in weights.items())
        for group in (actors, rollout):
            group.execute_checkpoint_engine(["finalize"] * group.world_size)


# ---- SGLang ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["recorded", "real"])
def test_sglang(kind):
    from ravel.adapters import sglang

    path = "ravel.adapters.sglang.load"
    if kind == "real":
        updater = _engine_file("sglang/srt/model_executor/model_runner_components/weight_updater.py").read_text()
        assert "custom_loader(self.get_model(), named_tensors)" in updater
        find, = _definitions(_engine_file("sglang/srt/utils/common.py"), ["dynamic_import"], {"importlib": importlib})
        load = find(path)
    else:
        load = sglang.load
    at, source = _address(), {"a": torch.randn(64, 3), "b": torch.randn(5), "scale": torch.tensor(0.5)}
    publisher, model = ravel.Publisher(at, source), _Model()
    for version in (3, 4, 1, 2):
        if version == 1:  # the trainers are started again with an earlier version, then with other tensors
            publisher.close()
            publisher = ravel.Publisher(at, source)
        elif version == 2:
            publisher.close()
            source["c"] = torch.randn(2, 2)
            publisher = ravel.Publisher(at, source)
        source["a"] += 1
        publisher.publish(version)
        text = sglang.request(at, list(source), [str(t.dtype) for t in source.values()], [list(t.shape) for t in source.values()],
                              version)
        load(model, [("ravel", torch.frombuffer(bytearray(text), dtype=torch.uint8))])
        assert all(torch.equal(model.loaded[n], t) for n, t in source.items())
    publisher.close()


def test_sglang_command(monkeypatch):
    """What `ravel train grpo --rollout` runs per server and version: the request, as sglang 0.5.23 takes it."""
    import http.server
    import io
    import json
    import threading

    from ravel.adapters import sglang

    bodies = []

    class Server(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def answer(self, document, code=200):
            text = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            assert self.path == "/server_info"
            self.answer({"tp_size": 2})

        def do_POST(self):
            assert self.path == "/update_weights_from_tensor"
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer({"success": len(bodies) == 1, "message": "why"}, 200 if len(bodies) == 1 else 400)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    utils = types.ModuleType("sglang.srt.utils")
    utils.MultiprocessingSerializer = types.SimpleNamespace(
        serialize=lambda tensors, output_str: json.dumps([(n, bytes(t.numpy().tobytes()).decode()) for n, t in tensors]))
    for name, module in (("sglang", types.ModuleType("sglang")), ("sglang.srt", types.ModuleType("sglang.srt")), ("sglang.srt.utils", utils)):
        monkeypatch.setitem(sys.modules, name, module)
    asked = dict(url=f"http://127.0.0.1:{server.server_port}", version=7, address="host:1", names=["a"], dtypes=["float32"], shapes=[[2, 3]])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    sglang.main()
    body, = bodies
    assert body["load_format"] == "ravel.adapters.sglang.load" and body["weight_version"] == "7" and len(body["serialized_named_tensors"]) == 2
    (name, text), = json.loads(body["serialized_named_tensors"][0])
    assert name == "ravel" and json.loads(text) == dict(address="host:1", names=["a"], dtypes=["float32"], shapes=[[2, 3]], version=7, token=None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    with pytest.raises(RuntimeError, match="why"):
        sglang.main()
    server.shutdown()
    server.server_close()
