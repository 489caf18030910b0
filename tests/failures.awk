# The failed tests in a suite's log, each with at most MOST lines of what it said.
#     awk -v suite=NAME -f tests/failures.awk LOG
# A unit test says what failed before its "  FAIL  name" line, as "    file:line: ...". A script says it after that line,
# up to the next "  ok", "  FAIL", "  skip" or "N passed" line. Pytest says it in a section "____ name ____", in lines that
# begin with "E", and names the test at its end as "FAILED file::name". A log without any of these ended too soon: its last
# lines are shown.
BEGIN { MOST = 15 }
function say(line) { if (said++ < MOST) print "    " line }
function begin(name) { sub(/^ */, "", name); print suite ": " name; failures++; said = 0; after = 1 }

{ last[NR] = $0 }
/^_+ .* _+$/ { section = $2; sub(/\[.*/, "", section); sub(/.*\./, "", section) }
/^E / && section != "" && sections[section] < MOST { text[section, sections[section]++] = $0 }
/^    [^ ]+:[0-9]+: / { before[kept++] = $0; next }
/^ *FAIL(ED|ER)? / && /::/ {
    name = $2; sub(/.*::/, "", name); sub(/\[.*/, "", name)
    begin($0)
    for (i = 0; i < sections[name]; i++) say(text[name, i])
    after = kept = 0
    next
}
/^ *FAIL / {
    begin($0)
    for (i = kept > MOST ? kept - MOST : 0; i < kept; i++) say(before[i])
    if (kept) after = 0
    kept = 0
    next
}
/^  (ok|skip) / || /^[0-9]+ passed, / { after = kept = 0; next }
after { say($0) }
END {
    if (failures) exit
    begin("ended before its totals, or with an error")
    for (i = NR > MOST ? NR - MOST + 1 : 1; i <= NR; i++) say(last[i])
}
