# The communicators' test body, and lost ranks, as processes over TCP that a shell starts with the environment of torchrun or
# of Slurm; hosts in network namespaces, with delay, loss and a cut that heals, where they may be made; the real torchrun
# where it is installed.
set -u
passed=0 failed=0 skipped=0 started=""
. tests/ports.sh
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib "$BUILD/mpi-ranks" >"$BUILD/tcp-build.log" 2>&1 ||
    { cat "$BUILD/tcp-build.log"; exit 1; }
dir=$(mktemp -d) log="$BUILD/tcp-run.log" program=$BUILD/mpi-ranks
unhost() { ip netns del "rv-$$-a" 2>/dev/null; ip netns del "rv-$$-b" 2>/dev/null; ip link del "rva$$" 2>/dev/null; true; }
trap 'for p in $started; do kill "$p" 2>/dev/null; done; unhost; rm -rf "$dir"' EXIT # timeout passes it on
trap 'exit 1' TERM INT
export RAVEL_COMM_TIMEOUT=200 # before that of `timeout`, so that a rank that waits in vain says for whom
unset SLURM_PROCID SLURM_NTASKS SLURM_NODELIST RANK WORLD_SIZE RAVEL_PORT RAVEL_TOKEN RAVEL_TOKEN_FILE

verdict() { # NAME OK-LINES-EXPECTED CODE-IS-FINE
    lines=$(grep -ao 'ok [a-z]' "$log" | wc -l)
    if [ "$3" = 1 ] && [ "$lines" -ge "$2" ] && ! grep -q 'FAIL\|Sanitizer\|runtime error' "$log"; then
        passed=$((passed + 1)); echo "  ok    $1"
    else
        failed=$((failed + 1)); echo "  FAIL  $1: $lines ok lines, $2 expected"; tail -n 30 "$log"
    fi
}
# ranks COUNT ARGUMENTS...: as torchrun starts them. $code: the worst exit code but 137 (a rank that was killed).
ranks() {
    count=$1; shift
    free_port
    code=0 pids="" marks=$(mktemp -d "$dir/marks.XXXXXX")
    : >"$log"
    for r in $(seq 0 $((count - 1))); do
        RANK=$r WORLD_SIZE=$count LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RANKS_MARKS=$marks \
            timeout 300 "$program" "$@" >>"$log" 2>&1 &
        pids="$pids $!" started="$started $!"
    done
    for pid in $pids; do wait "$pid"; one=$?; [ $one = 0 ] || [ $one = 137 ] || code=$one; done
    started=$strangers
}
fine() { [ $code = 0 ] && echo 1 || echo 0; }

# Ranks of two tokens, which wait for a deadline while the others below run.
strangers=""
free_port
: >"$log.token"
for r in 0 1; do
    RAVEL_TOKEN=token-$r RAVEL_COMM_TIMEOUT=20 RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        timeout 300 "$program" body >>"$log.token" 2>&1 & strangers="$strangers $!" started="$started $!"
done

for n in 1 2 3; do ranks $n body; verdict "tcp, $n ranks, body" $([ $n = 1 ] && echo 0 || echo 27) "$(fine)"; done
ranks 6 body operation; verdict "tcp, 6 ranks, body" 13 "$(fine)"
for test in "leaves 3" "leaves-open 3" "leaves-in-order 4" "aborts 3" "aborts-above-parts 3" "trials 4" "late 4" "disagrees 4" \
    "long 4" "killed 3"; do
    # shellcheck disable=SC2086
    set -- $test
    ranks 4 "$1"; verdict "tcp, 4 ranks, $1" "$2" "$(fine)"
done

# Slurm's environment; a batch script is no rank. They meet at port 20000 + job id % 20000.
: >"$log"; code=0; pids="" port=0
while [ $port -lt 20000 ]; do free_port; done
for r in 0 1; do
    SLURM_PROCID=$r SLURM_NTASKS=2 SLURM_NODELIST='node[01-02]' SLURM_NNODES=1 SLURM_JOB_ID=$port SLURM_STEP_ID=0 \
        timeout 300 "$program" disagrees >>"$log" 2>&1 & pids="$pids $!" started="$started $!"
done
for pid in $pids; do wait "$pid" || code=1; done
verdict "tcp from Slurm's environment" 2 "$(fine)"

# Another token is refused in time, and said.
wait $strangers
started=""
grep -q 'token' "$log.token" && grep -q 'missing is rank 1' "$log.token" && said=1 || said=0
sed 's/FAIL/fail/' "$log.token" >"$log"; verdict "tcp, another token" 0 $said

# Two hosts: network namespaces with a wire between them.
hosts() {
    ip netns add "rv-$$-a" 2>/dev/null && ip netns add "rv-$$-b" 2>/dev/null &&
        ip link add "rva$$" type veth peer name "rvb$$" 2>/dev/null &&
        ip link set "rva$$" netns "rv-$$-a" && ip link set "rvb$$" netns "rv-$$-b" &&
        ip -n "rv-$$-a" addr add 10.199.7.1/24 dev "rva$$" && ip -n "rv-$$-b" addr add 10.199.7.2/24 dev "rvb$$" &&
        ip -n "rv-$$-a" link set "rva$$" up && ip -n "rv-$$-b" link set "rvb$$" up &&
        ip -n "rv-$$-a" link set lo up && ip -n "rv-$$-b" link set lo up
}
if command -v ip >/dev/null 2>&1 && hosts; then
    shaped=""
    command -v tc >/dev/null 2>&1 && ip netns exec "rv-$$-a" tc qdisc add dev "rva$$" root netem delay 3ms loss 1% 2>/dev/null &&
        shaped=", delay and loss"
    : >"$log"; code=0; pids=""
    free_port
    for r in 0 1; do
        ns=$([ $r = 0 ] && echo a || echo b)
        RAVEL_TOKEN=shared RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.199.7.1 MASTER_PORT=$port \
            timeout 300 ip netns exec "rv-$$-$ns" "$program" steady 8 >>"$log" 2>&1 & pids="$pids $!" started="$started $!"
    done
    sleep 3; ip -n "rv-$$-a" link set "rva$$" down; sleep 2; ip -n "rv-$$-a" link set "rva$$" up
    for pid in $pids; do wait "$pid" || code=1; done
    started=""
    verdict "tcp between two hosts, a cut that heals$shaped" 2 "$(fine)"
    unhost
else
    unhost; skipped=$((skipped + 1)); echo "  skip  tcp between hosts: network namespaces cannot be made here"
fi

torchrun=$(command -v torchrun || ls "$BUILD/frameworks/bin/torchrun" 2>/dev/null) # make test-frameworks brings one
if [ -n "$torchrun" ]; then
    timeout 300 "$torchrun" --standalone --nproc-per-node 3 --no-python "$program" disagrees >"$log" 2>&1; code=$?
    verdict "tcp under torchrun" 3 "$(fine)"
else
    skipped=$((skipped + 1)); echo "  skip  tcp under torchrun: it is not installed (pip install torch); its environment was tried above"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
