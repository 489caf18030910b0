"""Reads the public headers and writes ravel/_abi.py: every enum, struct, callback and function as ctypes.

    python3 python/tools/abi.py            write python/ravel/_abi.py
    python3 python/tools/abi.py --check    exit 1 if the file is not what the headers say

The headers are the only source: the preprocessor expands the X-macro lists, a small parser reads the declarations that
are left, and the output is checked in so that users need neither compiler nor headers. A test compares sizes and
offsets with the C compiler's own.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "python" / "ravel" / "_abi.py"
WIDTH = 132

SCALARS = {
    "void": None, "char": "C.c_char", "int": "C.c_int", "double": "C.c_double", "float": "C.c_float",
    "size_t": "C.c_size_t", "int8_t": "C.c_int8", "uint8_t": "C.c_uint8", "int16_t": "C.c_int16",
    "uint16_t": "C.c_uint16", "int32_t": "C.c_int32", "uint32_t": "C.c_uint32", "int64_t": "C.c_int64",
    "uint64_t": "C.c_uint64",
}


def declarations() -> str:
    """The text of include/ravel/*.h after preprocessing, without what the system headers bring."""
    headers = sorted(p.name for p in (ROOT / "include" / "ravel").glob("*.h"))
    source = "".join(f"#include <ravel/{name}>\n" for name in headers)
    done = subprocess.run(["cc", "-E", "-std=c11", f"-I{ROOT}/include", "-"], input=source, text=True,
                          capture_output=True, check=True)
    ours, kept = False, []
    for line in done.stdout.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            ours = "/include/ravel/" in marker.group(1)
        elif ours:
            kept.append(line)
    text = "\n".join(kept)
    return re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", text)


def tokens(text: str) -> list[str]:
    return re.findall(r"\.\.\.|[A-Za-z_]\w*|0x[0-9a-fA-F]+|\d+|[-+*/()<>{}\[\];,=]", text)


class Parser:
    """Declarations of the few shapes that our headers use; anything else is an error that shows where."""

    def __init__(self, stream: list[str]):
        self.t, self.i = stream, 0
        self.enums: dict[str, list[tuple[str, int]]] = {}
        self.structs: dict[str, list[tuple[str, str]] | None] = {}
        self.unions: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.callbacks: dict[str, str] = {}
        self.functions: dict[str, tuple[str, list[str]]] = {}

    def peek(self, k: int = 0) -> str:
        return self.t[self.i + k] if self.i + k < len(self.t) else ""

    def take(self, want: str | None = None) -> str:
        token = self.peek()
        if want is not None and token != want:
            raise SyntaxError(f"expected {want!r}, found {token!r} in: {' '.join(self.t[max(0, self.i - 12):self.i + 8])}")
        self.i += 1
        return token

    def parse(self) -> None:
        while self.i < len(self.t):
            if self.peek() == ";":
                self.take()
            elif self.peek() == "typedef":
                self.typedef()
            elif self.peek() in ("enum", "struct") and self.peek(2) == "{":
                raise SyntaxError(f"untypedefed {self.peek()} {self.peek(1)}")
            elif self.peek() == "struct" and self.peek(2) == ";":
                self.take(), self.structs.setdefault(self.take(), None), self.take(";")
            else:
                self.function()

    def typedef(self) -> None:
        self.take("typedef")
        if self.peek() == "enum":
            self.take()
            name = self.take()
            self.enums[name] = self.enum_body()
            self.take(name), self.take(";")
        elif self.peek() == "struct" and self.peek(2) == "{":
            self.take()
            name = self.take()
            self.structs[name] = self.struct_body(name)
            self.take(name), self.take(";")
        elif self.peek() == "struct" and self.peek(3) == ";":
            self.take()
            self.structs.setdefault(self.take(), None)
            self.take(), self.take(";")
        else:
            kind, name = self.declarator(self.base_type())
            self.take(";")
            if kind.startswith("FN("):
                self.callbacks[name] = kind
            else:
                self.aliases[name] = kind

    def enum_body(self) -> list[tuple[str, int]]:
        self.take("{")
        values, following = [], 0
        while self.peek() != "}":
            name = self.take()
            if self.peek() == "=":
                self.take()
                sign = -1 if self.peek() == "-" and self.take() else 1
                following = sign * int(self.take(), 0)
            values.append((name, following))
            following += 1
            if self.peek() == ",":
                self.take()
        self.take("}")
        return values

    def struct_body(self, owner: str) -> list[tuple[str, str]]:
        self.take("{")
        fields = []
        while self.peek() != "}":
            if self.peek() in ("union", "struct") and self.peek(1) == "{":
                union = self.take() == "union"
                inner = self.struct_body(owner + "_as")
                name = self.take()
                self.take(";")
                kind = f"{owner}_{name}"
                self.structs[kind] = inner
                if union:
                    self.unions.add(kind)
                fields.append((name, kind))
                continue
            base = self.base_type()
            while True:
                kind, name = self.declarator(base)
                fields.append((name, kind))
                if self.take() == ";":
                    break
        self.take("}")
        return fields

    def base_type(self) -> str:
        words = []
        while self.peek() in ("const", "volatile", "struct", "enum", "unsigned", "static", "extern"):
            words.append(self.take())
        words.append(self.take())
        if self.peek() == "const":
            words.append(self.take())
        return " ".join(w for w in words if w not in ("volatile", "struct", "enum", "static", "extern"))

    def declarator(self, base: str) -> tuple[str, str]:
        kind = base
        while self.peek() in ("*", "const"):
            kind += " *" if self.take() == "*" else ""
        if self.peek() == "(" and self.peek(1) == "*":
            self.take(), self.take()
            name = self.take()
            self.take(")")
            return f"FN({kind}; {'; '.join(self.parameters())})", name
        name = self.take() if re.match(r"[A-Za-z_]", self.peek()) else ""
        sizes = []
        while self.peek() == "[":
            self.take()
            sizes.append(0 if self.peek() == "]" else self.expression("]"))
            self.take("]")
        for size in reversed(sizes):
            kind = f"{kind}[{size}]"
        return kind, name

    def expression(self, end: str) -> int:
        words = []
        while self.peek() != end:
            words.append(self.take())
        known = {key: value for values in self.enums.values() for key, value in values}
        return int(eval("".join(words), {"__builtins__": {}}, known))

    def parameters(self) -> list[str]:
        self.take("(")
        kinds = []
        while self.peek() != ")":
            if self.peek() == "...":
                kinds.append(self.take())
            else:
                kind, _ = self.declarator(self.base_type())
                kinds.append(re.sub(r"\[\d*\]$", " *", kind))
            if self.peek() == ",":
                self.take()
        self.take(")")
        return [] if kinds == ["void"] else kinds

    def function(self) -> None:
        kind = self.base_type()
        while self.peek() in ("*", "const"):
            kind += " *" if self.take() == "*" else ""
        name = self.take()
        self.functions[name] = (kind, self.parameters())
        self.take(";")


