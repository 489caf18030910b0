"""vLLM (from 0.32): ``--weight-transfer-config '{"backend": "ravel"}'``. The wheel's entry point ``vllm.general_plugins`` calls
:func:`register` in every process. A worker pulls everything into host memory and verifies it (update_weights); only
finish_weight_update, which vLLM calls when all workers have everything, touches the model. A failure before that leaves the old
weights. The trainers' half is vllm_trainer.py.

Adapters (init info with ``adapter``): what is pulled becomes a PEFT folder, which the worker checks as vLLM's own loading would before
it says that it has everything; finish_weight_update only gives it its name, ``FOLDER/NAME@VERSION``. vLLM loads it from there at the
first request of it (``LoRARequest(*lora_version(...))``, or over HTTP model ``NAME@VERSION``, which :class:`RavelResolver` finds where
RAVEL_LORA_FOLDER names the folder). Each version is an adapter of its own to vLLM, so running answers finish with theirs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass, field
from typing import Any

from ._staged import Staged, to_torch
from .lora import AdapterFolder, lora_version

try:
    from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                       WeightTransferUpdateInfo)
except ImportError:  # imported without vLLM, by docs and linters
    WeightTransferEngine = WeightTransferInitInfo = WeightTransferUpdateInfo = object


def register() -> None:
    """vLLM calls it in every process wherever the wheel is installed, and an exception would end the process: an older vLLM
    goes on without the backend, and refuses its name."""
    _switch_nemo_rl()
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError as problem:
        logging.getLogger(__name__).info("the weight transfer backend \"ravel\" needs vLLM 0.32 or newer: %s", problem)
        return
    with contextlib.suppress(ValueError):  # it is registered already
        WeightTransferEngineFactory.register_engine("ravel", __name__, "RavelEngine")
        WeightTransferTrainerFactory.register_engine("ravel", "ravel.adapters.vllm_trainer", "RavelTrainerEngine")
    folder = os.environ.get("RAVEL_LORA_FOLDER")
    if folder:
        from vllm.lora.resolver import LoRAResolverRegistry

        LoRAResolverRegistry.register_resolver("ravel", RavelResolver(folder))


class RavelResolver:
    """A vllm.lora.resolver.LoRAResolver: versions of adapters that were received, by name."""

    def __init__(self, folder: str):
        self.folder = folder

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        from vllm.lora.request import LoRARequest

        name = re.fullmatch(r"([^/]+)@([0-9]+)", lora_name)
        found = name and lora_version(name[1], int(name[2]), self.folder)
        if not found or not os.path.isdir(found.path):
            return None
        return LoRARequest(*found, base_model_name=base_model_name)


def _switch_nemo_rl() -> None:
    """RAVEL_NEMO_RL_REFIT=1 in a worker that NeMo-RL started: its packed broadcast becomes ours."""
    if os.environ.get("RAVEL_NEMO_RL_REFIT", "0") in ("", "0"):
        return
    from . import nemo_rl_refit

    try:
        nemo_rl_refit.install()
    except (ImportError, AttributeError) as problem:  # an exception would end the process; both ends send the same bytes
        logging.getLogger(__name__).warning("RAVEL_NEMO_RL_REFIT is set, and NeMo-RL's own broadcast stays: %s", problem)


@dataclass
class RavelInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the trainers publish, and which tensors, by Hugging Face's names; or the ``adapter`` that is published, and the folder for its
    versions."""

    address: str
    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    timeout: float = 600
    token: str | None = None
    adapter: str = ""
    adapter_folder: str = ""
    adapter_keep: int = 4


@dataclass
class RavelUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    version: int = 0  # 0: the newest


class RavelEngine(WeightTransferEngine):  # type: ignore[misc]
    """The worker's half."""

    init_info_cls, update_info_cls = RavelInitInfo, RavelUpdateInfo
    supports_draft_weight_update = False
    staged: Staged | None = None
    adapter: AdapterFolder | None = None

    def init_transfer_engine(self, init_info: RavelInitInfo) -> None:
        if init_info.adapter:
            self.adapter = AdapterFolder(init_info.address, init_info.adapter_folder, init_info.adapter, keep=init_info.adapter_keep,
                                         timeout=init_info.timeout, token=init_info.token)
            return
        self.dtypes = dict(zip(init_info.names, init_info.dtype_names))
        self.staged = Staged(init_info.address, init_info.names, init_info.dtype_names, init_info.shapes,
                             init_info.timeout, init_info.token)

    def start_weight_update(self) -> None:
        """Nothing is touched before everything has arrived."""

    def receive_weights(self, update_info: RavelUpdateInfo) -> None:
        if self.adapter is not None:
            self._receive_adapter(self.adapter, update_info.version)
            return
        assert self.staged is not None
        self.staged.receive(update_info.version)

    def _receive_adapter(self, adapter: AdapterFolder, version: int) -> None:
        """Refused here is refused for all workers: none has given the version its name yet."""
        from vllm.lora.peft_helper import PEFTHelper

        if getattr(self.vllm_config, "lora_config", None) is None:
            raise ValueError("an adapter is published; start vLLM with --enable-lora")
        folder = adapter.receive(version)
        try:
            PEFTHelper.from_local_dir(str(folder), None).validate_legal(self.vllm_config.lora_config)
        except Exception:
            adapter.drop()
            raise

    def finish_weight_update(self) -> None:
        if self.adapter is not None:
            self.adapter.take()
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        assert self.staged is not None
        initialize_layerwise_reload(self.model)
        self.model.load_weights((name, to_torch(array, self.dtypes[name])) for name, array in self.staged.take())
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        for part in (self.staged, self.adapter):
            if part is not None:
                part.close()
