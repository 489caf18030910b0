"""verl: ``rollout.checkpoint_engine.{backend: ravel, custom_backend_module: ravel.adapters.verl_refit}``. Trainers publish, rollout
workers pull into host memory and verify; a worker yields the first tensor only when all of its own have arrived."""

from __future__ import annotations

from typing import Any, AsyncIterator

from .._publish import Publisher
from ._staged import Staged, to_torch

try:
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    _register = CheckpointEngineRegistry.register("ravel")
except ImportError:  # imported without verl, by tests and docs

    def _register(cls: Any) -> Any:
        return cls


@_register
class RavelCheckpointEngine:
    """verl's checkpoint engine over one publication."""

    wire_format = "named_tensors"

    def __init__(self, bucket_size: int = 0, is_master: bool = False, address: str = "127.0.0.1:0", timeout: float = 600,
                 token: str | None = None, **_unused: Any):
        self.is_master, self.at, self.timeout, self.token = is_master, address, timeout, token
        self.publisher: Publisher | None = None
        self.staged: Staged | None = None
        self.weights: dict[str, Any] = {}

    def prepare(self) -> dict[str, Any]:
        return {"address": self.at}

    @staticmethod
    def build_topology(actor_ws: int, rollout_ws: int, metadata: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        return ({"rank": list(range(actor_ws)), "master": metadata[:1] * actor_ws},
                {"rank": list(range(rollout_ws)), "master": metadata[:1] * rollout_ws})

    def init_process_group(self, **_unused: Any) -> None:
        """No process group is needed: trainers publish, rollout workers pull."""

    async def send_weights(self, weights: Any, global_steps: int) -> dict[str, Any]:
        """Rank 0 has whole tensors; returns what rollout workers must know (address, names, dtypes, shapes, version)."""
        if not self.is_master:
            for _ in weights:  # the other ranks take part in gathering, and send nothing
                pass
            return {}
        for name, tensor in weights:
            if name in self.weights:
                self.weights[name].copy_(tensor)
            else:
                self.weights[name] = tensor.detach().cpu().clone()
        if self.publisher is None:
            self.publisher = Publisher(self.at, self.weights, token=self.token)
        self.publisher.publish(global_steps)
        names = list(self.weights)
        return dict(address=self.publisher.address, names=names, dtypes=[str(self.weights[n].dtype) for n in names],
                    shapes=[list(self.weights[n].shape) for n in names], version=global_steps)

    async def receive_weights(self, global_steps: int, announced: dict[str, Any]) -> AsyncIterator[tuple[str, Any]]:
        if self.staged is None:
            self.staged = Staged(announced["address"], announced["names"], announced["dtypes"], announced["shapes"],
                                 self.timeout, self.token)
        self.staged.receive(global_steps)
        dtypes = dict(zip(announced["names"], announced["dtypes"]))
        for name, array in self.staged.take():
            yield name, to_torch(array, dtypes[name])

    def finalize(self) -> None:
        for part in (self.publisher, self.staged):
            if part is not None:
                part.close()
        self.publisher = self.staged = None
