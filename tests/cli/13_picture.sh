# The page and the still picture. What a browser makes of the page is looked at in headless Chromium.
. tests/cli/lib.sh
"$RAVEL" plan --mock '{"type":"zipf","min_seq_len":64,"max_seq_len":8192,"prompt_share":0.3}' --mock-count 400 --budget 8k --dp 8 --align 64 \
    --updates 2 --cost qwen3-0.6b --html "$T/a.html" --svg "$T/a.svg" --json "$T/a.json" --quiet
"$RAVEL" plan --mock '{}' --mock-count 20000 --budget 16k --dp 64 --sync update --html "$T/b.html" --quiet
printf '5\n6\n' >"$T/<b>&.csv"
"$RAVEL" plan --lengths "$T/<b>&.csv" --budget 100 --dp 3 --html "$T/c.html" --quiet
grep -q '<h1>&lt;b&gt;&amp;.csv</h1>' "$T/c.html" && ok "a file's name is text, not markup" || bad "a file's name in the page"
grep -q '<h1>.*cost qwen3-0.6b' "$T/a.html" && ok "the page names its cost model" || bad "the page does not name its cost model"
"$RAVEL" plan --mock '{}' --mock-count 400 --budget 16k --dp 8 --compare --html "$T/e.html" --quiet
"$RAVEL" plan --mock '{}' --mock-count 400 --sweep budget=4k,16k dp=8,16 cost=tokens,qwen3-0.6b --html "$T/f.html" --quiet
for f in e f; do
    grep -q 'class="best speed " style="--share:100.0%">100.00 %' "$T/$f.html" && ok "$f.html has relative speeds" || bad "$f.html has no relative speeds"
    grep -q '<dt>samples</dt><dd>400</dd>' "$T/$f.html" && grep -q '<dt>tokens</dt><dd>[0-9,]*</dd>' "$T/$f.html" && ok "$f.html has the samples" || bad "$f.html does not have the samples"
done
grep -q '<dt>budget, tokens per bin and rank</dt><dd>16,384</dd>' "$T/e.html" && grep -q '<dt>data-parallel ranks</dt><dd>8</dd>' "$T/e.html" &&
    ok "a comparison has ranks and budget" || bad "a comparison has no ranks and budget"
for f in a b c e f; do
    bad_url=$(grep -oE '(src|href|url\()=?"?(https?:)?//[^" ]*' "$T/$f.html")
    [ -z "$bad_url" ] && ok "$f.html loads nothing from elsewhere" || bad "$f.html loads $bad_url"
    grep -q -e '<!--@' "$T/$f.html" && bad "$f.html has a mark left" || ok "$f.html has every mark filled"
done
if [ -n "$PYTHON" ]; then
    $PYTHON - "$T/a.svg" "$T/a.html" "$T/a.json" <<'PY' && ok "the SVG is XML, and the page's data is the plan" || bad "the SVG is XML, and the page's data is the plan"
import json, re, sys, xml.dom.minidom
xml.dom.minidom.parse(sys.argv[1])
page = open(sys.argv[2]).read()
data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))
plan = json.load(open(sys.argv[3]))
assert data["bin_tokens"] == [b["tokens"] for b in plan["bins"]] and data["bin_slots"] == [b["slot_tokens"] for b in plan["bins"]]
assert data["bin_costs"] == [b["cost"] for b in plan["bins"]] and data["ids"] == [i for b in plan["bins"] for i in b["samples"]]
assert sum(data["lengths"]) == plan["stats"]["actual_tokens"] and len(data["prompts"]) == len(data["ids"])
assert data["steps"] * data["dp"] == len(plan["bins"])
PY
fi
if command -v node >/dev/null 2>&1; then
    awk '/^<script>$/{on=1;next} /^<\/script>$/{on=0} on' "$T/a.html" >"$T/page.js"
    node --check "$T/page.js" 2>"$T/err" && ok "the script parses" || bad "the script parses" "$(cat "$T/err")"
fi
if [ -n "${SKIP_BROWSER:-}" ]; then :
elif command -v chromium >/dev/null 2>&1; then
    for f in a b c; do
        cat >"$T/probe.html" <<'H'
