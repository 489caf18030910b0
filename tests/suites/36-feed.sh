# ravel feed: verified on meshes in one process and under mpirun (Open MPI and MPICH, whichever are installed), its
# options and exit codes, and the loss of a rank in the middle of its work.
set -u
passed=0 failed=0 skipped=0
. tests/mpirun.sh
. tests/options.sh
export RAVEL_COMM_TIMEOUT=200 # before that of `timeout`, so that a rank that waits in vain says for whom
$MAKE --no-print-directory -j2 BUILD="$BUILD" all >"$BUILD/feed-build.log" 2>&1 || { cat "$BUILD/feed-build.log"; exit 1; }
dir=$(mktemp -d) job="" number=0
trap '[ -z "$job" ] || kill $job 2>/dev/null; rm -rf "$dir"' EXIT # timeout passes it on
trap 'exit 1' TERM INT
log="$dir/log"
mock='{"type":"lognormal","max_seq_len":512,"min_seq_len":1,"mean_seq_len":100,"count":400,"prompt_share":0.3}'

pass() { passed=$((passed + 1)); echo "  ok    $1"; }
fail() { failed=$((failed + 1)); echo "  FAIL  $1"; tail -n 20 "$log"; }
check() { # NAME CODE-WANTED CODE PATTERN: the code, and the words somewhere in the log
    if [ "$2" = "$3" ] && grep -qE -- "$4" "$log"; then pass "$1"; else fail "$1 (exit code $3)"; fi
}
# shellcheck disable=SC2046
feed() { timeout 300 "$BUILD/ravel" feed --mock "$mock" $(usual "--budget 1k --samples 48" "$@") "$@" >"$log" 2>&1; }

# ---- in one process ----
for owners in tp0-first-last every-rank root-only; do
    for vpp in 1 2; do
        feed --tp 2 --cp 2 --dp 2 --pp 3 --vpp $vpp --owners $owners --updates 3 --verify
        check "24 ranks, vpp $vpp, $owners" 0 $? 'update 3/3 .*verified'
    done
    feed --dp 5 --samples 3 --owners $owners --updates 4 --verify
    check "fewer samples than ranks, $owners" 0 $? 'update 4/4 .*verified'
done
for owners in tp0-first-last every-rank root-only; do
    feed --cp-pool 4 --tp 2 --cp 2 --pp 2 --budget 200 --owners $owners --updates 3 --verify
    check "groups of different widths, $owners" 0 $? 'update 3/3 .*verified'
done
# eight answers to each prompt
awk 'BEGIN { srand(1); for (group = 0; group < 12; group++) {
    prompt = ""; size = 20 + int(70 * rand()); for (i = 0; i < size; i++) prompt = prompt int(500 * rand()) ","
    for (k = 0; k < 8; k++) {
        row = prompt; last = int(40 * rand()); for (i = 0; i < last; i++) row = row int(500 * rand()) ","
        print "{\"input_ids\":[" row 7 "],\"prompt_length\":" size "}" } } }' >"$dir/groups.jsonl"
groups() { timeout 300 "$BUILD/ravel" feed --data "$dir/groups.jsonl" --budget 256 --samples 96 --epochs 1 --verify "$@" >"$log" 2>&1; }
for ranks in "--dp 1" "--dp 4 --tp 2" "--cp 2 --dp 2" "--cp-pool 4 --cp 2" "--dp 3 --pp 2 --owners root-only"; do
    for share in on auto; do
        # shellcheck disable=SC2086
        groups $ranks --share-prefix $share --json "$dir/lines"
        check "shared prefixes, $share, $ranks" 0 $? 'fill +([0-9]|[0-9][0-9]|100)\.[0-9]+ %.* padding +[0-9]+\.[0-9]+ %'
        grep -q '"shared_tokens":[1-9]' "$dir/lines" && grep -q 'shared .* computed once' "$log" && pass "... are reported" || fail "... are reported"
    done
done
awk '{ sub(/.*\[/, ""); sub(/\].*/, ""); n = split($0, ids, ","); a = a (a ? "," : "") $0; ends = ends "," (sum += n)
    if (NR % 2 == 0) { print "{\"input_ids\":[" a "],\"cu_seqlens\":[0" ends "]}"; a = ends = ""; sum = 0 } }' "$dir/groups.jsonl" >"$dir/pairs.jsonl"
for share in off on; do
    timeout 300 "$BUILD/ravel" feed --data "$dir/pairs.jsonl" --budget 256 --samples 48 --epochs 1 --verify --keep-rows --cp-pool 4 --cp 2 --pp 2 \
        --share-prefix $share >"$log" 2>&1
    check "rows that stay together, shared prefixes $share" 0 $? '^1 update, 96 samples'
