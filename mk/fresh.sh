#!/bin/sh
# `make demo` and `make test` on fresh systems, and a table of what came out (make test-fresh). Needs root, debootstrap, and
# Debian's and Ubuntu's mirrors; takes about half an hour per row on two idle cores. Not part of `make test`.
#     mk/fresh.sh BUILD
#   SYSTEM=debian13   only this one (or several, with commas between them): debian12, debian13, ubuntu24
#   WHO=root          only as root, where everything that `make test` can use is installed by it; or WHO=user: a user who may not
#                     install anything, on a system with a compiler and make, where suites skip what is missing and say so
#   COMMANDS=demo     only make demo; or COMMANDS=test
#   SUITES=unit,cli   only make test, and of it these suites
#   ROOTS=folder      where the root file systems are made (BUILD/fresh); 4 GiB each
#
# A system is unpacked once (ROOTS/NAME.base) and copied for each row, so each row begins with nothing but what the
# distribution calls essential, and make. The checkout's last commit is cloned into it. What it says goes to ROOTS/NAME-WHO-{demo,test}.log.
# Downloaded packages are kept in ROOTS/packages.
set -u
[ -n "${FRESH_INSIDE:-}" ] || FRESH_INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child sh "$0" "$@" # so that mounts and processes end with it
roots=${ROOTS:-$1/fresh}
mkdir -p "$roots" && roots=$(realpath "$roots") || exit 1
top=$(realpath "$(dirname "$0")/..")
die() { echo "test-fresh: $1"; exit 1; }
[ "$(id -u)" = 0 ] || die "it needs root, for root file systems"
command -v debootstrap >/dev/null 2>&1 || die "debootstrap is not installed (apt-get install debootstrap)"

