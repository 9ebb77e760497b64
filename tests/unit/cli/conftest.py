"""A server that answers the start of a run."""

from __future__ import annotations

import http.server
import json
import signal
import threading

import pytest


class FakeEnv(http.server.BaseHTTPRequestHandler):
    """/health and /schema of an environment; wants the token when the server has one."""

    def do_GET(self):
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.send_error(401)
        body = self.server.bodies[self.path]
        if isinstance(body, int):
            return self.send_error(body)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture(autouse=True)
def programs_heed_a_hang_up():
    """A suite under nohup ignores SIGHUP, and what it starts would inherit that. A handler is not inherited."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def env_server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeEnv)
    server.token = None
    server.bodies = {
        "/health": {"status": "ok", "env": "python_tir", "isolation": "bwrap"},
        "/schema": {"env": "python_tir", "action": "python source code", "capacity": 3},
    }
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
