"""Ids and texts of ravel.Tokenizer against the `tokenizers` package, and conversations against transformers.

    python3 tests/text/parity.py STRINGS FOLDER      FOLDER: where tokenizers are written

Half of the strings are parts of real files, half are random: words, digits, contractions, special tokens, marks, every
script. Ends with "N passed, N failed"; RAVEL_SEED repeats a run.
"""
import glob
import os
import pathlib
import random
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python"), os.path.dirname(os.path.abspath(__file__))]
import tokenizers_here  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import ravel  # noqa: E402

ALL = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
ODD = list(range(0x300, 0x370)) + [0x17F, 0x212A, 0x130, 0x131, 0xDF, 0x149, 0xFB06, 0x85, 0xA0, 0x180E, 0x200B, 0x2028,
                                   0x3000, 0xFEFF, 0x1E9E, 0xAC00, 0x1100, 0x1161, 0x11A8, 0x344, 0x1F82, 0x958, 0x1D15E]
WORDS = ["'s", "'S", "'ll", "'LL", "'Ve", "'\u017f", "\u2019s", "'re'd", "\n\n", "    ", "12345", "...", "the", " and"]


def real_texts():
    paths = glob.glob("docs/*.md") + glob.glob("*.md") + glob.glob("src/*/*.c") + glob.glob("python/ravel/*.py")
    return [open(p, encoding="utf8").read() for p in sorted(paths)]


def character(source, special):
    kind = source.random()
    if kind < .4:
        return source.choice("abcdefghijklmnopqrstuvwxyzABCXYZ  \n\t\r0123456789.,;:!?'\"-_()[]{}<>|/\\@#$%^&*+=~`")
    if kind < .5:
        return source.choice(WORDS)
    if kind < .55 and special:
        return source.choice(special)
    if kind < .65:
        return chr(source.choice(ODD))
    ranges = [(0x80, 0x800), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0x1F300, 0x1FB00)]
    return chr(source.randrange(*source.choice(ranges))) if kind < .9 else chr(source.choice(ALL))


def text(source, real, special):
    if source.random() < .5:
        whole = source.choice(real)
        at = source.randrange(len(whole))
        return whole[at:at + source.randrange(1, 400)]
    return "".join(character(source, special) for _ in range(source.randrange(1, 60)))


def compare(name, folder, strings, seed):
    theirs, ours = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), ravel.Tokenizer(folder)
    special = [t.content for t in theirs.get_added_tokens_decoder().values()][:30]
    source, real, size = random.Random(f"{seed} {name}"), real_texts(), theirs.get_vocab_size()
    for i in range(strings):
        string = text(source, real, special)
        want = theirs.encode(string, add_special_tokens=False).ids
        got = ours.encode(string, template=False).tolist()
        if want != got:
            return f"{name}: {string!r}: {got} instead of {want}"
        if i % 4 == 0:
            if name != "deepseek" and theirs.encode(string).ids != ours.encode(string).tolist():
                return f"{name}: {string!r} with the template"
            want = [source.randrange(size) for _ in range(8)]
        for skip in (False, True):
            text_of = theirs.decode(want, skip_special_tokens=skip)
            # Tokens of single bytes that are no character: theirs writes U+FFFD for every byte of the run, ours per broken start.
            if "\ufffd" in text_of and theirs.token_to_id("<0x00>") is not None:
                continue
            if text_of != ours.decode(want, skip_special=skip):
                return f"{name}: decoding {want}"
    return None


def compare_chat(folder):
    """A folder with a chat template, against transformers."""
    from transformers import AutoTokenizer
    theirs, ours = AutoTokenizer.from_pretrained(folder), ravel.Tokenizer(folder)
    turns = [("user", "Hi  there"), ("assistant", "\n Hello!"), ("user", "e\u0301 <|im_end|>"), ("assistant", "ok")]
    for start in (0, 1):
        messages = [{"role": "system", "content": "Be brief."}][start:] + [{"role": r, "content": c} for r, c in turns]
        want = theirs.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        if ours.row({"messages": messages})[0].tolist() != list(want):
            return f"{folder}: a conversation"
        want = theirs.apply_chat_template(messages[:-1], tokenize=True, add_generation_prompt=True,
                                          return_dict=True)["input_ids"]
        if ours.prompt({"messages": messages}).tolist() != list(want):
            return f"{folder}: a prompt"
    return None


def checks(names, strings, root):
    """What is compared, and the function that finds a problem, one after the other."""
    seed = os.environ.get("RAVEL_SEED", "1")
    for name in names:
        folder = os.path.join(root, name)
        yield f"{name}, {strings} strings", lambda name=name, folder=folder: compare(name, folder, strings, seed)
    if "smollm2" in names:
        yield "smollm2, conversations", lambda: compare_chat(os.path.join(root, "smollm2"))


def main():
    strings, root, passed, failed = int(sys.argv[1]), sys.argv[2], 0, 0
    for what, find_problem in checks(tokenizers_here.write_all(root), strings, root):
        problem = find_problem()
        passed, failed = passed + (problem is None), failed + (problem is not None)
        print(f"  {'ok  ' if problem is None else 'FAIL'}  {problem or what}", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
