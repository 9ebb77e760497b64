"""Seeds of requests: numbers that follow from names, so that a run can be repeated."""

from __future__ import annotations

import hashlib


def seed_for(*parts: object) -> int:
    """Return a 63-bit seed from anything printable. It is the same on every machine and in every run."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
