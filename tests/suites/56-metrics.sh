# Metrics and `ravel report` end to end: a run of the example, read back by the readers that people use (TensorBoard,
# Prometheus, a trace viewer's rules, Chromium). A reader that cannot be had is skipped, with a sentence.
set -u
passed=0 failed=0 skipped=0
dir=$BUILD/metrics-test ravel=$BUILD/ravel
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
fail() { failed=$((failed + 1)); echo "  FAIL  $1"; [ -z "${2:-}" ] || tail -n 15 "$2"; }
skip() { skipped=$((skipped + 1)); echo "  skip  $1"; }
check() { # NAME COMMAND...
    name=$1; shift
    if "$@" >"$dir/log" 2>&1; then ok "$name: $(tail -n 1 "$dir/log" | cut -c 1-100)"; else fail "$name" "$dir/log"; fi
}
says() { # NAME CODE WORDS COMMAND...: the exit code, and words on standard error
    name=$1 code=$2 words=$3; shift 3
    "$@" >"$dir/out" 2>"$dir/err"; got=$?
    if [ $got = "$code" ] && { [ -z "$words" ] || grep -q -- "$words" "$dir/err"; }; then ok "$name"; else echo "exit code $got" >>"$dir/err"; fail "$name" "$dir/err"; fi
}

rm -rf "$dir"; mkdir -p "$dir"
$MAKE --no-print-directory -j2 BUILD="$BUILD" all >"$dir/build.log" 2>&1 || { cat "$dir/build.log"; exit 1; }

# ---- a run, a second one, and the first one resumed ----
check "a run" "$BUILD/examples/04_metrics" "$dir/a" 30
check "another run" "$BUILD/examples/04_metrics" "$dir/b" 30 7
check "the first run, begun again in its folder" "$BUILD/examples/04_metrics" "$dir/a" 20
lines=$(wc -l <"$dir/a/metrics.jsonl")
if [ "$lines" = 50 ] && [ "$(wc -l <"$dir/a/metrics.csv")" = 51 ] && [ "$(wc -l <"$dir/a/train.log")" = 50 ]; then ok "files are continued"
else fail "files are continued: $lines lines"; fi

# ---- killed in the middle, again and again, and resumed ----
whole=1
rows() { cat "$dir/killed/metrics.jsonl" 2>/dev/null | wc -l; }
for pause in 0.05 0.11 0.17 0.23 0.29; do
    enough=$(($(rows) + 4)) waited=0
    "$BUILD/examples/04_metrics" "$dir/killed" 100000 >/dev/null 2>&1 &
    victim=$!
    sleep $pause
    until [ "$(rows)" -ge $enough ] || [ $waited = 2400 ]; do sleep 0.05; waited=$((waited + 1)); done
    kill -9 $victim; wait $victim 2>/dev/null
done
"$BUILD/examples/04_metrics" "$dir/killed" 5 >/dev/null 2>&1 || whole=0
if command -v python3 >/dev/null 2>&1; then
    python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
assert rows[-1]["step"] == 5 and len(rows) > 10, len(rows)
[json.load(open(f"{sys.argv[1]}/trace-{rank}.json")) for rank in range(4)]
width = {line.count(",") for line in open(sys.argv[1] + "/metrics.csv")}
assert len(width) == 1, width
' "$dir/killed" 2>"$dir/log" || whole=0
fi
if [ $whole = 1 ]; then ok "kill -9 leaves whole lines, and files are continued"; else fail "kill -9 leaves whole lines" "$dir/log"; fi

# ---- traces ----
if command -v python3 >/dev/null 2>&1; then
    check "trace of rank 0" python3 tests/metrics/check_trace.py "$dir/a/trace-0.json" 1
    check "traces joined" "$ravel" report "$dir/a" "$dir/b" --trace "$dir/joined.json" --quiet
    check "joined trace" python3 tests/metrics/check_trace.py "$dir/joined.json" 8
else skip "traces: python3 is not installed"; fi

