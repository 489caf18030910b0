"""Adapters (LoRA) on the weight path, for inference engines that load PEFT folders: vLLM (vllm.py), SGLang (sglang.py).

A trainer publishes what its PEFT folder would hold; a generator's :class:`AdapterFolder` pulls a version, verifies it, and makes the
folder of it, ``ROOT/NAME@VERSION``, which appears whole or not at all. Versions stay side by side, ``keep`` of them, so that
answers that are running finish with theirs.

    publisher = ravel.Publisher("0.0.0.0:7700", adapter_tensors(get_peft_model_state_dict(model), model.peft_config["default"]))
    folder = AdapterFolder("trainer-0:7700", "/dev/shm/adapters", "policy")
    folder.receive(); path = folder.take()"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import pathlib
import shutil
import uuid
from typing import Any, Mapping, NamedTuple

import numpy as np

from .._io import write_safetensors
from .._publish import published
from .._refit import RefitTensor
from ._staged import Staged

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MARK = "ravel.json"  # the identity of what a folder holds
# Phi-3's files have these as one tensor, and so has PEFT; the trainers' parts have a B each.
_FUSED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
          "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}


def _plain(value: Any) -> Any:
    """What JSON can hold: PEFT's configurations have enums and sets."""
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def adapter_tensors(tensors: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The source of a publication: the tensors of an adapter by PEFT's names, and its configuration (PEFT's, or a dictionary)."""
    made = config.to_dict() if hasattr(config, "to_dict") else dataclasses.asdict(config) if dataclasses.is_dataclass(
        config) and not isinstance(config, type) else dict(config)
    text = json.dumps(made, default=_plain).encode()
    return {**tensors, CONFIG: np.frombuffer(text, np.uint8).copy()}


def _join(weights: dict[str, Any], dtypes: dict[str, str]) -> dict[str, str]:
    """The parts of fused tensors become what PEFT has; the dtypes of all tensors then."""
    joined = dict(dtypes)
    for whole, parts in _FUSED.items():
        end = f"{whole}.lora_A.weight"
        for stem in [name.removesuffix(end) for name in weights if name.endswith(end)]:
            names = [f"{stem}{part}.lora_B.weight" for part in parts]
            if all(name in weights for name in names):
                joined[f"{stem}{whole}.lora_B.weight"] = dtypes[names[0]]
                weights[f"{stem}{whole}.lora_B.weight"] = np.concatenate([weights.pop(name) for name in names])
    return joined


class LoraVersion(NamedTuple):
    """What an engine is told of a version: vLLM's ``LoRARequest(*version)``."""

    name: str
    number: int
    path: str


def lora_version(name: str, version: int, root: str | os.PathLike[str], first: int = 1000) -> LoraVersion:
    """The same on every host. ``first``: numbers of other adapters of the engine are below it."""
    return LoraVersion(f"{name}@{version}", first + version, os.path.join(os.fspath(root), f"{name}@{version}"))


class AdapterFolder:
    """Versions of the adapter that is published at ``address``, as PEFT folders ``root/name@version``."""

    def __init__(self, address: str, root: str | os.PathLike[str], name: str = "adapter", *, keep: int = 4, timeout: float = 600,
                 token: str | None = None):
        found = published(address, timeout=timeout, **({"token": token} if token else {}))
        if CONFIG not in found:
            raise ValueError(f"{address} publishes no adapter: there is no {CONFIG} among its tensors")
        self.root, self.name, self.keep = pathlib.Path(root), name, max(1, keep)
        self.dtypes = {n: dtype for n, (dtype, _) in found.items()}
        self.staged = Staged(address, list(found), list(self.dtypes.values()), [shape for _, shape in found.values()], timeout, token)
        self.staging: pathlib.Path | None = None
        self.root.mkdir(parents=True, exist_ok=True)

    def receive(self, version: int = 0) -> pathlib.Path:
        """Pulls ``version`` (0: the newest), verifies it and writes its folder where no engine looks; returns that."""
        self.drop()
        self.staged.receive(version)
        weights = dict(self.staged.take())
        dtypes = _join(weights, self.dtypes)
        self.staging = self.root / f".{uuid.uuid4().hex}"
        self.staging.mkdir()
        (self.staging / CONFIG).write_bytes(weights.pop(CONFIG).tobytes())
        write_safetensors(self.staging / WEIGHTS, {n: RefitTensor(a, dtype=dtypes[n]) for n, a in weights.items()})
        (self.staging / _MARK).write_text(json.dumps(self.staged.identity._asdict()))
        return self.staging

    def take(self) -> pathlib.Path:
        """What was received becomes ``root/name@version``; versions beyond ``keep`` go."""
        assert self.staging is not None, "receive first"
        place = self.root / f"{self.name}@{self.staged.identity.version}"
        if place.exists() and (place / _MARK).read_text() == (self.staging / _MARK).read_text():
            self.drop()  # another worker of this host was first
        else:
            old = self.root / f".{uuid.uuid4().hex}"
            if place.exists():  # of trainers that were started again
                place.rename(old)
            try:
                self.staging.rename(place)
            except OSError:
                if not place.exists():  # else another worker was first
                    raise
                self.drop()
            shutil.rmtree(old, ignore_errors=True)
            self.staging = None
        for stale in self.versions()[:-self.keep]:
            shutil.rmtree(self.root / f"{self.name}@{stale}", ignore_errors=True)
        return place

    def versions(self) -> list[int]:
        """Those whose folders are there."""
        ends = [p.name.removeprefix(f"{self.name}@") for p in self.root.glob(f"{self.name}@*")]
        return sorted(int(e) for e in ends if e.isdigit())

    def drop(self) -> None:
        """What was received and not taken."""
        if self.staging is not None:
            shutil.rmtree(self.staging, ignore_errors=True)
        self.staging = None

    def close(self) -> None:
        self.drop()
        self.staged.close()
