"""The ctypes declarations against the headers: regenerated text, and the C compiler's own sizes and offsets."""

import ctypes as C
import os
import pathlib
import subprocess
import sys

import pytest

from ravel import _abi

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_declarations_are_what_the_headers_say():
    done = subprocess.run([sys.executable, str(ROOT / "python" / "tools" / "abi.py"), "--check"], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_exported_function_is_declared():
    headers = "\n".join(p.read_text() for p in (ROOT / "include" / "ravel").glob("*.h"))
    for name in _abi.FUNCTIONS:
        assert name + "(" in headers


def test_structs_have_the_compilers_layout(tmp_path):
    structs = [s for s in _abi.STRUCTS if not s.__name__.endswith("_as")]
    lines = ["#include <stdio.h>"]
    lines += [f"#include <ravel/{p.name}>" for p in sorted((ROOT / "include" / "ravel").glob("*.h"))]
    lines += ["int main(void) {"]
    for struct in structs:
        name = struct.__name__
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_]
    lines += ["return 0; }"]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    program = tmp_path / "layout"
    subprocess.run(["cc", "-std=c11", f"-I{ROOT}/include", str(source), "-o", str(program)], check=True)
    said = dict(line.split() for line in subprocess.run([str(program)], text=True, capture_output=True,
                                                         check=True).stdout.splitlines())
    assert structs
    for struct in structs:
        assert C.sizeof(struct) == int(said[struct.__name__]), struct.__name__
        for field in struct._fields_:
            where = f"{struct.__name__}.{field[0]}"
            assert getattr(struct, field[0]).offset == int(said[where]), where


@pytest.mark.parametrize("name", sorted(_abi.FUNCTIONS))
def test_function_is_in_the_library(name):
    from ravel._lib import lib
    assert getattr(lib, name)


def test_the_package_under_test_is_the_one_that_was_asked_for():
    import os

    import ravel
    from ravel._lib import lib
    package = pathlib.Path(ravel.__file__).resolve().parent
    installed = bool(os.environ.get("RAVEL_TEST_INSTALLED"))
    assert installed == (ROOT / "python" not in package.parents)
    assert (package / "py.typed").exists() and ravel.__version__ in (ROOT / "include" / "ravel" / "base.h").read_text()
    if installed:
        assert pathlib.Path(lib._name).parent == package
        assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def public_functions():
    """(name, function) of every function, method and property that a caller sees."""
    import importlib
    import inspect
    for module in map(importlib.import_module, ["ravel", "ravel.comm", "ravel.mesh", "ravel.metrics", "ravel.policy",
                                                *(f"ravel.adapters.{n}" for n in (
                                                    "verl", "nemo_rl", "nemo_rl_dynamic", "nemo_rl_refit", "megatron", "megatron_rl",
                                                    "slime", "unirl", "trl", "trl_rollouts", "huggingface"))]):
        for name in module.__all__:
            thing = getattr(module, name)
            assert inspect.ismodule(thing) or inspect.getdoc(thing) or name == "ArrayLike", name  # a union
            if inspect.isfunction(thing):
                yield name, thing
            for inner, member in vars(thing).items() if inspect.isclass(thing) else ():
                member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(member) and member.__module__.startswith("ravel") and \
                        (not inner.startswith("_") or inner == "__init__"):
                    yield f"{name}.{inner}", member


def test_every_public_name_has_a_docstring_and_hints():
    import inspect
    for name, function in public_functions():
        makes = name.endswith("__init__")
        assert makes or inspect.getdoc(function), name
        hints = inspect.signature(function)
        bare = [p.name for p in hints.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
        assert not bare and (makes or hints.return_annotation is not hints.empty), (name, bare)


@pytest.mark.skipif("RAVEL_TEST_INSTALLED" in os.environ, reason="the page is compared with the checkout")
def test_the_api_page_is_what_the_docstrings_say():
    done = subprocess.run([sys.executable, str(ROOT / "python" / "tools" / "api.py"), "--check"], text=True, capture_output=True)
    assert done.returncode == 0, "docs/python-api.md is not up to date: run python3 python/tools/api.py\n" + done.stderr


@pytest.mark.skipif("RAVEL_TEST_INSTALLED" in os.environ, reason="the headers are the checkout's")
def test_every_c_function_has_a_python_name_or_a_reason():
    done = subprocess.run([sys.executable, str(ROOT / "python" / "tools" / "functions.py"), "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
