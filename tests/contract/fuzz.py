"""Fuzz: requests that are wrong in every way that a client's bug can make them, from a seed. Half of them are nearly
right.

    Endpoint(method, path, body that is answered) -> `requests(endpoints, n, seed)` -> [Raw], the same for a seed
    send(url, requests) -> statuses by endpoint; a server that hangs up or says nothing is status 0

What is asked of a server: no status of 500 or more, no traceback on its stderr, and right answers afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

JSON = "application/json"
ODD_TEXT = [
    "", " ", "\0", "a" * 300, "a/b" * 100, "../x", "é" * 200, "\u2028", "🂡", "%s%n", "${x}", "1e999", "nan", "-inf",
    "'; --", "{", "\r\nX: y", "x" * 20_000,
]  # fmt: skip
ODD_JSON = [
    "null", "true", "false", "0", "-1", "1.5", "-0.0", "1e308", "1e999", "-1e999", "1e-320", "NaN", "Infinity",
    "-Infinity", "9" * 400, "-" + "9" * 25, "18446744073709551616", "9223372036854775808", "1" * 5000, '"\\ud800"',
    '"\\udfff\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", "[null]", '[""]', "[0,1,2]", '{"a":{"b":[1,{"c":null}]}}',
    "[" * 150 + "]" * 150, "[" * 5000, '{"a":' * 300 + "1" + "}" * 300, '"\\x"', "'a'", "01", "+1", ".5", "undefined",
]  # fmt: skip
ODD_BODIES = [
    b"", b" ", b"{", b"[", b"null", b"0", b'""', b"[]", b"{}", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf{}",
    b"\0" * 64, b"a=1&b=2", b"{" * 3000,
]  # fmt: skip
ODD_TYPES = [
    "text/plain", "", "application/json; charset=utf-16", "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded", "application/ld+json", "x",
]  # fmt: skip
LONG_LIST = 1000
ODD_ENDS = ["/", "?a=%ff", "?stream=maybe", "/%00", "%2f..", "/%ed%a0%80"]
ODD_METHODS = ["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "POST", "BREW"]
ODD_HEADERS = [
    "Expect: 100-continue",
    "X-Y: " + "z" * 8000,
    "Upgrade: websocket\r\nConnection: upgrade",
    "Accept: \xff",
    "Content-Length: 3",
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    body: Any = None
    """One that is answered with 200."""


class Raw(NamedTuple):
    endpoint: Endpoint
    head: bytes
    body: bytes


@dataclass(slots=True)
class Seen:
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    bad: list[tuple[Raw, int, bytes]] = field(default_factory=list)
    """Answered with 500 or more, or not at all."""

    def __str__(self) -> str:
        lines = [
            f"{path}: " + ", ".join(f"{status}: {n}" for status, n in sorted(counts.items()))
            for path, counts in sorted(self.statuses.items())
        ]
        lines += [
            f"BAD {status} {raw.head[:300]!r} {raw.body[:300]!r} -> {answer[:500]!r}"
            for raw, status, answer in self.bad[:10]
        ]
        return "\n".join(lines)


def requests(endpoints: Sequence[Endpoint], n: int, seed: int) -> Iterable[Raw]:
    """`n` for each endpoint."""
    rng = random.Random(seed)
    for _ in range(n):
        for endpoint in endpoints:
            yield _request(endpoint, rng)


def _request(endpoint: Endpoint, rng: random.Random) -> Raw:
    kind, path, method = rng.random(), endpoint.path, endpoint.method
    body = b"" if endpoint.body is None else _broken(endpoint.body, rng)
    content_type, more = JSON, ""
    if kind < 0.08:
        body = rng.choice(ODD_BODIES)
    elif kind < 0.14:
        content_type = rng.choice(ODD_TYPES)
    elif kind < 0.18:
        path = rng.choice([*(path + end for end in ODD_ENDS), "/" + "x" * 2000, "//", path.upper()])
    elif kind < 0.21:
        method = rng.choice(ODD_METHODS)
    elif kind < 0.24:
        more = rng.choice(ODD_HEADERS) + "\r\n"
    elif kind < 0.28 and body:
        body = body[: rng.randrange(len(body))]
    elif kind < 0.32 and body:
        body = bytes(b ^ (1 << rng.randrange(8)) if rng.random() < 0.02 else b for b in body[:5000])
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: fuzz\r\nContent-Type:"
        f" {content_type}\r\nAuthorization: Bearer fuzz\r\n{more}"
    )
    if kind > 0.97:
        head += "Transfer-Encoding: chunked\r\n\r\n"
        cut = rng.randrange(len(body) + 1)
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part) + rng.choice(
            [b"0\r\n\r\n", b"zz\r\n\r\n", b"-1\r\n"]
        )
    else:
        head += f"Content-Length: {len(body)}\r\n\r\n"
    return Raw(endpoint, head.encode("latin1"), body)


def _broken(value: Any, rng: random.Random) -> bytes:
    """JSON text of the value with a few places changed. One in ten stays right."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 2, 3, 5, 8])):
        value = _change(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return re.sub(r'"@(\d+)@"', lambda m: ODD_JSON[int(m[1])], text).encode("utf-8", "surrogatepass")


def _change(value: Any, rng: random.Random) -> Any:
    """The value with one place replaced, removed or added to. Between \\x01 marks stands JSON text as it is."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                del value[key]
            case 1:
                value[rng.choice([*ODD_TEXT, "extra"])] = value[key]
            case _:
                value[key] = _change(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        match rng.randrange(6):
            case 0:
                times = rng.choice([0, 2, 50])
                value *= times if len(value) < LONG_LIST else 1  # fifty times fifty times fifty are gigabytes
            case 1:
                value.append(_odd(rng))
            case _:
                at = rng.randrange(len(value))
                value[at] = _change(value[at], rng)
        return value
    return _odd(rng)


def _odd(rng: random.Random) -> str:
    """Odd text, or "@i@", which stands for ODD_JSON[i]."""
    return rng.choice(ODD_TEXT) if rng.random() < 0.4 else f"@{rng.randrange(len(ODD_JSON))}@"


async def send(url: str, todo: Iterable[Raw], *, at_once: int = 16, answer_s: float = 600.0) -> Seen:
    """Send them all, each on a connection that is used again while the server keeps it."""
    where, queue, seen = urlsplit(url), iter(todo), Seen()

    async def worker() -> None:
        connection = None
        for raw in queue:
            try:
                async with asyncio.timeout(answer_s):
                    connection, status, answer = await _exchange(where, connection, raw.head, raw.body)
            except TimeoutError:
                connection, status, answer = None, 0, b"no answer"
            seen.statuses.setdefault(f"{raw.endpoint.method} {raw.endpoint.path}", Counter())[status] += 1
            if status == 0 or status >= 500:
                seen.bad.append((raw, status, answer))
        if connection:
            connection[1].close()

    await asyncio.gather(*[worker() for _ in range(at_once)])
    return seen


async def _exchange(where: Any, connection: tuple | None, head: bytes, body: bytes) -> tuple[tuple | None, int, bytes]:
    """(connection if it may be used again, status, what was answered)."""
    used = connection is not None
    reader, writer = connection or await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
    try:
        writer.write(head + body)
        await writer.drain()
        status_line = await reader.readline()
        while status_line.startswith(b"HTTP/1.1 100"):
            await reader.readline()
            status_line = await reader.readline()
        if not status_line and used:  # the server had closed it meanwhile
            writer.close()
            return await _exchange(where, None, head, body)
        if not status_line:
            writer.close()
            return None, 0, b"hung up"
        headers = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip().lower()
        keep = (
            headers.get(b"connection") != b"close"
            and b"Upgrade" not in head
            and b"chunked" not in head
            and head.count(b"Content-Length") == 1
        )
        if not keep or headers.get(b"transfer-encoding") == b"chunked" or head.startswith(b"HEAD"):
            bodiless = head.startswith(b"HEAD") or b" 204 " in status_line
            answer = b"" if bodiless else await _rest(reader, headers)
            writer.close()
            return None, int(status_line.split()[1]), answer
        answer = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        return (reader, writer), int(status_line.split()[1]), answer
    except (ConnectionError, asyncio.IncompleteReadError) as e:
        writer.close()
        if used:
            return await _exchange(where, None, head, body)
        return None, 0, repr(e).encode()


async def _rest(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    if headers.get(b"transfer-encoding") != b"chunked" and b"content-length" not in headers:
        return await reader.read()
    if b"content-length" in headers:
        return await reader.readexactly(int(headers[b"content-length"]))
    parts = []
    while size := int((await reader.readline()).strip() or b"0", 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    return b"".join(parts)
