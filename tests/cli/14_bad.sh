# A table of bad inputs: every one must fail with its exit code, one sentence on standard error that says what is meant, and
# nothing on standard output. None may be silent, hang, or print what a terminal would obey.
#
#     CODE | WORDS OF THE SENTENCE | FILE: ITS TEXT (printf) | COMMAND     @ is the file
. tests/cli/lib.sh
P="plan --budget 1k --lengths" F="feed --budget 1k --updates 1 --data"
row() { # CODE WORDS FILE TEXT COMMAND...
    code=$1 words=$2 file=$T/$3 text=$4; shift 4
    # shellcheck disable=SC2059
    printf "$text" >"$file"
    # shellcheck disable=SC2046,SC2086
    set -- $(echo "$*" | sed "s|@|$file|g; s|at:|@|")
    wrong "$code" "$words" "$@"
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
row 1 "it has no rows" a.csv '' $P @
row 1 "it has no rows" a.csv 'length\n' $P @
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
row 1 "it has no rows" a.json '[]' $P @
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
row 1 "x has 7 dimensions; at most 6 can be refitted" model.safetensors '\101\000\000\000\000\000\000\000{"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]}}\001' refit --from @ --ranks 2
# ---- options of plan ----
p() { code=$1 words=$2; shift 2; case " $* " in *" --budget"*) ;; *) set -- --budget 16k "$@" ;; esac; wrong "$code" "$words" plan --mock "{}" "$@"; }
p 2 "budget is missing or 0" --budget 0
p 2 "budget is -5" --budget -5
p 2 '"1e3" is not a whole number' --budget 1e3
p 2 '"" is not a whole number' --budget=
p 2 "dp is -1" --dp -1
p 2 "does not fit 32 bits" --dp 99999999999
p 2 "cp is 0" --cp 0
p 2 "align is 0" --align 0
p 2 "updates is 0" --updates 0
p 2 "it must be one of ravel|next-fit" --method best
p 2 "it must be one of fast|default|max" --effort hard
p 2 "it must be one of error|skip" --oversize drop
p 2 "it must be one of packed|padded" --layout square
p 2 "it must be one of auto|csv" --format xml
p 2 "max-samples is -1" --max-samples -1
p 2 "limit is -1" --limit -1
p 2 "is not a non-negative whole number" --seed x
p 2 "is not a whole number" --mock-count many
p 2 "--json needs a value" --json
p 2 "unknown option --no-json; did you mean --json?" --no-json
p 2 "is not LINEAR:QUADRATIC" --cost 1
p 2 "is not LIN:QUAD" --cost a:b
p 2 "is not LIN:QUAD" --cost -1:2
p 2 "--sweep needs a value" --sweep
p 2 "is not an option and its values" --sweep budget=
p 2 '"1..4" is not a whole number' --sweep dp=1..4
p 2 "two tables" --compare --sweep dp=1,2
p 2 "only one output" --svg - --html -
p 2 "--tokenizer is for --lengths" --tokenizer docs
p 2 "give --cp-pool too" --cp-widths 3
p 1 "/none: cannot open it" --home /none
wrong 2 "options must be a JSON object" plan --budget 1k --mock '[]'
wrong 2 "it must be one of lognormal|uniform" plan --budget 1k --mock '{"type":"normal"}'
wrong 2 "min_seq_len is 9, over max_seq_len" plan --budget 1k --mock '{"min_seq_len":9,"max_seq_len":5}'
wrong 2 'needs a "path"' plan --budget 1k --mock '{"mode":"file"}'
wrong 1 "/none: cannot open it" plan --budget 1k --mock '{"mode":"file","path":"/none"}'
wrong 1 "/none.json: cannot open it" plan --budget 1k --mock @/none.json
wrong 1 "it has no rows" plan --budget 1k --lengths /dev/null

