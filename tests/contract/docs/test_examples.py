"""The example agents' command line: what a wrong start says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

AGENT = Path(__file__).parents[3] / "examples" / "openai_agent.py"
pytestmark = pytest.mark.slow  # the openai package takes seconds to import


def agent(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(AGENT), *words], capture_output=True, text=True, check=False)


@contextmanager
def actor_that_answers(status: int) -> Iterator[str]:
    class Actor(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Actor)
    Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_help_says_what_it_is_and_what_it_wants():
    said = agent("--help")
    assert said.returncode == 0 and "RUN_DIR" in said.stdout and "--rollout.agent external" in said.stdout


def test_a_run_that_is_not_there_is_told_and_not_waited_for(tmp_path):
    none, missing = agent(), agent(str(tmp_path / "no_run"))
    assert (none.returncode, missing.returncode) == (2, 2)
    assert "RUN_DIR" in none.stderr and f"there is no directory {tmp_path / 'no_run'}" in missing.stderr


def test_a_key_that_the_actors_refuse_ends_it_with_what_to_set(tmp_path):
    with actor_that_answers(401) as url:
        (tmp_path / "endpoints").mkdir()
        (tmp_path / "endpoints" / "rollout-0").write_text(url)
        said = agent(str(tmp_path))
    assert said.returncode == 1 and f"{url} refuses this program's key (401)" in said.stderr
    assert "TIR_ROLLOUT_TOKEN" in said.stderr and "Traceback" not in said.stderr
