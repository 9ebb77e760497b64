"""Wire: what examiner and subject say to each other. Frames of JSON over a socket; plain values by content, everything
else by number.

    null, booleans, integers, texts             as they are
    ["float", "1.5"]  ["list", [...]]  ["tuple", [...]]  ["dict", [[k, v], ...]]  ["set", [...]]  ["frozenset", [...]]
                      ["bytes", "00ff"]
    ["date", "2024-01-31"]  ["datetime", iso]  ["timedelta", [days, s, us]]  ["fraction", [n, d]]  ["decimal", "1.5"]
                            ["slice", [a, b, c]]
    ["object", number, type's name]             lives on the other side
    ["exception type", number, [[module, name], ...]]
    ["own", number]                             lives on this side

A value counts as plain by its exact type: a subclass of `int` that is equal to everything stays where it is, and is
equal to nothing here. What the other side sends is data: no type, no code and no attribute is looked up by its word.
"""

import datetime
import decimal
import fractions
import json
import struct

MOST_BYTES = 4 << 20
MOST_DEPTH = 100
_SIZE = struct.Struct(">I")


class Closed(Exception):
    """The other side has ended, or said what is no message."""


def send(channel, message):
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        raise ValueError(f"a value of {len(data)} bytes is larger than {MOST_BYTES}")
    channel.sendall(_SIZE.pack(len(data)) + data)


def receive(channel):
    try:
        size = _SIZE.unpack(_exactly(channel, _SIZE.size))[0]
        if size > MOST_BYTES:
            raise Closed(f"a message of {size} bytes")
        return json.loads(_exactly(channel, size))
    except (OSError, ValueError, RecursionError) as e:
        raise Closed(f"no message: {type(e).__name__}") from None


def _exactly(channel, size):
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 16))
        if not part:
            raise Closed("the other side has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value, refer, depth=0):
    """`refer(value)` names what is not plain."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if depth > MOST_DEPTH:
        raise ValueError(f"a value is nested more than {MOST_DEPTH} deep")

    def inner(items):
        return [encode(item, refer, depth + 1) for item in items]

    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, inner(value)]
    if kind is dict:
        return ["dict", [inner(pair) for pair in value.items()]]
    if kind is float:
        return ["float", repr(value)]
    if kind in (bytes, bytearray):
        return ["bytes", value.hex()]
    if kind in (datetime.date, datetime.datetime):
        return [kind.__name__, value.isoformat()]
    if kind is datetime.timedelta:
        return ["timedelta", [value.days, value.seconds, value.microseconds]]
    if kind is fractions.Fraction:
        return ["fraction", [value.numerator, value.denominator]]
    if kind is decimal.Decimal:
        return ["decimal", str(value)]
    if kind is slice:
        return ["slice", inner((value.start, value.stop, value.step))]
    return refer(value)


def decode(value, resolve):
    """`resolve(kind, *rest)` finds what is not plain. Raises ValueError for what is no value."""
    if value is None or type(value) in (bool, int, str):
        return value
    try:
        kind, *rest = value
        body = rest[0]
        if kind in _PLAIN:
            return _PLAIN[kind](body, lambda items: [decode(item, resolve) for item in items])
        return resolve(kind, *rest)
    except (TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as e:
        raise ValueError(f"no value: {type(e).__name__}: {e}") from None


_PLAIN = {
    "list": lambda body, inner: inner(body),
    "tuple": lambda body, inner: tuple(inner(body)),
    "set": lambda body, inner: set(inner(body)),
    "frozenset": lambda body, inner: frozenset(inner(body)),
    "dict": lambda body, inner: {k: v for k, v in map(inner, body)},
    "float": lambda body, inner: float(body),
    "bytes": lambda body, inner: bytes.fromhex(body),
    "date": lambda body, inner: datetime.date.fromisoformat(body),
    "datetime": lambda body, inner: datetime.datetime.fromisoformat(body),
    "timedelta": lambda body, inner: datetime.timedelta(*inner(body)),
    "fraction": lambda body, inner: fractions.Fraction(*inner(body)),
    "decimal": lambda body, inner: decimal.Decimal(body),
    "slice": lambda body, inner: slice(*inner(body)),
}
