#!/bin/sh
# Debian packages from what `make install` installs, by dpkg-deb alone:
#     libravel0         the library, and its modules for TLS and MPI in /usr/lib/ravel
#     libravel-dev      headers, the static library, pkg-config
#     ravel             the command, man pages, completion for shells
#     python3-ravel     the Python package over the system's library
# CUDA's modules are left out: their libraries are not Debian's.
#     mk/deb.sh BUILD VERSION       writes BUILD/deb/*.deb; MAKE names make
set -eu
build=$1 version=$2 revision=$2-0ravel1 major=${2%%.*} # Debian's own would be $2-1, and newer
out=$build/deb root=$build/deb/root
triplet=$(gcc -print-multiarch) arch=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
umask 022
rm -rf "$out"
mkdir -p "$root"
${MAKE:-make} --no-print-directory BUILD="$build" HAVE_CUDA= PREFIX=/usr DESTDIR="$root/all" install >"$out/install.log" 2>&1 ||
    { cat "$out/install.log"; exit 1; }
all=$root/all/usr

# ---- files ----
lib=$root/libravel$major/usr dev=$root/libravel-dev/usr command=$root/ravel/usr python=$root/python3-ravel/usr
mkdir -p "$lib/lib/$triplet" "$lib/lib/ravel" "$dev/lib/$triplet/pkgconfig" "$command/share" "$python/lib/python3/dist-packages"
mv "$all/lib/libravel.so.$version" "$all/lib/libravel.so.$major" "$lib/lib/$triplet/"
for module in "$all"/lib/libravel_*.so; do
    case $module in *_cuda.so | *_nccl.so | *'*.so') continue ;; esac
    mv "$module" "$lib/lib/ravel/"
done
mv "$all/lib/libravel.a" "$all/lib/libravel.so" "$dev/lib/$triplet/"
sed "s|^libdir=.*|libdir=\${prefix}/lib/$triplet|" "$all/lib/pkgconfig/ravel.pc" >"$dev/lib/$triplet/pkgconfig/ravel.pc"
mv "$all/include" "$dev/include"
mv "$all/bin" "$command/bin"
mv "$all/share/man" "$all/share/bash-completion" "$all/share/fish" "$command/share/"
mkdir -p "$command/share/zsh"
mv "$all/share/zsh/site-functions" "$command/share/zsh/vendor-completions"
gzip -9n "$command"/share/man/man1/*.1
cp -r python/ravel "$python/lib/python3/dist-packages/ravel"
find "$python" -name __pycache__ -prune -exec rm -rf {} +
rm -rf "$root/all" "$python/lib/python3/dist-packages/ravel/bin"
find "$python" -name '*.so' -delete
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$lib/lib/$triplet/libravel.so.$version" "$command/bin/ravel"
for module in "$lib"/lib/ravel/*.so; do [ ! -e "$module" ] || strip --strip-unneeded --remove-section=.comment --remove-section=.note "$module"; done
strip --strip-debug --enable-deterministic-archives "$dev/lib/$triplet/libravel.a"
chmod 644 "$lib/lib/$triplet/libravel.so.$version" "$lib"/lib/ravel/*.so 2>/dev/null || true

# ---- what they need ----
mkdir -p "$out/debian" "$root/libravel$major/DEBIAN"
printf 'Source: ravel\n\nPackage: libravel%s\nArchitecture: any\n' "$major" >"$out/debian/control"
echo "libravel $major libravel$major (>= $version)" >"$root/libravel$major/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/libravel$major/DEBIAN/triggers"
(cd "$out" && dpkg-gensymbols -plibravel"$major" -v"$version" -P"root/libravel$major" -O"root/libravel$major/DEBIAN/symbols" >/dev/null 2>&1)
needs() { # FILE...: as dpkg-shlibdeps finds it
    (cd "$out" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}
base=$(needs "root/libravel$major/usr/lib/$triplet/libravel.so.$version") mpi=""
tls=$root/libravel$major/usr/lib/ravel/libravel_tls.so
[ ! -e "$tls" ] || base=$(needs "root/libravel$major/usr/lib/$triplet/libravel.so.$version" "root/libravel$major/usr/lib/ravel/libravel_tls.so")
for kind in openmpi mpich; do
    file=root/libravel$major/usr/lib/ravel/libravel_$kind.so
    [ ! -e "$out/$file" ] || mpi=$mpi${mpi:+, }$(needs "$file" | tr ',' '\n' | grep -E 'mpi' | sed 's/^ *//; s/ *(.*//' | paste -sd, | sed 's/,/, /g')
done

# ---- descriptions ----
control() { # PACKAGE ARCHITECTURE SECTION SUMMARY FIELDS (lines): the text is on standard input
    folder=$root/$1
    mkdir -p "$folder/DEBIAN" "$folder/usr/share/doc/$1"
    {
        printf 'Package: %s\nSource: ravel\nVersion: %s\nArchitecture: %s\n' "$1" "$revision" "$2"
        printf 'Maintainer: Ravel maintainers <maintainers@ravel.invalid>\n'
        printf 'Installed-Size: %s\nSection: %s\nPriority: optional\n%s' "$(du -k -s --apparent-size "$folder/usr" | cut -f1)" "$3" "$5"
        printf 'Description: %s\n' "$4"
        sed 's/^$/./; s/^/ /'
    } >"$folder/DEBIAN/control"
    cat >"$folder/usr/share/doc/$1/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ravel

Files: *
Copyright: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) The Ravel authors
License: Apache-2.0
 On Debian systems the whole text of the licence is in
 /usr/share/common-licenses/Apache-2.0.
EOF
    printf 'ravel (%s) unstable; urgency=medium\n\n  * Packages of version %s.\n\n -- Ravel maintainers <maintainers@ravel.invalid>  %s\n' \
        "$revision" "$version" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$folder/usr/share/doc/$1/changelog.Debian.gz"
    (cd "$folder" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2 >DEBIAN/md5sums)
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$folder" "$out" >>"$out/build.log" || { cat "$out/build.log"; exit 1; }
}
control "libravel$major" "$arch" libs "data path and weight path for LLM post-training" "Depends: $base
Recommends: libpcre2-8-0
${mpi:+Suggests: $mpi
}Multi-Arch: no
" <<'EOF'
Ravel packs samples of any lengths into micro-batches of a token budget,
balanced over the ranks of a mesh, and sends updated weights from trainer
ranks to generator ranks.

