"""Ids and texts of ravel.Tokenizer against the `tokenizers` package, and conversations against transformers.

    python3 tests/text/parity.py STRINGS FOLDER      FOLDER: where tokenizers are written

Half of the strings are parts of real files, half are random: words, digits, contractions, special tokens, marks, every
script. Ends with "N passed, N failed"; RAVEL_SEED repeats a run, the day is the default.
"""
import os
import pathlib
import random
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python"), os.path.dirname(os.path.abspath(__file__))]
import strings  # noqa: E402
import tokenizers_here  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import ravel  # noqa: E402


def compare(name, folder, count, seed):
    theirs, ours = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), ravel.Tokenizer(folder)
    special = [t.content for t in theirs.get_added_tokens_decoder().values()][:30]
    source, real, size = random.Random(f"{seed} {name}"), strings.real_texts(), theirs.get_vocab_size()
    for i in range(count):
        string = strings.text(source, real, special)
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


def checks(names, count, root):
    """What is compared, and the function that finds a problem, one after the other."""
    seed = strings.seed()
    for name in names:
        folder = os.path.join(root, name)
        yield f"{name}, {count} strings", lambda name=name, folder=folder: compare(name, folder, count, seed)
    if "smollm2" in names:
        yield "smollm2, conversations", lambda: compare_chat(os.path.join(root, "smollm2"))


def main():
    count, root, passed, failed = int(sys.argv[1]), sys.argv[2], 0, 0
    for what, find_problem in checks(tokenizers_here.write_all(root), count, root):
        problem = find_problem()
        passed, failed = passed + (problem is None), failed + (problem is not None)
        print(f"  {'ok  ' if problem is None else 'FAIL'}  {problem or what}", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
