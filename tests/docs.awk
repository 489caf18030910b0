# What pages of Markdown name, one per line as FILE:LINE:KIND:TEXT, for the checks of 30-ladder.sh and 50-cli.sh.
#     link    target of a link, as it stands there
#     path    a path or a file of the tree, from a folder of the root or by its name alone
#     option  --name, on a line or in a code block that is about ravel
#     command the word after "ravel" in a code block or between backquotes
#     anchor  what a heading of the page is called in links: "#slug"
FNR == 1 { block = 0; ours = 1 }
function out(kind, text) { print FILENAME ":" FNR ":" kind ":" text }
function each(kind, text, pattern, from) {
    while (match(text, pattern)) {
        out(kind, substr(text, RSTART + from, RLENGTH - from))
        text = substr(text, RSTART + RLENGTH)
    }
}
/^```/ { block = !block; next }
{ line = $0 }
!block && /^#+ / {
    slug = tolower(line); sub(/^#+ /, "", slug); gsub(/[^a-z0-9 _-]/, "", slug); gsub(/ /, "-", slug)
    out("anchor", "#" slug)
}
!block {
    rest = line
    while (match(rest, /\]\([^) ]+\)/)) {
        out("link", substr(rest, RSTART + 2, RLENGTH - 3))
        rest = substr(rest, RSTART + RLENGTH)
    }
    gsub(/\]\([^) ]+\)/, "]", line)
}
{
    rest = line
    gsub(/https?:[^ `)]*/, "", rest)
    while (match(rest, /[A-Za-z0-9_.\/{}$*~-]+/)) {
        word = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
        sub(/[.]+$/, "", word)
        if (word ~ /^tests\/.*test_.*\.py$/ || word ~ /^train\/[a-z_]+$/) continue # tests of other projects; metrics
        if (word ~ /^(src|train|cli|include|tests|bench|mk|docs|examples|python)\/[A-Za-z]/ ||
            word ~ /^[a-z][a-z0-9_\/-]*\.(c|h|cu|awk|sh)$/) out("path", word)
    }
}
