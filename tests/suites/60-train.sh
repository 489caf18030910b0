# Training runs as a user starts them.
set -u
$MAKE --no-print-directory -j2 BUILD="$BUILD" all >"$BUILD/all-build.log" 2>&1 || { cat "$BUILD/all-build.log"; exit 1; }
sh tests/train/runs.sh