# ---- options of feed ----
f() { code=$1 words=$2; shift 2; case " $* " in *" --budget"*) ;; *) set -- --budget 1k "$@" ;; esac; wrong "$code" "$words" feed --mock "{\"max_seq_len\":64}" "$@"; }
f 2 "budget is missing or 0" --budget 0
f 2 "which does not divide 3 ranks" --ranks 3 --tp 2
f 2 "samples is 0" --samples 0
f 2 "samples is -3" --samples -3
f 2 "it must be one of tp0-first-last" --owners me
f 2 "must be name:dtype" --fields reward
f 2 'has kind "nothing"' --fields reward:f32:nothing
f 2 '"f99" is not a dtype' --fields reward:f99:sample
f 2 "tp is 0" --tp 0
f 2 "consume-ms is -1" --consume-ms -1
f 2 "it must be one of error|skip" --bad-rows maybe
f 2 "truncate is -1" --truncate -1
f 2 "epochs is -1" --epochs -1
f 2 "did you mean --mock?" --mode nothing
f 2 "is one word too many" extra
f 2 "only one output can be standard output" --json - --save -
f 2 "are for --data; mock data is tokens" --tokenizer docs
f 1 "/none: cannot open it" --resume /none
f 1 "cannot write it" --json /none/x
wrong 1 "/none: cannot open it" feed --budget 1k --data /none
wrong 1 "is a folder, not a file" feed --budget 1k --data "$T"

# ---- refit ----
r() { code=$1 words=$2; shift 2; wrong "$code" "$words" refit --quiet --from tests/golden/qwen3-tiny/model.safetensors "$@"; }
wrong 1 "/none: cannot open it" refit --from /none
wrong 1 "holds no *.safetensors file" refit --from docs
wrong 1 "this is not a safetensors file" refit --from README.md
r 2 "ranks is 1" --ranks 1
r 2 "ranks is 600" --ranks 600
r 2 "senders is 0" --senders 0
r 2 "are no multiple of receive-tp 7" --receive-tp 7
r 2 "buffer-bytes is 1; allowed is" --buffer-bytes 1
r 2 "num-buffers is 99" --num-buffers 99
r 2 "it must be one of spare|undo|copy" --stage never
r 2 "updates is -1" --updates -1
r 1 "is a folder, not a file" --to "$T"
r 1 "cannot write it" --json /none/x
r 1 "cannot write it" --trace /none/x
wrong 2 "--publish needs a value" refit --publish
wrong 2 "is not an address; write host:port" refit --publish nowhere:port:5 --memory 16M --updates 1
wrong 2 "is not an address; write host:port" refit --pull nowhere-at-all --memory 16M --updates 1
wrong 2 '"f99" is not a dtype' refit --pull :1 --dtype f99
wrong 2 "is not an option" refit extra

# ---- report, and the command itself ----
wrong 2 "which run?" report
wrong 1 "no such folder" report /none
wrong 1 "no such folder" report README.md
wrong 1 "docs/metrics.jsonl: there is no such file" report docs
wrong 2 "--html needs a value" report docs --html
wrong 2 "did you mean --html?" report docs --htm y
wrong 2 "unknown option --help-me" plan --help-me
wrong 2 'did you mean "train"?' help trane
wrong 2 'there is no command "-x"' -x

# ---- a mapped file that another process cuts short: the kernel's signal, which here comes from us ----
mkfifo "$T/pipe"
"$RAVEL" plan --lengths /dev/stdin --budget 1k <"$T/pipe" >"$T/out" 2>"$T/err" & # waits for a length
exec 3>"$T/pipe" # opened once the command runs
tries=0
until grep -q '^SigCgt:.*[4-7c-f].$' "/proc/$!/status" || [ $tries = 600 ]; do tries=$((tries + 1)); sleep .1; done # SIGBUS is caught
kill -BUS $!
wait $!
got=$?
exec 3>&-
[ $got = 1 ] && grep -qF "was cut short by another process" "$T/err" && ok "SIGBUS is a sentence" ||
    bad "SIGBUS: exit code $got" "$(cat "$T/err")"
finish
