# Names in the comments of C sources that look like functions or variables, one per line as FILE:LINE:NAME: words with a _
# between letters, and words before "()". Not from indented lines (programs, pictures, formats), nor names of files.
FNR == 1 { inside = 0 }
function names(text,    word, before) {
    if (text ~ /^ *\*?     /) return
    while (match(text, /[A-Za-z_][A-Za-z0-9_]*(\(\))?/)) {
        word = substr(text, RSTART, RLENGTH)
        before = substr(text, 1, RSTART - 1)
        text = substr(text, RSTART + RLENGTH)
        if (word !~ /^[a-z]+(__?[a-z0-9]+)+_?$/ && word !~ /\(\)$/) continue
        if (before ~ /[A-Za-z0-9_.\/<-]$/ || text ~ /^[.-][a-z]/) continue
        sub(/\(\)$/, "", word)
        print FILENAME ":" FNR ":" word
    }
}
{
    line = $0
    while (line != "") {
        if (inside) {
            end = index(line, "*/")
            names(end ? substr(line, 1, end - 1) : line)
            if (!end) break
            line = substr(line, end + 2); inside = 0
        } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/)) {
            mark = substr(line, RSTART, 2); line = substr(line, RSTART + RLENGTH)
            if (mark == "//") { names(line); break }
            if (mark == "/*") inside = 1
        } else break
    }
}
