# What the scripts here share. A script sources this, calls the checks, and ends with `finish`.
#   RAVEL   the command under test       T   a folder of its own, removed at the end
set -u
RAVEL=${RAVEL:-build/ravel}
PYTHON=$(command -v /usr/bin/python3 || command -v python3)
HERE=tests/cli
T=$(mktemp -d) && trap 'rm -rf "$T"' EXIT
passed=0 failed=0 skipped=0

ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; [ -z "${2:-}" ] || echo "$2" | head -n 15 | sed 's/^/        /'; }
skip() { skipped=$((skipped + 1)); echo "  skip  $1"; }

# code NAME WANTED COMMAND...: the exit code; output goes to $T/out and $T/err
code() {
    name=$1 wanted=$2; shift 2
    "$@" >"$T/out" 2>"$T/err" </dev/null; got=$?
    [ $got = "$wanted" ] && ok "$name" || bad "$name: exit code $got, not $wanted" "$(cat "$T/err")"
}
# says FILE TEXT...: the last command's out or err has each text in it
says() {
    file=$1; shift
    for text in "$@"; do
        grep -qF -- "$text" "$T/$file" && ok "$name says \"$text\"" || bad "$name does not say \"$text\"" "$(cat "$T/$file")"
    done
}
# refuses NAME CODE TEXT COMMAND...: fails with this code, one sentence on stderr and nothing on stdout
refuses() {
    name=$1 wanted=$2 text=$3; shift 3
    "$@" >"$T/out" 2>"$T/err" </dev/null; got=$?
    if [ $got != "$wanted" ]; then bad "$name: exit code $got, not $wanted" "$(cat "$T/err")"
    elif ! grep -qF -- "$text" "$T/err"; then bad "$name does not say \"$text\"" "$(cat "$T/err")"
    elif [ -s "$T/out" ]; then bad "$name: something on stdout" "$(cat "$T/out")"
    elif [ "$(wc -l <"$T/err")" != 1 ]; then bad "$name: not one line" "$(cat "$T/err")"
    else ok "$name"; fi
}
# wrong CODE WORDS COMMAND...: bad input of the command under test. It fails with this code and one sentence on stderr (lists
# are indented), prints nothing that a terminal would obey and nothing on stdout, does not hang, and leaves no $T/refused.
wrong() {
    wanted=$1 text=$2; shift 2
    name="$*: $text"
    timeout 300 "$RAVEL" "$@" >"$T/out" 2>"$T/err" </dev/null; got=$?
    if [ $got != "$wanted" ]; then bad "$name: exit code $got, not $wanted" "$(cat "$T/err")"
    elif ! grep -qF -- "$text" "$T/err"; then bad "$name: the sentence" "$(cat "$T/err")"
    elif [ -s "$T/out" ]; then bad "$name: something on stdout" "$(cat "$T/out")"
    elif [ "$(grep -vc '^  ' "$T/err")" != 1 ]; then bad "$name: not one sentence" "$(cat "$T/err")"
    elif LC_ALL=C tr -d '\n' <"$T/err" | LC_ALL=C grep -q '[[:cntrl:]]'; then bad "$name: control characters" "$(cat -v "$T/err")"
    elif [ -e "$T/refused" ]; then bad "$name: it left a folder" "$(ls "$T/refused")"; rm -rf "$T/refused"
    else ok "$name"; fi
}
# A script that cannot do without Python begins with this.
need_python() { [ -n "$PYTHON" ] || { skip "$1: python3 is not installed"; finish; exit; }; }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ $failed = 0 ]; }
