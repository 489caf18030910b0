"""What a CUDA object or module holds: fails unless every fat binary in it has code for all of the GPUs named, and PTX of
the first and the last of them without an "a".

    python3 tests/gpu/fatbin.py FILE 80 86 89 90a 100 120
"""
import struct
import sys

MAGIC, PTX, CODE = 0xBA55ED50, 1, 2


def binaries(data):
    """The entries of each: (kind, GPU)."""
    at = data.find(struct.pack("<I", MAGIC))
    while at >= 0:
        _, head, size = struct.unpack_from("<HHQ", data, at + 4)
        entry, entries = at + head, []
        while entry < at + head + size:
            kind, _, own, bytes_ = struct.unpack_from("<HHIQ", data, entry)
            entries.append((kind, struct.unpack_from("<I", data, entry + 28)[0]))
            entry += own + bytes_
        yield sorted(entries)
        at = data.find(struct.pack("<I", MAGIC), at + 4)


def main():
    plain = [int(gpu) for gpu in sys.argv[2:] if gpu.isdigit()]
    wanted = {(CODE, int(gpu.rstrip("a"))) for gpu in sys.argv[2:]} | {(PTX, gpu) for gpu in (plain[0], plain[-1])}
    with open(sys.argv[1], "rb") as file:
        found = list(binaries(file.read()))
    wrong = [entries for entries in found if set(entries) != wanted]
    say = lambda entries: ", ".join(f"{'PTX' if kind == PTX else 'code'} {gpu}" for kind, gpu in sorted(entries, reverse=True))
    if wrong or not found:
        print(f"{sys.argv[1]}: {say(wrong[0]) if wrong else 'nothing'}; wanted: {say(wanted)}")
        return 1
    print(say(wanted))
    return 0


sys.exit(main())
