#!/bin/sh
# A pull over a slow link: publisher and generator in network namespaces of their own, between them a pair of interfaces that tc
# limits in both directions. Synthetic bf16 weights of which a share changes per version, scattered; dense is the same with --no-delta.
#     bench/link.sh [BUILD]          as root; RATE, SHAPE, MEMORY, CHANGED, UPDATES set others, DENSE and SPARSE the seconds between
#                                    versions. Exits with 2 where there are no namespaces, or tc cannot limit them
set -eu
ravel=$(realpath "${1:-build}")/ravel
RATE=${RATE:-1gbit} SHAPE=${SHAPE:-qwen3-0.6b} MEMORY=${MEMORY:-512M} CHANGED=${CHANGED:-0.01} UPDATES=${UPDATES:-6} DENSE=${DENSE:-8} SPARSE=${SPARSE:-3}
[ "$(id -u)" = 0 ] || { echo "network namespaces need root"; exit 2; }
for tool in ip tc; do command -v $tool >/dev/null || { echo "$tool is missing (apt-get install iproute2)"; exit 2; }; done
from=ravel-a-$$ to=ravel-b-$$ dir=$(mktemp -d) publisher=
unusable() { echo "no network namespaces here, or tc cannot limit them"; exit 2; }
trap 'exit 1' INT TERM
trap 'kill $publisher 2>/dev/null || :; ip netns del $from 2>/dev/null || :; ip netns del $to 2>/dev/null || :; rm -rf "$dir"' EXIT
ip netns add "$from" && ip netns add "$to" || unusable
ip link add ra$$ netns "$from" type veth peer name rb$$ netns "$to" || unusable
for side in a b; do
    ns=$from place=10.77.0.1
    [ $side = a ] || ns=$to place=10.77.0.2
    ip -n "$ns" address add $place/24 dev r$side$$
    ip -n "$ns" link set r$side$$ up
    ip -n "$ns" link set lo up
    # a bucket of the bytes of 2 ms, so that the rate holds for a megabyte, too
    ip netns exec "$ns" tc qdisc add dev r$side$$ root tbf rate "$RATE" burst 256kb latency 20ms || unusable
done
weights="--shape $SHAPE --memory $MEMORY --dtype bf16 --changed $CHANGED"

pulls() { # NAME FLAGS...: seconds of the pulls after the first, one per line
    name=$1; shift
    # shellcheck disable=SC2086
    RAVEL_TOKEN=link ip netns exec "$from" "$ravel" refit --publish 10.77.0.1:7700 $weights --interval "$wait" >"$dir/log" 2>&1 &
    publisher=$!
    # shellcheck disable=SC2086
    RAVEL_TOKEN=link ip netns exec "$to" "$ravel" refit --pull 10.77.0.1:7700 $weights --updates "$UPDATES" "$@" >"$dir/$name" 2>&1 ||
        { cat "$dir/log" "$dir/$name"; exit 1; }
    kill $publisher; wait $publisher 2>/dev/null || :
}
wait=$DENSE pulls dense --no-delta
wait=$SPARSE pulls sparse
echo "$RATE, $SHAPE (at most $MEMORY) in bf16, $CHANGED of the elements change per version:"
for name in dense sparse; do sed "s/^/  $name  /" "$dir/$name"; done
