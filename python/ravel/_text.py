"""Tokenizers and chat formats of Hugging Face model folders, without transformers."""

from __future__ import annotations

import ctypes as C
import json
import os
from typing import Any, Sequence

import numpy as np

from . import _abi
from ._lib import Handle, call, lib

__all__ = ["Tokenizer"]

_TRAIN_ON = ("assistant", "last", "all")


class Tokenizer:
    """Text to token ids and back, by a model folder's tokenizer.

    >>> tokenizer = ravel.Tokenizer("models/SmolLM2-135M-Instruct")
    >>> tokenizer.encode("Hello, world!")
    array([19556,    28,   905,    17], dtype=int32)
    >>> tokens, mask = tokenizer.row({"messages": [...]})

    Read are tokenizer.json (BPE and Unigram), tokenizer.model of sentencepiece, tekken.json and *.tiktoken; what else a file
    asks for is an error with its name. One object belongs to one thread at a time.
    ``chat_format`` names a format or a file of a Jinja template; without it the folder's own chat template is used.
    ``chat_args`` are variables of the template, such as ``{"enable_thinking": False}``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, chat_format: str | None = None, train_on: str = "assistant",
                 chat_args: dict[str, Any] | None = None):
        pointer = C.c_void_p()
        call("ravel_tokenizer_open", os.fsencode(folder), None, C.byref(pointer))
        self._handle = Handle(pointer.value, lib.ravel_tokenizer_free)
        encoder = C.c_void_p()
        call("ravel_encoder_create", self._handle.pointer, None, C.byref(encoder))
        self._encoder = Handle(encoder.value, lib.ravel_encoder_free, self._handle)
        self._format = self._find_format(chat_format)
        if train_on not in _TRAIN_ON:
            raise ValueError(f"train_on is {train_on!r}, not one of {', '.join(_TRAIN_ON)}")
        self._train_on = _TRAIN_ON.index(train_on)
        self._chat_args = json.dumps(chat_args).encode() if chat_args is not None else None
        self._rows: Handle | None = None

    def _find_format(self, name: str | None) -> int | None:
        if name is not None:
            opened = C.c_void_p()
            call("ravel_chat_format_open", os.fsencode(name), None, C.byref(opened))
            self._own_format = Handle(opened.value, lib.ravel_chat_format_free)
            return opened.value
        pointer, error = C.c_void_p(), _abi.ravel_error()
        status = lib.ravel_chat_format_of(self._handle.pointer, C.byref(pointer), C.byref(error))
        return pointer.value if status == 0 else None

    @property
    def chat_format(self) -> str | None:
        """The name of the format that conversations are written in; None: the folder's template is not known."""
        return lib.ravel_chat_format_name(self._format).decode() if self._format else None

    @property
    def chat_template(self) -> str | None:
        """The folder's chat template (Jinja); None: it has none."""
        text: bytes | None = lib.ravel_tokenizer_chat_template(self._handle.pointer)
        return text.decode() if text is not None else None

    def __len__(self) -> int:
        return int(lib.ravel_tokenizer_size(self._handle.pointer))

    @property
    def bos(self) -> int | None:
        """The id that tokenizer_config.json names as bos_token; None: none."""
        return self._id(lib.ravel_tokenizer_bos(self._handle.pointer))

    @property
    def eos(self) -> int | None:
        """The id that tokenizer_config.json names as eos_token; None: none."""
        return self._id(lib.ravel_tokenizer_eos(self._handle.pointer))

    @property
    def pad(self) -> int | None:
        """The id that tokenizer_config.json names as pad_token; None: none."""
        return self._id(lib.ravel_tokenizer_pad(self._handle.pointer))

    @staticmethod
    def _id(value: int) -> int | None:
        return None if value < 0 else int(value)

    def encode(self, text: str, *, template: bool = True, plain: bool = False) -> np.ndarray:
        """int32 ids. ``template``: with bos and eos where the tokenizer puts them. ``plain``: special tokens in the
        text are text like any other."""
        data = text.encode()
        out = C.POINTER(_abi.ravel_encoding)()
        call("ravel_encoder_encode", self._encoder.pointer, data, len(data), int(template) | 2 * int(plain),
             C.byref(out))
        return _copy(out.contents.ids, out.contents.count, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray, *, skip_special: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        array = np.ascontiguousarray(ids, np.int32)
        pointer = array.ctypes.data if array.size else None
        need = lib.ravel_tokenizer_decode(self._handle.pointer, pointer, array.size, int(skip_special), None, 0)
        out = C.create_string_buffer(need + 1)
        lib.ravel_tokenizer_decode(self._handle.pointer, pointer, array.size, int(skip_special), out, need + 1)
        return out.raw[:need].decode()

    def row(self, row: dict[str, Any]) -> Any:
        """One row of a data set to (tokens, loss_mask); a row with "chosen" and "rejected" to two of them. The forms are
        those of include/ravel/chat.h."""
        return self._encode_row("ravel_rows_encode", row)

    def prompt(self, row: dict[str, Any]) -> np.ndarray:
        """The tokens that a model is to continue: the row's conversation up to where an answer begins."""
        tokens: np.ndarray = self._encode_row("ravel_rows_prompt", row)[0]
        return tokens

    def render(self, messages: list[dict[str, Any]], *, tools: list[Any] | None = None, add_generation_prompt: bool = False,
               **variables: Any) -> str:
        """A conversation as text, as transformers' ``apply_chat_template(..., tokenize=False)`` writes it."""
        text = json.dumps({"messages": messages, "tools": tools, "chat_template_kwargs": variables}).encode()
        out, size = C.c_void_p(), C.c_size_t()
        call("ravel_rows_render", self._row_handle(), text, len(text), int(add_generation_prompt), C.byref(out), C.byref(size))
        return C.string_at(out.value or 0, size.value).decode() if size.value else ""

    def _encode_row(self, function: str, row: dict[str, Any]) -> Any:
        text = json.dumps(row).encode()
        out = C.POINTER(_abi.ravel_row)()
        call(function, self._row_handle(), text, len(text), C.byref(out))
        parts = [(_copy(p.tokens, p.count, np.int32), _copy(p.loss_mask, p.count, np.uint8))
                 for p in out.contents.parts[:1 + out.contents.pair]]
        return tuple(parts) if out.contents.pair else parts[0]

    def _row_handle(self) -> Any:
        if self._rows is None:
            options = _abi.ravel_rows_options()
            lib.ravel_rows_options_default(C.byref(options))
            options.tokenizer = self._handle.pointer
            options.format = self._format
            options.train_on = self._train_on
            options.variables = self._chat_args
            pointer = C.c_void_p()
            call("ravel_rows_create", C.byref(options), C.byref(pointer))
            self._rows = Handle(pointer.value, lib.ravel_rows_free, self._handle)
        return self._rows.pointer

    def __repr__(self) -> str:
        return f"<ravel.Tokenizer: {len(self)} tokens, chat format {self.chat_format}>"


def _copy(pointer: Any, count: int, dtype: Any) -> np.ndarray:
    """An array of our own: the library's is used again by the next call."""
    if count == 0:
        return np.empty(0, dtype)
    address: Any = pointer if isinstance(pointer, int) else C.cast(pointer, C.c_void_p).value
    size = count * np.dtype(dtype).itemsize
    found: np.ndarray = np.frombuffer(C.string_at(address, size), dtype).copy()
    return found
