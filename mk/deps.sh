#!/bin/sh
# Installs the packages that `make demo` (or `make test`) needs and that are missing.
#     mk/deps.sh demo|test BUILD
# As root through apt-get; otherwise it prints the command to run and continues: only the compiler is required.
set -u
need=""
want() { command -v "$1" >/dev/null 2>&1 || need="$need $2"; }     # a program and its package
wantfile() { # a file (any of the patterns) and its package
    for f in $1; do [ -e "$f" ] && return; done
    need="$need $2"
}

want gcc gcc
wantfile "/usr/include/stdio.h" libc6-dev
wantfile "/usr/include/*/cblas.h /usr/include/cblas.h" libopenblas-dev
wantfile "/usr/include/pcre2.h" libpcre2-dev
if [ "${1:-demo}" = test ]; then
    want g++ g++
    want clang clang
    wantfile "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a" libclang-rt-dev
    want clang-format clang-format
    want clang-tidy clang-tidy
    want cppcheck cppcheck
    want mandoc mandoc
    want pkg-config pkgconf
    want groff groff
    wantfile "/usr/share/i18n/locales/de_DE /usr/share/i18n/locales/de_DE.gz" locales
    want chromium "chromium fonts-dejavu-core"
    want mpirun.openmpi "openmpi-bin libopenmpi-dev"
    want mpirun.mpich "mpich libmpich-dev"
    /usr/bin/python3 -c 'import numpy, pytest, hypothesis, venv, ensurepip, setuptools, wheel' 2>/dev/null ||
        need="$need python3 python3-numpy python3-pytest python3-hypothesis python3-venv python3-setuptools python3-wheel"
fi
[ -n "$need" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Some optional parts are missing and will be skipped. To get them: sudo apt-get install$need"
    exit 0
fi
echo "installing:$need"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
install() { apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; }
apt-get update -qq >"$log" 2>&1 || cat "$log"
# All at once; if that fails, one by one, so that an unavailable package disables only its own part.
# shellcheck disable=SC2086
install $need || for p in $need; do
    install "$p" || { echo "  $p could not be installed:"; tail -n 3 "$log"; }
done
rm -f "$log"
find "$2" -name config.mk -delete 2>/dev/null # what was probed before is out of date
exit 0
