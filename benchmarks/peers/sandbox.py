"""Sandbox: the environment server that ours uses too, started for a peer, asked over HTTP. Standard library only."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S, STEP_S = 120.0, 20.0
"""For the server to answer at all, and an action: env.step_timeout_s of the recipe."""
CLIENTS = 16
"""Requests at once: the server runs as many as it has workers, the others wait in it."""


class Client:
    """A python_tir server on loopback. Raises RuntimeError when it fails by its own fault."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def run(self, codes: Sequence[str]) -> list[str]:
        """What each prints, in order; each in a session of its own, as an episode's."""
        return [reply["observation"] for reply in self._pool.map(self._run, codes)]

    def reply(self, code: str) -> Future[dict[str, Any]]:
        """The server's whole reply to one."""
        return self._pool.submit(self._run, code)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, code: str) -> dict[str, Any]:
        session = uuid.uuid4().hex
        self._ask("POST", "/reset", {"session_id": session})
        reply = self._ask("POST", "/step", {"session_id": session, "step_id": 0, "action": code, "deadline_s": STEP_S})
        self._ask("DELETE", f"/session/{session}", None)
        if reply["outcome"] not in ("ok", "model_error"):
            raise RuntimeError(
                f"The sandbox failed with outcome {reply['outcome']!r}, which is no reward: {reply}."
                " Look at its log, env.log."
            )
        return reply

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        sent = json.dumps(body) if body is not None else None
        try:
            status, text = self._exchange(method, path, sent)
        except (ConnectionError, http.client.HTTPException):
            # A server closes connections that were idle while the model wrote. It runs a session's step once, however
            # often it is asked.
            del self._local.connection
            status, text = self._exchange(method, path, sent)
        if status != 200:
            raise RuntimeError(f"The sandbox answered {method} {path} with {status}: {text[:200]!r}.")
        return json.loads(text)

    def _exchange(self, method: str, path: str, sent: str | None) -> tuple[int, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * STEP_S)
        connection.request(method, path, sent, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()


@contextmanager
def sandbox(python: str, out: Path, workers: int) -> Iterator[Client]:
    """env_servers.python_tir with the recipe's number of workers, until the block ends. RuntimeError if it does not
    start."""
    port_file, log = out / "env.port", out / "env.log"
    port_file.unlink(missing_ok=True)
    words = [
        python, "-m", "env_servers.python_tir", "--workers", str(workers), "--code-timeout", "5",
        "--port-file", str(port_file),
    ]  # fmt: skip
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*words, "--die-with-parent", str(os.getpid())], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until = time.monotonic() + START_S
        while not port_file.exists():  # of another interpreter's process: nothing tells of it but the file
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"The sandbox did not start within {START_S:g} s (exit {server.poll()}); its output is {log}."
                )
            time.sleep(0.05)
        client = Client(int(port_file.read_text()))
        yield client
        client.close()
    finally:
        server.terminate()
        try:
            server.wait(STEP_S)
        except subprocess.TimeoutExpired:
            server.kill()