<script>
window.wrong = []; window.onerror = (m, s, l) => { window.wrong.push(m + " line " + l); };
const say = console.error; console.error = (...a) => { window.wrong.push(a.join(" ")); say(...a); };
addEventListener("load", () => {
  const c = document.getElementById("chart"), b = c.getBoundingClientRect();
  const e = (t, x, y) => c.dispatchEvent(new PointerEvent(t, { clientX: b.left + x, clientY: b.top + y, pointerId: 1, bubbles: true, pointerType: "touch" }));
  e("pointerdown", 60, 30); e("pointerup", 60, 30); e("pointermove", 60, 30);
  for (const id of ["by-tokens", "all", "in", "on", "back", "out", "by-time"]) document.getElementById(id).click();
  const step = document.getElementById("step"); step.value = 3; step.onchange();
  const g = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, colours = new Set();
  for (let i = 0; i < g.length; i += 400) colours.add(g[i] + "," + g[i + 1] + "," + g[i + 2]);
  const look = left => { /* the tip comes with the next frame, whenever that is */
    const tip = document.getElementById("tip").textContent;
    if (!tip && left) { setTimeout(look, 50, left - 1); return; }
    document.body.dataset.colours = colours.size; document.body.dataset.tip = tip; document.body.dataset.wrong = window.wrong.join("; ");
  };
  look(80);
});
</script>
H
        awk -v probe="$T/probe.html" '/<script type="application\/json"/{while ((getline line < probe) > 0) print line} {print}' "$T/$f.html" >"$T/look.html"
        for _ in 1 2 3; do # a busy machine may take the page down before its first frame is drawn
            sh tests/browser.sh "$T" --window-size=1280,1000 \
                --virtual-time-budget=5000 --dump-dom "file://$T/look.html" >"$T/dom" 2>"$T/err"
            grep -q 'data-tip="[^"]' "$T/dom" && break
        done
        name="$f.html in Chromium"
        grep -q 'data-ready="yes"' "$T/dom" && ok "$name runs to its end" || bad "$name does not run to its end" "$(tail -n 5 "$T/err")"
        grep -q 'data-wrong=""' "$T/dom" && ok "$name has no errors" || bad "$name has errors" "$(grep -o 'data-wrong="[^"]*"' "$T/dom")"
        grep -qE 'data-tip="(update [0-9]+, )?micro-step [0-9]+, rank [0-9]+' "$T/dom" && ok "$name says what is under the pointer" || bad "$name: the pointer" "$(grep -o 'data-tip="[^"]*"' "$T/dom")"
        said=$(sh tests/cli/narrow.sh "$T/$f.html" "$T")
        [ -z "$said" ] && ok "$name fits 375 pixels" || bad "$name does not fit 375 pixels" "$said"
        grep -qE 'data-colours="([5-9]|[0-9]{2,})"' "$T/dom" && ok "$name draws" || bad "$name draws nothing" "$(grep -o 'data-colours="[^"]*"' "$T/dom")"
    done
    for f in e f; do
        said=$(sh tests/cli/narrow.sh "$T/$f.html" "$T")
        [ -z "$said" ] && ok "the table $f.html fits 375 pixels" || bad "the table $f.html does not fit 375 pixels" "$said"
    done
    "$RAVEL" plan --mock '{"type":"zipf","max_seq_len":8192}' --mock-count 400 --budget 8k --dp 8 --html "$T/d.html" >"$T/out"
    sh tests/browser.sh "$T" --dump-dom "file://$T/d.html" >"$T/dom" 2>/dev/null
    bins=$(awk '/^  bins /{print $2}' "$T/out") steps=$(awk '/^  micro-steps /{print $2}' "$T/out")
    for figure in '<dd>400<small>' "<dd>$bins<small>lower bound" "<dd>$steps<small>lower bound" 'x perfect balance'; do
        grep -qF "$figure" "$T/dom" && ok "the page shows $figure" || bad "the page does not show $figure"
    done
else skip "the page in a browser: chromium is not installed"; fi
finish
