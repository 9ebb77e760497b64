"""`bfcl generate` of the package asks our endpoint (`openrlhf-tir serve`), `bfcl evaluate` grades the answers, and our
graders say the same of each. The model answers by keywords, so that some answers are right.

TIR_BFCL_VENV names a virtual environment with the whole package, as for tests/contract/adapters/test_bfcl_driver.py."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from env_servers.adapters.bfcl.play import play
from env_servers.adapters.bfcl.task import Call, parse_call
from env_servers.adapters.bfcl.world import Scene
from openrlhf_tir.evaluation.suites import find, rows_of
from tests.contract.adapters.test_bfcl_driver import MODEL, VENV, bfcl, failed, ours, package_data

from ..support.keyword_model import CONTEXT, Key, save_keyword_model
from ..test_guess_game import ROOT

pytestmark = [pytest.mark.long, pytest.mark.skipif(VENV is None, reason="TIR_BFCL_VENV is not set")]
IDS = {
    "simple_python": [f"simple_python_{i}" for i in range(5)],
    "multi_turn_base": ["multi_turn_base_50", "multi_turn_base_100", "multi_turn_base_182"],
}
DOORS = "lockDoors(unlock=True, door=['driver', 'passenger', 'rear_left', 'rear_right'])"
KEYS = [
    Key("area of a triangle with a base of 10", "[calculate_triangle_area(base=10, height=5)]"),
    Key("the factorial of 5", "[math.factorial(number=5)]"),
    Key("hypotenuse of a right triangle given", "[math.hypot(x=4, y=6)]"),
    Key("car doors seem to have locked", f"[{DOORS}, setHeadlights(mode='on')]"),
    Key("appreciate if you could source this", "[get_stock_info(symbol='NVDA')]"),
    Key("</tool_response>", "That is done.", 2.0),
]
"""The first, the second and the fourth are right. A result of a call ends the turn."""
UP_S = 900.0


@contextmanager
def served(directory: Path, model: Path):
    words = ("serve", "--recipe", "quickstart_cpu", "--model", str(model), "--run_dir", "run", "--env.name", "echo")
    flags = ("--data.max_len", str(CONTEXT), "--rollout.max_new_tokens", "4096", "--vllm.max_num_seqs", "8")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    log = directory / "serve.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "openrlhf_tir.cli", *words, *flags], cwd=directory, env=env, stdout=out, stderr=out
        )
    try:
        endpoint, give_up = directory / "run/endpoints/rollout-0", time.monotonic() + UP_S
        while not re.search(r"^http\S+/v1$", log.read_text(), re.MULTILINE):
            assert server.poll() is None and time.monotonic() < give_up, log.read_text()[-3000:]
            time.sleep(0.5)
        yield endpoint.read_text().strip()
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0, log.read_text()[-3000:]
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def results(project: Path, category: str) -> dict[str, object]:
    (path,) = (project / "result").rglob(f"BFCL_v4_{category}_result.json")
    return {row["id"]: row["result"] for row in map(json.loads, path.read_text().splitlines())}


def error_types(project: Path, category: str) -> dict[str, str]:
    (path,) = (project / "score").rglob(f"BFCL_v4_{category}_score.json")
    return {row["id"]: row["error"]["error_type"] for row in map(json.loads, path.read_text().splitlines()[1:])}


def calls_of(text: str) -> list[Call]:
    """[] where the text is no list of calls: the driver ends the turn there."""
    try:
        found = ast.parse(text, mode="eval").body
    except SyntaxError:
        return []
    return [parse_call(ast.unparse(call)) for call in found.elts]


def our_failure(data: Path, name: str, turns: list[list[str]]) -> str | None:
    def row(path: Path) -> dict:
        return next(r for r in map(json.loads, path.read_text().splitlines()) if r["id"] == name)

    path = data / "BFCL_v4_multi_turn_base.json"
    entry, gold = row(path), row(path.parent / "possible_answer" / path.name)["ground_truth"]
    scene = Scene(
        entry["involved_classes"], entry["initial_config"], False, [[parse_call(c) for c in turn] for turn in gold]
    )
    made = [[calls for text in turn if (calls := calls_of(text))] for turn in turns]
    return next((f for f in play(scene, made, len(made)).failed if f), None)


def test_the_packages_driver_asks_our_endpoint_and_our_graders_agree_with_its_evaluator(tmp_path, monkeypatch):
    data = package_data()
    corpus = [path.read_text() for path in sorted((data / "multi_turn_func_doc").glob("*.json"))]
    model = save_keyword_model(tmp_path / "model", KEYS, "I cannot say.", corpus)
    project = tmp_path / "bfcl"
    project.mkdir()
    (project / "test_case_ids_to_generate.json").write_text(json.dumps(IDS))
    categories = ",".join(IDS)
    with served(tmp_path, model) as url:
        monkeypatch.setenv("REMOTE_OPENAI_BASE_URL", f"{url}/v1")
        bfcl(
            *(project, "generate", "--model", MODEL, "--run-ids", "--skip-server-setup"),
            *("--local-model-path", str(model), "--num-threads", "2"),
        )
    bfcl(project, "evaluate", "--model", MODEL, "--test-category", categories, "--partial-eval")

    single, wrong = results(project, "simple_python"), failed(project, "simple_python")
    rows = dict(
        zip(
            [json.loads(line)["id"] for line in (data / "BFCL_v4_simple_python.json").read_text().splitlines()],
            rows_of(find("bfcl_simple", data)),
            strict=True,
        )
    )
    assert [single[f"simple_python_{i}"] for i in range(4)] == [*(k.answer for k in KEYS[:3]), "I cannot say."]
    verdicts = {name: ours(rows[name], str(text)) for name, text in single.items()}
    assert verdicts == {name: name not in wrong for name in single} and sorted(
        name for name, right in verdicts.items() if right
    ) == ["simple_python_0", "simple_python_1"]

    monkeypatch.syspath_prepend(str(_package_alone(data, tmp_path)))
    turns, wrong = results(project, "multi_turn_base"), failed(project, "multi_turn_base")
    assert sorted(turns) == sorted(IDS["multi_turn_base"])
    found = {name: our_failure(data, name, said) for name, said in turns.items()}
    assert {name for name, why in found.items() if why} == set(wrong) == {"multi_turn_base_100", "multi_turn_base_182"}
    assert error_types(project, "multi_turn_base") == {name: f"multi_turn:{why}" for name, why in found.items() if why}


def _package_alone(data: Path, directory: Path) -> Path:
    """A directory for sys.path with the package and nothing else of its environment."""
    alone = directory / "alone"
    alone.mkdir()
    (alone / "bfcl_eval").symlink_to(data.parent)
    return alone
