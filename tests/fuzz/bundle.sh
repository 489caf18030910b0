# The fuzz targets, their corpora and the loop over them as an archive that runs where there is no compiler.
#     sh tests/fuzz/bundle.sh FOLDER-OF-TARGETS ARCHIVE
set -eu
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
mkdir "$dir/ravel-fuzz" "$dir/ravel-fuzz/lib"
find "$1" -maxdepth 1 -type f -name 'fuzz_*' -perm -100 -exec cp {} "$dir/ravel-fuzz" \;
cp -r tests/fuzz/corpus tests/fuzz/run.sh "$dir/ravel-fuzz"
pcre2=$(ldconfig -p | sed -n 's/.*libpcre2-8.so.0 .*x86-64.*=> //p' | head -n 1) # tokenizers load it
[ -z "$pcre2" ] || cp "$pcre2" "$dir/ravel-fuzz/lib"
tar -C "$dir" -czf "$2" ravel-fuzz
needs=$(for f in "$dir"/ravel-fuzz/fuzz_*; do ldd "$f"; done | awk '$1 ~ /so/ { print $1 }' | sort -u | tr '\n' ' ')
glibc=$(for f in "$dir"/ravel-fuzz/fuzz_*; do objdump -T "$f"; done | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$2: $(ls "$dir"/ravel-fuzz | grep -c '^fuzz_') targets; they need $needs($glibc or newer). On the other machine:"
echo "    tar xzf $(basename "$2") && cd ravel-fuzz && FUZZ_SECONDS=1800 FUZZ_JOBS=\$(nproc) sh run.sh ."
