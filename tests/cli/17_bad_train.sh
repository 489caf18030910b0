# The table of bad inputs, second half: train, generate, tokenize. As in 14_bad.sh, none may be silent; and a run that is
# refused leaves no folder.
. tests/cli/lib.sh
need_python "bad inputs of training"
# shellcheck disable=SC2086
"$RAVEL" train sft --task copy --steps 1 --batch 2 --budget 256 --sinks jsonl --hidden 32 --layers 1 --heads 2 --kv-heads 1 \
    --head-dim 16 --ffn 64 --quiet --run "$T/run" >/dev/null 2>&1
model=$T/run/checkpoints/step-00000001
good='{"prompt": "ab", "response": "cd"}'
pair='{"prompt": "ab", "chosen": "c", "rejected": "d"}'

# ---- generate ----
g() { code=$1 words=$2; shift 2; wrong "$code" "$words" generate --model "$model" --prompt x "$@"; }
wrong 2 "give --model FOLDER" generate
wrong 1 "/none: cannot open it" generate --model /none --prompt x
wrong 2 "--model is empty; is it a variable that is not set?" generate --model "" --prompt x
wrong 2 "word 1 is empty" generate "" --prompt x
wrong 2 "--data is empty" generate --model "$model" --data ""
wrong 2 "--gguf is empty" export "$model" --gguf=
wrong 1 "/none cannot be opened: No such file" merge /none --out "$T/refused"
wrong 1 "is not an adapter" merge docs --out "$T/refused"
wrong 2 "--adapter a=: give NAME=FOLDER" serve "$model" --adapter a=
wrong 2 "is not a port" serve /none --listen 99999
wrong 1 "docs/config.json: cannot open it" generate --model docs --prompt x
wrong 1 "README.md: JSON" generate --model README.md --prompt x
wrong 1 "config.json: cannot open it" generate --model tests/golden/text/qwen --prompt x
g 2 "temperature is -1" --temperature -1
g 2 'temperature: "hot" is not a number' --temperature hot
g 2 "top-p is 0" --top-p 0
g 2 "top-p is 2" --top-p 2
g 2 "top-k is -1" --top-k -1
g 2 "min-p is 1; it must be from 0 to 0.999999" --min-p 1
g 2 "max-tokens is 0" --max-tokens 0
g 2 "samples is 0" --samples 0
g 2 "slots is 0" --slots 0
g 2 "threads is -1" --threads -1
g 2 'no set of kernels called "gpu"' --kernels gpu
g 2 "--out is for JSON lines" --out "$T/x"
g 1 "cannot write it" --json --out /none/x
g 2 'stop-ids is "a"' --stop-ids a
g 2 "needs a model with a tokenizer" --chat-format chatml
wrong 1 "/none cannot be read" generate --model "$model" --data /none
wrong 1 "Is a directory" generate --model "$model" --data "$T"
wrong 1 "holds no prompt" generate --model "$model" --data /dev/null
mkdir "$T/cut" "$T/nan"
cp "$model/config.json" "$T/cut/"; cp "$model/config.json" "$T/nan/"
head -c 200 "$model/model.safetensors" >"$T/cut/model.safetensors"
wrong 1 "model.safetensors" generate --model "$T/cut" --prompt x
"$PYTHON" - "$model/model.safetensors" "$T/nan/model.safetensors" <<'X'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
(n,) = struct.unpack("<Q", data[:8])
head = json.loads(data[8:8 + n])
at = 8 + n + head["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0] + 4 * 17
data[at:at + 4] = struct.pack("<f", float("nan"))
open(sys.argv[2], "wb").write(data)
X
nan="model.layers.0.mlp.up_proj.weight holds NaN or infinity, first in element 17 of 2048"
wrong 1 "$nan" generate --model "$T/nan" --prompt x
wrong 1 "blk.0.ffn_up.weight holds NaN or infinity" export "$T/nan" --gguf="$T/nan.gguf"

# ---- tokenize ----
t() { code=$1 words=$2; shift 2; wrong "$code" "$words" tokenize tests/golden/text/qwen "$@"; }
wrong 2 "name a model folder" tokenize
wrong 1 "/none: cannot open it" tokenize /none --text x
wrong 1 "docs/tokenizer.json: cannot open it" tokenize docs --text x
wrong 1 "line 1 must be a token in base64 and its rank" tokenize README.md --text x
if "$RAVEL" tokenize tests/golden/text/qwen --text x >/dev/null 2>&1; then
    t 1 "/none: cannot open" /none
    t 2 "--decode needs ids" --decode
    t 2 '"-5" is not a token id' --decode --text -5
    t 2 '"99999999999" is not a token id' --decode --text 99999999999
    t 2 "give --rows or --field" --rows --field x README.md
    t 2 "--chat-format and --chat-args are for --rows" --chat-format chatml README.md
    t 2 "limit is -1" --limit -1
    t 1 "README.md:1: JSON" --rows README.md
    t 1 "cannot write it" --out /none/x --text x
    t 2 "--text is instead of files" --text x --rows
    t 2 "did you mean --text?" --txt x
else skip "ids of a text: PCRE2 is not installed"; fi

# ---- train ----
s() { code=$1 words=$2; shift 2; wrong "$code" "$words" train sft --task sort --quiet --run "$T/refused" "$@"; }
wrong 2 "say what to train" train
wrong 2 "did you mean sft?" train stf
s 2 "is one word too many" extra
s 2 "steps is -1" --steps -1
s 2 '"1.5" is not a whole number' --steps 1.5
s 2 "batch is 0" --batch 0
s 2 "level is 13" --level 13
s 2 "give --budget" --budget 0
s 1 "a bin holds 8" --budget 8 --hidden 32
s 2 "lr is 11" --lr 11
s 2 'lr: "nan" is not a number' --lr nan
s 2 "it must be one of constant|linear|cosine" --schedule linearly
s 2 "warmup is -1" --warmup -1
s 2 "lr is -0.5; it must be 0 or more" --lr -0.5
s 2 "beta1 is 2" --beta1 2
s 2 "beta2 is 1; it must be from 0 to 0.999999" --beta2 1
s 2 "eps is 0" --eps 0
s 2 "clip-grad is -1" --clip-grad -1
s 2 "ranks is -1" --ranks -1
s 2 "is not a non-negative whole number" --seed -1
s 2 "keep is -1" --keep -1
s 2 '"10x" is not an interval' --checkpoint-every 10x
s 2 '"-5" is not an interval' --checkpoint-every -5
s 2 "it must be one of f32|bf16" --save-dtype f8
s 2 "max-skipped is -1" --max-skipped -1
s 2 "hidden is 0" --hidden 0
s 1 "3 heads are not a multiple of 2 kv_heads" --heads 3
s 1 "rotary positions need it even" --head-dim 15
s 2 "a byte model needs 258" --vocab 100
s 2 "init-std is 0; it must be from 1e-09 to 10" --init-std 0
s 2 'device is "-1"' --device -1
s 2 "it must be one of" --recompute some
s 2 "it must be one of" --moments f16
s 2 "lower the betas, or say --moments f32" --moments bf16 --beta2 0.999
s 2 "there is no model shape" --shape qwem
s 1 "/none: cannot open it" --shape /none
s 1 "docs/config.json: cannot open it" --model docs
s 1 "$nan" --model "$T/nan"
s 2 "--eval-share is of the rows" --eval-share 0.5
s 2 "it must be from 0 to 0.9" --eval-share 2
s 2 "--truncate is for --data; a task has no rows" --truncate 5
s 2 "--bad-rows is for --data" --bad-rows skip
s 2 "a task has no end" --epochs 2
s 2 "it must be one of token-mean" --aggregation sum
s 2 "is not a port" --http nowhere:99999999
s 2 "/none: cannot open it" --config /none
s 2 "README.md: line" --config README.md
wrong 1 "cannot make the folder" train sft --task sort --quiet --run /proc/none
wrong 1 "a file has that name" train sft --task sort --quiet --run README.md
wrong 2 "there is no run to resume in /none" train sft --resume --run /none
d() { code=$1 words=$2 text=$3; shift 3; printf '%s\n' "$text" >"$T/rows.jsonl"; wrong "$code" "$words" train sft --data "$T/rows.jsonl" --hidden 64 --quiet --run "$T/refused" "$@"; }
d 1 "rows.jsonl:1: JSON" '{"text": '
d 1 "rows.jsonl:1: a row must be a JSON object" '[1]'
d 1 'rows.jsonl:1: a row needs "input_ids"' '{"question": "x"}'
d 1 "conversations need a" '{"messages": [{"role": "user", "content": "x"}]}'
d 1 "are a pair for preference training (dpo)" "$pair"
d 1 "1 sample over the budget" "$good" --budget 4
d 1 "nothing to learn" '{"input_ids": [5, 6], "labels": [-100, -100]}'
d 1 "must be a token id from 0 to 319" '{"input_ids": [5, 999]}'
d 2 "a chat format needs a tokenizer" "$good" --chat-format chatml
d 2 "truncate is -1" "$good" --truncate -1
d 2 "epochs is -1" "$good" --epochs -1
d 2 "more than one was given" "$good" --mock '{}'
wrong 1 "/none: cannot open it" train sft --data /none --hidden 64 --quiet --run "$T/refused"
wrong 1 "is a folder, not a file" train sft --data "$T" --hidden 64 --quiet --run "$T/refused"
wrong 1 "is not a regular file" train sft --data /dev/null --hidden 64 --quiet --run "$T/refused"
wrong 2 "it must be one of lognormal" train sft --mock '{"type":"normal"}' --quiet --run "$T/refused"

# ---- dpo ----
o() { code=$1 words=$2 text=$3; shift 3; printf '%s\n' "$text" >"$T/pairs.jsonl"; wrong "$code" "$words" train dpo --data "$T/pairs.jsonl" --hidden 64 --quiet --run "$T/refused" "$@"; }
wrong 2 'give --data FILE.jsonl with "chosen"' train dpo
wrong 2 "unknown option --task" train dpo --task sort
wrong 1 "/none: cannot open it" train dpo --data /none --hidden 64 --quiet --run "$T/refused"
o 2 "beta is 0; it must be from 1e-06 to 1000" "$pair" --beta 0
o 2 'beta: "x" is not a number' "$pair" --beta x
o 2 "--aggregation and --norm do not apply" "$pair" --norm 3
o 1 "this row is not a pair" "$good"
o 1 "chosen and rejected are the same" '{"prompt": "a", "chosen": "b c", "rejected": "b c"}'
o 1 'a row needs "input_ids"' '{"prompt": "a", "chosen": 3, "rejected": "d"}'

# ---- grpo ----
q() { code=$1 words=$2; shift 2; wrong "$code" "$words" train grpo --quiet --run "$T/refused" "$@"; }
q 2 'did you mean "sort"?' --task sorting
q 2 "group-size is 0" --group-size 0
q 2 "it must be 2 or more" --group-size 1
q 2 "prompts is 0" --prompts 0
q 2 "max-tokens is -1" --max-tokens -1
q 2 "do not fit a budget of 4096" --max-tokens 99999
q 2 "temperature is 0: all answers of a group would be the same" --temperature 0
q 2 "top-p is 0" --top-p 0
q 2 "generators is 0" --generators 0
q 2 "async is 100000" --async 100000
q 2 "updates-per-batch is 0" --updates-per-batch 0
q 2 "2 prompts cannot be dealt to 3 updates" --prompts 2 --updates-per-batch 3
q 2 "it must be one of none|grpo" --preset ppo
q 2 "clip-low is -1" --clip-low -1
q 2 "0 (off) or above 1" --dual-clip 1
q 2 "kl is -1" --kl -1
q 2 "correction-high is -1" --correction-high -1
q 2 "limits of a correction; say which" --correction-high 3
q 2 "are no range" --correction tis --correction-low 0.9 --correction-high 0.5
q 2 "cispo needs --ratio token" --correction cispo --ratio sequence
q 2 "it needs --old trainer" --correction tis --old generator
q 2 "it must be one of auto|trainer|generator" --old mine
q 2 "entropy is -1" --entropy -1
q 2 "reward-seconds is 0" --reward-seconds 0
q 2 "is not a URL" --reward-command http://:x/
q 2 "reached over plain http://" --reward-command https://host/score
q 2 "must be up to 16 tokens below 320" --stop-ids 99999
q 2 "must be up to 16 tokens below 320" --stop-ids x
q 2 "slots is 0" --slots 0
q 2 "--eval-share goes with --data" --eval-share 0.5
q 2 "needs a model with a tokenizer" --chat-format chatml
q 1 "/none cannot be read" --model "$model" --data /none
q 1 "Is a directory" --model "$model" --data "$T"
q 1 "holds no prompt" --model "$model" --data /dev/null
q 1 "$nan" --model "$T/nan"
finish
