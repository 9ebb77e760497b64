"""uvicorn's HTTP protocol with deadlines and a limit of connections. uvicorn alone has none for a request that is
being sent.

    opened ---- header_timeout_s ---> closed            no complete request header, however slowly it trickles
                                                        (slow-loris)
    header complete                                     from here the body's deadline is `guard`'s
    answered -- idle_timeout_s -----> closed            no byte of a next request; from its first byte: header_timeout_s
    reads no answer -- write_timeout_s --> cut
    max_connections                                     the one that has waited longest without a request makes room;
                                                        429 with Retry-After when all are being answered

Works on either of uvicorn's implementations (h11, httptools): only names that both have are used.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:  # whichever uvicorn finds comes behind the mixin
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
else:
    _Protocol = object

LINGER_S = 1.0
"""Seconds for which a connection whose last answer is under way still reads: closed under a client that sends, it is
reset, and the answer is lost (nginx: lingering close)."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = b'{"detail":"The server has no room for another connection. Try again."}'
_TURNED_AWAY = (
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 1\r\ncontent-type:"
    b" application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of a server; see the module's docstring."""

    max_connections: int = 4096
    header_timeout_s: float = 20.0
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 300.0
    """Seconds after which a client that takes nothing of its answer, with buffers full, counts as gone."""


def uvicorn_options(limits: ConnectionLimits) -> dict[str, Any]:
    """Return arguments of uvicorn.Config. Each server calls this once, because connections are counted per call.

    There are no websockets: they would have no deadlines.
    """
    http = type("GuardedProtocol", (_Guarded, AutoHTTPProtocol), {"limits": limits, "waiting": {}})
    return {"http": http, "ws": "none", "timeout_keep_alive": limits.idle_timeout_s, "backlog": 2048}


class _Guarded(_Protocol):
    """Mixin before a uvicorn protocol."""

    limits: ConnectionLimits
    waiting: dict[_Guarded, None]
    """Connections without a complete request header; the one that has waited longest is first."""
    _deadline: asyncio.TimerHandle | None = None
    """Closes the connection while it waits for the rest of a header; None if it waits for none."""
    _write_deadline: asyncio.TimerHandle | None = None
    _is_ending = False
    """True if its last answer was sent."""
    _has_bytes = False
    """True if a part of the request that it waits for has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's: over TCP it is never a lesser one
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections and not self._make_room():
            return self._end_with(_TURNED_AWAY)
        self.waiting[self] = None
        self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._has_bytes = True
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()
        elif self._deadline is None:  # the first bytes of a next request
            self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_slow)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering():  # else the next one had been sent already
            self._has_bytes = False
            self.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._cancel_write_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_write_deadline()
        self._write_deadline = self.loop.call_later(self.limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_deadline()
        super().resume_writing()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_waiting(self) -> None:
        """Take the connection out of those that wait for a request: one is being answered, or it is over."""
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()

    def _too_slow(self) -> None:
        if not self._has_bytes:
            self.transport.close()
        elif not self.transport.is_closing():
            self._stop_waiting()
            self._end_with(_TOO_SLOW)

    def _end_with(self, answer: bytes) -> None:
        """Send the connection's last answer and close this side of it.

        What the client still sends is read and dropped until it hangs up, for LINGER_S at most. TLS has no half close:
        no server here speaks it.
        """
        self._is_ending = True
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)
        self.transport.write(answer)
        with suppress(OSError):  # reset by the client since
            self.transport.write_eof()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest, for this one. Return False if none waits."""
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        oldest._stop_waiting()
        oldest.transport.close()
        return True
