# The OPTIONS of docs/man/ravel-*.1, between two comments of each page, from the option tables.
#     man.sh BUILD          writes them
#     man.sh BUILD check    prints the pages that are not current, and fails if there are any
set -u
made=$(mktemp) new=$(mktemp) code=0
trap 'rm -f "$made" "$new"' EXIT
"$1/ravel" completion man >"$made" || exit 1
for page in docs/man/ravel-*.1; do
    name=${page#docs/man/ravel-} name=${name%.1}
    awk -v name="$name" -v made="$made" '
        /^\.\\" options: from the tables/ { print; inside = 1
            while ((getline line < made) > 0) {
                if (line ~ /^\.\\" page /) on = line == ".\\\" page " name
                else if (on) print line
            } }
        /^\.\\" end of options/ { inside = 0 }
        !inside { print }' "$page" >"$new"
    # the mark itself is printed once
    awk '!(/^\.\\" options: from the tables/ && seen++)' "$new" >"$made.page" && mv "$made.page" "$new"
    cmp -s "$new" "$page" && continue
    if [ "${2:-}" = check ]; then
        echo "$page is not what the option tables say: run make man"
        code=1
    else
        cp "$new" "$page" && echo "$page"
    fi
done
exit $code
