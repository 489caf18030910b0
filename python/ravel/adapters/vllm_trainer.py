"""The trainers' half of vllm.py, on every trainer rank; rank 0 publishes:

    engine = WeightTransferTrainerFactory.trainer_init(RavelTrainerInitInfo(rank=rank), client=client, source=ModuleSource(model))
    engine.send_weights()                                      # after each step

Of an adapter: ``RavelTrainerInitInfo(rank=rank, adapter="policy", adapter_config=model.peft_config["default"], adapter_folder=...)`` and a
source of its tensors by PEFT's names; then ``engine.lora`` is what requests name, ``LoRARequest(*engine.lora)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .._publish import Publisher
from .lora import LoraVersion, adapter_tensors, lora_version

try:
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine
except ImportError:  # imported without vLLM, by docs and linters
    TrainerInitInfo = TrainerWeightTransferEngine = object


@dataclass
class RavelTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    backend: ClassVar[str] = "ravel"
    address: str = "127.0.0.1:0"
    options: dict[str, Any] = field(default_factory=dict)  # of ravel.Publisher
    adapter: str = ""
    adapter_folder: str = ""  # of the engine's hosts
    adapter_keep: int = 4
    adapter_config: Any = None  # PEFT's


class RavelTrainerEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    init_info_cls = RavelTrainerInitInfo
    lora: LoraVersion | None = None  # the adapter's version that the engine has

    @classmethod
    def trainer_init(cls, init_info: RavelTrainerInitInfo, *, client: Any, source: Any = None) -> "RavelTrainerEngine":
        import torch

        self = cls(client=client, source=source, is_sender=init_info.is_sender)
        metas = source.metadata()  # on every rank: it may be a collective
        self.version, self.weights = 0, {m.name: torch.empty(m.shape, dtype=m.dtype) for m in metas if self.is_sender}
        self.adapter, self.folder = init_info.adapter, init_info.adapter_folder
        if self.is_sender and self.adapter:
            self.publisher = Publisher(init_info.address, adapter_tensors(self.weights, init_info.adapter_config), **init_info.options)
            client.init_weight_transfer_engine(dict(
                address=self.publisher.address, adapter=self.adapter, adapter_folder=self.folder,
                adapter_keep=init_info.adapter_keep, token=init_info.options.get("token")))
        elif self.is_sender:
            self.publisher = Publisher(init_info.address, self.weights, **init_info.options)
            client.init_weight_transfer_engine(dict(
                address=self.publisher.address, names=[m.name for m in metas], dtype_names=[str(m.dtype) for m in metas],
                shapes=[list(m.shape) for m in metas], token=init_info.options.get("token")))
        return self

    def send_weights(self) -> None:
        for name, tensor in self.source:  # on every rank: gathering a tensor is a collective
            if self.is_sender:
                self.weights[name].copy_(tensor)
        if not self.is_sender:
            return
        self.version += 1
        self.publisher.publish(self.version)
        self.client.start_weight_update()
        self.client.update_weights(dict(version=self.version))
        self.client.finish_weight_update(str(self.version))
        if self.adapter:
            self.lora = lora_version(self.adapter, self.version, self.folder)

    def shutdown(self) -> None:
        if self.is_sender:
            self.publisher.close()