done
groups --dp 2 --json "$dir/lines"
grep -q '"shared_tokens":0,' "$dir/lines" && pass "nothing is shared unasked" || fail "nothing is shared unasked"
feed --cp-pool 8 --budget 80 --updates 2 --verify --fixed-shape --max-samples 40 --json - --cp-empty widen
check "groups that no rank is left out of" 0 $? '"update":1,.*"fillers":0,.*"verified":true'
feed --cp-pool 4 --dp 2 --updates 1; check "a pool that is not the mesh's" 2 $? 'the mesh has dp 2 x cp 1 ranks'
feed --pp 4 --mtp-stage 2 --fields reward:f32:sample,adv:f32:next --updates 2 --verify --segments --padding
check "a stage that asks for tokens" 0 $? 'update 2/2 .*verified'
feed --dp 3 --layout padded --align 16 --updates 2 --verify; check "bins that are rectangles" 0 $? 'update 2/2 .*verified'
feed --ranks 4 --json - --epochs 1 --no-shuffle
check "JSON lines" 0 $? '^\{"update":8,.*"epoch":1,"position":0'
[ "$(wc -l <"$log")" = 9 ] && pass "nine batches in an epoch of 400 rows" || fail "nine batches in an epoch of 400 rows"

timeout 300 "$BUILD/examples/09_steps" >"$log" 2>&1
check "the steps one by one make the feed's bytes" 0 $? 'stage 0, tp 1: .* as the feed makes them'

# ---- a cursor: six updates at once, or two and then four ----
feed --dp 2 --updates 6 --json "$dir/whole"; feed --dp 2 --updates 2 --save "$dir/cursor" --json "$dir/first"
feed --dp 3 --updates 4 --resume "$dir/cursor" --json "$dir/rest"
same() { sed 's/.*"samples":\([0-9]*\),"tokens":\([0-9]*\),"squares":\([0-9]*\),.*/\1 \2 \3/' "$@"; }
same "$dir/whole" >"$dir/a"; { same "$dir/first"; same "$dir/rest"; } >"$dir/b"
if cmp -s "$dir/a" "$dir/b" && [ "$(wc -l <"$dir/a")" = 6 ]; then pass "resumed on other ranks"; else fail "resumed on other ranks"; fi
feed --dp 2 --updates 1 --resume "$dir/cursor" --shuffle-seed 9
check "a cursor of another stream" 1 $? 'another seed'

# ---- files ----
printf '{"input_ids":[1,2,3]}\n{"text":"ab"}\n{"input_ids":[1,"x"]}\n{"prompt":"q","response":"a"}\n' >"$dir/data.jsonl"
timeout 300 "$BUILD/ravel" feed --data "$dir/data.jsonl" --budget 64 --dp 2 --samples 4 >"$log" 2>&1
check "a bad row is named" 1 $? 'rank [01]: .*data.jsonl:3: "input_ids"\[1\]'
timeout 300 "$BUILD/ravel" feed --data "$dir/data.jsonl" --budget 64 --dp 2 --samples 4 --bad-rows skip --verify >"$log" 2>&1
check "or skipped loudly" 0 $? 'data.jsonl:3: .*the row is skipped'

