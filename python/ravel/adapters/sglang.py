"""SGLang: ``--custom-weight-loader ravel.adapters.sglang.load`` and ``load_format`` of that name in /update_weights_from_tensor.
The request's one named tensor "ravel" is a JSON text (uint8) that says where the trainers publish and which version to take;
everything is pulled into host memory and verified before the model's own loader gets any of it."""

from __future__ import annotations

import json
from typing import Any

from ._staged import Staged, to_torch

_staged: dict[str, Staged] = {}


def request(address: str, names: list[str], dtypes: list[str], shapes: list[list[int]], version: int = 0,
            token: str | None = None) -> bytes:
    """The text that goes as the tensor "ravel"."""
    return json.dumps(dict(address=address, names=names, dtypes=dtypes, shapes=shapes, version=version, token=token)).encode()


def load(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """SGLang calls this in every tensor-parallel worker."""
    text = dict(named_tensors)["ravel"]
    asked = json.loads(bytes(text.cpu().numpy().tobytes() if hasattr(text, "cpu") else text))
    staged = _staged.get(asked["address"])
    if staged is None:
        staged = _staged[asked["address"]] = Staged(asked["address"], asked["names"], asked["dtypes"], asked["shapes"],
                                                    token=asked["token"])
    staged.receive(asked["version"])
    dtypes = dict(zip(asked["names"], asked["dtypes"]))
    model.load_weights([(name, to_torch(array, dtypes[name])) for name, array in staged.take()])
