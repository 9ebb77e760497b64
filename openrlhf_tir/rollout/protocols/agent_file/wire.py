"""Messages between actor and worker: four bytes of length, then JSON.

They travel over a socket pair, not over standard output, so text that the file prints cannot get between them.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
Message = dict[str, Any]


def frame(message: Message) -> bytes:
    """Return the bytes of a message."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        message: Message = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return message
