"""Checks a trace against the Trace Event Format: every event has what its phase letter asks for, complete events of a
rank nest, and there are as many processes as there should be.

    check_trace.py FILE PROCESSES
"""
import json
import sys

SCHEMA = {  # ph: the members that it must have, and their types
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": (int, float), "pid": int, "args": dict},
}
events = json.load(open(sys.argv[1]))
assert isinstance(events, list) and events
ends = {}
names = set()
for e in events:
    assert e["ph"] in SCHEMA, e
    for member, kind in SCHEMA[e["ph"]].items():
        assert isinstance(e[member], kind), (member, e)
    if e["ph"] == "C":
        assert all(isinstance(v, (int, float)) for v in e["args"].values()), e
    if e["ph"] == "M":
        assert e["name"] == "process_name" and e["args"]["name"] == f"rank {e['pid'] % (1 << 20)}", e
    if e["ph"] == "X":
        assert e["dur"] >= 0 and e["ts"] > 1e12 and isinstance(e["args"]["step"], int), e
        names.add(e["name"])
        ends.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
for spans in ends.values():  # as a viewer stacks them: an event ends inside the one that it began in
    stack = []
    for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        while stack and stack[-1] <= begin + 0.01:
            stack.pop()
        assert not stack or end <= stack[-1] + 0.02, (begin, end, stack[-1])
        stack.append(end)
assert len({pid for pid, _ in ends}) == int(sys.argv[2]), ends.keys()
assert {"forward", "backward", "rollout"} <= names, names
print(f"{len(events)} events of {sys.argv[2]} ranks")
