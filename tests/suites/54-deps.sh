# What `make demo` and `make test` install is what the build's own probes miss: a compiler that cannot link a library, or lacks a
# header, stands for a system without it. apt-get is one that only writes down what it was asked for.
set -u
passed=0 failed=0
dir=$PWD/$BUILD/deps-test
rm -rf "$dir"; mkdir -p "$dir/bin" "$dir/build/test"
ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; head -n 20 "$dir/said"; }
export CCACHE_PATH="$PATH" # where ccache's gcc finds the real one, which in PATH would be the one below, which calls ccache's
program() { cat >"$dir/bin/$1"; chmod +x "$dir/bin/$1"; }
program gcc <<END
#!/bin/sh
# What \$LACKS names cannot be linked (-lopenblas) or included (pcre2.h).
for word in \$LACKS; do
    case " \$* " in *" \$word "*) echo "cannot find \$word" >&2; exit 1 ;; esac
    for file in "\$@"; do case \$file in *.c) ! grep -q "<\$word>" "\$file" || { echo "\$word: no such file" >&2; exit 1; } ;; esac; done
done
exec $(command -v gcc) "\$@"
END
program id <<'END'
#!/bin/sh
[ "$*" = -u ] && echo "$UNDER"
END
program apt-get <<END
#!/bin/sh
echo "\$*" >>"$dir/asked"
case " \$* " in *" \${UNKNOWN:-none} "*) echo "E: Unable to locate package \$UNKNOWN" >&2; exit 100 ;; esac
END
# asks USER-ID GOAL LACKS: what was installed, in $dir/asked, and what was printed, in $dir/said
asks() {
    rm -f "$dir/asked"; : >"$dir/asked"; : >"$dir/build/test/config.mk"
    UNDER=$1 LACKS=$3 PATH="$dir/bin:${PROGRAMS:-$PATH}" CC=gcc NO_CUDA=1 sh mk/deps.sh "$2" "$dir/build" >"$dir/said" 2>&1
    code=$?
    cat "$dir/asked" >>"$dir/said"
    [ $code = 0 ]
}
asked() { grep '^install' "$dir/asked" | grep -q -- " $1\( \|\$\)"; }

if asks 0 demo -lopenblas && asked libopenblas-dev; then ok "a cblas.h without an OpenBLAS to link does not count"; else bad "libopenblas-dev is not installed"; fi
if [ ! -e "$dir/build/test/config.mk" ]; then ok "... and the build looks again"; else bad "config.mk is as it was"; fi
if asks 0 test -lopenblas && asked libopenblas-dev; then ok "make test installs it too"; else bad "make test does not install it"; fi
if asks 0 demo pcre2.h && asked libpcre2-dev; then ok "a header that cannot be included"; else bad "libpcre2-dev is not installed"; fi
if asks 0 demo mpi.h && ! asked libopenmpi-dev && ! asked libmpich-dev; then ok "the demo installs no MPI"; else bad "the demo installs MPI"; fi
if asks 0 test mpi.h && asked libopenmpi-dev && asked libmpich-dev; then ok "make test does"; else bad "make test does not install MPI"; fi
if asks 1000 demo -lopenblas && [ ! -s "$dir/asked" ] && grep -q 'sudo apt-get install .*libopenblas-dev' "$dir/said"; then ok "without root the command is printed"
else bad "without root"; fi
if UNKNOWN=libopenblas-dev asks 0 demo "-lopenblas pcre2.h" && [ "$(tail -n 1 "$dir/asked" | grep -c 'libpcre2-dev$')" = 1 ] &&
    grep -q 'libopenblas-dev could not be installed' "$dir/said"; then ok "a package that is not to be had does not stop the others"; else bad "one missing package stops the others"; fi
# A system without the programs that suites skip without.
mkdir "$dir/some"
for folder in $(echo "$PATH" | tr ':' ' '); do ln -s "$folder"/* "$dir/some" 2>/dev/null; done
(cd "$dir/some" && rm -f curl openssl lintian dpkg-shlibdeps tc)
if PROGRAMS=$dir/some asks 0 test none && asked curl && asked openssl && asked lintian && asked dpkg-dev && asked iproute2; then ok "programs of suites"
else bad "programs of suites"; fi
if PROGRAMS=$dir/some asks 0 demo none && ! asked curl; then ok "... which the demo does not need"; else bad "programs of suites in the demo"; fi
rm -rf "$dir/some"
# Twice the same: what is there is not asked for again.
if asks 0 demo none && ! asked 'libc6-dev' && ! asked gcc; then ok "what is there is not installed again"; else bad "it installs what is there"; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
