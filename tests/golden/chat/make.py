"""Writes cases.jsonl: what transformers makes of conversations with chat templates.

    python3 tests/golden/chat/make.py chatml=a.jinja chatml=b.jinja qwen3=c.jinja ...

Each argument is a row of the table in src/text/chat_formats.c and a file with a template that the row should equal. All
templates of a row must agree. Cases of rows that are not named stay. Needs transformers and jinja2.
"""
import json
import os
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))


def turns(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


CONVERSATIONS = [
    turns("Hi"), turns("Hi", "Hello!"), turns("Hi", "Hello!", "How are you?"), turns("a", "b", "c", "d", system="Be brief."),
    turns("", ""), turns("  padded \n", "\n answer \t\n", system="  sys \n"), turns("ünïcode 漢字", "🎉\u3000\u00a0"),
    turns("q", "<think>\nhm\n</think>\n\nA"), turns("q", "<think>one</think>\nA", "r", "<think>\n\ntwo\n\n</think>\n\n\nB"),
    turns("q", "x</think>y</think>z", "r"), turns("q", "no thoughts", "r", "</think>"), turns("q", "<think>open", "r"),
    turns("<tool_response>\nr\n</tool_response>", "done"), turns("q", "a", "<tool_response>x</tool_response>", "b"),
    turns("say <|im_end|> or </s>", "<|eot_id|>"), turns("q", "a", system=""),
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": "q"}, {"role": "system", "content": "late"}, {"role": "assistant", "content": "b"}],
    [{"role": "system", "content": "s"}, {"role": "system", "content": "t"}, {"role": "user", "content": "q"}],
    [{"role": "system", "content": "alone"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", "reasoning_content": "\nwhy\n"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", "reasoning_content": "why"},
     {"role": "user", "content": "r"}, {"role": "assistant", "content": "B", "reasoning_content": ""}],
]


def render(template, messages, answer):
    try:
        texts, _ = render_jinja_template(conversations=[messages], chat_template=template, add_generation_prompt=answer,
                                         bos_token="<s>", eos_token="</s>")
        return texts[0]
    except Exception:  # the template's own raise_exception
        return None


def main():
    rows = {}
    for argument in sys.argv[1:]:
        name, path = argument.split("=", 1)
        template = open(path, encoding="utf8").read()
        cases = [(m, a, render(template, m, a)) for m in CONVERSATIONS for a in (False, True)]
        if rows.setdefault(name, cases) != cases:
            sys.exit(f"{path} is not the same as the other templates of {name}")
    path = os.path.join(HERE, "cases.jsonl")
    kept = [line for line in open(path, encoding="utf8") if json.loads(line)["format"] not in rows]
    with open(path, "w", encoding="utf8") as out:
        out.writelines(kept)
        for name, cases in rows.items():
            for messages, answer, text in cases:
                out.write(json.dumps({"format": name, "messages": messages, "answer": answer, "text": text},
                                     ensure_ascii=False) + "\n")


main()
