"""Trains the small tokenizers of this folder on the repository's own documents and writes what the `tokenizers` package
does with strings of many kinds: python3 tests/golden/text/make.py, from the top of the tree, with `tokenizers` installed.
"""
import glob
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CORPUS = [open(p, encoding="utf8").read() for p in sorted(glob.glob("docs/*.md") + ["README.md", "CONTRIBUTING.md"])]
CORPUS.append("naïve café déjà vu, Привет мир, γειά σου, こんにちは世界, 안녕하세요 " * 20)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bos(token):
    def make(tokenizer):
        return processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B",
                                          special_tokens=[(token, tokenizer.token_to_id(token))])])
    return make


CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
          " + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

FAMILIES = {
    "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=True), special=["<|endoftext|>"],
                 added=[AddedToken("<mask>", lstrip=True, special=True), AddedToken("<r>", rstrip=True),
                        AddedToken("two words"), AddedToken("two")],
                 config={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}),
    "llama3": dict(pre=split(LLAMA), special=["<|begin_of_text|>", "<|eot_id|>"], post=bos("<|begin_of_text|>"),
                   model={"ignore_merges": True},
                   config={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "qwen": dict(pre=split(LLAMA.replace("{1,3}", "")), norm=normalizers.NFC(),
                 special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], added=["<think>", "</think>"],
                 config={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False,
                         "chat_template": CHATML}),
    "smol": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                              pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                 special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                 config={"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}),
}

STRINGS = [
    "", " ", "\n", "  \n\n  x", "Hello, world!", "It's I'll we'VE THEY'RE don't 'tis", "2024-01-02 3.14159 1000000",
    "tabs\tand\r\nlines\n\n\n  indented", "trailing space ", "   leading", "a" * 50, "ab" * 200, "-" * 120,
    "naïve café", "nai\u0308ve cafe\u0301", "q\u0307\u0323 \u1e0b\u0323", "\u1112\u1161\u11ab\u1100\u1173\u11af 한글",
    "Привет, мир! γειά", "こんにちは世界、元気ですか。", "👩‍👩‍👧 emoji 🎉🎉", "\u200b\ufeff\u180ex\u3000y\u00a0z\u0085w",
    "\U00031350\U000323af \U00013460 \U0001e5d0 \ua7cb", "'\u017f K\u212a \u0130\u0131", "<|im_start|>user\nhi<|im_end|>\n",
    "x <mask> y<mask>  z", "<r>   after two words two twowords", "<|endoftext|><|endoftext|> <|end", "<think>\n\n</think>",
    "<|begin_of_text|>a<|eot_id|>", "int main(void) { return 0; } // \\u0041", "x\u0301\u0302\u0303\u0327\u0316 y",
]


def noise(random_source, count):
    pools = ["abcdefghij  \n", "0123456789.,'\"", "ÄÖÜßéèñç", "漢字仮名交文", "\u0301\u0308\u0323\u0327", "🎉🚀🤖"]
    for _ in range(count):
        yield "".join(random_source.choice(random_source.choice(pools)) for _ in range(random_source.randrange(1, 60)))


def train(spec):
    tokenizer = Tokenizer(models.BPE(**spec.get("model", {})))
    tokenizer.pre_tokenizer = spec["pre"]
    tokenizer.decoder = decoders.ByteLevel()
    if "norm" in spec:
        tokenizer.normalizer = spec["norm"]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=700, special_tokens=spec["special"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tokenizer.add_tokens(list(spec.get("added", [])))
    if "post" in spec:
        tokenizer.post_processor = spec["post"](tokenizer)
    return tokenizer


def main():
    source = random.Random(1)
    strings = STRINGS + list(noise(source, 60))
    with open(os.path.join(HERE, "cases.jsonl"), "w", encoding="utf8") as cases:
        for name, spec in FAMILIES.items():
            folder = os.path.join(HERE, name)
            os.makedirs(folder, exist_ok=True)
            tokenizer = train(spec)
            tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf8") as file:
                json.dump(spec["config"], file, indent=1)
            for text in strings:
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                cases.write(json.dumps({
                    "tokenizer": name, "text": text, "ids": ids, "with_template": tokenizer.encode(text).ids,
                    "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                    "decoded_skipping": tokenizer.decode(ids)}, ensure_ascii=False) + "\n")


main()
