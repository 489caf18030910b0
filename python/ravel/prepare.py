"""Renders and tokenises conversations with transformers, for chat templates and tools that Ravel does not write itself.

    python -m ravel.prepare --model FOLDER chat.jsonl out.jsonl [--train-on assistant|last|all]

Reads JSON lines with "messages" (and "tools"), "conversations", "prompt" and "completion" or "text", and writes lines with
"input_ids" and "loss_mask", which `ravel train sft --data out.jsonl` takes. Everything else of a row is kept. What is
learnt are the answers: where the template marks them itself (a generation block), those marks; else what the text of
the conversation has more than the text of the conversation before the answer.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import typing

Row = typing.Dict[str, typing.Any]
ROLES = {"human": "user", "gpt": "assistant"}
TAKEN = {"messages", "conversations", "prompt", "completion", "text", "tools"}


class BadRow(ValueError):
    """A row that cannot be used; the message says why."""


def messages_of(row: Row) -> list[Row] | None:
    """The row's conversation, or None where it is plain text."""
    if "messages" in row:
        return list(row["messages"])
    if "conversations" in row:
        return [{"role": ROLES.get(m.get("from"), m.get("from")), "content": m.get("value")}
                if "from" in m else m for m in row["conversations"]]
    if isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list):
        return [*row["prompt"], *row["completion"]]
    return None


def ids_of(tokenizer: typing.Any, messages: list[Row], tools: typing.Any, answer: bool) -> list[int]:
    out = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=answer, tokenize=True,
                                        return_dict=True)
    return list(out["input_ids"])


def common(a: list[int], b: list[int]) -> int:
    """How many tokens two lists begin with alike."""
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


def marked(tokenizer: typing.Any, messages: list[Row], tools: typing.Any) -> tuple[list[int], list[int]] | None:
    """By the template's own marks, or None where it has none."""
    if "{% generation" not in (tokenizer.chat_template or "").replace("{%-", "{%"):
        return None
    out = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True)
    return list(out["input_ids"]), list(out["assistant_masks"])


def encode_chat(tokenizer: typing.Any, messages: list[Row], tools: typing.Any, train_on: str) -> tuple[list[int], list[int]]:
    found = marked(tokenizer, messages, tools)
    if found:
        ids, mask = found
    else:
        ids = ids_of(tokenizer, messages, tools, False)
        mask = [0] * len(ids)
        special = set(tokenizer.all_special_ids)
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or i == 0:
                continue
            before = common(ids, ids_of(tokenizer, messages[:i], tools, True))
            after = common(ids, ids_of(tokenizer, messages[:i + 1], tools, False))
            ends = [k for k in range(before, after) if ids[k] in special]
            after = ends[-1] + 1 if ends else after  # a line end after the token that ends the turn is not the answer's
            mask[before:after] = [1] * (after - before)
    if train_on == "all":
        return ids, [1] * len(ids)
    if not any(mask):
        raise BadRow("the conversation has no answer to learn from")
    if train_on == "last":
        end = max(i for i, m in enumerate(mask) if m) + 1
        begin = max((i for i in range(end) if not mask[i]), default=-1) + 1
        mask = [int(begin <= i < end) for i in range(len(ids))]
    return ids, mask


def encode_text(tokenizer: typing.Any, prompt: str, text: str) -> tuple[list[int], list[int]]:
    """Prompt and completion one after the other, then eos; the prompt is not learnt."""
    out = tokenizer(prompt + text, return_offsets_mapping=True)
    ids, offsets = list(out["input_ids"]), list(out["offset_mapping"])
    mask = [int(begin >= len(prompt) and end > begin) for begin, end in offsets]
    if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
        mask.append(1)
    return ids, mask


def encode(tokenizer: typing.Any, row: Row, train_on: str = "assistant") -> Row:
    """One row to {"input_ids", "loss_mask"} and whatever else it had."""
    messages = messages_of(row)
    if messages is not None:
        ids, mask = encode_chat(tokenizer, messages, row.get("tools") or None, train_on)
    elif isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        ids, mask = encode_text(tokenizer, row["prompt"], row["completion"])
    elif isinstance(row.get("text"), str):
        ids, mask = encode_text(tokenizer, "", row["text"])
    else:
        raise BadRow(f"no messages, conversations, prompt and completion or text; the row has {', '.join(row) or 'no keys'}")
    return {**{k: v for k, v in row.items() if k not in TAKEN}, "input_ids": ids, "loss_mask": mask}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ravel.prepare", description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a folder with a tokenizer and a chat template")
    parser.add_argument("--train-on", choices=("assistant", "last", "all"), default="assistant")
    parser.add_argument("data", help="JSON lines to read")
    parser.add_argument("out", help="JSON lines to write")
    options = parser.parse_args(arguments)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("ravel.prepare: transformers is not installed (pip install transformers)", file=sys.stderr)
        return 1
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    out = pathlib.Path(options.out)
    if out.exists() and out.samefile(options.data):
        print(f"ravel.prepare: {out} would overwrite its own input", file=sys.stderr)
        return 2
    aside = out.with_name(out.name + ".tmp")
    rows = tokens = learnt = 0
    try:
        with open(options.data, encoding="utf8") as lines, open(aside, "w", encoding="utf8") as written:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = encode(tokenizer, json.loads(line), options.train_on)
                except Exception as problem:  # the template may raise anything
                    print(f"ravel.prepare: {options.data}:{number}: {problem}", file=sys.stderr)
                    aside.unlink()
                    return 1
                written.write(json.dumps(row) + "\n")
                rows += 1
                tokens += len(row["input_ids"])
                learnt += sum(row["loss_mask"])
    except OSError as problem:
        print(f"ravel.prepare: {problem}", file=sys.stderr)
        return 1
    aside.replace(out)
    print(f"{rows} rows, {tokens} tokens, {learnt} learnt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
