# Sourced by tests that start ranks. They meet at a port that all of them must know before the first one listens; if one process
# can listen at port 0 and tell the others, do that instead.
#
#   free_port    sets $port: neither it nor the next one (where torchrun's ranks meet) is in use, and no other call in this
#                shell returned it. The choice is random, so that tests side by side choose differently; it lies below the
#                kernel's usual range for outgoing connections.
#   child_of PID prints the ids of its children (`ps --ppid` needs a package that small systems lack).
child_of() { grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status | tr -cd '0-9\n'; }
ports_given=" "
free_port() {
    while :; do
        port=$((12000 + $(od -An -N4 -tu4 /dev/urandom) % 9000 * 2))
        case $ports_given in *" $port "*) continue ;; esac
        # the second column of these tables: address:port, in hexadecimal
        cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
            grep -qE "^ *[0-9]+: [0-9A-F]+:($(printf '%04X' "$port")|$(printf '%04X' $((port + 1)))) " || break
    done
    ports_given="$ports_given$port "
}
