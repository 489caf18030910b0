#!/bin/sh
# Finds the optional parts by compiling and linking a program against each, and writes what it found as make variables.
#     mk/probe.sh CC OUT
# A part that is missing is named with the line that would install it; nothing here is fatal.
set -u
cc=$1 out=$2
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# try NAME SOURCE FLAGS...: whether the program compiles and links
try() {
    printf '%s\n' "$2" >"$dir/probe.c"
    shift 2
    # shellcheck disable=SC2086
    $cc -o "$dir/probe" "$dir/probe.c" "$@" >"$dir/log" 2>&1
}
found() { printf 'HAVE_%s := 1\n' "$1" >>"$out.new"; printf '  %-10s found  %s\n' "$2" "$3"; }
missing() { printf '  %-10s missing: %s (apt-get install %s)\n' "$1" "$2" "$3"; }

: >"$out.new"
echo "optional parts:"

if try openblas '#include <cblas.h>
int main(void) { float x = 1; cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1); return 0; }' -lopenblas; then
    found OPENBLAS OpenBLAS "matrix products in the trainer where its own vector sets do not fit, and a yardstick"
else missing OpenBLAS "the trainer multiplies matrices by its own kernels alone" libopenblas-dev; fi

mpi='#include <mpi.h>
int main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }'
for kind in openmpi mpich; do
    flags=$(mpicc.$kind -show 2>/dev/null | cut -d' ' -f2-)
    # shellcheck disable=SC2086
    if [ -n "$flags" ] && try $kind "$mpi" $flags; then
        found "$(echo $kind | tr a-z A-Z)" $kind "ranks in many processes (mpirun.$kind)"
        printf '%s_FLAGS := %s\n' "$(echo $kind | tr a-z A-Z)" "$flags" >>"$out.new"
    else missing $kind "no ranks over it" "$([ $kind = mpich ] && echo libmpich-dev mpich || echo libopenmpi-dev openmpi-bin)"; fi
done

mv "$out.new" "$out"
