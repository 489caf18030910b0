"""The ctypes declarations against the headers: regenerated text, and the C compiler's own sizes and offsets."""

import ctypes as C
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
