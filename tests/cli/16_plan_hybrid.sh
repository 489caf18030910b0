# Hybrid context parallelism and costs from measurement, from outside.
. tests/cli/lib.sh
need_python "hybrid plans, recounted"
P="$RAVEL plan"
"$PYTHON" - "$T" <<'END'
import json, random, sys
random.seed(5)
with open(sys.argv[1] + "/l.csv", "w") as f:
    f.write("length\n" + "\n".join(str(random.choice([100, 700, 3000, 20000])) for _ in range(200)) + "\n")
with open(sys.argv[1] + "/m.jsonl", "w") as f:
    for i in range(60):
        lengths = [random.randint(100, 8000) for _ in range(1 + i % 9)]
        width, price = [(1, 0), (2, .05), (4, .12)][i % 3]
        seconds = (3e-6 * sum(lengths) + 2e-10 * sum(x * x for x in lengths)) / width * (1 + price) + .004
        f.write(json.dumps({"lengths": lengths, "width": width, "seconds": seconds}) + "\n")
END
code "a pool" 0 $P --lengths "$T/l.csv" --budget 4k --cp-pool 16 --json "$T/p.json" --svg "$T/p.svg" --html "$T/p.html"
says out "a pool of 16 ranks" "of width 8" "x the canonical bound"
"$PYTHON" - "$T" >"$T/recount" 2>&1 <<'END' && ok "the JSON's groups, recounted" || bad "the JSON's groups" "$(cat "$T/recount")"
import json, sys
p = json.load(open(sys.argv[1] + "/p.json"))
h, lengths = p["hybrid"], [int(x) for x in open(sys.argv[1] + "/l.csv").read().split()[1:]]
seen = []
for s in range(len(h["group_offsets"]) - 1):
    ranks = []
    for g in range(h["group_offsets"][s], h["group_offsets"][s + 1]):
        first, width = h["group_first"][g], h["group_width"][g]
        samples = h["samples"][h["group_sample_offsets"][g]:h["group_sample_offsets"][g + 1]]
        assert first % width == 0 and sum(-(-lengths[i] // (2 * width)) * 2 * width for i in samples) <= width * 4096
        ranks += range(first, first + width)
        seen += samples
    assert len(ranks) == len(set(ranks)) and max(ranks) < 16
assert sorted(seen) == list(range(len(lengths)))
assert p["stats"]["time"] >= h["bounds"]["canonical"] == p["stats"]["time_lower_bound"]
END
grep -q 'class="rv-group"' "$T/p.svg" && ok "the picture has boxes" || bad "the picture has no boxes"
"$PYTHON" - "$T" >"$T/drawn" 2>&1 <<'END' && ok "the page's groups are the plan's" || bad "the page's groups" "$(cat "$T/drawn")"
import json, re, sys
h = json.load(open(sys.argv[1] + "/p.json"))["hybrid"]
page = json.loads(re.search(r'id="data">(.*?)</script>', open(sys.argv[1] + "/p.html").read(), re.S).group(1))
for s in range(page["steps"]):
    for g in range(h["group_offsets"][s], h["group_offsets"][s + 1]):
        for rank in range(h["group_first"][g], h["group_first"][g] + h["group_width"][g]):
            bin = 16 * s + rank
            assert page["group_first"][bin] == h["group_first"][g] and page["group_width"][bin] == h["group_width"][g]
assert page["multiples"]["8"] == 16 and page["multiples"]["1"] == 1
END
if [ -z "${SKIP_BROWSER:-}" ] && command -v chromium >/dev/null 2>&1; then
    sh tests/browser.sh "$T" --enable-logging=stderr --virtual-time-budget=4000 --dump-dom \
        "file://$T/p.html" >"$T/dom.html" 2>"$T/console"
    grep -q 'data-ready="yes"' "$T/dom.html" && ! grep -q CONSOLE "$T/console" && ok "the page is drawn" || bad "the page is not drawn" "$(grep CONSOLE "$T/console")"
fi
refuses "widths that do not divide" 2 "each a divisor of the next" $P --lengths "$T/l.csv" --budget 4k --cp-pool 16 --cp-widths 1,3,4
refuses "a pool and cp" 2 "cp must then be 1" $P --lengths "$T/l.csv" --budget 4k --cp-pool 16 --cp 2
code "a fit" 0 $P --fit "$T/m.jsonl" --json "$T/cost.json"
says out "60 measurements" "width 2: 50 per mille" "width 4: 120 per mille"
code "a plan by the fit" 0 $P --lengths "$T/l.csv" --budget 4k --cp-pool 16 --cp-widths 1,2,4 --cost "$T/cost.json" --oversize skip
says out "per micro-step"
"$PYTHON" - "$T" <<'END'
import json, random, sys
random.seed(3)
with open(sys.argv[1] + "/rows.jsonl", "w") as f:
    for i in range(100):
        f.write(json.dumps({"input_ids": [random.randrange(60) for _ in range(random.choice([8, 16, 60, 200, 400]))]}) + "\n")
END
code "a training run" 0 timeout 200 "$RAVEL" train sft --data "$T/rows.jsonl" --steps 12 --batch 6 --vocab 300 --hidden 32 --layers 2 \
    --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 512 --quiet --sinks jsonl --ranks 2 --run "$T/run"
"$PYTHON" - "$T/run/metrics.jsonl" <<'END' # times of a machine without other jobs
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    if "time/forward_max_sec" in row:
        seconds = 1e-5 * row["tokens/actual"] + 1e-8 * row["tokens/squares"] + 1e-3 * row["batch/micro_steps"]
        row["time/forward_max_sec"], row["time/backward_max_sec"] = seconds / 3, seconds * 2 / 3
open(sys.argv[1], "w").writelines(json.dumps(row) + "\n" for row in rows)
END
code "a fit of the run" 0 $P --fit "$T/run" --json "$T/run.json"
says out "11 measurements" "us per micro-step"
code "a plan by the run's costs" 0 $P --lengths "$T/l.csv" --budget 32k --dp 4 --cost "$T/run.json"
"$PYTHON" - "$T" >"$T/share" 2>&1 <<'END' && ok "the run's rows are read as each rank's share" || bad "the run's rows" "$(cat "$T/share")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/run/metrics.jsonl")]
with open(sys.argv[1] + "/same.jsonl", "w") as f:
    for row in rows:
        if row["step"] > 1 and "tokens/actual" in row:
            ranks = (row["batch/bins"] + row["batch/fillers"]) / row["batch/micro_steps"]
            assert ranks == 2 and row["tokens/squares"] >= row["tokens/actual"]
            f.write(json.dumps({"tokens": row["tokens/actual"] / 2, "squares": row["tokens/squares"] / 2,
                                "micro_steps": row["batch/micro_steps"],
                                "seconds": row["time/forward_max_sec"] + row["time/backward_max_sec"]}) + "\n")
END
code "the same by hand" 0 $P --fit "$T/same.jsonl" --json "$T/same.json"
cmp -s "$T/run.json" "$T/same.json" && ok "both fits are the same" || bad "the fits differ" "$(cat "$T/run.json" "$T/same.json")"
refuses "a fit of nothing" 1 "at least 4" $P --fit /dev/null
echo '{"tokens": 5, "seconds": 1}' >"$T/no.jsonl"
refuses "a fit without squares" 1 "no \"lengths\"" $P --fit "$T/no.jsonl"
code "a sweep over prices" 0 $P --lengths "$T/l.csv" --budget 32k --cp-pool 4 --cp-widths 1,2 --sweep cp-price=2:30,2:50 --json "$T/prices.json"
"$PYTHON" -c 'import json, sys; assert [r["cp_price"] for r in json.load(open(sys.argv[1]))["sweep"]] == ["2:30", "2:50"]' "$T/prices.json" && ok "its JSON has the prices as texts" || bad "the JSON of a sweep over prices"
code "a page of a table" 0 $P --lengths "$T/l.csv" --budget 32k --compare --html "$T/t.html"
grep -q "<th>speed<.th>" "$T/t.html" && ok "the page has the table" || bad "the page has no table"
finish
