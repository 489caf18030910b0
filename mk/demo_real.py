"""The texts of make demo-real: python3 mk/demo_real.py data FOLDER | show FOLDER | reward

data     chat.jsonl: 352 conversations, the last 32 about things that the others do not mention; ask.jsonl: four questions
         about such things; sums.jsonl: 243 sums of two digits, the last 48 with pairs that the others do not have
show     the answers to ask.jsonl before and after, beside each other
reward   a reward command (train/rl/reward.h): 1 where the first number of the answer, the question's own two left
         out, is the sum; else 0
"""
import json
import pathlib
import random
import re
import sys

THINGS = ("tea rivers chess bread winter maps clocks salt violins bridges owls glass kites stars paper soap trains gardens "
          "honey mirrors drums coffee islands ladders lanterns pencils rain ropes shoes snow tents towers wheat windows wool "
          "zebras apples boats caves ducks").split()
UNSEEN = "candles whales lighthouses umbrellas mountains cheese bicycles pianos".split()
ASKS = ["Tell me something about {}.", "What do you know about {}?", "One sentence about {}, please.", "Explain {} to me.",
        "What are your thoughts on {}?", "Do you like {}?", "Why do people care about {}?", "Write about {}."]

SUMS = ["What is {} + {}?", "How much is {} plus {}?", "Add {} and {}."]


def conversation(ask, thing):
    answer = f"Ahoy! You ask about {thing}, and {thing} I know well, sailor."
    return {"messages": [{"role": "user", "content": ask.format(thing)}, {"role": "assistant", "content": answer}]}


def question(ask, a, b):
    return {"messages": [{"role": "system", "content": "Answer with a number."},
                         {"role": "user", "content": ask.format(a, b)}], "answer": str(a + b)}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def data(folder):
    source = random.Random(1)
    rows = [conversation(ask, thing) for ask in ASKS for thing in THINGS]
    held_out = [conversation(ask, thing) for ask in ASKS[:4] for thing in UNSEEN]
    source.shuffle(rows)
    write(folder / "chat.jsonl", rows + held_out)
    write(folder / "ask.jsonl", [{"prompt": ask.format(thing)} for ask, thing in zip(ASKS, UNSEEN)][:4])
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    source.shuffle(pairs)
    sums = [[question(ask, a, b) for a, b in part for ask in SUMS] for part in (pairs[:65], pairs[65:])]
    source.shuffle(sums[0])
    write(folder / "sums.jsonl", sums[0] + sums[1])


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def show(folder):
    asked = answers(folder / "ask.jsonl")
    for row, before, after in zip(asked, answers(folder / "before.jsonl"), answers(folder / "after.jsonl")):
        print(f"  {row['prompt']}\n    before: {before['response'].strip()}\n    after:  {after['response'].strip()}")


def reward():
    for line in sys.stdin:
        row = json.loads(line)
        asked = re.findall(r"[0-9]+", row["prompt"])[-2:]
        said = re.findall(r"[0-9]+", row["response"])
        for number in asked:  # the question once more is no answer
            if number in said:
                said.remove(number)
        print(json.dumps({"id": row["id"], "reward": float(said[:1] == [row["answer"]])}), flush=True)


if __name__ == "__main__":
    what = {"data": data, "show": show, "reward": reward}[sys.argv[1]]
    what(*map(pathlib.Path, sys.argv[2:]))
