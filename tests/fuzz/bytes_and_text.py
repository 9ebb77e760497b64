"""Mutators: valid text -> what a broken editor, a wrong encoding or bad luck makes of it, drawn from one Random."""

from __future__ import annotations

import random

NASTY = [
    "", "-1", "1e999", "-inf", "nan", "9" * 5000, "0x" + "f" * 6000, "1_000", "true", "unset", "none", "{}", "{input}",
    "{0.x[", "{:>99999999999}", "~", "~nobody-of-that-name/x", "/" + "n" * 300, "a\0b", "\ud800", "\udcff", "ÿ",
    "\u202e", "\x7f\x1b[31m", "[[[[", '"', "'''", "\\u0000", "-", "--", "=", "http://[::1", "x" * 10_000,
]  # fmt: skip
"""Values that broke parsers before."""
BYTES = [
    b"\0", b"\xff", b"\xe9", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\x1a", b"{", b"[" * 3000, b"]",
    b'"', b"=",
]  # fmt: skip
BYTES += [b"9" * 5000, b"NaN", b"\\ud800", b"1e999"]


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """One to four damages: a byte flipped, a stretch cut, doubled or moved, something nasty put in, the rest lost,
    another encoding."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.choice((1, 2, 8, 64)))
        match rng.randrange(9):
            case 0:
                raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
            case 1:
                raw = raw[:at] + raw[end:]
            case 2:
                raw = raw[:end] + raw[at:]
            case 3 | 4:
                raw = raw[:at] + rng.choice(BYTES) + raw[at:]
            case 5:
                raw = raw[:at] + rng.choice(NASTY).encode("utf-8", "surrogatepass") + raw[end:]
            case 6:
                raw = raw[:at]
            case 7:
                lines = raw.split(b"\n")
                rng.shuffle(lines)
                raw = b"\n".join(lines)
            case 8:
                raw = raw.decode("utf-8", "replace").encode(
                    rng.choice(("utf-16", "latin-1", "utf-8-sig", "utf-32")), "replace"
                )
    return raw


def words(rng: random.Random, known: list[str]) -> str:
    """A word of a command line: mostly one that is known, else nasty, or a known one with a typing mistake."""
    roll = rng.random()
    if roll < 0.6 and known:
        return rng.choice(known)
    if roll < 0.8 or not known:
        return rng.choice(NASTY)
    word = rng.choice(known)
    at = rng.randrange(len(word) + 1)
    return word[:at] + rng.choice("-=. \t\0é_9\udc80") + word[at + rng.randrange(2) :]
