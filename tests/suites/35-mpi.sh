# The communicators' test body, and lost ranks, as processes under mpirun: Open MPI and MPICH, whichever are installed.
# Ranks outnumber cores here as they do in CI, and root may run them. With RAVEL_SOAK: more losses, and arrays beyond 2 GiB.
set -u
passed=0 failed=0 skipped=0
. tests/mpirun.sh
. tests/seed.sh
[ -n "${RAVEL_SOAK:-}" ] || export RAVEL_COMM_TIMEOUT=200 # before that of `timeout`, so that a rank that waits in vain says for whom
$MAKE --no-print-directory -j2 BUILD="$BUILD" lib "$BUILD/mpi-ranks" >"$BUILD/mpi-build.log" 2>&1 ||
    { cat "$BUILD/mpi-build.log"; exit 1; }
log="$BUILD/mpi-run.log" ranks_program=$BUILD/mpi-ranks patience=${RAVEL_SOAK:+1200}
patience=${patience:-300}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

verdict() { # NAME OK-LINES-EXPECTED CODE-IS-FINE
    lines=$(grep -ao 'ok [a-z]' "$log" | wc -l) # launchers may run lines of several ranks together
    if [ "$3" = 1 ] && [ "$lines" -ge "$2" ] && ! grep -q 'FAIL' "$log"; then
        passed=$((passed + 1)); echo "  ok    $1"
    else
        failed=$((failed + 1)); echo "  FAIL  $1: $lines ok lines, $2 expected"; tail -n 30 "$log"
    fi
}
run() { # MPIRUN RANKS ARGUMENTS...: whatever they print, in at most five minutes (in soak, twenty)
    launcher=$1 ranks=$2; shift 2
    # shellcheck disable=SC2086
    RANKS_MARKS=$(mktemp -d "$dir/marks.XXXXXX") timeout "$patience" $launcher -n "$ranks" "$ranks_program" "$@" >"$log" 2>&1
}
body() { # MPIRUN RANKS LINES [ONLY]
    run "$1" "$2" body ${4:+"$4"}; code=$?
    verdict "$1, $2 ranks, body" "$3" $([ $code = 0 ] && echo 1 || echo 0)
}
fault() { # MPIRUN RANKS LINES TEST: every survivor has its say; how the launcher takes it is its own affair
    run "$1" "$2" "$4"; code=$?
    verdict "$1, $2 ranks, $4" "$3" $([ $code != 124 ] && echo 1 || echo 0)
}
# By default the launcher ends the job, with a sentence and a code that is not 0. Signal 6: UCX was reading the memory of the
# rank in that moment, and ends the reader. 15: both, as the launcher of MPICH puts the bits of their codes together.
lost() { # MPIRUN
    run "$1" 4 killed; code=$?
    grep -qiE 'signal (6|9|15)|exit code: (6|9|15)|killed|process is gone' "$log" && said=1 || said=0
    verdict "$1, kill -9 of a rank ends the job" 0 $([ $code != 0 ] && [ $code != 124 ] && [ $said = 1 ] && echo 1 || echo 0)
}
mixed() { # MPIRUN OTHER'S-MODULE: a module that does not fit the launcher is said to be that, by every rank
    RAVEL_MPI_MODULE=$2 run "$1" 2 body; code=$?
    grep -q 'launcher and MPI module are of different kinds' "$log" && said=1 || said=0
    sed -i 's/FAIL/fail/' "$log"
    verdict "$1 with the other's module" 0 $([ $code != 0 ] && [ $code != 124 ] && [ $said = 1 ] && echo 1 || echo 0)
}
everything() { # MPIRUN
    for n in 1 2 3; do body "$1" $n 27; done
    body "$1" 4 13 operation
    body "$1" 8 13 operation
    fault "$1" 4 3 leaves
    fault "$1" 4 3 leaves-open
    fault "$1" 4 4 leaves-in-order
    fault "$1" 4 3 aborts
    fault "$1" 4 3 aborts-above-parts
    fault "$1" 4 4 trials
    fault "$1" 4 4 late
    fault "$1" 2 2 disagrees
    fault "$1" 2 2 long
    lost "$1"
}
# Ranks that are lost, with the address, leak and undefined-behaviour sanitizers: nothing is read after its end, and what
# must be kept because MPI may still use it is kept in sight.
sanitized() { # MPIRUN
    $MAKE --no-print-directory -j2 BUILD="$BUILD/asan" OPT=-Og SAN=address,undefined lib "$BUILD/asan/mpi-ranks" \
        >"$BUILD/mpi-build.log" 2>&1 || { cat "$BUILD/mpi-build.log"; failed=$((failed + 1)); return; }
    ranks_program=$BUILD/asan/mpi-ranks
    export ASAN_OPTIONS=detect_leaks=1:fast_unwind_on_malloc=0 LSAN_OPTIONS=suppressions=tests/mpi/lsan.supp:print_suppressions=0
    for name in leaves-open aborts-above-parts trials; do
        run "$1" 4 $name; code=$?
        grep -q 'Sanitizer\|runtime error' "$log" && clean=0 || clean=1
        verdict "$1, 4 ranks, $name, sanitized" 1 $([ $code = 0 ] && [ $clean = 1 ] && echo 1 || echo 0)
    done
    ranks_program=$BUILD/mpi-ranks
    unset ASAN_OPTIONS LSAN_OPTIONS
}
missing() { echo "  skip  $1: $without"; skipped=$((skipped + 1)); }

if has_mpi openmpi; then
    everything mpirun.openmpi
    # This launcher can let survivors live: each says who is gone. (Hydra's -disable-auto-cleanup loses their output.)
    fault "mpirun.openmpi --enable-recovery" 4 3 killed
    sanitized mpirun.openmpi
else missing "Open MPI"; fi
if has_mpi mpich; then
    everything mpirun.mpich
    sanitized mpirun.mpich
else missing MPICH; fi
if has_mpi openmpi && has_mpi mpich; then
    mixed mpirun.openmpi "$BUILD/libravel_mpich.so"
    mixed mpirun.mpich "$BUILD/libravel_openmpi.so"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
