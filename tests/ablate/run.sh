#!/bin/sh
# Builds the planner with its parts switchable and prints what each part is worth. A few minutes.
set -eu
out=${BUILD:-build}/ablate
mkdir -p "$out"
# shellcheck disable=SC2046
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -DRAVEL_ABLATE -ffp-contract=off -Iinclude -Isrc -I. -o "$out/ablate" tests/ablate/ablate.c \
    $(find src/plan src/base -name "*.c") -lm -pthread
exec "$out/ablate"
