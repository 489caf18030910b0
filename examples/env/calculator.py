#!/usr/bin/env python3
"""A calculator as a tool: the model may write <calc>12*34</calc> and reads the value in the next turn; an answer without a
call ends the episode.

    ravel train grpo --model Qwen3-0.6B --data sums.jsonl --env-command 'python3 examples/env/calculator.py' --max-turns 4

Rows have "messages" (or "prompt") and "answer". `--questions N` writes N of them."""
import ast
import json
import operator
import random
import re
import sys

import ravel_env

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.USub: operator.neg}


def value(node):
    """Numbers and + - * / alone: what the model writes is not run."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](value(node.operand))
    raise ValueError("only numbers and + - * / are allowed")


def calculate(text):
    try:
        return "%.10g" % value(ast.parse(text.strip()[:200], mode="eval").body)
    except (ValueError, KeyError, SyntaxError, ArithmeticError, RecursionError) as e:
        return "error: %s" % e


def episode(start):
    answer, calls = str(start["row"]["answer"]), 0
    action = yield None  # the row's own messages are the prompt
    while (call := re.search(r"<calc>(.*?)</calc>", action, re.S)) and not action.message["last"]:
        calls += 1
        action = yield {"observation": calculate(call.group(1)), "role": "tool"}
    numbers = re.findall(r"-?\d+(?:\.\d+)?", action)
    right = bool(numbers) and float(numbers[-1]) == float(answer)
    return {"reward": float(right) + (0.1 if calls else 0.0), "accuracy": float(right)}


def questions(count):
    dice = random.Random(1)
    for _ in range(count):
        a, b, c = (dice.randint(11, 99) for _ in range(3))
        text = "What is %d * %d + %d? You may write <calc>EXPRESSION</calc> and will be told its value." % (a, b, c)
        print(json.dumps({"messages": [{"role": "user", "content": text}], "answer": str(a * b + c)}))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--questions":
        questions(int(sys.argv[2]))
    else:
        ravel_env.serve(episode)
