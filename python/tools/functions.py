"""Every public C function with its Python name, or the reason why it has none.

    python3 python/tools/functions.py            the whole list
    python3 python/tools/functions.py --check    exit 1 if a function has neither, or a reason is for nothing

A Python name is where the package calls the function; option tables and defaults are reached through the keywords.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "ravel"

REASONS = {  # pattern of names: why Python has no function of its own
    r"status_name|error_\w+|suggest|choice_\w+|options?_(find|format|check|default|from_json)|\w+_option_table|\w+_options_default":
        "statuses are exceptions, options are keywords (ravel.plan_options() and the like list them)",
    r"comm_i\w+|comm_isend|comm_irecv|request_\w+|comm_reduce_scatterv|comm_neighbours":
        "calls release the GIL: use a thread; the blocking call is there",
    r"comm_(threads|tcp|auto_kind|local_rank|nccl_find)|module_\w+|comm_self_\w+":
        "ravel.comm.world, self, threads and nccl choose; `python -m ravel` says which modules are there",
    r"agree|share|exchange_cut\w*|meta_\w+|collector_(add_packed|inserted)|order_\w+":
        "steps between gathering and packing that Feed composes; gather, exchange, compare and share are there",
    r"micro_ragged|feed_(bound|device|find|iter_next|iterate)":
        "Update and MicroBatch iterate and name fields; tensors go to the device with device=",
    r"counts_(sample|sum)|weights_(check|sample|total)|cp_(check|index|work)|ragged_find|thd_\w+|padded_\w+":
        "over whole batches: ravel.counts, weights, cp_shard, pack and pad",
    r"dtype_\w+|device_\w+|event_\w+|stream_\w+|gpu_name":
        "memory, dtypes and streams: numpy's, torch's and DLPack's",
    r"cost_(fit_\w+|from_passes|read)|lengths_merge|flops_(count|format|real)|pipeline_bubble|plan_bubble|plan_cp_price|method_\w+":
        "for programs that print or fit; ravel plan --fit writes a cost that cost= takes",
    r"plan_(group|widths|workspace)":
        "Plan has the arrays and pickles",
    r"chat_\w+|tokenizer_(bytes|chat_template|file|id)": "Tokenizer encodes, decodes and renders whole texts",
    r"mesh_(group_count|group_of|index_in|world)|metric_find|metrics_get|metrics_sink|metrics_report|mock_\w+":
        "Layout.groups, Metrics[name], Metrics.sink with every=, and ravel.mock",
    r"policy_\w+|publisher_\w+|puller_\w+|refit_\w+|safetensors_\w+": "whole calls: ravel.policy, Publisher, Puller, Refit, safetensors",
    r"tree_\w+": "parts of TreeBatch and plan(shared=)",
}


def public():
    headers = "\n".join(path.read_text() for path in sorted((ROOT / "include" / "ravel").glob("*.h")))
    return sorted(set(re.findall(r"RAVEL_API[^;(]*?\bravel_(\w+)\(", headers)))


def used():
    """name -> the Python functions that call it."""
    found = {}

    def walk(node, inside, module):
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            walk(child, [*inside, child.name] if named else inside, module)
            text = child.attr if isinstance(child, ast.Attribute) else child.value if isinstance(child, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"ravel_\w+", text):
                found.setdefault(text[len("ravel_"):], []).append(".".join([module, *inside]))

    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "_abi.py":
            walk(ast.parse(path.read_text()), [], "ravel." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    return found


def main():
    names, calls, spare = public(), used(), set(REASONS)
    missing = []
    for name in names:
        why = next((pattern for pattern in REASONS if re.fullmatch(pattern, name)), None)
        if name in calls:
            line = ", ".join(dict.fromkeys(calls[name]))
        elif why:
            spare.discard(why)
            line = f"none: {REASONS[why]}"
        else:
            missing.append(name)
            line = "NOTHING"
        if "--check" not in sys.argv:
            print(f"ravel_{name:38} {line}")
    for name in missing:
        print(f"ravel_{name} has no Python name; bind it, or say in python/tools/functions.py why there is none")
    for pattern in sorted(spare):
        print(f"python/tools/functions.py has a reason for {pattern}, which no function needs")
    return 1 if missing or spare else 0


if __name__ == "__main__":
    sys.exit(main())