# ---- TensorBoard and Prometheus: packages from PyPI, kept in the build folder ----
readers=$BUILD/readers
if [ ! -e "$readers/ready" ] && command -v python3 >/dev/null 2>&1; then
    (python3 -m venv "$readers" && timeout 300 "$readers/bin/pip" install --quiet --no-compile tensorboard prometheus_client setuptools &&
        "$readers/bin/python" -c 'import tensorboard.backend.event_processing.event_accumulator, prometheus_client.parser' &&
        touch "$readers/ready") >"$dir/pip.log" 2>&1
fi
if [ -e "$readers/ready" ]; then
    check "TensorBoard" "$readers/bin/python" tests/metrics/read_tensorboard.py "$dir/a" 2
    check "Prometheus" "$readers/bin/python" tests/metrics/read_prometheus.py "$dir/a"
else skip "TensorBoard and prometheus_client could not be installed from PyPI: their files were not read back"; fi
if command -v promtool >/dev/null 2>&1; then # the second opinion, where there is one (Debian: prometheus)
    check "promtool" sh -c "promtool check metrics <$dir/a/metrics.prom"
fi

# ---- the page, drawn by Chromium ----
check "report of one run" "$ravel" report "$dir/b" --html "$dir/b.html"
check "report of two runs" "$ravel" report "$dir/a" "$dir/b" --html "$dir/ab.html"
printf '{"kind": "sft", "lr": 0.001, "task": "<sort>", "run": "a"}\n' >"$dir/differ.json"
for run in one two; do rm -rf "$dir/$run"; mkdir -p "$dir/$run"; cp "$dir/b/metrics.jsonl" "$dir/$run/"; cp "$dir/differ.json" "$dir/$run/config.json"; done
sed -i 's/0.001/0.002/; s/"run": "a"/"run": "b", "budget": 512/' "$dir/two/config.json"
check "runs with other options" "$ravel" report "$dir/one" "$dir/two" --html "$dir/differ.html"
"$ravel" report "$dir/one" "$dir/two" >"$dir/differ.txt"
if sed -n '/^options that differ/,/^[^ ]/p' "$dir/differ.txt" | sed '1d; /^[^ ]/d' | tr -s ' ' | sed 's/ *$//' | tr '\n' ';' | grep -qx ' lr 0.001 0.002; budget - 512;'; then ok "the options that differ are listed, and no others"
else fail "the options that differ: $(cat "$dir/differ.txt")"; fi
if grep -q '<td class="soft">lr</td><td class="n run0">0.001</td><td class="n run1">0.002</td>' "$dir/differ.html" && ! grep -q '<td class="soft">task</td>' "$dir/differ.html"; then
    ok "... and on the page"; else fail "the page lacks options that differ"; fi
printf '{"<img src=x onerror=alert(1)>": 1, "lr": "\\u001b]0;a"}\n' >"$dir/one/config.json"
check "runs with strange options" "$ravel" report "$dir/one" "$dir/two" --html "$dir/differ.html"
"$ravel" report "$dir/one" "$dir/two" >"$dir/differ.txt"
if grep -q '&lt;img src=x' "$dir/differ.html" && ! grep -q '<img' "$dir/differ.html" && ! grep -q "$(printf '\033')" "$dir/differ.txt"; then ok "names and values of options are shown as text"
else fail "names and values of options are shown as text"; fi
if grep -q '30 updates of the attempt before are left out' "$dir/ab.html"; then ok "a resumed run is said to be one"; else fail "a resumed run is said to be one"; fi
figures="loss reward throughput packing idle phases idle-ranks refit any"
page() { # NAME FILE RUNS WIDTH
    sh tests/browser.sh "$dir" --enable-logging=stderr --window-size="$4",900 --virtual-time-budget=4000 \
        --dump-dom "file://$(realpath "$2")" >"$dir/dom.html" 2>"$dir/console"
    # shellcheck disable=SC2086
    check "$1" python3 tests/metrics/check_page.py "$dir/dom.html" "$dir/console" "$3" $figures
}
if command -v chromium >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; then
    page "page of one run" "$dir/b.html" 1 1400
    page "page of two runs" "$dir/ab.html" 2 1400
    page "page on a phone" "$dir/ab.html" 2 500
    said=$(sh tests/cli/narrow.sh "$dir/ab.html" "$dir")
    if [ -z "$said" ]; then ok "page on 375 pixels"; else fail "page on 375 pixels: $said"; fi
    # every button pressed, every box ticked, the pointer over every figure
    sed 's|</body>||; s|</html>||' "$dir/ab.html" >"$dir/used.html"
    cat >>"$dir/used.html" <<'END'
