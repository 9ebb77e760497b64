"""Frames between actor and worker: four bytes of length, then JSON. A socket pair, so that what the file prints cannot
get in between."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
Message = dict[str, Any]


def frame(message: Message) -> bytes:
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        message: Message = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return message
