"""Puts the code blocks of headers and pages into the programs of this folder, so that what people copy compiles and runs.

    extract.py OUT      writes OUT/NAME.c for every NAME.c here

A program says where a block goes with a line  `//@ include/ravel/plan.h 2`  (the second block of that file). In headers
a block is a run of lines that begin with " *     " and call something of Ravel; in pages it is fenced with ```c. Blocks
are written for people, so before compiling: a remark after three spaces goes, `...` after a condition becomes
`return 1;`, after a loop `;`, and a line that begins with `...` goes. A block that begins with a function is split: the
function with `//@ FILE N :functions`, the rest with `//@ FILE N :statements`. A block that no program uses is an error.
"""
import glob
import os
import re
import sys


def header_blocks(lines):
    block = []
    for line in [*lines, ""]:
        found = re.match(r" \*     ( *\S.*)", line)
        if found:
            block.append(found.group(1))
            continue
        text = "\n".join(block)
        if re.search(r"ravel_\w+\(.*[;{]", text) and ";" in text:
            yield block
        block = []


def page_blocks(lines):
    block = None
    for line in lines:
        if line.strip() == "```c":
            block = []
        elif line.strip() == "```" and block is not None:
            yield block
            block = None
        elif block is not None:
            block.append(line)


def compilable(block):
    for line in block:
        line = re.sub(r"(?<=\S) {3,}(?!/\*).*$", "", line.rstrip())
        line = re.sub(r"\) \.\.\.$", "); " if re.match(r" *(for|while) ", line) else ") return 1;", line)
        if not line.lstrip().startswith("..."):
            yield line


def main(out):
    here = os.path.dirname(os.path.abspath(__file__))
    files = [*glob.glob("include/ravel/*.h"), "README.md", *glob.glob("docs/*.md")]
    blocks = {}
    for path in files:
        lines = open(path, encoding="utf-8").read().split("\n")
        for number, block in enumerate(header_blocks(lines) if path.endswith(".h") else page_blocks(lines), 1):
            blocks[f"{path} {number}"] = block
    unused = set(blocks)
    for program in sorted(glob.glob(f"{here}/*.c")):
        result = []
        for line in open(program, encoding="utf-8").read().split("\n"):
            found = re.match(r"\s*//@ (.*)", line)
            if not found:
                result.append(line)
                continue
            name, _, part = found.group(1).partition(" :")
            if name not in blocks:
                sys.exit(f"{program}: there is no block {name}")
            unused.discard(name)
            block = blocks[name]
            end = block.index("}") + 1 if part else 0
            result += compilable(block[:end] if part == "functions" else block[end:])
        with open(f"{out}/{os.path.basename(program)}", "w", encoding="utf-8") as file:
            file.write("\n".join(result))
    if unused:
        sys.exit("code blocks that no program of tests/snippets runs: " + ", ".join(sorted(unused)))


main(sys.argv[1])