# ---- wrong on purpose ----
feed --dp 2 --ranks 3; check "ranks that are no mesh" 2 $? 'ravel feed: '
feed --budgit 3; check "an option that is none" 2 $? 'did you mean --budget'
timeout 300 "$BUILD/ravel" feed --budget 1k >"$log" 2>&1; check "no samples" 2 $? 'either --data FILE.jsonl or --mock'
feed --budget 100 --updates 1 --dp 2; check "a sample over the budget" 1 $? 'row [0-9]+ .*has 512 tokens'
feed --layout padded --cp 2; check "rectangles are not cut for cp" 1 $? 'padded rows cannot be cut'
feed --data x.jsonl; check "samples from two places" 2 $? 'said twice'
timeout 300 "$BUILD/ravel" feed --mock "$mock" >"$log" 2>&1; check "no budget" 2 $? '--budget is missing'
feed --pp 2 --mtp-stage 2 --updates 1; check "a stage that is none" 2 $? 'must be from 0 to 1'
feed --save "$dir/nowhere/cursor" --dp 2; check "a cursor that cannot be written, said at once" 1 $? 'nowhere/cursor'
grep -q update "$log" && fail "an update came before it" || pass "before any update"
feed --json "$dir/nowhere/lines"; check "lines that cannot be written" 1 $? 'nowhere/lines'
echo old >"$dir/lines"
feed --budget 100 --updates 1 --dp 2 --json "$dir/lines"; check "a run that fails" 1 $? 'has 512 tokens'
if [ "$(cat "$dir/lines")" = old ] && ! ls "$dir"/*.tmp.* >/dev/null 2>&1; then pass "leaves the old lines as they were"; else fail "leaves the old lines as they were"; fi
feed --json /dev/full --updates 1; check "a full disk" 1 $? 'No space left'
feed --resume "$dir/nowhere"; check "a cursor that is not there" 1 $? 'nowhere'
feed --help; check "help" 0 $? '--owners'

# ---- under mpirun ----
mpi() { # LAUNCHER ARGUMENTS...
    launcher=$1; shift
    # shellcheck disable=SC2046,SC2086
    timeout 300 $launcher "$BUILD/ravel" feed --mock "$mock" $(usual "--budget 1k --samples 48" "$@") "$@" >"$log" 2>&1
}
alive() { for p in $ranks; do grep -qs ravel "/proc/$p/cmdline" && echo "$p"; done; } # a zombie has no command line
# kill -9 of one rank in the middle; the job ends, and the words are in what the launcher or the ranks said. Ranks write to
# files of their own, since a launcher that is ending loses what they say last.
lose() { # NAME LAUNCHER WORDS any|bad
    number=$((number + 1)) here=$dir/lose.$number
    mkdir "$here"
    # shellcheck disable=SC2086,SC2016
    timeout 300 $2 sh -c 'here=$1; shift; : >"$here/rank.$$"; exec "$@" 2>>"$here/said.$$"' sh "$here" "$BUILD/ravel" feed --mock "$mock" \
        --budget 4k --samples 400 --updates 1000000 --quiet --json "$here/lines" --comm-timeout 60 >"$log" 2>&1 &
    job=$! waited=0
    # lines stand in lines.tmp.PID until the end
    until find "$here" -name "lines*" -size +0 | grep -q . || [ $waited = 1200 ]; do sleep 0.1; waited=$((waited + 1)); done
    sleep 1 # into the middle of its work
    ranks=$(ls "$here" | sed -n 's/^rank\.//p')
    victim=$(echo "$ranks" | tail -n 1)
    [ -n "$victim" ] && kill -9 "$victim"
    wait $job; code=$? waited=0 job=""
    while [ -n "$(alive)" ] && [ $waited -lt 1200 ]; do sleep 0.1; waited=$((waited + 1)); done # the launcher may go first
    cat "$here"/said.* >>"$log"
    if { [ $code != 0 ] || [ "$4" = any ]; } && [ $code != 124 ] && [ -z "$(alive)" ] && grep -qiE "$3" "$log"; then pass "$1"
    else fail "$1: exit code $code, processes left: $(alive | tr '\n' ' ')"; fi
}
everything() { # NAME LAUNCHER LAUNCHER-THAT-LETS-SURVIVORS-SPEAK
    for owners in tp0-first-last every-rank root-only; do
        mpi "$2 -n 8" --tp 2 --dp 2 --pp 2 --vpp 2 --samples 5 --owners $owners --updates 6 --verify
        check "$1, 8 ranks, tp 2 dp 2 pp 2 vpp 2, fewer samples than ranks, $owners" 0 $? 'update 6/6 .*verified'
    done
    mpi "$2 -n 8" --cp 2 --dp 4 --order cp-dp-tp-pp --updates 4 --verify
    check "$1, 8 ranks, cp 2 dp 4" 0 $? 'update 4/4 .*verified'
    mpi "$2 -n 4" --budget 100 --updates 1
    check "$1, an error is said once" 1 $? 'rank 0: .*512 tokens'
    # signals 6 and 15: see the mpi suite
    lose "$1, kill -9 of a rank ends the job" "$2 -n 4" 'signal (6|9|15)|exit code: (6|9|15)|killed|process is gone|lost' bad
    # MPICH's launcher kills survivors before they can speak
    [ -z "$3" ] || lose "$1, survivors of kill -9 say who is gone" "$3 -n 4" 'ravel feed: rank [0-9]+: .*(gone|lost|left|deadline)' any
}
missing() { echo "  skip  $1: $without"; skipped=$((skipped + 1)); }
if has_mpi openmpi; then
    everything "Open MPI" mpirun.openmpi "mpirun.openmpi --enable-recovery"
else missing "Open MPI"; fi
if has_mpi mpich; then
    everything MPICH mpirun.mpich ""
else missing MPICH; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
