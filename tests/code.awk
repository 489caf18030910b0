# C sources without comments; with bare=1 also without what stands between quotes. Lines keep their numbers.
FNR == 1 { inside = 0 }
{
    line = $0; out = ""
    while (line != "") {
        if (inside) {
            end = index(line, "*/")
            if (!end) { line = ""; break }
            line = substr(line, end + 2); inside = 0; out = out " "
        } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/)) {
            mark = substr(line, RSTART, 2)
            out = out substr(line, 1, RSTART - 1) (bare || mark ~ /^\/[\/*]/ ? " " : substr(line, RSTART, RLENGTH))
            line = substr(line, RSTART + RLENGTH)
            if (mark == "//") line = ""
            if (mark == "/*") inside = 1
        } else { out = out line; line = "" }
    }
    print out
}
