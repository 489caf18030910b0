"""Recounts a plan from its JSON and the lengths alone, and compares every figure.

    recount.py PLAN.json LENGTHS.csv [home=FILE] [groups=FILE] [update_ids=FILE] [costs=FILE]

Written against the documents, not against the library: partition, hard cap, parity, order, costs, group rule, and the
stats by their definitions. Prints "ok" or what is wrong, and exits 0 or 1.
"""
import json
import sys
from collections import defaultdict


def fail(text):
    print(text)
    sys.exit(1)


def same(name, got, want):
    if isinstance(want, float) or isinstance(got, float):
        if abs(got - want) > 1e-9 * max(1, abs(want)):
            fail(f"{name}: {got!r} in the plan, {want!r} when recounted")
    elif got != want:
        fail(f"{name}: {got!r} in the plan, {want!r} when recounted")


def column(path):
    with open(path) as f:
        return [int(line) for line in f if line.strip()]


def lengths_of(path):
    rows = []
    with open(path) as f:
        for line in f:
            cells = line.strip().split(",")
            if cells[0].lstrip("-").isdigit():
                rows.append([int(c) for c in cells])
    return rows


def up(n, align):
    return (n + align - 1) // align * align


plan = json.load(open(sys.argv[1]))
rows = lengths_of(sys.argv[2])
extra = {k: column(v) for k, v in (a.split("=", 1) for a in sys.argv[3:])}
o, stats, bins = plan["options"], plan["stats"], plan["bins"]
same("version", plan["version"], 1)
if set(plan) != {"version", "options", "digest", "bins", "stats"}:
    fail(f"members {sorted(plan)}")
if len(plan["digest"]) != 16 or int(plan["digest"], 16) < 0:
    fail("the digest is not 16 hex digits")

length = [sum(r) for r in rows]
align, capacity, cost = o["align"], o["cp"] * o["budget"], o["cost"]


def model(n):
    return cost["linear"] * n + cost["quadratic"] * n * n


def shape(samples):
    """Slot tokens and cost of a bin."""
    own = extra.get("costs")
    if o["layout"] == "packed":
        return (sum(up(length[i], align) for i in samples),
                sum(own[i] if own else model(length[i]) for i in samples))
    if not samples:
        return 0, 0
    if o["layout"] == "padded":
        width = max(up(length[i], align) for i in samples)
    else:
        width = max(up(rows[i][0], align) for i in samples) + max(up(rows[i][1], align) for i in samples)
    each = max(own[i] for i in samples) if own else model(width)
    return len(samples) * width, len(samples) * each


# every bin by itself
placed = []
keys = {"update", "micro_step", "rank", "samples", "tokens", "slot_tokens", "cost", "filler"}
for b in bins:
    if set(b) != keys:
        fail(f"a bin has members {sorted(b)}")
    slots, work = shape(b["samples"])
    same("tokens", b["tokens"], sum(length[i] for i in b["samples"]))
    same("slot_tokens", b["slot_tokens"], slots)
    same("cost", b["cost"], work + cost["overhead"])
    same("filler", b["filler"], not b["samples"])
    if slots > capacity:
        fail(f"a bin of {slots} tokens is over {capacity}")
    if o["max_samples"] and len(b["samples"]) > o["max_samples"]:
        fail("a bin has more than max_samples")
    if o["method"] == "count" and len(b["samples"]) > o["count"]:
        fail("a bin has more than count samples")
    placed += b["samples"]

# partition
left_out = stats["skipped_samples"]
if sorted(placed + left_out) != list(range(len(rows))):
    fail("not every sample is in exactly one bin or left out")
for i in left_out:
    if shape([i])[0] <= capacity:
        fail(f"sample {i} fits and was left out")
if left_out and o["oversize"] != "skip":
    fail("samples were left out without being asked")

# order and parity
places = [(b["update"], b["micro_step"], b["rank"]) for b in bins]
if places != sorted(places) or len(set(places)) != len(places):
    fail("bins are not in order of update, micro-step and rank")
