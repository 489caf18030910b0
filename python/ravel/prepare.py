"""Renders and tokenises conversations with transformers, for chat templates and tools that Ravel does not write itself.

    python -m ravel.prepare --model FOLDER chat.jsonl out.jsonl [--train-on assistant|last|all]
    python -m ravel.prepare --model FOLDER --prompts questions.jsonl out.jsonl
    python -m ravel.prepare train.parquet rows.jsonl

Reads JSON lines, an array of rows, or a Parquet, Arrow or Feather file (through pyarrow). Without --model its rows are
written as they are, as JSON lines. With it, it reads rows with "messages" (and "tools"), "conversations", "prompt" and "completion" (or "response"), "instruction"
and "output", or "text", and writes lines with "input_ids" and "loss_mask", which `ravel train sft --data out.jsonl` takes.
A row with "chosen" and "rejected" becomes "prompt", "chosen" and "rejected" as token ids, for `ravel train dpo`. With
--prompts a row becomes the "input_ids" that a model is to continue, for `ravel train grpo` and `ravel generate`. Everything
else of a row is kept. What is learnt are the answers: where the template marks them itself (a generation block), those
marks; else what the text of the conversation has more than the text of the conversation before the answer.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
import typing

Row = typing.Dict[str, typing.Any]
ROLES = {"human": "user", "gpt": "assistant"}
TAKEN = {"messages", "conversations", "prompt", "completion", "response", "instruction", "input", "output", "text", "tools",
         "chosen", "rejected"}


class BadRow(ValueError):
    """A row that cannot be used; the message says why."""


def turns(given: typing.Any) -> list[Row]:
    """A list of messages, with either pair of keys; a text is a user's turn."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given or [], list) or not all(isinstance(m, dict) for m in given or []):
        raise BadRow('a conversation is a list of objects with "role" and "content"')
    return [{"role": ROLES.get(m.get("from"), m.get("from")), "content": m.get("value")} if "from" in m else m
            for m in given or []]


def instruction_of(row: Row) -> list[Row]:
    extra = row.get("input") or ""
    return turns(row["instruction"] + ("\n\n" + extra if extra else ""))


def messages_of(row: Row) -> list[Row] | None:
    """The row's conversation, or None where it is plain text."""
    for key in ("messages", "conversations"):
        if key in row:
            return turns(row[key])
    completion = row.get("completion", row.get("response"))
    if "prompt" in row and isinstance(completion, list):
        return [*turns(row["prompt"]), *turns(completion)]
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        return [*instruction_of(row), {"role": "assistant", "content": row["output"]}]
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
    if "{% generation" not in tokenizer.get_chat_template(tools=tools).replace("{%-", "{%"):
        return None
    out = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True)
    return list(out["input_ids"]), list(out["assistant_masks"])


def answer_span(tokenizer: typing.Any, ids: list[int], messages: list[Row], i: int, tools: typing.Any) -> tuple[int, int]:
    """Where message i, an answer, begins and ends in the tokens of the whole conversation."""
    opening = (ids_of(tokenizer, messages[:i], tools, True) if i else
               ids_of(tokenizer, [{**messages[0], "content": ""}], tools, False))
    as_last = ids_of(tokenizer, messages[:i + 1], tools, False)
    begin, alike = common(ids, opening), common(ids, as_last)
    special = set(tokenizer.all_special_ids)
    ends = [k for k in range(begin, len(as_last)) if as_last[k] in special]
    if not ends:
        return begin, alike
    if ends[-1] < alike:  # a line end after the token that ends the turn is not the answer's
        return begin, ends[-1] + 1
    closing = as_last[ends[-1]]  # the template writes the last answer otherwise (Qwen3: with <think>) than one before it
    if closing not in ids[begin:]:
        raise BadRow(f"message {i + 1}, an answer, could not be found in the text of the whole conversation")
    return begin, ids.index(closing, begin) + 1


def answers_mask(tokenizer: typing.Any, ids: list[int], messages: list[Row], tools: typing.Any) -> list[int]:
    """1 for the tokens of answers, found as the difference between the conversation with and without each."""
    mask, last = [0] * len(ids), 0
    for i, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        begin, end = answer_span(tokenizer, ids, messages, i, tools)
        if begin < last:
            raise BadRow(f"messages {i} and {i + 1} are both answers, which this template does not write apart: join them")
        mask[begin:end] = [1] * (end - begin)
        last = end
    return mask


