#!/usr/bin/env python3
"""A text game: find the lamp in a house of few rooms, take it, and leave by the front door.

    ravel train grpo --model SmolLM2-135M-Instruct --env-command 'python3 examples/env/rooms.py' --max-turns 12 --max-tokens 12

The house is another one for every seed. The reward is 1 for leaving with the lamp, 0.4 for having it, and 0.05 for every room
seen, less 0.02 for every command that was not understood."""
import random

import ravel_env

ROOMS = ["hall", "kitchen", "cellar", "library", "garden", "attic"]
AWAY = {"north": "south", "south": "north", "east": "west", "west": "east"}


def build(dice):
    """{room: {direction: room}}, a random tree, and the room of the lamp"""
    ways = {"hall": {}}
    rooms = ROOMS[1:4 + dice.randint(0, 2)]
    for room in rooms:
        at, way = dice.choice([(r, w) for r in ways for w in AWAY if w not in ways[r]])
        ways[at][way], ways[room] = room, {AWAY[way]: at}
    return ways, dice.choice(rooms)


def look(room, ways, here):
    return "You are in the %s. You can go %s.%s%s" % (room, ", ".join(sorted(ways[room])), " There is a lamp." if here else "",
                                                      " The front door is here." if room == "hall" else "")


def game(start):
    ways, lamp = build(random.Random(start["seed"]))
    room, has, seen, wrong = "hall", False, {"hall"}, 0
    said = "Bring the lamp out of the house. Commands: go DIRECTION, take lamp, leave. " + look(room, ways, False)
    while True:
        action = yield said
        words = action.lower().split()
        if words[:1] == ["go"] and len(words) == 2 and words[1] in ways[room]:
            room = ways[room][words[1]]
            seen.add(room)
            said = look(room, ways, room == lamp and not has)
        elif words == ["take", "lamp"] and room == lamp and not has:
            has, said = True, "Taken."
        elif words == ["leave"] and room == "hall":
            break
        else:
            wrong, said = wrong + 1, "That is not possible. " + look(room, ways, room == lamp and not has)
        if action.message["last"]:
            break
    out = has and words == ["leave"]
    return {"reward": (1.0 if out else 0.4 if has else 0.0) + 0.05 * len(seen) - 0.02 * wrong, "accuracy": float(out)}


if __name__ == "__main__":
    ravel_env.serve(game)
