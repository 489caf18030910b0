"""Folders without a tokenizer.json: what ravel.Tokenizer reads of tokenizer.model, *.tiktoken and tekken.json against the
packages sentencepiece, tiktoken and mistral_common.

    python3 tests/text/files.py STRINGS FOLDER      FOLDER: where files are written

Real files are those that packages of pip bring; some are trained here. Ids of STRINGS texts each (as in parity.py, special
tokens as plain text) and the texts that the ids decode to. Ends with "N passed, N failed"; RAVEL_SEED repeats a run, the day is the default.
"""
import base64
import glob
import os
import pathlib
import random
import sys
import unicodedata

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python"), os.path.dirname(os.path.abspath(__file__))]
import sentencepiece  # noqa: E402
import strings  # noqa: E402
import tiktoken  # noqa: E402
import tokenizers_here as here  # noqa: E402
from mistral_common.tokens.tokenizers.tekken import Tekkenizer  # noqa: E402

import ravel  # noqa: E402

OTHER = r"[^\r\n\p{L}\p{N}]?"
LARGE, SMALL = (here.MARKS[:-1] + r"&&[^\p{Han}]]", here.SMALL[:-1] + r"&&[^\p{Han}]]")
KIMI = "|".join([r"\p{Han}+", rf"{OTHER}{LARGE}*{SMALL}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 rf"{OTHER}{LARGE}+{SMALL}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def of_sentencepiece(path):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return path, processor.encode, lambda ids: processor.decode(ids) if 0 not in ids else None


def of_tekken(path):
    tekken = Tekkenizer.from_file(path)
    return path, lambda text: tekken.encode(text, bos=False, eos=False), tekken.decode


def of_tiktoken(path, pattern, form=None):
    with open(path, "rb") as f:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in f if line.strip())}
    made = tiktoken.Encoding(os.path.basename(path), pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    encode = (lambda text: made.encode_ordinary(unicodedata.normalize(form, text))) if form else made.encode_ordinary
    return path, encode, made.decode


def trained(root):
    """Models of sentencepiece with every option that is read."""
    texts, kinds = here.corpus(), {
        "unigram": {},
        "unigram_bytes": {"byte_fallback": True, "normalization_rule_name": "identity", "add_dummy_prefix": False},
        "bpe": {"model_type": "bpe"},
        "bpe_symbols": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "nfkc_cf",
                        "remove_extra_whitespaces": False, "user_defined_symbols": ["<sep>", "  ", "ab"], "pad_id": 3}}
    for name, options in kinds.items():
        path = os.path.join(root, name, "tokenizer.model")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(here.sentencepiece_model(texts, **options))
        yield f"sentencepiece, {name}", lambda path=path: of_sentencepiece(path)


def brought(root):
    """Files of packages."""
    data = os.path.join(here.package_folder("mistral_common"), "data")
    for path in sorted(glob.glob(os.path.join(data, "*"))):
        if os.path.basename(path).startswith("tekken"):
            yield os.path.basename(path), lambda path=path: of_tekken(path)
        elif ".model" in path:
            yield os.path.basename(path), lambda path=path: of_sentencepiece(path)
    llama, qwen = here.package_folder("llama_models"), here.package_folder("dashscope")
    if llama:
        yield "Llama 3", lambda: of_tiktoken(os.path.join(llama, "llama3", "tokenizer.model"), here.LLAMA)
        four = os.path.join(llama, "llama4", "tokenizer.model")
        yield "Llama 4", lambda: of_tiktoken(four, here.CASED)
        kimi = os.path.join(root, "kimi", "tiktoken.model")
        os.makedirs(os.path.dirname(kimi), exist_ok=True)
        with open(four) as whole, open(kimi, "w") as part:
            part.writelines(whole.readlines()[:163584])
        yield "Kimi's pattern", lambda: of_tiktoken(kimi, KIMI)
    else:
        print("  skip  llama_models is not installed")
    if qwen:
        path = os.path.join(qwen, "resources", "qwen.tiktoken")
        yield "Qwen", lambda: of_tiktoken(path, here.LLAMA.replace("{1,3}", ""), "NFC")
    else:
        print("  skip  dashscope is not installed")


def compare(path, encode, decode, name, count):
    folder = os.path.dirname(path)
    alone = [f for f in os.listdir(folder) if not f.startswith(".")] == [os.path.basename(path)]
    ours = ravel.Tokenizer(folder if alone else path)
    source, real = random.Random(f"{strings.seed()} {name}"), strings.real_texts()
    for _ in range(count):
        text = strings.text(source, real, ["<sep>", "ab", "  "])
        want, got = list(encode(text)), ours.encode(text, template=False, plain=True).tolist()
        if want != got:
            return f"{text!r}: {got} instead of {want}"
        shown = decode(want)
        if shown is not None and shown != ours.decode(want):
            return f"{text!r}: decoded to {ours.decode(want)!r} instead of {shown!r}"
    return None


def main():
    count, root, passed, failed = int(sys.argv[1]), sys.argv[2], 0, 0
    for name, reference in [*trained(root), *brought(root)]:
        problem = compare(*reference(), name, count)
        passed, failed = passed + (problem is None), failed + (problem is not None)
        print(f"  FAIL  {name}: {problem}" if problem else f"  ok    {name}, {count} strings", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