def filled(begin: str, items: list[str], end: str) -> list[str]:
    """A list as lines of at most WIDTH characters; what is between two commas stays on one line."""
    text = begin + ", ".join(item.replace(" ", "\0") for item in items) + end.replace(" ", "\0")
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


class Writer:
    def __init__(self, parsed: Parser):
        self.p = parsed

    def ctype(self, kind: str) -> str | None:
        kind = kind.replace("const ", "").replace(" const", "").strip()
        array = re.match(r"(.*)\[(\d+)\]$", kind)
        if array:
            return f"{self.ctype(array.group(1))} * {array.group(2)}"
        if kind.startswith("FN("):
            result, _, rest = kind[3:-1].partition(";")
            arguments = [self.taken(a.strip()) for a in rest.split(";") if a.strip()]
            return f"C.CFUNCTYPE({', '.join([str(self.taken(result.strip()))] + arguments)})"
        if kind in SCALARS:
            return SCALARS[kind]
        if kind in self.p.enums:
            return "C.c_int"
        if kind in self.p.structs or kind in self.p.callbacks:
            return kind
        if kind in self.p.aliases:
            return self.ctype(self.p.aliases[kind])
        if kind.endswith("*"):
            inside = kind[:-1].strip()
            if inside == "char":
                return "C.c_char_p"
            if self.p.structs.get(inside) is not None:
                return f"C.POINTER({inside})"
            return "C.c_void_p"
        raise TypeError(f"no ctypes for {kind!r}")

    def taken(self, kind: str) -> str | None:
        """What a callback takes: text stays a pointer, because ctypes would look for a NUL that need not be there."""
        found = self.ctype(kind)
        return "C.c_void_p" if found == "C.c_char_p" else found

    def render(self) -> str:
        out = ['"""Made from include/ravel/*.h by python/tools/abi.py. Do not edit: run it again."""', "",
               "import ctypes as C", ""]
        for name, values in sorted(self.p.enums.items()):
            out.append(f"# {name}")
            keys, first = [key for key, _ in values], values[0][1]
            if len(keys) > 1 and [value for _, value in values] == list(range(first, first + len(keys))):
                out += filled("(", keys, f") = range({first}, {first + len(keys)})")
            else:
                out += [f"{key} = {value}" for key, value in values]
        pending = {n: f for n, f in self.p.structs.items() if f is not None}
        callbacks = dict(self.p.callbacks)
        declared = [n for n in pending]
        out += [""] + [f"class {name}(C.{'Union' if name in self.p.unions else 'Structure'}): pass" for name in declared]
        out.append("")
        for name, kind in callbacks.items():
            out.append(f"{name} = {self.ctype(kind)}")
        while pending:  # a struct by value comes after the struct that it holds
            for name, fields in list(pending.items()):
                needs = {re.sub(r"\[\d+\]$", "", k) for _, k in fields} & set(pending) - {name}
                if needs:
                    continue
                out += filled(f"{name}._fields_ = [", [f'("{field}", {self.ctype(kind)})' for field, kind in fields], "]")
                del pending[name]
        out += ["", "FUNCTIONS = {"]
        for name, (result, arguments) in sorted(self.p.functions.items()):
            listed = ", ".join(str(self.ctype(a)) for a in arguments if a != "...")
            returned = "C.c_void_p" if result.strip().endswith("*") and self.ctype(result) != "C.c_char_p" \
                and not str(self.ctype(result)).startswith("C.POINTER") else self.ctype(result)
            out.append(f'    "{name}": ({returned}, [{listed}]),')
        out += ["}", "", *filled("STRUCTS = [", declared, "]"), ""]
        return "\n".join(out)


def build() -> str:
    parser = Parser(tokens(declarations().replace('extern "C"', "")))
    parser.parse()
    return Writer(parser).render()


def main() -> int:
    text = build()
    if "--check" in sys.argv:
        same = OUT.exists() and OUT.read_text() == text
        print("ravel/_abi.py is as the headers say" if same else "ravel/_abi.py is stale: run python3 python/tools/abi.py")
        return 0 if same else 1
    OUT.write_text(text)
    print(f"wrote {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
