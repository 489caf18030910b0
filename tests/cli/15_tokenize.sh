# ravel tokenize, and ravel plan on text.
. tests/cli/lib.sh
G=tests/golden/text/qwen
if ! "$RAVEL" tokenize $G --text x >/dev/null 2>"$T/err"; then
    grep -q pcre2 "$T/err" && { skip "PCRE2 is not installed (Debian: libpcre2-dev)"; finish; exit; }
fi
text='Hello <|im_end|>, wörld!'
code "ids of a text" 0 "$RAVEL" tokenize $G --text "$text"
ids=$(cat "$T/out")
code "ids back to text" 0 "$RAVEL" tokenize $G --decode --text "$ids"
says out "$text"
printf '%s' "$text" >"$T/text"
code "a file" 0 "$RAVEL" tokenize $G "$T/text"
[ "$(cat "$T/out")" = "$ids" ] && ok "a file gives the ids of its text" || bad "a file gives other ids" "$(cat "$T/out")"
printf '%s' "$text" | "$RAVEL" tokenize $G >"$T/out" && [ "$(cat "$T/out")" = "$ids" ] && ok "standard input" || bad "standard input"
code "count" 0 "$RAVEL" tokenize $G "$T/text" --count
says out "$(echo "$ids" | wc -w | tr -d ' ')"
says err "tokens in 1 texts"
cat >"$T/chat.jsonl" <<'X'
{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}

{"prompt": "a", "chosen": "b", "rejected": "c"}
X
code "rows" 0 "$RAVEL" tokenize $G "$T/chat.jsonl" --rows --json
[ "$(wc -l <"$T/out")" = 3 ] && ok "a pair is two lines" || bad "not three lines" "$(cat "$T/out")"
if [ -n "$PYTHON" ]; then
    "$PYTHON" - "$T/out" <<'X' && ok "JSON lines with masks as long as the ids" || bad "JSON lines"
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    assert row["count"] == len(row["ids"]) == len(row["loss_mask"]) and 0 < sum(row["loss_mask"]) < row["count"] + 1
X
else skip "JSON lines with masks as long as the ids: python3 is not installed"; fi
echo '{"a": {"b": "some text"}}' >"$T/field.jsonl"
code "a field" 0 "$RAVEL" tokenize $G "$T/field.jsonl" --field a.b --count
printf '\357\273\277{"text": "a"}\r\n{"text": "b"}\r\n' >"$T/mark.jsonl"
code "a byte order mark" 0 "$RAVEL" tokenize $G "$T/mark.jsonl" --rows --count
says err "in 2 texts"
code "lengths of rows" 0 "$RAVEL" plan --lengths "$T/chat.jsonl" --tokenizer $G --budget 1k
says out "3 samples"
code "lengths of a field" 0 "$RAVEL" plan --lengths "$T/field.jsonl" --tokenizer $G --text-field a.b --budget 1k
says out "1 samples"
refuses "no folder" 2 "name a model folder" "$RAVEL" tokenize
refuses "a folder without a tokenizer" 1 "tokenizer.json" "$RAVEL" tokenize docs --text x
refuses "a folder as a text" 1 "docs: cannot read it" "$RAVEL" tokenize $G docs
refuses "a wrong line" 1 "field.jsonl:1: there is no text \"zz\"" "$RAVEL" tokenize $G "$T/field.jsonl" --field zz
refuses "a row that fits nothing" 1 "this one has \"a\"" "$RAVEL" tokenize $G "$T/field.jsonl" --rows
mkfifo "$T/pipe.jinja"
refuses "a template that is a pipe, at once" 1 "is not a regular file" timeout 60 "$RAVEL" tokenize $G "$T/chat.jsonl" --rows --chat-format "$T/pipe.jinja"
refuses "an unknown chat format" 2 "no chat format \"zz\"" "$RAVEL" tokenize $G "$T/chat.jsonl" --rows --chat-format zz
refuses "text and a file" 2 "instead of files" "$RAVEL" tokenize $G "$T/text" --text x
refuses "no ids" 2 "not a token id" "$RAVEL" tokenize $G --decode --text "1 x"
printf '{"text": "a"}\n{"chosen": "b", "rejected": "some longer text than that"}\n' >"$T/long.jsonl"
refuses "a text over the budget is named by its line" 1 "long.jsonl:2 (" "$RAVEL" plan --lengths "$T/long.jsonl" --tokenizer $G --budget 4
refuses "train-on without rows" 2 "for --rows" "$RAVEL" tokenize $G --text x --train-on last
refuses "plain rows" 2 "not for --rows" "$RAVEL" tokenize $G "$T/chat.jsonl" --rows --plain
refuses "a limit without lines" 2 "counts lines" "$RAVEL" tokenize $G "$T/text" --limit 1
refuses "ids of ids" 2 "leave out" "$RAVEL" tokenize $G --decode --text 1 --json
refuses "field instead of text-field" 2 "--text-field" "$RAVEL" plan --lengths "$T/field.jsonl" --tokenizer $G --field a.b --budget 1k
refuses "a limit of a mock" 2 "not for --mock" "$RAVEL" plan --mock '{"type":"constant","mean_seq_len":8}' --mock-count 4 --limit 2 --budget 1k
refuses "mock-count without a mock" 2 "are for --mock" "$RAVEL" plan --lengths "$T/field.jsonl" --mock-count 4 --budget 1k
refuses "text-field alone" 2 "--tokenizer" "$RAVEL" plan --lengths "$T/field.jsonl" --text-field a --budget 1k
finish
