"""Option structs from the library's own tables: names, ranges, words and defaults are said once, in C."""

from __future__ import annotations

import ctypes as C
import difflib
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._lib import ArgumentError, call, lib, option_names

_I32, _I64, _U64, _F64, _BOOL, _ENUM, _STRING = range(7)
_WIDTHS: dict[int, Any] = {_I32: C.c_int32, _I64: C.c_int64, _U64: C.c_uint64, _F64: C.c_double, _BOOL: C.c_int32, _ENUM: C.c_int32,
           _STRING: C.c_char_p}


class Row(NamedTuple):
    raw: bytes
    kind: int
    offset: int
    choices: list[str]
    preset: str
    doc: str


class Table:
    """One option struct: ``table.make(align=8, cp_kind="striped")`` is the struct with everything else at its default.
    Options go by the names of the struct's fields."""

    def __init__(self, struct: Any, prefix: str, table: str | None = None):
        self.struct = struct
        self._default = getattr(lib, prefix + "_options_default")
        self._table = getattr(lib, table or prefix + "_option_table")()
        rows = C.cast(self._table, C.POINTER(_abi.ravel_option))
        fields = {getattr(struct, field[0]).offset: field[0] for field in struct._fields_}
        self.rows: dict[str, Row] = {}
        index = 0
        while rows[index].name:
            row = rows[index]
            self.rows[fields[row.offset]] = Row(
                row.name, row.type, row.offset, row.choices.decode().split("|") if row.choices else [],
                (row.preset or b"").decode(), row.doc.decode())
            if b"-" in row.name:
                option_names[row.name.decode()] = fields[row.offset]
            index += 1

    def make(self, **keywords: Any) -> Any:
        options = self.struct()
        self._default(C.byref(options))
        for name, value in keywords.items():
            if value is not None:
                self.set(options, name, value)
        return options

    def set(self, options: Any, name: str, value: Any) -> None:
        row = self.rows.get(name)
        if row is None:
            near = difflib.get_close_matches(name, self.rows, 1)
            raise ArgumentError(_abi.RAVEL_E_ARGUMENT, f"unknown option {name!r}" +
                                (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(self.rows)}"))
        if row.kind in (_I32, _I64) and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            width = _WIDTHS[row.kind]
            bits = C.sizeof(width) * 8 - 1
            if not -(1 << bits) <= int(value) < 1 << bits:
                raise OverflowError(f"{name} is {value}, which does not fit {bits + 1} bits")
            width.from_buffer(options, row.offset).value = int(value)  # the call that takes the struct checks the range
        elif row.kind == _ENUM and value in row.choices:
            C.c_int32.from_buffer(options, row.offset).value = row.choices.index(value)
        else:
            text = str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)
            encoded = text.encode()
            if row.kind == _STRING:  # the struct keeps a pointer: keep what it points at
                options.__dict__.setdefault("_texts", []).append(encoded)
            call("ravel_option_set", self._table, C.byref(options), row.raw, encoded)

    def docs(self) -> dict[str, str]:
        """name -> one sentence with the choices and the default."""
        return {name: row.doc + (f" ({'|'.join(row.choices)})" if row.choices else "") +
                (f" [{row.preset}]" if row.preset else "") for name, row in self.rows.items()}
