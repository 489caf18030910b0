# The JSON of many plans, each recounted by a program that shares nothing with the library.
. tests/cli/lib.sh
need_python recounting
$PYTHON - "$T" <<'P'
import random, sys
r = random.Random(7)
t = sys.argv[1]
n = 500
with open(t + "/one.csv", "w") as f:
    f.write("length\n" + "".join(f"{min(8192, int(r.lognormvariate(7.6, 1.1)) + 1)}\n" for _ in range(n)))
with open(t + "/two.csv", "w") as f:
    f.write("prompt_len,response_len\n" + "".join(f"{r.randint(0, 900)},{r.randint(1, 3000)}\n" for _ in range(n)))
with open(t + "/home.csv", "w") as f: f.write("".join(f"{r.randint(-1, 7)}\n" for _ in range(n)))
with open(t + "/group.csv", "w") as f: f.write("".join(f"{i // 8 * 1000 - 5000}\n" for i in range(n)))
with open(t + "/update.csv", "w") as f: f.write("".join(f"{r.randint(0, 2)}\n" for _ in range(n)))
with open(t + "/cost.csv", "w") as f: f.write("".join(f"{r.randint(0, 10**9)}\n" for _ in range(n)))
P
# recount NAME LENGTHS "EXTRA" OPTIONS...
recount() {
    name=$1 lengths=$2 extra=$3; shift 3
    if ! "$RAVEL" plan --lengths "$lengths" --json "$T/plan.json" --quiet "$@" >"$T/out" 2>"$T/err"; then
        bad "$name: ravel failed" "$(cat "$T/err")"; return
    fi
    $PYTHON -m json.tool "$T/plan.json" >/dev/null 2>"$T/err" || { bad "$name: not JSON" "$(cat "$T/err")"; return; }
    # shellcheck disable=SC2086
    said=$($PYTHON $HERE/recount.py "$T/plan.json" "$lengths" $extra 2>&1) && ok "$name" || bad "$name" "$said"
}
for method in ravel next-fit next-fit-decreasing ffd bfd mffd kk lpt count as-is; do
    recount "method $method" "$T/one.csv" "" --budget 16384 --dp 8 --cost 24576:1 --method $method --count 3
done
recount "method count without a budget" "$T/one.csv" "" --dp 8 --cost 24576:1 --method count --count 3 --align 16
recount "... in rectangles" "$T/two.csv" "" --dp 8 --method count --count 3 --layout padded-2d
for sync in micro-step update pipeline; do
    recount "sync $sync" "$T/one.csv" "" --budget 16k --dp 4 --cost 24576:1:1000000 --sync $sync --multiple 4 --min-micro-steps 3
done
for layout in packed padded padded-2d; do
    recount "layout $layout" "$T/two.csv" "" --budget 8k --dp 4 --cost 1000:1 --layout $layout --align 16
    recount "layout $layout, several updates" "$T/two.csv" "" --budget 16k --dp 3 --layout $layout --updates 5 --max-samples 6
done
for effort in fast default max; do
    recount "effort $effort" "$T/one.csv" "" --budget 16k --dp 16 --cost 24576:1 --effort $effort
done
recount "cp and align" "$T/one.csv" "" --budget 4k --cp 4 --align 8 --dp 8
recount "more ranks than samples" "$T/one.csv" "" --budget 16k --dp 1000
recount "samples per update" "$T/one.csv" "" --budget 16k --dp 2 --samples-per-update 77
recount "shuffled updates" "$T/one.csv" "" --budget 16k --dp 2 --updates 7 --shuffle --seed 3
recount "oversize skip" "$T/one.csv" "" --budget 2k --dp 4 --oversize skip
recount "everything skipped but one" "$T/one.csv" "" --budget 40 --dp 2 --oversize skip --align 2
recount "home" "$T/one.csv" "home=$T/home.csv" --budget 16k --dp 8 --home "$T/home.csv"
recount "groups in an update" "$T/one.csv" "groups=$T/group.csv" --budget 16k --dp 4 --updates 6 --groups "$T/group.csv"
recount "groups on a rank" "$T/one.csv" "groups=$T/group.csv" --budget 16k --dp 4 --updates 3 --groups "$T/group.csv" --group-rule rank
recount "update ids" "$T/one.csv" "update_ids=$T/update.csv" --budget 16k --dp 4 --update-ids "$T/update.csv"
recount "own costs" "$T/one.csv" "costs=$T/cost.csv" --budget 16k --dp 4 --costs "$T/cost.csv"
recount "named shape" "$T/one.csv" "" --budget 16k --dp 4 --cost qwen3-0.6b

# the same again is the same, to the byte; and the JSON on standard output is the file's
name="twice the same"
"$RAVEL" plan --lengths "$T/one.csv" --budget 16k --dp 8 --json "$T/a.json" --quiet
"$RAVEL" plan --lengths "$T/one.csv" --budget 16384 --dp=8 --json - >"$T/b.json"
cmp -s "$T/a.json" "$T/b.json" && ok "$name" || bad "$name"
# every figure is in the document
missing=""
for figure in $(sed -n 's/.*"stats":{\(.*\)}.*/\1/p' "$T/a.json" | grep -oE '"[a-z_]+":' | tr -d '":'); do
    grep -q "\`$figure\`" docs/formats.md || missing="$missing $figure"
done
[ -z "$missing" ] && ok "docs/formats.md explains every figure" || bad "docs/formats.md does not explain$missing"
# the recount notices: one figure changed in each place
for change in 's/"tokens":\([0-9]\)/"tokens":9\1/' 's/"rank":1/"rank":2/' 's/"samples":\[\([0-9]*\),/"samples":[/' 's/"idle_update":/"idle_update":1/'; do
    sed "$change" "$T/a.json" >"$T/c.json"
    $PYTHON $HERE/recount.py "$T/c.json" "$T/one.csv" >/dev/null 2>&1 && bad "the recount does not notice $change" || ok "the recount notices $change"
done
finish