def encode_chat(tokenizer: typing.Any, messages: list[Row], tools: typing.Any, train_on: str) -> tuple[list[int], list[int]]:
    found = marked(tokenizer, messages, tools)
    if found:
        ids, mask = found
    else:
        ids = ids_of(tokenizer, messages, tools, False)
        mask = answers_mask(tokenizer, ids, messages, tools)
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
    elif ids and offsets[-1][0] == offsets[-1][1]:  # an eos that the tokenizer has added itself
        mask[-1] = 1
    return ids, mask


def kept(row: Row) -> Row:
    return {k: v for k, v in row.items() if k not in TAKEN}


def encode_answer(tokenizer: typing.Any, row: Row, key: str) -> tuple[list[int], list[int]]:
    """One answer of a pair, up to its last token that is learnt."""
    prompt, answer = row.get("prompt"), row[key]
    if isinstance(answer, str):
        if prompt is not None and not isinstance(prompt, str):
            raise BadRow(f'"{key}" is a text, so "prompt" must be one')
        return encode_text(tokenizer, prompt or "", answer)
    before = turns(prompt) if isinstance(prompt, list) else []  # a prompt that is a text is in the list too
    ids, mask = encode_chat(tokenizer, [*before, *turns(answer)], row.get("tools") or None, "last")
    end = max(i for i, m in enumerate(mask) if m) + 1
    return ids[:end], mask[:end]


