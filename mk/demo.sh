#!/bin/sh
# The main job on mock data: a plan for 4096 samples of lognormal lengths on 16 ranks, beside the methods that others use,
# and its picture.
#     mk/demo.sh BUILD
set -eu
build=$1
mkdir -p "$build/demo"
mock='{"mode":"distribution","type":"lognormal","min_seq_len":1024,"max_seq_len":8192,"mean_seq_len":4096,"lognormal_sigma":1.1}'
page="$build/demo/plan.html"

echo
echo "\$ ravel plan --mock '$mock' \\"
echo "      --mock-count 4096 --budget 16k --dp 16 --cost qwen3-0.6b --html $page"
echo
"$build/ravel" plan --mock "$mock" --mock-count 4096 --budget 16k --dp 16 --cost qwen3-0.6b --html "$page" --json "$build/demo/plan.json"
echo
echo "\$ ... --compare"
echo
"$build/ravel" plan --mock "$mock" --mock-count 4096 --budget 16k --dp 16 --cost qwen3-0.6b --compare
echo
echo "The picture: file://$(cd "$(dirname "$page")" && pwd)/plan.html"
echo "The plan for other programs: $build/demo/plan.json"
