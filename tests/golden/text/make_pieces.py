"""Writes pieces.jsonl and the folders of small tokenizers that it is about: Unigram in tokenizer.json, tokenizer.model of
sentencepiece, and tekken.json. Ids are those of the packages tokenizers, sentencepiece and tiktoken:
python3 tests/golden/text/make_pieces.py, from the top of the tree."""
import base64
import io
import json
import os
import pathlib
import random
import struct
import sys
import tempfile

import sentencepiece
import tiktoken
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [str(pathlib.Path(HERE).parents[1] / "text"), HERE]
from tokenizers_here import FALLBACK, LLAMA, SPACE, TO_SPACES, fields  # noqa: E402

# A character map of a few rules, so that the files stay small.
RULES = [("\u200b", ""), ("\t", " "), ("\r", " "), ("\n", " "), ("\u3000", " "), ("\u00a0", " "), ("e\u0301", "\u00e9"), ("\u212a", "K"),
         ("\u017f", "s"), ("\u2026", "..."), ("\ufb01", "fi"), ("a\u0308", "\u00e4"), ("\u0130", "i\u0307")]


def strings():
    source = open(os.path.join(HERE, "make.py"), encoding="utf8").read()
    scope = {"__file__": os.path.join(HERE, "make.py")}
    start = source.index("STRINGS = [")
    exec(source[start:source.index("def train(")], scope)  # its strings, without training
    more = ["\ufb01ne \u2026 a\u0308e\u0301 \r\n\tx", "ab<sep>  ab", " \u3000 ", "<0x41>\U0001f389", "\u2581x \u2581\u2581y"]
    return scope["STRINGS"] + more + list(scope["noise"](random.Random(2), 30))


def train(**options):
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as f:
            for source, target in RULES:
                f.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
        made, lines = io.BytesIO(), open("docs/text.md", encoding="utf8").read().split("\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for line in lines if line), model_writer=made, minloglevel=2, num_threads=1,
            vocab_size=400, byte_fallback=True, hard_vocab_limit=False, normalization_rule_tsv=rules, **options)
    return made.getvalue()


def save(name, file, data):
    os.makedirs(os.path.join(HERE, name), exist_ok=True)
    with open(os.path.join(HERE, name, file), "wb") as f:
        f.write(data)


def unigram(model):
    proto = list(fields(model))
    pieces = [dict(fields(value)) for number, value in proto if number == 1]
    vocab = [(p[1].decode(), struct.unpack("<f", p[2])[0]) for p in pieces if p[1].decode() not in FALLBACK]
    made = Tokenizer(models.Unigram(vocab, unk_id=0))
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(dict(fields(dict(proto)[3]))[2])])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")])
    made.decoder = decoders.Metaspace(SPACE, "always")
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B", special_tokens=[("</s>", 2)])
    save("unigram", "tokenizer.json", made.to_str().encode())
    return lambda text: made.encode(text, add_special_tokens=False).ids, lambda text: made.encode(text).ids, made.decode


def of_model(name, model):
    save(name, "tokenizer.model", model)
    made = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": {
        "type": "Unigram", "unk_id": 0, "vocab": [[made.id_to_piece(i), 0.0] for i in range(len(made))]}}))
    pieces.decoder = decoders.Sequence([*TO_SPACES, decoders.Strip(" ", 1, 0)])
    return made.encode, lambda text: [1, *made.encode(text)], lambda ids, skip_special_tokens: pieces.decode(ids)


def tekken():
    vocab = json.load(open(os.path.join(HERE, "gpt2", "tokenizer.json")))["model"]
    alphabet = {c: b for b, c in zip([*range(33, 127), *range(161, 173), *range(174, 256)], map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)]))}
    rest = [b for b in range(256) if b not in alphabet.values()]
    alphabet.update({chr(256 + i): b for i, b in enumerate(rest)})
    merged = ["".join(m) if isinstance(m, list) else m.replace(" ", "") for m in vocab["merges"]]
    tokens = [bytes([b]) for b in range(256)] + [bytes(alphabet[c] for c in m) for m in merged]
    data = {"config": {"pattern": LLAMA, "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) + 30,
                       "default_num_special_tokens": 30, "version": "v3"},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]}
    save("tekken", "tekken.json", json.dumps(data, indent=1).encode())
    made = tiktoken.Encoding("tekken", pat_str=LLAMA, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens={})
    encode = lambda text: [i + 30 for i in made.encode_ordinary(text)]  # noqa: E731
    return encode, lambda text: [1, *encode(text)], lambda ids, skip_special_tokens: made.decode([i - 30 for i in ids])


def main():
    pieces = train(model_type="unigram")
    kinds = {"unigram": unigram(pieces), "pieces": of_model("pieces", pieces),
             "symbols": of_model("symbols", train(model_type="bpe", user_defined_symbols=["<sep>", "  "], remove_extra_whitespaces=False)),
             "tekken": tekken()}
    with open(os.path.join(HERE, "pieces.jsonl"), "w", encoding="utf8") as cases:
        for name, (encode, with_template, decode) in kinds.items():
            for text in strings():
                ids = list(encode(text))
                cases.write(json.dumps({"tokenizer": name, "text": text, "ids": ids, "with_template": list(with_template(text)),
                                        "decoded": decode(ids, skip_special_tokens=False),
                                        "decoded_skipping": decode(ids, skip_special_tokens=True)}, ensure_ascii=False) + "\n")


main()
