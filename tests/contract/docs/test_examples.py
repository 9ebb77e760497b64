"""The example agents' command line: what a wrong start says."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

AGENT = Path(__file__).parents[3] / "examples" / "openai_agent.py"
pytestmark = pytest.mark.slow  # the openai package takes seconds to import


@pytest.fixture
def agent(monkeypatch, capsys):
    """Runs the program in this process, and returns its exit code, its message of code 1 in place of that, and what it
    printed."""
    monkeypatch.syspath_prepend(str(AGENT.parent))

    def run(*words: str) -> tuple[int | str | None, str]:
        monkeypatch.setattr(sys, "argv", [str(AGENT), *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(AGENT), run_name="__main__")
        return end.value.code, "".join(capsys.readouterr())

    return run


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


def test_help_says_what_it_is_and_what_it_wants(agent):
    code, said = agent("--help")
    assert code == 0 and "RUN_DIR" in said and "--rollout.agent external" in said


def test_a_run_that_is_not_there_is_told_and_not_waited_for(agent, tmp_path):
    (code, none), (code_of_missing, missing) = agent(), agent(str(tmp_path / "no_run"))
    assert (code, code_of_missing) == (2, 2)
    assert "RUN_DIR" in none and str(tmp_path / "no_run") in missing


def test_a_key_that_the_actors_refuse_ends_it_with_what_to_set(agent, tmp_path):
    with actor_that_answers(401) as url:
        (tmp_path / "endpoints").mkdir()
        (tmp_path / "endpoints" / "rollout-0").write_text(url)
        message, _ = agent(str(tmp_path))
    assert all(fact in message for fact in (url, "(401)", "TIR_ROLLOUT_TOKEN"))
