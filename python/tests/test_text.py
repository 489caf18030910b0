"""Tokenizers and rows: the golden cases of tests/golden, through the package."""

import json
import os
import pathlib

import numpy as np
import pytest

import ravel

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


def open_golden(name, **options):
    if not (GOLDEN / "text" / name).exists():
        pytest.skip("the golden tokenizers are in the checkout only")
    try:
        return ravel.Tokenizer(GOLDEN / "text" / name, **options)
    except ravel.Error as error:
        if "pcre2" in str(error).lower():
            pytest.skip("PCRE2 is not installed (Debian: libpcre2-dev)")
        raise


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen", "smol"])
def test_golden_ids(name):
    tokenizer = open_golden(name)
    cases = [json.loads(line) for line in open(GOLDEN / "text" / "cases.jsonl", encoding="utf8")]
    for case in (c for c in cases if c["tokenizer"] == name):
        assert tokenizer.encode(case["text"], template=False).tolist() == case["ids"]
        assert tokenizer.encode(case["text"]).tolist() == case["with_template"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
        assert tokenizer.decode(case["ids"], skip_special=True) == case["decoded_skipping"]


def test_names_and_sizes():
    tokenizer = open_golden("qwen")
    assert tokenizer.eos == 2 and tokenizer.pad == 0 and tokenizer.bos is None
    assert len(tokenizer) == 702 and tokenizer.chat_format == "the model's template"
    assert tokenizer.encode("").dtype == np.int32 and tokenizer.encode("").size == 0
    assert "702 tokens" in repr(tokenizer) and "<|im_start|>" in tokenizer.chat_template


def test_rows_and_prompts():
    tokenizer = open_golden("qwen")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    tokens, mask = tokenizer.row({"messages": messages})
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    assert tokens.tolist() == tokenizer.encode(text).tolist()
    assert tokenizer.decode(tokens[mask == 1]) == "Hello<|im_end|>"
    assert tokenizer.decode(tokenizer.prompt({"messages": messages})) == text[:text.index("Hello")]
    chosen, rejected = tokenizer.row({"prompt": "a", "chosen": "b", "rejected": "c"})
    assert tokenizer.decode(chosen[0]) == "ab<|im_end|>" and tokenizer.decode(rejected[0]) == "ac<|im_end|>"
    everything = open_golden("qwen", train_on="all").row({"messages": messages})[1]
    assert everything.all()


def test_errors_are_exceptions():
    tokenizer = open_golden("qwen")
    with pytest.raises(ravel.DataError, match='this one has "x"'):
        tokenizer.row({"x": 1})
    with pytest.raises(ravel.Error, match="no answer"):
        tokenizer.row({"messages": [{"role": "tool", "content": ""}]})
    with pytest.raises(ravel.Error):
        ravel.Tokenizer("no/such/folder")
    with pytest.raises(ValueError):
        open_golden("qwen", train_on="none")
    with pytest.raises(ravel.Error, match="no chat format"):
        open_golden("qwen", chat_format="none")


def test_templates_are_rendered(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    text = "<|im_start|>user\nHi<|im_end|>\n"
    assert open_golden("qwen").render(messages) == open_golden("qwen", chat_format="chatml").render(messages) == text
    assert open_golden("qwen").render(messages, add_generation_prompt=True) == text + "<|im_start|>assistant\n"
    file = tmp_path / "own.jinja"
    file.write_text("{{ who }}{% for t in tools or [] %}{{ t.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer = open_golden("qwen", chat_format=file, chat_args={"who": "me "})
    assert tokenizer.render(messages, tools=[{"name": "f"}]) == "me fHi" and tokenizer.render(messages, who="") == "Hi"
    file.write_text("{{ messages[0].content")
    with pytest.raises(ravel.DataError, match="own.jinja: chat template, line 1: a tag has no end"):
        open_golden("qwen", chat_format=file)


def test_prepare_equals_rows(tmp_path):
    transformers = pytest.importorskip("transformers")
    from ravel import prepare
    tokenizer = open_golden("qwen")
    theirs = transformers.AutoTokenizer.from_pretrained(str(GOLDEN / "text" / "qwen"))
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you"}]
    for train_on in ("assistant", "last", "all"):
        got = prepare.encode(theirs, {"messages": messages, "id": 7}, train_on)
        tokens, mask = open_golden("qwen", train_on=train_on).row({"messages": messages})
        assert got["id"] == 7 and got["input_ids"] == tokens.tolist() and got["loss_mask"] == mask.tolist()
    rows = [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            {"prompt": "Hi", "completion": "Hello"}, {"prompt": "Hi", "response": "Hello"}, {"text": "Hi"},
            {"prompt": messages[:1], "completion": messages[1:2]}, {"prompt": "Hi", "completion": messages[1:2]},
            {"instruction": "Hi", "output": "Hello"}, {"instruction": "Hi", "input": "you", "output": "Hello"}]
    for row in rows:
        got, (tokens, mask) = prepare.encode(theirs, row), tokenizer.row(row)
        assert got == {"input_ids": tokens.tolist(), "loss_mask": mask.tolist()}, row
    with pytest.raises(prepare.BadRow, match="x"):
        prepare.encode(theirs, {"x": 1})
    assert tokenizer.eos == theirs.eos_token_id


def test_prepared_pairs_and_prompts_equal_rows():
    transformers = pytest.importorskip("transformers")
    from ravel import prepare
    tokenizer = open_golden("qwen")
    theirs = transformers.AutoTokenizer.from_pretrained(str(GOLDEN / "text" / "qwen"))
    ask, yes, no = ({"role": role, "content": text} for role, text in
                    (("user", "Hi"), ("assistant", "Hello"), ("assistant", "Go")))
    for row in ({"chosen": [ask, yes], "rejected": [ask, no]}, {"prompt": [ask], "chosen": [yes], "rejected": [no]},
                {"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}):
        got = prepare.encode(theirs, {**row, "id": 7})
        assert got["id"] == 7
        for key, (tokens, mask) in zip(("chosen", "rejected"), tokenizer.row(row)):
            end = int(mask.nonzero()[0][-1]) + 1
            assert got["prompt"] + got[key] == tokens.tolist()[:end]
            assert [0] * len(got["prompt"]) + [1] * len(got[key]) == mask.tolist()[:end]
    with pytest.raises(prepare.BadRow, match="differ before"):
        prepare.encode(theirs, {"chosen": [ask, yes], "rejected": [{**ask, "content": "Ho"}, no]})
    for row in ({"messages": [ask], "answer": "4"}, {"messages": [ask, yes]}, {"prompt": "Hi"}, {"instruction": "Hi"}):
        got = prepare.encode_prompt(theirs, row)
        assert got["input_ids"] == tokenizer.prompt(row).tolist() and got.get("answer") == row.get("answer")
    with pytest.raises(prepare.BadRow, match="no prompt"):
        prepare.encode_prompt(theirs, {"x": 1})


class Letters:
    """A tokenizer with one token per character and a template like Qwen3's: only the last answer has a <think> block."""

    eos_token_id, all_special_ids, chat_template = 3, [1, 3], "turns"

    def get_chat_template(self, tools=None):
        return self.chat_template

    def apply_chat_template(self, messages, tools, add_generation_prompt, tokenize, return_dict):
        text = ""
        for message in messages:
            thought = "()" if message["role"] == "assistant" and message is messages[-1] else ""
            text += f"\1{message['role'][0]}:{thought}{message['content']}\3\n"
        return {"input_ids": [ord(c) for c in text + ("\1a:" if add_generation_prompt else "")]}

    def __call__(self, text, return_offsets_mapping):
        return {"input_ids": [*map(ord, text), 3], "offset_mapping": [*((i, i + 1) for i in range(len(text))), (0, 0)]}


def learnt(row, **options):
    from ravel import prepare
    done = prepare.encode(Letters(), row, **options)
    return "".join(chr(i) if m else "." for i, m in zip(done["input_ids"], done["loss_mask"]))


def test_prepare_finds_every_answer_where_the_last_is_written_otherwise():
    from ravel import prepare
    ask, tell, more = ({"role": role, "content": text} for role, text in
                       (("user", "Hi"), ("assistant", "Hello"), ("assistant", "Bye")))
    assert learnt({"messages": [ask, tell, ask, more]}) == "......." "...Hello\3." "......." "...()Bye\3."
    assert learnt({"messages": [tell, ask, more]}) == "...Hello\3." "......." "...()Bye\3."
    assert learnt({"messages": [ask, tell, ask, more]}, train_on="last").strip(".") == "()Bye\3"
    with pytest.raises(prepare.BadRow, match="messages 2 and 3 are both answers"):
        learnt({"messages": [ask, tell, more]})
    assert learnt({"prompt": "Hi", "completion": "you"}) == "..you\3"  # an eos of the tokenizer's own is learnt too


def test_prepare_writes_all_or_nothing(tmp_path):
    from ravel import prepare
    out, data = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    for line, sentence in ((b"\xff\xfe", "utf-8"), (b"[1]", "a row is a JSON object"), (b"{", "in.jsonl:2"),
                           (b'{"messages": [1]}', "a list of objects"), (b'{"messages": {}}', "no answer")):
        data.write_bytes(b'{"text": "a"}\n' + line + b"\n")
        with pytest.raises(prepare.BadRow, match=sentence):
            prepare.convert(str(data), out, lambda row: prepare.encode(Letters(), row))
        assert sorted(tmp_path.iterdir()) == [data]
    with pytest.raises(prepare.BadRow, match="overwrite"):
        prepare.convert(str(data), data, lambda row: row)
    data.write_text('{"text": "a"}\n\n{"text": "bc", "id": 7}\n', encoding="utf8")
    assert prepare.convert(str(data), out, lambda row: prepare.encode(Letters(), row)) == "2 rows, 5 tokens, 5 learnt"
    assert [json.loads(line).get("id") for line in out.read_text().splitlines()] == [None, 7]


def test_prepare_writes_into_pipes_and_through_links(tmp_path):
    from ravel import prepare
    data, pipe, link, far = (tmp_path / name for name in ("in.jsonl", "pipe", "link", "far"))
    data.write_text('{"input_ids": [1, 2]}\n', encoding="utf8")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    prepare.convert(str(data), pipe, lambda row: row | {"loss_mask": [1, 1]})
    assert json.loads(os.read(reader, 4096)) == {"input_ids": [1, 2], "loss_mask": [1, 1]}
    os.close(reader)
    assert pipe.is_fifo()  # and not a file in its place
    far.touch()
    link.symlink_to(far)
    prepare.convert(str(data), link, lambda row: row | {"loss_mask": [1, 1]})
    assert link.is_symlink() and far.read_text(encoding="utf8").count("\n") == 1
