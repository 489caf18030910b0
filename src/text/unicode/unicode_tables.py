"""Writes unicode_tables.h: python3 unicode_tables.py > unicode_tables.h, with the `tokenizers` package installed.

Decompositions and combining classes come from Python's unicodedata, less the characters that are newer than the tables
of the `tokenizers` package (asked of the package itself). Characters that are newer than Unicode 14, and their general
categories, are asked of the package's regex engine.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# For each category a character of Unicode 14 or before with the same category, of 3 and of 4 bytes.
LIKE = {"Lu": (0xA640, 0x10400), "Ll": (0xA641, 0x10428), "Lo": (0xA4D0, 0x10330), "Lm": (0xA4F8, 0x10780),
        "Mn": (0xA66F, 0x101FD), "Mc": (0xA823, 0x11000), "Nd": (0xA620, 0x104A0), "No": (0x3192, 0x10107),
        "Nl": (0xA6E6, 0x10140), "Po": (0xA4FE, 0x10100), "So": (0xA490, 0x10137), "Sm": (0x2200, 0x1D6C1),
        "Pd": (0x2E17, 0x10EAD), "Sc": (0x20A0, 0x1ECB0), "Sk": (0xA700, 0x1F3FB)}
HAN = 0x20000


def category(c):
    return unicodedata.category(chr(c))


for name, pair in LIKE.items():
    assert all(category(c) == name for c in pair), name
    assert [len(chr(c).encode()) for c in pair] == [3, 4]


def members(pattern, points):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set(points)
    for i in range(0, len(points), 4096):
        text = "".join(map(chr, points[i:i + 4096]))
        found -= {ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece}
    return found


def ranges(value):
    """(first, last, value) of runs of code points with the same value other than None or 0."""
    runs = []
    for c, v in sorted(value.items()):
        if not v:
            continue
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == v:
            runs[-1][1] = c
        else:
            runs.append([c, c, v])
    return runs


def show(kind, name, rows):
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 118:
            print(line)
            line = "   "
        line += " " + row + ","
    print(line.rstrip(",") + "};\n")


unassigned = [c for c in POINTS if category(c) == "Cn"]
recent = {}
han = members(r"\p{Han}", unassigned)
for name, (three, four) in LIKE.items():
    for c in members(r"\p{%s}" % name, unassigned):
        recent[c] = HAN if c in han and c > 0xFFFF and name == "Lo" else four if c > 0xFFFF else three
        assert len(chr(c).encode()) in (3, 4)

nfc = normalizers.NFC().normalize_str


def their_class(c):
    """The combining class where the package has the character at all: it then moves over one of a lower class."""
    ours = unicodedata.combining(chr(c))
    if not ours:
        return 0
    probe = "a" + chr(c) + "\u0334" if ours > 1 else "a\u0345" + chr(c)
    return ours if nfc(probe) == unicodedata.normalize("NFC", probe) else 0


classes = {c: their_class(c) for c in POINTS}
whole, composed = [], {}
for c in POINTS:
    text = unicodedata.decomposition(chr(c))
    if not text or text.startswith("<"):
        continue
    parts = [int(x, 16) for x in text.split()]
    if nfc("".join(map(chr, parts))) == unicodedata.normalize("NFC", "".join(map(chr, parts))):
        whole.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
        if len(parts) > 1 and unicodedata.normalize("NFC", "".join(map(chr, parts))) == chr(c):
            composed[tuple(parts)] = len(whole) - 1
second = {pair[1] for pair in composed} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
suspect = {c: int(bool(classes[c]) or nfc(chr(c)) != chr(c) or c in second) for c in POINTS}

print(f"""/* Written by unicode_tables.py from Unicode {unicodedata.unidata_version} and tokenizers {tokenizers.__version__}; not by hand.
 *
 *   recent_ranges      characters newer than Unicode 14: first, last, an older character of the same category and size
 *   class_ranges       canonical combining classes: first, last, class
 *   suspect_ranges     where text may not be in NFC: first, last, 1
 *   decompositions     canonical: character, first part, second part or 0; Hangul syllables are computed
 *   compositions       indices of decompositions that are composed again, sorted by first and second part */
typedef struct unicode_range {{
    uint32_t first, last, value;
}} unicode_range;
typedef struct unicode_parts {{
    uint32_t whole, first, second;
}} unicode_parts;

/* clang-format off */""")
for name, value in (("recent_ranges", recent), ("class_ranges", classes), ("suspect_ranges", suspect)):
    show("unicode_range", name, ["{%#x,%#x,%s}" % (a, b, hex(v) if v > 255 else v) for a, b, v in ranges(value)])
show("unicode_parts", "decompositions", ["{%#x,%#x,%s}" % (c, a, hex(b) if b else "0") for c, a, b in whole])
show("uint16_t", "compositions", [str(composed[pair]) for pair in sorted(composed)])
print("/* clang-format on */", file=sys.stdout)
