# Rewards from an HTTP server: batches, a server that fails now and then, one that is not there.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
passed=0 failed=0
cat >"$dir/server.py" <<'P'
import http.server, json, sys, time

class Scorer(http.server.BaseHTTPRequestHandler):
    requests = 0

    def do_POST(self):
        Scorer.requests += 1
        lines = self.rfile.read(int(self.headers["Content-Length"])).decode().splitlines()
        if self.path == "/broken" or (self.path == "/shaky" and Scorer.requests % 2 == 1):
            self.send_error(500)
            return
        rows = [json.loads(line) for line in lines]
        body = "".join(json.dumps({"id": r["id"], "reward": float(r["id"] % 3)}) + "\n" for r in rows)
        if self.path == "/slow":
            open(sys.argv[2], "w").write("asked")
            time.sleep(1000)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scorer)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
P
python3 "$dir/server.py" "$dir/port" "$dir/slow.asked" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 1200); do [ -s "$dir/port" ] && break; sleep 0.05; done
url=http://127.0.0.1:$(cat "$dir/port")
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $(tail -n 3 "$dir/out")"; fi; }
grpo() { timeout 300 "$ravel" train grpo --task sort --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --hidden 32 \
    --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --quiet --sinks jsonl "$@" >"$dir/out" 2>&1; }
grpo --reward-command "$url/score" --run "$dir/good"
check "a server scores" '[ $? = 0 ] && grep -q "\"reward/mean\":0.9375" "$dir/good/metrics.jsonl"'
grpo --reward-command "$url/shaky" --service-slots 1 --run "$dir/shaky"
check "a server that fails every second time is asked again" '[ $? = 0 ] && grep -q "/shaky answered 500" "$dir/out"'
grpo --reward-command "$url/broken" --service-wait 1 --run "$dir/broken"
check "a server that always fails ends the run" '[ $? = 1 ] && grep -q "no answer could be scored" "$dir/out" && [ ! -e "$dir/broken" ]'
timeout 300 "$ravel" train grpo --task sort --reward ended:2,length,style:-1 --reward-command "sed -u 's/{\"id\": \([0-9]*\),.*/{\"id\": \1, \"rewards\": {\"style\": 0.5}}/'" \
    --steps 2 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --hidden 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 \
    --budget 256 --max-flat 0 --sinks jsonl --run "$dir/parts" >"$dir/out" 2>&1
check "parts of a reward: metrics and progress" '[ $? = 0 ] && grep -q "\"reward/style\":0.5" "$dir/parts/metrics.jsonl" && grep -q "reward/ended" "$dir/parts/metrics.jsonl" && grep -q "(ended .*, length .*, style 0.5000)" "$dir/out"'
"$ravel" report "$dir/parts" --html "$dir/parts.html" >"$dir/out" 2>&1
check "parts of a reward in the report" '[ $? = 0 ] && grep -q "\"reward/style\"" "$dir/parts.html"'
grpo --reward exact,style --run "$dir/none"
check "a part that nobody measures is refused" '[ $? = 2 ] && grep -q "is measured by a reward command" "$dir/out"'
grpo --reward-command "http://127.0.0.1:1/" --service-wait 1 --run "$dir/gone"
check "a server that is not there is named" '[ $? = 1 ] && grep -q "no server answers" "$dir/out"'
grpo --reward-command "http://:x/" --run "$dir/url"
check "a wrong URL is refused" '[ $? = 2 ] && grep -q "is not a URL" "$dir/out"'
# Ctrl-C while a reward takes its time, of a command and of a server: it is not waited for.
interrupt() { # WHAT ASKED REWARD-COMMAND
    "$ravel" train grpo --task sort --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --hidden 32 --layers 1 --heads 2 --kv-heads 1 \
        --head-dim 16 --ffn 64 --budget 256 --quiet --sinks jsonl --reward-command "$3" --reward-seconds 1000 --run "$dir/slow" >"$dir/out" 2>&1 &
    pid=$! asked=$2
    for _ in $(seq 1200); do [ -s "$asked" ] && break; sleep 0.05; done
    kill -INT $pid
    for _ in $(seq 1200); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    if kill -9 $pid 2>/dev/null; then late=1; else late=0; fi
    wait $pid; code=$?
    check "Ctrl-C says one line and does not wait for $1" '[ -s "$asked" ] && [ $late = 0 ] && [ $code = 130 ] && grep -q "stopping; Ctrl-C again ends at once" "$dir/out" && grep -q "stopped" "$dir/out" && [ ! -e "$dir/slow" ]'
}
interrupt "a command" "$dir/asked" "echo x >$dir/asked; sleep 1000"
interrupt "a server" "$dir/slow.asked" "$url/slow"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
