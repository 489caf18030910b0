# The command from outside: exit codes, files, JSON recounted by another program, the page in a browser; then the same
# scripts (but for the browser) with the sanitizers.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" "$BUILD/ravel" >"$BUILD/cli-build.log" 2>&1 || { cat "$BUILD/cli-build.log"; exit 1; }
[ -n "${CHECK:-}" ] || $MAKE --no-print-directory -j2 BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined "$BUILD/asan/ravel" >"$BUILD/cli-build.log" 2>&1 ||
    { cat "$BUILD/cli-build.log"; exit 1; }
passed=0 failed=0 skipped=0
run() { # SCRIPT COMMAND-UNDER-TEST
    echo "$1 with $2"
    RAVEL=$2 sh "$1" >"$BUILD/cli.log" 2>&1; code=$?
    line=$(tail -n 1 "$BUILD/cli.log")
    grep -vE '^  ok |^[0-9]+ passed' "$BUILD/cli.log"
    case "$line" in *" passed, "*) ;; *) echo "  FAIL  $1 did not finish (exit code $code)"; failed=$((failed + 1)); return ;; esac
    p=${line%% *} rest=${line#*passed, } f=${rest%% *} s=${rest#*failed, } s=${s%% *}
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
[ -z "${CHECK:-}" ] || export SKIP_BROWSER=1
for script in tests/cli/[0-9]*.sh; do run "$script" "$BUILD/ravel"; done
export SKIP_BROWSER=1
[ -n "${CHECK:-}" ] || for script in tests/cli/[0-9]*.sh; do run "$script" "$BUILD/asan/ravel"; done
for page in docs/man/*.1; do
    if ! command -v mandoc >/dev/null 2>&1; then echo "  skip  $page: mandoc is not installed"; skipped=$((skipped + 1)); continue; fi
    if said=$(mandoc -Tlint -Wwarning "$page" 2>&1) && [ -z "$said" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  $page"; echo "$said"; fi
done
if said=$(sh mk/man.sh "$BUILD" check); then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL  $said"; fi
for command in $("$BUILD/ravel" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
    if grep -q "^\.It Cm $command\$" docs/man/ravel.1 && [ -f "docs/man/ravel-$command.1" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "  FAIL  ravel $command is not in docs/man/ravel.1, or has no page"; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
