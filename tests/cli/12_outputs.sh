# Summary, tables, CSV, files that appear whole or not at all, pipes that close.
. tests/cli/lib.sh
P="$RAVEL plan --mock {\"max_seq_len\":8192} --mock-count 2000"
code "summary" 0 $P --budget 16k --dp 16 --cost 24576:1
says out "2,000 samples" "lognormal mock" "16 ranks x 16,384 tokens" "lower bound" "predicted time" "over budget" "digest"
code "compare" 0 $P --budget 16k --dp 8 --compare --csv "$T/compare.csv" --json "$T/compare.json"
says out "method" "next-fit-decreasing" "as-is" "* the best of its column"
[ "$(wc -l <"$T/compare.csv")" = 11 ] && ok "a row for each method" || bad "rows of compare.csv" "$(cat "$T/compare.csv")"
code "sweep" 0 $P --sweep budget=2k,8k,16k dp=8,64 --csv "$T/sweep.csv" --json "$T/sweep.json"
says out "budget" "fit no bin of 2,048 tokens" "16k"
[ "$(wc -l <"$T/sweep.csv")" = 7 ] && ok "a row for each combination" || bad "rows of sweep.csv" "$(cat "$T/sweep.csv")"
name="a sweep's budget that is too small is a row with a reason"
grep -q '^2048,8,.*"[0-9,]* of 2,000 samples fit no bin of 2,048 tokens' "$T/sweep.csv" && ok "$name" || bad "$name" "$(cat "$T/sweep.csv")"
code "a sweep over words and costs" 0 $P --budget 16k --sweep method=ffd,kk sync=micro-step,update cost=tokens,24576:1
code "the bubble of a pipeline" 0 $P --budget 16k --dp 4 --sync pipeline --multiple 4 --pp 4 --vpp 2
says out "bubble" "pp 4, vpp 2"
refuses "an interleaved schedule without the multiple" 2 "needs a multiple of pp" $P --budget 16k --dp 4 --pp 1024 --vpp 2
code "two sweeps are one table" 0 $P --sweep budget=8k,16k --sweep dp=2,4 --csv "$T/two.csv"
[ "$(wc -l <"$T/two.csv")" = 5 ] && ok "a row for each combination of both" || bad "rows of two.csv" "$(cat "$T/two.csv")"
echo '{"ravel_cost": 1, "linear": 4096000, "quadratic": 40, "overhead": 9, "cp_price": "2:30"}' >"$T/fit.json"
code "a sweep over costs" 0 $P --budget 16k --sweep cost=tokens,"$T/fit.json" --csv "$T/costs.csv"
[ "$(cut -d, -f10 "$T/costs.csv" | tail -n 2 | sort -u)" = 1 ] && ok "speeds of different costs are not compared" || bad "speeds of costs" "$(cat "$T/costs.csv")"
for n in 100 200 400 800 1600; do echo "{\"lengths\": [$n], \"seconds\": ${n}e-4}"; done >"$T/times.jsonl"
cp "$T/times.jsonl" "$T/wrong.jsonl"
printf '{"lengths": [12, 3' >>"$T/times.jsonl"
printf '{"lengths": [12, x]}\n' >>"$T/wrong.jsonl"
code "a fit of a run that is still going" 0 "$RAVEL" plan --fit "$T/times.jsonl"
says out "5 measurements"
refuses "a fit's wrong line" 1 "wrong.jsonl, line 6: " "$RAVEL" plan --fit "$T/wrong.jsonl"
awk 'BEGIN { for (i = 1; i <= 40; i++) printf "{\"lengths\": [%d], \"seconds\": %g}\n", 100 * i, (i % 5 == 0 ? 1 : i % 7 * 3 + 2) * i }' >"$T/noise.jsonl"
refuses "a fit of measurements that do not agree" 1 "are more than 25 % off the best cost model" "$RAVEL" plan --fit "$T/noise.jsonl" --json "$T/noise.json"
[ ! -e "$T/noise.json" ] && ok "... writes no cost" || bad "a fit that was refused left a file"
refuses "a sweep in which nothing fits" 1 "2,000 of 2,000 samples fit no bin of 16 tokens" $P --sweep budget=16,32 --quiet
if [ -n "$PYTHON" ]; then
    $PYTHON - "$T" <<'PY' && ok "the tables' JSON and CSV agree" || bad "the tables' JSON and CSV agree"
