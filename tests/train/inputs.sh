# Bad inputs of `ravel train`: each gets a status other than 0, a sentence that says what is wrong, and no run folder.
# BUILD names the build folder. Ends with "N passed, N failed".
set -u
ravel=$PWD/$BUILD/ravel dir=$(mktemp -d)
case $BUILD in /*) ravel=$BUILD/ravel ;; esac
process=""
trap '[ -z "$process" ] || kill -9 $process 2>/dev/null; rm -rf "$dir"' EXIT
. tests/options.sh
cd "$dir" || exit 1
passed=0 failed=0
small="--hidden 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 128 --lr 0.003 --quiet"

# CODE SAYS ARGS...: the run is refused, and leaves nothing behind
refuse() {
    code=$1 says=$2; shift 2
    timeout 300 "$ravel" train "$@" --run refused >out 2>&1
    got=$?
    if [ $got = "$code" ] && grep -q -e "$says" out && [ ! -e refused ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)); echo "  FAIL  train $*: exit status $got, expected $code and \"$says\": $(tail -n 3 out)"
        [ -e refused ] && { echo "        a run folder is left"; rm -rf refused; }
    fi
}
ok() { if eval "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  $1: $(tail -n 3 out)"; fi; }

good='{"prompt": "ab", "response": "cd"}'
printf '%s\n' "$good" "$good" "$good" "$good" >good.jsonl
printf '%s\n' "$good" 'nonsense' '{"text": 3}' '{}' '[1]' '{"input_ids": []}' '{"input_ids": [1, 999999]}' "$good" >bad.jsonl
{ echo "$good"; printf '\n{"text": "%0300d"}\n' 7; echo "$good"; printf '{"text": "%0200d"}\n' 7; } >long.jsonl
printf '%s\n' '{"input_ids": [5, 6, 7, 8], "prompt_length": 4}' '{"input_ids": [5, 6, 7, 8], "prompt_length": 3}' >cut.jsonl
: >empty.jsonl
printf '%s\n' '{"prompt": "1+1=", "answer": 2}' '{"prompt": "is it?", "answer": true}' '{"prompt": "x", "answer": "y"}' >answers.jsonl
printf '%s\n' '{"prompt": "1+1="}' '{"prompt": "2+2=", "answer": "4"}' >some.jsonl
printf '%s\n' '{"prompt": "1+1="}' '{"prompt": "2+2="}' >none.jsonl
mkdir folder nan

# ---- sft: data ----
refuse 1 'missing.jsonl: cannot open' sft --data missing.jsonl $small
refuse 1 'has no rows' sft --data empty.jsonl $small
refuse 1 'folder' sft --data folder $small
refuse 1 '6 bad rows (--bad-rows skip' sft --data bad.jsonl $small
ok "the first bad rows are named with their lines" 'grep -q "bad.jsonl:2: " out && grep -q "bad.jsonl:6: " out && grep -q "and 1 more" out'
refuse 1 '2 samples over the budget, the longest has 30[0-9]' sft --data long.jsonl $small
ok "lines are counted as an editor counts them" 'grep -q "long.jsonl:3: " out && grep -q "long.jsonl:5: " out'
refuse 1 'nothing to learn' sft --data cut.jsonl --truncate 3 $small
refuse 2 'leaves nothing to evaluate' sft --data good.jsonl --eval-share 0.1 $small
refuse 2 'give one of --data' sft
refuse 2 'more than one was given' sft --data good.jsonl --task sort
refuse 2 'did you mean "sort"' sft --task sorting
refuse 2 'JSON' sft --mock '{"mode"' $small
# ---- sft: options ----
refuse 2 'did you mean --steps' sft --task sort --stpes 3
refuse 2 'is not an interval' sft --task sort --checkpoint-every soon
refuse 2 'is not known' sft --task sort --gpu h1000
refuse 2 'for a new byte model' sft --task sort --model x --hidden 64
refuse 2 'not both' sft --task sort --model x --shape y
refuse 2 'above lr' sft --task sort --min-lr 1
refuse 2 'is not a number' sft --task sort --lr eleven
refuse 1 'missing-model' sft --task sort --model missing-model
refuse 1 'config.json' sft --task sort --model folder
refuse 2 'no set of kernels' sft --task sort --kernels gpu9 $small
refuse 2 'has no place in a run directory' sft --task sort --sinks jsnl $small
# ---- resume ----
refuse 2 'no run to resume' sft --resume
mkdir runs && "$ravel" train sft --task sort --steps 2 --batch 4 $small --run runs/first >/dev/null 2>&1
timeout 300 "$ravel" train sft --resume --run runs/frist >out 2>&1
ok "a mistyped run gets a suggestion" '[ $? != 99 ] && grep -q "did you mean runs/first?" out && [ ! -e runs/frist ]'
"$ravel" train sft --data good.jsonl --steps 2 --batch 2 $small --run changed >/dev/null 2>&1
printf '%s\n' '{"prompt": "ab", "response": "cx"}' >>good.jsonl
timeout 300 "$ravel" train sft --resume --run changed --steps 4 >out 2>&1
ok "changed data is not resumed" '[ $? = 1 ] && grep -q "is not the file that changed was trained on" out'
"$ravel" train sft --task sort --steps 100000 --batch 4 $small --run busy >/dev/null 2>&1 &
process=$!
for _ in $(seq 1200); do [ -s busy/metrics.jsonl ] && break; sleep 0.05; done
timeout 300 "$ravel" train sft --task sort --run busy $small >out 2>&1
ok "a folder in use is refused, with the process" '[ $? = 1 ] && grep -q "in use by process $process" out'
timeout 300 "$ravel" train sft --run busy --resume >out 2>&1
ok "... also before its first checkpoint" '[ $? = 1 ] && grep -q "in use by process $process" out && ! ls busy/checkpoints/step-* >/dev/null 2>&1'
kill -INT $process; wait $process; process=""
mkdir dead && cp busy/config.json dead/
timeout 300 "$ravel" train sft --resume --run dead >out 2>&1
ok "a run without a checkpoint is not begun again" '[ $? = 1 ] && grep -q "has no checkpoint to resume from" out'
# ---- rows that are skipped: named once, in every epoch left out ----
pair='{"prompt": "a", "chosen": "b", "rejected": "c"}'
printf '%s\n' "$pair" '{"prompt": "a", "chosen": "b", "rejected": "b"}' "$pair" '{"x": 1}' "$pair" >equal.jsonl
refuse 1 '2 bad rows' dpo --data equal.jsonl $small
ok "equal answers are named" 'grep -q "equal.jsonl:2: chosen and rejected are the same" out'
for how in "dpo --data equal.jsonl" "dpo --data equal.jsonl --ranks 2 --eval-share .4 --eval-every 1" "sft --data bad.jsonl"; do
    rm -rf left; timeout 300 "$ravel" train $how $small --bad-rows skip --epochs 3 --batch 2 --run left >out 2>&1
    ok "bad rows are left out: $how" '[ $? = 0 ] && [ "$(grep -c "jsonl:2: " out)" = 1 ]'
done
# ---- grpo ----
tiny="--ranks 1 --prompts 2 --group-size 2 --steps 1 --max-tokens 4 $small"
refuse 2 'not both' grpo --data answers.jsonl --task sort
refuse 2 'grpo improves a model' grpo --data answers.jsonl
refuse 2 'grpo improves a model' grpo --env-command 'exit 0'
refuse 2 'give --eval-data or --eval-share' grpo --data answers.jsonl --eval-data some.jsonl --eval-share .5 $tiny
refuse 1 'no.jsonl: cannot be read\|no.jsonl cannot be read\|no.jsonl: ' grpo --data answers.jsonl --eval-data no.jsonl $tiny
refuse 2 '0 (off) or above 1' grpo --dual-clip 0.5
refuse 2 'refit-buffer-size 100' grpo --refit-buffer-size 100
RAVEL_REFIT_NUM_BUFFERS=many; export RAVEL_REFIT_NUM_BUFFERS
refuse 2 'RAVEL_REFIT_NUM_BUFFERS is .many.' grpo --task sort $tiny --refit collective
timeout 300 "$ravel" train grpo --task sort $tiny --refit-buffers 2 --refit-buffer-size 8k --run buffers >out 2>&1
ok "with --refit-buffers the environment is not looked at" '[ $? = 0 ]'
unset RAVEL_REFIT_NUM_BUFFERS
refuse 1 '2 of 2 rows of none.jsonl cannot be used' grpo --data none.jsonl $tiny
ok "... because nothing can score them" 'grep -q "no --reward-command" out'
refuse 1 '1 of 2 rows of some.jsonl cannot be used' grpo --data some.jsonl $tiny
refuse 1 'do not fit\|tokens; ' grpo --data answers.jsonl $(usual "$tiny" --max-tokens) --max-tokens 125
refuse 1 'time limit\|exit code\|reward' grpo --reward-command 'exit 3' $tiny
timeout 300 "$ravel" train grpo --reward-command "sed -u 's/{\"id\": \([0-9]*\),.*/{\"id\": \1, \"reward\": 1}/'" $(usual "$tiny" --steps) --steps 9 --max-flat 2 --run flat >out 2>&1
ok "rewards that never differ end a run, with a checkpoint" '[ $? = 1 ] && grep -q "all equal within their groups" out && grep -q "resume with .*--run flat --resume" out'
timeout 300 "$ravel" train grpo --data some.jsonl --bad-rows skip $tiny --run skipped >out 2>&1
ok "rows without an answer can be skipped, and are counted" '[ $? = 0 ] && grep -q "1 bad row is skipped" out'
timeout 300 "$ravel" train grpo --data answers.jsonl $tiny --run numbers --eval-prompts 0 >out 2>&1
ok "answers may be numbers and booleans" '[ $? = 0 ]'
timeout 300 "$ravel" train grpo --run numbers --resume --steps 2 >out 2>&1
ok "a run without evaluation is resumed" '[ $? = 0 ] && grep -q "done after 2 updates" out'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
