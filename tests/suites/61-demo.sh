# `make demo` does what it says: it runs through, the reward rises clearly, the pictures are there.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" all >"$BUILD/demo-build.log" 2>&1 || { cat "$BUILD/demo-build.log"; exit 1; }
passed=0 failed=0 log=$BUILD/demo.log
check() { if eval "$2"; then passed=$((passed + 1)); echo "  ok    $1"; else failed=$((failed + 1)); echo "  FAIL  $1"; fi; }
sh mk/demo.sh "$BUILD" >"$log" 2>&1
code=$?
figure() { sed -n "s/^  $1 *\([0-9.]*\).*/\1/p" "$log" | head -n 1; }
before=$(figure 'reward before') after=$(figure 'reward after') first=$(figure 'sampled, first') last=$(figure 'sampled, last')
check "it runs through" '[ $code = 0 ]'
check "greedy answers become better: $before to $after" 'awk "BEGIN { exit !($after >= $before + 0.1) }"'
check "sampled answers become much better: $first to $last" 'awk "BEGIN { exit !($last >= $first + 0.2) }"'
for what in "refit overlap" "tokens/s" "packing efficiency"; do
    check "the end says: $what" 'sed -n "/^Result:/,\$p" "$log" | grep -q "^  $what  *[0-9]"'
done
for page in plan.html grpo.html; do check "$page is there" '[ -s "$BUILD/demo/$page" ]'; done
[ $failed = 0 ] || tail -n 30 "$log"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
