"""SGLang: ``--custom-weight-loader ravel.adapters.sglang.load`` and ``load_format`` of that name in /update_weights_from_tensor.
The request's one named tensor "ravel" is a JSON text (uint8) that says where the trainers publish and which version to take;
everything is pulled into host memory and verified before the model's own loader gets any of it. ``python -m
ravel.adapters.sglang`` makes that request for ``ravel train grpo --rollout``, on the server's machine: the tensor is shared memory.

Adapters: :func:`load_adapter`, in any process of the server's host, pulls and verifies a version and has the server load it through its
own /load_lora_adapter, which loads it in every worker or is undone; versions before it stay, and answer what they began."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any

from ._staged import Staged, to_torch
from .lora import AdapterFolder, LoraVersion, lora_version

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


def _ask(url: str, path: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    asked = urllib.request.Request(url.rstrip("/") + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=600) as answer:
            text = answer.read()
            return json.loads(text) if text.startswith(b"{") else None
    except urllib.error.HTTPError as problem:
        raise RuntimeError(f"{url}{path}: {problem.code}: {problem.read(2000).decode(errors='replace')}") from None


def load_adapter(url: str, folder: AdapterFolder, version: int = 0, key: str | None = None) -> LoraVersion:
    """The version (0: the newest) in the server at ``url``, as adapter ``name@version``; requests name it as ``lora_path``. Versions that
    the folder does not keep any more are unloaded. After an exception the server has what it had."""
    before = set(folder.versions())
    folder.receive(version)
    folder.take()
    found = lora_version(folder.name, folder.staged.identity.version, folder.root)
    _ask(url, "/load_lora_adapter", key, {"lora_name": found.name, "lora_path": found.path})
    for stale in sorted(before - set(folder.versions())):
        _ask(url, "/unload_lora_adapter", key, {"lora_name": lora_version(folder.name, stale, folder.root).name})
    return found


def main() -> None:
    """A line of JSON on standard input, as ``--rollout-command`` gets it: one server takes one version."""
    import torch
    from sglang.srt.utils import MultiprocessingSerializer

    asked = json.loads(sys.stdin.readline())
    url = asked["url"]
    text = request(asked["address"], asked["names"], asked["dtypes"], asked["shapes"], asked["version"], asked.get("token"))
    payload = MultiprocessingSerializer.serialize([("ravel", torch.frombuffer(bytearray(text), dtype=torch.uint8))], output_str=True)
    ranks = int(_ask(url, "/server_info", None).get("tp_size", 1))
    _ask(url, "/update_weights_from_tensor", None, {
        "serialized_named_tensors": [payload] * ranks, "load_format": "ravel.adapters.sglang.load", "flush_cache": True,
        "weight_version": str(asked["version"])})


if __name__ == "__main__":
    main()
