"""A run that passes preflight, and a server that answers it."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from openrlhf_tir.cli.rehearsal import Rehearsal
from tests.model_files import weights

from .runs import ON_CPU


@pytest.fixture
def ready(tmp_path):
    """Overrides of a run that passes: a model directory and two problems."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 128, "num_attention_heads": 4}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(weights())
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "1+1?", "label": "2"}\n' * 2)
    return {**ON_CPU, "actor.model_name_or_path": str(model), "data.prompt_dataset": str(data)}


@pytest.fixture(autouse=True)
def nothing_is_played(monkeypatch):
    """These runs have no tokenizer; what `--check-only` plays is in tests/unit/cli/rehearsal."""
    monkeypatch.setattr("openrlhf_tir.cli.rehearsal.rehearse", lambda cfg, progress: Rehearsal())


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
