# The same lengths by every road give the same plan; bad files and bad usage give one sentence and the right code.
. tests/cli/lib.sh
plan() { "$RAVEL" plan --budget 16k --dp 4 --json - "$@"; }
digest() { plan "$@" 2>/dev/null | sed -n 's/.*"digest":"\([0-9a-f]*\)".*/\1/p'; }
same() { # NAME WANTED GOT
    [ -n "$2" ] && [ "$2" = "$3" ] && ok "$1" || bad "$1: digest \"$3\", not \"$2\""
}
printf 'length\n100\n2000\n300\n16384\n5\n' >"$T/a.csv"
want=$(digest --lengths "$T/a.csv")
tail -n +2 "$T/a.csv" >"$T/b.txt"
same "no header" "$want" "$(digest --lengths "$T/b.txt")"
same "standard input" "$want" "$(cat "$T/a.csv" | digest --lengths - --format csv)"
same "standard input, format by content" "$want" "$(cat "$T/b.txt" | digest --lengths -)"
sed 's/.*/{"meta": {"n": &}, "text": "x"}/' "$T/b.txt" >"$T/a.jsonl"
same "JSONL path" "$want" "$(digest --lengths "$T/a.jsonl" --field meta.n)"
sed 's/.*/{"num_tokens": &}/' "$T/b.txt" >"$T/k.jsonl"
same "JSONL by a known name" "$want" "$(digest --lengths "$T/k.jsonl")"
same "JSONL from standard input" "$want" "$(cat "$T/k.jsonl" | digest --lengths - --format jsonl)"
sed 's/.*/x,&,"y, z"/' "$T/b.txt" | sed '1i id,tokens,note' >"$T/wide.csv"
same "a column by name" "$want" "$(digest --lengths "$T/wide.csv" --field tokens)"
same "a column by number" "$want" "$(digest --lengths "$T/wide.csv" --field 2)"
same "mock of a file" "$want" "$(digest --mock "{\"mode\":\"file\",\"path\":\"$T/a.csv\"}")"
echo "{\"mode\":\"file\",\"path\":\"$T/a.csv\"}" >"$T/mock.json"
same "mock from @file" "$want" "$(digest --mock "@$T/mock.json")"
same "the first rows" "$(head -n 3 "$T/b.txt" | digest --lengths -)" "$(digest --lengths "$T/b.txt" --limit 3)"
if [ -n "$PYTHON" ] && $PYTHON -c 'import numpy' 2>/dev/null; then
    $PYTHON - "$T" <<'P'
