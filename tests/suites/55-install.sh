# What `make install` leaves: a folder that can be moved, programs that build with pkg-config alone, a library that finds
# its modules beside itself, man pages that a reader shows without odd words.
set -u
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
fail() { failed=$((failed + 1)); echo "  FAIL  $1"; [ -z "${2:-}" ] || head -n 15 "$2"; }
skip() { skipped=$((skipped + 1)); echo "  skip  $1"; }
dir=$PWD/$BUILD/install log=$PWD/$BUILD/install.log
rm -rf "$dir" "$dir.moved"
if $MAKE --no-print-directory -j2 BUILD="$BUILD" PREFIX="$dir" install >"$log" 2>&1; then ok "make install"; else fail "make install" "$log"; fi
mv "$dir" "$dir.moved"; dir=$dir.moved
if command -v pkg-config >/dev/null 2>&1; then
    export PKG_CONFIG_PATH="$dir/lib/pkgconfig" LD_LIBRARY_PATH="$dir/lib"
    flags=$(pkg-config --define-variable=prefix="$dir" --cflags --libs ravel)
    for source in examples/*.c; do
        name=$(basename "$source" .c)
        # shellcheck disable=SC2086
        if gcc -std=c11 -o "$dir/$name" "$source" $flags >"$log" 2>&1; then ok "$name with pkg-config --libs"; else fail "$name with pkg-config --libs" "$log"; fi
    done
    if "$dir/01_plan" >"$log" 2>&1; then ok "01_plan runs with the installed library"; else fail "01_plan runs with the installed library" "$log"; fi
    for kind in openmpi mpich; do
        if [ ! -e "$dir/lib/libravel_$kind.so" ] || ! command -v mpirun.$kind >/dev/null 2>&1; then skip "$kind is not installed"; continue; fi
        root=""; [ $kind = mpich ] || root="--allow-run-as-root --oversubscribe"
        # shellcheck disable=SC2086
        if timeout 300 mpirun.$kind $root -n 4 "$dir/05_refit" >"$log" 2>&1; then ok "the moved library finds its module ($kind)"
        else fail "the moved library finds its module ($kind)" "$log"; fi
    done
else skip "pkg-config is not installed"; fi
if "$dir/bin/ravel" --version >"$log" 2>&1; then ok "the installed command runs"; else fail "the installed command runs" "$log"; fi
# Words are not cut at the end of a line. A word that has a hyphen may break there; "ev-" and "decreas-" are no words.
if command -v groff >/dev/null 2>&1; then
    for page in "$dir"/share/man/man1/*.1; do
        groff -mandoc -Tascii -rLL=80n "$page" 2>/dev/null | sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' >"$log.page"
        if grep -nE '[a-z]-$' "$log.page" | grep -vE '(micro|data|context|tensor|token|next|zig|well|non|self|seq|mean|fit|first|last|single|multi|long|per|so)-$' >"$log"; then
            fail "$(basename "$page") cuts words" "$log"
        else ok "$(basename "$page") cuts no word"; fi
    done
else skip "groff is not installed"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
