"""OpenRLHF's agent files and remote rewards on the real stack: the documentation's, from the page to learner steps."""

from __future__ import annotations

import http.server
import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics
from tests.contract.docs.docs_blocks import block

from ..test_guess_game import command, lay_out

PAGE = "openrlhf_files.md"


def trained(directory: Path) -> dict[str, list]:
    columns = metrics.read(directory / "run")
    assert (
        columns["step"] == [1, 2]
        and all(np.isfinite(columns["loss"]))
        and all(n > 0 for n in columns["trained_tokens"])
    )
    return columns


@pytest.mark.long
def test_an_agent_file_trains_and_a_mistake_in_it_is_told_before(tmp_path):
    (tmp_path / "guess_agent.py").write_text(block(PAGE, "python", "class AgentInstance"))
    (tmp_path / "guess_agent.toml").write_text(block(PAGE, "toml", "agent_func_path"))
    (tmp_path / "guess.jsonl").write_text(8 * (json.dumps({"prompt": "Guess. ", "label": "-"}) + "\n"))
    save_model(tmp_path / "model", seed=0)
    done = command("train", "--recipe", "guess_agent.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = trained(tmp_path)
    assert all(0 < share < 1 for share in columns["reward_mean"])
    assert all(1 <= tries <= 2 for tries in columns["reward/tries"]), "an extra log of the file"
    shown = command("play", "run", "--step", "2", "--limit", "64", cwd=tmp_path)
    assert shown.returncode == 0 and " Yes." in shown.stdout, shown.stdout[-2000:] + shown.stderr[-2000:]
    assert [path.stem.partition("-")[0] for path in (tmp_path / "run/own").glob("*.py")] == ["guess_agent"]
    (tmp_path / "guess_agent.py").write_text("import torch\n\nclass AgentExecuter:\n    pass\n")
    wrong = command("train", "--recipe", "guess_agent.toml", "--run-dir", "other", "--check-only", cwd=tmp_path)
    assert wrong.returncode == 2, wrong.stderr
    assert re.search(r"(?s)guess_agent\.py .*'AgentExecutor'.*\bAgentExecuter\b", wrong.stderr), wrong.stderr


@pytest.fixture
def reward_server():
    """A server in the form of OpenRLHF's: the share of digits in a response. Its URL, and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            responses = [
                query.removeprefix(prompt) for query, prompt in zip(body["query"], body["prompts"], strict=True)
            ]
            share = [sum(c.isdigit() for c in text) / max(1, len(text)) for text in responses]
            said = json.dumps(
                {"rewards": share, "extra_logs": {"characters": [len(text) for text in responses]}}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/get_reward", asked
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_a_remote_reward_judges_what_is_trained(tmp_path, reward_server):
    url, asked = reward_server
    lay_out(tmp_path)
    recipe = (tmp_path / "guess.toml").read_text().replace('name = "env" ', f'remote_url = "{url}" ')
    (tmp_path / "guess.toml").write_text(recipe)
    done = command("train", "--recipe", "guess.toml", "--train.max_steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = trained(tmp_path)
    assert all(0 < share < 1 for share in columns["reward_mean"]) and all(n > 1 for n in columns["reward/characters"])
    assert all(len(body["query"]) == len(body["labels"]) for body in asked) and {
        p for body in asked for p in body["prompts"]
    } == {"Guess.\n"}
