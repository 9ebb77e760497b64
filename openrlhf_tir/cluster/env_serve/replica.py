"""EnvReplica: one server process of an environment on a Ray node, alive as long as its replica, and the few requests that come through Serve's proxy."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
import ray
from starlette.requests import Request
from starlette.responses import Response

ANSWER_S = 3600.0
"""For one request through Serve: a container that is pulled takes long to start, and the server has deadlines of its own."""
PASSED_ON = ("authorization", "content-type")
PASSED_BACK = ("content-type", "retry-after", "www-authenticate")


class EnvReplica:
    def __init__(self, module: str, flags: Sequence[str], host: str | None, start_s: float, drain_s: float) -> None:
        """`python -m module flags...` on `host` (None: this node's own address). Raises RuntimeError when it does not answer within `start_s`.

        Serve calls this in the replica's own thread, which lives as long as the replica: --die-with-parent is about the thread that starts a process.
        """
        self._drain_s = drain_s
        self._http: aiohttp.ClientSession | None = None
        with socket.create_server((host or ray.util.get_node_ip_address(), 0), backlog=2048) as listening:
            address, port = listening.getsockname()[:2]
            self._url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
            own = ["--host", address, "--listen-fds", str(listening.fileno()), "--server-url", self._url, "--die-with-parent", str(os.getpid())]
            self._process = subprocess.Popen([sys.executable, "-m", module, *flags, *own], pass_fds=[listening.fileno()])
        connection = http.client.HTTPConnection(self._url.removeprefix("http://"), timeout=start_s)
        try:
            connection.request("GET", "/health")  # its port listens already: one request waits until it is up, or has ended
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as e:
            self._process.kill()
            raise RuntimeError(f"{module} did not start ({type(e).__name__}); its message is in this replica's log.") from None
        finally:
            connection.close()

    async def __call__(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        url, body = f"{self._url}/{path.lstrip('/')}", await request.body()
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        try:
            async with self._http.request(request.method, url, params=request.query_params, headers=headers, data=body or None) as reply:
                kept = {name: reply.headers[name] for name in PASSED_BACK if name in reply.headers}
                return Response(await reply.read(), reply.status, kept)
        except (aiohttp.ClientError, OSError) as e:  # TimeoutError is one
            return Response(f"The server of this replica is gone ({type(e).__name__}).", 503, {"Retry-After": "5"})

    def check_health(self) -> None:
        """Asked by Serve, which replaces the replica when it raises."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server process ended with {self._process.returncode}")

    def __del__(self) -> None:
        """Serve's way of saying goodbye: running steps get their `drain_s`."""
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._drain_s + 5)
            process.kill()