This package has the shared library, and modules for TLS and MPI that it
loads when they are asked for.
EOF
control libravel-dev "$arch" libdevel "data path and weight path for LLM post-training (headers)" "Depends: libravel$major (= $revision)
Suggests: ravel
" <<'EOF'
Ravel packs samples of any lengths into micro-batches of a token budget,
balanced over the ranks of a mesh, and sends updated weights from trainer
ranks to generator ranks.

This package has the headers, the static library and a pkg-config file.
EOF
control ravel "$arch" science "planner, trainer and server for LLM post-training" "Depends: $(needs root/ravel/usr/bin/ravel), libpcre2-8-0
Suggests: libravel$major
" <<'EOF'
The ravel command plans micro-batches for files of lengths, trains models by
SFT, DPO and GRPO on CPUs, samples from them, serves them over HTTP, and draws
reports of plans and runs.

Encryption and MPI are modules of the package of the library.
EOF
mkdir -p "$root/python3-ravel/DEBIAN"
cat >"$root/python3-ravel/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if command -v py3compile >/dev/null 2>&1; then
    py3compile -p python3-ravel
fi
EOF
cat >"$root/python3-ravel/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if command -v py3clean >/dev/null 2>&1; then
    py3clean -p python3-ravel
fi
EOF
chmod 755 "$root/python3-ravel/DEBIAN/postinst" "$root/python3-ravel/DEBIAN/prerm"
control python3-ravel all python "data path and weight path for LLM post-training (Python)" "Depends: python3:any, python3-numpy, libravel$major (>= $version)
Recommends: ravel
" <<'EOF'
Ravel packs samples of any lengths into micro-batches of a token budget,
balanced over the ranks of a mesh, and sends updated weights from trainer
ranks to generator ranks.

This package has the Python modules over the shared library, with adapters for
other frameworks.
EOF
rm -rf "$root" "$out/debian"
ls "$out"/*.deb
