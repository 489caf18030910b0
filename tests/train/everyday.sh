# What people do every day with `ravel train`: data in several files, evaluations, configurations. Ends with "N passed, ...".
RAVEL=${BUILD:-build}/ravel
. tests/cli/lib.sh
small="--hidden 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 --budget 128 --lr 0.003 --quiet"
root=$PWD
case $RAVEL in /*) ;; *) RAVEL=$root/$RAVEL ;; esac
cd "$T" || exit 1
rows() { # NAME COUNT: an array of rows
    awk -v name="$1" -v count="$2" 'BEGIN { print "["; for (i = 0; i < count; i++)
        printf "  {\"prompt\": \"%s%d+1=\",\n   \"response\": \"%d\"}%s\n", name, i, i + 1, i + 1 < count ? "," : "\n]" }'
}
rows a 40 >a.json
rows b 120 >b.json
rows e 16 >'held out.json'
train() { "$RAVEL" train "$@"; }

# ---- several files, and one to evaluate on ----
# shellcheck disable=SC2086
code "arrays with weights, and a file to evaluate on" 0 train sft --data a.json:0.7 b.json:0.3 --eval-data 'held out.json' --eval-every 2 \
    $small --batch 8 --steps 4 --run mixed
says out "eval loss before" "eval loss per token"
grep -c '"eval/loss":' mixed/metrics.jsonl | grep -qx 3 && ok "three evaluations in metrics.jsonl" || bad "three evaluations in metrics.jsonl" "$(cat mixed/metrics.jsonl)"
grep -a -o 'eval/loss' mixed/tensorboard/* | grep -c . | grep -qx 3 && ok "three evaluations in TensorBoard's file" || bad "three evaluations in TensorBoard's file"
asked() { sed 's/.*"step": \([0-9]*\), "sample": \([0-9]*\), "prompt": "\([^"]*\)".*"answer": "\([^"]*\)"}$/\1 \2 \3 \4/' "$1/samples.jsonl" | tr '\n' ,; }
[ "$(asked mixed)" = '0 0 e0+1= 1,0 1 e5+1= 6,0 2 e10+1= 11,2 0 e0+1= 1,2 1 e5+1= 6,2 2 e10+1= 11,4 0 e0+1= 1,4 1 e5+1= 6,4 2 e10+1= 11,' ] &&
    ok "three prompts are answered after each evaluation" || bad "three prompts are answered after each evaluation" "$(cat mixed/samples.jsonl)"
"$RAVEL" report mixed --html mixed.html >out
grep -q '"eval/loss":{"v":\[[0-9.]*,null,' mixed.html && grep -q '"sample": 2, "prompt": "e10+1="' mixed.html && grep -q 'mixed: Fine-tuning of a new byte model on 2 files. Evaluated loss' out &&
    ok "the first evaluation and the answers are in the report" || bad "the first evaluation and the answers are in the report" "$(cat out)"
answers() { # FIRST OPTIONS...: the answers are those of the first layout
    first=$1; shift
    train sft --steps 3 --lr 0.01 --sinks jsonl --budget 128 --batch 8 --eval-tokens 6 --run answers "$@" >out 2>err
    [ -s "$first" ] || cp answers/samples.jsonl "$first"
    [ "$(grep -c . answers/samples.jsonl)" = 6 ] && cmp -s "$first" answers/samples.jsonl && ok "answers with $*" || bad "answers with $*" "$(cat err; diff "$first" answers/samples.jsonl)"
    rm -rf answers
}
for layout in "--dp 2" "--tp 2 --pp 2" "--dp 2 --shard params"; do # the weights are gathered where no rank has all of them
    # shellcheck disable=SC2086
    answers whole --task copy --level 1 --hidden 32 --layers 2 --heads 2 --kv-heads 2 --head-dim 16 --ffn 64 $layout
done
says err "evaluation before training: loss per token" "  copy "
for layout in "--dp 1" "--dp 2 --shard params"; do
    # shellcheck disable=SC2086
    answers adapter --data a.json --eval-share 0.1 --model mixed/checkpoints/step-00000004 --lora-rank 2 $layout
done
code "a folder that holds a run is refused before data is read" 1 train sft --data missing.jsonl --hidden 32 --run mixed
says err "mixed holds a run already"
code "... also by grpo" 1 train grpo --data missing.jsonl --model mixed --run mixed
says err "mixed holds a run already"
code "it is resumed" 0 train sft --run mixed --resume --steps 6
sed -i 's/a0+1/A0+1/' a.json
code "a file of several that has changed" 1 train sft --run mixed --resume --steps 8
says err "is not the file that mixed was trained on"
# shellcheck disable=SC2086
refuses "a weight for one file of two" 2 "1 of 2 files in --data have a weight" "$RAVEL" train sft --data a.json b.json:1 --run refused $small
# shellcheck disable=SC2086
refuses "two ways to evaluate" 2 "--eval-data or --eval-share, not both" "$RAVEL" train sft --data a.json --eval-data b.json --eval-share .5 $small
# shellcheck disable=SC2086
code "a share of the rows" 0 train sft --data a.json --eval-share 0.25 --epochs 1 $small --run share
says out "eval loss per token"

# ---- small things ----
mkdir nothing
(cd nothing && "$RAVEL" train sft --data missing.jsonl --hidden 32) >out 2>err
[ -z "$(ls nothing)" ] && ok "a start that fails leaves no runs/" || bad "a start that fails leaves no runs/" "$(ls nothing)"
says err "missing.jsonl"
grep -q 'rank 0: rank 0' err && bad "one rank number in a sentence" "$(cat err)" || ok "one rank number in a sentence"
printf '{"prompt": "%0250d", "nothing": 1, "the_last_word": 2}\n{"text": "x"}\n' 7 >long.jsonl
printf '{"text": 3, "%0200d": 1, "the_last_word": 2}\n' 7 >>long.jsonl
# shellcheck disable=SC2086
code "a bad row with a long sentence" 1 train sft --data long.jsonl $small --run refused
says err "2 bad rows"

# ---- further than a run was to go: --steps after --epochs, and the other way round ----
# shellcheck disable=SC2086
done_after() { # UPDATES OPTIONS...
    updates=$1; shift
    train sft --run further --resume "$@" >out 2>&1
    grep -q "^done after $updates updates" out && ok "$* goes on to update $updates" || bad "$* goes on to update $updates" "$(tail -n 3 out)"
}
sed -i 's/A0+1/a0+1/' a.json
# shellcheck disable=SC2086
train sft --data a.json --epochs 1 --batch 20 $small --run further >out 2>&1
done_after 5 --steps 5
done_after 8 --epochs 4

# ---- what the model was made for (max_position_embeddings) ----
cp -r mixed/checkpoints/step-00000004 short
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 24/' short/config.json
printf '{"prompt": "%024d", "chosen": "7", "rejected": "8"}\n{"prompt": "1", "chosen": "7", "rejected": "8"}\n' 1 >pairs.jsonl
printf '{"prompt": "%024d", "response": "7"}\n' 1 >samples.jsonl
warns() { # NAME SENTENCE COMMAND...
    name=$1 sentence=$2; shift 2
    "$@" >out 2>err; grep -q "$sentence (max_position_embeddings)" err && ok "$name" || bad "$name" "$(tail -n 3 err)"
}
warns "sft: samples that are too long" 'up to 27 tokens, and the model is made for 24' train sft --data samples.jsonl --model short --budget 64 --batch 1 --steps 1 --run short-sft
warns "dpo: each answer counts by itself" 'up to 27 tokens, and the model is made for 24' train dpo --data pairs.jsonl --model short --budget 64 --batch 2 --steps 1 --run short-dpo
warns "grpo: prompt and answer together" 'answers up to 16, and the model is made for 24 together' train grpo --task sort --model short --prompts 1 --group-size 2 \
    --max-tokens 16 --steps 1 --run short-grpo
"$RAVEL" eval short --data samples.jsonl >out 2>err; name="eval: samples that are too long" says err "and the model is made for 24 (max_position_embeddings)"
warns "generate: the answer ends there" 'answers end where .* the model is made for no more' "$RAVEL" generate short --prompt 1 --max-tokens 30
refuses "generate: a prompt that leaves no room" 1 'leaves no room for an answer: the model is made for 24 (max_position_embeddings)' "$RAVEL" generate short --prompt 11111111111111111111111

# ---- a run's folder is a model everywhere ----
code "ravel plan --cost RUN" 0 "$RAVEL" plan --mock '{}' --budget 16k --cost mixed
code "ravel plan --shape RUN" 0 "$RAVEL" plan --mock '{}' --budget 16k --shape mixed
says out "mixed, kernels"
code "ravel feed --cost RUN" 0 "$RAVEL" feed --mock '{}' --budget 16k --cost mixed --updates 1
code "ravel refit --from RUN" 0 "$RAVEL" refit --from mixed --ranks 2
says out "mixed/checkpoints/step-"
# shellcheck disable=SC2086
code "ravel train --shape RUN --cost RUN" 0 train sft --data a.json --shape mixed --cost mixed --budget 64 --steps 1 --quiet --run as-mixed
grep -q '"shape": "mixed/checkpoints/step-' as-mixed/config.json && grep -q '"hidden_size": 32' as-mixed/checkpoints/step-00000001/config.json && ok "... of its shape" || bad "... of its shape" "$(cat as-mixed/config.json)"

# ---- Ctrl-C while other ranks are waited for ----
"$RAVEL" train sft --task sort --hidden 32 --layers 1 --rendezvous 127.0.0.1:1 --comm-ranks 2 --comm-rank 1 --run alone >out 2>err &
pid=$!
sleep 1
kill -INT $pid
for _ in $(seq 600); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
if kill -9 $pid 2>/dev/null; then bad "Ctrl-C ends a rank that waits for others"; else ok "Ctrl-C ends a rank that waits for others"; fi
wait $pid 2>/dev/null
[ ! -e alone ] && ok "... which leaves no folder" || bad "... which leaves no folder"

# ---- Ctrl-C in an evaluation, in its answers and in a rollout: not waited for ----
many() { # COUNT: rows whose evaluation takes minutes
    awk -v count="$1" 'BEGIN { for (i = 0; i < count; i++) printf "{\"prompt\": \"%0200d+1=\", \"response\": \"%d\"}\n", i, i + 1 }'
}
many 40000 >many.jsonl
interrupt() { # NAME LINE COMMAND...: SIGINT after LINE; sets $ended
    name=$1 line=$2; shift 2
    "$RAVEL" train "$@" --run cut >out 2>err &
    pid=$!
    for _ in $(seq 1200); do grep -q "$line" err && [ -e cut/config.json ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    kill -INT $pid
    for _ in $(seq 1200); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    kill -9 $pid 2>/dev/null && bad "$name: it did not end"
    wait $pid; ended=$?
    [ "$(grep -c 'stopping; Ctrl-C again ends at once, without a checkpoint' err)" = 1 ] && ok "$name: one line" || bad "$name: one line" "$(cat err)"
}
early() { # NAME LINE COMMAND...
    interrupt "$@"
    [ $ended = 130 ] && [ ! -e cut ] && grep -q 'before the first update\|while answers were being' err && ok "$1: status 130 and no folder" || bad "$1: status 130 and no folder" "$ended: $(cat err)"
    rm -rf cut
}
# shellcheck disable=SC2086
without() { echo " $1 " | sed "s/ $2 [^ ]* / /g; s/ --quiet / /g"; } # OPTIONS ONE
loud=$(without "$small" --budget)
# shellcheck disable=SC2086
slow="--hidden 256 --layers 4 --heads 4 --kv-heads 2 --head-dim 64 --ffn 1024 --budget 512"
# shellcheck disable=SC2086
early "an evaluation" "many.jsonl: 40000 rows" sft --data a.json --eval-data many.jsonl $slow --ranks 2
# shellcheck disable=SC2086
early "answers of an evaluation" "evaluation before training" sft --data a.json --eval-data b.json --eval-tokens 1000000 $loud --budget 128
rl="grpo --task sort --prompts 64 --group-size 8 --top-k 1 --stop-ids 255 $(without "$loud" --kv-heads)"
for how in "--kv-heads 1" "--kv-heads 2 --eval-prompts 0 --generators 2 --generator-tp 2 --ranks 2" "--kv-heads 1 --eval-prompts 0 --async 3 --correction tis"; do
    # shellcheck disable=SC2086
    early "a rollout with $how" "memory per generator" $rl --max-tokens 30000 --budget 32768 $how
done
# shellcheck disable=SC2086
train sft --data a.json $slow --batch 1 --steps 2 --run cut >out 2>&1
interrupt "an evaluation, later" "many.jsonl: 40000 rows" sft --resume --steps 5 --eval-data many.jsonl --eval-every 1
grep -q "^stopped after 3 updates" out && [ $ended = 0 ] && [ -d cut/checkpoints/step-00000003 ] && ok "... with a checkpoint of the update before it" || bad "... with a checkpoint of the update before it" "$ended: $(cat out err)"
"$RAVEL" eval cut --data many.jsonl >out 2>err &
pid=$!
sleep 1
kill -INT $pid
for _ in $(seq 1200); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
if kill -9 $pid 2>/dev/null; then bad "Ctrl-C ends ravel eval"; else ok "Ctrl-C ends ravel eval"; fi
wait $pid 2>/dev/null
rm -rf cut
# shellcheck disable=SC2086
train $rl --kv-heads 1 --max-tokens 2 --budget 32768 --steps 2 --run cut >out 2>&1
interrupt "a rollout, later" "memory per generator" grpo --resume --steps 4 --max-tokens 30000
[ $ended = 0 ] && grep -q "^stopped after 2 updates" out && grep -q "resume with .*--run cut --resume" out && ok "... says how to resume" || bad "... says how to resume" "$ended: $(cat out err)"
code "... and is resumed" 0 train grpo --run cut --resume --steps 4 --max-tokens 2
rm -rf cut

# ---- Ctrl-C while a trainer is waited for ----
"$RAVEL" generate mixed --pull 127.0.0.1:1 --prompt x >out 2>err &
pid=$!
for _ in $(seq 600); do grep -q "waiting for a trainer: .*127.0.0.1:1" err && break; sleep 0.1; done
kill -INT $pid
for _ in $(seq 300); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
if kill -9 $pid 2>/dev/null; then bad "Ctrl-C ends a wait for a trainer"; else ok "Ctrl-C ends a wait for a trainer"; fi
wait $pid 2>/dev/null
name="a pull that reaches nobody" says err "waiting for a trainer" "stopped before a trainer was reached at 127.0.0.1:1"

# ---- configurations ----
"$RAVEL" config mixed >next.yaml
grep -q '^data: "a.json:0.7 b.json:0.3"$' next.yaml && grep -q '^# run: mixed$' next.yaml && ok "the options of a run as YAML" || bad "the options of a run as YAML" "$(cat next.yaml)"
code "YAML is taken" 0 train sft --config next.yaml --run next --steps 2
code "a run is taken" 0 train sft --config mixed --run again --steps 2
for run in next again; do # what differs are the folder and the steps
    "$RAVEL" config --all mixed | grep -vE '^(# run|# resume|steps)' >one
    "$RAVEL" config --all $run | grep -vE '^(# run|# resume|steps)' >two
    cmp -s one two && ok "$run has the options of the first" || bad "$run has the options of the first" "$(diff one two)"
done
"$RAVEL" config mixed --json >all.json && cmp -s all.json mixed/config.json && ok "--json is config.json" || bad "--json is config.json" "$(diff all.json mixed/config.json)"
printf 'steps: 5\nlr: 1\nsteps: 6\n' >twice.yaml
refuses "a key that is there twice" 2 '"steps" is there twice' "$RAVEL" train sft --task sort --config twice.yaml
refuses "an option that is given twice" 2 '--lr is given twice' "$RAVEL" train sft --task sort --lr 1 --lr 2
printf 'steps: [5]\n' >list.yaml
refuses "a list in YAML" 2 'list.yaml: line 1: ' "$RAVEL" train sft --task sort --config list.yaml
refuses "a folder that is no run" 1 'cannot' "$RAVEL" config nothing

# ---- completion ----
for shell in bash zsh fish; do
    "$RAVEL" completion $shell >completion.$shell && grep -q eval-data completion.$shell && ok "completion for $shell" || bad "completion for $shell"
    command -v $shell >/dev/null 2>&1 || { skip "$shell is not installed"; continue; }
    $shell -n completion.$shell && ok "$shell reads it" || bad "$shell reads it"
done
bash -c '. ./completion.bash
    complete_line() { COMP_WORDS=(ravel "$@"); COMP_CWORD=$#; _ravel; echo "$1 $2: ${COMPREPLY[*]}"; }
    complete_line pl; complete_line train s; complete_line train sft --sched; complete_line train sft --schedule co; complete_line plan --budg
    complete_line train sft --task so; complete_line train sft --kernels cpu-; complete_line completion z; complete_line help to; complete_line plan --micro_token
    complete_line train sft --learning; complete_line plan --learning' >lines 2>&1
printf 'pl : plan\ntrain s: sft\ntrain sft: --schedule\ntrain sft: constant cosine\nplan --budg: --budget\n' >wanted
printf 'train sft: sort\ntrain sft: cpu-bf16 cpu-avx512bf16\ncompletion z: zsh\nhelp to: tokenize\nplan --micro_token: --budget\ntrain sft: --lr\nplan --learning: \n' >>wanted
! command -v zsh >/dev/null 2>&1 || zsh -f -c 'compdef() { :; }; compadd() { print -r -- "compadd $*"; }; _arguments() { print -r -- arguments; }; . ./completion.zsh
    for line in "plan --micro_tok" "plan --budg" "completion z" "help to"; do words=(ravel ${=line}); CURRENT=3; _ravel; done' >zsh.lines 2>&1
! command -v zsh >/dev/null 2>&1 || { [ "$(sed 's/\(help.*\|compadd chat\).*/\1/' zsh.lines | tr '\n' ,)" = 'compadd -U -- --budget,arguments,compadd bash zsh fish,compadd chat,' ] && ok "zsh answers names of others" ||
    bad "zsh answers names of others" "$(cat zsh.lines)"; }
cmp -s lines wanted && ok "bash completes commands, options and values" || bad "bash completes commands, options and values" "$(diff lines wanted)"
finish