import csv, json, sys
t = sys.argv[1]
for name, keys in (("compare", ["method"]), ("sweep", ["budget", "dp"])):
    j = json.load(open(f"{t}/{name}.json"))
    c = list(csv.DictReader(open(f"{t}/{name}.csv")))
    assert j["version"] == 1 and len(j[name]) == len(c)
    for a, b in zip(j[name], c):
        assert all(str(a[k]) == b[k] for k in keys), (a, b)
        if "error" in a:
            assert a["error"] == b["error"]
            continue
        s = a["stats"]
        assert s["bins_packed"] == int(b["bins_packed"]) <= s["bins"] == int(b["bins"]) and s["micro_steps"] == int(b["micro_steps"]) and s["over_budget"] == 0
        assert abs(s["idle_micro_step"] - float(b["idle"])) < 1e-8
    rows = [r for r in j[name] if "error" not in r] # predicted tokens per second and rank, relative to the best row
    speed = [r["stats"]["actual_tokens"] / (r["stats"]["time"] * 2.0 ** r["stats"]["cost_shift"] * r.get("dp", 8)) for r in rows]
    assert all(abs(r["relative_speed"] - x / max(speed)) < 1e-5 for r, x in zip(rows, speed)) and len(set(speed)) > 1
    printed = [float(r["relative_speed"]) for r in c if "error" not in r or not r["error"]]
    assert len(printed) == len(rows) and all(abs(r["relative_speed"] - x) < 1e-3 for r, x in zip(rows, printed))
best = {r["method"]: r for r in csv.DictReader(open(t + "/compare.csv"))}
assert int(best["ravel"]["bins"]) <= min(int(r["bins"]) for r in best.values())
PY
    $P --budget 16k --dp 16 --json "$T/p.json" --csv "$T/p.csv" --quiet
    $PYTHON - "$T" <<'PY' && ok "the plan's JSON and CSV agree" || bad "the plan's JSON and CSV agree"
import csv, json, sys
t = sys.argv[1]
j, c = json.load(open(t + "/p.json")), list(csv.DictReader(open(t + "/p.csv")))
assert len(j["bins"]) == len(c)
for a, b in zip(j["bins"], c):
    for k in ("update", "micro_step", "rank", "tokens", "slot_tokens", "cost"): assert str(a[k]) == b[k]
    assert b["sample_ids"] == " ".join(map(str, a["samples"])) and b["samples"] == str(len(a["samples"])) and b["filler"] == str(int(a["filler"]))
PY
fi

# Which budget? The rows that fail name file and line; the advice counts memory, and the price of cp.
awk 'BEGIN { for (i = 0; i < 600; i++) print 200 + i * 7919 % 3000; print 5000 }' >"$T/l.csv"
S="$RAVEL plan --lengths $T/l.csv --dp 4"
code "a sweep over budgets" 0 $S --sweep budget=4k,8k,16k
says out "1 of 601 samples fit no bin of 4,096 tokens (the longest has 5,000): $T/l.csv:601 (5,000 tokens)" \
    "--budget 8k: the smallest within 1 % of the fastest" "1 row has no plan" "A micro-step by itself costs nothing here"
code "the memory of a model" 0 $S --sweep budget=1k,2k,8k,32k --oversize skip --shape qwen3-0.6b --recompute full --csv "$T/shape.csv" --json "$T/shape.json"
says out "memory" "GiB per rank: the least memory within 1 % of the fastest" "Memory per rank of ravel train: qwen3-0.6b, kernels cpu, recompute full, shard none."
grep -q "costs nothing" "$T/out" && bad "a model's micro-steps cost something" || ok "a model's micro-steps cost something"
code "a limit of memory" 0 $S --sweep budget=8k,32k cp=1,2 --shape qwen3-0.6b --memory 30G
says out "2 rows need more than 30.0 GiB"
code "a limit that no row keeps" 0 $S --sweep budget=8k,32k --shape qwen3-0.6b --memory 1G
says out "none; 2 rows need more than 1.0 GiB; the least is" "--budget 32k does not fit with --shard params, --recompute full and --tp 8 either"
code "the sweep of --help" 0 $S --sweep budget=8k,16k,32k --shape qwen3-8b --memory 80G --html "$T/none.html"
says out "--budget 8k fits with --shard params --recompute full: " "--budget 32k fits with --shard params --recompute full: "
grep -q '<p class=bad>none; ' "$T/none.html" && grep -q '<p>  --budget 8k fits with' "$T/none.html" && ok "... and its page" || bad "... and its page"
code "a sweep over cp alone" 0 $S --budget 8k --sweep cp=1,2 --shape qwen3-0.6b --html "$T/cp.html"
says out "--cp 1, " " <-"
[ "$(grep -c '<tr class=taken>' "$T/cp.html")" = 1 ] && ok "the page marks the row to take" || bad "the page marks the row to take"
code "the price of cp" 0 $S --sweep budget=8k cp=1,2 --cp-price 2:250 --cost tokens --csv "$T/cp.csv"
says out "--budget 8k --cp 1: the smallest within 1 %"
refuses "a price that lacks a width" 2 'cp-price "2:250" has no price of width 4' $S --budget 8k --sweep cp=4 --cp-price 2:250 --quiet
refuses "a memory without a model" 2 "give it too" $S --budget 8k --memory 8G
refuses "a shape that is not known" 2 'did you mean qwen3-8b' $S --budget 8k --shape qwen3-8
if [ -n "$PYTHON" ]; then
    $PYTHON - "$T" <<'PY' && ok "memory is in CSV and JSON, and grows with the budget; cp 2 is slower by its price" || bad "memory in CSV and JSON, price of cp"
