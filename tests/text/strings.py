"""Texts to compare tokenizers on: half of them parts of real files, half random: words, digits, contractions, special tokens,
marks, every script."""
import glob
import os
import time

ALL = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
ODD = list(range(0x300, 0x370)) + [0x17F, 0x212A, 0x130, 0x131, 0xDF, 0x149, 0xFB06, 0x85, 0xA0, 0x180E, 0x200B, 0x2028,
                                   0x3000, 0xFEFF, 0x1E9E, 0xAC00, 0x1100, 0x1161, 0x11A8, 0x344, 0x1F82, 0x958, 0x1D15E]
WORDS = ["'s", "'S", "'ll", "'LL", "'Ve", "'\u017f", "\u2019s", "'re'd", "\n\n", "    ", "12345", "...", "the", " and"]


def seed():
    return os.environ.get("RAVEL_SEED") or time.strftime("%Y%m%d", time.gmtime())


def real_texts():
    paths = glob.glob("docs/*.md") + glob.glob("*.md") + glob.glob("src/*/*.c") + glob.glob("python/ravel/*.py")
    return [open(p, encoding="utf8").read() for p in sorted(paths)]


def character(source, special):
    kind = source.random()
    if kind < .4:
        return source.choice("abcdefghijklmnopqrstuvwxyzABCXYZ  \n\t\r0123456789.,;:!?'\"-_()[]{}<>|/\\@#$%^&*+=~`")
    if kind < .5:
        return source.choice(WORDS)
    if kind < .55 and special:
        return source.choice(special)
    if kind < .65:
        return chr(source.choice(ODD))
    ranges = [(0x80, 0x800), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0x1F300, 0x1FB00)]
    return chr(source.randrange(*source.choice(ranges))) if kind < .9 else chr(source.choice(ALL))


def text(source, real, special):
    if source.random() < .5:
        whole = source.choice(real)
        at = source.randrange(len(whole))
        return whole[at:at + source.randrange(1, 400)]
    return "".join(character(source, special) for _ in range(source.randrange(1, 60)))
