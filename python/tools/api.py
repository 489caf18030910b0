"""Writes docs/python-api.md from the docstrings of the package.

    python3 python/tools/api.py            write docs/python-api.md
    python3 python/tools/api.py --check    exit 1 if the file is not what the docstrings say
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import sys
import types
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "python-api.md"
sys.path.insert(0, str(ROOT / "python"))
MODULES = ["ravel", "ravel.comm", "ravel.mesh", "ravel.metrics", "ravel.policy", "ravel.adapters.verl", "ravel.adapters.nemo_rl",
           "ravel.adapters.nemo_rl_dynamic", "ravel.adapters.nemo_rl_refit", "ravel.adapters.megatron", "ravel.adapters.megatron_rl",
           "ravel.adapters.slime", "ravel.adapters.trl", "ravel.adapters.trl_rollouts", "ravel.adapters.huggingface", "ravel.adapters.transformers_tree",
           "ravel.adapters.tree_rows",
           "ravel.adapters.areal", "ravel.adapters.routes"]


def text(thing: Any) -> str:
    """A docstring as Markdown: examples are fenced, names of functions are plain code."""
    out: list[str] = []
    fenced = False
    for line in plain(inspect.getdoc(thing) or "").splitlines():
        example = line.startswith((">>>", "...")) or (fenced and line.strip() != "")
        if example != fenced:
            out.append("```" if fenced else "```python")
            fenced = example
        out.append(line)
    return "\n".join(out + (["```"] if fenced else []))


def plain(found: str) -> str:
    return re.sub(r":(?:func|class|meth|mod):(`[^`]*`)", r"\1", found.replace("``", "`"))


def signature(thing: Any) -> str:
    try:
        return str(inspect.signature(thing)).replace("'", "").replace('"', "'")
    except (TypeError, ValueError):
        return "(...)"


def members(cls: type) -> list[str]:
    """Public methods and properties that the class defines itself."""
    out = []
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") or not (inspect.getdoc(value) or "").strip():
            continue
        if isinstance(value, property):
            out.append(f"- `{name}`: {first(value)}")
        elif isinstance(value, (types.FunctionType, classmethod, staticmethod)):
            function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            out.append(f"- `{name}{signature(function)}`: {first(value)}")
    return out


def first(thing: Any) -> str:
    """The docstring's first paragraph on one line."""
    return plain(" ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()))


def entry(name: str, thing: Any) -> list[str]:
    if isinstance(thing, types.ModuleType) or name == "ArrayLike":
        return []
    if inspect.isclass(thing):
        head = f"### class {name}{'' if issubclass(thing, (tuple, Exception)) else signature(thing)}"
        return [head, "", text(thing), "", *members(thing), ""]
    if callable(thing):
        return [f"### {name}{signature(thing)}", "", text(getattr(thing, "func", thing)), ""]
    return []


def page() -> str:
    lines = ["# Python API", "", "Written by `python3 python/tools/api.py` from the docstrings; [python.md](python.md) is the manual.",
             "`ArrayLike`: a numpy array, a host tensor (DLPack), the buffer protocol, or a sequence of numbers or of arrays.", ""]
    for name in MODULES:
        module = importlib.import_module(name)
        lines += [f"## {name}", "", text(module), ""]
        for public in module.__all__:
            lines += entry(public, getattr(module, public))
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def main() -> int:
    made = page()
    if "--check" in sys.argv:
        return 0 if OUT.read_text(encoding="utf8") == made else 1
    OUT.write_text(made, encoding="utf8")
    print(f"wrote {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
