"""openrlhf-tir distill, from the outside: what is written, printed and refused."""

from __future__ import annotations

import json
import os
import re

import pytest

from openrlhf_tir.cli import main
from tests.unit.data.sft.test_distill import kept
from tests.unit.data.test_data_prompts import jsonl


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "trajectories").mkdir(parents=True)
    rows = [kept("4"), kept("four"), kept("5", correct=0.0, reward=0.0), kept("4"), kept("6", failed="timeout")]
    jsonl(tmp_path / "run" / "trajectories" / "rollout-0.jsonl", rows)
    return tmp_path / "run"


def test_correct_responses_are_written_each_once_and_the_rest_is_counted(run, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert main(["distill", str(run), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {r["segments"][-1]["text"] for r in rows} == {"4", "four"} and all(r["prompt"] == "2+2?" for r in rows)
    assert rows[0]["segments"][0] == {"source": "env", "text": "hint: add. "}
    said = capsys.readouterr().err
    assert re.search(r"^2 .* 1 .*; ", said, re.MULTILINE)
    assert set(re.findall(r"(\w+) (\d+)", said.rpartition(": ")[2])) == {
        (why, "1") for why in ("wrong", "duplicate", "failed")
    }


def test_an_existing_file_is_replaced_as_a_whole_and_never_written_in_place(run, tmp_path):
    """A second name of the earlier file shows what becomes of its content: a full disk would leave half of the new."""
    out = tmp_path / "rows.jsonl"
    out.write_text("mine")
    os.link(out, tmp_path / "earlier")
    assert main(["distill", str(run), "--out", str(out), "--force"]) == 0
    assert (tmp_path / "earlier").read_text() == "mine"
    assert len(out.read_text().splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "rows.jsonl", "run"]


def test_standard_output_holds_rows_alone(run, capsys):
    assert main(["distill", str(run), "--out", "-", "--per-prompt", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["reward"] == 1.0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("nowhere --out x.jsonl", " nowhere. "),
        (". --out x.jsonl", "--logger.trajectories 1"),
        ("run --out run/there", "--out run/there "),
        ("run --out x.jsonl --wrong-too", "--min-reward "),
        ("run --out x.jsonl --min-reward nan", "--min-reward: nan "),
        ("run --out x.jsonl --min-reward 2", "low_reward 3"),
        ("run --out no/such/file.jsonl", "--out no/such/file.jsonl "),
        ("run --out x.parquet", "--out x.parquet "),
        ("run", "--out"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(run, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(run.parent)
    (run / "there").write_text("mine")
    assert main(["distill", *argv.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err and (run / "there").read_text() == "mine"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('[rollout]\nagent = "external"\n', "rollout.agent = 'external'"),
        ('[train]\nagent_func_path = "a.py:AgentExecutor"\n', "train.agent_func_path = 'a.py:AgentExecutor'"),
    ],
)
def test_a_run_of_agents_is_refused_since_its_log_has_other_prompts(run, tmp_path, capsys, setting, named):
    (run / "config.toml").write_text(setting)
    assert main(["distill", str(run), "--out", str(tmp_path / "x.jsonl")]) == 2
    assert named in capsys.readouterr().err
