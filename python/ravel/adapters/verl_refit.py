"""verl (from 0.9): ``rollout.checkpoint_engine.{backend: ravel, custom_backend_module: ravel.adapters.verl_refit}``, options as
``engine_kwargs: {ravel: {address: "10.0.0.1:0", token: ...}}``. Actor rank 0 publishes, rollout workers pull into host memory and
verify; a worker yields the first tensor only when all of its own have arrived. Names, dtypes and shapes go by a second, small
publication (the notice), whose address verl hands from ``prepare`` to every worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any, AsyncIterator

import numpy as np

from .._publish import Publisher
from ._staged import Staged, to_torch

try:
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
except ImportError:  # imported without verl, by docs and linters
    CheckpointEngine, CheckpointEngineRegistry = object, None

NOTICE_BYTES = 8 << 20  # of JSON: some 60,000 tensors


class RavelCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """verl's checkpoint engine over one publication. Publishers and pullers stay open from step to step."""

    wire_format = "named_tensors"

    def __init__(self, bucket_size: int = 0, is_master: bool = False, address: str = "127.0.0.1:0", timeout: float = 600,
                 token: str | None = None, **options: Any):
        self.is_master, self.timeout, self.token = is_master, timeout, token
        self.at, self.options, self.version = address, dict(options, token=token), 0
        self.notice = np.full(NOTICE_BYTES if is_master else 0, 32, np.uint8)
        self.weights: dict[str, Any] = {}
        self.publishers: list[Publisher] = []  # of the notice, then of the weights
        self.staged: list[Staged] = []  # the same
        self.named: dict[str, Any] = {}

    def prepare(self) -> dict[str, Any]:
        if not self.is_master:
            return {}
        if not self.publishers:
            self.publishers.append(Publisher(self.at, {"notice": self.notice}, **self.options))
        self.version += 1
        return {"address": self.publishers[0].address, "version": self.version}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int,
                       metadata: list[dict[str, Any]]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {"master": metadata[:1] * actor_wg_world_size}, {"master": metadata[:1] * rollout_world_size}

    def init_process_group(self, master: dict[str, Any]) -> None:
        """No process group is needed: actor rank 0 publishes, rollout workers pull."""
        self.master = master

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, Any]:
        for name, tensor in weights:
            if self.is_master and name in self.weights:  # the other ranks only take part in gathering
                self.weights[name].copy_(tensor)
            elif self.is_master:
                self.weights[name] = tensor.detach().cpu().clone()
        if self.is_master:
            await asyncio.to_thread(self._publish)
        return {}

    def _publish(self) -> None:
        if len(self.publishers) == 1:
            at = self.at.rpartition(":")[0] + ":0" if not self.at.startswith("unix:") else self.at + ".weights"
            self.publishers.append(Publisher(at, self.weights, **self.options))
            text = json.dumps(dict(address=self.publishers[1].address, tensors=[
                (name, str(t.dtype), list(t.shape)) for name, t in self.weights.items()])).encode()
            self.notice[:len(text)] = np.frombuffer(text, np.uint8)
        self.publishers[1].publish(self.version)
        self.publishers[0].publish(self.version)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        for name, array in await asyncio.to_thread(self._receive):
            yield name, to_torch(array, self.named[name])

    def _receive(self) -> list[tuple[str, Any]]:
        version = self.master["version"]
        if not self.staged:
            self.staged.append(Staged(self.master["address"], ["notice"], ["uint8"], [[NOTICE_BYTES]], self.timeout, self.token))
        self.staged[0].receive(version)
        asked = json.loads(bytes(dict(self.staged[0].take())["notice"]))
        names, dtypes, shapes = zip(*asked["tensors"])
        if len(self.staged) == 1:
            self.named = dict(zip(names, dtypes))
            self.staged.append(Staged(asked["address"], names, dtypes, shapes, self.timeout, self.token))
        self.staged[1].receive(version)
        return list(self.staged[1].take())

    def finalize(self) -> None:
        """verl calls it after each step; nothing is given up, so the next one sends only what changed."""


if CheckpointEngineRegistry is not None:
    CheckpointEngineRegistry.register("ravel")(RavelCheckpointEngine)
