"""The peers' own code, beside which the adapters are tested: packages and wheels that pip brings, and checkouts.

`make test-frameworks` installs the packages and unpacks the wheels of verl, vLLM and SGLang (RAVEL_ENGINES). `make test-peers
CHECKOUTS=folder` names a folder of checkouts (RAVEL_CHECKOUTS), under the names of REPOSITORIES. Without either, a test says what it
did not compare with."""

import os
import pathlib
import sys
import types

import pytest

# folder -> repository, and the commit that the adapters were last tested with
REPOSITORIES = {
    "Megatron-LM": ("NVIDIA/Megatron-LM", "d98e8a64"),
    "RL": ("NVIDIA-NeMo/RL", "7ea279ab"),
    "verl": ("verl-project/verl", "v0.9.1"),
    "slime": ("THUDM/slime", "624b824a"),
    "AReaL": ("inclusionAI/AReaL", "4aef98d8"),
    "UniRL": ("Tencent-Hunyuan/UniRL", "1a7b501"),
}
# package -> the newest version that the adapters were tested with
PACKAGES = {"verl": "0.9.1", "trl": "1.16.0", "transformers": "5.23.0", "vllm": "0.33.0", "sglang": "0.5.23", "wandb": "0.31.0"}


def checkout(name, path):
    """A file of a checkout; the test is skipped without it."""
    root = os.environ.get("RAVEL_CHECKOUTS")
    file = pathlib.Path(root or "", name, path)
    if not root or not file.exists():
        pytest.skip(f"no checkout of {REPOSITORIES[name][0]}: not compared with its {path}")
    return file


def engine(path):
    """A file of a wheel of verl, vLLM or SGLang; the test is skipped without it."""
    root = os.environ.get("RAVEL_ENGINES")
    file = pathlib.Path(root or "", path)
    if not root or not file.exists():
        pytest.skip(f"the wheel is not unpacked: not compared with its {path}")
    return file


def load(monkeypatch, name, file, **stubs):
    """One file as a module, beside modules that stand for what it imports and does not need: {"verl.protocol": {...}}."""
    for stub, content in stubs.items():
        module = types.ModuleType(stub.replace("__", "."))
        vars(module).update(content)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
        parent, _, child = module.__name__.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
    module = types.ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    return module


def verl(monkeypatch):
    """verl.utils.seqlen_balancing of the wheel, without Ray."""
    stubs = {"verl": {}, "verl__protocol": {"DataProto": object}, "verl__utils": {},
             "verl__utils__device": {"get_device_name": lambda: "cpu"}, "verl__utils__tensordict_utils":
             {"index_select_tensor_dict": lambda batch, index: batch[index]}}
    return load(monkeypatch, "verl.utils.seqlen_balancing", engine("verl/utils/seqlen_balancing.py"), **stubs)