<script>
for (const b of document.querySelectorAll("button")) { b.click(); b.click(); }
for (const i of document.querySelectorAll("input[type=checkbox]")) { i.click(); i.click(); }
document.getElementById("smooth").value = 0.9;
document.getElementById("smooth").dispatchEvent(new Event("input"));
const pick = document.getElementById("pick");
for (const o of pick.querySelectorAll("option")) { pick.value = o.value; pick.dispatchEvent(new Event("change")); }
let tips = 0;
for (const f of document.querySelectorAll("svg.plot, canvas")) {
  const r = f.getBoundingClientRect();
  for (const x of [0.01, 0.3, 0.99]) f.dispatchEvent(new PointerEvent("pointermove", { clientX: r.left + x * r.width, clientY: r.top + r.height / 2 }));
  tips += document.getElementById("tip").textContent.length > 3;
  f.dispatchEvent(new PointerEvent("pointerleave"));
}
if (tips < document.querySelectorAll("svg.plot, canvas").length) throw new Error("a figure has no tip");
if (document.querySelectorAll("path.faint").length < 4) throw new Error("nothing was smoothed");
dispatchEvent(new Event("resize"));
</script></body></html>
END
    page "page in use" "$dir/used.html" 2 1400
else skip "chromium or python3 is not installed: the pages were not drawn"; fi

# ---- a live line on a terminal, plain lines elsewhere ----
feed() { "$@" "$ravel" feed --mock '{"type":"lognormal","max_seq_len":2048}' --budget 8k --dp 2 --updates 5 --samples 64; }
feed env >"$dir/plain" 2>"$dir/err"
if [ "$(grep -c '^ update [1-5]/5 | samples 64 ' "$dir/plain")" = 5 ] && [ ! -s "$dir/err" ]; then ok "ravel feed writes plain lines to a file"
else fail "ravel feed writes plain lines to a file" "$dir/plain"; fi
if command -v python3 >/dev/null 2>&1; then
    feed python3 tests/metrics/live_line.py >"$dir/live" 2>&1
    if grep -Eq '^> 5/5 =+ 0s left \| [0-9.]+[kM]? tok/s \| packing [0-9.]+%$' "$dir/live" && ! grep -q '^ update' "$dir/live" &&
        grep -q '^5 updates, 320 samples' "$dir/live"; then ok "ravel feed draws a live line on a terminal"
    else fail "ravel feed draws a live line on a terminal" "$dir/live"; fi
    if RAVEL_TEST_TERM=dumb feed python3 tests/metrics/live_line.py 2>&1 | grep -q "$(printf '\033')"; then fail "no escapes where TERM=dumb"
    else ok "no escapes where TERM=dumb"; fi
else skip "the live line: python3 is not installed"; fi

# ---- odd runs ----
mkdir -p "$dir/torn" "$dir/empty" "$dir/odd" "$dir/tiny"
head -c 9000 "$dir/b/metrics.jsonl" >"$dir/torn/metrics.jsonl"
says "a torn last line is left out" 0 "" "$ravel" report "$dir/torn"
{ echo 'not json'; echo '{"step": 1, "train/loss": 2.5, "mine": 1, "note": "</script>"}'; echo '[]'; echo '{"step": 2, "train/loss": null}'; } >"$dir/odd/metrics.jsonl"
echo '{"a": "</script><b>"}' >"$dir/odd/config.json"
echo '{"ravel": "<i>"}' >"$dir/odd/environment.json"
says "bad lines are counted" 0 "" "$ravel" report "$dir/odd" --html "$dir/odd.html"
if grep -q '2 lines of metrics.jsonl were left out, the first is line 1' "$dir/out"; then ok "... and said"; else fail "... and said" "$dir/out"; fi
if grep -q 'not a finite number, first in update 2' "$dir/out" && grep -q 'not a finite number, first in update 2' "$dir/odd.html"; then ok "a loss that diverged is said"; else fail "a loss that diverged is said" "$dir/out"; fi
if [ "$(grep -c '</script>' "$dir/odd.html")" = 2 ]; then ok "text of a run cannot leave its place in the page"; else fail "text of a run cannot leave its place in the page"; fi
figures="loss any"
echo '{"step": 1, "train/loss": 2.5}' >"$dir/tiny/metrics.jsonl"
cp "$dir/odd/config.json" "$dir/odd/environment.json" "$dir/tiny"
if "$ravel" report "$dir/a" | awk '/^time by phase/ { on = 1 } on && /%$/ { sum += $(NF - 1) } END { exit sum < 99.95 || sum > 100.05 }'; then
    ok "phases sum to 100 % on the terminal"; else fail "phases sum to 100 % on the terminal"; fi
