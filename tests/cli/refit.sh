# ravel refit: files out against files in, every cut, JSON, traces, and what it refuses.
. tests/cli/lib.sh
R="$RAVEL refit"
MODEL=tests/golden/qwen3-tiny/model.safetensors

same() { cmp -s "$MODEL" "$1" && ok "$2" || bad "$2"; }
code "three ranks" 0 $R --from "$MODEL" --to "$T/a.safetensors" --ranks 3
says out "1 sender (tp 1), 2 receivers (tp 1)" "needed" "moved" "per rank in all" "GB/s" "hidden" "2 receivers compared with the file: equal" "written"
same "$T/a.safetensors" "the file comes back byte for byte"
for cut in "4 6 2" "2 6 4" "3 5 2" "2 6 1" "4 8 4"; do
    set -- $cut
    code "$1 senders, $2 ranks, receive-tp $3" 0 $R --from "$MODEL" --to "$T/b.safetensors" --senders $1 --ranks $2 --receive-tp $3
    same "$T/b.safetensors" "and back ($cut)"
done
for how in "--num-buffers 1 --buffer-bytes 4k" "--num-buffers 16" "--threads 2" "--updates 3 --delta" "--updates 3 --stage undo" \
    --audit; do
    code "$how" 0 $R --from "$MODEL" --to "$T/c.safetensors" --ranks 5 --senders 2 $how
    same "$T/c.safetensors" "and back ($how)"
done
code "into a device" 0 $R --from "$MODEL" --to /dev/null
[ -c /dev/null ] && ok "which is still one" || bad "/dev/null is no device any more"
cp "$MODEL" "$T/own.safetensors"; ln -s own.safetensors "$T/own-link.safetensors"
refuses "over its own input" 2 "would write over a file that is read" $R --from "$T/own.safetensors" --to "$T/own-link.safetensors"
same "$T/own.safetensors" "which stays"
mkfifo "$T/pipe.safetensors"
refuses "into a named pipe" 1 "takes bytes in order only; give a file" timeout 60 $R --from "$MODEL" --to "$T/pipe.safetensors" --quiet
code "delta" 0 $R --from "$MODEL" --updates 2 --delta
says out "unchanged"
code "a cast" 0 $R --from "$MODEL" --to "$T/d.safetensors" --dtype bf16 --ranks 4 --receive-tp 3
says out "equal"
[ "$(wc -c <"$T/d.safetensors")" -lt "$(wc -c <"$MODEL")" ] && ok "which makes it smaller" || bad "which makes it smaller"
code "a folder" 0 $R --from "$(dirname "$MODEL")" --quiet
[ -s "$T/out" ] && bad "quiet" "$(cat "$T/out")" || ok "quiet"

code "JSON on standard output" 0 $R --from "$MODEL" --updates 3 --json - --trace "$T/trace.json"
cp "$T/out" "$T/report.json"
if [ -n "$PYTHON" ]; then
    $PYTHON - "$T" "$MODEL" <<'PY' && ok "JSON and trace are what they say" || bad "JSON and trace are what they say"
import json, os, struct, sys
t, model = sys.argv[1:]
with open(model, "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
size = os.path.getsize(model) - 8 - n
j = json.load(open(t + "/report.json"))
assert j["senders"] == 1 and j["receivers"] == 2 and j["compared_receivers"] == 2 and len(j["refits"]) == 3
for i, r in enumerate(j["refits"]):
    assert r["version"] == i + 1 and r["bytes_needed"] == 2 * size, (r["bytes_needed"], size)
    assert r["bytes_needed"] <= r["bytes_moved"] < r["bytes_needed"] * 1.05 and r["bytes_kept"] == 0
    assert 0 <= r["overlap"] <= 1 and r["seconds"] > 0 and set(r["phases"]) == {"iterate", "pack", "send", "receive", "verify", "load", "vote"}
    assert r["peak_bytes"] < r["num_buffers"] * r["buffer_bytes"] + (1 << 20)
events = json.load(open(t + "/trace.json"))["traceEvents"]
names = {e["name"] for e in events}
assert {"pack", "send", "receive", "load", "process_name"} <= names and {e["pid"] for e in events} == {0, 1, 2}
opened = [(e["id"], e["name"], e["cat"]) for e in events if e["ph"] == "b"]
closed = [(e["id"], e["name"], e["cat"]) for e in events if e["ph"] == "e"]
assert sorted(opened) == sorted(closed) and len(opened) >= 6
PY
else skip "JSON and trace are what they say: no Python"; fi

refuses "no file" 1 "cannot open it" $R --from "$T/none"
refuses "nobody publishes" 1 "unix:$T/none could not be reached within 1 s: No such file or directory" $R --pull "unix:$T/none" --shape qwen3-0.6b --timeout 1
refuses "nothing to do" 2 "--from FILE" $R
refuses "nobody to receive" 2 "leave no rank to receive" $R --from "$MODEL" --ranks 2 --senders 2
refuses "senders that do not divide" 2 "no multiple of send-tp 2" $R --from "$MODEL" --ranks 4 --senders 3 --send-tp 2
refuses "a mistyped option" 2 "num-buffers" $R --from "$MODEL" --num-bufers 3
refuses "a dtype that is none" 2 "f99" $R --from "$MODEL" --dtype f99
refuses "a dtype that takes scales" 2 "can be cast to" $R --from "$MODEL" --dtype f8-e4m3
RAVEL_REFIT_NUM_BUFFERS=many; export RAVEL_REFIT_NUM_BUFFERS
refuses "a bad environment" 2 'RAVEL_REFIT_NUM_BUFFERS is "many"; allowed is a whole number from 1 to 16' $R --from "$MODEL"
RAVEL_REFIT_NUM_BUFFERS=3; code "a good environment" 0 $R --from "$MODEL"; says out "3 buffers"; unset RAVEL_REFIT_NUM_BUFFERS
code "a folder that cannot be written" 1 $R --from "$MODEL" --to "$T/no/such/folder/x"
says err "no/such/folder"
grep -q written "$T/out" && bad "it says written" || ok "and it does not say written"
code "help" 0 $R --help
says out "usage: ravel refit" "--receive-tp" "RAVEL_REFIT_BUFFER_BYTES" "Examples:"
missing=$(for o in $(sed -n 's/^  --\([a-z-]*\).*/\1/p' "$T/out"); do
    grep -qE -e "Fl -(no-)?$o( |\$)" docs/man/ravel-refit.1 || echo "--$o"; done)
[ -z "$missing" ] && ok "every option is in the manual" || bad "every option is in the manual" "$missing"
finish
