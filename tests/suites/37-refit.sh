# Refit from outside: the command in one process (also sanitized) and under mpirun, and ranks that die in the middle
# (Open MPI and MPICH, whichever are installed). RAVEL_SOAK=1 tries every place.
set -u
passed=0 failed=0 skipped=0
. tests/mpirun.sh
. tests/ports.sh
. tests/seed.sh
export RAVEL_COMM_TIMEOUT=200 # before that of `timeout`, so that a rank that waits in vain says for whom
$MAKE --no-print-directory -j2 BUILD="$BUILD" all "$BUILD/refit-ranks" >"$BUILD/refit-build.log" 2>&1 &&
    $MAKE --no-print-directory -j2 BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined "$BUILD/asan/ravel" >>"$BUILD/refit-build.log" 2>&1 ||
    { cat "$BUILD/refit-build.log"; exit 1; }
dir=$(mktemp -d) trainer="" generator="" number=0
trap 'for p in $trainer $generator; do kill -9 "$p" 2>/dev/null; done; rm -rf "$dir"' EXIT
trap 'exit 1' TERM INT
log="$dir/log"

pass() { passed=$((passed + 1)); echo "  ok    $1"; }
fail() { failed=$((failed + 1)); echo "  FAIL  $1"; tail -n 20 "$log"; }
missing() { echo "  skip  $1: $without"; skipped=$((skipped + 1)); }

# ---- the command ----
for ravel in "$BUILD/ravel" "$BUILD/asan/ravel"; do
    echo "tests/cli/refit.sh with $ravel"
    RAVEL=$ravel sh tests/cli/refit.sh >"$dir/cli" 2>&1
    grep -vE '^  ok |^[0-9]+ passed' "$dir/cli"
    line=$(tail -n 1 "$dir/cli")
    case "$line" in
    *" passed, "*) p=${line%% *} rest=${line#*passed, } f=${rest%% *} s=${rest#*failed, } s=${s%% *} ;;
    *) p=0 f=1 s=0; echo "  FAIL  it did not finish" ;;
    esac
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

