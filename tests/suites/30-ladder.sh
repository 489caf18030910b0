# Who may include whom: each folder's includes against the ladder. The first table says which folders a folder may
# include ("..." includes), the second which folder each public header belongs to (<ravel/...> includes). A folder may
# include a public header if it may include the header's folder.
set -u
passed=0 failed=0
ladder='
src/base:
src/device: base
src/plan: base
src/batch: base device
src/http: base
src/metrics: base http
src/text: base
src/io: base
src/comm: base device
src/refit: base device comm metrics
src/report: base plan io
src/feed: base device comm plan batch metrics io text
'
headers='
base: base dtype options shape
device: device
plan: plan tree
batch: batch policy routes tree_batch weights
metrics: flops metrics
text: chat tokenizer
io: lengths mock safetensors
comm: comm mesh
refit: publish refit
report: report
feed: exchange feed meta order source
'
owner() { # HEADER: the folder that a public header belongs to
    echo "$headers" | grep -E "^[a-z]+:.* $1( |\$)" | cut -d: -f1
}
known() { # FOLDERS: their public headers, between spaces
    for room in $1; do echo "$headers" | sed -n "s/^$room://p"; done | tr '\n' ' '
}
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; }
files() { find "$1" -name '*.c' -o -name '*.h' -o -name '*.cu'; }

check() { # FOLDER ALLOWED...
    folder=$1; shift
    wrong=""
    for line in $(grep -nHoE '#include "[^"]+"' $(files "$folder") 2>/dev/null | tr ' ' '@'); do
        target=${line#*\"} ok=0
        for allowed in "${folder##*/}" "$@"; do case $target in "$allowed"\"|"$allowed"/*) ok=1 ;; esac; done
        [ $ok = 1 ] || wrong="$wrong
    $(echo "$line" | tr '@' ' ')"
    done
    if [ -z "$wrong" ]; then good; else bad "$folder includes what it may not:$wrong"; fi
}
check_public() { # NAME ALLOWED-FOLDERS FILES...: <ravel/...> includes
    name=$1 allowed=$(known "$2"); shift 2
    wrong=""
    for line in $(grep -nHoE '#include <ravel/[a-z0-9_]+\.h>' "$@" 2>/dev/null | tr ' ' '@'); do
        header=${line##*<ravel/} header=${header%.h>}
        case " $allowed " in *" $header "*) ;; *) wrong="$wrong
    $(echo "$line" | tr '@' ' ')" ;; esac
    done
    if [ -z "$wrong" ]; then good; else bad "$name includes public headers of folders that it may not know:$wrong"; fi
}

