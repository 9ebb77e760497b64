"""EnvReplica: one server process of an environment on a Ray node, alive as long as its replica, and the few requests
that come through Serve's proxy."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp
import ray
from starlette.requests import Request
from starlette.responses import Response

ANSWER_S = 3600.0
"""Seconds that one request through Serve may take: a container that is pulled takes long to start, and the server has
deadlines of its own."""
PASSED_ON = ("authorization", "content-type")
PASSED_BACK = ("content-type", "retry-after", "www-authenticate")


def end_actor() -> None:
    """Serve sees an actor that is gone at once, and one that says it is unwell after half a minute, in which every
    other request would fail."""
    os._exit(1)


class EnvReplica:
    def __init__(
        self,
        module: str,
        flags: Sequence[str],
        host: str | None,
        start_s: float,
        drain_s: float,
        when_gone: Callable[[], None] = end_actor,
    ) -> None:
        """`python -m module flags...` on `host` (None: this node's own address). Raises RuntimeError when it does not
        answer within `start_s`.

        `when_gone` is called in a thread of its own when that process ends by itself later.

        Serve calls this in the replica's own thread, which lives as long as the replica: --die-with-parent is about the
        thread that starts a process."""
        self._drain_s, self._when_gone, self._ending = drain_s, when_gone, False
        self._http: aiohttp.ClientSession | None = None
        with socket.create_server((host or ray.util.get_node_ip_address(), 0), backlog=2048) as listening:
            address, port = listening.getsockname()[:2]
            self._url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
            own = [
                "--host", address, "--listen-fds", str(listening.fileno()), "--server-url", self._url,
                "--die-with-parent", str(os.getpid()),
            ]  # fmt: skip
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *flags, *own], pass_fds=[listening.fileno()]
            )
        connection = http.client.HTTPConnection(self._url.removeprefix("http://"), timeout=start_s)
        try:
            # its port listens already: one request waits until it is up, or has ended
            connection.request("GET", "/health")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as e:
            self._process.kill()
            raise RuntimeError(
                f"{module} did not start ({type(e).__name__}); its message is in this replica's log."
            ) from None
        finally:
            connection.close()
        threading.Thread(target=self._watch, name="server process", daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        if not self._ending:
            self._when_gone()

    async def __call__(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        url, body = f"{self._url}/{path.lstrip('/')}", await request.body()
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=ANSWER_S)
            )
        try:
            async with self._http.request(
                request.method, url, params=request.query_params, headers=headers, data=body or None
            ) as reply:
                kept = {name: reply.headers[name] for name in PASSED_BACK if name in reply.headers}
                return Response(await reply.read(), reply.status, kept)
        except (aiohttp.ClientError, OSError) as e:  # TimeoutError is one
            return Response(f"The server of this replica is gone ({type(e).__name__}).", 503, {"Retry-After": "5"})

    async def check_health(self) -> None:
        """Asked by Serve, which replaces the replica when it raises, or ends."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server process ended with {self._process.returncode}")

    def __del__(self) -> None:
        """Serve's way of saying goodbye: running steps get their `drain_s`."""
        self._ending = True
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._drain_s + 5)
            process.kill()
