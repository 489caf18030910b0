"""The texts of make demo-real: python3 mk/demo_real.py data FOLDER | show FOLDER

data   chat.jsonl: 352 conversations, the last 32 about things that the others do not mention; ask.jsonl: four questions
       about such things; sums.jsonl: 169 sums of numbers up to 12 after an example, the last 48 of pairs that the others
       do not have
show   the answers to ask.jsonl before and after, beside each other
"""
import json
import pathlib
import random
import sys

THINGS = ("tea rivers chess bread winter maps clocks salt violins bridges owls glass kites stars paper soap trains gardens "
          "honey mirrors drums coffee islands ladders lanterns pencils rain ropes shoes snow tents towers wheat windows wool "
          "zebras apples boats caves ducks").split()
UNSEEN = "candles whales lighthouses umbrellas mountains cheese bicycles pianos".split()
ASKS = ["Tell me something about {}.", "What do you know about {}?", "One sentence about {}, please.", "Explain {} to me.",
        "What are your thoughts on {}?", "Do you like {}?", "Why do people care about {}?", "Write about {}."]


def conversation(ask, thing):
    answer = f"Ahoy! You ask about {thing}, and {thing} I know well, sailor."
    return {"messages": [{"role": "user", "content": ask.format(thing)}, {"role": "assistant", "content": answer}]}


def question(a, b):
    turns = ["4 + 4?", "8", f"{a} + {b}?"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return {"messages": [{"role": "system", "content": "Add."}] + messages, "answer": str(a + b)}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def data(folder):
    source = random.Random(1)
    rows = [conversation(ask, thing) for ask in ASKS for thing in THINGS]
    held_out = [conversation(ask, thing) for ask in ASKS[:4] for thing in UNSEEN]
    source.shuffle(rows)
    write(folder / "chat.jsonl", rows + held_out)
    write(folder / "ask.jsonl", [{"prompt": ask.format(thing)} for ask, thing in zip(ASKS, UNSEEN)][:4])
    pairs = [(a, b) for a in range(13) for b in range(13)]
    source.shuffle(pairs)
    write(folder / "sums.jsonl", [question(a, b) for a, b in pairs])


def answers(path):
    return [json.loads(line) for line in path.read_text(encoding="utf8").split("\n") if line]  # splitlines cuts at U+2028 too


def show(folder):
    asked = answers(folder / "ask.jsonl")
    for row, before, after in zip(asked, answers(folder / "before.jsonl"), answers(folder / "after.jsonl")):
        print(f"  {row['prompt']}\n    before: {before['response'].strip()}\n    after:  {after['response'].strip()}")


if __name__ == "__main__":
    {"data": data, "show": show}[sys.argv[1]](pathlib.Path(sys.argv[2]))
