# Rewards from an HTTP server: batches, a server that fails now and then, one that is not there.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$BUILD/ravel dir=$(mktemp -d)
passed=0 failed=0
cat >"$dir/server.py" <<'P'
import http.server, json, sys

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
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Scorer)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
P
python3 "$dir/server.py" "$dir/port" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 1200); do [ -s "$dir/port" ] && break; sleep 0.05; done
url=http://127.0.0.1:$(cat "$dir/port")
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1: $(tail -n 3 "$dir/out")"; fi; }
grpo() { timeout 300 "$ravel" train grpo --task sort --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --hidden 32 \
    --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 256 --lr 0.003 --quiet --sinks jsonl "$@" >"$dir/out" 2>&1; }
grpo --reward-command "$url/score" --run "$dir/good"
check "a server scores" '[ $? = 0 ] && grep -q "\"reward/mean\":0.9375" "$dir/good/metrics.jsonl"'
grpo --reward-command "$url/shaky" --run "$dir/shaky"
check "a server that fails every second time is asked again" '[ $? = 0 ] && grep -q "it answered 500" "$dir/out"'
grpo --reward-command "$url/broken" --run "$dir/broken"
check "a server that always fails ends the run" '[ $? = 1 ] && grep -q "no answer could be scored" "$dir/out" && [ ! -e "$dir/broken" ]'
grpo --reward-command "http://127.0.0.1:1/" --run "$dir/gone"
check "a server that is not there is named" '[ $? = 1 ] && grep -q "no server answers" "$dir/out"'
grpo --reward-command "http://:x/" --run "$dir/url"
check "a wrong URL is refused" '[ $? = 2 ] && grep -q "is not a URL" "$dir/out"'
# Ctrl-C while a reward takes its time: it is not waited for.
"$ravel" train grpo --task sort --steps 3 --prompts 4 --group-size 4 --max-tokens 6 --eval-prompts 0 --hidden 32 --layers 1 --heads 2 --kv-heads 1 \
    --head-dim 16 --ffn 64 --budget 256 --quiet --sinks jsonl --reward-command "echo x >$dir/asked; sleep 1000" --reward-seconds 1000 --run "$dir/slow" >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do [ -s "$dir/asked" ] && break; sleep 0.05; done
kill -INT $pid
for _ in $(seq 1200); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
if kill -9 $pid 2>/dev/null; then late=1; else late=0; fi
wait $pid; code=$?
check "Ctrl-C says one line and does not wait for a reward" '[ $late = 0 ] && [ $code = 130 ] && grep -q "stopping after this update" "$dir/out" && grep -q "stopped by a signal while waiting for rewards" "$dir/out"'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