# ---- publish and pull: processes that nobody launched together ----
# Generators of two ranks are killed with kill -9 at random moments while trainers of two ranks publish. Every version that
# any of them committed was whole; the trainers go on, and a generator that joins afterwards gets the newest. Trainers keep two
# versions: the interval leaves a slow generator the time to pull one.
weights=unix:$dir/weights
[ ${#dir} -lt 80 ] || weights=unix:@${dir##*/} # the path of a socket has at most 107 bytes
few="--changed 0.02" # elements per version, so that changes are sent
pull() { timeout 300 "$BUILD/ravel" refit --pull "$weights" --shape qwen3-0.6b --memory 24M --ranks 2 $few "$@"; }
kills=${RAVEL_SOAK:+300}
kills=${kills:-12}
"$BUILD/ravel" refit --publish "$weights" --shape qwen3-0.6b --memory 24M --ranks 2 $few --interval 0.3 >"$dir/trainer" 2>&1 &
trainer=$!
waits() { waited=0; until eval "$1" || [ $waited = 3600 ]; do sleep 0.05; waited=$((waited + 1)); done; } # at most three minutes
newest() { sed -n 's/^version \([0-9]*\) .*/\1/p' "$dir/trainer" | tail -n 1; }
waits 'grep -qs "^version 1 " "$dir/trainer"'
# Soak: what publishing takes alone, to compare with what it takes while generators come and are killed.
[ -z "${RAVEL_SOAK:-}" ] || waits '[ "$(newest)" -ge 100 ]'
took() { sed -n 's/^version [0-9]* ([^)]*): \([0-9.]*\) s,.*/\1/p' | sort -n |
    awk '{ t[NR] = $1 } END { printf "median %.0f ms, 99 %% below %.0f, longest %.0f", 1e3 * t[int((NR + 1) / 2)], 1e3 * t[int(NR * .99)], 1e3 * t[NR] }'; }
alone=$(took <"$dir/trainer") first=$(newest)
while [ $number -lt "$kills" ]; do
    number=$((number + 1))
    # exec: the process that is killed is the generator, not a shell around it
    (exec "$BUILD/ravel" refit --pull "$weights" --shape qwen3-0.6b --memory 24M --ranks 2 $few --updates 0) \
        >"$dir/generator.$number" 2>&1 &
    generator=$!
    # every third has committed a version before; the others are killed wherever they are
    [ $((number % 3)) != 0 ] || waits 'grep -qs "equal$" "$dir/generator.$number"'
    sleep "$(awk -v seed="$RAVEL_SEED" -v n=$number 'BEGIN { srand(seed + n); printf "%.3f", .02 + .4 * rand() }')"
    kill -9 $generator
    wait $generator 2>/dev/null
    generator=""
done
pull --updates 3 --token wrong --timeout 1 >"$log" 2>&1 && fail "a generator with a wrong token got in"
pull --updates 3 >"$log" 2>&1
code=$?
cat "$dir"/generator.* >"$dir/all"
before=$(newest)
waits '[ "$(newest)" -gt "$before" ]'
after=$(newest)
kill -INT $trainer
wait $trainer
trained=$? trainer=""
cat "$dir/all" >>"$log"
if [ $code = 0 ] && [ $trained = 0 ] && [ "$after" -gt "$before" ] && [ "$(grep -c 'equal$' "$log")" -gt 3 ] && grep -q 'GB as [0-9.e-]* GB of changes' "$log" && ! grep -qE 'is not of version|differ' "$dir/all"; then
    pass "$kills generators killed at random moments: $(grep -c 'equal$' "$dir/all") commits, all whole; the trainers went on"
    [ -z "${RAVEL_SOAK:-}" ] || echo "    a publish took, alone: $alone; with generators: $(sed "1,/^version $first /d" "$dir/trainer" | took)"
else fail "generators killed at random moments (exit codes $code, $trained; versions $before, $after)"; fi
# One generator lives through trainers that are killed with kill -9 and started again, and through links that are cut (ss -K, as
# root), at random moments of pulls of changes. It holds a whole version all the time, and goes on.
free_port
cuts=0 number=0 faults=${RAVEL_SOAK:+700}
faults=${faults:-6}
publish_again() {
    "$BUILD/ravel" refit --publish "127.0.0.1:$port" --threads 1 --shape qwen3-0.6b --memory 24M --ranks 1 $few --interval 0.1 >"$dir/trainer" 2>&1 &
    trainer=$!
}
cut_links() { ss -K state established "( sport = :$port )" 2>/dev/null | grep -q ":$port "; }
equal() { grep -c 'equal$' "$dir/survivor"; }
publish_again
timeout 1800 "$BUILD/ravel" refit --pull "127.0.0.1:$port" --shape qwen3-0.6b --memory 24M --ranks 2 $few --updates 0 >"$dir/survivor" 2>&1 &
generator=$!
waits '[ "$(equal)" -ge 3 ]'
while [ $number -lt "$faults" ] && kill -0 $generator 2>/dev/null; do
    number=$((number + 1)) had=$(equal)
    sleep "0.$(od -An -N2 -tu2 /dev/urandom | awk '{ printf "%03d", $1 % 300 + 10 }')"
    if [ $((number % 3)) != 0 ] && cut_links; then cuts=$((cuts + 1))
    else
        kill -9 $trainer
        wait $trainer 2>/dev/null
        publish_again
    fi
    waits '[ "$(equal)" -ge $((had + 2)) ] || ! kill -0 $generator 2>/dev/null'
done
kill -0 $generator 2>/dev/null && kill -INT $generator
wait $generator
code=$? generator=""
kill -INT $trainer
wait $trainer
trainer=""
cp "$dir/survivor" "$log"
if [ $code = 0 ] && [ $number = "$faults" ] && grep -q 'GB as 0.[0-9]* GB of changes' "$log" && ! grep -qE 'is not of version|differ' "$log"; then
    pass "$cuts links cut, trainers killed $((faults - cuts)) times while changes came: $(equal) commits, all whole"
else fail "cut links and killed trainers (exit code $code after $number of $faults)"; fi
model=$(find tests/golden -name model.safetensors | sort | head -n 1)
"$BUILD/ravel" refit --publish 127.0.0.1:0 --from "$model" --ranks 3 --interval 0.5 >"$dir/trainer.tcp" 2>&1 &
trainer=$!
waits 'address=$(sed -n "s/^publishing .* at //p" "$dir/trainer.tcp"); [ -n "$address" ]'
timeout 300 "$BUILD/ravel" refit --pull "$address" --from "$model" --ranks 2 --updates 1 --stage copy >"$log" 2>&1
code=$?
kill -INT $trainer
wait $trainer
trained=$? trainer=""
if [ $code = 0 ] && [ $trained = 0 ] && grep -q 'equal$' "$log"; then pass "tcp: tp 3 to 2, two processes, compared with the file"; else fail "tcp pull (exit code $code)"; fi

# Over a link of 400 Mbit/s between two network namespaces: what a version costs, and that changes are what comes.
RATE=400mbit MEMORY=8M UPDATES=4 DENSE=0.8 SPARSE=0.4 timeout 300 sh bench/link.sh "$BUILD" >"$log" 2>&1
code=$?
if [ $code = 2 ]; then echo "  skip  a slow link: $(tail -n 1 "$log")"; skipped=$((skipped + 1))
elif [ $code = 0 ] && [ "$(grep -c 'equal$' "$log")" = 8 ] && awk '
    / dense .*GB pulled/ { if (all && $5 != all) bad = 1; all = $5 }
    / sparse .*GB pulled/ && n++ { if ($5 == 0 || $5 > .1 * all || $11 < .99 * all) bad = 1 }
    END { exit bad || n != 4 }' "$log"; then pass "a slow link: changes are a tenth of a version, or less"
else fail "a slow link (exit code $code)"; fi

# ---- under mpirun ----
file() { # NAME LAUNCHER RANKS FLAGS...
    name=$1 launcher=$2 ranks=$3; shift 3
    rm -f "$dir/out.safetensors"
    # shellcheck disable=SC2086
    timeout 300 $launcher -n "$ranks" "$BUILD/ravel" refit --from "$model" --to "$dir/out.safetensors" "$@" >"$log" 2>&1
    code=$?
    if [ $code = 0 ] && cmp -s "$model" "$dir/out.safetensors" && grep -q 'processes' "$log"; then pass "$name"; else fail "$name (exit code $code)"; fi
}
# A rank dies, leaves or is late in version 2, or a message is lost, cut short or changed: every receiver that is left is
# whole, and on the same version.
fault() { # NAME LAUNCHER RECEIVERS-LEFT KIND RANK WHERE NUMBER
    name="$1, 4 ranks: $4 rank $5 at $6 $7" launcher=$2 left=$3; shift 3
    ranks=$(mktemp -d "$dir/ranks.XXXXXX") # survivors of the fault before may still write to theirs
    # shellcheck disable=SC2086
    REFIT_RANKS_LOG="$ranks" timeout 300 $launcher -n 4 "$BUILD/refit-ranks" "$@" >"$log" 2>&1
    waited=0 # a launcher may go before the survivors do
    until cat "$ranks"/* >"$dir/all" 2>/dev/null; [ "$(grep -c '^whole' "$dir/all")" -ge "$left" ] || [ $waited = 600 ]; do
        sleep 0.2; waited=$((waited + 1)); done
    cat "$dir/all" >>"$log"
    lines=$(grep -c '^whole [12] ' "$dir/all") versions=$(sed -n 's/^whole \([12]\) .*/\1/p' "$dir/all" | sort -u | wc -l)
    if [ "$lines" -ge "$left" ] && [ "$versions" -le 1 ] && ! grep -q '^FAIL' "$log"; then pass "$name"
    else fail "$name: $lines receivers on $versions versions"; fi
}
clean() { # NAME LAUNCHER
    ranks=$(mktemp -d "$dir/ranks.XXXXXX")
    # shellcheck disable=SC2086
    REFIT_RANKS_LOG="$ranks" timeout 300 $2 -n 4 "$BUILD/refit-ranks" clean >"$log" 2>&1
    if [ $? = 0 ] && [ "$(cat "$ranks"/* | grep -c '^whole 3 ')" = 2 ]; then pass "$1: and a clean refit works"; else fail "$1: a clean refit"; fi
}
# Where a rank is killed, MPICH's launcher often takes the survivors with it, whatever it is told: then there is nobody
# left to be on a version, and only a wrong one would be an error.
everything() { # NAME LAUNCHER LAUNCHER-THAT-LETS-SURVIVORS-LIVE SURVIVORS-ARE-SURE
    one=$4 two=$((2 * $4))
    file "$1, 3 ranks" "$2" 3
    file "$1, tp 3 to 2, delta" "$2" 5 --senders 3 --receive-tp 2 --updates 2 --delta
    file "$1, tp 2 to 4, in place" "$2" 6 --senders 2 --receive-tp 4 --updates 2 --stage undo --buffer-bytes 16k
    if [ -n "${RAVEL_SOAK:-}" ]; then
        for rank in 0 1 2 3; do
            survive=$([ $rank -lt 2 ] && echo $two || echo $one)
            for step in 3 4 5 6 7; do for kind in kill leave late; do
                fault "$1" "$3" $([ $kind = kill ] && echo $survive || echo 1) $kind $rank step $step; done; done
            for message in 0 1 2 3 4 5 6 7 8 9 10 11; do fault "$1" "$3" $survive kill $rank message $message; done
            for message in 0 1 4 7; do for kind in drop short change; do
                fault "$1" "$3" 2 $kind $rank message $message; done; done
        done
    else
        fault "$1" "$3" $two kill 0 step 4
        fault "$1" "$3" $one kill 3 step 6
        fault "$1" "$3" $one kill 2 step 7
        fault "$1" "$3" $two kill 1 message 5
        fault "$1" "$3" 1 leave 2 message 3
        fault "$1" "$3" 2 late 1 step 6
        fault "$1" "$3" 2 change 0 message 3
        fault "$1" "$3" 2 short 1 message 5
        fault "$1" "$3" 2 drop 0 message 2
    fi
    clean "$1" "$2"
}
if has_mpi openmpi; then
    everything "Open MPI" mpirun.openmpi "mpirun.openmpi --enable-recovery" 1
else missing "Open MPI"; fi
if has_mpi mpich; then
    everything MPICH mpirun.mpich "mpirun.mpich -disable-auto-cleanup" 0
else missing MPICH; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
