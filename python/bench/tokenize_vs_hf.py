"""The tokenizer against the `tokenizers` package on one core: prints "ratio ours theirs name" for each tokenizer, worst last, ours
and theirs in tokens per second of processor time.

Real text (this repository), in pieces of about 2,000 characters; both encode the same pieces one after the other, in turns,
and each counts with its least time. Ours is called through ctypes as theirs is called through its own binding.
"""
import ctypes as C
import glob
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "text")]
import tokenizers_here  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import ravel  # noqa: E402
from ravel import _abi  # noqa: E402
from ravel._lib import lib  # noqa: E402


def pieces():
    texts = [open(p, encoding="utf8").read() for p in sorted(glob.glob("docs/*.md") + glob.glob("src/*/*.c"))]
    return [t[i:i + 2000] for t in texts for i in range(0, len(t), 2000)][:400]


def measure(folder, texts):
    theirs, ours = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), ravel.Tokenizer(folder)
    data, out, error = [t.encode() for t in texts], C.POINTER(_abi.ravel_encoding)(), _abi.ravel_error()
    tokens = sum(len(theirs.encode(t, add_special_tokens=False).ids) for t in texts)
    assert all(theirs.encode(t, add_special_tokens=False).ids == ours.encode(t, template=False).tolist() for t in texts[:50])
    best = [9e9, 9e9]
    for _ in range(5):
        start = time.process_time()
        for text in texts:
            theirs.encode(text)
        middle = time.process_time()
        for text in data:
            lib.ravel_encoder_encode(ours._encoder.pointer, text, len(text), 0, C.byref(out), C.byref(error))
        end = time.process_time()
        best = [min(best[0], middle - start), min(best[1], end - middle)]
    return best[0] / best[1], tokens / best[1], tokens / best[0]


def main():
    names, texts = tokenizers_here.write_all(sys.argv[1]), pieces()
    wanted = [n for n in ("llama3", "qwen", "deepseek", "smollm2", "llama2", "t5", "xlmr", "pieces") if n in names]
    for ratio, ours, theirs, name in sorted(((*measure(os.path.join(sys.argv[1], n), texts), n) for n in wanted), reverse=True):
        print(f"{ratio:.3f} {ours:.0f} {theirs:.0f} {name}")


main()
