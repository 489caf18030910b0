# Sourced by suites that draw outside of ravel-unit: RAVEL_SEED, by default that of the day, and the command that repeats them.
export RAVEL_SEED="${RAVEL_SEED:-${RAVEL_SEED_OF_DAY:-$(date -u +%Y%m%d)}}"
echo "seed $RAVEL_SEED: RAVEL_SEED=$RAVEL_SEED make test SUITES=$(basename "$0" .sh | sed 's/^[0-9]*-//')"
