#!/bin/sh
# Installs the packages that `make demo` (or `make test`, or the tests of other machines) needs and that are missing.
#     mk/deps.sh demo|test|fresh|aarch64 BUILD
# As root through apt-get; otherwise it prints the command to run and continues: only the compiler is required. What is missing is
# decided by use: mk/probe.sh compiles and links against each library, and programs are run as the suites run them.
set -u
need="" scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
want() { # PACKAGES COMMAND...: the packages, if the command fails
    packages=$1; shift
    "$@" >/dev/null 2>&1 </dev/null || need="$need $packages"
}
has() { command -v "$1"; }
fuzzer() { # clang with the runtime of libFuzzer and the sanitizers
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p && n > 1 ? 0 : 0; }' >"$scratch/f.c"
    clang -fsanitize=fuzzer,address -o "$scratch/f" "$scratch/f.c"
}

case ${1:-demo} in
fresh) want debootstrap has debootstrap ;;
aarch64)
    want gcc-aarch64-linux-gnu has aarch64-linux-gnu-gcc
    want libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/lib/libc.so.6
    want qemu-user-static has qemu-aarch64-static ;;
esac
want gcc has gcc
echo '#include <stdio.h>' >"$scratch/c.c"
want libc6-dev gcc -fsyntax-only "$scratch/c.c"
sh "$(dirname "$0")/probe.sh" "${CC:-gcc}" "$scratch/config.mk" >/dev/null
need="$need $(sed -n "s/^# ${1:-demo} lacks //p" "$scratch/config.mk" | tr '\n' ' ')"
if [ "${1:-demo}" = test ]; then
    want g++ has g++
    want clang has clang
    want "clang libclang-rt-dev" fuzzer
    for program in clang-format clang-tidy cppcheck mandoc groff git; do want $program has $program; done
    want pkgconf has pkg-config
    for program in curl openssl lintian; do want $program has $program; done
    want dpkg-dev has dpkg-shlibdeps
    want iproute2 has tc
    want locales localedef -c -i de_DE -f UTF-8 "$scratch/de_DE.UTF-8"
    want "chromium fonts-dejavu-core" has chromium
    want "python3 python3-numpy python3-pytest python3-hypothesis python3-venv python3-setuptools python3-wheel" \
        /usr/bin/python3 -c 'import numpy, pytest, hypothesis, venv, ensurepip, setuptools, wheel'
fi
need=$(echo "$need" | tr -s ' \n' '\n\n' | awk 'NF && !seen[$0]++' | tr '\n' ' ')
[ -n "$need" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Some optional parts are missing and will be skipped. To get them: sudo apt-get install $need"
    exit 0
fi
echo "installing: $need"
export DEBIAN_FRONTEND=noninteractive
log=$scratch/log
install() { apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; }
apt-get update -qq >"$log" 2>&1 || cat "$log"
# All at once; if that fails, one by one, so that an unavailable package disables only its own part.
# shellcheck disable=SC2086
install $need || for p in $need; do
    install "$p" || { echo "  $p could not be installed:"; tail -n 3 "$log"; }
done
find "$2" -name config.mk -delete 2>/dev/null # what was probed before is out of date
exit 0
