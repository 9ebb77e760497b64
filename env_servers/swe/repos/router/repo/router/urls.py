"""The parts of URLs."""

from typing import NamedTuple

SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
PORTS = {"http": 80, "https": 443}


class Url(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    query: dict
    fragment: str


def quote(text, safe=""):
    return "".join(chr(b) if chr(b) in SAFE + safe else f"%{b:02X}" for b in text.encode())


def unquote(text, plus=False):
    """`plus`: + is a space, as in queries. A % without two digits stays."""
    data, at = b"", 0
    while at < len(text):
        if text[at] == "%" and len(text) >= at + 3:
            try:
                data += bytes([int(text[at + 1 : at + 3], 16)])
                at += 3
                continue
            except ValueError:
                pass
        data += b" " if plus and text[at] == "+" else text[at].encode()
        at += 1
    return data.decode("utf-8", "replace")


def parse_query(text):
    """Name -> list of values, in order."""
    found = {}
    for part in text.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        found.setdefault(unquote(name, plus=True), []).append(unquote(value, plus=True))
    return found


def build_query(values):
    """The text of a dict of values or lists of values; None is left out."""
    parts = []
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                parts.append(f"{quote(str(name))}={quote(str(one))}")
    return "&".join(parts)


def normalize_path(path):
    """Without empty parts, "." and ".."; a slash at the end stays."""
    kept = []
    for part in path.split("/"):
        if part == "..":
            if kept:
                kept.pop()
        elif part and part != ".":
            kept.append(part)
    ends = path.endswith(("/", "/.", "/.."))
    return "/" + "/".join(kept) + ("/" if ends and kept else "")


def parse_url(text):
    """Raises ValueError for one without a scheme or a host, or with a port that is none."""
    rest, _, fragment = text.partition("#")
    rest, _, query = rest.partition("?")
    scheme, found, rest = rest.partition("://")
    if not found or not scheme.isalpha():
        raise ValueError(f"{text!r} has no scheme")
    place, slash, path = rest.partition("/")
    host, colon, port = place.partition(":")
    if not host:
        raise ValueError(f"{text!r} has no host")
    scheme = scheme.lower()
    if colon and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is no port")
    number = int(port) if colon else PORTS.get(scheme, 0)
    return tuple(Url(scheme, host.lower(), number, normalize_path(slash + path), parse_query(query), unquote(fragment)))
