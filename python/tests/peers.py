"""The peers' own code, beside which the adapters are tested: packages and wheels that pip brings, and checkouts.

`make test-frameworks` installs the packages and unpacks the wheels of verl, vLLM and SGLang (RAVEL_ENGINES). `make test-peers
CHECKOUTS=folder` names a folder of checkouts (RAVEL_CHECKOUTS), under the names of REPOSITORIES. Without either, a test says what it
did not compare with."""

import importlib.metadata
import os
import pathlib
import subprocess
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
    "UniRL": ("Tencent-Hunyuan/UniRL", "36547bd8"),
}
# package -> the newest version that the adapters were tested with
PACKAGES = {"verl": "0.9.1", "trl": "1.16.0", "transformers": "5.23.0", "vllm": "0.33.0", "sglang": "0.5.23", "wandb": "0.31.0",
            "mlflow": "3.17.2", "peft": "0.21.2"}


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


def head(root):
    """The commit of a checkout, "?" for a folder without one."""
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    top = subprocess.run(["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, text=True).stdout.strip()
    return done.stdout.strip() if done.returncode == 0 and pathlib.Path(top) == pathlib.Path(root).resolve() else "?"


def newer():
    """A sentence per checkout or package that is not what the adapters were tested with."""
    for folder, (repository, tested) in REPOSITORIES.items():
        root = pathlib.Path(os.environ.get("RAVEL_CHECKOUTS") or "/nowhere", folder)
        at = head(root) if root.is_dir() else None
        if at and not at.startswith(tested[:7]):
            count = subprocess.run(["git", "-C", str(root), "rev-list", "--count", f"{tested}..HEAD"], capture_output=True, text=True)
            more = f", {count.stdout.strip()} commits later" if count.returncode == 0 else ""
            yield f"{repository} is at {at}{more}; the adapters were tested with {tested}"
    for package, tested in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = list(pathlib.Path(os.environ.get("RAVEL_ENGINES") or "/nowhere").glob(f"{package}-*.dist-info"))
            version = found[0].name[len(package) + 1:-len(".dist-info")] if found else tested
        if version != tested:
            yield f"{package} is {version}; the adapters were tested with {tested}"


if __name__ == "__main__":
    print("\n".join(newer()) or "nothing is newer than what the adapters were tested with")