def encode_pair(tokenizer: typing.Any, row: Row) -> Row:
    """Token ids of the prompt, which both answers share, and of the answers."""
    (chosen, learnt), (rejected, other) = (encode_answer(tokenizer, row, key) for key in ("chosen", "rejected"))
    shared = learnt.index(1)
    if shared != other.index(1) or chosen[:shared] != rejected[:shared]:
        raise BadRow("the two conversations differ before their last answers")
    return {**kept(row), "prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}


def encode_prompt(tokenizer: typing.Any, row: Row) -> Row:
    """The tokens that a model is to continue: the conversation without the answers at its end."""
    if not isinstance(row, dict):
        raise BadRow("a row is a JSON object")
    prompt = row.get("prompt")
    if isinstance(row.get("instruction"), str):
        messages = instruction_of(row)
    else:
        messages = turns(prompt) if prompt is not None else turns(row.get("messages", row.get("conversations")))
    while messages and messages[-1].get("role") == "assistant":
        messages.pop()
    if not messages:
        raise BadRow(f"no prompt, messages, conversations or instruction; the row has {', '.join(row) or 'no keys'}")
    if isinstance(prompt, str) and not tokenizer.chat_template:
        return {**kept(row), "input_ids": list(tokenizer(prompt)["input_ids"])}
    return {**kept(row), "input_ids": ids_of(tokenizer, messages, row.get("tools") or None, True)}


def encode(tokenizer: typing.Any, row: Row, train_on: str = "assistant") -> Row:
    """One row to {"input_ids", "loss_mask"}, or a pair to {"prompt", "chosen", "rejected"}, and whatever else it had."""
    if not isinstance(row, dict):
        raise BadRow("a row is a JSON object")
    if "chosen" in row and "rejected" in row:
        return encode_pair(tokenizer, row)
    messages, completion = messages_of(row), row.get("completion", row.get("response"))
    if messages is not None:
        ids, mask = encode_chat(tokenizer, messages, row.get("tools") or None, train_on)
    elif isinstance(row.get("prompt"), str) and isinstance(completion, str):
        ids, mask = encode_text(tokenizer, row["prompt"], completion)
    elif isinstance(row.get("text"), str):
        ids, mask = encode_text(tokenizer, "", row["text"])
    else:
        raise BadRow("no messages, conversations, prompt and completion, instruction and output, chosen and rejected or text; "
                     f"the row has {', '.join(row) or 'no keys'}")
    return {**kept(row), "input_ids": ids, "loss_mask": mask}


def counts(row: Row) -> tuple[int, int]:
    """Tokens of a row that was written, and those that are learnt."""
    if "chosen" in row:
        answers = len(row["chosen"]) + len(row["rejected"])
        return 2 * len(row["prompt"]) + answers, answers
    return len(row["input_ids"]), sum(row.get("loss_mask", ()))


def table_rows(data: str) -> typing.Iterator[Row] | None:
    """The rows of a Parquet, Arrow or Feather file, a batch in memory at a time; None where it is another file."""
    with open(data, "rb") as file:
        magic = file.read(6)
    if magic[:4] != b"PAR1" and magic != b"ARROW1":
        return None
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise BadRow(f"{data} needs pyarrow (pip install pyarrow)") from problem
    batches = (pyarrow.parquet.ParquetFile(data).iter_batches(1024) if magic[:4] == b"PAR1"
               else map((reader := pyarrow.ipc.open_file(data)).get_batch, range(reader.num_record_batches)))
    return (row for batch in batches for row in batch.to_pylist())


def itself(row: typing.Any) -> typing.Any:
    return row


def parsed(line: bytes) -> typing.Any:
    return json.loads(line.decode("utf8"))


def rows_of(data: str) -> typing.Iterator[tuple[str, typing.Callable[[], typing.Any]]]:
    """Where each row is, and a call that gives it or fails."""
    table = table_rows(data)
    if table is not None:
        for number, row in enumerate(table):
            yield f"{data}, row {number}", functools.partial(itself, row)
        return
    with open(data, "rb") as lines:
        if lines.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            lines.seek(0)
            for number, row in enumerate(json.loads(lines.read().decode("utf-8-sig"))):
                yield f"{data}, row {number}", functools.partial(itself, row)
            return
        lines.seek(0)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{data}:{number}", functools.partial(parsed, line)


def plain(value: typing.Any) -> typing.Any:
    """What JSON has no form of, as text: dates and decimals; bytes must be UTF-8."""
    return value.decode("utf8") if isinstance(value, bytes) else str(value)


def convert(data: str, out: pathlib.Path, encoder: typing.Callable[[Row], Row] | None) -> str:
    """Writes every row of `data` through `encoder` (None: as it is) to `out`, a file all or nothing; a sentence with the numbers."""
    if out.exists() and out.samefile(data):
        raise BadRow(f"{out} would overwrite its own input")
    out = out.resolve()
    whole = out.is_file() or not out.exists()  # a pipe or a device cannot be replaced, and is written as it is
    aside = out.with_name(out.name + ".tmp") if whole else out
    rows = tokens = learnt = 0
    try:
        with open(aside, "w", encoding="utf8") as written:
            for where, row_at in rows_of(data):
                try:
                    row = (encoder or dict)(row_at())
                    line = json.dumps(row, default=plain, allow_nan=False)
                except Exception as problem:  # the template may raise anything
                    raise BadRow(f"{where}: {problem}") from problem
                written.write(line + "\n")
                more = counts(row) if encoder else (0, 0)
                rows, tokens, learnt = rows + 1, tokens + more[0], learnt + more[1]
        if whole:
            aside.replace(out)
    finally:
        if whole:
            aside.unlink(missing_ok=True)
    return f"{rows} rows, {tokens} tokens, {learnt} learnt" if encoder else f"{rows} rows"


def encoder_of(options: argparse.Namespace) -> typing.Callable[[Row], Row]:
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    return lambda row: encode_prompt(tokenizer, row) if options.prompts else encode(tokenizer, row, options.train_on)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ravel.prepare", description=__doc__.split("\n")[0])
    parser.add_argument("--model", metavar="FOLDER",
                        help="a folder with a tokenizer and a chat template; without it rows are only converted to JSON lines")
    parser.add_argument("--train-on", choices=("assistant", "last", "all"), default="assistant",
                        help="which tokens of a conversation get loss")
    parser.add_argument("--prompts", action="store_true", help="write what a model is to continue, for grpo and generate")
    parser.add_argument("data", help="JSON lines, an array of rows, Parquet, Arrow or Feather to read")
    parser.add_argument("out", help="JSON lines to write")
    options = parser.parse_args(arguments)
    try:
        out = pathlib.Path(options.out)
        done = convert(options.data, out, encoder_of(options) if options.model else None)
        print(done, file=sys.stdout if out.is_file() else sys.stderr)
    except ImportError:
        print("ravel.prepare: transformers is not installed (pip install transformers)", file=sys.stderr)
        return 1
    except (OSError, ValueError) as problem:
        print(f"ravel.prepare: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
