# Samples that share prefixes: --tree, from outside.
. tests/cli/lib.sh
P="$RAVEL plan"
code "paths" 0 $P --tree examples/rollouts.jsonl --budget 16k --dp 8 --cost 24576:1 --json "$T/p.json" --html "$T/p.html" --svg "$T/p.svg" --csv "$T/p.csv"
says out "96 samples" "tokens are computed again, because bins cut trees" "over budget                  0"
"$PYTHON" - "$T" >"$T/recount" 2>&1 <<'PY' && ok "the JSON, recounted from the paths" || bad "the JSON, recounted from the paths" "$(cat "$T/recount")"
import json, sys
p = json.load(open(sys.argv[1] + "/p.json"))
paths = [json.loads(line)["path"] for line in open("examples/rollouts.jsonl")]
cost = lambda n: 24576 * n + n * n
seen = []
for b in p["bins"]:
    nodes, total, before = {}, 0, []
    for s, shared in zip(b["samples"], b["shared"]):
        depth = 0
        for node, tokens in paths[s]:
            if node not in nodes:
                total += cost(depth + tokens) - cost(depth)
            nodes[node] = tokens
            depth += tokens
        common = 0
        for (x, n), (y, _) in zip(paths[s], before):
            if x != y:
                break
            common += n
        assert common == shared, (s, common, shared)
        before = paths[s]
    assert b["tokens"] == sum(nodes.values()) <= 16384 and b["cost"] == total
    seen += b["samples"]
assert sorted(seen) == list(range(len(paths)))
s = p["stats"]
assert s["flat_tokens"] == sum(n for path in paths for _, n in path)
assert s["unique_tokens"] == sum({v: n for path in paths for v, n in path}.values())
assert s["actual_tokens"] == sum(b["tokens"] for b in p["bins"]) and len(p["bins"]) % 8 == 0
PY
grep -q '"shared":\[' "$T/p.html" && ok "the page has what is shared" || bad "the page has what is shared"
grep -q 'class="rv-shared" d="M' "$T/p.svg" && ok "the picture draws it" || bad "the picture draws it"
code "a comparison" 0 $P --tree examples/rollouts.jsonl --budget 16k --dp 8 --cost 24576:1 --compare
says out "tree groups" "tree first-fit" "tree cut" "shared"
printf '[1,2,3]\n\n{"input_ids":[1,2,4,5],"group":1}\n[1,2]\n' >"$T/ids.jsonl"
code "token ids" 0 $P --tree "$T/ids.jsonl" --budget 8 --json "$T/i.json"
"$PYTHON" -c "
import json
b = json.load(open('$T/i.json'))['bins'][0]
assert b['samples'] == [0, 1, 2] and b['shared'] == [0, 2, 2] and b['tokens'] == 5, b" && ok "ids are compared" || bad "ids are compared"
printf '{"path":[[0,5],[1,2]]}\n{"path":[[0,6],[2,2]]}\n' >"$T/two.jsonl"
refuses "a node of two lengths" 1 "node 0 has 6 tokens in row 1 and 5 in row 0" $P --tree "$T/two.jsonl" --budget 16
printf '{"path":[[0,5]]}\n[1,2]\n' >"$T/mixed.jsonl"
refuses "paths and ids" 1 "mixed.jsonl:2: paths and ids in one file" $P --tree "$T/mixed.jsonl" --budget 16
printf '[1]\n{"path":[[0]]}\n' >"$T/short.jsonl"
refuses "a broken path" 1 "short.jsonl:2" $P --tree "$T/short.jsonl" --budget 16
printf '\n' >"$T/none.jsonl"
refuses "no rows" 1 "has no rows" $P --tree "$T/none.jsonl" --budget 16
refuses "a sample over the budget" 1 "ids.jsonl:3 (4 tokens)" $P --tree "$T/ids.jsonl" --budget 2
refuses "two inputs" 2 "not both" $P --tree "$T/ids.jsonl" --mock '{}' --budget 16
refuses "own costs" 2 "--costs is for --lengths" $P --tree "$T/ids.jsonl" --costs x --budget 16
refuses "the padded layout" 2 "set layout to packed" $P --tree "$T/ids.jsonl" --budget 16 --layout padded
finish
