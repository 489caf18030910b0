"""``python -m ravel`` says which library, command, modules and frameworks were found; ``ravel``, the wheel's script, is the command."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys

MODULES = {"openmpi": "ranks over Open MPI: build with libopenmpi-dev installed",
           "mpich": "ranks over MPICH: build with libmpich-dev installed",
           "cuda": "device memory: build with CUDA's toolkit", "nccl": "ranks on several GPUs: build with libnccl-dev",
           "train_cuda": "training on a GPU: build with CUDA, cuBLASLt and cuDNN"}
PACKAGES = ("numpy", "torch", "transformers", "trl", "datasets", "tensordict", "mpi4py", "verl", "nemo_rl", "megatron.core",
            "slime", "vllm", "sglang")


def run_command() -> None:
    """Becomes the ravel command."""
    from ._command import command

    program = command()
    if program is None:
        sys.exit("ravel: the command was not found beside the package; run `make`, or set RAVEL_COMMAND")
    os.execv(program, [str(program), *sys.argv[1:]])


def _installed(name: str) -> str | None:
    """The version of a package that could be imported; None: it is not there. Nothing is imported."""
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.metadata.version(name.partition(".")[0] if "." not in name else name.replace(".", "-"))
    except ImportError:  # PackageNotFoundError is one too
        return None if importlib.util.find_spec(name.partition(".")[0]) is None else "a checkout"


def report() -> None:
    """Prints what was found, a line each. Where the library is not found, importing the package has said so before this."""
    from . import __version__, _lib
    from ._command import command

    folder = _lib.path.parent
    print(f"ravel        {__version__}")
    print(f"library      {_lib.path}")
    print(f"command      {command() or 'missing: run make in the checkout, or set RAVEL_COMMAND'}")
    for name, how in MODULES.items():
        file = next((f for f in (folder, folder.parent / "ravel") if (f / f"libravel_{name}.so").exists()), folder) / f"libravel_{name}.so"
        print(f"{name:<12} {file if file.exists() else 'missing: ' + how}")
    for name in PACKAGES:
        print(f"{name:<12} {_installed(name) or 'not installed'}")


if __name__ == "__main__":
    report()
