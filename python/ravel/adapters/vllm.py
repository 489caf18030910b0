"""vLLM (from 0.32): ``--weight-transfer-config '{"backend": "ravel"}'``. The wheel's entry point ``vllm.general_plugins`` calls
:func:`register` in every process. A worker pulls everything into host memory and verifies it (update_weights); only
finish_weight_update, which vLLM calls when all workers have everything, touches the model. A failure before that leaves the old
weights. The trainers' half is vllm_trainer.py."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from ._staged import Staged, to_torch

try:
    from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                       WeightTransferUpdateInfo)
except ImportError:  # imported without vLLM, by docs and linters
    WeightTransferEngine = WeightTransferInitInfo = WeightTransferUpdateInfo = object


def register() -> None:
    """vLLM calls it in every process wherever the wheel is installed, and an exception would end the process: an older vLLM
    goes on without the backend, and refuses its name."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError as problem:
        logging.getLogger(__name__).info("the weight transfer backend \"ravel\" needs vLLM 0.32 or newer: %s", problem)
        return
    with contextlib.suppress(ValueError):  # it is registered already
        WeightTransferEngineFactory.register_engine("ravel", __name__, "RavelEngine")
        WeightTransferTrainerFactory.register_engine("ravel", "ravel.adapters.vllm_trainer", "RavelTrainerEngine")


@dataclass
class RavelInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the trainers publish, and which tensors, by Hugging Face's names."""

    address: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    timeout: float = 600
    token: str | None = None


@dataclass
class RavelUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    version: int = 0  # 0: the newest


class RavelEngine(WeightTransferEngine):  # type: ignore[misc]
    """The worker's half."""

    init_info_cls, update_info_cls = RavelInitInfo, RavelUpdateInfo
    supports_draft_weight_update = False
    staged: Staged | None = None

    def init_transfer_engine(self, init_info: RavelInitInfo) -> None:
        self.dtypes = dict(zip(init_info.names, init_info.dtype_names))
        self.staged = Staged(init_info.address, init_info.names, init_info.dtype_names, init_info.shapes,
                             init_info.timeout, init_info.token)

    def start_weight_update(self) -> None:
        """Nothing is touched before everything has arrived."""

    def receive_weights(self, update_info: RavelUpdateInfo) -> None:
        assert self.staged is not None
        self.staged.receive(update_info.version)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        assert self.staged is not None
        initialize_layerwise_reload(self.model)
        self.model.load_weights((name, to_torch(array, self.dtypes[name])) for name, array in self.staged.take())
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self.staged is not None:
            self.staged.close()
