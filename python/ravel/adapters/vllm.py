"""vLLM (from 0.28): ``--weight-transfer-config '{"backend": "ravel"}'``. The wheel's entry point ``vllm.general_plugins`` calls
:func:`register` in every worker. A worker pulls everything into host memory and verifies it (receive); only finish, which vLLM
calls when all workers have received, touches the model. A failure before that leaves the old weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._publish import Publisher
from ._staged import Staged, to_torch


def register() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory

    WeightTransferEngineFactory.register_engine("ravel", __name__, "RavelEngine")
    WeightTransferTrainerFactory.register_engine("ravel", __name__, "RavelTrainerEngine")


@dataclass
class RavelInitInfo:
    """Where the trainers publish, and which tensors, by Hugging Face's names."""

    address: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    timeout: float = 600
    token: str | None = None


@dataclass
class RavelUpdateInfo:
    version: int = 0  # 0: the newest


class RavelEngine:
    """The worker's half."""

    init_info_cls, update_info_cls = RavelInitInfo, RavelUpdateInfo

    def __init__(self, config: Any, vllm_config: Any = None, device: Any = None, model: Any = None):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.staged: Staged | None = None
        self.dtypes: dict[str, str] = {}

    def init_transfer_engine(self, init_info: RavelInitInfo) -> None:
        self.dtypes = dict(zip(init_info.names, init_info.dtype_names))
        self.staged = Staged(init_info.address, init_info.names, init_info.dtype_names, init_info.shapes,
                             init_info.timeout, init_info.token)

    def start_weight_update(self) -> None:
        """Nothing is touched before everything has arrived."""

    def receive_weights(self, update_info: RavelUpdateInfo, load_weights: Any = None) -> None:
        assert self.staged is not None
        self.staged.receive(update_info.version)

    def finish_weight_update(self) -> None:
        assert self.staged is not None
        self.model.load_weights((name, to_torch(array, self.dtypes[name])) for name, array in self.staged.take())

    def shutdown(self) -> None:
        if self.staged is not None:
            self.staged.close()


@dataclass(kw_only=True)
class RavelTrainerInitInfo:
    rank: int = 0
    address: str = "127.0.0.1:7700"
    options: dict[str, Any] = field(default_factory=dict)


class RavelTrainerEngine:
    """The trainer's half: ``source`` is a mapping of names to host tensors."""

    def __init__(self, init_info: RavelTrainerInitInfo, client: Any, source: Any):
        self.client, self.version = client, 0
        self.publisher = Publisher(init_info.address, dict(source), **init_info.options)
        names = list(source)
        client.init_weight_transfer_engine(dict(
            address=self.publisher.address, names=names, dtype_names=[str(source[n].dtype) for n in names],
            shapes=[list(source[n].shape) for n in names]))

    @classmethod
    def trainer_init(cls, init_info: RavelTrainerInitInfo, client: Any, source: Any) -> "RavelTrainerEngine":
        return cls(init_info, client, source)

    def send_weights(self) -> None:
        self.version += 1
        self.publisher.publish(self.version)
        self.client.start_weight_update()
        self.client.update_weights(dict(version=self.version))
        self.client.finish_weight_update(self.version)