import csv, json, sys
t = sys.argv[1]
rows, plans = list(csv.DictReader(open(t + "/shape.csv"))), json.load(open(t + "/shape.json"))["sweep"]
memory = [int(r["memory_bytes"]) for r in rows]
assert memory == [p["memory_bytes"] for p in plans] and memory == sorted(memory) and memory[0] < memory[-1]
one, two = (float(r["relative_speed"]) for r in csv.DictReader(open(t + "/cp.csv")))
assert one == 1 and 0.78 < two < 0.802, (one, two)
PY
fi
code "a plan that a rank's memory is too small for" 0 $S --budget 32k --shape qwen3-0.6b --memory 30G
says err "WARNING: a rank needs" "over --memory 30.0 GiB; it needs" "with --"
code "a plan of a model" 0 $S --budget 8k --shape qwen3-0.6b
says out "memory" "per rank of ravel train: qwen3-0.6b" "per micro-step"

# oversize samples are loud
printf '100\n9000\n200\n9001\n' >"$T/big.csv"
code "skip" 0 "$RAVEL" plan --lengths "$T/big.csv" --budget 8k --oversize skip --json "$T/skip.json"
says err "WARNING: 2 of 4 samples fit no bin of 8,192 tokens (the longest has 9,001) and were left out: $T/big.csv:2 (9,000 tokens), $T/big.csv:4 (9,001 tokens)"
says out "2 samples planned, 300 tokens, longest 200; 2 left out (18,001 tokens, longest 9,001)"
code "skip in a table" 0 "$RAVEL" plan --lengths "$T/big.csv" --budget 8k --oversize skip --compare
says out "left out"
grep -q '"skipped_samples":\[1,3\]' "$T/skip.json" && ok "skipped samples are in the JSON" || bad "skipped samples are in the JSON"
grep -q 'WARNING' "$T/out" && bad "the warning is on stdout" || ok "the warning is on stderr only"

# files
code "a full disk" 1 $P --budget 16k --json /dev/full
says err "/dev/full: writing failed: No space left"
code "a full standard output" 1 sh -c "$RAVEL plan --mock '{}' --budget 16k --json - >/dev/full"
says err "standard output: writing failed: No space left"
code "a full disk for the summary" 1 sh -c "$RAVEL plan --mock '{}' --budget 16k >/dev/full"
says err "standard output: writing failed: No space left"
for what in "plan --help" "--help" "help" "help plan" "--version" "report --help"; do code "a full disk for $what" 1 sh -c "$RAVEL $what >/dev/full"; done
code "no such folder" 1 $P --budget 16k --json "$T/none/x.json"
says err "cannot write it: No such file"
echo old >"$T/keep.json"
code "a plan that fails leaves the old file" 1 "$RAVEL" plan --lengths "$T/big.csv" --budget 8k --json "$T/keep.json"
[ "$(cat "$T/keep.json")" = old ] && ok "the old file is as it was" || bad "the old file is as it was"
code "a plan that works replaces it" 0 $P --budget 16k --json "$T/keep.json" --quiet
[ -s "$T/out" ] && bad "--quiet printed something" || ok "--quiet is quiet"
left=$(ls "$T" | grep tmp)
[ -z "$left" ] && ok "no temporary files are left" || bad "temporary files are left" "$left"

# nothing is destroyed: inputs, two outputs of one name, links, devices, pipes
cp "$T/big.csv" "$T/in.csv"; ln "$T/in.csv" "$T/hard.csv"; ln -s in.csv "$T/soft.csv"
for name in in hard soft; do
    refuses "an output over its input ($name)" 2 "would write over a file that is read" "$RAVEL" plan --lengths "$T/in.csv" --budget 16k --json "$T/$name.csv"