import numpy as np, sys
t = sys.argv[1]
a = np.loadtxt(t + "/b.txt", dtype=int)
np.save(t + "/a.npy", a)
np.save(t + "/a32.npy", a.astype(">i4"))
np.save(t + "/col.npy", a.astype(np.uint16).reshape(-1, 1))
p = np.stack([a // 3, a - a // 3], 1)
np.save(t + "/pair.npy", p)
np.save(t + "/fpair.npy", np.asfortranarray(p))
np.savetxt(t + "/pair.csv", p, fmt="%d", delimiter=",")
np.save(t + "/float.npy", a.astype(float))
with open(t + "/v2.npy", "wb") as f: np.lib.format.write_array(f, a, version=(2, 0))
P
    for f in a a32 col v2; do same "NumPy's $f.npy" "$want" "$(digest --lengths "$T/$f.npy")"; done
    size=$(wc -c <"$T/a.npy")
    same "NPY through a pipe that brings numbers in halves" "$want" \
        "$({ head -c $((size - 21)) "$T/a.npy"; sleep 0.1; tail -c 21 "$T/a.npy"; } | digest --lengths - --format npy)"
    pairs=$(digest --lengths "$T/pair.csv")
    same "NumPy's pairs" "$pairs" "$(digest --lengths "$T/pair.npy")"
    same "NumPy's pairs in Fortran order" "$pairs" "$(digest --lengths "$T/fpair.npy")"
    refuses "NumPy's floats" 1 "integers are wanted" plan --lengths "$T/float.npy"
else skip "NPY files made by NumPy: NumPy is not installed"; fi

P="$RAVEL plan"
refuses "no file" 1 "$T/none.csv: cannot open it: No such file" $P --lengths "$T/none.csv" --budget 1k
refuses "a folder" 1 "reading failed: Is a directory" $P --lengths "$T" --budget 1k
printf '1\n2\nthree\n' >"$T/bad.csv"
refuses "a bad row" 1 "bad.csv:3: \"three\" is not a whole number" $P --lengths "$T/bad.csv" --budget 1k
printf '1\n-2\n' >"$T/neg.csv"
refuses "a negative length" 1 "neg.csv:2: length -2; it must be from 1" $P --lengths "$T/neg.csv" --budget 1k
: >"$T/empty.csv"
refuses "an empty file" 1 "it has no rows" $P --lengths "$T/empty.csv" --budget 1k
printf '{"a": 1}\n{"a": }\n' >"$T/bad.jsonl"
refuses "bad JSON" 1 "bad.jsonl:2: JSON" $P --lengths "$T/bad.jsonl" --field a --budget 1k
{ echo 5; echo '"'; seq 1 300000; } >"$T/quote.csv"
refuses "a quote that is never closed" 1 "quote.csv:2: a quote is opened here and never closed" timeout 60 $P --lengths "$T/quote.csv" --budget 1k
printf '5\n\033[2Jx\n' >"$T/escape.csv"
refuses "a cell that would steer the terminal" 1 'escape.csv:2: "?[2Jx" is not a whole number' $P --lengths "$T/escape.csv" --budget 1k
head -c 100 /dev/zero >"$T/bad.npy"
refuses "bad NPY" 1 "not an NPY file" $P --lengths "$T/bad.npy" --budget 1k
refuses "an oversize sample" 1 "1 of 5 samples fit no bin of 8,192 tokens (the longest has 16,384): $T/a.csv:5 (16,384 tokens); raise --budget" $P --lengths "$T/a.csv" --budget 8k
printf '0\n1\n' >"$T/short.csv"
refuses "too few homes" 1 "short.csv: 2 rows, but there are 5 samples" $P --lengths "$T/a.csv" --budget 16k --dp 2 --home "$T/short.csv"
printf '0\n1\n0\n0\n0\n1\n' >"$T/long.csv"
refuses "too many homes" 1 "long.csv: 6 rows, but there are 5 samples" $P --lengths "$T/a.csv" --budget 16k --dp 2 --home "$T/long.csv"
code "as many homes as rows were asked for" 0 $P --lengths "$T/a.csv" --limit 2 --budget 16k --dp 2 --home "$T/long.csv" --quiet
printf '0\n1\n2\n0\n0\n' >"$T/home.csv"
code "homes in a pool" 0 $P --lengths "$T/a.csv" --budget 16k --cp-pool 4 --home "$T/home.csv" --quiet
refuses "two inputs from one pipe" 2 "only one input" $P --lengths - --home - --budget 16k
refuses "a home that is no rank" 1 "home.csv:3: home 2; it must be from -1 to 1" $P --lengths "$T/a.csv" --budget 16k --dp 2 --home "$T/home.csv"
refuses "a missing model" 1 "none.json: cannot open it" $P --lengths "$T/a.csv" --budget 16k --cost "$T/none.json"
printf '{"hidden_size": 3}' >"$T/config.json"
refuses "a bad model" 1 "config.json: \"num_hidden_layers\" is missing" $P --lengths "$T/a.csv" --budget 16k --cost "$T/config.json"
refuses "a bad mock file" 1 "bad.jsonl: JSON" $P --mock "@$T/bad.jsonl" --budget 16k

refuses "nothing to plan" 2 "there is nothing to plan" $P --budget 1k
refuses "two inputs" 2 "not both" $P --lengths "$T/a.csv" --mock '{}' --budget 1k
refuses "no budget" 2 "--budget is missing" $P --lengths "$T/a.csv"
refuses "a typo" 2 "unknown option --bugdet; did you mean --budget?" $P --lengths "$T/a.csv" --bugdet 1k
refuses "a bad size" 2 "\"16q\" is not a whole number" $P --lengths "$T/a.csv" --budget 16q
refuses "a huge size" 2 "does not fit 64 bits" $P --lengths "$T/a.csv" --budget 99999999999999999999
refuses "a bad word" 2 "it must be one of micro-step|update|pipeline" $P --lengths "$T/a.csv" --budget 16k --sync never
refuses "dp 0" 2 "dp is 0; it must be from 1" $P --lengths "$T/a.csv" --budget 16k --dp 0
refuses "budget below align" 2 "below align" $P --lengths "$T/a.csv" --budget 16 --align 32
refuses "a value is missing" 2 "--budget needs a value" $P --lengths "$T/a.csv" --budget
refuses "a stray word" 2 "\"extra\" is neither an option" $P --lengths "$T/a.csv" --budget 16k extra
refuses "a short option" 2 "unknown option -b" $P -b 16k
refuses "a bad cost" 2 "is not LINEAR:QUADRATIC" $P --lengths "$T/a.csv" --budget 16k --cost 1:2:3:4
refuses "an unknown shape" 2 "did you mean qwen3-8b?" $P --lengths "$T/a.csv" --budget 16k --cost qwen3-8
refuses "a bad mock" 2 "mock: JSON, line 1" $P --mock '{"type":' --budget 16k
refuses "a mock's typo" 2 "did you mean \"max-seq-len\"?" $P --mock '{"max_seqlen":5}' --budget 16k
refuses "two things on standard output" 2 "only one output" $P --lengths "$T/a.csv" --budget 16k --json - --csv -
refuses "a picture of a table" 2 "--svg shows one plan" $P --lengths "$T/a.csv" --budget 16k --compare --svg "$T/x.svg"
refuses "another system's option that this command lacks" 2 "unknown option --tensor-parallel-size; other commands call it --tp" "$RAVEL" serve x --tensor-parallel-size 2
refuses "another system's option" 2 "unknown option --port; here it is --listen" "$RAVEL" serve x --port 80
refuses "another system's command" 2 'there is no command "finetune"; here it is train sft' "$RAVEL" finetune
refuses "a sweep of nothing" 2 "is not an option and its values" $P --lengths "$T/a.csv" --sweep budget
refuses "a sweep's typo" 2 "did you mean \"budget\"?" $P --lengths "$T/a.csv" --sweep bugdet=1k
refuses "a sweep's bad value" 2 "sweep: budget: \"1q\"" $P --lengths "$T/a.csv" --sweep budget=1k,1q
refuses "an unknown command" 2 "did you mean \"plan\"?" "$RAVEL" plam
code "no command" 2 "$RAVEL"
code "help" 0 "$RAVEL" --help
says out "plan"
code "plan --help" 0 $P --help
says out "--budget SIZE" "--sweep KEY=LIST" "Examples:" "Karmarkar-Karp" "Exit codes:"
code "help plan" 0 "$RAVEL" help plan
says out "--budget SIZE"
refuses "help for a typo" 2 "did you mean \"plan\"?" "$RAVEL" help plam
code "version" 0 "$RAVEL" --version
finish
