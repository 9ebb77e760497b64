"""A Ray Serve replica that owns one server process of an environment on its node, and passes on requests from
Serve's proxy."""

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
"""Seconds that one request through Serve may take. A container that is pulled takes long to start, and the server has
its own deadlines."""
PASSED_ON = ("authorization", "content-type")
"""Headers of a request that are passed on."""
PASSED_BACK = ("content-type", "retry-after", "www-authenticate")
"""Headers of a reply that are passed back."""


def end_actor() -> None:
    """End this process. Serve notices at once that an actor is gone.

    It notices an actor that reports itself unhealthy only after half a minute, in which every other request would fail.
    """
    os._exit(1)


class EnvReplica:
    """A server process that lives as long as its replica."""

    def __init__(
        self,
        module: str,
        flags: Sequence[str],
        host: str | None,
        start_s: float,
        drain_s: float,
        when_gone: Callable[[], None] = end_actor,
    ) -> None:
        """Start `python -m module flags...` and wait until it answers.

        Serve calls this in the replica's own thread, which lives as long as the replica: --die-with-parent depends on
        the thread that starts a process.

        Args:
            module: Module of the server.
            flags: Its flags.
            host: Address to listen on; None for this node's own.
            start_s: Deadline of the first answer, in seconds.
            drain_s: Seconds that running steps get at the end.
            when_gone: Called in its own thread when the process ends by itself later.

        Raises:
            RuntimeError: The server did not answer in time.
        """
        self._drain_s = drain_s
        self._when_gone = when_gone
        self._ending = False
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
            # The port listens already, so one request waits until the server is up or has ended.
            connection.request("GET", "/health")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            self._process.kill()
            raise RuntimeError(
                f"{module} did not start ({type(error).__name__}); its message is in this replica's log."
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
        url = f"{self._url}/{path.lstrip('/')}"
        body = await request.body()
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
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError.
            return Response(f"The server of this replica is gone ({type(error).__name__}).", 503, {"Retry-After": "5"})

    async def check_health(self) -> None:
        """Raise if the server process has ended. Serve calls this and replaces the replica."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server process ended with {self._process.returncode}")

    def __del__(self) -> None:
        """End the server process. Serve deletes the object at the end of a replica; running steps get `drain_s`."""
        self._ending = True
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._drain_s + 5)
            process.kill()
