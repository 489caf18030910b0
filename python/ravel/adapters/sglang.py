"""SGLang: ``--custom-weight-loader ravel.adapters.sglang.load`` and ``load_format`` of that name in /update_weights_from_tensor.
The request's one named tensor "ravel" is a JSON text (uint8) that says where the trainers publish and which version to take;
everything is pulled into host memory and verified before the model's own loader gets any of it."""

from __future__ import annotations

import json
from typing import Any

from ._staged import Staged, to_torch

_staged: dict[str, tuple[list[Any], Staged]] = {}  # by address: the tensors that were announced, and the copy of them


def request(address: str, names: list[str], dtypes: list[str], shapes: list[list[int]], version: int = 0,
            token: str | None = None) -> bytes:
    """The text that goes as the tensor "ravel"."""
    return json.dumps(dict(address=address, names=names, dtypes=dtypes, shapes=shapes, version=version, token=token)).encode()


def load(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """SGLang calls this in every tensor-parallel worker."""
    text = dict(named_tensors)["ravel"]
    asked = json.loads(bytes(text.cpu().numpy().tobytes() if hasattr(text, "cpu") else text))
    address, tensors = asked["address"], [asked["names"], asked["dtypes"], asked["shapes"], asked["token"]]
    if address in _staged and _staged[address][0] != tensors:  # trainers of another model at the same address
        _staged.pop(address)[1].close()
    if address not in _staged:
        _staged[address] = tensors, Staged(address, asked["names"], asked["dtypes"], asked["shapes"], token=asked["token"])
    staged = _staged[address][1]
    staged.receive(asked["version"])
    dtypes = dict(zip(asked["names"], asked["dtypes"]))
    model.load_weights([(name, to_torch(array, dtypes[name])) for name, array in staged.take()])