done
cmp -s "$T/in.csv" "$T/big.csv" && ok "the input is as it was" || bad "the input is as it was"
refuses "two outputs of one name" 2 "would write the same file" $P --budget 16k --json "$T/same" --html "$T/../$(basename "$T")/same"
[ -e "$T/same" ] && bad "... and nothing was written" || ok "... and nothing was written"
echo old >"$T/real.json"; ln -s real.json "$T/link.json"; ln -s none.json "$T/dangling.json"
code "a symbolic link" 0 $P --budget 16k --json "$T/link.json" --csv "$T/dangling.json" --quiet
[ -L "$T/link.json" ] && grep -q version "$T/real.json" && ok "... stays, and its target is written" || bad "... stays, and its target is written"
[ -L "$T/dangling.json" ] && [ -s "$T/none.json" ] && ok "... also where the target is new" || bad "... also where the target is new"
mkfifo "$T/fifo"; cat "$T/fifo" >"$T/through" & reader=$!
code "a named pipe" 0 $P --budget 16k --json "$T/fifo" --quiet
wait $reader
[ -p "$T/fifo" ] && grep -q version "$T/through" && ok "... is written to" || bad "... is written to"
code "a device" 0 $P --budget 16k --json /dev/null --quiet
[ -c /dev/null ] && ok "... is still one" || bad "/dev/null is no device any more"
refuses "a folder" 1 "is a folder, not a file" $P --budget 16k --json "$T" --quiet
printf '{"input_ids": [1, 2, 3]}\n' >"$T/rows.jsonl"
refuses "feed over its input" 2 "would write over a file that is read" "$RAVEL" feed --data "$T/rows.jsonl" --budget 16 --json "$T/rows.jsonl"
refuses "tokenize over its input" 2 "would write over a file that is read" "$RAVEL" tokenize tests/golden/text/qwen "$T/rows.jsonl" --field x --out "$T/rows.jsonl"
mkdir "$T/run"; echo '{"step": 1, "train/loss": 2}' >"$T/run/metrics.jsonl"
refuses "report over its input" 2 "would write over a file that is read" "$RAVEL" report "$T/run" --html "$T/run/metrics.jsonl"
code "report into the run's folder" 0 "$RAVEL" report "$T/run" --html "$T/run/report.html" --quiet
code "... again" 0 "$RAVEL" report "$T/run" --html "$T/run/report.html" --quiet

# interrupted while a file is half-way: what it was stays, and nothing is left beside it
for signal in INT TERM HUP; do
    echo old >"$T/cut.json"
    name="SIG$signal while writing"
    if [ -z "$PYTHON" ]; then skip "$name"; continue; fi
    said=$($PYTHON $HERE/interrupt.py "$signal" "$T/cut.json" "$RAVEL" 2>&1) && ok "$name" || bad "$name" "$said"
done

# what somebody has put where the temporary file would be is not written to: the shell and the command it becomes have one number
sh -c 'echo precious >"$1.mine"; ln -s "$1.mine" "$1.tmp.$$.0"; exec "$2" plan --mock "{}" --mock-count 100 --budget 16k --quiet --json "$1"' - "$T/planted.json" "$RAVEL" >"$T/out" 2>"$T/err"
[ "$(cat "$T/planted.json.mine")" = precious ] && grep -q '"bins"' "$T/planted.json" && ok "a link at the temporary name" || bad "a link at the temporary name" "$(cat "$T/err")"

# pipes that close early: no crash, no message, and files that were asked for are still written
for what in json csv html svg; do
    { "$RAVEL" plan --mock '{}' --mock-count 50000 --budget 16k --dp 8 --$what - 2>"$T/err"; echo $? >"$T/code"; } | head -c 100 >/dev/null
    [ "$(cat "$T/code")" = 0 ] && [ ! -s "$T/err" ] && ok "--$what to a pipe that closes" || bad "--$what to a pipe that closes: $(cat "$T/code")" "$(cat "$T/err")"
done
{ $P --budget 16k --html "$T/pipe.html" 2>"$T/err"; echo $? >"$T/code"; } | true
[ "$(cat "$T/code")" = 0 ] && tail -n 1 "$T/pipe.html" | grep -q '</html>' && ok "the page is whole though nobody read the summary" || bad "the page though nobody read" "$(cat "$T/err")"

# progress: on a terminal, after a second
if [ -n "$PYTHON" ]; then
    said=$($PYTHON $HERE/progress.py "$RAVEL" xterm 2>&1) && ok "a slow pipe shows progress on a terminal" || bad "a slow pipe shows progress on a terminal" "$said"
    said=$($PYTHON $HERE/progress.py "$RAVEL" dumb 2>&1) && ok "no escapes where TERM=dumb" || bad "no escapes where TERM=dumb" "$said"
fi
finish