# name suite script-of-debootstrap components; the mirrors are debootstrap's own, or MIRROR_DEBIAN and MIRROR_UBUNTU
systems='
debian12 bookworm sid main
debian13 trixie sid main
ubuntu24 noble gutsy main,universe
'
mirror() { # SCRIPT
    case $1 in
    gutsy) echo "${MIRROR_UBUNTU:-$(sed -n 's/.*default_mirror *//p' /usr/share/debootstrap/scripts/gutsy | grep -v -e old- -e ports | head -n 1)}" ;;
    *) echo "${MIRROR_DEBIAN:-}" ;;
    esac
}
# Ubuntu's signing keys, where this system does not have them: a package of Ubuntu, checked by this hash.
ubuntu_keys=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
ubuntu_hash=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
keyring() { # SCRIPT: the file with the keys of its releases, if debootstrap does not know it
    [ "$1" = gutsy ] || return 0
    keys=usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ ! -e "/$keys" ] || { echo "/$keys"; return; }
    if [ ! -e "$roots/keys/$keys" ]; then
        python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$(mirror "$1")/$ubuntu_keys" "$roots/keys.deb" &&
            echo "$ubuntu_hash  $roots/keys.deb" | sha256sum -c --quiet >&2 && dpkg -x "$roots/keys.deb" "$roots/keys" || return 1
    fi
    echo "$roots/keys/$keys"
}
base() { # NAME SUITE SCRIPT COMPONENTS: unpacked once
    [ ! -e "$roots/$1.base/.ready" ] || return 0
    keys=$(keyring "$3") || return 1
    rm -rf "$roots/$1.base"
    debootstrap --variant=minbase --components="$4" ${keys:+--keyring="$keys"} "$2" "$roots/$1.base" "$(mirror "$3")" "$3" &&
        touch "$roots/$1.base/.ready"
}
devices() { # ROOT: a /dev of its own, with pseudo-terminals and shared memory
    mount -t tmpfs -o mode=755 dev "$1/dev" && mkdir "$1/dev/pts" "$1/dev/shm" &&
        mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$1/dev/pts" && mount -t tmpfs -o mode=1777 shm "$1/dev/shm" &&
        cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$1/dev/" &&
        ln -s pts/ptmx "$1/dev/ptmx" && ln -s /proc/self/fd "$1/dev/fd" &&
        for n in 0 1 2; do ln -s "fd/$n" "$1/dev/$(echo stdin stdout stderr | cut -d' ' -f$((n + 1)))"; done
}
# A copy of the system with a clone of this checkout, which belongs to WHO. The user's system has a compiler; root's has not.
prepare() { # NAME WHO
    root=$roots/$1-$2
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$roots/$1.base" "$root"
    mkdir -p "$roots/packages/$1/partial" "$root/var/cache/apt/archives"
    mount --bind "$root" "$root" # "/" is a mount point in there: ip netns needs that
    mount --bind "$roots/packages/$1" "$root/var/cache/apt/archives"
    devices "$root" && mount -t proc proc "$root/proc" && mount -t sysfs -o ro sys "$root/sys" || return 1
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    [ -z "${PIP_CERT:-}" ] || install -D -m 644 "$PIP_CERT" "$root/etc/ssl/pip.pem" # of a proxy between here and PyPI
    echo 'APT::Keep-Downloaded-Packages "true";' >"$root/etc/apt/apt.conf.d/90keep"
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/90fast" # nothing here must survive a crash
    useradd -R "$root" -m -s /bin/sh user 2>/dev/null || chroot "$root" useradd -m -s /bin/sh user
    [ "$2" = root ] && needs="make" || needs="make gcc libc6-dev"
    # shellcheck disable=SC2086
    chroot "$root" sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $needs" >&2 || return 1
    [ "$2" = root ] && home=/root || home=/home/user
    git clone -q --no-hardlinks "$top" "$root$home/ravel" && chroot "$root" chown -R "$2" "$home/ravel"
}
inside() { # NAME WHO COMMAND
    chroot "$roots/$1-$2" env -i HOME="$([ "$2" = root ] && echo /root || echo /home/user)" LANG=C.UTF-8 TERM=dumb USER="$2" \
        ${PIP_CERT:+PIP_CERT=/etc/ssl/pip.pem} PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SUITES="${SUITES:-}" LANES="${LANES:-3}" \
        setpriv --reuid="$2" --regid="$2" --init-groups sh -c "cd ~/ravel && $3"
}
release() { # NAME WHO
    for place in var/cache/apt/archives proc dev sys; do umount -R -l "$roots/$1-$2/$place" 2>/dev/null; done
    umount -l "$roots/$1-$2" 2>/dev/null
}
table=$roots/table
printf '%-10s %-5s %-6s %8s %8s %8s %8s\n' system who command passed failed skipped minutes >"$table"
row() { # NAME WHO COMMAND: make COMMAND, and its line of the table
    log=$roots/$1-$2-$3.log begin=$(date +%s)
    inside "$1" "$2" "make $3" >"$log" 2>&1 </dev/null
    code=$?
    sums=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1 | tr -cd '0-9 ')
    if [ -z "$sums" ]; then [ $code = 0 ] && sums="1 0 0" || sums="0 1 0"; fi
    # shellcheck disable=SC2086
    printf '%-10s %-5s %-6s %8s %8s %8s %8s\n' "$1" "$2" "$3" $sums $((($(date +%s) - begin + 30) / 60)) | tee -a "$table"
    [ $code = 0 ] || { failed=1; echo "  exit code $code; $log ends with:"; tail -n 25 "$log" | sed 's/^/    /'; }
}
failed=0 commands=${COMMANDS:-demo test}
[ -z "${SUITES:-}" ] || commands=test
for name in $(echo "$systems" | cut -d' ' -f1); do
    case ",${SYSTEM:-$name}," in *",$name,"*) ;; *) continue ;; esac
    # shellcheck disable=SC2046
    base $(echo "$systems" | grep "^$name ") >"$roots/$name-base.log" 2>&1 || { tail -n 5 "$roots/$name-base.log"; die "$name could not be unpacked ($roots/$name-base.log)"; }
    for who in ${WHO:-root user}; do
        prepare "$name" "$who" >"$roots/$name-$who.log" 2>&1 || { tail -n 5 "$roots/$name-$who.log"; die "$name could not be prepared ($roots/$name-$who.log)"; }
        for command in $commands; do row "$name" "$who" "$command"; done
        release "$name" "$who"
        [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$roots/$name-$who"
    done
done
echo; cat "$table"
[ $failed = 0 ] && [ "$(wc -l <"$table")" -gt 1 ]
