# A table of bad inputs: every one must fail with its exit code, one sentence on standard error that says what is meant, and
# nothing on standard output. None may be silent, hang, or print what a terminal would obey.
#
#     CODE | WORDS OF THE SENTENCE | FILE: ITS TEXT (printf) | COMMAND     @ is the file
. tests/cli/lib.sh
P="plan --budget 1k --lengths" F="feed --budget 1k --updates 1 --data"
row() { # CODE WORDS FILE TEXT COMMAND...
    wanted=$1 words=$2 file=$T/$3 text=$4; shift 4
    # shellcheck disable=SC2059
    printf "$text" >"$file"
    name="$(basename "$file"): $words"
    # shellcheck disable=SC2046,SC2086
    set -- $(echo "$*" | sed "s|@|$file|g; s|at:|@|")
    timeout 60 "$RAVEL" "$@" >"$T/out" 2>"$T/err" </dev/null; got=$?
    if [ $got != "$wanted" ]; then bad "$name: exit code $got, not $wanted" "$(cat "$T/err")"
    elif ! grep -qF -- "$words" "$T/err"; then bad "$name: the sentence" "$(cat "$T/err")"
    elif [ -s "$T/out" ]; then bad "$name: something on stdout" "$(cat "$T/out")"
    elif [ "$(wc -l <"$T/err")" != 1 ]; then bad "$name: not one line" "$(cat "$T/err")"
    elif LC_ALL=C grep -q '[[:cntrl:]]' "$T/err"; then bad "$name: control characters" "$(cat -v "$T/err")"
    else ok "$name"; fi
}

# ---- what people have ----
row 1 "is compressed with gzip; unpack it first: gunzip -k" a.csv.gz '\037\213\010\000' $P @
row 1 "is compressed with gzip" a.csv '\037\213\010\000' $P @
row 1 "is compressed with zstd; unpack it first: unzstd" a.jsonl '\050\265\057\375' $P @
row 1 "is compressed with xz" a.xz '\3757zXZ' $P @
row 1 "is compressed with bzip2" a.bz2 'BZh91AY' $P @
row 1 "is a Parquet file; make CSV of it first: python3" a.parquet 'PAR1\025\004' $P @
row 1 "is a zip archive (npz is one)" a.npz 'PK\003\004' $P @
row 1 "is an Arrow file" a.arrow 'ARROW1\000' $P @
row 1 "is an HDF5 file" a.h5 '\211HDF\r\n' $P @
row 1 "is UTF-16 text" a.csv '\377\3761\000' $P @
row 1 "is binary data, not text" a.csv '\000\001\002' $P @
row 1 "is an NPY file where text is wanted" a.csv '\223NUMPY\001\000' $P @
row 1 "is compressed with gzip" rows.jsonl.gz '\037\213\010\000' $F @
row 1 "is compressed with zstd" rows.jsonl.zst '\050\265\057\375' $F @
row 1 "is a Parquet file" rows.parquet 'PAR1\025\004' $F @
row 1 "is a zip archive" rows.npz 'PK\003\004' $F @

# ---- CSV ----
row 1 "there is not one row" a.csv '' $P @
row 1 "there is not one row" a.csv 'length\n' $P @
row 1 "a.csv:2: \"x\" is not a whole number" a.csv '1\nx\n' $P @
row 1 "a.csv:1: \"1.5\" is not a whole number" a.csv '1.5\n' $P @
row 1 "a.csv:2: length 0" a.csv 'n\n0\n' $P @
row 1 "a.csv:1: length -1" a.csv '%s-1\n' $P @
row 1 "\"99999999999999999999\" is not a whole number" a.csv '99999999999999999999\n' $P @
row 1 "a.csv:1: are these prompt and response?" a.csv 'id,score\n1,2\n' $P @
row 1 "a.csv:1: are these prompt and response?" a.csv ',id,score\n0,1,2\n' $P @
row 1 "which column is meant?" a.csv 'a,b,c\n1,2,3\n' $P @
row 1 "there is no column \"d\"" a.csv 'a,b,c\n1,2,3\n' $P @ --field d
row 1 "a.csv:2: column 2 is missing" a.csv '1,2\n3\n' $P @
row 1 "2 columns, but 1 in the first row" a.csv '1\n3,4\n' $P @
row 1 "a quote is opened here and never closed" a.csv 'length\n"5\n6\n' $P @
row 1 "neither may be negative" a.csv 'prompt,response\n-1,5\n' $P @
row 1 "1 of 2 samples fit no bin of 1,024 tokens (the longest has 2,000): " a.csv 'length\n\n5\n2000\n' $P @
row 1 "a.csv:4 (2,000 tokens)" a.csv 'length\n\n5\n2000\n' $P @
row 1 "is not a whole number" a.csv '5\nx\200\377\n' $P @
row 1 "is not a whole number" a.csv '10000000\n200000000\n\033]0;x\007\n' $P @

# ---- JSON ----
row 1 "a.jsonl:1: JSON" a.jsonl '{"length":\n' $P @
row 1 "a.jsonl:2: there is no \"length\"" a.jsonl '{"length":5}\n{"len":6}\n' $P @
row 1 "\"length\" is an array of 2 values; each row has one number" a.jsonl '{"length":[5,6]}\n' $P @
row 1 "\"length\" is the text \"551\"; write the number without quotes" a.jsonl '{"length":"551"}\n' $P @
row 1 "\"length\" must be a whole number" a.jsonl '{"length":5.5}\n' $P @
row 1 "\"prompt\" is text; it has to be tokenized first" a.jsonl '{"prompt":"hello"}\n' $P @
row 1 "which member is meant?" a.jsonl '{"a":5}\n' $P @
row 1 "a row is one line, or the whole file is one JSON array" a.json '{\n "length": 5\n}\n' $P @
row 1 "a.json: item 2: there is no \"length\"" a.json '[{"length":5},{}]' $P @
row 1 "a.json: JSON, line 1" a.json '[1, 2' $P @
row 1 "there is not one row" a.json '[]' $P @
row 1 "must be a JSON object or a number" a.jsonl 'true\n' $P @

# ---- feed ----
row 1 "the file has no rows" rows.jsonl '' $F @
row 1 "rows.jsonl:1: JSON" rows.jsonl '{"input_ids": [1,\n' $F @
row 1 "rows.jsonl:2" rows.jsonl '{"input_ids": [1, 2]}\n{"input_ids": "x"}\n' $F @
row 1 "rows.jsonl:1" rows.jsonl '{"length": 5}\n' $F @

# ---- other files ----
row 1 "3 rows, but there are 5000 samples" h.csv '0\n1\n0\n' plan --mock '{"max_seq_len":64}' --mock-count 5000 --budget 1k --dp 2 --home @
row 1 "JSON" m.json '{"type":' plan --mock at:@ --budget 1k
row 1 "\"hidden_size\" is missing" config.json '{}' plan --mock '{"max_seq_len":64}' --budget 1k --cost @
row 1 "there is no whole update in it" metrics.jsonl '' report "$T"
row 1 "cursor" cursor.json 'x' feed --mock '{"max_seq_len":64}' --budget 1k --updates 1 --resume @
row 1 "model.safetensors" model.safetensors 'xx' refit --from @ --ranks 2
finish