for folder in src/*/; do
    folder=${folder%/}
    row=$(echo "$ladder" | grep "^$folder:") || { bad "$folder is not on the ladder"; continue; }
    # shellcheck disable=SC2086
    check "$folder" ${row#*:}
    # shellcheck disable=SC2046
    check_public "$folder" "$(basename "$folder")${row#*:}" $(files "$folder")
done
# Our own programs are linked with libravel.a, and share its lowest floor (JSON, files, words of options), its HTTP, and the
# headers that src/ has for them.
own='base http batch/policy_terms.h io/columns.h io/mock.h io/safetensors_writer.h refit/wire/block.h report/plan_json.h report/printer.h text/decoder.h'
# shellcheck disable=SC2086
check cli train $own
# shellcheck disable=SC2086
check bench train $own src/comm/link # the tags of frames have rows of their own
# train/ has floors of its own: each sees those before it.
below=""
for floor in kernels model learn rl run serve; do
    below="$below train/$floor"
    # shellcheck disable=SC2086
    check train/$floor $own $below
done
found=$(find train -maxdepth 1 -type f; find train -mindepth 1 -maxdepth 1 -type d | grep -vE '^train/(kernels|model|learn|rl|run|serve)$')
if [ -z "$found" ]; then good; else bad "not on a floor of train/: $found"; fi
[ -d examples ] && check examples

# Every public header has a folder, and includes only headers of folders below it.
for header in include/ravel/*.h; do
    name=$(basename "$header" .h)
    [ "$name" = ravel ] && continue
    folder=$(owner "$name")
    if [ -z "$folder" ]; then bad "$header belongs to no folder: add it to the table of headers"; continue; fi
    row=$(echo "$ladder" | grep "^src/$folder:")
    check_public "$header" "$folder${row#*:}" "$header"
done

# System headers of optional parts stay in their one file.
only() { # HEADER ALLOWED-PATTERN
    found=$(grep -rlE "#include *<$1>" include src cli train bench examples 2>/dev/null | grep -vE "$2")
    if [ -z "$found" ]; then good; else bad "<$1> is included by $found"; fi
}
only 'mpi\.h' '^src/comm/mpi\.c$'
only 'openssl/.*\.h' '^src/comm/tls\.c$'
only 'nccl\.h' '^src/comm/nccl\.c$'
only '(cuda[a-z_]*|cublas[A-Za-z_]*|cudnn[a-z_]*)\.h' '^src/device/cuda[a-z_0-9]*\.(c|h|cu)$|^src/comm/nccl\.c$|^train/kernels/cuda/'
only 'pcre2\.h' '^src/text/regex_pcre2\.c$'
only 'cblas\.h' '^(train/kernels/cpu|bench)/'
# A merge that was committed with its markers.
found=$(git grep -lE '^(<<<<<<<|>>>>>>>) ' 2>/dev/null)
if [ -z "$found" ]; then good; else bad "markers of a merge conflict are in $found"; fi
# Public headers include only each other and the freestanding ones.
found=$(grep -nE '#include' include/ravel/*.h | grep -vE '<(ravel/[a-z_]+\.h|stddef\.h|stdint\.h)>')
if [ -z "$found" ]; then good; else bad "public headers include: $found"; fi

# Every public function has a caller in src, train, cli, examples, bench or the Python package (its table of all functions is
# none), or a row with the reason in tests/uncalled.txt; and a row there is about a function that exists and has no caller.
# Definitions begin at the left edge, calls do not.
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
sources() { find "$@" -name '*.c' -o -name '*.h' -o -name '*.cu'; }
names() { grep -ohE '\bravel_[a-z0-9_]+' | sort -u; }
{
    sources src | xargs awk -v bare=1 -f tests/code.awk | grep -E '^[[:space:]#]'
    sources cli train examples bench | xargs awk -v bare=1 -f tests/code.awk
    find python/ravel -name '*.py' ! -name _abi.py -exec cat {} +
} | names >"$work/called"
grep -hE -A1 '^RAVEL_API' include/ravel/*.h | grep -oE '\bravel_[a-z0-9_]+\(' | names >"$work/public"
sed 's/[ #].*//; /^$/d' tests/uncalled.txt | sort -u >"$work/excused"
comm -23 "$work/public" "$work/called" >"$work/uncalled"
for name in $(comm -23 "$work/uncalled" "$work/excused"); do bad "$name is public and has no caller outside tests: use it, delete it, or give the reason in tests/uncalled.txt"; done
for name in $(comm -13 "$work/uncalled" "$work/excused"); do bad "tests/uncalled.txt: $name has a caller, or is gone"; done
cmp -s "$work/uncalled" "$work/excused" && good

# Functions and variables that comments name exist, or are words of a string or of another program in the tree (Python, sh).
c=$(git ls-files '*.c' '*.h' '*.cu')
{
    echo "$c" | xargs awk -f tests/code.awk
    git ls-files | sed 's|.*/||; s/\..*//'
    git ls-files python mk tests | grep -E '\.(py|sh)$' | xargs cat
} | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$work/words"
echo "$c" | xargs awk -f tests/comments.awk >"$work/named"
for name in $(cut -d: -f3 "$work/named" | sort -u | comm -23 - "$work/words"); do
    case $name in *_) grep -q "^$name" "$work/words" && continue ;; esac # "ravel_comm_*"
    bad "no such name: $(grep ":$name\$" "$work/named" | tr '\n' ' ')"
done
[ -s "$work/named" ] && good
# What the pages name exists: targets of links with their headings, and files and folders of the tree.
pages=$(git ls-files 'README.md' 'CONTRIBUTING.md' 'docs/*.md')
echo "$pages" | xargs awk -f tests/docs.awk >"$work/said"
sed -n 's/^\([^:]*\):[0-9]*:anchor:/\1/p' "$work/said" | sort -u >"$work/anchors"
sed -n 's/^\([^:]*:[0-9]*\):link:/\1 /p' "$work/said" | while read -r place target; do
    case $target in *://*) continue ;; esac
    page=${place%%:*} file=${target%%#*}
    path=$(realpath -m --relative-to=. "$(dirname "$page")/$file")
    [ -n "$file" ] || path=$page
    [ -e "$path" ] || { echo "$place: there is no $path"; continue; }
    case $path$target in *.md*#*) grep -qxF "$path#${target##*#}" "$work/anchors" || echo "$place: $path has no heading #${target##*#}" ;; esac
done >"$work/broken"
{ git ls-files; git ls-files -o --exclude-standard; } | sort -u >"$work/files"
sed -n 's/^\([^:]*:[0-9]*\):path:/\1 /p' "$work/said" | while read -r place path; do
    case $path in */NN-*|mpi.h|app.c) continue ;; esac # a pattern, a system's header, the reader's own
    # shellcheck disable=SC2086
    ls -d $path >/dev/null 2>&1 || grep -qE "(^|/)$path\$" "$work/files" || echo "$place: there is no $path"
done >>"$work/broken"
if [ -s "$work/broken" ]; then bad "pages name what does not exist:
$(cat "$work/broken")"; else good; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