if grep -o '"shares":{[^}]*}' "$dir/b.html" | grep -oE ':[0-9.]+' | awk '{ sum += substr($0, 2) } END { exit sum < 99.95 || sum > 100.05 }'; then
    ok "phases sum to 100 % on the page"; else fail "phases sum to 100 % on the page"; fi
mkdir -p "$dir/evaluated"
printf '{"step": 1, "reward/mean": 0.1, "eval/reward": 0.2}\n{"step": 2, "reward/mean": 0.3, "eval/reward": 0.6}\n' >"$dir/evaluated/metrics.jsonl"
says "the evaluation's reward is a headline" 0 "" "$ravel" report "$dir/evaluated" --html "$dir/evaluated.html"
if grep -Eq '^eval reward, last +0.6$' "$dir/out" && grep -q 'eval reward, last' "$dir/evaluated.html"; then ok "... on terminal and page"; else fail "... on terminal and page" "$dir/out"; fi
# ---- timeline ----
mkdir -p "$dir/timed"
printf '{"step": 1, "train/loss": 2}\n{"step": 2, "train/loss": 1}\n' >"$dir/timed/metrics.jsonl"
cat >"$dir/timed/timeline.jsonl" <<'END'
{"step": 1, "bubble": 0.9, "ranks": [{"tp": 0, "forward": 7}]}
no object
{"step": 1, "bubble": 0.2, "bubble_predicted": 0.15, "exposed": 0.1, "ranks": [{"tp": 0, "pp": 0, "forward": 1, "backward": 2, "tp_wait": 0.5, "pp_wait": 0.5, "finish": 1}, {"tp": 1, "pp": 0, "forward": 1, "backward": 1, "finish": 0.5}]}
{"step": 2, "bubble": 0.4, "bubble_predicted": 0.25, "exposed": 0.2, "ranks": [{"tp": 0, "pp": 0, "forward": 1, "backward": 2, "tp_wait": 0.5, "pp_wait": 0.5, "finish": 1}, {"tp": 1, "pp": 0, "forward": 1, "backward": 1, "finish": 0.5}]}
{"step": 3, "bub
END
says "the timeline of a run" 0 "" "$ravel" report "$dir/timed" --html "$dir/timed.html"
if grep -q 'timeline of timed: seconds per update, mean of 2; exposed communication 15.0 %; bubble 30.0 %, predicted 20.0 %' "$dir/out" &&
    grep -Eq '^ +0 +0 +0 +0 +0 +1.0000 +2.0000 +0.5000 +0.0000 +0.5000 +1.0000  F{8}B{16}t{4}p{4}o{8}$' "$dir/out" &&
    grep -Eq '^ +1 +1 .* F{8}B{8}o{4}$' "$dir/out"; then
    ok "... a bar per rank, and bubbles beside what was predicted"; else fail "... a bar per rank" "$dir/out"; fi
if [ "$(grep -c 'class="spans"' "$dir/timed.html")" = 2 ] && grep -q 'tp wait 0.5000 s' "$dir/timed.html" && grep -q '<b>0 s</b>.*<b>4</b>' "$dir/timed.html"; then ok "... on the page too"; else fail "... on the page too"; fi
# ---- what a page says at a glance ----
mkdir -p "$dir/rl"
printf '{"step": 0, "eval/reward": 0.25}\n{"step": 1, "reward/mean": 0.1, "train/loss": 1, "time/update_sec": 3, "time/rollout_self_sec": 2, "time/forward_self_sec": 0.25, "time/refit_self_sec": 0.5, "reward/dropped_share": 0.125, "throughput/actual_tokens_per_sec": 4, "throughput/actual_tokens_per_sec_per_gpu": 4, "tokens/actual": 12}\n{"step": 2, "reward/mean": 0.3, "time/update_sec": 3, "eval/reward": 0.75, "tokens/actual": 12, "throughput/actual_tokens_per_sec": 4, "throughput/actual_tokens_per_sec_per_gpu": 4}\n' >"$dir/rl/metrics.jsonl"
echo '{"kind": "grpo", "model": "x/runs/first/checkpoints/step-00000010", "data": "some/prompts.jsonl", "generators": 2, "async": 0}' >"$dir/rl/config.json"
echo '{"ranks": 1, "cpu": "a <processor>"}' >"$dir/rl/environment.json"
says "a run in a line" 0 "" "$ravel" report "$dir/rl" --html "$dir/rl.html"
line='Reinforcement learning of first on prompts.jsonl'
if grep -qF "rl: $line. Evaluated reward 0.25 to 0.75 in 2 updates, 6 s, on 1 trainer and 2 generators (a <processor>)" "$dir/out" && grep -qF "<h1>$line</h1>" "$dir/rl.html" && grep -qF '(a &lt;processor&gt;)' "$dir/rl.html"; then
    ok "... on terminal and page"; else fail "... on terminal and page" "$dir/out"; fi
if [ "$(grep -o '<div class="card" data-curve="[^"]*"><dt>[^<]*' "$dir/rl.html" | sed 's/.*<dt>//' | tr '\n' ,)" = 'evaluated reward,sampled reward,dropped answers,time,tokens/s,loss,' ]; then
    ok "six tiles, the reward first"; else fail "six tiles, the reward first: $(grep -o '<dt>[^<]*' "$dir/rl.html" | tr '\n' ,)"; fi
if grep -q '^tokens/s/rank  *4$' "$dir/out" && ! grep -q 'tokens/s/GPU' "$dir/rl.html"; then ok "ranks without GPUs are no GPUs"; else fail "ranks without GPUs are no GPUs" "$dir/out"; fi
if grep -q '<b>2 generators</b>.*title="generating 1.0000 s"' "$dir/rl.html"; then ok "generators have a lane in the timeline"; else fail "generators have a lane in the timeline"; fi
# ---- a page that follows a run ----
"$ravel" report "$dir/follow" --serve >"$dir/log" 2>&1 && fail "a folder that is not there is served" || ok "a folder that is not there is not served"
mkdir -p "$dir/follow"
"$ravel" report "$dir/follow" --serve --listen 0 2>"$dir/served" &
server=$!
for _ in $(seq 600); do grep -q 'http://localhost:' "$dir/served" && break; sleep 0.1; done
url=$(grep -o 'http://localhost:[0-9]*/' "$dir/served")
if command -v python3 >/dev/null 2>&1; then
    check "the page is made again when a run goes on" python3 - "$url" "$dir/follow/metrics.jsonl" <<'END'
import http.client, json, sys, urllib.error, urllib.request
def get(path):
    try:
        with urllib.request.urlopen(sys.argv[1] + path, timeout=60) as answer: return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error: return error.code, error.read().decode()
code, page = get("")
assert code == 503 and "no such file" in page and 'http-equiv="refresh"' in page, (code, page)
before = get("stamp")
with open(sys.argv[2], "w") as f: f.write('{"step": 1, "train/loss": 2.5}\n')
assert get("stamp") != before and get("stamp") == get("stamp")
code, page = get("")
assert code == 200 and '"train/loss":{"v":[2.5]}' in page and "follow(" in page, code
with open(sys.argv[2], "a") as f: f.write('{"step": 2, "train/loss": 1.5}\n')
assert '"v":[2.5,1.5]' in get("")[1]
with open(sys.argv[2], "a") as f: f.write('{"step": 3, "train/loss": 0.5, "eval/loss": 4}\n')
code, news = get("news?2")
news = json.loads(news)
assert code == 200 and news["runs"][0]["metrics"] == {"rows": 3, "step": [3], "series": {"train/loss": {"v": [0.5]}, "eval/loss": {"v": [4]}}}, news
assert "<h1>Run follow</h1>" in news["head"] and "<td>" not in news["head"], news["head"]
assert json.loads(get("news?4")[1]) == {"whole": True} == json.loads(get("news?x")[1])
assert get("stamp")[1].split()[1:] == ["ended"]
assert get("metrics.jsonl")[0] == 404
END
else skip "python3 is not installed: the served page was not read"; fi
if command -v chromium >/dev/null 2>&1; then
    (n=3; while [ $n -lt 3000 ]; do printf '{"step": %d, "train/loss": 1}\n' $n >>"$dir/follow/metrics.jsonl"; n=$((n + 1)); sleep 0.02; done) &
    writer=$!
    sh tests/browser.sh "$dir" --virtual-time-budget=60000 --dump-dom "$url" >"$dir/dom.html" 2>"$dir/console"
    if grep -q 'data-drawn="[1-9]' "$dir/dom.html" && grep -q '<span id="live" class="over">ended<' "$dir/dom.html" && ! grep -q 'data-error' "$dir/dom.html"; then ok "the page in a browser follows the run"; else fail "the page in a browser follows the run: $(grep -o '<body[^>]*>' "$dir/dom.html")"; fi
    kill $writer 2>/dev/null
fi
kill -INT $server
if wait $server; then ok "Ctrl-C ends it"; else fail "Ctrl-C ends it"; fi
says "--serve writes no file" 2 "writes no file" "$ravel" report "$dir/rl" --serve --html x.html
# ---- answers ----
mkdir -p "$dir/answers"
printf '{"step": 1, "reward/mean": 0.1, "train/skipped": 0}\n{"step": 2, "reward/mean": 0.3, "train/skipped": 1}\n' >"$dir/answers/metrics.jsonl"
cat >"$dir/answers/samples.jsonl" <<'END'
{"step": 0, "reward": 0.5, "prompt": "</script><script>document.body.dataset.stolen=1</script>", "response": "<img src=x onerror='document.body.dataset.stolen=2'>", "answer": "\"quoted\" & 'so'"}
{"step": 1, "reward": 9, "prompt": "of the attempt before", "response": "x"}
{"step": 1, "reward": NaN, "prompt": "no JSON", "response": "x"}
[1]
{"step": 1, "reward": -1, "prompt": "p\u001b[2J", "response": "<!--</script>-->\u009b31m"}
{"step": 2, "rew
END
says "answers of a run" 0 "" "$ravel" report "$dir/answers" --html "$dir/answers.html"
if grep -q '^skipped updates  *1$' "$dir/out" && grep -q 'skipped updates' "$dir/answers.html"; then ok "skipped updates are counted on terminal and page"; else fail "skipped updates are counted" "$dir/out"; fi
if grep -q '^last answer of answers: "p.u001b\[2J" -> "<!--</script>-->?.*31m", reward -1$' "$dir/out" && ! LC_ALL=C grep -q "$(printf '\302\233')" "$dir/out"; then
    ok "the last answer on the terminal, without control characters"; else fail "the last answer on the terminal" "$dir/out"; fi
mkdir -p "$dir/asked"
printf '{"step": 1, "train/loss": 1}\n' >"$dir/asked/metrics.jsonl"
printf '{"step": 1, "prompt": "%0200d \303\251 what is asked?", "response": "this"}\n' 7 >"$dir/asked/samples.jsonl"
says "a long prompt" 0 "" "$ravel" report "$dir/asked"
if grep -q '^last answer of asked: "0*7 é what is asked?" -> "this"$' "$dir/out" && ! grep -q '"0\{80\}' "$dir/out"; then ok "of a long prompt the end is shown"
else fail "of a long prompt the end is shown" "$dir/out"; fi
if [ "$(grep -c '</script>' "$dir/answers.html")" = 2 ]; then ok "an answer cannot leave its place in the page"; else fail "an answer cannot leave its place in the page"; fi
if command -v chromium >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; then
    sh tests/browser.sh "$dir" --enable-logging=stderr --virtual-time-budget=4000 \
        --dump-dom "file://$(realpath "$dir/answers.html")" >"$dir/dom.html" 2>"$dir/console"
    check "answers are shown as text" python3 - "$dir/dom.html" <<'END'
import html.parser, sys
class Page(html.parser.HTMLParser):
    cells, inside, body = [], False, {}
    def handle_starttag(self, tag, attrs):
        assert tag != "img", attrs
        if ("class", "answers") in attrs: self.cells = []
        if tag == "body": self.body = dict(attrs)
        if tag == "td": self.inside, self.cells = True, self.cells + [""]
    def handle_endtag(self, tag):
        if tag == "td": self.inside = False
    def handle_data(self, data):
        if self.inside: self.cells[-1] += data
page = Page()
page.feed(open(sys.argv[1]).read())
assert "data-stolen" not in page.body and "data-error" not in page.body, page.body
want = [["0", "0.5", "</script><script>document.body.dataset.stolen=1</script>", "<img src=x onerror='document.body.dataset.stolen=2'>", "\"quoted\" & 'so'"],
        ["1", "-1", "p\x1b[2J", "<!--</script>-->\x9b31m", ""]]
assert page.cells[:10] == sum(want, []), page.cells[:12]
END
    said=$(sh tests/cli/narrow.sh "$dir/answers.html" "$dir")
    if [ -z "$said" ]; then ok "page with answers on 375 pixels"; else fail "page with answers on 375 pixels: $said"; fi
fi
says "a run of one update" 0 "" "$ravel" report "$dir/tiny" --html "$dir/tiny.html"
if command -v chromium >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; then
    page "page of an odd run" "$dir/odd.html" 1 1400
    page "page of one update" "$dir/tiny.html" 1 1400
fi
mkdir -p "$dir/below" "$dir/above"
echo '{"step": 1, "reward/mean": -0.5, "eval/loss": 2}' >"$dir/below/metrics.jsonl"
echo '{"step": 1, "reward/mean": 0.25, "eval/loss": 1}' >"$dir/above/metrics.jsonl"
says "runs whose reward is below 0" 0 "" "$ravel" report "$dir/below" "$dir/above"
if grep -Eq '^reward, last +-0.5 +0.25$' "$dir/out" && grep -Eq '^eval loss, last +2 +1 +x 0.5$' "$dir/out"; then
    ok "a ratio is shown where it means something"; else fail "a ratio is shown where it means something" "$dir/out"; fi
says "an empty run is an error" 1 "metrics.jsonl: there is no such file" "$ravel" report "$dir/empty"
: >"$dir/empty/metrics.jsonl"
says "a run without updates is an error" 1 "there is no whole update in it" "$ravel" report "$dir/empty"
says "no such run" 1 "no such folder" "$ravel" report "$dir/nothing"
says "a config that is no JSON" 1 "config.json: JSON, line 2" sh -c "echo '{' >$dir/torn/config.json; $ravel report $dir/torn"
says "no run" 2 "which run" "$ravel" report
says "a mistyped flag" 2 "did you mean --html" "$ravel" report "$dir/b" --htlm x
says "a folder that cannot be written" 1 "cannot write it" "$ravel" report "$dir/b" --html /no/such/folder/x.html
says "a full disk" 1 "No space left" "$ravel" report "$dir/b" --html /dev/full
says "no trace" 1 "no trace-0.json" "$ravel" report "$dir/odd" --trace "$dir/x.json"
says "help" 0 "" "$ravel" report --help

# ---- docs ----
"$ravel" report --list-metrics >"$dir/list.md"
sed '1,/^<!-- from here on/d' docs/metrics.md >"$dir/docs.md"
if diff "$dir/docs.md" "$dir/list.md" >"$dir/log"; then ok "docs/metrics.md is what ravel report --list-metrics prints"; else fail "docs/metrics.md differs from ravel report --list-metrics" "$dir/log"; fi
if command -v mandoc >/dev/null 2>&1; then
    mandoc -T lint -W warning docs/man/ravel-report.1 >"$dir/log" 2>&1 && ok "man page" || fail "man page" "$dir/log"
else skip "mandoc is not installed: the man page was not checked"; fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