steps = defaultdict(list)
for b in bins:
    steps[b["update"], b["micro_step"]].append(b)
per_update = defaultdict(int)
for (update, _), members in steps.items():
    same("ranks of a micro-step", [b["rank"] for b in members], list(range(o["dp"])))
    per_update[update] += 1
for update, count in per_update.items():
    same("micro-steps are numbered from 0", sorted(s for u, s in steps if u == update), list(range(count)))
    if count % o["multiple"]:
        fail(f"update {update} has {count} micro-steps, no multiple of {o['multiple']}")
    if count < o["min_micro_steps"]:
        fail(f"update {update} has {count} micro-steps, fewer than {o['min_micro_steps']}")
if sorted(per_update) != list(range(len(per_update))):
    fail("updates are not numbered from 0")
if not o["samples_per_update"] and "update_ids" not in extra and len(per_update) != o["updates"]:
    fail(f"{len(per_update)} updates, not {o['updates']}")

# groups, updates, homes
where = {i: b for b in bins for i in b["samples"]}
if "update_ids" in extra:
    for i, b in where.items():
        same(f"update of sample {i}", b["update"], extra["update_ids"][i])
if "groups" in extra and o["group_rule"] != "free":
    for name in ["update"] + (["rank"] if o["group_rule"] == "rank" else []):
        seen = {}
        for i, b in where.items():
            if seen.setdefault(extra["groups"][i], b[name]) != b[name]:
                fail(f"group {extra['groups'][i]} is spread over several {name}s")
moved = 0
if "home" in extra:
    moved = sum(length[i] for i, b in where.items() if extra["home"][i] not in (-1, b["rank"]))

# figures
full = [b for b in bins if b["samples"]]
slowest = {k: max(b["cost"] for b in v) for k, v in steps.items()}
totals = defaultdict(lambda: [0] * o["dp"])
for b in bins:
    totals[b["update"]][b["rank"]] += b["cost"]
all_cost = sum(b["cost"] for b in bins)
time_step, time_update = sum(slowest.values()), sum(max(t) for t in totals.values())
padded, actual = sum(b["slot_tokens"] for b in bins), sum(b["tokens"] for b in bins)


def ratio(a, b, otherwise):
    return a / b if b else otherwise


expected = {
    "samples": len(placed), "skipped": len(left_out), "bins": len(full), "fillers": len(bins) - len(full),
    "micro_steps": len(steps), "capacity_tokens": len(bins) * capacity, "padded_tokens": padded,
    "actual_tokens": actual, "longest": max((length[i] for i in placed), default=0), "over_budget": 0,
    "cost": all_cost, "cost_shift": 0, "time_micro_step": time_step, "time_update": time_update,
    "time": time_step if o["sync"] == "micro-step" else time_update, "tokens_moved": moved,
    "fill": ratio(actual, len(bins) * capacity, 0), "padding": ratio(padded - actual, padded, 0),
    "idle_micro_step": 1 - ratio(all_cost, time_step * o["dp"], 1),
    "idle_update": 1 - ratio(all_cost, time_update * o["dp"], 1),
    "slowdown": ratio(time_step * o["dp"], all_cost, 1),
    "imbalance": max((ratio(max(t) * o["dp"], sum(t), 1) for t in totals.values()), default=1),
}
for name, want in expected.items():
    same("stats." + name, stats[name], want)
volume = -(-sum(up(length[i], align) for i in placed) // capacity)
if not volume <= stats["bins_lower_bound"] <= max(len(full), 1):
    fail(f"the lower bound of bins is {stats['bins_lower_bound']}: {volume} by volume, {len(full)} bins")
if not stats["micro_steps_lower_bound"] <= len(steps):
    fail("the lower bound of micro-steps is above the micro-steps")
if not stats["time_lower_bound"] <= stats["time"]:
    fail("the lower bound of time is above the time")
print("ok")
