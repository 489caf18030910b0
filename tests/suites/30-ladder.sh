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
src/metrics: base
src/text: base
src/io: base
src/comm: base device
src/refit: base device comm metrics
src/report: base plan io
src/feed: base device comm plan batch metrics io text
'
headers='
base: base dtype file json module options shape
device: device slab
<<<<<<< HEAD
plan: plan tree
batch: batch policy weights
=======
plan: plan
batch: batch policy tree_batch weights
>>>>>>> 6b81438 (Batch: bins whose samples share prefixes, every shared token once)
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
        for allowed in "${folder##*/}" "$@"; do case $target in "$allowed"/*) ok=1 ;; esac; done
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
check cli train
check bench train
# train/ has floors of its own: each sees those before it.
below=""
for floor in kernels model learn rl run; do
    below="$below train/$floor"
    # shellcheck disable=SC2086
    check train/$floor $below
done
found=$(find train -maxdepth 1 -type f; find train -mindepth 1 -maxdepth 1 -type d | grep -vE '^train/(kernels|model|learn|rl|run)$')
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
only 'nccl\.h' '^src/comm/nccl\.c$'
only '(cuda[a-z_]*|cublas[A-Za-z_]*|cudnn[a-z_]*)\.h' '^src/device/cuda[a-z_0-9]*\.(c|h|cu)$|^src/comm/nccl\.c$|^train/kernels/cuda/'
only 'pcre2\.h' '^src/text/regex_pcre2\.c$'
only 'cblas\.h' '^(train/kernels/cpu|bench)/'
# Public headers include only each other and the freestanding ones.
found=$(grep -nE '#include' include/ravel/*.h | grep -vE '<(ravel/[a-z_]+\.h|stddef\.h|stdint\.h)>')
if [ -z "$found" ]; then good; else bad "public headers include: $found"; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
