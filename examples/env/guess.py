#!/usr/bin/env python3
"""Guess the number: the environment thinks of one from 1 to 60 and says whether it is higher or lower.

    ravel train grpo --model WARM --env-command 'python3 examples/env/guess.py' --max-turns 8 ...

The reward is 1 for the number, and else up to 0.5 for how far the range was narrowed down. `--warm-up N` writes N rows for
`ravel train sft`: games of a poor player, of whose guesses half are at random and half somewhere in the range that is left."""
import json
import math
import random
import sys

import ravel_env

TOP = 60


def hint(guess, number):
    return "?" if guess is None else "<" if number < guess else ">"


def read(action):
    return int(action) if len(action) == 2 and action.isascii() and action.isdigit() and 1 <= int(action) <= TOP else None


def game(start):
    number = random.Random(start["seed"]).randint(1, TOP)
    low, high, said = 1, TOP, "g"
    while True:
        action = yield said
        guess = read(action)
        if guess == number:
            return {"reward": 1.0, "accuracy": 1.0}
        if guess is not None and guess < number:
            low = max(low, guess + 1)
        if guess is not None and guess > number:
            high = min(high, guess - 1)
        if action.message["last"]:
            return {"reward": 0.5 * (1 - math.log(high - low + 1) / math.log(TOP)), "accuracy": 0.0}
        said = hint(guess, number)


def warm_up(rows):
    dice = random.Random(1)
    for _ in range(rows):
        number, low, high = dice.randint(1, TOP), 1, TOP
        ids, begins = [256, ord("g")], []
        for _ in range(8):
            guess = dice.randint(low, high) if dice.random() < 0.5 else dice.randint(1, TOP)
            begins.append(len(ids))
            ids += list(b"%02d" % guess) + [257]
            if guess == number:
                break
            ids += [ord(hint(guess, number))]
            low, high = (max(low, guess + 1), high) if guess < number else (low, min(high, guess - 1))
        mask = [0] * len(ids)
        for b in begins:
            mask[b:b + 3] = [1] * 3
        print(json.dumps({"input_ids": ids, "loss_mask": mask}))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--warm-up":
        warm_up(int(sys.argv[2]))
    else:
        ravel_env.serve(game)
