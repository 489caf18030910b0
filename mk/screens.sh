# The sixteen screenshots of the pages: run, comparison, sweep and plan at 1400 and 390 pixels, light and dark.
#     screens.sh BUILD FOLDER      FOLDER/{run,dpo,compare,sweep}-{1400,390}-{light,dark}.png; runs that are there are used again
set -eu
ravel=$(realpath "$1")/ravel
mkdir -p "$2" && folder=$(realpath "$2")
here=$(realpath "$(dirname "$0")/..")
command -v chromium >/dev/null 2>&1 || { echo "screens: chromium is not installed"; exit 1; }
shape="--hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128"
run() { # NAME KIND OPTIONS: as it is there, or trained
    [ -d "$folder/runs/$1" ] || "$ravel" train "$2" --run "$folder/runs/$1" --budget 512 --quiet $3 >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
}
awk 'BEGIN { for (i = 0; i < 200; i++) printf "{\"prompt\": \"say %d:\", \"chosen\": \"%d\", \"rejected\": \"%d\"}\n", i % 40, i % 40, (i * 7 + 3) % 40 }' >"$folder/pairs.jsonl"
run one sft "--task sort --steps 200 --batch 32 --lr 0.003 --ranks 2 $shape"
run two sft "--task sort --steps 200 --batch 32 --lr 0.001 --schedule constant --aggregation seq-mean-token-mean --sinks jsonl $shape"
run dpo dpo "--data $folder/pairs.jsonl --steps 120 --batch 16 --lr 0.0003 --eval-share 0.1 --eval-every 40 $shape"
run grpo grpo "--model $folder/runs/one --task sort --steps 60 --prompts 8 --group-size 8 --max-tokens 8 --lr 0.0005 --eval-every 20 --ranks 2 --generators 2"
awk 'BEGIN { for (i = 0; i < 3000; i++) print 200 + i * 7919 % 3000; print 5000 }' >"$folder/lengths.csv"
page() { "$ravel" "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }; }
page report "$folder/runs/grpo" --html "$folder/run.html" --quiet
page report "$folder/runs/dpo" --html "$folder/dpo.html" --quiet
page report "$folder/runs/one" "$folder/runs/two" --html "$folder/compare.html" --quiet
page plan --lengths "$folder/lengths.csv" --dp 8 --sweep budget=4k,8k,16k,32k cp=1,2 --shape qwen3-8b --memory 80G --shard params --html "$folder/sweep.html" --quiet
# A window is at least 500 pixels wide: a narrow page is drawn in a frame. Dark is a flag of the browser.
shoot() { # PAGE WIDTH MODE
    case $1-$2 in sweep-*) high=1000 ;; *-390) high=9000 ;; *) high=4200 ;; esac
    [ "$3" = dark ] && mode=--force-dark-mode\ --blink-settings=preferredColorScheme=0 || mode=--blink-settings=preferredColorScheme=1
    printf '<body style="margin:0"><iframe src="file://%s" style="border:0;width:%spx;height:%spx"></iframe>' "$folder/$1.html" "$2" "$high" >"$folder/frame.html"
    (cd "$here" && sh tests/browser.sh "$folder" --hide-scrollbars --allow-file-access-from-files $mode --virtual-time-budget=6000 \
        --window-size="$([ "$2" -lt 500 ] && echo 500 || echo "$2")","$high" --screenshot="$folder/$1-$2-$3.png" "file://$folder/frame.html") >"$folder/log" 2>&1 || true
    [ -s "$folder/$1-$2-$3.png" ] || { tail -n 3 "$folder/log"; exit 1; }
}
for name in run dpo compare sweep; do for width in 1400 390; do for mode in light dark; do shoot $name $width $mode; done; done; done
ls "$folder"/*.png
