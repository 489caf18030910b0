# What `make install` leaves: a folder that can be moved, programs that build with pkg-config alone, a library that finds
# its modules beside itself, man pages that a reader shows without odd words.
set -u
passed=0 failed=0 skipped=0
. tests/mpirun.sh
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
        if [ ! -e "$dir/lib/libravel_$kind.so" ] || ! has_mpi $kind; then skip "$kind: $without"; continue; fi
        root=""; [ $kind = mpich ] || root="--allow-run-as-root --oversubscribe"
        # shellcheck disable=SC2086
        if timeout 300 mpirun.$kind $root -n 4 "$dir/05_refit" >"$log" 2>&1; then ok "the moved library finds its module ($kind)"
        else fail "the moved library finds its module ($kind)" "$log"; fi
    done
else skip "pkg-config is not installed"; fi
if "$dir/bin/ravel" --version >"$log" 2>&1; then ok "the installed command runs"; else fail "the installed command runs" "$log"; fi
# Words are not cut at the end of a line. A word that has a hyphen in the page's source may break there; "ev-" and "decreas-" may not.
cut_words() { # PAGE < rendered
    plain=$(sed 's/\\-/-/g; s/\\&//g; s/\\f[A-Z]//g' "$1")
    grep -A 1 -E '[A-Za-z]-$' | grep -v '^--$' | tr '\n' ' ' | grep -oE '[^ ]*[A-Za-z]- +[^ ]+' | while read -r begin rest; do
        end=$(printf '%s' "$rest" | sed 's/^ *//; s/[^A-Za-z].*//') begin=$(printf '%s' "$begin" | sed 's/.*[^A-Za-z]\([A-Za-z]*-\)$/\1/')
        printf '%s' "$plain" | grep -qF -e "$begin$end" || echo "$begin$end"
    done
}
if command -v groff >/dev/null 2>&1; then
    for page in "$dir"/share/man/man1/*.1; do
        groff -mandoc -Tascii -rLL=80n "$page" 2>/dev/null | sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' >"$log.page"
        cut_words "$page" <"$log.page" >"$log"
        if [ -s "$log" ]; then
            fail "$(basename "$page") cuts words" "$log"
        else ok "$(basename "$page") cuts no word"; fi
    done
else skip "groff is not installed"; fi
# ---- the command as one file, in a folder where there is nothing else ----
root=$PWD/$BUILD/static-root
rm -rf "$root" && mkdir -p "$root"
enter="chroot $root"
[ "$(id -u)" = 0 ] || enter="unshare --user --map-root-user chroot $root"
if ! $MAKE --no-print-directory -j2 BUILD="$BUILD" static >"$log" 2>&1; then
    case $(cat "$log") in
    *"cannot find -l"*) skip "make static: a static library is not installed" ;;
    *) fail "make static" "$log" ;;
    esac
elif ! { cp "$BUILD/ravel-static" "$root/ravel" && cp -r tests/golden/text/llama3 "$root/model" && $enter /ravel --version >"$log" 2>&1; }; then
    skip "an empty root folder cannot be entered: $(head -n 1 "$log")"
else
    alone() { name=$1 says=$2; shift 2; if $enter /ravel "$@" >"$log" 2>&1 && grep -qe "$says" "$log"; then ok "ravel-static $name"; else fail "ravel-static $name" "$log"; fi; }
    echo "It's 2026: 12345 tokens, naïve ones too." >"$root/text"
    alone plan "digest" plan --mock '{}' --mock-count 100 --budget 16k --dp 4
    alone tokenize . tokenize /model /text
    if "$dir/bin/ravel" tokenize tests/golden/text/llama3 "$root/text" | sed "s|$root||" | cmp -s - "$log"; then ok "... as the ordinary command does"
    else fail "ravel-static tokenizes differently" "$log"; fi
    alone train "done after 2 updates" train sft --task sort --steps 2 --batch 8 --ranks 2 --run /run
    alone generate . generate /run --prompt 'sort 12:' --max-tokens 2
    alone report "Fine-tuning" report /run --html /page.html
    if $enter /ravel train sft --task sort --kernels cuda --run /gpu >"$log" 2>&1 || ! grep -q "this command is linked statically" "$log"; then
        fail "a module is refused" "$log"; else ok "a module is refused"; fi
fi
rm -rf "$root"
# ---- Debian packages ----
debs=$PWD/$BUILD/deb root=$PWD/$BUILD/deb/unpacked
if ! command -v dpkg-shlibdeps >/dev/null 2>&1; then skip "dpkg-dev is not installed"
elif ! $MAKE --no-print-directory -j2 BUILD="$BUILD" deb >"$log" 2>&1; then fail "make deb" "$log"
else
    for package in "$debs"/*.deb; do dpkg-deb -x "$package" "$root" >"$log" 2>&1 || fail "$(basename "$package") can be unpacked" "$log"; done
    has() { # PACKAGE FILE...
        package=$1; shift
        dpkg-deb -c "$debs/$package"_*.deb >"$log" 2>&1
        for file in "$@"; do grep -qE "[ ./]$file( |\$)" "$log" || { fail "$package has no $file" "$log"; return; }; done
        ok "$package has its files"
    }
    triplet=$(gcc -print-multiarch)
    has libravel0 "usr/lib/$triplet/libravel.so.0" usr/share/doc/libravel0/copyright usr/share/doc/libravel0/changelog.Debian.gz
    has libravel-dev "usr/lib/$triplet/libravel.so" "usr/lib/$triplet/libravel.a" "usr/lib/$triplet/pkgconfig/ravel.pc" usr/include/ravel/plan.h
    has ravel usr/bin/ravel usr/share/man/man1/ravel-plan.1.gz usr/share/bash-completion/completions/ravel \
        usr/share/zsh/vendor-completions/_ravel usr/share/fish/vendor_completions.d/ravel.fish
    has python3-ravel usr/lib/python3/dist-packages/ravel/__init__.py usr/lib/python3/dist-packages/ravel/py.typed
    dpkg-deb -f "$debs"/libravel-dev_*.deb Depends >"$log"
    if grep -q '^libravel0 (= ' "$log"; then ok "libravel-dev needs its own library"; else fail "libravel-dev needs its own library" "$log"; fi
    dpkg-deb -I "$debs"/libravel0_*.deb symbols >"$log"
    if grep -q '^ ravel_plan_create@Base [0-9.]*$' "$log" && ! grep -q ' ravel__' "$log"; then ok "the library's symbols are listed"; else fail "the library's symbols are listed" "$log"; fi
    if LD_LIBRARY_PATH="$root/usr/lib/$triplet" "$root/usr/bin/ravel" --version >"$log" 2>&1; then ok "the packaged command runs"; else fail "the packaged command runs" "$log"; fi
    python=$(command -v /usr/bin/python3 || command -v python3)
    if ! "$python" -c 'import numpy' >/dev/null 2>&1; then skip "numpy is not installed"
    elif (cd / && LD_LIBRARY_PATH="$root/usr/lib/$triplet" PYTHONPATH="$root/usr/lib/python3/dist-packages" RAVEL_LIBRARY="" \
        "$python" -c 'import ravel; from ravel import _lib; assert len(ravel.plan([5, 6], budget=16).bins) == 1 and "unpacked" in str(_lib.path)') >"$log" 2>&1
    then ok "the packaged Python modules find the system's library"; else fail "the packaged Python modules find the system's library" "$log"; fi
    if ! command -v lintian >/dev/null 2>&1; then skip "lintian is not installed"
    else
        lintian --allow-root "$debs"/*.deb >"$log" 2>&1
        if [ -s "$log" ]; then fail "lintian finds nothing" "$log"; else ok "lintian finds nothing"; fi
    fi
    rm -rf "$root"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
